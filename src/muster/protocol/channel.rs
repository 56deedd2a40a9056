//! One connection after its handshake: frames in, frames out.
//!
//! `Channel<In>` receives `In` and sends its answer type, so that neither side can send frames of the wrong direction.
//! A frame is a four-byte length (big endian) and that many bytes of JSON, encrypted if the nodes have a secret.
//! Decoding any bytes gives a frame or an error, in memory bounded by the length limit.

use std::io;
use std::marker::PhantomData;

use snow::TransportState;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::cause::Loss;
use super::messages::Message;
use text::lang::{Text, cause};
use text::text;

/// Bytes of the length field before every frame.
const HEADER: usize = 4;
/// Noise's authentication tag.
const TAG: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    #[error("the connection was closed")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("a frame of {0} bytes is longer than allowed")]
    TooLong(usize),
    #[error("a frame cannot be read: {0}")]
    Unreadable(String),
    #[error("a frame cannot be decrypted")]
    Cipher,
    /// Nothing was heard for longer than the peer timeout allows.
    #[error("it stopped responding")]
    Silent,
}

impl ChannelError {
    pub fn text(&self) -> Text {
        match self {
            ChannelError::Closed => text!("the connection was closed", "连接已关闭"),
            ChannelError::Io(error) => cause(error),
            ChannelError::TooLong(bytes) => {
                text!("a frame of {bytes} bytes is longer than allowed", "{bytes} 字节的帧超过上限")
            }
            ChannelError::Unreadable(why) => {
                text!("a frame cannot be read: {why}", "无法读取帧：{why}")
            }
            ChannelError::Cipher => text!("a frame cannot be decrypted", "无法解密帧"),
            ChannelError::Silent => text!("it stopped responding", "不再应答"),
        }
    }

    /// The kind of loss, judged without dialing the peer's port.
    pub fn loss(&self) -> Loss {
        match self {
            ChannelError::Silent => Loss::Silent,
            _ => Loss::Cut,
        }
    }
}

/// The transport: a socket, or memory in tests.
pub trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

#[derive(Debug)]
pub struct Channel<In, S = TcpStream> {
    stream: S,
    inbox: Vec<u8>,
    cipher: Option<Box<TransportState>>,
    longest: usize,
    /// Whether a write has met a reset. The kernel says so once; the next read finds an end as after an orderly close.
    was_reset: bool,
    direction: PhantomData<fn() -> In>,
}

impl<In: Message, S: Stream> Channel<In, S> {
    pub fn new(stream: S, cipher: Option<TransportState>) -> Channel<In, S> {
        Channel {
            stream,
            inbox: Vec::new(),
            cipher: cipher.map(Box::new),
            longest: LONGEST_UNIDENTIFIED,
            was_reset: false,
            direction: PhantomData,
        }
    }

    /// Allows long frames, once the peer is identified.
    pub fn trust(&mut self) {
        self.longest = LONGEST;
    }

    /// The raw stream. None if the peer has sent bytes that were not read.
    pub(crate) fn into_stream(self) -> Option<S> {
        self.inbox.is_empty().then_some(self.stream)
    }

