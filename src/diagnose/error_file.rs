//! The record that torch's `@record` makes of the exception that ended a process:
//! `{"message": {"message": "ValueError: words", "extraInfo": {"py_callstack": "Traceback …",
//! "timestamp": "1763848800"}}}` (`torch/distributed/elastic/multiprocessing/errors`), where
//! handlers of users and older releases write a text in place of the inner object.

use serde_json::Value;

/// Content of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedException {
    /// The exception as Python prints it.
    pub text: String,
    /// Time of the record, in seconds since the epoch; the fraction is cut off.
    pub seconds: Option<u64>,
}

/// Reads a record. None if the record is cut, or the bytes are something else.
pub fn recorded_exception(bytes: &[u8]) -> Option<RecordedException> {
    let record: Value = serde_json::from_slice(bytes).ok()?;
    let message = &record["message"];
    let more = &message["extraInfo"];
    let words = message.as_str().or_else(|| message["message"].as_str());
    let stack = more["py_callstack"].as_str().filter(|stack| !stack.trim().is_empty());
    let text = match (stack, words) {
        (Some(stack), _) => stack.to_owned(),
        // Without a head, the line would count as words of a program, not as an exception.
        (None, Some(words)) if !words.trim().is_empty() => {
            format!("Traceback (most recent call last):\n{words}")
        }
        (None, _) => return None,
    };
    let stamp = [&more["timestamp"], &record["timestamp"]].into_iter().find(|one| !one.is_null());
    let seconds =
        stamp.and_then(|stamp| stamp.as_u64().or_else(|| stamp.as_str()?.trim().parse().ok()));
    Some(RecordedException { text, seconds })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(record: &Value) -> Option<RecordedException> {
        recorded_exception(record.to_string().as_bytes())
    }

    #[test]
    fn records_of_torch_and_of_handlers_are_read() {
        let stack =
            "Traceback (most recent call last):\n  File \"a.py\", line 2, in main\nValueError: no";
        let torch = json!({ "message": {
            "message": "ValueError: no",
            "extraInfo": { "py_callstack": stack, "timestamp": "1763848800" },
        }});
        let seconds = Some(1_763_848_800);
        assert_eq!(read(&torch), Some(RecordedException { text: stack.to_owned(), seconds }));
        let headed = "Traceback (most recent call last):\nValueError: no".to_owned();
        for (other, seconds) in [
            (json!({ "message": "ValueError: no", "timestamp": 7 }), Some(7)),
            (json!({ "message": { "message": "ValueError: no", "errorCode": 1 } }), None),
            (
                json!({ "message": { "message": "ValueError: no", "extraInfo": { "py_callstack": " " } } }),
                None,
            ),
        ] {
            assert_eq!(read(&other), Some(RecordedException { text: headed.clone(), seconds }));
        }
        for nothing in [json!(null), json!([1]), json!({ "message": 3 }), json!({ "message": {} })]
        {
            assert_eq!(read(&nothing), None, "{nothing}");
        }
        let whole = torch.to_string();
        for cut in 0..whole.len() {
            assert_eq!(recorded_exception(&whole.as_bytes()[..cut]), None, "{cut}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = recorded_exception(&bytes);
        }
    }
}
