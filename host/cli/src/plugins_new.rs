//! `byoc plugins new`: creates a directory with a new plugin that builds and runs unchanged. `byoc plugins update`: renews
//! the copy of the boundary in it.
//!
//! The templates are plugins that this project tests and documents: for each language a small one, and one around a
//! compiler that takes ONNX files.

use super::args::{PluginsNewArgs, PluginsUpdateArgs};
use byoc::runtime::error::Failure;
use byoc_ir::diag::{Diagnostic, codes, plural};
use byoc_plugin_api::{API_VERSION, host};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Plugin from which a new one is made.
struct Template {
    /// Name of the plugin, in snake case. In upper case it begins the names of environment variables.
    name: &'static str,
    source: &'static str,
    readme: &'static str,
}

/// Templates in Rust: the smallest backend, and one around a compiler.
const RUST: [Template; 2] = [
    Template {
        name: "minimal",
        source: include_str!("../../../tests/plugins/examples/minimal.rs"),
        readme: include_str!("../templates/plugin.md"),
    },
    Template {
        name: "onnx_command",
        source: include_str!("../../../tests/plugins/examples/onnx_command.rs"),
        readme: include_str!("../templates/plugin_onnx.md"),
    },
];
/// Templates in C, in the same order.
const C: [Template; 2] = [
    Template {
        name: "elementwise",
        source: include_str!("../../../plugins/samples/elementwise.c"),
        readme: include_str!("../templates/plugin_c.md"),
    },
    Template {
        name: "onnx_files",
        source: include_str!("../../../plugins/samples/onnx_files.c"),
        readme: include_str!("../templates/plugin_onnx_c.md"),
    },
];
/// Dependencies of the template around a compiler.
const COMPILER_DEPENDENCIES: &str = "serde_json = \"1\"\ntempfile = \"3\"\n";
/// Sources of `byoc-plugin-support`, written next to a new Rust plugin.
const SUPPORT: [(&str, &str); 14] = [
    ("arena.rs", include_str!("../../../plugin-api/support/src/arena.rs")),
    ("attributes.rs", include_str!("../../../plugin-api/support/src/attributes.rs")),
    ("cache.rs", include_str!("../../../plugin-api/support/src/cache.rs")),
    ("command.rs", include_str!("../../../plugin-api/support/src/command.rs")),
    ("dims.rs", include_str!("../../../plugin-api/support/src/dims.rs")),
    ("int8.rs", include_str!("../../../plugin-api/support/src/int8.rs")),
    ("isa.rs", include_str!("../../../plugin-api/support/src/isa.rs")),
    ("lib.rs", include_str!("../../../plugin-api/support/src/lib.rs")),
    ("library.rs", include_str!("../../../plugin-api/support/src/library.rs")),
    ("log.rs", include_str!("../../../plugin-api/support/src/log.rs")),
    ("operands.rs", include_str!("../../../plugin-api/support/src/operands.rs")),
    ("refusal.rs", include_str!("../../../plugin-api/support/src/refusal.rs")),
    ("region.rs", include_str!("../../../plugin-api/support/src/region.rs")),
    ("view.rs", include_str!("../../../plugin-api/support/src/view.rs")),
];
/// Licenses of the boundary, its helpers and the templates, copied into every new directory.
const LICENSES: [(&str, &str); 2] = [
    ("LICENSE-MIT", include_str!("../../../LICENSE-MIT")),
    ("LICENSE-APACHE", include_str!("../../../LICENSE-APACHE")),
];
/// Directories of the copied crates.
const API: &str = "byoc-plugin-api";
const HELPERS: &str = "byoc-plugin-support";

