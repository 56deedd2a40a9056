//! Builds the node-probe and embeds it as bytes.
//!
//! The launcher is static and the probe must not be, and cargo has one set of flags per target, so the probe is built
//! by a nested cargo call. The nested call starts from a clean environment, because the probe must not see the settings
//! of this build (static flags, clippy as compiler, a target folder that is locked right now).
//!
//! `RANKLAUNCH_NODE_PROBE=FILE` embeds a probe that was built elsewhere. A release uses it to get a probe that needs
//! only glibc 2.17.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use object::Endianness;
use object::elf::{FileHeader64, PT_INTERP};
use object::read::StringTable;
use object::read::elf::{FileHeader as _, ProgramHeader as _};

/// Variable with the path of a probe that was built elsewhere.
const PREBUILT: &str = "RANKLAUNCH_NODE_PROBE";

/// Cargo's own variables that tell the source of crates and the display of progress; every other `CARGO*` variable
/// configures the outer build.
const KEPT: &[&str] = &["CARGO", "CARGO_HOME"];
const KEPT_PREFIXES: &[&str] =
    &["CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTR", "CARGO_SOURCE_", "CARGO_TERM_", "CARGO_ALIAS_"];

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    for path in ["build.rs", "../node-probe", "../../Cargo.lock", "../../Cargo.toml"] {
        println!("cargo::rerun-if-changed={path}");
    }
    println!("cargo::rerun-if-env-changed={PREBUILT}");
    let folder = PathBuf::from(variable("OUT_DIR")?);
    let built = match env::var_os(PREBUILT).filter(|path| !path.is_empty()) {
        Some(path) => {
            let path = PathBuf::from(path);
            println!("cargo::rerun-if-changed={}", path.display());
            path
        }
        None => build_probe(&folder)?,
    };
    let bytes = fs::read(&built).map_err(|error| format!("{}: {error}", built.display()))?;
    let (interpreter, glibc_minor) = needs_of(&bytes)?;
    let glibc =
        glibc_minor.map_or_else(|| "of any version".to_owned(), |minor| format!("2.{minor}"));
    // The file is not compressed: inflating it would take milliseconds of each start on a node with GPUs.
    fs::write(folder.join("node-probe"), &bytes)?;
    println!("cargo::rustc-env=RANKLAUNCH_PROBE_INTERPRETER={interpreter}");
    println!(
        "cargo::rustc-env=RANKLAUNCH_PROBE_NOTE=asks NVML where the node has glibc {glibc} or newer, else counts device nodes"
    );
    Ok(())
}

fn build_probe(out: &Path) -> Result<PathBuf, Failure> {
    let target = variable("TARGET")?;
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")?).join("../..");
    let target_folder = target_folder(out, &target).join("node-probe");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(&root).args(["build", "--package", "node-probe", "--profile", "probe"]);
    cargo.args(["--locked", "--target", &target]).arg("--target-dir").arg(&target_folder);
    for (name, _) in env::vars_os() {
        if is_of_outer_build(&name) {
            cargo.env_remove(&name);
        }
    }
    // Replaces the flags of .cargo/config.toml, which cargo finds again from `root`.
    cargo.env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=-crt-static");
    // The nested build has its own job server (MAKEFLAGS and CARGO_MAKEFLAGS are cleared), so neither build can wait
    // for a token that the other holds.
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

/// Whether a variable configures the outer build, or is a variable that cargo sets for build scripts and that the
/// nested cargo would take as configuration.
fn is_of_outer_build(name: &OsString) -> bool {
    let name = name.to_string_lossy();
    if let Some(rest) = name.strip_prefix("CARGO_TARGET_") {
        // A cross linker works for the probe as well.
        return !rest.ends_with("_LINKER");
    }
    if name.starts_with("CARGO") || name.starts_with("__CARGO") {
        return !KEPT.contains(&name.as_ref())
            && !KEPT_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    }
    match name.as_ref() {
        "RUSTC_WORKSPACE_WRAPPER" | "CLIPPY_ARGS" | "MAKEFLAGS" | "MFLAGS" => true,
        // sccache may stay; a linter as wrapper would produce no probe.
        "RUSTC_WRAPPER" => env::var("RUSTC_WRAPPER").is_ok_and(|path| path.contains("clippy")),
        other => other.ends_with("RUSTFLAGS") || other.ends_with("RUSTDOCFLAGS"),
    }
}

/// The outer build's target folder: `OUT_DIR` is `<target folder>/[<triple>/]<profile>/build/<package>/out`. The
/// probe's target folder lies inside it, so that all profiles share one probe and `cargo clean` removes it. It is a
/// separate folder, because the outer cargo holds the lock of its own.
fn target_folder(out: &Path, target: &str) -> PathBuf {
    let above_profile = out.ancestors().nth(4).unwrap_or(out);
    match above_profile.parent() {
        Some(parent) if above_profile.ends_with(target) => parent.to_owned(),
        _ => above_profile.to_owned(),
    }
}

/// The requirements of the probe's ELF file on the root in which it runs: the loader's path, and N of the highest symbol
/// version GLIBC_2.N. A static file is refused.
fn needs_of(bytes: &[u8]) -> Result<(String, Option<u32>), Failure> {
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
    Ok((interpreter, glibc_minor))
}

/// `GLIBC_2.17` → 17, `GLIBC_2.2.5` → 2.
fn minor_of(version: &str) -> Option<u32> {
    version.strip_prefix("GLIBC_2.")?.split('.').next()?.parse().ok()
}

fn variable(name: &str) -> Result<String, Failure> {
    env::var(name).map_err(|error| format!("{name}: {error}").into())
}
