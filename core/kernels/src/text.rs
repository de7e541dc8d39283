//! Operators on strings that prepare a constant operand: a hash table of keys, a compiled pattern.

use super::{Kernel, Offer, Packs};
use byoc_ir::op::text::{look_up, match_whole, positions, whole_pattern};
use byoc_ir::tensor::strings::Strings;
use byoc_ir::tensor::{TensorView, TensorViewMut};
use regex::Regex;
use std::collections::HashMap;

inventory::submit! { Packs("text.lookup") }
inventory::submit! {
    Offer { op: "text.lookup", make: |spec| {
        let &[_, _, Some(bytes), Some(spans)] = spec.constants else { return None };
        let keys = positions(Strings::new(&bytes.view(), &spans.view()).ok()?).ok()?;
        let positions = keys.into_iter().map(|(key, position)| (key.into(), position)).collect();
        Some(Box::new(Lookup { positions, is_required: spec.params().bool("is_required") }))
    } }
}

struct Lookup {
    positions: HashMap<Box<[u8]>, i64>,
    is_required: bool,
}

impl Kernel for Lookup {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let position = |string: &[u8]| self.positions.get(string).copied();
        look_up(strings(inputs)?, position, self.is_required, outputs[0].as_mut_slice())
    }
}

inventory::submit! {
    Offer { op: "text.match", make: |spec| {
        let pattern = whole_pattern(&spec.params().string("pattern")).ok()?;
        Some(Box::new(Match { pattern }))
    } }
}

struct Match {
    pattern: Regex,
}

impl Kernel for Match {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        match_whole(&self.pattern, strings(inputs)?, outputs[0].data)
    }
}

fn strings<'a>(inputs: &[TensorView<'a>]) -> Result<Strings<'a>, String> {
    Strings::new(&inputs[0], &inputs[1]).map_err(|reason| reason.to_string())
}
