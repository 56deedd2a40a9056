//! Shows a job that stands still: a block on the console, and an element of `hang` in run.json and
//! agent.jsonl.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use super::both_languages::both_languages;
use super::closing::{self, Lines};
use super::files::stamp;
use logs::Console;
use monitor::hang::{Culprit, Hang, Sign};
use monitor::hang::{Reporter, Standstill};
use settings::Reaction;
use text::lang::{Lang, Text};
use text::ranges::listed;
use text::style::Style;
use text::text;

/// Maximum number of culprits, and of other signs of something abnormal, that the console names;
/// all are in the files.
const MOST_SHOWN: usize = 4;

/// Reports standstills to the console and to agent.jsonl.
pub struct StandstillReporter {
    pub console: Console,
    pub lang: Lang,
    pub keep: Box<dyn Fn(Value) + Send + Sync>,
}

impl std::fmt::Debug for StandstillReporter {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("StandstillReporter").finish_non_exhaustive()
    }
}

impl Reporter for StandstillReporter {
    fn document(&self, found: &Standstill) -> Value {
        both_languages(|lang| document_in(found, lang))
    }

    fn keep(&self, event: Value) {
        (self.keep)(event);
    }

    fn stands_still(&self, found: &Standstill, then: Option<Reaction>) {
        self.console.say(&block(found, then, self.lang));
    }

    fn remark(&self, found: &Standstill) {
        for line in remarks(found) {
            self.console.say(&closing::line(&line, self.lang));
        }
    }

    fn goes_on(&self) {
        let line = text!("the job goes on by itself", "任务已自行恢复");
        self.console.say(&closing::line(&line, self.lang));
    }
}

/// The block for people when a standstill is found. `on_hang`: None if it ends nothing, since torch
/// itself ends the wait.
fn block(found: &Standstill, on_hang: Option<Reaction>, lang: Lang) -> String {
    let Hang { culprits, waiting, signs, silent, .. } = &found.hang;
    let seconds = found.after.as_secs();
    let mut lines = Lines::new(lang);
    let title = text!(
        "the job stands still: nothing has moved for {seconds} s",
        "任务卡死：已有 {seconds} 秒没有任何进展"
    );
    lines.title(Style::Fail, &title);
    let mut line = |label: Text, words: &str| lines.labelled("   ", &label, words);
    // If no side is odd, one sentence describes all sides.
    let mut texts: Vec<&str> = culprits.iter().map(|one| one.text.get(lang)).collect();
    texts.dedup();
    for text in texts.iter().take(MOST_SHOWN) {
        line(text!("culprit", "起因"), text);
    }
    if let Some(more) = texts.len().checked_sub(MOST_SHOWN).filter(|more| *more > 0) {
        line(text!("culprit", "起因"), text!("{more} more", "另有 {more} 个").get(lang));
    }
    if !waiting.is_empty() {
        let ranks: Vec<u32> = waiting.values().flatten().copied().collect();
        line(text!("waiting", "等待"), numbered("rank", "rank", &ranks).get(lang));
    }
    for sign in signs.iter().take(MOST_SHOWN) {
        line(text!("seen", "现象"), sign.text.get(lang));
    }
    if !silent.is_empty() {
        line(text!("not seen", "未查看"), numbered("node", "节点", silent).get(lang));
    }
    if let Some(first) = culprits.first() {
        line(text!("hint", "提示"), first.kind.hint().get(lang));
    }
    line(text!("now", "现在"), then(on_hang).get(lang));
    lines.out
}

/// `rank 3`, `ranks 0-1, 3`
fn numbered(en: &str, zh: &str, numbers: &[u32]) -> Text {
    let list = listed(numbers.iter().copied(), '-');
    let many = if numbers.len() == 1 { "" } else { "s" };
    Text::new(format!("{en}{many} {list}"), format!("{zh} {list}"))
}

/// A line for each rank that is at work.
fn remarks(found: &Standstill) -> Vec<Text> {
    let ranks: Vec<u32> = found.hang.waiting.values().flatten().copied().collect();
    let Text { en: en_ranks, zh: zh_ranks } = numbered("rank", "rank", &ranks);
    let waits = if ranks.len() == 1 { "waits" } else { "wait" };
    let seconds = found.after.as_secs();
    let since = found.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let since = since.saturating_sub(seconds);
    let since = stamp(UNIX_EPOCH + Duration::from_secs(since));
    let line = |one: &Culprit| {
        let Text { en, zh } = &one.text;
        // A wait may have begun later than the standstill.
        text!(
            "{en}; {en_ranks} {waits} for it, and nothing has moved since {since} ({seconds} s), which ends nothing",
            "{zh}；{zh_ranks} 正在等待它，自 {since} 起没有任何进展（{seconds} 秒），任务不会因此终止"
        )
    };
    found.hang.culprits.iter().take(MOST_SHOWN).map(line).collect()
}

/// An element of `hang` in run.json.
fn document_in(found: &Standstill, lang: Lang) -> Value {
    let Hang { culprits, waiting, confidence, signs, silent, is_awaited: _, late: _ } = &found.hang;
    let waiting: Vec<Value> =
        waiting.iter().map(|(node, ranks)| json!({ "node": node, "ranks": ranks })).collect();
    json!({
        "at": stamp(found.at),
        "after_s": found.after.as_secs(),
        "culprits": culprits.iter().map(|one| culprit(one, lang)).collect::<Vec<_>>(),
        "waiting": waiting,
        "confidence": confidence,
        "signs": signs.iter().map(|one| sign(one, lang)).collect::<Vec<_>>(),
        "silent_nodes": silent,
    })
}

fn culprit(of: &Culprit, lang: Lang) -> Value {
    let collective = of
        .collective
        .as_ref()
        .map(|one| json!({ "op": one.op, "group": one.group, "seq": one.seq }));
    json!({
        "node": of.node,
        "rank": of.rank,
        "kind": of.kind,
        "frame": of.frame.as_ref().map(|frame| format!("{}:{}", frame.path, frame.line)),
        "function": of.frame.as_ref().map(|frame| &frame.function),
        "collective": collective,
        "text": of.text.get(lang),
        "hint": of.kind.hint().get(lang),
    })
}

fn sign(of: &Sign, lang: Lang) -> Value {
    json!({ "kind": of.kind, "node": of.node, "ranks": of.ranks, "text": of.text.get(lang) })
}

/// The consequence of the standstill for the job.
fn then(on_hang: Option<Reaction>) -> Text {
    match on_hang {
        None => text!(
            "the job goes on: torch is about to give up this wait by itself",
            "任务继续运行：torch 即将自行放弃这次等待"
        ),
        Some(Reaction::Report) => text!(
            "the job goes on (--on-hang report); ranklaunch stacks shows where all ranks are",
            "任务继续运行（--on-hang report）；ranklaunch stacks 可查看所有 rank 的位置"
        ),
        Some(Reaction::End) => {
            text!("the job is ended (--on-hang end)", "任务将被终止（--on-hang end）")
        }
        Some(Reaction::Restart) => text!(
            "the attempt is ended (--on-hang restart)",
            "本次尝试将被终止（--on-hang restart）"
        ),
    }
}
