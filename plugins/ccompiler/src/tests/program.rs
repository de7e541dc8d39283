//! Tests of regions as standalone programs: compiled as strict C99 with sanitizers, run in a separate process, and
//! compared with the naive evaluator.

use super::harness::Case;
use super::naive;
use byoc_loops::form::Machine;
use byoc_loops::single_file::single_file;
use std::fmt::Write;
use std::process::Command;

const STRICT_FLAGS: &[&str] = &["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wconversion", "-O1"];
const SANITIZER_FLAGS: &[&str] = &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// Runs a region as a standalone program for each machine; returns the machine names and the outputs.
pub fn run(case: &Case) -> Vec<(&'static str, Vec<naive::Array>)> {
    let mut results = Vec::new();
    for (name, flags) in [("generic", &[][..]), ("x86-64-v3", &["-march=x86-64-v3"])] {
        let machine = Machine::of_target(name).unwrap();
        if machine.vectors && !crate::cpu::features().iter().any(|feature| feature == "fma") {
            continue;
        }
        let program = single_file(&case.graph, &case.constants, machine).unwrap_or_else(|error| panic!("{error}"));
        if machine.vectors && !program.text.contains("byoc_vector") {
            continue;
        }
        results.push((name, run_text(case, &program.text, program.workspace, flags)));
    }
    results
}

fn run_text(case: &Case, text: &str, workspace: i64, flags: &[&str]) -> Vec<naive::Array> {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
    let types: Vec<_> = case.graph.output_types().cloned().collect();
    let output_sizes: Vec<usize> = types.iter().map(|ty| ty.element_count().unwrap() * ty.dtype.size()).collect();
    for (i, input) in case.inputs.iter().enumerate() {
        write(&format!("in{i}"), &input.bytes());
    }
    write("region.c", text.as_bytes());
    let inputs: Vec<usize> = case.inputs.iter().map(|input| input.bytes().len()).collect();
    write("main.c", main_text(&inputs, &output_sizes, workspace).as_bytes());
    let mut compile = Command::new("cc");
    compile.args(STRICT_FLAGS).args(SANITIZER_FLAGS).args(flags).args(["region.c", "main.c", "-o", "run", "-lm"]);
    run_command(compile.current_dir(dir.path()), text);
    run_command(Command::new("./run").current_dir(dir.path()), text);
    let outputs = types.iter().enumerate().map(|(i, ty)| {
        let bytes = std::fs::read(dir.path().join(format!("out{i}"))).unwrap();
        naive::Array::read(ty.dtype, ty.shape().unwrap(), &super::harness::words(&bytes))
    });
    outputs.collect()
}

fn run_command(command: &mut Command, text: &str) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
}

/// Returns C code that reads the inputs from files and writes the outputs to files. Every tensor has its own
/// allocation, so that sanitizers detect out-of-range accesses.
fn main_text(inputs: &[usize], outputs: &[usize], workspace: i64) -> String {
    let mut text = String::from("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n");
    let w = &mut text;
    let _ = writeln!(w, "void region_0(const void *const *, void *const *, const void *const *, void *);");
    let _ = writeln!(w, "int main(void) {{");
    let _ = writeln!(w, "    const void *in[{}];\n    void *out[{}];", inputs.len().max(1), outputs.len());
    let _ = writeln!(w, "    void *work = malloc({});\n    FILE *file;", workspace.max(1));
    let _ = writeln!(w, "    in[0] = 0;\n    memset(work, 0xff, {});", workspace.max(1));
    for (i, size) in inputs.iter().enumerate() {
        let _ = writeln!(
            w,
            "    {{\n        void *data = malloc({size});\n        file = fopen(\"in{i}\", \"rb\");\n        \
             if (!file || fread(data, 1, {size}, file) != {size})\n            return 1;\n        \
             fclose(file);\n        in[{i}] = data;\n    }}"
        );
    }
    for (i, size) in outputs.iter().enumerate() {
        let _ = writeln!(w, "    out[{i}] = malloc({size});\n    memset(out[{i}], 0xff, {size});");
    }
    let _ = writeln!(w, "    region_0(in, out, 0, work);");
    for (i, size) in outputs.iter().enumerate() {
        let _ = writeln!(
            w,
            "    file = fopen(\"out{i}\", \"wb\");\n    if (!file || fwrite(out[{i}], 1, {size}, file) != {size})\n        \
             return 1;\n    fclose(file);\n    free(out[{i}]);"
        );
    }
    for i in 0..inputs.len() {
        let _ = writeln!(w, "    free((void *)in[{i}]);");
    }
    text.push_str("    free(work);\n    return 0;\n}\n");
    text
}
