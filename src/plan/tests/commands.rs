//! The command line of each engine.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

use crate::fixtures::{count, facts, flag, member, planned, settings, strings, wan, warned};
use crate::solve::plan_for;
use crate::{AskedNproc, EngineOptions, Notes, RunIdentity, Scope, argv, exec_argv, rank_env};
use settings::{Engine, Need, Program, Rendezvous, Settings, Sourced};
use text::rank::{GlobalRank, LocalRank, RankId};
use verdict::{Id, Verdict};

use super::network::networked;
use super::{env, id_of, words};

fn with_engine(engine: Engine, args: &[&str]) -> Settings {
    let mut settings = settings(args);
    settings.engine = flag(engine, "--engine");
    settings
}

#[test]
fn torchrun_gets_a_static_rendezvous_and_our_shim() {
    let plan = plan_for(
        &settings(&["--prompt", "a b"]),
        &facts(8),
        member(2, 1),
        &AskedNproc::Auto,
        Scope::Alone,
        &mut Notes::default(),
    )
    .expect("a plan");
    let head = "/opt/python -m torch.distributed.run --nnodes 2 --nproc-per-node 8 --node-rank 1 \
                --rdzv-backend static --master-addr 10.0.0.1 --master-port 29500 --max-restarts 0";
    assert_eq!(words(&argv(&plan)), format!("{head} -- generate.py --prompt a b"));
    assert_eq!(argv(&plan).last(), Some(&OsString::from("a b")));
    let options = EngineOptions {
        log_dir: Some("/tmp/x".into()),
        shutdown_timeout: Some(Duration::from_secs(20)),
    };
    assert_eq!(
        words(&exec_argv(&plan, Path::new("/rl"), &options)),
        format!(
            "{head} --log-dir /tmp/x --shutdown-timeout 20 --no-python /rl rank -- \
             /opt/python -u generate.py --prompt a b"
        )
    );
}

#[test]
fn flags_unknown_to_the_installed_torch_are_dropped() {
    let options = EngineOptions { log_dir: None, shutdown_timeout: Some(Duration::from_secs(20)) };
    // version, shutdown-timeout, hyphens
    let cases = [
        (Some("2.15.0+cu130"), true, true),
        (Some("2.15.0a0+git123"), true, true),
        (Some("2.14.1"), false, true),
        (Some("2.9.0"), false, true),
        (Some("1.13.1"), false, false),
        (Some("odd"), false, true),
        (None, false, true),
    ];
    for (version, shutdown, hyphens) in cases {
        let mut plan = planned(&settings(&[]), &facts(1), 1, &AskedNproc::Auto).expect("a plan");
        plan.torch_version = version.map(str::to_owned);
        let line = words(&exec_argv(&plan, Path::new("/rl"), &options));
        assert_eq!(line.contains("--shutdown-timeout 20"), shutdown, "{version:?}");
        assert_eq!(line.contains("--nproc-per-node"), hyphens, "{version:?}");
        assert_eq!(line.contains("--nproc_per_node"), !hyphens, "{version:?}");
    }
}

