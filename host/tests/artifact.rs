//! Artifact round trips, and rejection of corrupt or inconsistent artifacts.

use byoc::driver::plan::plan;
use byoc::driver::{Compiled, CompiledRegion, PluginId, RegionSource};
use byoc::runtime::artifact::{Artifact, open, parse, write};
use byoc::runtime::exec::{Executor, Pool};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::{Attrs, Expr, Function, Type};
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::typing::Builder;
use byoc_test_support::artifact::Entries;
use byoc_test_support::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Number of hexadecimal digits in the digest at the end of an artifact.
const DIGITS: usize = 64;

/// Builds a model with constants of several sizes and types, and a region with a blob and source.
fn model() -> Compiled {
    let mut b = Builder::default();
    let vector_type = Type::tensor(DType::F32, &[3]);
    let x = b.var("x", vector_type.clone());
    let inner = b.op("nn.relu", &[x], Attrs::none()).unwrap();
    let attrs = Attrs::new([("Compiler", "test".into()), ("global_symbol", "region_0".into())]);
    let function = Function::new([x], inner, Type::Unknown, attrs);
    let region = b.push(Expr::Function(Box::new(function))).unwrap();
    b.module.globals.insert("region_0".into(), region);
    let y = b.var("y", vector_type);
    let global = b.push(Expr::Global("region_0".into())).unwrap();
    let call = b.call(global, &[y]).unwrap();
    let c = b.constant(Tensor::from_slice(&[3], &[0.5f32, -1.5, f32::NAN]));
    let sum = b.op("add", &[call, c], Attrs::none()).unwrap();
    let byte_constant = b.constant(Tensor::from_slice(&[2, 2], &[1u8, 2, 3, 4]));
    let flags = b.constant(Tensor::from_bools(&[1], &[true]));
    let result = b.tuple(&[sum, byte_constant, flags]).unwrap();
    b.define("main", &[y], result).unwrap();
    let lowered_program = plan(&b.module, &[], &[]).unwrap();
    let ty = serde_json::json!({ "dtype": "float32", "dims": [3] });
    let region = CompiledRegion {
        symbol: "region_0".into(),
        backend: "test".into(),
        plugin: PluginId { name: "test".into(), version: "1.2.3".into(), digest: "00".repeat(32) },
        loader: "test_key".into(),
        blob: vec![1u8, 2, 3].into(),
        symbols: vec!["region_0".into()],
        source: Some(RegionSource { language: "c".into(), text: "int x;\n".into() }),
        constants: vec![0],
        cpu_features: vec!["avx2".into()],
        notes: vec!["a note".into()],
        metadata: vec![("cycles".into(), 3.into())],
        graph: serde_json::json!({
            "nodes": [{ "input": 0, "outputs": [ty] }, { "op": "nn.relu", "inputs": [[0, 0]], "outputs": [ty] }],
            "inputs": [{ "name": "x", "type": ty }],
            "outputs": [[1, 0]],
        }),
        library: None,
    };
    let mut program = lowered_program.program;
    program.regions[0].loader = region.loader.clone();
    Compiled {
        program,
        constants: lowered_program.constants,
        absent: BTreeSet::new(),
        regions: vec![Some(region)],
        linked: BTreeMap::new(),
        explain: serde_json::json!({ "nodes": [] }),
        model_digest: "ab".repeat(32),
        options: serde_json::json!({ "backends": ["test"] }),
        from_file: false,
        variants: Vec::new(),
        charges: Arc::default(),
    }
}

fn written_artifact(compiled: &Compiled) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.byoc");
    write(&path, compiled).unwrap();
    std::fs::read(path).unwrap()
}

fn parse_artifact(bytes: &[u8]) -> Result<Artifact, Diagnostic> {
    parse(Arc::new(bytes.to_vec()))
}

fn is_refusal(result: &Result<Artifact, Diagnostic>) -> bool {
    result.as_ref().is_err_and(|error| (701..800).contains(&error.code.0))
}

