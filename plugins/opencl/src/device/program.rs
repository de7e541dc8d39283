//! Programs, built from source or from a cached binary.

use super::Device;
use super::event::INTERVAL;
use byoc_plugin_api::{Error, Result, Services};
use byoc_plugin_support::cache::{Settings, cached};
use byoc_plugin_support::log::excerpt;
use cl3::program::{
    CL_PROGRAM_BINARIES, CL_PROGRAM_BUILD_LOG, build_program, create_program_with_binary, create_program_with_source,
    get_program_build_info, get_program_info, release_program,
};
use cl3::types::cl_program;
use serde_json::Value;
use std::ptr;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};

/// Compiler options. Fast-math options are omitted because they could change NaN, infinities or signed zeros.
const OPTIONS: &std::ffi::CStr = c"-cl-std=CL1.2";

/// Built program.
#[derive(Debug)]
pub struct Program {
    pub device: Arc<Device>,
    /// OpenCL program object.
    pub handle: cl_program,
}

// SAFETY: OpenCL guarantees that program functions are thread-safe (OpenCL 1.2, A.2).
unsafe impl Send for Program {}

/// Returns the settings of the binary cache; `None` if caching is disabled.
pub fn cache_settings(options: &Value) -> Option<Settings> {
    Settings::of_options(options, "opencl", ".bin")
}

impl Program {
    /// Builds a program, from its cached binary if there is one that the driver accepts.
    ///
    /// # Errors
    /// If the driver cannot compile the source (the message quotes its first error), the device is lost, or the caller
    /// cancels.
    pub fn build(device: &Arc<Device>, source: &str, cache: Option<&Settings>, services: &Services) -> Result<Program> {
        device.check()?;
        if services.cancelled() {
            return Err(Error::cancelled());
        }
        let mut built_program: Option<Program> = None;
        let mut compile = || -> Result<Vec<u8>> {
            let program = Program::from_source(device, source, services)?;
            let binary = program.binary();
            built_program = Some(program);
            // Without a binary, nothing is cached, and every process compiles the source.
            binary.ok_or_else(|| Error::new(""))
        };
        let mut hasher = blake3::Hasher::new();
        let options = OPTIONS.to_string_lossy();
        for digest_part in [source, &device.traits.name, &device.traits.version, &options] {
            hasher.update(&(digest_part.len() as u64).to_le_bytes());
            hasher.update(digest_part.as_bytes());
        }
        let binary = cached(cache, hasher.finalize(), &mut compile);
        match (built_program, binary) {
            (Some(program), _) => Ok(program),
            (None, Ok(binary)) => match Program::from_binary(device, &binary, services) {
                Ok(program) => Ok(program),
                Err(error) => {
                    tracing::debug!("the driver rejected the cached binary ({error}); compiling from source");
                    Program::from_source(device, source, services)
                }
            },
            (None, Err(error)) => Err(error),
        }
    }

    fn from_source(device: &Arc<Device>, source: &str, services: &Services) -> Result<Program> {
        let handle = create_program_with_source(device.handles.context, &[source])
            .map_err(|code| device.call_error("clCreateProgramWithSource", code))?;
        Program { device: device.clone(), handle }.build_on_thread(services)
    }

    fn from_binary(device: &Arc<Device>, binary: &[u8], services: &Services) -> Result<Program> {
        // SAFETY: the cache key names the device and the driver version, and the cache verifies the digest, so the
        // binary is unchanged output of this driver.
        let handle = unsafe { create_program_with_binary(device.handles.context, &[device.handles.device], &[binary]) }
            .map_err(|code| device.call_error("clCreateProgramWithBinary", code))?;
        Program { device: device.clone(), handle }.build_on_thread(services)
    }

    /// Compiles the program on a separate thread, because a build may take seconds and cannot be interrupted.
    fn build_on_thread(self, services: &Services) -> Result<Program> {
        let (sender, receiver) = mpsc::channel();
        let build = move || {
            // After a cancellation, the receiver no longer exists.
            let _ = sender.send(self.compile());
        };
        std::thread::Builder::new().name("opencl build".into()).spawn(build)?;
        loop {
            match receiver.recv_timeout(INTERVAL) {
                Ok(program) => return program,
                Err(RecvTimeoutError::Timeout) if services.cancelled() => return Err(Error::cancelled()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::new("clBuildProgram: the build thread ended without a result"));
                }
            }
        }
    }

    fn compile(self) -> Result<Program> {
        let (handle, device) = (self.handle, self.device.handles.device);
        match build_program(handle, &[device], OPTIONS, None, ptr::null_mut()) {
            Ok(()) => Ok(self),
            Err(code) => {
                let log = get_program_build_info(handle, device, CL_PROGRAM_BUILD_LOG).map(String::from);
                let log = excerpt(&log.unwrap_or_default());
                let error = self.device.call_error("clBuildProgram", code);
                Err(if log.is_empty() { error } else { Error::new(format!("{}: {log}", error.message)) })
            }
        }
    }

    /// Returns the binary; `None` if the driver provides none.
    fn binary(&self) -> Option<Vec<u8>> {
        let binaries: Vec<Vec<u8>> = get_program_info(self.handle, CL_PROGRAM_BINARIES).ok()?.into();
        binaries.into_iter().next().filter(|binary| !binary.is_empty())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.device.is_lost() {
            // SAFETY: `self` owns one reference to the program and releases it only here.
            let _ = unsafe { release_program(self.handle) };
        }
    }
}
