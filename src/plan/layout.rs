//! The layout solver: finds processes per node and parallel sizes that pass the program's own
//! assertions.
//!
//! Takes the rule, the node count, the capacity of the weakest node, the heads and the fixed
//! numbers; gives the largest legal [`Sizes`], or a refusal that names the broken rule and the
//! nearest legal numbers. Pure arithmetic: `plan` decides where the inputs come from.

use crate::one_of;
use settings::LayoutRule;
use text::lang::Text;
use text::order::Ordered;
use text::text;
use verdict::{Id, Refusal};

/// A layout size given as a number in the program's arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Literal {
    /// `--ulysses_size`
    pub argument: String,
    pub value: u32,
}

/// Input of the solver.
#[derive(Debug, Clone)]
pub struct LayoutProblem {
    pub rule: LayoutRule,
    pub nnodes: u32,
    /// A given world size; other nodes may then have other numbers of processes.
    pub world: Option<u32>,
    /// Most processes that the weakest node can run, 1 or more.
    pub most: u32,
    /// A fixed number of processes per node, and its source.
    pub exact: Option<(u32, String)>,
    pub heads: Option<u32>,
    pub ulysses: Option<Literal>,
    pub ring: Option<Literal>,
}

/// A legal solution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    pub nproc: u32,
    pub world: u32,
    pub ulysses: u32,
    pub ring: u32,
}

/// Number of alternatives that a refusal lists.
const NEAREST: usize = 4;

/// The largest legal number of processes per node, with its sizes.
pub fn solve(problem: &LayoutProblem) -> Result<Sizes, Refusal> {
    best(problem).ok_or_else(|| refuse(problem))
}

/// Whether these sizes pass the program's assertions. Unknown heads are not checked.
pub fn is_legal(rule: LayoutRule, world: u32, heads: Option<u32>, ulysses: u32, ring: u32) -> bool {
    let divides = ulysses > 0 && heads.is_none_or(|heads| heads % ulysses == 0);
    match rule {
        LayoutRule::None => true,
        // ulysses_size 1 turns sequence parallelism off, which the program accepts at any world size.
        LayoutRule::UlyssesWorld => ring == 1 && (ulysses == 1 || (ulysses == world && divides)),
        LayoutRule::UlyssesRing => ulysses.checked_mul(ring) == Some(world) && divides,
    }
}

/// The sizes for the largest legal number of processes per node.
fn best(problem: &LayoutProblem) -> Option<Sizes> {
    let range = problem.exact.as_ref().map_or(1..=problem.most, |(nproc, _)| *nproc..=*nproc);
    range.rev().find_map(|nproc| sizes(problem, nproc))
}

/// The sizes for `nproc` processes on every node; None when the rule cannot be met.
fn sizes(problem: &LayoutProblem, nproc: u32) -> Option<Sizes> {
    let even = || problem.nnodes.checked_mul(nproc);
    let world = problem.world.or_else(even).filter(|world| *world > 0)?;
    let ulysses = problem.ulysses.as_ref().map(|literal| literal.value);
    let ring = problem.ring.as_ref().map(|literal| literal.value);
    let (ulysses, ring) = match problem.rule {
        LayoutRule::None => (1, 1),
        LayoutRule::UlyssesWorld => (ulysses.unwrap_or(world), ring.unwrap_or(1)),
        LayoutRule::UlyssesRing => match (ulysses, ring) {
            (Some(ulysses), Some(ring)) => (ulysses, ring),
            (Some(ulysses), None) => (ulysses, world.checked_div(ulysses)?),
            (None, Some(ring)) => (world.checked_div(ring)?, ring),
            (None, None) => {
                // Ulysses stays inside a node, where the all-to-all of every layer is cheap.
                let ulysses = problem.heads.map_or(nproc, |heads| common_divisor(nproc, heads));
                (ulysses, world.checked_div(ulysses)?)
            }
        },
    };
    is_legal(problem.rule, world, problem.heads, ulysses, ring).then_some(Sizes {
        nproc,
        world,
        ulysses,
        ring,
    })
}

