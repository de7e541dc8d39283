//! Plugins as the host meets them: files that are none, good ones, and rude ones.

mod backends;
mod c_plugins;
mod common;
mod panics;
mod rejections;
mod schemas;
mod services;
