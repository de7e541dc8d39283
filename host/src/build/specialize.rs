//! Specialized programs for fixed values of symbolic dimensions, in addition to the program with symbolic dimensions.

use byoc_ir::diag::{Diagnostic, codes};
use byoc_runtime::error::Failure;
use std::collections::BTreeMap;

/// Maximum number of specialized programs per model, each of which is compiled and stored.
const MAX_VARIANTS: usize = 64;

/// Returns all combinations of dimension values, with the last dimension varying fastest.
///
/// # Errors
/// If there are more than `MAX_VARIANTS` combinations.
pub fn combinations(dims: &[(String, Vec<usize>)]) -> Result<Vec<BTreeMap<String, usize>>, Failure> {
    let count = dims.iter().try_fold(1usize, |count, (_, values)| count.checked_mul(values.len()));
    if count.is_none_or(|count| count > MAX_VARIANTS) {
        let count_text = count.map_or_else(|| "more".to_owned(), |count| count.to_string());
        let message = format!("expected at most {MAX_VARIANTS} specialized programs, found {count_text}");
        return Err(Diagnostic::error(codes::frontends::BAD_BINDING, message)
            .help("pass fewer values with --dim NAME=N,N..")
            .into());
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
