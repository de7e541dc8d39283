//! Plugin that panics in its entries. The data passed to an entry selects the panic: the key of a query, the name of a
//! candidate, the symbol of a region (`compile`, `load`, `prepare`, `run`, `task`, `drop`).

use byoc_plugin_api::{
    Call, Candidate, Codegen, CompiledRegion, Description, Executable, LoadRequest, Loader, Prepared, Region, Result,
    Services, Verdict,
};

byoc_plugin_api::declare_plugin!("entry_panics", "0.1.0");
byoc_plugin_api::register!(|_context, registry| {
    registry.codegen("entry_panics", Panicking);
    registry.loader("entry_panics", Panicking);
    Ok(())
});

struct Panicking;

impl Codegen for Panicking {
    fn describe(&self) -> Result<Description> {
        panic!("deliberate panic in describe")
    }

    fn judge(&self, candidate: &Candidate) -> Verdict {
        panic!("deliberate panic in judge of {}", candidate.name)
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        let symbol = region.graph.symbol.as_str();
        if symbol == "compile" {
            panic!("deliberate panic in compile");
        }
        Ok(CompiledRegion::new(symbol, "entry_panics", symbol))
    }

    fn query(&self, key: &str, _: &[u8]) -> Result<Option<Vec<u8>>> {
        if key == "panic" {
            panic!("deliberate panic in query");
        }
        Ok(None)
    }
}

impl Loader for Panicking {
    fn load(&self, region: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        if region.symbol == "load" {
            panic!("deliberate panic in load");
        }
        Ok(Box::new(PanickingRegion { panic_site: region.symbol.to_owned(), services: region.services.clone() }))
    }
}

struct PanickingRegion {
    panic_site: String,
    services: Services,
}

impl Executable for PanickingRegion {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        if self.panic_site == "prepare" {
            panic!("deliberate panic in prepare");
        }
        Ok(Prepared::exact(inputs))
    }

    fn run(&self, _: Call<'_, '_>) -> Result<()> {
        if self.panic_site == "drop" {
            return Ok(());
        }
        if self.panic_site == "task" {
            return self.services.parallel_for(8, |index| assert!(index != 3, "deliberate panic in task {index}"));
        }
        panic!("deliberate panic in run")
    }
}

impl Drop for PanickingRegion {
    fn drop(&mut self) {
        assert!(self.panic_site != "drop", "deliberate panic in drop");
    }
}
