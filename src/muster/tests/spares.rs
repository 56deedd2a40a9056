//! Tests of jobs to which more nodes come than there are seats.

use std::borrow::Cow;

use tokio::time::timeout;

use super::agreement::{failure, verdict};
use super::*;
use text::lang::Text;

/// How a node comes out of its join.
#[derive(Debug)]
enum Came {
    Seated(Session, Agreement),
    Parked(Box<Parked>),
}

impl Came {
    fn seated(self) -> (Session, Agreement) {
        match self {
            Came::Seated(session, agreement) => (session, agreement),
            Came::Parked(_) => panic!("it has no seat"),
        }
    }

    fn parked(self) -> Box<Parked> {
        match self {
            Came::Parked(parked) => parked,
            Came::Seated(_, agreement) => panic!("it has a seat: {agreement:?}"),
        }
    }
}

/// Two seats and two spares. The ranks meet on a port of their own, so node 0 goes on listening.
struct Job {
    port: u16,
    master_port: u16,
    lost: Vec<u32>,
    avoided: Vec<u32>,
    returning: Vec<u32>,
    met: Vec<(u32, u32)>,
    attempt: u32,
}

impl Job {
    fn new() -> Job {
        let (lost, avoided, returning) = (Vec::new(), Vec::new(), Vec::new());
        let met = Vec::new();
        Job { port: port(), master_port: port(), lost, avoided, returning, met, attempt: 0 }
    }

    fn config(&self, node: u32) -> Config {
        let set = |nodes: &[u32]| nodes.iter().copied().collect();
        let (lost, avoided) = (set(&self.lost), set(&self.avoided));
        let returning = set(&self.returning);
        let (spares, held, met) = (2, None, self.met.clone());
        let seating = Seating { spares, held, returning, lost, met, avoided };
        Config { seating, ..config(node, 2, self.port) }
    }

    fn summary(&self, node: u32) -> NodeSummary {
        NodeSummary { spares: 2, attempt: self.attempt, ..summary(node, 2) }
    }

    async fn lead(&self, again: Option<Again>) -> Result<(Session, Agreement), Refusal> {
        loop {
            let own = self.summary(0);
            let gathered = match gather(&self.config(0), own, &mut |_| {}).await? {
                Assembly::All(gathered) => gathered,
                other => panic!("{other:?}"),
            };
            let agreed =
                Agreement { attempt: self.attempt, ..agreement(&gathered, self.master_port) };
            let decide = Box::new(move |_: &mut Cause, _, _| again);
            if let Settled::Session(session) =
                gathered.agree(agreed.clone(), (decide, Tally::default()), &mut |_| {}).await?
            {
                return Ok((session, agreed));
            }
        }
    }

    async fn join(&self, node: u32) -> Result<Came, Refusal> {
        self.join_as(self.config(node), self.summary(node)).await
    }

    async fn join_as(&self, config: Config, own: NodeSummary) -> Result<Came, Refusal> {
        let host = Host::replayed("/", BTreeMap::new());
        loop {
            match join(&host, &config, &own, None, &mut |_| {}).await? {
                Joined::Offer(offer) => {
                    let agreed = offer.agreement.clone();
                    if let Accepted::Session(session) = offer.accept(None).await? {
                        return Ok(Came::Seated(session, agreed));
                    }
                }
                Joined::Parked(parked) => return Ok(Came::Parked(parked)),
                other => panic!("{other:?}"),
            }
        }
    }
}

const SOON: Duration = Duration::from_secs(4);

async fn unparked(parked: Box<Parked>) -> Unparked {
    timeout(Duration::from_secs(10), parked.wait()).await.expect("it hears")
}

