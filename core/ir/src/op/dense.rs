//! Matrix products and bias addition.

use super::conv::product_dtype;
use super::sum::{Sum, with_sum};
use super::{AttrDef, AttrKind, Cost, Default, Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::cancel::Ticks;
use crate::diag::{Diagnostic, codes};
use crate::ir::{Dim, Type};
use crate::op::facts::{LayoutRule, Properties};
use crate::tensor::{TensorView, TensorViewMut};

/// (Batched) matrix product with known dimensions: out[b, i, j] = sum over p of a[b, i, p] * b[b, p, j]. The result is
/// dense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatMulShape {
    /// Number of matrix products.
    pub batch: usize,
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Inner dimension: number of terms per element of the result.
    pub k: usize,
    /// Strides of the first operand along batch, i, p, in elements.
    pub a: [usize; 3],
    /// Strides of the second operand along batch, p, j, in elements.
    pub b: [usize; 3],
}

/// Returns true if the second operand of the operator is a weight of shape (units, in), quantized or not.
fn is_dense(name: &str) -> bool {
    matches!(name, "nn.dense" | "qnn.dense" | "qnn.contrib_dense_requantize" | "qnn.contrib_dense_dequantize")
}

impl MatMulShape {
    /// Creates the shape from attributes and shapes that the type relation accepted.
    pub fn new(params: &Params<'_>, a: &[usize], b: &[usize], out: &[usize]) -> MatMulShape {
        let transpose_a = params.bool("transpose_a");
        let transpose_b = is_dense(params.def().name) || params.bool("transpose_b");
        let is_batched = params.def().name.ends_with(".batch_matmul");
        let (rows, cols) = (a.len().saturating_sub(2), a.len() - 1);
        let (n_at, k_at) = if transpose_b { (b.len() - 2, b.len() - 1) } else { (b.len() - 1, b.len() - 2) };
        let (n, k) = (b[n_at], b[k_at]);
        let batch = if is_batched { out[0] } else { 1 };
        let m = match (is_batched || transpose_a, transpose_a) {
            (true, true) => a[cols],
            (true, false) => a[rows],
            (false, _) => a[..cols].iter().product(),
        };
        let step = |shape: &[usize], size: usize| if is_batched && shape[0] > 1 { size } else { 0 };
        MatMulShape {
            batch,
            m,
            n,
            k,
            a: if transpose_a { [step(a, m * k), 1, m] } else { [step(a, m * k), k, 1] },
            b: if transpose_b { [step(b, n * k), 1, k] } else { [step(b, n * k), n, 1] },
        }
    }
}

pub(super) const UNITS: AttrDef = AttrDef::new(
    "units",
    AttrKind::Int,
    Default::None,
    "columns of the result; derived from the second operand if None",
);
const OUT_DTYPE: AttrDef = AttrDef::new(
    "out_dtype",
    AttrKind::DType,
    Default::Str(""),
    "element type of the result; that of the data if empty",
);
pub(super) const TRANSPOSE_A: AttrDef =
    AttrDef::new("transpose_a", AttrKind::Bool, Default::Bool(false), "true if the first operand is transposed");
pub(super) const TRANSPOSE_B: AttrDef =
    AttrDef::new("transpose_b", AttrKind::Bool, Default::Bool(false), "true if the second operand is transposed");

/// Returns the largest dimension of the data, an upper bound on the inner dimension of a product.
fn largest_dimension(_: &Params<'_>, shapes: &[&[usize]], _: &[usize]) -> usize {
    shapes.first().and_then(|data| data.iter().copied().max()).unwrap_or(1)
}

operator! {
    name: "nn.dense",
    doc: "data * transposed weight: (..., in) and (units, in) produce (..., units). Integers are summed exactly.",
    inputs: &["data", "weight"],
    attrs: &[UNITS, OUT_DTYPE],
    pattern: OpPattern::OutEWiseFusable,
    relation: matmul_relation,
    reference: Some(matmul_reference),
    flops,
    properties: Properties::EXACT.sum(largest_dimension),
}

