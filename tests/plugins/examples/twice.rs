//! Plugin that registers a name twice.

use byoc_plugin_api::{Codegen, CompiledRegion, Description, Region, Result};

byoc_plugin_api::declare_plugin!("twice", "0.1.0");
byoc_plugin_api::register!(|_context, registry| {
    registry.codegen("twice", Twice);
    registry.codegen("twice", Twice);
    Ok(())
});

struct Twice;

impl Codegen for Twice {
    fn describe(&self) -> Result<Description> {
        Ok(Description::default())
    }

    fn compile(&self, _: &Region<'_>) -> Result<CompiledRegion> {
        Ok(CompiledRegion::default())
    }
}
