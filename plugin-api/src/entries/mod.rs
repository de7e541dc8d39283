//! Bookkeeping and protection of the process while plugins run.
//!
//! Every entry into a Rust or C plugin, including the mapping of its library, is wrapped in `enter`, `prepare` or
//! `run`. These functions record the thread's plugin, region and entry in a fixed-size table, so that signal handlers,
//! the watchdog and exit handlers can name the responsible plugin. After the entry, they restore process-wide state
//! that the plugin changed.
//!
//! | file | contents |
//! |---|---|
//! | `call_site` | plugin, region and entry, with names that live as long as the process |
//! | `slots` | the entry table, with one slot per thread |
//! | `record` | the guard of one entry |
//! | `thread` | setup of a thread that enters plugins |
//! | `float` | the floating-point environment of a thread |
//! | `line` | one line on standard error, written without allocation or locks |
//! | `process` | process-wide state: working directory, limits, locale, standard streams |
//! | `stdout` | standard output, reserved for the host |
//! | `gate` | end of the process: no thread is inside a plugin while destructors run |
//! | `exit` | termination of the process with a last message |
//! | `generation` | how often the process has been forked |
//! | `handlers` | signals, `exit`, `fork`, threads that end inside an entry |
//! | `calls` | functions by which a plugin ends the process without any handler |
//! | `watchdog` | termination of a process whose plugin does not return, or uses too much memory |
//!
//! The table, the gate and the floating-point environment are active in every process that loads plugins. The rest is
//! active only in an executable that owns its process, such as the command-line tool, and calls [`own_process`]; the
//! handlers alone in a process that calls [`guard_process`], such as an interpreter.

mod call_site;
mod calls;
mod exit;
mod float;
mod gate;
mod generation;
mod handlers;
mod line;
mod permanent;
mod process;
mod record;
mod slots;
mod stdout;
mod thread;
mod watchdog;

pub use call_site::{CallSite, Entry, with_operators};
pub use gate::is_shut_down;
pub use generation::{current_generation, generation};
pub use handlers::{guard_process, mark_finished, own_process, report_interrupts};
pub use process::{Change, set_change_reporter};
pub use record::{prepare_thread, restore_process, save_float_state};
pub use stdout::ReservedStdout;
pub use watchdog::{Limits, Watchdog};

pub(crate) use call_site::CallSites;
pub(crate) use calls::Interception;
pub(crate) use record::{enter, prepare, run, run_task};
pub(crate) use slots::current_site;
