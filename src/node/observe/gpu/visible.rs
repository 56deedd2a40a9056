//! The GPUs that CUDA_VISIBLE_DEVICES leaves visible, by PyTorch's rules, and the rule by which it hides all of them.
//!
//! torch counts GPUs by its own parsing of the variable (`torch.cuda._parse_visible_devices`), and a rank compares its
//! local rank with that count. So these rules are torch's rules, including their oddities.

use crate::observe::{Gpu, GpuFacts, VisibleGpu};
use text::lang::Text;
use text::text;

/// The GPUs of `gpus` that a process with this CUDA_VISIBLE_DEVICES sees, in its order.
///
/// For a MIG list torch asks the CUDA runtime, which gives one instance per process. The first instance is used, on its
/// parent GPU if the parent is known.
pub fn visible(value: Option<&str>, gpus: &[Gpu]) -> Vec<VisibleGpu> {
    let Some(value) = value else { return every(gpus) };
    let Some(kind) = kind_of_uuids(value) else { return by_ordinal(value, gpus.len()) };
    let tokens = with_prefix(value, kind);
    match tokens.first().filter(|_| kind == "MIG-") {
        Some(token) => {
            parent_of_mig(token, gpus).map(|parent| seen(parent, token)).into_iter().collect()
        }
        None => by_uuid(&tokens, gpus),
    }
}

/// All GPUs, by CUDA's numbers under PCI_BUS_ID. If a GPU is missing from NVML's list (a lost GPU), CUDA's numbers of
/// the others are unknown, so UUIDs are used.
fn every(gpus: &[Gpu]) -> Vec<VisibleGpu> {
    let counted = (0..).zip(gpus).all(|(position, gpu)| gpu.index == position);
    let uuids: Option<Vec<&str>> = gpus.iter().map(|gpu| gpu.uuid.as_deref()).collect();
    match uuids.filter(|_| !counted) {
        Some(uuids) => uuids.into_iter().enumerate().map(|(gpu, uuid)| seen(gpu, uuid)).collect(),
        None => (0..gpus.len()).map(|gpu| seen(gpu, &gpu.to_string())).collect(),
    }
}

fn seen(gpu: usize, token: &str) -> VisibleGpu {
    VisibleGpu { gpu, token: token.to_owned() }
}

/// The prefix of a list of UUIDs; only its first element decides the kind of a list.
fn kind_of_uuids(value: &str) -> Option<&'static str> {
    ["GPU-", "MIG-"].into_iter().find(|kind| value.starts_with(kind))
}

/// The leading elements that have the prefix; empty if an element is repeated.
pub(super) fn with_prefix<'a>(value: &'a str, prefix: &str) -> Vec<&'a str> {
    let mut tokens = Vec::new();
    for token in value.split(',') {
        if tokens.contains(&token) {
            return Vec::new();
        }
        if !token.starts_with(prefix) {
            break;
        }
        tokens.push(token);
    }
    tokens
}

/// The GPUs for a list of UUIDs. The list ends at the first unknown or ambiguous UUID; the result is empty if two
/// elements name one GPU.
fn by_uuid(tokens: &[&str], gpus: &[Gpu]) -> Vec<VisibleGpu> {
    // If no UUID is known (only device nodes), the tokens can only be counted; the CUDA runtime would find the same
    // number.
    if gpus.iter().all(|gpu| gpu.uuid.is_none()) {
        let counted = (0..gpus.len()).zip(tokens);
        return counted.map(|(at, token)| seen(at, token)).collect();
    }
    let mut list: Vec<VisibleGpu> = Vec::new();
    for token in tokens {
        let mut matching = gpus
            .iter()
            .enumerate()
            .filter(|(_, gpu)| gpu.uuid.as_deref().is_some_and(|uuid| uuid.starts_with(token)));
        let (Some((gpu, _)), None) = (matching.next(), matching.next()) else { break };
        if list.iter().any(|before| before.gpu == gpu) {
            return Vec::new();
        }
        list.push(seen(gpu, token));
    }
    list
}

/// The parent GPU of a MIG device. `MIG-GPU-<uuid>/<gi>/<ci>` of drivers before 470 names the parent. A plain MIG UUID
/// does not: then the parent is the first GPU in MIG mode, or the first of all GPUs.
fn parent_of_mig(token: &str, gpus: &[Gpu]) -> Option<usize> {
    let named = token.strip_prefix("MIG-").and_then(|rest| rest.split('/').next());
    let has = |gpu: &Gpu| {
        let instances = gpu.health.mig_devices.iter().flat_map(|all| &all.devices);
        instances.filter_map(|one| one.uuid.as_deref()).any(|uuid| uuid == token)
    };
    gpus.iter()
        .position(has)
        .or_else(|| gpus.iter().position(|gpu| gpu.uuid.is_some() && gpu.uuid.as_deref() == named))
        .or_else(|| gpus.iter().position(|gpu| gpu.mig))
        .or(if gpus.is_empty() { None } else { Some(0) })
}

