//! Error counters of the job's HCAs, before and after the job.
//!
//! Takes the [`Host`] and `device:port` names; gives the counters, and their growth. A counter that cannot be read is
//! not read again: firmware-owned functions answer with EINVAL and a line in the kernel's log each time.

use std::collections::BTreeMap;

use serde::Serialize;

use linux::host::Host;

/// Counters whose growth indicates a problem of a link, a cable or a congested fabric.
const COUNTERS: &[&str] = &[
    "counters/link_downed",
    "counters/link_error_recovery",
    "counters/symbol_error",
    "counters/port_rcv_errors",
    "counters/local_link_integrity_errors",
    "counters/excessive_buffer_overrun_errors",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/packet_seq_err",
    "hw_counters/out_of_sequence",
    "hw_counters/out_of_buffer",
    "hw_counters/rnr_nak_retry_err",
    "hw_counters/implied_nak_seq_err",
    "hw_counters/roce_adp_retrans",
    "hw_counters/roce_slow_restart",
];

/// The value of each counter file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters(BTreeMap<(String, &'static str), u64>);

/// A counter that grew while the job ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Growth {
    /// `mlx5_0:1`
    pub port: String,
    /// `out_of_sequence`
    pub counter: &'static str,
    pub by: u64,
}

impl Counters {
    /// Reads the counters of `ports` (`mlx5_0:1`).
    pub fn read(host: &Host, ports: &[String]) -> Counters {
        let all =
            ports.iter().flat_map(|port| COUNTERS.iter().map(move |file| (port.clone(), *file)));
        Counters(all.filter_map(|at| Some((at.clone(), number(host, &at.0, at.1)?))).collect())
    }

    /// The growth since these counters, largest first. A counter that was reset (by reloading the driver) has grown by its
    /// current value.
    pub fn growth(&self, host: &Host) -> Vec<Growth> {
        let now = self.0.keys().filter_map(|at| Some((at.clone(), number(host, &at.0, at.1)?)));
        Counters(now.collect()).since(self)
    }

    /// Bytes received and sent by each of these ports, as far as the counters can be read.
    pub fn traffic(host: &Host, ports: &[String]) -> Vec<(String, u64, u64)> {
        let bytes = |port: &str, file: &str| {
            // The counters count words of four bytes.
            Some(number(host, port, &format!("counters/{file}"))?.saturating_mul(4))
        };
        let of = |port: &String| {
            let (received, sent) = (bytes(port, "port_rcv_data")?, bytes(port, "port_xmit_data")?);
            Some((port.clone(), received, sent))
        };
        ports.iter().filter_map(of).collect()
    }

    /// The growth from `before` to these counters, computed as in [`Counters::growth`].
    pub fn since(&self, before: &Counters) -> Vec<Growth> {
        let grown = before.0.iter().filter_map(|(at, old)| {
            let now = *self.0.get(at)?;
            let by = now.checked_sub(*old).unwrap_or(now);
            let counter = at.1.rsplit('/').next()?;
            (by > 0).then(|| Growth { port: at.0.clone(), counter, by })
        });
        let mut grown: Vec<Growth> = grown.collect();
        grown.sort_by_key(|one| std::cmp::Reverse(one.by));
        grown
    }
}

fn number(host: &Host, port: &str, file: &str) -> Option<u64> {
    let (device, port) = port.split_once(':')?;
    let path = format!("/sys/class/infiniband/{device}/ports/{port}/{file}");
    host.read(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_is_counted_in_bytes() {
        let root = tempfile::tempdir().expect("a folder");
        let counters = root.path().join("sys/class/infiniband/mlx5_0/ports/1/counters");
        std::fs::create_dir_all(&counters).expect("a folder");
        std::fs::write(counters.join("port_rcv_data"), "25\n").expect("a file");
        std::fs::write(counters.join("port_xmit_data"), "2\n").expect("a file");
        let host = Host::replayed(root.path(), BTreeMap::new());
        let ports = ["mlx5_0:1".to_owned(), "mlx5_1:1".to_owned()];
        assert_eq!(Counters::traffic(&host, &ports), [("mlx5_0:1".to_owned(), 100, 8)]);
    }

    #[test]
    fn growth_is_reported_unreadable_counters_are_skipped() {
        let root = tempfile::tempdir().expect("a folder");
        let port = root.path().join("sys/class/infiniband/mlx5_0/ports/1");
        let write = |file: &str, value: &str| {
            let path = port.join(file);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            std::fs::write(path, value).expect("a file");
        };
        write("counters/symbol_error", "7\n");
        write("counters/link_downed", "3\n");
        write("hw_counters/out_of_sequence", "100\n");
        write("hw_counters/packet_seq_err", "not a number\n");
        let host = Host::replayed(root.path(), BTreeMap::new());
        let before = Counters::read(&host, &["mlx5_0:1".to_owned(), "mlx5_9:1".to_owned()]);
        assert_eq!(before.growth(&host), []);
        write("counters/link_downed", "1\n");
        write("hw_counters/out_of_sequence", "140\n");
        write("hw_counters/packet_seq_err", "5\n");
        let grown = before.growth(&host);
        let told: Vec<_> = grown.iter().map(|one| (one.counter, one.by)).collect();
        assert_eq!(told, [("out_of_sequence", 40), ("link_downed", 1)]);
    }
}
