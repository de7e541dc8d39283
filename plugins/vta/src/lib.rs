//! Backend for the Versatile Tensor Accelerator (VTA), or for its simulator.
//!
//! A region of int8 layers becomes one instruction stream. The modules:
//!
//! | file | purpose |
//! |---|---|
//! | `support` | pattern table and quantization scheme |
//! | `lower/` | operators to nodes: sums, pooling, elementwise operations, each with what follows on its accumulators |
//! | `plan` | nodes to layers in buffers, tilings and the stream, by `byoc-vta-program` |
//! | `pack` | activations, weights and vectors in blocks of channels |
//! | `image`, `blob` | compiled region, its checks, its serialized form |
//! | `device` | memory and runs of the simulator of `byoc-vta-machine` or of a driver |
//! | `driver` | library named by `VTA_DRIVER`, with the functions of VTA's own `driver.h` |
//! | `loader` | runs a region on a device |
//! | `source`, `listing` | the region as a C program against `driver.h`, and as text |

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

/// Reads the parameters of the device from the file beside the library: `libbyoc_vta.so` reads `libbyoc_vta.json`. Without a
/// file, returns those of VTA's sample configurations.
fn config_beside(library: &Path) -> Result<Config> {
    let path = library.with_extension("json");
    if !path.exists() {
        return Ok(Config::default());
    }
    let invalid = |problem: String| Error::new(format!("{}: {problem}", path.display()));
    let text = std::fs::read_to_string(&path).map_err(|error| invalid(error.to_string()))?;
    Config::from_json(&text).map_err(|error| invalid(error.to_string()))
}
