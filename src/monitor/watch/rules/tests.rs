//! Rules with a clock of the test.

use std::time::{Duration, Instant};

use super::{Breach, LONGEST_LINE, Partial, Rules};
use settings::{Expects, Lines, Ranks, Reaction, Rule, Time};
use text::lang::{Lang, Text};
use text::pattern;
use text::rank::GlobalRank;
use verdict::outcome::Stream;

const OUT: Stream = Stream::Out;

struct Clock {
    zero: Instant,
    rules: Rules,
}

impl Clock {
    /// Ranks 0 and 1 begin at 0.
    fn of(expects: Expects) -> Clock {
        let (on, hint) = (Some(Reaction::Report), Some(Text::same("look there")));
        let rule = Rule { id: "mine".to_owned(), expects, on, text: None, hint };
        let (zero, mut rules) = (Instant::now(), Rules::new([rule]));
        for rank in [0, 1] {
            rules.began(GlobalRank(rank), zero);
        }
        Clock { zero, rules }
    }

    fn at(&self, second: u64) -> Instant {
        self.zero + Duration::from_secs(second)
    }

    fn says(&mut self, second: u64, rank: u32, line: &str) {
        let at = self.at(second);
        self.rules.feed((GlobalRank(rank), OUT), at, false, format!("{line}\n").as_bytes());
    }

    fn told(&mut self, second: u64) -> Vec<Breach> {
        self.rules.judge(self.at(second))
    }

    /// The rank of each breach, and the second since which it holds.
    fn since(&mut self, second: u64) -> Vec<(Option<u32>, u64)> {
        let zero = self.zero;
        let since = |breach: &Breach| (breach.since - zero).as_secs();
        let told = self.told(second);
        told.iter().map(|breach| (breach.rank.map(|rank| rank.0), since(breach))).collect()
    }
}

