//! The rows of the restart policy, and the counts over attempts.

use super::*;
use verdict::Owner;

fn most(most: u32) -> Limits {
    Limits { most, without_progress: 3, ..Limits::default() }
}

/// No checkpoint is looked for.
fn next(restarts: &Restarts, failure: impl Into<FailedAttempt>, lasted: Duration) -> Option<Again> {
    restarts.after(failure, lasted).expect("no progress is judged")
}

#[test]
fn attempts_that_save_nothing_end_the_job_and_a_save_earns_all_back() {
    let policy = |most| Restarts::new(most, RetryRules::default());
    let long = Duration::from_secs(3600);
    // Whether a checkpoint was saved in each attempt, and what follows: another attempt, none, or the end.
    for (limits, moved, expected) in [
        (most(9), &[false, false, false][..], "aas"),
        (most(9), &[false, false, true, false, false, false], "aaaaas"),
        (most(2), &[true, true, true, true], "aaaa"),
        (most(2), &[false, true, false, false, true], "aaanx"),
        (most(1), &[false, false], "an"),
        (most(1), &[true, false, false], "anx"),
        // Without restarts a launch is an attempt of its platform's.
        (Limits { most: 0, without_progress: 1, ..Limits::default() }, &[false], "s"),
        (
            Limits { most: 9, without_progress: 0, ..Limits::default() },
            &[false, false, false, false],
            "aaaa",
        ),
    ] {
        let restarts = policy(limits);
        let mut seen = String::new();
        for moved in moved {
            if seen.ends_with('n') {
                seen.push('x');
                break;
            }
            let mut policy = restarts.policy();
            let stuck = policy.counts(&failed(1), Some(*moved));
            let next = policy.after(failed(1), long, None);
            seen.push(if stuck {
                's'
            } else if next.is_some() {
                'a'
            } else {
                'n'
            });
        }
        assert_eq!(seen, expected, "{limits:?} {moved:?}");
    }
    // A stop from outside, or a folder that cannot be looked at, says nothing.
    let restarts = policy(most(9));
    let stopped = FailedAttempt { class: Class::Stopped, ..failed(143) };
    for (failure, moved) in [(stopped, Some(false)), (failed(1), None)] {
        for _ in 0..9 {
            assert!(!restarts.policy().counts(&failure, moved));
        }
    }
    // The count of an earlier launch goes on.
    restarts.without_progress(2);
    assert!(restarts.policy().counts(&failed(1), Some(false)));
}

fn failed(code: i32) -> FailedAttempt {
    FailedAttempt {
        rank: Some(1),
        id: Id::RankExit,
        class: Class::Script,
        code,
        lost: None,
        another_waits: false,
        cause: None,
    }
}

#[test]
fn failure_says_its_cause_before_its_end() {
    let end = text!("rank 1 exited with code 1", "rank 1 以退出码 1 结束");
    let why = |text: &str| {
        Some(Box::new(Why::without_log("xid_79", Text::same(text.to_owned()), end.clone())))
    };
    for (cause, expected) in [
        (None, "rank 1 exited with code 1"),
        (why("the GPU is lost"), "the GPU is lost (rank 1 exited with code 1)"),
    ] {
        assert_eq!(FailedAttempt { cause, ..failed(1) }.said(&end).en, expected);
    }
    let same = Why::without_log("xid_79", end.clone(), end.clone());
    let cause = Some(Box::new(same));
    assert_eq!(FailedAttempt { cause, ..failed(1) }.said(&end), end);
}

