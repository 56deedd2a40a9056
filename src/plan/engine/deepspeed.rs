//! The command line of DeepSpeed's launcher.

use data_encoding::BASE64URL;

use super::line::{Line, Spelling};
use crate::Plan;

/// The launcher that DeepSpeed's runner would start on every node through ssh.
pub(super) fn line(plan: &Plan) -> Line {
    let m = &plan.membership;
    let mut line = Line::module(plan, "deepspeed.launcher.launch", Spelling::Underscores);
    line.value("world-info", world_info(plan));
    line.value("node-rank", m.node_rank.to_string());
    line.value("master-addr", &m.master_addr);
    line.value("master-port", m.master_port.to_string());
    // DeepSpeed would put --local_rank between the shim and its role; LOCAL_RANK is set anyway.
    line.switch("no-local-rank");
    line
}

/// Base64 of a JSON map from node to device ids. The launcher sets CUDA_VISIBLE_DEVICES from
/// this node's list; of the other nodes it uses only the number of devices.
fn world_info(plan: &Plan) -> String {
    let tokens: Vec<String> = match plan.env.get("CUDA_VISIBLE_DEVICES") {
        Some(value) => value.to_string_lossy().split(',').map(str::to_owned).collect(),
        None => plan.device_tokens.clone(),
    };
    let own: Vec<serde_json::Value> = (0..plan.nproc_per_node)
        .map(|rank| match tokens.get(rank as usize) {
            Some(token) => token.parse::<u32>().map_or_else(|_| token.clone().into(), Into::into),
            None => rank.into(),
        })
        .collect();
    let others: Vec<u32> = (0..plan.nproc_per_node).collect();
    let map: serde_json::Map<String, serde_json::Value> = (0..plan.membership.nnodes)
        .map(|node| {
            let devices = if node == plan.membership.node_rank {
                own.clone().into()
            } else {
                others.clone().into()
            };
            (format!("node-{node}"), devices)
        })
        .collect();
    // As DeepSpeed reads it: RFC 4648 §5, padded.
    BASE64URL.encode(serde_json::Value::Object(map).to_string().as_bytes())
}
