//! Tests of the cache of compiled models.

use crate::client::Client;
use crate::models::{model, options};
use byoc_serve::Server;
use byoc_test_support::workspace;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Starts a server with one model, and returns the model metadata.
fn metadata(file: &Path, flags: &[&str], cache: &Path) -> Value {
    let named = format!("m={}", file.display());
    let cache = cache.display().to_string();
    let all: Vec<&str> = flags.iter().copied().chain(["--cache-dir", &cache, &named]).collect();
    let server = Server::start(&options(&all)).unwrap();
    let metadata = Client::connect(server.http.unwrap()).get("/v2/models/m").ok().json();
    server.stop();
    metadata
}

fn kept(cache: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(cache.join("serve")).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_compiled_model_is_kept_until_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let (file, cache) = (folder.path().join("digits.onnx"), folder.path().join("cache"));
    fs::copy(workspace().join("tests/digits/digits.onnx"), &file).unwrap();
    let first = metadata(&file, &[], &cache);
    let [kept_file] = &kept(&cache)[..] else { panic!("expected one cache file") };
    let written = fs::metadata(kept_file).unwrap().modified().unwrap();
    assert_eq!(metadata(&file, &[], &cache), first);
    assert_eq!(fs::metadata(kept_file).unwrap().modified().unwrap(), written);
    // A different model in the cache file shows that the server loads this file.
    let relu = folder.path().join("relu.relay");
    fs::write(&relu, model("relu")).unwrap();
    let session = byoc::Session::builder().threads(1).build().unwrap();
    let compile = byoc::CompileOptions::new().open_unbound_dims();
    byoc::Compilation::new(&session, &relu, &compile).unwrap().save(kept_file).unwrap();
    assert_eq!(metadata(&file, &[], &cache)["inputs"][0]["shape"], serde_json::json!([-1, 4]));
    // A corrupt cache file is recompiled.
    fs::write(kept_file, b"garbage").unwrap();
    assert_eq!(metadata(&file, &[], &cache), first);
    assert!(fs::metadata(kept_file).unwrap().len() > 1000);
    // Different options or contents have different cache files; files for the same path replace each other.
    metadata(&file, &["--dim", "batch=1"], &cache);
    let with_options = kept(&cache);
    assert!(with_options.len() == 1 && with_options[0] != *kept_file, "{with_options:?}");
    let mut changed = fs::read(&file).unwrap();
    // Appends a field that the reader skips: the model description.
    changed.extend([0x32, 1, b'd']);
    fs::write(&file, changed).unwrap();
    metadata(&file, &["--dim", "batch=1"], &cache);
    let after = kept(&cache);
    assert!(after.len() == 1 && after != with_options, "{after:?}");
}

#[test]
fn a_cache_that_cannot_be_written_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let blocked = folder.path().join("cache");
    fs::write(&blocked, b"a file where the folder would be").unwrap();
    let found = metadata(&workspace().join("tests/digits/digits.onnx"), &[], &blocked);
    assert_eq!(found["name"], "m");
    // Non-ONNX models, and models with external data, are not cached.
    let cache = folder.path().join("other");
    let relu = folder.path().join("relu.relay");
    fs::write(&relu, model("relu")).unwrap();
    metadata(&relu, &[], &cache);
    assert!(kept(&cache).is_empty());
}
