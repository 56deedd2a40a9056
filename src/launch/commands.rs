//! The subcommands that start nothing: plan, clean, wait, lint, completions, man.

use std::io::{IsTerminal, Read, Write};
use std::sync::{Arc, OnceLock};

use super::look;
use super::node::{self, Outlook};
use super::stale;
use super::{open, remap};
use crate::clear::{self, ClearReport};
use crate::cli;
use crate::decide::decide;
use crate::findings::{ExitCode, Id};
use crate::host::Host;
use crate::lang::{Lang, Text, cause};
use crate::lint;
use crate::logs::printable;
use crate::plan::{self, Scope};
use crate::prepare::{self, Wait};
use crate::report::{self, closing, plan_view, stale_view};
use crate::settings;
use crate::supervise;
use crate::text;
use crate::verdict::{Refusal, Verdict};

/// Why standard output did not take everything that was printed.
static UNPRINTED: OnceLock<std::io::Error> = OnceLock::new();

/// Prints to standard output; a reader that left early is not an error. Any other is said
/// by [`complete`].
pub(super) fn print(text: impl AsRef<[u8]>) {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_ref()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            let _ = UNPRINTED.set(error);
        }
        _ => {}
    }
}

/// The exit code of a command that printed all it had to and ended with `code`.
pub(super) fn complete(code: i32, lang: Lang) -> i32 {
    let Some(error) = UNPRINTED.get() else { return code };
    let failure = unwritten(text!("standard output", "标准输出"), error);
    let code = if code == 0 { failure.verdict.code() } else { code };
    fail(&failure, code, lang)
}

/// Says what did not work, where nothing was refused.
pub(super) fn fail(failure: &Refusal, code: i32, lang: Lang) -> i32 {
    say(&closing::ended_early(&report::refused(failure), code, lang));
    code
}

/// What somebody was to read has not got there.
pub(super) fn unwritten(place: Text, error: &std::io::Error) -> Refusal {
    let Text { en, zh } = place;
    let hint = match error.kind() {
        std::io::ErrorKind::FileTooLarge => text!(
            "files may not grow any further here: raise `ulimit -f`, or print to a pipe",
            "此处的文件大小已达上限：请提高 `ulimit -f`，或输出到管道"
        ),
        _ => text!("name a place that can be written", "请指定可写的位置"),
    };
    Refusal::new(
        Id::ReportWrite,
        text!("cannot write {en}: {error}", "无法写入 {zh}：{error}"),
        hint,
    )
}

/// Columns of the terminal on standard output, if one is there.
pub(super) fn terminal_width() -> Option<usize> {
    let out = std::io::stdout();
    if !out.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(&out).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Says something on standard error, with what it quotes from others made fit for a
/// terminal: names come from manifests, other nodes and other users' processes.
pub(super) fn say(text: &str) {
    let _ = std::io::stderr().lock().write_all(printable(text).as_bytes());
}

/// The same on standard output, for people. What programs read goes through [`print`].
pub(super) fn show(text: &str) {
    print(printable(text).as_bytes());
}

pub(super) fn refuse(refusal: &Refusal, lang: Lang) -> i32 {
    let code = refusal.verdict.code();
    say(&closing::refusal(refusal, code, lang));
    code
}

/// Runs `work` in a runtime of one thread.
pub(super) fn block_on<T>(work: impl Future<Output = T>) -> Result<T, Refusal> {
    prepare::can_start_threads()?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
            Refusal::new(
                Id::Internal,
                text!("cannot start the runtime: {error}", "无法启动运行时：{error}"),
                text!(
                    "raise the limits on threads and open files",
                    "请提高线程数和打开文件数的限制"
                ),
            )
        })?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    Ok(done)
}

/// `ranklaunch plan`: what run would do and why.
pub(super) fn plan(asked: &cli::Plan) -> i32 {
    let opened = open(&asked.options).and_then(|(host, mut settings)| {
        let lang = settings.lang;
        match settings::Assumed::read(&asked.assume) {
            Ok(Some(assumed)) => assumed.apply(&mut settings),
            Ok(None) => {}
            Err(refusal) => return Err((refusal, lang)),
        }
        Ok((host, settings))
    });
    let (host, settings) = match opened {
        Ok(opened) => opened,
        Err((refusal, lang)) if asked.format == cli::Format::Json => {
            print(format!("{:#}\n", plan_view::refusal_json(&refusal, lang)));
            return refusal.verdict.code();
        }
        Err((refusal, lang)) => return refuse(&refusal, lang),
    };
    let (host, settings) = (Arc::new(host), Arc::new(settings));
    let outlook = block_on(async {
        let facts = look::observe(&host, &settings).await;
        let decided = decide(&settings, &facts, Scope::Alone);
        let outlook = node::outlook(&settings, &decided);
        stale::outlook(&host, &settings, &facts, &decided, outlook).await
    });
    let Outlook { plan, refusal } = outlook.unwrap_or_else(Outlook::refused);
    let lang = settings.lang;
    let code =
        refusal.as_ref().map_or(0, |refusal| remap(&settings.exit_codes, refusal.verdict.code()));
    match asked.format {
        cli::Format::Text => {
            if let Some(refusal) = &refusal {
                show(&closing::would_be_refused(refusal, code, lang));
            }
            if let Some(plan) = &plan {
                show(&plan_view::text(plan, lang, terminal_width()));
            }
        }
        cli::Format::Json => {
            let shim = std::env::current_exe().unwrap_or_else(|_| "ranklaunch".into());
            let document = plan_view::outlook_json(plan.as_ref(), refusal.as_ref(), lang, &shim);
            print(format!("{document:#}\n"));
        }
        cli::Format::Shell => {
            // What a shell reads stays what a shell can run.
            if let Some(refusal) = &refusal {
                say(&closing::would_be_refused(refusal, code, lang));
            }
            if let Some(plan) = &plan {
                print(plan_view::shell(plan));
            }
        }
    }
    code
}

