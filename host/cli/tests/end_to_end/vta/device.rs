//! VTA device: C programs, drivers, and corrupt or foreign device programs.

use super::Fixture;
use crate::{CommandOutput, byoc, command, to_command_output};
use byoc_test_support::artifact::Entries;
use byoc_test_support::workspace;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles C files against the driver header.
fn compile(flags: &[&str], sources: &[&Path], target: &Path) {
    let include = workspace().join("plugins/vta/include");
    let mut cc = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()));
    cc.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", "-I"]).arg(include).args(flags);
    assert!(cc.arg("-o").arg(target).args(sources).status().unwrap().success(), "{sources:?}");
}

fn driver_source() -> PathBuf {
    workspace().join("plugins/vta/samples/driver.c")
}

/// Builds the sample driver, whose simulator is independent of the plugin's simulator.
fn sample_driver(fixture: &Fixture) -> PathBuf {
    let driver = fixture.temp_dir.path().join("libdriver.so");
    compile(&["-shared", "-fPIC"], &[&driver_source()], &driver);
    driver
}

fn run_with(fixture: &Fixture, model: &str, variables: &[(&str, &Path)]) -> CommandOutput {
    let output = fixture.path("device.npz");
    let args = ["run", model, "--input", "image=random:5", "--dim", "batch=4", "--output", &output];
    to_command_output(command(fixture.args(&args)).envs(variables.iter().copied()).output().unwrap())
}

/// Runs the same artifact in the plugin's simulator and with the sample driver.
#[test]
fn sample_driver_gives_the_same_bits() {
    let fixture = Fixture::new();
    let (model, driver, artifact) = (fixture.digits(), sample_driver(&fixture), fixture.path("digits.byoc"));
    byoc(fixture.args(&["compile", &model, "--dim", "batch=4", "-o", &artifact])).ok();
    let dir = fixture.plugins.path().display().to_string();
    let output = fixture.path("device.npz");
    let args = ["run", &artifact, "--plugin-dir", &dir, "--input", "image=random:5", "--output", &output];
    let run = |variables: &[(&str, &Path)]| {
        let run_output = to_command_output(command(args).envs(variables.iter().copied()).output().unwrap()).ok();
        (std::fs::read(&output).unwrap(), run_output.err)
    };
    let (simulated, host_result) = run(&[]);
    let (device_result, log) = run(&[("VTA_DRIVER", &driver), ("VTA_SAMPLE_LOG", Path::new("1"))]);
    assert!(
        log.contains("gemm_counter") && !host_result.contains("gemm_counter"),
        "expected gemm_counter in the driver log only; driver log: {log}"
    );
    assert_eq!(device_result, simulated);
    assert_eq!(device_result, fixture.expected(&model, &["--input", "image=random:5", "--dim", "batch=4"]));
}

#[test]
fn reports_invalid_drivers() {
    let fixture = Fixture::new();
    let model = fixture.digits();
    let text = std::fs::read_to_string(driver_source()).unwrap();
    let (source, half_driver) = (fixture.path("half.c"), fixture.temp_dir.path().join("half.so"));
    std::fs::write(&source, text.replace("VTAFlushCache(", "VTAFlush(")).unwrap();
    compile(&["-shared", "-fPIC", "-Wno-missing-prototypes"], &[Path::new(&source)], &half_driver);
    run_with(&fixture, &model, &[("VTA_DRIVER", &half_driver)])
        .fails_with("E0406")
        .stderr_contains(&["half.so (VTA_DRIVER)", "missing functions: VTAFlushCache"]);
    let driver = sample_driver(&fixture);
    let expected = fixture.expected(&model, &["--input", "image=random:5", "--dim", "batch=4"]);
    for (failure, message) in
        [("error", "VTADeviceRun: expected 0, found 1"), ("hang", "VTADeviceRun: no response within")]
    {
        run_with(&fixture, &model, &[("VTA_DRIVER", &driver), ("VTA_SAMPLE_FAIL", Path::new(failure))])
            .ok()
            .stderr_contains(&["the device of vta is lost", "run on the host from now on", message]);
        assert!(
            std::fs::read(fixture.path("device.npz")).unwrap() == expected,
            "{failure}: expected the results of the host"
        );
    }
}

