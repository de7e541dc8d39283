//! Converts convolutions and pooling to the requested layout (`NCHW` to `NHWC`, or back). A `layout_transform` is
//! inserted where a value enters or leaves that layout.
//!
//! A value stays in the new layout if its users can be converted, too: elementwise and broadcasting operators,
//! `nn.bias_add` and `nn.prelu` with the axis moved, pooling with a different layout attribute, and `concatenate`. An
//! operator with several operands is converted if at least as many operands are in the new layout as would have to be
//! transformed; constants are not counted, since their transforms are folded. Weights are transformed as well. All
//! other users read the value in its original layout.
//!
//! A layout may store channels in blocks (`NCHW8c`, with kernels `OIHW8i8o`). In such a layout, a bias is added by an
//! `add` with the bias in the same layout, and an operand with one channel gets blocks of size 1. A convolution with
//! groups, or whose channels are not a multiple of the block size, keeps its layout, with a warning.

use crate::analysis::scope::{functions, rewritable_exprs};
use crate::pass::options::DesiredLayout;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::{AttrValue, Attrs, Call, Callee, Expr, ExprId, IndexVec, Module, Name, OpId, ScopeId, Scopes, Type};
use byoc_ir::op::facts::LayoutRule;
use byoc_ir::op::layout::Layout;
use byoc_ir::op::{self, Params};
use byoc_ir::typing::Rebuild;
use std::collections::HashMap;

/// Converts layouts. A warning is added for each kind of operator that keeps its layout despite a request.
///
/// # Errors
/// See [`check_layouts`].
pub fn convert_layout(module: &Module, requested: &[DesiredLayout], warnings: &mut Vec<Diagnostic>) -> Result<Module> {
    check_layouts(requested)?;
    let is_rewritable = rewritable_exprs(module);
    let scopes = Scopes::of_module(module);
    let functions = functions(module, &scopes);
    let mut converter = Converter {
        requested,
        warnings,
        conversions: IndexVec::filled(None, module.nodes.len()),
        function: Scopes::root(),
        transforms: HashMap::new(),
    };
    Rebuild::run(module, |rebuild, id, expr| match (expr.as_op_call(), scopes.scope_of[id]) {
        (Some((operator, call)), Some(scope)) if is_rewritable[id] => {
            converter.function = functions[scope];
            converter.convert(rebuild, id, operator, call)
        }
        _ => Ok(None),
    })
}

/// Returns the rule by which an operator is converted to another layout.
fn layout_rule(name: &str) -> LayoutRule {
    op::lookup(name).map_or(LayoutRule::Fixed, |operator| op::get(operator).properties.layout)
}

/// Returns true if a layout has exactly the axes `letters`, and blocks only of axes in `channels`, at most one per
/// axis.
fn is_layout_of(text: &str, letters: &str, channels: &str) -> bool {
    let Some(Layout(dims)) = Layout::parse(text) else { return false };
    let blocks: Vec<char> = dims.iter().filter(|(_, part)| part.is_some()).map(|(letter, _)| *letter).collect();
    dims.len() == letters.len() + blocks.len()
        && letters.chars().all(|letter| dims.contains(&(letter, None)))
        && blocks.iter().all(|letter| channels.contains(*letter) && blocks.iter().filter(|b| *b == letter).count() == 1)
}

fn has_blocks(layout: &str) -> bool {
    layout.contains(|c: char| c.is_ascii_lowercase())
}

/// Returns the block size of an axis; 1 without blocks.
fn block_size(layout: &str, letter: char) -> usize {
    Layout::parse(layout).and_then(|layout| layout.factor(letter)).unwrap_or(1)
}

/// Returns the dimension of a tensor along an axis, including the block; `None` if it is unknown.
fn dimension_with_block(ty: &Type, layout: &str, letter: char) -> Option<usize> {
    let layout = Layout::parse(layout)?;
    let dims = &ty.as_tensor().filter(|ty| ty.dims.len() == layout.0.len())?.dims;
    let position = layout.0.iter().position(|dim| *dim == (letter, None))?;
    dims[position].fixed()?.checked_mul(layout.factor(letter)?)
}

