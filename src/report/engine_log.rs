//! Finds the cause in the log of an engine that failed before any rank started.
//!
//! Takes the last lines of engine.log; never reads the file.

/// Messages about a port in use: of torch since 1.11, of Python, and of accelerate's check
/// before it starts torch.
const TAKEN: [&str; 3] =
    ["eaddrinuse", "address already in use", "another process is utilizing it"];

/// Whether the engine could not listen on `port`, since another process had it.
pub fn lost_port<'a>(lines: impl IntoIterator<Item = &'a str>, port: u16) -> bool {
    lines.into_iter().any(|line| {
        let lower = line.to_ascii_lowercase();
        TAKEN.iter().any(|words| lower.contains(words)) && names(line, port)
    })
}

/// Whether the line contains the port as a whole number.
fn names(line: &str, port: u16) -> bool {
    let port = port.to_string();
    line.split(|letter: char| !letter.is_ascii_digit()).any(|number| number == port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_master_port_counts_as_lost() {
        for (line, lost) in [
            (
                "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29890, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
                true,
            ),
            (
                "RuntimeError: The server socket has failed to listen on any local network address. The server socket has failed to bind to [::]:29890 (errno: 98 - Address already in use).",
                true,
            ),
            (
                "ConnectionError: Tried to launch distributed communication on port `29890`, but another process is utilizing it. Please specify a different port",
                true,
            ),
            ("OSError: [Errno 98] Address already in use: port 129890", false),
            ("OSError: [Errno 98] Address already in use", false),
            ("connecting to 10.0.0.1:29890", false),
        ] {
            assert_eq!(lost_port([line], 29_890), lost, "{line}");
        }
    }
}
