//! Running programs. This layer knows artifacts and loaders, never passes or frontends.
//!
//! | file | what it is |
//! |---|---|
//! | [`program`] | a planned program as plain data, and its JSON form |
//! | [`region`] | what the executor wants of a region that a backend runs |
//! | [`pool`] | the threads |

pub mod pool;
pub mod program;
pub mod region;
pub mod wire;

pub use pool::Pool;
pub use program::Program;
pub use region::Region;
