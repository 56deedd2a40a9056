//! Finds secrets in `NAME=value`, also several in one word.

use super::names::{hides, is_secret_name};
use super::spans::Spans;
use super::url;

/// Marks `NAME=value` in a word that may hold several: `ALL,HF_TOKEN=x`, `Server=h;Password=x`.
pub(super) fn mark(spans: &mut Spans, at: usize, word: &str) {
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
        let is_parameter = is_query && url::is_parameter(name);
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
