//! Chooses the variables with which torch keeps a record of its collectives on GPUs, and writes the
//! record to a file when a collective fails or times out.
//!
//! A value that a user sets under any of a variable's names stays, and nothing is set that torch does
//! by itself.

use std::ffi::OsString;

use crate::Notes;
use crate::devices::Hardware;
use crate::variables::Variables;
use linux::cpus::CpuList;
use node::observe::Limits;
use settings::{Need, Settings};
use text::lang::Text;
use text::text;
use text::version::Version;

/// The first version with a flight recorder (`NCCLTraceBuffer` in c10d).
const FIRST: Version = Version::new(2, 2, 0);
/// Versions from this one on warn of the old name for the file; older versions may know no other name.
const RENAMED: Version = Version::new(2, 11, 0);
/// Versions before this one have no worker server, which is asked for a record while the job runs.
const SERVED: Version = Version::new(2, 5, 0);
/// The first version that makes the pipe (`DumpPipe` in ProcessGroupNCCL).
const PIPED: Version = Version::new(2, 3, 0);
/// Values that torch reads as no, or as 0 entries.
const OFF: &[&str] = &["0", "n", "no", "f", "false"];

/// A variable that older versions need.
struct Row {
    /// The first of these names is set.
    names: &'static [&'static str],
    value: &'static str,
    before: Version,
    because: (&'static str, &'static str),
}

const ROWS: &[Row] = &[
    Row {
        names: &["TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"],
        // torch's default since torch has one (pytorch#142260).
        value: "2000",
        before: Version::new(2, 7, 0),
        because: (
            "this torch keeps no record of its collectives by itself, and only that shows which rank did not come",
            "该版本的 torch 默认不记录集合通信，而只有该记录能指出哪个 rank 没有进入",
        ),
    },
    Row {
        names: &["TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_FR_DUMP_ON_TIMEOUT"],
        value: "1",
        // Harmless if this is the default already, as it may be in 2.9.
        before: Version::new(2, 10, 0),
        because: (
            "this torch does not write the record down by itself when a collective times out",
            "该版本的 torch 在集合通信超时时默认不写出记录",
        ),
    },
];
/// The thread that writes the file.
const MONITOR: &[&str] = &["TORCH_NCCL_ENABLE_MONITORING"];
const FILE: &[&str] = &["TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"];
const FILE_BECAUSE: (&str, &str) = (
    "torch writes its records into the folder of the run, where no other job replaces them",
    "torch 将记录写入本次运行的目录，不会被其他任务覆盖",
);

const PIPE: &str = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE";
const PIPE_BECAUSE: (&str, &str) = (
    "this torch has no worker server, and writes its record down when it is asked through this pipe",
    "该版本的 torch 没有 worker server，经此管道请求时会写出记录",
);

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Recording {
    pub(super) env: Vec<(String, OsString)>,
    /// The variable for the path of the files, to which torch adds the rank.
    pub(super) file: Option<&'static str>,
    /// The variable for the path of the pipes that make torch write its file at once.
    pub(super) pipe: Option<&'static str>,
}

/// The recording for ranks of this torch. Collectives of one rank tell nothing, and collectives on CPUs
/// are not recorded.
pub(super) fn choose(
    torch: &str,
    variables: Variables<'_>,
    hardware: Hardware,
    world: u32,
    notes: &mut Notes,
) -> Recording {
    let mut recording = Recording::default();
    let Some(version) = torch.parse().ok().filter(|version: &Version| *version >= FIRST) else {
        return recording;
    };
    let value_of = |names: &[&str]| names.iter().find_map(|name| variables.get(name));
    let is_off = |names: &[&str]| value_of(names).is_some_and(|set| OFF.contains(&&*set.value));
    let turned_off = is_off(MONITOR) || ROWS.iter().any(|row| is_off(row.names));
    if hardware != Hardware::Gpus || world < 2 || turned_off {
        return recording;
    }
    let source = format!("torch {torch}");
    for Row { names, value, before, because } in ROWS {
        if version < *before && value_of(names).is_none() {
            let name = names.first().copied().unwrap_or_default();
            notes.decide(name, value, Text::new(because.0, because.1), &source);
            recording.env.push((name.to_owned(), value.into()));
        }
    }
    if value_of(FILE).is_none() {
        let name = FILE.get(usize::from(version >= RENAMED)).copied();
        let because = Text::new(FILE_BECAUSE.0, FILE_BECAUSE.1);
        notes.decide(name.unwrap_or_default(), "comm_lib_trace_rank_N", because, &source);
        recording.file = name;
    }
    if (PIPED..SERVED).contains(&version) && variables.get(PIPE).is_none() {
        let because = Text::new(PIPE_BECAUSE.0, PIPE_BECAUSE.1);
        notes.decide(PIPE, "comm_lib_trace_pipe_N.pipe", because, &source);
        recording.pipe = Some(PIPE);
    }
    recording
}

