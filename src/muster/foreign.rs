//! Programs on the port of node 0 that are not ranklaunch: torch's TCPStore with the job to which it belongs, and any
//! other program, named by its answer.
//!
//! Owns the few messages of torch's protocol that ranklaunch uses, in both [`Dialect`]s (TCPStore.cpp,
//! TCPStoreBackend.cpp). Node 0 of a running job writes the job key into its own store ([`mark`]). A node that finds a
//! store in place of node 0 reads that key ([`ask`]). Never touches one of torch's own keys, and never sends the
//! dialect of torch 2.1 to an older store.
//!
//! Another program gets an HTTP request, which changes nothing and which neither a store nor ranklaunch mistakes for a
//! message of its own ([`name`]). The answer proves nothing about node 0, which may come later; it only names the
//! obstacle.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::net::connect;
use crate::protocol::{JobKey, Stream};
use text::lang::Text;
use text::text;
use text::version::Version;
use verdict::Refusal;

/// The reaction of a node to a peer that is not a node of its muster.
#[derive(Debug)]
pub enum ForeignAction {
    /// Keep waiting, since the peer may go away.
    Wait,
    Refuse(Refusal),
    /// Continue without a muster.
    Alone(Text),
}

/// The first bytes of a store's client since torch 2.1: query VALIDATE (0) and this number in the host's byte order
/// (validationMagicNumber).
pub(crate) const GREETING: [u8; 5] = [0x00, 0xCE, 0xF7, 0x85, 0x3C];

/// The first message, whose answer tells the dialects apart. A store since torch 2.1 answers with the number of its
/// keys (GETNUMKEYS, 7) three times and then closes the connection at the invalid query.
///
/// A store of torch 2.0 takes these bytes for a SET: nine of them are the query number and the length of the key. It
/// allocates and clears the key before it reads the key. A COMPARE_SET here would mean 15 TB, which kills the process
/// if the kernel grants it (vm.overcommit_memory=1, as the kubelet sets it). The length in these bytes has the top bit
/// set, so no allocation succeeds: the store closes the connection, unharmed.
const WHICH: [u8; 2 * FIRST] = [0x00, 0xCE, 0xF7, 0x85, 0x3C, 7, 7, 7, 0xFF, 0xFF];

/// The protocol version of a store. In the newer version VALIDATE took the number of SET, and every query moved up by
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    /// Up to torch 2.0.
    Bare,
    /// Since torch 2.1.
    Validated,
}

impl Dialect {
    /// The dialect of the store at `peer`. None: the peer does not answer as a store.
    async fn at(peer: SocketAddr) -> io::Result<Option<Dialect>> {
        let mut stream = connect(peer, CONNECT).await?;
        let answered = async {
            stream.write_all(&WHICH).await.is_ok() && matches!(stream.peek(&mut [0]).await, Ok(1..))
        };
        Ok(match timeout(ANSWER, answered).await {
            Ok(true) => Some(Dialect::Validated),
            Ok(false) => Some(Dialect::Bare),
            Err(_) => None,
        })
    }

    fn greeting(self) -> &'static [u8] {
        match self {
            Dialect::Bare => &[],
            Dialect::Validated => &GREETING,
        }
    }

    /// The number of a query in this dialect, given its number in torch 2.0.
    fn query(self, number: u8) -> u8 {
        match self {
            Dialect::Bare => number,
            Dialect::Validated => number + 1,
        }
    }
}

/// Whether a node with torch `client` can meet node 0 with torch `server` in its store. `launchers_meet`: torchrun on
/// both nodes meets there, not only their ranks.
///
/// The dialects of [`Dialect`] do not mix. Since torch 2.5 a client sends a ping first, and a store that does not know
/// this query closes the connection (TCPStore.cpp, `TCPStore::ping`). Since torch 2.4 torchrun on node 0 assigns all
/// ranks; before that, each torchrun assigns its own, under other keys (pytorch pull request 124982). Tried in both
/// directions with 2.0, 2.3, 2.4, 2.5, 2.6 and 2.15 (tests/platforms/engines).
pub(crate) fn understand(server: Version, client: Version, launchers_meet: bool) -> bool {
    const VALIDATE: Version = Version::new(2, 1, 0);
    const ASSIGN: Version = Version::new(2, 4, 0);
    const PING: Version = Version::new(2, 5, 0);
    let both = |since: Version| (server >= since) == (client >= since);
    both(VALIDATE) && (both(ASSIGN) || !launchers_meet) && (client < PING || server >= PING)
}

const COMPARE_SET: u8 = 1;
const ADD: u8 = 3;
const CHECK: u8 = 4;
const READY: u8 = 0;
const NOT_READY: u8 = 1;

