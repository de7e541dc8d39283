//! Sparse tensors as several dense ones: coordinates and values (COO), or values, column indices and row pointers (CSR,
//! or BSR with a block of values for each index).

use super::create::{fill, scalar_argument};
use super::index::{in_bounds, integer_argument, integers};
use super::repeat::dims_of;
use super::reshape::unknown_dims;
use super::scalar::Writer;
use super::spatial::{self, CanonicalDims};
use super::sum::{Sum, with_sum};
use super::walk::strides;
use super::{AttrDef, AttrKind, Cost, Default, Evaluation, OpPattern, Params, ReferenceError, Relation, TypeResult};
use crate::diag::{Diagnostic, codes};
use crate::ir::{Dim, Type};
use crate::op::facts::{Properties, elements_of};
use crate::tensor::{TensorView, TensorViewMut};

/// Returns the type of the dense tensor with dimensions `dims`.
fn dense_type(relation: &Relation<'_>, dims: Vec<Dim>) -> TypeResult {
    let (indices, values) = (integer_argument(relation, 0)?, relation.tensor(1)?);
    relation.same_dtype(values.dtype, scalar_argument(relation, 2)?)?;
    let coordinates = match &indices.dims[..] {
        [] | [_] => Some(1),
        [_, coordinates] => Some(coordinates.fixed().unwrap_or(dims.len())),
        _ => None,
    };
    if coordinates != Some(dims.len()) || values.dims.len() > 1 {
        let [indices, values] = [&relation.args[0], &relation.args[1]];
        return Err(relation.mismatch(format!(
            "expected indices into rank {} and a scalar or vector of values, found {indices} and {values}",
            dims.len()
        )));
    }
    if let ([count, ..], [values]) = (&indices.dims[..], &values.dims[..]) {
        relation.same_dim("indices and values", count, values)?;
    }
    Ok(Type::tensor_of(values.dtype, dims))
}

fn to_dense(_: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    fill(&inputs[2], &mut outputs[0]);
    let (coordinates, rank) = (integers(&inputs[0], "sparse_indices")?, outputs[0].shape.len());
    let (shape, strides, size) = (outputs[0].shape, strides(outputs[0].shape), inputs[1].dtype.size());
    for (row, index) in coordinates.chunks_exact(rank.max(1)).enumerate() {
        let inside = index.iter().zip(shape).all(|(&i, &n)| usize::try_from(i).is_ok_and(|i| i < n));
        if inside {
            let target: usize = index.iter().zip(&strides).map(|(&i, s)| i as usize * s).sum();
            let source = if inputs[1].shape.is_empty() { 0 } else { row };
            let element = &inputs[1].data[source * size..][..size];
            outputs[0].data[target * size..][..size].copy_from_slice(element);
        }
    }
    Ok(())
}

operator! {
    name: "sparse_to_dense",
    doc: "A tensor of default_value with the values at the indices: one row of coordinates for each, or a scalar or \
          vector of positions in a vector. The last one of equal indices wins; indices out of range are ignored.",
    inputs: &["sparse_indices", "sparse_values", "default_value"],
    attrs: &[AttrDef::new("output_shape", AttrKind::Ints, Default::Required, "shape of the result")],
    relation: |relation| dense_type(relation, dims_of(relation, &relation.params.ints("output_shape"))?),
    reference: Some(to_dense),
}

operator! {
    name: "dyn.sparse_to_dense",
    doc: "sparse_to_dense with a shape computed at run time.",
    inputs: &["sparse_indices", "sparse_values", "default_value", "output_shape"],
    relation: |relation| {
        let dims = match relation.known_ints(3) {
            Some(shape) => dims_of(relation, &shape)?,
            None => unknown_dims(relation, 3)?,
        };
        dense_type(relation, dims)
    },
    reference: Some(to_dense),
}

