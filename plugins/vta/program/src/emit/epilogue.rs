//! Epilogue of a tile: vector unit operations on the accumulators, and the store of the results.

use super::{Elements, Emitter, POP_NEXT, POP_PREV, Result, used_steps};
use crate::layer::{Form, Place, Step};
use byoc_vta_machine::isa::{Alu, AluOp, Deps, Memory, Module, Op, Uop};

/// Results of a tile, contiguous in the accumulators, in the order block, row, column.
#[derive(Clone, Copy)]
pub(super) struct Results {
    pub thread: usize,
    /// Index of the first accumulator.
    pub base: usize,
    /// Index of the first output channel block, for vectors.
    pub block: usize,
    /// Number of blocks, rows and columns.
    pub size: [usize; 3],
    /// Index of the first element in the result tensor.
    pub first: usize,
    /// Block stride and row stride of the tensor, in elements.
    pub strides: [usize; 2],
    /// Number of elements in the tensor.
    pub element_count: usize,
}

impl Results {
    pub(super) fn count(&self) -> usize {
        self.size.iter().product()
    }

    /// Returns the elements of one block.
    fn elements(&self, base: usize, block: usize) -> Elements {
        let [_, rows, columns] = self.size;
        Elements {
            sram: base + block * rows * columns,
            first: self.first + block * self.strides[0],
            size: [rows, columns],
            stride: self.strides[1],
            pads: [[0; 2]; 2],
        }
    }
}

impl Emitter<'_, '_> {
    /// Loads the tensors that are added to the results of a group of tiles. They are placed in the activation memory,
    /// after the `data` elements that are already there. Does nothing without such tensors, or if the device can load
    /// bytes into accumulators. If `data` is 0, LOAD pops a token per tile and pushes one to COMPUTE.
    pub(super) fn fetch_added(&mut self, group: &[Results], data: usize) {
        let tensor_count = self.layer.added_tensors();
        if tensor_count == 0 || self.recorder.config.has_acc_8bit() {
            return;
        }
        let tensors: Vec<Place> = self.layer.steps().iter().filter_map(tensor_of).collect();
        for results in group {
            let base = self.first_of_thread(Memory::Inp, results.thread) + data;
            for (tensor_index, tensor) in tensors.iter().enumerate() {
                for block in 0..results.size[0] {
                    let is_first = tensor_index == 0 && block == 0 && data == 0;
                    let deps = if is_first { POP_NEXT } else { Deps::default() };
                    let elements = results.elements(base + tensor_index * results.count(), block);
                    self.move_elements(deps, Memory::Inp, *tensor, elements);
                }
            }
            if data == 0 {
                self.fetch_identity(results.thread);
                self.recorder.push_token(true);
            }
        }
    }

    /// Loads the identity matrix into the first weight element of a thread.
    pub(super) fn fetch_identity(&mut self, thread: usize) {
        let place = Place { buffer: self.identity, offset: 0 };
        let elements = Elements::run(self.first_of_thread(Memory::Wgt, thread), 0, 1);
        self.move_elements(Deps::default(), Memory::Wgt, place, elements);
    }

    /// Copies activations to accumulators by multiplying them by the identity matrix.
    pub(super) fn copy(
        &mut self,
        deps: Deps,
        thread: usize,
        source: usize,
        destination: usize,
        count: usize,
    ) -> Result<()> {
        self.reset(deps, destination, count)?;
        let wgt = self.first_of_thread(Memory::Wgt, thread) as u32;
        let uop = Uop { dst: destination as u32, src: source as u32, wgt };
        self.matrix(Deps::default(), false, &[uop], [1, count], [[0, 1], [0, 1], [0; 2]])
    }

