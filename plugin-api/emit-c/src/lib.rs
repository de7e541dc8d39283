//! Loop schedules and C text over the graphs of the plugin boundary.

pub mod anchors;
pub mod check;
mod contraction;
mod convolution;
pub mod elementwise;
pub mod external;
pub mod form;
pub mod group;
mod index_space;
pub mod layout;
pub mod loop_body;
pub mod lower;
pub mod lowering;
mod direct;
mod moves;
pub mod program;
mod quantized;
pub mod rows;
pub mod schedule;
pub mod source;
mod text;
pub mod single_file;
pub mod view_ops;
mod window;
