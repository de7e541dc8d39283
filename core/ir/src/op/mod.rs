//! Operator table: one file per operator family. An operator is a constant of type [`OpDef`], collected by `inventory`,
//! so that adding one does not require editing a central list.
//!
//! To add an operator: write its [`OpDef`] in the file of its family (or a new file, with a `mod` line here), with its
//! type relation and its naive reference, enter it by `operator!`, and add a row to the family's test.

/// Adds an entry to the operator table: fields of [`OpDef`], of which those with the values of [`OpDef::DEFAULT`] are left
/// out.
macro_rules! operator {
    ($($field:ident $(: $value:expr)?),* $(,)?) => {
        inventory::submit! {
            $crate::op::OpDef { $($field $(: $value)?,)* ..$crate::op::OpDef::DEFAULT }.with_arity()
        }
    };
}

mod advanced_index;
mod annotation;
mod bitserial;
pub mod blocked;
mod broadcast;
mod concat;
pub mod conv;
mod create;
mod crop;
mod def;
pub mod dense;
mod detection;
mod dynamic;
pub mod einsum;
mod elementwise;
mod evaluate;
pub mod facts;
mod fixed_point;
mod fold;
mod gradient;
mod grid;
pub mod image;
pub mod index;
pub mod interpret;
pub mod layout;
mod linalg;
mod loss;
mod neighborhood;
mod nms;
pub mod norm;
mod packed;
pub mod pad;
mod params;
pub mod pool;
pub mod qnn;
mod random;
pub mod recurrent;
pub mod reduce;
mod repeat;
mod reshape;
pub mod resize;
mod resize_spatial;
mod roi;
mod scalar;
mod select;
mod sequence;
mod signal;
pub mod slice;
mod sort;
mod space_to_batch;
mod sparse;
pub mod spatial;
mod sum;
mod table;
pub mod text;
pub mod trees;
mod vision;
mod walk;

pub use def::{
    Arity, AttrDef, AttrKind, Cost, Default, Evaluation, OpDef, OpPattern, Reference, ReferenceError, Relation,
    reference_scratch,
};
pub use evaluate::{Value, evaluate};
pub use facts::{ErrorModel, Properties};
pub use params::Params;
pub use table::{add, added, get, is_unread, lookup, names, normalize_attrs, table};

/// Result of a type relation: the type of the call, or a diagnostic.
pub type TypeResult = Result<crate::ir::Type, Box<crate::diag::Diagnostic>>;
