//! Options of the user, with their ranges.

use crate::library::{Dims, shown_capability};
use byoc_plugin_api::{BackendOption, Dim, Error, Result, TensorType};
use byoc_plugin_support::dims;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Capabilities that the library offers, as ten times their numbers.
pub const OFFERED: [i32; 6] = [75, 80, 86, 89, 120, 121];
/// Scratch memory of layers that an engine may take by default, in MiB.
const DEFAULT_WORKSPACE: usize = 1024;
/// Largest scratch memory, in MiB.
const MAX_WORKSPACE: usize = 1 << 20;
/// Highest optimization level, and the default.
const MAX_LEVEL: i32 = 5;
const DEFAULT_LEVEL: i32 = 3;

/// Compute capability of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Capability {
    /// Every one that the library supports from 8.0 on.
    Any,
    /// One, as ten times its number.
    Of(i32),
}

impl Capability {
    /// Formats the capability as the user writes it.
    pub fn shown(self) -> String {
        match self {
            Capability::Any => "any".to_owned(),
            Capability::Of(number) => shown_capability(number),
        }
    }

    /// Reads a capability as the user writes it.
    ///
    /// # Errors
    /// If the library does not offer it.
    pub fn parse(text: &str) -> Result<Capability> {
        if text == "any" {
            return Ok(Capability::Any);
        }
        let found = OFFERED.into_iter().find(|&number| shown_capability(number) == text);
        found.map(Capability::Of).ok_or_else(|| {
            let offered = OFFERED.map(shown_capability).join(", ");
            Error::new(format!("tensorrt.capability: expected any or some of {offered}, found \"{text}\""))
                .hint("name the capabilities that the library offers: --backend-option tensorrt.capability=8.9,12.0")
        })
    }
}

/// Range of an open dimension: lowest, typical and highest size.
pub type Range = [usize; 3];

/// Options of a compilation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Capabilities that the user named; empty for that of the device, or any.
    pub capabilities: Vec<Capability>,
    /// Ranges of open dimensions, by symbol.
    pub profile: BTreeMap<String, Range>,
    /// Scratch memory of layers, in bytes.
    pub workspace: usize,
    pub level: i32,
    /// File of the timing cache.
    pub timing_cache: Option<PathBuf>,
    /// True if products of float32 may be computed in TF32.
    pub tf32: bool,
    /// True if regions without a product are left to others.
    pub prune: bool,
}

impl Options {
    /// Reads the options from those of `compile` or of a candidate.
    ///
    /// # Errors
    /// If a value is out of range.
    pub fn of(options: &Value) -> Result<Options> {
        let get = |name: &str| options["backend_options"][name].as_str();
        let capabilities =
            get("capability").map_or(Ok(Vec::new()), |text| text.split(',').map(Capability::parse).collect())?;
        let workspace = number(get("workspace"), "workspace", DEFAULT_WORKSPACE, 1..=MAX_WORKSPACE)?;
        let level = number(get("level"), "level", DEFAULT_LEVEL, 0..=MAX_LEVEL)?;
        Ok(Options {
            capabilities: distinct(capabilities),
            profile: get("profile").map_or(Ok(BTreeMap::new()), profile)?,
            workspace: workspace << 20,
            level,
            timing_cache: get("timing_cache").filter(|text| !text.is_empty()).map(PathBuf::from),
            tf32: get("tf32") == Some("true"),
            prune: get("prune") == Some("true"),
        })
    }

    /// Returns the lowest, typical and highest dimensions of a tensor.
    ///
    /// # Errors
    /// If an open dimension has no range, or its dimensions exceed what the library holds.
    pub fn dims_of(&self, ty: &TensorType) -> Result<[Dims; 3]> {
        let at = |position: usize| -> Result<Dims> {
            let size = |dim: &Dim| {
                dims::size(dim, &mut |name| self.profile.get(name).map(|range| range[position])).ok_or_else(|| {
                    let hint = "give the dimension a range: --backend-option tensorrt.profile=NAME:MIN:OPT:MAX";
                    Error::new(format!("dimension {dim}: expected a range in tensorrt.profile, found none")).hint(hint)
                })
            };
            let sizes = ty.dims.iter().map(size).collect::<Result<Vec<usize>>>()?;
            Dims::new(&sizes)
                .ok_or_else(|| Error::new(format!("expected at most {} dimensions, found {}", Dims::MAX, sizes.len())))
        };
        Ok([at(0)?, at(1)?, at(2)?])
    }
}

fn distinct(mut capabilities: Vec<Capability>) -> Vec<Capability> {
    let mut seen = Vec::new();
    capabilities.retain(|capability| {
        !seen.contains(capability) && {
            seen.push(*capability);
            true
        }
    });
    capabilities
}

