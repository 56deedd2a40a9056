//! Replaces placeholders such as `{ulysses_size}` in arguments, byte for byte; chooses the profile's
//! values of `[[select]]` and its conditional arguments.
//!
//! Takes the known names with their values; gives the argument with exactly these tokens
//! replaced. `{{name}}` with a known name is the literal `{name}`. Every other byte is
//! unchanged, such as prompts, JSON and invalid UTF-8.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::layout::Sizes;
use crate::{Notes, one_of};
use settings::{ArgumentsIf, Placeholder, PlannedSize, Program, Select, Settings};
use text::lang::Text;
use text::mask::mask_args;
use text::nearest::nearest;
use text::order::InOrder;
use text::text;
use verdict::{Id, Refusal, Warning};

/// `argument` with the tokens of `values` replaced.
pub fn replace(argument: &OsStr, values: &BTreeMap<String, String>) -> OsString {
    let mut rest = argument.as_bytes();
    let mut out = Vec::with_capacity(rest.len());
    while let Some((&byte, tail)) = rest.split_first() {
        if byte == b'{' {
            if let Some((name, after)) = token(rest, values, b"{{", b"}}") {
                out.push(b'{');
                out.extend_from_slice(name.as_bytes());
                out.push(b'}');
                rest = after;
                continue;
            }
            if let Some((name, after)) = token(rest, values, b"{", b"}") {
                out.extend_from_slice(values.get(name).map_or(b"", |value| value.as_bytes()));
                rest = after;
                continue;
            }
        }
        out.push(byte);
        rest = tail;
    }
    OsString::from_vec(out)
}

/// The known name between `open` and `close` at the start of `text`, and the rest.
fn token<'v, 't>(
    text: &'t [u8],
    values: &'v BTreeMap<String, String>,
    open: &[u8],
    close: &[u8],
) -> Option<(&'v str, &'t [u8])> {
    let inner = text.strip_prefix(open)?;
    let end = inner.iter().position(|byte| *byte == b'}')?;
    let (name, after) = inner.split_at_checked(end)?;
    let after = after.strip_prefix(close)?;
    let (name, _) = values.get_key_value(std::str::from_utf8(name).ok()?)?;
    Some((name, after))
}

/// A warning for each unknown name in braces. The name reaches the script unreplaced, and the script fails
/// after its model was loaded. `selected` are the names of the profile.
pub fn unknown_in<'a>(
    arguments: &[OsString],
    selected: impl Iterator<Item = &'a str>,
) -> Vec<Warning> {
    let mut names: Vec<&str> =
        selected.chain(Placeholder::all().map(|ours| -> &str { ours.name() })).collect();
    names.sort_unstable();
    names.dedup();
    let warning = |name: String| {
        let text = text!(
            "{{{name}}} is not a placeholder, so it is passed on unchanged",
            "{{{name}}} 不是占位符，将原样传递"
        );
        let hint = match nearest(&name, names.iter().copied()) {
            Some(near) => text!("did you mean {{{near}}}?", "是否想写 {{{near}}}？"),
            None => {
                let all = names.join(", ");
                text!(
                    "available placeholders: {all}; ignore this if the braces are intended",
                    "可用的占位符：{all}；若花括号本来就是参数内容，无需处理"
                )
            }
        };
        Warning::new(Id::PlaceholderUnknown, text, hint)
    };
    unknown(arguments, &names).into_iter().map(warning).collect()
}

/// Unknown names in braces that were probably meant as placeholders: similar to a known name, or
/// a whole value. Never a brace of JSON, of a prompt, of a shell's `${name}` or of a literal
/// `{{name}}`: arguments with blanks or quotes are skipped.
fn unknown(arguments: &[OsString], known: &[&str]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for argument in arguments {
        let Some(text) = argument.to_str() else { continue };
        if text.contains(|letter: char| letter.is_whitespace() || "\"'`$".contains(letter)) {
            continue;
        }
        let value = text.split_once('=').map_or(text, |(_, value)| value);
        for (at, _) in text.match_indices('{') {
            let Some((name, after)) = text.get(at + 1..).and_then(|rest| rest.split_once('}'))
            else {
                break;
            };
            let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            let is_literal = text.get(..at).is_some_and(|before| before.ends_with('{'))
                || after.starts_with('}');
            if !is_name || is_literal || known.contains(&name) {
                continue;
            }
            let is_whole = value.len() == name.len() + 2;
            let is_meant = is_whole || nearest(name, known.iter().copied()).is_some();
            if is_meant && !found.iter().any(|one| one == name) {
                found.push(name.to_owned());
            }
        }
    }
    found
}

/// Whether `argument` contains the token of `name`.
pub fn mentions(argument: &OsStr, name: &str) -> bool {
    let with =
        |value: &str| replace(argument, &BTreeMap::from([(name.to_owned(), value.to_owned())]));
    with("0") != with("1")
}