operator! {
    name: "sparse_fill_empty_rows",
    doc: "A sparse tensor with an element default_value at the start of each row that has none: the indices and values \
          of the result, and for each row 1 if it was empty, 0 otherwise. The indices are in row-major order.",
    inputs: &["sparse_indices", "sparse_values", "dense_shape", "default_value"],
    relation: fill_rows_type,
    reference: Some(fill_rows),
}

/// Checks the indices of a sparse tensor in row-major order. Returns its number of rows, and how many of them are empty.
fn count_rows(indices: &[i64], coordinates: usize, shape: &[i64]) -> Result<[usize; 2], String> {
    let rows = shape.first().and_then(|&rows| usize::try_from(rows).ok());
    let rows = rows.ok_or_else(|| format!("dense_shape: expected a number of rows >= 0, found {shape:?}"))?;
    let (mut empty, mut next) = (rows, 0);
    for &row in indices.iter().step_by(coordinates.max(1)) {
        let position = usize::try_from(row).ok().filter(|&position| position < rows && position + 1 >= next);
        let position = position
            .ok_or_else(|| format!("sparse_indices: expected rows in ascending order and below {rows}, found {row}"))?;
        empty -= usize::from(position >= next);
        next = position + 1;
    }
    Ok([rows, empty])
}

fn fill_rows_type(relation: &Relation<'_>) -> TypeResult {
    let (indices, values) = (integer_argument(relation, 0)?, relation.tensor(1)?);
    integer_argument(relation, 2)?;
    relation.same_dtype(values.dtype, scalar_argument(relation, 3)?)?;
    let ([count, coordinates], [value_count], [rank]) =
        (&indices.dims[..], &values.dims[..], &relation.tensor(2)?.dims[..])
    else {
        let [a, b, c] = [0, 1, 2].map(|i| &relation.args[i]);
        return Err(relation.mismatch(format!("expected a matrix of indices and two vectors, found {a}, {b} and {c}")));
    };
    relation.same_dim("indices and values", count, value_count)?;
    let coordinates = relation.same_dim("coordinates and dimensions", coordinates, rank)?;
    let known = relation.known_ints(0).zip(relation.known_ints(2)).zip(coordinates.fixed());
    let (filled, rows) = match known {
        Some(((indices, shape), coordinates)) => {
            let counts = count_rows(&indices, coordinates, &shape);
            let [rows, empty] = counts.map_err(|message| relation.error(codes::types::BAD_ATTRIBUTE, message))?;
            let filled = (indices.len() / coordinates.max(1)) as i128 + empty as i128;
            (spatial::to_dim(relation, filled)?, spatial::to_dim(relation, rows as i128)?)
        }
        None => (Dim::Any, Dim::Any),
    };
    Ok(Type::tuple([
        Type::tensor_of(indices.dtype, [filled.clone(), coordinates]),
        Type::tensor_of(values.dtype, [filled]),
        Type::tensor_of(indices.dtype, [rows]),
    ]))
}

fn fill_rows(_: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let (indices, coordinates) = (integers(&inputs[0], "sparse_indices")?, inputs[0].shape[1]);
    let [rows, _] = count_rows(&indices, coordinates, &integers(&inputs[2], "dense_shape")?)?;
    let [all_indices, values, indicator] = outputs else { return Err("expected three results".into()) };
    let size = inputs[1].dtype.size();
    let (mut out, mut empty) = (Writer::new(all_indices), Writer::new(indicator));
    let (mut position, mut source) = (0, 0);
    let row_of = |source: usize| indices.get(source * coordinates).copied();
    for row in 0..rows {
        let is_empty = row_of(source) != Some(row as i64);
        empty.set_int(row, i128::from(is_empty));
        while is_empty || row_of(source) == Some(row as i64) {
            let element = if is_empty { &inputs[3].data[..size] } else { &inputs[1].data[source * size..][..size] };
            values.data[position * size..][..size].copy_from_slice(element);
            for axis in 0..coordinates {
                let coordinate = match axis {
                    _ if !is_empty => indices[source * coordinates + axis],
                    0 => row as i64,
                    _ => 0,
                };
                out.set_int(position * coordinates + axis, i128::from(coordinate));
            }
            position += 1;
            if is_empty {
                break;
            }
            source += 1;
        }
    }
    Ok(())
}

