//! A rank that holds the others back, for people and for agent.jsonl.

use serde_json::{Value, json};

use monitor::watch::{Slow, SlowNews};
use text::lang::Text;
use text::text;

/// Maximum number of reasons that a line names; the event has all.
const MOST_REASONS: usize = 2;

/// One line. `node`: the node of the rank, which shows the reasons.
pub fn line(news: &SlowNews, node: u32) -> Text {
    let slow = match news {
        SlowNews::Slow(slow) => slow,
        SlowNews::Over(rank) => {
            return text!(
                "rank {rank} no longer holds the others back",
                "rank {rank} 不再拖慢其他 rank"
            );
        }
    };
    let Slow { rank, group, of, share, median_ms, lost, reasons } = slow;
    let (share, lost) = (share * 100.0, lost * 100.0);
    let (why, why_zh) = match reasons.as_deref() {
        None => (
            format!("node {node} did not answer what it shows"),
            format!("节点 {node} 未答复其上的情况"),
        ),
        Some([]) => (
            format!(
                "node {node} shows nothing abnormal: compare what the rank does between two collectives (ranklaunch stacks)"
            ),
            format!(
                "节点 {node} 上未见异常：请比较该 rank 在两次集合通信之间的工作（ranklaunch stacks）"
            ),
        ),
        Some(reasons) => {
            let words = |of: fn(&Text) -> &str| -> Vec<&str> {
                reasons.iter().take(MOST_REASONS).map(|reason| of(&reason.text)).collect()
            };
            let (en, zh) = (words(|text| text.en.as_ref()), words(|text| text.zh.as_ref()));
            (format!("node {node}: {}", en.join("; ")), format!("节点 {node}：{}", zh.join("；")))
        }
    };
    text!(
        "rank {rank} holds the others of group {group} back: they lose {lost:.0} % of the time, it comes last to {share:.0} % of {of} collectives, by {median_ms:.1} ms in the median; {why}",
        "rank {rank} 拖慢了组 {group} 的其他 rank：损失 {lost:.0} % 的时间，{of} 个集合通信中有 {share:.0} % 最后到达，中位数晚 {median_ms:.1} 毫秒；{why_zh}"
    )
}

/// The event of agent.jsonl: `slow`, or `slow_over`. `node`: the node of the rank.
pub fn event(news: &SlowNews, node: u32) -> Value {
    match news {
        SlowNews::Over(rank) => json!({ "message": "slow_over", "node": node, "rank": rank }),
        SlowNews::Slow(slow) => {
            let mut event = json!({ "message": "slow", "node": node });
            if let (Value::Object(event), Ok(Value::Object(fields))) =
                (&mut event, serde_json::to_value(slow))
            {
                event.extend(fields);
            }
            event
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use text::rank::GlobalRank;

    #[test]
    fn slow_rank_has_a_sentence_and_an_event() {
        let slow = Slow {
            rank: GlobalRank(3),
            group: "default_pg".to_owned(),
            of: 200,
            share: 0.97,
            median_ms: 20.4,
            lost: 0.31,
            reasons: Some(Vec::new()),
        };
        let news = SlowNews::Slow(slow.clone());
        let text = line(&news, 1);
        assert!(text.en.starts_with("rank 3 holds the others of group default_pg back: they lose 31 % of the time, it comes last to 97 % of 200 collectives, by 20.4 ms in the median; node 1 shows nothing"), "{}", text.en);
        assert!(text.zh.contains("拖慢") && text.zh.contains("中位数晚 20.4 毫秒"), "{}", text.zh);
        let event = event(&news, 1);
        assert_eq!(
            (&event["message"], &event["node"], &event["rank"]),
            (&json!("slow"), &json!(1), &json!(3))
        );
        assert_eq!((&event["lost"], &event["reasons"]), (&json!(0.31), &json!([])));
        let unknown = line(&SlowNews::Slow(Slow { reasons: None, ..slow }), 1);
        assert!(unknown.en.ends_with("; node 1 did not answer what it shows"), "{}", unknown.en);
    }
}
