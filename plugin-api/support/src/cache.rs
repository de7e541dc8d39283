//! Cache of compiled objects, keyed by a hash of everything that determines the object.
//!
//! An object runs with the privileges of the process that loads it, so the cache never returns an object that another
//! user may have written:
//!
//! 1. Directories and files must be owned by the user and not be writable by others, and files must be regular files.
//!    These properties are checked on the open file descriptor, not on the path; symlinks are not followed, and
//!    opening a FIFO does not block.
//! 2. Each object is followed by a keyed BLAKE3 digest. The secret key is stored beside the objects and readable only
//!    by the user. The digest covers the name of the object, so an object copied to a different name counts as
//!    corrupted.
//! 3. The file is read once: the bytes that are loaded are the bytes that were verified.
//!
//! When the cache exceeds its limit, the least recently used objects are evicted. The modification time of a file
//! records its last use.

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, linkat, mkdirat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;
use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, Permissions};
use std::io::{Read, Result, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Name of the file with the secret key.
const SECRET: &str = "key";
/// Prefix of temporary files, which are renamed or linked when complete.
const TEMP_PREFIX: &str = ".new-";
/// Minimum age of a temporary file or directory before it counts as stale.
pub const MIN_STALE_AGE: Duration = Duration::from_secs(600);
/// Size of a digest in bytes.
const DIGEST: usize = 32;
/// Limit in bytes if `BYOC_CACHE_LIMIT` is not set.
const DEFAULT_LIMIT: u64 = 1 << 30;

/// Location and limit of the cache.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Cache directory that the host specifies; contains one subdirectory per plugin.
    pub dir: PathBuf,
    /// Name of the plugin's subdirectory in the cache directory.
    pub folder: &'static str,
    /// Suffix of object names.
    pub suffix: &'static str,
    /// Maximum total size of the objects in bytes.
    pub limit: u64,
}

impl Settings {
    /// Reads the settings from the options of a compile or load request; `None` if caching is disabled.
    pub fn of_options(options: &Value, folder: &'static str, suffix: &'static str) -> Option<Settings> {
        let dir = PathBuf::from(options.get("cache_dir")?.as_str().filter(|dir| !dir.is_empty())?);
        let limit = match std::env::var("BYOC_CACHE_LIMIT") {
            Ok(text) => bytes(&text).unwrap_or_else(|| {
                warn_once(format!(
                    "BYOC_CACHE_LIMIT: expected a number of bytes such as 200M, found \"{text}\"; using {DEFAULT_LIMIT}"
                ));
                DEFAULT_LIMIT
            }),
            Err(_) => DEFAULT_LIMIT,
        };
        Some(Settings { dir, folder, suffix, limit })
    }
}

