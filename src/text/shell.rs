//! The lexer of shell command lines, by the rules of POSIX and bash.
//!
//! Takes any text; gives its tokens, and the parts of a word, each with its place in bytes. Knows no grammar: `if` is a
//! word. A quote or an expansion without its end is read as letters, and its token is marked, so that a reader can
//! refuse the text or go on.

/// A piece of a command line; blanks and continued line ends are between tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token<'a> {
    pub kind: TokenKind,
    pub at: usize,
    pub text: &'a str,
    /// The quote or expansion that begins here and never ends.
    pub unclosed: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    Word,
    /// `>`, `>&`, `<<<`; without the numbers and files beside it. `<<` and its delimiter are no tokens.
    Redirection,
    /// `;`, `&&`, `()`, a line end: the command ends.
    Control,
    Comment,
    /// The body of a here-document.
    Document,
}

/// A part of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<'a> {
    pub kind: PartKind,
    /// Place and text without quotes and brackets.
    pub at: usize,
    pub text: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartKind {
    /// With its backslashes and `$NAME`.
    Literal,
    /// `'…'`, `$'…'`
    Single,
    /// `"…"`, `$"…"`; backslashes and expansions count in it.
    Double,
    /// `${…}`, whole.
    Parameter,
    /// `$(…)`, `` `…` ``, `>(…)`
    Command,
}

/// How quotes and expansions begin and end. Expansions come first, and begin in double quotes too.
const OPENINGS: [(&str, u8, PartKind); 9] = [
    ("$(", b')', PartKind::Command),
    ("${", b'}', PartKind::Parameter),
    ("`", b'`', PartKind::Command),
    ("$'", b'\'', PartKind::Single),
    ("$\"", b'"', PartKind::Double),
    ("'", b'\'', PartKind::Single),
    ("\"", b'"', PartKind::Double),
    (">(", b')', PartKind::Command),
    ("<(", b')', PartKind::Command),
];
const EXPANSIONS: usize = 3;

/// A backtick is here only without its end.
const CONTROLS: [&str; 10] = ["\n", "||", "&&", "()", ";", "|", "&", "(", ")", "`"];
const REDIRECTIONS: [&str; 6] = ["<<<", "&>", ">&", "<&", "<", ">"];

/// After so many searches for an end that does not come, each over the whole rest of the text, no more are made.
const MOST_UNCLOSED: usize = 64;

/// The quotes and expansions without an end.
#[derive(Default)]
struct Unclosed {
    number: usize,
    /// The first one of the current token.
    first: Option<&'static str>,
}

/// The tokens of a script, in order.
pub fn tokens(script: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut delimiters: Vec<String> = Vec::new();
    let (mut at, mut unclosed) = (0, Unclosed::default());
    while let Some((rest, c)) = script.get(at..).and_then(|rest| Some((rest, rest.chars().next()?)))
    {
        unclosed.first = None;
        let (kind, length) = if c == '#' {
            (TokenKind::Comment, rest.find('\n').unwrap_or(rest.len()))
        } else if rest.starts_with("\\\n") || rest == "\\" {
            at += rest.len().min(2);
            continue;
        } else if c != '\n' && c.is_whitespace() {
            at += c.len_utf8();
            continue;
        } else if let Some(after) = rest.strip_prefix("<<").filter(|after| !after.starts_with('<'))
        {
            let after = after.strip_prefix('-').unwrap_or(after).trim_start_matches([' ', '\t']);
            let delimiter = after.get(..word_length(after, &mut unclosed)).unwrap_or_default();
            delimiters.extend(Some(bare(delimiter)).filter(|delimiter| !delimiter.is_empty()));
            at += rest.len() - after.len() + delimiter.len();
            continue;
        } else if let Some(operator) = REDIRECTIONS
            .iter()
            .find(|one| rest.starts_with(**one) && rest.as_bytes().get(1) != Some(&b'('))
        {
            (TokenKind::Redirection, operator.len())
        } else {
            match word_length(rest, &mut unclosed) {
                0 => {
                    let operator = CONTROLS.iter().find(|one| rest.starts_with(**one));
                    (TokenKind::Control, operator.map_or(c.len_utf8(), |one| one.len()))
                }
                length => (TokenKind::Word, length),
            }
        };
        let text = rest.get(..length).unwrap_or_default();
        tokens.push(Token { kind, at, text, unclosed: unclosed.first });
        at += length;
        if c == '\n' {
            for delimiter in delimiters.drain(..) {
                let rest = script.get(at..).unwrap_or_default();
                let (text, length) = document(rest, &delimiter);
                tokens.push(Token { kind: TokenKind::Document, at, text, unclosed: None });
                at += length;
            }
        }
    }
    tokens
}

/// The body of a here-document at the start, and its length with the delimiter's line.
fn document<'a>(text: &'a str, delimiter: &str) -> (&'a str, usize) {
    let mut length = 0;
    for line in text.split_inclusive('\n') {
        if line.trim() == delimiter {
            return (text.get(..length).unwrap_or_default(), length + line.len());
        }
        length += line.len();
    }
    (text, length)
}

