//! What holds the port of node 0 in its place: torch's store, another job, another program; and
//! when this node acts on that.
//!
//! A node leaves the muster on proof alone: a store that answers as torch's does, that carries
//! no job's key, and that outlives everything that an attempt leaves behind. With a secret
//! nothing that is not proven by it changes what this node does.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::problem::{Owner, Problem, taken};
use crate::lang::Text;
use crate::muster::config::{Config, Without};
use crate::muster::foreign::program;
use crate::muster::foreign::store::{self, Found};
use crate::net::Seen;
use crate::text;
use crate::verdict::Refusal;

/// Another job must hold the port for so long: it may be about to end.
const OTHER_JOB: Duration = Duration::from_secs(3);

/// What follows from what holds the port.
#[derive(Debug)]
pub(crate) enum Held {
    /// It may go away.
    Wait,
    Refuse(Refusal),
    /// This node goes on without a muster.
    Alone(Text),
}

pub(crate) struct Holder<'a> {
    config: &'a Config,
    seen: &'a Seen<Problem>,
    /// Since when a store without a job's key has been there.
    unmarked: Option<Instant>,
    /// Since when another job has been there.
    other_job: Option<Instant>,
    /// The other program that was there last.
    program: Option<(SocketAddr, Text)>,
}

impl<'a> Holder<'a> {
    pub(crate) fn new(config: &'a Config, seen: &'a Seen<Problem>) -> Holder<'a> {
        Holder { config, seen, unmarked: None, other_job: None, program: None }
    }

    /// Neither a store nor another job holds the port now.
    pub(crate) fn clear(&mut self) {
        (self.unmarked, self.other_job) = (None, None);
    }

    /// Node 0 answered: no store is there.
    pub(crate) fn answered(&mut self) {
        self.unmarked = None;
    }

    /// Node 0 let this node in: no other job is there.
    pub(crate) fn let_in(&mut self) {
        self.other_job = None;
    }

    /// Asks what is there. Some: a store, and this follows from it.
    pub(crate) async fn ask(&mut self, peer: SocketAddr) -> Option<Held> {
        let seen = self.seen;
        let program = async {
            let name = program::name(peer).await?;
            seen.note(Problem::Program(peer, name.clone()));
            Some((peer, name))
        };
        let store = store::ask(peer, self.config.node);
        tokio::pin!(program, store);
        // A store is the answer at once; any other program leaves one of the two unanswered.
        let found = tokio::select! {
            found = &mut store => {
                if matches!(found, Found::Silent | Found::No) {
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

    /// Notes the program where it has named itself, and else how it behaves.
    pub(crate) fn note(&self, peer: SocketAddr, behaviour: Problem) {
        let named = self.program.as_ref().filter(|(at, _)| *at == peer);
        self.seen.note(match named {
            Some((_, name)) => Problem::Program(peer, name.clone()),
            None => behaviour,
        });
    }

    /// What a store means that was found; None: there is none.
    fn judge(&mut self, peer: SocketAddr, found: Found) -> Option<Held> {
        let config = self.config;
        let owner = match found {
            Found::Marked(key) if config.key().is_of_other_job(&key) => Owner::Other(key),
            Found::Marked(_) => Owner::Ours,
            Found::Unmarked { taken: true } => Owner::Complete,
            Found::Unmarked { taken: false } => Owner::Unknown,
            Found::Silent | Found::No => return None,
        };
        self.seen.note(Problem::Store(peer, owner.clone()));
        if owner != Owner::Unknown {
            self.unmarked = None;
        }
        let node = config.node;
        Some(match owner {
            Owner::Unknown => self.unmarked(peer),
            Owner::Ours => Held::Wait,
            // With a secret an unproven word must not end the muster.
            _ if config.secret.is_some() => Held::Wait,
            Owner::Other(key) => self.other_job(peer, &key.text()),
            Owner::Complete => {
                let by = text!(
                    "a torchrun that has a node {node} already",
                    "一个已有节点 {node} 的 torchrun"
                );
                self.other_job(peer, &by)
            }
        })
    }

    fn unmarked(&mut self, peer: SocketAddr) -> Held {
        let since = *self.unmarked.get_or_insert_with(Instant::now);
        let may_leave = self.config.without == Without::Follow && self.config.secret.is_none();
        if !may_leave || since.elapsed() < self.config.proof() {
            return Held::Wait;
        }
        Held::Alone(text!(
            "node 0 ({peer}) runs torchrun without ranklaunch or without a muster, so this node goes on without one",
            "节点 0（{peer}）直接运行 torchrun 或未启用集结，因此本节点跳过集结继续运行"
        ))
    }

    /// Another job is there; a refusal once it has been there for long enough.
    pub(crate) fn other_job(&mut self, peer: SocketAddr, by: &Text) -> Held {
        let since = *self.other_job.get_or_insert_with(Instant::now);
        if since.elapsed() < OTHER_JOB {
            return Held::Wait;
        }
        Held::Refuse(taken(self.config, peer, by))
    }
}
