//! The pages of the HTTP server.

use std::time::{Duration, Instant};

use serde_json::json;

use super::openmetrics::{Format, render};
use super::request::{Bad, Request, is_loopback};
use crate::status::{NodeStatus, Phase, StatusBoard};

/// Minimum age of a status before it is read again, so that a flood costs no more than that.
const FRESH: Duration = Duration::from_millis(200);

/// Answers requests from the board.
#[derive(Debug)]
pub(super) struct Pages {
    board: StatusBoard,
    /// Only requests under names of this machine are answered.
    only_loopback: bool,
    taken: Option<(Instant, NodeStatus)>,
}

impl Pages {
    pub(super) fn new(board: StatusBoard, only_loopback: bool) -> Pages {
        Pages { board, only_loopback, taken: None }
    }

    /// The whole answer to a request, with its head.
    pub(super) fn answer(&mut self, request: Result<Request, Bad>) -> Vec<u8> {
        let text = "text/plain; charset=utf-8";
        let (request, bad) = match request {
            Ok(request) => (request, None),
            Err(bad) => (Request::none(), Some(bad)),
        };
        let foreign = self.only_loopback
            && request.host.as_ref().is_some_and(|host| !host.is_empty() && !is_loopback(host));
        let (code, kind, body) = match (bad, request.path.as_str()) {
            (Some(Bad::Garbage), _) => {
                ("400 Bad Request", text, "not a request of HTTP/1.1\n".into())
            }
            (Some(Bad::TooLong), _) => {
                ("431 Request Header Fields Too Large", text, "the head is too long\n".into())
            }
            (Some(Bad::Method), _) => {
                ("405 Method Not Allowed", text, "only GET and HEAD are answered\n".into())
            }
            (None, _) if foreign => {
                let body =
                    "listens on a loopback address, so only its names are answered: localhost\n";
                ("403 Forbidden", text, body.into())
            }
            (None, "/") => ("200 OK", text, "/metrics\n/status\n/healthz\n/readyz\n".into()),
            (None, "/healthz") => ("200 OK", text, "ok\n".into()),
            (None, "/readyz") => {
                let phase = self.status().phase;
                let code =
                    if phase == Phase::Running { "200 OK" } else { "503 Service Unavailable" };
                (code, text, format!("{}\n", phase.name()))
            }
            (None, "/metrics") => {
                let format = Format::wanted(&request.accept);
                ("200 OK", format.media_type(), render(self.status(), format))
            }
            (None, "/status") => ("200 OK", "application/json", self.status_json()),
            (None, _) => {
                ("404 Not Found", text, "known are /metrics /status /healthz /readyz\n".into())
            }
        };
        let length = body.len();
        let allow = if bad == Some(Bad::Method) { "Allow: GET, HEAD\r\n" } else { "" };
        let mut answer = format!(
            "HTTP/1.1 {code}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{allow}\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
        );
        if !request.only_head {
            answer.push_str(&body);
        }
        answer.into_bytes()
    }

    fn status(&mut self) -> &NodeStatus {
        let taken = self.taken.take().filter(|(at, _)| at.elapsed() < FRESH);
        let taken = taken.unwrap_or_else(|| (Instant::now(), self.board.snapshot()));
        &self.taken.insert(taken).1
    }

    fn status_json(&mut self) -> String {
        let status = self.status();
        let goodput = status.ledger.goodput();
        let mut document = serde_json::to_value(status).unwrap_or_default();
        if let Some(fields) = document.as_object_mut() {
            fields.insert("goodput".to_owned(), json!(goodput));
        }
        format!("{document:#}\n")
    }
}

impl Request {
    fn none() -> Request {
        Request { path: String::new(), only_head: false, host: None, accept: String::new() }
    }
}
