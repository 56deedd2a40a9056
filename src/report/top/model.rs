//! The state of the view: the known job, the selection, and the shown page.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::screen::Key;
use super::tables::{Order, Row, rows};
use crate::line_view::{LineStyle, log_line};
use logs::LogLine;
use monitor::status::NodeStatus;
use text::lang::{Lang, Text};
use text::rank::GlobalRank;
use text::text;

/// Maximum number of lines that are kept of the selected rank.
const KEPT_BELOW: usize = 200;
/// Maximum number of log lines that are kept for scrolling.
const KEPT: usize = 5000;
/// The view reports silence after this time without news.
const STALE: Duration = Duration::from_secs(5);

/// The source of the news for the view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The run's socket, which also gives logs, stacks and the plan.
    Socket,
    /// The `/status` of one node.
    Http(String),
}

/// A piece of news for the view.
#[derive(Debug)]
pub enum News {
    Status {
        nodes: Vec<NodeStatus>,
        unanswered: Vec<Text>,
    },
    /// The job does not answer: it may have ended.
    Silent(Text),
    Lines(GlobalRank, Vec<LogLine>),
    Stacks(GlobalRank, String),
    Plan(Value),
    /// The text that a page shows in place of the requested content.
    Failed(Request, Text),
}

/// A request of the person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Follow the log of this rank.
    Log(GlobalRank),
    Stacks(GlobalRank),
    Plan,
    /// The requested content is no longer shown.
    Nothing,
    Quit,
}

/// The page that fills the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Page {
    Ranks,
    Nodes,
    Log(GlobalRank),
    Stacks(GlobalRank),
    Plan,
    Help,
}

impl Page {
    /// The request whose answer it shows.
    fn request(&self) -> Option<Request> {
        match self {
            Page::Log(rank) => Some(Request::Log(*rank)),
            Page::Stacks(rank) => Some(Request::Stacks(*rank)),
            Page::Plan => Some(Request::Plan),
            Page::Ranks | Page::Nodes | Page::Help => None,
        }
    }
}

#[derive(Debug)]
pub struct Model {
    pub(super) lang: Lang,
    pub(super) source: Source,
    /// The owner of the job, if that is another person.
    pub(super) owner: Option<String>,
    pub(super) nodes: Vec<NodeStatus>,
    pub(super) unanswered: Vec<Text>,
    /// The reason why the job does not answer.
    pub(super) silent: Option<Text>,
    heard: Option<Instant>,
    pub(super) page: Page,
    pub(super) order: Order,
    pub(super) is_reversed: bool,
    pub(super) filter: String,
    /// The filter is being typed.
    pub(super) is_typing: bool,
    selected: Option<GlobalRank>,
    /// For a page of text: lines above the window; None if its end is followed.
    pub(super) above: Option<usize>,
    pub(super) text: VecDeque<String>,
    /// The last lines of the selected rank, below the table of ranks, and the rank that they are of.
    tail: VecDeque<String>,
    tail_of: Option<GlobalRank>,
    /// Rows for these lines, when the screen was last drawn.
    pub(super) tail_room: usize,
    /// The message that a page shows while it waits, or in place of its content.
    pub(super) notice: Option<Text>,
    /// Number of table rows, or of whole lines of text, that the screen showed when it was last
    /// drawn.
    pub(super) fits: usize,
    /// For a page of text: lines above its last window, when it was last drawn.
    pub(super) last: usize,
}

impl Model {
    pub fn new(source: Source, lang: Lang) -> Model {
        Model {
            lang,
            source,
            owner: None,
            nodes: Vec::new(),
            unanswered: Vec::new(),
            silent: None,
            heard: None,
            page: Page::Ranks,
            order: Order::Rank,
            is_reversed: false,
            filter: String::new(),
            is_typing: false,
            selected: None,
            above: None,
            text: VecDeque::new(),
            tail: VecDeque::new(),
            tail_of: None,
            tail_room: 0,
            notice: None,
            fits: 10,
            last: 0,
        }
    }

    /// Shows the owner of the job: any user may claim to have one.
    #[must_use]
    pub fn of_user(self, owner: Option<String>) -> Model {
        Model { owner, ..self }
    }

