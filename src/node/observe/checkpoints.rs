//! The checkpoints below the folder that the settings name.

use std::io;

use super::{CheckpointFacts, SeenCheckpoint};
use checkpoint::{Checkpoint, Lack, Limits, survey};
use linux::host::Host;
use settings::{CheckpointFormat, Settings};
use text::lang::cause;

/// Maximum number of checkpoints that count: the newest ones.
const MOST: usize = 64;

/// None if the settings name no folder. A folder that does not exist yet holds none.
pub fn checkpoints(host: &Host, settings: &Settings) -> Option<CheckpointFacts> {
    let folder = &settings.checkpoint_dir.as_ref()?.value;
    let folder = match &settings.chdir {
        Some(chdir) => chdir.value.join(folder),
        None => std::path::absolute(folder).unwrap_or_else(|_| folder.clone()),
    };
    let found = match survey(&host.path(&folder), &Limits::default()) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            return Some(CheckpointFacts {
                unread: Some(cause(&error)),
                ..CheckpointFacts::default()
            });
        }
    };
    let only = settings.checkpoint_format.value;
    let counts =
        |one: &Checkpoint| only == CheckpointFormat::Auto || only.name() == one.format.name();
    let seen = |one: Checkpoint| SeenCheckpoint {
        digest: one.digest(),
        path: folder.join(&one.name),
        step: one.step,
        ranks: one.ranks(),
        missing: one.lacks.iter().map(Lack::words).collect(),
        modified: one.modified,
    };
    let found = found.into_iter().filter(counts).take(MOST).map(seen).collect();
    Some(CheckpointFacts { found, unread: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use checkpoint::Format;

    #[test]
    fn every_format_can_be_the_only_one() {
        for format in Format::ALL {
            let only: CheckpointFormat =
                serde_json::from_value(format.name().into()).expect("a word of the setting");
            assert_eq!(only.name(), format.name());
        }
    }
}
