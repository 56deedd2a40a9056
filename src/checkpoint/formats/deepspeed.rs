//! DeepSpeed, ZeRO 0 to 3 (deepspeed/runtime/engine.py `save_checkpoint`, 0.14 to 0.18): in the folder of a tag each
//! rank writes its `*_optim_states.pt`, the first of each model-parallel group (with ZeRO 3 every rank) its
//! `*_model_states.pt`. `latest` beside the folders is written at the end. The model's states name the number of data-
//! parallel ranks and the configuration, so that missing partitions are known without `latest`.

use crate::folder::Folder;
use crate::lack::Lack;
use crate::zip::{OBJECTS, Zip};
use text::pickle::{Value, read_hollow};

const MODEL: &str = "_model_states.pt";
const OPTIMIZER: &str = "_optim_states.pt";
const LATEST: &str = "latest";

fn files(folder: &Folder<'_>) -> Vec<String> {
    folder.names(false, |name| name.ends_with(MODEL) || name.ends_with(OPTIMIZER))
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

/// Number of data-parallel ranks and stage of ZeRO.
fn facts(folder: &Folder<'_>, model: &str) -> Option<(u32, i64)> {
    let bytes = Zip::open(folder, model).ok()?.objects(OBJECTS)?;
    let tree = read_hollow(&bytes).ok()?;
    let root = tree.root();
    let number = u32::try_from(root.get("dp_world_size")?.int()?).ok()?;
    let config = root.get("ds_config").and_then(|config| config.get("zero_optimization"));
    Some((number, config.and_then(|zero| zero.get("stage")).and_then(Value::int).unwrap_or(0)))
}

pub(super) fn lacks(folder: &Folder<'_>) -> Vec<Lack> {
    let files = files(folder);
    let mut lacks: Vec<Lack> =
        files.iter().filter_map(|file| crate::zip::lack(folder, file)).collect();
    let Some(model) = files.iter().find(|file| file.ends_with(MODEL)) else {
        lacks.push(Lack::Missing(format!("mp_rank_00{MODEL}")));
        return lacks;
    };
    if !lacks.is_empty() {
        return lacks;
    }
    let Some((world, stage)) = facts(folder, model) else {
        lacks.extend(not_latest(folder));
        return lacks;
    };
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
        let models =
            here.iter().map(|(_, model)| *model).max().map_or(1, |last| last.saturating_add(1));
        let missing = |rank: &u32| (0..models).any(|model| !here.contains(&(*rank, model)));
        let missing: Vec<u32> = (0..world).filter(missing).take(4096).collect();
        if !missing.is_empty() {
            lacks.push(Lack::Parts(missing));
        }
    }
    lacks
}

/// Without facts of its own a folder is whole if `latest` names it.
fn not_latest(folder: &Folder<'_>) -> Option<Lack> {
    let path = folder.path.parent()?.join(LATEST);
    let names = linux::regular_file::read(&path, 4096).ok();
    let names = names.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
    let own = folder.path.file_name().map(|name| name.to_string_lossy().into_owned());
    match names {
        None => Some(Lack::Missing(format!("../{LATEST}"))),
        Some(names) if Some(&names) == own.as_ref() => None,
        Some(names) => Some(Lack::NotNamed { file: format!("../{LATEST}"), names }),
    }
}
