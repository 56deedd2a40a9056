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

/// Escapes the text so that nothing in it is an HTML tag; text in backticks is never one.
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

/// Rules for all codes, below their table.
const OF_ALL_CODES: (&str, &str) = (
    "- Any other code is that of the first rank that failed, or 128 plus its signal. A script's own code may be \
     one of the table; `class` in the termination message tells them apart.\n\
     - A job that is stopped from outside ends with 128 plus the signal even if its ranks end with 0, so an \
     unfinished job never counts as complete.\n\
     - `[exit]` in a profile gives a code from 64 to 92 another number.\n",
    "- 其余退出码来自最先失败的 rank，或为 128 加信号编号。脚本自身的退出码可能与表中相同，可由终止消息中的 `class` 区分。\n\
     - 被外部停止的任务，即使各 rank 都以 0 退出，结果也是 128 加信号编号，因此未完成的任务不会被当作完成。\n\
     - 配置文件的 `[exit]` 可为 64 到 92 改用其他数值。\n",
);

const OF_SEVERAL_NODES: (&str, &str) = (
    "Only the node with the fault ends with the code of the cause, also after a hang (91) or where a node has \
     to be replaced (90). The others end with 143 where another attempt may help, as after most codes of a \
     script, and with 92 where it cannot: after exit codes 2, 126 and 127, and after causes that fail again \
     for certain. So an operator, which looks at the codes of all pods, treats a job of several nodes like \
     one of a single node. If the next attempt of `--max-restarts` waits in vain for a node, all other nodes \
     end with 143 and with the cause of the attempt before.\n\n\
     The nodes of a job end within a second of each other, in any order. An operator that acts on the first \
     code that it sees (a Volcano policy) must therefore do the same for all codes of one failure: it lists \
     those that no retry helps and starts the job again after any other, as the manifests of \
     [packaging/kubernetes](../packaging/kubernetes) do. One case is left to chance: after a cause for good \
     the failed rank's own code may be 1, which says nothing of a retry, beside 92 on the other nodes. Such a \
     job ends at once, or after the retries that the operator allows.\n",
    "只有出错的节点以原因本身的退出码结束，卡住（91）和需要换节点（90）时也是如此。其余节点在重试可能有用时以 143 结束\
     （脚本的大多数退出码都属此类），重试无用时以 92 结束：退出码 2、126、127，以及确定会再次失败的原因。因此，查看所有 Pod \
     退出码的 operator 对多节点任务的处理与单节点相同。若 `--max-restarts` 的下一次尝试没有等到某个节点，其余节点都以 143 结束，\
     原因仍是前一次尝试的原因。\n\n\
     同一任务的各节点在一秒之内先后结束，次序不定。若 operator 只根据最先看到的退出码决定动作（Volcano 的 policies），\
     就必须对同一次失败的所有退出码采取相同动作：列出重试无用的退出码，其余一律重新启动，\
     [packaging/kubernetes](../packaging/kubernetes) 中的清单即是如此。只有一种情况无法确定：原因确定会再次出现时，\
     出错的 rank 自身的退出码可能是 1，无法据此判断重试是否有用，而其他节点为 92；这样的任务会立即结束，或在 operator \
     允许的重试次数用完后结束。\n",
);

fn exit_codes(lang: Lang) -> String {
    let mut page = Page::new(
        lang,
        "Exit codes",
        "退出码",
        "The exit code says how a job ended. Messages show an id beside it, which says more. \
         `ranklaunch explain 86` prints the entry of a code, `ranklaunch explain ID` that of an id: its meaning, \
         its effect on the job, the remedy, and how to override it. The entries of all ids stand in \
         [findings](findings.md) and [rules of lint](lint.md).",
        "退出码说明任务如何结束，消息中与它并列的 ID 更为具体。`ranklaunch explain 86` 显示某个退出码的条目，\
         `ranklaunch explain ID` 显示某个 ID 的条目：含义、对任务的影响、处理办法，以及如何关闭。全部 ID 的条目见\
         [检查项与消息 ID](findings.zh-CN.md)和 [lint 规则](lint.zh-CN.md)。",
    );
    page.heading(2, page.say("All codes", "全部退出码"));
    let head = [page.say("code", "退出码"), page.say("meaning", "含义"), page.say("ids", "ID")];
    let head = head.map(str::to_owned);
    page.table(&head.each_ref().map(String::as_str));
    for code in ExitCode::all() {
        let ids: Vec<String> = code.ids().iter().map(|id| format!("`{id}`")).collect();
        // The list would be every setting, which the page of findings names.
        let shown = if ids.len() > 40 { String::new() } else { ids.join(", ") };
        page.row(&[&code.number().to_string(), code.explanation().what.get(lang), &shown]);
    }
    page.out.push('\n');
    page.out.push_str(page.say(OF_ALL_CODES.0, OF_ALL_CODES.1));
    page.heading(2, page.say("Several nodes", "多节点"));
    page.out.push_str(page.say(OF_SEVERAL_NODES.0, OF_SEVERAL_NODES.1));
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
fn documents_match_the_table() {
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
