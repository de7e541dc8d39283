//! Cache of compiled objects: possibly foreign objects are not loaded, and a model runs all the same.

use crate::{Ran, command, ran};
use byoc_test_support::plugin_dir;
use std::fs::{File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

static PLUGINS: LazyLock<TempDir> = LazyLock::new(|| plugin_dir(&["ccompiler"]));

/// A folder with a model, its cache, and a folder for temporary files.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        place.model(8);
        std::fs::create_dir(place.path("tmp")).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a model whose only region has a different object for each size.
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

    /// Runs the model, which returns the correct result whatever the cache contains.
    #[track_caller]
    fn run(&self) -> Ran {
        right(ran(self.command().output().unwrap()))
    }

    fn folder(&self) -> PathBuf {
        self.path("cache/ccompiler")
    }

    fn objects(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.folder()).unwrap().map(|entry| entry.unwrap().path());
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
fn right(ran: Ran) -> Ran {
    let ran = ran.ok();
    assert!(ran.out.contains("min 2.718282  max 2.718282"), "{}", ran.out);
    ran
}

#[track_caller]
fn quiet(ran: Ran) {
    assert_eq!(ran.err, "");
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

/// Creates an object that creates the file `mark` when it is loaded, in the form of a cache without a secret.
fn planted(place: &Place) -> (Vec<u8>, PathBuf) {
    let (source, object, mark) = (place.path("planted.c"), place.path("planted.so"), place.path("mark"));
    let code = format!(
        "#include <stdio.h>\n__attribute__((constructor)) static void run(void) {{ fclose(fopen(\"{}\", \"w\")); }}\n",
        mark.display()
    );
    std::fs::write(&source, code).unwrap();
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&object, &source]).status().unwrap();
    assert!(made.success());
    let mut bytes = std::fs::read(object).unwrap();
    let digest = blake3::hash(&bytes);
    bytes.extend_from_slice(digest.as_bytes());
    (bytes, mark)
}

#[test]
fn restricts_permissions_and_reuses_objects() {
    let place = Place::new();
    quiet(place.run());
    assert_eq!([place.path("cache"), place.folder()].map(|path| mode(&path)), [0o700, 0o700]);
    assert_eq!([place.object(), place.folder().join("key")].map(|path| mode(&path)), [0o600, 0o600]);
    let made = std::fs::metadata(place.object()).unwrap().ino();
    quiet(place.run());
    assert_eq!(std::fs::metadata(place.object()).unwrap().ino(), made, "the object was compiled again");
    assert_eq!(std::fs::read_dir(place.path("tmp")).unwrap().count(), 0, "temporary files are left");
}

#[test]
fn does_not_load_planted_object() {
    let place = Place::new();
    place.run();
    let (bytes, mark) = planted(&place);
    std::fs::write(place.object(), &bytes).unwrap();
    place.run().says(&["is damaged", "compiled anew"]);
    assert!(!mark.exists(), "the planted object was loaded");
    quiet(place.run());

    // Same as above, with another owner.
    std::fs::write(place.object(), &bytes).unwrap();
    if is_root(&place.object()) {
        chown(place.object(), Some(65534), None).unwrap();
        place.run().says(&["is not used", "expected user 0 as its owner, found user 65534"]);
    } else {
        set_mode(&place.object(), 0o666);
        place.run().says(&["is not used", "others may write to it: expected mode 644, found 666"]);
    }
    assert!(!mark.exists(), "the planted object was loaded");
    assert!(std::fs::read(place.object()).unwrap() == bytes, "the foreign object was changed");
}

#[test]
fn does_not_use_links_and_fifos() {
    let place = Place::new();
    place.run();
    let object = place.object();
    std::fs::rename(&object, place.path("elsewhere")).unwrap();
    symlink(place.path("elsewhere"), &object).unwrap();
    place.run().says(&["is not used: expected a regular file, found a symbolic link"]);
    std::fs::remove_file(&object).unwrap();
    crate::nodes::fifo(&object);
    right(crate::nodes::without_waiting(&mut place.command()))
        .says(&["is not used: expected a regular file, found something else"]);
}

#[test]
fn does_not_use_folder_writable_by_others() {
    let place = Place::new();
    place.run();
    for folder in [place.path("cache"), place.folder()] {
        set_mode(&folder, 0o770);
        place.run().says(&["the cache", "is not used", "others may write to it: expected mode 750, found 770"]);
        set_mode(&folder, 0o700);
        if is_root(&folder) {
            chown(&folder, Some(65534), None).unwrap();
            place.run().says(&["is not used", "expected user 0 as its owner, found user 65534"]);
            chown(&folder, Some(0), None).unwrap();
        }
    }
    quiet(place.run());
    std::fs::remove_dir_all(place.path("cache")).unwrap();
    std::fs::write(place.path("cache"), "a file").unwrap();
    place.run().says(&["is not used"]);
}

#[test]
fn limits_size_of_cache() {
    let place = Place::new();
    place.run();
    let size = std::fs::metadata(place.object()).unwrap().len();
    let limit = 3 * size + size / 2;
    let kept_of = |sizes: std::ops::Range<usize>| {
        for n in sizes {
            place.model(n);
            quiet(right(ran(place.command().env("BYOC_CACHE_LIMIT", limit.to_string()).output().unwrap())));
        }
    };
    kept_of(9..14);
    let bytes: u64 = place.objects().iter().map(|path| std::fs::metadata(path).unwrap().len()).sum();
    assert!(bytes <= limit && place.objects().len() >= 2, "{bytes} of {limit}");
    place.model(13);
    let wrong = ran(place.command().env("BYOC_CACHE_LIMIT", "much").output().unwrap());
    right(wrong).says(&["BYOC_CACHE_LIMIT: expected a number of bytes such as 200M, found \"much\""]);
}

#[test]
fn removes_files_of_killed_processes() {
    let place = Place::new();
    place.run();
    let old = SystemTime::now() - Duration::from_secs(3600);
    let unfinished = place.folder().join(".new-0123456789abcdef");
    std::fs::write(&unfinished, "half of an object").unwrap();
    File::open(&unfinished).unwrap().set_modified(old).unwrap();
    let folder = place.path("tmp/byoc-cc-abcdef");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("region.c"), "int x;").unwrap();
    File::open(&folder).unwrap().set_modified(old).unwrap();
    place.model(9);
    quiet(place.run());
    assert!(!unfinished.exists() && !folder.exists());
}
