//! Mutated artifacts with recomputed digests, so that a mutation passes the digest checks and reaches later checks.
//!
//! Mutations do not change native code, as loading an object means running it. Each input is opened, loaded by the
//! plugin that it was compiled for, and run. Its program is also run on the host without backends. Each run is either
//! rejected with a message, or produces outputs of the declared types; if the mutation changed only types, shapes,
//! offsets or the code of the entry function, both runs produce the same outputs.

use crate::hostile::Hostile;
use crate::{Target, check_diagnostics, corpus, count_accepted, files, json, mutate, random_below, random_item};
use byoc::driver::Compiled;
use byoc::driver::{BuildOptions, build};
use byoc::frontend::{self, LoadOptions};
use byoc::io::random::Random;
use byoc::runtime::artifact;
use byoc::runtime::model::Model;
use byoc::runtime::session::Session;
use byoc_ir::diag::Severity;
use byoc_ir::tensor::Tensor;
use serde_json::{Value, json};
use std::io::{Cursor, Read, Write};
use std::sync::OnceLock;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipArchive, ZipWriter};

pub const ARTIFACT: Target = Target {
    name: "artifact",
    seeds: || BACKENDS.iter().flat_map(|backend| seeds_of(backend)).cloned().collect(),
    hostile: |size| hostile_artifacts("template", size),
    mutate: |bytes, random| mutate_and_seal(bytes, random, mutate_contents),
    run,
};

macro_rules! blob_targets {
    ($($(#[$doc:meta])* $target:ident $name:literal $backend:literal;)*) => {$(
        $(#[$doc])*
        pub const $target: Target = Target {
            name: $name,
            seeds: || seeds_of($backend).to_vec(),
            hostile: |size| hostile_blobs($backend, size),
            mutate: |bytes, random| mutate_and_seal(bytes, random, mutate_blob),
            run,
        };
    )*};
}

blob_targets! {
    BLOB_DNNL "blob_dnnl" "dnnl";
    BLOB_NUC_FPGA "blob_nuc_fpga" "nuc_fpga";
    BLOB_VTA "blob_vta" "vta";
    BLOB_TEMPLATE "blob_template" "template";
    BLOB_CCOMPILER "blob_ccompiler" "ccompiler";
    BLOB_ELEMENTWISE "blob_elementwise" "elementwise";
}

const BACKENDS: [&str; 6] = ["dnnl", "nuc_fpga", "vta", "template", "ccompiler", "elementwise"];

/// Maximum number of elements in a register. Models with larger registers are not run, because that would be too slow.
const MAX_ELEMENTS: usize = 1 << 16;

/// Returns the session shared by all artifact fuzz targets, with the plugins of this checkout loaded.
fn session() -> &'static Session {
    static SESSION: OnceLock<Session> = OnceLock::new();
    SESSION.get_or_init(|| {
        let dir = byoc_test_support::plugin_dir(&["dnnl", "nuc_fpga", "vta", "template", "ccompiler"]).keep();
        byoc_test_support::copy(&byoc_test_support::sample("elementwise"), &dir.join("libbyoc_elementwise.so"));
        Session::new(&[dir], 1).expect("cannot start a thread")
    })
}

/// Returns the corpus programs as artifacts, compiled for a backend on this machine. Artifacts without a region of the
/// backend are used only if no artifact has such a region: without oneDNN, dnnl supports no operator, and everything
/// runs on the host.
fn seeds_of(backend: &str) -> &'static [Vec<u8>] {
    static SEEDS: [OnceLock<Vec<Vec<u8>>>; BACKENDS.len()] = [const { OnceLock::new() }; BACKENDS.len()];
    let backend_index = BACKENDS.iter().position(|name| *name == backend).expect("unknown backend");
    SEEDS[backend_index].get_or_init(|| {
        let mut seeds = Vec::new();
        let mut host_only_seeds = Vec::new();
        let mut refusal = String::new();
        for (file, _) in corpus("artifact") {
            let module = frontend::load(&file, &LoadOptions::default()).expect("cannot load the program");
            let options = BuildOptions { backends: vec![backend.to_owned()], ..BuildOptions::default() };
            let compiled_module = match build(session(), module, &options, &mut |_| {}) {
                Ok(compiled_module) => compiled_module,
                Err(failure) => {
                    refusal = failure.to_string();
                    continue;
                }
            };
            let path = files::file(&[], "seed");
            artifact::write(&path, &compiled_module.compiled).expect("cannot write the artifact");
            let bytes = std::fs::read(&path).expect("cannot read the artifact");
            match compiled_module.compiled.regions.iter().flatten().count() {
                0 => host_only_seeds.push(bytes),
                _ => seeds.push(bytes),
            }
        }
        let seeds = if seeds.is_empty() { host_only_seeds } else { seeds };
        assert!(!seeds.is_empty(), "expected a corpus program that {backend} compiles, found refusals only: {refusal}");
        seeds
    })
}

