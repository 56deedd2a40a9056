//! Letters that are not seen but change what is: of control characters, of directions, and without
//! width.

/// Whether a letter may not stand in a name or a text of somebody else: a terminal obeys it, it turns
/// the direction of what follows (`U+202E`), breaks the line, or is not seen at all. Unicode's `Cc`, `Zl`
/// and `Zp`, and of `Cf` what is no part of a script.
pub(crate) fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}
