//! Tests of loading plugins: files that are not plugins, well-behaved plugins, and faulty ones.

mod backends;
mod c_plugins;
mod common;
mod panics;
mod rejections;
mod schemas;
mod services;
