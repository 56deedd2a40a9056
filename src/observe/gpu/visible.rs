//! What CUDA_VISIBLE_DEVICES leaves, by PyTorch's rules.
//!
//! torch counts GPUs with its own reading of the variable
//! (`torch.cuda._parse_visible_devices`), and that count is what a rank compares
//! its local rank with, so these rules are torch's, oddities included.

use crate::observe::{Gpu, VisibleGpu};

/// The GPUs of `gpus` that a process with this CUDA_VISIBLE_DEVICES sees, in its order.
///
/// For a MIG list torch asks the CUDA runtime, which gives one instance per
/// process; the first is taken, on the parent GPU as far as it can be told.
pub fn visible(value: Option<&str>, gpus: &[Gpu]) -> Vec<VisibleGpu> {
    let Some(value) = value else {
        return (0..gpus.len()).map(|gpu| VisibleGpu { gpu, token: gpu.to_string() }).collect();
    };
    // The first element alone decides what kind of list it is.
    if value.starts_with("GPU-") {
        by_uuid(&with_prefix(value, "GPU-"), gpus)
    } else if value.starts_with("MIG-") {
        with_prefix(value, "MIG-")
            .first()
            .and_then(|token| Some(seen(parent_of_mig(token, gpus)?, token)))
            .into_iter()
            .collect()
    } else {
        by_ordinal(value, gpus.len())
    }
}

fn seen(gpu: usize, token: &str) -> VisibleGpu {
    VisibleGpu { gpu, token: token.to_owned() }
}

/// The leading elements that have the prefix; none at all when one is repeated.
fn with_prefix<'a>(value: &'a str, prefix: &str) -> Vec<&'a str> {
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

/// Ends at the first unknown or ambiguous UUID; none at all when two name one GPU.
fn by_uuid(tokens: &[&str], gpus: &[Gpu]) -> Vec<VisibleGpu> {
    // Without any UUID (device nodes alone) the tokens can only be counted; the
    // CUDA runtime would find as many.
    if gpus.iter().all(|gpu| gpu.uuid.is_none()) {
        return tokens
            .iter()
            .take(gpus.len())
            .enumerate()
            .map(|(at, token)| seen(at, token))
            .collect();
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

/// `MIG-GPU-<uuid>/<gi>/<ci>` of drivers before 470 names its parent. A plain
/// MIG UUID does not: then the first GPU in MIG mode, or the first of all.
fn parent_of_mig(token: &str, gpus: &[Gpu]) -> Option<usize> {
    let named = token.strip_prefix("MIG-").and_then(|rest| rest.split('/').next());
    gpus.iter()
        .position(|gpu| gpu.uuid.is_some() && gpu.uuid.as_deref() == named)
        .or_else(|| gpus.iter().position(|gpu| gpu.mig))
        .or(if gpus.is_empty() { None } else { Some(0) })
}

/// Ends at the first element that is no number, is negative, or is beyond the
/// last GPU; none at all when a number is repeated before that.
fn by_ordinal(value: &str, count: usize) -> Vec<VisibleGpu> {
    let mut numbers: Vec<(usize, &str)> = Vec::new();
    for token in value.split(',').map(str::trim) {
        let Some(number) = leading_number(token) else { break };
        if numbers.iter().any(|(before, _)| *before == number) {
            return Vec::new();
        }
        numbers.push((number, token));
    }
    // The cut comes after the repetition is looked for, as torch does it.
    numbers
        .into_iter()
        .take_while(|(number, _)| *number < count)
        .map(|(number, token)| seen(number, token))
        .collect()
}

/// What strtoul makes of it: `2abc` is 2, `+3` is 3, `-1` and `x` are nothing.
/// A number too large for this machine is as good as beyond the last GPU.
fn leading_number(token: &str) -> Option<usize> {
    let digits = token.strip_prefix('+').unwrap_or(token);
    let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
    let digits = digits.get(..end).filter(|digits| !digits.is_empty())?;
    Some(digits.parse().unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skipped::skipped;
    use std::process::Command;

    const UUIDS: [&str; 4] = ["GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44"];

    /// value → positions of four GPUs.
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
    fn the_rules_are_torchs() {
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
    fn a_token_is_what_the_user_wrote() {
        let tokens: Vec<String> =
            visible(Some("GPU-cc,GPU-bb33"), &four()).into_iter().map(|seen| seen.token).collect();
        assert_eq!(tokens, ["GPU-cc", "GPU-bb33"]);
    }

    #[test]
    fn a_mig_list_is_one_device_on_its_parent() {
        let mut gpus = four();
        assert_eq!(positions(Some("MIG-GPU-bb33/1/0,MIG-GPU-bb33/2/0"), &gpus), [2]);
        gpus[1].mig = true;
        assert_eq!(positions(Some("MIG-0a1b"), &gpus), [1]);
        assert_eq!(positions(Some("MIG-0a1b"), &[]), [0; 0]);
    }

    #[test]
    fn uuids_can_be_counted_where_no_source_knows_them() {
        let bare = vec![Gpu::default(), Gpu::default()];
        assert_eq!(positions(Some("GPU-x,GPU-y,GPU-z"), &bare), [0, 1]);
    }

    /// Runs the table through the installed torch itself.
    #[test]
    fn torch_itself_agrees() {
        let python = std::env::var_os("RANKLAUNCH_TEST_PYTHON").map_or_else(
            || {
                let home = std::env::home_dir().unwrap_or_default();
                home.join(".cache/ranklaunch/venv/bin/python")
            },
            Into::into,
        );
        if !python.exists() {
            skipped(format_args!("no python with torch at {}", python.display()));
            return;
        }
        let script = "
import json, os, sys
import torch.cuda as c
table = json.loads(sys.argv[1]); uuids = json.loads(sys.argv[2]); out = []
for value in table:
    os.environ['CUDA_VISIBLE_DEVICES'] = value
    seen = c._parse_visible_devices()
    if seen and type(seen[0]) is str:
        seen = c._transform_uuid_to_ordinals(seen, uuids)
    for at, number in enumerate(seen):
        if number >= len(uuids):
            seen = seen[:at]
            break
    out.append(seen)
print(json.dumps(out))
";
        let values: Vec<&str> = TABLE.iter().map(|(value, _)| *value).collect();
        let output = Command::new(&python)
            .args(["-c", script])
            .arg(serde_json::to_string(&values).expect("json"))
            .arg(serde_json::to_string(&UUIDS).expect("json"))
            .output()
            .expect("python runs");
        if !output.status.success() {
            skipped(format_args!("no torch there: {}", String::from_utf8_lossy(&output.stderr)));
            return;
        }
        let torch: Vec<Vec<usize>> =
            serde_json::from_slice(&output.stdout).expect("positions as JSON");
        for ((value, _), torch) in TABLE.iter().zip(torch) {
            assert_eq!(positions(Some(value), &four()), torch, "CUDA_VISIBLE_DEVICES={value:?}");
        }
    }
}
