//! The stacks of running ranks: text for people, JSON for programs.
//!
//! Takes the answers of a job's agents; gives text, with the smallest group of equal ranks first,
//! and values. Names come from the ranks' processes: the caller escapes everything that a terminal
//! would interpret.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::closing::Lines;
use diagnose::stacks::{
    Frame, Group, KernelState, ProcessStacks, RankStacks, Syscall, ThreadStack, Unread, UsedFile,
    alike, grouped,
};
use monitor::socket::{Job, JobStacks, Unanswered};
use text::lang::{Lang, Text, counted, leading};
use text::order::{InOrder, Ordered};
use text::ranges::listed;
use text::rank::GlobalRank;
use text::text;

/// The document for programs. `job`: the job as the asked agent sees it.
pub fn json(job: &Job, stacks: &JobStacks) -> Value {
    let shown = Shown::of(stacks);
    let groups: Vec<_> = grouped(&shown.ranks).into_iter().map(|group| group.ranks).collect();
    let rank = |rank: &RankStacks| {
        let mut value = json!(rank);
        value["node"] = json!(shown.nodes.get(&rank.rank));
        value
    };
    let unanswered = |Unanswered { who, why }: &Unanswered| json!({"who": who.en, "why": why.en});
    json!({
        "schema": 1,
        "run_id": job.run_id,
        "attempt": job.attempt,
        "node": job.node,
        "nodes": job.nodes,
        "took_ms": stacks.took_ms,
        "reaches_all": stacks.reaches_all,
        "unanswered": stacks.unanswered.iter().map(unanswered).collect::<Vec<_>>(),
        "groups": groups,
        "ranks": shown.ranks.iter().map(rank).collect::<Vec<_>>(),
    })
}

/// The ranks of all nodes, and the nodes of each.
struct Shown {
    ranks: Vec<RankStacks>,
    nodes: BTreeMap<GlobalRank, u32>,
}

impl Shown {
    fn of(stacks: &JobStacks) -> Shown {
        let all =
            || stacks.nodes.iter().flat_map(|one| one.ranks.iter().map(move |rank| (rank, one)));
        let mut ranks: Vec<RankStacks> = all().map(|(rank, _)| rank.clone()).collect();
        ranks.order_by_key(|rank| rank.rank);
        ranks.dedup_by_key(|rank| rank.rank);
        Shown { ranks, nodes: all().map(|(rank, one)| (rank.rank, one.job.node)).collect() }
    }

    /// The nodes of these ranks: `0-1`.
    fn nodes_of(&self, ranks: &[GlobalRank]) -> (usize, String) {
        let nodes: BTreeSet<u32> =
            ranks.iter().filter_map(|rank| self.nodes.get(rank).copied()).in_set();
        (nodes.len(), listed(nodes, '-'))
    }
}

/// The reason why only this node is shown.
pub fn only_here() -> Text {
    text!(
        "this node only, since the nodes of this job run without a muster",
        "仅包含本节点，因为该任务的各节点没有经过集结"
    )
}

/// The text for people.
pub fn text(job: &Job, stacks: &JobStacks, lang: Lang) -> String {
    let shown = Shown::of(stacks);
    let groups = grouped(&shown.ranks);
    let Job { run_id, .. } = job;
    let (count, kinds) = (shown.ranks.len(), groups.len());
    let (ranks, sorts) = (counted(count, "rank"), counted(kinds, "group"));
    let all: Vec<GlobalRank> = shown.ranks.iter().map(|rank| rank.rank).collect();
    let (nodes, numbers) = match shown.nodes_of(&all) {
        (0, _) => (1, job.node.to_string()),
        nodes => nodes,
    };
    let on = if nodes == 1 { "node" } else { "nodes" };
    let mut lines = Lines::new(lang);
    let title = text!(
        "run {run_id}, {on} {numbers}: {ranks} in {sorts} of equal stacks",
        "运行 {run_id}，节点 {numbers}：{count} 个 rank，按相同的栈分为 {kinds} 组"
    );
    lines.line("", &title);
    for Unanswered { who, why } in &stacks.unanswered {
        let (Text { en: why_en, zh: why_zh }, en, zh) = (why, &who.en, leading(&who.zh));
        lines.line("", &text!("no answer from {en}: {why_en}", "{zh}没有应答：{why_zh}"));
    }
    if !stacks.reaches_all {
        lines.line("", &only_here());
    }
    for group in &groups {
        lines.out.push('\n');
        let place = (nodes > 1).then(|| shown.nodes_of(&group.ranks));
        push_group(&mut lines, group, count, place);
    }
    lines.out
}

