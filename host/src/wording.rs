//! Translation of the options and commands in messages for each interface.
//!
//! Messages, help texts and plugin hints name an option in command-line notation: `--dim batch=4`. Users of the library
//! have no such options, so the library interfaces replace the options listed in [`ROWS`] with the equivalent calls.
//! Texts that have not reached an interface, including those in artifacts, stay in command-line notation.

use byoc_ir::diag::Diagnostic;
use byoc_ir::escape;
use std::borrow::Cow;

/// User interface of the project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interface {
    /// The commands `byoc` and `byoc-serve`.
    CommandLine,
    /// The crate `byoc`.
    Rust,
    /// `byoc.h` and `byoc.hpp`.
    C,
    /// The Python package `byoc`.
    Python,
}

/// Option or command and its replacement in each library interface. `{}` stands for a name, which the replacement
/// repeats.
struct Row {
    command_line: &'static str,
    rust: &'static str,
    c: &'static str,
    python: &'static str,
}

/// All rows; the first matching row applies.
const ROWS: &[Row] = &[
    row(
        r#"pass the input to "byoc run""#,
        "specify the shape of the input with CompileOptions::input_shape",
        "specify the shape of the input in byoc_compile_options.input_shapes",
        "specify the shape of the input with input_shapes={NAME: SHAPE}",
    ),
    row(
        "pass a value for the input: --input {}=FILE",
        r#"specify the shape of the input: CompileOptions::input_shape("{}", SHAPE)"#,
        r#"specify the shape of the input: byoc_input_shape{"{}", SHAPE, RANK}"#,
        r#"specify the shape of the input: input_shapes={"{}": SHAPE}"#,
    ),
    row(
        "give each input once: --input NAME=FILE",
        "give each input once, by name or in the order of Model::inputs",
        "give each input once, in the order of byoc_model_input",
        "give each input once: model.run({NAME: ARRAY})",
    ),
    row(r#"--dim "{}=?""#, r#"CompileOptions::open_dim("{}", [])"#, r#"byoc_dim{"{}", -1}"#, r#"dims={"{}": None}"#),
    row(
        "--dim {}=N,N..",
        r#"CompileOptions::open_dim("{}", [N, ..])"#,
        r#"byoc_dim{"{}", N}"#,
        r#"dims={"{}": [N, ...]}"#,
    ),
    row("--dim {}=N", r#"CompileOptions::dim("{}", N)"#, r#"byoc_dim{"{}", N}"#, r#"dims={"{}": N}"#),
    row(
        "run the model with --backend none",
        "load an artifact that was compiled without a backend",
        "load an artifact that was compiled without a backend",
        "load an artifact that was compiled without a backend",
    ),
    row("--backend none", "no CompileOptions::backend", "byoc_compile_options.backend_count = 0", "backend=None"),
    row(
        "--backend is missing",
        "CompileOptions::backend is missing",
        "byoc_compile_options.backends is empty",
        "backend= is missing",
    ),
    row(
        "--backend {}",
        r#"CompileOptions::backend("{}")"#,
        r#"byoc_compile_options.backends = {"{}"}"#,
        r#"backend="{}""#,
    ),
    row(
        "--precision {}",
        r#"CompileOptions::precision("{}".parse()?)"#,
        r#"byoc_compile_options.precision = "{}""#,
        r#"precision="{}""#,
    ),
    row(
        "--backend-option {}",
        "CompileOptions::backend_option: {}",
        "byoc_compile_options.backend_options: {}",
        "options: {}",
    ),
    row(
        "--plugin-dir DIR",
        "SessionBuilder::plugin_dir(DIR)",
        "byoc_session_options.plugin_dirs = {DIR}",
        "byoc.configure(plugin_dirs=[DIR])",
    ),
    row("--plugin-dir", "SessionBuilder::plugin_dir", "byoc_session_options.plugin_dirs", "plugin_dirs="),
    row(
        "--timeout SECONDS",
        "RunOptions::timeout or CompileOptions::cancel",
        "byoc_run_options.timeout_seconds",
        "timeout=SECONDS",
    ),
    row(
        "--max-memory SIZE",
        "SessionBuilder::max_memory(BYTES)",
        "byoc_session_options.max_memory = BYTES",
        "byoc.configure(max_memory=BYTES)",
    ),
    row(
        "--allow-native no",
        "SessionBuilder::allow_native(false)",
        "byoc_session_options.refuse_native_code = 1",
        "byoc.Session(allow_native=False)",
    ),
    row(
        "byoc compile MODEL -o FILE.byoc writes an artifact",
        "Compilation::save writes an artifact",
        "byoc_model_save writes an artifact",
        "Model.save writes an artifact",
    ),
    row("byoc explain", "Model::explanation", "byoc_model_explanation", "model.explain()"),
    row("--opset {}", "Options::opset = Some({})", "byoc_onnx_options.opset = {}", "opset={}"),
    row("--emit {}", "`byoc compile --emit {}`", "`byoc compile --emit {}`", "`byoc compile --emit {}`"),
    // Rust and C have no functions for these commands, so the replacements repeat the commands.
    row(
        "byoc quantize MODEL --calibrate DATA --backend {} -o FILE.relay",
        "byoc quantize MODEL --calibrate DATA --backend {} -o FILE.relay",
        "byoc quantize MODEL --calibrate DATA --backend {} -o FILE.relay",
        r#"byoc.quantize(MODEL, DATA, "FILE.relay", backend="{}")"#,
    ),
    row(
        r#"run "byoc quantize --backend {}", or --scheme symmetric,power-of-two,"#,
        r#"run "byoc quantize --backend {}", or "byoc quantize --scheme symmetric,power-of-two","#,
        r#"run "byoc quantize --backend {}", or "byoc quantize --scheme symmetric,power-of-two","#,
        r#"call byoc.quantize with backend="{}", or with scheme="symmetric,power-of-two","#,
    ),
    row(
        r#"run "byoc quantize --backend {}""#,
        r#"run "byoc quantize --backend {}""#,
        r#"run "byoc quantize --backend {}""#,
        r#"call byoc.quantize with backend="{}""#,
    ),
    row(r#"run "byoc quantize""#, r#"run "byoc quantize""#, r#"run "byoc quantize""#, "call byoc.quantize"),
    row("--scheme", "`byoc quantize --scheme`", "`byoc quantize --scheme`", "scheme="),
    row("--calibrate {}", "`byoc quantize --calibrate {}`", "`byoc quantize --calibrate {}`", r#"calibrate="{}""#),
    row("--keep none", "`byoc quantize --keep none`", "`byoc quantize --keep none`", r#"arguments=["--keep", "none"]"#),
];

const fn row(command_line: &'static str, rust: &'static str, c: &'static str, python: &'static str) -> Row {
    Row { command_line, rust, c, python }
}

impl Row {
    fn words(&self, interface: Interface) -> &'static str {
        match interface {
            Interface::CommandLine => self.command_line,
            Interface::Rust => self.rust,
            Interface::C => self.c,
            Interface::Python => self.python,
        }
    }

    /// Matches the row at the start of a string. Returns the length of the match and the name at `{}`.
    fn matches<'t>(&self, text: &'t str) -> Option<(usize, &'t str)> {
        let Some((before, after)) = self.command_line.split_once("{}") else {
            return text.starts_with(self.command_line).then_some((self.command_line.len(), ""));
        };
        let tail = text.strip_prefix(before)?;
        let name = match after.chars().next() {
            Some(end) => &tail[..tail.find(|c: char| c == end || c.is_whitespace())?],
            None => tail[..tail.find(|c: char| !is_name(c)).unwrap_or(tail.len())].trim_end_matches(['.', ',']),
        };
        let is_match = !name.is_empty() && tail[name.len()..].starts_with(after);
        is_match.then_some((before.len() + name.len() + after.len(), name))
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || "_-.,/".contains(c)
}

impl Interface {
    /// Translates a message from command-line notation to the notation of this interface.
    pub fn words(self, text: &str) -> Cow<'_, str> {
        if self == Interface::CommandLine || !(text.contains("--") || text.contains("byoc ")) {
            return Cow::Borrowed(text);
        }
        let mut output = String::with_capacity(text.len());
        let (mut remainder, mut inside_word) = (text, false);
        while let Some(next) = remainder.chars().next() {
            let found_row = ROWS.iter().filter(|_| !inside_word).find_map(|row| Some((row, row.matches(remainder)?)));
            let consumed_length = match found_row {
                Some((row, (length, name))) => {
                    output.push_str(&row.words(self).replace("{}", name));
                    length
                }
                None => {
                    output.push(next);
                    next.len_utf8()
                }
            };
            inside_word =
                remainder[..consumed_length].chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '-');
            remainder = &remainder[consumed_length..];
        }
        Cow::Owned(output)
    }

    /// Translates a diagnostic. Its texts become exceptions, error objects and log lines, so what a terminal would
    /// interpret is escaped.
    pub fn diagnostic(self, diagnostic: &Diagnostic) -> Diagnostic {
        let lines = |text: &String| escape::lines(&self.words(text)).into_owned();
        Diagnostic {
            message: escape::line(&self.words(&diagnostic.message)).into_owned(),
            notes: diagnostic.notes.iter().map(lines).collect(),
            help: diagnostic.help.as_ref().map(lines),
            ..diagnostic.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_ir::diag::Code;

    #[test]
    fn texts_for_other_programs_are_escaped() {
        let text = "\u{1b}[2J\u{9b}\u{202e}\r";
        let diagnostic =
            Diagnostic::error(Code(1), format!("a\nb{text}")).note(format!("c\nd{text}")).help(format!("e\nf{text}"));
        let escaped = "\\u{1b}[2J\\u{9b}\\u{202e}\\r";
        let expected = Diagnostic::error(Code(1), format!("a\\nb{escaped}"))
            .note(format!("c\nd{escaped}"))
            .help(format!("e\nf{escaped}"));
        for interface in [Interface::CommandLine, Interface::Rust, Interface::C, Interface::Python] {
            assert_eq!(interface.diagnostic(&diagnostic), expected);
        }
    }

    fn all(text: &str) -> [String; 3] {
        [Interface::Rust, Interface::C, Interface::Python].map(|interface| interface.words(text).into_owned())
    }

    #[test]
    fn options_become_calls() {
        assert_eq!(
            all(r#"bind it with --dim batch=N, or pass the input to "byoc run"; --dim "batch=?" keeps it symbolic"#),
            [
                r#"bind it with CompileOptions::dim("batch", N), or specify the shape of the input with CompileOptions::input_shape; CompileOptions::open_dim("batch", []) keeps it symbolic"#,
                r#"bind it with byoc_dim{"batch", N}, or specify the shape of the input in byoc_compile_options.input_shapes; byoc_dim{"batch", -1} keeps it symbolic"#,
                r#"bind it with dims={"batch": N}, or specify the shape of the input with input_shapes={NAME: SHAPE}; dims={"batch": None} keeps it symbolic"#,
            ]
        );
        assert_eq!(
            all("did you mean --backend mine?")[..],
            [
                r#"did you mean CompileOptions::backend("mine")?"#,
                r#"did you mean byoc_compile_options.backends = {"mine"}?"#,
                r#"did you mean backend="mine"?"#
            ]
        );
        assert_eq!(
            Interface::Python.words("bind the dimensions: --dim a.0=N --dim b=N"),
            r#"bind the dimensions: dims={"a.0": N} dims={"b": N}"#
        );
    }

    #[test]
    fn everything_else_stays() {
        for text in
            ["no C compiler: `cc --version` fails", "\"byoc ops\" lists the operators", "a--dim x=N", "", "-- byoc "]
        {
            for interface in [Interface::CommandLine, Interface::Rust, Interface::C, Interface::Python] {
                assert_eq!(interface.words(text), text);
            }
        }
        let text = "bind it with --dim batch=N";
        assert_eq!(Interface::CommandLine.words(text), text);
        // No row matches part of a word, and a name is never empty.
        assert_eq!(Interface::Python.words("--dim =N --dim x"), "--dim =N --dim x");
    }

    #[test]
    fn names_may_hold_any_character() {
        assert_eq!(Interface::Python.words("--dim größe=N"), "dims={\"größe\": N}");
        assert_eq!(Interface::Python.words("--input a/b:0=FILE"), "--input a/b:0=FILE");
        assert_eq!(
            Interface::Python.words("pass a value for the input: --input a/b:0=FILE"),
            "specify the shape of the input: input_shapes={\"a/b:0\": SHAPE}"
        );
    }
}
