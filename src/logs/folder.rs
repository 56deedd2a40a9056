//! Where the files of a run go.
//!
//! Takes folders in order of preference; gives the first in which a file can be
//! written, as `<folder>/<run-id>/node-<k>/attempt-<n>`, and a word about those
//! before it. No folder at all is no refusal: the logs then stay in memory. Every
//! test runs in a thread of its own with a deadline, because a mount whose server
//! is gone never answers.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use crate::in_time::in_time;
use crate::lang::Text;
use crate::text;
use crate::verdict::Warning;

/// How long one folder may take to answer.
const ANSWER: Duration = Duration::from_secs(3);

/// The folders of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFolder {
    /// `<log-dir>`: the candidate that was chosen.
    pub base: PathBuf,
    /// `<log-dir>/<run-id>/node-<k>/attempt-<n>`, which exists.
    pub attempt: PathBuf,
}

/// The flag's folder, then `./ranklaunch-logs`, `$TMPDIR/ranklaunch`, `/tmp/ranklaunch`.
pub fn default_candidates(flag: Option<&Path>, tmpdir: Option<&OsStr>) -> Vec<PathBuf> {
    let tmpdir = tmpdir.filter(|folder| !folder.is_empty()).map(Path::new);
    let fixed = [Some(PathBuf::from("ranklaunch-logs")), tmpdir.map(|tmp| tmp.join("ranklaunch"))];
    let mut candidates: Vec<PathBuf> = flag
        .map(Path::to_path_buf)
        .into_iter()
        .chain(fixed.into_iter().flatten())
        .chain([PathBuf::from("/tmp/ranklaunch")])
        .collect();
    candidates.dedup();
    candidates
}

/// The first of `candidates` that takes a file within 3 s.
pub fn choose_folder(
    candidates: &[PathBuf],
    run_id: &str,
    node_rank: u32,
    attempt: u32,
) -> (Option<RunFolder>, Vec<Warning>) {
    choose(candidates, run_id, node_rank, attempt, try_folder)
}

fn choose(
    candidates: &[PathBuf],
    run_id: &str,
    node_rank: u32,
    attempt: u32,
    try_folder: fn(&Path, &Path) -> io::Result<PathBuf>,
) -> (Option<RunFolder>, Vec<Warning>) {
    let run = one_name(run_id);
    let below =
        Path::new(&run).join(format!("node-{node_rank}")).join(format!("attempt-{attempt}"));
    let mut refused: Vec<(PathBuf, Text)> = Vec::new();
    for base in candidates {
        match in_time(ANSWER, {
            let (base, below) = (base.clone(), below.clone());
            move || try_folder(&base, &below)
        }) {
            Some(Ok(attempt)) => {
                let base = base.clone();
                let warnings = refused
                    .into_iter()
                    .map(|(folder, why)| unusable(&folder, &why, Some(&base)))
                    .collect();
                point_latest(base.clone(), run);
                return (Some(RunFolder { base, attempt }), warnings);
            }
            Some(Err(error)) => refused.push((base.clone(), Text::same(error.to_string()))),
            None => refused.push((
                base.clone(),
                text!("no answer within 3 s, is its mount dead?", "3 秒内无响应，挂载点可能已失效"),
            )),
        }
    }
    let mut warnings: Vec<Warning> =
        refused.iter().map(|(folder, why)| unusable(folder, why, None)).collect();
    warnings.push(Warning::new(
        "logs.memory",
        text!(
            "no folder takes log files: the ranks' output goes to the console, and its last 200 lines per rank stay in memory",
            "没有可写的日志目录：各 rank 的输出只显示在控制台，内存中保留每个 rank 的最后 200 行"
        ),
        text!("name a writable folder with --log-dir", "用 --log-dir 指定一个可写目录"),
    ));
    (None, warnings)
}

fn unusable(folder: &Path, why: &Text, instead: Option<&Path>) -> Warning {
    let folder = folder.display();
    let text = match instead.map(Path::display) {
        Some(used) => Text::new(
            format!("log folder {folder} cannot be used: {}; the logs go to {used}", why.en),
            format!("日志目录 {folder} 不可用：{}；日志写入 {used}", why.zh),
        ),
        None => Text::new(
            format!("log folder {folder} cannot be used: {}", why.en),
            format!("日志目录 {folder} 不可用：{}", why.zh),
        ),
    };
    Warning::new(
        "logs.folder",
        text,
        text!("name a writable folder with --log-dir", "用 --log-dir 指定一个可写目录"),
    )
}

/// Makes the attempt's folder and proves that a byte can be written there.
fn try_folder(base: &Path, below: &Path) -> io::Result<PathBuf> {
    let folder = std::path::absolute(base)?.join(below);
    fs::create_dir_all(&folder)?;
    let probe = folder.join(format!(".writable-{}", std::process::id()));
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(&probe)
        .and_then(|mut file| file.write_all(b"\n"));
    let removed = fs::remove_file(&probe);
    written.and(removed).map(|()| folder)
}