/// The key under which the job key is stored. Torch's own keys begin with `/`.
const PLACE: &[u8] = b"ranklaunch/job";
/// Maximum bytes of a value that is read.
const LONGEST: u64 = 4096;
/// Time limit for an answer of a store, whose one thread serves all ranks.
const ANSWER: Duration = Duration::from_secs(2);
const CONNECT: Duration = Duration::from_secs(2);
/// Interval between attempts to reach a store that does not listen yet.
const PAUSE: Duration = Duration::from_millis(250);
/// Number of attempts on a listener that is not a store; it may be the script's own server.
const TRIES: u32 = 3;

/// The kind of program that answers on a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreAnswer {
    /// A store with the job key of a ranklaunch.
    Marked(JobKey),
    /// A store without a job key.
    Unmarked {
        /// The torchrun there already has a node with our node rank.
        taken: bool,
    },
    /// A peer that keeps the connection open but does not answer.
    Silent,
    No,
}

/// The kind of client that connects to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Client {
    /// A ranklaunch that asks whether the listener is a store.
    Asking,
    Torch,
}

/// Number of bytes that tell a client of a store from ranklaunch.
pub(crate) const FIRST: usize = GREETING.len();

/// The client of a store that sends `first`; None: not a client of a store.
pub(crate) async fn client(first: [u8; FIRST], stream: &mut impl Stream) -> Option<Client> {
    /// Clients of torch 2.1 to 2.3 send no ping and wait for an answer.
    const HOLD: Duration = Duration::from_millis(500);
    let said = timeout(HOLD, first_query(first, stream)).await.ok().flatten();
    // The greeting proves a client of torch, whatever bytes follow.
    said.or((first == GREETING).then_some(Client::Torch))
}

async fn first_query(mut first: [u8; FIRST], stream: &mut impl Stream) -> Option<Client> {
    /// The bytes that nodes before version 3 sent after the greeting, to have them echoed.
    const PING: [u8; FIRST] = [13, b'r', b'k', b'l', b'?'];
    let mut dialect = Dialect::Bare;
    if first == GREETING {
        dialect = Dialect::Validated;
        stream.read_exact(&mut first).await.ok()?;
        if first == PING || WHICH.ends_with(&first) {
            return Some(Client::Asking);
        }
    }
    // The length of the key has eight bytes. All bytes after the first are zero for a short key.
    let [number, length, 0, 0, 0] = first else { return None };
    let mut rest = vec![0; 4 + usize::from(length)];
    stream.read_exact(&mut rest).await.ok()?;
    let key = rest.strip_prefix(&[0; 4])?;
    // A client increments the count of workers (`waitForWorkers`), or reads the state of a c10d rendezvous.
    let counts = number == dialect.query(ADD) && key == b"init/";
    let meets = number == dialect.query(COMPARE_SET) && key.starts_with(b"/torch.rendezvous.");
    match key {
        PLACE => Some(Client::Asking),
        _ => (counts || meets).then_some(Client::Torch),
    }
}

fn counted(bytes: &[u8]) -> Vec<u8> {
    [&bytes.len().to_ne_bytes(), bytes].concat()
}

/// COMPARE_SET: writes `new` if the value is `old`, or if there is no value and `old` is empty. The answer is the value
/// afterwards, or `old` if there is no value. So with a unique `old` it only reads, and only a store returns that
/// `old`.
fn compare_set(dialect: Dialect, old: &[u8], new: &[u8]) -> Vec<u8> {
    let number = [dialect.query(COMPARE_SET)];
    [dialect.greeting(), &number, &counted(PLACE), &counted(old), &counted(new)].concat()
}

/// The keys under which the agent of a plain torchrun registers a node (`_assign_worker_ranks`), with torchrun's
/// default run id: the current key, and the key of torch before 2.4 (`_share_and_gather`).
fn places_of_node(node: u32) -> [Vec<u8>; 2] {
    ["/", ""].map(|sign| format!("/none/torchelastic/role_info{sign}{node}").into_bytes())
}

/// Identifies the program that answers at `peer`, without changing anything there.
pub(crate) async fn ask(peer: SocketAddr, node: u32) -> StoreAnswer {
    let dialect = match Dialect::at(peer).await {
        Ok(Some(dialect)) => dialect,
        Ok(None) => return StoreAnswer::Silent,
        Err(_) => return StoreAnswer::No,
    };
    let Ok(mut stream) = connect(peer, CONNECT).await else { return StoreAnswer::No };
    match timeout(ANSWER, asked(&mut stream, dialect, node)).await {
        Ok(found) => found.unwrap_or(StoreAnswer::No),
        Err(_) => StoreAnswer::Silent,
    }
}

/// None if the answer does not come from a store.
async fn asked(stream: &mut TcpStream, dialect: Dialect, node: u32) -> Option<StoreAnswer> {
    let mut nonce = [0u8; 16];
    linux::random::fill(&mut nonce).ok()?;
    stream.write_all(&compare_set(dialect, &nonce, b"")).await.ok()?;
    let value = value(stream).await?;
    if value != nonce {
        return JobKey::decode(&value).map(StoreAnswer::Marked);
    }
    for place in places_of_node(node) {
        let check = [&[dialect.query(CHECK)][..], &1usize.to_ne_bytes(), &counted(&place)].concat();
        stream.write_all(&check).await.ok()?;
        match stream.read_u8().await.ok()? {
            READY => return Some(StoreAnswer::Unmarked { taken: true }),
            NOT_READY => {}
            _ => return None,
        }
    }
    Some(StoreAnswer::Unmarked { taken: false })
}

