//! Operators that are declared while the process runs: their types, their decomposition, their text, and the faults of
//! declarations.

use byoc_ir::declared::{by_onnx, declare};
use byoc_ir::ir::{Attrs, Type};
use byoc_ir::op::{self, Value};
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::text::{ParseOptions, PrintOptions, parse, print};
use byoc_ir::typing::infer_expr;
use serde_json::{Value as Json, json};

/// Returns a declaration of `name` with further fields.
fn declaration(name: &str, fields: Json) -> Json {
    let mut all = json!({"name": name, "inputs": [{"name": "data", "dtypes": ["float32"], "dims": ["...", "c"]}]});
    for (key, value) in fields.as_object().unwrap() {
        all[key] = value.clone();
    }
    all
}

fn floats(shape: &[usize], values: &[f32]) -> Value {
    Value::Tensor(Tensor::from_slice(shape, values))
}

#[test]
fn decomposition_is_type_and_reference() {
    let attributes = json!([{"name": "beta", "kind": "float", "default": 2.0}]);
    let decomposition = "%0 = multiply(%data, $beta); multiply(%data, sigmoid(%0))";
    let source = declaration("test.swish", json!({"attributes": attributes, "decomposition": decomposition}));
    let id = declare("tests", &source, None).unwrap();
    assert_eq!(declare("others", &source, None), Ok(id), "an equal declaration changes nothing");
    let ty = op::get(id).infer(&Attrs::none(), &[Type::tensor(DType::F32, &[2, 3])], &[None]).unwrap();
    assert_eq!(ty, Type::tensor(DType::F32, &[2, 3]));
    for (attrs, beta) in [(Attrs::none(), 2.0f32), (Attrs::none().with("beta", 0.5), 0.5)] {
        let values = [-1.0f32, 0.0, 3.0];
        let result = op::evaluate(id, &attrs, &[floats(&[3], &values)], 1 << 20).unwrap();
        let expected: Vec<f32> = values.iter().map(|x| x / (1.0 + (-beta * x).exp())).collect();
        for (found, expected) in result[0].as_slice::<f32>().iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-6, "{found} instead of {expected}");
        }
    }
}

#[test]
fn shape_expressions_are_the_type() {
    let inputs = json!([
        {"name": "data", "dims": ["...", "c"]},
        {"name": "table", "dims": ["c", "n", 2]}
    ]);
    let outputs = json!([
        {"dtype": "data", "dims": ["...", "2*c + k"]},
        {"dtype": "int32", "dims": ["floordiv(n + 1, 2)"]}
    ]);
    let attributes = json!([{"name": "k", "kind": "int", "default": 1}]);
    let source = json!({"name": "test.shapes", "inputs": inputs, "outputs": outputs, "attributes": attributes});
    let def = op::get(declare("tests", &source, None).unwrap());
    let infer = |data: &[usize], table: &[usize], attrs: Attrs| {
        let args = [Type::tensor(DType::F16, data), Type::tensor(DType::I8, table)];
        def.infer(&attrs, &args, &[None, None]).map_err(|error| error.message)
    };
    let ty = infer(&[5, 6, 3], &[3, 4, 2], Attrs::none().with("k", 4)).unwrap();
    assert_eq!(ty.to_string(), "(Tensor[(5, 6, 10), float16], Tensor[(2), int32])");
    let error = infer(&[3], &[4, 4, 2], Attrs::none()).unwrap_err();
    assert!(error.contains("table, dimension c: expected equal dimensions, found 3 and 4"), "{error}");
    let error = infer(&[3], &[3, 4], Attrs::none()).unwrap_err();
    assert!(error.contains("table: expected 3 dimensions"), "{error}");
    assert!(def.reference.is_none());
}

