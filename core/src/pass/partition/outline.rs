//! Creates and names the global functions of regions.

use byoc_ir::ir::{
    AttrValue, Attrs, Expr, ExprId, ExprList, FuncType, Function, Name, Nested, Node, OriginId, Origins, Type,
};
use byoc_ir::typing::Rebuild;
use std::collections::VecDeque;
use std::collections::btree_map::Entry;
use std::fmt::{self, Write};
use std::sync::{Arc, LazyLock};

/// Displays a string with every character outside `[A-Za-z0-9_]` replaced with `_`.
struct SanitizedName<'t>(&'t str);

impl fmt::Display for SanitizedName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut tail = self.0;
        while let Some(index) = tail.find(|c| !is_plain(c)) {
            let (prefix, tail_text) = tail.split_at(index);
            f.write_str(prefix)?;
            f.write_str("_")?;
            let mut chars = tail_text.chars();
            chars.next();
            tail = chars.as_str();
        }
        f.write_str(tail)
    }
}

/// Replaces every character of `text` outside `[A-Za-z0-9_]` with `_`.
pub(super) fn sanitize(text: &str) -> String {
    SanitizedName(text).to_string()
}

/// Components of the name of a region's function.
#[derive(Clone, Copy)]
pub(super) struct Naming<'n> {
    /// Name of the module; may be empty.
    pub module: &'n str,
    /// Name of the function that contains the region.
    pub function: &'n str,
    /// Number of the region in that function.
    pub region: u32,
}

/// Function to create for a region, as expressions of the new module.
pub(super) struct Outline<'n> {
    /// Components of the function's name.
    pub naming: Naming<'n>,
    /// Backend of the region.
    pub target: Name,
    pub params: ExprList,
    /// Results; unless there is exactly one, the function returns a tuple.
    pub outputs: ExprList,
}

/// Types, attributes and buffers shared by the functions of regions.
#[derive(Default)]
pub(super) struct OutlineCache {
    /// Types of the last few functions. Many small regions have the same type and share one copy.
    types: VecDeque<Arc<Nested<FuncType>>>,
    /// Attributes (except for the symbol) and prefix of the function names, for each target.
    targets: Vec<(Name, Attrs, String)>,
    /// Buffer for building names.
    text: String,
}

impl OutlineCache {
    fn ty(&mut self, ty: FuncType) -> Type {
        if let Some(existing) = self.types.iter().find(|existing| ****existing == ty) {
            return Type::Func(existing.clone());
        }
        if self.types.len() == 8 {
            self.types.pop_front();
        }
        let ty = Arc::new(Nested::new(ty));
        self.types.push_back(ty.clone());
        Type::Func(ty)
    }

    /// Returns the parameter name `<target>_<region>_<kind><k>`.
    pub fn param_name(&mut self, target: &str, region: u32, kind: char, k: u32) -> Name {
        self.text.clear();
        let _ = write!(self.text, "{}_{region}_{kind}{k}", SanitizedName(target));
        self.text.as_str().into()
    }

    fn target(&mut self, target: &Name, module: &str) -> usize {
        match self.targets.iter().position(|(name, ..)| name == target) {
            Some(index) => index,
            None => {
                let attrs = Attrs::new([
                    ("Primitive", AttrValue::Int(1)),
                    ("Inline", AttrValue::Int(1)),
                    ("Compiler", AttrValue::Str(target.clone())),
                ]);
                let prefix = if module.is_empty() { "tvmgen".to_owned() } else { format!("tvmgen_{module}") };
                self.targets.push((target.clone(), attrs, sanitize(&format!("{prefix}_{target}_"))));
                self.targets.len() - 1
            }
        }
    }
}

/// Attribute key of the symbol, shared by all functions.
static SYMBOL: LazyLock<Name> = LazyLock::new(|| "global_symbol".into());

/// Defines the function of a region and appends a call to it. Returns the name of the function and the value of each
/// output.
///
/// Names that differ may become equal when sanitized, so `_a` is appended to the name of the function that contains the
/// region until the symbol is unique.
pub(super) fn define_and_call(
    rebuild: &mut Rebuild<'_>,
    cache: &mut OutlineCache,
    outline: Outline<'_>,
    args: &[ExprId],
    origin: OriginId,
) -> (Name, ExprList) {
    let globals = &rebuild.old.globals;
    let module = &mut rebuild.new.module;
    let (body, ret) = match outline.outputs[..] {
        [only] => (only, module.ty(only).clone()),
        _ => {
            let ret = Type::tuple(outline.outputs.iter().map(|&output| module.ty(output).clone()));
            let fields = outline.outputs.to_vec().into();
            (module.push_typed(Expr::Tuple(fields), ret.clone(), Origins::none()), ret)
        }
    };
    let params: Box<[Type]> = outline.params.iter().map(|&param| module.ty(param).clone()).collect();
    let ty = cache.ty(FuncType::new(params, ret.clone()));
    let index = cache.target(&outline.target, outline.naming.module);
    let OutlineCache { targets, text, .. } = cache;
    let (_, attrs, prefix) = &targets[index];
    let Naming { function, region, .. } = outline.naming;
    let mut suffix = String::new();
    let symbol = loop {
        text.clear();
        let _ = write!(text, "{prefix}{}{suffix}_{region}", SanitizedName(function));
        let symbol: Name = text.as_str().into();
        if !globals.contains_key(&symbol)
            && let Entry::Vacant(vacancy) = module.globals.entry(symbol.clone())
        {
            let attrs = attrs.and(SYMBOL.clone(), AttrValue::Str(symbol.clone()));
            let outlined_function =
                Function { type_params: Box::new([]), params: outline.params, body, ret: ret.clone(), attrs };
            let expr = Expr::Function(Box::new(outlined_function));
            vacancy.insert(module.nodes.push(Node { expr, ty: ty.clone(), origin: Origins::none() }));
            break symbol;
        }
        suffix.push_str("_a");
    };
    let global = module.push_typed(Expr::Global(symbol.clone()), ty, Origins::none());
    let call = module.push_typed(Expr::call(global, args.iter().copied()), ret.clone(), origin);
    let results = match (&ret, outline.outputs.len()) {
        (Type::Tuple(types), len) if len != 1 => {
            let field = |(i, ty): (usize, &Type)| {
                module.push_typed(Expr::Project { tuple: call, index: i as u32 }, ty.clone(), origin)
            };
            types.iter().enumerate().map(field).collect()
        }
        _ => [call].into_iter().collect(),
    };
    (symbol, results)
}