operator! {
    name: "nn.matmul",
    doc: "Product of two matrices, either of which may be transposed; the first operand may have further \
          leading axes unless it is transposed. Integers are summed exactly.",
    inputs: &["tensor_a", "tensor_b"],
    attrs: &[UNITS, OUT_DTYPE, TRANSPOSE_A, TRANSPOSE_B],
    pattern: OpPattern::OutEWiseFusable,
    relation: matmul_relation,
    reference: Some(matmul_reference),
    flops,
    properties: Properties::EXACT.sum(largest_dimension),
}

operator! {
    name: "nn.batch_matmul",
    doc: "One matrix product per batch: (b, m, k) and (b, k, n) produce (b, m, n); a batch of 1 is broadcast to the \
          batch of the other operand. In the text format, neither operand is transposed by default.",
    inputs: &["tensor_a", "tensor_b"],
    attrs: &[OUT_DTYPE, TRANSPOSE_A, TRANSPOSE_B],
    pattern: OpPattern::OutEWiseFusable,
    relation: batch_relation,
    reference: Some(matmul_reference),
    flops,
    properties: Properties::EXACT.sum(largest_dimension),
}

operator! {
    name: "nn.bias_add",
    doc: "data + bias, with a 1-d bias along one axis of data.",
    inputs: &["data", "bias"],
    attrs: &[AttrDef::new("axis", AttrKind::Int, Default::Int(1), "axis of the bias")],
    pattern: OpPattern::Broadcast,
    relation: bias_relation,
    reference: Some(bias_reference),
    flops: |cost| cost.ret_len(),
    properties: Properties::EXACT.layout(LayoutRule::Axis).ulps(1.0),
}

/// Returns the row and column dimensions of an operand, after transposition.
fn sides(dims: &[Dim], is_transposed: bool) -> (&Dim, &Dim) {
    let (rows, cols) = (&dims[dims.len() - 2], &dims[dims.len() - 1]);
    if is_transposed { (cols, rows) } else { (rows, cols) }
}

pub(super) fn matmul_relation(relation: &Relation<'_>) -> TypeResult {
    let (a, b) = (relation.tensor(0)?, relation.tensor(1)?);
    let is_dense_op = is_dense(relation.def.name);
    let transpose_a = relation.params.bool("transpose_a");
    if b.dims.len() != 2 {
        let rank = b.dims.len();
        return Err(relation.mismatch(format!("{}: expected 2 dimensions, found {rank}", relation.def.inputs[1])));
    }
    if a.dims.is_empty() || transpose_a && a.dims.len() != 2 {
        let expected = if transpose_a { "2" } else { "1 or more" };
        let rank = a.dims.len();
        let name = relation.def.inputs[0];
        return Err(relation.mismatch(format!("{name}: expected {expected} dimensions, found {rank}")));
    }
    let (k_b, n) = sides(&b.dims, is_dense_op || relation.params.bool("transpose_b"));
    let (lead, k_a) = match a.dims.split_last() {
        _ if transpose_a => (std::slice::from_ref(&a.dims[1]), &a.dims[0]),
        Some((last, lead)) => (lead, last),
        None => return Err(relation.mismatch("data: expected 1 or more dimensions, found 0")),
    };
    relation.same_dim("inner dimensions", k_a, k_b)?;
    let mut n = n.clone();
    if let Some(units) = relation.params.opt_int("units") {
        if units < 0 {
            return Err(
                relation.error(codes::types::BAD_ATTRIBUTE, format!("units: expected an integer >= 0, found {units}"))
            );
        }
        n = relation.same_dim(&format!("units and {}", relation.def.inputs[1]), &Dim::Fixed(units as usize), &n)?;
    }
    let dtype = product_dtype(relation, a.dtype, b.dtype)?;
    Ok(Type::tensor_of(dtype, lead.iter().cloned().chain([n])))
}

