//! Kernel body: loads, elementwise operators and stores at each point of the index space.

use crate::expression::{c_type, expression, int_literal, literal, operand_view, vector};
use crate::fusion::{Group, index_in};
use crate::kernel::{KernelText, Point};
use crate::lower::{Lowering, Storage};
use crate::program::Place;
use crate::view_ops::{is_view, memory_order, pull_back};
use byoc_plugin_api::{DType, RefusalCode};
use byoc_plugin_support::refusal::{CompileError, refuse};
use byoc_plugin_support::region::{OpId, RegionIr, Val};
use byoc_plugin_support::view::View;
use std::collections::BTreeMap;

/// Memory access at each point: a load or a store.
#[derive(Clone, Debug)]
pub struct Access {
    /// Variable that is loaded or stored.
    pub name: String,
    pub place: Place,
    /// View of the memory over the index space.
    pub view: View,
    pub dtype: DType,
}

/// Operand of an elementwise operator.
#[derive(Clone, Debug)]
pub enum Operand {
    Name(String),
    /// float32 constant.
    Number(f64),
    /// Constant of a type other than float32, as a C literal.
    Literal(String),
}

/// Elementwise operator that assigns its result to a variable.
#[derive(Clone, Debug)]
pub struct Line {
    op: OpId,
    operands: Vec<Operand>,
    name: String,
    dtype: DType,
}

/// Loads, elementwise operators and stores of a kernel.
#[derive(Clone, Debug, Default)]
pub struct Body {
    /// Shape of the index space.
    pub domain: Vec<i64>,
    pub loads: Vec<Access>,
    /// Elementwise operators in evaluation order.
    pub lines: Vec<Line>,
    pub stores: Vec<Access>,
}

impl Body {
    /// Applies `change` to the view of each access and to the index space; `None` if a view cannot be changed.
    pub fn transform(mut self, change: impl Fn(&View) -> Option<View>) -> Option<Body> {
        for access in self.loads.iter_mut().chain(&mut self.stores) {
            access.view = change(&access.view)?;
        }
        self.domain = change(&View::dense(&self.domain))?.shape;
        Some(self)
    }

    /// Permutes the dimensions of the index space.
    pub fn permute(self, order: &[usize]) -> Body {
        let domain = order.iter().map(|&d| self.domain[d]).collect();
        let mut body = Body { domain, ..self };
        for access in body.loads.iter_mut().chain(&mut body.stores) {
            access.view = access.view.permute(order);
        }
        body
    }

    /// Returns the views of all loads and stores.
    pub fn views(&self) -> Vec<&View> {
        self.loads.iter().chain(&self.stores).map(|access| &access.view).collect()
    }

    /// Appends the statements for the columns at a point. The anchor's result is in variable `acc`.
    pub fn emit(&self, ir: &RegionIr<'_>, text: &mut KernelText, point: &Point, depth: usize) {
        let width = point.width;
        let ty = |dtype: DType| match dtype {
            DType::F32 | DType::F16 => vector(width),
            _ => c_type(dtype).unwrap_or("float").to_owned(),
        };
        for load in &self.loads {
            let pointer = text.pointer(load.place, load.dtype, false);
            // Groups with element types other than float32 have one column per point.
            let value = match load.dtype {
                DType::F16 => point.load_half(&pointer, &load.view),
                _ => point.load(&pointer, &load.view),
            };
            text.line(depth, &format!("const {} {} = {value};", ty(load.dtype), load.name));
        }
        for line in &self.lines {
            let operands: Vec<String> = line
                .operands
                .iter()
                .map(|operand| match operand {
                    Operand::Name(text) | Operand::Literal(text) => text.clone(),
                    Operand::Number(value) => literal(*value, width),
                })
                .collect();
            let op = ir.get(line.op);
            // `Lowering::body` refuses operators without an expression.
            let value = expression(ir, op, &operands, width).unwrap_or_default();
            text.line(depth, &format!("const {} {} = {value}; /* {} */", ty(line.dtype), line.name, op.name));
        }
        for store in &self.stores {
            let pointer = text.pointer(store.place, store.dtype, true);
            let statement = match store.dtype {
                DType::F16 => point.store_half(&store.name, &pointer, &store.view),
                _ => point.store(&store.name, &pointer, &store.view),
            };
            text.line(depth, &statement);
        }
    }
}

