//! The region as a C program.

use crate::image::Image;
use byoc_plugin_api::{Constant, Result};

/// Returns the C program of a region.
pub fn source(image: &Image, _constants: &[Constant]) -> Result<String> {
    Ok(format!("/* {} */\n", image.symbol))
}
