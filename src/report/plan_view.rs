//! Shows a plan to people.
//!
//! Takes a [`Plan`]; gives text. Writes nothing itself, and masks secrets as all forms of a plan do.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;

use super::plan_forms::{masked_env, quoted, shown};
use plan::{Decision, Membership, Plan, PlannedGpu, argv};
use settings::LayoutRule;
use text::columns::{columns, fold, padded, shortened_path, start_within, table};
use text::lang::{Lang, Text, counted};
use text::mask::mask_args;
use text::style::{Style, paint};
use text::text;
use verdict::by_importance;

/// The plan in one sentence: `2 nodes × 5 of 8 GPUs = 10 ranks, ulysses 10`.
pub fn sentence(plan: &Plan) -> Text {
    let (nnodes, each, world) = (plan.membership.nnodes, plan.nproc_per_node, plan.world_size);
    let (nodes, ranks) = (counted(nnodes, "node"), counted(world, "rank"));
    let used = plan.gpus.iter().filter(|gpu| gpu.selected).count();
    let (all, gpus) = (plan.gpus.len(), counted(plan.gpus.len(), "GPU"));
    let mut sentence = match used {
        _ if plan.membership.task.is_some() => place(plan),
        0 => {
            let processes = if each == 1 { "process" } else { "processes" };
            text!(
                "{nodes} × {each} {processes} on the CPU = {ranks}",
                "{nnodes} 个节点 × {each} 个 CPU 进程 = {world} 个 rank"
            )
        }
        _ if used == all => {
            text!("{nodes} × {gpus} = {ranks}", "{nnodes} 个节点 × {all} 个 GPU = {world} 个 rank")
        }
        _ => text!(
            "{nodes} × {each} of {gpus} = {ranks}",
            "{nnodes} 个节点 × {each}/{all} 个 GPU = {world} 个 rank"
        ),
    };
    let layout = &plan.layout;
    let mut add = |name: &str, size: u32| {
        let _ = write!(sentence.en.to_mut(), ", {name} {size}");
        let _ = write!(sentence.zh.to_mut(), "，{name} {size}");
    };
    if layout.rule != LayoutRule::None {
        add("ulysses", layout.ulysses_size);
    }
    if layout.rule == LayoutRule::UlyssesRing {
        add("ring", layout.ring_size);
    }
    sentence
}

/// The rank of a task, and its place.
pub(super) fn place(plan: &Plan) -> Text {
    let Some(task) = &plan.membership.task else { return Text::same("") };
    let (rank, local, of, world) = (task.rank, task.local, task.of, plan.world_size);
    let (node, nodes) = (plan.membership.node_rank, plan.membership.nnodes);
    text!(
        "rank {rank} of {world}, local rank {local} of {of}, on node {node} of {nodes}",
        "rank {rank}（共 {world} 个），本地 rank {local}（共 {of} 个），节点 {node}（共 {nodes} 个）"
    )
}

/// `2 × 8 = 16`; for tasks only those of this node, since other nodes may have another number.
pub(super) fn ranks(plan: &Plan) -> Text {
    let (nodes, each, world) = (plan.membership.nnodes, plan.nproc_per_node, plan.world_size);
    match plan.membership.task {
        Some(_) => text!("{each} of {world} on this node", "本节点 {each} 个，共 {world} 个"),
        None => Text::same(format!("{nodes} × {each} = {world}")),
    }
}

/// Selects the parts of a plan that are shown, and the width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shown {
    /// Includes each GPU with its ids, and the names of the removed variables.
    pub verbose: bool,
    /// Columns of the terminal. None means that no line is wrapped and no path shortened.
    pub width: Option<usize>,
}

/// The plan for people: the sentence, the problems, then every value with its reason.
pub fn text(plan: &Plan, lang: Lang, shown: Shown) -> String {
    let Shown { verbose, width } = shown;
    let mut out = format!("{}\n", paint(Style::Title, sentence(plan).get(lang)));
    warnings(&mut out, plan, lang, width);
    membership(&mut out, plan, lang);
    section(&mut out, &text!("decisions", "决策"), lang);
    let names = plan.decisions.iter().map(|decision| columns(&decision.what));
    let wide = names.max().unwrap_or(0).min(WIDEST_NAME);
    for decision in &plan.decisions {
        explained(&mut out, decision, wide, lang, width);
    }
    if !plan.gpus.is_empty() {
        gpus(&mut out, plan, lang, verbose);
    }
    environment(&mut out, plan, lang, shown);
    section(&mut out, &text!("command", "命令"), lang);
    let words: Vec<String> =
        mask_args(&argv(plan)).iter().map(|word| quoted(&shortened(word))).collect();
    command(&mut out, &words, width);
    out
}

