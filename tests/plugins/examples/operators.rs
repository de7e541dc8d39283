//! Backend with operators of its vendor: `vendor.swish`, which has a decomposition, and `vendor.pairs`, which has none.

use byoc_plugin_api::declare::{DeclaredAttribute, DeclaredInput, DeclaredOutput, OnnxName, OperatorDeclaration};
use byoc_plugin_api::*;

declare_plugin!("operators", env!("CARGO_PKG_VERSION"));
register!(|_context, registry| {
    registry.codegen("operators", Operators);
    registry.loader("operators", Operators);
    Ok(())
});

struct Operators;

/// Declares `x * sigmoid(beta * x)`.
fn swish() -> OperatorDeclaration {
    let any = Some(vec!["...".into()]);
    OperatorDeclaration {
        name: "vendor.swish".into(),
        about: "x * sigmoid(beta * x)".into(),
        onnx: Some(OnnxName { domain: "com.vendor".into(), name: "Swish".into(), version: 1 }),
        inputs: vec![DeclaredInput { name: "data".into(), dtypes: vec!["float32".into()], dims: any }],
        outputs: vec![DeclaredOutput { dtype: "data".into(), dims: vec!["...".into()] }],
        attributes: vec![DeclaredAttribute {
            name: "beta".into(),
            kind: "float".into(),
            default: 1.0.into(),
            about: "steepness".into(),
        }],
        ulps: Some(16.0),
        decomposition: Some("multiply(%data, sigmoid(multiply(%data, $beta)))".into()),
        ..OperatorDeclaration::default()
    }
}

/// Declares the sums of the pairs in each row. The host cannot compute it.
fn pairs() -> OperatorDeclaration {
    let dims = Some(vec!["rows".into(), "columns".into()]);
    OperatorDeclaration {
        name: "vendor.pairs".into(),
        about: "sums of the pairs in each row".into(),
        onnx: Some(OnnxName { domain: "com.vendor".into(), name: "Pairs".into(), version: 2 }),
        inputs: vec![DeclaredInput { name: "data".into(), dtypes: vec!["float32".into()], dims }],
        outputs: vec![DeclaredOutput {
            dtype: "data".into(),
            dims: vec!["rows".into(), "floordiv(columns, 2)".into()],
        }],
        sizes: [("columns".to_owned(), vec![2, 4, 8])].into(),
        ..OperatorDeclaration::default()
    }
}

impl Codegen for Operators {
    fn describe(&self) -> Result<Description> {
        Ok(Description {
            about: "two operators of its own".into(),
            operators: vec!["vendor.swish".into(), "vendor.pairs".into()],
            declares: vec![swish().to_json(), pairs().to_json()],
            options: [("refuses".to_owned(), BackendOption { about: "an operator".into(), ..Default::default() })]
                .into(),
            ..Description::default()
        })
    }

    fn judge(&self, candidate: &Candidate) -> Verdict {
        let operators = candidate.graph.operators();
        if operators.len() > 1 {
            return Verdict::split(1);
        }
        let refused = candidate.option("refuses");
        match operators.first().filter(|(name, ..)| refused.as_deref() == Some(name)) {
            Some((name, ..)) => Verdict::refused(RefusalCode::UnsupportedOp, format!("{name} is switched off")),
            None => Verdict::Supported,
        }
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        Ok(CompiledRegion::new(&region.graph.symbol, "operators", region.graph.to_json()))
    }
}

impl Loader for Operators {
    fn load(&self, region: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        let graph = Graph::from_json(&String::from_utf8_lossy(region.blob))?;
        graph.check(region.constants.len())?;
        region.check_signature(&Signature::of(&graph))?;
        let operators = graph.operators();
        let (name, node, _) = operators.first().ok_or("expected an operator, found none")?;
        let beta = match *name {
            "vendor.swish" => {
                Some(node.float("beta").ok_or("vendor.swish: expected the attribute beta, found none")? as f32)
            }
            "vendor.pairs" => None,
            other => return Err(format!("expected vendor.swish or vendor.pairs, found {other}").into()),
        };
        let constant = graph.nodes.iter().find_map(|node| match node.kind {
            NodeKind::Constant(index) => Some(region.constants[index as usize].clone()),
            _ => None,
        });
        let shape = graph.output_types().next().and_then(TensorType::shape).ok_or("expected known dimensions")?;
        Ok(Box::new(Operator { beta, constant, shape }))
    }
}

/// Loaded operator: `vendor.swish` with its `beta`, or `vendor.pairs`.
struct Operator {
    beta: Option<f32>,
    constant: Option<Constant>,
    shape: Vec<usize>,
}

impl Executable for Operator {
    fn prepare(&self, _inputs: &[&[usize]]) -> Result<Prepared> {
        Ok(Prepared::exact([&self.shape]))
    }

    fn run(&self, call: Call<'_, '_>) -> Result<()> {
        let constant = self.constant.as_ref().map(Constant::tensor);
        let x = match &constant {
            Some(tensor) => tensor.as_slice::<f32>(),
            None => call.inputs[0].as_slice::<f32>(),
        };
        let y = call.outputs[0].as_mut_slice::<f32>();
        match self.beta {
            Some(beta) => y.iter_mut().zip(x).for_each(|(y, x)| *y = x * (1.0 / (1.0 + (-beta * x).exp()))),
            None => y.iter_mut().zip(x.chunks_exact(2)).for_each(|(y, pair)| *y = pair[0] + pair[1]),
        }
        Ok(())
    }
}
