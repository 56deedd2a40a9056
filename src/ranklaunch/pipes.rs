//! Hands the pipes of the ranks to the logs.

use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;

use super::live_diagnosis::LiveDiagnosis;
use linux::sys;
use logs::Logs;
use report::{Ending, ending::Speaker};
use supervise::Streams;
use text::lang::{Text, cause};
use text::text;
use verdict::outcome::{Owner, Planned, Stream};

/// Number of last lines of the failed rank that all nodes print.
const LAST_LINES: usize = 20;

/// Hands pipes to the log room.
pub(super) struct Pipes<'a> {
    pub(super) logs: &'a Logs,
    pub(super) diagnosis: &'a LiveDiagnosis,
    pub(super) say: &'a (dyn Fn(&Text) + Sync),
}

impl Streams for Pipes<'_> {
    fn attach(&mut self, owner: Owner, stream: Stream, pipe: OwnedFd) {
        let spare = pipe.try_clone();
        if let Err(error) = self.logs.attach(owner, stream, pipe) {
            tracing::error!(%owner, %error, "no reader for a stream");
            // A closed pipe would kill the rank at its next write.
            if let Ok(spare) = spare.and_then(sys::watch) {
                tokio::spawn(swallow(spare));
            }
            let (Text { en, zh }, owner) = (cause(&error), owner.text());
            let (who, who_zh) = (owner.en, owner.zh);
            (self.say)(&text!("the output of {who} is lost: {en}", "输出将丢失（{who_zh}）：{zh}"));
        }
    }

    fn recorded(&mut self, owner: Owner, record: Vec<u8>) {
        self.diagnosis.recorded(owner, record);
    }
}

/// Reads a pipe to its end and discards the content.
async fn swallow(pipe: AsyncFd<OwnedFd>) {
    let mut buffer = vec![0; 16 << 10];
    if rustix::io::ioctl_fionbio(&pipe, true).is_err() {
        return;
    }
    loop {
        let Ok(mut ready) = pipe.readable().await else { return };
        match ready.try_io(|pipe| Ok(rustix::io::read(pipe, &mut buffer)?)) {
            Ok(Ok(0)) => return,
            Ok(Err(error)) if error.kind() != std::io::ErrorKind::Interrupted => return,
            _ => {}
        }
    }
}

/// The last lines before `ending`, oldest first.
pub(super) fn last_lines(logs: &Logs, planned: Planned, ending: &Ending) -> Vec<String> {
    let owner = match ending.speaker(planned) {
        Some(Speaker::Started(number)) => planned.owner(number),
        Some(Speaker::Engine) => Owner::Engine,
        None => return Vec::new(),
    };
    logs.tail(owner, LAST_LINES).iter().map(|line| line.text().into_owned()).collect()
}
