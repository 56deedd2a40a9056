//! Checkpoints of frameworks: weights in a format of torch or safetensors, and files of their own beside them.

use std::collections::BTreeSet;
use std::path::Path;

use super::{dcp, deepspeed};
use serde::Deserialize;

use crate::folder::{Folder, of_json, unread};
use crate::lack::{Lack, gaps};
use crate::names::is_numbered;
use crate::progress::step_of;
use crate::{safetensors, torch, zip};
use text::order::InOrder;
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
/// All folders of torch.distributed.checkpoint that are below them.
pub(super) const SHARDED: &[&str] = &[FSDP, "optimizer_0"];
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
    // What lies in them is looked at with all that is below.
    let mut sharded = SHARDED.iter().filter(|name| folder.sub(name).is_some());
    if sharded.next().is_some() {
        let has_weights = folder.sub(FSDP).is_some() || WEIGHTS.iter().any(|file| folder.has(file));
        return if has_weights { Vec::new() } else { vec![Lack::Missing(FSDP.to_owned())] };
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
    // The companions are all files, these too.
    match WEIGHTS.iter().any(|file| folder.has(file)) || has_weights_below(folder, BELOW) {
        true => Vec::new(),
        false => vec![Lack::Missing(WEIGHTS[0].to_owned())],
    }
}

/// Levels of folders in a checkpoint.
const BELOW: u32 = 4;

/// Whether weights lie in folders: those of adapters with names of their own (peft), of modules (sentence-transformers), and
/// what programs save by a hook of accelerate (diffusers).
fn has_weights_below(folder: &Folder<'_>, levels: u32) -> bool {
    let ends = [".safetensors", ".bin", ".pt", ".pth", ".distcp"];
    let is_weights = |name: &str| ends.iter().any(|end| name.ends_with(end));
    let subs = folder.names(true, |_| levels > 0);
    subs.iter().filter_map(|name| folder.sub(name)).any(|sub| {
        !sub.names(false, is_weights).is_empty()
            || has_weights_below(&sub, levels.saturating_sub(1))
    })
}

const STATE: &str = "trainer_state.json";

/// transformers' Trainer (trainer.py `_save_checkpoint`, 4.30 to 5.x): weights, then optimizer.pt and scheduler.pt,
/// rng_state.pth of each rank, and trainer_state.json as the last of rank 0.
pub(super) fn is_trainer(folder: &Folder<'_>) -> bool {
    folder.has(STATE)
}

/// What is read of it: its log grows with each step, and is skipped.
#[derive(Deserialize)]
struct State {
    #[serde(default)]
    global_step: Option<u64>,
}

fn state(folder: &Folder<'_>) -> Result<State, Lack> {
    let content = folder.content(STATE)?;
    match content.trim_ascii_start().first() {
        Some(b'{') => of_json(STATE, &content),
        _ => Err(Lack::Damaged(STATE.to_owned())),
    }
}

pub(super) fn global_step(folder: &Folder<'_>) -> Option<u64> {
    state(folder).ok()?.global_step
}

/// What the Trainer reads when it goes on. They are written before the weights and synced by nobody, so a crash of the
/// node can leave them empty beside whole weights.
const CONFIGS: &[&str] = &["config.json", "adapter_config.json"];
/// The Trainer writes its arguments for people, and never reads them.
const ARGUMENTS: &str = "training_args.bin";

pub(super) fn trainer(folder: &Folder<'_>) -> Vec<Lack> {
    let mut lacks: Vec<Lack> = Vec::new();
    let name = name(folder);
    if name.starts_with("tmp-") {
        lacks.push(Lack::NotRenamed(name));
    }
    lacks.extend(state(folder).err());
    lacks.extend(weights(folder));
    let configs = CONFIGS.iter().filter(|name| folder.has(name));
    lacks.extend(configs.filter_map(|name| folder.json(name).err()));
    if folder.has("scheduler.pt")
        && !["optimizer.pt", "optimizer.bin", "optimizer_0"].iter().any(|file| folder.has(file))
        && folder.names(true, |name| name.starts_with("global_step")).is_empty()
    {
        lacks.push(Lack::Missing("optimizer.pt".to_owned()));
    }
    lacks.extend(gaps(folder.numbers("rng_state_", ".pth"), 0));
    with_companions(folder, lacks)
}

