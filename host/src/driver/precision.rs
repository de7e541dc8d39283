//! Precision of computation: which claims of a backend a build accepts.
//!
//! A backend that computes an operator below the type of its operands says so in its description. Such a place is
//! refused unless the user allows the format, for all backends or by an option of that backend.

use byoc_core::pass::{Composite, Refusal, RefusalCode};
use byoc_ir::ir::{ExprId, Module, Name};
use byoc_ir::op;
use byoc_ir::tensor::DType;
use byoc_plugin_api::{ComputeFormat, Description, PrecisionClaim};
use byoc_runtime::choices::base_name;
use byoc_runtime::plugin::to_graph::flat_types;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Key of a claim on everything that has no claim of its own.
const EVERYTHING: &str = "*";

/// Returns the formats that the user allows a backend: `format`, and those of the backend's options in `choices`.
pub(super) fn allowed(format: ComputeFormat, description: &Description, choices: &Value) -> BTreeSet<ComputeFormat> {
    let chosen = choices["backend_options"].as_object().into_iter().flatten();
    let of_options = chosen.filter_map(|(name, value)| {
        description.options.get(name)?.precision.get(value.as_str().unwrap_or_default()).copied()
    });
    of_options.chain([format]).collect()
}

/// Returns the faults of the claims of a description whose patterns are `patterns`, one line each.
pub(super) fn faults<'p>(description: &Description, patterns: impl Iterator<Item = &'p Name> + Clone) -> Vec<String> {
    let is_pattern = |key: &str| patterns.clone().any(|name| is_name_of(key, name));
    let unknown =
        description.precision.keys().filter(|key| *key != EVERYTHING && op::lookup(key).is_none() && !is_pattern(key));
    let fault =
        |key| format!("\"precision.{key}\": expected an operator, a pattern of the table or \"*\", found {key}");
    let mut faults: Vec<String> = unknown.map(fault).collect();
    for (name, option) in &description.options {
        let unknown =
            option.precision.keys().filter(|value| !option.values.is_empty() && !option.values.contains(value));
        let values = option.values.join(", ");
        faults.extend(unknown.map(|value| {
            format!("\"options.{name}.precision\": expected a value of the option ({values}), found \"{value}\"")
        }));
    }
    faults
}

/// Returns true if `key`, with or without the prefix of the backend, is the name of a pattern.
fn is_name_of(key: &str, pattern: &str) -> bool {
    pattern == key || pattern.split_once('.').is_some_and(|(_, suffix)| suffix == key)
}

/// Claim that applies to an operator.
pub struct AppliedClaim<'d> {
    /// Operator or pattern for which the claim is stated, or `*`.
    pub key: &'d str,
    /// Claim.
    pub claim: &'d PrecisionClaim,
    /// Operator call.
    pub expr: ExprId,
}

/// Returns the claims of a description on the operators among `nodes`, in that order. A claim on a pattern has
/// precedence over a claim on an operator, and that over the claim on everything.
pub fn claims_on<'d>(
    description: &'d Description,
    module: &Module,
    nodes: &[ExprId],
    composites: &[Composite],
) -> Vec<AppliedClaim<'d>> {
    let claims = &description.precision;
    if claims.is_empty() {
        return Vec::new();
    }
    let of_pattern = |id: ExprId| {
        let composite = composites.iter().find(|composite| composite.nodes.contains(&id))?;
        claims.iter().find(|(key, _)| is_name_of(key, &composite.name))
    };
    let applied = nodes.iter().filter_map(|&expr| {
        let (operator, _) = module.expr(expr).as_op_call()?;
        let of_operator = || claims.get_key_value(op::get(operator).name);
        let (key, claim) = of_pattern(expr).or_else(of_operator).or_else(|| claims.get_key_value(EVERYTHING))?;
        Some(AppliedClaim { key, claim, expr })
    });
    applied.collect()
}