/// Length in bytes of the word at the start, perhaps 0.
fn word_length(text: &str, unclosed: &mut Unclosed) -> usize {
    read(text, false, true, unclosed).1
}

/// The parts of a word, or of a text in double quotes.
pub fn parts(word: &str, quoted: bool) -> Vec<Part<'_>> {
    read(word, quoted, false, &mut Unclosed::default()).0
}

/// The parts at the start of a text, and their length in bytes: to the end, or to a bare blank or operator.
fn read<'a>(
    text: &'a str,
    quoted: bool,
    one_word: bool,
    unclosed: &mut Unclosed,
) -> (Vec<Part<'a>>, usize) {
    let mut parts = Vec::new();
    let (mut at, mut literal) = (0, 0);
    loop {
        let rest = text.get(at..).unwrap_or_default();
        let found = part(rest, quoted, unclosed);
        let first = rest.chars().next().filter(|c| {
            found.is_some() || !one_word || !(c.is_whitespace() || ";&|()<>`".contains(*c))
        });
        if (found.is_some() || first.is_none()) && literal < at {
            let text = text.get(literal..at).unwrap_or_default();
            parts.push(Part { kind: PartKind::Literal, at: literal, text });
        }
        let Some(first) = first else { return (parts, at) };
        if let Some((length, part)) = found {
            parts.push(Part { at: at + part.at, ..part });
            at += length;
            literal = at;
        } else {
            // A backslash and the character that it escapes.
            let next = rest.chars().nth(1).filter(|_| first == '\\');
            at += first.len_utf8() + next.map_or(0, char::len_utf8);
        }
    }
}

/// The quote or expansion at the start, and its whole length.
fn part<'a>(text: &'a str, quoted: bool, unclosed: &mut Unclosed) -> Option<(usize, Part<'a>)> {
    let known = if quoted { EXPANSIONS } else { OPENINGS.len() };
    let (open, close, kind) = OPENINGS.iter().take(known).find(|it| text.starts_with(it.0))?;
    let (close, kind) = (*close, *kind);
    let inside = text.as_bytes().get(open.len()..)?;
    let end = match close {
        b'\'' | b'`' => closing(inside, close, *open != "'"),
        _ if unclosed.number < MOST_UNCLOSED => enclosed(inside, close, quoted),
        _ => None,
    };
    let end = end.or_else(|| {
        // Perhaps only an expansion in the quotes has no end.
        let end = if close == b'"' { closing(inside, close, true) } else { None };
        let quoted = end.and_then(|end| text.get(open.len()..open.len() + end));
        let expansions = OPENINGS.iter().take(EXPANSIONS);
        let inner = quoted.and_then(|inside| expansions.clone().find(|it| inside.contains(it.0)));
        unclosed.number += 1;
        unclosed.first.get_or_insert(inner.map_or(*open, |(expansion, ..)| expansion));
        end
    });
    let length = open.len() + end?;
    let at = if kind == PartKind::Parameter { 0..length } else { open.len()..length - 1 };
    Some((length, Part { kind, at: at.start, text: text.get(at)? }))
}

/// Length up to and with the first closing byte.
fn closing(text: &[u8], close: u8, escapes: bool) -> Option<usize> {
    let mut at = 0;
    loop {
        match *text.get(at)? {
            b'\\' if escapes => at += 2,
            byte if byte == close => return Some(at + 1),
            _ => at += 1,
        }
    }
}

/// Length up to and with the closing byte of a quote or expansion in which others may begin. None if it or one of them
/// has no end; only a single quote without its end is a letter.
fn enclosed(text: &[u8], close: u8, quoted: bool) -> Option<usize> {
    // Braces are quoted as the text around them is.
    let quotes = |close: u8, around: bool| close == b'"' || (close == b'}' && around);
    // The closing byte of each that is open around the current one, and whether it quotes.
    let mut around = Vec::new();
    let mut current = (close, quotes(close, quoted));
    let mut at = 0;
    loop {
        let (before, rest) = text.split_at_checked(at)?;
        let is_command = current.0 == b')';
        let begins = || before.last().is_none_or(|byte| b" \t\n(;".contains(byte));
        let (opened, length) = match rest {
            [b'\\', ..] => (None, 2),
            [byte, ..] if *byte == current.0 => {
                let Some(outer) = around.pop() else { return Some(at + 1) };
                current = outer;
                (None, 1)
            }
            [b'`', inside @ ..] => (None, 1 + closing(inside, b'`', true)?),
            [b'$', b'\'', inside @ ..] if !current.1 => {
                (None, closing(inside, b'\'', true).map_or(1, |end| end + 2))
            }
            [b'\'', inside @ ..] if !current.1 => {
                (None, closing(inside, b'\'', false).map_or(1, |end| end + 1))
            }
            [b'$', b'{', ..] => (Some(b'}'), 2),
            [b'$', b'(', ..] => (Some(b')'), 2),
            [b'(', ..] if is_command => (Some(b')'), 1),
            [b'"', ..] => (Some(b'"'), 1),
            [b'#', ..] if is_command && begins() => (None, closing(rest, b'\n', false)?),
            [_, ..] => (None, 1),
            [] => return None,
        };
        if let Some(close) = opened {
            let inner = (close, quotes(close, current.1));
            around.push(std::mem::replace(&mut current, inner));
        }
        at += length;
    }
}

