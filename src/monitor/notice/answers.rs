//! Reads what clouds, Slurm and files say about an end: bytes in, an end with its reason out.
//!
//! Each format is that of the provider's documentation, which its function names. Never fails on any bytes: what is not
//! understood is said to be so, and is no end.

use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::{Rfc2822, Rfc3339};

use text::lang::Text;
use text::letters::is_hidden;
use text::text;

/// An end that somebody has announced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct End {
    pub(super) reason: Text,
    /// None: soon, at a time that nobody said.
    pub(super) at: Option<SystemTime>,
    /// Known long before, so that work goes on until shortly before it. Others are told at once.
    pub(super) is_planned: bool,
}

impl End {
    fn soon(reason: Text, at: Option<SystemTime>) -> End {
        End { reason, at, is_planned: false }
    }

    fn planned(reason: Text, at: Option<SystemTime>) -> End {
        End { reason, at, is_planned: true }
    }
}

/// The answer is not what the provider documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotUnderstood;

type Ends = Result<Vec<End>, NotUnderstood>;

/// `2018-04-07T17:03:00Z`, `Mon, 19 Sep 2016 18:29:47 GMT`, `21 Jan 2019 09:00:43 GMT`.
pub(super) fn instant(text: &str) -> Option<SystemTime> {
    let text = text.trim();
    let rfc3339 = OffsetDateTime::parse(text, &Rfc3339);
    let found = rfc3339.or_else(|_| OffsetDateTime::parse(text, &Rfc2822)).ok()?;
    let since = u64::try_from(found.unix_timestamp()).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(since))
}

/// AWS `spot/instance-action`: `{"action": "terminate", "time": "2017-09-18T08:22:00Z"}`; 404 without one.
/// <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html>
pub(super) fn aws_spot(body: &[u8]) -> Ends {
    #[derive(Deserialize)]
    struct Action {
        action: String,
        time: Option<String>,
    }
    let action: Action = serde_json::from_slice(body).map_err(|_| NotUnderstood)?;
    let reason = match action.action.as_str() {
        "terminate" => text!("AWS terminates this spot instance", "AWS 即将终止本竞价实例"),
        "stop" => text!("AWS stops this spot instance", "AWS 即将停止本竞价实例"),
        "hibernate" => text!("AWS hibernates this spot instance", "AWS 即将休眠本竞价实例"),
        _ => return Ok(Vec::new()),
    };
    Ok(vec![End::soon(reason, action.time.as_deref().and_then(instant))])
}

/// AWS `events/maintenance/scheduled`, a list; empty or 404 without one. A completed event stays in it for a week, with
/// words before its description.
/// <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/viewing_scheduled_events.html>
pub(super) fn aws_events(body: &[u8], now: SystemTime) -> Ends {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Event {
        code: String,
        #[serde(default)]
        description: String,
        not_before: Option<String>,
        not_after: Option<String>,
        state: Option<String>,
    }
    let events: Vec<Event> = entries(serde_json::from_slice(body).map_err(|_| NotUnderstood)?)?;
    let end = |event: Event| {
        let is_over =
            ["[Completed]", "[Canceled]"].iter().any(|w| event.description.starts_with(w))
                || event.state.as_deref().is_some_and(|state| state != "active")
                || event.not_after.as_deref().and_then(instant).is_some_and(|after| after < now);
        let known = [
            "instance-reboot",
            "system-reboot",
            "system-maintenance",
            "instance-retirement",
            "instance-stop",
        ];
        let code = known.into_iter().find(|known| *known == event.code).filter(|_| !is_over)?;
        // Without a time it would be told weeks before.
        let at = event.not_before.as_deref().and_then(instant)?;
        Some(End::planned(
            text!("AWS has scheduled {code} for this instance", "AWS 已为本实例安排 {code}"),
            Some(at),
        ))
    };
    Ok(events.into_iter().filter_map(end).collect())
}

/// GCP `instance/preempted`: TRUE or FALSE. The machine has 30 s from the change on.
/// <https://cloud.google.com/compute/docs/instances/create-use-preemptible>
pub(super) fn gcp_preempted(body: &str) -> Result<bool, NotUnderstood> {
    match body {
        "TRUE" => Ok(true),
        "FALSE" => Ok(false),
        _ => Err(NotUnderstood),
    }
}

/// The end of a preempted GCP machine.
pub(super) fn gcp_preemption(at: SystemTime) -> End {
    End::soon(text!("GCP preempts this instance", "GCP 即将抢占本实例"), Some(at))
}