/// Parses a size in bytes, with an optional suffix K, M or G for KiB, MiB or GiB.
fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, multiplier) = match text.char_indices().last()? {
        (end, 'k' | 'K') => (&text[..end], 1 << 10),
        (end, 'm' | 'M') => (&text[..end], 1 << 20),
        (end, 'g' | 'G') => (&text[..end], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(multiplier)
}

/// Logs each distinct warning once per process, since a model may have hundreds of regions.
fn warn_once(message: String) {
    static LOGGED_MESSAGES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut logged_messages = LOGGED_MESSAGES.lock().unwrap_or_else(PoisonError::into_inner);
    if !logged_messages.contains(&message) {
        tracing::warn!("{message}");
        logged_messages.push(message);
    }
}

/// Returns the cached object for `key`, or compiles the object and stores it. An unusable cache causes a warning, not
/// an error.
///
/// # Errors
/// If `compile` fails.
pub fn cached<E>(
    settings: Option<&Settings>,
    key: blake3::Hash,
    compile: impl FnOnce() -> std::result::Result<Vec<u8>, E>,
) -> std::result::Result<Vec<u8>, E> {
    let Some(settings) = settings else { return compile() };
    let cache = Cache::open(settings).inspect_err(|error| {
        warn_once(format!("the cache {} is ignored: {error}", settings.dir.display()));
    });
    let Ok(cache) = cache else { return compile() };
    let is_storable = match cache.get(key) {
        Ok(Lookup::Hit(object)) => return Ok(object),
        Ok(Lookup::Miss) => true,
        Ok(Lookup::Corrupted) => {
            let name = cache.name(key);
            warn_once(format!("{name} in the cache {} is corrupted and is compiled again", settings.dir.display()));
            true
        }
        Err(error) => {
            let name = cache.name(key);
            warn_once(format!("{name} in the cache {} is ignored: {error}", settings.dir.display()));
            false
        }
    };
    let object = compile()?;
    if is_storable && let Err(error) = cache.put(key, &object) {
        warn_once(format!("cannot store the object in the cache {}: {error}", settings.dir.display()));
    }
    Ok(object)
}

/// Result of a cache lookup.
#[derive(Debug, PartialEq)]
enum Lookup {
    Hit(Vec<u8>),
    Miss,
    Corrupted,
}

/// Open cache directory.
struct Cache {
    dir: File,
    suffix: &'static str,
    secret: [u8; DIGEST],
    limit: u64,
}

impl Cache {
    fn open(settings: &Settings) -> std::result::Result<Cache, String> {
        let to_text = |e: std::io::Error| e.to_string();
        DirBuilder::new().recursive(true).mode(0o700).create(&settings.dir).map_err(to_text)?;
        // The user specifies this path, which may be a symlink.
        let dir = settings.dir.canonicalize().and_then(|dir| open_directory(rustix::fs::CWD, &dir)).map_err(to_text)?;
        check_private(&dir)?;
        let subdir_name = settings.folder;
        match mkdirat(&dir, subdir_name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.to_string()),
        }
        let subdir = match open_directory(&dir, subdir_name.as_ref()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
                return Err(format!("subdirectory {subdir_name}: expected a directory, found another kind of file"));
            }
            subdir => subdir.map_err(to_text)?,
        };
        let mode = check_private(&subdir).map_err(|error| format!("subdirectory {subdir_name}: {error}"))?;
        if mode & 0o077 != 0 {
            subdir.set_permissions(Permissions::from_mode(0o700)).map_err(to_text)?;
        }
        let secret = secret(&subdir).map_err(|error| format!("file {subdir_name}/{SECRET}: {error}"))?;
        Ok(Cache { dir: subdir, suffix: settings.suffix, secret, limit: settings.limit })
    }

    fn name(&self, key: blake3::Hash) -> String {
        format!("{}{}", key.to_hex(), self.suffix)
    }

    fn digest(&self, key: blake3::Hash, object: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(key.as_bytes()).update(object);
        hasher.finalize()
    }

    /// Looks up an object.
    ///
    /// # Errors
    /// If the file cannot be read, or cannot be trusted because another user may have written it.
    fn get(&self, key: blake3::Hash) -> std::result::Result<Lookup, String> {
        let Some(mut file) = open_file(&self.dir, &self.name(key))? else { return Ok(Lookup::Miss) };
        let length = file.metadata().map_err(|e| e.to_string())?.len();
        if length < DIGEST as u64 || length > self.limit.saturating_add(DIGEST as u64) {
            return Ok(Lookup::Corrupted);
        }
        let mut bytes = Vec::with_capacity(length as usize);
        (&mut file).take(length).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
        let Some((object, digest)) = bytes.split_last_chunk::<DIGEST>() else { return Ok(Lookup::Corrupted) };
        if self.digest(key, object) != blake3::Hash::from_bytes(*digest) {
            return Ok(Lookup::Corrupted);
        }
        // Marks the object as recently used. If the file system does not store the time, only the eviction order
        // suffers.
        let _ = file.set_modified(SystemTime::now());
        bytes.truncate(bytes.len() - DIGEST);
        Ok(Lookup::Hit(bytes))
    }

    fn put(&self, key: blake3::Hash, object: &[u8]) -> Result<()> {
        let length = (object.len() + DIGEST) as u64;
        if length > self.limit {
            return Ok(());
        }
        let digest = self.digest(key, object);
        write_new(&self.dir, &[object, digest.as_bytes()], |temp| {
            renameat(&self.dir, temp, &self.dir, self.name(key))
        })?;
        self.enforce_limit(length)
    }

    /// Evicts objects if the directory may exceed the limit. The size of the directory is measured on first use and
    /// tracked afterwards.
    fn enforce_limit(&self, added_bytes: u64) -> Result<()> {
        /// Total size in bytes of the objects in each directory, keyed by its device and inode.
        static SIZES: Mutex<BTreeMap<(u64, u64), u64>> = Mutex::new(BTreeMap::new());
        let dir = self.dir.metadata()?;
        let mut dir_sizes = SIZES.lock().unwrap_or_else(PoisonError::into_inner);
        let tracked_size = dir_sizes.get(&(dir.dev(), dir.ino())).map(|bytes| bytes + added_bytes);
        let bytes = match tracked_size.filter(|&bytes| bytes <= self.limit) {
            Some(bytes) => bytes,
            None => self.evict()?,
        };
        dir_sizes.insert((dir.dev(), dir.ino()), bytes);
        Ok(())
    }

    /// Removes stale temporary files and, if the limit is exceeded, the least recently used objects until a tenth of
    /// the limit is free. Returns the total size of the remaining objects in bytes.
    fn evict(&self) -> Result<u64> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut objects = Vec::new();
        for entry in Dir::read_from(&self.dir)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            // Another process may have removed the file in the meantime.
            let Ok(metadata) = statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if FileType::from_raw_mode(metadata.st_mode) != FileType::RegularFile {
                continue;
            }
            let modified_time = Duration::new(metadata.st_mtime.max(0) as u64, metadata.st_mtime_nsec as u32);
            if name.starts_with(TEMP_PREFIX) && now.saturating_sub(modified_time) > MIN_STALE_AGE {
                let _ = unlinkat(&self.dir, name, AtFlags::empty());
            } else if name.len() == 2 * DIGEST + self.suffix.len() && name.ends_with(self.suffix) {
                objects.push((modified_time, name.to_owned(), metadata.st_size as u64));
            }
        }
        let mut bytes: u64 = objects.iter().map(|(_, _, size)| size).sum();
        if bytes > self.limit {
            objects.sort();
            for (_, name, size) in objects {
                if bytes <= self.limit - self.limit / 10 {
                    break;
                }
                let _ = unlinkat(&self.dir, &*name, AtFlags::empty());
                bytes -= size;
            }
        }
        Ok(bytes)
    }
}

