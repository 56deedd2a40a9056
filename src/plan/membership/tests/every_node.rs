//! Platforms that tell count, index and master in their own way: every node finds its place, and none
//! works alone.

use proptest::prelude::*;

use super::*;

/// The variables of one node of a job of some, and its master.
type Platform = (fn(nodes: u32, node: u32) -> String, &'static str);

fn hosts(nodes: u32) -> String {
    (0..nodes).map(|node| format!("\"h{node}:2222\"")).collect::<Vec<_>>().join(",")
}

fn openpai(nodes: u32, node: u32) -> String {
    format!(
        "PAI_JOB_NAME=j PAI_TASK_ROLE_COUNT=1 PAI_TASK_ROLE_LIST=worker PAI_CURRENT_TASK_ROLE_NAME=worker \
         PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX={node} PAI_TASK_INDEX={node} \
         PAI_TASK_ROLE_TASK_COUNT_worker={nodes} PAI_HOST_IP_worker_0=h0 PAI_HOST_IP_worker_1=h1"
    )
}

fn old_openpai(nodes: u32, node: u32) -> String {
    format!(
        "PAI_CURRENT_TASK_ROLE_NAME=worker PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX={node} \
         PAI_CURRENT_TASK_ROLE_TASK_COUNT={nodes} PAI_JOB_TASK_COUNT={nodes} MASTER_ADDR=h0"
    )
}

fn jaxjob(nodes: u32, node: u32) -> String {
    format!(
        "COORDINATOR_ADDRESS=h0 COORDINATOR_PORT=2222 NUM_PROCESSES={nodes} PROCESS_ID={node} PYTHONUNBUFFERED=1"
    )
}

fn tony(nodes: u32, node: u32) -> String {
    let hosts = hosts(nodes);
    format!(
        "JOB_NAME=worker TASK_INDEX={node} TASK_NUM={nodes} RANK={node} WORLD={nodes} \
         INIT_METHOD=tcp://h0:2222 SESSION_ID=0 CLUSTER_SPEC={{\"worker\":[{hosts}],\"ps\":[\"p:1\"]}}"
    )
}

fn afo(nodes: u32, node: u32) -> String {
    let hosts = hosts(nodes);
    format!("AFO_ENV_CLUSTER_SPEC={{\"role\":\"worker\",\"index\":{node},\"worker\":[{hosts}]}}")
}

fn afo_in_text(nodes: u32, node: u32) -> String {
    let hosts = hosts(nodes).replace('"', "");
    format!(
        "AFO_ENV_CLUSTER_SPEC={{\"role\":\"worker\",\"index\":\"{node}\",\"worker\":\"{hosts}\"}}"
    )
}

const PLATFORMS: &[Platform] = &[
    (openpai, "h0:29500"),
    (old_openpai, "h0:29500"),
    (jaxjob, "h0:2222"),
    (tony, "h0:2222"),
    (afo, "h0:2222"),
    (afo_in_text, "h0:2222"),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_node_finds_its_place(
        (variables, master) in prop::sample::select(PLATFORMS),
        nodes in 1u32..6,
    ) {
        for node in 0..nodes {
            let pairs = variables(nodes, node);
            let told = of(&pairs);
            let member = told.result.as_ref().map_err(|_| told.line());
            let place = member.map(|member| (member.nnodes, member.node_rank));
            prop_assert_eq!(place, Ok((nodes, node)), "{}", pairs);
            // The control: a job of one node.
            prop_assert!(nodes == 1 || told.line().contains(master), "{} {}", pairs, told.line());
        }
    }
}

/// Each variable that the rows need is taken away in turn.
#[test]
fn missing_variable_never_makes_a_lone_node() {
    for (variables, _) in PLATFORMS {
        for node in 0..2 {
            let all = variables(2, node);
            for part in all.split_whitespace() {
                let (name, _) = part.split_once('=').unwrap_or_default();
                let rest: Vec<&str> = all.split_whitespace().filter(|one| *one != part).collect();
                let told = of(&rest.join(" "));
                let is_alone = told.result.as_ref().is_ok_and(|member| member.nnodes == 1);
                let is_all = ["AFO_ENV_CLUSTER_SPEC", "COORDINATOR_ADDRESS"].contains(&name);
                assert!(is_all || !is_alone, "{all} without {name}: {}", told.line());
            }
        }
    }
}
