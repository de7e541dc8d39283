//! Tests of plugin loading: non-plugin files, well-behaved plugins, and faulty plugins.

mod backends;
mod c_plugins;
mod common;
mod panics;
mod rejections;
mod schemas;
mod services;