#[test]
fn only_failures_a_restart_may_fix_are_restarted() {
    let of = |class, id, code| FailedAttempt { class, id, ..failed(code) };
    let lost =
        FailedAttempt { lost: Some(Loss::Silent), ..of(Class::Launcher, Id::NodeSilent, 137) };
    for (failure, helps) in [
        (failed(1), true),
        (failed(137), true),
        (failed(2), false),
        (failed(126), false),
        (failed(127), false),
        // A missing permission gives code 126 or the code of the errno that the shim saw.
        (of(Class::Script, Id::RankExec, 1), false),
        (of(Class::Engine, Id::EngineGone, 137), true),
        (of(Class::Launcher, Id::Hang, 91), true),
        (of(Class::Engine, Id::EngineStart, 68), true),
        (of(Class::Engine, Id::EngineRanks, 68), false),
        (of(Class::Launcher, Id::ShimKilled, 137), true),
        (of(Class::Launcher, Id::EngineExec, 68), false),
        (of(Class::Launcher, Id::LayoutUnsolvable, 66), false),
        (of(Class::Stopped, Id::StoppedSignal, 143), false),
        (of(Class::Done, Id::Done, 0), false),
        (lost, true),
    ] {
        let restarts = Restarts::new(most(5), RetryRules::default());
        let again = next(&restarts, failure.clone(), Duration::from_secs(600));
        assert_eq!(again.is_some(), helps, "{failure:?}");
        // After a success or a stop from outside no reason is given.
        let said = !helps && !matches!(failure.class, Class::Done | Class::Stopped);
        assert_eq!(restarts.why_not().is_some(), said, "{failure:?}");
        // No restarts were requested, so no reason is given.
        let none = Restarts::none();
        assert_eq!(next(&none, failure, Duration::from_secs(600)), None);
        assert_eq!(none.why_not(), None);
    }
}

/// Nobody waits for what has ended, and everybody for what may still run.
#[test]
fn pause_follows_from_what_a_loss_proves() {
    let limits = |seconds| Limits { cut_off: Duration::from_secs(seconds), ..most(9) };
    let lost = |loss| FailedAttempt { lost: Some(loss), ..failed(137) };
    let killed = |cause| FailedAttempt { id: Id::RankSignal, cause, ..failed(137) };
    let why = |retry| Some(Box::new(Why::fixture("a", Confidence::Certain, Owner::Code, retry)));
    let from_outside = |retry| {
        let why = Why::fixture("worker_sigkill", Confidence::Likely, Owner::Platform, retry);
        Some(Box::new(why))
    };
    for (failure, seconds) in [
        (lost(Loss::Died), 0),
        (lost(Loss::Silent), 45),
        (lost(Loss::Cut), 45),
        (killed(None), 0),
        (killed(from_outside(Retry::SameNodes)), 0),
        (killed(why(Retry::SameNodes)), 1),
        (killed(why(Retry::Wait)), 30),
        (failed(1), 1),
    ] {
        let restarts = Restarts::new(limits(45), RetryRules::default());
        let again = next(&restarts, failure.clone(), Duration::ZERO).expect("another attempt");
        assert_eq!(again.pause, seconds * 1000, "{failure:?}");
    }
    // Without spares another node takes longer to come than the lost one to end.
    let restarts = Restarts::new(limits(0), RetryRules::default());
    let again = next(&restarts, lost(Loss::Silent), Duration::ZERO).expect("another attempt");
    assert_eq!(again.pause, 1000);
    // Attempts that save are not the same one again, however often a rank is killed or fails.
    let restarts = Restarts::new(limits(0), RetryRules::default());
    for (failure, seconds) in [(killed(from_outside(Retry::SameNodes)), 0), (failed(1), 1)] {
        for _ in 0..20 {
            restarts.policy().counts(&failure, Some(true));
            let again = next(&restarts, failure.clone(), Duration::ZERO).expect("another attempt");
            assert_eq!(again.pause, seconds * 1000, "{failure:?}");
        }
    }
    // The same kill again soon is no accident.
    let restarts = Restarts::new(limits(0), RetryRules::default());
    let pause = || next(&restarts, killed(None), Duration::ZERO).map(|again| again.pause);
    assert_eq!([pause(), pause(), pause()], [Some(0), Some(2000), None]);
}

/// What needs another node starts again if one waits.
#[test]
fn another_node_that_waits_allows_another_attempt() {
    let why = Why::fixture("gpu_lost", Confidence::Certain, Owner::Node, Retry::OtherNode);
    for another_waits in [true, false] {
        let restarts = Restarts::new(most(9), RetryRules::default());
        let cause = Some(Box::new(why.clone()));
        let failure = FailedAttempt { cause, another_waits, ..failed(1) };
        assert!(failure.calls_for_another_node());
        let again = next(&restarts, failure, Duration::ZERO).is_some();
        assert_eq!(again, another_waits);
    }
    assert!(!failed(1).calls_for_another_node());
}

/// Nodes that are lost one after the other are no failure that repeats, as long as others wait for their seats.
#[test]
fn losses_in_a_row_use_up_the_spares() {
    for another_waits in [true, false] {
        let restarts = Restarts::new(most(9), RetryRules::default());
        let lost = || FailedAttempt {
            class: Class::Launcher,
            id: Id::NodeDied,
            lost: Some(Loss::Died),
            another_waits,
            ..failed(137)
        };
        let again = (0..5).map(|_| next(&restarts, lost(), Duration::ZERO).is_some());
        assert_eq!(again.filter(|again| *again).count(), if another_waits { 5 } else { 2 });
    }
}

