//! Finds secrets beside their names: in URLs (user and password, tokens and signatures in the
//! query, the path of a webhook), in `NAME=value`, and in program text.

use super::names::{has, hides, is_secret_name, is_variable};
use super::spans::Spans;

/// Parameters of signed URLs (AWS, Google, Azure, CloudFront) and of OAuth; in lower case.
const PARAMETERS: &str = "\
    sig signature q-signature x-amz-signature x-amz-credential x-amz-security-token \
    x-goog-signature x-goog-credential awsaccesskeyid key-pair-id code hmac sas";

/// Hosts whose path is the secret, and the part of the path before it.
const WEBHOOKS: &[(&str, &str)] = &[
    ("hooks.slack.com", "/services/"),
    ("hooks.slack.com", "/workflows/"),
    ("hooks.slack.com", "/triggers/"),
    ("discord.com", "/api/webhooks/"),
    ("discordapp.com", "/api/webhooks/"),
    ("api.telegram.org", "/bot"),
    ("open.feishu.cn", "/open-apis/bot/v2/hook/"),
    ("open.larksuite.com", "/open-apis/bot/v2/hook/"),
];

const SCHEME: &str = "://";

/// Characters that end a URL.
fn ends_url(c: char) -> bool {
    c.is_whitespace() || "\"'`|<>\\".contains(c)
}

/// Marks the secrets of all URLs in a text that begins at `at`.
pub(super) fn urls(spans: &mut Spans, at: usize, text: &str) {
    let mut from = 0;
    while let Some(found) = text.get(from..).and_then(|rest| rest.find(SCHEME)) {
        let start = from + found + SCHEME.len();
        let rest = text.get(start..).unwrap_or_default();
        // Up to the scheme of the next URL in a list.
        let next = rest.find(SCHEME).unwrap_or(rest.len());
        let url = rest.get(..next).unwrap_or_default();
        let url = url.get(..url.find(ends_url).unwrap_or(url.len())).unwrap_or_default();
        let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        let url = if url.len() == next && next < rest.len() {
            url.trim_end_matches(is_scheme)
        } else {
            url
        };
        one(spans, at + start, url);
        from = start + url.len();
    }
}

/// One URL after its scheme.
fn one(spans: &mut Spans, at: usize, url: &str) {
    let is_end = |c: char| "/?#".contains(c);
    let mut authority = url.find(is_end).unwrap_or(url.len());
    let before = url.get(..authority).unwrap_or_default();
    // A password with a slash: the text after the colon is no port.
    if !before.contains('@')
        && let Some((_, port)) = before.rsplit_once(':')
        && port.chars().any(|c| !c.is_ascii_digit())
        && !before.starts_with('[')
        && let Some(user) = url.rfind('@')
    {
        authority = user + 1;
    }
    let user = url.get(..authority).and_then(|authority| authority.rfind('@'));
    if let Some(user) = user {
        spans.hide(at, user);
    }
    let host_at = user.map_or(0, |user| user + 1);
    let path_at = url.get(host_at..).and_then(|host| host.find(is_end)).map(|path| path + host_at);
    let Some(path_at) = path_at else { return };
    let (host, path) = url.split_at(path_at);
    let host = host.get(host_at..).unwrap_or_default();
    for (known, before) in WEBHOOKS {
        if host.eq_ignore_ascii_case(known) && path.starts_with(before) {
            spans.hide(at + path_at + before.len(), path.len() - before.len());
            return;
        }
    }
    if let Some(query) = path.find(['?', '#']) {
        parameters(spans, at + path_at + query + 1, path.get(query + 1..).unwrap_or_default());
    }
}

/// `a=1&token=…`, including the part after `#`.
fn parameters(spans: &mut Spans, at: usize, query: &str) {
    let mut from = 0;
    for part in query.split(['&', ';', '#', '?']) {
        if let Some((name, value)) = part.split_once('=')
            && hides_parameter(name, value)
        {
            spans.hide(at + from + name.len() + 1, value.len());
        }
        from += part.len() + 1;
    }
}

fn hides_parameter(name: &str, value: &str) -> bool {
    let name = name.replace("%5F", "_").replace("%5f", "_").replace("%2D", "-").replace("%2d", "-");
    is_parameter(&name) || (is_secret_name(&name) && hides(&name, value))
}

