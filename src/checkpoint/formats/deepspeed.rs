//! DeepSpeed, ZeRO 0 to 3 (deepspeed/runtime/engine.py `save_checkpoint`, 0.14 to 0.18): in the folder of a tag each
//! rank writes its `*_optim_states.pt`, the first of each model-parallel group (with ZeRO 3 every rank) its
//! `*_model_states.pt`. `latest` beside the folders is written at the end. The model's states name the number of data-
//! parallel and model-parallel ranks and the configuration, so that missing partitions are known without `latest`. It
//! proves what is counted nowhere: layers of a pipeline, experts, and tensors on NVMe, which are copied after all else.

use crate::folder::Folder;
use crate::lack::Lack;
use crate::progress::step_of;
use crate::torch;
use crate::zip::{OBJECTS, Zip};
use text::pickle::{Value, read_hollow};

const MODEL: &str = "_model_states.pt";
/// The weights of one layer of a pipeline (deepspeed/runtime/pipe/module.py `ckpt_layer_path`).
const LAYER: &str = "-model_states.pt";
/// The weights of an expert, or of a layer.
const COUNTED_NOWHERE: &str = "layer_";
const OPTIMIZER: &str = "_optim_states.pt";
const LATEST: &str = "latest";

fn files(folder: &Folder<'_>) -> Vec<String> {
    folder.names(false, |name| [MODEL, LAYER, OPTIMIZER].iter().any(|end| name.ends_with(end)))
}

pub(super) fn is_one(folder: &Folder<'_>) -> bool {
    !files(folder).is_empty()
}

/// Data-parallel and model-parallel rank in a name such as `zero_pp_rank_1_mp_rank_00_optim_states.pt`.
fn ranks(name: &str) -> Option<(u32, u32)> {
    let number = |after: &str| {
        let rest = name.split_once(after)?.1;
        let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
        rest.get(..end)?.parse().ok()
    };
    Some((number("zero_pp_rank_")?, number("mp_rank_").unwrap_or(0)))
}

/// What the states of a model name.
struct Facts {
    /// Data-parallel ranks.
    ranks: u32,
    /// Model-parallel ranks, those of a pipeline too.
    models: u32,
    /// Of ZeRO.
    stage: i64,
    /// States of the optimizer are on NVMe.
    is_offloaded: bool,
}

fn facts(folder: &Folder<'_>, model: &str) -> Option<Facts> {
    let bytes = Zip::open(folder, model).ok()?.objects(OBJECTS)?;
    let tree = read_hollow(&bytes).ok()?;
    let root = tree.root();
    let number = |name: &str| u32::try_from(root.get(name)?.int()?).ok();
    let config = root.get("ds_config").and_then(|config| config.get("zero_optimization"));
    let zero = |name: &str| config.and_then(|zero| zero.get(name));
    let device = zero("offload_optimizer").and_then(|offload| offload.get("device"));
    // With MiCS (to 0.18) only the first group of ranks that hold all partitions writes them.
    let group = zero("mics_shard_size").and_then(Value::int).unwrap_or(0);
    let group = u32::try_from(group).ok().filter(|group| *group > 0).unwrap_or(u32::MAX);
    Some(Facts {
        ranks: number("dp_world_size")?.min(group),
        models: number("mp_world_size").unwrap_or(1).max(1),
        stage: zero("stage").and_then(Value::int).unwrap_or(0),
        is_offloaded: device.and_then(Value::text) == Some("nvme"),
    })
}

/// The folder that ds_to_universal fills with one folder for each parameter, before it copies the states of the model.
const UNIVERSAL: &str = "zero";

pub(super) fn lacks(folder: &Folder<'_>) -> Vec<Lack> {
    let files = files(folder);
    let mut lacks: Vec<Lack> = files.iter().filter_map(|file| torch::lack(folder, file)).collect();
    if let Some(universal) = folder.sub(UNIVERSAL) {
        if universal.entries.is_empty() {
            lacks.push(Lack::Missing(format!("{UNIVERSAL}/*/fp32.pt")));
        }
        if files.is_empty() {
            lacks.push(Lack::Missing(format!("mp_rank_00{MODEL}")));
        }
        return lacks;
    }
    let is_model = |file: &&String| file.ends_with(MODEL) && !file.starts_with(COUNTED_NOWHERE);
    let Some(model) = files.iter().find(is_model) else {
        lacks.push(Lack::Missing(format!("mp_rank_00{MODEL}")));
        return lacks;
    };
    if !lacks.is_empty() {
        return lacks;
    }
    let Some(Facts { ranks: world, models, stage, is_offloaded }) = facts(folder, model) else {
        lacks.extend(not_latest(folder));
        return lacks;
    };
    if is_offloaded || files.iter().any(|file| file.starts_with(COUNTED_NOWHERE)) {
        lacks.extend(not_latest(folder));
    }
    // With ZeRO 3 every rank has a file of the model.
    if stage != 3 {
        let missing = |model: &u32| !folder.has(&format!("mp_rank_{model:02}{MODEL}"));
        let missing = (0..models.min(4096)).filter(missing);
        lacks.extend(missing.map(|model| Lack::Missing(format!("mp_rank_{model:02}{MODEL}"))));
    }
    let ends: &[&str] = match stage {
        0 => &[],
        3 => &[MODEL, OPTIMIZER],
        _ => &[OPTIMIZER],
    };
    for end in ends {
        let here: Vec<(u32, u32)> = files
            .iter()
            .filter(|file| file.ends_with(end))
            .filter_map(|file| ranks(file))
            .collect();
        let missing = |rank: &u32| (0..models).any(|model| !here.contains(&(*rank, model)));
        let missing: Vec<u32> = (0..world).filter(missing).take(4096).collect();
        if !missing.is_empty() {
            lacks.push(Lack::Parts(missing));
        }
    }
    lacks
}

/// Without facts of its own a folder is whole if `latest` names it or a later one.
fn not_latest(folder: &Folder<'_>) -> Option<Lack> {
    let path = folder.path.parent()?.join(LATEST);
    let names = linux::regular_file::read(&path, 4096).ok();
    let names = names.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
    let own = folder.path.file_name().map(|name| name.to_string_lossy().into_owned());
    match names {
        None => Some(Lack::Missing(format!("../{LATEST}"))),
        Some(names) if names.is_empty() => Some(Lack::Empty(format!("../{LATEST}"))),
        Some(names) if Some(&names) == own.as_ref() => None,
        Some(names) if step_of(&names) > own.as_deref().and_then(step_of).or(Some(u64::MAX)) => {
            None
        }
        Some(names) => Some(Lack::NotNamed { file: format!("../{LATEST}"), names }),
    }
}
