//! Log lines of the kernel about its kills for memory: the process, and the limit that was reached.
//!
//! Takes lines of the log; gives [`LoggedKills`]. Reads nothing.

use std::collections::BTreeSet;

/// The limit or node whose memory was exhausted, according to the kernel's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OomConstraint {
    /// The limit of a control group.
    Group(GroupPlace),
    /// No memory was left on the node, or on the NUMA nodes that the process may use.
    Node,
}

/// The place of a control group relative to the job's own group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupPlace {
    /// This many levels around the job's group; 0 is the job's group.
    Around(usize),
    Inside,
    Unknown,
}

impl GroupPlace {
    fn of(limited: &str, own: &str) -> GroupPlace {
        let depth = |path: &str| path.split('/').filter(|name| !name.is_empty()).count();
        match (is_within(own, limited), is_within(limited, own)) {
            (true, _) => GroupPlace::Around(depth(own) - depth(limited)),
            (false, true) => GroupPlace::Inside,
            (false, false) => GroupPlace::Unknown,
        }
    }
}

/// Whether `inner` is the group `outer` or a group inside it.
pub(crate) fn is_within(inner: &str, outer: &str) -> bool {
    let rest = inner.strip_prefix(outer.trim_end_matches('/'));
    rest.is_some_and(|rest| matches!(rest.bytes().next(), None | Some(b'/')))
}

/// The constraint in a line such as
/// `oom-kill:constraint=CONSTRAINT_MEMCG,…,oom_memcg=/kubepods/pod9,task_memcg=/kubepods/pod9/c1,…`. With `global_oom`
/// the limit is not that of a control group (mm/oom_kill.c, mem_cgroup_print_oom_context). `own`: the job's groups; if
/// a namespace hides their names, the victim's group is used instead.
fn constraint(text: &str, own: &[String]) -> Option<OomConstraint> {
    let fields = text.strip_prefix("oom-kill:constraint=CONSTRAINT_")?;
    match fields.split(',').next()? {
        "MEMCG" => {
            let task = field(fields, "task_memcg").unwrap_or_default();
            let own = own.iter().map(String::as_str).find(|own| is_within(task, own));
            let limited = field(fields, "oom_memcg").filter(|_| !task.is_empty());
            let place = limited.map(|limited| GroupPlace::of(limited, own.unwrap_or(task)));
            Some(OomConstraint::Group(place.unwrap_or(GroupPlace::Unknown)))
        }
        _ if fields.split(',').any(|field| field == "global_oom") => Some(OomConstraint::Node),
        _ => None,
    }
}

/// The value of `NAME=VALUE` in a list with commas.
pub(crate) fn field<'a>(fields: &'a str, name: &str) -> Option<&'a str> {
    fields.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
}

/// The pid in a line such as `oom-kill:constraint=…,task_memcg=/kubepods/pod9/c1,task=python3,pid=9911,uid=0` or
/// `Memory cgroup out of memory: Killed process 9911 (python3) …`.
pub(crate) fn victim(text: &str) -> Option<i32> {
    if let Some(fields) = text.strip_prefix("oom-kill:") {
        return field(fields, "pid")?.parse().ok();
    }
    let (_, rest) = text.split_once("ut of memory: Killed process ")?;
    rest.split(' ').next()?.parse().ok()
}

/// The kills for memory that the log reports for a job.
#[derive(Debug, Clone, Default)]
pub struct LoggedKills {
    /// Victim and constraint of each line, in their order; one kill may have several lines.
    lines: Vec<(Option<i32>, Option<OomConstraint>)>,
    /// Whether the log numbers processes in the same way as this process.
    pids_are_ours: bool,
}

impl LoggedKills {
    pub fn new(pids_are_ours: bool) -> LoggedKills {
        LoggedKills { lines: Vec::new(), pids_are_ours }
    }

    /// Reads a line about the job. The line may be about something else than a kill.
    pub fn read(&mut self, text: &str, own: &[String]) {
        let (pid, constraint) = (victim(text), constraint(text, own));
        if pid.is_some() || constraint.is_some() {
            self.lines.push((pid.filter(|_| self.pids_are_ours), constraint));
        }
    }

