//! Whole plans for given facts and settings.

mod commands;
mod devices;
mod environment;
mod nccl;
mod network;
mod resume;
mod selects;
mod tasks;

use std::ffi::OsString;
use std::path::Path;

use proptest::prelude::*;

use crate::fixtures::{count, facts, flag, plan, planned, settings, wan};
use crate::layout::is_legal;
use crate::{AskedNproc, EngineOptions, Plan, exec_argv};
use settings::{Engine, EnvSetting, LayoutRule, Source};
use verdict::{Id, Refusal, Verdict};

use selects::select;

fn words(argv: &[OsString]) -> String {
    argv.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn id_of(result: Result<Plan, Refusal>) -> (Verdict, Id) {
    let refusal = result.expect_err("a refusal");
    assert!(!refusal.hint.en.is_empty() && !refusal.hint.zh.is_empty());
    (refusal.verdict, refusal.id)
}

fn env<'a>(plan: &'a Plan, name: &str) -> Option<&'a str> {
    plan.env.get(name).and_then(|value| value.to_str())
}

fn set(name: &str, value: &str, source: Source) -> EnvSetting {
    EnvSetting { name: name.into(), value: value.into(), source }
}
#[test]
fn single_node_without_a_contract_is_planned_whole() {
    let plan = plan(&settings(&[]), &facts(2)).expect("a plan");
    assert_eq!((plan.membership.nnodes, plan.nproc_per_node), (1, 2));
    assert!(plan.runnable().is_ok());
}

fn engines() -> impl Strategy<Value = Engine> {
    prop_oneof![
        Just(Engine::Torchrun),
        Just(Engine::Accelerate),
        Just(Engine::Deepspeed),
        Just(Engine::Direct),
        Just(Engine::Command),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn any_node_gets_a_legal_plan_or_refusal(
        gpus in 0u32..=8,
        nnodes in 1u32..=8,
        asked in prop_oneof![
            Just(AskedNproc::Auto), Just(AskedNproc::Gpus), Just(AskedNproc::Cpu),
            (0u32..=9).prop_map(count), Just(count(u32::MAX)),
        ],
        rule in prop_oneof![
            Just(LayoutRule::None), Just(LayoutRule::UlyssesWorld), Just(LayoutRule::UlyssesRing),
        ],
        heads in proptest::option::of(0u32..=64),
        args in proptest::collection::vec(
            prop_oneof![
                "\\PC{0,12}",
                (0u32..=40).prop_map(|n| format!("--ulysses_size={n}")),
                (0u32..=40).prop_map(|n| format!("--ring_size={n}")),
                Just("--ulysses_size={ulysses_size}".to_owned()),
                Just("--ulysses_size={nproc_per_node}".to_owned()),
                Just("{config}".to_owned()),
            ], 0..4),
        engine in engines(),
        used in proptest::collection::vec(proptest::option::of(0u64..=80), 8),
        least in proptest::option::of(0u32..=9),
    ) {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut settings = wan(&args, heads);
        settings.layout.rule.value = rule;
        settings.engine.value = engine;
        settings.min_nproc = least.map(|least| flag(least, "--min-nproc"));
        settings.selects = vec![select(16, "16.py"), select(8, "8.py")];
        let mut node = facts(gpus);
        for (gpu, used) in node.gpus.gpus.iter_mut().zip(used) {
            gpu.memory_used = used.map(|gib| gib << 30);
        }
        match planned(&settings, &node, nnodes, &asked) {
            Err(refusal) => prop_assert!(!refusal.hint.en.is_empty() && refusal.verdict.code() < 128),
            Ok(plan) => {
                let layout = &plan.layout;
                prop_assert_eq!(Some(plan.world_size), nnodes.checked_mul(plan.nproc_per_node));
                let heads = heads.filter(|heads| *heads > 0);
                prop_assert!(is_legal(rule, plan.world_size, heads, layout.ulysses_size, layout.ring_size));
                let selected = plan.gpus.iter().filter(|gpu| gpu.selected).count();
                if gpus > 0 && asked != AskedNproc::Cpu {
                    prop_assert_eq!(selected, plan.nproc_per_node as usize);
                }
                prop_assert!(least.is_none_or(|least| plan.nproc_per_node >= least));
                let line = exec_argv(&plan, Path::new("/rl"), &EngineOptions::default());
                prop_assert!(!line.is_empty());
            }
        }
    }
}
