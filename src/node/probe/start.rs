//! Executes the embedded probe: from a file or from memory.
//!
//! A file comes first, since security tools raise more alarms about a program that was never on disk. If a node forbids
//! one way (noexec mounts, a read-only root, `vm.memfd_noexec`, seccomp), the next way is tried.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};

use linux::sys::execute_descriptor;
use settings::ProbeMode;

static PROBE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/node-probe"));

/// argv\[0\] and the name of file and memfd, which `ps` shows.
const NAME: &str = "ranklaunch-node-probe";

/// Variables that load code into every program. LD_LIBRARY_PATH is kept, since the image may
/// need it to find the driver library.
const DROPPED: &[&str] = &["LD_PRELOAD", "LD_AUDIT"];

/// A running program, and our ends of its two connections.
pub(super) struct Started {
    pub(super) child: Child,
    /// Our end of the pipe or socket for answers, which does not block.
    pub(super) answer: OwnedFd,
    pub(super) noise: PipeReader,
    pub(super) ends: Ends,
}

/// The processes that are ended at the deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    Process,
    /// The process leads its own group, which ends with it: a shell waits for its commands.
    Group,
}

/// One place to execute the probe from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Way {
    File(PathBuf),
    Memory,
}

impl fmt::Display for Way {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::File(folder) => write!(out, "file in {}", folder.display()),
            Way::Memory => out.write_str("memfd"),
        }
    }
}

/// The ways that a mode allows, in order; empty if it allows no probe.
pub(super) fn ways(mode: ProbeMode) -> Vec<Way> {
    let mut ways = Vec::new();
    if matches!(mode, ProbeMode::Auto | ProbeMode::File) {
        ways.extend(folders().into_iter().map(Way::File));
    }
    if matches!(mode, ProbeMode::Auto | ProbeMode::Memfd) {
        ways.push(Way::Memory);
    }
    ways
}

fn folders() -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let mut folders: Vec<PathBuf> = runtime.into_iter().filter(|path| path.is_absolute()).collect();
    folders.extend(["/tmp", "/var/tmp", "/dev/shm"].map(PathBuf::from));
    folders.extend(std::env::current_dir().ok());
    folders
}

/// Starts the probe in one way.
pub(super) fn start(way: &Way, args: &[&str]) -> io::Result<Started> {
    match way {
        Way::File(folder) => {
            // Others may write to the folder. create_new neither follows a link nor opens an existing file.
            let mut create = OpenOptions::new();
            create.write(true).create_new(true).mode(0o700);
            let prefix = format!("{NAME}-");
            let mut named = tempfile::Builder::new();
            named.prefix(&prefix).rand_bytes(16);
            let mut file = named.make_in(folder, |path| create.open(path))?;
            file.as_file_mut().write_all(PROBE)?;
            // The file is needed only until execve has succeeded, for which spawn waits.
            let file = file.into_temp_path();
            let run = || spawn_program(file.as_os_str(), args, |_| Ok(()));
            // A fork of another thread may hold a copy of our write descriptor until its own execve, so ETXTBSY can
            // occur for a moment.
            for _ in 0..20 {
                match run() {
                    Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    other => return other,
                }
            }
            run()
        }
        Way::Memory => spawn_program(OsStr::new(NAME), args, |command| {
            let environment: Vec<(OsString, OsString)> = std::env::vars_os()
                .filter(|(name, _)| !DROPPED.iter().any(|dropped| name == dropped))
                .collect();
            let mut arguments = vec![OsStr::new(NAME)];
            arguments.extend(args.iter().map(OsStr::new));
            execute_descriptor(command, memory()?, &arguments, &environment)
        }),
    }
}

/// Starts a program that answers on its standard output.
pub(super) fn start_tool(
    program: &Path,
    args: &[&str],
    env: &[(OsString, OsString)],
    ends: Ends,
) -> io::Result<Started> {
    let (answer, answer_in) = pipe()?;
    let (noise, noise_in) = pipe()?;
    let mut command = Command::new(program);
    command.args(args).envs(env.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(answer_in).stderr(noise_in);
    if ends == Ends::Group {
        command.process_group(0);
    }
    let child = command.spawn()?;
    Ok(Started { child, answer: answer.into(), noise, ends })
}

/// A pipe whose read end, which we keep, does not block.
fn pipe() -> io::Result<(PipeReader, PipeWriter)> {
    let (reader, writer) = io::pipe()?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok((reader, writer))
}

fn spawn_program(
    program: &OsStr,
    args: &[&str],
    prepare: impl FnOnce(&mut Command) -> io::Result<()>,
) -> io::Result<Started> {
    // A socket, since a probe that watches also gets requests.
    let (answer, answer_in) = UnixStream::pair()?;
    answer.set_nonblocking(true)?;
    let (noise, noise_in) = pipe()?;
    let mut command = Command::new(program);
    // The other end of the answer is the probe's standard input, which is the only descriptor that std can pass and to
    // which no library prints. The other two descriptors share a pipe, because a root may have no /dev/null, and for
    // the message of a crash.
    command
        .args(args)
        .stdin(OwnedFd::from(answer_in))
        .stdout(noise_in.try_clone()?)
        .stderr(noise_in);
    for name in DROPPED {
        command.env_remove(name);
    }
    prepare(&mut command)?;
    let child = command.spawn()?;
    Ok(Started { child, answer: answer.into(), noise, ends: Ends::Process })
}

/// The probe in a memfd. MFD_EXEC is tried first, because with `vm.memfd_noexec=1` a memfd without the flag is not
/// executable. Kernels before 6.3 and gVisor refuse the flag with EINVAL and do not need it.
fn memory() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = match memfd_create(NAME, flags | MemfdFlags::EXEC) {
        Err(rustix::io::Errno::INVAL) => memfd_create(NAME, flags)?,
        other => other?,
    };
    let mut file = File::from(memory);
    file.write_all(PROBE)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_allows_its_own_ways_only() {
        assert_eq!(ways(ProbeMode::Memfd), [Way::Memory]);
        assert!(ways(ProbeMode::Off).is_empty());
        assert!(ways(ProbeMode::NvidiaSmi).is_empty());
        assert!(!ways(ProbeMode::File).contains(&Way::Memory));
        assert_eq!(ways(ProbeMode::Auto).last(), Some(&Way::Memory));
    }

    #[test]
    fn the_file_is_gone_once_it_runs() {
        let folder = tempfile::tempdir().expect("a folder");
        let way = Way::File(folder.path().to_owned());
        let mut started = start(&way, &["resolve", "localhost"]).expect("the probe starts");
        let left = std::fs::read_dir(folder.path()).expect("the folder").count();
        assert!(started.child.wait().expect("it ends").success());
        assert_eq!(left, 0);
    }
}
