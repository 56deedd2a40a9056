//! `ranklaunch report` and `ranklaunch compare`: evaluate the files of a run afterwards.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::output::{print, refuse, say, show, unwritten};
use super::run_folders::{self, Found};
use linux::regular_file;
use logs::REPORT;
use monitor::history::differences;
use report::closing;
use report::page::{MOST_POINTS, differences_json, differences_text, page};
use settings::cli::{Compare, Report, ReportFormat};
use text::lang::{Lang, Text};
use text::run_id::RunId;
use text::text;
use verdict::Refusal;

pub(crate) fn report(asked: &Report, lang: Lang) -> i32 {
    match written(asked, lang) {
        Ok(()) => 0,
        Err(refusal) => refuse(&refusal, lang),
    }
}

fn written(asked: &Report, lang: Lang) -> Result<(), Refusal> {
    let Found { job, folders, unread } = run_folders::read(&asked.runs, MOST_POINTS)?;
    for one in &unread {
        say(&closing::line(one, lang));
    }
    let of_a_node = job.nodes().len() == 1 && job.lead().members > 1;
    let output = asked.output.clone().map(PathBuf::from);
    let run_id = job.lead().run_id.clone();
    let page = page(job, !of_a_node);
    let place = match output {
        Some(output) if output.as_os_str() == "-" => {
            print(page);
            return Ok(());
        }
        Some(output) => {
            place(&output, page.as_bytes()).map_err(|error| failed(&output, &error))?;
            output
        }
        None => {
            let usual = beside(&folders, of_a_node);
            // Nobody wants the report in a pipe at this path.
            match regular_file::replace(&usual, page.as_bytes()) {
                Ok(()) => usual,
                // The logs may be on a read-only mount, or belong to somebody else.
                Err(_) => {
                    // A journal of somebody else may name any path.
                    let name = if RunId::is_sound(&run_id) { &run_id } else { "report" };
                    let here = PathBuf::from(format!("{name}.html"));
                    regular_file::replace(&here, page.as_bytes())
                        .map_err(|error| failed(&usual, &error))?;
                    here
                }
            }
        }
    };
    show(&format!("{}\n", place.display()));
    Ok(())
}

/// The report goes into the run's folder, or for one node of several into the node's own; if the
/// folders lie apart, into the current one.
fn beside(folders: &[PathBuf], of_a_node: bool) -> PathBuf {
    let parent = |folder: &PathBuf| folder.parent().map(Path::to_owned);
    let first = folders.first().cloned().unwrap_or_default();
    if of_a_node {
        return first.join(REPORT);
    }
    match parent(&first).filter(|run| folders.iter().all(|one| parent(one).as_ref() == Some(run))) {
        Some(run) => run.join(REPORT),
        None => PathBuf::from(REPORT),
    }
}

/// A reader sees the old file or the new one; the named file may be a pipe.
fn place(path: &Path, page: &[u8]) -> io::Result<()> {
    let is_special = path.metadata().is_ok_and(|metadata| !metadata.is_file());
    if is_special {
        return File::options().write(true).open(path)?.write_all(page);
    }
    regular_file::replace(path, page)
}

fn failed(path: &Path, error: &io::Error) -> Refusal {
    unwritten(Text::same(path.display().to_string()), error)
}

pub(crate) fn compare(asked: &Compare, lang: Lang) -> i32 {
    let read = |run| run_folders::read(std::slice::from_ref(run), MOST_POINTS);
    let (first, second) = match read(&asked.first).and_then(|a| Ok((a, read(&asked.second)?))) {
        Ok(both) => both,
        Err(refusal) => return refuse(&refusal, lang),
    };
    for one in first.unread.iter().chain(&second.unread) {
        say(&closing::line(one, lang));
    }
    let both = (&first.job, &second.job);
    for (job, which) in [(both.0, "A"), (both.1, "B")] {
        let missing = job.missing();
        if missing > 0 {
            let line = text!(
                "of run {which} the folders of {missing} nodes are not here",
                "运行 {which} 有 {missing} 个节点的目录不在此处"
            );
            say(&closing::line(&line, lang));
        }
    }
    let found = differences(both.0, both.1, lang);
    match asked.format {
        ReportFormat::Text => show(&differences_text(both, &found, lang)),
        ReportFormat::Json => print(format!("{:#}\n", differences_json(both, &found))),
    }
    0
}
