//! Random graphs of operators with C code generation. The exported programs run under sanitizers, and their results are
//! compared with the host's.

use super::relay::{Model, half, next_real};
use super::{ExportedProject, SANITIZER_FLAGS};
use crate::byoc;
use byoc_test_support::random::Random;
use std::fmt::Write;

/// Value in a graph.
#[derive(Clone)]
struct Value {
    name: String,
    shape: Vec<i64>,
}

/// Graph under construction. Values are floats, except inside the quantized layers.
struct Graph {
    model: Model,
    random: Random,
    /// True for a float16 graph, false for float32.
    half: bool,
    lines: String,
    values: Vec<Value>,
    count: usize,
}

fn count(shape: &[i64]) -> i64 {
    shape.iter().product()
}

/// Formats dimensions as a Relay shape.
fn dims(shape: &[i64]) -> String {
    let list: Vec<String> = shape.iter().map(i64::to_string).collect();
    format!("({}{})", list.join(", "), if shape.len() == 1 { "," } else { "" })
}

impl Graph {
    /// Adds a line with a call, and returns the name of its value.
    fn line(&mut self, call: &str) -> String {
        let name = format!("%{}", self.count);
        self.count += 1;
        let _ = writeln!(self.lines, "  {name} = {call};");
        name
    }

    fn add(&mut self, call: &str, shape: &[i64]) {
        let name = self.line(call);
        self.values.push(Value { name, shape: shape.to_vec() });
    }

    /// Returns a random value, preferring recent values.
    fn any_value(&mut self) -> Value {
        let n = self.values.len();
        let distance = self.random.below(n).min(self.random.below(n));
        self.values[n - 1 - distance].clone()
    }

    /// Returns a random value, reshaped to the given rank if its rank differs.
    fn value_of_rank(&mut self, rank: usize) -> Value {
        let value = self.any_value();
        if value.shape.len() == rank {
            return value;
        }
        let mut shape = value.shape.clone();
        while shape.len() > rank {
            let columns = shape.remove(shape.len() - 1);
            let last_axis = shape.len() - 1;
            shape[last_axis] *= columns;
        }
        while shape.len() < rank {
            shape.insert(0, 1);
        }
        let dims: Vec<String> = shape.iter().map(i64::to_string).collect();
        let name = self.line(&format!("reshape({}, newshape=[{}])", value.name, dims.join(", ")));
        Value { name, shape }
    }

    /// Adds a constant of the graph's type, with elements in (-scale, scale).
    fn weight(&mut self, shape: &[i64], scale: f32) -> String {
        let mut bytes = Vec::new();
        for _ in 0..count(shape) {
            let x = next_real(&mut self.random) * scale;
            match self.half {
                true => bytes.extend(half(x).to_le_bytes()),
                false => bytes.extend(x.to_le_bytes()),
            }
        }
        self.model.constant(if self.half { "F16" } else { "F32" }, shape, bytes)
    }

    fn integers(&mut self, dtype: &'static str, shape: &[i64], min: i64, max: i64) -> String {
        let mut bytes = Vec::new();
        for _ in 0..count(shape) {
            let x = self.random.between(min, max);
            match dtype {
                "I8" => bytes.extend((x as i8).to_le_bytes()),
                "I64" => bytes.extend(x.to_le_bytes()),
                _ => bytes.extend((x as i32).to_le_bytes()),
            }
        }
        self.model.constant(dtype, shape, bytes)
    }

    /// Returns a literal of the graph's type.
    fn literal(&self, x: f32) -> String {
        format!("{x}{}", if self.half { "f16" } else { "f" })
    }

    /// Adds a random operator, or leaves the graph unchanged if the operator is not applicable.
    fn step(&mut self) {
        match self.random.below(21) {
            0 | 1 => self.unary(),
            2 | 3 => self.binary(),
            4 | 5 => self.convolution(),
            6 => self.transposed_convolution(),
            7 => self.pool(),
            8 => self.global_pool(),
            9 => self.transpose(),
            10 => self.reshape(),
            11 => self.concatenate(),
            12 => self.slice(),
            13 => self.split(),
            14 => self.reduce(),
            15 => self.normalize(),
            16 => self.dense(),
            17 => self.matrix_product(),
            18 => self.pad(),
            19 => self.resize(),
            _ => self.gather(),
        }
    }

