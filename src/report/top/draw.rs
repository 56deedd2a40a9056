//! Draws the state of the view, at any size of the terminal.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::header::{of_lone_node, summary, title};
use super::model::{Model, Page};
use super::tables::{Cell, Column, Order, Row, fitting, head, of_nodes, of_ranks};
use crate::findings::explanation;
use crate::line_view::time_left;
use crate::ps_view::ago;
use monitor::status::NodeStatus;
use text::columns::{columns, start_within, wrapped};
use text::lang::{Lang, Text};
use text::order::Ordered;
use text::rank::GlobalRank;
use text::text;
use verdict::Id;

/// Minimum size of the terminal; with fewer rows or columns nothing could be read.
const LEAST: (u16, u16) = (20, 5);
/// Minimum columns of the last column of each table: a host, the last line of a rank.
const LEAST_HOST: usize = 12;
const LEAST_LINE: usize = 24;
/// Columns before a table, for the mark of the selected row.
const MARK: usize = 1;
/// Minimum number of rows for the lines of the selected rank, their title included.
const LEAST_TAIL: usize = 3;

pub fn draw(model: &mut Model, frame: &mut Frame<'_>) {
    let area = frame.area();
    let buffer = frame.buffer_mut();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        put(buffer, area, 0, "ranklaunch top", Style::new());
        return;
    }
    let width = usize::from(area.width);
    cells(buffer, area, 0, &title(model, width));
    let mut above = 1;
    let remarks = remarks(&model.nodes, model);
    for line in [summary(model, remarks.len(), width), alert(model, width)] {
        if !line.is_empty() && area.height > above + LEAST.1 - 1 {
            cells(buffer, area, above, &line);
            above += 1;
        }
    }
    let body = Rect { y: area.y + above, height: area.height - above - 2, ..area };
    match model.page.clone() {
        Page::Ranks => ranks(model, buffer, body),
        Page::Nodes => {
            let nodes: Vec<&NodeStatus> = model.nodes.iter().collect();
            let all = of_nodes(&nodes, model.lang, bars(width));
            let all = fitting(all, width.saturating_sub(MARK), LEAST_HOST, model.lang);
            let remarks: Vec<String> = [String::new()].into_iter().chain(remarks).collect();
            text_page(model, buffer, body, &all, &remarks);
        }
        Page::Help => {
            let lines: Vec<String> = help().get(model.lang).lines().map(str::to_owned).collect();
            text_page(model, buffer, body, &[], &lines);
        }
        Page::Log(_) | Page::Stacks(_) | Page::Plan => {
            let mut lines = std::mem::take(&mut model.text);
            text_page(model, buffer, body, &[], lines.make_contiguous());
            model.text = lines;
        }
    }
    let mut status = status(model);
    // Commands take the id; nobody reads it.
    if let Some(id) = model.nodes.first().and_then(|node| node.run.as_ref()?.run_id.as_deref()) {
        let gap = width.saturating_sub(columns(&status) + columns(id));
        if gap > 1 {
            status.push_str(&" ".repeat(gap));
            status.push_str(id);
        }
    }
    put(buffer, area, area.height - 2, &status, Style::new().add_modifier(Modifier::DIM));
    let keys = keys(model);
    put(buffer, area, area.height - 1, keys.get(model.lang), Style::new());
}

/// One line of the area. A text that does not fit is cut, and the cut is shown.
fn put(buffer: &mut Buffer, area: Rect, row: u16, text: &str, style: Style) {
    if row >= area.height {
        return;
    }
    let width = usize::from(area.width);
    let (x, y) = (area.x, area.y + row);
    if columns(text) <= width {
        buffer.set_stringn(x, y, text, width, style);
    } else {
        let text = format!("{}…", start_within(text, width.saturating_sub(1)));
        buffer.set_stringn(x, y, text, width, style);
    }
}

/// Texts beside each other, each with its style.
fn cells(buffer: &mut Buffer, area: Rect, row: u16, all: &[Cell]) {
    let mut x = 0;
    for (text, style) in all {
        let part =
            Rect { x: area.x.saturating_add(x), width: area.width.saturating_sub(x), ..area };
        put(buffer, part, row, text, *style);
        x = x.saturating_add(u16::try_from(columns(text) + 2).unwrap_or(u16::MAX)).min(area.width);
    }
}

/// Columns of a bar in a table.
fn bars(width: usize) -> usize {
    if width < 120 { 4 } else { 10 }
}

