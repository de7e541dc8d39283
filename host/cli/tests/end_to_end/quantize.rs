//! Quantization of float models to int8, and the diagnostics for user errors.

use crate::{CommandOutput, byoc, data, data_text};
use byoc::io;
use byoc_ir::tensor::{DType, Tensor};
use byoc_quantize::measure::cosine;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Creates a directory for the quantized model; returns the directory and the path of the model in it.
fn output_file() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("int8.relay");
    (dir, file)
}

/// Runs `byoc quantize MODEL --calibrate DATA -o FILE ...`.
fn quantize(model: &str, calibrate: &str, output: &Path, extra_args: &[&str]) -> CommandOutput {
    let output = output.display().to_string();
    byoc(["quantize", model, "--calibrate", calibrate, "-o", &output].iter().chain(extra_args))
}

/// Returns the first output of a run on all samples of an array.
fn outputs(model: &str, input: &str, samples: &Tensor, extra_args: &[&str]) -> Tensor {
    let dir = tempfile::tempdir().unwrap();
    let (array, results) = (dir.path().join("x.npy"), dir.path().join("y.npz"));
    io::npy::write(&array, samples).unwrap();
    let (input, results_text) = (format!("{input}={}", array.display()), results.display().to_string());
    byoc(["run", model, "--input", &input, "--output", &results_text].iter().chain(extra_args)).ok();
    io::npz::read(&results).unwrap().remove(0).1
}

fn count_correct(logits: &Tensor, labels: &[i64]) -> usize {
    byoc_quantize::labels::count_correct(&logits.view().to_f64s(), labels)
}

fn test_set() -> (Tensor, Vec<i64>) {
    let entry = |name| io::npz::read_entry(&data("digits/test.npz"), Some(name)).unwrap();
    (entry("image"), entry("label").view().to_i64s().unwrap())
}

/// Returns the rows and the summary of the report.
fn report(output: &CommandOutput) -> (Vec<serde_json::Value>, serde_json::Value) {
    let mut rows = output.json();
    let summary = rows.pop().unwrap()["summary"].clone();
    assert!(!summary.is_null(), "{}", output.out);
    (rows, summary)
}

#[test]
fn digits_keep_accuracy_with_every_scheme_and_method() {
    let (model, calibration) = (data_text("digits/digits.onnx"), data_text("digits/calibration.npz"));
    let (images, labels) = test_set();
    for extra_args in [
        &[][..],
        &["--keep", "none"],
        &["--scheme", "asymmetric"],
        &["--scheme", "asymmetric,uint8", "--method", "min-max"],
        &["--scheme", "symmetric,per-tensor", "--method", "percentile:99.9"],
        &["--scheme", "symmetric,power-of-two", "--method", "entropy"],
    ] {
        let (_dir, file) = output_file();
        let output = quantize(&model, &calibration, &file, &[extra_args, &["--json"]].concat()).ok();
        let (rows, summary) = report(&output);
        assert_eq!(summary["quantized"], if extra_args.contains(&"none") { 5 } else { 4 });
        for row in rows.iter().filter(|row| row["kind"] == "int8") {
            let ratio = row["signal_to_noise_db"].as_f64().unwrap();
            assert!(ratio > 15.0, "{extra_args:?}: expected more than 15 dB, found {row}");
        }
        // One run classifies all images, as the batch dimension stays symbolic.
        let logits = outputs(&file.display().to_string(), "image", &images, &[]);
        let correct_count = count_correct(&logits, &labels);
        assert!(correct_count >= 355, "{extra_args:?}: expected at least 355 correct, found {correct_count}");
    }
}

#[test]
fn quantized_model_consists_of_qnn_operators() {
    let (model, calibration) = (data_text("digits/digits.onnx"), data_text("digits/calibration.npz"));
    let (_dir, file) = output_file();
    quantize(&model, &calibration, &file, &[]).ok();
    let text = std::fs::read_to_string(&file).unwrap();
    let count = |name: &str| text.matches(&format!("{name}(")).count();
    assert!(text.contains("%image: Tensor[(batch, 1, 8, 8), float32]"), "{text}");
    // The first convolution is in float; there is one quantization, and one dequantization of the last accumulators.
    let expected = [
        (" nn.conv2d", 1),
        ("qnn.conv2d", 2),
        ("qnn.dense", 2),
        ("qnn.quantize", 1),
        ("qnn.requantize", 3),
        ("qnn.dequantize", 1),
        ("nn.max_pool2d", 2),
    ];
    for (name, times) in expected {
        assert_eq!(count(name), times, "expected {times} occurrences of {name} in\n{text}");
    }
    // The same command writes the same bytes.
    let weights = std::fs::read(file.with_extension("relay.safetensors")).unwrap();
    let (_dir, second_file) = output_file();
    quantize(&model, &calibration, &second_file, &["--threads", "1"]).ok();
    assert_eq!(std::fs::read_to_string(&second_file).unwrap(), text);
    assert_eq!(std::fs::read(second_file.with_extension("relay.safetensors")).unwrap(), weights);
}

