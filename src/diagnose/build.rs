//! Deflates the catalogue: the program reads it only if a job has failed or a log is explained. The examples of the
//! rows stay behind; they are for tests.

use std::error::Error;
use std::path::Path;

const FOLDER: &str = "catalogue";

/// The files of the folder. Rows of earlier ones win over those of later ones.
const FILES: &[&str] = &[
    "schedulers",
    "start",
    "transports",
    "ascend",
    "serving",
    "cuda",
    "cuda_api",
    "nccl",
    "gloo",
    "nccl_warn",
    "ofi",
    "nvshmem",
    "rendezvous",
    "containers",
    "c10d",
    "limits",
    "storage",
    "checkpoints",
    "packages",
    "hub",
    "libraries",
    "layout",
    "training",
    "ends",
    "kubernetes",
    "xid",
    "wrappers",
    "context",
    "waits",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={FOLDER}");
    let folder = Path::new(FOLDER);
    let mut rows = Vec::new();
    for name in FILES {
        let path = folder.join(name).with_extension("toml");
        let named = |error: &dyn Error| format!("{}: {error}", path.display());
        let text = std::fs::read_to_string(&path).map_err(|error| named(&error))?;
        let file: toml::Table = toml::from_str(&text).map_err(|error| named(&error))?;
        for row in file.get("row").and_then(toml::Value::as_array).into_iter().flatten() {
            let mut row = row.clone();
            if let Some(row) = row.as_table_mut() {
                row.retain(|key, _| key != "matches" && key != "differs");
            }
            rows.push(row);
        }
    }
    let number = std::fs::read_dir(folder)?.count();
    if number != FILES.len() {
        return Err(format!("{FOLDER} holds {number} files, {} are listed", FILES.len()).into());
    }
    let to = Path::new(&std::env::var("OUT_DIR")?).join("catalogue.json.zz");
    Ok(std::fs::write(to, embed::deflated(&serde_json::to_vec(&rows)?)?)?)
}
