//! Case generation for backend claims. The same seed generates the same cases.

mod beside;
mod control_flow;
pub mod draw;
mod pattern;
mod recipes;

use super::case::{Case, Setting, Subject};
use byoc_core::pattern::Entry;
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{Attrs, ExprId, Module, Type};
use byoc_ir::op::{self, Cost, OpDef, Params};
use byoc_ir::typing::Builder;
use draw::{Fill, Layouts, Restrictions, Sampler, Scheme, THEMES, Theme};
use recipes::{Argument, Constraint, Operand, Recipe, ValueType};
use std::sync::Arc;

pub use beside::Neighbor;
pub use control_flow::{in_branch, in_loop};

/// Maximum number of attempts to draw a valid case of an operator for a theme.
const ATTEMPTS: usize = 40;

/// Maximum number of operations per case, because the references are slow.
const MAX_FLOPS: u64 = 3_000_000;
/// Maximum number of elements per value.
const MAX_ELEMENTS: usize = 1 << 16;

/// Claim to generate cases for.
#[derive(Clone, Copy)]
pub enum Claim<'a> {
    /// Single operator.
    Operator(&'static OpDef),
    /// Pattern-table entry.
    Pattern(&'a Entry),
}

impl Claim<'_> {
    /// Returns the subject of the cases of this claim.
    pub fn subject(&self) -> Subject {
        match self {
            Claim::Operator(def) => Subject::Operator(def.name.to_owned()),
            Claim::Pattern(entry) => Subject::Pattern(entry.name.to_string()),
        }
    }

    fn name(&self) -> &str {
        match self {
            Claim::Operator(def) => def.name,
            Claim::Pattern(entry) => &entry.name,
        }
    }
}

/// Case generator for one backend.
#[derive(Clone, Debug, Default)]
pub struct Cases {
    /// Seed for case generation.
    pub seed: u64,
    /// Declared quantization scheme of the backend. Half of the cases conform to it.
    pub scheme: Option<Scheme>,
    /// Declared layouts of the backend, by operator. Most cases of these operators use them.
    pub layouts: Arc<Layouts>,
}

impl Cases {
    fn scheme(&self, index: usize) -> Option<Scheme> {
        // Each theme is drawn with the scheme in every second round.
        self.scheme.filter(|_| !(index + index / THEMES.len()).is_multiple_of(2))
    }

    /// Returns the theme of case `index`.
    pub fn theme(&self, index: usize) -> Theme {
        let theme = THEMES[index % THEMES.len()];
        self.scheme(index).map_or(theme, |scheme| Theme { dtype: scheme.activation, ..theme })
    }

    fn generator(&self, name: &str, index: usize, attempt: usize, restrictions: Restrictions) -> Generator {
        let seed = derive_seed(self.seed, name, index, attempt);
        let mut sampler = Sampler::new(seed, self.theme(index));
        sampler.index = index;
        sampler.scheme = self.scheme(index);
        sampler.layouts = self.layouts.clone();
        sampler.common_attrs = restrictions.common_attrs;
        sampler.restrictions = restrictions;
        // The choice is not random, so that every claim has cases with constants and cases without.
        let mut generator = Generator::new(sampler, restrictions.constants || index % 5 != 4);
        if generator.sampler.scheme.is_some() {
            // The quantized models that such a backend targets have constant weights and common attributes.
            (generator.constants, generator.sampler.common_attrs) = (true, true);
        }
        generator
    }

    /// Generates case `index` of a claim. Returns `None` if no valid case could be drawn, for example because the
    /// operator does not support the element type, or because no generated module matches the pattern.
    pub fn single_case(&self, claim: Claim<'_>, index: usize, restrictions: Restrictions) -> Option<Case> {
        (0..ATTEMPTS).find_map(|attempt| {
            let mut generator = self.generator(claim.name(), index, attempt, restrictions);
            // Every second round of the themes is restricted to common attributes; the other rounds may vary them.
            generator.sampler.common_attrs |= index / THEMES.len() % 2 == 1;
            // A combination of alternatives may not be well typed; later attempts draw another one.
            generator.alternatives = (attempt < ATTEMPTS / 2).then_some(index + index / THEMES.len());
            let root = generator.claim(claim)?;
            let case = generator.finish(root, claim.subject(), index)?;
            match claim {
                Claim::Pattern(entry) if !pattern::matches(entry, &case.module) => None,
                _ => Some(case),
            }
        })
    }

