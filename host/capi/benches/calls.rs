//! Prints the average duration of a call to `Model::run_into` in microseconds, on one thread. Usage: `calls MODEL`,
//! with a model that has one input and one output of 16 floats. `calls.c` measures the same call through the C
//! interface; `cargo xtask bench calls` runs both.

#![expect(clippy::print_stdout, reason = "the output of a command-line tool")]

use byoc::{CompileOptions, Model, RunOptions, Session, Tensor, TensorViewMut};
use std::path::Path;
use std::time::Instant;

const WARM_UP_CALLS: u32 = 20_000;
const CALLS: u32 = 400_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: calls MODEL")?;
    let session = Session::builder().threads(1).build()?;
    let model = Model::compile(&session, Path::new(&path), &CompileOptions::new())?;
    let x = Tensor::from_slice(&[16], &[0.0f32; 16]);
    let mut result = [0.0f32; 16];
    let options = RunOptions::default();
    let mut run = || model.run_into([&x], &mut [TensorViewMut::of(&[16], &mut result)], &options);
    for _ in 0..WARM_UP_CALLS {
        run()?;
    }
    let start = Instant::now();
    for _ in 0..CALLS {
        run()?;
    }
    println!("{:.4}", start.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS));
    Ok(())
}