/// GCP `instance/maintenance-event`: whether the machine stops for it. A live migration is no end.
/// <https://cloud.google.com/compute/docs/metadata/getting-live-migration-notice>
pub(super) fn gcp_maintenance(body: &str) -> Result<bool, NotUnderstood> {
    match body {
        // The latter is the name before 2015.
        "TERMINATE_ON_HOST_MAINTENANCE" | "SHUTDOWN_ON_HOST_MAINTENANCE" => Ok(true),
        "NONE" | "MIGRATE_ON_HOST_MAINTENANCE" => Ok(false),
        _ => Err(NotUnderstood),
    }
}

/// The end of a GCP machine that stops for maintenance: 60 s after the announcement, an hour with GPUs. Only
/// `instance/upcoming-maintenance?alt=json`, which not every machine has, gives its time, in either spelling, alone or
/// below one key.
/// <https://cloud.google.com/compute/docs/instances/monitor-plan-host-maintenance-event>
pub(super) fn gcp_stop(upcoming: &[u8]) -> End {
    let value: Value = serde_json::from_slice(upcoming).unwrap_or_default();
    let inner = value.as_object().into_iter().flat_map(|all| all.values());
    let start = std::iter::once(&value).chain(inner).find_map(|one| {
        let key = |key: &&str| one.get(*key).and_then(Value::as_str);
        ["window_start_time", "windowStartTime"].iter().find_map(key).and_then(instant)
    });
    let reason = text!(
        "GCP stops this instance for maintenance of its host",
        "GCP 因宿主机维护即将停止本实例"
    );
    End { is_planned: start.is_some(), ..End::soon(reason, start) }
}

/// Azure `scheduledevents`: those that end this machine. `name` is its own, since a list may be for all machines of a set.
/// A freeze of some seconds is no end.
/// <https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events>
pub(super) fn azure(body: &[u8], name: &str) -> Ends {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Document {
        events: Vec<Value>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Event {
        event_type: String,
        #[serde(default)]
        resources: Vec<String>,
        not_before: Option<String>,
    }
    let document: Document = serde_json::from_slice(body).map_err(|_| NotUnderstood)?;
    let end = |event: Event| {
        if !event.resources.iter().any(|one| one.eq_ignore_ascii_case(name)) {
            return None;
        }
        // Blank once the event has started.
        let at = event.not_before.as_deref().and_then(instant);
        match event.event_type.as_str() {
            "Preempt" => Some(End::soon(
                text!("Azure evicts this spot VM", "Azure 即将驱逐本竞价虚拟机"),
                at,
            )),
            "Terminate" => {
                Some(End::soon(text!("Azure deletes this VM", "Azure 即将删除本虚拟机"), at))
            }
            "Reboot" => {
                Some(End::planned(text!("Azure reboots this VM", "Azure 即将重启本虚拟机"), at))
            }
            "Redeploy" => Some(End::planned(
                text!(
                    "Azure moves this VM to another host",
                    "Azure 即将把本虚拟机迁移到其他宿主机"
                ),
                at,
            )),
            _ => None,
        }
    };
    Ok(entries(document.events)?.into_iter().filter_map(end).collect())
}

/// The entries of a list that are understood: an odd one hides no other, unless none is understood.
fn entries<E: serde::de::DeserializeOwned>(all: Vec<Value>) -> Result<Vec<E>, NotUnderstood> {
    let is_empty = all.is_empty();
    let read: Vec<E> = all.into_iter().filter_map(|one| serde_json::from_value(one).ok()).collect();
    if read.is_empty() && !is_empty { Err(NotUnderstood) } else { Ok(read) }
}

/// Alibaba Cloud `instance/spot/termination-time`: a time in UTC; empty or 404 without one.
/// <https://www.alibabacloud.com/help/en/ecs/user-guide/query-the-interruption-events-of-preemptible-instances>
pub(super) fn alibaba_spot(body: &str) -> Ends {
    if body.is_empty() {
        return Ok(Vec::new());
    }
    let at = instant(body).ok_or(NotUnderstood)?;
    let reason = text!("Alibaba Cloud reclaims this spot instance", "阿里云即将回收本抢占式实例");
    Ok(vec![End::soon(reason, Some(at))])
}

/// The longest reason that is shown.
const REASON: usize = 200;

/// A file of the platform: JSON with `deadline` and `reason`, a line with a time, or anything else.
pub(super) fn file(name: &str, bytes: &[u8]) -> End {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_start_matches('\u{feff}');
    let first = text.lines().next().unwrap_or_default();
    let content: Value = serde_json::from_str(text).unwrap_or_default();
    let deadline = content.get("deadline").and_then(|deadline| match deadline {
        Value::String(deadline) => instant(deadline),
        // Unix seconds.
        deadline => {
            let seconds = deadline.as_u64().filter(|seconds| *seconds >= THIS_CENTURY)?;
            SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
        }
    });
    let at = deadline.or_else(|| instant(first));
    let shown = |letter: char| if is_hidden(letter) { ' ' } else { letter };
    let reason = content.get("reason").and_then(Value::as_str).unwrap_or_default();
    let reason: String = reason.trim().chars().map(shown).take(REASON).collect();
    let reason = if reason.is_empty() {
        text!("the platform has written {name}", "平台写入了 {name}")
    } else {
        text!("the platform says in {name}: {reason}", "平台在 {name} 中说明：{reason}")
    };
    End { is_planned: at.is_some(), ..End::soon(reason, at) }
}

/// A number of seconds below is no time of an end.
const THIS_CENTURY: u64 = 978_307_200;

/// What SLURM_JOB_END_TIME says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum JobEnd {
    /// The job has no limit.
    Never,
    At(SystemTime),
    /// In words, why it is no time of an end.
    Nonsense(Text),
}

