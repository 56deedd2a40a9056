//! Finds the libcuda that a rank will load, and whether HCAs can read GPU memory (GPUDirect).
//!
//! Takes the [`Host`]; only reads files and loads nothing.

use std::path::{Path, PathBuf};

use super::Compat;
use linux::host::Host;

const LIBRARY: &str = "libcuda.so.1";

/// The libcuda of CUDA's forward compatibility, if the loader finds it before the driver's own libcuda: in the first
/// folder of LD_LIBRARY_PATH that has a libcuda, or in a folder of /etc/ld.so.conf.d. The package installs it below
/// `/usr/local/cuda-X.Y/compat`.
pub(super) fn compat(host: &Host) -> Option<Compat> {
    let path = host.variable("LD_LIBRARY_PATH").unwrap_or_default();
    let first = path
        .split(':')
        .filter(|folder| folder.starts_with('/'))
        .find(|folder| host.exists(Path::new(folder).join(LIBRARY)));
    if let Some(folder) = first {
        return found(host, Path::new(folder), "LD_LIBRARY_PATH".to_owned());
    }
    const FOLDER: &str = "/etc/ld.so.conf.d";
    host.list(FOLDER).into_iter().filter(|file| file.contains("compat")).find_map(|file| {
        let file = format!("{FOLDER}/{file}");
        let text = host.read(&file).ok()?;
        text.lines().map(str::trim).filter(|line| line.starts_with('/')).find_map(|folder| {
            let folder = Path::new(folder);
            host.exists(folder.join(LIBRARY)).then(|| found(host, folder, file.clone()))?
        })
    })
}

/// None if the folder does not belong to a compat package.
fn found(host: &Host, folder: &Path, by: String) -> Option<Compat> {
    let real: PathBuf = host.real_path(folder.join(LIBRARY))?;
    let of_package = |path: &Path| path.parent().is_some_and(|folder| folder.ends_with("compat"));
    let in_package = folder.ends_with("compat") || of_package(&real);
    let name = real.file_name()?.to_string_lossy().into_owned();
    let driver = name.strip_prefix("libcuda.so.").filter(|version| version.contains('.'));
    in_package.then(|| Compat { folder: folder.to_owned(), by, driver: driver.map(str::to_owned) })
}

/// Paths at which NCCL looks for the module that lets an HCA read GPU memory (nccl src/transport/net_ib/gdr.cc),
/// including Mellanox's older module.
const MODULES: &[&str] = &[
    "/sys/module/nvidia_peermem",
    "/sys/module/nv_peer_mem",
    "/sys/kernel/mm/memory_peers/nv_mem",
    "/sys/kernel/mm/memory_peers/nv_mem_nc",
];

/// Minimum kernel version of dma-buf, which also needs the open kernel modules.
const DMA_BUF: (u32, u32) = (5, 12);

/// The way by which HCAs read GPU memory: `nvidia_peermem`, or `dma-buf` if the driver needs no module.
pub(super) fn gpudirect(host: &Host) -> Option<String> {
    if let Some(module) = MODULES.iter().find(|module| host.exists(module)) {
        return Some(module.rsplit('/').next()?.to_owned());
    }
    let driver = host.read("/proc/driver/nvidia/version").ok()?;
    let release = host.read("/proc/sys/kernel/osrelease").ok()?;
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse::<u32>);
    let kernel = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    (driver.contains("Open Kernel Module") && kernel >= DMA_BUF).then(|| "dma-buf".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn node(files: &[(&str, &str)], library_path: &str) -> (tempfile::TempDir, Host) {
        let root = tempfile::tempdir().expect("a folder");
        for (file, text) in files {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            match text.strip_prefix("-> ") {
                Some(target) => std::os::unix::fs::symlink(target, path).expect("a link"),
                None => std::fs::write(path, text).expect("a file"),
            }
        }
        let environment: BTreeMap<_, _> = [("LD_LIBRARY_PATH".into(), library_path.into())].into();
        let host = Host::replayed(root.path(), environment);
        (root, host)
    }

    #[test]
    fn the_first_libcuda_of_the_loaders_path_counts() {
        let package: &[(&str, &str)] = &[
            ("usr/local/cuda-12.6/compat/libcuda.so.560.35.03", ""),
            ("usr/local/cuda-12.6/compat/libcuda.so.1", "-> libcuda.so.560.35.03"),
        ];
        let driver: &[(&str, &str)] = &[
            ("usr/lib64/libcuda.so.570.86.15", ""),
            ("usr/lib64/libcuda.so.1", "-> libcuda.so.570.86.15"),
        ];
        let both = [package, driver].concat();
        let compat_first = "/usr/local/cuda-12.6/compat:/usr/lib64";
        let (_root, host) = node(&both, compat_first);
        let found = compat(&host).expect("it comes first");
        assert_eq!(
            (found.by.as_str(), found.driver.as_deref()),
            ("LD_LIBRARY_PATH", Some("560.35.03"))
        );
        for (files, path) in [
            (both.as_slice(), "/usr/lib64:/usr/local/cuda-12.6/compat"),
            (driver, compat_first),
            (package, ""),
        ] {
            let (_root, host) = node(files, path);
            assert_eq!(compat(&host), None, "{path}");
        }
        let conf =
            [package, &[("etc/ld.so.conf.d/00-compat.conf", "/usr/local/cuda-12.6/compat\n")]]
                .concat();
        let (_root, host) = node(&conf, "");
        assert_eq!(
            compat(&host).map(|found| found.by).as_deref(),
            Some("/etc/ld.so.conf.d/00-compat.conf")
        );
    }

    type Files = &'static [(&'static str, &'static str)];

    #[test]
    fn peer_memory_is_a_module_or_dma_buf() {
        const OPEN: &str =
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n";
        const CLOSED: &str = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15\n";
        let table: &[(Files, Option<&str>)] = &[
            (&[("sys/module/nvidia_peermem/version", "1")], Some("nvidia_peermem")),
            (
                &[
                    ("proc/driver/nvidia/version", OPEN),
                    ("proc/sys/kernel/osrelease", "6.8.0-45-generic\n"),
                ],
                Some("dma-buf"),
            ),
            (
                &[("proc/driver/nvidia/version", OPEN), ("proc/sys/kernel/osrelease", "5.4.0-1\n")],
                None,
            ),
            (
                &[("proc/driver/nvidia/version", CLOSED), ("proc/sys/kernel/osrelease", "6.8.0\n")],
                None,
            ),
            (&[], None),
        ];
        for (files, expected) in table {
            let (_root, host) = node(files, "");
            assert_eq!(gpudirect(&host).as_deref(), *expected, "{files:?}");
        }
    }
}
