//! Naive operator implementations with deliberate mistakes.

use crate::convolution::convolution;
use byoc_plugin_api::*;

/// Tensor that owns its memory.
#[derive(Clone)]
pub struct Value {
    pub dtype: DType,
    pub dims: Vec<usize>,
    /// Elements, row-major.
    pub bytes: Vec<u8>,
}

impl Value {
    pub fn of_tensor(tensor: &TensorRef<'_>) -> Value {
        Value { dtype: tensor.dtype(), dims: tensor.shape().to_vec(), bytes: tensor.bytes().to_vec() }
    }

    pub fn of_constant(constant: &Constant) -> Value {
        Value::of_tensor(&constant.tensor())
    }

    pub fn floats(&self) -> Vec<f32> {
        self.bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    pub fn of_floats(dims: &[usize], values: &[f32]) -> Value {
        let bytes = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        Value { dtype: DType::F32, dims: dims.to_vec(), bytes }
    }
}

/// Computes the outputs of a graph.
pub fn evaluate(mistake: &str, graph: &Graph, inputs: &[Value], constants: &[Value]) -> Result<Vec<Value>> {
    let mut values: Vec<Vec<Value>> = Vec::new();
    for node in &graph.nodes {
        let args: Vec<&Value> = node.inputs.iter().map(|r| &values[r.node as usize][r.index as usize]).collect();
        let result = match &node.kind {
            NodeKind::Input(index) => vec![inputs[*index as usize].clone()],
            NodeKind::Constant(index) => vec![constants[*index as usize].clone()],
            NodeKind::Composite(composite) => {
                let args: Vec<Value> = args.into_iter().cloned().collect();
                evaluate(mistake, &composite.body, &args, constants)?
            }
            NodeKind::Op(name) => {
                let dims = node.outputs[0].shape().ok_or("expected known dimensions, found an unknown dimension")?;
                vec![operator(mistake, name, node, &args, &dims)?]
            }
        };
        values.push(result);
    }
    if graph.outputs.is_empty() {
        return Ok(inputs.first().cloned().into_iter().collect());
    }
    Ok(graph.outputs.iter().map(|r| values[r.node as usize][r.index as usize].clone()).collect())
}

fn operator(mistake: &str, name: &str, node: &Node, args: &[&Value], dims: &[usize]) -> Result<Value> {
    Ok(match name {
        "nn.conv2d" => Value::of_floats(dims, &convolution(mistake, node, args, dims)),
        "nn.bias_add" => {
            let (mut data, bias) = (args[0].floats(), args[1].floats());
            let inner_size: usize = dims[2..].iter().product();
            for (i, value) in data.iter_mut().enumerate() {
                if mistake != "bias_ignored" {
                    *value += bias[i / inner_size.max(1) % dims[1]];
                }
            }
            Value::of_floats(dims, &data)
        }
        "nn.relu" => {
            let relu = |x: f32| match mistake {
                "nan_lost" => x.max(0.0),
                "denormals_flushed" if x.is_subnormal() => 0.0,
                _ if x < 0.0 => 0.0,
                _ => x,
            };
            Value::of_floats(dims, &args[0].floats().into_iter().map(relu).collect::<Vec<_>>())
        }
        "add" => add(mistake, args, dims),
        "nn.softmax" => {
            let axis = node.int("axis").unwrap_or(-1).rem_euclid(dims.len() as i64) as usize;
            let axis = if mistake == "wrong_axis" { dims.len() - 1 } else { axis };
            Value::of_floats(dims, &softmax(&args[0].floats(), dims, axis))
        }
        "concatenate" => {
            let axis = node.int("axis").unwrap_or(0).rem_euclid(dims.len() as i64) as usize;
            // Concatenating entire operands is correct only for the first axis.
            let outer = if mistake == "concatenates_memory" { 1 } else { dims[..axis].iter().product() };
            let mut bytes = Vec::new();
            for block in 0..outer {
                for operand in args {
                    let size = operand.bytes.len() / outer;
                    bytes.extend_from_slice(&operand.bytes[block * size..(block + 1) * size]);
                }
            }
            Value { dtype: args[0].dtype, dims: dims.to_vec(), bytes }
        }
        other => return Err(format!("unsupported operator {other}").into()),
    })
}

fn add(mistake: &str, args: &[&Value], dims: &[usize]) -> Value {
    let pairs = args[0].bytes.iter().zip(&args[1].bytes);
    let saturates = mistake == "saturates";
    let bytes = match args[0].dtype {
        DType::I8 if saturates => pairs.map(|(a, b)| (*a as i8).saturating_add(*b as i8) as u8).collect(),
        DType::I8 => pairs.map(|(a, b)| a.wrapping_add(*b)).collect(),
        DType::I32 => {
            let to_ints = |v: &Value| -> Vec<i32> {
                v.bytes.chunks_exact(4).map(|b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
            };
            let sum = |(a, b): (i32, i32)| if saturates { a.saturating_add(b) } else { a.wrapping_add(b) };
            to_ints(args[0]).into_iter().zip(to_ints(args[1])).map(sum).flat_map(i32::to_ne_bytes).collect()
        }
        _ => {
            let is_aliased = mistake == "aliases_wrong" && args[0].bytes == args[1].bytes;
            let sum = |(a, b): (f32, f32)| if is_aliased { a } else { a + b };
            let float_sums: Vec<f32> = args[0].floats().into_iter().zip(args[1].floats()).map(sum).collect();
            return Value::of_floats(dims, &float_sums);
        }
    };
    Value { dtype: args[0].dtype, dims: dims.to_vec(), bytes }
}

fn softmax(x: &[f32], dims: &[usize], axis: usize) -> Vec<f32> {
    let (size, inner_size): (usize, usize) = (dims[axis], dims[axis + 1..].iter().product());
    let mut y = vec![0.0; x.len()];
    for (outer, k) in (0..x.len() / (size * inner_size).max(1)).flat_map(|o| (0..inner_size).map(move |k| (o, k))) {
        let index = |i: usize| (outer * size + i) * inner_size + k;
        let max = (0..size).map(|i| x[index(i)]).fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = (0..size).map(|i| f64::from(x[index(i)] - max).exp()).sum();
        for i in 0..size {
            y[index(i)] = (f64::from(x[index(i)] - max).exp() / sum) as f32;
        }
    }
    y
}