/// `ranklaunch clean`: only the step that ends stale processes.
pub(super) fn clean(asked: &cli::Clean) -> i32 {
    let (host, settings) = match open(&asked.options) {
        Ok(opened) => opened,
        Err((refusal, lang)) => return refuse(&refusal, lang),
    };
    let lang = settings.lang;
    let (host, settings) = (Arc::new(host), Arc::new(settings));
    let for_people = asked.format == cli::ReportFormat::Text;
    let cleaned = block_on(async {
        let facts = look::observe(&host, &settings).await;
        let plan = plan::plan(&settings, &facts)?;
        let request = stale::request(&settings, &plan, &facts);
        if asked.dry_run {
            let found = clear::find(&host, &request);
            return Ok(ClearReport { found, ..ClearReport::default() });
        }
        clear::clear(&host, &request, &mut |line| {
            if for_people {
                show(&closing::line(&line, lang));
            }
        })
    });
    let report = match cleaned.and_then(|report| report) {
        Ok(report) => report,
        Err(refusal) => return refuse(&refusal, lang),
    };
    if !for_people {
        print(format!("{:#}\n", stale_view::json(&report.found, &report.ended, lang)));
    } else if asked.dry_run || report.found.is_empty() {
        show(&stale_view::table(&report.found, lang));
    } else {
        let mode = settings.stale.value;
        let left = report.found.iter().filter(|one| !one.is_ended_by(mode) && !one.inner);
        for one in left {
            show(&closing::line(&one.left_alone(mode), lang));
        }
    }
    0
}

/// `ranklaunch wait HOST:PORT`: only the readiness step.
pub(super) fn wait(asked: &cli::Wait) -> i32 {
    let host = Host::live();
    let target = match settings::read_wait(asked, &host) {
        Ok(target) => target,
        Err(refusal) => {
            let options = cli::Options { lang: asked.lang.clone(), ..cli::Options::default() };
            return refuse(&refusal, settings::language(&options, &host));
        }
    };
    let lang = target.lang;
    let wait = Wait::new(&target.host, target.port, target.timeout);
    let reached = block_on(prepare::wait_for_master(&host, &wait, |line| {
        say(&closing::line(&line, lang));
    }));
    match reached.and_then(|reached| reached) {
        Ok(reached) => {
            let (peer, seconds) = (reached.peer, reached.waited.as_secs_f64());
            let answers = text!(
                "{peer} answers, after {seconds:.1} s",
                "{peer} 已应答，用时 {seconds:.1} 秒"
            );
            say(&closing::line(&answers, lang));
            0
        }
        Err(refusal) => {
            let Some(hint) = unreached(&refusal, target.port) else {
                return refuse(&refusal, lang);
            };
            let code = refusal.verdict.code();
            say(&closing::gave_up(&refusal.text, &hint, refusal.id, code, lang));
            code
        }
    }
}

/// What to do where the other side did not come; None: it was something else.
fn unreached(refusal: &Refusal, port: u16) -> Option<Text> {
    match refusal.verdict {
        Verdict::MasterName => Some(text!(
            "check the name, and that its pod and Service exist; --timeout 1h waits longer",
            "请检查名称，以及对应的 Pod 与 Service 是否存在；--timeout 1h 可延长等待"
        )),
        Verdict::MasterReach => Some(text!(
            "check that something listens on port {port} there and that no firewall or network policy is in between; --timeout 1h waits longer",
            "请检查对方是否在端口 {port} 上监听，以及是否被防火墙或网络策略拦截；--timeout 1h 可延长等待"
        )),
        _ => None,
    }
}

