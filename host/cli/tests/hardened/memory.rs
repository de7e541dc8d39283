//! Excessive sizes in files and options are rejected with a diagnostic before memory is allocated.

use super::limited::{byoc, hostile, program};
use byoc::io;
use byoc_ir::tensor::{DType, Tensor};
use byoc_test_support::temporary_folder;
use std::io::Write;

const IDENTITY: &str = "def @main(%x: Tensor[(2147483648), float32]) { nn.relu(%x) }";

#[test]
fn does_not_create_large_constant_at_import() {
    let model = hostile("expandopen_68719476736.onnx");
    byoc(&["explain", &model, "--dim", "b=?"]).ok();
    byoc(&["run", &model, "--dim", "b=1", "--input", "x=ones"])
        .fails_with("E0609")
        .stderr_contains(&["274877906944 bytes", "the limit"]);
}

#[test]
fn rejects_pooling_with_huge_kernel() {
    byoc(&["run", &hostile("poolkernelhuge.onnx"), "--input", "x=ones"])
        .fails_with("E0505")
        .stderr_contains(&["expected a tensor of at most", "found Tensor[(1, 3, 1073741833, 1073741833), float32]"]);
}

/// Tests a huge pooling window that covers the entire input and otherwise only padding.
#[test]
fn pooling_with_large_kernel_ignores_padding() {
    let dir = temporary_folder();
    for (pool, extra_dims, dtype) in [
        ("max_pool2d", "", "float32"),
        ("avg_pool2d", ", count_include_pad=True", "float32"),
        ("max_pool2d", "", "uint8"),
        ("max_pool2d", "", "float64"),
        ("avg_pool2d", "", "float64"),
    ] {
        let text = format!(
            "def @main(%x: Tensor[(1, 1, 8, 8), {dtype}]) {{ nn.{pool}(%x, pool_size=[1073741824, 1073741824], \
             padding=[1073741824, 1073741824, 0, 0], strides=[536870912, 536870912]{extra_dims}) }}"
        );
        byoc(&["run", &program(dir.path(), &text), "--input", "x=ones", "--timeout", "60"]).ok();
    }
}

#[test]
fn resizing_to_empty_result_allocates_no_tables() {
    let dir = temporary_folder();
    let resize = |batch: usize, height: usize| {
        let text = format!(
            "def @main(%x: Tensor[({batch}, 1, 4, 1), float32]) {{ image.resize2d(%x, size=[{height}, 1], method=\"cubic\") }}"
        );
        byoc(&["run", &program(dir.path(), &text), "--input", "x=ones", "--max-memory", "300M", "--timeout", "60"])
    };
    resize(0, 2_147_483_647).ok();
    resize(1, 40_000_000).fails_with("E0609");
}

#[test]
fn counts_nodes_before_expanding_functions() {
    byoc(&["explain", &hostile("fnbomb.onnx")])
        .fails_with("E0502")
        .stderr_contains(&["found 549755813888", "500000 nodes"]);
}

#[test]
fn checks_generated_input_against_limit() {
    let dir = temporary_folder();
    let model = program(dir.path(), IDENTITY);
    for kind in ["ones", "zeros", "random:7"] {
        byoc(&["run", &model, "--input", &format!("x={kind}"), "--max-memory", "512M"])
            .fails_with("E0609")
            .stderr_contains(&["8589934592 bytes", "512.0 MiB"]);
    }
    // Without a user-defined limit, the default limit is derived from the resource limit of the process.
    byoc(&["run", &model, "--input", "x=ones"]).fails_with("E0609");
}

#[test]
fn applies_limit_of_user() {
    let dir = temporary_folder();
    let model = program(dir.path(), "def @main(%x: Tensor[(1048576), float32]) { nn.relu(%x) }");
    byoc(&["run", &model, "--input", "x=ones", "--max-memory", "64MiB"]).ok();
    byoc(&["run", &model, "--input", "x=ones", "--max-memory", "1MiB"]).fails_with("E0609").stderr_contains(&[
        "4194304 bytes",
        "the limit is 1.0 MiB",
        "--max-memory",
    ]);
    let usage = byoc(&["run", &model, "--input", "x=ones", "--max-memory", "many"]);
    assert_eq!(usage.code, 2, "{}", usage.err);
}

#[test]
fn charges_scratch_memory_of_references() {
    let dir = temporary_folder();
    // Sorting needs 64-bit indices in addition to 4 MiB of data.
    let model = program(dir.path(), "def @main(%x: Tensor[(4194304), uint8]) { argsort(%x, axis=0) }");
    byoc(&["run", &model, "--input", "x=zeros"]).ok();
    byoc(&["run", &model, "--input", "x=zeros", "--max-memory", "96MiB"])
        .fails_with("E0609")
        .stderr_contains(&["the limit is 96.0 MiB"]);
}

