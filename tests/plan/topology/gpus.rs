//! The GPUs of a job that does not use all of them.

use serde_json::{Value, json};

use super::{Node, because, below_switch, rail, with_eight_gpus};

/// For 1 to 8 processes: the GPUs, and the full reason; none if all GPUs are used.
type Sets = [(&'static [u32], &'static str); 8];

#[test]
fn gpu_subset_is_chosen_with_a_reason() {
    let two_sockets: (fn(&mut Node), Sets) = (
        |node| {
            for gpu in 0..8 {
                let used = if gpu == 1 { 40_000 } else { 0 };
                node.gpu(&below_switch(gpu / 2, gpu % 2), i32::from(gpu >= 4), used);
            }
        },
        [
            (&[0], "idle, all on NUMA node 0, in order"),
            (&[0, 2], "idle, all on NUMA node 0, in order"),
            (&[0, 2, 3], "idle, all on NUMA node 0, in order"),
            (&[4, 5, 6, 7], "idle, all on NUMA node 1, in order"),
            (&[0, 2, 3, 4, 5], "idle, no NUMA node has enough, in order"),
            (&[0, 2, 3, 4, 5, 6], "idle, no NUMA node has enough, in order"),
            (&[0, 2, 3, 4, 5, 6, 7], "idle, no NUMA node has enough, in order"),
            (&[0, 1, 2, 3, 4, 5, 6, 7], ""),
        ],
    );
    // A card beside GPUs 2, 3, 6 and 7, below two of the four switches.
    let four_cards: (fn(&mut Node), Sets) = (
        |node| {
            with_eight_gpus(node);
            for (n, (switch, slot)) in [(1, 4), (1, 5), (3, 4), (3, 5)].into_iter().enumerate() {
                node.hca(&rail(format!("mlx5_{n}"), below_switch(switch, slot)));
            }
        },
        [
            (&[2], "all on NUMA node 0, next to an RDMA device, in order"),
            (&[2, 3], "all on NUMA node 0, next to an RDMA device, in order"),
            (&[0, 2, 3], "all on NUMA node 0, next to an RDMA device, in order"),
            (&[0, 1, 2, 3], "all on NUMA node 0, in order"),
            (&[0, 2, 3, 6, 7], "no NUMA node has enough, next to an RDMA device, in order"),
            (&[0, 1, 2, 3, 6, 7], "no NUMA node has enough, next to an RDMA device, in order"),
            (&[0, 1, 2, 3, 4, 6, 7], "no NUMA node has enough, next to an RDMA device, in order"),
            (&[0, 1, 2, 3, 4, 5, 6, 7], ""),
        ],
    );
    let flat: (fn(&mut Node), Sets) = (
        |node| {
            for gpu in 0..8 {
                node.gpu(&format!("pci0000:00/0000:00:{:02x}.0", 5 + gpu), -1, 0);
            }
            node.hca(&rail("mlx5_0", "pci0000:00/0000:00:14.0"));
        },
        [
            (&[0], "in order"),
            (&[0, 1], "in order"),
            (&[0, 1, 2], "in order"),
            (&[0, 1, 2, 3], "in order"),
            (&[0, 1, 2, 3, 4], "in order"),
            (&[0, 1, 2, 3, 4, 5], "in order"),
            (&[0, 1, 2, 3, 4, 5, 6], "in order"),
            (&[0, 1, 2, 3, 4, 5, 6, 7], ""),
        ],
    );
    for (name, (build, sets)) in
        [("two sockets", two_sockets), ("four cards", four_cards), ("flat", flat)]
    {
        let mut node = Node::new();
        build(&mut node);
        for (nproc, (expected, reason)) in (1..).zip(sets) {
            let plan = node.plan(&["--nproc-per-node", &nproc.to_string()]);
            let gpus = plan["gpus"].as_array().expect("GPUs");
            let chosen: Vec<&Value> = gpus
                .iter()
                .filter(|gpu| gpu["selected"] == true)
                .map(|gpu| &gpu["index"])
                .collect();
            assert_eq!(json!(chosen), json!(expected), "{name}, {nproc}");
            let said = because(&plan, "CUDA_VISIBLE_DEVICES");
            assert_eq!(said, reason, "{name}, {nproc}");
        }
    }
}
