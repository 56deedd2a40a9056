//! The report of a job: node 0 has the reports of all nodes, although they share no folder.

use harness::{Ended, Launcher, Running, free_port, program, run_args};
use nix::sys::signal::Signal;
use serde_json::Value;

fn start(nodes: u32, more: &[&str], what: &str) -> Vec<Running> {
    let port = free_port();
    let node = |rank| {
        let mut args = run_args("direct", 2);
        args.extend(more.iter().map(Into::into));
        args.extend(["--".into(), program("rank.sh").into_os_string(), what.into()]);
        Launcher::new(args).node(rank, nodes, port).start()
    };
    (0..nodes).map(node).collect()
}

/// The document in a page.
fn document(page: &std::path::Path) -> Value {
    let page = std::fs::read_to_string(page).expect("a page");
    let (_, rest) = page.split_once(r#"id="data">"#).expect("the document");
    serde_json::from_str(rest.split_once("</script>").expect("its end").0).expect("JSON")
}

fn of_job(ended: &Ended, node: u32) -> std::path::PathBuf {
    ended.node_folder(node).parent().expect("a run").join("report.html")
}

fn nodes(document: &Value) -> Vec<u64> {
    let nodes = document["nodes"].as_array().expect("nodes").iter();
    nodes.filter_map(|node| node["node"].as_u64()).collect()
}

#[test]
fn node_0_report_covers_all_nodes() {
    for (what, code) in [("succeed", 0), ("exit-7-on-rank-1", 7)] {
        let ended: Vec<Ended> = start(3, &[], what).into_iter().map(Running::wait).collect();
        for (node, ended) in (0..).zip(&ended) {
            let own = document(&ended.node_folder(node).join("report.html"));
            assert_eq!(nodes(&own), [u64::from(node)]);
            assert_eq!(own["nodes"][0]["exit_code"], ended.code);
            assert_eq!(of_job(ended, node).exists(), node == 0, "node {node}: {}", ended.err);
        }
        let job = document(&of_job(&ended[0], 0));
        assert_eq!((nodes(&job), &job["missing"]), (vec![0, 1, 2], &0.into()));
        let each = || job["nodes"].as_array().expect("nodes").iter();
        let codes: Vec<_> = each().map(|node| node["exit_code"].clone()).collect();
        assert_eq!(codes, ended.iter().map(|ended| ended.code).collect::<Vec<_>>());
        assert_eq!(job["end"]["exit_code"], code);
        let ranks: usize = each().filter_map(|node| node["ranks"].as_array()).map(Vec::len).sum();
        assert_eq!(ranks, 6);
    }
}

/// The report counts the nodes without data.
#[test]
fn lost_node_is_reported_missing() {
    let mut all = start(3, &["--grace", "5s"], "wait");
    for one in &mut all {
        one.says("READY", 2);
    }
    let lost = all.remove(2);
    // All processes are killed, as on a host that loses its power; the guard first, or it would
    // report.
    let mut pids: Vec<i32> = lost.processes().iter().map(|process| process.pid).collect();
    pids.sort_by_key(|pid| *pid != lost.pid());
    for pid in pids {
        let pid = nix::unistd::Pid::from_raw(pid);
        // The process may have ended with its parent.
        let _ = nix::sys::signal::kill(pid, Signal::SIGKILL);
    }
    let ended: Vec<Ended> = all.into_iter().map(Running::wait).collect();
    assert!(ended.iter().all(|ended| ended.code != 0));
    let job = document(&of_job(&ended[0], 0));
    assert_eq!((nodes(&job), &job["missing"]), (vec![0, 1], &1.into()));
    drop(lost);
}
