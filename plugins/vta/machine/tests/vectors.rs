//! Encodings of instructions and micro-operations, compared with the macros of VTA's own header.

use byoc_vta_machine::config::Config;
use byoc_vta_machine::isa::{Alu, AluOp, Deps, Gemm, Insn, Loops, Memory, Module, Op, Transfer, Uop};
use proptest::prelude::*;

/// Parses token flags: `p` and `n` pop from the previous and next module, `P` and `N` push to the previous and next
/// module.
fn deps(flags: &str) -> Deps {
    let has_flag = |flag| flags.contains(flag);
    Deps { pop_prev: has_flag('p'), pop_next: has_flag('n'), push_prev: has_flag('P'), push_next: has_flag('N') }
}

fn transfer(memory: Memory, sram_base: u16, dram_base: u32, [y_size, x_size, x_stride]: [u16; 3]) -> Transfer {
    Transfer { memory, sram_base, dram_base, y_size, x_size, x_stride, y_pad: [0; 2], x_pad: [0; 2] }
}

fn load(flags: &str, transfer: Transfer) -> Insn {
    Insn { deps: deps(flags), op: Op::Load(transfer) }
}

fn loops(uop_begin: u32, uop_end: u32, iterations: [u16; 2]) -> Loops {
    Loops { uop_begin, uop_end, iterations }
}

fn alu(flags: &str, op: AluOp, imm: Option<i16>, loops: Loops, dst: [u16; 2], src: [u16; 2]) -> Insn {
    let (use_imm, imm) = (imm.is_some(), imm.unwrap_or_default());
    Insn { deps: deps(flags), op: Op::Alu(Alu { reset: false, loops, dst, src, op, use_imm, imm }) }
}

fn gemm(flags: &str, is_reset: bool, loops: Loops, [dst, src, wgt]: [[u16; 2]; 3]) -> Insn {
    Insn { deps: deps(flags), op: Op::Gemm(Gemm { reset: is_reset, loops, dst, src, wgt }) }
}

fn first_revision() -> Config {
    Config { hw_ver: "0.0.1".into(), ..Config::default() }
}

fn block_32() -> Config {
    Config { log_block: 5, ..Config::default() }
}

