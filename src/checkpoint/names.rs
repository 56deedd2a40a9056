//! What the names of checkpoints and of their files say beside the progress: which belong together, which stand beside
//! the weights, which is the last.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeSet;

use crate::progress::{Counted, Found, Place, Told, has_date, is_remarkable, numbers, told, words};
use text::order::InOrder;

/// Whether `name` is `before` and a number.
pub(crate) fn is_numbered(name: &str, before: &str) -> bool {
    let digits = name.strip_prefix(before).unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a folder of this name holds one checkpoint, however many files that are: its name has a number behind a word,
/// or a date beside a word of a save (`CKPT+2024-01-31+12-00-00+00`, `2024-01-31_12-00-00-backup-500-5-0`).
pub(crate) fn is_of_one(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let has = |known: &[&str]| words(&lower).any(|word| known.contains(&word));
    let begins = ["ckpt", "checkpoint"].contains(&words(&lower).next().unwrap_or_default());
    let is_numbered = begins && name.contains(|one: char| one.is_ascii_digit());
    told(name).has_step_or_epoch() || is_numbered || (has(SAVES) && has_date(name))
}

/// Words of saves, of which a folder holds one each.
const SAVES: &[&str] = &["ckpt", "checkpoint", "backup", "snapshot"];

/// Whether numbers without a word are steps, in a folder whose name tells one: `step1_sft/0050000.pt`. Ranks and parts
/// are counted from 0 or 1 (`step_200/0.pt`), and `step_200/model_200.pt` repeats its folder.
pub(crate) fn are_steps(names: &[String], above: Told) -> bool {
    let step = above.place().and_then(Place::step);
    let only = |name: &String| told(name).only?.whole().filter(|only| Some(*only) != step);
    let numbers: BTreeSet<u64> = names.iter().filter_map(only).in_set();
    let (Some(first), Some(last)) = (numbers.first(), numbers.last()) else { return false };
    let count = u64::try_from(numbers.len()).unwrap_or(u64::MAX);
    *first > 1 || last - first >= count
}

/// A name that tells ranks, or parts of which it tells the number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ranked {
    pub(crate) ranks: Vec<u32>,
    /// It says where they stand, too, or on which node they are ranks.
    pub(crate) has_axes: bool,
    /// The number of ranks in all; 0: it does not tell.
    pub(crate) world: u32,
    /// They may be counted from 1 on, as those of `00001-of-00004` are.
    pub(crate) may_begin_at_one: bool,
    /// The name without the ranks, and without their number.
    pub(crate) without: String,
    pub(crate) without_world: String,
}

/// None: it names no rank.
pub(crate) fn ranks(name: &str) -> Option<Ranked> {
    let numbers = numbers(name);
    let is_axis = |one: &Found<'_>| one.counts == Counted::Axis;
    let is_rank = |one: &&Found<'_>| one.counts == Counted::Ranks;
    let ranks: Vec<u32> =
        numbers.iter().filter(is_rank).map(|one| one.digits.parse().ok()).collect::<Option<_>>()?;
    if ranks.is_empty() {
        return None;
    }
    let has_axes = numbers.iter().any(is_axis);
    let is_world =
        |one: &Found<'_>| one.before.ends_with("world_size_") || one.counts == Counted::Shards;
    let world = numbers.iter().find(|one| is_world(one));
    let is_of_parts = world.is_some_and(|one| one.counts == Counted::Shards);
    let world = world.and_then(|one| one.digits.parse().ok()).unwrap_or(0);
    let is_of_rank =
        |one: &Found<'_>| one.before.trim_end_matches(['-', '_', '=']).ends_with("rank");
    let may_begin_at_one = is_of_parts && !numbers.iter().any(is_of_rank);
    let without_those = |is_such: &dyn Fn(&Found<'_>) -> bool| {
        let of =
            |one: &Found<'_>| [one.before, if is_such(one) { "*" } else { one.digits }].concat();
        numbers.iter().map(of).collect::<String>() + numbers.last().map_or(name, |one| one.after)
    };
    let without = without_those(&|one| is_rank(&one) || is_axis(one));
    let without_world = without_those(&|one| is_rank(&one) || is_axis(one) || is_world(one));
    Some(Ranked { ranks, has_axes, world, may_begin_at_one, without, without_world })
}

