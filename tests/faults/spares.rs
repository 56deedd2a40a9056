//! Jobs to which more nodes come than there are seats.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use harness::{
    Ended, Launcher, Role, Running, free_port, kill, program, python, run_args, wait_until,
};
use nix::sys::signal::Signal;
use tempfile::TempDir;

/// So many nodes may come beside those with a seat.
const SPARES: u32 = 2;

struct Job {
    /// So many nodes have a seat.
    seats: u32,
    port: u16,
    folder: TempDir,
    /// Seconds that a rank takes to end.
    slow: &'static str,
    options: &'static [&'static str],
}

impl Job {
    fn new() -> Job {
        let folder = tempfile::tempdir().expect("a folder");
        Job { seats: 2, port: free_port(), folder, slow: "0", options: &[] }
    }

    /// A launcher on this node; the platform counts all nodes.
    fn node(&self, node: u32) -> Running {
        let mut args = run_args("direct", 1);
        args.extend(["--spares", &SPARES.to_string(), "--grace", "20s"].map(Into::into));
        let notice =
            format!("file:{}", self.folder.path().join(format!("notice-{node}")).display());
        args.extend(["--notice", &notice].map(Into::into));
        args.extend(self.options.iter().map(Into::into));
        args.push("--".into());
        let program = program("places.py");
        let line = [python(), program, self.folder.path().into(), PathBuf::from(self.slow)];
        let launcher = Launcher::new(args).args(line).env("NODE_NAME", format!("gpu-{node}"));
        launcher.node(node, self.seats + SPARES, self.port).start()
    }

    fn nodes(&self, nodes: impl IntoIterator<Item = u32>) -> Vec<Running> {
        nodes.into_iter().map(|node| self.node(node)).collect()
    }

    fn write(&self, name: &str) {
        self.write_text(name, "");
    }

    fn write_text(&self, name: &str, text: &str) {
        // The rank must not see the file without its text.
        let new = self.folder.path().join("new");
        std::fs::write(&new, text).expect("it is written");
        std::fs::rename(new, self.folder.path().join(name)).expect("it is renamed");
    }

    /// Waits until the ranks of this attempt run, and gives what each says.
    fn running(&self, attempt: u32) -> Vec<String> {
        let of = |rank| {
            let path = self.folder.path().join(format!("{attempt}-{rank}"));
            wait_until("a rank of this attempt", || std::fs::read_to_string(&path).ok())
        };
        (0..self.seats).map(of).collect()
    }

    /// What the ranks say where each has its own seat.
    fn all_seats(&self) -> Vec<String> {
        let seats = self.seats;
        let of = |rank| format!("seat {rank} of {seats}, rank {rank} of {seats}");
        (0..seats).map(of).collect()
    }
}

fn waits(node: &mut Running) {
    node.waits("a spare", |node| node.err().contains("is a spare"));
}

/// The seats of the last attempt by run.json of this node.
fn sits(ended: &Ended, node: u32) -> Vec<u64> {
    let seats = ended.run_json(node)["seats"].clone();
    let seats = seats.as_array().expect("seats").iter().zip(0..);
    seats
        .map(|(one, seat)| {
            assert_eq!(one["seat"], seat, "{one}");
            one["node"].as_u64().expect("a node")
        })
        .collect()
}

/// The traps: a lost node is replaced, the node that returns finds its seat taken, spares end with the job.
#[test]
fn spare_takes_the_seat_of_a_lost_node_which_parks_when_it_returns() {
    let job = Job::new();
    let mut nodes = job.nodes(0..4);
    assert_eq!(job.running(0), job.all_seats());
    waits(&mut nodes[2]);
    waits(&mut nodes[3]);
    Running::lose(vec![nodes.remove(1)]);
    assert_eq!(job.running(1), job.all_seats());
    let mut returned = job.node(1);
    waits(&mut returned);
    job.write("end");
    let (mut nodes, returned) = (nodes.into_iter(), returned.wait());
    let zero = nodes.next().expect("node 0").wait().expect_code(0).expect_nothing_left();
    assert_eq!(sits(&zero, 0), [0, 2]);
    assert!(zero.err.contains("node 2 ("), "{}", zero.err);
    assert!(zero.err.contains(") has the seat of node 1"), "{}", zero.err);
    let two = nodes.next().expect("node 2").wait().expect_code(0).expect_nothing_left();
    assert_eq!(sits(&two, 2), [0, 2]);
    for spare in [nodes.next().expect("node 3").wait(), returned] {
        let spare = spare.expect_code(0).expect_nothing_left();
        assert!(spare.err.contains("this spare has no seat"), "{}", spare.err);
    }
}

