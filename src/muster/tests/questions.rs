//! Tests of questions between the nodes of a running job.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::*;
use verdict::Class;

const SOON: Duration = Duration::from_secs(10);

/// Bytes that cannot be compressed.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(next).flatten().take(count).collect()
}

/// Makes the node answer with its number and the question.
fn echo(session: &Session, node: u8) -> Questions {
    let questions = session.questions();
    questions.answer_with(move |question| [&[node], question].concat());
    questions
}

/// Asks in a separate thread, as every caller does.
async fn ask_all(
    questions: &Questions,
    question: Vec<u8>,
    timeout: Duration,
) -> Vec<(u32, Result<Vec<u8>, NoAnswer>)> {
    let questions = questions.clone();
    linux::deadline::in_thread(move || questions.ask_all(question, timeout)).await
}

#[tokio::test]
async fn every_node_asks_all_without_waiting() {
    for secret in [None, secret("0123456789abcdef")] {
        let (zero, one, two) = three(|config| config.secret = secret.clone()).await;
        let [zero_asks, two_asks] = [(&zero, 0), (&two, 2)].map(|(session, n)| echo(session, n));
        let one_asks = one.questions();
        for asks in [&zero_asks, &one_asks, &two_asks] {
            let answers = ask_all(asks, b"?".to_vec(), SOON).await;
            let expected =
                [(0, Ok(vec![0, b'?'])), (1, Err(NoAnswer::NotReady)), (2, Ok(vec![2, b'?']))];
            assert_eq!(answers, expected);
        }
        // No node is left, so the session's end is the answer.
        drop((zero, one));
        two.close().await;
        let ended = ask_all(&two_asks, b"?".to_vec(), SOON).await;
        assert_eq!(ended, [0, 1, 2].map(|node| (node, Err(NoAnswer::Ended))));
    }
}

#[tokio::test]
async fn large_answer_arrives_oversized_answer_is_named() {
    let (zero, one, two) = three(|_| {}).await;
    let large = noise(3_000_000);
    let answer = large.clone();
    one.questions().answer_with(move |_| answer.clone());
    // Deflated, the answer is small; not deflated, it is several times the capacity of a connection.
    two.questions().answer_with(|_| vec![7; 12_000_000]);
    let refused = noise((8 << 20) + (1 << 16));
    zero.questions().answer_with(move |_| refused.clone());
    for (asks, own) in [(zero.questions(), 0), (one.questions(), 1), (two.questions(), 2)] {
        let answers = ask_all(&asks, b"?".to_vec(), 3 * SOON).await;
        let [(0, from_zero), (1, from_one), (2, from_two)] = &answers[..] else { panic!("three") };
        // assert_eq would print millions of numbers.
        let length = from_one.as_ref().map(Vec::len);
        assert!(from_one.as_ref() == Ok(&large), "asked by {own}: {length:?}");
        assert_eq!(from_two.as_ref().map(Vec::len), Ok(12_000_000), "asked by {own}");
        match from_zero {
            Ok(_) => assert_eq!(own, 0, "its own answer does not travel"),
            Err(why) => assert!(matches!(why, NoAnswer::TooLarge { .. }), "{why:?}"),
        }
    }
    let long = ask_all(&zero.questions(), vec![0; 40_000], SOON).await;
    let why = NoAnswer::Question { bytes: 40_000, most: 32 << 10 };
    assert_eq!(long, [0, 1, 2].map(|node| (node, Err(why))));
}

#[tokio::test]
async fn silent_node_delays_no_other_answer() {
    let (zero, one, two) = three(|_| {}).await;
    let asks = echo(&zero, 0);
    let _one = echo(&one, 1);
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    two.questions().answer_with(move |_| {
        drop(held.lock().map(|held| held.recv()));
        Vec::new()
    });
    let began = Instant::now();
    let limit = Duration::from_millis(700);
    let asked = ask_all(&asks, b"?".to_vec(), limit);
    let also = ask_all(&asks, b"!".to_vec(), limit);
    let (first, second) = tokio::join!(asked, also);
    let took = began.elapsed();
    assert!(took >= limit && took < limit + Duration::from_millis(500), "{took:?}");
    assert_eq!(first[..2], [(0, Ok(vec![0, b'?'])), (1, Ok(vec![1, b'?']))]);
    assert_eq!(second[..2], [(0, Ok(vec![0, b'!'])), (1, Ok(vec![1, b'!']))]);
    assert_eq!(
        (first[2].1.clone(), second[2].1.clone()),
        (Err(NoAnswer::Late), Err(NoAnswer::Late))
    );
    // Four threads hang, so no thread is left for a fifth question.
    for expected in [NoAnswer::Late, NoAnswer::Late, NoAnswer::Busy] {
        let answers = ask_all(&asks, b"?".to_vec(), limit).await;
        assert_eq!(answers[2], (2, Err(expected)));
    }
    drop(hold);
}

