//! Folders of nodes, in which the files of their ranks lie.

use super::*;

#[test]
fn ranks_in_folders_of_nodes_are_those_of_one_checkpoint() {
    for layout in [
        "step_#/node_N/rank_R.pt",
        "step_#/node_N/rank_L.pt",
        "step_#/hostN/rank_R.pt",
        "node_N/step_#_rank_R.pt",
        "node_N/step_#_rank_L.pt",
        "node-N/step_#/rank_R.pt",
        "machine_N/ckpt_#_rank_R.pt",
        "run/node_N/rank_R/step_#.pt",
        "node_N/epoch_#_rank_R.pt",
    ] {
        for (nodes, each) in [(2, 2), (3, 2), (2, 4)] {
            let of = |step: u32| of_ranks(layout, step, (nodes, each));
            let all = [of(100), of(200), of(300)].concat();
            let whole = names(&all.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(whole.len(), 3, "{whole:?}");
            assert!(chosen(&all).contains("300"), "{layout} {nodes}: {whole:?}");
            assert!(chosen(&of(300)).contains("300"), "{layout} {nodes}");
            let count = of(300).len();
            for missing in 0..count {
                let mut torn = all.clone();
                torn.remove(2 * count + missing);
                assert!(
                    chosen(&torn).contains("200"),
                    "{layout} {nodes} {missing}: {}",
                    chosen(&torn)
                );
            }
            // A whole node.
            let kept = 3 * count - usize::try_from(each).expect("few");
            assert!(chosen(&all[..kept]).contains("200"), "{layout} {nodes}");
        }
    }
    // Each node has all of its own run.
    let runs = ["node_0/step_100.pt", "node_1/step_200.pt"];
    assert_eq!(names(&runs), [runs[1], runs[0]]);
}
