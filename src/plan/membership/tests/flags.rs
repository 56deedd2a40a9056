//! Flags together with variables, the meaning of counts, and the recorded reasons.

use settings::{Nproc, WorldSizeCounts};
use verdict::Id;

use super::*;

#[test]
fn flags_beat_the_platform() {
    let env = "WORLD_SIZE=4 RANK=3 MASTER_ADDR=j-worker-0 MASTER_PORT=23456";
    let told = |change: &dyn Fn(&mut Settings), env: &str| {
        let mut settings = undecided();
        change(&mut settings);
        tell(&settings, &host(env), &gpus(8)).line()
    };
    let two = |s: &mut Settings| {
        s.nnodes = flag("--nnodes", 2);
        s.node_rank = flag("--node-rank", 1);
    };
    assert_eq!(told(&two, env), "flags 2 1 j-worker-0:23456");
    let addr = |s: &mut Settings| {
        s.master_addr = flag("--master-addr", "10.0.0.9".to_owned());
        s.master_port = flag("--master-port", 1234);
    };
    assert_eq!(told(&addr, env), "generic 4 3 10.0.0.9:1234");
    assert_eq!(
        told(&addr, "WORLD_SIZE=2 RANK=0 MASTER_ADDR=None MASTER_PORT=x"),
        "generic 2 0 10.0.0.9:1234"
    );
    // Every pod is a job of its own, whatever the platform claims.
    let alone = |s: &mut Settings| s.nnodes = flag("--nnodes", 1);
    assert_eq!(told(&alone, env), "flags 1 0 127.0.0.1:29500 free membership.alone");
    let pet = "PET_NNODES=4 PET_NODE_RANK=0 WORLD_SIZE=4 RANK=0 MASTER_ADDR=j-master-0";
    assert_eq!(told(&alone, pet), "flags 1 0 127.0.0.1:23456 free membership.alone");
    // WORLD_SIZE may count the processes of this node.
    assert_eq!(told(&alone, "WORLD_SIZE=4 RANK=0"), "flags 1 0 127.0.0.1:29500 free");
    // The index of an indexed Job is a node rank only once the count is known.
    let three = |s: &mut Settings| s.nnodes = flag("--nnodes", 3);
    assert_eq!(told(&three, "JOB_COMPLETION_INDEX=2 MASTER_ADDR=j-0.j"), "generic 3 2 j-0.j:29500");
    assert_eq!(told(&three, "JOB_COMPLETION_INDEX=3 MASTER_ADDR=j-0.j"), "refused membership.rank");
    assert_eq!(
        told(&three, "PET_NNODES=1:4 PET_RDZV_ENDPOINT=a:1 PET_RDZV_BACKEND=c10d"),
        "refused membership.half-given"
    );
    let ray = |s: &mut Settings| {
        s.nnodes = flag("--nnodes", 2);
        s.node_rank = flag("--node-rank", 1);
    };
    assert_eq!(
        told(&ray, "RAY_CLUSTER_NAME=r RAY_NODE_TYPE_NAME=g FQ_RAY_IP=r-head"),
        "flags 2 1 r-head:29500"
    );
    // Values that a user sets on a bare host: the port of this job, and flags.
    let by_hand = |s: &mut Settings| {
        two(s);
        s.master_addr = flag("--master-addr", "10.0.0.9".to_owned());
    };
    assert_eq!(told(&by_hand, "MASTER_PORT=29600"), "flags 2 1 10.0.0.9:29600");
    assert_eq!(told(&by_hand, "MASTER_PORT=tcp://10.0.0.1:1"), "flags 2 1 10.0.0.9:29500");
    let none = |s: &mut Settings| s.nnodes = flag("--nnodes", 0);
    assert_eq!(told(&none, env), "refused membership.number");
    let port = |s: &mut Settings| s.master_port = flag("--master-port", 0);
    assert_eq!(told(&port, env), "refused membership.master-port");
    let rank = |s: &mut Settings| s.node_rank = flag("--node-rank", 4);
    assert_eq!(told(&rank, env), "refused membership.rank");
}

#[test]
fn world_size_counts_processes_when_told_so() {
    let env = "WORLD_SIZE=16 RANK=1 MASTER_ADDR=a";
    let told = |nproc: Option<u32>, visible: usize, env: &str| {
        let mut settings = undecided();
        settings.world_size_counts.value = WorldSizeCounts::Processes;
        if let Some(n) = nproc {
            settings.nproc_per_node =
                Sourced::new(Nproc::Count(n), Source::Flag("--nproc-per-node".to_owned()));
        }
        tell(&settings, &host(env), &gpus(visible)).line()
    };
    assert_eq!(told(None, 8, env), "generic 2 1 a:29500");
    assert_eq!(told(Some(4), 8, env), "generic 4 1 a:29500");
    assert_eq!(told(None, 5, env), "refused membership.processes");
    assert_eq!(told(None, 0, env), "refused membership.processes");
    assert_eq!(told(Some(0), 8, env), "refused membership.processes");
    assert_eq!(told(None, 8, "WORLD_SIZE=4 RANK=0 MASTER_ADDR=a"), "refused membership.processes");
    assert_eq!(told(None, 8, "WORLD_SIZE=16 RANK=8 MASTER_ADDR=a"), "refused membership.rank");
    assert_eq!(
        told(None, 8, "WORLD_SIZE=16 RANK=1 MASTER_ADDR=a NPROC_PER_NODE=4"),
        "generic 4 1 a:29500"
    );
}