/// accelerate's `save_state` (checkpointing.py `save_accelerator_state`, 0.20 to 1.x): weights, optimizers, schedulers,
/// samplers, scaler, random_states_N.pkl of each process, and the objects that the program registered as the last.
pub(super) fn is_accelerate(folder: &Folder<'_>) -> bool {
    let has_states = !folder.numbers("random_states_", ".pkl").is_empty();
    // It writes the model before the optimizer.
    has_states || (folder.has("optimizer.bin") && folder.entries.len() > 1)
}

pub(super) fn accelerate(folder: &Folder<'_>) -> Vec<Lack> {
    let mut lacks = weights(folder);
    // Programs that save weights by a hook of accelerate put them into files of their own, before all else
    // (`pytorch_lora_weights.safetensors`).
    if !folder.names(false, |name| name.ends_with(".safetensors")).is_empty() {
        lacks.retain(|lack| *lack != Lack::Missing(WEIGHTS[0].to_owned()));
    }
    lacks.extend(before_others(folder));
    lacks.extend(gaps(folder.numbers("random_states_", ".pkl"), 1));
    with_companions(folder, lacks)
}

/// The files of accelerate that are written before one that is here: the first of several, and the optimizer before its
/// scheduler, where neither FSDP nor DeepSpeed keeps it.
fn before_others(folder: &Folder<'_>) -> Vec<Lack> {
    let mut missing = Vec::new();
    for (before, after) in NUMBERED {
        let numbers = folder.numbers(&format!("{before}_"), after);
        let last = numbers.last().copied().unwrap_or(0);
        let name = |number: u32| match number {
            0 => format!("{before}{after}"),
            number => format!("{before}_{number}{after}"),
        };
        let first = (0..last.min(4096)).map(name);
        missing.extend(first.filter(|name| !folder.has(name) && last > 0));
    }
    // These are numbered from 0 on.
    let last = folder.numbers("custom_checkpoint_", ".pkl").last().copied().unwrap_or(0);
    let registered = (0..last.min(4096)).map(|number| format!("custom_checkpoint_{number}.pkl"));
    missing.extend(registered.filter(|name| !folder.has(name)));
    let optimizer = "optimizer.bin".to_owned();
    let is_alone = folder.names(true, |_| true).is_empty()
        && BY_RANK.iter().all(|(before, after)| folder.numbers(before, after).is_empty());
    if folder.has("scheduler.bin") && is_alone && !folder.has(&optimizer) {
        missing.push(optimizer);
    }
    missing.into_iter().map(Lack::Missing).collect()
}

/// What accelerate numbers from the second one on (checkpointing.py): what comes before and after the number.
const NUMBERED: &[(&str, &str)] =
    &[("optimizer", ".bin"), ("scheduler", ".bin"), ("sampler", ".bin")];

/// The files of accelerate that only another checkpoint of the same program lets miss: what it registered is written
/// after all else, ranks that write by themselves wait for nobody, and `load_state` wants one of each object that the
/// program prepares. `load_state` refuses another number of them.
pub(super) fn last_of_accelerate(folder: &Folder<'_>) -> Vec<String> {
    let is_one = |(before, after): &(&str, &str), name: &str| {
        is_numbered(name.strip_suffix(after).unwrap_or_default(), before)
    };
    let registered = [("custom_checkpoint_", ".pkl"), ("model_", ".safetensors")];
    let all = || registered.iter().chain(BY_RANK);
    let is_prepared = |name: &str| {
        let of = |(before, after): &(&str, &str)| {
            let number = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
            number.is_some_and(|number| number.is_empty() || is_numbered(number, "_"))
        };
        name == "scaler.pt"
            || NUMBERED.iter().any(of)
            || (name.ends_with(".safetensors") && !safetensors::is_shard(name))
    };
    folder.names(false, |name| is_prepared(name) || all().any(|one| is_one(one, name)))
}

/// A file of Lightning, or of SpeechBrain, which has texts of its own among them (utils/checkpoints.py: CKPT.yaml beside
/// `counter.ckpt`).
pub(super) fn lack_of_ckpt(folder: &Folder<'_>, name: &str) -> Option<Lack> {
    let lack = torch::lack(folder, name)?;
    let is_text = || {
        let mut parts = folder.open(name).ok()?;
        let begun = parts.at(0, usize::try_from(parts.bytes.min(64)).ok()?).ok()?;
        let is_plain = |byte: &u8| matches!(byte, b' '..=b'~' | b'\n' | b'\r' | b'\t');
        Some(!begun.starts_with(b"PK") && begun.iter().all(is_plain))
    };
    (!folder.has("CKPT.yaml") || is_text() != Some(true)).then_some(lack)
}

