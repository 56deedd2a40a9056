//! Ends the processes that [`find`](mod@super::find) found stale: TERM, a wait, KILL, a wait.
//!
//! A signal goes only to the process that was found, never to another process that has since got
//! its pid (see [`linux::signal`]).

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::find::{Sessions, find_among};
use super::reading::Reading;
use super::{ClearReport, Request, StaleProcess};
use linux::host::Host;
use linux::signal;
use linux::sys::{Pid, PollFd, PollFlags, Signal, poll};
use settings::StaleMode;
use text::lang::Text;
use text::text;
use verdict::{Id, Refusal};

/// The scan is repeated at this interval, since a process may fork while it ends.
const ROUND: Duration = Duration::from_millis(250);

/// If processes need longer than this after TERM, a line names them.
const QUIET: Duration = Duration::from_secs(1);

/// Finds stale processes and ends those that the mode allows. Calls `progress` for each process
/// that has ended. Processes that are left alone are in the report, which the caller prints.
///
/// # Errors
/// `Verdict::Stale` with every process that outlived KILL, its state and the
/// kernel function that holds it.
pub fn clear(
    host: &Host,
    request: &Request,
    progress: &mut dyn FnMut(Text),
) -> Result<ClearReport, Refusal> {
    if request.mode == StaleMode::Off {
        return Ok(ClearReport::default());
    }
    let mut sessions = Sessions::new();
    let reading = Reading::without(&request.unreadable);
    let mut found = find_among(host, request, &sessions, &reading);
    if !host.is_live() || !found.iter().any(|one| one.is_ended_by(request.mode)) {
        return Ok(ClearReport { found, ..ClearReport::default() });
    }

    let start = Instant::now();
    let mut targets = Targets::default();
    targets.add(host, &found, request.mode, &mut sessions);
    targets.signal(host, Signal::TERM);
    targets.wait(host, start + request.term_wait.min(QUIET));
    targets.tell(host, progress);
    let slow = targets.living(host).count();
    if slow > 0 && request.term_wait > QUIET {
        let seconds = request.term_wait.as_secs();
        progress(text!(
            "{slow} of the processes to be ended need time; KILL follows {seconds} s after TERM",
            "待终止的进程中有 {slow} 个需要时间；TERM 之后 {seconds} 秒将发送 KILL"
        ));
        targets.wait(host, start + request.term_wait);
        targets.tell(host, progress);
    }

    let kill_start = Instant::now();
    let deadline = kill_start + request.kill_wait;
    loop {
        let again = find_among(host, request, &sessions, &reading);
        targets.add(host, &again, request.mode, &mut sessions);
        if targets.living(host).next().is_none() {
            break;
        }
        targets.signal(host, Signal::KILL);
        let now = Instant::now();
        targets.wait(host, deadline.min(now + ROUND));
        if Instant::now() >= deadline {
            break;
        }
    }
    targets.tell(host, progress);
    let left: Vec<i32> = targets.living(host).map(|target| target.found.pid).collect();
    let all = || targets.all.values().map(|target| &target.found);
    let ended = all().map(|one| one.pid).filter(|pid| !left.contains(pid)).collect();
    // Include processes that appeared while the others ended.
    for target in all() {
        if !found.iter().any(|one| (one.pid, one.start_ticks) == (target.pid, target.start_ticks)) {
            found.push(target.clone());
        }
    }
    if left.is_empty() {
        return Ok(ClearReport { found, ended, waited: start.elapsed() });
    }
    Err(unkillable(host, &targets, &left, request.term_wait + request.kill_wait))
}

#[derive(Default)]
struct Targets {
    /// Processes by pid and start time.
    all: BTreeMap<(i32, u64), Target>,
}

struct Target {
    /// None if the kernel has no process handles.
    handle: Option<OwnedFd>,
    found: StaleProcess,
    refused: Option<Errno>,
    /// The end of the process was reported.
    told: bool,
}

impl Target {
    fn is_alive(&self, host: &Host) -> bool {
        host.process(self.found.pid).is_alive(self.found.start_ticks)
    }
}