impl Lowering<'_, '_> {
    /// Builds the body of a group, resolves its operands and chooses the storage of its results. `order` is the memory
    /// order of the result dimensions; `None` selects the order of the least-broadcast operand.
    pub fn body(&mut self, group_index: usize, order: Option<&[usize]>) -> Result<Body, CompileError> {
        let (ir, grouping) = (self.ir, self.grouping);
        let group: &Group = &grouping.groups[group_index];
        let mut body = Body { domain: group.domain.clone(), ..Body::default() };
        let mut names: BTreeMap<Val, String> = BTreeMap::new();
        let mut preferred_layout: Option<(usize, Vec<usize>)> = None;
        if let Some(anchor) = group.anchor {
            names.insert(ir.get(anchor).outputs[0], "acc".into());
        }
        for &member in &group.members {
            let op = ir.get(member);
            let index = &group.index[&op.outputs[0]];
            let mut operands = Vec::new();
            for (i, &input) in op.inputs.iter().enumerate() {
                if let Some((source, _)) = index_in(ir, group, input) {
                    match names.get(&source) {
                        Some(name) => operands.push(Operand::Name(name.clone())),
                        None => {
                            let detail = "expected operators in topological order, found a use before its definition";
                            return refuse(RefusalCode::UnsupportedOp, detail);
                        }
                    }
                    continue;
                }
                if let Some(group_index) = self.scalar(input) {
                    operands.push(group_index);
                    continue;
                }
                let storage = self.resolve(input)?;
                let Some(broadcast_view) = operand_view(ir, op, i, &storage.view) else {
                    let (in_shape, out_shape) = (&storage.view.shape, ir.shape(op.outputs[0]));
                    let detail = format!(
                        "{}: input {i}: expected a shape that broadcasts to {out_shape:?}, found {in_shape:?}",
                        op.name
                    );
                    return refuse(RefusalCode::UnsupportedShape, detail);
                };
                let dtype = ir.val(input).dtype;
                let (place, view) = match pull_back(index, &broadcast_view, &group.domain) {
                    Some(view) => (storage.place, view),
                    // A copy in the order of the index space always has a view over that space.
                    None => {
                        let copy_place = self.allocate(&group.domain, dtype);
                        let target = Storage { place: copy_place, view: index.clone() };
                        self.copy(&Storage { place: storage.place, view: broadcast_view }, &target, dtype, op.name)?;
                        (copy_place, View::dense(&group.domain))
                    }
                };
                let distinct_count = view.strides.iter().zip(&view.shape).filter(|(s, d)| **s != 0 || **d == 1).count();
                if preferred_layout.as_ref().is_none_or(|(best_count, _)| distinct_count > *best_count) {
                    preferred_layout = Some((distinct_count, memory_order(&view)));
                }
                let existing_load = body.loads.iter().find(|load| load.place == place && load.view == view);
                let name = existing_load.map_or_else(|| format!("x{}", body.loads.len()), |load| load.name.clone());
                if existing_load.is_none() {
                    body.loads.push(Access { name: name.clone(), place, view, dtype });
                }
                operands.push(Operand::Name(name));
            }
            let arguments: Vec<String> = vec!["x".into(); operands.len()];
            if expression(ir, op, &arguments, 1).is_none() {
                let detail = format!("{}: unsupported element type {}", op.name, ir.val(op.inputs[0]).dtype);
                return refuse(RefusalCode::UnsupportedDtype, detail);
            }
            let name = format!("t{}", body.lines.len());
            let dtype = ir.val(op.outputs[0]).dtype;
            body.lines.push(Line { op: member, operands, name: name.clone(), dtype });
            names.insert(op.outputs[0], name);
        }
        let row_major: Vec<usize> = (0..group.domain.len()).collect();
        let order = order
            .map(<[usize]>::to_vec)
            .or(preferred_layout.map(|preferred_order| preferred_order.1))
            .unwrap_or(row_major);
        for (value, name) in names {
            if self.is_used_outside(value, group_index) {
                let index = &group.index[&value];
                let (storage, view) = self.place_result(value, index, &group.domain, &order);
                let dtype = ir.val(value).dtype;
                self.storage.insert(value, storage.clone());
                body.stores.push(Access { name, place: storage.place, view, dtype });
            }
        }
        Ok(body)
    }

    /// Chooses the storage of a result, given the result as a view `index` of the domain. Returns the storage, and a
    /// view of it over the domain.
    fn place_result(&mut self, value: Val, index: &View, domain: &[i64], order: &[usize]) -> (Storage, View) {
        let shape = self.ir.shape(value).to_vec();
        let dense = View::dense(&shape);
        if let Some(output) = self.ir.outputs.iter().position(|&v| v == value)
            && let Some(view) = pull_back(index, &dense, domain)
        {
            return (Storage { place: Place::Output(output), view: dense }, view);
        }
        let place = self.allocate(&shape, self.ir.val(value).dtype);
        if index.shape == domain && index.is_dense() {
            let view = View::in_order(&shape, order);
            return (Storage { place, view: view.clone() }, view);
        }
        // The buffer contains the domain in row-major order, so `index` is also the view of the storage.
        (Storage { place, view: index.clone() }, View::dense(domain))
    }

    /// Tests for a value that another group reads, directly or through view operators, or that is a region output.
    fn is_used_outside(&self, value: Val, group: usize) -> bool {
        let mut worklist = vec![value];
        while let Some(current) = worklist.pop() {
            if self.ir.outputs.contains(&current) {
                return true;
            }
            for &user in &self.ir.val(current).users {
                let op = self.ir.get(user);
                if is_view(op.name) {
                    worklist.extend(&op.outputs);
                } else if self.grouping.group_of_op[user.index()] != Some(group) {
                    return true;
                }
            }
        }
        false
    }

    /// Returns a one-element constant as a number or literal; `None` for any other value.
    fn scalar(&self, value: Val) -> Option<Operand> {
        let mut current_value = value;
        while let Some(op) = self.ir.producer(current_value) {
            if !is_view(self.ir.get(op).name) {
                return None;
            }
            current_value = self.ir.get(op).inputs[0];
        }
        let (_, constant) = self.ir.constant(current_value)?;
        if constant.shape().iter().product::<usize>() != 1 {
            return None;
        }
        let tensor = constant.tensor();
        let integer = |value: i64| Operand::Literal(int_literal(constant.dtype(), value));
        Some(match constant.dtype() {
            DType::F32 => Operand::Number(f64::from(tensor.as_slice::<f32>()[0])),
            DType::I64 => integer(tensor.as_slice::<i64>()[0]),
            DType::I32 => integer(i64::from(tensor.as_slice::<i32>()[0])),
            DType::BOOL => integer(i64::from(constant.bytes()[0] != 0)),
            _ => return None,
        })
    }
}
