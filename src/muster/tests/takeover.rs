//! Tests of jobs whose leader is lost: another node leads the next attempt.

use std::collections::BTreeMap;

use tokio::time::{Instant, timeout};

use super::*;
use crate::protocol::{Cause, FromNode0};

/// One launcher of a job with two seats.
struct Launcher {
    config: Config,
    summary: NodeSummary,
    host: Arc<Host>,
}

/// Its part in an attempt.
enum Part {
    Seated(Session, Agreement),
    Parked(Box<Parked>),
    Elsewhere(Option<(u32, std::net::SocketAddr)>),
}

impl Launcher {
    fn new(node: u32, port: u16) -> Launcher {
        Launcher::of(node, 1, port)
    }

    fn of(node: u32, spares: u32, port: u16) -> Launcher {
        let host = Arc::new(Host::replayed("/", BTreeMap::new()));
        let seating = Seating { spares, ..Seating::default() };
        let mut config = Config { seating, ..config(node, 2, port) };
        let summary = NodeSummary { spares, ..summary(node, 2) };
        config.succession = Some(config.succession_of(&host, &summary.hostname).expect("a port"));
        Launcher { config, summary, host }
    }

    fn succession(&self) -> &Succession {
        self.config.succession.as_ref().expect("each has one")
    }

    /// Takes part in attempt `number`, led by this node, or by another one there.
    async fn part(
        &mut self,
        number: u32,
        found: Option<(u32, Option<std::net::SocketAddr>)>,
    ) -> Part {
        let again = move || -> Decide {
            let again = Again { attempt: number + 1, pause: 0, tally: Tally::default() };
            Box::new(move |_: &mut Cause, _, _| Some(again))
        };
        self.summary.attempt = number;
        (self.config.leader, self.config.at) = match found {
            None => (self.config.node, None),
            Some((leader, at)) => (leader, at),
        };
        if let Some(last) = self.succession().electorate() {
            self.config.seating.may_return(&last, number);
        }
        if found.is_none() {
            let own = self.summary.clone();
            let gathered = match gather(&self.config, own, &mut |_| {}).await.expect("no refusal") {
                Assembly::All(gathered) => gathered,
                Assembly::Elsewhere(found) => return Part::Elsewhere(found),
                Assembly::Alone(why) => panic!("{why:?}"),
            };
            let agreed = Agreement { attempt: number, ..agreement(&gathered, port()) };
            let decide = (again(), Tally::default());
            return match gathered.agree(agreed.clone(), decide, &mut |_| {}).await {
                Ok(Settled::Session(session)) => Part::Seated(session, agreed),
                Ok(Settled::Lost(_)) => Part::Elsewhere(None),
                Err(refusal) => panic!("{refusal:?}"),
            };
        }
        let (config, summary) = (&self.config, &self.summary);
        match join(&self.host, config, summary, None, &mut |_| {}).await.expect("no refusal") {
            Joined::Offer(offer) => {
                let agreed = offer.agreement.clone();
                match offer.accept(Some(again())).await.expect("no refusal") {
                    Accepted::Session(session) => Part::Seated(session, agreed),
                    _ => Part::Elsewhere(None),
                }
            }
            Joined::Parked(parked) => Part::Parked(parked),
            other => panic!("{other:?}"),
        }
    }

    /// Takes part in the attempt that follows the loss of its leader.
    async fn next(&mut self, number: u32) -> Part {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let found = self.succession().seek(deadline).await.expect("somebody leads");
            let found = match found {
                Found::Me => None,
                Found::Other { leader, at } => Some((leader, Some(at))),
            };
            match self.part(number, found).await {
                Part::Elsewhere(_) => {}
                part => return part,
            }
        }
    }
}

impl Part {
    fn seated(self) -> (Session, Agreement) {
        match self {
            Part::Seated(session, agreed) => (session, agreed),
            Part::Parked(_) => panic!("it has no seat"),
            Part::Elsewhere(found) => panic!("{found:?} leads"),
        }
    }

    fn parked(self) -> Box<Parked> {
        match self {
            Part::Parked(parked) => parked,
            _ => panic!("it waits for no seat"),
        }
    }
}

/// The first attempt of nodes 0 and 1, for whose seats node 2 waits.
async fn begun() -> ([Launcher; 3], [Session; 2], Box<Parked>) {
    let port = port();
    let [mut zero, mut one, mut two] = [0, 1, 2].map(|node| Launcher::new(node, port));
    let platform = Some((0, None));
    let (of_zero, of_one, of_two) =
        tokio::join!(zero.part(0, None), one.part(0, platform), two.part(0, platform));
    let sessions = [of_zero.seated().0, of_one.seated().0];
    ([zero, one, two], sessions, of_two.parked())
}