#[tokio::test]
async fn dying_node_is_named_other_answers_count() {
    let (zero, one, two) = three(|_| {}).await;
    let asks = echo(&zero, 0);
    let _one = echo(&one, 1);
    let (began, begun) = std::sync::mpsc::channel();
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    two.questions().answer_with(move |_| {
        let _ = began.send(());
        drop(held.lock().map(|held| held.recv()));
        Vec::new()
    });
    let asked = tokio::spawn(async move { ask_all(&asks, b"?".to_vec(), 3 * SOON).await });
    linux::deadline::in_thread(move || begun.recv_timeout(SOON)).await.expect("asked");
    let since = Instant::now();
    drop(two);
    let answers = asked.await.expect("answers");
    assert!(since.elapsed() < SOON, "it waited {:?}", since.elapsed());
    assert_eq!(answers[..2], [(0, Ok(vec![0, b'?'])), (1, Ok(vec![1, b'?']))]);
    assert_eq!(answers[2], (2, Err(NoAnswer::Lost)));
    drop(hold);
}

#[tokio::test]
async fn a_single_node_answers_itself() {
    let questions = Questions::alone(3);
    let asked = || ask_all(&questions, b"?".to_vec(), SOON);
    assert_eq!(asked().await, [(3, Err(NoAnswer::NotReady))]);
    questions.answer_with(|question| question.to_vec());
    assert_eq!(asked().await, [(3, Ok(b"?".to_vec()))]);
}

/// Forwards one connection at this many bytes per second, and counts the bytes from the dialer.
async fn slow_link(to: u16, bytes_per_second: usize) -> (u16, Arc<AtomicUsize>) {
    const PIECE: usize = 8 << 10;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let passed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&passed);
    tokio::spawn(async move {
        // A node dials again until node 0 listens.
        while let Ok((from, _)) = listener.accept().await {
            let Ok(to) = TcpStream::connect(("127.0.0.1", to)).await else { continue };
            let small = |stream: &TcpStream| {
                rustix::net::sockopt::set_socket_recv_buffer_size(stream, PIECE).expect("a size");
                rustix::net::sockopt::set_socket_send_buffer_size(stream, PIECE).expect("a size");
            };
            small(&from);
            small(&to);
            let (mut from_read, mut from_write) = from.into_split();
            let (mut to_read, mut to_write) = to.into_split();
            tokio::spawn(async move {
                let _ = tokio::io::copy(&mut to_read, &mut from_write).await;
                let _ = from_write.shutdown().await;
            });
            let count = Arc::clone(&count);
            tokio::spawn(async move {
                let mut piece = vec![0; PIECE];
                while let Ok(read @ 1..) = from_read.read(&mut piece).await {
                    if to_write.write_all(&piece[..read]).await.is_err() {
                        return;
                    }
                    count.fetch_add(read, Ordering::Relaxed);
                    let pause = Duration::from_secs(1) * u32::try_from(read).expect("small")
                        / u32::try_from(bytes_per_second).expect("few");
                    tokio::time::sleep(pause).await;
                }
                let _ = to_write.shutdown().await;
            });
        }
    });
    (port, passed)
}

