//! Which node leads the next attempt of a job with spares: as a rule the one that led the last, and another one once that
//! is lost.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::seats::of_others;
use muster::{Cause, Config, Found, Loss, Standby};
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
    pub(super) fn new(config: &Config) -> Leadership {
        let waits = config.wait_timeout;
        Leadership { deadline: Instant::now() + waits, waits, known: Known::Before }
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
        let standby = config.standby.as_ref();
        let last = standby.and_then(Standby::electorate);
        let (Some(standby), Some(last)) = (standby, last) else {
            return Ok(match self.known {
                Known::Told(leader, at) => Leader::Other { leader, at },
                Known::Before | Known::Nothing => of_platform,
            });
        };
        let found = match self.known {
            Known::Told(leader, at) => Some(Found::Other { leader, at }),
            Known::Before if last.leader == config.node => Some(Found::Me),
            Known::Before if !standby.has_lost_leader() => {
                // Those that go on are there already, or will soon be.
                tokio::select! {
                    at = standby.muster_of_leader(last.leader) => {
                        Some(Found::Other { leader: last.leader, at })
                    }
                    () = standby.until_lost(last.leader, config.longest_silence()) => {
                        standby.seek(self.deadline).await
                    }
                }
            }
            Known::Before | Known::Nothing => standby.seek(self.deadline).await,
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
        let text = text!(
            "node {leader}, which led the job, was lost, and in {waited} s this node found neither another leader nor enough of the others to be one: they may go on without it",
            "主持任务的节点 {leader} 已丢失，本节点在 {waited} 秒内既未找到新的主持节点，也未联系到足够多的其他节点：其余节点可能已在没有它的情况下继续"
        );
        of_others(config, Cause { text, ..cause })
    }
}

/// What may end the attempt to join a leader.
pub(super) struct Elsewhere {
    standby: Option<Standby>,
    /// Nothing is known of the job, so its leader would tell.
    hears: bool,
    leader: u32,
    at: Option<SocketAddr>,
    longest: Duration,
}

impl Elsewhere {
    /// `is_here`: the platform's address of the job is one of this host, where another launcher may listen.
    pub(super) fn new(config: &Config, is_here: bool) -> Elsewhere {
        let standby = config.standby.clone();
        let knows = standby.as_ref().is_some_and(|standby| standby.electorate().is_some());
        let hears = !knows && !is_here;
        Elsewhere { standby, hears, leader: config.leader, at: config.at, longest: config.longest_silence() }
    }

    /// Waits until another node leads, or may.
    pub(super) async fn wait(&self) -> Option<(u32, SocketAddr)> {
        match &self.standby {
            Some(standby) if self.hears => Some(standby.told().await),
            Some(standby) if standby.electorate().is_some() => {
                let moved = async {
                    match self.at {
                        Some(at) => standby.until_moved(self.leader, at).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = standby.until_lost(self.leader, self.longest) => None,
                    at = moved => Some((self.leader, at)),
                }
            }
            _ => std::future::pending().await,
        }
    }
}
