//! The frames of questions between the nodes of a running job, and answers in transit: deflated, and bounded on both
//! sides. The frames are the same in both directions, since node 0 asks the others, and a node asks all of them through
//! node 0.
//!
//! The asking node fetches the parts of an answer, a few at a time. So a large answer never fills a connection, and
//! other frames wait for one part at most.

use std::io::{Read, Write};
use std::time::Duration;

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use serde::{Deserialize, Serialize};

use linux::deadline::millis;
use text::lang::Text;
use text::text;

/// Maximum bytes of a question.
pub(crate) const LONGEST_QUESTION: usize = 32 << 10;
/// Bytes of a part. Parts are small, because on a slow link the frames of the muster wait for one part.
pub(crate) const PART: usize = 16 << 10;
/// Maximum bytes of a deflated answer.
pub(crate) const LARGEST_DEFLATED: usize = 8 << 20;

/// A frame of a question or an answer. `id` names the asking side's question, `node` the node that answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuestionFrame {
    /// To a node: a request to answer. To node 0: a request to ask all nodes but the sender.
    Ask {
        id: u64,
        /// Milliseconds for which the asker waits for the answer.
        within: u64,
        #[serde(with = "base64")]
        question: Vec<u8>,
        /// Set only by node 0: the interval in milliseconds at which the node answers again until `within` is over.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        every: Option<u64>,
    },
    /// The answer is ready and has this many bytes, deflated.
    Ready {
        id: u64,
        node: u32,
        length: usize,
    },
    None {
        id: u64,
        node: u32,
        why: NoAnswer,
    },
    /// A request for the next part. A small answer to node 0 is one part that is sent without a request.
    Fetch {
        id: u64,
        node: u32,
    },
    Part {
        id: u64,
        node: u32,
        #[serde(with = "base64")]
        bytes: Vec<u8>,
    },
}

/// The reason why a node gave no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum NoAnswer {
    /// The answer did not come within the time.
    Late,
    /// The node's agent died, or was silent for too long.
    Lost,
    /// The node's ranks have not started, or have ended.
    NotReady,
    /// As many questions as allowed are open, or no thread can be created.
    Busy,
    /// `most`: bytes allowed.
    TooLarge { bytes: u64, most: u64 },
    /// The question is longer than allowed.
    Question { bytes: u64, most: u64 },
    /// The bytes of the answer cannot be read.
    Unreadable,
    /// The job ended in the meantime.
    Ended,
}

impl NoAnswer {
    pub fn text(self) -> Text {
        match self {
            NoAnswer::Late => text!("no answer in time", "未在时限内应答"),
            NoAnswer::Lost => {
                text!("its agent died or fell silent", "其 agent 已退出或失去响应")
            }
            NoAnswer::NotReady => {
                text!("its ranks have not started, or have ended", "其 rank 尚未启动或已经结束")
            }
            NoAnswer::Busy => text!(
                "its agent has too many open questions, or too few threads",
                "其 agent 未处理完的查询过多，或无法创建线程"
            ),
            NoAnswer::TooLarge { bytes, most } => text!(
                "its answer of {bytes} bytes is larger than the allowed {most}",
                "其应答为 {bytes} 字节，超过上限 {most}"
            ),
            NoAnswer::Question { bytes, most } => text!(
                "the question of {bytes} bytes is longer than the allowed {most}",
                "查询为 {bytes} 字节，超过上限 {most}"
            ),
            NoAnswer::Unreadable => text!("its answer cannot be read", "无法读取其应答"),
            NoAnswer::Ended => text!("the job ended meanwhile", "任务在此期间已结束"),
        }
    }

    pub(crate) fn too_large(bytes: usize, most: usize) -> NoAnswer {
        let [bytes, most] = [bytes, most].map(|count| u64::try_from(count).unwrap_or(u64::MAX));
        NoAnswer::TooLarge { bytes, most }
    }
}

impl QuestionFrame {
    pub fn ask(
        id: u64,
        within: Duration,
        question: &[u8],
        every: Option<Duration>,
    ) -> QuestionFrame {
        let (within, every) = (millis(within), every.map(millis));
        QuestionFrame::Ask { id, within, question: question.to_owned(), every }
    }

