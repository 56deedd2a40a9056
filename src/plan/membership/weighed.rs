//! The use of each variable of the platform: used, or the reason why not.
//!
//! Takes the claims and the decisions; gives one line per claim, for `plan`. Decides nothing: a
//! claim is used if a decision names it as its source.

use crate::{Decision, WeighedEvidence};
use settings::contract::{Contract, Evidence, Field, Strength};
use text::lang::Text;
use text::text;

/// Each variable once, in the order of trust, then those that no proven platform reads.
pub fn weighed(contract: &Contract, decisions: &[Decision]) -> Vec<WeighedEvidence> {
    let evidence = &contract.evidence;
    let is_first = |(at, found): &(usize, &Evidence)| {
        evidence.iter().take(*at).all(|before| before.claim != found.claim)
    };
    let claims = evidence.iter().enumerate().filter(is_first).map(|(_, found)| {
        let uses = uses(contract, found, decisions);
        let (by, because) = match uses.first() {
            Some((_, by)) => {
                let what: Vec<&str> = uses.iter().map(|(what, _)| *what).collect();
                let (what, platform) = (what.join(", "), &by.platform);
                (*by, text!("{what}, by {platform}", "{what}，依据 {platform}"))
            }
            None => (found, why_not(contract, found, decisions)),
        };
        WeighedEvidence {
            platform: by.platform.clone(),
            field: Some(by.field),
            reading: Some(by.reading),
            claim: Some(by.claim.clone()),
            is_used: !uses.is_empty(),
            because,
        }
    });
    let unread = contract.unread.iter().map(|one| {
        let (platform, missing) = (&one.platform, one.missing.join(", "));
        WeighedEvidence {
            platform: platform.clone(),
            field: None,
            reading: None,
            claim: one.claim.clone(),
            is_used: false,
            because: if missing.is_empty() {
                text!(
                    "{platform} reads it only where an earlier variable is blank",
                    "{platform} 仅在前面的变量为空时读取它"
                )
            } else {
                text!(
                    "{platform} is not proven: it needs {missing}",
                    "{platform} 未得到证实：需要 {missing}"
                )
            },
        }
    });
    claims.chain(unread).collect()
}

/// The decisions that a claim may make.
fn decided_by(field: Field) -> &'static [&'static str] {
    match field {
        Field::Nnodes | Field::WorldSize | Field::Standalone | Field::Several => {
            &["nnodes", "world_size_counts"]
        }
        Field::NodeRank | Field::Rank => &["node_rank"],
        Field::MasterAddr => &["master_addr"],
        Field::MasterPort => &["master_port"],
        Field::RdzvEndpoint => &["master_addr", "master_port"],
        Field::RdzvBackend => &["rdzv"],
        Field::Nproc | Field::Offered | Field::TasksPerNode => &["nproc_per_node"],
        Field::GpuCount => &["device"],
        Field::Tasks => &["world_size"],
        Field::TaskRank => &["rank", "node_rank"],
        Field::TaskLocal => &["local_rank"],
        Field::Cpus => &["OMP_NUM_THREADS"],
        Field::JobId => &["rdzv_id"],
    }
}

/// The decisions whose source is this claim, each with the first evidence that may make it.
fn uses<'a>(
    contract: &'a Contract,
    found: &Evidence,
    decisions: &'a [Decision],
) -> Vec<(&'a str, &'a Evidence)> {
    let source = found.claim.to_string();
    let by = decisions.iter().filter(|decision| decision.source == source);
    by.filter_map(|decision| {
        let what = decision.what.as_str();
        let may =
            |one: &&Evidence| one.claim == found.claim && decided_by(one.field).contains(&what);
        contract.evidence.iter().find(may).map(|one| (what, one))
    })
    .collect()
}

fn why_not(contract: &Contract, found: &Evidence, decisions: &[Decision]) -> Text {
    if found.claim.is_blank() {
        return text!("it is empty, or the word for nothing", "值为空，或是表示空的词");
    }
    let of = |what: &str| decisions.iter().find(|one| one.what == what);
    match found.field {
        Field::JobId if of("rdzv_id").is_none() => {
            return text!(
                "only a c10d rendezvous without a muster needs the id of the job",
                "只有不集结的 c10d 会合才需要任务 ID"
            );
        }
        Field::RdzvBackend if of("rdzv").is_none() => {
            return text!(
                "the engine has no rendezvous of torchrun",
                "该引擎不使用 torchrun 的会合"
            );
        }
        Field::Several => {
            return text!(
                "it only tells that there may be other nodes",
                "它只表明可能还有其他节点"
            );
        }
        Field::GpuCount => {
            return text!(
                "the GPUs themselves are counted; it says that some have to be there",
                "GPU 数量以实际统计为准；它只表明节点应当有 GPU"
            );
        }
        Field::Tasks | Field::TaskRank | Field::TaskLocal | Field::TasksPerNode
            if of("local_rank").is_none() =>
        {
            return text!(
                "this command is not started once per rank",
                "该命令不是按 rank 逐个启动的"
            );
        }
        Field::Offered => {
            return text!(
                "an upper bound of nproc_per_node, not a request",
                "只是 nproc_per_node 的上限，并非请求"
            );
        }
        _ => {}
    }
    let Some(decision) = decided_by(found.field).iter().find_map(|what| of(what)) else {
        return text!("nothing was decided by it", "没有据此作出决定");
    };
    let Decision { what, value, source, .. } = decision;
    let is_winner = |other: &&Evidence| other.claim.to_string() == *source;
    match contract.evidence.iter().find(is_winner) {
        Some(other) if other.strength > found.strength => {
            let (winner, platform) = (kind(other.strength), &other.platform);
            let own = kind(found.strength);
            let (winner_en, winner_zh) = (winner.en, winner.zh);
            let (own_en, own_zh) = (own.en, own.zh);
            text!(
                "{source} of {platform} decides {what}: {winner_en} before {own_en}",
                "{what} 由 {platform} 的 {source} 决定：{winner_zh}优先于{own_zh}"
            )
        }
        Some(_) if must_agree(found.field) => {
            text!("{source} says the same", "与 {source} 一致")
        }
        Some(other) => {
            let platform = &other.platform;
            text!("{source} of {platform} is read first", "先读取 {platform} 的 {source}")
        }
        None => text!("{what} is {value} ({source})", "{what} 为 {value}（{source}）"),
    }
}

/// Claims of equal strength for these fields are refused if they contradict each other.
fn must_agree(field: Field) -> bool {
    matches!(field, Field::Nnodes | Field::NodeRank)
}

fn kind(strength: Strength) -> Text {
    match strength {
        Strength::Launcher => text!("a launcher's variable", "启动器的变量"),
        Strength::Profile => text!("the profile's platform", "配置文件描述的平台"),
        Strength::Specific => text!("a variable of one platform", "某一平台专用的变量"),
        Strength::Conventional => text!("a name that many tools use", "多种工具通用的名称"),
        Strength::Generic => text!("a generic name", "通用名称"),
        Strength::Hint => text!("a hint", "参考信息"),
    }
}
