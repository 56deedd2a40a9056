//! Chooses the checkpoint from which the program goes on, as far as one node can: the newest whole one of the folder.
//!
//! Takes what was found in the folder; gives the choice, and says why newer checkpoints do not count. With several nodes
//! the muster then takes the newest that every node has; without a muster the nodes could choose different ones, and
//! nothing is started.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::variables::overrides;
use crate::{Decision, Membership, Notes, Plan, Resume, Scope, placeholders};
use node::observe::{CheckpointFacts, Facts, SeenCheckpoint};
use settings::{EnvSetting, Placeholder, Program, Settings, Source, Sourced, WithoutCheckpoint};
use text::lang::Text;
use text::mask::mask_args;
use text::text;
use verdict::{Id, Refusal, Warning};

/// Newer checkpoints that are named with what they lack.
const NAMED: usize = 3;

/// The newest whole checkpoint. `own`: the ranks of this node, first and last, if other nodes have ranks too; then one
/// of which only the files of these ranks are here is whole as far as this node saves it.
pub fn newest(found: &[SeenCheckpoint], own: Option<(u32, u32)>) -> Option<&SeenCheckpoint> {
    let is_own = |one: &SeenCheckpoint| {
        one.ranks.as_ref().zip(own).is_some_and(|(it, own)| it.here == [own])
    };
    found.iter().find(|one| one.missing.is_empty() || is_own(one))
}

/// The newest checkpoint that the nodes may agree on when they meet: the others may have the files of the ranks that
/// this one lacks.
fn expected(facts: &CheckpointFacts, is_alone: bool) -> Option<&SeenCheckpoint> {
    facts.found.iter().find(|one| one.missing.is_empty() || (!is_alone && one.ranks.is_some()))
}

/// The refusal of a job whose nodes have agreed that there is no checkpoint, if its settings require one. `are_seen`: nodes
/// see whole ones, but none in common; a start from the beginning could overwrite these, so it has to be asked for.
pub fn refused_without(settings: &Settings, are_seen: bool) -> Option<Refusal> {
    let folder = settings.checkpoint_dir.as_ref()?;
    let Sourced { value, source: rule } = &settings.checkpoint_missing;
    let (shown, source) = (folder.value.display(), &folder.source);
    if *value != WithoutCheckpoint::Refuse {
        return (are_seen && *rule == Source::Default).then(|| {
            Refusal::new(
                Id::CheckpointMissing,
                text!(
                    "nodes see whole checkpoints below {shown} [{source}], but none that all of them can read: a start from the beginning could overwrite these",
                    "有节点能看到 {shown} [{source}] 下的完整检查点，但没有所有节点都能读取的：从头开始可能会覆盖它们"
                ),
                text!(
                    "mount the folder on all nodes, or copy what is missing: ranklaunch checkpoint {shown} on each node shows what it has; --checkpoint-missing omit starts from the beginning",
                    "请在所有节点上挂载该目录，或复制缺少的部分：在各节点上运行 ranklaunch checkpoint {shown} 可查看其检查点；--checkpoint-missing omit 则从头开始"
                ),
            )
        });
    }
    Some(Refusal::new(
        Id::CheckpointMissing,
        text!(
            "no checkpoint below {shown} [{source}] is one that all nodes can read, and one is required [{rule}]",
            "{shown} [{source}] 下没有所有节点都能读取的检查点，而设置要求必须有 [{rule}]",
        ),
        text!(
            "ranklaunch checkpoint {shown} on each node shows what it has; --checkpoint-missing omit starts from the beginning",
            "在各节点上运行 ranklaunch checkpoint {shown} 可查看其检查点；--checkpoint-missing omit 则从头开始"
        ),
    ))
}

impl From<&SeenCheckpoint> for Resume {
    fn from(seen: &SeenCheckpoint) -> Resume {
        Resume { path: seen.path.clone(), step: seen.step }
    }
}

/// The placeholders of a checkpoint with their values.
pub(crate) fn values(resume: Option<&Resume>) -> [(Placeholder, Option<String>); 2] {
    let path = resume.map(|resume| resume.path.display().to_string());
    let step = resume.and_then(|resume| resume.step).map(|step| step.to_string());
    [(Placeholder::Checkpoint, path), (Placeholder::CheckpointStep, step)]
}

/// The placeholders of a checkpoint that have no value.
pub(crate) fn absent(resume: Option<&Resume>) -> Vec<Placeholder> {
    values(resume).into_iter().filter(|(_, value)| value.is_none()).map(|(name, _)| name).collect()
}

