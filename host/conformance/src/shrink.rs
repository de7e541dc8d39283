//! Shrinks a failing case to smaller dimensions, default attributes and simple values, while the case still fails in
//! the same way.

use super::case::{Case, Open, Setting};
use byoc_ir::ir::{AttrValue, Callee, Expr, ExprId, Type};
use byoc_ir::op;
use byoc_ir::tensor::{Element, Tensor};
use byoc_ir::typing::Builder;
use byoc_ir::with_dtype;
use std::collections::{BTreeSet, HashMap};

/// Returns the smallest case found in at most `attempts` attempts for which `is_failing` returns true.
pub fn shrink(case: &Case, attempts: usize, mut is_failing: impl FnMut(&Case) -> bool) -> Case {
    let mut smallest_case = case.clone();
    let mut attempts_left = attempts;
    'again: loop {
        for edit in edits(&smallest_case) {
            let Some(candidate) = apply(&smallest_case, &edit) else { continue };
            if attempts_left == 0 {
                return smallest_case;
            }
            attempts_left -= 1;
            if is_failing(&candidate) {
                smallest_case = candidate;
                continue 'again;
            }
        }
        return smallest_case;
    }
}

/// Returns the case with the dimensions selected by `open_dims` unknown; `None` if its operators need known dimensions,
/// or if no dimension can be opened.
pub fn with_open_dims(case: &Case, open_dims: Open) -> Option<Case> {
    let setting = Setting { open: Some(open_dims), ..case.setting.clone() };
    let open_case = apply(&Case { setting, ..case.clone() }, &Edit::Nothing)?;
    let is_open = |param: &ExprId| open_case.module.ty(*param).as_tensor().is_some_and(|ty| ty.shape().is_none());
    open_case.module.main()?.params.iter().any(is_open).then_some(open_case)
}

/// Simplification step.
#[derive(Clone, Debug, PartialEq)]
enum Edit {
    /// Changes no value and no attribute.
    Nothing,
    /// Replaces every dimension that equals the first value, and every equal value in an attribute, with the second.
    Size(usize, usize),
    /// Changes one dimension of one operand.
    Dim { operand: usize, axis: usize, new_size: usize },
    /// Removes an attribute of a call.
    Default(ExprId, String),
    /// Removes an attribute, and sets to 1 a dimension that depends on the attribute, such as the channels of a group.
    DefaultAndDim { call: ExprId, key: String, operand: usize, axis: usize },
    /// Replaces the elements of an operand with small integers.
    Simple(usize),
}

/// Returns the parameters and constants with their tensors, in module order.
fn operands(case: &Case) -> Vec<(ExprId, Tensor)> {
    let Some(main) = case.module.main() else { return Vec::new() };
    let mut used_operands: Vec<(ExprId, Tensor)> =
        main.params.iter().copied().zip(case.inputs.iter().cloned()).collect();
    for id in case.module.post_order(main.body, |_, _| true) {
        if let Some(tensor) = case.module.expr(id).as_constant() {
            used_operands.push((id, (**tensor).clone()));
        }
    }
    used_operands
}

fn edits(case: &Case) -> Vec<Edit> {
    let operands = operands(case);
    let sizes: BTreeSet<usize> = operands.iter().flat_map(|(_, t)| t.shape().iter().copied()).collect();
    let smaller_sizes = |size: usize| {
        [1, 2, size / 2, size.saturating_sub(1)].into_iter().filter(move |&smaller| smaller > 0 && smaller < size)
    };
    let mut edits = Vec::new();
    for &size in sizes.iter().rev() {
        edits.extend(smaller_sizes(size).map(|new_size| Edit::Size(size, new_size)));
    }
    for (operand, (_, tensor)) in operands.iter().enumerate() {
        for (axis, &size) in tensor.shape().iter().enumerate() {
            edits.extend(smaller_sizes(size).map(|new_size| Edit::Dim { operand, axis, new_size }));
        }
    }
    for (id, node) in case.module.nodes.iter() {
        if let Some((_, call)) = node.expr.as_op_call() {
            edits.extend(call.attrs.iter().map(|(key, _)| Edit::Default(id, key.to_string())));
            for (key, _) in call.attrs.iter() {
                for (operand, (_, tensor)) in operands.iter().enumerate() {
                    let axes = (0..tensor.shape().len()).filter(|&axis| tensor.shape()[axis] > 1);
                    edits.extend(axes.map(|axis| Edit::DefaultAndDim {
                        call: id,
                        key: key.to_string(),
                        operand,
                        axis,
                    }));
                }
            }
        }
    }
    let simplifiable_operands = operands.iter().enumerate().filter(|(_, (_, tensor))| *tensor != simplify(tensor));
    edits.extend(simplifiable_operands.map(|(operand, _)| Edit::Simple(operand)));
    edits
}

