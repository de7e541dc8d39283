//! Complete backend: `nn.relu` on float32, computed by the plugin itself.

use byoc_plugin_api::*;

declare_plugin!("minimal", env!("CARGO_PKG_VERSION"));
register!(|_context, registry| {
    registry.codegen("minimal", Minimal);
    registry.loader("minimal", Minimal);
    Ok(())
});

struct Minimal;

impl Codegen for Minimal {
    fn describe(&self) -> Result<Description> {
        Ok(Description {
            about: "nn.relu, and nothing else".into(),
            operators: vec!["nn.relu".into()],
            ..Description::default()
        })
    }

    fn judge(&self, candidate: &Candidate) -> Verdict {
        // A region may contain several operators; this backend computes one at a time.
        if candidate.graph.operators().len() > 1 {
            return Verdict::split(1);
        }
        match candidate.graph.inputs.first().map(|input| input.ty.dtype) {
            Some(DType::F32) => Verdict::Supported,
            Some(other) => {
                let found = format!("input 0: expected float32, found {other}");
                Verdict::refused(RefusalCode::UnsupportedDtype, found)
            }
            None => Verdict::refused(RefusalCode::UnsupportedShape, "expected one input, found none"),
        }
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        // The format of the blob is up to the backend: for hardware it would contain instructions.
        Ok(CompiledRegion::new(&region.graph.symbol, "minimal", "relu").with_source("txt", "y = max(x, 0)\n"))
    }
}

impl Loader for Minimal {
    fn load(&self, region: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        match region.blob {
            b"relu" => Ok(Box::new(Relu)),
            other => Err(format!("{}: expected a minimal blob, found {} bytes", region.symbol, other.len()).into()),
        }
    }
}

struct Relu;

impl Executable for Relu {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        Ok(Prepared::exact([inputs[0]]))
    }

    fn run(&self, call: Call<'_, '_>) -> Result<()> {
        let x = call.inputs[0].as_slice::<f32>();
        let y = call.outputs[0].as_mut_slice::<f32>();
        for (y, x) in y.iter_mut().zip(x) {
            // Propagates NaN, which `f32::max` does not.
            *y = if *x < 0.0 { 0.0 } else { *x };
        }
        Ok(())
    }
}
