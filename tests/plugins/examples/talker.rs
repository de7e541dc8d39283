//! Plugin that uses every reporting service of the host, and runs tasks on several threads.

use byoc_plugin_api::{
    Call, Codegen, CompiledRegion, Description, Error, Executable, LoadRequest, Loader, Prepared, Region, Result,
    Services,
};
use serde_json::json;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

byoc_plugin_api::declare_plugin!("talker", "2.1.0");
byoc_plugin_api::register!(|context, registry| {
    let _ = SERVICES.set(context.services.clone());
    tracing::info!(file = ?context.path.file_name(), "registers");
    registry.codegen("talker", Talker);
    registry.data("talker.facts", &json!({ "heard": context.options["host_api_version"] }));
    Ok(())
});
// A plugin may have several registration functions.
byoc_plugin_api::register!(|_context, registry| {
    registry.loader("talker", Talker);
    Ok(())
});

struct Talker;

/// Host services, kept for the cancellation check in `compile`.
static SERVICES: OnceLock<Services> = OnceLock::new();

impl Codegen for Talker {
    fn describe(&self) -> Result<Description> {
        tracing::debug!("below the host's log level");
        Ok(Description::default())
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        tracing::warn!(target: "talker::codegen", nodes = region.graph.nodes.len(), "compiles {}", region.graph.symbol);
        let Some(services) = SERVICES.get() else {
            return Err(Error::new("compile was called before init"));
        };
        if services.cancelled() {
            return Err(Error::cancelled());
        }
        Ok(CompiledRegion::new(&region.graph.symbol, "talker", "").with_source("txt", region.options.to_string()))
    }
}

impl Loader for Talker {
    fn load(&self, region: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        if region.services.get_service("byoc.nothing.1").is_some() {
            return Err(Error::new("the host returned a service for an unknown name"));
        }
        region.services.event("loaded", &json!({ "symbol": region.symbol, "options": region.options }));
        Ok(Box::new(TalkingRegion { services: region.services.clone() }))
    }
}

struct TalkingRegion {
    services: Services,
}

impl Executable for TalkingRegion {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        Ok(Prepared { plan: inputs[0][0] as u64, ..Prepared::exact([[1usize]]) }.with_workspace(100))
    }

    /// Sums the integers below the first dimension of the input in parallel tasks. The result is an int64.
    fn run(&self, call: Call<'_, '_>) -> Result<()> {
        if call.workspace.len() != 100 || self.services.num_threads() != 4 {
            let (bytes, threads) = (call.workspace.len(), self.services.num_threads());
            return Err(format!("expected a workspace of 100 bytes and 4 threads, found {bytes} and {threads}").into());
        }
        let sum = AtomicUsize::new(0);
        self.services.parallel_for(call.plan as usize, |index| {
            sum.fetch_add(index, Ordering::Relaxed);
        })?;
        self.services
            .try_parallel_for(3, |index| if index < 3 { Ok(()) } else { Err(Error::new("task index out of range")) })?;
        self.services.counter("sums", 1);
        call.outputs[0].as_mut_slice::<i64>()[0] = sum.into_inner() as i64;
        Ok(())
    }
}
