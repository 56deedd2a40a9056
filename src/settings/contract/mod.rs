//! Reads the platform contract: environment variables → [`Contract`].
//!
//! Takes the environment, and whether a torchrun is our ancestor; gives every claim of every
//! contract whose variables are present, unparsed and in order of strength. `plan` decides which
//! claim wins and what a bad value means. The platforms are rows of [`table`], and at most one of
//! the profile.

mod allocations;
mod cluster;
mod conventions;
mod determined;
mod evidence;
mod hydra;
mod job_files;
mod launchers;
mod nested;
mod open_mpi;
mod reading;
mod remarks;
mod row;
mod shapes;
mod table;
#[cfg(test)]
mod tests;
mod vocabulary;
mod volcano;

use std::collections::{BTreeMap, BTreeSet};

use crate::hostlist;
use linux::host::Host;
use verdict::Warning;

use allocations::ALLOCATIONS;
use conventions::CONVENTIONS;
pub use evidence::{Claim, Contract, Evidence, Field, Reading, Strength, Unread};
use launchers::LAUNCHERS;
use remarks::{ADVICE, REMARKS};
pub use row::{Platform, PlatformRow, Test};
use table::PLATFORMS;
pub use vocabulary::{Beside, fields};
pub(crate) use vocabulary::{beside_of, readings_of};

