//! Hears that this node or job ends soon: the end of a Slurm job's time, a cloud that takes its machine back, a file that
//! the platform writes, a signal.
//!
//! Takes the sources that a person names, or those that fit this node; gives a [`StopNotice`] once for each source, and
//! again only with an earlier deadline. Each source has a thread of lowest priority that mostly sleeps, since a file on a
//! mount that hangs must not silence a cloud; without sources there is none. Never stops anything, asks no service of
//! anybody else, and says once what it cannot hear.

mod answers;
mod clouds;
mod files;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod http;
#[cfg(test)]
mod tests;

use std::io::{self, PipeReader, PipeWriter};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use answers::{End, JobEnd};
use clouds::{CLOUDS, Cloud, Conversation, Heard};
use files::FileWatch;
use linux::host::Host;
use linux::sys::{self, PollFd, PollFlags};
use settings::{NoticeMode, NoticeSource, Source, Sourced};
use text::lang::{Text, cause};
use text::text;

/// Slurm's variable with the end of the job, Unix seconds.
const JOB_END: &str = "SLURM_JOB_END_TIME";
/// The pause between two looks at a cloud, as AWS recommends it, and after [`Cloud::patience`] failures.
const CLOUD_PAUSE: Duration = Duration::from_secs(5);
const SILENT_PAUSE: Duration = Duration::from_secs(60);
/// A person who touches the file sees the ranks told at once, and a stat each quarter of a second costs nothing.
const FILE_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause before an end that is known: the clock of the node may be set in between.
const CLOCK_PAUSE: Duration = Duration::from_secs(30);
const SHORTEST_CLOCK_PAUSE: Duration = Duration::from_millis(100);
/// An end counts for so long after its time: whoever announced it is late, or has given it up.
pub const OVERDUE: Duration = Duration::from_secs(120);
/// A signal that asks for a save comes before the end of a Slurm job by less than this, if it is for that end.
const AHEAD: Duration = Duration::from_secs(3600);
/// Stack of a thread: a document may be 128 levels deep, as far as the reader goes.
const STACK: usize = 1 << 20;
/// The nice value of a thread.
const LOWEST: i32 = 19;
/// The share of a job's time that the default lead may take: a job of one minute is to do some work before it is told.
const SHARE_OF_JOB: u32 = 10;

/// Word that this node or job ends soon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopNotice {
    pub source: NoticeSource,
    pub reason: Text,
    /// None: nobody said when.
    pub deadline: Option<SystemTime>,
    /// Somebody asks for the save now, however far the deadline is.
    pub at_once: bool,
}

/// The watch of all sources. Ends when dropped.
#[derive(Debug)]
pub struct NoticeWatch {
    signals: Vec<NoticeSource>,
    /// The end of the Slurm job, for a notice by signal.
    job_end: Option<SystemTime>,
    /// One for each thread, which ends when it is closed.
    ends: Vec<PipeWriter>,
}

/// What a source says at one look.
struct Look {
    heard: Heard,
    pause: Duration,
}

/// One source while it is watched.
struct Watched<L> {
    source: NoticeSource,
    look: L,
    lead: Duration,
    /// Failures in a row after which the source is silent; None: it cannot fail.
    cloud: Option<&'static Cloud>,
    failures: u32,
    is_remarked: bool,
    told: Option<Option<SystemTime>>,
}

/// What follows from a look.
#[derive(Debug)]
struct Turn {
    notice: Option<StopNotice>,
    remark: Option<Text>,
    pause: Duration,
}

impl<L: FnMut(SystemTime) -> Look> Watched<L> {
    fn new(source: NoticeSource, lead: Duration, look: L) -> Watched<L> {
        let cloud = CLOUDS.iter().find(|cloud| cloud.source == source);
        Watched { source, look, lead, cloud, failures: 0, is_remarked: false, told: None }
    }

