//! Convolutions and pooling in blocked layouts (`NCHW8c`, `OIHW8i8o`), defined as the operator on plain tensors between
//! two layout conversions. Only channels are split into blocks.

use super::layout::{Layout, relayout, relayout_dims};
use super::{Params, Reference, ReferenceError, Relation, TypeResult};
use crate::diag::codes;
use crate::ir::{AttrValue, Attrs, Type};
use crate::tensor::{AlignedBytes, Shape, Tensor, TensorView, TensorViewMut};

/// Call with a blocked layout, described by the equivalent call on plain tensors.
pub struct BlockedCall {
    /// Attributes of the plain call.
    pub attrs: Attrs,
    /// Layouts of the leading inputs as (blocked, plain) pairs; the remaining inputs have no layout.
    pub inputs: Vec<(String, String)>,
    /// Layout of the result, as (blocked, plain).
    pub output: (String, String),
}

impl BlockedCall {
    /// Returns the plain call; `None` if no layout of the call has blocks.
    pub fn of(params: &Params<'_>) -> Option<BlockedCall> {
        let names: &[&str] = match params.def().attr("kernel_layout") {
            Some(_) => &["data_layout", "kernel_layout"],
            None => &["layout"],
        };
        let layout_attr = |name: &str| params.attrs().get(name).and_then(AttrValue::as_str);
        let has_blocks =
            |name: &str| layout_attr(name).is_some_and(|text| text.contains(|c: char| c.is_ascii_lowercase()));
        if !names.iter().chain(&["out_layout"]).any(|name| has_blocks(name)) {
            return None;
        }
        let pair = |layout: String| {
            let unblocked: String = layout.chars().filter(|c| c.is_ascii_uppercase()).collect();
            (layout, unblocked)
        };
        let inputs: Vec<(String, String)> = names.iter().map(|name| pair(params.string(name))).collect();
        let out = params.string("out_layout");
        let output = if out.is_empty() { inputs.first()?.clone() } else { pair(out) };
        let mut attrs = params.attrs().with("out_layout", output.1.as_str());
        for (name, (_, unblocked)) in names.iter().zip(&inputs) {
            attrs = attrs.with(name, unblocked.as_str());
        }
        Some(BlockedCall { attrs, inputs, output })
    }
}

/// Returns the dimensions of a blocked tensor in the plain layout.
pub fn plain_shape(layout: &str, shape: &[usize]) -> Option<Shape> {
    let layout = Layout::parse(layout)?;
    let size = |(letter, block): &(char, Option<usize>), size: &usize| {
        block.is_none().then(|| Some(size * layout.factor(*letter)?))
    };
    layout.0.iter().zip(shape).filter_map(|(dim, n)| size(dim, n)).collect()
}

/// Infers the type of a call with blocked layouts, using `plain`, the type relation for plain layouts; `None` if no
/// layout has blocks.
pub(super) fn relation(relation: &Relation<'_>, plain: fn(&Relation<'_>) -> TypeResult) -> Option<TypeResult> {
    let blocked = BlockedCall::of(&relation.params)?;
    let read = |text: &str| {
        let layout = Layout::parse(text).ok_or_else(|| {
            relation.error(codes::types::BAD_ATTRIBUTE, format!("expected a layout such as NCHW8c, found \"{text}\""))
        })?;
        match layout.0.iter().find(|(letter, part)| part.is_some() && !"COI".contains(*letter)) {
            None => Ok(layout),
            Some((letter, _)) => Err(relation.error(
                codes::types::BAD_ATTRIBUTE,
                format!("layout \"{text}\": expected blocks of channels only, found blocks of axis {letter}"),
            )),
        }
    };
    let infer = || {
        let mut args = relation.args.to_vec();
        for (i, (source, target)) in blocked.inputs.iter().enumerate() {
            let data = relation.tensor(i)?;
            let dims = relayout_dims(relation, &data.dims, (source, &read(source)?), &read(target)?)?;
            args[i] = Type::tensor_of(data.dtype, dims);
        }
        let inner =
            Relation { params: Params::new(relation.def, &blocked.attrs), args: &args, values: &[], ..*relation };
        let result = plain(&inner)?;
        let Some(tensor) = result.as_tensor() else { return Ok(result) };
        let (target, source) = (&blocked.output.0, &blocked.output.1);
        let dims = relayout_dims(relation, &tensor.dims, (source, &read(source)?), &read(target)?)?;
        Ok(Type::tensor_of(tensor.dtype, dims))
    };
    Some(infer())
}

/// Evaluates a call with blocked layouts, using `plain`, the reference for plain layouts; `None` if no layout has
/// blocks.
pub(super) fn reference(
    params: &Params<'_>,
    inputs: &[TensorView<'_>],
    outputs: &mut [TensorViewMut<'_>],
    plain: Reference,
) -> Option<Result<(), ReferenceError>> {
    let blocked = BlockedCall::of(params)?;
    let mut compute = || {
        let layout = |text: &str| {
            Layout::parse(text).ok_or_else(|| format!("expected a layout such as NCHW8c, found \"{text}\""))
        };
        let mut plain_inputs: Vec<Tensor> = Vec::with_capacity(blocked.inputs.len());
        for (input, (from, to)) in inputs.iter().zip(&blocked.inputs) {
            plain_inputs.push(plain_tensor(input, &layout(from)?, &layout(to)?, from)?);
        }
        let rest = inputs.iter().skip(plain_inputs.len()).copied();
        let views: Vec<TensorView<'_>> = plain_inputs.iter().map(Tensor::view).chain(rest).collect();
        let (to, from) = (&blocked.output.0, &blocked.output.1);
        let shape = plain_shape(to, outputs[0].shape).ok_or_else(|| size_error(to, outputs[0].shape))?;
        let dtype = outputs[0].dtype;
        let mut bytes = AlignedBytes::zeroed(outputs[0].data.len()).map_err(|e| e.to_string())?;
        let view = TensorViewMut { dtype, shape: &shape, data: bytes.as_mut() };
        plain(Params::new(params.def(), &blocked.attrs), &views, &mut [view])?;
        let result = TensorView { dtype, shape: &shape, data: bytes.as_ref() };
        relayout(&layout(from)?, &layout(to)?, &result, &mut outputs[0]);
        Ok(())
    };
    Some(compute())
}

fn size_error(layout: &str, shape: &[usize]) -> ReferenceError {
    format!("layout \"{layout}\": expected plain dimensions < 2^64, found blocked dimensions {shape:?}")
}

fn plain_tensor(
    input: &TensorView<'_>,
    source: &Layout,
    target: &Layout,
    text: &str,
) -> Result<Tensor, ReferenceError> {
    let shape = plain_shape(text, input.shape).ok_or_else(|| size_error(text, input.shape))?;
    let filled = Tensor::build(input.dtype, &shape, |bytes| {
        let mut view = TensorViewMut { dtype: input.dtype, shape: &shape, data: bytes };
        relayout(source, target, input, &mut view);
    });
    filled.map_err(|e| e.to_string())
}
