//! OpenCL device for the tests: PoCL, from the system package.

use crate::process::run;
use std::path::Path;
use std::process::Command;

/// Command that installs PoCL.
pub const INSTALL: &str = "apt-get install -y pocl-opencl-icd";

/// Directory in which OpenCL drivers register.
const DRIVERS: &str = "/etc/OpenCL/vendors";

/// Returns true if a driver is registered.
fn is_installed() -> bool {
    std::fs::read_dir(Path::new(DRIVERS)).is_ok_and(|mut entries| entries.next().is_some())
}

/// Returns true if a driver is available. If no driver is installed and the user is root, installs PoCL first.
pub fn install_if_possible() -> bool {
    if is_installed() {
        return true;
    }
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0");
    if !is_root {
        return false;
    }
    let arguments: Vec<&str> = INSTALL.split(' ').collect();
    let installed = run(Command::new("apt-get").args(["update", "-qq"])).and_then(|()| {
        run(Command::new(arguments[0]).args(&arguments[1..]).arg("-qq").env("DEBIAN_FRONTEND", "noninteractive"))
    });
    if let Err(error) = installed {
        eprintln!("xtask: installing PoCL failed: {error}");
    }
    is_installed()
}
