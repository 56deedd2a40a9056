//! Letters that mislead the eye: invisible ones that change the visible text (control characters, marks of direction,
//! no width), and letters that stand for an ASCII letter.

/// Whether a letter is not allowed in a name or a text from elsewhere: a terminal obeys it, or it reverses the
/// direction of the following text (`U+202E`), breaks the line, or is invisible. Covers Unicode's `Cc`, `Zl` and
/// `Zp`, and the letters of `Cf` that belong to no script.
pub fn is_hidden(letter: char) -> bool {
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

/// At most `most` bytes of a text from elsewhere, with a space for each hidden letter ([`is_hidden`]).
pub fn plain(text: &str, most: usize) -> String {
    text[..text.floor_char_boundary(most)].replace(is_hidden, " ")
}

/// The ASCII letter in whose place an editor, a web page or an input method writes this letter: quotes, dashes,
/// spaces, and letters, digits and signs in full width. None for brackets and commas in full width, which are
/// Chinese.
pub fn meant(letter: char) -> Option<char> {
    Some(match letter {
        '\u{201c}'..='\u{201f}' | '\u{ab}' | '\u{bb}' => '"',
        '\u{2018}'..='\u{201b}' => '\'',
        '\u{2010}'..='\u{2015}' | '\u{2212}' => '-',
        '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => ' ',
        '＂' | '＇' | '－' | '＝' | '＿' | '０'..='９' | 'Ａ'..='Ｚ' | 'ａ'..='ｚ' => {
            char::from_u32(u32::from(letter) - 0xfee0)?
        }
        _ => return None,
    })
}

/// The same where only ASCII has a meaning, as between the strings of a TOML file: brackets and marks in full width
/// too.
pub fn meant_in_syntax(letter: char) -> Option<char> {
    meant(letter).or(match letter {
        '！'..='～' => char::from_u32(u32::from(letter) - 0xfee0),
        '、' => Some(','),
        '。' => Some('.'),
        '【' => Some('['),
        '】' => Some(']'),
        _ => None,
    })
}

/// `“ (U+201C)`; a space is not shown.
pub fn named(letter: char) -> String {
    let number = format!("U+{:04X}", u32::from(letter));
    if meant(letter) == Some(' ') { number } else { format!("{letter} ({number})") }
}

/// The first letter of a message that stands for an ASCII letter ([`meant`]), with that letter. A dash counts only
/// before a word, since `1–3` is a range.
pub fn unmeant(message: &str) -> Option<(char, char)> {
    let mut before = ' ';
    let mut rest = message.chars();
    while let Some(letter) = rest.next() {
        let next = rest.clone().next().unwrap_or(' ');
        let begins_a_word = !before.is_alphanumeric() && next.is_alphabetic();
        match meant(letter) {
            Some('-') if !begins_a_word => {}
            Some(other) => return Some((letter, other)),
            None => {}
        }
        before = letter;
    }
    // Messages show these spaces in escaped form.
    let escaped = |letter: char| message.contains(&*letter.escape_unicode().to_string());
    ['\u{a0}', '\u{3000}'].into_iter().find(|letter| escaped(*letter)).map(|letter| (letter, ' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookalike_letter_is_found_in_messages() {
        for (message, expected) in [
            ("--nnodes is `“2”`", Some('“')),
            ("is `‘2’`", Some('‘')),
            ("is `＂2`", Some('＂')),
            ("is `２`", Some('２')),
            ("a\u{a0}b", Some('\u{a0}')),
            (r"is `2\u{a0}`", Some('\u{a0}')),
            (r"is `2\u{3000}`", Some('\u{3000}')),
            ("there is no subcommand `–nnodes`", Some('–')),
            ("`——nnodes`", Some('—')),
            ("nodes 1–3 never connected", None),
            ("nodes − 1", None),
            ("/data/训练（一）：终，版/a.py", None),
            ("it's \"a\" -b --c", None),
        ] {
            assert_eq!(unmeant(message).map(|(letter, _)| letter), expected, "{message}");
        }
        let all = "“”„«»‘’–—＂＇－＝＿０９ＡＺａｚ";
        let meant: String = all.chars().filter_map(meant).collect();
        assert_eq!(meant, r#""""""''--"'-=_09AZaz"#);
        let syntax = "，：［］｛｝（）＃．、【】＝“";
        let meant: String = syntax.chars().filter_map(meant_in_syntax).collect();
        assert_eq!(meant, ",:[]{}()#.,[]=\"");
        assert_eq!("文a,".chars().find_map(meant_in_syntax), None);
        assert_eq!([named('“'), named('\u{a0}')], ["“ (U+201C)", "U+00A0"]);
    }
}
