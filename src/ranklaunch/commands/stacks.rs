//! `ranklaunch stacks`: shows the present activity of a running job's ranks.

use super::output::{print, refuse, show};
use super::running_job::{none, refusal_of, silent, unanswered};
use super::which_run::running;
use linux::host::Host;
use monitor::socket::{self, Answer, Ask, Job, JobStacks, NodeStacks, Selection, Unanswered};
use report::stacks_view;
use settings::cli::{Options, ReportFormat, Stacks};
use text::lang::{Lang, Text, cause};
use text::ranges::listed;
use text::rank::GlobalRank;
use text::text;
use verdict::{Id, Refusal};

pub(crate) fn stacks(asked: &Stacks) -> i32 {
    let options = Options { lang: asked.lang.clone(), ..Options::default() };
    let lang = options.language(&Host::live());
    match collected(asked, lang) {
        Ok(Found { job, stacks }) => {
            match asked.format {
                ReportFormat::Text => show(&stacks_view::text(&job, &stacks, lang)),
                ReportFormat::Json => print(format!("{:#}\n", stacks_view::json(&job, &stacks))),
            }
            0
        }
        Err(refusal) => refuse(&refusal, lang),
    }
}

struct Found {
    job: Job,
    stacks: JobStacks,
}

fn collected(asked: &Stacks, lang: Lang) -> Result<Found, Refusal> {
    let wanted = numbers(asked)?;
    let mut job = running(asked.run.as_deref(), asked.log_dir.as_deref())?;
    job.tell_owner(lang);
    // If the nodes do not know each other, the agent of that node has to be asked.
    job.agents.sort_by_key(|(_, job)| Some(job.node) != wanted.node);
    let selection = Selection { node: wanted.node, ranks: wanted.rank.into_iter().collect() };
    let mut found: Option<Found> = None;
    let mut failed = None;
    for (agent, own) in job.agents {
        match socket::ask(&agent, &Ask::Stacks(selection.clone())) {
            Ok(Answer::Stacks(more)) => {
                let reaches_all = more.reaches_all;
                match &mut found {
                    Some(found) => found.stacks.nodes.extend(more.nodes),
                    None => found = Some(Found { job: own, stacks: more }),
                }
                if reaches_all {
                    break;
                }
            }
            Ok(other) => failed = Some(unanswered(&agent, &refusal_of(&other))),
            Err(error) => failed = Some(silent(&agent, &cause(&error))),
        }
    }
    match (found, failed) {
        (Some(found), _) => is_there(found, &wanted),
        (None, Some(refusal)) => Err(refusal),
        (None, None) => Err(none(None, &[], None, None)),
    }
}

/// Refuses a node or a rank without any answer.
fn is_there(found: Found, wanted: &Wanted) -> Result<Found, Refusal> {
    let Found { job, stacks } = &found;
    let of_node = |one: &&NodeStacks| wanted.node.is_none_or(|node| node == one.job.node);
    let mut missing: Vec<Text> = stacks
        .unanswered
        .iter()
        .map(|Unanswered { who, why }| {
            let (Text { en, zh }, Text { en: why_en, zh: why_zh }) = (who, why);
            text!("{en}: {why_en}", "{zh}：{why_zh}")
        })
        .collect();
    if !stacks.reaches_all {
        missing.push(stacks_view::only_here());
    }
    let join = |of: fn(&Text) -> &str, between: &str| {
        missing.iter().map(of).collect::<Vec<_>>().join(between)
    };
    let (why_en, why_zh) = (join(|text| &text.en, "; "), join(|text| &text.zh, "；"));
    if let Some(node) = wanted.node.filter(|_| stacks.nodes.iter().filter(of_node).count() == 0) {
        let nodes = job.nodes;
        let beyond = node >= nodes;
        let last = nodes.saturating_sub(1);
        return Err(Refusal::new(
            Id::StacksPlace,
            match beyond {
                true => text!(
                    "--node asks for node {node}, but the job has nodes 0 to {last}",
                    "--node 要求节点 {node}，但该任务只有节点 0 至 {last}"
                ),
                false => text!(
                    "node {node} shows no stacks ({why_en})",
                    "节点 {node} 没有给出栈（{why_zh}）"
                ),
            },
            match beyond {
                true => text!("name one of these", "请指定其中一个"),
                false => text!(
                    "run ranklaunch stacks on that node, such as by kubectl exec into its pod",
                    "请在该节点上运行 ranklaunch stacks，例如用 kubectl exec 进入其 Pod"
                ),
            },
        ));
    }
    let ranks = stacks.nodes.iter().filter(of_node).flat_map(|one| &one.job.ranks).copied();
    let mut running: Vec<GlobalRank> = ranks.collect();
    running.sort_unstable();
    if let Some(rank) = wanted.rank.filter(|rank| !running.contains(rank)) {
        let listed = listed(running.iter().map(|rank| rank.0), '-');
        let (mut en, mut zh) = match running.is_empty() {
            true => ("no rank runs".to_owned(), "没有正在运行的 rank".to_owned()),
            false => (format!("ranks {listed} run"), format!("正在运行的 rank 为 {listed}")),
        };
        if let Some(node) = wanted.node {
            (en, zh) = (format!("{en} on node {node}"), format!("节点 {node} 上{zh}"));
        }
        if !missing.is_empty() {
            (en, zh) = (format!("{en}; {why_en}"), format!("{zh}；{why_zh}"));
        }
        return Err(Refusal::new(
            Id::StacksPlace,
            text!("rank {rank} was not found: {en}", "未找到 rank {rank}：{zh}"),
            text!(
                "name one of these; a rank that has ended has no stack",
                "请指定其中一个；已经结束的 rank 没有栈"
            ),
        ));
    }
    Ok(found)
}

struct Wanted {
    node: Option<u32>,
    rank: Option<GlobalRank>,
}

fn numbers(asked: &Stacks) -> Result<Wanted, Refusal> {
    let number = |flag: &str, value: &Option<std::ffi::OsString>| {
        let Some(value) = value else { return Ok(None) };
        let value = value.to_string_lossy();
        value.parse::<u32>().map(Some).map_err(|_| {
            Refusal::new(
                Id::StacksPlace,
                text!("{flag} `{value}` is not a number", "{flag} `{value}` 不是数字"),
                text!(
                    "write a number from 0, such as {flag} 3",
                    "请写从 0 开始的数字，例如 {flag} 3"
                ),
            )
        })
    };
    let rank = number("--rank", &asked.rank)?.map(GlobalRank);
    Ok(Wanted { node: number("--node", &asked.node)?, rank })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_rank_number_is_refused() {
        let asked = |rank: &str| Stacks {
            run: None,
            log_dir: None,
            node: None,
            rank: Some(rank.into()),
            format: ReportFormat::Text,
            lang: None,
        };
        assert_eq!(numbers(&asked("7")).ok().and_then(|wanted| wanted.rank), Some(GlobalRank(7)));
        for wrong in ["-1", "x", "", "99999999999"] {
            let refusal = numbers(&asked(wrong)).err().expect(wrong);
            assert_eq!(refusal.id, Id::StacksPlace);
            assert!(refusal.text.en.contains(wrong), "{}", refusal.text.en);
        }
    }
}
