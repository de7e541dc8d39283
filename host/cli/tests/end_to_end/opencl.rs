//! OpenCL devices: kernels compared with the host's, whole networks, the program cache, and failing drivers. Without an
//! OpenCL library, tests that need a device are skipped.

mod detector;
mod driver;

use crate::{CommandOutput, command, data_text, to_command_output};
use byoc::io::npz;
use byoc_ir::tensor::Tensor;
use byoc_test_support::plugin_dir;
use std::path::PathBuf;
use tempfile::TempDir;

/// Scratch directory and plugin directory.
struct Fixture {
    temp_dir: TempDir,
    plugins: TempDir,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture { temp_dir: tempfile::tempdir().unwrap(), plugins: plugin_dir(&["opencl"]) }
    }

    /// Creates the fixture; prints the reason and returns `None` if no device is available.
    #[expect(clippy::print_stdout, reason = "reports a skipped test")]
    fn with_device() -> Option<Fixture> {
        let fixture = Fixture::new();
        let model = fixture.write("probe.relay", &program("%x: Tensor[(2, 3), float32]", &["nn.relu(%x)"]));
        let explanation = fixture.byoc(&["explain", &model], &[]);
        if explanation.out.contains("Unavailable") || explanation.err.contains("Unavailable") {
            println!("skipped: no OpenCL device; install one with `apt-get install -y pocl-opencl-icd`");
            return None;
        }
        Some(fixture)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp_dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name).display().to_string()
    }

    /// Runs `byoc` with the backend and with additional environment variables.
    fn byoc(&self, args: &[&str], variables: &[(&str, &str)]) -> CommandOutput {
        let dir = self.plugins.path().display().to_string();
        let mut command = command(args.iter().copied().chain(["--backend", "opencl", "--plugin-dir", &dir]));
        command.env("POCL_CACHE_DIR", self.path("pocl")).env("BYOC_CACHE_DIR", self.path("cache"));
        to_command_output(command.envs(variables.iter().copied()).output().unwrap())
    }

    /// Runs a model on the device and on the host, and checks that `max|a - b| / max|b|` of each output is at most
    /// `max_error`.
    fn compare(&self, model: &str, options: &[&str], max_error: f64) {
        let (device, host) = (self.path("device.npz"), self.path("host.npz"));
        let args = ["run", model, "--require-offload=0.95", "--output", device.to_str().unwrap()];
        self.byoc(&[&args, options].concat(), &[]).ok();
        let inputs: Vec<&str> = options.iter().copied().filter(|arg| !arg.starts_with("--backend-option")).collect();
        let args = ["run", model, "--output", host.to_str().unwrap()];
        to_command_output(command(args.iter().chain(&inputs)).output().unwrap()).ok();
        let (actual, expected) = (npz::read(&device).unwrap(), npz::read(&host).unwrap());
        assert_eq!(actual.len(), expected.len());
        for ((name, actual), (_, expected)) in actual.iter().zip(&expected) {
            let (actual, expected) = (actual.view().to_f64s(), expected.view().to_f64s());
            assert_eq!(actual.len(), expected.len(), "{name}");
            let largest = expected.iter().fold(1e-30, |largest: f64, value| largest.max(value.abs()));
            let error =
                actual.iter().zip(&expected).fold(0.0, |largest: f64, (a, b)| largest.max((a - b).abs())) / largest;
            assert!(error <= max_error, "{name} of {model}: expected an error <= {max_error}, found {error}");
        }
    }
}

/// Returns a program with the given parameters whose results are the given expressions.
fn program(parameters: &str, expressions: &[&str]) -> String {
    let lines: String = expressions.iter().enumerate().map(|(i, text)| format!("  %{i} = {text};\n")).collect();
    let results: Vec<String> = (0..expressions.len()).map(|i| format!("%{i}")).collect();
    let result = if let [only] = &results[..] { only.clone() } else { format!("({})", results.join(", ")) };
    format!("#[version = \"0.0.5\"]\ndef @main({parameters}) {{\n{lines}  {result}\n}}\n")
}