    /// # Errors
    /// If there are more bytes than a correct node sends.
    pub fn check(&self) -> Result<(), &'static str> {
        match self {
            QuestionFrame::Ask { question, .. } if question.len() > LONGEST_QUESTION => {
                Err("a question that is too long")
            }
            QuestionFrame::Part { bytes, .. } if bytes.len() > PART => {
                Err("a part of an answer that is too long")
            }
            _ => Ok(()),
        }
    }
}

/// Encodes bytes in JSON.
pub(crate) mod base64 {
    use std::borrow::Cow;

    use data_encoding::BASE64;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64.encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        BASE64.decode(text.as_bytes()).map_err(D::Error::custom)
    }
}

/// Maximum bytes of an answer before it is deflated.
pub(crate) const LARGEST: usize = 64 << 20;

/// The form of an answer: plain on this node, deflated if it leaves the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Plain,
    Deflated,
}

/// An answer in the form in which it arrived. In JSON its bytes are text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Packed {
    Plain(#[serde(with = "base64")] Vec<u8>),
    Deflated(#[serde(with = "base64")] Vec<u8>),
}

impl Packed {
    /// # Errors
    /// If the bytes cannot be read, or there are too many.
    pub fn open(self) -> Result<Vec<u8>, NoAnswer> {
        match self {
            Packed::Plain(answer) => Ok(answer),
            Packed::Deflated(bytes) => inflate(&bytes),
        }
    }
}

/// # Errors
/// [`NoAnswer::TooLarge`].
pub(crate) fn deflate(answer: &[u8]) -> Result<Vec<u8>, NoAnswer> {
    check(answer.len(), LARGEST)?;
    let mut out = ZlibEncoder::new(Vec::new(), Compression::fast());
    // Neither call fails, since the output is in memory.
    let written = out.write_all(answer).and_then(|()| out.finish());
    let deflated = written.map_err(|_| NoAnswer::Unreadable)?;
    check(deflated.len(), LARGEST_DEFLATED)?;
    Ok(deflated)
}

/// # Errors
/// [`NoAnswer::Unreadable`], or [`NoAnswer::TooLarge`] as soon as more than the allowed bytes are inflated.
pub(crate) fn inflate(deflated: &[u8]) -> Result<Vec<u8>, NoAnswer> {
    let mut answer = Vec::new();
    let most = u64::try_from(LARGEST).unwrap_or(u64::MAX).saturating_add(1);
    let read = ZlibDecoder::new(deflated).take(most).read_to_end(&mut answer);
    read.map_err(|_| NoAnswer::Unreadable)?;
    check(answer.len(), LARGEST)?;
    Ok(answer)
}

fn check(bytes: usize, most: usize) -> Result<(), NoAnswer> {
    if bytes > most { Err(NoAnswer::too_large(bytes, most)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_survives_unless_too_large_or_broken() {
        let answer: Vec<u8> = (0..200_000u32).flat_map(u32::to_le_bytes).collect();
        let deflated = deflate(&answer).expect("small");
        assert!(deflated.len() < answer.len());
        assert_eq!(inflate(&deflated), Ok(answer));
        assert_eq!(inflate(&deflated[..deflated.len() / 2]), Err(NoAnswer::Unreadable));
        assert_eq!(inflate(b"not deflated"), Err(NoAnswer::Unreadable));
        // Both limits: one before deflating, and one for bytes that do not get smaller.
        let large = vec![0; LARGEST + 1];
        assert_eq!(deflate(&large), Err(NoAnswer::too_large(LARGEST + 1, LARGEST)));
        let mut state = 1u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        })
        .take(LARGEST_DEFLATED / 8 + 1)
        .flatten()
        .collect();
        let refused = deflate(&noise).expect_err("noise");
        assert!(matches!(refused, NoAnswer::TooLarge { most, .. } if most == 8 << 20));
    }

    /// A bomb: a few kilobytes that would inflate to more than is allowed.
    #[test]
    fn deflate_bomb_is_cut_off() {
        let mut out = ZlibEncoder::new(Vec::new(), Compression::best());
        for _ in 0..65 {
            out.write_all(&vec![0; 1 << 20]).expect("memory");
        }
        let bomb = out.finish().expect("memory");
        assert!(bomb.len() < 100_000);
        assert_eq!(inflate(&bomb), Err(NoAnswer::too_large(LARGEST + 1, LARGEST)));
    }
}
