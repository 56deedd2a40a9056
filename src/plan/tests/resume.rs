//! Placeholders of the checkpoint: one rule for arguments of the program, arguments of the engine, and variables.

use std::ffi::OsString;
use std::time::SystemTime;

use proptest::prelude::*;

use crate::fixtures::{facts, flag, plan, planned, profile, settings, strings};
use crate::{AskedNproc, Plan, Resume, RunIdentity, newest, refused_without};
use node::observe::{CheckpointFacts, Facts, RankFiles, SeenCheckpoint};
use settings::{Engine, EnvSetting, Rendezvous, Settings, Source, Sourced, WithoutCheckpoint};
use text::lang::Text;
use verdict::Id;

use super::{env, set};

/// The settings with a folder of checkpoints, and a node that sees whole ones of these steps.
fn with_folder(settings: Settings, steps: &[Option<u64>]) -> (Settings, Facts) {
    let settings =
        Settings { checkpoint_dir: Some(flag("/saved".into(), "--checkpoint-dir")), ..settings };
    let seen = |step: &Option<u64>| SeenCheckpoint {
        path: "/saved/one".into(),
        step: *step,
        ranks: None,
        missing: Vec::new(),
        digest: step.unwrap_or(0),
        modified: SystemTime::UNIX_EPOCH,
    };
    let found = steps.iter().map(seen).collect();
    let checkpoints = Some(CheckpointFacts { found, unread: None });
    (settings, Facts { checkpoints, ..facts(1) })
}

fn launched(plan: &Plan, resume: Option<Resume>) -> Plan {
    plan.finish(&RunIdentity {
        run_id: "job-1".into(),
        timestamp: "20250102-030405".into(),
        master_port: 41000,
        resume,
    })
}

fn at(step: Option<u64>) -> Resume {
    Resume { path: "/saved/one".into(), step }
}

fn by_flag(name: &str, value: &str) -> EnvSetting {
    set(name, value, Source::Flag("--env".into()))
}

/// The words of a program, of its engine, and variables, each with the placeholders of a checkpoint.
fn everywhere() -> Settings {
    let words = ["-v", "--from", "{checkpoint}", "--step={checkpoint_step}", "{{checkpoint}}"];
    let mut settings = settings(&words);
    settings.engine_args = words.map(str::to_owned).to_vec();
    settings.env = vec![
        by_flag("FROM", "{checkpoint}"),
        set("STEP", "at-{checkpoint_step}", profile(4)),
        by_flag("LITERAL", "{{checkpoint}}"),
    ];
    settings
}

#[test]
fn one_rule_holds_for_arguments_engine_and_variables() {
    let (settings, node) = with_folder(everywhere(), &[]);
    let plan = plan(&settings, &node).expect("a plan");
    for (resume, words, from, step, left) in [
        (
            Some(at(Some(7))),
            &["-v", "--from", "/saved/one", "--step=7", "{checkpoint}"][..],
            Some("/saved/one"),
            Some("at-7"),
            None,
        ),
        (
            Some(at(None)),
            &["-v", "--from", "/saved/one", "{checkpoint}"],
            Some("/saved/one"),
            None,
            Some("--step={checkpoint_step}, --step={checkpoint_step}, STEP"),
        ),
        (
            None,
            &["-v", "{checkpoint}"],
            None,
            None,
            Some(
                "--from {checkpoint}, --step={checkpoint_step}, --from {checkpoint}, --step={checkpoint_step}, FROM, STEP",
            ),
        ),
    ] {
        let launched = launched(&plan, resume.clone());
        assert_eq!(launched.program.args(), strings(words), "{resume:?}");
        assert_eq!(launched.engine_args, words, "{resume:?}");
        assert_eq!((env(&launched, "FROM"), env(&launched, "STEP")), (from, step), "{resume:?}");
        assert_eq!(env(&launched, "LITERAL"), Some("{checkpoint}"));
        let decision = launched.decision("left out").map(|one| one.value.as_str());
        assert_eq!(decision, left, "{resume:?}");
        let is_named = resume.is_some();
        assert_eq!(env(&launched, "RANKLAUNCH_RESUME_FROM").is_some(), is_named, "{resume:?}");
        let removed = launched.env_remove.iter().any(|name| name == "RANKLAUNCH_RESUME_FROM");
        assert_eq!(removed, !is_named, "one from outside would name another: {resume:?}");
    }
}

