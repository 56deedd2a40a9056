//! torchrun's command line.

use super::line::{EngineOptions, Line, Spelling, torch_version};
use crate::Plan;
use settings::Rendezvous;
use settings::torchrun_options::{Becomes, TorchrunOption};
use text::version::Version;

pub(super) fn line(plan: &Plan, options: &EngineOptions) -> Line {
    let m = &plan.membership;
    // Before 2.0 its flags have no hyphens.
    let spelling = if torch_version(plan) >= Version::new(2, 0, 0) {
        Spelling::Hyphens
    } else {
        Spelling::Underscores
    };
    let mut line = Line::module(plan, "torch.distributed.run", spelling);
    let nnodes = match m.elastic {
        Some((min, max)) if min != max => format!("{min}:{max}"),
        _ => m.nnodes.to_string(),
    };
    line.value("nnodes", nnodes);
    line.value("nproc-per-node", plan.nproc_per_node.to_string());
    if plan.rdzv == Rendezvous::C10d || m.elastic.is_some() {
        let run_id = plan.identity.as_ref().map(|identity| identity.run_id.clone());
        let id = plan.rdzv_id.clone().or(run_id).unwrap_or_else(|| "{run_id}".to_owned());
        line.value("rdzv-backend", "c10d");
        line.value("rdzv-endpoint", endpoint(&m.master_addr, m.master_port));
        line.value("rdzv-id", id);
        line.value("rdzv-conf", rendezvous_settings(plan));
        let own = plan.network.local_addr.map(|address| address.to_string());
        let stated = plan.torchrun.get("local-addr").cloned();
        if let Some(address) =
            stated.or(own).filter(|_| torch_version(plan) >= Version::new(2, 0, 0))
        {
            line.value("local-addr", address);
        }
    } else {
        line.value("node-rank", m.node_rank.to_string());
        line.value("rdzv-backend", "static");
        line.value("master-addr", &m.master_addr);
        line.value("master-port", m.master_port.to_string());
    }
    // If the job is not elastic, all nodes start again together, which torchrun must not decide.
    line.value("max-restarts", plan.engine_restarts.to_string());
    for (name, value) in &plan.torchrun {
        match TorchrunOption::named(name).map(|option| (option.becomes, option.is_switch())) {
            Some((Becomes::Passed, true)) => line.switch(name),
            Some((Becomes::Passed, false)) => line.value(name, value),
            _ => {}
        }
    }
    if let Some(folder) = &options.log_dir {
        line.value("log-dir", folder);
    }
    // The flag exists since torch 2.15; older versions kill after a fixed 30 s.
    let since = torch_version(plan) >= Version::new(2, 15, 0);
    if let Some(timeout) =
        options.shutdown_timeout.filter(|_| plan.knows("shutdown-timeout", since))
    {
        line.value("shutdown-timeout", timeout.as_secs().max(1).to_string());
    }
    line
}

/// The `k=v` list. Without is_host every node guesses by its host name. An elastic job has no
/// node rank, so the guess remains. Values in PET_RDZV_CONF win.
fn rendezvous_settings(plan: &Plan) -> String {
    let stated = plan.torchrun.get("rdzv-conf").map_or("", |stated| stated.trim());
    let keys: Vec<&str> =
        stated.split(',').filter_map(|one| Some(one.split('=').next()?.trim())).collect();
    let mut own = Vec::new();
    if plan.membership.elastic.is_none() {
        own.push(("is_host", u64::from(plan.membership.is_master())));
    }
    own.push(("join_timeout", plan.join_timeout.as_secs().max(1)));
    // Timeout for reads from the store (torch's default is 60).
    own.push(("read_timeout", 300));
    own.retain(|(key, _)| !keys.contains(key));
    let own = own.into_iter().map(|(key, value)| format!("{key}={value}"));
    own.chain((!stated.is_empty()).then(|| stated.to_owned())).collect::<Vec<_>>().join(",")
}

/// `host:port`, an IPv6 address in brackets.
fn endpoint(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