#[test]
fn text_prints_and_parses_declared_operators() {
    let attributes =
        json!([{"name": "axes", "kind": "ints", "default": [0]}, {"name": "mode", "kind": "string", "default": "a"}]);
    let outputs = json!([{"dtype": "data", "dims": ["...", "c"]}]);
    let source = declaration("test.text", json!({"attributes": attributes, "outputs": outputs}));
    declare("tests", &source, None).unwrap();
    let text = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2, 3), float32]) {\n  \
                test.text(%x, axes=[1, 2], mode=\"b\")\n}\n";
    let parsed = parse(text, &ParseOptions::default());
    assert!(parsed.diagnostics.is_empty(), "{:?}", parsed.diagnostics);
    assert_eq!(print(&parsed.module, &PrintOptions::default()).text, text);
    let body = parsed.module.main().unwrap().body;
    assert_eq!(infer_expr(&parsed.module, parsed.module.expr(body)).unwrap(), Type::tensor(DType::F32, &[2, 3]));
    let unknown = parse(&text.replace("test.text", "test.txet"), &ParseOptions::default());
    assert!(
        unknown.diagnostics[0].help.as_deref().is_some_and(|help| help.contains("test.text")),
        "{:?}",
        unknown.diagnostics
    );
}

#[test]
fn onnx_versions_select_the_newest() {
    for (name, version) in [("test.one", 1), ("test.three", 3)] {
        let onnx = json!({"domain": "com.test", "name": "Op", "version": version});
        let fields = json!({"onnx": onnx, "outputs": [{"dtype": "data", "dims": ["...", "c"]}]});
        declare("tests", &declaration(name, fields), None).unwrap();
    }
    let found = |version| by_onnx("com.test", "Op", version).map(|(def, _)| def.name);
    assert_eq!(
        [found(0), found(1), found(2), found(3), found(9)],
        [None, Some("test.one"), Some("test.one"), Some("test.three"), Some("test.three")]
    );
}

#[test]
fn faults_name_key_and_value() {
    let same = json!([{"dtype": "data", "dims": ["...", "c"]}]);
    let with = |fields: Json| {
        let mut fields = fields;
        fields["outputs"] = fields.get("outputs").cloned().unwrap_or(same.clone());
        declaration("test.fault", fields)
    };
    let renamed = |name: &str| declaration(name, json!({"outputs": same}));
    let cases = [
        (renamed("nn.relu"), "\"name\": expected a name that no operator of Relay has, found nn.relu"),
        (renamed("relu6"), "\"name\": expected a name of letters, digits and _ in parts"),
        (
            with(json!({"outputs": []})),
            "\"outputs\": expected the types of the outputs, or a decomposition, found neither",
        ),
        (
            with(json!({"outputs": [{"dtype": "data", "dims": ["d"]}]})),
            "\"outputs[0].dims\": expected names of dimensions",
        ),
        (
            with(json!({"outputs": [{"dtype": "float99", "dims": []}]})),
            "\"outputs[0].dtype\": expected an element type",
        ),
        (with(json!({"outputs": [{"dtype": "data", "dims": ["c +"]}]})), "\"outputs[0].dims\": expected a dimension ("),
        (with(json!({"ulps": -1})), "\"ulps\": expected a number of units in the last place"),
        (
            with(json!({"attributes": [{"name": "a", "kind": "float", "default": "x"}]})),
            "\"attributes[0].default\": expected a number",
        ),
        (with(json!({"attributes": [{"name": "a", "kind": "tensor"}]})), "\"attributes[0].kind\": expected int, float"),
        (with(json!({"onnx": {"domain": "", "name": "Relu"}})), "\"onnx\": expected a domain of the vendor's own"),
        (
            with(json!({"decomposition": "multiply(%data, $gamma)"})),
            "\"decomposition\": expected attributes of the operator after $",
        ),
        (with(json!({"decomposition": "test.fault(%data)"})), "\"decomposition\": test.fault: unknown operator"),
        (with(json!({"decomposition": "nn.dense(%data, %data)"})), "\"decomposition\": "),
        (
            with(json!({"decomposition": "cast(%data, dtype=\"int8\")"})),
            "\"decomposition\": expected the type of \"outputs\"",
        ),
        (with(json!({"sizes": {"c": []}})), "\"sizes.c\": expected a list of sizes"),
    ];
    for (source, expected) in cases {
        let faults = declare("tests", &source, None).expect_err(expected);
        assert!(faults.iter().any(|fault| fault.contains(expected)), "expected {expected}, found {faults:?}");
    }
    declare("tests", &renamed("test.twice"), None).unwrap();
    let mut other = renamed("test.twice");
    other["ulps"] = json!(1);
    let faults = declare("others", &other, None).unwrap_err();
    assert!(faults[0].contains("others declares test.twice, which tests declares otherwise"), "{faults:?}");
}

/// A chain of declarations, each over the one before, cannot close: a name is known only after it is declared.
#[test]
fn decompositions_cannot_be_recursive() {
    let over = |name: &str, other: &str| declaration(name, json!({"decomposition": format!("{other}(%data)")}));
    let faults = declare("tests", &over("test.first", "test.second"), None).unwrap_err();
    assert!(faults[0].contains("unknown operator"), "{faults:?}");
    declare("tests", &over("test.base", "nn.relu"), None).unwrap();
    let id = declare("tests", &over("test.above", "test.base"), None).unwrap();
    let result = op::evaluate(id, &Attrs::none(), &[floats(&[2], &[-1.0, 2.0])], 1 << 20).unwrap();
    assert_eq!(result[0].as_slice::<f32>(), [0.0, 2.0]);
}
