//! The order of looks, notices and remarks, on a clock and sources of the tests.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};

use proptest::prelude::*;

use super::*;
use settings::NoticeSignal;

const NOW: SystemTime = SystemTime::UNIX_EPOCH;
const LEAD: Duration = Duration::from_secs(120);

fn at(seconds: u64) -> SystemTime {
    NOW + Duration::from_secs(seconds)
}

fn end(seconds: Option<u64>, is_planned: bool) -> End {
    End { reason: Text::same("an end"), at: seconds.map(at), is_planned }
}

/// What a source says at its looks, one after the other.
fn saying(source: NoticeSource, mut says: Vec<Heard>) -> Watched<impl FnMut(SystemTime) -> Look> {
    says.reverse();
    let look = move |_| Look { heard: says.pop().unwrap_or_default(), pause: CLOUD_PAUSE };
    Watched::new(source, LEAD, look)
}

fn ends(ends: Vec<End>) -> Heard {
    Heard { ends, has_answered: true, ..Heard::default() }
}

fn failure() -> Heard {
    Heard { failure: Some(Text::same("no answer")), ..Heard::default() }
}

/// A watch that writes down what it hears.
fn started(
    host: &Host,
    mode: &NoticeMode,
    lead: Duration,
) -> (NoticeWatch, Receiver<StopNotice>, Receiver<Text>) {
    let ((tell, told), (remark, remarks)) = (channel(), channel());
    let watch = NoticeWatch::start(
        host,
        mode,
        &Sourced::new(lead, Source::Flag("notice-lead".to_owned())),
        move |notice| drop(tell.send(notice)),
        move |text| drop(remark.send(text)),
    );
    (watch, told, remarks)
}

fn node(variables: &[(&str, String)]) -> Host {
    let variables: BTreeMap<OsString, OsString> =
        variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
    Host::replayed("/nonexistent", variables)
}

fn in_seconds(seconds: i64) -> String {
    let now = SystemTime::now().duration_since(NOW).expect("after 1970").as_secs();
    now.saturating_add_signed(seconds).to_string()
}

#[test]
fn a_notice_comes_again_only_with_an_earlier_deadline() {
    let says = [Some(90), Some(90), Some(100), None, Some(60), Some(60)];
    let says = says.map(|seconds| ends(vec![end(seconds, false)])).into();
    let mut watched = saying(NoticeSource::Aws, says);
    let told: Vec<Option<Option<SystemTime>>> =
        (0..6).map(|_| watched.turn(NOW).notice.map(|notice| notice.deadline)).collect();
    assert_eq!(told, [Some(Some(at(90))), None, None, None, Some(Some(at(60))), None]);
}

#[test]
fn a_time_follows_a_notice_without_one() {
    let mut watched = saying(
        NoticeSource::Azure,
        vec![ends(vec![end(None, false)]), ends(vec![end(Some(9), false)])],
    );
    assert_eq!(watched.turn(NOW).notice.map(|notice| notice.deadline), Some(None));
    assert_eq!(watched.turn(NOW).notice.map(|notice| notice.deadline), Some(Some(at(9))));
}

#[test]
fn another_end_is_told_after_one_that_came_to_nothing() {
    let later = |at| ends(vec![end(at, false)]);
    let new = |at| Heard { is_new: true, ..later(at) };
    for (says, clock, expected) in [
        // Called off.
        (
            vec![later(Some(90)), ends(Vec::new()), later(Some(700))],
            [0, 10, 20],
            [true, false, true],
        ),
        // Its time is over.
        (
            vec![later(Some(90)), later(Some(700)), later(Some(700))],
            [0, 210, 211],
            [true, false, true],
        ),
        // A file is written anew.
        (vec![later(None), later(None), new(None)], [0, 10, 20], [true, false, true]),
        // A service that says nothing calls nothing off.
        (vec![later(Some(90)), failure(), later(Some(700))], [0, 10, 20], [true, false, false]),
    ] {
        let mut watched = saying(NoticeSource::Aws, says);
        let told = clock.map(|now| watched.turn(at(now)).notice.is_some());
        assert_eq!(told, expected, "{clock:?}");
    }
}

#[test]
fn question_that_fails_does_not_slow_the_others() {
    let patience = CLOUDS[0].patience;
    let partly = || Heard { has_answered: true, ..failure() };
    let says = (0..patience + 2).map(|_| partly()).collect();
    let mut watched = saying(NoticeSource::Aws, says);
    let turns: Vec<Turn> = (0..patience + 2).map(|_| watched.turn(NOW)).collect();
    assert!(turns.iter().all(|turn| turn.pause == CLOUD_PAUSE));
    let remarks: Vec<&Text> = turns.iter().filter_map(|turn| turn.remark.as_ref()).collect();
    assert_eq!(remarks.len(), 1);
    assert!(remarks[0].en.contains("only a part"), "{}", remarks[0].en);
}

