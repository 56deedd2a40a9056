//! Tests of the rules with nodes that break them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tokio::time::Instant;

use super::exchange::{Action, Exchange, For, Reply};
use super::frames::{LARGEST_DEFLATED, NoAnswer, PART, Packed, QuestionFrame};

const LONG: Duration = Duration::from_secs(60);

struct Node {
    exchange: Exchange,
    now: Instant,
}

impl Node {
    fn new(me: u32, nodes: u32) -> Node {
        Node { exchange: Exchange::new((me, 0), (0..nodes).collect()), now: Instant::now() }
    }

    fn ask(&mut self, within: Duration) -> Receiver<Reply> {
        let (reply, replies) = channel();
        let question: Arc<[u8]> = Arc::from(&b"?"[..]);
        self.exchange.ask(&question, None, within, reply, &|_| true, self.now);
        replies
    }

    /// The frames that follow from a frame.
    fn hear(&mut self, from: u32, frame: QuestionFrame) -> Vec<(Vec<u32>, QuestionFrame)> {
        self.exchange.hear(from, frame, &|_| true, self.now);
        self.frames()
    }

    fn frames(&mut self) -> Vec<(Vec<u32>, QuestionFrame)> {
        let frame = |action| match action {
            Action::Send { to, frame } => Some((to, frame)),
            Action::Answer { .. } => None,
        };
        self.exchange.actions().into_iter().filter_map(frame).collect()
    }

    /// Number of parts that the node requests after a frame.
    fn fetches(&mut self, from: u32, frame: QuestionFrame) -> usize {
        let is_fetch = |(_, frame): &(_, _)| matches!(frame, QuestionFrame::Fetch { .. });
        self.hear(from, frame).iter().filter(|frame| is_fetch(frame)).count()
    }

    fn passes(&mut self, time: Duration) {
        self.now += time;
        self.exchange.tick(self.now);
    }
}

fn ready(id: u64, node: u32, length: usize) -> QuestionFrame {
    QuestionFrame::Ready { id, node, length }
}

fn part(id: u64, node: u32, bytes: &[u8]) -> QuestionFrame {
    QuestionFrame::Part { id, node, bytes: bytes.to_owned() }
}

#[test]
fn fetching_is_limited_to_windows_and_slots() {
    let mut zero = Node::new(0, 100);
    let replies = zero.ask(LONG);
    // Four parts of each answer are requested; the 33rd answer waits for a slot.
    let asked: Vec<usize> =
        (1..=33).map(|node| zero.fetches(node, ready(1, node, 10 * PART))).collect();
    assert_eq!(asked, [&[4; 32][..], &[0]].concat());
    // One part is requested for each part that came.
    for _ in 0..6 {
        assert_eq!(zero.fetches(1, part(1, 1, &[1; PART])), 1);
    }
    for _ in 0..3 {
        assert_eq!(zero.fetches(1, part(1, 1, &[1; PART])), 0);
    }
    // The last part gives the slot to the next answer.
    assert_eq!(zero.fetches(1, part(1, 1, &[1; PART])), 4);
    let answer = Packed::Deflated(vec![1; 10 * PART]);
    assert_eq!(replies.try_recv(), Ok((1, Ok(answer))));
    // An answer that stands still gives up its slot as well; when it goes on, it is heard.
    assert_eq!(zero.fetches(40, ready(1, 40, 1)), 0);
    zero.passes(Duration::from_secs(2));
    let next = zero.frames();
    assert_eq!(next, [(vec![40], QuestionFrame::Fetch { id: 1, node: 40 })]);
    assert_eq!(zero.fetches(2, part(1, 2, &[2; PART])), 1);
}

