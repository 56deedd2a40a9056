//! Watches whether the job makes progress, and says who holds it up if it does not.
//!
//! Takes the starts and ends of ranks; gives the hangs that were found. A thread of its own looks and judges.
//! Never holds a rank or what supervises.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use serde_json::Value;

use super::end_request::{self, Asked};
use super::hang_judge::Watching;
use super::hang_state::{HangQuestion, Shared, Watched};
use crate::hang::FirstCulprit;
use crate::rank::RankId;
use crate::supervise::End;

/// The handle of the thread. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct HangWatch {
    /// Tells the thread that the other nodes are to hear that the job goes on.
    tell_others: Option<Sender<()>>,
    shared: Option<Arc<Shared>>,
    asked: Asked,
}

impl HangWatch {
    /// None: nothing is watched. If no thread can be started the job is not judged.
    pub(super) fn start(watched: Option<Watched>) -> HangWatch {
        let nothing = || HangWatch { tell_others: None, shared: None, asked: Asked::default() };
        let Some(watched) = watched else { return nothing() };
        let shared = Arc::new(Shared::new(watched));
        let (tell_others, told) = channel();
        let (end, asked) = end_request::new();
        let mut watching = Watching::new(Arc::clone(&shared), end);
        let thread = std::thread::Builder::new().name("hang".into()).stack_size(1 << 20);
        match thread.spawn(move || watching.run(&told)) {
            Ok(_) => HangWatch { tell_others: Some(tell_others), shared: Some(shared), asked },
            Err(_) => nothing(),
        }
    }

    pub(super) fn began(&self, rank: RankId, pid: i32) {
        if let Some(shared) = &self.shared {
            shared.began(rank, pid);
        }
    }

    pub(super) fn ended(&self, rank: RankId, end: Option<End>) {
        let Some(shared) = &self.shared else { return };
        if shared.ended(rank, end.is_some_and(End::success))
            && let Some(tell_others) = &self.tell_others
        {
            let _ = tell_others.send(());
        }
    }

    /// What answers the questions of node 0.
    pub(super) fn answerer(
        &self,
    ) -> impl Fn(HangQuestion) -> Option<Vec<u8>> + Send + Sync + use<> {
        let shared = self.shared.clone();
        move |question| shared.as_ref()?.answer(question)
    }

    /// Completes when the job stands still and is to end; once.
    pub(super) fn take_end(&mut self) -> impl Future<Output = ()> + Send + use<> {
        std::mem::take(&mut self.asked).made()
    }

    /// All hangs of the attempt, as run.json has them.
    pub(super) fn found(&self) -> Vec<Value> {
        self.shared.as_ref().map(|shared| shared.state().found.clone()).unwrap_or_default()
    }

    /// Who the others waited for when the attempt ended.
    pub(super) fn culprit(&self) -> Option<FirstCulprit> {
        let state = self.shared.as_ref()?.state();
        state.first.clone().filter(|_| state.stands)
    }
}