#[test]
fn plan_says_before_the_run_what_is_left_out() {
    for (steps, left) in [(&[][..], true), (&[None], true), (&[Some(3)], false)] {
        let (settings, node) = with_folder(everywhere(), steps);
        let expected = plan(&settings, &node).expect("a plan").expected();
        assert_eq!(expected.decision("left out").is_some(), left, "{steps:?}");
    }
}

/// What `plan` shows is what a launch of this node alone runs.
#[test]
fn expected_plan_is_that_of_the_launch() {
    for steps in [&[][..], &[None], &[Some(3)]] {
        let (settings, node) = with_folder(everywhere(), steps);
        let plan = plan(&settings, &node).expect("a plan");
        let (expected, launched) = (plan.expected(), launched(&plan, plan.expects.clone()));
        assert_eq!(expected.program, launched.program, "{steps:?}");
        assert_eq!(expected.engine_args, launched.engine_args, "{steps:?}");
        assert_eq!(expected.env_remove, launched.env_remove, "{steps:?}");
        for name in ["FROM", "STEP", "RANKLAUNCH_RESUME_FROM"] {
            assert_eq!(expected.env.get(name), launched.env.get(name), "{name} {steps:?}");
        }
    }
}

/// The nodes may agree on another checkpoint than this node would take alone.
#[test]
fn launch_decides_what_its_plan_expected() {
    let (settings, node) = with_folder(everywhere(), &[Some(3)]);
    let plan = plan(&settings, &node).expect("a plan");
    let value = |plan: &Plan| plan.decision("checkpoint").map(|one| one.value.clone());
    assert_eq!(value(&plan).as_deref(), Some("/saved/one"));
    let launched = launched(&plan, None);
    assert_eq!(value(&launched).as_deref(), Some("none"));
    assert!(launched.decision("left out").is_some());
}

/// A setting that would replace a value from outside removes it; one that only fills gaps leaves it alone.
#[test]
fn variable_from_outside_stays_only_where_it_would_have_won() {
    let mut settings = settings(&[]);
    settings.env = vec![
        by_flag("STRONG", "{checkpoint}"),
        set("WEAK", "{checkpoint}", profile(4)),
        set("FREE", "{checkpoint}", profile(5)),
    ];
    let (settings, mut node) = with_folder(settings, &[]);
    for name in ["STRONG", "WEAK"] {
        node.environment.insert(name.into(), "/old".into());
    }
    let launched = launched(&plan(&settings, &node).expect("a plan"), None);
    for (name, is_removed) in [("STRONG", true), ("WEAK", false), ("FREE", true)] {
        assert_eq!(env(&launched, name), None, "{name}");
        assert_eq!(launched.env_remove.iter().any(|one| one == name), is_removed, "{name}");
    }
}

#[test]
fn missing_folder_is_refused_wherever_a_placeholder_stands() {
    let refused = |settings: &Settings| plan(settings, &facts(1)).map(|_| ());
    let program = || settings(&["--from={checkpoint}"]);
    let engine =
        || Settings { engine_args: vec!["--step={checkpoint_step}".into()], ..settings(&[]) };
    let variable = |settings: Settings, source| Settings {
        env: vec![set("FROM", "{checkpoint}", source)],
        ..settings
    };
    for (settings, place) in [
        (program(), "the argument --from={checkpoint} of the program names {checkpoint}"),
        (engine(), "the argument --step={checkpoint_step} in engine_args names {checkpoint_step}"),
        (
            variable(settings(&[]), profile(4)),
            "the variable FROM [wan22.toml:4] names {checkpoint}",
        ),
    ] {
        let refusal = refused(&settings).expect_err(place);
        assert_eq!(refusal.id, Id::CheckpointFolder);
        assert!(refusal.text.en.starts_with(place), "{}", refusal.text.en);
        assert!(refusal.hint.en.contains("{{checkpoint"), "{}", refusal.hint.en);
    }
    // A setting that another one replaces has no effect; literals need no folder.
    let mut settings = variable(settings(&["{{checkpoint}}"]), profile(4));
    settings.env.push(by_flag("FROM", "here"));
    let plan = plan(&settings, &facts(1)).expect("no placeholder");
    assert_eq!(launched(&plan, None).program.args(), strings(&["{checkpoint}"]));
}

