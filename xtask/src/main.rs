//! Development tasks: `cargo xtask demo`, `fetch-onednn`, `test`, `bless`, `bench`, `bench peers`, `docs`, `fuzz`,
//! `sanitize`, `onnx-suite`, `onnx-fuzz`, `export`, `exports`, `vta`, `conformance`, `package`,
//! `capi`, `wheel`, `test-python`, `test-torch`, `test-ray`, `test-serve`, `bench serve`, `bench scaling`, `bench ray`,
//! `soak`, `words`, `dist`, `test-arm`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the output of a command-line tool")]

mod capi;
mod conformance;
mod demo;
mod dist;
mod docs;
mod export_bench;
mod exports;
mod fuzz;
mod licenses;
mod onednn;
mod onnx_fuzz;
mod onnx_suite;
mod opencl;
mod package;
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

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <task>

  demo                    build, drop a backend into a directory, classify ten digits on it, show what ran where;
                          then in int8 on the software models of two accelerators
  fetch-onednn            put oneDNN into vendor/onednn, where the dnnl backend finds it (test and demo do this too)
  test [ARGS]             every test; ARGS go to cargo test
  test-python             the tests of the Python package, which \"test\" runs as well
  test-serve              the tests of the inference server at full counts and with kserve's client, which is fetched
  soak [--minutes N]      mixed load on the inference server with checked answers, and its memory [default: 20 minutes]
  test-torch              the tests of the Python package with PyTorch, which is fetched
  test-ray                the tests of the Python package with Ray and KServe's classes, which are fetched, in minutes
  bless [ARGS]            rewrite the expectations of file tests and snapshots
  bench [ARGS]            the criterion benches; ARGS go to cargo bench
  bench peers MODEL...    the same models on ONNX Runtime, OpenVINO and byoc, side by side
                          (MODEL: an .onnx file, or a name that \"byoc zoo\" knows)
                          [--backend NAME,...] [--threads N] [--rounds N] [--runs N]
                          [--exported: full-size models of torchvision and transformers, which are fetched; without
                          a MODEL all of them]
  bench serve [overhead|processor|peers] [--rounds N] [--seconds S]
                          the inference server beside an echo server of the same libraries, the processor time of a
                          request, and kserve and MLServer around ONNX Runtime, which are fetched [default: the first two]
  bench scaling [ARGS]    the figures of docs/scaling.md: batch size, threads and instances, in one process and behind
                          the server; on an idle machine
  bench ray [ARGS]        throughput of one and of two workers of Ray on ResNet-50, on an idle machine
  onnx-suite [--backend NAME,...] [--every N] [--bless]
                          the ONNX backend suite: every n-th case on these backends, compared with the recorded
                          verdicts; --bless records those of the host
  onnx-fuzz --seed N --count M [--backend NAME,...] [--out DIR] [--op NAME] [--large] [--table]
                          M random graphs of ONNX operators on these backends, compared with ONNX Runtime; minimized
                          cases of what differs go to DIR [default: target/onnx-fuzz]
  exports [--backend NAME,...] [NAME..]
                          exports of known architectures by PyTorch, which is fetched, at several sizes on the host and
                          these backends, compared with ONNX Runtime
  export                  every model as a C program: with gcc under sanitizers, with clang, and on the processors for
                          which there are a compiler and an emulator; random graphs under sanitizers
  export --times [MODEL..]
                          a table of the times of exported programs beside ccompiler, on one thread
  export --random FIRST,COUNT
                          COUNT random graphs from seed FIRST on, exported and compared with the host under sanitizers
  vta                     the streams of ResNet-18 at full size for vta, in minutes: figures, schedules, removed tokens
  conformance [NAME..]    the conformance run of the plugins, in minutes, without waiving a claim
  package [--verify]      every crate packed as for a registry, in seconds; with --verify, the boundary and its helpers
                          are built from what was packed
  capi PREFIX             the C library, built and installed below a folder: headers, libbyoc.so and .a, byoc.pc
  words [--seed N]        doc comments that open with a relative clause, by crate; with --seed, comments, messages and
                          names drawn from the whole tree
  dist                    release archives in target/dist: the command line with its plugins, the library for C, the
                          server; unpacked and tried, in minutes
  test-arm                the command line and ccompiler for aarch64, and the recorded models on them under qemu-user,
                          in minutes
  wheel                   the Python wheel in target/wheels, with the plugins inside, checked
  docs                    the book of docs/ with the documentation of the crates beside it, in target/book
  fuzz TARGET [--minutes N]
                          fuzzing with untrusted inputs [default: 1 minute]; with coverage if cargo-fuzz is
                          installed (TARGET: a file of fuzz/fuzz_targets without its extension)
  sanitize [TARGET [--minutes N]]
                          the tests, or a target of fuzz, with AddressSanitizer
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["demo"] => demo::run(),
        ["fetch-onednn"] => onednn::fetch().map(|file| println!("{}", file.display())),
        ["test", rest @ ..] => test::run(rest),
        ["test-python"] => python::test_alone(onednn::fetch_if_possible().as_deref()),
        ["test-serve"] => serve::test(),
        ["soak", rest @ ..] => serve::soak(rest),
        ["test-torch"] => python::test_torch(onednn::fetch_if_possible().as_deref()),
        ["test-ray"] => python::test_ray(onednn::fetch_if_possible().as_deref()),
        ["bless", rest @ ..] => test::bless(rest),
        ["bench", "peers", rest @ ..] => peers::run(rest),
        ["bench", "serve", rest @ ..] => serve::bench(rest),
        ["bench", "scaling", rest @ ..] => python::bench("scaling.py", rest, onednn::fetch_if_possible().as_deref()),
        ["bench", "ray", rest @ ..] => python::bench("ray_workers.py", rest, onednn::fetch_if_possible().as_deref()),
        ["bench", rest @ ..] => test::bench(rest),
        ["onnx-suite", rest @ ..] => onnx_suite::run(rest),
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
        ["wheel"] => wheel::build(),
        ["docs"] => docs::run(),
        ["words", rest @ ..] => words::run(rest),
        ["fuzz", rest @ ..] => fuzz::fuzz(rest),
        ["sanitize", rest @ ..] => fuzz::sanitize(rest),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
