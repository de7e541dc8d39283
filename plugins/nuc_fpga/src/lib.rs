//! Backend for an int8 accelerator behind a driver with two functions.
//!
//! The device computes convolutions and fully connected layers from int8 to int32 (`include/nuc_fpga.h`). The operators
//! that follow such a sum in a quantized model (bias, requantization, activation) are executed by this plugin on the
//! CPU, bit-exact with the operators of the model. The modules:
//!
//! | file | purpose |
//! |---|---|
//! | `support` | pattern table and quantization scheme |
//! | `ir` | expands composites, numbers values |
//! | `layer` | the two calls of the device: sizes; `layer::Conv` documents the naive definition |
//! | `lower` | lowers operators to commands: one device call each, with the epilogue after it |
//! | `epilogue` | the epilogue: bias, relu, clip, requantize, cast |
//! | `command_list`, `blob` | command list, its checks, its serialized form |
//! | `source` | the same commands as C |
//! | `driver` | library named by `NUC_FPGA_DRIVER` |
//! | `device/` | software device: `product` computes, `cycles` models the time, `config` has its parameters |
//! | `loader` | runs a command list on the driver or on the software device |

mod backend;
mod blob;
mod command_list;
mod device;
mod driver;
mod epilogue;
mod layer;
mod loader;
mod lower;
mod source;
mod support;

#[cfg(test)]
mod tests;

byoc_plugin_api::register!(|context, registry| {
    let config = device::config::Config::load_beside(&context.path)?;
    registry.codegen("nuc_fpga", backend::NucFpga { config: config.clone() });
    registry.loader("nuc_fpga", loader::CommandLoader { config });
    Ok(())
});

byoc_plugin_api::declare_plugin!("nuc_fpga", env!("CARGO_PKG_VERSION"));
