//! VTA instruction streams: decoding, checks and simulation of untrusted instructions on several devices.
//!
//! The checker is the reference for the simulators: a stream that the checker accepts runs to completion without
//! out-of-range accesses, and produces the same results under every module schedule.

mod input;
mod mutation;
mod seeds;

use crate::{Target, count_accepted};
use byoc::io::random::Random;
use byoc_vta_machine::check::{Segment, check, check_hazards};
use byoc_vta_machine::config::Config;
use byoc_vta_machine::cycles;
use byoc_vta_machine::isa::{Insn, Op, Uop};
use byoc_vta_machine::sim::{self, Counters, Dram, Mode, Options, SimError};
use input::Input;
use std::ops::Range;
use std::sync::OnceLock;

pub const VTA_STREAM: Target = Target {
    name: "vta_stream",
    seeds: seeds::seeds,
    hostile: crate::hostile::any,
    mutate: mutation::mutate,
    run: |bytes| run(&Input::parse(bytes)),
};

/// Address of the micro-operations in DRAM.
const UOP_ADDRESS: usize = 0x1000;

/// Addresses of the data that a stream may only read.
const READ_ONLY_RANGE: Range<usize> = 0x2000..0xb000;

/// Addresses that a stream may write.
const WRITABLE_RANGE: Range<usize> = 0xb000..0xf000;

/// Size of DRAM in bytes. The last addresses are outside all buffers.
const DRAM_BYTES: usize = 0x10000;

/// Maximum number of steps in a stream that is checked and simulated, which then takes a few milliseconds.
const MAX_STEPS: u64 = 1 << 16;

/// Maximum number of instructions in a stream.
const MAX_INSTRUCTIONS: usize = 2048;

fn run(input: &Input) -> Result<(), String> {
    let config = input.config();
    config.check().map_err(|error| format!("expected a valid device, found {config:?}: {error}"))?;
    for &word in &input.uops {
        check_uop(&config, word)?;
    }
    let mut stream = Vec::new();
    for &words in input.words.iter().take(MAX_INSTRUCTIONS) {
        stream.extend(decode(&config, words)?);
    }
    if stream.iter().map(steps).fold(0, u64::saturating_add) > MAX_STEPS {
        return Ok(());
    }
    let case = Case { config, uops: &input.uops, stream };
    let segments = case.segments();
    let safety_result = check(&case.config, &case.stream, &segments);
    let hazard = check_hazards(&case.config, &case.stream, &segments);
    let timing = cycles::time(&case.config, &case.stream);
    if let Some(violation) = [&safety_result, &hazard].into_iter().find_map(|result| result.as_ref().err())
        && violation.to_string().is_empty()
    {
        return Err("expected a violation with a message, found an empty message".into());
    }
    if safety_result.is_err() {
        return case.check_end(timing.is_some());
    }
    count_accepted();
    match timing {
        Some(timing) if timing.total.is_finite() && timing.ends.iter().all(|end| *end <= timing.total) => {}
        timing => {
            let total = timing.map_or_else(|| "none".to_owned(), |timing| timing.total.to_string());
            return Err(format!("accepted stream: expected a finite time in cycles, found {total}"));
        }
    }
    match hazard {
        Err(violation) if !violation.message.contains("steps between accumulations") => {
            Err(format!("expected only hazards in an accepted stream, found {violation}"))
        }
        _ => case.check_results(),
    }
}

/// Decodes an instruction, and checks that encoding it produces the same words.
fn decode(config: &Config, words: [u64; 2]) -> Result<Option<Insn>, String> {
    let insn = match Insn::decode(words, config) {
        Ok(insn) => insn,
        Err(error) if error.to_string().is_empty() => return Err(format!("{error:?}: expected a message, found none")),
        Err(_) => return Ok(None),
    };
    match insn.encode(config) {
        Ok(encoded_insn) if encoded_insn == words && !insn.to_string().is_empty() => Ok(Some(insn)),
        Ok(encoded_insn) => Err(format!("{insn}: expected the encoding {words:x?}, found {encoded_insn:x?}")),
        Err(error) => Err(format!("{insn}: cannot encode the instruction as {words:x?}: {error}")),
    }
}

/// Checks that the fields of a micro-operation survive encoding. Bits outside the fields are lost.
fn check_uop(config: &Config, word: u32) -> Result<(), String> {
    let uop = Uop::decode(word, config);
    match uop.encode(config) {
        Ok(encoded_uop) if Uop::decode(encoded_uop, config) == uop => Ok(()),
        Ok(encoded_uop) => {
            Err(format!("micro-operation {word:#010x}: expected equal fields, found {encoded_uop:#010x}"))
        }
        Err(error) => Err(format!("micro-operation {word:#010x} cannot be encoded: {error}")),
    }
}

