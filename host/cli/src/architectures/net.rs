//! Node-by-node construction of an ONNX graph, with a noise sample that is propagated through the graph.

use super::measure::{call, channel_statistics};
use byoc::frontend::onnx::proto::{
    AttributeProto, AttributeType, DimensionProto, DimensionValue, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};
use byoc::frontend::onnx::tensor::{encode, type_number};
use byoc::io::random::Random;
use byoc_ir::ir::{AttrValue, Attrs};
use byoc_ir::tensor::{DType, Tensor};

/// Network under construction.
pub struct Net {
    graph: GraphProto,
    random: Random,
    count: usize,
}

/// Value in the graph, together with its elements for the sample.
#[derive(Clone)]
pub struct Value {
    /// Name in the graph.
    pub name: String,
    pub sample: Tensor,
}

/// Output of a model.
pub struct Output {
    pub name: &'static str,
    /// Name of the node result that becomes the output.
    pub result: String,
    pub dtype: DType,
    pub shape: Vec<Dim>,
}

/// Dimension of an output.
pub enum Dim {
    Known(usize),
    /// Name of a data-dependent dimension.
    Named(&'static str),
}

/// Window of a convolution, the same along both axes.
#[derive(Clone, Copy)]
pub struct Window {
    /// Side length of the kernel.
    pub kernel: usize,
    /// Distance between adjacent windows.
    pub stride: usize,
    /// Padding on each side.
    pub pad: usize,
}

/// Node attribute.
pub enum Attr<'a> {
    Int(i64),
    Float(f32),
    Ints(&'a [i64]),
}

/// Rounds to 12 significant bits: the last bits of a statistic depend on the summation order and thus on the machine.
fn round_coarsely(value: f64) -> f32 {
    let bits = (value as f32).to_bits();
    f32::from_bits((bits + 0x800) & !0xfff)
}

impl Net {
    /// Creates an empty graph.
    pub fn new(name: &str, seed: u64) -> Net {
        let graph = GraphProto { name: name.into(), ..GraphProto::default() };
        Net { graph, random: Random::new(seed), count: 0 }
    }

    /// Returns the finished model with the single output `result` of shape `shape`.
    pub fn finish(self, result: &str, shape: &[usize]) -> ModelProto {
        let shape = shape.iter().map(|&dim| Dim::Known(dim)).collect();
        self.finish_outputs(vec![Output { name: "output", result: result.to_owned(), dtype: DType::F32, shape }])
    }

    /// Returns the finished model with several outputs, each of which is a node result that no other node reads.
    pub fn finish_outputs(mut self, outputs: Vec<Output>) -> ModelProto {
        for Output { name, result, dtype, shape } in outputs {
            if let Some(node) = self.graph.node.iter_mut().find(|n| n.output.contains(&result)) {
                node.output = vec![name.into()];
            }
            self.graph.output.push(value_info(name, dtype, &shape));
        }
        ModelProto {
            ir_version: 8,
            producer_name: "byoc".into(),
            opset_import: vec![OperatorSetIdProto { domain: String::new(), version: 17 }],
            graph: Some(self.graph),
            ..ModelProto::default()
        }
    }

    /// Adds a model input.
    pub fn input(&mut self, name: &str, dtype: DType, shape: &[usize]) {
        let shape: Vec<Dim> = shape.iter().map(|&dim| Dim::Known(dim)).collect();
        self.graph.input.push(value_info(name, dtype, &shape));
    }

    /// Draws a tensor of uniform noise, distributed like generated inputs.
    pub fn noise(&mut self, shape: &[usize]) -> Tensor {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| self.random.uniform() as f32).collect();
        Tensor::from_slice(shape, &values)
    }

