//! A job that runs here, and the choice among several: the one of the folder in which a command was called, or the list
//! from which the user chooses.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::collect::{candidates, log_candidates};
use crate::commands::output::say;
use crate::open::open;
use linux::host::Host;
use linux::users;
use logs::RunFolder;
use monitor::socket::{About, Job, Listener};
use report::closing;
use report::ps_view::ago;
use report::runs::view::now_ms;
use settings::cli::Options;
use text::columns::table;
use text::escape::in_one_line;
use text::lang::{Lang, Text};
use text::run_id::RunId;
use text::text;
use verdict::{Id, Refusal};

/// A job, and its agents here: several with tasks, or with two nodes on one machine.
pub(crate) struct RunningJob {
    pub(crate) run_id: RunId,
    /// The owner of the job, unless the asking user is the owner.
    pub(crate) stranger: Option<u32>,
    pub(crate) agents: Vec<(Listener, Job)>,
}

impl RunningJob {
    /// The RUN that names this job: its run id, or the pid of its agent if the nodes have not agreed on a
    /// run id yet.
    pub(crate) fn name(&self) -> Cow<'_, str> {
        match self.agents.first() {
            Some((agent, _)) if self.run_id.is_empty() => number(agent),
            _ => self.run_id.as_str().into(),
        }
    }

    /// What tells it from the others, as its agents say.
    pub(crate) fn about(&self) -> Option<&About> {
        let mut said = self.agents.iter().map(|(_, job)| &job.about);
        said.find(|about| **about != About::default())
    }

    /// The owner, by the kernel.
    pub(crate) fn owner(&self) -> Option<String> {
        self.agents.first()?.0.peer.map(|peer| users::named(peer.uid))
    }

    /// The name, program, owner, folder and age in columns.
    fn row(&self) -> Vec<String> {
        let about = self.about().cloned().unwrap_or_default();
        let age = now_ms().saturating_sub(about.started_ms) / 1000;
        let age = if about.started_ms > 0 { ago(age) } else { String::new() };
        let program = match &about.profile {
            Some(profile) => format!("{} ({profile})", about.program),
            None => about.program,
        };
        let owner = self.owner().unwrap_or_default();
        let row = [self.name().into_owned(), program, owner, about.folder, age];
        row.map(|cell| in_one_line(&cell)).into()
    }

    /// Names the owner of this job before anything of it is shown: any user may claim to have one.
    pub(crate) fn tell_owner(&self, lang: Lang) {
        let Some(uid) = self.stranger else { return };
        let (run, user) = (self.name(), users::named(uid));
        let line = text!(
            "{run} is of user {user}: all that follows is what that user's process says",
            "{run} 属于用户 {user}：以下内容均为该用户的进程所述"
        );
        say(&closing::line(&line, lang));
    }
}

/// The pid by which the user names an agent: that of the user's own PID namespace, if it has one there.
pub(super) fn number(agent: &Listener) -> Cow<'_, str> {
    match agent.pid_here() {
        Some(pid) => pid.to_string().into(),
        None => agent.pid().into(),
    }
}

/// The folder in which a command was called, and the log folders that a launch here would choose.
#[derive(Debug, Default)]
pub(crate) struct Here {
    folder: Option<PathBuf>,
    logs: Vec<PathBuf>,
}

impl Here {
    pub(crate) fn look() -> Here {
        let folder = std::env::current_dir().ok();
        // The temporary folders behind these hold the runs of any folder.
        let mut logs = log_folders(None);
        logs.retain(|folder| folder.is_relative() || !is_temporary(folder));
        Here { folder, logs }
    }

    #[cfg(test)]
    pub(crate) fn at(folder: &Path) -> Here {
        Here { folder: Some(folder.to_owned()), logs: Vec::new() }
    }

    /// Whether a job was started in this folder, or writes into its log folder.
    pub(crate) fn has(&self, job: &RunningJob) -> bool {
        let (run, folder) = (job.run_id.as_str(), self.folder.as_deref());
        let is_in = |logs: &PathBuf| !run.is_empty() && logs.join(run).is_dir();
        job.agents
            .iter()
            .any(|(_, job)| folder.is_some_and(|it| it.to_string_lossy() == job.about.folder))
            || self.logs.iter().any(is_in)
    }

    /// The newest run of this folder, whether it lives or not.
    pub(super) fn newest_run(&self) -> Option<RunFolder> {
        self.logs.iter().find_map(|logs| newest(logs))
    }

