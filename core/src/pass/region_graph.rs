//! A graph whose nodes can be merged as long as no cycle comes of it (spec 1.8).
//!
//! Two nodes joined by an edge may merge when the edge is the only path between them. The graph keeps a topological
//! order. A path other than the edge can only run through nodes that stand between the two in it, so both ends of
//! the edge are searched in turns, and the search ends as soon as one side is exhausted. The side that was exhausted
//! is then moved across in the order, which stays topological. A chain, a diamond, a wide fan-in and a region with a
//! hundred thousand side outputs all take constant work per merge; the worst case, two long ancestries interleaved
//! in the order and merged again and again, is quadratic in the number of nodes between them.

use crate::ir::{Expr, ExprId, Module};
use smallvec::{SmallVec, smallvec};
use std::collections::{BinaryHeap, HashSet};

/// The label of the last place. Labels are spread over what is below.
const TOP: u64 = 1 << 62;

/// The nodes at the other ends of a node's edges.
type Neighbours = SmallVec<[u32; 4]>;

/// A graph whose nodes merge.
pub(super) struct RegionGraph {
    parent: Vec<u32>,
    before: Vec<Neighbours>,
    after: Vec<Neighbours>,
    order: Order,
}

impl RegionGraph {
    /// A graph of `len` nodes with these edges from producers to users. Among nodes that could stand in either order,
    /// the smaller number comes first.
    pub fn new(len: usize, edges: impl IntoIterator<Item = (u32, u32)>) -> RegionGraph {
        let mut before = vec![Neighbours::new(); len];
        let mut after = vec![Neighbours::new(); len];
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
            // A cycle in what was given; its nodes stand at the end and are reported where regions are made.
            sorted.extend((0..len as u32).filter(|&n| waits[n as usize] > 0));
        }
        RegionGraph { parent: (0..len as u32).collect(), before, after, order: Order::new(&sorted) }
    }

    /// The node that a node was merged into.
    pub fn find(&mut self, node: u32) -> u32 {
        let mut at = node;
        while self.parent[at as usize] != at {
            let above = self.parent[self.parent[at as usize] as usize];
            self.parent[at as usize] = above;
            at = above;
        }
        at
    }

    /// Merges a producer into its user, unless another path leads from one to the other.
    pub fn merge(&mut self, producer: u32, user: u32) -> bool {
        let (p, u) = (self.find(producer), self.find(user));
        if p == u {
            return true;
        }
        let (low, high) = (self.order.label(p), self.order.label(u));
        if low > high {
            return false;
        }
        let mut up = Search::new(u);
        let mut down = Search::new(p);
        let found = loop {
            match up.step(&mut self.parent, &self.before, p, |n| self.order.label(n) > low) {
                Step::Meets => break None,
                Step::Done => break Some(true),
                Step::More => {}
            }
            match down.step(&mut self.parent, &self.after, u, |n| self.order.label(n) < high) {
                Step::Meets => break None,
                Step::Done => break Some(false),
                Step::More => {}
            }
        };
        let Some(above) = found else { return false };
        let stays = if above {
            let mut moved: Vec<u32> = up.seen.iter().copied().collect();
            moved.sort_unstable_by_key(|&n| self.order.label(n));
            self.order.move_before(&moved, p);
            p
        } else {
            let mut moved: Vec<u32> = down.seen.iter().copied().collect();
            moved.sort_unstable_by_key(|&n| self.order.label(n));
            self.order.move_after(&moved, u);
            u
        };
        let gone = if stays == p { u } else { p };
        self.order.remove(gone);
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

/// Calls `edge` for each flow of a value into or through an expression: from its operands, and from the value of a let
/// to its variable.
pub(super) fn flows(module: &Module, id: ExprId, mut edge: impl FnMut(ExprId, ExprId)) {
    let expr = module.expr(id);
    match expr {
        Expr::Let { var, value, body } => {
            edge(*value, *var);
            edge(*body, id);
        }
        Expr::Function(function) => edge(function.body, id),
        _ => expr.for_each_operand(|operand| edge(operand, id)),
    }
}

enum Step {
    Meets,
    Done,
    More,
}

/// A search through one side, an edge at a time.
struct Search {
    seen: HashSet<u32>,
    /// Nodes with the position of their next edge.
    stack: SmallVec<[(u32, usize); 4]>,
    start: u32,
}

impl Search {
    fn new(start: u32) -> Search {
        Search { seen: HashSet::new(), stack: smallvec![(start, 0)], start }
    }

    /// Looks at the next edge.
    fn step(&mut self, parent: &mut [u32], edges: &[Neighbours], goal: u32, within: impl Fn(u32) -> bool) -> Step {
        let Some((node, next)) = self.stack.last_mut() else { return Step::Done };
        let node = *node;
        let Some(&other) = edges[node as usize].get(*next) else {
            self.stack.pop();
            return if self.stack.is_empty() { Step::Done } else { Step::More };
        };
        *next += 1;
        let other = root_of(parent, other);
        if other == goal {
            // The edge itself is no other path.
            return if node == self.start { Step::More } else { Step::Meets };
        }
        if other != self.start && within(other) && self.seen.insert(other) {
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

/// A list of nodes with labels that ascend along it.
struct Order {
    label: Vec<u64>,
    next: Vec<u32>,
    prev: Vec<u32>,
    len: usize,
}

impl Order {
    /// `nodes`, in order. The place before the first and after the last is `nodes.len()`.
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
        let step = TOP / (self.len as u64 + 2);
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

    /// Puts `name` in the place of `node`.
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

    /// Inserts nodes after `at`, close to it or close to what follows: next to the place that stays put, the gap must
    /// last for many insertions.
    fn insert(&mut self, nodes: &[u32], at: u32, close: bool) {
        let end = self.end();
        let after = self.next[at as usize];
        let low = if at == end { 0 } else { self.label(at) };
        let high = if after == end { TOP } else { self.label(after) };
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

    /// Whether a path of at least two edges leads from `from` to `to` in the merged graph: plain search.
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
    fn merges_exactly_where_no_other_path_is() {
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
