//! Convolutions in one, two and three dimensions, and the window geometry shared with pooling.

use super::{Node, Outputs, Result, Row, attrs, single_output};
use byoc_ir::diag::codes;
use byoc_ir::ir::{AttrValue, Dim, DimExpr, ExprId};

pub const ROWS: &[Row] = &[("Conv", 1, conv), ("ConvTranspose", 1, conv_transpose)];

/// Geometry of a window over the spatial axes. All lists have one value per axis; `auto_pad` is resolved to explicit
/// padding.
pub struct Geometry {
    pub kernel: Vec<usize>,
    pub strides: Vec<usize>,
    pub dilations: Vec<usize>,
    /// Padding before the data.
    pub begin: Vec<i64>,
    /// Padding after the data.
    pub end: Vec<i64>,
}

impl Geometry {
    /// Returns the padding before the data along each axis, then the padding after the data along each axis, as in
    /// Relay.
    pub fn padding(&self) -> AttrValue {
        AttrValue::ints(self.begin.iter().chain(&self.end).copied())
    }

    /// Returns the extent of the dilated window along an axis.
    pub fn extent(&self, axis: usize) -> usize {
        self.dilations[axis].saturating_mul(self.kernel[axis].saturating_sub(1)).saturating_add(1)
    }
}

/// Converts a list of integers to an attribute value.
pub fn ints(values: &[usize]) -> AttrValue {
    AttrValue::ints(values.iter().map(|&v| v as i64))
}

/// Values of `auto_pad`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum AutoPad {
    /// Explicit padding from the attribute `pads`.
    Not,
    /// No padding.
    Valid,
    /// Padding such that the number of windows is the dimension divided by the stride, rounded up; if the total padding
    /// is odd, the extra element is placed after the data.
    SameUpper,
    /// Same as `SameUpper`, but the extra element of an odd total padding is placed before the data.
    SameLower,
}

/// Reads the attribute `auto_pad`.
pub fn auto_pad(n: &Node<'_, '_>) -> Result<AutoPad> {
    match n.str_attr("auto_pad", "NOTSET")?.as_str() {
        "NOTSET" | "" => Ok(AutoPad::Not),
        "VALID" => Ok(AutoPad::Valid),
        "SAME_UPPER" => Ok(AutoPad::SameUpper),
        "SAME_LOWER" => Ok(AutoPad::SameLower),
        other => Err(n.invalid_node(format!(
            "attribute auto_pad: expected NOTSET, VALID, SAME_UPPER or SAME_LOWER, found \"{other}\""
        ))),
    }
}

/// Reads a list attribute with one positive value per spatial axis; the default is 1.
pub fn axis_attr(n: &Node<'_, '_>, name: &str, axes: usize) -> Result<Vec<usize>> {
    let Some(values) = n.ints_attr(name)? else { return Ok(vec![1; axes]) };
    let positive: Option<Vec<usize>> =
        values.iter().map(|&v| usize::try_from(v).ok().filter(|v| (1..1 << 31).contains(v))).collect();
    match positive {
        Some(values) if values.len() == axes => Ok(values),
        _ => Err(n.invalid_node(format!("attribute {name}: expected {axes} integers >= 1, found {values:?}"))),
    }
}

/// Data and window geometry of a window operator.
pub struct Windows {
    /// Data, already padded if the padding depends on dimensions known only at run time.
    pub data: ExprId,
    pub geometry: Geometry,
}