#[test]
fn every_value_has_a_reason() {
    let told =
        of("PET_NNODES=2 PET_NODE_RANK=1 WORLD_SIZE=16 RANK=1 MASTER_ADDR=a MASTER_PORT=23456");
    assert_eq!(
        told.sources(),
        [
            ("nnodes", "2", "PET_NNODES=2"),
            ("world_size_counts", "processes", "WORLD_SIZE=16"),
            ("node_rank", "1", "PET_NODE_RANK=1"),
            ("master_addr", "a", "MASTER_ADDR=a"),
            ("master_port", "23456", "MASTER_PORT=23456"),
        ]
    );
    let plain = of("WORLD_SIZE=8 RANK=0 MASTER_ADDR=a");
    let because = &plain.notes.decisions.first().expect("nnodes is decided").because;
    assert!(because.en.contains("--world-size-counts processes"), "{}", because.en);
    assert!(because.zh.contains("--world-size-counts processes"), "{}", because.zh);
}

/// Only a WORLD_SIZE that counts processes needs the GPUs, and only if nothing else tells the
/// processes per node.
#[test]
fn membership_is_known_before_gpus_are_counted() {
    let processes = |count| {
        let mut settings = undecided();
        settings.world_size_counts = Sourced::new(WorldSizeCounts::Processes, Source::Default);
        settings.nproc_per_node = match count {
            Some(n) => Sourced::new(Nproc::Count(n), Source::Flag("--nproc-per-node".to_owned())),
            None => settings.nproc_per_node,
        };
        settings
    };
    let job = "WORLD_SIZE=16 RANK=1 MASTER_ADDR=a";
    for (settings, pairs, before, after) in [
        (undecided(), job, Ok(16), Ok(16)),
        (undecided(), "", Ok(1), Ok(1)),
        (processes(None), job, Err("membership.processes"), Ok(2)),
        (processes(Some(4)), job, Ok(4), Ok(4)),
        (processes(None), &format!("{job} NPROC_PER_NODE=2"), Ok(8), Ok(8)),
    ] {
        let contract = Contract::read(&host(pairs), None, None);
        let nodes = |member: Result<Membership, Refusal>| match member {
            Ok(member) => Ok(member.nnodes),
            Err(refusal) => Err(refusal.id),
        };
        let (mut early, mut late) = (Notes::default(), Notes::default());
        let known = nodes(identity(&settings, &contract, &mut early));
        assert_eq!(known.map_err(Id::as_str), before, "{pairs}");
        let counted = nodes(membership(&settings, &contract, &gpus(8), &mut late));
        assert_eq!(counted.map_err(Id::as_str), after, "{pairs}");
        if known.is_ok() {
            assert_eq!(early.decisions, late.decisions, "{pairs}");
        }
    }
}

#[test]
fn torchrun_above_is_refused_but_leftovers_are_not() {
    let mut contract = Contract::read(&host(""), None, None);
    contract.inside_torchrun = Some((41, "python -m torch.distributed.run a.py".to_owned()));
    let run = |settings: &Settings, contract: &Contract| {
        let mut notes = Notes::default();
        membership(settings, contract, &gpus(0), &mut notes)
    };
    let refusal = run(&undecided(), &contract).expect_err("nested");
    assert_eq!(refusal.id, Id::Nested);
    assert!(refusal.text.en.contains("41") && refusal.hint.en.contains("--nested"));
    let nested = Settings { nested: true, ..undecided() };
    assert_eq!(run(&nested, &contract).map(|member| member.nnodes), Ok(1));

    // A shell with variables of an earlier rank: its own node count is still right.
    let leftovers = "LOCAL_RANK=3 LOCAL_WORLD_SIZE=8 GROUP_RANK=0 GROUP_WORLD_SIZE=1 RANK=3 WORLD_SIZE=8 TORCHELASTIC_RUN_ID=x MASTER_ADDR=127.0.0.1";
    assert_eq!(of(leftovers).line(), "torchrun-worker 1 0 127.0.0.1:29500 free env.stale-rank");
}

