//! Posts the progress of a job to the status of its TrainJob (Kubeflow Trainer 2.2, KEP-2779).
//!
//! The controller puts three variables into every pod of a TrainJob: an address with https, and the paths of
//! a CA certificate and of a token that is renewed within the hour. A TLS client would add a tenth to the
//! executable, so the job's own Python posts.

use std::ffi::OsString;
use std::time::SystemTime;

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::watch::JobProgress;
use text::lang::Text;
use text::mask::mask_value;
use text::text;

pub(super) const URL: &str = "KUBEFLOW_TRAINER_SERVER_URL";
const CA: &str = "KUBEFLOW_TRAINER_SERVER_CA_CERT";
const TOKEN: &str = "KUBEFLOW_TRAINER_SERVER_TOKEN";

/// The program that Python runs; see its docstring.
const POST: &str = include_str!("post.py");

/// The endpoint that takes the status of a TrainJob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainJobTarget {
    url: HttpUrl,
    /// Paths of the CA certificate and of the token; empty if there is none.
    ca: String,
    token: String,
}

impl TrainJobTarget {
    /// None if this is not a pod of a TrainJob, or its TrainJob does not ask for a status.
    ///
    /// # Errors
    /// The reason why nothing can be posted to the address, as text.
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Option<TrainJobTarget>, Text> {
        let given = |name| variable(name).map(|value| value.trim().to_owned());
        let Some(url) = given(URL).filter(|url| !url.is_empty()) else { return Ok(None) };
        let parsed = HttpUrl::parse(&url).ok_or_else(|| {
            let url = mask_value("", url.as_ref());
            let url = url.to_string_lossy();
            text!(
                "no progress is posted: {URL}={url} is not of the form https://HOST:PORT/PATH",
                "不上报进度：{URL}={url} 不符合 https://HOST:PORT/PATH 的形式"
            )
        })?;
        let (ca, token) = (given(CA).unwrap_or_default(), given(TOKEN).unwrap_or_default());
        Ok(Some(TrainJobTarget { url: parsed, ca, token }))
    }

    /// The arguments and the variables with which Python posts a document.
    pub fn post(&self, document: &Value) -> ([&'static str; 4], Vec<(OsString, OsString)>) {
        let HttpUrl { host, port, path, is_tls } = &self.url;
        let variables = [
            ("HOST", host.clone()),
            ("PORT", port.to_string()),
            ("AUTHORITY", self.url.authority()),
            ("PATH", path.clone()),
            ("TLS", if *is_tls { "1" } else { "" }.to_owned()),
            ("CA", self.ca.clone()),
            ("TOKEN", self.token.clone()),
            ("BODY", document.to_string()),
        ];
        let variables = variables.map(|(name, value)| {
            (OsString::from(format!("RANKLAUNCH_POST_{name}")), OsString::from(value))
        });
        (["-I", "-S", "-c", POST], variables.into())
    }
}

/// Whether the first line of an answer says that the document was taken.
pub fn is_taken(answer: &str) -> bool {
    // Python reports its own failure in the same place.
    let code = answer.split(' ').nth(1).unwrap_or_default();
    answer.starts_with("HTTP/1.") && code.len() == 3 && code.starts_with('2')
}

/// `TrainJobTrainerStatus` of the API group trainer.kubeflow.org/v1alpha1, as its server takes it.
pub fn trainer_status(progress: &JobProgress, at: SystemTime) -> Value {
    let JobProgress { done, remaining, metrics } = progress;
    let metrics = metrics.iter().map(|(name, value)| json!({ "name": name, "value": value }));
    let metrics: Vec<Value> = metrics.collect();
    let at = OffsetDateTime::from(at).replace_nanosecond(0).ok();
    let mut status = json!({
        "progressPercentage": (done * 100.0).floor() as i32,
        "lastUpdatedTime": at.and_then(|at| at.format(&Rfc3339).ok()),
        "metrics": metrics,
    });
    if let (Some(left), Some(fields)) = (remaining, status.as_object_mut()) {
        let seconds = i32::try_from(left.as_secs()).unwrap_or(i32::MAX);
        fields.insert("estimatedRemainingSeconds".to_owned(), json!(seconds));
    }
    json!({ "trainerStatus": status })
}

/// A URL of HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HttpUrl {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) path: String,
    pub(super) is_tls: bool,
}

