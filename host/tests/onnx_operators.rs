//! Single operators: import and evaluation with the naive references, compared with the results of ONNX Runtime.

use crate::support::{max_rel_err, run, test_data};
use byoc::compare::{Tolerance, compare_values};
use byoc::frontend::LoadOptions;
use byoc::frontend::folder::TestFolder;
use byoc::runtime::exec::program::Port;
use byoc::runtime::value::{PortValue, values};

#[test]
fn operators_match_recorded_results() {
    let mut failures = Vec::new();
    let entries = std::fs::read_dir(test_data("operators")).unwrap().map(|e| e.unwrap().path());
    let mut dirs: Vec<_> = entries.filter(|p| p.is_dir()).collect();
    dirs.sort();
    assert!(dirs.len() >= 130, "expected at least 130 directories of operator tests, found {}", dirs.len());
    for path in dirs {
        let dir = TestFolder::open(&path).unwrap();
        let outcome = || -> Result<f64, String> {
            let loaded =
                dir.load(&LoadOptions::default()).map_err(|e| byoc::runtime::error::Failure::from(e).to_string())?;
            let inputs = dir.sets[0].read_inputs(&loaded.signature).map_err(|e| e.to_string())?;
            let expected = dir.sets[0].read_outputs(&loaded.signature.outputs).map_err(|e| e.to_string())?;
            let actual = run(&loaded.module, &inputs)?;
            assert_eq!(actual.len(), expected.len(), "{}", dir.name);
            let ports: Vec<Port> = loaded.signature.outputs.iter().map(Port::declared).collect();
            let values = |tensors| values(&ports, tensors).map_err(|e| e.to_string());
            let tolerance = Tolerance::AllClose { rtol: 0.0, atol: 0.0 };
            let error = |(actual, expected): (PortValue, PortValue)| match (&actual, &expected) {
                (PortValue::Tensor(actual), PortValue::Tensor(expected)) => max_rel_err(actual, expected),
                _ => compare_values(&actual, &expected, tolerance).max_rel_err,
            };
            Ok(values(actual)?.into_iter().zip(values(expected)?).map(error).fold(0.0, f64::max))
        };
        match outcome() {
            Ok(error) if error <= 1e-5 => {}
            Ok(error) => {
                failures.push(format!("{}: expected a relative error of at most 1e-5, found {error:e}", dir.name));
            }
            Err(reason) => failures.push(format!("{}: {reason}", dir.name)),
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
