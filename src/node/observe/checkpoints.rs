//! The checkpoints below the folder that the settings name.

use std::io;

use super::{CheckpointFacts, SeenCheckpoint};
use checkpoint::{Checkpoint, Lack, Limits, survey};
use linux::host::Host;
use settings::{CheckpointFormat, Settings};
use text::lang::cause;
use text::text;

/// Maximum number of checkpoints that count, of which at least the files of some ranks are whole: the newest ones.
const MOST: usize = 64;
/// Maximum number of others, which are only named with what they lack.
const MOST_TORN: usize = 8;

/// None if the settings name no folder. A folder that does not exist yet holds none.
pub fn checkpoints(host: &Host, settings: &Settings) -> Option<CheckpointFacts> {
    let folder = &settings.checkpoint_dir.as_ref()?.value;
    let folder = match &settings.chdir {
        Some(chdir) => chdir.value.join(folder),
        None => std::path::absolute(folder).unwrap_or_else(|_| folder.clone()),
    };
    let found = match survey(&host.path(&folder), &Limits::default()) {
        Ok(seen) => seen.found,
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
    let seen = |one: Checkpoint| {
        let path = folder.join(&one.name);
        // A placeholder in an argument could not name it.
        let unnamed =
            path.to_str().is_none().then(|| text!("its path is not UTF-8", "路径不是 UTF-8"));
        SeenCheckpoint {
            digest: one.digest(),
            step: one.step,
            ranks: one.ranks().filter(|_| unnamed.is_none()),
            missing: one.lacks.iter().map(Lack::words).chain(unnamed).collect(),
            modified: one.modified,
            path,
        }
    };
    Some(CheckpointFacts {
        found: newest(found.into_iter().filter(counts).map(seen)),
        unread: None,
    })
}

/// The first of each kind, in the order of all. Many that are torn do not hide a whole one.
fn newest(all: impl Iterator<Item = SeenCheckpoint>) -> Vec<SeenCheckpoint> {
    let (mut usable, mut torn) = (0, 0);
    let mut counts = |one: &SeenCheckpoint| {
        let is_usable = one.missing.is_empty() || one.ranks.is_some();
        let (seen, most) = if is_usable { (&mut usable, MOST) } else { (&mut torn, MOST_TORN) };
        *seen += 1;
        *seen <= most
    };
    all.filter(|one| counts(one)).collect()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use checkpoint::Format;
    use text::lang::Text;

    #[test]
    fn torn_checkpoints_hide_no_whole_one() {
        let seen = |step: u64, is_whole: bool| SeenCheckpoint {
            path: format!("/saved/{step}").into(),
            step: Some(step),
            ranks: None,
            missing: if is_whole { Vec::new() } else { vec![Text::same("cut off")] },
            digest: step,
            modified: SystemTime::UNIX_EPOCH,
        };
        let steps = |all: Vec<SeenCheckpoint>| -> Vec<u64> {
            all.into_iter().filter_map(|one| one.step).collect()
        };
        let torn = (2..=90).rev().map(|step| seen(step, false));
        let found = steps(newest(torn.chain([seen(1, true)])));
        assert_eq!(found, [90, 89, 88, 87, 86, 85, 84, 83, 1]);
        let whole = (1..=90).rev().map(|step| seen(step, true));
        assert_eq!(steps(newest(whole)), (27..=90).rev().collect::<Vec<u64>>());
    }

    #[test]
    fn every_format_can_be_the_only_one() {
        for format in Format::ALL {
            let only: CheckpointFormat =
                serde_json::from_value(format.name().into()).expect("a word of the setting");
            assert_eq!(only.name(), format.name());
        }
    }
}