/// Whether a folder is that of one node: `node_0`, `host-1`.
pub(crate) fn is_node(name: &str) -> bool {
    let word = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
    let known = word.trim_end_matches(['-', '_', '=']).to_ascii_lowercase();
    word.len() < name.len() && ["node", "host", "machine"].contains(&known.as_str())
}

/// Words of files that stand beside the weights.
const ASIDE: &[&str] = &[
    "optimizer",
    "optimizers",
    "optim",
    "scheduler",
    "schedulers",
    "sched",
    "scaler",
    "rng",
    "dataloader",
    "sampler",
    "tokenizer",
    "hparams",
];
/// The same, and words of models and settings: `opt-125m-step-100.pt` may be all that a program saves.
const PERHAPS_ASIDE: &[&str] = &["opt", "random", "recipe", "extra", "args", "config"];
/// What else the names of such files have.
const FILLING: &[&str] =
    &["states", "dict", "lr", "world", "size", "rank", "data", "last", "latest", "best", "final"];
const WEIGHTS: &[&str] = &["model", "weights", "net", "network"];

/// Whether a file is named like one that stands beside the weights: no program starts from an optimizer alone.
pub(crate) fn is_aside(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let mut words = words(&name);
    let has = |known: &[&str]| words.clone().any(|word| known.contains(&word));
    let is_data = words.clone().next() == Some("data") && name.starts_with("data.");
    // `model_300_optimizer.pt`
    let behind = name.rsplit(|letter: char| letter.is_ascii_digit()).next().unwrap_or_default();
    let mut last = self::words(behind);
    if behind.len() < name.len()
        && last.clone().any(|word| ASIDE.contains(&word))
        && !last.any(|word| WEIGHTS.contains(&word) || ["and", "with"].contains(&word))
    {
        return true;
    }
    let is_aside = is_data || has(ASIDE) || (has(PERHAPS_ASIDE) && !has_numbered_setting(&name));
    is_aside && !words.any(|word| WEIGHTS.contains(&word))
}

/// Whether a run is named for the number of its settings: `config7_step500.pt`.
fn has_numbered_setting(name: &str) -> bool {
    const SETTINGS: &[&str] = &["recipe", "args", "config"];
    let is_setting = |one: &Found<'_>| {
        let word = words(one.before).last().unwrap_or_default();
        one.counts == Counted::Unknown && one.before.ends_with(word) && SETTINGS.contains(&word)
    };
    let numbers = numbers(name);
    numbers.len() > 1 && numbers.iter().any(is_setting) && told(name).place().is_some()
}

/// Whether a file that stands aside is none to start from even where nothing else is: its name has no word of a run, as
/// `optimizer_adam_epoch_10.pth` has.
pub(crate) fn is_never_alone(name: &str) -> bool {
    are_known(name, &[ASIDE, PERHAPS_ASIDE, FILLING, WEIGHTS, BARE, NEUTRAL])
}

/// Endings of files.
const ENDS: &[&str] = &["pt", "pth", "ckpt", "bin", "safetensors", "tar", "pyth"];

/// Whether a name has these words only.
fn are_known(name: &str, known: &[&[&str]]) -> bool {
    let name = name.to_ascii_lowercase();
    words(&name).all(|word| ENDS.contains(&word) || known.iter().any(|known| known.contains(&word)))
}

/// Whether a file among several of a step is the one that a program is given: the model, or the generator.
pub(crate) fn is_model(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_main = |word| WEIGHTS.contains(&word) || ["g", "generator"].contains(&word);
    words(&name).any(is_main) && !is_copy(&name)
}

/// Whether it is a copy of the model for its use, not for its training, or what is trained or kept beside it.
pub(crate) fn is_copy(name: &str) -> bool {
    // `D_200.pth`, not `unet_3d_200.pth`.
    let name = name.to_ascii_lowercase();
    let parts = name.split(|letter: char| !letter.is_ascii_alphanumeric());
    let mut parts = parts.map(|part| part.trim_end_matches(|letter: char| letter.is_ascii_digit()));
    has_word(&name, COPIES) || parts.any(|part| part == "d")
}

const COPIES: &[&str] = &[
    "ema",
    "swa",
    "avg",
    "average",
    "averaged",
    "polyak",
    "teacher",
    "critic",
    "value",
    "qf",
    "target",
    "reward",
    "disc",
    "discriminator",
    "netd",
    "buffer",
    "replay",
    "rb",
    "rollout",
    "rollouts",
    "trajectory",
    "trajectories",
    "predictions",
    "preds",
    "generations",
];

