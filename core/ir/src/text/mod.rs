//! Relay text format, version 0.0.5: [`parse`] and [`print()`] are inverses of each other.
//!
//! ```
//! use byoc_ir::text::{ParseOptions, PrintOptions, parse, print};
//!
//! let source = "#[version = \"0.0.5\"]\n\
//!     def @main(%x: Tensor[(2, 3), float32]) {\n  %0 = nn.relu(%x);\n  exp(%0)\n}\n";
//! let parsed = parse(source, &ParseOptions::default());
//! assert!(parsed.diagnostics.is_empty());
//! assert_eq!(print(&parsed.module, &PrintOptions::default()).text, source);
//! ```
//!
//! Parser and printer use explicit stacks, so a deeply nested module cannot overflow the call stack. The format differs
//! from the text format of TVM 0.14 in these points:
//!
//! * A `%N` or a global bound twice is an error; TVM silently keeps one of the two bindings.
//! * `%"any name"` and `@"any name"` quote names that are not identifiers.
//! * Tensor types may contain named or computed dimensions: `Tensor[(batch, floordiv(n + 1, 2)), float32]`.
//! * Scalars of every element type are written inline (`1i8`, `3u8`, `1bf16`).
//! * `annotation.compiler_begin(%x, compiler="t")` is accepted with or without an `attrs_type_key`.
//! * The printer defines a shared expression in the innermost scope that contains all its uses, where it is also
//!   evaluated; variable names are made unique in each global function, not over the whole text.

mod dim;
mod lexer;
mod metadata;
pub mod number;
mod parser;
mod printer;

pub use dim::{dim_or_symbol, parse_dim};
pub use parser::{ParseOptions, Parsed, parse};
pub use printer::{PrintOptions, PrintedText, print, print_expr, print_faults};

/// Maximum nesting depth of match patterns and of lists in attributes. Expressions may nest as deeply as memory allows,
/// types up to [`Type::MAX_PARTS`](crate::ir::Type::MAX_PARTS).
pub const MAX_NESTING: usize = 64;
