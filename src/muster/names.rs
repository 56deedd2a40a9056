//! Resolves host names without libc's resolver, which a static executable cannot use.
//!
//! Owns the order literal → /etc/hosts → DNS → `last_resort`, and one deadline over all. Takes a [`Host`] for
//! /etc/hosts and /etc/resolv.conf. Gives addresses in order of preference, or a [`NameError`] with each question,
//! server and answer. Must never hang or panic, whatever the network and the files contain. Needs a tokio runtime; one
//! thread is enough.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::rr::Name;
use tokio::time::{Instant, timeout_at};

use linux::deadline::begun;
use linux::host::Host;
use text::lang::{Text, cause};
use text::order::Ordered;
use text::text;

/// Timeout of a question.
const QUESTION: Duration = Duration::from_secs(2);

/// Additional time for a last resort to kill its helper.
const KILL: Duration = Duration::from_millis(500);

/// Silence after which the next name of the search list is asked for as well.
const STAGGER: Duration = Duration::from_millis(300);

/// A last resort beyond files and DNS: NSS, by a helper program that may be killed. Called in a
/// thread of its own; should return within the given time.
pub type LastResort = Arc<dyn Fn(&str, Duration) -> Result<Vec<IpAddr>, String> + Send + Sync>;

/// The reason why a name has no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text().en)]
pub struct NameError {
    pub name: String,
    /// Each question and its outcome, in order.
    pub attempts: Vec<QueryAttempt>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryAttempt {
    /// `/etc/hosts`, `master.ns.svc.cluster.local. of 10.96.0.10`.
    pub asked: Text,
    pub answer: Text,
}

impl NameError {
    pub fn text(&self) -> Text {
        let mut text = Text::same(format!("{:?}", self.name));
        for (at, QueryAttempt { asked, answer }) in self.attempts.iter().enumerate() {
            let marks = if at == 0 { (": ", "：") } else { ("; ", "；") };
            let en = format!("{}{}{}: {}", text.en, marks.0, asked.en, answer.en);
            text = Text::new(en, format!("{}{}{}：{}", text.zh, marks.1, asked.zh, answer.zh));
        }
        text
    }
}

/// The addresses of `name`, each once; never an empty list.
///
/// # Errors
/// If no address was found before `deadline`.
pub async fn resolve(
    host: &Host,
    name: &str,
    deadline: Duration,
    last_resort: Option<&LastResort>,
) -> Result<Vec<IpAddr>, NameError> {
    let end = Instant::now() + deadline;
    if let Some(address) = literal(name) {
        return Ok(vec![address]);
    }
    let mut error = NameError { name: name.to_owned(), attempts: Vec::new() };
    let mut note = |asked: Text, answer: Text| error.attempts.push(QueryAttempt { asked, answer });

    match file(host, "/etc/hosts", end).await {
        Ok(hosts) => {
            let found = in_hosts(&hosts, name);
            if !found.is_empty() {
                return Ok(found);
            }
            note(Text::same("/etc/hosts"), text!("not listed", "没有该名称"));
        }
        Err(error) => note(Text::same("/etc/hosts"), cause(&error)),
    }
    if name.trim_end_matches('.').eq_ignore_ascii_case("localhost") {
        return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }

    let configuration = match file(host, "/etc/resolv.conf", end).await {
        Ok(text) => Configuration::parse(&text),
        Err(error) => {
            note(Text::same("/etc/resolv.conf"), cause(&error));
            Configuration::parse("")
        }
    };
    match ask(&configuration, name, end).await {
        Ok(found) => return Ok(found),
        Err(answers) => {
            answers.into_iter().for_each(|QueryAttempt { asked, answer }| note(asked, answer))
        }
    }

    let left = end.saturating_duration_since(Instant::now());
    if let Some(last_resort) = last_resort.filter(|_| !left.is_zero()) {
        let (last_resort, asked) = (Arc::clone(last_resort), name.to_owned());
        let answer = begun(move || last_resort(&asked, left));
        let said = match timeout_at(end + KILL, answer).await {
            Err(_) => text!("no answer", "无应答"),
            Ok(Err(broken)) => Text::same(broken.to_string()),
            Ok(Ok(Ok(found))) if !found.is_empty() => return Ok(distinct(found)),
            Ok(Ok(Ok(_))) => text!("no address", "没有地址"),
            Ok(Ok(Err(words))) => Text::same(words),
        };
        note(Text::same("getaddrinfo"), said);
    }
    Err(error)
}

/// The text of a file, read in a thread that is abandoned if the file's mount is dead. Reading may take half of the
/// time, so that time is left for DNS.
async fn file(host: &Host, path: &'static str, end: Instant) -> std::io::Result<String> {
    let host = host.clone();
    let half = Instant::now() + end.saturating_duration_since(Instant::now()) / 2;
    let reading = begun(move || host.read(path));
    match timeout_at(half, reading).await {
        Ok(read) => read.unwrap_or_else(|broken| Err(std::io::Error::other(broken))),
        Err(_) => Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer")),
    }
}

/// Parses an address: `10.0.0.1`, `fd00::1`, `[fd00::1]`, `fe80::1%eth0`.
pub fn literal(name: &str) -> Option<IpAddr> {
    let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    let bare = bare.split_once('%').map_or(bare, |(address, _zone)| address);
    bare.parse().ok()
}

/// hosts(5): an address, then names; `#` begins a comment.
fn in_hosts(hosts: &str, name: &str) -> Vec<IpAddr> {
    let wanted = name.trim_end_matches('.');
    let found = hosts.lines().filter_map(|line| {
        let line = line.split('#').next()?;
        let mut words = line.split_ascii_whitespace();
        let address = literal(words.next()?)?;
        words.any(|word| word.trim_end_matches('.').eq_ignore_ascii_case(wanted)).then_some(address)
    });
    distinct(found.collect())
}

fn distinct(addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    let mut once: Vec<IpAddr> = Vec::new();
    for address in addresses {
        if !once.contains(&address) {
            once.push(address);
        }
    }
    once
}

/// The content of resolv.conf(5), with libc's defaults and bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Configuration {
    servers: Vec<IpAddr>,
    search: Vec<String>,
    ndots: usize,
    /// The port of the DNS servers: 53 except in tests, which may not bind it.
    port: u16,
}

