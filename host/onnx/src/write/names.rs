//! Names of the written model, given when it is complete: nodes and values that were removed take none.
//!
//! While the model is written, each value has a number for a name. Nodes and values share one set of names, so that a node
//! and its first result have the same.

use super::values::UniqueNames;
use crate::proto::{FunctionProto, GraphProto, NodeProto};
use std::collections::HashMap;
use std::rc::Rc;

/// What a name derives from.
#[derive(Clone, Debug)]
pub enum Base {
    /// The label of a node.
    Label(String),
    /// Another result of a node: its temporary name, and the number of the result.
    Result(Rc<str>, usize),
    /// The node that reads an initializer first, and what it uses it for.
    Input(String),
    /// Name that stays.
    Fixed(Rc<str>),
}

/// Temporary names, and what the final ones derive from.
#[derive(Default)]
pub struct Names {
    pub unique: UniqueNames,
    bases: HashMap<Rc<str>, Base>,
}

impl Names {
    /// Returns a temporary name.
    pub fn temporary(&mut self, base: Base) -> Rc<str> {
        // No name of a model begins so, as reserved names are looked up here as well.
        let name: Rc<str> = format!("\u{1}{}", self.bases.len()).into();
        self.bases.insert(name.clone(), base);
        name
    }

    /// Gives a value the name of an output.
    pub fn fix(&mut self, temporary: &Rc<str>, name: &str) {
        self.bases.insert(temporary.clone(), Base::Fixed(name.into()));
    }

    /// Replaces the temporary names of a model. Returns the names of the initializers.
    pub fn finish(self, graph: &mut GraphProto, functions: &mut [FunctionProto]) -> HashMap<Rc<str>, Rc<str>> {
        let mut finisher = Finisher { names: self, done: HashMap::new() };
        for function in functions.iter_mut() {
            function.input.iter_mut().for_each(|name| finisher.replace(name, ""));
            finisher.nodes(&mut function.node);
            function.output.iter_mut().for_each(|name| finisher.replace(name, ""));
        }
        finisher.nodes(&mut graph.node);
        graph.output.iter_mut().for_each(|output| finisher.replace(&mut output.name, ""));
        finisher.done
    }
}

struct Finisher {
    names: Names,
    /// Final names by temporary names.
    done: HashMap<Rc<str>, Rc<str>>,
}

impl Finisher {
    /// Names the nodes of a graph in order. Subgraphs are nested at most as deep as the writer allows.
    fn nodes(&mut self, nodes: &mut [NodeProto]) {
        for node in nodes {
            let temporary: Rc<str> = node.name.as_str().into();
            let label = match self.names.bases.get(&temporary) {
                Some(Base::Label(label)) => label.clone(),
                _ => node.op_type.clone(),
            };
            let name = self.names.unique.unique(&label);
            self.done.entry(temporary.clone()).or_insert_with(|| name.clone());
            if let Some(Base::Fixed(output)) =
                node.output.first().and_then(|output| self.names.bases.get(output.as_str()))
            {
                self.done.insert(node.output[0].as_str().into(), output.clone());
            }
            node.name = name.to_string();
            node.input.iter_mut().for_each(|input| self.replace(input, &name));
            node.output.iter_mut().for_each(|output| self.replace(output, &name));
            for graph in node.attribute.iter_mut().filter_map(|attribute| attribute.g.as_deref_mut()) {
                graph.name = format!("{name}.{}", graph.name);
                graph.input.iter_mut().for_each(|input| self.replace(&mut input.name, &name));
                self.nodes(&mut graph.node);
                graph.output.iter_mut().for_each(|output| self.replace(&mut output.name, &name));
            }
        }
    }

    /// Replaces a temporary name; `node` is the node that reads it.
    fn replace(&mut self, name: &mut String, node: &str) {
        if let Some(done) = self.done.get(name.as_str()) {
            *name = done.to_string();
            return;
        }
        let Some(base) = self.names.bases.get(name.as_str()).cloned() else { return };
        let unique = match base {
            Base::Fixed(fixed) => fixed,
            Base::Label(label) => self.names.unique.unique(&label),
            Base::Input(role) => self.names.unique.unique(&format!("{node}.{role}")),
            Base::Result(first, number) => {
                let first = self.done.get(&first).cloned().unwrap_or_else(|| node.into());
                self.names.unique.unique(&format!("{first}.{number}"))
            }
        };
        self.done.insert(name.as_str().into(), unique.clone());
        *name = unique.to_string();
    }
}
