//! Backend with one pattern of several operators: a dense layer with an optional bias and an optional ReLU.

use byoc_plugin_api::*;
use byoc_plugin_support::refusal::{CompileError, refuse};
use byoc_plugin_support::region::{Def, Op, RegionIr};

declare_plugin!("dense", env!("CARGO_PKG_VERSION"));
register!(|_context, registry| {
    registry.codegen("dense", Dense);
    registry.loader("dense", Dense);
    Ok(())
});

struct Dense;

impl Codegen for Dense {
    fn describe(&self) -> Result<Description> {
        Ok(Description {
            about: "dense layers with bias and relu".into(),
            patterns: "layer: nn.dense(*, const) ? nn.bias_add ? nn.relu".into(),
            ..Description::default()
        })
    }

    fn judge(&self, candidate: &Candidate) -> Verdict {
        match RegionIr::new(&candidate.graph, &candidate.constants).and_then(|ir| check(&ir)) {
            Ok(()) => Verdict::Supported,
            Err(error) => error.into(),
        }
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        let graph = region.graph.to_json();
        Ok(CompiledRegion::new(&region.graph.symbol, "dense", graph.as_str()).with_source("json", &graph))
    }
}

impl Loader for Dense {
    fn load(&self, region: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        let graph = Graph::from_json(&String::from_utf8_lossy(region.blob))?;
        region.check_signature(&Signature::of(&graph))?;
        // A blob may be corrupt, so a run relies only on what is checked here.
        check(&RegionIr::new(&graph, region.constants)?)?;
        Ok(Box::new(Layers { graph, constants: region.constants.to_vec() }))
    }
}

/// Checks the operators of a match, or of a region of several matches.
fn check(ir: &RegionIr<'_>) -> std::result::Result<(), CompileError> {
    for value in &ir.values {
        if value.dtype != DType::F32 {
            return refuse(RefusalCode::UnsupportedDtype, format!("expected float32, found {}", value.dtype));
        }
        if let Def::Constant(i) = value.def
            && !ir.constants[i].shape().iter().map(|&dim| dim as i64).eq(value.shape.iter().copied())
        {
            let (expected, found) = (&value.shape, ir.constants[i].shape());
            let detail = format!("constant {i}: expected shape {expected:?}, found {found:?}");
            return refuse(RefusalCode::UnsupportedShape, detail);
        }
    }
    for op in &ir.ops {
        let shapes: Vec<&[i64]> = op.inputs.iter().chain(&op.outputs).map(|&value| ir.shape(value)).collect();
        let is_supported = match (op.name, &shapes[..]) {
            ("nn.dense", [[rows @ .., depth], [units, w_depth], [y_rows @ .., y_units]]) => {
                (rows, depth, units) == (y_rows, w_depth, y_units)
            }
            ("nn.bias_add", [x, [bias], y @ [.., last]]) => {
                x == y && bias == last && op.attrs().axis("axis", 1, y.len()) == Some(y.len() - 1)
            }
            ("nn.relu", [x, y]) => x == y,
            _ => false,
        };
        if !is_supported {
            let detail = format!(
                "expected nn.dense, nn.bias_add along the last axis or nn.relu, found {} with shapes {shapes:?}",
                op.name
            );
            return refuse(RefusalCode::UnsupportedShape, detail);
        }
    }
    Ok(())
}

struct Layers {
    graph: Graph,
    constants: Vec<Constant>,
}

impl Executable for Layers {
    fn prepare(&self, _inputs: &[&[usize]]) -> Result<Prepared> {
        // The dimensions are those of the region: the description does not permit unknown ones.
        let shapes = self.graph.outputs.iter().map(|&output| self.graph.type_of(output).shape().unwrap_or_default());
        Ok(Prepared::exact(shapes))
    }

    fn run(&self, call: Call<'_, '_>) -> Result<()> {
        let ir = RegionIr::new(&self.graph, &self.constants)?;
        // Values are numbered in the order of computation. A real backend would keep them in `call.workspace`.
        let mut values: Vec<Vec<f32>> = Vec::new();
        for value in &ir.values {
            let data = match value.def {
                Def::Input(index) => call.inputs[index].as_slice::<f32>().to_vec(),
                Def::Constant(index) => self.constants[index].tensor().as_slice::<f32>().to_vec(),
                Def::Op(op, _) => compute(&ir, ir.get(op), &values),
            };
            values.push(data);
        }
        for (output, value) in call.outputs.iter_mut().zip(&ir.outputs) {
            output.as_mut_slice::<f32>().copy_from_slice(&values[value.index()]);
        }
        Ok(())
    }
}

/// Computes an operator from the values of its operands.
fn compute(ir: &RegionIr<'_>, op: &Op<'_>, values: &[Vec<f32>]) -> Vec<f32> {
    let data = |operand: usize| &values[op.inputs[operand].index()][..];
    match op.name {
        "nn.dense" => {
            let [units, depth] = [0, 1].map(|axis| ir.shape(op.inputs[1])[axis] as usize);
            let count = ir.shape(op.outputs[0]).iter().product::<i64>() as usize;
            let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(x, w)| x * w).sum();
            let row = |matrix: usize, r: usize| &data(matrix)[r * depth..(r + 1) * depth];
            (0..count).map(|i| dot(row(0, i / units), row(1, i % units))).collect()
        }
        "nn.bias_add" => data(0).iter().zip(data(1).iter().cycle()).map(|(x, bias)| x + bias).collect(),
        // Propagates NaN, which `f32::max` does not.
        _ => data(0).iter().map(|&x| if x < 0.0 { 0.0 } else { x }).collect(),
    }
}
