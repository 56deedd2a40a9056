//! The commands that need no job: `init -- COMMAND…` runs any command under the guard, `wait HOST:PORT` waits until
//! a port answers, as a launch does, `install` copies the executable into a folder, `completions`, `man` and `help` print
//! the shell completions, the manual pages and the topics, `lint MANIFEST…` reports mistakes in manifests that would fail at run time,
//! `profile` lists, shows, creates and checks profiles.
//!
//! The image of the executable is built FROM scratch and so has no `cp`. An init container that copies the file
//! works on every version of Kubernetes.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::output::{block_on, print, refuse, say, show, terminal_width};
use crate::open::{RetryRules, catalogue_with};
use diagnose::catalogue;
use linux::host::Host;
use linux::regular_file;
use plan::placeholders;
use preflight::prepare::{self, Wait, no_process};
use report::findings::ExitCode;
use report::{Ending, closing, settings_view, topics};
use settings::cli::{self, Command, Options, ProfileAction, Topic};
use settings::{KnownProfile, LayoutRule, Program, Settings};
use text::lang::{Lang, Text, cause};
use text::text;
use verdict::{Class, Id, Refusal, Verdict, outcome};

pub(crate) fn init(asked: &cli::Init) -> i32 {
    let host = Host::live();
    let wanted = match asked.read(&host) {
        Ok(wanted) => wanted,
        Err(refusal) => {
            let options = Options { lang: asked.lang.clone(), ..Options::default() };
            return refuse(&refusal, options.language(&host));
        }
    };
    match supervise::init::init(&asked.command, wanted.grace) {
        Ok(code) => code,
        Err(error) => {
            let program = asked.command.first().map(|name| name.display().to_string());
            let (program, Text { en, zh }) = (program.unwrap_or_default(), cause(&error));
            let hint = no_process(&error).map(|refusal| refusal.hint);
            let ending = Ending {
                code: outcome::exec_code(&error),
                class: Class::Script,
                id: Id::InitExec,
                rank: None,
                node: None,
                text: text!("cannot execute {program}: {en}", "无法执行 {program}：{zh}"),
                hint: hint.unwrap_or_else(|| {
                    text!(
                        "check the name, PATH and the execute permission",
                        "请检查名称、PATH 和执行权限"
                    )
                }),
                why: None,
                consequence: false,
            };
            say(&closing::ended_early(&ending, ending.code, wanted.lang));
            ending.code
        }
    }
}

