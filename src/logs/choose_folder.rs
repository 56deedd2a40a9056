//! Chooses the log folder of a run.
//!
//! Takes candidates in order of preference. Gives the first in which a file can be written, as
//! `<folder>/<run-id>/node-<k>/attempt-<n>`, and the reasons against the candidates before it. Without any folder the
//! launch goes on and the logs stay in memory. Every candidate is tried in its own thread with a deadline, because a
//! mount without its server never answers. Files are opened only through [`LogFolder`].

use std::path::{Component, Path};
use std::sync::Arc;
use std::time::Duration;

use super::file_names::{LauncherFolder, attempt_folders};
use super::folder::{Candidate, LogFolder, Unusable};
use linux::deadline::with_deadline;
use text::lang::Text;
use text::letters::is_hidden;
use text::text;
use verdict::{Id, Warning};

/// Time limit for one folder.
const ANSWER: Duration = Duration::from_secs(3);

/// The first of `candidates` in which a file can be written within 3 s.
pub fn choose_folder(
    candidates: &[Candidate],
    run_id: &str,
    launcher: LauncherFolder,
    attempt: u32,
) -> (Option<Arc<LogFolder>>, Vec<Warning>) {
    choose(candidates, run_id, launcher, attempt, LogFolder::make)
}

fn choose(
    candidates: &[Candidate],
    run_id: &str,
    launcher: LauncherFolder,
    attempt: u32,
    make: fn(&Candidate, &[String]) -> Result<LogFolder, Unusable>,
) -> (Option<Arc<LogFolder>>, Vec<Warning>) {
    let run = one_name(run_id);
    let below = attempt_folders(&run, launcher, attempt);
    let mut refused: Vec<(&Path, Text)> = Vec::new();
    for candidate in candidates {
        let why = match with_deadline(ANSWER, {
            let (candidate, below) = (candidate.clone(), below.clone());
            move || make(&candidate, &below)
        }) {
            Some(Ok(folder)) => {
                let warnings = refused
                    .into_iter()
                    .map(|(refused, why)| unusable(refused, &why, Some(&candidate.path)))
                    .collect();
                let folder = Arc::new(folder);
                let again = Arc::clone(&folder);
                with_deadline(ANSWER, move || again.point_latest());
                return (Some(folder), warnings);
            }
            Some(Err(error)) => error.text(),
            None => text!(
                "no answer within 3 s; its mount may be dead",
                "3 秒内无响应，挂载点可能已失效"
            ),
        };
        refused.push((&candidate.path, why));
    }
    let mut warnings: Vec<Warning> =
        refused.iter().map(|(folder, why)| unusable(folder, why, None)).collect();
    warnings.push(Warning::new(
        Id::LogsMemory,
        text!(
            "no folder takes log files: the ranks' output goes to the console, and its last 200 lines per rank stay in memory",
            "没有可写的日志目录：各 rank 的输出只显示在控制台，内存中保留每个 rank 的最后 200 行"
        ),
        hint(),
    ));
    (None, warnings)
}

fn unusable(folder: &Path, why: &Text, instead: Option<&Path>) -> Warning {
    let (folder, Text { en, zh }) = (folder.display(), why);
    let used = instead.map(Path::display);
    let used = used.map(|used| (format!("; the logs go to {used}"), format!("；日志写入 {used}")));
    let (used, used_zh) = used.unwrap_or_default();
    let text = Text::new(
        format!("log folder {folder} cannot be used: {en}{used}"),
        format!("日志目录 {folder} 不可用：{zh}{used_zh}"),
    );
    Warning::new(Id::LogsFolder, text, hint())
}

fn hint() -> Text {
    text!("name a writable folder with --log-dir", "用 --log-dir 指定一个可写目录")
}

/// Maximum bytes of a run's folder name. A file system allows 255, also for names that are derived from it.
const LONGEST_NAME: usize = 200;

