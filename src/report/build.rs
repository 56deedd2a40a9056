//! Deflates what `explain ID` says and the page of a run.

use std::path::Path;

/// The file in the output, the folder, and the endings of its files' names.
const FOLDERS: &[(&str, &str, &[&str])] =
    &[("explanations.zz", "findings/text", &["toml"]), ("page.zz", "page", &["html", "css", "js"])];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = std::env::var("OUT_DIR")?;
    for (name, folder, endings) in FOLDERS {
        let deflated = embed::deflated_folder(Path::new(folder), endings)?;
        std::fs::write(Path::new(&out).join(name), deflated)?;
    }
    Ok(())
}