/// All contracts in their order of trust: the profile's own, launchers, platforms.
fn platforms(own: Option<&'static Platform>) -> impl Iterator<Item = &'static Platform> {
    let known = LAUNCHERS.iter().chain(PLATFORMS).chain(CONVENTIONS).chain(ALLOCATIONS);
    own.into_iter().chain(known)
}

impl Contract {
    /// The platform contract of this container. Reads no file, see [`Contract::host_files`]; `above` is the result of
    /// [`Contract::torchrun_above`], `own` the platform of the profile.
    pub fn read(
        host: &Host,
        above: Option<(i32, String)>,
        own: Option<&'static Platform>,
    ) -> Contract {
        let mut proven: Vec<&'static Platform> =
            platforms(own).filter(|platform| platform.is_proven(host)).collect();
        // A stable sort, so that equal strengths keep the order of the table.
        proven.sort_by_key(|platform| std::cmp::Reverse(platform.strength));

        let of = |platform: &&'static Platform| {
            let mut found = claims(host, platform);
            found.extend(volcano::evidence(host, platform));
            found.extend(determined::evidence(host, platform));
            found
        };
        let mut evidence: Vec<Evidence> = proven.iter().flat_map(of).collect();
        // A variable of a known row is no evidence of an unknown scheduler. The variables of the profile's
        // platform mean only what the profile says, so they mean nothing if that platform is not proven.
        let mut signs = shapes::evidence(host);
        let rows = proven.iter().copied().chain(own).flat_map(|platform| platform.claims);
        let known: BTreeSet<&str> = rows.map(|row| row.variable).collect();
        signs.retain(|sign| {
            let variable = sign.claim.variable.as_str();
            !known.contains(variable) && evidence.iter().all(|one| one.claim.variable != variable)
        });
        evidence.extend(signs);
        let inside_torchrun = above;
        let stale_rank_variables =
            if inside_torchrun.is_some() { Vec::new() } else { left_over(host, &evidence) };
        let is_proven = |id: &str| proven.iter().any(|platform| platform.id == id);
        let remarks = REMARKS.iter().filter(|remark| {
            is_proven(remark.platform)
                && remark.on.is_none_or(|name| host.variable(name).is_some())
                && remark.unless.iter().all(|name| host.variable(name).is_none())
        });

        Contract {
            platform: proven.first().map_or("none", |platform| platform.id).to_owned(),
            inside_torchrun,
            stale_rank_variables,
            pet_variables: nested::pet_variables(host),
            warnings: remarks
                .map(|remark| Warning::new(remark.id, remark.text(), remark.hint()))
                .collect(),
            advice: ADVICE.iter().find(|advice| is_proven(advice.platform)).map(|one| one.text()),
            own_names: Vec::new(),
            unread: unread(host, own, &evidence),
            default_port: proven
                .iter()
                .filter(|platform| platform.strength > Strength::Hint)
                .find_map(|platform| platform.default_port),
            evidence,
        }
    }

    /// By path: the hosts in each file that a variable of hosts names, and the text of each file in which a
    /// platform describes the job.
    pub fn host_files(host: &Host) -> BTreeMap<String, String> {
        let mut files = shapes::host_files(host);
        files.extend(job_files::texts(host));
        files
    }

    /// Adds the files that [`Contract::host_files`] has read: the hosts of a file beside the variable that names it, and the
    /// evidence of the files in which platforms describe the job.
    pub fn add_host_files(&mut self, files: &BTreeMap<String, String>) {
        for found in self.evidence.iter_mut().filter(|found| found.reading == Reading::HostFile) {
            let path = &found.claim.value;
            found.beside =
                files.get(path).map(|hosts| Claim { variable: path.clone(), value: hosts.clone() });
        }
        job_files::add(self, files);
    }

    /// Every variable that any contract of the program reads or is proven by, once each.
    pub fn known_variables() -> Vec<&'static str> {
        let proofs = platforms(None).flat_map(|platform| platform.proofs.iter().copied().flatten());
        let mut names: Vec<&'static str> = proofs
            .map(Test::variable)
            .chain(
                platforms(None)
                    .flat_map(|platform| platform.claims)
                    .flat_map(|row| [Some(row.variable), row.beside].into_iter().flatten()),
            )
            .filter(|name| !name.contains('{'))
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl Field {
    /// The variables in which any platform of the program gives a field, once each.
    pub fn variables(self) -> impl Iterator<Item = &'static str> {
        let rows = platforms(None).flat_map(|platform| platform.claims);
        let names: BTreeSet<_> =
            rows.filter(|row| row.field == self).map(|row| row.variable).collect();
        names.into_iter()
    }

    /// The variables in which a platform gives a field, whether or not they are set.
    pub fn variables_of(self, platform: &str, own: Option<&'static Platform>) -> Vec<&'static str> {
        let rows = platforms(own).filter(|row| row.id == platform).flat_map(|row| row.claims);
        rows.filter(|row| row.field == self).map(|row| row.variable).collect()
    }
}

/// Leftover rank variables of torchrun: all that are set, unless a contract reads them and there
/// is no trace of torchrun.
fn left_over(host: &Host, evidence: &[Evidence]) -> Vec<String> {
    let mut names = nested::rank_variables(host);
    if host.variable("TORCHELASTIC_RUN_ID").is_none() {
        names.retain(|name| evidence.iter().all(|found| found.claim.variable != *name));
    }
    names
}

/// The variables that are set but give no evidence, each with the first platform that would read it; proven
/// platforms come first. The profile's platform is named, if it is not proven, even if none of its
/// variables is set.
fn unread(host: &Host, own: Option<&'static Platform>, evidence: &[Evidence]) -> Vec<Unread> {
    let (proven, others): (Vec<&Platform>, Vec<&Platform>) =
        platforms(own).partition(|platform| platform.is_proven(host));
    let mut found: Vec<Unread> = Vec::new();
    for platform in proven.into_iter().chain(others) {
        let missing: Vec<String> = platform.missing(host).iter().map(ToString::to_string).collect();
        let before = found.len();
        for row in platform.claims {
            let is_read = |claim: &Claim| claim.variable == row.variable;
            let is_named = evidence
                .iter()
                .flat_map(|other| [Some(&other.claim), other.beside.as_ref()])
                .chain(found.iter().map(|other| other.claim.as_ref()))
                .flatten()
                .any(is_read);
            if is_named {
                continue;
            }
            if let Some(value) = host.variable(row.variable) {
                let claim = Some(Claim { variable: row.variable.to_owned(), value });
                let (platform, missing) = (platform.id.to_owned(), missing.clone());
                found.push(Unread { platform, claim, missing });
            }
        }
        let is_own = own.is_some_and(|own| own.id == platform.id);
        if is_own && !missing.is_empty() && found.len() == before {
            found.push(Unread { platform: platform.id.to_owned(), claim: None, missing });
        }
    }
    found
}

/// The id of every contract of the program.
pub fn platform_ids() -> impl Iterator<Item = &'static str> {
    platforms(None).map(|platform| platform.id)
}

fn claims(host: &Host, platform: &Platform) -> Vec<Evidence> {
    let mut found: Vec<Evidence> = Vec::new();
    for row in platform.claims {
        let Some(variable) = row.name(host) else { continue };
        let Some(value) = host.variable(&variable) else { continue };
        let answered =
            found.iter().any(|other| other.field == row.field && !other.claim.is_blank());
        if (row.fallback && answered) || row.only.is_some_and(|test| !test(host)) {
            continue;
        }
        let beside = row.beside.and_then(|name| {
            host.variable(name).map(|value| Claim { variable: name.to_owned(), value })
        });
        // A name that is not in the list is no claim, so the next row is used.
        let listed = || {
            let list = beside.as_ref().map_or("", |list: &Claim| list.value.as_str());
            hostlist::position(list, &value).is_some()
        };
        if row.reading == Reading::PositionInHostlist && !listed() {
            continue;
        }
        found.push(Evidence {
            platform: platform.id.to_owned(),
            field: row.field,
            claim: Claim { variable: variable.into_owned(), value },
            reading: row.reading,
            beside,
            strength: platform.strength,
        });
    }
    found
}
