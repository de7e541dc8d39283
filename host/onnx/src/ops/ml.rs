//! Feature operators and linear models of the domain `ai.onnx.ml`. Trees and support vector machines
//! are in [`trees`](super::trees) and [`svm`](super::svm).

use super::super::state::Error;
use super::super::tensor::from_f64s;
use super::{Node, Outputs, Result, Row, attrs, single_output, text};
use byoc_ir::diag::codes;
use byoc_ir::ir::ExprId;
use byoc_ir::tensor::{DType, OutOfMemory, Tensor, element_count, memory};

pub const ROWS: &[Row] = &[
    ("ArrayFeatureExtractor", 1, |n| {
        let (data, indices) = (n.input(0)?, n.input(1)?);
        let rank = n.rank(data)? as i64;
        let indices = n.op("reshape", &[indices], attrs![newshape: [-1]])?;
        let selected_features = n.op("take", &[data, indices], attrs![axis: rank - 1, mode: "fast"])?;
        single_output(if rank == 1 {
            n.op("expand_dims", &[selected_features], attrs![axis: 0])?
        } else {
            selected_features
        })
    }),
    ("Binarizer", 1, |n| {
        let data = n.input(0)?;
        let threshold = n.float_attr("threshold", 0.0)?;
        let is_above = n.with_scalar("greater", data, threshold)?;
        single_output(n.cast(is_above, n.dtype(data)?)?)
    }),
    ("CategoryMapper", 1, category_mapper),
    ("FeatureVectorizer", 1, |n| {
        let mut columns = Vec::with_capacity(n.input_count());
        for input in n.all_inputs()? {
            let input = n.cast(input, DType::F32)?;
            columns.push(if n.rank(input)? == 1 { n.op("expand_dims", &[input], attrs![axis: 1])? } else { input });
        }
        single_output(n.concatenate(&columns, 1)?)
    }),
    ("Imputer", 1, imputer),
    ("LabelEncoder", 1, label_encoder),
    ("LinearClassifier", 1, linear_classifier),
    ("LinearRegressor", 1, |n| {
        let data = rows_of(n)?;
        let targets = n.int_attr("targets", 1)?;
        let targets = usize::try_from(targets).ok().filter(|&targets| targets > 0);
        let targets = targets.ok_or_else(|| n.invalid_node("attribute targets: expected an integer > 0"))?;
        let scores = linear_scores(n, data, targets)?;
        let transform = n.str_attr("post_transform", "NONE")?;
        single_output(post_transform(n, scores, &transform)?)
    }),
    ("Normalizer", 1, normalizer),
    ("OneHotEncoder", 1, one_hot_encoder),
    ("Scaler", 1, |n| {
        let data = n.input(0)?;
        let data = n.cast(data, DType::F32)?;
        let parameters = |n: &mut Node<'_, '_>, name: &str| -> Result<_> {
            let values: Vec<f32> = n.floats_attr(name)?.unwrap_or_default().iter().map(|&value| value as f32).collect();
            Ok(n.vector(&values))
        };
        let (offset, scale) = (parameters(n, "offset")?, parameters(n, "scale")?);
        let difference = n.op_without_attrs("subtract", &[data, offset])?;
        single_output(n.op_without_attrs("multiply", &[difference, scale])?)
    }),
    ("ZipMap", 1, zip_map),
];

/// Creates the error for an unsupported form of the operator.
pub(super) fn unsupported(n: &Node<'_, '_>, form: &str, help: &str) -> Error {
    let error = n.error(codes::frontends::UNSUPPORTED_OPERATOR, "unsupported form of the operator");
    Box::new(error.note(form.to_owned()).help(help.to_owned()))
}

/// Returns input 0 as a matrix of floats, one row per observation; a vector is one row.
pub(super) fn rows_of(n: &mut Node<'_, '_>) -> Result<ExprId> {
    let data = n.input(0)?;
    let data = match n.dtype(data)? {
        DType::F64 => data,
        _ => n.cast(data, DType::F32)?,
    };
    match n.rank(data)? {
        1 => n.op("expand_dims", &[data], attrs![axis: 0]),
        2 => Ok(data),
        rank => Err(n.invalid_node(format!("expected data of rank 1 or 2, found rank {rank}"))),
    }
}

