//! Whole plans: what a node with these facts and settings would run.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;

use crate::host::Host;
use crate::observe::{Hca, HcaPort, Interface, MasterRoute, NcclSetting};
use crate::plan::fixtures::{
    count, facts, flag, member, planned, profile, settings, strings, wan, warned,
};
use crate::plan::layout::is_legal;
use crate::plan::solve::plan_for;
use crate::plan::{
    AskedNproc, EngineOptions, Notes, Plan, RunIdentity, Scope, argv, exec_argv, plan, rank_env,
};
use crate::rank::{GlobalRank, LocalRank, RankId};
use crate::settings::{
    Device, Engine, EnvSetting, LayoutRule, MusterMode, Program, Rdma, Rendezvous, Select,
    Settings, Source, Sourced,
};
use crate::text;
use crate::verdict::{Id, Refusal, Severity, Verdict, Warning};

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

// devices

#[test]
fn two_nodes_of_eight_gpus_run_five_ranks_each() {
    let settings = wan(&["--ulysses_size", "{ulysses_size}"], Some(40));
    let plan = planned(&settings, &facts(8), 2, &AskedNproc::Auto).expect("a plan");
    assert_eq!((plan.nproc_per_node, plan.world_size, plan.layout.ulysses_size), (5, 10, 10));
    assert_eq!(plan.program.args(), strings(&["--ulysses_size", "10"]));
    assert_eq!(env(&plan, "CUDA_VISIBLE_DEVICES"), Some("0,1,2,3,4"));
    assert!(warned(&plan, Id::GpuUnused));
    assert_eq!(plan.decision("nproc_per_node").map(|d| d.source.as_str()), Some("solved"));
}

#[test]
fn all_gpus_need_no_variable_and_no_warning() {
    let plan = planned(&settings(&[]), &networked(), 2, &AskedNproc::Auto).expect("a plan");
    assert_eq!(env(&plan, "CUDA_VISIBLE_DEVICES"), None);
    assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
    assert!(plan.gpus.iter().all(|gpu| gpu.selected && gpu.local_rank == Some(gpu.index)));
}

#[test]
fn a_subset_is_idle_near_and_of_the_users_own_tokens() {
    let of = |node: &crate::observe::Facts| {
        let plan = planned(&settings(&[]), node, 1, &count(2)).expect("a plan");
        env(&plan, "CUDA_VISIBLE_DEVICES").map(str::to_owned)
    };
    let mut node = facts(8);
    for (gpu, used) in [(0, 40), (1, 40), (2, 40)] {
        node.gpus.gpus[gpu].memory_used = Some(used << 30);
    }
    // GPU 3 is idle too, but alone on its NUMA node.
    assert_eq!(of(&node).as_deref(), Some("4,5"));
    for gpu in &mut node.gpus.gpus {
        gpu.memory_used = Some(u64::from(10 - gpu.index) << 32);
    }
    assert_eq!(of(&node).as_deref(), Some("6,7"));
    let mut node = facts(4);
    node.gpus.cuda_visible_devices = Some("GPU-3,GPU-1,GPU-2".into());
    node.gpus.visible =
        [3, 1, 2].map(|gpu| crate::observe::VisibleGpu { gpu, token: format!("GPU-{gpu}") }).into();
    assert_eq!(of(&node).as_deref(), Some("GPU-3,GPU-1"));
}