/// The most important thing to know; empty if there is none.
fn alert(model: &Model, width: usize) -> Vec<Cell> {
    let lang = model.lang;
    let (red, yellow) = (Style::new().fg(Color::Red), Style::new().fg(Color::Yellow));
    if let Some(why) = &model.silent {
        return vec![(why.get(lang).to_owned(), yellow)];
    }
    if let Some(since) = model.stale() {
        let seconds = since.as_secs();
        let text = text!("no news for {seconds} s", "{seconds} 秒没有新消息");
        return vec![(text.get(lang).to_owned(), yellow)];
    }
    if let Some(end) = model.nodes.iter().find_map(|node| node.end.as_ref()) {
        let (code, text) = (end.code, end.text.get(lang));
        let shown = text!("exit code {code}: {text}", "退出码 {code}：{text}");
        let style = if code == 0 { Style::new() } else { red };
        return vec![(shown.get(lang).to_owned(), style)];
    }
    if let Some(stands) = model.nodes.iter().find_map(|node| node.standstill.as_ref()) {
        let at = model.nodes.iter().map(|node| node.at_ms).max().unwrap_or(0);
        let since = ago(at.saturating_sub(stands.since_ms) / 1000);
        let who = stands.text.as_ref().map_or("", |text| text.get(lang));
        let shown = text!("stands still for {since}: {who}", "已卡死 {since}：{who}");
        return vec![(shown.get(lang).to_owned(), red.add_modifier(Modifier::BOLD))];
    }
    if let Some((node, notice)) =
        model.nodes.iter().find_map(|node| Some((node, node.notice.as_ref()?)))
    {
        let (of, left) = (notice.node, time_left(notice, node.at_ms));
        let (Text { en, zh }, Text { en: why, zh: why_zh }) = (left, &notice.reason);
        let shown = text!("{en}: {why} (node {of})", "{zh}：{why_zh}（节点 {of}）");
        return vec![(shown.get(lang).to_owned(), yellow.add_modifier(Modifier::BOLD))];
    }
    let words: Vec<String> =
        model.unanswered.iter().map(|text| text.get(lang).to_owned()).collect();
    if words.is_empty() {
        return Vec::new();
    }
    vec![(as_many_as_fit(&words, width, lang), yellow)]
}

/// The words in their order, and the number of words that did not fit.
fn as_many_as_fit(words: &[String], width: usize, lang: Lang) -> String {
    let all = words.join("  ");
    if columns(&all) <= width {
        return all;
    }
    let with_rest = |shown: usize| {
        let more = words.len() - shown;
        let rest = text!("… {more} more", "……另有 {more} 项");
        let shown = words.get(..shown).unwrap_or_default().join("  ");
        format!("{shown}  {}", rest.get(lang))
    };
    // A word that is too long by itself is cut.
    let fits = (1..words.len()).rev().map(with_rest).find(|line| columns(line) <= width);
    fits.unwrap_or(all)
}

fn findings(nodes: &[NodeStatus]) -> Vec<(&String, u64)> {
    let mut all: Vec<(&String, u64)> = Vec::new();
    for (id, count) in nodes.iter().flat_map(|node| &node.findings) {
        match all.iter_mut().find(|(known, _)| *known == id) {
            Some((_, sum)) => *sum = sum.saturating_add(*count),
            None => all.push((id, *count)),
        }
    }
    // Events of the job come before remarks of the plan, whose ids have a dot.
    all.order_by_key(|(id, count)| (id.contains('.'), std::cmp::Reverse(*count)));
    all
}