/// `ranklaunch init -- COMMAND…`: the guard, around any command.
pub(super) fn init(asked: &cli::Init) -> i32 {
    let host = Host::live();
    let wanted = match settings::read_init(asked, &host) {
        Ok(wanted) => wanted,
        Err(refusal) => {
            let options = cli::Options { lang: asked.lang.clone(), ..cli::Options::default() };
            return refuse(&refusal, settings::language(&options, &host));
        }
    };
    match supervise::init::init(&asked.command, wanted.grace) {
        Ok(code) => code,
        Err(error) => {
            let program = asked.command.first().map(|name| name.display().to_string());
            let program = program.unwrap_or_default();
            let refusal = Refusal::with(
                Verdict::EngineStart,
                Id::InitExec,
                text!("cannot execute {program}: {error}", "无法执行 {program}：{error}"),
                text!(
                    "check the name, PATH and the execute permission",
                    "请检查名称、PATH 和执行权限"
                ),
            );
            let code = supervise::exec_code(&error);
            say(&closing::refusal(&refusal, code, wanted.lang));
            code
        }
    }
}

/// `ranklaunch lint MANIFEST…`: mistakes that fail at run time.
pub(super) fn lint(asked: &cli::Lint) -> i32 {
    let options = cli::Options { lang: asked.lang.clone(), ..cli::Options::default() };
    let lang = settings::language(&options, &Host::live());
    let node_memory = match &asked.node_memory {
        None => None,
        Some(raw) => match raw.to_str().and_then(lint::size) {
            Some(bytes) => Some(bytes),
            None => {
                let shown = raw.to_string_lossy();
                let refusal = Refusal::new(
                    Id::SettingsValue,
                    text!(
                        "--node-memory is '{shown}', not a size",
                        "--node-memory 的值为 '{shown}'，不是容量"
                    ),
                    text!("write a size such as 256Gi", "请写容量，例如 256Gi"),
                );
                return refuse(&refusal, lang);
            }
        },
    };
    let knowledge = lint::Knowledge { misuse: plan::nccl::misuse, profiles: settings::EMBEDDED };
    let mut manifests = Vec::new();
    let mut unopened = Vec::new();
    for path in &asked.manifests {
        let name = path.to_string_lossy().into_owned();
        match read_manifest(path) {
            Ok(bytes) => manifests.push(lint::Manifest { name, bytes }),
            Err(error) => unopened.push(Refusal::new(
                Id::LintUnreadable,
                {
                    let Text { en, zh } = cause(&error);
                    text!("{name}: {en}", "{name}：{zh}")
                },
                text!(
                    "name a manifest, or - for standard input",
                    "请指定清单文件，或用 - 表示标准输入"
                ),
            )),
        }
    }
    let mut report = lint::lint(&manifests, lint::Limits { node_memory }, knowledge);
    report.refused.extend(unopened);
    match asked.format {
        cli::LintFormat::Text => show(&lint::text(&report, lang)),
        cli::LintFormat::Json => print(format!("{:#}\n", lint::json(&report, lang))),
        cli::LintFormat::Github => print(lint::github(&report, lang)),
    }
    let code = report.exit_code();
    for refusal in &report.refused {
        say(&closing::refusal(refusal, code, lang));
    }
    code
}

/// One byte more than is read, so that a file too large is known as such.
fn read_manifest(path: &std::ffi::OsStr) -> std::io::Result<Vec<u8>> {
    const MOST: u64 = lint::LARGEST as u64 + 1;
    let mut bytes = Vec::new();
    if path == "-" {
        std::io::stdin().lock().take(MOST).read_to_end(&mut bytes)?;
    } else {
        std::fs::File::open(path)?.take(MOST).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

pub(super) fn completions(shell: clap_complete::Shell) -> i32 {
    let severities = ["fail", "warn", "off"];
    let ids = Id::checks().flat_map(|id| severities.map(|what| format!("{id}={what}")));
    let text = |values: Vec<&str>| values.into_iter().map(str::to_owned).collect();
    let mut values: Vec<(&str, Vec<String>)> =
        settings::choices().into_iter().map(|(name, values)| (name, text(values))).collect();
    values.push(("severity", ids.collect()));
    values.push(("nproc-per-node", text(vec!["auto"])));
    let codes = ExitCode::all().into_iter().map(|code| code.number().to_string());
    let ids = Id::ALL.iter().map(ToString::to_string).chain(codes);
    values.push((cli::EXPLAINED, ids.collect()));
    let profiles: Vec<&str> = settings::EMBEDDED.iter().map(|(name, _)| *name).collect();
    print(cli::completions(shell, &values, &profiles));
    0
}

pub(super) fn man(lang: Lang) -> i32 {
    match cli::man(lang) {
        Ok(page) => {
            print(page);
            0
        }
        Err(error) => {
            let text = text!("cannot write the manual page: {error}", "无法输出手册页：{error}");
            say(&closing::line(&text, lang));
            Verdict::Internal.code()
        }
    }
}
