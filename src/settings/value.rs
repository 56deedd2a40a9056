//! Parsers of single settings. None: the text is not allowed.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use serde::de::value::{Error, StrDeserializer};
use serde::de::{Deserialize, IntoDeserializer};

use super::{LogKeep, TellsProgress};
use crate::hostlist::{self, split_endpoint};
use regex::bytes::Regex;
use text::pattern;

/// The value that its type calls so in serialized form.
pub(super) fn named<'a, T: Deserialize<'a>>(name: &'a str) -> Option<T> {
    let name: StrDeserializer<'a, Error> = name.into_deserializer();
    T::deserialize(name).ok()
}

/// The same for a name that is allowed here.
pub(super) fn one_of<'a, T: Deserialize<'a>>(text: &'a str, names: &[&str]) -> Option<T> {
    names.contains(&text).then(|| named(text)).flatten()
}

/// `true`, `1`, `yes`, `on` and their opposites.
pub(super) fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Some(true),
        "false" | "0" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// A whole number in plain digits: no sign, no blanks.
pub(super) fn whole(text: &str) -> Option<u32> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

pub(super) fn positive(text: &str) -> Option<u32> {
    whole(text).filter(|n| *n > 0)
}

/// A number of nodes, also as torchrun's range of one number, `2:2`.
pub(super) fn nodes(text: &str) -> Option<u32> {
    let number = text.split_once(':').filter(|(least, most)| least == most);
    positive(number.map_or(text, |(least, _)| least))
}

pub(super) fn port(text: &str) -> Option<u16> {
    whole(text).and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0)
}

/// Text that is not empty and has no control characters.
pub(super) fn words(text: &str) -> Option<String> {
    (!text.trim().is_empty() && !text.contains(char::is_control)).then(|| text.to_owned())
}

/// A host name or an address, without a port. IPv6 may be in brackets.
pub(super) fn host(text: &str) -> Option<String> {
    let address = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if address.contains(':') {
        // fe80::1%eth0: the address parser does not know zones.
        let bare = address.split('%').next().unwrap_or(address);
        return bare.parse::<Ipv6Addr>().is_ok().then(|| address.to_owned());
    }
    let letter = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    (!text.is_empty() && text.len() <= 253 && text.chars().all(letter)).then(|| text.to_owned())
}

/// Hosts separated by commas or white space, each once; `host[0-3]` stands for four.
pub(super) fn hosts(text: &str) -> Option<Vec<String>> {
    let (mut all, mut seen) = (Vec::new(), BTreeSet::new());
    for item in hostlist::items(&text.split_whitespace().collect::<Vec<_>>().join(",")) {
        let names = match item.trim() {
            "" => continue,
            // A number is `srun --nodes 2`; an address has colons, a range has none.
            number if whole(number).is_some() => return None,
            address if address.contains(':') => vec![host(address)?],
            range if hostlist::is_whole(range) => hostlist::expand(range),
            _ => return None,
        };
        for name in names {
            let name = host(&name).filter(|name| seen.insert(name.clone()))?;
            all.push(name);
        }
    }
    (!all.is_empty()).then_some(all)
}

/// `HOST:PORT`, an IPv6 address in brackets.
pub(super) fn endpoint(text: &str) -> Option<(String, u16)> {
    let (name, number) = split_endpoint(text);
    Some((host(name)?, port(number?)?))
}

/// `90s`, `30m`, `1h30m`, `2d`; a bare number is seconds. At most a year, so that deadlines
/// cannot overflow.
pub fn duration(text: &str) -> Option<Duration> {
    const YEAR: u64 = 366 * 24 * 3600;
    let seconds = match whole(text) {
        Some(seconds) => u64::from(seconds),
        None => parts(text)?.into_iter().try_fold(0_u64, |sum, (number, unit)| {
            let factor = match unit {
                "s" => 1,
                "m" => 60,
                "h" => 3600,
                "d" => 24 * 3600,
                _ => return None,
            };
            sum.checked_add(number.checked_mul(factor)?)
        })?,
    };
    (seconds <= YEAR).then(|| Duration::from_secs(seconds))
}

/// `9400`, `localhost:9400`: that port of the loopback address; any other address must be a literal.
pub(super) fn listens(text: &str) -> Option<SocketAddr> {
    let at = |address: IpAddr, text: &str| Some(SocketAddr::new(address, port(text)?));
    let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
    if let Some(text) = text.strip_prefix("localhost:") {
        return at(loopback, text);
    }
    at(loopback, text).or_else(|| text.parse().ok().filter(|at: &SocketAddr| at.port() > 0))
}

/// Bytes: `256MiB`, `4GiB`, `500MB`, also Kubernetes' `256Mi`; a bare number is bytes.
pub(super) fn size(text: &str) -> Option<u64> {
    if text.bytes().all(|b| b.is_ascii_digit()) {
        return text.parse().ok();
    }
    let (number, unit) = match parts(text)?.as_slice() {
        &[one] => one,
        _ => return None,
    };
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "b" => 1,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "kib" | "ki" => 1 << 10,
        "mib" | "mi" => 1 << 20,
        "gib" | "gi" => 1 << 30,
        "tib" | "ti" => 1 << 40,
        _ => return None,
    };
    number.checked_mul(factor)
}

/// `auto`, `off`, or a pattern that tells how far a job is.
pub(super) fn progress(text: &str) -> Option<TellsProgress> {
    match text {
        "auto" => Some(TellsProgress::Auto),
        "off" => Some(TellsProgress::Off),
        _ => pattern::compile(text).ok().filter(tells_progress).map(TellsProgress::Lines),
    }
}