#[test]
fn a_node_that_was_meant_to_have_gpus_never_becomes_a_cpu_worker() {
    let nothing = facts(0);
    let mut claimed = facts(0);
    claimed.gpus.requested_by = vec!["GPU_COUNT=8".into()];
    claimed.gpus.attempts =
        vec![(crate::observe::GpuSource::Nvml, text!("libnvidia-ml.so.1 not found", "未找到"))];
    let mut by_device = settings(&[]);
    by_device.device = flag(Device::Gpu, "--device");
    let gpu_count = (Verdict::GpuCount, Id::GpuCount);
    assert_eq!(id_of(planned(&settings(&[]), &claimed, 1, &AskedNproc::Auto)), gpu_count);
    assert_eq!(id_of(planned(&settings(&[]), &claimed, 1, &count(4))), gpu_count);
    assert_eq!(id_of(planned(&settings(&[]), &nothing, 1, &AskedNproc::Gpus)), gpu_count);
    assert_eq!(id_of(planned(&by_device, &nothing, 1, &count(2))), gpu_count);
    assert_eq!(id_of(planned(&settings(&[]), &facts(4), 1, &count(5))), gpu_count);
    let text = planned(&settings(&[]), &claimed, 1, &AskedNproc::Auto).expect_err("refused").text;
    assert!(text.en.contains("GPU_COUNT=8") && text.en.contains("libnvidia-ml.so.1 not found"));
}

#[test]
fn without_evidence_the_ranks_are_cpu_workers() {
    let plan = planned(&settings(&[]), &facts(0), 1, &AskedNproc::Auto).expect("a plan");
    assert_eq!(plan.nproc_per_node, 1);
    assert!(warned(&plan, Id::GpuNone));
    let plan = planned(&settings(&[]), &facts(0), 2, &count(3)).expect("a plan");
    assert_eq!(plan.world_size, 6);
    let plan = planned(&settings(&[]), &facts(0), 1, &AskedNproc::Cpu).expect("a plan");
    assert_eq!(plan.nproc_per_node, 32);
    let mut cpu = settings(&[]);
    cpu.device = flag(Device::Cpu, "--device");
    let plan = planned(&cpu, &facts(8), 1, &count(2)).expect("a plan");
    assert!(plan.warnings.is_empty() && plan.gpus.iter().all(|gpu| !gpu.selected));
    assert_eq!(env(&plan, "CUDA_VISIBLE_DEVICES"), None);
}

#[test]
fn hiding_every_gpu_is_named() {
    let mut node = facts(8);
    node.gpus.visible.clear();
    node.gpus.cuda_visible_devices = Some(String::new());
    node.gpus.requested_by = vec!["/dev/nvidiactl".into()];
    let refusal = planned(&settings(&[]), &node, 1, &AskedNproc::Auto).expect_err("refused");
    assert!(
        refusal.text.en.contains("CUDA_VISIBLE_DEVICES=\"\" hides all 8"),
        "{}",
        refusal.text.en
    );
}

#[test]
fn faults_refuse_unless_their_severity_says_otherwise() {
    let cases = [(Id::GpuFault, Verdict::GpuFault), (Id::GpuFabric, Verdict::GpuFabric)];
    for (id, verdict) in cases {
        let mut node = facts(8);
        let fault = Warning::new(id, text!("lost", "丢失"), text!("reset", "重置"));
        match verdict {
            Verdict::GpuFabric => node.gpus.fabric_faults.push(fault),
            _ => node.gpus.faults.push(fault),
        }
        let mut settings = settings(&[]);
        assert_eq!(id_of(planned(&settings, &node, 1, &AskedNproc::Auto)), (verdict, id));
        settings.severities.insert(id, flag(Severity::Warn, "--severity"));
        assert!(warned(&planned(&settings, &node, 1, &AskedNproc::Auto).expect("a plan"), id));
        settings.severities.insert(id, flag(Severity::Off, "--severity"));
        assert!(!warned(&planned(&settings, &node, 1, &AskedNproc::Auto).expect("a plan"), id));
    }
}

#[test]
fn mig_is_one_process() {
    let mut node = facts(2);
    node.gpus.gpus.iter_mut().for_each(|gpu| gpu.mig = true);
    let plan = planned(&settings(&[]), &node, 1, &AskedNproc::Auto).expect("a plan");
    assert_eq!((plan.nproc_per_node, env(&plan, "CUDA_VISIBLE_DEVICES")), (1, None));
    assert!(warned(&plan, Id::GpuMig));
}

