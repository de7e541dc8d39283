//! Streams at the limits of what the checker accepts. The simulators must execute every accepted stream.

use byoc_vta_machine::check::{Segment, check, check_hazards};
use byoc_vta_machine::config::Config;
use byoc_vta_machine::isa::{Alu, AluOp, Deps, Gemm, Insn, Loops, Memory, Op, Transfer};
use byoc_vta_machine::sim::{Dram, Mode, Options, run};

const UOPS: u32 = 0x1000;
const DATA: u32 = 0x2000;

fn transfer(memory: Memory, address: u32, [y_size, x_size]: [u16; 2]) -> Transfer {
    let dram_base = address / Config::default().element_bytes(memory) as u32;
    Transfer { memory, sram_base: 0, dram_base, y_size, x_size, x_stride: x_size, y_pad: [0; 2], x_pad: [0; 2] }
}

fn stream(ops: &[Op]) -> Vec<Insn> {
    ops.iter().chain([&Op::Finish]).map(|op| Insn { deps: Deps::default(), op: *op }).collect()
}

fn segments() -> [Segment; 2] {
    let uops = Segment { range: 0x1000..0x1010, writable: false, uops: Some(vec![1; 4]) };
    [uops, Segment { range: 0x2000..0x3000, writable: true, uops: None }]
}

fn violation(ops: &[Op]) -> String {
    check(&Config::default(), &stream(ops), &segments()).unwrap_err().to_string()
}

fn simulate(ops: &[Op]) -> Result<(), String> {
    let run = |mode| {
        let options = Options { mode, ..Options::default() };
        run(&Config::default(), &stream(ops), &mut Dram::new(0x3000), &options).map_err(|error| error.to_string())
    };
    run(Mode::Functional).and_then(|_| run(Mode::Strict)).map(drop)
}

/// Hardware loads one row without padding, but the simulator follows the instruction. If the two differ, the checker
/// cannot know which micro-operations the device holds.
#[test]
fn checker_rejects_micro_operations_in_several_rows() {
    let one_uop = transfer(Memory::Uop, UOPS, [1, 2]);
    assert_eq!(check(&Config::default(), &stream(&[Op::Load(one_uop)]), &segments()), Ok(()));
    let rejected_transfers = [
        (Transfer { y_size: 0, ..one_uop }, "0 rows"),
        (Transfer { y_size: 2, ..one_uop }, "2 rows"),
        (Transfer { y_pad: [1, 0], ..one_uop }, "2 rows"),
        (Transfer { x_pad: [0, 1], ..one_uop }, "1 rows of 3 elements"),
    ];
    for (transfer, expected_message) in rejected_transfers {
        let message = violation(&[Op::Load(transfer)]);
        assert!(message.starts_with("instruction 0: UOP: expected one row without padding, found "), "{message}");
        assert!(message.contains(expected_message), "{message}");
        let hazard = check_hazards(&Config::default(), &stream(&[Op::Load(transfer)]), &segments());
        assert_eq!(hazard.unwrap_err().to_string(), message);
    }
}

/// A transfer without rows accesses no element, but its base must be in bounds.
#[test]
fn checker_rejects_empty_transfers_beyond_a_memory() {
    for (limit, memory) in [(2048, Memory::Inp), (1024, Memory::Wgt), (2048, Memory::Acc), (2048, Memory::Acc8)] {
        let load = |sram_base| Op::Load(Transfer { sram_base, ..transfer(memory, DATA, [0, 1]) });
        assert_eq!(simulate(&[load(limit)]), Ok(()));
        assert_eq!(check(&Config::default(), &stream(&[load(limit)]), &segments()), Ok(()));
        let name = if memory == Memory::Acc8 { Memory::Acc } else { memory };
        let message = format!("instruction 0: {name}: expected element indices < {limit}, found {}", limit + 1);
        assert_eq!(violation(&[load(limit + 1)]), message);
        assert!(simulate(&[load(limit + 1)]).is_err());
    }
    let store = Op::Store(Transfer { sram_base: 2049, ..transfer(Memory::Out, DATA, [0, 1]) });
    assert_eq!(violation(&[store]), "instruction 0: ACC: expected element indices < 2048, found 2049");
    assert!(simulate(&[store]).is_err());
}

/// Iterations without micro-operations must take no time, because callers bound the work of a stream by its number of
/// steps.
#[test]
fn loops_without_micro_operations_take_no_time() {
    let loops = Loops { uop_begin: 1, uop_end: 1, iterations: [16383; 2] };
    assert_eq!(loops.steps(), 0);
    let gemm = Op::Gemm(Gemm { reset: false, loops, dst: [1; 2], src: [1; 2], wgt: [1; 2] });
    let alu = Op::Alu(Alu { reset: false, loops, dst: [1; 2], src: [1; 2], op: AluOp::Max, use_imm: true, imm: 0 });
    let ops = [gemm, alu].repeat(5000);
    assert_eq!(check(&Config::default(), &stream(&ops), &segments()), Ok(()));
    assert_eq!(check_hazards(&Config::default(), &stream(&ops), &segments()), Ok(()));
    assert_eq!(simulate(&ops), Ok(()));
}

#[test]
fn checker_rejects_loads_that_the_device_lacks() {
    let load = stream(&[Op::Load(transfer(Memory::Acc8, DATA, [1, 1]))]);
    let device = |acc_8bit| Config { acc_8bit: Some(acc_8bit), ..Config::default() };
    assert_eq!(check(&device(true), &load, &segments()), Ok(()));
    let message = check(&device(false), &load, &segments()).unwrap_err().to_string();
    assert_eq!(message, "instruction 0: the device cannot load bytes into accumulators (ACC_8BIT)");
}
