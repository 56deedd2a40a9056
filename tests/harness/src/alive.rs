//! Finds the living processes of a test, even if they try to hide.

use std::path::{Path, PathBuf};

/// One process, as the host sees it.
#[derive(Debug, Clone)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    pub argv: Vec<String>,
}

impl Process {
    pub fn command(&self) -> String {
        self.argv.join(" ")
    }
}

/// State, parent and number of threads, from /proc/PID/stat.
pub fn stat(pid: i32) -> Option<(char, i32, u32)> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    Some((state, parent, fields.nth(15)?.parse().ok()?))
}

/// True if `pid` exists and has not ended (a zombie has).
pub fn is_alive(pid: i32) -> bool {
    stat(pid).is_some_and(|(state, _, _)| !matches!(state, 'Z' | 'X'))
}

pub fn pids() -> Vec<i32> {
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Zombie children of `parent`.
pub fn zombies_of(parent: i32) -> usize {
    let is_one = |(state, of, _): &(char, i32, u32)| *state == 'Z' && *of == parent;
    pids().into_iter().filter_map(stat).filter(is_one).count()
}

/// Pid and command name of everything below `root`, without `root`.
pub fn descendants(root: i32) -> Vec<(i32, String)> {
    let all: Vec<(i32, i32)> =
        pids().into_iter().filter_map(|pid| Some((pid, stat(pid)?.1))).collect();
    let mut found = vec![root];
    let mut at = 0;
    while let Some(&parent) = found.get(at) {
        found.extend(all.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| pid));
        at += 1;
    }
    let name = |pid: i32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        Some((pid, text.trim_end().to_owned()))
    };
    found.into_iter().skip(1).filter_map(name).collect()
}

/// The living processes with `token` in their environment or command line, and those that run a program of
/// `folder` or run in it. A process whose first thread has ended is found by its other threads. A process
/// that the kernel is ending, without memory to run in, does not count.
pub fn alive(token: &str, folder: Option<&Path>) -> Vec<Process> {
    let me = i32::try_from(std::process::id()).unwrap();
    let mut found = Vec::new();
    for pid in pids() {
        let Some((state, parent, threads)) = stat(pid) else { continue };
        let zombie = matches!(state, 'Z' | 'X');
        if pid == me || (zombie && threads <= 1) {
            continue;
        }
        let process = PathBuf::from(format!("/proc/{pid}"));
        let tasks: Vec<PathBuf> = if zombie {
            let tasks = std::fs::read_dir(process.join("task")).into_iter().flatten().flatten();
            tasks.map(|entry| entry.path()).collect()
        } else {
            vec![process]
        };
        let argv = |task: &Path| words(&task.join("cmdline"));
        let ours = tasks.iter().any(|task| {
            let below = |link: &str| {
                let target = std::fs::read_link(task.join(link));
                folder.is_some_and(|folder| target.is_ok_and(|target| target.starts_with(folder)))
            };
            words(&task.join("environ")).iter().any(|entry| entry.contains(token))
                || argv(task).iter().any(|word| word.contains(token))
                || below("exe")
                || below("cwd")
        });
        // A process without memory has neither.
        let runs =
            |task: &PathBuf| !argv(task).is_empty() || std::fs::read_link(task.join("exe")).is_ok();
        if ours && tasks.iter().any(runs) {
            let argv = tasks.first().map(|task| argv(task)).unwrap_or_default();
            found.push(Process { pid, parent, argv });
        }
    }
    found
}

fn words(file: &Path) -> Vec<String> {
    let bytes = std::fs::read(file).unwrap_or_default();
    let words = bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}
