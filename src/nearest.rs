//! The known name that a mistyped one was probably meant to be.

/// The candidate that needs the fewest changed letters, if they are few enough
/// for a typing mistake: two at most, and one in three; `-`, `_`, `.` and case count as equal.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Nobody mistypes a name this long, and the comparison is quadratic.
    if word.len() > 100 {
        return None;
    }
    let word = folded(word);
    candidates
        .into_iter()
        .map(|candidate| (distance(&word, &folded(candidate)), candidate))
        .filter(|(changes, candidate)| {
            *changes <= MOST && *changes * 3 <= candidate.len().max(word.len())
        })
        .min_by_key(|(changes, _)| *changes)
        .map(|(_, candidate)| candidate)
}

/// Above this another word was meant.
const MOST: usize = 2;

/// Whether two different names are one typing mistake apart.
pub fn is_slip(word: &str, name: &str) -> bool {
    word != name && word.len() <= 100 && distance(&folded(word), &folded(name)) <= 1
}

fn folded(word: &str) -> Vec<char> {
    word.chars()
        .map(|c| if matches!(c, '-' | '.') { '_' } else { c.to_ascii_lowercase() })
        .collect()
}

/// Letters to insert, remove, replace or swap with the next (optimal string alignment).
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    let mut last = None;
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        let mut left = i + 1;
        for (j, (y, pair)) in b.iter().zip(above.windows(2)).enumerate() {
            let &[diagonal, up] = pair else { continue };
            let mut least = (diagonal + usize::from(x != y)).min(up + 1).min(left + 1);
            let swapped = j.checked_sub(1).and_then(|k| Some((b.get(k)?, before.get(k)?)));
            if let Some((previous, cost)) = swapped
                && previous == x
                && last == Some(y)
            {
                least = least.min(cost + 1);
            }
            row.push(least);
            left = least;
        }
        before = std::mem::replace(&mut above, row);
        last = Some(x);
    }
    above.last().copied().unwrap_or(a.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_mistake_finds_its_name_and_another_word_does_not() {
        let names = ["nnodes", "node_rank", "engine", "shm.size"];
        for (word, expected) in [
            ("nnode", Some("nnodes")),
            ("node-rank", Some("node_rank")),
            ("NODERANK", Some("node_rank")),
            ("enigne", Some("engine")),
            ("shm_size", Some("shm.size")),
            ("prompt", None),
            // Three letters of a long name.
            ("noderunning", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, names), expected, "{word}");
        }
        assert_eq!(distance(&folded("abc"), &folded("acb")), 1);
        assert_eq!(distance(&folded("kitten"), &folded("sitting")), 3);
    }
}
