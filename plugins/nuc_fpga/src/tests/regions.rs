//! Tests layers with epilogues, in one command and in chains: the plugin and the generated C are bit-exact with the
//! naive evaluation of each operator.

use super::harness::{Case, ConvCase, decode, ty};
use byoc_plugin_api::*;
use byoc_test_support::plugin::Memory;
use byoc_test_support::random::Random;
use std::ffi::c_void;
use std::path::Path;
use std::process::Command;

/// Appends the operators of quantized models to a layer. The scales are chosen to make results use their full range.
fn epilogue(case: &mut Case, sum: ValueRef, seed: u64) -> ValueRef {
    let shape = case.graph.type_of(sum).shape().unwrap();
    let channels = shape[1];
    let mut random = Random::new(seed.wrapping_mul(77) + 5);
    let mut value = sum;
    let int32 = ty(DType::I32, &shape);
    let biases: Vec<i64> = (0..channels).map(|_| random.below(40_000) as i64 - 20_000).collect();
    match random.below(4) {
        0 => {
            let bias = case.int32(&[channels], &biases);
            value = case.op("nn.bias_add", &[value, bias], vec![Attr::new("axis", 1i64)], int32.clone());
        }
        1 => {
            let shape: &[usize] = if shape.len() == 4 { &[1, channels, 1, 1] } else { &[1, channels] };
            let bias = case.int32(shape, &biases);
            value = case.op("add", &[bias, value], vec![], int32.clone());
        }
        2 => {
            let bias = case.int32(&[], &biases[..1]);
            value = case.op("add", &[value, bias], vec![], int32.clone());
        }
        _ => {}
    }
    if random.below(3) == 0 {
        value = case.op("nn.relu", &[value], vec![], int32.clone());
    }
    if random.below(4) == 0 {
        let bounds = vec![Attr::new("a_min", -30_000.5), Attr::new("a_max", 20_000.25)];
        value = case.op("clip", &[value], bounds, int32.clone());
    }
    let narrow_dtype = [DType::I8, DType::U8][random.below(2)];
    if random.below(4) == 0 {
        let multiplier = (1i64 << 30) + random.below(1 << 30) as i64;
        let shift = -(random.below(12) as i64);
        let attrs = vec![Attr::new("multiplier", multiplier), Attr::new("shift", shift)];
        value = case.op("fixed_point_multiply", &[value], attrs, int32.clone());
        value = case.op("clip", &[value], vec![Attr::new("a_min", -128i64), Attr::new("a_max", 127i64)], int32);
        return case.op("cast", &[value], vec![Attr::new("dtype", "int8")], ty(DType::I8, &shape));
    }
    let base_scale = [0.001f32, 0.5, 2.0, 3.7e-9, 0.015625][random.below(5)];
    let scales: Vec<f32> = (0..channels).map(|_| base_scale * (1.0 + random.below(1000) as f32 / 500.0)).collect();
    let is_per_channel = random.below(2) == 0;
    let in_scale = if is_per_channel { case.float32(&[channels], &scales) } else { case.float32(&[], &[base_scale]) };
    let out_scale_value = [base_scale * 100.0, base_scale * 77.3, base_scale, base_scale * 0.3][random.below(4)];
    let out_zero = [0, 0, 3, -100][random.below(4)];
    let in_zero = case.int32(&[], &[0]);
    let out_scale_value = case.float32(&[], &[out_scale_value]);
    let out_zero = case.int32(&[], &[out_zero]);
    let out = [narrow_dtype, narrow_dtype, DType::I32][random.below(3)];
    let rounding = ["None", "UPWARD", "TONEAREST", "TOEVEN"][random.below(4)];
    let attrs = vec![
        Attr::new("axis", 1i64),
        Attr::new("rounding", rounding),
        Attr::new("compute_dtype", "None"),
        Attr::new("out_dtype", out.name().unwrap()),
    ];
    let inputs = [value, in_scale, in_zero, out_scale_value, out_zero];
    value = case.op("qnn.requantize", &inputs, attrs, ty(out, &shape));
    if random.below(3) == 0 {
        value = case.op("nn.relu", &[value], vec![], ty(out, &shape));
    }
    if random.below(3) == 0 {
        let bounds = vec![Attr::new("a_min", -9.75), Attr::new("a_max", 100i64)];
        value = case.op("clip", &[value], bounds, ty(out, &shape));
    }
    if out == DType::I32 || random.below(4) == 0 {
        let out_dtype = [DType::I8, DType::U8, DType::I32][random.below(3)];
        value = case.op("cast", &[value], vec![Attr::new("dtype", out_dtype.name().unwrap())], ty(out_dtype, &shape));
    }
    value
}

