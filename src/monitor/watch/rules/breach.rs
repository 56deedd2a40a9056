//! A rule that does not hold any more, in words.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use linux::pace::spell;
use settings::{Expects, Reaction, Rule, Time};
use text::lang::{Lang, Text};
use text::letters::is_hidden;
use text::mask::mask_file;
use text::rank::GlobalRank;
use text::text;

/// Maximum letters of a line that are shown.
const SHOWN: usize = 200;
/// Maximum bytes of a line that are kept: a secret is only recognised by the text after it.
const KEPT: usize = 2048;

/// A line, and the time at which it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub at: Instant,
    pub line: Vec<u8>,
}

impl Seen {
    pub(super) fn of(at: Instant, line: &[u8]) -> Seen {
        Seen { at, line: line.get(..KEPT).unwrap_or(line).to_vec() }
    }

    /// The line without secrets and control characters.
    fn shown(&self) -> String {
        let line = String::from_utf8_lossy(&self.line);
        let masked = mask_file(line.trim()).replace(is_hidden, " ");
        masked.chars().take(SHOWN).collect()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breach {
    pub rule: String,
    /// None if the breach concerns the whole node.
    pub rank: Option<GlobalRank>,
    /// Time at which the number came, the last line came, the rank began, or the GPUs became idle.
    pub since: Instant,
    /// The line of the number; for an absence, the last line of the rank.
    pub seen: Option<Seen>,
    pub on: Reaction,
    pub text: Text,
    pub hint: Option<Text>,
}

impl Breach {
    fn new(rule: &Rule, rank: Option<GlobalRank>, since: Instant, found: Text) -> Breach {
        let id = &rule.id;
        let Text { en, zh } = match &rule.text {
            Some(meaning) => {
                let Text { en: means, zh: means_zh } = meaning;
                let Text { en, zh } = found;
                text!("{means}: {en}", "{means_zh}：{zh}")
            }
            None => found,
        };
        Breach {
            rule: id.clone(),
            rank,
            since,
            seen: None,
            on: rule.on.unwrap_or(Reaction::Report),
            text: text!("rule {id}: {en}", "规则 {id}：{zh}"),
            hint: rule.hint.clone(),
        }
    }

    pub(super) fn of_number(rule: &Rule, rank: GlobalRank, value: f64, seen: Seen) -> Breach {
        let allowed = match &rule.expects {
            Expects::Number { min: Some(min), max: Some(max), .. } => {
                text!("it must be from {min} to {max}", "应在 {min} 到 {max} 之间")
            }
            Expects::Number { min: Some(min), .. } => {
                text!("it must be at least {min}", "应不小于 {min}")
            }
            Expects::Number { max: Some(max), .. } => {
                text!("it must be at most {max}", "应不大于 {max}")
            }
            _ => text!("it must be finite", "应为有限数"),
        };
        let Text { en, zh } = allowed;
        let found = text!(
            "the value of rank {rank} is {value}, but {en}",
            "rank {rank} 的值为 {value}，{zh}"
        );
        Breach { seen: Some(seen.clone()), ..Breach::new(rule, Some(rank), seen.at, found) }
    }

    pub(super) fn of_absence(
        rule: &Rule,
        rank: GlobalRank,
        since: Instant,
        last: Option<Seen>,
    ) -> Breach {
        let found = match &rule.expects {
            Expects::Line(lines, Time::Within(time)) => {
                let (pattern, time) = (lines.pattern.as_str(), spell(*time));
                text!(
                    "rank {rank} has printed no line with {pattern} within {time} of its start",
                    "rank {rank} 启动后 {time} 内没有输出匹配 {pattern} 的行"
                )
            }
            Expects::Line(lines, Time::Every(time)) => {
                let (pattern, time) = (lines.pattern.as_str(), spell(*time));
                text!(
                    "rank {rank} has printed no line with {pattern} for {time}",
                    "rank {rank} 已有 {time} 没有输出匹配 {pattern} 的行"
                )
            }
            _ => Text::same(""),
        };
        Breach { seen: last, ..Breach::new(rule, Some(rank), since, found) }
    }

    pub(super) fn of_gpus(rule: &Rule, since: Instant) -> Breach {
        let time = match &rule.expects {
            Expects::BusyGpus(time) => spell(*time),
            _ => String::new(),
        };
        let found = text!(
            "all GPUs of the job on this node have been idle for {time}",
            "本节点上该任务的所有 GPU 已空闲 {time}"
        );
        Breach::new(rule, None, since, found)
    }

    /// The breach in words, with the last line that was seen.
    pub fn what(&self, now: Instant) -> Text {
        let Text { en, zh } = &self.text;
        let Some(seen) = self.seen.as_ref().filter(|seen| !seen.line.is_empty()) else {
            return self.text.clone();
        };
        let ago = spell(Duration::from_secs(now.saturating_duration_since(seen.at).as_secs()));
        let line = seen.shown();
        Text::new(
            format!("{en}; last line, {ago} ago: {line}"),
            format!("{zh}；最后一行（{ago} 前）：{line}"),
        )
    }

    /// Text for the console: the event, the last line, the hint, and the consequence.
    pub fn words(&self, now: Instant) -> Text {
        let nothing = || Text::same("");
        let Text { en: hint, zh: hint_zh } = self.hint.as_ref().map_or_else(nothing, |hint| {
            let Text { en, zh } = hint;
            Text::new(format!("\n  hint: {en}"), format!("\n  提示：{zh}"))
        });
        let Text { en: then, zh: then_zh } = match self.on {
            Reaction::Report => nothing(),
            Reaction::End => text!("\n  now: the job is ended", "\n  现在：任务将被终止"),
            Reaction::Restart => {
                text!("\n  now: the attempt is ended", "\n  现在：本次尝试将被终止")
            }
        };
        let Text { en, zh } = self.what(now);
        Text::new(format!("{en}{hint}{then}"), format!("{zh}{hint_zh}{then_zh}"))
    }

    /// The line that was seen, without secrets; empty if there was none.
    pub fn line(&self) -> String {
        self.seen.as_ref().map(Seen::shown).unwrap_or_default()
    }

    /// The event for agent.jsonl; `after_s`: seconds since the breach began.
    pub fn event(&self, now: Instant, lang: Lang) -> Value {
        json!({
            "message": "rule",
            "rule": {
                "id": self.rule,
                "rank": self.rank,
                "after_s": now.saturating_duration_since(self.since).as_secs(),
                "seen": self.seen.as_ref().map(Seen::shown),
                "on": self.on.name(),
                "text": self.text.get(lang),
                "hint": self.hint.as_ref().map(|hint| hint.get(lang)),
            },
        })
    }
}