impl Targets {
    fn add(
        &mut self,
        host: &Host,
        found: &[StaleProcess],
        mode: StaleMode,
        sessions: &mut Sessions,
    ) {
        for one in found.iter().filter(|one| one.is_ended_by(mode)) {
            let key = (one.pid, one.start_ticks);
            if self.all.contains_key(&key) {
                continue;
            }
            let Some(pid) = Pid::from_raw(one.pid) else { continue };
            let Ok(handle) = signal::handle(pid) else { continue };
            // Read after the handle is open: a reused pid shows another start time.
            let Some(now) = host.process(one.pid).stat() else { continue };
            if now.start_ticks != one.start_ticks || now.is_dead() {
                continue;
            }
            // Only a session that one of these processes leads certainly belongs to them. A login
            // shell's session is shared with its user.
            if now.session == now.pid {
                sessions.insert(now.session, now.start_ticks);
            }
            let target = Target { handle, found: one.clone(), refused: None, told: false };
            self.all.insert(key, target);
        }
    }

    fn signal(&mut self, host: &Host, signal: Signal) {
        for target in self.all.values_mut().filter(|target| target.is_alive(host)) {
            let send = |signal| {
                let Some(pid) = Pid::from_raw(target.found.pid) else { return Ok(()) };
                let one = (pid, target.found.start_ticks);
                signal::send(&host.path("/proc"), one, target.handle.as_ref(), signal)
            };
            target.refused = send(signal).err().filter(|errno| *errno != Errno::SRCH);
            if signal == Signal::TERM {
                // A stopped process receives TERM only after CONT.
                let _ = send(Signal::CONT);
            }
        }
    }

    /// Reports each ended process once.
    fn tell(&mut self, host: &Host, progress: &mut dyn FnMut(Text)) {
        for target in self.all.values_mut() {
            if !target.told && !target.is_alive(host) {
                target.told = true;
                progress(target.found.ended());
            }
        }
    }

    fn living(&self, host: &Host) -> impl Iterator<Item = &Target> {
        self.all.values().filter(|target| target.is_alive(host))
    }

    /// Waits until all have ended (a zombie counts as ended) or the deadline.
    fn wait(&self, host: &Host, deadline: Instant) {
        loop {
            let living: Vec<&Target> = self.living(host).collect();
            let left = deadline.saturating_duration_since(Instant::now());
            if living.is_empty() || left.is_zero() {
                return;
            }
            // A handle becomes readable when its process ends. A process without a handle is
            // polled.
            let mut handles: Vec<PollFd<'_>> = living
                .iter()
                .filter_map(|target| target.handle.as_ref())
                .map(|handle| PollFd::new(handle, PollFlags::IN))
                .collect();
            let blind = handles.len() < living.len();
            let pause = if blind { Duration::from_millis(20) } else { ROUND };
            let _ = poll(&mut handles, Some(left.min(pause)));
        }
    }
}

fn unkillable(host: &Host, targets: &Targets, left: &[i32], waited: Duration) -> Refusal {
    let seconds = waited.as_secs();
    let mut blocked = false;
    let named = targets.all.values().filter(|target| left.contains(&target.found.pid));
    let named =
        named.map(|Target { found: StaleProcess { pid, command, .. }, refused, .. }| {
            let process = host.process(*pid);
            let state = process.stat().map_or('?', |now| char::from(now.state));
            blocked |= state == 'D';
            let place = process.wchan().map_or_else(String::new, |at| format!(" in {at}"));
            let refused = refused.map_or_else(String::new, |errno| format!(", signal: {errno}"));
            format!("pid {pid} ({command}, state {state}{place}{refused})")
        });
    let names = named.collect::<Vec<_>>().join("; ");
    let hint = if blocked {
        text!(
            "state D is a wait inside the kernel (driver or file system) that no signal ends: reset or reboot the node; --stale report launches beside it",
            "D 状态表示进程卡在内核（驱动或文件系统）中，任何信号都无法结束它：请重置或重启该节点；也可用 --stale report 在其存在时继续启动"
        )
    } else {
        text!(
            "end them as a user that may signal them, or start beside them with --stale report",
            "请以有权限的用户结束这些进程，或用 --stale report 在其存在时继续启动"
        )
    };
    Refusal::new(
        Id::StaleUnkillable,
        text!(
            "processes of an earlier run are still there {seconds} s after TERM and KILL: {names}",
            "发送 TERM 和 KILL 后已过 {seconds} 秒，早先运行的进程仍然存在：{names}"
        ),
        hint,
    )
}
