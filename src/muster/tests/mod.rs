//! Tests of whole musters over loopback: several members against one node 0.

mod admission;
mod agreement;
mod check;
mod looking;
mod questions;
mod resume;
mod spares;
mod takeover;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::protocol::JobKey;
use super::server::Gathered;
use super::*;
use linux::host::Host;
use verdict::{Id, Refusal};

pub(crate) fn summary(node: u32, nnodes: u32) -> NodeSummary {
    NodeSummary {
        node,
        nnodes,
        hostname: format!("host-{node}"),
        version: "1".to_owned(),
        engine: settings::Engine::Direct,
        rule: settings::LayoutRule::None,
        heads: None,
        most: 8,
        exact: None,
        gpus: 8,
        device: Some(plan::Hardware::Gpus),
        torch: None,
        driver: None,
        script: None,
        nccl: None,
        rails: 0,
        link_layer: None,
        clock_offset: 0,
        mtu: None,
        rates: None,
        endpoint: None,
        seat: None,
        warnings: Vec::new(),
        alive: None,
        last: None,
        spares: 0,
        held: None,
        attempt: 0,
        command: None,
        machine: None,
        remembered: None,
        checkpoints: None,
        shares: Vec::new(),
        tally: Tally::default(),
    }
}

fn port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|one| one.local_addr())
        .expect("a port")
        .port()
}

pub(crate) fn config(node: u32, nnodes: u32, port: u16) -> Config {
    Config {
        purpose: Purpose::Run,
        unit: MemberKind::Node,
        node,
        leader: 0,
        at: None,
        succession: None,
        nnodes,
        job: None,
        master_addr: "127.0.0.1".to_owned(),
        port,
        wait_timeout: Duration::from_secs(20),
        pace: linux::pace::Pace::STANDARD,
        live: None,
        peer_timeout: Duration::from_secs(2),
        secret: None,
        without: Without::Follow,
        grace: Duration::from_secs(1),
        seating: Seating::default(),
        hosts: Vec::new(),
        remembered: BTreeMap::new(),
        is_world_size: true,
        memory: Arc::new(|| Some(Memory { used: 99, limit: 100 })),
    }
}

pub(crate) fn secret(words: &str) -> Option<Secret> {
    let environment = BTreeMap::from([("RANKLAUNCH_SECRET".into(), words.into())]);
    Secret::read(&Host::replayed("/", environment)).expect("long enough")
}

fn agreement(gathered: &Gathered, port: u16) -> Agreement {
    let nproc = gathered.fewest();
    let nnodes = u32::try_from(gathered.summaries.len()).expect("few");
    Agreement {
        resume: None,
        nnodes,
        nproc,
        world: nnodes * nproc,
        ulysses: 1,
        ring: 1,
        heads: None,
        master_port: port,
        run_id: "run-1".to_owned(),
        timestamp: "20250102-030405".to_owned(),
        attempt: 0,
        seats: gathered.seats.clone(),
    }
}

async fn node_0(config: Config, own: NodeSummary) -> Result<Option<Session>, Refusal> {
    loop {
        let Assembly::All(gathered) = gather(&config, own.clone(), &mut |_| {}).await? else {
            return Ok(None);
        };
        let agreed = agreement(&gathered, config.port);
        if let Settled::Session(session) = gathered
            .agree(agreed, (Box::new(|_, _, _| None), Tally::default()), &mut |_| {})
            .await?
        {
            return Ok(Some(session));
        }
    }
}

async fn other(config: Config, own: NodeSummary) -> Result<Option<(Session, Agreement)>, Refusal> {
    let host = Host::replayed("/", BTreeMap::new());
    loop {
        let Joined::Offer(offer) = join(&host, &config, &own, None, &mut |_| {}).await? else {
            return Ok(None);
        };
        let agreed = offer.agreement.clone();
        match offer.accept(None).await? {
            Accepted::Session(session) => return Ok(Some((session, agreed))),
            Accepted::Alone(_) => return Ok(None),
            Accepted::Lost => {}
        }
    }
}

/// Three sessions of one job, with the given changes for nodes 1 and 2.
async fn three(change: impl Fn(&mut Config)) -> (Session, Session, Session) {
    let port = port();
    let of = |node| {
        let mut config = config(node, 3, port);
        change(&mut config);
        config
    };
    let (zero, one, two) = tokio::join!(
        node_0(of(0), summary(0, 3)),
        other(of(1), summary(1, 3)),
        other(of(2), summary(2, 3))
    );
    (
        zero.expect("agreed").expect("a muster"),
        one.expect("agreed").expect("a muster").0,
        two.expect("agreed").expect("a muster").0,
    )
}
