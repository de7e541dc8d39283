//! Calls of fixed shapes, for operators whose arguments and attributes depend on each other. The theme chooses the element
//! type and the values of the data.

use super::{Argument, Operand, Recipe, attrs, operand, recipe, weight};
use crate::generate::draw::{Fill, Sampler};
use byoc_ir::ir::{AttrValue, Attrs};
use byoc_ir::op::OpDef;
use byoc_ir::tensor::{DType, strings};

fn list<const N: usize>(values: [i64; N]) -> AttrValue {
    AttrValue::ints(values)
}

fn pairs<const N: usize>(values: [[i64; 2]; N]) -> AttrValue {
    AttrValue::List(values.into_iter().map(AttrValue::ints).collect())
}

/// Proposes a call. The sampler draws nothing for other operators, whose cases stay the same.
pub(super) fn propose(def: &'static OpDef, sampler: &mut Sampler) -> Option<Recipe> {
    indexing(def, sampler)
        .or_else(|| sparse(def, sampler))
        .or_else(|| windows(def, sampler))
        .or_else(|| images(def, sampler))
        .or_else(|| losses(def, sampler))
        .or_else(|| random(def, sampler))
        .or_else(|| packed(def, sampler))
        .or_else(|| sequences(def, sampler))
        .or_else(|| layers(def, sampler))
        .or_else(|| text(def, sampler))
}

fn indexing(def: &'static OpDef, sampler: &mut Sampler) -> Option<Recipe> {
    let (dtype, float) = (sampler.theme.dtype, sampler.float());
    let data = |shape: &[usize]| operand(dtype, shape.to_vec(), Fill::Free);
    let reals = |shape: &[usize]| operand(float, shape.to_vec(), Fill::Terms);
    let below = |shape: &[usize], n: usize| operand(DType::I64, shape.to_vec(), Fill::Within(0.0, n as f64 - 1.0));
    let exact = |shape: &[usize], values: &[i64]| weight(DType::I64, shape.to_vec(), Fill::Exactly(values.to_vec()));
    let none = Attrs::none();
    match def.name {
        "sequence_mask" => {
            let axis = sampler.int(0, 1);
            let batch = [3, 5][axis as usize];
            recipe([data(&[5, 3, 2]), below(&[if axis == 0 { 3 } else { 5 }], batch)], attrs([("axis", axis.into())]))
        }
        "reverse_sequence" => recipe([data(&[3, 5, 2]), below(&[3], 6)], none),
        "nn.fifo_buffer" => recipe([data(&[2, 2]), data(&[2, 5])], attrs([("axis", 1.into())])),
        "sliding_window" => recipe(
            [data(&[2, 7, 6])],
            attrs([("axis", 1.into()), ("window_shape", list([3, 2])), ("strides", list([2, 3]))]),
        ),
        "adv_index" => {
            let field = |dtype: DType, shape: &[usize], fill: Fill| Operand {
                dtype,
                shape: shape.to_vec(),
                fill,
                weight: false,
            };
            let indices = |shape: &[usize], n: f64| field(DType::I64, shape, Fill::Within(0.0, n));
            let data = field(dtype, &[4, 3, 2], Fill::Free);
            recipe([Argument::Tuple(vec![data, indices(&[2, 1], 3.0), indices(&[3], 2.0)])], none)
        }
        "meshgrid" => {
            let field = |n: usize| Operand { dtype, shape: vec![n], fill: Fill::Free, weight: false };
            let indexing = sampler.pick(&["ij", "xy"]);
            recipe([Argument::Tuple(vec![field(3), field(2), field(4)])], attrs([("indexing", indexing.into())]))
        }
        "unravel_index" => recipe([below(&[5], 42), exact(&[2], &[7, 6])], none),
        "invert_permutation" => recipe([exact(&[5], &[3, 0, 4, 1, 2])], none),
        "searchsorted" => {
            let sorted = exact(&[2, 4], &[1, 3, 3, 7, -2, 0, 5, 9]);
            recipe([sorted, below(&[2, 5], 9)], attrs([("right", sampler.chance(2).into())]))
        }
        "matrix_set_diag" => {
            let right = sampler.chance(2);
            let range = [("k1", AttrValue::Int(-1)), ("k2", 1.into()), ("super_diag_right_align", right.into())];
            recipe([data(&[2, 3, 4]), data(&[2, 3, 3])], attrs(range))
        }
        "strided_set" => recipe(
            [data(&[4, 5]), data(&[2, 3]), exact(&[2], &[0, 1]), exact(&[2], &[4, 4]), exact(&[2], &[2, 1])],
            none,
        ),
        "scatter" => {
            let indices = exact(&[2, 3], &[1, 3, 0, 2, 0, 1]);
            recipe([data(&[2, 4]), indices, data(&[2, 3])], attrs([("axis", 1.into())]))
        }
        "scatter_add" => {
            let updates = operand(dtype, vec![2, 3], Fill::Terms);
            recipe([operand(dtype, vec![2, 4], Fill::Terms), below(&[2, 3], 4), updates], attrs([("axis", 1.into())]))
        }
        "unique" => {
            let vector = operand(dtype, vec![7], Fill::Within(0.0, 3.0));
            recipe([vector], attrs([("sorted", sampler.chance(2).into()), ("return_counts", sampler.chance(2).into())]))
        }
        "contrib_reverse_reshape" => recipe([data(&[2, 3, 4])], attrs([("newshape", list([-1, 0]))])),
        "collapse_sum_like" => recipe([reals(&[2, 3, 4]), data(&[3, 1])], none),
        "collapse_sum_to" => recipe([reals(&[2, 3, 4]), exact(&[2], &[3, 1])], none),
        "dft" => recipe([reals(&[2, 8]), reals(&[2, 8])], attrs([("inverse", sampler.chance(2).into())])),
        "stft" => recipe(
            [reals(&[2, 20]), reals(&[8])],
            attrs([("n_fft", 8.into()), ("hop_length", 3.into()), ("win_length", 8.into())]),
        ),
        _ => None,
    }
}

