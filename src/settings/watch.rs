//! Parses the rows of `[[watch]]`.

use std::time::Duration;

use regex::bytes::Regex;

use super::Sourced;
use super::diagnose_rows::{both, id, one_of, truth};
use super::document::{Document, Entry};
use super::rule::{Expects, Lines, Ranks, Reaction, Rule, Time};
use super::value::{duration, whole};
use text::lang::Text;
use text::pattern;
use text::text;
use verdict::Refusal;
use verdict::outcome::Stream;

/// The keys of a row.
#[rustfmt::skip]
pub(super) const KEYS: &[&str] = &[
    "id", "line", "stream", "ranks", "within", "every", "finite", "min", "max", "gpus_idle", "on",
    "text", "hint",
];

pub(super) const STREAMS: &[&str] = &["both", "out", "err"];

/// The values of a row, before it is known whether they fit together.
#[derive(Default)]
struct Said {
    id: Option<String>,
    line: Option<Regex>,
    stream: Option<Option<Stream>>,
    ranks: Option<Ranks>,
    within: Option<Duration>,
    every: Option<Duration>,
    finite: bool,
    min: Option<f64>,
    max: Option<f64>,
    gpus_idle: Option<Duration>,
}

/// One `[[watch]]`.
pub(super) fn row(document: Document<'_>, section: Entry<'_>) -> Result<Sourced<Rule>, Refusal> {
    let mut said = Said::default();
    let (mut on, mut text, mut hint) = (None, None, None);
    for entry in document.entries(document.table(section)?) {
        match entry.key {
            "id" => said.id = Some(id(document, entry)?),
            "line" => said.line = Some(pattern(document, entry)?),
            "stream" => {
                let name: String = one_of(document, entry, STREAMS)?;
                said.stream = Some(match name.as_str() {
                    "out" => Some(Stream::Out),
                    "err" => Some(Stream::Err),
                    _ => None,
                });
            }
            "ranks" => said.ranks = Some(ranks(document, entry)?),
            "within" => said.within = Some(time(document, entry)?),
            "every" => said.every = Some(time(document, entry)?),
            "gpus_idle" => said.gpus_idle = Some(time(document, entry)?),
            "finite" => said.finite = truth(document, entry)?,
            "min" => said.min = Some(number(document, entry)?),
            "max" => said.max = Some(number(document, entry)?),
            "on" => on = Some(one_of(document, entry, Reaction::NAMES)?),
            "text" => text = Some(both(document, entry)?),
            "hint" => hint = Some(both(document, entry)?),
            _ => return Err(document.unknown_key(entry, "[[watch]]", KEYS)),
        }
    }
    let refuse = |(problem, remedy): (Text, Text)| document.refuse(section.line, problem, remedy);
    let id = said.id.take().ok_or_else(|| refuse(without("id")))?;
    let expects = said.expects().map_err(refuse)?;
    let rule = Rule { id, expects, on, text, hint };
    Ok(Sourced::new(rule, document.source(section.line)))
}

fn without(key: &str) -> (Text, Text) {
    (
        text!("[[watch]] without `{key}`", "[[watch]] 缺少 `{key}`"),
        text!(
            "for example id = \"steps\", line = 'step \\d+', every = \"5m\"",
            "例如 id = \"steps\"，line = 'step \\d+'，every = \"5m\""
        ),
    )
}

