//! Posts the progress of the job to its TrainJob, if the variables of Kubeflow's Trainer ask for it.
//!
//! Only the node of rank 0 sees that rank's lines, so only this node posts. A thread of its own asks and
//! posts. If a server does not answer, one line reports it, and the job goes on.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime};

use super::context::Context;
use super::live_diagnosis::LiveDiagnosis;
use linux::deadline::with_deadline_async;
use monitor::export::{TrainJobTarget, is_taken, trainer_status};
use monitor::watch::{JobProgress, ProgressLines};
use node::probe;
use plan::Plan;
use settings::TellsProgress;
use text::lang::Text;
use text::letters::is_hidden;
use text::text;

/// Time between two posts: each post starts Python, so a shorter interval would cost more than 1 % of a
/// core.
const PACE: Duration = Duration::from_secs(15);
/// Maximum delay until the first progress is seen.
const TICK: Duration = Duration::from_secs(1);
/// Time limit of one post.
const POST: Duration = Duration::from_secs(5);

/// Posts until this is ended or dropped.
#[derive(Debug)]
pub(super) struct TrainJobPosts {
    end: Sender<()>,
    ended: Receiver<()>,
}

/// State of the thread that posts.
struct Poster {
    target: TrainJobTarget,
    python: PathBuf,
    say: Box<dyn Fn(&Text) + Send>,
    /// The last progress that was accepted.
    posted: Option<JobProgress>,
    tried: Option<Instant>,
    failed: bool,
}

/// None if no variable asks for posts.
pub(super) fn begin(
    context: &Context,
    plan: &Plan,
    diagnosis: &LiveDiagnosis,
) -> Option<TrainJobPosts> {
    let pattern = match &context.settings.progress.value {
        TellsProgress::Off => return None,
        TellsProgress::Auto => None,
        TellsProgress::Lines(pattern) => Some(pattern.clone()),
    };
    let target = match TrainJobTarget::of(|name| context.host.variable(name)) {
        Ok(target) => target?,
        Err(why) => {
            context.say(&why);
            return None;
        }
    };
    let Some(python) = plan.python.clone() else {
        context.say(&text!(
            "no progress is posted to the TrainJob: it goes through Python, and no interpreter is known",
            "不向 TrainJob 上报进度：上报需要 Python，而未找到解释器"
        ));
        return None;
    };
    let progress = diagnosis.read_progress(ProgressLines::new(pattern));
    let say = Box::new(context.speaker());
    let poster = Poster { target, python, say, posted: None, tried: None, failed: false };
    let ((end, asked), (done, ended)) = (channel(), channel());
    let thread = std::thread::Builder::new().name("trainjob".to_owned());
    match thread.spawn(move || poster.run(&asked, &done, progress)) {
        Ok(_) => Some(TrainJobPosts { end, ended }),
        Err(error) => {
            tracing::warn!(%error, "no thread for the progress of the TrainJob");
            None
        }
    }
}

impl TrainJobPosts {
    /// Posts the progress that is not posted yet, and ends.
    pub(super) async fn end(self, within: Duration) {
        let TrainJobPosts { end, ended } = self;
        let _ = end.send(());
        with_deadline_async(within, move || ended.recv()).await;
    }
}

impl Poster {
    fn run(
        mut self,
        asked: &Receiver<()>,
        done: &Sender<()>,
        progress: impl Fn(bool) -> Option<JobProgress>,
    ) {
        loop {
            let ends = match asked.recv_timeout(TICK) {
                Ok(()) => true,
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let is_due = ends || self.tried.is_none_or(|tried| tried.elapsed() >= PACE);
            // While ranks run, the search for causes reads at the lowest priority.
            let news = if is_due { progress(ends) } else { None };
            if let Some(news) = news.filter(|news| self.posted.as_ref() != Some(news)) {
                self.post(news);
            }
            if ends {
                let _ = done.send(());
                return;
            }
        }
    }

    fn post(&mut self, news: JobProgress) {
        self.tried = Some(Instant::now());
        let (args, variables) = self.target.post(&trainer_status(&news, SystemTime::now()));
        let why = match probe::run_tool(&self.python, &args, &variables, POST) {
            Ok(answer) => {
                let answer = String::from_utf8_lossy(&answer).trim().replace(is_hidden, " ");
                if is_taken(&answer) {
                    self.posted = Some(news);
                    return;
                }
                answer
            }
            Err(error) => error.to_string(),
        };
        if !std::mem::replace(&mut self.failed, true) {
            (self.say)(&text!(
                "the progress of the job was not posted to its TrainJob: {why}; the job goes on, and so do the attempts to post it",
                "任务进度未能上报到 TrainJob：{why}；任务照常运行，并将继续尝试上报"
            ));
        }
    }
}
