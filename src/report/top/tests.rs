//! Tests of the picture at any size, and of the effect of keys.

use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::json;

use super::screen::Key;
use super::*;
use monitor::status::NodeStatus;
use text::lang::{Lang, Text};
use text::rank::GlobalRank;

/// Two nodes of four ranks and GPUs.
fn nodes() -> Vec<NodeStatus> {
    let node = |number: u64| {
        let ranks: Vec<_> = (0..4)
            .map(|local| {
                let rank = number * 4 + local;
                json!({
                    "rank": rank, "local_rank": local, "gpu": local,
                    "state": if rank == 6 { "failed" } else { "running" },
                    "code": if rank == 6 { json!(7) } else { json!(null) },
                    "cpu_percent": 100.0 - rank as f64, "memory": 41_u64 << 30,
                    "log_rate": 2048.0, "last_line_age_ms": 3_000 + 60_000 * (rank / 7),
                    "last_line": format!("step 120 loss 0.{rank} 训练中 at a speed of 3.2 s per step"),
                })
            })
            .collect();
        let gpus: Vec<_> = (0..4)
            .map(|gpu| {
                json!({
                    "gpu": gpu, "local_rank": gpu, "utilization": 97, "memory_used": 71_u64 << 30,
                    "memory_total": 80_u64 << 30, "power": 612.4, "clock": 1755, "temperature": 61,
                })
            })
            .collect();
        let status = json!({
            "host": format!("train-worker-{number}"), "phase": "running", "at_ms": 500_000,
            "started_ms": 100_000, "phase_since_ms": 200_000,
            "run": {
                "run_id": "train-20261123-014823-98f7", "node": number, "nodes": 2,
                "world_size": 8, "engine": "torchrun", "program": "train.py", "profile": "wan22",
            },
            "progress": if number == 0 { json!({
                "done": 0.12, "step": 120, "total": 1000, "remaining_ms": 2_816_000,
                "step_ms": (0..90).map(|at| 3200 + at * 37 % 700).collect::<Vec<_>>(),
            }) } else { json!(null) },
            "ranks": ranks, "gpus": gpus,
            "memory": { "used": 400_u64 << 30, "available": 600_u64 << 30 },
            "interfaces": [{ "interface": "eth0", "received": 12e6, "sent": 3e6 }],
            "hcas": [{ "port": "mlx5_0:1", "received": 9e9, "sent": 9e9 }],
            "slow": if number == 0 { json!([{ "rank": 2, "lost": 0.31 }]) } else { json!([]) },
            "findings": { "gpu.health": 2 },
            "ledger": { "running_ms": 300_000, "starting_ms": 100_000, "goodput_ms": 300_000 },
        });
        serde_json::from_value(status).expect("a status")
    };
    vec![node(0), node(1)]
}

fn model(source: Source, lang: Lang) -> Model {
    let mut model = Model::new(source, lang);
    model.hear(News::Status { nodes: nodes(), unanswered: Vec::new() });
    model
}

fn picture(model: &mut Model, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen");
    terminal.draw(|frame| draw(model, frame)).expect("drawn");
    let buffer = terminal.backend().buffer().clone();
    let line = |y: u16| {
        let mut line = String::new();
        let mut x = 0;
        while x < width {
            let symbol = buffer[(x, y)].symbol();
            line.push_str(symbol);
            // A wide letter takes two places.
            x += u16::try_from(text::columns::columns(symbol).max(1)).unwrap_or(1);
        }
        line.trim_end().to_owned()
    };
    (0..height).map(line).collect()
}

