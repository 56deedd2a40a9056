//! Collects the facts of this node, and the addresses of the names that the job gives.
//!
//! Takes host and settings; gives [`Facts`]. The sources are read by `node`; the names that matter are what `plan`
//! reads from the contract, and `muster` resolves them.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use linux::host::Host;
use muster::names::{self, LastResort};
use node::observe::{self, Deadlines, Facts, GpuFacts, NetworkFacts};
use node::probe;
use plan::Notes;
use settings::contract::{self, Contract, Field};
use settings::{ProbeMode, Settings};
use text::lang::Text;

/// All facts, within the deadlines of the settings.
pub(super) async fn observe(host: &Arc<Host>, settings: &Arc<Settings>) -> Facts {
    observe_within(host, settings, Deadlines::of(settings)).await
}

/// All facts. Independent sources run in parallel, each in its own thread and with its own
/// deadline.
#[tracing::instrument(name = "observe", skip_all)]
pub async fn observe_within(
    host: &Arc<Host>,
    settings: &Arc<Settings>,
    deadlines: Deadlines,
) -> Facts {
    let of_ranks = as_ranks_see(host, settings);
    let logs = log_candidates(host, settings).into_iter().next().map(|candidate| candidate.path);
    let equipment = observe::equipment(host, &of_ranks, settings, deadlines, logs);
    // The interfaces are read once the master has its addresses.
    let meeting = async {
        let mut late = Vec::new();
        let contract = observe::contract(host, settings, deadlines, &mut late).await;
        let master = match master_name(settings, &contract) {
            Some(name) => {
                let addresses = resolved(host, &name, deadlines.name, settings.probe_mode()).await;
                Some((name, addresses))
            }
            None => None,
        };
        let network = observe::interfaces(host, master, deadlines, &mut late).await;
        (contract, network, late)
    };
    let (mut facts, (mut contract, network, mut late)) = tokio::join!(equipment, meeting);
    facts.hostname = hostname(host);
    facts.network = NetworkFacts { nccl: facts.network.nccl, ..network };
    late.append(&mut facts.state.late);
    facts.state.late = late;
    contract.own_names = facts.network.own_names(&facts.hostname);
    let listed = names_here(host, settings, &contract, &facts.network, deadlines.name).await;
    contract.own_names.extend(listed);
    Facts { contract, ..facts }
}

/// The host with the CUDA_VISIBLE_DEVICES that the ranks get. A placeholder has no value yet.
fn as_ranks_see(host: &Host, settings: &Settings) -> Host {
    const DEVICES: &str = "CUDA_VISIBLE_DEVICES";
    let setting = settings.env.iter().find(|setting| {
        let is_used = plan::variables::overrides(setting) || host.variable(DEVICES).is_none();
        setting.name == DEVICES && is_used && !setting.value.to_string_lossy().contains('{')
    });
    match setting {
        Some(setting) => host.with_variable(DEVICES, &setting.value),
        None => host.clone(),
    }
}

/// Reads only the GPUs again.
pub(super) async fn gpus(host: &Host, settings: &Settings) -> GpuFacts {
    observe::gpus(&as_ranks_see(host, settings), settings).await
}

/// The addresses of a name. For a captured node these are the recorded addresses, since the name
/// servers of this machine may answer differently.
async fn resolved(
    host: &Host,
    name: &str,
    timeout: Duration,
    mode: ProbeMode,
) -> Result<Vec<IpAddr>, Text> {
    let kept = format!("name/{name}");
    if !host.is_live()
        && let Some(found) = host.answer(&kept, || Err(Text::same("")))
    {
        return found;
    }
    let found = names::resolve(host, name, timeout, Some(&last_resort(mode))).await;
    let found = found.map_err(|error| error.text());
    host.keep(&kept, &found);
    found
}

/// The names of `--nodes` that lead to an address of this node, if no text identifies its own name.
async fn names_here(
    host: &Arc<Host>,
    settings: &Settings,
    contract: &Contract,
    network: &NetworkFacts,
    timeout: Duration,
) -> Vec<String> {
    let mode = settings.probe_mode();
    let mut asked = JoinSet::new();
    for name in plan::needs_addresses(settings, &contract.own_names) {
        let (host, name) = (Arc::clone(host), name.clone());
        asked.spawn(async move {
            let found = resolved(&host, &name, timeout, mode).await.unwrap_or_default();
            (name, found)
        });
    }
    // A loopback address proves nothing: any host may have it for any name.
    let is_here = |address: &IpAddr| {
        !address.is_loopback()
            && network.interfaces.iter().any(|interface| interface.addresses.contains(address))
    };
    let answers = asked.join_all().await;
    let here = answers.into_iter().filter(|(_, found)| found.iter().any(is_here));
    here.map(|(name, _)| name).collect()
}

pub(super) fn hostname(host: &Host) -> String {
    let own = || linux::sys::hostname();
    let file = || host.read("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    host.answer("hostname", own).unwrap_or_else(file)
}

/// The candidate folders for the run's files, best first.
pub(super) fn log_candidates(host: &Host, settings: &Settings) -> Vec<logs::Candidate> {
    candidates(host, settings.log_dir.as_ref().map(|dir| dir.value.as_path()))
}

/// The same where no settings are read.
pub(super) fn candidates(host: &Host, flag: Option<&Path>) -> Vec<logs::Candidate> {
    let tmpdir = host.variable("TMPDIR");
    logs::default_candidates(flag, tmpdir.as_deref().map(AsRef::as_ref))
}

/// The master's name, if the job has another node.
///
/// A claim may be a node list or an endpoint (`n[03-04]`, `host:port`), so the planner parses
/// it. If the planner cannot tell the number of nodes before GPUs are counted, the text of the
/// claim is used.
fn master_name(settings: &Settings, contract: &Contract) -> Option<String> {
    if plan::listed(settings).is_some_and(|list| list.value.len() > 1) {
        // The position of this node in the list depends on its addresses, which come later.
        return plan::stated_master(settings).map(|master| master.value.clone());
    }
    match plan::identity(settings, contract, &mut Notes::default()) {
        Ok(member) => (member.nnodes > 1).then_some(member.master_addr),
        Err(_) => {
            // A plain host name is required; a node list cannot be resolved.
            let plain = contract.evidence.iter().find(|found| {
                let is_name = found.reading == contract::Reading::Plain && !found.claim.is_blank();
                found.field == Field::MasterAddr && is_name
            });
            let claimed = plain.map(|found| &found.claim.value);
            let stated = plan::stated_master(settings).map(|name| name.value.clone());
            stated.or(claimed.cloned()).filter(|name| !name.is_empty())
        }
    }
}

/// getaddrinfo in the probe, for names that only the C library's NSS plugins resolve.
pub(super) fn last_resort(mode: ProbeMode) -> LastResort {
    Arc::new(move |name, timeout| probe::resolve(mode, name, timeout))
}