    /// Generates case `index` of a chain of operators, each applied to the result of its predecessor. Returns `None`
    /// if the operators cannot be combined.
    pub fn region(&self, operators: &[&'static OpDef], index: usize) -> Option<Case> {
        if operators.is_empty() {
            return None;
        }
        (0..ATTEMPTS).find_map(|attempt| {
            let mut generator = self.generator("region", index, attempt, Restrictions::default());
            let mut previous_root = None;
            let length = generator.sampler.int(2, 5);
            let mut count = 0;
            for _ in 0..4 * length {
                let def = generator.sampler.pick(operators);
                let argument = match previous_root {
                    None => Vec::new(),
                    Some(id) => vec![Constraint::One(generator.type_of_expr(id)?)],
                };
                let bound_args: Vec<Option<ExprId>> = previous_root.into_iter().map(Some).collect();
                let Some(root) = generator.call_on(def, &argument, &bound_args, &Attrs::none()) else { continue };
                if generator.type_of_expr(root).is_none() {
                    continue;
                }
                previous_root = Some(root);
                count += 1;
                if count == length {
                    break;
                }
            }
            if count < 2 {
                return None;
            }
            generator.finish(previous_root?, Subject::Region, index)
        })
    }
}

fn derive_seed(seed: u64, name: &str, index: usize, attempt: usize) -> u64 {
    let mut hasher = blake3::Hasher::new();
    for part in [seed, index as u64, attempt as u64] {
        hasher.update(&part.to_le_bytes());
    }
    hasher.update(name.as_bytes());
    let digest = hasher.finalize();
    u64::from_le_bytes(digest.as_bytes()[..8].try_into().expect("the slice has eight bytes"))
}

/// Module under construction.
struct Generator {
    sampler: Sampler,
    builder: Builder,
    params: Vec<ExprId>,
    inputs: Vec<byoc_ir::tensor::Tensor>,
    /// True if weights are constants, as in models; otherwise they are inputs.
    constants: bool,
    /// Choices between the two sides of the next alternatives of a pattern, one bit per choice; drawn at random if
    /// `None`.
    alternatives: Option<usize>,
}

impl Generator {
    fn new(sampler: Sampler, constants: bool) -> Generator {
        Generator {
            sampler,
            builder: Builder::default(),
            params: Vec::new(),
            inputs: Vec::new(),
            constants,
            alternatives: None,
        }
    }

    /// Chooses between the two sides of an alternative; returns true for the first one.
    fn choose_alternative(&mut self) -> bool {
        match &mut self.alternatives {
            Some(choices) => {
                let is_first = choices.is_multiple_of(2);
                *choices /= 2;
                is_first
            }
            None => self.sampler.chance(2),
        }
    }

    /// Returns the type of `id` if it is a tensor with known dimensions.
    fn type_of_expr(&self, id: ExprId) -> Option<ValueType> {
        let ty = self.builder.module.ty(id).as_tensor()?;
        Some((ty.dtype, ty.shape()?.to_vec()))
    }

    /// Generates a call to the operator, or a match of the pattern, on new parameters and constants.
    fn claim(&mut self, claim: Claim<'_>) -> Option<ExprId> {
        match claim {
            Claim::Operator(def) => self.call(def, &[], &Attrs::none()),
            Claim::Pattern(entry) => pattern::build(self, &entry.pattern, None),
        }
    }

    /// Generates a call to an operator on new parameters and constants.
    fn call(&mut self, def: &'static OpDef, constraints: &[Constraint], forced: &Attrs) -> Option<ExprId> {
        self.call_on(def, constraints, &[], forced)
    }

