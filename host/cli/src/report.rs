//! Command reports as values, for programs that embed the command line.

use super::{explain, plugins_list, stdout};
use byoc::driver::explanation::Explanation;
use byoc::runtime::session::Session;
use serde_json::Value;

/// Returns the text of `byoc explain`.
pub fn explanation_text(explanation: &Explanation, is_full: bool) -> String {
    stdout::captured_text(|| explain::print(explanation, is_full))
}

/// Returns the page of `byoc explain --html`.
pub fn explanation_page(title: &str, explanation: &Explanation) -> String {
    byoc::driver::explain_page::page(title, explanation)
}

/// Loads all plugins that a session finds, and returns the objects of `byoc plugins list --json`.
pub fn plugins(session: &Session) -> Vec<Value> {
    session.registry.load_all();
    session.registry.found().map(plugins_list::row).collect()
}
