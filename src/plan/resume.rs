//! Chooses the checkpoint from which the program goes on, as far as one node can: the newest whole one of the folder.
//!
//! Takes what was found in the folder; gives the choice, and says why newer checkpoints do not count. With several nodes
//! the muster then takes the newest that every node has; without a muster the nodes could choose different ones, and
//! nothing is started.

use std::path::PathBuf;

use crate::{Membership, Notes, Resume, Scope, placeholders};
use node::observe::{CheckpointFacts, Facts, SeenCheckpoint};
use settings::{Placeholder, Program, Settings, Sourced, WithoutCheckpoint};
use text::lang::Text;
use text::text;
use verdict::{Id, Refusal, Warning};

/// Newer checkpoints that are named with what they lack.
const NAMED: usize = 3;

/// The newest whole checkpoint.
pub fn newest(facts: &CheckpointFacts) -> Option<&SeenCheckpoint> {
    facts.found.iter().find(|one| one.missing.is_empty())
}

impl From<&SeenCheckpoint> for Resume {
    fn from(seen: &SeenCheckpoint) -> Resume {
        Resume { path: seen.path.clone(), step: seen.step }
    }
}

/// The placeholders of a checkpoint that the arguments name.
fn named(program: &Program) -> Option<&'static str> {
    let names = [Placeholder::Checkpoint, Placeholder::CheckpointStep].map(Placeholder::name);
    let words = program.words();
    names.into_iter().find(|name| words.iter().any(|word| placeholders::mentions(word, name)))
}

/// The refusal of a folder that cannot be read: a start from the beginning could overwrite what it holds.
pub fn unreadable(folder: &Sourced<PathBuf>, problem: &Text) -> Refusal {
    let (shown, source) = (folder.value.display(), &folder.source);
    let (en, zh) = (&problem.en, &problem.zh);
    Refusal::new(
        Id::CheckpointUnread,
        text!(
            "the checkpoints below {shown} [{source}] cannot be read: {en}",
            "无法读取 {shown} [{source}] 下的检查点：{zh}"
        ),
        text!(
            "mount it on this node, or correct --checkpoint-dir; ranklaunch checkpoint {shown} shows it",
            "请在本节点挂载该目录，或更正 --checkpoint-dir；可用 ranklaunch checkpoint {shown} 查看"
        ),
    )
}

/// # Errors
/// When a placeholder has no folder, no checkpoint exists where one is required, or nodes cannot agree on one.
pub(crate) fn choose(
    settings: &Settings,
    facts: &Facts,
    program: &Program,
    membership: &Membership,
    scope: Scope,
    notes: &mut Notes,
) -> Result<(), Refusal> {
    let (Some(folder), Some(found)) = (&settings.checkpoint_dir, &facts.checkpoints) else {
        return match named(program) {
            Some(name) if settings.checkpoint_dir.is_none() => Err(Refusal::new(
                Id::CheckpointFolder,
                text!(
                    "an argument names {{{name}}}, but no folder of checkpoints is set",
                    "参数中使用了 {{{name}}}，但未设置检查点目录"
                ),
                text!(
                    "--checkpoint-dir DIR, or [checkpoint] dir in the profile; {{{{{name}}}}} passes {{{name}}} on unchanged",
                    "请设置 --checkpoint-dir DIR 或配置文件的 [checkpoint] dir；{{{{{name}}}}} 会原样传递 {{{name}}}"
                ),
            )),
            _ => Ok(()),
        };
    };
    let (shown, source) = (folder.value.display(), &folder.source);
    let cannot_agree = !scope.has_muster(settings) || membership.elastic.is_some();
    if membership.members() > 1 && cannot_agree {
        return Err(Refusal::new(
            Id::CheckpointAlone,
            text!(
                "{shown} [{source}] holds checkpoints, but without a muster the nodes may go on from different ones",
                "{shown} [{source}] 用于检查点，但没有集结时各节点可能从不同的检查点继续",
            ),
            text!(
                "--muster auto on all nodes; or leave out --checkpoint-dir and let the program choose",
                "请在所有节点上使用 --muster auto；或去掉 --checkpoint-dir，由程序自行选择"
            ),
        ));
    }
    if let Some(problem) = &found.unread {
        return Err(unreadable(folder, problem));
    }
    let newer = found.found.iter().take_while(|one| !one.missing.is_empty()).take(NAMED);
    let newer: Vec<Text> = newer.map(SeenCheckpoint::lack).collect();
    let joined = |of: fn(&Text) -> &str| newer.iter().map(of).collect::<Vec<_>>().join("; ");
    let (skipped, skipped_zh) = (joined(|text| &text.en), joined(|text| &text.zh));
    let because = match newer.is_empty() {
        true => text!("the newest one", "最新的检查点"),
        false => {
            text!("the newest whole one; not {skipped}", "最新的完整检查点；未选 {skipped_zh}")
        }
    };
    match newest(found) {
        Some(chosen) => notes.decide("checkpoint", chosen.path.display(), because, &folder.source),
        None if settings.checkpoint_missing.value == WithoutCheckpoint::Refuse => {
            let rule = &settings.checkpoint_missing.source;
            let or_none = |words: String| if words.is_empty() { "-".to_owned() } else { words };
            let (found, found_zh) = (or_none(skipped), or_none(skipped_zh));
            return Err(Refusal::new(
                Id::CheckpointMissing,
                text!(
                    "no whole checkpoint below {shown} [{source}] (found: {found}), and one is required [{rule}]",
                    "{shown} [{source}] 下没有完整的检查点（找到：{found_zh}），而设置要求必须有 [{rule}]",
                ),
                text!(
                    "--checkpoint-missing omit starts from the beginning",
                    "--checkpoint-missing omit 则从头开始"
                ),
            ));
        }
        None => {
            notes.decide(
                "checkpoint",
                "none",
                text!("no whole one below {shown}", "{shown} 下没有完整的检查点"),
                &folder.source,
            );
            if !newer.is_empty() {
                notes.warnings.push(Warning::new(
                    Id::CheckpointMissing,
                    text!(
                        "the program starts from the beginning: no checkpoint below {shown} is whole: {skipped}",
                        "程序将从头开始：{shown} 下没有完整的检查点：{skipped_zh}"
                    ),
                    text!(
                        "--checkpoint-missing refuse starts nothing then",
                        "--checkpoint-missing refuse 则拒绝启动"
                    ),
                ));
            }
        }
    }
    Ok(())
}
