//! Logs as people paste them into mails and issues.

use super::{id, of, with_examples};
use crate::rows::Role;

fn named(log: &str) -> String {
    id(&of(log)).to_owned()
}

/// Each line with words before and after it.
fn around(log: &str, before: &str, after: &str) -> String {
    log.lines().map(|line| format!("{before}{line}{after}\n")).collect()
}

fn in_html(log: &str) -> String {
    [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&#39;")]
        .into_iter()
        .fold(log.to_owned(), |log, (letter, entity)| log.replace(letter, entity))
}

/// Lines that are wrapped at spaces.
fn wrapped(log: &str, width: usize) -> String {
    let mut out = String::new();
    for line in log.lines() {
        let mut at = 0;
        for word in line.split(' ') {
            if at > 0 && at + 1 + word.len() > width {
                out.push('\n');
                at = 0;
            } else if at > 0 {
                out.push(' ');
                at += 1;
            }
            out.push_str(word);
            at += word.len();
        }
        out.push('\n');
    }
    out
}

/// Lines that are cut at a width, also within words.
fn cut(log: &str, width: usize) -> String {
    let mut out = String::new();
    for line in log.lines() {
        for (number, letter) in line.chars().enumerate() {
            if number > 0 && number % width == 0 {
                out.push('\n');
            }
            out.push(letter);
        }
        out.push('\n');
    }
    out
}

#[test]
fn pasted_log_has_the_cause_of_the_plain_log() {
    type Form = fn(&str) -> String;
    const FORMS: &[(&str, Form)] = &[
        ("quoted", |log| around(log, "> ", "")),
        ("quoted twice", |log| around(log, "> > ", "")),
        ("fenced", |log| format!("Hello,\n\n```bash\n{log}\n```\n")),
        ("fenced in a quote", |log| format!("> ```\n{}> ```\n", around(log, "> ", ""))),
        ("indented", |log| format!("Hello,\n\n{}\n", around(log, "    ", ""))),
        ("code", |log| around(log, "`", "`")),
        ("bold", |log| around(log, "**", "**")),
        ("html", |log| format!("<pre><code>{}</code></pre>", in_html(log))),
        ("html of lines", |log| around(&in_html(log), "<p>", "<br>")),
        ("mail", |log| around(&wrapped(log, 72), "> ", "")),
        ("narrow", |log| wrapped(log, 60)),
        ("terminal", |log| cut(log, 80)),
        ("narrow terminal", |log| cut(log, 60)),
        ("windows", |log| around(log, "", "\r")),
    ];
    let mut changed = Vec::new();
    for row in with_examples().rows().iter().filter(|row| row.role == Role::Root) {
        for example in &row.matches {
            let plain = named(example);
            if plain == "none" {
                continue;
            }
            for (name, form) in FORMS {
                let found = named(&form(example));
                if found != plain {
                    changed.push(format!("{name}: {plain} became {found}: {example}"));
                }
            }
        }
    }
    assert!(changed.is_empty(), "{}", changed.join("\n"));
}

#[test]
fn lines_beside_each_other_are_not_joined() {
    // The second line would have fitted.
    let short = format!("{}\nRuntimeError: the first step\nConnection refused\n", "x".repeat(70));
    assert_eq!(named(&short), "user_exception");
    // A line of another writer.
    let first = format!("[rank0]: RuntimeError: {} was", "x".repeat(70));
    assert_eq!(named(&format!("{first}\n[rank1]: Connection refused\n")), "user_exception");
}
