//! Reasons for starting ranks without a warmed interpreter, and for not examining a program any further.

use std::io;
use std::time::Duration;

use text::lang::{Text, cause};
use text::text;

/// The words of `sitecustomize.py` and of `scout.py`'s `aside`.
pub(super) fn of(words: &[&str]) -> Text {
    let (word, rest) = words.split_first().unwrap_or((&"", &[]));
    let first = rest.first().copied().unwrap_or_default();
    let all = rest.join(" ");
    match *word {
        "import" => {
            let error = rest.get(1..).unwrap_or_default().join(" ");
            text!("{error} (import of {first})", "导入 {first} 失败：{error}")
        }
        "module" => {
            text!("{first} does not work in a forked process", "{first} 无法在 fork 出的进程中使用")
        }
        "threads" => text!(
            "what was imported has started {first} threads, which a fork does not copy",
            "导入的模块启动了 {first} 个线程，fork 不会复制线程"
        ),
        "opened" => text!(
            "what was imported has opened {all}, which ranks must not share",
            "导入的模块打开了 {all}，各 rank 不能共用"
        ),
        "dies" => text!(
            "the warmed interpreter has ended when it imported {first}",
            "预热的解释器在导入 {first} 时退出"
        ),
        "locked" => text!(
            "what was imported holds a lock on {all}, which ranks must not share",
            "导入的模块持有 {all} 的锁，各 rank 不能共用"
        ),
        "made" => text!(
            "what was imported has made {all}, which ranks must not share",
            "导入的模块创建了 {all}，各 rank 不能共用"
        ),
        "children" => text!(
            "what was imported has started a process, which is no child of the ranks",
            "导入的模块启动了子进程，它不是各 rank 的子进程"
        ),
        "own" => text!(
            "what was imported asks for {first}, which is in the folder of the program",
            "导入的模块请求了 {first}，而该模块位于程序所在目录"
        ),
        "read" => text!(
            "what was imported has read {first}, of which each rank has its own",
            "导入的模块读取了 {first}，而每个 rank 的值各不相同"
        ),
        "mistaken" => text!(
            "what was imported has read {first}, which the program sets before",
            "导入的模块读取了 {first}，而程序在此之前设置了该变量"
        ),
        "written" => text!(
            "what was imported has set {first}, which the program or ranklaunch sets as well",
            "导入的模块设置了 {first}，而程序或 ranklaunch 也会设置该变量"
        ),
        "path" => text!(
            "what was imported has put a folder before those of sys.path",
            "导入的模块在 sys.path 开头插入了目录"
        ),
        "traced" => text!(
            "a tracer or profiler is on in this interpreter",
            "该解释器启用了跟踪器或性能分析器"
        ),
        "limits" => text!(
            "the engine has changed the limits of its ranks (/proc/PID/limits)",
            "启动引擎修改了 rank 的资源限制（/proc/PID/limits）"
        ),
        "descriptors" => {
            text!("the engine has opened files for its ranks", "启动引擎为其 rank 打开了文件")
        }
        "variable" => text!(
            "{first} of the ranks is not what it was when the modules were imported",
            "rank 的 {first} 与导入模块时不同"
        ),
        "version" => text!("Python {first} is older than 3.8", "Python {first} 低于 3.8"),
        "implementation" => text!(
            "only CPython with its global lock is supported, not {first}",
            "仅支持带全局锁的 CPython，不支持 {first}"
        ),
        "options" => text!("the interpreter runs with {all}", "解释器使用了 {all}"),
        "customized" => text!(
            "{all} changes the interpreter before the program runs",
            "{all} 会在程序运行前改变解释器"
        ),
        "added" => text!(
            "{first} of --warm-modules is no installed module",
            "--warm-modules 中的 {first} 不是已安装的模块"
        ),
        "program" => text!(
            "the program is no Python file that can be read",
            "该程序不是可以读取的 Python 文件"
        ),
        "error" if !all.is_empty() => text!("{all}", "{all}"),
        // The word comes from another version of the file, or from something else that writes there.
        _ => {
            let said = words.join(" ");
            text!("the interpreter says only {said:?}", "解释器只给出了 {said:?}")
        }
    }
}

