//! Inputs, files and plugins that mean harm, through the `byoc` binary.

mod plugins;
