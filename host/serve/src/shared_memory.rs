//! System shared-memory regions registered by clients.
//!
//! Large tensors of floating-point elements are used in place, in a [`Mapping`]. Everything else is copied through the
//! descriptor: a copy does not change during a run, and need not be aligned.

use crate::error::{Result, ServeError, Status};
use crate::mapping::{Mapping, Span, WritableSpan};
use crate::request::SharedSpan;
use byoc::DType;
use byoc_ir::diag::codes::serving::SHARED_MEMORY;
use byoc_ir::tensor::memory::Charge;
use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, pread};
use rustix::shm;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// Maximum number of registered regions.
const MAX_REGIONS: usize = 1024;
/// Minimum size in bytes of a tensor that is used in place. A smaller tensor is copied: it may be a parameter of an
/// operator, which must not change during a run, and the copy takes little time compared with the request.
const MIN_IN_PLACE: usize = 1 << 16;

/// Shared-memory region.
#[derive(Debug)]
pub struct Region {
    /// Name of the shared-memory object.
    pub key: String,
    /// Offset of the region in the object.
    pub offset: u64,
    /// Size of the region in bytes.
    pub byte_size: u64,
    file: File,
    /// Mapping of the region; `None` if the region cannot be mapped.
    mapping: OnceLock<Option<Arc<Mapping>>>,
}

/// Registered regions by name.
#[derive(Debug)]
pub struct Regions {
    is_allowed: bool,
    regions: RwLock<BTreeMap<String, Arc<Region>>>,
}

impl Regions {
    /// Creates an empty table. If `is_allowed` is false, every operation on it fails.
    pub fn new(is_allowed: bool) -> Regions {
        Regions { is_allowed, regions: RwLock::default() }
    }

    /// Returns true if shared memory is allowed.
    pub fn are_allowed(&self) -> bool {
        self.is_allowed
    }

    fn check_allowed(&self) -> Result<()> {
        if self.is_allowed {
            return Ok(());
        }
        Err(ServeError::not_served("shared memory is disabled; start the server with --allow-shared-memory"))
    }

    /// Registers a region.
    ///
    /// # Errors
    /// If the name is already registered, the object cannot be opened or belongs to another user, or the region exceeds
    /// the object.
    pub fn register(&self, name: &str, key: &str, offset: u64, byte_size: u64) -> Result<()> {
        self.check_allowed()?;
        let invalid_request = |message: String| Err(ServeError::new(Status::InvalidArgument, SHARED_MEMORY, message));
        if name.is_empty() || key.trim_start_matches('/').is_empty() {
            return invalid_request("expected a region name and an object key, found an empty string".into());
        }
        if key.trim_start_matches('/').contains('/') || key.contains('\0') {
            return invalid_request(format!("expected a key without inner slashes or NUL, found {key:?}"));
        }
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        if regions.contains_key(name) {
            let message = format!("shared memory region '{name}' already in manager");
            return Err(ServeError::new(Status::AlreadyExists, SHARED_MEMORY, message));
        }
        if regions.len() == MAX_REGIONS {
            return invalid_request(format!(
                "expected at most {MAX_REGIONS} shared-memory regions, found {}",
                regions.len() + 1
            ));
        }
        let file = open_object(name, key)?;
        let size = file.metadata().map(|data| data.len()).unwrap_or(0);
        if offset.checked_add(byte_size).is_none_or(|end| end > size) {
            return invalid_request(format!(
                "failed to register shared memory region '{name}': expected offset {offset} + {byte_size} bytes inside \
                 the object '{key}', found an object of {size} bytes"
            ));
        }
        regions.insert(
            name.to_owned(),
            Arc::new(Region { key: key.to_owned(), offset, byte_size, file, mapping: OnceLock::new() }),
        );
        Ok(())
    }

