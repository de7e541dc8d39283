//! Regions of a function, read from its annotations.
//!
//! A begin opens a region with the next number. An expression joins the region of its first argument that belongs to a
//! region, and the regions of the other arguments are merged into that region, which leaves gaps in the numbering.
//! Inputs and outputs are stored in linked lists, because the order of merging is visible in parameter lists.

use super::super::grouping::describe;
use super::annotation::{Annotations, Mark};
use crate::analysis::scope::is_opaque;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::{Expr, ExprId, ExprList, IndexVec, Module, Name};

/// Region of a function.
#[derive(Clone, Debug)]
pub(super) struct Region {
    /// Number of the region in its function.
    pub number: u32,
    /// Backend of the region.
    pub target: Name,
    /// Begins of the region, in order of merging.
    pub begins: ExprList,
    /// Ends of the region, in order of merging.
    pub ends: ExprList,
    /// Expressions of the region, annotations included, operands before users.
    pub nodes: ExprList,
}

/// Regions of one function.
#[derive(Debug)]
pub(super) struct RegionSet {
    /// Expressions of the function, operands before users, left to right, without the bodies of composites.
    pub order: Vec<ExprId>,
    /// Regions, in ascending order of their numbers.
    pub regions: Vec<Region>,
}

/// Returns true for a function whose body has no regions: a composite, or an opaque function.
pub(super) fn is_closed_function(expr: &Expr) -> bool {
    expr.as_function().is_some_and(|f| f.attrs.get("Composite").is_some() || is_opaque(f))
}

/// Reader of the regions of a module's functions, one function at a time.
pub(super) struct RegionReader<'m> {
    module: &'m Module,
    annotations: Annotations,
    /// Number, counted from 1, of the first function that reaches each expression; 0 for none.
    owner: IndexVec<ExprId, u32>,
    current_owner: u32,
    /// Region of each expression, as an index into the regions of its function.
    region_of: IndexVec<ExprId, Option<u32>>,
}

impl<'m> RegionReader<'m> {
    pub fn new(module: &'m Module) -> RegionReader<'m> {
        RegionReader {
            module,
            annotations: Annotations::new(),
            owner: IndexVec::filled(0, module.nodes.len()),
            current_owner: 0,
            region_of: IndexVec::filled(None, module.nodes.len()),
        }
    }

    /// Returns true if an expression belongs to the function read last.
    pub fn owns(&self, id: ExprId) -> bool {
        self.owner[id] == self.current_owner
    }

    /// Returns the region of an expression, as an index into the regions of the function read last.
    pub fn region(&self, id: ExprId) -> Option<u32> {
        if self.owns(id) { self.region_of[id] } else { None }
    }

    /// Reads the regions of a function.
    ///
    /// # Errors
    /// If an end encloses an expression that is in no region or in a region of another target, or the arguments of an
    /// expression are in regions of different targets.
    pub fn read(&mut self, function: ExprId) -> Result<RegionSet, Box<Diagnostic>> {
        self.current_owner += 1;
        let (module, annotations) = (self.module, self.annotations);
        let order = self.post_order(function);
        let mut open_regions = OpenRegions::default();
        for &id in &order {
            match annotations.annotation_of(module, id) {
                Some(Mark::Begin(_, target)) => {
                    self.region_of[id] = Some(open_regions.start(target, id));
                }
                Some(Mark::End(value, target)) => {
                    let region = self.region(value).map(|r| open_regions.find(r)).ok_or_else(|| {
                        annotation_error(format!(
                            "end for \"{target}\": expected a value in a region of \"{target}\", found {} in no region",
                            describe(module, value)
                        ))
                    })?;
                    if *open_regions.targets[region as usize] != *target {
                        return Err(annotation_error(format!(
                            "end for \"{target}\": expected a value in a region of \"{target}\", \
                             found {} in a region of \"{}\"",
                            describe(module, value),
                            open_regions.targets[region as usize]
                        )));
                    }
                    open_regions.ends.append(region, id);
                    self.region_of[id] = Some(region);
                }
                None => {
                    let mut region_found: Option<u32> = None;
                    let mut conflict = None;
                    for_each_joining_operand(module.expr(id), |operand| {
                        if matches!(annotations.annotation_of(module, operand), Some(Mark::End(..))) {
                            return;
                        }
                        if let Some(other) = self.region(operand).map(|r| open_regions.find(r)) {
                            match region_found {
                                None => region_found = Some(other),
                                Some(first)
                                    if open_regions.targets[first as usize] == open_regions.targets[other as usize] =>
                                {
                                    open_regions.join(other, first);
                                }
                                Some(first) => conflict = Some((first, other)),
                            }
                        }
                    });
                    if let Some((first, other)) = conflict {
                        return Err(annotation_error(format!(
                            "{}: expected arguments in regions of one target, found \"{}\" and \"{}\"",
                            describe(module, id),
                            open_regions.targets[first as usize],
                            open_regions.targets[other as usize]
                        )));
                    }
                    self.region_of[id] = region_found;
                }
            }
        }
        let mut index = vec![None; open_regions.parent.len()];
        let mut regions: Vec<Region> = Vec::new();
        for number in 0..open_regions.parent.len() as u32 {
            if open_regions.find(number) == number {
                index[number as usize] = Some(regions.len() as u32);
                regions.push(Region {
                    number,
                    target: open_regions.targets[number as usize].clone(),
                    begins: open_regions.begins.collect(number),
                    ends: open_regions.ends.collect(number),
                    nodes: ExprList::new(),
                });
            }
        }
        for &id in &order {
            if let Some(region) = self.region_of[id] {
                let region_index = index[open_regions.find(region) as usize].expect("every region is listed");
                self.region_of[id] = Some(region_index);
                regions[region_index as usize].nodes.push(id);
            }
        }
        Ok(RegionSet { order, regions })
    }

    /// Returns the expressions of a function, operands before users, left to right.
    fn post_order(&mut self, root: ExprId) -> Vec<ExprId> {
        let mut order = Vec::new();
        let mut stack = vec![(root, false)];
        while let Some((id, is_exit)) = stack.pop() {
            if is_exit {
                order.push(id);
            } else if self.owner[id] == 0 {
                self.owner[id] = self.current_owner;
                stack.push((id, true));
                let expr = self.module.expr(id);
                if !is_closed_function(expr) {
                    let first = stack.len();
                    expr.for_each_operand(|operand| {
                        if self.owner[operand] == 0 {
                            stack.push((operand, false));
                        }
                    });
                    stack[first..].reverse();
                }
            }
        }
        order
    }
}

/// Calls `visit` for the operands whose region an expression joins. Control flow and function literals belong to no
/// region.
fn for_each_joining_operand(expr: &Expr, visit: impl FnMut(ExprId)) {
    match expr {
        Expr::Call(call) => call.args.iter().copied().for_each(visit),
        Expr::Tuple(_) | Expr::Project { .. } | Expr::RefNew(_) | Expr::RefRead(_) | Expr::RefWrite { .. } => {
            expr.for_each_operand(visit);
        }
        Expr::Constant(_)
        | Expr::Var(_)
        | Expr::Global(_)
        | Expr::Constructor(_)
        | Expr::Let { .. }
        | Expr::If { .. }
        | Expr::Match(_)
        | Expr::Function(_) => {}
    }
}

/// Regions under construction: a union-find structure, with the inputs and outputs of each region in order.
#[derive(Default)]
struct OpenRegions {
    parent: Vec<u32>,
    targets: Vec<Name>,
    begins: Lists,
    ends: Lists,
}

impl OpenRegions {
    fn start(&mut self, target: &str, begin: ExprId) -> u32 {
        let region = self.parent.len() as u32;
        self.parent.push(region);
        // Consecutive regions usually have the same target and then share the allocated name.
        let name = match self.targets.last() {
            Some(last) if **last == *target => last.clone(),
            _ => target.into(),
        };
        self.targets.push(name);
        self.begins.grow();
        self.ends.grow();
        self.begins.append(region, begin);
        region
    }

