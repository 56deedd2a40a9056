//! Compares the entries of ranks with the same number in the same group.
//!
//! Shapes need not be equal, only the numbers of elements: a reshaped tensor is the same to every backend. Further
//! comparisons of `torch.distributed.flight_recorder` (states, dtypes of inputs with dtypes of outputs) distinguish
//! no rank from another.

use std::collections::BTreeMap;

use super::dump::{Entry, Tensors};
use super::groups::Step;
use super::op::{Op, Sizes};
use text::order::{InOrder, Ordered};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Differs {
    /// Another collective.
    Operation,
    /// Other numbers of elements, or other types.
    Shape,
}

/// Ranks with the same entry.
#[derive(Debug)]
pub(super) struct Side<'d> {
    pub(super) ranks: Vec<u32>,
    pub(super) entry: &'d Entry,
    /// `all_reduce [4] Float`, different from the text of each other side.
    pub(super) shown: String,
}

#[derive(Debug)]
pub(super) struct Mismatch<'d> {
    pub(super) differs: Differs,
    /// The side with the most ranks comes first. There is only one side if the sizes of all ranks together do not
    /// fit, which no single rank shows.
    pub(super) sides: Vec<Side<'d>>,
}

impl Mismatch<'_> {
    /// Whether no side has more ranks than another, so that no side is odd.
    pub(super) fn is_tie(&self) -> bool {
        matches!(self.sides.as_slice(), [one, other, ..] if one.ranks.len() == other.ranks.len())
    }
}

/// A rank and its entry.
struct Came<'d> {
    rank: u32,
    entry: &'d Entry,
    /// The same text for the same collective.
    operation: String,
    /// The name that the program called.
    name: String,
}

/// The mismatch in one collective. `entered`: entries by rank. `all`: no other rank takes part.
pub(super) fn mismatch<'d>(entered: &[(u32, &Step<'d>)], all: bool) -> Option<Mismatch<'d>> {
    let joined = |step: &Step<'d>, of: fn(&'d Op) -> &'d str| {
        step.entries.iter().map(|entry| of(&entry.op)).collect::<Vec<_>>().join("+")
    };
    let came = |(rank, step): &(u32, &Step<'d>)| {
        let (operation, name) = (joined(step, Op::family), joined(step, |op| &op.name));
        Some(Came { rank: *rank, entry: step.first()?, operation, name })
    };
    let entered: Vec<Came<'d>> = entered.iter().filter_map(came).collect();
    let named = |one: &Came<'d>| (!one.entry.op.is_unnamed()).then(|| one.operation.clone());
    odd(&entered, Differs::Operation, named).or_else(|| {
        let first = entered.first()?.entry;
        // Functions for the same collective record its tensors in forms of their own.
        if !entered.iter().all(|one| one.entry.op.name == first.op.name) {
            return None;
        }
        if first.op.sizes() == Sizes::Sums {
            return sums(&entered).filter(|_| all);
        }
        odd(&entered, Differs::Shape, |one| counts(one.entry))
            .or_else(|| odd(&entered, Differs::Shape, |one| dtypes(one.entry)))
    })
}

/// A send and its receive.
pub(super) fn pair_mismatch<'d>(entered: &[(u32, &Step<'d>)]) -> Option<Mismatch<'d>> {
    let [(one, first), (other, second)] = entered else { return None };
    let (first, second) = (first.first()?, second.first()?);
    let size = |entry: &Entry| {
        if entry.op.is_send() { entry.inputs.total() } else { entry.outputs.total() }
    };
    if size(first) == size(second) {
        return None;
    }
    let sides = [(vec![*one], first), (vec![*other], second)];
    let named = sides.map(|(ranks, entry)| (ranks, entry, entry.op.name.clone()));
    Some(Mismatch { differs: Differs::Shape, sides: sides_of(named.into()) })
}

/// The sides of ranks with equal values of `of`; ranks without a value are left out. None if fewer than two values
/// occur.
fn odd<'d, K: Ord>(
    entered: &[Came<'d>],
    differs: Differs,
    of: impl Fn(&Came<'d>) -> Option<K>,
) -> Option<Mismatch<'d>> {
    let mut classes: BTreeMap<K, Class<'d>> = BTreeMap::new();
    for one in entered {
        let Some(class) = of(one) else { continue };
        let class = classes.entry(class);
        class.or_insert_with(|| (Vec::new(), one.entry, one.name.clone())).0.push(one.rank);
    }
    if classes.len() < 2 {
        return None;
    }
    Some(Mismatch { differs, sides: sides_of(classes.into_values().collect()) })
}