/// Checks that [`convert_layout`] can satisfy all requests.
///
/// # Errors
/// E0341 if there is no request, or if a request cannot be satisfied.
pub fn check_layouts(requested: &[DesiredLayout]) -> Result<()> {
    let fail = |message: String, help: &str| {
        Err(Box::new(Diagnostic::error(codes::passes::BAD_LAYOUT, message).help(help.to_owned())))
    };
    if requested.is_empty() {
        let message = "expected at least one layout for convert_layout, found none";
        return fail(message.into(), "pass --layout nn.conv2d=NHWC");
    }
    for DesiredLayout { operator, data, kernel } in requested {
        if !matches!(layout_rule(operator), LayoutRule::Conv2d | LayoutRule::Window2d) {
            return fail(
                format!("convert_layout cannot change the layout of \"{operator}\""),
                "request a layout for nn.conv2d or two-dimensional pooling; their users follow",
            );
        }
        if !is_layout_of(data, "NCHW", "C") {
            return fail(
                format!("{operator}: expected a layout of N, C, H and W, found \"{data}\""),
                "specify NCHW or NHWC, or a layout with channels in blocks, such as NCHW8c",
            );
        }
        match kernel {
            Some(kernel) if layout_rule(operator) != LayoutRule::Conv2d || !is_layout_of(kernel, "OIHW", "OI") => {
                return fail(
                    format!("{operator}: unsupported kernel layout \"{kernel}\""),
                    "specify a kernel layout only for nn.conv2d: OIHW or HWIO, or OIHW8i8o with NCHW8c",
                );
            }
            _ => {}
        }
    }
    Ok(())
}

/// Conversion from one layout to another.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Change {
    source: Name,
    target: Name,
}

impl Change {
    /// Maps an axis of the old layout to an axis of the new layout.
    fn axis(&self, axis: i64) -> Option<i64> {
        let (letter, _) =
            *Layout::parse(&self.source)?.0.get(self.old_axis(axis)?).filter(|(_, part)| part.is_none())?;
        Layout::parse(&self.target)?.0.iter().position(|dim| *dim == (letter, None)).map(|i| i as i64)
    }

    fn old_axis(&self, axis: i64) -> Option<usize> {
        usize::try_from(if axis < 0 { axis + self.rank() as i64 } else { axis }).ok()
    }

    /// Returns the rank of the old layout.
    fn rank(&self) -> usize {
        Layout::parse(&self.source).map_or(0, |layout| layout.0.len())
    }

    fn has_blocks(&self) -> bool {
        has_blocks(&self.source) || has_blocks(&self.target)
    }

    /// Returns the conversion for an operand with one channel, which is broadcast: its blocks have one element.
    fn with_blocks_of_one(&self) -> Change {
        let mut text = String::new();
        for (letter, part) in Layout::parse(&self.target).map(|layout| layout.0).unwrap_or_default() {
            match part {
                None => text.push(letter),
                Some(_) => text.extend(['1', letter.to_ascii_lowercase()]),
            }
        }
        Change { source: self.source.clone(), target: text.into() }
    }

    /// Returns the number of channels of an operand in the old layout, possibly of lower rank. Returns `None` if the
    /// number is unknown, or if the operand is not a tensor.
    fn channels(&self, ty: &Type) -> Option<usize> {
        let dims = &ty.as_tensor()?.dims;
        let layout = Layout::parse(&self.source)?;
        let missing_rank = layout.0.len().checked_sub(dims.len())?;
        let position = layout.0.iter().position(|dim| *dim == ('C', None))?;
        if position < missing_rank {
            Some(1)
        } else {
            dims[position - missing_rank].fixed()?.checked_mul(layout.factor('C')?)
        }
    }