/// Creates the directory of a new plugin from a template.
pub fn run(args: &PluginsNewArgs) -> Result<ExitCode, Failure> {
    let name = plugin_name(&args.name)?;
    let files = if args.c {
        c_files(name, args.onnx)
    } else {
        rust_files(name, args.onnx, args.api.as_deref().map(api_source).transpose()?.as_deref())
    };
    let is_occupied = std::fs::read_dir(&args.name).is_ok_and(|mut entries| entries.next().is_some());
    if is_occupied || args.name.exists() && !args.name.is_dir() {
        let message = format!("{} already exists", args.name.display());
        return Err(invalid_request(message)
            .help("choose another name, or remove the existing file or directory")
            .into());
    }
    write_folder(&args.name, files)
        .map_err(|error| invalid_request(format!("cannot write {}: {error}", args.name.display())))?;
    let dir = args.name.display();
    let (build, library) = if args.c {
        (format!("make -C {dir}"), format!("{dir}/libbyoc_{name}.so"))
    } else {
        let manifest = format!("--manifest-path {dir}/Cargo.toml");
        (format!("cargo build --release {manifest}"), format!("{dir}/target/release/libbyoc_{name}.so"))
    };
    println!("wrote {dir}. To build, install, use and test the plugin, run:");
    println!();
    println!("  {build}");
    println!("  mkdir -p plugins && cp {library} plugins/");
    println!("  byoc explain MODEL --backend {name} --plugin-dir plugins");
    println!("  byoc plugins test plugins/libbyoc_{name}.so");
    Ok(ExitCode::SUCCESS)
}

/// Writes files into a temporary directory and renames it to `dir` once it is complete.
fn write_folder(dir: &Path, files: Files) -> std::io::Result<()> {
    // An existing empty directory is replaced, even if `dir` is a symbolic link to the directory.
    let dir = if dir.exists() { dir.canonicalize()? } else { dir.to_owned() };
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent)?;
    let mut builder = tempfile::Builder::new();
    let temp_dir = builder.prefix(".byoc-").permissions(PermissionsExt::from_mode(0o777)).tempdir_in(parent)?;
    for (path, text) in files {
        let path = temp_dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
        std::fs::write(path, text)?;
    }
    std::fs::rename(temp_dir.path(), dir)?;
    // The temporary directory was renamed, so its guard has nothing to remove.
    let _ = temp_dir.keep();
    Ok(())
}

fn invalid_request(message: impl Into<String>) -> Diagnostic {
    Diagnostic::error(codes::plugins::CANNOT_CREATE, message)
}

/// Returns the name of the plugin: the last component of the directory.
fn plugin_name(dir: &Path) -> Result<&str, Failure> {
    let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_valid = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.len() <= 64
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if is_valid {
        return Ok(name);
    }
    let mut diagnostic = invalid_request(format!(
        "plugin name: expected a letter followed by at most 63 letters, digits or _, found \"{name}\""
    ));
    let suggestion: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let suggestion = suggestion.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
    if !suggestion.is_empty() && suggestion.len() <= 64 {
        diagnostic = diagnostic.help(format!("try \"{suggestion}\""));
    }
    Err(diagnostic.into())
}

/// Returns the canonical path of a directory that must contain the sources of byoc-plugin-api.
fn api_source(dir: &Path) -> Result<PathBuf, Failure> {
    let api_dir = dir.canonicalize().ok().filter(|dir| {
        let manifest = byoc::io::read_text(&dir.join("Cargo.toml")).unwrap_or_default();
        manifest.contains("name = \"byoc-plugin-api\"")
    });
    api_dir.ok_or_else(|| {
        invalid_request(format!("expected the sources of byoc-plugin-api in {}, found none", dir.display()))
            .note(format!("a Rust plugin is built against these sources, in a version compatible with {API_VERSION}"))
            .help("omit --api DIR to write a copy of the sources next to the plugin")
            .into()
    })
}

type Files = Vec<(String, String)>;

fn fill_template(template: &str, name: &str) -> String {
    template.replace("@NAME@", name).replace("@ABI@", host::C_ABI_TEXT)
}

/// Returns the name of a type: `my_chip` becomes `MyChip`.
fn title(name: &str) -> String {
    let parts = name.split('_').filter(|part| !part.is_empty());
    parts.map(|part| part[..1].to_ascii_uppercase() + &part[1..]).collect()
}

