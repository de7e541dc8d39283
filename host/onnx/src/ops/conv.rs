//! Convolutions in one, two and three dimensions, and the window geometry that they share with pooling.

use super::{Node, Outputs, Result, Row, attrs, one};
use byoc_ir::ir::{AttrValue, Dim, ExprId};

pub const ROWS: &[Row] = &[("Conv", 1, conv), ("ConvTranspose", 1, conv_transpose)];

/// Geometry of a window on the spatial axes. All lists have one value per axis; `auto_pad` is resolved to explicit
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
    /// Returns the padding before all axes, then after all axes, as in Relay.
    pub fn padding(&self) -> AttrValue {
        AttrValue::ints(self.begin.iter().chain(&self.end).copied())
    }

    /// Returns the extent of the dilated window on an axis.
    pub fn extent(&self, axis: usize) -> usize {
        self.dilations[axis].saturating_mul(self.kernel[axis].saturating_sub(1)).saturating_add(1)
    }
}

/// Converts a list of integers to an attribute.
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
    /// Padding such that there is one window per stride of the data; an odd element of padding goes after the data.
    SameUpper,
    /// Same as `SameUpper`, but an odd element of padding goes before the data.
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
pub fn per_axis(n: &Node<'_, '_>, name: &str, axes: usize) -> Result<Vec<usize>> {
    let Some(values) = n.ints_attr(name)? else { return Ok(vec![1; axes]) };
    let positive: Option<Vec<usize>> =
        values.iter().map(|&v| usize::try_from(v).ok().filter(|v| (1..1 << 31).contains(v))).collect();
    match positive {
        Some(values) if values.len() == axes => Ok(values),
        _ => Err(n.invalid_node(format!("attribute {name}: expected {axes} integers >= 1, found {values:?}"))),
    }
}

/// Reads the geometry of a window over data with the spatial dimensions `spatial`.
pub fn geometry(n: &Node<'_, '_>, kernel: Vec<usize>, spatial: &[usize]) -> Result<Geometry> {
    let axes = spatial.len();
    let (strides, dilations) = (per_axis(n, "strides", axes)?, per_axis(n, "dilations", axes)?);
    let mut geometry = Geometry { kernel, strides, dilations, begin: vec![0; axes], end: vec![0; axes] };
    match auto_pad(n)? {
        AutoPad::Valid => {}
        AutoPad::Not => {
            if let Some(pads) = n.ints_attr("pads")? {
                if pads.len() != 2 * axes || pads.iter().any(|p| !(0..1 << 31).contains(p)) {
                    return Err(
                        n.invalid_node(format!("attribute pads: expected {} integers >= 0, found {pads:?}", 2 * axes))
                    );
                }
                geometry.begin = pads[..axes].to_vec();
                geometry.end = pads[axes..].to_vec();
            }
        }
        side @ (AutoPad::SameUpper | AutoPad::SameLower) => {
            for (axis, &size) in spatial.iter().enumerate() {
                let stride = geometry.strides[axis];
                let places = size.div_ceil(stride);
                let wanted = places.saturating_sub(1).saturating_mul(stride).saturating_add(geometry.extent(axis));
                let total = wanted.saturating_sub(size) as i64;
                let (small, large) = (total / 2, total - total / 2);
                let upper = side == AutoPad::SameUpper;
                geometry.begin[axis] = if upper { small } else { large };
                geometry.end[axis] = if upper { large } else { small };
            }
        }
    }
    Ok(geometry)
}

/// Returns the spatial dimensions of data (batch, channels, spatial..), of which there may be one to three.
pub fn spatial(n: &Node<'_, '_>, data: ExprId) -> Result<Vec<usize>> {
    let ty = n.ty(data)?;
    if !(3..=5).contains(&ty.dims.len()) {
        return Err(n.invalid_node(format!("expected data of rank 3 to 5, found rank {}", ty.dims.len())));
    }
    let spatial: Option<Vec<usize>> = ty.dims[2..].iter().map(Dim::fixed).collect();
    spatial.ok_or_else(|| n.unknown_dims_error(&ty))
}