const LEAST_THREADS: u64 = 8;
/// The part of the remaining processes that the server may take, as a divisor.
const SHARE: u64 = 4;

/// Whether `ranks` ranks of this launcher may start the server.
pub(super) fn injects(settings: &Settings, limits: &Limits, ranks: u32, notes: &mut Notes) -> bool {
    let chosen = &settings.inject;
    if chosen.value == Need::Off {
        let because = text!(
            "no worker server in the ranks: what they wait for is seen from outside only",
            "rank 中不启动 worker server：只能从外部观察它们在等待什么"
        );
        notes.decide("inject", "off", because, &chosen.source);
        return false;
    }
    let threads = threads(limits) * u64::from(ranks);
    let Some((left, source)) = processes_left(limits) else { return true };
    let fits = threads <= left / SHARE;
    if !fits {
        let because = text!(
            "torch's worker server has {threads} threads in {ranks} ranks, more than a quarter of the {left} that may still start",
            "{ranks} 个 rank 的 worker server 共有 {threads} 个线程，超过还可启动的 {left} 个的四分之一"
        );
        notes.decide("inject", "off", because, source);
    }
    fits
}

/// Threads of the server in one rank.
fn threads(limits: &Limits) -> u64 {
    let machine: usize = limits.numa.values().map(CpuList::len).sum();
    let cpus = u64::try_from(machine).unwrap_or(0).max(u64::from(limits.cpus));
    cpus.saturating_sub(1).max(LEAST_THREADS) + 1
}

