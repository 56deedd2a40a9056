//! Frames: what is said, how it is written down, and how much of it is taken.
//!
//! A frame is a four-byte length (big endian) and that many bytes of JSON, or of
//! JSON sealed by Noise. Decoding any bytes gives a frame or an error, in memory
//! that is bounded by the cap.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::compare::Difference;
use super::types::{Again, Agreement, Card, Cause, Memory};
use crate::lang::Text;
use crate::verdict::Refusal;

/// Longest frame. Noise allows 65 535 bytes with its tag.
pub(super) const LONGEST: usize = 60_000;
/// Longest frame of somebody who has not said who he is.
pub(super) const LONGEST_STRANGER: usize = 2_048;
/// Last lines in a cause, and letters in each, so that a cause always fits.
const LINES: usize = 20;
const LETTERS: usize = 400;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Frame {
    // Member → node 0.
    Hello(Hello),
    Card(Card),
    Accept,
    Decline(Refusal),
    Failed(Cause),
    /// All ranks of the node ended well.
    Done,
    Pong,

    // Node 0 → member.
    /// Node 0's clock in milliseconds.
    Welcome {
        at: i64,
    },
    Refuse(Refusal),
    /// The muster is called off; every node goes on by itself.
    Alone(Text),
    Agreed {
        agreement: Agreement,
        differences: Vec<Difference>,
    },
    Go,
    Ping,
    /// A node failed: stop, the verdict follows.
    Stop,
    Verdict {
        cause: Cause,
        again: Option<Again>,
    },
    AllDone,

    // Both ways.
    Beat {
        memory: Option<Memory>,
    },
}

/// The first frame of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) node: u32,
    pub(super) nnodes: u32,
    pub(super) job: Option<String>,
    pub(super) port: u16,
    pub(super) hostname: String,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum WireError {
    #[error("a frame of {0} bytes is longer than allowed")]
    TooLong(usize),
    #[error("a frame cannot be read: {0}")]
    Unreadable(String),
}

/// The frame's bytes without the length. Never longer than [`LONGEST`].
pub(super) fn encode(frame: &Frame) -> Vec<u8> {
    let fit = |frame: &Frame| serde_json::to_vec(frame).ok().filter(|bytes| bytes.len() <= LONGEST);
    fit(frame)
        .or_else(|| fit(&shortened(frame)))
        // Nothing of ours is so long; a heartbeat is harmless everywhere.
        .unwrap_or_else(|| b"{\"beat\":{\"memory\":null}}".to_vec())
}

/// Without what only helps people.
fn shortened(frame: &Frame) -> Frame {
    match frame.clone() {
        Frame::Failed(cause) => Frame::Failed(Cause { lines: Vec::new(), ..cause }),
        Frame::Verdict { cause, again } => {
            Frame::Verdict { cause: Cause { lines: Vec::new(), ..cause }, again }
        }
        Frame::Agreed { agreement, .. } => Frame::Agreed { agreement, differences: Vec::new() },
        other => other,
    }
}

pub(super) fn decode(bytes: &[u8]) -> Result<Frame, WireError> {
    let mut frame: Frame =
        serde_json::from_slice(bytes).map_err(|error| WireError::Unreadable(error.to_string()))?;
    match &mut frame {
        Frame::Hello(hello) => {
            clean(&mut hello.hostname);
            if let Some(job) = &mut hello.job {
                clean(job);
            }
        }
        Frame::Card(card) => {
            if !card.is_sound() {
                return Err(WireError::Unreadable("a card that cannot be".to_owned()));
            }
            clean(&mut card.hostname);
            clean(&mut card.version);
            let words = [&mut card.torch, &mut card.driver, &mut card.script, &mut card.nccl];
            words.into_iter().chain([&mut card.link_layer]).flatten().for_each(clean);
        }
        Frame::Decline(refusal) | Frame::Refuse(refusal) => {
            clean(&mut refusal.id);
            clean_text(&mut refusal.text);
            clean_text(&mut refusal.hint);
        }
        Frame::Alone(text) => clean_text(text),
        Frame::Failed(cause) | Frame::Verdict { cause, .. } => clean_cause(cause),
        Frame::Agreed { agreement, differences } => {
            if !agreement.is_sound() {
                return Err(WireError::Unreadable("an agreement that cannot be".to_owned()));
            }
            differences.iter_mut().for_each(Difference::clean);
        }
        _ => {}
    }
    Ok(frame)
}