/// SLURM_JOB_END_TIME, Unix seconds (srun(1), sbatch(1)). Slurm writes no limit as the largest numbers of 32
/// bits (slurm.h: INFINITE, NO_VAL).
pub(super) fn slurm(value: &str, now: SystemTime) -> JobEnd {
    const UNLIMITED: [u64; 3] = [0, 0xffff_fffe, 0xffff_ffff];
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let seconds: Option<u64> = is_number.then(|| value.parse().ok()).flatten();
    let at = match seconds {
        Some(seconds) if UNLIMITED.contains(&seconds) => return JobEnd::Never,
        Some(seconds) if seconds >= THIS_CENTURY => {
            SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
        }
        _ => None,
    };
    match at {
        Some(at) if at > now => JobEnd::At(at),
        Some(_) => JobEnd::Nonsense(text!("that is in the past", "这个时间已经过去")),
        None => JobEnd::Nonsense(text!("that is no time in seconds since 1970", "不是 Unix 秒数")),
    }
}

/// The end of a Slurm job's time.
pub(super) fn slurm_end(at: SystemTime) -> End {
    End::planned(text!("the time of the Slurm job ends", "Slurm 任务的时限将到"), Some(at))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// 2019-01-21 09:00:43
    const JANUARY: u64 = 1_548_061_243;

    #[test]
    fn times_as_each_provider_writes_them() {
        for text in [
            "2019-01-21T09:00:43Z",
            "2019-01-21T10:00:43+01:00",
            "2019-01-21T09:00:43.4Z",
            "Mon, 21 Jan 2019 09:00:43 GMT",
            "21 Jan 2019 09:00:43 GMT",
            " 2019-01-21T09:00:43Z\n",
        ] {
            assert_eq!(instant(text), Some(at(JANUARY)), "{text}");
        }
        for text in
            ["", "2019-01-21", "1548061243", "soon", "2019-13-21T09:00:43Z", "0000-01-01T00:00:00Z"]
        {
            assert_eq!(instant(text), None, "{text}");
        }
    }

    #[test]
    fn aws_spot_actions_with_their_time() {
        for action in ["terminate", "stop", "hibernate"] {
            let body = format!(r#"{{"action": "{action}", "time": "2019-01-21T09:00:43Z"}}"#);
            let ends = aws_spot(body.as_bytes()).expect("understood");
            assert_eq!((ends.len(), ends[0].at, ends[0].is_planned), (1, Some(at(JANUARY)), false));
        }
        assert_eq!(aws_spot(br#"{"action": "noop"}"#), Ok(Vec::new()));
        assert_eq!(aws_spot(b"<html>"), Err(NotUnderstood));
    }

    #[test]
    fn aws_events_until_they_are_over() {
        let body = |code: &str, description: &str, state: &str| {
            format!(
                r#"[{{"NotBefore": "21 Jan 2019 09:00:43 GMT", "Code": "{code}", "Description": "{description}",
                "EventId": "instance-event-0d59937288b749b32", "NotAfter": "21 Jan 2019 09:17:23 GMT", "State": "{state}"}}]"#
            )
        };
        let ends = |code: &str, description: &str, state: &str, now: u64| {
            let found =
                aws_events(body(code, description, state).as_bytes(), at(now)).expect("understood");
            found.first().map(|end| (end.at, end.is_planned))
        };
        let told = Some((Some(at(JANUARY)), true));
        assert_eq!(ends("system-reboot", "scheduled reboot", "active", JANUARY - 9), told);
        assert_eq!(ends("instance-retirement", "", "active", JANUARY + 60), told);
        assert_eq!(ends("system-reboot", "scheduled reboot", "active", JANUARY + 3600), None);
        assert_eq!(ends("system-reboot", "[Completed] scheduled reboot", "active", JANUARY), None);
        assert_eq!(ends("system-reboot", "[Canceled] reboot", "active", JANUARY), None);
        assert_eq!(ends("system-reboot", "", "completed", JANUARY), None);
        assert_eq!(ends("volume-lost", "", "active", JANUARY), None);
        assert_eq!(aws_events(b"[]", at(1)), Ok(Vec::new()));
        assert_eq!(aws_events(b"{}", at(1)), Err(NotUnderstood));
    }

    #[test]
    fn gcp_words() {
        assert_eq!((gcp_preempted("TRUE"), gcp_preempted("FALSE")), (Ok(true), Ok(false)));
        assert_eq!(gcp_preempted("<html>"), Err(NotUnderstood));
        assert_eq!(gcp_maintenance("TERMINATE_ON_HOST_MAINTENANCE"), Ok(true));
        assert_eq!(gcp_maintenance("MIGRATE_ON_HOST_MAINTENANCE"), Ok(false));
        assert_eq!((gcp_maintenance("NONE"), gcp_maintenance("")), (Ok(false), Err(NotUnderstood)));
        for (upcoming, found) in [
            (
                r#"{"window_start_time": "2019-01-21T09:00:43Z", "type": "SCHEDULED"}"#,
                Some(JANUARY),
            ),
            (
                r#"{"upcomingMaintenance": {"windowStartTime": "2019-01-21T09:00:43Z"}}"#,
                Some(JANUARY),
            ),
            (r#"{"error": "no notifications have been received yet, try again later"}"#, None),
            ("NONE", None),
        ] {
            let end = gcp_stop(upcoming.as_bytes());
            assert_eq!((end.at, end.is_planned), (found.map(at), found.is_some()), "{upcoming}");
        }
    }

    #[test]
    fn azure_events_of_this_machine() {
        let body = |kind: &str, time: &str| {
            format!(
                r#"{{"DocumentIncarnation": 1, "Events": [{{"EventId": "602d9444", "EventStatus": "Scheduled",
                "EventType": "{kind}", "ResourceType": "VirtualMachine", "Resources": ["Trainer_0", "trainer_1"],
                "NotBefore": "{time}", "Description": "", "EventSource": "Platform", "DurationInSeconds": -1}}]}}"#
            )
        };
        let time = "Mon, 21 Jan 2019 09:00:43 GMT";
        for (kind, planned) in
            [("Preempt", false), ("Terminate", false), ("Reboot", true), ("Redeploy", true)]
        {
            for name in ["trainer_0", "TRAINER_1"] {
                let ends = azure(body(kind, time).as_bytes(), name).expect("understood");
                assert_eq!(
                    (ends.len(), ends[0].at, ends[0].is_planned),
                    (1, Some(at(JANUARY)), planned)
                );
            }
            assert_eq!(azure(body(kind, time).as_bytes(), "trainer"), Ok(Vec::new()));
            let started = azure(body(kind, "").as_bytes(), "trainer_0").expect("understood");
            assert_eq!(started[0].at, None);
        }
        assert_eq!(azure(body("Freeze", time).as_bytes(), "trainer_0"), Ok(Vec::new()));
        assert_eq!(
            azure(br#"{"DocumentIncarnation": 1, "Events": []}"#, "trainer_0"),
            Ok(Vec::new())
        );
        assert_eq!(azure(b"[]", "trainer_0"), Err(NotUnderstood));
    }

    #[test]
    fn odd_entry_hides_no_other() {
        let azure_list = |first: &str| {
            format!(
                r#"{{"Events": [{first}{{"EventType": "Preempt", "Resources": ["trainer_0"], "NotBefore": ""}}]}}"#
            )
        };
        let aws_list = |first: &str| {
            format!(
                r#"[{first}{{"Code": "instance-stop", "NotBefore": "21 Jan 2019 09:00:43 GMT", "State": "active"}}]"#
            )
        };
        for odd in
            ["", "7,", "{},", r#"{"Code": null, "Resources": null, "EventType": "Preempt"},"#]
        {
            let ends = azure(azure_list(odd).as_bytes(), "trainer_0").expect("understood");
            assert_eq!(ends.len(), 1, "{odd}");
            let ends = aws_events(aws_list(odd).as_bytes(), at(JANUARY - 9)).expect("understood");
            assert_eq!(ends.len(), 1, "{odd}");
        }
        assert_eq!(azure(br#"{"Events": [7]}"#, "trainer_0"), Err(NotUnderstood));
        assert_eq!(aws_events(b"[{}]", at(0)), Err(NotUnderstood));
    }

    #[test]
    fn each_word_of_a_file_counts_alone() {
        let of = |content: &str| file("/run/stop", content.as_bytes());
        let mark = "\u{feff}";
        for (content, is_timed, says) in [
            (r#"{"deadline": "2019-01-21T09:00:43Z", "reason": "drain"}"#.to_owned(), true, true),
            (
                format!(r#"{mark}{{"deadline": "2019-01-21T09:00:43Z", "reason": "drain"}}"#),
                true,
                true,
            ),
            (format!(r#"{{"deadline": {JANUARY}, "reason": 7}}"#), true, false),
            (r#"{"deadline": [], "reason": "drain"}"#.to_owned(), false, true),
        ] {
            let end = of(&content);
            assert_eq!(end.at, is_timed.then(|| at(JANUARY)), "{content}");
            // A time that is far is told shortly before it.
            assert_eq!(end.is_planned, is_timed, "{content}");
            assert_eq!(end.reason.en.ends_with(": drain"), says, "{content}");
        }
    }

    #[test]
    fn alibaba_gives_a_time_or_nothing() {
        let ends = alibaba_spot("2019-01-21T09:00:43Z").expect("understood");
        assert_eq!((ends[0].at, ends[0].is_planned), (Some(at(JANUARY)), false));
        assert_eq!(alibaba_spot(""), Ok(Vec::new()));
        assert_eq!(alibaba_spot("<?xml"), Err(NotUnderstood));
    }

    #[test]
    fn files_with_and_without_content() {
        for (content, time, reason) in [
            (
                r#"{"deadline": "2019-01-21T09:00:43Z", "reason": "drain"}"#,
                Some(JANUARY),
                "in /f: drain",
            ),
            ("2019-01-21T09:00:43Z\nmore\n", Some(JANUARY), "written /f"),
            ("", None, "written /f"),
            (r#"{"deadline": 5}"#, None, "written /f"),
            (r#"{"deadline": "soon", "reason": "a\u001b[31m\nb"}"#, None, "in /f: "),
            ("stop", None, "written /f"),
        ] {
            let end = file("/f", content.as_bytes());
            assert_eq!(end.at, time.map(at), "{content}");
            assert!(end.reason.en.contains(reason), "{content}: {}", end.reason.en);
            assert!(!end.reason.en.contains(char::is_control), "{content}");
        }
    }

    #[test]
    fn the_end_of_a_slurm_job() {
        let now = at(1_700_000_000);
        assert_eq!(slurm("1700000100", now), JobEnd::At(at(1_700_000_100)));
        for unlimited in ["0", "4294967294", "4294967295"] {
            assert_eq!(slurm(unlimited, now), JobEnd::Never);
        }
        for nonsense in [
            "",
            "soon",
            "-1",
            "100",
            "1699999999",
            "17e8",
            "99999999999999999999",
            "+1700000100",
            "18446744073709551615",
        ] {
            assert!(matches!(slurm(nonsense, now), JobEnd::Nonsense(_)), "{nonsense}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..300), now in 0_u64..4_000_000_000) {
            let text = String::from_utf8_lossy(&bytes);
            let _ = (aws_spot(&bytes), aws_events(&bytes, at(now)), azure(&bytes, "trainer_0"));
            let _ = (gcp_preempted(&text), gcp_maintenance(&text), gcp_stop(&bytes), alibaba_spot(&text));
            let _ = (instant(&text), slurm(&text, at(now)));
            let end = file("/f", &bytes);
            prop_assert!(!end.reason.en.contains(char::is_control));
        }

        /// Every second of two centuries, in both forms.
        #[test]
        fn times_are_read_as_they_are_written(seconds in 0_u64..6_000_000_000) {
            let time = OffsetDateTime::from_unix_timestamp(i64::try_from(seconds).expect("small")).expect("a time");
            let (new, old) = (time.format(&Rfc3339).expect("a text"), time.format(&Rfc2822).expect("a text"));
            prop_assert_eq!((instant(&new), instant(&old)), (Some(at(seconds)), Some(at(seconds))));
            let gmt = old.replace("+0000", "GMT");
            prop_assert_eq!(instant(&gmt), Some(at(seconds)));
        }
    }
}
