//! Host side of run options: the options of a thread's current run, and the service that returns them.

use crate::run_options::RunOptionsTable;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

/// Options of one backend, by name, and their JSON text.
type Options = (BTreeMap<String, String>, CString);

/// Run options, by backend and option. Cloning is cheap, and an empty set does not allocate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendOptions(Option<Arc<BTreeMap<CString, Options>>>);

impl BackendOptions {
    /// Returns true if no option is set.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Sets an option of a backend. Names and values with a NUL character are ignored, because no plugin can declare
    /// such an option.
    pub fn set(&mut self, backend: &str, option: &str, value: &str) {
        let Ok(backend) = CString::new(backend) else { return };
        let (options, text) = Arc::make_mut(self.0.get_or_insert_default()).entry(backend).or_default();
        options.insert(option.to_owned(), value.to_owned());
        // JSON escapes control characters, so its text has no NUL.
        *text = CString::new(Value::from_iter(options.clone()).to_string()).unwrap_or_default();
    }

    /// Returns the union of both sets, in which the options of `other` take precedence.
    pub fn with(&self, other: &BackendOptions) -> BackendOptions {
        let mut union = self.clone();
        for (backend, (options, _)) in other.0.iter().flat_map(|table| table.iter()) {
            let backend = backend.to_string_lossy();
            options.iter().for_each(|(option, value)| union.set(&backend, option, value));
        }
        union
    }

    /// Applies the options to all runs on this thread until the returned [`Scope`] is dropped.
    pub fn enter(self) -> Scope {
        let previous = CURRENT.try_with(|current| current.replace(Some(self)));
        Scope { previous: previous.ok().flatten(), _here: std::marker::PhantomData }
    }

    /// Returns the options of this thread's current run.
    pub fn current() -> Option<BackendOptions> {
        CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
    }
}

thread_local! {
    // A handler of `exit` may run a model after the values of its thread have been destroyed, hence `try_with`.
    static CURRENT: RefCell<Option<BackendOptions>> = const { RefCell::new(None) };
}

/// Guard that applies options to the runs of its thread.
#[must_use]
#[derive(Debug)]
pub struct Scope {
    previous: Option<BackendOptions>,
    /// Makes the guard `!Send`, because the current options are thread-local.
    _here: std::marker::PhantomData<*const ()>,
}

impl Drop for Scope {
    fn drop(&mut self) {
        let _ = CURRENT.try_with(|current| current.replace(self.previous.take()));
    }
}

unsafe extern "C" fn options(backend: *const c_char) -> *const c_char {
    if backend.is_null() {
        return std::ptr::null();
    }
    // SAFETY: the plugin passes a NUL-terminated string.
    let backend = unsafe { CStr::from_ptr(backend) };
    // The options live until the end of the scope that contains the run.
    CURRENT.with_borrow(|current| {
        let option = current.as_ref().and_then(|options| options.0.as_ref()?.get(backend));
        option.map_or(std::ptr::null(), |(_, text)| text.as_ptr())
    })
}

/// Returns the service [`RUN_OPTIONS_SERVICE`](crate::run_options::RUN_OPTIONS_SERVICE).
pub fn service() -> NonNull<c_void> {
    static TABLE: RunOptionsTable = RunOptionsTable { struct_size: size_of::<RunOptionsTable>(), options };
    NonNull::from(&TABLE).cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(backend: &CStr) -> Option<String> {
        // SAFETY: the options own the text, and outlive this function.
        unsafe {
            let text = options(backend.as_ptr());
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    }

    #[test]
    fn options_belong_to_the_run_of_a_thread() {
        assert_eq!(read(c"a"), None);
        let mut session_options = BackendOptions::default();
        session_options.set("a", "level", "1");
        session_options.set("a", "mode", "x");
        let mut run_options = BackendOptions::default();
        run_options.set("a", "level", "2\u{1}");
        run_options.set("b", "n", "3");
        let outer = session_options.clone().enter();
        assert_eq!(read(c"a").unwrap(), r#"{"level":"1","mode":"x"}"#);
        {
            let _inner = session_options.with(&run_options).enter();
            assert_eq!(read(c"a").unwrap(), r#"{"level":"2\u0001","mode":"x"}"#);
            assert_eq!(read(c"b").unwrap(), r#"{"n":"3"}"#);
            assert_eq!(std::thread::spawn(|| read(c"a")).join().unwrap(), None);
        }
        assert_eq!(read(c"b"), None);
        drop(outer);
        assert_eq!((read(c"a"), BackendOptions::current()), (None, None));
    }
}