fn sparse(def: &'static OpDef, sampler: &mut Sampler) -> Option<Recipe> {
    let dtype = sampler.theme.dtype;
    let data = |shape: &[usize]| operand(dtype, shape.to_vec(), Fill::Terms);
    let exact = |shape: &[usize], values: &[i64]| weight(DType::I64, shape.to_vec(), Fill::Exactly(values.to_vec()));
    let none = Attrs::none();
    // A matrix of 3 x 4 elements, and one of 3 x 3, with an empty row.
    let (indices, pointers) = (exact(&[4], &[0, 3, 1, 2]), exact(&[4], &[0, 2, 2, 4]));
    let square_indices = exact(&[4], &[0, 2, 1, 2]);
    match def.name {
        "sparse_to_dense" => {
            let shape = attrs([("output_shape", list([3, 4]))]);
            recipe([exact(&[2, 2], &[0, 1, 2, 3]), data(&[2]), data(&[])], shape)
        }
        "dyn.sparse_to_dense" => {
            recipe([exact(&[2, 2], &[0, 1, 2, 3]), data(&[2]), data(&[]), exact(&[2], &[3, 4])], none)
        }
        "sparse_fill_empty_rows" => {
            recipe([exact(&[2, 2], &[0, 1, 2, 3]), data(&[2]), exact(&[2], &[4, 4]), data(&[])], none)
        }
        "sparse_reshape" => {
            recipe([exact(&[2, 2], &[0, 1, 2, 3]), exact(&[2], &[3, 4]), exact(&[3], &[2, -1, 2])], none)
        }
        "nn.sparse_dense" => {
            let is_left = sampler.chance(2);
            recipe([data(&[2, 4]), data(&[4]), indices, pointers], attrs([("sparse_lhs", is_left.into())]))
        }
        "nn.sparse_add" => recipe([data(&[3, 4]), data(&[4]), indices, pointers], none),
        "nn.sparse_transpose" => recipe([data(&[4]), square_indices, pointers], none),
        "nn.sparse_conv2d" => recipe([data(&[1, 3, 3, 8]), data(&[4, 2, 2]), indices, pointers], none),
        _ => None,
    }
}

