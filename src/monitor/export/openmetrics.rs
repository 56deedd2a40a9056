//! A [`NodeStatus`] as metrics: OpenMetrics 1.0, or the text format of Prometheus for a client that
//! does not ask for it.

use std::collections::BTreeSet;
use std::fmt::{Display, Write as _};

use strum::VariantArray;

use MetricKind::{Counter, Gauge};

use crate::status::{NodeStatus, Phase, RankState, RankStatus};
use text::order::InOrder;

/// The format of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    OpenMetrics,
    /// Version 0.0.4, which has neither infos nor state sets.
    Text,
}

impl Format {
    /// The format that the value of `Accept` asks for.
    pub(crate) fn wanted(accept: &str) -> Format {
        match accept.contains("application/openmetrics-text") {
            true => Format::OpenMetrics,
            false => Format::Text,
        }
    }

    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MetricKind {
    Gauge,
    Counter,
    Info,
    /// Each state is a sample of 0 or 1.
    StateSet,
}

impl MetricKind {
    fn name(self, format: Format) -> &'static str {
        match (self, format) {
            (Counter, _) => "counter",
            (MetricKind::Info, Format::OpenMetrics) => "info",
            (MetricKind::StateSet, Format::OpenMetrics) => "stateset",
            _ => "gauge",
        }
    }

    /// The suffix of the sample names.
    fn suffix(self) -> &'static str {
        match self {
            Counter => "_total",
            MetricKind::Info => "_info",
            Gauge | MetricKind::StateSet => "",
        }
    }
}

/// The units that a name may end with.
const UNITS: &[&str] = &["seconds", "bytes", "ratio", "watts", "joules", "hertz", "celsius"];

struct Page {
    format: Format,
    out: String,
}

impl Page {
    /// A family with its samples: the labels of each, and its value. Nothing without samples.
    fn family<L, V, S>(&mut self, kind: MetricKind, name: &str, help: &str, samples: S)
    where
        L: AsRef<[(&'static str, String)]>,
        V: Display,
        S: IntoIterator<Item = (L, V)>,
    {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return;
        }
        let (suffix, format) = (kind.suffix(), self.format);
        let family = match format {
            Format::OpenMetrics => format!("ranklaunch_{name}"),
            Format::Text => format!("ranklaunch_{name}{suffix}"),
        };
        let out = &mut self.out;
        let _ = writeln!(out, "# HELP {family} {help}");
        let _ = writeln!(out, "# TYPE {family} {}", kind.name(format));
        let unit = UNITS.iter().find(|unit| name.ends_with(&format!("_{unit}")));
        if let (Some(unit), Format::OpenMetrics) = (unit, format) {
            let _ = writeln!(out, "# UNIT {family} {unit}");
        }
        for (labels, value) in samples {
            let _ = write!(out, "ranklaunch_{name}{suffix}");
            for (at, (label, text)) in labels.as_ref().iter().enumerate() {
                let begin = if at == 0 { '{' } else { ',' };
                let _ = write!(out, "{begin}{label}=\"{}\"", escaped(text));
            }
            let end = if labels.as_ref().is_empty() { "" } else { "}" };
            let _ = writeln!(out, "{end} {value}");
        }
    }

    fn gauge(&mut self, name: &str, help: &str, value: Option<impl Display>) {
        self.family(Gauge, name, help, value.map(|value| (NONE, value)));
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(Counter, name, help, [(NONE, value)]);
    }
}

const NONE: [(&str, String); 0] = [];

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
    out
}

fn seconds(milliseconds: u64) -> f64 {
    milliseconds as f64 / 1000.0
}

/// The whole page.
pub(crate) fn render(status: &NodeStatus, format: Format) -> String {
    let mut page = Page { format, out: String::with_capacity(8 * 1024) };
    of_run(&mut page, status);
    of_ranks(&mut page, status);
    of_logs(&mut page, status);
    of_node(&mut page, status);
    of_gpus(&mut page, status);
    of_findings(&mut page, status);
    if format == Format::OpenMetrics {
        page.out.push_str("# EOF\n");
    }
    page.out
}

