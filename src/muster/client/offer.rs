//! Node 0's proposal to a node, and the node's answer.

use std::net::SocketAddr;

use super::connection::Connection;
use super::resume::Resumption;
use super::run;
use crate::protocol::{Agreement, Difference, FromMember, FromNode0};
use crate::session::Session;
use text::lang::Text;
use verdict::Refusal;

/// The proposal of node 0.
#[derive(Debug)]
pub struct Offer {
    pub agreement: Agreement,
    pub differences: Vec<Difference>,
    /// Keys of the warnings that node 0 prints.
    pub said: Vec<u64>,
    /// Local address of the connection.
    pub local: Option<SocketAddr>,
    pub connection: Connection,
    /// Milliseconds from our clock to node 0's clock.
    pub offset: i64,
    pub resume: Option<Resumption>,
    pub me: run::Me,
}

/// The outcome of the agreement.
#[derive(Debug)]
pub enum Accepted {
    Session(Session),
    /// Node 0 gathers again or died, so this node has to join again.
    Lost,
    Alone(Text),
}

impl Offer {
    /// Accepts the offer, and waits until all other nodes have accepted.
    ///
    /// # Errors
    /// If another node cannot accept.
    pub async fn accept(self) -> Result<Accepted, Refusal> {
        let Offer { mut connection, me, offset, resume, .. } = self;
        connection.send(&FromMember::Accept).await;
        loop {
            match connection.next().await {
                Ok(FromNode0::Go) => break,
                Ok(FromNode0::Refuse(refusal)) => return Err(refusal),
                Ok(FromNode0::Alone(text)) => return Ok(Accepted::Alone(text)),
                Ok(_) => {}
                Err(_) => return Ok(Accepted::Lost),
            }
        }
        let connection = connection.started();
        let (node, nnodes) = (connection.config.node, connection.config.nnodes);
        let session =
            Session::start(node, nnodes, |ends| run::run(connection, me, offset, resume, ends));
        Ok(Accepted::Session(session))
    }

    /// Declines the offer; node 0 notifies the others.
    pub async fn decline(mut self, refusal: &Refusal) {
        self.connection.send(&FromMember::Decline(refusal.clone())).await;
        self.connection.close().await;
    }
}