    fn unary(&mut self) {
        let x = self.any_value();
        let call = match self.random.below(12) {
            0 => format!("exp(clip({}, a_min=-4f, a_max=2f))", x.name),
            1 => format!("sqrt(abs({}))", x.name),
            2 => format!("clip({}, a_min=-0.75f, a_max=1.5f)", x.name),
            3 => format!("nn.leaky_relu({}, alpha=0.125f)", x.name),
            4 => {
                let axis = x.shape.len() - 1;
                format!("nn.prelu({}, {}, axis={axis})", x.name, self.weight(&[x.shape[axis]], 1.0))
            }
            i => format!("{}({})", ["nn.relu", "sigmoid", "tanh", "erf", "negative", "abs", "copy"][i - 5], x.name),
        };
        self.add(&call, &x.shape);
    }

    fn binary(&mut self) {
        let x = self.any_value();
        let name = self.random.pick(&["add", "multiply", "maximum", "minimum"]);
        let same_shape: Vec<Value> =
            self.values.iter().filter(|v| v.shape == x.shape && v.name != x.name).cloned().collect();
        if !same_shape.is_empty() && self.random.flip() {
            let y = self.random.pick(&same_shape);
            return self.add(&format!("{name}({}, {})", x.name, y.name), &x.shape);
        }
        // A constant that broadcasts: leading dimensions are missing, or dimensions are 1.
        let mut shape = x.shape.clone();
        for dim in &mut shape {
            if self.random.flip() {
                *dim = 1;
            }
        }
        let axis = self.random.below(shape.len());
        let y = match self.random.below(4) {
            0 => self.literal(0.5),
            _ => self.weight(&shape[axis..], 1.0),
        };
        let call = match self.random.below(2) {
            0 => format!("{name}({y}, {})", x.name),
            _ => format!("{name}({}, {y})", x.name),
        };
        self.add(&call, &x.shape);
    }

    /// Draws the window of a convolution or pooling operator: kernel, strides, padding, dilation, output size; `None`
    /// if the output would be empty.
    fn window(
        &mut self,
        size: [i64; 2],
        max_window: i64,
    ) -> Option<([i64; 2], [i64; 2], [i64; 4], [i64; 2], [i64; 2])> {
        let kernel = [self.random.between(1, max_window), self.random.between(1, max_window)];
        let strides = [self.random.between(1, 2), self.random.between(1, 3)];
        let dilation = [self.random.between(1, 2), self.random.between(1, 2)];
        let mut padding = [0; 4];
        let mut out = [0; 2];
        for axis in 0..2 {
            let span = (kernel[axis] - 1) * dilation[axis];
            padding[axis] = self.random.between(0, span.min(2));
            padding[axis + 2] = self.random.between(0, span.min(2));
            let free_size = size[axis] + padding[axis] + padding[axis + 2] - span - 1;
            if free_size < 0 {
                return None;
            }
            out[axis] = free_size / strides[axis] + 1;
        }
        Some((kernel, strides, padding, dilation, out))
    }

    fn convolution(&mut self) {
        let x = self.value_of_rank(4);
        let is_channels_last = self.random.below(3) == 0;
        let (c, h, w) = if is_channels_last { (3, 1, 2) } else { (1, 2, 3) };
        let channels = x.shape[c];
        let Some((kernel, strides, padding, dilation, out)) = self.window([x.shape[h], x.shape[w]], 4) else { return };
        let groups = match self.random.below(3) {
            0 => channels,
            1 if channels % 2 == 0 => 2,
            _ => 1,
        };
        let group_outputs = if groups == channels { self.random.between(1, 2) } else { self.random.between(1, 9) };
        if groups * group_outputs > 48 {
            return;
        }
        let inputs = channels / groups;
        let scale = 2f32.powi(-((inputs * kernel[0] * kernel[1]) as f32).log2().ceil() as i32 / 2);
        let (shape, layouts) = match is_channels_last {
            true => {
                ([kernel[0], kernel[1], inputs, groups * group_outputs], "data_layout=\"NHWC\", kernel_layout=\"HWIO\"")
            }
            false => {
                ([groups * group_outputs, inputs, kernel[0], kernel[1]], "data_layout=\"NCHW\", kernel_layout=\"OIHW\"")
            }
        };
        let weight = self.weight(&shape, scale);
        let call = format!(
            "nn.conv2d({}, {weight}, strides={strides:?}, padding={padding:?}, dilation={dilation:?}, groups={groups}, \
             channels={}, kernel_size={kernel:?}, {layouts})",
            x.name,
            groups * group_outputs
        );
        let mut result = x.shape.clone();
        (result[c], result[h], result[w]) = (groups * group_outputs, out[0], out[1]);
        self.add(&call, &result);
        if self.random.flip() {
            let bias = self.weight(&[groups * group_outputs], 1.0);
            let name = self.values[self.values.len() - 1].name.clone();
            self.add(&format!("nn.bias_add({name}, {bias}, axis={c})"), &result);
        }
    }

