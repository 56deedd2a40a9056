//! The first bytes of a connection: program, protocol version, and whether it is encrypted.
//!
//! The dialer sends nine bytes: magic, lowest and highest version, mode. The listener answers with nine bytes: magic,
//! version, mode, status. With a secret a Noise NNpsk0 handshake follows, with the eighteen bytes as its prologue. The
//! first byte is not a query of torch's TCPStore, so a store closes the connection at once.

use std::time::Duration;

use snow::{Builder, HandshakeState};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::channel::{Channel, ChannelError, Stream};
use super::messages::{FromMember, FromNode0, Hello};
use super::secret::Secret;
use crate::foreign::program;
use crate::foreign::store::{self, Client};
use text::lang::{Text, cause};
use text::text;

const MAGIC: &[u8; 6] = b"rkl/mu";
const PREAMBLE: usize = 9;
/// Protocol versions that this program speaks. Version 5: nodes of a running job ask each other questions.
const LOWEST: u8 = 5;
const HIGHEST: u8 = 5;

const PLAIN: u8 = 0;
const ENCRYPTED: u8 = 1;

const FINE: u8 = 0;
const OTHER_VERSION: u8 = 1;
const OTHER_MODE: u8 = 2;

/// Time limit until a connection is identified.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the dialer, which is longer since node 0 may have thousands of handshakes before this one.
const DIALERS_TIMEOUT: Duration = Duration::from_secs(30);
/// Length of an empty message, which says that the secrets differ. Silence or the end of the connection does not prove
/// that.
const NO: u16 = 0;

const NOISE: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Maximum bytes of a handshake message: a key and a tag are 48 bytes.
const NOISE_LONGEST: usize = 128;

/// The reason why a connection did not become a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejection {
    /// The peer speaks torch's TCPStore: torchrun without ranklaunch.
    PlainTorchrun,
    /// The peer speaks another version of this protocol.
    Version,
    /// One side has a secret and the other does not.
    Mode {
        /// Whether the other side has a secret.
        theirs: bool,
    },
    /// The secrets differ.
    Secret,
    /// The peer is a node that asked which program this is; it dials again.
    Asking,
    /// The peer sent nothing, or too little in time.
    Silent,
    /// The peer is something else: a port scan, a health check, a proxy.
    Unknown(Text),
}

impl From<std::io::Error> for Rejection {
    fn from(error: std::io::Error) -> Rejection {
        Rejection::Unknown(cause(&error))
    }
}

impl From<ChannelError> for Rejection {
    fn from(error: ChannelError) -> Rejection {
        match error {
            ChannelError::Cipher => Rejection::Secret,
            other => Rejection::Unknown(other.text()),
        }
    }
}

fn state(secret: &Secret, prologue: &[u8], dialer: bool) -> Result<HandshakeState, Rejection> {
    let unknown = |error: snow::Error| Rejection::Unknown(Text::same(error.to_string()));
    let builder = Builder::new(NOISE.parse().map_err(unknown)?)
        .psk(0, secret.key())
        .map_err(unknown)?
        .prologue(prologue)
        .map_err(unknown)?;
    if dialer { builder.build_initiator() } else { builder.build_responder() }.map_err(unknown)
}

/// Runs node 0's side of the handshake, up to the node's first frame.
pub(crate) async fn admit<S: Stream>(
    stream: S,
    secret: Option<&Secret>,
) -> Result<(Channel<FromMember, S>, Hello), Rejection> {
    timeout(TIMEOUT, admitted(stream, secret)).await.unwrap_or(Err(Rejection::Silent))
}

async fn admitted<S: Stream>(
    mut stream: S,
    secret: Option<&Secret>,
) -> Result<(Channel<FromMember, S>, Hello), Rejection> {
    let received = first_bytes(&mut stream).await?;
    let [.., lowest, highest, mode] = received;
    let ours = if secret.is_some() { ENCRYPTED } else { PLAIN };
    let version = highest.min(HIGHEST);
    let status = if version < lowest.max(LOWEST) {
        OTHER_VERSION
    } else if mode != ours {
        OTHER_MODE
    } else {
        FINE
    };
    let answer = preamble(version, ours, status);
    stream.write_all(&answer).await?;
    match status {
        OTHER_VERSION => return Err(Rejection::Version),
        OTHER_MODE => return Err(Rejection::Mode { theirs: mode == ENCRYPTED }),
        _ => {}
    }
    let cipher = match secret {
        None => None,
        Some(secret) => {
            let mut noise = state(secret, &[received, answer].concat(), false)?;
            let dialed = read_message(&mut stream).await?;
            let mut nothing = [0u8; NOISE_LONGEST];
            if noise.read_message(&dialed, &mut nothing).is_err() {
                stream.write_u16(NO).await?;
                return Err(Rejection::Secret);
            }
            write_message(&mut stream, &mut noise).await?;
            Some(noise.into_transport_mode().map_err(|_| Rejection::Secret)?)
        }
    };
    let mut channel = Channel::new(stream, cipher);
    match channel.receive().await? {
        FromMember::Hello(hello) => {
            channel.trust();
            Ok((channel, hello))
        }
        _ => Err(Rejection::Unknown(text!("no greeting", "没有收到问候帧"))),
    }
}

