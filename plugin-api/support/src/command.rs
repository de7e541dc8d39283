//! Commands with a time limit: a vendor's compiler may take hours for a large region, and does its work in child processes;
//! and run times that are programs, which read tensors and write tensors.

use byoc_plugin_api::{Call, Error, RefusalCode, Result, Services, TensorMut, TensorRef};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Name of the file with what a command prints, in the directory in which it works.
const MESSAGES: &str = "messages.txt";
/// Maximum number of lines of a command that an error quotes.
const MAX_LINES: usize = 4;
/// Maximum number of bytes of these lines.
const MAX_BYTES: i64 = 2048;

/// Reads an option that is a number of seconds.
pub fn seconds(option: Option<&str>, default: u64) -> Duration {
    Duration::from_secs(option.and_then(|text| text.trim().parse().ok()).unwrap_or(default))
}

/// Runs a command and returns its exit status. The command and all its children are killed after `limit` or on
/// cancellation.
///
/// # Errors
/// If the command cannot be started, does not finish within `limit`, or the compilation is cancelled.
pub fn run_limited(command: &mut Command, name: &str, limit: Duration, services: &Services) -> Result<ExitStatus> {
    if services.cancelled() {
        return Err(Error::cancelled());
    }
    let mut child = ChildGuard::spawn(command, name)?;
    // The CPU time limit terminates the compiler even if this process is killed first.
    let cpu_time_limit = Rlimit { current: Some(limit.as_secs() + 1), maximum: Some(limit.as_secs() + 2) };
    if let Some(pid) = child.pid() {
        let _ = rustix::process::prlimit(Some(pid), Resource::Cpu, cpu_time_limit);
    }
    let status = wait(name, limit, services, || Ok(child.0.try_wait()?))?;
    Ok(status)
}

/// Polls until there is an answer.
fn wait<T>(name: &str, limit: Duration, services: &Services, mut poll: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    let mut interval = Duration::from_micros(50);
    loop {
        if let Some(answer) = poll()? {
            return Ok(answer);
        }
        if services.cancelled() {
            return Err(Error::cancelled());
        }
        if start.elapsed() >= limit {
            let message = format!("`{name}` did not finish within {} s and was killed", limit.as_secs_f64());
            return Err(Error::new(message).hint("compile the model for another backend, or with a longer time limit"));
        }
        std::thread::sleep(interval);
        interval = (2 * interval).min(Duration::from_millis(20));
    }
}

/// Runs a command without input, in `folder`, as [`run_limited`] does. Returns its exit status and the last lines that it
/// printed, separated by `; `.
///
/// # Errors
/// As [`run_limited`]; the message ends with the last lines.
pub fn run_quoted(
    command: &mut Command,
    folder: &Path,
    limit: Duration,
    services: &Services,
) -> Result<(ExitStatus, String)> {
    let name = name_of(command);
    let messages = messages_in(folder)?;
    command.stdin(Stdio::null()).stdout(messages.try_clone()?).stderr(messages);
    match run_limited(command.current_dir(folder), &name, limit, services) {
        Ok(status) => Ok((status, last_lines(folder))),
        Err(error) => Err(quoting(error, folder)),
    }
}

/// Program of a vendor: its name, and the environment variable that may have its path.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Name on the search path.
    pub name: &'static str,
    /// Environment variable.
    pub variable: &'static str,
}

impl Program {
    /// Returns the command without arguments.
    pub fn command(self) -> Command {
        Command::new(std::env::var_os(self.variable).unwrap_or_else(|| self.name.into()))
    }

    /// Makes an error of the process one of the machine, with the variable as remedy; a cancellation stays one.
    fn unavailable(self, error: Error) -> Error {
        if !error.code.is_empty() {
            return error;
        }
        let hint = if error.hint.is_empty() {
            format!("set {} to the path of the program", self.variable)
        } else {
            error.hint.to_string()
        };
        error.code(RefusalCode::Unavailable.as_str()).hint(hint)
    }
}

/// Compiler that is a command: it reads files and writes files.
pub struct Compiler {
    program: Program,
    /// Why it did not answer a question. It is not asked again.
    lack: OnceLock<Error>,
}

impl Compiler {
    /// Creates a compiler; nothing is started.
    pub fn new(program: Program) -> Compiler {
        Compiler { program, lack: OnceLock::new() }
    }

