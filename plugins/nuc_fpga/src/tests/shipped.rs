//! Tests that serialized command lists are reproducible, validated, and rejected if corrupt; tests the description and
//! events.

use super::harness::{Case, ConvCase};
use crate::backend::NucFpga;
use crate::blob;
use crate::command_list::{CommandList, Place};
use crate::device::config::Config;
use crate::epilogue::{Element, EpilogueOp, Factor};
use byoc_plugin_api::*;
use byoc_test_support::plugin::host;

fn region() -> Case {
    let conv = ConvCase::default();
    let mut case = Case::new(4);
    let x = case.input_of(DType::I8, &conv.data);
    let y = case.conv2d(&conv, x);
    let shape = conv.out_shape();
    let bias = case.int32(&[shape[1]], &[1, -2, 3, -4, 5, -6]);
    let int32 = TensorType::new(DType::I32, &shape);
    let y = case.op("nn.bias_add", &[y, bias], vec![Attr::new("axis", 1i64)], int32);
    let y = case.op("cast", &[y], vec![Attr::new("dtype", "int8")], TensorType::new(DType::I8, &shape));
    case.output(y);
    case
}

#[test]
fn compilation_is_reproducible() {
    let case = region();
    assert_eq!(case.compile(), case.compile());
    assert_eq!(case.compile().loader.as_str(), "nuc_fpga");
}

#[test]
fn rejects_damaged_command_lists() {
    let case = region();
    let bytes = case.compile().blob.to_vec();
    let (services, _) = host(1);
    for length in 0..bytes.len() {
        assert!(
            blob::read(&bytes[..length]).is_err(),
            "expected an error for the first {length} of {} bytes",
            bytes.len()
        );
    }
    for index in 0..bytes.len() {
        for bit in [0, 3, 6] {
            let mut damaged_bytes = bytes.clone();
            damaged_bytes[index] ^= 1 << bit;
            // A flipped bit may change a digit; the list must still match the region's tensors.
            if let Ok(executable) = case.load(&damaged_bytes, &services) {
                assert!(executable.prepare(&[&[1, 8, 9, 7]]).is_ok() || executable.prepare(&[]).is_err());
            }
        }
    }
    let mut newer_blob = bytes.clone();
    newer_blob[8] = 2;
    let error = blob::read(&newer_blob).unwrap_err();
    assert_eq!(error.message.as_str(), "command list: expected version 1, found 2");
    let error = blob::read(b"something else").unwrap_err();
    assert!(error.message.contains("expected a nuc_fpga command list"), "{error}");
}

#[test]
fn check_rejects_invalid_places_and_numbers() {
    let list = blob::read(&region().compile().blob).unwrap();
    list.check().unwrap();
    let error_of = |change: &dyn Fn(&mut CommandList)| {
        let mut list = list.clone();
        change(&mut list);
        list.check().unwrap_err()
    };
    let step = |index: usize, step: EpilogueOp| {
        error_of(&|p: &mut CommandList| p.commands[0].epilogue.as_mut().unwrap().steps[index] = step.clone())
    };
    let cases: &[(&dyn Fn(&mut CommandList), &str)] = &[
        (&|p| p.workspace -= 64, "elements at byte 0"),
        (&|p| p.workspace = u64::MAX, "workspace: expected at most"),
        (&|p| p.commands[0].sums = Place::Work(4), "elements at byte 4"),
        (&|p| p.commands[0].sums = Place::Work(u64::MAX - 63), "elements at byte"),
        (&|p| p.commands[0].sums = Place::Input(0), "input 0: expected a writable tensor"),
        (&|p| p.commands[0].sums = Place::Output(0), "output 0: expected"),
        (&|p| p.commands[0].feature = Place::Input(1), "input 1 does not exist"),
        (&|p| p.commands[0].feature = Place::Constant(0), "constant 0: expected"),
        (&|p| p.commands[0].feature = Place::Work(0), "the sums overlap an operand"),
        (&|p| p.commands[0].feature = Place::Output(0), "output 0 is read before it is written"),
        (&|p| p.inputs[0].shape[0] = 2, "input 0: expected"),
        (&|p| p.inputs[0].element = Element::Uint8, "input 0: expected"),
        (&|p| p.inputs[0].shape = vec![usize::MAX, usize::MAX], "input 0: expected"),
        (&|p| p.outputs[0].shape[1] = 1, "output 0: expected"),
        (&|p| p.outputs.push(p.outputs[0].clone()), "no command writes output 1"),
        (&|p| p.constants[1] = None, "constant 1: expected an int32 bias of size 6"),
    ];
    for (change, expected_message) in cases {
        let error = error_of(change);
        assert!(error.contains(expected_message), "expected {expected_message:?}, found {error:?}");
    }
    let requantize = |factors: Vec<Factor>, range| EpilogueOp::Requantize {
        factors,
        rounding: crate::epilogue::Rounding::Upward,
        zero: 0,
        range,
    };
    for (invalid_step, expected_message) in [
        (EpilogueOp::Bias { constant: 9, per_channel: true }, "constant 9: expected an int32 bias"),
        (EpilogueOp::Bias { constant: 1, per_channel: false }, "constant 1: expected an int32 bias of size 1"),
        (requantize(vec![Factor(1, 63)], [0, 1]), "found 1 / 2^63"),
        (requantize(vec![Factor(-1, 3)], [0, 1]), "found -1 / 2^3"),
        (
            requantize(vec![Factor(1, 1); 2], [0, 1]),
            "expected 1 or 6 factors and a non-empty range, found a count of 2 and a range",
        ),
        (requantize(vec![Factor(1, 1)], [1, 0]), "found a count of 1 and a range of 1 to 0"),
        (EpilogueOp::FixedPoint { factor: Factor(1, 99) }, "found 1 / 2^99"),
    ] {
        let error = step(0, invalid_step);
        assert!(error.contains(expected_message), "expected {expected_message:?}, found {error:?}");
    }
}

