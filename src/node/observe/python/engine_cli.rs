//! The flags that the installed engine knows.
//!
//! Reads the source of the engine's command line without running anything, since importing torch takes seconds. The
//! engines use argparse, which ends the program at an unknown flag before any rank starts.

use std::collections::BTreeSet;
use std::path::Path;

use super::files;
use super::install::Install;
use crate::observe::EngineCli;
use linux::host::Host;
use settings::engine::Engine;

/// The engine's command line. None for an engine without one, or if no file shows it: an editable install, a zip file.
pub(super) fn command_line(host: &Host, engine: Engine, install: &Install) -> Option<EngineCli> {
    let source = engine.row().command_line?;
    let path = install.file(host, Path::new(source))?;
    let flags = flags(&files::read_small(host, &path)?);
    let name = source.split('/').next().unwrap_or(source);
    // A source without any flag has a form that is unknown here.
    (!flags.is_empty()).then(|| {
        let site = path.ancestors().nth(Path::new(source).components().count());
        let version = site.and_then(|site| installed_version(host, site, name));
        let package =
            version.map_or_else(|| name.to_owned(), |version| format!("{name} {version}"));
        EngineCli { path, package, flags }
    })
}

/// The names of all string literals that are flags.
fn flags(source: &str) -> BTreeSet<String> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_');
    let names = ["\"--", "'--"].into_iter().flat_map(|quote| {
        source.split(quote).skip(1).filter_map(move |rest| {
            let end = rest.find(|letter| !is_part(letter))?;
            let closed = rest.get(end..)?.starts_with(quote.get(..1)?);
            closed.then(|| rest.get(..end).unwrap_or_default().replace('-', "_"))
        })
    });
    names.filter(|name| !name.is_empty()).collect()
}

/// The version in the name of the `.dist-info` folder that pip leaves beside a package.
fn installed_version(host: &Host, site: &Path, name: &str) -> Option<String> {
    host.list(site).into_iter().find_map(|entry| {
        let rest = entry.strip_prefix(name)?.strip_prefix('-')?;
        Some(rest.strip_suffix(".dist-info")?.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_string_literals() {
        let source = "parser.add_argument(\n    \"--nproc-per-node\",\n    \"--nproc_per_node\",\n\
            p.add_argument('--tee', help=\"as --tee 3 does\")\n\"--\"\n\"--a b\"\n";
        let expected = ["nproc_per_node", "tee"].map(str::to_owned);
        assert_eq!(flags(source), BTreeSet::from(expected));
    }
}
