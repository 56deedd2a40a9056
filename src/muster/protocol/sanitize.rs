//! What comes from another node ends on a terminal: no control characters, no endless words.

use std::borrow::Cow;

use crate::lang::Text;
use crate::verdict::Refusal;

/// Letters of a word.
pub(crate) const LETTERS: usize = 400;
/// Letters of a sentence.
const SENTENCE: usize = 4 * LETTERS;

pub(crate) fn sanitize(word: &mut String) {
    if word.len() > LETTERS || word.chars().any(char::is_control) {
        *word = word
            .chars()
            .take(LETTERS)
            .map(|letter| if letter.is_control() { '\u{fffd}' } else { letter })
            .collect();
    }
}

pub(crate) fn sanitize_text(text: &mut Text) {
    for sentence in [&mut text.en, &mut text.zh] {
        if sentence.len() > SENTENCE || sentence.chars().any(char::is_control) {
            let shown = sentence.chars().take(SENTENCE);
            let shown = shown.map(|letter| if letter.is_control() { ' ' } else { letter });
            *sentence = Cow::Owned(shown.collect());
        }
    }
}

pub(crate) fn sanitize_refusal(refusal: &mut Refusal) {
    sanitize_text(&mut refusal.text);
    sanitize_text(&mut refusal.hint);
}
