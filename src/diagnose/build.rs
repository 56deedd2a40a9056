//! Deflates the catalogue: the program reads it only if a job has failed or a log is explained.

use std::path::Path;

const CATALOGUE: &str = "catalogue.toml";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed={CATALOGUE}");
    let catalogue = std::fs::read(CATALOGUE).map_err(|error| format!("{CATALOGUE}: {error}"))?;
    let to = Path::new(&std::env::var("OUT_DIR")?).join("catalogue.toml.zz");
    Ok(std::fs::write(to, embed::deflated(&catalogue)?)?)
}