    /// Generates a call to an operator. Arguments in `bound_args` already exist; a tensor bound to a tuple argument
    /// becomes the tuple's first field.
    fn call_on(
        &mut self,
        def: &'static OpDef,
        constraints: &[Constraint],
        bound_args: &[Option<ExprId>],
        forced: &Attrs,
    ) -> Option<ExprId> {
        let Recipe { args, attrs } = recipes::propose(def, &mut self.sampler, constraints)?;
        let attrs = forced.iter().fold(attrs, |attrs, (key, value)| attrs.with(key, value.clone()));
        // The type relation sees the values that the result type depends on.
        self.check_types(def, &args, bound_args, &attrs).ok()?;
        let args: Option<Vec<ExprId>> = args
            .iter()
            .enumerate()
            .map(|(i, arg)| match (bound_args.get(i).copied().flatten(), arg) {
                (Some(id), Argument::Tuple(fields)) if self.type_of_expr(id).is_some() => {
                    let other_operands = fields.iter().skip(1).map(|field| self.operand(field, false));
                    let fields: Vec<ExprId> = [id].into_iter().chain(other_operands).collect();
                    self.builder.tuple(&fields).ok()
                }
                (Some(id), _) => Some(id),
                (None, Argument::One(operand)) => {
                    let is_constant = i > 0 && self.sampler.restrictions.constants;
                    Some(self.operand(operand, is_constant))
                }
                (None, Argument::Tuple(fields)) => {
                    let fields: Vec<ExprId> = fields.iter().map(|field| self.operand(field, false)).collect();
                    self.builder.tuple(&fields).ok()
                }
            })
            .collect();
        self.builder.op(def.name, &args?, attrs).ok()
    }

    /// Checks a proposed call with the type relation, before any of its operands is built.
    fn check_types(
        &self,
        def: &'static OpDef,
        args: &[Argument],
        bound_args: &[Option<ExprId>],
        attrs: &Attrs,
    ) -> Result<(), Box<Diagnostic>> {
        let attrs = op::normalize_attrs(def, attrs.clone())?;
        let type_of = |operand: &Operand| Type::tensor(operand.dtype, &operand.shape);
        let mut sampler = Sampler::new(0, self.sampler.theme);
        let types: Vec<Type> = args
            .iter()
            .enumerate()
            .map(|(i, arg)| match (bound_args.get(i).copied().flatten(), arg) {
                (Some(id), Argument::Tuple(fields)) if self.type_of_expr(id).is_some() => {
                    let operand_types = [self.builder.module.ty(id).clone()];
                    Type::tuple(operand_types.into_iter().chain(fields.iter().skip(1).map(type_of)))
                }
                (Some(id), _) => self.builder.module.ty(id).clone(),
                (None, Argument::One(operand)) => type_of(operand),
                (None, Argument::Tuple(fields)) => Type::tuple(fields.iter().map(type_of)),
            })
            .collect();
        let values: Vec<_> = args
            .iter()
            .map(|arg| match arg {
                Argument::One(o) if matches!(o.fill, Fill::Exactly(_)) => {
                    Some(sampler.tensor(o.dtype, &o.shape, &o.fill))
                }
                _ => None,
            })
            .collect();
        let values: Vec<_> = values.iter().map(Option::as_ref).collect();
        def.infer(&attrs, &types, &values).map(|_| ())
    }

    /// Generates a constant or a parameter for a proposed operand.
    fn operand(&mut self, operand: &Operand, is_constant: bool) -> ExprId {
        let tensor = self.sampler.tensor(operand.dtype, &operand.shape, &operand.fill);
        let is_exact = matches!(operand.fill, Fill::Exactly(_));
        if is_constant || is_exact || (operand.weight && self.constants) {
            return self.builder.constant(tensor);
        }
        let name = format!("x{}", self.params.len());
        let id = self.builder.var(name.as_str(), Type::tensor(operand.dtype, &operand.shape));
        self.params.push(id);
        self.inputs.push(tensor);
        id
    }