#[tokio::test]
async fn spares_wait_until_the_job_is_done() {
    let job = Job::new();
    let came = timeout(SOON, async {
        tokio::join!(job.lead(None), job.join(1), job.join(2), job.join(3))
    });
    let (zero, one, two, three) = came.await.expect("nobody is awaited any more");
    let (mut zero, agreed) = zero.expect("agreed");
    let (mut one, of_one) = one.expect("agreed").seated();
    assert_eq!((agreed.seats.as_slice(), &agreed), (&[0, 1][..], &of_one));
    let parked = [two.expect("parked").parked(), three.expect("parked").parked()];
    // The questions of the job go to nodes with seats only.
    assert_eq!(zero.questions().nodes(), 2);
    zero.done();
    one.done();
    assert_eq!(verdict(&mut zero).await, SessionEvent::AllDone);
    assert_eq!(verdict(&mut one).await, SessionEvent::AllDone);
    for parked in parked {
        assert_eq!(unparked(parked).await, Unparked::AllDone);
    }
}

#[tokio::test]
async fn spare_takes_the_seat_of_a_lost_node_at_once() {
    let mut job = Job::new();
    let again = Again { attempt: 1, pause: 0, tally: Tally::default() };
    let (zero, one, two, three) =
        tokio::join!(job.lead(Some(again)), job.join(1), job.join(2), job.join(3));
    let (mut zero, _) = zero.expect("agreed");
    let parked = [two.expect("parked").parked(), three.expect("parked").parked()];
    // Node 1 dies.
    drop(one.expect("agreed").seated());
    let SessionEvent::Verdict { cause, again: said } = verdict(&mut zero).await else {
        panic!("no verdict")
    };
    assert_eq!((cause.node, cause.loss, said), (1, Some(Loss::Died), Some(again)));
    for parked in parked {
        let Unparked::Verdict { cause, again: said } = unparked(parked).await else {
            panic!("no verdict")
        };
        assert_eq!((cause.node, said), (1, Some(again)));
    }
    zero.close().await;
    (job.lost, job.returning, job.avoided, job.attempt) = (vec![1], vec![0], vec![1], 1);
    let came = timeout(SOON, async { tokio::join!(job.lead(None), job.join(2), job.join(3)) });
    let (zero, two, three) = came.await.expect("a lost node is not awaited");
    let (zero, agreed) = zero.expect("agreed");
    assert_eq!(agreed.seats, [0, 2]);
    let (two, three) = (two.expect("agreed").seated(), three.expect("parked").parked());
    // The node that returns while the job runs finds its seat taken.
    let returned = timeout(SOON, job.join(1)).await.expect("it parks").expect("parked").parked();
    drop((zero, two, three, returned));
}

#[tokio::test]
async fn parked_node_that_leaves_ends_nothing() {
    let job = Job::new();
    let (zero, one, two, three) =
        tokio::join!(job.lead(None), job.join(1), job.join(2), job.join(3));
    let (mut zero, mut one) = (zero.expect("agreed").0, one.expect("agreed").seated().0);
    drop((two, three));
    let early = timeout(Duration::from_millis(500), zero.next_event()).await;
    assert!(early.is_err(), "{early:?}");
    zero.done();
    one.done();
    assert_eq!(verdict(&mut one).await, SessionEvent::AllDone);
}

/// The verdict of a job that ends reaches the spares as well.
#[tokio::test]
async fn failure_without_another_attempt_ends_the_spares() {
    let job = Job::new();
    let (zero, one, two, three) =
        tokio::join!(job.lead(None), job.join(1), job.join(2), job.join(3));
    let (_zero, one) = (zero.expect("agreed").0, one.expect("agreed").seated().0);
    one.failed(failure(1, now(), true));
    for parked in [two.expect("parked").parked(), three.expect("parked").parked()] {
        let Unparked::Verdict { cause, again } = unparked(parked).await else {
            panic!("no verdict")
        };
        assert_eq!((cause.node, again), (1, None));
    }
}

#[tokio::test]
async fn node_that_cannot_take_part_is_done_without() {
    let mut job = Job::new();
    job.lost = vec![3];
    let refusal = Refusal::new(Id::ShmSize, Text::same("64 MiB"), Text::same(""));
    let host = Host::replayed("/", BTreeMap::new());
    let (config, hosts_name) = (job.config(1), "host-1");
    let came = timeout(SOON, async {
        tokio::join!(job.lead(None), job.join(2), decline(&host, &config, hosts_name, &refusal))
    });
    let (zero, two, declined) = came.await.expect("node 1 is not awaited");
    assert_eq!(declined, Declined::Told);
    assert_eq!(zero.expect("agreed").1.seats, [0, 2]);
    two.expect("agreed").seated();

    // With a third one nobody is left for the second seat.
    let mut job = Job::new();
    job.lost = vec![2, 3];
    let config = job.config(1);
    let (zero, _) = tokio::join!(job.lead(None), decline(&host, &config, hosts_name, &refusal));
    assert_eq!(zero.expect_err("refused").id, Id::MusterDeclined);
}