    fn transposed_convolution(&mut self) {
        let x = self.value_of_rank(4);
        if count(&x.shape) > 2048 {
            return;
        }
        let (kernel, strides) = (
            [self.random.between(1, 3), self.random.between(1, 3)],
            [self.random.between(1, 2), self.random.between(1, 2)],
        );
        let channels = self.random.between(1, 5);
        let weight = self.weight(&[x.shape[1], channels, kernel[0], kernel[1]], 0.25);
        let pad = [self.random.between(0, kernel[0] - 1), self.random.between(0, kernel[1] - 1)];
        let out: Vec<i64> = (0..2).map(|i| (x.shape[2 + i] - 1) * strides[i] + kernel[i] - 2 * pad[i]).collect();
        if out.iter().any(|&size| size < 1) {
            return;
        }
        let call = format!(
            "nn.conv2d_transpose({}, {weight}, strides={strides:?}, padding=[{1}, {2}, {1}, {2}], channels={channels}, \
             kernel_size={kernel:?})",
            x.name, pad[0], pad[1]
        );
        self.add(&call, &[x.shape[0], channels, out[0], out[1]]);
    }

    fn pool(&mut self) {
        let x = self.value_of_rank(4);
        let is_channels_last = self.random.below(3) == 0;
        let (h, w) = if is_channels_last { (1, 2) } else { (2, 3) };
        let Some((kernel, strides, mut padding, dilation, _)) = self.window([x.shape[h], x.shape[w]], 3) else {
            return;
        };
        // Every window covers at least one element of the data.
        for axis in 0..2 {
            padding[axis] = padding[axis].min(kernel[axis] - 1);
            padding[axis + 2] = padding[axis + 2].min(kernel[axis] - 1);
        }
        let mut out = [0; 2];
        for (axis, &size) in [x.shape[h], x.shape[w]].iter().enumerate() {
            let free_size = size + padding[axis] + padding[axis + 2] - (kernel[axis] - 1) * dilation[axis] - 1;
            if free_size < 0 {
                return;
            }
            out[axis] = free_size / strides[axis] + 1;
        }
        let name = self.random.pick(&["nn.max_pool2d", "nn.avg_pool2d"]);
        let include = if name == "nn.avg_pool2d" && self.random.flip() { ", count_include_pad=True" } else { "" };
        let call = format!(
            "{name}({}, pool_size={kernel:?}, strides={strides:?}, padding={padding:?}, dilation={dilation:?}, \
             layout=\"{}\"{include})",
            x.name,
            if is_channels_last { "NHWC" } else { "NCHW" }
        );
        let mut result = x.shape.clone();
        (result[h], result[w]) = (out[0], out[1]);
        self.add(&call, &result);
    }

    fn global_pool(&mut self) {
        let x = self.value_of_rank(4);
        let name = self.random.pick(&["nn.global_avg_pool2d", "nn.global_max_pool2d", "nn.adaptive_avg_pool2d"]);
        let mut result = x.shape.clone();
        if name.contains("adaptive") {
            (result[2], result[3]) =
                (self.random.between(1, x.shape[2].min(4)), self.random.between(1, x.shape[3].min(4)));
            let call = format!("{name}({}, output_size=[{}, {}])", x.name, result[2], result[3]);
            return self.add(&call, &result);
        }
        (result[2], result[3]) = (1, 1);
        self.add(&format!("{name}({})", x.name), &result);
    }

    fn transpose(&mut self) {
        let x = self.any_value();
        let mut axes: Vec<usize> = (0..x.shape.len()).collect();
        for i in (1..axes.len()).rev() {
            axes.swap(i, self.random.below(i + 1));
        }
        let shape: Vec<i64> = axes.iter().map(|&axis| x.shape[axis]).collect();
        self.add(&format!("transpose({}, axes={axes:?})", x.name), &shape);
    }

