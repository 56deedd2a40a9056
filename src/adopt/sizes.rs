//! Nodes and processes that a launcher's options ask for, as options of ranklaunch.
//!
//! What the platform says is left out; what only a running shell knows stays as the script writes it.

use std::collections::BTreeMap;

use settings::launchers::{FlagField, LauncherKind};
use text::lang::Text;
use text::text;

use crate::classes::{Note, NoteKind};
use crate::values::{Expanded, Values, origin};

/// Gives the text of a file that a launcher names, or why there is none.
pub(crate) type Files<'a> = &'a dyn Fn(&str) -> Result<String, Text>;

/// What is known of the surroundings.
#[derive(Clone, Copy)]
pub(crate) struct Around<'a> {
    pub(crate) values: &'a Values,
    /// Nodes that `#SBATCH` asks for; 0 outside of Slurm.
    pub(crate) slurm_nodes: u32,
    /// Name of the file for a profile.
    pub(crate) profile: &'a str,
    /// Arguments of the engine that the profile holds already; empty: none.
    pub(crate) engine_args: &'a [String],
    /// Gives the text of a file that a launcher names.
    pub(crate) files: Files<'a>,
    /// The script is in double quotes, so what is inserted may have none.
    pub(crate) quoted: bool,
}

/// What the launcher's own words say.
#[derive(Default)]
pub(crate) struct Said {
    pub(crate) fields: BTreeMap<FlagField, Expanded>,
    /// Options without a field, as they are written with dashes, and their values.
    pub(crate) others: Vec<(String, Option<Expanded>)>,
    pub(crate) module: bool,
    /// Words that hold options which only a running shell knows.
    pub(crate) unread: Vec<Expanded>,
}

/// Nodes and processes of a launch.
#[derive(Debug, Default, Clone)]
pub(crate) struct Sizes {
    /// Options of ranklaunch, as a script writes them.
    pub(crate) options: Vec<String>,
    /// As the launcher has them; None: what the platform, or the number of GPUs, decides.
    pub(crate) nodes: Option<String>,
    pub(crate) nproc: Option<String>,
    /// GPUs for CUDA_VISIBLE_DEVICES.
    pub(crate) visible: String,
    /// The job has several nodes.
    pub(crate) several: bool,
}

/// Pairs of variables by which platforms count nodes and number this one.
const PAIRS: &[(&[&str], &[&str])] = &[
    (&["WORLD_SIZE"], &["RANK", "NODE_RANK"]),
    (&["NNODES", "NODE_COUNT", "NUM_NODES"], &["NODE_RANK"]),
    (&["PET_NNODES"], &["PET_NODE_RANK"]),
    (&["SLURM_NNODES", "SLURM_JOB_NUM_NODES"], &["SLURM_NODEID", "SLURM_PROCID"]),
];

/// What gives the number of GPUs of a node; ranklaunch counts them.
#[rustfmt::skip]
const COUNTS: &[&str] = &[
    "nvidia-smi", "device_count", "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "rocm-smi", "/dev/nvidia",
];

