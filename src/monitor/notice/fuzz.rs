//! The answers of metadata services and the content of a file as functions that a fuzzer feeds. Not part of the program.

use std::time::{Duration, SystemTime};

use super::{answers, http};

/// The first byte chooses the source, and whether the answer has ended; the others are an answer over HTTP, whose body is
/// read, or a body. No text that comes of it has control characters.
pub fn notices(data: &[u8]) -> bool {
    let [mode, rest @ ..] = data else { return false };
    let answer = http::answer(rest, mode & 0x10 != 0).ok().flatten();
    let body = answer.as_ref().map_or(rest, |answer| &answer.body);
    assert!(body.len() <= data.len().max(http::LARGEST));
    let text = std::str::from_utf8(body).unwrap_or_default().trim();
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let ends = match mode % 8 {
        0 => answers::aws_spot(body),
        1 => answers::aws_events(body, now),
        2 => answers::gcp_preempted(text).map(|_| vec![answers::gcp_preemption(now)]),
        3 => answers::gcp_maintenance(text).map(|_| vec![answers::gcp_stop(body)]),
        4 | 5 => answers::azure(body, "trainer_0"),
        6 => answers::alibaba_spot(text),
        _ => Ok(vec![answers::file("/run/stop", body)]),
    };
    let _ = answers::slurm(text, now);
    let Ok(ends) = ends else { return answer.is_some() };
    for end in &ends {
        for text in [&end.reason.en, &end.reason.zh] {
            assert!(!text.contains(char::is_control) && text.len() < 1000, "{text:?}");
        }
    }
    true
}
