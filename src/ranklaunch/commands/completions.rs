//! `ranklaunch completions` and `ranklaunch man`: the shell completions and the manual pages.

use std::path::Path;
use std::{fs, io};

use super::output::{print, say};
use report::closing;
use report::findings::{ExitCode, Id};
use settings::cli::Command;
use text::lang::{Lang, Text, cause};
use text::text;
use verdict::Verdict;

pub(crate) fn completions(shell: clap_complete::Shell) -> i32 {
    let codes = ExitCode::all().into_iter().map(|code| code.number().to_string());
    let ids = Id::ALL.iter().map(ToString::to_string).chain(codes);
    print(Command::completions(shell, ids.collect()));
    0
}

pub(crate) fn man(lang: Lang) -> i32 {
    match Command::man(lang) {
        Ok(page) => {
            print(page);
            0
        }
        Err(error) => {
            let Text { en, zh } = cause(&error);
            let text = text!("cannot write the manual page: {en}", "无法输出手册页：{zh}");
            say(&closing::line(&text, lang));
            Verdict::Internal.code()
        }
    }
}

/// Writes a page of each command into `folder` and prints their files.
pub(crate) fn man_pages(folder: &Path, lang: Lang) -> i32 {
    let written = Command::man_pages(lang).and_then(|pages| {
        fs::create_dir_all(folder)?;
        pages.into_iter().try_fold(String::new(), |files, (name, page)| {
            let file = folder.join(name);
            fs::write(&file, page)?;
            Ok::<_, io::Error>(files + &file.display().to_string() + "\n")
        })
    });
    match written {
        Ok(files) => {
            print(files);
            0
        }
        Err(error) => {
            let (folder, Text { en, zh }) = (folder.display(), cause(&error));
            let text = text!(
                "cannot write the manual pages into {folder}: {en}; name a folder that can be written",
                "无法将手册页写入 {folder}：{zh}；请指定可写的目录"
            );
            say(&closing::line(&text, lang));
            Verdict::Usage.code()
        }
    }
}