/// Labels of classes.
pub(super) enum Labels {
    Numbers(Vec<i64>),
    Strings(Vec<String>),
}

impl Labels {
    pub fn len(&self) -> usize {
        match self {
            Labels::Numbers(labels) => labels.len(),
            Labels::Strings(labels) => labels.len(),
        }
    }
}

/// Returns the class labels.
pub(super) fn class_labels(n: &Node<'_, '_>, integers: &str, strings: &str) -> Result<Labels> {
    if let Some(labels) = n.ints_attr(integers)?.filter(|labels| !labels.is_empty()) {
        return Ok(Labels::Numbers(labels));
    }
    let labels = n.strings_attr(strings)?.filter(|labels| !labels.is_empty());
    labels.map(Labels::Strings).ok_or_else(|| n.invalid_node(format!("attribute {integers} or {strings} is missing")))
}

/// Looks up the label of each class index in `class`.
pub(super) fn labels_of(n: &mut Node<'_, '_>, labels: &Labels, class: ExprId) -> Result<ExprId> {
    let (labels, bytes) = match labels {
        Labels::Numbers(labels) => (n.vector(labels), None),
        Labels::Strings(labels) => {
            let labels = n.string_tensor(&[labels.len()], labels)?;
            (labels, n.string_bytes(labels))
        }
    };
    let label = n.op("take", &[labels, class], attrs![axis: 0, mode: "fast"])?;
    Ok(bytes.map_or(label, |bytes| n.with_bytes(label, bytes)))
}

/// Applies the attribute `post_transform` to a matrix of scores.
pub(super) fn post_transform(n: &mut Node<'_, '_>, scores: ExprId, transform: &str) -> Result<ExprId> {
    match transform {
        "NONE" => Ok(scores),
        "LOGISTIC" => n.op_without_attrs("sigmoid", &[scores]),
        "SOFTMAX" => n.op("nn.softmax", &[scores], attrs![axis: 1]),
        "SOFTMAX_ZERO" => softmax_zero(n, scores),
        "PROBIT" => probit(n, scores),
        other => Err(n.invalid_node(format!(
            "attribute post_transform: expected NONE, LOGISTIC, SOFTMAX, SOFTMAX_ZERO or PROBIT, found \"{other}\""
        ))),
    }
}

/// Computes the softmax over the non-zero scores of each row. The probability of a score of 0 is 0, or 0.5 if all
/// scores of the row are 0.
fn softmax_zero(n: &mut Node<'_, '_>, scores: ExprId) -> Result<ExprId> {
    let largest = n.op("max", &[scores], attrs![axis: [1], keepdims: true])?;
    let difference = n.op_without_attrs("subtract", &[scores, largest])?;
    let power = n.op_without_attrs("exp", &[difference])?;
    let magnitude = n.op_without_attrs("abs", &[scores])?;
    let counts = n.with_scalar("greater", magnitude, 1e-7)?;
    let zero = n.scalar(n.dtype(scores)?, 0.0);
    let power = n.op_without_attrs("where", &[counts, power, zero])?;
    let sum = n.op("sum", &[power], attrs![axis: [1], keepdims: true])?;
    let is_empty = n.with_scalar("equal", sum, 0.0)?;
    let quotient = n.op_without_attrs("divide", &[power, sum])?;
    let half = n.scalar(n.dtype(scores)?, 0.5);
    n.op_without_attrs("where", &[is_empty, half, quotient])
}