/// A notice ends the job, unless only a node ends and another one waits for its seat.
#[test]
fn job_goes_on_after_a_notice_where_another_node_waits() {
    let stopped = FailedAttempt { class: Class::Stopped, id: Id::StoppedNotice, ..failed(143) };
    for (another_waits, lets_others_go_on, limit, expected) in [
        (true, true, 1, true),
        (true, false, 1, false),
        (false, true, 1, false),
        (true, true, 0, false),
    ] {
        let restarts = Restarts::new(most(limit), RetryRules::default());
        let notice = || PendingNotice { reason: Text::same("drain"), lets_others_go_on };
        let failure = FailedAttempt { another_waits, ..stopped.clone() };
        let mut policy = restarts.policy();
        let again = policy.after(failure.clone(), Duration::ZERO, Some(notice()));
        let row = (another_waits, lets_others_go_on, limit);
        assert_eq!(again.map(|again| again.pause), expected.then_some(0), "{row:?}");
        // Each one counts.
        assert_eq!(policy.after(failure, Duration::ZERO, Some(notice())), None, "{row:?}");
    }
}

#[test]
fn restarts_are_limited_by_number_and_progress() {
    let long = Duration::from_secs(3600);
    let restarts = Restarts::new(most(2), RetryRules::default());
    let pauses: Vec<_> = (0..4)
        .map(|_| next(&restarts, failed(1), long).map(|again| (again.attempt, again.pause)))
        .collect();
    assert_eq!(pauses, [Some((1, 1000)), Some((2, 2000)), None, None]);

    let restarts = Restarts::new(most(100), RetryRules::default());
    let quick: Vec<bool> =
        (0..4).map(|_| next(&restarts, failed(1), Duration::ZERO).is_some()).collect();
    assert_eq!(quick, [true, true, false, false]);

    // A different end, or a long attempt, counts as progress.
    let restarts = Restarts::new(most(100), RetryRules::default());
    for (code, lasted) in [(1, 0), (3, 0), (1, 0), (1, 0), (1, 100), (1, 0), (1, 0)] {
        let again = next(&restarts, failed(code), Duration::from_secs(lasted));
        assert!(again.is_some(), "{code} after {lasted} s");
    }

    // The pause has a bound.
    let restarts = Restarts::new(most(100), RetryRules::default());
    let pauses: Vec<_> = (0..20).filter_map(|_| next(&restarts, failed(1), long)).collect();
    assert_eq!(pauses.last().map(|again| again.pause), Some(30_000));
}

#[test]
fn new_node_0_continues_the_attempt_count() {
    let restarts = Restarts::new(most(2), RetryRules::default());
    assert_eq!(
        (restarts.count_on(1, Tally::default()), restarts.count_on(0, Tally::default())),
        (1, 1)
    );
    let long = Duration::from_secs(600);
    let again = next(&restarts, failed(1), long).map(|again| again.attempt);
    assert_eq!((again, next(&restarts, failed(1), long)), (Some(2), None));
    assert_eq!(
        Restarts::new(most(2), RetryRules::default()).count_on(u32::MAX, Tally::default()),
        u32::MAX
    );
}

#[test]
fn retry_rule_overrides_exit_code_within_max_restarts() {
    let of = |rule: RetryRule, most| Restarts::new(most, RetryRules::with(&[("rank.exit", rule)]));
    let restarts = of(RetryRule::Always, most(4));
    let tries: Vec<bool> =
        (0..5).map(|_| next(&restarts, failed(2), Duration::ZERO).is_some()).collect();
    assert_eq!(tries, [true, true, true, true, false]);
    assert!(restarts.why_not().expect("a reason").en.contains("--max-restarts is 4"));

    let restarts = of(RetryRule::Never, most(4));
    assert_eq!(next(&restarts, failed(1), Duration::from_secs(600)), None);
    assert!(restarts.why_not().expect("a reason").en.contains("--no-retry-on rank.exit"));
}

