//! Bundles: self-contained directories that run a model, even in a chroot that contains nothing else.

use crate::{byoc, data, data_text, to_command_output};
use byoc::compare::{Tolerance, compare};
use byoc::io::{npy, pb};
use byoc_ir::tensor::Tensor;
use byoc_test_support::{bundle_runner, onednn, plugin_dir, temporary_folder};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Bundle of a model, with the artifact and the plugins from which it was written.
struct TestBundle {
    temp_dir: tempfile::TempDir,
    plugins: Option<tempfile::TempDir>,
    stdout: String,
}

impl TestBundle {
    fn root(&self) -> PathBuf {
        self.temp_dir.path().join("bundle")
    }

    fn artifact(&self) -> String {
        self.temp_dir.path().join("model.byoc").display().to_string()
    }

    /// Returns the arguments of `byoc bundle` for this artifact.
    fn arguments(&self, output: &Path) -> Vec<String> {
        let mut args = vec!["bundle".to_owned(), self.artifact(), "-o".to_owned(), output.display().to_string()];
        args.extend(["--runner".to_owned(), bundle_runner().display().to_string()]);
        let plugins = self.plugins.iter().flat_map(|dir| ["--plugin-dir".to_owned(), dir.path().display().to_string()]);
        args.extend(plugins);
        args
    }
}

/// Compiles a model for the given backends and bundles the artifact.
fn create_bundle(model: &str, backends: &[&str], extra_args: &[&str]) -> TestBundle {
    let temp_dir = temporary_folder();
    let plugins = (!backends.is_empty()).then(|| plugin_dir(backends));
    let mut bundle = TestBundle { temp_dir, plugins, stdout: String::new() };
    let artifact = bundle.artifact();
    let mut args: Vec<String> = ["compile", model, "-o", &artifact, "--no-cache"].map(String::from).to_vec();
    args.extend(extra_args.iter().map(|arg| (*arg).to_owned()));
    if let Some(dir) = &bundle.plugins {
        args.extend(
            ["--backend", &backends.join(","), "--plugin-dir", &dir.path().display().to_string()].map(String::from),
        );
        args.push("--require-offload=0.9".to_owned());
    }
    byoc(&args).ok();
    bundle.stdout = byoc(bundle.arguments(&bundle.root())).ok().out;
    bundle
}

/// Runs a command with an empty environment and with `input` on standard input.
fn run(command: &mut Command, input: &[u8]) -> Output {
    command.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // The command may exit before it has read its input.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

/// Creates the command that starts the runner as an unprivileged user in a chroot with the bundle as its root; `None`
/// if chroot is not permitted.
#[expect(clippy::print_stdout, reason = "reports a skipped test")]
fn in_root_folder(root: &Path) -> Option<Command> {
    // The path is absolute, as the environment has no `PATH`.
    let chroot = ["/usr/sbin/chroot", "/usr/bin/chroot"].into_iter().find(|path| Path::new(path).exists());
    let is_permitted =
        |chroot: &&str| Command::new(chroot).args(["/", "true"]).output().is_ok_and(|run| run.status.success());
    let Some(chroot) = chroot.filter(is_permitted) else {
        println!("skipped: the runner in a chroot, which requires root privileges");
        return None;
    };
    let mut command = Command::new(chroot);
    // This user cannot write anywhere, as the directories belong to the test's user.
    command.args(["--userspec=65534:65534"]).arg(root).arg("/bin/byoc-run");
    Some(command)
}

/// Returns the contents of all files below a directory, by relative path.
fn file_tree(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let relative_path = path.strip_prefix(root).unwrap().to_owned();
            if path.is_symlink() {
                files.insert(relative_path, std::fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes());
            } else if path.is_dir() {
                dirs.push(path);
            } else {
                files.insert(relative_path, std::fs::read(&path).unwrap());
            }
        }
    }
    files
}

