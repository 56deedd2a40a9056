//! The answers of this node, computed in threads of their own: whatever they do, the session goes on.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::deflate::deflate;
use super::room::Room;
use crate::protocol::NoAnswer;

/// The function that answers questions of the nodes.
pub(crate) type Answerer = Arc<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;

/// Maximum number of simultaneous answers, including answers for which nobody waits any more.
const AT_ONCE: usize = 4;

/// The form of an answer: plain on this node, deflated if it leaves the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Plain,
    Deflated,
}

/// The answerer of this node, and the threads that it may use.
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

    /// Begins to answer the question; `done` gets the answer, or the reason why there is none.
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
