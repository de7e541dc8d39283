//! Replaces chains of elementwise operators from 8-bit integers to 8-bit integers by tables of their results: of 256 for
//! a chain with one source, as a swish between two quantizations, of 65,536 for two sources, as a sum. Only operators
//! assigned to no backend are replaced.

use super::calls::constant;
use crate::analysis::scope::rewritable_exprs;
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{Attrs, ExprId, IndexVec, Module};
use byoc_ir::op::{self, OpPattern, Value};
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::typing::Rebuild;
use std::collections::{BTreeSet, HashMap};

type Result<T, E = Box<Diagnostic>> = std::result::Result<T, E>;

/// Largest number of operators of a chain.
const MAX_OPERATORS: usize = 64;
/// Fewest elements for which the time to compute a table pays off, with one source and with two.
const MIN_ELEMENTS: [usize; 2] = [512, 16_384];

/// Chain that a table replaces.
struct Chain {
    /// Operators, operands before users; the last one is the result.
    operators: Vec<ExprId>,
    sources: Vec<ExprId>,
}

/// Replaces chains of elementwise operators on 8-bit integers by tables.
///
/// # Errors
/// If the rebuilt module is ill-typed, which indicates a bug in this pass.
pub fn tabulate(module: &Module) -> Result<Module> {
    let chains = chains(module);
    Rebuild::run(module, |rebuild, id, _| {
        let Some(chain) = chains.get(&id) else { return Ok(None) };
        let Some(table) = table(module, chain) else { return Ok(None) };
        let mut args: Vec<ExprId> = chain.sources.iter().map(|&source| rebuild.get(source)).collect();
        args.push(rebuild.new.constant(table));
        let name = if chain.sources.len() == 1 { "qnn.contrib_lookup" } else { "qnn.contrib_lookup_pair" };
        let value = rebuild.new.op(name, &args, Attrs::none())?;
        if rebuild.new.module.ty(value) != module.ty(id) {
            return Ok(None);
        }
        for &operator in &chain.operators {
            rebuild.inherit_origin(value, module.nodes[operator].origin);
        }
        Ok(Some(value))
    })
}

/// Returns the chains by their results.
fn chains(module: &Module) -> HashMap<ExprId, Chain> {
    let (is_rewritable, users) = (rewritable_exprs(module), users(module));
    let mut chains = HashMap::new();
    let mut is_taken = IndexVec::<ExprId, bool>::filled(false, module.nodes.len());
    let ids: Vec<ExprId> = module.nodes.iter().map(|(id, _)| id).collect();
    for &id in ids.iter().rev() {
        if !is_rewritable[id] || is_taken[id] || !is_byte(module, id) || !is_elementwise(module, id) {
            continue;
        }
        // The longest chain may begin with too many tensors; one that begins with integers has fewer.
        let found = [false, true].iter().find_map(|&stops_at_bytes| chain(module, id, &users, stops_at_bytes));
        if let Some(found) = found {
            found.operators.iter().for_each(|&operator| is_taken[operator] = true);
            chains.insert(id, found);
        }
    }
    chains
}

/// Returns the users of each expression among the live ones, and the roots of functions as users of themselves.
fn users(module: &Module) -> IndexVec<ExprId, Vec<ExprId>> {
    let live = module.live();
    let mut users = IndexVec::filled(Vec::new(), module.nodes.len());
    for (id, node) in module.nodes.iter().filter(|(id, _)| live[*id]) {
        node.expr.for_each_operand(|operand| users[operand].push(id));
    }
    users
}

fn is_byte(module: &Module, id: ExprId) -> bool {
    module.ty(id).as_tensor().is_some_and(|ty| matches!(ty.dtype, DType::I8 | DType::U8))
}

fn is_elementwise(module: &Module, id: ExprId) -> bool {
    module.expr(id).as_op_call().is_some_and(|(operator, _)| {
        let def = op::get(operator);
        let is_elementwise =
            matches!(def.pattern, OpPattern::ElemWise | OpPattern::Broadcast) || op::qnn::is_elementwise(def.name);
        // A triangle of a matrix depends on the position of an element, though it is elementwise in Relay.
        is_elementwise && def.name != "trilu" && def.reference.is_some()
    })
}

/// Returns the chain that ends in `root`, if a table is worth it. Integers that are used elsewhere as well begin a chain;
/// real numbers may also be part of other chains.
fn chain(module: &Module, root: ExprId, users: &IndexVec<ExprId, Vec<ExprId>>, stops_at_bytes: bool) -> Option<Chain> {
    let mut operators = BTreeSet::new();
    let (mut open, mut sources) = (BTreeSet::from([root]), Vec::new());
    // Users have larger numbers, so that those of the expression with the largest one have been seen.
    while let Some(id) = open.pop_last() {
        let is_inner = id == root
            || is_elementwise(module, id)
                && (!is_byte(module, id) || !stops_at_bytes && users[id].iter().all(|user| operators.contains(user)));
        if is_inner {
            operators.insert(id);
            let (_, call) = module.expr(id).as_op_call()?;
            open.extend(call.args.iter().copied());
        } else if constant(module, id).is_none_or(|value| value.len() != 1) {
            sources.push(id);
        }
        if sources.len() > 2 || operators.len() > MAX_OPERATORS {
            return None;
        }
    }
    sources.reverse();
    let elements = module.ty(root).as_tensor()?.len();
    let is_worth = |min: usize| operators.len() > 1 && elements.is_none_or(|elements| elements >= min);
    let min = *MIN_ELEMENTS.get(sources.len().checked_sub(1)?)?;
    let are_bytes = sources.iter().all(|&source| is_byte(module, source));
    (are_bytes && is_worth(min)).then(|| Chain { operators: operators.into_iter().collect(), sources })
}

/// Computes the results of a chain for all values of its sources; `None` if an operator fails on them.
fn table(module: &Module, chain: &Chain) -> Option<Tensor> {
    let bytes: Vec<u8> = (0..=255).collect();
    let mut values: HashMap<ExprId, Tensor> = HashMap::new();
    let count = chain.sources.len();
    for (i, &source) in chain.sources.iter().enumerate() {
        let shape: &[usize] = if i + 1 < count { &[256, 1] } else { &[256] };
        let dtype = module.ty(source).as_tensor()?.dtype;
        values.insert(source, Tensor::from_bytes(dtype, shape, &bytes)?);
    }
    for &id in &chain.operators {
        let (operator, call) = module.expr(id).as_op_call()?;
        let args: Option<Vec<Value>> = call
            .args
            .iter()
            .map(|&arg| match constant(module, arg) {
                // Scalars do not add dimensions to the results.
                Some(value) if value.shape().len() > 1 => value.reshaped(&[]).map(Value::Tensor),
                Some(value) => Some(Value::Tensor(value.clone())),
                None => values.get(&arg).cloned().map(Value::Tensor),
            })
            .collect();
        let results = op::evaluate(operator, &call.attrs, &args?, 1 << 20).ok()?;
        values.insert(id, results.into_iter().next()?);
    }
    values.remove(chain.operators.last()?)?.reshaped(&[256usize.pow(count as u32)])
}
