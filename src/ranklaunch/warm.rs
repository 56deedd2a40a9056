//! Warms an interpreter for the ranks of this node, from the first plan on, and lets the shims ask it.
//!
//! The warming begins once for all attempts. If something prevents it, one line reports it, and the ranks start
//! as usual, unless the settings require a warm start. Files of modules are read ahead never beside a job that runs
//! on this node, and never more than a part of the free memory.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::context::Context;
use super::own_plan::OwnPlan;
use super::scratch::ScratchName;
use super::start_engine;
use linux::deadline::in_thread;
use linux::host::Host;
use linux::sys::Dispositions;
use node::observe::{Facts, Limits};
use plan::devices::IDLE;
use plan::{Plan, rank_argv, rank_env};
use settings::engine::Starts;
use settings::{Need, Program, Settings};
use supervise::warm::{self, Event, ReadAhead, Scouted, Target, Warmed, Warming};
use text::lang::{Text, bytes};
use text::rank::{GlobalRank, LocalRank, RankId};
use text::text;
use verdict::{Id, Refusal};

/// Time limit for all waits before the engine starts. The time covers two starts of Python, and an engine that is
/// forked needs the imports.
const LISTENS: Duration = Duration::from_secs(20);
/// Time limit for the imports if the settings have none. They may come from a file server.
const IMPORTS: Duration = Duration::from_secs(300);
/// Minimum free memory in bytes for importing anything.
const LEAST_MEMORY: u64 = 1 << 30;

/// Begins the warming for the plan of the first attempt.
pub(super) fn begin(context: &Context, facts: &Facts, own: &OwnPlan, dispositions: Dispositions) {
    if context.settings.warm.value == Need::Off {
        return;
    }
    context.warm.get_or_init(|| {
        let say = |why: &Text| context.say(&without(why));
        warmed(context, facts, own, dispositions).inspect_err(say)
    });
}

fn warmed(
    context: &Context,
    facts: &Facts,
    own: &OwnPlan,
    dispositions: Dispositions,
) -> Result<Warmed, Text> {
    if own.interactive {
        return Err(text!("the rank owns the terminal", "该 rank 直接使用终端"));
    }
    let mut warming = warming(
        &context.host,
        &context.settings,
        &own.plan,
        dispositions,
        context.scratch.of_warmed(),
    )?;
    match read_ahead_bound(&context.host, facts) {
        Ok(bound) => {
            let after = own.plan.engine.row().command_line.unwrap_or_default();
            let after = after.trim_end_matches(".py").replace('/', ".");
            warming.ahead = Some(ReadAhead { bound, after });
        }
        Err(why) => tracing::info!(why = %why.en, "nothing is read ahead"),
    }
    let (say, said) = (context.speaker(), Mutex::new(HashSet::new()));
    // Every rank, and each attempt, would report the same.
    let to = say.clone();
    let once = move |line: Text| {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.insert(line.en.to_string()) {
            to(&line);
        }
    };
    let tell = move |event: Event| match event {
        Event::Scouted(scouted) => {
            scouted.learned().for_each(|line| say(&line));
            let ends = scouted.ends.as_ref();
            let ends = ends.map(|ends| format!("{}:{} {}", ends.file, ends.line, ends.why().en));
            tracing::info!(modules = ?scouted.modules, ends, "warms");
        }
        Event::Ready(within) => tracing::info!(ms = within.as_millis(), "warm"),
        Event::Aside(why) => say(&without(&why)),
        Event::Refused(why) => once(refused(&why)),
        Event::RefusedEngine(why) => once(refused_engine(&why)),
    };
    Warmed::begin(warming, tell).map_err(|error| text::lang::cause(&error))
}

