//! Keeps the last line of the terminal up to date while the ranks of an attempt live.

use std::time::Duration;

use tokio::task::JoinHandle;

use super::context::Context;
use logs::Console;
use report::line_view::status_line;

/// Interval of the looks. The line is drawn only if it changed.
const PACE: Duration = Duration::from_millis(500);

/// The line, which is removed when this is dropped.
pub(super) struct StatusLine {
    /// None if there is no line.
    shown: Option<(JoinHandle<()>, Console)>,
}

/// `interactive`: the only rank has the terminal, and no line of ours may appear there.
pub(super) fn begin(context: &Context, interactive: bool) -> StatusLine {
    if interactive || !context.console.has_status() {
        return StatusLine { shown: None };
    }
    let (console, lang, board) = (context.console.clone(), context.lang(), context.board.clone());
    let to = console.clone();
    let task = tokio::spawn(async move {
        loop {
            // This does not count as a viewer's look: the samples of each second contain nothing about the
            // GPUs that the line shows.
            let line = status_line(&board.snapshot());
            to.status(Some(line.get(lang)));
            tokio::time::sleep(PACE).await;
        }
    });
    StatusLine { shown: Some((task, console)) }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        if let Some((task, console)) = self.shown.take() {
            task.abort();
            console.status(None);
        }
    }
}