    /// Runs the compiler in `folder` and returns the last lines that it printed.
    ///
    /// # Errors
    /// If it cannot be started or does not finish within `limit`, with the code `Unavailable`; if it fails, with its last
    /// lines; if the work is cancelled.
    pub fn run(&self, folder: &Path, args: &[&str], limit: Duration, services: &Services) -> Result<String> {
        let called = run_quoted(self.program.command().args(args), folder, limit, services);
        match called.map_err(|error| self.program.unavailable(error))? {
            (status, lines) if status.success() => Ok(lines),
            (status, lines) => {
                let lines = if lines.is_empty() { "no message".into() } else { lines };
                Err(Error::new(format!("`{}` failed with {status}: {lines}", self.program.name)))
            }
        }
    }

    /// Does the same for a question that `judge` asks. A compiler that is missing or hangs is asked once.
    ///
    /// # Errors
    /// As [`Compiler::run`].
    pub fn ask(&self, folder: &Path, args: &[&str], limit: Duration, services: &Services) -> Result<String> {
        if let Some(lack) = self.lack.get() {
            return Err(lack.clone());
        }
        let answer = self.run(folder, args, limit, services);
        if let Err(error) = &answer
            && error.code == RefusalCode::Unavailable.as_str()
        {
            let _ = self.lack.set(error.clone());
        }
        answer
    }
}

/// Returns the program of a command, without its directory.
fn name_of(command: &Command) -> String {
    let program = Path::new(command.get_program());
    program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned()
}

/// Creates the file for what a command prints.
fn messages_in(folder: &Path) -> Result<File> {
    Ok(File::options().create(true).append(true).open(folder.join(MESSAGES))?)
}

/// Appends the last lines of a command to the message of an error.
fn quoting(error: Error, folder: &Path) -> Error {
    match last_lines(folder) {
        lines if lines.is_empty() => error,
        lines => Error::new(format!("{}: {lines}", error.message)).code(&error.code).hint(error.hint.as_str()),
    }
}

