//! Annotation operators, which mark where values enter and leave the regions of a backend.

use byoc_ir::ir::{AttrValue, Attrs, Expr, ExprId, Module, Name, OpId, Origins};
use byoc_ir::op;
use byoc_ir::typing::Rebuild;

/// Target of expressions that are assigned to no backend.
pub(super) const DEFAULT: &str = "default";

/// Annotation, with the annotated value and the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark<'m> {
    /// `annotation.compiler_begin(value, compiler)`.
    Begin(ExprId, &'m str),
    /// `annotation.compiler_end(value, compiler)`.
    End(ExprId, &'m str),
}

/// Ids of the annotation operators, to recognize and build annotations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Annotations {
    begin: OpId,
    end: OpId,
}

impl Annotations {
    /// Looks up the annotation operators.
    pub fn new() -> Annotations {
        let find = |name| op::lookup(name).expect("the annotation operators are in the table");
        Annotations { begin: find("annotation.compiler_begin"), end: find("annotation.compiler_end") }
    }

    /// Returns the annotation that an expression represents, if any.
    pub fn annotation_of<'m>(&self, module: &'m Module, id: ExprId) -> Option<Mark<'m>> {
        let (op, call) = module.expr(id).as_op_call()?;
        if op != self.begin && op != self.end {
            return None;
        }
        let compiler = call.attrs.str("compiler").unwrap_or(DEFAULT);
        let value = *call.args.first()?;
        Some(if op == self.begin { Mark::Begin(value, compiler) } else { Mark::End(value, compiler) })
    }

    /// Appends a begin around `value`, an expression of the new module.
    pub fn begin(&self, rebuild: &mut Rebuild<'_>, value: ExprId, attrs: &Attrs) -> ExprId {
        annotate(rebuild, self.begin, value, attrs)
    }

    /// Appends an end around `value`, an expression of the new module.
    pub fn end(&self, rebuild: &mut Rebuild<'_>, value: ExprId, attrs: &Attrs) -> ExprId {
        annotate(rebuild, self.end, value, attrs)
    }
}

/// Creates the attributes that all annotations of a target share.
pub(super) fn attrs_of(compiler: Name) -> Attrs {
    Attrs::new([("compiler", AttrValue::Str(compiler))])
}

fn annotate(rebuild: &mut Rebuild<'_>, op: OpId, value: ExprId, attrs: &Attrs) -> ExprId {
    let module = &mut rebuild.new.module;
    let ty = module.ty(value).clone();
    module.push_typed(Expr::op(op, [value], attrs.clone()), ty, Origins::none())
}
