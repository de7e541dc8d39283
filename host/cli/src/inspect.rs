//! `byoc inspect`: prints the contents and requirements of an artifact.

use super::args::InspectArgs;
use super::{escape, render, table};
use byoc::artifact;
use byoc::error::Failure;
use serde_json::json;
use std::process::ExitCode;

/// Runs the command.
pub fn run(args: &InspectArgs) -> Result<ExitCode, Failure> {
    let artifact = artifact::open(&args.file)?;
    let (manifest, compiled) = (&artifact.manifest, &artifact.compiled);
    if args.talk.json {
        println!("{}", json!(manifest));
        return Ok(ExitCode::SUCCESS);
    }
    let (file, producer) = (args.file.display().to_string(), escape::line(&manifest.producer));
    println!("{}, format {}, written by {producer}", escape::line(&file), manifest.format);
    println!("model {}", escape::line(&manifest.model_digest));
    println!("options {}", escape::line(&manifest.options.to_string()));
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
        for (region, made) in compiled.program.regions.iter().zip(&compiled.regions) {
            regions.add_row(match made {
                Some(made) => [
                    region.symbol.clone(),
                    format!("loadbinary_{}", made.loader),
                    format!("{} {}", made.plugin.name, made.plugin.version),
                    if made.cpu_features.is_empty() { "any".into() } else { made.cpu_features.join(" ") },
                    made.blob.len().to_string(),
                    made.source
                        .as_ref()
                        .map_or_else(|| "-".to_owned(), |s| format!("{} {} bytes", s.language, s.text.len())),
                ],
                None => [region.symbol.clone(), "the host".into(), "-".into(), "any".into(), "-".into(), "-".into()],
            });
        }
        table::print(&regions);
    }

    println!();
    let mut entries = table::new(&["entry", "bytes", "blake3"]);
    for entry in &manifest.entries {
        entries.add_row([entry.name.clone(), entry.bytes.to_string(), entry.blake3.clone()]);
    }
    table::print(&entries);
    let weights: usize = compiled.constants.iter().map(|t| t.bytes().len()).sum();
    println!("\n{} constants, {weights} bytes", compiled.constants.len());
    Ok(ExitCode::SUCCESS)
}