/// Archive entries, in order.
type Entries = Vec<(String, Vec<u8>)>;

const MANIFEST: &str = "manifest.json";
const PROGRAM: &str = "program.json";
const WEIGHTS: &str = "weights.safetensors";
const TRAILER: &[u8] = b"byoc-blake3:";
const DIGEST_DIGITS: usize = 64;

fn unpack(bytes: &[u8]) -> Option<Entries> {
    let mut archive = ZipArchive::new(Cursor::new(bytes)).ok()?;
    let mut entries = Vec::new();
    for i in 0..archive.len() {
        let mut entry = archive.by_index(i).ok()?;
        let name = entry.name().ok()?.into_owned();
        let mut contents = Vec::new();
        entry.read_to_end(&mut contents).ok()?;
        entries.push((name, contents));
    }
    Some(entries)
}

/// Returns an archive of the given entries, with recomputed digests.
fn seal_entries(entries: &Entries) -> Option<Vec<u8>> {
    let mut manifest: Value = serde_json::from_slice(contents_of(entries, MANIFEST)?).ok()?;
    let digest = |bytes: &[u8]| blake3::hash(bytes).to_hex().to_string();
    for record in manifest["entries"].as_array_mut().into_iter().flatten() {
        if let Some(contents) = record["name"].as_str().and_then(|name| contents_of(entries, name)) {
            record["bytes"] = json!(contents.len());
            record["blake3"] = json!(digest(contents));
        }
    }
    if let Some(weights) = contents_of(entries, WEIGHTS)
        && let Some((header, data)) = header_of(weights)
    {
        for record in manifest["tensors"].as_array_mut().into_iter().flatten() {
            let range = |end_index: usize| {
                header[record["name"].as_str()?]["data_offsets"][end_index].as_u64().map(|n| n as usize)
            };
            if let Some(bytes) = range(0).zip(range(1)).and_then(|(start, end)| data.get(start..end)) {
                record["blake3"] = json!(digest(bytes));
            }
        }
    }
    let manifest = serde_json::to_vec(&manifest).ok()?;
    let mut file = Cursor::new(Vec::new());
    let mut archive = ZipWriter::new(&mut file);
    archive.set_raw_comment([TRAILER, &[b'0'; DIGEST_DIGITS]].concat().into()).ok()?;
    for (name, contents) in entries {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .last_modified_time(DateTime::default())
            .with_alignment(64);
        archive.start_file(name.as_str(), options).ok()?;
        archive.write_all(if name == MANIFEST { &manifest } else { contents }).ok()?;
    }
    archive.finish().ok()?;
    let mut bytes = file.into_inner();
    let covered_len = bytes.len().checked_sub(DIGEST_DIGITS)?;
    let seal = digest(&bytes[..covered_len]);
    bytes[covered_len..].copy_from_slice(seal.as_bytes());
    Some(bytes)
}

fn contents_of<'e>(entries: &'e Entries, name: &str) -> Option<&'e [u8]> {
    entries.iter().find(|(entry_name, _)| entry_name == name).map(|(_, contents)| &contents[..])
}

/// Returns the header of a safetensors file, and the data.
fn header_of(weights: &[u8]) -> Option<(Value, &[u8])> {
    let (length, rest) = weights.split_first_chunk::<8>()?;
    let (header, data) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    Some((serde_json::from_slice(header).ok()?, data))
}

/// Mutates an artifact and recomputes its digests. Input that cannot be unpacked is returned unchanged.
fn mutate_and_seal(
    bytes: &[u8],
    random: &mut Random,
    mutate: fn(&mut Entries, &mut Random) -> Option<bool>,
) -> Vec<u8> {
    let Some(mut entries) = unpack(bytes) else { return bytes.to_vec() };
    let is_comparable = mutate(&mut entries, random).unwrap_or(false);
    if !is_comparable {
        // Marks the artifact as one whose result may differ between the backend and the host.
        edit_json(&mut entries, MANIFEST, |manifest| manifest["options"] = json!({"fuzz": "differs"}));
    }
    seal_entries(&entries).unwrap_or_else(|| bytes.to_vec())
}