/// The step in a file of Lightning.
pub(super) fn lightning_step(folder: &Folder<'_>, file: &str) -> Option<u64> {
    let bytes = zip::Zip::open(folder, file).ok()?.objects(zip::OBJECTS)?;
    let step = read_hollow(&bytes).ok()?.root().get("global_step").and_then(Value::int);
    u64::try_from(step?).ok()
}

/// By its name, unless another program put files of its own into it.
pub(super) fn is_lightning(folder: &Folder<'_>) -> bool {
    let is_other =
        |name: &str| name != "meta.pt" && [".pt", ".pth"].iter().any(|end| name.ends_with(end));
    name(folder).ends_with(".ckpt") && folder.names(false, is_other).is_empty()
}

/// Lightning's folder of a sharded strategy (`*.ckpt/`): DCP with meta.pt, or DeepSpeed's `checkpoint`.
pub(super) fn lightning(folder: &Folder<'_>) -> Vec<Lack> {
    if let Some(inner) = folder.sub("checkpoint") {
        return deepspeed::lacks(&inner);
    }
    let mut lacks = dcp::lacks(folder);
    if !folder.has("meta.pt") {
        lacks.push(Lack::Missing("meta.pt".to_owned()));
    }
    with_companions(folder, lacks)
}

const TRACKER: &str = "latest_checkpointed_iteration.txt";
const CONFIG: &str = "metadata.json";
const COMMON: &str = "common.pt";

/// Megatron-LM and megatron-core (megatron/training/checkpointing.py, megatron/core/dist_checkpointing): `iter_NNNNNNN`
/// holds common.pt, the shards, and metadata.json as the last of rank 0 after all ranks; or `mp_rank_*` in the older
/// form, which only the tracker beside it proves: it names the last iteration and is written at the end.
pub(super) fn is_megatron(folder: &Folder<'_>) -> bool {
    let own = name(folder);
    let is_older =
        (is_numbered(&own, "iter_") || own == "release") && !ranks_of_megatron(folder).is_empty();
    let is_distributed = || match folder.has(COMMON) {
        // It may be all that is there yet.
        true => folder.has(CONFIG) || dcp::is_one(folder) || is_numbered(&own, "iter_"),
        // Written before the rest.
        false => ["torch_dist", "zarr"].contains(&backend(folder).unwrap_or_default().as_str()),
    };
    is_older || is_distributed()
}

/// The folders of its ranks. The highest ones may be missing although the tracker names the iteration: it tells that rank 0
/// had saved, not that nothing was lost since.
pub(super) fn ranks_of_megatron(folder: &Folder<'_>) -> Vec<String> {
    folder.names(true, |name| name.starts_with("mp_rank_"))
}

fn backend(folder: &Folder<'_>) -> Option<String> {
    if !folder.has(CONFIG) {
        return None;
    }
    Some(folder.json(CONFIG).ok()?.get("sharded_backend")?.as_str()?.to_owned())
}

pub(super) fn megatron(folder: &Folder<'_>) -> Vec<Lack> {
    let is_distributed = folder.has(COMMON) || folder.has(CONFIG) || dcp::is_one(folder);
    let mut lacks: Vec<Lack> = Vec::new();
    if is_distributed {
        lacks.extend(distributed(folder));
    } else {
        let ranks = ranks_of_megatron(folder);
        let subs = || ranks.iter().filter_map(|rank| Some((rank, folder.sub(rank)?)));
        let of = |sub: &Folder<'_>| sub.names(false, |name| name.ends_with(".pt"));
        let mut all = subs().map(|(_, sub)| of(&sub)).max_by_key(Vec::len).unwrap_or_default();
        // `model_optim_rng.pt`; beside a distributed optimizer `model_rng.pt`.
        if !all.iter().any(|file| file.starts_with("model")) {
            all.push("model_optim_rng.pt".to_owned());
        }
        for (rank, sub) in subs() {
            let missing = all.iter().filter(|file| !sub.has(file));
            lacks.extend(missing.map(|file| Lack::Missing(format!("{rank}/{file}"))));
        }
        if ranks.is_empty() {
            lacks.push(Lack::Missing("mp_rank_00".to_owned()));
        }
        lacks.extend(missing_ranks(&ranks).map(Lack::Missing));
    }
    if !is_distributed {
        lacks.extend(not_tracked(folder));
    }
    with_companions(folder, lacks)
}

fn distributed(folder: &Folder<'_>) -> Vec<Lack> {
    let mut lacks: Vec<Lack> = folder.json(CONFIG).err().into_iter().collect();
    lacks.extend(torch::lack(folder, COMMON));
    if backend(folder).as_deref() != Some("zarr") {
        lacks.extend(dcp::lacks(folder));
    }
    lacks
}

