//! Builds the node-probe and hands it over as bytes, and deflates the texts that few launches read.
//!
//! The launcher is static and the probe must not be, and cargo has one set of
//! flags per target, so the probe is built by a nested cargo call. That call
//! starts from a clean environment: what this build was given (static flags,
//! clippy as compiler, a target folder that is locked right now) is exactly
//! what the probe must not see.
//!
//! `RANKLAUNCH_NODE_PROBE=FILE` embeds a probe that was built elsewhere, which
//! is how a release gets one that needs only glibc 2.17.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use object::Endianness;
use object::elf::{FileHeader64, PT_INTERP};
use object::read::StringTable;
use object::read::elf::{FileHeader as _, ProgramHeader as _};

/// A probe built elsewhere.
const PREBUILT: &str = "RANKLAUNCH_NODE_PROBE";

/// Deflated it is a quarter of its size, and it is read only where a job has failed or a log is explained.
const CATALOGUE: &str = "src/diagnose/catalogue.toml";
/// Folders whose files are deflated together: what `explain ID` says, what the warmed interpreter and ranks run, the page
/// of a run.
const FOLDERS: &[(&str, &str, &[&str])] = &[
    ("explanations.zz", "src/findings/text", &["toml"]),
    ("warm.zz", "src/warm", &["py"]),
    ("inject.zz", "src/inject", &["py"]),
    ("page.zz", "src/report/page", &["html", "css", "js"]),
];

/// The commit where no git says it.
const COMMIT: &str = "RANKLAUNCH_COMMIT";

/// Cargo's own variables that say where crates come from and how to show
/// progress; every other `CARGO*` variable configures the outer build.
const KEPT: &[&str] = &["CARGO", "CARGO_HOME"];
const KEPT_PREFIXES: &[&str] =
    &["CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTR", "CARGO_SOURCE_", "CARGO_TERM_", "CARGO_ALIAS_"];

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    for path in ["build.rs", "src/node-probe", "Cargo.lock", "Cargo.toml", CATALOGUE] {
        println!("cargo::rerun-if-changed={path}");
    }
    println!("cargo::rerun-if-env-changed={PREBUILT}");
    warn_unless_static();
    if let Some(commit) = commit()? {
        println!("cargo::rustc-env=RANKLAUNCH_COMMIT_NOTE=commit {commit}");
    }
    drop_unwind_tables()?;

    let folder = PathBuf::from(variable("OUT_DIR")?);
    let catalogue = fs::read(CATALOGUE).map_err(|error| format!("{CATALOGUE}: {error}"))?;
    fs::write(folder.join("catalogue.toml.zz"), deflated(&catalogue)?)?;
    for (name, from, endings) in FOLDERS {
        fs::write(folder.join(name), deflated(&files_of(from, endings)?)?)?;
    }
    let built = match env::var_os(PREBUILT).filter(|path| !path.is_empty()) {
        Some(path) => {
            let path = PathBuf::from(path);
            println!("cargo::rerun-if-changed={}", path.display());
            path
        }
        None => build_probe(&folder)?,
    };
    let bytes = fs::read(&built).map_err(|error| format!("{}: {error}", built.display()))?;
    let needs = needs_of(&bytes)?;
    fs::write(folder.join("node-probe.zz"), deflated(&bytes)?)?;
    println!("cargo::rustc-env=RANKLAUNCH_PROBE_INTERPRETER={}", needs.interpreter);
    println!(
        "cargo::rustc-env=RANKLAUNCH_PROBE_NOTE=asks NVML where the node has glibc {} or newer, else counts device nodes",
        needs.glibc()
    );
    Ok(())
}

fn deflated(bytes: &[u8]) -> Result<Vec<u8>, Failure> {
    let mut out = ZlibEncoder::new(Vec::new(), Compression::best());
    out.write_all(bytes)?;
    Ok(out.finish()?)
}