async fn verdict(session: &mut Session) -> (Cause, Option<Again>) {
    loop {
        match timeout(Duration::from_secs(20), session.next_event()).await.expect("in time") {
            SessionEvent::Verdict { cause, again } => return (*cause, again),
            SessionEvent::Stop => {}
            SessionEvent::AllDone => panic!("nothing is done"),
        }
    }
}

#[tokio::test]
async fn survivors_of_the_leader_go_on() {
    let ([zero, mut one, mut two], [of_zero, mut of_one], parked) = begun().await;
    of_zero.die();
    drop(zero);
    let (cause, again) = verdict(&mut of_one).await;
    assert!(cause.node == 0 && cause.loss.is_some(), "{cause:?}");
    assert_eq!(again.map(|again| again.attempt), Some(1));
    of_one.close_to_return().await;
    assert!(matches!(parked.wait().await, Unparked::Lost(_)));
    one.config.seating.lost.insert(0);
    two.config.seating.lost.insert(0);
    let began = Instant::now();
    let (of_one, of_two) = tokio::join!(one.next(1), two.next(1));
    println!("another leader after {:?}", began.elapsed());
    let ((mut of_one, agreed), (mut of_two, same)) = (of_one.seated(), of_two.seated());
    assert_eq!(agreed, same);
    assert_eq!((agreed.attempt, &agreed.seats[..]), (1, &[1, 2][..]));
    // The new leader decides for all.
    of_two.done();
    of_one.done();
    for session in [&mut of_one, &mut of_two] {
        assert_eq!(session.next_event().await, SessionEvent::AllDone);
    }
}

/// Whoever goes on without the leader knows whether another node was lost of which nobody knows whether it still runs.
#[tokio::test]
async fn leader_tells_whether_a_lost_node_may_still_run() {
    let ([_zero, one, _two], [of_zero, of_one], mut parked) = begun().await;
    of_one.die();
    drop(one);
    loop {
        match parked.connection.next().await.expect("it leads") {
            FromNode0::Unsure(is_unsure) => break assert!(is_unsure, "its connection was cut"),
            FromNode0::Verdict { .. } => panic!("it never said so"),
            _ => {}
        }
    }
    drop(of_zero);
}

/// What waits to be read resets the other connections of a launcher that ends, but not this one.
#[tokio::test]
async fn end_of_a_launcher_closes_its_lifeline() {
    let port = port();
    let [zero, one] = [0, 1].map(|node| Launcher::new(node, port));
    let place = std::net::SocketAddr::from(([127, 0, 0, 1], one.succession().port()));
    let line = zero.succession().lifeline(place);
    let is_closed = async || {
        while !line.was_closed() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(Duration::from_millis(500), is_closed()).await.is_err(), "it lives");
    drop(one);
    timeout(Duration::from_secs(10), is_closed()).await.expect("in order");
}

/// Control: one of three has no majority.
#[tokio::test]
async fn one_alone_does_not_go_on() {
    let ([zero, mut one, two], [of_zero, of_one], parked) = begun().await;
    of_zero.die();
    drop((zero, two, parked));
    of_one.close_to_return().await;
    let next = timeout(Duration::from_secs(6), one.next(1)).await;
    assert!(next.is_err(), "it led alone");
}

/// A launcher of node 0 that the platform starts again finds the job that another one leads, and waits for a seat.
#[tokio::test]
async fn fresh_node_0_is_told_who_leads() {
    let ([zero, mut one, mut two], [of_zero, of_one], parked) = begun().await;
    let port = zero.config.port;
    of_zero.die();
    drop((zero, parked));
    of_one.close_to_return().await;
    let (of_one, of_two) = tokio::join!(one.next(1), two.next(1));
    let _sessions = (of_one.seated(), of_two.seated());
    let mut fresh = Launcher::new(0, port);
    let told = match timeout(Duration::from_secs(10), fresh.part(0, None)).await.expect("told") {
        Part::Elsewhere(found) => found.expect("it is told where"),
        _ => panic!("it began a job of its own"),
    };
    assert_eq!(told.0, one.config.node);
    // What listens at the address of the job until then holds it for a while.
    let held = loop {
        if let Ok(held) = std::net::TcpListener::bind(("0.0.0.0", port)) {
            break held;
        }
        tokio::task::yield_now().await;
    };
    let _parked = fresh.part(0, Some((told.0, Some(told.1)))).await.parked();
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(held);
    // From there it tells those that look for the job.
    let open = async {
        while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(10), open).await.expect("it listens");
}

