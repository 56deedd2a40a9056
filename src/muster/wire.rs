//! Frames: what is said, how it is written down, and how much of it is taken.
//!
//! A frame is a four-byte length (big endian) and that many bytes of JSON, or of
//! JSON sealed by Noise. Decoding any bytes gives a frame or an error, in memory
//! that is bounded by the cap.

use std::borrow::Cow;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::compare::Difference;
use super::links::Link;
use super::survey::{Found, clean_link};
use super::types::{Again, Agreement, Card, Cause, Memory, Purpose};
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
    /// What [`Frame::Dial`] came to.
    Measured(Link),

    // Node 0 → member.
    Welcome {
        /// Node 0's steady clock in milliseconds.
        at: i64,
        /// Its wall clock; the same before version 3.
        #[serde(default)]
        wall: Option<i64>,
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
    /// All nodes are there: links are measured by whoever shows this token.
    Measure {
        token: String,
    },
    /// Measure to this node, now.
    Dial {
        to: u32,
        address: SocketAddr,
    },
    Found(Box<Found>),

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
    #[serde(default)]
    pub(super) purpose: Purpose,
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
        Frame::Found(mut found) => {
            found.links.clear();
            for visited in &mut found.nodes {
                visited.station.failed = None;
            }
            Frame::Found(found)
        }
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
            let more = [&mut card.link_layer, &mut card.rates];
            words.into_iter().chain(more).flatten().for_each(clean);
            if let Some(station) = &mut card.station {
                station.clean();
            }
        }
        Frame::Decline(refusal) | Frame::Refuse(refusal) => clean_refusal(refusal),
        Frame::Measured(link) => clean_link(link),
        Frame::Found(found) => found.clean(),
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
    clean(&mut cause.hostname);
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

pub(super) fn clean_refusal(refusal: &mut Refusal) {
    clean_text(&mut refusal.text);
    clean_text(&mut refusal.hint);
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
    use crate::muster::links::{Measured, Speed};
    use crate::muster::survey::Visited;
    use crate::muster::types::{Loss, Station, card, now};
    use crate::verdict::Id;
    use std::time::Duration;

    /// What `nnodes` nodes found of which each has a failing check.
    fn found(nnodes: u32) -> Found {
        let words = Text::same("长".repeat(LETTERS));
        let failed = Refusal::new(Id::ShmSize, words.clone(), words);
        let station = Station {
            address: Some(SocketAddr::from(([10, 0, 0, 1], 40_000))),
            interface: Some("eth0".to_owned()),
            megabits: Some(100_000),
            failed: Some(failed),
        };
        let pairs = (0..nnodes).flat_map(|from| (0..nnodes).map(move |to| (from, to)));
        let link = |(from, to)| Link { from, to, measured: Measured::Speed(Speed::default()) };
        Found {
            nnodes,
            nodes: (0..nnodes)
                .map(|node| Visited {
                    node,
                    hostname: format!("host-{node}"),
                    station: station.clone(),
                })
                .collect(),
            differences: Vec::new(),
            links: pairs.map(link).collect(),
            odd: Vec::new(),
            odd_count: 0,
            lost: vec![(1, Loss::Died)],
            unmeasured: 0,
        }
    }

    #[test]
    fn what_sixteen_nodes_found_fits_and_what_people_alone_need_goes_first() {
        let Ok(Frame::Found(read)) = decode(&encode(&Frame::Found(Box::new(found(16))))) else {
            panic!("lost")
        };
        assert_eq!((read.nodes.len(), read.lost.len()), (16, 1));
    }

    fn frames() -> Vec<Frame> {
        let cause = Cause::lost((3, None), "host-3", Loss::Died, None, Duration::ZERO, now());
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
                purpose: Purpose::Check,
            }),
            Frame::Card(card(1, 2)),
            Frame::Accept,
            Frame::Welcome { at: 5, wall: Some(6) },
            Frame::Agreed { agreement, differences: Vec::new() },
            Frame::Failed(cause.clone()),
            Frame::Verdict { cause, again: Some(Again { attempt: 1, pause: 1000 }) },
            Frame::Beat { memory: Some(Memory { used: 1, limit: 2 }) },
            Frame::Dial { to: 1, address: SocketAddr::from(([10, 0, 0, 1], 5)) },
            Frame::Found(Box::new(found(3))),
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
        let [.., agreed, failed, _, _, _, _] = all.as_slice() else { panic!("order") };
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
            which in 0usize..10, at in 0usize..400, byte in any::<u8>(), cut in 0usize..400
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
