//! An int8 accelerator behind a two-function driver as a backend.
//!
//! The device computes convolutions and fully connected layers of int8 into int32 (`include/nuc_fpga.h`). What follows a
//! sum in a quantized model (bias, requantize, activation) is integer work that this plugin does on the CPU around the
//! device call, bit for bit as the operators of the model say. The way of a region:
//!
//! | file | what it does |
//! |---|---|
//! | `support` | the pattern table and the quantization scheme |
//! | `refusal` | why something is not taken, and what helps |
//! | `flat` | opens composites, numbers values |
//! | `layer` | the two calls of the device: their sizes, the naive definition in [`layer::Conv`]'s documentation |
//! | `lower` | operators to commands: a call of the device each, and the integer work after it |
//! | `finish` | the integer work: bias, relu, clip, requantize, cast |
//! | `program`, `blob` | the command list, its checks, its form on disk |
//! | `source` | the same commands as C |
//! | `driver` | the library that `NUC_FPGA_DRIVER` names |
//! | `device/` | the software device: `product` computes, `cycles` says how long hardware would take, `config` its parameters |
//! | `loader` | runs a command list on the driver or on the software device |

mod backend;
mod blob;
mod device;
mod driver;
mod finish;
mod flat;
mod layer;
mod loader;
mod lower;
mod program;
mod refusal;
mod source;
mod support;

#[cfg(test)]
mod tests;

byoc_plugin_api::register!(|context, registry| {
    let config = device::config::Config::beside(&context.path)?;
    registry.codegen("nuc_fpga", backend::NucFpga { config: config.clone() });
    registry.loader("nuc_fpga", loader::CommandLoader { config });
    Ok(())
});

byoc_plugin_api::declare_plugin!("nuc_fpga", env!("CARGO_PKG_VERSION"));