/// Two that were elected one after the other may both leave the lead to the other one: who follows one of them must hear that.
#[tokio::test]
async fn leader_that_gathers_no_more_is_followed_no_more() {
    let ([_zero, one, two], _sessions, _parked) = begun().await;
    let gathers = port();
    one.succession().gathers(gathers);
    let from = std::net::SocketAddr::from(([127, 0, 0, 1], gathers));
    let moved = |of| timeout(Duration::from_secs(of), two.succession().until_moved(1, from));
    assert!(moved(7).await.is_err(), "it gathers");
    one.succession().look();
    assert_eq!(moved(10).await, Ok(None));
}

/// A voter that is lost while the attempt runs is replaced by a node that had no vote, so the loss of the leader, as a
/// second voter, leaves a majority.
#[tokio::test]
async fn others_vote_in_place_of_those_that_are_lost() {
    let port = port();
    let [mut zero, mut one, mut two, mut three] =
        [0, 1, 2, 3].map(|node| Launcher::of(node, 2, port));
    let platform = Some((0, None));
    let (of_zero, of_one, of_two, of_three) = tokio::join!(
        zero.part(0, None),
        one.part(0, platform),
        two.part(0, platform),
        three.part(0, platform)
    );
    let (of_zero, mut of_one) = (of_zero.seated().0, of_one.seated().0);
    let (of_two, waits) = (of_two.parked(), tokio::spawn(of_three.parked().wait()));
    assert_eq!(three.succession().last().map(|last| last.votes), Some(false));
    drop((of_two, two));
    let renewed = async {
        let has_it =
            |one: &Launcher| one.succession().electorate().is_some_and(|it| it.revision > 0);
        while !(has_it(&zero) && has_it(&one) && has_it(&three)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(20), renewed).await.expect("others vote");
    assert_eq!(three.succession().electorate().map(|it| it.voters), Some(vec![0, 1, 3]));
    assert_eq!(three.succession().last().map(|last| last.votes), Some(true));
    of_zero.die();
    drop(zero);
    assert_eq!(verdict(&mut of_one).await.1.map(|again| again.attempt), Some(1));
    of_one.close_to_return().await;
    assert!(matches!(waits.await, Ok(Unparked::Lost(_))));
    one.config.seating.lost.extend([0, 2]);
    three.config.seating.lost.extend([0, 2]);
    let (of_one, of_three) = tokio::join!(one.next(1), three.next(1));
    let ((_, agreed), (_, same)) = (of_one.seated(), of_three.seated());
    assert_eq!(agreed, same);
    assert_eq!((agreed.attempt, &agreed.seats[..]), (1, &[1, 3][..]));
}

/// Two seats, three spares: the leader dies, and so does the other node with a seat, unless it only stays away.
async fn both_seats_are_lost(dies: bool) -> bool {
    let port = port();
    let mut all = [0, 1, 2, 3, 4].map(|node| Launcher::of(node, 3, port));
    let [zero, one, two, three, four] = &mut all;
    let platform = Some((0, None));
    let (of_zero, of_one, of_two, of_three, of_four) = tokio::join!(
        zero.part(0, None),
        one.part(0, platform),
        two.part(0, platform),
        three.part(0, platform),
        four.part(0, platform),
    );
    let ((of_zero, _), (of_one, _)) = (of_zero.seated(), of_one.seated());
    let parked = [of_two.parked(), of_three.parked(), of_four.parked()];
    let [zero, one, mut two, mut three, mut four] = all;
    let held = async {
        while [&two, &three, &four]
            .iter()
            .any(|one| one.succession().holds_lifelines_to() != [0, 1])
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(10), held).await.expect("each voter holds them");
    of_zero.die();
    drop(zero);
    for parked in parked {
        assert!(matches!(parked.wait().await, Unparked::Lost(_)));
    }
    of_one.close_to_return().await;
    let stays = (!dies).then_some(one);
    for left in [&mut two, &mut three, &mut four] {
        left.config.seating.lost.insert(0);
    }
    let next = async { tokio::join!(two.next(1), three.next(1), four.next(1)) };
    let is_agreed = timeout(Duration::from_secs(15), next).await.is_ok();
    drop(stays);
    is_agreed
}

#[tokio::test]
async fn node_that_dies_with_the_leader_is_not_awaited() {
    assert!(both_seats_are_lost(true).await, "its lifelines prove it");
}

/// Control: nobody knows whether it runs ranks.
#[tokio::test]
async fn node_that_stays_away_after_the_leader_is_awaited() {
    assert!(!both_seats_are_lost(false).await, "it lives");
}