/// The names and texts of a folder's files of these kinds, each ended by a zero byte, in the order of their names.
fn files_of(folder: &str, endings: &[&str]) -> Result<Vec<u8>, Failure> {
    let entries: Result<Vec<_>, _> = fs::read_dir(folder)?.collect();
    let is_one =
        |path: &PathBuf| endings.iter().any(|ending| path.extension() == Some(ending.as_ref()));
    let mut paths: Vec<PathBuf> =
        entries?.into_iter().map(|entry| entry.path()).filter(is_one).collect();
    paths.sort();
    println!("cargo::rerun-if-changed={folder}");
    let mut all = Vec::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        all.extend([name.as_bytes(), b"\0", fs::read(&path)?.as_slice(), b"\0"].concat());
    }
    Ok(all)
}

/// The commit that `--version` names. Only of a release: with it each commit builds the whole crate again.
fn commit() -> Result<Option<String>, Failure> {
    println!("cargo::rerun-if-env-changed={COMMIT}");
    if variable("PROFILE")? != "release" {
        return Ok(None);
    }
    if let Some(named) = env::var(COMMIT).ok().filter(|name| !name.is_empty()) {
        return Ok(Some(named));
    }
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    // What the commit is called also depends on whether the source still is as it was committed.
    for path in ["src", "config", "packaging/commit"] {
        println!("cargo::rerun-if-changed={path}");
    }
    Ok(Some(match of_git(&root) {
        Some(commit) => commit,
        None => of_archive(&root).unwrap_or_else(|| "unknown".to_owned()),
    }))
}

/// None where git is missing, or `root` is no work tree of its own: a source archive may lie in the one of another
/// project.
fn of_git(root: &Path) -> Option<String> {
    let git = |args: &[&str]| {
        let mut git = Command::new("git");
        git.current_dir(root).args(args).env("GIT_OPTIONAL_LOCKS", "0");
        for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
            git.env_remove(name);
        }
        let output = git.output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8(output.stdout).ok()?.trim_end().to_owned())
    };
    let top = PathBuf::from(git(&["rev-parse", "--show-toplevel"])?);
    if top.canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    // Each commit and each checkout adds a line to the log. A path that is missing would build the crate each time.
    for name in ["HEAD", "logs/HEAD"] {
        let path = root.join(git(&["rev-parse", "--git-path", name])?);
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    git(&["describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+changes"])
}

/// What `git archive` wrote, after .gitattributes.
fn of_archive(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join("packaging/commit")).ok()?;
    let commit = text.split_whitespace().next()?;
    commit.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| commit.chars().take(12).collect())
}

/// A user's RUSTFLAGS, or a build started in another folder, silently replaces
/// .cargo/config.toml, and the launcher comes out dynamically linked.
fn warn_unless_static() {
    let features = env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    let gnu = env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|environment| environment == "gnu");
    if gnu && !features.split(',').any(|feature| feature == "crt-static") {
        println!(
            "cargo::warning=this ranklaunch will not be static: crt-static is missing, because \
             RUSTFLAGS or the folder of the build replaced .cargo/config.toml"
        );
    }
}

/// Where a panic aborts nothing unwinds, and the tables for it take 0.8 MB. Cargo can leave them out of no single
/// profile, so the linker does. Those of the C runtime stay: it registers them at start.
fn drop_unwind_tables() -> Result<(), Failure> {
    let script =
        PathBuf::from(variable("CARGO_MANIFEST_DIR")?).join("packaging/no-unwind-tables.ld");
    println!("cargo::rerun-if-changed={}", script.display());
    if variable("PROFILE")? == "release" {
        println!("cargo::rustc-link-arg-bin=ranklaunch=-Wl,-T,{}", script.display());
    }
    Ok(())
}

fn build_probe(out: &Path) -> Result<PathBuf, Failure> {
    let target = variable("TARGET")?;
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let target_folder = target_folder(out, &target).join("node-probe");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(&root).args(["build", "--package", "node-probe", "--profile", "probe"]);
    cargo.args(["--locked", "--target", &target]).arg("--target-dir").arg(&target_folder);
    for (name, _) in env::vars_os() {
        if is_of_outer_build(&name) {
            cargo.env_remove(&name);
        }
    }
    // Replaces the flags of .cargo/config.toml, which is found again from `root`.
    cargo.env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=-crt-static");
    // The nested build has a job server of its own (MAKEFLAGS and CARGO_MAKEFLAGS
    // are cleared), so neither build can wait for a token that the other holds.
    if let Some(jobs) = env::var_os("NUM_JOBS") {
        cargo.arg("--jobs").arg(jobs);
    }
    let output = cargo.output().map_err(|error| format!("{cargo:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "the node-probe does not build ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )
        .into());
    }
    Ok(target_folder.join(target).join("probe/node-probe"))
}

