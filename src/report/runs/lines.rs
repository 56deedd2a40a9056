//! The output of all launchers of a run, merged in the order of time.
//!
//! Takes the folders of a run that can be read here, and for the other nodes of a running job its
//! agent. Gives lines. One page of each launcher is held, so that the memory does not depend on the
//! length of the run; with a thousand launchers a page is small.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use serde_json::Value;

use super::view::{JobLines, LinesAsk, NodeLines, View, ViewAsk, now_ms, refusal_of, silence};
use logs::{Cursor, LogLine, Page, Wanted, attempts, page};
use monitor::socket::{self, Answer, Ask, Listener};
use text::lang::{Text, cause};
use text::text;

/// Maximum bytes of all pages that are held.
const HELD: usize = 32 << 20;
const LARGEST_PAGE: usize = 1 << 20;
const SMALLEST_PAGE: usize = 16 * 1024;
/// Maximum number of launchers that one question asks for lines: a question has at most 32 KiB.
const AT_ONCE: usize = 256;

/// The next lines of one launcher.
#[derive(Debug, Default)]
struct Source {
    /// The number of the launcher in the job; None for a run that has ended.
    member: Option<u32>,
    /// The files of the launcher, if they can be read here.
    folder: Option<PathBuf>,
    cursor: Cursor,
    lines: VecDeque<LogLine>,
    is_end: bool,
    /// The time of the last line: a line without a time comes directly after it.
    at_ms: u64,
    /// Milliseconds by which the launcher's clock is behind ours.
    behind_ms: i64,
    /// The reason why the launcher gives nothing more.
    failed: Option<Text>,
    /// Files that were reported as not being logs.
    odd: BTreeSet<String>,
}

/// Start position of a viewer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    Start,
    /// A little before the end, where a person usually looks first.
    NearEnd,
}

/// The lines of a run.
#[derive(Debug)]
pub struct RunLines {
    sources: Vec<Source>,
    agent: Option<Listener>,
    asked: LinesAsk,
    wanted: Wanted,
    most: usize,
    /// Nothing will be written any more.
    is_over: bool,
    /// The largest rank number seen so far.
    pub last_rank: u32,
    /// Nodes that gave nothing, once each.
    pub problems: Vec<Text>,
}

impl RunLines {
    /// The lines in the folders of launchers. `is_over`: the folders are complete.
    pub fn of_folders(
        folders: Vec<PathBuf>,
        asked: LinesAsk,
        wanted: Wanted,
        is_over: bool,
    ) -> RunLines {
        let sources: Vec<Source> = folders
            .into_iter()
            .map(|folder| Source { folder: Some(folder), ..Source::default() })
            .collect();
        RunLines::new(sources, None, asked, wanted, is_over)
    }

