//! Chooses the piece of evidence that is the cause.
//!
//! The earliest root wins, with these exceptions. An exception that only the program itself
//! explains and a bare exit status yield to every other root. A root that also occurs as a
//! consequence (a time-out, a signal) must be the very first. Output of another program before or
//! after the job yields to the output of the job itself. A problem that was survived is no root. If
//! there are only consequences, the cause is not visible.
//!
//! Ranks that time out in a collective say so. The culprit, a straggler, says nothing, or names an earlier collective.

use std::collections::{BTreeMap, BTreeSet};

use super::advice::advice;
use super::candidates::{Candidate, Enough, Known, Recorded, Strength, candidates, is_raised};
use super::catalogue::Catalogue;
use super::evidence::{Evidence, Frame, Node};
use super::rows::{Role, RowIndex, Stream, USER_EXCEPTION, captured, filled};
use super::run::Ended;
use super::scan::Scanned;
use super::versions::Versions;
use text::lang::Text;
use text::order::{InOrder, Ordered};
use text::rank::GlobalRank;
use text::text;
use verdict::{AlsoFailed, Confidence, Owner, Retry, Victims, Why};

/// The cause of a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    pub row: RowIndex,
    pub node: Option<Node>,
    /// The last frame of the user's own code.
    pub frame: Option<Frame>,
    /// The line that shows the cause.
    pub evidence: Evidence,
    /// The same cause in the form that is printed, stored and sent, without the name of the log.
    pub why: Why,
}

/// The statements of logs about the end of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Diagnosis {
    /// None: no line of these logs shows the cause, or nothing failed.
    pub cause: Option<Cause>,
    /// Causes that do not depend on the first one.
    pub also: Vec<Cause>,
    /// What would decide more: the output of a rank that failed, or a line that a consequence speaks of. None: the cause
    /// is known, or nothing failed.
    pub needed: Option<Text>,
    /// Whether any line shows a failure.
    pub failed: bool,
    /// Whether any line shows that the job ended well. Lines without a known meaning show neither.
    pub done: bool,
    /// All evidence in the order of the logs, each row once per rank.
    pub findings: Vec<Evidence>,
}

/// The cause, from logs that somebody asks about: parts of the logs of one job. `has_failed`: the
/// failure is known from another source.
#[cfg(any(test, feature = "fixtures"))]
pub fn diagnose(catalogue: &Catalogue, logs: &[Scanned], has_failed: bool) -> Diagnosis {
    chosen(catalogue, logs, &Known { has_failed, ..Known::default() })
}

/// The cause, from the whole output of a job, which may still run.
pub fn diagnose_whole(catalogue: &Catalogue, logs: &[Scanned], has_failed: bool) -> Diagnosis {
    chosen(catalogue, logs, &Known { has_failed, is_whole: true, ..Known::default() })
}

/// The cause, if the launcher knows more about the job than its logs hold.
pub fn diagnose_knowing(catalogue: &Catalogue, logs: &mut [Scanned], known: &Known) -> Diagnosis {
    known.settle(catalogue, logs);
    chosen(catalogue, logs, known)
}