/// The GPUs for a list of numbers. The list ends at the first element that is not a number, is negative, or is beyond
/// the last GPU; the result is empty if a number is repeated before that.
fn by_ordinal(value: &str, count: usize) -> Vec<VisibleGpu> {
    let mut numbers: Vec<(&str, &str)> = Vec::new();
    for token in elements(value) {
        let Element::Number(digits) = element(token) else { break };
        if numbers.iter().any(|(before, _)| *before == digits) {
            return Vec::new();
        }
        numbers.push((digits, token));
    }
    // The list is cut only after the search for repetitions, as torch does.
    numbers
        .into_iter()
        // A number too large for this machine counts as beyond the last GPU.
        .map(|(digits, token)| (if digits.is_empty() { Ok(0) } else { digits.parse() }, token))
        .map_while(|(number, token)| Some((number.ok().filter(|number| *number < count)?, token)))
        .map(|(number, token)| seen(number, token))
        .collect()
}

/// The first element that names no device in a form that CUDA documents. Documented forms are a number, a negative
/// number that ends the list, and a UUID in a list of UUIDs. From `0-3` CUDA reads the 0, it stops at `x`, and torch
/// fails on some forms, so the rest of such a list would be idle.
pub fn unreadable(value: &str) -> Option<&str> {
    let of_kind = kind_of_uuids(value);
    let is_device = |one: &&str| match of_kind {
        Some(kind) => one.starts_with(kind),
        None => {
            let digits = one.strip_prefix(['+', '-']).unwrap_or(one);
            let all = digits.bytes().all(|byte| byte.is_ascii_digit());
            all && (1..=MOST_DIGITS).contains(&digits.len())
        }
    };
    // A trailing comma adds no element.
    let list = value.strip_suffix(',').unwrap_or(value);
    match of_kind {
        Some(_) => list.split(',').find(|one| !is_device(one)),
        None => elements(list).find(|one| !is_device(one)),
    }
}

/// The elements without the white space that Python's `str.strip` removes: Unicode's and the
/// four ASCII separators.
pub(super) fn elements(value: &str) -> impl Iterator<Item = &str> {
    let is_space = |letter: char| letter.is_whitespace() || matches!(letter, '\x1c'..='\x1f');
    value.split(',').map(move |element| element.trim_matches(is_space))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element<'a> {
    /// The element's digits without leading zeros; empty for 0.
    Number(&'a str),
    /// The element is negative, or not a number.
    End,
}

/// Maximum number of digits that Python converts to a number since 3.11 (sys.set_int_max_str_digits).
const MOST_DIGITS: usize = 4300;

/// Parses an element like torch's `_strtoul`: `2abc` is 2, `+3` is 3, `-0` is 0, and `-1` and `x` end the list. A sign
/// alone is a ValueError in torch. Digits of other scripts are numbers for Python but not for CUDA.
pub(super) fn element(token: &str) -> Element<'_> {
    let unsigned = token.strip_prefix(['+', '-']).unwrap_or(token);
    let end = unsigned.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(unsigned.len());
    let (digits, rest) = unsigned.split_at(end);
    let foreign = rest.chars().next().is_some_and(|next| !next.is_ascii() && next.is_numeric());
    let number = digits.trim_start_matches('0');
    let is_negative = token.starts_with('-') && !number.is_empty();
    if foreign || digits.is_empty() || digits.len() > MOST_DIGITS || is_negative {
        return Element::End;
    }
    Element::Number(number)
}

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
    kind_of_uuids(value).is_some() || matches!(element(first), Element::Number(_))
}