    /// The lines of a running job; its agent knows the other launchers.
    ///
    /// # Errors
    /// If the agent does not answer.
    pub fn of_job(
        agents: &[Listener],
        run_id: &str,
        begin: Begin,
        asked: LinesAsk,
        wanted: Wanted,
    ) -> io::Result<RunLines> {
        let mut failed: Option<io::Error> = None;
        let mut sources: Vec<Source> = Vec::new();
        let mut problems = Vec::new();
        let mut agent = None;
        for one in agents {
            let began = Instant::now();
            let lines = match ask_lines(one, &LinesAsk { cursors: Vec::new(), ..asked.clone() }) {
                Ok(lines) => lines,
                Err(error) => {
                    failed = Some(error);
                    continue;
                }
            };
            let took = i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX);
            let JobLines { nodes, unanswered, reaches_all } = lines;
            for node in nodes {
                let NodeLines { member, now_ms: theirs, folder, near_end, problem, .. } = node;
                problems.extend(problem.map(|why| named(member, &why)));
                // A difference that the duration of the question explains is ignored.
                let behind =
                    i64::try_from(now_ms()).unwrap_or(0) - i64::try_from(theirs).unwrap_or(0);
                let behind = if behind.abs() > took.saturating_add(50) { behind } else { 0 };
                let Some(folder) = folder else { continue };
                // The folder may be shared by all nodes.
                let of_run = folder.parent().and_then(|run| run.file_name());
                let is_same = of_run.is_some_and(|name| name == run_id);
                let here = is_same && attempts(&folder).is_ok_and(|found| !found.is_empty());
                let local = here.then_some(folder);
                let (member, folder) = (Some(member), local);
                let mut source = Source { member, folder, behind_ms: behind, ..Source::default() };
                if begin == Begin::NearEnd {
                    source.cursor = near_end;
                }
                sources.push(source);
            }
            problems.extend(unanswered.iter().map(silence));
            if reaches_all {
                agent = Some(one.clone());
                break;
            }
            agent.get_or_insert_with(|| one.clone());
        }
        match (agent, failed) {
            (None, Some(error)) => Err(error),
            (agent, _) => {
                let mut lines = RunLines::new(sources, agent, asked, wanted, false);
                lines.problems = problems;
                Ok(lines)
            }
        }
    }

    fn new(
        sources: Vec<Source>,
        agent: Option<Listener>,
        asked: LinesAsk,
        wanted: Wanted,
        is_over: bool,
    ) -> RunLines {
        let most = (HELD / sources.len().max(1)).clamp(SMALLEST_PAGE, LARGEST_PAGE);
        let problems = Vec::new();
        RunLines { sources, agent, asked, wanted, most, is_over, last_rank: 0, problems }
    }

    /// Launchers whose output cannot be read here.
    pub fn are_remote(&self) -> bool {
        self.sources.iter().any(|source| source.folder.is_none())
    }

    /// The run writes nothing any more, so an incomplete line counts too. The last output of the
    /// other nodes cannot be requested.
    pub fn end(&mut self) {
        self.is_over = true;
        self.agent = None;
        self.look_again();
    }

    /// Reads sources again that were at their end: they may have more.
    pub fn look_again(&mut self) {
        for source in &mut self.sources {
            source.is_end = source.failed.is_some();
        }
    }

    /// Gives each line that is available now, in order. `show` returns whether it wants more.
    pub fn each(&mut self, mut show: impl FnMut(&LogLine, u32) -> bool) {
        loop {
            self.fill();
            let mut heads: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
            for (number, source) in self.sources.iter().enumerate() {
                heads.extend(source.next_ms().map(|at| Reverse((at, number))));
            }
            // A page may lack a wanted line: the next page may have an earlier one.
            if self.sources.iter().any(|source| !source.is_end && source.lines.is_empty()) {
                continue;
            }
            if heads.is_empty() {
                return;
            }
            // Continues until the page of a launcher is at its end, since the next page may have an
            // earlier line.
            while let Some(Reverse((at, number))) = heads.pop() {
                let Some(source) = self.sources.get_mut(number) else { break };
                let Some(line) = source.lines.pop_front() else { break };
                source.at_ms = at;
                if !show(&line, self.last_rank) {
                    return;
                }
                match source.next_ms() {
                    Some(next) => heads.push(Reverse((next, number))),
                    None if source.is_end => {}
                    None => break,
                }
            }
        }
    }

    /// Gives a page to each launcher that has none.
    fn fill(&mut self) {
        let mut remote: Vec<(u32, Cursor)> = Vec::new();
        for source in &mut self.sources {
            if source.is_end || !source.lines.is_empty() {
                continue;
            }
            match (&source.folder, source.member) {
                (Some(folder), _) => {
                    match page(folder, source.cursor, &self.wanted, self.most, self.is_over) {
                        Ok(page) => {
                            self.problems.extend(source.odd(&page));
                            self.last_rank = self.last_rank.max(source.take(page));
                        }
                        Err(error) => self.problems.extend(source.fail(&cause(&error))),
                    }
                }
                (None, Some(member)) if self.agent.is_some() => {
                    remote.push((member, source.cursor))
                }
                (None, _) => source.is_end = true,
            }
        }
        for cursors in remote.chunks(AT_ONCE) {
            self.ask(cursors);
        }
    }

    fn ask(&mut self, cursors: &[(u32, Cursor)]) {
        let Some(agent) = &self.agent else { return };
        let asked = LinesAsk { cursors: cursors.to_vec(), most: self.most, ..self.asked.clone() };
        let mut nodes = match ask_lines(agent, &asked) {
            Ok(lines) => lines.nodes,
            Err(_) => {
                // The job has ended, or its agent is busy: a follower looks again.
                for source in self.sources.iter_mut().filter(|source| source.folder.is_none()) {
                    source.is_end = true;
                }
                return;
            }
        };
        for (member, _) in cursors {
            let Some(source) = self.sources.iter_mut().find(|one| one.member == Some(*member))
            else {
                continue;
            };
            let node = nodes.iter_mut().find(|node| node.member == *member);
            match node.map(|node| (node.page.take(), node.problem.take())) {
                Some((Some(page), _)) => {
                    self.problems.extend(source.odd(&page));
                    self.last_rank = self.last_rank.max(source.take(page));
                }
                Some((None, Some(why))) => self.problems.extend(source.fail(&why)),
                // The launcher did not answer now.
                _ => source.is_end = true,
            }
        }
    }
}

