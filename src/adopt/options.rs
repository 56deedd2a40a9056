//! Options of a launcher that are about neither sizes nor places: what becomes of each, and why.

use settings::launchers::LauncherKind;
use settings::torchrun_options::{Becomes, TorchrunOption};
use text::lang::Text;
use text::text;

use crate::classes::{Note, NoteKind};
use crate::values::Expanded;

/// Options of accelerate whose work ranklaunch does.
#[rustfmt::skip]
pub(crate) const ACCELERATE_NEEDLESS: &[&str] = &[
    "--multi-gpu", "--same-network", "--gpu-ids", "--quiet", "-q", "--debug", "--tee", "-t", "--role",
    "--num-cpu-threads-per-process", "--enable-cpu-affinity",
];

/// An option of torchrun that is about neither sizes nor places.
pub(crate) fn torchrun_option(
    flag: &str,
    value: Option<&Expanded>,
    options: &mut Vec<String>,
    notes: &mut Vec<Note>,
) {
    let option = match flag {
        "-t" => "tee",
        "-r" => "redirects",
        _ => flag.trim_start_matches('-'),
    };
    let row = TorchrunOption::named(option);
    match row.map(|row| row.becomes) {
        Some(Becomes::Setting(name)) => {
            let value = value.map(Expanded::tidy).unwrap_or_default();
            options.push(format!("--{name} {value}"));
        }
        Some(Becomes::Start) => {}
        Some(becomes) => {
            let because = becomes.because().unwrap_or_else(|| match option {
                "rdzv-id" => settings::torchrun_options::told_apart(),
                "rdzv-conf" => text!(
                    "--wait-timeout is how long nodes are awaited",
                    "等待节点的时间由 --wait-timeout 指定"
                ),
                _ => text!("ranklaunch does without it", "ranklaunch 不需要它"),
            });
            let Text { en, zh } = because;
            notes.push(Note {
                kind: NoteKind::Unnecessary,
                text: text!("{flag}: {en}", "{flag}：{zh}"),
            });
        }
        None if ["--use-env", "--numa-binding", "--logs-specs"].contains(&flag) => {
            notes.push(Note {
                kind: NoteKind::Unnecessary,
                text: match flag {
                    "--numa-binding" => text!("{flag}: --bind numa", "{flag}：--bind numa"),
                    _ => text!(
                        "{flag}: every rank has LOCAL_RANK",
                        "{flag}：每个 rank 都有 LOCAL_RANK"
                    ),
                },
            });
        }
        None => notes.push(Note {
            kind: NoteKind::NotUnderstood,
            text: text!("torchrun has no option {flag}", "torchrun 没有选项 {flag}"),
        }),
    }
}

/// An option of a launcher that ranklaunch does without.
pub(crate) fn needless(flag: &str, value: Option<&Expanded>, kind: LauncherKind) -> Note {
    let shown = value.map(|value| format!("{flag} {}", value.source)).unwrap_or(flag.to_owned());
    let (kind, text) = match (kind, flag) {
        (_, "--include" | "-i" | "--gpu-ids") => (
            NoteKind::Unnecessary,
            text!(
                "{shown}: CUDA_VISIBLE_DEVICES says the same",
                "{shown}：由 CUDA_VISIBLE_DEVICES 表示"
            ),
        ),
        (_, "--hostfile" | "-H") => (
            NoteKind::NotUnderstood,
            text!(
                "{shown}: ranklaunch is started on every host; --nodes host0,host1 is the same line on each",
                "{shown}：ranklaunch 在每台主机上启动；--nodes host0,host1 在各主机上是同一行"
            ),
        ),
        (_, "--exclude") => (
            NoteKind::NotUnderstood,
            text!(
                "{shown}: set CUDA_VISIBLE_DEVICES to the others",
                "{shown}：请把 CUDA_VISIBLE_DEVICES 设为其余 GPU"
            ),
        ),
        (LauncherKind::Deepspeed, "--bind-cores-to-rank" | "--bind-core-list") => {
            (NoteKind::Unnecessary, text!("{shown}: --bind numa", "{shown}：--bind numa"))
        }
        (LauncherKind::Deepspeed, "--autotuning") => (
            NoteKind::NotUnderstood,
            text!("{shown}: deepspeed itself does that", "{shown}：只有 deepspeed 自己能做"),
        ),
        _ => (
            NoteKind::Unnecessary,
            text!("{shown}: ranklaunch does without it", "{shown}：ranklaunch 不需要它"),
        ),
    };
    Note { kind, text }
}