#[test]
fn invalid_frames_end_at_most_one_answer() {
    let mut zero = Node::new(0, 4);
    let replies = zero.ask(LONG);
    zero.frames();
    // An answer of another node, an answer to no question, and parts that nobody announced are ignored.
    for (from, frame) in [
        (1, ready(1, 2, 5)),
        (1, ready(9, 1, 5)),
        (1, part(1, 1, &[5; PART])),
        (2, QuestionFrame::Fetch { id: 1, node: 0 }),
        (2, QuestionFrame::None { id: 1, node: 3, why: NoAnswer::Late }),
    ] {
        assert_eq!(zero.hear(from, frame.clone()), [], "{frame:?}");
        assert!(replies.try_recv().is_err(), "{frame:?}");
    }
    zero.hear(1, ready(1, 1, LARGEST_DEFLATED + 1));
    let why = NoAnswer::too_large(LARGEST_DEFLATED + 1, LARGEST_DEFLATED);
    assert_eq!(replies.try_recv(), Ok((1, Err(why))));
    // A node sends more bytes than it announced.
    assert_eq!(zero.fetches(2, ready(1, 2, 5)), 1);
    zero.hear(2, part(1, 2, b"123456"));
    assert_eq!(replies.try_recv(), Ok((2, Err(NoAnswer::Unreadable))));
    // A node announces twice and sends empty parts without end: this takes no memory, and the deadline ends it.
    assert_eq!(zero.fetches(3, ready(1, 3, 5)), 1);
    assert_eq!(zero.fetches(3, ready(1, 3, 7)), 0);
    for _ in 0..1000 {
        assert_eq!(zero.fetches(3, part(1, 3, b"")), 0);
    }
    zero.exchange.answered(For::Round(1), Ok(Vec::new()), zero.now);
    assert_eq!(replies.try_recv(), Ok((0, Ok(Packed::Plain(Vec::new())))));
    zero.passes(LONG);
    assert_eq!(replies.try_recv(), Ok((3, Err(NoAnswer::Late))));
    zero.passes(LONG);
    assert!(zero.exchange.due().is_none(), "nothing is left");
}

#[test]
fn answer_is_sent_once_despite_repeated_fetches() {
    let mut one = Node::new(1, 2);
    let ask = QuestionFrame::ask(7, LONG, b"?", None);
    one.exchange.hear(0, ask, &|_| true, one.now);
    let Some(Action::Answer { asker, .. }) = one.exchange.actions().pop() else {
        panic!("no answer begins")
    };
    one.exchange.answered(asker, Ok(vec![5; PART + 1]), one.now);
    assert_eq!(one.frames(), [(vec![0], ready(7, 1, PART + 1))]);
    let mut sent = 0;
    for _ in 0..100 {
        for (_, frame) in one.hear(0, QuestionFrame::Fetch { id: 7, node: 1 }) {
            let QuestionFrame::Part { bytes, .. } = frame else { panic!("{frame:?}") };
            sent += bytes.len();
        }
    }
    assert_eq!(sent, PART + 1);
    assert!(one.exchange.due().is_some());
    one.passes(LONG);
    assert!(one.exchange.due().is_none());
}

#[test]
fn small_answer_comes_at_once_counts_once() {
    let mut one = Node::new(1, 2);
    one.exchange.hear(0, QuestionFrame::ask(1, LONG, b"?", None), &|_| true, one.now);
    let Some(Action::Answer { asker, .. }) = one.exchange.actions().pop() else {
        panic!("no answer begins")
    };
    one.exchange.answered(asker, Ok(vec![5; 700]), one.now);
    let sent = one.frames();
    assert_eq!(sent, [(vec![0], part(1, 1, &[5; 700]))]);
    let mut zero = Node::new(0, 2);
    let replies = zero.ask(LONG);
    zero.frames();
    for (_, frame) in [sent.clone(), sent].concat() {
        assert_eq!(zero.hear(1, frame), []);
    }
    let answers: Vec<Reply> = replies.try_iter().collect();
    assert_eq!(answers, [(1, Ok(Packed::Deflated(vec![5; 700])))]);
    // To another node the answer is announced: that node hears all through one connection, in which other frames wait.
    let ask = QuestionFrame::ask(4, LONG, b"?", None);
    zero.hear(1, ask);
    zero.exchange.answered(For::Round(2), Ok(vec![6; 700]), zero.now);
    assert_eq!(zero.frames(), [(vec![1], ready(4, 0, 700))]);
}