fn has_word(name: &str, known: &[&str]) -> bool {
    words(&name.to_ascii_lowercase()).any(|word| known.contains(&word))
}

/// Whether the name is that of weights for other programs.
pub(crate) fn is_share(name: &str) -> bool {
    has_word(name, SHARES)
}

/// Whether a folder is named for nothing but weights for other programs.
pub(crate) fn is_only_share(name: &str) -> bool {
    is_share(name) && are_known(name, &[SHARES, WEIGHTS, BARE])
}

const SHARES: &[&str] =
    &["weights", "hf", "huggingface", "export", "exports", "exported", "merged", "dict", "dicts"];

/// How much the name of a folder says to be in it, all of a training first: `states`, a folder of any name, `weights` and
/// `optimizer`.
pub(crate) fn content(folder: &str) -> Ordering {
    const STATES: &[&str] = &["state", "states"];
    let is_share = is_share(folder);
    match has_word(folder, STATES) && !is_share && !has_word(folder, WEIGHTS) {
        true => Ordering::Less,
        false if is_share || is_aside(folder) => Ordering::Greater,
        false => Ordering::Equal,
    }
}

/// Whether the name of a series says nothing but that it is one: `step_.pt`, `training_state_.pt`.
pub(crate) fn is_neutral(series: &str) -> bool {
    are_known(series, &[BARE, NEUTRAL])
}

const NEUTRAL: &[&str] =
    &["training", "train", "full", "step", "steps", "iter", "iteration", "global", "epoch"];

/// Whether a name says that this is the last one: `last.pt`, `checkpoint_latest.pth`, `model_final.pth`, and a bare
/// `checkpoint.pth` beside numbered ones.
pub(crate) fn is_last(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    is_bare(&name)
        || (is_remarkable(&name)
            && !["best", "top", "min", "max", "pretrained"].iter().any(|word| name.contains(word)))
}

/// Whether a name says only that this is a checkpoint: `checkpoint.pth.tar`.
pub(crate) fn is_bare(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let stem = name.split('.').next().unwrap_or_default();
    words(stem).all(|word| BARE.contains(&word))
}

/// Whether a name says nothing else: `best_model.pth`, not `final_norm.weight.pt`, which may be a part.
pub(crate) fn is_last_or_best(name: &str) -> bool {
    is_remarkable(name) && are_known(name, &[FILLING, WEIGHTS, BARE, NEUTRAL])
}

const BARE: &[&str] = &["checkpoint", "ckpt", "ckp", "snapshot", "state", ""];

/// Whether a folder or a file still has a temporary name: `step2000-tmp`, `tmp-checkpoint-5`, `step_5.pt.partial`.
pub(crate) fn is_temporary(name: &str) -> bool {
    const LEFT: &[&str] =
        &["temp", "staging", "partial", "incomplete", "inprogress", "deleting", "delete", "trash"];
    let name = name.to_ascii_lowercase();
    let words = name.split(|letter: char| !letter.is_ascii_alphanumeric());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let [first, second, ..] = words.as_slice() else { return false };
    let last = words.iter().rev().find(|word| !ENDS.contains(word));
    // Words that a name may have for other reasons: `creative_writing.pt`.
    let is_marked = [".part.", ".writing."].iter().any(|mark| name.contains(mark));
    let is_left = |word: &&str| word.starts_with("tmp") || LEFT.contains(word);
    let of = |word: &str| word.trim_end_matches(|letter: char| letter.is_ascii_digit()).to_owned();
    let is_step =
        ["checkpoint", "ckpt", "step", "iter", "global", "epoch"].contains(&of(second).as_str());
    is_marked
        || (*first == "tmp" && is_step)
        || last.filter(|last| *last != first).is_some_and(is_left)
}

