//! Lines of logs as people paste them into mails and issues: quoted, in Markdown or as HTML.

use std::borrow::Cow;

use memchr::{memchr, memchr_iter};

/// The entities of HTML that a log needs.
const ENTITIES: &[(&[u8], &[u8])] = &[
    (b"&gt;", b">"),
    (b"&lt;", b"<"),
    (b"&amp;", b"&"),
    (b"&quot;", b"\""),
    (b"&#34;", b"\""),
    (b"&#39;", b"'"),
    (b"&#x27;", b"'"),
    (b"&apos;", b"'"),
    (b"&nbsp;", b" "),
    (b"&#160;", b" "),
];

/// The tags of HTML around lines of code.
const TAGS: &[&str] = &[
    "pre",
    "code",
    "p",
    "br",
    "br/",
    "br /",
    "div",
    "span",
    "blockquote",
    "details",
    "summary",
    "samp",
];

/// A line without the marks of quotes, of Markdown and of HTML around it.
pub(super) fn unquoted(line: &[u8]) -> Cow<'_, [u8]> {
    let decoded = decoded(line);
    // Most lines end here.
    let first = decoded.trim_ascii_start().first();
    let last = decoded.trim_ascii_end().last();
    let marked = |byte: Option<&u8>| byte.is_some_and(|byte| b"><`*|".contains(byte));
    if !marked(first) && !marked(last) {
        return decoded;
    }
    match decoded {
        Cow::Borrowed(line) => Cow::Borrowed(without_marks(line)),
        Cow::Owned(line) => Cow::Owned(without_marks(&line).to_vec()),
    }
}

fn decoded(line: &[u8]) -> Cow<'_, [u8]> {
    if memchr(b'&', line).is_none() || memchr(b';', line).is_none() {
        return Cow::Borrowed(line);
    }
    let mut out = Vec::with_capacity(line.len());
    let mut from = 0;
    for at in memchr_iter(b'&', line) {
        let rest = line.get(at..).unwrap_or_default();
        let known = ENTITIES.iter().find(|(entity, _)| rest.starts_with(entity));
        if let Some((entity, text)) = known {
            out.extend_from_slice(line.get(from..at).unwrap_or_default());
            out.extend_from_slice(text);
            from = at + entity.len();
        }
    }
    if from == 0 {
        return Cow::Borrowed(line);
    }
    out.extend_from_slice(line.get(from..).unwrap_or_default());
    Cow::Owned(out)
}

/// Each mark may stand within another.
fn without_marks(mut line: &[u8]) -> &[u8] {
    loop {
        let rest = without_end(without_start(within_marks(line)));
        if rest.len() == line.len() {
            return line;
        }
        line = rest;
    }
}

/// A line that is a piece of code or in bold as a whole. Quoted words have their marks within the line.
fn within_marks(line: &[u8]) -> &[u8] {
    let bare = line.trim_ascii();
    let within = [&b"**"[..], b"`"].into_iter().find_map(|mark| {
        let within = bare.strip_prefix(mark)?.strip_suffix(mark)?;
        memchr::memmem::find(within, mark).is_none().then_some(within)
    });
    within.filter(|within| !within.starts_with(b"*") && !within.is_empty()).unwrap_or(line)
}

fn without_start(line: &[u8]) -> &[u8] {
    let bare = line.trim_ascii_start();
    if let Some(rest) = bare.strip_prefix(b">") {
        return rest.strip_prefix(b" ").unwrap_or(rest);
    }
    if let Some(rest) = bare.strip_prefix(b"```") {
        return rest;
    }
    let tag = bare.strip_prefix(b"<").and_then(|rest| {
        let end = memchr(b'>', rest)?;
        let (tag, rest) = rest.split_at_checked(end)?;
        is_tag(tag).then(|| rest.get(1..).unwrap_or_default())
    });
    tag.unwrap_or(line)
}

fn without_end(line: &[u8]) -> &[u8] {
    let bare = line.trim_ascii_end();
    if let Some(rest) = bare.strip_suffix(b"```") {
        return rest;
    }
    let tag = bare.strip_suffix(b">").and_then(|rest| {
        let start = memchr::memrchr(b'<', rest)?;
        let (before, tag) = rest.split_at_checked(start)?;
        is_tag(tag.get(1..)?).then_some(before)
    });
    tag.unwrap_or(line)
}

/// Whether the words between `<` and `>` are a tag, with its attributes.
fn is_tag(words: &[u8]) -> bool {
    let words = words.strip_prefix(b"/").unwrap_or(words);
    let name = words.split(|byte| *byte == b' ').next().unwrap_or_default();
    let is = |tag: &str| words.eq_ignore_ascii_case(tag.as_bytes());
    TAGS.iter().any(|tag| {
        is(tag) || name.eq_ignore_ascii_case(tag.as_bytes()) && memchr(b'=', words).is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::unquoted;

    #[test]
    fn marks_around_a_line_are_removed() {
        for (line, expected) in [
            ("> KeyError: 'x'", "KeyError: 'x'"),
            ("> > KeyError: 'x'", "KeyError: 'x'"),
            (">> KeyError: 'x'", "KeyError: 'x'"),
            (" > KeyError: 'x'", "KeyError: 'x'"),
            (">   File \"a.py\"", "  File \"a.py\""),
            ("&gt; KeyError: &#39;x&#39;", "KeyError: 'x'"),
            ("File &quot;a.py&quot;, in &lt;module&gt;", "File \"a.py\", in <module>"),
            ("```KeyError: 'x'", "KeyError: 'x'"),
            ("`KeyError: 'x'`", "KeyError: 'x'"),
            ("**KeyError: 'x'**", "KeyError: 'x'"),
            ("<pre><code>KeyError: 'x'<br>", "KeyError: 'x'"),
            ("<span class=\"q\">KeyError: 'x'</span>", "KeyError: 'x'"),
            ("use `x` or `y`", "use `x` or `y`"),
            ("a && b; c", "a && b; c"),
            ("  return x", "  return x"),
            ("*** JOB 4 ***", "*** JOB 4 ***"),
            ("<module>", "<module>"),
            ("in <module>", "in <module>"),
        ] {
            assert_eq!(String::from_utf8_lossy(&unquoted(line.as_bytes())), expected, "{line}");
        }
    }
}
