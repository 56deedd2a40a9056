//! `ranklaunch ps`: the jobs that run here, and the runs of the log folder.

use std::path::Path;
use std::sync::mpsc;

use serde_json::{Value, json};

use super::output::{print, say, show};
use crate::runs::find;
use crate::runs::find::{RunningJob, log_folders};
use crate::runs::lines::view;
use crate::view::{View, ViewAsk};
use linux::deadline::spawn_detached;
use linux::{regular_file, users};
use logs::{RUN_JSON, RunFolder};
use monitor::socket::Listener;
use report::closing;
use report::ps_view::{self, EndedRun, ShownJob};
use settings::cli::{Ps, ReportFormat};
use text::lang::{Lang, cause};
use text::text;
use verdict::Refusal;

/// Maximum bytes of a run.json.
const LARGEST_RECORD: u64 = 64 << 20;

pub(crate) fn ps(asked: &Ps, lang: Lang) -> Result<i32, Refusal> {
    let jobs = running(lang)?;
    let ended = asked.all.then(|| ended(asked, &jobs));
    match asked.format {
        ReportFormat::Text => show(&ps_view::text(&jobs, ended.as_deref(), lang)),
        ReportFormat::Json => {
            let jobs: Vec<Value> = jobs.iter().map(|job| ps_view::json(job, lang)).collect();
            let ended = ended.as_deref().unwrap_or_default();
            let ended: Vec<Value> = ended.iter().map(ps_view::ended_json).collect();
            print(format!("{:#}\n", json!({ "schema": 1, "jobs": jobs, "ended": ended })));
        }
    }
    Ok(0)
}

/// The jobs that run here, with the status of all their nodes.
fn running(lang: Lang) -> Result<Vec<ShownJob>, Refusal> {
    let find::Found { jobs, refused, unheard, unasked } = find::all()?;
    for (uid, count) in unasked {
        let user = users::named(uid);
        let line = text!(
            "{count} further sockets of user {user} are named like those of jobs; they were not asked",
            "用户 {user} 另有 {count} 个与任务套接字同样命名的套接字，未予询问"
        );
        say(&closing::line(&line, lang));
    }
    // All jobs are asked in parallel, so that a silent one does not delay the others.
    let (tell, told) = mpsc::channel();
    for job in jobs {
        let tell = tell.clone();
        spawn_detached(move || drop(tell.send(shown(job))));
    }
    drop(tell);
    // An agent that does not answer is listed, and hides no other.
    let mut shown: Vec<ShownJob> = told.into_iter().collect();
    for (agent, problem) in refused.into_iter().chain(unheard) {
        let user = agent.stranger().map(users::named);
        shown.push(ShownJob { problem: Some(problem), user, ..of_agent(&agent) });
    }
    shown.sort_by(|one, other| (&one.run_id, one.pid).cmp(&(&other.run_id, other.pid)));
    Ok(shown)
}

/// A job of this agent, without what the agent says: its pid by the kernel, or else by its name. The name of a
/// stranger's socket proves nothing.
fn of_agent(agent: &Listener) -> ShownJob {
    let pid = agent.pid_here().and_then(|pid| u32::try_from(pid).ok());
    let is_by_name = pid.is_none() && agent.stranger().is_none();
    let pid_inside = if is_by_name { agent.pid().parse().ok() } else { None };
    ShownJob { pid, pid_inside, ..ShownJob::default() }
}

fn shown(job: RunningJob) -> ShownJob {
    let user = job.stranger.map(users::named);
    let first = job.agents.first().map(|(agent, _)| of_agent(agent)).unwrap_or_default();
    let mut shown = ShownJob { run_id: job.run_id.into(), user, ..first };
    for (agent, own) in job.agents {
        shown.all_nodes = shown.all_nodes.max(own.nodes);
        match view(&agent, &ViewAsk::Status) {
            Ok(View::Status(status)) => {
                let reaches_all = status.reaches_all;
                let (nodes, unanswered) = status.read();
                shown.nodes.extend(nodes);
                if reaches_all {
                    shown.unanswered =
                        unanswered.into_iter().map(|one| (one.who, one.why)).collect();
                    shown.problem = None;
                    break;
                }
            }
            Ok(_) => {}
            Err(error) => shown.problem = Some(cause(&error)),
        }
    }
    shown
}

/// The runs of the log folder that are not alive, the newest first.
fn ended(asked: &Ps, jobs: &[ShownJob]) -> Vec<EndedRun> {
    let folders = log_folders(asked.log_dir.as_deref());
    let runs = folders.iter().flat_map(|folder| logs::runs(folder).unwrap_or_default());
    // A stranger's job may use the id of any run.
    let own = jobs.iter().filter(|job| job.user.is_none());
    runs.filter(|run| own.clone().all(|job| job.run_id != run.id)).map(ended_run).collect()
}

fn ended_run(run: RunFolder) -> EndedRun {
    let records: Vec<Value> =
        run.launchers.iter().filter_map(|launcher| record(&launcher.join(RUN_JSON))).collect();
    // The node of the failed rank knows best.
    let told = records.iter().find(|record| {
        let verdict = record.get("verdict");
        verdict.and_then(|it| it.get("class")).is_some_and(|class| class != "other_node")
    });
    let record = told.or(records.first());
    let of = |name: &str| record.and_then(|record| record.get(name));
    let text = |value: Option<&Value>| Some(value?.as_str()?.to_owned());
    EndedRun {
        lives: run.lives(),
        bytes: run.bytes(),
        launchers: run.launchers.len(),
        started: text(of("started")),
        ended: text(of("ended")),
        code: of("exit_code").and_then(Value::as_i64),
        verdict: text(of("verdict").and_then(|it| it.get("id"))),
        cause: text(of("cause").and_then(|it| it.get("id"))),
        folder: run.path,
        run_id: run.id,
    }
}

fn record(path: &Path) -> Option<Value> {
    serde_json::from_slice(&regular_file::read(path, LARGEST_RECORD).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::sys::Peer;

    #[test]
    fn pid_is_that_of_the_readers_namespace() {
        let own = rustix::process::geteuid().as_raw();
        let shown = |peer: Option<(u32, i32)>| {
            let peer = peer.map(|(uid, pid)| Peer { uid, pid });
            let job = of_agent(&Listener { name: "ranklaunch-stacks-7-ab".to_owned(), peer });
            (job.pid, job.pid_inside)
        };
        assert_eq!(shown(Some((own, 4711))), (Some(4711), None));
        assert_eq!(shown(Some((own, 0))), (None, Some(7)), "it has no pid here");
        assert_eq!(shown(None), (None, Some(7)), "the kernel was not asked");
        assert_eq!(shown(Some((own + 1, 4711))), (Some(4711), None));
        assert_eq!(shown(Some((own + 1, 0))), (None, None), "anybody may choose a name");
    }
}
