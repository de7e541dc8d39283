//! Cases that combine a claim with operators of other claims: a backend may support an operator only in a larger
//! region, for example a view only next to a GEMM, or an integer addition only after a quantized layer.

use super::draw::Restrictions;
use super::recipes::{self, Argument, Constraint};
use super::{Cases, Claim, Generator, pattern};
use crate::case::{Case, Subject};
use byoc_ir::ir::{Attrs, Expr, ExprId};
use byoc_ir::op::OpDef;
use std::collections::HashMap;

/// Maximum number of attempts to draw a case that combines a claim with a neighbor.
const ATTEMPTS: usize = 12;

/// Claim with cases that the backend supports.
#[derive(Clone)]
pub struct Neighbor<'a> {
    /// Neighboring claim.
    pub claim: Claim<'a>,
    /// Passed cases.
    pub samples: Vec<Case>,
}

impl Cases {
    /// Generates case `index` of a claim combined with a neighbor: one is applied to the result of the other. Returns
    /// `None` if they cannot be combined.
    pub fn case_with_neighbor(
        &self,
        claim: Claim<'_>,
        neighbor: &Neighbor<'_>,
        index: usize,
        restrictions: Restrictions,
    ) -> Option<Case> {
        (0..ATTEMPTS).find_map(|attempt| {
            let mut generator = self.generator(claim.name(), index, attempt, restrictions);
            generator.sampler.common_attrs = true;
            let mut context = vec![neighbor.claim.subject()];
            let root = if !neighbor.samples.is_empty() && !generator.sampler.chance(4) {
                let sample = generator.sampler.pick(&neighbor.samples);
                context.extend(sample.setting.context.iter().cloned());
                let operand = generator.graft(&sample)?;
                generator.extend(claim, operand)?
            } else {
                let operand = generator.claim(claim)?;
                generator.extend(neighbor.claim, operand)?
            };
            let mut case = generator.finish(root, claim.subject(), index)?;
            let names: Vec<String> = context.iter().map(Subject::to_string).collect();
            case.description = format!("{}, combined with {}", case.description, names.join(", "));
            case.setting.context = context;
            Some(case)
        })
    }
}

impl Generator {
    /// Copies the module of a case with its inputs, and returns the copied result expression.
    fn graft(&mut self, case: &Case) -> Option<ExprId> {
        let main = case.module.main()?;
        let mut copies: HashMap<ExprId, ExprId> = HashMap::new();
        for (param, input) in main.params.iter().zip(&case.inputs) {
            let name = format!("x{}", self.params.len());
            let id = self.builder.var(name.as_str(), case.module.ty(*param).clone());
            self.params.push(id);
            self.inputs.push(input.clone());
            copies.insert(*param, id);
        }
        for id in case.module.post_order(main.body, |id, _| !main.params.contains(&id)) {
            if copies.contains_key(&id) {
                continue;
            }
            let new = match case.module.expr(id) {
                Expr::Constant(tensor) => self.builder.constant((**tensor).clone()),
                other => {
                    let mut expr = other.clone();
                    let mut is_complete = true;
                    expr.map_operands(|operand| {
                        copies.get(&operand).copied().unwrap_or_else(|| {
                            is_complete = false;
                            operand
                        })
                    });
                    if !is_complete {
                        return None;
                    }
                    self.builder.push(expr).ok()?
                }
            };
            copies.insert(id, new);
        }
        copies.get(&main.body).copied()
    }

    /// Applies the operator or the pattern of the claim to `operand`, or to its first field if it is a tuple.
    fn extend(&mut self, claim: Claim<'_>, operand: ExprId) -> Option<ExprId> {
        let operand = match self.builder.module.ty(operand).as_tuple() {
            Some(_) => self.builder.project(operand, 0).ok()?,
            None => operand,
        };
        match claim {
            Claim::Operator(def) => self.call_with(def, operand),
            Claim::Pattern(entry) => pattern::build(self, &entry.pattern, Some(operand)),
        }
    }

    /// Generates a call with `operand` as its first or second operand.
    fn call_with(&mut self, def: &'static OpDef, operand: ExprId) -> Option<ExprId> {
        let operand_type = self.type_of_expr(operand)?;
        if def.arity.min > 1 && self.sampler.chance(4) {
            return self.call_on(
                def,
                &[Constraint::Any, Constraint::One(operand_type)],
                &[None, Some(operand)],
                &Attrs::none(),
            );
        }
        let proposed = recipes::propose(def, &mut self.sampler, &[Constraint::One(operand_type.clone())])?;
        let argument = match proposed.args.first()? {
            Argument::Tuple(_) => Constraint::Tuple(vec![Some(operand_type), None]),
            Argument::One(_) => Constraint::One(operand_type),
        };
        self.call_on(def, &[argument], &[Some(operand)], &Attrs::none())
    }
}