#[test]
fn fewer_gpus_on_another_node_bind_all() {
    let of = |scope| {
        let (asked, mut notes) = (AskedNproc::Auto, Notes::default());
        plan_for(&settings(&[]), &facts(8), member(2, 0), &asked, scope, &mut notes)
            .map(|plan| plan.nproc_per_node)
    };
    let others = |fewest| of(Scope::ForAll { fewest, heads: None });
    assert_eq!((others(6), others(9), of(Scope::Alone)), (Ok(6), Ok(8), Ok(8)));
}

#[test]
fn a_least_number_of_processes_refuses_less() {
    let mut settings = wan(&[], Some(40));
    settings.min_nproc = Some(flag(8, "--min-nproc"));
    let refused = planned(&settings, &facts(8), 2, &AskedNproc::Auto);
    assert_eq!(id_of(refused), (Verdict::Layout, Id::LayoutMinNproc));
    assert!(planned(&settings, &facts(8), 1, &AskedNproc::Auto).is_ok());
}

// layout

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

// selects and placeholders

fn select(total: impl Into<Option<u32>>, config: &str) -> Select {
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
    // A row for every other number, wherever it stands.
    settings.selects.insert(0, select(None, "any.py"));
    for (gpus, expected) in [(4, "any.py"), (8, "8gpu.py")] {
        let plan = planned(&settings, &facts(gpus), 1, &AskedNproc::Auto).expect("a plan");
        assert_eq!(plan.program.args().get(1), Some(&OsString::from(expected)), "{gpus}");
    }
    settings.selects.remove(0);
    settings.program = None;
    settings.engine_args.clear();
    assert!(planned(&settings, &facts(4), 4, &count(3)).is_ok(), "nothing needs a row");
    // Variables need one as arguments do.
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
    // What the container has already is the same, so nothing is said of it.
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
    });
    assert_eq!(finished.program.args(), strings(&["job-1", "{run_id}", "20250102-030405", "2"]));
    assert_eq!(env(&finished, "MASTER_PORT"), Some("41000"));
    assert_eq!(finished.membership.master_port, 41000);
}

// network

fn interface(name: &str, address: &str) -> Interface {
    Interface {
        name: name.into(),
        addresses: vec![address.parse().expect("an address")],
        running: true,
        loopback: name == "lo",
        ..Interface::default()
    }
}

fn networked() -> crate::observe::Facts {
    let mut node = facts(8);
    node.network.interfaces = vec![
        interface("lo", "127.0.0.1"),
        interface("docker0", "172.17.0.1"),
        interface("kube-ipvs0", "10.96.0.1"),
        interface("eth0", "10.0.0.2"),
        interface("eth1", "10.1.0.2"),
    ];
    node.network.master = Some(MasterRoute {
        host: "master".into(),
        addresses: vec!["10.0.0.1".parse().expect("an address")],
        local: false,
        interface: Some("eth1".into()),
        error: None,
    });
    node
}

#[test]
fn the_interface_of_the_route_is_named_exactly() {
    let plan = planned(&settings(&[]), &networked(), 2, &AskedNproc::Auto).expect("a plan");
    assert_eq!(env(&plan, "NCCL_SOCKET_IFNAME"), Some("=eth1"));
    assert_eq!(env(&plan, "GLOO_SOCKET_IFNAME"), Some("eth1"));
    assert_eq!(env(&plan, "TP_SOCKET_IFNAME"), Some("eth1"));
    assert_eq!(plan.network.socket_ifname.as_deref(), Some("eth1"));
    assert_eq!(plan.network.local_addr.map(|own| own.to_string()).as_deref(), Some("10.1.0.2"));
    let single = planned(&settings(&[]), &networked(), 1, &AskedNproc::Auto).expect("a plan");
    assert_eq!((env(&single, "NCCL_SOCKET_IFNAME"), &single.network.socket_ifname), (None, &None));
}

