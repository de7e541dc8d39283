//! Operators on strings that prepare a constant operand: a hash table of keys, a compiled pattern.

use super::{Kernel, Offer, Packs};
use byoc_ir::op::text::{match_whole, positions, whole_pattern};
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
        Some(Box::new(Lookup { positions }))
    } }
}

struct Lookup {
    positions: HashMap<Box<[u8]>, i64>,
}

impl Kernel for Lookup {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let data = strings(inputs)?;
        for (i, slot) in outputs[0].as_mut_slice::<i64>().iter_mut().enumerate() {
            let string = data.bytes(i).map_err(|reason| reason.to_string())?;
            *slot = self.positions.get(string).copied().unwrap_or(-1);
        }
        Ok(())
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
