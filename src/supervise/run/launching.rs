//! Tracks programs whose execve has not finished.
//!
//! execve reads the program and its interpreter, which takes for ever on a mount without its
//! server. A program that hangs there is reported and finally given up, while the supervisor
//! goes on.

use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::task::Poll;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use linux::sys;
use text::lang::failure;
use text::rank::{GlobalRank, RankId};
use text::text;
use verdict::outcome::Notice;

/// A program that is not executed after this time is reported.
const QUIET: Duration = Duration::from_secs(5);

pub(super) struct Launching {
    since: Instant,
    timeout: Duration,
    /// Our own children.
    begun: Vec<Begun>,
    /// The programs of ranks, which their shims execute.
    ranks: Vec<(RankId, String, Instant)>,
    told: bool,
}

struct Begun {
    program: PathBuf,
    report: AsyncFd<OwnedFd>,
}

impl Launching {
    pub(super) fn new(
        reports: Vec<(PathBuf, OwnedFd)>,
        timeout: Duration,
    ) -> io::Result<Launching> {
        let watched = |(program, report): (PathBuf, OwnedFd)| {
            rustix::io::ioctl_fionbio(&report, true)?;
            Ok(Begun { program, report: sys::watch(report)? })
        };
        let begun = reports.into_iter().map(watched).collect::<io::Result<_>>()?;
        Ok(Launching { since: Instant::now(), timeout, begun, ranks: Vec::new(), told: false })
    }

    /// Records that a shim is about to execute its rank's program.
    pub(super) fn rank_begins(&mut self, rank: RankId, program: String) {
        self.ranks.push((rank, program, Instant::now()));
    }

    /// Records that the rank's program was executed, or never will be.
    pub(super) fn rank_is_through(&mut self, rank: GlobalRank) {
        self.ranks.retain(|(id, _, _)| id.global != rank);
    }

    /// Whether all our own children were executed.
    pub(super) fn is_through(&self) -> bool {
        self.begun.is_empty()
    }

    /// Completes when [`look`](Self::look) has something to read. Cancel-safe.
    pub(super) async fn changed(&self) {
        poll_fn(|context| {
            for one in &self.begun {
                while let Poll::Ready(ready) = one.report.poll_read_ready(context) {
                    match ready {
                        Ok(mut ready) if !sys::is_readable(&one.report) => ready.clear_ready(),
                        _ => return Poll::Ready(()),
                    }
                }
            }
            Poll::Pending
        })
        .await;
    }

    /// Reads the reports.
    ///
    /// # Errors
    /// The first program whose execve failed or was late, and why.
    pub(super) fn look(&mut self) -> Result<(), (PathBuf, io::Error)> {
        let mut failed = None;
        self.begun.retain(|one| {
            let mut number = [0; 4];
            match rustix::io::read(&one.report, &mut number) {
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => true,
                Ok(4) => {
                    let error = io::Error::from_raw_os_error(i32::from_ne_bytes(number));
                    failed.get_or_insert((one.program.clone(), error));
                    false
                }
                Ok(_) | Err(_) => false,
            }
        });
        if let Some(failed) = failed {
            return Err(failed);
        }
        if let Some(late) = self.begun.first().filter(|_| self.since.elapsed() >= self.timeout) {
            let seconds = self.timeout.as_secs_f64();
            let why = text!(
                "it was not executed within {seconds} s; its mount may be dead",
                "{seconds} 秒内仍未开始执行，其挂载点可能已失效"
            );
            return Err((late.program.clone(), failure(io::ErrorKind::TimedOut, why)));
        }
        Ok(())
    }

    /// Reports each program that hangs, once.
    pub(super) fn tell(&mut self, notice: &mut (dyn FnMut(Notice) + Send)) {
        if let Some(one) = self.begun.first()
            && !self.told
            && self.since.elapsed() >= QUIET
        {
            self.told = true;
            let program = one.program.display().to_string();
            let given_up = Some(self.timeout);
            notice(Notice::NotExecuted { rank: None, program, after: QUIET, given_up });
        }
        self.ranks.retain(|(rank, program, since)| {
            let late = since.elapsed() >= QUIET;
            if late {
                let (rank, program) = (Some(*rank), program.clone());
                notice(Notice::NotExecuted { rank, program, after: QUIET, given_up: None });
            }
            !late
        });
    }

    /// The next time to call [`look`](Self::look) and [`tell`](Self::tell).
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let told = if self.told { self.timeout } else { QUIET.min(self.timeout) };
        let own = (!self.is_through()).then(|| self.since + told);
        let ranks = self.ranks.iter().map(|(_, _, since)| *since + QUIET);
        ranks.chain(own).min()
    }
}