    fn reshape(&mut self) {
        let rank = self.random.between(1, 4) as usize;
        let x = self.value_of_rank(rank);
        self.values.push(x);
    }

    fn concatenate(&mut self) {
        let x = self.any_value();
        let axis = self.random.below(x.shape.len());
        let is_compatible = |v: &&Value| {
            v.shape.len() == x.shape.len() && (0..x.shape.len()).all(|d| d == axis || v.shape[d] == x.shape[d])
        };
        let other_values: Vec<Value> = self.values.iter().filter(is_compatible).cloned().collect();
        let mut operands = vec![x.clone()];
        for _ in 0..self.random.between(1, 2) {
            operands.push(self.random.pick(&other_values));
        }
        let mut shape = x.shape.clone();
        shape[axis] = operands.iter().map(|part| part.shape[axis]).sum();
        if count(&shape) > 8192 {
            return;
        }
        let names: Vec<String> = operands.into_iter().map(|part| part.name).collect();
        self.add(&format!("concatenate(({}), axis={axis})", names.join(", ")), &shape);
    }

    fn slice(&mut self) {
        let x = self.any_value();
        let axis = self.random.below(x.shape.len());
        let begin = self.random.between(0, x.shape[axis] - 1);
        let end = self.random.between(begin + 1, x.shape[axis]);
        let step = self.random.between(1, 2);
        let mut shape = x.shape.clone();
        shape[axis] = (end - begin + step - 1) / step;
        let call = format!("strided_slice({}, begin=[{begin}], end=[{end}], strides=[{step}], axes=[{axis}])", x.name);
        self.add(&call, &shape);
    }

    fn split(&mut self) {
        let x = self.any_value();
        let Some(axis) = (0..x.shape.len()).find(|&d| x.shape[d] > 1 && x.shape[d] % 2 == 0) else { return };
        let outputs = self.line(&format!("split({}, indices_or_sections=2, axis={axis})", x.name));
        let mut shape = x.shape.clone();
        shape[axis] /= 2;
        for part in 0..2 {
            self.add(&format!("copy({outputs}.{part})"), &shape);
        }
    }

    fn reduce(&mut self) {
        let x = self.any_value();
        let axis = self.random.below(x.shape.len());
        let name = self.random.pick(&["mean", "max", "min", "sum"]);
        let keep_axes = self.random.flip() || x.shape.len() == 1;
        let mut shape = x.shape.clone();
        match keep_axes {
            true => shape[axis] = 1,
            false => {
                shape.remove(axis);
            }
        }
        let keepdims = if keep_axes { "True" } else { "False" };
        self.add(&format!("{name}({}, axis=[{axis}], keepdims={keepdims})", x.name), &shape);
    }

    fn normalize(&mut self) {
        let x = self.any_value();
        let axis = self.random.below(x.shape.len());
        let call = match self.random.below(3) {
            0 => format!("nn.softmax({}, axis={axis})", x.name),
            1 => format!("nn.log_softmax({}, axis={axis})", x.name),
            _ => {
                let (gamma, beta) = (self.weight(&[x.shape[axis]], 1.0), self.weight(&[x.shape[axis]], 1.0));
                // The large epsilon avoids amplifying rows of nearly equal elements.
                format!("nn.layer_norm({}, {gamma}, {beta}, axis={axis}, epsilon=0.5f)", x.name)
            }
        };
        self.add(&call, &x.shape);
    }

    fn dense(&mut self) {
        let rank = self.random.between(2, 3) as usize;
        let x = self.value_of_rank(rank);
        let (depth, units) = (x.shape[rank - 1], self.random.between(1, 20));
        if depth > 512 {
            return;
        }
        let weight = self.weight(&[units, depth], 2f32.powi(-((depth as f32).log2().ceil() as i32) / 2));
        let mut shape = x.shape.clone();
        shape[rank - 1] = units;
        self.add(&format!("nn.dense({}, {weight}, units={units})", x.name), &shape);
    }

    fn matrix_product(&mut self) {
        let x = self.value_of_rank(3);
        if count(&x.shape) > 2048 || x.shape[1] > 64 {
            return;
        }
        let y = self.line(&format!("multiply({}, {})", x.name, self.literal(0.125)));
        let shape = [x.shape[0], x.shape[1], x.shape[1]];
        self.add(&format!("nn.batch_matmul({}, {y}, transpose_b=True)", x.name), &shape);
    }

