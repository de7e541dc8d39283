//! A backend that uses every entry of the boundary as it was when it was frozen: `nn.relu` and `add` on float32.

use byoc_plugin_api::*;
use serde_json::json;

declare_plugin!("first", "0.1.0");
register!(|context, registry| {
    context.services.log_level();
    registry.codegen("first", First);
    registry.loader("first", First);
    Ok(())
});

struct First;

impl Codegen for First {
    fn describe(&self) -> Result<Description> {
        Ok(Description {
            about: "the first plugin".into(),
            patterns: "add_relu: nn.relu(add(*, *))".into(),
            operators: vec!["nn.relu".into(), "add".into()],
            max_blob_bytes: Some(1 << 20),
            ..Description::default()
        })
    }

    fn judge(&self, candidate: &Candidate) -> Verdict {
        for (name, node, graph) in candidate.graph.operators() {
            let types: Vec<&TensorType> = node.inputs.iter().map(|&input| graph.type_of(input)).collect();
            if types[0].dtype != DType::F32 {
                let found = format!("input 0 of {name} is {}; first takes float32", types[0].dtype);
                return Verdict::refused(RefusalCode::UnsupportedDtype, found);
            }
            if types.iter().any(|ty| ty != &types[0]) {
                return Verdict::refused(RefusalCode::UnsupportedShape, "first does not broadcast").hint("write it out");
            }
        }
        Verdict::Supported
    }

    fn accept_region(&self, region: &Candidate) -> Verdict {
        match region.graph.operators().len() {
            0..=64 => self.judge(region),
            more => Verdict::refused(RefusalCode::ResourceLimit, format!("{more} operators; first takes 64")),
        }
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        let json = region.graph.to_json();
        let mut compiled = CompiledRegion::new(&region.graph.symbol, "first", json.clone().into_bytes());
        compiled.notes.push(format!("{} operators", region.graph.operators().len()).into());
        compiled.metadata.push(Attr::new("cpu_features", ""));
        Ok(compiled.with_source("json", json))
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok((key == "echo").then(|| data.to_vec()))
    }
}

impl Loader for First {
    fn load(&self, region: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        let text = std::str::from_utf8(region.blob).map_err(|error| Error::new(error.to_string()))?;
        let graph = Graph::from_json(text)?;
        graph.check(region.constants.len())?;
        region.services.event("loaded", &json!({ "symbol": region.symbol }));
        let constants = region.constants.iter().map(|c| c.tensor().as_slice::<f32>().to_vec()).collect();
        Ok(Box::new(Loaded { graph, constants, services: region.services.clone() }))
    }
}

struct Loaded {
    graph: Graph,
    constants: Vec<Vec<f32>>,
    services: Services,
}

impl Loaded {
    fn evaluate(&self, graph: &Graph, inputs: &[Vec<f32>]) -> Result<Vec<Vec<f32>>> {
        let mut values: Vec<Vec<f32>> = Vec::new();
        for node in &graph.nodes {
            let args: Vec<&Vec<f32>> = node.inputs.iter().map(|r| &values[r.node as usize]).collect();
            values.push(match &node.kind {
                NodeKind::Input(index) => inputs[*index as usize].clone(),
                NodeKind::Constant(index) => self.constants[*index as usize].clone(),
                NodeKind::Composite(composite) => {
                    let args: Vec<Vec<f32>> = args.into_iter().cloned().collect();
                    self.evaluate(&composite.body, &args)?.remove(0)
                }
                NodeKind::Op(name) if name == "add" => args[0].iter().zip(args[1]).map(|(a, b)| a + b).collect(),
                NodeKind::Op(_) => args[0].iter().map(|&x| if x < 0.0 { 0.0 } else { x }).collect(),
            });
        }
        Ok(graph.outputs.iter().map(|r| values[r.node as usize].clone()).collect())
    }
}

impl Executable for Loaded {
    fn prepare(&self, _: &[&[usize]]) -> Result<Prepared> {
        let dims: Vec<Vec<usize>> = self.graph.output_types().filter_map(TensorType::shape).collect();
        Ok(Prepared::exact(dims).with_workspace(64))
    }

    fn run(&self, call: Call<'_, '_>) -> Result<()> {
        if self.services.cancelled() {
            return Err(Error::cancelled());
        }
        let inputs: Vec<Vec<f32>> = call.inputs.iter().map(|t| t.as_slice::<f32>().to_vec()).collect();
        let results = self.evaluate(&self.graph, &inputs)?;
        for (output, result) in call.outputs.iter_mut().zip(results) {
            output.as_mut_slice::<f32>().copy_from_slice(&result);
        }
        self.services.counter("first.runs", 1);
        self.services.try_parallel_for(self.services.num_threads(), |_| Ok(()))
    }

    fn query(&self, key: &str, _: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok((key == "runs").then(|| vec![1]))
    }
}