/// `20,14d,50GiB`: the limits of the runs that are kept; `all`: none.
pub(super) fn log_keep(text: &str) -> Option<LogKeep> {
    let mut keep = LogKeep::default();
    if text == "all" {
        return Some(keep);
    }
    for word in text.split(',').map(str::trim) {
        if let Some(runs) = whole(word) {
            keep.runs.replace(Some(runs).filter(|runs| *runs > 0)?).is_none().then_some(())?;
        } else if let Some(age) = duration(word) {
            keep.age.replace(age).is_none().then_some(())?;
        } else {
            keep.bytes.replace(size(word)?).is_none().then_some(())?;
        }
    }
    Some(keep)
}

/// `1h30m` → (1, "h"), (30, "m"). None unless numbers and units alternate, with at least one pair.
fn parts(text: &str) -> Option<Vec<(u64, &str)>> {
    let mut pairs = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, left) = after.split_at(letters);
        pairs.push((number.parse().ok()?, unit));
        rest = left;
    }
    (!pairs.is_empty()).then_some(pairs)
}

/// Whether a pattern tells how far a job is: it has the group `percent`, or `step` and `total`.
fn tells_progress(pattern: &Regex) -> bool {
    let has = |wanted: &str| pattern.capture_names().flatten().any(|name| name == wanted);
    has(TellsProgress::PERCENT) || (has(TellsProgress::STEPS) && has(TellsProgress::TOTAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, seconds) in
            [("30s", 30), ("30m", 1800), ("1h30m", 5400), ("45", 45), ("0", 0), ("2d", 172_800)]
        {
            assert_eq!(duration(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for text in
            ["", "s", "30 s", "-1", "1.5h", "30x", "99999999999999999999s", "9999d", "1h30", "½h"]
        {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn kept_runs() {
        let keep = |runs, days: Option<u64>, bytes| {
            let age = days.map(|days| Duration::from_secs(days * 24 * 3600));
            Some(LogKeep { runs, age, bytes })
        };
        assert_eq!(log_keep("all"), keep(None, None, None));
        assert_eq!(log_keep("20"), keep(Some(20), None, None));
        assert_eq!(log_keep("14d, 50GiB"), keep(None, Some(14), Some(50 << 30)));
        assert_eq!(log_keep("5,1d,1GiB"), keep(Some(5), Some(1), Some(1 << 30)));
        for wrong in ["", "0", "-1", "1,2", "3d,4d", "x", "all,3", "1.5d", "20,"] {
            assert_eq!(log_keep(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("256MiB", 256 << 20), ("4GiB", 4 << 30), ("64Mi", 64 << 20), ("1kb", 1000), ("7", 7)]
        {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["", "MiB", "4 GiB", "1.5GiB", "99999999999TiB", "-4", "4X", "1GiB1MiB"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn hosts_and_endpoints() {
        for (text, name) in [
            ("job-master-0.ns", "job-master-0.ns"),
            ("10.0.0.1", "10.0.0.1"),
            ("[fd00::1]", "fd00::1"),
        ] {
            assert_eq!(host(text).as_deref(), Some(name));
        }
        for text in ["", "a b", "tcp://10.0.0.1:80", "a:29500", "[a]"] {
            assert_eq!(host(text), None, "{text}");
        }
        assert_eq!(endpoint("a:1"), Some(("a".into(), 1)));
        assert_eq!(endpoint("[fd00::1]:29500"), Some(("fd00::1".into(), 29500)));
        for text in ["a", "a:0", "a:65536", "a:", ":1", "fd00::1:80", "tcp://a:1"] {
            assert_eq!(endpoint(text), None, "{text}");
        }
    }

    #[test]
    fn lists_of_hosts() {
        for (text, expected) in [
            ("host0,host1", "host0 host1"),
            ("host0, host1\nhost2 ", "host0 host1 host2"),
            ("10.0.0.1,[fd00::1],fe80::1%eth0", "10.0.0.1 fd00::1 fe80::1%eth0"),
            ("gpu[08-10,12]-ib,login", "gpu08-ib gpu09-ib gpu10-ib gpu12-ib login"),
            ("a", "a"),
        ] {
            assert_eq!(hosts(text).map(|all| all.join(" ")).as_deref(), Some(expected), "{text}");
        }
        for text in [
            "",
            ",",
            "2",
            "a,2",
            "a,a",
            "a[1-2],a1",
            "a:29500",
            "n[1-",
            "n]1[",
            "n[3-1]",
            "n[x]",
            "n[]",
            "n[1]]",
            "a;b",
            "$(cat hosts)",
            "user@host",
        ] {
            assert_eq!(hosts(text), None, "{text}");
        }
    }

    #[test]
    fn numbers_are_plain_digits() {
        assert_eq!(
            (whole("007"), whole("+1"), whole(""), whole("1 ")),
            (Some(7), None, None, None)
        );
        assert_eq!((positive("0"), port("65536"), port("65535")), (None, None, Some(65535)));
    }

    #[test]
    fn percent_or_step_with_total_tells_progress() {
        for (pattern, tells) in [
            (r"done (?P<percent>[\d.]+) %, loss (?P<loss>\S+)", true),
            (r"it (?P<step>\d+) of (?P<total>\d+)", true),
            (r"(?P<step>\d+)", false),
        ] {
            assert_eq!(tells_progress(&pattern::compile(pattern).expect("a pattern")), tells);
        }
    }
}
