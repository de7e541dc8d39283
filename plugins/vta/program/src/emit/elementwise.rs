//! Elementwise operations: contiguous parts of a tensor are copied to the accumulators.

use super::epilogue::Results;
use super::{Elements, Emitter, POP_NEXT, POP_PREV, Result, tiles_of};
use crate::layer::{Elementwise, Form};
use byoc_vta_machine::isa::{Deps, Memory, Module};

impl Emitter<'_, '_> {
    pub(super) fn elementwise(&mut self, layer: &Elementwise) -> Result<()> {
        let tiles: Vec<(usize, usize)> = tiles_of(layer.elements, self.tile.size[1]).collect();
        let is_through_loads = !self.recorder.config.has_acc_8bit();
        let tensor_count = self.layer.added_tensors();
        for group in tiles.chunks(self.tile.threads.count()) {
            let results: Vec<Results> = group
                .iter()
                .enumerate()
                .map(|(thread, &(first, count))| Results {
                    thread,
                    base: self.first_of_thread(Memory::Acc, thread),
                    block: 0,
                    size: [1, 1, count],
                    first,
                    strides: [layer.elements; 2],
                    element_count: layer.elements,
                })
                .collect();
            for tile in &results {
                self.recorder.no_op(Module::Compute, POP_NEXT);
                if is_through_loads {
                    self.recorder.push_token(false);
                    let base = self.first_of_thread(Memory::Inp, tile.thread);
                    let data = Elements::run(base, tile.first, tile.count());
                    self.move_elements(POP_NEXT, Memory::Inp, layer.data, data);
                    self.fetch_added(std::slice::from_ref(tile), tile.count());
                    self.fetch_identity(tile.thread);
                    self.recorder.push_token(true);
                }
            }
            self.pop_unused_tokens(group.len());
            for tile in &results {
                if is_through_loads {
                    let source = self.first_of_thread(Memory::Inp, tile.thread);
                    self.copy(POP_PREV, tile.thread, source, tile.base, tile.count())?;
                    if tensor_count == 0 {
                        self.recorder.push_token(false);
                    }
                } else {
                    let data = Elements::run(tile.base, tile.first, tile.count());
                    self.move_elements(Deps::default(), Memory::Acc8, layer.data, data);
                }
                self.apply_steps(tile, tile.count())?;
                self.recorder.push_token(true);
                if is_through_loads {
                    self.recorder.no_op(Module::Load, POP_NEXT);
                }
            }
            self.store(&results, layer.result, Form::Bytes)?;
            self.push_unused_tokens(group.len());
        }
        Ok(())
    }
}
