//! Kernels of a device: the parameters, which are the tensors that a function accesses, around the text of its body. A
//! language of kernels is a [`Dialect`], and the text of one parameter.

use super::{Dialect, Printer};
use crate::nest::stmt::{Grid, Uses, visit};
use crate::nest::{Expr, Function, Memory, Place, Stmt};
use byoc_plugin_api::DType;

/// Syntax in which a language of kernels differs from the others.
pub trait KernelDialect: Dialect {
    /// Formats a parameter `name`, which points to elements of type `ty`; `constant` is the qualifier of those that the
    /// kernel does not write.
    fn parameter(&self, constant: &str, ty: &str, name: &str) -> String;
}

/// Kernel of a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Parameters and body.
    pub definition: String,
    /// Memory of each argument, in parameter order.
    pub arguments: Vec<Place>,
}

/// Prints a kernel. Equal kernels have equal text, because pointers are named in order of first use.
pub fn kernel(dialect: &dyn KernelDialect, function: &Function, grid: Grid) -> Kernel {
    let places = places_in_order(&function.body, &function.uses());
    let arguments: Vec<Place> = places.iter().map(|place| place.0).collect();
    let mut printer = Printer { kernel: Some((&arguments, grid)), ..Printer::new(dialect, 1) };
    printer.statements(&function.body);
    let parameters = places.iter().enumerate().map(|(index, &(_, dtype, is_written))| {
        let constant = if is_written { "" } else { "const " };
        dialect.parameter(constant, dialect.storage_type(dtype), &format!("p{index}"))
    });
    let parameters: Vec<String> = parameters.collect();
    let definition = format!("({}) {{\n{}}}\n", parameters.join(", "), printer.text);
    Kernel { definition, arguments }
}

/// Returns the tensors that statements access, in the order of their first use, with the type of their elements and
/// whether they are written.
fn places_in_order(body: &[Stmt], uses: &Uses) -> Vec<(Place, DType, bool)> {
    let mut places: Vec<Place> = Vec::new();
    visit(body, &mut |stmt| {
        let mut add = |memory: &Memory| {
            if let Memory::Place(place) = memory
                && !places.contains(place)
            {
                places.push(*place);
            }
        };
        for expr in stmt.expressions() {
            expr.visit(&mut |inner| match inner {
                Expr::Load(memory, ..) | Expr::Address(memory, ..) | Expr::LoadVector(memory, ..) => add(memory),
                _ => {}
            });
        }
        if let Stmt::Store { memory, .. } = stmt {
            add(memory);
        }
    });
    places.into_iter().filter_map(|place| uses.get(&place).map(|&(dtype, written)| (place, dtype, written))).collect()
}
