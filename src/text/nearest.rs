//! Finds the known name that a mistyped one probably means.

use strsim::osa_distance;

/// The candidate with the fewest changed letters, if they are at most two and at most one in
/// three. Ignores case and differences among `-`, `_` and `.`.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Longer names are no typing mistakes, and the comparison is quadratic.
    if word.len() > 100 {
        return None;
    }
    let word = folded(word);
    candidates
        .into_iter()
        .map(|candidate| (osa_distance(&word, &folded(candidate)), candidate))
        .filter(|(changes, candidate)| {
            *changes <= MOST && *changes * 3 <= candidate.len().max(word.len())
        })
        .min_by_key(|(changes, _)| *changes)
        .map(|(_, candidate)| candidate)
}

/// With more changes, another word was meant.
const MOST: usize = 2;

/// Whether two different names are one typing mistake apart.
pub fn is_slip(word: &str, name: &str) -> bool {
    word != name && word.len() <= 100 && osa_distance(&folded(word), &folded(name)) <= 1
}

fn folded(word: &str) -> String {
    word.chars()
        .map(|c| if matches!(c, '-' | '.') { '_' } else { c.to_ascii_lowercase() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_mistake_finds_name_but_other_word_none() {
        let names = ["nnodes", "node_rank", "engine", "shm.size"];
        for (word, expected) in [
            ("nnode", Some("nnodes")),
            ("node-rank", Some("node_rank")),
            ("NODERANK", Some("node_rank")),
            ("enigne", Some("engine")),
            ("shm_size", Some("shm.size")),
            ("prompt", None),
            // Three changed letters of a long name.
            ("noderunning", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, names), expected, "{word}");
        }
        assert_eq!(osa_distance(&folded("abc"), &folded("acb")), 1);
        assert_eq!(osa_distance(&folded("kitten"), &folded("sitting")), 3);
    }
}