/// Runs the dialer's side of the handshake, until frames may be sent.
pub(crate) async fn dial<S: Stream>(
    stream: S,
    secret: Option<&Secret>,
) -> Result<Channel<FromNode0, S>, Rejection> {
    timeout(DIALERS_TIMEOUT, dialed(stream, secret)).await.unwrap_or(Err(Rejection::Silent))
}

async fn dialed<S: Stream>(
    mut stream: S,
    secret: Option<&Secret>,
) -> Result<Channel<FromNode0, S>, Rejection> {
    let ours = if secret.is_some() { ENCRYPTED } else { PLAIN };
    let sent = preamble(LOWEST, HIGHEST, ours);
    stream.write_all(&sent).await?;
    let mut answer = [0u8; PREAMBLE];
    stream.read_exact(&mut answer).await?;
    let [magic @ .., version, mode, status] = answer;
    if &magic != MAGIC {
        return Err(Rejection::Unknown(text!(
            "the answer is not ranklaunch's",
            "应答不是 ranklaunch 的"
        )));
    }
    if status == OTHER_VERSION || !(LOWEST..=HIGHEST).contains(&version) {
        return Err(Rejection::Version);
    }
    if mode != ours || status != FINE {
        return Err(Rejection::Mode { theirs: mode == ENCRYPTED });
    }
    let cipher = match secret {
        None => None,
        Some(secret) => {
            let mut noise = state(secret, &[sent, answer].concat(), true)?;
            write_message(&mut stream, &mut noise).await?;
            let answered = read_message(&mut stream).await?;
            if answered.is_empty() {
                return Err(Rejection::Secret);
            }
            let mut nothing = [0u8; NOISE_LONGEST];
            noise.read_message(&answered, &mut nothing).map_err(|_| Rejection::Secret)?;
            Some(noise.into_transport_mode().map_err(|_| Rejection::Secret)?)
        }
    };
    let mut channel = Channel::new(stream, cipher);
    channel.trust();
    Ok(channel)
}

/// Reads nine bytes, or fewer from a client of a store, since such a client may wait for an answer.
async fn first_bytes(stream: &mut impl Stream) -> Result<[u8; PREAMBLE], Rejection> {
    let unknown = || Rejection::Unknown(text!("not ranklaunch", "不是 ranklaunch"));
    let mut first = [0u8; store::FIRST];
    stream.read_exact(&mut first).await?;
    if !MAGIC.starts_with(&first) {
        return Err(match store::client(first, stream).await {
            Some(Client::Asking) => Rejection::Asking,
            Some(Client::Torch) => Rejection::PlainTorchrun,
            None if program::is_question(&first, &mut *stream).await => Rejection::Asking,
            None => unknown(),
        });
    }
    let mut bytes = [0u8; PREAMBLE];
    let (begin, rest) = bytes.split_at_mut(first.len());
    begin.copy_from_slice(&first);
    stream.read_exact(rest).await?;
    if bytes.starts_with(MAGIC) { Ok(bytes) } else { Err(unknown()) }
}

async fn read_message(stream: &mut impl Stream) -> Result<Vec<u8>, Rejection> {
    let length = usize::from(stream.read_u16().await?);
    if length > NOISE_LONGEST {
        return Err(Rejection::Unknown(text!("a handshake that is too long", "握手过长")));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

async fn write_message(
    stream: &mut impl Stream,
    noise: &mut HandshakeState,
) -> Result<(), Rejection> {
    let mut bytes = [0u8; NOISE_LONGEST];
    let written = noise.write_message(&[], &mut bytes).map_err(|_| Rejection::Secret)?;
    let mut message = u16::try_from(written).unwrap_or_default().to_be_bytes().to_vec();
    message.extend(bytes.iter().take(written));
    Ok(stream.write_all(&message).await?)
}

fn preamble(second: u8, third: u8, last: u8) -> [u8; PREAMBLE] {
    let [a, b, c, d, e, f] = *MAGIC;
    [a, b, c, d, e, f, second, third, last]
}
