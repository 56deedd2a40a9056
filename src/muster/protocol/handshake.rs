//! The shared secret of a job (`RANKLAUNCH_SECRET`), and the first bytes of a connection: program, protocol version, and
//! whether it is encrypted.
//!
//! The dialer sends nine bytes: magic, lowest and highest version, mode. The listener answers with nine bytes: magic,
//! version, mode, status. With a secret a Noise NNpsk0 handshake follows, with the eighteen bytes as its prologue. The
//! first byte is not a query of torch's TCPStore, so a store closes the connection at once.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use blake2::{Blake2s256, Digest};
use snow::{Builder, HandshakeState};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::channel::{Channel, ChannelError, Stream};
use super::messages::{FromMember, FromNode0, Hello};
use crate::foreign::{self, Client};
use linux::host::Host;
use text::lang::{Text, cause};
use text::text;
use verdict::{Id, Refusal, Verdict};

/// The variable that holds the secret itself.
pub const VARIABLE: &str = "RANKLAUNCH_SECRET";
const FILE: &str = "RANKLAUNCH_SECRET_FILE";
/// Minimum bytes of a secret. A shorter secret can be guessed off-line from a recorded handshake.
const SHORTEST: usize = 16;

/// 32 bytes derived from the user's secret; never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret(…)")
    }
}

impl Secret {
    /// Reads the secret from RANKLAUNCH_SECRET, or from the file that RANKLAUNCH_SECRET_FILE names.
    ///
    /// # Errors
    /// If one of the variables is set but empty, the secret is shorter than 16 bytes, or the file cannot be read.
    pub fn read(host: &Host) -> Result<Option<Secret>, Refusal> {
        if let Some(value) = host.variable(VARIABLE) {
            let secret = without_newline(value.as_bytes());
            return set(secret.is_empty(), VARIABLE)
                .and_then(|()| Secret::new(secret, VARIABLE))
                .map(Some);
        }
        let Some(path) = host.variable(FILE) else { return Ok(None) };
        set(path.is_empty(), FILE)?;
        let bytes = std::fs::read(Path::new(&path)).map_err(|error| {
            let Text { en, zh } = cause(&error);
            refuse(
                text!("{FILE}={path} cannot be read: {en}", "{FILE}={path} 无法读取：{zh}"),
                text!(
                    "mount the secret there, readable by this user",
                    "请将密钥挂载到该路径，并允许当前用户读取"
                ),
            )
        })?;
        Secret::new(without_newline(&bytes), FILE).map(Some)
    }

    fn new(bytes: &[u8], source: &str) -> Result<Secret, Refusal> {
        let length = bytes.len();
        if length < SHORTEST {
            return Err(refuse(
                text!(
                    "{source} gives a secret of {length} bytes; the minimum is {SHORTEST}",
                    "{source} 给出的密钥只有 {length} 字节，至少需要 {SHORTEST} 字节"
                ),
                text!(
                    "make one with: head -c 32 /dev/urandom | base64",
                    "可用以下命令生成：head -c 32 /dev/urandom | base64"
                ),
            ));
        }
        let mut hash = Blake2s256::new();
        hash.update(b"ranklaunch muster key 1");
        hash.update(bytes);
        Ok(Secret(hash.finalize().into()))
    }

    #[cfg(any(test, feature = "fixtures"))]
    pub fn of_test(byte: u8) -> Secret {
        Secret([byte; 32])
    }

    pub fn key(&self) -> &[u8; 32] {
        &self.0
    }
}

/// The bytes without the final newline that editors and `echo` add, and that a Kubernetes Secret made from such a file
/// keeps. So a variable and a file give the same secret.
fn without_newline(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r'));
    end.and_then(|end| bytes.get(..=end)).unwrap_or_default()
}

/// Refuses an empty value. It does not mean "no secret", since after a failed substitution the channel would be
/// unencrypted.
fn set(is_empty: bool, variable: &str) -> Result<(), Refusal> {
    if !is_empty {
        return Ok(());
    }
    Err(refuse(
        text!("{variable} is set but empty", "{variable} 已设置但为空"),
        text!(
            "give it a value, or unset it on all nodes for an unencrypted channel; a substitution may have failed",
            "请赋值；若不需要加密，请在所有节点取消该变量；也可能是变量替换失败"
        ),
    ))
}

fn refuse(text: Text, hint: Text) -> Refusal {
    Refusal::with(Verdict::Usage, Id::MusterSecret, text, hint)
}

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

impl Rejection {
    /// The hint for two nodes of one job that do not fit together.
    pub(crate) fn remedy(&self) -> Text {
        match self {
            Rejection::Version => text!("use one image on all nodes", "请在所有节点使用同一镜像"),
            _ => text!(
                "give all nodes the same RANKLAUNCH_SECRET or RANKLAUNCH_SECRET_FILE",
                "请为所有节点设置相同的 RANKLAUNCH_SECRET 或 RANKLAUNCH_SECRET_FILE"
            ),
        }
    }
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
    let mut first = [0u8; foreign::FIRST];
    stream.read_exact(&mut first).await?;
    if !MAGIC.starts_with(&first) {
        return Err(match foreign::client(first, stream).await {
            Some(Client::Asking) => Rejection::Asking,
            Some(Client::Torch) => Rejection::PlainTorchrun,
            None if foreign::is_question(&first, &mut *stream).await => Rejection::Asking,
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn host(name: &str, value: &str) -> Host {
        Host::replayed("/", BTreeMap::from([(name.into(), value.into())]))
    }

    #[test]
    fn file_and_variable_give_the_same_secret() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.path().to_string_lossy().into_owned();
        let plain = Secret::read(&host(VARIABLE, "0123456789abcdef")).expect("a secret");
        assert!(plain.is_some());
        for end in ["", "\n", "\r\n", "\n\n"] {
            let words = format!("0123456789abcdef{end}");
            std::fs::write(file.path(), &words).expect("written");
            assert_eq!(Secret::read(&host(FILE, &path)).as_ref(), Ok(&plain), "{end:?}");
            assert_eq!(Secret::read(&host(VARIABLE, &words)).as_ref(), Ok(&plain), "{end:?}");
        }
        assert!(!format!("{plain:?}").contains("0123"));
    }

    #[test]
    fn a_short_empty_or_missing_secret_is_refused() {
        for (name, value) in [
            (VARIABLE, "0123456789abcde"),
            (VARIABLE, "0123456789abcde\n\n"),
            (VARIABLE, ""),
            (VARIABLE, "\n"),
            (FILE, "/no/such/file"),
            (FILE, ""),
        ] {
            let refusal = Secret::read(&host(name, value)).expect_err(name);
            assert_eq!((refusal.verdict.code(), refusal.id), (64, Id::MusterSecret));
            let is_empty = value.trim().is_empty();
            assert_eq!(refusal.text.en.contains("is set but empty"), is_empty, "{value:?}");
        }
        assert_eq!(Secret::read(&host("OTHER", "x")), Ok(None));
    }
}