#[test]
fn guesses_go_from_the_masters_address_to_the_first_real_interface() {
    let chosen = |change: &dyn Fn(&mut crate::observe::NetworkFacts)| {
        let mut node = networked();
        change(&mut node.network);
        let plan = planned(&settings(&[]), &node, 2, &AskedNproc::Auto).expect("a plan");
        (plan.network.socket_ifname.clone(), warned(&plan, Id::NetInterface))
    };
    let some = |name: &str| (Some(name.to_owned()), false);
    let master = |address: &str, local, interface: Option<&str>| MasterRoute {
        host: "m".into(),
        addresses: vec![address.parse().expect("an address")],
        local,
        interface: interface.map(str::to_owned),
        error: None,
    };
    assert_eq!(chosen(&|n| n.master = Some(master("10.0.0.2", true, Some("lo")))), some("eth0"));
    // A Service's address on kube-ipvs0 leads nowhere.
    assert_eq!(
        chosen(&|n| {
            n.master = Some(master("10.96.0.1", true, Some("lo")));
            n.default_interface = Some("eth1".into());
        }),
        some("eth1")
    );
    assert_eq!(
        chosen(&|n| {
            n.master = None;
            n.default_interface = Some("docker0".into());
        }),
        some("eth0")
    );
    assert_eq!(
        chosen(&|n| {
            n.master = None;
            n.interfaces.truncate(2);
        }),
        (None, true)
    );
}

#[test]
fn an_existing_interface_setting_is_kept_and_checked() {
    // value, env.nccl warnings, Gloo's interface
    let cases = [
        ("=eth1", 0, "eth1"),
        ("eth", 1, "eth1"),
        ("eth0", 1, "eth0"),
        ("ib0", 1, "eth1"),
        ("eth1,eno1", 1, "eth1"),
        ("^docker0,lo", 1, "eth1"),
        ("", 0, "eth1"),
    ];
    for (value, warnings, gloo) in cases {
        for source in ["environment", "/etc/nccl.conf"] {
            let mut node = networked();
            node.network.nccl = vec![NcclSetting {
                name: "NCCL_SOCKET_IFNAME".into(),
                value: value.into(),
                source: source.into(),
            }];
            let plan = planned(&settings(&[]), &node, 2, &AskedNproc::Auto).expect("a plan");
            let seen = plan.warnings.iter().filter(|warning| warning.id == Id::EnvNccl).count();
            assert_eq!(seen, warnings, "{value:?}: {:?}", plan.warnings);
            assert_eq!(env(&plan, "GLOO_SOCKET_IFNAME"), Some(gloo), "{value:?}");
            assert_eq!(env(&plan, "NCCL_SOCKET_IFNAME").is_some(), value.is_empty());
        }
    }
}

fn rail(name: &str, gigabits: f64, openable: bool) -> Hca {
    Hca {
        name: name.into(),
        openable,
        ports: vec![HcaPort {
            number: 1,
            active: true,
            link_layer: "InfiniBand".into(),
            gigabits: Some(gigabits),
            roce_v2_gid: false,
        }],
        ..Hca::default()
    }
}

#[test]
fn an_exact_list_of_hcas_is_set_only_where_it_differs() {
    let mut node = networked();
    node.hcas = vec![rail("mlx5_0", 400.0, true), rail("mlx5_1", 400.0, true)];
    let plan = planned(&settings(&[]), &node, 2, &AskedNproc::Auto).expect("a plan");
    assert_eq!(plan.network.hcas, ["mlx5_0:1", "mlx5_1:1"]);
    assert_eq!(env(&plan, "NCCL_IB_HCA"), None);
    node.hcas.push(rail("mlx5_2", 100.0, true));
    let plan = planned(&settings(&[]), &node, 2, &AskedNproc::Auto).expect("a plan");
    assert_eq!(env(&plan, "NCCL_IB_HCA"), Some("=mlx5_0:1,mlx5_1:1"));
    node.environment.insert("NCCL_IB_HCA".into(), "mlx5_2".into());
    let plan = planned(&settings(&[]), &node, 2, &AskedNproc::Auto).expect("a plan");
    assert_eq!(
        (env(&plan, "NCCL_IB_HCA"), plan.network.hcas.as_slice()),
        (None, &["mlx5_2:1".to_owned()][..])
    );
    node.environment.insert("NCCL_IB_HCA".into(), "mlx5_100".into());
    let plan = planned(&settings(&[]), &node, 2, &AskedNproc::Auto).expect("a plan");
    assert!(warned(&plan, Id::RdmaPorts));
}