#[test]
fn programs_in_c_check_their_results() {
    let fixture = Fixture::new();
    let model = fixture.digits();
    let program = byoc(fixture.args(&["source", &model, "--dim", "batch=1"])).ok().out;
    let (source, binary) = (fixture.path("digits.c"), fixture.temp_dir.path().join("digits"));
    std::fs::write(&source, program).unwrap();
    compile(&["-Wpedantic"], &[Path::new(&source), &driver_source()], &binary);
    let output = to_command_output(Command::new(&binary).output().unwrap()).ok();
    assert!(output.out.contains("expected hash"), "{}", output.out);
    // A changed weight changes the result, which the C program detects.
    let text = std::fs::read_to_string(&source).unwrap();
    let comment = text.find("weights of constant").unwrap();
    let brace = comment + text[comment..].find('{').unwrap() + 1;
    let value_start = brace + text[brace..].find(|c: char| c.is_ascii_digit()).unwrap();
    let digits = text[value_start..].find(',').unwrap();
    let value: u8 = text[value_start..value_start + digits].parse().unwrap();
    let edited_source = format!("{}{}{}", &text[..value_start], value.wrapping_add(64), &text[value_start + digits..]);
    std::fs::write(&source, edited_source).unwrap();
    compile(&[], &[Path::new(&source), &driver_source()], &binary);
    assert_eq!(to_command_output(Command::new(&binary).output().unwrap()).code, 1);
}

#[test]
fn inspect_disassembles_the_stream() {
    let fixture = Fixture::new();
    let (model, artifact) = (fixture.digits(), fixture.path("digits.byoc"));
    byoc(fixture.args(&["compile", &model, "--dim", "batch=1", "-o", &artifact])).ok();
    let dir = fixture.plugins.path().display().to_string();
    let summary = byoc(["inspect", &artifact, "--plugin-dir", &dir]).ok().out;
    for part in [
        "layer 0: qnn.conv2d, nn.bias_add, qnn.requantize, nn.relu (from",
        "tile 8x8",
        "predicted cycles",
        "more instructions",
    ] {
        assert!(summary.contains(part), "expected {part} in\n{summary}");
    }
    let listing = byoc(["inspect", &artifact, "--plugin-dir", &dir, "--listing"]).ok().out;
    for part in ["GEMM uop", "LOAD WGT[0]", "STORE OUT", "FINISH"] {
        assert!(listing.contains(part), "expected {part} in\n{listing}");
    }
    assert!(!listing.contains("more instructions") && listing.lines().count() > summary.lines().count());
}

#[test]
fn other_device_runs_on_host_with_warning() {
    let fixture = Fixture::new();
    let (model, artifact) = (fixture.digits(), fixture.path("digits.byoc"));
    byoc(fixture.args(&["compile", &model, "--dim", "batch=1", "-o", &artifact])).ok();
    fixture.set_device(&[("LOG_BLOCK", 5)]);
    let dir = fixture.plugins.path().display().to_string();
    let args = ["run", &artifact, "--plugin-dir", &dir, "--input", "image=random:1", "--output"];
    let output = fixture.path("device.npz");
    byoc(args.iter().chain(&[output.as_str()])).ok().stderr_contains(&[
        "expected a program for the device 1x32",
        "found one for 1x16",
        "runs on the host instead",
    ]);
    let expected = fixture.expected(&model, &["--input", "image=random:1", "--dim", "batch=1"]);
    assert_eq!(std::fs::read(output).unwrap(), expected);
}