impl Said {
    /// The expectation of the row, or the problem and its remedy.
    fn expects(self) -> Result<Expects, (Text, Text)> {
        let Said { line, stream, ranks, within, every, finite, min, max, gpus_idle, .. } = self;
        let is_number = finite || min.is_some() || max.is_some();
        let kinds = [
            ("within", within.is_some()),
            ("every", every.is_some()),
            ("finite, min, max", is_number),
            ("gpus_idle", gpus_idle.is_some()),
        ];
        let given: Vec<&str> = kinds.iter().filter(|(_, is)| *is).map(|(key, _)| *key).collect();
        if given.len() != 1 {
            let given = if given.is_empty() { "-".to_owned() } else { given.join(" + ") };
            return Err((
                text!(
                    "[[watch]] expects exactly one thing, but has: {given}",
                    "[[watch]] 每项只能有一个要求，但给出了：{given}"
                ),
                text!(
                    "use one of within, every, gpus_idle, or finite with min and max; write a row for each",
                    "从 within、every、gpus_idle，或 finite 与 min、max 中选择一种；多个要求请分别写成多项"
                ),
            ));
        }
        if let Some(time) = gpus_idle {
            if line.is_some() || stream.is_some() || ranks.is_some() {
                return Err((
                    text!(
                        "`gpus_idle` is about the GPUs of a node, but the row also has `line`, `stream` or `ranks`",
                        "`gpus_idle` 针对节点的 GPU，但该项还有 `line`、`stream` 或 `ranks`"
                    ),
                    text!("write two rows", "请写成两项"),
                ));
            }
            return Ok(Expects::BusyGpus(time));
        }
        let pattern = line.ok_or_else(|| without("line"))?;
        let shown = pattern.as_str().to_owned();
        if is_number && !pattern.capture_names().flatten().any(|name| name == Lines::VALUE) {
            return Err((
                text!(
                    "`line` is {shown}, which names no number",
                    "`line` 为 {shown}，其中没有指明数值"
                ),
                text!(
                    "put the group (?P<value>…) around the number, as in 'loss (?P<value>\\S+)'",
                    "用分组 (?P<value>…) 括住数值，例如 'loss (?P<value>\\S+)'"
                ),
            ));
        }
        if let (Some(low), Some(high)) = (min, max)
            && low > high
        {
            return Err((
                text!(
                    "`min` is {low} and `max` is {high}, so no number is allowed",
                    "`min` 为 {low}，`max` 为 {high}，没有任何数值满足"
                ),
                text!("swap them", "请交换两者"),
            ));
        }
        // One rank usually prints for all; a wrong number is wrong on any rank.
        let usual = if is_number { Ranks::All } else { Ranks::Of(vec![(0, 0)]) };
        let lines = Lines { pattern, stream: stream.flatten(), ranks: ranks.unwrap_or(usual) };
        Ok(match (within, every) {
            (Some(time), _) => Expects::Line(lines, Time::Within(time)),
            (None, Some(time)) => Expects::Line(lines, Time::Every(time)),
            (None, None) => Expects::Number { lines, min, max },
        })
    }
}

fn pattern(document: Document<'_>, entry: Entry<'_>) -> Result<Regex, Refusal> {
    let text = document.name_of(entry)?;
    pattern::compile(&text).map_err(|error| {
        let why = pattern::flaw(&error);
        document.refuse(
            entry.line,
            text!(
                "`line` is {text}, which is not a regular expression: {why}",
                "`line` 为 {text}，不是合法的正则表达式：{why}"
            ),
            pattern::syntax(),
        )
    })
}

/// A time longer than zero.
fn time(document: Document<'_>, entry: Entry<'_>) -> Result<Duration, Refusal> {
    let text = document.text_or_number_of(entry)?;
    duration(&text).filter(|time| !time.is_zero()).ok_or_else(|| {
        document.wrong_type(
            entry,
            text!(
                "a duration such as 30s, 30m, 1h30m or a number of seconds, at most a year",
                "时长，例如 30s、30m、1h30m 或秒数，最长一年"
            ),
        )
    })
}

fn number(document: Document<'_>, entry: Entry<'_>) -> Result<f64, Refusal> {
    let text = match (entry.value.as_float(), entry.value.as_integer()) {
        (Some(float), _) => Some(float.as_str().replace('_', "")),
        (None, Some(_)) => super::document::integer(entry.value).map(|number| number.to_string()),
        (None, None) => None,
    };
    let number = text.and_then(|text| text.parse::<f64>().ok());
    number.filter(|number| number.is_finite()).ok_or_else(|| {
        document.wrong_type(entry, text!("a finite number without quotes", "不带引号的有限数"))
    })
}

/// `all`, `0`, `0-3, 8`.
fn ranks(document: Document<'_>, entry: Entry<'_>) -> Result<Ranks, Refusal> {
    let text = document.text_or_number_of(entry)?;
    if text == "all" {
        return Ok(Ranks::All);
    }
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (whole(first.trim())?, whole(last.trim())?);
        (first <= last).then_some((first, last))
    };
    let found: Option<Vec<(u32, u32)>> = text.split(',').map(range).collect();
    found.map(Ranks::Of).ok_or_else(|| {
        document.wrong_type(
            entry,
            text!(
                "\"all\", a rank or ranks such as \"0-3, 8\"",
                "\"all\"、一个 rank，或形如 \"0-3, 8\" 的多个 rank"
            ),
        )
    })
}
