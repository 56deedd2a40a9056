//! Which node leads the next attempt of a job with spares: as a rule the one that led the last, and another one once that
//! is lost.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::seats::of_others;
use muster::{Cause, Config, Found, Loss, Succession};
use report::Ending;
use text::lang::Text;
use text::text;

/// The leader of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leader {
    /// This node.
    Me,
    /// Node 0, where the platform says.
    OfPlatform,
    Other {
        leader: u32,
        at: SocketAddr,
    },
}

/// What is known of the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// The one of the last attempt, or that of the platform.
    Before,
    /// It has to be looked for.
    Nothing,
    Told(u32, SocketAddr),
}

/// The search for the leader, up to a deadline.
pub(super) struct Leadership {
    deadline: Instant,
    waits: Duration,
    known: Known,
}

impl Leadership {
    /// `leader_resigns`: the one that led is no place for the next attempt.
    pub(super) fn new(config: &Config, leader_resigns: bool) -> Leadership {
        let (waits, succession) = (config.wait_timeout, config.succession.as_ref());
        let resigned = succession.filter(|one| leader_resigns && one.can_go_on());
        if let Some(succession) = resigned
            && succession.electorate().is_some_and(|last| last.leader == config.node)
        {
            succession.rest();
        }
        let known = if resigned.is_some() { Known::Nothing } else { Known::Before };
        Leadership { deadline: Instant::now() + waits, waits, known }
    }

    /// Time until the deadline.
    pub(super) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Another node leads, or may: this one, which gathers there, or one that has to be looked for.
    pub(super) fn moved(&mut self, found: Option<(u32, SocketAddr)>) {
        self.known = found.map_or(Known::Nothing, |(leader, at)| Known::Told(leader, at));
    }

    /// The leader.
    ///
    /// # Errors
    /// The end of this node, if none is found in time.
    pub(super) async fn find(&mut self, config: &Config) -> Result<Leader, Ending> {
        let of_platform = if config.node == 0 { Leader::Me } else { Leader::OfPlatform };
        let succession = config.succession.as_ref();
        let last = succession.and_then(Succession::electorate);
        let (Some(succession), Some(last)) = (succession, last) else {
            return Ok(match self.known {
                Known::Told(leader, at) => Leader::Other { leader, at },
                Known::Before | Known::Nothing => of_platform,
            });
        };
        let can_go_on = succession.can_go_on();
        let found = match self.known {
            Known::Told(leader, at) => Some(Found::Other { leader, at }),
            // Nobody else can be elected, so the others wait for it, as without spares.
            _ if !can_go_on && last.leader == 0 => return Ok(of_platform),
            Known::Nothing if can_go_on => succession.seek(self.deadline).await,
            _ if last.leader == config.node => Some(Found::Me),
            Known::Before if can_go_on && succession.has_lost_leader() => {
                succession.seek(self.deadline).await
            }
            // Those that go on are there already, or will soon be.
            Known::Before | Known::Nothing => tokio::select! {
                at = succession.muster_of_leader(last.leader) => {
                    Some(Found::Other { leader: last.leader, at })
                }
                () = succession.until_lost(last.leader, config.longest_silence()) => {
                    if can_go_on { succession.seek(self.deadline).await } else { None }
                }
            },
        };
        match found {
            Some(Found::Me) => Ok(Leader::Me),
            Some(Found::Other { leader, at }) => Ok(Leader::Other { leader, at }),
            None => Err(self.cut_off(config, last.leader)),
        }
    }

    /// The line that says that another node leads than before.
    pub(super) fn says(&self, found: Leader, config: &Config) -> Option<Text> {
        match found {
            Leader::Me if config.node != 0 => Some(text!(
                "this node leads the job in place of node 0",
                "本节点代替节点 0 主持任务"
            )),
            Leader::Other { leader, at } if leader != 0 => Some(text!(
                "node {leader} leads the job in place of node 0 ({at})",
                "节点 {leader} 代替节点 0 主持任务（{at}）"
            )),
            _ => None,
        }
    }

    fn cut_off(&self, config: &Config, leader: u32) -> Ending {
        let waited = self.waits.as_secs();
        let (host, silence) = (&config.master_addr, config.peer_timeout);
        let cause = Cause::lost((leader, None), host, Loss::Cut, None, silence, muster::now());
        let is_own = leader == config.node;
        let text = match is_own {
            true => text!(
                "this node led the job, and in {waited} s too few of the nodes came that vote on what follows: the others may go on without it",
                "本节点曾主持任务，但在 {waited} 秒内，到达的有投票权的节点不足：其余节点可能已在没有它的情况下继续"
            ),
            false => text!(
                "node {leader}, which led the job, was lost, and in {waited} s this node found neither another leader nor enough of the others to be one: they may go on without it",
                "主持任务的节点 {leader} 已丢失，本节点在 {waited} 秒内既未找到新的主持节点，也未联系到足够多的其他节点：其余节点可能已在没有它的情况下继续"
            ),
        };
        of_others(config, Cause { text, ..cause })
    }
}

/// What may end the attempt to join a leader.
pub(super) struct Elsewhere {
    succession: Option<Succession>,
    /// Nothing is known of the job, so its leader would tell.
    hears: bool,
    leader: u32,
    at: Option<SocketAddr>,
    longest: Duration,
}

impl Elsewhere {
    /// `is_here`: the platform's address of the job is one of this host, where another launcher may listen.
    pub(super) fn new(config: &Config, is_here: bool) -> Elsewhere {
        let succession = config.succession.clone();
        let knows = succession.as_ref().is_some_and(|succession| succession.electorate().is_some());
        let hears = !knows && !is_here;
        Elsewhere {
            succession,
            hears,
            leader: config.leader,
            at: config.at,
            longest: config.longest_silence(),
        }
    }

    /// Waits until another node leads, or may.
    pub(super) async fn wait(&self) -> Option<(u32, SocketAddr)> {
        match &self.succession {
            Some(succession) if self.hears => Some(succession.told().await),
            Some(succession) if succession.electorate().is_some() => {
                let moved = async {
                    match self.at {
                        Some(at) => succession.until_moved(self.leader, at).await,
                        None => std::future::pending().await,
                    }
                };
                // Without a vote the leader can only come back.
                let lost = async {
                    match succession.can_go_on() {
                        true => succession.until_lost(self.leader, self.longest).await,
                        false => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = lost => None,
                    at = moved => at.map(|at| (self.leader, at)),
                }
            }
            _ => std::future::pending().await,
        }
    }
}