/// Returns `--input` values that fill the given parameters with random numbers.
fn random_inputs(parameters: &str) -> Vec<String> {
    let names = parameters.split('%').skip(1).filter_map(|text| text.split_once(':'));
    names.enumerate().map(|(seed, (name, _))| format!("{name}=random:{seed}")).collect()
}

/// Compares the results of a program on the device with those on the host, with GEMM tiles in registers and in local
/// memory.
fn compare_programs(parameters: &str, expressions: &[&str]) {
    let Some(fixture) = Fixture::with_device() else { return };
    let model = fixture.write("model.relay", &program(parameters, expressions));
    let inputs = random_inputs(parameters);
    let inputs: Vec<&str> = inputs.iter().flat_map(|input| ["--input", input.as_str()]).collect();
    for tile in ["registers", "local"] {
        let tile = format!("--backend-option=opencl.tile={tile}");
        fixture.compare(&model, &[&inputs[..], &[tile.as_str()]].concat(), 1e-5);
    }
}

#[test]
fn convolutions() {
    let parameters = "%x: Tensor[(2, 6, 11, 9), float32], %w: Tensor[(20, 6, 3, 3), float32], \
                      %one: Tensor[(37, 6, 1, 1), float32], %grouped: Tensor[(10, 3, 3, 2), float32], \
                      %each: Tensor[(6, 1, 3, 3), float32], %bias: Tensor[(20), float32], \
                      %sum: Tensor[(2, 20, 11, 9), float32], %last: Tensor[(2, 11, 9, 6), float32], \
                      %hwio: Tensor[(3, 3, 6, 20), float32]";
    compare_programs(
        parameters,
        &[
            "nn.relu(add(nn.bias_add(nn.conv2d(%x, %w, padding=[1, 1, 1, 1]), %bias), %sum))",
            "nn.conv2d(%x, %w, strides=[2, 1], padding=[0, 1, 2, 0], dilation=[1, 2])",
            "clip(nn.conv2d(%x, %one), a_min=0f, a_max=6f)",
            "sigmoid(nn.conv2d(%x, %grouped, padding=[1, 0, 1, 1], groups=2))",
            "nn.conv2d(%x, %each, padding=[1, 1, 1, 1], strides=[2, 2], groups=6)",
            "tanh(nn.conv2d(%x, %each, padding=[2, 2, 2, 2], dilation=[2, 2], groups=6))",
            "nn.conv2d(%last, %hwio, padding=[1, 1, 1, 1], data_layout=\"NHWC\", kernel_layout=\"HWIO\")",
        ],
    );
}

#[test]
fn matrix_products() {
    let parameters = "%x: Tensor[(13, 40), float32], %w: Tensor[(33, 40), float32], %bias: Tensor[(33), float32], \
                      %a: Tensor[(3, 5, 17), float32], %b: Tensor[(3, 21, 17), float32], \
                      %c: Tensor[(1, 17, 21), float32], %row: Tensor[(1, 40), float32], \
                      %vector: Tensor[(40), float32], %rows: Tensor[(2, 3, 40), float32]";
    compare_programs(
        parameters,
        &[
            "nn.relu(nn.bias_add(nn.dense(%x, %w), %bias, axis=-1))",
            "nn.dense(%row, %w)",
            "nn.bias_add(nn.dense(%vector, %w), %bias, axis=-1)",
            "nn.dense(%rows, %w)",
            "nn.batch_matmul(%a, %b, transpose_b=True)",
            "multiply(nn.batch_matmul(%a, %c, transpose_b=False), 0.5f)",
            "nn.batch_matmul(transpose(%a, axes=[0, 2, 1]), %c, transpose_a=True, transpose_b=False)",
        ],
    );
}