/// The decision about the checkpoint, and its value without one.
const CHECKPOINT: &str = "checkpoint";
const NONE: &str = "none";
/// The decision to leave out what names a placeholder without a value.
const LEFT_OUT: &str = "left out";

/// What is left out of the command and the environment; None: nothing.
pub(crate) fn left_out(left: &[String], resume: Option<&Resume>, source: &str) -> Option<Decision> {
    let because = match resume {
        None => text!("no checkpoint gives them a value", "没有检查点可为其取值"),
        Some(_) => text!("the checkpoint has no step", "检查点没有步数"),
    };
    (!left.is_empty()).then(|| Decision::new(LEFT_OUT, left.join(", "), because, source))
}

/// Makes the decisions of a plan those of its launch, which may go on from another checkpoint than the plan expected.
pub(crate) fn settle(plan: &mut Plan, resume: Option<&Resume>, left: &[String]) {
    let is_alone = plan.membership.members() == 1;
    let value = resume.map_or_else(|| NONE.to_owned(), |one| one.path.display().to_string());
    plan.decisions.retain(|one| one.what != LEFT_OUT);
    let decision = plan.decisions.iter_mut().find(|one| one.what == CHECKPOINT);
    let source = decision.map(|decision| {
        if decision.value != value {
            decision.because = match (is_alone, resume) {
                (true, Some(_)) => {
                    text!("the newest one when the attempt began", "本次尝试开始时最新的检查点")
                }
                (true, None) => {
                    text!("no whole one when the attempt began", "本次尝试开始时没有完整的检查点")
                }
                (false, Some(_)) => {
                    let other = &decision.value;
                    text!(
                        "the newest that all nodes can read; not {other}",
                        "所有节点都能读取的最新检查点；未选 {other}"
                    )
                }
                (false, None) => {
                    text!("none that all nodes can read", "没有所有节点都能读取的检查点")
                }
            };
            decision.value = value;
        }
        decision.source.clone()
    });
    plan.decisions.extend(left_out(left, resume, &source.unwrap_or_default()));
}

/// Refuses a placeholder of a checkpoint that can never have a value, wherever it stands, and one in the middle of a text
/// that would have to be left out whole. `settings` and `program` have their other placeholders replaced.
pub(crate) fn check_names(settings: &Settings, program: &Program) -> Result<(), Refusal> {
    if settings.checkpoint_dir.is_none() {
        let found = naming(settings, program, |_, _| true);
        return found.map_or(Ok(()), |found| Err(no_folder(found)));
    }
    // A checkpoint that is required always has a path, and perhaps no step.
    let is_required = settings.checkpoint_missing.value == WithoutCheckpoint::Refuse;
    let has_value = |name: &str| is_required && name == Placeholder::Checkpoint.name();
    let is_text = |word: &OsStr| word.as_bytes().iter().any(u8::is_ascii_whitespace);
    let found = naming(settings, program, |word, name| is_text(word) && !has_value(name));
    found.map_or(Ok(()), |found| Err(in_a_text(found)))
}

/// The first place that names a placeholder of a checkpoint in such a word, in words, and the name.
fn naming(
    settings: &Settings,
    program: &Program,
    counts: impl Fn(&OsStr, &str) -> bool,
) -> Option<(Text, &'static str)> {
    let named = |word: &OsStr| {
        let names = values(None).map(|(placeholder, _)| placeholder.name());
        names.into_iter().find(|name| placeholders::mentions(word, name) && counts(word, name))
    };
    let arguments = |words: &[OsString]| {
        let (at, name) =
            words.iter().enumerate().find_map(|(at, word)| Some((at, named(word)?)))?;
        let word = mask_args(words).get(at)?.to_string_lossy().into_owned();
        Some((word, name))
    };
    let in_program = || {
        let (word, name) = arguments(program.args())?;
        Some((text!("the argument {word} of the program", "程序参数 {word} "), name))
    };
    let of_engine: Vec<OsString> = settings.engine_args.iter().map(OsString::from).collect();
    let in_engine = || {
        let (word, name) = arguments(&of_engine)?;
        Some((text!("the argument {word} in engine_args", "engine_args 中的参数 {word} "), name))
    };
    let is_replaced = |weak: &EnvSetting| {
        let strong = |one: &EnvSetting| one.name == weak.name && overrides(one);
        !overrides(weak) && settings.env.iter().any(strong)
    };
    let in_variables = || {
        let all = settings.env.iter().filter(|setting| !is_replaced(setting));
        let (setting, name) = all.filter_map(|one| Some((one, named(&one.value)?))).next()?;
        let (variable, source) = (&setting.name, &setting.source);
        let place =
            text!("the variable {variable} [{source}]", "环境变量 {variable} [{source}] 的值");
        Some((place, name))
    };
    in_program().or_else(in_engine).or_else(in_variables)
}

