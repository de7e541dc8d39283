//! Inputs that grow when they are read: many empty things, one large number, overlapping ranges, and compressed data.
//!
//! Each target names its inputs of these kinds, so that a reader without them does not compile. A target is run on them
//! with a memory limit ([`MAX_MEMORY`]), and the resident memory of the process, in which plugins and C libraries count
//! as well, stays within [`MAX_RESIDENT`] of what it was.

use crate::{Target, driver, seeds};
use byoc_ir::tensor::memory;
use std::io::{Cursor, Write};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// Memory limit for a hostile input in bytes.
pub const MAX_MEMORY: usize = 64 << 20;
/// Maximum growth of the resident memory while a hostile input is read, in bytes: four times the limit.
pub const MAX_RESIDENT: usize = 4 * MAX_MEMORY;

/// Hostile input, and its description.
pub type Hostile = (String, Vec<u8>);

/// Runs a target on its hostile inputs of about `size` bytes. Returns the number of inputs.
///
/// # Errors
/// If an input violates a property of the target, or takes more memory than permitted.
pub fn run(target: &Target, size: usize) -> Result<usize, String> {
    let inputs = (target.hostile)(size);
    memory::set_limit(memory::used() + MAX_MEMORY);
    for (name, bytes) in &inputs {
        let before = reset_peak().map_err(|error| format!("cannot read the memory of the process: {error}"))?;
        driver::execute(target, bytes).map_err(|violation| format!("{name}: {violation}"))?;
        let peak = resident("VmHWM").unwrap_or(usize::MAX).saturating_sub(before);
        if peak > MAX_RESIDENT {
            return Err(format!(
                "{name}: expected at most {} for {} bytes under a limit of {}, found {}",
                memory::Bytes(MAX_RESIDENT),
                bytes.len(),
                memory::Bytes(MAX_MEMORY),
                memory::Bytes(peak)
            ));
        }
    }
    Ok(inputs.len())
}

/// Resets the peak of the resident memory to its current size, and returns it.
fn reset_peak() -> std::io::Result<usize> {
    const PEAK: &str = "5";
    std::fs::write("/proc/self/clear_refs", PEAK)?;
    resident("VmRSS").ok_or_else(|| std::io::ErrorKind::NotFound.into())
}

/// Returns a size in bytes from the status of the process.
fn resident(key: &str) -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.trim().strip_suffix(" kB")?.parse::<usize>().ok().map(|size| size << 10)
}

/// Returns `head`, then `item` repeated to about `size` bytes, then `tail`.
pub fn repeated(head: &str, item: &str, tail: &str, size: usize) -> Hostile {
    let text = format!("{head}{}{tail}", item.repeat(size / item.len().max(1)));
    (format!("{head}{item}..").chars().take(80).collect(), text.into_bytes())
}

/// Texts as they are.
pub fn texts(texts: &[&str]) -> Vec<Hostile> {
    texts.iter().map(|text| (text.chars().take(80).collect(), text.as_bytes().to_vec())).collect()
}

/// Returns a delimited field of a protocol buffer.
pub fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    prost::encoding::encode_varint(u64::from(number) << 3 | 2, &mut message);
    prost::encoding::encode_varint(content.len() as u64, &mut message);
    message.extend_from_slice(content);
    message
}

/// Returns models with many empty messages in each place of an ONNX model, and with large dimensions.
pub fn onnx(size: usize) -> Vec<Hostile> {
    /// Fields of the messages on the way to a place, outermost first.
    const PLACES: [(&str, &[u32], u32); 9] = [
        ("model", &[], 26),
        ("graph", &[7], 16),
        ("node", &[7, 1], 8),
        ("attribute", &[7, 1, 5], 23),
        ("tensor", &[7, 5], 15),
        ("dimensions", &[7, 11, 2, 1, 2], 2),
        ("attribute's tensor", &[7, 1, 5, 5], 15),
        ("function", &[25], 12),
        ("function's node", &[25, 7], 8),
    ];
    let base = seeds("onnx").into_iter().next().unwrap_or_default();
    let nested =
        |path: &[u32], content: Vec<u8>| path.iter().rev().fold(content, |inner, number| field(*number, &inner));
    let mut inputs = Vec::new();
    for (place, path, fields) in PLACES {
        for number in 1..=fields {
            let item = field(number, b"");
            let content = nested(path, item.repeat(size / item.len()));
            inputs.push((format!("{place}, field {number}"), [&base[..], &content].concat()));
        }
    }
    // A dimension of 2^62, and a packed list of one-byte numbers.
    let large = [&[8][..], &[0x80; 8], &[0x40]].concat();
    for (place, path) in [("initializer", &[7, 5][..]), ("constant", &[7, 1, 5, 5])] {
        inputs.push((format!("{place} of 2^62 elements"), [&base[..], &nested(path, large.clone())].concat()));
        let packed = field(1, &vec![1; size]);
        inputs.push((format!("{place} of many dimensions"), [&base[..], &nested(path, packed)].concat()));
    }
    inputs
}