/// Nobody waits for nodes that are lost, however many they are.
#[test]
fn spares_take_the_seats_of_nodes_that_are_lost_together() {
    let job = Job { seats: 3, ..Job::new() };
    let mut nodes = job.nodes(0..5);
    job.running(0);
    waits(&mut nodes[3]);
    waits(&mut nodes[4]);
    let began = Instant::now();
    Running::lose(vec![nodes.remove(2), nodes.remove(1)]);
    assert_eq!(job.running(1), job.all_seats());
    // A node that might return is awaited for the grace period of 20 s and more.
    let took = began.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}: {}", nodes[0].err());
    job.write("end");
    let ended: Vec<Ended> = nodes.into_iter().map(Running::wait).collect();
    assert!(ended.iter().all(|over| over.code == 0));
    assert_eq!(sits(&ended[0], 0), [0, 3, 4]);
}

/// A node whose GPU is gone gives its seat to a spare, and in the next job, which begins with all nodes anew, as well:
/// until somebody says that it was repaired.
#[test]
fn bad_node_is_remembered_until_it_is_repaired() {
    let logs = tempfile::tempdir().expect("a folder");
    let folder: &'static str = logs.path().to_str().expect("its name").to_owned().leak();
    let options: &[&str] = vec!["--log-dir", folder].leak();
    let job = || Job { options, ..Job::new() };
    let ends = |job: &Job, nodes: Vec<Running>| -> String {
        job.write("end");
        let ended: Vec<Ended> = nodes.into_iter().map(Running::wait).collect();
        ended.iter().for_each(|over| assert_eq!(over.code, 0, "{}", over.err));
        ended.into_iter().next().map(|zero| zero.err).expect("node 0")
    };
    let asked = |more: &[&str]| {
        let args = [&["nodes", "--log-dir", folder], more].concat();
        Launcher::new(args).start().wait()
    };

    let first = job();
    let nodes = first.nodes(0..4);
    first.running(0);
    first.write_text(
        "fail-0-1",
        "Unable to determine the device handle for GPU 0000:41:00.0: GPU is lost.\n",
    );
    first.running(1);
    let said = ends(&first, nodes);
    assert!(said.contains("gpu-1 is a bad node (xid_79)"), "{said}");
    assert!(said.contains(") has the seat of node 1"), "{said}");
    let listed = asked(&[]).expect_code(0);
    assert!(listed.out.starts_with("gpu-1  0:"), "{}", listed.out);
    assert!(listed.out.contains(" ago  xid_79: "), "{}", listed.out);
    assert_eq!(listed.out.lines().count(), 1, "{}", listed.out);

    let second = job();
    let nodes = second.nodes(0..4);
    second.running(0);
    let said = ends(&second, nodes);
    assert!(said.contains("failed in the last days (xid_79): another one has its seat"), "{said}");
    assert!(!said.contains("spare, without a seat: node 1"), "{said}");

    assert!(asked(&["--forget", "gpu-7"]).expect_code(64).err.contains("nodes.unknown"));
    assert!(asked(&["--forget", "gpu-1"]).expect_code(0).out.contains("no node failed"));
    let third = job();
    let nodes = third.nodes(0..4);
    third.running(0);
    let said = ends(&third, nodes);
    assert!(!said.contains("has the seat of node") && !said.contains("failed in"), "{said}");
}

/// A node that is slow until an attempt ends gives its seat away, whatever ended the attempt; the others keep theirs.
#[test]
fn spare_takes_the_seat_of_a_slow_node() {
    let port = free_port();
    let start = |node: u32| {
        let mut args = run_args("direct", 1);
        args.extend(["--spares", "1", "--max-restarts", "2"].map(Into::into));
        args.extend(["--".into(), program("steps.py").into_os_string()]);
        let launcher = Launcher::new(args).with_torch().args(["late", "300"]);
        launcher.env("LATE_RANK", "2").node(node, 4, port).start()
    };
    let mut nodes: Vec<Running> = [0, 1, 3].map(start).into();
    nodes[0].waits("a seat", |node| node.err().contains("node 3 (") && has_seat(node) == 1);
    nodes.push(start(2));
    waits(&mut nodes[3]);
    let named = |times| {
        move |node: &Running| node.err().matches("rank 2 holds the others").count() == times
    };
    // Control: named only now, it may be slow for a moment.
    nodes[0].waits("a slow rank", named(1));
    nodes[1].send(Role::Rank, Signal::SIGKILL);
    nodes[0].waits("it is named in the next attempt", named(2));
    assert_eq!(has_seat(&nodes[0]), 2, "{}", nodes[0].err());
    std::thread::sleep(Duration::from_secs(31));
    nodes[1].send(Role::Rank, Signal::SIGKILL);
    nodes[0].waits("the seat", |node| node.err().contains("node 3: spare, without a seat"));
    let said = nodes[0].err();
    assert!(said.contains("node 3 held the others back until the end"), "{said}");
    assert_eq!(has_seat(&nodes[0]), 2, "{said}");
}