#[test]
fn screen_of_80_by_24_shows_essentials() {
    let mut model = model(Source::Socket, Lang::En);
    let lines = picture(&mut model, 80, 24);
    let all = lines.join("\n");
    assert!(lines[0].starts_with("train.py · wan22  running  step 120/1000  █"), "{all}");
    assert!(lines[0].ends_with("░  12 %  46:56 left"), "{all}");
    let summary = "2/2 nodes  7/8 ranks  up 6m  goodput 75 %  3.5 s a step  ▄";
    assert!(lines[1].starts_with(summary), "{all}");
    assert!(lines[1].ends_with("2 remarks: n"), "{all}");
    assert!(!all.contains("gpu.health"), "ids are no news: {all}");
    for words in [
        "NODE STATE",
        "GPU%",
        "NET IN/OUT",
        "11M/2.9M",
        "8.4G/8.4G",
        "400G/1.0T",
        "train-worker",
        "RANK NODE STATE",
        "LAST LINE",
        "failed 7",
        "slow",
        "41G",
        "71G",
        "step 120",
        " 1m ",
    ] {
        assert!(all.contains(words), "{words}:\n{all}");
    }
    assert!(lines[22].starts_with("8 ranks by RANK↑  "), "{all}");
    assert!(lines[22].ends_with("  train-20261123-014823-98f7"), "{all}");
    let below = lines.iter().position(|line| line.starts_with("── last lines of rank 0"));
    let below = below.expect("the lines of the selected rank");
    assert!(lines[below + 1].starts_with("step 120 loss 0.0 训练中 at a speed of 3.2 s"), "{all}");
    assert!(lines[23].starts_with("q quit"), "{all}");
    assert!(lines.iter().all(|line| text::columns::columns(line) <= 80), "{all}");
    // A wide terminal has all columns.
    let wide = picture(&mut model, 160, 40).join("\n");
    for title in ["MHZ", "°C", "SINCE", " W ", "LOG/S"] {
        assert!(wide.contains(title), "{title}:\n{wide}");
    }
}

#[test]
fn chinese_text_is_drawn_in_its_columns() {
    let mut model = model(Source::Socket, Lang::Zh);
    let all = picture(&mut model, 80, 24).join("\n");
    for words in ["2/2 个节点", "节点 状态", "最后一行", "失败 7", "拖慢", "q 退出", "训练中"]
    {
        assert!(all.contains(words), "{words}:\n{all}");
    }
    model.press(Key::Letter('s'));
    let all = picture(&mut model, 80, 24).join("\n");
    assert!(all.contains("8 个 rank，按 状态↓"), "{all}");
}

#[test]
fn keys_filter_sort_and_select() {
    let mut model = model(Source::Socket, Lang::En);
    let press = |model: &mut Model, keys: &str| {
        keys.chars().filter_map(|letter| model.press(Key::Letter(letter))).last()
    };
    press(&mut model, "/node1 fail");
    model.press(Key::Enter);
    let all = picture(&mut model, 80, 24).join("\n");
    assert!(all.contains("1 rank by RANK↑  /node1 fail") && all.contains("failed 7"), "{all}");
    assert!(!all.contains("slow"), "{all}");
    assert_eq!(press(&mut model, "t"), Some(Request::Stacks(GlobalRank(6))));
    model.hear(News::Stacks(GlobalRank(6), "frame one\nframe two".to_owned()));
    // An answer to an earlier question is not shown.
    model.hear(News::Stacks(GlobalRank(5), "frame of another".to_owned()));
    let all = picture(&mut model, 80, 24).join("\n");
    assert!(all.contains("frame two") && all.contains("stacks of rank 6"), "{all}");
    assert!(!all.contains("another"), "{all}");
    assert_eq!(model.press(Key::Escape), Some(Request::Nothing));
    // On the first page Esc takes the filter away.
    assert_eq!(model.press(Key::Escape), None);
    assert_eq!(model.rows().len(), 8);
    press(&mut model, "s");
    assert_eq!(model.rows().first().map(|row| row.rank.rank), Some(GlobalRank(6)), "by state");
    press(&mut model, "sr");
    assert_eq!(
        model.rows().first().map(|row| row.rank.rank),
        Some(GlobalRank(7)),
        "by CPU, reversed"
    );
    model.press(Key::Home);
    model.press(Key::Down);
    assert_eq!(press(&mut model, "l"), Some(Request::Log(GlobalRank(6))));
    assert_eq!(press(&mut model, "p"), Some(Request::Plan));
    model.hear(News::Plan(json!({
        "decisions": [{ "what": "nproc_per_node", "value": 4, "because": "4 GPUs are visible" }],
        "warnings": [{ "id": "shm.size", "text": "small" }],
        "argv": ["python", "train.py"],
    })));
    let all = picture(&mut model, 80, 24).join("\n");
    for words in
        ["nproc_per_node = 4", "    4 GPUs are visible", "shm.size: small", "python train.py"]
    {
        assert!(all.contains(words), "{words}:\n{all}");
    }
    assert_eq!(press(&mut model, "n"), Some(Request::Nothing));
    let all = picture(&mut model, 80, 24).join("\n");
    assert!(all.contains("rank 2 holds the others back: they lose 31 %"), "{all}");
    assert_eq!(model.press(Key::Quit), Some(Request::Quit));
}