/// Updates the digest at the end of an artifact, so that parsing continues past the digest check.
fn rewrite_digest(bytes: &mut [u8]) {
    if let Some(digested_len) = bytes.len().checked_sub(DIGITS) {
        let digest = blake3::hash(&bytes[..digested_len]).to_hex();
        bytes[digested_len..].copy_from_slice(digest.as_bytes());
    }
}

#[test]
fn round_trip_does_not_copy_constants() {
    let compiled = model();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.byoc");
    write(&path, &compiled).unwrap();
    let artifact = open(&path).unwrap();
    assert_eq!(artifact.compiled.program, compiled.program);
    assert_eq!(artifact.compiled.constants, compiled.constants);
    assert_eq!(artifact.compiled.regions, compiled.regions);
    assert_eq!(artifact.compiled.explain, compiled.explain);
    assert_eq!(artifact.manifest.model_digest, compiled.model_digest);
    assert_eq!(artifact.bytes, std::fs::metadata(&path).unwrap().len());
    for tensor in &artifact.compiled.constants {
        assert_eq!(tensor.bytes().as_ptr() as usize % 64, 0, "expected constants at a multiple of 64 bytes");
    }
    let Compiled { program, constants, .. } = artifact.into_compiled();
    let executor = Executor::new(program, constants, vec![None], Arc::new(Pool::new(1).unwrap())).unwrap();
    let results = executor.run(&[Tensor::from_slice(&[3], &[-1.0f32, 2.0, 0.0])]).unwrap();
    assert_eq!(results[0].as_slice::<f32>()[..2], [0.5, 0.5]);
}

#[test]
fn writing_is_deterministic() {
    assert_eq!(written_artifact(&model()), written_artifact(&model()));
}

#[test]
fn entries_are_readable_by_other_tools() {
    let bytes = written_artifact(&model());
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(&bytes)).unwrap();
    let names: Vec<String> =
        (0..archive.len()).map(|i| archive.by_index(i).unwrap().name().unwrap().into_owned()).collect();
    assert_eq!(
        names,
        [
            "manifest.json",
            "program.json",
            "weights.safetensors",
            "regions/region_0/test_key",
            "regions/region_0/source.c"
        ]
    );
    let mut weights = Vec::new();
    std::io::Read::read_to_end(&mut archive.by_name("weights.safetensors").unwrap(), &mut weights).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&weights).unwrap();
    assert_eq!(tensors.tensor("c1").unwrap().data(), [1, 2, 3, 4]);
    assert_eq!(tensors.tensor("c1").unwrap().shape(), [2, 2]);
}

#[test]
fn rejects_every_flipped_byte() {
    let bytes = written_artifact(&model());
    for position in 0..bytes.len() {
        for mask in [0x01, 0x20, 0xff] {
            let mut copy = bytes.clone();
            copy[position] ^= mask;
            assert!(is_refusal(&parse_artifact(&copy)), "byte {position} of {} ^ {mask}", bytes.len());
        }
    }
}

#[test]
fn rejects_truncation_and_trailing_bytes() {
    let bytes = written_artifact(&model());
    for length in 0..bytes.len() {
        assert!(is_refusal(&parse_artifact(&bytes[..length])), "{length} bytes");
        assert!(is_refusal(&parse_artifact(&bytes[length + 1..])), "from byte {}", length + 1);
    }
    assert!(is_refusal(&parse_artifact(&[&bytes[..], b"x"].concat())));
    assert!(is_refusal(&parse_artifact(&[&bytes[..], &bytes[..]].concat())));
}