/// Returns the source of a template under another name.
fn renamed(template: &Template, name: &str) -> String {
    // The template already defines a type `Relu`.
    let new_title = Some(title(name)).filter(|title| title != "Relu").unwrap_or_else(|| "Plugin".to_owned());
    let source = template.source.replace(&title(template.name), &new_title);
    source.replace(&template.name.to_ascii_uppercase(), &name.to_ascii_uppercase()).replace(template.name, name)
}

/// Returns the files of the crate, including copies of byoc-plugin-api and byoc-plugin-support unless `api` names the
/// source directory of byoc-plugin-api.
fn rust_files(name: &str, onnx: bool, api: Option<&Path>) -> Files {
    let template = &RUST[usize::from(onnx)];
    let paths = match api {
        None => [API.to_owned(), HELPERS.to_owned()],
        Some(dir) => [dir.display().to_string(), dir.join("support").display().to_string()],
    };
    let (features, dependencies) = if onnx { (", features = [\"command\"]", COMPILER_DEPENDENCIES) } else { ("", "") };
    let substitute = |text: &str| {
        let text = fill_template(text, name).replace("@API@", &paths[0]).replace("@SUPPORT@", &paths[1]);
        text.replace("@FEATURES@", features).replace("@DEPENDENCIES@\n", dependencies)
    };
    let mut files: Files = vec![
        ("Cargo.toml".into(), substitute(include_str!("../templates/plugin.toml"))),
        ("src/lib.rs".into(), renamed(template, name)),
        ("README.md".into(), substitute(template.readme)),
        (".gitignore".into(), "/target\n/plugins\n".into()),
    ];
    if api.is_none() {
        files.extend(copied_crates());
    }
    files
}

/// Returns the copies of byoc-plugin-api and byoc-plugin-support in the crate of a plugin.
fn copied_crates() -> Files {
    let mut files: Files =
        host::plugin_api_sources().into_iter().map(|(path, text)| (format!("{API}/{path}"), text)).collect();
    let manifest = include_str!("../templates/support.toml").replace("@VERSION@", API_VERSION);
    files.push((format!("{HELPERS}/Cargo.toml"), manifest));
    files.extend(SUPPORT.map(|(path, text)| (format!("{HELPERS}/src/{path}"), text.to_owned())));
    for dir in [API, HELPERS] {
        files.extend(LICENSES.map(|(path, text)| (format!("{dir}/{path}"), text.to_owned())));
    }
    files
}

/// Returns the headers of the boundary in the directory of a C plugin.
fn copied_headers() -> Files {
    vec![
        ("byoc_plugin.h".into(), host::C_HEADER.into()),
        ("byoc_json.h".into(), host::C_JSON_HEADER.into()),
        ("byoc_device.h".into(), host::C_DEVICE_HEADER.into()),
        ("byoc_command.h".into(), host::C_COMMAND_HEADER.into()),
    ]
}

/// Renews the copy of the boundary in the directory of a plugin: byoc-plugin-api and byoc-plugin-support, or the headers of
/// C. What the author wrote stays as it is.
pub fn update(args: &PluginsUpdateArgs) -> Result<ExitCode, Failure> {
    let dir = &args.dir;
    let has = |path: &str| dir.join(path).is_file();
    let files = match (has(&format!("{API}/Cargo.toml")), has("byoc_plugin.h")) {
        (true, _) => copied_crates(),
        (false, true) => copied_headers(),
        (false, false) => {
            let message =
                format!("{}: expected a copy of the boundary, {API} or byoc_plugin.h, found none", dir.display());
            return Err(invalid_request(message)
                .help("name the directory that \"byoc plugins new\" made; a plugin with --api DIR has no copy")
                .into());
        }
    };
    let fault =
        |path: &Path, error: std::io::Error| invalid_request(format!("cannot write {}: {error}", path.display()));
    let mut changed = 0;
    for (path, text) in &files {
        let path = dir.join(path);
        if std::fs::read_to_string(&path).is_ok_and(|old| old == *text) {
            continue;
        }
        changed += 1;
        std::fs::create_dir_all(path.parent().unwrap_or(dir)).map_err(|error| fault(&path, error))?;
        super::output_file::write(&path, |file| file.write_all(text.as_bytes()))?;
    }
    let removed = remove_stale(dir, &files).map_err(|error| fault(dir, error))?;
    println!(
        "{}: boundary {API_VERSION}, {} renewed, {} removed, {} as before",
        dir.display(),
        plural(changed, "file"),
        plural(removed, "file"),
        files.len() - changed
    );
    Ok(ExitCode::SUCCESS)
}

