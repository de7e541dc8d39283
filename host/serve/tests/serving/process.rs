//! Servers in separate processes.

use crate::client::Client;
use rustix::process::Signal;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Server in a separate process.
pub struct Process {
    pub child: Child,
    pub http: SocketAddr,
    pub grpc: SocketAddr,
}

impl Process {
    /// Starts a server process, and waits until it listens. Models run on the host unless the flags name a backend.
    pub fn start(flags: &[&str]) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_byoc-serve"));
        let backend = if flags.contains(&"--backend") { &[][..] } else { &["--backend", "none"] };
        command.args(["--http", "0", "--grpc", "0", "--log-format", "json"]).args(backend).args(flags);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let listening = lines
            .by_ref()
            .map(|line| serde_json::from_str::<serde_json::Value>(&line.unwrap()).unwrap())
            .inspect(|event| assert!(event["time"].is_string() && event["level"].is_string(), "{event}"))
            .find(|event| event["http"].is_string())
            .unwrap();
        let address = |name: &str| listening[name].as_str().unwrap().parse().unwrap();
        let (http, grpc) = (address("http"), address("grpc"));
        // The rest of the log is read, so that the server never blocks on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Process { child, http, grpc }
    }

    pub fn signal(&self, signal: Signal) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until a server is ready, for at most 10 s.
pub fn wait_until_ready(http: SocketAddr) {
    for _ in 0..2000 {
        if Client::connect(http).get("/v2/health/ready").status == 200 {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("expected a ready server within 10 s, found none");
}