fn windows(def: &'static OpDef, sampler: &mut Sampler) -> Option<Recipe> {
    let (dtype, float) = (sampler.theme.dtype, sampler.float());
    let data = |shape: &[usize]| operand(dtype, shape.to_vec(), Fill::Free);
    let reals = |shape: &[usize]| operand(float, shape.to_vec(), Fill::Terms);
    let factors = |shape: &[usize]| operand(float, shape.to_vec(), Fill::Factors);
    match def.name {
        "nn.mirror_pad" => {
            let mode = sampler.pick(&["SYMMETRIC", "REFLECT"]);
            recipe([data(&[3, 4])], attrs([("mode", mode.into()), ("pad_width", pairs([[2, 1], [0, 3]]))]))
        }
        "nn.dilate" => recipe([data(&[2, 3, 1])], attrs([("strides", list([1, 2, 3])), ("dilation_value", 1.into())])),
        "nn.space_to_batch_nd" => {
            recipe([data(&[2, 3, 6, 2])], attrs([("block_shape", list([2, 3])), ("paddings", pairs([[1, 0], [2, 1]]))]))
        }
        "nn.batch_to_space_nd" => {
            recipe([data(&[12, 2, 3, 2])], attrs([("block_shape", list([2, 3])), ("crops", pairs([[1, 0], [2, 1]]))]))
        }
        "nn.max_pool2d_grad" | "nn.avg_pool2d_grad" => {
            let window = [("pool_size", list([3, 2])), ("strides", list([2, 1])), ("padding", list([1, 0]))];
            recipe([reals(&[1, 2, 3, 4]), reals(&[1, 2, 5, 5])], attrs(window))
        }
        "nn.conv2d_backward_weight" => recipe(
            [reals(&[1, 4, 4, 5]), reals(&[1, 2, 5, 6])],
            attrs([
                ("kernel_size", list([2, 2])),
                ("groups", 2.into()),
                ("kernel_layout", "NCHW".into()),
                ("out_layout", "OIHW".into()),
            ]),
        ),
        "nn.contrib_conv2d_NCHWc" => recipe(
            [factors(&[1, 2, 5, 5, 4]), factors(&[2, 2, 3, 3, 4, 2])],
            attrs([
                ("data_layout", "NCHW4c".into()),
                ("kernel_layout", "OIHW4i2o".into()),
                ("out_layout", "NCHW2c".into()),
            ]),
        ),
        "nn.contrib_depthwise_conv2d_NCHWc" => recipe(
            [factors(&[1, 2, 5, 5, 4]), factors(&[2, 1, 3, 3, 1, 4])],
            attrs([("groups", 8.into()), ("data_layout", "NCHW4c".into()), ("kernel_layout", "OIHW1i4o".into())]),
        ),
        "nn.deformable_conv2d" => recipe(
            [factors(&[1, 2, 4, 5]), operand(float, vec![1, 8, 3, 4], Fill::Within(-1.0, 1.0)), factors(&[3, 2, 2, 2])],
            Attrs::none(),
        ),
        "nn.correlation" => {
            let sizes = [("kernel_size", AttrValue::Int(3)), ("max_displacement", 2.into()), ("padding", list([3, 3]))];
            recipe(
                [factors(&[1, 2, 5, 6]), factors(&[1, 2, 5, 6])],
                attrs(sizes).with("is_multiply", sampler.chance(2)),
            )
        }
        _ => None,
    }
}

