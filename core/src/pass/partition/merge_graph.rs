//! Graph whose nodes can be merged as long as the graph stays acyclic.
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
pub(super) struct MergeGraph {
    parent: Vec<u32>,
    predecessors: Vec<Neighbors>,
    successors: Vec<Neighbors>,
    order: Order,
    forest: Forest,
    backward: Search,
    forward: Search,
}

impl MergeGraph {
    /// Creates a graph of `len` nodes with edges from producers to users. Ties in the topological order are broken in
    /// favor of the smaller node number.
    pub fn new(len: usize, edges: impl IntoIterator<Item = (u32, u32)>) -> MergeGraph {
        let mut predecessors = vec![Neighbors::new(); len];
        let mut successors = vec![Neighbors::new(); len];
        for (producer, consumer) in edges {
            if producer != consumer && successors[producer as usize].last() != Some(&consumer) {
                successors[producer as usize].push(consumer);
                predecessors[consumer as usize].push(producer);
            }
        }
        let mut pending_count: Vec<usize> = predecessors.iter().map(|edges| edges.len()).collect();
        let mut queue: BinaryHeap<_> =
            (0..len as u32).filter(|&n| pending_count[n as usize] == 0).map(std::cmp::Reverse).collect();
        let mut sorted = Vec::with_capacity(len);
        while let Some(std::cmp::Reverse(node)) = queue.pop() {
            sorted.push(node);
            for &user in &successors[node as usize] {
                pending_count[user as usize] -= 1;
                if pending_count[user as usize] == 0 {
                    queue.push(std::cmp::Reverse(user));
                }
            }
        }
        if sorted.len() < len {
            // The input has a cycle. The nodes of the cycle come last; the cycle is reported when the regions are
            // built.
            sorted.extend((0..len as u32).filter(|&n| pending_count[n as usize] > 0));
        }
        MergeGraph {
            parent: (0..len as u32).collect(),
            forest: Forest::new(&sorted, &predecessors),
            predecessors,
            successors,
            order: Order::new(&sorted),
            backward: Search::new(len),
            forward: Search::new(len),
        }
    }

    /// Returns the merged node that contains `node`.
    pub fn find(&mut self, node: u32) -> u32 {
        let mut root = node;
        while self.parent[root as usize] != root {
            let grandparent = self.parent[self.parent[root as usize] as usize];
            self.parent[root as usize] = grandparent;
            root = grandparent;
        }
        root
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
        let MergeGraph { parent, predecessors, successors, order, backward, forward, .. } = self;
        backward.begin(u);
        forward.begin(p);
        let direction = loop {
            match backward.step(parent, predecessors, p, |n| order.label(n) > low) {
                Step::Meets => break None,
                Step::Done => break Some(true),
                Step::More => {}
            }
            match forward.step(parent, successors, u, |n| order.label(n) < high) {
                Step::Meets => break None,
                Step::Done => break Some(false),
                Step::More => {}
            }
        };
        let Some(is_above) = direction else { return false };
        let search = if is_above { backward } else { forward };
        search.visited.sort_unstable_by_key(|&n| order.label(n));
        let survivor = if is_above {
            order.move_before(&search.visited, p);
            p
        } else {
            order.move_after(&search.visited, u);
            u
        };
        let absorbed = if survivor == p { u } else { p };
        self.order.remove(absorbed);
        let size = |graph: &Self, n: u32| graph.predecessors[n as usize].len() + graph.successors[n as usize].len();
        let (root, child) = if size(self, p) >= size(self, u) { (p, u) } else { (u, p) };
        self.order.rename(survivor, root);
        self.parent[child as usize] = root;
        for lists in [&mut self.predecessors, &mut self.successors] {
            let neighbors = std::mem::take(&mut lists[child as usize]);
            lists[root as usize].extend(neighbors);
        }
        true
    }
}

/// Number of neighbors at each end of a list that are checked for a path in the forest.
const MAX_PROBED: usize = 8;

impl MergeGraph {
    /// Returns true if the forest contains a path from `producer` to `user` through a third node; `p` and `u` are the
    /// merged nodes of `producer` and `user`.
    fn has_other_path(&mut self, p: u32, u: u32, producer: u32, user: u32) -> bool {
        let MergeGraph { parent, predecessors, successors, forest, .. } = self;
        let mut is_third = |node: u32| {
            let root = root_of(parent, node);
            root != p && root != u
        };
        let (incoming, outgoing) = (&predecessors[u as usize], &successors[p as usize]);
        probe(incoming).any(|node| forest.is_below(node, producer) && is_third(node))
            || probe(outgoing).any(|node| forest.is_below(user, node) && is_third(node))
    }
}

/// Iterates over the first and the last [`MAX_PROBED`] neighbors.
fn probe(neighbors: &[u32]) -> impl Iterator<Item = u32> {
    let (first, remaining) = neighbors.split_at(neighbors.len().min(MAX_PROBED));
    first.iter().chain(remaining.iter().rev().take(MAX_PROBED)).copied()
}