    /// Bytes that are allocated for the rest of a frame.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn held(&self) -> usize {
        self.inbox.capacity()
    }

    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// The next frame. Cancel-safe: bytes already read stay in the inbox.
    pub async fn receive(&mut self) -> Result<In, ChannelError> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(frame);
            }
            let missing = self.missing()?;
            self.inbox.reserve_exact(missing);
            if self.stream.read_buf(&mut self.inbox).await? == 0 {
                return Err(match self.was_reset {
                    true => io::Error::from(io::ErrorKind::ConnectionReset).into(),
                    false => ChannelError::Closed,
                });
            }
        }
    }

    /// Length of the current frame, once its header has arrived.
    fn length(&self) -> Result<Option<usize>, ChannelError> {
        let Some(header) = self.inbox.first_chunk::<HEADER>() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*header)).unwrap_or(usize::MAX);
        if length > self.longest + TAG {
            return Err(ChannelError::TooLong(length));
        }
        Ok(Some(length))
    }

    fn missing(&self) -> Result<usize, ChannelError> {
        let whole = self.length()?.map_or(64, |length| HEADER + length);
        Ok(whole.saturating_sub(self.inbox.len()).max(1))
    }

    fn take(&mut self) -> Result<Option<In>, ChannelError> {
        let Some(length) = self.length()? else { return Ok(None) };
        let Some(bytes) = self.inbox.get(HEADER..HEADER + length) else { return Ok(None) };
        let frame = match &mut self.cipher {
            None => decode(bytes)?,
            Some(cipher) => {
                let mut plain = vec![0; length];
                let written =
                    cipher.read_message(bytes, &mut plain).map_err(|_| ChannelError::Cipher)?;
                decode(plain.get(..written).unwrap_or_default())?
            }
        };
        self.inbox.drain(..HEADER + length);
        // Large frames are rare, but ten thousand connections would each keep a large buffer.
        self.inbox.shrink_to(256);
        Ok(Some(frame))
    }

    pub async fn send(&mut self, message: &In::Answer) -> Result<(), ChannelError> {
        self.send_encoded(&encode(message)).await
    }

    /// Sends the result of [`encode`]. Not cancel-safe: a partial frame ends the connection.
    pub(crate) async fn send_encoded(&mut self, bytes: &[u8]) -> Result<(), ChannelError> {
        let mut framed = Vec::with_capacity(HEADER + bytes.len() + TAG);
        match &mut self.cipher {
            None => {
                framed.extend(header(bytes.len()));
                framed.extend(bytes);
            }
            Some(cipher) => {
                framed.resize(HEADER + bytes.len() + TAG, 0);
                let (head, body) = framed.split_at_mut(HEADER);
                let written =
                    cipher.write_message(bytes, body).map_err(|_| ChannelError::Cipher)?;
                head.copy_from_slice(&header(written));
            }
        }
        let written = self.stream.write_all(&framed).await;
        // A pipe is broken after the peer's orderly close, which the next read finds.
        self.was_reset |=
            written.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::BrokenPipe);
        Ok(written?)
    }

    /// Shuts down our side and waits for the peer to close. So the last frame is not lost to a reset that unread bytes
    /// would cause.
    pub async fn close(mut self) {
        let _ = self.stream.shutdown().await;
        let mut rest = [0u8; 256];
        while self.stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
    }
}

fn header(length: usize) -> [u8; HEADER] {
    u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes()
}

/// Maximum bytes of a frame. Noise allows 65 535 bytes with its tag.
pub(crate) const LONGEST: usize = 60_000;
/// Maximum bytes of a frame on an unidentified connection.
pub(crate) const LONGEST_UNIDENTIFIED: usize = 2_048;

/// The bytes of a frame without its length field; at most [`LONGEST`] bytes.
pub(crate) fn encode<M: Message>(message: &M) -> Vec<u8> {
    let fit = |message: &M| serde_json::to_vec(message).ok().filter(|bytes| bytes.len() <= LONGEST);
    fit(message)
        .or_else(|| fit(&message.shortened()?))
        // No frame of ours is so long; a heartbeat is harmless in both directions.
        .unwrap_or_else(|| b"{\"heartbeat\":{\"memory\":null}}".to_vec())
}