/// Opens a regular file that is owned by the user, without following symlinks or blocking; `None` if the file does not
/// exist.
///
/// # Errors
/// If the file is not a regular file, is owned by another user, is writable by others, or cannot be opened.
fn open_file(dir: &File, name: &str) -> std::result::Result<Option<File>, String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(dir, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err("expected a regular file, found a symbolic link".to_owned()),
        Err(error) => return Err(error.to_string()),
    };
    check_private(&file)?;
    match file.metadata() {
        Ok(metadata) if metadata.is_file() => Ok(Some(file)),
        Ok(_) => Err("expected a regular file, found a directory or a special file".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Checks that an open file or directory is owned by the user and not writable by others. Returns its mode.
fn check_private(file: &File) -> std::result::Result<u32, String> {
    let metadata = file.metadata().map_err(|e| e.to_string())?;
    let user = geteuid().as_raw();
    if metadata.uid() != user {
        return Err(format!("owner: expected user {user}, found user {}", metadata.uid()));
    }
    let mode = metadata.mode() & 0o7777;
    match mode & 0o022 {
        0 => Ok(mode),
        _ => Err(format!("writable by other users: expected mode {:o}, found {mode:o}", mode & !0o022)),
    }
}

/// Reads the secret key of a directory, creating the key if it does not exist.
fn secret(dir: &File) -> std::result::Result<[u8; DIGEST], String> {
    let file = match open_file(dir, SECRET)? {
        Some(file) => Some(file),
        None => {
            let mut secret = [0; DIGEST];
            random(&mut secret).map_err(|e| e.to_string())?;
            // Linking fails if another process created the secret first, in which case that secret is read.
            let result = write_new(dir, &[&secret], |temp| {
                let result = linkat(dir, temp, dir, SECRET, AtFlags::empty());
                unlinkat(dir, temp, AtFlags::empty())?;
                result
            });
            match result {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error.to_string()),
                _ => open_file(dir, SECRET)?,
            }
        }
    };
    let mut file = file.ok_or("another process removed the file")?;
    let mode = check_private(&file)?;
    if mode & 0o077 != 0 {
        return Err(format!("readable by other users: expected mode 600, found {mode:o}"));
    }
    let mut secret = [0; DIGEST];
    let len = file.metadata().map_or(0, |metadata| metadata.len());
    match file.read_exact(&mut secret) {
        Ok(()) if len == DIGEST as u64 => Ok(secret),
        _ => Err(format!(
            "expected a file of {DIGEST} bytes, found {len} bytes; remove the file, and the next run recreates it"
        )),
    }
}

/// Writes a file under a unique temporary name; `publish` then renames or links the file to its final name.
fn write_new(dir: &File, chunks: &[&[u8]], publish: impl FnOnce(&str) -> rustix::io::Result<()>) -> Result<()> {
    let mut suffix = [0; 8];
    random(&mut suffix)?;
    let name = format!("{TEMP_PREFIX}{:016x}", u64::from_le_bytes(suffix));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(dir, &*name, flags, Mode::RUSR | Mode::WUSR)?);
    let result = chunks.iter().try_for_each(|chunk| file.write_all(chunk)).and_then(|()| Ok(publish(&name)?));
    result.inspect_err(|_| {
        let _ = unlinkat(dir, &*name, AtFlags::empty());
    })
}

