//! Compares the cycle model with times measured on hardware, for ten ResNet-18 convolutions. Each uses the tiling that
//! was tuned for the board and two virtual threads, and applies a shift and two bounds to each result.

use byoc_vta_machine::config::{Config, Profile};
use byoc_vta_machine::cycles;
use byoc_vta_machine::isa::{Alu, AluOp, Deps, Gemm, Insn, Loops, Memory, Module, Op, Transfer};

/// Convolution with its tiling.
struct Layer {
    name: &'static str,
    /// Rows and columns of the data, input channel blocks, output channel blocks, kernel size, stride.
    size: [usize; 6],
    /// Tile sizes: rows, columns, input channel blocks, output channel blocks.
    tile: [usize; 4],
    /// Axis that is split between the virtual threads.
    threads: Axis,
    /// Measured time in milliseconds at 100 MHz.
    measured: f64,
}

#[derive(Clone, Copy, PartialEq)]
enum Axis {
    Channels,
    Rows,
}

const LAYERS: [Layer; 10] = [
    Layer { name: "C2", size: [56, 56, 4, 4, 3, 1], tile: [8, 56, 1, 2], threads: Axis::Channels, measured: 5.70 },
    Layer { name: "C3", size: [56, 56, 4, 8, 3, 2], tile: [7, 28, 1, 4], threads: Axis::Channels, measured: 2.97 },
    Layer { name: "C4", size: [56, 56, 4, 8, 1, 2], tile: [7, 28, 1, 4], threads: Axis::Rows, measured: 1.35 },
    Layer { name: "C5", size: [28, 28, 8, 8, 3, 1], tile: [14, 28, 1, 2], threads: Axis::Rows, measured: 5.18 },
    Layer { name: "C6", size: [28, 28, 8, 16, 3, 2], tile: [14, 14, 1, 4], threads: Axis::Channels, measured: 2.67 },
    Layer { name: "C7", size: [28, 28, 8, 16, 1, 2], tile: [7, 14, 1, 8], threads: Axis::Channels, measured: 1.03 },
    Layer { name: "C8", size: [14, 14, 16, 16, 3, 1], tile: [14, 14, 1, 4], threads: Axis::Channels, measured: 4.93 },
    Layer { name: "C9", size: [14, 14, 16, 32, 3, 2], tile: [7, 7, 1, 16], threads: Axis::Channels, measured: 3.99 },
    Layer { name: "C10", size: [14, 14, 16, 32, 1, 2], tile: [7, 7, 1, 16], threads: Axis::Channels, measured: 1.08 },
    Layer { name: "C11", size: [7, 7, 32, 32, 3, 1], tile: [7, 7, 1, 16], threads: Axis::Channels, measured: 7.35 },
];

/// Stream under construction. A token that no operation carries is pushed or popped by a no-op.
#[derive(Default)]
struct Stream(Vec<Insn>);

impl Stream {
    fn push(&mut self, deps: Deps, op: Op) {
        self.0.push(Insn { deps, op });
    }

    fn no_op(&mut self, module: Module, deps: Deps) {
        self.0.push(Insn::no_op(module, deps));
    }

    /// Makes the last instruction push a token to the previous or next module.
    fn push_token(&mut self, to_next: bool) {
        let Some(last_insn) = self.0.last_mut() else { return };
        if to_next {
            last_insn.deps.push_next = true;
        } else {
            last_insn.deps.push_prev = true;
        }
    }
}

fn transfer(memory: Memory, rows: usize, length: usize) -> Transfer {
    let (y_size, x_size) = (rows as u16, length as u16);
    Transfer { memory, sram_base: 0, dram_base: 0, y_size, x_size, x_stride: x_size, y_pad: [0; 2], x_pad: [0; 2] }
}

fn loops(steps: usize) -> Loops {
    // The model depends only on the number of micro-operations times the number of iterations.
    Loops { uop_begin: 0, uop_end: 1, iterations: [(steps / 49).max(1) as u16, steps.min(49) as u16] }
}

fn gemm(is_reset: bool, steps: usize) -> Op {
    Op::Gemm(Gemm { reset: is_reset, loops: loops(steps), dst: [0; 2], src: [0; 2], wgt: [0; 2] })
}