/// Cuts a cause to what a frame carries.
pub(super) fn clean_cause(cause: &mut Cause) {
    for word in [&mut cause.hostname, &mut cause.id, &mut cause.class] {
        clean(word);
    }
    clean_text(&mut cause.text);
    clean_text(&mut cause.hint);
    let surplus = cause.lines.len().saturating_sub(LINES);
    cause.lines.drain(..surplus);
    cause.lines.iter_mut().for_each(clean);
}

/// What comes from elsewhere ends on a terminal: no control characters, no endless words.
pub(super) fn clean(word: &mut String) {
    if word.len() > LETTERS || word.chars().any(char::is_control) {
        *word = word
            .chars()
            .take(LETTERS)
            .map(|letter| if letter.is_control() { '\u{fffd}' } else { letter })
            .collect();
    }
}

fn clean_text(text: &mut Text) {
    for words in [&mut text.en, &mut text.zh] {
        let mut owned = std::mem::take(words).into_owned();
        if owned.chars().count() > 4 * LETTERS {
            owned = owned.chars().take(4 * LETTERS).collect();
        }
        if owned.chars().any(char::is_control) {
            owned = owned.replace(char::is_control, " ");
        }
        *words = Cow::Owned(owned);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::muster::types::{Loss, card, millis};
    use std::time::{Duration, SystemTime};

    fn frames() -> Vec<Frame> {
        let cause =
            Cause::lost(3, "host-3", Loss::Died, None, Duration::ZERO, millis(SystemTime::now()));
        let agreement = Agreement {
            nnodes: 2,
            nproc: 5,
            world: 10,
            ulysses: 10,
            ring: 1,
            heads: Some(40),
            master_port: 29500,
            run_id: "job-20250102-030405-abcd".to_owned(),
            timestamp: "20250102-030405".to_owned(),
            attempt: 0,
        };
        vec![
            Frame::Hello(Hello {
                node: 1,
                nnodes: 2,
                job: None,
                port: 29500,
                hostname: "a".to_owned(),
            }),
            Frame::Card(card(1, 2)),
            Frame::Accept,
            Frame::Welcome { at: 5 },
            Frame::Agreed { agreement, differences: Vec::new() },
            Frame::Failed(cause.clone()),
            Frame::Verdict { cause, again: Some(Again { attempt: 1, pause: 1000 }) },
            Frame::Beat { memory: Some(Memory { used: 1, limit: 2 }) },
        ]
    }

    #[test]
    fn frames_survive_the_wire() {
        for frame in frames() {
            assert_eq!(decode(&encode(&frame)), Ok(frame));
        }
    }

    #[test]
    fn what_ends_on_a_terminal_or_in_a_path_is_checked() {
        let all = frames();
        let [.., agreed, failed, _, _] = all.as_slice() else { panic!("order") };
        let Frame::Agreed { mut agreement, differences } = agreed.clone() else { panic!("order") };
        for run_id in ["../../etc", "", "a b", ".hidden", "a/b", &"x".repeat(200)] {
            agreement.run_id = run_id.to_owned();
            let frame =
                Frame::Agreed { agreement: agreement.clone(), differences: differences.clone() };
            assert!(decode(&encode(&frame)).is_err(), "{run_id}");
        }
        let Frame::Failed(mut cause) = failed.clone() else { panic!("order") };
        cause.lines = vec!["\u{1b}[2J".to_owned() + &"长".repeat(9000); 500];
        let bytes = encode(&Frame::Failed(cause.clone()));
        assert!(bytes.len() <= LONGEST);
        clean_cause(&mut cause);
        let Ok(Frame::Failed(read)) = decode(&encode(&Frame::Failed(cause))) else {
            panic!("lost")
        };
        assert_eq!(read.lines.len(), LINES);
        assert!(
            read.lines
                .iter()
                .all(|line| !line.contains('\u{1b}') && line.chars().count() <= LETTERS)
        );
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_frame_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes);
        }

        #[test]
        fn a_damaged_frame_gives_a_frame_or_an_error(
            which in 0usize..8, at in 0usize..400, byte in any::<u8>(), cut in 0usize..400
        ) {
            let mut bytes = encode(&frames()[which]);
            let length = bytes.len();
            if let Some(place) = bytes.get_mut(at % length) { *place = byte; }
            bytes.truncate(length.saturating_sub(cut % 40));
            if let Ok(frame) = decode(&bytes) {
                prop_assert!(encode(&frame).len() <= LONGEST);
            }
        }
    }
}
