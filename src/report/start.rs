//! The start-up block: the few values that a user checks first, each with its source.

use std::fmt::Write;

use crate::lang::Text;
use crate::plan::Plan;
use crate::settings::{LayoutRule, Settings};
use crate::text;
use crate::verdict::Warning;

use super::closing;
use super::plan_view;
use crate::columns::table;

/// The block, ending in a newline, followed by the warnings.
pub(crate) fn block(plan: &Plan, settings: &Settings) -> String {
    let lang = settings.lang;
    let mut out = String::new();
    let title = match &settings.profile {
        Some(profile) => format!("ranklaunch {} · {profile}", env!("CARGO_PKG_VERSION")),
        None => format!("ranklaunch {}", env!("CARGO_PKG_VERSION")),
    };
    let _ = writeln!(out, "── {title}");
    table(&mut out, rows(plan, settings));
    // A check for which the user set a severity is always shown.
    let is_remark = |warning: &&Warning| {
        warning.id.is_advice() && !settings.severities.contains_key(&warning.id)
    };
    let (remarks, telling): (Vec<&Warning>, Vec<&Warning>) =
        plan.warnings.iter().partition(is_remark);
    for warning in telling {
        out.push_str(&closing::warning(warning, lang));
    }
    if !remarks.is_empty() {
        let mut ids: Vec<&str> = remarks.iter().map(|warning| warning.id.as_str()).collect();
        ids.dedup();
        let (count, ids) = (remarks.len(), ids.join(", "));
        let line = text!(
            "{count} remarks ({ids}): ranklaunch check explains them",
            "另有 {count} 条提示（{ids}），详见 ranklaunch check"
        );
        out.push_str(&closing::line(&line, lang));
    }
    out
}

/// One line in place of the block, for a task on a node where another task shows the block.
pub(crate) fn line(plan: &Plan, settings: &Settings) -> String {
    closing::line(&plan_view::place(plan), settings.lang)
}

/// `[source]` of a decision; empty for the default.
fn source(plan: &Plan, what: &str) -> String {
    plan.decision(what).map(|decision| format!("[{}]", decision.source)).unwrap_or_default()
}

/// Label, value, source.
fn rows(plan: &Plan, settings: &Settings) -> Vec<Vec<String>> {
    let lang = settings.lang;
    let member = &plan.membership;
    let mut rows = Vec::new();
    let mut row = |label: Text, value: String, what: &str| {
        rows.push(vec![label.get(lang).to_owned(), value, source(plan, what)]);
    };
    row(text!("nodes", "节点数"), member.nnodes.to_string(), "nnodes");
    row(text!("this node", "本节点编号"), member.node_rank.to_string(), "node_rank");
    let port = if member.master_port_free {
        text!("a free port", "空闲端口").get(lang).to_owned()
    } else {
        member.master_port.to_string()
    };
    row(text!("master", "Master 地址"), format!("{}:{port}", member.master_addr), "master_addr");
    let used = plan.gpus.iter().filter(|gpu| gpu.selected).count();
    let gpus = match plan.gpus.len() {
        0 => text!("none", "无").get(lang).to_owned(),
        all => format!("{used} / {all}"),
    };
    row(text!("GPUs of this node", "本节点 GPU"), gpus, "device");
    row(
        text!("processes", "进程数"),
        plan_view::ranks(plan).get(lang).to_owned(),
        "nproc_per_node",
    );
    if let Some(task) = &member.task {
        row(text!("this rank", "本 rank 编号"), task.rank.to_string(), "rank");
        row(text!("local rank", "本地编号"), task.local.to_string(), "local_rank");
    }
    if let Some(interface) = &plan.network.socket_ifname {
        row(text!("interface", "网络接口"), interface.clone(), "socket_ifname");
    }
    if !plan.network.hcas.is_empty() {
        row(text!("HCAs", "RDMA 设备"), plan.network.hcas.join(","), "hcas");
    }
    if plan.layout.rule != LayoutRule::None {
        row(Text::same("ulysses_size"), plan.layout.ulysses_size.to_string(), "ulysses_size");
        if plan.layout.rule == LayoutRule::UlyssesRing {
            row(Text::same("ring_size"), plan.layout.ring_size.to_string(), "ring_size");
        }
        if let Some(heads) = plan.layout.heads {
            row(text!("heads", "注意力头数"), heads.to_string(), "heads");
        }
    }
    if let Some(python) = &plan.python {
        row(Text::same("python"), python.display().to_string(), "python");
    }
    if let Some(torch) = &plan.torch_version {
        row(Text::same("torch"), torch.clone(), "torch");
    }
    let engine = plan.engine.to_string();
    let engine_source = format!("[{}]", settings.engine.source);
    rows.push(vec![text!("engine", "启动引擎").get(lang).to_owned(), engine, engine_source]);
    rows
}

#[cfg(test)]
mod tests {
    use crate::lang::{Lang, Text};
    use crate::plan::AskedNproc;
    use crate::plan::fixtures::{facts, planned, settings};
    use crate::settings::Sourced;
    use crate::verdict::Id;
    use crate::verdict::{Severity, Warning};

    #[test]
    fn the_block_names_value_and_source_in_both_languages() {
        let mut settings = settings(&[]);
        let plan = planned(&settings, &facts(8), 2, &AskedNproc::Auto).expect("a plan");
        let block = super::block(&plan, &settings);
        assert!(block.contains("processes"), "{block}");
        assert!(block.contains("2 × 8 = 16"), "{block}");
        assert!(!block.contains("remark"), "{block}");

        // Advice takes one line; warnings that can change the result are printed in full.
        let mut noisy = plan.clone();
        for id in [Id::Nofile, Id::ClockSync, Id::ShmSize] {
            let text = Text::same(format!("about {id}"));
            noisy.warnings.push(Warning::new(id, text, Text::same("do")));
        }
        let said = super::block(&noisy, &settings);
        assert!(said.contains("2 remarks (nofile, clock.sync): ranklaunch check"), "{said}");
        assert!(
            said.contains("warning: about shm.size") && !said.contains("about nofile"),
            "{said}"
        );
        let asked = Sourced::default_value(Severity::Warn);
        settings.severities.insert(Id::Nofile, asked);
        let said = super::block(&noisy, &settings);
        assert!(said.contains("about nofile") && said.contains("1 remark (clock.sync)"), "{said}");

        settings.lang = Lang::Zh;
        let block = super::block(&plan, &settings);
        assert!(block.contains("  进程数"), "{block}");
    }
}