/// Removes sources that an earlier copy of the crates had. Returns their number.
fn remove_stale(dir: &Path, files: &Files) -> std::io::Result<usize> {
    let mut removed = 0;
    let mut folders = vec![format!("{API}/src"), format!("{HELPERS}/src")];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(dir.join(&folder)) else { continue };
        for entry in entries {
            let entry = entry?;
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else if path.ends_with(".rs") && !files.iter().any(|file| file.0 == path) {
                std::fs::remove_file(dir.join(path))?;
                removed += 1;
            }
        }
    }
    Ok(removed)
}

fn c_files(name: &str, onnx: bool) -> Files {
    let template = &C[usize::from(onnx)];
    let source = if onnx {
        renamed(template, name)
    } else {
        // The word stands for the operators as well.
        let old = template.name;
        let source = template.source.replace(&format!("#define NAME \"{old}\""), &format!("#define NAME \"{name}\""));
        source.replace(&format!("/* {old}: "), &format!("/* {name}: "))
    };
    let mut files: Files = vec![
        (format!("{name}.c"), source),
        ("Makefile".into(), fill_template(include_str!("../templates/Makefile"), name)),
        ("README.md".into(), fill_template(template.readme, name)),
        ("byoc-plugin.pc".into(), include_str!("../templates/byoc-plugin.pc").replace("@VERSION@", API_VERSION)),
        (".gitignore".into(), "*.so\n/plugins\n".into()),
    ];
    files.extend(copied_headers());
    files.extend(LICENSES.map(|(path, text)| (path.to_owned(), text.to_owned())));
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in ["mine", "a", "my_chip2", "some/where/mine"] {
            assert!(plugin_name(Path::new(name)).is_ok(), "{name}");
        }
        for (invalid, suggestion) in [("my-chip", "\"my_chip\""), ("2fast", "\"fast\""), ("größe", "\"gr__e\"")] {
            let failure = plugin_name(Path::new(invalid)).expect_err(invalid);
            assert_eq!(failure.diagnostics[0].help, Some(format!("try {suggestion}")));
        }
        assert!(plugin_name(Path::new("..")).is_err());
    }

    #[test]
    fn replaces_every_template_name() {
        let placeholders = ["@NAME@", "@API@", "@ABI@", "@FEATURES@", "@DEPENDENCIES@", "@VARIABLE@"];
        let old_names =
            ["minimal", "Minimal", "elementwise:", "\"elementwise\"", "onnx_command", "OnnxCommand", "ONNX_FILES"];
        for onnx in [false, true] {
            let files =
                rust_files("my_chip", onnx, Some(Path::new("/api"))).into_iter().chain(c_files("my_chip", onnx));
            for (name, text) in files {
                for part in placeholders.iter().chain(&old_names) {
                    assert!(!text.contains(part), "expected no {part} in {name}");
                }
            }
            let lib = &rust_files("my_chip", onnx, None)[1].1;
            assert!(lib.contains("struct MyChip") && lib.contains("declare_plugin!(\"my_chip\","), "{lib}");
            assert!(c_files("my_chip", onnx)[0].1.contains("#define NAME \"my_chip\""));
        }
        assert!(rust_files("relu", false, None)[1].1.contains("struct Plugin;"));
        assert!(rust_files("chip", true, None)[1].1.contains("variable: \"CHIP_CC\""));
    }
}
