//! The phases of a run as spans of OpenTelemetry.
//!
//! Written as OTLP/HTTP with JSON, which every collector takes beside protobuf: the crates for it
//! would add a tenth to the executable. Takes the standard variables; gives one document.

use std::collections::BTreeMap;

use blake2::{Blake2s256, Digest as _};
use serde_json::{Value, json};

use super::post::without_secrets;
use crate::status::{EndStatus, NodeStatus, Phase, PhaseTime};
use text::lang::Text;
use text::text;

/// Where spans go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtlpTarget {
    /// `http://collector:4318/v1/traces`
    pub url: String,
    pub headers: Vec<(String, String)>,
    service: String,
    /// Of the resource.
    attributes: Vec<(String, String)>,
    /// The trace and the span of who started us.
    parent: Option<(String, String)>,
}

impl OtlpTarget {
    /// As the standard variables say. None: they ask for nothing.
    ///
    /// # Errors
    /// What they ask for and cannot be done, in words.
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Option<OtlpTarget>, Text> {
        let given = |name: &str| {
            variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
        };
        let either = |of_traces: &str, general: &str| given(of_traces).or_else(|| given(general));
        let is_off = given("OTEL_SDK_DISABLED").is_some_and(|off| off.eq_ignore_ascii_case("true"))
            || given("OTEL_TRACES_EXPORTER").is_some_and(|which| which == "none");
        let url = given("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or_else(|| {
            let base = given("OTEL_EXPORTER_OTLP_ENDPOINT")?;
            Some(format!("{}/v1/traces", base.trim_end_matches('/')))
        });
        let Some(url) = url.filter(|_| !is_off) else { return Ok(None) };
        let protocol = either("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL");
        if protocol.as_deref() == Some("grpc") {
            return Err(text!(
                "no spans are sent: OTEL_EXPORTER_OTLP_PROTOCOL=grpc, but only OTLP over HTTP is spoken (port 4318 of a collector)",
                "不发送 span：OTEL_EXPORTER_OTLP_PROTOCOL=grpc，而这里只支持 OTLP/HTTP（collector 的 4318 端口）"
            ));
        }
        if !url.starts_with("http://") {
            let url = without_secrets(&url);
            return Err(text!(
                "no spans are sent: the OTLP endpoint is {url}, but only http:// is spoken (a collector on the node or in the pod can pass them on)",
                "不发送 span：OTLP 端点为 {url}，而这里只支持 http://（可由节点或 Pod 内的 collector 转发）"
            ));
        }
        let headers = either("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS");
        let attributes = pairs(&given("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default());
        let named = attributes.iter().find(|(key, _)| key == "service.name");
        let service = given("OTEL_SERVICE_NAME").or_else(|| named.map(|(_, name)| name.clone()));
        Ok(Some(OtlpTarget {
            url,
            headers: pairs(&headers.unwrap_or_default()),
            service: service.unwrap_or_else(|| "ranklaunch".to_owned()),
            attributes,
            parent: given("TRACEPARENT").as_deref().and_then(parent),
        }))
    }
}

/// `key=value,key=value`, values percent-encoded.
fn pairs(text: &str) -> Vec<(String, String)> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    let pairs = pairs.map(|(key, value)| (key.trim().to_owned(), decoded(value.trim())));
    pairs.filter(|(key, _)| !key.is_empty()).collect()
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..2).filter(|_| *first == b'%');
        let code = code.and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// `00-<trace>-<span>-01`
