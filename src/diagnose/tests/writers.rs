//! The writer and the time of a line.

use super::super::prefixes::{Level, Time, peel};

#[test]
fn prefixes_of_launchers_are_removed() {
    for (line, text, rank, node) in [
        ("[r3] hello", "hello", Some(3), None),
        ("[r 12!] hello", "hello", Some(12), None),
        ("[rank7]: hello", "hello", Some(7), None),
        ("[rank: 2] hello", "hello", Some(2), None),
        ("[default0]:hello", "hello", Some(0), None),
        ("(Worker pid=12, ip=10.0.0.1) hello", "hello", None, Some("10.0.0.1")),
        ("(VllmWorker rank=4 pid=99) hello", "hello", Some(4), None),
        ("(EngineCore_DP0 pid=99) hello", "hello", None, None),
        ("3: hello", "hello", None, None),
        ("10.1.2.3: [rank5]: hello", "hello", Some(5), Some("10.1.2.3")),
        ("localhost: hello", "hello", None, Some("localhost")),
        ("gpu-node07: hello", "hello", None, Some("gpu-node07")),
        ("ValueError: hello", "ValueError: hello", None, None),
        ("python3: can't open file", "python3: can't open file", None, None),
        ("[1,6]<stderr>:hello", "hello", Some(6), None),
        ("trainer-1  | hello", "hello", None, Some("trainer-1")),
        ("[pod/job-worker-1/main] [rank9]: hello", "hello", Some(9), Some("job-worker-1")),
        ("2026-01-02T03:04:05.123456789Z hello", "hello", None, None),
        ("2026-01-02T03:04:05.1Z stderr F [rank1]: hello", "hello", Some(1), None),
        ("\x1b[36m[rank1]: \x1b[0mhello", "hello", Some(1), None),
        ("[a] hello", "[a] hello", None, None),
        ("(a) hello", "(a) hello", None, None),
        ("17 hello", "17 hello", None, None),
        ("", "", None, None),
        ("\x1b", "", None, None),
        ("\x1b[", "", None, None),
    ] {
        let peeled = peel(line.as_bytes());
        assert_eq!(String::from_utf8_lossy(&peeled.text), text, "{line}");
        assert_eq!((peeled.rank, peeled.node.as_deref()), (rank, node), "{line}");
    }
}

#[test]
fn headers_of_loggers_tell_level_and_time() {
    const SECOND: u64 = 1_000_000_000;
    // July begins after 182 days of a leap year.
    let at = |month: u64, day: u64, hour: u64, minute: u64, second: u64| {
        let before = [152, 182, 213, 244][usize::try_from(month - 6).expect("from June on")];
        (((before + day) * 24 + hour) * 3600 + minute * 60 + second) * SECOND
    };
    for (line, body, level, time) in [
        (
            "E0922 20:40:31.5 1403 torch/api.py:833] failed",
            "failed",
            Level::Error,
            Some(at(9, 22, 20, 40, 31) + SECOND / 2),
        ),
        (
            "W0608 08:11:06 12152 torch/api.py:704] stopped",
            "stopped",
            Level::Warning,
            Some(at(6, 8, 8, 11, 6)),
        ),
        (
            "[W826 10:26:06.149 CUDAFunctions.cpp:108] Warning: x",
            "Warning: x",
            Level::Warning,
            Some(at(8, 26, 10, 26, 6) + 149_000_000),
        ),
        ("[E ProcessGroupNCCL.cpp:828] x", "x", Level::Error, None),
        ("ERROR 07-01 12:00:00 [core.py:390] x", "x", Level::Error, Some(at(7, 1, 12, 0, 0))),
        (
            "2024-07-21 11:20:10 - name - WARNING - x",
            "x",
            Level::Warning,
            Some(at(7, 21, 11, 20, 10)),
        ),
        (
            "2024-07-21 11:20:10,250 ERROR x",
            "x",
            Level::Error,
            Some(at(7, 21, 11, 20, 10) + SECOND / 4),
        ),
        ("INFO:root:x", "x", Level::Warning, None),
        ("wandb: WARNING x", "x", Level::Warning, None),
        ("/a/b.py:7: FutureWarning: x", "/a/b.py:7: FutureWarning: x", Level::Warning, None),
        ("ValueError: x", "ValueError: x", Level::Unsaid, None),
    ] {
        let peeled = peel(line.as_bytes());
        let shown = String::from_utf8_lossy(&peeled.text[peeled.body..]).into_owned();
        let time = time.map(|nanoseconds| Time { utc: false, nanoseconds });
        assert_eq!((shown.as_str(), peeled.level, peeled.time), (body, level, time), "{line}");
    }
}
