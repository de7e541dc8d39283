//! Edge cases, with expected results from VTA's own functional simulator.

use byoc_vta_machine::config::Config;
use byoc_vta_machine::isa::{Alu, AluOp, Deps, Gemm, Insn, Loops, Memory, Op, Transfer};
use byoc_vta_machine::sim::{Dram, Mode, Options, SimError, run};

const DATA: u32 = 0x1000;
const RESULT: u32 = 0x4000;
const UOPS: u32 = 0x8000;

fn transfer(memory: Memory, dram: u32, x_size: u16) -> Transfer {
    let dram_base = dram / Config::default().element_bytes(memory) as u32;
    Transfer { memory, sram_base: 0, dram_base, y_size: 1, x_size, x_stride: x_size, y_pad: [0; 2], x_pad: [0; 2] }
}

fn insn(op: Op) -> Insn {
    Insn { deps: Deps::default(), op }
}

/// Appends FINISH, and adds a token that the first store pops and the instruction before it pushes.
fn sequence(mut ops: Vec<Op>) -> Vec<Insn> {
    let first_store = ops.iter().position(|op| matches!(op, Op::Store(_))).unwrap_or(ops.len());
    ops.push(Op::Finish);
    let mut insns: Vec<Insn> = ops.into_iter().map(insn).collect();
    if first_store > 0 && first_store + 1 < insns.len() {
        insns[first_store - 1].deps.push_next = true;
        insns[first_store].deps.pop_prev = true;
    }
    insns
}

const ONE: Loops = Loops { uop_begin: 0, uop_end: 1, iterations: [1, 1] };

fn alu(op: AluOp, imm: Option<i16>) -> Op {
    let (use_imm, imm) = (imm.is_some(), imm.unwrap_or_default());
    Op::Alu(Alu { reset: false, loops: ONE, dst: [0; 2], src: [0; 2], op, use_imm, imm })
}