/// A text cannot lose a word of its middle, and would be lost whole.
#[test]
fn text_that_names_a_checkpoint_is_refused_before_the_start() {
    let scripts = [
        "python train.py --resume {checkpoint}",
        "{checkpoint} ",
        "a\n--step={checkpoint_step}",
        "cp -r {{checkpoint}} {checkpoint}\t/tmp",
    ];
    let program = |text: &str| settings(&["-c", text]);
    let engine = |text: &str| Settings { engine_args: vec![text.into()], ..settings(&[]) };
    let variable = |text: &str| Settings { env: vec![by_flag("OPTIONS", text)], ..settings(&[]) };
    let planned = |settings: Settings, missing, steps: &[Option<u64>]| {
        let (mut settings, node) = with_folder(settings, steps);
        settings.checkpoint_missing.value = missing;
        plan(&settings, &node)
    };
    for script in scripts {
        for (place, of) in [
            ("the argument", &program as &dyn Fn(&str) -> Settings),
            ("the argument", &engine),
            ("the variable OPTIONS [--env]", &variable),
        ] {
            for steps in [&[][..], &[Some(3)]] {
                let refusal =
                    planned(of(script), WithoutCheckpoint::Omit, steps).expect_err(script);
                assert_eq!(refusal.id, Id::CheckpointText, "{script}");
                assert!(refusal.text.en.starts_with(place), "{}", refusal.text.en);
                assert!(refusal.hint.en.contains("${RANKLAUNCH_RESUME_FROM:+"), "{script}");
            }
            let required = planned(of(script), WithoutCheckpoint::Refuse, &[Some(3)]);
            // A checkpoint may have no step.
            assert_eq!(required.is_err(), script.contains("_step"), "{script}");
        }
    }
    for word in ["{{checkpoint}} is a word", "--from={checkpoint}", "{checkpoint}"] {
        planned(program(word), WithoutCheckpoint::Omit, &[]).expect(word);
    }
}

/// The other nodes may have the rest, and the nodes refuse together if they have not.
#[test]
fn share_of_a_node_reaches_the_agreement() {
    let (mut settings, mut node) = with_folder(settings(&[]), &[Some(7)]);
    settings.checkpoint_missing.value = WithoutCheckpoint::Refuse;
    let found = &mut node.checkpoints.as_mut().expect("facts").found[0];
    found.missing = vec![Text::same("the files of parts 0-1 are missing")];
    let share = RankFiles { here: vec![(2, 3)], missing: vec![(0, 1)] };
    let mut node_with = |ranks: Option<RankFiles>| {
        node.checkpoints.as_mut().expect("facts").found[0].ranks = ranks;
        node.clone()
    };
    let (with, without) = (node_with(Some(share)), node_with(None));
    let planned = |node: &Facts, nnodes| planned(&settings, node, nnodes, &AskedNproc::Auto);
    let plan = planned(&with, 2).expect("the nodes have not met yet");
    let decision = plan.decision("checkpoint").expect("a decision");
    assert_eq!(decision.value, "/saved/one");
    assert!(decision.because.en.contains("if the other nodes have the rest"), "{decision:?}");
    assert_eq!(planned(&with, 1).expect_err("one node").id, Id::CheckpointMissing);
    assert_eq!(planned(&without, 2).expect_err("not whole anywhere").id, Id::CheckpointMissing);
    let asked = Source::Flag("--checkpoint-missing".to_owned());
    let mut refused = |value, source: &Source, are_seen| {
        settings.checkpoint_missing = Sourced::new(value, source.clone());
        refused_without(&settings, are_seen).is_some()
    };
    assert!(refused(WithoutCheckpoint::Refuse, &asked, false));
    assert!(!refused(WithoutCheckpoint::Omit, &Source::Default, false));
    // Some nodes have one: to begin anew beside it has to be asked for.
    assert!(refused(WithoutCheckpoint::Omit, &Source::Default, true));
    assert!(!refused(WithoutCheckpoint::Omit, &asked, true));
}

