//! `ranklaunch install`: copies the executable into a folder.
//!
//! Its image is built FROM scratch and so has no `cp`. An init container that copies the file
//! works on every version of Kubernetes.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::output::{refuse, show};
use linux::host::Host;
use settings::cli::Options;
use text::lang::{Text, cause};
use text::text;
use verdict::{Id, Refusal};

/// The usual mode of programs: all users may run it, only its owner may replace it.
const MODE: u32 = 0o755;

pub(crate) fn install(folder: &Path) -> i32 {
    match copy_into(folder) {
        Ok(file) => {
            show(&format!("{}\n", file.display()));
            0
        }
        Err(error) => {
            let is_file = folder.is_file();
            let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new(".")).display().to_string();
            let (folder, Text { en, zh }) = (folder.display(), cause(&error));
            let hint = if is_file {
                text!(
                    "{folder} is a file; name its folder, in which the file ranklaunch is replaced: ranklaunch install {parent}",
                    "{folder} 是文件；请指定其所在目录，其中的 ranklaunch 会被替换：ranklaunch install {parent}"
                )
            } else {
                text!(
                    "name a folder that can be written, such as the mount of an emptyDir",
                    "请指定可写的目录，例如 emptyDir 的挂载点"
                )
            };
            let refusal = Refusal::new(
                Id::InstallWrite,
                text!(
                    "cannot copy this executable into {folder}: {en}",
                    "无法将本程序复制到 {folder}：{zh}"
                ),
                hint,
            );
            refuse(&refusal, Options::default().language(&Host::live()))
        }
    }
}

/// Writes a new file and renames it over the old one, since a running executable cannot be
/// written to.
fn copy_into(folder: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let file = folder.join("ranklaunch");
    // Two installations into one shared folder must not write to the same file.
    let mut fresh = tempfile::Builder::new().prefix(".ranklaunch-").tempfile_in(folder)?;
    io::copy(&mut File::open("/proc/self/exe")?, &mut fresh)?;
    fresh.as_file().set_permissions(PermissionsExt::from_mode(MODE))?;
    fresh.persist(&file)?;
    Ok(file)
}