fn to_bytes(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Runs the instructions on the data, and returns the result bytes.
fn run_on(data: &[u8], ops: Vec<Op>, count: usize) -> Result<Vec<i8>, SimError> {
    let mut dram = Dram::new(0x10000);
    dram.write(DATA as usize, data.len()).unwrap().copy_from_slice(data);
    run(&Config::default(), &sequence(ops), &mut dram, &Options::default())?;
    Ok(dram.read(RESULT as usize, count).unwrap().iter().map(|byte| *byte as i8).collect())
}

const LANES: [i32; 16] = [0, 1, -1, 127, 128, -128, -129, 255, 256, -256, 32767, -32768, i32::MAX, i32::MIN, 300, -5];

#[test]
fn vector_operations_agree() {
    let load = Op::Load(transfer(Memory::Acc, DATA, 1));
    let uop = Op::Load(transfer(Memory::Uop, UOPS, 1));
    let store = Op::Store(transfer(Memory::Out, RESULT, 1));
    let table: [(AluOp, i16, [i8; 16]); 8] = [
        (AluOp::Shr, 0, [0, 1, -1, 127, -128, -128, 127, -1, 0, 0, -1, 0, -1, 0, 44, -5]),
        (AluOp::Shr, 1, [0, 0, -1, 63, 64, -64, -65, 127, -128, -128, -1, 0, -1, 0, -106, -3]),
        (AluOp::Shr, -2, [0, 4, -4, -4, 0, 0, -4, -4, 0, 0, -4, 0, -4, 0, -80, -20]),
        (AluOp::Shr, 15, [0, 0, -1, 0, 0, -1, -1, 0, 0, -1, 0, -1, -1, 0, 0, -1]),
        (AluOp::Add, 1, [1, 2, 0, -128, -127, -127, -128, 0, 1, 1, 0, 1, 0, 1, 45, -4]),
        (AluOp::Max, -1, [0, 1, -1, 127, -128, -1, -1, -1, 0, -1, -1, -1, -1, -1, 44, -1]),
        (AluOp::Min, 127, [0, 1, -1, 127, 127, -128, 127, 127, 127, 0, 127, 0, 127, 0, 127, -5]),
        (AluOp::Mul, -3, [0, -3, 3, -125, -128, -128, -125, 3, 0, 0, 3, 0, 3, 0, 124, 15]),
    ];
    for (op, imm, bytes) in table {
        let actual = run_on(&to_bytes(&LANES), vec![load, uop, alu(op, Some(imm)), store], 16).unwrap();
        assert_eq!(actual, bytes, "{op:?} {imm}");
    }
}

#[test]
fn tensor_shift_takes_its_amounts_from_an_accumulator() {
    let mut data = to_bytes(&[-100; 16]);
    data.extend(to_bytes(&(-4..12).collect::<Vec<i32>>()));
    let shift = Op::Alu(Alu {
        reset: false,
        loops: Loops { iterations: [1, 1], ..ONE },
        dst: [0; 2],
        src: [0; 2],
        op: AluOp::Shr,
        use_imm: false,
        imm: 0,
    });
    // The micro-operation shifts element 0 by element 1.
    let mut dram = Dram::new(0x10000);
    dram.write(DATA as usize, data.len()).unwrap().copy_from_slice(&data);
    dram.write(UOPS as usize, 4).unwrap().copy_from_slice(&(1u32 << 11).to_le_bytes());
    let ops = vec![
        Op::Load(transfer(Memory::Acc, DATA, 2)),
        Op::Load(transfer(Memory::Uop, UOPS, 1)),
        shift,
        Op::Store(transfer(Memory::Out, RESULT, 1)),
    ];
    run(&Config::default(), &sequence(ops), &mut dram, &Options::default()).unwrap();
    let actual: Vec<i8> = dram.read(RESULT as usize, 16).unwrap().iter().map(|byte| *byte as i8).collect();
    assert_eq!(actual, [-64, -32, 112, 56, -100, -50, -25, -13, -7, -4, -2, -1, -1, -1, -1, -1]);
}

/// Multiplies each activation element by the identity matrix, so the result is the data that the load has written.
#[test]
fn padded_load_surrounds_rows_with_zeros() {
    let config = Config::default();
    let mut dram = Dram::new(0x10000);
    for element in 0..16 {
        dram.write(DATA as usize + 16 * element, 16).unwrap().fill(element as u8 + 1);
    }
    for lane in 0..16 {
        dram.write(0x2000 + 17 * lane, 1).unwrap()[0] = 1;
    }
    let padded_load = Transfer {
        dram_base: DATA / 16 + 5,
        y_size: 2,
        x_size: 3,
        x_stride: 4,
        y_pad: [1, 1],
        x_pad: [1, 2],
        ..transfer(Memory::Inp, DATA, 3)
    };
    let product =
        |reset| Gemm { reset, loops: Loops { iterations: [1, 24], ..ONE }, dst: [0, 1], src: [0, 1], wgt: [0; 2] };
    let mut stream: Vec<Insn> = [
        Op::Load(padded_load),
        Op::Load(transfer(Memory::Wgt, 0x2000, 1)),
        Op::Load(transfer(Memory::Uop, UOPS, 1)),
        Op::Gemm(product(true)),
        Op::Gemm(product(false)),
        Op::Store(transfer(Memory::Out, RESULT, 24)),
        Op::Finish,
    ]
    .map(insn)
    .to_vec();
    stream[1].deps.push_next = true;
    stream[4].deps = Deps { pop_prev: true, push_next: true, ..Deps::default() };
    stream[5].deps.pop_prev = true;
    let counters = run(&config, &stream, &mut dram, &Options::default()).unwrap();
    let rows: Vec<u8> = dram.read(RESULT as usize, 24 * 16).unwrap().iter().step_by(16).copied().collect();
    let expected = [[0; 6], [0, 6, 7, 8, 0, 0], [0, 10, 11, 12, 0, 0], [0; 6]].concat();
    assert_eq!(rows, expected);
    assert_eq!((counters.inp_load_nbytes, counters.gemm_counter), (96, 24));
}

#[test]
fn loads_accumulators_from_bytes() {
    let bytes: Vec<u8> = (-16i8..16).map(|value| value as u8).collect();
    let load = Transfer { dram_base: DATA / 16, ..transfer(Memory::Acc8, DATA, 2) };
    let shift = Op::Alu(Alu {
        reset: false,
        loops: Loops { iterations: [1, 2], ..ONE },
        dst: [0, 1],
        src: [0; 2],
        op: AluOp::Shr,
        use_imm: true,
        imm: -1,
    });
    let ops = vec![
        Op::Load(load),
        Op::Load(transfer(Memory::Uop, UOPS, 1)),
        shift,
        Op::Store(transfer(Memory::Out, RESULT, 2)),
    ];
    let actual = run_on(&bytes, ops, 32).unwrap();
    assert_eq!(actual, (-16i8..16).map(|value| 2 * value).collect::<Vec<_>>());
}

#[test]
fn sums_wrap() {
    let mut dram = Dram::new(0x10000);
    dram.write(DATA as usize, 64).unwrap().copy_from_slice(&to_bytes(&[i32::MAX; 16]));
    dram.write(0x2000, 16).unwrap()[0] = 1;
    for output in 0..16 {
        dram.write(0x3000 + 16 * output, 1).unwrap()[0] = 1;
    }
    let gemm = Gemm { reset: false, loops: ONE, dst: [0; 2], src: [0; 2], wgt: [0; 2] };
    let mut stream: Vec<Insn> = [
        Op::Load(transfer(Memory::Inp, 0x2000, 1)),
        Op::Load(transfer(Memory::Wgt, 0x3000, 1)),
        Op::Load(transfer(Memory::Acc, DATA, 1)),
        Op::Load(transfer(Memory::Uop, UOPS, 1)),
        Op::Gemm(gemm),
        alu(AluOp::Shr, Some(15)),
        alu(AluOp::Shr, Some(9)),
        Op::Store(transfer(Memory::Out, RESULT, 1)),
        Op::Finish,
    ]
    .map(insn)
    .to_vec();
    stream[1].deps.push_next = true;
    stream[4].deps.pop_prev = true;
    stream[6].deps.push_next = true;
    stream[7].deps.pop_prev = true;
    for mode in [Mode::Functional, Mode::Strict] {
        run(&Config::default(), &stream, &mut dram, &Options { mode, ..Options::default() }).unwrap();
        assert_eq!(dram.read(RESULT as usize, 1).unwrap()[0] as i8, -128, "{mode:?}");
    }
}

#[test]
fn byte_planes_are_the_integers() {
    let load = Op::Load(transfer(Memory::Acc, DATA, 1));
    let uop = Op::Load(transfer(Memory::Uop, UOPS, 1));
    let mut stream = vec![insn(load), insn(uop)];
    for plane in 0..4u32 {
        stream.push(insn(alu(AluOp::Shr, Some(if plane == 0 { 0 } else { 8 }))));
        let last_index = stream.len() - 1;
        stream[last_index].deps = Deps { push_next: true, pop_next: plane > 0, ..Deps::default() };
        let store = Op::Store(transfer(Memory::Out, RESULT + 16 * plane, 1));
        stream.push(Insn { deps: Deps { pop_prev: true, push_prev: plane < 3, ..Deps::default() }, op: store });
    }
    stream.push(insn(Op::Finish));
    let mut dram = Dram::new(0x10000);
    dram.write(DATA as usize, 64).unwrap().copy_from_slice(&to_bytes(&LANES));
    run(&Config::default(), &stream, &mut dram, &Options { mode: Mode::Strict, ..Options::default() }).unwrap();
    let planes = dram.read(RESULT as usize, 64).unwrap();
    let integers: Vec<i32> = (0..16)
        .map(|lane| i32::from_le_bytes([planes[lane], planes[16 + lane], planes[32 + lane], planes[48 + lane]]))
        .collect();
    assert_eq!(integers, LANES);
}

#[test]
fn reports_errors_with_the_instruction() {
    let load_beyond_memory = Transfer { sram_base: 2047, ..transfer(Memory::Inp, DATA, 2) };
    let error = run_on(&[], vec![Op::Load(load_beyond_memory)], 0).unwrap_err();
    assert_eq!(error.to_string(), "instruction 0: INP: expected element indices < 2048, found 2047 to 2048");
    let load_beyond_dram = Transfer { dram_base: u32::MAX, ..transfer(Memory::Inp, DATA, 1) };
    let error = run_on(&[], vec![Op::Load(load_beyond_dram)], 0).unwrap_err();
    assert!(error.to_string().starts_with("instruction 0: expected DRAM addresses < 0x10000"), "{error}");
    let waiting_finish = Insn { deps: Deps { pop_prev: true, ..Deps::default() }, op: Op::Finish };
    let error = run(&Config::default(), &[waiting_finish], &mut Dram::new(16), &Options::default()).unwrap_err();
    assert!(error.to_string().starts_with("deadlock: COMPUTE waits at 0: FINISH pop_prev; tokens: LOAD to COMPUTE 0"));
    let unwritten_store =
        sequence(vec![Op::Load(transfer(Memory::Acc, DATA, 1)), Op::Store(transfer(Memory::Out, RESULT, 1))]);
    let options = Options { mode: Mode::Strict, ..Options::default() };
    let error = run(&Config::default(), &unwritten_store, &mut Dram::new(0x10000), &options).unwrap_err();
    assert_eq!(
        error.to_string(),
        "instruction 1: OUT[0]: expected the result of a computation, found an unwritten element"
    );
}