/// The words of `sitecustomize.py` for an engine that it does not fork.
pub(super) fn of_engine(words: &[&str]) -> Text {
    match words {
        ["limits", ..] => text!(
            "limits have changed since the interpreter was started (/proc/PID/limits)",
            "解释器启动之后资源限制发生了变化（/proc/PID/limits）"
        ),
        ["descriptors", ..] => {
            text!(
                "it inherits files that the interpreter has not",
                "它继承了解释器没有的文件描述符"
            )
        }
        ["variable", name, ..] => text!(
            "its {name} is not what it was when the modules were imported",
            "其 {name} 与导入模块时不同"
        ),
        _ => of(words),
    }
}

/// The words of `scout.py`'s `ends`.
pub(super) fn of_end(words: &[&str]) -> Text {
    let (word, rest) = words.split_first().unwrap_or((&"", &[]));
    let first = rest.join(" ");
    match *word {
        "call" => text!("{first}() is called", "调用了 {first}()"),
        "change" => text!("{first} is changed", "修改了 {first}"),
        "condition" => text!("a condition", "条件语句"),
        "try" => text!("a try statement", "try 语句"),
        "unsafe" => {
            text!("{first} does not work in a forked process", "{first} 无法在 fork 出的进程中使用")
        }
        "missing" => text!("there is no module {first}", "没有模块 {first}"),
        "relative" => text!("a relative import without a package", "相对导入没有所属的包"),
        "compiled" => text!("{first} is compiled", "{first} 是编译模块"),
        "files" => text!("the program has more than {first} files", "程序文件超过 {first} 个"),
        "unread" => text!("it cannot be read: {first}", "无法读取：{first}"),
        _ => text!("a statement that may change anything", "可能产生任意影响的语句"),
    }
}

pub(super) fn not_written(error: &io::Error) -> Text {
    let Text { en, zh } = cause(error);
    text!("no folder for its files: {en}", "无法创建其文件夹：{zh}")
}

pub(super) fn not_started(why: Text) -> Text {
    let Text { en, zh } = why;
    text!("the interpreter cannot be started: {en}", "无法启动解释器：{zh}")
}

pub(super) fn no_answer() -> Text {
    text!(
        "the interpreter reads no sitecustomize of PYTHONPATH",
        "解释器不读取 PYTHONPATH 中的 sitecustomize"
    )
}

pub(super) fn late(within: Duration) -> Text {
    let seconds = within.as_secs();
    text!("its imports were not over within {seconds} s", "导入在 {seconds} 秒内未完成")
}

pub(super) fn ended() -> Text {
    text!("the warmed interpreter has ended", "预热的解释器已退出")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_import_names_the_module_once() {
        let Text { en, zh } = of(&["import", "torch", "OSError", "no", "libcudart"]);
        assert_eq!(en, "OSError no libcudart (import of torch)");
        assert_eq!(zh, "导入 torch 失败：OSError no libcudart");
    }

    #[test]
    fn unknown_reason_is_quoted_verbatim() {
        assert_eq!(of(&["error", "OSError", "no space"]).en, "OSError no space");
        assert_eq!(of(&["other"]).en, "the interpreter says only \"other\"");
        assert_eq!(of(&[]).en, "the interpreter says only \"\"");
    }

    #[test]
    fn engine_refusal_does_not_mention_ranks() {
        for words in [&["limits"][..], &["descriptors"], &["variable", "OMP_NUM_THREADS"]] {
            let Text { en, zh } = of_engine(words);
            assert!(!en.contains("ranks") && !zh.contains("rank"), "{en} {zh}");
        }
        assert!(of_engine(&["variable", "OMP_NUM_THREADS"]).en.contains("OMP_NUM_THREADS"));
        assert_eq!(of_engine(&["error", "OSError"]).en, "OSError");
    }
}
