//! What a job that ended has saved: one line of the closing block, and the same for run.json.

use std::time::Duration;

use serde::Serialize;

use linux::pace::clock;
use text::lang::Text;
use text::text;

/// The newest whole checkpoint when a job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Saved {
    /// None: there is none.
    pub name: Option<String>,
    pub step: Option<u64>,
    /// Time since it was written.
    #[serde(rename = "age_s", serialize_with = "seconds")]
    pub age: Option<Duration>,
    /// It was written after the notice, or else in this attempt.
    pub is_new: bool,
    /// A notice came before the end.
    pub after_notice: bool,
    /// Steps that were reported after it, or all of them without it; None: this node does not know.
    pub lost_steps: Option<u64>,
}

fn seconds<S: serde::Serializer>(age: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    age.map(|age| age.as_secs_f64()).serialize(to)
}

impl Saved {
    pub fn words(&self) -> Text {
        let newest = self.newest();
        let Some(lost) = self.lost_steps else { return newest };
        let (en, zh) = (&newest.en, &newest.zh);
        match (lost, self.name.is_some()) {
            (0, _) => newest,
            (1, true) => text!("{en}; one step after it is lost", "{zh}；其后丢失 1 步"),
            (_, true) => {
                text!("{en}; about {lost} steps after it are lost", "{zh}；其后约 {lost} 步丢失")
            }
            (_, false) => text!("{en}; about {lost} steps are lost", "{zh}；约 {lost} 步丢失"),
        }
    }

    fn newest(&self) -> Text {
        let (Some(name), Some(age)) = (&self.name, self.age) else {
            return text!("nothing: no whole checkpoint is there", "无：没有完整的检查点");
        };
        let age = clock(age);
        match (self.is_new, self.after_notice) {
            (true, true) => {
                text!("{name}, {age} ago, after the notice", "{name}（{age} 前，收到通知之后）")
            }
            (true, false) => text!("{name}, {age} ago", "{name}（{age} 前）"),
            (false, true) => text!(
                "nothing after the notice: the newest is {name}, {age} old",
                "收到通知后未保存：最新的是 {name}，{age} 前"
            ),
            (false, false) => text!(
                "nothing in this attempt: the newest is {name}, {age} old",
                "本次尝试未保存：最新的是 {name}，{age} 前"
            ),
        }
    }
}