fn no_folder((Text { en, zh }, name): (Text, &str)) -> Refusal {
    Refusal::new(
        Id::CheckpointFolder,
        text!(
            "{en} names {{{name}}}, but no folder of checkpoints is set",
            "{zh}中使用了 {{{name}}}，但未设置检查点目录"
        ),
        text!(
            "--checkpoint-dir DIR, or [checkpoint] dir in the profile; {{{{{name}}}}} passes {{{name}}} on unchanged",
            "请设置 --checkpoint-dir DIR 或配置文件的 [checkpoint] dir；{{{{{name}}}}} 会原样传递 {{{name}}}"
        ),
    )
}

fn in_a_text((Text { en, zh }, name): (Text, &str)) -> Refusal {
    Refusal::new(
        Id::CheckpointText,
        text!(
            "{en} names {{{name}}} in the middle of a text, all of which would be left out where there is no checkpoint",
            "{zh}在一段文本中使用了 {{{name}}}；没有检查点时，整段文本都会被去掉"
        ),
        text!(
            r#"a script uses ${{RANKLAUNCH_RESUME_FROM:+--resume "$RANKLAUNCH_RESUME_FROM"}} instead; --checkpoint-missing refuse allows the text, since there is always a checkpoint then"#,
            r#"脚本中请改用 ${{RANKLAUNCH_RESUME_FROM:+--resume "$RANKLAUNCH_RESUME_FROM"}}；设置 --checkpoint-missing refuse 时必定有检查点，可以这样写"#
        ),
    )
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
            "mount it on this node, or name the folder in which this job saves with --checkpoint-dir; ranklaunch checkpoint {shown} shows it",
            "请在本节点挂载该目录，或用 --checkpoint-dir 指定本任务保存检查点的目录；可用 ranklaunch checkpoint {shown} 查看"
        ),
    )
}

/// # Errors
/// When no checkpoint exists where one is required, or nodes cannot agree on one.
pub(crate) fn choose(
    settings: &Settings,
    facts: &Facts,
    membership: &Membership,
    scope: Scope,
    notes: &mut Notes,
) -> Result<Option<Resume>, Refusal> {
    let (Some(folder), Some(found)) = (&settings.checkpoint_dir, &facts.checkpoints) else {
        return Ok(None);
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
    let expected = expected(found, membership.members() == 1);
    let newer = found.found.iter().take_while(|one| Some(*one) != expected);
    let newer = newer.filter(|one| !one.missing.is_empty()).take(NAMED);
    let newer: Vec<Text> = newer.map(SeenCheckpoint::lack).collect();
    let joined =
        |of: fn(&Text) -> &str, by: &str| newer.iter().map(of).collect::<Vec<_>>().join(by);
    let (skipped, skipped_zh) = (joined(|text| &text.en, "; "), joined(|text| &text.zh, "；"));
    let missing = expected.and_then(|one| one.missing.first());
    let because = match (newer.is_empty(), missing) {
        (_, Some(Text { en, zh })) => text!(
            "the newest one, if the other nodes have the rest: {en} here",
            "最新的检查点，前提是其余节点有其余部分：本节点{zh}"
        ),
        (true, None) => text!("the newest one", "最新的检查点"),
        (false, None) => {
            text!("the newest whole one; not {skipped}", "最新的完整检查点；未选 {skipped_zh}")
        }
    };
    match expected {
        Some(chosen) => notes.decide(CHECKPOINT, chosen.path.display(), because, &folder.source),
        None if settings.checkpoint_missing.value == WithoutCheckpoint::Refuse => {
            let rule = &settings.checkpoint_missing.source;
            let or =
                |words: String, none: &str| if words.is_empty() { none.to_owned() } else { words };
            let (found, found_zh) = (or(skipped, "none"), or(skipped_zh, "无"));
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
                CHECKPOINT,
                NONE,
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
    Ok(expected.map(Resume::from))
}