fn parent(text: &str) -> Option<(String, String)> {
    let mut parts = text.split('-');
    let (version, trace, span) = (parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |text: &str, length| {
        text.len() == length
            && text.bytes().all(|byte| byte.is_ascii_hexdigit())
            && text.bytes().any(|byte| byte != b'0')
    };
    (version.len() == 2 && is_hex(trace, 32) && is_hex(span, 16))
        .then(|| (trace.to_ascii_lowercase(), span.to_ascii_lowercase()))
}

fn id(bytes: usize, of: &str) -> String {
    Blake2s256::digest(of.as_bytes()).iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}

/// What began after the end of the attempt before: a span for it, and one for each of its phases.
/// The nodes of a run have one trace; who is refused before there is a run has one of its own.
pub fn spans_json(target: &OtlpTarget, status: &NodeStatus, phases: &[PhaseTime]) -> Option<Value> {
    let (last, before) = phases.split_last()?;
    let ended_before = before.iter().rposition(|one| one.phase == Phase::Finishing);
    let phases = phases.get(ended_before.map_or(0, |at| at + 1)..)?;
    let first = phases.first()?;
    let run = status.run.as_ref();
    let name = match run {
        Some(run) => format!("node {} attempt {}", run.node, run.attempt),
        None => "launch".to_owned(),
    };
    let NodeStatus { host, agent_pid, started_ms, .. } = status;
    let launcher = format!("{host} {agent_pid} {started_ms}");
    let run_id = run.and_then(|run| run.run_id.clone()).unwrap_or_else(|| launcher.clone());
    let place = run.map(|run| (run.node, run.task));
    let own = format!("{run_id} {launcher} {place:?} {}", first.began_ms);
    let trace = match &target.parent {
        Some((trace, _)) => trace.clone(),
        None => id(16, &format!("trace {run_id}")),
    };
    let root = id(8, &format!("attempt {own}"));
    let nanos = |ms: u64| format!("{ms}000000");
    let ended = |one: &PhaseTime| nanos(one.ended_ms.unwrap_or(status.at_ms));
    let mut spans = vec![json!({
        "traceId": trace,
        "spanId": root,
        "name": name,
        "kind": 1,
        "startTimeUnixNano": nanos(first.began_ms),
        "endTimeUnixNano": ended(last),
        "attributes": of_attempt(status),
        "status": of_end(status.end.as_ref()),
    })];
    if let (Some((_, span)), Some(fields)) =
        (&target.parent, spans.first_mut().and_then(Value::as_object_mut))
    {
        fields.insert("parentSpanId".to_owned(), json!(span));
    }
    spans.extend(phases.iter().enumerate().map(|(at, one)| {
        json!({
            "traceId": trace,
            "spanId": id(8, &format!("phase {own} {at} {}", one.began_ms)),
            "parentSpanId": root,
            "name": one.phase.name(),
            "kind": 1,
            "startTimeUnixNano": nanos(one.began_ms),
            "endTimeUnixNano": ended(one),
            "status": {},
        })
    }));
    // Each key once, as OTLP has it. What the user says of the resource wins.
    let mut resource = BTreeMap::from([
        ("host.name", status.host.as_str()),
        ("service.version", status.version.as_str()),
    ]);
    resource.extend(target.attributes.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    resource.insert("service.name", &target.service);
    let resource: Vec<Value> =
        resource.into_iter().map(|(key, value)| attribute(key, value)).collect();
    let scope = json!({ "name": env!("CARGO_PKG_NAME"), "version": status.version });
    Some(json!({ "resourceSpans": [{
        "resource": { "attributes": resource },
        "scopeSpans": [{ "scope": scope, "spans": spans }],
    }]}))
}

fn attribute(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

fn of_attempt(status: &NodeStatus) -> Vec<Value> {
    let number =
        |key: &str, value: i64| json!({ "key": key, "value": { "intValue": value.to_string() } });
    let mut attributes = Vec::new();
    if let Some(run) = &status.run {
        attributes.extend(run.run_id.iter().map(|id| attribute("ranklaunch.run_id", id)));
        attributes.extend([
            attribute("ranklaunch.engine", &run.engine),
            number("ranklaunch.attempt", run.attempt.into()),
            number("ranklaunch.node", run.node.into()),
            number("ranklaunch.nodes", run.nodes.into()),
            number("ranklaunch.world_size", run.world_size.into()),
        ]);
    }
    if let Some(end) = &status.end {
        attributes.push(number("ranklaunch.exit_code", end.code.into()));
        attributes.push(attribute("ranklaunch.id", &end.id));
        attributes.extend(end.cause.iter().map(|cause| attribute("ranklaunch.cause", cause)));
    }
    attributes
}

/// 1 is fine, 2 is an error.
fn of_end(end: Option<&EndStatus>) -> Value {
    match end {
        Some(end) if end.code == 0 => json!({ "code": 1 }),
        Some(end) => json!({ "code": 2, "message": end.text.en }),
        None => json!({}),
    }
}