    fn finish(mut self, root: ExprId, subject: Subject, index: usize) -> Option<Case> {
        let cost: u64 = self.builder.module.nodes.iter().map(|(id, _)| flops(&self.builder.module, id)).sum();
        let is_too_large = |ty: &Type| match ty {
            Type::Tensor(t) => t.len().is_none_or(|n| n > MAX_ELEMENTS),
            _ => false,
        };
        if cost > MAX_FLOPS || self.builder.module.nodes.iter().any(|(_, node)| is_too_large(&node.ty)) {
            return None;
        }
        self.builder.define("main", &self.params, root).ok()?;
        let description = format!("case {index}: {}", describe_theme(self.sampler.theme));
        Some(Case {
            subject,
            description,
            setting: Setting::default(),
            module: self.builder.module,
            inputs: self.inputs,
        })
    }
}

/// Returns the number of operations of an operator call; 0 for any other expression.
fn flops(module: &Module, id: ExprId) -> u64 {
    let Some((operator, call)) = module.expr(id).as_op_call() else { return 0 };
    let def = op::get(operator);
    let args: Vec<_> = call.args.iter().map(|&a| module.ty(a).clone()).collect();
    (def.flops)(&Cost { params: Params::new(def, &call.attrs), args: &args, ret: module.ty(id) })
}

fn describe_theme(theme: Theme) -> String {
    format!("{:?} sizes, {:?} values, {}", theme.dims, theme.values, theme.dtype).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claimed::ClaimedErrors;
    use crate::reference;
    use byoc_core::pattern::{Checks, parse_table};
    use byoc_ir::tensor::DType;

    fn cases(seed: u64) -> Cases {
        Cases { seed, ..Cases::default() }
    }

    fn of_operator(cases: &Cases, def: &'static OpDef, index: usize) -> Option<Case> {
        cases.single_case(Claim::Operator(def), index, Restrictions::default())
    }

    /// Tests that half of the cases have the zero points, scales and element types of the scheme.
    #[test]
    fn conforms_to_declared_scheme() {
        let scheme = Scheme { activation: DType::I8, symmetric: true, power_of_two: true };
        let cases = Cases { seed: 1, scheme: Some(scheme), ..Cases::default() };
        let def = op::get(op::lookup("qnn.dense").unwrap());
        for index in (1..THEMES.len()).step_by(2) {
            let Some(case) = of_operator(&cases, def, index) else { continue };
            let call = case.module.nodes.iter().find_map(|(_, node)| Some(node.expr.as_op_call()?.1.clone())).unwrap();
            let constant = |i: usize| case.module.expr(call.args[i]).as_constant().unwrap().view().to_f64s();
            let (zero_points, scales) = ([constant(2), constant(3)], [constant(4), constant(5)]);
            assert!(zero_points.iter().flatten().all(|zero| *zero == 0.0), "expected zeros, found {zero_points:?}");
            let are_powers = scales.iter().flatten().all(|scale| scale.log2().fract() == 0.0);
            assert!(are_powers, "expected powers of two, found {scales:?}");
            assert_eq!(case.inputs[0].dtype(), DType::I8);
        }
    }

    /// Tests that most cases of an operator with a declared layout have it, and are valid.
    #[test]
    fn draws_declared_layouts() {
        let layouts: Layouts = [
            ("nn.conv2d".to_owned(), vec!["NHWC".to_owned(), "HWIO".to_owned()]),
            ("nn.max_pool2d".to_owned(), vec!["NHWC".to_owned()]),
        ]
        .into();
        let cases = Cases { seed: 1, layouts: layouts.into(), ..Cases::default() };
        for (name, key) in [("nn.conv2d", "data_layout"), ("nn.max_pool2d", "layout")] {
            let def = op::get(op::lookup(name).unwrap());
            let cases_drawn: Vec<Case> =
                (0..THEMES.len()).filter_map(|index| of_operator(&cases, def, index)).collect();
            let layout_cases = cases_drawn.iter().filter(|case| {
                let call = case.module.nodes.iter().find_map(|(_, node)| node.expr.as_op_call()).unwrap().1;
                call.attrs.str(key) == Some("NHWC")
            });
            assert!(layout_cases.count() * 2 > cases_drawn.len() && cases_drawn.len() > 12, "{name}");
            assert!(
                cases_drawn.iter().any(|case| reference::evaluate(
                    &case.module,
                    &case.inputs,
                    &ClaimedErrors::default()
                )
                .is_ok()),
                "{name}"
            );
        }
    }

    #[test]
    fn generates_valid_cases_for_every_operator() {
        let mut missing_operators = Vec::new();
        for def in op::table() {
            if def.reference.is_none() || def.properties.annotation {
                continue;
            }
            let mut valid_count = 0;
            for index in 0..THEMES.len() {
                let Some(case) = of_operator(&cases(1), def, index) else { continue };
                assert!(case.module.main().is_some());
                valid_count +=
                    usize::from(reference::evaluate(&case.module, &case.inputs, &ClaimedErrors::default()).is_ok());
            }
            if valid_count < 4 {
                missing_operators.push(format!("{} ({valid_count})", def.name));
            }
        }
        assert!(
            missing_operators.is_empty(),
            "operators with fewer than 4 valid cases: {}",
            missing_operators.join(", ")
        );
    }

    #[test]
    fn generates_matching_cases_for_patterns() {
        let table = "\
a: nn.relu(nn.bias_add(nn.conv2d(*, const), const) | add(nn.conv2d(*, const), const))
b: multiply(*x, sigmoid(*x)) | multiply(sigmoid(*x), *x)
c: nn.conv2d{groups=2}(*, const) ? nn.relu
d: add(nn.dense(*, const), nn.dense(*, const))
e: concatenate((nn.relu(*), nn.relu(*)))
f: nn.batch_norm(*, const, const, const, const).0
g: dominates(nn.relu(*), op{TOpPattern=0}, add(*, *))
h: divide(*, sqrt(add(nn.relu(*:float32), const(1.0))))
i: let t = nn.relu(*); add(t, exp(t))
j: nn.softmax(nn.matmul(*, *) ? multiply)
k: strided_slice(..)
l: clip(nn.max_pool2d(nn.conv2d(*, *)))
";
        let reparsed_module = parse_table(table, Checks::Allowed);
        assert!(!reparsed_module.has_errors(), "{:?}", reparsed_module.diagnostics);
        for entry in &reparsed_module.entries {
            let cases = (0..THEMES.len())
                .filter_map(|index| cases(1).single_case(Claim::Pattern(entry), index, Restrictions::default()))
                .count();
            assert!(cases >= 6, "{}: expected at least 6 cases, found {cases}", entry.name);
        }
    }

    /// Tests that any result of an operator, for example a scalar sum, may be the operand of the next operator.
    #[test]
    fn chains_any_operators() {
        let operators: Vec<&'static OpDef> =
            op::table().iter().copied().filter(|def| def.reference.is_some() && !def.properties.annotation).collect();
        let sum = op::get(op::lookup("sum").unwrap());
        for def in &operators {
            for index in 0..2 * THEMES.len() {
                let _ = cases(3).region(&[sum, def], index);
            }
        }
        let built_count = (0..400).filter_map(|index| cases(5).region(&operators, index)).count();
        assert!(built_count > 100, "expected more than 100 of 400 regions to be built, found {built_count}");
    }

    #[test]
    fn seed_determines_case() {
        let def = op::get(op::lookup("nn.conv2d").unwrap());
        let text = |seed| {
            let case = of_operator(&cases(seed), def, 1).unwrap();
            let relay_text = byoc_ir::text::print(&case.module, &byoc_ir::text::PrintOptions::default()).text;
            (relay_text, case.inputs)
        };
        assert_eq!(text(3), text(3));
        assert_ne!(text(3), text(4));
    }
}