fn random(seed: u64) -> Case {
    let mut random = Random::new(seed);
    let mut case = Case::new(seed);
    let sum = if random.below(4) == 0 {
        let [batch, inputs, outputs] = [1, 2, 3].map(|_| random.between(1, 40) as usize);
        let x = case.input_of(DType::I8, &[batch, inputs]);
        let w = case.kernel(&[outputs, inputs]);
        case.op("nn.dense", &[x, w], vec![], ty(DType::I32, &[batch, outputs]))
    } else {
        let conv = ConvCase::random(&mut random);
        let x = case.input_of(DType::I8, &conv.data);
        case.conv2d(&conv, x)
    };
    let value = epilogue(&mut case, sum, seed);
    case.output(value);
    case
}

/// Builds a chain of convolutions with epilogues. One result has two consumers and is a region output, and the kernel
/// of the last convolution covers its whole input.
fn chain() -> Case {
    let mut case = Case::new(9);
    let conv = ConvCase { data: [2, 8, 9, 9], kernels: 8, ..ConvCase::default() };
    let mut value = case.input_of(DType::I8, &conv.data);
    for seed in [100, 103, 106, 112] {
        let sum = case.conv2d(&conv, value);
        let requantized_sum = epilogue(&mut case, sum, seed);
        value = to_int8(&mut case, requantized_sum);
    }
    let shared_value = value;
    let first_branch = case.conv2d(&conv, shared_value);
    let second_branch = case.conv2d(&ConvCase { strides: [2, 2], ..conv }, shared_value);
    case.output(first_branch);
    let second_branch = to_int8(&mut case, second_branch);
    let w = case.kernel(&[8, 8, 5, 5]);
    let attrs = ConvCase { data: [2, 8, 5, 5], kernels: 8, kernel: [5, 5], padding: [0, 0], ..ConvCase::default() };
    let pooled_value = case.op("nn.conv2d", &[second_branch, w], attrs.attrs(), ty(DType::I32, &[2, 8, 1, 1]));
    case.output(shared_value);
    case.output(pooled_value);
    case
}

/// Casts a value to int8 if necessary.
fn to_int8(case: &mut Case, value: ValueRef) -> ValueRef {
    let shape = case.graph.type_of(value).shape().unwrap();
    if case.graph.type_of(value).dtype == DType::I8 {
        return value;
    }
    case.op("cast", &[value], vec![Attr::new("dtype", "int8")], ty(DType::I8, &shape))
}

fn assert_equal(case: &Case, actual: &[Vec<i64>], expected: &[Vec<i64>]) {
    for (output, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        let position = actual.iter().zip(expected).position(|(actual, expected)| actual != expected);
        let position = position.or((actual.len() != expected.len()).then_some(0));
        let Some(position) = position else { continue };
        panic!(
            "output {output}, element {position}: expected {}, found {}, in\n{}",
            expected[position],
            actual[position],
            case.graph.to_json()
        );
    }
}

#[test]
fn random_regions() {
    let mut kinds = [0; 3];
    for seed in 0..300 {
        let case = random(seed);
        let expected = case.expected();
        let blob = case.compile().blob;
        assert_equal(&case, &case.run(&blob, 1).0, &expected);
        if seed % 10 == 0 {
            assert_equal(&case, &case.run(&blob, 3).0, &expected);
        }
        // Counts the cases with non-constant results, because constant results would test little.
        let first_value = expected[0][0];
        kinds[0] += usize::from(expected[0].iter().any(|&v| v != first_value));
    }
    assert!(kinds[0] > 200, "expected more than 200 cases with non-constant results, found {}", kinds[0]);
}

