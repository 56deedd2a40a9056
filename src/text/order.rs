//! Stable sorting, and maps and sets in the order of their keys, in little code.
//!
//! Each `sort_by` of the standard library brings some 4 kB of machine code for its own closure. Here the places are
//! sorted, by one function for all, and the items then moved. It is slower, which no list here is long enough to show.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Sorts like the methods of the standard library of nearly the same names; equal items keep their order.
pub trait Ordered<T> {
    fn order_by(&mut self, order: impl FnMut(&T, &T) -> Ordering);

    fn order_by_key<K: Ord>(&mut self, mut key: impl FnMut(&T) -> K) {
        self.order_by(|one, other| key(one).cmp(&key(other)));
    }
}

impl<T> Ordered<T> for [T] {
    fn order_by(&mut self, mut order: impl FnMut(&T, &T) -> Ordering) {
        let mut places: Vec<usize> = (0..self.len()).collect();
        sort(&mut places, &mut |one, other| match (self.get(one), self.get(other)) {
            (Some(one), Some(other)) => order(one, other),
            _ => Ordering::Equal,
        });
        for start in 0..places.len() {
            let mut at = start;
            while let Some(place) = places.get_mut(at) {
                let from = std::mem::replace(place, at);
                if from == start {
                    break;
                }
                self.swap(at, from);
                at = from;
            }
        }
    }
}

/// The only instance of the sorting itself.
#[inline(never)]
fn sort(places: &mut [usize], order: &mut dyn FnMut(usize, usize) -> Ordering) {
    places.sort_by(|one, other| order(*one, *other));
}

/// Collects as `collect` does. That sorts the items first, with 4 kB of machine code for each type; here each is inserted.
pub trait InOrder: Iterator + Sized {
    /// Of equal keys the last one counts.
    fn in_map<K: Ord, V>(self) -> BTreeMap<K, V>
    where
        Self: Iterator<Item = (K, V)>,
    {
        let mut map = BTreeMap::new();
        for (key, value) in self {
            map.insert(key, value);
        }
        map
    }

    fn in_set(self) -> BTreeSet<Self::Item>
    where
        Self::Item: Ord,
    {
        let mut set = BTreeSet::new();
        for item in self {
            set.insert(item);
        }
        set
    }
}

impl<I: Iterator> InOrder for I {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn items_come_out_as_with_a_stable_sort(keys in prop::collection::vec(0_u8..5, 0..40)) {
            let mut items: Vec<(u8, usize)> = keys.into_iter().zip(0..).collect();
            let mut expected = items.clone();
            expected.sort_by_key(|(key, _)| *key);
            items.order_by_key(|(key, _)| *key);
            prop_assert_eq!(&items, &expected);
            prop_assert_eq!(items.iter().copied().in_map(), items.iter().copied().collect());
            prop_assert_eq!(items.iter().copied().in_set(), items.into_iter().collect());
        }
    }
}