/// How often the seat of node 2 was another one's.
fn has_seat(node: &Running) -> usize {
    node.err().matches("has the seat of node 2").count()
}

/// A launcher that ends by itself after its report, since it has lost its guard, is not awaited either.
#[test]
fn spare_takes_the_seat_of_a_node_that_leaves() {
    let job = Job::new();
    let mut nodes = job.nodes(0..4);
    job.running(0);
    waits(&mut nodes[2]);
    let began = Instant::now();
    kill(nodes[1].find(Role::Guard));
    assert_eq!(job.running(1), job.all_seats());
    // A node that returns is awaited for the grace period of 20 s and more.
    let took = began.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}: {}", nodes[0].err());
    job.write("end");
    let codes: Vec<i32> = nodes.into_iter().map(|node| node.wait().code).collect();
    assert_eq!(codes, [0, 137, 0, 0]);
}

/// A rank fails where the other nodes need seconds to stop theirs: who had a seat keeps it, although both spares are there
/// at once.
#[test]
fn spare_that_comes_first_takes_no_seat_of_a_node_that_returns() {
    let job = Job { slow: "3", ..Job::new() };
    let mut nodes = job.nodes(0..4);
    job.running(0);
    waits(&mut nodes[2]);
    waits(&mut nodes[3]);
    job.write("fail-0-0");
    assert_eq!(job.running(1), job.all_seats());
    job.write("end");
    let ended: Vec<Ended> = nodes.into_iter().map(Running::wait).collect();
    for (node, over) in (0..).zip(ended) {
        let over = over.expect_code(0).expect_nothing_left();
        if node < job.seats {
            assert_eq!(sits(&over, node), [0, 1]);
        } else {
            assert!(over.err.contains("this spare has no seat"), "{}", over.err);
        }
    }
}

/// As many spares are used as there are, then the job ends, and with it those that wait.
#[test]
fn job_that_ends_with_a_failure_ends_its_spares() {
    let job = Job { options: &["--max-restarts", "0"], ..Job::new() };
    let mut nodes = job.nodes(0..4);
    job.running(0);
    waits(&mut nodes[3]);
    job.write("fail-0-1");
    let codes: Vec<i32> = nodes.into_iter().map(|node| node.wait().code).collect();
    assert_eq!(codes, [143, 3, 143, 143]);
}

/// The same where the node that leads is lost, and nobody tells the spares.
#[test]
fn job_whose_leader_is_lost_for_good_ends_its_spares() {
    let job = Job { options: &["--max-restarts", "0"], ..Job::new() };
    let mut nodes = job.nodes(0..4);
    job.running(0);
    waits(&mut nodes[3]);
    Running::lose(vec![nodes.remove(0)]);
    for node in nodes {
        let over = node.wait().expect_code(143).expect_nothing_left();
        assert!(over.err.contains("node.died"), "{}", over.err);
    }
}

/// The leader and another node at once, and one node after the other: nobody waits for those that died.
#[test]
fn nodes_that_died_are_not_awaited() {
    let losses: [&[&[u32]]; 2] = [&[&[0, 1]], &[&[1], &[2]]];
    for losses in losses {
        let job = Job { seats: 3, ..Job::new() };
        let mut nodes: BTreeMap<u32, Running> = (0..).zip(job.nodes(0..5)).collect();
        job.running(0);
        waits(nodes.get_mut(&3).expect("a spare"));
        waits(nodes.get_mut(&4).expect("a spare"));
        for (attempt, lost) in (1..).zip(losses) {
            Running::lose(lost.iter().filter_map(|node| nodes.remove(node)).collect());
            assert_eq!(job.running(attempt), job.all_seats());
        }
        job.write("end");
        for node in nodes.into_values() {
            let over = node.wait().expect_code(0).expect_nothing_left();
            // Where a leader is elected, another one may have stood for it as well, and then the nodes meet twice.
            let is_elected = losses.concat().contains(&0);
            assert!(is_elected || !over.err.contains("waiting a moment"), "{}", over.err);
        }
    }
}

