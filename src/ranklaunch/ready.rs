//! A node that may start: it has the agreed plan, and stale processes are cleared.

use std::net::IpAddr;
use std::path::PathBuf;

use super::agree::Agreed;
use super::clear::Cleared;
use super::collect::log_candidates;
use super::conductor::Start;
use super::context::Context;
use super::job_session::JobSession;
use super::restart::{NextAttempt, Restarts};
use logs::Candidate;
use muster::Again;
use plan::{Plan, RunIdentity};
use preflight::prepare;
use text::lang::{Text, cause};
use text::text;
use verdict::{Id, Refusal};

/// A node that may start.
pub(super) struct Ready {
    pub(super) plan: Plan,
    pub(super) identity: RunIdentity,
    pub(super) log_candidates: Vec<Candidate>,
    /// The single rank inherits stdin, stdout and stderr.
    pub(super) interactive: bool,
    /// Path of this executable, with which engines start the shim.
    pub(super) executable: PathBuf,
    /// The session with the other nodes; None without a muster.
    pub(super) session: Option<Box<JobSession>>,
    /// Number of the attempt, from 0.
    pub(super) attempt: u32,
    pub(super) restarts: Restarts,
}

impl Ready {
    pub(super) fn new(context: &Context, agreed: Agreed, cleared: Cleared) -> Ready {
        let Agreed { plan, identity, interactive, executable, session, attempt, restarts, .. } =
            agreed;
        Ready {
            plan: cleared.plan.unwrap_or(plan),
            identity,
            log_candidates: log_candidates(&context.host, &context.settings),
            interactive,
            executable,
            session,
            attempt,
            restarts,
        }
    }

    /// A single node runs its plan again; several nodes observe, plan and agree anew.
    pub(super) fn start_again(self, again: Again) -> Start<Ready, NextAttempt> {
        let attempt = again.attempt;
        if self.plan.membership.members() == 1 {
            return Start::Run(Ready { attempt, ..self });
        }
        let Ready { identity, restarts, .. } = self;
        Start::Observe(Some(NextAttempt { attempt, identity, restarts }))
    }

    /// A single node takes a port that is free now; several nodes use the agreed port.
    pub(super) fn master_port(&self) -> Result<u16, Refusal> {
        let member = &self.plan.membership;
        if !member.master_port_free {
            return Ok(member.master_port);
        }
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let address = member.master_addr.parse().unwrap_or(loopback);
        prepare::free_port(address).or_else(|_| prepare::free_port(loopback)).map_err(|error| {
            let Text { en, zh } = cause(&error);
            Refusal::new(
                Id::PortNone,
                text!("no free port on this node: {en}", "本节点没有空闲端口：{zh}"),
                text!("name one with --master-port", "请用 --master-port 指定端口"),
            )
        })
    }
}
