//! Counts GPUs without NVML: by device nodes, the driver's /proc folder, and nvidia-smi.
//!
//! Each source gives less than NVML. A device node that opens proves a usable GPU; /proc also lists GPUs that this
//! container may not open.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::Duration;

use super::facts::Gpu;
use crate::observe::rdma::pci_address;
use crate::probe::{ProbeError, run_tool};
use linux::host::Host;
use text::lang::{Text, cause};
use text::order::Ordered;
use text::text;

const PROC_GPUS: &str = "/proc/driver/nvidia/gpus";

/// The minors N of /dev/nvidiaN; other names there (nvidiactl, nvidia-uvm) are not GPUs.
pub(super) fn minors(host: &Host) -> Vec<u32> {
    let mut minors: Vec<u32> = host
        .list("/dev")
        .iter()
        .filter_map(|name| name.strip_prefix("nvidia"))
        .filter(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
        .filter_map(|rest| rest.parse().ok())
        .collect();
    minors.sort_unstable();
    minors
}

/// Whether this container was given the device, whether or not it works.
pub(super) fn is_given(host: &Host, minor: u32) -> bool {
    let node = format!("/dev/nvidia{minor}");
    if !host.is_live() {
        return host.path(node).exists();
    }
    let refused = [ErrorKind::PermissionDenied, ErrorKind::NotFound];
    let is_refused = open(host, &node).is_err_and(|error| refused.contains(&error.kind()));
    if is_refused {
        host.unusable(node);
    }
    !is_refused
}

fn open(host: &Host, node: &str) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(host.path(node))
}

/// The GPUs whose device node opens, joined with their data in /proc. A node that the device cgroup blocks exists but
/// does not open, so stat is not sufficient.
pub(super) fn device_nodes(host: &Host) -> Result<Vec<Gpu>, Text> {
    let minors = minors(host);
    if minors.is_empty() {
        return Err(text!("no /dev/nvidia[0-9]+", "没有 /dev/nvidia[0-9]+"));
    }
    let mut refused = None;
    let mut opened = Vec::new();
    for minor in minors {
        let path = format!("/dev/nvidia{minor}");
        match host.is_live().then(|| open(host, &path)) {
            None | Some(Ok(_)) => opened.push(minor),
            Some(Err(error)) => {
                host.unusable(&path);
                refused = Some(cause(&error).about(&path));
            }
        }
    }
    if opened.is_empty() {
        let Text { en, zh } = refused.unwrap_or_else(|| Text::same(""));
        return Err(text!("no device node opens ({en})", "没有可打开的设备节点（{zh}）"));
    }
    let known = proc_gpus(host);
    let of = |minor| {
        let found = known.iter().find(|gpu| gpu.minor == Some(minor)).cloned();
        found.unwrap_or_else(|| Gpu { minor: Some(minor), ..Gpu::default() })
    };
    Ok(numbered(opened.into_iter().map(of).collect()))
}

/// The GPUs of /proc/driver/nvidia, for the case that the device nodes must not be opened (a hung driver) or were not
/// captured.
pub(super) fn proc_driver(host: &Host) -> Result<Vec<Gpu>, Text> {
    let mut gpus = proc_gpus(host);
    if host.is_live() {
        let minors = minors(host);
        gpus.retain(|gpu| gpu.minor.is_some_and(|minor| minors.contains(&minor)));
    }
    if gpus.is_empty() {
        return Err(text!("no usable GPU in {PROC_GPUS}", "{PROC_GPUS} 中没有可用的 GPU"));
    }
    Ok(numbered(gpus))
}

fn proc_gpus(host: &Host) -> Vec<Gpu> {
    let mut gpus = Vec::new();
    for folder in host.list(PROC_GPUS) {
        let Ok(text) = host.read(format!("{PROC_GPUS}/{folder}/information")) else { continue };
        let field = |name: &str| {
            text.lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(key, _)| key.trim() == name)
                .map(|(_, value)| value.trim().to_owned())
                .filter(|value| !value.is_empty())
        };
        gpus.push(Gpu {
            // A GPU that was never initialised has question marks in this field.
            uuid: field("GPU UUID").filter(|uuid| !uuid.contains('?')),
            name: field("Model"),
            pci: pci_address(&folder),
            minor: field("Device Minor").and_then(|minor| minor.parse().ok()),
            ..Gpu::default()
        });
    }
    gpus
}

/// Numbers the GPUs in PCI order, as NVML does; GPUs with an unknown address come last, by minor.
fn numbered(mut gpus: Vec<Gpu>) -> Vec<Gpu> {
    gpus.order_by_key(|gpu| (gpu.pci.is_none(), gpu.pci.clone(), gpu.minor));
    for (index, gpu) in (0..).zip(&mut gpus) {
        gpu.index = index;
    }
    gpus
}

/// Maximum length of a quotation of nvidia-smi's output.
const MOST_QUOTED: usize = 200;

/// The reason why nvidia-smi did not list a GPU.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SmiError {
    Absent,
    Failed(ProbeError),
    /// nvidia-smi succeeded, but printed this instead of GPUs.
    NoGpu(String),
}