operator! {
    name: "sparse_reshape",
    doc: "Indices of a sparse tensor that is reshaped from prev_shape to new_shape, and the new shape, in which -1 is \
          inferred from the number of elements.",
    inputs: &["sparse_indices", "prev_shape", "new_shape"],
    pattern: OpPattern::Injective,
    relation: |relation| {
        let [indices, previous, new] =
            [integer_argument(relation, 0)?, integer_argument(relation, 1)?, integer_argument(relation, 2)?];
        let ([count, coordinates], [rank], [new_rank]) = (&indices.dims[..], &previous.dims[..], &new.dims[..]) else {
            let [a, b, c] = [0, 1, 2].map(|i| &relation.args[i]);
            return Err(relation.mismatch(format!("expected a matrix of indices and two vectors, found {a}, {b} and {c}")));
        };
        relation.same_dim("coordinates and dimensions", coordinates, rank)?;
        Ok(Type::tuple([
            Type::tensor_of(indices.dtype, [count.clone(), new_rank.clone()]),
            Type::tensor_of(new.dtype, [new_rank.clone()]),
        ]))
    },
    reference: Some(sparse_reshape),
}

/// Returns the product of dimensions.
fn volume(shape: &[i64]) -> Option<i64> {
    shape.iter().try_fold(1i64, |product, &n| product.checked_mul(n).filter(|_| n > 0))
}

fn sparse_reshape(_: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let (indices, previous) = (integers(&inputs[0], "sparse_indices")?, integers(&inputs[1], "prev_shape")?);
    let mut new = integers(&inputs[2], "new_shape")?;
    let mismatch = format!("expected shapes of equal size, found {previous:?} and {new:?}");
    let total = volume(&previous).ok_or(mismatch.clone())?;
    if let Some(inferred) = new.iter().position(|&n| n == -1) {
        new[inferred] = 1;
        let known = volume(&new).ok_or(mismatch.clone())?;
        new[inferred] = total / known;
    }
    if volume(&new) != Some(total) {
        return Err(mismatch);
    }
    let [new_indices, new_shape] = outputs else { return Err("expected two results".into()) };
    let mut out = Writer::new(new_indices);
    for (row, index) in indices.chunks_exact(previous.len().max(1)).enumerate() {
        let mut flat = 0;
        for (&i, &n) in index.iter().zip(&previous) {
            flat = flat * n + in_bounds(i, n as usize)? as i64;
        }
        for (axis, n) in new.iter().enumerate().rev() {
            out.set_int(row * new.len() + axis, i128::from(flat % n));
            flat /= n;
        }
    }
    let mut out = Writer::new(new_shape);
    new.iter().enumerate().for_each(|(i, &n)| out.set_int(i, i128::from(n)));
    Ok(())
}

/// Sparse matrix with blocks of values, of one element each in the CSR format.
struct Blocks<'a> {
    indices: Vec<i64>,
    pointers: Vec<i64>,
    /// Rows and columns of a block.
    block: [usize; 2],
    data: &'a TensorView<'a>,
}