fn images(def: &'static OpDef, sampler: &mut Sampler) -> Option<Recipe> {
    let float = sampler.float();
    let reals = |shape: &[usize]| operand(float, shape.to_vec(), Fill::Terms);
    let within = |shape: &[usize], low: f64, high: f64| operand(float, shape.to_vec(), Fill::Within(low, high));
    let methods = ["nearest_neighbor", "linear", "cubic"];
    let scales = [("scale_d", AttrValue::Float(2.0)), ("scale_h", 1.5.into()), ("scale_w", 1.0.into())];
    match def.name {
        "image.resize1d" => {
            recipe([reals(&[1, 2, 5])], attrs([("size", list([8])), ("method", sampler.pick(&methods).into())]))
        }
        "image.resize3d" => {
            let method = sampler.pick(&methods);
            recipe([reals(&[1, 2, 3, 2, 4])], attrs([("size", list([4, 3, 2])), ("method", method.into())]))
        }
        "nn.upsampling3d" => recipe([reals(&[1, 1, 2, 4, 3])], attrs(scales).with("method", "trilinear")),
        "dyn.nn.upsampling3d" => {
            let scale = |n: i64| weight(DType::F32, Vec::new(), Fill::Exactly(vec![n]));
            recipe([reals(&[1, 1, 2, 4, 3]), scale(2), scale(1), scale(3)], Attrs::none())
        }
        "image.crop_and_resize" => {
            let images = weight(DType::I64, vec![3], Fill::Exactly(vec![0, 1, 1]));
            let method = sampler.pick(&["bilinear", "nearest_neighbor"]);
            recipe(
                [reals(&[2, 2, 4, 5]), within(&[3, 4], -0.1, 1.1), images],
                attrs([("crop_size", list([3, 2])), ("method", method.into())]),
            )
        }
        "image.affine_grid" => recipe([reals(&[2, 2, 3])], attrs([("target_shape", list([3, 4]))])),
        "image.dilation2d" => recipe([reals(&[1, 2, 5, 6]), reals(&[2, 2, 3])], attrs([("dilations", list([2, 1]))])),
        "vision.roi_pool" => recipe(
            [reals(&[1, 2, 6, 7]), weight(float, vec![2, 5], Fill::Exactly(vec![0, 1, 0, 5, 4, 0, 2, 2, 3, 5]))],
            attrs([("pooled_size", list([2, 3])), ("spatial_scale", 1.0.into())]),
        ),
        "vision.yolo_reorg" => recipe([reals(&[1, 4, 4, 6])], attrs([("stride", 2.into())])),
        "vision.regular_non_max_suppression" => {
            let limits = [
                ("max_detections_per_class", AttrValue::Int(2)),
                ("max_detections", 3.into()),
                ("num_classes", 2.into()),
            ];
            recipe(
                [within(&[1, 5, 4], 0.0, 2.0), within(&[1, 5, 3], 0.0, 1.0)],
                attrs(limits).with("iou_threshold", 0.5).with("score_threshold", 0.25),
            )
        }
        "vision.proposal" => {
            let image = weight(float, vec![1, 3], Fill::Exactly(vec![48, 64, 1]));
            let anchors =
                [("scales", AttrValue::List([2.0.into()].into())), ("ratios", AttrValue::List([1.0.into()].into()))];
            recipe(
                [within(&[1, 2, 3, 4], 0.0, 1.0), within(&[1, 4, 3, 4], -0.5, 0.5), image],
                attrs(anchors).with("rpn_post_nms_top_n", 4),
            )
        }
        _ => None,
    }
}

fn losses(def: &'static OpDef, sampler: &mut Sampler) -> Option<Recipe> {
    let float = sampler.float();
    let within = |shape: &[usize], low: f64, high: f64| operand(float, shape.to_vec(), Fill::Within(low, high));
    match def.name {
        "nn.nll_loss" => {
            let targets = operand(DType::I32, vec![4, 2], Fill::Within(0.0, 2.0));
            let reduction = sampler.pick(&["mean", "sum", "none"]);
            recipe(
                [within(&[4, 3, 2], -2.0, 0.0), targets, within(&[3], 0.5, 1.5)],
                attrs([("reduction", reduction.into()), ("ignore_index", (-1).into())]),
            )
        }
        "nn.cross_entropy" | "nn.cross_entropy_with_logits" => {
            recipe([within(&[3, 4], 0.1, 1.0), within(&[3, 4], 0.0, 1.0)], Attrs::none())
        }
        "qnn.simulated_quantize" | "qnn.simulated_dequantize" => {
            let scalar = |value: i64| weight(DType::I32, Vec::new(), Fill::Exactly(vec![value]));
            recipe(
                [
                    within(&[3, 4], -4.0, 4.0),
                    scalar(sampler.int(0, 3)),
                    within(&[], 0.5, 0.5),
                    scalar(sampler.int(-3, 3)),
                ],
                Attrs::none(),
            )
        }
        _ => None,
    }
}

fn random(def: &'static OpDef, sampler: &mut Sampler) -> Option<Recipe> {
    if !def.name.starts_with("random.") {
        return None;
    }
    let words = (0..4).map(|_| sampler.int(0, 1 << 40)).chain([0, 0, 0, 0, 1 << 62, 0]).collect();
    let key = weight(DType::U64, vec![10], Fill::Exactly(words));
    let scalar = |value: i64| weight(DType::F32, Vec::new(), Fill::Exactly(vec![value]));
    let numbers = attrs([("out_shape", list([3, 5])), ("out_dtype", DType::F32.into())]);
    match def.name {
        "random.threefry_generate" => recipe([key], attrs([("out_shape", list([3, 5]))])),
        "random.threefry_split" => recipe([key], Attrs::none()),
        "random.uniform" => recipe([key, scalar(-1), scalar(3)], numbers),
        "random.normal" => recipe([key, scalar(1), scalar(2)], numbers),
        "random.multinomial" => {
            let probabilities = operand(DType::F32, vec![2, 4], Fill::Within(0.125, 1.0));
            recipe([key, probabilities], attrs([("num_samples", 5.into())]))
        }
        "random.uniform_like" => recipe(
            [key, operand(sampler.theme.dtype, vec![3, 5], Fill::Free)],
            attrs([("out_dtype", DType::F32.into())]),
        ),
        _ => None,
    }
}

