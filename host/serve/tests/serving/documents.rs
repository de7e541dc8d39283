//! Runs the commands and examples of `docs/serve.md` and of `--help` unchanged.

use crate::client::Client;
use crate::models::{options, serve_repository, write};
use byoc_serve::{Options, Server};
use byoc_test_support::workspace;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs;
use std::process::Command;
use std::time::Duration;

fn page() -> String {
    fs::read_to_string(workspace().join("docs/serve.md")).unwrap()
}

/// Returns the fenced code blocks in a language.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let mut code_blocks: Vec<String> = Vec::new();
    let mut current_block: Option<(bool, String)> = None;
    for line in text.lines() {
        match (&mut current_block, line.strip_prefix("```")) {
            (None, Some(name)) => current_block = Some((name == language, String::new())),
            (Some(_), Some(_)) => {
                code_blocks.extend(current_block.take().filter(|(is_selected, _)| *is_selected).map(|(_, text)| text))
            }
            (Some((_, text)), None) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    code_blocks
}

/// Parses a command line that begins with `byoc serve`, up to a comment separated by two spaces.
fn parse(line: &str) -> Options {
    let line = line.trim().split("  ").next().unwrap();
    let args = line.split_whitespace().skip(1).map(OsString::from);
    byoc_serve::parse(args).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// Starts a server with a model that has the example's name and an input `x` with 4 columns.
fn server_of_digits() -> (tempfile::TempDir, Server) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("digits.relay");
    write(&file, "relu");
    let server = Server::start(&options(&[&file.display().to_string()])).unwrap();
    (dir, server)
}

/// Runs the `curl` commands in a document (a path with optional POST data), and returns the JSON responses.
fn run_curl(text: &str, server: &Server) -> Vec<Value> {
    let text = text.replace("\\\n", " ");
    let commands = text.lines().map(str::trim).filter(|line| line.starts_with("curl "));
    let run = |command: &str| {
        let path = command.split("http://127.0.0.1:8000").nth(1).unwrap().trim();
        let body = command.split('\'').nth(1);
        let mut client = Client::connect(server.http.unwrap());
        let method = if body.is_some() { "POST" } else { "GET" };
        client.request(method, path, &[], body.unwrap_or_default().as_bytes()).ok().json()
    };
    commands.map(run).collect()
}

#[test]
fn commands_of_the_page() {
    let text = page();
    let shell = blocks(&text, "sh").join("\n");
    let lines: Vec<&str> = shell.lines().filter(|line| line.starts_with("byoc serve ")).collect();
    assert!(!lines.is_empty());
    for line in lines {
        assert!(!parse(line).models.is_empty(), "{line}");
    }
    let (_dir, server) = server_of_digits();
    let responses = run_curl(&shell, &server);
    assert_eq!(responses[0]["name"], "digits");
    assert_eq!(responses[1]["outputs"][0]["data"], json!([1.0, 2.0, 3.0, 4.0]));
    server.stop();
}

#[test]
fn examples_of_the_help() {
    let output = Command::new(env!("CARGO_BIN_EXE_byoc-serve")).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let examples = help.split("Examples:").nth(1).unwrap();
    let mut count = 0;
    for line in examples.lines().filter(|line| line.trim().starts_with("byoc serve ") && !line.contains("--config")) {
        let options = parse(line);
        assert!(!options.models.is_empty() || options.repository.is_some(), "{line}");
        count += 1;
    }
    assert_eq!(count, 3);
    let (_dir, server) = server_of_digits();
    assert_eq!(run_curl(examples, &server)[0]["outputs"][0]["data"], json!([1.0, 2.0, 3.0, 4.0]));
    server.stop();
}

#[test]
fn the_python_example_of_the_page() {
    let Some(packages) = crate::clients::tritonclient_packages() else { return };
    let (_dir, server) = server_of_digits();
    let script = blocks(&page(), "python").remove(0);
    let script = script.replace("127.0.0.1:8000", &server.http.unwrap().to_string());
    let output = Command::new("python3").arg("-c").arg(script).env("PYTHONPATH", packages).output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(out.trim(), "[[1. 1. 1. 1.]]", "{}", String::from_utf8_lossy(&output.stderr));
    server.stop();
}

#[test]
fn the_configuration_file_of_the_page() {
    let file = blocks(&page(), "").into_iter().find(|block| block.starts_with("# serve.conf")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("serve.conf");
    fs::write(&path, &file).unwrap();
    let command =
        file.lines().next().unwrap().split_once(": ").unwrap().1.replace("serve.conf", &path.display().to_string());
    let options = parse(&command);
    assert_eq!((options.models, options.max_batch_size), (vec!["resnet=/srv/models/resnet50.byoc".to_owned()], 8));
    assert_eq!((options.http.as_str(), options.grpc.as_str(), options.allow_control), ("0.0.0.0:8000", "none", false));
}

#[test]
fn the_repository_of_the_page() {
    let layout = blocks(&page(), "").into_iter().find(|block| block.starts_with("DIR/")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for line in layout.lines() {
        let path = dir.path().join(line.split_whitespace().next().unwrap().strip_prefix("DIR/").unwrap());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("onnx") => drop(fs::copy(workspace().join("tests/digits/digits.onnx"), &path).unwrap()),
            Some("txt") => fs::write(&path, (0..10).map(|n| format!("{n}\n")).collect::<String>()).unwrap(),
            _ => fs::write(&path, "version_policy { all { } } output { name: \"logits\" dims: 10 label_filename: \"labels.txt\" } max_batch_size: 2").unwrap(),
        }
    }
    let cache = dir.path().join(".cache").display().to_string();
    let server = serve_repository(dir, &["--cache-dir", &cache]);
    assert_eq!(server.client().get("/v2/models/resnet").ok().json()["versions"], json!(["1", "2"]));
}

#[test]
fn the_unit_file_of_the_page() {
    let unit_file = blocks(&page(), "ini").remove(0);
    let value = |name: &str| {
        let line = unit_file.lines().find(|line| line.starts_with(&format!("{name}="))).unwrap();
        line.split_once('=').unwrap().1.to_owned()
    };
    let start = value("ExecStart");
    let (_, flags) = start.split_once(' ').unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("serve.conf");
    fs::write(&path, "model = a.onnx\n").unwrap();
    let flags = flags.replace("/etc/byoc/serve.conf", &path.display().to_string());
    let options = parse(&format!("byoc serve {flags}"));
    assert_eq!(options.models, ["a.onnx"]);
    assert!(Duration::from_secs(value("TimeoutStopSec").parse().unwrap()) > options.shutdown_timeout);
    assert!(value("LimitNOFILE").parse::<u32>().unwrap() > options.max_connections);
    // The environment variable corresponds to the flag `--cache-dir`.
    assert!(value("Environment").starts_with("BYOC_CACHE_DIR="));
}
