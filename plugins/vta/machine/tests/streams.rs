//! Complete streams, built by the rules of VTA's own runtime. Their hashes and counters are compared with those of its
//! simulator.

use byoc_vta_machine::check::{Segment, check};
use byoc_vta_machine::config::{Config, Profile};
use byoc_vta_machine::cycles;
use byoc_vta_machine::isa::{Alu, AluOp, Deps, Gemm, Insn, Loops, Memory, Module, Op, Transfer, Uop};
use byoc_vta_machine::sim::{Counters, Dram, Mode, Options, run};
use sha2::{Digest, Sha256};
use std::collections::HashMap;

const UOPS: usize = 0x0001_0000;
const A: usize = 0x0010_0000;
const SIZE: usize = 0x0070_0000;

/// Model of VTA's runtime: records kernels, and turns dependencies between modules into instruction flags.
#[derive(Default)]
struct Runtime {
    stream: Vec<Insn>,
    /// Pending pops of each module's next instruction: from the previous and from the next module.
    pending: [[bool; 2]; 3],
    uops: Vec<u32>,
    kernels: HashMap<String, (u32, u32)>,
}

fn modules() -> [Module; 3] {
    [Module::Load, Module::Compute, Module::Store]
}

impl Runtime {
    fn emit(&mut self, module: usize, op: Op) {
        let [pop_prev, pop_next] = std::mem::take(&mut self.pending[module]);
        self.stream.push(Insn { deps: Deps { pop_prev, pop_next, ..Deps::default() }, op });
    }

    fn emit_pending(&mut self, module: usize) {
        if self.pending[module] != [false; 2] {
            let Insn { op, .. } = Insn::no_op(modules()[module], Deps::default());
            self.emit(module, op);
        }
    }

    /// Records that `destination` waits for `source`; modules are numbered from 1.
    fn pop(&mut self, source: usize, destination: usize) {
        let (destination, is_from_next) = (destination - 1, usize::from(source > destination));
        if self.pending[destination][is_from_next] {
            self.emit_pending(destination);
        }
        self.pending[destination][is_from_next] = true;
    }

    /// Records that `source` allows `destination` to continue.
    fn push(&mut self, source: usize, destination: usize) {
        let (module, is_to_next) = (source - 1, source < destination);
        self.emit_pending(module);
        let flag = |deps: &mut Deps| {
            if is_to_next {
                std::mem::replace(&mut deps.push_next, true)
            } else {
                std::mem::replace(&mut deps.push_prev, true)
            }
        };
        if let Some(last_insn) = self.stream.last_mut() {
            let is_no_op = matches!(&last_insn.op, Op::Load(transfer) if transfer.is_no_op());
            if !is_no_op && last_insn.module() == modules()[module] {
                let mut deps = last_insn.deps;
                if !flag(&mut deps) {
                    last_insn.deps = deps;
                    return;
                }
            }
        }
        let mut insn = Insn::no_op(modules()[module], Deps::default());
        flag(&mut insn.deps);
        self.stream.push(insn);
    }

    fn transfer(
        &mut self,
        store: bool,
        memory: Memory,
        base: usize,
        offset: usize,
        [x, y, stride]: [usize; 3],
        sram: usize,
    ) {
        self.padded_load(store, memory, base, offset as isize, [x, y, stride], sram, [0; 2], [0; 2]);
    }

    fn padded_load(
        &mut self,
        store: bool,
        memory: Memory,
        base: usize,
        offset: isize,
        [x, y, stride]: [usize; 3],
        sram: usize,
        y_pad: [u8; 2],
        x_pad: [u8; 2],
    ) {
        let element = Config::default().element_bytes(memory);
        let transfer = Transfer {
            memory,
            sram_base: sram as u16,
            dram_base: ((base / element) as isize + offset) as u32,
            y_size: y as u16,
            x_size: x as u16,
            x_stride: stride as u16,
            y_pad,
            x_pad,
        };
        let module =
            Insn { deps: Deps::default(), op: if store { Op::Store(transfer) } else { Op::Load(transfer) } }.module();
        self.emit(module as usize, if store { Op::Store(transfer) } else { Op::Load(transfer) });
    }

