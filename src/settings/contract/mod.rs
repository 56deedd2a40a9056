//! Reads the platform contract: environment variables → [`Contract`].
//!
//! Takes the environment, and whether a torchrun is our ancestor; gives every claim of every
//! contract whose variables are present, unparsed and in order of strength. `plan` decides which
//! claim wins and what a bad value means. The platforms are rows of [`table`], and at most one of
//! the profile. Owns the remarks on platforms as well: advice if a part of the evidence is missing, and
//! warnings of unexpected behaviour of the launcher.

mod conventions;
mod derived;
mod evidence;
mod launchers;
mod row;
mod shapes;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::hostlist;
use linux::host::Host;
use text::lang::Text;
use verdict::{Id, Warning};

use conventions::{ALLOCATIONS, CONVENTIONS};
pub use evidence::{Claim, Contract, Evidence, Field, Reading, Strength, Unread};
use launchers::LAUNCHERS;
pub use row::{Beside, Platform, PlatformRow, Test, fields};
pub(crate) use row::{Groups, beside_of, readings_of};
use table::PLATFORMS;

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
            found.extend(derived::evidence(host, platform));
            found
        };
        let mut evidence: Vec<Evidence> = proven.iter().flat_map(of).collect();
        // A variable of a known row is no evidence of an unknown scheduler. The variables of the profile's
        // platform mean only what the profile says, so they mean nothing if that platform is not proven.
        let mut signs = shapes::evidence(host);
        let rows = proven.iter().copied().chain(own).flat_map(Platform::rows);
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
            pet_variables: derived::pet_variables(host),
            warnings: remarks
                .map(|Remark { id, text, hint, .. }| {
                    Warning::new(*id, Text::new(text.0, text.1), Text::new(hint.0, hint.1))
                })
                .collect(),
            advice: ADVICE
                .iter()
                .find(|(platform, ..)| is_proven(platform))
                .map(|(_, en, zh)| Text::new(*en, *zh)),
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
        files.extend(derived::job_files(host));
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
        derived::add_job_files(self, files);
    }

    /// Every variable that any contract of the program reads or is proven by, once each.
    pub fn known_variables() -> Vec<&'static str> {
        let proofs = platforms(None).flat_map(|platform| platform.proofs.iter().copied().flatten());
        let rows = platforms(None).flat_map(Platform::rows);
        let read = rows.flat_map(|row| [Some(row.variable), row.beside]).flatten();
        let names = proofs.map(Test::variable).chain(read).filter(|name| !name.contains('{'));
        names.collect::<BTreeSet<_>>().into_iter().collect()
    }
}

impl Field {
    /// The variables in which any platform of the program gives a field, once each.
    pub fn variables(self) -> impl Iterator<Item = &'static str> {
        let rows = platforms(None).flat_map(Platform::rows).filter(move |row| row.field == self);
        rows.map(|row| row.variable).collect::<BTreeSet<_>>().into_iter()
    }

    /// The variables in which a platform gives a field, whether or not they are set.
    pub fn variables_of(self, platform: &str, own: Option<&'static Platform>) -> Vec<&'static str> {
        let rows = platforms(own).filter(|row| row.id == platform).flat_map(Platform::rows);
        rows.filter(|row| row.field == self).map(|row| row.variable).collect()
    }
}

