//! Connects the layout solver with the program's arguments, and finds the number of attention heads,
//! which every ulysses size must divide.
//!
//! Takes settings, arguments and solved sizes; gives the effective layout rule, the numbers that
//! the arguments fix, and the reasons. The final arguments are checked once more, however they
//! were written.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use crate::devices::Hardware;
use crate::layout::{LayoutProblem, Literal, Sizes, is_legal, rule_in_words};
use crate::{Layout, Membership, Notes};
use settings::arguments::GivenArgument;
use settings::{LayoutRule, LayoutSettings, Program, Settings, Source};
use text::order::Ordered;
use text::text;
use verdict::{Id, Refusal};

/// The layout rule that applies. An elastic job has none, since its world size changes.
pub(crate) fn effective_rule(
    settings: &Settings,
    membership: &Membership,
    notes: &mut Notes,
) -> LayoutRule {
    let rule = &settings.layout.rule;
    if membership.elastic.is_some_and(|(min, max)| min != max) && rule.value != LayoutRule::None {
        let source = &rule.source;
        notes.warn(
            Id::LayoutElastic,
            text!(
                "the job is elastic, so its world size may change and the layout rule of {source} is not applied",
                "该任务为弹性任务，总进程数会变化，因此不应用 {source} 指定的布局规则"
            ),
            text!(
                "run it with a fixed number of nodes to have the layout solved",
                "如需求解布局，请使用固定节点数"
            ),
        );
        return LayoutRule::None;
    }
    let words = rule_in_words(rule.value);
    notes.decide("layout", rule_name(rule.value), words, &rule.source);
    rule.value
}

fn rule_name(rule: LayoutRule) -> &'static str {
    match rule {
        LayoutRule::None => "none",
        LayoutRule::UlyssesWorld => "ulysses-world",
        LayoutRule::UlyssesRing => "ulysses-ring",
    }
}

/// Arguments with the ulysses size in known codebases: Wan2.1 and Wan2.2, xDiT, HunyuanVideo.
const ULYSSES: [&str; 3] = ["--ulysses_size", "--ulysses_degree", "--ulysses-degree"];
const RING: [&str; 3] = ["--ring_size", "--ring_degree", "--ring-degree"];
/// One size for the whole world, without a ring.
const SEQUENCE: &str = "--sequence_parallel_size";

/// Further arguments with the size of a group that works on one sequence: xDiT, FastVideo, Open-Sora,
/// Megatron-LM, Megatron-DeepSpeed.
const GROUPS: &str = "\
    --ulysses-size --ring-size --sequence-parallel-size --ds-sequence-parallel-size \
    --sp_size --sp-size --cp_size --cp-size --context_parallel_size --context-parallel-size";

/// Flags that generate.py of Wan2.1 and Wan2.2 asserts to be absent at world size 1.
const NOT_ALONE: [&str; 2] = ["--dit_fsdp", "--t5_fsdp"];

/// The arguments with a size in known codebases.
pub fn known_names(axis: Axis) -> [&'static str; 3] {
    match axis {
        Axis::Ulysses => ULYSSES,
        Axis::Ring => RING,
    }
}

/// The two sizes that an argument may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    Ulysses,
    Ring,
}

/// The arguments with a size: those of the profile, else those of known codebases.
pub fn names(settings: &Settings, rule: LayoutRule, axis: Axis) -> Vec<&str> {
    let layout = &settings.layout;
    let own = match axis {
        Axis::Ulysses => &layout.ulysses_argument,
        Axis::Ring => &layout.ring_argument,
    };
    match (rule, own) {
        (LayoutRule::None, _) => Vec::new(),
        (_, Some(own)) => vec![own.as_str()],
        (LayoutRule::UlyssesWorld, None) if axis == Axis::Ulysses => {
            known_names(axis).into_iter().chain([SEQUENCE]).collect()
        }
        (_, None) => known_names(axis).into(),
    }
}

/// Whether the value is a number, or a placeholder of one.
pub fn is_size(value: &OsStr) -> bool {
    let text = value.to_string_lossy();
    text.trim().parse::<u32>().is_ok() || text.starts_with('{')
}

