//! Backend that computes dense layers of float32 in bfloat16. A JSON file beside the library has the claims of precision
//! of its description, by default none: then it computes less precisely than it says.

use byoc_plugin_api::*;
use serde_json::{Value, json};

declare_plugin!("bf16", env!("CARGO_PKG_VERSION"));
register!(|context, registry| {
    let path = context.path.with_extension("json");
    let precision = if path.exists() { serde_json::from_str(&std::fs::read_to_string(&path)?)? } else { json!({}) };
    registry.codegen("bf16", Backend { precision });
    registry.loader("bf16", Bf16Loader);
    Ok(())
});

struct Backend {
    precision: Value,
}

struct Bf16Loader;

impl Codegen for Backend {
    fn describe(&self) -> Result<Description> {
        // As they stand in the file, so that the host sees the invalid ones too.
        let unknown = [("precision".to_owned(), self.precision.clone())].into_iter().collect();
        Ok(Description { operators: vec!["nn.dense".into()], unknown, ..Description::default() })
    }

    fn judge(&self, candidate: &Candidate) -> Verdict {
        if candidate.graph.operators().len() > 1 {
            return Verdict::split(1);
        }
        let values = candidate.graph.nodes.iter().flat_map(|node| &node.outputs);
        match values.map(|ty| (ty.dtype, ty.rank())).find(|found| *found != (DType::F32, 2)) {
            None => Verdict::Supported,
            Some((DType::F32, rank)) => {
                Verdict::refused(RefusalCode::UnsupportedShape, format!("expected rank 2, found {rank}"))
            }
            Some((dtype, _)) => {
                Verdict::refused(RefusalCode::UnsupportedDtype, format!("expected float32, found {dtype}"))
            }
        }
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        Ok(CompiledRegion::new(&region.graph.symbol, "bf16", region.graph.to_json()))
    }
}

impl Loader for Bf16Loader {
    fn load(&self, region: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        let graph = Graph::from_json(&String::from_utf8_lossy(region.blob))?;
        graph.check(region.constants.len())?;
        region.check_signature(&Signature::of(&graph))?;
        let [(_, node, _)] = graph.operators()[..] else { return Err("expected one operator".into()) };
        let operand = |index: usize| match node.inputs.get(index).map(|value| &graph.node(value.node).kind) {
            Some(NodeKind::Input(input)) => Ok(Operand::Input(*input as usize)),
            Some(NodeKind::Constant(constant)) => Ok(Operand::Constant(region.constants[*constant as usize].clone())),
            _ => Err(Error::new("expected two operands")),
        };
        let shapes = graph.outputs.iter().map(|&output| graph.type_of(output).shape().unwrap_or_default()).collect();
        Ok(Box::new(Dense { data: operand(0)?, weight: operand(1)?, shapes }))
    }
}

enum Operand {
    Input(usize),
    Constant(Constant),
}

struct Dense {
    data: Operand,
    weight: Operand,
    shapes: Vec<Vec<usize>>,
}

/// Rounds to bfloat16, to nearest, ties to even.
fn round(value: f32) -> f32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
    if value.is_nan() { value } else { f32::from_bits(rounded) }
}

impl Executable for Dense {
    fn prepare(&self, _: &[&[usize]]) -> Result<Prepared> {
        Ok(Prepared::exact(&self.shapes))
    }

    fn run(&self, call: Call<'_, '_>) -> Result<()> {
        let values = |operand: &Operand| -> Vec<f32> {
            match operand {
                Operand::Input(index) => call.inputs[*index].as_slice::<f32>().iter().copied().map(round).collect(),
                Operand::Constant(constant) => constant.tensor().as_slice::<f32>().iter().copied().map(round).collect(),
            }
        };
        let (data, weight) = (values(&self.data), values(&self.weight));
        let [rows, units] = self.shapes[0][..] else { return Err("expected a matrix".into()) };
        let depth = weight.len() / units.max(1);
        let output = call.outputs[0].as_mut_slice::<f32>();
        for (index, output) in output.iter_mut().enumerate().take(rows * units) {
            let (row, unit) = (index / units * depth, index % units * depth);
            let terms = data[row..row + depth].iter().zip(&weight[unit..unit + depth]);
            *output = round(terms.map(|(x, w)| x * w).sum());
        }
        Ok(())
    }
}
