//! Endings because the user's own launcher failed (engine `command`).

use super::rank::rank_end;
use super::types::Ending;
use linux::sys::signal_name;
use text::rank::GlobalRank;
use text::text;
use verdict::outcome::{End, Outcome};

/// The ending if the command on `node` failed; None if its shim was killed.
pub(super) fn failed(outcome: &Outcome, node: GlobalRank, end: Option<End>) -> Ending {
    let ending = rank_end(outcome, node, end);
    if outcome.not_executed.is_some() {
        return Ending { rank: None, ..ending };
    }
    let text = match end {
        Some(End::Code(code)) => text!(
            "the command on node {node} ended with code {code}",
            "节点 {node} 上的命令退出，退出码 {code}"
        ),
        Some(End::Signal(signal)) => {
            let name = signal_name(signal);
            text!(
                "the command on node {node} was killed by {name}",
                "节点 {node} 上的命令被 {name} 杀死"
            )
        }
        None => text!(
            "the shim of the command on node {node} was killed, so the command was ended with it",
            "节点 {node} 上命令的 shim 被杀死，该命令已随之终止"
        ),
    };
    let hint = match end {
        Some(End::Code(_)) => text!(
            "a rank that it started may have failed: read the last lines of its output",
            "可能是它启动的某个 rank 失败：请查看其最后几行输出"
        ),
        _ => ending.hint.clone(),
    };
    Ending { rank: None, text, hint, ..ending }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::rank;
    use super::*;
    use crate::ending::ending;
    use verdict::outcome::{Planned, RankUnit, StopReason};

    #[test]
    fn node_command_is_not_called_a_rank() {
        let of = |end| Outcome {
            ranks: vec![rank(1, end)],
            stop: Some(StopReason::RankFailed(GlobalRank(1))),
            planned: Planned { what: RankUnit::Command, local: 1, ..Planned::default() },
            ..Outcome::default()
        };
        for (end, code, words) in [
            (Some(End::Code(7)), 7, "the command on node 1 ended with code 7"),
            (Some(End::Signal(9)), 137, "the command on node 1 was killed by SIGKILL"),
            (None, 137, "the shim of the command on node 1 was killed"),
        ] {
            let ending = ending(&of(end));
            assert_eq!((ending.code, ending.rank), (code, None));
            assert!(ending.text.en.starts_with(words), "{ending:?}");
        }
    }
}