/// Greatest common divisor.
fn common_divisor(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The rule in words.
pub(crate) fn rule_in_words(rule: LayoutRule) -> Text {
    match rule {
        LayoutRule::None => text!("none", "无"),
        LayoutRule::UlyssesWorld => text!(
            "ulysses-world: ulysses_size = world size, and it divides the heads",
            "ulysses-world：ulysses_size 等于总进程数，且能整除注意力头数"
        ),
        LayoutRule::UlyssesRing => text!(
            "ulysses-ring: ulysses_size × ring_size = world size, and ulysses_size divides the heads",
            "ulysses-ring：ulysses_size × ring_size 等于总进程数，且 ulysses_size 能整除注意力头数"
        ),
    }
}

/// The refusal if nothing is legal: names the fixed number at fault, else the node count.
fn refuse(problem: &LayoutProblem) -> Refusal {
    let without_literals = LayoutProblem { ulysses: None, ring: None, ..problem.clone() };
    if best(&without_literals).is_some()
        && let Some(literal) = culprit(problem)
    {
        return refuse_literal(problem, literal);
    }
    let free = LayoutProblem { exact: None, world: None, ..problem.clone() };
    if let Some((nproc, source)) = &problem.exact
        && best(&free).is_some()
    {
        return refuse_nproc(problem, &free, *nproc, source);
    }
    if let Some(literal) = culprit(&free)
        && best(&LayoutProblem { exact: None, world: None, ..without_literals }).is_some()
    {
        return refuse_literal(&free, literal);
    }
    refuse_nodes(problem)
}

/// The literal to blame: the ring's if the layout is impossible even without the literal of ulysses.
fn culprit(problem: &LayoutProblem) -> Option<&Literal> {
    let without_ulysses = LayoutProblem { ulysses: None, ..problem.clone() };
    match (&problem.ulysses, &problem.ring) {
        (Some(_), Some(ring)) if best(&without_ulysses).is_none() => Some(ring),
        (ulysses, ring) => ulysses.as_ref().or(ring.as_ref()),
    }
}

/// The refusal if a literal of the arguments is impossible.
fn refuse_literal(problem: &LayoutProblem, literal: &Literal) -> Refusal {
    let Literal { argument, value } = literal;
    let is_ulysses = problem.ulysses.as_ref() == Some(literal);
    let Text { en: rule_en, zh: rule_zh } = rule_in_words(problem.rule);
    let Text { en: reason_en, zh: reason_zh } = literal_reason(problem, literal, is_ulysses);
    let legal = nearest(*value, legal_literals(problem, is_ulysses));
    let Text { en: legal_en, zh: legal_zh } = one_of(&legal);
    let placeholder = if is_ulysses { "{ulysses_size}" } else { "{ring_size}" };
    Refusal::new(
        Id::LayoutLiteral,
        text!(
            "{argument} {value} cannot be met: {reason_en} (rule {rule_en})",
            "无法满足 {argument} {value}：{reason_zh}（规则 {rule_zh}）"
        ),
        text!(
            "nearest legal sizes here: {legal_en}; or write {argument} {placeholder} to have it solved; --layout none skips this check",
            "此处最接近的合法取值：{legal_zh}；也可写成 {argument} {placeholder} 由程序求解；--layout none 可跳过该检查"
        ),
    )
}

fn literal_reason(problem: &LayoutProblem, literal: &Literal, is_ulysses: bool) -> Text {
    let value = literal.value;
    let LayoutProblem { nnodes, most, .. } = problem;
    let each = problem.exact.as_ref().map_or(*most, |(n, _)| *n);
    let largest = nnodes.saturating_mul(each);
    if value == 0 {
        return text!("it must be 1 or more", "取值至少为 1");
    }
    if let (true, Some(heads)) = (is_ulysses, problem.heads)
        && heads % value != 0
    {
        return text!(
            "{heads} attention heads are not divisible by {value}",
            "注意力头数 {heads} 不能被 {value} 整除"
        );
    }
    if value > largest {
        return text!(
            "it needs {value} ranks, and {nnodes} nodes × {each} processes give at most {largest}",
            "需要 {value} 个进程，而 {nnodes} 个节点 × 每节点 {each} 个进程最多 {largest} 个"
        );
    }
    if problem.rule == LayoutRule::UlyssesWorld
        && is_ulysses
        && value.checked_rem(*nnodes) != Some(0)
    {
        return text!(
            "{value} ranks cannot be spread evenly over {nnodes} nodes",
            "{value} 个进程无法平均分配到 {nnodes} 个节点"
        );
    }
    match &problem.exact {
        Some((nproc, source)) => text!(
            "{source} {nproc} on {nnodes} nodes makes {largest} ranks",
            "{source} 为 {nproc}，{nnodes} 个节点共 {largest} 个进程"
        ),
        None => text!(
            "no number of processes per node up to {most} on {nnodes} nodes fits it",
            "{nnodes} 个节点上，每节点 1 到 {most} 个进程均不满足"
        ),
    }
}

/// Every legal value of the argument, with the other literal unchanged.
fn legal_literals(problem: &LayoutProblem, is_ulysses: bool) -> Vec<u32> {
    let largest = problem
        .nnodes
        .saturating_mul(problem.exact.as_ref().map_or(problem.most, |(nproc, _)| *nproc))
        // Larger sizes do not occur, and the list of candidates needs a bound.
        .min(4096);
    (1..=largest)
        .filter(|value| {
            let literal = Some(Literal { argument: String::new(), value: *value });
            let trial = if is_ulysses {
                LayoutProblem { ulysses: literal, ..problem.clone() }
            } else {
                LayoutProblem { ring: literal, ..problem.clone() }
            };
            best(&trial).is_some()
        })
        .collect()
}

/// The refusal if a fixed number of processes per node breaks the rule.
fn refuse_nproc(
    problem: &LayoutProblem,
    free: &LayoutProblem,
    nproc: u32,
    source: &str,
) -> Refusal {
    let nnodes = free.nnodes;
    let world = problem.world.unwrap_or(nnodes.saturating_mul(nproc));
    let Text { en: rule_en, zh: rule_zh } = rule_in_words(free.rule);
    let legal = nearest(nproc, (1..=free.most).filter(|n| sizes(free, *n).is_some()).collect());
    let Text { en: legal_en, zh: legal_zh } = one_of(&legal);
    let Text { en: reason_en, zh: reason_zh } = match (free.heads, &free.ulysses) {
        (_, Some(Literal { argument, value })) => {
            text!("which does not fit {argument} {value}", "与 {argument} {value} 不符")
        }
        (Some(heads), None) => text!(
            "and {heads} attention heads are not divisible by {world}",
            "而注意力头数 {heads} 不能被 {world} 整除"
        ),
        (None, None) => text!("which the rule does not allow", "规则不允许"),
    };
    Refusal::new(
        Id::LayoutNproc,
        text!(
            "{source} {nproc} on {nnodes} nodes makes {world} ranks, {reason_en} (rule {rule_en})",
            "{source} 为 {nproc}，{nnodes} 个节点共 {world} 个进程，{reason_zh}（规则 {rule_zh}）"
        ),
        match problem.world {
            Some(_) => text!(
                "start {legal_en} tasks per node; --layout none skips this check",
                "请在每个节点启动 {legal_zh} 个 task；--layout none 可跳过该检查"
            ),
            None => text!(
                "use --nproc-per-node {legal_en}, or auto; --layout none skips this check",
                "请使用 --nproc-per-node {legal_zh} 或 auto；--layout none 可跳过该检查"
            ),
        },
    )
}

/// The refusal if no number of processes per node is legal on so many nodes.
fn refuse_nodes(problem: &LayoutProblem) -> Refusal {
    let LayoutProblem { nnodes, most, .. } = problem;
    let Text { en: rule_en, zh: rule_zh } = rule_in_words(problem.rule);
    let heads = problem.heads.map_or_else(|| "?".to_owned(), |heads| heads.to_string());
    // More nodes than heads never divide them.
    let reach = problem.heads.unwrap_or(*nnodes).max(*nnodes).min(4096);
    let free =
        LayoutProblem { exact: None, world: None, ulysses: None, ring: None, ..problem.clone() };
    let nodes = (1..=reach)
        .filter(|nodes| best(&LayoutProblem { nnodes: *nodes, ..free.clone() }).is_some())
        .collect();
    let Text { en: nodes_en, zh: nodes_zh } = one_of(&nearest(*nnodes, nodes));
    Refusal::new(
        Id::LayoutUnsolvable,
        text!(
            "no number of processes per node from 1 to {most} on {nnodes} nodes is legal for {heads} attention heads (rule {rule_en})",
            "{nnodes} 个节点上，每节点 1 到 {most} 个进程都不适合 {heads} 个注意力头（规则 {rule_zh}）"
        ),
        text!(
            "use {nodes_en} nodes, or ulysses_size 1 (every rank then works on its own); --layout none skips this check",
            "请使用 {nodes_zh} 个节点，或将 ulysses_size 设为 1（各进程独立计算）；--layout none 可跳过该检查"
        ),
    )
}

/// The few values closest to `wanted`, in rising order.
fn nearest(wanted: u32, mut values: Vec<u32>) -> Vec<u32> {
    values.order_by_key(|value| (value.abs_diff(wanted), *value));
    values.truncate(NEAREST);
    values.sort_unstable();
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use verdict::Verdict;

    fn problem(rule: LayoutRule, nnodes: u32, most: u32, heads: Option<u32>) -> LayoutProblem {
        let (exact, world) = (None, None);
        LayoutProblem { rule, nnodes, world, most, exact, heads, ulysses: None, ring: None }
    }

    fn literal(argument: &str, value: u32) -> Option<Literal> {
        Some(Literal { argument: argument.into(), value })
    }

    #[test]
    fn the_largest_legal_number_of_processes_is_chosen() {
        use LayoutRule::{None as Free, UlyssesRing as Ring, UlyssesWorld as World};
        // Rule, nodes, GPUs, heads → processes per node, ulysses, ring.
        let cases = [
            (World, 2, 8, Some(40), (5, 10, 1)),
            (World, 2, 7, Some(40), (5, 10, 1)),
            (World, 2, 4, Some(40), (4, 8, 1)),
            (World, 1, 8, Some(40), (8, 8, 1)),
            (World, 2, 8, Some(24), (6, 12, 1)),
            (World, 3, 8, Some(24), (8, 24, 1)),
            (World, 8, 8, Some(40), (5, 40, 1)),
            (World, 1, 1, Some(40), (1, 1, 1)),
            (World, 2, 8, None, (8, 16, 1)),
            (Ring, 2, 8, Some(40), (8, 8, 2)),
            (Ring, 1, 8, Some(12), (8, 4, 2)),
            (Ring, 1, 5, Some(24), (5, 1, 5)),
            (Ring, 3, 8, None, (8, 8, 3)),
            (Free, 3, 7, Some(40), (7, 1, 1)),
        ];
        for (rule, nnodes, most, heads, (nproc, ulysses, ring)) in cases {
            assert_eq!(
                solve(&problem(rule, nnodes, most, heads)),
                Ok(Sizes { nproc, world: nnodes * nproc, ulysses, ring }),
                "{rule:?} {nnodes}×{most} heads {heads:?}"
            );
        }
    }

    #[test]
    fn impossible_node_count_lists_the_nearest_possible_counts() {
        let refusal = solve(&problem(LayoutRule::UlyssesWorld, 3, 8, Some(40)))
            .expect_err("40 has no divisor that 3 divides");
        assert_eq!((refusal.verdict, refusal.id), (Verdict::Layout, Id::LayoutUnsolvable));
        assert!(
            refusal.hint.en.contains("use 1, 2, 4 or 5 nodes, or ulysses_size 1"),
            "{}",
            refusal.hint.en
        );
    }

    #[test]
    fn literal_reduces_processes_or_is_refused_by_name() {
        let with = |nnodes, most, value| LayoutProblem {
            ulysses: literal("--ulysses_size", value),
            ..problem(LayoutRule::UlyssesWorld, nnodes, most, Some(40))
        };
        for (nnodes, most, value, nproc) in
            [(2, 8, 10, 5), (2, 8, 4, 2), (1, 8, 5, 5), (2, 8, 1, 8), (3, 8, 1, 8)]
        {
            let sizes = solve(&with(nnodes, most, value)).expect("legal");
            assert_eq!((sizes.nproc, sizes.ulysses), (nproc, value));
        }
        // Nodes, GPUs, literal → words of the reason, a legal size.
        let refused = [
            (2, 7, 14, "40 attention heads are not divisible by 14", "10"),
            (2, 8, 16, "not divisible by 16", "10"),
            (1, 4, 8, "at most 4", "4"),
            (2, 8, 5, "spread evenly", "4"),
            (2, 8, 0, "1 or more", "1"),
        ];
        for (nnodes, most, value, reason, legal) in refused {
            let refusal = solve(&with(nnodes, most, value)).expect_err("illegal");
            assert_eq!(refusal.id, Id::LayoutLiteral);
            assert!(refusal.text.en.contains(&format!("--ulysses_size {value} ")));
            assert!(refusal.text.en.contains("ulysses-world"));
            assert!(refusal.text.en.contains(reason), "{}", refusal.text.en);
            assert!(refusal.hint.en.contains(legal), "{}", refusal.hint.en);
        }
    }

    #[test]
    fn literals_of_both_sizes_bind_a_ring_layout() {
        let with = |ulysses, ring| LayoutProblem {
            ulysses,
            ring,
            ..problem(LayoutRule::UlyssesRing, 2, 8, Some(40))
        };
        let cases = [
            (literal("--ulysses_size", 4), None, Some((8, 4, 4))),
            (literal("--ulysses_size", 10), None, Some((5, 10, 1))),
            (None, literal("--ring_size", 2), Some((8, 8, 2))),
            (None, literal("--ring_size", 3), Some((6, 4, 3))),
            (literal("--u", 5), literal("--r", 2), Some((5, 5, 2))),
            (literal("--u", 5), literal("--r", 3), None),
            (literal("--u", 3), None, None),
            (None, literal("--ring_size", 0), None),
        ];
        for (ulysses, ring, expected) in cases {
            let label = format!("{ulysses:?} {ring:?}");
            let found = solve(&with(ulysses, ring)).ok().map(|s| (s.nproc, s.ulysses, s.ring));
            assert_eq!(found, expected, "{label}");
        }
    }

    #[test]
    fn wrong_ring_alone_is_blamed() {
        let both = LayoutProblem {
            ulysses: literal("--ulysses_size", 8),
            ring: literal("--ring_size", 2),
            ..problem(LayoutRule::UlyssesWorld, 1, 8, Some(40))
        };
        let refusal = solve(&both).expect_err("a ring beside ulysses-world");
        assert!(refusal.text.en.starts_with("--ring_size 2 "), "{}", refusal.text.en);
        assert!(refusal.hint.en.contains("legal sizes here: 1;"), "{}", refusal.hint.en);
    }

    #[test]
    fn fixed_process_count_is_a_constraint() {
        let fixed = |nproc, heads| LayoutProblem {
            exact: Some((nproc, "--nproc-per-node".into())),
            ..problem(LayoutRule::UlyssesWorld, 2, 8, heads)
        };
        assert_eq!(solve(&fixed(4, Some(40))).map(|sizes| sizes.ulysses), Ok(8));
        assert_eq!(solve(&fixed(7, None)).map(|sizes| sizes.ulysses), Ok(14));
        let refusal = solve(&fixed(7, Some(40))).expect_err("14 does not divide 40");
        assert_eq!(refusal.id, Id::LayoutNproc);
        assert!(refusal.text.en.contains("--nproc-per-node 7 on 2 nodes makes 14 ranks"));
        assert!(refusal.hint.en.contains("1, 2, 4 or 5"), "{}", refusal.hint.en);
        let both = LayoutProblem { ulysses: literal("--ulysses_size", 10), ..fixed(4, Some(40)) };
        let refusal = solve(&both).expect_err("8 ranks, and 10 are asked for");
        assert_eq!(refusal.id, Id::LayoutLiteral);
        let text = refusal.text.en;
        assert!(text.contains("2 nodes × 4 processes give at most 8"), "{text}");
    }

    /// Tries every triple, independently of the solver's arithmetic.
    fn exhaustive(rule: LayoutRule, nnodes: u32, most: u32, heads: u32) -> Option<u32> {
        let mut best = None;
        for nproc in 1..=most {
            let world = nnodes * nproc;
            let legal = match rule {
                LayoutRule::None => true,
                LayoutRule::UlyssesWorld => (1..=heads).any(|k| k * world == heads) || world == 1,
                LayoutRule::UlyssesRing => (1..=world).any(|ulysses| {
                    (1..=world).any(|ring| {
                        ulysses * ring == world && (1..=heads).any(|k| k * ulysses == heads)
                    })
                }),
            };
            if legal {
                best = Some(nproc);
            }
        }
        best
    }

    #[test]
    fn the_solver_agrees_with_an_exhaustive_search() {
        for rule in [LayoutRule::None, LayoutRule::UlyssesWorld, LayoutRule::UlyssesRing] {
            for nnodes in 1..=8 {
                for most in 1..=8 {
                    for heads in [12, 24, 40] {
                        let found = solve(&problem(rule, nnodes, most, Some(heads)));
                        let label = format!("{rule:?} {nnodes}×{most} heads {heads}");
                        assert_eq!(
                            found.as_ref().ok().map(|sizes| sizes.nproc),
                            exhaustive(rule, nnodes, most, heads),
                            "{label}"
                        );
                        let Ok(Sizes { nproc, ulysses, ring, .. }) = found else { continue };
                        let world = nnodes * nproc;
                        match rule {
                            LayoutRule::None => {}
                            LayoutRule::UlyssesWorld => {
                                assert_eq!((ulysses, ring), (world, 1), "{label}");
                            }
                            LayoutRule::UlyssesRing => {
                                assert_eq!(ulysses * ring, world, "{label}");
                                let inside: Vec<u32> = (1..=nproc)
                                    .filter(|u| nproc % u == 0 && heads % u == 0)
                                    .collect();
                                assert_eq!(Some(&ulysses), inside.last(), "{label}");
                            }
                        }
                    }
                }
            }
        }
    }
}
