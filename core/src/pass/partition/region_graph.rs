//! Graph whose nodes can be merged as long as the graph stays acyclic (spec 1.8).
//!
//! Two nodes joined by an edge may merge if the edge is the only path between them. The graph keeps a topological
//! order. Any other path can only run through nodes between the two in that order, so a search starts from each end of
//! the edge; the two searches advance alternately and stop as soon as one of them is exhausted. The nodes found by the
//! exhausted search are then moved to the other side of the merged node, which keeps the order topological. A chain, a
//! diamond, a wide fan-in and a region with a hundred thousand side outputs all take constant work per merge.
//!
//! If there is another path, it is usually long and runs parallel to a skip connection. Such a path is found without a
//! search by means of a forest over the original nodes, in which the parent of each node is its latest producer: a
//! descendant in the forest is reachable in the graph, and merging removes no path. The worst case is quadratic in the
//! number of nodes between producer and user. It occurs if long interleaved ancestries are searched repeatedly without
//! success, or for paths that the forest does not contain.

use byoc_ir::ir::{Expr, ExprId, Module};
use smallvec::SmallVec;
use std::collections::BinaryHeap;

/// Upper bound of the labels. Labels are spread over the range below the bound.
const MAX_LABEL: u64 = 1 << 62;

/// Neighbors of a node in one direction.
type Neighbors = SmallVec<[u32; 4]>;

/// Graph with mergeable nodes.
pub(super) struct RegionGraph {
    parent: Vec<u32>,
    before: Vec<Neighbors>,
    after: Vec<Neighbors>,
    order: Order,
    forest: Forest,
    up: Search,
    down: Search,
}

impl RegionGraph {
    /// Creates a graph of `len` nodes with edges from producers to users. Ties in the topological order are broken in
    /// favor of the smaller node number.
    pub fn new(len: usize, edges: impl IntoIterator<Item = (u32, u32)>) -> RegionGraph {
        let mut before = vec![Neighbors::new(); len];
        let mut after = vec![Neighbors::new(); len];
        for (from, to) in edges {
            if from != to && after[from as usize].last() != Some(&to) {
                after[from as usize].push(to);
                before[to as usize].push(from);
            }
        }
        let mut waits: Vec<usize> = before.iter().map(|edges| edges.len()).collect();
        let mut ready: BinaryHeap<_> =
            (0..len as u32).filter(|&n| waits[n as usize] == 0).map(std::cmp::Reverse).collect();
        let mut sorted = Vec::with_capacity(len);
        while let Some(std::cmp::Reverse(node)) = ready.pop() {
            sorted.push(node);
            for &user in &after[node as usize] {
                waits[user as usize] -= 1;
                if waits[user as usize] == 0 {
                    ready.push(std::cmp::Reverse(user));
                }
            }
        }
        if sorted.len() < len {
            // The input has a cycle. The nodes of the cycle come last; the cycle is reported when the regions are
            // built.
            sorted.extend((0..len as u32).filter(|&n| waits[n as usize] > 0));
        }
        RegionGraph {
            parent: (0..len as u32).collect(),
            forest: Forest::new(&sorted, &before),
            before,
            after,
            order: Order::new(&sorted),
            up: Search::new(len),
            down: Search::new(len),
        }
    }

    /// Returns the merged node that contains `node`.
    pub fn find(&mut self, node: u32) -> u32 {
        let mut at = node;
        while self.parent[at as usize] != at {
            let above = self.parent[self.parent[at as usize] as usize];
            self.parent[at as usize] = above;
            at = above;
        }
        at
    }

