//! Notifies nodes that arrive shortly after node 0 has refused, before or after it gathered.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use tokio::time::timeout;

use super::listener::{ConnectionEvent, EventReceiver, Listener, drain};
use super::refusals::declined;
use crate::config::Config;
use crate::protocol::FromNode0;
use crate::second_port::second_port;
use verdict::Refusal;

/// Time to wait for latecomers: the nodes of one job start within seconds, and dial about once a second.
const LATECOMERS: Duration = Duration::from_secs(5);
/// Time to wait on the second port, since the holder of the first may keep each node busy for some seconds.
const AT_SECOND_PORT: Duration = Duration::from_secs(10);
const DRAIN: Duration = Duration::from_secs(1);

/// Notifies the nodes that arrive within a few seconds that node 0 cannot take part, and returns their number. If its
/// port is taken, node 0 waits on the second port.
pub async fn turn_away(config: &Config, hostname: &str, refusal: &Refusal) -> usize {
    let open = |port| Listener::open(port, config.nnodes, config.secret.clone());
    let (opened, limit) = match open(config.port) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            (open(second_port(config.port)), AT_SECOND_PORT)
        }
        opened => (opened, LATECOMERS),
    };
    let Ok((listener, mut events)) = opened else { return 0 };
    let mut told = BTreeSet::new();
    let refusal = declined(config.unit, 0, hostname, refusal);
    tell(config, &mut events, &refusal, &mut told, limit).await;
    listener.close().await;
    drain(events, DRAIN).await;
    told.len()
}

/// Notifies all nodes after gathering that are not in `told`.
pub(crate) async fn tell_latecomers(
    config: &Config,
    events: &mut EventReceiver,
    refusal: &Refusal,
    told: &mut BTreeSet<u32>,
) {
    tell(config, events, refusal, told, LATECOMERS).await;
}

async fn tell(
    config: &Config,
    events: &mut EventReceiver,
    refusal: &Refusal,
    told: &mut BTreeSet<u32>,
    limit: Duration,
) {
    let key = config.key();
    let tell = async {
        while told.len() < config.others() {
            let Some(event) = events.recv().await else { return };
            let ConnectionEvent::Arrived(arrival) = event else { continue };
            let hello = &arrival.hello;
            if hello.purpose == config.purpose && !key.is_of_other_job(&hello.key) {
                arrival.out.send(&FromNode0::Refuse(refusal.clone()));
                told.insert(hello.node);
            }
        }
    };
    let _ = timeout(limit, tell).await;
}
