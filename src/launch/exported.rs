//! What other systems get of a running job: the HTTP server of `--http`, and spans of OTLP.
//!
//! Neither is part of the job: an address that cannot be bound, or a collector that does not
//! answer, is said once, and the job goes on.

use std::time::Duration;

use super::collect;
use super::context::Context;
use crate::export::{HttpServer, HttpUrl, OtlpTarget, PostError, SpanOf, post, spans_json};
use crate::lang::Text;
use crate::names;
use crate::text;

/// Time limit for sending the spans of an attempt.
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
            let Text { en, zh } = crate::lang::cause(&error);
            context.say(&text!(
                "no metrics: {address} ({source}) cannot be bound: {en}; the job runs without them",
                "没有指标：无法监听 {address}（{source}）：{zh}；任务照常运行"
            ));
            None
        }
    }
}

/// Sends the phases of an attempt as spans, if the environment asks for it.
pub(super) async fn send_spans(context: &Context, attempt: u32, time_left: Duration) {
    let target = match OtlpTarget::of(|name| context.host.variable(name)) {
        Ok(Some(target)) => target,
        Ok(None) => return,
        Err(why) => return context.say(&why),
    };
    let (status, phases) = (context.board.snapshot(), context.board.phases());
    let of = SpanOf { status: &status, phases: &phases, attempt };
    let Some(document) = spans_json(&target, of) else { return };
    if let Err(error) = send(context, &target, &document, time_left.min(SPANS)).await {
        context.say(&text!(
            "the spans of this attempt were not sent: {error}",
            "本次尝试的 span 未能发送：{error}"
        ));
    }
}

async fn send(
    context: &Context,
    target: &OtlpTarget,
    document: &serde_json::Value,
    within: Duration,
) -> Result<(), PostError> {
    let url = HttpUrl::parse(&target.url)?;
    let last = collect::last_resort(context.settings.probe.value);
    let found = names::resolve(&context.host, &url.host, within / 2, Some(&last)).await;
    let addresses = found.map_err(|error| std::io::Error::other(error.text().en.into_owned()))?;
    let body = serde_json::to_vec(document).unwrap_or_default();
    post(&url, &addresses, &target.headers, &body, within).await
}
