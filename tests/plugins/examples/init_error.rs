//! Plugin that returns an error from `init`.

use byoc_plugin_api::Error;

byoc_plugin_api::declare_plugin!("init_error", "0.1.0");
byoc_plugin_api::register!(|_context, _registry| Err(
    Error::new("expected a connected device, found none").hint("connect the device")
));
