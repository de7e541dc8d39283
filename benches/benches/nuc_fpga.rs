//! Benches of nuc_fpga's software device on each layer of ResNet-18 and on the entire network, in int8. They report the
//! wall-clock time and the metrics of the hardware model (cycles, utilization, bytes). Throughput counts multiply-adds.

use byoc::runtime::session::Session;
use byoc_benches::models::{PreparedModel, prepare};
use criterion::Throughput;
use std::fmt::Write;
use std::path::Path;

/// Convolution: name, input channels, output channels, feature map width, kernel size, stride.
struct Layer(&'static str, usize, usize, usize, usize, usize);

/// Distinct convolutions of ResNet-18 at 224 x 224.
const LAYERS: &[Layer] = &[
    Layer("conv1 7x7/2 3->64 @224", 3, 64, 224, 7, 2),
    Layer("layer1 3x3 64->64 @56", 64, 64, 56, 3, 1),
    Layer("layer2 3x3/2 64->128 @56", 64, 128, 56, 3, 2),
    Layer("layer2 1x1/2 64->128 @56", 64, 128, 56, 1, 2),
    Layer("layer2 3x3 128->128 @28", 128, 128, 28, 3, 1),
    Layer("layer3 3x3/2 128->256 @28", 128, 256, 28, 3, 2),
    Layer("layer3 1x1/2 128->256 @28", 128, 256, 28, 1, 2),
    Layer("layer3 3x3 256->256 @14", 256, 256, 14, 3, 1),
    Layer("layer4 3x3/2 256->512 @14", 256, 512, 14, 3, 2),
    Layer("layer4 1x1/2 256->512 @14", 256, 512, 14, 1, 2),
    Layer("layer4 3x3 512->512 @7", 512, 512, 7, 3, 1),
];

impl Layer {
    fn output_size(&self) -> usize {
        (self.3 + 2 * (self.4 / 2) - self.4) / self.5 + 1
    }

    fn macs(&self) -> u64 {
        (self.output_size() * self.output_size() * self.1 * self.2 * self.4 * self.4) as u64
    }
}

/// Module under construction: an int8 network whose weights are inputs with random values at run time.
#[derive(Default)]
struct ProgramText {
    params: Vec<String>,
    body: String,
    values: usize,
}

impl ProgramText {
    fn param(&mut self, shape: &[usize]) -> String {
        let name = format!("%p{}", self.params.len());
        let dims: Vec<String> = shape.iter().map(usize::to_string).collect();
        self.params.push(format!("{name}: Tensor[({}), int8]", dims.join(", ")));
        name
    }

    fn line(&mut self, call: &str) -> String {
        let _ = writeln!(self.body, "  %{} = {call};", self.values);
        self.values += 1;
        format!("%{}", self.values - 1)
    }

    /// Adds a quantized convolution, optionally followed by a ReLU.
    fn conv(&mut self, x: &str, layer: &Layer, has_relu: bool) -> String {
        let Layer(_, channels, kernels, _, kernel, stride) = *layer;
        let w = self.param(&[kernels, channels, kernel, kernel]);
        let pad = kernel / 2;
        let sum = self.line(&format!(
            "qnn.conv2d({x}, {w}, 0, 0, 0.02f, 0.01f, strides=[{stride}, {stride}], padding=[{pad}, {pad}, {pad}, {pad}], \
             channels={kernels}, kernel_size=[{kernel}, {kernel}], out_dtype=\"int32\")"
        ));
        let sum = self.line(&format!("add({sum}, 1000)"));
        let y = self.line(&format!("qnn.requantize({sum}, 0.0002f, 0, 0.05f, 0, out_dtype=\"int8\")"));
        if has_relu { self.line(&format!("nn.relu({y})")) } else { y }
    }

    fn text(mut self, result: &str) -> String {
        self.body.push_str(result);
        format!("#[version = \"0.0.5\"]\ndef @main({}) {{\n{}\n}}\n", self.params.join(", "), self.body)
    }
}

/// Returns the entire network: 20 convolutions and a dense layer, with residual additions and pooling on the host.
fn resnet18() -> String {
    let mut program = ProgramText::default();
    let image = program.param(&[1, 3, 224, 224]);
    let mut x = program.conv(&image, &LAYERS[0], true);
    x = program.line(&format!("nn.max_pool2d({x}, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1])"));
    let (mut channels, mut size) = (64, 56);
    for (stage, kernels) in [64, 128, 256, 512].into_iter().enumerate() {
        for block in 0..2 {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let y = program.conv(&x, &Layer("", channels, kernels, size, 3, stride), true);
            let y = program.conv(&y, &Layer("", kernels, kernels, size / stride, 3, 1), false);
            let shortcut = match stride {
                1 => x.clone(),
                _ => program.conv(&x, &Layer("", channels, kernels, size, 1, stride), false),
            };
            let sum = program.line(&format!("qnn.add({y}, {shortcut}, 0.05f, 0, 0.05f, 0, 0.06f, 0)"));
            x = program.line(&format!("nn.relu({sum})"));
            (channels, size) = (kernels, size / stride);
        }
    }
    let accumulators = program.line(&format!("cast({x}, dtype=\"int32\")"));
    let mean = program.line(&format!("nn.global_avg_pool2d({accumulators})"));
    let flat = program.line(&format!("nn.batch_flatten({mean})"));
    let bytes = program.line(&format!("cast({flat}, dtype=\"int8\")"));
    let w = program.param(&[1000, 512]);
    program.text(&format!("  nn.dense({bytes}, {w}, units=1000, out_dtype=\"int32\")"))
}

fn main() {
    let mut criterion = byoc_benches::criterion();
    let plugins = byoc_test_support::plugin_dir(&["nuc_fpga"]);
    for threads in [1, 2] {
        let session = Session::new(&[plugins.path().to_owned()], threads).expect("cannot start threads");
        let dir = byoc_test_support::temporary_folder();
        let file = dir.path().join("layer.relay");
        let mut group = criterion.benchmark_group(format!("nuc_fpga, software device, {threads} threads"));
        for layer in LAYERS {
            let mut program = ProgramText::default();
            let x = program.param(&[1, layer.1, layer.3, layer.3]);
            let y = program.conv(&x, layer, true);
            write(&file, &program.text(&format!("  {y}")));
            let PreparedModel { model, inputs } = prepare(&session, &file, &["nuc_fpga"]);
            assert_eq!(model.regions, 1, "expected the layer in one region");
            group.throughput(Throughput::Elements(layer.macs()));
            group.bench_function(layer.0, |b| b.iter(|| model.run(&inputs).expect("the run failed")));
            print_hardware_metrics(&session, layer.0, || drop(model.run(&inputs)));
        }
        write(&file, &resnet18());
        let PreparedModel { model, inputs } = prepare(&session, &file, &["nuc_fpga"]);
        group.throughput(Throughput::Elements(1_814_073_344));
        group.bench_function("resnet18", |b| b.iter(|| model.run(&inputs).expect("the run failed")));
        print_hardware_metrics(&session, "resnet18", || drop(model.run(&inputs)));
        group.finish();
    }
    criterion.final_summary();
}

fn write(file: &Path, text: &str) {
    std::fs::write(file, text).expect("cannot write the module");
}

/// Prints the metrics of the hardware model for one run.
#[expect(clippy::print_stdout, reason = "a bench prints what it measured")]
fn print_hardware_metrics(session: &Session, name: &str, run: impl FnOnce()) {
    let initial_metrics = session.metrics.snapshot();
    run();
    let final_metrics = session.metrics.snapshot();
    let counter = |name: &str| {
        (final_metrics.get(name).copied().unwrap_or(0) - initial_metrics.get(name).copied().unwrap_or(0)) as f64
    };
    println!(
        "{name}: {} calls, {} cycles ({:.3} ms at 200 MHz), utilization {:.1} %, {:.2} MB moved",
        counter("nuc_fpga.calls"),
        counter("nuc_fpga.cycles"),
        counter("nuc_fpga.cycles") / 200e3,
        100.0 * counter("nuc_fpga.macs.used") / counter("nuc_fpga.macs.available"),
        counter("nuc_fpga.bytes") / 1e6
    );
}