    /// Returns true if an operand can be converted to the new layout: its channels fill whole blocks, or are broadcast.
    fn applies_to(&self, ty: &Type, is_broadcast: bool) -> bool {
        let Some(tensor) = ty.as_tensor() else { return false };
        if !self.has_blocks() || tensor.dims.is_empty() {
            return true;
        }
        let is_whole = |layout: &Layout| {
            layout.0.len() == tensor.dims.len()
                && layout.0.iter().zip(&tensor.dims).all(|((_, part), dim)| part.is_none_or(|n| dim.fixed() == Some(n)))
        };
        if has_blocks(&self.source) && !Layout::parse(&self.source).is_some_and(|layout| is_whole(&layout)) {
            return false;
        }
        match self.channels(ty) {
            Some(1) if is_broadcast => true,
            Some(channels) => channels.is_multiple_of(block_size(&self.target, 'C')),
            None => false,
        }
    }
}

struct Converter<'w> {
    requested: &'w [DesiredLayout],
    warnings: &'w mut Vec<Diagnostic>,
    /// Converted value, in the new module, of each expression of the old module.
    conversions: IndexVec<ExprId, Option<(ExprId, Change)>>,
    /// Function whose body is being rebuilt. Functions may share constants, but not the transforms of constants.
    function: ScopeId,
    /// Existing transforms, by function, operand and conversion.
    transforms: HashMap<(ScopeId, ExprId, Change), ExprId>,
}

type Result<T, E = Box<Diagnostic>> = std::result::Result<T, E>;

