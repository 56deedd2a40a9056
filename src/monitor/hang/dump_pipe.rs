//! Asks for the flight records of ranks whose torch has no worker server: through the pipe that torch
//! 2.3 and later make for `TORCH_NCCL_DEBUG_INFO_PIPE_FILE` (`DumpPipe` in ProcessGroupNCCL).
//!
//! torch writes its record into a file when bytes come out of the pipe, and the job goes on. Its thread
//! looks once a second, and lives also where the program holds the GIL.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use diagnose::recorder;
use linux::procfs;
use linux::regular_file;

const PIPE: &str = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE";
/// The newer name first, as torch reads them.
const FILES: &[&str] = &["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"];
/// torch's own default, without either variable.
const FILE: &str = "/tmp/nccl_trace_rank_";
/// Maximum bytes of a record file.
const LARGEST: u64 = 64 << 20;
const PACE: Duration = Duration::from_millis(50);

/// The pipe of a process, and the file that its torch writes.
#[derive(Debug, PartialEq, Eq)]
struct Ways {
    pipe: PathBuf,
    file: PathBuf,
}

/// The record of a process as JSON. None if the process has no such pipe, or does not answer before `until`.
pub(super) fn record(proc: &Path, pid: i32, until: Instant) -> Option<String> {
    let environ = std::fs::read(proc.join(pid.to_string()).join("environ")).ok()?;
    let Ways { pipe, file } = ways(&environ)?;
    // A record written earlier for somebody else is not read as the answer, and stays.
    let before = stamp(&file);
    ask(&pipe)?;
    while Instant::now() < until {
        std::thread::sleep(PACE);
        if stamp(&file) == before {
            continue;
        }
        // A file that torch has not finished writing is not a record yet.
        let Ok(bytes) = regular_file::read(&file, LARGEST) else { continue };
        let Some(json) = recorder::to_json(&bytes) else { continue };
        if before.is_none() {
            // At the end of the attempt this file would be taken for the record of that end.
            let _ = std::fs::remove_file(&file);
        }
        return Some(json);
    }
    None
}

fn ways(environ: &[u8]) -> Option<Ways> {
    let variables = procfs::split_nul(environ);
    let of = |name: &str| procfs::variable(&variables, name).filter(|value| !value.is_empty());
    let rank = String::from_utf8_lossy(of("RANK")?).into_owned();
    let rank: u32 = rank.parse().ok()?;
    let path = |stem: &[u8], end: &str| {
        let name = [stem, rank.to_string().as_bytes(), end.as_bytes()].concat();
        PathBuf::from(OsStr::from_bytes(&name))
    };
    let file = FILES.iter().find_map(|name| of(name)).unwrap_or(FILE.as_bytes());
    Some(Ways { pipe: path(of(PIPE)?, ".pipe"), file: path(file, "") })
}

/// Writes only into a pipe, and only if torch has it open: any other file of that name is not touched.
fn ask(pipe: &Path) -> Option<()> {
    let is_pipe = |found: std::fs::Metadata| found.file_type().is_fifo().then_some(());
    is_pipe(std::fs::symlink_metadata(pipe).ok()?)?;
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut pipe = File::from(rustix::fs::open(pipe, flags, Mode::empty()).ok()?);
    is_pipe(pipe.metadata().ok()?)?;
    pipe.write_all(b"1").ok()
}

/// Changes when a file is written again.
fn stamp(file: &Path) -> Option<(u64, i64, i64, u64)> {
    let found = std::fs::symlink_metadata(file).ok()?;
    Some((found.ino(), found.mtime(), found.mtime_nsec(), found.size()))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    const RECORD: &str = r#"{"version":"2.4","entries":[],"pg_config":{"0":{"ranks":"[0, 1]"}}}"#;

    fn process(folder: &Path, variables: &[&str]) {
        let environ: String = variables.iter().map(|one| format!("{one}\0")).collect();
        std::fs::create_dir_all(folder.join("7")).expect("a folder");
        std::fs::write(folder.join("7/environ"), environ).expect("written");
    }

    #[test]
    fn pipe_and_file_names_contain_the_rank() {
        let of = |environ: &[&str]| {
            let bytes: Vec<u8> =
                environ.iter().flat_map(|one| [one.as_bytes(), b"\0"].concat()).collect();
            ways(&bytes)
                .map(|ways| (ways.pipe.display().to_string(), ways.file.display().to_string()))
        };
        let own = |pipe: &str, file: &str| Some((pipe.to_owned(), file.to_owned()));
        let pipe = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/x/p_";
        assert_eq!(of(&["RANK=3", pipe]), own("/x/p_3.pipe", "/tmp/nccl_trace_rank_3"));
        let file = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/y/r_";
        assert_eq!(of(&["RANK=3", pipe, file]), own("/x/p_3.pipe", "/y/r_3"));
        assert_eq!(of(&["RANK=../3", pipe]), None);
        assert_eq!(of(&["RANK=3"]), None);
        assert_eq!(of(&[pipe]), None);
    }

    /// Imitates torch: a thread that reads the pipe now and then, and a file that is not written at once.
    #[test]
    fn record_is_requested_and_read_when_complete() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let stems = [("PIPE", "p_"), ("TEMP", "r_")].map(|(what, stem)| {
            format!("TORCH_NCCL_DEBUG_INFO_{what}_FILE={}", at(stem).display())
        });
        process(folder.path(), &["RANK=0", &stems[0], &stems[1]]);
        let soon = || Instant::now() + Duration::from_millis(300);
        assert_eq!(record(folder.path(), 7, soon()), None, "there is no pipe");
        std::fs::write(at("p_0.pipe"), "").expect("written");
        assert_eq!(record(folder.path(), 7, soon()), None, "it is no pipe");
        assert_eq!(std::fs::read(at("p_0.pipe")).expect("read"), b"", "and is not touched");
        std::fs::remove_file(at("p_0.pipe")).expect("removed");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("p_0.pipe"),
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o666),
            0,
        )
        .expect("a pipe");
        assert_eq!(record(folder.path(), 7, soon()), None, "nobody reads it");

        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let mut pipe =
            File::from(rustix::fs::open(at("p_0.pipe"), flags, Mode::empty()).expect("open"));
        let file = at("r_0");
        let torch = std::thread::spawn(move || {
            let mut bytes = [0; 128];
            while !matches!(pipe.read(&mut bytes), Ok(1..)) {
                std::thread::sleep(PACE);
            }
            let (start, end) = RECORD.split_at(20);
            let mut file = File::create(file).expect("created");
            file.write_all(start.as_bytes()).expect("written");
            std::thread::sleep(4 * PACE);
            file.write_all(end.as_bytes()).expect("written");
        });
        let long = Instant::now() + Duration::from_secs(60);
        let answer = record(folder.path(), 7, long).expect("a record");
        torch.join().expect("written");
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        assert_eq!(value(&answer), value(RECORD));
        assert!(!at("r_0").exists(), "nobody else asked for it");
    }
}
