//! Checks of places where a job writes: log folder, caches, and shared memory left by earlier
//! runs.

use std::collections::BTreeSet;
use std::path::Path;

use super::finding::{CheckFinding, CheckInput, Judge, bad, hinted, info, ok, or, shown};
use crate::prepare::WriteProblem;
use node::observe::{Folder, UsedFolder};
use text::lang::{Text, bytes, cause};
use text::order::{InOrder, Ordered};
use text::text;
use verdict::Id;

pub(super) const JUDGES: &[Judge] = &[
    (Id::ShmLeftovers, leftovers),
    (Id::DiskLogs, logs),
    (Id::DiskSpace, space),
    (Id::StorageAlive, storage),
];

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn logs(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    if let Some(Err(problem)) = &input.tried.write {
        return vec![unwritable(problem)];
    }
    let Some(folder) = &input.facts.state.logs else {
        return vec![info(text!("not known", "未知"))];
    };
    if let Some(text) = trouble(folder, &Text::same(folder.path.display().to_string())) {
        let hint = text!("set another folder with --log-dir", "请用 --log-dir 指定其他目录");
        return vec![bad((text, hint))];
    }
    let (path, free) = (folder.path.display(), bytes(folder.free));
    vec![ok(match &input.tried.write {
        Some(Ok(_)) => text!(
            "{free} free in {path}; a test file was written there",
            "{path} 空闲 {free}，写入测试通过"
        ),
        _ => text!("{free} free in {path}", "{path} 空闲 {free}"),
    })]
}

/// The error of a write, with the hint for it.
fn unwritable(problem: &WriteProblem) -> CheckFinding {
    use std::io::ErrorKind;
    let (path, error) = (problem.folder.display(), problem.error());
    let hint = match error.kind() {
        ErrorKind::ReadOnlyFilesystem => text!(
            "the file system is read-only: mount a volume there, or set another folder with --log-dir",
            "文件系统为只读：请在此挂载数据卷，或用 --log-dir 指定其他目录"
        ),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => text!(
            "this file system or this user's quota is full: delete old runs, or set another folder with --log-dir",
            "该文件系统或用户配额已满：请删除旧的运行记录，或用 --log-dir 指定其他目录"
        ),
        ErrorKind::PermissionDenied => {
            let user = problem.user;
            text!(
                "user {user} may not write there: change the owner (fsGroup, chown), or set another folder with --log-dir",
                "用户 {user} 无权写入：请修改属主（fsGroup、chown），或用 --log-dir 指定其他目录"
            )
        }
        _ => text!("set another folder with --log-dir", "请用 --log-dir 指定其他目录"),
    };
    let Text { en, zh } = cause(&error);
    bad((text!("no file can be written in {path}: {en}", "无法在 {path} 写入文件：{zh}"), hint))
}

/// The problem of a folder's file system, if any. `paths`: the folder, and others on this file system.
fn trouble(folder: &Folder, paths: &Text) -> Option<Text> {
    let Text { en: path, zh: path_zh } = paths;
    if let Some(Text { en, zh }) = &folder.problem {
        return Some(text!(
            "no file can be written in {path} ({en})",
            "无法在 {path_zh} 写入文件（{zh}）"
        ));
    }
    let free = bytes(folder.free);
    // A twentieth of a large file system does not count as a shortage.
    let least = (folder.total / 20).clamp(64 * MIB, 10 * GIB);
    if folder.free < least {
        return Some(text!("{free} are free in {path}", "{path_zh} 仅剩 {free}"));
    }
    if folder.inodes > 0 && folder.inodes_free < (folder.inodes / 100).min(1000) {
        let (left, all) = (folder.inodes_free, folder.inodes);
        return Some(text!(
            "only {left} of {all} inodes are free in {path} (free space is not the problem)",
            "{path_zh} 的 {all} 个 inode 仅剩 {left} 个（磁盘空间充足）"
        ));
    }
    None
}