#[test]
fn mutations_never_panic_even_with_valid_digest() {
    let bytes = written_artifact(&model());
    let mut random = Random::new(7);
    for i in 0..10_000 {
        let mut copy = bytes.clone();
        for _ in 0..1 + random.below(4) {
            match random.below(4) {
                0 => copy.truncate(random.below(copy.len()).max(1)),
                1 => {
                    let position = random.below(copy.len());
                    copy.insert(position, random.below(256) as u8);
                }
                2 => {
                    let position = random.below(copy.len());
                    copy[position] = *[0, 0xff, b'9', b'"'].get(random.below(4)).unwrap();
                }
                _ => {
                    let position = random.below(copy.len());
                    copy[position] ^= 1 << random.below(8);
                }
            }
        }
        if i % 2 == 0 {
            assert!(is_refusal(&parse_artifact(&copy)) || copy == bytes, "mutation {i}");
        } else {
            // With a valid digest, a mutation may be harmless (in a timestamp or padding); otherwise it must be
            // rejected.
            rewrite_digest(&mut copy);
            let result = parse_artifact(&copy);
            assert!(result.is_ok() || is_refusal(&result), "mutation {i}");
        }
    }
}

#[test]
fn mutated_programs_are_rejected_or_run_safely() {
    let compiled = model();
    let text = serde_json::to_string(&compiled.program).unwrap();
    let pool = Arc::new(Pool::new(1).unwrap());
    let input = [Tensor::from_slice(&[3], &[-1.0f32, 2.0, 0.0])];
    let mut random = Random::new(3);
    let digits: Vec<usize> = text.bytes().enumerate().filter(|(_, c)| c.is_ascii_digit()).map(|(i, _)| i).collect();
    let mut run_count = 0;
    for _ in 0..10_000 {
        let mut copy = text.clone().into_bytes();
        for _ in 0..1 + random.below(3) {
            let position = digits[random.below(digits.len())];
            copy[position] = b'0' + random.below(10) as u8;
        }
        let Ok(program) = serde_json::from_slice(&copy) else { continue };
        if let Ok(executor) = Executor::new(program, compiled.constants.clone(), vec![None], pool.clone()) {
            // A run may fail or succeed, but must terminate.
            run_count += usize::from(executor.run(&input).is_ok());
        }
    }
    assert!(run_count > 0, "expected a mutated program that runs, found none");
}

#[test]
fn distinguishes_other_format_version_from_damage() {
    let bytes = written_artifact(&model());
    let position = bytes.windows(10).position(|w| w == b"\"format\":1").unwrap();
    let mut copy = bytes.clone();
    copy[position + 9] = b'2';
    rewrite_digest(&mut copy);
    let error = parse_artifact(&copy).unwrap_err();
    assert_eq!(error.code, codes::artifacts::UNSUPPORTED_VERSION);
}

#[test]
fn rejects_files_that_are_not_artifacts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.byoc");
    assert_eq!(open(&path).unwrap_err().code, codes::artifacts::CANNOT_READ);
    for contents in [&b""[..], b"x", b"PK", b"not an artifact at all"] {
        std::fs::write(&path, contents).unwrap();
        let error = open(&path).unwrap_err();
        assert_eq!(error.code, codes::artifacts::NOT_AN_ARTIFACT);
        assert!(error.message.contains("model.byoc"));
    }
    let missing_path = dir.path().join("no/such/folder/model.byoc");
    assert_eq!(write(&missing_path, &model()).unwrap_err().code, codes::artifacts::CANNOT_WRITE);
}

/// Packs an edited artifact and checks that it is rejected with both names.
fn check_overlap(edit: impl FnOnce(&mut Entries), names: [&str; 2]) {
    let mut entries = Entries::unpack(&written_artifact(&model()));
    edit(&mut entries);
    let error = parse_artifact(&entries.pack()).map(drop).unwrap_err();
    assert_eq!(error.code, codes::artifacts::MALFORMED, "{error}");
    assert!(names.iter().all(|name| error.message.contains(name)), "expected {names:?} in {error}");
}