fn of_run(page: &mut Page, status: &NodeStatus) {
    let version = [("version", status.version.clone())];
    page.family(MetricKind::Info, "build", "The launcher.", [(version, 1)]);
    if let Some(run) = &status.run {
        let labels = [
            ("run_id", run.run_id.clone().unwrap_or_default()),
            ("node", run.node.to_string()),
            ("host", status.host.clone()),
            ("engine", run.engine.clone()),
            ("program", run.program.clone()),
        ];
        page.family(MetricKind::Info, "run", "The run, and this node of it.", [(labels, 1)]);
        page.gauge("nodes", "Nodes of the job.", Some(run.nodes));
        page.gauge("world_size", "Ranks of the job, of all nodes.", Some(run.world_size));
        page.gauge("attempt", "The attempt that runs, from 0.", Some(run.attempt));
        page.counter("restarts", "Restarts of the job by the launcher.", run.attempt);
    }
    let states = Phase::VARIANTS.iter().map(|phase| {
        let label = [("ranklaunch_phase", phase.name().to_owned())];
        (label, u8::from(*phase == status.phase))
    });
    page.family(MetricKind::StateSet, "phase", "Where the launch is.", states);
    let (phase, start) = (seconds(status.phase_since_ms), seconds(status.started_ms));
    let help = "When the phase began, in seconds since 1970.";
    page.gauge("phase_start_time_seconds", help, Some(phase));
    page.gauge("start_time_seconds", "When the launch began, in seconds since 1970.", Some(start));
    let ledger = status.ledger;
    // A scraper would take a falling counter for a restarted one. So the running time does not fall: its excess is
    // subtracted from the stalled time until the job has run for as long again.
    let running = ledger.running_ms.max(ledger.most_running_ms);
    let stalled = ledger.stalled_ms.saturating_sub(running - ledger.running_ms);
    let spent = [
        ("running", running),
        ("stalled", stalled),
        ("waiting", ledger.waiting_ms),
        ("starting", ledger.starting_ms),
        ("stopping", ledger.stopping_ms),
        ("pausing", ledger.pausing_ms),
    ];
    let spent = spent.map(|(state, time)| ([("state", state.to_owned())], seconds(time)));
    page.family(Counter, "spent_seconds", "Where the time of the job went on this node.", spent);
    page.counter(
        "failed_attempts_seconds",
        "Running time of attempts that failed: lost unless a checkpoint kept it.",
        seconds(ledger.failed_attempts_ms),
    );
    page.gauge(
        "goodput_ratio",
        "The share of the time since the start whose steps count, where lines of rank 0 tell them.",
        ledger.goodput(),
    );
    let code = status.end.as_ref().map(|end| end.code);
    page.gauge("exit_code", "The exit code of the verdict, once there is one.", code);
}

fn of_ranks(page: &mut Page, status: &NodeStatus) {
    let states = RankState::VARIANTS.iter();
    let states = states.map(|state| ([("state", state.name().to_owned())], status.count(*state)));
    page.family(Gauge, "ranks", "Ranks of this node by their state.", states);
    let mut each = |kind, name, help, value: &dyn Fn(&RankStatus) -> Option<f64>| {
        let labels = |rank: &RankStatus| {
            [("rank", rank.rank.to_string()), ("local_rank", rank.local_rank.to_string())]
        };
        let samples = status.ranks.iter().filter_map(|rank| Some((labels(rank), value(rank)?)));
        page.family(kind, name, help, samples);
    };
    let count = |count: u64| Some(count as f64);
    each(Gauge, "rank_up", "Whether the rank runs.", &|rank| {
        Some(f64::from(u8::from(rank.state == RankState::Running)))
    });
    each(Gauge, "rank_start_time_seconds", "When it was started.", &|rank| {
        rank.started_ms.map(seconds)
    });
    each(Counter, "rank_restarts", "Starts by the engine after the first.", &|rank| {
        Some(f64::from(rank.restarts))
    });
    each(Gauge, "rank_exit_code", "How it ended; a signal is 128 and its number.", &|rank| {
        rank.code.or_else(|| rank.signal.map(|signal| signal.saturating_add(128))).map(f64::from)
    });
    each(Counter, "rank_cpu_seconds", "CPU time of its first process.", &|rank| rank.cpu_seconds);
    each(Gauge, "rank_resident_memory_bytes", "Memory of its first process.", &|rank| {
        rank.memory.map(|bytes| bytes as f64)
    });
    each(Counter, "rank_log_bytes", "What it has written.", &|rank| count(rank.log_bytes));
    each(Counter, "rank_log_lines", "What it has written.", &|rank| count(rank.log_lines));
    each(Counter, "rank_log_dropped_bytes", "Output that never reached its file.", &|rank| {
        count(rank.log_dropped_bytes)
    });
    each(
        Counter,
        "rank_log_dropped_lines",
        "Lines that the console did not take in time.",
        &|rank| count(rank.log_dropped_lines),
    );
    each(Gauge, "rank_last_output_age_seconds", "Since it last wrote something.", &|rank| {
        rank.last_line_age_ms.map(seconds)
    });
}

fn of_logs(page: &mut Page, status: &NodeStatus) {
    let logs = status.logs;
    page.counter("log_bytes", "Output of all ranks and the engine.", logs.bytes);
    page.counter("log_lines", "Output of all ranks and the engine.", logs.lines);
    page.counter("log_dropped_bytes", "Output that never reached a file.", logs.dropped_bytes);
    let (lines, free) = (logs.dropped_lines, status.log_folder_free);
    page.counter("log_dropped_lines", "Lines that the console did not take in time.", lines);
    page.gauge("log_folder_available_bytes", "Free space where the logs are.", free);
}

