//! Python and torch: what files say, and what a short job says.

use super::table::planned;
use super::{Evidence, Finding, Kind};
use crate::text;

pub(super) fn torch(evidence: &Evidence<'_>) -> Vec<Finding> {
    let mut found = planned(evidence, &["python.interpreter", "python.torch"]);
    let python = &evidence.facts.python;
    if found.is_empty() {
        let path = python.interpreter.as_ref().map(|path| path.display().to_string());
        let path = path.unwrap_or_else(|| "-".to_owned());
        found.push(match &python.torch {
            Some(torch) => {
                let version = &torch.version;
                Finding::ok(text!("torch {version}, {path}", "torch {version}，{path}"))
            }
            None => Finding::info(text!(
                "no torch, and none is needed ({path})",
                "无 torch，也不需要（{path}）"
            )),
        });
    }
    found
}

/// Only where it was asked for.
pub(super) fn allreduce(evidence: &Evidence<'_>) -> Vec<Finding> {
    match &evidence.tried.torch {
        None => Vec::new(),
        Some(Ok(said)) => vec![Finding::ok(said.clone())],
        Some(Err(why)) => vec![Finding::new(
            Kind::Bad,
            why.clone(),
            text!(
                "run the same ranks by hand with NCCL_DEBUG=INFO: ranklaunch run --nnodes 1 -- SCRIPT",
                "请设置 NCCL_DEBUG=INFO 后手动运行：ranklaunch run --nnodes 1 -- SCRIPT"
            ),
        )],
    }
}
