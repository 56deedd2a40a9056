//! The files of single ranks in a checkpoint: which are here, and which are missing.
//!
//! On storage of its own a node has only what its own ranks wrote: accelerate with `save_on_each_node`, DeepSpeed with
//! `use_node_local_storage`. Each rank then loads its own files, and no others.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::{Checkpoint, Format, Lack};
use text::ranges::ranges;

/// Ranks by their number in the job, as (first, last) of each run of consecutive ones, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RankFiles {
    /// All files of these ranks are here.
    pub here: Vec<(u32, u32)>,
    pub missing: Vec<(u32, u32)>,
}

impl Checkpoint {
    /// The ranks whose files are here, and those whose files are missing. None if something else is missing too, if the
    /// format has no files of ranks, or if its framework loads no checkpoint of which a node has only a share.
    pub fn ranks(&self) -> Option<RankFiles> {
        let is_loaded = match self.format {
            // accelerate names the tag to DeepSpeed; a missing random_states_N.pkl is no error for any rank but N.
            Format::Accelerate | Format::Deepspeed => true,
            Format::Trainer => !self.lacks_tag(),
            // Only ranks that have metadata of their own lack nothing but parts, and each reads its own
            // (torch/distributed/checkpoint/state_dict_loader.py).
            Format::Dcp => true,
            // Of these formats each rank reads what one rank writes.
            Format::Torch
            | Format::Safetensors
            | Format::Lightning
            | Format::Megatron
            | Format::Nemo => false,
        };
        let mut missing = BTreeSet::new();
        for lack in &self.lacks {
            let Lack::Parts(parts) = lack else { return None };
            missing.extend(parts.iter().copied());
        }
        if self.parts.is_empty() || !is_loaded {
            return None;
        }
        let here = self.parts.iter().copied().filter(|part| !missing.contains(part));
        Some(RankFiles { here: ranges(here), missing: ranges(missing) })
    }

    /// The Trainer gives DeepSpeed no tag, so each node needs the file that names it. Only rank 0 writes it, on its own
    /// node (deepspeed/runtime/engine.py `save_checkpoint`; transformers `deepspeed_load_checkpoint`).
    fn lacks_tag(&self) -> bool {
        let Ok(entries) = self.path.read_dir() else { return false };
        let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
        let is_tag = |name: &str| name.starts_with("global_step");
        let has_tag = names.iter().any(|name| is_tag(&name.to_string_lossy()));
        has_tag && !names.iter().any(|name| name == "latest")
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::SystemTime;

    use super::*;

    fn seen(path: &Path, format: Format, parts: &[u32], lacks: &[Lack]) -> Checkpoint {
        Checkpoint {
            path: path.to_owned(),
            name: path.to_owned(),
            format,
            step: None,
            lacks: lacks.to_vec(),
            bytes: 0,
            modified: SystemTime::UNIX_EPOCH,
            parts: parts.to_vec(),
            standing: crate::Standing::default(),
        }
    }

    #[test]
    fn share_is_what_lacks_only_files_of_ranks() {
        let of = |format, parts: &[u32], lacks: &[Lack]| {
            seen(Path::new("/none"), format, parts, lacks)
                .ranks()
                .map(|RankFiles { here, missing }| (here, missing))
        };
        let lack = |parts: &[u32]| Lack::Parts(parts.to_vec());
        let other = Lack::Missing("model.safetensors".to_owned());
        for (parts, lacks, expected) in [
            (&[0, 1][..], &[][..], Some((vec![(0, 1)], vec![]))),
            (&[2, 3], &[lack(&[0, 1])], Some((vec![(2, 3)], vec![(0, 1)]))),
            // One of the two files of rank 3 is there.
            (
                &[2, 3],
                &[lack(&[0, 1]), lack(&[0, 1, 3])],
                Some((vec![(2, 2)], vec![(0, 1), (3, 3)])),
            ),
            (&[2, 3], &[lack(&[0, 1]), other.clone()], None),
            (&[], &[], None),
        ] {
            assert_eq!(of(Format::Accelerate, parts, lacks), expected, "{parts:?} {lacks:?}");
            assert_eq!(of(Format::Megatron, parts, lacks), None);
        }
    }

    #[test]
    fn trainer_with_deepspeed_needs_the_tag_on_each_node() {
        let folder = tempfile::tempdir().expect("a folder");
        let ranks = || {
            let lacks = [Lack::Parts(vec![0])];
            seen(folder.path(), Format::Trainer, &[1], &lacks).ranks().is_some()
        };
        assert!(ranks(), "without deepspeed");
        std::fs::create_dir(folder.path().join("global_step7")).expect("it is made");
        assert!(!ranks(), "the load on this node fails");
        std::fs::write(folder.path().join("latest"), "global_step7").expect("it is written");
        assert!(ranks());
    }
}
