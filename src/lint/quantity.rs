//! Parses Kubernetes quantities: `128Gi`, `500m`, `64k`, `1e9`.
//!
//! Takes text; gives thousandths, exact enough to compare. None if it is no quantity.

/// Thousandths of a unit (bytes, CPUs, devices). Saturates far above any real size.
pub(super) fn milli(text: &str) -> Option<u128> {
    let (number, unit) = split(text)?;
    let scale: u128 = match unit {
        "" => 1000,
        "n" | "u" => return milli(number).map(|_| 0),
        "m" => 1,
        "k" => 1000 * 1000,
        "M" => 1000 * 1000_u128.pow(2),
        "G" => 1000 * 1000_u128.pow(3),
        "T" => 1000 * 1000_u128.pow(4),
        "P" => 1000 * 1000_u128.pow(5),
        "E" => 1000 * 1000_u128.pow(6),
        "Ki" => 1000 << 10,
        "Mi" => 1000 << 20,
        "Gi" => 1000 << 30,
        "Ti" => 1000 << 40,
        "Pi" => 1000 << 50,
        "Ei" => 1000 << 60,
        _ => {
            let power: u32 = unit.strip_prefix(['e', 'E'])?.parse().ok()?;
            1000_u128.checked_mul(10_u128.checked_pow(power.min(18))?)?
        }
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && part.is_empty() || whole.len() > 18 || part.len() > 18 {
        return None;
    }
    let digits = |text: &str| match text {
        "" => Some(0),
        text if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse::<u128>().ok(),
        _ => None,
    };
    let fraction =
        digits(part)?.saturating_mul(scale) / 10_u128.pow(u32::try_from(part.len()).ok()?);
    Some(digits(whole)?.saturating_mul(scale).saturating_add(fraction))
}

/// Whole units, rounded down: bytes of memory, numbers of devices.
pub(super) fn whole(text: &str) -> Option<u64> {
    u64::try_from(milli(text)? / 1000).ok()
}

/// The number and its unit: `64k` → 64, k.
pub(super) fn split(text: &str) -> Option<(&str, &str)> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// Bytes in a readable unit: 256Gi, 64Mi, 512Ki, 12.
pub(super) fn shown(bytes: u64) -> String {
    [(1_u64 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")]
        .into_iter()
        .find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit))
        .map_or_else(|| bytes.to_string(), |(unit, name)| format!("{}{name}", bytes / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, expected) in [
            ("128Gi", Some(128 << 30)),
            ("64k", Some(64_000)),
            ("1.5Gi", Some(3 << 29)),
            ("500m", Some(0)),
            ("2000m", Some(2)),
            ("1e3", Some(1000)),
            ("4", Some(4)),
            ("0.5", Some(0)),
            ("+4", Some(4)),
            ("", None),
            ("Gi", None),
            ("4GB", None),
            ("4 Gi", None),
            ("-1", None),
            ("1.2.3", None),
            (".", None),
            ("1e999999999999", None),
            ("99999999999999999999999999999999999999999999", None),
        ] {
            assert_eq!(whole(text), expected, "{text}");
        }
        assert_eq!(milli("500m"), Some(500));
        assert_eq!(
            (shown(64 << 20), shown(7), shown(3 << 29)),
            ("64Mi".into(), "7".into(), "1536Mi".into())
        );
    }
}
