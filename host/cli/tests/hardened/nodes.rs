//! Special files: FIFOs, and devices if the tests run as root.

use crate::{CommandOutput, to_command_output};
use rustix::fs::{CWD, FileType, Mode, makedev, mkfifoat, mknodat};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub fn create_fifo(path: &Path) {
    mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).expect("cannot create a FIFO");
}

/// Creates a device node equivalent to `/dev/<name>`; returns false if the node cannot be created or opened.
pub fn create_device(path: &Path, name: &str) -> bool {
    let device_number = match name {
        "null" => 3,
        "full" => 7,
        other => panic!("unknown device {other}"),
    };
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, path, FileType::CharacterDevice, mode, makedev(1, device_number)).is_ok()
        && OpenOptions::new().write(true).open(path).is_ok()
}

/// Opens a FIFO for reading, so that writers do not block. The data must fit into the pipe buffer.
pub fn reader(path: &Path) -> File {
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    OpenOptions::new().read(true).custom_flags(flags).open(path).expect("cannot open the FIFO")
}

/// Reads the data that terminated processes have written to the FIFO.
pub fn read_all(mut reader: File) -> Vec<u8> {
    let mut bytes = Vec::new();
    match reader.read_to_end(&mut bytes) {
        Err(error) if error.kind() != ErrorKind::WouldBlock => panic!("{error}"),
        _ => bytes,
    }
}

/// Runs a command that must not block. A command that runs for a minute is killed, and the test fails.
#[track_caller]
pub fn run_nonblocking(command: &mut Command) -> CommandOutput {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("expected {command:?} not to block");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    to_command_output(child.wait_with_output().unwrap())
}
