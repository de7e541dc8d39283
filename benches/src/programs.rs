//! Synthetic modules, generated as text. Each is structured to expose high complexity in a pass.

use std::fmt::Write;

/// Family of modules.
#[derive(Clone, Copy)]
pub struct ProgramFamily {
    /// Name in the tables.
    pub name: &'static str,
    /// Returns a module with at least the given number of operator calls, and the actual number.
    pub text: fn(usize) -> (String, usize),
}

/// All families.
pub const PROGRAMS: &[ProgramFamily] = &[
    ProgramFamily { name: "chain", text: chain },
    ProgramFamily { name: "diamonds", text: diamonds },
    ProgramFamily { name: "wide", text: wide },
    ProgramFamily { name: "alternating", text: alternating },
    ProgramFamily { name: "convolutions", text: convolutions },
    ProgramFamily { name: "ladder", text: ladder },
    ProgramFamily { name: "fan", text: fan },
    ProgramFamily { name: "skips", text: skips },
    ProgramFamily { name: "lets", text: lets },
    ProgramFamily { name: "functions", text: functions },
];

/// Returns the family with the given name.
pub fn find(name: &str) -> Option<ProgramFamily> {
    PROGRAMS.iter().copied().find(|program| program.name == name)
}

/// Lines of a function body.
struct Body {
    text: String,
    lines: usize,
    operators: usize,
}

impl Body {
    fn new(header: &str) -> Body {
        Body { text: format!("#[version = \"0.0.5\"]\n{header} {{\n"), lines: 0, operators: 0 }
    }

    /// Adds a line `%N = ...;` and returns `%N`.
    fn line(&mut self, expression: std::fmt::Arguments<'_>) -> String {
        let _ = writeln!(self.text, "  %{} = {expression};", self.lines);
        self.lines += 1;
        format!("%{}", self.lines - 1)
    }

    /// Adds a line that calls an operator.
    fn op(&mut self, call: std::fmt::Arguments<'_>) -> String {
        self.operators += 1;
        self.line(call)
    }

    fn end(mut self, result: &str) -> (String, usize) {
        let _ = writeln!(self.text, "  {result}\n}}");
        (self.text, self.operators)
    }
}

const HEADER: &str = "def @main(%x: Tensor[(1, 64), float32])";

/// Returns a chain of operators, which forms one huge region.
fn chain(operators: usize) -> (String, usize) {
    let mut body = Body::new(HEADER);
    let mut last_value = "%x".to_owned();
    while body.operators < operators {
        last_value = body.op(format_args!("nn.relu({last_value})"));
    }
    body.end(&last_value)
}

/// Returns a sequence of diamonds: two paths from each value to the next.
fn diamonds(operators: usize) -> (String, usize) {
    let mut body = Body::new(HEADER);
    let mut last_value = "%x".to_owned();
    while body.operators < operators {
        let relu = body.op(format_args!("nn.relu({last_value})"));
        let tanh = body.op(format_args!("tanh({last_value})"));
        last_value = body.op(format_args!("add({relu}, {tanh})"));
    }
    body.end(&last_value)
}

/// Returns layers of a thousand operators on one value, each followed by a concatenation.
fn wide(operators: usize) -> (String, usize) {
    let mut body = Body::new(HEADER);
    let mut last_value = "%x".to_owned();
    while body.operators < operators {
        let fields: Vec<String> = (0..1000).map(|_| body.op(format_args!("nn.relu({last_value})"))).collect();
        let tuple = body.line(format_args!("({})", fields.join(", ")));
        let concat = body.op(format_args!("concatenate({tuple})"));
        last_value = body.op(format_args!("sum({concat}, axis=[0], keepdims=True)"));
    }
    body.end(&last_value)
}

/// Returns operators that alternate between three backends and the host, and thus form many small regions.
fn alternating(operators: usize) -> (String, usize) {
    let mut body = Body::new(HEADER);
    let mut last_value = "%x".to_owned();
    while body.operators < operators {
        for op in ["nn.relu", "sigmoid", "tanh", "exp", "sqrt"] {
            last_value = body.op(format_args!("{op}({last_value})"));
        }
    }
    body.end(&last_value)
}

