//! The meaning of a CUDA_VISIBLE_DEVICES that leaves no GPU visible.
//!
//! Takes the value and the GPUs of the node. Says whether the value means the CPU, or which of CUDA's rules hides every
//! GPU. Shares the rules of `visible.rs`.

use super::visible::{Element, element, elements, with_prefix};
use crate::observe::{Gpu, GpuFacts};
use text::lang::Text;
use text::text;

impl GpuFacts {
    /// Whether CUDA_VISIBLE_DEVICES means the CPU.
    pub fn mean_cpu(&self) -> bool {
        self.cuda_visible_devices.as_deref().is_some_and(means_cpu)
    }

    /// The rule by which CUDA_VISIBLE_DEVICES hides all GPUs.
    pub fn why_hidden(&self) -> Text {
        why_none(self.cuda_visible_devices.as_deref().unwrap_or_default(), &self.gpus)
    }
}

/// Whether the value means the CPU: empty or -1, the two forms that people and frameworks write for this purpose.
fn means_cpu(value: &str) -> bool {
    matches!(value.trim(), "" | "-1")
}

/// Whether the value asks for a GPU: its first element is a number or a UUID. Values such as NoDevFiles and `none` ask
/// for nothing.
pub(super) fn names_a_gpu(value: &str) -> bool {
    let first = elements(value).next().unwrap_or_default();
    value.starts_with("GPU-")
        || value.starts_with("MIG-")
        || matches!(element(first), Element::Number(_))
}

/// The rule by which this value hides all of these GPUs.
fn why_none(value: &str, gpus: &[Gpu]) -> Text {
    let first = elements(value).next().unwrap_or_default();
    if means_cpu(value) {
        return text!("empty or -1, it means the CPU", "其值为空或 -1，表示使用 CPU");
    }
    let of_kind = ["GPU-", "MIG-"].into_iter().find(|kind| value.starts_with(kind));
    let is_list = |one: &&str| match of_kind {
        Some(kind) => one.starts_with(kind),
        None => matches!(element(one), Element::Number(_)),
    };
    let key = |one| match (of_kind, element(one)) {
        (None, Element::Number(digits)) => digits,
        _ => one,
    };
    let list: Vec<&str> = elements(value).take_while(is_list).collect();
    let twice = list
        .iter()
        .enumerate()
        .find(|(at, one)| list.iter().take(*at).any(|before| key(before) == key(one)));
    if let Some((_, twice)) = twice
        && (of_kind.is_none() || with_prefix(value, of_kind.unwrap_or_default()).is_empty())
    {
        return text!(
            "it names {twice} twice, and CUDA then sees no GPU",
            "其中 {twice} 出现两次，此时 CUDA 看不到任何 GPU"
        );
    }
    if of_kind.is_some() {
        let is_meant = |gpu: &&Gpu| gpu.uuid.as_deref().is_some_and(|uuid| uuid.starts_with(first));
        return match gpus.iter().filter(is_meant).count() {
            0 => text!("no GPU here has the UUID {first}", "此处没有 UUID 为 {first} 的 GPU"),
            1 => text!(
                "two of its elements name one GPU, and CUDA then sees none",
                "其中两项指向同一个 GPU，此时 CUDA 看不到任何 GPU"
            ),
            several => text!(
                "{first} begins the UUIDs of {several} GPUs, so it names none",
                "{first} 是 {several} 个 GPU 的 UUID 前缀，因此不指向任何一个"
            ),
        };
    }
    let last = gpus.len().saturating_sub(1);
    match element(first) {
        Element::Number(_) => text!(
            "there is no device {first}: the numbers here are 0 to {last}",
            "没有设备 {first}：此处的编号为 0 到 {last}"
        ),
        Element::End => text!(
            "{first:?} is no number of a device and no UUID, and the list ends there (Slurm writes NoDevFiles for a step without GPUs)",
            "{first:?} 既不是设备编号也不是 UUID，列表到此为止（Slurm 用 NoDevFiles 表示未分配 GPU 的步骤）"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::visible::visible;
    use super::*;

    const UUIDS: [&str; 4] = ["GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44"];

    fn four() -> Vec<Gpu> {
        (0..)
            .zip(UUIDS)
            .map(|(index, uuid)| Gpu { index, uuid: Some(uuid.to_owned()), ..Gpu::default() })
            .collect()
    }

    #[test]
    fn the_rule_that_hides_all_is_named() {
        for (value, said) in [
            ("", "means the CPU"),
            (" -1 ", "means the CPU"),
            ("8,9", "no device 8: the numbers here are 0 to 3"),
            ("4", "no device 4"),
            ("0,0", "names 0 twice"),
            ("1,01", "names 01 twice"),
            ("-1,0", "\"-1\" is no number"),
            ("NoDevFiles", "\"NoDevFiles\" is no number"),
            ("+", "\"+\" is no number"),
            ("GPU-zz,GPU-aa11", "no GPU here has the UUID GPU-zz"),
            ("GPU-aa", "GPU-aa begins the UUIDs of 2 GPUs"),
            ("GPU-cc44,GPU-cc44", "names GPU-cc44 twice"),
            ("GPU-cc44,GPU-cc", "name one GPU"),
            ("MIG-1,MIG-1", "names MIG-1 twice"),
        ] {
            assert!(visible(Some(value), &four()).is_empty(), "{value:?} hides all");
            let why = why_none(value, &four());
            assert!(why.en.contains(said), "{value:?}: {}", why.en);
        }
    }

    #[test]
    fn only_numbers_and_uuids_ask_for_a_gpu() {
        for (value, asks) in [
            ("0", true),
            (" 3,x", true),
            ("GPU-1", true),
            ("MIG-1", true),
            ("", false),
            ("-1", false),
            ("none", false),
            ("void", false),
            ("NoDevFiles", false),
        ] {
            assert_eq!(names_a_gpu(value), asks, "{value:?}");
        }
    }
}
