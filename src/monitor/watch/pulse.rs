//! Reads the activity of the ranks of this node so far: from /proc, and from their worker servers.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use super::connections::{self, Connection, OpenFiles};
use super::progress::{Carried, FarEnd, NodePulse, Pulse};
use super::recorders::{self, Count};
use diagnose::stacks::call;
use linux::deadline::io_with_deadline;
use linux::procfs::{self, Process};
use text::rank::GlobalRank;

/// A tick of `stat`: USER_HZ, which is 100 on every architecture of today.
const TICK: Duration = Duration::from_millis(10);
/// Time limit for the environment of a process.
const ENVIRON: Duration = Duration::from_millis(200);

/// The activity so far of the ranks with these pids. `output`: bytes that a rank has written. `control`: the
/// folder of their worker servers. `connected`: whether their connections are looked at as well, which is
/// worth it only if they seem to stand still. Takes as long as the servers need to answer, at most two seconds.
pub(crate) fn pulse(
    proc: &Path,
    ranks: &BTreeMap<GlobalRank, i32>,
    output: impl Fn(GlobalRank) -> u64,
    control: Option<&Path>,
    connected: bool,
) -> NodePulse {
    let all = Process::scan(proc);
    let counts: HashMap<i32, Count> = control.map(recorders::counts).unwrap_or_default();
    let mut owners: BTreeMap<u32, GlobalRank> = BTreeMap::new();
    let mut store = None;
    let mut accelerated = BTreeSet::new();
    let read = |(rank, pid): (&GlobalRank, &i32)| {
        let below = Process::descendants(&all, &[*pid]);
        let family = std::iter::once(*pid).chain(below.iter().map(|process| process.pid));
        let program = program(&all, *pid, |member| counts.contains_key(&member));
        let is_held = |pid: i32| all.get(&pid).is_some_and(|process| process.state == b'D');
        let in_disk = family.clone().any(is_held);
        let sleeps = sleeps(&proc.join(program.to_string()));
        let mut pulse = Pulse { output: output(*rank), in_disk, sleeps, ..Pulse::default() };
        for member in family {
            let folder = proc.join(member.to_string());
            if connected {
                let open = OpenFiles::of(&folder);
                owners.extend(open.sockets.into_iter().map(|one| (one, *rank)));
                if member == program && open.has_accelerator {
                    accelerated.insert(*rank);
                }
            }
            pulse.cpu += cpu(&folder).unwrap_or_default();
            pulse.io = pulse.io.saturating_add(io(&folder).unwrap_or_default());
        }
        if connected && store.is_none() {
            store = store_port(proc, program);
        }
        if let Some(count) = counts.get(&program) {
            (pulse.collectives, pulse.waits) = (Some(count.sum), count.waits);
        }
        (*rank, pulse)
    };
    let ranks = ranks.iter().map(read).collect();
    let found = connected.then(connections::connections).flatten();
    let carried = found.map(|found| carried(&found, &owners, &accelerated, store));
    NodePulse { ranks, carried, network: network(proc), dirty: dirty(proc) }
}

/// The connections of these ranks. `accelerated`: those whose NCCL may exchange words while all only wait (its RAS does),
/// as all do with torch's store.
fn carried(
    all: &[Connection],
    owners: &BTreeMap<u32, GlobalRank>,
    accelerated: &BTreeSet<GlobalRank>,
    store: Option<u16>,
) -> Vec<Carried> {
    let owner = |one: &Connection| owners.get(&one.inode).copied();
    let by_ends: HashMap<_, _> =
        all.iter().filter_map(|one| Some(((one.local, one.peer), owner(one)?))).collect();
    let is_of_store =
        |one: &Connection| [one.local.port(), one.peer.port()].map(Some).contains(&store);
    let address = |end: SocketAddr| end.ip().to_canonical();
    // The other nodes of the job are those that speak with the store.
    let own: HashSet<IpAddr> = all.iter().map(|one| address(one.local)).collect();
    let nodes: HashSet<IpAddr> =
        all.iter().filter(|one| is_of_store(one)).map(|one| address(one.peer)).collect();
    let of_rank = |one: &Connection| {
        let rank = owner(one)?;
        let peer = by_ends.get(&(one.peer, one.local));
        let node = address(one.peer);
        let to = if is_of_store(one) {
            FarEnd::Job
        } else if peer.is_some_and(|peer| *peer != rank)
            || (nodes.contains(&node) && !own.contains(&node))
        {
            if accelerated.contains(&rank) { FarEnd::Job } else { FarEnd::Rank }
        } else {
            FarEnd::Elsewhere
        };
        Some(Carried { rank, inode: one.inode, bytes: one.bytes, unheard: one.unheard, to })
    };
    all.iter().filter_map(of_rank).collect()
}

