//! `[[select]]`: values for placeholders by the total number of GPUs.
//!
//! Takes the profile's rows and the size of the job; gives the values of the matching row, or
//! else of the row for all other sizes. Without a row, a job whose arguments or variables need
//! such a value is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

use crate::notes::{Notes, one_of};
use crate::placeholders::mentions;
use settings::Select;
use text::lang::Text;
use text::text;
use verdict::{Id, Refusal};

/// The values for `world` ranks on `nnodes` nodes; `is_world_size`: only WORLD_SIZE gives the number of nodes.
/// Empty if no row matches and no argument or variable needs a value.
pub fn select(
    rows: &[Select],
    (nnodes, is_world_size): (u32, bool),
    most: u32,
    world: u32,
    arguments: &[OsString],
    notes: &mut Notes,
) -> Result<BTreeMap<String, String>, Refusal> {
    let of = |total: Option<u32>| rows.iter().find(|row| row.total_gpus == total);
    if let Some(row) = of(Some(world)).or_else(|| of(None)) {
        let because = match row.total_gpus {
            Some(_) => {
                text!("the profile's row for {world} GPUs", "配置文件中 {world} 个 GPU 对应的取值")
            }
            None => text!(
                "the profile's row for numbers without one of their own, here {world} GPUs",
                "配置文件中其余数量的取值，此处为 {world} 个 GPU"
            ),
        };
        for (name, value) in &row.values {
            notes.decide(name, value, because.clone(), &row.source);
        }
        return Ok(row.values.clone());
    }
    let names: BTreeSet<&String> = rows.iter().flat_map(|row| row.values.keys()).collect();
    let used: Vec<String> = names
        .into_iter()
        .filter(|name| arguments.iter().any(|argument| mentions(argument, name)))
        .map(|name| format!("{{{name}}}"))
        .collect();
    if used.is_empty() {
        return Ok(BTreeMap::new());
    }
    Err(refuse(rows, (nnodes, is_world_size), most, world, &used.join(", ")))
}

fn refuse(
    rows: &[Select],
    (nnodes, is_world_size): (u32, bool),
    most: u32,
    world: u32,
    used: &str,
) -> Refusal {
    let exists: Vec<String> = rows
        .iter()
        .map(|row| {
            let values: Vec<&str> = row.values.values().map(String::as_str).collect();
            format!("{} ({}, {})", row.gpus(), values.join(", "), row.source)
        })
        .collect();
    let exists = exists.join("; ");
    let reachable: BTreeSet<u32> = rows
        .iter()
        .filter_map(|row| row.total_gpus)
        .filter(|total| total.checked_rem(nnodes) == Some(0))
        .filter_map(|total| total.checked_div(nnodes))
        .filter(|nproc| (1..=most).contains(nproc))
        .collect();
    let reachable: Vec<u32> = reachable.into_iter().collect();
    let Text { en, zh } = one_of(&reachable);
    // Another number of processes per node would wait for nodes that do not exist.
    let hint = if is_world_size {
        text!(
            "--world-size-counts processes if WORLD_SIZE={nnodes} counts processes, not nodes; if there are {nnodes} nodes: --nproc-per-node N, or a [[select]] row for {world} GPUs in the profile",
            "若 WORLD_SIZE={nnodes} 表示进程数而非节点数，请加 --world-size-counts processes；若确有 {nnodes} 个节点：用 --nproc-per-node N，或在配置文件中为 {world} 个 GPU 增加一条 [[select]]"
        )
    } else if reachable.is_empty() {
        text!(
            "add a [[select]] row for {world} GPUs, or for every other number (total_gpus = \"*\"), to the profile",
            "请在配置文件中为 {world} 个 GPU 增加一条 [[select]]，或为其余数量增加一条（total_gpus = \"*\"）"
        )
    } else {
        text!(
            "--nproc-per-node {en} fits a row; or add a [[select]] row for {world} GPUs to the profile",
            "--nproc-per-node {zh} 可匹配已有条目；或在配置文件中为 {world} 个 GPU 增加一条 [[select]]"
        )
    };
    Refusal::new(
        Id::SelectNoMatch,
        text!(
            "no [[select]] row for {world} GPUs ({nnodes} nodes), which {used} needs; there are rows for {exists}",
            "没有适用于 {world} 个 GPU（{nnodes} 个节点）的 [[select]] 条目，而 {used} 需要它；现有条目：{exists}"
        ),
        hint,
    )
}
