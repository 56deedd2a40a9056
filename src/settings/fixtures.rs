//! Settings of a user who decided nothing, for tests of the rooms that take them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{
    Bind, Console, ConsolePrefix, Device, Engine, LayoutRule, LayoutSettings, MusterMode, Nproc,
    ProbeMode, Rdma, Rendezvous, Settings, Sourced, StaleMode, WorldSizeCounts,
};
use crate::lang::Lang;

pub(crate) fn undecided() -> Settings {
    Settings {
        lang: Lang::En,
        profile: None,
        nnodes: None,
        node_rank: None,
        master_addr: None,
        master_port: None,
        world_size_counts: Sourced::default_value(WorldSizeCounts::Auto),
        nested: false,
        nproc_per_node: Sourced::default_value(Nproc::Auto),
        min_nproc: None,
        device: Sourced::default_value(Device::Auto),
        layout: LayoutSettings {
            rule: Sourced::default_value(LayoutRule::None),
            heads: None,
            heads_table: None,
            ulysses_argument: None,
            ring_argument: None,
            checkpoint_argument: None,
        },
        selects: Vec::new(),
        engine: Sourced::default_value(Engine::Torchrun),
        engine_args: Vec::new(),
        rdzv: Sourced::default_value(Rendezvous::Static),
        python: None,
        conda_env: None,
        conda_roots: Vec::new(),
        program: None,
        env: Vec::new(),
        log_dir: None,
        console: Sourced::default_value(Console::All),
        console_prefix: Sourced::default_value(ConsolePrefix::Rank),
        log_cap_rank: Sourced::default_value(256 << 20),
        log_cap_node: Sourced::default_value(4 << 30),
        stale: Sourced::default_value(StaleMode::Kill),
        muster: Sourced::default_value(MusterMode::Auto),
        muster_port: None,
        wait_timeout: Sourced::default_value(Duration::from_secs(1800)),
        grace: Sourced::default_value(Duration::from_secs(30)),
        max_restarts: Sourced::default_value(0),
        probe: Sourced::default_value(ProbeMode::Auto),
        rdma: Sourced::default_value(Rdma::Auto),
        severities: BTreeMap::new(),
        exit_codes: BTreeMap::new(),
        interactive: false,
        termination_log: None,
        host_root: None,
        bind: Sourced::default_value(Bind::None),
        warnings: Vec::new(),
    }
}