/// Leftover rank variables of torchrun: all that are set, unless a contract reads them and there
/// is no trace of torchrun.
fn left_over(host: &Host, evidence: &[Evidence]) -> Vec<String> {
    let mut names = derived::rank_variables(host);
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
        for row in platform.rows() {
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
            if let Some(claim) = Claim::of(host, row.variable) {
                let (platform, missing) = (platform.id.to_owned(), missing.clone());
                found.push(Unread { platform, claim: Some(claim), missing });
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
    for row in platform.rows() {
        let claim = row.name(host).and_then(|variable| Claim::of(host, &variable));
        let Some(claim) = claim else { continue };
        let answered =
            found.iter().any(|other| other.field == row.field && !other.claim.is_blank());
        if (row.fallback && answered) || row.only.is_some_and(|test| !test(host)) {
            continue;
        }
        let beside = row.beside.and_then(|name| Claim::of(host, name));
        // A name that is not in the list is no claim, so the next row is used.
        let listed = || {
            let list = beside.as_ref().map_or("", |list: &Claim| list.value.as_str());
            hostlist::position(list, &claim.value).is_some()
        };
        if row.reading == Reading::PositionInHostlist && !listed() {
            continue;
        }
        let (id, strength) = (platform.id, platform.strength);
        found.push(strength.evidence(id, row.field, row.reading, claim, beside));
    }
    found
}

/// A warning for every launch on a platform, if none of the variables in `unless` is set and, if `on` names
/// a variable, that variable is set.
struct Remark {
    platform: &'static str,
    on: Option<&'static str>,
    unless: &'static [&'static str],
    id: Id,
    text: (&'static str, &'static str),
    hint: (&'static str, &'static str),
}

/// Platform, and advice in both languages if a part of its evidence is missing.
const ADVICE: &[(&str, &str, &str)] = &[
    (
        "slurm-allocation",
        "this is a batch script or a shell of salloc, which Slurm starts on one node; start all of them with srun --ntasks-per-node=1 ranklaunch …; --nnodes 1 for this node alone",
        "当前位于批处理脚本或 salloc 的 shell 中，Slurm 只在一个节点上启动它；请用 srun --ntasks-per-node=1 ranklaunch … 在所有节点上启动；只用本节点时用 --nnodes 1",
    ),
    (
        "pbs",
        "PBS runs a script on one host: hosts=$(sort -u $PBS_NODEFILE | paste -sd,); pbsdsh -- $(command -v ranklaunch) run --nodes $hosts -- … (one slot per host, Torque: pbsdsh -u); --nnodes 1 for this node alone",
        "PBS 只在一台主机上运行脚本：hosts=$(sort -u $PBS_NODEFILE | paste -sd,); pbsdsh -- $(command -v ranklaunch) run --nodes $hosts -- …（每台主机一个槽位，Torque 用 pbsdsh -u）；只用本节点时用 --nnodes 1",
    ),
    (
        "lsf",
        "LSF runs a script on one host: hosts=$(sort -u $LSB_DJOB_HOSTFILE); blaunch -z \"$hosts\" ranklaunch run --nodes $(echo $hosts | tr ' ' ,) -- … (jsrun: -r 1 and MASTER_ADDR); --nnodes 1 for this node alone",
        "LSF 只在一台主机上运行脚本：hosts=$(sort -u $LSB_DJOB_HOSTFILE); blaunch -z \"$hosts\" ranklaunch run --nodes $(echo $hosts | tr ' ' ,) -- …（jsrun 用 -r 1 并设置 MASTER_ADDR）；只用本节点时用 --nnodes 1",
    ),
    (
        "grid-engine",
        "Grid Engine runs a script on one host: start qrsh -inherit HOST ranklaunch run --nodes HOST,HOST,… -- … for each host of $PE_HOSTFILE; --nnodes 1 for this node alone",
        "Grid Engine 只在一台主机上运行脚本：请对 $PE_HOSTFILE 中的每台主机执行 qrsh -inherit HOST ranklaunch run --nodes HOST,HOST,… -- …；只用本节点时用 --nnodes 1",
    ),
    (
        "determined",
        "make it a part of the entrypoint of a trial, before which Determined writes the place of each container to /run/determined/info/rendezvous.json; or --nnodes N --node-rank K --master-addr HOST; --nnodes 1 for this container alone",
        "请放在 trial 的 entrypoint 中启动，此前 Determined 会把各容器的位置写入 /run/determined/info/rendezvous.json；或给出 --nnodes N --node-rank K --master-addr HOST；只用本容器时用 --nnodes 1",
    ),
    (
        "flux-tasks",
        "start one task per node: flux run -N 2 -n 2 ranklaunch …, with MASTER_ADDR; or --nnodes N and --node-rank K",
        "请每节点只启动一个 task：flux run -N 2 -n 2 ranklaunch …，并设置 MASTER_ADDR；或给出 --nnodes N 和 --node-rank K",
    ),
    (
        "pmix",
        "PMIx gives a rank and no count in the environment: use a launcher that sets both (mpirun, srun), or set --nnodes N, --node-rank K and --master-addr",
        "PMIx 只在环境变量中给出编号而没有总数：请使用同时给出二者的启动器（mpirun、srun），或给出 --nnodes N、--node-rank K 和 --master-addr",
    ),
    (
        "volcano-tasks",
        "add Volcano's pytorch plugin (plugins: {pytorch: [\"--master=master\", \"--worker=worker\"]}), which sets RANK and WORLD_SIZE, or set --nnodes N and --node-rank K",
        "请启用 Volcano 的 pytorch 插件（plugins: {pytorch: [\"--master=master\", \"--worker=worker\"]}），它会设置 RANK 和 WORLD_SIZE；或给出 --nnodes N 和 --node-rank K",
    ),
];

const ONE_SECOND: (&str, &str) = (
    "mpirun kills this command 1 s after TERM, so that a checkpoint at the end and the closing lines are lost",
    "mpirun 在 TERM 之后 1 秒就会强制终止本命令，结束时的检查点和末尾输出会丢失",
);
/// PRRTE, the launcher of Open MPI 5, has started the process.
const OF_5: &str = "PRTE_LAUNCHED";

const REMARKS: &[Remark] = &[
    Remark {
        platform: "open-mpi",
        on: None,
        unless: &["OMPI_MCA_odls_base_sigkill_timeout", OF_5],
        id: Id::LauncherGrace,
        text: ONE_SECOND,
        hint: (
            "mpirun --mca odls_base_sigkill_timeout 30",
            "mpirun --mca odls_base_sigkill_timeout 30",
        ),
    },
    Remark {
        platform: "open-mpi",
        // PRRTE 3.0, the version in Open MPI 5.0, no longer has the option; tried with 5.0.7.
        on: Some(OF_5),
        unless: &[],
        id: Id::LauncherGrace,
        text: ONE_SECOND,
        hint: (
            "Open MPI 5.0 has no option for that time: send USR1 to mpirun, which forwards it, and save then",
            "Open MPI 5.0 没有调整该时间的选项：请向 mpirun 发送 USR1（它会转发），并在收到 USR1 时保存",
        ),
    },
];