impl Source {
    /// Messages about files that are not logs, once for each file.
    fn odd(&mut self, page: &Page) -> Vec<Text> {
        let new: Vec<&String> =
            page.odd.iter().filter(|name| self.odd.insert((*name).clone())).collect();
        let said = new.into_iter().map(|name| {
            let why = text!(
                "{name} is a link or no regular file, so it is not read",
                "{name} 是链接或不是普通文件，未读取"
            );
            self.about(&why)
        });
        said.collect()
    }

    fn about(&self, why: &Text) -> Text {
        match (self.member, &self.folder) {
            (Some(member), _) => named(member, why),
            (None, Some(folder)) => why.about(folder.display()),
            (None, None) => why.clone(),
        }
    }

    /// The time of the next line by our clock, never before the line before it.
    fn next_ms(&self) -> Option<u64> {
        let next = self.lines.front()?;
        let at = next.at_ms.map_or(self.at_ms, |at| at.saturating_add_signed(self.behind_ms));
        Some(at.max(self.at_ms))
    }

    /// Gives the largest number of a rank.
    fn take(&mut self, page: Page) -> u32 {
        let Page { lines, next, is_end, last_rank, odd: _ } = page;
        // Without this check the same page from a launcher of another version would repeat endlessly.
        self.is_end = is_end || (lines.is_empty() && next == self.cursor);
        self.lines = lines.into();
        self.cursor = next;
        last_rank
    }

    fn fail(&mut self, why: &Text) -> Option<Text> {
        self.is_end = true;
        let shown = self.about(why);
        let is_new = self.failed.is_none();
        self.failed = Some(shown.clone());
        is_new.then_some(shown)
    }
}

fn named(member: u32, why: &Text) -> Text {
    let Text { en, zh } = why;
    text!("node {member}: {en}", "节点 {member}：{zh}")
}

/// Asks an agent for lines.
///
/// # Errors
/// The agent gives no lines.
fn ask_lines(agent: &Listener, asked: &LinesAsk) -> io::Result<JobLines> {
    match view(agent, &ViewAsk::Lines(asked.clone()))? {
        View::Lines(lines) => Ok(lines),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Sends a viewer's question to an agent.
///
/// # Errors
/// If it is gone, refuses, or answers something else.
pub fn view(agent: &Listener, asked: &ViewAsk) -> io::Result<View> {
    let of: Value = serde_json::to_value(asked)?;
    match socket::ask(agent, &Ask::View { of })? {
        Answer::View { what } => Ok(serde_json::from_value(what)?),
        other => {
            let why = refusal_of(&other);
            Err(text::lang::failure(io::ErrorKind::PermissionDenied, why))
        }
    }
}