    /// The job of this folder: that of `latest`, or the only one.
    pub(super) fn position(&self, jobs: &[RunningJob]) -> Option<usize> {
        let latest = self.newest_run();
        let is_latest = |job: &RunningJob| {
            latest.as_ref().is_some_and(|latest| latest.id == job.run_id.as_str())
        };
        jobs.iter().position(is_latest).or_else(|| {
            let mut of_here = jobs.iter().enumerate().filter(|(_, job)| self.has(job));
            let only = of_here.next().map(|(at, _)| at);
            only.filter(|_| of_here.next().is_none())
        })
    }
}

/// Whether a log folder is one that serves every working folder.
fn is_temporary(folder: &Path) -> bool {
    candidates(&Host::live(), None).iter().skip(1).any(|one| one.path == folder)
}

/// The refusal that lists the jobs of which one has to be named: all of this user, or all of others. `unlisted`: jobs of
/// other users that would fit as well.
pub(super) fn several(
    run: Option<&str>,
    here: &Here,
    jobs: &[RunningJob],
    unlisted: usize,
) -> Refusal {
    const SHOWN: usize = 20;
    let mut rows: Vec<(bool, Vec<String>)> =
        jobs.iter().map(|job| (!here.has(job), job.row())).collect();
    rows.sort();
    let of_here = rows.iter().filter(|(is_elsewhere, _)| !is_elsewhere).count();
    let more = rows.len().saturating_sub(SHOWN);
    rows.truncate(SHOWN);
    let mut list = String::new();
    table(&mut list, rows.into_iter().map(|(_, row)| row).collect());
    if more > 0 {
        list.push_str("  …");
    }
    let (list, count) = (list.trim_end(), jobs.len());
    let are_own = jobs.iter().all(|job| job.stranger.is_none());
    let whose = match (are_own, unlisted) {
        (true, 0) => Text::same(""),
        (true, _) => text!(" of this user", "属于当前用户的"),
        (false, _) => text!(" of other users", "属于其他用户的"),
    };
    let place = match of_here {
        0 if are_own => text!("none of them in this folder", "都不在当前目录中"),
        0 => text!("none of this user", "没有当前用户的任务"),
        _ => text!("{of_here} of them in this folder", "其中 {of_here} 个在当前目录中"),
    };
    let more = match unlisted {
        0 => Text::same(""),
        _ => text!(
            "; {unlisted} of other users are not listed",
            "；另有其他用户的 {unlisted} 个未列出"
        ),
    };
    let (Text { en: whose, zh: whose_zh }, Text { en: place, zh: place_zh }) = (whose, place);
    let Text { en: more, zh: more_zh } = more;
    let text = match run {
        Some(run) => text!(
            "`{run}` begins the names of {count} jobs{whose} that run here{more}:\n{list}",
            "此处有 {count} 个正在运行的{whose_zh}任务的名称以 `{run}` 开头{more_zh}：\n{list}"
        ),
        None => text!(
            "{count} jobs{whose} run here, {place}{more}:\n{list}",
            "此处有 {count} 个{whose_zh}任务正在运行，{place_zh}{more_zh}：\n{list}"
        ),
    };
    let hint = text!(
        "give the first word of a line, or its beginning, as RUN; in the folder of a job it is the default",
        "请用参数 RUN 给出某一行的第一个词或其开头部分；在任务自己的目录中则默认是该任务"
    );
    Refusal::new(Id::StacksJob, text, hint)
}

/// Folders that may hold runs, in the order in which a launch chooses.
pub(crate) fn log_folders(log_dir: Option<&OsStr>) -> Vec<PathBuf> {
    let options = Options { log_dir: log_dir.map(OsStr::to_owned), ..Options::default() };
    let found = match open(&options) {
        Ok(opened) => log_candidates(&opened.host, &opened.settings),
        // Settings that `run` refuses must not hide what an earlier run wrote.
        Err(_) => candidates(&Host::live(), log_dir.map(Path::new)),
    };
    let mut folders: Vec<PathBuf> = found.into_iter().map(|one| one.path).collect();
    if log_dir.is_some() {
        // A user who names a folder means only that folder.
        folders.truncate(1);
    }
    folders.retain(|folder| folder.is_dir());
    folders
}

pub(super) fn newest(folder: &Path) -> Option<RunFolder> {
    logs::latest(folder).or_else(|| logs::runs(folder).ok()?.into_iter().next())
}
