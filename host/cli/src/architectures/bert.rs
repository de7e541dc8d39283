//! BERT: an encoder of post-norm transformer layers, written as PyTorch exports it.
//!
//! Inputs are `input_ids` and `attention_mask`, both int64 of shape (1, tokens), where a nonzero mask element marks a
//! token to attend to; the output is the last hidden state. Layer normalization preserves the scale of the activations,
//! so no sample is propagated through the network.

use super::net::{Attr, Net};
use byoc::frontend::onnx::proto::ModelProto;
use byoc_ir::tensor::{DType, Tensor};

/// Hyperparameters of an encoder.
pub struct Config {
    layers: usize,
    width: usize,
    heads: usize,
    tokens: usize,
    vocabulary: usize,
}

impl Config {
    /// Creates the configuration of BERT base (Devlin et al. 2018), with every hyperparameter divided by `divide`.
    pub fn base(divide: usize) -> Config {
        Config {
            layers: 12usize.div_ceil(divide),
            width: 768 / divide,
            heads: 12usize.div_ceil(divide),
            tokens: 128 / divide,
            vocabulary: 30522 / divide,
        }
    }
}

/// Encoder graph under construction.
struct Bert<'a> {
    net: Net,
    config: &'a Config,
}

pub fn build(net: Net, config: &Config) -> ModelProto {
    let (tokens, width) = (config.tokens, config.width);
    let mut bert = Bert { net, config };
    bert.net.input("input_ids", DType::I64, &[1, tokens]);
    bert.net.input("attention_mask", DType::I64, &[1, tokens]);

    // Additive attention mask: 0 for a token to attend to, a large negative number for a masked token.
    let mask = bert.net.node("Cast", &["attention_mask"], &[("to", Attr::Int(9))]);
    let visible_bias = bert.constant("mask.seen", &Tensor::scalar(0f32));
    let masked_bias = bert.constant("mask.hidden", &Tensor::scalar(-10_000f32));
    let bias = bert.net.node("Where", &[&mask, &visible_bias, &masked_bias], &[]);
    let axes = bert.constant("mask.axes", &Tensor::from_slice(&[2], &[1i64, 2]));
    let bias = bert.net.node("Unsqueeze", &[&bias, &axes], &[]);

    let word_table = bert.random_weight("embeddings.word", &[config.vocabulary, width], 0.05);
    let x = bert.net.node("Gather", &[&word_table, "input_ids"], &[("axis", Attr::Int(0))]);
    // Position embeddings. The model has a single token type, whose embedding is the same at every position and is
    // therefore folded into the position embeddings.
    let position_table = bert.random_weight("embeddings.position", &[1, tokens, width], 0.05);
    let x = bert.net.node("Add", &[&x, &position_table], &[]);
    let mut x = bert.layer_norm("embeddings", &x);
    for layer in 0..config.layers {
        x = bert.layer(&format!("layer.{layer}"), &x, &bias);
    }
    bert.net.finish(&x, &[1, tokens, width])
}