fn chosen(catalogue: &Catalogue, logs: &[Scanned], known: &Known) -> Diagnosis {
    let runs: Vec<&Ended> = logs.iter().flat_map(|log| &log.runs).collect();
    let evidence = || runs.iter().flat_map(|run| &run.evidence);
    let failed = evidence().any(|one| one.fate.failure);
    let done = runs.iter().any(|run| run.done);
    let mut versions = Versions::default();
    runs.iter().for_each(|run| versions.add(&run.versions));
    let of_all = |enough: Enough| -> Vec<Vec<Candidate<'_>>> {
        let of_runs = runs.iter().map(|run| candidates(catalogue, run, enough, &versions));
        of_runs.filter(|of| !of.is_empty()).collect()
    };
    let enough = match failed || known.has_failed || !of_all(Enough::Stated).is_empty() {
        true => Enough::Told,
        false if known.is_whole => Enough::Stated,
        false => Enough::LastWord,
    };
    let candidates = of_all(enough);
    let recorded = known.recorded.as_ref();
    let warning = || warned(&candidates).filter(|_| failed || enough == Enough::LastWord);
    let chosen = recorded
        .and_then(|recorded| found_before(&candidates, recorded))
        .or_else(|| choose(&candidates, &known.failed));
    let chosen = match chosen {
        Some(last) if last.row.last_resort => {
            warning().filter(|one| precedes(one, &last)).or(chosen)
        }
        _ => chosen.or_else(warning),
    };
    let findings: Vec<Evidence> = evidence().cloned().collect();
    let needed = needed(catalogue, &runs, chosen.as_ref(), &findings).filter(|_| failed);
    let Some(told) = chosen else {
        let done = done && !failed;
        return Diagnosis { needed, failed, done, findings, ..Diagnosis::default() };
    };
    let chosen = from_hardware(&candidates, told);
    let others: Vec<Candidate<'_>> = candidates.iter().flatten().copied().collect();
    let own = catalogue.is_own(chosen.evidence.row);
    let mut confidence = confidence(&chosen, own, &others, &findings);
    if !versions.confirm(chosen.row) {
        confidence = confidence.min(Confidence::Likely);
    }
    let frame = chosen.evidence.frame.as_ref().or(told.evidence.frame.as_ref());
    let mut cause = cause(&chosen, confidence, chosen.run.blamed, frame, &findings, &versions);
    let of_other = |other: &Candidate<'_>| {
        let frame = other.evidence.frame.as_ref();
        self::cause(other, Confidence::Likely, None, frame, &findings, &versions)
    };
    let also: Vec<Cause> = independent(&chosen, &others).iter().map(of_other).collect();
    cause.why.victims = victims(catalogue, &cause, &findings);
    let named = |Why { id, text, rank, .. }: Why| AlsoFailed { id, text, rank };
    cause.why.also = also.iter().map(|other| named(other.why.clone())).collect();
    Diagnosis { cause: Some(cause), also, needed, failed: true, done: false, findings }
}

/// What would decide more. A rank that failed first, and whose own error is not here, knows more than others.
fn needed(
    catalogue: &Catalogue,
    runs: &[&Ended],
    chosen: Option<&Candidate<'_>>,
    findings: &[Evidence],
) -> Option<Text> {
    let is_root = |one: &Evidence| {
        let row = catalogue.row(one.row);
        row.is_some_and(|row| row.role == Role::Root && !row.stream.is_record())
    };
    let said = |rank: GlobalRank| findings.iter().any(|one| one.rank == Some(rank) && is_root(one));
    let blamed = runs.iter().filter_map(|run| run.blamed);
    let named = runs.iter().filter_map(|run| run.named);
    let silent = blamed.chain(named).find(|rank| !said(*rank));
    let decided = chosen.is_some_and(|one| {
        one.strength == Strength::Strong
            || one.strength == Strength::Weak && !one.row.stream.is_record()
            || one.evidence.rank.is_some() && one.evidence.rank == silent
    });
    // A line without a rank may be that of any rank.
    let of_any = chosen.is_some_and(|one| one.evidence.rank.is_none() && is_root(one.evidence));
    if let Some(GlobalRank(rank)) = silent.filter(|_| !decided && !of_any) {
        return Some(text!(
            "the first error of rank {rank}: the logs name it as failed, and its own error is not in them",
            "rank {rank} 的第一个错误：日志指出它已失败，但没有它自己的报错"
        ));
    }
    let is_cascade =
        |one: &&Evidence| catalogue.row(one.row).is_some_and(|row| row.role == Role::Cascade);
    let first = findings.iter().find(is_cascade).filter(|_| chosen.is_none())?;
    Some(catalogue.row(first.row)?.remedy.clone())
}

