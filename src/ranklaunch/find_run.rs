//! Finds the run that a command means: a job that runs here, or a folder of an earlier run; or the reason why there
//! is none.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::here::{Here, RunningJob, log_folders, newest, number, several};
use linux::users;
use logs::RunFolder;
use monitor::socket::{self, Answer, Listener};
use report::runs::view::refusal_of;
use text::lang::{Text, cause};
use text::order::Ordered;
use text::text;
use verdict::{Id, Refusal};

/// The reason why no single job is meant.
pub(crate) struct NotOne {
    /// Several of the user's own jobs are meant.
    pub(crate) are_several: bool,
    pub(crate) refusal: Refusal,
}

impl From<NotOne> for Refusal {
    fn from(why: NotOne) -> Refusal {
        why.refusal
    }
}

impl From<Refusal> for NotOne {
    fn from(refusal: Refusal) -> NotOne {
        NotOne { are_several: false, refusal }
    }
}

/// The jobs of this network namespace, and the agents that do not name theirs.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) jobs: Vec<RunningJob>,
    /// The agents that refuse, each with its reason.
    pub(crate) refused: Vec<(Listener, Text)>,
    /// The silent agents.
    pub(crate) unheard: Vec<(Listener, Text)>,
    /// Number of sockets of other users that were not asked, by user.
    pub(crate) unasked: BTreeMap<u32, usize>,
}

/// All jobs that run here.
///
/// # Errors
/// If the kernel's table of sockets cannot be read.
pub(crate) fn all() -> Result<Found, Refusal> {
    let table = socket::jobs(Path::new("/proc")).map_err(|error| {
        let Text { en, zh } = cause(&error);
        Refusal::new(
            Id::StacksJob,
            text!(
                "cannot look for running jobs: /proc/self/net/unix: {en}",
                "无法查找正在运行的任务：/proc/self/net/unix：{zh}"
            ),
            text!("mount procfs on /proc", "请将 procfs 挂载到 /proc"),
        )
    })?;
    let asked = socket::ask_all(table);
    let mut found = Found { unasked: asked.unasked, ..Found::default() };
    for (agent, answer) in asked.answers {
        match answer {
            Ok(Answer::Job(job)) => {
                let stranger = agent.stranger();
                // Before the nodes agree on a run, each agent is a job of its own.
                let same = |one: &&mut RunningJob| {
                    let is_same = one.run_id == job.run_id && one.stranger == stranger;
                    is_same && !job.run_id.is_empty()
                };
                match found.jobs.iter_mut().find(same) {
                    Some(known) => known.agents.push((agent, job)),
                    None => {
                        let run_id = job.run_id.clone();
                        let agents = vec![(agent, job)];
                        found.jobs.push(RunningJob { run_id, stranger, agents });
                    }
                }
            }
            Ok(answer @ Answer::Refused(_)) => found.refused.push((agent, refusal_of(&answer))),
            Ok(Answer::Stacks(_) | Answer::Dump(_) | Answer::View { .. }) => {}
            Err(error) if has_ended(&error) => {}
            Err(error) => found.unheard.push((agent, cause(&error))),
        }
    }
    Ok(found)
}

/// Whether an agent has just ended, since its socket is closed before it answers.
pub(crate) fn has_ended(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, UnexpectedEof};
    [BrokenPipe, ConnectionRefused, ConnectionReset, UnexpectedEof].contains(&error.kind())
}

/// The one job that is meant: by the beginning of its run id, or by the pid of an agent.
///
/// # Errors
/// No job is meant, or several are.
pub(crate) fn chosen(run: Option<&OsStr>) -> Result<RunningJob, NotOne> {
    let run = run.map(|run| run.to_string_lossy().into_owned());
    // A job that waits for other nodes has no run id yet, but its agent has a pid.
    let is_meant = |one: &RunningJob| {
        run.as_ref().is_none_or(|run| {
            let is_agent = |agent: &Listener| number(agent) == *run;
            one.run_id.as_str().starts_with(run.as_str())
                || one.agents.iter().any(|(it, _)| is_agent(it))
        })
    };
    the_one(run.as_deref(), is_meant)
}

