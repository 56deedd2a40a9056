//! Measures one direction of one pair of nodes: round trips, then throughput.
//!
//! The sender dials the receiver's listener with the handshake of the muster and proves its membership by the token of
//! this muster. It then sends unencrypted messages of 16 bytes, which the receiver sends back, and then zeros until the
//! receiver reports how much arrived. The zeros are not secret.
//!
//! A connection without the token gets nothing after the handshake, and a member never gets back more bytes than it
//! sent.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::{Link, Measured, Speed};
use crate::keepalive::{self, now};
use crate::net::{ConnectionLimiter, connect};
use crate::protocol::{FromMember, FromNode0, Hello, JobKey, Purpose, Secret, handshake};
use crate::session::Config;

/// Time limit for connecting: a lost first packet is sent again after 1 s, a second one after 2 s more.
const CONNECT: Duration = Duration::from_secs(4);
/// Number of round trips. The first few wake CPUs and fill caches, and do not count.
const PINGS: usize = 48;
const WARM_UP: usize = 8;
/// Time limit for the round trips; slow links complete fewer.
const PINGING: Duration = Duration::from_millis(1500);
/// Maximum number of bytes that are sent, and maximum time of sending.
const BYTES: u64 = 256 << 20;
const SENDING: Duration = Duration::from_millis(250);
/// Time limit for one direction in total.
pub(crate) const WHOLE: Duration = Duration::from_secs(8);

const MESSAGE: usize = 16;
const BLOCK: usize = 256 << 10;
/// Maximum number of members that are served at a time. Node 0 lets one member measure at a time, but a connection that
/// was given up may not have ended yet.
const AT_ONCE: usize = 4;
/// First byte of a message: ECHO requests the message back, FLOOD announces zeros.
const ECHO: u8 = b'p';
const FLOOD: u8 = b'f';

/// The listener for measurements of other nodes. Closed when dropped.
#[derive(Debug)]
pub struct MeasureTarget {
    listener: Option<TcpListener>,
    port: u16,
    task: Option<JoinHandle<()>>,
}