/// Returns the spatial dimensions of the weight, after checking that `kernel_shape` agrees with them.
pub fn kernel(n: &Node<'_, '_>, weight: &[usize]) -> Result<Vec<usize>> {
    let kernel = weight[2..].to_vec();
    if let Some(given) = n.ints_attr("kernel_shape")?
        && !given.is_empty()
        && !given.iter().map(|&v| v as i128).eq(kernel.iter().map(|&v| v as i128))
    {
        return Err(
            n.invalid_node(format!("attribute kernel_shape: expected {kernel:?} as in the weight, found {given:?}"))
        );
    }
    Ok(kernel)
}

fn conv(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, weight) = (n.input(0)?, n.input(1)?);
    let spatial = spatial(n, data)?;
    let weight_shape = n.shape(weight)?;
    if weight_shape.len() != spatial.len() + 2 {
        return Err(n.invalid_node(format!(
            "expected a weight with {} spatial axes, found shape {weight_shape:?}",
            spatial.len()
        )));
    }
    let geometry = geometry(n, kernel(n, &weight_shape)?, &spatial)?;
    let op = ["nn.conv1d", "nn.conv2d", "nn.conv3d"][spatial.len() - 1];
    let product = n.op(
        op,
        &[data, weight],
        attrs![
            strides: ints(&geometry.strides),
            padding: geometry.padding(),
            dilation: ints(&geometry.dilations),
            groups: n.int_attr("group", 1)?,
            channels: weight_shape[0] as i64,
            kernel_size: ints(&geometry.kernel),
        ],
    )?;
    one(with_bias(n, product)?)
}

/// Adds the bias, input 2, along the channels, if it is given.
fn with_bias(n: &mut Node<'_, '_>, product: ExprId) -> Result<ExprId> {
    match n.optional_input(2) {
        Some(bias) => n.op("nn.bias_add", &[product, bias], attrs![axis: 1]),
        None => Ok(product),
    }
}

fn conv_transpose(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, weight) = (n.input(0)?, n.input(1)?);
    let spatial = spatial(n, data)?;
    let axes = spatial.len();
    let weight_shape = n.shape(weight)?;
    if weight_shape.len() != axes + 2 {
        return Err(n.invalid_node(format!("expected a weight with {axes} spatial axes, found shape {weight_shape:?}")));
    }
    let groups = n.int_attr("group", 1)?;
    let channels = usize::try_from(groups).ok().and_then(|g| weight_shape[1].checked_mul(g));
    let channels = channels.ok_or_else(|| n.invalid_node(format!("attribute group: unsupported value {groups}")))?;
    let mut window = Geometry {
        kernel: kernel(n, &weight_shape)?,
        strides: per_axis(n, "strides", axes)?,
        dilations: per_axis(n, "dilations", axes)?,
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
    let mut wanted = n.ints_attr("output_shape")?;
    if let Some(shape) = &wanted
        && shape.len() > axes
    {
        // Some exporters include batch and channels in `output_shape`.
        wanted = Some(shape[shape.len() - axes..].to_vec());
    }
    if wanted.is_none() && matches!(mode, AutoPad::SameUpper | AutoPad::SameLower) {
        wanted = Some(spatial.iter().zip(&window.strides).map(|(&d, &s)| d.saturating_mul(s) as i64).collect());
    }
    match wanted {
        Some(shape) => {
            if shape.len() != axes || shape.iter().any(|d| !(0..1 << 40).contains(d)) {
                return Err(
                    n.invalid_node(format!("attribute output_shape: expected {axes} integers >= 0, found {shape:?}"))
                );
            }
            for axis in 0..axes {
                let full = (spatial[axis].saturating_sub(1) as i64).saturating_mul(window.strides[axis] as i64)
                    + output_padding[axis]
                    + window.extent(axis) as i64;
                let total = full.saturating_sub(shape[axis]);
                if total < 0 {
                    output_padding[axis] -= total;
                    continue;
                }
                let (small, large) = (total / 2, total - total / 2);
                let upper = mode == AutoPad::SameUpper;
                window.begin[axis] = if upper { small } else { large };
                window.end[axis] = if upper { large } else { small };
            }
        }
        None if mode == AutoPad::Not => {
            if let Some(pads) = n.ints_attr("pads")? {
                if pads.len() != 2 * axes || pads.iter().any(|p| !(0..1 << 31).contains(p)) {
                    return Err(
                        n.invalid_node(format!("attribute pads: expected {} integers >= 0, found {pads:?}", 2 * axes))
                    );
                }
                window.begin = pads[..axes].to_vec();
                window.end = pads[axes..].to_vec();
            }
        }
        None => {}
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
    one(with_bias(n, product)?)
}
