//! torch's TCPStore on the master port: whether one answers, and whose it is.
//!
//! Owns the few words of torch's protocol that ranklaunch speaks (TCPStoreBackend.hpp;
//! VALIDATE came with torch 2.1). Node 0 of a running job writes the job's key into its
//! own store ([`mark`]), and a node that finds a store where it looked for node 0 reads
//! it ([`ask`]). Never touches a key of torch's own.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::key::JobKey;
use super::listen::connect;

/// A client of a store begins with query VALIDATE (0) and this number in the host's
/// byte order (validationMagicNumber).
pub(super) const GREETING: [u8; 5] = [0x00, 0xCE, 0xF7, 0x85, 0x3C];

const COMPARE_SET: u8 = 2;
const CHECK: u8 = 5;
const READY: u8 = 0;
const NOT_READY: u8 = 1;

/// Where the key of the job stands. Torch's own keys begin with `/`.
const PLACE: &[u8] = b"ranklaunch/job";
/// Longest value that is read.
const LONGEST: u64 = 4096;
/// How long a store may take to answer: one thread serves all ranks.
const ANSWER: Duration = Duration::from_secs(2);
const CONNECT: Duration = Duration::from_secs(2);
/// Between two looks for a store that is not there yet.
const PAUSE: Duration = Duration::from_millis(250);
/// So often something that is no store is asked; it may be the script's own server.
const TRIES: u32 = 3;

/// What answers on a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// A store into which a ranklaunch wrote the key of its job.
    Marked(JobKey),
    /// A store in which nobody did.
    Unmarked {
        /// The torchrun there has a node with our rank already.
        taken: bool,
    },
    /// Holds the connection and says nothing.
    Silent,
    No,
}

/// The first bytes of [`ask`] after the greeting: by them a ranklaunch knows that
/// nobody is a client of a store.
pub(super) fn question() -> Vec<u8> {
    [&[COMPARE_SET][..], &counted(PLACE)].concat()
}

fn counted(bytes: &[u8]) -> Vec<u8> {
    [&bytes.len().to_ne_bytes(), bytes].concat()
}

/// COMPARE_SET: writes `new` where the value is `old`, or there is none and `old` is
/// empty. The answer is the value afterwards, and `old` where there is none: so with an
/// `old` that nobody has it reads, writes nothing, and is given back by a store alone.
fn compare_set(old: &[u8], new: &[u8]) -> Vec<u8> {
    [question(), counted(old), counted(new)].concat()
}

/// Where the agent of a plain torchrun registers a node (`_assign_worker_ranks`), below
/// the run id that torchrun has where none is given.
fn place_of_node(node: u32) -> Vec<u8> {
    format!("/none/torchelastic/role_info/{node}").into_bytes()
}

/// Asks whoever answers at `peer`. Changes nothing there.
pub(super) async fn ask(peer: SocketAddr, node: u32) -> Found {
    let Ok(mut stream) = connect(peer, CONNECT).await else { return Found::No };
    match timeout(ANSWER, asked(&mut stream, node)).await {
        Ok(found) => found.unwrap_or(Found::No),
        Err(_) => Found::Silent,
    }
}

/// None where the answer is no store's.
async fn asked(stream: &mut TcpStream, node: u32) -> Option<Found> {
    let mut nonce = [0u8; 16];
    getrandom::fill(&mut nonce).ok()?;
    let begin = [&GREETING[..], &compare_set(&nonce, b"")].concat();
    stream.write_all(&begin).await.ok()?;
    let value = value(stream).await?;
    if value != nonce {
        return JobKey::decode(&value).map(Found::Marked);
    }
    let check = [&[CHECK][..], &1usize.to_ne_bytes(), &counted(&place_of_node(node))].concat();
    stream.write_all(&check).await.ok()?;
    match stream.read_u8().await.ok()? {
        READY => Some(Found::Unmarked { taken: true }),
        NOT_READY => Some(Found::Unmarked { taken: false }),
        _ => None,
    }
}