/// The job with exactly this run id.
///
/// # Errors
/// No such job runs here, or several of other users do.
pub(crate) fn of_run(run_id: &str) -> Result<RunningJob, NotOne> {
    the_one(Some(run_id), |one| one.run_id.as_str() == run_id)
}

fn the_one(
    run: Option<&str>,
    is_meant: impl FnMut(&RunningJob) -> bool,
) -> Result<RunningJob, NotOne> {
    let Found { jobs, mut refused, mut unheard, .. } = all()?;
    // The answers of the user's own agents are reported first.
    refused.order_by_key(|(agent, _)| agent.stranger().is_none());
    unheard.order_by_key(|(agent, _)| agent.stranger().is_none());
    let (refused, unheard) = (refused.pop(), unheard.pop());
    let (mut meant, others): (Vec<_>, Vec<_>) = jobs.into_iter().partition(is_meant);
    // Another user may give its own job any name, or may have any number of jobs.
    let all = meant.len();
    if meant.iter().any(|one| one.stranger.is_none()) {
        meant.retain(|one| one.stranger.is_none());
    }
    match (meant.len(), meant.pop()) {
        (1, Some(job)) => Ok(job),
        (0, _) | (_, None) => Err(none(run, &others, refused, unheard).into()),
        (_, Some(last)) => {
            meant.push(last);
            let here = Here::look();
            if run.is_none()
                && let Some(at) = here.position(&meant)
            {
                return Ok(meant.swap_remove(at));
            }
            // The jobs of strangers were left out if one of the user's own is meant.
            let are_several = meant.iter().all(|one| one.stranger.is_none());
            let refusal = several(run, &here, &meant, all - meant.len());
            Err(NotOne { are_several, refusal })
        }
    }
}

fn names(jobs: &[RunningJob]) -> String {
    let mut names: Vec<Cow<'_, str>> = jobs.iter().map(RunningJob::name).collect();
    names.sort_unstable();
    names.join(", ")
}

/// The reason why no job is shown.
pub(crate) fn none(
    run: Option<&str>,
    others: &[RunningJob],
    refused: Option<(Listener, Text)>,
    unheard: Option<(Listener, Text)>,
) -> Refusal {
    // A silent agent may belong to the meant job.
    if let Some((agent, why)) = unheard {
        return silent(&agent, &why);
    }
    if let Some(run) = run.filter(|_| !others.is_empty()) {
        let ids = names(others);
        return Refusal::new(
            Id::StacksJob,
            text!(
                "no run `{run}` runs here; {ids} does",
                "此处没有运行 `{run}`；正在运行的是 {ids}"
            ),
            text!("write the beginning of a run's id, or nothing", "请写运行 ID 的开头，或不写"),
        );
    }
    if let Some((agent, why)) = refused {
        return unanswered(&agent, &why);
    }
    Refusal::new(
        Id::StacksJob,
        text!(
            "no job of ranklaunch runs here: no socket @ranklaunch-stacks-… in /proc/net/unix",
            "此处没有正在运行的 ranklaunch 任务：/proc/net/unix 中没有 @ranklaunch-stacks-… 套接字"
        ),
        text!(
            "run it where the ranks run, as the job's user: kubectl exec POD -- ranklaunch …",
            "请在 rank 所在的容器中以任务的用户运行：kubectl exec POD -- ranklaunch …"
        ),
    )
}

/// The refusal for an agent that refuses.
pub(crate) fn unanswered(agent: &Listener, why: &Text) -> Refusal {
    let Text { en, zh } = why;
    let name = &agent.name;
    let of = match agent.pid_here() {
        None => Text::same(String::new()),
        Some(pid) => text!(" (agent {pid})", "（agent {pid}）"),
    };
    let Text { en: of_en, zh: of_zh } = of;
    Refusal::new(
        Id::StacksAgent,
        text!(
            "the job at @{name}{of_en} gives no stacks: {en}",
            "@{name}{of_zh} 的任务没有给出栈：{zh}"
        ),
        text!(
            "run ranklaunch stacks in the job's own container, as its user or as root",
            "请在任务自己的容器中以其用户或 root 运行 ranklaunch stacks"
        ),
    )
}