/// `place`: the nodes of the group, if there are several.
fn push_group(lines: &mut Lines, group: &Group<'_>, count: usize, place: Option<(usize, String)>) {
    let numbers = listed(group.ranks.iter().map(|rank| rank.0), '-');
    let (size, rank) = (group.ranks.len(), group.shown.rank);
    let (en, zh) = match place {
        None => (String::new(), String::new()),
        Some((1, node)) => (format!(" on node {node}"), format!("节点 {node} 的 ")),
        Some((_, nodes)) => (format!(" on nodes {nodes}"), format!("节点 {nodes} 的 ")),
    };
    let title = match (size, count) {
        (1, 1) => text!("rank {numbers}{en}", "{zh}rank {numbers}"),
        (1, _) => {
            text!("rank {numbers} (1 of {count}){en}", "{zh}rank {numbers}（{count} 个中的 1 个）")
        }
        _ => text!(
            "ranks {numbers} ({size} of {count}){en}; this is rank {rank}",
            "{zh}rank {numbers}（{count} 个中的 {size} 个），以下为 rank {rank}"
        ),
    };
    lines.line("── ", &title);
    push_process(lines, &group.shown.process, None);
    // Workers of a DataLoader mostly wait at the same line.
    let mut kinds: Vec<(&ProcessStacks, Vec<i32>)> = Vec::new();
    for child in &group.shown.children {
        match kinds.iter_mut().find(|(first, _)| alike(first, child)) {
            Some((_, pids)) => pids.push(child.pid),
            None => kinds.push((child, vec![child.pid])),
        }
    }
    for (child, pids) in kinds {
        push_process(lines, child, Some(&pids));
    }
    let left = group.shown.children_left_out;
    if left > 0 {
        lines.line("", &text!("{left} processes more below it", "其下另有 {left} 个进程"));
    }
}

/// One process; `below` are the pids of equal children, this one among them.
fn push_process(lines: &mut Lines, process: &ProcessStacks, below: Option<&[i32]>) {
    let pid = process.pid;
    let version = process.python.as_ref();
    let version = version.map_or_else(String::new, |version| format!(", Python {version}"));
    let command = if process.command.is_empty() { &process.name } else { &process.command };
    let Text { en, zh } = match one_line(command).as_str() {
        "" => Text::same(version),
        command => text!("{version}: {command}", "{version}：{command}"),
    };
    let line = match below {
        None => text!("Process {pid}{en}", "进程 {pid}{zh}"),
        Some([_]) => text!("Child process {pid}{en}", "子进程 {pid}{zh}"),
        Some(pids) => {
            let all = pids.iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
            text!(
                "Child processes {all}, alike; this is {pid}{en}",
                "子进程 {all} 的栈相同，以下为 {pid}{zh}"
            )
        }
    };
    lines.line("", &line);
    if let Some(unread) = &process.unread {
        let Text { en, zh } = why(unread);
        lines.line("  ", &text!("no Python stacks: {en}", "没有 Python 栈：{zh}"));
    }
    for thread in &process.threads {
        if thread.python.is_some() || process.python.is_none() {
            push_thread(lines, thread);
        }
    }
    if process.python.is_some() {
        push_others(lines, &process.threads);
    }
    let left = process.threads_left_out;
    if left > 0 {
        lines.line("  ", &text!("{left} threads more", "另有 {left} 个线程"));
    }
}