/// Whether a parameter of this name belongs to a signature or to OAuth.
fn is_parameter(name: &str) -> bool {
    has(PARAMETERS, &name.to_ascii_lowercase())
}

/// `user:password@host` without a scheme: the whole word, or nothing.
pub(super) fn user(spans: &mut Spans, at: usize, word: &str) {
    let Some((user, host)) = word.rsplit_once('@') else { return };
    let Some((name, password)) = user.split_once(':') else { return };
    let is_user = name.chars().all(|c| c.is_ascii_alphanumeric() || "._+-%".contains(c));
    // `image:tag@sha256:…` is no user.
    let is_host = host.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[')
        && !host.starts_with("sha256:");
    let is_password = !password.is_empty() && !password.contains(['/', '=']);
    if is_user && is_host && is_password {
        spans.hide(at, user.len());
    }
}

/// Marks `NAME=value` in a word that may hold several: `ALL,HF_TOKEN=x`, `Server=h;Password=x`.
pub(super) fn pairs(spans: &mut Spans, at: usize, word: &str) {
    const BETWEEN: &[char] = &[',', ';', '&'];
    let is_part = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    // `?sv=1&sig=x` without its URL.
    let is_query = word.contains(['&', '?']);
    let mut from = 0;
    while let Some(found) = word.get(from..).and_then(|rest| rest.find('=')) {
        let equals = from + found;
        from = equals + 1;
        let before = word.get(..equals).unwrap_or_default();
        let name = before.get(before.trim_end_matches(is_part).len()..).unwrap_or_default();
        let rest = word.get(from..).unwrap_or_default();
        let is_parameter = is_query && is_parameter(name);
        if name.is_empty() || !(is_parameter || is_secret_name(name)) {
            continue;
        }
        // The value extends to the next pair.
        let ends = rest.match_indices(BETWEEN).find(|(end, _)| {
            let after = rest.get(end + 1..).unwrap_or_default();
            let next = after.get(..after.len() - after.trim_start_matches(is_part).len());
            next.is_some_and(|next| {
                next.is_empty() && after.is_empty()
                    || after.get(next.len()..).is_some_and(|after| after.starts_with('='))
            })
        });
        let end = ends.map_or(rest.len(), |(end, _)| end);
        let value = rest.get(..end).unwrap_or_default();
        if is_parameter || hides(name, value) {
            // `{HF_TOKEN=x,}`, `"A_KEY=x"`
            let closed = value.trim_end_matches(['}', ')', ']', ',']);
            let inside = if closed.is_empty() { value } else { closed };
            spans.hide(at + from, inside.len());
            from += end;
        }
    }
}

/// Marks quoted strings after a secret name and `=`, `:` or `,`: `login(key="…")`,
/// `os.environ["HF_TOKEN"] = "…"` and `"api_key": "…"` in any language.
pub(super) fn code(spans: &mut Spans, at: usize, text: &str) {
    let mut from = 0;
    while let Some(found) = text.get(from..).and_then(|rest| rest.find(['"', '\''])) {
        let open = from + found;
        let rest = text.get(open + 1..).unwrap_or_default();
        let quote = text.get(open..=open).unwrap_or_default();
        let before = text.get(..open).unwrap_or_default();
        let unescaped = before.trim_end_matches('\\');
        let Some(length) = closed(rest, quote, before.len() - unescaped.len()) else {
            from = open + 1;
            continue;
        };
        let inside = rest.get(..length).unwrap_or_default();
        let name = name_before(unescaped);
        let is_argument = || takes_secret(unescaped) && !inside.contains("://");
        // `("HF_TOKEN", "API_KEY")` is a list of names.
        let hidden = !is_variable(inside)
            && (name.is_some_and(|name| is_secret_name(name) && hides(name, inside))
                || is_argument());
        if hidden {
            spans.hide(at + open + 1, length);
        }
        // A quote may open or close, so each is tried as an opening one.
        from = if hidden { open + 1 + length + 1 } else { open + 1 };
    }
}

/// Whether the text ends in a call that takes a secret: `login(`, `login(u, `, `set_api_key(`.
fn takes_secret(text: &str) -> bool {
    let near = text.len().saturating_sub(LONGEST_CALL);
    let near = (near..text.len()).find_map(|at| text.get(at..)).unwrap_or_default();
    let Some((called, arguments)) = near.rsplit_once('(') else { return false };
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let function = called.get(called.trim_end_matches(is_part).len()..).unwrap_or_default();
    let sets = ["set_", "save_"].iter().find_map(|verb| function.strip_prefix(verb));
    let is_positional = arguments.is_empty() || arguments.trim_end().ends_with(',');
    is_positional
        && !arguments.contains(')')
        && (function.ends_with("login") || sets.is_some_and(is_secret_name))
}

/// The length of a call before its secret.
const LONGEST_CALL: usize = 100;

/// Longer than any secret in a program; bounds the search for an unclosed quote.
const LONGEST: usize = 16 << 10;

/// Position of the closing quote of a string, whose opening quote has this many backslashes.
fn closed(text: &str, quote: &str, escapes: usize) -> Option<usize> {
    let mut slashes = 0;
    for (at, c) in text.char_indices().take(LONGEST) {
        let ends = if escapes == 0 { slashes % 2 == 0 } else { slashes == escapes };
        match c {
            '\\' => slashes += 1,
            c if quote.starts_with(c) && ends => return Some(at - escapes),
            _ => slashes = 0,
        }
    }
    None
}

/// The name in `name =`, `["name"] =`, `"name":` and `("name",` at the end of a text.
fn name_before(text: &str) -> Option<&str> {
    let text = text.trim_end();
    // An `r"…"`, a `b'…'`.
    let text =
        text.strip_suffix(['b', 'r', 'f', 'u']).filter(|t| t.ends_with(['=', ' '])).unwrap_or(text);
    let text = text.trim_end();
    let (before, is_pair) = match text.strip_suffix(['=', ':']) {
        Some(before) => (before, false),
        None => (text.strip_suffix(',')?, true),
    };
    let before = before.trim_end().trim_end_matches([']', ')']).trim_end();
    let quoted = before.trim_end_matches(['"', '\'']);
    let is_quoted = quoted.len() < before.len();
    if is_pair && !is_quoted {
        return None;
    }
    let quoted = quoted.trim_end_matches('\\');
    let is_part = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    let name = quoted.get(quoted.trim_end_matches(is_part).len()..)?;
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_its_secrets() {
        for (text, shown) in [
            ("http://user:abc@proxy:3128", "http://***@proxy:3128"),
            ("http://abc@proxy/x@y", "http://***@proxy/x@y"),
            ("http://user:a@b@proxy", "http://***@proxy"),
            ("http://user:a,b;c@proxy", "http://***@proxy"),
            ("http://user:a/b@proxy/x", "http://***@proxy/x"),
            ("http://proxy:3128/a@b", "http://proxy:3128/a@b"),
            ("http://[::1]:3128/a@b", "http://[::1]:3128/a@b"),
            ("tcp://10.0.0.1:29500 x@y", "tcp://10.0.0.1:29500 x@y"),
            ("a://b:c@d,e://f:g@h", "a://***@d,e://***@h"),
            (
                "https://h/x?token=a&b=2#access_token=c",
                "https://h/x?token=***&b=2#access_token=***",
            ),
            ("https://h/x?max_tokens=7&page=2", "https://h/x?max_tokens=7&page=2"),
            ("https://h/?a=https://u:p@h2/x?sig=s", "https://h/?a=https://***@h2/x?sig=***"),
            ("https://hooks.slack.com/services/T/B/x", "https://hooks.slack.com/services/***"),
            ("https://hooks.slack.com/triggers/T/1/x", "https://hooks.slack.com/triggers/***"),
            (
                "https://open.larksuite.com/open-apis/bot/v2/hook/x",
                "https://open.larksuite.com/open-apis/bot/v2/hook/***",
            ),
            ("://", "://"),
            ("://@", "://@"),
        ] {
            let mut spans = Spans::default();
            urls(&mut spans, 0, text);
            assert_eq!(spans.apply(text), shown);
        }
    }
}