/// Runs the bundle of a recorded model with one input and one output, in a chroot and in place.
fn assert_runs_alone(name: &str, bundle: &TestBundle, input: &str) {
    let test_set_dir = data(&format!("models/{name}/test_data_set_0"));
    let input_data = npy::encode(&pb::read(&test_set_dir.join("input_0.pb")).unwrap());
    let expected = pb::read(&test_set_dir.join("output_0.pb")).unwrap();
    let tree_before = file_tree(&bundle.root());
    let arguments = [format!("--input={input}=-"), "--output=-".to_owned()];
    let check = |output: Output| {
        let (out, err) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && err.is_empty(), "{}: {err}", output.status);
        let actual: Tensor = npy::decode(out).unwrap();
        let difference = compare(&actual, &expected, Tolerance::MaxRelative(5e-4)).difference;
        assert_eq!(difference, None, "{name}");
    };
    if let Some(mut command) = in_root_folder(&bundle.root()) {
        check(run(command.args(&arguments), &input_data));
    }
    let other_dir = temporary_folder();
    let mut command = Command::new(bundle.root().join("run"));
    check(run(command.current_dir(other_dir.path()).args(&arguments), &input_data));
    assert!(std::fs::read_dir(other_dir.path()).unwrap().next().is_none());
    assert!(tree_before == file_tree(&bundle.root()), "expected the run to leave the bundle unchanged");
}

/// Checks that a run started by the bundle's script loads only libraries of the bundle, according to the log of the
/// dynamic loader. Each element of `expected` is the prefix of a library path in the bundle.
fn assert_uses_own_libraries(bundle: &TestBundle, expected: &[&str]) {
    let root = bundle.root().canonicalize().unwrap();
    let mut command = Command::new("/bin/sh");
    // The variable takes effect in the bundle's dynamic loader, which the script executes.
    command.args(["-c", "export LD_DEBUG=files; exec \"$0\" --check"]).arg(root.join("run"));
    let output = run(&mut command, &[]);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{err}");
    let bundle_path = root.display().to_string();
    // The log also contains lines from the shell, which is a different process.
    let lines: Vec<&str> = err.lines().filter(|line| line.contains("calling init: ")).collect();
    let process = lines.last().unwrap().trim_start().split(':').next().unwrap();
    let first_library = lines.iter().position(|line| line.contains(&bundle_path)).unwrap();
    let libraries: Vec<&str> =
        lines[first_library..].iter().filter(|line| line.trim_start().starts_with(process)).copied().collect();
    for start in expected {
        let start = format!("calling init: {bundle_path}/{start}");
        assert!(libraries.iter().any(|line| line.contains(&start)), "expected {start} in {libraries:#?}");
    }
    for line in libraries {
        assert!(line.contains(&bundle_path), "{line}");
    }
}