#[test]
fn excess_questions_are_refused_lost_nodes_forgotten() {
    let mut zero = Node::new(0, 3);
    let busy = |frames: &[(Vec<u32>, QuestionFrame)]| {
        let is_busy =
            |(_, frame): &&(_, _)| matches!(frame, QuestionFrame::None { why: NoAnswer::Busy, .. });
        frames.iter().filter(is_busy).count()
    };
    let asked: Vec<usize> =
        (0..6).map(|id| busy(&zero.hear(1, QuestionFrame::ask(id, LONG, b"?", None)))).collect();
    assert_eq!(asked, [0, 0, 0, 0, 2, 2], "four at a time, and a reason for each node");
    assert_eq!(zero.hear(1, QuestionFrame::ask(0, LONG, b"?", None)), [], "asked already");
    // Node 0's own questions are counted separately.
    let replies = zero.ask(LONG);
    assert!(replies.try_recv().is_err());
    let five: Vec<Receiver<Reply>> = (0..4).map(|_| zero.ask(LONG)).collect();
    assert_eq!(five[3].try_recv(), Ok((0, Err(NoAnswer::Busy))));
    zero.exchange.lost(1, zero.now);
    assert_eq!(replies.try_recv(), Ok((1, Err(NoAnswer::Lost))));
    assert_eq!(
        busy(&zero.hear(2, QuestionFrame::ask(0, LONG, b"?", None))),
        0,
        "there is room again"
    );
    // The deadline exceeds every possible time.
    zero.hear(2, QuestionFrame::Ask { id: 1, within: u64::MAX, question: Vec::new(), every: None });
}

const EACH: Duration = Duration::from_secs(1);

impl Node {
    fn watch(&mut self) -> Receiver<Reply> {
        let (reply, replies) = channel();
        let question: Arc<[u8]> = Arc::from(&b"?"[..]);
        self.exchange.ask(&question, Some(EACH), EACH / 2, reply, &|_| true, self.now);
        replies
    }
}

fn asked(frames: &[(Vec<u32>, QuestionFrame)]) -> Vec<(Vec<u32>, bool)> {
    let ask = |(to, frame): &(Vec<u32>, QuestionFrame)| match frame {
        QuestionFrame::Ask { every, .. } => Some((to.clone(), every.is_some())),
        _ => None,
    };
    frames.iter().filter_map(ask).collect()
}

#[test]
fn repeated_viewer_hears_nodes_without_asking() {
    let mut zero = Node::new(0, 4);
    let first = zero.watch();
    let all = vec![1, 2, 3];
    assert_eq!(asked(&zero.frames()), [(all.clone(), false)], "perhaps nobody looks again");
    for node in 1..4 {
        zero.hear(node, part(2, node, b"first"));
    }
    assert_eq!(first.try_iter().count(), 3);
    // The second look tells the nodes to repeat; until they answer by themselves they are asked.
    zero.passes(EACH);
    let second = zero.watch();
    let frames = zero.frames();
    assert_eq!(asked(&frames), [(all.clone(), true), (all.clone(), false)]);
    let Some((_, QuestionFrame::Ask { id, .. })) = frames.first() else { panic!("{frames:?}") };
    let id = *id;
    for node in 1..4 {
        zero.hear(node, part(3, node, b"second"));
    }
    assert_eq!(second.try_iter().count(), 3);
    // Node 3 is of an earlier version, so it answers the repeated question only once.
    for node in 1..4 {
        zero.hear(node, part(id, node, b"by itself"));
    }
    for look in 0..5 {
        zero.passes(EACH);
        for node in 1..3 {
            zero.hear(node, part(id, node, b"by itself"));
        }
        let replies = zero.watch();
        let expected = if look < 2 { vec![] } else { vec![(vec![3], false)] };
        assert_eq!(asked(&zero.frames()), expected, "{look}");
        let by_itself = Packed::Deflated(b"by itself".to_vec());
        let answers: Vec<Reply> = replies.try_iter().collect();
        let known = if look < 2 { 1..4 } else { 1..3 };
        assert_eq!(answers, known.map(|node| (node, Ok(by_itself.clone()))).collect::<Vec<_>>());
    }
    // A lost node has no answer any more, and a node that speaks for another node is not heard.
    zero.exchange.lost(1, zero.now);
    zero.hear(2, part(id, 1, b"of another"));
    let replies = zero.watch();
    let answers: Vec<u32> = replies.try_iter().map(|(node, _)| node).collect();
    assert_eq!(answers, [2]);
    // The nodes are told again while a viewer asks, but not once nobody does.
    zero.frames();
    zero.passes(Duration::from_secs(4));
    zero.watch();
    zero.frames();
    for _ in 0..3 {
        zero.passes(Duration::from_secs(4));
        zero.watch();
    }
    let again = asked(&zero.frames()).into_iter().filter(|(_, again)| *again).count();
    assert_eq!(again, 1);
    zero.passes(Duration::from_secs(60));
    zero.watch();
    assert_eq!(asked(&zero.frames()), [(all, false)]);
}