    /// Removes a region, or all regions if `name` is `None`. Requests in progress retain their regions.
    ///
    /// # Errors
    /// If shared memory is not allowed.
    pub fn unregister(&self, name: Option<&str>) -> Result<()> {
        self.check_allowed()?;
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        match name {
            Some(name) => drop(regions.remove(name)),
            None => regions.clear(),
        }
        Ok(())
    }

    /// Returns the region named `name`, or all regions if `name` is `None`.
    ///
    /// # Errors
    /// If the name is unknown, or shared memory is not allowed.
    pub fn status(&self, name: Option<&str>) -> Result<Vec<(String, Arc<Region>)>> {
        self.check_allowed()?;
        match name {
            Some(name) => Ok(vec![(name.to_owned(), self.find(name)?)]),
            None => {
                let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
                Ok(regions.iter().map(|(name, region)| (name.clone(), region.clone())).collect())
            }
        }
    }

    fn find(&self, name: &str) -> Result<Arc<Region>> {
        self.check_allowed()?;
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        regions.get(name).cloned().ok_or_else(|| {
            let message = format!("Unable to find shared memory region: '{name}'");
            ServeError::new(Status::NotFound, SHARED_MEMORY, message)
        })
    }

    /// Returns the region of a span, and the offset of the span in the shared-memory object.
    ///
    /// # Errors
    /// If the region is unknown, or the span exceeds the region.
    pub fn locate(&self, span: &SharedSpan) -> Result<(Arc<Region>, u64)> {
        let region = self.find(&span.region)?;
        if span.offset.checked_add(span.byte_size).is_none_or(|end| end > region.byte_size) {
            let message = format!(
                "Invalid offset + byte size for shared memory region: '{}': expected at most {} bytes, found offset {} + byte size {}",
                span.region, region.byte_size, span.offset, span.byte_size
            );
            return Err(ServeError::new(Status::InvalidArgument, SHARED_MEMORY, message));
        }
        let offset = region.offset + span.offset;
        Ok((region, offset))
    }

    /// Reads a span into a 64-byte aligned buffer, so that a tensor needs no further copy.
    ///
    /// # Errors
    /// As for [`Regions::locate`], or if the object was shrunk or memory is exhausted.
    pub fn read(&self, span: &SharedSpan) -> Result<SpanCopy> {
        const ALIGN: usize = 64;
        let (region, offset) = self.locate(span)?;
        let memory_error = |error: String| ServeError::overloaded(format!("not enough memory for an input: {error}"));
        let size = usize::try_from(span.byte_size).map_err(|error| memory_error(error.to_string()))?;
        let charge = Charge::new(size).map_err(|error| memory_error(error.to_string()))?;
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(size.saturating_add(ALIGN)).map_err(|error| memory_error(error.to_string()))?;
        let start = (ALIGN - (buffer.as_ptr() as usize) % ALIGN) % ALIGN;
        buffer.resize(start, 0);
        // The buffer is not zero-filled, because that would take as long as the copy.
        while buffer.len() < start + size {
            let copied_len = (buffer.len() - start) as u64;
            match pread(&region.file, spare_capacity(&mut buffer), offset + copied_len) {
                Ok(0) => return Err(shrunk_region_error(span, &region, &std::io::ErrorKind::UnexpectedEof.into())),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(shrunk_region_error(span, &region, &error.into())),
            }
        }
        buffer.truncate(start + size);
        Ok(SpanCopy { buffer, start, _charge: charge })
    }
}

