//! Servers in separate processes, with their memory usage and CPU time.

use crate::Result;
use crate::client::Http;
use byoc_serve::proto;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Server process, which is killed when the value is dropped.
pub struct Server {
    pub name: String,
    pub child: Child,
    pub http: SocketAddr,
    pub grpc: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the path of an executable in the directory of the current executable.
pub fn sibling(name: &str) -> Result<PathBuf> {
    let executable = std::env::current_exe().map_err(|e| e.to_string())?;
    let path = executable.with_file_name(name);
    if path.is_file() { Ok(path) } else { Err(format!("expected the file {}, found none", path.display())) }
}

/// Starts the server with the given flags, and waits until it is ready.
pub fn start_byoc(flags: &[&str]) -> Result<Server> {
    let server = start_byoc_early(flags)?;
    server.wait_until_ready()?;
    Ok(server)
}

/// Starts the server with the given flags, and waits until it listens.
pub fn start_byoc_early(flags: &[&str]) -> Result<Server> {
    let mut command = Command::new(sibling("byoc-serve")?);
    command.args(["--http", "0", "--grpc", "0", "--log-format", "json"]).args(flags).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| e.to_string())?;
    let stderr = child.stderr.take().ok_or("expected a pipe to the server log")?;
    let mut lines = BufReader::new(stderr).lines().map_while(std::result::Result::ok);
    let mut printed_lines = Vec::new();
    let listening = lines.by_ref().find_map(|line| {
        let event: Option<Value> = serde_json::from_str(&line).ok();
        printed_lines.push(line);
        event.filter(|event| event["http"].is_string())
    });
    let Some(listening) = listening else {
        let _ = child.wait();
        return Err(format!("the server did not start: {}", printed_lines.join("\n")));
    };
    // Drain the log, because the server would block on a full pipe.
    std::thread::spawn(move || lines.for_each(drop));
    Ok(Server { name: "byoc".into(), child, http: address(&listening, "http")?, grpc: address(&listening, "grpc")? })
}

/// Starts the echo server.
pub fn start_echo() -> Result<Server> {
    let executable = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut child = Command::new(executable)
        .arg("echo")
        .stdout(Stdio::piped())
        .stdin(Stdio::piped())
        .spawn()
        .map_err(|e| e.to_string())?;
    let mut line = String::new();
    let stdout = child.stdout.take().ok_or("expected a pipe to the echo server output")?;
    BufReader::new(stdout).read_line(&mut line).map_err(|e| e.to_string())?;
    let event: Value = serde_json::from_str(&line).map_err(|e| format!("the echo server did not start: {e}"))?;
    Ok(Server { name: "echo".into(), child, http: address(&event, "http")?, grpc: address(&event, "grpc")? })
}

fn address(fields: &Value, name: &str) -> Result<SocketAddr> {
    let text = fields[name].as_str().ok_or_else(|| format!("expected an address for {name}, found {fields}"))?;
    text.parse().map_err(|_| format!("expected an address for {name}, found {text}"))
}

impl Server {
    /// Waits up to two minutes until the server is ready.
    pub fn wait_until_ready(&self) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(120) {
            let response = Http::connect(self.http).and_then(|mut client| client.get("/v2/health/ready"));
            if response.is_ok_and(|status| status == 200) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Err(format!("{} was not ready within two minutes", self.name))
    }

    /// Returns the resident memory of the server in bytes.
    pub fn resident_bytes(&self) -> Result<u64> {
        let status = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(&status).map_err(|e| format!("{status}: {e}"))?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .ok_or("expected VmRSS in /proc/PID/status, found none")?;
        let kilobytes: u64 = line
            .split_whitespace()
            .next()
            .and_then(|word| word.parse().ok())
            .ok_or("expected a number in /proc/PID/status, found none")?;
        Ok(kilobytes * 1024)
    }

    /// Returns the CPU time of all threads of the server.
    pub fn processor_time(&self) -> Duration {
        processor_time(&self.child.id().to_string())
    }
}

/// Returns the total CPU time of the current threads of a process, from the scheduler's statistics.
pub fn processor_time(process: &str) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let time = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    Duration::from_nanos(tasks.filter_map(time).sum())
}

/// Returns a gRPC inference request with raw contents.
pub fn grpc_request(model: &str, input: &str, shape: &[i64], data: Vec<u8>) -> proto::ModelInferRequest {
    let tensor = proto::InferTensor {
        name: input.into(),
        datatype: "FP32".into(),
        shape: shape.to_vec(),
        ..proto::InferTensor::default()
    };
    proto::ModelInferRequest {
        model_name: model.into(),
        inputs: vec![tensor],
        raw_input_contents: vec![data.into()],
        ..proto::ModelInferRequest::default()
    }
}

/// CPUs on which this process may run.
pub struct Processors(CpuSet);

impl Processors {
    /// Returns the CPUs in the affinity mask of the process.
    pub fn available() -> Result<Processors> {
        sched_getaffinity(None).map(Processors).map_err(|e| format!("cannot read the CPU affinity: {e}"))
    }

    /// Returns all CPUs.
    pub fn all(&self) -> CpuSet {
        self.0
    }

    /// Returns the first CPU.
    pub fn first(&self) -> CpuSet {
        Processors::single_cpu_set((0..CpuSet::MAX_CPU).find(|number| self.0.is_set(*number)))
    }

    /// Returns the last CPU.
    pub fn last(&self) -> CpuSet {
        Processors::single_cpu_set((0..CpuSet::MAX_CPU).rev().find(|number| self.0.is_set(*number)))
    }

    fn single_cpu_set(number: Option<usize>) -> CpuSet {
        let mut set = CpuSet::new();
        number.into_iter().for_each(|number| set.set(number));
        set
    }

    /// Pins this thread, and the threads and processes that it subsequently starts, to `target`.
    pub fn restrict(&self, target: &CpuSet) -> Result<()> {
        sched_setaffinity(None, target).map_err(|e| format!("cannot set the CPU affinity: {e}"))
    }
}
