//! Runs an artifact with the plugins in a directory, or on the host: `run model.byoc [DIRECTORY]`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "standalone program")]

use byoc_runtime::{Failure, Model, Session, artifact, tensor};
use std::path::PathBuf;

fn main() -> Result<(), Failure> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let compiled = artifact::open(&args.next().expect("usage: run model.byoc [DIRECTORY]"))?.into_compiled();
    let plugin_dirs: Vec<PathBuf> = args.collect();
    let session = if plugin_dirs.is_empty() { Session::without_plugins(0)? } else { Session::new(&plugin_dirs, 0)? };
    let (model, warnings) = Model::load(&session, compiled, None)?;
    warnings.iter().for_each(|warning| eprintln!("{warning}"));
    let sizes = |shape: Option<tensor::Shape>| shape.expect("expected an artifact with known dimensions");
    let inputs = model.inputs().iter().map(|port| tensor::random::tensor(port.ty.dtype, &sizes(port.ty.shape()), 1));
    let outputs = model.run(&inputs.collect::<Vec<_>>())?;
    for (port, output) in model.outputs().iter().zip(&outputs) {
        println!("{} {:?} on {} regions: {:.6?}", port.name, output.shape(), model.regions, output.view().to_f64s());
    }
    Ok(())
}