/// Each row of the policy.
#[test]
fn certain_cause_decides_unless_a_rule_overrides_it() {
    use {Confidence as C, Retry as R, RetryRule as Rule};
    const ID: &str = "heads_div";
    let never = "heads_div would fail again the same way; --retry-on heads_div starts anyway";
    let elsewhere = "heads_div needs another node; --retry-on heads_div";
    let exit = &[("rank.exit", Rule::Never)][..];
    let on = &[(ID, Rule::Always)][..];
    let off = &[(ID, Rule::Never)][..];
    let (both, other_way) = (
        [("rank.exit", Rule::Never), (ID, Rule::Always)],
        [("rank.exit", Rule::Always), (ID, Rule::Never)],
    );
    // Confidence, retry, code, rules, the attempt before, then the pause or the reason.
    for (confidence, retry, code, rules, attempt, expected) in [
        (C::Certain, R::Never, 1, &[][..], 0, Err(never)),
        (C::Certain, R::OtherNode, 1, &[], 0, Err(elsewhere)),
        (C::Certain, R::SameNodes, 1, &[], 3, Ok(1)),
        (C::Certain, R::Wait, 1, &[], 0, Ok(30)),
        // The cause counts more than the code.
        (C::Certain, R::SameNodes, 2, &[], 0, Ok(1)),
        (C::Likely, R::Never, 1, &[], 2, Ok(4)),
        (C::Likely, R::Wait, 1, &[], 0, Ok(1)),
        (C::Unknown, R::OtherNode, 1, &[], 1, Ok(2)),
        (C::Likely, R::SameNodes, 2, &[], 0, Err("(heads_div); --retry-on heads_div")),
        // A rule, whatever the confidence.
        (C::Certain, R::Never, 2, on, 2, Ok(4)),
        (C::Certain, R::OtherNode, 1, on, 0, Ok(1)),
        (C::Likely, R::Never, 2, on, 0, Ok(1)),
        (C::Certain, R::SameNodes, 1, off, 0, Err("--no-retry-on heads_div")),
        (C::Unknown, R::SameNodes, 1, off, 0, Err("--no-retry-on heads_div")),
        (C::Certain, R::Wait, 1, exit, 0, Err("--no-retry-on rank.exit")),
        // The rule for the cause wins over the rule for the verdict.
        (C::Certain, R::Never, 1, &both, 0, Ok(1)),
        (C::Certain, R::SameNodes, 1, &other_way, 0, Err("--no-retry-on heads_div")),
        // The bound holds for all of them.
        (C::Certain, R::Wait, 1, &[], 4, Err("--max-restarts is 4")),
        (C::Certain, R::Never, 1, on, 4, Err("--max-restarts is 4")),
    ] {
        let restarts = Restarts::new(most(4), RetryRules::with(rules));
        restarts.policy().attempt = attempt;
        restarts.policy().tally.restarts = attempt;
        let cause = Some(Box::new(Why::fixture(ID, confidence, Owner::Code, retry)));
        let again =
            next(&restarts, FailedAttempt { cause, ..failed(code) }, Duration::from_secs(600));
        let row = format!("{confidence:?} {retry:?} {code} {rules:?}");
        match expected {
            Ok(seconds) => {
                assert_eq!(again.map(|again| again.pause), Some(seconds * 1000), "{row}")
            }
            Err(reason) => {
                let said = restarts.why_not().expect(&row);
                assert!(again.is_none() && said.en.contains(reason), "{row}: {}", said.en);
                let id = reason.split(' ').find(|word| word.contains(ID)).unwrap_or_default();
                assert!(said.zh.contains(id.trim_matches(['(', ')', ';'])), "{}", said.zh);
            }
        }
    }
}

#[test]
fn quick_failures_are_limited_per_cause_except_waits() {
    let of = |id: &str, retry| FailedAttempt {
        cause: Some(Box::new(Why::fixture(id, Confidence::Certain, Owner::Code, retry))),
        ..failed(1)
    };
    let tries = |ids: &[&str], retry| -> Vec<bool> {
        let restarts = Restarts::new(most(100), RetryRules::default());
        ids.iter().map(|id| next(&restarts, of(id, retry), Duration::ZERO).is_some()).collect()
    };
    assert_eq!(tries(&["a", "a", "a"], Retry::SameNodes), [true, true, false]);
    assert_eq!(tries(&["a", "b", "a", "b"], Retry::SameNodes), [true; 4]);
    assert_eq!(tries(&["a"; 6], Retry::Wait), [true; 6]);
}