    fn turn(&mut self, now: SystemTime) -> Turn {
        let Look { heard, mut pause } = (self.look)(now);
        let mut remark = None;
        if heard.is_new || (heard.ends.is_empty() && heard.failure.is_none()) {
            // Another one, or it was called off.
            self.told = None;
        }
        match (heard.failure, self.cloud) {
            (Some(why), Some(cloud)) => {
                self.failures = self.failures.saturating_add(1);
                if self.failures >= cloud.patience {
                    let is_silent = !heard.has_answered;
                    pause = if is_silent { SILENT_PAUSE } else { pause };
                    let words =
                        || if is_silent { silent(cloud, &why) } else { partly(cloud, &why) };
                    remark = (!self.is_remarked).then(words);
                    self.is_remarked = true;
                }
            }
            _ => self.failures = 0,
        }
        let is_due = |end: &End| {
            let left = end.at.map(|at| at.duration_since(now).unwrap_or_default());
            !end.is_planned || left.is_none_or(|left| left <= self.lead)
        };
        // A known time says more than "soon".
        let key = |end: &End| (end.at.is_none(), end.at);
        let first = heard.ends.into_iter().filter(is_due).min_by_key(key);
        let is_news = |end: &End| match (self.told, end.at) {
            (None, _) | (Some(None), Some(_)) => true,
            // An end that is over was called off, and this is another one.
            (Some(Some(told)), Some(at)) => at < told || (at > told && now > told + OVERDUE),
            (Some(_), None) => false,
        };
        let notice = first.filter(is_news).map(|end| {
            self.told = Some(end.at);
            let (source, reason, deadline) = (self.source.clone(), end.reason, end.at);
            StopNotice { source, reason, deadline, at_once: false }
        });
        Turn { notice, remark, pause }
    }
}

fn silent(cloud: &Cloud, why: &Text) -> Text {
    let (name, hint) = (cloud.name, (cloud.hint)());
    let Text { en, zh } = why;
    let (hint_en, hint_zh) = (&hint.en, &hint.zh);
    text!(
        "the metadata service of {name} does not say whether this machine ends soon ({en}); it is asked each minute from now on; {hint_en}; --notice off asks nobody",
        "{name} 的元数据服务没有说明本机是否即将结束（{zh}）；此后每分钟查询一次；{hint_zh}；--notice off 则不再查询"
    )
}

/// One of several questions has no answer.
fn partly(cloud: &Cloud, Text { en, zh }: &Text) -> Text {
    let name = cloud.name;
    text!(
        "the metadata service of {name} answers only a part of what it is asked: {en}",
        "{name} 的元数据服务只回答了部分查询：{zh}"
    )
}

type Tell = dyn Fn(StopNotice) + Send + Sync;
type Remark = dyn Fn(Text) + Send + Sync;

/// The listeners of all sources, and the end of the watch.
#[derive(Clone)]
struct Ears {
    tell: Arc<Tell>,
    remark: Arc<Remark>,
}