#[test]
fn planned_ends_wait_for_the_lead_and_others_do_not() {
    let both = || ends(vec![end(Some(600), true), end(Some(700), false)]);
    let mut watched = saying(NoticeSource::Azure, vec![both(), both(), both()]);
    assert_eq!(watched.turn(NOW).notice.map(|n| n.deadline), Some(Some(at(700))));
    assert!(watched.turn(at(479)).notice.is_none());
    assert_eq!(watched.turn(at(480)).notice.map(|n| n.deadline), Some(Some(at(600))));
}

proptest! {
    /// However the clock is set in between, a planned end is told at the first look within the lead, and once.
    #[test]
    fn planned_end_is_told_once_on_any_clock(clock in prop::collection::vec(0_u64..2000, 1..20), when in 0_u64..2000) {
        let says = clock.iter().map(|_| ends(vec![end(Some(when), true)])).collect();
        let mut watched = saying(NoticeSource::Slurm, says);
        let told: Vec<bool> = clock.iter().map(|now| watched.turn(at(*now)).notice.is_some()).collect();
        let first = clock.iter().position(|now| now + LEAD.as_secs() >= when);
        let expected: Vec<bool> = (0..clock.len()).map(|turn| Some(turn) == first).collect();
        prop_assert_eq!(told, expected);
    }

    /// A job of any length has most of its time before it is told, unless somebody asked for more.
    #[test]
    fn default_lead_leaves_a_job_its_time(lead in 1_u64..4000, now in 0_u64..100_000, left in 1_u64..100_000) {
        let set = Duration::from_secs(lead);
        let (given, why) = lead_of_job(&Sourced::default_value(set), at(now + left), at(now));
        prop_assert!(given <= set && given.as_secs_f64() * 10.0 <= left as f64);
        prop_assert!((given == set || left < 10 * lead) && why.is_none());
        let stated = Sourced::new(set, Source::Flag("--notice-lead".to_owned()));
        let (given, why) = lead_of_job(&stated, at(now + left), at(now));
        prop_assert_eq!(why.is_none(), lead < left);
        prop_assert_eq!(given, if lead < left { set } else { Duration::from_secs(left) / 2 });
    }

    /// A pause ends by the moment of the notice, and looks at the clock at least twice a minute.
    #[test]
    fn slurm_wakes_in_time(now in 0_u64..100_000, end in 0_u64..100_000, lead in 1_u64..4000) {
        let look = slurm_look(at(end), Duration::from_secs(lead), at(now));
        prop_assert!(look.pause <= CLOCK_PAUSE && look.pause >= SHORTEST_CLOCK_PAUSE);
        if now + lead < end {
            prop_assert!(look.pause <= Duration::from_secs(end - lead - now));
        }
    }
}

#[test]
fn silence_is_said_once_and_slows_the_questions() {
    let patience = CLOUDS[0].patience;
    let mut says: Vec<Heard> = (0..patience + 3).map(|_| failure()).collect();
    says.push(ends(Vec::new()));
    says.extend((0..patience + 1).map(|_| failure()));
    says.push(ends(vec![end(Some(60), false)]));
    let turns = says.len();
    let mut watched = saying(NoticeSource::Aws, says);
    let all: Vec<Turn> = (0..turns).map(|_| watched.turn(NOW)).collect();
    let remarks: Vec<usize> = (0..turns).filter(|turn| all[*turn].remark.is_some()).collect();
    let patience = usize::try_from(patience).expect("small");
    assert_eq!(remarks, [patience - 1]);
    let text = all[patience - 1].remark.as_ref().expect("a remark");
    assert!(text.en.contains("http-put-response-hop-limit 2") && text.en.contains("no answer"));
    let slow: Vec<usize> = (0..turns).filter(|turn| all[*turn].pause == SILENT_PAUSE).collect();
    let again = 2 * patience + 3;
    assert_eq!(slow, [patience - 1, patience, patience + 1, patience + 2, again, again + 1]);
    assert!(all[turns - 1].notice.is_some() && all[turns - 1].pause == CLOUD_PAUSE);
}

#[test]
fn slurm_tells_its_end_at_the_lead() {
    let seconds = |seconds| Duration::from_secs(seconds);
    // A lead that is longer than the job would let nothing start.
    let host = node(&[(JOB_END, in_seconds(60))]);
    let (_watch, told, remarks) = started(&host, &NoticeMode::Auto, seconds(120));
    assert!(remarks.recv_timeout(seconds(10)).is_ok_and(|text| text.en.contains("notice-lead")));
    assert!(told.recv_timeout(Duration::from_millis(300)).is_err());
    let host = node(&[(JOB_END, in_seconds(60))]);
    let (_watch, told, remarks) = started(&host, &NoticeMode::Auto, seconds(58));
    let notice = told.recv_timeout(seconds(10)).expect("a notice");
    assert_eq!(notice.source, NoticeSource::Slurm);
    let left = notice.deadline.expect("a deadline").duration_since(SystemTime::now());
    assert!(left.is_ok_and(|left| (seconds(45)..=seconds(60)).contains(&left)));
    assert!(remarks.try_recv().is_err());
    // Later, at that time.
    let host = node(&[(JOB_END, in_seconds(62))]);
    let (_watch, told, _) = started(&host, &NoticeMode::Auto, seconds(60));
    assert!(told.recv_timeout(Duration::from_millis(300)).is_err());
    let notice = told.recv_timeout(seconds(10)).expect("a notice");
    let left = notice.deadline.expect("a deadline").duration_since(SystemTime::now());
    assert!(left.is_ok_and(|left| (seconds(50)..=seconds(60)).contains(&left)),);
}

