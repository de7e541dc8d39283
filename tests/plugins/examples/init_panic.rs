//! Plugin that panics in `init`.

byoc_plugin_api::declare_plugin!("init_panic", "0.1.0");
byoc_plugin_api::register!(|_context, _registry| panic!("expected a device, found none"));
