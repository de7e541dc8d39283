//! Backend for the Versatile Tensor Accelerator (VTA), or for its simulator.
//!
//! A region of int8 layers becomes one instruction stream. The modules:
//!
//! | file | purpose |
//! |---|---|
//! | `support` | pattern table and quantization scheme |
//! | `lower/` | lowers operators to nodes: layers with the epilogues on their accumulators |
//! | `plan` | plans buffers, layers, tilings and the instruction stream, with `byoc-vta-program` |
//! | `pack` | packs activations, weights and vectors into channel blocks |
//! | `image`, `blob` | compiled region, its validation, its serialized form |
//! | `device` | memory and runs in the `byoc-vta-machine` simulator or through a driver |
//! | `driver` | library that `VTA_DRIVER` names, with the functions of VTA's `driver.h` |
//! | `loader` | runs a region on a device |
//! | `source`, `listing` | region as a C program that uses `driver.h`, and as text |

mod backend;
mod blob;
mod device;
mod driver;
mod image;
mod listing;
mod loader;
mod lower;
mod pack;
mod plan;
mod source;
mod support;

use byoc_plugin_api::{Error, Result};
use byoc_vta_machine::config::Config;
use std::path::Path;

byoc_plugin_api::register!(|context, registry| {
    let config = config_beside(&context.path)?;
    registry.codegen("vta", backend::Vta { config: config.clone() });
    registry.loader("vta", loader::VtaLoader { config });
    Ok(())
});

byoc_plugin_api::declare_plugin!("vta", env!("CARGO_PKG_VERSION"));

/// Reads the device parameters from the file next to the library: `libbyoc_vta.so` reads `libbyoc_vta.json`. Without a
/// file, returns the parameters of VTA's sample configurations.
fn config_beside(library: &Path) -> Result<Config> {
    let path = library.with_extension("json");
    if !path.exists() {
        return Ok(Config::default());
    }
    let invalid = |problem: String| Error::new(format!("{}: {problem}", path.display()));
    let text = std::fs::read_to_string(&path).map_err(|error| invalid(error.to_string()))?;
    Config::from_json(&text).map_err(|error| invalid(error.to_string()))
}
