//! Tests of the agreement, and of the events of all nodes while the job runs.

use tokio::time::timeout;

use super::*;
use verdict::Class;

pub(super) async fn verdict(session: &mut Session) -> SessionEvent {
    loop {
        match timeout(Duration::from_secs(10), session.next_event()).await.expect("a verdict") {
            SessionEvent::Stop => {}
            event => return event,
        }
    }
}

pub(super) fn failure(node: u32, at: i64, whole: bool) -> Cause {
    Cause {
        node,
        on: None,
        hostname: format!("host-{node}"),
        rank: Some(node),
        id: Id::RankExit,
        class: Class::Script,
        code: 7,
        text: text::text!("rank {node} failed", "rank {node} 失败"),
        hint: text::lang::Text::same(""),
        at,
        lines: if whole { vec!["the last line".to_owned()] } else { Vec::new() },
        whole,
        loss: None,
        why: None,
        consequence: false,
    }
}

#[tokio::test]
async fn agreement_follows_worst_node_and_frees_port() {
    let port = port();
    let seven = NodeSummary { most: 7, gpus: 7, ..summary(2, 3) };
    let (zero, one, two) = tokio::join!(
        node_0(config(0, 3, port), summary(0, 3)),
        other(config(1, 3, port), summary(1, 3)),
        other(config(2, 3, port), seven)
    );
    let (session, agreed) = one.expect("agreed").expect("a muster");
    assert_eq!((agreed.nproc, agreed.world), (7, 21));
    assert_eq!(two.expect("agreed").expect("a muster").1, agreed);
    // torchrun binds the port beside the living connections.
    let listener = std::net::TcpListener::bind(("0.0.0.0", port));
    assert!(listener.is_ok(), "{listener:?}");
    drop((zero, session));
}

#[tokio::test]
async fn first_failure_reaches_all_with_last_lines() {
    let (mut zero, mut one, mut two) = three(|_| {}).await;
    let at = now();
    // The consequence is reported first but happened later.
    one.failed(failure(1, at, true));
    two.failed(failure(2, at - 60, false));
    two.failed(failure(2, at + 500, true));
    let expected = failure(2, at - 60, true);
    for session in [&mut zero, &mut one, &mut two] {
        let SessionEvent::Verdict { cause, again } = verdict(session).await else {
            panic!("no verdict")
        };
        assert_eq!(again, None);
        assert!((cause.at - expected.at).abs() < 20, "{cause:?}");
        assert_eq!(Cause { at: expected.at, ..*cause }, expected);
    }
}

#[tokio::test]
async fn a_success_stops_nobody_and_all_leave_together() {
    let (mut zero, mut one, mut two) = three(|_| {}).await;
    one.done();
    zero.done();
    let early = timeout(Duration::from_millis(300), one.next_event()).await;
    assert!(early.is_err(), "{early:?}");
    two.done();
    for session in [&mut zero, &mut one, &mut two] {
        assert_eq!(verdict(session).await, SessionEvent::AllDone);
    }
}

#[tokio::test]
async fn dead_node_is_named_with_its_memory() {
    // Encrypted, since a reset must be noticed with encryption as well.
    let (mut zero, mut one, two) = three(|config| config.secret = secret("0123456789abcdef")).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(two);
    for session in [&mut zero, &mut one] {
        let SessionEvent::Verdict { cause, .. } = verdict(session).await else {
            panic!("no verdict")
        };
        assert_eq!((cause.node, cause.loss), (2, Some(Loss::Died)));
        assert!(cause.text.en.contains("99 % of its memory limit"), "{}", cause.text.en);
    }
}

/// A node that dies while it still reads its last lines is not waited for.
#[tokio::test]
async fn report_that_cannot_become_whole_is_enough() {
    let (mut zero, mut one, two) = three(|_| {}).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    two.failed(failure(2, now(), false));
    let stop = timeout(Duration::from_secs(2), zero.next_event()).await.expect("a stop");
    assert_eq!(stop, SessionEvent::Stop);
    drop(two);
    let began = std::time::Instant::now();
    for session in [&mut zero, &mut one] {
        let SessionEvent::Verdict { cause, .. } = verdict(session).await else {
            panic!("no verdict")
        };
        assert_eq!((cause.node, cause.id), (2, Id::RankExit));
    }
    // The limit for last lines is 5 s.
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert_eq!(*zero.lost().lock(), [2].into());
}

/// Who leaves after the verdict is not lost, and who dies then is.
#[tokio::test]
async fn node_that_dies_after_the_verdict_is_lost() {
    let (mut zero, mut one, mut two) = three(|_| {}).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    zero.failed(failure(0, now(), true));
    for session in [&mut zero, &mut one, &mut two] {
        assert!(matches!(verdict(session).await, SessionEvent::Verdict { .. }));
    }
    one.close_to_return().await;
    two.die();
    let lost = zero.lost();
    timeout(Duration::from_secs(5), async {
        while lost.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("it is seen");
    assert_eq!(*lost.lock(), [2].into());
}

#[tokio::test]
async fn loss_of_node_0_ends_the_job() {
    let (zero, mut one, mut two) = three(|_| {}).await;
    // By now the nodes have reached node 0's port, which is closed afterwards.
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(zero);
    for session in [&mut one, &mut two] {
        let SessionEvent::Verdict { cause, .. } = verdict(session).await else {
            panic!("no verdict")
        };
        assert_eq!((cause.node, cause.id), (0, Id::NodeDied));
    }
}

#[tokio::test]
async fn incompatible_nodes_are_refused_everywhere() {
    let port = port();
    let other_rule = NodeSummary { rule: settings::LayoutRule::UlyssesWorld, ..summary(1, 2) };
    let (zero, one) = tokio::join!(
        node_0(config(0, 2, port), summary(0, 2)),
        other(config(1, 2, port), other_rule)
    );
    let (zero, one) = (zero.expect_err("refused"), one.expect_err("refused"));
    assert_eq!(zero, one);
    assert_eq!(zero.id, Id::MusterRule);

    // The nodes have the same job id but different node counts.
    let named = |node, nnodes| Config { job: Some("a".to_owned()), ..config(node, nnodes, port) };
    let (zero, one) =
        tokio::join!(node_0(named(0, 2), summary(0, 2)), other(named(1, 3), summary(1, 3)));
    assert_eq!(zero.expect_err("refused").id, Id::MusterNnodes);
    assert_eq!(one.expect_err("refused").id, Id::MusterNnodes);
}
