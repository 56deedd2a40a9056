//! One question to RAS: a few lines, then the report until the connection is closed.

use std::fmt;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::view::{RasView, read};
use linux::deadline::{left, read_by};
use text::lang::{Text, cause};
use text::rank::GlobalRank;
use text::text;

/// The variable for another address, `host:port`; ranks and launcher must have the same value.
pub(super) const ADDRESS: &str = "NCCL_RAS_ADDR";
/// NCCL's own address.
const STANDARD: &str = "localhost:28028";
/// Maximum bytes of a report: a communicator of ten thousand ranks has 4 MB.
const LARGEST: usize = 32 << 20;
const LONGEST_LINE: usize = 4096;
/// Attempts to reach a rank of our own job on a port that another job shares.
const ATTEMPTS: usize = 4;

/// A report of NCCL's RAS.
#[derive(Debug, Clone, PartialEq)]
pub struct RasReport {
    /// The text as received.
    pub text: String,
    /// None for an NCCL without JSON (2.24 to 2.28.6).
    pub view: Option<RasView>,
}

#[derive(Debug)]
pub enum RasError {
    /// The value of NCCL_RAS_ADDR.
    Address(String),
    /// Nothing listens, or nothing answers in time.
    Io { address: String, error: io::Error },
    /// Another program listens. `said`: the beginning of its answer.
    NotRas { address: String, said: String },
    /// The report is truncated or not JSON.
    Report { address: String, why: String },
    /// The report lists the processes of another job of this host.
    OtherJob { address: String },
}

impl RasError {
    pub fn text(&self) -> Text {
        match self {
            RasError::Address(value) => text!(
                "{ADDRESS}={value} is not an address of this host; host:port is allowed, with an IP address or localhost, as in {STANDARD}",
                "{ADDRESS}={value} 不是本机地址；应为 host:port，主机为 IP 地址或 localhost，例如 {STANDARD}"
            ),
            RasError::Io { address, error } => {
                let Text { en, zh } = cause(error);
                text!(
                    "NCCL RAS at {address} does not answer: {en}; it needs NCCL 2.24 and a rank with a communicator",
                    "{address} 上的 NCCL RAS 没有应答：{zh}；需要 NCCL 2.24 及以上，且至少一个 rank 已建立通信域"
                )
            }
            RasError::NotRas { address, said } => text!(
                "what listens at {address} is not NCCL RAS, it said {said:?}; set {ADDRESS} to another port",
                "{address} 上监听的不是 NCCL RAS，其应答为 {said:?}；请将 {ADDRESS} 设为其他端口"
            ),
            RasError::Report { address, why } => text!(
                "the report of NCCL RAS at {address} cannot be read: {why}",
                "无法解析 {address} 上 NCCL RAS 的报告：{why}"
            ),
            RasError::OtherJob { address } => text!(
                "NCCL RAS at {address} answers for another job of this host; set {ADDRESS} to a port of its own for each job",
                "{address} 上的 NCCL RAS 属于本机的另一任务；请为每个任务将 {ADDRESS} 设为不同端口"
            ),
        }
    }
}

impl fmt::Display for RasError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text().en)
    }
}

/// The report of the job that `ranks` (with the pids of their processes) belong to. `address`: the
/// value of NCCL_RAS_ADDR; None means NCCL's own. Blocks at most for `timeout`; a rank collects for up
/// to 10 s if others do not answer, and is told to hurry.
///
/// # Errors
/// See [`RasError`].
pub(crate) fn ask(
    address: Option<&str>,
    ranks: &[(GlobalRank, i32)],
    timeout: Duration,
) -> Result<RasReport, RasError> {
    let address = address.filter(|address| !address.is_empty()).unwrap_or(STANDARD);
    let places = places(address).ok_or_else(|| RasError::Address(address.to_owned()))?;
    let until = Instant::now() + timeout;
    let mut last = RasError::OtherJob { address: address.to_owned() };
    for place in places.iter().cycle().take(ATTEMPTS * places.len()) {
        match ask_at(address, *place, until) {
            // The text names no processes.
            Ok(RasReport { view: Some(view), .. }) if !view.knows(ranks) => {
                last = RasError::OtherJob { address: address.to_owned() };
            }
            Ok(report) => return Ok(report),
            // NCCL listens on only one of the addresses of `localhost`.
            Err(error @ RasError::Io { .. }) if places.len() > 1 => last = error,
            Err(error) => return Err(error),
        }
        if Instant::now() >= until {
            break;
        }
    }
    Err(last)
}

