//! Specialized programs for fixed values of symbolic dimensions, in addition to the program with symbolic dimensions.

use super::BuildOutput;
use byoc_ir::diag::{Code, Diagnostic, codes};
use byoc_ir::interface::{LoadOptions, Loaded, OptionalInput};
use byoc_runtime::error::Failure;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum number of specialized programs per model, each of which is compiled and stored.
const MAX_VARIANTS: usize = 64;

/// Reads and builds a model: the program with the symbolic dimensions of `load`, and a specialized program for each
/// combination of the sizes in `specialized`. A dimension that a program assumes to differ from 1 gets a program for
/// the size 1. Optional inputs get a program that takes them, if the options keep them.
///
/// # Errors
/// If `read` or `build` fails, or there are more than `MAX_VARIANTS` specialized programs.
pub fn build_programs(
    load: &LoadOptions,
    specialized: &[(String, Vec<usize>)],
    read: impl Fn(&LoadOptions) -> Result<Loaded, Failure>,
    mut build: impl FnMut(Loaded) -> Result<BuildOutput, Failure>,
) -> Result<BuildOutput, Failure> {
    let model = read(&LoadOptions { exclude_ones: true, ..load.clone() })?;
    let optional: Vec<OptionalInput> =
        model.signature.optional.iter().filter(|input| !input.is_weight).cloned().collect();
    let with_ones = |dims: &BTreeMap<String, usize>, names: &BTreeSet<String>| {
        let with_one = |name: &String| dims.clone().into_iter().chain([(name.clone(), 1)]).collect();
        names.iter().map(with_one).collect::<Vec<BTreeMap<String, usize>>>()
    };
    let mut pending: VecDeque<BTreeMap<String, usize>> = combinations(specialized)?.into();
    pending.extend(with_ones(&BTreeMap::new(), &model.excluded_ones));
    let mut output = build(model)?;
    let mut built = BTreeSet::new();
    while let Some(dims) = pending.pop_front() {
        if !built.insert(dims.clone()) {
            continue;
        }
        if built.len() > MAX_VARIANTS {
            return Err(too_many("more"));
        }
        let model = read(&LoadOptions { specialized: dims.clone(), exclude_ones: true, ..load.clone() })?;
        pending.extend(with_ones(&dims, &model.excluded_ones));
        output.add_variant(dims, build(model)?);
    }
    if load.keeps_optional && !optional.is_empty() {
        let read = |given| read(&LoadOptions { given, keeps_optional: false, ..load.clone() });
        add_optional(&mut output, &optional, read, build)?;
    }
    Ok(output)
}

/// Adds the program that takes optional inputs. Operators may require that a default value is constant, usually one that
/// determines dimensions; integers are then left out, and if that does not help, all of them.
fn add_optional(
    output: &mut BuildOutput,
    optional: &[OptionalInput],
    read: impl Fn(BTreeSet<String>) -> Result<Loaded, Failure>,
    mut build: impl FnMut(Loaded) -> Result<BuildOutput, Failure>,
) -> Result<(), Failure> {
    let is_float = |input: &&OptionalInput| input.port.dtype.is_float();
    let names = |inputs: &mut dyn Iterator<Item = &OptionalInput>| -> BTreeSet<String> {
        inputs.map(|input| input.port.name.clone()).collect()
    };
    let mut reason = None;
    for given in [names(&mut optional.iter()), names(&mut optional.iter().filter(is_float))] {
        if given.is_empty() {
            continue;
        }
        let variant = read(given.clone()).and_then(|mut model| {
            let defaults = std::mem::take(&mut model.defaults);
            Ok((build(model)?, defaults))
        });
        match variant {
            Ok((variant, defaults)) => {
                output.add_optional(variant, defaults);
                let is_constant = |input: &&OptionalInput| !given.contains(&input.port.name);
                output
                    .warnings
                    .extend(optional.iter().filter(is_constant).map(|input| constant_warning(input, &reason)));
                return Ok(());
            }
            Err(failure) if failure.diagnostics.iter().all(|diagnostic| is_about_model(diagnostic.code)) => {
                reason = failure.diagnostics.into_iter().next();
            }
            Err(failure) => return Err(failure),
        }
    }
    output.warnings.extend(optional.iter().map(|input| constant_warning(input, &reason)));
    Ok(())
}

/// Tests whether a model cannot be compiled for other values of its optional inputs; any other error, such as a
/// cancellation, ends the build.
fn is_about_model(code: Code) -> bool {
    (200..400).contains(&code.0) || (500..600).contains(&code.0) || code == codes::runtime::NOT_LOWERABLE
}

fn constant_warning(input: &OptionalInput, reason: &Option<Diagnostic>) -> Diagnostic {
    let message = format!("input \"{}\" keeps its default value", input.port.name);
    let warning = Diagnostic::warning(codes::frontends::NOT_CONSTANT, message);
    match reason {
        Some(reason) => warning.note(format!("with another value, the model cannot be compiled: {}", reason.message)),
        None => warning,
    }
}

fn too_many(found: &str) -> Failure {
    let message = format!("expected at most {MAX_VARIANTS} specialized programs, found {found}");
    Diagnostic::error(codes::frontends::BAD_BINDING, message).help("pass fewer values with --dim NAME=N,N..").into()
}

/// Returns all combinations of dimension values, with the last dimension varying fastest.
///
/// # Errors
/// If there are more than `MAX_VARIANTS` combinations.
fn combinations(dims: &[(String, Vec<usize>)]) -> Result<Vec<BTreeMap<String, usize>>, Failure> {
    let count = dims.iter().try_fold(1usize, |count, (_, values)| count.checked_mul(values.len()));
    if count.is_none_or(|count| count > MAX_VARIANTS) {
        return Err(too_many(&count.map_or_else(|| "more".to_owned(), |count| count.to_string())));
    }
    if dims.is_empty() {
        return Ok(Vec::new());
    }
    let mut all_dims = vec![BTreeMap::new()];
    for (name, values) in dims {
        let with_dim = |bound_dims: &BTreeMap<String, usize>, value: usize| {
            let mut bound_dims = bound_dims.clone();
            bound_dims.insert(name.clone(), value);
            bound_dims
        };
        all_dims = all_dims
            .iter()
            .flat_map(|bound_dims| values.iter().map(move |&value| with_dim(bound_dims, value)))
            .collect();
    }
    Ok(all_dims)
}

#[cfg(test)]
mod tests {
    use super::combinations;

    #[test]
    fn combines_values_in_order() {
        let dims = [("a".to_owned(), vec![1, 8]), ("b".to_owned(), vec![4, 2])];
        let all_dims = combinations(&dims).unwrap();
        let pairs: Vec<(usize, usize)> = all_dims.iter().map(|dims| (dims["a"], dims["b"])).collect();
        assert_eq!(pairs, [(1, 4), (1, 2), (8, 4), (8, 2)]);
        assert_eq!(combinations(&[]).unwrap(), []);
        assert!(combinations(&[("a".to_owned(), (0..65).collect())]).is_err());
    }
}
