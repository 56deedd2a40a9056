//! Splits `HOST:PORT` in the forms of users and platforms.

/// `host`, `host:port`, `[v6]:port`, bare v6 → host and port as written, both unchecked.
pub fn split(value: &str) -> (&str, Option<&str>) {
    let value = value.trim();
    if let Some(inner) = value.strip_prefix('[')
        && let Some((host, rest)) = inner.split_once(']')
    {
        return (host, rest.strip_prefix(':'));
    }
    match value.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') => (host, Some(port)),
        _ => (value, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_split_at_the_port_and_nowhere_else() {
        let table = [
            ("job-worker-0:23456", ("job-worker-0", Some("23456"))),
            ("10.0.0.1", ("10.0.0.1", None)),
            ("[fd00::1]:29400", ("fd00::1", Some("29400"))),
            ("fd00::1", ("fd00::1", None)),
            ("host:", ("host", Some(""))),
        ];
        for (value, expected) in table {
            assert_eq!(split(value), expected, "{value}");
        }
    }
}