/// Rows of the screen that hold something.
fn used(lines: &[String]) -> usize {
    lines.iter().filter(|line| !line.is_empty()).count()
}

#[test]
fn large_screen_follows_the_selected_rank() {
    let mut model = model(Source::Socket, Lang::En);
    picture(&mut model, 200, 50);
    assert_eq!(model.wants(), Some(Request::Log(GlobalRank(0))));
    assert_eq!(model.wants(), None, "it is asked once");
    model.press(Key::Down);
    assert_eq!(model.wants(), Some(Request::Log(GlobalRank(1))));
    let line = |number: u32| logs::LogLine {
        at_ms: None,
        attempt: 0,
        writer: logs::Writer::Rank,
        number: 1,
        is_err: false,
        text: format!("line {number}."),
        left_out: 0,
    };
    model.hear(News::Lines(GlobalRank(0), (500..501).map(line).collect()));
    model.hear(News::Lines(GlobalRank(1), (0..300).map(line).collect()));
    let lines = picture(&mut model, 200, 50);
    let all = lines.join("\n");
    assert!(all.contains("last lines of rank 1") && all.contains("line 299."), "{all}");
    assert!(!all.contains("line 500."), "another rank's: {all}");
    // Until the lines of a newly selected rank come, those of the other one are not its own.
    model.press(Key::Up);
    let all = picture(&mut model, 200, 50).join("\n");
    assert!(all.contains("last lines of rank 0") && !all.contains("line 299."), "{all}");
    model.press(Key::Down);
    assert_eq!(model.wants(), None, "they are still known");
    assert!(used(&lines) > 45, "{all}");
    // On a small screen with many ranks the table has the room.
    let mut many: Vec<NodeStatus> = (0..20).flat_map(|_| nodes()).collect();
    for (number, rank) in (0..).zip(many.iter_mut().flat_map(|node| &mut node.ranks)) {
        rank.rank = GlobalRank(number);
    }
    model.hear(News::Status { nodes: many, unanswered: Vec::new() });
    let all = picture(&mut model, 80, 24).join("\n");
    assert!(!all.contains("last lines"), "{all}");
    assert_eq!(model.wants(), None);
    picture(&mut model, 200, 50);
    assert_eq!(model.wants(), None, "the selection stays");
    // After another page the lines are asked for again.
    model.press(Key::Letter('p'));
    model.press(Key::Escape);
    picture(&mut model, 200, 50);
    assert_eq!(model.wants(), Some(Request::Log(GlobalRank(1))));
}

#[test]
fn lone_node_needs_no_table_of_its_own() {
    for (lang, memory) in [(Lang::En, "MEMORY"), (Lang::Zh, "内存")] {
        let mut model = Model::new(Source::Socket, lang);
        let mut one = nodes();
        one.truncate(1);
        one[0].run.as_mut().expect("a run").nodes = 1;
        model.hear(News::Status { nodes: one, unanswered: Vec::new() });
        let lines = picture(&mut model, 100, 24);
        assert!(lines[2].contains(memory) && lines[2].contains("400G/1.0T"), "{lines:#?}");
        let headers = lines.iter().filter(|line| line.trim_start().starts_with("RANK"));
        assert_eq!(headers.count(), 1, "{lines:#?}");
    }
}

#[test]
fn job_without_steps_has_no_goodput() {
    let mut model = model(Source::Socket, Lang::En);
    let mut all = nodes();
    for node in &mut all {
        (node.progress, node.ledger.goodput_ms) = (None, None);
    }
    model.hear(News::Status { nodes: all, unanswered: Vec::new() });
    let all = picture(&mut model, 80, 24).join("\n");
    assert!(!all.contains("goodput") && !all.contains("step 120/"), "{all}");
    assert!(all.contains("train.py · wan22  running\n"), "{all}");
}

#[test]
fn failed_request_is_shown_only_on_its_page() {
    let mut model = model(Source::Socket, Lang::En);
    let mut shown = |page| {
        model.press(Key::Letter('p'));
        model.press(Key::Letter(page));
        model.hear(News::Failed(Request::Plan, Text::same("gone")));
        picture(&mut model, 80, 24).join("\n")
    };
    let nodes = shown('n');
    assert!(!nodes.contains("gone") && nodes.contains("holds the others back"), "{nodes}");
    let plan = shown('p');
    assert!(plan.contains("gone"), "{plan}");
}