/// Reads the geometry of a window over data with the spatial dimensions `spatial`. Padding that depends on unknown
/// dimensions is added to the data at run time, with the value `fill`.
pub fn windows(n: &mut Node<'_, '_>, data: ExprId, kernel: Vec<usize>, spatial: &[Dim], fill: f64) -> Result<Windows> {
    let axes = spatial.len();
    let (strides, dilations) = (axis_attr(n, "strides", axes)?, axis_attr(n, "dilations", axes)?);
    let mut geometry = Geometry { kernel, strides, dilations, begin: vec![0; axes], end: vec![0; axes] };
    let mut unresolved_axes = Vec::new();
    match auto_pad(n)? {
        AutoPad::Valid => {}
        AutoPad::Not => {
            if let Some([begin, end]) = explicit_padding(n, axes)? {
                (geometry.begin, geometry.end) = (begin, end);
            }
        }
        padding_mode @ (AutoPad::SameUpper | AutoPad::SameLower) => {
            for (axis, size) in spatial.iter().enumerate() {
                let stride = geometry.strides[axis];
                let total_padding = match size.fixed() {
                    Some(size) => {
                        let last_position = size.div_ceil(stride).saturating_sub(1);
                        last_position.saturating_mul(stride).saturating_add(geometry.extent(axis)).saturating_sub(size)
                    }
                    None if stride == 1 => geometry.extent(axis) - 1,
                    None => {
                        let total_padding = same_padding(size, stride, geometry.extent(axis));
                        let total_padding = total_padding.ok_or_else(|| {
                            n.invalid_node(format!("axis {axis}: the padding of {size} elements overflows"))
                        })?;
                        unresolved_axes.push((axis, total_padding));
                        continue;
                    }
                };
                let (smaller_half, larger_half) =
                    (total_padding as i64 / 2, total_padding as i64 - total_padding as i64 / 2);
                let is_upper = padding_mode == AutoPad::SameUpper;
                geometry.begin[axis] = if is_upper { smaller_half } else { larger_half };
                geometry.end[axis] = if is_upper { larger_half } else { smaller_half };
            }
            let data = pad_open(n, data, &unresolved_axes, padding_mode, fill)?;
            return Ok(Windows { data, geometry });
        }
    }
    Ok(Windows { data, geometry })
}

/// Reads the attribute `pads`: the padding before the data along each axis, then the padding after the data along each
/// axis.
fn explicit_padding(n: &Node<'_, '_>, axes: usize) -> Result<Option<[Vec<i64>; 2]>> {
    let Some(pads) = n.ints_attr("pads")? else { return Ok(None) };
    if pads.len() != 2 * axes || pads.iter().any(|p| !(0..1 << 31).contains(p)) {
        return Err(n.invalid_node(format!("attribute pads: expected {} integers >= 0, found {pads:?}", 2 * axes)));
    }
    Ok(Some([pads[..axes].to_vec(), pads[axes..].to_vec()]))
}

/// Returns the total `SAME_UPPER` or `SAME_LOWER` padding along an axis: max((ceil(size / stride) - 1) * stride +
/// extent - size, 0).
fn same_padding(size: &Dim, stride: usize, extent: usize) -> Option<DimExpr> {
    let (size, stride) = (DimExpr::of(size)?, i64::try_from(stride).ok()?);
    let last_position = size.offset(stride - 1)?.floor_div(&DimExpr::constant(stride))?.offset(-1)?;
    let padding_size = last_position.scale(stride)?.offset(i64::try_from(extent).ok()?)?.sub(&size)?;
    padding_size.maximum(&DimExpr::constant(0))
}

/// Pads spatial axes of `data` by widths computed at run time.
fn pad_open(
    n: &mut Node<'_, '_>,
    data: ExprId,
    total_paddings: &[(usize, DimExpr)],
    auto_pad: AutoPad,
    fill: f64,
) -> Result<ExprId> {
    if total_paddings.is_empty() {
        return Ok(data);
    }
    let mut dims = n.dims(data)?;
    let mut width = vec![DimExpr::constant(0); 2 * dims.len()];
    for (axis, total_padding) in total_paddings {
        let smaller_half = total_padding.floor_div(&DimExpr::constant(2));
        let larger_half = smaller_half.as_ref().and_then(|smaller_half| total_padding.sub(smaller_half));
        let (Some(smaller_half), Some(larger_half)) = (smaller_half, larger_half) else {
            return Err(n.invalid_node(format!("axis {axis}: the padding {total_padding} overflows")));
        };
        let pad_pair =
            if auto_pad == AutoPad::SameUpper { [smaller_half, larger_half] } else { [larger_half, smaller_half] };
        width[2 * (axis + 2)..2 * (axis + 3)].clone_from_slice(&pad_pair);
        dims[axis + 2] = Dim::compute([&dims[axis + 2]], |[size]| size.add(total_padding));
    }
    let count = dims.len();
    let width = n.size_vector(&width)?;
    let width = n.reshape(width, &[count, 2])?;
    let value = n.scalar(n.dtype(data)?, fill);
    let padded_data = n.op("dyn.nn.pad", &[data, width, value], attrs![pad_mode: "constant"])?;
    n.name_dims(padded_data, &dims);
    Ok(padded_data)
}