/// Writes an `.npz` file with an entry of zeros, which compresses by a factor of a thousand.
fn write_zip_bomb(path: &std::path::Path, shape: &[usize], bytes: usize) {
    let header = {
        let empty_npy = io::npy::encode(&Tensor::zeros(DType::F32, &[0]).unwrap());
        let dims: Vec<String> = shape.iter().map(|d| format!("{d}, ")).collect();
        // The header is padded to 118 bytes, which leaves space for a longer shape.
        let text = String::from_utf8_lossy(&empty_npy[10..]).replace("(0,)", &format!("({})", dims.concat()));
        let text = format!("{:<117}\n", text.trim_end());
        [&empty_npy[..10], text.as_bytes()].concat()
    };
    let file = std::fs::File::create(path).unwrap();
    let mut zip = zip::ZipWriter::new(file);
    zip.start_file("x.npy", zip::write::SimpleFileOptions::default()).unwrap();
    zip.write_all(&header).unwrap();
    let zeros = vec![0; 1 << 20];
    for _ in 0..bytes >> 20 {
        zip.write_all(&zeros).unwrap();
    }
    zip.finish().unwrap();
}

#[test]
fn does_not_inflate_array_of_wrong_shape() {
    let dir = temporary_folder();
    let model = program(dir.path(), "def @main(%x: Tensor[(2), float32]) { nn.relu(%x) }");
    let file = dir.path().join("x.npz");
    // One megabyte that decompresses to 1 GiB of zeros, more than the address space of the process.
    write_zip_bomb(&file, &[1 << 28], 1 << 30);
    let input = format!("x={}", file.display());
    byoc(&["run", &model, "--input", &input]).fails_with("E0511").stderr_contains(&["found [268435456]"]);
    let doubles = program(dir.path(), "def @main(%x: Tensor[(268435456), float64]) { nn.relu(%x) }");
    byoc(&["run", &doubles, "--input", &input, "--max-memory", "8G"])
        .fails_with("E0604")
        .stderr_contains(&["float32[268435456]"]);
    let open_program = program(dir.path(), "def @main(%x: Tensor[(?), float32]) { nn.relu(%x) }");
    byoc(&["run", &open_program, "--input", &input, "--max-memory", "100M"])
        .fails_with("E0609")
        .stderr_contains(&["1073741824 bytes"]);
    let calibrate = dir.path().join("q.relay").display().to_string();
    let pairs = program(dir.path(), "def @main(%x: Tensor[(2, 3), float32]) { nn.relu(%x) }");
    byoc(&["quantize", &pairs, "--calibrate", &file.display().to_string(), "--scheme", "symmetric", "-o", &calibrate])
        .fails_with("E0530")
        .stderr_contains(&["268435456"]);
    // The header declares less or more data than the entry contains.
    let model = program(dir.path(), "def @main(%x: Tensor[(2), float32]) { nn.relu(%x) }");
    write_zip_bomb(&file, &[2], 1 << 26);
    byoc(&["run", &model, "--input", &input])
        .fails_with("E0512")
        .stderr_contains(&["float32[2]: expected 8 bytes of data, found"]);
    write_zip_bomb(&file, &[1 << 40], 1 << 20);
    let open_program = program(dir.path(), "def @main(%x: Tensor[(?), float32]) { nn.relu(%x) }");
    byoc(&["run", &open_program, "--input", &input]).fails_with("E0512").stderr_contains(&["bytes of data, found"]);
}

#[test]
fn limits_size_of_text() {
    let dir = temporary_folder();
    let model = program(dir.path(), "def @main(%x: Tensor[(2), float32]) { nn.relu(%x) }");
    byoc(&["run", &model, "--input", "x=ones", "--labels", "/dev/zero"])
        .fails_with("E0512")
        .stderr_contains(&["/dev/zero"]);
}

#[test]
fn does_not_fold_into_large_program() {
    let dir = temporary_folder();
    // Squaring a 64 MiB matrix takes 2^37 operations, for which the reference needs minutes, so constant folding leaves
    // the product to run time.
    let ones_call = "ones(shape=[4096, 4096], dtype=\"float32\")";
    let text =
        format!("def @main(%x: Tensor[(4096), float32]) {{ add(%x, nn.dense({ones_call}, {ones_call}, units=4096)) }}");
    byoc(&["explain", &program(dir.path(), &text), "--timeout", "60"]).ok();
    // A result that exceeds the memory limit is not folded either.
    let text = "def @main(%x: Tensor[(1), float32]) { add(%x, zeros(shape=[17179869184], dtype=\"float32\")) }";
    byoc(&["explain", &program(dir.path(), text)]).ok();
}
