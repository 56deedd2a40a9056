//! Shows a plan to people.
//!
//! Takes a [`Plan`]; gives text. Writes nothing itself, and masks secrets as all forms of a plan do.

use std::fmt::Write as _;

use super::plan_shell::{masked_env, quoted};
use crate::columns::{columns, fold, padded, table};
use crate::lang::{Lang, Text, counted};
use crate::mask::{mask_args, mask_value};
use crate::plan::{Decision, Plan, argv};
use crate::settings::LayoutRule;
use crate::text;

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

/// Which rank a task is, and where.
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

/// The plan for people: every value with its reason. `width` is that of the terminal; without
/// one no line is wrapped.
pub fn text(plan: &Plan, lang: Lang, width: Option<usize>) -> String {
    let say = |en: &'static str, zh: &'static str| match lang {
        Lang::En => en,
        Lang::Zh => zh,
    };
    let mut out = format!("{}\n", sentence(plan).get(lang));
    let m = &plan.membership;
    section(&mut out, say("membership", "成员信息"));
    let port = if m.master_port_free {
        say("a free port", "空闲端口").to_owned()
    } else {
        m.master_port.to_string()
    };
    table(
        &mut out,
        vec![
            vec![say("platform", "平台").into(), m.platform.clone()],
            vec![say("node", "节点编号").into(), format!("{} / {}", m.node_rank, m.nnodes)],
            vec![say("master", "Master").into(), format!("{}:{port}", m.master_addr)],
            vec![say("ranks", "进程数").into(), ranks(plan).get(lang).to_owned()],
        ],
    );
    section(&mut out, say("decisions", "决策"));
    let names = plan.decisions.iter().map(|decision| columns(&decision.what));
    let wide = names.max().unwrap_or(0).min(WIDEST_NAME);
    for decision in &plan.decisions {
        let reason = format!("[{}] {}", decision.source, decision.because.get(lang));
        explained(&mut out, (&decision.what, wide), &shown(decision), &reason, width);
    }
    if !plan.gpus.is_empty() {
        let title = match plan.decision("assumed") {
            Some(_) => say("GPU, assumed", "GPU（假设）"),
            None => say("GPU, by nvidia-smi's index", "GPU（按 nvidia-smi 序号）"),
        };
        section(&mut out, title);
        let rows = plan
            .gpus
            .iter()
            .map(|gpu| {
                let rank = gpu.local_rank.map_or_else(
                    || say("not used", "未使用").to_owned(),
                    |rank| format!("local rank {rank}"),
                );
                let or_dash = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".into());
                vec![
                    gpu.index.to_string(),
                    rank,
                    or_dash(&gpu.name),
                    or_dash(&gpu.pci),
                    or_dash(&gpu.uuid),
                ]
            })
            .collect();
        table(&mut out, rows);
    }
    section(&mut out, say("environment", "环境变量"));
    let mut rows: Vec<Vec<String>> = masked_env(plan)
        .into_iter()
        .map(|(name, value)| vec![name, value.to_string_lossy().into_owned()])
        .collect();
    if !plan.env_remove.is_empty() {
        rows.push(vec![say("removed", "移除").into(), plan.env_remove.join(" ")]);
    }
    let wide = rows.iter().filter_map(|row| row.first()).map(|name| columns(name)).max();
    for row in &rows {
        if let [name, value] = row.as_slice() {
            let line = format!("  {}  {value}", padded(name, wide.unwrap_or(0)));
            fold(&mut out, &line, wide.unwrap_or(0) + 4, width);
        }
    }
    section(&mut out, say("command", "命令"));
    let words: Vec<String> =
        mask_args(&argv(plan)).iter().map(|word| shortened(quoted(word))).collect();
    let _ = writeln!(out, "  {}", words.join(" "));
    if !plan.warnings.is_empty() {
        section(&mut out, say("warnings", "警告"));
        for warning in &plan.warnings {
            fold(&mut out, &format!("  {}: {}", warning.id, warning.text.get(lang)), 4, width);
            fold(&mut out, &format!("    → {}", warning.hint.get(lang)), 6, width);
        }
    }
    out
}

/// Longer names do not widen the column of names.
const WIDEST_NAME: usize = 24;

/// The reason of a longer value is on a line of its own.
const WIDEST_VALUE: usize = 10;

/// ` name value [source] reason`; the reason is below a long value.
fn explained(
    out: &mut String,
    (name, wide): (&str, usize),
    value: &str,
    reason: &str,
    width: Option<usize>,
) {
    let indent = 2 + wide.max(columns(name)) + 2;
    let line = format!("  {}  {value}", padded(name, wide));
    if columns(value) > WIDEST_VALUE {
        fold(out, &line, indent, width);
        fold(out, &format!("{:indent$}{reason}", ""), indent, width);
    } else {
        let below = indent + WIDEST_VALUE + 2;
        fold(out, &format!("{}  {reason}", padded(&line, below - 2)), below, width);
    }
}