impl Configuration {
    fn parse(text: &str) -> Configuration {
        let mut configuration =
            Configuration { servers: Vec::new(), search: Vec::new(), ndots: 1, port: 53 };
        for line in text.lines() {
            let line = line.split(['#', ';']).next().unwrap_or_default();
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("nameserver") => configuration.servers.extend(words.next().and_then(literal)),
                // The last `search` or `domain` line counts.
                Some("search" | "domain") => {
                    configuration.search = words.map(str::to_owned).collect();
                }
                Some("options") => {
                    for option in words {
                        if let Some(ndots) = option.strip_prefix("ndots:") {
                            configuration.ndots =
                                ndots.parse().map_or(configuration.ndots, |n: usize| n.min(15));
                        }
                    }
                }
                _ => {}
            }
        }
        // Without a server line the local server is used. libc asks at most three servers.
        if configuration.servers.is_empty() {
            configuration.servers.push(Ipv4Addr::LOCALHOST.into());
        }
        configuration.servers.truncate(3);
        configuration
    }

    /// The full names to ask for, in order.
    fn candidates(&self, name: &str) -> Vec<String> {
        if let Some(absolute) = name.strip_suffix('.') {
            return vec![format!("{absolute}.")];
        }
        let absolute = format!("{name}.");
        let mut names: Vec<String> = self
            .search
            .iter()
            .map(|domain| format!("{name}.{}.", domain.trim_matches('.')))
            .collect();
        if name.matches('.').count() >= self.ndots {
            names.insert(0, absolute);
        } else {
            names.push(absolute);
        }
        names
    }

    fn resolver(&self) -> Result<TokioResolver, NetError> {
        let servers = self.servers.iter().map(|server| {
            let mut server = NameServerConfig::udp_and_tcp(*server);
            for connection in &mut server.connections {
                connection.port = self.port;
            }
            server
        });
        let mut options = ResolverOpts::default();
        options.timeout = QUESTION;
        // The number counts retries after the first attempt.
        options.attempts = 0;
        options.use_hosts_file = ResolveHosts::Never;
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        // A name may appear between two questions.
        options.cache_size = 0;
        options.num_concurrent_reqs = self.servers.len();
        let config = ResolverConfig::from_parts(None, Vec::new(), servers.collect());
        let mut builder =
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        builder.build()
    }
}