#[test]
fn residual_network_keeps_results() {
    let model = data_text("models/resnet18_w16");
    let input = "input.1";
    let (_dir, file) = output_file();
    let output = quantize(&model, "random:1", &file, &["--keep", "none", "--samples", "8", "--json"])
        .ok()
        .stderr_contains(&["E0533"]);
    let (rows, summary) = report(&output);
    let layers: Vec<_> = rows.iter().filter(|row| row["op"] == "nn.conv2d" || row["op"] == "nn.dense").collect();
    assert_eq!((layers.len(), &summary["quantized"]), (21, &serde_json::json!(21)));
    assert_eq!(rows.iter().filter(|row| row["op"] == "add").count(), 8);
    for row in &rows {
        assert!(row["signal_to_noise_db"].as_f64().unwrap() >= 15.0, "expected at least 15 dB, found {row}");
    }
    // The inputs differ from those used for calibration.
    let mut cosines = Vec::new();
    for seed in 100..108 {
        let image = io::random::tensor(DType::F32, &[1, 3, 64, 64], seed);
        let float = outputs(&data_text("models/resnet18_w16/model.onnx"), input, &image, &[]);
        let int8 = outputs(&file.display().to_string(), "input.1", &image, &[]);
        cosines.push(cosine(&float.view().to_f64s(), &int8.view().to_f64s()));
    }
    let mean = cosines.iter().sum::<f64>() / cosines.len() as f64;
    assert!(mean >= 0.95, "expected a mean cosine of at least 0.95, found {mean} for {cosines:?}");
}

/// Creates a directory with the plugin of an int8 accelerator; returns the directory and the options that select the
/// plugin.
fn accelerator() -> (TempDir, Vec<String>) {
    let plugins = byoc_test_support::plugin_dir(&["nuc_fpga"]);
    let dir = plugins.path().display().to_string();
    let options = ["--backend", "nuc_fpga", "--plugin-dir", &dir].map(String::from).to_vec();
    (plugins, options)
}

/// Returns the number of calls to `operator` that `explain` reports in backend regions.
fn offloaded_count(model: &str, options: &[&str], operator: &str) -> usize {
    let output = byoc(["explain", model, "--json", "--no-cache"].iter().chain(options)).ok();
    let nodes = output.json()[0]["nodes"].as_array().unwrap().clone();
    let region_nodes = nodes.iter().filter(|n| n["op"] == operator && n["placement"]["kind"] == "region");
    region_nodes.count()
}

#[test]
fn digits_on_accelerator_match_host_bit_for_bit() {
    let (model, calibration) = (data_text("digits/digits.onnx"), data_text("digits/calibration.npz"));
    let (images, labels) = test_set();
    let (_plugins, options) = accelerator();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let (_dir, file) = output_file();
    quantize(&model, &calibration, &file, &options).ok();
    let file = file.display().to_string();
    let host = outputs(&file, "image", &images, &[]);
    let device_bytes =
        outputs(&file, "image", &images, &[&options[..], &["--no-cache", "--require-offload=0.9"]].concat());
    let correct_count = count_correct(&host, &labels);
    assert!(correct_count >= 355, "expected at least 355 correct, found {correct_count}");
    assert!(host == device_bytes, "expected device results bit-identical to the host");
    let batch = [&options[..], &["--dim", "batch=360"]].concat();
    assert_eq!((offloaded_count(&file, &batch, "qnn.conv2d"), offloaded_count(&file, &batch, "qnn.dense")), (2, 2));
}

