//! Inputs, files and plugins that would do harm, and what becomes of them.

mod boundary;
mod plans;