#[test]
fn reports_device_file_that_does_not_fit_the_instructions() {
    let fixture = Fixture::new();
    let listing_of = || byoc(["plugins", "--plugin-dir", &fixture.plugins.path().display().to_string()]).ok().out;
    for (change, message) in [
        (("LOG_BLOCK", 9), "LOG_WGT_BUFF_SIZE: expected at least two elements"),
        (("LOG_ACC_BUFF_SIZE", 40), "LOG_ACC_BUFF_SIZE"),
        (("LOG_INP_WIDTH", 4), "expected widths of 8, 8 and 32 bits"),
    ] {
        fixture.set_device(&[change]);
        let listing = listing_of();
        assert!(listing.contains("libbyoc_vta.json") && listing.contains(message), "{change:?}: {listing}");
    }
}

/// Parts of a region's device program: the header, the data between header and instructions, and the instructions.
struct Parts {
    header: Value,
    prefix: Vec<u8>,
    instructions: Vec<u8>,
    accessed_lines: Vec<u8>,
}

impl Parts {
    /// Total size in bytes of the magic number, the version and the length.
    const PREFIX: usize = 20;

    fn read(blob: &[u8]) -> Parts {
        let length = u64::from_le_bytes(blob[12..Self::PREFIX].try_into().unwrap()) as usize;
        let (text, tail) = blob[Self::PREFIX..].split_at(length);
        let header: Value = serde_json::from_slice(text).unwrap();
        let size = |key: &str| header[key].as_u64().unwrap() as usize;
        let (prefix, tail) = tail.split_at(size("vector_bytes") + size("uops") * 4);
        let (instructions, tail) = tail.split_at(size("instructions") * 16);
        let accessed_lines = tail[..size("instructions") * 4].to_vec();
        Parts { prefix: prefix.to_vec(), instructions: instructions.to_vec(), accessed_lines, header }
    }

    /// Recomputes the checksums of the layers.
    fn update_checksums(&mut self) {
        let layers = self.header["layers"].as_array().unwrap();
        let counts = layers.iter().map(|layer| {
            let count_of = |key: &str| layer["instructions"][key].as_u64().unwrap() as usize;
            let mut hasher = crc32fast::Hasher::new();
            hasher.update(&self.instructions[count_of("start") * 16..count_of("end") * 16]);
            hasher.update(&self.accessed_lines[count_of("start") * 4..count_of("end") * 4]);
            Value::from(hasher.finalize())
        });
        self.header["layer_checksums"] = counts.collect();
    }

    fn write(&self, blob: &[u8]) -> Vec<u8> {
        let text = serde_json::to_vec(&self.header).unwrap();
        let sum = crc32fast::hash(&text).to_le_bytes();
        let length = (text.len() as u64).to_le_bytes();
        [&blob[..12], &length, &text, &self.prefix, &self.instructions, &self.accessed_lines, &sum].concat()
    }
}

/// Returns the index of the first instruction with the given opcode whose low 64-bit word satisfies `condition`.
fn find(instructions: &[u8], opcode: u64, condition: impl Fn(u64) -> bool) -> usize {
    let low_word = |index: usize| u64::from_le_bytes(instructions[index * 16..index * 16 + 8].try_into().unwrap());
    (0..instructions.len() / 16).find(|&index| low_word(index) & 7 == opcode && condition(low_word(index))).unwrap()
}