fn of_node(page: &mut Page, status: &NodeStatus) {
    let sampled = status.sampled_ms.map(seconds);
    page.gauge("sample_time_seconds", "When CPU, memory and traffic were read.", sampled);
    let memory = status.memory;
    let of = |field: fn(crate::status::MemoryStatus) -> Option<u64>| memory.and_then(field);
    page.gauge("node_memory_used_bytes", "Memory in use.", of(|memory| Some(memory.used)));
    let available = of(|memory| Some(memory.available));
    let help = "Memory that can be had without swapping.";
    page.gauge("node_memory_available_bytes", help, available);
    let (used, limit) = (of(|memory| memory.group_used), of(|memory| memory.group_limit));
    page.gauge("cgroup_memory_used_bytes", "Memory in use by the control group.", used);
    page.gauge("cgroup_memory_limit_bytes", "The limit of the control group.", limit);
    let interfaces = status.interfaces.iter();
    let interfaces = interfaces.map(|one| (&one.interface, one.received_total, one.sent_total));
    let help = "Traffic of an interface since it came up.";
    traffic(page, "network", "interface", help, interfaces);
    let ports = status.hcas.iter().map(|one| (&one.port, one.received_total, one.sent_total));
    let help = "Traffic of a port of an HCA since its driver was loaded.";
    traffic(page, "hca", "port", help, ports);
}

/// Bytes received and sent by links that have names.
fn traffic<'s>(
    page: &mut Page,
    what: &str,
    label: &'static str,
    help: &str,
    links: impl Iterator<Item = (&'s String, u64, u64)> + Clone,
) {
    let received = links.clone().map(|(name, received, _)| ([(label, name.clone())], received));
    page.family(Counter, &format!("{what}_receive_bytes"), help, received);
    let sent = links.map(|(name, _, sent)| ([(label, name.clone())], sent));
    page.family(Counter, &format!("{what}_transmit_bytes"), help, sent);
}

fn of_gpus(page: &mut Page, status: &NodeStatus) {
    use crate::status::GpuStatus;
    let mut each = |kind, name, help, value: &dyn Fn(&GpuStatus) -> Option<f64>| {
        let labels = |gpu: &GpuStatus| {
            let rank = status.ranks.iter().find(|rank| rank.gpu == Some(gpu.gpu));
            [
                ("gpu", gpu.gpu.to_string()),
                ("uuid", gpu.uuid.clone().unwrap_or_default()),
                ("rank", rank.map(|rank| rank.rank.to_string()).unwrap_or_default()),
            ]
        };
        let samples = status.gpus.iter().filter_map(|gpu| Some((labels(gpu), value(gpu)?)));
        page.family(kind, name, help, samples);
    };
    each(
        Gauge,
        "gpu_utilization_ratio",
        "Time in which a kernel ran; one that waits for other ranks counts.",
        &|gpu| gpu.utilization.map(|percent| f64::from(percent) / 100.0),
    );
    each(Gauge, "gpu_memory_used_bytes", "Memory in use.", &|gpu| {
        gpu.memory_used.map(|bytes| bytes as f64)
    });
    each(Gauge, "gpu_memory_size_bytes", "Its memory.", &|gpu| {
        gpu.memory_total.map(|bytes| bytes as f64)
    });
    each(Gauge, "gpu_power_watts", "Its power.", &|gpu| gpu.power);
    each(Gauge, "gpu_power_limit_watts", "The limit of its power.", &|gpu| gpu.power_limit);
    each(Counter, "gpu_energy_joules", "Energy since the driver was loaded.", &|gpu| gpu.energy);
    let hertz = |mhz: Option<u32>| mhz.map(|mhz| f64::from(mhz) * 1e6);
    each(Gauge, "gpu_clock_hertz", "Clock of its multiprocessors.", &|gpu| hertz(gpu.clock));
    each(Gauge, "gpu_clock_limit_hertz", "The highest clock.", &|gpu| hertz(gpu.max_clock));
    each(Gauge, "gpu_temperature_celsius", "Its temperature.", &|gpu| {
        gpu.temperature.map(f64::from)
    });
}

fn of_findings(page: &mut Page, status: &NodeStatus) {
    page.family(
        Counter,
        "findings",
        "Warnings of the plan, broken rules, hangs, slow ranks and causes, by id.",
        status.findings.iter().map(|(id, count)| ([("id", id.clone())], *count)),
    );
    let stands = Some(u8::from(status.standstill.is_some()));
    page.gauge("standstill", "Whether the job stands still by a hang that was found.", stands);
    page.gauge(
        "notice",
        "Whether a notice came that this node or the job is to end.",
        Some(u8::from(status.notice.is_some())),
    );
    let deadline = status.notice.as_ref().and_then(|notice| notice.deadline_ms);
    page.gauge(
        "notice_deadline_timestamp_seconds",
        "The deadline of that notice.",
        deadline.map(|ms| ms as f64 / 1000.0),
    );
    page.family(
        Gauge,
        "slow_rank_lost_ratio",
        "The share of their time that the others lose by a rank that is late.",
        status.slow.iter().map(|slow| ([("rank", slow.rank.to_string())], slow.lost)),
    );
    let kinds: BTreeSet<&str> = status.abnormal.iter().map(|reason| reason.kind.into()).in_set();
    page.family(
        Gauge,
        "node_abnormal",
        "What is abnormal about the node since the sample before.",
        kinds.into_iter().map(|kind| ([("kind", kind.to_owned())], 1)),
    );
}