/// The folders, those of one file system together. Project quotas show each folder a size of its own.
fn by_file_system(folders: &[UsedFolder]) -> Vec<Vec<&UsedFolder>> {
    let file_system = |used: &UsedFolder| {
        let Folder { device, total, inodes, problem, .. } = &used.folder;
        problem.is_none().then_some(((*device)?, *total, *inodes))
    };
    let mut groups: Vec<(_, Vec<&UsedFolder>)> = Vec::new();
    for used in folders {
        let its = file_system(used);
        match groups.iter_mut().find(|(of, _)| its.is_some() && *of == its) {
            Some((_, group)) => group.push(used),
            None => groups.push((its, vec![used])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// The finding about folders of one file system, if something is wrong with it.
fn shortage(used: &[&UsedFolder]) -> Option<CheckFinding> {
    let all = |name: fn(&UsedFolder) -> String| {
        let names: Vec<String> = used.iter().map(|one| name(one)).collect();
        Text::new(names.join(", "), names.join("、"))
    };
    let paths = all(|one| one.folder.path.display().to_string());
    let variables = all(|one| one.by.clone());
    let least = used.iter().min_by_key(|one| one.folder.free)?;
    let Text { en: text, zh: text_zh } = trouble(&least.folder, &paths)?;
    let Text { en: by, zh: by_zh } = variables;
    let hint = match used {
        [_] => text!(
            "set another folder with {by}, or free space in this one",
            "请用 {by_zh} 指定其他目录，或清理此目录"
        ),
        _ => text!(
            "they are on one file system: free space in it, or set folders of another one with {by}",
            "它们在同一文件系统上：请清理该文件系统，或用 {by_zh} 指定其他文件系统上的目录"
        ),
    };
    Some(bad((text!("{by}: {text}", "{by_zh}：{text_zh}"), hint)))
}

fn space(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let folders = &input.facts.state.folders;
    let found = by_file_system(folders).iter().filter_map(|used| shortage(used)).collect();
    or(found, || {
        ok(match folders.iter().min_by_key(|used| used.folder.free) {
            None => text!("no cache folder is set", "未指定缓存目录"),
            Some(used) => {
                let (free, path) = (bytes(used.folder.free), used.folder.path.display());
                text!(
                    "at least {free} free (least in {path})",
                    "至少空闲 {free}（最少者为 {path}）"
                )
            }
        })
    })
}

fn leftovers(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let left = &input.facts.state.leftovers;
    if left.is_empty() {
        return vec![ok(text!("no leftover files in /dev/shm", "/dev/shm 中无残留文件"))];
    }
    const SHOWN: usize = 3;
    // A sparse file may have any size.
    let all = left.iter().map(|file| file.bytes).fold(0, u64::saturating_add);
    let (count, all) = (left.len(), bytes(all));
    let users: BTreeSet<u32> = left.iter().map(|file| file.uid).in_set();
    let users = users.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let mut largest: Vec<_> = left.iter().collect();
    largest.order_by_key(|file| std::cmp::Reverse(file.bytes));
    // Any user may have named these files.
    let names: Vec<String> =
        largest.iter().take(SHOWN).map(|file| shown(Path::new(&file.name))).collect();
    let more = if count > SHOWN { ", …" } else { "" };
    let names = names.join(", ");
    let kinds = left.iter().filter_map(|file| file.name.get(..4));
    let globs = kinds.filter_map(|start| match start {
        "nccl" => Some("/dev/shm/nccl-*"),
        "torc" => Some("/dev/shm/torch_*"),
        "sem." => Some("/dev/shm/sem.*"),
        _ => None,
    });
    let globs = Vec::from_iter(BTreeSet::from_iter(globs)).join(" ");
    vec![bad(hinted!(
        "{count} leftover files of ended processes take {all} in /dev/shm, owner {users}: {names}{more}",
        "/dev/shm 中有 {count} 个已结束进程的残留文件，共 {all}，属主 {users}：{names}{more}",
        "when no job runs on this node: rm {globs}",
        "确认本节点没有任务运行后执行：rm {globs}"
    ))]
}

fn storage(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let late = input.facts.state.late.iter().map(|late| {
        let path = late.path.as_ref().map(|path| format!(" ({})", path.display()));
        let path = path.unwrap_or_default();
        let Text { en, zh } = &late.source;
        let seconds = std::time::Duration::from_millis(late.after_millis).as_secs_f64();
        bad(hinted!(
            "no answer within {seconds:.1} s: {en}{path}; a mount may be dead",
            "{seconds:.1} 秒内无应答：{zh}{path}；可能有挂载点失效",
            "look for processes in state D and for \"not responding\" in the host's dmesg",
            "请查找处于 D 状态的进程，以及宿主机 dmesg 中的 \"not responding\""
        ))
    });
    or(late.collect(), || ok(text!("every source responded in time", "各信息来源均及时应答")))
}
