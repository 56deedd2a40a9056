//! Files that a crate's build script deflates into its output and the program inflates: texts to a quarter of their size,
//! read only where a person asks or a job has failed.

#![deny(unsafe_code)]

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;

/// Deflates a file as small as it gets.
pub fn deflated(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut out = ZlibEncoder::new(Vec::new(), Compression::best());
    out.write_all(bytes)?;
    out.finish()
}

/// For a build script: deflates folders into its output. Of each the name of the file there, the folder, and the endings
/// of the files that it holds for [`files`]. Prints what cargo must know to run the script again.
pub fn embed_folders(folders: &[(&str, &str, &[&str])]) -> io::Result<()> {
    let out = std::env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?;
    for (name, folder, endings) in folders {
        std::fs::write(Path::new(&out).join(name), deflated_folder(Path::new(folder), endings)?)?;
    }
    Ok(())
}

/// Those of a folder's files whose names have one of these endings, in the order of their names.
fn deflated_folder(folder: &Path, endings: &[&str]) -> io::Result<Vec<u8>> {
    let is_one =
        |path: &PathBuf| endings.iter().any(|ending| path.extension() == Some(ending.as_ref()));
    let entries: io::Result<Vec<_>> = std::fs::read_dir(folder)?.collect();
    let mut paths: Vec<PathBuf> =
        entries?.into_iter().map(|entry| entry.path()).filter(is_one).collect();
    paths.sort();
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut all = Vec::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        all.extend([name.as_bytes(), b"\0", std::fs::read(&path)?.as_slice(), b"\0"].concat());
    }
    deflated(&all)
}

/// A deflated file. Fails if it is none.
pub fn bytes(deflated: &[u8]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(3 * deflated.len());
    ZlibDecoder::new(deflated).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The text of a deflated file. Fails if it is none, or no UTF-8.
pub fn text(deflated: &[u8]) -> io::Result<String> {
    String::from_utf8(bytes(deflated)?).map_err(io::Error::other)
}

/// The files of a deflated folder, each a name and a text.
pub fn files(deflated: &[u8]) -> io::Result<Vec<(String, String)>> {
    let all = text(deflated)?;
    let mut parts = all.split_terminator('\0').map(str::to_owned);
    Ok(std::iter::from_fn(|| Some((parts.next()?, parts.next()?))).collect())
}
