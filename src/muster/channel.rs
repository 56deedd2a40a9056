//! One connection after its handshake: frames in, frames out.

use std::io;

use snow::TransportState;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::wire::{self, Frame, LONGEST, LONGEST_STRANGER, WireError};
use crate::lang::{Text, cause};
use crate::text;

/// Bytes of the length before every frame.
const HEADER: usize = 4;
/// Noise's authentication tag.
const TAG: usize = 16;

#[derive(Debug, thiserror::Error)]
pub(super) enum ChannelError {
    #[error("the connection was closed")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("a frame cannot be deciphered")]
    Cipher,
}

impl ChannelError {
    pub(super) fn text(&self) -> Text {
        match self {
            ChannelError::Closed => text!("the connection was closed", "连接已关闭"),
            ChannelError::Io(error) => cause(error),
            ChannelError::Wire(WireError::TooLong(bytes)) => {
                text!("a frame of {bytes} bytes is longer than allowed", "{bytes} 字节的帧超过上限")
            }
            ChannelError::Wire(WireError::Unreadable(why)) => {
                text!("a frame cannot be read: {why}", "无法读取帧：{why}")
            }
            ChannelError::Cipher => text!("a frame cannot be deciphered", "无法解密帧"),
        }
    }
}

/// What a connection runs over: a socket, or the tests' memory.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

#[derive(Debug)]
pub(super) struct Channel<S = TcpStream> {
    stream: S,
    inbox: Vec<u8>,
    cipher: Option<Box<TransportState>>,
    longest: usize,
    version: u8,
}

impl<S: Stream> Channel<S> {
    pub(super) fn new(stream: S, cipher: Option<TransportState>) -> Channel<S> {
        Channel {
            stream,
            inbox: Vec::new(),
            cipher: cipher.map(Box::new),
            longest: LONGEST_STRANGER,
            version: 0,
        }
    }

    /// The peer has said who it is: it may send long frames.
    pub(super) fn trust(&mut self) {
        self.longest = LONGEST;
    }

    /// Version of the protocol, on the dialer's side.
    pub(super) fn version(&self) -> u8 {
        self.version
    }

    pub(super) fn speaks(&mut self, version: u8) {
        self.version = version;
    }

    /// The bare connection. None when the peer has sent what nobody has read.
    pub(super) fn into_stream(self) -> Option<S> {
        self.inbox.is_empty().then_some(self.stream)
    }

    /// Bytes of memory that wait for the rest of a frame.
    #[cfg(any(test, fuzzing))]
    pub(super) fn held(&self) -> usize {
        self.inbox.capacity()
    }

    pub(super) fn stream(&self) -> &S {
        &self.stream
    }

    /// The next frame. Cancel-safe: what was read stays in the inbox.
    pub(super) async fn receive(&mut self) -> Result<Frame, ChannelError> {
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

    /// Length of the frame that is under way, once its header is here.
    fn length(&self) -> Result<Option<usize>, ChannelError> {
        let Some(header) = self.inbox.first_chunk::<HEADER>() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*header)).unwrap_or(usize::MAX);
        if length > self.longest + TAG {
            return Err(WireError::TooLong(length).into());
        }
        Ok(Some(length))
    }

    fn missing(&self) -> Result<usize, ChannelError> {
        let whole = self.length()?.map_or(64, |length| HEADER + length);
        Ok(whole.saturating_sub(self.inbox.len()).max(1))
    }

    fn take(&mut self) -> Result<Option<Frame>, ChannelError> {
        let Some(length) = self.length()? else { return Ok(None) };
        let Some(bytes) = self.inbox.get(HEADER..HEADER + length) else { return Ok(None) };
        let frame = match &mut self.cipher {
            None => wire::decode(bytes)?,
            Some(cipher) => {
                let mut plain = vec![0; length];
                let written =
                    cipher.read_message(bytes, &mut plain).map_err(|_| ChannelError::Cipher)?;
                wire::decode(plain.get(..written).unwrap_or_default())?
            }
        };
        self.inbox.drain(..HEADER + length);
        // A large frame is rare; ten thousand buffers of its size would not be.
        self.inbox.shrink_to(256);
        Ok(Some(frame))
    }

    pub(super) async fn send(&mut self, frame: &Frame) -> Result<(), ChannelError> {
        self.send_encoded(&wire::encode(frame)).await
    }

    /// Sends what [`wire::encode`] gave. Not cancel-safe: a frame cut in half ends the connection.
    pub(super) async fn send_encoded(&mut self, bytes: &[u8]) -> Result<(), ChannelError> {
        let mut sealed = Vec::with_capacity(HEADER + bytes.len() + TAG);
        match &mut self.cipher {
            None => {
                sealed.extend(header(bytes.len()));
                sealed.extend(bytes);
            }
            Some(cipher) => {
                sealed.resize(HEADER + bytes.len() + TAG, 0);
                let (head, body) = sealed.split_at_mut(HEADER);
                let written =
                    cipher.write_message(bytes, body).map_err(|_| ChannelError::Cipher)?;
                head.copy_from_slice(&header(written));
            }
        }
        self.stream.write_all(&sealed).await?;
        Ok(())
    }

    /// Says that nothing more comes and waits for the peer's end, so that what was
    /// sent last is not lost to a reset by unread bytes.
    pub(super) async fn close(mut self) {
        let _ = self.stream.shutdown().await;
        let mut rest = [0u8; 256];
        while self.stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
    }
}

fn header(length: usize) -> [u8; HEADER] {
    u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes()
}