#[test]
fn damaged_streams_are_named_and_run_on_host() {
    const LOAD: u64 = 0;
    const STORE: u64 = 1;
    const GEMM: u64 = 2;
    let corruptions: [(fn(&mut [u8]), bool, &str); 6] = [
        // A flipped bit.
        (|instructions| instructions[16 * 9 + 3] ^= 4, false, "do not match the stored checksum"),
        // A computation that does not wait for its operands.
        (
            |instructions| {
                let gemm = find(instructions, GEMM, |low_word| low_word & 8 != 0);
                instructions[gemm * 16] ^= 8
            },
            true,
            "instruction",
        ),
        // A load that does not signal the computation.
        (
            |instructions| {
                let load = find(instructions, LOAD, |low_word| low_word & 64 != 0);
                instructions[load * 16] ^= 64
            },
            true,
            "instruction",
        ),
        // A store outside its buffer: the address field begins at bit 26.
        (
            |instructions| {
                let store = find(instructions, STORE, |low_word| low_word >> 26 != 0);
                instructions[store * 16 + 6] = 0x7f
            },
            true,
            "within one buffer",
        ),
        // Loops that run for hours: all bits of both counts are set, and each iteration executes the 72
        // micro-operations of an accumulation.
        (
            |instructions| {
                let gemm_offset = find(instructions, GEMM, |low_word| low_word & 128 == 0) * 16;
                let low_word = u64::from_le_bytes(instructions[gemm_offset..gemm_offset + 8].try_into().unwrap());
                instructions[gemm_offset..gemm_offset + 8]
                    .copy_from_slice(&(low_word | ((1 << 28) - 1) << 35).to_le_bytes());
                instructions[gemm_offset + 8..gemm_offset + 16].fill(0);
            },
            true,
            "steps",
        ),
        // An undefined opcode.
        (|instructions| instructions[16 * 9] |= 7, true, "opcode"),
    ];
    let fixture = Fixture::new();
    let (model, artifact) = (fixture.digits(), fixture.path("digits.byoc"));
    byoc(fixture.args(&["compile", &model, "--dim", "batch=1", "-o", &artifact])).ok();
    let expected = fixture.expected(&model, &["--input", "image=random:1", "--dim", "batch=1"]);
    let bytes = std::fs::read(&artifact).unwrap();
    let dir = fixture.plugins.path().display().to_string();
    for (damage, sum_error, message) in corruptions {
        let mut entries = Entries::unpack(&bytes);
        let blob = entries.entry("tvmgen_default_vta_main_0/vta");
        let mut blob_parts = Parts::read(blob);
        damage(&mut blob_parts.instructions);
        if sum_error {
            blob_parts.update_checksums();
        }
        *blob = blob_parts.write(blob);
        std::fs::write(&artifact, entries.pack()).unwrap();
        let output = fixture.path("device.npz");
        let args = ["run", &artifact, "--plugin-dir", &dir, "--input", "image=random:1", "--output", &output];
        let run_output =
            byoc(args).ok().stderr_contains(&["VTA program", "layer ", message, "runs on the host instead"]);
        assert_eq!(std::fs::read(&output).unwrap(), expected, "{}", run_output.err);
    }
}

/// Removes the tokens from the instruction streams of the digits model, one at a time. The checker detects every
/// removal, and the region runs on the host.
#[test]
fn streams_need_every_token() {
    let fixture = Fixture::new();
    let (model, artifact) = (fixture.digits(), fixture.path("digits.byoc"));
    byoc(fixture.args(&["compile", &model, "--dim", "batch=1", "-o", &artifact])).ok();
    let bytes = std::fs::read(&artifact).unwrap();
    let dir = fixture.plugins.path().display().to_string();
    let mut removed_count = 0;
    for region in ["tvmgen_default_vta_main_0/vta", "tvmgen_default_vta_main_1/vta"] {
        let blob = Entries::unpack(&bytes).entry(region).clone();
        let count = Parts::read(&blob).instructions.len() / 16;
        for (index, bit) in (0..count).flat_map(|index| (3..7).map(move |bit| (index, bit))) {
            let mut blob_parts = Parts::read(&blob);
            if blob_parts.instructions[index * 16] & (1 << bit) == 0 {
                continue;
            }
            blob_parts.instructions[index * 16] &= !(1 << bit);
            blob_parts.update_checksums();
            let mut entries = Entries::unpack(&bytes);
            *entries.entry(region) = blob_parts.write(&blob);
            std::fs::write(&artifact, entries.pack()).unwrap();
            let output = byoc(["run", &artifact, "--plugin-dir", &dir, "--input", "image=random:1"]).ok();
            assert!(output.err.contains("runs on the host instead"), "{region}, {index}, bit {bit}: {}", output.err);
            removed_count += 1;
        }
    }
    assert!(removed_count >= 100, "expected at least 100 removed tokens, found {removed_count}");
}