#[test]
fn encodes_the_vectors() {
    let padded_load = Transfer { y_pad: [0, 1], x_pad: [1, 1], ..transfer(Memory::Inp, 144, 0x100B6, [8, 14, 14]) };
    let store = Insn { deps: deps("pP"), op: Op::Store(transfer(Memory::Out, 784, 0x60000, [7, 14, 28])) };
    let product = gemm("pP", false, loops(28, 154, [8, 7]), [[98, 14], [0, 16], [9, 0]]);
    let shift = alu("", AluOp::Shr, Some(8), loops(280, 281, [1, 784]), [0, 1], [0, 1]);
    let all_ones = Transfer {
        memory: Memory::Inp,
        sram_base: u16::MAX,
        dram_base: u32::MAX,
        y_size: u16::MAX,
        x_size: u16::MAX,
        x_stride: u16::MAX,
        y_pad: [15; 2],
        x_pad: [15; 2],
    };
    let default = Config::default();
    let (first_revision_config, wide_config) = (first_revision(), block_32());
    let vectors: [(Insn, &Config, u64, u64); 22] = [
        (load("", transfer(Memory::Uop, 5, 0x4000, [1, 3, 3])), &default, 0x0000_0100_0000_1400, 0x0000_0003_0003_0001),
        (load("n", padded_load), &default, 0x0000_0402_d802_4110, 0x1110_000e_000e_0008),
        (
            load("N", transfer(Memory::Wgt, 72, 0x2480, [8, 9, 144])),
            &default,
            0x0000_0092_0001_20c0,
            0x0000_0090_0009_0008,
        ),
        (
            load("pn", transfer(Memory::Acc, 1024, 0x30000, [1, 4, 4])),
            &default,
            0x0000_0c00_0010_0198,
            0x0000_0004_0004_0001,
        ),
        (
            load("", transfer(Memory::Acc8, 0, 0xABCDE, [7, 14, 28])),
            &default,
            0x0000_2af3_7800_0280,
            0x0000_001c_000e_0007,
        ),
        (store, &default, 0x0000_1800_000c_4229, 0x0000_001c_000e_0007),
        (product, &default, 0x000e_0040_1340_1c2a, 0x0000_9020_0000_7062),
        (
            gemm("nP", true, loops(0, 14, [8, 7]), [[98, 14], [0, 0], [0, 0]]),
            &default,
            0x000e_0040_01c0_00b2,
            0x0000_0000_0000_7062,
        ),
        (shift, &default, 0x0620_0008_2321_1804, 0x0008_b002_0000_0800),
        (
            alu("", AluOp::Max, Some(-127), loops(281, 282, [4, 196]), [196, 1], [196, 1]),
            &default,
            0x0188_0020_2341_1904,
            0xff81_9002_3100_08c4,
        ),
        (
            alu("", AluOp::Add, None, loops(0, 1, [4, 196]), [196, 1], [1, 0]),
            &default,
            0x0188_0020_0020_0004,
            0x0000_2000_0040_08c4,
        ),
        (
            alu("N", AluOp::Mul, Some(3), loops(8191, 8192, [16383, 1]), [1, 0], [1, 0]),
            &default,
            0x0003_fffc_001f_ff44,
            0x0003_c000_0040_0001,
        ),
        (Insn::no_op(Module::Load, deps("nN")), &default, 0x150, 0),
        (Insn::no_op(Module::Compute, deps("pn")), &default, 0x18, 0),
        (Insn::no_op(Module::Store, deps("P")), &default, 0x21, 0),
        (Insn { deps: Deps::default(), op: Op::Finish }, &default, 3, 0),
        (load("pnPN", all_ones), &default, 0x03ff_ffff_ffff_fd78, 0xffff_ffff_ffff_ffff),
        (load("n", padded_load), &first_revision_config, 0x0000_0201_6c01_2110, 0x1110_000e_000e_0008),
        (shift, &first_revision_config, 0x0620_0008_2321_1804, 0x0004_7002_0000_0800),
        (store, &first_revision_config, 0x0000_0c00_0006_2029, 0x0000_001c_000e_0007),
        (product, &wide_config, 0x000e_0040_1340_1c2a, 0x0000_0904_0000_3862),
        (shift, &wide_config, 0x0620_0008_2321_1804, 0x0000_8b00_4000_0400),
    ];
    for (index, (insn, config, word_0, word_1)) in vectors.into_iter().enumerate() {
        let words = insn.encode(config).unwrap();
        assert_eq!(words, [word_0, word_1], "vector {}: {insn}: {words:#x?}", index + 1);
        assert_eq!(Insn::decode(words, config), Ok(insn), "vector {}", index + 1);
    }
}

#[test]
fn encodes_micro_operations() {
    let default = Config::default();
    let vectors = [
        ([0, 0, 0], &default, 0u32),
        ([784, 144, 72], &default, 0x1204_8310),
        ([2047, 2047, 1023], &default, 0xffff_ffff),
        ([783, 173, 80], &default, 0x1405_6b0f),
        ([1024, 5, 0], &default, 0x0000_2c00),
        ([784, 144, 72], &block_32(), 0x0482_4310),
    ];
    for ([dst, src, wgt], config, word) in vectors {
        let uop = Uop { dst, src, wgt };
        assert_eq!(uop.encode(config).unwrap(), word);
        assert_eq!(Uop::decode(word, config), uop);
    }
    assert!(Uop { dst: 2048, src: 0, wgt: 0 }.encode(&default).is_err());
}

#[test]
fn derives_sizes_and_names() {
    let default = Config::default();
    assert_eq!(default.name(), "1x16_i8w8a32_15_15_18_17");
    let depths = |config: &Config| {
        [Memory::Uop, Memory::Inp, Memory::Wgt, Memory::Acc]
            .map(|memory| (config.log_depth(memory), config.element_bytes(memory)))
    };
    assert_eq!(depths(&default), [(13, 4), (11, 16), (10, 256), (11, 64)]);
    let batch_4 = Config {
        log_batch: 2,
        log_block: 3,
        log_inp_buff_size: 16,
        log_wgt_buff_size: 16,
        log_acc_buff_size: 18,
        ..Config::default()
    };
    assert_eq!(batch_4.name(), "4x8_i8w8a32_15_16_16_18");
    assert_eq!(depths(&batch_4), [(13, 4), (11, 32), (10, 64), (11, 128)]);
    assert_eq!(depths(&block_32()), [(13, 4), (10, 32), (8, 1024), (10, 128)]);
    assert_eq!([&default, &batch_4, &block_32()].map(Config::check), [Ok(()), Ok(()), Ok(())]);
}