fn random(bytes: &mut [u8]) -> Result<()> {
    let mut count = 0;
    while count < bytes.len() {
        count += getrandom(&mut bytes[count..], GetRandomFlags::empty())?;
    }
    Ok(())
}

/// Opens a directory without following a symlink.
///
/// # Errors
/// If the path is not a directory, or cannot be opened.
pub fn open_directory(parent: impl AsFd, name: &Path) -> Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(openat(parent, name, flags, Mode::empty())?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, symlink};
    use tempfile::TempDir;

    fn backend_dir(dir: &Path) -> PathBuf {
        dir.join("backend")
    }

    /// Creates settings for a cache of `limit` bytes in a temporary directory.
    fn cache(limit: u64) -> (TempDir, Settings) {
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings { dir: dir.path().join("cache"), folder: "backend", suffix: ".so", limit };
        (dir, settings)
    }

    fn key(number: u8) -> blake3::Hash {
        blake3::hash(&[number])
    }

    fn file(settings: &Settings, name: &str) -> PathBuf {
        backend_dir(&settings.dir).join(name)
    }

    fn object(settings: &Settings, number: u8) -> PathBuf {
        file(settings, &format!("{}.so", key(number).to_hex()))
    }

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// Returns true if the process runs as root, which may change the owner of files.
    fn is_root() -> bool {
        geteuid().is_root()
    }

    #[test]
    fn folders_and_files_are_private_to_the_user() {
        let (_dir, settings) = cache(1000);
        let cache = Cache::open(&settings).unwrap();
        cache.put(key(1), b"object").unwrap();
        assert_eq!(cache.get(key(1)), Ok(Lookup::Hit(b"object".to_vec())));
        assert_eq!(cache.get(key(2)), Ok(Lookup::Miss));
        assert_eq!([&settings.dir, &backend_dir(&settings.dir)].map(|path| mode(path)), [0o700, 0o700]);
        assert_eq!([&object(&settings, 1), &file(&settings, SECRET)].map(|path| mode(path)), [0o600, 0o600]);
        // Read permissions of others are removed from an existing directory.
        set_mode(&backend_dir(&settings.dir), 0o755);
        assert_eq!(Cache::open(&settings).unwrap().get(key(1)), Ok(Lookup::Hit(b"object".to_vec())));
        assert_eq!(mode(&backend_dir(&settings.dir)), 0o700);
    }

    #[test]
    fn rejects_corrupted_and_misplaced_objects() {
        let (_dir, settings) = cache(1000);
        let cache = Cache::open(&settings).unwrap();
        cache.put(key(1), b"object").unwrap();
        std::fs::copy(object(&settings, 1), object(&settings, 2)).unwrap();
        assert_eq!(cache.get(key(2)), Ok(Lookup::Corrupted), "an object copied to another key");
        let foreign_object = [b"object", &blake3::hash(b"object").as_bytes()[..]].concat();
        std::fs::write(object(&settings, 2), foreign_object).unwrap();
        assert_eq!(cache.get(key(2)), Ok(Lookup::Corrupted), "a digest computed without the secret");
        let object_bytes = std::fs::read(object(&settings, 1)).unwrap();
        for index in 0..object_bytes.len() {
            let mut damaged_bytes = object_bytes.clone();
            damaged_bytes[index] ^= 1;
            std::fs::write(object(&settings, 1), &damaged_bytes).unwrap();
            assert_eq!(cache.get(key(1)), Ok(Lookup::Corrupted), "byte {index}");
            std::fs::write(object(&settings, 1), &object_bytes[..index]).unwrap();
            assert_eq!(cache.get(key(1)), Ok(Lookup::Corrupted), "{index} bytes");
        }
        let result = cached(Some(&settings), key(1), || Ok::<_, ()>(b"again".to_vec()));
        assert_eq!(result, Ok(b"again".to_vec()));
        assert_eq!(cache.get(key(1)), Ok(Lookup::Hit(b"again".to_vec())), "a corrupted object is replaced");
    }

    #[test]
    fn ignores_objects_that_others_may_have_written() {
        let (_dir, settings) = cache(1000);
        let cache = Cache::open(&settings).unwrap();
        let assert_refused = |number: u8, expected: &str| {
            let error = cache.get(key(number)).unwrap_err();
            assert!(error.contains(expected), "expected \"{expected}\", found \"{error}\"");
            let result = cached(Some(&settings), key(number), || Ok::<_, ()>(b"compiled".to_vec()));
            assert_eq!(result, Ok(b"compiled".to_vec()));
            assert!(cache.get(key(number)).is_err(), "the file must stay unchanged");
        };
        (1..=5).for_each(|number| cache.put(key(number), b"kept").unwrap());
        std::fs::rename(object(&settings, 1), file(&settings, "elsewhere")).unwrap();
        symlink("elsewhere", object(&settings, 1)).unwrap();
        assert_refused(1, "found a symbolic link");
        std::fs::remove_file(object(&settings, 2)).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, object(&settings, 2), Mode::RUSR).unwrap();
        assert_refused(2, "expected a regular file");
        std::fs::remove_file(object(&settings, 3)).unwrap();
        std::fs::create_dir(object(&settings, 3)).unwrap();
        assert_refused(3, "expected a regular file");
        set_mode(&object(&settings, 4), 0o620);
        assert_refused(4, "writable by other users: expected mode 600, found 620");
        if is_root() {
            chown(object(&settings, 5), Some(65534), None).unwrap();
            assert_refused(5, "owner: expected user 0, found user 65534");
        }
    }

    #[test]
    fn rejects_folders_and_secrets_that_others_may_access() {
        let (_dir, settings) = cache(1000);
        let assert_refused = |expected: &str| {
            let error = Cache::open(&settings).err().unwrap();
            assert!(error.contains(expected), "expected \"{expected}\", found \"{error}\"");
        };
        Cache::open(&settings).unwrap();
        set_mode(&settings.dir, 0o770);
        assert_refused("writable by other users: expected mode 750, found 770");
        set_mode(&settings.dir, 0o755);
        Cache::open(&settings).unwrap();
        set_mode(&backend_dir(&settings.dir), 0o777);
        assert_refused("subdirectory backend: writable by other users");
        set_mode(&backend_dir(&settings.dir), 0o700);
        let secret = file(&settings, SECRET);
        set_mode(&secret, 0o644);
        assert_refused("backend/key: readable by other users");
        set_mode(&secret, 0o600);
        std::fs::write(&secret, "short").unwrap();
        assert_refused("expected a file of 32 bytes");
        std::fs::remove_file(&secret).unwrap();
        symlink("/etc/hostname", &secret).unwrap();
        assert_refused("a symbolic link");
        std::fs::remove_file(&secret).unwrap();
        Cache::open(&settings).unwrap();
        if is_root() {
            chown(backend_dir(&settings.dir), Some(65534), None).unwrap();
            assert_refused("found user 65534");
        }
        std::fs::rename(backend_dir(&settings.dir), settings.dir.join("elsewhere")).unwrap();
        symlink("elsewhere", backend_dir(&settings.dir)).unwrap();
        assert_refused("subdirectory backend: expected a directory");
    }

    #[test]
    fn evicts_least_recently_used_objects_first() {
        let (_dir, settings) = cache(1000);
        let cache = Cache::open(&settings).unwrap();
        let set_age = |number: u8, seconds: u64| {
            let time = SystemTime::now() - Duration::from_secs(seconds);
            File::open(object(&settings, number)).unwrap().set_modified(time).unwrap();
        };
        for number in 1..=4 {
            cache.put(key(number), &[number; 200]).unwrap();
            set_age(number, 100 - u64::from(number));
        }
        let hit = cache.get(key(1)).unwrap();
        assert_eq!(hit, Lookup::Hit(vec![1; 200]));
        let stale_file = file(&settings, ".new-0000000000000000");
        std::fs::write(&stale_file, "half of an").unwrap();
        File::open(&stale_file).unwrap().set_modified(SystemTime::now() - 2 * MIN_STALE_AGE).unwrap();
        cache.put(key(5), &[5; 200]).unwrap();
        let is_present = [1, 2, 3, 4, 5].map(|number| object(&settings, number).exists());
        assert_eq!(is_present, [true, false, false, true, true]);
        assert!(!stale_file.exists(), "stale temporary files are removed");
        assert!(file(&settings, SECRET).exists());
        cache.put(key(6), &[6; 2000]).unwrap();
        assert!(!object(&settings, 6).exists(), "an object larger than the limit is not stored");
        assert!(object(&settings, 5).exists());
    }

    #[test]
    fn concurrent_openers_agree_on_one_secret() {
        let (_dir, settings) = cache(1000);
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let settings = settings.clone();
                std::thread::spawn(move || Cache::open(&settings).unwrap().secret)
            })
            .collect();
        let secrets: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(secrets.iter().all(|secret| *secret == secrets[0]));
        let file_count = std::fs::read_dir(backend_dir(&settings.dir)).unwrap().count();
        assert_eq!(file_count, 1, "only the secret remains");
    }

    #[test]
    fn parses_sizes() {
        let cases =
            [("0", Some(0)), ("17", Some(17)), ("2K", Some(2048)), ("1G", Some(1 << 30)), ("M", None), ("-1", None)];
        for (text, expected) in cases {
            assert_eq!(bytes(text), expected, "{text}");
        }
    }
}
