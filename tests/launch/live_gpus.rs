//! The current state of the GPUs for viewers, read by the probe that stays in the driver beside the
//! job. A driver that hangs or crashes does no harm.

use std::io::Write as _;

use harness::fake_nvml::FakeNvml;
use harness::{Launcher, Role, Running, free_port, wait_until};
use nix::sys::signal::Signal;

use super::exported::page;
use super::xids::journal;

/// A rank on each of these GPUs, with its metrics served at this port.
fn looked_at(fake: &FakeNvml, gpus: &str, port: u16) -> Running {
    Launcher::new(["run", "--engine", "direct", "--stale", "off", "--http", &port.to_string()])
        .args(["--", "sleep", "600"])
        .env("CUDA_VISIBLE_DEVICES", gpus)
        .env("RANKLAUNCH_NVML_LIBRARY", fake.library())
        .start()
}

/// Two ranks on GPUs 1 and 2 of four, whose metrics are read all the time.
struct Watched {
    running: Running,
    fake: FakeNvml,
    port: u16,
}

impl Watched {
    /// Starts the job and waits for the journal's first sample, for which a separate probe is
    /// started.
    fn start(settings: &[(&str, &str)]) -> Watched {
        let settings: Vec<_> = [("GPUS", "4")].iter().chain(settings).copied().collect();
        let (fake, port) = (FakeNvml::new(&settings), free_port());
        let mut running = looked_at(&fake, "1,2", port);
        running.waits("the first sample", |running| journal_text(running).contains("\"sampled\""));
        Watched { running, fake, port }
    }

    fn page(&self) -> Option<String> {
        page(self.port, "/metrics").map(|(_, page)| page)
    }

    /// A metric of GPU 2.
    fn value(&self, metric: &str) -> Option<f64> {
        value(&self.page()?, &format!("{metric}{{gpu=\"2\","))
    }

    fn end(self) {
        self.running.signal(Signal::SIGTERM);
        self.running.wait().expect_code(143).expect_nothing_left();
    }
}

/// The value of the line with this beginning.
fn value(page: &str, begin: &str) -> Option<f64> {
    page.lines().find(|line| line.starts_with(begin))?.rsplit(' ').next()?.parse().ok()
}

fn journal_text(running: &Running) -> String {
    let path = running.node_folder(0).join("agent.jsonl");
    std::fs::read_to_string(path).unwrap_or_default()
}

fn samples(running: &Running) -> usize {
    journal_text(running).matches("\"sampled\"").count()
}

/// The processes of the probe.
fn probes(running: &Running) -> Vec<i32> {
    let roles = running.roles();
    roles.iter().filter(|(role, _)| *role == Role::Probe).map(|(_, seen)| seen.pid).collect()
}

#[test]
fn metrics_show_the_current_gpu_state() {
    let job = Watched::start(&[]);
    let is = |metric, expected| {
        wait_until(metric, || job.value(metric).filter(|value| *value == expected));
    };
    is("ranklaunch_gpu_utilization_ratio", 0.97);
    is("ranklaunch_gpu_power_watts", 640.0);
    is("ranklaunch_gpu_clock_hertz", 1755e6);
    is("ranklaunch_gpu_temperature_celsius", 34.0);
    is("ranklaunch_gpu_memory_used_bytes", 0.0);
    let energy = || job.value("ranklaunch_gpu_energy_joules_total").expect("it is counted");
    let (before, probe) = (energy(), probes(&job.running));
    job.fake.play(&[("GPUS", "4"), ("UTILIZATION", "42")]);
    is("ranklaunch_gpu_utilization_ratio", 0.42);
    let after = wait_until("more energy", || Some(energy()).filter(|after| *after > before));
    assert!(after < before + 640.0 * 30.0, "{before} J, {after} J");
    assert_eq!(samples(&job.running), 1, "no sample for the journal shows it");
    assert_eq!((probe.len(), probes(&job.running)), (1, probe), "one process answers all");
    job.end();
}

#[test]
fn gpu_without_energy_counter_shows_no_energy() {
    let job = Watched::start(&[("MODE", "before-volta")]);
    wait_until("its power", || job.value("ranklaunch_gpu_power_watts"));
    assert_eq!(job.value("ranklaunch_gpu_energy_joules_total"), None);
    job.end();
}

/// Xids are still heard, everything else is sampled, and the end is not delayed.
#[test]
fn driver_hang_during_sampling_delays_nothing() {
    let job = Watched::start(&[]);
    wait_until("the GPUs", || job.value("ranklaunch_gpu_utilization_ratio"));
    job.fake.play(&[("GPUS", "4"), ("UTILIZATION", "hang")]);
    let now = || {
        let page = job.page()?;
        let energy = value(&page, "ranklaunch_gpu_energy_joules_total{gpu=\"2\",")?;
        Some((energy, value(&page, "ranklaunch_sample_time_seconds ")?))
    };
    let mut last = now();
    wait_until("two samples without an answer of the driver", || {
        let (energy, at) = now()?;
        let (before, earlier) = last.replace((energy, at))?;
        (energy == before && at > earlier).then_some(())
    });
    let mut events = std::fs::OpenOptions::new();
    let events = events.append(true).create(true).open(job.fake.events());
    events.expect("a file").write_all(b"2 79\n").expect("an event");
    wait_until("its Xid", || journal_text(&job.running).contains("\"number\":79").then_some(()));
    job.end();
}

#[test]
fn driver_crash_during_sampling_costs_only_the_watch() {
    let job = Watched::start(&[]);
    job.fake.play(&[("GPUS", "4"), ("UTILIZATION", "crash")]);
    let over = "the watch for Xids is over";
    wait_until(over, || journal_text(&job.running).contains(over).then_some(()));
    assert_eq!(page(job.port, "/readyz").map(|(code, _)| code), Some(200), "the job goes on");
    job.end();
}

/// Old drivers have no events and report only the memory of the load. A request is answered anyway.
#[test]
fn a_driver_without_events_answers() {
    let (fake, port) = (FakeNvml::of_old_driver(&[("GPUS", "1"), ("USED", "10")]), free_port());
    let running = looked_at(&fake, "0", port);
    // The driver's reserve counts as memory in use.
    let is_used = |mib: f64| {
        wait_until(&format!("{mib} MiB in use"), || {
            let (_, page) = page(port, "/metrics")?;
            let used = value(&page, "ranklaunch_gpu_memory_used_bytes{gpu=\"0\",")?;
            (used == (mib + 551.0) * f64::from(1 << 20)).then_some(())
        });
    };
    is_used(10.0);
    fake.play(&[("GPUS", "1"), ("USED", "20")]);
    is_used(20.0);
    assert!(samples(&running) < 2, "no sample for the journal shows it");
    running.signal(Signal::SIGTERM);
    running.wait().expect_code(143).expect_nothing_left();
}

/// The report computes the energy of the run from this counter.
#[test]
fn the_journal_has_the_counter_of_energy() {
    let job = Watched::start(&[]);
    job.running.signal(Signal::SIGTERM);
    let Watched { running, .. } = job;
    let ended = running.wait().expect_code(143).expect_nothing_left();
    let journal = journal(&ended);
    let sampled = journal.iter().find(|line| line["fields"]["message"] == "sampled");
    let gpu = &sampled.expect("a sample")["fields"]["gpus"][2];
    assert!(gpu["energy"].as_f64().is_some_and(|joules| joules > 640.0), "{gpu}");
}