impl NoticeWatch {
    /// Begins to watch. `lead`: the time before an end that is known long before, at which it is told; unless somebody set
    /// it, a short Slurm job is told later. `tell` and `remark` are called from other threads.
    pub fn start(
        host: &Host,
        mode: &NoticeMode,
        lead: &Sourced<Duration>,
        tell: impl Fn(StopNotice) + Send + Sync + 'static,
        remark: impl Fn(Text) + Send + Sync + 'static,
    ) -> NoticeWatch {
        let now = SystemTime::now();
        let ears = Ears { tell: Arc::new(tell), remark: Arc::new(remark) };
        let job_end =
            host.variable(JOB_END).map(|value| (answers::slurm(value.trim(), now), value));
        let named = match mode {
            NoticeMode::Off => Vec::new(),
            NoticeMode::Auto => {
                let slurm = job_end.iter().map(|_| NoticeSource::Slurm);
                let cloud = host.is_live().then(|| clouds::of_machine(host)).flatten();
                slurm.chain(cloud.map(|cloud| cloud.source.clone())).collect()
            }
            NoticeMode::Only(sources) => sources.clone(),
        };
        let mut watch = NoticeWatch { signals: Vec::new(), job_end: None, ends: Vec::new() };
        if let Some((JobEnd::At(at), _)) = &job_end {
            watch.job_end = Some(*at);
        }
        for source in named {
            match &source {
                NoticeSource::Slurm => match &job_end {
                    Some((JobEnd::At(at), _)) => {
                        let at = *at;
                        let (lead, why) = lead_of_job(lead, at, now);
                        if let Some(why) = why {
                            (ears.remark)(why);
                        }
                        watch.spawn(source, lead, ears.clone(), move |now| {
                            slurm_look(at, lead, now)
                        });
                    }
                    Some((JobEnd::Never, _)) => {}
                    Some((JobEnd::Nonsense(why), value)) => (ears.remark)(no_job_end(value, why)),
                    None => (ears.remark)(text!(
                        "{JOB_END} is not set, so the end of a Slurm job is not known; older versions of Slurm do not set it",
                        "未设置 {JOB_END}，无法得知 Slurm 任务的结束时间；旧版 Slurm 不设置该变量"
                    )),
                },
                NoticeSource::File(path) => {
                    let mut file = FileWatch::new(host, path);
                    watch.spawn(source, lead.value, ears.clone(), move |_| Look {
                        heard: of_file(&mut file),
                        pause: FILE_PAUSE,
                    });
                }
                NoticeSource::Signal(_) => watch.signals.push(source),
                NoticeSource::Gcp
                | NoticeSource::Aws
                | NoticeSource::Azure
                | NoticeSource::Alibaba => match of_this_machine(host, &source) {
                    Ok(cloud) => {
                        let mut conversation = Conversation::new(cloud);
                        watch.spawn(source, lead.value, ears.clone(), move |now| Look {
                            heard: conversation.look(now),
                            pause: CLOUD_PAUSE,
                        });
                    }
                    Err(why) => (ears.remark)(why),
                },
            }
        }
        watch
    }

    /// The notice that a signal to the launcher means; None if it is no source. The same each time it comes.
    pub fn signalled(&self, number: i32) -> Option<StopNotice> {
        let is_it = |source: &&NoticeSource| match source {
            NoticeSource::Signal(signal) => signal.number() == number,
            _ => false,
        };
        let source = self.signals.iter().find(is_it)?.clone();
        let NoticeSource::Signal(signal) = &source else { return None };
        let reason = text!("the launcher got SIG{signal}", "启动器收到 SIG{signal}");
        let is_near = |end: &SystemTime| {
            end.duration_since(SystemTime::now()).is_ok_and(|left| left <= AHEAD)
        };
        Some(StopNotice { reason, deadline: self.job_end.filter(is_near), at_once: true, source })
    }

    /// Watches one source in a thread of its own.
    fn spawn(
        &mut self,
        source: NoticeSource,
        lead: Duration,
        ears: Ears,
        look: impl FnMut(SystemTime) -> Look + Send + 'static,
    ) {
        let name = source.to_string();
        let remark = Arc::clone(&ears.remark);
        let begun = self.closed().and_then(|closed| {
            let mut watched = Watched::new(source, lead, look);
            let thread = std::thread::Builder::new().name("notices".into()).stack_size(STACK);
            thread.spawn(move || {
                // Linux sets the nice value of the calling thread alone. If this fails, a look only costs more.
                let _ = rustix::process::setpriority_process(None, LOWEST);
                while !turn(&mut watched, &ears, &closed) {}
            })
        });
        if let Err(error) = begun {
            let Text { en, zh } = cause(&error);
            remark(text!("{name} is not watched: {en}", "未能监视 {name}：{zh}"));
        }
    }

    /// The pipe that tells a thread that the watch has ended.
    fn closed(&mut self) -> io::Result<PipeReader> {
        let (closed, open) = io::pipe()?;
        self.ends.push(open);
        Ok(closed)
    }
}