/// The refusal for a silent agent.
pub(crate) fn silent(agent: &Listener, why: &Text) -> Refusal {
    let Text { en, zh } = why;
    let name = &agent.name;
    if let Some(uid) = agent.stranger() {
        let user = users::named(uid);
        return Refusal::new(
            Id::StacksAgent,
            text!(
                "the socket @{name} of user {user} gives no stacks: {en}",
                "用户 {user} 的套接字 @{name} 没有给出栈：{zh}"
            ),
            text!(
                "it need not be a job: any user can make a socket of this name; ask user {user}",
                "它不一定是任务：任何用户都能创建这样命名的套接字；请询问用户 {user}"
            ),
        );
    }
    let hint = match agent.pid_here() {
        // Only a pid from the kernel is used: anybody may choose the pid in the name.
        Some(pid) => text!(
            "look at its agent, while the ranks run on: ps -o pid,state,wchan,args -p {pid}; T means stopped, and kill -CONT {pid} continues it",
            "各 rank 仍在运行，请查看其 agent：ps -o pid,state,wchan,args -p {pid}；T 表示已被暂停，可用 kill -CONT {pid} 恢复"
        ),
        None => text!(
            "look at its agent in its own container, while the ranks run on",
            "各 rank 仍在运行，请在其自己的容器中查看其 agent"
        ),
    };
    Refusal::new(
        Id::StacksAgent,
        text!("the job at @{name} gives no stacks: {en}", "@{name} 的任务没有给出栈：{zh}"),
        hint,
    )
}

/// A run with output.
pub(crate) enum Run {
    Lives(RunningJob),
    Folder(RunFolder),
    /// One launcher of a run: the only one in the list.
    Launcher(RunFolder),
}

/// The run that the user means.
pub(crate) fn chosen_run(run: Option<&OsStr>, log_dir: Option<&OsStr>) -> Result<Run, Refusal> {
    if let Some(folder) = run.map(Path::new).filter(|run| is_path(run)) {
        return of_folder(folder).ok_or_else(|| no_run_in(folder));
    }
    let mut of_a_stranger = None;
    // A user who names only a folder means none of the jobs that run here.
    if run.is_some() || log_dir.is_none() {
        match chosen(run) {
            // Any user may have a job here; one's own last run comes before it.
            Ok(job) if run.is_none() && job.stranger.is_some() => of_a_stranger = Some(job),
            Ok(job) => return Ok(Run::Lives(job)),
            Err(NotOne { are_several: true, refusal }) if run.is_none() => {
                // None of them is of this folder, but an earlier run may be.
                return Here::look().newest_run().map(Run::Folder).ok_or(refusal);
            }
            Err(_) => {}
        }
    }
    let folders = log_folders(log_dir);
    let Some(run) = run.map(|run| run.to_string_lossy().into_owned()) else {
        let latest = folders.iter().find_map(|folder| newest(folder));
        let found = latest.map(Run::Folder).or(of_a_stranger.map(Run::Lives));
        return found.ok_or_else(|| no_run(&folders));
    };
    let mut found: Vec<RunFolder> = Vec::new();
    for folder in &folders {
        let runs = logs::runs(folder).unwrap_or_default();
        if let Some(exact) = runs.iter().find(|one| one.id == run) {
            return Ok(Run::Folder(exact.clone()));
        }
        found.extend(runs.into_iter().filter(|one| one.id.starts_with(&run)));
    }
    match (found.len(), found.pop()) {
        (1, Some(one)) => Ok(Run::Folder(one)),
        (_, Some(last)) => {
            let ids: Vec<&str> =
                found.iter().chain([&last]).take(8).map(|one| one.id.as_str()).collect();
            let ids = ids.join(", ");
            Err(Refusal::new(
                Id::LogsUnknown,
                text!("`{run}` begins several runs: {ids}", "有多次运行以 `{run}` 开头：{ids}"),
                text!("write more of the run's id", "请写出运行 ID 的更多部分"),
            ))
        }
        (_, None) => Err(unknown(&run, &folders)),
    }
}