#[test]
fn offloads_every_layer_of_residual_network() {
    let (_plugins, options) = accelerator();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let image = io::random::tensor(DType::F32, &[1, 3, 64, 64], 7);
    for (keep_option, convolutions) in [("first", 19), ("none", 20)] {
        let (_dir, file) = output_file();
        let extra_args = [&options[..], &["--keep", keep_option, "--samples", "2"]].concat();
        quantize(&data_text("models/resnet18_w16"), "random:1", &file, &extra_args).ok();
        let file = file.display().to_string();
        assert_eq!(offloaded_count(&file, &options, "qnn.conv2d"), convolutions);
        assert_eq!(offloaded_count(&file, &options, "qnn.dense"), 1);
        let host = outputs(&file, "input.1", &image, &[]);
        let device = outputs(&file, "input.1", &image, &[&options[..], &["--no-cache"]].concat());
        assert!(host == device, "--keep {keep_option}: expected device results bit-identical to the host");
    }
}

#[test]
fn concatenations_and_means_stay_integers() {
    let (dir, file) = output_file();
    let model = dir.path().join("m.relay");
    let text = "#[version = \"0.0.5\"]
def @main(%x: Tensor[(n, 4, 8, 8), float32]) {
  %0 = nn.conv2d(%x, meta[relay.Constant][0], padding=[1, 1, 1, 1], channels=4, kernel_size=[3, 3]);
  %1 = nn.relu(%0);
  %2 = nn.conv2d(%1, meta[relay.Constant][1], channels=8, kernel_size=[1, 1]);
  %3 = (%1, %2);
  %4 = concatenate(%3, axis=1);
  %5 = nn.avg_pool2d(%4, pool_size=[2, 2], strides=[2, 2]);
  %6 = nn.conv2d(%5, meta[relay.Constant][2], padding=[1, 1, 1, 1], channels=8, kernel_size=[3, 3]);
  %7 = nn.global_avg_pool2d(%6);
  %8 = nn.batch_flatten(%7);
  nn.dense(%8, meta[relay.Constant][3], units=10)
}";
    std::fs::write(&model, text).unwrap();
    let shapes: [&[usize]; 4] = [&[4, 4, 3, 3], &[8, 4, 1, 1], &[8, 12, 3, 3], &[10, 8]];
    let weights: Vec<Tensor> = (0..).zip(shapes).map(|(seed, s)| io::random::tensor(DType::F32, s, seed)).collect();
    let named_weights = weights.iter().enumerate().map(|(i, tensor)| (i.to_string(), tensor));
    io::weights::write(&dir.path().join("m.safetensors"), named_weights).unwrap();
    let model = model.display().to_string();
    for scheme in ["symmetric", "asymmetric"] {
        let extra_args = ["--keep", "none", "--scheme", scheme, "--json"];
        let (rows, _) = report(&quantize(&model, "random:1", &file, &extra_args).ok());
        let ops: Vec<&str> = rows.iter().map(|row| row["op"].as_str().unwrap()).collect();
        let expected =
            "nn.conv2d nn.conv2d concatenate nn.avg_pool2d nn.conv2d nn.global_avg_pool2d nn.dense".split(' ');
        assert_eq!(ops, expected.collect::<Vec<_>>());
        for row in &rows {
            let ratio = row["signal_to_noise_db"].as_f64().unwrap();
            assert!(ratio >= 25.0, "{scheme}: expected at least 25 dB, found {row}");
        }
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains("qnn.concatenate(") && text.matches("qnn.avg_pool2d(").count() == 2, "{text}");
        assert_eq!(text.matches("qnn.dequantize(").count(), 1, "{text}");
        // The number of samples is arbitrary, as the mean is taken over the plane of a single sample.
        let x = io::random::tensor(DType::F32, &[3, 4, 8, 8], 9);
        let (float, int8) = (outputs(&model, "x", &x, &[]), outputs(&file.display().to_string(), "x", &x, &[]));
        assert!(cosine(&float.view().to_f64s(), &int8.view().to_f64s()) > 0.99);
    }
}

#[test]
fn calibrates_with_folder_of_images_and_labels() {
    let (model, pictures) = (data_text("digits/digits.onnx"), data_text("digits/samples"));
    let (dir, file) = output_file();
    let labels = dir.path().join("labels.txt");
    std::fs::write(&labels, (0..10).map(|d| format!("{d}\n")).collect::<String>()).unwrap();
    let output = quantize(&model, &pictures, &file, &["--labels", &labels.display().to_string(), "--json"]).ok();
    let (_, summary) = report(&output);
    assert_eq!(summary["samples"], 10);
    assert_eq!((&summary["top1"]["float_right"], &summary["top1"]["int8_right"]), (&10.into(), &10.into()));
    std::fs::write(&labels, "1\n2\n").unwrap();
    let output = quantize(&model, &pictures, &file, &["--labels", &labels.display().to_string()]);
    output.fails_with("E0614").stderr_contains(&["expected 10 labels", "found 2"]);
}