/// Tests float16: the host rounds after each operator, the device only at region boundaries, which is at least as
/// precise.
#[test]
fn half_precision() {
    let Some(fixture) = Fixture::with_device() else { return };
    let parameters = "%x: Tensor[(2, 6, 11, 9), float16], %w: Tensor[(20, 6, 3, 3), float16], %bias: Tensor[(20), float16], \
                      %f: Tensor[(2, 6, 11, 9), float32]";
    let expressions = [
        "nn.relu(nn.bias_add(nn.conv2d(%x, %w, padding=[1, 1, 1, 1]), %bias))",
        "transpose(nn.max_pool2d(%x, pool_size=[2, 2]), axes=[0, 2, 3, 1])",
        "multiply(add(%x, %x), 0.3h)",
        "concatenate((%x, negative(%x)), axis=1)",
        "cast(cast(multiply(%f, 1.2345f), dtype=\"float16\"), dtype=\"float32\")",
        "cast(%f, dtype=\"float16\")",
    ];
    let expressions = expressions.map(|text| text.replace("0.3h", "cast(0.3f, dtype=\"float16\")"));
    let expressions: Vec<&str> = expressions.iter().map(String::as_str).collect();
    let model = fixture.write("model.relay", &program(parameters, &expressions));
    let inputs = random_inputs(parameters);
    let inputs: Vec<&str> = inputs.iter().flat_map(|input| ["--input", input.as_str()]).collect();
    // Half a unit in the last place of float16 is a relative error of 2^-11.
    fixture.compare(&model, &inputs, 2e-3);
}

#[test]
fn pools() {
    compare_programs(
        "%x: Tensor[(2, 18, 11, 9), float32]",
        &[
            "nn.max_pool2d(%x, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1])",
            "nn.avg_pool2d(%x, pool_size=[3, 2], strides=[2, 2], padding=[1, 0, 1, 1])",
            "nn.avg_pool2d(%x, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1], count_include_pad=True)",
            "nn.avg_pool2d(%x, pool_size=[2, 2], strides=[2, 2], ceil_mode=True)",
            "nn.max_pool2d(%x, pool_size=[2, 2], strides=[2, 2], ceil_mode=True)",
            "nn.global_avg_pool2d(%x)",
            "nn.adaptive_avg_pool2d(%x, output_size=[3, 4])",
            "nn.max_pool2d(nn.relu(nn.max_pool2d(%x, pool_size=[2, 2])), pool_size=[3, 3])",
        ],
    );
}

#[test]
fn resizes() {
    compare_programs(
        "%x: Tensor[(2, 5, 7, 6), float32], %y: Tensor[(1, 3, 4, 18), float32]",
        &[
            "image.resize2d(%x, size=[16, 9], roi=[0f, 0f, 0f, 0f], method=\"linear\")",
            "image.resize2d(%x, size=[3, 13], roi=[0f, 0f, 0f, 0f], method=\"linear\", \
             coordinate_transformation_mode=\"align_corners\")",
            "image.resize2d(%x, size=[16, 15], roi=[0f, 0f, 0f, 0f], method=\"nearest_neighbor\", \
             coordinate_transformation_mode=\"asymmetric\", rounding_method=\"floor\")",
            "image.resize2d(%x, size=[5, 1], roi=[0f, 0f, 0f, 0f], method=\"nearest_neighbor\", \
             rounding_method=\"round_prefer_floor\")",
            "nn.relu(image.resize2d(%y, size=[6, 8], roi=[0f, 0f, 0f, 0f], layout=\"NHWC\", method=\"linear\"))",
            "nn.upsampling(%x, scale_h=2f, scale_w=3f, method=\"bilinear\")",
        ],
    );
}

#[test]
fn rows_and_reductions() {
    compare_programs(
        "%x: Tensor[(3, 5, 37), float32], %scale: Tensor[(37), float32], %shift: Tensor[(37), float32]",
        &[
            "nn.softmax(%x)",
            "nn.softmax(%x, axis=1)",
            "nn.log_softmax(%x)",
            "nn.layer_norm(%x, %scale, %shift)",
            "sum(%x, axis=[1])",
            "mean(%x, axis=[2], keepdims=True)",
            "max(%x, axis=[0, 2])",
            "min(%x)",
            "prod(%x, axis=[0])",
            "sum(%x, axis=[0, 1])",
        ],
    );
}