/// A job that has run is not ended for a newcomer.
#[tokio::test]
async fn newcomer_that_does_not_fit_is_refused_alone() {
    let mut job = Job::new();
    (job.attempt, job.lost) = (1, vec![3]);
    let stranger = NodeSummary { engine: settings::Engine::Torchrun, ..job.summary(2) };
    let came = timeout(SOON, async {
        tokio::join!(job.lead(None), job.join(1), job.join_as(job.config(2), stranger.clone()))
    });
    let (zero, one, two) = came.await.expect("it is not awaited");
    assert_eq!(zero.expect("agreed").1.seats, [0, 1]);
    one.expect("agreed").seated();
    assert_eq!(two.expect_err("refused").id, Id::MusterEngine);
    // Before the first attempt the same is a mistake of the whole job.
    let job = Job::new();
    let (zero, _, two) =
        tokio::join!(job.lead(None), job.join(1), job.join_as(job.config(2), stranger));
    assert_eq!(zero.expect_err("refused").id, Id::MusterEngine);
    assert_eq!(two.expect_err("refused").id, Id::MusterEngine);
}

/// Of two launchers with the number of one node, the one of the last attempt goes on, whichever comes first.
#[tokio::test]
async fn second_launcher_of_a_node_is_refused_alone() {
    for is_first in [true, false] {
        let job = Job { attempt: 1, lost: vec![2, 3], ..Job::new() };
        let seating = Seating { held: Some(1), ..job.config(1).seating };
        let config = Config { seating, ..job.config(1) };
        let own = NodeSummary { held: Some(1), ..job.summary(1) };
        // Node 3 holds the agreement up until both have come.
        let later =
            |is_later: bool| tokio::time::sleep(Duration::from_millis(300 * u64::from(is_later)));
        let holder = async {
            later(!is_first).await;
            job.join_as(config, own).await
        };
        let other = async {
            later(is_first).await;
            job.join(1).await
        };
        let lead = async {
            let config = Config {
                seating: Seating { lost: [2].into(), ..job.config(0).seating },
                ..job.config(0)
            };
            let gathered = gather(&config, job.summary(0), &mut |_| {}).await.expect("gathered");
            let Assembly::All(gathered) = gathered else { panic!("alone") };
            let agreed = Agreement { attempt: 1, ..agreement(&gathered, job.master_port) };
            gathered
                .agree(agreed, (Box::new(|_, _, _| None), Tally::default()), &mut |_| {})
                .await
                .expect("agreed")
        };
        let three = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            job.join(3).await
        };
        let came = async { tokio::join!(lead, holder, other, three) };
        let (_zero, holder, other, three) =
            timeout(Duration::from_secs(10), came).await.expect("in time");
        assert_eq!(holder.expect("agreed").seated().1.seats, [0, 1]);
        assert_eq!(other.expect_err("refused").id, Id::MusterDuplicate, "{is_first}");
        three.expect("parked").parked();
    }
}

/// Who cannot take part learns it at once, and a second launcher of a node that runs waits for the end of the first.
#[tokio::test]
async fn newcomers_to_a_running_job_are_told() {
    let job = Job::new();
    let (zero, one, two, three) =
        tokio::join!(job.lead(None), job.join(1), job.join(2), job.join(3));
    let (_zero, one) = (zero.expect("agreed"), one.expect("agreed").seated());
    drop((two, three));
    let stranger = NodeSummary { engine: settings::Engine::Torchrun, ..job.summary(2) };
    let refused = timeout(SOON, job.join_as(job.config(2), stranger)).await.expect("told");
    assert_eq!(refused.expect_err("refused").id, Id::MusterEngine);
    let other = Config { nnodes: 3, ..job.config(2) };
    let refused = timeout(SOON, job.join_as(other, job.summary(2))).await.expect("told");
    assert_eq!(refused.expect_err("refused").id, Id::MusterNnodes);
    let second = timeout(Duration::from_secs(2), job.join(1)).await;
    assert!(second.is_err(), "{second:?}");
    let impatient = Config { wait_timeout: Duration::from_secs(1), ..job.config(1) };
    let second = job.join_as(impatient, job.summary(1)).await.expect_err("given up");
    assert!(second.text.en.contains("two nodes claim to be node 1"), "{second:?}");
    drop(one);
}

