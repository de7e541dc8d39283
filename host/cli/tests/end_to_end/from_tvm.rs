//! Commands and excerpts of `docs/from-tvm.md`: every `$ byoc` line runs, and every excerpt is part of the file that
//! the page names.

use crate::{command, to_command_output};
use byoc_test_support::{plugin_dir, temporary_folder, workspace};

fn page() -> String {
    std::fs::read_to_string(workspace().join("docs/from-tvm.md")).unwrap()
}

/// Returns the fenced blocks in `language`, each with the text since the preceding block.
fn blocks<'p>(page: &'p str, language: &str) -> Vec<(&'p str, &'p str)> {
    let opening = format!("```{language}\n");
    let mut fenced_blocks = Vec::new();
    let mut rest = page;
    while let Some((heading, tail)) = rest.split_once(opening.as_str()) {
        let (block, next) = tail.split_once("```").expect("expected a closing fence");
        fenced_blocks.push((heading, block));
        rest = next;
    }
    fenced_blocks
}

#[test]
fn every_command_of_page_runs() {
    let page = page();
    let plugins = plugin_dir(&["ccompiler", "template", "nuc_fpga"]);
    let outputs = temporary_folder();
    let dirs = [plugins.path().display().to_string(), outputs.path().display().to_string()];
    let mut count = 0;
    for line in blocks(&page, "console").iter().flat_map(|(_, block)| block.lines()) {
        let args =
            line.strip_prefix("$ byoc ").unwrap_or_else(|| panic!("expected a line \"$ byoc ...\", found {line}"));
        let args = args.split_whitespace().map(|w| w.replace("$PLUGINS", &dirs[0]).replace("$OUT", &dirs[1]));
        let output = to_command_output(command(args).current_dir(workspace()).output().expect("cannot start byoc"));
        assert_eq!(output.code, 0, "{line}\nstdout:\n{}\nstderr:\n{}", output.out, output.err);
        count += 1;
    }
    assert!(count >= 30, "expected at least 30 commands, found {count}");
}

#[test]
fn excerpts_of_page_are_current() {
    let page = page();
    let excerpts = blocks(&page, "rust");
    assert_eq!(excerpts.len(), 2);
    for (heading, block) in excerpts {
        // The last text in backquotes before an excerpt is the path of its file.
        let path = heading.rsplit('`').nth(1).expect("expected a path in backquotes before the excerpt");
        let file = std::fs::read_to_string(workspace().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        let trim_lines = |text: &str| text.trim().lines().map(str::trim).collect::<Vec<_>>().join("\n");
        assert!(
            trim_lines(&file).contains(&trim_lines(block)),
            "expected {path} to contain this excerpt of the page:\n{block}"
        );
    }
}

#[test]
fn page_names_every_pass_that_tvm_has() {
    let page = page();
    // Passes without a counterpart in TVM.
    let own_passes = ["flatten_nested_tuples", "monomorphize", "remove_default_annotations", "widen_float16"];
    for pass in byoc_core::pass::manager::PASSES.iter().filter(|pass| !own_passes.contains(&pass.name)) {
        assert!(page.contains(pass.name), "{}", pass.name);
    }
}
