//! Tests of nodes that measure the links between them.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::links::endpoint::Measurement;
use super::*;

/// Runs one node of a check: gives its report, or the reason why it ended without a report.
async fn checked(config: Config) -> Result<LinkReport, String> {
    let words = |refusal: Refusal| refusal.text.en.into_owned();
    let host = Host::replayed("/", BTreeMap::new());
    let target = MeasureTarget::open([127, 0, 0, 1].into()).await.expect("a port");
    let address = Some(std::net::SocketAddr::from(([127, 0, 0, 1], target.port())));
    let endpoint = MeasureEndpoint { address, ..MeasureEndpoint::default() };
    let own = NodeSummary {
        endpoint: Some(Box::new(endpoint.clone())),
        ..summary(config.node, config.nnodes)
    };
    if config.node == 0 {
        return match gather(&config, own, &mut |_| {}).await.map_err(words)? {
            Assembly::All(gathered) => Ok(gathered.measure(endpoint, target).await),
            Assembly::Alone(text) => Err(text.en.into_owned()),
            Assembly::Elsewhere(_) => Err("elsewhere".to_owned()),
        };
    }
    match join(&host, &config, &own, None, &mut |_| {}).await.map_err(words)? {
        Joined::Measure(visit) => visit.follow(target).await.map_err(|loss| format!("{loss:?}")),
        _ => Err("no survey".to_owned()),
    }
}

fn check_config(node: u32, nnodes: u32, port: u16) -> Config {
    Config { purpose: Purpose::Check, ..config(node, nnodes, port) }
}

#[tokio::test]
async fn all_nodes_of_a_check_learn_every_link() {
    for words in [None, Some("correct horse battery")] {
        let port = port();
        let of = |node| Config { secret: words.and_then(secret), ..check_config(node, 3, port) };
        let (zero, one, two) = tokio::join!(checked(of(0)), checked(of(1)), checked(of(2)));
        let zero = zero.expect("found");
        assert_eq!((&zero, &zero), (&one.expect("found"), &two.expect("found")));
        assert_eq!((zero.links.len(), zero.lost.len(), zero.unmeasured), (6, 0, 0));
        for link in &zero.links {
            let speed = link.speed().unwrap_or_else(|| panic!("{link:?}"));
            assert!(speed.floor <= speed.median && speed.median <= speed.p99, "{speed:?}");
            assert!(speed.bytes > 0 && speed.gigabits() > 0.0, "{speed:?}");
        }
    }
}

#[tokio::test]
async fn many_nodes_measure_only_to_their_neighbours() {
    const NODES: u32 = 18;
    let port = port();
    let mut tasks = tokio::task::JoinSet::new();
    for node in 0..NODES {
        let config = check_config(node, NODES, port);
        let config = Config { peer_timeout: Duration::from_secs(15), ..config };
        tasks.spawn(async move { (node, checked(config).await.expect("found")) });
    }
    let found: BTreeMap<u32, LinkReport> = tasks.join_all().await.into_iter().collect();
    let zero = &found[&0];
    let pairs: Vec<_> = zero.links.iter().map(|link| (link.from, link.to)).collect();
    assert_eq!(pairs.len(), 2 * NODES as usize, "{pairs:?}");
    assert!(pairs.contains(&(17, 0)) && pairs.contains(&(8, 9)), "{pairs:?}");
    assert_eq!((zero.nodes.len(), zero.unmeasured), (NODES as usize, 0));
    for (node, found) in found.iter().filter(|(node, _)| **node > 0) {
        assert_eq!((found.nnodes, found.links.len()), (NODES, 0), "{node}");
        let count = |found: &LinkReport| {
            (found.outlier_count, found.outliers.len().min(16), found.lost.len())
        };
        assert_eq!(count(found), count(zero), "{node}");
    }
}

#[tokio::test]
async fn a_listener_gives_an_unidentified_connection_nothing() {
    let mut target = MeasureTarget::open([127, 0, 0, 1].into()).await.expect("a port");
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], target.port()));
    target.serve(None, "the token".to_owned());
    let task = |token: &str| Measurement {
        hello: Measurement::hello(&check_config(1, 2, 1), "me", token),
        to: 0,
        address,
        secret: None,
    };
    let link = task("another token").run().await;
    assert!(link.speed().is_none(), "{link:?}");
    // The connections send garbage, or come from a node of the job on the wrong port.
    let mut other = TcpStream::connect(address).await.expect("connected");
    other.write_all(&[0u8; 4096]).await.expect("sent");
    let mut answer = Vec::new();
    let read = timeout(Duration::from_secs(10), other.read_to_end(&mut answer)).await;
    assert!(read.is_ok() && answer.is_empty(), "{answer:?}");
    let to_it =
        Config { wait_timeout: Duration::from_secs(1), ..check_config(1, 2, address.port()) };
    assert!(checked(to_it).await.is_err());
    // The control: a connection with the token is served.
    let link = task("the token").run().await;
    assert!(link.speed().is_some(), "{link:?}");
}

#[tokio::test]
async fn run_and_check_nodes_do_not_join() {
    let port = port();
    let zero = Config { wait_timeout: Duration::from_secs(3), ..check_config(0, 2, port) };
    let one = Config { wait_timeout: Duration::from_secs(1), ..config(1, 2, port) };
    let (zero, one) = tokio::join!(checked(zero), other(one, summary(1, 2)));
    assert!(zero.expect_err("alone").contains("missing node 1"));
    let refusal = one.expect_err("another purpose");
    assert!(refusal.text.en.contains("`ranklaunch check`"), "{}", refusal.text.en);
}

#[tokio::test]
async fn node_lost_while_measuring_is_named() {
    // A silent node is given up at the end of node 0's step.
    tokio::join!(lost_meanwhile(Loss::Died), lost_meanwhile(Loss::Silent));
}

async fn lost_meanwhile(loss: Loss) {
    let port = port();
    let dies = async {
        let host = Host::replayed("/", BTreeMap::new());
        let (config, node) = (check_config(1, 3, port), summary(1, 3));
        let address = Some(std::net::SocketAddr::from(([127, 0, 0, 1], 1)));
        let endpoint = Some(Box::new(MeasureEndpoint { address, ..MeasureEndpoint::default() }));
        let own = NodeSummary { endpoint, ..node };
        let joined = join(&host, &config, &own, None, &mut |_| {}).await.expect("joined");
        assert!(matches!(joined, Joined::Measure(_)), "the links are measured");
        // The node's connection is open as long as it is held.
        (loss == Loss::Silent).then_some(joined)
    };
    let of = |node| check_config(node, 3, port);
    let (zero, _held, two) = tokio::join!(checked(of(0)), dies, checked(of(2)));
    let zero = zero.expect("found");
    assert_eq!(zero, two.expect("found"));
    assert_eq!(zero.lost, [(1, loss)]);
    let pairs: Vec<_> = zero.links.iter().map(|link| (link.from, link.to)).collect();
    assert_eq!(pairs, [(0, 2), (2, 0)], "nothing is said of the way to a dead node");
    assert_eq!(zero.outliers, []);
}