    fn pad(&mut self) {
        let x = self.any_value();
        let mode = self.random.pick(&["constant", "edge", "reflect"]);
        let mut shape = x.shape.clone();
        let mut widths = Vec::new();
        for dim in &mut shape {
            let limit = if mode == "reflect" { (*dim - 1).min(2) } else { 2 };
            let pair = [self.random.between(0, limit), self.random.between(0, limit)];
            *dim += pair[0] + pair[1];
            widths.push(format!("{pair:?}"));
        }
        if count(&shape) > 8192 {
            return;
        }
        let value = self.literal(0.25);
        let call = format!("nn.pad({}, {value}, pad_width=[{}], pad_mode=\"{mode}\")", x.name, widths.join(", "));
        self.add(&call, &shape);
    }

    fn resize(&mut self) {
        let x = self.value_of_rank(4);
        let size = [self.random.between(1, 7), self.random.between(1, 7)];
        let shape = [x.shape[0], x.shape[1], size[0], size[1]];
        if count(&shape) > 8192 {
            return;
        }
        let method = self.random.pick(&["linear", "nearest_neighbor"]);
        // With integer scale factors, rounding of the coordinates does not change which neighbor is selected.
        let mode = match method {
            "linear" => self.random.pick(&["half_pixel", "asymmetric", "align_corners"]),
            _ => "asymmetric",
        };
        let (method, mode) =
            match size.iter().zip(&x.shape[2..]).all(|(target_size, source_size)| target_size % source_size == 0) {
                true => (method, mode),
                false => ("linear", "half_pixel"),
            };
        let call = format!(
            "image.resize2d({}, size={size:?}, layout=\"NCHW\", method=\"{method}\", \
             coordinate_transformation_mode=\"{mode}\")",
            x.name
        );
        self.add(&call, &shape);
    }

    fn gather(&mut self) {
        let x = self.any_value();
        let axis = self.random.below(x.shape.len());
        let n = self.random.between(1, 4);
        let dtype = self.random.pick(&["I32", "I64"]);
        let indices = self.integers(dtype, &[n], 0, x.shape[axis] - 1);
        let mut shape = x.shape.clone();
        shape[axis] = n;
        self.add(&format!("take({}, {indices}, axis={axis})", x.name), &shape);
    }

    /// Adds quantized layers over the first input. Their results are exact.
    fn quantized_layers(&mut self) {
        let x = self.values[0].clone();
        let zero = self.random.between(-3, 3);
        let mut quantized_value = self.line(&format!("qnn.quantize({}, 0.125f, {zero}, out_dtype=\"int8\")", x.name));
        let (channels, outputs) = (x.shape[1], self.random.between(1, 10));
        let Some((kernel, strides, padding, dilation, out)) = self.window([x.shape[2], x.shape[3]], 3) else { return };
        let weight = self.integers("I8", &[outputs, channels, kernel[0], kernel[1]], -127, 127);
        quantized_value = self.line(&format!(
            "qnn.conv2d({quantized_value}, {weight}, {zero}, 0, 0.125f, 0.03125f, strides={strides:?}, padding={padding:?}, \
             dilation={dilation:?}, channels={outputs}, kernel_size={kernel:?})"
        ));
        let rounding = self.random.pick(&["UPWARD", "TONEAREST", "TOEVEN"]);
        let exponent = self.random.between(-5, 5);
        quantized_value = self.line(&format!(
            "qnn.requantize({quantized_value}, 0.00390625f, 0, 0.3f, {exponent}, rounding=\"{rounding}\")"
        ));
        if self.random.flip() {
            quantized_value = self.line(&format!(
                "qnn.add({quantized_value}, {quantized_value}, 0.3f, {exponent}, 0.3f, {exponent}, 0.45f, 1)"
            ));
            quantized_value = self.line(&format!(
                "qnn.requantize({quantized_value}, 0.45f, 1, 0.3f, {exponent}, rounding=\"{rounding}\")"
            ));
        }
        self.add(
            &format!("qnn.dequantize({quantized_value}, 0.3f, {exponent})"),
            &[x.shape[0], outputs, out[0], out[1]],
        );
    }
}

