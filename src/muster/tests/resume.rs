//! Tests of connections that are reset while all nodes live: the job goes on.

use std::sync::Mutex;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::agreement::{failure, verdict};
use super::*;

/// Forwards the connections to a port, and resets all of them on request.
#[derive(Clone, Default)]
struct Proxy {
    reset: Arc<Notify>,
    open: Arc<Mutex<u32>>,
}

impl Proxy {
    /// Listens in front of `port`, and gives the proxy's own port.
    async fn before(&self, port: u16) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let own = listener.local_addr().expect("an address").port();
        let proxy = self.clone();
        tokio::spawn(async move {
            while let Ok((member, _)) = listener.accept().await {
                let Ok(node_0) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
                *proxy.open.lock().expect("no panic") += 1;
                tokio::spawn(proxy.clone().carry(member, node_0));
            }
        });
        own
    }

    async fn carry(self, mut member: TcpStream, mut node_0: TcpStream) {
        tokio::select! {
            _ = copy_bidirectional(&mut member, &mut node_0) => {}
            () = self.reset.notified() => {
                // A connection that is closed with a linger of zero is reset.
                for end in [&member, &node_0] {
                    let zero = Some(Duration::ZERO);
                    rustix::net::sockopt::set_socket_linger(end, zero).expect("an option");
                }
            }
        }
        *self.open.lock().expect("no panic") -= 1;
    }

    async fn reset(&self) {
        self.reset.notify_waiters();
        while *self.open.lock().expect("no panic") > 0 {
            tokio::task::yield_now().await;
        }
    }
}

/// Three sessions of one job; node 1 reaches node 0 through a proxy.
async fn behind_a_proxy(secret: Option<&str>, own_port: bool) -> (Proxy, [Session; 3]) {
    let (port, proxy) = (port(), Proxy::default());
    let through = proxy.before(port).await;
    let of = |node, port| {
        let secret = secret.and_then(super::secret);
        let job = Some("a job".to_owned());
        Config { job, secret, peer_timeout: Duration::from_secs(3), ..config(node, 3, port) }
    };
    let master_port = if own_port { super::port() } else { port };
    let zero = async {
        let found = gather(&of(0, port), summary(0, 3), &mut |_| {}).await.expect("all");
        let Assembly::All(gathered) = found else { panic!("alone") };
        let agreed = agreement(&gathered, master_port);
        let decide = Box::new(|_: &mut Cause, _, _| None);
        match gathered.agree(agreed, (decide, Tally::default()), &mut |_| {}).await.expect("agreed")
        {
            Settled::Session(session) => session,
            Settled::Lost(why) => panic!("{why:?}"),
        }
    };
    let (zero, one, two) =
        tokio::join!(zero, other(of(1, through), summary(1, 3)), other(of(2, port), summary(2, 3)));
    let [one, two] = [one, two].map(|joined| joined.expect("agreed").expect("a muster").0);
    (proxy, [zero, one, two])
}

async fn all_are_told<T>(sessions: &mut [Session; 3], told: impl Fn(SessionEvent) -> T) -> Vec<T> {
    let mut said = Vec::new();
    for session in sessions {
        said.push(told(verdict(session).await));
    }
    said
}

#[tokio::test]
async fn a_job_goes_on_after_reset_connections() {
    for (secret, own_port) in
        [(None, false), (Some("sixteen letters.."), false), (Some("sixteen letters.."), true)]
    {
        let (proxy, mut sessions) = behind_a_proxy(secret, own_port).await;
        proxy.reset().await;
        // The report is sent while the connection may still be cut.
        sessions.iter().for_each(Session::done);
        let ends = all_are_told(&mut sessions, |event| event == SessionEvent::AllDone).await;
        assert_eq!(ends, [true; 3], "{secret:?} {own_port}");
    }
}

#[tokio::test]
async fn a_failure_during_a_reset_reaches_all() {
    for (failing, done) in [(1, None), (2, None), (0, None), (2, Some(1))] {
        let (proxy, mut sessions) = behind_a_proxy(None, false).await;
        if let Some(done) = done {
            sessions[done].done();
        }
        proxy.reset().await;
        let rank = u32::try_from(failing).expect("small");
        sessions[failing].failed(failure(rank, now(), true));
        let causes = all_are_told(&mut sessions, |event| match event {
            SessionEvent::Verdict { cause, .. } => (cause.node, cause.id),
            other => panic!("{other:?}"),
        });
        assert_eq!(causes.await, [(rank, Id::RankExit); 3], "node {failing}");
    }
}

/// The control: a node that ends for good is soon named as dead.
#[tokio::test]
async fn node_ending_after_a_reset_is_dead() {
    for gone in [0usize, 1, 2] {
        let (proxy, sessions) = behind_a_proxy(None, false).await;
        proxy.reset().await;
        // By now node 1 is back, and all nodes have reached each other's ports.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let began = Instant::now();
        let mut others = Vec::from(sessions);
        drop(others.remove(gone));
        for session in &mut others {
            let told = timeout(Duration::from_secs(10), verdict(session)).await;
            let Ok(SessionEvent::Verdict { cause, .. }) = told else { panic!("{gone}") };
            let node = usize::try_from(cause.node).expect("small");
            assert_eq!((node, cause.id), (gone, Id::NodeDied), "{cause:?}");
        }
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn stranger_cannot_take_over_a_session() {
    use crate::protocol::{FromMember, FromNode0, handshake};
    let (port, mut said) = (port(), Vec::new());
    let zero = tokio::spawn(async move { node_0(config(0, 2, port), summary(0, 2)).await });
    let host = Host::replayed("/", BTreeMap::new());
    let config = config(1, 2, port);
    let joined = join(&host, &config, &summary(1, 2), None, &mut |_| {}).await.expect("joined");
    let Joined::Offer(offer) = joined else { panic!("no offer") };
    let resumed_at = offer.resume.as_ref().expect("a port").address();
    let Accepted::Session(_session) = offer.accept(None).await.expect("agreed") else {
        panic!("lost")
    };
    let zero = zero.await.expect("no panic").expect("agreed");
    for token in [None, Some("0".repeat(32))] {
        let stream = TcpStream::connect(resumed_at).await.expect("it listens");
        let mut channel = handshake::dial(stream, None).await.expect("a channel");
        let hello = protocol::Hello { resume: token, ..config.hello("stranger") };
        channel.send(&FromMember::Hello(hello)).await.expect("sent");
        said.push(matches!(channel.receive().await, Ok(FromNode0::Welcome { .. })));
    }
    assert_eq!(said, [false, false]);
    drop(zero);
}
