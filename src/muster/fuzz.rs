//! Fuzz entry points for all input that a connection may send. Not part of the program.

use std::cell::Cell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Debug;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::runtime::Runtime;
use tokio::time::Instant;

use super::protocol::channel;
use super::server::compare;
use crate::protocol::channel::{LONGEST, LONGEST_UNIDENTIFIED};
use crate::protocol::handshake::{Rejection, admit, dial};
use crate::protocol::messages::Message;
use crate::protocol::{
    Agreement, Channel, Difference, FromMember, FromNode0, Hello, JobKey, NodeSummary, Purpose,
    Secret,
};
use crate::questions::exchange::{Action, Exchange};
use crate::questions::frames::QuestionFrame;
use verdict::Refusal;

/// Bytes that a connection may hold beyond the longest frame: header, tag, slack of one read.
const SLACK: usize = 512;

thread_local! {
    /// The runtime, whose clock is paused while there is work. So a silent peer costs no time.
    static RUNTIME: Runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap_or_else(|error| panic!("no runtime: {error}"));
}

fn run<T>(future: impl Future<Output = T>) -> T {
    RUNTIME.with(|runtime| runtime.block_on(future))
}

/// A peer that sends fixed bytes in pieces, then closes or keeps silent.
#[derive(Debug)]
struct Script {
    pieces: VecDeque<Vec<u8>>,
    ends: bool,
    answered: usize,
}

impl Script {
    fn new(bytes: &[u8], piece: usize, ends: bool) -> Script {
        let pieces = bytes.chunks(piece.max(1)).map(<[u8]>::to_vec).collect();
        Script { pieces, ends, answered: 0 }
    }
}