async fn value(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut length = [0u8; 8];
    stream.read_exact(&mut length).await.ok()?;
    let length = Some(u64::from_ne_bytes(length)).filter(|length| *length <= LONGEST)?;
    let mut value = vec![0; usize::try_from(length).ok()?];
    stream.read_exact(&mut value).await.ok()?;
    Some(value)
}

/// The store of this node's own job: where it will listen, and what stands in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The master port, on which the engine or rank 0 listens.
    pub port: u16,
    pub key: JobKey,
}

/// Writes the job's key into the store of this node as soon as there is one, and again
/// into each that follows. Ends only where something else holds the port.
pub async fn mark(mark: &Mark) {
    let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, mark.port));
    let mut strange = 0;
    while strange < TRIES {
        if let Ok(mut stream) = connect(peer, CONNECT).await {
            if timeout(ANSWER, marked(&mut stream, &mark.key)).await.ok().flatten().is_some() {
                strange = 0;
                // Nothing more is said on it: it ends with the store.
                let _ = stream.read(&mut [0; 1]).await;
            } else {
                strange += 1;
            }
        }
        sleep(PAUSE).await;
    }
}

async fn marked(stream: &mut TcpStream, key: &JobKey) -> Option<()> {
    let begin = [&GREETING[..], &compare_set(b"", &key.encode())].concat();
    stream.write_all(&begin).await.ok()?;
    JobKey::decode(&value(stream).await?).map(drop)
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashMap;
    use std::sync::{Arc, Mutex};

    use tokio::net::TcpListener;

    use super::*;

    /// Torch's store as far as ranklaunch speaks with one, on a port of its own.
    pub(in crate::muster) async fn store() -> (u16, Arc<Mutex<HashMap<Vec<u8>, Vec<u8>>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let values = Arc::new(Mutex::new(HashMap::new()));
        let shared = Arc::clone(&values);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&shared)));
            }
        });
        (port, values)
    }

    async fn serve(
        mut stream: TcpStream,
        values: Arc<Mutex<HashMap<Vec<u8>, Vec<u8>>>>,
    ) -> Option<()> {
        let mut greeting = [0; 5];
        stream.read_exact(&mut greeting).await.ok()?;
        if greeting != GREETING {
            return None;
        }
        loop {
            match stream.read_u8().await.ok()? {
                COMPARE_SET => {
                    let place = value(&mut stream).await?;
                    let (old, new) = (value(&mut stream).await?, value(&mut stream).await?);
                    let answer = {
                        let mut values = values.lock().expect("a lock");
                        match values.get(&place) {
                            None if old.is_empty() => {
                                values.insert(place, new.clone());
                                new
                            }
                            None => old,
                            Some(is) => is.clone(),
                        }
                    };
                    stream.write_all(&counted(&answer)).await.ok()?;
                }
                CHECK => {
                    stream.read_exact(&mut [0; 8]).await.ok()?;
                    let place = value(&mut stream).await?;
                    let is_there = values.lock().expect("a lock").contains_key(&place);
                    stream.write_u8(if is_there { READY } else { NOT_READY }).await.ok()?;
                }
                _ => return None,
            }
        }
    }

    #[tokio::test]
    async fn a_store_says_whose_it_is_and_nothing_is_left_in_a_strange_one() {
        let (port, values) = store().await;
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        assert_eq!(ask(peer, 1).await, Found::Unmarked { taken: false });
        assert!(values.lock().expect("a lock").is_empty());
        values.lock().expect("a lock").insert(place_of_node(1), b"x".to_vec());
        assert_eq!(ask(peer, 1).await, Found::Unmarked { taken: true });
        assert_eq!(ask(peer, 2).await, Found::Unmarked { taken: false });
        let key = JobKey { job: Some("7".to_owned()), port, nnodes: 2 };
        let own = Mark { port, key: key.clone() };
        let marking = tokio::spawn(async move { mark(&own).await });
        while ask(peer, 1).await != Found::Marked(key.clone()) {
            tokio::task::yield_now().await;
        }
        marking.abort();
    }
}