/// Applies an edit; `None` if the module would be ill-typed.
fn apply(case: &Case, edit: &Edit) -> Option<Case> {
    let main = case.module.main()?;
    let mut tensors: HashMap<ExprId, Tensor> = HashMap::new();
    for (index, (id, tensor)) in operands(case).into_iter().enumerate() {
        let shape: Vec<usize> = tensor
            .shape()
            .iter()
            .enumerate()
            .map(|(axis, &size)| match edit {
                Edit::Size(old_size, new_size) if *old_size == size => *new_size,
                Edit::Dim { operand, axis: at, new_size: to } if (*operand, *at) == (index, axis) => *to,
                Edit::DefaultAndDim { operand, axis: at, .. } if (*operand, *at) == (index, axis) => 1,
                _ => size,
            })
            .collect();
        let tensor = match edit {
            Edit::Simple(operand) if *operand == index => simplify(&tensor),
            _ if shape[..] != *tensor.shape() => corner(&tensor, &shape),
            _ => tensor,
        };
        tensors.insert(id, tensor);
    }
    let mut builder = Builder::default();
    let mut rebuilt_exprs: HashMap<ExprId, ExprId> = HashMap::new();
    let (mut params, mut inputs) = (Vec::new(), Vec::new());
    for (i, param) in main.params.iter().enumerate() {
        let tensor = tensors.remove(param)?;
        let ty = match case.setting.open {
            Some(open_dims) => open_dims.parameter_type(tensor.dtype(), tensor.shape()),
            None => Type::tensor(tensor.dtype(), tensor.shape()),
        };
        let id = builder.var(format!("x{i}").as_str(), ty);
        rebuilt_exprs.insert(*param, id);
        params.push(id);
        inputs.push(tensor);
    }
    for id in case.module.post_order(main.body, |id, _| !main.params.contains(&id)) {
        if rebuilt_exprs.contains_key(&id) {
            continue;
        }
        let new = match case.module.expr(id) {
            Expr::Constant(_) => builder.constant(tensors.remove(&id)?),
            Expr::Call(call) if matches!(call.callee, Callee::Op(_)) => {
                let Callee::Op(operator) = call.callee else { return None };
                let args: Option<Vec<ExprId>> = call.args.iter().map(|arg| rebuilt_exprs.get(arg).copied()).collect();
                let mut attrs = call.attrs.clone();
                match edit {
                    Edit::Default(at, key) | Edit::DefaultAndDim { call: at, key, .. } if *at == id => {
                        attrs = attrs.without(key);
                    }
                    Edit::Size(old_size, new_size) => {
                        for (key, value) in call.attrs.iter() {
                            attrs = attrs.with(key, replace_dim(value, *old_size as i64, *new_size as i64));
                        }
                    }
                    _ => {}
                }
                builder.op(op::get(operator).name, &args?, attrs).ok()?
            }
            other => {
                let mut expr = other.clone();
                let mut is_missing = false;
                expr.map_operands(|operand| {
                    rebuilt_exprs.get(&operand).copied().unwrap_or_else(|| {
                        is_missing = true;
                        operand
                    })
                });
                if is_missing {
                    return None;
                }
                builder.push(expr).ok()?
            }
        };
        rebuilt_exprs.insert(id, new);
    }
    builder.define("main", &params, *rebuilt_exprs.get(&main.body)?).ok()?;
    Some(Case { module: builder.module, inputs, ..case.clone() })
}

/// Replaces the elements of a list attribute that are equal to a changed dimension.
fn replace_dim(value: &AttrValue, old_size: i64, new_size: i64) -> AttrValue {
    match value {
        AttrValue::List(items) if old_size > 3 => AttrValue::List(
            items
                .iter()
                .map(|item| if item.as_int() == Some(old_size) { AttrValue::Int(new_size) } else { item.clone() })
                .collect(),
        ),
        other => other.clone(),
    }
}

