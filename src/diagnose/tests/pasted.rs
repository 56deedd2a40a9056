//! Logs as people paste them.

use super::{of, id, with_examples};
use crate::rows::Role;

fn named(log: &str) -> String {
    id(&of(log)).to_owned()
}

#[test]
fn zz() {
    let forms: Vec<(&str, fn(&str) -> String)> = vec![
        ("quote", |log| log.lines().map(|l| format!("> {l}\n")).collect()),
        ("quote2", |log| log.lines().map(|l| format!("> > {l}\n")).collect()),
        ("fence", |log| format!("Hello\n\n```\n{log}\n```\n")),
        ("fencequote", |log| format!("Hello\n\n> ```bash\n{}> ```\n", log.lines().map(|l| format!("> {l}\n")).collect::<String>())),
        ("html", |log| format!("<pre>{}</pre>", log.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace('\'', "&#39;"))),
        ("htmlbr", |log| log.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").lines().map(|l| format!("{l}<br>\n")).collect()),
        ("tick", |log| log.lines().map(|l| format!("`{l}`\n")).collect()),
        ("indent", |log| log.lines().map(|l| format!("    {l}\n")).collect()),
        ("indent1", |log| log.lines().map(|l| format!("  {l}\n")).collect()),
        ("crlf", |log| log.lines().map(|l| format!("{l}\r\n")).collect()),
        ("bold", |log| log.lines().map(|l| format!("**{l}**\n")).collect()),
        ("bullet", |log| log.lines().map(|l| format!("- {l}\n")).collect()),
        ("wrap72", |log| wrap(log, 72)),
        ("wrap60hard", |log| hard(log, 60)),
        ("quotewrap", |log| wrap(log, 76).lines().map(|l| format!("> {l}\n")).collect()),
    ];
    let mut n = 0;
    for row in with_examples().rows() {
        if row.role != Role::Root { continue }
        for example in &row.matches {
            let plain = named(example);
            for (name, form) in &forms {
                n += 1;
                let found = named(&form(example));
                if found != plain { println!("{name}: {} {plain} -> {found}: {example}", row.id); }
            }
        }
    }
    println!("{n}");
}
fn wrap(log: &str, width: usize) -> String {
    let mut out = String::new();
    for line in log.lines() {
        let mut at = 0;
        for word in line.split_inclusive(' ') {
            if at > 0 && at + word.len() > width { out = out.trim_end_matches(' ').to_owned(); out.push('\n'); at = 0; }
            out.push_str(word); at += word.len();
        }
        out.push('\n');
    }
    out
}
fn hard(log: &str, width: usize) -> String {
    let mut out = String::new();
    for line in log.lines() {
        for (n, c) in line.chars().enumerate() { if n > 0 && n % width == 0 { out.push('\n'); } out.push(c); }
        out.push('\n');
    }
    out
}