fn alu(steps: usize) -> Op {
    let op = AluOp::Shr;
    Op::Alu(Alu { reset: false, loops: loops(steps), dst: [0; 2], src: [0; 2], op, use_imm: true, imm: 8 })
}

const POP_PREV: Deps = Deps { pop_prev: true, pop_next: false, push_prev: false, push_next: false };
const POP_NEXT: Deps = Deps { pop_prev: false, pop_next: true, push_prev: false, push_next: false };

fn stream(layer: &Layer) -> Vec<Insn> {
    let [height, width, inputs, outputs, kernel, stride] = layer.size;
    let [rows, columns, _, blocks] = layer.tile;
    let pad = kernel / 2;
    let out = |size: usize| (size + 2 * pad - kernel) / stride + 1;
    let tiles_of_rows = out(height).div_ceil(rows);
    let tiles_of_channels = outputs / blocks;
    assert_eq!(columns, out(width), "{}: expected tiles that span the width", layer.name);
    let positions = rows * columns;
    // Number of data rows that a tile reads, without padding.
    let read = |tile: usize| {
        let first_row = (tile * rows * stride) as isize - pad as isize;
        let last_row = first_row + ((rows - 1) * stride + kernel) as isize;
        (last_row.min(height as isize) - first_row.max(0)) as usize
    };
    let mut stream = Stream::default();
    for _ in 0..2 {
        stream.no_op(Module::Store, Deps { push_prev: true, ..Deps::default() });
    }
    let tiles: Vec<usize> = (0..tiles_of_rows).flat_map(|row| std::iter::repeat_n(row, tiles_of_channels)).collect();
    let pairs: Vec<[usize; 2]> = match layer.threads {
        Axis::Channels => tiles.chunks(2).map(|pair| [pair[0], pair[1]]).collect(),
        Axis::Rows => {
            (0..tiles_of_rows / 2).flat_map(|i| std::iter::repeat_n([2 * i, 2 * i + 1], tiles_of_channels)).collect()
        }
    };
    for pair in pairs {
        for _ in pair {
            stream.push(POP_NEXT, gemm(true, positions * blocks));
            stream.push_token(false);
        }
        for _ in 0..inputs {
            for tile in pair {
                stream.push(POP_NEXT, Op::Load(transfer(Memory::Inp, read(tile), width)));
                stream.push(Deps::default(), Op::Load(transfer(Memory::Wgt, blocks, kernel * kernel)));
                stream.push_token(true);
            }
            for _ in pair {
                stream.push(POP_PREV, gemm(false, positions * blocks * kernel * kernel));
                stream.push_token(false);
            }
        }
        for _ in pair {
            stream.no_op(Module::Load, POP_NEXT);
        }
        for _ in pair {
            (0..3).for_each(|_| stream.push(Deps::default(), alu(positions * blocks)));
            stream.push_token(true);
        }
        for _ in pair {
            stream.push(POP_PREV, Op::Store(transfer(Memory::Out, blocks, positions)));
            stream.push_token(false);
        }
    }
    for _ in 0..2 {
        stream.no_op(Module::Compute, POP_NEXT);
    }
    stream.push(Deps::default(), Op::Finish);
    stream.0
}

#[test]
fn model_agrees_with_measured_times() {
    let config = Config { profile: Profile::Pynq, ..Config::default() };
    let mut errors = Vec::new();
    for layer in &LAYERS {
        let cycles = cycles::time(&config, &stream(layer)).unwrap().total;
        let ratio = cycles / 1e5 / layer.measured;
        errors.push((layer.name, ratio));
    }
    let worst_error = errors.iter().map(|(_, ratio)| (ratio - 1.0).abs()).fold(0.0, f64::max);
    let mean_error = errors.iter().map(|(_, ratio)| (ratio - 1.0).abs()).sum::<f64>() / errors.len() as f64;
    assert!(
        mean_error <= 0.06 && worst_error <= 0.30,
        "expected a mean error <= 0.06 and a maximum error <= 0.30, found {mean_error} and {worst_error}: {errors:?}"
    );
}
