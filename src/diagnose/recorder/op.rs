//! The operation of an entry, from its `profiling_name`: `nccl:all_reduce`, `gloo:send 0->1`.
//!
//! The names are those that torch's own reader knows
//! (`torch/distributed/flight_recorder/components/types.py` of 2.15).

/// The other side of a send or a receive, as ranks of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pair {
    /// None: a receive from any rank.
    pub from: Option<u32>,
    pub to: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Op {
    /// `nccl`, `gloo`; empty if the name has none.
    pub backend: String,
    /// `all_reduce`, without the other side of a send.
    pub name: String,
    pub pair: Option<Pair>,
}

/// Sizes on which ranks must agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sizes {
    /// None that a record shows.
    Free,
    /// Inputs and outputs are as large on each rank.
    Same,
    /// Only inputs: the outputs are on one rank.
    Inputs,
    /// Only outputs: the inputs are on one rank.
    Outputs,
    /// All inputs together are as large as all outputs.
    Sums,
}

/// A row of [`TABLE`].
#[derive(Debug, Clone, Copy)]
struct Known {
    names: &'static [&'static str],
    /// The collective ends on no rank before all have entered it. So a rank that has ended it
    /// proves that all came.
    waits_for_all: bool,
    sizes: Sizes,
}

/// A line holds the names of one collective: ranks that call different functions of one line call
/// the same collective.
const TABLE: &[Known] = &[
    known(&["all_reduce", "allreduce_coalesced"], true, Sizes::Same),
    known(&["barrier", "all_reduce_barrier"], true, Sizes::Free),
    known(
        &[
            "all_gather",
            "_all_gather_base",
            "all_gather_single",
            "all_gather_into_tensor_coalesced",
            "allgather_coalesced",
            "ALLGATHER_coalesced",
        ],
        true,
        Sizes::Same,
    ),
    known(
        &[
            "reduce_scatter",
            "_reduce_scatter_base",
            "reduce_scatter_single",
            "reduce_scatter_tensor_coalesced",
            "REDUCE_SCATTER_coalesced",
        ],
        true,
        Sizes::Same,
    ),
    known(&["all_gather_v", "reduce_scatter_v"], true, Sizes::Free),
    known(&["all_to_all", "all_to_all_single", "all_to_all_v_single"], true, Sizes::Sums),
    known(&["broadcast", "_broadcast_oop"], false, Sizes::Same),
    known(&["reduce", "_reduce_oop"], false, Sizes::Same),
    known(&["gather"], false, Sizes::Inputs),
    known(&["scatter"], false, Sizes::Outputs),
];

const fn known(names: &'static [&'static str], waits_for_all: bool, sizes: Sizes) -> Known {
    Known { names, waits_for_all, sizes }
}

/// Backends whose watchdog also retires entries that failed or timed out, so that only `completed`
/// means done. Other backends retire done entries and never say `completed` (gloo), or say
/// `completed` for all done entries (the hook of 2.15).
const RETIRE_WHAT_FAILED: &[&str] = &["nccl", "rccl", "xccl", "hccl", "mccl"];

/// Name that `src/supervise/inject/calls.py` writes for an asynchronous collective of an older
/// torch.
const UNNAMED: &str = "collective";

impl Op {
    pub(super) fn parse(profiling_name: &str) -> Op {
        // Split from the right: a backend of the user's may have any name.
        let (backend, rest) = profiling_name.rsplit_once(':').unwrap_or(("", profiling_name));
        let (name, sides) = rest.split_once(' ').unwrap_or((rest, ""));
        let pair = match name {
            "send" => sides.split_once("->"),
            "recv" => sides.split_once("<-").map(|(to, from)| (from, to)),
            _ => None,
        };
        let pair = pair.and_then(|(from, to)| {
            let from = if from == "?" { None } else { Some(from.parse().ok()?) };
            Some(Pair { from, to: to.parse().ok()? })
        });
        Op { backend: backend.to_owned(), name: name.to_owned(), pair }
    }

    pub(super) fn is_p2p(&self) -> bool {
        matches!(self.name.as_str(), "send" | "recv")
    }

    /// Whether only the fact is known that some collective was entered.
    pub(super) fn is_unnamed(&self) -> bool {
        self.name == UNNAMED
    }

    pub(super) fn is_send(&self) -> bool {
        self.name == "send"
    }

    pub(super) fn retires_what_failed(&self) -> bool {
        RETIRE_WHAT_FAILED.contains(&self.backend.as_str())
    }

    fn known(&self) -> Option<&'static Known> {
        TABLE.iter().find(|row| row.names.contains(&self.name.as_str()))
    }

    pub(super) fn waits_for_all(&self) -> bool {
        self.known().is_some_and(|row| row.waits_for_all)
    }

    pub(super) fn sizes(&self) -> Sizes {
        self.known().map_or(Sizes::Free, |row| row.sizes)
    }

    /// One name for all functions that call the same collective.
    pub(super) fn family(&self) -> &str {
        self.known().and_then(|row| row.names.first()).copied().unwrap_or(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_give_backend_operation_and_both_sides() {
        let op = |backend: &str, name: &str, pair| Op {
            backend: backend.to_owned(),
            name: name.to_owned(),
            pair,
        };
        let pair = |from, to| Some(Pair { from, to });
        for (text, expected) in [
            ("gloo:all_reduce", op("gloo", "all_reduce", None)),
            ("nccl:send 1->2", op("nccl", "send", pair(Some(1), 2))),
            ("nccl:recv 3<-0", op("nccl", "recv", pair(Some(0), 3))),
            ("gloo:recv 3<-?", op("gloo", "recv", pair(None, 3))),
            ("nccl:recv", op("nccl", "recv", None)),
            ("nccl:send 1->x", op("nccl", "send", None)),
            ("my:own:barrier", op("my:own", "barrier", None)),
            ("barrier", op("", "barrier", None)),
            ("", op("", "", None)),
        ] {
            assert_eq!(Op::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn functions_of_one_collective_share_a_family() {
        let like = |one: &str, other: &str| Op::parse(one).family() == Op::parse(other).family();
        assert!(like("nccl:all_gather", "nccl:_all_gather_base"));
        assert!(like("x:unheard_of", "x:unheard_of"));
        assert!(!like("nccl:all_gather", "nccl:all_reduce"));
        assert!(!like("x:unheard_of", "x:all_reduce"));
    }
}
