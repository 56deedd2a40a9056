//! Whether ranks that entered the same number of the same group called the same.
//!
//! Shapes need not be equal, only the numbers of elements: a reshaped tensor is the same to every
//! backend. What `torch.distributed.flight_recorder` compares beyond that (states, dtypes of inputs
//! with those of outputs) tells no rank from another.

use std::collections::BTreeMap;

use super::dump::{Entry, Tensors};
use super::groups::Step;
use super::op::Sizes;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Differs {
    /// Another collective.
    Operation,
    /// Other numbers of elements, or other types.
    Shape,
}

#[derive(Debug)]
pub(super) struct Mismatch<'d> {
    pub(super) differs: Differs,
    /// Who is not as most are. All, where as many did one as the other. Empty where the sizes of
    /// all together do not fit, which no one rank shows.
    pub(super) odd: Vec<u32>,
    /// As most did.
    pub(super) expected: &'d Entry,
    /// No side has more ranks than another.
    pub(super) is_tie: bool,
}

/// What the ranks entered in one collective, by rank. `all`: nobody else takes part.
pub(super) fn mismatch<'d>(entered: &[(u32, &Step<'d>)], all: bool) -> Option<Mismatch<'d>> {
    let entered: Vec<(u32, &'d Entry, String)> = entered
        .iter()
        .filter_map(|(rank, step)| Some((*rank, step.first()?, operation(step))))
        .collect();
    let named = |(_, entry, operation): &(u32, &Entry, String)| {
        (!entry.op.is_unnamed()).then(|| operation.clone())
    };
    odd(&entered, Differs::Operation, named).or_else(|| {
        let first = entered.first()?.1;
        // Names of the same collective hold its tensors in forms of their own.
        if !entered.iter().all(|(_, entry, _)| entry.op.name == first.op.name) {
            return None;
        }
        if first.op.sizes() == Sizes::Sums {
            return sums(&entered).filter(|_| all);
        }
        odd(&entered, Differs::Shape, |(_, entry, _)| counts(entry))
            .or_else(|| odd(&entered, Differs::Shape, |(_, entry, _)| dtypes(entry)))
    })
}

/// A send and its receive.
pub(super) fn pair_mismatch<'d>(entered: &[(u32, &Step<'d>)]) -> Option<Mismatch<'d>> {
    let [(one, first), (other, second)] = entered else { return None };
    let (first, second) = (first.first()?, second.first()?);
    let size = |entry: &Entry| {
        if entry.op.is_send() { entry.inputs.total() } else { entry.outputs.total() }
    };
    (size(first) != size(second)).then(|| Mismatch {
        differs: Differs::Shape,
        odd: vec![*one, *other],
        expected: first,
        is_tie: true,
    })
}

/// Who is unlike the most, in what `of` gives of each; None: it says nothing.
fn odd<'d, K: Ord>(
    entered: &[(u32, &'d Entry, String)],
    differs: Differs,
    of: impl Fn(&(u32, &'d Entry, String)) -> Option<K>,
) -> Option<Mismatch<'d>> {
    let mut classes: BTreeMap<K, Vec<(u32, &'d Entry)>> = BTreeMap::new();
    for one in entered {
        if let Some(class) = of(one) {
            classes.entry(class).or_default().push((one.0, one.1));
        }
    }
    if classes.len() < 2 {
        return None;
    }
    let most = classes.values().map(Vec::len).max()?;
    let mut largest = classes.values().filter(|class| class.len() == most);
    let &(_, expected) = largest.next()?.first()?;
    let is_tie = largest.next().is_some();
    let odd = classes.values().filter(|class| is_tie || class.len() < most);
    let mut odd: Vec<u32> = odd.flatten().map(|(rank, _)| *rank).collect();
    odd.sort_unstable();
    Some(Mismatch { differs, odd, expected, is_tie })
}

/// The same text for the same collective.
fn operation(step: &Step<'_>) -> String {
    let names: Vec<&str> = step.entries.iter().map(|entry| entry.op.family()).collect();
    names.join("+")
}

fn counts(entry: &Entry) -> Option<(Vec<i64>, Vec<i64>)> {
    let Entry { inputs, outputs, .. } = entry;
    match entry.op.sizes() {
        Sizes::Free | Sizes::Sums => None,
        Sizes::Same => Some((inputs.counts(), outputs.counts())),
        Sizes::Inputs => Some((inputs.counts(), Vec::new())),
        Sizes::Outputs => Some((Vec::new(), outputs.counts())),
    }
}

/// Types of what each rank must have. A tensor without elements may have any.
fn dtypes(entry: &Entry) -> Option<Vec<&str>> {
    let of = |tensors: &'_ Tensors| -> bool { tensors.total() > 0 && !tensors.dtypes.is_empty() };
    let side = match entry.op.sizes() {
        Sizes::Same | Sizes::Inputs => &entry.inputs,
        Sizes::Outputs => &entry.outputs,
        Sizes::Free | Sizes::Sums => return None,
    };
    of(side).then(|| side.dtypes.iter().map(|dtype| &**dtype).collect())
}

/// All inputs of an all_to_all together are as large as all outputs.
fn sums<'d>(entered: &[(u32, &'d Entry, String)]) -> Option<Mismatch<'d>> {
    let (mut inputs, mut outputs) = (0_i64, 0_i64);
    for (_, entry, _) in entered {
        // Before version 2.4 no sizes were recorded.
        if entry.inputs.sizes.is_empty() || entry.outputs.sizes.is_empty() {
            return None;
        }
        inputs = inputs.saturating_add(entry.inputs.total());
        outputs = outputs.saturating_add(entry.outputs.total());
    }
    let &(_, expected, _) = entered.first()?;
    (inputs != outputs).then_some(Mismatch {
        differs: Differs::Shape,
        odd: Vec::new(),
        expected,
        is_tie: false,
    })
}