/// A node that refused and came again whole is there.
#[tokio::test]
async fn node_that_comes_again_counts_again() {
    let job = Job::new();
    let refusal = Refusal::new(Id::ShmSize, Text::same("64 MiB"), Text::same(""));
    let host = Host::replayed("/", BTreeMap::new());
    let declines = async |node: u32| {
        let config = job.config(node);
        assert_eq!(decline(&host, &config, "host", &refusal).await, Declined::Told);
    };
    let others = async {
        declines(3).await;
        declines(2).await;
        tokio::join!(job.join(3), async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            declines(1).await;
        })
    };
    let came = timeout(SOON, async { tokio::join!(job.lead(None), others) });
    let (zero, (three, ())) = came.await.expect("nobody else is awaited");
    assert_eq!(zero.expect("agreed").1.seats, [0, 3]);
    three.expect("agreed").seated();
}

/// Nodes that may still come are awaited for a moment, and never beyond the time of the whole wait.
#[tokio::test]
async fn last_call_ends_with_the_wait() {
    let job = Job::new();
    let zero = async {
        let config = Config { wait_timeout: Duration::from_secs(1), ..job.config(0) };
        let mut said = Vec::new();
        let gathered = gather(&config, job.summary(0), &mut |line| said.push(line.en)).await;
        let Assembly::All(gathered) = gathered.expect("enough are there") else { panic!("alone") };
        assert_eq!(gathered.seats, [0, 3]);
        let enough = "2 nodes have arrived, which is enough for 2 seats; waiting a moment";
        assert!(said.iter().all(|line: &Cow<'_, str>| line.starts_with(enough)), "{said:?}");
    };
    let three = async {
        let given_up = timeout(SOON, job.join(3)).await;
        assert!(matches!(given_up, Err(_) | Ok(Err(_))), "{given_up:?}");
    };
    timeout(Duration::from_secs(10), async { tokio::join!(zero, three) }).await.expect("in time");
}

/// A spare that never came, and a node that was lost an attempt ago.
#[tokio::test]
async fn nodes_that_did_not_meet_last_are_not_awaited() {
    let mut job = Job::new();
    (job.returning, job.met, job.attempt) = (vec![0], vec![(0, 0), (2, 2)], 1);
    let came = timeout(SOON, async { tokio::join!(job.lead(None), job.join(2)) });
    let (zero, two) = came.await.expect("nobody else is awaited");
    assert_eq!(zero.expect("agreed").1.seats, [0, 2]);
    two.expect("agreed").seated();
}

/// Any other node is better than one that failed by itself.
#[tokio::test]
async fn node_that_did_not_meet_last_may_replace_a_bad_one() {
    let mut job = Job::new();
    (job.returning, job.met, job.attempt) = (vec![0, 2], vec![(0, 0), (2, 2)], 1);
    job.avoided = vec![2];
    let late = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        tokio::join!(job.join(1), job.join(3))
    };
    let (zero, _, (one, three)) = tokio::join!(job.lead(None), job.join(2), late);
    assert_eq!(zero.expect("agreed").1.seats, [0, 1]);
    one.expect("agreed").seated();
    three.expect("parked").parked();
}

#[tokio::test]
async fn other_count_of_spares_is_refused() {
    let job = Job::new();
    let fewer = NodeSummary { spares: 1, ..job.summary(1) };
    let (zero, one) = tokio::join!(job.lead(None), job.join_as(job.config(1), fewer));
    assert_eq!(zero.expect_err("refused").id, Id::MusterNnodes);
    assert_eq!(one.expect_err("refused").id, Id::MusterNnodes);
}