/// The root that was the cause while the ranks ran, when the order of all lines was known.
fn found_before<'a>(logs: &[Vec<Candidate<'a>>], recorded: &Recorded) -> Option<Candidate<'a>> {
    let alike = |one: &&Candidate<'a>| {
        let ranks = one.evidence.rank.zip(recorded.rank);
        one.row.id == recorded.id && ranks.is_none_or(|(one, other)| one == other)
    };
    let all = || logs.iter().flatten().filter(alike);
    all().find(|one| one.evidence.first.line == recorded.line).or_else(|| all().next()).copied()
}

/// The cause among several logs. If times give the order of the logs, they are treated as one log.
/// The same holds if the order is known in which their ranks failed. Otherwise the strongest root
/// wins.
fn choose<'a>(logs: &[Vec<Candidate<'a>>], failed: &[GlobalRank]) -> Option<Candidate<'a>> {
    let winner = |log: &Vec<Candidate<'a>>| earliest(log).map(|one| announced(log, one));
    let winners: Vec<Candidate<'a>> = logs.iter().filter_map(winner).collect();
    if let Some(winners) = in_time(&winners) {
        // A warning is among the winners only if it led to another root.
        return earliest(&winners).or_else(|| winners.first().copied());
    }
    if !failed.is_empty() {
        let place = |one: &Candidate<'_>| {
            let place = failed.iter().position(|rank| Some(*rank) == one.evidence.rank);
            place.unwrap_or(failed.len())
        };
        let mut winners = winners;
        winners.order_by_key(place);
        return earliest(&winners);
    }
    let worth = |one: &Candidate<'_>| match one.strength {
        Strength::Strong => 3,
        // A warning is among the winners only if it led to another root.
        Strength::Weak | Strength::Warned => 2,
        Strength::FirstOnly => 1,
        Strength::Aside => 0,
    };
    // The first root of those with the same strength.
    winners.into_iter().rev().max_by_key(worth)
}

/// The winners in the order of their times; None unless each is known to be before the next.
fn in_time<'a>(winners: &[Candidate<'a>]) -> Option<Vec<Candidate<'a>>> {
    let mut winners = winners.to_vec();
    winners.order_by_key(|one| one.evidence.time.map(|time| time.nanoseconds));
    let known = |pair: &[Candidate<'_>]| match pair {
        [one, other] => is_before(one.evidence, other.evidence),
        _ => false,
    };
    winners.windows(2).all(known).then_some(winners)
}

/// Whether the times of two lines prove that the first was written first.
fn is_before(one: &Evidence, other: &Evidence) -> bool {
    one.until.zip(other.time).and_then(|(until, time)| until.is_until(time)) == Some(true)
}

/// The cause among roots in order of time.
fn earliest<'a>(candidates: &[Candidate<'a>]) -> Option<Candidate<'a>> {
    let of = |strength: Strength| candidates.iter().find(|one| one.strength == strength).copied();
    let position = |wanted: &Candidate<'_>| {
        candidates.iter().position(|one| std::ptr::eq(one.evidence, wanted.evidence))
    };
    let (strong, weak, first_only) =
        (of(Strength::Strong), of(Strength::Weak), of(Strength::FirstOnly));
    let before = |one: &Candidate<'_>, other: &Option<Candidate<'_>>| {
        other.as_ref().is_none_or(|other| position(one) < position(other))
    };
    first_only
        .filter(|one| before(one, &strong) && before(one, &weak))
        .or(strong)
        .or(weak)
        .or(first_only)
        .or_else(|| of(Strength::Aside))
}

/// The warning that led to the winner of a log; without such a warning, the winner.
fn announced<'a>(log: &[Candidate<'a>], winner: Candidate<'a>) -> Candidate<'a> {
    let leads = |one: &&Candidate<'a>| {
        one.strength == Strength::Warned
            && one.evidence.first < winner.evidence.first
            && leads_to(one, &winner)
    };
    log.iter().find(leads).copied().unwrap_or(winner)
}

