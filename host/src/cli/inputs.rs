//! The values of a run: files, pictures, made-up tensors, or the data set that lies beside the model.

use super::args::InputArgs;
use crate::error::Failure;
use crate::io::{self, image};
use crate::runtime::program::Port;
use byoc_core::diag::{Diagnostic, codes, nearest};
use byoc_core::tensor::Tensor;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Where the value of an input comes from.
enum Origin {
    File(Tensor),
    Random(u64),
    Filled(f64),
}

/// What the user said about inputs, files already read: their shapes bind symbolic dimensions before the model is.
pub struct Given {
    values: BTreeMap<String, Origin>,
    image: Option<(PathBuf, image::Normalization)>,
}

impl Given {
    /// Reads the files that the options name.
    pub fn read(args: &InputArgs) -> Result<Given, Failure> {
        let mut values = BTreeMap::new();
        for (name, spec) in &args.inputs {
            let origin = match spec.split_once(':').map_or((spec.as_str(), None), |(kind, seed)| (kind, Some(seed))) {
                ("random", None) => Origin::Random(0),
                ("random", Some(seed)) if seed.parse::<u64>().is_ok() => Origin::Random(seed.parse().unwrap_or(0)),
                ("ones", None) => Origin::Filled(1.0),
                ("zeros", None) => Origin::Filled(0.0),
                _ => Origin::File(io::read_tensor(Path::new(spec), Some(name))?),
            };
            if values.insert(name.clone(), origin).is_some() {
                let message = format!("input \"{name}\" is given twice");
                return Err(Failure::new(codes::runtime::BAD_INPUT, message));
            }
        }
        let image = args.image.as_ref().map(|path| {
            let normalization = image::Normalization { mean: args.mean.clone(), std: args.std.clone() };
            (path.clone(), normalization)
        });
        Ok(Given { values, image })
    }

    /// Adds recorded inputs for those that are not given.
    pub fn or_recorded(mut self, recorded: impl IntoIterator<Item = (String, Tensor)>) -> Given {
        if self.image.is_none() {
            for (name, tensor) in recorded {
                self.values.entry(name).or_insert(Origin::File(tensor));
            }
        }
        self
    }

    /// The shapes that are known before the model is read.
    pub fn shapes(&self) -> BTreeMap<String, Vec<usize>> {
        let known = self.values.iter().filter_map(|(name, origin)| match origin {
            Origin::File(tensor) => Some((name.clone(), tensor.shape().to_vec())),
            _ => None,
        });
        known.collect()
    }

    /// The values in the order of the model's inputs. What is not given is made up from `default`, or is an error.
    pub fn resolve(&self, ports: &[Port], default: Option<u64>) -> Result<Vec<Tensor>, Failure> {
        let names: Vec<&str> = ports.iter().map(|p| p.name.as_str()).collect();
        for name in self.values.keys().filter(|name| !names.contains(&name.as_str())) {
            let mut diagnostic = Diagnostic::error(codes::runtime::BAD_INPUT, format!("no input \"{name}\""))
                .note(format!("the model takes {}", describe(ports)));
            if let Some(near) = nearest(name, names.iter().copied()) {
                diagnostic = diagnostic.help(format!("did you mean \"{near}\"?"));
            }
            return Err(diagnostic.into());
        }
        ports.iter().enumerate().map(|(i, port)| self.value(i, port, ports, default)).collect()
    }

    fn value(&self, index: usize, port: &Port, ports: &[Port], default: Option<u64>) -> Result<Tensor, Failure> {
        let shape = port.ty.shape().ok_or_else(|| {
            let wanted = super::run::type_text(&port.ty);
            Failure::new(codes::runtime::BAD_INPUT, format!("input \"{}\" of type {wanted} has no size", port.name))
        });
        match (self.values.get(&port.name), &self.image) {
            (Some(Origin::File(tensor)), _) => Ok(tensor.clone()),
            (Some(Origin::Random(seed)), _) => Ok(io::random::tensor(port.ty.dtype, &shape?, seed ^ index as u64)),
            (Some(Origin::Filled(value)), _) => Ok(io::filled(port.ty.dtype, &shape?, *value)),
            (None, Some((path, normalization))) if port.ty.dims.len() >= 3 || ports.len() == 1 => {
                Ok(image::load(path, port.ty.dtype, &shape?, normalization)?)
            }
            (None, _) => match default {
                Some(seed) => Ok(io::random::tensor(port.ty.dtype, &shape?, seed ^ index as u64)),
                None => Err(Diagnostic::error(codes::runtime::BAD_INPUT, format!("input \"{}\" has no value", port.name))
                    .note(format!("the model takes {}", describe(ports)))
                    .help(format!("give it one: --input {0}=FILE.npy, or --input {0}=random", port.name))
                    .into()),
            },
        }
    }
}

/// The inputs with their types, for messages.
fn describe(ports: &[Port]) -> String {
    let all: Vec<String> = ports.iter().map(|p| format!("{}: {}", p.name, super::run::type_text(&p.ty))).collect();
    all.join(", ")
}