impl<'a> Blocks<'a> {
    /// Reads a matrix with `columns` columns of which `inputs` are values, indices and row pointers, and checks it.
    fn new(inputs: &'a [TensorView<'a>], columns: usize) -> Result<Blocks<'a>, ReferenceError> {
        let (indices, pointers) = (integers(&inputs[1], "sparse_indices")?, integers(&inputs[2], "sparse_indptr")?);
        let block = match *inputs[0].shape {
            [_, rows, columns] => [rows, columns],
            [_, rows] => [rows, 1],
            _ => [1, 1],
        };
        let count = inputs[0].shape.first().copied().unwrap_or(0).min(indices.len()) as i64;
        if pointers.iter().any(|p| !(0..=count).contains(p)) || !pointers.is_sorted() {
            return Err(format!("sparse_indptr: expected ascending positions from 0 to {count}, found {pointers:?}"));
        }
        for &index in &indices {
            in_bounds(index, columns / block[1].max(1)).map_err(|error| format!("sparse_indices: {error}"))?;
        }
        Ok(Blocks { indices, pointers, block, data: &inputs[0] })
    }

    /// Calls `visit` with the row, the column, and the position in the data of each element.
    fn for_each(&self, mut visit: impl FnMut(usize, usize, usize)) {
        let [rows, columns] = self.block;
        for (block_row, bounds) in self.pointers.windows(2).enumerate() {
            for position in bounds[0] as usize..bounds[1] as usize {
                for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                    let target_column = self.indices[position] as usize * columns + column;
                    visit(block_row * rows + row, target_column, (position * rows + row) * columns + column);
                }
            }
        }
    }
}

/// Returns the number of rows of the sparse matrix in arguments `first` to `first + 2`, whose values have one of the
/// given ranks.
fn sparse_rows(relation: &Relation<'_>, first: usize, ranks: &[usize]) -> Result<Dim, Box<Diagnostic>> {
    let [data, indices, pointers] =
        [relation.tensor(first)?, integer_argument(relation, first + 1)?, integer_argument(relation, first + 2)?];
    let ([count], [pointer_count]) = (&indices.dims[..], &pointers.dims[..]) else {
        let [a, b] = [1, 2].map(|i| &relation.args[first + i]);
        return Err(relation.mismatch(format!("expected vectors of indices and row pointers, found {a} and {b}")));
    };
    if !ranks.contains(&data.dims.len()) {
        let found = &relation.args[first];
        return Err(relation.mismatch(format!("sparse_data: expected a rank in {ranks:?}, found {found}")));
    }
    relation.same_dim("values and indices", &data.dims[0], count)?;
    let block = data.dims.get(1).cloned().unwrap_or(Dim::Fixed(1));
    match (pointer_count.fixed(), block.fixed()) {
        (Some(0), _) => Err(relation.mismatch("sparse_indptr: expected at least one position, found none")),
        (Some(n), Some(block)) => spatial::to_dim(relation, (n as i128 - 1) * block as i128),
        _ => Ok(Dim::compute([pointer_count, &block], |[n, block]| n.offset(-1)?.mul(&block))),
    }
}

/// Estimates two operations for each stored value and each row of the dense operand.
fn product_flops(cost: &Cost<'_>) -> u64 {
    let rows = cost.args.first().and_then(Type::as_tensor).and_then(|t| t.dims.first()).map_or(1, Dim::number);
    cost.arg_len(1).saturating_mul(2 * rows as u64)
}

operator! {
    name: "nn.sparse_dense",
    doc: "Product of a dense matrix and a transposed sparse one, (m, k) and (n, k) to (m, n). With sparse_lhs, of a \
          sparse matrix (m, k) and the transposed dense one (n, k). The sparse matrix is in CSR format (values of rank \
          1) or BSR format (rank 3).",
    inputs: &["dense_data", "sparse_data", "sparse_indices", "sparse_indptr"],
    attrs: &[AttrDef::new("sparse_lhs", AttrKind::Bool, Default::Bool(false), "true if the left operand is sparse")],
    pattern: OpPattern::OutEWiseFusable,
    relation: |relation| {
        let (dense, rows) = (relation.tensor(0)?, sparse_rows(relation, 1, &[1, 3])?);
        relation.same_dtype(dense.dtype, relation.tensor(1)?.dtype)?;
        let [dense_rows, _] = &dense.dims[..] else {
            return Err(relation.mismatch(format!("dense_data: expected a matrix, found {}", relation.args[0])));
        };
        let mut dims = [dense_rows.clone(), rows];
        if relation.params.bool("sparse_lhs") {
            dims.reverse();
        }
        Ok(Type::tensor_of(dense.dtype, dims))
    },
    reference: Some(sparse_dense),
    flops: product_flops,
    properties: Properties::EXACT.sum(elements_of::<1>),
}