pub(super) fn batch_relation(relation: &Relation<'_>) -> TypeResult {
    let (a, b) = (relation.tensor(0)?, relation.tensor(1)?);
    for (name, ty) in [("tensor_a", a), ("tensor_b", b)] {
        if ty.dims.len() != 3 {
            return Err(relation.mismatch(format!("{name}: expected 3 dimensions, found {}", ty.dims.len())));
        }
    }
    let batch = broadcast(relation, &a.dims[0], &b.dims[0])?;
    let (m, k_a) = sides(&a.dims, relation.params.bool("transpose_a"));
    let (k_b, n) = sides(&b.dims, relation.params.bool("transpose_b"));
    relation.same_dim("inner dimensions", k_a, k_b)?;
    let dtype = product_dtype(relation, a.dtype, b.dtype)?;
    Ok(Type::tensor_of(dtype, [batch, m.clone(), n.clone()]))
}

fn broadcast(relation: &Relation<'_>, a: &Dim, b: &Dim) -> Result<Dim, Box<Diagnostic>> {
    match (a, b) {
        (Dim::Fixed(1), other) | (other, Dim::Fixed(1)) => Ok(other.clone()),
        (Dim::Fixed(_), _) | (_, Dim::Fixed(_)) => relation.same_dim("batches", a, b),
        _ if a == b => Ok(a.clone()),
        _ => Ok(Dim::Any),
    }
}

fn bias_relation(relation: &Relation<'_>) -> TypeResult {
    let (data, bias) = (relation.tensor(0)?, relation.tensor(1)?);
    let axis = relation.axis(relation.params.int("axis"), data.dims.len())?;
    if bias.dims.len() != 1 {
        return Err(relation.mismatch(format!("bias: expected 1 dimension, found {}", bias.dims.len())));
    }
    let dim = relation.same_dim("bias and data", &data.dims[axis], &bias.dims[0])?;
    let dtype = relation.same_dtype(data.dtype, bias.dtype)?;
    let mut dims = data.dims.to_vec();
    dims[axis] = dim;
    Ok(Type::tensor_of(dtype, dims))
}

/// Counts a multiply-add for every term of every element of the result.
pub(super) fn flops(cost: &Cost<'_>) -> u64 {
    let terms = cost.args.first().and_then(Type::as_tensor).and_then(|a| {
        let axis = if cost.params.bool("transpose_a") { a.dims.len().checked_sub(2)? } else { a.dims.len() - 1 };
        a.dims.get(axis).map(Dim::number)
    });
    2u64.saturating_mul(cost.ret_len()).saturating_mul(terms.unwrap_or(0) as u64)
}

fn matmul_reference(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let s = MatMulShape::new(&params, inputs[0].shape, inputs[1].shape, outputs[0].shape);
    with_sum!(inputs[0].dtype, A => {
        let mut out = vec![A::ZERO; outputs[0].len()];
        multiply::<A>(&s, &A::load(&inputs[0]), &A::load(&inputs[1]), &mut out);
        A::store(&out, &mut outputs[0]);
    });
    Ok(())
}

/// Computes the product by its definition, as nested loops.
pub(super) fn multiply<A: Sum>(s: &MatMulShape, a: &[A], b: &[A], out: &mut [A]) {
    let mut ticks = Ticks::every(s.k);
    for batch in 0..s.batch {
        for i in 0..s.m {
            for j in 0..s.n {
                if ticks.is_requested() {
                    return;
                }
                let mut sum = A::ZERO;
                for p in 0..s.k {
                    let factor = a[batch * s.a[0] + i * s.a[1] + p * s.a[2]];
                    sum = sum.plus_product(factor, b[batch * s.b[0] + p * s.b[1] + j * s.b[2]]);
                }
                out[(batch * s.m + i) * s.n + j] = sum;
            }
        }
    }
}

fn bias_reference(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let axis = params.int("axis");
    let axis = if axis < 0 { axis + inputs[0].shape.len() as i64 } else { axis } as usize;
    let inner: usize = inputs[0].shape[axis + 1..].iter().product();
    with_sum!(inputs[0].dtype, A => {
        let (mut x, bias) = (A::load(&inputs[0]), A::load(&inputs[1]));
        for (i, value) in x.iter_mut().enumerate() {
            *value = value.plus(bias[i / inner % bias.len()]);
        }
        A::store(&x, &mut outputs[0]);
    });
    Ok(())
}

const WEIGHT_LAYOUT: AttrDef = AttrDef::new(
    "weight_layout",
    AttrKind::Str,
    Default::Str("NC"),
    "name of the packed layout, which the shape of weight tells",
);