#[test]
fn refuses_invalid_configurations() {
    let default = Config::default;
    let invalid = [
        (Config { log_inp_width: 2, ..default() }, "expected widths of 8, 8 and 32 bits"),
        (Config { hw_ver: "0.0.3".into(), ..default() }, "HW_VER: expected 0.0.1 or 0.0.2, found 0.0.3"),
        (Config { log_wgt_buff_size: 22, ..default() }, "a micro-operation: expected at most 32 bits, found 36"),
        (
            Config { log_block: 7, log_wgt_buff_size: 20, ..default() },
            "LOG_WGT_BUFF_SIZE: expected elements of at most 4096 bytes",
        ),
        (Config { log_acc_buff_size: 5, ..default() }, "LOG_ACC_BUFF_SIZE: expected at least two elements"),
        (Config { log_batch: 99, ..default() }, "LOG_BATCH: expected at most 24, found 99"),
    ];
    for (config, message) in invalid {
        let error = config.check().unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
    assert!(Config::from_json("{\"TARGET\": \"sim\"}").unwrap_err().to_string().contains("HW_VER"));
    let text = serde_json::to_string(&default()).unwrap();
    assert_eq!(Config::from_json(&text), Ok(default()));
}

fn configs() -> impl Strategy<Value = Config> {
    let sizes = (0u32..3, 3u32..6, 10u32..16, 10u32..17, 12u32..19, 12u32..19, any::<bool>());
    let config = sizes.prop_map(|(batch, block, uop, inp, wgt, acc, is_first_revision)| Config {
        log_batch: batch,
        log_block: block,
        log_uop_buff_size: uop,
        log_inp_buff_size: inp,
        log_wgt_buff_size: wgt,
        log_acc_buff_size: acc,
        hw_ver: if is_first_revision { "0.0.1" } else { "0.0.2" }.into(),
        ..Config::default()
    });
    config.prop_filter("a valid configuration", |config| config.check().is_ok())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn decodes_what_it_encodes(config in configs(), kind in 0..4usize, flags in 0..16u8, r in any::<[u32; 12]>()) {
        let is_set = |i: u8| flags >> i & 1 == 1;
        let deps = Deps { pop_prev: is_set(0), pop_next: is_set(1), push_prev: is_set(2), push_next: is_set(3) };
        let random_below = |i: usize, memory| (r[i] as usize % config.depth(memory)) as u16;
        let memories = [Memory::Uop, Memory::Wgt, Memory::Inp, Memory::Acc];
        let transfer = Transfer {
            memory: if kind == 1 { Memory::Out } else { memories[r[0] as usize % 4] },
            sram_base: r[1] as u16,
            dram_base: r[2],
            y_size: r[3] as u16,
            x_size: (r[4] as u16).max(1),
            x_stride: r[5] as u16,
            y_pad: [r[6] as u8 & 15, r[7] as u8 & 15],
            x_pad: [r[8] as u8 & 15, r[9] as u8 & 15],
        };
        let loops = Loops {
            uop_begin: u32::from(random_below(1, Memory::Uop)),
            uop_end: r[2] % (config.depth(Memory::Uop) as u32 + 1),
            iterations: [r[3] as u16 & 0x3fff, r[4] as u16 & 0x3fff],
        };
        let random_pair = |i: usize, memory| [random_below(i, memory), random_below(i + 1, memory)];
        let ops = [AluOp::Min, AluOp::Max, AluOp::Add, AluOp::Shr];
        let op = match kind {
            0 => Op::Load(transfer),
            1 => Op::Store(transfer),
            2 => Op::Gemm(Gemm {
                reset: r[0] & 1 == 1,
                loops,
                dst: random_pair(5, Memory::Acc),
                src: random_pair(7, Memory::Inp),
                wgt: random_pair(9, Memory::Wgt),
            }),
            _ => Op::Alu(Alu {
                reset: r[0] & 1 == 1,
                loops,
                dst: random_pair(5, Memory::Acc),
                src: random_pair(7, Memory::Acc),
                op: ops[r[10] as usize % 4],
                use_imm: r[11] & 1 == 1,
                imm: r[9] as i16,
            }),
        };
        let insn = Insn { deps, op };
        prop_assert_eq!(Insn::decode(insn.encode(&config).unwrap(), &config), Ok(insn));
    }

    #[test]
    fn decodes_or_refuses_any_bits(config in configs(), words in any::<[u64; 2]>()) {
        if let Ok(insn) = Insn::decode(words, &config) {
            prop_assert_eq!(insn.encode(&config), Ok(words));
            prop_assert!(!insn.to_string().is_empty());
        }
    }
}
