//! Input values of a run: files, images, generated tensors, or the data set next to the model.

use super::args::InputArgs;
use byoc::frontend::PortInfo;
use byoc::io::{self, Peeked, image, npy};
use byoc::runtime::error::Failure;
use byoc::runtime::exec::check_type;
use byoc::runtime::exec::program::Port;
use byoc::runtime::model::Model;
use byoc::runtime::value::{self, PortValue, StringTensor};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::interface::PortKind;
use byoc_ir::ir::Dim;
use byoc_ir::tensor::{DType, OutOfMemory, Shape, Tensor};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Source of an input value.
enum Origin {
    /// File of which only the header has been read.
    File(PathBuf, npy::Header),
    Tensor(Tensor),
    Random(u64),
    Filled(f64),
}

/// User-supplied inputs. File shapes are read up front, as they bind symbolic dimensions before the model is read.
pub struct InputSources {
    values: BTreeMap<String, Origin>,
    image: Option<(PathBuf, image::Normalization)>,
}

impl InputSources {
    /// Reads the files named by the options. Of a `.npy` or `.npz` file, only the header is read.
    pub fn read(args: &InputArgs) -> Result<InputSources, Failure> {
        let mut values = BTreeMap::new();
        for (name, spec) in &args.inputs {
            let origin = match spec.split_once(':').map_or((spec.as_str(), None), |(kind, seed)| (kind, Some(seed))) {
                ("random", None) => Origin::Random(0),
                ("random", Some(seed)) if seed.parse::<u64>().is_ok() => Origin::Random(seed.parse().unwrap_or(0)),
                ("ones", None) => Origin::Filled(1.0),
                ("zeros", None) => Origin::Filled(0.0),
                _ => match io::peek(Path::new(spec), Some(name))? {
                    Peeked::Header(header) => Origin::File(spec.into(), header),
                    Peeked::Tensor(tensor) => Origin::Tensor(tensor),
                    Peeked::Strings([spans, bytes]) => {
                        values.insert(format!("{name}.bytes"), Origin::Tensor(bytes));
                        Origin::Tensor(spans)
                    }
                },
            };
            if values.insert(name.clone(), origin).is_some() {
                let message = format!("duplicate value for input \"{name}\"");
                return Err(Failure::new(codes::runtime::INPUT_COUNT, message));
            }
        }
        let image = args.image.as_ref().map(|path| {
            let normalization = image::Normalization { mean: args.mean.clone(), std: args.std.clone() };
            (path.clone(), normalization)
        });
        Ok(InputSources { values, image })
    }

    /// Adds recorded values for the inputs without a value, unless an image is given.
    pub fn with_recorded(mut self, recorded_inputs: impl IntoIterator<Item = (String, Tensor)>) -> InputSources {
        if self.image.is_none() {
            for (name, tensor) in recorded_inputs {
                self.values.entry(name).or_insert(Origin::Tensor(tensor));
            }
        }
        self
    }

    /// Returns the shapes known before the model is read.
    pub fn shapes(&self) -> BTreeMap<String, Vec<usize>> {
        let known_shapes = self.values.iter().filter_map(|(name, origin)| match origin {
            Origin::File(_, header) => Some((name.clone(), header.shape.to_vec())),
            Origin::Tensor(tensor) => Some((name.clone(), tensor.shape().to_vec())),
            _ => None,
        });
        known_shapes.collect()
    }

    /// Returns the names of the inputs with a value.
    pub fn names(&self) -> BTreeSet<String> {
        self.values.keys().cloned().collect()
    }

    /// Returns true if the inputs include an image.
    pub fn has_image(&self) -> bool {
        self.image.is_some()
    }

    /// Returns the symbolic dimension that an image binds, and its value. An image is a single sample, so a symbolic
    /// first dimension of the input is bound to 1.
    pub fn image_dims(&self, inputs: &[PortInfo]) -> Option<(String, usize)> {
        let mut missing_ports = inputs.iter().filter(|port| !self.values.contains_key(&port.name));
        let image_port =
            missing_ports.find(|port| accepts_image(port.dims.as_ref().map_or(0, Vec::len), inputs.len()))?;
        image_port.dims.as_ref()?.first()?.name().map(|name| (name.to_string(), 1))
    }

    /// Returns the values in the order of the model's inputs. A missing value is generated from the seed
    /// `default`, or is an error if `default` is `None`.
    pub fn resolve(&self, model: &Model, default: Option<u64>) -> Result<Vec<Tensor>, Failure> {
        let ports = model.inputs();
        let mut named_inputs: Vec<(String, Tensor)> = Vec::new();
        let given_optional = model.optional_inputs().chunks(1).filter(|port| self.values.contains_key(&port[0].name));
        for (index, value_ports) in value::by_value(ports).chain(given_optional).enumerate() {
            self.check_kind(value_ports)?;
            let port = &value_ports[0];
            if port.kind != PortKind::Tensor && !self.values.contains_key(&port.name) && default.is_some() {
                let tensors = generated(value_ports, default.unwrap_or(0) ^ index as u64)?;
                named_inputs.extend(value_ports.iter().map(|port| port.name.clone()).zip(tensors));
                continue;
            }
            for port in value_ports {
                if let Some(value) = self.value(index, port, ports, default)? {
                    named_inputs.push((port.name.clone(), value));
                }
            }
        }
        // Unknown names are passed on to `bind`, whose error message lists the model's inputs.
        let is_known = |name: &String| ports.iter().chain(model.optional_inputs()).any(|port| port.name == *name);
        let unknown_names = self.values.keys().filter(|name| !is_known(name));
        named_inputs.extend(unknown_names.map(|name| (name.clone(), Tensor::scalar(0.0f32))));
        Ok(model.bind(named_inputs)?)
    }

