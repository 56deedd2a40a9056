//! Answers in transit: deflated, and bounded on both sides.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use serde::{Deserialize, Serialize};

use crate::protocol::NoAnswer;
use crate::protocol::question::{LARGEST_DEFLATED, base64};

/// Maximum bytes of an answer before it is deflated.
pub(crate) const LARGEST: usize = 64 << 20;

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
