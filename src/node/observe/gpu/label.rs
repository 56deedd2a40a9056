//! A GPU's name in messages, with all its numbers.
//!
//! A node's GPUs have three different numberings (those of nvidia-smi, CUDA and the device nodes), so each number is
//! printed with its kind.

use crate::observe::Gpu;
use crate::probe::NvmlGpu;
use text::lang::Text;
use text::text;

/// `GPU 3 (nvidia-smi index; 0000:48:00.0, GPU-fa4e0003-…, /dev/nvidia6)`
pub fn label(gpu: &Gpu) -> Text {
    of(gpu.index, &gpu.pci, &gpu.uuid, gpu.minor)
}

pub(super) fn of_nvml(gpu: &NvmlGpu) -> Text {
    of(gpu.index, &gpu.pci, &gpu.uuid, gpu.minor)
}

fn of(index: u32, pci: &Option<String>, uuid: &Option<String>, minor: Option<u32>) -> Text {
    let node = minor.map(|minor| format!("/dev/nvidia{minor}"));
    let names: Vec<&str> =
        [pci, uuid, &node].into_iter().filter_map(|name| name.as_deref()).collect();
    let (en, zh) = match names.join(", ") {
        none if none.is_empty() => (String::new(), String::new()),
        names => (format!("; {names}"), format!("；{names}")),
    };
    text!("GPU {index} (nvidia-smi index{en})", "GPU {index}（nvidia-smi 序号{zh}）")
}
