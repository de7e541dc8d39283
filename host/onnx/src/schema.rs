//! Element types that the operators of the standard domain accept, across all opset versions.

use byoc_ir::tensor::DType;

/// Accepted classes of element types, per input: `f` for floating-point types, `i` for integers, `b` for Booleans. `..`
/// repeats the preceding entry for all remaining inputs; otherwise, inputs without an entry accept any type. 8-bit
/// floats and types of fewer than 8 bits are not restricted here: converters accept them where the operator defines
/// them.
const INPUTS: &[(&str, &[&str])] = &[
    ("Abs", &["fi"]),
    ("Acos", &["f"]),
    ("Acosh", &["f"]),
    ("Add", &["fi", "fi"]),
    ("AffineGrid", &["f", "i"]),
    ("And", &["b", "b"]),
    ("ArgMax", &["fi"]),
    ("ArgMin", &["fi"]),
    ("Asin", &["f"]),
    ("Asinh", &["f"]),
    ("Atan", &["f"]),
    ("Atanh", &["f"]),
    ("Attention", &["f", "f", "f", "fib", "f", "f", "i"]),
    ("AveragePool", &["f"]),
    ("BatchNormalization", &["f", "f", "f", "f", "f"]),
    ("BitShift", &["i", "i"]),
    ("BitwiseAnd", &["i", "i"]),
    ("BitwiseNot", &["i"]),
    ("BitwiseOr", &["i", "i"]),
    ("BitwiseXor", &["i", "i"]),
    ("BlackmanWindow", &["i"]),
    ("Ceil", &["f"]),
    ("Celu", &["f"]),
    ("CenterCropPad", &["fib", "i"]),
    ("Clip", &["fi", "fi", "fi"]),
    ("Col2Im", &["fib", "i", "i"]),
    ("Compress", &["fib", "b"]),
    ("ConstantOfShape", &["i"]),
    ("Conv", &["f", "f", "f"]),
    ("ConvInteger", &["i", "i", "i", "i"]),
    ("ConvTranspose", &["f", "f", "f"]),
    ("Cos", &["f"]),
    ("Cosh", &["f"]),
    ("CumProd", &["fi", "i"]),
    ("CumSum", &["fi", "i"]),
    ("DFT", &["f", "i", "i"]),
    ("DeformConv", &["f", "f", "f", "f", "f"]),
    ("DequantizeLinear", &["i", "f", "i"]),
    ("Det", &["f"]),
    ("Div", &["fi", "fi"]),
    ("Dropout", &["f", "f", "b"]),
    ("DynamicQuantizeLinear", &["f"]),
    ("Einsum", &["fi", ".."]),
    ("Elu", &["f"]),
    ("Erf", &["fi"]),
    ("Exp", &["f"]),
    ("Expand", &["fib", "i"]),
    ("Floor", &["f"]),
    ("GRU", &["f", "f", "f", "f", "i", "f"]),
    ("Gather", &["fib", "i"]),
    ("GatherElements", &["fib", "i"]),
    ("GatherND", &["fib", "i"]),
    ("Gelu", &["f"]),
    ("Gemm", &["fi", "fi", "fi"]),
    ("GlobalAveragePool", &["f"]),
    ("GlobalLpPool", &["f"]),
    ("GlobalMaxPool", &["f"]),
    ("Greater", &["fi", "fi"]),
    ("GreaterOrEqual", &["fi", "fi"]),
    ("GridSample", &["fib", "f"]),
    ("GroupNormalization", &["f", "f", "f"]),
    ("HammingWindow", &["i"]),
    ("HannWindow", &["i"]),
    ("HardSigmoid", &["f"]),
    ("HardSwish", &["f"]),
    ("Hardmax", &["f"]),
    ("If", &["b"]),
    ("InstanceNormalization", &["f", "f", "f"]),
    ("IsInf", &["f"]),
    ("IsNaN", &["f"]),
    ("LRN", &["f"]),
    ("LSTM", &["f", "f", "f", "f", "i", "f", "f", "f"]),
    ("LayerNormalization", &["f", "f", "f"]),
    ("LeakyRelu", &["f"]),
    ("Less", &["fi", "fi"]),
    ("LessOrEqual", &["fi", "fi"]),
    ("Log", &["f"]),
    ("LogSoftmax", &["f"]),
    ("Loop", &["i", "b"]),
    ("LpNormalization", &["f"]),
    ("LpPool", &["f"]),
    ("MatMul", &["fi", "fi"]),
    ("MatMulInteger", &["i", "i", "i", "i"]),
    ("Max", &["fi", ".."]),
    ("MaxPool", &["fi"]),
    ("MaxUnpool", &["f", "i", "i"]),
    ("Mean", &["f", ".."]),
    ("MeanVarianceNormalization", &["f"]),
    ("MelWeightMatrix", &["i", "i", "i", "f", "f"]),
    ("Min", &["fi", ".."]),
    ("Mish", &["f"]),
    ("Mod", &["fi", "fi"]),
    ("Mul", &["fi", "fi"]),
    ("Neg", &["fi"]),
    ("NegativeLogLikelihoodLoss", &["f", "i", "f"]),
    ("NonMaxSuppression", &["f", "f", "i", "f", "f"]),
    ("Not", &["b"]),
    ("OneHot", &["fi", "fi"]),
    ("Or", &["b", "b"]),
    ("PRelu", &["fi", "fi"]),
    ("Pad", &["fib", "i", "fib", "i"]),
    ("Pow", &["fi", "fi"]),
    ("QLinearConv", &["i", "f", "i", "i", "f", "i", "f", "i", "i"]),
    ("QLinearMatMul", &["i", "f", "i", "i", "f", "i", "f", "i"]),
    ("QuantizeLinear", &["fi", "fi", "i"]),
    ("RMSNormalization", &["f", "f"]),
    ("RNN", &["f", "f", "f", "f", "i", "f"]),
    ("Range", &["fi", "fi", "fi"]),
    ("Reciprocal", &["f"]),
    ("ReduceL1", &["fi", "i"]),
    ("ReduceL2", &["fi", "i"]),
    ("ReduceLogSum", &["fi", "i"]),
    ("ReduceLogSumExp", &["fi", "i"]),
    ("ReduceMax", &["fib", "i"]),
    ("ReduceMean", &["fi", "i"]),
    ("ReduceMin", &["fib", "i"]),
    ("ReduceProd", &["fi", "i"]),
    ("ReduceSum", &["fi", "i"]),
    ("ReduceSumSquare", &["fi", "i"]),
    ("Relu", &["fi"]),
    ("Reshape", &["fib", "i"]),
    ("ReverseSequence", &["fib", "i"]),
    ("RoiAlign", &["f", "f", "i"]),
    ("RotaryEmbedding", &["f", "f", "f", "i"]),
    ("Round", &["f"]),
    ("STFT", &["f", "i", "f", "i"]),
    ("Scatter", &["fib", "i"]),
    ("ScatterElements", &["fib", "i"]),
    ("ScatterND", &["fib", "i"]),
    ("Selu", &["f"]),
    ("SequenceAt", &["fib", "i"]),
    ("SequenceErase", &["fib", "i"]),
    ("SequenceInsert", &["fib", "fib", "i"]),
    ("Shrink", &["fi"]),
    ("Sigmoid", &["f"]),
    ("Sign", &["fi"]),
    ("Sin", &["f"]),
    ("Sinh", &["f"]),
    ("Slice", &["fib", "i", "i", "i", "i"]),
    ("Softmax", &["f"]),
    ("SoftmaxCrossEntropyLoss", &["f", "i", "f"]),
    ("Softplus", &["f"]),
    ("Softsign", &["f"]),
    ("Split", &["fib", "fi"]),
    ("SplitToSequence", &["fib", "i"]),
    ("Sqrt", &["f"]),
    ("Squeeze", &["fib", "i"]),
    ("Sub", &["fi", "fi"]),
    ("Sum", &["f", ".."]),
    ("SwiGLU", &["f", "f"]),
    ("Swish", &["f"]),
    ("Tan", &["f"]),
    ("Tanh", &["f"]),
    ("TensorScatter", &["fib", "fib", "i"]),
    ("ThresholdedRelu", &["f"]),
    ("Tile", &["fib", "fi", "f"]),
    ("TopK", &["fi", "i"]),
    ("Trilu", &["fib", "i"]),
    ("Unsqueeze", &["fib", "i"]),
    ("Upsample", &["fib", "f"]),
    ("Where", &["b"]),
    ("Xor", &["b", "b"]),
];

