//! Members whose connection was cut, until they return or are lost.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep};

use super::registry::{Member, Registry};
use crate::protocol::Loss;
use crate::reach::{AGAIN, Cut, Port, Sight, port};

/// Maximum number of simultaneous dials when the job starts.
const DIALS: usize = 64;

/// The finding of a task about a member.
#[derive(Debug)]
enum Found {
    /// Whether its port can be reached.
    Reached(u32, bool),
    Lost(u32, Loss),
}

#[derive(Debug, Default)]
pub(crate) struct Away {
    members: BTreeMap<u32, (Member, AbortHandle)>,
    reached: BTreeSet<u32>,
    tasks: JoinSet<Found>,
}

/// The address of a member's port that is open as long as the member lives.
fn alive(member: &Member) -> Option<SocketAddr> {
    Some(SocketAddr::new(member.from.ip(), member.alive?))
}

impl Away {
    /// Dials every member once, since a port that was never reached proves nothing later.
    pub(crate) fn reach(&mut self, registry: &Registry) {
        let dials = Arc::new(Semaphore::new(DIALS));
        for (node, member) in registry.iter() {
            let (Some(peer), dials) = (alive(member), Arc::clone(&dials)) else { continue };
            self.tasks.spawn(async move {
                let _dial = dials.acquire_owned().await;
                Found::Reached(node, port(peer).await == Port::Open)
            });
        }
    }

    /// Waits for a member whose connection was cut, for at most `longest`.
    pub(crate) fn wait_for(&mut self, node: u32, member: Member, how: Cut, longest: Duration) {
        let peer = alive(&member);
        let mut sight = Sight::new(self.reached.contains(&node), how, longest);
        let task = self.tasks.spawn(async move {
            let cut = Instant::now();
            loop {
                let port = match peer {
                    Some(peer) => port(peer).await,
                    None => Port::Unanswered,
                };
                if let Some(loss) = sight.judge(port, cut.elapsed()) {
                    return Found::Lost(node, loss);
                }
                sleep(AGAIN).await;
            }
        });
        self.members.insert(node, (member, task));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Removes a member that has returned or is lost.
    pub(crate) fn take(&mut self, node: u32) -> Option<Member> {
        let (member, task) = self.members.remove(&node)?;
        task.abort();
        Some(member)
    }

    /// The next member that is lost. Cancel-safe.
    pub(crate) async fn lost(&mut self) -> (u32, Member, Loss) {
        loop {
            match self.tasks.join_next().await {
                Some(Ok(Found::Reached(node, is_reached))) => {
                    if is_reached {
                        self.reached.insert(node);
                    }
                }
                Some(Ok(Found::Lost(node, loss))) => {
                    if let Some(member) = self.take(node) {
                        return (node, member, loss);
                    }
                }
                // A member has returned, so its task was cancelled.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }
}
