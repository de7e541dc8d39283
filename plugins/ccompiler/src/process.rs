//! Processes with a time limit: a C compiler may take hours for a large region, and does its work in child processes.

use byoc_plugin_api::{Error, Result, Services};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// Time after which a compiler is killed. Compiling a region normally takes a few seconds, and the host can run a
/// region that was not compiled.
pub const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Runs a command and returns its exit status. The command and all its children are killed after `limit` or on
/// cancellation.
///
/// # Errors
/// If the command cannot be started, does not finish within `limit`, or the compilation is cancelled.
pub fn run_limited(command: &mut Command, name: &str, limit: Duration, services: &Services) -> Result<ExitStatus> {
    if services.cancelled() {
        return Err(Error::cancelled());
    }
    // A separate process group allows the children of the compiler to be killed with the compiler.
    let child = command.process_group(0).spawn();
    let mut child = ChildGuard(child.map_err(|error| Error::new(format!("cannot start `{name}`: {error}")))?);
    // The CPU time limit terminates the compiler even if this process is killed first.
    let cpu_time_limit = Rlimit { current: Some(limit.as_secs() + 1), maximum: Some(limit.as_secs() + 2) };
    if let Some(pid) = child.pid() {
        let _ = rustix::process::prlimit(Some(pid), Resource::Cpu, cpu_time_limit);
    }
    let start = Instant::now();
    let mut interval = Duration::from_millis(1);
    loop {
        if let Some(status) = child.0.try_wait()? {
            return Ok(status);
        }
        if services.cancelled() {
            return Err(Error::cancelled());
        }
        if start.elapsed() >= limit {
            let message = format!("`{name}` did not finish within {} s and was killed", limit.as_secs_f64());
            return Err(Error::new(message)
                .hint("compile the model for another backend: the region is too large for a C compiler"));
        }
        std::thread::sleep(interval);
        interval = (2 * interval).min(Duration::from_millis(20));
    }
}

/// Child process that is killed with its process group on drop.
struct ChildGuard(Child);

impl ChildGuard {
    fn pid(&self) -> Option<Pid> {
        i32::try_from(self.0.id()).ok().and_then(Pid::from_raw)
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // The id of a reaped process may have been reused, so its group must not be killed.
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.pid().map(|pid| rustix::process::kill_process_group(pid, Signal::KILL));
            let _ = self.0.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_test_support::plugin::{services, services_that_cancel};

    fn run_shell(script: &str, limit: Duration, services: &Services) -> Result<ExitStatus> {
        run_limited(Command::new("sh").args(["-c", script]), "sh", limit, services)
    }

    #[test]
    fn returns_the_status_of_a_finished_process() {
        let generous_limit = Duration::from_secs(60);
        assert!(run_shell("exit 0", generous_limit, &services(1)).unwrap().success());
        assert_eq!(run_shell("exit 3", generous_limit, &services(1)).unwrap().code(), Some(3));
    }

    #[test]
    fn kills_the_process_group_on_timeout() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {}; wait", file.display());
        let error = run_shell(&script, Duration::from_millis(300), &services(1)).unwrap_err();
        assert!(error.message.contains("did not finish within 0.3 s"), "{error}");
        let pid = std::fs::read_to_string(file).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        let has_ended = || std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
        // Signals are delivered asynchronously, and `run_limited` waits only for the leader of the process group.
        let start = Instant::now();
        while !has_ended() {
            assert!(start.elapsed() < Duration::from_secs(10), "{stat}: expected the process to have ended");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn kills_the_process_on_cancellation() {
        let error = run_shell("sleep 1000", Duration::from_secs(60), &services_that_cancel(3)).unwrap_err();
        assert_eq!(error.code.as_str(), Error::CANCELLED);
    }
}