/// Computes the inverse of the cumulative normal distribution, with Winitzki's approximation of the inverse error
/// function.
fn probit(n: &mut Node<'_, '_>, scores: ExprId) -> Result<ExprId> {
    const A: f64 = 0.147;
    let doubled = n.with_scalar("multiply", scores, 2.0)?;
    let x = n.with_scalar("subtract", doubled, 1.0)?;
    let square = n.op_without_attrs("multiply", &[x, x])?;
    let negative_square = n.op_without_attrs("negative", &[square])?;
    let complement = n.with_scalar("add", negative_square, 1.0)?;
    let log = n.op_without_attrs("log", &[complement])?;
    let half_log = n.with_scalar("multiply", log, 0.5)?;
    let first = n.with_scalar("add", half_log, 2.0 / (std::f64::consts::PI * A))?;
    let second = n.with_scalar("multiply", log, 1.0 / A)?;
    let first_square = n.op_without_attrs("multiply", &[first, first])?;
    let inner = n.op_without_attrs("subtract", &[first_square, second])?;
    let inner = n.op_without_attrs("sqrt", &[inner])?;
    let outer = n.op_without_attrs("subtract", &[inner, first])?;
    let outer = n.op_without_attrs("sqrt", &[outer])?;
    let sign = n.op_without_attrs("sign", &[x])?;
    let inverse = n.op_without_attrs("multiply", &[sign, outer])?;
    n.with_scalar("multiply", inverse, std::f64::consts::SQRT_2)
}

/// Returns the values of a float-list attribute as a constant with the element type of `like`.
pub(super) fn floats_like(n: &mut Node<'_, '_>, values: &[f64], shape: &[usize], like: ExprId) -> Result<ExprId> {
    let dtype = n.dtype(like)?;
    Ok(n.tensor(from_f64s(dtype, shape, values)))
}

/// Returns a row-major table of `rows` x `cols` elements, each equal to `value`.
///
/// # Errors
/// If the table exceeds the memory limit.
pub(super) fn table(rows: usize, cols: usize, value: f64) -> Result<Vec<f64>> {
    let count = element_count(&[rows, cols]).ok_or(OutOfMemory::OVERFLOW)?;
    let _reservation = memory::reserve(count.checked_mul(size_of::<f64>()).ok_or(OutOfMemory::OVERFLOW)?)?;
    Ok(vec![value; count])
}

/// Checks the number of values in a list attribute.
pub(super) fn check_count(n: &Node<'_, '_>, name: &str, found: usize, expected: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(n.invalid_node(format!("attribute {name}: expected {expected} values, found {found}")))
}

/// Computes data * coefficients^T + intercepts, with one row of coefficients per target.
fn linear_scores(n: &mut Node<'_, '_>, data: ExprId, targets: usize) -> Result<ExprId> {
    let mut coefficients = n.floats_attr("coefficients")?.unwrap_or_default();
    // As in ONNX Runtime, there are as many features as the data has, whatever the number of coefficients.
    if let Some(columns) = n.ty(data)?.dims[1].fixed() {
        coefficients.truncate(columns.saturating_mul(targets));
    }
    if coefficients.is_empty() || !coefficients.len().is_multiple_of(targets) {
        let message = format!("attribute coefficients: expected a multiple of {targets}, found {}", coefficients.len());
        return Err(n.invalid_node(message));
    }
    let weight = floats_like(n, &coefficients, &[targets, coefficients.len() / targets], data)?;
    let scores = n.op("nn.dense", &[data, weight], attrs![units: targets as i64])?;
    let Some(intercepts) = n.floats_attr("intercepts")?.filter(|intercepts| !intercepts.is_empty()) else {
        return Ok(scores);
    };
    check_count(n, "intercepts", intercepts.len(), targets)?;
    let intercepts = floats_like(n, &intercepts, &[targets], data)?;
    n.op_without_attrs("add", &[scores, intercepts])
}

fn linear_classifier(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let labels = class_labels(n, "classlabels_ints", "classlabels_strings")?;
    let data = rows_of(n)?;
    let transform = n.str_attr("post_transform", "NONE")?;
    let intercepts = n.floats_attr("intercepts")?.map_or(0, |intercepts| intercepts.len());
    let columns = n.ty(data)?.dims[1].fixed();
    let coefficients = n.floats_attr("coefficients")?.map_or(0, |coefficients| coefficients.len());
    let targets = match (intercepts, columns) {
        (0, Some(columns)) => coefficients / columns.max(1),
        (0, None) => labels.len(),
        (intercepts, _) => intercepts,
    };
    let mut scores = linear_scores(n, data, targets.max(1))?;
    if targets == 1 && labels.len() == 2 {
        let negative = n.op_without_attrs("negative", &[scores])?;
        scores = n.concatenate(&[negative, scores], 1)?;
    } else if targets != labels.len() {
        return Err(n.invalid_node(format!("expected {targets} class labels, found {}", labels.len())));
    }
    let class = n.op("argmax", &[scores], attrs![axis: [1]])?;
    let scores = post_transform(n, scores, &transform)?;
    let scores = n.cast(scores, DType::F32)?;
    Ok(vec![labels_of(n, &labels, class)?, scores])
}

