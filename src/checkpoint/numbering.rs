//! How a program numbers its files: what only several names tell together.
//!
//! Takes the names in a folder; gives the steps of those whose numbers have no word, and says whether each epoch counts its
//! steps anew.

use std::collections::BTreeMap;

use crate::progress::{Found, Number, may_be_score, numbers, told};

/// The numbers without a word that are the steps of names with several: of three names at least that differ in one number
/// only, it is that one (`vit_16_224_1000.pt`).
pub(crate) fn varying<'n>(names: &'n [String]) -> BTreeMap<&'n str, Number> {
    let is_unknown = |name: &&String| told(name).place().is_none();
    let mut series: BTreeMap<String, Vec<(&'n str, Vec<Found<'n>>)>> = BTreeMap::new();
    for name in names.iter().filter(is_unknown) {
        let numbers = numbers(name);
        if may_be_score(name, &numbers) {
            continue;
        }
        let words: Vec<&str> = numbers.iter().map(|one| one.before).collect();
        series.entry(words.join("*")).or_default().push((name, numbers));
    }
    let mut steps = BTreeMap::new();
    for all in series.into_values().filter(|all| all.len() > 2) {
        let Some((_, first)) = all.first() else { continue };
        let varies = |at: &usize| {
            let digits = |numbers: &[Found<'_>]| numbers.get(*at).map(|one| one.digits.to_owned());
            all.iter().any(|(_, numbers)| digits(numbers) != digits(first))
        };
        let mut at = (0..first.len()).filter(varies);
        let (Some(at), None) = (at.next(), at.next()) else { continue };
        for (name, numbers) in &all {
            let step = numbers.get(at).filter(|one| one.may_be_step() && one.is_apart());
            steps.extend(step.and_then(Found::value).map(|step| (*name, step)));
        }
    }
    steps
}

/// Whether each epoch counts its steps anew: a later one has a step that is no larger than one of an earlier one.
pub(crate) fn restarts(all: &mut dyn Iterator<Item = (Number, Number)>) -> bool {
    let mut epochs: BTreeMap<Number, (Number, Number)> = BTreeMap::new();
    for (epoch, step) in all {
        let (first, last) = epochs.entry(epoch).or_insert((step, step));
        (*first, *last) = (step.min(*first), step.max(*last));
    }
    let is_back = |(before, next): (&(Number, Number), &(Number, Number))| next.0 <= before.1;
    epochs.values().zip(epochs.values().skip(1)).any(is_back)
}