/// The running job that the user means: by its folder, or by the log folder whose newest run it is.
pub(crate) fn running(run: Option<&OsStr>, log_dir: Option<&OsStr>) -> Result<RunningJob, Refusal> {
    let folder = match run {
        Some(run) => Some(Path::new(run)).filter(|run| is_path(run)),
        None => log_dir.map(Path::new),
    };
    let Some(folder) = folder else { return Ok(chosen(run)?) };
    match of_folder(folder) {
        Some(Run::Folder(found) | Run::Launcher(found)) => Ok(of_run(&found.id)?),
        Some(Run::Lives(job)) => Ok(job),
        None => Err(no_run_in(folder)),
    }
}

/// `latest` of this folder names a run, as a path does.
fn is_path(run: &Path) -> bool {
    run.components().count() > 1 || run.is_absolute() || run.is_dir()
}

/// The run in or above a folder: a run, a launcher of one, or a log folder with its newest run.
fn of_folder(folder: &Path) -> Option<Run> {
    let folder = folder.canonicalize().ok()?;
    if let Some(run) = RunFolder::read(&folder) {
        return Some(Run::Folder(run));
    }
    if !logs::attempts(&folder).ok()?.is_empty() {
        let run = RunFolder::read(folder.parent()?)?;
        let launchers = vec![folder];
        return Some(Run::Launcher(RunFolder { launchers, ..run }));
    }
    newest(&folder).map(Run::Folder)
}

fn no_run_in(folder: &Path) -> Refusal {
    let folder = folder.display();
    Refusal::new(
        Id::LogsUnknown,
        text!("{folder} holds no run of ranklaunch", "{folder} 中没有 ranklaunch 的运行"),
        text!(
            "name the folder of a run, or a log folder: it holds RUN/node-0/attempt-0",
            "请指定一次运行的目录或日志目录：其中有 RUN/node-0/attempt-0"
        ),
    )
}

fn listed(folders: &[PathBuf]) -> Text {
    let names: Vec<String> = folders.iter().map(|it| it.display().to_string()).collect();
    match names.is_empty() {
        true => text!("no log folder is here", "此处没有日志目录"),
        false => {
            let names = names.join(", ");
            text!("looked in {names}", "已查找 {names}")
        }
    }
}

fn no_run(folders: &[PathBuf]) -> Refusal {
    let Text { en, zh } = listed(folders);
    Refusal::new(
        Id::LogsUnknown,
        text!(
            "no job runs here, and no earlier run was found ({en})",
            "此处没有正在运行的任务，也没有以前的运行（{zh}）"
        ),
        text!(
            "name the log folder: ranklaunch logs --log-dir DIR",
            "请指定日志目录：ranklaunch logs --log-dir DIR"
        ),
    )
}