/// Points `<log-dir>/latest` at the run. Best effort: where links are not
/// supported, or `latest` is a folder of somebody's, nothing is lost.
fn point_latest(base: PathBuf, run: String) {
    in_time(ANSWER, move || {
        // Renamed into place, as the nodes of a job may share the folder.
        let fresh = base.join(format!(".latest-{run}-{}", std::process::id()));
        let placed = std::os::unix::fs::symlink(&run, &fresh)
            .and_then(|()| fs::rename(&fresh, base.join("latest")));
        if placed.is_err() {
            let _ = fs::remove_file(&fresh);
        }
    });
}

/// The run id as one folder name: job names come from platforms and may hold anything.
fn one_name(run_id: &str) -> String {
    let name: String = run_id
        .chars()
        .map(|c| if c == '/' || c.is_control() { '_' } else { c })
        .take(200)
        .collect();
    let mut parts = Path::new(&name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(_)), None) => name,
        _ => "run".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_first_writable_folder_is_used_and_the_others_are_named() {
        let root = tempfile::tempdir().expect("a folder");
        let occupied = root.path().join("a-file");
        fs::write(&occupied, "").expect("written");
        let good = root.path().join("deep/logs");
        let (folder, warnings) = choose_folder(&[occupied, good.clone()], "job-1", 2, 0);
        let folder = folder.expect("a folder");
        assert_eq!(folder.base, good);
        assert_eq!(folder.attempt, good.join("job-1/node-2/attempt-0"));
        assert!(fs::read_dir(&folder.attempt).expect("it exists").next().is_none(), "left clean");
        assert_eq!(warnings.len(), 1);
        assert_eq!(warnings[0].id, "logs.folder");
        assert!(warnings[0].text.en.contains("a-file") && warnings[0].text.en.contains("deep"));
    }

    #[test]
    fn latest_points_at_the_newest_run_and_moves_with_the_folder() {
        let root = tempfile::tempdir().expect("a folder");
        for run in ["job-1", "job-2"] {
            choose_folder(&[root.path().to_path_buf()], run, 0, 0);
            let link = fs::read_link(root.path().join("latest")).expect("a link");
            assert_eq!(link, Path::new(run));
        }
        assert!(root.path().join("latest/node-0/attempt-0").is_dir());
    }

    #[test]
    fn a_folder_called_latest_is_left_alone() {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir(root.path().join("latest")).expect("made");
        let (folder, warnings) = choose_folder(&[root.path().to_path_buf()], "job-1", 0, 0);
        assert!(folder.is_some() && warnings.is_empty());
        let names = fs::read_dir(root.path()).expect("read").count();
        assert_eq!(names, 2, "nothing else is left behind");
    }

    #[test]
    fn no_folder_is_a_warning_and_memory() {
        let (folder, warnings) = choose_folder(&[PathBuf::from("/proc/nowhere")], "job-1", 0, 0);
        assert_eq!(folder, None);
        let ids: Vec<&str> = warnings.iter().map(|warning| warning.id.as_str()).collect();
        assert_eq!(ids, ["logs.folder", "logs.memory"]);
    }

    #[test]
    fn a_dead_mount_is_given_up_on() {
        let root = tempfile::tempdir().expect("a folder");
        let dead = PathBuf::from("/dead-mount");
        let began = Instant::now();
        let (folder, warnings) =
            choose(&[dead, root.path().to_path_buf()], "job-1", 0, 0, |base, below| {
                while base.starts_with("/dead-mount") {
                    std::thread::park();
                }
                try_folder(base, below)
            });
        assert!(folder.is_some());
        assert!(warnings[0].text.en.contains("no answer within 3 s"));
        assert!(began.elapsed() < 2 * ANSWER);
    }

    #[test]
    fn a_run_id_is_one_name() {
        for (id, name) in [
            ("job-1", "job-1"),
            ("../../etc", ".._.._etc"),
            ("..", "run"),
            ("", "run"),
            ("a/b", "a_b"),
        ] {
            assert_eq!(one_name(id), name);
        }
    }

    #[test]
    fn the_usual_places_stand_behind_the_flag() {
        let candidates = default_candidates(Some(Path::new("/logs")), Some(OsStr::new("/scratch")));
        let names: Vec<_> = candidates.iter().map(|path| path.to_string_lossy()).collect();
        assert_eq!(names, ["/logs", "ranklaunch-logs", "/scratch/ranklaunch", "/tmp/ranklaunch"]);
        assert_eq!(default_candidates(None, Some(OsStr::new("/tmp"))).len(), 2);
    }
}