async fn value(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut length = [0u8; 8];
    stream.read_exact(&mut length).await.ok()?;
    let length = Some(u64::from_ne_bytes(length)).filter(|length| *length <= LONGEST)?;
    let mut value = vec![0; usize::try_from(length).ok()?];
    stream.read_exact(&mut value).await.ok()?;
    Some(value)
}

/// The mark in the store of this node's own job: the port of the store and the job key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreMark {
    /// The master port, on which the engine or rank 0 listens.
    pub port: u16,
    pub key: JobKey,
}

/// Writes the job key into the store of this node as soon as it listens, and again into each
/// later store. Ends only if something else holds the port.
pub async fn mark(mark: &StoreMark) {
    let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, mark.port));
    let mut strange = 0;
    while strange < TRIES {
        match write(peer, &mark.key).await {
            Ok(Some(mut stream)) => {
                strange = 0;
                // The read waits for the end of the connection, which ends with the store.
                let _ = stream.read(&mut [0; 1]).await;
            }
            Ok(None) => strange += 1,
            Err(_) => {}
        }
        sleep(PAUSE).await;
    }
}

/// Writes the key and gives the connection; None if the listener is not a store.
///
/// # Errors
/// If nothing listens.
async fn write(peer: SocketAddr, key: &JobKey) -> io::Result<Option<TcpStream>> {
    let Some(dialect) = Dialect::at(peer).await? else { return Ok(None) };
    let mut stream = connect(peer, CONNECT).await?;
    let marked = timeout(ANSWER, marked(&mut stream, dialect, key)).await.ok().flatten();
    Ok(marked.map(|()| stream))
}

async fn marked(stream: &mut TcpStream, dialect: Dialect, key: &JobKey) -> Option<()> {
    stream.write_all(&compare_set(dialect, b"", &key.encode())).await.ok()?;
    JobKey::decode(&value(stream).await?).map(drop)
}

const QUESTION: &[u8] = b"HEAD / HTTP/1.0\r\nUser-Agent: ranklaunch\r\n\r\n";
/// Time limit for a connection to another program, and for its answer.
const NAMING: Duration = Duration::from_secs(1);
/// Bytes of an answer to read: a status line and the first headers.
const READ: usize = 1024;
/// Characters of a server's own name that are printed.
const SHOWN: usize = 60;

/// The program that holds the port; None if it does not identify itself.
pub(crate) async fn name(peer: SocketAddr) -> Option<Text> {
    let mut stream = connect(peer, NAMING).await.ok()?;
    let mut answer = Vec::with_capacity(READ);
    // The answer is read to its end or until the buffer is full.
    let asked = async {
        stream.write_all(QUESTION).await?;
        while answer.len() < READ && stream.read_buf(&mut answer).await? > 0 {}
        Ok::<(), io::Error>(())
    };
    let _ = timeout(NAMING, asked).await;
    program(&answer)
}

/// Whether the connection is such a request from a node. A node sends it if node 0 answers late.
pub(crate) async fn is_question(first: &[u8], stream: &mut impl Stream) -> bool {
    let Some(expected) = QUESTION.strip_prefix(first) else { return false };
    let mut rest = vec![0; expected.len()];
    let read = timeout(NAMING, stream.read_exact(&mut rest)).await;
    matches!(read, Ok(Ok(_))) && rest == expected
}

/// The program, identified by the first bytes of its answer.
fn program(answer: &[u8]) -> Option<Text> {
    if answer.starts_with(b"HTTP/") {
        let server = server(answer);
        return Some(text!("an HTTP server{server}", "HTTP 服务器{server}"));
    }
    if answer.starts_with(b"SSH-") {
        return Some(text!("an SSH server", "SSH 服务器"));
    }
    // The peer answers with a TLS alert, because our request was not a handshake.
    if answer.starts_with(&[0x15, 0x03]) {
        return Some(text!("a TLS server", "TLS 服务器"));
    }
    None
}

/// The server header, such as ` (nginx/1.25.3)`.
fn server(answer: &[u8]) -> String {
    let answer = String::from_utf8_lossy(answer);
    let mut headers = answer.lines().skip(1).take_while(|line| !line.is_empty());
    let named = headers.find_map(|line| {
        let (header, value) = line.split_once(':')?;
        header.eq_ignore_ascii_case("server").then(|| value.trim().to_owned())
    });
    let named: String = named
        .unwrap_or_default()
        .chars()
        .filter(|letter| letter.is_ascii_graphic() || *letter == ' ')
        .take(SHOWN)
        .collect();
    if named.is_empty() { named } else { format!(" ({named})") }
}

#[cfg(test)]
pub(crate) mod tests;
