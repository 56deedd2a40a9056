//! The status of another node as a function that a fuzzer feeds. Not part of the program.

use super::NodeStatus;
use text::fuzzing::assert_printable;

/// Maximum bytes of a text, with room for the replacement of a character.
const LONGEST: usize = 1024;

/// The status of another node as a viewer reads it. No text has control characters or is too long. Reading a
/// status again gives the same status.
pub fn status(data: &[u8]) -> bool {
    let Some(status) = NodeStatus::read(data) else { return false };
    let value = serde_json::to_value(&status).expect("JSON");
    texts(&value, &mut |text| {
        assert!(text.len() <= LONGEST && !text.contains(char::is_control), "{text:?}");
        assert_printable(text);
    });
    let again = NodeStatus::read(value.to_string().as_bytes()).expect("the same");
    // Numbers of any size survive unchanged.
    assert_eq!(serde_json::to_value(&again).expect("JSON"), value);
    true
}

fn texts(value: &serde_json::Value, check: &mut impl FnMut(&str)) {
    match value {
        serde_json::Value::String(text) => check(text),
        serde_json::Value::Array(all) => all.iter().for_each(|one| texts(one, check)),
        serde_json::Value::Object(all) => {
            for (key, one) in all {
                check(key);
                texts(one, check);
            }
        }
        _ => {}
    }
}