#[test]
fn nonsense_of_slurm_is_remarked_and_no_notice() {
    for value in ["soon".to_owned(), in_seconds(-600), "12".to_owned(), String::new()] {
        let host = node(&[(JOB_END, value.clone())]);
        let (watch, told, remarks) = started(&host, &NoticeMode::Auto, LEAD);
        let remark = remarks.try_recv().expect("a remark");
        assert!(remark.en.contains(&format!("{JOB_END} is `{value}`")), "{}", remark.en);
        assert!(told.try_recv().is_err() && watch.ends.is_empty(), "{value}");
    }
    for (mode, variables) in
        [(NoticeMode::Auto, vec![]), (NoticeMode::Auto, vec![(JOB_END, "4294967295".to_owned())])]
    {
        let (watch, _, remarks) = started(&node(&variables), &mode, LEAD);
        assert!(remarks.try_recv().is_err() && watch.ends.is_empty(), "{variables:?}");
    }
    let only = NoticeMode::Only(vec![NoticeSource::Slurm]);
    let (_, _, remarks) = started(&node(&[]), &only, LEAD);
    assert!(remarks.try_recv().is_ok_and(|text| text.en.contains("is not set")));
}

#[test]
fn off_watches_nothing() {
    let host = node(&[(JOB_END, in_seconds(1))]);
    let (watch, told, remarks) = started(&host, &NoticeMode::Off, LEAD);
    assert!(watch.ends.is_empty() && watch.signalled(10).is_none());
    assert!(told.recv_timeout(Duration::from_millis(200)).is_err() && remarks.try_recv().is_err());
}

#[test]
fn signals_that_are_sources_are_notices() {
    let signal =
        |name: &str| name.parse::<NoticeSignal>().map(NoticeSource::Signal).expect("a signal");
    let only = NoticeMode::Only(vec![signal("USR1"), signal("RTMIN+3")]);
    let host = node(&[(JOB_END, in_seconds(300))]);
    let (watch, _, _) = started(&host, &only, LEAD);
    assert!(watch.ends.is_empty(), "a signal needs no thread");
    let notice = watch.signalled(10).expect("a notice");
    assert_eq!(
        (notice.source.to_string().as_str(), &*notice.reason.en),
        ("signal:USR1", "the launcher got SIGUSR1")
    );
    assert!(notice.deadline.is_some(), "Slurm says when");
    assert!(watch.signalled(37).is_some() && watch.signalled(12).is_none());
    let json = serde_json::to_string(&notice).expect("JSON");
    assert_eq!(serde_json::from_str::<StopNotice>(&json).expect("a notice"), notice);
}

#[test]
fn files_are_watched_until_the_watch_is_dropped() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let only = |path: &Path| NoticeMode::Only(vec![NoticeSource::File(path.to_owned())]);
    std::fs::write(path("old"), "").expect("a file");
    let (_watch, told, _) = started(&Host::live(), &only(&path("new")), LEAD);
    let (_old_watch, old, _) = started(&Host::live(), &only(&path("old")), LEAD);
    let (dropped, gone, _) = started(&Host::live(), &only(&path("late")), LEAD);
    assert!(told.recv_timeout(Duration::from_millis(200)).is_err());
    drop(dropped);
    // The thread has ended, and with it what it would tell.
    assert!(
        gone.recv_timeout(Duration::from_secs(10))
            .is_err_and(|e| e == std::sync::mpsc::RecvTimeoutError::Disconnected)
    );
    std::fs::write(path("new"), "stop").expect("a file");
    let notice = told.recv_timeout(Duration::from_secs(10)).expect("a notice");
    assert!(notice.deadline.is_none() && notice.reason.en.contains("/new"));
    assert!(told.recv_timeout(Duration::from_secs(2)).is_err(), "once");
    assert!(old.try_recv().is_err(), "left over");
}

/// A replayed node never makes this machine ask: the address may be somebody's here.
#[test]
fn replayed_clouds_are_not_asked() {
    let root = tempfile::tempdir().expect("a folder");
    let dmi = root.path().join("sys/class/dmi/id");
    std::fs::create_dir_all(&dmi).expect("a folder");
    std::fs::write(dmi.join("sys_vendor"), "Amazon EC2\n").expect("a file");
    let host = Host::replayed(root.path(), BTreeMap::new());
    assert!(clouds::of_machine(&host).is_some());
    let (watch, _, remarks) = started(&host, &NoticeMode::Auto, LEAD);
    assert!(watch.ends.is_empty() && remarks.try_recv().is_err());
    let (watch, _, remarks) = started(&host, &NoticeMode::Only(vec![NoticeSource::Aws]), LEAD);
    assert!(watch.ends.is_empty());
    assert!(remarks.try_recv().is_ok_and(|text| text.en.contains("another machine")));
}