#[test]
fn elementwise_chains_and_views() {
    compare_programs(
        "%x: Tensor[(4, 6, 10), float32], %y: Tensor[(6, 1), float32], %z: Tensor[(4, 6, 10), float32]",
        &[
            "multiply(multiply(%x, add(erf(divide(%x, 1.4142135f)), 1f)), 0.5f)",
            "subtract(exp(transpose(%x, axes=[2, 0, 1])), reshape(%z, newshape=[10, 4, 6]))",
            "concatenate((%x, add(%z, %y), %x), axis=1)",
            "maximum(strided_slice(%x, begin=[0, 1, 2], end=[4, 5, 10], strides=[1, 2, 3]), 0.25f)",
            "squeeze(expand_dims(sqrt(abs(%x)), axis=0))",
            "where(less(%x, %z), nn.leaky_relu(%x, alpha=0.1f), clip(%z, a_min=-0.5f, a_max=0.5f))",
            "cast(cast(multiply(%x, 100f), dtype=\"int32\"), dtype=\"float32\")",
            "take(%x, cast(multiply(abs(%y), 3f), dtype=\"int32\"), axis=1)",
        ],
    );
}

#[test]
fn networks_are_one_region() {
    let Some(fixture) = Fixture::with_device() else { return };
    let random = "--input=image=random:1";
    let tokens = ["--input=input_ids=random:3", "--input=attention_mask=ones"];
    let networks = [("resnet50", &[random][..]), ("mobilenet_v2", &[random]), ("bert_base", &tokens)];
    for (name, inputs) in networks {
        let model = fixture.path("model.onnx").display().to_string();
        to_command_output(command(["zoo", name, "-o", &model]).output().unwrap()).ok();
        let explanation = fixture.byoc(&["explain", &model, "--json"], &[]).ok();
        assert_eq!(explanation.json()[0]["regions"].as_array().unwrap().len(), 1, "{name}");
        fixture.compare(&model, inputs, 5e-4);
    }
}

#[test]
fn recorded_networks_have_the_recorded_results() {
    let Some(fixture) = Fixture::with_device() else { return };
    // Only a few networks are tested, as drivers take seconds to compile the programs of each.
    let names = ["bert_small", "convnext_small", "gru", "mobilenet_v2_025", "resnet18_w16", "unet_small"];
    let models = names.map(|name| data_text(&format!("models/{name}")));
    let models: Vec<&str> = models.iter().map(String::as_str).collect();
    let verified = fixture.byoc(&[&["verify", "--json", "--max-rel-err", "5e-4"], &models[..]].concat(), &[]).ok();
    assert_eq!(verified.json().last().unwrap()["summary"]["pass"], names.len(), "{}", verified.out);
}

#[test]
fn conforms() {
    let Some(fixture) = Fixture::with_device() else { return };
    let library = fixture.plugins.path().join("libbyoc_opencl.so").display().to_string();
    let out = fixture.path("faults").display().to_string();
    let args = ["plugins", "test", &library, "--cases", "2", "--json", "--out", &out];
    let mut test_command = command(args);
    let output = to_command_output(test_command.env("POCL_CACHE_DIR", fixture.path("pocl")).output().unwrap()).ok();
    assert_eq!(output.json().last().unwrap()["summary"]["passes"], true, "{}", output.out);
}

/// Tests that the option `zero_copy` lets the device read a model input directly from host memory.
#[test]
fn inputs_are_shared_on_request() {
    let Some(fixture) = Fixture::with_device() else { return };
    let model = fixture.write("model.relay", &program("%x: Tensor[(4, 256), float32]", &["tanh(nn.softmax(%x))"]));
    let transfers = |zero_copy: &str| {
        let option = format!("--backend-option=opencl.zero_copy={zero_copy}");
        fixture.compare(&model, &["--input=x=random:1", &option], 1e-5);
        let metrics = fixture.byoc(&["bench", &model, "--runs", "1", "--json", &option], &[]).ok().json().remove(0);
        ["copy.to_device_bytes", "import.to_device_bytes"].map(|name| metrics["metrics"][name].as_f64())
    };
    assert_eq!(transfers("false"), [Some(4096.0), None]);
    assert_eq!(transfers("true"), [None, Some(4096.0)]);
}

