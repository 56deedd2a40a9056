//! Identifies the program that holds the port of node 0: torch's store, another job, or another program. Decides when
//! this node acts on the finding.
//!
//! A node leaves the muster only on proof: a store that answers as torch's does, has no job key, and outlives every
//! possible remainder of an attempt. With a secret, an answer that is not proven by the secret does not change the
//! behaviour of this node.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::problem::{JoinProblem, StoreOwner, taken};
use crate::config::{Config, Without};
use crate::foreign::store::{self, StoreAnswer};
use crate::foreign::{ForeignAction, program};
use crate::net::Seen;
use text::lang::Text;
use text::text;

/// Another job must hold the port for this long, since it may be about to end.
const OTHER_JOB: Duration = Duration::from_secs(3);

pub(crate) struct Holder<'a> {
    config: &'a Config,
    seen: &'a Seen<JoinProblem>,
    /// Time since which a store without a job key has answered.
    unmarked: Option<Instant>,
    /// Time since which another job has answered.
    other_job: Option<Instant>,
    /// The last other program that answered.
    program: Option<(SocketAddr, Text)>,
}

impl<'a> Holder<'a> {
    pub(crate) fn new(config: &'a Config, seen: &'a Seen<JoinProblem>) -> Holder<'a> {
        Holder { config, seen, unmarked: None, other_job: None, program: None }
    }

    /// Records that neither a store nor another job holds the port.
    pub(crate) fn clear(&mut self) {
        (self.unmarked, self.other_job) = (None, None);
    }

    /// Records that node 0 answered, so there is no store.
    pub(crate) fn answered(&mut self) {
        self.unmarked = None;
    }

    /// Records that node 0 admitted this node, so there is no other job.
    pub(crate) fn let_in(&mut self) {
        self.other_job = None;
    }

    /// Identifies the holder of the port. Some: a store, with the action to take.
    pub(crate) async fn ask(&mut self, peer: SocketAddr) -> Option<ForeignAction> {
        let seen = self.seen;
        let program = async {
            let name = program::name(peer).await?;
            seen.note(JoinProblem::Program(peer, name.clone()));
            Some((peer, name))
        };
        let store = store::ask(peer, self.config.node);
        tokio::pin!(program, store);
        // A store decides at once; any other program leaves one of the two questions unanswered.
        let found = tokio::select! {
            found = &mut store => {
                if matches!(found, StoreAnswer::Silent | StoreAnswer::No) {
                    self.program = program.await;
                }
                found
            }
            name = &mut program => {
                self.program = name;
                store.await
            }
        };
        self.judge(peer, found)
    }

    /// Records the program by its own name, or by its behaviour if it has no name.
    pub(crate) fn note(&self, peer: SocketAddr, behaviour: JoinProblem) {
        let named = self.program.as_ref().filter(|(at, _)| *at == peer);
        self.seen.note(match named {
            Some((_, name)) => JoinProblem::Program(peer, name.clone()),
            None => behaviour,
        });
    }

    /// The action to take about a store; None if the holder is not a store.
    fn judge(&mut self, peer: SocketAddr, found: StoreAnswer) -> Option<ForeignAction> {
        let config = self.config;
        let owner = match found {
            StoreAnswer::Marked(key) if config.key().is_of_other_job(&key) => {
                StoreOwner::Other(key)
            }
            StoreAnswer::Marked(_) => StoreOwner::Ours,
            StoreAnswer::Unmarked { taken: true } => StoreOwner::Complete,
            StoreAnswer::Unmarked { taken: false } => StoreOwner::Unknown,
            StoreAnswer::Silent | StoreAnswer::No => return None,
        };
        self.seen.note(JoinProblem::Store(peer, owner.clone()));
        if owner != StoreOwner::Unknown {
            self.unmarked = None;
        }
        let node = config.node;
        Some(match owner {
            StoreOwner::Unknown => self.unmarked(peer),
            StoreOwner::Ours => ForeignAction::Wait,
            // With a secret, an unproven answer must not end the muster.
            _ if config.secret.is_some() => ForeignAction::Wait,
            StoreOwner::Other(key) => self.other_job(peer, &key.text()),
            StoreOwner::Complete => {
                let by = text!(
                    "a torchrun that has a node {node} already",
                    "一个已有节点 {node} 的 torchrun"
                );
                self.other_job(peer, &by)
            }
        })
    }

    fn unmarked(&mut self, peer: SocketAddr) -> ForeignAction {
        let since = *self.unmarked.get_or_insert_with(Instant::now);
        let may_leave = self.config.without == Without::Follow && self.config.secret.is_none();
        if !may_leave || since.elapsed() < self.config.proof() {
            return ForeignAction::Wait;
        }
        ForeignAction::Alone(text!(
            "node 0 ({peer}) runs torchrun without ranklaunch or without a muster, so this node goes on without one",
            "节点 0（{peer}）直接运行 torchrun 或未启用集结，因此本节点跳过集结继续运行"
        ))
    }

    /// Records another job. Gives a refusal after it has held the port for long enough.
    pub(crate) fn other_job(&mut self, peer: SocketAddr, by: &Text) -> ForeignAction {
        let since = *self.other_job.get_or_insert_with(Instant::now);
        if since.elapsed() < OTHER_JOB {
            return ForeignAction::Wait;
        }
        ForeignAction::Refuse(taken(self.config, peer, by))
    }
}