#[test]
fn rejects_a_second_use_of_an_entry() {
    let blob = "regions/region_0/test_key";
    check_overlap(
        |entries| entries.edit("manifest.json", |manifest| manifest["regions"][0]["source"] = blob.into()),
        [blob, "blob of region region_0"],
    );
    check_overlap(
        |entries| {
            entries.edit("manifest.json", |manifest| {
                let region = manifest["regions"][0].clone();
                manifest["regions"].as_array_mut().unwrap().push(region);
            });
        },
        ["source.c", "source of region region_0"],
    );
    for entry in ["program.json", "weights.safetensors", "manifest.json"] {
        check_overlap(
            |entries| entries.edit("manifest.json", |manifest| manifest["regions"][0]["blob"] = entry.into()),
            [entry, "blob of region region_0"],
        );
    }
    let variant = |program: &str| serde_json::json!({ "dims": {}, "program": program, "options": {}, "explain": {}, "regions": [], "tensors": [] });
    check_overlap(
        |entries| entries.edit("manifest.json", |manifest| manifest["variants"] = vec![variant("program.json")].into()),
        ["program.json", "a program"],
    );
}

#[test]
fn rejects_a_second_listing_of_an_entry() {
    let mut entries = Entries::unpack(&written_artifact(&model()));
    // `pack` lists every entry of the archive, so the listings are repeated in an archive with a name that it skips.
    let bytes = entries.clone().pack();
    let listed = Entries::unpack(&bytes).entry("manifest.json").clone();
    let mut manifest: serde_json::Value = serde_json::from_slice(&listed).unwrap();
    let record = manifest["entries"][0].clone();
    manifest["entries"].as_array_mut().unwrap().push(record);
    *entries.entry("manifest.json") = serde_json::to_vec(&manifest).unwrap();
    let error = parse_artifact(&zip(&entries)).map(drop).unwrap_err();
    assert!(error.message.contains("lists entry program.json twice"), "{error}");
}

#[test]
fn rejects_tensors_that_share_bytes() {
    let header = |entries: &mut Entries, edit: &dyn Fn(&mut serde_json::Value)| {
        let weights = entries.entry("weights.safetensors");
        let (length, rest) = weights.split_first_chunk::<8>().unwrap();
        let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
        let mut header_value: serde_json::Value = serde_json::from_slice(header).unwrap();
        edit(&mut header_value);
        let text = serde_json::to_vec(&header_value).unwrap();
        *weights = [&(text.len() as u64).to_le_bytes()[..], &text, data].concat();
    };
    // The same range, a range inside of another one, and a tensor that no program reads.
    for range in [[0, 12], [4, 8]] {
        let tensor = serde_json::json!({ "dtype": "U8", "shape": [range[1] - range[0]], "data_offsets": range });
        check_overlap(|entries| header(entries, &|header| header["other"] = tensor.clone()), ["other", "c0"]);
    }
    let mut entries = Entries::unpack(&written_artifact(&model()));
    let empty = serde_json::json!({ "dtype": "U8", "shape": [0], "data_offsets": [4, 4] });
    header(&mut entries, &|header| header["other"] = empty.clone());
    parse_artifact(&entries.pack()).unwrap();
}

#[test]
fn rejects_entries_that_share_bytes() {
    let original = written_artifact(&model());
    let mut bytes = original.clone();
    let names = ["regions/region_0/test_key", "regions/region_0/source.c"];
    // A record of the directory has the offset of its entry 4 bytes before the name.
    let record = |name: &str| original.windows(name.len()).rposition(|window| window == name.as_bytes()).unwrap() - 4;
    let [target, source] = names.map(record);
    bytes.copy_within(source..source + 4, target);
    rewrite_digest(&mut bytes);
    let error = parse_artifact(&bytes).map(drop).unwrap_err();
    assert_eq!(error.code, codes::artifacts::MALFORMED, "{error}");
    assert!(names.iter().all(|name| error.message.contains(name)), "{error}");
}

/// Packs entries as they are, and recomputes only the digest of the file.
fn zip(entries: &Entries) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    archive.set_raw_comment([&b"byoc-blake3:"[..], &[b'0'; DIGITS]].concat().into()).unwrap();
    let options =
        zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored).with_alignment(64);
    for (name, bytes) in &entries.0 {
        archive.start_file(name, options).unwrap();
        std::io::Write::write_all(&mut archive, bytes).unwrap();
    }
    let mut bytes = archive.finish().unwrap().into_inner();
    rewrite_digest(&mut bytes);
    bytes
}
