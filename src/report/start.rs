//! The start-up block: the few values that a user checks first, each with its source.

use super::closing::{self, Lines};
use super::plan_forms::quoted;
use super::plan_view;
use plan::{Plan, argv};
use settings::{LayoutRule, Settings};
use text::columns::{columns, fold, padded, shortened_path};
use text::lang::{Lang, Text};
use text::mask::mask_args;
use text::style::{Style, paint};
use text::text;
use verdict::{Warning, by_importance};

/// The block, ending in a newline. `width`: columns of the terminal.
pub fn block(plan: &Plan, settings: &Settings, width: Option<usize>) -> String {
    let mut lines = Lines::new(settings.lang);
    lines.title(Style::Title, &plan_view::sentence(plan));
    push_rows(&mut lines.out, rows(plan, settings), width);
    lines.out
}

/// Warnings that are printed in full, and advice that one line counts. Advice changes no result; it is
/// printed in full if the user asked for it.
#[derive(Debug)]
pub struct Remarks<'a> {
    pub telling: Vec<&'a Warning>,
    pub advice: Vec<&'a Warning>,
}

impl<'a> Remarks<'a> {
    pub fn of(warnings: &'a [Warning], settings: &Settings) -> Remarks<'a> {
        let is_advice = |warning: &&Warning| {
            let is_asked = settings.severities.contains_key(&warning.id);
            warning.id.is_advice() && !is_asked && !settings.verbose
        };
        let (advice, telling) = by_importance(warnings).into_iter().partition(is_advice);
        Remarks { telling, advice }
    }

    /// The text at the start of a launch.
    pub fn text(&self, lang: Lang) -> String {
        let telling = self.telling.iter().map(|warning| closing::warning(warning, lang));
        let mut out: String = telling.collect();
        if !self.advice.is_empty() {
            let mut ids: Vec<&str> = self.advice.iter().map(|one| one.id.as_str()).collect();
            ids.dedup();
            let (count, ids) = (self.advice.len(), ids.join(", "));
            let line = text!(
                "{count} remarks ({ids}): ranklaunch check explains them",
                "另有 {count} 条提示（{ids}），详见 ranklaunch check"
            );
            out.push_str(&closing::line(&line, lang));
        }
        out
    }
}

/// One line in place of the block, for a task on a node where another task shows the block.
pub fn line(plan: &Plan, settings: &Settings) -> String {
    closing::line(&plan_view::place(plan), settings.lang)
}

/// Label, value, source.
type Row = [String; 3];

/// The sources are aligned; a long path loses its middle at a terminal.
fn push_rows(out: &mut String, rows: Vec<Row>, width: Option<usize>) {
    /// Maximum width of a value; a longer one does not move the sources of the others.
    const WIDEST: usize = 30;
    let wide = |at: usize| {
        let cells = rows.iter().map(|row| columns(&row[at]));
        cells.filter(|wide| at == 0 || *wide <= WIDEST).max().unwrap_or(0)
    };
    let (labels, values) = (wide(0), wide(1));
    for [label, value, source] in &rows {
        let before = 2 + labels + 2;
        let after = if source.is_empty() { 0 } else { 2 + columns(source) };
        let room = width.map_or(usize::MAX, |width| width.saturating_sub(before + after).max(20));
        let value = match value.starts_with('/') {
            true => shortened_path(value, room),
            false => value.clone(),
        };
        let mut line = format!("  {}  {value}", padded(label, labels));
        if !source.is_empty() {
            line = format!("{}  {}", padded(&line, before + values), paint(Style::Dim, source));
        }
        fold(out, &line, before, width);
    }
}

/// Sources that need no row of their own: the title says the value, and the person who reads it typed the flag.
fn is_plain(source: &str) -> bool {
    // `wan22.toml:22 auto`: the launcher decided.
    source.starts_with("--")
        || source.ends_with(" auto")
        || ["solved", "detected", "default", "PATH"].contains(&source)
}

fn rows(plan: &Plan, settings: &Settings) -> Vec<Row> {
    let (lang, all) = (settings.lang, settings.verbose);
    let member = &plan.membership;
    // A single node has no other nodes to meet: a person wants to see the job, not a table.
    let few = !all && member.members() == 1;
    let is_news = |what: &str| {
        !few || plan.decision(what).is_some_and(|decision| !is_plain(&decision.source))
    };
    let mut rows = Vec::new();
    let mut row = |label: Text, value: String, what: &str| {
        let source = plan.decision(what).map(|decision| format!("[{}]", decision.source));
        rows.push([label.get(lang).to_owned(), value, source.unwrap_or_default()]);
    };
    let files = settings.profile.iter().chain(settings.site.as_ref().map(|site| &site.file));
    let files: String = files.map(|name| format!(" · {name}")).collect();
    let engine = plan.engine.to_string();
    let shown = if few { format!(" · {engine}") } else { String::new() };
    let version = format!("{}{files}{shown}", env!("CARGO_PKG_VERSION"));
    row(text!("version", "版本"), version, "");
    if !few {
        row(text!("nodes", "节点数"), member.nnodes.to_string(), "nnodes");
        if member.spares > 0 {
            row(text!("spares", "备用节点数"), member.spares.to_string(), "spares");
        }
        row(text!("this node", "本节点编号"), member.node_rank.to_string(), "node_rank");
        let master = plan_view::master(plan).get(lang).to_owned();
        row(text!("master", "Master 地址"), master, "master_addr");
    }
    let used = plan.gpus.iter().filter(|gpu| gpu.selected).count();
    let gpus = match plan.gpus.len() {
        0 => text!("none", "无").get(lang).to_owned(),
        count => format!("{used} / {count}"),
    };
    if !few || used < plan.gpus.len() {
        row(text!("GPUs of this node", "本节点 GPU"), gpus, "device");
    }
    if is_news("nproc_per_node") {
        let ranks = plan_view::ranks(plan).get(lang).to_owned();
        row(text!("processes", "进程数"), ranks, "nproc_per_node");
    }
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
    if plan.layout.rule != LayoutRule::None
        && let Some(heads) = plan.layout.heads
    {
        row(text!("heads", "注意力头数"), heads.to_string(), "heads");
    }
    if let Some(python) = &plan.python {
        let torch = plan.torch_version.as_ref().filter(|_| few);
        let torch = torch.map(|torch| format!(" · torch {torch}")).unwrap_or_default();
        let source = if is_news("python") { "python" } else { "" };
        row(Text::same("python"), format!("{}{torch}", python.display()), source);
    }
    if let Some(torch) = plan.torch_version.as_ref().filter(|_| !few) {
        // The source of this value is the folder of torch below the interpreter's.
        let named = if all { "torch" } else { "" };
        row(Text::same("torch"), torch.clone(), named);
    }
    let source = settings.engine.source.to_string();
    if !few || !is_plain(&source) {
        let label = text!("engine", "启动引擎").get(lang).to_owned();
        rows.push([label, engine, format!("[{source}]")]);
    }
    if all {
        let words: Vec<String> = mask_args(&argv(plan)).iter().map(|word| quoted(word)).collect();
        let command = text!("command", "命令").get(lang).to_owned();
        rows.push([command, words.join(" "), String::new()]);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::AskedNproc;
    use plan::fixtures::{facts, planned, settings, wan};
    use settings::Sourced;
    use text::style;
    use verdict::{Id, Severity};

    fn block(plan: &Plan, settings: &Settings, width: Option<usize>) -> String {
        style::plain(&super::block(plan, settings, width)).into_owned()
    }

    #[test]
    fn start_block_begins_with_the_plan_sentence() {
        let mut settings = settings(&[]);
        let plan = planned(&settings, &facts(8), 2, &AskedNproc::Auto).expect("a plan");
        let text = block(&plan, &settings, None);
        assert!(text.starts_with("── ranklaunch: 2 nodes × 8 GPUs = 16 ranks\n"), "{text}");
        assert!(text.contains("processes") && text.contains("2 × 8 = 16"), "{text}");
        assert!(!text.contains("command"), "{text}");
        settings.verbose = true;
        assert!(block(&plan, &settings, None).contains("command"), "{text}");

        settings.lang = Lang::Zh;
        let text = block(&plan, &settings, None);
        assert!(text.starts_with("── ranklaunch: 2 个节点 × 8 个 GPU = 16 个 rank\n"), "{text}");
        assert!(text.contains("  进程数"), "{text}");
    }

    #[test]
    fn start_block_fits_80_columns() {
        let settings = settings(&[]);
        let mut plan = planned(&settings, &facts(8), 2, &AskedNproc::Auto).expect("a plan");
        let python = format!("/mnt/{}/bin/python3", "folder/".repeat(20));
        plan.python = Some(python.clone().into());
        let text = block(&plan, &settings, Some(80));
        assert!(text.lines().all(|line| columns(line) <= 80), "{text}");
        assert!(text.contains("  /mnt/…/folder/") && text.contains("//bin/python3"), "{text}");
        assert!(block(&plan, &settings, None).contains(&python));
    }

    /// With every row that a single node can have, and the line that counts remarks.
    #[test]
    fn start_of_one_node_takes_six_lines() {
        let settings = wan(&[], Some(40));
        let mut plan = planned(&settings, &facts(8), 1, &AskedNproc::Auto).expect("a plan");
        plan.torch_version = Some("2.15.0".to_owned());
        let text = block(&plan, &settings, Some(80));
        assert!(text.lines().count() <= 5, "{text}");
        let python = plan.python.as_ref().expect("a python").display().to_string();
        assert!(text.contains(&format!("{python} · torch 2.15.0\n")), "{text}");
        assert!(text.contains(&format!("{} · torchrun\n", env!("CARGO_PKG_VERSION"))), "{text}");
        assert!(!text.contains("processes"), "{text}");
        // Values that nobody typed for this job are shown with their place.
        plan.decisions.iter_mut().filter(|one| one.what == "nproc_per_node").for_each(|one| {
            "RANKLAUNCH_NPROC_PER_NODE".clone_into(&mut one.source);
        });
        let text = block(&plan, &settings, Some(80));
        assert!(text.contains("[RANKLAUNCH_NPROC_PER_NODE]"), "{text}");
    }

    /// Advice takes one line; warnings that can change the result are printed in full.
    #[test]
    fn warnings_are_printed_first_and_advice_is_counted() {
        let mut settings = settings(&[]);
        let warn = |id: Id| Warning::new(id, Text::same(format!("about {id}")), Text::same("do"));
        let all = [Id::Nofile, Id::ClockSync, Id::ShmSize, Id::GpuCount].map(warn);
        let said = |settings: &Settings| {
            style::plain(&Remarks::of(&all, settings).text(Lang::En)).into_owned()
        };
        let text = said(&settings);
        assert!(text.contains("2 remarks (nofile, clock.sync): ranklaunch check"), "{text}");
        assert!(text.starts_with("warning: about gpu.count\n  hint: do\n"), "{text}");
        assert!(text.contains("warning: about shm.size"), "{text}");
        assert!(!text.contains("about nofile"), "{text}");
        let asked = Sourced::default_value(Severity::Warn);
        settings.severities.insert(Id::Nofile, asked);
        let text = said(&settings);
        assert!(text.contains("about nofile") && text.contains("1 remark (clock.sync)"), "{text}");
        settings.verbose = true;
        let text = said(&settings);
        assert!(text.contains("about clock.sync") && !text.contains("remark"), "{text}");
    }
}
