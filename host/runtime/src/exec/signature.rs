//! Signature of a region: the types of its inputs, its outputs, and the constants it was compiled with.
//!
//! A compiled region relies on the tensor types that it was compiled for, but a program from a file may declare
//! different types. Therefore the host performs the same checks for every backend: before any part of a region is
//! loaded, the program is compared with the signature recorded at compile time, and the tensors of each plan are
//! compared with the signature again.

use super::region::{OutputDims, Prepared};
use byoc_ir::diag::plural;
use byoc_ir::ir::{Dim, TensorType, Type};
use byoc_ir::tensor::DType;
use byoc_ir::text::dim_or_symbol;
use serde_json::{Value, json};

/// Types of a region's tensors, tuples flattened. An unknown dimension admits any value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Signature {
    /// Types of the inputs.
    pub inputs: Vec<TensorType>,
    /// Types of the outputs.
    pub outputs: Vec<TensorType>,
    /// Constants that the region reads, each with its index in the list passed to the loader and its type.
    pub constants: Vec<(usize, TensorType)>,
}

impl Signature {
    /// Reads the signature from the JSON form of a region's graph (`docs/schema/graph.json`).
    ///
    /// # Errors
    /// If the graph is malformed; the message names the malformed part.
    pub fn of_graph(graph: &Value) -> Result<Signature, String> {
        let nodes = list(graph, "nodes")?;
        let inputs = list(graph, "inputs")?.iter().map(|input| read_type(&input["type"])).collect::<Result<_, _>>()?;
        let outputs = list(graph, "outputs")?.iter().map(|output| read_type(output_type(nodes, output)?));
        let outputs = outputs.collect::<Result<_, _>>()?;
        let mut constants = Vec::new();
        // A valid composite contains only operators, but a file may nest composites.
        let mut worklist = vec![nodes];
        while let Some(nodes) = worklist.pop() {
            for node in nodes {
                if let Some(constant) = node.get("constant") {
                    let constant_index =
                        index(constant).ok_or_else(|| format!("expected the index of a constant, found {constant}"))?;
                    constants.push((constant_index, read_type(&node["outputs"][0])?));
                }
                if let Some(body) = node.get("body") {
                    worklist.push(list(body, "nodes")?);
                }
            }
        }
        Ok(Signature { inputs, outputs, constants })
    }

    /// Returns the JSON form passed to a loader (`docs/schema/options.json`).
    pub fn to_json(&self) -> Value {
        let types = |types: &[TensorType]| -> Vec<Value> { types.iter().map(write_type).collect() };
        json!({ "inputs": types(&self.inputs), "outputs": types(&self.outputs) })
    }

