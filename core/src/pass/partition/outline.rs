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
struct Sanitized<'t>(&'t str);

impl fmt::Display for Sanitized<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut rest = self.0;
        while let Some(at) = rest.find(|c| !is_plain(c)) {
            let (plain, other) = rest.split_at(at);
            f.write_str(plain)?;
            f.write_str("_")?;
            let mut chars = other.chars();
            chars.next();
            rest = chars.as_str();
        }
        f.write_str(rest)
    }
}

/// Replaces every character of `text` outside `[A-Za-z0-9_]` with `_`.
pub(super) fn sanitize(text: &str) -> String {
    Sanitized(text).to_string()
}

/// Components of the name of a region's function.
#[derive(Clone, Copy)]
pub(super) struct Naming<'n> {
    /// Name of the module; may be empty.
    pub module: &'n str,
    /// Name of the function around the region.
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
pub(super) struct Shared {
    /// Types of the last few functions. Many small regions have the same type and share one copy.
    types: VecDeque<Arc<Nested<FuncType>>>,
    /// Attributes (except for the symbol) and function name prefix of each target.
    targets: Vec<(Name, Attrs, String)>,
    /// Buffer for building names.
    text: String,
}

impl Shared {
    fn ty(&mut self, ty: FuncType) -> Type {
        if let Some(known) = self.types.iter().find(|known| ****known == ty) {
            return Type::Func(known.clone());
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
        let _ = write!(self.text, "{}_{region}_{kind}{k}", Sanitized(target));
        self.text.as_str().into()
    }

    fn target(&mut self, target: &Name, module: &str) -> usize {
        match self.targets.iter().position(|(name, ..)| name == target) {
            Some(at) => at,
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
/// Names that differ may become equal when sanitized, so `_a` is appended to the name of the function around the region
/// until the symbol is unique.
pub(super) fn define_and_call(
    rebuild: &mut Rebuild<'_>,
    shared: &mut Shared,
    outline: Outline<'_>,
    args: &[ExprId],
    origin: OriginId,
) -> (Name, ExprList) {
    let taken = &rebuild.old.globals;
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
    let ty = shared.ty(FuncType::new(params, ret.clone()));
    let at = shared.target(&outline.target, outline.naming.module);
    let Shared { targets, text, .. } = shared;
    let (_, attrs, prefix) = &targets[at];
    let Naming { function, region, .. } = outline.naming;
    let mut more = String::new();
    let symbol = loop {
        text.clear();
        let _ = write!(text, "{prefix}{}{more}_{region}", Sanitized(function));
        let symbol: Name = text.as_str().into();
        if !taken.contains_key(&symbol)
            && let Entry::Vacant(place) = module.globals.entry(symbol.clone())
        {
            let attrs = attrs.and(SYMBOL.clone(), AttrValue::Str(symbol.clone()));
            let made = Function { type_params: Box::new([]), params: outline.params, body, ret: ret.clone(), attrs };
            let expr = Expr::Function(Box::new(made));
            place.insert(module.nodes.push(Node { expr, ty: ty.clone(), origin: Origins::none() }));
            break symbol;
        }
        more.push_str("_a");
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
