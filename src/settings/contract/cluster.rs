//! Cluster descriptions in JSON: CLUSTER_SPEC of Vertex AI and of TonY, TF_CONFIG, AFO_ENV_CLUSTER_SPEC.
//!
//! Takes the text; gives the training hosts in the order of ranks, and the position of this
//! task. Parameter servers and evaluators are no nodes of a PyTorch job.

use serde_json::Value;

/// Training tasks in the order of ranks; the host of the chief is the master.
const ORDER: [&str; 5] = ["chief", "master", "workerpool0", "worker", "workerpool1"];

/// `host:port` of each node; empty if the text is no description.
pub(super) fn hosts(text: &str) -> Vec<String> {
    let Some(spec) = parsed(text) else { return Vec::new() };
    ORDER.iter().flat_map(|kind| of(&spec, kind)).collect()
}

/// The first of the [`hosts`]; empty without any.
pub(super) fn first(text: &str) -> String {
    hosts(text).into_iter().next().unwrap_or_default()
}

/// The position of this task among the [`hosts`].
pub(super) fn position(text: &str) -> Option<usize> {
    let spec = parsed(text)?;
    let task = spec.get("task").unwrap_or(&spec);
    let own = task.get("type").or_else(|| task.get("role"))?.as_str()?;
    let index = match task.get("index")? {
        Value::String(index) => index.parse().ok()?,
        index => usize::try_from(index.as_u64()?).ok()?,
    };
    let place = ORDER.iter().position(|kind| *kind == own)?;
    let before: usize = ORDER.iter().take(place).map(|kind| of(&spec, kind).len()).sum();
    (index < of(&spec, own).len()).then(|| before.saturating_add(index))
}

fn parsed(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok()
}

fn of(spec: &Value, kind: &str) -> Vec<String> {
    match spec.get("cluster").unwrap_or(spec).get(kind) {
        Some(Value::Array(list)) => {
            list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        }
        Some(Value::String(list)) => list.split(',').map(|host| host.trim().to_owned()).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn training_tasks_are_nodes_in_rank_order() {
        let spec = |kind: &str, index: &str| {
            format!(
                r#"{{"cluster":{{"ps":["p:1"],"worker":["w0:2","w1:2"],"chief":["c:2"]}},"task":{{"type":"{kind}","index":{index}}}}}"#
            )
        };
        assert_eq!(hosts(&spec("ps", "0")), ["c:2", "w0:2", "w1:2"]);
        for (kind, index, place) in [
            ("chief", "0", Some(0)),
            ("worker", "1", Some(2)),
            ("worker", "\"0\"", Some(1)),
            ("worker", "2", None),
            ("ps", "0", None),
            ("worker", "-1", None),
        ] {
            assert_eq!(position(&spec(kind, index)), place, "{kind} {index}");
        }
        let flat = r#"{"role":"worker","index":"1","worker":"w0:2, w1:2"}"#;
        assert_eq!((hosts(flat).join(" "), position(flat)), ("w0:2 w1:2".to_owned(), Some(1)));
        for broken in ["", "{", "[]", "{\"cluster\": 3}"] {
            assert_eq!((hosts(broken).len(), position(broken)), (0, None), "{broken}");
        }
    }
}