/// Forest in which the parent of each node is its latest producer, stored as intervals of a preorder numbering.
struct Forest {
    first: Vec<u32>,
    end: Vec<u32>,
}

impl Forest {
    fn new(sorted: &[u32], predecessors: &[Neighbors]) -> Forest {
        let mut position = vec![0u32; sorted.len()];
        sorted.iter().enumerate().for_each(|(index, &node)| position[node as usize] = index as u32);
        let parent = |node: u32| {
            let last_predecessor = predecessors[node as usize].iter().copied().max_by_key(|&n| position[n as usize])?;
            // In a cycle the latest producer may come after the node.
            (position[last_predecessor as usize] < position[node as usize]).then_some(last_predecessor)
        };
        let mut size = vec![1u32; sorted.len()];
        for &node in sorted.iter().rev() {
            if let Some(parent) = parent(node) {
                size[parent as usize] += size[node as usize];
            }
        }
        let mut first = vec![0u32; sorted.len()];
        // Next unused preorder number in the subtree of each node; after the loop, the end of the node's interval.
        let mut end = vec![0u32; sorted.len()];
        let mut next_free = 0;
        for &node in sorted {
            let cursor = parent(node).map_or(&mut next_free, |parent| &mut end[parent as usize]);
            let start = *cursor;
            *cursor += size[node as usize];
            first[node as usize] = start;
            end[node as usize] = start + 1;
        }
        Forest { first, end }
    }

    /// Returns true if the forest has a path from `ancestor` to `node`.
    fn is_below(&self, node: u32, ancestor: u32) -> bool {
        let position = self.first[node as usize];
        self.first[ancestor as usize] <= position && position < self.end[ancestor as usize]
    }
}

/// Calls `edge(from, to)` for each data-flow edge of an expression: from its operands to the expression, from the value
/// of a let to the variable and to the let, and from the data of a match to the variables of the patterns.
pub(super) fn for_each_flow(module: &Module, id: ExprId, mut add_edge: impl FnMut(ExprId, ExprId)) {
    let expr = module.expr(id);
    match expr {
        Expr::Let { var, value, body } => {
            // The variable of a recursive function gets no edge: the function uses the variable, which is not a cycle
            // in the data flow. The values that the function captures are computed outside the body of the let, and
            // regions never extend across let bodies. The edge to the let itself orders the value before the result
            // even if the variable is unused.
            if !matches!(module.expr(*value), Expr::Function(_)) {
                add_edge(*value, *var);
            }
            add_edge(*value, id);
            add_edge(*body, id);
        }
        Expr::Function(function) => add_edge(function.body, id),
        Expr::Match(m) => {
            add_edge(m.data, id);
            for clause in &m.clauses {
                clause.pattern.for_each_var(&mut |var| add_edge(m.data, var));
                add_edge(clause.body, id);
            }
        }
        _ => expr.for_each_operand(|operand| add_edge(operand, id)),
    }
}

enum Step {
    Meets,
    Done,
    More,
}

/// Incremental depth-first search in one direction. The buffers are reused by all searches.
struct Search {
    visited: Vec<u32>,
    /// Number of the last search that visited each node.
    stamps: Vec<u32>,
    stamp: u32,
    /// Nodes on the current path, each with the index of the next edge to follow.
    stack: Vec<(u32, usize)>,
    start: u32,
}

impl Search {
    fn new(nodes: usize) -> Search {
        Search { visited: Vec::new(), stamps: vec![0; nodes], stamp: 0, stack: Vec::new(), start: 0 }
    }

    fn begin(&mut self, start: u32) {
        self.visited.clear();
        self.stack.clear();
        self.stack.push((start, 0));
        self.start = start;
        self.stamp = self.stamp.wrapping_add(1);
        if self.stamp == 0 {
            self.stamps.fill(0);
            self.stamp = 1;
        }
    }

    /// Follows the next edge.
    fn step(&mut self, parent: &mut [u32], edges: &[Neighbors], goal: u32, within: impl Fn(u32) -> bool) -> Step {
        let Some((node, next_edge)) = self.stack.last_mut() else { return Step::Done };
        let node = *node;
        let Some(&neighbor) = edges[node as usize].get(*next_edge) else {
            self.stack.pop();
            return if self.stack.is_empty() { Step::Done } else { Step::More };
        };
        *next_edge += 1;
        let neighbor = root_of(parent, neighbor);
        if neighbor == goal {
            // The direct edge does not count as another path.
            return if node == self.start { Step::More } else { Step::Meets };
        }
        if neighbor != self.start && self.stamps[neighbor as usize] != self.stamp && within(neighbor) {
            self.stamps[neighbor as usize] = self.stamp;
            self.visited.push(neighbor);
            self.stack.push((neighbor, 0));
        }
        Step::More
    }
}

fn root_of(parent: &mut [u32], node: u32) -> u32 {
    let mut root = node;
    while parent[root as usize] != root {
        let grandparent = parent[parent[root as usize] as usize];
        parent[root as usize] = grandparent;
        root = grandparent;
    }
    root
}