/// The warming for this plan, with the files of the interpreter in `folder`.
///
/// # Errors
/// The reason why nothing is warmed.
fn warming(
    host: &Host,
    settings: &Settings,
    plan: &Plan,
    dispositions: Dispositions,
    folder: PathBuf,
) -> Result<Warming, Text> {
    let target = match &plan.program {
        Program::Script { path, .. } => Target::Script(path.clone()),
        Program::Module { name, .. } => Target::Module(name.into()),
        Program::Command { .. } => {
            return Err(text!(
                "the program is a command, and not Python's script or module",
                "该程序是命令，而不是 Python 脚本或模块"
            ));
        }
    };
    let mut environment = start_engine::environment(host, plan);
    if let Some(preloaded) = environment.get(OsStr::new("LD_PRELOAD")).filter(|it| !it.is_empty()) {
        let preloaded = preloaded.display();
        return Err(text!(
            "LD_PRELOAD={preloaded} may not live through a fork",
            "LD_PRELOAD={preloaded} 可能无法经受 fork"
        ));
    }
    if plan.bindings.iter().any(Option::is_some)
        && let Some(name) = PLACED.into_iter().find(|name| is_placed(&environment, name))
    {
        return Err(text!(
            "{name} places threads when libraries are loaded, and each rank has CPUs of its own",
            "{name} 在加载库时就固定线程位置，而每个 rank 绑定到各自的 CPU"
        ));
    }
    if let Some(left) = Limits::memory_available(host).filter(|left| *left < LEAST_MEMORY) {
        let mb = left / 1_000_000;
        return Err(text!("only {mb} MB of memory are free", "仅剩 {mb} MB 可用内存"));
    }
    // Variables that a platform has given to this node would be taken for those of a rank.
    for name in rank_env(plan, RankId { global: GlobalRank(0), local: LocalRank(0) }).keys() {
        environment.remove(OsStr::new(name));
    }
    let (name, mark) = supervise::mark_of(WARMED_JOB);
    environment.insert(name.into(), mark.into());
    let below_python = plan.engine.row().starts == Starts::Launcher;
    let argv = rank_argv(plan);
    let named = |is_imported| {
        let modules = settings.warm_modules.iter();
        modules
            .filter(|module| module.is_imported == is_imported)
            .map(|module| module.name.clone())
            .collect()
    };
    let (added, left_out) = (named(true), named(false));
    let of_user = |name| host.variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = of_user("XDG_CACHE_HOME").or_else(|| Some(of_user("HOME")?.join(".cache")));
    let memory = cache.map(|cache| cache.join("ranklaunch/warm.json"));
    Ok(Warming {
        argv,
        target,
        added,
        left_out,
        memory,
        ahead: None,
        below_python,
        environment,
        dispositions,
        folder,
    })
}

/// Variables by which libraries of threads choose CPUs as soon as they are loaded.
const PLACED: [&str; 4] = ["GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND"];

fn is_placed(environment: &BTreeMap<OsString, OsString>, name: &str) -> bool {
    let value = environment.get(OsStr::new(name));
    value.is_some_and(|value| !value.is_empty() && !value.eq_ignore_ascii_case("false"))
}

/// The modules that `run` would import for the ranks of `plan`. Empty if the settings do not ask for it.
pub(super) fn outlook(host: &Host, settings: &Settings, facts: &Facts, plan: &Plan) -> Vec<Text> {
    if settings.warm.value == Need::Off || settings.host_root.is_some() {
        return Vec::new();
    }
    let folder = ScratchName::new().of_warmed();
    let found = warming(host, settings, plan, Dispositions::inherited(), folder)
        .and_then(|warming| warm::scout(&warming));
    match found {
        Ok(scouted) => {
            let ahead = read_ahead_outlook(&read_ahead_bound(host, facts));
            [imported(&scouted), ahead].into_iter().chain(scouted.learned()).collect()
        }
        Err(why) => vec![without(&why)],
    }
}

fn imported(scouted: &Scouted) -> Text {
    let modules = scouted.modules.join(" ");
    let Some(ends) = &scouted.ends else {
        return text!(
            "warm start: {modules}; the program was read to its end",
            "预热启动：{modules}；程序已读到末尾"
        );
    };
    let (file, line, Text { en, zh }) = (&ends.file, ends.line, ends.why());
    text!(
        "warm start: {modules}; up to {file}:{line} ({en})",
        "预热启动：{modules}；直到 {file}:{line}（{zh}）"
    )
}

/// The job name in the mark of the interpreter, which starts before the nodes agree on a name.
const WARMED_JOB: &str = "warm";