/// The run id as one folder name: job names come from platforms and may hold anything.
fn one_name(run_id: &str) -> String {
    let mut name: String = run_id
        .chars()
        .map(|c| if c == '/' || is_hidden(c) { '_' } else { c })
        .take(LONGEST_NAME)
        .collect();
    name.truncate(name.floor_char_boundary(LONGEST_NAME));
    let mut parts = Path::new(&name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(_)), None) => name,
        _ => "run".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Instant;
    use std::{fs, io};

    use super::super::folder::{Access, FolderLevel, default_candidates};
    use super::*;

    const NODE_0: LauncherFolder = LauncherFolder { node_rank: 0, task: None };

    #[test]
    fn first_writable_folder_is_used_others_are_named() {
        let root = tempfile::tempdir().expect("a folder");
        let occupied = root.path().join("a-file");
        fs::write(&occupied, "").expect("written");
        let good = root.path().join("deep/logs");
        let (folder, warnings) = choose_folder(
            &[Candidate::chosen(occupied), Candidate::chosen(&good)],
            "job-1",
            LauncherFolder { node_rank: 2, task: None },
            0,
        );
        let folder = folder.expect("a folder");
        assert_eq!(folder.path(), good.join("job-1/node-2/attempt-0"));
        assert_eq!(folder.node_path(), good.join("job-1/node-2"));
        assert!(fs::read_dir(folder.path()).expect("it exists").next().is_none(), "left clean");
        assert_eq!(warnings.len(), 1);
        assert_eq!(warnings[0].id, Id::LogsFolder);
        assert!(warnings[0].text.en.contains("a-file") && warnings[0].text.en.contains("deep"));
    }

    #[test]
    fn latest_link_points_at_the_newest_run() {
        let root = tempfile::tempdir().expect("a folder");
        for run in ["job-1", "job-2"] {
            choose_folder(&[Candidate::chosen(root.path())], run, NODE_0, 0);
            let link = fs::read_link(root.path().join("latest")).expect("a link");
            assert_eq!(link, Path::new(run));
        }
        assert!(root.path().join("latest/node-0/attempt-0").is_dir());
    }

    /// In a container a restarted launcher often has the same pid as the launcher that was killed.
    #[test]
    fn leftovers_of_a_same_pid_launcher_are_replaced() {
        let root = tempfile::tempdir().expect("a folder");
        let pid = std::process::id();
        let attempt = root.path().join("job-1/node-0/attempt-0");
        fs::create_dir_all(&attempt).expect("made");
        fs::write(attempt.join(format!(".writable-{pid}")), "").expect("written");
        let fresh = root.path().join(format!(".latest-job-1-node-0-{pid}"));
        std::os::unix::fs::symlink("elsewhere", &fresh).expect("a link");
        let (folder, warnings) =
            choose_folder(&[Candidate::chosen(root.path())], "job-1", NODE_0, 0);
        assert_eq!(folder.map(|folder| folder.path()), Some(attempt.clone()), "{warnings:?}");
        assert!(fs::read_dir(attempt).expect("it exists").next().is_none(), "left clean");
        let link = fs::read_link(root.path().join("latest")).expect("a link");
        assert_eq!(link, Path::new("job-1"));
    }

    #[test]
    fn a_folder_called_latest_is_left_alone() {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir(root.path().join("latest")).expect("made");
        let (folder, warnings) =
            choose_folder(&[Candidate::chosen(root.path())], "job-1", NODE_0, 0);
        assert!(folder.is_some() && warnings.is_empty());
        let names = fs::read_dir(root.path()).expect("read").count();
        assert_eq!(names, 2, "nothing else is left behind");
    }

    #[test]
    fn missing_folder_warns_and_keeps_logs_in_memory() {
        let (folder, warnings) =
            choose_folder(&[Candidate::chosen("/proc/nowhere")], "job-1", NODE_0, 0);
        assert!(folder.is_none());
        let ids: Vec<Id> = warnings.iter().map(|warning| warning.id).collect();
        assert_eq!(ids, [Id::LogsFolder, Id::LogsMemory]);
    }

    #[test]
    fn a_dead_mount_is_given_up_on() {
        let root = tempfile::tempdir().expect("a folder");
        let dead = Candidate::chosen("/dead-mount");
        let began = Instant::now();
        let (folder, warnings) =
            choose(&[dead, Candidate::chosen(root.path())], "job-1", NODE_0, 0, |base, below| {
                while base.path.starts_with("/dead-mount") {
                    std::thread::park();
                }
                LogFolder::make(base, below)
            });
        assert!(folder.is_some());
        assert!(warnings[0].text.en.contains("no answer within 3 s"));
        assert!(began.elapsed() < 2 * ANSWER);
    }

    #[test]
    fn run_id_becomes_one_folder_name() {
        for (id, name) in [
            ("job-1", "job-1"),
            ("../../etc", ".._.._etc"),
            ("..", "run"),
            ("", "run"),
            ("a/b", "a_b"),
        ] {
            assert_eq!(one_name(id), name);
        }
        // A file system counts bytes.
        let root = tempfile::tempdir().expect("a folder");
        let candidates = [Candidate::chosen(root.path())];
        let (folder, warnings) = choose_folder(&candidates, &"训练".repeat(100), NODE_0, 0);
        assert!(folder.is_some() && root.path().join("latest").is_dir(), "{warnings:?}");
    }

    #[test]
    fn default_folders_follow_the_flag() {
        let candidates = default_candidates(Some(Path::new("/logs")), Some(OsStr::new("/scratch")));
        let names: Vec<_> = candidates.iter().map(|it| it.path.to_string_lossy()).collect();
        let uid = rustix::process::geteuid().as_raw();
        let (scratch, tmp) =
            (format!("/scratch/ranklaunch-{uid}"), format!("/tmp/ranklaunch-{uid}"));
        assert_eq!(names, ["/logs", "ranklaunch-logs", &scratch, &tmp]);
        let access: Vec<_> = candidates.iter().map(|it| it.access).collect();
        use Access::{AsItIs, OursAlone};
        assert_eq!(access, [AsItIs, AsItIs, OursAlone, OursAlone]);
        assert_eq!(default_candidates(None, Some(OsStr::new("/tmp"))).len(), 2);
    }

    #[test]
    fn shared_place_accepts_only_our_own_folder() {
        let shared = tempfile::tempdir().expect("a folder");
        let ours = Candidate::temporary(shared.path());
        let of = |candidate: &Candidate| {
            choose_folder(std::slice::from_ref(candidate), "job-1", NODE_0, 0)
        };
        assert!(of(&ours).0.is_some());
        let mode = fs::metadata(&ours.path).expect("made").permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);

        fs::set_permissions(&ours.path, fs::Permissions::from_mode(0o777)).expect("changed");
        let (folder, warnings) = of(&ours);
        assert!(folder.is_none());
        assert!(warnings[0].text.en.contains("with mode 0777"), "{}", warnings[0].text.en);
        assert!(warnings[0].text.zh.contains("0777"), "{}", warnings[0].text.zh);

        fs::remove_dir_all(&ours.path).expect("removed");
        let elsewhere = tempfile::tempdir().expect("a folder");
        std::os::unix::fs::symlink(elsewhere.path(), &ours.path).expect("a link");
        assert!(of(&ours).0.is_none(), "a link leads elsewhere");
        assert_eq!(fs::read_dir(elsewhere.path()).expect("read").count(), 0);
    }

    /// Another user who may write in the parent folder renames our folder and puts links in its place.
    #[test]
    fn foreign_link_in_our_place_is_never_followed() {
        let root = tempfile::tempdir().expect("a folder");
        let victim = root.path().join("victim");
        fs::write(&victim, "precious").expect("written");
        let logs = root.path().join("logs");
        let (folder, _) = choose_folder(&[Candidate::chosen(&logs)], "job-1", NODE_0, 0);
        let folder = folder.expect("a folder");
        let link = |at: &Path| {
            for name in [".run.json.new", "run.json", "agent.jsonl"] {
                std::os::unix::fs::symlink(&victim, at.join(name)).expect("a link");
            }
        };
        let write = || {
            let replaced = folder.replace(FolderLevel::Node, "run.json", b"{}\n");
            let appended = folder.append(FolderLevel::Node, "agent.jsonl").map(|mut file| {
                io::Write::write_all(&mut file, b"{}\n").expect("written");
            });
            (replaced, appended)
        };
        // In the folder itself…
        link(&folder.node_path());
        let (replaced, appended) = write();
        assert!(replaced.is_ok() && appended.is_err(), "{replaced:?} {appended:?}");
        // …and in place of it.
        fs::rename(logs.join("job-1"), logs.join("old")).expect("renamed");
        fs::create_dir_all(folder.node_path()).expect("made");
        link(&folder.node_path());
        assert!(write().0.is_ok());
        assert_eq!(fs::read_to_string(&victim).expect("read"), "precious");
        let held = fs::read_to_string(logs.join("old/node-0/run.json"));
        assert_eq!(held.expect("written where the folder went"), "{}\n");
    }

    #[test]
    fn failed_replacement_leaves_no_temporary_file() {
        let root = tempfile::tempdir().expect("a folder");
        let (folder, _) = choose_folder(&[Candidate::chosen(root.path())], "job-1", NODE_0, 0);
        let folder = folder.expect("a folder");
        fs::create_dir(folder.node_path().join("run.json")).expect("made");
        folder.replace(FolderLevel::Node, "run.json", b"{}\n").expect_err("it is a folder");
        assert!(!folder.node_path().join(".run.json.new").exists());
    }

    #[test]
    fn a_folder_that_was_removed_is_made_again() {
        let root = tempfile::tempdir().expect("a folder");
        let logs = root.path().join("logs");
        let (folder, _) = choose_folder(&[Candidate::chosen(&logs)], "job-1", NODE_0, 0);
        let folder = folder.expect("a folder");
        fs::remove_dir_all(&logs).expect("removed");
        folder.append(FolderLevel::Attempt, "rank-00000.out").expect("made again");
        folder.replace(FolderLevel::Node, "run.json", b"{}\n").expect("written");
        assert!(folder.path().join("rank-00000.out").is_file());
        assert!(folder.node_path().join("run.json").is_file());
    }
}
