//! Cache of compiled objects: untrusted objects are not loaded, and the model still runs.

use crate::{CommandOutput, command, to_command_output};
use byoc_test_support::plugin_dir;
use std::fs::{File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

static PLUGINS: LazyLock<TempDir> = LazyLock::new(|| plugin_dir(&["ccompiler"]));

/// Directory that holds a model, its cache, and a directory for temporary files.
struct Fixture(TempDir);

impl Fixture {
    fn new() -> Fixture {
        let fixture = Fixture(tempfile::tempdir().unwrap());
        fixture.model(8);
        std::fs::create_dir(fixture.path("tmp")).unwrap();
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a model with one region. Its compiled object depends on `size`.
    fn model(&self, size: usize) {
        let program = format!("def @main(%x: Tensor[(4, {size}), float32]) {{ nn.relu(exp(%x)) }}");
        std::fs::write(self.path("model.relay"), format!("#[version = \"0.0.5\"]\n{program}\n")).unwrap();
    }

    fn command(&self) -> Command {
        let [model, cache, plugins] = [&self.path("model.relay"), &self.path("cache"), PLUGINS.path()]
            .map(|path: &Path| path.display().to_string());
        let options = ["--backend", "ccompiler", "--require-offload=1", "--plugin-dir", &plugins];
        let mut command =
            command([&["run", &model, "--input", "x=ones", "--cache-dir", &cache], &options[..]].concat());
        command.env("TMPDIR", self.path("tmp")).env_remove("BYOC_CACHE_LIMIT");
        command
    }

    /// Runs the model and checks that its result is correct regardless of the cache contents.
    #[track_caller]
    fn run(&self) -> CommandOutput {
        assert_correct(to_command_output(self.command().output().unwrap()))
    }

    fn cache_dir(&self) -> PathBuf {
        self.path("cache/ccompiler")
    }

    fn objects(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.cache_dir()).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|e| e == "so")).collect()
    }

    /// Returns the only object of the cache.
    fn object(&self) -> PathBuf {
        let objects = self.objects();
        assert_eq!(objects.len(), 1);
        objects[0].clone()
    }
}

#[track_caller]
fn assert_correct(output: CommandOutput) -> CommandOutput {
    let output = output.ok();
    assert!(output.out.contains("min 2.718282  max 2.718282"), "{}", output.out);
    output
}

#[track_caller]
fn assert_no_warnings(output: CommandOutput) {
    assert_eq!(output.err, "");
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn is_root(path: &Path) -> bool {
    std::fs::metadata(path).unwrap().uid() == 0
}

/// Creates an object whose constructor creates a marker file. Its digest is unkeyed, as in a cache without a secret.
/// Returns the object's bytes and the path of the marker.
fn plant_object(fixture: &Fixture) -> (Vec<u8>, PathBuf) {
    let (source, object, marker) = (fixture.path("planted.c"), fixture.path("planted.so"), fixture.path("mark"));
    let code = format!(
        "#include <stdio.h>\n__attribute__((constructor)) static void run(void) {{ fclose(fopen(\"{}\", \"w\")); }}\n",
        marker.display()
    );
    std::fs::write(&source, code).unwrap();
    let compiler_status =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&object, &source]).status().unwrap();
    assert!(compiler_status.success());
    let mut bytes = std::fs::read(object).unwrap();
    let digest = blake3::hash(&bytes);
    bytes.extend_from_slice(digest.as_bytes());
    (bytes, marker)
}

#[test]
fn restricts_permissions_and_reuses_objects() {
    let fixture = Fixture::new();
    assert_no_warnings(fixture.run());
    assert_eq!([fixture.path("cache"), fixture.cache_dir()].map(|path| mode(&path)), [0o700, 0o700]);
    assert_eq!([fixture.object(), fixture.cache_dir().join("key")].map(|path| mode(&path)), [0o600, 0o600]);
    let inode = std::fs::metadata(fixture.object()).unwrap().ino();
    assert_no_warnings(fixture.run());
    assert_eq!(std::fs::metadata(fixture.object()).unwrap().ino(), inode, "expected the cached object to be reused");
    assert_eq!(std::fs::read_dir(fixture.path("tmp")).unwrap().count(), 0, "expected no temporary files");
}