/// A word approximately as a program gets it. `dollar` stands for the `$` before a name; `expansion` gives the text of
/// any other expansion.
pub fn unquoted(word: &str, dollar: char, expansion: &dyn Fn(&Part<'_>) -> String) -> String {
    let text = |part: &Part<'_>, quoted| match part.kind {
        PartKind::Literal => unescaped(part.text, quoted, dollar),
        PartKind::Single | PartKind::Double => part.text.to_owned(),
        PartKind::Parameter | PartKind::Command => expansion(part),
    };
    let words = parts(word, false).into_iter().map(|part| match part.kind {
        PartKind::Double => parts(part.text, true).iter().map(|part| text(part, true)).collect(),
        _ => text(&part, false),
    });
    words.collect()
}

/// A word approximately as a program gets it, with its expansions as they are written.
pub fn bare(word: &str) -> String {
    unquoted(word, '$', &|part| match part.kind {
        PartKind::Command => format!("$({})", part.text),
        _ => part.text.to_owned(),
    })
}

fn unescaped(text: &str, quoted: bool, dollar: char) -> String {
    let mut unescaped = String::new();
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match (letter, letters.peek()) {
            ('\\', Some('\n') | None) => drop(letters.next()),
            ('\\', Some(next)) if !quoted || "$`\"\\".contains(*next) => {
                unescaped.extend(letters.next());
            }
            ('$', Some(next)) if next.is_ascii_alphanumeric() || "_@*#?$!-".contains(*next) => {
                unescaped.push(dollar);
            }
            _ => unescaped.push(letter),
        }
    }
    unescaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_those_of_bash() {
        use TokenKind::{Comment, Control, Document, Redirection, Word};
        let cases: [(&str, &[(TokenKind, &str)]); 12] = [
            ("a\\\nb 'c d'\"e $f\"", &[(Word, "a\\\nb"), (Word, "'c d'\"e $f\"")]),
            (
                "a 2>&1 &>b&& c",
                &[
                    (Word, "a"),
                    (Word, "2"),
                    (Redirection, ">&"),
                    (Word, "1"),
                    (Redirection, "&>"),
                    (Word, "b"),
                    (Control, "&&"),
                    (Word, "c"),
                ],
            ),
            // Quotes and comments in an expansion hide its end; an expansion hides quotes.
            ("$(a ')' \")\" \\) # )\n)", &[(Word, "$(a ')' \")\" \\) # )\n)")]),
            ("\"$(a \"b c\")\" d", &[(Word, "\"$(a \"b c\")\""), (Word, "d")]),
            ("\"${a:-it's}\" b", &[(Word, "\"${a:-it's}\""), (Word, "b")]),
            ("`a b`c", &[(Word, "`a b`c")]),
            ("$'a\\'b c'", &[(Word, "$'a\\'b c'")]),
            ("a#b #c\nd", &[(Word, "a#b"), (Comment, "#c"), (Control, "\n"), (Word, "d")]),
            (
                "a <<-'E F' <<G\nx\n\tE F\ny\nG\nb",
                &[(Word, "a"), (Control, "\n"), (Document, "x\n"), (Document, "y\n"), (Word, "b")],
            ),
            (
                "a <<<b\nc",
                &[(Word, "a"), (Redirection, "<<<"), (Word, "b"), (Control, "\n"), (Word, "c")],
            ),
            ("f () {", &[(Word, "f"), (Control, "()"), (Word, "{")]),
            ("", &[]),
        ];
        for (script, expected) in cases {
            let found = tokens(script);
            assert!(found.iter().all(|token| token.unclosed.is_none()), "{script}");
            let found: Vec<_> = found.iter().map(|token| (token.kind, token.text)).collect();
            assert_eq!(found, expected, "{script}");
        }
    }

    #[test]
    fn openings_without_an_end_are_letters() {
        for (script, expected) in [
            ("a 'b c", vec![("a", None), ("'b", Some("'")), ("c", None)]),
            ("$(a b", vec![("$", Some("$(")), ("(", None), ("a", None), ("b", None)]),
            ("`a", vec![("`", Some("`")), ("a", None)]),
            ("\"a $(b\" c", vec![("\"a $(b\"", Some("$(")), ("c", None)]),
            ("a\"b", vec![("a\"b", Some("\""))]),
        ] {
            let found = tokens(script);
            let found: Vec<_> = found.iter().map(|token| (token.text, token.unclosed)).collect();
            assert_eq!(found, expected, "{script}");
        }
    }

    #[test]
    fn words_lose_their_quotes() {
        for (word, expected) in [
            ("a\\ b'\\c'\"\\d\\$e\"", "a b\\c\\d$e"),
            ("$'a'$\"b\"", "ab"),
            ("a\\\nb", "ab"),
            ("$a${b c}`d \"e\"`", "$a${b c}$(d \"e\")"),
        ] {
            assert_eq!(bare(word), expected, "{word}");
        }
    }
}
