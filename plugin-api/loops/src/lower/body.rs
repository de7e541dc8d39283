//! The loop body of a group, over the storage of its operands and results.

use super::{ConstantArray, Lowering, axis};
use crate::form::Form;
use crate::group::{Group, Grouping, index_in};
use crate::index_space::{memory_order, pull_back};
use crate::nest::body::{Access, LoopBody, Storage};
use crate::nest::{Expr, Place, Stmt, Ty};
use crate::operators::elementwise::{ROUND_TO_HALF, expression, operand_view};
use crate::operators::quantized::{self, Rescale};
use crate::operators::views::is_view_op;
use crate::types::floats;
use byoc_plugin_api::DType;
use byoc_plugin_support::region::{Op, OpId, Val};
use byoc_plugin_support::view::View;
use std::collections::BTreeMap;

/// Loop body of a group under construction.
struct Builder<'g> {
    index: usize,
    group: &'g Group,
    body: LoopBody,
    /// Variable of each value that the group computes.
    names: BTreeMap<Val, String>,
    /// Variable of each load, by the value and its view.
    loaded: BTreeMap<(Val, Vec<i64>, i64), String>,
    /// Memory order of the operand that is broadcast along the fewest dimensions, and the number of the others.
    preferred_order: Option<(usize, Vec<usize>)>,
}

impl Builder<'_> {
    /// Loads an operand, unless it is loaded already. Returns the variable.
    fn load(&mut self, value: Val, place: Place, view: View, dtype: DType) -> Expr {
        let distinct_dims = view.strides.iter().zip(&view.shape).filter(|(s, d)| **s != 0 || **d == 1).count();
        if self.preferred_order.as_ref().is_none_or(|(best_count, _)| distinct_dims > *best_count) {
            self.preferred_order = Some((distinct_dims, memory_order(&view)));
        }
        let key = (value, view.strides.clone(), view.offset);
        let loads = &mut self.body.loads;
        Expr::from(&*self.loaded.entry(key).or_insert_with(|| push_load(loads, place, view, dtype)))
    }
}

/// Adds a load, and returns the name of its variable.
fn push_load(loads: &mut Vec<Access>, place: Place, view: View, dtype: DType) -> String {
    let name = format!("x{}", loads.len());
    loads.push(Access { name: name.clone(), place, view, dtype });
    name
}