impl Drop for MeasureTarget {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl MeasureTarget {
    /// Listens on any free port of this address. Admits no node before [`MeasureTarget::serve`].
    ///
    /// # Errors
    /// If the address is not this node's, or no port is free.
    pub async fn open(address: IpAddr) -> io::Result<MeasureTarget> {
        let listener = TcpListener::bind(SocketAddr::new(address, 0)).await?;
        let port = listener.local_addr()?.port();
        Ok(MeasureTarget { listener: Some(listener), port, task: None })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Lets members of this muster measure from now on.
    pub fn serve(&mut self, secret: Option<Secret>, token: String) {
        let Some(listener) = self.listener.take() else { return };
        self.task = Some(tokio::spawn(accept_all(listener, secret, token)));
    }
}

async fn accept_all(listener: TcpListener, secret: Option<Secret>, token: String) {
    let (limiter, places) = (ConnectionLimiter::new(1), Arc::new(Semaphore::new(AT_ONCE)));
    let mut id = 0;
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptor is left, or a connection was reset in the queue.
            limiter.evict_oldest();
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        id += 1;
        let (evicted, limiter, places) = (limiter.enter(id), limiter.clone(), Arc::clone(&places));
        let (secret, token) = (secret.clone(), token.clone());
        tokio::spawn(async move {
            let admitted = tokio::select! {
                biased;
                admitted = admit(stream, secret.as_ref(), &token) => admitted,
                _ = evicted => Err(io::ErrorKind::ConnectionAborted.into()),
            };
            let served = match (admitted, places.try_acquire()) {
                (Ok(stream), Ok(_place)) => {
                    let _identified = limiter.identify(id);
                    timeout(WHOLE, serve_one(stream)).await.unwrap_or(Ok(()))
                }
                (Ok(_), Err(_)) => Err(io::ErrorKind::ResourceBusy.into()),
                (Err(error), _) => Err(error),
            };
            limiter.leave(id);
            if let Err(error) = served {
                tracing::info!(%error, "a measurement failed");
            }
        });
    }
}

/// The raw connection of a member of this muster.
async fn admit(stream: TcpStream, secret: Option<&Secret>, token: &str) -> io::Result<TcpStream> {
    let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
    let admitted = handshake::admit(stream, secret).await;
    let (mut channel, hello) = admitted.map_err(|why| io::Error::other(format!("{why:?}")))?;
    if hello.purpose != Purpose::Measure || hello.key.job.as_deref() != Some(token) {
        return Err(denied());
    }
    let welcome = FromNode0::Welcome { at: now(), wall: 0 };
    channel.send(&welcome).await.map_err(io::Error::other)?;
    let stream = channel.into_stream().ok_or_else(denied)?;
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

async fn serve_one(mut stream: TcpStream) -> io::Result<()> {
    let mut message = [0u8; MESSAGE];
    loop {
        stream.read_exact(&mut message).await?;
        match message.first() {
            Some(&ECHO) => stream.write_all(&message).await?,
            Some(&FLOOD) => break,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
    let Arrived { bytes, micros, waited } = swallow(&mut stream).await?;
    let mut answer = bytes.to_be_bytes().to_vec();
    answer.extend(micros.to_be_bytes());
    answer.extend(waited.to_be_bytes());
    stream.write_all(&answer).await?;
    // Unread bytes at the close would reset the connection, and the answer would be lost.
    let mut rest = vec![0u8; BLOCK];
    while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
    Ok(())
}

/// Amount of data that arrived at the receiver.
struct Arrived {
    bytes: u64,
    micros: u32,
    /// Microseconds of `micros` for which the receiver waited for a CPU.
    waited: u32,
}

/// Microseconds since the start of this thread for which it was ready without a CPU (sched-stats.rst, second field); 0
/// if the kernel does not count them. Reads the real /proc, since the value concerns this process.
fn waited_for_a_cpu() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = stat.split(' ').nth(1).and_then(|word| word.parse::<u64>().ok());
    nanos.unwrap_or(0) / 1000
}

fn saturated(micros: u128) -> u32 {
    u32::try_from(micros).unwrap_or(u32::MAX)
}

/// Reads until enough bytes have arrived or the time is over.
async fn swallow(stream: &mut TcpStream) -> io::Result<Arrived> {
    let mut block = vec![0u8; BLOCK];
    let mut read = stream.read(&mut block).await?;
    let (began, waited) = (Instant::now(), waited_for_a_cpu());
    let end = began + SENDING;
    // Bytes that arrived before the clock was started do not count.
    let mut bytes = 0;
    while read > 0 && bytes < BYTES {
        read = tokio::select! {
            biased;
            () = sleep_until(end) => break,
            read = stream.read(&mut block) => read?,
        };
        bytes += read as u64;
    }
    let micros = saturated(began.elapsed().as_micros()).max(1);
    let waited = saturated(waited_for_a_cpu().saturating_sub(waited).into());
    Ok(Arrived { bytes, micros, waited })
}

/// The input of a sender for one measurement.
#[derive(Debug, Clone)]
pub(crate) struct Measurement {
    pub hello: Hello,
    pub to: u32,
    pub address: SocketAddr,
    pub secret: Option<Secret>,
}

impl Measurement {
    /// The sender's first frame, with the token in place of the job id.
    pub(crate) fn hello(config: &Config, hostname: &str, token: &str) -> Hello {
        let key = JobKey { job: Some(token.to_owned()), port: 0, nnodes: config.nnodes };
        Hello { key, purpose: Purpose::Measure, ..config.hello(hostname) }
    }

    /// Measures one link; never takes longer than [`WHOLE`].
    pub(crate) async fn run(self) -> Link {
        let measured = match timeout(WHOLE, self.measure()).await {
            Ok(Ok(speed)) => Measured::Speed(speed),
            Ok(Err(error)) => Measured::Failed(format!("{}: {error}", self.address)),
            Err(_) => Measured::Failed(format!("{}: no answer", self.address)),
        };
        Link { from: self.hello.node, to: self.to, measured }
    }

    async fn measure(&self) -> io::Result<Speed> {
        let stream = connect(self.address, CONNECT).await?;
        keepalive::prepare(&stream);
        let dialed = handshake::dial(stream, self.secret.as_ref()).await;
        let mut channel = dialed.map_err(|why| io::Error::other(format!("{why:?}")))?;
        let hello = FromMember::Hello(self.hello.clone());
        channel.send(&hello).await.map_err(io::Error::other)?;
        match channel.receive().await.map_err(io::Error::other)? {
            FromNode0::Welcome { .. } => {}
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        let mut stream = channel.into_stream().ok_or(io::ErrorKind::InvalidData)?;
        let speed = ping(&mut stream).await?;
        let before = waited_for_a_cpu();
        let there = flood(&mut stream).await?;
        let waited = waited_for_a_cpu().saturating_sub(before).max(there.waited.into());
        // Bytes still in transit would disturb the next measurement.
        let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
        Ok(Speed { bytes: there.bytes, micros: there.micros.into(), waited, ..speed })
    }
}

/// A message of this kind.
fn message(kind: u8) -> [u8; MESSAGE] {
    let mut message = [0; MESSAGE];
    message[0] = kind;
    message
}

async fn ping(stream: &mut TcpStream) -> io::Result<Speed> {
    let end = Instant::now() + PINGING;
    let mut trips = Vec::with_capacity(PINGS);
    let mut message = message(ECHO);
    while trips.len() < PINGS && (trips.is_empty() || Instant::now() < end) {
        let sent = Instant::now();
        stream.write_all(&message).await?;
        stream.read_exact(&mut message).await?;
        trips.push(u64::try_from(sent.elapsed().as_micros()).unwrap_or(u64::MAX));
    }
    // If a slow link completed only a few round trips, all of them count.
    let mut counted = trips.split_off(if trips.len() > 2 * WARM_UP { WARM_UP } else { 0 });
    counted.sort_unstable();
    let at = |part: usize| counted.get((counted.len() - 1) * part / 100).copied().unwrap_or(0);
    Ok(Speed { floor: at(0), median: at(50), p99: at(99), ..Speed::default() })
}

/// Sends until the receiver answers.
async fn flood(stream: &mut TcpStream) -> io::Result<Arrived> {
    stream.write_all(&message(FLOOD)).await?;
    let (mut reader, mut writer) = stream.split();
    let zeros = vec![0u8; BLOCK];
    // The sender sends slightly more than the receiver counts, since the receiver's clock starts after the first bytes.
    let blocks = BYTES / BLOCK as u64 + 64;
    let send = async {
        for _ in 0..blocks {
            writer.write_all(&zeros).await?;
        }
        std::future::pending::<io::Result<()>>().await
    };
    let mut answer = [0u8; MESSAGE];
    tokio::select! {
        read = reader.read_exact(&mut answer) => read.map(drop)?,
        sent = send => sent?,
    }
    let numbers = u128::from_be_bytes(answer);
    let short = |shift: u32| saturated((numbers >> shift) & u128::from(u32::MAX));
    let bytes = u64::try_from(numbers >> 64).unwrap_or(u64::MAX);
    Ok(Arrived { bytes, micros: short(32), waited: short(0) })
}
