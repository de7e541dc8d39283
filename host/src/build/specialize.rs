//! Specialized programs for fixed values of symbolic dimensions, in addition to the program with symbolic dimensions.

use super::BuildOutput;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::interface::{LoadOptions, Loaded};
use byoc_runtime::error::Failure;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum number of specialized programs per model, each of which is compiled and stored.
const MAX_VARIANTS: usize = 64;

/// Reads and builds a model: the program with the symbolic dimensions of `load`, and a specialized program for each
/// combination of the sizes in `specialized`. A dimension that a program assumes to differ from 1 gets a program for
/// the size 1.
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
    Ok(output)
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
