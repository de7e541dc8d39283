//! Mutations of decoded instructions, most of which keep the tokens of a stream balanced.

use super::input::Input;
use crate::{mutate as general, random_below, random_item};
use byoc::io::random::Random;
use byoc_vta_machine::config::Config;
use byoc_vta_machine::isa::{Alu, AluOp, Deps, Gemm, Insn, Loops, Memory, Module, Op, Transfer, Uop};

/// Applies one to three mutations.
pub fn mutate(seed: &[u8], random: &mut Random) -> Vec<u8> {
    if random_below(random, 16) == 0 {
        return general::bytes(seed, random, &[]);
    }
    let mut input = Input::parse(seed);
    let config = input.config();
    for _ in 0..=random_below(random, 3) {
        mutate_once(&mut input, &config, random);
    }
    input.to_bytes()
}

fn mutate_once(input: &mut Input, config: &Config, random: &mut Random) {
    if input.words.is_empty() {
        input.words.extend(new_insn(random).encode(config));
        return;
    }
    let index = random_below(random, input.words.len());
    match random_below(random, 16) {
        0 => change(input, config, index, |insn| {
            let flag = random_item(random, &FLAGS);
            *flag(&mut insn.deps) ^= true;
        }),
        1 | 2 => move_token(input, config, index, random),
        3..9 => change(input, config, index, |insn| mutate_fields(&mut insn.op, random)),
        9 => drop(input.words.remove(index)),
        10 => input
            .words
            .extend_from_within(index..(index + 4).min(index + 1 + random_below(random, 4)).min(input.words.len())),
        11 => {
            let other_index = random_below(random, input.words.len());
            input.words.swap(index, other_index);
        }
        12 => {
            if let Ok(words) = new_insn(random).encode(config) {
                input.words.insert(index, words);
            }
        }
        13 => mutate_uop(input, config, random),
        14 => input.device[random_below(random, 2)] ^= 1 << random_below(random, 8),
        _ => input.words[index][random_below(random, 2)] ^= 1 << random_below(random, 64),
    }
}

/// Token flags of an instruction.
const FLAGS: [fn(&mut Deps) -> &mut bool; 4] =
    [|deps| &mut deps.pop_prev, |deps| &mut deps.pop_next, |deps| &mut deps.push_prev, |deps| &mut deps.push_next];

/// Changes the instruction at index `index`, if it can be decoded and the changed fields can be encoded.
fn change(input: &mut Input, config: &Config, index: usize, f: impl FnOnce(&mut Insn)) {
    let Ok(mut insn) = Insn::decode(input.words[index], config) else { return };
    f(&mut insn);
    if let Ok(words) = insn.encode(config) {
        input.words[index] = words;
    }
}

/// Moves a token flag to the next instruction of the same module that does not have it.
fn move_token(input: &mut Input, config: &Config, index: usize, random: &mut Random) {
    let Ok(insn) = Insn::decode(input.words[index], config) else { return };
    let flag = random_item(random, &FLAGS);
    if !*flag(&mut insn.deps.clone()) {
        return;
    }
    let is_free = |words: &[u64; 2]| {
        let result = Insn::decode(*words, config);
        result.is_ok_and(|mut result| result.module() == insn.module() && !*flag(&mut result.deps))
    };
    if let Some(distance) = input.words[index..].iter().position(is_free) {
        change(input, config, index, |insn| *flag(&mut insn.deps) = false);
        change(input, config, index + distance, |insn| *flag(&mut insn.deps) = true);
    }
}

fn mutate_fields(op: &mut Op, random: &mut Random) {
    match op {
        Op::Load(transfer) | Op::Store(transfer) => mutate_transfer(transfer, random),
        Op::Gemm(gemm) => mutate_gemm(gemm, random),
        Op::Alu(alu) => mutate_alu(alu, random),
        Op::Finish => {}
    }
}