#[test]
fn filter_matches_the_displayed_words() {
    for (lang, filter) in [(Lang::En, "/slow"), (Lang::Zh, "/拖慢")] {
        let mut model = model(Source::Socket, lang);
        for letter in filter.chars() {
            model.press(Key::Letter(letter));
        }
        let found: Vec<GlobalRank> = model.rows().iter().map(|row| row.rank.rank).collect();
        assert_eq!(found, [GlobalRank(2)], "{filter}");
    }
}

#[test]
fn log_is_followed_until_the_user_scrolls() {
    let mut model = model(Source::Socket, Lang::En);
    model.press(Key::Enter);
    let line = |number: u32| logs::LogLine {
        at_ms: None,
        attempt: 0,
        writer: logs::Writer::Rank,
        number: 0,
        is_err: number == 99,
        text: format!("line {number}."),
        left_out: 0,
    };
    model.hear(News::Lines(GlobalRank(0), (0..100).map(line).collect()));
    let all = picture(&mut model, 80, 24).join("\n");
    assert!(all.contains("! line 99.") && all.contains("log of rank 0, followed"), "{all}");
    model.press(Key::PageUp);
    model.hear(News::Lines(GlobalRank(0), (100..110).map(line).collect()));
    let all = picture(&mut model, 80, 24).join("\n");
    assert!(!all.contains("line 109.") && all.contains("not followed"), "{all}");
    model.press(Key::End);
    let all = picture(&mut model, 80, 24).join("\n");
    assert!(all.contains("line 109."), "{all}");
    // The log does not grow without limit.
    for start in 0..20_u32 {
        let lines = (start * 1000..(start + 1) * 1000).map(line).collect();
        model.hear(News::Lines(GlobalRank(0), lines));
    }
    model.press(Key::Home);
    let all = picture(&mut model, 80, 24).join("\n");
    assert!(all.contains("line 15000."), "{all}");
}

/// Nothing is beyond the edge of the screen: long lines are folded, long texts are scrolled.
#[test]
fn every_page_can_be_read_completely() {
    let mut model = model(Source::Socket, Lang::En);
    model.press(Key::Enter);
    let line = |text: &str| logs::LogLine {
        at_ms: None,
        attempt: 0,
        writer: logs::Writer::Rank,
        number: 0,
        is_err: false,
        text: text.to_owned(),
        left_out: 0,
    };
    let words = (0..40).map(|number| format!("word{number}")).collect::<Vec<_>>().join(" ");
    let path = format!("/data/{}/end", "训练x".repeat(40));
    model.hear(News::Lines(GlobalRank(0), vec![line(&words), line(&path), line("the last")]));
    let shown = |model: &mut Model, width, height| {
        let lines = picture(model, width, height);
        assert!(lines.iter().all(|line| text::columns::columns(line) <= width.into()), "{lines:?}");
        lines
    };
    let lines = shown(&mut model, 60, 24);
    for word in words.split(' ') {
        assert!(
            lines.iter().any(|line| line.split(' ').any(|one| one == word)),
            "{word}: {lines:#?}"
        );
    }
    let whole: String = lines.iter().map(|line| line.trim()).collect();
    assert!(whole.contains(&path) && whole.contains("the last"), "{lines:#?}");
    // The text is too long for the screen: its end is followed, and scrolling reaches its
    // beginning.
    model.hear(News::Lines(GlobalRank(0), vec![line(&format!("begin {words} end"))]));
    let all = shown(&mut model, 30, 10).join("\n");
    assert!(all.contains("word39 end") && !all.contains("begin"), "{all}");
    model.press(Key::Up);
    model.press(Key::Up);
    let all = shown(&mut model, 30, 10).join("\n");
    assert!(all.contains("not followed"), "{all}");
    // Forty nodes on a small screen, and the findings below them.
    model.press(Key::Escape);
    let mut many: Vec<NodeStatus> = (0..20).flat_map(|_| nodes()).collect();
    for (number, node) in (0..).zip(&mut many) {
        node.run.as_mut().expect("a run").node = number;
    }
    model.hear(News::Status { nodes: many, unanswered: Vec::new() });
    model.press(Key::Letter('n'));
    let all = shown(&mut model, 80, 12).join("\n");
    assert!(all.contains("   0 running") && !all.contains("  39 running"), "{all}");
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..10 {
        let lines = shown(&mut model, 80, 12);
        assert!(lines[2].starts_with(" NODE STATE"), "{lines:#?}");
        seen.extend(lines[3..10].iter().filter_map(|line| line.get(..13).map(str::to_owned)));
        model.press(Key::PageDown);
    }
    for number in 0..40 {
        assert!(seen.contains(&format!("{number:>5} running")), "{number}: {seen:?}");
    }
    let all = shown(&mut model, 80, 12).join("\n");
    assert!(all.contains("(gpu.health ×80)"), "{all}");
    model.press(Key::Home);
    assert!(shown(&mut model, 80, 12).join("\n").contains("   0 running"));
    // As many ids as fit, ids of the job itself first.
    let mut one = nodes();
    let ids = (0..12).map(|number| (format!("check.number{number}"), 3));
    one[0].findings = ids.chain([("hang".to_owned(), 1)]).collect();
    model.hear(News::Status { nodes: one, unanswered: Vec::new() });
    let alert = shown(&mut model, 80, 24)[1].clone();
    assert!(alert.ends_with("15 remarks: n"), "{alert}");
    let unanswered = (0..40).map(|number| Text::same(format!("node {number} is silent")));
    model.hear(News::Status { nodes: nodes(), unanswered: unanswered.collect() });
    let alert = shown(&mut model, 80, 24)[2].clone();
    assert!(alert.starts_with("node 0 is silent  node 1 is silent"), "{alert}");
    assert!(alert.ends_with(" more"), "{alert}");
}