impl Converter<'_> {
    fn convert(
        &mut self,
        rebuild: &mut Rebuild<'_>,
        id: ExprId,
        operator: OpId,
        call: &Call,
    ) -> Result<Option<ExprId>> {
        let def = op::get(operator);
        let params = Params::new(def, &call.attrs);
        let result = match def.properties.layout {
            LayoutRule::Conv2d => return self.convolution(rebuild, id, operator, call),
            LayoutRule::Window2d => {
                let from = params.string("layout");
                let out = params.string("out_layout");
                let rule = self.requested.iter().find(|rule| *rule.operator == *def.name);
                let change = match (rule, &self.conversions[call.args[0]]) {
                    (Some(rule), _) => Change { source: from.as_str().into(), target: rule.data.clone() },
                    (None, Some((_, change))) if *change.source == *from => change.clone(),
                    _ => return Ok(None),
                };
                if change.source == change.target || !(out.is_empty() || out == from) {
                    return Ok(None);
                }
                if !change.applies_to(rebuild.old.ty(call.args[0]), false) {
                    let channels = change.channels(rebuild.old.ty(call.args[0]));
                    let channels = channels.map_or_else(|| "an unknown number".to_owned(), |n| n.to_string());
                    let block = block_size(&change.target, 'C');
                    let reason = format!("expected a number of channels divisible by {block}, found {channels}");
                    self.warn_unchanged(def.name, &change, &reason);
                    return Ok(None);
                }
                let data = self.convert_to_layout(rebuild, call.args[0], &change)?;
                let attrs = call.attrs.clone().with("layout", &*change.target).without("out_layout");
                (rebuild.new.push(Expr::op(operator, [data], attrs))?, change)
            }
            LayoutRule::Axis => {
                let Some((data, change)) = self.conversions[call.args[0]].clone() else { return Ok(None) };
                if change.has_blocks() {
                    return self.bias(rebuild, id, call, params.int("axis"), (data, change));
                }
                let Some(axis) = change.axis(params.int("axis")) else { return Ok(None) };
                let vector = rebuild.get(call.args[1]);
                let attrs = call.attrs.clone().with("axis", axis);
                (rebuild.new.push(Expr::op(operator, [data, vector], attrs))?, change)
            }
            LayoutRule::Concatenation => {
                let Expr::Tuple(fields) = rebuild.old.expr(call.args[0]) else { return Ok(None) };
                let Some(change) = self.leading_change(rebuild.old, fields, false) else { return Ok(None) };
                let Some(axis) = change.axis(params.int("axis")) else { return Ok(None) };
                let mut converted_fields = Vec::with_capacity(fields.len());
                for &field in fields {
                    converted_fields.push(self.convert_to_layout(rebuild, field, &change)?);
                }
                let tuple = rebuild.new.tuple(&converted_fields)?;
                let attrs = call.attrs.clone().with("axis", axis);
                (rebuild.new.push(Expr::op(operator, [tuple], attrs))?, change)
            }
            LayoutRule::Pointwise => {
                let rank = rebuild.old.ty(id).as_tensor().map(|ty| ty.dims.len());
                let leading_change = self.leading_change(rebuild.old, &call.args, true);
                let Some(change) = leading_change.filter(|change| rank == Some(change.rank())) else { return Ok(None) };
                let mut args = Vec::with_capacity(call.args.len());
                for &arg in &call.args {
                    args.push(self.convert_to_layout(rebuild, arg, &change)?);
                }
                (rebuild.new.push(Expr::op(operator, args, call.attrs.clone()))?, change)
            }
            _ => return Ok(None),
        };
        self.record(rebuild, id, result)
    }

    fn convolution(
        &mut self,
        rebuild: &mut Rebuild<'_>,
        id: ExprId,
        operator: OpId,
        call: &Call,
    ) -> Result<Option<ExprId>> {
        let Some(rule) = self.requested.iter().find(|rule| &*rule.operator == "nn.conv2d") else { return Ok(None) };
        let params = Params::new(op::get(operator), &call.attrs);
        let (from, kernel, out) =
            (params.string("data_layout"), params.string("kernel_layout"), params.string("out_layout"));
        let groups = params.int("groups");
        let inputs = kernel.find('I').zip(rebuild.old.ty(call.args[1]).as_tensor());
        let is_depthwise = groups > 1 && inputs.is_some_and(|(axis_index, ty)| ty.dims[axis_index].fixed() == Some(1));
        let to_kernel = match (&rule.kernel, &*rule.data) {
            (Some(kernel), _) => kernel.to_string(),
            _ if *from == *rule.data => kernel.clone(),
            (None, "NCHW") => "OIHW".to_owned(),
            (None, "NHWC") if is_depthwise => "HWOI".to_owned(),
            (None, "NHWC") => "HWIO".to_owned(),
            (None, data) if has_blocks(data) => format!("OIHW{0}i{0}o", block_size(data, 'C')),
            _ => kernel.clone(),
        };
        if !(out.is_empty() || out == from) || (*from == *rule.data && kernel == to_kernel) {
            return Ok(None);
        }
        let change = Change { source: from.as_str().into(), target: rule.data.clone() };
        let kernel_change = Change { source: kernel.as_str().into(), target: to_kernel.as_str().into() };
        if change.has_blocks() || kernel_change.has_blocks() {
            let weight = rebuild.old.ty(call.args[1]);
            let fills_blocks = |ty: &Type, from: &str, letter: char, block: usize| {
                dimension_with_block(ty, from, letter).is_some_and(|n| n.is_multiple_of(block))
            };
            let block_of_data = block_size(&change.target, 'C');
            let is_compatible = fills_blocks(rebuild.old.ty(call.args[0]), &from, 'C', block_of_data)
                && fills_blocks(weight, &kernel, 'O', block_of_data)
                && fills_blocks(weight, &kernel, 'O', block_size(&to_kernel, 'O'))
                && fills_blocks(weight, &kernel, 'I', block_size(&to_kernel, 'I'));
            if groups > 1 || !is_compatible {
                let channels = |ty: &Type, layout: &str, letter: char| {
                    dimension_with_block(ty, layout, letter)
                        .map_or_else(|| "an unknown number".to_owned(), |n| n.to_string())
                };
                let reason = if is_compatible {
                    format!("expected 1 group, found {groups}")
                } else {
                    format!(
                        "expected input and output channels divisible by the blocks of {} and {to_kernel}, \
                         found {} and {}",
                        change.target,
                        channels(rebuild.old.ty(call.args[0]), &from, 'C'),
                        channels(weight, &kernel, 'O')
                    )
                };
                self.warn_unchanged("nn.conv2d", &change, &reason);
                return Ok(None);
            }
        }
        let data = self.convert_to_layout(rebuild, call.args[0], &change)?;
        let weight = rebuild.get(call.args[1]);
        let weight = self.transform(rebuild, weight, &kernel_change)?;
        let attrs = call.attrs.clone().with("data_layout", &*change.target).with("kernel_layout", to_kernel.as_str());
        let convolution_call = rebuild.new.push(Expr::op(operator, [data, weight], attrs.without("out_layout")))?;
        self.record(rebuild, id, (convolution_call, change))
    }

    /// Converts an `nn.bias_add` along the channels of a blocked value to an `add` with the bias in the same layout.
    fn bias(
        &mut self,
        rebuild: &mut Rebuild<'_>,
        id: ExprId,
        call: &Call,
        axis: i64,
        (data, change): (ExprId, Change),
    ) -> Result<Option<ExprId>> {
        let is_bias = matches!(call.callee, Callee::Op(operator) if op::get(operator).name == "nn.bias_add");
        let channels = Layout::parse(&change.source).and_then(|layout| layout.0.iter().position(|d| *d == ('C', None)));
        let Some(old_position) = change
            .old_axis(axis)
            .filter(|old_position| is_bias && Some(*old_position) == channels && !has_blocks(&change.source))
        else {
            return Ok(None);
        };
        let mut bias = rebuild.get(call.args[1]);
        let trailing = (change.rank() - 1 - old_position) as i64;
        for (axis, count) in [(1, trailing), (0, old_position as i64)].into_iter().filter(|(_, count)| *count > 0) {
            let attrs = Attrs::new([("axis", axis.into()), ("num_newaxis", AttrValue::Int(count))]);
            bias = rebuild.new.op("expand_dims", &[bias], attrs)?;
        }
        let bias = self.transform(rebuild, bias, &change)?;
        let sum = rebuild.new.op("add", &[data, bias], Attrs::none())?;
        self.record(rebuild, id, (sum, change))
    }

    /// Warns, once per reason, that an operator keeps its layout.
    fn warn_unchanged(&mut self, operator: &str, change: &Change, reason: &str) {
        let message = format!("{operator} keeps the layout {} instead of {}: {reason}", change.source, change.target);
        if !self.warnings.iter().any(|warning| warning.message == message) {
            self.warnings.push(Diagnostic::warning(codes::passes::BAD_LAYOUT, message));
        }
    }

    /// Records a converted value. Returns the value in the old layout, for users that are not converted.
    fn record(
        &mut self,
        rebuild: &mut Rebuild<'_>,
        id: ExprId,
        (new, change): (ExprId, Change),
    ) -> Result<Option<ExprId>> {
        let inverse = Change { source: change.target.clone(), target: change.source.clone() };
        let restored_value = self.transform(rebuild, new, &inverse)?;
        if change.source != change.target {
            self.conversions[id] = Some((new, change));
        }
        Ok(Some(restored_value))
    }

    /// Returns the conversion of the first converted operand, if at least as many operands have the same conversion as
    /// would still need a transform.
    fn leading_change(&self, module: &Module, operands: &[ExprId], is_broadcast: bool) -> Option<Change> {
        let change = operands.iter().find_map(|&operand| Some(&self.conversions[operand].as_ref()?.1))?;
        let (mut held_count, mut other_count) = (0, 0);
        for &operand in operands {
            let ty = module.ty(operand).as_tensor()?;
            match &self.conversions[operand] {
                Some((_, other)) if other == change => held_count += 1,
                _ if ty.dims.len() > change.rank() || !change.applies_to(module.ty(operand), is_broadcast) => {
                    return None;
                }
                _ if ty.dims.is_empty() || module.expr(operand).as_constant().is_some() => {}
                _ if ty.dims.len() < change.rank() => {}
                _ => other_count += 1,
            }
        }
        (held_count >= other_count).then(|| change.clone())
    }

    /// Converts an operand to the new layout. An operand of lower rank is first expanded by the dimensions that
    /// broadcasting would add.
    fn convert_to_layout(&mut self, rebuild: &mut Rebuild<'_>, operand: ExprId, change: &Change) -> Result<ExprId> {
        if let Some((converted_value, held)) = &self.conversions[operand]
            && held == change
        {
            return Ok(*converted_value);
        }
        let mut converted_value = rebuild.get(operand);
        let rank = rebuild.old.ty(operand).as_tensor().map_or(0, |ty| ty.dims.len());
        if rank == 0 {
            return Ok(converted_value);
        }
        if rank < change.rank() {
            let missing_rank = (change.rank() - rank) as i64;
            let attrs = Attrs::new([("axis", 0.into()), ("num_newaxis", AttrValue::Int(missing_rank))]);
            converted_value = rebuild.new.op("expand_dims", &[converted_value], attrs)?;
        }
        if change.has_blocks() && change.channels(rebuild.old.ty(operand)) == Some(1) {
            return self.transform(rebuild, converted_value, &change.with_blocks_of_one());
        }
        self.transform(rebuild, converted_value, change)
    }

    fn transform(&mut self, rebuild: &mut Rebuild<'_>, value: ExprId, change: &Change) -> Result<ExprId> {
        if change.source == change.target {
            return Ok(value);
        }
        if let Some(&transformed) = self.transforms.get(&(self.function, value, change.clone())) {
            return Ok(transformed);
        }
        let attrs = Attrs::new([("src_layout", (&*change.source).into()), ("dst_layout", (&*change.target).into())]);
        let transformed = rebuild.new.op("layout_transform", &[value], attrs)?;
        self.transforms.insert((self.function, value, change.clone()), transformed);
        Ok(transformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(requested: &[(&str, &str, Option<&str>)]) -> String {
        let requested: Vec<DesiredLayout> = requested
            .iter()
            .map(|&(operator, data, kernel)| DesiredLayout {
                operator: operator.into(),
                data: data.into(),
                kernel: kernel.map(Name::from),
            })
            .collect();
        match convert_layout(&Module::new(), &requested, &mut Vec::new()) {
            Ok(_) => String::new(),
            Err(diagnostic) => format!("{}: {}", diagnostic.code, diagnostic.message),
        }
    }

    #[test]
    fn rejects_unsupported_layouts() {
        assert_eq!(refusal(&[("nn.conv2d", "NHWC", Some("HWIO")), ("nn.max_pool2d", "NHWC", None)]), "");
        assert_eq!(refusal(&[]), "E0341: expected at least one layout for convert_layout, found none");
        let message = "E0341: convert_layout cannot change the layout of \"nn.dense\"";
        assert_eq!(refusal(&[("nn.dense", "NHWC", None)]), message);
        assert_eq!(refusal(&[("nn.conv2d", "NCHW8c", Some("OIHW8i8o")), ("nn.max_pool2d", "NCHW4c", None)]), "");
        for layout in ["NCHW8h", "NCHWc", "NCHW8", "NCH8c", "NCHW4c2c", "NCHWC"] {
            let message = format!("E0341: nn.conv2d: expected a layout of N, C, H and W, found \"{layout}\"");
            assert_eq!(refusal(&[("nn.conv2d", layout, None)]), message);
        }
        let message = "E0341: nn.max_pool2d: unsupported kernel layout \"HWIO\"";
        assert_eq!(refusal(&[("nn.max_pool2d", "NHWC", Some("HWIO"))]), message);
    }
}