fn warnings(out: &mut String, plan: &Plan, lang: Lang, width: Option<usize>) {
    if plan.warnings.is_empty() {
        return;
    }
    section(out, &text!("warnings", "警告"), lang);
    let (arrow, mut hint) = (paint(Style::Info, "→"), "");
    for warning in by_importance(&plan.warnings) {
        let label = paint(Style::Warn, warning.id.as_str());
        fold(out, &format!("  {label}: {}", warning.text.get(lang)), 4, width);
        // Several remarks of one kind need their advice only once.
        let next = warning.hint.get(lang);
        if next != hint {
            fold(out, &format!("    {arrow} {next}"), 6, width);
        }
        hint = next;
    }
}

/// `5 / 4 + 2`: with the spares, since nodes are numbered through them.
fn of_how_many(member: &Membership) -> String {
    let Membership { node_rank, nnodes, spares, .. } = member;
    match spares {
        0 => format!("{node_rank} / {nnodes}"),
        spares => format!("{node_rank} / {nnodes} + {spares}"),
    }
}

fn membership(out: &mut String, plan: &Plan, lang: Lang) {
    let m = &plan.membership;
    section(out, &text!("membership", "成员信息"), lang);
    let row = |label: Text, value: String| vec![label.get(lang).to_owned(), value];
    let mut rows = vec![
        row(text!("platform", "平台"), m.platform.clone()),
        row(text!("node", "节点编号"), of_how_many(m)),
    ];
    if m.spares > 0 {
        let (all, seats, spares) = (m.nnodes.saturating_add(m.spares), m.nnodes, m.spares);
        let own = match m.seat.unwrap_or(m.node_rank) < seats {
            true => text!("this one has a seat", "本节点有席位"),
            false => text!("this one waits as a spare", "本节点作为备用节点等待"),
        };
        let (en, zh) = (own.en, own.zh);
        let seats = text!(
            "{seats} of {all} nodes, {spares} spare; {en} if all are alike",
            "{all} 个节点中 {seats} 个，备用 {spares} 个；各节点相同时{zh}"
        );
        rows.push(row(text!("seats", "席位"), seats.get(lang).to_owned()));
    }
    rows.push(row(text!("master", "Master"), master(plan).get(lang).to_owned()));
    rows.push(row(text!("ranks", "进程数"), ranks(plan).get(lang).to_owned()));
    table(out, rows);
}

/// Address and port of node 0.
pub(super) fn master(plan: &Plan) -> Text {
    let (address, port) = (&plan.membership.master_addr, plan.membership.master_port);
    match plan.membership.master_port_free {
        true => text!("{address}:a free port", "{address}:空闲端口"),
        false => Text::same(format!("{address}:{port}")),
    }
}

fn gpus(out: &mut String, plan: &Plan, lang: Lang, verbose: bool) {
    let title = match plan.decision("assumed") {
        Some(_) => text!("GPU, assumed", "GPU（假设）"),
        None => text!("GPU, by nvidia-smi's index", "GPU（按 nvidia-smi 序号）"),
    };
    section(out, &title, lang);
    let or_dash = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".into());
    let not_used = || text!("not used", "未使用").get(lang).to_owned();
    if verbose {
        let row = |gpu: &PlannedGpu| {
            let local = gpu.local_rank.map(|rank| format!("local rank {rank}"));
            let ids = [or_dash(&gpu.name), or_dash(&gpu.pci), or_dash(&gpu.uuid)];
            [gpu.index.to_string(), local.unwrap_or_else(not_used)].into_iter().chain(ids).collect()
        };
        table(out, plan.gpus.iter().map(row).collect());
        return;
    }
    // Neighbouring GPUs of one model with the same use share a row.
    let follows = |one: &PlannedGpu, next: &PlannedGpu| {
        let ranks = (one.local_rank.map(|rank| rank + 1), next.local_rank);
        one.name == next.name && one.index + 1 == next.index && ranks.0 == ranks.1
    };
    let span = |first: u32, last: u32| match first == last {
        true => first.to_string(),
        false => format!("{first}–{last}"),
    };
    let groups = plan.gpus.chunk_by(follows).filter_map(|group| {
        let (first, last) = (group.first()?, group.last()?);
        let ranks = match (first.local_rank, last.local_rank) {
            (Some(from), Some(to)) if from == to => format!("local rank {from}"),
            (Some(from), Some(to)) => {
                let all = span(from, to);
                text!("local ranks {all}", "local rank {all}").get(lang).to_owned()
            }
            _ => not_used(),
        };
        Some(vec![span(first.index, last.index), ranks, or_dash(&first.name)])
    });
    table(out, groups.collect());
}