fn sparse_dense(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let (dense_rows, inner) = (inputs[0].shape[0], inputs[0].shape[1]);
    let matrix = Blocks::new(&inputs[1..], inner)?;
    let columns = outputs[0].shape[1];
    let is_left = params.bool("sparse_lhs");
    with_sum!(inputs[0].dtype, A => {
        let (dense, values) = (A::load(&inputs[0]), A::load(matrix.data));
        let mut out = vec![A::ZERO; outputs[0].len()];
        matrix.for_each(|row, column, position| {
            for dense_row in 0..dense_rows {
                let target = if is_left { row * columns + dense_row } else { dense_row * columns + row };
                out[target] = out[target].plus_product(dense[dense_row * inner + column], values[position]);
            }
        });
        A::store(&out, &mut outputs[0]);
    });
    Ok(())
}

operator! {
    name: "nn.sparse_add",
    doc: "Sum of a dense matrix and a sparse one in CSR format.",
    inputs: &["dense_data", "sparse_data", "sparse_indices", "sparse_indptr"],
    relation: |relation| {
        let (dense, rows) = (relation.tensor(0)?, sparse_rows(relation, 1, &[1])?);
        relation.same_dtype(dense.dtype, relation.tensor(1)?.dtype)?;
        let [dense_rows, columns] = &dense.dims[..] else {
            return Err(relation.mismatch(format!("dense_data: expected a matrix, found {}", relation.args[0])));
        };
        Ok(Type::tensor_of(dense.dtype, [relation.same_dim("rows", dense_rows, &rows)?, columns.clone()]))
    },
    reference: Some(|_, inputs, outputs| {
        let columns = inputs[0].shape[1];
        let matrix = Blocks::new(&inputs[1..], columns)?;
        with_sum!(inputs[0].dtype, A => {
            let (mut out, values) = (A::load(&inputs[0]), A::load(matrix.data));
            matrix.for_each(|row, column, position| {
                let target = row * columns + column;
                out[target] = out[target].plus(values[position]);
            });
            A::store(&out, &mut outputs[0]);
        });
        Ok(())
    }),
    flops: |cost| cost.arg_len(1),
    properties: Properties::EXACT.ulps(1.0),
}

operator! {
    name: "nn.sparse_transpose",
    doc: "Values, indices and row pointers of a transposed square matrix in CSR format.",
    inputs: &["sparse_data", "sparse_indices", "sparse_indptr"],
    pattern: OpPattern::OutEWiseFusable,
    relation: |relation| {
        sparse_rows(relation, 0, &[1])?;
        Ok(Type::tuple(relation.args.iter().cloned()))
    },
    reference: Some(|_, inputs, outputs| {
        let rows = inputs[2].shape[0] - 1;
        let matrix = Blocks::new(inputs, rows)?;
        let mut entries = Vec::with_capacity(inputs[0].len());
        matrix.for_each(|row, column, position| entries.push((column, row, position)));
        entries.sort_by_key(|&(column, ..)| column);
        let [data, indices, pointers] = outputs else { return Err("expected three results".into()) };
        let size = inputs[0].dtype.size();
        for (target, &(_, _, source)) in data.data.chunks_exact_mut(size).zip(&entries) {
            target.copy_from_slice(&inputs[0].data[source * size..][..size]);
        }
        Writer::new(indices).store(entries.iter().map(|&(_, row, _)| row as f64));
        let count = |column: usize| entries.partition_point(|&(c, ..)| c < column) as f64;
        Writer::new(pointers).store((0..=rows).map(count));
        Ok(())
    }),
}

