//! The pages in docs/ that are generated: from the table of ids, and from the command line.

mod options;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use report::findings::{ExitCode, Explanation, Family, Id, IdKind, explanation};
use text::lang::{Lang, Text};

/// If set, the files are written instead of compared.
const WRITE: &str = "RANKLAUNCH_WRITE_DOCS";

/// A page in one language.
struct Page {
    lang: Lang,
    out: String,
}

impl Page {
    fn new(lang: Lang, title: &str, title_zh: &str, about: &str, about_zh: &str) -> Page {
        let mut page = Page { lang, out: String::new() };
        let (title, about) =
            (page.say(title, title_zh).to_owned(), page.say(about, about_zh).to_owned());
        let note = page.say("Written by `make docs`.", "由 `make docs` 生成。").to_owned();
        let _ = write!(page.out, "# {title}\n\n{about}\n\n{note}\n");
        page
    }

    fn say<'a>(&self, en: &'a str, zh: &'a str) -> &'a str {
        if self.lang == Lang::Zh { zh } else { en }
    }

    fn get<'a>(&self, text: &'a Text) -> &'a str {
        text.get(self.lang)
    }

    fn heading(&mut self, level: usize, words: &str) {
        let above = if self.out.ends_with("\n\n") { "" } else { "\n" };
        let _ = write!(self.out, "{above}{} {words}\n\n", "#".repeat(level));
    }

    fn row(&mut self, cells: &[&str]) {
        let cells: Vec<String> = cells.iter().map(|cell| plain(cell).replace('|', "\\|")).collect();
        let _ = writeln!(self.out, "| {} |", cells.join(" | "));
    }

    fn table(&mut self, head: &[&str]) {
        self.row(head);
        self.row(&vec!["---"; head.len()]);
    }

    fn explanation(&mut self, name: &str, explanation: &Explanation) {
        self.heading(3, &format!("`{name}`"));
        let Explanation { what, why, mend, off } = explanation;
        let _ = write!(self.out, "**{}**\n\n{}\n", plain(self.get(what)), plain(self.get(why)));
        let labels = [("Mend", "处理", mend), ("Override", "关闭", off)];
        for (label, label_zh, text) in labels {
            let label = self.say(label, label_zh).to_owned();
            let colon = self.say(": ", "：").to_owned();
            let _ = write!(self.out, "\n{label}{colon}{}\n", plain(self.get(text)));
        }
    }
}

/// Text in which nothing is taken for a tag of HTML, except in backticks, where nothing is.
fn plain(text: &str) -> String {
    let escaped = |(number, part): (usize, &str)| match number % 2 {
        0 => part.replace('<', "&lt;"),
        _ => part.to_owned(),
    };
    text.split('`').enumerate().map(escaped).collect::<Vec<_>>().join("`")
}

#[test]
fn nothing_is_taken_for_a_tag() {
    assert_eq!(plain("a <b> `<c>` <d"), "a &lt;b> `<c>` &lt;d");
}

fn joined(all: impl IntoIterator<Item = Text>, lang: Lang) -> String {
    let all: Vec<String> = all.into_iter().map(|text| text.get(lang).to_owned()).collect();
    all.join(if lang == Lang::Zh { "、" } else { ", " })
}

fn findings(lang: Lang) -> String {
    let mut page = Page::new(
        lang,
        "Findings",
        "检查项与消息 ID",
        "What ranklaunch says by id: checks, refusals, warnings and causes of an end. \
         `ranklaunch explain ID` prints an entry. The rules of lint stand in [lint.md](lint.md), the \
         exit codes in [exit-codes.md](exit-codes.md). A check has a severity: `fail` refuses a launch, \
         `warn` goes on, and `--severity ID=fail|warn|off` or `[severity]` in a profile changes it.",
        "ranklaunch 使用的 ID：检查项、拒绝启动、警告和结束原因。`ranklaunch explain ID` 可显示单个条目。\
         lint 规则见 [lint.zh-CN.md](lint.zh-CN.md)，退出码见 [exit-codes.zh-CN.md](exit-codes.zh-CN.md)。\
         检查项有严重级别：`fail` 拒绝启动，`warn` 继续，可用 `--severity ID=fail|warn|off` 或配置文件的 `[severity]` 修改。",
    );
    for family in Family::ALL.iter().filter(|family| **family != Family::Lint) {
        let title = page.get(&family.title()).to_owned();
        page.heading(2, &title);
        let head = [
            page.say("id", "ID"),
            page.say("meaning", "含义"),
            page.say("kind", "类别"),
            page.say("exit code", "退出码"),
            page.say("default", "默认严重级别"),
        ]
        .map(str::to_owned);
        page.table(&head.each_ref().map(String::as_str));
        for id in family.ids() {
            let kinds = joined(id.kinds().into_iter().map(IdKind::words), lang);
            let codes = joined(id.codes().into_iter().map(report::findings::Exit::words), lang);
            let usual = id.usual().map(|usual| usual.words());
            let usual = usual.as_ref().map_or("", |usual| usual.get(lang)).to_owned();
            let what = explanation(id).what;
            let name = format!("`{id}`");
            page.row(&[&name, what.get(lang), &kinds, &codes, &usual]);
        }
        for id in family.ids() {
            page.explanation(id.as_str(), &explanation(id));
        }
    }
    page.out
}