    /// Compares the types that a program declares for the region with the signature. Element types, ranks and known
    /// dimensions must agree; the names of unknown dimensions may differ.
    ///
    /// # Errors
    /// If a tensor has a different type; the message names the first such tensor.
    pub fn check_ports(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Result<(), String> {
        for (kind, recorded_types, claimed_types) in
            [("input", &self.inputs, inputs), ("output", &self.outputs, outputs)]
        {
            check_count(kind, recorded_types.len(), claimed_types.len())?;
            for (i, (recorded_type, claimed_type)) in recorded_types.iter().zip(claimed_types).enumerate() {
                let is_same_dim = |(a, b): (&Dim, &Dim)| a.fixed() == b.fixed();
                let has_same_dims = recorded_type.dims.len() == claimed_type.dims.len()
                    && recorded_type.dims.iter().zip(&claimed_type.dims).all(is_same_dim);
                if recorded_type.dtype != claimed_type.dtype || !has_same_dims {
                    return Err(format!(
                        "{kind} {i}: expected {}, found {}",
                        type_text(recorded_type),
                        type_text(claimed_type)
                    ));
                }
            }
        }
        Ok(())
    }

    /// Compares the constants to be passed to a loader with the constants with which the region was compiled.
    ///
    /// # Errors
    /// If a constant is missing or has a different type; the message names the first such constant.
    pub fn check_constants(&self, constant: impl Fn(usize) -> Option<TensorType>) -> Result<(), String> {
        for (constant_index, recorded_type) in &self.constants {
            let actual_type = constant(*constant_index);
            if actual_type.as_ref() != Some(recorded_type) {
                let actual_type = actual_type.as_ref().map_or_else(|| "none".to_owned(), type_text);
                return Err(format!(
                    "constant {constant_index}: expected {}, found {actual_type}",
                    type_text(recorded_type)
                ));
            }
        }
        Ok(())
    }

    /// Compares the tensors of a run with the input types.
    ///
    /// # Errors
    /// If a tensor does not have the type of its input; the message names the first such tensor.
    pub fn check_inputs<'s>(
        &self,
        inputs: impl ExactSizeIterator<Item = (Option<DType>, &'s [usize])>,
    ) -> Result<(), String> {
        check_count("input", self.inputs.len(), inputs.len())?;
        for (i, (expected, (dtype, dims))) in self.inputs.iter().zip(inputs).enumerate() {
            if dtype.is_some_and(|dtype| dtype != expected.dtype) || !admits(expected, dims) {
                let found = type_text(&TensorType::fixed(dtype.unwrap_or(expected.dtype), dims));
                return Err(format!("input {i}: expected {}, found {found}", type_text(expected)));
            }
        }
        Ok(())
    }

    /// Compares the outputs that a backend prepares with the output types. A bound may exceed a recorded dimension; an
    /// exact dimension must equal the recorded dimension.
    ///
    /// # Errors
    /// If an output contradicts the signature; the message names the first such output.
    pub fn check_prepared(&self, plan: &Prepared) -> Result<(), String> {
        check_count("output", self.outputs.len(), plan.outputs.len())?;
        for (i, (expected, OutputDims { dims, exact: is_exact })) in self.outputs.iter().zip(&plan.outputs).enumerate()
        {
            let is_compatible = |(expected, found): (&Dim, &usize)| match expected.fixed() {
                Some(size) if *is_exact => size == *found,
                Some(size) => size <= *found,
                None => true,
            };
            if expected.dims.len() != dims.len() || !expected.dims.iter().zip(dims).all(is_compatible) {
                let found = if *is_exact { format!("{dims:?}") } else { format!("at most {dims:?}") };
                return Err(format!("prepared output {i}: expected {}, found {found}", type_text(expected)));
            }
        }
        Ok(())
    }

    /// Compares the dimensions that a run returned with the prepared dimensions.
    ///
    /// # Errors
    /// If an output exceeds its bound, or its rank or dimensions contradict the signature; the message names the first
    /// such output.
    pub fn check_results(&self, plan: &Prepared, found: &[impl AsRef<[usize]>]) -> Result<(), String> {
        for (i, ((expected, bound), found)) in self.outputs.iter().zip(&plan.outputs).zip(found).enumerate() {
            let found = found.as_ref();
            let is_within_bound =
                bound.dims.len() == found.len() && bound.dims.iter().zip(found).all(|(limit, n)| n <= limit);
            if !is_within_bound || !admits(expected, found) {
                let bound = &bound.dims;
                return Err(format!(
                    "output {i}: expected {} and at most {bound:?}, found {found:?}",
                    type_text(expected)
                ));
            }
        }
        Ok(())
    }
}

/// Returns true if `dims` are possible dimensions of a tensor of type `ty`.
pub(crate) fn admits(ty: &TensorType, dims: &[usize]) -> bool {
    ty.dims.len() == dims.len() && ty.dims.iter().zip(dims).all(|(dim, n)| dim.fixed().is_none_or(|size| size == *n))
}

fn check_count(kind: &str, expected: usize, found: usize) -> Result<(), String> {
    match expected == found {
        true => Ok(()),
        false => Err(format!("expected {}, found {found}", plural(expected, kind))),
    }
}

fn type_text(ty: &TensorType) -> String {
    Type::Tensor(ty.clone().into()).to_string()
}

fn list<'v>(value: &'v Value, key: &str) -> Result<&'v [Value], String> {
    value
        .get(key)
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .ok_or_else(|| format!("graph: expected a list \"{key}\", found none"))
}

fn index(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|n| usize::try_from(n).ok())
}

/// Returns the type of the value `[node, output]`.
fn output_type<'v>(nodes: &'v [Value], value: &Value) -> Result<&'v Value, String> {
    let part = |i: usize| value.get(i).and_then(index);
    let ty = part(0).zip(part(1)).and_then(|(node, output)| nodes.get(node)?.get("outputs")?.get(output));
    ty.ok_or_else(|| format!("expected a reference to a value of the graph, found {value}"))
}

fn read_type(value: &Value) -> Result<TensorType, String> {
    let type_error = || format!("expected a tensor type, found {value}");
    let dtype = value["dtype"].as_str().and_then(DType::parse).ok_or_else(type_error)?;
    let dims = value["dims"].as_array().ok_or_else(type_error)?.iter().map(|dim| match dim {
        Value::Null => Ok(Dim::Any),
        Value::String(text) => Ok(dim_or_symbol(text)),
        size => index(size).map(Dim::Fixed).ok_or_else(type_error),
    });
    let ty = TensorType { dtype, dims: dims.collect::<Result<_, _>>()? };
    if ty.is_addressable() { Ok(ty) } else { Err(format!("expected an addressable tensor size, found {value}")) }
}

