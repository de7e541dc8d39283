//! Bookkeeping and protection of the process while plugins run.
//!
//! Every entry into a plugin, of both kinds and also when its library is mapped, goes through `enter`, `prepare` or
//! `run`. They record in a fixed table which plugin, region and entry the thread is in, so that signal handlers, the
//! watchdog and exit handlers can name the culprit. After the entry they restore process-wide state that the plugin
//! changed.
//!
//! | file | contents |
//! |---|---|
//! | `place` | plugin, region and entry, with names that live as long as the process |
//! | `slots` | the table: a slot for each thread |
//! | `record` | the guard of one entry |
//! | `thread` | setup of a thread that enters plugins |
//! | `float` | the floating-point environment of a thread |
//! | `line` | one line on standard error, written without allocation or locks |
//! | `process` | process-wide state: working directory, limits, locale, standard streams |
//! | `product` | standard output for the host alone |
//! | `end` | termination of the process with a message |
//! | `ending` | signals, `exit`, `fork`, threads that end inside an entry |
//! | `watchdog` | termination of a process whose plugin does not return, or uses too much memory |
//!
//! The table and the floating-point environment are active in every process that loads plugins. The rest is for a
//! program that owns its process, such as the command line: [`own_process`].

mod end;
mod ending;
mod float;
mod keep;
mod line;
mod place;
mod process;
mod product;
mod record;
mod slots;
mod thread;
mod watchdog;

pub use ending::{finished, own_process, say_interrupts};
pub use place::{Entry, Place};
pub use process::{Change, on_change};
pub use product::Product;
pub use record::{prepare_thread, restore_process, trust_float_state};
pub use watchdog::{Limits, Watchdog};

pub(crate) use place::Places;
pub(crate) use record::{Entered, enter, prepare, run};
pub(crate) use slots::current;