fn normalizer(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let data = n.cast(data, DType::F32)?;
    let axis = n.rank(data)? as i64 - 1;
    let along_rows = || attrs![axis: [axis], keepdims: true];
    let norm = match n.str_attr("norm", "MAX")?.as_str() {
        "MAX" => n.op("max", &[data], along_rows())?,
        "L1" => {
            let magnitudes = n.op_without_attrs("abs", &[data])?;
            n.op("sum", &[magnitudes], along_rows())?
        }
        "L2" => {
            let squares = n.op_without_attrs("multiply", &[data, data])?;
            let sum = n.op("sum", &[squares], along_rows())?;
            n.op_without_attrs("sqrt", &[sum])?
        }
        other => return Err(n.invalid_node(format!("attribute norm: expected MAX, L1 or L2, found \"{other}\""))),
    };
    // A norm of 0 is replaced with 1, so that a row of zeros remains unchanged.
    let is_zero = n.with_scalar("equal", norm, 0.0)?;
    let one = n.scalar(DType::F32, 1.0);
    let norm = n.op_without_attrs("where", &[is_zero, one, norm])?;
    single_output(n.op_without_attrs("divide", &[data, norm])?)
}

fn imputer(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let dtype = n.dtype(data)?;
    let (values, replaced) = if dtype.is_float() {
        (n.floats_attr("imputed_value_floats")?, n.float_attr("replaced_value_float", 0.0)?)
    } else {
        let values = n.ints_attr("imputed_value_int64s")?;
        (values.map(|values| values.iter().map(|&v| v as f64).collect()), n.int_attr("replaced_value_int64", 0)? as f64)
    };
    let Some(values) = values.filter(|values| !values.is_empty()) else {
        return Err(n.invalid_node(format!("expected imputed values of type {dtype}, found none")));
    };
    let is_missing =
        if replaced.is_nan() { n.op_without_attrs("isnan", &[data])? } else { n.with_scalar("equal", data, replaced)? };
    let values = floats_like(n, &values, &[values.len()], data)?;
    single_output(n.op_without_attrs("where", &[is_missing, values, data])?)
}

/// Keys or values of a table: a vector.
enum Entries {
    Numbers(Tensor),
    Strings(ExprId),
}

impl Entries {
    /// Reads the entries in the attributes whose names begin with `name`.
    fn read(n: &mut Node<'_, '_>, name: &str) -> Result<Option<Entries>> {
        let tensor_name = format!("{name}_tensor");
        if let Some(strings) = n.string_tensor_attr(&tensor_name)? {
            return Ok(Some(Entries::Strings(strings)));
        }
        if let Some(tensor) = n.tensor_attr(&tensor_name)? {
            return Ok(Some(Entries::Numbers(tensor)));
        }
        if let Some(values) = n.floats_attr(&format!("{name}_floats"))?.filter(|values| !values.is_empty()) {
            return Ok(Some(Entries::Numbers(from_f64s(DType::F32, &[values.len()], &values))));
        }
        if let Some(values) = n.ints_attr(&format!("{name}_int64s"))?.filter(|values| !values.is_empty()) {
            return Ok(Some(Entries::Numbers(Tensor::from_vec(&[values.len()], values))));
        }
        let strings = n.strings_attr(&format!("{name}_strings"))?.filter(|strings| !strings.is_empty());
        strings.map(|strings| Entries::strings(n, &strings)).transpose()
    }