fn environment(out: &mut String, plan: &Plan, lang: Lang, Shown { verbose, width }: Shown) {
    section(out, &text!("environment", "环境变量"), lang);
    let mut rows: Vec<(String, String)> = masked_env(plan)
        .into_iter()
        .map(|(name, value)| (name, value.to_string_lossy().into_owned()))
        .collect();
    let removed = plan.env_remove.len();
    if removed > 0 {
        let label = text!("removed", "移除").get(lang).to_owned();
        let names = match verbose {
            true => Text::same(plan.env_remove.join(" ")),
            false => text!(
                "{removed} variables of other launchers (--verbose lists them)",
                "其他启动器的 {removed} 个变量（--verbose 列出全部）"
            ),
        };
        rows.push((label, names.get(lang).to_owned()));
    }
    let wide = rows.iter().map(|(name, _)| columns(name)).max().unwrap_or(0);
    for (name, value) in &rows {
        let room = width.map(|width| width.saturating_sub(wide + 4)).filter(|_| !verbose);
        // Searched paths take several lines.
        let value = match room.filter(|room| columns(value) > *room && !value.contains(' ')) {
            Some(room) => format!("{}…", start_within(value, room.saturating_sub(1))),
            None => value.clone(),
        };
        fold(out, &format!("  {}  {value}", padded(name, wide)), wide + 4, width);
    }
}

/// Maximum width of the column of names; longer names do not widen it.
const WIDEST_NAME: usize = 24;

/// Longest name that moves the text beside and below it; longer ones, such as arguments of the profile, do not.
const LONGEST_NAME: usize = 60;

/// A longer value has its reason on a line of its own.
const WIDEST_VALUE: usize = 10;

/// ` name value [source] reason`; the reason is below a long value.
fn explained(out: &mut String, decision: &Decision, wide: usize, lang: Lang, width: Option<usize>) {
    let (name, value) = (&decision.what, shown(decision));
    let indent = 2 + wide.max(columns(name).min(LONGEST_NAME)) + 2;
    let room = width.map(|width| width.saturating_sub(indent)).filter(|room| *room > 20);
    let fit = |path: &str, part: usize| match room {
        Some(room) if path.starts_with('/') => shortened_path(path, room / part),
        _ => path.to_owned(),
    };
    // The source gets half of the room, since the reason stands beside it.
    let source = fit(&decision.source.to_string(), 2);
    let reason =
        format!("{} {}", paint(Style::Dim, &format!("[{source}]")), decision.because.get(lang));
    let line = format!("  {}  {}", padded(name, wide), fit(&value, 1));
    if columns(&value) > WIDEST_VALUE {
        fold(out, &line, indent, width);
        fold(out, &format!("{:indent$}{reason}", ""), indent, width);
    } else {
        let below = indent + WIDEST_VALUE + 2;
        fold(out, &format!("{}  {reason}", padded(&line, below - 2)), below, width);
    }
}

/// The command on one line. If it does not fit, each line has one option with its value, so that the
/// command can still be copied.
fn command(out: &mut String, words: &[String], width: Option<usize>) {
    let line = format!("  {}", words.join(" "));
    let Some(width) = width.filter(|width| columns(&line) > *width) else {
        let _ = writeln!(out, "{line}");
        return;
    };
    let is_option = |word: &str| word.starts_with('-');
    let mut lines: Vec<String> = Vec::new();
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let mut part = word.clone();
        // The value of an option, and `-m MODULE` of the interpreter.
        let has_value = |next: &String| !is_option(next) && is_option(word) && !word.contains('=');
        if let Some(value) = words.next_if(|next| has_value(next)) {
            let _ = write!(part, " {value}");
        }
        match lines.last_mut() {
            // The words that start the program are in the first lines.
            Some(last) if columns(last) + columns(&part) + 5 <= width && !is_option(&part) => {
                let _ = write!(last, " {part}");
            }
            _ => lines.push(part),
        }
    }
    for (at, part) in lines.iter().enumerate() {
        let indent = if at == 0 { "  " } else { "    " };
        let end = if at + 1 == lines.len() { "" } else { " \\" };
        let _ = writeln!(out, "{indent}{part}{end}");
    }
}

/// Maximum length of an argument in the text form; longer ones, such as prompts, are cut.
const LONGEST_WORD: usize = 200;