impl AsyncRead for Script {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(mut piece) = self.pieces.pop_front() else {
            return if self.ends { Poll::Ready(Ok(())) } else { Poll::Pending };
        };
        let rest = piece.split_off(piece.len().min(into.remaining()));
        into.put_slice(&piece);
        if !rest.is_empty() {
            self.pieces.push_front(rest);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Script {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.answered += bytes.len();
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Bytes of a connection after its handshake, read as either side would read them. The first byte chooses how the bytes
/// are cut, the second whether the peer is trusted.
///
/// Every cut gives the same frames in bounded memory, and a frame is unchanged after it is written and read again.
pub fn frames(data: &[u8]) -> bool {
    let (member, node_0) = (read_as::<FromMember>(data), read_as::<FromNode0>(data));
    let asked = |frame: &FromMember| match frame {
        FromMember::Question(frame) => Some(frame.clone()),
        _ => None,
    };
    let answered = |frame: &FromNode0| match frame {
        FromNode0::Question(frame) => Some(frame.clone()),
        _ => None,
    };
    questions(0, member.iter().filter_map(asked));
    questions(1, node_0.iter().filter_map(answered));
    !member.is_empty() || !node_0.is_empty()
}

/// Feeds frames of a peer's questions to a node that both asks and answers. The node sends no more parts than its
/// answers have, and requests a bounded number of parts.
fn questions(me: u32, frames: impl Iterator<Item = QuestionFrame>) {
    const ANSWER: usize = 100_000;
    let (peer, now) = (1 - me, Instant::now());
    let (reply, _replies) = std::sync::mpsc::channel();
    let mut exchange = Exchange::new((me, 0), [0, 1].into());
    exchange.ask(&Arc::from(&b"?"[..]), None, Duration::from_secs(9), reply, &|_| true, now);
    let (mut asked, mut sent, mut held, mut heard) = (0, 0, 0, 0);
    for frame in frames {
        heard += 1;
        exchange.hear(peer, frame, &|_| true, now);
        loop {
            let actions = exchange.actions();
            if actions.is_empty() {
                break;
            }
            for action in actions {
                match action {
                    Action::Answer { asker, .. } => {
                        held += ANSWER;
                        exchange.answered(asker, Ok(vec![0; ANSWER]), now);
                    }
                    Action::Send { frame: QuestionFrame::Part { bytes, .. }, .. } => {
                        sent += bytes.len();
                    }
                    Action::Send { frame: QuestionFrame::Fetch { .. }, .. } => asked += 1,
                    Action::Send { .. } => {}
                }
            }
        }
    }
    assert!(sent <= held, "{sent} bytes of {held}");
    // One window at the start, then one part for each part that came.
    assert!(asked <= 4 * heard, "{asked} parts after {heard} frames");
    exchange.tick(now + Duration::from_secs(3601));
    exchange.lost(peer, now);
}

fn read_as<M: Message + Debug + PartialEq>(data: &[u8]) -> Vec<M> {
    if let Ok(frame) = channel::decode::<M>(data) {
        same_again(&frame);
    }
    let [cut, trusted, bytes @ ..] = data else { return Vec::new() };
    let trusted = trusted & 1 == 1;
    let received = |piece: usize| {
        let mut channel = Channel::<M, _>::new(Script::new(bytes, piece, true), None);
        if trusted {
            channel.trust();
        }
        let most = SLACK + if trusted { LONGEST } else { LONGEST_UNIDENTIFIED };
        let mut frames = Vec::new();
        let end = loop {
            let received = run(channel.receive());
            assert!(channel.held() <= most, "{} bytes are held", channel.held());
            match received {
                Ok(frame) => frames.push(frame),
                Err(error) => break error.to_string(),
            }
        };
        (frames, end)
    };
    let whole = received(usize::MAX);
    assert_eq!(whole, received(usize::from(*cut)), "by pieces of {cut}");
    whole.0.iter().for_each(same_again);
    whole.0
}

fn same_again<M: Message + Debug + PartialEq>(frame: &M) {
    let bytes = channel::encode(frame);
    assert!(bytes.len() <= LONGEST, "{} bytes", bytes.len());
    assert_eq!(channel::decode::<M>(&bytes).ok().as_ref(), Some(frame));
}

fn hello() -> Hello {
    Hello {
        node: 1,
        resume: None,
        held: None,
        key: JobKey { job: Some("job".to_owned()), port: 29500, nnodes: 2 },
        hostname: "worker-1".to_owned(),
        purpose: Purpose::Run,
    }
}

/// A handshake with an unidentified peer. The first byte chooses the side and whether there is a secret, the second how
/// the bytes are cut.
///
/// The handshake always ends. A peer without the secret is never admitted, and a node with the secret is heard only if
/// no byte was changed in transit.
pub fn handshake(data: &[u8]) -> bool {
    let [mode, cut, bytes @ ..] = data else { return false };
    let (secret, other) = (Secret::of_test(b'a'), Secret::of_test(b'b'));
    let ends = cut & 1 == 1;
    let script = Script::new(bytes, usize::from(cut / 2), ends);
    match mode % 6 {
        // An unidentified peer at node 0, without and with a secret.
        0 => run(admit(script, None)).is_ok(),
        1 => {
            assert!(run(admit(script, Some(&secret))).is_err(), "it got in without the secret");
            false
        }
        // An unidentified peer in place of node 0.
        2 => run(dial(script, None)).is_ok(),
        3 => {
            assert!(
                run(dial(script, Some(&secret))).is_err(),
                "it was believed without the secret"
            );
            false
        }
        // A third party between a node and node 0 that changes what the node sends.
        4 => match run(between(bytes, &secret, &secret)) {
            (Ok(heard), changed) => {
                assert_eq!((heard, changed), (hello(), false));
                true
            }
            (Err(rejection), changed) => {
                assert!(changed, "nothing was changed: {rejection:?}");
                false
            }
        },
        // A third party again, but the two sides have different secrets.
        _ => {
            let (admitted, _) = run(between(bytes, &other, &secret));
            assert!(admitted.is_err(), "another secret got in");
            false
        }
    }
}

/// Lets a node dial node 0 through a third party that edits its bytes. Gives what node 0 received, and whether any byte
/// was changed.
async fn between(edits: &[u8], theirs: &Secret, ours: &Secret) -> (Result<Hello, Rejection>, bool) {
    let (node, node_side) = tokio::io::duplex(4096);
    let (zero, zero_side) = tokio::io::duplex(4096);
    let changed = Cell::new(false);
    let speak = async {
        if let Ok(mut channel) = dial(node, Some(theirs)).await {
            let _ = channel.send(&FromMember::Hello(hello())).await;
            // The receive keeps the connection open until the other side closes it.
            let _ = channel.receive().await;
        }
        std::future::pending::<Infallible>().await
    };
    let admitted = tokio::time::timeout(Duration::from_secs(120), async {
        tokio::select! {
            biased;
            admitted = admit(zero, Some(ours)) => admitted.map(|(_, hello)| hello),
            never = speak => match never {},
            never = edit(node_side, zero_side, edits, &changed) => match never {},
        }
    });
    let admitted = admitted.await.expect("a handshake ends by itself");
    (admitted, changed.get())
}

/// Forwards both directions. Each pair of `edits` changes one byte of the node: the first value is the number of bytes
/// to skip, the second is added to the next byte; 0 drops that byte.
async fn edit(
    node: DuplexStream,
    zero: DuplexStream,
    edits: &[u8],
    changed: &Cell<bool>,
) -> Infallible {
    let (mut from_node, mut to_node) = tokio::io::split(node);
    let (mut from_zero, mut to_zero) = tokio::io::split(zero);
    let there = async {
        let mut edits = edits.chunks_exact(2);
        let mut next = edits.next();
        let mut passed = 0u8;
        while let Ok(byte) = from_node.read_u8().await {
            let mut sent = Some(byte);
            if let Some([after, add]) = next
                && *after <= passed
            {
                (next, passed) = (edits.next(), 0);
                sent = (*add != 0).then(|| byte.wrapping_add(*add));
                changed.set(true);
            }
            passed = passed.saturating_add(1);
            if let Some(byte) = sent
                && to_zero.write_u8(byte).await.is_err()
            {
                break;
            }
        }
        let _ = to_zero.shutdown().await;
    };
    let back = async {
        let _ = tokio::io::copy(&mut from_zero, &mut to_node).await;
        let _ = to_node.shutdown().await;
    };
    let ((), ()) = tokio::join!(there, back);
    std::future::pending().await
}

/// Node 0's comparison of the summaries, with its own summary first: the differences, the least capacity of a node,
/// and the heads.
///
/// # Errors
/// If the nodes do not fit together.
pub fn compared(summaries: &[NodeSummary]) -> Result<(Vec<Difference>, u32, Option<u32>), Refusal> {
    let differences = compare::differences(summaries);
    for warning in differences.iter().map(Difference::warning) {
        assert!(!warning.text.en.chars().any(char::is_control), "{warning:?}");
    }
    compare::check_all(summaries)?;
    Ok((differences, compare::fewest(summaries), compare::heads(summaries)))
}

/// Whether node 0 proposes this number of processes to nodes with these summaries.
pub fn fits(summaries: &[NodeSummary], nproc: u32) -> bool {
    compare::check_exact(summaries, nproc).is_ok()
}

/// A summary as node 0 parses it; None if it would close the connection.
pub fn read_summary(bytes: &[u8]) -> Option<NodeSummary> {
    match channel::decode(bytes) {
        Ok(FromMember::Summary(summary)) => Some(*summary),
        _ => None,
    }
}

pub fn write_summary(summary: NodeSummary) -> Vec<u8> {
    channel::encode(&FromMember::Summary(Box::new(summary)))
}

/// An agreement as a node parses it.
pub fn sent(agreement: Agreement) -> Option<Agreement> {
    let (differences, said) = (Vec::new(), Vec::new());
    let frame = FromNode0::Agreed { agreement, differences, said, resume: None, electorate: None };
    match channel::decode(&channel::encode(&frame)) {
        Ok(FromNode0::Agreed { agreement, .. }) => Some(agreement),
        _ => None,
    }
}