/// The folders that are missing of `mp_rank_TENSOR[_PIPELINE[_EXPERT]]`: there is one for each combination.
fn missing_ranks(folders: &[String]) -> impl Iterator<Item = String> {
    let of = |name: &String| -> Option<Vec<u32>> {
        name.strip_prefix("mp_rank_")?.split('_').map(|rank| rank.parse().ok()).collect()
    };
    let here: BTreeSet<Vec<u32>> = folders.iter().filter_map(of).in_set();
    let depth = here.iter().map(Vec::len).max().unwrap_or(0);
    let last = |at: usize| here.iter().filter_map(|ranks| ranks.get(at)).max().copied();
    let mut all: Vec<Vec<u32>> = vec![Vec::new()];
    for last in (0..depth).map_while(last) {
        let more = |ranks: &Vec<u32>| {
            let ranks = ranks.clone();
            (0..=last.min(4096)).map(move |rank| [ranks.as_slice(), &[rank]].concat())
        };
        all = all.iter().flat_map(more).take(4096).collect();
    }
    all.retain(|ranks| !ranks.is_empty() && !here.contains(ranks));
    all.into_iter().map(|ranks| {
        let digits = |(at, rank): (usize, &u32)| match at {
            0 => format!("{rank:02}"),
            _ => format!("{rank:03}"),
        };
        let ranks: Vec<String> = ranks.iter().enumerate().map(digits).collect();
        format!("mp_rank_{}", ranks.join("_"))
    })
}

fn not_tracked(folder: &Folder<'_>) -> Option<Lack> {
    let step = step_of(&name(folder))?;
    let path = folder.path.parent()?.join(TRACKER);
    let file = format!("../{TRACKER}");
    let Ok(bytes) = linux::regular_file::read(&path, 4096) else {
        return Some(Lack::Missing(file));
    };
    let names = String::from_utf8_lossy(&bytes).trim().to_owned();
    if names.is_empty() {
        return Some(Lack::Empty(file));
    }
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
        Some(weights) => {
            distributed(&weights).into_iter().map(|lack| lack.within("weights")).collect()
        }
        None => vec![Lack::Missing("weights".to_owned())],
    });
    with_companions(folder, lacks)
}

/// These, and what the files in the checkpoint and in its folders lack, whoever wrote them.
pub(super) fn with_companions(folder: &Folder<'_>, mut lacks: Vec<Lack>) -> Vec<Lack> {
    lacks.extend(below(folder, BELOW));
    lacks
}

fn below(folder: &Folder<'_>, levels: u32) -> Vec<Lack> {
    let files = folder.names(false, |name| name != ARGUMENTS && !name.starts_with('.'));
    let mut lacks: Vec<Lack> =
        files.iter().filter_map(|name| lack_of_companion(folder, name)).collect();
    for name in folder.names(true, |name| levels > 0 && !name.starts_with('.')) {
        let sub = match folder.try_sub(&name) {
            Ok(sub) => sub,
            // Removed meanwhile, as old checkpoints are.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => {
                lacks.push(unread(&name, &error));
                continue;
            }
        };
        // Its writer numbers its files, and they are judged by that.
        if deepspeed::is_one(&sub) {
            continue;
        }
        let own = if dcp::is_one(&sub) { dcp::lacks(&sub) } else { Vec::new() };
        let inner = own.into_iter().chain(below(&sub, levels.saturating_sub(1)));
        lacks.extend(inner.map(|lack| lack.within(&name)));
    }
    lacks
}

fn lack_of_companion(folder: &Folder<'_>, name: &str) -> Option<Lack> {
    match Path::new(name).extension()?.to_str()? {
        "safetensors" => safetensors::lack(folder, name),
        // Programs add pickles of their own.
        "pt" | "pth" | "bin" | "pkl" => torch::lack(folder, name)
            .filter(|lack| !matches!(lack, Lack::Damaged(_) | Lack::NoEnd(_))),
        "json" if folder.bytes(name) == Some(0) => Some(Lack::Empty(name.to_owned())),
        "json" if name.ends_with(".index.json") => {
            let lack = if name.contains(".safetensors.") { safetensors::lack } else { torch::lack };
            let mut lacks = safetensors::lacks_of_index(folder, name, lack).into_iter();
            lacks.find(|lack| !matches!(lack, Lack::Damaged(file) if file == name))
        }
        _ => None,
    }
}