/// One look and the pause after it; true at the end of the watch.
fn turn<L: FnMut(SystemTime) -> Look>(
    watched: &mut Watched<L>,
    ears: &Ears,
    closed: &PipeReader,
) -> bool {
    let Turn { notice, remark, pause } = watched.turn(SystemTime::now());
    let mut ended = [PollFd::new(closed, PollFlags::IN)];
    if let Some(remark) = remark {
        (ears.remark)(remark);
    }
    if let Some(notice) = notice {
        (ears.tell)(notice);
    }
    let _ = sys::poll(&mut ended, Some(pause));
    !ended[0].revents().is_empty()
}

/// The lead of a Slurm job that ends `at` this time. One that a person set is kept if the job is longer; if not, nothing
/// would ever start.
fn lead_of_job(
    lead: &Sourced<Duration>,
    at: SystemTime,
    now: SystemTime,
) -> (Duration, Option<Text>) {
    let left = at.duration_since(now).unwrap_or_default();
    let Sourced { value, source } = lead;
    if *source == Source::Default {
        return ((*value).min(left / SHARE_OF_JOB), None);
    }
    if *value < left {
        return (*value, None);
    }
    let (half, seconds, wanted) = (left / 2, left.as_secs(), value.as_secs());
    let given = half.as_secs();
    let why = text!(
        "the Slurm job ends in {seconds} s, which is within the {wanted} s of [{source}]: it is told {given} s before its end",
        "Slurm 任务将在 {seconds} 秒后结束，短于 [{source}] 的 {wanted} 秒：将在结束前 {given} 秒发出通知"
    );
    (half, Some(why))
}

fn of_file(file: &mut FileWatch) -> Heard {
    let (end, is_new) = file.look();
    Heard { is_new, ..Heard::of(end) }
}

/// A look at the clock.
fn slurm_look(at: SystemTime, lead: Duration, now: SystemTime) -> Look {
    let left = at.duration_since(now).unwrap_or_default().saturating_sub(lead);
    // Never shorter than a look costs; after the notice nothing changes.
    let pause =
        if left.is_zero() { CLOCK_PAUSE } else { left.clamp(SHORTEST_CLOCK_PAUSE, CLOCK_PAUSE) };
    Look { heard: Heard::of(Some(answers::slurm_end(at))), pause }
}

fn no_job_end(value: &str, why: &Text) -> Text {
    let value: String = value.chars().take(40).collect();
    let value = value.escape_debug();
    let Text { en, zh } = why;
    text!(
        "{JOB_END} is `{value}`: {en}; no notice comes before the end of the Slurm job",
        "{JOB_END} 的值为 `{value}`：{zh}；Slurm 任务结束前不会有通知"
    )
}

/// The cloud that a person names, if this machine is of it.
fn of_this_machine(host: &Host, source: &NoticeSource) -> Result<&'static Cloud, Text> {
    let found = clouds::of_machine(host);
    if !host.is_live() {
        return Err(text!(
            "{source} is not asked: the files are those of another machine (--host-root)",
            "不查询 {source}：所读的是另一台机器的文件（--host-root）"
        ));
    }
    match found {
        Some(cloud) if cloud.source == *source => Ok(cloud),
        Some(other) => {
            let (name, other) = (other.name, &other.source);
            Err(text!(
                "{source} is not asked: by its DMI this is a machine of {name}; use --notice {other} or auto",
                "不查询 {source}：根据 DMI，本机属于 {name}；请用 --notice {other} 或 auto"
            ))
        }
        None => Err(text!(
            "{source} is not asked: the DMI of this machine (/sys/class/dmi/id) does not name it, and its address may be somebody else's here; use file:/PATH or signal:NAME",
            "不查询 {source}：本机的 DMI（/sys/class/dmi/id）没有表明属于该云，该地址在此可能属于其他服务；请用 file:/PATH 或 signal:NAME"
        )),
    }
}