/// None for a name: NCCL listens on an address of this host.
fn places(address: &str) -> Option<Vec<SocketAddr>> {
    let (host, port) = address.rsplit_once(':')?;
    let port = port.trim().parse().ok()?;
    let host = host.trim().trim_start_matches('[').trim_end_matches(']');
    let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    Some(match host {
        "localhost" => loopback.map(|ip| SocketAddr::new(ip, port)).to_vec(),
        host => vec![SocketAddr::new(host.parse().ok()?, port)],
    })
}

fn ask_at(address: &str, place: SocketAddr, until: Instant) -> Result<RasReport, RasError> {
    let io = |error| RasError::Io { address: address.to_owned(), error };
    let not_ras = |said: &[u8]| RasError::NotRas {
        address: address.to_owned(),
        said: String::from_utf8_lossy(said).trim_end().chars().take(80).collect(),
    };
    let mut line = Line::connect(place, until).map_err(io)?;
    let hello = line.ask("CLIENT PROTOCOL 2").map_err(io)?;
    if !hello.starts_with(b"SERVER PROTOCOL ") {
        return Err(not_ras(&hello));
    }
    // The time that RAS may wait in each half of its work. If it refuses the command, the time stays
    // at 5 s.
    let seconds = (line.left().map_err(io)?.as_secs() / 3).max(1);
    line.ask(&format!("TIMEOUT {seconds}")).map_err(io)?;
    let has_json = line.ask("SET FORMAT json").map_err(io)?.starts_with(b"OK");
    line.say("VERBOSE STATUS").map_err(io)?;
    let report = line.rest().map_err(io)?;
    let why = |why: String| RasError::Report { address: address.to_owned(), why };
    if report.is_empty() {
        return Err(why("empty".to_owned()));
    }
    let view = match has_json {
        true => Some(read(&report).map_err(|error| why(error.to_string()))?),
        false => None,
    };
    Ok(RasReport { text: String::from_utf8_lossy(&report).into_owned(), view })
}

/// A connection with a deadline for everything.
struct Line {
    stream: TcpStream,
    read: Vec<u8>,
    until: Instant,
}

impl Line {
    fn connect(place: SocketAddr, until: Instant) -> io::Result<Line> {
        let stream = TcpStream::connect_timeout(&place, left(until)?)?;
        Ok(Line { stream, read: Vec::new(), until })
    }

    fn left(&self) -> io::Result<Duration> {
        left(self.until)
    }

    fn say(&mut self, words: &str) -> io::Result<()> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write_all(format!("{words}\n").as_bytes())
    }

    /// The line that answers, without its end.
    fn ask(&mut self, words: &str) -> io::Result<Vec<u8>> {
        self.say(words)?;
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.read.drain(..=end).collect();
                line.pop();
                return Ok(line);
            }
            // An answer that is not a line counts as well: it comes from a program other than RAS.
            if self.read.len() > LONGEST_LINE || !self.more()? {
                return Ok(std::mem::take(&mut self.read));
            }
        }
    }

    /// All bytes until the other side closes.
    fn rest(mut self) -> io::Result<Vec<u8>> {
        while self.more()? {}
        Ok(self.read)
    }

    /// Reads more bytes; false at the end.
    fn more(&mut self) -> io::Result<bool> {
        let mut part = [0; 16 << 10];
        let read = read_by(&mut self.stream, self.until, &mut part)?;
        if self.read.len() + read > LARGEST {
            let why = format!("an answer of more than {LARGEST} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        self.read.extend_from_slice(&part[..read]);
        Ok(read > 0)
    }
}
