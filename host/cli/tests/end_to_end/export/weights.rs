//! Weights files of exported programs: read at run time, linked, and invalid.

use super::{SANITIZER_FLAGS, digits, exists, export, output, quantized_digits};
use crate::isolated_command;
use std::process::Command;

#[test]
fn weights_are_a_file_that_is_read() {
    let project = digits(&["--weights", "file"]);
    let sources = project.sources();
    assert!(!sources.iter().any(|file| file.contains("weights")), "{sources:?}");
    assert_eq!(project.metadata["weights"], "file");
    let program = project.compile("cc", SANITIZER_FLAGS, &[]);
    let run =
        |arguments: &[&str]| isolated_command(&program).current_dir(&project.dir).args(arguments).output().unwrap();
    assert!(run(&[]).status.success(), "{:?}", run(&[]));
    // Invalid files: the weights of a different model, a truncated file, and a missing file.
    let (_dir, quantized_model) = quantized_digits(&[]);
    let other_project = export(&quantized_model, &["--weights", "file"]);
    let mut content = std::fs::read(other_project.dir.join("model_weights.bin")).unwrap();
    content.resize(1 << 20, 0);
    std::fs::write(project.dir.join("other.bin"), &content).unwrap();
    std::fs::write(project.dir.join("short.bin"), &content[..100]).unwrap();
    for wrong_file in ["other.bin", "short.bin", "none.bin"] {
        let run = run(&[wrong_file]);
        assert_eq!(run.status.code(), Some(1), "{wrong_file}: {run:?}");
        assert!(String::from_utf8_lossy(&run.stdout).contains("the run failed"), "{wrong_file}: {run:?}");
    }
}

#[test]
fn weights_are_linked_as_an_object_file() {
    if !exists("ld") || !exists("objcopy") || !exists("make") {
        eprintln!("skipped: requires make, ld and objcopy");
        return;
    }
    let (_dir, quantized_model) = quantized_digits(&[]);
    let project = export(&quantized_model, &["--weights", "file", "--prefix", "net"]);
    let make = |arguments: &[&str]| output(Command::new("make").arg("-C").arg(&project.dir).args(arguments));
    assert!(make(&["check"]).contains("0.00e+00: pass"));
    make(&["clean"]);
    make(&["check_model", "LINKED=1"]);
    std::fs::remove_file(project.dir.join("net_weights.bin")).unwrap();
    let out = output(isolated_command(project.dir.join("check_model")).current_dir(&project.dir));
    assert!(out.contains("0.00e+00: pass"), "{out}");
}

/// Tests that several instances share weights in memory owned by the caller.
#[test]
fn an_instance_is_given_its_weights() {
    let project = digits(&["--weights", "file"]);
    let main = "#include \"model.h\"\n#include <stdio.h>\n#include <string.h>\n\
        static model a, b;\nstatic union {\n    int64_t align;\n    unsigned char bytes[MODEL_WEIGHTS_BYTES + 8];\n} w;\n\
        int main(void) {\n    static float x[64], y[2][10];\n    model_inputs in;\n    model_outputs out;\n    \
        FILE *file = fopen(\"model_weights.bin\", \"rb\");\n    \
        if (!file || fread(w.bytes, 1, MODEL_WEIGHTS_BYTES, file) != MODEL_WEIGHTS_BYTES)\n        return 2;\n    \
        fclose(file);\n    x[5] = 1.0f;\n    in.image = x;\n    \
        if (model_init(&a, w.bytes) || model_init(&b, w.bytes))\n        return 3;\n    \
        out.logits = y[0];\n    if (model_run(&a, &in, &out))\n        return 4;\n    \
        out.logits = y[1];\n    if (model_run(&b, &in, &out))\n        return 5;\n    \
        if (memcmp(y[0], y[1], sizeof y[0]) != 0 || model_init(&a, 0) != -1)\n        return 6;\n    \
        memmove(w.bytes + 1, w.bytes, MODEL_WEIGHTS_BYTES);\n    return model_init(&a, w.bytes + 1) != -1;\n}\n";
    std::fs::write(project.dir.join("main.c"), main).unwrap();
    let program = project.compile("cc", SANITIZER_FLAGS, &[]);
    output(isolated_command(program).current_dir(&project.dir));
}
