//! Checking program, which runs the model on recorded inputs and compares the outputs.

use crate::code::heading;
use crate::exported::{ExportedModel, Port, RecordedValues};
use byoc_loops::print::c_types::storage_type;
use byoc_loops::single_file::definition;
use byoc_plugin_api::DType;
use std::fmt::Write;

/// Returns the header of the checking program with the recorded values.
pub fn recorded_cases(e: &ExportedModel<'_>, cases: &RecordedValues) -> String {
    let mut text = heading(e, "recorded inputs and outputs");
    let capital = e.options.prefix.to_uppercase();
    let _ = writeln!(
        text,
        "#ifndef {capital}_RECORDED_H\n#define {capital}_RECORDED_H\n\n#include <math.h>\n#include <stdint.h>\n"
    );
    for (kind, ports, values) in [("in", &e.inputs, &cases.inputs), ("out", &e.outputs, &cases.outputs)] {
        for (port, value) in ports.iter().zip(values) {
            text.push_str(&definition(
                "static const ",
                &format!("{kind}_{}", port.identifier),
                port.dtype,
                value.bytes(),
            ));
            text.push('\n');
        }
    }
    text.push_str("#endif\n");
    text
}

/// Returns the maximum relative error of a passing output, max |a - b| / max |b|. Float16 results are rounded to 11
/// bits and may differ in the last bit; rounded weights produce results that differ from the recorded ones.
fn tolerance(dtype: DType, half_weights: bool) -> &'static str {
    match dtype {
        _ if half_weights => "1e-2",
        DType::F16 => "2e-3",
        _ => "5e-4",
    }
}

/// Tests for a floating-point output type.
fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::F32 | DType::F64)
}

const HALF: &str = "
/* Value of a float16. */
static double half(uint16_t bits) {
    const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
    const double finite = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    const double x = exponent < 31 ? finite : mantissa ? (double)NAN : (double)INFINITY;
    return bits & 0x8000 ? -x : x;
}
";