/// Whether a variable configures the outer build, or is one that cargo sets for
/// build scripts and the nested cargo would take as configuration.
fn is_of_outer_build(name: &OsString) -> bool {
    let name = name.to_string_lossy();
    if let Some(rest) = name.strip_prefix("CARGO_TARGET_") {
        // A cross linker serves the probe as well.
        return !rest.ends_with("_LINKER");
    }
    if name.starts_with("CARGO") || name.starts_with("__CARGO") {
        return !KEPT.contains(&name.as_ref())
            && !KEPT_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    }
    match name.as_ref() {
        "RUSTC_WORKSPACE_WRAPPER" | "CLIPPY_ARGS" | "MAKEFLAGS" | "MFLAGS" => true,
        // sccache may stay; a linter in its place would produce no probe.
        "RUSTC_WRAPPER" => env::var("RUSTC_WRAPPER").is_ok_and(|path| path.contains("clippy")),
        other => other.ends_with("RUSTFLAGS") || other.ends_with("RUSTDOCFLAGS"),
    }
}

/// The outer build's target folder: `OUT_DIR` is
/// `<target folder>/[<triple>/]<profile>/build/<package>/out`. The probe's folder
/// lies in it, so that all profiles share one probe and `cargo clean` removes it,
/// and is another one, because the outer cargo holds the lock of its own.
fn target_folder(out: &Path, target: &str) -> PathBuf {
    let above_profile = out.ancestors().nth(4).unwrap_or(out);
    match above_profile.parent() {
        Some(parent) if above_profile.ends_with(target) => parent.to_owned(),
        _ => above_profile.to_owned(),
    }
}

/// What the probe's ELF file asks of the root that it runs in.
struct Needs {
    /// The loader's path; empty when the file is static, which is refused.
    interpreter: String,
    /// The highest GLIBC_2.x symbol version.
    glibc_minor: Option<u32>,
}

impl Needs {
    fn glibc(&self) -> String {
        self.glibc_minor.map_or_else(|| "of any version".to_owned(), |minor| format!("2.{minor}"))
    }
}

fn needs_of(bytes: &[u8]) -> Result<Needs, Failure> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let segments = header.program_headers(endian, bytes)?;
    let mut interpreter = None;
    for segment in segments {
        if segment.p_type(endian) == PT_INTERP {
            let path = segment.data(endian, bytes).map_err(|()| "PT_INTERP outside the file")?;
            let path = path.strip_suffix(b"\0").unwrap_or(path);
            interpreter = Some(String::from_utf8(path.to_vec())?);
        }
    }
    let interpreter = interpreter.ok_or(
        "the node-probe came out static and could not load a driver library: \
         something added crt-static to its flags",
    )?;
    let sections = header.sections(endian, bytes)?;
    let mut glibc_minor = None;
    if let Some((mut needed, link)) = sections.gnu_verneed(endian, bytes)? {
        let strings: StringTable<'_> = sections.strings(endian, bytes, link)?;
        while let Some((_, mut versions)) = needed.next()? {
            while let Some(version) = versions.next()? {
                let name = String::from_utf8_lossy(version.name(endian, strings)?).into_owned();
                glibc_minor = glibc_minor.max(minor_of(&name));
            }
        }
    }
    Ok(Needs { interpreter, glibc_minor })
}

/// `GLIBC_2.17` → 17, `GLIBC_2.2.5` → 2.
fn minor_of(version: &str) -> Option<u32> {
    version.strip_prefix("GLIBC_2.")?.split('.').next()?.parse().ok()
}

fn variable(name: &str) -> Result<String, Failure> {
    env::var(name).map_err(|error| format!("{name}: {error}").into())
}