fn push_thread(lines: &mut Lines, thread: &ThreadStack) {
    let lang = lines.lang;
    let tid = thread.tid.map_or("?".to_owned(), |tid| tid.to_string());
    let mut line = text!("  Thread {tid}", "  线程 {tid}").get(lang).to_owned();
    let mut remarks: Vec<Text> = Vec::new();
    if let Some(kernel) = &thread.kernel {
        let _ = write!(line, " \"{}\"", one_line(&kernel.name));
        remarks.push(doing(kernel));
    }
    if let Some(python) = &thread.python {
        if python.holds_gil == Some(true) {
            remarks.push(text!("holds the GIL", "持有 GIL"));
        }
        if python.interpreter != 0 {
            let number = python.interpreter;
            remarks.push(text!("interpreter {number}", "解释器 {number}"));
        }
        if python.moving {
            remarks.push(text!(
                "changed while it was read: these frames may not belong together",
                "读取期间发生变化，以下各帧未必属于同一时刻"
            ));
        }
    }
    let remarks: Vec<&str> = remarks.iter().map(|remark| remark.get(lang)).collect();
    if !remarks.is_empty() {
        let _ = write!(line, "{}{}", lang.colon(), remarks.join(text!(", ", "，").get(lang)));
    }
    let _ = writeln!(lines.out, "{line}");
    let Some(python) = &thread.python else { return };
    for frame in &python.frames {
        let _ = writeln!(lines.out, "    {}", shown(frame));
    }
    let note = match &python.unread {
        Some(unread) => Some(why(unread)),
        None if python.cut => Some(text!("… and more frames", "……还有更多帧")),
        None if python.frames.is_empty() => Some(text!("(no Python frame)", "（没有 Python 帧）")),
        None => None,
    };
    if let Some(note) = note {
        lines.line("    ", &note);
    }
}

/// `f (/work/train.py:41)`
fn shown(frame: &Frame) -> String {
    let line = frame.line.unwrap_or(frame.first_line);
    format!("{} ({}:{line})", one_line(&frame.function), one_line(&frame.file))
}