/// Returns the leading subtensor of this shape: the first elements along every axis.
fn corner(tensor: &Tensor, shape: &[usize]) -> Tensor {
    Tensor::build(tensor.dtype(), shape, |bytes| {
        let size = tensor.dtype().size();
        for (index, element) in bytes.chunks_exact_mut(size).enumerate() {
            let (mut remaining, mut source, mut stride) = (index, 0, 1);
            for (&new, &old_dim) in shape.iter().zip(tensor.shape()).rev() {
                source += remaining % new * stride;
                remaining /= new;
                stride *= old_dim;
            }
            element.copy_from_slice(&tensor.bytes()[source * size..(source + 1) * size]);
        }
    })
    .expect("a case fits within the memory limit")
}

/// Replaces the finite elements with 1, 2, 3, -1, ..., except in a boolean tensor.
fn simplify(tensor: &Tensor) -> Tensor {
    let size = tensor.dtype().size();
    Tensor::build(tensor.dtype(), tensor.shape(), |bytes| {
        bytes.copy_from_slice(tensor.bytes());
        if tensor.dtype() == byoc_ir::tensor::DType::Bool {
            return;
        }
        with_dtype!(tensor.dtype(), T => for (i, element) in bytemuck::cast_slice_mut::<u8, T>(bytes).iter_mut().enumerate() {
            if element.to_f64().is_finite() && size > 0 {
                *element = T::from_f64([1.0, 2.0, 3.0, -1.0, 5.0][i % 5]);
            }
        });
    })
    .expect("a case fits within the memory limit")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::draw::Restrictions;
    use crate::generate::{Cases, Claim};

    #[test]
    fn shrinks_case_and_keeps_property() {
        let cases = Cases { seed: 5, ..Cases::default() };
        let def = op::get(op::lookup("nn.conv2d").unwrap());
        let has_stride = |case: &Case| {
            case.module
                .nodes
                .iter()
                .any(|(_, node)| node.expr.as_op_call().is_some_and(|(_, call)| call.attrs.get("strides").is_some()))
        };
        let case = (0..24)
            .filter_map(|n| cases.single_case(Claim::Operator(def), n, Restrictions::default()))
            .find(has_stride)
            .unwrap();
        let smallest_case = shrink(&case, 400, has_stride);
        let element_count = |case: &Case| operands(case).iter().map(|(_, t)| t.len()).sum::<usize>();
        assert!(
            element_count(&smallest_case) <= 30,
            "expected at most 30 of {1} elements after shrinking, found {0}",
            element_count(&smallest_case),
            element_count(&case)
        );
        assert!(has_stride(&smallest_case));
        let attrs: usize =
            smallest_case.module.nodes.iter().filter_map(|(_, n)| Some(n.expr.as_op_call()?.1.attrs.len())).sum();
        assert!(attrs <= 2, "expected at most 2 attributes after shrinking, found {attrs}");
    }

    /// Tests that a case with open dimensions keeps them while it shrinks.
    #[test]
    fn opens_dimensions_and_keeps_them_open() {
        let cases = Cases { seed: 5, ..Cases::default() };
        let def = op::get(op::lookup("nn.relu").unwrap());
        let case = (0..24)
            .filter_map(|n| cases.single_case(Claim::Operator(def), n, Restrictions::default()))
            .find(|case| case.inputs[0].shape().len() > 1)
            .unwrap();
        for open_dims in [Open::First, Open::All] {
            let Some(open_case) = with_open_dims(&case, open_dims) else { continue };
            let is_open = |case: &Case| {
                case.module.ty(case.module.main().unwrap().params[0]).as_tensor().unwrap().shape().is_none()
            };
            assert!(is_open(&open_case) && open_case.inputs == case.inputs);
            let smallest_case = shrink(&open_case, 100, is_open);
            assert!(is_open(&smallest_case) && smallest_case.setting == open_case.setting);
        }
    }

    #[test]
    fn terminates_when_every_case_fails() {
        let cases = Cases { seed: 5, ..Cases::default() };
        let def = op::get(op::lookup("add").unwrap());
        let case = cases.single_case(Claim::Operator(def), 0, Restrictions::default()).unwrap();
        let smallest_case = shrink(&case, 1000, |_| true);
        assert!(operands(&smallest_case).iter().all(|(_, t)| t.len() <= 1));
    }
}