fn write_type(ty: &TensorType) -> Value {
    let dim = |dim: &Dim| match dim {
        Dim::Fixed(size) => json!(size),
        Dim::Symbolic(expr) => json!(expr.to_string()),
        Dim::Any => Value::Null,
    };
    json!({ "dtype": ty.dtype.name(), "dims": ty.dims.iter().map(dim).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_ir::tensor::Shape;

    fn signature() -> Signature {
        Signature::of_graph(&json!({
            "nodes": [
                {"input": 0, "outputs": [{"dtype": "float32", "dims": ["n", 4]}]},
                {"constant": 1, "outputs": [{"dtype": "int8", "dims": [4]}]},
                {"composite": "c", "outputs": [{"dtype": "float32", "dims": [null, 2]}],
                 "body": {"nodes": [{"constant": 0, "outputs": [{"dtype": "bool", "dims": []}]}]}},
            ],
            "inputs": [{"name": "x", "type": {"dtype": "float32", "dims": ["n", 4]}}],
            "outputs": [[2, 0]],
        }))
        .unwrap()
    }

    fn plan_with_dims(dims: &[usize], is_exact: bool) -> Prepared {
        Prepared { outputs: vec![OutputDims { dims: Shape::from_slice(dims), exact: is_exact }], ..Prepared::default() }
    }

    #[test]
    fn reads_graph_and_writes_loader_form() {
        let signature = signature();
        assert_eq!(signature.constants.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [1, 0]);
        let types = json!({"inputs": [{"dtype": "float32", "dims": ["n", 4]}],
                           "outputs": [{"dtype": "float32", "dims": [null, 2]}]});
        assert_eq!(signature.to_json(), types);
        for invalid in [json!({}), json!({"nodes": [], "inputs": [], "outputs": [[0, 0]]}), Value::Null] {
            Signature::of_graph(&invalid).unwrap_err();
        }
    }

    #[test]
    fn compares_element_type_rank_and_size_of_ports() {
        let (signature, ty) =
            (signature(), |dtype, dims: &[Dim]| TensorType { dtype, dims: dims.iter().cloned().collect() });
        let out = ty(DType::F32, &[Dim::symbol("m"), Dim::Fixed(2)]);
        let check = |input: TensorType| signature.check_ports(&[input], std::slice::from_ref(&out));
        check(ty(DType::F32, &[Dim::Any, Dim::Fixed(4)])).unwrap();
        let error = check(ty(DType::I8, &[Dim::Any, Dim::Fixed(4)])).unwrap_err();
        assert!(error.contains("input 0: expected") && error.contains("int8"), "{error}");
        check(ty(DType::F32, &[Dim::Any, Dim::Fixed(5)])).unwrap_err();
        check(ty(DType::F32, &[Dim::Fixed(1), Dim::Fixed(4)])).unwrap_err();
        check(ty(DType::F32, &[Dim::Fixed(4)])).unwrap_err();
        signature.check_ports(&[], &[]).unwrap_err();
    }

    #[test]
    fn checks_tensors_and_plans() {
        let signature = signature();
        let check = |dtype, dims: &'static [usize]| signature.check_inputs([(Some(dtype), dims)].into_iter());
        check(DType::F32, &[7, 4]).unwrap();
        check(DType::I8, &[7, 4]).unwrap_err();
        check(DType::F32, &[7, 5]).unwrap_err();
        signature.check_prepared(&plan_with_dims(&[7, 2], true)).unwrap();
        signature.check_prepared(&plan_with_dims(&[7, 3], true)).unwrap_err();
        signature.check_prepared(&plan_with_dims(&[7, 3], false)).unwrap();
        signature.check_prepared(&plan_with_dims(&[2], true)).unwrap_err();
        signature.check_prepared(&Prepared::default()).unwrap_err();
        let bound = plan_with_dims(&[7, 3], false);
        signature.check_results(&bound, &[[6usize, 2]]).unwrap();
        for invalid_dims in [&[8usize, 2][..], &[1, 3], &[2]] {
            signature.check_results(&bound, &[invalid_dims]).unwrap_err();
        }
    }

    #[test]
    fn checks_constants() {
        let signature = signature();
        let recorded_types = [TensorType::fixed(DType::Bool, &[]), TensorType::fixed(DType::I8, &[4])];
        signature.check_constants(|i| Some(recorded_types[i].clone())).unwrap();
        let mismatched_types = [recorded_types[0].clone(), TensorType::fixed(DType::I8, &[3])];
        signature.check_constants(|i| Some(mismatched_types[i].clone())).unwrap_err();
        signature.check_constants(|i| recorded_types[..1].get(i).cloned()).unwrap_err();
    }
}