/// The threads of libraries: their number at each place.
fn push_others(lines: &mut Lines, threads: &[ThreadStack]) {
    /// Maximum number of kinds that are listed, the most frequent ones.
    const MOST: usize = 12;
    let mut kinds: BTreeMap<(&str, char, &str), usize> = BTreeMap::new();
    let mut count = 0;
    for thread in threads.iter().filter(|thread| thread.python.is_none()) {
        let Some(kernel) = &thread.kernel else { continue };
        let place = match (&kernel.syscall, &kernel.wchan) {
            (Some(call), _) => call.name.as_str(),
            (None, wchan) => wchan.as_deref().unwrap_or_default(),
        };
        *kinds.entry((&kernel.name, kernel.state, place)).or_default() += 1;
        count += 1;
    }
    if count == 0 {
        return;
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.order_by_key(|((_, state, _), count)| (*state == 'S', std::cmp::Reverse(*count)));
    let mut words: Vec<String> = kinds
        .iter()
        .take(MOST)
        .map(|((name, state, place), count)| {
            let place = if place.is_empty() { String::new() } else { format!(" {place}") };
            format!("{count} × {} ({state}{place})", one_line(name))
        })
        .collect();
    if kinds.len() > MOST {
        words.push("…".to_owned());
    }
    let words = words.join(", ");
    let threads = counted(count, "thread");
    let line = text!("{threads} without Python: {words}", "另有 {count} 个非 Python 线程：{words}");
    lines.line("  ", &line);
}

/// `sleeping in read(fd 7 → /data/x, on nfs4 /data from 10.0.0.7:/export)`
fn doing(kernel: &KernelState) -> Text {
    let Text { en, zh } = match kernel.state {
        'R' => text!("running", "运行中"),
        'S' => text!("sleeping", "休眠"),
        'D' => text!("blocked in the kernel (D)", "阻塞在内核中（D）"),
        'T' => text!("stopped by a signal", "已被信号暂停"),
        't' => text!("stopped by a debugger", "已被调试器暂停"),
        'Z' => text!("ended", "已结束"),
        other => Text::same(other.to_string()),
    };
    let place = match (&kernel.syscall, &kernel.wchan) {
        (Some(call), Some(wchan)) if kernel.state == 'D' => {
            let Text { en, zh } = called(call);
            Text::new(format!("{en}, {wchan}"), format!("{zh}，{wchan}"))
        }
        (Some(call), _) => called(call),
        (None, Some(wchan)) => Text::same(one_line(wchan)),
        (None, None) => return Text { en, zh },
    };
    let Text { en: place_en, zh: place_zh } = place;
    text!("{en} in {place_en}", "{zh}，位于 {place_zh}")
}

fn called(call: &Syscall) -> Text {
    let name = &call.name;
    // The number is not in the table.
    let name = match name.parse::<u32>() {
        Ok(number) => text!("system call {number}", "系统调用 {number}"),
        Err(_) => Text::same(name.clone()),
    };
    let Text { en, zh } = name;
    let Some(UsedFile { fd, path, connection, mount }) = &call.file else {
        return Text { en, zh };
    };
    let fd = fd.map_or(String::new(), |fd| format!("fd {fd} → "));
    if let Some(connection) = connection {
        let local = &connection.local;
        return match &connection.peer {
            Some(peer) => {
                text!("{en}({fd}tcp {local} to {peer})", "{zh}({fd}tcp {local} 到 {peer})")
            }
            None => text!("{en}({fd}tcp {local})", "{zh}({fd}tcp {local})"),
        };
    }
    let path = one_line(path);
    match mount {
        None => text!("{en}({fd}{path})", "{zh}({fd}{path})"),
        Some(mount) => {
            let (at, kind, source) =
                (one_line(&mount.at), one_line(&mount.kind), one_line(&mount.source));
            text!(
                "{en}({fd}{path}, on {kind} {at} from {source})",
                "{zh}({fd}{path}，位于挂载点 {at}，{kind}，来源 {source})"
            )
        }
    }
}

fn why(unread: &Unread) -> Text {
    let system = |errno: i32| text::lang::cause(&std::io::Error::from_raw_os_error(errno));
    match unread {
        Unread::NotPython => text!(
            "not a Python process; the kernel's state of its threads instead",
            "不是 Python 进程，改为显示各线程的内核状态"
        ),
        Unread::NotStarted => {
            text!("its interpreter is only starting, or has ended", "解释器尚在启动，或已经结束")
        }
        Unread::Denied { errno } => {
            let Text { en, zh } = system(*errno);
            text!(
                "the kernel does not show its memory (/proc/PID/mem): {en}; only the job's own user may read it, and Yama's ptrace_scope 2 and 3 forbid it",
                "内核拒绝读取其内存（/proc/PID/mem）：{zh}；只有任务所属的用户可以读取，且 Yama 的 ptrace_scope 为 2 或 3 时不允许"
            )
        }
        Unread::Gone => text!("it has ended", "进程已结束"),
        Unread::Changed => {
            text!("its stack changed at each attempt to read it", "每次读取时栈都在变化")
        }
        Unread::Late => text!("it could not be read within 5 s", "5 秒内未能读取"),
        Unread::Version { found } => text!(
            "CPython {found} is not known; 3.8 to 3.15 are",
            "不支持 CPython {found}；支持 3.8 至 3.15"
        ),
        Unread::FreeThreaded { found } => text!(
            "CPython {found} is a free-threaded build, which is not known",
            "CPython {found} 是无 GIL（free-threaded）版本，暂不支持"
        ),
        Unread::NoSymbol { file } => {
            let file = one_line(file);
            text!(
                "{file} does not export _PyRuntime; a stripped build cannot be read",
                "{file} 没有导出 _PyRuntime；无法读取去除了符号的版本"
            )
        }
        Unread::Unlisted { errno } => {
            let Text { en, zh } = system(*errno);
            text!(
                "its files cannot be listed (/proc/PID/maps): {en}",
                "无法列出其映射的文件（/proc/PID/maps）：{zh}"
            )
        }
    }
}

/// Names may hold line ends, which would forge lines of ours.
fn one_line(name: &str) -> String {
    name.replace('\n', "\\n")
}
