//! A backend that uses what the boundary of release 0.1.0 has beside its entries: services, plans, loaded graphs. It
//! takes `nn.relu` and `add` on float32 and computes them on the host's reference kernels.

use byoc_plugin_api::*;
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};

declare_plugin!("frozen_rust", "0.1.0");
register!(|context, registry| {
    context.services.log(Level::DEBUG, "frozen_rust", "init");
    registry.codegen("frozen_rust", Frozen);
    registry.loader("frozen_rust", Frozen);
    registry.data("frozen_rust.facts", &json!({ "host": context.options["host_api_version"] }));
    Ok(())
});

struct Frozen;

impl Codegen for Frozen {
    fn describe(&self) -> Result<Description> {
        Ok(Description {
            about: "a plugin of release 0.1.0".into(),
            patterns: "add_relu: nn.relu(add(*, *))".into(),
            operators: vec!["nn.relu".into(), "add".into()],
            dynamic_dims: true,
            options: [("loud".to_owned(), BackendOption { about: "notes".into(), values: vec!["false".into(), "true".into()] })]
                .into(),
            ..Description::default()
        })
    }

    fn judge(&self, candidate: &Candidate) -> Verdict {
        match candidate.graph.inputs.iter().find(|input| input.ty.dtype != DType::F32) {
            Some(other) => {
                let found = format!("expected float32, found {}", other.ty.dtype);
                Verdict::refused(RefusalCode::UnsupportedDtype, found).hint("convert it")
            }
            None => Verdict::Supported,
        }
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        let json = region.graph.to_json();
        let mut compiled = CompiledRegion::new(&region.graph.symbol, "frozen_rust", json.clone().into_bytes());
        if region.options["backend_options"]["loud"] == "true" {
            compiled.notes.push("loud".into());
        }
        compiled.metadata.push(Attr::new("digests", region.constants.iter().map(|c| c.digest().len() as i64).sum::<i64>()));
        Ok(compiled.with_source("json", json))
    }
}

impl Loader for Frozen {
    fn load(&self, region: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        let graph = Graph::from_json(&String::from_utf8_lossy(region.blob))?;
        graph.check(region.constants.len())?;
        region.check_signature(&Signature::of(&graph))?;
        region.services.event("loaded", &json!({ "symbol": region.symbol }));
        if region.constants.iter().any(|constant| constant.digest().len() > Constant::DIGEST_LENGTH) {
            return Err(Error::new("a digest is too long").code(RefusalCode::ResourceLimit.as_str()));
        }
        let reference = region.services.reference(&graph, region.constants)?;
        Ok(Box::new(Loaded { reference, services: region.services.clone(), released: AtomicUsize::new(0) }))
    }

    fn query(&self, key: &str, _: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok((key == "blob.native").then(|| b"false".to_vec()))
    }
}

struct Loaded {
    reference: Box<dyn Executable>,
    services: Services,
    released: AtomicUsize,
}

impl Executable for Loaded {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        let mut prepared = self.reference.prepare(inputs)?;
        prepared.attrs.push(Attr::new("bytes", 4096));
        Ok(prepared)
    }

    fn run(&self, call: Call<'_, '_>) -> Result<()> {
        if self.services.cancelled() {
            return Err(Error::cancelled());
        }
        let tasks = AtomicUsize::new(0);
        self.services.parallel_for_workers(8, |_, _| _ = tasks.fetch_add(1, Ordering::Relaxed))?;
        self.services.counter("frozen.tasks", tasks.into_inner() as u64);
        self.reference.run(call)
    }

    fn query(&self, key: &str, _: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok((key == "plan.release").then(|| {
            self.released.fetch_add(1, Ordering::Relaxed);
            Vec::new()
        }))
    }
}
