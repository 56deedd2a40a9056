//! What other systems get of a running job: the HTTP server of `--http`, and spans of OTLP.
//!
//! Neither is part of the job: an address that cannot be bound, or a collector that does not
//! answer, is said once, and the job goes on.

use std::io::ErrorKind;
use std::time::Duration;

use super::collect;
use super::context::Context;
use linux::host::Host;
use monitor::export::{HttpServer, HttpUrl, OtlpTarget, PostError, post, spans_json};
use monitor::status::StatusBoard;
use muster::names::{self, LastResort};
use text::lang::{Text, cause, failure};
use text::text;

/// Time limit for sending spans.
const SPANS: Duration = Duration::from_secs(2);

/// Serves what the board knows while the result is held.
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

/// Sends the phases since the attempt before as spans, if the environment asks for it.
pub(super) async fn send_spans(context: &Context, time_left: Duration) {
    let last = collect::last_resort(context.settings.probe.value);
    let failed = spans_of(&context.host, &context.board, Some(&last), time_left).await;
    if let Some(line) = failed {
        context.say(&line);
    }
}

/// The same before there is a context. Gives the line that says why they were not sent.
pub(super) async fn spans_of(
    host: &Host,
    board: &StatusBoard,
    last_resort: Option<&LastResort>,
    time_left: Duration,
) -> Option<Text> {
    let target = match OtlpTarget::of(|name| host.variable(name)) {
        Ok(target) => target?,
        Err(why) => return Some(why),
    };
    let document = spans_json(&target, &board.snapshot(), &board.phases())?;
    let sent = send(host, &target, &document, last_resort, time_left.min(SPANS)).await;
    let Text { en, zh } = sent.err()?.text();
    Some(text!("the spans were not sent: {en}", "span 未能发送：{zh}"))
}

async fn send(
    host: &Host,
    target: &OtlpTarget,
    document: &serde_json::Value,
    last_resort: Option<&LastResort>,
    within: Duration,
) -> Result<(), PostError> {
    let url = HttpUrl::parse(&target.url)?;
    let found = names::resolve(host, &url.host, within / 2, last_resort).await;
    let addresses = found.map_err(|error| failure(ErrorKind::NotFound, error.text()))?;
    let body = serde_json::to_vec(document).unwrap_or_default();
    post(&url, &addresses, &target.headers, &body, within).await
}