    /// Returns the range of a kernel in the micro-operation memory; loads the kernel on first use.
    fn kernel(&mut self, name: String, uops: &[[u32; 3]]) -> (u32, u32) {
        if let Some(&range) = self.kernels.get(&name) {
            return range;
        }
        let begin = self.uops.len();
        self.uops.extend(uops.iter().map(|&[dst, src, wgt]| Uop { dst, src, wgt }.encode(&Config::default()).unwrap()));
        self.transfer(false, Memory::Uop, UOPS, begin, [uops.len(), 1, uops.len()], begin);
        let range = (begin as u32, self.uops.len() as u32);
        self.kernels.insert(name, range);
        range
    }

    /// Emits a matrix instruction with up to two loops, each given as (count, dst, src, wgt).
    fn gemm(&mut self, is_reset: bool, loops: &[[u16; 4]], uops: &[[u32; 3]]) {
        let (uop_begin, uop_end) = self.kernel(format!("{is_reset} {loops:?} {uops:?}"), uops);
        let [outer, inner] = [0, 1].map(|i| loops.get(i).copied().unwrap_or([1, 0, 0, 0]));
        let level_pair = |i: usize| [outer[i], inner[i]];
        let loops = Loops { uop_begin, uop_end, iterations: level_pair(0) };
        self.emit(
            1,
            Op::Gemm(Gemm { reset: is_reset, loops, dst: level_pair(1), src: level_pair(2), wgt: level_pair(3) }),
        );
    }

    /// Emits a vector instruction with one loop, given as (count, dst, src).
    fn alu(&mut self, op: AluOp, imm: i16, [count, dst, src]: [u16; 3], index: u32) {
        let (uop_begin, uop_end) = self.kernel(format!("{op:?} {index}"), &[[index, index, 0]]);
        let loops = Loops { uop_begin, uop_end, iterations: [1, count] };
        self.emit(1, Op::Alu(Alu { reset: false, loops, dst: [0, dst], src: [0, src], op, use_imm: true, imm }));
    }

    fn requantize(&mut self, count: u16, index: u32) {
        for (op, imm) in [(AluOp::Shr, 8), (AluOp::Max, 0), (AluOp::Min, 127)] {
            self.alu(op, imm, [count, 1, 1], index);
        }
    }

    fn finish(mut self) -> (Vec<Insn>, Vec<u32>) {
        self.push(3, 2);
        self.push(1, 2);
        self.pop(3, 2);
        self.pop(1, 2);
        self.emit_pending(1);
        self.emit(1, Op::Finish);
        (self.stream, self.uops)
    }
}

/// Returns the test data P(n, a, c)[t] = ((t * a + c) mod 255) - 127.
fn pattern(n: usize, a: usize, c: usize) -> Vec<u8> {
    (0..n).map(|t| (((t * a + c) % 255) as i32 - 127) as i8 as u8).collect()
}