/// Checks the element type of input `i` of an operator.
///
/// # Errors
/// If the operator does not accept this type. The message states the accepted types.
pub fn check_input(op: &str, i: usize, dtype: DType) -> Result<(), String> {
    let Ok(row) = INPUTS.binary_search_by_key(&op, |(name, _)| name) else { return Ok(()) };
    let inputs = INPUTS[row].1;
    let classes = match inputs {
        [.., repeated_input, ".."] if i + 2 > inputs.len() => repeated_input,
        [.., ".."] if i + 2 == inputs.len() => inputs[i],
        inputs => inputs.get(i).copied().unwrap_or("fib"),
    };
    let class = match dtype {
        dtype if dtype.is_small_int() || dtype.is_small_float() => return Ok(()),
        DType::Bool => 'b',
        dtype if dtype.is_float() => 'f',
        _ => 'i',
    };
    if classes.contains(class) {
        return Ok(());
    }
    let class_names: Vec<&str> = [('f', "floating-point numbers"), ('i', "integers"), ('b', "Booleans")]
        .into_iter()
        .filter_map(|(class, class_names)| classes.contains(class).then_some(class_names))
        .collect();
    Err(format!("input {i}: expected {}, found {dtype}", class_names.join(" or ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted() {
        assert!(INPUTS.is_sorted_by_key(|(name, _)| name));
    }

    #[test]
    fn checks_each_input() {
        let message = |op, i, dtype| check_input(op, i, dtype).err();
        assert_eq!(message("Not", 0, DType::F32).as_deref(), Some("input 0: expected Booleans, found float32"));
        assert_eq!(
            message("Sqrt", 0, DType::I32).as_deref(),
            Some("input 0: expected floating-point numbers, found int32")
        );
        assert_eq!(
            message("Sum", 4, DType::Bool).as_deref(),
            Some("input 4: expected floating-point numbers, found bool")
        );
        assert_eq!(message("Where", 0, DType::F32).as_deref(), Some("input 0: expected Booleans, found float32"));
        assert_eq!([message("Where", 1, DType::Bool), message("Concat", 7, DType::Bool)], [None, None]);
        assert_eq!(
            message("Add", 1, DType::Bool).as_deref(),
            Some("input 1: expected floating-point numbers or integers, found bool")
        );
    }
}