    fn strings(n: &mut Node<'_, '_>, strings: &[String]) -> Result<Entries> {
        Ok(Entries::Strings(n.string_tensor(&[strings.len()], strings)?))
    }

    fn len(&self, n: &Node<'_, '_>) -> Result<usize> {
        match self {
            Entries::Numbers(tensor) => Ok(tensor.len()),
            Entries::Strings(strings) => Ok(n.shape(*strings)?.iter().product()),
        }
    }
}

/// Maps numbers or strings to numbers or strings.
pub(super) fn label_encoder(n: &mut Node<'_, '_>) -> Result<Outputs> {
    // Version 1 of the operator numbers the classes in order.
    if let Some(words) = n.strings_attr("classes_strings")? {
        return exchange(n, &words, (0..words.len() as i64).collect());
    }
    let (keys, values) = (Entries::read(n, "keys")?, Entries::read(n, "values")?);
    let (Some(keys), Some(values)) = (keys, values) else {
        return Err(n.invalid_node("expected attributes with keys and values"));
    };
    let default = match &values {
        Entries::Strings(_) => match n.string_tensor_attr("default_tensor")? {
            Some(strings) => strings,
            None => default_string(n)?,
        },
        Entries::Numbers(values) => {
            let default = match n.tensor_attr("default_tensor")? {
                Some(tensor) => tensor,
                None if values.dtype().is_float() => Tensor::scalar(n.float_attr("default_float", 0.0)? as f32),
                None => Tensor::scalar(n.int_attr("default_int64", -1)?),
            };
            n.tensor(default)
        }
    };
    single_output(map_entries(n, keys, values, default)?)
}

/// Maps the elements of input 0, which are keys, to the values at the same positions, and others to the default.
fn map_entries(n: &mut Node<'_, '_>, keys: Entries, values: Entries, default: ExprId) -> Result<ExprId> {
    let (key_count, value_count) = (keys.len(n)?, values.len(n)?);
    if key_count != value_count {
        return Err(n.invalid_node(format!("expected {key_count} values, one per key, found {value_count}")));
    }
    let (is_known, position) = match keys {
        Entries::Strings(keys) => {
            let strings = n.strings(0)?;
            let position = text::lookup(n, strings, keys)?;
            (n.with_scalar("greater_equal", position, 0.0)?, n.with_scalar("maximum", position, 0.0)?)
        }
        Entries::Numbers(keys) => number_position(n, keys)?,
    };
    let values = match values {
        Entries::Numbers(values) => n.tensor(values),
        Entries::Strings(values) => {
            let bytes = n.string_bytes(values);
            let spans = n.op("take", &[values, position], attrs![axis: 0, mode: "fast"])?;
            let strings = bytes.map_or(spans, |bytes| n.with_bytes(spans, bytes));
            return text::or_default(n, is_known, strings, default);
        }
    };
    let dtype = n.dtype(values)?;
    let value = n.op("take", &[values, position], attrs![axis: 0, mode: "fast"])?;
    let default = n.reshape(default, &[])?;
    let default = n.cast(default, dtype)?;
    n.op_without_attrs("where", &[is_known, value, default])
}

/// Returns whether each number in input 0 is a key, and its position among the keys, by comparing it with all of them.
fn number_position(n: &mut Node<'_, '_>, keys: Tensor) -> Result<(ExprId, ExprId)> {
    let is_nan_key = keys.view().to_f64s().iter().map(|key| key.is_nan()).collect::<Vec<_>>();
    let data = numbers(n, 0)?;
    let data = n.cast(data, keys.dtype())?;
    let data = n.op("expand_dims", &[data], attrs![axis: -1i64])?;
    let keys = n.tensor(keys);
    let mut is_key = n.op_without_attrs("equal", &[data, keys])?;
    if is_nan_key.contains(&true) {
        let (is_nan, is_nan_key) = (n.op_without_attrs("isnan", &[data])?, n.bools(&is_nan_key));
        let both_nan = n.op_without_attrs("logical_and", &[is_nan, is_nan_key])?;
        is_key = n.op_without_attrs("logical_or", &[is_key, both_nan])?;
    }
    let has_key = n.op("any", &[is_key], attrs![axis: [-1i64]])?;
    let is_key = n.cast(is_key, DType::F32)?;
    Ok((has_key, n.op("argmax", &[is_key], attrs![axis: [-1i64]])?))
}