/// Reads a number in a range.
fn number<N>(text: Option<&str>, name: &str, default: N, range: std::ops::RangeInclusive<N>) -> Result<N>
where
    N: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    let Some(text) = text else { return Ok(default) };
    text.parse::<N>().ok().filter(|number| range.contains(number)).ok_or_else(|| {
        let (low, high) = (range.start(), range.end());
        Error::new(format!("tensorrt.{name}: expected a number from {low} to {high}, found \"{text}\""))
            .hint(format!("leave the option out for its default, {default}"))
    })
}

/// Reads ranges: `batch:1:8:32,sequence:1:64:128`.
fn profile(text: &str) -> Result<BTreeMap<String, Range>> {
    let mut ranges = BTreeMap::new();
    for part in text.split(',') {
        let fields: Vec<&str> = part.split(':').collect();
        let range = match fields[..] {
            [name, min, opt, max] if !name.is_empty() => {
                let sizes: Option<Vec<usize>> = [min, opt, max].iter().map(|size| size.parse().ok()).collect();
                sizes.and_then(|sizes| Some((name, Range::try_from(sizes).ok()?)))
            }
            _ => None,
        };
        let Some((name, range)) = range.filter(|(_, [min, opt, max])| 1 <= *min && min <= opt && opt <= max) else {
            return Err(Error::new(format!(
                "tensorrt.profile: expected NAME:MIN:OPT:MAX with 1 <= MIN <= OPT <= MAX, found \"{part}\""
            ))
            .hint("for example --backend-option tensorrt.profile=batch:1:8:32"));
        };
        ranges.insert(name.to_owned(), range);
    }
    Ok(ranges)
}

/// Returns the description of the options.
pub fn table() -> BTreeMap<String, BackendOption> {
    let option = |about: &str, values: &[&str]| BackendOption {
        about: about.into(),
        values: values.iter().map(|&value| value.to_owned()).collect(),
        ..BackendOption::default()
    };
    let table = [
        (
            "capability",
            option(
                "Compute capabilities to compile for: 7.5, 8.0, 8.6, 8.9, 12.0, 12.1, or any (8.0 and later); by default that of the GPU of this machine, otherwise any",
                &[],
            ),
        ),
        ("profile", option("Ranges of open dimensions: NAME:MIN:OPT:MAX, separated by commas", &[])),
        ("workspace", option("Largest scratch memory of a layer in MiB, 1 to 1048576; 1024 unless set", &[])),
        ("level", option("Optimization level of the library, 0 to 5; 3 unless set", &[])),
        ("timing_cache", option("File of the library's timings, which is read if it exists, and written", &[])),
        ("tf32", option("Products of float32 in TF32", &["false", "true"])),
        ("prune", option("No regions without a convolution or a matrix product", &["false", "true"])),
    ];
    table.map(|(name, option)| (name.to_owned(), option)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_plugin_api::DType;
    use serde_json::json;

    fn read(name: &str, value: &str) -> Result<Options> {
        Options::of(&json!({ "backend_options": { name: value } }))
    }

    #[test]
    fn options_have_ranges() {
        let default = Options::of(&Value::Null).unwrap();
        assert_eq!(
            (default.workspace, default.level, default.tf32, default.capabilities.len()),
            (1 << 30, 3, false, 0)
        );
        let set = read("capability", "12.0,8.9,12.0").unwrap();
        assert_eq!(set.capabilities, [Capability::Of(120), Capability::Of(89)]);
        assert_eq!(read("workspace", "64").unwrap().workspace, 64 << 20);
        let cases = [
            (
                "capability",
                "9.0",
                "tensorrt.capability: expected any or some of 7.5, 8.0, 8.6, 8.9, 12.0, 12.1, found \"9.0\"",
            ),
            ("level", "6", "tensorrt.level: expected a number from 0 to 5, found \"6\""),
            ("workspace", "0", "tensorrt.workspace: expected a number from 1 to 1048576, found \"0\""),
            ("workspace", "much", "tensorrt.workspace: expected a number from 1 to 1048576, found \"much\""),
            (
                "profile",
                "batch:4:2:8",
                "tensorrt.profile: expected NAME:MIN:OPT:MAX with 1 <= MIN <= OPT <= MAX, found \"batch:4:2:8\"",
            ),
            (
                "profile",
                "batch",
                "tensorrt.profile: expected NAME:MIN:OPT:MAX with 1 <= MIN <= OPT <= MAX, found \"batch\"",
            ),
        ];
        for (name, value, expected) in cases {
            let error = read(name, value).unwrap_err();
            assert_eq!(error.message, expected);
            assert!(!error.hint.is_empty());
        }
    }

    #[test]
    fn profile_gives_dimensions() {
        let options = read("profile", "n:1:4:16").unwrap();
        let ty = |dim: &str| TensorType {
            dtype: DType::F32,
            dims: [Dim::Unknown(dim.into()), Dim::Known(3)].into_iter().collect(),
        };
        let dims = options.dims_of(&ty("2*n")).unwrap();
        assert_eq!(dims.map(|dims| dims.as_slice().to_vec()), [[2, 3], [8, 3], [32, 3]]);
        assert!(options.dims_of(&ty("m")).unwrap_err().message.contains("tensorrt.profile"));
    }
}
