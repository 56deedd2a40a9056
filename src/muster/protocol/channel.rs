//! One connection after its handshake: frames in, frames out.
//!
//! `Channel<In>` receives `In` and sends its answer type, so that neither side can send frames of the wrong direction.

use std::io;
use std::marker::PhantomData;

use snow::TransportState;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::codec::{self, CodecError, LONGEST, LONGEST_UNIDENTIFIED};
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
    #[error(transparent)]
    Codec(#[from] CodecError),
    #[error("a frame cannot be decrypted")]
    Cipher,
}

impl ChannelError {
    pub fn text(&self) -> Text {
        match self {
            ChannelError::Closed => text!("the connection was closed", "连接已关闭"),
            ChannelError::Io(error) => cause(error),
            ChannelError::Codec(CodecError::TooLong(bytes)) => {
                text!("a frame of {bytes} bytes is longer than allowed", "{bytes} 字节的帧超过上限")
            }
            ChannelError::Codec(CodecError::Unreadable(why)) => {
                text!("a frame cannot be read: {why}", "无法读取帧：{why}")
            }
            ChannelError::Cipher => text!("a frame cannot be decrypted", "无法解密帧"),
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
    direction: PhantomData<fn() -> In>,
}

impl<In: Message, S: Stream> Channel<In, S> {
    pub fn new(stream: S, cipher: Option<TransportState>) -> Channel<In, S> {
        Channel {
            stream,
            inbox: Vec::new(),
            cipher: cipher.map(Box::new),
            longest: LONGEST_UNIDENTIFIED,
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
                return Err(ChannelError::Closed);
            }
        }
    }

    /// Length of the current frame, once its header has arrived.
    fn length(&self) -> Result<Option<usize>, ChannelError> {
        let Some(header) = self.inbox.first_chunk::<HEADER>() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*header)).unwrap_or(usize::MAX);
        if length > self.longest + TAG {
            return Err(CodecError::TooLong(length).into());
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
            None => codec::decode(bytes)?,
            Some(cipher) => {
                let mut plain = vec![0; length];
                let written =
                    cipher.read_message(bytes, &mut plain).map_err(|_| ChannelError::Cipher)?;
                codec::decode(plain.get(..written).unwrap_or_default())?
            }
        };
        self.inbox.drain(..HEADER + length);
        // Large frames are rare, but ten thousand connections would each keep a large buffer.
        self.inbox.shrink_to(256);
        Ok(Some(frame))
    }

    pub async fn send(&mut self, message: &In::Answer) -> Result<(), ChannelError> {
        self.send_encoded(&codec::encode(message)).await
    }

    /// Sends the result of [`codec::encode`]. Not cancel-safe: a partial frame ends the connection.
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
        self.stream.write_all(&framed).await?;
        Ok(())
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
