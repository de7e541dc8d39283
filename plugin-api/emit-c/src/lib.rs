//! Loop schedules and C text over the graphs of the plugin boundary.

pub mod anchors;
mod contraction;
mod convolution;
pub mod elementwise;
pub mod group;
mod index_space;
pub mod layout;
pub mod loop_body;
pub mod lower;
pub mod lowering;
mod moves;
pub mod rows;
pub mod schedule;
pub mod source;
mod text;
pub mod view_ops;
mod window;
