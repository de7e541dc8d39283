//! Makes a region into a global function, and names it.

use crate::ir::{AttrValue, Attrs, Expr, ExprId, FuncType, Function, Name, Nested, OriginId, Origins, Type};
use crate::typing::Rebuild;
use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};

/// `text` with everything outside `[A-Za-z0-9_]` as `_`.
pub(super) fn sanitize(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect()
}

/// The name of a region's function. While another function has it, the name of the function around the region gets
/// `_a` appended: names that differ before they are sanitised may be the same afterwards.
pub(super) fn symbol(rebuild: &Rebuild<'_>, module: &str, target: &str, function: &str, region: u32) -> Name {
    let prefix = if module.is_empty() { "tvmgen".to_owned() } else { format!("tvmgen_{module}") };
    let taken = |name: &str| rebuild.old.globals.contains_key(name) || rebuild.new.module.globals.contains_key(name);
    let mut function = function.to_owned();
    loop {
        let name = sanitize(&format!("{prefix}_{target}_{function}_{region}"));
        if !taken(&name) {
            return name.into();
        }
        function.push_str("_a");
    }
}

/// A region's function, made of expressions of the new module.
pub(super) struct Outline {
    /// Its name.
    pub symbol: Name,
    /// Whose it is.
    pub target: Name,
    /// Its parameters.
    pub params: Vec<ExprId>,
    /// What it gives: one expression, or several as a tuple.
    pub outputs: Vec<ExprId>,
}

/// The types of the last few functions: of many small regions most have the same, and one copy serves them all.
#[derive(Default)]
pub(super) struct Signatures {
    last: VecDeque<Arc<Nested<FuncType>>>,
}

impl Signatures {
    fn get(&mut self, ty: FuncType) -> Arc<Nested<FuncType>> {
        if let Some(known) = self.last.iter().find(|known| ****known == ty) {
            return known.clone();
        }
        if self.last.len() == 8 {
            self.last.pop_front();
        }
        let ty = Arc::new(Nested::new(ty));
        self.last.push_back(ty.clone());
        ty
    }
}

/// The keys of a region's attributes: one copy of each, however many regions there are.
static KEYS: LazyLock<[Name; 4]> =
    LazyLock::new(|| ["Primitive", "Inline", "Compiler", "global_symbol"].map(Name::from));

/// Defines the function and calls it; gives what stands for each output.
pub(super) fn define_and_call(
    rebuild: &mut Rebuild<'_>,
    signatures: &mut Signatures,
    outline: Outline,
    args: &[ExprId],
    origin: OriginId,
) -> Vec<ExprId> {
    let module = &mut rebuild.new.module;
    let types: Vec<Type> = outline.outputs.iter().map(|&output| module.ty(output).clone()).collect();
    let (body, ret) = match outline.outputs[..] {
        [only] => (only, types[0].clone()),
        _ => {
            let ret = Type::tuple(types.iter().cloned());
            (module.push_typed(Expr::Tuple(outline.outputs.into()), ret.clone(), Origins::none()), ret)
        }
    };
    let params: Box<[Type]> = outline.params.iter().map(|&param| module.ty(param).clone()).collect();
    let ty = Type::Func(signatures.get(FuncType::new(params, ret.clone())));
    let [primitive, inline, compiler, global_symbol] = &*KEYS;
    let attrs = Attrs::new([
        (primitive.clone(), AttrValue::Int(1)),
        (inline.clone(), AttrValue::Int(1)),
        (compiler.clone(), AttrValue::Str(outline.target)),
        (global_symbol.clone(), AttrValue::Str(outline.symbol.clone())),
    ]);
    let function = Function::new(outline.params, body, ret.clone(), attrs);
    let function = module.push_typed(Expr::Function(Box::new(function)), ty.clone(), Origins::none());
    module.globals.insert(outline.symbol.clone(), function);
    let global = module.push_typed(Expr::Global(outline.symbol), ty, Origins::none());
    let call = module.push_typed(Expr::call(global, args.iter().copied()), ret, origin);
    if types.len() == 1 {
        return vec![call];
    }
    let field = |(i, ty)| module.push_typed(Expr::Project { tuple: call, index: i as u32 }, ty, origin);
    types.into_iter().enumerate().map(field).collect()
}