#[test]
fn chains_reuse_the_workspace() {
    let case = chain();
    let compiled_region = case.compile();
    assert_equal(&case, &case.run(&compiled_region.blob, 2).0, &case.expected());
    let list = crate::blob::read(&compiled_region.blob).unwrap();
    assert_eq!(list.commands.len(), 7);
    // Five layers have 2 x 8 x 9 x 9 sums each, but the sums and results of at most two layers are live simultaneously.
    assert!(
        list.workspace < 2 * (4 + 2) * 2 * 8 * 81 + 4096,
        "expected the workspace to be reused between layers, found {} bytes",
        list.workspace
    );
}

/// Runs the C compiler in a directory, with warnings as errors.
fn cc(dir: &Path, arguments: &[&str]) {
    const FLAGS: [&str; 6] = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC"];
    let output = Command::new("cc").args(FLAGS).args(arguments).current_dir(dir).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Compiles the C source of a region, and links it with the sample driver, `driver.o` in `dir`.
fn compile_c(source: &str, dir: &Path, name: &str) -> libloading::Library {
    let (file, library) = (format!("{name}.c"), format!("lib{name}.so"));
    std::fs::write(dir.join(&file), source).unwrap();
    cc(dir, &["-shared", "-o", &library, &file, "driver.o"]);
    // SAFETY: the library was built above from generated C and the sample driver, neither of which has constructors.
    unsafe { libloading::Library::new(dir.join(library)) }.unwrap()
}

/// Runs the compiled C source of a region.
fn run_c(case: &Case, library: &libloading::Library) -> Vec<Vec<i64>> {
    type Run = unsafe extern "C" fn(*const *const c_void, *const *mut c_void, *const *const c_void, *mut c_void);
    // SAFETY: `source::source` generates both functions with these types.
    let (run, size) = unsafe {
        let run = library.get::<Run>("region_0").unwrap();
        (run, library.get::<unsafe extern "C" fn() -> usize>("region_0_work_size").unwrap()())
    };
    let types = case.output_types();
    let mut outputs: Vec<Memory> = types.iter().map(Memory::for_type).collect();
    let mut workspace = Memory::new(size);
    let inputs: Vec<*const c_void> = case.inputs.iter().map(|memory| memory.bytes().as_ptr().cast()).collect();
    let constants: Vec<*const c_void> = case.constants.iter().map(|c| c.bytes().as_ptr().cast()).collect();
    let pointers: Vec<*mut c_void> = outputs.iter_mut().map(|memory| memory.bytes_mut().as_mut_ptr().cast()).collect();
    // SAFETY: `case` provides tensors of the types that the region was compiled for.
    unsafe { run(inputs.as_ptr(), pointers.as_ptr(), constants.as_ptr(), workspace.bytes_mut().as_mut_ptr().cast()) };
    types.iter().zip(outputs).map(|(t, memory)| decode(t.dtype, memory.bytes())).collect()
}

#[test]
fn generated_c_is_bit_exact() {
    let mut cases: Vec<Case> = (0..40).map(|seed| random(1000 + seed)).collect();
    cases.push(chain());
    let dir = tempfile::tempdir().unwrap();
    let plugin = Path::new(env!("CARGO_MANIFEST_DIR"));
    let include = format!("-I{}", plugin.join("include").display());
    cc(dir.path(), &[&include, "-c", plugin.join("samples/driver.c").to_str().unwrap()]);
    for (index, case) in cases.iter().enumerate() {
        let compiled_region = case.compile();
        let source = compiled_region.source.into_option().unwrap();
        assert_eq!(source.language.as_str(), "c");
        let library = compile_c(&source.text, dir.path(), &format!("region_{index}"));
        let c_results = run_c(case, &library);
        assert!(c_results == case.run(&compiled_region.blob, 2).0, "case {index}\n{}", source.text);
        assert_equal(case, &c_results, &case.expected());
    }
}