/// Asks DNS for each name of the search list. The first in the list with an address wins; an
/// unanswered name delays the next only briefly.
async fn ask(
    configuration: &Configuration,
    name: &str,
    end: Instant,
) -> Result<Vec<IpAddr>, Vec<QueryAttempt>> {
    let servers: Vec<String> = configuration.servers.iter().map(IpAddr::to_string).collect();
    let servers = servers.join(", ");
    let failed = |answer| vec![QueryAttempt { asked: Text::same(servers.clone()), answer }];
    // The resolver panics without random numbers for its questions.
    if let Err(error) = getrandom::fill(&mut [0]) {
        let answer = text!(
            "not asked, since getrandom(2) fails: {error}",
            "getrandom(2) 失败，未查询：{error}"
        );
        return Err(failed(answer));
    }
    let candidates = configuration.candidates(name);
    let resolver = configuration.resolver();
    let resolver = resolver.map_err(|cause| failed(Text::same(cause.to_string())))?;
    let mut answers: Vec<Option<Result<Vec<IpAddr>, Text>>> = vec![None; candidates.len()];
    let mut running = tokio::task::JoinSet::new();
    let mut waiting = candidates.iter().enumerate();
    loop {
        let decided = answers.iter().find(|answer| !matches!(answer, Some(Err(_))));
        match decided {
            Some(Some(Ok(found))) => return Ok(found.clone()),
            // Wait only for the answers to earlier names.
            Some(_) => {}
            None => break,
        }
        if let Some((at, candidate)) = waiting.next() {
            let (resolver, candidate) = (resolver.clone(), candidate.clone());
            running.spawn(async move { (at, question(&resolver, &candidate).await) });
        }
        let pause = if waiting.len() > 0 { end.min(Instant::now() + STAGGER) } else { end };
        match timeout_at(pause, running.join_next()).await {
            Ok(Some(Ok((at, answer)))) => {
                if let Some(slot) = answers.get_mut(at) {
                    *slot = Some(answer);
                }
            }
            Ok(Some(Err(broken))) if broken.is_panic() => {
                return Err(failed(Text::same(broken.to_string())));
            }
            _ => {}
        }
        if Instant::now() >= end {
            break;
        }
    }
    // The deadline may have passed for a name while a later one has an address.
    if let Some(Ok(found)) = answers.iter().flatten().find(|answer| answer.is_ok()) {
        return Ok(found.clone());
    }
    Err(candidates
        .into_iter()
        .zip(answers)
        .map(|(candidate, answer)| QueryAttempt {
            asked: text!("{candidate} of {servers}", "向 {servers} 查询 {candidate}"),
            answer: match answer {
                Some(Err(cause)) => cause,
                _ => text!("no answer before the deadline", "到截止时间仍无应答"),
            },
        })
        .collect())
}

async fn question(resolver: &TokioResolver, name: &str) -> Result<Vec<IpAddr>, Text> {
    let name = Name::from_utf8(name)
        .map_err(|cause| text!("not a host name: {cause}", "不是主机名：{cause}"))?;
    // hickory's own timeout is per server and transport; this timeout covers all of them.
    let lookup = tokio::time::timeout(QUESTION, resolver.lookup_ip(name)).await;
    match lookup {
        Err(_) | Ok(Err(NetError::Timeout)) => {
            let seconds = QUESTION.as_secs();
            Err(text!("no answer in {seconds} s", "{seconds} 秒内无应答"))
        }
        Ok(Err(NetError::Dns(DnsError::NoRecordsFound(none)))) => {
            Err(Text::same(none.response_code.to_string()))
        }
        Ok(Err(cause)) => Err(Text::same(cause.to_string())),
        Ok(Ok(found)) => {
            // The order of answers changes and mixes families; launchers expect IPv4 first.
            let mut found = distinct(found.iter().collect());
            found.order_by_key(IpAddr::is_ipv6);
            if found.is_empty() { Err(text!("no address", "没有地址")) } else { Ok(found) }
        }
    }
}

#[cfg(test)]
mod tests;
