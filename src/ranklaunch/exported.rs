//! The HTTP server of `--http`.
//!
//! It is not part of the job: if the address cannot be bound, one line reports it, and the job goes
//! on.

use super::context::Context;
use monitor::export::HttpServer;
use text::lang::{Text, cause};
use text::text;

/// Serves the board's knowledge while the result is held.
pub(super) fn serve(context: &Context) -> Option<HttpServer> {
    let asked = context.settings.http.as_ref()?;
    let (address, source) = (asked.value, &asked.source);
    match HttpServer::start(address, context.board.clone()) {
        Ok(server) => {
            context.board.keep_watched();
            let address = server.address();
            tracing::info!(%address, "serves metrics");
            Some(server)
        }
        Err(error) => {
            let Text { en, zh } = cause(&error);
            context.say(&text!(
                "no metrics: {address} ({source}) cannot be bound: {en}; the job runs without them",
                "没有指标：无法监听 {address}（{source}）：{zh}；任务照常运行"
            ));
            None
        }
    }
}