#[test]
fn standing_question_ends_without_viewers() {
    let mut zero = Node::new(0, 2);
    zero.watch();
    zero.frames();
    // The round is over, and the viewer may ask again.
    zero.passes(EACH);
    assert!(zero.exchange.due().is_some_and(|due| due > zero.now));
    zero.passes(Duration::from_secs(60));
    assert_eq!(zero.exchange.due(), None, "nothing is left");
    // The next viewer counts as the first.
    zero.watch();
    assert_eq!(asked(&zero.frames()), [(vec![1], false)]);
}

#[test]
fn repeated_answers_last_until_the_deadline() {
    let mut one = Node::new(1, 2);
    let again = QuestionFrame::ask(7, Duration::from_secs(3), b"?", Some(EACH));
    let mut answers = 0;
    let mut answered = |one: &mut Node| {
        for action in one.exchange.actions() {
            let Action::Answer { asker, .. } = action else { panic!("{action:?}") };
            one.exchange.answered(asker, Ok(vec![5; 700]), one.now);
            assert_eq!(one.frames(), [(vec![0], part(7, 1, &[5; 700]))]);
            answers += 1;
        }
        answers
    };
    one.exchange.hear(0, again.clone(), &|_| true, one.now);
    assert_eq!(answered(&mut one), 1, "at once");
    one.passes(EACH / 2);
    assert_eq!(answered(&mut one), 1);
    one.passes(EACH / 2);
    assert_eq!(answered(&mut one), 2);
    // A node that is told again goes on for as long, but does not answer at once.
    one.exchange.hear(0, again, &|_| true, one.now);
    assert_eq!(answered(&mut one), 2);
    for _ in 0..20 {
        one.passes(EACH);
        answered(&mut one);
    }
    assert_eq!(answered(&mut one), 4);
    assert_eq!(one.exchange.due(), None, "nothing is left");
    // A node always pauses between answers, however short the interval is.
    let fast = QuestionFrame::Ask { id: 8, within: 10_000, question: Vec::new(), every: Some(0) };
    one.exchange.hear(0, fast, &|_| true, one.now);
    let pause = one.exchange.due().map(|due| due.saturating_duration_since(one.now));
    assert_eq!(pause, Some(Duration::from_millis(500)));
}

/// Node 0 would never fetch a large answer, so it would be held until its deadline.
#[test]
fn large_answer_is_not_sent_repeatedly() {
    let mut one = Node::new(1, 2);
    let again = QuestionFrame::ask(7, Duration::from_secs(3), b"?", Some(EACH));
    one.exchange.hear(0, again, &|_| true, one.now);
    for _ in 0..2 {
        let Some(Action::Answer { asker, .. }) = one.exchange.actions().pop() else {
            panic!("no answer begins")
        };
        one.exchange.answered(asker, Ok(vec![5; PART]), one.now);
        assert_eq!(one.frames(), []);
        assert_eq!(one.exchange.due(), Some(one.now + EACH), "only the next answer");
        one.passes(EACH);
    }
}

/// The frames of an earlier version, sent and read.
#[test]
fn question_frame_matches_earlier_versions() {
    let ask = QuestionFrame::ask(7, LONG, b"?", None);
    let text = serde_json::to_string(&ask).expect("JSON");
    assert_eq!(text, r#"{"ask":{"id":7,"within":60000,"question":"Pw=="}}"#);
    assert_eq!(serde_json::from_str::<QuestionFrame>(&text).expect("a frame"), ask);
}