/// The port at which torch's store is, as a process has it in its environment.
pub(crate) fn store_port(proc: &Path, pid: i32) -> Option<u16> {
    let path = proc.join(pid.to_string()).join("environ");
    // A process that holds its own memory lock blocks whoever reads its environment.
    let environ = io_with_deadline(ENVIRON, move || std::fs::read(path)).ok()?;
    let environ = procfs::split_nul(&environ);
    String::from_utf8_lossy(procfs::variable(&environ, "MASTER_PORT")?).trim().parse().ok()
}

/// CPU time of the process and of the children that it has waited for.
fn cpu(process: &Path) -> Option<Duration> {
    let stat = std::fs::read(process.join("stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let (_, rest) = stat.rsplit_once(')')?;
    // The state is field 3; utime, stime, cutime and cstime are fields 14 to 17.
    let ticks = rest.split_ascii_whitespace().skip(11).take(4);
    let ticks: u64 = ticks.filter_map(|field| field.parse::<u64>().ok()).sum();
    Some(TICK * u32::try_from(ticks).unwrap_or(u32::MAX))
}

/// Bytes of calls, and of pages that were read or made dirty: the pages of a long write grow before it returns.
fn io(process: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(process.join("io")).ok()?;
    let counted = ["rchar", "wchar", "read_bytes", "write_bytes"];
    let rows = text.lines().filter_map(|line| line.split_once(": "));
    let counts =
        rows.filter(|(name, _)| counted.contains(name)).map(|(_, count)| count.trim().parse());
    Some(counts.flatten().fold(0, |sum: u64, count: u64| sum.saturating_add(count)))
}

/// Number of times that the first thread of a process went to sleep, if it is in a call that reads or writes.
fn sleeps(process: &Path) -> Option<u64> {
    const TRANSFERS: &str = "read write pread64 pwrite64 readv writev preadv pwritev fsync \
        fdatasync msync sync_file_range recvfrom recvmsg sendto sendmsg sendfile copy_file_range";
    let line = std::fs::read_to_string(process.join("syscall")).ok()?;
    let call = call(line.split_ascii_whitespace().next()?.parse().ok()?)?.0;
    if !TRANSFERS.split(' ').any(|transfer| transfer == call) {
        return None;
    }
    let status = std::fs::read_to_string(process.join("status")).ok()?;
    let rows = status.lines().filter_map(|line| line.split_once(':'));
    let mut switches = rows.filter(|(name, _)| *name == "voluntary_ctxt_switches");
    switches.next()?.1.trim().parse().ok()
}

/// Bytes that all interfaces but the loopback carried.
fn network(proc: &Path) -> u64 {
    let text = std::fs::read_to_string(proc.join("self/net/dev")).unwrap_or_default();
    let rows = text.lines().filter_map(|line| line.split_once(':'));
    let carried = rows.filter(|(name, _)| name.trim() != "lo").flat_map(|(_, counts)| {
        // Received bytes are the first number, sent ones the ninth.
        let counts: Vec<u64> =
            counts.split_ascii_whitespace().filter_map(|count| count.parse().ok()).collect();
        [counts.first().copied(), counts.get(8).copied()]
    });
    carried.flatten().fold(0, u64::saturating_add)
}

/// Bytes that still have to be written to disks.
fn dirty(proc: &Path) -> u64 {
    let text = std::fs::read_to_string(proc.join("meminfo")).unwrap_or_default();
    let rows = text.lines().filter_map(|line| line.split_once(':'));
    let kib = rows
        .filter(|(name, _)| ["Dirty", "Writeback"].contains(name))
        .filter_map(|(_, size)| size.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kib.fold(0, |sum: u64, kib| sum.saturating_add(kib.saturating_mul(1024)))
}

/// The first process of the rank, from its own process downwards, that answers as a program of torch
/// does; else the process of the rank.
pub(crate) fn program(
    all: &BTreeMap<i32, Process>,
    rank: i32,
    answers: impl Fn(i32) -> bool,
) -> i32 {
    let below = Process::descendants(all, &[rank]);
    let mut family = std::iter::once(rank).chain(below.iter().map(|process| process.pid));
    family.find(|pid| answers(*pid)).unwrap_or(rank)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn pulse_shows_cpu_and_io_of_a_process() {
        let proc = Path::new("/proc");
        let own = std::process::id().cast_signed();
        let ranks = BTreeMap::from([(GlobalRank(0), own)]);
        let look = || {
            let all = pulse(proc, &ranks, |_| 7, None, false);
            *all.ranks.get(&GlobalRank(0)).expect("this process")
        };
        let before = look();
        let until = Instant::now() + Duration::from_secs(20);
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), vec![1; 1 << 20]).expect("written");
        while look().cpu < before.cpu + Duration::from_millis(50) {
            assert!(Instant::now() < until, "no processor time is seen");
        }
        let after = look();
        assert!(after.io >= before.io + (1 << 20), "{after:?} after {before:?}");
        assert_eq!((after.output, after.collectives, after.waits), (7, None, false));
    }

    #[test]
    fn other_ends_of_connections_are_told_apart() {
        const STORE: u16 = 29500;
        let end = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let connection = |inode, local, peer| Connection {
            inode,
            local: end(local),
            peer: end(peer),
            bytes: 9,
            unheard: 0,
        };
        // This node is 10.0.0.1, node 1 is 10.0.0.2; 10.0.0.9 is none of the job.
        let all = [
            connection(1, "127.0.0.1:4000", "127.0.0.1:5000"),
            connection(2, "127.0.0.1:5000", "127.0.0.1:4000"),
            connection(3, "10.0.0.1:4001", "10.0.0.2:5001"),
            connection(4, "10.0.0.1:4002", "10.0.0.9:443"),
            connection(5, "127.0.0.1:4003", "127.0.0.1:8888"),
            connection(6, "127.0.0.1:4004", "127.0.0.1:29500"),
            connection(7, "[::ffff:10.0.0.1]:29500", "[::ffff:10.0.0.2]:6000"),
        ];
        let owners = BTreeMap::from([1, 3, 4, 5, 6].map(|inode| (inode, GlobalRank(0))));
        let owners = owners.into_iter().chain([(2, GlobalRank(1))]).collect();
        let ends = |accelerated: &[u32], store| {
            let accelerated = accelerated.iter().copied().map(GlobalRank).collect();
            let found = carried(&all, &owners, &accelerated, store);
            found.into_iter().map(|one| (one.inode, one.to)).collect::<Vec<_>>()
        };
        use FarEnd::{Elsewhere, Job, Rank};
        let expected =
            |ours, far| [(1, ours), (2, Rank), (3, far), (4, Elsewhere), (5, Elsewhere), (6, Job)];
        assert_eq!(ends(&[], Some(STORE)), expected(Rank, Rank));
        assert_eq!(ends(&[0], Some(STORE)), expected(Job, Job), "NCCL");
        let unknown = ends(&[], None);
        assert!(unknown.contains(&(3, Elsewhere)), "without a store no other node is known");
    }

    #[test]
    fn replayed_proc_yields_network_and_dirty_bytes() {
        let proc = tempfile::tempdir().expect("a folder");
        let folder = proc.path().join("self/net");
        std::fs::create_dir_all(&folder).expect("made");
        let table = "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes\n    lo: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0\n  eth0: 1000 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0\n";
        std::fs::write(folder.join("dev"), table).expect("written");
        std::fs::write(
            proc.path().join("meminfo"),
            "MemTotal: 9 kB\nDirty:  4 kB\nWriteback:   1 kB\n",
        )
        .expect("written");
        assert_eq!((network(proc.path()), dirty(proc.path())), (1200, 5 * 1024));
    }
}