/// Returns the one to three spatial dimensions of data (batch, channels, spatial..).
pub fn spatial_dims(n: &mut Node<'_, '_>, data: ExprId) -> Result<Vec<Dim>> {
    let dims = n.dims(data)?;
    if !(3..=5).contains(&dims.len()) {
        return Err(n.invalid_node(format!("expected data of rank 3 to 5, found rank {}", dims.len())));
    }
    Ok(dims[2..].to_vec())
}

/// Returns the spatial dimensions of the weight, after checking `kernel_shape` against them.
pub fn kernel_sizes(n: &Node<'_, '_>, weight: &[Dim]) -> Result<Vec<usize>> {
    let kernel_shape = n.ints_attr("kernel_shape")?.filter(|kernel_shape| !kernel_shape.is_empty());
    let agrees = |kernel_shape: &[i64]| {
        let matches_dim = |(&size, dim): (&i64, &Dim)| dim.fixed().is_none_or(|dim| i128::from(size) == dim as i128);
        kernel_shape.len() == weight.len() - 2 && kernel_shape.iter().zip(&weight[2..]).all(matches_dim)
    };
    if let Some(kernel_shape) = &kernel_shape
        && !agrees(kernel_shape)
    {
        let kernel: Vec<String> = weight[2..].iter().map(Dim::to_string).collect();
        return Err(n.invalid_node(format!(
            "attribute kernel_shape: expected [{}] as in the weight, found {kernel_shape:?}",
            kernel.join(", ")
        )));
    }
    let attribute_size =
        |axis: usize| kernel_shape.as_ref().and_then(|kernel_shape| usize::try_from(kernel_shape[axis]).ok());
    let sizes = weight[2..].iter().enumerate().map(|(axis, dim)| dim.fixed().or_else(|| attribute_size(axis)));
    sizes.collect::<Option<Vec<usize>>>().ok_or_else(|| {
        let message =
            "missing attribute kernel_shape, which is required because the weight shape is unknown".to_owned();
        Box::new(n.error(codes::frontends::NOT_CONSTANT, message))
    })
}

pub(super) fn conv(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, weight) = (n.input(0)?, n.input(1)?);
    let spatial = spatial_dims(n, data)?;
    let weight_dims = n.dims(weight)?;
    if weight_dims.len() != spatial.len() + 2 {
        return Err(n.invalid_node(format!(
            "expected a weight with {} spatial axes, found {}",
            spatial.len(),
            n.ty(weight)?
        )));
    }
    let kernel = kernel_sizes(n, &weight_dims)?;
    let Windows { data, geometry } = windows(n, data, kernel, &spatial, 0.0)?;
    let op = ["nn.conv1d", "nn.conv2d", "nn.conv3d"][spatial.len() - 1];
    let mut attributes = attrs![
        strides: ints(&geometry.strides),
        padding: geometry.padding(),
        dilation: ints(&geometry.dilations),
        groups: n.int_attr("group", 1)?,
        kernel_size: ints(&geometry.kernel),
    ];
    if let Some(channels) = weight_dims[0].fixed() {
        attributes = attributes.with("channels", channels as i64);
    }
    let product = n.op(op, &[data, weight], attributes)?;
    single_output(with_bias(n, product)?)
}