    /// Merges a producer with its user, unless another path leads from the producer to the user. Returns true if both
    /// now belong to the same node.
    pub fn merge(&mut self, producer: u32, user: u32) -> bool {
        let (p, u) = (self.find(producer), self.find(user));
        if p == u {
            return true;
        }
        let (low, high) = (self.order.label(p), self.order.label(u));
        if low > high {
            return false;
        }
        if self.has_other_path(p, u, producer, user) {
            return false;
        }
        let RegionGraph { parent, before, after, order, up, down, .. } = self;
        up.begin(u);
        down.begin(p);
        let found = loop {
            match up.step(parent, before, p, |n| order.label(n) > low) {
                Step::Meets => break None,
                Step::Done => break Some(true),
                Step::More => {}
            }
            match down.step(parent, after, u, |n| order.label(n) < high) {
                Step::Meets => break None,
                Step::Done => break Some(false),
                Step::More => {}
            }
        };
        let Some(above) = found else { return false };
        let search = if above { up } else { down };
        search.seen.sort_unstable_by_key(|&n| order.label(n));
        let stays = if above {
            order.move_before(&search.seen, p);
            p
        } else {
            order.move_after(&search.seen, u);
            u
        };
        let merged = if stays == p { u } else { p };
        self.order.remove(merged);
        let size = |this: &Self, n: u32| this.before[n as usize].len() + this.after[n as usize].len();
        let (root, child) = if size(self, p) >= size(self, u) { (p, u) } else { (u, p) };
        self.order.rename(stays, root);
        self.parent[child as usize] = root;
        for lists in [&mut self.before, &mut self.after] {
            let moved = std::mem::take(&mut lists[child as usize]);
            lists[root as usize].extend(moved);
        }
        true
    }
}

/// Number of neighbors at each end of a list that are checked for a path in the forest.
const MAX_PROBED: usize = 8;

impl RegionGraph {
    /// Returns true if the forest contains a path from `producer` to `user` through a third node; `p` and `u` are the
    /// merged nodes of `producer` and `user`.
    fn has_other_path(&mut self, p: u32, u: u32, producer: u32, user: u32) -> bool {
        let RegionGraph { parent, before, after, forest, .. } = self;
        let mut is_third = |node: u32| {
            let root = root_of(parent, node);
            root != p && root != u
        };
        let (into, out) = (&before[u as usize], &after[p as usize]);
        probed(into).any(|node| forest.is_below(node, producer) && is_third(node))
            || probed(out).any(|node| forest.is_below(user, node) && is_third(node))
    }
}

/// Iterates over the first and the last [`MAX_PROBED`] neighbors.
fn probed(neighbors: &[u32]) -> impl Iterator<Item = u32> {
    let (first, rest) = neighbors.split_at(neighbors.len().min(MAX_PROBED));
    first.iter().chain(rest.iter().rev().take(MAX_PROBED)).copied()
}

/// Forest in which the parent of each node is its latest producer, stored as intervals of a preorder numbering.
struct Forest {
    first: Vec<u32>,
    end: Vec<u32>,
}

impl Forest {
    fn new(sorted: &[u32], before: &[Neighbors]) -> Forest {
        let mut place = vec![0u32; sorted.len()];
        sorted.iter().enumerate().for_each(|(at, &node)| place[node as usize] = at as u32);
        let above = |node: u32| {
            let latest = before[node as usize].iter().copied().max_by_key(|&n| place[n as usize])?;
            // In a cycle the latest producer may come after the node.
            (place[latest as usize] < place[node as usize]).then_some(latest)
        };
        let mut size = vec![1u32; sorted.len()];
        for &node in sorted.iter().rev() {
            if let Some(above) = above(node) {
                size[above as usize] += size[node as usize];
            }
        }
        let mut first = vec![0u32; sorted.len()];
        // Next unused preorder number in the subtree of each node; after the loop, the end of the node's interval.
        let mut end = vec![0u32; sorted.len()];
        let mut free = 0;
        for &node in sorted {
            let next = above(node).map_or(&mut free, |above| &mut end[above as usize]);
            let this = *next;
            *next += size[node as usize];
            first[node as usize] = this;
            end[node as usize] = this + 1;
        }
        Forest { first, end }
    }

    /// Returns true if the forest has a path from `above` to `node`.
    fn is_below(&self, node: u32, above: u32) -> bool {
        let at = self.first[node as usize];
        self.first[above as usize] <= at && at < self.end[above as usize]
    }
}