/// Processes and threads that may still start, and the limit that applies; None without a limit.
fn processes_left(limits: &Limits) -> Option<(u64, &'static str)> {
    let of_group =
        limits.pids_max.map(|max| max.saturating_sub(limits.pids_current.unwrap_or_default()));
    let of_group = of_group.map(|left| (left, "pids.max"));
    let of_user = limits.nproc_soft.map(|most| (most, "ulimit -u"));
    of_group.into_iter().chain(of_user).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{facts, flag, settings};

    const BUFFER: &str = "TORCH_NCCL_TRACE_BUFFER_SIZE=2000";
    const DUMP: &str = "TORCH_NCCL_DUMP_ON_TIMEOUT=1";
    const OLD: &str = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE";
    const NEW: &str = "TORCH_FR_DUMP_TEMP_FILE";

    fn chosen(
        torch: &str,
        own: (&str, &str),
        hardware: Hardware,
        world: u32,
    ) -> (Vec<String>, Option<&'static str>) {
        let mut facts = facts(2);
        facts.environment.insert(own.0.to_owned(), own.1.to_owned());
        let (settings, mut notes) = (settings(&[]), Notes::default());
        let variables = Variables::new(&settings, &facts);
        let found = choose(torch, variables, hardware, world, &mut notes);
        let decided =
            found.env.len() + usize::from(found.file.is_some()) + usize::from(found.pipe.is_some());
        assert_eq!(notes.decisions.len(), decided, "{:?}", notes.decisions);
        let shown = |(name, value): &(String, OsString)| format!("{name}={}", value.display());
        (found.env.iter().map(shown).collect(), found.file)
    }

    #[test]
    fn only_what_a_version_lacks_is_set() {
        for (torch, set, file) in [
            ("2.1.2+cu121", &[][..], None),
            ("2.3.1+cu121", &[BUFFER, DUMP][..], Some(OLD)),
            ("2.6.0", &[BUFFER, DUMP], Some(OLD)),
            ("2.7.0", &[DUMP], Some(OLD)),
            ("2.10.0", &[], Some(OLD)),
            ("2.15.0+cu132", &[], Some(NEW)),
            ("unknown", &[], None),
        ] {
            let (env, found) = chosen(torch, ("A", "1"), Hardware::Gpus, 2);
            assert_eq!(
                (&*env, found),
                (&set.iter().map(|set| (*set).to_owned()).collect::<Vec<_>>()[..], file),
                "{torch}"
            );
        }
    }

    #[test]
    fn torch_without_worker_server_gets_a_pipe() {
        let pipe = |torch: &str, own: (&str, &str)| {
            let mut facts = facts(2);
            facts.environment.insert(own.0.to_owned(), own.1.to_owned());
            let (settings, mut notes) = (settings(&[]), Notes::default());
            let variables = Variables::new(&settings, &facts);
            choose(torch, variables, Hardware::Gpus, 2, &mut notes).pipe
        };
        for (torch, expected) in
            [("2.2.2", None), ("2.3.1", Some(PIPE)), ("2.4.1+cu124", Some(PIPE)), ("2.5.0", None)]
        {
            assert_eq!(pipe(torch, ("A", "1")), expected, "{torch}");
        }
        assert_eq!(pipe("2.3.1", (PIPE, "/mine/pipe_")), None, "the user's own is asked");
    }

    #[test]
    fn recorder_needs_collectives_on_gpus() {
        assert_eq!(chosen("2.6.0", ("A", "1"), Hardware::Gpus, 1), (vec![], None));
        assert_eq!(chosen("2.6.0", ("A", "1"), Hardware::Cpus, 8), (vec![], None));
    }

    #[test]
    fn recorder_variables_of_the_user_stay() {
        for (name, value, set, file) in [
            ("TORCH_FR_BUFFER_SIZE", "100", &[DUMP][..], Some(OLD)),
            ("TORCH_NCCL_TRACE_BUFFER_SIZE", "0", &[], None),
            ("TORCH_NCCL_DUMP_ON_TIMEOUT", "false", &[], None),
            ("TORCH_NCCL_ENABLE_MONITORING", "0", &[], None),
            ("TORCH_NCCL_ENABLE_MONITORING", "1", &[BUFFER, DUMP], Some(OLD)),
            ("TORCH_FR_DUMP_TEMP_FILE", "/mine/rank_", &[BUFFER, DUMP], None),
        ] {
            let (env, found) = chosen("2.6.0", (name, value), Hardware::Gpus, 2);
            assert_eq!(
                (&*env, found),
                (&set.iter().map(|set| (*set).to_owned()).collect::<Vec<_>>()[..], file),
                "{name}={value}"
            );
        }
    }

    fn limits(cpus: &str, pids_max: Option<u64>) -> Limits {
        let numa = [(0, CpuList::read(cpus))].into();
        Limits { cpus: 4, numa, pids_max, pids_current: Some(40), ..Limits::default() }
    }

    #[test]
    fn server_takes_at_most_a_quarter_of_processes() {
        for (cpus, pids_max, fits) in [
            ("0-191", None, true),
            // 8 × 192 threads.
            ("0-191", Some(40 + 4 * 8 * 192), true),
            ("0-191", Some(40 + 4 * 8 * 192 - 1), false),
            // 8 × 9 threads.
            ("0-1", Some(40 + 4 * 8 * 9), true),
            ("0-1", Some(40 + 4 * 8 * 9 - 1), false),
            ("0-1", Some(0), false),
        ] {
            let mut notes = Notes::default();
            let found = injects(&settings(&[]), &limits(cpus, pids_max), 8, &mut notes);
            assert_eq!(found, fits, "{cpus} {pids_max:?}");
            assert_eq!(notes.decisions.len(), usize::from(!fits), "{:?}", notes.decisions);
        }
    }

    #[test]
    fn the_tightest_limit_is_the_source() {
        for (user, expected) in [(4096, "pids.max"), (100, "ulimit -u")] {
            let limits = Limits { nproc_soft: Some(user), ..limits("0-191", Some(240)) };
            let mut notes = Notes::default();
            assert!(!injects(&settings(&[]), &limits, 8, &mut notes));
            let decision = notes.decisions.first().expect("a decision");
            let left = user.min(200);
            assert_eq!(decision.source, expected);
            assert!(decision.because.en.contains(&format!("of the {left} that")), "{decision:?}");
        }
    }

    #[test]
    fn user_can_turn_the_server_off() {
        let mut settings = settings(&[]);
        settings.inject = flag(Need::Off, "--inject");
        let mut notes = Notes::default();
        assert!(!injects(&settings, &limits("0-1", None), 1, &mut notes));
        assert_eq!(notes.decisions.len(), 1);
    }
}
