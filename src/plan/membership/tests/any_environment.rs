//! Any values of any known variables give a consistent membership or a refusal.

use std::os::unix::ffi::OsStringExt as _;

use proptest::prelude::*;

use super::claims::MOST_NODES;
use settings::{Engine, WorldSizeCounts};

use super::*;

/// Every variable that any contract reads, so that new rows are covered automatically.
fn names() -> impl Strategy<Value = &'static str> {
    prop::sample::select(Contract::known_variables())
}

fn values() -> impl Strategy<Value = Vec<u8>> {
    let plain = prop::sample::select(vec![
        "",
        "0",
        "1",
        "2",
        "3",
        "4",
        "8",
        "16",
        "-1",
        "None",
        "null",
        "auto",
        "gpu",
        "1:4",
        "2:2",
        "4:1",
        ":",
        "localhost",
        "127.0.0.1",
        "10.0.0.1",
        "j-master-0",
        "j-master-0:23456",
        "[::1]:5",
        "fd00::1",
        "tcp://10.0.0.1:29500",
        "29500",
        "70000",
        "4294967295",
        "99999999999999999999",
        "[\"a\",\"b\"]",
        "a,b",
        "n[01-02,",
        "n[",
        "8(x2)",
        "é",
        "c10d",
        "static",
        "$(X)",
        " 2 ",
        "2.0",
    ]);
    prop_oneof![
        8 => plain.prop_map(|value| value.as_bytes().to_vec()),
        1 => prop::collection::vec(1u8.., 0..12),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_environment_gives_valid_membership_or_refusal(
        pairs in prop::collection::btree_map(names(), values(), 0..24),
        visible in 0usize..10,
        counts in prop::sample::select(vec![
            WorldSizeCounts::Auto, WorldSizeCounts::Nodes, WorldSizeCounts::Processes,
        ]),
        nodes in prop::option::weighted(0.2, 0u32..5),
        engine in prop::sample::select(vec![Engine::Torchrun, Engine::Direct]),
    ) {
        let environment = pairs
            .into_iter()
            .map(|(name, value)| (OsString::from(name), OsString::from_vec(value)))
            .collect();
        let mut settings = undecided();
        settings.world_size_counts.value = counts;
        settings.engine.value = engine;
        settings.nnodes = nodes.and_then(|nodes| flag("--nnodes", nodes));
        let told = tell(&settings, &Host::replayed("/nonexistent", environment), &gpus(visible));
        match told.result {
            Ok(member) => {
                prop_assert!(member.node_rank < member.nnodes);
                prop_assert!(member.nnodes <= MOST_NODES);
                prop_assert!(member.master_port != 0);
                if let Some(task) = &member.task {
                    prop_assert!(engine == Engine::Direct);
                    prop_assert!(task.rank.0 < task.world && task.local.0 < task.of);
                    prop_assert!(task.of <= task.world);
                }
                prop_assert!(claims::host_problem(&member.master_addr).is_none());
                prop_assert_eq!(member.master_port_free, member.members() == 1 && member.elastic.is_none());
                for what in ["nnodes", "master_addr", "master_port"] {
                    let given = told.notes.decisions.iter().filter(|one| one.what == what).count();
                    prop_assert_eq!(given, 1, "{}", what);
                }
            }
            Err(refusal) => {
                prop_assert!(!refusal.text.en.is_empty() && refusal.hint.en.contains("--"));
                prop_assert_eq!(refusal.verdict.code(), 65);
            }
        }
    }
}
