//! Whether checkpoints that lack what those before them have are torn, or are all that their program saves by now.
//!
//! Takes what each of a series lacks, in their order. A save that ended early and a program that saves fewer files look the
//! same, and preemption may end several saves in a row at the same place. So one more is needed than there were before, or
//! three: a start from the one before costs less than a start from half a state.

use crate::lack::Lack;
use crate::names;

/// Saves in a row that prove a change, however many there were before.
const FOR_GOOD: usize = 3;
/// Steps between two saves, at least, if they are to be seen to be regular. A program may look every ten steps for the
/// signal that ends it.
const REGULAR: u64 = 20;

/// How a checkpoint stands to those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Shape {
    /// It lacks nothing.
    #[default]
    Whole,
    /// From here on there are fewer files.
    Fewer,
    /// More files are kept of some steps only, and it is of none of these: a milestone every 1000 steps, and the last ones of
    /// every 100.
    Between,
    Torn,
}

/// What the checkpoints of a series lack, up to one of them.
#[derive(Default)]
pub(crate) struct Shapes {
    /// Steps of those that lack nothing, since the last change.
    whole: Vec<Option<u64>>,
    /// Steps of the others, and what they lack; empty: something that is no sign of a change.
    torn: Vec<(Option<u64>, String)>,
    /// The number of these before the last whole one.
    before: usize,
    /// One has come.
    has_begun: bool,
}

impl Shapes {
    /// How the next one stands, of this step and with these lacks. The first one has only the next as its measure: with less
    /// it is being deleted, and tells nothing of the others.
    pub(crate) fn of(&mut self, step: Option<u64>, lacks: &[Lack]) -> Shape {
        if !std::mem::replace(&mut self.has_begun, true) && !lacks.is_empty() {
            return Shape::Torn;
        }
        if lacks.is_empty() {
            self.whole.push(step);
            self.before = self.torn.len();
            return Shape::Whole;
        }
        let shape = shape(lacks);
        self.torn.push((step, shape.clone()));
        let is_same = |(_, other): &&(Option<u64>, String)| !shape.is_empty() && *other == shape;
        let in_row = self.torn.iter().skip(self.before).rev().take_while(is_same);
        let in_row: Vec<Option<u64>> = in_row.map(|(step, _)| *step).collect();
        if in_row.len() > self.whole.len().min(FOR_GOOD - 1) {
            *self = Shapes { whole: in_row, has_begun: true, ..Shapes::default() };
            return Shape::Fewer;
        }
        let between: Option<Vec<u64>> =
            self.torn.iter().filter(is_same).map(|(step, _)| *step).collect();
        let whole: Option<Vec<u64>> = self.whole.iter().copied().collect();
        let are_between = |(whole, between): (Vec<u64>, Vec<u64>)| are_between(&whole, &between);
        match whole.zip(between).is_some_and(are_between) {
            true => Shape::Between,
            false => Shape::Torn,
        }
    }
}

/// The files that are missing, as they are named in all steps; empty if a file is cut off, which is never meant.
fn shape(lacks: &[Lack]) -> String {
    let mut shape = String::new();
    for lack in lacks {
        match lack {
            Lack::Missing(file) => shape.push_str(&names::role(file)),
            Lack::Parts(parts) => parts.iter().for_each(|part| shape.push_str(&part.to_string())),
            _ => return String::new(),
        }
        shape.push('/');
    }
    shape
}

/// Whether all of the first steps are multiples of a number and none of the second ones is, which are regular themselves:
/// the last two of them follow each other. A save that a signal asks for comes at any step. Where every second one has more,
/// every second save may have ended early: that takes three of them.
fn are_between(whole: &[u64], between: &[u64]) -> bool {
    let [.., before, last] = between else { return false };
    let (long, short) = (common(whole), common(between));
    let follows = |step: u64| match step.checked_add(short) {
        Some(next) if next.is_multiple_of(long) => next.checked_add(short),
        next => next,
    };
    let needed = if long / 2 > short { 2 } else { FOR_GOOD };
    whole.len().min(between.len()) >= needed
        && long.is_multiple_of(short)
        && short >= REGULAR.max(long / REGULAR)
        && !between.iter().any(|step| step.is_multiple_of(long))
        && follows(*before) == Some(*last)
}

/// The largest number of which all are multiples; 0 if all are 0.
fn common(steps: &[u64]) -> u64 {
    steps.iter().fold(0, |mut one, other| {
        let mut rest = *other;
        while let Some(more) = one.checked_rem(rest) {
            (one, rest) = (rest, more);
        }
        one
    })
}