fn lines(pattern: &str, ranks: Ranks) -> Lines {
    Lines { pattern: pattern::compile(pattern).expect("a pattern"), stream: None, ranks }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn missing_line_is_reported_once_at_its_deadline() {
    let expects = Expects::Line(lines("^ready", Ranks::All), Time::Within(seconds(60)));
    let mut clock = Clock::of(expects);
    clock.says(5, 0, "loading");
    clock.says(5, 1, "ready to go");
    assert_eq!(clock.since(59), []);
    let told = clock.told(60);
    let [breach] = &told[..] else { panic!("{told:?}") };
    assert_eq!((breach.rank, breach.since), (Some(GlobalRank(0)), clock.zero));
    let words = breach.words(clock.at(60));
    let expected = "rule mine: rank 0 has printed no line with ^ready within 1m of its start; last line, 55s ago: loading\n  hint: look there";
    assert_eq!(words.en, expected);
    assert!(
        words.zh.contains("规则 mine：rank 0 启动后") && words.zh.contains("提示："),
        "{words:?}"
    );
    let event = breach.event(clock.at(60), Lang::En);
    assert_eq!((&event["rule"]["id"], &event["rule"]["after_s"]), (&"mine".into(), &60.into()));
    assert_eq!(
        (&event["rule"]["seen"], &event["rule"]["on"]),
        (&"loading".into(), &"report".into())
    );
    assert_eq!(clock.since(600), []);
    clock.says(601, 0, "ready");
    assert_eq!(clock.since(10_000), [], "it came, and is asked for once");
}

#[test]
fn suspended_time_breaks_no_rule() {
    let line = |time| Expects::Line(lines("step", Ranks::Of(vec![(0, 0)])), time);
    for expects in [
        line(Time::Within(seconds(60))),
        line(Time::Every(seconds(60))),
        Expects::BusyGpus(seconds(60)),
    ] {
        let mut clock = Clock::of(expects.clone());
        if matches!(expects, Expects::Line(_, Time::Every(_))) {
            clock.says(1, 0, "step 1");
        }
        clock.rules.gpus(clock.at(5), &[0]);
        assert_eq!(clock.since(30), []);
        clock.rules.begin_afresh(clock.at(3600));
        clock.rules.gpus(clock.at(3600), &[0]);
        assert_eq!(clock.since(3659), [], "{expects:?}");
        clock.rules.gpus(clock.at(3660), &[0]);
        assert_eq!(clock.since(3660).len(), 1, "the control: {expects:?}");
    }
}

#[test]
fn recurring_line_breach_rearms_after_a_new_line() {
    let expects = Expects::Line(lines("step", Ranks::Of(vec![(0, 0)])), Time::Every(seconds(60)));
    let mut clock = Clock::of(expects);
    assert_eq!(clock.since(1000), [], "nothing recurs before it came");
    clock.says(1000, 0, "step 1");
    clock.says(1050, 0, "step 2");
    assert_eq!(clock.since(1109), []);
    assert_eq!(clock.since(1110), [(Some(0), 1050)]);
    assert_eq!(clock.since(1500), []);
    clock.says(1500, 1, "step 3");
    assert_eq!(clock.since(1600), [], "rank 1 is not asked, and rank 0 is told already");
    clock.says(1600, 0, "step 3");
    assert_eq!(clock.since(1659), []);
    assert_eq!(clock.since(1660), [(Some(0), 1600)], "again after it came back");
}

#[test]
fn number_must_be_finite_and_within_bounds() {
    let expects =
        |min, max| Expects::Number { lines: lines(r"loss (?P<value>\S+)", Ranks::All), min, max };
    let mut clock = Clock::of(expects(Some(0.0), Some(10.0)));
    for (second, line) in [(1, "loss 3.5"), (2, "loss 1e1"), (3, "loss -"), (4, "no number")] {
        clock.says(second, 0, line);
    }
    assert_eq!(clock.since(5), []);
    clock.says(6, 0, "loss nan");
    clock.says(6, 1, "loss 10.01");
    clock.says(7, 0, "loss inf");
    let told = clock.told(8);
    let words: Vec<_> = told.iter().map(|breach| breach.text.en.to_string()).collect();
    let but = "but it must be from 0 to 10";
    let of = |rank, value: &str| format!("rule mine: the value of rank {rank} is {value}, {but}");
    assert_eq!(words, [of(0, "NaN"), of(1, "10.01")]);
    clock.says(9, 0, "loss 2");
    clock.says(10, 0, "loss -1");
    assert_eq!(clock.since(11), [(Some(0), 10)]);
    let mut clock = Clock::of(expects(None, None));
    clock.says(1, 0, "loss 1e300");
    clock.says(2, 0, "loss -inf");
    assert_eq!(clock.since(3), [(Some(0), 2)]);
}

#[test]
fn gpu_idle_breach_needs_all_gpus_known_idle() {
    let mut clock = Clock::of(Expects::BusyGpus(seconds(60)));
    let at = |clock: &mut Clock, second, gpus: &[u32]| {
        let at = clock.at(second);
        clock.rules.gpus(at, gpus);
        clock.since(second)
    };
    assert_eq!(clock.rules.gpu_pace(), Some(seconds(6)));
    assert_eq!(at(&mut clock, 0, &[0, 1]), []);
    assert_eq!(at(&mut clock, 50, &[0, 0]), []);
    assert_eq!(clock.since(70), [], "nobody has looked since");
    assert_eq!(at(&mut clock, 71, &[0, 0]), [(None, 0)]);
    assert_eq!(at(&mut clock, 200, &[0, 0]), []);
    assert_eq!(at(&mut clock, 210, &[0, 40]), []);
    assert_eq!(at(&mut clock, 220, &[0, 0]), []);
    assert_eq!(at(&mut clock, 250, &[]), [], "the driver does not answer");
    assert_eq!(at(&mut clock, 290, &[0, 0]), []);
    assert_eq!(at(&mut clock, 350, &[0, 0]), [(None, 290)]);
}

#[test]
fn lost_lines_and_ended_ranks_break_no_rule() {
    let expects = || Expects::Line(lines("ready", Ranks::All), Time::Within(seconds(60)));
    // The expected line may have been among the lost ones.
    let mut clock = Clock::of(expects());
    let at = clock.at(5);
    clock.rules.feed((GlobalRank(0), OUT), at, true, b"x\n");
    assert_eq!(clock.since(100), [(Some(1), 0)]);
    // Nothing is expected of a rank that has ended, nor of a job that is being stopped.
    let mut clock = Clock::of(expects());
    clock.rules.ended(GlobalRank(0));
    assert_eq!(clock.since(100), [(Some(1), 0)]);
    let mut clock = Clock::of(expects());
    clock.rules.stopping();
    assert_eq!(clock.since(100), []);
    // The line comes on another stream than the rule names.
    let only_err = Lines { stream: Some(Stream::Err), ..lines("ready", Ranks::All) };
    let mut clock = Clock::of(Expects::Line(only_err, Time::Within(seconds(60))));
    clock.says(1, 0, "ready");
    clock.says(1, 1, "ready");
    assert_eq!(clock.since(100).len(), 2);
}

#[test]
fn user_text_comes_first_and_secrets_are_masked() {
    let mut clock =
        Clock::of(Expects::Line(lines("done", Ranks::Of(vec![(0, 0)])), Time::Within(seconds(1))));
    clock.says(0, 0, "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345");
    let told = clock.told(2);
    let words = told[0].words(clock.at(2)).en;
    assert!(!words.contains("hf_abcdefghijkl"), "{words}");
    let text = Some(Text::new("the loader hangs", "数据加载卡住"));
    let rule = Rule {
        id: "mine".to_owned(),
        expects: Expects::BusyGpus(seconds(60)),
        on: None,
        text,
        hint: None,
    };
    let breach = Breach::of_gpus(&rule, clock.zero);
    let expected =
        "rule mine: the loader hangs: all GPUs of the job on this node have been idle for 1m";
    assert_eq!(breach.text.en, expected);
}

/// The text after a secret marks it as one, so a line is masked before it is cut.
#[test]
fn secret_is_masked_before_a_line_is_cut() {
    let expects = Expects::Line(lines("ready", Ranks::All), Time::Within(seconds(60)));
    let mut clock = Clock::of(expects);
    let padding = "x ".repeat(90);
    clock.says(0, 0, &format!("{padding}https://me:hunter2hunter2@host/simple"));
    let told = clock.told(60);
    let line = told.iter().find(|breach| breach.rank == Some(GlobalRank(0))).map(Breach::line);
    let line = line.expect("a breach");
    assert!(line.starts_with("x x ") && line.len() <= 200, "{line}");
    assert!(line.contains("https://") && !line.contains("hunter"), "{line}");
}

fn whole_lines(parts: &[&[u8]]) -> Vec<String> {
    let (mut partial, mut found) = (Partial::default(), Vec::new());
    for part in parts {
        match *part == b"SKIP" {
            true => partial.skip(),
            false => partial.feed(part, |line| found.push(String::from_utf8_lossy(line).into())),
        }
    }
    found
}

#[test]
fn split_input_yields_whole_lines() {
    assert_eq!(whole_lines(&[b"a\nb\r\nc", b"d\re\n", b"f"]), ["a", "b", "cd", "e"]);
    assert_eq!(whole_lines(&[b"a", b"SKIP", b"b\nc\n"]), ["c"], "b may be the end of another line");
    let long = vec![b'x'; 3 * LONGEST_LINE];
    let found = whole_lines(&[&long, b"y\nz\n"]);
    assert_eq!((found[0].len(), &*found[1]), (LONGEST_LINE, "z"));
}