fn unknown(run: &str, folders: &[PathBuf]) -> Refusal {
    let Text { en, zh } = listed(folders);
    let shown = run.escape_debug();
    Refusal::new(
        Id::LogsUnknown,
        text!(
            "no run `{shown}` runs here, and no earlier one was found ({en})",
            "此处没有正在运行的 `{shown}`，也没有以前的同名运行（{zh}）"
        ),
        text!(
            "ranklaunch ps --all lists the runs; --log-dir DIR names another log folder",
            "ranklaunch ps --all 列出各次运行；--log-dir DIR 指定其他日志目录"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::sys::Peer;
    use monitor::socket::{About, Job, Refused};
    use std::os::unix::ffi::OsStrExt;
    use text::run_id::RunId;

    #[test]
    fn job_without_run_id_is_named_by_pid() {
        let uid = rustix::process::geteuid().as_raw();
        let running = |run_id: &str, inside: i32, here: Option<i32>| {
            let peer = here.map(|pid| Peer { uid, pid });
            let agent = Listener { name: format!("ranklaunch-stacks-{inside}-x"), peer };
            let run_id = RunId::try_from(run_id.to_owned()).expect("an id");
            let ranks = Vec::new();
            let about = About::default();
            let job = Job { run_id: run_id.clone(), attempt: 0, node: 0, nodes: 2, ranks, about };
            RunningJob { run_id, stranger: None, agents: vec![(agent, job)] }
        };
        let jobs = [running("", 41, None), running("job-1", 42, Some(42)), running("", 43, None)];
        assert_eq!(names(&jobs), "41, 43, job-1");
        // An agent of another PID namespace, with and without a pid in this one.
        let jobs = [running("", 7, Some(4711)), running("", 8, Some(0)), running("a", 9, Some(12))];
        assert_eq!(names(&jobs), "4711, 8, a");
    }

    #[test]
    fn lists_say_whose_jobs_they_count() {
        let uid = rustix::process::geteuid().as_raw();
        let job = |stranger: Option<u32>| {
            let peer = Some(Peer { uid: stranger.unwrap_or(uid), pid: 42 });
            let agent = Listener { name: "ranklaunch-stacks-42-x".to_owned(), peer };
            let (run_id, ranks) = (RunId::default(), Vec::new());
            let about = About { folder: "/work/b\u{FFFD}d".to_owned(), ..About::default() };
            let job = Job { run_id: run_id.clone(), attempt: 0, node: 0, nodes: 1, ranks, about };
            RunningJob { run_id, stranger, agents: vec![(agent, job)] }
        };
        let (own, others) = ([job(None), job(None)], [job(Some(7)), job(Some(8)), job(Some(8))]);
        let nowhere = Here::default();
        let here = Here::at(Path::new(OsStr::from_bytes(b"/work/b\xffd")));
        for (jobs, here, unlisted, first) in [
            (&own[..], &nowhere, 0, "2 jobs run here, none of them in this folder:"),
            (&own, &here, 0, "2 jobs run here, 2 of them in this folder:"),
            (
                &own,
                &nowhere,
                3,
                "2 jobs of this user run here, none of them in this folder; 3 of other users are not listed:",
            ),
            (&others, &nowhere, 0, "3 jobs of other users run here, none of this user:"),
            (&others, &here, 0, "3 jobs of other users run here, 3 of them in this folder:"),
        ] {
            let refusal = several(None, here, jobs, unlisted);
            assert_eq!(refusal.text.en.lines().next(), Some(first));
            assert_ne!(refusal.text.en, refusal.text.zh);
            let named = several(Some("a"), here, jobs, unlisted).text.en;
            let said = if unlisted > 0 { " of this user that run here; 3 of" } else { " run here" };
            assert!(named.contains(said), "{named}");
        }
    }

    #[test]
    fn every_reason_has_both_languages() {
        let agent = Listener { name: "ranklaunch-stacks-1-x".to_owned(), peer: None };
        for why in [Refused::User { uid: 7, owner: 0 }, Refused::Container, Refused::Question] {
            let refusal =
                none(None, &[], Some((agent.clone(), refusal_of(&Answer::Refused(why)))), None);
            assert_eq!(refusal.id, Id::StacksAgent);
            assert_ne!(refusal.text.en, refusal.text.zh);
        }
        assert_eq!(none(Some("x"), &[], None, None).id, Id::StacksJob);
    }

    #[test]
    fn hint_never_suggests_a_pid_from_strangers() {
        let of = |uid, pid| {
            let name = "ranklaunch-stacks-4711-ab".to_owned();
            let agent = Listener { name, peer: Some(Peer { uid, pid }) };
            silent(&agent, &text!("silent", "无应答")).hint
        };
        let own = rustix::process::geteuid().as_raw();
        assert!(of(own, 42).en.contains("kill -CONT 42"));
        for hint in [of(own + 1, 42), of(own, 0)] {
            assert!(!hint.en.contains("kill") && !hint.en.contains("4711"), "{}", hint.en);
            assert!(!hint.zh.contains("kill") && !hint.zh.contains("4711"), "{}", hint.zh);
        }
    }
}