/// Returns input `i`, which must be numbers.
fn numbers(n: &Node<'_, '_>, i: usize) -> Result<ExprId> {
    let value = n.input(i)?;
    if n.has_strings(value) {
        let message = format!("input {i}: expected numbers, as the attributes have numbers, found strings");
        return Err(Box::new(n.error(codes::frontends::STRING_MISUSE, message)));
    }
    Ok(value)
}

/// Maps strings to numbers or numbers to strings, depending on the input.
fn exchange(n: &mut Node<'_, '_>, words: &[String], numbers: Vec<i64>) -> Result<Outputs> {
    let words = Entries::strings(n, words)?;
    let numbers = Entries::Numbers(Tensor::from_vec(&[numbers.len()], numbers));
    if n.has_strings(n.input(0)?) {
        let default = n.tensor(Tensor::scalar(n.int_attr("default_int64", -1)?));
        return single_output(map_entries(n, words, numbers, default)?);
    }
    let default = default_string(n)?;
    single_output(map_entries(n, numbers, words, default)?)
}

/// Returns the string for elements that are no key.
fn default_string(n: &mut Node<'_, '_>) -> Result<ExprId> {
    let default = n.str_attr("default_string", "_Unused")?;
    n.string_tensor(&[], &[default])
}

pub(super) fn category_mapper(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let words = n.strings_attr("cats_strings")?.unwrap_or_default();
    let numbers = n.ints_attr("cats_int64s")?.unwrap_or_default();
    exchange(n, &words, numbers)
}

pub(super) fn one_hot_encoder(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let (data, categories) = if n.has_strings(data) {
        let words = n.strings_attr("cats_strings")?.unwrap_or_default();
        let (strings, keys) = (n.strings(0)?, n.string_tensor(&[words.len()], &words)?);
        let is_required = n.int_attr("zeros", 1)? == 0;
        (text::lookup_of(n, strings, keys, is_required)?, (0..words.len() as i64).collect())
    } else {
        (n.cast(data, DType::I64)?, n.ints_attr("cats_int64s")?.unwrap_or_default())
    };
    if categories.is_empty() {
        return Err(n.invalid_node("expected categories of the type of the input, found none"));
    }
    let data = n.op("expand_dims", &[data], attrs![axis: -1i64])?;
    let categories = n.vector(&categories);
    let is_category = n.op_without_attrs("equal", &[data, categories])?;
    single_output(n.cast(is_category, DType::F32)?)
}

/// Creates a map from labels to values for each row of input 0. The labels are in ascending order, as in ONNX Runtime's
/// maps.
fn zip_map(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let labels = class_labels(n, "classlabels_int64s", "classlabels_strings")?;
    let data = n.input(0)?;
    let rows = if n.rank(data)? == 1 { n.op("expand_dims", &[data], attrs![axis: 0])? } else { data };
    let [_, columns] = n.dims_of_rank::<2>(rows)?;
    if let Some(columns) = columns.fixed().filter(|&columns| columns != labels.len()) {
        return Err(n.invalid_node(format!("expected {columns} class labels, one per column, found {}", labels.len())));
    }
    let mut order: Vec<usize> = (0..labels.len()).collect();
    match &labels {
        Labels::Numbers(labels) => order.sort_by_key(|&i| labels[i]),
        Labels::Strings(labels) => order.sort_by_key(|&i| &labels[i]),
    }
    let order: Vec<i64> = order.into_iter().map(|i| i as i64).collect();
    let order = n.vector(&order);
    let rows = n.op("take", &[rows, order], attrs![axis: 1, mode: "fast"])?;
    let keys = labels_of(n, &labels, order)?;
    let bytes = n.string_bytes(keys);
    let maps = n.maps(rows, keys)?;
    single_output(bytes.map_or(maps, |bytes| n.with_bytes(maps, bytes)))
}