    /// The place whose memory was exhausted when this process was killed, or else at the last kill.
    pub fn constraint(&self, pid: Option<i32>) -> Option<OomConstraint> {
        let own = self.lines.iter().filter(|(victim, _)| victim.is_some() && *victim == pid);
        let said = |(_, constraint): &(_, Option<OomConstraint>)| *constraint;
        own.filter_map(said).next().or_else(|| self.lines.iter().rev().find_map(said))
    }

    /// Whether this process was killed. None: the log does not tell, since it names fewer other processes than were
    /// counted.
    pub fn names(&self, pid: i32, counted: u64) -> Option<bool> {
        let named: BTreeSet<i32> = self.lines.iter().filter_map(|(victim, _)| *victim).collect();
        let all = u64::try_from(named.len()).is_ok_and(|named| named >= counted);
        if named.contains(&pid) { Some(true) } else { all.then_some(false) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constraint_of_a_kill_is_read() {
        for (text, said) in [
            (
                "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/pod/c1,task=python3,pid=1,uid=0",
                Some(OomConstraint::Node),
            ),
            (
                "oom-kill:constraint=CONSTRAINT_MEMCG,task=python3,pid=1,uid=0",
                Some(OomConstraint::Group(GroupPlace::Unknown)),
            ),
            ("Memory cgroup out of memory: Killed process 1 (python3)", None),
        ] {
            assert_eq!(constraint(text, &[]), said, "{text}");
        }
    }

    /// The group whose limit was reached, the victim's group, and our group if it is known.
    #[test]
    fn limited_group_is_placed_relative_to_ours() {
        use GroupPlace::{Around, Inside, Unknown};
        for (limited, task, own, place) in [
            ("/pod/c1", "/pod/c1", Some("/pod/c1"), Around(0)),
            ("/pod", "/pod/c1", Some("/pod/c1"), Around(1)),
            ("/", "/pod/c1", Some("/pod/c1"), Around(2)),
            ("/pod/c1/sub", "/pod/c1/sub", Some("/pod/c1"), Inside),
            ("/pod/c1", "/pod/c1/sub", Some("/pod/c1"), Around(0)),
            ("/pod/c10", "/pod/c1", Some("/pod/c1"), Unknown),
            // A namespace hides our names, and a rank that is known by its pid is in another group.
            ("/pod/c1", "/pod/c1", None, Around(0)),
            ("/pod", "/pod/c1", None, Around(1)),
            ("/other", "/other", Some("/pod/c1"), Around(0)),
        ] {
            let text = format!(
                "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={limited},task_memcg={task},task=python3,pid=1,uid=0"
            );
            let own: Vec<String> = own.into_iter().map(str::to_owned).collect();
            assert_eq!(constraint(&text, &own), Some(OomConstraint::Group(place)), "{text}");
        }
    }

    #[test]
    fn victim_is_known_if_all_are_named() {
        let helper = "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/c,task_memcg=/c,task=perl,pid=71,uid=0";
        let rank = "Memory cgroup out of memory: Killed process 8812 (python3) total-vm:1kB";
        let node = "oom-kill:constraint=CONSTRAINT_NONE,global_oom,task_memcg=/c,task=python3,pid=8812,uid=0";
        let group = Some(OomConstraint::Group(GroupPlace::Around(0)));
        for (lines, ours, counted, killed, constraint) in [
            (&[helper][..], true, 1, Some(false), group),
            (&[helper], true, 2, None, group),
            (&[helper], false, 1, None, group),
            (&[helper, rank], true, 2, Some(true), group),
            (&[node, helper], true, 2, Some(true), Some(OomConstraint::Node)),
            (&[helper, helper], true, 2, None, group),
            (&[], true, 1, None, None),
        ] {
            let mut kills = LoggedKills::new(ours);
            lines.iter().for_each(|line| kills.read(line, &["/c".to_owned()]));
            let said = (kills.names(8812, counted), kills.constraint(Some(8812)));
            assert_eq!(said, (killed, constraint), "{lines:?} {counted}");
        }
    }
}