pub(crate) fn of(
    kind: LauncherKind,
    said: &Said,
    around: Around<'_>,
    in_srun: bool,
    notes: &mut Vec<Note>,
) -> Sizes {
    let values = around.values;
    let get = |field| said.fields.get(&field);
    let mut sizes = Sizes::default();
    let hosts = hosts(said, notes);
    let nodes = get(FlagField::Nnodes).filter(|_| get(FlagField::Standalone).is_none());
    let nodes = nodes.or(hosts.as_ref());
    let nodes =
        nodes.map(|nodes| range(nodes, notes)).filter(|nodes| nodes.value.as_deref() != Some("1"));
    sizes.several = nodes.is_some();
    sizes.nodes = Some(nodes.as_ref().map_or("1".to_owned(), shown));
    let (address, port) = endpoint(said);
    if let Some(address) = &address
        && address.value.as_deref().is_some_and(|it| matches!(it, "" | "None" | "null"))
    {
        let shown = &address.source;
        notes.push(Note {
            kind: NoteKind::Wrong,
            text: text!(
                "the address of node 0 is {shown}, the word for nothing: no node can reach it",
                "节点 0 的地址为 {shown}，即“无”：任何节点都无法连接"
            ),
        });
    }
    match &nodes {
        None => {
            let beside =
                ["WORLD_SIZE", "RANK", "NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"];
            if beside.iter().any(|name| values.get(name).is_some()) {
                sizes.options.push("--nnodes 1 --node-rank 0".to_owned());
            }
        }
        Some(nodes) if by_slurm(nodes, around, in_srun, values) => {
            sizes.nodes = None;
            notes.push(Note {
                kind: NoteKind::Unnecessary,
                text: text!(
                    "number of nodes, number of this node, address and port of node 0: Slurm says them",
                    "节点数、本节点编号、节点 0 的地址与端口：由 Slurm 给出"
                ),
            });
        }
        Some(nodes) if by_platform(nodes, get(FlagField::NodeRank), address.as_ref(), values) => {
            sizes.nodes = None;
            let nodes = shown(nodes);
            notes.push(Note {
                kind: NoteKind::Unnecessary,
                text: text!(
                    "{nodes}, number of this node and address of node 0 are read from the platform",
                    "{nodes}、本节点编号和节点 0 的地址从平台读取"
                ),
            });
        }
        Some(nodes) => {
            sizes.options.push(format!("--nnodes {}", nodes.tidy()));
            match get(FlagField::NodeRank) {
                Some(rank) => sizes.options.push(format!("--node-rank {}", rank.tidy())),
                None => {
                    let wanted = if around.quoted { "$NODE_RANK" } else { "\"${NODE_RANK:?}\"" };
                    sizes.options.push(format!("--node-rank {wanted}"));
                    notes.push(Note {
                        kind: NoteKind::NotUnderstood,
                        text: text!(
                            "the line says nothing about which node this is: set NODE_RANK, or --nodes host0,host1 in place of it",
                            "该行没有说明这是哪个节点：请设置 NODE_RANK，或改用 --nodes host0,host1"
                        ),
                    });
                }
            }
            if let Some(address) = &address {
                sizes.options.push(format!("--master-addr {}", address.tidy()));
            }
        }
    }
    let wrong = |port: &Expanded| {
        port.value
            .as_deref()
            .is_some_and(|value| value.parse::<u16>().is_err() && !value.is_empty())
    };
    if let Some(port) = port.as_ref().filter(|port| wrong(port)) {
        let shown = &port.source;
        notes.push(Note {
            kind: NoteKind::Wrong,
            text: text!(
                "port {shown} does not exist: a port is at most 65535; it is left out",
                "端口 {shown} 不存在：端口最大为 65535，已去掉"
            ),
        });
    }
    if let Some(port) =
        port.filter(|port| !wrong(port)).filter(|port| keeps_port(port, &sizes, values))
    {
        sizes.options.push(format!("--master-port {}", port.tidy()));
    }
    sizes.nproc = processes(kind, said, nodes.as_ref(), around, notes);
    if let Some(nproc) = &sizes.nproc {
        sizes.options.insert(0, format!("--nproc-per-node {nproc}"));
    }
    visible(said, &mut sizes);
    sizes
}

fn shown(value: &Expanded) -> String {
    value.value.clone().unwrap_or_else(|| value.source.clone())
}

/// `2:2` is 2; an elastic job has no counterpart.
fn range(nodes: &Expanded, notes: &mut Vec<Note>) -> Expanded {
    let Some((least, most)) = nodes.value.as_deref().and_then(|value| value.split_once(':')) else {
        return nodes.clone();
    };
    if least != most {
        notes.push(Note {
            kind: NoteKind::Wrong,
            text: text!(
                "--nnodes {least}:{most} starts as soon as {least} are there; only a platform can say that a job is elastic, so it is {most} here",
                "--nnodes {least}:{most} 有 {least} 个节点就会启动；只有平台能说明任务是弹性的，此处按 {most} 处理"
            ),
        });
    }
    Expanded { source: most.to_owned(), value: Some(most.to_owned()), several: false }
}