fn edit_json(entries: &mut Entries, name: &str, edit: impl FnOnce(&mut Value)) -> Option<()> {
    let (_, contents) = entries.iter_mut().find(|(entry_name, _)| entry_name == name)?;
    let mut value: Value = serde_json::from_slice(contents).ok()?;
    edit(&mut value);
    *contents = serde_json::to_vec(&value).ok()?;
    Some(())
}

/// Returns an artifact of a backend after an edit of its entries.
fn edited(backend: &str, name: impl Into<String>, edit: impl FnOnce(&mut Entries) -> Option<()>) -> Option<Hostile> {
    let mut entries = unpack(seeds_of(backend).first()?)?;
    edit(&mut entries)?;
    Some((format!("{backend}: {}", name.into()), seal_entries(&entries)?))
}

/// Returns artifacts whose lists have many empty items, whose numbers are large, and whose tensors share their bytes.
fn hostile_artifacts(backend: &str, size: usize) -> Vec<Hostile> {
    let mut inputs = Vec::new();
    for file in [MANIFEST, PROGRAM] {
        let Some(entries) = seeds_of(backend).first().and_then(|seed| unpack(seed)) else { continue };
        let Some(Value::Object(fields)) =
            contents_of(&entries, file).and_then(|text| serde_json::from_slice(text).ok())
        else {
            continue;
        };
        for key in fields.keys() {
            for item in [json!({}), json!([]), json!(0), json!("")] {
                let list = vec![item.clone(); size / 4];
                inputs.extend(edited(backend, format!("{file}: {key} of many {item}"), |entries| {
                    edit_json(entries, file, |value| value[key] = list.into())
                }));
            }
        }
        for number in [u64::MAX, 1 << 62, 1 << 40] {
            inputs.extend(edited(backend, format!("{file}: numbers of {number}"), |entries| {
                edit_json(entries, file, |value| replace_numbers(value, number))
            }));
        }
    }
    for zipped in [false, true] {
        inputs.extend(edited(backend, format!("many entries, {zipped}"), |entries| {
            entries.extend((0..size / 256).map(|i| (format!("regions/{i}"), Vec::new())));
            zipped.then(|| entries.push(("x".to_owned(), vec![0; 16 * size]))).or(Some(()))
        }));
    }
    inputs.extend(edited(backend, "tensors at one range", |entries| {
        let weights = "weights.safetensors";
        let data = vec![0u8; size / 4 * 4];
        let record = json!({"dtype": "F32", "shape": [size / 4], "data_offsets": [0, size / 4 * 4]});
        let header: serde_json::Map<String, Value> = (0..2000).map(|i| (i.to_string(), record.clone())).collect();
        let mut text = serde_json::to_vec(&header).ok()?;
        text.resize((8 + text.len()).next_multiple_of(64) - 8, b' ');
        let contents = [&(text.len() as u64).to_le_bytes()[..], &text, &data].concat();
        entries.retain(|(name, _)| name != weights);
        entries.push((weights.to_owned(), contents));
        let digest = blake3::hash(&data).to_hex().to_string();
        edit_json(entries, MANIFEST, |manifest| {
            let tensors: Vec<Value> = (0..2000).map(|i| json!({"name": i.to_string(), "blake3": digest})).collect();
            manifest["tensors"] = tensors.into();
        })
    }));
    inputs
}

/// Replaces all numbers of a document.
fn replace_numbers(root: &mut Value, number: u64) {
    let mut pending = vec![root];
    while let Some(value) = pending.pop() {
        match value {
            Value::Number(old) => *old = number.into(),
            Value::Array(items) => pending.extend(items),
            Value::Object(fields) => pending.extend(fields.values_mut()),
            _ => {}
        }
    }
}

/// Returns artifacts whose blobs consist of many items and large numbers, behind their unchanged beginning.
fn hostile_blobs(backend: &str, size: usize) -> Vec<Hostile> {
    let is_blob = |name: &str| name.starts_with("regions/") && !name.contains("/source.");
    let mut inputs = Vec::new();
    for kept in [0, 8, 40, 64] {
        for (name, filling) in [("zeros", &b"\0"[..]), ("ones", b"\xff"), ("lists", b"[],"), ("objects", b"{},")] {
            inputs.extend(edited(backend, format!("{name} after {kept} bytes"), |entries| {
                let blob = entries.iter_mut().find(|(name, _)| is_blob(name))?;
                blob.1.truncate(kept);
                blob.1.extend(filling.iter().cycle().take(size));
                Some(())
            }));
        }
    }
    inputs
}