#[test]
fn keeps_sensitive_layers_in_float() {
    let (model, calibration) = (data_text("digits/digits.onnx"), data_text("digits/calibration.npz"));
    let (_dir, file) = output_file();
    let options = ["--scheme", "symmetric,per-tensor,power-of-two", "--keep", "none", "--json"];
    let (_, report_before) = report(&quantize(&model, &calibration, &file, &options).ok());
    let loss = |summary: &serde_json::Value| 1.0 - summary["cosine"].as_f64().unwrap();
    let limit = loss(&report_before) / 2.0;
    let limit_text = limit.to_string();
    let extra_args = [&options[..], &["--max-loss", &limit_text]].concat();
    let (rows, report_after) = report(&quantize(&model, &calibration, &file, &extra_args).ok());
    assert!(loss(&report_after) <= limit, "expected half the loss of {report_before}, found {report_after}");
    let float_layers = rows.iter().filter(|row| row["kind"] == "float").count();
    assert!(float_layers > 0 && float_layers < 5, "expected 1 to 4 float layers, found {rows:?}");
    let sensitivities = |kind: &str| {
        let kind_rows = rows.iter().filter(|row| row["kind"] == kind);
        kind_rows.map(|row| row["sensitivity"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    let min_float_sensitivity = sensitivities("float").into_iter().fold(f64::INFINITY, f64::min);
    assert!(sensitivities("int8").into_iter().all(|s| s <= min_float_sensitivity), "{rows:?}");
}

#[test]
fn keeps_named_layers_in_float() {
    let (model, calibration) = (data_text("digits/digits.onnx"), data_text("digits/calibration.npz"));
    let (_dir, file) = output_file();
    let (rows, _) = report(&quantize(&model, &calibration, &file, &["--keep", "none", "--json"]).ok());
    let name = rows[1]["layer"].as_str().unwrap();
    let (rows, summary) = report(&quantize(&model, &calibration, &file, &["--keep", name, "--json"]).ok());
    assert_eq!(
        (&summary["quantized"], &rows[1]["kind"], &rows[1]["reason"]),
        (&4.into(), &"float".into(), &"kept by name".into())
    );
    let wrong_name = format!("{name}x");
    quantize(&model, &calibration, &file, &["--keep", &wrong_name]).fails_with("E0361").stderr_contains(&[
        &wrong_name,
        name,
        "did you mean",
    ]);
    quantize(&model, &calibration, &file, &["--keep", "none,first"]).fails_with("E0361");
}

#[test]
fn reports_invalid_calibration_data() {
    let model = data_text("digits/digits.onnx");
    let (dir, file) = output_file();
    let array = dir.path().join("c.npz");
    let quantize_with = |name: &str, tensor: &Tensor| {
        io::npz::write(&array, [(name, tensor)]).unwrap();
        quantize(&model, &array.display().to_string(), &file, &[])
    };
    let valid_tensor = Tensor::zeros(DType::F32, &[4, 1, 8, 8]).unwrap();
    quantize_with("images", &valid_tensor).fails_with("E0530").stderr_contains(&[
        "c.npz",
        "has no entry for model input \"image\"",
        "rename the entry \"images\"",
    ]);
    quantize_with("image", &Tensor::zeros(DType::F32, &[4, 1, 8, 9]).unwrap())
        .fails_with("E0530")
        .stderr_contains(&["(4, 1, 8, 9)", "(batch, 1, 8, 8)"]);
    let mut values = vec![0.5f32; 4 * 64];
    values[2 * 64 + 8 + 3] = f32::NAN;
    quantize_with("image", &Tensor::from_slice(&[4, 1, 8, 8], &values))
        .fails_with("E0531")
        .stderr_contains(&["entry \"image\": expected finite values, found NaN at [2, 0, 1, 3]"]);
    quantize_with("image", &Tensor::zeros(DType::F32, &[0, 1, 8, 8]).unwrap()).fails_with("E0532");
    let empty_dir = dir.path().join("empty");
    std::fs::create_dir(&empty_dir).unwrap();
    quantize(&model, &empty_dir.display().to_string(), &file, &[])
        .fails_with("E0532")
        .stderr_contains(&["empty: expected at least one image, found none"]);
    quantize(&model, "/no/such/file.npz", &file, &[]).fails_with("E0512").stderr_contains(&["/no/such/file.npz"]);
    assert!(!file.exists() && !file.with_extension("relay.safetensors").exists(), "expected no output files");
}

#[test]
fn reports_models_that_cannot_be_quantized() {
    let (temp_dir, file) = output_file();
    let calibration = data_text("digits/calibration.npz");
    let model = data_text("digits/digits.onnx");
    quantize(&model, &calibration, &file, &["--scheme", "symetric"]).fails_with("E0430").stderr_contains(&["symetric"]);
    quantize(&model, &calibration, &file, &["--backend", "no_such"]).fails_with("E0401").stderr_contains(&["no_such"]);
    quantize(&model, &calibration, &temp_dir.path().join("x.txt"), &[])
        .fails_with("E0513")
        .stderr_contains(&[".relay"]);
    let relu = temp_dir.path().join("relu.relay");
    std::fs::write(&relu, "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(1, 4), float32]) { nn.relu(%x) }").unwrap();
    quantize(&relu.display().to_string(), "random", &file, &[])
        .fails_with("E0360")
        .stderr_contains(&["expected at least one layer to quantize, found none"]);
    let plugins = byoc_test_support::plugin_dir(&["template"]);
    let dir = plugins.path().display().to_string();
    let extra_args = ["--backend", "template", "--plugin-dir", &dir];
    quantize(&model, &calibration, &file, &extra_args).fails_with("E0430").stderr_contains(&["template", "--scheme"]);
}

#[test]
fn fixes_dimension_that_program_depends_on() {
    let (dir, file) = output_file();
    let model = dir.path().join("m.relay");
    let text = "#[version = \"0.0.5\"]
def @main(%x: Tensor[(n, 4), float32]) {
  %0 = nn.dense(%x, meta[relay.Constant][0], units=4);
  %1 = shape_of(%x, dtype=\"int64\");
  %2 = cast(%1, dtype=\"float32\");
  %3 = sum(%2);
  add(%0, %3)
}";
    std::fs::write(&model, text).unwrap();
    let weight = io::random::tensor(DType::F32, &[4, 4], 3);
    io::weights::write(&dir.path().join("m.safetensors"), [("0".to_owned(), &weight)]).unwrap();
    let output = quantize(&model.display().to_string(), "random", &file, &[]).ok();
    output.stderr_contains(&["E0534", "x [1, 4]"]);
    assert!(std::fs::read_to_string(&file).unwrap().contains("%x: Tensor[(1, 4), float32]"));
}

/// Tests that weights passed as parameters of a Relay program become constants with the values in the calibration data.
#[test]
fn weights_among_inputs_become_constants() {
    let (dir, file) = output_file();
    let model = dir.path().join("float.relay");
    let program = "#[version = \"0.0.5\"]
def @main(%x: Tensor[(2, 3, 8, 8), float32], %w: Tensor[(4, 3, 3, 3), float32], %b: Tensor[(4), float32]) {
  nn.bias_add(nn.conv2d(%x, %w, channels=4, kernel_size=[3, 3]), %b)
}
";
    std::fs::write(&model, program).unwrap();
    let model = model.display().to_string();
    let [x, w, b] = [(vec![2, 3, 8, 8], 1), (vec![4, 3, 3, 3], 2), (vec![4], 3)]
        .map(|(shape, seed)| io::random::tensor(DType::F32, &shape, seed));
    let data = dir.path().join("data.npz");
    io::npz::write(&data, [("x", &x), ("w", &w), ("b", &b)]).unwrap();
    let data = data.display().to_string();
    let output = quantize(&model, &data, &file, &["--keep", "none"]).ok();
    output.stderr_contains(&["weight inputs become constants of the quantized model", ": b, w"]);

    let results = dir.path().join("y.npz").display().to_string();
    let run = |model: &str, inputs: &[&str]| {
        let input_args: Vec<String> = inputs.iter().map(|name| format!("--input={name}={data}")).collect();
        byoc(["run", model, "--output", &results].map(String::from).iter().chain(&input_args)).ok();
        io::npz::read(Path::new(&results)).unwrap().remove(0).1
    };
    let float = run(&model, &["x", "w", "b"]);
    let actual = run(&file.display().to_string(), &["x"]);
    let similarity = cosine(&float.view().to_f64s(), &actual.view().to_f64s());
    assert!(similarity > 0.999, "expected a cosine above 0.999, found {similarity:?}");
}
