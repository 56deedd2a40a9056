//! A set of CPUs in the kernel's notation: `0-31,64-95`.
//!
//! Shared by the rooms that read, choose and apply CPU lists.

use std::collections::BTreeSet;
use std::fmt;

use rustix::thread::CpuSet;
use serde::{Deserialize, Serialize};

use text::ranges::{ranges, spelled};

/// CPU numbers below [`CpuSet::MAX_CPU`] (1024), the limit of an affinity call. Higher ones are
/// dropped, so that a list is bounded.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct CpuList(BTreeSet<u32>);

impl CpuList {
    /// Parses a kernel list; parts that are no numbers are skipped.
    pub fn read(text: &str) -> CpuList {
        let highest = u32::try_from(CpuSet::MAX_CPU - 1).unwrap_or(u32::MAX);
        let ranges = text.trim().split(',').filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
            Some(first..=last.min(highest))
        });
        CpuList(ranges.flatten().collect())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The CPUs that are in both.
    pub fn and(&self, other: &CpuList) -> CpuList {
        CpuList(self.0.intersection(&other.0).copied().collect())
    }

    /// The CPUs that are in either.
    pub fn or(&self, other: &CpuList) -> CpuList {
        CpuList(self.0.union(&other.0).copied().collect())
    }

    /// The form for affinity calls.
    pub fn as_set(&self) -> CpuSet {
        let mut set = CpuSet::new();
        for cpu in self.0.iter().filter_map(|cpu| usize::try_from(*cpu).ok()) {
            // `read` accepts no number on which this call would panic.
            set.set(cpu);
        }
        set
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = ranges(self.0.iter().copied()).into_iter().map(|range| spelled(range, '-'));
        out.write_str(&words.collect::<Vec<_>>().join(","))
    }
}

impl From<String> for CpuList {
    fn from(text: String) -> CpuList {
        CpuList::read(&text)
    }
}

impl From<CpuList> for String {
    fn from(list: CpuList) -> String {
        list.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_have_the_kernels_form() {
        for (text, written, count) in [
            ("0-3,8,10-11\n", "0-3,8,10-11", 7),
            ("3,2,1", "1-3", 3),
            ("", "", 0),
            ("5-2,x,-1,7", "7", 1),
            ("0-4294967295", "0-1023", 1024),
            ("1022-1025,4000", "1022-1023", 2),
        ] {
            let list = CpuList::read(text);
            assert_eq!((list.to_string().as_str(), list.len()), (written, count), "{text}");
            assert_eq!(u32::try_from(count), Ok(list.as_set().count()));
            assert_eq!(CpuList::from(String::from(list.clone())), list);
        }
        let (low, high) = (CpuList::read("0-3"), CpuList::read("2-5"));
        assert_eq!(low.and(&high).to_string(), "2-3");
        assert_eq!(low.or(&high).to_string(), "0-5");
    }
}