/// The program with its arguments' tokens replaced.
pub(crate) fn replace_in_program(program: &Program, values: &BTreeMap<String, String>) -> Program {
    let all = |args: &[OsString]| args.iter().map(|arg| replace(arg, values)).collect();
    match program {
        Program::Script { path, args } => Program::Script { path: path.clone(), args: all(args) },
        Program::Module { name, args } => Program::Module { name: name.clone(), args: all(args) },
        Program::Command { argv } => Program::Command { argv: all(argv) },
    }
}

/// `[[select]]`: the values for `world` ranks on `nnodes` nodes; `is_world_size`: only WORLD_SIZE gives the number of nodes.
/// Empty if no row matches and no argument or variable needs a value.
pub fn select(
    rows: &[Select],
    (nnodes, is_world_size): (u32, bool),
    most: u32,
    world: u32,
    arguments: &[OsString],
    notes: &mut Notes,
) -> Result<BTreeMap<String, String>, Refusal> {
    let of = |total: Option<u32>| rows.iter().find(|row| row.total_gpus == total);
    if let Some(row) = of(Some(world)).or_else(|| of(None)) {
        let because = match row.total_gpus {
            Some(_) => {
                text!("the profile's row for {world} GPUs", "配置文件中 {world} 个 GPU 对应的取值")
            }
            None => text!(
                "the profile's row for numbers without one of their own, here {world} GPUs",
                "配置文件中其余数量的取值，此处为 {world} 个 GPU"
            ),
        };
        for (name, value) in &row.values {
            notes.decide(name, value, because.clone(), &row.source);
        }
        return Ok(row.values.clone());
    }
    let names: BTreeSet<&String> = rows.iter().flat_map(|row| row.values.keys()).in_set();
    let used: Vec<String> = names
        .into_iter()
        .filter(|name| arguments.iter().any(|argument| mentions(argument, name)))
        .map(|name| format!("{{{name}}}"))
        .collect();
    if used.is_empty() {
        return Ok(BTreeMap::new());
    }
    Err(refuse(rows, (nnodes, is_world_size), most, world, &used.join(", ")))
}

fn refuse(
    rows: &[Select],
    (nnodes, is_world_size): (u32, bool),
    most: u32,
    world: u32,
    used: &str,
) -> Refusal {
    let exists: Vec<String> = rows
        .iter()
        .map(|row| {
            let values: Vec<&str> = row.values.values().map(String::as_str).collect();
            format!("{} ({}, {})", row.gpus(), values.join(", "), row.source)
        })
        .collect();
    let exists = exists.join("; ");
    let reachable: BTreeSet<u32> = rows
        .iter()
        .filter_map(|row| row.total_gpus)
        .filter(|total| total.checked_rem(nnodes) == Some(0))
        .filter_map(|total| total.checked_div(nnodes))
        .filter(|nproc| (1..=most).contains(nproc))
        .in_set();
    let reachable: Vec<u32> = reachable.into_iter().collect();
    let Text { en, zh } = one_of(&reachable);
    // Another number of processes per node would wait for nodes that do not exist.
    let hint = if is_world_size {
        text!(
            "--world-size-counts processes if WORLD_SIZE={nnodes} counts processes, not nodes; if there are {nnodes} nodes: --nproc-per-node N, or a [[select]] row for {world} GPUs in the profile",
            "若 WORLD_SIZE={nnodes} 表示进程数而非节点数，请加 --world-size-counts processes；若确有 {nnodes} 个节点：用 --nproc-per-node N，或在配置文件中为 {world} 个 GPU 增加一条 [[select]]"
        )
    } else if reachable.is_empty() {
        text!(
            "add a [[select]] row for {world} GPUs, or for every other number (total_gpus = \"*\"), to the profile",
            "请在配置文件中为 {world} 个 GPU 增加一条 [[select]]，或为其余数量增加一条（total_gpus = \"*\"）"
        )
    } else {
        text!(
            "--nproc-per-node {en} fits a row; or add a [[select]] row for {world} GPUs to the profile",
            "--nproc-per-node {zh} 可匹配已有条目；或在配置文件中为 {world} 个 GPU 增加一条 [[select]]"
        )
    };
    Refusal::new(
        Id::SelectNoMatch,
        text!(
            "no [[select]] row for {world} GPUs ({nnodes} nodes), which {used} needs; there are rows for {exists}",
            "没有适用于 {world} 个 GPU（{nnodes} 个节点）的 [[select]] 条目，而 {used} 需要它；现有条目：{exists}"
        ),
        hint,
    )
}

/// The value of a size that a placeholder or a condition names.
pub(crate) fn of_size(size: PlannedSize, nnodes: u32, sizes: Sizes) -> u32 {
    match size {
        PlannedSize::WorldSize => sizes.world,
        PlannedSize::Nnodes => nnodes,
        PlannedSize::NprocPerNode => sizes.nproc,
        PlannedSize::UlyssesSize => sizes.ulysses,
        PlannedSize::RingSize => sizes.ring,
    }
}