    pub fn hear(&mut self, news: News) {
        match news {
            News::Status { nodes, unanswered } => {
                self.heard = Some(Instant::now());
                self.silent = None;
                self.nodes = nodes;
                self.unanswered = unanswered;
            }
            News::Silent(why) => self.silent = Some(why),
            News::Lines(rank, lines) if self.page == Page::Log(rank) => {
                let style = LineStyle { width: 0, timestamps: false, lang: self.lang };
                for one in lines {
                    let mark = if one.is_err { "! " } else { "  " };
                    self.text.push_back(format!("{mark}{}", log_line(&one, style)));
                }
                let surplus = self.text.len().saturating_sub(KEPT);
                self.text.drain(..surplus);
                self.above = self.above.map(|above| above.saturating_sub(surplus));
                self.notice = None;
            }
            News::Lines(rank, lines) if self.tail_of == Some(rank) => {
                let style = LineStyle { width: 0, timestamps: false, lang: self.lang };
                self.tail.extend(lines.iter().map(|one| log_line(one, style)));
                let surplus = self.tail.len().saturating_sub(KEPT_BELOW);
                self.tail.drain(..surplus);
            }
            News::Stacks(rank, text) if self.page == Page::Stacks(rank) => self.show(&text),
            News::Plan(plan) if self.page == Page::Plan => {
                let text = plan_text(&plan, self.lang);
                self.show(&text);
            }
            News::Failed(asked, why) if self.page.request() == Some(asked) => {
                self.notice = Some(why);
            }
            News::Lines(..) | News::Stacks(..) | News::Plan(_) | News::Failed(..) => {}
        }
    }

    fn show(&mut self, text: &str) {
        self.text = text.lines().map(|line| line.replace('\t', "    ")).collect();
        self.above.get_or_insert(0);
        self.notice = None;
    }

    /// Time since the last news of the job, if that is long.
    pub(super) fn stale(&self) -> Option<Duration> {
        self.heard.map(|at| at.elapsed()).filter(|since| *since > STALE)
    }

