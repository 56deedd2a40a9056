//! Checkpoints of frameworks: weights in a format of torch or safetensors, and files of their own beside them.

use std::path::Path;

use super::{dcp, deepspeed};
use crate::folder::Folder;
use crate::lack::{Lack, gaps};
use crate::names::{is_numbered, step_of};
use crate::{safetensors, torch, zip};
use text::pickle::{Value, read_hollow};

pub(super) fn name(folder: &Folder<'_>) -> String {
    folder.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

const INDEX: &str = "model.safetensors.index.json";
const OLD_INDEX: &str = "pytorch_model.bin.index.json";
/// Files that hold all weights, or those of an adapter.
const WEIGHTS: &[&str] = &[
    "model.safetensors",
    "pytorch_model.bin",
    "adapter_model.safetensors",
    "adapter_model.bin",
    "pytorch_model_fsdp.bin",
];
/// The folder of sharded weights that FSDP writes below the Trainer and accelerate.
const FSDP: &str = "pytorch_model_fsdp_0";
/// Files of FSDP that each rank writes by itself (accelerate/utils/fsdp_utils.py, LOCAL_STATE_DICT and `use_dcp=False`):
/// what comes before and after its number.
const BY_RANK: &[(&str, &str)] = &[
    ("pytorch_model_fsdp_rank", ".bin"),
    ("pytorch_model_fsdp_0_rank", ".bin"),
    ("optimizer_0_rank", ".bin"),
];

/// The parts that are missing of files that each rank writes by itself: the ranks of one kind have all kinds. None if
/// there are no such files.
fn by_rank(folder: &Folder<'_>) -> Option<Vec<Lack>> {
    let of = |(before, after): &(&str, &str)| folder.numbers(before, after);
    let kinds: Vec<Vec<u32>> = BY_RANK.iter().map(of).filter(|kind| !kind.is_empty()).collect();
    let states = folder.numbers("random_states_", ".pkl");
    let last = kinds.iter().chain([&states]).filter_map(|kind| kind.last()).max().copied()?;
    if kinds.is_empty() {
        return None;
    }
    Some(kinds.into_iter().flat_map(|kind| gaps(kind, last.saturating_add(1))).collect())
}

/// What the weights lack, in any form in which the Trainer and accelerate write them.
fn weights(folder: &Folder<'_>) -> Vec<Lack> {
    let tags =
        folder.names(true, |name| name.starts_with("global_step") || name == "pytorch_model");
    if let Some(tag) = tags.iter().filter_map(|tag| folder.sub(tag)).find(deepspeed::is_one) {
        return deepspeed::lacks(&tag);
    }
    let sharded: Vec<Folder<'_>> =
        [FSDP, "optimizer_0"].iter().filter_map(|name| folder.sub(name)).collect();
    if !sharded.is_empty() {
        return sharded.iter().flat_map(dcp::lacks).collect();
    }
    if let Some(lacks) = by_rank(folder) {
        return lacks;
    }
    if folder.has(INDEX) {
        return safetensors::lacks_of_index(folder, INDEX, safetensors::lack);
    }
    if folder.has(OLD_INDEX) {
        return safetensors::lacks_of_index(folder, OLD_INDEX, torch::lack);
    }
    match WEIGHTS.iter().any(|file| folder.has(file)) {
        // The companions are all files, these too.
        true => Vec::new(),
        false => vec![Lack::Missing(WEIGHTS[0].to_owned())],
    }
}

const STATE: &str = "trainer_state.json";

/// transformers' Trainer (trainer.py `_save_checkpoint`, 4.30 to 5.x): weights, then optimizer.pt and scheduler.pt,
/// rng_state.pth of each rank, and trainer_state.json as the last of rank 0.
pub(super) fn is_trainer(folder: &Folder<'_>) -> bool {
    folder.has(STATE)
}

pub(super) fn global_step(folder: &Folder<'_>) -> Option<u64> {
    folder.json(STATE).ok()?.get("global_step")?.as_u64()
}

pub(super) fn trainer(folder: &Folder<'_>) -> Vec<Lack> {
    let mut lacks: Vec<Lack> = Vec::new();
    let name = name(folder);
    if name.starts_with("tmp-") {
        lacks.push(Lack::NotRenamed(name));
    }
    lacks.extend(folder.json(STATE).err());
    lacks.extend(weights(folder));
    lacks.extend(companions(folder));
    if folder.has("scheduler.pt")
        && !["optimizer.pt", "optimizer.bin", "optimizer_0"].iter().any(|file| folder.has(file))
        && folder.names(true, |name| name.starts_with("global_step")).is_empty()
    {
        lacks.push(Lack::Missing("optimizer.pt".to_owned()));
    }
    lacks.extend(gaps(folder.numbers("rng_state_", ".pth"), 0));
    once(lacks)
}

/// accelerate's `save_state` (checkpointing.py `save_accelerator_state`, 0.20 to 1.x): weights, optimizers, schedulers,
/// samplers, scaler, random_states_N.pkl of each process, and the objects that the program registered as the last.
pub(super) fn is_accelerate(folder: &Folder<'_>) -> bool {
    let has_states = !folder.numbers("random_states_", ".pkl").is_empty();
    has_states || folder.has("optimizer.bin")
}

pub(super) fn accelerate(folder: &Folder<'_>) -> Vec<Lack> {
    let mut lacks = weights(folder);
    // Programs that save weights by a hook of accelerate put them into folders of their own, before all else.
    if !folder.names(true, |_| true).is_empty() {
        lacks.retain(|lack| *lack != Lack::Missing(WEIGHTS[0].to_owned()));
    }
    lacks.extend(companions(folder));
    lacks.extend(gaps(folder.numbers("random_states_", ".pkl"), 1));
    once(lacks)
}

/// The files of accelerate that only another checkpoint of the same program lets miss: what it registered is written
/// after all else, and ranks that write by themselves wait for nobody. `load_state` refuses another number of them.
pub(super) fn last_of_accelerate(folder: &Folder<'_>) -> Vec<String> {
    let is_one = |(before, after): &(&str, &str), name: &str| {
        is_numbered(name.strip_suffix(after).unwrap_or_default(), before)
    };
    let registered = [("custom_checkpoint_", ".pkl")];
    let all = || registered.iter().chain(BY_RANK);
    folder.names(false, |name| all().any(|one| is_one(one, name)))
}

/// The step in a file of Lightning.
pub(super) fn lightning_step(folder: &Folder<'_>, file: &str) -> Option<u64> {
    let bytes = zip::Zip::open(folder, file).ok()?.objects(zip::OBJECTS)?;
    let step = read_hollow(&bytes).ok()?.root().get("global_step").and_then(Value::int);
    u64::try_from(step?).ok()
}

/// Lightning's folder of a sharded strategy (`*.ckpt/`): DCP with meta.pt, or DeepSpeed's `checkpoint`.
pub(super) fn lightning(folder: &Folder<'_>) -> Vec<Lack> {
    if let Some(inner) = folder.sub("checkpoint") {
        return deepspeed::lacks(&inner);
    }
    let mut lacks = dcp::lacks(folder);
    lacks.extend(match folder.has("meta.pt") {
        true => torch::lack(folder, "meta.pt"),
        false => Some(Lack::Missing("meta.pt".to_owned())),
    });
    lacks
}

const TRACKER: &str = "latest_checkpointed_iteration.txt";
const CONFIG: &str = "metadata.json";
const COMMON: &str = "common.pt";

/// Megatron-LM and megatron-core (megatron/training/checkpointing.py, megatron/core/dist_checkpointing): `iter_NNNNNNN`
/// holds common.pt, the shards, and metadata.json as the last of rank 0 after all ranks; or `mp_rank_*` in the older
/// form, which only the tracker beside it proves: it names the last iteration and is written at the end.
pub(super) fn is_megatron(folder: &Folder<'_>) -> bool {
    let is_older = is_numbered(&name(folder), "iter_")
        && !folder.names(true, |name| name.starts_with("mp_rank_")).is_empty();
    is_older || (folder.has(COMMON) && (folder.has(CONFIG) || dcp::is_one(folder)))
}

pub(super) fn megatron(folder: &Folder<'_>) -> Vec<Lack> {
    let is_distributed = folder.has(COMMON) || folder.has(CONFIG) || dcp::is_one(folder);
    let mut lacks: Vec<Lack> = Vec::new();
    if is_distributed {
        lacks.extend(distributed(folder));
    } else {
        let ranks = folder.names(true, |name| name.starts_with("mp_rank_"));
        for rank in &ranks {
            let Some(sub) = folder.sub(rank) else { continue };
            let files = sub.names(false, |name| name.ends_with(".pt"));
            let of = |file: &String| torch::lack(&sub, file);
            lacks.extend(files.iter().filter_map(of));
            if files.is_empty() {
                lacks.push(Lack::Missing(format!("{rank}/model_optim_rng.pt")));
            }
        }
        if ranks.is_empty() {
            lacks.push(Lack::Missing("mp_rank_00".to_owned()));
        }
    }
    if !is_distributed {
        lacks.extend(not_tracked(folder));
    }
    lacks
}

fn distributed(folder: &Folder<'_>) -> Vec<Lack> {
    let mut lacks: Vec<Lack> = folder.json(CONFIG).err().into_iter().collect();
    lacks.extend(torch::lack(folder, COMMON));
    let is_zarr = || {
        let backend = folder.json(CONFIG).ok()?.get("sharded_backend")?.as_str()?.to_owned();
        Some(backend == "zarr")
    };
    if is_zarr() != Some(true) {
        lacks.extend(dcp::lacks(folder));
    }
    lacks
}

fn not_tracked(folder: &Folder<'_>) -> Option<Lack> {
    let step = step_of(&name(folder))?;
    let path = folder.path.parent()?.join(TRACKER);
    let file = format!("../{TRACKER}");
    let Ok(bytes) = linux::regular_file::read(&path, 4096) else {
        return Some(Lack::Missing(file));
    };
    let names = String::from_utf8_lossy(&bytes).trim().to_owned();
    let is_named = names == "release" || names.parse::<u64>().is_ok_and(|last| step <= last);
    (!is_named).then_some(Lack::NotNamed { file, names })
}

/// NeMo 2 (nemo/lightning/pytorch/callbacks/model_checkpoint.py): `weights` of megatron-core and `context`; while it is
/// being saved, a file `<name>-unfinished` stands beside the folder.
pub(super) fn is_nemo(folder: &Folder<'_>) -> bool {
    folder.sub("weights").is_some_and(|weights| folder.has("context") || is_megatron(&weights))
}

pub(super) fn nemo(folder: &Folder<'_>) -> Vec<Lack> {
    let marker = format!("{}-unfinished", name(folder));
    let mut lacks: Vec<Lack> = Vec::new();
    if folder.path.with_file_name(&marker).exists() {
        lacks.push(Lack::NotRenamed(format!("../{marker}")));
    }
    lacks.extend(match folder.sub("weights") {
        Some(weights) => distributed(&weights),
        None => vec![Lack::Missing("weights".to_owned())],
    });
    lacks
}

/// Each lack once: a file of weights is one of all files as well.
fn once(lacks: Vec<Lack>) -> Vec<Lack> {
    let mut once: Vec<Lack> = Vec::new();
    for lack in lacks {
        if !once.contains(&lack) {
            once.push(lack);
        }
    }
    once
}

/// What the files lack that torch.save or safetensors wrote beside the weights.
fn companions(folder: &Folder<'_>) -> Vec<Lack> {
    let of = |name: String| {
        let end = Path::new(&name).extension()?.to_str()?;
        match end {
            "safetensors" => safetensors::lack(folder, &name),
            // Programs add pickles of their own.
            "pt" | "pth" | "bin" | "pkl" => torch::lack(folder, &name)
                .filter(|lack| !matches!(lack, Lack::Damaged(_) | Lack::NoEnd(_))),
            _ => None,
        }
    };
    folder.names(false, |_| true).into_iter().filter_map(of).collect()
}