pub(crate) fn decode<M: Message>(bytes: &[u8]) -> Result<M, ChannelError> {
    let mut message: M = serde_json::from_slice(bytes)
        .map_err(|error| ChannelError::Unreadable(error.to_string()))?;
    message.sanitize().map_err(|why| ChannelError::Unreadable(why.to_owned()))?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::cause::{LETTERS, LINES};
    use super::*;
    use crate::keepalive::now;
    use crate::links::{Link, Measured, Speed};
    use crate::protocol::{
        Again, Agreement, Cause, FromMember, FromNode0, Hello, JobKey, LinkReport, Loss,
        MeasureEndpoint, Memory, NodeResult, Purpose, ResumePoint, Tally,
    };
    use crate::tests::summary;
    use verdict::{Id, Refusal};

    /// A report of `nnodes` nodes, each with a failing check.
    fn report(nnodes: u32) -> LinkReport {
        let words = Text::same("长".repeat(LETTERS));
        let failed = Refusal::new(Id::ShmSize, words.clone(), words);
        let endpoint = MeasureEndpoint {
            address: Some(SocketAddr::from(([10, 0, 0, 1], 40_000))),
            interface: Some("eth0".to_owned()),
            megabits: Some(100_000),
            failed: Some(failed),
        };
        let pairs = (0..nnodes).flat_map(|from| (0..nnodes).map(move |to| (from, to)));
        let link = |(from, to)| Link { from, to, measured: Measured::Speed(Speed::default()) };
        let result = |node| NodeResult {
            node,
            hostname: format!("host-{node}"),
            endpoint: endpoint.clone(),
        };
        LinkReport {
            nnodes,
            nodes: (0..nnodes).map(result).collect(),
            differences: Vec::new(),
            links: pairs.map(link).collect(),
            outliers: Vec::new(),
            outlier_count: 0,
            lost: vec![(1, Loss::Died)],
            unmeasured: 0,
        }
    }

    #[test]
    fn report_of_sixteen_nodes_fits_without_optional_text() {
        let Ok(FromNode0::Report(read)) = decode(&encode(&FromNode0::Report(Box::new(report(16)))))
        else {
            panic!("lost")
        };
        assert_eq!((read.nodes.len(), read.lost.len()), (16, 1));
    }

    fn cause() -> Cause {
        Cause::lost((3, None), "host-3", Loss::Died, None, Duration::ZERO, now())
    }

    fn agreed(run_id: &str) -> FromNode0 {
        let agreement = Agreement {
            seats: Vec::new(),
            resume: Some(u64::MAX),
            nnodes: 2,
            nproc: 5,
            world: 10,
            ulysses: 10,
            ring: 1,
            heads: Some(40),
            master_port: 29500,
            run_id: run_id.to_owned(),
            timestamp: "20250102-030405".to_owned(),
            attempt: 0,
        };
        let (token, hostname) = ("a1".to_owned(), "host-0".to_owned());
        let resume = Some(ResumePoint { port: 4711, token, hostname });
        let (differences, said) = (Vec::new(), vec![1, u64::MAX]);
        FromNode0::Agreed { agreement, differences, said, resume, electorate: None }
    }

    fn from_member() -> Vec<FromMember> {
        vec![
            FromMember::Hello(Hello {
                node: 1,
                key: JobKey { job: None, port: 29500, nnodes: 2 },
                hostname: "a".to_owned(),
                purpose: Purpose::Check,
                resume: Some("a1".to_owned()),
                held: Some(3),
            }),
            FromMember::Summary(Box::new(summary(1, 2))),
            FromMember::Accept,
            FromMember::Failed(cause()),
            FromMember::Heartbeat { memory: Some(Memory { used: 1, limit: 2 }) },
        ]
    }

    fn from_node_0() -> Vec<FromNode0> {
        vec![
            FromNode0::Welcome { at: 5, wall: 6 },
            agreed("job-20250102-030405-abcd"),
            FromNode0::Verdict {
                cause: cause(),
                again: Some(Again {
                    attempt: 1,
                    pause: 1000,
                    tally: Tally { restarts: 7, without_progress: 2 },
                }),
            },
            FromNode0::MeasureTo { to: 1, address: SocketAddr::from(([10, 0, 0, 1], 5)) },
            FromNode0::Report(Box::new(report(3))),
        ]
    }

    #[test]
    fn frames_survive_the_wire() {
        for message in from_member() {
            assert_eq!(decode(&encode(&message)).ok(), Some(message));
        }
        for message in from_node_0() {
            assert_eq!(decode(&encode(&message)).ok(), Some(message));
        }
    }

    #[test]
    fn text_for_terminals_and_paths_is_checked() {
        for run_id in ["../../etc", "", "a b", ".hidden", "a/b", &"x".repeat(200)] {
            assert!(decode::<FromNode0>(&encode(&agreed(run_id))).is_err(), "{run_id}");
        }
        let mut cause = cause();
        cause.lines = vec!["\u{1b}[2J".to_owned() + &"长".repeat(9000); 500];
        let bytes = encode(&FromMember::Failed(cause.clone()));
        assert!(bytes.len() <= LONGEST);
        cause.sanitize();
        let Ok(FromMember::Failed(read)) = decode(&encode(&FromMember::Failed(cause))) else {
            panic!("lost")
        };
        assert_eq!(read.lines.len(), LINES);
        let is_clean = |line: &String| !line.contains('\u{1b}') && line.chars().count() <= LETTERS;
        assert!(read.lines.iter().all(is_clean));
    }

    /// Whether damaged bytes give a frame that cannot be encoded within the limit.
    fn read_again<M: Message>(bytes: &[u8]) -> bool {
        decode::<M>(bytes).is_ok_and(|message| encode(&message).len() > LONGEST)
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_frame_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(!read_again::<FromMember>(&bytes) && !read_again::<FromNode0>(&bytes));
        }

        #[test]
        fn damaged_frame_gives_a_frame_or_error(
            which in 0usize..10, at in 0usize..400, byte in any::<u8>(), cut in 0usize..400
        ) {
            let all = from_member().iter().map(encode).collect::<Vec<_>>();
            let mut all = [all, from_node_0().iter().map(encode).collect()].concat();
            let bytes = &mut all[which];
            let length = bytes.len();
            if let Some(place) = bytes.get_mut(at % length) { *place = byte; }
            bytes.truncate(length.saturating_sub(cut % 40));
            prop_assert!(!read_again::<FromMember>(bytes) && !read_again::<FromNode0>(bytes));
        }
    }
}
