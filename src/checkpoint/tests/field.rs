//! Layouts of public projects as properties over steps, ranks and names: the newest whole state is chosen, and a missing
//! file is noticed.

use super::*;
use crate::tests::layouts::names;

/// The first whole one of these files.
fn chosen(files: &[String]) -> String {
    first_whole(names(&files.iter().map(String::as_str).collect::<Vec<_>>()))
}

fn first_whole(all: Vec<String>) -> String {
    let is_whole = |name: &String| !name.contains(": ");
    all.into_iter().find(is_whole).unwrap_or_default()
}

/// `R` is the rank in the job, `L` that on its node `N`.
#[test]
fn global_rank_beside_coordinates_is_that_of_one_checkpoint() {
    for layout in [
        "ckpt_#_rank_R_tp_L_pp_N.pt",
        "ckpt_#_tp_L_pp_N_rank_R.pt",
        "step_#/dp_rank_N_tp_rank_L_global_rank_R.pt",
        "step_#/local_rank_L_rank_R.pt",
        "step_#/shardR_rankR.pt",
        "step_#_shardN_rankR.pt",
        "step_#_rankR_mpL.pt",
        "step_#/rankR_mpL.pt",
        "epoch_#_rank_R_tp_L.pt",
        "step_#/replica_N_rank_R.pt",
        "step_#_stageN_rankR.pt",
        "step_#_hostN_rankR.pt",
        "step_#_nodeN_rankR.pt",
        "step_#_nodeN_rankL.pt",
        "step_#_nodeN_local_rankL.pt",
        "dp_0.1_step_#_rank_R.pt",
        "llama_tp2_pp2_step_#_rank_R.pt",
    ] {
        for (nodes, each) in [(2, 2), (2, 4), (3, 1), (1, 4)] {
            let of = |step: u32| {
                let name = move |rank: u32| {
                    let name = layout.replace('#', &step.to_string());
                    let name = name.replace('R', &rank.to_string());
                    name.replace('N', &(rank / each).to_string())
                        .replace('L', &(rank % each).to_string())
                };
                (0..nodes * each).map(name).collect::<Vec<String>>()
            };
            let all = [of(100), of(200), of(300)].concat();
            let newest = chosen(&all);
            assert!(newest.contains("300"), "{layout} {nodes}: {newest}");
            assert!(chosen(&of(300)).contains("300"), "{layout} {nodes}");
            let count = of(300).len();
            for missing in 0..count {
                let mut torn = all.clone();
                torn.remove(2 * count + missing);
                assert!(chosen(&torn).contains("200"), "{layout} {nodes}: {}", chosen(&torn));
                torn.drain(..count);
                assert!(chosen(&torn).contains("200"), "{layout} {nodes}: {}", chosen(&torn));
            }
        }
    }
}