#[test]
fn requested_process_count_follows_the_strongest_source() {
    let asked = |nproc: Option<Nproc>, env: &str| {
        let mut settings = undecided();
        if let Some(value) = nproc {
            settings.nproc_per_node =
                Sourced::new(value, Source::Flag("--nproc-per-node".to_owned()));
        }
        match asked_nproc(&settings, &Contract::read(&host(env), None, None)) {
            Ok(AskedNproc::Count { n, source }) => format!("{n} {source}"),
            Ok(other) => format!("{other:?}"),
            Err(refusal) => format!("refused {}", refusal.id),
        }
    };
    let pet = |value: &str| format!("PET_NNODES=1 PET_NPROC_PER_NODE={value}");
    assert_eq!(asked(None, ""), "Auto");
    assert_eq!(asked(None, &pet("8")), "8 PET_NPROC_PER_NODE=8");
    assert_eq!(asked(None, &pet("auto")), "Auto");
    assert_eq!(asked(None, &pet("gpu")), "Gpus");
    assert_eq!(asked(None, &pet("cpu")), "Cpu");
    assert_eq!(asked(None, &pet("")), "Auto");
    for bad in ["0", "-1", "xpu", "5000"] {
        assert_eq!(asked(None, &pet(bad)), "refused membership.nproc", "{bad}");
    }
    assert_eq!(asked(Some(Nproc::Count(5)), &pet("8")), "5 --nproc-per-node");
    assert_eq!(asked(Some(Nproc::Auto), &pet("8")), "Auto");
    assert_eq!(asked(Some(Nproc::Gpu), &pet("8")), "Gpus");
    assert_eq!(asked(Some(Nproc::Cpu), &pet("auto")), "Cpu");
    // KubeBrain's number is a capacity, not a request: two nodes of 8 and 40 heads need 5.
    let kubebrain = "KUBEBRAIN_REPLICA=0 PROC_PER_NODE=8";
    assert_eq!(asked(None, kubebrain), "Auto");
    assert_eq!(
        offered_nproc(&Contract::read(&host(kubebrain), None, None)),
        Some((8, "PROC_PER_NODE=8".to_owned()))
    );
}

/// Every host gets the same line.
#[test]
fn host_list_is_the_whole_membership() {
    let list = |hosts: &str| hosts.split(',').map(str::to_owned).collect::<Vec<_>>();
    let told = |own: &str, change: &dyn Fn(&mut Settings), env: &str| {
        let mut settings = undecided();
        settings.nodes = flag("--nodes", list("host0,host1,10.0.0.3"));
        change(&mut settings);
        let mut contract = Contract::read(&host(env), None, None);
        contract.own_names = list(own);
        let mut notes = Notes::default();
        let result = membership(&settings, &contract, &gpus(8), &mut notes);
        Told { result, notes }
    };
    let none = |_: &mut Settings| {};
    for (own, expected) in [
        ("host0,10.0.0.1", "flags 3 0 host0:29500"),
        ("host1,10.0.0.2", "flags 3 1 host0:29500"),
        ("other,127.0.0.1,10.0.0.3", "flags 3 2 host0:29500"),
        ("other,10.0.0.4", "refused membership.rank"),
        ("host1,10.0.0.3", "refused membership.rank"),
    ] {
        // A platform's variables describe another job.
        for env in ["", "WORLD_SIZE=2 RANK=0 MASTER_ADDR=a", "PET_NNODES=1:4 MASTER_PORT=29500"] {
            let told = told(own, &none, env);
            let line = told.line().replace(" membership.world-size", "");
            assert_eq!(line, expected, "{own} {env}: {}", told.text());
        }
    }
    let known = told("host1,10.0.0.2", &none, "");
    let place = ("nodes", "host0, host1, 10.0.0.3", "--nodes");
    assert!(known.sources().contains(&place), "{:?}", known.sources());
    for words in ["host0, host1, 10.0.0.3", "n9, 10.0.0.9"] {
        let text = told("n9,127.0.0.1,fe80::1,10.0.0.9", &none, "").text();
        assert!(text.contains(words) && !text.contains("fe80"), "{text}");
    }

    // Values beside the list count if they are not weaker.
    let profile = |line: usize| Source::Profile { file: "p.toml".to_owned(), line };
    let line = |own: &str, change: &dyn Fn(&mut Settings)| told(own, change, "").line();
    let place = |s: &mut Settings| s.node_rank = flag("--node-rank", 2);
    assert_eq!(line("behind-nat,192.168.0.7", &place), "flags 3 2 host0:29500");
    let beyond = |s: &mut Settings| s.node_rank = flag("--node-rank", 3);
    assert_eq!(line("host0", &beyond), "refused membership.rank");
    let address = |s: &mut Settings| s.master_addr = flag("--master-addr", "10.1.0.1".to_owned());
    assert_eq!(line("host1", &address), "flags 3 1 10.1.0.1:29500");
    let same = |s: &mut Settings| s.nnodes = flag("--nnodes", 3);
    assert_eq!(line("host1", &same), "flags 3 1 host0:29500");
    for count in [1, 2] {
        let other = |s: &mut Settings| s.nnodes = flag("--nnodes", count);
        assert_eq!(line("host1", &other), "refused membership.contradiction");
    }
    let weak = |s: &mut Settings| {
        s.nnodes = Some(Sourced::new(1, profile(1)));
        s.node_rank = Some(Sourced::new(0, profile(2)));
        s.master_addr = Some(Sourced::new("old".to_owned(), profile(3)));
    };
    assert_eq!(line("host1", &weak), "flags 3 1 host0:29500");
    let alone = |s: &mut Settings| {
        s.nodes = Some(Sourced::new(list("host0,host1"), profile(1)));
        s.nnodes = flag("--nnodes", 1);
    };
    assert_eq!(line("laptop", &alone), "flags 1 0 127.0.0.1:29500 free");
}
