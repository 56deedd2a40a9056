//! Checkpoints with any bytes in their files.

use std::path::Path;

use crate::{Limits, survey};

/// Names under which bytes are read in different ways.
const NAMES: &[&str] = &[
    "a.pt",
    "b.safetensors",
    "checkpoint-1/trainer_state.json",
    "checkpoint-1/model.safetensors.index.json",
    "step-2/.metadata",
    "step-2/__0_0.distcp",
    "global_step3/mp_rank_00_model_states.pt",
    "iter_0000004/metadata.json",
    "checkpoint_5/optimizer.bin",
    "step_6/model-rank0.pt",
    "step_6/optimizer.pt",
    "CKPT+7/a.ckpt",
    "CKPT+7/CKPT.yaml",
];

/// Whether nothing that these bytes make is given without words.
pub fn checkpoints(folder: &Path, data: &[u8]) -> bool {
    for name in NAMES {
        let path = folder.join(name);
        let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        if made.and_then(|()| std::fs::write(&path, data)).is_err() {
            return false;
        }
    }
    let Ok(found) = survey(folder, &Limits::default()) else { return false };
    found.found.iter().all(|one| one.lacks.iter().all(|lack| !lack.words().en.is_empty()))
}