/// Returns the last lines that a command printed, separated by `; `, without control characters.
fn last_lines(folder: &Path) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(folder.join(MESSAGES))?;
        let size = i64::try_from(file.metadata()?.len()).unwrap_or(i64::MAX);
        file.seek(SeekFrom::End(-size.min(MAX_BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(MAX_LINES)..].join("; ");
    last.chars().filter(|c| !c.is_control()).collect()
}

/// Process of a run time: it reads the inputs of a run from its standard input, one tensor after another, writes the
/// outputs to its standard output, and goes on with the next run until its standard input ends.
pub struct Worker {
    child: ChildGuard,
    name: String,
}

impl Worker {
    /// Starts the process in `folder`, where its messages are kept.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(command: &mut Command, folder: &Path) -> Result<Worker> {
        let name = name_of(command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(messages_in(folder)?).current_dir(folder);
        Ok(Worker { child: ChildGuard::spawn(command, &name)?, name })
    }

    /// Writes the inputs and reads the outputs of one run. After an error the process is of no more use.
    ///
    /// # Errors
    /// If the process ends or closes a pipe before it has written all outputs, takes longer than `limit`, or the run is
    /// cancelled. The message ends with the last lines that it printed.
    pub fn exchange(
        &mut self,
        folder: &Path,
        (inputs, outputs): (&[&[u8]], &mut [&mut [u8]]),
        limit: Duration,
        services: &Services,
    ) -> Result<()> {
        let (name, pid) = (&self.name, self.child.pid());
        let (Some(stdin), Some(stdout)) = (&mut self.child.0.stdin, &mut self.child.0.stdout) else {
            return Err(Error::new(format!("`{name}` has no pipes")));
        };
        let is_gone = "ended before it had written all outputs";
        let done = std::thread::scope(|scope| {
            let transfer = scope.spawn(|| -> std::io::Result<()> {
                inputs.iter().try_for_each(|input| stdin.write_all(input))?;
                stdin.flush()?;
                outputs.iter_mut().try_for_each(|output| stdout.read_exact(output))
            });
            let waited = wait(name, limit, services, || Ok(transfer.is_finished().then_some(())));
            if waited.is_err() {
                // The transfer ends when the process does.
                let _ = pid.map(|pid| rustix::process::kill_process_group(pid, Signal::KILL));
            }
            let transferred = transfer.join().unwrap_or_else(|_| Err(std::io::Error::other("the transfer panicked")));
            waited?;
            transferred.map_err(|error| Error::new(format!("`{name}` {is_gone} ({error})")))
        });
        done.map_err(|error| quoting(error, folder))
    }
}

/// Run time that is a program: a [`Worker`] that is started for the first run, and again after a run that failed. Runs take
/// turns.
pub struct RunTime {
    program: Program,
    args: Vec<String>,
    folder: Box<dyn AsRef<Path> + Send + Sync>,
    worker: Mutex<Option<Worker>>,
}

impl RunTime {
    /// Creates a run time that works in `folder`, which it owns; nothing is started.
    pub fn new(program: Program, args: &[&str], folder: impl AsRef<Path> + Send + Sync + 'static) -> RunTime {
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        RunTime { program, args, folder: Box::new(folder), worker: Mutex::new(None) }
    }

    /// Runs the region on the inputs of a call.
    ///
    /// # Errors
    /// As [`Worker::start`] and [`Worker::exchange`].
    pub fn run(&self, call: Call<'_, '_>, limit: Duration, services: &Services) -> Result<()> {
        let folder = (*self.folder).as_ref();
        let inputs: Vec<&[u8]> = call.inputs.iter().map(TensorRef::bytes).collect();
        let mut outputs: Vec<&mut [u8]> = call.outputs.iter_mut().map(TensorMut::bytes_mut).collect();
        let mut slot = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        let mut worker = match slot.take() {
            Some(worker) => worker,
            None => Worker::start(self.program.command().args(&self.args), folder)
                .map_err(|error| self.program.unavailable(error))?,
        };
        worker.exchange(folder, (&inputs, &mut outputs), limit, services)?;
        *slot = Some(worker);
        Ok(())
    }
}

/// Child process that is killed with its process group on drop.
struct ChildGuard(Child);

impl ChildGuard {
    /// Starts a process in a group of its own, so that its children can be killed with it.
    fn spawn(command: &mut Command, name: &str) -> Result<ChildGuard> {
        let child = command.process_group(0).spawn();
        Ok(ChildGuard(child.map_err(|error| Error::new(format!("cannot start `{name}`: {error}")))?))
    }

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

    fn quoted(script: &str, limit: Duration) -> Result<(ExitStatus, String)> {
        let dir = tempfile::tempdir().unwrap();
        run_quoted(Command::new("sh").args(["-c", script]), dir.path(), limit, &services(1))
    }

    #[test]
    fn quotes_the_last_lines_of_both_streams() {
        let script = "for i in 1 2 3 4 5 6; do echo line $i; done; printf '\\033[1mred' >&2; exit 7";
        let (status, lines) = quoted(script, Duration::from_secs(60)).unwrap();
        assert_eq!((status.code(), lines.as_str()), (Some(7), "line 4; line 5; line 6; [1mred"));
        assert_eq!(quoted("exit 1", Duration::from_secs(60)).unwrap().1, "");
        let error = quoted("echo fusing; sleep 1000", Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.message, "`sh` did not finish within 0.2 s and was killed: fusing");
        let dir = tempfile::tempdir().unwrap();
        let missing = &mut Command::new("/nowhere/mycc");
        let error = run_quoted(missing, dir.path(), Duration::from_secs(1), &services(1)).unwrap_err();
        assert!(error.message.starts_with("cannot start `mycc`: No such file"), "{error}");
    }

    #[test]
    fn worker_runs_again_and_again_until_it_fails() {
        let dir = tempfile::tempdir().unwrap();
        let start = |script: &str| Worker::start(Command::new("sh").args(["-c", script]), dir.path()).unwrap();
        let limit = Duration::from_secs(30);
        let mut echo = start("exec cat");
        for byte in 0..3u8 {
            let mut output = [0; 4];
            echo.exchange(dir.path(), (&[&[byte; 3], &[9]], &mut [&mut output]), limit, &services(1)).unwrap();
            assert_eq!(output, [byte, byte, byte, 9]);
        }
        let mut broken = start("head -c 2; echo out of memory >&2; exit 1");
        let error = broken.exchange(dir.path(), (&[b"four"], &mut [&mut [0; 4]]), limit, &services(1)).unwrap_err();
        assert!(error.message.starts_with("`sh` ended before it had written all outputs"), "{error}");
        assert!(error.message.ends_with(": out of memory"), "{error}");
        let mut slow = start("sleep 1000");
        let short = Duration::from_millis(100);
        let error = slow.exchange(dir.path(), (&[b"four"], &mut [&mut [0; 4]]), short, &services(1)).unwrap_err();
        assert!(error.message.starts_with("`sh` did not finish within 0.1 s"), "{error}");
    }
}