/// The number that the program's arguments fix, if any. A placeholder fixes nothing.
pub fn literal(
    settings: &Settings,
    axis: Axis,
    rule: LayoutRule,
    words: &[OsString],
    notes: &mut Notes,
) -> Option<Literal> {
    let GivenArgument { name: argument, value } =
        GivenArgument::of(words, &names(settings, rule, axis), is_size)?;
    let text = value.to_string_lossy();
    if let Ok(value) = text.trim().parse() {
        return Some(Literal { argument: argument.to_owned(), value });
    }
    if !text.starts_with('{') {
        notes.warn(
            Id::LayoutUnreadable,
            text!(
                "{argument} {text} is not a number, so it is not checked",
                "{argument} {text} 不是数字，未作检查"
            ),
            text!("write a number or {{ulysses_size}}", "请写数字或 {{ulysses_size}}"),
        );
    }
    None
}

/// Warns of a written size that no layout rule checks and that these ranks cannot form: a number of
/// ranks is made of whole groups.
pub(crate) fn check_undeclared(
    settings: &Settings,
    world: u32,
    words: &[OsString],
    notes: &mut Notes,
) {
    let rule = &settings.layout.rule;
    if rule.value != LayoutRule::None || rule.source != Source::Default {
        return;
    }
    let names = ULYSSES.into_iter().chain(RING).chain([SEQUENCE]).chain(GROUPS.split(' '));
    // An abbreviation may be another option, such as --seq for a length.
    let given = names.filter_map(|name| {
        let found =
            GivenArgument::of(words, &[name], is_size).filter(|found| found.name == name)?;
        Some((name, found.value.to_string_lossy().trim().parse::<u32>().ok()?))
    });
    let mut misfits = given.filter(|(_, size)| *size == 0 || !world.is_multiple_of(*size));
    let Some((name, size)) = misfits.next() else { return };
    let fitting = nearest_divisors(world, size);
    let declare = match ULYSSES.contains(&name) || name == SEQUENCE {
        true => format!("--layout ulysses-world {name} {{ulysses_size}}"),
        false => format!("{name} {{world_size}}"),
    };
    notes.warn(
        Id::LayoutSize,
        text!(
            "{name} {size} does not fit {world} ranks: {world} is no multiple of {size}, and programs with this argument assert that after they have loaded",
            "{name} {size} 与 {world} 个 rank 不匹配（不是 {size} 的整数倍）：有此参数的程序会在加载之后断言失败"
        ),
        text!(
            "sizes that divide {world} ranks: {fitting}; {declare} chooses one that fits, --layout none keeps this one",
            "能整除 {world} 个 rank 的规模：{fitting}；用 {declare} 可由 ranklaunch 选择合适的规模；--layout none 保留该值"
        ),
    );
}