#[test]
fn does_not_load_planted_object() {
    let fixture = Fixture::new();
    fixture.run();
    let (bytes, marker) = plant_object(&fixture);
    std::fs::write(fixture.object(), &bytes).unwrap();
    fixture.run().stderr_contains(&["is corrupted", "compiled again"]);
    assert!(!marker.exists(), "expected the planted object to be ignored");
    assert_no_warnings(fixture.run());

    // The same object, owned or writable by a different user.
    std::fs::write(fixture.object(), &bytes).unwrap();
    if is_root(&fixture.object()) {
        chown(fixture.object(), Some(65534), None).unwrap();
        fixture.run().stderr_contains(&["is ignored", "owner: expected user 0, found user 65534"]);
    } else {
        set_mode(&fixture.object(), 0o666);
        fixture.run().stderr_contains(&["is ignored", "writable by other users: expected mode 644, found 666"]);
    }
    assert!(!marker.exists(), "expected the planted object to be ignored");
    assert!(std::fs::read(fixture.object()).unwrap() == bytes, "expected the planted object to stay unchanged");
}

#[test]
fn does_not_use_links_and_fifos() {
    let fixture = Fixture::new();
    fixture.run();
    let object = fixture.object();
    std::fs::rename(&object, fixture.path("elsewhere")).unwrap();
    symlink(fixture.path("elsewhere"), &object).unwrap();
    fixture.run().stderr_contains(&["is ignored: expected a regular file, found a symbolic link"]);
    std::fs::remove_file(&object).unwrap();
    crate::nodes::create_fifo(&object);
    assert_correct(crate::nodes::run_nonblocking(&mut fixture.command()))
        .stderr_contains(&["is ignored: expected a regular file, found a directory or a special file"]);
}

#[test]
fn does_not_use_folder_writable_by_others() {
    let fixture = Fixture::new();
    fixture.run();
    for dir in [fixture.path("cache"), fixture.cache_dir()] {
        set_mode(&dir, 0o770);
        fixture.run().stderr_contains(&[
            "the cache",
            "is ignored",
            "writable by other users: expected mode 750, found 770",
        ]);
        set_mode(&dir, 0o700);
        if is_root(&dir) {
            chown(&dir, Some(65534), None).unwrap();
            fixture.run().stderr_contains(&["is ignored", "owner: expected user 0, found user 65534"]);
            chown(&dir, Some(0), None).unwrap();
        }
    }
    assert_no_warnings(fixture.run());
    std::fs::remove_dir_all(fixture.path("cache")).unwrap();
    std::fs::write(fixture.path("cache"), "a file").unwrap();
    fixture.run().stderr_contains(&["is ignored"]);
}

#[test]
fn limits_size_of_cache() {
    let fixture = Fixture::new();
    fixture.run();
    let size = std::fs::metadata(fixture.object()).unwrap().len();
    let limit = 3 * size + size / 2;
    let fill_cache = |sizes: std::ops::Range<usize>| {
        for n in sizes {
            fixture.model(n);
            assert_no_warnings(assert_correct(to_command_output(
                fixture.command().env("BYOC_CACHE_LIMIT", limit.to_string()).output().unwrap(),
            )));
        }
    };
    fill_cache(9..14);
    let bytes: u64 = fixture.objects().iter().map(|path| std::fs::metadata(path).unwrap().len()).sum();
    let count = fixture.objects().len();
    assert!(
        bytes <= limit && count >= 2,
        "expected at least 2 objects of at most {limit} bytes in total, found {count} of {bytes} bytes"
    );
    fixture.model(13);
    let output = to_command_output(fixture.command().env("BYOC_CACHE_LIMIT", "much").output().unwrap());
    assert_correct(output)
        .stderr_contains(&["BYOC_CACHE_LIMIT: expected a number of bytes such as 200M, found \"much\""]);
}

#[test]
fn removes_files_of_killed_processes() {
    let fixture = Fixture::new();
    fixture.run();
    let old_time = SystemTime::now() - Duration::from_secs(3600);
    let unfinished_entry = fixture.cache_dir().join(".new-0123456789abcdef");
    std::fs::write(&unfinished_entry, "half of an object").unwrap();
    File::open(&unfinished_entry).unwrap().set_modified(old_time).unwrap();
    let dir = fixture.path("tmp/byoc-cc-abcdef");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("region.c"), "int x;").unwrap();
    File::open(&dir).unwrap().set_modified(old_time).unwrap();
    fixture.model(9);
    assert_no_warnings(fixture.run());
    assert!(!unfinished_entry.exists() && !dir.exists());
}