/// The answer takes many seconds on the link. A failure of the node that sends it reaches all before the answer is
/// complete.
#[tokio::test]
async fn failure_overtakes_large_answer_on_slow_link() {
    const SPEED: usize = 1 << 20;
    let port = port();
    let (through, passed) = slow_link(port, SPEED).await;
    let named = |node, port| Config {
        job: Some("one job".to_owned()),
        peer_timeout: Duration::from_secs(10),
        ..config(node, 3, port)
    };
    let (zero, one, two) = tokio::join!(
        node_0(named(0, port), summary(0, 3)),
        other(named(1, port), summary(1, 3)),
        other(named(2, through), summary(2, 3))
    );
    let mut zero = zero.expect("agreed").expect("a muster");
    let (mut one, two) = [one, two].map(|one| one.expect("agreed").expect("a muster").0).into();
    let _zero = echo(&zero, 0);
    let asks = echo(&one, 1);
    let answer = noise(7 << 20);
    two.questions().answer_with(move |_| answer.clone());
    let before = passed.load(Ordering::Relaxed);
    let asked = tokio::spawn(async move { ask_all(&asks, b"?".to_vec(), 6 * SOON).await });
    let on_its_way = || passed.load(Ordering::Relaxed) - before;
    while on_its_way() < 1 << 20 {
        assert!(!asked.is_finished(), "the answer is there already");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (since, at) = (Instant::now(), on_its_way());
    two.failed(Cause {
        node: 2,
        on: None,
        hostname: "host-2".to_owned(),
        rank: Some(2),
        id: Id::RankExit,
        class: Class::Script,
        code: 7,
        text: text::text!("rank 2 failed", "rank 2 失败"),
        hint: text::lang::Text::same(""),
        at: now(),
        lines: vec!["the last line".to_owned()],
        whole: true,
        loss: None,
        why: None,
        consequence: false,
    });
    for session in [&mut one, &mut zero] {
        loop {
            let event = timeout(SOON, session.next_event()).await.expect("a verdict");
            if let SessionEvent::Verdict { cause, .. } = event {
                assert_eq!((cause.node, cause.code), (2, 7));
                break;
            }
        }
    }
    // The time covers the node's report and the verdict's window. Behind the whole answer it would be nine seconds.
    let (took, more) = (since.elapsed(), on_its_way() - at);
    assert!(took < Duration::from_secs(2) && more < 2 << 20, "{took:?}, {more} bytes meanwhile");
    assert!(!asked.is_finished(), "it came before the last part");
    // The verdict ends no answer, since node 0 asks for the parts that are still to be reported. Leaving ends it.
    two.close().await;
    let answers = asked.await.expect("answers");
    assert_eq!(answers[2], (2, Err(NoAnswer::Lost)));
}

/// A viewer asks repeatedly: from the second look on, the other nodes answer by themselves.
#[tokio::test]
async fn repeated_viewer_is_answered_without_asking() {
    const EVERY: Duration = Duration::from_millis(500);
    for secret in [None, secret("0123456789abcdef")] {
        let (zero, one, two) = three(|config| config.secret = secret.clone()).await;
        let answered = Arc::new(AtomicUsize::new(0));
        let counts = Arc::clone(&answered);
        one.questions().answer_with(move |_| vec![counts.fetch_add(1, Ordering::SeqCst) as u8]);
        let _two = echo(&two, 2);
        let asks = echo(&zero, 0);
        let look = || {
            let asks = asks.clone();
            linux::deadline::in_thread(move || {
                let mut answers = BTreeMap::new();
                asks.watch(b"?".to_vec(), EVERY, SOON, |node, answer| {
                    answers.insert(node, answer.and_then(Packed::open).expect("an answer"));
                });
                answers
            })
        };
        let count = || answered.load(Ordering::SeqCst);
        let first = look().await;
        assert_eq!(first, BTreeMap::from([(0, vec![0, b'?']), (1, vec![0]), (2, vec![2, b'?'])]));
        assert_eq!(count(), 1, "asked once");
        look().await;
        let began = Instant::now();
        while count() < 6 {
            assert!(began.elapsed() < SOON, "{} answers", count());
            tokio::time::sleep(EVERY / 10).await;
        }
        // A known answer is not older than the answer to a new question would be.
        let before = count();
        let again = look().await;
        let [answer] = again[&1][..] else { panic!("{again:?}") };
        assert!(usize::from(answer) + 3 > before, "{answer} of {before}");
        drop((zero, one, two));
    }
}
