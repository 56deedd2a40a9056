//! A person before `ranklaunch top` as a function that a fuzzer feeds. Not part of the program.

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::screen::{Key, Keys};
use super::{Model, News, Request, Source, draw};
use logs::{LogLine, Writer};
use monitor::status::NodeStatus;
use text::fuzzing::Choices;
use text::lang::{Lang, Text};
use text::rank::GlobalRank;

/// Messages of nodes and ranks, separated by NUL bytes, then keys of a terminal. The first bytes are the size of the
/// terminal, the language and how the keys are cut.
///
/// Every cut gives the same keys. The picture has as many cells as the terminal, and no sequence that a terminal would
/// obey.
pub fn terminal(data: &[u8]) -> bool {
    let mut choices = Choices(data);
    let (width, height) = (u16::from(choices.byte()), u16::from(choices.byte() % 64));
    let mode = choices.byte();
    let cut = choices.below(7) + 1;
    let (status, lines) = (choices.until_nul(), choices.until_nul());
    let typed = choices.0;
    let lang = if mode & 1 == 0 { Lang::En } else { Lang::Zh };
    let source = if mode & 2 == 0 { Source::Socket } else { Source::Http("h:1".to_owned()) };

    let (whole, rest) = (keys(std::iter::once(typed)), keys(typed.chunks(cut)));
    assert_eq!(whole, rest, "by pieces of {cut}");

    let mut model = Model::new(source, lang);
    let node = NodeStatus::read(status);
    let is_status = node.is_some();
    let nodes: Vec<NodeStatus> = node.into_iter().collect();
    let unanswered = vec![Text::same(String::from_utf8_lossy(lines).into_owned())];
    let unanswered = if mode & 4 == 0 { Vec::new() } else { unanswered };
    model.hear(News::Status { nodes, unanswered });
    show(&mut model, width, height);
    for key in whole.iter().take(40) {
        match model.press(*key) {
            Some(Request::Quit) => break,
            Some(Request::Log(rank)) => {
                let line = |text: &str| said(rank, text);
                let all = String::from_utf8_lossy(lines);
                model.hear(News::Lines(rank, all.lines().map(line).collect()));
            }
            Some(Request::Stacks(rank)) => {
                // The form in which stacks_view gives them.
                let text = text::escape::printable(&String::from_utf8_lossy(lines)).into_owned();
                model.hear(News::Stacks(rank, text));
            }
            Some(Request::Plan) => {
                let text = String::from_utf8_lossy(lines);
                let plan =
                    serde_json::json!({ "argv": ["x", text], "warnings": [{ "text": text }] });
                let plan = serde_json::from_slice(lines).unwrap_or(plan);
                model.hear(News::Plan(plan));
            }
            Some(Request::Nothing) | None => {}
        }
        show(&mut model, width, height);
    }
    is_status || !whole.is_empty()
}

/// The line that pages make from the bytes of a rank.
fn said(rank: GlobalRank, text: &str) -> LogLine {
    let text = text::escape::printable(text).into_owned();
    let (number, writer) = (rank.0, Writer::Rank);
    LogLine { at_ms: None, attempt: 0, writer, number, is_err: false, text, left_out: 0 }
}

fn keys<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<Key> {
    let mut keys = Keys::default();
    let mut found: Vec<Key> = pieces.flat_map(|piece| keys.feed(piece)).collect();
    assert!(keys.held() <= 64, "{} bytes are held", keys.held());
    found.extend(keys.pause());
    assert!(!keys.is_waiting());
    found
}

fn show(model: &mut Model, width: u16, height: u16) {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen");
    terminal.draw(|frame| draw(model, frame)).expect("drawn");
    let buffer = terminal.backend().buffer();
    assert_eq!(buffer.content.len(), usize::from(width) * usize::from(height));
    for cell in &buffer.content {
        let symbol = cell.symbol();
        assert!(!symbol.contains(char::is_control), "{symbol:?} is drawn");
    }
}