#[test]
fn own_share_is_whole_as_far_as_a_node_saves_it() {
    let (_, node) = with_folder(settings(&[]), &[Some(9), Some(8), Some(7)]);
    let mut found = node.checkpoints.expect("facts").found;
    for (one, here) in found.iter_mut().zip([(0, 2), (2, 3)]) {
        one.missing = vec![Text::same("some are missing")];
        one.ranks = Some(RankFiles { here: vec![here], missing: vec![(4, 5)] });
    }
    for (own, step) in [(None, 7), (Some((2, 3)), 8), (Some((0, 1)), 7), (Some((0, 2)), 9)] {
        assert_eq!(newest(&found, own).and_then(|one| one.step), Some(step), "{own:?}");
    }
}

#[test]
fn ranks_of_a_member_follow_its_number_unless_they_are_numbered_anew() {
    let mut plan = planned(&settings(&[]), &facts(4), 3, &AskedNproc::Auto).expect("a plan");
    assert_eq!(plan.ranks_of(2), Some((8, 11)));
    plan.rdzv = Rendezvous::C10d;
    assert_eq!(plan.ranks_of(2), if plan.engine.row().has_c10d { None } else { Some((8, 11)) });
    plan.engine = Engine::Direct;
    assert_eq!(plan.ranks_of(2), Some((8, 11)));
}

/// A word, and whether it names the checkpoint or its step.
fn word() -> impl Strategy<Value = (&'static str, bool, bool)> {
    prop_oneof![
        Just(("--flag", false, false)),
        Just(("-1", false, false)),
        Just(("value", false, false)),
        Just(("--", false, false)),
        Just(("--lr=1", false, false)),
        Just(("{{checkpoint}}", false, false)),
        Just(("{checkpoint}", true, false)),
        Just(("{checkpoint_step}", false, true)),
        Just(("--from={checkpoint}", true, false)),
        Just(("{checkpoint}/{checkpoint_step}", true, true)),
    ]
}

proptest! {
    #[test]
    fn only_words_without_a_value_and_their_flags_are_left_out(
        words in proptest::collection::vec(word(), 0..12),
        resume in prop_oneof![Just(None), Just(Some(at(None))), Just(Some(at(Some(5))))],
    ) {
        let (no_path, no_step) =
            (resume.is_none(), resume.as_ref().is_none_or(|resume| resume.step.is_none()));
        let is_gone = |(_, path, step): &(&str, bool, bool)| (*path && no_path) || (*step && no_step);
        let mut expected: Vec<OsString> = Vec::new();
        for (at, own) in words.iter().enumerate() {
            let is_bare = |next: &(&str, bool, bool)| {
                is_gone(next) && matches!(next.0, "{checkpoint}" | "{checkpoint_step}")
            };
            if is_gone(own) || (own.0 == "--flag" && words.get(at + 1).is_some_and(is_bare)) {
                continue;
            }
            let replaced = own.0.replace("{checkpoint_step}", "5").replace("{{checkpoint}}", "\0");
            expected.push(replaced.replace("{checkpoint}", "/saved/one").replace('\0', "{checkpoint}").into());
        }
        let texts: Vec<&str> = words.iter().map(|(text, ..)| *text).collect();
        let mut settings = settings(&texts);
        settings.engine_args = texts.iter().map(|text| (*text).to_owned()).collect();
        settings.env =
            texts.iter().enumerate().map(|(at, text)| by_flag(&format!("V{at}"), text)).collect();
        let (settings, node) = with_folder(settings, &[]);
        let launched = launched(&plan(&settings, &node).expect("a plan"), resume);
        prop_assert_eq!(launched.program.args(), &expected[..]);
        let engine: Vec<OsString> = launched.engine_args.iter().map(OsString::from).collect();
        prop_assert_eq!(engine, expected);
        for (at, own) in words.iter().enumerate() {
            let name = format!("V{at}");
            prop_assert_eq!(launched.env.contains_key(&name), !is_gone(own));
            prop_assert_eq!(launched.env_remove.contains(&name), is_gone(own));
        }
    }
}