/// Creates a random model from a seed.
fn model(seed: u64) -> Model {
    let mut random = Random::new(seed);
    let half = random.below(5) == 0;
    let image = [1, random.pick(&[1, 2, 3, 4, 8, 17]), random.between(3, 9), random.between(3, 9)];
    let vector = [random.between(1, 3), random.between(2, 40)];
    let inputs = vec![
        Value { name: "%image".into(), shape: image.to_vec() },
        Value { name: "%vector".into(), shape: vector.to_vec() },
    ];
    let mut graph = Graph { model: Model::default(), random, half, lines: String::new(), values: inputs, count: 0 };
    if !half && graph.random.flip() {
        graph.quantized_layers();
    }
    // Each rounding to float16 may change the last bit, so float16 graphs are kept short.
    let steps = if half { graph.random.between(1, 5) } else { graph.random.between(2, 14) };
    for _ in 0..steps {
        graph.step();
    }
    let output_values: Vec<Value> = graph.values.split_off(2);
    let outputs: Vec<String> = output_values.iter().rev().take(3).map(|value| value.name.clone()).collect();
    let outputs = if outputs.is_empty() { vec!["copy(%image)".to_owned()] } else { outputs };
    let ty = if half { "float16" } else { "float32" };
    graph.model.text = format!(
        "#[version = \"0.0.5\"]\ndef @main(%image: Tensor[{}, {ty}], %vector: Tensor[{}, {ty}]) {{\n{}  ({},)\n}}\n",
        dims(&image),
        dims(&vector),
        graph.lines,
        outputs.join(", ")
    );
    graph.model
}

/// Exports the models of the given seeds, and returns one report per model whose export fails or whose results differ
/// from the host's.
fn failures(seeds: impl Iterator<Item = u64>) -> Vec<String> {
    let targets = ["generic", "generic", "x86-64-v3"];
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut failed_seeds = Vec::new();
    for seed in seeds {
        let temp_dir = tempfile::tempdir().unwrap();
        let model = model(seed);
        let file = model.write(temp_dir.path());
        let target = targets[seed as usize % targets.len()];
        let target = if cpu.contains(" avx2 ") { target } else { "generic" };
        let dir = temp_dir.path().join("c").display().to_string();
        let result = byoc(["export", &file, "--c", &dir, "--target", target]);
        if result.code != 0 {
            failed_seeds.push(format!("seed {seed}: {}\n{}", result.err, model.text));
            continue;
        }
        let project = ExportedProject::open(&dir);
        let march = format!("-march={target}");
        let flags: Vec<&str> = match target {
            "generic" => SANITIZER_FLAGS.to_vec(),
            _ => [SANITIZER_FLAGS, &[&march]].concat(),
        };
        if let Err(text) = project.try_check("cc", &flags) {
            failed_seeds.push(format!("seed {seed}, {target}: {text}\n{}", model.text));
        }
    }
    failed_seeds
}

#[test]
fn a_few_random_graphs_match_the_host() {
    let failed_seeds = failures(0..6);
    assert!(failed_seeds.is_empty(), "{}", failed_seeds.join("\n"));
}

/// Tests many graphs; `BYOC_EXPORT_SEEDS` sets the first seed and the number of graphs, such as `1000,500`.
#[test]
#[ignore = "minutes of computation: cargo xtask export"]
fn random_graphs_match_the_host() {
    let text = std::env::var("BYOC_EXPORT_SEEDS").unwrap_or_else(|_| "100,200".into());
    let (first_seed, count) = text.split_once(',').expect("expected FIRST,COUNT in BYOC_EXPORT_SEEDS");
    let (first_seed, count): (u64, u64) = (first_seed.parse().unwrap(), count.parse().unwrap());
    let failed_seeds = failures(first_seed..first_seed + count);
    eprintln!("{} of {count} graphs differ from the host", failed_seeds.len());
    assert!(failed_seeds.is_empty(), "{}", failed_seeds.join("\n"));
}

/// Tests that an operator without C code generation is reported before any file is written.
#[test]
fn an_unknown_operator_among_others_is_refused() {
    let temp_dir = tempfile::tempdir().unwrap();
    let mut model = model(3);
    model.text = model.text.replacen("\n  (", "\n  (argsort(%image), ", 1);
    let file = model.write(temp_dir.path());
    let dir = temp_dir.path().join("c");
    byoc(["export", &file, "--c", &dir.display().to_string()]).fails_with("E0519").stderr_contains(&["argsort"]);
    assert!(!dir.exists());
}
