//! Tests of what the backend keeps and refuses. Its operators are tested through the host, against its reference; the
//! text that it compiles, by the file tests of generated code.

mod artifacts;
mod harness;
