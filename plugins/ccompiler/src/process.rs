//! Processes that end in time: a C compiler given a large region may take hours, and starts others that do the work.

use byoc_plugin_api::{Error, Result, Services};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// A compiler that takes longer is ended: a region takes some seconds, and the host runs it meanwhile as well.
pub const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Runs a command that ends within `limit`, or is ended with all that it started; also when nobody waits for it any more.
pub fn limited(command: &mut Command, name: &str, limit: Duration, services: &Services) -> Result<ExitStatus> {
    if services.cancelled() {
        return Err(Error::cancelled());
    }
    // A group of its own: a compiler starts others, which do the work.
    let child = command.process_group(0).spawn();
    let mut child = Started(child.map_err(|error| Error::new(format!("`{name}` does not start: {error}")))?);
    // Should this process be killed, nobody ends them; then they end when they have used so much of a processor.
    let seconds = Rlimit { current: Some(limit.as_secs() + 1), maximum: Some(limit.as_secs() + 2) };
    if let Some(pid) = child.pid() {
        let _ = rustix::process::prlimit(Some(pid), Resource::Cpu, seconds);
    }
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.0.try_wait()? {
            return Ok(status);
        }
        if services.cancelled() {
            return Err(Error::cancelled());
        }
        if start.elapsed() >= limit {
            let message = format!("`{name}` was not done after {} s, and was ended", limit.as_secs_f64());
            return Err(Error::new(message).hint("the region is too large for a C compiler"));
        }
        std::thread::sleep(pause);
        pause = (2 * pause).min(Duration::from_millis(20));
    }
}

/// A process that does not outlive its use, nor does what it started.
struct Started(Child);

impl Started {
    fn pid(&self) -> Option<Pid> {
        i32::try_from(self.0.id()).ok().and_then(Pid::from_raw)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // One that has been waited for is gone, and its number may be another's.
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.pid().map(|pid| rustix::process::kill_process_group(pid, Signal::KILL));
            let _ = self.0.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::harness::{services, services_that_cancel};

    fn shell(script: &str, limit: Duration, services: &Services) -> Result<ExitStatus> {
        limited(Command::new("sh").args(["-c", script]), "sh", limit, services)
    }

    #[test]
    fn what_ends_in_time_gives_its_status() {
        let long = Duration::from_secs(60);
        assert!(shell("exit 0", long, &services(1)).unwrap().success());
        assert_eq!(shell("exit 3", long, &services(1)).unwrap().code(), Some(3));
    }

    #[test]
    fn what_does_not_end_is_ended_with_all_that_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {}; wait", file.display());
        let error = shell(&script, Duration::from_millis(300), &services(1)).unwrap_err();
        assert!(error.message.contains("was not done after 0.3 s"), "{error}");
        let pid = std::fs::read_to_string(file).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        let ended = || std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
        // A signal is delivered some time after it is sent, and only the one process of the group is waited for.
        let start = Instant::now();
        while !ended() {
            assert!(start.elapsed() < Duration::from_secs(10), "{stat} still runs");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn what_nobody_waits_for_is_ended() {
        let error = shell("sleep 1000", Duration::from_secs(60), &services_that_cancel(3)).unwrap_err();
        assert_eq!(error.code.as_str(), Error::CANCELLED);
    }
}