/// Returns blocks that match the long patterns, and thus form one huge region of composites.
fn convolutions(operators: usize) -> (String, usize) {
    let mut body = Body::new(
        "def @main(%x: Tensor[(1, 8, 6, 6), float32], %w: Tensor[(8, 8, 3, 3), float32], \
         %b: Tensor[(8, 1, 1), float32])",
    );
    let mut last_value = "%x".to_owned();
    while body.operators < operators {
        let sum =
            body.op(format_args!("nn.conv2d({last_value}, %w, padding=[1, 1, 1, 1], channels=8, kernel_size=[3, 3])"));
        let sum = body.op(format_args!("add({sum}, %b)"));
        let gate = body.op(format_args!("sigmoid({sum})"));
        let gated_sum = body.op(format_args!("multiply({sum}, {gate})"));
        last_value = body.op(format_args!("add({gated_sum}, {last_value})"));
    }
    body.end(&last_value)
}

/// Returns two chains on different backends with edges in both directions: each merge must be checked for cycles.
fn ladder(operators: usize) -> (String, usize) {
    let mut body = Body::new(HEADER);
    let (mut left, mut right) = ("%x".to_owned(), "%x".to_owned());
    while body.operators < operators {
        left = body.op(format_args!("nn.relu({left})"));
        right = body.op(format_args!("sigmoid({right})"));
        let maximum = body.op(format_args!("maximum({left}, {right})"));
        right = body.op(format_args!("subtract({right}, {left})"));
        left = maximum;
    }
    let sum = body.op(format_args!("add({left}, {right})"));
    body.end(&sum)
}

/// Returns a module in which half of the operators use the same value.
fn fan(operators: usize) -> (String, usize) {
    let mut body = Body::new(HEADER);
    let source = body.op(format_args!("nn.relu(%x)"));
    let mut sum = source.clone();
    while body.operators < operators {
        let part = body.op(format_args!("tanh({source})"));
        sum = body.op(format_args!("add({sum}, {part})"));
    }
    body.end(&sum)
}

/// Returns a chain in which each operator also reads the value halfway back to the beginning.
fn skips(operators: usize) -> (String, usize) {
    let mut body = Body::new(HEADER);
    let mut last_value = body.op(format_args!("nn.relu(%x)"));
    while body.operators < operators {
        let half = body.lines / 2;
        let op = ["add", "maximum", "subtract"][body.lines % 3];
        last_value = body.op(format_args!("{op}({last_value}, %{half})"));
    }
    body.end(&last_value)
}

/// Returns operators bound by nested lets.
fn lets(operators: usize) -> (String, usize) {
    let mut text = format!("#[version = \"0.0.5\"]\n{HEADER} {{\n");
    let mut last_value = "%x".to_owned();
    for i in 0..operators {
        let op = ["nn.relu", "sigmoid"][i % 2];
        let _ = writeln!(text, "  let %v{i}: Tensor[(1, 64), float32] = {op}({last_value});");
        last_value = format!("%v{i}");
    }
    let _ = writeln!(text, "  {last_value}\n}}");
    (text, operators)
}

/// Returns functions of ten operators each, called in sequence.
fn functions(operators: usize) -> (String, usize) {
    let mut text = "#[version = \"0.0.5\"]\n".to_owned();
    let count = operators.div_ceil(10);
    for i in 0..count {
        let _ = writeln!(text, "def @f{i}(%x: Tensor[(1, 64), float32]) -> Tensor[(1, 64), float32] {{");
        for line in 0..10 {
            let op = ["nn.relu", "tanh", "sigmoid", "exp", "sqrt"][line % 5];
            let operand = if line == 0 { "%x".to_owned() } else { format!("%{}", 10 * i + line - 1) };
            let _ = writeln!(text, "  %{} = {op}({operand});", 10 * i + line);
        }
        let _ = writeln!(text, "  %{}\n}}", 10 * i + 9);
    }
    let _ = writeln!(text, "{HEADER} {{");
    for i in 0..count {
        let operand = if i == 0 { "%x".to_owned() } else { format!("%{}", 10 * count + i - 1) };
        let _ = writeln!(text, "  %{} = @f{i}({operand});", 10 * count + i);
    }
    let _ = writeln!(text, "  %{}\n}}", 11 * count - 1);
    (text, 10 * count)
}