/// Sequences of three tensors, of the shapes (2, 3), (1, 3) and (4, 3).
fn sequences(def: &'static OpDef, sampler: &mut Sampler) -> Option<Recipe> {
    let data = |shape: &[usize]| operand(sampler.theme.dtype, shape.to_vec(), Fill::Free);
    let exact = |shape: &[usize], values: &[i64]| weight(DType::I64, shape.to_vec(), Fill::Exactly(values.to_vec()));
    let shapes = exact(&[3, 2], &[2, 3, 1, 3, 4, 3]);
    let position = exact(&[], &[-1]);
    match def.name {
        "sequence.at" | "sequence.erase" => recipe([data(&[21]), shapes, position], Attrs::none()),
        "sequence.insert" => recipe([data(&[21]), shapes, position, data(&[5, 2])], Attrs::none()),
        "sequence.concatenate" => recipe([data(&[21]), shapes], attrs([("axis", 0.into())])),
        "sequence.split" => recipe([data(&[2, 5]), exact(&[2], &[1, 4])], attrs([("axis", 1.into())])),
        _ => None,
    }
}

/// Recurrent layers of three steps, two sequences and a state of four, and trees of three branches.
fn layers(def: &'static OpDef, sampler: &mut Sampler) -> Option<Recipe> {
    let float = sampler.float();
    let within = |shape: &[usize]| operand(float, shape.to_vec(), Fill::Within(-2.0, 2.0));
    let constant = |shape: &[usize]| weight(float, shape.to_vec(), Fill::Within(-1.0, 1.0));
    let exact = |shape: &[usize], values: &[i64]| weight(DType::I32, shape.to_vec(), Fill::Exactly(values.to_vec()));
    let state = || within(&[2, 4]);
    match def.name {
        "nn.lstm" => recipe([within(&[3, 2, 16]), constant(&[16, 4]), state(), state()], Attrs::none()),
        "nn.gru" => recipe([within(&[3, 2, 12]), constant(&[12, 4]), state(), constant(&[12])], Attrs::none()),
        "qnn.lstm" => {
            let single = |shape: &[usize]| operand(DType::F32, shape.to_vec(), Fill::Within(-2.0, 2.0));
            let weights = weight(DType::I8, vec![4, 16], Fill::Within(-100.0, 100.0));
            let scale = weight(DType::F32, Vec::new(), Fill::PowerOfTwo(-7, -7));
            let data = [single(&[3, 2, 16]), weights, single(&[2, 4]), single(&[2, 4]), exact(&[], &[3]), scale];
            recipe(data, Attrs::none())
        }
        "ml.tree_ensemble" => recipe(
            [
                within(&[5, 3]),
                exact(&[3, 4], &[0, 0, 1, 2, 1, 3, -1, -2, 2, 5, -3, -4]),
                constant(&[3]),
                exact(&[2], &[0, 2]),
                constant(&[4, 2]),
            ],
            attrs([("aggregate", "max".into())]),
        ),
        _ => None,
    }
}