#[test]
fn c10d_names_its_host_and_shares_its_id() {
    let mut settings = settings(&[]);
    settings.rdzv = flag(Rendezvous::C10d, "--rdzv");
    let plan = planned(&settings, &networked(), 2, &AskedNproc::Auto).expect("a plan");
    let line = words(&argv(&plan));
    for part in [
        "--rdzv-backend c10d",
        "--rdzv-endpoint 10.0.0.1:29500",
        "--rdzv-id {run_id}",
        "--rdzv-conf is_host=1,join_timeout=1800,read_timeout=300",
        "--local-addr 10.1.0.2",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(!line.contains("--node-rank"));
    let identity = RunIdentity {
        run_id: "job-1".into(),
        timestamp: String::new(),
        master_port: 29500,
        resume: None,
    };
    assert!(words(&argv(&plan.finish(&identity))).contains("--rdzv-id job-1"));
    settings.muster = flag(Need::Off, "--muster");
    let plan = planned(&settings, &networked(), 2, &AskedNproc::Auto).expect("a plan");
    assert!(words(&argv(&plan.finish(&identity))).contains("--rdzv-id ranklaunch"));
}

#[test]
fn an_elastic_job_is_passed_through() {
    let mut elastic = member(4, 0);
    elastic.elastic = Some((2, 4));
    let plan = plan_for(
        &wan(&[], Some(40)),
        &facts(8),
        elastic,
        &AskedNproc::Auto,
        Scope::Alone,
        &mut Notes::default(),
    )
    .expect("a plan");
    let line = words(&argv(&plan));
    assert!(line.contains("--nnodes 2:4") && line.contains("--rdzv-backend c10d"), "{line}");
    assert!(!line.contains("is_host"));
    assert!(warned(&plan, Id::LayoutElastic));
}

#[test]
fn accelerate_counts_all_processes_and_keeps_a_configuration() {
    let mut settings = with_engine(Engine::Accelerate, &["--x"]);
    let line = |settings: &Settings, nnodes| {
        let plan = planned(settings, &facts(8), nnodes, &AskedNproc::Auto).expect("a plan");
        words(&exec_argv(&plan, Path::new("/rl"), &EngineOptions::default()))
    };
    assert_eq!(
        line(&settings, 2),
        "/opt/python -m accelerate.commands.launch --num_machines 2 --num_processes 16 \
         --machine_rank 0 --main_process_ip 10.0.0.1 --main_process_port 29500 \
         --rdzv_backend static --max_restarts 0 --mixed_precision no --dynamo_backend no \
         --multi_gpu --deepspeed_multinode_launcher standard \
         --no_python /rl rank -- /opt/python -u generate.py --x"
    );
    settings.engine_args = vec!["--config_file".into(), "ds.yaml".into()];
    let with_file = line(&settings, 2);
    assert!(with_file.contains("--config_file ds.yaml --no_python"));
    for unwanted in ["--multi_gpu", "--mixed_precision", "--dynamo_backend"] {
        assert!(!with_file.contains(unwanted), "{unwanted}");
    }
}

#[test]
fn deepspeed_gets_the_devices_as_base64() {
    let settings = with_engine(Engine::Deepspeed, &[]);
    let plan = planned(&settings, &facts(4), 2, &count(2)).expect("a plan");
    let line = words(&argv(&plan));
    // {"node-0":[0,1],"node-1":[0,1]}
    assert!(
        line.contains("--world_info eyJub2RlLTAiOlswLDFdLCJub2RlLTEiOlswLDFdfQ== --node_rank 0"),
        "{line}"
    );
    assert!(line.contains("--no_local_rank -- generate.py"), "{line}");
}

#[test]
fn direct_and_command_run_the_program_itself() {
    let direct = planned(&with_engine(Engine::Direct, &["a"]), &facts(2), 2, &AskedNproc::Auto)
        .expect("a plan");
    assert_eq!(words(&argv(&direct)), "/opt/python -u generate.py a");
    assert_eq!(
        words(&exec_argv(&direct, Path::new("/rl"), &EngineOptions::default())),
        "/rl rank -- /opt/python -u generate.py a"
    );
    let ranks = rank_env(
        &direct,
        RankId {
            global: GlobalRank(direct.membership.node_rank * direct.nproc_per_node + 1),
            local: LocalRank(1),
        },
    );
    for (name, value) in
        [("RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "10.0.0.1")]
    {
        assert_eq!(ranks.get(name).map(OsString::as_os_str), Some(OsStr::new(value)), "{name}");
    }
    let mut settings = with_engine(Engine::Command, &[]);
    settings.program =
        Some(Sourced::default_value(Program::Command { argv: strings(&["bash", "train.sh"]) }));
    let mut node = facts(2);
    node.python.interpreter = None;
    let command = planned(&settings, &node, 2, &AskedNproc::Auto).expect("needs no python");
    assert_eq!(
        words(&exec_argv(&command, Path::new("/rl"), &EngineOptions::default())),
        "bash train.sh"
    );
    for (name, value) in [
        ("NNODES", "2"),
        ("NODE_RANK", "0"),
        ("NPROC_PER_NODE", "2"),
        ("MASTER_ADDR", "10.0.0.1"),
        ("MASTER_PORT", "29500"),
        ("ULYSSES_SIZE", "1"),
    ] {
        assert_eq!(env(&command, name), Some(value), "{name}");
    }
}

#[test]
fn modules_and_programs_are_started_as_such() {
    let mut settings = settings(&[]);
    settings.program = Some(Sourced::default_value(Program::Module {
        name: "pkg.train".into(),
        args: strings(&["-v"]),
    }));
    let plan = planned(&settings, &facts(1), 1, &AskedNproc::Auto).expect("a plan");
    assert!(words(&argv(&plan)).ends_with("--module -- pkg.train -v"));
    let exec = words(&exec_argv(&plan, Path::new("/rl"), &EngineOptions::default()));
    assert!(exec.ends_with("/rl rank -- /opt/python -u -m pkg.train -v"), "{exec}");
    settings.program =
        Some(Sourced::default_value(Program::Command { argv: strings(&["./a.out"]) }));
    let plan = planned(&settings, &facts(1), 1, &AskedNproc::Auto).expect("a plan");
    assert!(words(&argv(&plan)).ends_with("--no-python -- ./a.out"));
}

#[test]
fn missing_interpreter_or_program_is_refused() {
    let mut node = facts(1);
    node.python.interpreter = None;
    let refused = planned(&settings(&[]), &node, 1, &AskedNproc::Auto);
    assert_eq!(id_of(refused), (Verdict::Python, Id::PythonInterpreter));
    let mut copied = settings(&[]);
    copied.host_root = Some("/copy".into());
    let plan = planned(&copied, &node, 1, &AskedNproc::Auto).expect("copied facts");
    assert!(warned(&plan, Id::PythonInterpreter));
    assert_eq!(plan.runnable().map_err(|r| r.verdict), Err(Verdict::Python));
    assert!(plan.has_program().is_ok(), "a program it has");
    let mut empty = settings(&[]);
    empty.program = None;
    let plan = planned(&empty, &facts(1), 1, &AskedNproc::Auto).expect("a look at the node");
    assert_eq!(plan.runnable().map_err(|r| r.verdict), Err(Verdict::Usage));
}