/// Mutates an arbitrary part of the artifact; returns true if the program still matches the compiled regions.
fn mutate_contents(entries: &mut Entries, random: &mut Random) -> Option<bool> {
    match random_below(random, 12) {
        0..=6 => {
            let mut is_comparable = true;
            for _ in 0..=random_below(random, 2) {
                edit_json(entries, PROGRAM, |program| {
                    for path in json::mutate(program, random) {
                        let keys: Vec<&str> = path.iter().map(String::as_str).collect();
                        is_comparable &= matches!(
                            keys[..],
                            ["inputs" | "outputs", ..]
                                | ["regions", _, "inputs" | "outputs", ..]
                                | ["functions", _, "registers", _, "type", ..]
                                | ["functions", "0", ..]
                        );
                    }
                })?;
            }
            Some(is_comparable)
        }
        7..=8 => {
            edit_json(entries, MANIFEST, |manifest| drop(json::mutate(manifest, random)))?;
            Some(false)
        }
        9 => {
            let (_, weights) = entries.iter_mut().find(|(name, _)| name == WEIGHTS)?;
            let (mut header, data) = header_of(weights)?;
            let mut data = data.to_vec();
            if random_below(random, 2) == 0 {
                json::mutate(&mut header, random);
            } else {
                data = mutate::bytes(&data, random, &[]);
            }
            let mut text = serde_json::to_vec(&header).ok()?;
            text.resize((8 + text.len()).next_multiple_of(64) - 8, b' ');
            *weights = [&(text.len() as u64).to_le_bytes()[..], &text, &data].concat();
            Some(false)
        }
        10 => {
            let index = random_below(random, entries.len());
            match random_below(random, 3) {
                0 => drop(entries.remove(index)),
                1 => {
                    let other_index = random_below(random, entries.len());
                    entries.swap(index, other_index);
                }
                _ => entries[index].0 = random_item(random, &["x", PROGRAM, "../x", "regions//x"]).to_string(),
            }
            Some(false)
        }
        _ => mutate_blob(entries, random),
    }
}

const CCOMPILER: &[u8] = b"BYOCCC02";
const NUC_FPGA: &[u8] = b"NUCFPGA\n";

/// Mutates a region's blob; the region's result may then differ from the host's result.
fn mutate_blob(entries: &mut Entries, random: &mut Random) -> Option<bool> {
    let is_blob = |name: &str| name.starts_with("regions/") && !name.contains("/source.");
    let blobs: Vec<usize> = (0..entries.len()).filter(|&index| is_blob(&entries[index].0)).collect();
    if blobs.is_empty() {
        return None;
    }
    let contents = &mut entries[*random_item(random, &blobs)].1;
    if let Some(rest) = contents.strip_prefix(CCOMPILER) {
        *contents = mutate_ccompiler_header(rest, random)?;
    } else if let Some(rest) = contents.strip_prefix(NUC_FPGA)
        && random_below(random, 8) != 0
    {
        // A version and a length precede the text.
        let text = rest.get(12..)?;
        let mut program: Value = serde_json::from_slice(text).ok()?;
        (0..=random_below(random, 3)).for_each(|_| drop(json::mutate(&mut program, random)));
        let text = serde_json::to_vec(&program).ok()?;
        *contents = [NUC_FPGA, rest.get(..4)?, &(text.len() as u64).to_le_bytes(), &text].concat();
    } else if let Ok(mut value) = serde_json::from_slice::<Value>(contents)
        && random_below(random, 8) != 0
    {
        (0..=random_below(random, 3)).for_each(|_| drop(json::mutate(&mut value, random)));
        *contents = serde_json::to_vec(&value).ok()?;
    } else {
        *contents = mutate::bytes(contents, random, &[]);
    }
    Some(false)
}

/// Returns a ccompiler blob with a mutated header, given the bytes after the magic. The source, the object and their
/// sizes stay unchanged, because mutated native code must not run.
fn mutate_ccompiler_header(rest: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let rest = rest.get(32..)?;
    let (length, rest) = rest.split_first_chunk::<8>()?;
    let (header, code) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    let mut header: Value = serde_json::from_slice(header).ok()?;
    // With different CPU features, the source would be recompiled, which is slow and bypasses the object.
    let native_fields = ["source", "object", "features"].map(|key| (key, header[key].clone()));
    json::mutate(&mut header, random);
    if let Value::Object(fields) = &mut header {
        fields.extend(native_fields.map(|(key, value)| (key.to_owned(), value)));
    }
    let text = serde_json::to_vec(&header).ok()?;
    let payload = [&(text.len() as u64).to_le_bytes()[..], &text, code].concat();
    Some([CCOMPILER, &blake3::hash(&payload).as_bytes()[..], &payload].concat())
}