/// Tensors of six strings. They are constants, as the sizes of results depend on them.
fn text(def: &'static OpDef, sampler: &mut Sampler) -> Option<Recipe> {
    const WORDS: [&str; 6] = ["", "one two", "One,two", "12", "-3.5", "one"];
    let exact = |dtype, shape: &[usize], values: Vec<i64>| weight(dtype, shape.to_vec(), Fill::Exactly(values));
    let bytes = || {
        let bytes: Vec<i64> = WORDS.concat().bytes().map(i64::from).collect();
        exact(DType::U8, &[bytes.len()], bytes)
    };
    let all_spans = || {
        let mut begin = 0;
        let span = |word: &&str| {
            begin += word.len();
            strings::span(begin - word.len(), word.len())
        };
        WORDS.iter().map(span).collect::<Vec<i64>>()
    };
    let spans = |shape: &[usize]| exact(DType::I64, shape, all_spans());
    let numbers = || operand(DType::I64, vec![2, 7], Fill::Within(0.0, 3.0));
    match def.name {
        "text.lookup" => recipe([bytes(), spans(&[2, 3]), bytes(), spans(&[6])], Attrs::none()),
        "text.equal" | "text.concatenate" => recipe([bytes(), spans(&[6, 1]), bytes(), spans(&[1, 6])], Attrs::none()),
        "text.rank" => recipe([bytes(), spans(&[2, 3])], Attrs::none()),
        "text.case" => recipe([bytes(), spans(&[6])], attrs([("action", sampler.pick(&["lower", "upper"]).into())])),
        "text.match" => recipe([bytes(), spans(&[3, 2])], attrs([("pattern", "[a-z ]*".into())])),
        "text.keep" => {
            let flags = weight(DType::Bool, vec![6], Fill::Within(0.0, 1.0));
            recipe([spans(&[6]), flags], Attrs::none())
        }
        "text.split" => recipe([bytes(), spans(&[2, 3])], attrs([("delimiter", sampler.pick(&["", ","]).into())])),
        "text.tokenize" => {
            let separators = [exact(DType::U8, &[1], vec![44]), exact(DType::I64, &[1], vec![strings::span(0, 1)])];
            let marks = exact(DType::I64, &[3], all_spans()[..3].to_vec());
            let args = [bytes(), spans(&[6])].into_iter().chain(separators).chain([marks]);
            recipe(args, attrs([("mark", sampler.chance(2).into())]))
        }
        "text.from_numbers" => {
            recipe([operand(sampler.theme.dtype, vec![3, 5], Fill::Within(0.0, 100.0))], Attrs::none())
        }
        "text.to_numbers" => {
            let dtype = sampler.pick(&[DType::F32, DType::F64, DType::I32, DType::U8]);
            recipe([bytes(), exact(DType::I64, &[2], all_spans()[3..5].to_vec())], attrs([("dtype", dtype.into())]))
        }
        "text.ngrams" => {
            let pool = exact(DType::I64, &[7], vec![0, 1, 2, 0, 1, 1, 2]);
            let columns = [("counts", list([0, 3])), ("columns", list([0, 1, 2, 3, 4]))];
            let lengths = [("max_length", 2.into()), ("max_skips", sampler.int(0, 1).into())];
            recipe([numbers(), pool], Attrs::new(columns.into_iter().chain(lengths)))
        }
        _ => None,
    }
}

fn packed(def: &'static OpDef, sampler: &mut Sampler) -> Option<Recipe> {
    let float = sampler.float();
    let factors = |shape: &[usize]| operand(float, shape.to_vec(), Fill::Factors);
    let bits = |shape: &[usize], count: u32| {
        operand(DType::I32, shape.to_vec(), Fill::Within(0.0, f64::from((1u32 << count) - 1)))
    };
    let widths = |data: &'static str| {
        attrs([(data, 2.into()), ("weight_bits", 1.into()), ("pack_dtype", "uint8".into()), ("unipolar", true.into())])
    };
    match def.name {
        "nn.bitpack" => recipe(
            [bits(&[2, 16, 3], 2)],
            attrs([("bits", 2.into()), ("bit_axis", 2.into()), ("pack_type", "uint8".into())]),
        ),
        "nn.bitserial_dense" => recipe([bits(&[3, 16], 2), bits(&[4, 16], 1)], widths("data_bits")),
        "nn.bitserial_conv2d" => recipe(
            [bits(&[1, 8, 5, 5], 2), bits(&[3, 8, 3, 3], 1)],
            widths("activation_bits").with("padding", list([1, 1])),
        ),
        "nn.contrib_dense_pack" => recipe([factors(&[2, 6]), factors(&[2, 6, 4])], Attrs::none()),
        "qnn.contrib_dense_pack" => {
            let quantized = |shape: &[usize]| operand(DType::I8, shape.to_vec(), Fill::Within(-128.0, 127.0));
            let parameter = |dtype: DType, value: i64| weight(dtype, Vec::new(), Fill::Exactly(vec![value]));
            let zeros = [parameter(DType::I32, sampler.int(-3, 3)), parameter(DType::I32, 0)];
            let scales = [parameter(DType::F32, 1), parameter(DType::F32, 2)];
            recipe([quantized(&[2, 8]), quantized(&[2, 2, 3, 4])].into_iter().chain(zeros).chain(scales), Attrs::none())
        }
        _ => None,
    }
}