impl SmiError {
    pub(super) fn text(&self) -> Text {
        match self {
            SmiError::Absent => text!("no nvidia-smi in PATH", "PATH 中没有 nvidia-smi"),
            SmiError::Failed(error) => error.text(),
            SmiError::NoGpu(said) if said.is_empty() => {
                text!("nvidia-smi lists no GPU", "nvidia-smi 未列出任何 GPU")
            }
            SmiError::NoGpu(said) => {
                text!("nvidia-smi lists no GPU: {said}", "nvidia-smi 未列出任何 GPU：{said}")
            }
        }
    }
}

/// The GPUs that nvidia-smi lists, with the driver's version.
pub(super) fn nvidia_smi(
    host: &Host,
    timeout: Duration,
) -> Result<(Vec<Gpu>, Option<String>), SmiError> {
    const QUERY: &str = "--query-gpu=index,uuid,name,pci.bus_id,memory.total,memory.used,\
                         mig.mode.current,driver_version";
    let program = on_path(host).ok_or(SmiError::Absent)?;
    let output = run_tool(&program, &[QUERY, "--format=csv,noheader,nounits"], &[], timeout)
        .map_err(SmiError::Failed)?;
    let output = String::from_utf8_lossy(&output).into_owned();
    let (gpus, driver) = csv(&output);
    if gpus.is_empty() {
        let said: String = output.trim().chars().take(MOST_QUOTED).collect();
        return Err(SmiError::NoGpu(said));
    }
    Ok((gpus, driver))
}

fn on_path(host: &Host) -> Option<PathBuf> {
    let path = host.variable("PATH")?;
    std::env::split_paths(&path)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join("nvidia-smi"))
        .find(|file| file.is_file())
}

/// Parses one line per GPU; values such as `[N/A]` give None.
fn csv(output: &str) -> (Vec<Gpu>, Option<String>) {
    let mut driver = None;
    let mut gpus = Vec::new();
    for line in output.lines() {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [index, uuid, name, pci, total, used, mig, version] = fields.as_slice() else {
            continue;
        };
        let Ok(index) = index.parse() else { continue };
        let mebibytes = |text: &str| text.parse::<u64>().ok()?.checked_mul(1 << 20);
        gpus.push(Gpu {
            index,
            uuid: uuid.starts_with("GPU-").then(|| (*uuid).to_owned()),
            name: Some((*name).to_owned()),
            pci: pci_address(pci),
            memory_total: mebibytes(total),
            memory_used: mebibytes(used),
            mig: *mig == "Enabled",
            ..Gpu::default()
        });
        driver = Some((*version).to_owned());
    }
    (gpus, driver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvidia_smi_lines_are_read_field_by_field() {
        let (gpus, driver) = csv(
            "0, GPU-aa, NVIDIA H100 80GB HBM3, 00000000:18:00.0, 81559, 4, Disabled, 535.54.03\n\
             1, GPU-bb, NVIDIA H100 80GB HBM3, 00000000:2A:00.0, [N/A], [N/A], Enabled, 535.54.03\n\
             No devices were found\n",
        );
        assert_eq!(driver.as_deref(), Some("535.54.03"));
        assert_eq!(gpus.len(), 2);
        assert_eq!(gpus[0].memory_total, Some(81559 << 20));
        assert_eq!(gpus[1].pci.as_deref(), Some("0000:2a:00.0"));
        assert_eq!((gpus[1].memory_used, gpus[1].mig), (None, true));
    }

    /// A node with this nvidia-smi in its PATH. Another process writes the file, since a file cannot be executed while
    /// a fork of any thread holds it open for writing.
    fn with_smi(folder: &std::path::Path, script: &str) -> Host {
        let write = "printf '%s' \"$1\" > \"$2/nvidia-smi\" && chmod 755 \"$2/nvidia-smi\"";
        let status = std::process::Command::new("sh")
            .args(["-c", write, "sh", script])
            .arg(folder)
            .status()
            .expect("sh runs");
        assert!(status.success());
        let environment = [("PATH".into(), folder.into())].into_iter().collect();
        Host::replayed("/nowhere", environment)
    }

    #[test]
    fn nvidia_smi_is_run_with_a_deadline() {
        let folder = tempfile::tempdir().expect("a folder");
        let line = "0, GPU-aa, NVIDIA H100, 00000000:18:00.0, 81559, 4, Disabled, 535.54.03";
        let host = with_smi(folder.path(), &format!("#!/bin/sh\necho '{line}'\n"));
        let found = nvidia_smi(&host, Duration::from_secs(20)).expect("one GPU");
        assert_eq!((found.0.len(), found.1.as_deref()), (1, Some("535.54.03")));

        let host = with_smi(folder.path(), "#!/bin/sh\necho no driver >&2\nexit 9\n");
        let why = nvidia_smi(&host, Duration::from_secs(20)).expect_err("it fails");
        let why = why.text().en;
        assert!(why.contains("code 9") && why.contains("no driver"), "{why}");

        let host = with_smi(folder.path(), "#!/bin/sh\nexec sleep 600\n");
        let why = nvidia_smi(&host, Duration::from_millis(100)).expect_err("it hangs");
        let why = why.text().en;
        assert!(why.contains("100ms"), "{why}");
    }
}