/// The name of a variable that comes from outside of the script.
fn outside(value: &Expanded, values: &Values) -> Option<String> {
    let origin = origin(&value.source, values);
    let inside = origin.strip_prefix('$')?;
    let inside = inside.strip_prefix('{').and_then(|it| it.strip_suffix('}')).unwrap_or(inside);
    let name = inside.split([':', '-']).next()?;
    crate::shell::is_name(name).then(|| name.to_owned())
}

fn by_slurm(nodes: &Expanded, around: Around<'_>, in_srun: bool, values: &Values) -> bool {
    let of_slurm = origin(&nodes.source, values).contains("SLURM_");
    let asked =
        nodes.value.as_deref().and_then(|value| value.parse().ok()) == Some(around.slurm_nodes);
    of_slurm || (around.slurm_nodes > 0 && asked && in_srun)
}

fn by_platform(
    nodes: &Expanded,
    rank: Option<&Expanded>,
    address: Option<&Expanded>,
    values: &Values,
) -> bool {
    let (Some(nodes), Some(rank)) =
        (outside(nodes, values), rank.and_then(|rank| outside(rank, values)))
    else {
        return false;
    };
    let pair =
        PAIRS.iter().any(|(counts, ranks)| counts.contains(&&*nodes) && ranks.contains(&&*rank));
    let address = address.is_none_or(|address| {
        outside(address, values).is_some_and(|name| name.ends_with("MASTER_ADDR"))
    });
    pair && address
}

/// Address and port of node 0.
fn endpoint(said: &Said) -> (Option<Expanded>, Option<Expanded>) {
    let get = |field| said.fields.get(&field).cloned();
    let (mut address, mut port) = (get(FlagField::MasterAddr), get(FlagField::MasterPort));
    if let Some(endpoint) = get(FlagField::Endpoint) {
        let quoted = endpoint.source.starts_with('"') && endpoint.source.ends_with('"');
        let bare = endpoint.source.trim_matches('"');
        let after_braces = bare.rfind('}').map_or(0, |at| at + 1);
        let colon = bare.rfind(':').filter(|at| {
            *at >= after_braces || bare.get(at + 1..).is_some_and(|rest| rest.starts_with("${"))
        });
        let part = |text: &str, value: Option<&str>| Expanded {
            source: if quoted { format!("\"{text}\"") } else { text.to_owned() },
            value: value.map(str::to_owned),
            several: false,
        };
        let value = endpoint.value.as_deref();
        match colon.map(|at| bare.split_at(at)) {
            Some((host, rest)) => {
                let split = value.and_then(|value| value.rsplit_once(':'));
                address.get_or_insert_with(|| part(host, split.map(|it| it.0)));
                port.get_or_insert_with(|| {
                    part(rest.trim_start_matches(':'), split.map(|it| it.1))
                });
            }
            None => drop(address.get_or_insert_with(|| part(bare, value))),
        }
    }
    (address, port)
}

/// A port that the script draws by itself, and one that the platform says, are left out.
fn keeps_port(port: &Expanded, sizes: &Sizes, values: &Values) -> bool {
    let drawn = origin(&port.source, values);
    let drawn = ["RANDOM", "shuf", "$(", "`", "SLURM_"].iter().any(|mark| drawn.contains(mark));
    let of_platform = outside(port, values).is_some_and(|name| name.ends_with("MASTER_PORT"));
    let zero = port.value.as_deref() == Some("0");
    let said_by_platform = sizes.several && sizes.nodes.is_none();
    let needless = drawn && !sizes.several;
    !(zero || of_platform || needless || said_by_platform)
}

