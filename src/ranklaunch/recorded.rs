//! Records that torch's flight recorder wrote when a collective failed or timed out.
//!
//! Takes the folder where the ranks write their records, which is local and removed after the attempt;
//! gives the files for the folder of the logs, and the ranks that kept the others waiting. Finding these
//! ranks requires the records of all ranks: if other nodes have some, `ranklaunch explain` judges them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::context::Context;
use diagnose::recorder::{self, Hang, Job, RankRecord, Read};
use linux::regular_file;
use plan::Plan;
use report::hang_view::HangView;
use supervise::inject::RECORD;
use text::text;

/// A record of 2000 collectives with their stacks has about a MiB.
const LARGEST: u64 = 32 << 20;
/// Maximum bytes of all records that are kept.
const MOST: usize = 256 << 20;

/// The records of one attempt on this node.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    /// The records with their names.
    pub(super) files: Vec<(String, Vec<u8>)>,
    /// None if no rank is known to have kept others waiting.
    hang: Option<Hang>,
}

/// Reads the records of the ranks. The result is empty if there are none, or if they cannot be read.
pub(super) fn read(folder: &Path, plan: &Plan) -> Recorded {
    let mut recorded = Recorded::default();
    let mut records: Vec<RankRecord> = Vec::new();
    let mut size = 0;
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    // Records that do not fit are left out, the same ones each time because of the order.
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort_unstable();
    for path in paths {
        let Some((name, rank)) = name_of(&path) else { continue };
        let Ok(bytes) = regular_file::read(&path, LARGEST) else { continue };
        size += bytes.len();
        if size > MOST {
            break;
        }
        if let Ok(dump) = recorder::read(&bytes) {
            let known = records.iter_mut().find(|record| record.rank == rank);
            match known {
                Some(record) => record.dumps.push(dump),
                None => records.push(RankRecord { rank, read: written(&path), dumps: vec![dump] }),
            }
        }
        recorded.files.push((name.to_owned(), bytes));
    }
    records.sort_by_key(|record| record.rank);
    if plan.membership.nnodes == 1 && plan.membership.task.is_none() && !records.is_empty() {
        let job = Job { records, world: Some(plan.world_size), stood_still: false };
        recorded.hang = Some(recorder::judge(&job)).filter(|hang| !hang.culprits.is_empty());
    }
    recorded
}

/// The name of a record, and its rank.
fn name_of(path: &Path) -> Option<(&str, u32)> {
    let name = path.file_name()?.to_str()?;
    let rank = name.strip_prefix(RECORD)?;
    let end = rank.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rank.len());
    Some((name, rank.get(..end)?.parse().ok()?))
}

fn written(path: &Path) -> Read {
    let modified = std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let since_1970 = modified.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let ns = since_1970.and_then(|since| i64::try_from(since.as_nanos()).ok());
    ns.map_or(Read::Unknown, Read::NotAfter)
}

impl Recorded {
    /// Number of ranks that have written something. A rank may have a recorder for each backend.
    fn ranks(&self) -> usize {
        let ranks = self.files.iter().filter_map(|(name, _)| name_of(Path::new(name)));
        ranks.map(|(_, rank)| rank).collect::<BTreeSet<u32>>().len()
    }

    /// Names the ranks that kept the others waiting, or the way to find them. `folder`: the later place
    /// of the files.
    pub(super) fn say(&self, context: &Context, folder: Option<&Path>) {
        let ranks = self.ranks();
        if let Some(hang) = &self.hang {
            let view = HangView { hang, late: &[] };
            context.console.say(&view.text(context.lang(), None));
        } else if let Some(folder) = folder.filter(|_| ranks > 0) {
            let folder = folder.display();
            context.say(&text!(
                "torch recorded the collectives of {ranks} ranks in {folder}: ranklaunch explain, with such folders of all nodes, names the rank that kept the others waiting",
                "torch 已将 {ranks} 个 rank 的集合通信记录写入 {folder}：用 ranklaunch explain 读取所有节点的这类目录，可指出让其他 rank 等待的 rank"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_counted_instead_of_files() {
        let names =
            ["comm_lib_trace_rank_0", "comm_lib_trace_rank_0_gloo", "comm_lib_trace_rank_10"];
        let files = names.map(|name| (name.to_owned(), Vec::new())).into();
        assert_eq!(Recorded { files, hang: None }.ranks(), 2);
    }
}
