//! File input and output. Inputs are regular files that are mapped or read within bounds; outputs appear complete or
//! not at all. Tensors are read from and written to NumPy files. [`footprint`] tells what encoded messages take in memory.

pub mod beneath;
pub mod directory;
pub mod footprint;
pub mod input;
pub mod mapped;
pub mod npy;
pub mod npz;
pub mod output;

pub use input::{MAX_TEXT, bad_file, map, map_file, open_regular, read_text, text_of};
pub use output::{cannot_write, check_writable, write_atomically, write_through, write_together};