impl HttpUrl {
    /// None if the text is not an HTTP URL, or names a user.
    pub(super) fn parse(url: &str) -> Option<HttpUrl> {
        let of_tls = url.strip_prefix("https://");
        let rest = of_tls.or_else(|| url.strip_prefix("http://"))?;
        let (authority, path) = match rest.find(['/', '?']) {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let (host, port) = settings::split_endpoint(authority);
        let usual = if of_tls.is_some() { 443 } else { 80 };
        let port = port.map_or(Some(usual), |port| port.parse().ok())?;
        let odd = |text: &str| text.bytes().any(|byte| byte <= b' ' || byte == 0x7f);
        if host.is_empty() || host.contains('@') || odd(url) {
            return None;
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Some(HttpUrl { host: host.to_owned(), port, path, is_tls: of_tls.is_some() })
    }

    /// `service:8443`, `[::1]:8443`
    pub(super) fn authority(&self) -> String {
        let HttpUrl { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn controller_variables_define_the_target() {
        let target = |url: &str| {
            let url = url.to_owned();
            TrainJobTarget::of(move |name| match name {
                URL => Some(url.clone()),
                CA => Some("/var/run/secrets/kubeflow/trainer/ca.crt".to_owned()),
                _ => None,
            })
        };
        let found = target("https://trainer.kubeflow:8082/apis/x/status").expect("an address");
        let (args, variables) = found.expect("a target").post(&json!({ "a": 1 }));
        assert_eq!(args.first(), Some(&"-I"));
        let of = |name: &str| {
            let name = OsString::from(format!("RANKLAUNCH_POST_{name}"));
            let found = variables.iter().find(|(of, _)| *of == name);
            found.and_then(|(_, value)| value.to_str()).unwrap_or("-").to_owned()
        };
        assert_eq!(
            (of("HOST"), of("PORT"), of("TLS")),
            ("trainer.kubeflow".into(), "8082".into(), "1".into())
        );
        assert_eq!((of("PATH"), of("BODY")), ("/apis/x/status".into(), r#"{"a":1}"#.into()));
        assert_eq!(
            (of("CA"), of("TOKEN")),
            ("/var/run/secrets/kubeflow/trainer/ca.crt".into(), String::new())
        );
        assert_eq!(target(" "), Ok(None));
        let refused = target("ftp://x/").expect_err("no address").en;
        assert!(refused.contains("KUBEFLOW_TRAINER_SERVER_URL=ftp://x/"), "{refused}");
    }

    #[test]
    fn status_has_the_fields_of_the_api() {
        let progress = JobProgress {
            done: 0.429,
            remaining: Some(Duration::from_millis(795_900)),
            metrics: vec![("loss".to_owned(), "0.23".to_owned())],
        };
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_500);
        assert_eq!(
            trainer_status(&progress, at),
            json!({ "trainerStatus": {
                "progressPercentage": 42,
                "estimatedRemainingSeconds": 795,
                "lastUpdatedTime": "2023-11-14T22:13:20Z",
                "metrics": [{ "name": "loss", "value": "0.23" }],
            }})
        );
        let unknown = JobProgress { done: 1.0, remaining: None, metrics: Vec::new() };
        let status = trainer_status(&unknown, at);
        assert_eq!(status["trainerStatus"].get("estimatedRemainingSeconds"), None);
        assert_eq!(status["trainerStatus"]["progressPercentage"], 100);
    }

    #[test]
    fn only_2xx_answers_are_accepted() {
        for (answer, taken) in [
            ("HTTP/1.1 200 OK", true),
            ("HTTP/1.0 204", true),
            ("HTTP/1.1 403 Forbidden", false),
            ("SSLCertVerificationError: self-signed certificate", false),
            ("", false),
        ] {
            assert_eq!(is_taken(answer), taken, "{answer}");
        }
    }
}