fn ranks(model: &mut Model, buffer: &mut Buffer, area: Rect) {
    let (lang, width) = (model.lang, usize::from(area.width).saturating_sub(MARK));
    let bars = bars(width);
    // Nodes take a quarter of the room, nodes with problems first.
    let most = usize::from(area.height / 4).max(1);
    let mut nodes: Vec<&NodeStatus> = model.nodes.iter().collect();
    let count = nodes.len();
    if count > most {
        nodes.order_by_key(|node| (node.standstill.is_none(), node.abnormal.is_empty()));
        nodes.truncate(most);
    }
    let mut y = match nodes.as_slice() {
        [] => 0,
        [node] if count == 1 => {
            let below = Rect { x: area.x + 1, width: area.width - 1, ..area };
            cells(buffer, below, 0, &of_lone_node(node, lang));
            1
        }
        nodes => {
            let all = fitting(of_nodes(nodes, lang, bars), width, LEAST_HOST, lang);
            lines(buffer, area, 0, &all, 0..most, None, model)
        }
    };
    if count > most {
        let more = count - most;
        let text = text!("… {more} more: n lists all nodes", "……另有 {more} 个：按 n 列出全部节点");
        put(buffer, area, y, text.get(lang), Style::new().add_modifier(Modifier::DIM));
        y += 1;
    }
    let rows = model.rows();
    let selected = model.selected(&rows);
    // Air between the tables, where the screen is not small.
    y += u16::from(area.height >= 16);
    let left = usize::from(area.height.saturating_sub(y + 1));
    // The ranks take what they need, and leave a third of a large screen to the lines of the selected one.
    let tail = left.saturating_sub(rows.len()).max(if left >= 30 { left / 3 } else { 0 });
    let tail = if tail >= LEAST_TAIL && !rows.is_empty() { tail } else { 0 };
    let room = left - tail;
    // The window around the selected row.
    let first = selected.saturating_sub(room.saturating_sub(1).min(room / 2));
    let first = first.min(rows.len().saturating_sub(room));
    let window = first..rows.len().min(first + room);
    let shown: &[Row<'_>] = rows.get(window.clone()).unwrap_or_default();
    let all = fitting(of_ranks(shown, count > 1, lang, bars), width, LEAST_LINE, lang);
    let mark = Some(selected - first.min(selected));
    let end = lines(buffer, area, y, &all, 0..shown.len(), mark, model);
    let rank = rows.get(selected).map(|row| (row.rank.rank, row.rank.last_line.clone()));
    (model.fits, model.tail_room) = (room, tail.saturating_sub(1));
    if let Some((rank, last)) = rank.filter(|_| tail > 0) {
        let below = Rect { y: area.y + end, height: area.height - end, ..area };
        last_lines(model, buffer, below, rank, last);
    }
}

/// The last lines of the selected rank, at the bottom of the area.
fn last_lines(
    model: &Model,
    buffer: &mut Buffer,
    area: Rect,
    rank: GlobalRank,
    last: Option<String>,
) {
    let dim = Style::new().add_modifier(Modifier::DIM);
    let name = text!("last lines of rank {rank}", "rank {rank} 的最后几行");
    let name = format!("── {} ", name.get(model.lang));
    let rule = usize::from(area.width).saturating_sub(columns(&name));
    put(buffer, area, 0, &format!("{name}{}", "─".repeat(rule)), dim);
    // Only the last line is known over HTTP, and of a rank that was selected just now.
    let all: Vec<&str> = match model.tail_of(rank) {
        None => last.as_deref().into_iter().collect(),
        Some(tail) => tail.iter().map(String::as_str).collect(),
    };
    let room = usize::from(area.height.saturating_sub(1));
    let shown = all.get(all.len().saturating_sub(room)..).unwrap_or_default();
    for (row, line) in (1..).zip(shown) {
        put(buffer, area, row, line, Style::new());
    }
}

/// The head and the lines of a table; gives the row below it.
fn lines(
    buffer: &mut Buffer,
    area: Rect,
    from: u16,
    all: &[Column],
    window: std::ops::Range<usize>,
    mark: Option<usize>,
    model: &Model,
) -> u16 {
    let head = Style::new().add_modifier(Modifier::DIM | Modifier::BOLD);
    let mut y = from + 1;
    let titles: Vec<(String, Style)> =
        all.iter().map(|one| (one.title.get(model.lang).to_owned(), head)).collect();
    line(buffer, area, from, all, &titles);
    let count = all.first().map_or(0, |column| column.cells.len());
    for number in window.start..window.end.min(count) {
        if y >= area.height {
            break;
        }
        let below = row(buffer, area, y, all, number);
        if mark == Some(number) {
            let row = Rect { y: area.y + y, height: 1, ..area };
            buffer.set_style(row, Style::new().add_modifier(Modifier::BOLD));
            put(buffer, area, y, "▌", Style::new().fg(Color::Cyan));
        }
        y = below;
    }
    y
}

/// A row of a table; gives the row below it.
fn row(buffer: &mut Buffer, area: Rect, y: u16, all: &[Column], number: usize) -> u16 {
    let cells: Vec<(String, Style)> =
        all.iter().filter_map(|column| column.cells.get(number).cloned()).collect();
    line(buffer, area, y, all, &cells);
    y + 1
}

fn line(buffer: &mut Buffer, area: Rect, y: u16, all: &[Column], cells: &[(String, Style)]) {
    if y >= area.height {
        return;
    }
    let mut x = MARK;
    let width = usize::from(area.width);
    for (column, (text, style)) in all.iter().zip(cells) {
        let room = if column.width == 0 { width.saturating_sub(x) } else { column.width };
        let gap = if column.is_number { room.saturating_sub(columns(text)) } else { 0 };
        let at = (x + gap).min(width);
        if let Ok(at) = u16::try_from(at) {
            let most = room.saturating_sub(gap).min(width.saturating_sub(usize::from(at)));
            buffer.set_stringn(area.x + at, area.y + y, text, most, *style);
        }
        x += room + 1;
    }
}

/// The lines of a text that is wider than the screen. A word wider than the screen is divided.
fn folded(text: &str, width: usize) -> Vec<String> {
    let mut rows = Vec::new();
    for line in wrapped(text, width).lines() {
        let mut rest = line;
        // Only the beginning of the rest is measured: one word may be 128 KiB (MAX_ARG_STRLEN).
        loop {
            let part = start_within(rest, width);
            if part.is_empty() || part.len() == rest.len() {
                break;
            }
            rows.push(part.to_owned());
            rest = rest.strip_prefix(part).unwrap_or_default();
        }
        rows.push(rest.to_owned());
    }
    if rows.is_empty() {
        rows.push(String::new());
    }
    rows
}

/// A page of text, below the rows of a table with a fixed head. Text that does not fit is reached by scrolling.
fn text_page(
    model: &mut Model,
    buffer: &mut Buffer,
    area: Rect,
    table: &[Column],
    text: &[String],
) {
    let width = usize::from(area.width);
    let above = table.first().map_or(0, |column| column.cells.len());
    let begin = if table.is_empty() { 0 } else { lines(buffer, area, 0, table, 0..0, None, model) };
    if let Some(notice) = &model.notice {
        for (number, line) in (begin..).zip(folded(notice.get(model.lang), width)) {
            put(buffer, area, number, &line, Style::new().fg(Color::Yellow));
        }
        return;
    }
    let room = usize::from(area.height.saturating_sub(begin));
    let count = above + text.len();
    // A row of the table has no such line.
    let rows_of = |item: usize| item.checked_sub(above).and_then(|at| text.get(at));
    let rows_of = |item: usize| rows_of(item).map(|line| folded(line, width));
    let mut left = room;
    let fitting = (0..count).rev().take_while(|item| {
        let rows = rows_of(*item).map_or(1, |rows| rows.len());
        let fits = rows <= left;
        left = left.saturating_sub(rows);
        fits
    });
    // The item with which the last page begins.
    let last = count.saturating_sub(fitting.count().max(1));
    let first = model.above.unwrap_or(last).min(last);
    let (mut y, mut shown) = (begin, 0);
    for item in first..count {
        if y >= area.height {
            break;
        }
        let Some(rows) = rows_of(item) else {
            y = row(buffer, area, y, table, item);
            shown += 1;
            continue;
        };
        let room = usize::from(area.height - y);
        // If an item fills more than the screen, its end is followed.
        let skipped = if model.above.is_none() { rows.len().saturating_sub(room) } else { 0 };
        shown += usize::from(rows.len() <= room);
        for line in rows.iter().skip(skipped).take(room) {
            put(buffer, area, y, line, Style::new());
            y += 1;
        }
    }
    (model.fits, model.last) = (shown, last);
}

/// Abnormal states of nodes, slow ranks, and all findings.
fn remarks(nodes: &[NodeStatus], model: &Model) -> Vec<String> {
    let lang = model.lang;
    let mut lines = Vec::new();
    for node in nodes {
        let number = node.run.as_ref().map_or(0, |run| run.node);
        for reason in &node.abnormal {
            let place = text!("node {number}", "节点 {number}");
            let text = reason.text.get(lang);
            lines.push(format!("{}{}{text}", place.get(lang), lang.colon()));
        }
    }
    for slow in nodes.iter().flat_map(|node| &node.slow) {
        let (rank, lost) = (slow.rank, (slow.lost * 100.0).round());
        let text = text!(
            "rank {rank} holds the others back: they lose {lost} % of their time",
            "rank {rank} 拖慢其他 rank：它们损失 {lost} % 的时间"
        );
        lines.push(text.get(lang).to_owned());
    }
    lines.extend(findings(nodes).iter().map(|(id, count)| {
        let words = match id.as_str() {
            "hang" => text!("the job stood still", "任务曾卡死"),
            "slow" => text!("a rank held the others back", "有 rank 曾拖慢其他 rank"),
            id => id
                .parse::<Id>()
                .map_or_else(|_| Text::same(String::new()), |id| explanation(id).what),
        };
        let words = words.get(lang);
        let times = if *count > 1 { format!(" ×{count}") } else { String::new() };
        if words.is_empty() { format!("{id}{times}") } else { format!("{words} ({id}{times})") }
    }));
    lines
}

/// The line above the keys: the filter, the order, or the name of the page.
fn status(model: &Model) -> String {
    let lang = model.lang;
    if model.is_typing {
        return format!("/{}▏", model.filter);
    }
    let text = match &model.page {
        Page::Ranks => return sorted(model),
        Page::Log(rank) if model.above.is_none() => {
            text!("log of rank {rank}, followed", "rank {rank} 的日志（跟随中）")
        }
        Page::Log(rank) => {
            text!("log of rank {rank}, not followed: G", "rank {rank} 的日志（未跟随，按 G）")
        }
        Page::Stacks(rank) => text!("stacks of rank {rank}", "rank {rank} 的调用栈"),
        Page::Plan => text!("the plan and its reasons", "计划及其理由"),
        Page::Nodes => text!("all nodes", "全部节点"),
        Page::Help => text!("keys", "按键"),
    };
    text.get(lang).to_owned()
}

/// The order of the ranks, and the filter.
fn sorted(model: &Model) -> String {
    let rows = model.rows();
    let count = rows.len();
    let Text { en, zh } = head(model.order);
    // Ranks ascend, all other columns begin with the largest.
    let ascends = (model.order == Order::Rank) != model.is_reversed;
    let way = if ascends { "↑" } else { "↓" };
    let sorted = text!("{count} ranks by {en}{way}", "{count} 个 rank，按 {zh}{way}");
    let filter = match model.filter.as_str() {
        "" => String::new(),
        filter => format!("  /{filter}"),
    };
    format!("{}{filter}", sorted.get(model.lang))
}

fn keys(model: &Model) -> Text {
    match model.page {
        _ if model.is_typing => {
            text!("Enter keeps the filter  Esc clears it", "回车确认过滤  Esc 清除")
        }
        Page::Ranks => text!(
            "q quit  ↑↓ select  / filter  s sort  l log  t stacks  n remarks  p plan  ? help",
            "q 退出  ↑↓ 选择  / 过滤  s 排序  l 日志  t 栈  n 提示  p 计划  ? 帮助"
        ),
        _ => text!(
            "q back  ↑↓ PgUp PgDn g G scroll  ? help",
            "q 返回  ↑↓ PgUp PgDn g G 滚动  ? 帮助"
        ),
    }
}

fn help() -> Text {
    text!(
        "ranklaunch top looks at a job and changes nothing of it.

↑ ↓ j k    select a rank, or scroll       PgUp PgDn  a page
g G        the first, the last
/          filter: words that are in a row, such as: r3  node1  failed  loss
Esc        clear the filter, or go back
s r        sort by the next column, reverse the order
l Enter    follow the log of the selected rank
t          its stacks now                 p          the plan and its reasons
n          all nodes, what is abnormal, findings
q Ctrl-C   back, or quit: the job goes on

AGE is the time since the last line of a rank, RST how often it was restarted.
SLOW is a rank that holds the others back. NET and HCA are bytes per second.",
        "ranklaunch top 只查看任务，不作任何改变。

↑ ↓ j k    选择 rank，或滚动              PgUp PgDn  翻页
g G        第一个，最后一个
/          过滤：行中出现的词，例如 r3  node1  failed  loss
Esc        清除过滤，或返回
s r        按下一列排序，反转顺序
l 回车     跟随所选 rank 的日志
t          它此刻的调用栈                 p          计划及其理由
n          全部节点、异常情况、发现的问题
q Ctrl-C   返回，或退出：任务继续运行

“距今”为 rank 最后一行输出距现在的时间，“重启”为其重启次数。
“拖慢”表示该 rank 拖慢了其他 rank。网络与 HCA 为每秒字节数。"
    )
}
