//! Tests of the text format and of the page of operators.

mod bounds;
mod declared;
mod relay_operators;