    /// Checks that an input gets strings if its value has strings, and numbers otherwise.
    fn check_kind(&self, ports: &[Port]) -> Result<(), Diagnostic> {
        let name = &ports[0].name;
        let has_bytes = self.values.contains_key(&format!("{name}.bytes"));
        let found = match ports[0].kind {
            PortKind::Tensor if has_bytes => "strings",
            PortKind::Strings if !has_bytes && self.values.contains_key(name) => "numbers",
            _ => return Ok(()),
        };
        let message = format!("input \"{name}\": expected {}, found {found}", value::type_text(ports));
        Err(Diagnostic::error(codes::runtime::INPUT_DTYPE, message))
    }

    fn value(
        &self,
        index: usize,
        port: &Port,
        ports: &[Port],
        default: Option<u64>,
    ) -> Result<Option<Tensor>, Failure> {
        let origin = match (self.values.get(&port.name), &self.image, default) {
            (Some(Origin::Tensor(tensor)), _, _) => return Ok(Some(tensor.clone())),
            (Some(Origin::File(path, header)), _, _) => {
                check_type(port, header.dtype, &header.shape)?;
                return Ok(Some(io::read_tensor(path, Some(&port.name))?));
            }
            (Some(origin), _, _) => origin,
            (None, Some((path, normalization)), _) if accepts_image(port.ty.dims.len(), ports.len()) => {
                let mut item_port = port.clone();
                if let Some(batch_dim @ (Dim::Any | Dim::Symbolic(_))) = item_port.ty.dims.first_mut() {
                    *batch_dim = Dim::Fixed(1);
                }
                let shape = shape_of(&item_port)?;
                return Ok(Some(image::load(path, port.ty.dtype, &shape, normalization)?));
            }
            (None, _, Some(seed)) => &Origin::Random(seed),
            (None, _, None) => return Ok(None),
        };
        let shape = shape_of(port)?;
        Ok(match origin {
            Origin::File(..) | Origin::Tensor(_) => None,
            Origin::Random(seed) => {
                Some(add_port_to_error(io::random::try_tensor(port.ty.dtype, &shape, seed ^ index as u64), port)?)
            }
            Origin::Filled(value) => Some(add_port_to_error(io::filled(port.ty.dtype, &shape, *value), port)?),
        })
    }
}

/// Returns generated tensors for a value that is no tensor of numbers: strings of one digit, or an empty sequence.
fn generated(ports: &[Port], seed: u64) -> Result<Vec<Tensor>, Failure> {
    if ports[0].kind != PortKind::Strings {
        let value = match ports[0].kind {
            PortKind::Optional => PortValue::Optional(None),
            PortKind::OptionalSequence => PortValue::OptionalSequence(None),
            _ => PortValue::Sequence(Vec::new()),
        };
        return Ok(value.into_tensors(ports)?);
    }
    let shape = shape_of(&ports[0])?;
    let digits = add_port_to_error(io::random::try_tensor(DType::I64, &shape, seed), &ports[0])?;
    let strings = digits.view().to_i64s().unwrap_or_default().iter().map(i64::to_string).collect();
    Ok(PortValue::Strings(StringTensor { shape, strings }).into_tensors(ports)?)
}

/// Adds the name and type of the input to the error for a generated tensor that exceeds the memory limit.
fn add_port_to_error(tensor: Result<Tensor, OutOfMemory>, port: &Port) -> Result<Tensor, Diagnostic> {
    tensor.map_err(|error| {
        let ty = value::type_text(std::slice::from_ref(port));
        Diagnostic::from(error).note(format!("for input \"{}\" of type {ty}", port.name))
    })
}

/// Tests whether an input of rank `rank` can be the image input of a model with `inputs` inputs.
fn accepts_image(rank: usize, inputs: usize) -> bool {
    rank >= 3 || inputs == 1
}

/// Returns the shape of a generated input.
fn shape_of(port: &Port) -> Result<Shape, Failure> {
    port.ty.shape().ok_or_else(|| {
        let ty = value::type_text(std::slice::from_ref(port));
        Diagnostic::error(
            codes::runtime::INPUT_SHAPE,
            format!("input \"{}\": expected a type with known dimensions, found {ty}", port.name),
        )
        .help(format!(
            "pass a file: --input {}=FILE.npy, or compile the model for known dimensions: --dim NAME=N",
            port.name
        ))
        .into()
    })
}
