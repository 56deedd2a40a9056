//! Literals and symbols in the arguments, rows of `select`, and placeholders.

use std::collections::BTreeMap;
use std::ffi::OsString;

use crate::fixtures::{count, facts, flag, planned, profile, settings, strings, wan, warned};
use crate::{AskedNproc, RunIdentity};
use settings::{Engine, LayoutRule, Select, Source};
use verdict::{Id, Verdict};

use super::{env, id_of, set};

#[test]
fn literals_and_symbols_in_the_arguments_are_checked() {
    let world = |args: &[&str]| planned(&wan(args, Some(40)), &facts(8), 2, &AskedNproc::Auto);
    assert_eq!(world(&["--ulysses_size", "4"]).map(|p| p.nproc_per_node), Ok(2));
    assert_eq!(world(&["--ulysses_size=1"]).map(|p| p.nproc_per_node), Ok(8));
    assert_eq!(id_of(world(&["--ulysses_size", "14"])).1, Id::LayoutLiteral);
    assert_eq!(id_of(world(&["--ulysses_size={nproc_per_node}"])).1, Id::LayoutLiteral);
    let mut ring = wan(&["--ulysses_size={nproc_per_node}", "--ring_size={nnodes}"], Some(40));
    ring.layout.rule.value = LayoutRule::UlyssesRing;
    let plan = planned(&ring, &facts(8), 2, &AskedNproc::Auto).expect("8 × 2");
    assert_eq!(plan.program.args(), strings(&["--ulysses_size=8", "--ring_size=2"]));
    ring.layout.heads = Some(flag(12, "--heads"));
    assert_eq!(id_of(planned(&ring, &facts(8), 2, &AskedNproc::Auto)).1, Id::LayoutLiteral);
}

#[test]
fn an_untold_program_and_unknown_heads_are_warnings() {
    let plan = planned(&wan(&[], None), &facts(8), 2, &AskedNproc::Auto).expect("a plan");
    assert_eq!(plan.world_size, 16);
    assert!(warned(&plan, Id::LayoutHeadsUnknown) && warned(&plan, Id::LayoutArgument));
}
pub(super) fn select(total: impl Into<Option<u32>>, config: &str) -> Select {
    Select {
        total_gpus: total.into(),
        values: BTreeMap::from([("config".to_owned(), config.to_owned())]),
        source: profile(20),
    }
}

#[test]
fn the_total_number_of_gpus_selects_the_configuration() {
    let mut settings = settings(&["--config", "{config}", "--out={run_id}/{timestamp}"]);
    settings.selects = vec![select(16, "16gpu.py"), select(8, "8gpu.py")];
    settings.engine_args = vec!["--tag={config}".into()];
    let plan = planned(&settings, &facts(8), 2, &AskedNproc::Auto).expect("a plan");
    assert_eq!(
        plan.program.args(),
        strings(&["--config", "16gpu.py", "--out={run_id}/{timestamp}"])
    );
    assert_eq!(plan.engine_args, ["--tag=16gpu.py"]);
    let refusal = planned(&settings, &facts(4), 4, &count(3)).expect_err("12 GPUs");
    assert_eq!((refusal.verdict, refusal.id), (Verdict::Layout, Id::SelectNoMatch));
    for part in ["12 GPUs", "16 (16gpu.py", "8 (8gpu.py", "{config}"] {
        assert!(refusal.text.en.contains(part), "{part}: {}", refusal.text.en);
    }
    assert!(refusal.hint.en.contains("--nproc-per-node 2 or 4"), "{}", refusal.hint.en);
    // A row for all other numbers, at any position.
    settings.selects.insert(0, select(None, "any.py"));
    for (gpus, expected) in [(4, "any.py"), (8, "8gpu.py")] {
        let plan = planned(&settings, &facts(gpus), 1, &AskedNproc::Auto).expect("a plan");
        assert_eq!(plan.program.args().get(1), Some(&OsString::from(expected)), "{gpus}");
    }
    settings.selects.remove(0);
    settings.program = None;
    settings.engine_args.clear();
    assert!(planned(&settings, &facts(4), 4, &count(3)).is_ok(), "nothing needs a row");
    // Variables need a row as arguments do.
    settings.env = vec![set("CONFIG", "{config}", profile(4))];
    let refusal = planned(&settings, &facts(4), 4, &count(3)).expect_err("12 GPUs");
    assert_eq!(refusal.id, Id::SelectNoMatch);
}

#[test]
fn placeholders_are_replaced_in_variables_as_in_arguments() {
    let mut settings = settings(&["--out", "{run_id}"]);
    settings.selects = vec![select(8, "8gpu.py")];
    let flag = || Source::Flag("--env".into());
    settings.env = vec![
        set("SHARD", "{node_rank}/{nnodes}", profile(4)),
        set("WANDB_NAME", "{config}-{run_id}", flag()),
        set("LITERAL", "{{world_size}} {\"a\": {b}} ${HOME}", flag()),
        set("TYPO", "{world_sise}", flag()),
        set("SAME", "{world_size}", profile(5)),
    ];
    let mut node = facts(8);
    node.environment.insert("SAME".into(), "8".into());
    let plan = planned(&settings, &node, 1, &AskedNproc::Auto).expect("a plan");
    let finished = plan.finish(&RunIdentity {
        run_id: "job-1".into(),
        timestamp: "20250102-030405".into(),
        master_port: 41000,
        resume: None,
    });
    for (name, value) in [
        ("SHARD", Some("0/1")),
        ("WANDB_NAME", Some("8gpu.py-job-1")),
        ("LITERAL", Some("{world_size} {\"a\": {b}} ${HOME}")),
        ("TYPO", Some("{world_sise}")),
        ("SAME", None),
    ] {
        assert_eq!(env(&finished, name), value, "{name}");
    }
    // The container already has the same value, so nothing is recorded.
    assert_eq!(plan.decision("SAME"), None);
    let warnings: Vec<_> =
        plan.warnings.iter().filter(|warning| warning.id == Id::PlaceholderUnknown).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings.iter().all(|one| one.hint.en.contains("{world_size}")), "{warnings:?}");
}

#[test]
fn the_launch_fills_in_its_name_and_port() {
    let mut settings = settings(&["{run_id}", "{{run_id}}", "{timestamp}", "{world_size}"]);
    settings.engine = flag(Engine::Command, "--engine");
    let plan = planned(&settings, &facts(2), 1, &AskedNproc::Auto).expect("a plan");
    let finished = plan.finish(&RunIdentity {
        run_id: "job-1".into(),
        timestamp: "20250102-030405".into(),
        master_port: 41000,
        resume: None,
    });
    assert_eq!(finished.program.args(), strings(&["job-1", "{run_id}", "20250102-030405", "2"]));
    assert_eq!(env(&finished, "MASTER_PORT"), Some("41000"));
    assert_eq!(finished.membership.master_port, 41000);
}
