//! The commands that need no job: `init -- COMMAND…` runs any command under the guard, `wait HOST:PORT` waits until
//! a port answers, as a launch does, `install` copies the executable into a folder, `completions` and `man` print the
//! shell completions and the manual pages.
//!
//! The image of the executable is built FROM scratch and so has no `cp`. An init container that copies the file
//! works on every version of Kubernetes.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::output::{block_on, print, refuse, say, show};
use linux::host::Host;
use preflight::prepare::{self, Wait, no_process};
use report::findings::ExitCode;
use report::{Ending, closing};
use settings::cli::{self, Command, Options};
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
    show(&format!(
        "{}
",
        file.display()
    ));
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

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<i32, Refusal> {
    let codes = ExitCode::all().into_iter().map(|code| code.number().to_string());
    let ids = Id::ALL.iter().map(ToString::to_string).chain(codes);
    print(Command::completions(shell, ids.collect()));
    Ok(0)
}

pub(crate) fn man(lang: Lang) -> Result<i32, Refusal> {
    printed(Command::man(lang), lang, |Text { en, zh }| {
        let text = text!("cannot write the manual page: {en}", "无法输出手册页：{zh}");
        (text, Verdict::Internal)
    })
}

/// Writes a page of each command into `folder` and prints their files.
pub(crate) fn man_pages(folder: &Path, lang: Lang) -> Result<i32, Refusal> {
    let written = Command::man_pages(lang).and_then(|pages| {
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