fn run(bytes: &[u8]) -> Result<(), String> {
    let path = files::file(bytes, "byoc");
    let artifact = match artifact::open(&path) {
        Ok(artifact) => artifact,
        Err(diagnostic) => return check_diagnostics([&diagnostic]),
    };
    let compiled_program = artifact.into_compiled();
    let is_comparable = compiled_program.options["fuzz"].is_null();
    let is_small = compiled_program.program.functions.iter().flat_map(|function| &function.registers).all(|register| {
        let elements = |ty: &byoc_ir::ir::TensorType| {
            let dims = ty.dims.iter().map(|dim| dim.fixed().unwrap_or(2));
            dims.fold(1usize, usize::saturating_mul)
        };
        register.ty.as_ref().is_none_or(|ty| elements(ty) <= MAX_ELEMENTS)
    });
    let inputs = files::small_inputs(&compiled_program.program.inputs).filter(|_| is_small);
    let host_program = Compiled { regions: vec![None; compiled_program.regions.len()], ..compiled_program.clone() };
    let reference = load_and_run(host_program, inputs.as_deref())?;
    let result = load_and_run(compiled_program, inputs.as_deref())?;
    match (reference, result) {
        (Some(reference), Some(result)) if is_comparable => compare_outputs(&reference, &result),
        _ => Ok(()),
    }
}

/// Returns the outputs of a run; `None` if it is rejected with a message, or skipped.
fn load_and_run(compiled_program: Compiled, inputs: Option<&[Tensor]>) -> Result<Option<Vec<Tensor>>, String> {
    let (model, warnings) = match Model::load(session(), compiled_program, None) {
        Ok(model_and_warnings) => model_and_warnings,
        Err(failure) => return check_diagnostics(&failure.diagnostics).map(|()| None),
    };
    if !warnings.is_empty() {
        check_diagnostics(&warnings)?;
        if let Some(error) = warnings.iter().find(|warning| warning.severity == Severity::Error) {
            return Err(format!("expected warnings only, found {error}"));
        }
    }
    let Some(inputs) = inputs else { return Ok(None) };
    let outputs = match model.run(inputs) {
        Ok(outputs) => outputs,
        Err(failure) => {
            let text = failure.to_string();
            // With BYOC_CHECK_REGIONS a region runs on guarded copies, which reveal out-of-bounds writes.
            if ["written after the end", "written before the start", "was written to"]
                .iter()
                .any(|marker| text.contains(marker))
            {
                return Err(text);
            }
            return check_diagnostics(&failure.diagnostics).map(|()| None);
        }
    };
    for (output, port) in outputs.iter().zip(model.outputs()) {
        let matches_port = output.dtype() == port.ty.dtype
            && output.shape().len() == port.ty.dims.len()
            && output.shape().iter().zip(&port.ty.dims).all(|(size, dim)| dim.fixed().is_none_or(|dim| dim == *size));
        if !matches_port {
            return Err(format!(
                "output {}: expected {}, found {} of shape {:?}",
                port.name,
                port.ty,
                output.dtype(),
                output.shape()
            ));
        }
    }
    count_accepted();
    Ok(Some(outputs))
}

/// Checks that two runs produced equal outputs: integers bit for bit, floats to within a thousandth of the largest
/// value.
fn compare_outputs(reference: &[Tensor], result: &[Tensor]) -> Result<(), String> {
    for (output_index, (expected, found)) in reference.iter().zip(result).enumerate() {
        if expected.dtype() != found.dtype() || expected.shape() != found.shape() {
            return Err(format!(
                "output {output_index}: expected {} of shape {:?}, found {} of shape {:?}",
                expected.dtype(),
                expected.shape(),
                found.dtype(),
                found.shape()
            ));
        }
        let (expected, found) = (expected.view().to_f64s(), found.view().to_f64s());
        let largest_magnitude = expected.iter().filter(|x| x.is_finite()).fold(1.0f64, |max, x| max.max(x.abs()));
        if expected.iter().any(|x| !x.is_finite()) {
            // Backends make no guarantees for NaN and infinity.
            continue;
        }
        let is_close = |expected: f64, found: f64| (expected - found).abs() <= 1e-3 * largest_magnitude;
        if let Some(element) = (0..expected.len()).find(|&element| !is_close(expected[element], found[element])) {
            return Err(format!(
                "output {output_index}, element {element}: expected {}, found {}",
                expected[element], found[element]
            ));
        }
    }
    Ok(())
}
