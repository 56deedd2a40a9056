//! The URL of a service, and the first line of its answer.

use text::mask::mask_value;

/// A URL as it may be quoted: it may hold a password or a token.
pub(super) fn without_secrets(url: &str) -> String {
    mask_value("", url.as_ref()).to_string_lossy().into_owned()
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

/// Whether the first line of an answer has a code of success.
pub(super) fn is_success(line: &str) -> bool {
    let code = line.split(' ').nth(1).unwrap_or_default();
    code.len() == 3 && code.starts_with('2')
}