fn lint(lang: Lang) -> String {
    let mut page = Page::new(
        lang,
        "Rules of lint",
        "lint 规则",
        "What `ranklaunch lint MANIFEST…` looks for. It ends with 1 where something was found that is an \
         error or a warning, and with 64 where a manifest cannot be read.",
        "`ranklaunch lint MANIFEST…` 检查的内容。发现错误或警告时返回 1，清单无法读取时返回 64。",
    );
    let rules: Vec<Id> = Id::ALL.iter().copied().filter(|id| id.is_of_lint()).collect();
    page.heading(2, page.say("All rules", "全部规则"));
    let head = [page.say("id", "ID"), page.say("meaning", "含义")].map(str::to_owned);
    page.table(&head.each_ref().map(String::as_str));
    for id in &rules {
        page.row(&[&format!("`{id}`"), explanation(*id).what.get(lang)]);
    }
    page.heading(2, page.say("What to do", "如何处理"));
    for id in &rules {
        page.explanation(id.as_str(), &explanation(*id));
    }
    page.out
}

fn exit_codes(lang: Lang) -> String {
    let mut page = Page::new(
        lang,
        "Exit codes",
        "退出码",
        "What each exit code says. `ranklaunch explain CODE` prints an entry. A script's own code may be one \
         of these; `class` in the termination message tells them apart. Any other code is that of the first \
         rank that failed, or 128 plus its signal. `[exit]` in a profile gives a code from 64 to 92 another \
         number.",
        "各退出码的含义。`ranklaunch explain CODE` 可显示单个条目。脚本自身的退出码可能与此相同，可由终止消息中的 `class` \
         区分。其余退出码来自最先失败的 rank，或为 128 加信号编号。配置文件的 `[exit]` 可为 64 到 92 改用其他数值。",
    );
    page.heading(2, page.say("All codes", "全部退出码"));
    let head = [page.say("code", "退出码"), page.say("meaning", "含义"), page.say("ids", "ID")];
    let head = head.map(str::to_owned);
    page.table(&head.each_ref().map(String::as_str));
    for code in ExitCode::all() {
        let ids: Vec<String> = code.ids().iter().map(|id| format!("`{id}`")).collect();
        // Every setting: the page of findings names them.
        let shown = if ids.len() > 40 { String::new() } else { ids.join(", ") };
        page.row(&[&code.number().to_string(), code.explanation().what.get(lang), &shown]);
    }
    page.heading(2, page.say("What to do", "如何处理"));
    for code in ExitCode::all() {
        page.explanation(&code.number().to_string(), &code.explanation());
    }
    page.out
}

fn pages() -> Vec<(PathBuf, String)> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let kinds = [
        ("findings", findings as fn(Lang) -> String),
        ("lint", lint),
        ("exit-codes", exit_codes),
        ("options", options::options),
    ];
    kinds
        .into_iter()
        .flat_map(|(name, write)| {
            [
                (docs.join(format!("{name}.md")), write(Lang::En)),
                (docs.join(format!("{name}.zh-CN.md")), write(Lang::Zh)),
            ]
        })
        .collect()
}

/// The first line in which a page differs from the file.
fn difference(file: &str, page: &str) -> Option<String> {
    let mut lines =
        (1..).zip(file.lines().map(Some).chain([None]).zip(page.lines().map(Some).chain([None])));
    let (line, (old, new)) = lines.find(|(_, (old, new))| old != new)?;
    Some(format!("line {line}: {old:?} should be {new:?}"))
}

#[test]
fn the_documents_say_what_the_table_says() {
    for (path, page) in pages() {
        if std::env::var_os(WRITE).is_some() {
            std::fs::write(&path, &page).expect("a page");
        }
        let file = std::fs::read_to_string(&path).unwrap_or_default();
        let difference = difference(&file, &page);
        assert_eq!(difference, None, "{}: run make docs", path.display());
        assert!(page.len() > 2000, "{}", path.display());
    }
}

#[test]
fn a_changed_document_is_found() {
    for (path, page) in pages() {
        assert_eq!(difference(&page, &page), None);
        let changed = page.replacen("| `", "| `x", 1).replacen("| 0 |", "| 9 |", 1);
        assert!(difference(&changed, &page).is_some(), "{}", path.display());
        let (short, _) = page.trim_end().rsplit_once('\n').expect("lines");
        assert!(difference(short, &page).is_some(), "{}", path.display());
    }
}