/// The divisors of a number that are nearest to a size, ascending: `2, 4, 5, 10`.
fn nearest_divisors(number: u32, size: u32) -> String {
    const SHOWN: usize = 4;
    let small = (1_u32..).take_while(|one| one.checked_mul(*one).is_some_and(|it| it <= number));
    let small = small.filter(|one| number.is_multiple_of(*one));
    let mut divisors: Vec<u32> = small.flat_map(|one| [one, number / one]).collect();
    divisors.order_by_key(|one| (one.abs_diff(size), *one));
    divisors.dedup();
    divisors.truncate(SHOWN);
    divisors.sort_unstable();
    divisors.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// Positions of flags on which the program asserts as a single rank.
pub fn not_alone<W: AsRef<OsStr>>(words: &[W]) -> Vec<usize> {
    NOT_ALONE.iter().filter_map(|name| GivenArgument::of_flag(words, name)).collect()
}

/// Refuses flags on which the program asserts as a single rank.
pub fn check_alone(rule: LayoutRule, world: u32, program: &Program) -> Result<(), Refusal> {
    if rule == LayoutRule::None || world != 1 {
        return Ok(());
    }
    let words = program.words();
    let found: Vec<String> = not_alone(&words)
        .into_iter()
        .filter_map(|at| Some(words.get(at)?.to_string_lossy().into_owned()))
        .collect();
    if found.is_empty() {
        return Ok(());
    }
    let found = found.join(" ");
    let rule = rule_in_words(rule);
    let (en, zh) = (rule.en, rule.zh);
    Err(Refusal::new(
        Id::LayoutAlone,
        text!(
            "{found} with a world size of 1: the program asserts that they are absent there (rule {en})",
            "总进程数为 1，却给出了 {found}：程序会断言此时没有这些参数（规则 {zh}）"
        ),
        text!(
            "leave them out on one GPU, or use two or more; --layout none skips this check",
            "只用一个 GPU 时请去掉它们，或使用两个以上的 GPU；--layout none 可跳过该检查"
        ),
    ))
}

pub(crate) fn check_least(
    settings: &Settings,
    problem: &LayoutProblem,
    nproc: u32,
) -> Result<(), Refusal> {
    let Some(least) = settings.min_nproc.as_ref().filter(|least| nproc < least.value) else {
        return Ok(());
    };
    let (value, source) = (least.value, &least.source);
    let LayoutProblem { nnodes, most, .. } = problem;
    let rule = rule_in_words(problem.rule);
    let (en, zh) = (rule.en, rule.zh);
    Err(Refusal::new(
        Id::LayoutMinNproc,
        text!(
            "at most {nproc} processes per node are legal on {nnodes} nodes × {most} (rule {en}), but {source} requests {value} or more",
            "在 {nnodes} 个节点 × {most} 上每节点最多合法 {nproc} 个进程（规则 {zh}），而 {source} 要求至少 {value} 个"
        ),
        text!(
            "lower --min-nproc to {nproc}, or change the number of nodes",
            "请将 --min-nproc 降到 {nproc}，或调整节点数"
        ),
    ))
}

/// Records the reasons of the sizes.
pub(crate) fn explain_sizes(
    settings: &Settings,
    problem: &LayoutProblem,
    sizes: Sizes,
    hardware: Hardware,
    words: &[OsString],
    notes: &mut Notes,
) {
    let Sizes { nproc, world, ulysses, ring } = sizes;
    let LayoutProblem { nnodes, most, heads, .. } = problem;
    let fixed = problem.ulysses.as_ref().or(problem.ring.as_ref());
    let (because, source) = match (&problem.exact, fixed, heads) {
        (Some((_, source)), ..) => (text!("asked for", "按要求"), source.clone()),
        (None, Some(Literal { argument, value }), _) => (
            text!(
                "the most of {most} that fits {argument} {value}",
                "在 {most} 以内满足 {argument} {value} 的最大值"
            ),
            "solved".to_owned(),
        ),
        (None, None, Some(heads)) if nproc < *most => (
            text!(
                "the most of {most} that is legal for {heads} heads on {nnodes} nodes",
                "在 {most} 以内、{nnodes} 个节点上适合 {heads} 个注意力头的最大值"
            ),
            "solved".to_owned(),
        ),
        (None, None, _) if hardware == Hardware::Cpus && *most == 1 => (
            text!(
                "one on the CPU, as no number is given; --nproc-per-node N starts more",
                "未指定数量时在 CPU 上启动一个；可用 --nproc-per-node N 启动更多"
            ),
            "no --nproc-per-node".to_owned(),
        ),
        _ => {
            (text!("the most that this node can run", "本节点可运行的最大值"), "solved".to_owned())
        }
    };
    let asked = &settings.nproc_per_node;
    let source = match (&problem.exact, &asked.source) {
        (Some(_), _) | (_, Source::Default) => source,
        // `auto` was given, and is shown as such.
        (None, given) => format!("{given} auto"),
    };
    if problem.world.is_none() {
        notes.decide("nproc_per_node", nproc, because, source);
        let product =
            text!("{nnodes} nodes × {nproc} processes", "{nnodes} 个节点 × {nproc} 个进程");
        notes.decide("world_size", world, product, "solved");
    }
    if problem.rule == LayoutRule::None {
        return;
    }
    if heads.is_none() && world > 1 {
        notes.warn(
            Id::LayoutHeadsUnknown,
            text!(
                "the number of attention heads is unknown, so only the world size was matched",
                "注意力头数未知，因此只核对了总进程数"
            ),
            text!("set it with --heads N", "请用 --heads N 指定"),
        );
    }
    let source_of = |literal: &Option<Literal>| match literal {
        Some(literal) => literal.argument.clone(),
        None => "solved".to_owned(),
    };
    let why_ulysses = match problem.rule {
        LayoutRule::UlyssesRing => {
            text!(
                "the largest that divides heads and processes per node",
                "能同时整除注意力头数与每节点进程数的最大值"
            )
        }
        _ if ulysses == world => text!("the world size", "等于总进程数"),
        _ => text!("sequence parallelism is off", "未启用序列并行"),
    };
    let because =
        if problem.ulysses.is_some() { text!("given", "由参数给定") } else { why_ulysses };
    notes.decide("ulysses_size", ulysses, because, source_of(&problem.ulysses));
    if problem.rule == LayoutRule::UlyssesRing {
        notes.decide(
            "ring_size",
            ring,
            text!("world size / ulysses_size", "总进程数 / ulysses_size"),
            source_of(&problem.ring),
        );
    }
    let told = settings.layout.ulysses_argument.as_deref();
    if let Some(argument) = told
        && world > 1
        && GivenArgument::of(words, &[argument], is_size).is_none()
    {
        notes.warn(
            Id::LayoutArgument,
            text!(
                "the program does not receive ulysses_size {ulysses}: {argument} is missing",
                "程序未获得 ulysses_size（{ulysses}）：缺少 {argument}"
            ),
            text!("add {argument} {{ulysses_size}}", "请加上 {argument} {{ulysses_size}}"),
        );
    }
}

/// Checks the sizes that the program will read against its own assertions, however they were
/// written (`--ulysses_size {nproc_per_node}`).
pub(crate) fn written_sizes(
    settings: &Settings,
    layout: &Layout,
    world: u32,
    program: &Program,
) -> Result<(u32, u32), Refusal> {
    let solved = (layout.ulysses_size, layout.ring_size);
    if layout.rule == LayoutRule::None {
        return Ok(solved);
    }
    let words = program.words();
    let read = |axis: Axis, solved: u32| {
        literal(settings, axis, layout.rule, &words, &mut Notes::default())
            .map_or(solved, |literal| literal.value)
    };
    let ulysses = read(Axis::Ulysses, layout.ulysses_size);
    let ring = read(Axis::Ring, layout.ring_size);
    if is_legal(layout.rule, world, layout.heads, ulysses, ring) {
        return Ok((ulysses, ring));
    }
    let words = rule_in_words(layout.rule);
    let (en, zh) = (words.en, words.zh);
    let (u, r) = solved;
    let heads = layout.heads.map_or_else(|| "?".to_owned(), |heads| heads.to_string());
    Err(Refusal::new(
        Id::LayoutLiteral,
        text!(
            "the program's arguments give ulysses_size {ulysses} and ring_size {ring} for {world} ranks and {heads} heads (rule {en})",
            "程序参数给出 ulysses_size {ulysses}、ring_size {ring}，而总进程数为 {world}、注意力头数为 {heads}（规则 {zh}）"
        ),
        text!(
            "use {{ulysses_size}} and {{ring_size}}, here {u} and {r}; --layout none skips this check",
            "请使用 {{ulysses_size}} 与 {{ring_size}}，此处为 {u} 与 {r}；--layout none 可跳过该检查"
        ),
    ))
}

/// Heads of the model that `args` select; None if unknown, which is a warning elsewhere and never a
/// refusal. Sources, strongest first: flag or variable, the profile's table by the script's own
/// argument, the profile's plain number, the checkpoint's config.json. The number that the nodes `agreed` on
/// wins over what this node would find by itself.
pub fn heads(
    layout: &LayoutSettings,
    args: &[OsString],
    checkpoint: Option<&(u32, PathBuf)>,
    agreed: Option<u32>,
    notes: &mut Notes,
) -> Option<u32> {
    let given = layout.heads.as_ref().filter(|heads| heads.value > 0);
    let strong =
        given.filter(|heads| matches!(heads.source, Source::Flag(_) | Source::Environment(_)));
    let checkpoint = checkpoint.filter(|(heads, _)| *heads > 0);
    let (count, because, source) = if let (None, Some(agreed)) = (given, agreed) {
        (agreed, text!("agreed by the nodes", "由各节点协商"), Source::Agreement.to_string())
    } else if let Some(heads) = strong {
        (heads.value, text!("given", "由用户给定"), heads.source.to_string())
    } else if let Some((count, argument, value, source)) = from_table(layout, args) {
        (
            count,
            text!(
                "the profile's heads for {argument} {value}",
                "配置文件中 {argument} {value} 对应的头数"
            ),
            source,
        )
    } else if let Some(heads) = given {
        (heads.value, text!("given by the profile", "由配置文件给定"), heads.source.to_string())
    } else {
        let (count, file) = checkpoint?;
        let file = file.display();
        notes.decide(
            "heads",
            count,
            text!("read from the checkpoint", "从模型检查点读取"),
            file.to_string(),
        );
        return Some(*count);
    };
    if let Some((other, file)) = checkpoint.filter(|(other, _)| *other != count) {
        let file = file.display();
        notes.warn(
            Id::LayoutHeadsConflict,
            text!(
                "{source} says {count} attention heads, {file} says {other}; {count} is used",
                "{source} 给出的注意力头数为 {count}，而 {file} 中为 {other}；采用 {count}"
            ),
            text!(
                "check that the task and the checkpoint belong together, or set --heads {other}",
                "请确认任务与检查点是否匹配，或用 --heads {other} 明确指定"
            ),
        );
    }
    notes.decide("heads", count, because, source);
    Some(count)
}

/// The table's row for the argument's value: heads, argument, value, place of the table.
fn from_table(layout: &LayoutSettings, args: &[OsString]) -> Option<(u32, String, String, String)> {
    let table = layout.heads_table.as_ref()?;
    let is_known = |value: &OsStr| value.to_str().is_some_and(|v| table.heads.contains_key(v));
    let value = match GivenArgument::of(args, &[&table.argument], is_known) {
        Some(given) => given.value.to_str()?.to_owned(),
        None => table.default.clone()?,
    };
    let count = *table.heads.get(&value).filter(|count| **count > 0)?;
    Some((count, table.argument.clone(), value, table.source.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use settings::{HeadsTable, LayoutRule, Sourced};

    fn layout(heads: Option<(u32, Source)>, table: bool) -> LayoutSettings {
        let profile = Source::Profile { file: "wan22.toml".into(), line: 9 };
        LayoutSettings {
            rule: Sourced::default_value(LayoutRule::UlyssesWorld),
            heads: heads.map(|(value, source)| Sourced::new(value, source)),
            heads_table: table.then(|| HeadsTable {
                argument: "--task".into(),
                heads: [("t2v-A14B".to_owned(), 40), ("ti2v-5B".to_owned(), 24)].into(),
                default: Some("t2v-A14B".into()),
                source: profile,
            }),
            ulysses_argument: None,
            ring_argument: None,
            checkpoint_argument: None,
        }
    }

    #[test]
    fn the_strongest_source_gives_the_heads() {
        let flag = || Some((12, Source::Flag("--heads".into())));
        let profile = || Some((16, Source::Profile { file: "p.toml".into(), line: 1 }));
        let checkpoint = (40, PathBuf::from("/ckpt/config.json"));
        #[expect(
            clippy::type_complexity,
            reason = "a table: settings, arguments, checkpoint, result"
        )]
        let cases: [(LayoutSettings, &[&str], Option<&(u32, PathBuf)>, Option<u32>, &str);
            9] = [
            (layout(flag(), true), &["--task", "ti2v-5B"], None, Some(12), "--heads"),
            (layout(None, true), &["--task", "ti2v-5B"], None, Some(24), "wan22.toml:9"),
            (layout(None, true), &["--task=ti2v-5B"], None, Some(24), "wan22.toml:9"),
            (layout(None, true), &["--tas", "ti2v-5B"], None, Some(24), "wan22.toml:9"),
            (layout(None, true), &[], None, Some(40), "wan22.toml:9"),
            (
                layout(None, true),
                &["--task", "new"],
                Some(&checkpoint),
                Some(40),
                "/ckpt/config.json",
            ),
            (layout(None, true), &["--task", "new"], None, None, ""),
            (layout(profile(), true), &["--task", "new"], None, Some(16), "p.toml:1"),
            (layout(profile(), true), &["--task", "ti2v-5B"], None, Some(24), "wan22.toml:9"),
        ];
        for (layout, args, checkpoint, expected, source) in cases {
            let args: Vec<OsString> = args.iter().map(OsString::from).collect();
            let mut notes = Notes::default();
            assert_eq!(heads(&layout, &args, checkpoint, None, &mut notes), expected, "{args:?}");
            assert_eq!(notes.decisions.first().map_or("", |d| d.source.as_str()), source);
            assert!(notes.warnings.is_empty());
        }
    }

    #[test]
    fn table_contradicting_the_checkpoint_is_a_warning() {
        let mut notes = Notes::default();
        let checkpoint = (24, PathBuf::from("/ckpt/config.json"));
        let found = heads(&layout(None, true), &[], Some(&checkpoint), None, &mut notes);
        assert_eq!(found, Some(40));
        // The nodes agreed on it.
        let agreed = heads(&layout(None, true), &[], None, Some(24), &mut notes);
        assert_eq!(agreed, Some(24));
        assert_eq!(notes.warnings.first().map(|w| w.id), Some(Id::LayoutHeadsConflict));
    }
}
