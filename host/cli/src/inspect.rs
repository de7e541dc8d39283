//! `byoc inspect`: prints the contents and requirements of an artifact.

use super::args::InspectArgs;
use super::{escape, render, table};
use byoc::driver::Compiled;
use byoc::runtime::artifact;
use byoc::runtime::error::Failure;
use byoc::runtime::session::Session;
use byoc_ir::diag::plural;
use serde_json::json;
use std::collections::BTreeSet;
use std::process::ExitCode;

/// Loader query key for the summary of a blob.
const SUMMARY: &str = "blob.summary";
/// Loader query key for the complete listing of a blob.
const LISTING: &str = "blob.listing";

/// Prints the blob summary or listing of each region whose loader provides one. Loaders that are not installed are
/// skipped: the rest of the artifact can be inspected without them.
fn print_listings(args: &InspectArgs, compiled: &Compiled) -> Result<(), Failure> {
    let session = Session::new(&args.plugins.plugin_dirs, 1)?;
    let key = if args.listing { LISTING } else { SUMMARY };
    for region in compiled.regions.iter().flatten() {
        let Some(loader) = session.registry.loader(&region.loader, &region.plugin.name) else {
            if args.listing {
                println!("\n{}: no installed plugin can list the blob", escape::line(&region.symbol));
            }
            continue;
        };
        let symbol = escape::line(&region.symbol);
        match loader.query(key, &region.blob) {
            Ok(Some(text)) => print!("\n{symbol}: {}", escape::lines(&String::from_utf8_lossy(&text))),
            Ok(None) if args.listing => println!("\n{symbol}: {} has no listing", escape::line(&region.plugin.name)),
            Ok(None) => {}
            Err(error) => {
                render::print_diagnostic(&byoc::runtime::plugin::fault(&error).note(format!("region {symbol}")))
            }
        }
    }
    Ok(())
}

/// Returns the number and the total size in bytes of the constants stored only in blobs.
pub fn blob_constant_size(compiled: &Compiled, constants: &BTreeSet<u32>) -> (usize, usize) {
    let ports = constants.iter().filter_map(|&index| compiled.program.constants.get(index as usize));
    let bytes = ports.filter_map(|port| port.ty.len()?.checked_mul(port.ty.dtype.size()));
    (constants.len(), bytes.fold(0, usize::saturating_add))
}

/// Prints the contents and requirements of an artifact.
pub fn run(args: &InspectArgs) -> Result<ExitCode, Failure> {
    let artifact = artifact::open(&args.file)?;
    let (manifest, compiled) = (&artifact.manifest, &artifact.compiled);
    if args.diagnostics.json {
        println!("{}", json!(manifest));
        return Ok(ExitCode::SUCCESS);
    }
    let (file, producer) = (args.file.display().to_string(), escape::line(&manifest.producer));
    println!("{}, format {}, written by {producer}", escape::line(&file), manifest.format);
    println!("model {}", escape::line(&manifest.model_digest));
    println!("options {}", escape::line(&manifest.options.to_string()));
    for (operator, plugin) in manifest.options["operators"].as_object().into_iter().flatten() {
        let plugin = plugin.as_str().unwrap_or_default();
        println!("needs {} of plugin {}", escape::line(operator), escape::line(plugin));
    }
    for variant in &manifest.variants {
        let dims: Vec<String> = variant.dims.iter().map(|(name, size)| format!("{name}={size}")).collect();
        println!("specialized for {}", escape::line(&dims.join(", ")));
    }
    println!();

    let mut ports = table::new(&["", "name", "type"]);
    for (kind, list) in [("input", &compiled.program.inputs), ("output", &compiled.program.outputs)] {
        for port in list {
            ports.add_row([kind, &port.name, &render::type_text(&port.ty)]);
        }
    }
    table::print(&ports);

    if !compiled.program.regions.is_empty() {
        println!();
        let mut regions = table::new(&["region", "needs", "made by", "cpu features", "blob bytes", "source"]);
        for (region, compiled_region) in compiled.program.regions.iter().zip(&compiled.regions) {
            regions.add_row(match compiled_region {
                Some(compiled_region) => [
                    region.symbol.clone(),
                    format!("loadbinary_{}", compiled_region.loader),
                    format!("{} {}", compiled_region.plugin.name, compiled_region.plugin.version),
                    if compiled_region.cpu_features.is_empty() {
                        "any".into()
                    } else {
                        compiled_region.cpu_features.join(" ")
                    },
                    compiled_region.blob.len().to_string(),
                    compiled_region
                        .source
                        .as_ref()
                        .map_or_else(|| "-".to_owned(), |s| format!("{} {} bytes", s.language, s.text.len())),
                ],
                None => [region.symbol.clone(), "the host".into(), "-".into(), "any".into(), "-".into(), "-".into()],
            });
        }
        table::print(&regions);
        print_listings(args, compiled)?;
    }

    println!();
    let mut entries = table::new(&["entry", "bytes", "blake3"]);
    for entry in &manifest.entries {
        entries.add_row([entry.name.clone(), entry.bytes.to_string(), entry.blake3.clone()]);
    }
    table::print(&entries);
    let weights: usize = compiled.constants.iter().map(|t| t.bytes().len()).sum();
    let stored_constants = plural(compiled.constants.len() - compiled.absent.len(), "constant");
    println!("\n{stored_constants}, {weights} bytes");
    if !compiled.absent.is_empty() {
        let (count, bytes) = blob_constant_size(compiled, &compiled.absent);
        let count_text = plural(count, "further constant");
        println!("{count_text} ({bytes} bytes) stored only in blobs, whose regions cannot run on the host");
    }
    for (backend, data) in &compiled.linked {
        let bytes = data.as_ref().map_or(0, |data| data.bytes().len());
        println!("regions of {} are linked and share {bytes} bytes", escape::line(backend));
    }
    Ok(ExitCode::SUCCESS)
}