#[test]
fn bundle_of_native_regions_runs_alone() {
    let bundle = create_bundle(&data_text("models/resnet18_w16"), &["ccompiler"], &[]);
    assert!(bundle.stdout.contains("ccompiler 0.1.0"), "{}", bundle.stdout);
    assert_runs_alone("resnet18_w16", &bundle, "input.1");
    assert_uses_own_libraries(&bundle, &["lib/libc.so.6", "plugins/libbyoc_ccompiler.so", "regions/000_"]);
    let files = file_tree(&bundle.root());
    let count_files = |start: &str| files.keys().filter(|path| path.starts_with(start)).count();
    assert!(
        count_files("regions") > 0 && count_files("plugins") == 1 && count_files("licenses") >= 2,
        "{:?}",
        files.keys()
    );
    // The same artifact and plugins produce the same bytes, even when an earlier bundle is overwritten.
    byoc(bundle.arguments(&bundle.root())).ok();
    assert!(files == file_tree(&bundle.root()));

    // Whatever this command has not written is not deleted without being asked to.
    let thesis = bundle.root().join("thesis");
    std::fs::write(&thesis, "years of work").unwrap();
    byoc(bundle.arguments(&bundle.root())).fails_with("E0513").stderr_contains(&["another file, thesis", "--force"]);
    assert_eq!(std::fs::read(&thesis).unwrap(), b"years of work");
    byoc([bundle.arguments(&bundle.root()), vec!["--force".into()]].concat()).ok();
    assert!(files == file_tree(&bundle.root()));

    let check = || to_command_output(Command::new(bundle.root().join("run")).arg("--check").output().unwrap());
    assert!(check().ok().out.starts_with("every file matches its digest; "));
    for path in files.keys().filter(|path| !bundle.root().join(path).is_symlink()) {
        let path = bundle.root().join(path);
        if ["run", "ld-linux-x86-64.so.2", "byoc-run", "libc.so.6", "libm.so.6", "libgcc_s.so.1"]
            .iter()
            .any(|n| path.ends_with(n))
        {
            // The runner cannot start if one of these files is corrupt, so `--check` cannot report it.
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        let mut copy = bytes.clone();
        copy[bytes.len() / 2] ^= 1;
        std::fs::write(&path, &copy).unwrap();
        check().fails_with("E0711");
        std::fs::write(&path, &bytes).unwrap();
    }
    check().ok();
}

#[test]
#[expect(clippy::print_stdout, reason = "reports a skipped test")]
fn bundle_with_libraries_of_a_plugin_runs_alone() {
    if onednn().is_none() {
        println!("skipped: a bundle with oneDNN, which is not installed");
        return;
    }
    let bundle = create_bundle(&data_text("models/resnet18_w16"), &["dnnl"], &[]);
    let files = file_tree(&bundle.root());
    for file in ["plugins/libdnnl.so.3", "lib/libgomp.so.1", "lib/libstdc++.so.6"] {
        assert!(files.contains_key(Path::new(file)), "expected {file} in {:?}", files.keys());
    }
    assert_runs_alone("resnet18_w16", &bundle, "input.1");
    assert_uses_own_libraries(
        &bundle,
        &["lib/libc.so.6", "plugins/libdnnl.so.3", "lib/libgomp.so.1", "lib/libstdc++.so.6"],
    );
}

#[test]
fn bundle_for_the_host_needs_no_plugin() {
    let bundle = create_bundle(&data_text("models/resnet18_w16"), &[], &[]);
    assert!(bundle.stdout.contains("no plugin"), "{}", bundle.stdout);
    assert!(!bundle.root().join("plugins").exists());
    assert_runs_alone("resnet18_w16", &bundle, "input.1");
    let description = Command::new(bundle.root().join("run")).args(["--describe"]).output().unwrap();
    let description = to_command_output(description).ok().out;
    assert!(description.contains("input   input.1  Tensor[(1, 3, 64, 64), float32]"), "{description}");
}

#[test]
fn runner_explains_its_errors() {
    let bundle = create_bundle(&data_text("digits/digits.onnx"), &[], &["--dim", "batch=1"]);
    let start = |args: &[&str]| to_command_output(Command::new(bundle.root().join("run")).args(args).output().unwrap());
    start(&[]).fails_with("E0603").stderr_contains(&["image"]);
    start(&["--input", "imag=ones"]).fails_with("E0602").stderr_contains(&["did you mean \"image\"?"]);
    start(&["--input", "image=x.txt"]).fails_with("E0512");
    start(&["--input", "image=ones", "--bundle", "/"]).fails_with("E0710");
    assert_eq!(start(&["model.byoc"]).code, 2);
    let json = start(&["--input", "image=random:3", "--json"]).ok();
    assert_eq!(json.json()[0]["output"], "logits");
    // The runner prints the same values as `byoc run`.
    let run_output = byoc(["run", &bundle.artifact(), "--input", "image=random:3", "--json"]).ok();
    assert_eq!(json.out, run_output.out);
    let outputs = bundle.temp_dir.path().join("y.npz");
    start(&["--input", "image=zeros", "--output", &outputs.display().to_string()]).ok();
    assert!(outputs.is_file());
}

#[test]
fn what_cannot_be_bundled_is_refused_by_name() {
    let bundle = create_bundle(&data_text("digits/digits.onnx"), &["ccompiler"], &["--dim", "batch=1"]);
    let path = |name: &str| bundle.temp_dir.path().join(name);
    let text = |name: &str| path(name).display().to_string();
    let entries = || std::fs::read_dir(bundle.temp_dir.path()).unwrap().count();
    let entries_before = entries();
    let runner = bundle_runner().display().to_string();
    let (artifact, out) = (bundle.artifact(), text("out"));
    let model = data_text("digits/digits.onnx");
    byoc(["bundle", &model, "-o", &out, "--runner", &runner]).fails_with("E0701").stderr_contains(&["byoc compile"]);
    byoc(["bundle", &artifact, "-o", &out]).fails_with("E0708").stderr_contains(&["byoc-run", "--runner"]);
    byoc(["bundle", &artifact, "-o", &out, "--runner", &model]).fails_with("E0708");
    let failure = byoc(["bundle", &artifact, "-o", &out, "--runner", &runner]).fails_with("E0709");
    failure.stderr_contains(&["loadbinary_ccompiler", "compiled by plugin ccompiler", "--plugin-dir"]);
    assert_eq!(entries(), entries_before, "expected no files from a failed bundle");
    // A directory with unrelated files is left untouched, also if one of them has the name of a bundle's description, or
    // is a description.
    std::fs::create_dir(path("out")).unwrap();
    std::fs::write(path("out/notes.txt"), "keep").unwrap();
    let description = std::fs::read_to_string(bundle.root().join("bundle.json")).unwrap();
    for description in [None, Some(""), Some("{}"), Some(&*description)] {
        if let Some(text) = description {
            std::fs::write(path("out/bundle.json"), text).unwrap();
        }
        let tree = file_tree(&path("out"));
        let failure = byoc(bundle.arguments(&path("out"))).fails_with("E0513");
        failure.stderr_contains(&["found no intact bundle", "--force"]);
        assert!(file_tree(&path("out")) == tree);
    }
    byoc([bundle.arguments(&path("out")), vec!["--force".into()]].concat()).ok();
    assert!(file_tree(&path("out")) == file_tree(&bundle.root()));
}

#[test]
#[expect(clippy::print_stdout, reason = "reports a skipped test")]
fn missing_library_of_a_plugin_is_named() {
    if onednn().is_none() {
        println!("skipped: a bundle with oneDNN, which is not installed");
        return;
    }
    let bundle = create_bundle(&data_text("digits/digits.onnx"), &["dnnl"], &["--dim", "batch=1"]);
    let out = bundle.temp_dir.path().join("out");
    let mut command = crate::command(bundle.arguments(&out));
    let failure = to_command_output(command.env("BYOC_DNNL_LIB", "/no/libdnnl.so.3").output().unwrap());
    let failure = failure.fails_with("E0709");
    failure.stderr_contains(&["plugin dnnl cannot be bundled", "/no/libdnnl.so.3", "onednn-cpu-gomp"]);
    assert!(!out.exists());
}

#[test]
fn every_command_of_page_runs() {
    let page = std::fs::read_to_string(data("../docs/bundle.md")).unwrap();
    let (plugins, dir) = (plugin_dir(&["ccompiler"]), temporary_folder());
    // Reproduces an installation: the `byoc` executable with the runner next to it.
    let programs = temporary_folder();
    byoc_test_support::copy(crate::binary(), &programs.path().join("byoc"));
    byoc_test_support::copy(&bundle_runner(), &programs.path().join("byoc-run"));
    let path = format!("{}:{}", programs.path().display(), std::env::var("PATH").unwrap());
    let mut count = 0;
    for line in page.split("```console\n").skip(1).flat_map(|block| block.split("```").next().unwrap().lines()) {
        let line = line.strip_prefix("$ ").unwrap_or_else(|| panic!("expected a line \"$ ...\", found {line}"));
        let line = line.replace("$PLUGINS", &plugins.path().display().to_string());
        let line = line.replace("$OUT", &dir.path().display().to_string());
        let args: Vec<&str> = line.split_whitespace().collect();
        let mut command = crate::isolated_command(args[0]);
        to_command_output(command.args(&args[1..]).env("PATH", &path).current_dir(data("..")).output().unwrap()).ok();
        count += 1;
    }
    assert_eq!(count, 4);
}