/// Returns programs with many items, large shapes, and values that double with each line.
pub fn relay(size: usize) -> Vec<Hostile> {
    const HEAD: &str = "#[version = \"0.0.5\"]\n";
    let tensor = "Tensor[(2), float32]";
    let main = format!("{HEAD}def @main(%x: {tensor}) -> {tensor} {{ ");
    let doubling = |line: fn(usize) -> String| {
        let lines: String = (1..60).map(line).collect();
        let (name, _) = lines.split_at(40);
        (name.to_owned(), format!("{HEAD}def @main(%a0: {tensor}) {{ {lines} %a59 }}\n").into_bytes())
    };
    let mut inputs = vec![
        repeated(&main, "(", "", size),
        repeated(&main, "nn.relu(", "%x", size),
        repeated(&main, "(%x,", "%x", size),
        repeated(&main, "let %a = %x; ", "%x }", size),
        repeated(&main, "%y;", "}", size),
        repeated(&main, "no.such(%x);", "}", size / 4),
        repeated(&main, "\u{0}", "}", size),
        repeated(HEAD, "def @f() { () } ", "", size / 4),
        repeated(HEAD, "type T { A, B } ", "", size / 4),
        repeated(HEAD, "/*", "*/", size),
        repeated(&format!("{HEAD}def @main(%x: Tensor[("), "1, ", "), float32]) { %x }", size),
        repeated(&format!("{HEAD}def @main(%x: "), "(", ") { %x }", size),
        repeated(&main, "\"", "}", size),
        doubling(|i| format!("let %a{i} = (%a{0}, %a{0}); ", i - 1)),
        doubling(|i| format!("let %a{i} = concatenate((%a{0}, %a{0})); ", i - 1)),
    ];
    let programs = [
        "def @main(%x: Tensor[(4611686018427387904, 4), float32]) { nn.relu(%x) }",
        "def @main(%x: Tensor[(1), float32]) { add(%x, zeros(shape=[68719476736], dtype=\"float32\")) }",
        "def @main(%x: Tensor[(1), float32]) { repeat(%x, repeats=68719476736, axis=0) }",
        "def @main(%x: Tensor[(1), float32]) { tile(%x, reps=[68719476736]) }",
        "def @main(%x: Tensor[(1), float32]) { meta[relay.Constant][99999999999] }",
        "type List { Cons(List), Nil }\n\
         def @f(%x: Tensor[(2), float32], %l: List) -> Tensor[(2), float32] { @f(%x, Cons(%l)) }\n\
         def @main(%x: Tensor[(2), float32]) -> Tensor[(2), float32] { @f(%x, Nil) }",
        "def @f(%x: Tensor[(2), float32]) -> Tensor[(2), float32] { nn.relu(@f(%x)) }\n\
         def @main(%x: Tensor[(2), float32]) -> Tensor[(2), float32] { @f(%x) }",
    ];
    inputs.extend(programs.map(|text| (text.chars().take(80).collect(), format!("{HEAD}{text}\n").into_bytes())));
    inputs
}

