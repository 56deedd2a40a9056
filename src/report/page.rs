//! The page of a run: report.html.
//!
//! Takes a [`JobHistory`]; gives one file that contains everything and requests nothing. Its script
//! draws it from a document in the file. The content of logs is text in that document, never markup.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::LazyLock;

use super::page_data::data;
use linux::random;
use monitor::history::JobHistory;
use text::lang::{Lang, Text};
use text::text;

/// The files of `page/`, as build.rs has deflated them.
static DEFLATED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/page.zz"));
static FILES: LazyLock<BTreeMap<String, String>> =
    LazyLock::new(|| embed::files(DEFLATED).unwrap_or_default().into_iter().collect());

/// One file of `page/`, by its name.
fn file(name: &str) -> &'static str {
    FILES.get(name).map_or("", String::as_str)
}

/// Maximum bytes of a page of up to a thousand ranks; in proportion for more ranks.
const LARGEST: usize = 2_000_000;
/// Number of values of each quantity over time, while the page is small enough.
pub const MOST_POINTS: usize = 240;

/// The page of a job, or of one of its nodes.
pub fn page(mut job: JobHistory, whole: bool) -> String {
    let largest = LARGEST.max(job.ranks().saturating_mul(LARGEST / 1000));
    let mut points = MOST_POINTS;
    loop {
        let page = render(&job, whole);
        if page.len() <= largest || points == 0 {
            return page;
        }
        // Buckets are joined in pairs, so half of them is the next size.
        points /= 2;
        job.thin(points);
    }
}

fn render(job: &JobHistory, whole: bool) -> String {
    let lead = job.lead();
    // Only the scripts of this page run, whatever else may get into it; without random bytes no
    // script runs.
    let nonce = random::hex::<16>().unwrap_or_default();
    let document = embedded(&data(job, whole).to_string());
    let lang = match lead.lang {
        Lang::En => "en",
        Lang::Zh => "zh",
    };
    let (run, node) = (&lead.run_id, lead.node);
    let title = match whole {
        true => Text::same(run.clone()),
        false => text!("{run} · node {node}", "{run} · 节点 {node}"),
    };
    let parts = [
        ("{{lang}}", lang),
        ("{{nonce}}", &nonce),
        ("{{title}}", &escaped(title.get(lead.lang))),
        ("{{plain}}", &plain(job)),
        ("{{style}}", file("style.css")),
        ("{{words}}", file("words.js")),
        ("{{draw}}", file("draw.js")),
        ("{{timeline}}", file("timeline.js")),
        ("{{script}}", file("script.js")),
        ("{{data}}", &document),
    ];
    let mut page = String::with_capacity(document.len() + 64 * 1024);
    let mut rest = file("frame.html");
    // All placeholders are replaced in one pass, so that no value is searched for the next one.
    while let Some(at) = rest.find("{{") {
        let (before, from) = rest.split_at(at);
        page.push_str(before);
        let part = parts.iter().find_map(|(name, value)| Some((from.strip_prefix(name)?, value)));
        match part {
            Some((after, value)) => {
                page.push_str(value);
                rest = after;
            }
            None => {
                page.push_str("{{");
                rest = from.get(2..).unwrap_or_default();
            }
        }
    }
    page.push_str(rest);
    page
}

/// The verdict for a reader without scripts.
fn plain(job: &JobHistory) -> String {
    let lang = job.lead().lang;
    let Some((_, attempt)) = job.end() else {
        let unknown = text!("no verdict was written", "没有写入结论");
        return escaped(unknown.get(lang));
    };
    let mut plain = String::new();
    let verdict = attempt.verdict.as_ref().map(|verdict| verdict.text.get(lang));
    let cause = attempt.cause.as_ref();
    let said = [
        cause.map(|cause| cause.text.get(lang)),
        cause.map(|cause| cause.remedy.get(lang)),
        verdict,
        cause.map(|cause| cause.evidence.as_str()),
    ];
    for one in said.into_iter().flatten().filter(|one| !one.is_empty()) {
        let _ = write!(plain, "<p>{}</p>", escaped(one));
    }
    plain
}

/// Text as HTML.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\u{2028}' | '\u{2029}' => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}

/// JSON inside a script element. These letters occur only in its strings, where an escape has the
/// same meaning; so nothing ends the element or begins another.
fn embedded(json: &str) -> String {
    let mut out = String::with_capacity(json.len() + json.len() / 32);
    for letter in json.chars() {
        match letter {
            '<' => out.push_str("\\u003c"),
            '>' => out.push_str("\\u003e"),
            '&' => out.push_str("\\u0026"),
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests;