    pub(super) fn rows(&self) -> Vec<Row<'_>> {
        let mut rows = rows(&self.nodes, &self.filter);
        self.order.sort(&mut rows);
        if self.is_reversed {
            rows.reverse();
        }
        rows
    }

    /// The request for the lines of the selected rank, where there is room for them and they are not asked for yet.
    pub fn wants(&mut self) -> Option<Request> {
        if self.page != Page::Ranks || self.tail_room == 0 || self.source != Source::Socket {
            return None;
        }
        let rows = self.rows();
        let rank = rows.get(self.selected(&rows))?.rank.rank;
        if self.tail_of == Some(rank) {
            return None;
        }
        // The selection stays with its rank, whatever comes first by the order.
        (self.selected, self.tail_of) = (Some(rank), Some(rank));
        self.tail.clear();
        Some(Request::Log(rank))
    }

    /// The last lines of this rank, if they are known.
    pub(super) fn tail_of(&self, rank: GlobalRank) -> Option<&VecDeque<String>> {
        Some(&self.tail).filter(|tail| self.tail_of == Some(rank) && !tail.is_empty())
    }

    /// The position of the selected rank among the rows.
    pub(super) fn selected(&self, rows: &[Row<'_>]) -> usize {
        let is_selected = |row: &Row<'_>| Some(row.rank.rank) == self.selected;
        rows.iter().position(is_selected).unwrap_or(0)
    }

    pub fn press(&mut self, key: Key) -> Option<Request> {
        if key == Key::Quit {
            return Some(Request::Quit);
        }
        if self.is_typing {
            self.typed(key);
            return None;
        }
        if let (Page::Ranks, Some(steps)) = (&self.page, self.steps(key)) {
            self.select(steps);
            return None;
        }
        if let Some(steps) = self.steps(key) {
            self.scroll(steps);
            return None;
        }
        match (key, &self.page) {
            (Key::Letter('q'), Page::Ranks) => Some(Request::Quit),
            (Key::Letter('q') | Key::Escape, page) if *page != Page::Ranks => {
                self.open(Page::Ranks, None);
                Some(Request::Nothing)
            }
            (Key::Escape, _) => {
                self.filter.clear();
                None
            }
            (Key::Letter('/'), Page::Ranks) => {
                self.is_typing = true;
                None
            }
            (Key::Letter('s'), Page::Ranks) => {
                self.order = self.order.next();
                None
            }
            (Key::Letter('r'), Page::Ranks) => {
                self.is_reversed = !self.is_reversed;
                None
            }
            (Key::Letter('l') | Key::Enter, Page::Ranks) => self.of_rank(Page::Log, Request::Log),
            (Key::Letter('t'), Page::Ranks | Page::Log(_) | Page::Stacks(_)) => {
                self.of_rank(Page::Stacks, Request::Stacks)
            }
            (Key::Letter('l'), Page::Stacks(_)) => self.of_rank(Page::Log, Request::Log),
            (Key::Letter('p'), _) => {
                self.open(Page::Plan, Some(0));
                self.asked(Request::Plan)
            }
            (Key::Letter('n'), _) => {
                self.open(Page::Nodes, Some(0));
                Some(Request::Nothing)
            }
            (Key::Letter('?' | 'h'), _) => {
                self.open(Page::Help, Some(0));
                Some(Request::Nothing)
            }
            _ => None,
        }
    }

    fn typed(&mut self, key: Key) {
        match key {
            Key::Letter(letter) if self.filter.len() < 60 => self.filter.push(letter),
            Key::Backspace => drop(self.filter.pop()),
            Key::Enter => self.is_typing = false,
            Key::Escape => {
                self.is_typing = false;
                self.filter.clear();
            }
            _ => {}
        }
    }

    /// Distance that a key moves; None for any other key.
    fn steps(&self, key: Key) -> Option<isize> {
        let page = isize::try_from(self.fits.saturating_sub(1).max(1)).unwrap_or(1);
        Some(match key {
            Key::Up | Key::Letter('k') => -1,
            Key::Down | Key::Letter('j') => 1,
            Key::PageUp => -page,
            Key::PageDown | Key::Letter(' ') => page,
            Key::Home | Key::Letter('g') => isize::MIN,
            Key::End | Key::Letter('G') => isize::MAX,
            _ => return None,
        })
    }

    fn select(&mut self, steps: isize) {
        let rows = self.rows();
        let last = rows.len().saturating_sub(1);
        let to = self.selected(&rows).saturating_add_signed(steps).min(last);
        let selected = rows.get(to).map(|row| row.rank.rank);
        self.selected = selected;
    }

    /// Beyond the end the text is followed again.
    fn scroll(&mut self, steps: isize) {
        let last = self.last;
        let to = self.above.unwrap_or(last).saturating_add_signed(steps);
        let follows = matches!(self.page, Page::Log(_)) && to >= last;
        self.above = if follows { None } else { Some(to.min(last)) };
    }

    fn of_rank(
        &mut self,
        page: fn(GlobalRank) -> Page,
        request: fn(GlobalRank) -> Request,
    ) -> Option<Request> {
        let rows = self.rows();
        let rank = match self.page {
            Page::Log(rank) | Page::Stacks(rank) => rank,
            _ => rows.get(self.selected(&rows))?.rank.rank,
        };
        self.selected = Some(rank);
        let page = page(rank);
        let above = if matches!(page, Page::Log(_)) { None } else { Some(0) };
        self.open(page, above);
        self.asked(request(rank))
    }

    fn open(&mut self, page: Page, above: Option<usize>) {
        (self.page, self.above) = (page, above);
        self.text.clear();
        self.tail.clear();
        self.tail_of = None;
        self.notice = None;
    }

    /// Over HTTP a node reports only its state.
    fn asked(&mut self, request: Request) -> Option<Request> {
        if self.source == Source::Socket {
            self.notice = Some(text!("one moment …", "请稍候……"));
            return Some(request);
        }
        self.notice = Some(text!(
            "only where the ranks run: ranklaunch top without HOST:PORT, such as by kubectl exec",
            "仅在 rank 所在之处可用：不带 HOST:PORT 运行 ranklaunch top，例如用 kubectl exec"
        ));
        None
    }
}

/// The decisions of a plan with their reasons.
fn plan_text(plan: &Value, lang: Lang) -> String {
    let mut out = String::new();
    let word = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let decisions = plan.get("decisions").and_then(Value::as_array);
    for decision in decisions.into_iter().flatten() {
        let of = |name: &str| decision.get(name).map(word).unwrap_or_default();
        let (what, value, because) = (of("what"), of("value"), of("because"));
        let _ = writeln!(out, "{what} = {value}\n    {because}");
    }
    for warning in plan.get("warnings").and_then(Value::as_array).into_iter().flatten() {
        let of = |name: &str| warning.get(name).map(word).unwrap_or_default();
        let warns = text!("warning", "警告");
        let (id, text, colon) = (of("id"), of("text"), lang.colon());
        let _ = writeln!(out, "{} {id}{colon}{text}", warns.get(lang));
    }
    let argv = plan.get("argv").and_then(Value::as_array);
    let words: Vec<String> = argv.into_iter().flatten().map(word).collect();
    let _ = writeln!(out, "\n{}", words.join(" "));
    text::escape::printable(&out).into_owned()
}
