//! Cost of watching a job of real torch while it trains: samples, progress, four looks for slow ranks
//! a minute and what they make the ranks do, against the same job with neither records nor looks.

use std::process::Stdio;
use std::time::{Duration, Instant};

use harness::alive::descendants;
use harness::{program, wait_until};

use crate::measure::{Budget, Running, Table, direct};

const RANKS: u32 = 2;
/// The first look is after 15 s, and two of them agree after 30.
const MEASURED: Duration = Duration::from_secs(45);
/// Percent of one CPU.
const MOST: f64 = 1.0;

pub(crate) fn measure(table: &mut Table) {
    let own = watchers(&[]);
    let off = watchers(&["--inject", "off", "--hang-after", "off"]);
    let kept = Budget::Within("1 % of a CPU", own <= MOST);
    let rival = format!("neither inject nor hangs {off:.2} %");
    table.row("CPU of all but 2 training ranks", &format!("{own:.2} %"), &rival, own / off, kept);
}

/// Percent of a CPU that everything but the ranks takes while they train.
fn watchers(more: &[&str]) -> f64 {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = direct(RANKS, folder.path());
    let output = std::fs::File::create(folder.path().join("said")).expect("a file");
    command.args(more).stdout(Stdio::from(output));
    // Ends by itself after the measurement.
    let seconds = (MEASURED.as_secs() + 60).to_string();
    command.arg("--").arg(program("steps.py")).args(["even", &seconds]);
    let running = Running(command.spawn().expect("it starts"));
    let root = running.pid();
    wait_until("the first step of each rank", || {
        let said = std::fs::read_to_string(folder.path().join("said")).unwrap_or_default();
        (said.matches("first step").count() >= RANKS as usize).then_some(())
    });
    // torch may give a rank any name.
    let ours = |(pid, name): (i32, String)| name.starts_with("ranklaunch").then_some(pid);
    let watchers: Vec<i32> = descendants(root).into_iter().filter_map(ours).chain([root]).collect();
    let (began, before) = (Instant::now(), cpu(&watchers));
    std::thread::sleep(MEASURED);
    let spent = cpu(&watchers).saturating_sub(before);
    spent.as_secs_f64() / began.elapsed().as_secs_f64() * 100.0
}

/// Processor time of these processes up to now; nothing of those that have ended.
fn cpu(pids: &[i32]) -> Duration {
    let ticks = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Behind the name, which may hold anything: utime and stime are the 14th and 15th field.
        let rest = stat.rsplit_once(") ")?.1;
        let fields: Vec<u64> = rest.split(' ').skip(11).take(2).flat_map(str::parse).collect();
        Some(fields.iter().sum::<u64>())
    };
    // A tick is 10 ms wherever Linux is built with USER_HZ of 100, that is on every architecture we run on.
    Duration::from_millis(10)
        * u32::try_from(pids.iter().filter_map(ticks).sum::<u64>()).unwrap_or(u32::MAX)
}