/// Returns NumPy arrays whose headers declare more than the file contains.
pub fn npy(size: usize) -> Vec<Hostile> {
    let array = |shape: &str| {
        let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}");
        let length = u32::try_from(header.len()).unwrap_or(u32::MAX).to_le_bytes();
        [b"\x93NUMPY\x02\x00", &length[..], header.as_bytes()].concat()
    };
    let ones = "1,".repeat(size / 2);
    let shapes = ["4611686018427387904,", "68719476736,", "0, 4611686018427387904", &ones, &"(".repeat(size)];
    let mut inputs: Vec<Hostile> =
        shapes.iter().map(|shape| (format!("shape {shape}").chars().take(80).collect(), array(shape))).collect();
    inputs.push(("header of 4 GiB".into(), [&b"\x93NUMPY\x02\x00\xff\xff\xff\xff"[..], b"{"].concat()));
    inputs
}

/// Returns archives of arrays: compressed zeros, many empty entries, and entries that share their bytes.
pub fn npz(size: usize) -> Vec<Hostile> {
    let archive = |entries: &[(String, Vec<u8>)]| {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, contents) in entries {
            let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
            writer.start_file(name.as_str(), options).expect("cannot start an entry in memory");
            writer.write_all(contents).expect("cannot write to memory");
        }
        writer.finish().expect("cannot finish an archive in memory").into_inner()
    };
    let zeros = |elements: usize, declared: usize| {
        let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({declared},), }}");
        let length = u32::try_from(header.len()).unwrap_or(u32::MAX).to_le_bytes();
        [b"\x93NUMPY\x02\x00", &length[..], header.as_bytes(), &vec![0; 4 * elements]].concat()
    };
    // 128 MiB of zeros, in one entry and in sixteen.
    let elements = 32 << 20;
    let spread: Vec<_> = (0..16).map(|i| (format!("{i}.npy"), zeros(elements / 16, elements / 16))).collect();
    let empty: Vec<_> = (0..size / 512).map(|i| (format!("{i}.npy"), Vec::new())).collect();
    let mut inputs = vec![
        ("compressed zeros".to_owned(), archive(&[("x.npy".into(), zeros(elements, elements))])),
        ("compressed zeros in sixteen entries".to_owned(), archive(&spread)),
        ("zeros after a small array".to_owned(), archive(&[("x.npy".into(), zeros(elements, 1))])),
        ("many empty entries".to_owned(), archive(&empty)),
    ];
    // A second entry of the directory that leads to the bytes of the first.
    let mut shared = archive(&[("x.npy".into(), zeros(1 << 20, 1 << 20)), ("y.npy".into(), zeros(1, 1))]);
    if let Some(second) = memchr_last(&shared, b"PK\x01\x02") {
        shared[second + 42..second + 46].fill(0);
    }
    inputs.push(("entries at one offset".to_owned(), shared));
    inputs
}

fn memchr_last(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).rposition(|window| window == pattern)
}

/// Returns images whose headers declare far more pixels than their data contains.
pub fn image(size: usize) -> Vec<Hostile> {
    let chunk = |kind: &[u8; 4], data: &[u8]| {
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes();
        let mut crc = 0xffff_ffff_u32;
        for byte in kind.iter().chain(data) {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
            }
        }
        [&length[..], kind, data, &(!crc).to_be_bytes()].concat()
    };
    let png = |side: u32, interlace: u8, extra: &[u8]| {
        let header = [&side.to_be_bytes()[..], &side.to_be_bytes(), &[8, 2, 0, 0, interlace]].concat();
        [
            &[0][..],
            b"\x89PNG\r\n\x1a\n",
            &chunk(b"IHDR", &header),
            extra,
            &chunk(b"IDAT", &[0x78, 1]),
            &chunk(b"IEND", b""),
        ]
        .concat()
    };
    let jpeg = |marker: u8| {
        let frame = [0xff, marker, 0, 17, 8, 0xff, 0xdc, 0xff, 0xdc, 3, 1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0];
        let scan = [0xff, 0xda, 0, 12, 3, 1, 0, 2, 0, 3, 0, 0, 63, 0];
        [&[0, 0xff, 0xd8][..], &frame, &scan, &[0; 64], &[0xff, 0xd9]].concat()
    };
    vec![
        ("png of 30000 x 30000".to_owned(), png(30_000, 0, &[])),
        ("interlaced png of 30000 x 30000".to_owned(), png(30_000, 1, &[])),
        ("png of 2^31 x 2^31".to_owned(), png(1 << 31, 0, &[])),
        ("png with many empty chunks".to_owned(), png(1, 0, &chunk(b"tEXt", b"").repeat(size / 12))),
        ("jpg of 65500 x 65500".to_owned(), jpeg(0xc0)),
        ("progressive jpg of 65500 x 65500".to_owned(), jpeg(0xc2)),
    ]
}