/// Returns the reason against a candidate of which an operator is computed below the type of its operands, in a format
/// that is not among `allowed`; `None` if there is no such operator.
pub(super) fn refusal(
    backend: &str,
    module: &Module,
    claims: &[AppliedClaim<'_>],
    allowed: &BTreeSet<ComputeFormat>,
) -> Option<Refusal> {
    for AppliedClaim { claim, expr, .. } in claims {
        let Some((dtype, native)) = widest_float(module, *expr) else { continue };
        if native.allows(claim.computes) || allowed.iter().any(|format| format.allows(claim.computes)) {
            continue;
        }
        let operator = module.expr(*expr).as_op_call().map_or("", |(operator, _)| op::get(operator).name);
        let name = base_name(backend);
        let detail = format!(
            "{operator}: expected {} computed in {native}, found {} of {name} ({})",
            dtype.name(),
            claim.computes,
            claim.summary()
        );
        let hint = match claim.computes {
            ComputeFormat::Int8 => format!("run \"byoc quantize --backend {name}\""),
            format => format!("allow it with --precision {format}"),
        };
        return Some(Refusal { hint, ..Refusal::new(RefusalCode::Precision, detail) });
    }
    None
}

/// Returns the widest floating-point type among the operands and results of an operator call, as a format.
fn widest_float(module: &Module, id: ExprId) -> Option<(DType, ComputeFormat)> {
    let mut ids = vec![id];
    module.expr(id).for_each_operand(|operand| ids.push(operand));
    let types = ids.iter().filter_map(|&id| flat_types(module.ty(id)).ok()).flatten();
    let floats = types.filter_map(|ty| match ty.dtype {
        DType::F32 | DType::F64 => Some((ty.dtype, ComputeFormat::F32)),
        DType::BF16 => Some((ty.dtype, ComputeFormat::Bf16)),
        DType::F16 => Some((ty.dtype, ComputeFormat::F16)),
        _ => None,
    });
    floats.max_by_key(|(_, format)| format.significant_bits())
}

/// Returns the distinct claims that apply in a region, for users (`nn.conv2d: bf16, 2 ulps`), each with its format.
pub(super) fn summaries(claims: &[AppliedClaim<'_>]) -> Vec<(String, ComputeFormat)> {
    let text = |applied: &AppliedClaim<'_>| format!("{}: {}", applied.key, applied.claim.summary());
    let texts: BTreeMap<String, ComputeFormat> =
        claims.iter().map(|applied| (text(applied), applied.claim.computes)).collect();
    texts.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_ir::ir::{Attrs, Type};
    use byoc_ir::typing::Builder;
    use byoc_plugin_api::BackendOption;
    use serde_json::json;

    fn description(claims: &[(&str, PrecisionClaim)]) -> Description {
        let precision = claims.iter().map(|(key, claim)| ((*key).to_owned(), *claim)).collect();
        Description { precision, ..Description::default() }
    }

    fn claim(format: ComputeFormat) -> PrecisionClaim {
        PrecisionClaim::ulps(format, 1.0)
    }

    /// Returns the code of the refusal of `nn.relu` on `dtype`, and its hint.
    fn refusal_of(dtype: DType, format: ComputeFormat, allowed: ComputeFormat) -> Option<(RefusalCode, String)> {
        let mut builder = Builder::default();
        let x = builder.var("x", Type::tensor(dtype, &[2]));
        let relu = builder.op("nn.relu", &[x], Attrs::none()).unwrap();
        let description = description(&[("*", claim(format))]);
        let claims = claims_on(&description, &builder.module, &[relu], &[]);
        let refusal = refusal("chip@1", &builder.module, &claims, &BTreeSet::from([allowed]))?;
        Some((refusal.code, refusal.hint))
    }

    #[test]
    fn refuses_what_is_below_the_type_and_not_allowed() {
        use ComputeFormat::{Bf16, F16, F32, Int8, Tf32};
        let hint = |text: &str| Some((RefusalCode::Precision, text.to_owned()));
        assert_eq!(refusal_of(DType::F32, Bf16, F32), hint("allow it with --precision bf16"));
        assert_eq!(refusal_of(DType::F32, Bf16, Bf16), None);
        assert_eq!(refusal_of(DType::F32, Bf16, F16), hint("allow it with --precision bf16"));
        assert_eq!(refusal_of(DType::F32, Tf32, F16), None);
        assert_eq!(refusal_of(DType::F32, F32, F32), None);
        assert_eq!(refusal_of(DType::F32, Int8, F16), hint("run \"byoc quantize --backend chip\""));
        // A model of 16-bit floats allows its own format, and integers have none.
        assert_eq!(refusal_of(DType::BF16, Bf16, F32), None);
        assert_eq!(refusal_of(DType::F16, Bf16, F32), hint("allow it with --precision bf16"));
        assert_eq!(refusal_of(DType::I8, Int8, F32), None);
    }

    #[test]
    fn a_claim_on_a_pattern_comes_before_one_on_an_operator() {
        let mut builder = Builder::default();
        let x = builder.var("x", Type::tensor(DType::F32, &[2]));
        let nodes = ["abs", "nn.relu", "exp"].map(|name| builder.op(name, &[x], Attrs::none()).unwrap());
        let description = description(&[
            ("one", claim(ComputeFormat::F16)),
            ("abs", claim(ComputeFormat::Tf32)),
            ("nn.relu", claim(ComputeFormat::Bf16)),
            ("*", claim(ComputeFormat::F32)),
        ]);
        let composites =
            [Composite { name: "chip.one".into(), root: nodes[0], nodes: vec![nodes[0]], inputs: vec![x] }];
        let claims = claims_on(&description, &builder.module, &nodes, &composites);
        assert_eq!(claims.iter().map(|applied| applied.key).collect::<Vec<_>>(), ["one", "nn.relu", "*"]);
        let texts: Vec<String> = summaries(&claims).into_iter().map(|(text, _)| text).collect();
        assert_eq!(texts, ["*: f32, 1 ulp", "nn.relu: bf16, 1 ulp", "one: f16, 1 ulp"]);
    }

    #[test]
    fn options_of_a_backend_allow_formats() {
        let values = ["false", "true"].map(String::from).to_vec();
        let precision = [("true".to_owned(), ComputeFormat::Bf16)].into();
        let half = BackendOption { values, precision, ..BackendOption::default() };
        let mut description = Description { options: [("half".to_owned(), half)].into(), ..Description::default() };
        let formats =
            |value: &str| allowed(ComputeFormat::F32, &description, &json!({"backend_options": {"half": value}}));
        assert_eq!(formats("true"), BTreeSet::from([ComputeFormat::F32, ComputeFormat::Bf16]));
        assert_eq!(formats("false"), BTreeSet::from([ComputeFormat::F32]));
        assert_eq!(faults(&description, [].iter()), [""; 0]);
        description.precision.insert("nn.relo".into(), claim(ComputeFormat::F16));
        description.options.get_mut("half").unwrap().precision.insert("yes".into(), ComputeFormat::F16);
        assert_eq!(
            faults(&description, [].iter()),
            [
                "\"precision.nn.relo\": expected an operator, a pattern of the table or \"*\", found nn.relo",
                "\"options.half.precision\": expected a value of the option (false, true), found \"yes\""
            ]
        );
    }
}
