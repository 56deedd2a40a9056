//! The answers of this node, in threads of their own: whatever they do, the session goes on.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::deflate::deflate;
use super::room::Room;
use crate::protocol::NoAnswer;

/// Answers questions of the nodes.
pub(crate) type Answerer = Arc<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;

/// Answers at the same time, those included for which nobody waits any more.
const AT_ONCE: usize = 4;

/// Whether the answer leaves this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Plain,
    Deflated,
}

/// Who answers on this node.
pub struct LocalAnswers {
    answerer: Mutex<Option<Answerer>>,
    threads: Room,
}

impl fmt::Debug for LocalAnswers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("LocalAnswers").finish_non_exhaustive()
    }
}

impl LocalAnswers {
    pub fn new() -> LocalAnswers {
        LocalAnswers { answerer: Mutex::new(None), threads: Room::of(AT_ONCE) }
    }

    pub fn set(&self, answerer: Option<Answerer>) {
        *self.answerer.lock().unwrap_or_else(PoisonError::into_inner) = answerer;
    }

    /// Has the question answered; `done` gets the answer there, or the reason here.
    pub fn begin(
        &self,
        question: Arc<[u8]>,
        form: Form,
        done: impl Fn(Result<Vec<u8>, NoAnswer>) + Send + Sync + 'static,
    ) {
        let answerer = self.answerer.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(answerer) = answerer else { return done(Err(NoAnswer::NotReady)) };
        let Some(thread) = self.threads.take(1) else { return done(Err(NoAnswer::Busy)) };
        let done = Arc::new(done);
        let theirs = Arc::clone(&done);
        let work = move || {
            let _thread = thread;
            let answer = answerer(&question);
            theirs(match form {
                Form::Plain => Ok(answer),
                Form::Deflated => deflate(&answer),
            });
        };
        if std::thread::Builder::new().name("answer".into()).spawn(work).is_err() {
            done(Err(NoAnswer::Busy));
        }
    }
}
