//! Groups ascending numbers into ranges: 1, 2, 3, 7 are 1–3 and 7.
//!
//! Shared by the modules that print numbers of CPUs, nodes and ranks.

/// First and last of each run of consecutive numbers, in the order of `numbers`.
pub fn ranges(numbers: impl IntoIterator<Item = u32>) -> Vec<(u32, u32)> {
    let mut found: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match found.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => found.push((number, number)),
        }
    }
    found
}

/// `3`, or `3-7` with `dash` between.
pub fn spelled((first, last): (u32, u32), dash: char) -> String {
    if first == last { first.to_string() } else { format!("{first}{dash}{last}") }
}

/// `0-2, 4`: ascending numbers as ranges with `dash` between first and last.
pub fn listed(numbers: impl IntoIterator<Item = u32>, dash: char) -> String {
    let words = ranges(numbers).into_iter().map(|range| spelled(range, dash));
    words.collect::<Vec<_>>().join(", ")
}
