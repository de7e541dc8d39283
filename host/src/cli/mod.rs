mod args;
mod render;