    /// Draws normally distributed weights.
    pub fn random_normal(&mut self, shape: &[usize], deviation: f64) -> Tensor {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| (self.random.normal() * deviation) as f32).collect();
        Tensor::from_slice(shape, &values)
    }

    /// Adds a weight to the graph.
    pub fn weight(&mut self, name: &str, tensor: &Tensor) -> String {
        let proto: TensorProto = encode(name, tensor);
        self.graph.initializer.push(proto);
        name.to_owned()
    }

    /// Adds a node with one output, and returns the name of the output.
    pub fn node(&mut self, op: &str, inputs: &[&str], attrs: &[(&str, Attr<'_>)]) -> String {
        self.count += 1;
        let name = format!("{}_{}", op.to_lowercase(), self.count);
        let attribute = attrs.iter().map(|(key, value)| {
            let proto = AttributeProto { name: (*key).to_owned(), ..AttributeProto::default() };
            match value {
                Attr::Int(i) => AttributeProto { r#type: AttributeType::Int as i32, i: Some(*i), ..proto },
                Attr::Float(f) => AttributeProto { r#type: AttributeType::Float as i32, f: Some(*f), ..proto },
                Attr::Ints(values) => {
                    AttributeProto { r#type: AttributeType::Ints as i32, ints: values.to_vec(), ..proto }
                }
            }
        });
        self.graph.node.push(NodeProto {
            op_type: op.into(),
            input: inputs.iter().map(|&i| i.to_owned()).collect(),
            output: vec![name.clone()],
            attribute: attribute.collect(),
            name: name.clone(),
            ..NodeProto::default()
        });
        name
    }

    /// Draws the weights of a convolution without bias and evaluates it on the sample.
    fn evaluate_conv(&mut self, x: &Value, out: usize, window: Window, groups: usize) -> (Value, Tensor) {
        let Window { kernel, stride, pad } = window;
        let channels = x.sample.shape()[1] / groups;
        let fan_in = (channels * kernel * kernel) as f64;
        let weight = self.random_normal(&[out, channels, kernel, kernel], (2.0 / fan_in).sqrt());
        let (pad, stride_i, groups_i) = (pad as i64, stride as i64, groups as i64);
        let attrs = Attrs::new([
            ("strides", AttrValue::from([stride_i, stride_i])),
            ("padding", AttrValue::from([pad; 4])),
            ("groups", AttrValue::from(groups_i)),
        ]);
        let sample = call("nn.conv2d", attrs, &[&x.sample, &weight]);
        let name = format!("conv_{}", self.count + 1);
        (Value { name, sample }, weight)
    }

    fn conv_node(&mut self, inputs: &[&str], window: Window, groups: usize) -> String {
        let (kernel, stride, pad) = (window.kernel as i64, window.stride as i64, window.pad as i64);
        let attrs = [
            ("kernel_shape", Attr::Ints(&[kernel, kernel])),
            ("strides", Attr::Ints(&[stride, stride])),
            ("pads", Attr::Ints(&[pad, pad, pad, pad])),
            ("group", Attr::Int(groups as i64)),
        ];
        self.node("Conv", inputs, &attrs)
    }

    /// Adds a convolution and a batch normalization with the statistics of the sample; at stride 1 the padding
    /// preserves the spatial dimensions.
    pub fn conv_bn(&mut self, x: &Value, out: usize, kernel: usize, stride: usize, groups: usize) -> Value {
        self.conv_bn_window(x, out, Window { kernel, stride, pad: kernel / 2 }, groups)
    }

    /// Variant of [`Net::conv_bn`] with arbitrary padding.
    pub fn conv_bn_window(&mut self, x: &Value, out: usize, window: Window, groups: usize) -> Value {
        let (product, weight) = self.evaluate_conv(x, out, window, groups);
        let weight_name = self.weight(&format!("{}.weight", product.name), &weight);
        let conv = self.conv_node(&[&x.name, &weight_name], window, groups);
        let (mean, variance) = channel_statistics(&product.sample);
        // An almost constant channel must not be scaled up to unit variance.
        let mean_variance = variance.iter().sum::<f64>() / out as f64;
        let vector = |values: Vec<f32>| Tensor::from_slice(&[out], &values);
        let mean = vector(mean.iter().map(|&v| round_coarsely(v)).collect());
        let variance = vector(variance.iter().map(|&v| round_coarsely(v.max(mean_variance * 1e-2))).collect());
        let gamma = vector(vec![1.0; out]);
        let beta = self.random_normal(&[out], 0.1);
        let mut inputs = vec![conv];
        for (part, tensor) in [("gamma", &gamma), ("beta", &beta), ("mean", &mean), ("var", &variance)] {
            inputs.push(self.weight(&format!("{}.{part}", product.name), tensor));
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let name = self.node("BatchNormalization", &inputs, &[("epsilon", Attr::Float(1e-5))]);
        let sample = normalize(&product.sample, &gamma, &beta, &mean, &variance);
        Value { name, sample }
    }

    /// Adds a convolution with a bias, scaled so that its output for the sample has mean 0 and variance 1.
    pub fn conv_fitted(&mut self, x: &Value, out: usize, kernel: usize) -> Value {
        let window = Window { kernel, stride: 1, pad: kernel / 2 };
        let (product, weight) = self.evaluate_conv(x, out, window, 1);
        let (mean, variance) = channel_statistics(&product.sample);
        let (weight, bias) = fit_weights(&weight, &mean, &variance);
        let weight_name = self.weight(&format!("{}.weight", product.name), &weight);
        let bias_name = self.weight(&format!("{}.bias", product.name), &bias);
        let name = self.conv_node(&[&x.name, &weight_name, &bias_name], window, 1);
        let pad = (kernel / 2) as i64;
        let product = call("nn.conv2d", Attrs::new([("padding", AttrValue::from([pad; 4]))]), &[&x.sample, &weight]);
        let sample = call("nn.bias_add", Attrs::none(), &[&product, &bias]);
        Value { name, sample }
    }

    /// Adds a dense layer with a bias, scaled like [`Net::conv_fitted`].
    pub fn dense(&mut self, x: &Value, out: usize) -> Value {
        let width = x.sample.shape()[1];
        let weight = self.random_normal(&[out, width], (1.0 / width as f64).sqrt());
        let product = call("nn.dense", Attrs::none(), &[&x.sample, &weight]);
        let (mean, variance) = channel_statistics(&product);
        let (weight, bias) = fit_weights(&weight, &mean, &variance);
        let layer = format!("gemm_{}", self.count + 1);
        let inputs = [self.weight(&format!("{layer}.weight"), &weight), self.weight(&format!("{layer}.bias"), &bias)];
        let name = self.node("Gemm", &[&x.name, &inputs[0], &inputs[1]], &[("transB", Attr::Int(1))]);
        let product = call("nn.dense", Attrs::none(), &[&x.sample, &weight]);
        let sample = call("nn.bias_add", Attrs::none(), &[&product, &bias]);
        Value { name, sample }
    }

    /// Adds a ReLU: max(x, 0).
    pub fn relu(&mut self, x: &Value) -> Value {
        let name = self.node("Relu", &[&x.name], &[]);
        Value { name, sample: call("nn.relu", Attrs::none(), &[&x.sample]) }
    }

    /// Adds a ReLU6: min(max(x, 0), 6).
    pub fn relu6(&mut self, x: &Value) -> Value {
        if !self.graph.initializer.iter().any(|t| t.name == "six") {
            self.weight("zero", &Tensor::scalar(0f32));
            self.weight("six", &Tensor::scalar(6f32));
        }
        let name = self.node("Clip", &[&x.name, "zero", "six"], &[]);
        let bounds = Attrs::new([("a_min", AttrValue::from(0.0)), ("a_max", AttrValue::from(6.0))]);
        Value { name, sample: call("clip", bounds, &[&x.sample]) }
    }

    /// Adds the elementwise sum x + y.
    pub fn add(&mut self, x: &Value, y: &Value) -> Value {
        let name = self.node("Add", &[&x.name, &y.name], &[]);
        Value { name, sample: call("add", Attrs::none(), &[&x.sample, &y.sample]) }
    }

    /// Adds max pooling over square windows.
    pub fn max_pool(&mut self, x: &Value, size: i64, stride: i64, pad: i64) -> Value {
        let attrs = [
            ("kernel_shape", Attr::Ints(&[size, size])),
            ("strides", Attr::Ints(&[stride, stride])),
            ("pads", Attr::Ints(&[pad, pad, pad, pad])),
        ];
        let name = self.node("MaxPool", &[&x.name], &attrs);
        let attrs = Attrs::new([
            ("pool_size", AttrValue::from([size, size])),
            ("strides", AttrValue::from([stride, stride])),
            ("padding", AttrValue::from([pad; 4])),
        ]);
        Value { name, sample: call("nn.max_pool2d", attrs, &[&x.sample]) }
    }

    /// Adds global average pooling, flattened to (batch, channels).
    pub fn global_mean(&mut self, x: &Value) -> Value {
        let mean = self.node("GlobalAveragePool", &[&x.name], &[]);
        let name = self.node("Flatten", &[&mean], &[("axis", Attr::Int(1))]);
        let mean = call("nn.global_avg_pool2d", Attrs::none(), &[&x.sample]);
        Value { name, sample: call("nn.batch_flatten", Attrs::none(), &[&mean]) }
    }
}

/// Returns rescaled weights and a bias that normalize outputs with the given statistics to mean 0 and variance 1.
fn fit_weights(weight: &Tensor, mean: &[f64], variance: &[f64]) -> (Tensor, Tensor) {
    let mean_variance = variance.iter().sum::<f64>() / variance.len() as f64;
    let scales: Vec<f64> =
        variance.iter().map(|v| f64::from(round_coarsely(1.0 / v.max(mean_variance * 1e-2).sqrt()))).collect();
    let row = weight.len() / scales.len();
    let values: Vec<f32> =
        weight.as_slice::<f32>().iter().enumerate().map(|(i, &w)| (f64::from(w) * scales[i / row]) as f32).collect();
    let bias: Vec<f32> = mean.iter().zip(&scales).map(|(m, s)| round_coarsely(-m * s)).collect();
    (Tensor::from_slice(weight.shape(), &values), Tensor::from_slice(&[bias.len()], &bias))
}

fn normalize(data: &Tensor, gamma: &Tensor, beta: &Tensor, mean: &Tensor, variance: &Tensor) -> Tensor {
    let shape = data.shape();
    let (channels, inner) = (shape[1], shape[2..].iter().product::<usize>());
    let [gamma, beta, mean, variance] = [gamma, beta, mean, variance].map(|t| t.as_slice::<f32>());
    let values: Vec<f32> = data
        .as_slice::<f32>()
        .iter()
        .enumerate()
        .map(|(i, &x)| {
            let c = i / inner % channels;
            (x - mean[c]) / (variance[c] + 1e-5).sqrt() * gamma[c] + beta[c]
        })
        .collect();
    Tensor::from_slice(shape, &values)
}

fn value_info(name: &str, dtype: DType, shape: &[Dim]) -> ValueInfoProto {
    let dim = |dim: &Dim| DimensionProto {
        value: Some(match dim {
            Dim::Known(size) => DimensionValue::DimValue(*size as i64),
            Dim::Named(name) => DimensionValue::DimParam((*name).to_owned()),
        }),
    };
    let tensor = TensorTypeProto {
        elem_type: type_number(dtype),
        shape: Some(TensorShapeProto { dim: shape.iter().map(dim).collect() }),
    };
    let ty = TypeProto { tensor_type: Some(tensor), ..TypeProto::default() };
    ValueInfoProto { name: name.to_owned(), r#type: Some(ty), doc_string: String::new() }
}