/// Returns weights whose header has many entries, large shapes, a large length, and ranges that overlap.
pub fn safetensors(size: usize) -> Vec<Hostile> {
    let file = |header: String, data: usize| {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat()
    };
    let tensor = |i: usize, elements: &str, range: [usize; 2]| {
        format!("\"{i}\":{{\"dtype\":\"F32\",\"shape\":[{elements}],\"data_offsets\":{range:?}}}")
    };
    let many: Vec<String> = (0..size / 60).map(|i| tensor(i, "0", [0, 0])).collect();
    let same: Vec<String> = (0..1000).map(|i| tensor(i, "262144", [0, 1 << 20])).collect();
    let ones = "1,".repeat(size / 2) + "1";
    vec![
        ("many tensors".to_owned(), file(format!("{{{}}}", many.join(",")), 0)),
        ("1000 tensors at one range".to_owned(), file(format!("{{{}}}", same.join(",")), 1 << 20)),
        ("many dimensions".to_owned(), file(format!("{{{}}}", tensor(0, &ones, [0, 4])), 4)),
        ("2^62 elements".to_owned(), file(format!("{{{}}}", tensor(0, "4611686018427387904", [0, 4])), 4)),
        ("a header of 2^60 bytes".to_owned(), [&(1u64 << 60).to_le_bytes()[..], b"{}"].concat()),
        ("many empty objects".to_owned(), file(format!("{{\"a\":[{}0]}}", "{},".repeat(size / 3)), 0)),
    ]
}

/// Returns pattern tables with deep nesting, many alternatives and many entries.
pub fn patterns(size: usize) -> Vec<Hostile> {
    vec![
        repeated("a: ", "(", "", size),
        repeated("a: ", "nn.relu(", "*", size),
        repeated("a: *", " | *", "", size),
        repeated("a: *", " ? nn.relu", "", size),
        repeated("", "a: *\n", "", size),
        repeated("", "?\n", "", size),
        repeated("a: nn.conv2d(", "*, ", "*)", size),
        repeated("a: op{k=", "[", "", size),
        repeated("a: *:(", "1, ", ")", size),
        repeated("a: (", "let x = *; ", "x)", size),
    ]
}

/// Returns graphs and descriptions in JSON with many items and large numbers.
pub fn boundary_json(size: usize) -> Vec<Hostile> {
    let mut inputs = vec![
        repeated("[", "[", "", size),
        repeated("{\"version\":1,\"nodes\":[", "{},", "{}]}", size),
        repeated("{\"version\":1,\"nodes\":[", "[],", "0]}", size),
        repeated("{\"version\":1,\"inputs\":[", "{\"type\":{}},", "0]}", size),
        repeated("{\"version\":1,\"patterns\":[", "{\"name\":\"\",\"pattern\":\"*\"},", "0]}", size),
        repeated("{", "\"a\":0,", "\"a\":0}", size),
        repeated("\"", "a", "\"", size),
    ];
    for seed in seeds("boundary_json") {
        let text = String::from_utf8_lossy(&seed).into_owned();
        for number in ["4611686018427387904", "18446744073709551615", "-9223372036854775808", "1e999"] {
            // Every number at once.
            let mut changed = String::new();
            let mut digits = false;
            for c in text.chars() {
                match (c.is_ascii_digit(), digits) {
                    (true, false) => changed.push_str(number),
                    (true, true) => {}
                    (false, _) => changed.push(c),
                }
                digits = c.is_ascii_digit();
            }
            inputs.push((format!("numbers {number}"), changed.into_bytes()));
        }
    }
    inputs
}

/// Returns bytes of one value, for targets that make an input of bounded size of any bytes.
pub fn any(size: usize) -> Vec<Hostile> {
    [0, 1, 0x7f, 0xff].map(|byte| (format!("bytes of {byte}"), vec![byte; size])).into()
}