const REPORT: &str = "
/* Prints the largest difference relative to the largest expected value, and returns 1 if it is too large. */
static int report(const char *name, double difference, double largest, double tolerance) {
    const double error = largest > 0.0 ? difference / largest : difference;
    const int wrong = !(error <= tolerance);
    printf(\"%s: max relative error %.2e: %s\\n\", name, error, wrong ? \"FAIL\" : \"pass\");
    return wrong;
}
";

const REPORT_EXACT: &str = "
/* Prints the number of differing elements, and returns 1 if there are any. */
static int report_exact(const char *name, long differing) {
    printf(\"%s: %ld elements differ: %s\\n\", name, differing, differing ? \"FAIL\" : \"pass\");
    return differing != 0;
}
";

/// C code that provides the weights, which are linked or read from a file.
const WEIGHTS: &str = "
#ifdef MODEL_WEIGHTS_LINKED
extern const unsigned char _binary_@PREFIX@_weights_bin_start[];

static const void *weights(int argc, char **argv) {
    (void)argc;
    (void)argv;
    return _binary_@PREFIX@_weights_bin_start;
}
#else
/* Returns the weights from a file: the first argument, or @PREFIX@_weights.bin. */
static const void *weights(int argc, char **argv) {
    static union {
        int64_t align;
        unsigned char bytes[@CAPITAL@_WEIGHTS_BYTES];
    } memory;
    FILE *file = fopen(argc > 1 ? argv[1] : \"@PREFIX@_weights.bin\", \"rb\");
    size_t count;
    if (!file)
        return 0;
    count = fread(memory.bytes, 1, sizeof memory.bytes, file);
    fclose(file);
    return count == sizeof memory.bytes ? memory.bytes : 0;
}
#endif
";

/// Returns the source of the checking program.
pub fn main(e: &ExportedModel<'_>) -> String {
    let prefix = &e.options.prefix;
    let capital = prefix.to_uppercase();
    let mut text = heading(e, "runs recorded inputs and checks the outputs");
    let w = &mut text;
    let _ = writeln!(
        w,
        "#include \"{prefix}.h\"\n#include \"{prefix}_recorded.h\"\n#include <math.h>\n#include <stdio.h>\n"
    );
    let _ = writeln!(w, "static {prefix} instance;");
    for port in &e.outputs {
        let ty = storage_type(port.dtype).unwrap_or("uint8_t");
        let id = &port.identifier;
        let _ = writeln!(w, "static {ty} result_{id}[{capital}_OUT_{}_COUNT];", id.to_uppercase());
    }
    let has_output = |condition: fn(DType) -> bool| e.outputs.iter().any(|port| condition(port.dtype));
    for (is_needed, part) in [
        (has_output(|dtype| dtype == DType::F16), HALF),
        (has_output(is_float), REPORT),
        (has_output(|dtype| !is_float(dtype)), REPORT_EXACT),
        (e.has_weights_file(), WEIGHTS),
    ] {
        if is_needed {
            w.push_str(&part.replace("@PREFIX@", prefix).replace("@CAPITAL@", &capital));
        }
    }
    let (arguments, init) = match e.has_weights_file() {
        true => ("int argc, char **argv", "&instance, weights(argc, argv)"),
        false => ("void", "&instance"),
    };
    let _ = writeln!(w, "\nint main({arguments}) {{");
    let _ = writeln!(w, "    {prefix}_inputs inputs;\n    {prefix}_outputs outputs;\n    int failed = 0;");
    for port in &e.inputs {
        let _ = writeln!(w, "    inputs.{0} = in_{0};", port.identifier);
    }
    for port in &e.outputs {
        let _ = writeln!(w, "    outputs.{0} = result_{0};", port.identifier);
    }
    let _ = writeln!(w, "    printf(\"arena: %ld bytes\\n\", (long){capital}_ARENA_BYTES);");
    let _ = writeln!(
        w,
        "    if ({prefix}_init({init}) != 0 || {prefix}_run(&instance, &inputs, &outputs) != 0) {{\n        \
         printf(\"the run failed\\n\");\n        return 1;\n    }}"
    );
    for port in &e.outputs {
        check_output(w, port, &capital, e.options.half_weights);
    }
    let _ = writeln!(w, "    return failed;\n}}");
    text
}

/// Writes the comparison of an output.
fn check_output(w: &mut String, port: &Port, capital: &str, half_weights: bool) {
    let id = &port.identifier;
    let count = format!("{capital}_OUT_{}_COUNT", id.to_uppercase());
    let name = port.name.replace(['\\', '"', '%'], "_").replace(|c: char| c.is_control(), "_");
    if is_float(port.dtype) {
        let value = |element: String| match port.dtype {
            DType::F16 => format!("half({element})"),
            _ => format!("(double){element}"),
        };
        let (x, y) = (value(format!("result_{id}[i]")), value(format!("out_{id}[i]")));
        let _ = writeln!(
            w,
            "    {{\n        double difference = 0.0, largest = 0.0;\n        for (long i = 0; i < {count}; ++i) {{\n            \
             const double x = {x}, y = {y};\n            \
             const double d = x == y || (x != x && y != y) ? 0.0 : fabs(x - y);\n            \
             difference = d > difference || d != d ? d : difference;\n            \
             largest = fabs(y) > largest && fabs(y) < HUGE_VAL ? fabs(y) : largest;\n        }}\n        \
             failed |= report(\"{name}\", difference, largest, {});\n    }}",
            tolerance(port.dtype, half_weights)
        );
    } else {
        let _ = writeln!(
            w,
            "    {{\n        long differing = 0;\n        for (long i = 0; i < {count}; ++i)\n            \
             differing += result_{id}[i] != out_{id}[i];\n        \
             failed |= report_exact(\"{name}\", differing);\n    }}"
        );
    }
}