/// Linked list of nodes with ascending labels.
struct Order {
    label: Vec<u64>,
    next: Vec<u32>,
    previous: Vec<u32>,
    len: usize,
}

impl Order {
    /// Creates a list of `nodes` in order. The list is circular, with `nodes.len()` as the sentinel.
    fn new(nodes: &[u32]) -> Order {
        let end = nodes.len();
        let mut order = Order { label: vec![0; end + 1], next: vec![0; end + 1], previous: vec![0; end + 1], len: end };
        let mut last = end as u32;
        for &node in nodes {
            order.next[last as usize] = node;
            order.previous[node as usize] = last;
            last = node;
        }
        order.next[last as usize] = end as u32;
        order.previous[end] = last;
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
        let mut cursor = self.next[self.end() as usize];
        let mut label = step;
        while cursor != self.end() {
            self.label[cursor as usize] = label;
            label += step;
            cursor = self.next[cursor as usize];
        }
    }

    fn remove(&mut self, node: u32) {
        let (previous, next) = (self.previous[node as usize], self.next[node as usize]);
        self.next[previous as usize] = next;
        self.previous[next as usize] = previous;
        self.len -= 1;
    }

    /// Replaces `node` with the node `name`, which takes the position and the label of `node`.
    fn rename(&mut self, node: u32, name: u32) {
        if node != name {
            let (previous, next) = (self.previous[node as usize], self.next[node as usize]);
            self.next[previous as usize] = name;
            self.previous[name as usize] = previous;
            self.next[name as usize] = next;
            self.previous[next as usize] = name;
            self.label[name as usize] = self.label[node as usize];
        }
    }

    fn move_before(&mut self, nodes: &[u32], anchor: u32) {
        if !nodes.is_empty() {
            nodes.iter().for_each(|&node| self.remove(node));
            self.insert(nodes, self.previous[anchor as usize], true);
        }
    }

    fn move_after(&mut self, nodes: &[u32], anchor: u32) {
        if !nodes.is_empty() {
            nodes.iter().for_each(|&node| self.remove(node));
            self.insert(nodes, anchor, false);
        }
    }

    /// Inserts nodes between `anchor` and its successor. The new labels are close to the label of `anchor` if `close`
    /// is true, otherwise close to the label of the successor; either way, most of the gap is left for later
    /// insertions.
    fn insert(&mut self, nodes: &[u32], anchor: u32, close: bool) {
        let end = self.end();
        let next = self.next[anchor as usize];
        let low = if anchor == end { 0 } else { self.label(anchor) };
        let high = if next == end { MAX_LABEL } else { self.label(next) };
        let mut last = anchor;
        for &node in nodes {
            self.next[last as usize] = node;
            self.previous[node as usize] = last;
            last = node;
        }
        self.next[last as usize] = next;
        self.previous[next as usize] = last;
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
    use byoc_test_support::random::Random;
    use std::collections::HashSet;

    /// Returns true if a path of at least two edges leads from `source` to `target` in the merged graph. Reference for
    /// [`MergeGraph::merge`].
    fn has_other_path(edges: &[(u32, u32)], class: &[u32], source: u32, target: u32) -> bool {
        let mut visited = HashSet::new();
        let mut stack: Vec<u32> = Vec::new();
        for &(a, b) in edges {
            let (a, b) = (class[a as usize], class[b as usize]);
            if a == source && b != source && b != target && visited.insert(b) {
                stack.push(b);
            }
        }
        while let Some(node) = stack.pop() {
            for &(a, b) in edges {
                let (a, b) = (class[a as usize], class[b as usize]);
                if a == node && b == target {
                    return true;
                }
                if a == node && b != a && visited.insert(b) {
                    stack.push(b);
                }
            }
        }
        false
    }

    #[test]
    fn merges_iff_no_other_path_exists() {
        let mut random = Random::new(1);
        let mut merge_count = 0;
        for trial in 0..300 {
            let len = 5 + trial % 30;
            let mut edges = Vec::new();
            for target in 1..len {
                for _ in 0..1 + random.below(3) {
                    edges.push((random.below(target as usize) as u32, target));
                }
            }
            let mut graph = MergeGraph::new(len as usize, edges.iter().copied());
            let mut class: Vec<u32> = (0..len).collect();
            for _ in 0..3 * len {
                let (source, target) = random.pick(&edges);
                let (a, b) = (class[source as usize], class[target as usize]);
                let expected = a == b || !has_other_path(&edges, &class, a, b);
                assert_eq!(graph.merge(source, target), expected, "round {trial}: {source} into {target} of {edges:?}");
                if expected && a != b {
                    merge_count += 1;
                    class.iter_mut().filter(|c| **c == a).for_each(|c| *c = b);
                }
                assert_eq!(graph.find(source) == graph.find(target), expected);
            }
        }
        assert!(merge_count > 1000);
    }
}