/// A node is missing from the start: a spare has its seat, and node 0 says which.
#[test]
fn spare_takes_the_seat_of_a_node_that_never_came() {
    let job = Job::new();
    let nodes = job.nodes([0, 2, 3]);
    assert_eq!(job.running(0), job.all_seats());
    job.write("end");
    let ended: Vec<Ended> = nodes.into_iter().map(Running::wait).collect();
    assert!(ended.iter().all(|over| over.code == 0));
    assert_eq!(sits(&ended[0], 0), [0, 2]);
}

/// One node is lost after the other, until no spare is left.
#[test]
fn each_spare_is_used_once_and_then_the_job_says_what_it_lacks() {
    let job = Job { options: &["--wait-timeout", "8s"], ..Job::new() };
    let mut nodes: Vec<Option<Running>> = job.nodes(0..4).into_iter().map(Some).collect();
    for (victim, attempt) in (1..).zip(0..=SPARES) {
        assert_eq!(job.running(attempt), job.all_seats(), "attempt {attempt}");
        Running::lose(vec![nodes[victim].take().expect("it runs")]);
    }
    let zero = nodes[0].take().expect("it runs").ends_within(Duration::from_secs(60));
    let zero = zero.expect_code(143);
    assert!(zero.err.contains("died"), "{}", zero.err);
}

/// A signal to a spare ends it alone.
#[test]
fn stopped_spare_ends_nothing_else() {
    let job = Job::new();
    let mut nodes = job.nodes(0..4);
    job.running(0);
    waits(&mut nodes[3]);
    let spare = nodes.pop().expect("node 3");
    spare.signal(Signal::SIGTERM);
    spare.wait().expect_code(143).expect_nothing_left();
    kill(nodes[1].agent());
    assert_eq!(job.running(1), job.all_seats());
    job.write("end");
    let codes: Vec<i32> = nodes.into_iter().map(|node| node.wait().code).collect();
    assert_eq!(codes, [0, 137, 0]);
}

/// A notice on one node moves its seat to a spare, once the ranks have saved; where each node hears it by itself, it is the
/// end of the job.
#[test]
fn notice_moves_the_seat_of_a_node_that_ends_soon() {
    for (noticed, codes) in
        [(&[1][..], [0, 143, 0, 0]), (&[0], [143, 0, 0, 0]), (&[0, 1], [143; 4])]
    {
        let job = Job { slow: "1", ..Job::new() };
        let mut nodes = job.nodes(0..4);
        job.running(0);
        waits(&mut nodes[2]);
        waits(&mut nodes[3]);
        noticed.iter().for_each(|node| job.write(&format!("notice-{node}")));
        if codes[3] == 0 {
            assert_eq!(job.running(1), job.all_seats());
            job.write("end");
        }
        let ended: Vec<Ended> = nodes.into_iter().map(Running::wait).collect();
        let found: Vec<i32> = ended.iter().map(|over| over.code).collect();
        assert_eq!(found, codes, "{noticed:?}: {}", ended[0].err);
        if let ([gone], 0) = (noticed, codes[3]) {
            let other = 1 - *gone;
            let seats = sits(&ended[other], u32::try_from(other).expect("small"));
            assert!(!seats.contains(&u64::try_from(*gone).expect("small")), "{seats:?}");
            assert_eq!(ended[*gone].id(), Some("stopped.notice"));
            let run = ended[other].run_json(u32::try_from(other).expect("small"));
            assert!(run["notice"].is_null());
        }
    }
}

