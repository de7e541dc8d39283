//! What happens while a plugin has a thread of the process.
//!
//! Every entry into a plugin, of both kinds and also when its library is mapped, goes through `enter`, `prepare` or `run`. It writes down in a
//! fixed table which plugin, region and entry the thread is in, so that a handler of signals, a watchdog and the end of the
//! process can say whose fault something is. Behind the entry it puts back what belongs to the process and not to a plugin.
//!
//! | file | what it is |
//! |---|---|
//! | `place` | plugin, region and entry, by names that live as long as the process |
//! | `slots` | the table: a slot for each thread |
//! | `record` | the guard of one entry |
//! | `thread` | setup of a thread that enters plugins |
//! | `float` | the floating-point environment of a thread |
//! | `line` | one line on standard error, written without memory or locks |
//! | `process` | what belongs to the process: working directory, limits, locale, standard streams |
//! | `product` | standard output for the host alone |
//! | `end` | the end of the process with a line |
//! | `ending` | signals, `exit`, `fork`, threads that end inside an entry |
//! | `watchdog` | the end of a process whose plugin does not come back, or takes too much memory |
//!
//! The table and the floating-point environment are at work in every process that loads plugins. The rest is for a program
//! that owns its process, as the command line does: [`own_process`].

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
pub use record::{restore_process, trust_float_state};
pub use watchdog::{Limits, Watchdog};

pub(crate) use place::Places;
pub(crate) use record::{Entered, enter, prepare, run};
pub(crate) use slots::current;