#[test]
fn extreme_counts_of_other_nodes_are_shown() {
    let mut model = model(Source::Socket, Lang::En);
    let mut all = nodes();
    for node in &mut all {
        node.findings.insert("hang".to_owned(), u64::MAX);
    }
    model.hear(News::Status { nodes: all, unanswered: Vec::new() });
    model.press(Key::Letter('n'));
    let all = picture(&mut model, 80, 24).join("\n");
    assert!(all.contains("the job stood still (hang ×18446744073709551615)"), "{all}");
}

#[test]
fn http_source_shows_only_the_state() {
    let mut model = model(Source::Http("here:9400".to_owned()), Lang::En);
    assert_eq!(model.press(Key::Letter('l')), None);
    let all = picture(&mut model, 80, 24).join("\n");
    assert!(all.contains("only where the ranks run"), "{all}");
}

#[test]
fn job_of_another_user_names_its_owner() {
    for (lang, owned) in
        [(Lang::En, "job of user bob (1001)"), (Lang::Zh, "用户 bob (1001) 的任务")]
    {
        let title = |owner: Option<&str>, is_known: bool| {
            let model = if is_known {
                model(Source::Socket, lang)
            } else {
                Model::new(Source::Socket, lang)
            };
            picture(&mut model.of_user(owner.map(str::to_owned)), 80, 24)[0].clone()
        };
        for is_known in [true, false] {
            assert!(title(Some("bob (1001)"), is_known).contains(owned), "{is_known}");
            // The control: the user's own job.
            assert!(!title(None, is_known).contains(owned), "{is_known}");
        }
    }
}

#[test]
fn ended_or_silent_job_is_shown() {
    let mut model = model(Source::Socket, Lang::En);
    model.hear(News::Silent(Text::same("gone")));
    assert_eq!(picture(&mut model, 80, 24)[2], "gone");
    let mut ended = nodes();
    ended[0].end = serde_json::from_value(json!({
        "code": 7, "id": "rank.exit", "text": { "en": "rank 6 failed", "zh": "rank 6 失败" },
    }))
    .expect("an end");
    model.hear(News::Status { nodes: ended, unanswered: Vec::new() });
    assert_eq!(picture(&mut model, 80, 24)[2], "exit code 7: rank 6 failed");
    // Nothing is known at first.
    let mut empty = Model::new(Source::Socket, Lang::En);
    assert!(picture(&mut empty, 80, 24)[0].starts_with("ranklaunch top"));
    assert_eq!(empty.press(Key::Enter), None);
}

proptest! {
    /// Any size, any keys, any order of news.
    #[test]
    fn screen_never_panics_for_any_input(
        sizes in prop::collection::vec((0..200_u16, 0..60_u16), 1..4),
        keys in "[qjklstpnr/?gG a0\u{1b}文]{0,40}",
        known in any::<bool>(),
    ) {
        let mut model = if known { model(Source::Socket, Lang::Zh) } else { Model::new(Source::Socket, Lang::En) };
        for letter in keys.chars() {
            let key = if letter == '\u{1b}' { Key::Escape } else { Key::Letter(letter) };
            model.press(key);
            model.press(Key::PageDown);
        }
        for (width, height) in sizes {
            picture(&mut model, width, height);
        }
    }
}
