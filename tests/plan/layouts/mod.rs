//! No planned layout makes the script's assertions fail: the sizes of real jobs with the real
//! executable, on replayed nodes with a fake NVML.

mod assumed;
mod output;
mod profiles;
mod sizes;

use harness::node::{PYTHON, Planned};

/// Flags for node 0 of `nodes`.
fn of(nodes: &str) -> Vec<&str> {
    vec!["--nnodes", nodes, "--node-rank", "0", "--master-addr", "10.0.0.1"]
}

fn ulysses<'a>(nodes: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut args = of(nodes);
    args.extend(["--layout", "ulysses-world", "--python", PYTHON]);
    args.extend(more);
    args
}
/// `nproc world ulysses ring devices`, or `code id`.
fn line(planned: &Planned) -> String {
    if planned.code != 0 {
        return planned.refusal();
    }
    let devices = planned.at("/env/CUDA_VISIBLE_DEVICES");
    let sizes = ["nproc_per_node", "world_size", "layout/ulysses_size", "layout/ring_size"];
    let sizes: Vec<String> = sizes.map(|name| planned.at(&format!("/{name}"))).into();
    format!("{} {devices}", sizes.join(" "))
}