fn mutate_transfer(transfer: &mut Transfer, random: &mut Random) {
    match random_below(random, 9) {
        0 => transfer.memory = *random_item(random, &MEMORIES),
        1 => change_number(&mut transfer.sram_base, random),
        2 | 3 => change_number(&mut transfer.dram_base, random),
        4 => change_number(&mut transfer.y_size, random),
        5 => change_number(&mut transfer.x_size, random),
        6 => change_number(&mut transfer.x_stride, random),
        7 => change_number(&mut transfer.y_pad[random_below(random, 2)], random),
        _ => change_number(&mut transfer.x_pad[random_below(random, 2)], random),
    }
}

fn mutate_loops(loops: &mut Loops, random: &mut Random) {
    match random_below(random, 4) {
        0 => change_number(&mut loops.uop_begin, random),
        1 => change_number(&mut loops.uop_end, random),
        2 if random_below(random, 4) == 0 => loops.uop_end = loops.uop_begin,
        _ => change_number(&mut loops.iterations[random_below(random, 2)], random),
    }
}

fn mutate_gemm(gemm: &mut Gemm, random: &mut Random) {
    match random_below(random, 8) {
        0 => gemm.reset ^= true,
        1..4 => mutate_loops(&mut gemm.loops, random),
        4 | 5 => change_number(&mut gemm.dst[random_below(random, 2)], random),
        6 => change_number(&mut gemm.src[random_below(random, 2)], random),
        _ => change_number(&mut gemm.wgt[random_below(random, 2)], random),
    }
}

fn mutate_alu(alu: &mut Alu, random: &mut Random) {
    match random_below(random, 8) {
        0 => alu.op = *random_item(random, &[AluOp::Min, AluOp::Max, AluOp::Add, AluOp::Shr, AluOp::Mul]),
        1 => alu.use_imm ^= true,
        2 => alu.imm = random.next_u64() as i16,
        3 | 4 => mutate_loops(&mut alu.loops, random),
        5 | 6 => change_number(&mut alu.dst[random_below(random, 2)], random),
        _ => change_number(&mut alu.src[random_below(random, 2)], random),
    }
}

/// Values at or near the limits of fields.
const LIMITS: [u64; 7] = [0, 0, 1, 2, 15, 16383, 65535];

/// Replaces a field value with a nearby value, a limit or a random value, unless the new value is out of range for the
/// type.
fn change_number<T: Copy + Into<u64> + TryFrom<u64>>(number: &mut T, random: &mut Random) {
    let old_value: u64 = (*number).into();
    let shift = random_below(random, 17);
    let new_value = match random_below(random, 8) {
        0 | 1 => old_value + 1,
        2 | 3 => old_value.saturating_sub(1),
        4 => old_value * 2,
        5 => old_value / 2,
        6 => *random_item(random, &LIMITS),
        _ => random.next_u64() & ((1 << shift) - 1),
    };
    if let Ok(new_value) = T::try_from(new_value) {
        *number = new_value;
    }
}

/// Changes a field of a micro-operation.
fn mutate_uop(input: &mut Input, config: &Config, random: &mut Random) {
    if input.uops.is_empty() {
        return input.uops.push(0);
    }
    let index = random_below(random, input.uops.len());
    let mut uop = Uop::decode(input.uops[index], config);
    change_number([&mut uop.dst, &mut uop.src, &mut uop.wgt][random_below(random, 3)], random);
    if let Ok(word) = uop.encode(config) {
        input.uops[index] = word;
    }
}

const MEMORIES: [Memory; 6] = [Memory::Uop, Memory::Wgt, Memory::Inp, Memory::Acc, Memory::Out, Memory::Acc8];

/// Returns a no-op with one token flag, or a random matrix instruction.
fn new_insn(random: &mut Random) -> Insn {
    let mut deps = Deps::default();
    *random_item(random, &FLAGS)(&mut deps) = true;
    if random_below(random, 4) > 0 {
        return Insn::no_op(*random_item(random, &[Module::Load, Module::Compute, Module::Store]), deps);
    }
    let loops = Loops { uop_begin: 0, uop_end: 1, iterations: [1, 1] };
    let mut gemm = Gemm { reset: false, loops, dst: [0; 2], src: [0; 2], wgt: [0; 2] };
    mutate_gemm(&mut gemm, random);
    Insn { deps: Deps::default(), op: Op::Gemm(gemm) }
}