/// Processes of a node as an option's value; None: one per GPU.
fn processes(
    kind: LauncherKind,
    said: &Said,
    nodes: Option<&Expanded>,
    around: Around<'_>,
    notes: &mut Vec<Note>,
) -> Option<String> {
    let counted = |value: &Expanded| {
        let from = origin(&value.source, around.values);
        COUNTS.iter().any(|mark| from.contains(mark)) || value.value.as_deref() == Some("auto")
    };
    let field = match kind {
        LauncherKind::Accelerate => FlagField::Processes,
        _ => FlagField::Nproc,
    };
    let Some(given) = said.fields.get(&field) else {
        // torchrun starts one process where nothing is said.
        return (kind == LauncherKind::Torchrun).then(|| "1".to_owned());
    };
    if counted(given) {
        let shown = shown(given);
        notes.push(Note {
            kind: NoteKind::Unnecessary,
            text: text!(
                "{shown}: ranklaunch counts the GPUs of each node",
                "{shown}：ranklaunch 会统计每个节点的 GPU"
            ),
        });
        return None;
    }
    let (true, Some(nodes)) = (kind == LauncherKind::Accelerate, nodes) else {
        return Some(given.tidy());
    };
    let number =
        |value: &Expanded| value.value.as_deref().and_then(|value| value.parse::<u32>().ok());
    match (number(given), number(nodes)) {
        (Some(all), Some(nodes)) if nodes > 0 && all % nodes == 0 => {
            Some((all / nodes).to_string())
        }
        (Some(all), Some(nodes)) => {
            notes.push(Note {
                kind: NoteKind::Wrong,
                text: text!(
                    "{all} processes cannot be shared equally by {nodes} nodes",
                    "{all} 个进程无法平均分给 {nodes} 个节点"
                ),
            });
            None
        }
        _ => {
            let (all, nodes) = (given.source.trim_matches('"'), nodes.source.trim_matches('"'));
            Some(format!("$(({all}/{nodes}))"))
        }
    }
}

/// The options that name GPUs, without quotes; deepspeed's `-i` is `--include`.
fn devices(said: &Said) -> impl Iterator<Item = (&str, &str)> {
    said.others.iter().filter_map(|(flag, value)| {
        Some((flag.as_str(), value.as_ref()?.source.trim_matches(['"', '\''])))
    })
}

/// The number of hosts in deepspeed's `--include host0:0,1@host1:0,1`, if there are several.
fn hosts(said: &Said, notes: &mut Vec<Note>) -> Option<Expanded> {
    let (_, included) = devices(said)
        .find(|(flag, value)| matches!(*flag, "--include" | "-i") && value.contains('@'))?;
    notes.push(Note {
        kind: NoteKind::NotUnderstood,
        text: text!(
            "{included}: ranklaunch is started on every host; --nodes host0,host1 is the same line on each",
            "{included}：ranklaunch 在每台主机上启动；--nodes host0,host1 在各主机上是同一行"
        ),
    });
    let number = included.split('@').count().to_string();
    Some(Expanded { source: number.clone(), value: Some(number), several: false })
}

/// deepspeed's `--include localhost:0,1`, accelerate's `--gpu_ids 0,1`.
fn visible(said: &Said, sizes: &mut Sizes) {
    for (flag, bare) in devices(said) {
        match flag {
            "--include" | "-i" => {
                // Hosts with other GPUs than the first have no common value.
                let mut gpus =
                    bare.split('@').map(|host| host.split_once(':').map_or("", |(_, gpus)| gpus));
                let first = gpus.next().unwrap_or_default();
                if gpus.all(|gpus| gpus == first) {
                    first.clone_into(&mut sizes.visible);
                }
            }
            "--gpu-ids" if bare != "all" => bare.clone_into(&mut sizes.visible),
            _ => {}
        }
    }
}
