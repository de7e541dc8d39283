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
    let model_arg = format!("m={}", file.display());
    let cache = cache.display().to_string();
    let all_args: Vec<&str> = flags.iter().copied().chain(["--cache-dir", &cache, &model_arg]).collect();
    let server = Server::start(&options(&all_args)).unwrap();
    let metadata = Client::connect(server.http.unwrap()).get("/v2/models/m").ok().json();
    server.stop();
    metadata
}

fn cached_files(cache: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(cache.join("serve")).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_compiled_model_is_kept_until_it_changes() {
    let dir = tempfile::tempdir().unwrap();
    let (file, cache) = (dir.path().join("digits.onnx"), dir.path().join("cache"));
    fs::copy(workspace().join("tests/digits/digits.onnx"), &file).unwrap();
    let first_metadata = metadata(&file, &[], &cache);
    let [kept_file] = &cached_files(&cache)[..] else {
        panic!("expected one cache file, found {}", cached_files(&cache).len())
    };
    let written_time = fs::metadata(kept_file).unwrap().modified().unwrap();
    assert_eq!(metadata(&file, &[], &cache), first_metadata);
    assert_eq!(fs::metadata(kept_file).unwrap().modified().unwrap(), written_time);
    // A different model in the cache file shows that the server loads this file.
    let relu = dir.path().join("relu.relay");
    fs::write(&relu, model("relu")).unwrap();
    let session = byoc::Session::builder().threads(1).build().unwrap();
    let compile = byoc::CompileOptions::new().open_unbound_dims();
    byoc::Compilation::new(&session, &relu, &compile).unwrap().save(kept_file).unwrap();
    assert_eq!(metadata(&file, &[], &cache)["inputs"][0]["shape"], serde_json::json!([-1, 4]));
    // A model with a corrupt cache file is recompiled.
    fs::write(kept_file, b"garbage").unwrap();
    assert_eq!(metadata(&file, &[], &cache), first_metadata);
    assert!(fs::metadata(kept_file).unwrap().len() > 1000);
    // Different options or contents lead to different cache files; files for the same path replace each other.
    metadata(&file, &["--dim", "batch=1"], &cache);
    let files_with_options = cached_files(&cache);
    assert!(files_with_options.len() == 1 && files_with_options[0] != *kept_file, "{files_with_options:?}");
    let mut changed_file = fs::read(&file).unwrap();
    // Appends a field that the reader skips: the model description.
    changed_file.extend([0x32, 1, b'd']);
    fs::write(&file, changed_file).unwrap();
    metadata(&file, &["--dim", "batch=1"], &cache);
    let cached_files = cached_files(&cache);
    assert!(cached_files.len() == 1 && cached_files != files_with_options, "{cached_files:?}");
}

#[test]
fn a_cache_that_cannot_be_written_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let blocked_path = dir.path().join("cache");
    fs::write(&blocked_path, b"a file where the folder would be").unwrap();
    let metadata_reply = metadata(&workspace().join("tests/digits/digits.onnx"), &[], &blocked_path);
    assert_eq!(metadata_reply["name"], "m");
    // Non-ONNX models, and models with external data, are not cached.
    let cache = dir.path().join("other");
    let relu = dir.path().join("relu.relay");
    fs::write(&relu, model("relu")).unwrap();
    metadata(&relu, &[], &cache);
    assert!(cached_files(&cache).is_empty());
}
