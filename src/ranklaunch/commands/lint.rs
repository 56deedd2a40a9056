//! `ranklaunch lint MANIFEST…`: reports mistakes in manifests that would fail at run time.

use std::io::Read;

use super::output::{print, refuse, say, show};
use linux::host::Host;
use report::closing;
use settings::cli;
use text::lang::cause;
use text::text;
use verdict::{Id, Refusal};

pub(crate) fn lint(asked: &cli::Lint) -> i32 {
    let options = cli::Options {
        lang: asked.lang.clone(),
        color: asked.color.clone(),
        ..cli::Options::default()
    };
    let lang = options.language(&Host::live());
    if let Err(refusal) = options.checked_color(&Host::live()) {
        return refuse(&refusal, lang);
    }
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
    code
}

/// Reads one byte more than the limit, so that a file that is too large is recognised.
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
