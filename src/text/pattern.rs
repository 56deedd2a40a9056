//! Regular expressions over bytes: all patterns of this program are compiled here.
//!
//! Unicode is off: the searched text may be any bytes, and the tables that `\d`, `\w` and `(?i)` would need are not
//! in the executable. Tests have these tables through their own dependencies, so a pattern that is compiled elsewhere
//! would work only in tests. `clippy.toml` forbids that.

use regex::bytes::{Regex, RegexBuilder};

use crate::lang::Text;
use crate::text;

/// Compiles a pattern: `\d`, `\w`, `\b` and `(?i)` mean ASCII, other letters mean their bytes.
pub fn compile(pattern: &str) -> Result<Regex, regex::Error> {
    of_bytes(pattern).build()
}

/// Compiles a pattern from elsewhere. The compiled pattern may take at most `limit` bytes.
pub fn compile_within(limit: usize, pattern: &str) -> Result<Regex, regex::Error> {
    of_bytes(pattern).size_limit(limit).build()
}

fn of_bytes(pattern: &str) -> RegexBuilder {
    #[expect(clippy::disallowed_methods, reason = "the one place")]
    let mut builder = RegexBuilder::new(pattern);
    builder.unicode(false);
    builder
}

/// The library's reason why a pattern is invalid, in one line.
pub fn flaw(error: &regex::Error) -> String {
    // The lines above the last one point at the place with a caret.
    let error = error.to_string();
    error.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// The syntax that a pattern may use.
pub fn syntax() -> Text {
    text!(
        "write it in the syntax of Rust's regex crate, for bytes: no look-around, no back-references, no \\p{{…}}; letters other than ASCII in brackets are (?u:[…])",
        "请按 Rust 的 regex 库的语法书写，按字节匹配：不支持环视、反向引用和 \\p{{…}}；方括号中的非 ASCII 字符请写成 (?u:[…])"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_ascii_and_other_letters_are_bytes() {
        for (pattern, line, holds) in [
            (r"^step \d+$", "step 12", true),
            // A Devanagari digit and a long s would match with Unicode.
            (r"^step \d+$", "step \u{966}", false),
            (r"(?i)^STEP", "step", true),
            (r"(?i)^STEP", "\u{17f}tep", false),
            (r"第\d+步", "第3步", true),
            (r"(?i)错误 OOM", "错误 oom", true),
            (r"^(?u:[步轮])$", "轮", true),
            (r"\w", "步", false),
        ] {
            let compiled = compile(pattern).expect(pattern);
            assert_eq!(compiled.is_match(line.as_bytes()), holds, "{pattern} in {line}");
        }
    }

    #[test]
    fn invalid_pattern_gives_a_one_line_reason() {
        for (pattern, what) in [
            ("(", "unclosed group"),
            ("[步]", "Unicode not allowed here"),
            (r"\p{L}", "Unicode not allowed here"),
            (r"(?:\d{1000}){1000}", "Compiled regex exceeds size limit of 10485760 bytes."),
        ] {
            assert_eq!(flaw(&compile(pattern).expect_err(pattern)), what);
        }
        assert!(compile_within(100, "a{1000}").is_err() && compile("a{1000}").is_ok());
    }
}