fn without(why: &Text) -> Text {
    let Text { en, zh } = why;
    text!(
        "no warm start: {en}; each rank starts its own interpreter",
        "不使用预热启动：{zh}；每个 rank 各自启动解释器"
    )
}

fn refused(why: &Text) -> Text {
    let Text { en, zh } = why;
    text!("a rank starts without the warmed interpreter: {en}", "有 rank 未使用预热的解释器：{zh}")
}

fn refused_engine(why: &Text) -> Text {
    let Text { en, zh } = why;
    text!(
        "the engine starts without the warmed interpreter: {en}",
        "启动引擎未使用预热的解释器：{zh}"
    )
}

fn another_program() -> Text {
    text!("the nodes have agreed on another program", "各节点商定的程序与预热时不同")
}

/// Waits for the imports if the settings require a warm start. `plan`: the plan of all nodes.
///
/// # Errors
/// The reason why there is no warm start.
pub(super) async fn required(context: &Context, plan: &Plan) -> Result<(), Refusal> {
    if context.settings.warm.value != Need::Required {
        return Ok(());
    }
    let (slot, limit, argv) = (context.warm.clone(), limit(context), rank_argv(plan));
    let ready = in_thread(move || match slot.get() {
        Some(Ok(warmed)) if !warmed.is_for(&argv) => Err(another_program()),
        Some(Ok(warmed)) => warmed.is_ready(limit),
        Some(Err(why)) => Err(why.clone()),
        None => Ok(()),
    });
    let Text { en, zh } = match ready.await {
        Ok(()) => return Ok(()),
        Err(why) => why,
    };
    let source = &context.settings.warm.source;
    Err(Refusal::new(
        Id::WarmRequired,
        text!(
            "a warm start is required [{source}], but there is none: {en}",
            "要求预热启动 [{source}]，但无法做到：{zh}"
        ),
        text!(
            "--warm auto starts each rank by itself in such a case",
            "--warm auto 会在这种情况下让每个 rank 各自启动"
        ),
    ))
}

fn limit(context: &Context) -> Duration {
    context.settings.deadline.as_ref().map_or(IMPORTS, |deadline| deadline.value)
}

/// The value of the variable by which shims ask.
pub(super) struct Offer {
    pub(super) value: OsString,
    /// The interpreter has imported what the engine imports as well.
    pub(super) forks_engine: bool,
}

/// None if the shims start the ranks by themselves.
pub(super) async fn offer(context: &Context, plan: &Plan) -> Option<Offer> {
    // No thread is started if nobody asked for a warm start.
    let warmed = context.warm.get()?;
    let argv = rank_argv(plan);
    if warmed.as_ref().is_ok_and(|warmed| !warmed.is_for(&argv)) {
        context.say(&refused(&another_program()));
        return None;
    }
    let slot = context.warm.clone();
    let limit = limit(context).as_millis();
    let has_engine = plan.engine.row().starts == Starts::Launcher;
    let waits = in_thread(move || {
        let Some(Ok(warmed)) = slot.get() else { return Some(None) };
        let until = Instant::now() + LISTENS;
        let is_listening = warmed.is_listening(LISTENS)?;
        Some(is_listening.then(|| {
            // An engine imports nearly the same modules, and would compete with the interpreter. Both waits share
            // one time limit.
            let left = until.saturating_duration_since(Instant::now());
            let forks_engine = has_engine && warmed.is_ready(left).is_ok();
            (warmed.name().to_owned(), forks_engine)
        }))
    });
    let Some(found) = waits.await else {
        let seconds = LISTENS.as_secs();
        context.say(&without(&text!(
            "the interpreter has not started within {seconds} s",
            "解释器在 {seconds} 秒内未启动"
        )));
        return None;
    };
    let (name, forks_engine) = found?;
    Some(Offer { value: format!("{name} {limit}").into(), forks_engine })
}

/// The part of the free memory that may be filled, as 1/N. The pages can be dropped, but older pages would be dropped
/// with them.
const PART: u64 = 4;
/// Fewer bytes are not worth a process.
const LEAST: u64 = 64 << 20;

