//! Deflates what the warmed interpreter and the ranks run.

use std::path::Path;

/// The file in the output, the folder, and the endings of its files' names.
const FOLDERS: &[(&str, &str, &[&str])] =
    &[("warm.zz", "warm", &["py"]), ("inject.zz", "inject", &["py"])];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = std::env::var("OUT_DIR")?;
    for (name, folder, endings) in FOLDERS {
        let deflated = embed::deflated_folder(Path::new(folder), endings)?;
        std::fs::write(Path::new(&out).join(name), deflated)?;
    }
    Ok(())
}