/// Returns the attributes of a product with a packed weight.
pub(super) const fn pack_attrs(out_dtype: AttrDef) -> [AttrDef; 3] {
    [UNITS, out_dtype, WEIGHT_LAYOUT]
}

operator! {
    name: "nn.contrib_dense_pack",
    doc: "nn.dense with a weight in blocks of units, (units / n, in, n), or in blocks of units and inputs, (units / n, \
          in / c, n, c).",
    inputs: &["data", "weight"],
    attrs: &pack_attrs(OUT_DTYPE),
    pattern: OpPattern::OutEWiseFusable,
    relation: pack_relation,
    reference: Some(|_, inputs, outputs| {
        let s = PackedShape::new(inputs[0].shape, inputs[1].shape);
        with_sum!(inputs[0].dtype, A => {
            let mut out = vec![A::ZERO; outputs[0].len()];
            s.multiply::<A>(&A::load(&inputs[0]), &A::load(&inputs[1]), &mut out);
            A::store(&out, &mut outputs[0]);
        });
        Ok(())
    }),
    flops: |cost| {
        let rows = cost.args.first().and_then(Type::as_tensor).and_then(|t| t.dims.first()).map_or(1, Dim::number);
        cost.arg_len(1).saturating_mul(2 * rows as u64)
    },
    properties: Properties::EXACT.sum(largest_dimension),
}

pub(super) fn pack_relation(relation: &Relation<'_>) -> TypeResult {
    let (data, weight) = (relation.tensor(0)?, relation.tensor(1)?);
    let (rows, inner, inputs, blocks, block) = match (&data.dims[..], &weight.dims[..]) {
        ([rows, inner], [blocks, inputs, block]) => (rows, inner, inputs.clone(), blocks, block),
        ([rows, inner], [blocks, inputs, block, part]) => {
            (rows, inner, Dim::product([inputs, part]).unwrap_or(Dim::Any), blocks, block)
        }
        _ => {
            let [data, weight] = [&relation.args[0], &relation.args[1]];
            return Err(relation.mismatch(format!("expected rank 2, and 3 or 4, found {data} and {weight}")));
        }
    };
    relation.same_dim("inner dimensions", inner, &inputs)?;
    let mut units = Dim::product([blocks, block]).unwrap_or(Dim::Any);
    if let Some(count) = relation.params.opt_int("units") {
        let count = usize::try_from(count);
        let count =
            count.map_err(|_| relation.error(codes::types::BAD_ATTRIBUTE, "units: expected an integer >= 0"))?;
        units = relation.same_dim("units and weight", &Dim::Fixed(count), &units)?;
    }
    let dtype = product_dtype(relation, data.dtype, weight.dtype)?;
    Ok(Type::tensor_of(dtype, [rows.clone(), units]))
}

/// Product with a packed weight, with known dimensions.
pub(super) struct PackedShape {
    rows: usize,
    inner: usize,
    units: usize,
    /// Units and inputs of a block.
    block: [usize; 2],
}

impl PackedShape {
    /// Creates the shape from shapes that the type relation accepted.
    pub(super) fn new(data: &[usize], weight: &[usize]) -> PackedShape {
        let block = [weight[2], weight.get(3).copied().unwrap_or(1)];
        PackedShape { rows: data[0], inner: data[1], units: weight[0] * weight[2], block }
    }

    /// Computes the product by its definition.
    pub(super) fn multiply<A: Sum>(&self, a: &[A], w: &[A], out: &mut [A]) {
        let [units, inputs] = self.block;
        let mut ticks = Ticks::every(self.inner);
        for (i, value) in out.iter_mut().enumerate().take(self.rows * self.units) {
            if ticks.is_requested() {
                return;
            }
            let (row, unit) = (i / self.units, i % self.units);
            for k in 0..self.inner {
                let block = unit / units * (self.inner / inputs) + k / inputs;
                let weight = w[(block * units + unit % units) * inputs + k % inputs];
                *value = value.plus_product(a[row * self.inner + k], weight);
            }
        }
    }
}