/// Longer arguments, such as prompts, are cut in the text form.
const LONGEST_WORD: usize = 200;

fn shortened(word: String) -> String {
    match word.char_indices().nth(LONGEST_WORD) {
        Some((end, _)) => format!("{}…'", word.get(..end).unwrap_or_default()),
        None => word,
    }
}

/// The value of a decision without secrets.
pub(super) fn shown(decision: &Decision) -> String {
    mask_value(&decision.what, decision.value.as_ref()).to_string_lossy().into_owned()
}

fn section(out: &mut String, title: &str) {
    if !out.is_empty() {
        out.push('\n');
    }
    let _ = writeln!(out, "{title}");
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::allow_attributes,
        reason = "tests end at the first surprise"
    )]

    use std::os::unix::ffi::OsStringExt;
    use std::process::Command;

    use std::ffi::OsString;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use serde_json::json;

    use super::super::plan_json::{json, refusal_json};
    use super::super::plan_shell::shell;
    use super::*;
    use crate::plan::AskedNproc;
    use crate::plan::fixtures::{facts, planned, settings, strings, wan};
    use crate::settings::{Engine, EnvSetting, Program, Source, Sourced};
    use crate::verdict::{Id, Refusal};

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
    fn a_shell_reads_the_very_same_bytes() {
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
        ]
        .iter()
        .map(|bytes| OsString::from_vec(bytes.to_vec()))
        .collect();
        argv.extend(nasty.iter().cloned());
        let script = shell(&command(argv));
        let output = Command::new("sh").arg("-c").arg(&script).output().unwrap();
        assert!(output.status.success(), "{script}");
        let read: Vec<&[u8]> = output.stdout.split(|byte| *byte == 0).collect();
        let mut expected: Vec<&[u8]> = nasty.iter().map(|word| word.as_bytes()).collect();
        expected.push(b"");
        assert_eq!(read, expected, "{script}");
    }

    #[test]
    fn a_shell_exports_what_the_plan_sets_and_unsets_the_rest() {
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
    fn json_has_what_the_design_promises() {
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
    fn people_read_every_decision_in_both_languages() {
        let plan = planned(&wan(&[], Some(40)), &facts(8), 2, &AskedNproc::Auto).unwrap();
        for lang in [Lang::En, Lang::Zh] {
            let text = text(&plan, lang, None);
            for decision in &plan.decisions {
                assert!(text.contains(decision.because.get(lang)), "{}", decision.what);
            }
            for warning in &plan.warnings {
                assert!(text.contains(warning.hint.get(lang)));
            }
        }
    }

    #[test]
    fn a_terminal_of_80_columns_is_not_exceeded() {
        let plan = planned(&wan(&[], Some(40)), &facts(8), 2, &AskedNproc::Auto).unwrap();
        for lang in [Lang::En, Lang::Zh] {
            let text = text(&plan, lang, Some(80));
            // The command is one line, so that it can be copied.
            for line in text.lines().filter(|line| !line.contains(" -m torch")) {
                // A word longer than a line is not split.
                let is_whole = line.trim_start().contains(' ');
                assert!(columns(line) <= 80 || !is_whole, "{}: {line}", columns(line));
            }
            assert!(text.contains("10"), "{text}");
        }
        assert_eq!(sentence(&plan).en, "2 nodes × 5 of 8 GPUs = 10 ranks, ulysses 10");
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
            text(&plan, Lang::En, None),
            shell(&plan),
            json(&plan, Lang::En, Path::new("/x")).to_string(),
        ];
        for shown in all {
            assert!(!shown.contains("hunter2"), "{shown}");
            assert!(shown.contains("the key=is here") && shown.contains("path"), "{shown}");
        }
    }

    #[test]
    fn a_shell_of_several_words_hides_its_secrets_too() {
        let plan = command(strings(&["bash", "-c", "HF_TOKEN=hunter2 python x.py"]));
        for shown in [
            text(&plan, Lang::En, None),
            shell(&plan),
            json(&plan, Lang::En, Path::new("/x")).to_string(),
        ] {
            assert!(!shown.contains("hunter2"), "{shown}");
            assert!(shown.contains("HF_TOKEN=*** python x.py"), "{shown}");
        }
        assert!(shell(&plan).starts_with("# values shown as ***"));
    }

    #[test]
    fn a_refusal_is_one_object() {
        let refusal =
            Refusal::new(Id::LayoutUnsolvable, Text::new("no", "不行"), Text::same("hint"));
        assert_eq!(
            refusal_json(&refusal, Lang::Zh),
            json!({"schema": 1, "refused": {"id": Id::LayoutUnsolvable, "text": "不行", "hint": "hint"}})
        );
    }
}
