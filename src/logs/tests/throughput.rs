//! Throughput and CPU beside `cat`.

use super::*;

/// Two ranks that write as fast as they can, into files and a prefixed console:
/// `cargo test --release --lib logs::tests::throughput -- --ignored --nocapture`.
/// LOGS_BENCH_DIR names the folder of the files.
#[test]
#[ignore = "a measurement of several seconds; run it in a release build"]
fn throughput_beside_cat() {
    use nix::sys::resource::{UsageWho, getrusage};
    let seconds = Duration::from_secs(3);
    let line = "x".repeat(119);
    let yes =
        |to: Stdio| Command::new("yes").arg(&line).stdout(to).spawn().expect("yes, from coreutils");
    let root = std::env::var_os("LOGS_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::tempdir_in(root).expect("a folder");
    let cpu = || {
        let usage = getrusage(UsageWho::RUSAGE_SELF).expect("usage");
        let seconds =
            |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        seconds(usage.user_time()) + seconds(usage.system_time())
    };

    let config = LogsConfig {
        world_size: 2,
        local_ranks: 2,
        cap_rank: 1 << 40,
        cap_node: 1 << 42,
        ..config(Some(folder.path()))
    };
    let logs = Logs::start(config, silent());
    let (began, before) = (Instant::now(), cpu());
    let mut ranks: Vec<_> = (0..2)
        .map(|rank| {
            let (from, to) = pipe().expect("a pipe");
            logs.attach(Owner::Rank(GlobalRank(rank)), Stream::Out, from.into()).expect("attached");
            yes(to.into())
        })
        .collect();
    thread::sleep(seconds);
    for rank in &mut ranks {
        rank.kill().expect("killed");
        rank.wait().expect("ended");
    }
    let summary = finish(logs, Duration::from_secs(60));
    let (took, used) = (began.elapsed().as_secs_f64(), cpu() - before);
    let total = summary.owners.values().map(|owner| owner.bytes).sum::<u64>() as f64 / 1e9;
    let lost: u64 = summary.owners.values().map(|owner| owner.dropped_file_bytes).sum();
    let unshown: u64 = summary.owners.values().map(|owner| owner.dropped_console_lines).sum();
    println!(
        "logs: {:.0} MB/s, {:.2} CPU s/GB, {lost} file bytes and {unshown} console lines dropped",
        total * 1e3 / took,
        used / total
    );

    let began = Instant::now();
    let copies: Vec<_> = (0..2)
        .map(|rank| {
            let (from, to) = pipe().expect("a pipe");
            let path = folder.path().join(format!("cat-{rank}"));
            let file = File::create(&path).expect("created");
            let cat = Command::new("cat").stdin(from).stdout(file).spawn().expect("cat");
            (yes(to.into()), cat, path)
        })
        .collect();
    thread::sleep(seconds);
    let ticks = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("there");
        let after = stat.rsplit_once(") ").expect("fields").1;
        let field = |n: usize| after.split(' ').nth(n).and_then(|n| n.parse::<f64>().ok());
        (field(11).expect("utime") + field(12).expect("stime")) / 100.0
    };
    let used: f64 = copies.iter().map(|(_, cat, _)| ticks(cat.id())).sum();
    let took = began.elapsed().as_secs_f64();
    let mut total = 0.0;
    for (mut rank, mut cat, path) in copies {
        total += std::fs::metadata(path).expect("there").len() as f64 / 1e9;
        rank.kill().expect("killed");
        rank.wait().expect("ended");
        cat.wait().expect("ended");
    }
    println!("cat: {:.0} MB/s, {:.2} CPU s/GB", total * 1e3 / took, used / total);
}