/// The program with the arguments of the profile (`[[job.args_if]]`) whose conditions hold, after
/// the profile's own arguments and before those of the command line. Records the reason for each.
pub fn with_conditional(
    settings: &Settings,
    program: Program,
    nnodes: u32,
    sizes: Sizes,
    notes: &mut Notes,
) -> Program {
    let mut given: Vec<OsString> = Vec::new();
    for ArgumentsIf { when, args, source } in &settings.args_if.rows {
        let size = when.size();
        let value = of_size(size, nnodes, sizes);
        let words = mask_args(args);
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        let because = text!(
            "{size} is {value}; the profile gives them when {when}",
            "{size} 为 {value}，而配置文件规定 {when} 时给出"
        );
        let fate = if when.holds(value) {
            given.extend(args.iter().cloned());
            "given"
        } else {
            "left out"
        };
        notes.decide(words.join(" "), fate, because, source);
    }
    let at = settings.args_if.at;
    let insert = |mut words: Vec<OsString>| {
        let at = at.min(words.len());
        words.splice(at..at, given);
        words
    };
    match program {
        Program::Script { path, args } => Program::Script { path, args: insert(args) },
        Program::Module { name, args } => Program::Module { name, args: insert(args) },
        Program::Command { argv } => Program::Command { argv: insert(argv) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AskedNproc;
    use crate::fixtures::{facts, planned, settings, strings};
    use proptest::prelude::*;
    use settings::fixtures::args_if;

    fn values() -> BTreeMap<String, String> {
        [("ulysses_size", "10"), ("config", "a b.py")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into()
    }

    #[test]
    fn only_the_exact_tokens_are_replaced() {
        let cases = [
            ("{ulysses_size}", "10"),
            ("--ulysses_size={ulysses_size}", "--ulysses_size=10"),
            ("{config}", "a b.py"),
            ("{{ulysses_size}}", "{ulysses_size}"),
            ("{{other}}", "{{other}}"),
            ("{other}", "{other}"),
            ("{ulysses_size", "{ulysses_size"),
            ("{ulysses_size }", "{ulysses_size }"),
            ("{{ulysses_size}", "{10"),
            ("{\"a\": {\"b\": {ulysses_size}}}", "{\"a\": {\"b\": 10}}"),
            ("{run_id}", "{run_id}"),
            ("", ""),
        ];
        for (argument, expected) in cases {
            assert_eq!(replace(OsStr::new(argument), &values()), expected, "{argument}");
        }
        let bytes = OsString::from_vec(b"\xff{ulysses_size}\xfe{".to_vec());
        assert_eq!(replace(&bytes, &values()).as_bytes(), b"\xff10\xfe{");
    }

    #[test]
    fn only_mistyped_placeholders_in_braces_are_found() {
        let known = ["ulysses_size", "world_size", "run_id", "train_config"];
        for (argument, expected) in [
            ("{ulysess_size}", Some("ulysess_size")),
            ("--size={world_sise}", Some("world_sise")),
            ("/out/{runid}/a.mp4", Some("runid")),
            ("{deepspeed_config}", Some("deepspeed_config")),
            ("{world_size}", None),
            ("{{world_sise}}", None),
            ("${world_sise}", None),
            ("out-{epoch}.pt", None),
            ("{epoch}-{step}", None),
            ("{\"a\":{world_sise}}", None),
            ("A sign that says {world_sise}", None),
            ("{a,b}", None),
            ("{0}", None),
            ("{", None),
            ("{}", None),
        ] {
            let found = unknown(&[OsString::from(argument)], &known);
            assert_eq!(found.first().map(String::as_str), expected, "{argument}");
        }
    }

    #[test]
    fn mention_is_the_token_not_its_literal() {
        for (argument, expected) in [
            ("x{config}y", true),
            ("{{config}}", false),
            ("config", false),
            ("{ulysses_size}", false),
        ] {
            assert_eq!(mentions(OsStr::new(argument), "config"), expected, "{argument}");
        }
    }

    proptest! {
        #[test]
        fn arguments_without_tokens_pass_byte_for_byte(bytes in proptest::collection::vec(
            prop_oneof![Just(b'{'), Just(b'}'), Just(b'"'), any::<u8>()], 0..64,
        )) {
            let argument = OsString::from_vec(bytes);
            let has_token = values().keys().any(|name| {
                memchr::memmem::find(argument.as_bytes(), format!("{{{name}}}").as_bytes()).is_some()
            });
            prop_assume!(!has_token);
            prop_assert_eq!(replace(&argument, &values()), argument);
        }

        #[test]
        fn text_around_a_token_is_kept(before in "[^{}]{0,12}", after in "[^{}]{0,12}") {
            let argument = OsString::from(format!("{before}{{config}}{after}"));
            prop_assert_eq!(replace(&argument, &values()), OsString::from(format!("{before}a b.py{after}")));
        }
    }

    #[test]
    fn arguments_are_recorded_without_their_secrets() {
        let mut settings = settings(&[]);
        settings.args_if = args_if("nnodes = 1", &["--hf-token", "hunter2"]).expect("a condition");
        let plan = planned(&settings, &facts(1), 1, &AskedNproc::Auto).expect("a plan");
        assert!(plan.decision("--hf-token ***").is_some(), "{:?}", plan.decisions);
        assert_eq!(plan.program.args(), strings(&["--hf-token", "hunter2"]));
    }
}
