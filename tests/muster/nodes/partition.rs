//! Jobs with spares whose node 0 is cut off: the side with a majority goes on, and never both.

use std::path::Path;
use std::time::{Duration, SystemTime};

use harness::cluster::Cluster;
use harness::{Running, program, python, run_args, wait_until};

/// When the file was last changed.
fn changed(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|of| of.modified()).ok()
}

/// A rank that shows by the time of a file that it runs, until `end` exists.
const RANK: &str = "import os, sys, time\n\
    folder = sys.argv[1]\n\
    path = '%s/%s-%s' % (folder, os.environ['TORCHELASTIC_RESTART_COUNT'], os.environ['NODE_RANK'])\n\
    while not os.path.exists(folder + '/end'):\n\
    \x20   open(path, 'w').close()\n\
    \x20   time.sleep(0.05)";

/// Three seats and two spares; node 0 loses its network for a while, and then sees that it was replaced.
#[test]
fn node_0_that_was_cut_off_is_replaced_and_waits_for_a_seat() {
    let Some(cluster) = Cluster::new(5) else { return };
    let folder = cluster.folder().join("job");
    std::fs::create_dir(&folder).expect("a folder");
    let mut args = run_args("direct", 1);
    args.extend(["--spares", "2", "--grace", "2s", "--"].map(Into::into));
    args.extend([python().into_os_string(), "-c".into(), RANK.into(), folder.clone().into()]);
    let start = |node| cluster.launcher(node, node, 5, &args).start();
    let mut nodes: Vec<Running> = (0..5).map(start).collect();
    let runs = |attempt: u32| {
        let of = |seat| folder.join(format!("{attempt}-{seat}"));
        wait_until("the ranks of this attempt", || {
            (0..3).all(|seat| of(seat).exists()).then_some(())
        });
    };
    runs(0);
    for spare in [3, 4] {
        nodes[spare].waits("a spare", |node| node.err().contains("is a spare"));
    }
    cluster.cut(0);
    runs(1);
    let began = (0..3).filter_map(|seat| changed(&folder.join(format!("1-{seat}")))).min();
    let seen = (0..3).filter_map(|seat| changed(&folder.join(format!("0-{seat}")))).max();
    let apart = began.expect("it runs").duration_since(seen.expect("it ran"));
    assert!(apart.is_ok(), "attempts 0 and 1 ran together");
    cluster.mend(0);
    nodes[0].waits("node 0 waits for a seat", |node| node.err().contains("node 0 is a spare"));
    std::fs::write(folder.join("end"), "").expect("it is written");
    for node in nodes {
        node.wait().expect_code(0).expect_nothing_left();
    }
    cluster.expect_nothing_left();
}

/// Control: where no side has a majority, none goes on.
#[test]
fn no_side_goes_on_without_a_majority() {
    let Some(cluster) = Cluster::new(3) else { return };
    let mut args = run_args("direct", 1);
    args.extend(["--spares", "1", "--grace", "1s", "--wait-timeout", "30s", "--"].map(Into::into));
    args.extend([program("rank.sh").into_os_string(), "wait".into()]);
    let start = |node| cluster.launcher(node, node, 3, &args).start();
    let mut nodes: Vec<Running> = (0..3).map(start).collect();
    for node in &mut nodes[..2] {
        node.says("READY", 1);
    }
    nodes[2].waits("a spare", |node| node.err().contains("is a spare"));
    (0..3).for_each(|node| cluster.cut(node));
    for node in nodes {
        let ended = node.ends_within(Duration::from_secs(180)).expect_nothing_left();
        assert!(ended.out.matches("READY").count() < 2, "{}", ended.out);
        assert_eq!(ended.code, 143, "{}", ended.err);
    }
}
