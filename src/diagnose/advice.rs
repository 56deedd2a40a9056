//! The advice that a message of an exception gives.
//!
//! The author of a message knows the failure better than a row for all exceptions does.

use super::lines::Pattern;

/// A sentence that says what to do.
static ADVICE: Pattern = Pattern::new(concat!(
    r"^(?:please|try|decrease|reduce|lower|increase|raise|set|unset|use|check|make sure|ensure|consider|install|",
    r"reinstall|upgrade|update|downgrade|run|rerun|pass|provide|specify|enable|disable|remove|delete|add|change|",
    r"switch|restart|either|do not|don't|you (?:should|must|need|have to|can|may want|might want)|",
    r"if you|if this|to (?:fix|solve|avoid|resolve|disable|enable|use|suppress))\b",
));

/// A sentence that says what is required.
static REQUIRED: Pattern = Pattern::new(
    r"\b(?:must|should|needs? to|has to|have to) (?:be (?:used|set|enabled|disabled|installed|given|specified)|use|set)\b",
);

/// Maximum length of the advice that is shown.
const LONGEST: usize = 240;

/// The sentences of a message from the first one that says what to do.
pub(super) fn advice(message: &str) -> Option<String> {
    let mut from = 0;
    for sentence in sentences(message) {
        let low = sentence.trim().to_ascii_lowercase();
        // The message as a whole is shown already.
        let says = ADVICE.is_match(low.as_bytes()) || REQUIRED.is_match(low.as_bytes());
        let is_advice = says && low.split(' ').count() > 2;
        if is_advice {
            let rest = message.get(from..)?.trim();
            let end = rest.char_indices().nth(LONGEST).map_or(rest.len(), |(at, _)| at);
            let shown = rest.get(..end)?;
            return Some(if end < rest.len() { format!("{shown}…") } else { shown.to_owned() });
        }
        from += sentence.len();
    }
    None
}

/// The sentences of a message, each with the spaces behind it.
fn sentences(message: &str) -> impl Iterator<Item = &str> {
    const ENDS: &[&str] = &[". ", "! ", "? ", "; ", ": ", ", please "];
    let mut rest = message;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = |end: &&str| {
            // A sentence that begins in the middle of another one keeps its first word.
            let taken = if end.ends_with("please ") { 2 } else { end.len() };
            rest.find(*end).map(|at| at + taken)
        };
        let at = ENDS.iter().filter_map(end).min().unwrap_or(rest.len());
        let (sentence, after) = rest.split_at_checked(at)?;
        rest = after;
        Some(sentence)
    })
}

#[cfg(test)]
mod tests {
    use super::advice;

    #[test]
    fn first_sentence_that_says_what_to_do_is_advice() {
        for (message, expected) in [
            ("", None),
            ("shape mismatch", None),
            ("Try", None),
            (
                "expected 3 columns. Use header=None to read it.",
                Some("Use header=None to read it."),
            ),
            (
                "Free memory is too small. Decrease the utilization or end other processes. Bye",
                Some("Decrease the utilization or end other processes. Bye"),
            ),
            ("no token, please log in first", Some("please log in first")),
            ("cannot import x: install y with pip", Some("install y with pip")),
            ("The user is set to run", None),
            (
                "With a sharded table, checks must be disabled.",
                Some("With a sharded table, checks must be disabled."),
            ),
        ] {
            assert_eq!(advice(message).as_deref(), expected, "{message}");
        }
        let long = format!("No. Use it {}", "ä".repeat(400));
        assert_eq!(advice(&long).map(|text| text.chars().count()), Some(241));
    }
}