    fn find(&mut self, region: u32) -> u32 {
        let mut root = region;
        while self.parent[root as usize] != root {
            let grandparent = self.parent[self.parent[root as usize] as usize];
            self.parent[root as usize] = grandparent;
            root = grandparent;
        }
        root
    }

    fn join(&mut self, absorbed: u32, survivor: u32) {
        if absorbed != survivor {
            self.parent[absorbed as usize] = survivor;
            self.begins.concat(absorbed, survivor);
            self.ends.concat(absorbed, survivor);
        }
    }
}

/// Linked lists with concatenation in constant time.
#[derive(Default)]
struct Lists {
    items: Vec<(ExprId, Option<u32>)>,
    bounds: Vec<Option<(u32, u32)>>,
}

impl Lists {
    fn grow(&mut self) {
        self.bounds.push(None);
    }

    fn append(&mut self, list: u32, item: ExprId) {
        let index = self.items.len() as u32;
        self.items.push((item, None));
        let bounds = &mut self.bounds[list as usize];
        match bounds {
            Some((_, last)) => {
                self.items[*last as usize].1 = Some(index);
                *last = index;
            }
            None => *bounds = Some((index, index)),
        }
    }

    fn concat(&mut self, absorbed: u32, survivor: u32) {
        if let Some((first, last)) = self.bounds[absorbed as usize].take() {
            match &mut self.bounds[survivor as usize] {
                Some((_, end)) => {
                    self.items[*end as usize].1 = Some(first);
                    *end = last;
                }
                empty => *empty = Some((first, last)),
            }
        }
    }

    fn collect(&self, list: u32) -> ExprList {
        let mut cursor = self.bounds[list as usize].map(|(first, _)| first);
        let mut items = ExprList::new();
        while let Some(index) = cursor {
            let (item, successor) = self.items[index as usize];
            items.push(item);
            cursor = successor;
        }
        items
    }
}

fn annotation_error(message: String) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(codes::passes::BAD_ANNOTATION, message).help(
        "wrap every argument of an operator in a compiler_begin, and the result in a compiler_end, of the same target",
    ))
}