/// Returns the number of steps of an instruction; for a transfer, the number of elements.
fn steps(insn: &Insn) -> u64 {
    match &insn.op {
        Op::Gemm(gemm) => gemm.loops.steps(),
        Op::Alu(alu) => alu.loops.steps(),
        Op::Load(transfer) | Op::Store(transfer) => (transfer.rows() * transfer.row_length()) as u64,
        Op::Finish => 0,
    }
}

/// Stream for a device, with the micro-operations in DRAM.
struct Case<'a> {
    config: Config,
    uops: &'a [u32],
    stream: Vec<Insn>,
}

impl Case<'_> {
    fn segments(&self) -> [Segment; 3] {
        let uops = Segment {
            range: UOP_ADDRESS..UOP_ADDRESS + 4 * self.uops.len(),
            writable: false,
            uops: Some(self.uops.to_vec()),
        };
        let data = Segment { range: READ_ONLY_RANGE, writable: false, uops: None };
        [uops, data, Segment { range: WRITABLE_RANGE, writable: true, uops: None }]
    }

    fn dram(&self) -> Result<Dram, String> {
        let mut dram = Dram::new(DRAM_BYTES);
        dram.write(0, DRAM_BYTES)?.copy_from_slice(pattern());
        for (word, slot) in self.uops.iter().zip(dram.write(UOP_ADDRESS, 4 * self.uops.len())?.chunks_exact_mut(4)) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        Ok(dram)
    }

    /// Simulates the stream, and returns the contents of DRAM with the counters.
    fn simulate(&self, options: &Options) -> Result<Result<(Vec<u8>, Counters), SimError>, String> {
        let mut dram = self.dram()?;
        let options = Options { max_instructions: self.stream.len() as u64, ..*options };
        match sim::run(&self.config, &self.stream, &mut dram, &options) {
            Err(error) if error.message.contains("executed instructions") => {
                Err(format!("expected at most one execution of each instruction, found more: {error}"))
            }
            Err(error) => Ok(Err(error)),
            Ok(counters) => Ok(Ok((dram.read(0, DRAM_BYTES)?.to_vec(), counters))),
        }
    }

    /// Checks that the simulation of a rejected stream ends, and deadlocks only if the tokens do not suffice.
    fn check_end(&self, tokens_suffice: bool) -> Result<(), String> {
        for options in [options(Mode::Functional, 0), options(Mode::Strict, 1)] {
            for is_serial in [false, true] {
                let outcome = self.simulate(&Options { serial: is_serial, ..options })?;
                let has_deadlock = outcome.is_err_and(|error| error.instruction.is_none());
                if has_deadlock && tokens_suffice && !is_serial {
                    return Err("expected completion as in the cycle model, found a deadlock".into());
                }
            }
        }
        Ok(())
    }

    /// Checks that an accepted stream produces the same results under several schedules and writes only to permitted
    /// addresses.
    fn check_results(&self) -> Result<(), String> {
        let initial_dram = self.dram()?;
        for (mode, name) in [(Mode::Functional, "functional mode"), (Mode::Strict, "strict mode")] {
            let expected = self.simulate(&options(mode, 0))?;
            match &expected {
                Ok((final_dram, _)) => {
                    for range in [0..WRITABLE_RANGE.start, WRITABLE_RANGE.end..DRAM_BYTES] {
                        if final_dram[range.clone()] != *initial_dram.read(range.start, range.len())? {
                            return Err(format!("{name}: expected no write to {range:x?}, found one"));
                        }
                    }
                }
                Err(error) if mode == Mode::Strict && is_hardware_rule(error) => {}
                Err(error) => return Err(format!("{name}: an accepted stream failed: {error}")),
            }
            for seed in 1..3 {
                let actual = self.simulate(&options(mode, seed))?;
                if actual.as_ref().ok() != expected.as_ref().ok() {
                    return Err(format!(
                        "{name}: expected equal results under schedules 0 and {seed}, found different results"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Tests for an error that depends on more than addresses and tokens, the only properties that the checker examines.
fn is_hardware_rule(error: &SimError) -> bool {
    ["expected no padding", "expected the result of a computation"].iter().any(|rule| error.message.contains(rule))
}

fn options(mode: Mode, seed: u64) -> Options {
    Options { mode, seed, ..Options::default() }
}

/// Returns random DRAM contents.
fn pattern() -> &'static [u8] {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    PATTERN.get_or_init(|| {
        let mut random = Random::new(1);
        (0..DRAM_BYTES).map(|_| random.next_u64() as u8).collect()
    })
}