/// Adds the bias (input 2), if present, along the channel axis.
fn with_bias(n: &mut Node<'_, '_>, product: ExprId) -> Result<ExprId> {
    match n.optional_input(2) {
        Some(bias) => n.op("nn.bias_add", &[product, bias], attrs![axis: 1]),
        None => Ok(product),
    }
}

fn conv_transpose(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, weight) = (n.input(0)?, n.input(1)?);
    let spatial = spatial_dims(n, data)?;
    let axes = spatial.len();
    let weight_dims = n.dims(weight)?;
    if weight_dims.len() != axes + 2 {
        return Err(n.invalid_node(format!("expected a weight with {axes} spatial axes, found {}", n.ty(weight)?)));
    }
    let groups = n.int_attr("group", 1)?;
    let Some(per_group) = weight_dims[1].fixed() else { return Err(n.unknown_dims_error(&n.ty(weight)?)) };
    let channels = usize::try_from(groups).ok().and_then(|g| per_group.checked_mul(g));
    let channels =
        channels.ok_or_else(|| n.invalid_node(format!("attribute group: expected an integer >= 1, found {groups}")))?;
    let mut window = Geometry {
        kernel: kernel_sizes(n, &weight_dims)?,
        strides: axis_attr(n, "strides", axes)?,
        dilations: axis_attr(n, "dilations", axes)?,
        begin: vec![0; axes],
        end: vec![0; axes],
    };
    let mut output_padding = n.ints_attr("output_padding")?.unwrap_or_else(|| vec![0; axes]);
    if output_padding.len() != axes || output_padding.iter().any(|p| !(0..1 << 31).contains(p)) {
        return Err(n.invalid_node(format!(
            "attribute output_padding: expected {axes} integers >= 0, found {output_padding:?}"
        )));
    }
    let mode = auto_pad(n)?;
    let mut output_shape = n.ints_attr("output_shape")?;
    if let Some(shape) = &output_shape
        && shape.len() > axes
    {
        // Some exporters include batch and channels in `output_shape`.
        output_shape = Some(shape[shape.len() - axes..].to_vec());
    }
    let is_same = matches!(mode, AutoPad::SameUpper | AutoPad::SameLower);
    if let Some(shape) = &output_shape
        && (shape.len() != axes || shape.iter().any(|d| !(0..1 << 40).contains(d)))
    {
        return Err(n.invalid_node(format!("attribute output_shape: expected {axes} integers >= 0, found {shape:?}")));
    }
    match output_shape {
        _ if output_shape.is_some() || is_same => {
            for axis in 0..axes {
                let stride = window.strides[axis] as i64;
                let padded_extent = output_padding[axis] + window.extent(axis) as i64;
                let total_padding = match &output_shape {
                    // The result has `stride` elements per data element.
                    None => padded_extent - stride,
                    Some(shape) => {
                        let Some(size) = spatial[axis].fixed() else { return Err(n.unknown_dims_error(&n.ty(data)?)) };
                        let full_size =
                            (size.saturating_sub(1) as i64).saturating_mul(stride).saturating_add(padded_extent);
                        full_size.saturating_sub(shape[axis])
                    }
                };
                if total_padding < 0 {
                    output_padding[axis] -= total_padding;
                    continue;
                }
                let (smaller_half, larger_half) = (total_padding / 2, total_padding - total_padding / 2);
                let is_upper = mode == AutoPad::SameUpper;
                window.begin[axis] = if is_upper { smaller_half } else { larger_half };
                window.end[axis] = if is_upper { larger_half } else { smaller_half };
            }
        }
        _ if mode == AutoPad::Not => {
            if let Some([begin, end]) = explicit_padding(n, axes)? {
                (window.begin, window.end) = (begin, end);
            }
        }
        _ => {}
    }
    let op = ["nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"][axes - 1];
    let product = n.op(
        op,
        &[data, weight],
        attrs![
            strides: ints(&window.strides),
            padding: window.padding(),
            output_padding: output_padding,
            dilation: ints(&window.dilations),
            groups: groups,
            channels: channels as i64,
            kernel_size: ints(&window.kernel),
        ],
    )?;
    single_output(with_bias(n, product)?)
}
