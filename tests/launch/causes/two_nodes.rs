//! Failures on one of two nodes: both say the same.

use harness::{Ended, free_port};
use serde_json::json;

use super::explained::explain_all;
use super::{Expected, expect_cause, job};

/// Expects both nodes to name the same cause after they ended, on one of the nodes in `places`.
#[track_caller]
fn both_say(nproc: u32, script: &str, arguments: &[&str], places: &[u32], expected: Expected) {
    let port = free_port();
    let nodes = [0, 1].map(|rank| job("direct", nproc, script, arguments).node(rank, 2, port));
    let [zero, one] = nodes.map(|node| node.start());
    let ended: [Ended; 2] = [zero.wait(), one.wait()].map(Ended::expect_nothing_left);
    let causes = (0..).zip(&ended).map(|(node, ended)| {
        assert!(expected.codes.contains(&ended.code), "{}\n{}", ended.code, ended.err);
        expect_cause(ended, node, expected)
    });
    let [zero, one]: [serde_json::Value; 2] = causes.collect::<Vec<_>>().try_into().expect("two");
    assert_eq!(zero, one);
    assert!(places.iter().any(|node| zero["node"] == json!(node)), "{zero:#}");

    // Each folder gives the same cause afterwards, and so do both together.
    let folders = [ended[0].node_folder(0), ended[1].node_folder(1)];
    let [of_zero, of_one] = [0, 1].map(|node| folders[node].as_path());
    for folders in [&[of_zero, of_one][..], &[of_one, of_zero], &[of_zero], &[of_one]] {
        let said = explain_all(folders);
        let cause = &said["cause"];
        for key in ["id", "rank", "node"] {
            assert_eq!(cause[key], zero[key], "{key} of {folders:?}: {said:#}");
        }
    }
}

#[test]
fn both_nodes_name_the_rank_that_raised() {
    let expected = Expected {
        id: "user_exception",
        confidence: "likely",
        ranks: &[3],
        frame: Some(("one_rank_ends.py", "read")),
        words: "ValueError: sample 17 has no label",
        // The other node has its own code for a permanent failure.
        codes: &[1, 92, 134, 143],
    };
    both_say(2, "one_rank_ends.py", &["raise", "3"], &[1], expected);
}

#[test]
fn both_nodes_name_the_killed_rank() {
    let expected = Expected {
        id: "worker_sigkill",
        confidence: "likely",
        ranks: &[1],
        frame: None,
        words: "SIGKILL",
        codes: &[137, 143],
    };
    both_say(1, "one_rank_ends.py", &["kill", "1"], &[1], expected);
}

#[test]
fn both_nodes_name_a_missing_package() {
    let expected = Expected {
        id: "module_missing",
        confidence: "certain",
        ranks: &[1],
        frame: Some(("one_rank_ends.py", "read")),
        words: "package is not installed",
        codes: &[1, 92, 134, 143],
    };
    both_say(1, "one_rank_ends.py", &["import", "1"], &[1], expected);
}

/// Each of the two ranks may be the one that receives too much data.
#[test]
fn both_nodes_report_differing_shapes() {
    let expected = Expected {
        id: "collective_mismatch",
        confidence: "certain",
        ranks: &[0, 1],
        frame: None,
        words: "shapes",
        codes: &[92, 134, 143],
    };
    both_say(1, "different_shapes.py", &[], &[0, 1], expected);
}
