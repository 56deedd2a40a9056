//! Limits text from other nodes, which may be printed to a terminal: no control or invisible characters, bounded
//! length.

use std::borrow::Cow;

use text::lang::Text;
use text::letters::is_hidden;
use verdict::{Refusal, Why};

/// Maximum characters of a word.
pub(crate) const LETTERS: usize = 400;
/// Maximum characters of a sentence.
const SENTENCE: usize = 3 * LETTERS;

pub(crate) fn sanitize(word: &mut String) {
    if word.len() > LETTERS || word.chars().any(is_hidden) {
        *word = word
            .chars()
            .take(LETTERS)
            .map(|letter| if is_hidden(letter) { '\u{fffd}' } else { letter })
            .collect();
    }
}

pub(crate) fn sanitize_text(text: &mut Text) {
    for sentence in [&mut text.en, &mut text.zh] {
        if sentence.len() > SENTENCE || sentence.chars().any(is_hidden) {
            let shown = sentence.chars().take(SENTENCE);
            let shown = shown.map(|letter| if is_hidden(letter) { ' ' } else { letter });
            *sentence = Cow::Owned(shown.collect());
        }
    }
}

/// Bounds of the parts of a failure's reason that are sent, so that a frame can carry the reason.
const RANKS: usize = 64;
const VICTIMS: usize = 2;
const ALSO: usize = 2;
/// Maximum bytes of one sentence of the reason, and of one word.
const REASON: usize = 600;
const WORD: usize = 100;

/// Cuts a reason to about 12 kB.
pub(crate) fn sanitize_why(why: &mut Why) {
    let Why { id, text, remedy, frame, log, evidence, missing, victims, also, .. } = why;
    missing.truncate(RANKS);
    victims.truncate(VICTIMS);
    also.truncate(ALSO);
    victims.iter_mut().for_each(|victims| victims.ranks.truncate(RANKS));
    let ids = victims.iter_mut().map(|victims| &mut victims.id);
    let ids = ids.chain(also.iter_mut().map(|other| &mut other.id));
    ids.chain([id, log]).for_each(|word| fit(word, WORD));
    [evidence].into_iter().chain(frame).for_each(|words| fit(words, REASON));
    let victims = victims.iter_mut().map(|victims| &mut victims.text);
    let also = also.iter_mut().map(|other| &mut other.text);
    for sentence in [text, remedy].into_iter().chain(victims).chain(also) {
        for words in [&mut sentence.en, &mut sentence.zh] {
            fit(words.to_mut(), REASON);
        }
    }
}

/// Cuts a text to at most `bytes`, and removes control characters.
fn fit(words: &mut String, bytes: usize) {
    if words.len() > bytes {
        let end = (0..=bytes).rev().find(|at| words.is_char_boundary(*at)).unwrap_or(0);
        words.truncate(end);
    }
    if words.chars().any(is_hidden) {
        *words = words.chars().map(|letter| if is_hidden(letter) { ' ' } else { letter }).collect();
    }
}

pub(crate) fn sanitize_refusal(refusal: &mut Refusal) {
    sanitize_text(&mut refusal.text);
    sanitize_text(&mut refusal.hint);
}
