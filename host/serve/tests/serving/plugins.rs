//! Plugins that end the process of the server.

use crate::client::{Client, input};
use crate::process::wait_until_ready;
use byoc_test_support::workspace;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

/// The server ends with an error or a signal, so that a supervisor restarts it, and the log names plugin, region and
/// operators.
#[test]
fn a_plugin_that_ends_the_server_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (plugin, model) = (dir.path().join("libbyoc_elementwise.so"), dir.path().join("m.relay"));
    let compilation = Command::new("cc")
        .current_dir(workspace())
        .args(["-O0", "-shared", "-fPIC", "-w", "-I", "plugin-api/include", "tests/hardened/faulty.c", "-o"])
        .arg(&plugin)
        .args(["-lm", "-lpthread"])
        .output()
        .unwrap();
    assert!(compilation.status.success(), "{}", String::from_utf8_lossy(&compilation.stderr));
    std::fs::write(&model, "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(1, 4), float32]) { nn.relu(%x) }\n").unwrap();
    for (fault, code, signal, found) in [
        ("segv", None, Some(11), "terminated by SIGSEGV"),
        ("abort", None, Some(6), "terminated by SIGABRT"),
        ("exit0", Some(1), None, "called exit before"),
        ("_exit0", Some(1), None, "called _exit before"),
        ("quick_exit", Some(1), None, "called quick_exit before"),
        ("exec", Some(1), None, "called execl before"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_byoc-serve"));
        command.arg(&model).args(["--http", "0", "--grpc", "0", "--log-format", "json", "--backend", "elementwise"]);
        command.arg("--plugin-dir").arg(dir.path()).env("BYOC_CACHE_DIR", dir.path().join("cache"));
        command.env("FAULT", fault).env("ENTRY", "run").env("BYOC_THREADS", "1").stderr(Stdio::piped());
        let mut server = command.spawn().unwrap();
        let mut log = BufReader::new(server.stderr.take().unwrap());
        let listening = log.by_ref().lines().find_map(|line| {
            let event: Value = serde_json::from_str(&line.unwrap()).ok()?;
            event["http"].as_str()?.parse().ok()
        });
        let http = listening.unwrap();
        wait_until_ready(http);
        let body = json!({"inputs": [input("x", &[1, 4], &[1.0; 4])]}).to_string();
        let mut client = Client::connect(http);
        client.send("POST", "/v2/models/m/infer", &[], body.as_bytes());
        client.try_receive().expect_err("expected no reply");
        let status = server.wait().unwrap();
        let mut text = String::new();
        log.read_to_string(&mut text).unwrap();
        assert_eq!((status.code(), status.signal()), (code, signal), "{fault}: {text}");
        let line = text.lines().find(|line| line.contains("error[E0450]")).unwrap_or_else(|| panic!("{fault}: {text}"));
        for part in ["plugin elementwise: run: region ", found, "; operators: nn.relu "] {
            assert!(line.contains(part), "{fault}: expected {part} in {line}");
        }
    }
}