#[test]
fn rejects_other_constants_shapes_and_symbols() {
    let case = region();
    let blob = case.compile().blob;
    let (services, _) = host(1);
    let executable = case.load(&blob, &services).unwrap();
    assert!(executable.prepare(&[&[1, 8, 9, 7]]).is_ok());
    let error = executable.prepare(&[&[2, 8, 9, 7]]).unwrap_err();
    assert_eq!(error.message.as_str(), "input 0: expected shape [1, 8, 9, 7], found [2, 8, 9, 7]");
    assert!(executable.prepare(&[]).is_err());
    let mut changed_case = region();
    changed_case.graph.symbol = "region_1".into();
    let error = changed_case.load(&blob, &services).err().unwrap();
    assert_eq!(error.message.as_str(), "expected the command list of region_1, found that of region_0");
    let mut changed_case = region();
    changed_case.constants.swap(0, 1);
    let error = changed_case.load(&blob, &services).err().unwrap();
    assert!(error.message.starts_with("constant 0: expected shape ["), "{error}");
    changed_case.constants.pop();
    assert!(changed_case.load(&blob, &services).is_err());
}

#[test]
fn description_has_the_scheme_and_each_operator_once() {
    let description = NucFpga { config: Config::default() }.describe().unwrap();
    let quantization = description.quantization.clone().unwrap();
    assert!(quantization.symmetric && quantization.per_channel && !quantization.power_of_two);
    assert_eq!([&quantization.activation, &quantization.weight, &quantization.accumulator], ["int8", "int8", "int32"]);
    let mut names = description.operators.clone();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), description.operators.len());
}

#[test]
fn calls_are_reported_with_cycles() {
    let case = region();
    let (_, recording) = case.run(&case.compile().blob, 1);
    let events = recording.events.lock().unwrap();
    let [(name, fields)] = &events[..] else { panic!("{events:?}") };
    assert_eq!(name, "nuc_fpga_conv2d");
    assert_eq!(fields["region"], "region_0");
    assert_eq!(fields["arguments"], serde_json::json!([1, 8, 9, 7, 6, 1, 1, 1, 3, 3, 1, 1]));
    let counters = recording.counters.lock().unwrap();
    assert_eq!(fields["cycles"], counters["nuc_fpga.cycles"]);
    assert_eq!(fields["bytes"], counters["nuc_fpga.bytes"]);
    assert_eq!(counters["nuc_fpga.macs.used"], 6 * 9 * 7 * 8 * 9);
    let utilization = counters["nuc_fpga.macs.used"] as f64 / counters["nuc_fpga.macs.available"] as f64;
    assert_eq!(fields["utilisation"], utilization);
    // 200 cycles take one microsecond.
    let cycles = fields["cycles"].as_f64().unwrap();
    assert!((fields["microseconds"].as_f64().unwrap() - cycles / 200.0).abs() < 1e-9);
}
