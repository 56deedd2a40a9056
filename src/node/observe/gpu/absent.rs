//! Decides whether a node certainly has no NVIDIA driver, so that NVML need not be asked.

use linux::host::Host;

use crate::probe::LIBRARIES;

/// Beginnings of names in /dev: the driver's own, the paravirtual GPU of WSL, the GPUs of Tegra.
const DEVICES: [&str; 4] = ["nvidia", "dxg", "nvhost", "nvmap"];
const FOLDERS: [&str; 3] = ["/proc/driver/nvidia", "/sys/module/nvidia", "/sys/module/nvgpu"];
/// Folders in which the loader looks without its cache.
const USUAL: [&str; 6] = [
    "/lib",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib",
    "/usr/local/lib",
];

/// Whether the kernel shows no driver and the loader would not find its library. In doubt the answer is false.
pub(super) fn is_absent(host: &Host) -> bool {
    let is_device = |name: &String| DEVICES.iter().any(|start| name.starts_with(start));
    !host.list("/dev").iter().any(is_device)
        && !FOLDERS.iter().any(|folder| host.exists(folder))
        && !has_library(host)
}

fn has_library(host: &Host) -> bool {
    let [name, known @ ..] = LIBRARIES else { return true };
    let named = host.variable("LD_LIBRARY_PATH").unwrap_or_default();
    let folders: Vec<&str> = named.split(':').filter(|_| !named.is_empty()).collect();
    // A relative folder depends on the folder in which the job starts, so it is not followed.
    folders.iter().any(|folder| !folder.starts_with('/'))
        || known.iter().any(|path| host.exists(path))
        || folders.into_iter().chain(USUAL).any(|at| host.exists(format!("{at}/{name}")))
        || host.read("/etc/ld.so.cache").is_ok_and(|cache| cache.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sign_of_a_driver_is_seen() {
        let absent = |files: &[(&str, &str)]| {
            let (_root, host) = Host::of_files(files);
            is_absent(&host)
        };
        let plain = [("dev/null", ""), ("etc/ld.so.cache", "libc.so.6"), ("sys/module/loop/x", "")];
        assert!(absent(&plain) && absent(&[]));
        let of_loader = ["usr/lib/libnvidia-ml.so.1", "lib64/libnvidia-ml.so.1"];
        let of_kernel = [
            "dev/nvidiactl",
            "dev/nvidia0",
            "dev/nvidia-caps/x",
            "dev/dxg",
            "dev/nvhost-gpu",
            "dev/nvmap",
            "proc/driver/nvidia/version",
            "sys/module/nvidia/version",
            "sys/module/nvgpu/x",
        ];
        let known = LIBRARIES.iter().skip(1).map(|path| path.trim_start_matches('/'));
        for sign in of_loader.into_iter().chain(of_kernel).chain(known) {
            assert!(!absent(&[plain[0], (sign, "")]), "{sign}");
        }
        assert!(!absent(&[(
            "etc/ld.so.cache",
            "\0libnvidia-ml.so.1\0/opt/lib/libnvidia-ml.so.1\0"
        )]));
    }
}