/// Opens a shared-memory object of the server's own user. Everything is checked on the open descriptor: the directory of
/// the objects is writable for every user, who can replace an object by a symlink at any time.
fn open_object(name: &str, key: &str) -> Result<File> {
    let path = format!("/{}", key.trim_start_matches('/'));
    let no_link = shm::OFlags::from_bits_retain((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits());
    let file = shm::open(path.as_str(), shm::OFlags::RDWR | no_link, Mode::empty()).map_err(|error| {
        let status = if error == Errno::LOOP { Status::InvalidArgument } else { Status::Internal };
        let reason = match error {
            Errno::LOOP => "expected a shared-memory object, found a symbolic link".to_owned(),
            error => error.to_string(),
        };
        let message = format!("Unable to open shared memory region: '{name}': object '{key}': {reason}");
        ServeError::new(status, SHARED_MEMORY, message)
    })?;
    let file = File::from(file);
    let (own_user, found) = (rustix::process::geteuid().as_raw(), file.metadata());
    let reason = match found {
        Ok(found) if !found.is_file() => "expected a shared-memory object, found another kind of file".to_owned(),
        Ok(found) if found.uid() != own_user => {
            format!("expected an object of the server's user {own_user}, found one of user {}", found.uid())
        }
        Ok(_) => return Ok(file),
        Err(error) => error.to_string(),
    };
    let message = format!("failed to register shared memory region '{name}': object '{key}': {reason}");
    Err(ServeError::new(Status::InvalidArgument, SHARED_MEMORY, message))
}

/// Copy of a span, charged to the memory limit.
#[derive(Debug)]
pub struct SpanCopy {
    buffer: Vec<u8>,
    start: usize,
    _charge: Charge,
}

impl AsRef<[u8]> for SpanCopy {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[self.start..]
    }
}

/// Returns true if a tensor of this type and size can be used in place.
pub fn is_in_place(dtype: DType, size: usize) -> bool {
    size >= MIN_IN_PLACE && matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
}

impl Region {
    fn mapping(&self) -> Option<&Arc<Mapping>> {
        let map = || {
            let size = usize::try_from(self.byte_size).ok()?;
            Mapping::new(&self.file, self.offset, size).ok().map(Arc::new)
        };
        self.mapping.get_or_init(map).as_ref()
    }

    /// Borrows the bytes at an offset of the object for a tensor that is read in place. `None` if the tensor has to be
    /// copied.
    pub fn borrow(&self, offset: u64, size: usize) -> Option<Span> {
        self.mapping()?.read(usize::try_from(offset - self.offset).ok()?, size)
    }

    /// Same as [`Region::borrow`], for a tensor that is written.
    pub fn borrow_writable(&self, offset: u64, size: usize) -> Option<WritableSpan> {
        self.mapping()?.write(usize::try_from(offset - self.offset).ok()?, size)
    }

    /// Checks after a run that the object was not shrunk while the run used its tensors in place.
    ///
    /// # Errors
    /// If the object was shrunk.
    pub fn check_intact(&self, span: &SharedSpan) -> Result<()> {
        match self.mapping.get() {
            Some(Some(mapping)) if mapping.is_lost() => {
                Err(shrunk_region_error(span, self, &std::io::ErrorKind::UnexpectedEof.into()))
            }
            _ => Ok(()),
        }
    }

    /// Writes the elements of an output.
    ///
    /// # Errors
    /// If the object was shrunk, or the write fails.
    pub fn write(&self, span: &SharedSpan, offset: u64, bytes: &[u8]) -> Result<()> {
        // A write past the end would enlarge the object.
        let size = self.file.metadata().map(|data| data.len()).unwrap_or(0);
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > size) {
            return Err(shrunk_region_error(span, self, &std::io::ErrorKind::UnexpectedEof.into()));
        }
        self.file.write_all_at(bytes, offset).map_err(|error| shrunk_region_error(span, self, &error))
    }
}

fn shrunk_region_error(span: &SharedSpan, region: &Region, error: &std::io::Error) -> ServeError {
    let size = region.file.metadata().map(|data| data.len()).unwrap_or(0);
    let message = format!(
        "shared memory region '{}': expected {} bytes at offset {} of the object '{}', found an object of {size} bytes: {error}",
        span.region,
        span.byte_size,
        region.offset.saturating_add(span.offset),
        region.key
    );
    ServeError::new(Status::InvalidArgument, SHARED_MEMORY, message)
}
