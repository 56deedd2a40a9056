//! Asks NCCL's RAS what its communicators look like, over TCP, as the program `ncclras` does.
//!
//! Takes the ranks of this node and a deadline; gives the report and a [`RasVerdict`] of it. An NCCL
//! before 2.28.7 has no JSON, and gives its text alone. Any rank answers for the whole job, also while it
//! hangs. A program that listens on the port costs no more than the deadline.
//!
//! Protocol and JSON: `src/ras/client_support.cc` of NCCL 2.30. All ranks of a host listen on the
//! same port, those of another job as well (SO_REUSEPORT), and the kernel chooses who answers. So
//! an answer that knows none of our processes is not ours.

use std::fmt;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use linux::deadline::{left, read_by, with_deadline};
use linux::host::Host;
use linux::procfs::{self, Process};
use text::lang::{Text, cause};
use text::rank::GlobalRank;
use text::text;
use view::{RasView, read};

#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
#[cfg(test)]
mod tests;
mod view;

pub use view::{Behind, RasVerdict};

/// The value 0 switches RAS off.
const ENABLED: &str = "NCCL_RAS_ENABLE";
/// Least time that remains for the RAS after the environments of the ranks, which are read first.
const LEAST: Duration = Duration::from_millis(500);

/// Ranks with the pids of processes.
type Pids = Vec<(GlobalRank, i32)>;

/// The ranks that may have a RAS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RasSource {
    /// The ranks use GPUs, so RAS listens unless it is switched off.
    Gpus,
    /// RAS is asked only if the ranks name its address.
    IfNamed,
}

/// The report of the job that these ranks belong to. None if the job has no RAS to ask. Blocks for `timeout` at
/// most.
pub fn report(
    source: RasSource,
    ranks: &[(GlobalRank, i32)],
    timeout: Duration,
) -> Option<Result<RasReport, RasError>> {
    Some(asked(source, ranks, timeout)?.1)
}

/// The meaning of the report. None also if no report can be read. `world`: ranks of the job.
pub fn verdict(
    source: RasSource,
    world: Option<u32>,
    ranks: &[(GlobalRank, i32)],
    timeout: Duration,
) -> Option<RasVerdict> {
    let (processes, report) = asked(source, ranks, timeout)?;
    Some(report.ok()?.view?.verdict(world, &processes))
}

/// The report, asked for with the processes of the ranks.
fn asked(
    source: RasSource,
    ranks: &[(GlobalRank, i32)],
    timeout: Duration,
) -> Option<(Pids, Result<RasReport, RasError>)> {
    let until = Instant::now() + timeout;
    let own = ranks.to_vec();
    let (address, processes) = with_deadline(timeout.saturating_sub(LEAST), move || {
        let host = Host::live();
        Some((address(&host, source, &own)?, processes(&own)))
    })??;
    let left = until.saturating_duration_since(Instant::now());
    let report = ask(address.as_deref(), &processes, left);
    Some((processes, report))
}

/// The RAS address of the first rank that has one. An inner None is NCCL's own address; an outer None means that
/// there is no RAS.
fn address(host: &Host, source: RasSource, ranks: &[(GlobalRank, i32)]) -> Option<Option<String>> {
    ranks.iter().find_map(|(_, pid)| {
        // A rank whose environment is hidden is taken to have NCCL's defaults.
        let environ = host.process(*pid).environ().unwrap_or_default();
        let value = |name| {
            let value = String::from_utf8_lossy(procfs::variable(&environ, name)?).into_owned();
            Some(value).filter(|value| !value.is_empty())
        };
        let named = value(ADDRESS);
        let is_on = value(ENABLED).is_none_or(|value| value.trim() != "0");
        (is_on && (named.is_some() || source == RasSource::Gpus)).then_some(named)
    })
}

/// The ranks with the pids of their processes and of all descendants: any of these may be the one that uses
/// NCCL.
fn processes(ranks: &[(GlobalRank, i32)]) -> Pids {
    let all = Process::scan(Path::new("/proc"));
    let below = |rank: &(GlobalRank, i32)| {
        let rank = *rank;
        let below = Process::descendants(&all, &[rank.1]);
        std::iter::once(rank).chain(below.into_iter().map(move |one| (rank.0, one.pid)))
    };
    ranks.iter().flat_map(below).collect()
}

/// The variable for another address, `host:port`; ranks and launcher must have the same value.
const ADDRESS: &str = "NCCL_RAS_ADDR";
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