/// Calls `edge(from, to)` for each data-flow edge of an expression: from its operands to the expression, from the value
/// of a let to the variable and to the let, and from the data of a match to the variables of the patterns.
pub(super) fn for_each_flow(module: &Module, id: ExprId, mut edge: impl FnMut(ExprId, ExprId)) {
    let expr = module.expr(id);
    match expr {
        Expr::Let { var, value, body } => {
            // The variable of a recursive function gets no edge: the function uses the variable, which is not a cycle
            // in the data flow. The values that the function captures are computed outside the body of the let, and
            // regions never extend across let bodies. The edge to the let itself orders the value before the result
            // even if the variable is unused.
            if !matches!(module.expr(*value), Expr::Function(_)) {
                edge(*value, *var);
            }
            edge(*value, id);
            edge(*body, id);
        }
        Expr::Function(function) => edge(function.body, id),
        Expr::Match(m) => {
            edge(m.data, id);
            for clause in &m.clauses {
                clause.pattern.for_each_var(&mut |var| edge(m.data, var));
                edge(clause.body, id);
            }
        }
        _ => expr.for_each_operand(|operand| edge(operand, id)),
    }
}

enum Step {
    Meets,
    Done,
    More,
}

/// Incremental depth-first search in one direction. The buffers are reused by all searches.
struct Search {
    seen: Vec<u32>,
    /// Number of the last search that visited each node.
    mark: Vec<u32>,
    this: u32,
    /// Nodes on the current path, each with the index of the next edge to follow.
    stack: Vec<(u32, usize)>,
    start: u32,
}

impl Search {
    fn new(nodes: usize) -> Search {
        Search { seen: Vec::new(), mark: vec![0; nodes], this: 0, stack: Vec::new(), start: 0 }
    }

    fn begin(&mut self, start: u32) {
        self.seen.clear();
        self.stack.clear();
        self.stack.push((start, 0));
        self.start = start;
        self.this = self.this.wrapping_add(1);
        if self.this == 0 {
            self.mark.fill(0);
            self.this = 1;
        }
    }

    /// Follows the next edge.
    fn step(&mut self, parent: &mut [u32], edges: &[Neighbors], goal: u32, within: impl Fn(u32) -> bool) -> Step {
        let Some((node, next)) = self.stack.last_mut() else { return Step::Done };
        let node = *node;
        let Some(&other) = edges[node as usize].get(*next) else {
            self.stack.pop();
            return if self.stack.is_empty() { Step::Done } else { Step::More };
        };
        *next += 1;
        let other = root_of(parent, other);
        if other == goal {
            // The direct edge does not count as another path.
            return if node == self.start { Step::More } else { Step::Meets };
        }
        if other != self.start && self.mark[other as usize] != self.this && within(other) {
            self.mark[other as usize] = self.this;
            self.seen.push(other);
            self.stack.push((other, 0));
        }
        Step::More
    }
}

fn root_of(parent: &mut [u32], node: u32) -> u32 {
    let mut at = node;
    while parent[at as usize] != at {
        let above = parent[parent[at as usize] as usize];
        parent[at as usize] = above;
        at = above;
    }
    at
}

/// Linked list of nodes with ascending labels.
struct Order {
    label: Vec<u64>,
    next: Vec<u32>,
    prev: Vec<u32>,
    len: usize,
}

impl Order {
    /// Creates a list of `nodes` in order. The list is circular, with `nodes.len()` as the sentinel.
    fn new(nodes: &[u32]) -> Order {
        let end = nodes.len();
        let mut order = Order { label: vec![0; end + 1], next: vec![0; end + 1], prev: vec![0; end + 1], len: end };
        let mut last = end as u32;
        for &node in nodes {
            order.next[last as usize] = node;
            order.prev[node as usize] = last;
            last = node;
        }
        order.next[last as usize] = end as u32;
        order.prev[end] = last;
        order.relabel();
        order
    }

    fn label(&self, node: u32) -> u64 {
        self.label[node as usize]
    }

    fn end(&self) -> u32 {
        (self.label.len() - 1) as u32
    }

    fn relabel(&mut self) {
        let step = MAX_LABEL / (self.len as u64 + 2);
        let mut at = self.next[self.end() as usize];
        let mut label = step;
        while at != self.end() {
            self.label[at as usize] = label;
            label += step;
            at = self.next[at as usize];
        }
    }