/// Whether somebody put it aside: `step_300.bak`, `step_300_old.pt`, `old_run`, but not `4-year-old` and `old_town`.
pub(crate) fn is_put_aside(name: &str) -> bool {
    const MARKS: &[&str] = &[
        "bak",
        "backup",
        "backups",
        "old",
        "bad",
        "broken",
        "corrupt",
        "corrupted",
        "failed",
        "trash",
        "discarded",
    ];
    const PHRASES: &[&str] =
        &["year", "years", "month", "months", "day", "days", "vs", "and", "or"];
    const OF_RUNS: &[&str] = &["run", "runs", "model", "models", "checkpoints", "ckpts"];
    let name = name.to_ascii_lowercase();
    let mut words = name.rsplit(|letter: char| !letter.is_ascii_alphanumeric());
    let last = words.find(|word| !ENDS.contains(word)).unwrap_or_default();
    let is_phrase = words.next().is_some_and(|before| PHRASES.contains(&before));
    let begins = |mark: &&str| {
        let from = name.trim_start_matches(|letter: char| !letter.is_ascii_alphanumeric());
        let rest = from.strip_prefix(*mark);
        rest.is_some_and(|rest| are_known(rest, &[OF_RUNS, BARE, NEUTRAL]))
    };
    (MARKS.contains(&last) && !is_phrase) || MARKS.iter().any(begins)
}

/// The same name without numbers: that of its series.
pub(crate) fn series(name: &str) -> String {
    name.chars().filter(|letter| !letter.is_ascii_digit()).collect()
}

/// What the names of a file have in common in all steps: those of parts and ranks stay apart.
pub(crate) fn kind(name: &str, step: Option<u64>) -> String {
    let mut kind = String::new();
    let found = numbers(name);
    for one in &found {
        let is_part = match one.counts {
            Counted::Ranks | Counted::Shards | Counted::Axis => true,
            Counted::Size | Counted::Unknown => one.digits.len() < 6 && !one.digits.contains('.'),
            _ => false,
        };
        let is_step = step.is_some() && one.digits.parse().ok() == step;
        kind.push_str(one.before);
        kind.push_str(if is_part && !is_step { one.digits } else { "*" });
    }
    kind.push_str(found.last().map_or(name, |one| one.after));
    kind
}

/// What names have in common that differ in numbers only.
pub(crate) fn role(name: &str) -> String {
    let found = numbers(name);
    let before: String =
        found.iter().map(|one| [one.before.trim_end_matches('-'), "*"].concat()).collect();
    before + found.last().map_or(name, |one| one.after)
}

/// A name of one step as that of another step would be.
pub(crate) fn renumbered(name: &str, from: Option<u64>, to: Option<u64>) -> String {
    let mut renumbered = String::new();
    let found = numbers(name);
    for one in &found {
        renumbered.push_str(one.before);
        let is_step = from.is_some() && one.digits.parse().ok() == from;
        renumbered.push_str(&match to.filter(|_| is_step) {
            Some(to) => Cow::Owned(format!("{to:0width$}", width = one.digits.len())),
            None => Cow::Borrowed(one.digits),
        });
    }
    renumbered.push_str(found.last().map_or(name, |one| one.after));
    renumbered
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn name_of_another_rank_is_the_same_without_it() {
        let of = |name: &str| ranks(name).map(|one| (one.ranks, one.world, one.without));
        let rank =
            |ranks: &[u32], world, name: &str| Some((ranks.to_vec(), world, name.to_owned()));
        assert_eq!(of("ep0-ba200-rank1.pt"), rank(&[1], 0, "ep0-ba200-rank*.pt"));
        assert_eq!(
            of("model_world_size_2_rank_1.pt"),
            rank(&[1], 2, "model_world_size_2_rank_*.pt")
        );
        assert_eq!(of("tp_rank_00_pp_rank_001"), rank(&[0, 1], 0, "tp_rank_*_pp_rank_*"));
        assert_eq!(of("m-00002-of-00003.pt"), rank(&[2], 3, "m-*-of-00003.pt"));
        assert_eq!(of("step-1.pt"), None);
        assert_eq!(of("epoch_3_of_10.pt"), None);
        assert_eq!(of("resnet50_best_of_3.pt"), None);
    }

    #[test]
    fn optimizers_stand_beside_weights() {
        for (name, expected) in [
            ("optimizer_200.pt", true),
            ("step-100-optim.pt", true),
            ("recipe_state.pt", true),
            ("extra_state_world_size_2_rank_0.pt", true),
            ("data.pt", true),
            ("tokenizer.pt", true),
            ("model_and_optimizer.pt", false),
            ("model.pt", false),
            ("database.pt", false),
            ("training-state-1.pt", false),
            ("state.pt", false),
            ("last.pt", false),
        ] {
            assert_eq!(is_aside(name), expected, "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_name_is_read(name in "\\PC{0,40}") {
            let _ = (told(&name).place(), ranks(&name), is_of_one(&name), is_aside(&name));
            prop_assert_eq!(renumbered(&name, Some(1), None), name);
        }
    }
}
