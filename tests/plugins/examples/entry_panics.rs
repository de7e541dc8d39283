//! Plugin that panics in its entries. The data that an entry receives selects the panic: the query's key, the
//! candidate's name, the region's symbol (`compile`, `load`, `prepare`, `run`, `task`, `drop`).

use byoc_plugin_api::{
    Call, Candidate, Codegen, CompiledRegion, Description, Executable, LoadRequest, Loader, Prepared, Region, Result,
    Services, Verdict,
};

byoc_plugin_api::declare_plugin!("entry_panics", "0.1.0");
byoc_plugin_api::register!(|_context, registry| {
    registry.codegen("entry_panics", Rude);
    registry.loader("entry_panics", Rude);
    Ok(())
});

struct Rude;

impl Codegen for Rude {
    fn describe(&self) -> Result<Description> {
        panic!("in describe")
    }

    fn judge(&self, candidate: &Candidate) -> Verdict {
        panic!("in judge of {}", candidate.name)
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        let symbol = region.graph.symbol.as_str();
        if symbol == "compile" {
            panic!("in compile");
        }
        Ok(CompiledRegion::new(symbol, "entry_panics", symbol))
    }

    fn query(&self, key: &str, _: &[u8]) -> Result<Option<Vec<u8>>> {
        if key == "panic" {
            panic!("in query");
        }
        Ok(None)
    }
}

impl Loader for Rude {
    fn load(&self, region: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        if region.symbol == "load" {
            panic!("in load");
        }
        Ok(Box::new(RudeRegion { where_to: region.symbol.to_owned(), services: region.services.clone() }))
    }
}

struct RudeRegion {
    where_to: String,
    services: Services,
}

impl Executable for RudeRegion {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        if self.where_to == "prepare" {
            panic!("in prepare");
        }
        Ok(Prepared::exact(inputs))
    }

    fn run(&self, _: Call<'_, '_>) -> Result<()> {
        if self.where_to == "drop" {
            return Ok(());
        }
        if self.where_to == "task" {
            return self.services.parallel_for(8, |index| assert!(index != 3, "in task {index}"));
        }
        panic!("in run")
    }
}

impl Drop for RudeRegion {
    fn drop(&mut self) {
        assert!(self.where_to != "drop", "in drop");
    }
}