fn sha(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn encode_stream(stream: &[Insn]) -> Vec<[u64; 2]> {
    stream.iter().map(|insn| insn.encode(&Config::default()).unwrap()).collect()
}

struct Case {
    stream: Vec<Insn>,
    uops: Vec<u32>,
    data: [(usize, Vec<u8>); 2],
    result: (usize, usize),
}

impl Case {
    fn stream_hash(&self) -> String {
        sha(&encode_stream(&self.stream).iter().flatten().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())
    }

    fn uop_bytes(&self) -> Vec<u8> {
        self.uops.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn run(&self, options: Options) -> (Counters, String) {
        let mut dram = Dram::new(SIZE);
        for (address, bytes) in self.data.iter().chain([&(UOPS, self.uop_bytes())]) {
            dram.write(*address, bytes.len()).unwrap().copy_from_slice(bytes);
        }
        let counters = run(&Config::default(), &self.stream, &mut dram, &options).unwrap();
        (counters, sha(dram.read(self.result.0, self.result.1).unwrap()))
    }

    fn segments(&self) -> Vec<Segment> {
        let inputs = self.data.iter().map(|(address, bytes)| Segment {
            range: *address..address + bytes.len(),
            writable: false,
            uops: None,
        });
        let uops = Segment { range: UOPS..UOPS + 4 * self.uops.len(), writable: false, uops: Some(self.uops.clone()) };
        let result = Segment { range: self.result.0..self.result.0 + self.result.1, writable: true, uops: None };
        inputs.chain([uops, result]).collect()
    }
}

fn stream_a() -> Case {
    let (b, c) = (0x0011_0000, 0x0013_0000);
    let mut runtime = Runtime::default();
    runtime.gemm(true, &[[16, 1, 0, 0]], &[[0, 0, 0]]);
    runtime.push(2, 1);
    for k in 0..16 {
        runtime.pop(2, 1);
        runtime.transfer(false, Memory::Inp, A, k, [1, 1, 1], 0);
        runtime.transfer(false, Memory::Wgt, b, k, [1, 16, 16], 0);
        runtime.push(1, 2);
        runtime.pop(1, 2);
        runtime.gemm(false, &[[16, 1, 0, 1]], &[[0, 0, 0]]);
        runtime.push(2, 1);
    }
    runtime.push(2, 3);
    runtime.pop(2, 1);
    runtime.pop(2, 3);
    runtime.transfer(true, Memory::Out, c, 0, [16, 1, 16], 0);
    let (stream, uops) = runtime.finish();
    Case { stream, uops, data: [(A, pattern(256, 7, 3)), (b, pattern(65536, 31, 11))], result: (c, 256) }
}

fn stream_b() -> Case {
    let (b, c) = (0x0020_0000, 0x0060_0000);
    let mut runtime = Runtime::default();
    runtime.push(3, 2);
    for oc in 0..4 {
        runtime.pop(3, 2);
        runtime.gemm(true, &[[16, 1, 0, 0]], &[[0, 0, 0]]);
        runtime.push(2, 1);
        for ic in 0..4 {
            runtime.pop(2, 1);
            runtime.transfer(false, Memory::Inp, A, 16 * ic, [16, 1, 16], 0);
            runtime.transfer(false, Memory::Wgt, b, 1024 * oc + 16 * ic, [16, 16, 64], 0);
            runtime.push(1, 2);
            runtime.pop(1, 2);
            runtime.gemm(false, &[[16, 1, 0, 16], [16, 0, 1, 1]], &[[0, 0, 0]]);
            runtime.push(2, 1);
        }
        runtime.pop(2, 1);
        runtime.requantize(16, 0);
        runtime.push(2, 3);
        runtime.pop(2, 3);
        for t in 0..16 {
            runtime.transfer(true, Memory::Out, c, 16 * oc + t, [1, 1, 1], t);
        }
        runtime.push(3, 2);
    }
    runtime.pop(3, 2);
    let (stream, uops) = runtime.finish();
    Case { stream, uops, data: [(A, pattern(1024, 7, 3)), (b, pattern(1 << 20, 31, 11))], result: (c, 1024) }
}

/// Returns the case of a 3x3 convolution on 14x14 pixels, with 256 input and 256 output channels and two virtual
/// threads.
fn stream_c() -> Case {
    let (b, c) = (0x0020_0000, 0x0060_0000);
    let mut runtime = Runtime::default();
    runtime.push(3, 2);
    runtime.push(3, 2);
    for h in 0..2usize {
        for t in 0..2u32 {
            runtime.pop(3, 2);
            let uops: Vec<[u32; 3]> = (0..14).map(|j| [784 * t + j, 0, 0]).collect();
            runtime.gemm(true, &[[8, 98, 0, 0], [7, 14, 0, 0]], &uops);
            runtime.push(2, 1);
        }
        for ic in 0..16usize {
            for t in 0..2usize {
                runtime.pop(2, 1);
                let (p, q) = (1usize.saturating_sub(7 * h), (7 * h).saturating_sub(6));
                let offset = (196 * ic + 98 * h + 14 * p) as isize - 14;
                let pads = ([p as u8, q as u8], [1, 1]);
                runtime.padded_load(false, Memory::Inp, A, offset, [14, 9 - p - q, 14], 144 * t, pads.0, pads.1);
                runtime.transfer(false, Memory::Wgt, b, 9 * ic + 1152 * t, [9, 8, 144], 72 * t);
                runtime.push(1, 2);
            }
            for t in 0..2u32 {
                runtime.pop(1, 2);
                let mut uops = Vec::new();
                for dy in 0..3 {
                    for dx in 0..3 {
                        uops.extend((0..14).map(|j| [784 * t + j, 144 * t + 16 * dy + j + dx, 72 * t + 3 * dy + dx]));
                    }
                }
                runtime.gemm(false, &[[8, 98, 0, 9], [7, 14, 16, 0]], &uops);
                runtime.push(2, 1);
            }
        }
        runtime.pop(2, 1);
        runtime.pop(2, 1);
        for t in 0..2u32 {
            runtime.requantize(784, 784 * t);
            runtime.push(2, 3);
        }
        for t in 0..2usize {
            runtime.pop(2, 3);
            for a in 0..8usize {
                for y in 0..7usize {
                    for x in 0..14usize {
                        let (sram, offset) = (784 * t + 98 * a + 14 * y + x, 1568 * t + 196 * a + 98 * h + 14 * y + x);
                        runtime.transfer(true, Memory::Out, c, offset, [1, 1, 1], sram);
                    }
                }
            }
            runtime.push(3, 2);
        }
    }
    runtime.pop(3, 2);
    runtime.pop(3, 2);
    let (stream, uops) = runtime.finish();
    Case { stream, uops, data: [(A, pattern(50176, 7, 3)), (b, pattern(589_824, 31, 11))], result: (c, 50176) }
}

#[test]
fn stream_a_has_the_words_of_the_runtime() {
    let words = encode_stream(&stream_a().stream);
    let expected = [
        (0, [0x0000_0100_0000_0000, 0x0000_0001_0001_0001]),
        (1, [0x0002_0080_0020_00a2, 1]),
        (2, [0x0000_0400_0000_0110, 0x0000_0001_0001_0001]),
        (3, [0x0000_0044_0000_00c0, 0x0000_0010_0001_0010]),
        (4, [0x0000_0100_0400_0408, 0x0000_0001_0001_0001]),
        (5, [0x0002_0080_0040_0122, 0x0000_1000_0000_0001]),
        (50, [0x0002_0080_0040_016a, 0x0000_1000_0000_0001]),
        (51, [0x0000_04c0_0000_0229, 0x0000_0010_0010_0001]),
        (52, [0x110, 0]),
        (53, [0x140, 0]),
        (54, [0x18, 0]),
        (55, [3, 0]),
    ];
    for (index, word) in expected {
        assert_eq!(words[index], word, "instruction {index}: {}", stream_a().stream[index]);
    }
}

#[test]
fn streams_agree_in_hashes_and_counters() {
    let cases = [
        (
            stream_a(),
            56,
            "c5fc0201ac8be6466e41d1de3c83688629c8e48783a35f61a31b635f88d56d89",
            "c66e214d279fa718796daf965e8cd6b5e5f5208cba409d65b04ae7d7fd4bf9f4",
            [256, 65536, 0, 8, 256, 256, 0],
        ),
        (
            stream_b(),
            143,
            "58172ee9d881e69d534b30af8c821a0acc0790241c9baf98a9b1e95f9cd86082",
            "f0709c1f13fd94a98565f63b5e568c58b53622cb5a323347c0a32a21937b39f0",
            [4096, 1_048_576, 0, 20, 1024, 4096, 192],
        ),
        (
            stream_c(),
            3366,
            "59f3fe3193f8bf4afc0d352d0406a93f15bad37ab70311b41c906d41c5477412",
            "ce1e5574b14314e719a812ad63e815d56a744b4413863a9dccd9a850d42043cd",
            [114_688, 1_179_648, 0, 1144, 50176, 451_584, 9408],
        ),
    ];
    for (case, length, stream, result, [inp, wgt, acc, uop, out, gemm, alu]) in cases {
        assert_eq!(case.stream.len(), length);
        assert_eq!(case.stream_hash(), stream);
        let expected = Counters {
            inp_load_nbytes: inp,
            wgt_load_nbytes: wgt,
            acc_load_nbytes: acc,
            uop_load_nbytes: uop,
            out_store_nbytes: out,
            gemm_counter: gemm,
            alu_counter: alu,
        };
        for mode in [Mode::Functional, Mode::Strict] {
            assert_eq!(case.run(Options { mode, ..Options::default() }), (expected, result.to_owned()), "{mode:?}");
        }
    }
    let uops = "a3a316158c751a6cbb3d281856e247d042501b8b4e77408dbdc24a9005d1b516";
    assert_eq!(sha(&stream_c().uop_bytes()), uops);
}

#[test]
fn streams_give_equal_results_under_every_schedule() {
    let case = stream_a();
    let expected = case.run(Options::default());
    for seed in 1..100 {
        assert_eq!(case.run(Options { seed, ..Options::default() }), expected, "seed {seed}");
    }
}

#[test]
fn checker_accepts_streams_and_finds_every_missing_token() {
    let config = Config::default();
    for case in [stream_a(), stream_b(), stream_c()] {
        assert_eq!(check(&config, &case.stream, &case.segments()), Ok(()));
    }
    let case = stream_a();
    let mut removed_tokens = 0;
    for index in 0..case.stream.len() {
        for flag in 0..4 {
            let mut stream = case.stream.clone();
            let deps = &mut stream[index].deps;
            let flags = [&mut deps.pop_prev, &mut deps.pop_next, &mut deps.push_prev, &mut deps.push_next];
            if std::mem::take(flags.into_iter().nth(flag).unwrap()) {
                removed_tokens += 1;
                assert!(
                    check(&config, &stream, &case.segments()).is_err(),
                    "expected a violation without flag {flag} of instruction {index}"
                );
            }
        }
    }
    assert!(removed_tokens > 60, "expected more than 60 removed tokens, found {removed_tokens}");
}

#[test]
fn checker_names_what_it_finds() {
    let config = Config::default();
    let case = stream_a();
    let violation_of = |change: &dyn Fn(&mut Vec<Insn>)| {
        let mut stream = case.stream.clone();
        change(&mut stream);
        check(&config, &stream, &case.segments()).unwrap_err().to_string()
    };
    let store = |stream: &mut Vec<Insn>, change: &dyn Fn(&mut Transfer)| {
        if let Op::Store(transfer) = &mut stream[51].op {
            change(transfer);
        }
    };
    let message = violation_of(&|stream| store(stream, &|transfer| transfer.sram_base = 2040));
    assert_eq!(message, "instruction 51: ACC: expected element indices < 2048, found 2048");
    let message = violation_of(&|stream| store(stream, &|transfer| transfer.dram_base = (A / 16) as u32));
    assert_eq!(message, "instruction 51: expected a writable buffer, found 0x100000..0x100100");
    let message = violation_of(&|stream| store(stream, &|transfer| transfer.dram_base += 1));
    assert_eq!(message, "instruction 51: expected addresses within one buffer, found 0x130010..0x130110");
    let message = violation_of(&|stream| stream[51].deps.pop_prev = false);
    assert!(message.contains("STORE reads ACC") || message.contains("COMPUTE"), "{message}");
    let message = violation_of(&|stream| assert!(stream.pop().is_some()));
    assert_eq!(message, "expected a single FINISH, at the end of the stream, found 0 in the stream");
}

#[test]
fn cycle_model_counts_overlapping_modules() {
    for profile in [Profile::Pynq, Profile::Tsim] {
        let config = Config { profile, ..Config::default() };
        let timing = cycles::time(&config, &stream_c().stream).unwrap();
        let [load, compute, store] = timing.busy;
        let longest = load.max(compute).max(store);
        assert!(timing.total >= longest && timing.total <= load + compute + store, "{timing:?}");
        assert!(compute > 451_584.0, "expected at least one cycle per matrix unit step, found {compute}");
    }
    let waiting_finish = Insn { deps: Deps { pop_next: true, ..Deps::default() }, op: Op::Finish };
    assert_eq!(cycles::time(&Config::default(), &[waiting_finish]), None);
}