/// The hardware fault that led to the chosen root; without such a fault, the root. The kernel may
/// report the fault after the program has failed.
fn from_hardware<'a>(logs: &[Vec<Candidate<'a>>], chosen: Candidate<'a>) -> Candidate<'a> {
    let leads = |one: &&Candidate<'a>| one.row.stream == Stream::Kernel && leads_to(one, &chosen);
    logs.iter().flatten().find(leads).copied().unwrap_or(chosen)
}

/// Whether the second root is a known consequence of the first, for the same rank.
fn leads_to(one: &Candidate<'_>, other: &Candidate<'_>) -> bool {
    one.evidence.rank == other.evidence.rank && one.row.leads_to.contains(&other.row.id)
}

/// Whether the first root may have led to the second.
fn precedes(one: &Candidate<'_>, other: &Candidate<'_>) -> bool {
    let (one, other) = (one.evidence.first, other.evidence.first);
    one.log != other.log || one < other
}

/// A root that only warnings mention. It is used if nothing else explains the failure.
fn warned<'a>(logs: &[Vec<Candidate<'a>>]) -> Option<Candidate<'a>> {
    logs.iter().flatten().find(|one| one.strength == Strength::Warned).copied()
}

/// `own`: the row comes from the profile and defines the meaning of the line, whatever else the
/// line holds.
fn confidence(
    chosen: &Candidate<'_>,
    own: bool,
    others: &[Candidate<'_>],
    findings: &[Evidence],
) -> Confidence {
    let one = chosen.evidence;
    // For another log, only times show whether the evidence came later.
    let later = |other: &Evidence| {
        if other.first.log == one.first.log {
            other.first > one.first
        } else {
            is_before(one, other)
        }
    };
    let earlier = |other: &Evidence| {
        let dated = one.time.is_some() && other.until.is_some();
        if other.first.log != one.first.log && dated {
            is_before(other, one)
        } else {
            other.first < one.first
        }
    };
    let ended = one.uncaught
        || chosen.row.stream.is_record()
        || findings.iter().any(|other| other.row != one.row && other.fate.failure && later(other));
    let ended = ended && one.fate.last_word && !chosen.run.doubtful;
    let alone = |strengths: &[Strength]| {
        others.iter().all(|other| {
            let same_line = own && other.evidence.first == one.first;
            other.evidence.row == one.row
                || same_line
                || leads_to(chosen, other)
                || !strengths.contains(&other.strength)
        })
    };
    // An exception that no code caught before this line may be the cause as well.
    let preceded = others.iter().any(|other| is_raised(other) && earlier(other.evidence));
    let certain = match chosen.strength {
        Strength::Strong => ended && !preceded && alone(&[Strength::Strong]),
        Strength::FirstOnly => {
            chosen.row.stream.is_record()
                && !chosen.run.doubtful
                && alone(&[Strength::Strong, Strength::Weak])
        }
        Strength::Weak | Strength::Warned | Strength::Aside => false,
    };
    if certain { Confidence::Certain } else { Confidence::Likely }
}

fn cause(
    chosen: &Candidate<'_>,
    confidence: Confidence,
    blamed: Option<GlobalRank>,
    frame: Option<&Frame>,
    findings: &[Evidence],
    versions: &Versions,
) -> Cause {
    let Candidate { evidence, row, strength, .. } = *chosen;
    let missing = stragglers(evidence, findings);
    let blamed = blamed.filter(|_| strength == Strength::Weak);
    let rank = match &missing[..] {
        [only] => Some(*only),
        _ => evidence.rank.or(blamed),
    };
    let told = Told::of(&chosen.row.id, evidence, frame, versions);
    let captures = with_exception(&evidence.captures);
    let text = filled(told.cause.as_ref().unwrap_or(&row.cause), &captures);
    let remedy = told.remedy.unwrap_or_else(|| filled(&row.remedy, &captures));
    let why = Why {
        confidence,
        owner: told.owner.unwrap_or(row.owner),
        retry: told.retry.unwrap_or(row.retry),
        rank: rank.map(|rank| rank.0),
        frame: frame.map(Frame::with_function),
        line: evidence.first.line,
        evidence: evidence.text.clone(),
        missing: missing.iter().map(|rank| rank.0).collect(),
        ..Why::without_log(&row.id, text, remedy)
    };
    let (node, frame) = (evidence.node.clone(), frame.cloned());
    Cause { row: evidence.row, node, frame, evidence: evidence.clone(), why }
}

/// The matched words, with those of an exception as Python prints it.
fn with_exception(captures: &[(String, String)]) -> Vec<(String, String)> {
    let exception = match (captured(captures, "type"), captured(captures, "message")) {
        (Some(kind), None | Some("")) => Some(kind.to_owned()),
        (Some(kind), Some(message)) => Some(format!("{kind}: {message}")),
        (None, _) => None,
    };
    let exception = exception.map(|words| ("exception".to_owned(), words));
    captures.iter().cloned().chain(exception).collect()
}

/// What an exception without a row tells about itself, in place of the words of the row for all of them.
#[derive(Debug, Default)]
struct Told {
    cause: Option<Text>,
    remedy: Option<Text>,
    owner: Option<Owner>,
    retry: Option<Retry>,
}

/// Whether the type of an exception says that a peer or the network did not answer.
fn passes(evidence: &Evidence) -> bool {
    let kind = captured(&evidence.captures, "type");
    kind.is_some_and(|kind| ["Timeout", "Connect"].iter().any(|word| kind.contains(word)))
}

impl Told {
    fn of(id: &str, evidence: &Evidence, frame: Option<&Frame>, versions: &Versions) -> Told {
        if id != USER_EXCEPTION {
            return Told::default();
        }
        let advice = captured(&evidence.captures, "message").and_then(advice);
        let package = evidence.package.as_ref().filter(|_| frame.is_none()).map(|package| {
            let name = package.to_string();
            versions.of(&name).map_or(name.clone(), |version| format!("{name} {version}"))
        });
        let general = package.as_ref().map(|package| {
            text!(
                "Look for this message in the issues of {package}, and compare its version with what it requires (torch, CUDA, driver); the same start will fail again.",
                "请在 {package} 的 issue 中查找该报错，并核对其版本与所要求的 torch、CUDA 和驱动；以相同方式启动会再次失败。"
            )
        });
        let advised = advice
            .map(|advice| text!("The message itself says: {advice}", "报错本身给出：{advice}"));
        let cause = package.as_ref().map(|package| {
            text!(
                "{package} raised {{exception}}; no frame of the program's own code is in the traceback.",
                "{package} 抛出 {{exception}}；堆栈中没有程序自己的代码。"
            )
        });
        Told {
            cause,
            remedy: advised.or(general),
            retry: package.as_ref().filter(|_| passes(evidence)).map(|_| Retry::SameNodes),
            owner: package.map(|_| Owner::Image),
        }
    }
}

/// Roots of other ranks that the chosen root does not explain, each row once.
fn independent<'a>(chosen: &Candidate<'a>, others: &[Candidate<'a>]) -> Vec<Candidate<'a>> {
    let mut rows = BTreeSet::from([chosen.evidence.row]);
    others
        .iter()
        .filter(|other| independent_of(chosen, other) && rows.insert(other.evidence.row))
        .copied()
        .collect()
}

fn independent_of(chosen: &Candidate<'_>, other: &Candidate<'_>) -> bool {
    let ranks = (chosen.evidence.rank, other.evidence.rank);
    let apart = matches!(ranks, (Some(one), Some(other)) if one != other);
    apart
        && chosen.strength == Strength::Strong
        && other.strength == Strength::Strong
        && other.evidence.row != chosen.evidence.row
}

/// The ranks for which only consequences are known, by the first consequence.
fn victims(catalogue: &Catalogue, cause: &Cause, findings: &[Evidence]) -> Vec<Victims> {
    let mut of_rank: BTreeMap<GlobalRank, RowIndex> = BTreeMap::new();
    let mut own: BTreeSet<GlobalRank> =
        cause.why.rank.iter().chain(&cause.why.missing).map(|rank| GlobalRank(*rank)).in_set();
    for one in findings {
        let (Some(rank), Some(row)) = (one.rank, catalogue.row(one.row)) else { continue };
        match row.role {
            Role::Cascade => {
                of_rank.entry(rank).or_insert(one.row);
            }
            // A rank with the same row of last resort did not wait for the culprit.
            Role::Root if row.first_only || row.last_resort && one.row != cause.row => {
                of_rank.entry(rank).or_insert(one.row);
            }
            Role::Root => {
                own.insert(rank);
            }
            Role::Confirmation | Role::Context => {}
        }
    }
    let mut victims: BTreeMap<RowIndex, Vec<u32>> = BTreeMap::new();
    for (rank, row) in of_rank {
        if !own.contains(&rank) {
            victims.entry(row).or_default().push(rank.0);
        }
    }
    let named = |(row, ranks)| {
        let row = catalogue.row(row)?;
        Some(Victims { ranks, id: row.id.clone(), text: filled(&row.cause, &[]) })
    };
    victims.into_iter().filter_map(named).collect()
}

/// The text before the number of the collective in the messages of c10d's watchdog.
const SEQUENCE: &str = "SeqNum=";

/// The group of a line: `5(tp)` of `[PG ID 1 PG GUID 5(tp) Rank 0]`, `1` of `[PG 1 Rank 0]`. None: torch before
/// version 2.3 names no group.
fn group(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("[PG ")?;
    let (group, _) = rest.split_once(" Rank ")?;
    Some(group.rsplit_once("GUID ").map_or(group, |(_, name)| name))
}

/// Whether the group is the group of all ranks, which torch makes first.
fn is_of_all(group: &str) -> bool {
    group == "0" || group.contains("default_pg")
}

/// The missing ranks: known ranks without a line, or ranks behind all others. Empty if nothing distinguishes the
/// ranks: each group counts by itself, and members are known only for the group of all ranks.
pub(super) fn stragglers(cause: &Evidence, findings: &[Evidence]) -> Vec<GlobalRank> {
    let sequence = |one: &Evidence| {
        let (_, number) = one.text.split_once(SEQUENCE)?;
        number.split(|letter: char| !letter.is_ascii_digit()).next()?.parse::<u64>().ok()
    };
    let lines = || {
        let of_row = findings.iter().filter(|one| one.row == cause.row);
        of_row.filter_map(|one| Some((one, one.rank?, sequence(one)?)))
    };
    let waited: BTreeMap<GlobalRank, u64> = lines().map(|(_, rank, at)| (rank, at)).in_map();
    let groups: BTreeSet<Option<&str>> = lines().map(|(one, ..)| group(&one.text)).in_set();
    if waited.len() < 2 || groups.len() > 1 {
        return Vec::new();
    }
    let all_are_in_it = groups.iter().flatten().all(|group| is_of_all(group));
    let highest = findings.iter().filter_map(|one| one.rank).max().map_or(0, |rank| rank.0);
    let known = u64::from(highest) + 1;
    // Silence of more than half of the ranks says more about the log than about the ranks.
    let silent = known.saturating_sub(waited.len() as u64);
    if all_are_in_it && silent > 0 && silent < waited.len() as u64 {
        return (0..=highest).map(GlobalRank).filter(|rank| !waited.contains_key(rank)).collect();
    }
    let (Some(least), Some(most)) = (waited.values().min(), waited.values().max()) else {
        return Vec::new();
    };
    if least == most || silent > 0 {
        return Vec::new();
    }
    let behind: Vec<GlobalRank> =
        waited.iter().filter(|(_, at)| *at == least).map(|(rank, _)| *rank).collect();
    if behind.len() * 2 <= waited.len() { behind } else { Vec::new() }
}
