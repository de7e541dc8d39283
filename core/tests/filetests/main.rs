//! File tests: `tests/filetests/<kind>/*.relay`, with the expectations in the file; `BYOC_BLESS=1` rewrites the
//! expectations.
//!
//! A file holds one case, or several cases separated by lines `// ====`. The kind `emit`, generated code, is tested with
//! the crate `byoc`. The kinds:
//!
//! * `parse`: the program parses without errors, and the printed text parses to the same program.
//! * `error`: parsing or type inference produces exactly the errors in the comments, each `// error: E0101 message` at
//!   the end of the line of the error.
//! * `print`: the printed text follows a line `// ----`. With `// types` above, the program is typed first and printed
//!   with its types.
//! * `verifier`: the program parses without errors, and verification produces exactly the violations in the comments,
//!   written as in `error`. Where no text can break the rule, `// break: ...` changes the module as a faulty pass would
//!   (see `errors::damage`); with `// typed:`, the module is typed first, and the rules about types are checked, too.
//! * `pass`: `// pass: a, b` precedes the program, and the expected program follows a line `// ----`. Both are typed,
//!   and compared by structure. The module is verified after each pass. In place of the expected program, `// error:
//!   E0330 message` states that the passes fail, and `// unchanged` that the program stays as it is. Options, one per
//!   line: `// pattern: name: notation`, `// check: name: notation` (requirement of a backend on the original root, in
//!   addition to the pattern), `// annotate: target=op,op`, `// include-non-call-ops: false`, `// bind-constants:
//!   false`, `// module-name: m`, `// compiler: t`, `// layout: operator=data,kernel`, `// inline-bound-to: f, g`. The
//!   line `// type: T = Tensor[(2), float32]` defines `T` as an abbreviation of the type; `B[t](e)` and `E[t](e)` are
//!   `compiler_begin` and `compiler_end` of the target `t`.
//! * `match`: an expression; lines `// yes: pattern` list patterns that match the expression, and lines `// no:
//!   pattern` list patterns that do not.
//! * `patterns`: a pattern file; its diagnostics with line and column follow a line `# ----`.
//!
//! `// constant: float32 (2, 2): 1 2 3 4` defines `meta[relay.Constant][0]`, and the next such line
//! `meta[relay.Constant][1]`. A single value fills the whole constant, and so does `ramp`, with multiples of an eighth.

mod errors;
mod passes;
mod patterns;
#[path = "../shorthand.rs"]
mod shorthand;
mod texts;

use byoc_ir::diag::codes;
use byoc_test_support::filetest::{Outcome, check_file, files};
use libtest_mimic::{Arguments, Failed, Trial};
use std::path::Path;

/// Kinds of file tests: the directory, and the function that runs a case.
const KINDS: &[(&str, fn(&str) -> Outcome)] = &[
    ("parse", texts::parse_case),
    ("error", errors::error_case),
    ("print", texts::print_case),
    ("verifier", errors::verifier_case),
    ("pass", passes::pass_case),
    ("match", patterns::match_case),
    ("patterns", patterns::table_case),
];

fn main() {
    let arguments = Arguments::from_args();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests");
    let mut trials = Vec::new();
    for &(kind, run) in KINDS {
        for path in files(&root.join(kind)) {
            let name = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
            trials.push(Trial::test(format!("{kind}/{name}"), move || Ok(check_file(&path, run)?)));
        }
    }
    trials.push(Trial::test("every text and type code has a page and a case", move || check_codes(&root)));
    libtest_mimic::run(&arguments, trials).exit();
}

/// Checks that each diagnostic code of the text format and of types has a page in `docs/errors` and a case that expects
/// it.
fn check_codes(root: &Path) -> Result<(), Failed> {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/errors");
    let texts: String = ["error", "verifier"]
        .iter()
        .flat_map(|kind| files(&root.join(kind)))
        .map(|path| std::fs::read_to_string(path).unwrap_or_default())
        .collect();
    for &(code, title) in codes::text::ALL.iter().chain(codes::types::ALL) {
        let page = std::fs::read_to_string(pages.join(format!("{code}.md"))).unwrap_or_default();
        if !page.starts_with(&format!("# {code}: {title}\n")) {
            let first = page.lines().next().unwrap_or_default();
            return Err(format!("docs/errors/{code}.md: expected \"# {code}: {title}\", found \"{first}\"").into());
        }
        // This error requires source text of more than 1 GiB, which is too large for a test file.
        if code != codes::text::TOO_LARGE && !texts.contains(&format!("// error: {code} ")) {
            return Err(format!("expected a case for {code}, found none").into());
        }
    }
    Ok(())
}