fn shortened(word: &OsStr) -> OsString {
    let text = word.to_string_lossy();
    match text.char_indices().nth(LONGEST_WORD) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()).into(),
        None => word.to_owned(),
    }
}

fn section(out: &mut String, title: &Text, lang: Lang) {
    if !out.is_empty() {
        out.push('\n');
    }
    let _ = writeln!(out, "{}", paint(Style::Title, title.get(lang)));
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::allow_attributes,
        reason = "tests end at the first surprise"
    )]

    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::Path;
    use std::process::Command;

    use serde_json::json;

    use super::super::plan_forms::{json, refusal_json};
    use super::*;
    use crate::plan_forms::shell;
    use plan::AskedNproc;
    use plan::fixtures::{facts, planned, settings, strings, wan};
    use settings::{Engine, EnvSetting, Program, Source, Sourced};
    use verdict::{Id, Refusal};

    fn command(argv: Vec<OsString>) -> Plan {
        let mut settings = settings(&[]);
        settings.engine = Sourced::default_value(Engine::Command);
        settings.program = Some(Sourced::default_value(Program::Command { argv }));
        settings.env = vec![EnvSetting {
            name: "GREETING".into(),
            value: "it's \"fine\" $HOME".into(),
            source: Source::Flag("--env".into()),
        }];
        planned(&settings, &facts(2), 1, &AskedNproc::Auto).unwrap()
    }

    #[test]
    fn shell_output_preserves_argument_bytes() {
        let mut argv = strings(&["printf", "%s\\0"]);
        let nasty: Vec<OsString> = [
            &b"a word"[..],
            b"it's",
            b"\"$(reboot)\" `x` $HOME \\n",
            b"",
            b"{\"a\": [1]}",
            b"line\nbreak\n",
            b"\xff\xfe mixed \xe4\xb8\xad \x80",
            b"=eth0",
            b"*?~#!&|;<>",
            "中文".as_bytes(),
            b"\x1b[2J\x1b]0;title\x07 it's",
            "a\u{202e}gnp.exe\u{200b}".as_bytes(),
        ]
        .iter()
        .map(|bytes| OsString::from_vec(bytes.to_vec()))
        .collect();
        argv.extend(nasty.iter().cloned());
        let script = shell(&command(argv));
        assert!(!script.contains(|c| text::letters::is_hidden(c) && c != '\n'), "{script:?}");
        let output = Command::new("sh").arg("-c").arg(&script).output().unwrap();
        assert!(output.status.success(), "{script}");
        let read: Vec<&[u8]> = output.stdout.split(|byte| *byte == 0).collect();
        let mut expected: Vec<&[u8]> = nasty.iter().map(|word| word.as_bytes()).collect();
        expected.push(b"");
        assert_eq!(read, expected, "{script}");
    }

    #[test]
    fn shell_script_sets_and_unsets_planned_variables() {
        let mut plan = command(strings(&[
            "sh",
            "-c",
            "printf '%s|%s|%s' \"$GREETING\" \"$NPROC_PER_NODE\" \"${LEFT-none}\"",
        ]));
        plan.env_remove = vec!["LEFT".into(), "not a name".into()];
        let output =
            Command::new("sh").arg("-c").arg(shell(&plan)).env("LEFT", "over").output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "it's \"fine\" $HOME|2|none");
    }

    #[test]
    fn json_has_the_documented_fields() {
        let settings = wan(&["--ulysses_size", "{ulysses_size}"], Some(40));
        let plan = planned(&settings, &facts(8), 2, &AskedNproc::Auto).unwrap();
        let value = json(&plan, Lang::En, Path::new("/bin/ranklaunch"));
        for (pointer, expected) in [
            ("/schema", json!(1)),
            ("/scope", json!("local")),
            ("/membership/platform", json!("flags")),
            ("/membership/master_port", json!(29500)),
            ("/nproc_per_node", json!(5)),
            ("/world_size", json!(10)),
            ("/gpus/0/local_rank", json!(0)),
            ("/gpus/7/selected", json!(false)),
            (
                "/layout",
                json!({"rule": "ulysses-world", "heads": 40, "ulysses_size": 10, "ring_size": 1}),
            ),
            ("/network/hcas", json!([])),
            ("/env/CUDA_DEVICE_ORDER", json!("PCI_BUS_ID")),
            ("/warnings/0/id", json!(Id::GpuUnused)),
        ] {
            assert_eq!(value.pointer(pointer), Some(&expected), "{pointer}");
        }
        let exec = value.pointer("/exec_argv").unwrap().to_string();
        assert!(exec.contains(r#""--no-python","/bin/ranklaunch","rank","--","/opt/python","-u","generate.py","--ulysses_size","10""#), "{exec}");
        let decisions = value.get("decisions").unwrap().as_array().unwrap();
        assert!(decisions.iter().any(|d| d["what"] == "nproc_per_node"
            && d["value"] == "5"
            && d["source"] == "solved"));
    }

    #[test]
    fn text_shows_every_decision_in_both_languages() {
        let plan = planned(&wan(&[], Some(40)), &facts(8), 2, &AskedNproc::Auto).unwrap();
        for lang in [Lang::En, Lang::Zh] {
            let text = text(&plan, lang, Shown::default());
            for decision in &plan.decisions {
                assert!(text.contains(decision.because.get(lang)), "{}", decision.what);
            }
            for warning in &plan.warnings {
                assert!(text.contains(warning.hint.get(lang)));
            }
        }
    }

    #[test]
    fn text_fits_a_terminal_of_80_columns() {
        let plan = planned(&wan(&[], Some(40)), &facts(8), 2, &AskedNproc::Auto).unwrap();
        for lang in [Lang::En, Lang::Zh] {
            let text = text(&plan, lang, Shown { verbose: false, width: Some(80) });
            for line in text.lines() {
                // A word longer than the line is not split.
                let is_whole = line.trim_start().contains(' ');
                assert!(columns(line) <= 80 || !is_whole, "{}: {line}", columns(line));
            }
            assert!(text.contains("10"), "{text}");
        }
        assert_eq!(sentence(&plan).en, "2 nodes × 5 of 8 GPUs = 10 ranks, ulysses 10");
    }

    #[test]
    fn reason_indent_is_bounded_for_long_names() {
        let mut plan = planned(&wan(&[], Some(40)), &facts(8), 2, &AskedNproc::Auto).unwrap();
        for decision in &mut plan.decisions {
            decision.what = "--lr ".repeat(20_000);
            decision.value = "longer than others".to_owned();
        }
        let text = text(&plan, Lang::En, Shown::default());
        assert!(text.lines().all(|line| line.len() - line.trim_start().len() < 80));
    }

    #[test]
    fn secrets_are_masked_everywhere() {
        let mut settings = settings(&[
            "--api_key",
            "hunter2",
            "--hf-token=hunter2",
            "--tokenizer",
            "path",
            "--prompt",
            "the key=is here",
        ]);
        settings.env = vec![EnvSetting {
            name: "WANDB_API_KEY".into(),
            value: "hunter2".into(),
            source: Source::Flag("--env".into()),
        }];
        let mut facts = facts(1);
        facts.environment.insert("WANDB_API_KEY".into(), "hunter2-old".into());
        let plan = planned(&settings, &facts, 1, &AskedNproc::Auto).unwrap();
        let all = [
            text(&plan, Lang::En, Shown::default()),
            shell(&plan),
            json(&plan, Lang::En, Path::new("/x")).to_string(),
        ];
        for shown in all {
            assert!(!shown.contains("hunter2"), "{shown}");
            assert!(shown.contains("the key=is here") && shown.contains("path"), "{shown}");
        }
    }

    #[test]
    fn shell_command_string_masks_its_secrets() {
        let plan = command(strings(&["bash", "-c", "HF_TOKEN=hunter2 python x.py"]));
        for shown in [
            text(&plan, Lang::En, Shown::default()),
            shell(&plan),
            json(&plan, Lang::En, Path::new("/x")).to_string(),
        ] {
            assert!(!shown.contains("hunter2"), "{shown}");
            assert!(shown.contains("HF_TOKEN=*** python x.py"), "{shown}");
        }
        assert!(shell(&plan).starts_with("# values shown as ***"));
    }

    #[test]
    fn long_word_is_cut_before_quoting() {
        let long = "x".repeat(300);
        let plan = command(strings(&["echo", &long, &format!("it's {long}"), "short"]));
        let text = text(&plan, Lang::En, Shown::default());
        let words = format!("echo '{}…' 'it'\\''s {}…' short", "x".repeat(200), "x".repeat(195));
        assert!(text.contains(&words), "{text}");
    }

    #[test]
    fn refusal_is_one_json_object() {
        let refusal =
            Refusal::new(Id::LayoutUnsolvable, Text::new("no", "不行"), Text::same("hint"));
        assert_eq!(
            refusal_json(&refusal, Lang::Zh),
            json!({"schema": 1, "refused": {"id": Id::LayoutUnsolvable, "text": "不行", "hint": "hint"}})
        );
    }
}