/// Tests that a region with open dimensions has one program per set of dimensions, and leaves empty tensors to the
/// host.
#[test]
fn open_dimensions() {
    let Some(fixture) = Fixture::with_device() else { return };
    let parameters = "%x: Tensor[(n, 6, k, 9), float32], %w: Tensor[(20, 6, 3, 3), float32], \
                      %dense: Tensor[(10, 20), float32]";
    let expressions = [
        "nn.relu(nn.conv2d(%x, %w, padding=[1, 1, 1, 1]))",
        "nn.softmax(nn.dense(nn.batch_flatten(nn.global_avg_pool2d(%0)), %dense))",
    ];
    let model = fixture.write("model.relay", &program(parameters, &expressions));
    for shape in [[1, 6, 7, 9], [3, 6, 7, 9], [1, 6, 4, 9], [3, 6, 7, 9], [0, 6, 7, 9]] {
        let data = fixture.path("x.npy");
        let values = (0..shape.iter().product::<usize>()).map(|i| (i % 23) as f32 / 7.0 - 1.0).collect::<Vec<_>>();
        byoc::io::npy::write(&data, &Tensor::from_slice(&shape, &values)).unwrap();
        let x = format!("--input=x={}", data.display());
        let options = ["--dim=n=?", "--dim=k=?", &x, "--input=w=random:2", "--input=dense=random:3"];
        fixture.compare(&model, &options, 1e-5);
    }
}

/// Tests that programs are cached as binaries, and that a corrupt binary is rebuilt.
#[test]
fn programs_are_cached() {
    let Some(fixture) = Fixture::with_device() else { return };
    let model = fixture.write("model.relay", &program("%x: Tensor[(5, 7), float32]", &["tanh(nn.relu(%x))"]));
    let run = || fixture.byoc(&["run", &model, "--input", "x=random:1"], &[("BYOC_LOG", "debug")]).ok();
    let binaries = || {
        let entries = std::fs::read_dir(fixture.path("cache").join("opencl")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|end| end == "bin")).collect::<Vec<PathBuf>>()
    };
    let first_output = run();
    let [binary] = &binaries()[..] else { panic!("expected one program, found {:?}", binaries()) };
    let binary_size = std::fs::metadata(binary).unwrap().len();
    assert_eq!(run().out, first_output.out);
    let mut bytes = std::fs::read(binary).unwrap();
    bytes[binary_size as usize / 2] ^= 1;
    std::fs::write(binary, &bytes).unwrap();
    let second_output = run().stderr_contains(&["is corrupted and is compiled again"]);
    assert_eq!(second_output.out, first_output.out);
    assert!(!run().err.contains("is corrupted"));
}

#[test]
fn traces_have_the_times_of_kernels() {
    let Some(fixture) = Fixture::with_device() else { return };
    let model = fixture.write("model.relay", &program("%x: Tensor[(50, 70), float32]", &["nn.softmax(nn.relu(%x))"]));
    let trace = fixture.path("trace.json").display().to_string();
    fixture.byoc(&["run", &model, "--input", "x=random:1", "--trace", &trace], &[]).ok();
    let text = std::fs::read_to_string(&trace).unwrap();
    for part in ["nn.softmax", "microseconds", "opencl.nanoseconds", "opencl.bytes_in"] {
        assert!(text.contains(part), "expected {part} in {text}");
    }
}

#[test]
fn source_and_listing_are_readable() {
    let Some(fixture) = Fixture::with_device() else { return };
    let model = data_text("digits/digits.onnx");
    let source = fixture.byoc(&["source", &model, "--dim", "batch=1"], &[]).ok().out;
    for part in ["kernel __attribute__((reqd_work_group_size(", "nn.conv2d: (1, ", "-> (1, 10)", "work-items"] {
        assert!(source.contains(part), "expected {part} in\n{source}");
    }
    let artifact = fixture.path("digits.byoc").display().to_string();
    fixture.byoc(&["compile", &model, "--dim", "batch=1", "-o", &artifact], &[]).ok();
    let dir = fixture.plugins.path().display().to_string();
    let listing = to_command_output(command(["inspect", &artifact, "--plugin-dir", &dir]).output().unwrap()).ok();
    assert!(listing.out.contains("_product: nn.conv2d"), "{}", listing.out);
}