/// The others elect another leader, and what comes back finds its seat taken, node 0 too.
#[test]
fn another_node_leads_once_node_0_is_lost() {
    let job = Job::new();
    let mut nodes = job.nodes(0..4);
    job.running(0);
    waits(&mut nodes[2]);
    waits(&mut nodes[3]);
    Running::lose(vec![nodes.remove(0)]);
    assert_eq!(job.running(1), job.all_seats());
    let mut returned = job.node(0);
    waits(&mut returned);
    assert!(returned.err().contains("in place of node 0"), "{}", returned.err());
    // The address of the job leads to the job again: who comes there hears from node 0 who leads.
    Running::lose(vec![nodes.remove(2)]);
    let mut three = job.node(3);
    waits(&mut three);
    assert!(three.err().contains("in place of node 0"), "{}", three.err());
    nodes.push(three);
    job.write("end");
    let returned = returned.wait().expect_code(0).expect_nothing_left();
    assert!(returned.err.contains("this spare has no seat"), "{}", returned.err);
    let ended: Vec<Ended> = nodes.into_iter().map(Running::wait).collect();
    for (node, over) in (1..).zip(ended) {
        let over = over.expect_code(0).expect_nothing_left();
        if node == 1 {
            let seats = sits(&over, node);
            assert!(!seats.contains(&0), "{seats:?}");
        }
    }
}

/// One leader after the other is lost, each with its whole node.
#[test]
fn leaders_are_lost_one_after_the_other() {
    let job = Job { seats: 3, options: &["--max-restarts", "9"], ..Job::new() };
    let mut nodes: Vec<Option<Running>> = job.nodes(0..5).into_iter().map(Some).collect();
    for attempt in 0..2 {
        assert_eq!(job.running(attempt), job.all_seats());
        let leads = |node: &Option<Running>| {
            let words = "this node leads the job in place of node 0";
            node.as_ref().is_some_and(|one| one.err().matches(words).count() > 0)
        };
        let leader =
            if attempt == 0 { 0 } else { nodes.iter().position(leads).expect("one leads") };
        Running::lose(vec![nodes[leader].take().expect("it runs")]);
    }
    assert_eq!(job.running(2), job.all_seats());
    job.write("end");
    for node in nodes.into_iter().flatten() {
        node.wait().expect_code(0).expect_nothing_left();
    }
}

/// An agent alone stands still: its guard ends the ranks before the others go on.
#[test]
fn ranks_of_an_agent_that_stands_still_end() {
    let job = Job { options: &["--max-restarts", "9"], ..Job::new() };
    let mut nodes = job.nodes(0..4);
    job.running(0);
    waits(&mut nodes[2]);
    waits(&mut nodes[3]);
    let agent = nix::unistd::Pid::from_raw(nodes[0].agent());
    nix::sys::signal::kill(agent, Signal::SIGSTOP).expect("it runs");
    let zero = nodes.remove(0).ends_within(Duration::from_secs(60));
    let zero = zero.expect_code(137).expect_nothing_left();
    assert!(zero.err.contains("stood still"), "{}", zero.err);
    assert!(!job.folder.path().join("1-0").exists(), "the others went on before");
    assert_eq!(job.running(1), job.all_seats());
    job.write("end");
    for node in nodes {
        node.wait().expect_code(0).expect_nothing_left();
    }
}

/// Control: two nodes cannot elect anybody, so the job ends with its node 0.
#[test]
fn two_nodes_end_with_node_0() {
    let job = Job::new();
    let mut nodes = job.nodes(0..2);
    job.running(0);
    Running::lose(vec![nodes.remove(0)]);
    let one = nodes.remove(0).wait().expect_code(143).expect_nothing_left();
    assert!(one.err.contains("the agent of node 0") && one.err.contains("died"), "{}", one.err);
}

/// Two of four nodes came: they start again together, although nobody could be elected.
#[test]
fn two_nodes_start_again_without_an_election() {
    let job = Job { options: &["--max-restarts", "3"], ..Job::new() };
    let nodes = job.nodes(0..2);
    job.running(0);
    job.write("fail-0-1");
    assert_eq!(job.running(1), job.all_seats());
    job.write("fail-1-0");
    assert_eq!(job.running(2), job.all_seats());
    job.write("end");
    for node in nodes {
        node.wait().expect_code(0).expect_nothing_left();
    }
}

/// What can have no spares is refused before anything starts.
#[test]
fn impossible_spares_are_refused_before_the_launch() {
    let refused = |more: &[&str], words: &str| {
        let mut args = run_args("direct", 1);
        args.extend(more.iter().map(Into::into));
        args.extend(["--", "true"].map(Into::into));
        let over = Launcher::new(args).node(0, 3, free_port()).run();
        assert!(over.err.contains(words), "{more:?}: {}", over.err);
        over.expect_id("membership.spares");
    };
    refused(&["--spares", "2"], "leaves 1 of 3 nodes");
    refused(&["--spares", "1", "--muster", "off"], "lets no node know of the others");
}
