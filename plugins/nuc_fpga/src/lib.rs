//! Backend for an int8 accelerator behind a driver with two functions.
//!
//! The device computes convolutions and fully connected layers from int8 to int32 (`include/nuc_fpga.h`). This plugin
//! executes the operators that follow a layer in a quantized model (bias, requantization, activation) on the CPU,
//! bit-exact with the model. The modules:
//!
//! | file | purpose |
//! |---|---|
//! | `support` | pattern table and quantization scheme |
//! | `layer` | the two device calls and their sizes; `layer::Conv` documents the formula |
//! | `lower` | lowers operators to commands: one device call each, with its epilogue |
//! | `epilogue` | epilogue operators: bias, relu, clip, requantize, cast |
//! | `command_list`, `blob` | command list, its validation, its serialized form |
//! | `source` | command list as C |
//! | `driver` | driver library that `NUC_FPGA_DRIVER` names |
//! | `device/` | software device: `product` executes calls, `cycles` estimates cycles, `config` reads parameters |
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
