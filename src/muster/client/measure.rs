//! Measures links on every node but node 0, as node 0 requests.

use std::net::SocketAddr;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::connection::{Connection, Received};
use crate::links::endpoint::{MeasureTarget, Measurement, WHOLE};
use crate::links::schedule::{ALL_STEPS, STEP};
use crate::protocol::{FromMember, FromNode0, LinkReport, Loss};

/// The session of a node that takes part in the measurements.
#[derive(Debug)]
pub struct MeasureSession {
    pub connection: Connection,
    pub hostname: String,
    pub token: String,
}

impl MeasureSession {
    /// Measures as node 0 requests, until node 0 sends the report.
    ///
    /// # Errors
    /// When node 0 is lost.
    pub async fn follow(self, mut target: MeasureTarget) -> Result<LinkReport, Loss> {
        let MeasureSession { mut connection, hostname, token } = self;
        let secret = connection.config.secret.clone();
        target.serve(secret.clone(), token.clone());
        let node_0 = connection.stream().peer_addr().ok();
        let mut running = JoinSet::new();
        let end = Instant::now() + ALL_STEPS + WHOLE + STEP;
        loop {
            let done = async {
                tokio::select! {
                    Some(done) = running.join_next() => Some(done),
                    () = sleep_until(end) => None,
                }
            };
            let frame = match connection.next_or(done).await.map_err(|lost| lost.loss())? {
                Received::Frame(frame) => *frame,
                Received::Other(Some(Ok(link))) => {
                    connection.send(&FromMember::Measured(link)).await;
                    continue;
                }
                Received::Other(Some(Err(_))) => continue,
                Received::Other(None) => return Err(Loss::Silent),
            };
            match frame {
                FromNode0::MeasureTo { to, address } => {
                    // Node 0 listens at the address at which we reached it, unless it names another address.
                    let ip = match node_0 {
                        Some(node_0) if address.ip().is_unspecified() => node_0.ip(),
                        _ => address.ip(),
                    };
                    // One measurement at a time: our node 0 never requests two.
                    running.shutdown().await;
                    let hello = Measurement::hello(&connection.config, &hostname, &token);
                    let address = SocketAddr::new(ip.to_canonical(), address.port());
                    running.spawn(Measurement { hello, to, address, secret: secret.clone() }.run());
                }
                FromNode0::Report(report) => {
                    connection.close().await;
                    return Ok(*report);
                }
                _ => {}
            }
        }
    }
}