impl<'p> Lowering<'p, '_> {
    /// Builds the loop body of a group, resolves its operands and chooses the storage of its results. `order` is the
    /// memory order of the results' dimensions; the default is the order of the operand that is broadcast along the
    /// fewest dimensions.
    pub fn loop_body(&mut self, group_index: usize, order: Option<&[usize]>) -> Result<LoopBody, String> {
        let grouping: &'p Grouping = self.grouping;
        let group = &grouping.groups[group_index];
        let mut builder = Builder {
            index: group_index,
            group,
            body: LoopBody { domain: group.domain.clone(), ..LoopBody::default() },
            names: BTreeMap::new(),
            loaded: BTreeMap::new(),
            preferred_order: None,
        };
        if let Some(anchor) = group.anchor {
            let result = self.ir.get(anchor).outputs[0];
            let is_half = self.ir.val(result).dtype == DType::F16;
            if is_half {
                let rounded = Expr::Math(ROUND_TO_HALF, DType::F32, vec![Expr::name("acc")]);
                builder.body.lines.push(Stmt::value("rounded", DType::F32, rounded));
            }
            builder.names.insert(result, if is_half { "rounded" } else { "acc" }.into());
        }
        for &member in &group.members {
            self.member(member, &mut builder)?;
        }
        let default_order = builder.preferred_order.take().map(|(_, order)| order);
        let order = order.map(<[usize]>::to_vec).or(default_order);
        let order = order.unwrap_or_else(|| (0..group.domain.len()).collect());
        self.results(&order, &mut builder)?;
        Ok(builder.body)
    }

    /// Adds the computation of an operator.
    fn member(&mut self, member: OpId, builder: &mut Builder<'_>) -> Result<(), String> {
        let op: &Op<'_> = self.ir.get(member);
        let mut args = Vec::new();
        for (i, &input) in op.inputs.iter().enumerate() {
            match (op.name, i) {
                ("qnn.requantize", 1) => {
                    let index = &builder.group.index[&op.outputs[0]];
                    args.extend(self.rescaling(op, index, &builder.group.domain, &mut builder.body)?);
                }
                ("qnn.requantize", 3) => {}
                _ => args.push(self.operand(member, i, input, builder)?),
            }
        }
        let dtype = self.ir.val(op.outputs[0]).dtype;
        let value = expression(self.ir, op, &args).filter(|_| self.computes(dtype));
        let value = value
            .ok_or_else(|| format!("{}: unsupported element type {}", op.name, self.ir.val(op.inputs[0]).dtype))?;
        let name = format!("t{}", builder.body.lines.len());
        // C computes with integers of at least 32 bits; programs convert the result to a narrower type explicitly.
        let is_narrow = dtype.size() < 4 && matches!(self.form, Form::Program(..));
        let value = match dtype {
            DType::F16 => Expr::Math(ROUND_TO_HALF, DType::F32, vec![value]),
            _ if is_narrow => value.cast(dtype),
            _ => value,
        };
        let note = op.name.to_owned();
        builder.body.lines.push(Stmt::Let { name: name.clone(), ty: Ty::Of(dtype), value, note });
        builder.names.insert(op.outputs[0], name);
        Ok(())
    }

    /// Returns operand `i` of an operator: a variable of the group, a literal, or a load.
    fn operand(&mut self, member: OpId, i: usize, input: Val, builder: &mut Builder<'_>) -> Result<Expr, String> {
        let (op, group) = (self.ir.get(member), builder.group);
        if let Some((source, _)) = index_in(self.ir, group, input) {
            let name = builder.names.get(&source);
            return name
                .map(Expr::from)
                .ok_or_else(|| "expected operators in topological order, found a use before its definition".into());
        }
        if let Some(literal) = self.scalar(input) {
            return Ok(literal);
        }
        let storage = self.resolve(input)?;
        let broadcast_view = operand_view(self.ir, op, i, &storage.view).ok_or_else(|| {
            let (operand, result) = (&storage.view.shape, self.ir.shape(op.outputs[0]));
            format!("{}: operand {i}: expected a shape that broadcasts to {result:?}, found {operand:?}", op.name)
        })?;
        let dtype = self.ir.val(input).dtype;
        let index = &group.index[&op.outputs[0]];
        let (place, view) = match pull_back(index, &broadcast_view, &group.domain) {
            Some(view) => (storage.place, view),
            None => {
                // A copy in the layout of the domain is always readable as a strided view.
                let comment = self.describe(member);
                let destination = self.allocate_dense(&group.domain, dtype, &comment);
                let target = Storage::new(destination.place, index.clone());
                self.copy(&Storage::new(storage.place, broadcast_view), &target, dtype, &comment);
                (destination.place, destination.view)
            }
        };
        Ok(builder.load(input, place, view, dtype))
    }

    /// Adds the stores of the values that are used outside of the group.
    fn results(&mut self, order: &[usize], builder: &mut Builder<'_>) -> Result<(), String> {
        let domain = &builder.group.domain;
        for (&value, name) in &builder.names {
            if !self.is_used_outside(value, builder.index) {
                continue;
            }
            let index = &builder.group.index[&value];
            // Order of the value's dimensions that corresponds to the order `order` of the domain's dimensions.
            let value_order = self.domain_order(index, domain, order);
            let comment = format!("{} of {}", name, self.symbol);
            let comment = self.ir.producer(value).map_or(comment, |op| self.describe(op));
            let is_readable = |view: &View| pull_back(index, view, domain).is_some();
            let dtype = self.ir.val(value).dtype;
            let storage = match self.place_for(value, &value_order, &comment, is_readable) {
                Some(storage) => storage,
                None => {
                    // Storage in the layout of the domain is always possible.
                    let place = self.allocate_dense(domain, dtype, &comment).place;
                    let storage = Storage::new(place, index.clone());
                    self.storage.insert(value, storage.clone());
                    storage
                }
            };
            let view = pull_back(index, &storage.view, domain).ok_or("expected storage for the result, found none")?;
            builder.body.stores.push(Access { name: name.clone(), place: storage.place, view, dtype });
        }
        Ok(())
    }

    /// Returns the multiplier and the shift of a `qnn.requantize` as operands of the loop body: literals, or loads of
    /// per-channel constants. Empty if the scales are equal.
    fn rescaling(
        &mut self,
        op: &Op<'_>,
        index: &View,
        domain: &[i64],
        body: &mut LoopBody,
    ) -> Result<Vec<Expr>, String> {
        let rescales = quantized::multipliers(self.ir, op)?;
        if let [single_rescale] = rescales[..] {
            return Ok(match single_rescale {
                Rescale::Same => Vec::new(),
                Rescale::Fixed { multiplier, shift } => {
                    [multiplier, shift].map(|x| Expr::Integer(DType::I32, x.into())).to_vec()
                }
                Rescale::Float(ratio) => vec![Expr::Number(DType::F32, ratio.into())],
            });
        }
        let mut columns: Vec<(&str, DType, Vec<u8>)> = Vec::new();
        if let Some(Rescale::Float(_)) = rescales.first() {
            let ratio_bytes = rescales
                .iter()
                .flat_map(|rescale| if let Rescale::Float(x) = rescale { x.to_le_bytes() } else { [0; 4] });
            columns.push(("ratios of scales", DType::F32, ratio_bytes.collect()));
        } else {
            let bytes_of =
                |get: fn(&Rescale) -> i32| rescales.iter().flat_map(|rescale| get(rescale).to_le_bytes()).collect();
            let multiplier =
                |rescale: &Rescale| if let Rescale::Fixed { multiplier, .. } = rescale { *multiplier } else { 0 };
            let shift = |rescale: &Rescale| if let Rescale::Fixed { shift, .. } = rescale { *shift } else { 1 };
            columns.push(("multipliers of a requantization", DType::I32, bytes_of(multiplier)));
            columns.push(("shifts of a requantization", DType::I32, bytes_of(shift)));
        }
        let axis = axis(op, -1, index.shape.len())?;
        let mut strides = vec![0; index.shape.len()];
        strides[axis] = 1;
        let axis_view = View { shape: index.shape.clone(), strides, offset: 0 };
        let mut names = Vec::new();
        for (comment, dtype, bytes) in columns {
            let array = self.constant_array(ConstantArray { dtype, bytes, comment: comment.to_owned() });
            let view = pull_back(index, &axis_view, domain)
                .ok_or("qnn.requantize: expected an unchanged scale axis, found a reshaped one")?;
            names.push(Expr::name(push_load(&mut body.loads, Place::Packed(array), view, dtype)));
        }
        Ok(names)
    }

    /// Returns the literal of a constant with one element; `None` for any other value.
    fn scalar(&self, value: Val) -> Option<Expr> {
        let mut current = value;
        while let Some(op) = self.ir.producer(current) {
            if !is_view_op(self.ir.get(op).name) {
                return None;
            }
            current = self.ir.get(op).inputs[0];
        }
        let (_, constant) = self.ir.constant(current)?;
        if constant.shape().iter().product::<usize>() != 1 {
            return None;
        }
        let tensor = constant.tensor();
        let integer = |value: i64| Expr::Integer(constant.dtype(), value.into());
        Some(match constant.dtype() {
            DType::F16 | DType::F32 => Expr::Number(DType::F32, *floats(constant).first()?),
            DType::F64 => Expr::Number(DType::F64, *floats(constant).first()?),
            DType::I64 => integer(tensor.as_slice::<i64>()[0]),
            DType::I32 => integer(tensor.as_slice::<i32>()[0].into()),
            DType::BOOL => integer((tensor.as_slice::<u8>()[0] != 0).into()),
            _ => return None,
        })
    }
}
