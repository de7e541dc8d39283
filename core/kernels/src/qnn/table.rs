//! `qnn.contrib_lookup` and `qnn.contrib_lookup_pair` with results of one byte.

use super::lookup;
use crate::broadcast::LoopNest;
use crate::{Kernel, Offer, Spec};
use byoc_ir::tensor::{TensorView, TensorViewMut};

inventory::submit! { Offer { op: "qnn.contrib_lookup", make } }
inventory::submit! { Offer { op: "qnn.contrib_lookup_pair", make: make_pair } }

struct Lookup;

fn make(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    (spec.outputs.first()?.dtype.size() == 1).then(|| Box::new(Lookup) as Box<dyn Kernel>)
}

impl Kernel for Lookup {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let table = inputs[1].data.first_chunk().ok_or("expected a table of 256 elements")?;
        lookup::look_up_each(table, inputs[0].data, outputs[0].data);
        Ok(())
    }
}

struct Pair {
    walk: LoopNest<2>,
}

fn make_pair(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let out = spec.outputs.first()?;
    if out.dtype.size() != 1 {
        return None;
    }
    let shapes = [spec.inputs[0].shape()?, spec.inputs[1].shape()?];
    Some(Box::new(Pair { walk: LoopNest::new([&shapes[0], &shapes[1]], &out.shape()?) }))
}

impl Kernel for Pair {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let table: &[u8; 1 << 16] = inputs[2].data.first_chunk().ok_or("expected a table of 65536 elements")?;
        let (a, b, steps) = (inputs[0].data, inputs[1].data, self.walk.inner.1);
        let at = |a: u8, b: u8| table[usize::from(a) << 8 | usize::from(b)];
        self.walk.for_each_row(&mut *outputs[0].data, 2, |[i, j], out| match steps {
            [0, _] => out.iter_mut().zip(&b[j..]).for_each(|(out, &b)| *out = at(a[i], b)),
            [_, 0] => out.iter_mut().zip(&a[i..]).for_each(|(out, &a)| *out = at(a, b[j])),
            _ => out.iter_mut().zip(a[i..].iter().zip(&b[j..])).for_each(|(out, (&a, &b))| *out = at(a, b)),
        });
        Ok(())
    }
}
