//! Settings, facts and memberships for tests: a plain node to modify.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use crate::solve::plan_for;
use crate::{AskedNproc, Membership, Notes, Plan, Scope, Survey, survey};
use node::observe::{
    Facts, Gpu, GpuFacts, GpuSource, Hca, HcaPort, HostFacts, Limits, NetworkFacts, PythonFacts,
    Torch, VisibleGpu,
};
use settings::contract::Contract;
use settings::fixtures::undecided;
use settings::{LayoutRule, Program, Settings, Source, Sourced};
use verdict::{Id, Refusal};

pub fn strings(args: &[&str]) -> Vec<OsString> {
    args.iter().map(OsString::from).collect()
}

/// `generate.py ARGS…`, everything else undecided.
pub fn settings(args: &[&str]) -> Settings {
    let mut settings = undecided();
    settings.layout.ulysses_argument = Some("--ulysses_size".into());
    settings.layout.ring_argument = Some("--ring_size".into());
    settings.program = Some(Sourced::new(
        Program::Script { path: "generate.py".into(), args: strings(args) },
        Source::Flag("--".into()),
    ));
    settings
}

/// Wan2.2's layout: ulysses-world with these heads.
pub fn wan(args: &[&str], heads: Option<u32>) -> Settings {
    let mut settings = settings(args);
    settings.layout.rule = Sourced::new(LayoutRule::UlyssesWorld, profile(3));
    settings.layout.heads = heads.map(|heads| Sourced::new(heads, Source::Flag("--heads".into())));
    settings
}

pub fn profile(line: usize) -> Source {
    Source::Profile { file: "wan22.toml".into(), line }
}

pub fn flag<T>(value: T, name: &str) -> Sourced<T> {
    Sourced::new(value, Source::Flag(name.into()))
}

/// An InfiniBand device with one active port. `openable`: its device node can be opened.
pub fn rail(name: &str, gigabits: f64, openable: bool) -> Hca {
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

/// A node with `gpus` idle GPUs, four per NUMA node, torch 2.15 and 32 CPUs.
pub fn facts(gpus: u32) -> Facts {
    Facts {
        hostname: "node".into(),
        contract: Contract { platform: "none".into(), ..Contract::default() },
        gpus: GpuFacts {
            gpus: (0..gpus)
                .map(|index| Gpu {
                    index,
                    uuid: Some(format!("GPU-{index}")),
                    name: Some("NVIDIA H100".into()),
                    pci: Some(format!("0000:{index:02x}:00.0")),
                    minor: Some(index),
                    memory_total: Some(80 << 30),
                    memory_used: Some(0),
                    mig: false,
                    numa_node: Some(index / 4),
                    ..Gpu::default()
                })
                .collect(),
            visible: (0..gpus)
                .map(|index| VisibleGpu { gpu: index as usize, token: index.to_string() })
                .collect(),
            source: if gpus > 0 { GpuSource::Nvml } else { GpuSource::None },
            ..GpuFacts::default()
        },
        network: NetworkFacts::default(),
        hcas: Vec::new(),
        limits: Limits {
            shm_total: Some(16 << 30),
            nofile_soft: 1 << 20,
            nofile_hard: 1 << 20,
            cpus: 32,
            ..Limits::default()
        },
        python: PythonFacts {
            interpreter: Some(PathBuf::from("/opt/python")),
            found_by: "PATH".into(),
            version: Some("3.11".into()),
            torch: Some(Torch {
                version: "2.15.0+cu130".into(),
                cuda: Some("13.0".into()),
                nccl: Some("2.28.9".into()),
                path: PathBuf::from("/opt/torch"),
            }),
            ..PythonFacts::default()
        },
        checkpoint_heads: None,
        checkpoints: None,
        environment: BTreeMap::new(),
        state: HostFacts::default(),
    }
}

pub fn member(nnodes: u32, node_rank: u32) -> Membership {
    Membership {
        platform: "flags".into(),
        nnodes,
        nnodes_by_world_size: false,
        spares: 0,
        node_rank,
        seat: None,
        master_addr: if nnodes > 1 { "10.0.0.1" } else { "127.0.0.1" }.into(),
        master_port: 29500,
        master_port_free: nnodes == 1,
        elastic: None,
        task: None,
    }
}

/// The plan of node 0 of `nnodes`.
pub fn planned(
    settings: &Settings,
    facts: &Facts,
    nnodes: u32,
    asked: &AskedNproc,
) -> Result<Plan, Refusal> {
    let mut notes = Notes::default();
    let outcome = plan_for(settings, facts, member(nnodes, 0), asked, Scope::Alone, &mut notes);
    accepted(&Survey::of(outcome, notes))
}

/// The plan of this node, without knowledge of the others.
pub fn plan(settings: &Settings, facts: &Facts) -> Result<Plan, Refusal> {
    accepted(&survey(settings, facts, Scope::Alone))
}

fn accepted(survey: &Survey) -> Result<Plan, Refusal> {
    survey.plan().cloned().map_err(Clone::clone)
}

pub fn count(n: u32) -> AskedNproc {
    AskedNproc::Count { n, source: "--nproc-per-node".into() }
}

pub fn warned(plan: &Plan, id: Id) -> bool {
    plan.warnings.iter().any(|warning| warning.id == id)
}