pub(crate) fn wait(asked: &cli::Wait) -> i32 {
    let host = Host::live();
    let target = match asked.read(&host) {
        Ok(target) => target,
        Err(refusal) => {
            let options = Options { lang: asked.lang.clone(), ..Options::default() };
            return refuse(&refusal, options.language(&host));
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

/// The hint if the other side did not answer; None for any other refusal.
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

/// The usual mode of programs: all users may run it, only its owner may replace it.
const MODE: u32 = 0o755;

pub(crate) fn install(folder: &Path) -> Result<i32, Refusal> {
    let file = copy_into(folder).map_err(|error| not_installed(folder, &error))?;
    show(&format!("{}\n", file.display()));
    Ok(0)
}

fn not_installed(folder: &Path, error: &io::Error) -> Refusal {
    let is_file = folder.is_file();
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new(".")).display().to_string();
    let (folder, Text { en, zh }) = (folder.display(), cause(error));
    let hint = if is_file {
        text!(
            "{folder} is a file; name its folder, in which the file ranklaunch is replaced: ranklaunch install {parent}",
            "{folder} 是文件；请指定其所在目录，其中的 ranklaunch 会被替换：ranklaunch install {parent}"
        )
    } else {
        text!(
            "name a folder that can be written, such as the mount of an emptyDir",
            "请指定可写的目录，例如 emptyDir 的挂载点"
        )
    };
    let text = text!(
        "cannot copy this executable into {folder}: {en}",
        "无法将本程序复制到 {folder}：{zh}"
    );
    Refusal::new(Id::InstallWrite, text, hint)
}

/// Writes a new file and renames it over the old one, since a running executable cannot be
/// written to.
fn copy_into(folder: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let file = folder.join("ranklaunch");
    // Two installations into one shared folder must not write to the same file.
    let mut fresh = tempfile::Builder::new().prefix(".ranklaunch-").tempfile_in(folder)?;
    io::copy(&mut File::open("/proc/self/exe")?, &mut fresh)?;
    fresh.as_file().set_permissions(PermissionsExt::from_mode(MODE))?;
    fresh.persist(&file)?;
    Ok(file)
}

/// The script of a shell, or what may stand at the end of `words`, for which a script asks.
pub(crate) fn completions(
    shell: clap_complete::Shell,
    words: Option<Vec<OsString>>,
    lang: Lang,
) -> i32 {
    match words {
        None => print(Command::completions(shell)),
        Some(words) => {
            let codes = ExitCode::all().into_iter().map(|code| code.number().to_string());
            let failures = catalogue().rows().iter().map(|row| row.id.to_string());
            let ids = Id::ALL.iter().map(ToString::to_string).chain(failures).chain(codes);
            print(Command::complete(&words, ids.collect(), lang));
        }
    }
    0
}

pub(crate) fn help(topic: Option<Topic>, lang: Lang) -> i32 {
    print(match topic {
        Some(topic) => topics::text(topic, lang),
        None => Command::help_list(lang),
    });
    0
}

pub(crate) fn man(lang: Lang) -> Result<i32, Refusal> {
    printed(Command::man(lang, &topics::exit_codes()), lang, |Text { en, zh }| {
        let text = text!("cannot write the manual page: {en}", "无法输出手册页：{zh}");
        (text, Verdict::Internal)
    })
}

/// Writes a page of each command into `folder` and prints their files.
pub(crate) fn man_pages(folder: &Path, lang: Lang) -> Result<i32, Refusal> {
    let written = Command::man_pages(lang, &topics::exit_codes()).and_then(|pages| {
        fs::create_dir_all(folder)?;
        pages.into_iter().try_fold(String::new(), |files, (name, page)| {
            let file = folder.join(name);
            fs::write(&file, page)?;
            Ok::<_, io::Error>(files + &file.display().to_string() + "\n")
        })
    });
    printed(written, lang, |Text { en, zh }| {
        let folder = folder.display();
        let text = text!(
            "cannot write the manual pages into {folder}: {en}; name a folder that can be written",
            "无法将手册页写入 {folder}：{zh}；请指定可写的目录"
        );
        (text, Verdict::Usage)
    })
}

fn printed(
    made: io::Result<impl AsRef<[u8]>>,
    lang: Lang,
    failed: impl FnOnce(Text) -> (Text, Verdict),
) -> Result<i32, Refusal> {
    Ok(match made {
        Ok(made) => {
            print(made);
            0
        }
        Err(error) => {
            let (text, verdict) = failed(cause(&error));
            say(&closing::line(&text, lang));
            verdict.code()
        }
    })
}

pub(crate) fn lint(asked: &cli::Lint, lang: Lang) -> Result<i32, Refusal> {
    Options { color: asked.color.clone(), ..Options::default() }.checked_color(&Host::live())?;
    let size = |raw: &OsString| {
        raw.to_str().and_then(lint::size).ok_or_else(|| {
            let shown = raw.to_string_lossy();
            Refusal::new(
                Id::SettingsValue,
                text!(
                    "--node-memory is '{shown}', not a size",
                    "--node-memory 的值为 '{shown}'，不是容量"
                ),
                text!("write a size such as 256Gi", "请写容量，例如 256Gi"),
            )
        })
    };
    let node_memory = asked.node_memory.as_ref().map(size).transpose()?;
    let mut manifests = Vec::new();
    let mut unopened = Vec::new();
    for path in &asked.manifests {
        let name = path.to_string_lossy().into_owned();
        match read_manifest(path) {
            Ok(bytes) => manifests.push(lint::Manifest { name, bytes }),
            Err(error) => unopened.push(Refusal::new(
                Id::LintUnreadable,
                cause(&error).about(&name),
                text!(
                    "name a manifest, or - for standard input",
                    "请指定清单文件，或用 - 表示标准输入"
                ),
            )),
        }
    }
    let mut report = lint::lint(&manifests, node_memory, settings::EMBEDDED);
    report.refused.extend(unopened);
    match asked.format {
        cli::AnnotatedFormat::Text => show(&lint::plain(&report, lang)),
        cli::AnnotatedFormat::Json => print(format!("{:#}\n", lint::json(&report, lang))),
        cli::AnnotatedFormat::Github => print(lint::github(&report, lang)),
    }
    let code = report.exit_code();
    for refusal in &report.refused {
        say(&closing::refusal(refusal, code, lang));
    }
    Ok(code)
}

/// Reads one byte more than the limit, so that a file that is too large is recognised.
pub(super) fn read_manifest(path: &std::ffi::OsStr) -> io::Result<Vec<u8>> {
    const MOST: u64 = lint::LARGEST as u64 + 1;
    if path != "-" {
        return regular_file::read_or_pipe(Path::new(path), MOST);
    }
    let mut bytes = Vec::new();
    io::stdin().lock().take(MOST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The text that `profile new` prints.
const BEGINNING: &str = include_str!("../../../config/new.toml");

pub(crate) fn profile(action: &ProfileAction, lang: Lang) -> Result<i32, Refusal> {
    let host = Host::live();
    match action {
        ProfileAction::List => list(&host, lang),
        ProfileAction::New => print(BEGINNING),
        ProfileAction::Show { name } => {
            print(KnownProfile::text_of(&name.to_string_lossy(), &host)?);
        }
        ProfileAction::Check { name } => {
            let options = Options { profile: Some(name.clone()), ..Options::default() };
            let settings = Settings::read(&options, &host)?;
            RetryRules::of(&settings, catalogue_with(&settings.diagnose)?)?;
            print(said(&settings));
            show(&settings_view::text(&settings, terminal_width()));
        }
    }
    Ok(0)
}

fn list(host: &Host, lang: Lang) {
    let known = KnownProfile::all(host);
    let wide = known.iter().map(|one| one.name.len()).max().unwrap_or(0);
    for KnownProfile { name, path, summary, is_default } in known {
        let place = match path {
            Some(path) => path.display().to_string(),
            None => text!("inside the executable", "内置").get(lang).to_owned(),
        };
        let mark = match is_default {
            true => text!(", used where no profile is named", "，未指定配置时使用"),
            false => text!("", ""),
        };
        print(format!("{name:wide$}  {place}{}\n", mark.get(lang)));
        if !summary.is_empty() {
            print(format!("{:wide$}  {summary}\n", ""));
        }
    }
}

/// The settings of a profile, together with the profiles that it extends.
fn said(settings: &Settings) -> String {
    let lang = settings.lang;
    let name = settings.profile.clone().unwrap_or_default();
    let program = match settings.program.as_ref().map(|program| &program.value) {
        Some(Program::Script { path, .. }) => path.to_string_lossy().into_owned(),
        Some(Program::Module { name, .. }) => format!("-m {name}"),
        Some(Program::Command { argv }) => {
            argv.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default()
        }
        None => text!("none; the command line gives it", "无，由命令行给出").get(lang).to_owned(),
    };
    let engine = settings.engine.value.to_string();
    let layout = match settings.layout.rule.value {
        LayoutRule::None => "none",
        LayoutRule::UlyssesWorld => "ulysses-world",
        LayoutRule::UlyssesRing => "ulysses-ring",
    };
    let mut out = text!(
        "{name} can be used: program {program}, engine {engine}, layout {layout}\n",
        "{name} 可用：程序 {program}，启动引擎 {engine}，布局 {layout}\n"
    )
    .get(lang)
    .to_owned();
    let program = settings.program.iter().flat_map(|program| program.value.args());
    let conditional = settings.args_if.rows.iter().flat_map(|row| &row.args);
    let mut words: Vec<OsString> = program.chain(conditional).cloned().collect();
    words.extend(settings.engine_args.iter().map(OsString::from));
    words.extend(settings.env.iter().map(|setting| setting.value.clone()));
    let names = settings.selects.iter().flat_map(|row| row.values.keys()).map(String::as_str);
    for warning in settings.warnings.iter().chain(&placeholders::unknown_in(&words, names)) {
        out.push_str(&closing::warning(warning, lang));
    }
    out
}