/// Bytes that may be read.
///
/// # Errors
/// The reason why nothing is read.
pub(super) fn read_ahead_bound(host: &Host, facts: &Facts) -> Result<u64, Text> {
    let busy = |used: &u64| *used > IDLE;
    let in_use = facts.gpus.gpus.iter().find_map(|gpu| Some((gpu, gpu.memory_used.filter(busy)?)));
    if let Some((gpu, used)) = in_use {
        let (gpu, used) = (gpu.index, bytes(used));
        return Err(text!("GPU {gpu} is in use ({used})", "GPU {gpu} 正在使用中（{used}）"));
    }
    if supervise::have_ranks(&host.read("/proc/self/net/unix").unwrap_or_default()) {
        return Err(text!("another job runs on this node", "本节点上有其他任务正在运行"));
    }
    let Some(free) = Limits::memory_available(host) else {
        return Err(text!(
            "/proc/meminfo does not tell how much memory is free",
            "/proc/meminfo 中没有可用内存大小"
        ));
    };
    let room = Limits::memory_in_use(host).map(|(used, limit)| limit.saturating_sub(used));
    let free = room.map_or(free, |room| room.min(free));
    if free / PART < LEAST {
        let free = bytes(free);
        return Err(text!("only {free} of memory are free", "仅剩 {free} 可用内存"));
    }
    Ok(free / PART)
}

/// The text for `plan`.
pub(super) fn read_ahead_outlook(bound: &Result<u64, Text>) -> Text {
    match bound {
        Ok(bound) => {
            let bound = bytes(*bound);
            text!(
                "files of these modules that are not in the page cache are read ahead, up to {bound}, a quarter of the free memory",
                "这些模块的文件若不在页缓存中则提前读入，最多 {bound}，即可用内存的四分之一"
            )
        }
        Err(Text { en, zh }) => text!("nothing is read ahead: {en}", "不提前读入文件：{zh}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::fixtures::facts;

    fn asked(files: &[(&str, &str)], facts: &Facts) -> Result<u64, String> {
        let (_root, host) = Host::of_files(files);
        read_ahead_bound(&host, facts).map_err(|why| why.en.into_owned())
    }

    const FREE: (&str, &str) = ("proc/meminfo", "MemAvailable:   8388608 kB\n");
    const NO_JOB: (&str, &str) = (
        "proc/self/net/unix",
        "0: 00000002 00000000 00010000 0005 01 4713 @ranklaunch-warm-0123456789abcdef01234567\n\
         0: 00000002 00000000 00010000 0001 01 4711 @ranklaunch-stacks-12-0123456789abcdef01234567\n",
    );

    #[test]
    fn read_ahead_uses_a_quarter_of_free_memory() {
        assert_eq!(asked(&[FREE, NO_JOB], &facts(8)), Ok(2 << 30));
        let group = [
            FREE,
            ("proc/self/cgroup", "0::/pod\n"),
            ("sys/fs/cgroup/pod/memory.max", "4294967296\n"),
            ("sys/fs/cgroup/pod/memory.current", "3221225472\n"),
            // Page cache of which the kernel can take back this much.
            ("sys/fs/cgroup/pod/memory.stat", "anon 0\ninactive_file 1073741824\n"),
        ];
        assert_eq!(asked(&group, &facts(0)), Ok(512 << 20));
        let little = [("proc/meminfo", "MemAvailable:   131072 kB\n")];
        let said = asked(&little, &facts(0)).expect_err("too little");
        assert_eq!(said, "only 128 MiB of memory are free");
        assert!(asked(&[], &facts(0)).is_err());
    }

    #[test]
    fn read_ahead_is_refused_beside_a_running_job() {
        let mut busy = facts(8);
        busy.gpus.gpus[3].memory_used = Some(2 << 30);
        let said = asked(&[FREE], &busy).expect_err("a GPU is in use");
        assert!(said.contains("GPU 3 is in use"), "{said}");
        let ranks = (
            "proc/self/net/unix",
            "0: 00000002 00000000 00010000 0005 01 4713 @ranklaunch-0123456789abcdef01234567\n",
        );
        let said = asked(&[FREE, ranks], &facts(8)).expect_err("ranks");
        assert_eq!(said, "another job runs on this node");
    }
}
