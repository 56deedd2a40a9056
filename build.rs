//! Names the commit, and keeps the executable static and small.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The commit where no git says it.
const COMMIT: &str = "RANKLAUNCH_COMMIT";

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    println!("cargo::rerun-if-changed=build.rs");
    warn_unless_static();
    if let Some(commit) = commit()? {
        println!("cargo::rustc-env=RANKLAUNCH_COMMIT_NOTE=commit {commit}");
    }
    drop_unwind_tables()?;
    fold_equal_functions()
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

/// Functions whose code is equal become one, which saves 150 KB; nothing here compares functions by their address. Only
/// LLD can, with which rustc links for this target unless another linker than the usual one is named.
fn fold_equal_functions() -> Result<(), Failure> {
    let is_usual = env::var("RUSTC_LINKER").map_or(true, |linker| linker == "cc");
    let is_lld = is_usual && variable("TARGET")? == "x86_64-unknown-linux-gnu";
    if is_lld && variable("PROFILE")? == "release" {
        println!("cargo::rustc-link-arg-bin=ranklaunch=-Wl,--icf=all");
    }
    Ok(())
}

fn variable(name: &str) -> Result<String, Failure> {
    env::var(name).map_err(|error| format!("{name}: {error}").into())
}