/// Ranks, the entry of one of these ranks, and its name.
type Class<'d> = (Vec<u32>, &'d Entry, String);

/// Shows as much of the entries as distinguishes the sides.
fn sides_of(mut classes: Vec<Class<'_>>) -> Vec<Side<'_>> {
    classes.order_by_key(|(ranks, ..)| (std::cmp::Reverse(ranks.len()), ranks.first().copied()));
    let shown_by = |most: usize, both: bool| -> Vec<String> {
        classes.iter().map(|(_, entry, name)| shown(entry, name, most, both)).collect()
    };
    let apart = |texts: &Vec<String>| texts.iter().in_set().len() == texts.len();
    let texts = Some(shown_by(FEW, false))
        .filter(apart)
        .or_else(|| Some(shown_by(FEW, true)).filter(apart))
        .unwrap_or_else(|| shown_by(usize::MAX, true));
    let side = |((ranks, entry, _), shown)| Side { ranks, entry, shown };
    classes.into_iter().zip(texts).map(side).collect()
}

/// Number of tensors and types that are shown if they distinguish the ranks.
const FEW: usize = 4;

/// `all_reduce [4] Float`; with `both`, `all_gather [4] -> [8] Float -> Float`.
fn shown(entry: &Entry, name: &str, most: usize, both: bool) -> String {
    fn listed<T>(all: &[T], most: usize, word: impl Fn(&T) -> String) -> String {
        let mut words: Vec<String> = all.iter().take(most).map(word).collect();
        if all.len() > most {
            words.push("…".to_owned());
        }
        words.join(" ")
    }
    let sizes = |of: &Tensors| listed(&of.sizes, most, |size| format!("{size:?}"));
    let dtypes = |of: &Tensors| {
        let is_one = of.dtypes.iter().all(|dtype| of.dtypes.first() == Some(dtype));
        let several = if is_one && !both { of.dtypes.len().min(1) } else { of.dtypes.len() };
        listed(of.dtypes.get(..several).unwrap_or_default(), most, |dtype| dtype.to_string())
    };
    let Entry { inputs, outputs, .. } = entry;
    let words = if both {
        [sizes(inputs), "->".into(), sizes(outputs), dtypes(inputs), "->".into(), dtypes(outputs)]
            .into()
    } else {
        let of = if inputs.sizes.is_empty() { outputs } else { inputs };
        vec![sizes(of), dtypes(of)]
    };
    let words = std::iter::once(name.to_owned()).chain(words);
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
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

/// Types that each rank must have. A tensor without elements may have any type.
fn dtypes(entry: &Entry) -> Option<Vec<&str>> {
    let of = |tensors: &'_ Tensors| -> bool { tensors.total() > 0 && !tensors.dtypes.is_empty() };
    let side = match entry.op.sizes() {
        Sizes::Same | Sizes::Inputs => &entry.inputs,
        Sizes::Outputs => &entry.outputs,
        Sizes::Free | Sizes::Sums => return None,
    };
    of(side).then(|| side.dtypes.iter().map(|dtype| &**dtype).collect())
}

/// Checks that all inputs of an all_to_all together are as large as all outputs.
fn sums<'d>(entered: &[Came<'d>]) -> Option<Mismatch<'d>> {
    let (mut inputs, mut outputs) = (0_i64, 0_i64);
    for Came { entry, .. } in entered {
        // Before version 2.4 no sizes were recorded.
        if entry.inputs.sizes.is_empty() || entry.outputs.sizes.is_empty() {
            return None;
        }
        inputs = inputs.saturating_add(entry.inputs.total());
        outputs = outputs.saturating_add(entry.outputs.total());
    }
    let first = entered.first()?.entry;
    let all = entered.iter().map(|one| one.rank).collect();
    let one = vec![(all, first, first.op.name.clone())];
    (inputs != outputs).then(|| Mismatch { differs: Differs::Shape, sides: sides_of(one) })
}