#[test]
fn required_rdma_refuses_a_node_without() {
    let mut settings = settings(&[]);
    settings.rdma = Sourced::new(Rdma::Required, profile(7));
    let mut node = networked();
    let rdma = (Verdict::Rdma, Id::RdmaPorts);
    assert_eq!(id_of(planned(&settings, &node, 2, &AskedNproc::Auto)), rdma);
    node.hcas = vec![rail("mlx5_0", 400.0, false)];
    assert_eq!(id_of(planned(&settings, &node, 2, &AskedNproc::Auto)), rdma);
    node.hcas = vec![rail("mlx5_0", 400.0, true)];
    assert!(planned(&settings, &node, 2, &AskedNproc::Auto).is_ok());
    node.environment.insert("NCCL_IB_DISABLE".into(), "1".into());
    assert_eq!(id_of(planned(&settings, &node, 2, &AskedNproc::Auto)), rdma);
}

#[test]
fn dead_and_harmful_variables_are_named_with_their_source() {
    let mut node = facts(8);
    for (name, value) in [
        ("NCCL_TIMEOUT", "10800"),
        ("TORCH_DISTRIBUTED_TIMEOUT", "10800"),
        ("NCCL_MIN_NRINGS", "8"),
        ("NCCL_IB_DISABLE", "1"),
        ("NCCL_SOCKET_FAMILY", "ipv4"),
        ("NCCL_DEBUG", "INFO"),
        ("NCCL_P2P_DISABLE", "0"),
    ] {
        node.environment.insert(name.into(), value.into());
    }
    let named = |node: &crate::observe::Facts| {
        let plan = planned(&settings(&[]), node, 1, &AskedNproc::Auto).expect("a plan");
        plan.warnings
            .iter()
            .filter_map(|warning| warning.text.en.split('=').next().map(str::to_owned))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        named(&node),
        ["NCCL_TIMEOUT", "TORCH_DISTRIBUTED_TIMEOUT", "NCCL_MIN_NRINGS", "NCCL_SOCKET_FAMILY"]
    );
    node.hcas = vec![rail("mlx5_0", 400.0, true)];
    assert!(named(&node).contains(&"NCCL_IB_DISABLE".to_owned()));
}

// environment

#[test]
fn nothing_that_is_set_is_replaced_silently() {
    let mut settings = settings(&[]);
    let flag = || Source::Flag("--env".into());
    settings.env = vec![
        set("HF_HOME", "/profile", profile(4)),
        set("FROM_PROFILE", "1", profile(5)),
        set("NCCL_DEBUG", "INFO", flag()),
        set("OMP_NUM_THREADS", "3", flag()),
    ];
    let mut node = facts(8);
    node.environment.insert("HF_HOME".into(), "/container".into());
    node.environment.insert("NCCL_DEBUG".into(), "WARN".into());
    node.python.activation.insert("CONDA_PREFIX".into(), "/opt/conda".into());
    let plan = planned(&settings, &node, 1, &AskedNproc::Auto).expect("a plan");
    let expected = [
        ("HF_HOME", None),
        ("FROM_PROFILE", Some("1")),
        ("NCCL_DEBUG", Some("INFO")),
        ("OMP_NUM_THREADS", Some("3")),
        ("CONDA_PREFIX", Some("/opt/conda")),
        ("PYTHONUNBUFFERED", Some("1")),
        ("MASTER_ADDR", None),
    ];
    for (name, value) in expected {
        assert_eq!(env(&plan, name), value, "{name}");
    }
    assert_eq!(plan.decision("NCCL_DEBUG").map(|d| d.value.as_str()), Some("INFO"));
    assert_eq!(plan.decision("HF_HOME").map(|d| d.value.as_str()), Some("/container"));
    let plain = planned(&crate::plan::fixtures::settings(&[]), &node, 1, &AskedNproc::Auto);
    assert_eq!(plain.as_ref().ok().and_then(|p| env(p, "OMP_NUM_THREADS")), Some("4"));
}