operator! {
    name: "nn.sparse_conv2d",
    doc: "Convolution with a sparse kernel in BSR format, of stride 1 and padded to the size of the data. The rows of the \
          kernel are output channels, the columns the elements of a window: all channels of one position after \
          another in layout NHWC, all positions of one channel after another in layout NCHW.",
    inputs: &["dense_data", "sparse_data", "sparse_indices", "sparse_indptr"],
    attrs: &[
        AttrDef::new("layout", AttrKind::Str, Default::Str("NHWC"), "NHWC or NCHW"),
        AttrDef::new("kernel_size", AttrKind::Ints, Default::Ints(&[1, 1]), "[1, 1] or [3, 3]"),
    ],
    pattern: OpPattern::OutEWiseFusable,
    relation: sparse_conv_type,
    reference: Some(sparse_conv),
    flops: |cost| {
        let plane = cost.ret.as_tensor().map_or(1, |t| t.dims.iter().take(3).map(Dim::number).product::<usize>());
        cost.arg_len(1).saturating_mul(2 * plane as u64)
    },
    properties: Properties::EXACT.sum(elements_of::<1>),
}

fn sparse_conv_type(relation: &Relation<'_>) -> TypeResult {
    let (data, rows) = (relation.tensor(0)?, sparse_rows(relation, 1, &[2, 3])?);
    relation.same_dtype(data.dtype, relation.tensor(1)?.dtype)?;
    let kernel = relation.params.ints("kernel_size");
    if kernel != [1, 1] && kernel != [3, 3] {
        let message = format!("kernel_size: expected [1, 1] or [3, 3], found {kernel:?}");
        return Err(relation.error(codes::types::BAD_ATTRIBUTE, message));
    }
    let channels = match relation.params.string("layout").as_str() {
        "NHWC" => 3,
        "NCHW" => 1,
        other => {
            let message = format!("layout: expected \"NHWC\" or \"NCHW\", found \"{other}\"");
            return Err(relation.error(codes::types::BAD_ATTRIBUTE, message));
        }
    };
    if data.dims.len() != 4 {
        return Err(relation.mismatch(format!("dense_data: expected 4 dimensions, found {}", relation.args[0])));
    }
    let mut dims = data.dims.to_vec();
    dims[channels] = rows;
    Ok(Type::tensor_of(data.dtype, dims))
}

fn sparse_conv(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let layout = params.string("layout");
    let data = CanonicalDims::new(inputs[0].shape, &layout, "NC");
    let out = CanonicalDims::new(outputs[0].shape, &layout, "NC");
    let side = params.ints("kernel_size")[0] as usize;
    let [batch, channels, _, height, width] = data.size;
    let matrix = Blocks::new(&inputs[1..], channels * side * side)?;
    with_sum!(inputs[0].dtype, A => {
        let (source, values) = (A::load(&inputs[0]), A::load(matrix.data));
        let mut result = vec![A::ZERO; outputs[0].len()];
        matrix.for_each(|row, column, position| {
            let (tap, channel) = match layout.as_str() {
                "NHWC" => (column / channels, column % channels),
                _ => (column % (side * side), column / (side * side)),
            };
            for (n, y) in (0..batch).flat_map(|n| (0..height).map(move |y| (n, y))) {
                for x in 0..width {
                    let h = (y + tap / side).checked_sub(side / 2).filter(|&h| h < height);
                    let w = (x + tap % side).checked_sub(side / 2).filter(|&w| w < width);
                    if let (Some(h), Some(w)) = (h, w) {
                        let target = out.at(n, row, [0, y, x]);
                        let element = source[data.at(n, channel, [0, h, w])];
                        result[target] = result[target].plus_product(element, values[position]);
                    }
                }
            }
        });
        A::store(&result, &mut outputs[0]);
    });
    Ok(())
}
