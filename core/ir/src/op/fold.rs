//! Sums of overlapping blocks: the adjoint of block extraction from an image.

use super::scalar::Writer;
use super::walk::{for_each_index, offset, strides};
use super::{AttrDef, AttrKind, Default, Evaluation, Params, Relation, TypeResult};
use crate::diag::codes;
use crate::ir::{Dim, Type};
use crate::op::facts::{Properties, elements_of};
use crate::tensor::{TensorView, TensorViewMut};

operator! {
    name: "nn.col2im",
    doc: "Adds blocks to an image of zeros, each at its position: data is (n, c * block elements, blocks), the result (n, \
          c, image_shape..). The blocks are those of a convolution over the image with this kernel, in row-major \
          order. image_shape and block_shape are integer vectors, which may be computed at run time.",
    inputs: &["data", "image_shape", "block_shape"],
    attrs: &[
        AttrDef::new("strides", AttrKind::Ints, Default::Ints(&[1]), "distance between blocks per axis"),
        AttrDef::new("padding", AttrKind::Ints, Default::Ints(&[0]), "padding before all axes, then after all axes"),
        AttrDef::new("dilation", AttrKind::Ints, Default::Ints(&[1]), "distance between elements of a block"),
    ],
    relation: fold_type,
    reference: Some(fold),
    flops: |cost| cost.arg_len(0),
    properties: Properties::EXACT.sum(elements_of::<2>),
}

fn fold_type(relation: &Relation<'_>) -> TypeResult {
    let data = relation.tensor(0)?;
    let axes = relation.tensor(1)?.dims.first().and_then(Dim::fixed);
    let Some(axes) = axes.filter(|_| data.dims.len() == 3) else {
        let [a, b] = [&relation.args[0], &relation.args[1]];
        return Err(
            relation.mismatch(format!("expected blocks (n, c * elements, blocks) and a vector, found {a} and {b}"))
        );
    };
    let (Some(image), Some(block)) = (relation.known_ints(1), relation.known_ints(2)) else {
        let dims = std::iter::once(data.dims[0].clone()).chain(std::iter::repeat_n(Dim::Any, axes + 1));
        return Ok(Type::tensor_of(data.dtype, dims.collect::<Vec<_>>()));
    };
    let invalid = |message: String| relation.error(codes::types::BAD_ATTRIBUTE, message);
    let shape = Shape::new(&relation.params, &image, &block).map_err(invalid)?;
    let elements: usize = shape.block.iter().product();
    let channels = match data.dims[1].fixed() {
        Some(rows) if elements > 0 && rows.is_multiple_of(elements) => Dim::Fixed(rows / elements),
        Some(rows) => {
            return Err(invalid(format!(
                "data: expected a number of rows divisible by the block size {elements}, found {rows}"
            )));
        }
        None => Dim::Any,
    };
    let blocks: usize = shape.count.iter().product();
    if data.dims[2].fixed().is_some_and(|block_count| block_count != blocks) {
        return Err(invalid(format!("blocks of data: expected {blocks}, found {}", data.dims[2])));
    }
    let dims = [data.dims[0].clone(), channels].into_iter().chain(shape.image.iter().map(|&size| Dim::Fixed(size)));
    Ok(Type::tensor_of(data.dtype, dims.collect::<Vec<_>>()))
}

/// Sizes and window parameters, one value per axis.
struct Shape {
    image: Vec<usize>,
    block: Vec<usize>,
    /// Number of blocks.
    count: Vec<usize>,
    stride: Vec<i64>,
    dilation: Vec<i64>,
    before: Vec<i64>,
}

impl Shape {
    fn new(params: &Params<'_>, image: &[i64], block: &[i64]) -> Result<Shape, String> {
        let axes = image.len();
        let sizes =
            |list: &[i64]| list.iter().map(|&n| usize::try_from(n).ok().filter(|&n| n > 0 && n < 1 << 31)).collect();
        let (known_image, known_block): (Option<Vec<usize>>, Option<Vec<usize>>) = (sizes(image), sizes(block));
        let (Some(image), Some(block)) = (known_image, known_block.filter(|block| block.len() == axes)) else {
            return Err(format!(
                "image_shape, block_shape: expected positive dimensions of equal rank, found {image:?} and {block:?}"
            ));
        };
        let (stride, dilation) = (params.per_axis("strides", axes), params.per_axis("dilation", axes));
        let padding = params.padding(axes);
        let mut count = Vec::with_capacity(axes);
        for i in 0..axes {
            let extent = (block[i] as i64 - 1).saturating_mul(dilation[i]).saturating_add(1);
            let available_length =
                (image[i] as i64).saturating_add(padding[i].0).saturating_add(padding[i].1).saturating_sub(extent);
            if stride[i] < 1 || dilation[i] < 1 || available_length < 0 {
                return Err(format!(
                    "axis {i}: expected positive steps and a block within the padded image, found stride {}, \
                     dilation {} and a block of {extent} elements",
                    stride[i], dilation[i]
                ));
            }
            count.push((available_length / stride[i]) as usize + 1);
        }
        Ok(Shape { image, block, count, stride, dilation, before: padding.iter().map(|pair| pair.0).collect() })
    }
}

fn fold(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let ints = |i: usize| {
        inputs[i].to_i64s().ok_or_else(|| {
            let name = ["data", "image_shape", "block_shape"][i];
            format!("{name}: expected integers that fit int64, found {}", inputs[i].dtype)
        })
    };
    let shape = Shape::new(&params, &ints(1)?, &ints(2)?)?;
    let data = inputs[0].to_f64s();
    let image_strides = strides(&shape.image);
    let image: usize = shape.image.iter().product();
    let (elements, blocks): (usize, usize) = (shape.block.iter().product(), shape.count.iter().product());
    let mut accumulators = vec![0.0; outputs[0].len()];
    let (block_strides, count_strides) = (strides(&shape.block), strides(&shape.count));
    for (plane, accumulators) in accumulators.chunks_exact_mut(image.max(1)).enumerate() {
        let data = &data[plane * elements * blocks..][..elements * blocks];
        for_each_index(&shape.block, |element| {
            let row = offset(element, &block_strides) * blocks;
            for_each_index(&shape.count, |block| {
                let coordinate = |i: usize| {
                    block[i] as i64 * shape.stride[i] + element[i] as i64 * shape.dilation[i] - shape.before[i]
                };
                let coordinates: Option<Vec<usize>> = (0..block.len())
                    .map(|i| usize::try_from(coordinate(i)).ok().filter(|&at| at < shape.image[i]))
                    .collect();
                if let Some(coordinates) = coordinates {
                    accumulators[offset(&coordinates, &image_strides)] += data[row + offset(block, &count_strides)];
                }
            });
        });
    }
    Writer::new(&mut outputs[0]).store(accumulators);
    Ok(())
}