/// Slurm without a task plugin binds nothing, so that the node's CPUs all seem to be ours.
#[test]
fn threads_keep_to_the_cpus_that_slurm_gave() {
    let threads = |pairs: &[(&str, &str)]| {
        let environment =
            pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let mut node = facts(2);
        node.contract =
            crate::observe::contract(&Host::replayed("/nonexistent", environment), None);
        let plan = planned(&settings(&[]), &node, 1, &AskedNproc::Auto);
        let plan = plan.expect("a plan");
        let decision = plan.decision("OMP_NUM_THREADS").expect("a decision");
        format!("{} {}", decision.value, decision.source)
    };
    let step = [("SLURM_JOB_ID", "7"), ("SLURM_STEP_NUM_NODES", "1"), ("SLURM_NODEID", "0")];
    let with = |more: &[(&'static str, &'static str)]| threads(&[&step[..], more].concat());
    assert_eq!(with(&[]), "16 detected");
    assert_eq!(with(&[("SLURM_CPUS_PER_TASK", "4")]), "2 SLURM_CPUS_PER_TASK=4");
    assert_eq!(with(&[("SLURM_CPUS_ON_NODE", "8")]), "4 SLURM_CPUS_ON_NODE=8");
    let both = [("SLURM_CPUS_ON_NODE", "8"), ("SLURM_CPUS_PER_TASK", "4")];
    assert_eq!(with(&both), "2 SLURM_CPUS_PER_TASK=4");
    assert_eq!(with(&[("SLURM_CPUS_PER_TASK", "64")]), "16 detected");
    // The step of a daemon of mpirun says nothing about us.
    let mpi = [("SLURM_CPUS_PER_TASK", "1"), ("OMPI_COMM_WORLD_SIZE", "1")];
    assert_eq!(with(&mpi), "16 detected");
}

#[test]
fn platform_variables_of_torchrun_never_reach_it() {
    let mut node = facts(2);
    node.contract.pet_variables = vec!["PET_NNODES".into()];
    node.contract.stale_rank_variables = vec!["TORCHELASTIC_SOMETHING".into()];
    let plan = planned(&settings(&[]), &node, 1, &AskedNproc::Auto).expect("a plan");
    for name in ["PET_NNODES", "TORCHELASTIC_SOMETHING", "LOCAL_RANK", "RANK", "WORLD_SIZE"] {
        assert!(plan.env_remove.iter().any(|removed| removed == name), "{name}");
    }
}

// command lines

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
    assert_eq!(words(&argv(&plan)), format!("{head} generate.py --prompt a b"));
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
fn flags_that_the_installed_torch_does_not_know_are_not_passed() {
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
    let identity =
        RunIdentity { run_id: "job-1".into(), timestamp: String::new(), master_port: 29500 };
    assert!(words(&argv(&plan.finish(&identity))).contains("--rdzv-id job-1"));
    settings.muster = flag(MusterMode::Off, "--muster");
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
    assert!(line.contains("--no_local_rank generate.py"), "{line}");
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
    assert!(words(&argv(&plan)).ends_with("--module pkg.train -v"));
    let exec = words(&exec_argv(&plan, Path::new("/rl"), &EngineOptions::default()));
    assert!(exec.ends_with("/rl rank -- /opt/python -u -m pkg.train -v"), "{exec}");
    settings.program =
        Some(Sourced::default_value(Program::Command { argv: strings(&["./a.out"]) }));
    let plan = planned(&settings, &facts(1), 1, &AskedNproc::Auto).expect("a plan");
    assert!(words(&argv(&plan)).ends_with("--no-python ./a.out"));
}