    fn remove(&mut self, node: u32) {
        let (before, after) = (self.prev[node as usize], self.next[node as usize]);
        self.next[before as usize] = after;
        self.prev[after as usize] = before;
        self.len -= 1;
    }

    /// Replaces `node` with `name` at the same position.
    fn rename(&mut self, node: u32, name: u32) {
        if node != name {
            let (before, after) = (self.prev[node as usize], self.next[node as usize]);
            self.next[before as usize] = name;
            self.prev[name as usize] = before;
            self.next[name as usize] = after;
            self.prev[after as usize] = name;
            self.label[name as usize] = self.label[node as usize];
        }
    }

    fn move_before(&mut self, nodes: &[u32], place: u32) {
        if !nodes.is_empty() {
            nodes.iter().for_each(|&node| self.remove(node));
            self.insert(nodes, self.prev[place as usize], true);
        }
    }

    fn move_after(&mut self, nodes: &[u32], place: u32) {
        if !nodes.is_empty() {
            nodes.iter().for_each(|&node| self.remove(node));
            self.insert(nodes, place, false);
        }
    }

    /// Inserts nodes between `at` and its successor. The new labels are close to the label of `at` if `close` is true,
    /// otherwise close to the label of the successor; either way, most of the gap is left for later insertions.
    fn insert(&mut self, nodes: &[u32], at: u32, close: bool) {
        let end = self.end();
        let after = self.next[at as usize];
        let low = if at == end { 0 } else { self.label(at) };
        let high = if after == end { MAX_LABEL } else { self.label(after) };
        let mut last = at;
        for &node in nodes {
            self.next[last as usize] = node;
            self.prev[node as usize] = last;
            last = node;
        }
        self.next[last as usize] = after;
        self.prev[after as usize] = last;
        self.len += nodes.len();
        let gap = high - low;
        let count = nodes.len() as u64;
        let step = (gap / (count + 1)).min((gap >> 8) / count).max(1);
        if gap <= count + 1 {
            self.relabel();
            return;
        }
        let first = if close { low + step } else { high - step * count };
        for (i, &node) in nodes.iter().enumerate() {
            self.label[node as usize] = first + step * i as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Returns true if a path of at least two edges leads from `from` to `to` in the merged graph. Reference for
    /// [`RegionGraph::merge`].
    fn other_path(edges: &[(u32, u32)], class: &[u32], from: u32, to: u32) -> bool {
        let mut seen = HashSet::new();
        let mut stack: Vec<u32> = Vec::new();
        for &(a, b) in edges {
            let (a, b) = (class[a as usize], class[b as usize]);
            if a == from && b != from && b != to && seen.insert(b) {
                stack.push(b);
            }
        }
        while let Some(node) = stack.pop() {
            for &(a, b) in edges {
                let (a, b) = (class[a as usize], class[b as usize]);
                if a == node && b == to {
                    return true;
                }
                if a == node && b != a && seen.insert(b) {
                    stack.push(b);
                }
            }
        }
        false
    }

    #[test]
    fn merges_iff_no_other_path_exists() {
        let mut state = 1u64;
        let mut random = |below: u32| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 33) as u32) % below
        };
        let mut merged = 0;
        for round in 0..300 {
            let len = 5 + round % 30;
            let mut edges = Vec::new();
            for to in 1..len {
                for _ in 0..1 + random(3) {
                    edges.push((random(to), to));
                }
            }
            let mut graph = RegionGraph::new(len as usize, edges.iter().copied());
            let mut class: Vec<u32> = (0..len).collect();
            for _ in 0..3 * len {
                let (from, to) = edges[random(edges.len() as u32) as usize];
                let (a, b) = (class[from as usize], class[to as usize]);
                let expected = a == b || !other_path(&edges, &class, a, b);
                assert_eq!(graph.merge(from, to), expected, "round {round}: {from} into {to} of {edges:?}");
                if expected && a != b {
                    merged += 1;
                    class.iter_mut().filter(|c| **c == a).for_each(|c| *c = b);
                }
                assert_eq!(graph.find(from) == graph.find(to), expected);
            }
        }
        assert!(merged > 1000);
    }
}