    /// Applies the operations of the layer to the results of a tile. `fetched_elements` is the number of elements that
    /// precede the added tensors in the activation memory.
    pub(super) fn apply_steps(&mut self, results: &Results, fetched_elements: usize) -> Result<()> {
        let count = results.count();
        let [blocks, rows, columns] = results.size;
        let mut area = results.base + count;
        let mut tensor_index = 0;
        if self.layer.steps().iter().any(|step| matches!(step, Step::Vector(..))) {
            area += blocks;
        }
        let steps = self.layer.steps();
        for step in steps {
            match step {
                Step::Immediate(op, imm) => self.immediate(*op, *imm, results.base, count)?,
                Step::Vector(op, place) => {
                    let vector = results.base + count;
                    let elements = Elements::run(vector, results.block, blocks);
                    self.move_elements(Deps::default(), Memory::Acc, *place, elements);
                    let uop = Uop { dst: results.base as u32, src: vector as u32, wgt: 0 };
                    let positions = rows * columns;
                    self.vector(*op, uop, [blocks, positions], [[positions, 1], [1, 0]])?;
                }
                Step::AddTensor { place, steps } => {
                    if self.recorder.config.has_acc_8bit() {
                        for block in 0..blocks {
                            let elements = results.elements(area, block);
                            self.move_elements(Deps::default(), Memory::Acc8, *place, elements);
                        }
                    } else {
                        let source =
                            self.first_of_thread(Memory::Inp, results.thread) + fetched_elements + tensor_index * count;
                        let deps = if tensor_index == 0 && fetched_elements == 0 { POP_PREV } else { Deps::default() };
                        self.copy(deps, results.thread, source, area, count)?;
                        tensor_index += 1;
                        if tensor_index == self.layer.added_tensors() {
                            self.recorder.push_token(false);
                        }
                    }
                    for (op, imm) in steps {
                        self.immediate(*op, *imm, area, count)?;
                    }
                    let uop = Uop { dst: results.base as u32, src: area as u32, wgt: 0 };
                    self.vector(AluOp::Add, uop, [1, count], [[0, 1], [0, 1]])?;
                }
            }
        }
        if steps.is_empty() {
            // Only computations write to the result memory, so a layer without operations needs one.
            self.immediate(AluOp::Shr, 0, results.base, count)?;
        }
        Ok(())
    }

    /// Emits an operation with an immediate operand on a range of accumulators.
    pub(super) fn immediate(&mut self, op: AluOp, imm: i16, base: usize, count: usize) -> Result<()> {
        let loops = self.loops(&[Uop { dst: base as u32, src: base as u32, wgt: 0 }], [1, count])?;
        let step = used_steps([1, count], [0, 1]);
        let alu = Alu { reset: false, loops, dst: step, src: step, op, use_imm: true, imm };
        self.recorder.push(Deps::default(), Op::Alu(alu));
        Ok(())
    }

    /// Emits an operation whose operands are all accumulators. `factors` are the index steps of destination and source
    /// in two loops.
    pub(super) fn vector(
        &mut self,
        op: AluOp,
        uop: Uop,
        iterations: [usize; 2],
        factors: [[usize; 2]; 2],
    ) -> Result<()> {
        let loops = self.loops(&[uop], iterations)?;
        let [dst, src] = factors.map(|factor| used_steps(iterations, factor));
        let alu = Alu { reset: false, loops, dst, src, op, use_imm: false, imm: 0 };
        self.recorder.push(Deps::default(), Op::Alu(alu));
        Ok(())
    }

    /// Emits the instructions that store the results of a group of tiles. STORE then releases the accumulators to
    /// COMPUTE.
    pub(super) fn store(&mut self, group: &[Results], place: Place, form: Form) -> Result<()> {
        for plane in 0..form.bytes() {
            if plane > 0 {
                for results in group {
                    self.recorder.no_op(Module::Compute, POP_NEXT);
                    self.immediate(AluOp::Shr, 8, results.base, results.count())?;
                    self.recorder.push_token(true);
                }
            }
            for results in group {
                let offset =
                    place.offset + plane * results.element_count * self.recorder.config.element_bytes(Memory::Out);
                for block in 0..results.size[0] {
                    let deps = if block == 0 { POP_PREV } else { Deps::default() };
                    let elements = results.elements(results.base, block);
                    self.move_elements(deps, Memory::Out, Place { offset, ..place }, elements);
                }
                self.recorder.push_token(false);
            }
        }
        Ok(())
    }
}

fn tensor_of(step: &Step) -> Option<Place> {
    if let Step::AddTensor { place, .. } = step { Some(*place) } else { None }
}