/// The rule by which this value hides all of these GPUs.
fn why_none(value: &str, gpus: &[Gpu]) -> Text {
    let first = elements(value).next().unwrap_or_default();
    if means_cpu(value) {
        return text!("empty or -1, it means the CPU", "其值为空或 -1，表示使用 CPU");
    }
    let of_kind = kind_of_uuids(value);
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
    use super::*;

    const UUIDS: [&str; 4] = ["GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44"];

    /// Value, and the positions of four GPUs that it selects.
    const TABLE: &[(&str, &[usize])] = &[
        ("", &[]),
        ("0", &[0]),
        ("2,0", &[2, 0]),
        (" 1 , 3", &[1, 3]),
        ("1gpu2,2ampere", &[1, 2]),
        ("+2", &[2]),
        ("0,-1,1", &[0]),
        ("-1", &[]),
        ("NoDevFiles", &[]),
        ("0,x,1", &[0]),
        ("0,,1", &[0]),
        ("0,0", &[]),
        ("0,1,1", &[]),
        ("0,9,0", &[]),
        ("0,9,1", &[0]),
        ("4", &[]),
        ("3,4", &[3]),
        ("1,GPU-aa11", &[1]),
        ("0x1", &[0]),
        ("-0,1", &[0, 1]),
        ("007", &[]),
        ("00,03", &[0, 3]),
        ("2,99999999999999999999,99999999999999999998", &[2]),
        ("\u{1c}1\u{a0}", &[1]),
        ("0,+,1", &[0]),
        ("1,\u{663}", &[1]),
        (" GPU-bb33", &[]),
        ("GPU-bb33", &[2]),
        ("GPU-b", &[2]),
        ("GPU-aa", &[]),
        ("GPU-cc44,GPU-aa", &[3]),
        ("GPU-cc44,GPU-zz,GPU-bb33", &[3]),
        ("GPU-cc44,0", &[3]),
        ("GPU-cc44, GPU-aa11", &[3]),
        ("GPU-cc44,GPU-cc44", &[]),
        ("GPU-cc44,GPU-cc", &[]),
        ("GPU-cc44,GPU-zz,GPU-cc44", &[]),
    ];

    fn four() -> Vec<Gpu> {
        (0..)
            .zip(UUIDS)
            .map(|(index, uuid)| Gpu { index, uuid: Some(uuid.to_owned()), ..Gpu::default() })
            .collect()
    }

    fn positions(value: Option<&str>, gpus: &[Gpu]) -> Vec<usize> {
        visible(value, gpus).iter().map(|seen| seen.gpu).collect()
    }

    #[test]
    fn visible_gpus_follow_the_rules_of_torch() {
        for (value, expected) in TABLE {
            assert_eq!(
                positions(Some(value), &four()),
                *expected,
                "CUDA_VISIBLE_DEVICES={value:?}"
            );
        }
        assert_eq!(positions(None, &four()), [0, 1, 2, 3]);
    }

    #[test]
    fn elements_that_name_no_device_are_found() {
        for (value, named) in [
            ("0-3", "0-3"),
            ("0:1", "0:1"),
            ("0..3", "0..3"),
            ("0;1", "0;1"),
            ("0 1", "0 1"),
            ("0x1", "0x1"),
            ("1gpu2,2", "1gpu2"),
            ("0,x,1", "x"),
            ("0,,1", ""),
            ("0,+", "+"),
            ("0,1\u{b2}", "1\u{b2}"),
            ("0,GPU-aa11", "GPU-aa11"),
            ("GPU-cc44,0", "0"),
            ("GPU-cc44, GPU-aa11", " GPU-aa11"),
            ("MIG-1,GPU-aa11", "GPU-aa11"),
        ] {
            assert_eq!(unreadable(value), Some(named), "{value:?}");
        }
        for value in
            ["0", "0, 1 ,2", "0,1,", "+1,-0,007", "0,-1,1", "0,9", "GPU-a,GPU-b,", "MIG-1,MIG-2"]
        {
            assert_eq!(unreadable(value), None, "{value:?}");
        }
        assert!(unreadable(&"9".repeat(4301)).is_some() && unreadable(&"9".repeat(4300)).is_none());
    }

    #[test]
    fn gpus_beside_a_lost_gpu_use_uuids() {
        let mut gpus = four();
        gpus.remove(1);
        let tokens: Vec<String> = visible(None, &gpus).into_iter().map(|seen| seen.token).collect();
        assert_eq!(tokens, ["GPU-aa11", "GPU-bb33", "GPU-cc44"]);
    }

    #[test]
    fn token_is_the_text_of_the_user() {
        let tokens: Vec<String> =
            visible(Some("GPU-cc,GPU-bb33"), &four()).into_iter().map(|seen| seen.token).collect();
        assert_eq!(tokens, ["GPU-cc", "GPU-bb33"]);
    }

    #[test]
    fn mig_list_is_one_device_on_its_parent() {
        let mut gpus = four();
        assert_eq!(positions(Some("MIG-GPU-bb33/1/0,MIG-GPU-bb33/2/0"), &gpus), [2]);
        gpus[1].mig = true;
        assert_eq!(positions(Some("MIG-0a1b"), &gpus), [1]);
        assert_eq!(positions(Some("MIG-0a1b"), &[]), [0; 0]);
    }

    #[test]
    fn uuids_are_counted_if_no_source_knows_them() {
        let bare = vec![Gpu::default(), Gpu::default()];
        assert_eq!(positions(Some("GPU-x,GPU-y,GPU-z"), &bare), [0, 1]);
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