impl Bert<'_> {
    fn constant(&mut self, name: &str, tensor: &Tensor) -> String {
        self.net.weight(name, tensor)
    }

    fn random_weight(&mut self, name: &str, shape: &[usize], deviation: f64) -> String {
        let tensor = self.net.random_normal(shape, deviation);
        self.constant(name, &tensor)
    }

    fn layer_norm(&mut self, name: &str, x: &str) -> String {
        let scale = Tensor::from_slice(&[self.config.width], &vec![1f32; self.config.width]);
        let gamma = self.constant(&format!("{name}.norm.gamma"), &scale);
        let beta = self.random_weight(&format!("{name}.norm.beta"), &[self.config.width], 0.02);
        let attrs = [("axis", Attr::Int(-1)), ("epsilon", Attr::Float(1e-12))];
        self.net.node("LayerNormalization", &[x, &gamma, &beta], &attrs)
    }

    fn linear(&mut self, name: &str, x: &str, inputs: usize, outputs: usize) -> String {
        let weight = self.random_weight(&format!("{name}.weight"), &[inputs, outputs], (1.0 / inputs as f64).sqrt());
        let bias = self.random_weight(&format!("{name}.bias"), &[outputs], 0.02);
        let product = self.net.node("MatMul", &[x, &weight], &[]);
        self.net.node("Add", &[&bias, &product], &[])
    }

    /// Reshapes (1, tokens, width) to (1, tokens, heads, head width) and permutes the axes of the result as `order`
    /// specifies.
    fn heads(&mut self, name: &str, x: &str, order: &[i64]) -> String {
        let Config { heads, tokens, width, .. } = *self.config;
        let split_shape = Tensor::from_slice(&[4], &[1, tokens as i64, heads as i64, (width / heads) as i64]);
        let split_shape = self.constant(&format!("{name}.split"), &split_shape);
        let x = self.net.node("Reshape", &[x, &split_shape], &[]);
        self.net.node("Transpose", &[&x], &[("perm", Attr::Ints(order))])
    }

    fn layer(&mut self, name: &str, x: &str, mask: &str) -> String {
        let Config { heads, tokens, width, .. } = *self.config;
        let query = self.linear(&format!("{name}.query"), x, width, width);
        let key = self.linear(&format!("{name}.key"), x, width, width);
        let value = self.linear(&format!("{name}.value"), x, width, width);
        let query = self.heads(&format!("{name}.query"), &query, &[0, 2, 1, 3]);
        let key = self.heads(&format!("{name}.key"), &key, &[0, 2, 3, 1]);
        let value = self.heads(&format!("{name}.value"), &value, &[0, 2, 1, 3]);
        let scores = self.net.node("MatMul", &[&query, &key], &[]);
        let root = Tensor::scalar(((width / heads) as f32).sqrt());
        let root = self.constant(&format!("{name}.root"), &root);
        let scores = self.net.node("Div", &[&scores, &root], &[]);
        let scores = self.net.node("Add", &[&scores, mask], &[]);
        let shares = self.net.node("Softmax", &[&scores], &[("axis", Attr::Int(-1))]);
        let context = self.net.node("MatMul", &[&shares, &value], &[]);
        let context = self.net.node("Transpose", &[&context], &[("perm", Attr::Ints(&[0, 2, 1, 3]))]);
        let merged_shape = Tensor::from_slice(&[3], &[1, tokens as i64, width as i64]);
        let merged_shape = self.constant(&format!("{name}.join"), &merged_shape);
        let context = self.net.node("Reshape", &[&context, &merged_shape], &[]);
        let context = self.linear(&format!("{name}.attention"), &context, width, width);
        let sum = self.net.node("Add", &[&context, x], &[]);
        let x = self.layer_norm(&format!("{name}.attention"), &sum);

        let hidden = self.linear(&format!("{name}.intermediate"), &x, width, 4 * width);
        let hidden = self.gelu(name, &hidden);
        let projection = self.linear(&format!("{name}.output"), &hidden, 4 * width, width);
        let sum = self.net.node("Add", &[&projection, &x], &[]);
        self.layer_norm(&format!("{name}.output"), &sum)
    }

    /// Adds GELU (Hendrycks, Gimpel: Gaussian error linear units, 2016): x * 0.5 * (1 + erf(x / sqrt(2))).
    fn gelu(&mut self, name: &str, x: &str) -> String {
        let root = self.constant(&format!("{name}.gelu.root"), &Tensor::scalar(std::f32::consts::SQRT_2));
        let one = self.constant(&format!("{name}.gelu.one"), &Tensor::scalar(1f32));
        let half = self.constant(&format!("{name}.gelu.half"), &Tensor::scalar(0.5f32));
        let ratio = self.net.node("Div", &[x, &root], &[]);
        let curve = self.net.node("Erf", &[&ratio], &[]);
        let gate = self.net.node("Add", &[&curve, &one], &[]);
        let product = self.net.node("Mul", &[x, &gate], &[]);
        self.net.node("Mul", &[&product, &half], &[])
    }
}