#[test]
fn a_missing_interpreter_or_program_is_refused() {
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

#[test]
fn one_node_without_any_contract_is_planned_whole() {
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
    fn any_node_gets_a_legal_plan_or_a_refusal(
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

#[test]
fn settings_of_nccl_and_gloo_are_judged_as_they_are_read() {
    // variable, value, part of the finding ("" for none)
    let table: &[(&str, &str, &str)] = &[
        ("NCCL_LAUNCH_MODE", "GROUP", "deprecated"),
        ("NCCL_LAUNCH_MODE", "PARALLEL", ""),
        ("NCCL_CHECK_POINTERS", "1", "old name"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", "hanging"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", ""),
        ("CUDA_LAUNCH_BLOCKING", "1", "wait for the one before"),
        ("NCCL_SOCKET_IFNAME", "=eth1", ""),
        ("NCCL_SOCKET_IFNAME", "eth1, eth0", "white space"),
        ("NCCL_SOCKET_IFNAME", "eth", "takes eth0 before eth1"),
        ("NCCL_SOCKET_IFNAME", "^docker0,lo,kube,eth0", ""),
        ("NCCL_SOCKET_IFNAME", "^docker0,lo", "takes kube-ipvs0 before eth1"),
        ("NCCL_SOCKET_IFNAME", "ib0", "link-local address alone"),
        ("NCCL_SOCKET_IFNAME", "eth0,eno1,ens,ib", "matches eno1, ens"),
        ("NCCL_SOCKET_IFNAMES", "eth0", "did you mean NCCL_SOCKET_IFNAME"),
        ("GLOO_SOCKET_IFNAME", "eth1", ""),
        ("GLOO_SOCKET_IFNAME", "^lo", "no interface ^lo"),
        ("NCCL_IB_HCA", "mlx5_1", "takes mlx5_10 as well"),
        ("NCCL_IB_HCA", "=mlx5_1", ""),
        ("NCCL_IB_HCA", "mlx5", ""),
        ("NCCL_TOPO_FILE", "/gone.xml", "does not exist"),
        ("NCCL_GRAPH_FILE", "/there.xml", ""),
        ("NCCL_DEBUG", "INFO", "thousands of lines"),
        ("NCCL_DEBUG", "WARN", ""),
    ];
    for (name, value, words) in table {
        let mut node = networked();
        node.network.interfaces.push(interface("ib0", "fe80::1"));
        node.hcas = vec![rail("mlx5_1", 400.0, true), rail("mlx5_10", 400.0, true)];
        node.state.absent = vec!["NCCL_TOPO_FILE".into()];
        node.environment.insert((*name).into(), (*value).into());
        let plan = planned(&settings(&[]), &node, 8, &AskedNproc::Auto).expect("a plan");
        let found: Vec<String> = plan
            .warnings
            .iter()
            .filter(|warning| warning.id == Id::EnvNccl)
            .map(|warning| format!("{} {}", warning.text.en, warning.hint.en))
            .collect();
        if words.is_empty() {
            assert!(found.is_empty(), "{name}={value}: {found:?}");
        } else {
            assert!(found.iter().any(|text| text.contains(words)), "{name}={value}: {found:?}");
        }
    }
    let mut node = networked();
    node.environment.insert("NCCL_DEBUG".into(), "INFO".into());
    let plan = planned(&settings(&[]), &node, 2, &AskedNproc::Auto).expect("a plan");
    assert!(!warned(&plan, Id::EnvNccl), "sixteen ranks may talk");
    let many = vec!["=eth1"; 17].join(",");
    node.environment.insert("NCCL_SOCKET_IFNAME".into(), many);
    let plan = planned(&settings(&[]), &node, 2, &AskedNproc::Auto).expect("a plan");
    assert!(plan.warnings.iter().any(|warning| warning.text.en.contains("first 16")));
}

#[test]
fn one_node_whose_name_has_no_address_gets_gloo_on_the_loopback() {
    let mut node = networked();
    let plan = planned(&settings(&[]), &node, 1, &AskedNproc::Auto).expect("a plan");
    assert_eq!(env(&plan, "GLOO_SOCKET_IFNAME"), Some("lo"));
    node.network.hostname_addresses = vec!["10.0.0.2".parse().expect("an address")];
    let plan = planned(&settings(&[]), &node, 1, &AskedNproc::Auto).expect("a plan");
    assert_eq!(env(&plan, "GLOO_SOCKET_IFNAME"), None);
}
