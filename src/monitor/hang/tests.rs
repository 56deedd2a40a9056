//! Judgements from the stacks alone. Records are tested with real ranks.

use super::judge::{Judgement, judge};
use super::words::Kind;
use super::{DeadChild, NodeEvidence, RankEvidence};
use crate::watch::{Behind, GpuUse, RasVerdict, Reason, ReasonKind};
use diagnose::stacks::{
    Frame, KernelState, ProcessStacks, PythonStack, RankStacks, Syscall, ThreadStack, Unread,
};
use text::lang::Text;
use text::rank::{GlobalRank, LocalRank};
use verdict::Confidence;

fn frame(place: &str) -> Frame {
    let (file, rest) = place.rsplit_once(':').expect("FILE:LINE function");
    let (line, function) = rest.split_once(' ').expect("a function");
    let line = line.parse().expect("a line");
    Frame { function: function.to_owned(), file: file.to_owned(), line: Some(line), first_line: 1 }
}

fn thread(state: char, frames: &[&str]) -> ThreadStack {
    let kernel =
        KernelState { name: "python".to_owned(), state, wchan: None, cpu_ms: 0, syscall: None };
    let python = PythonStack {
        interpreter: 0,
        holds_gil: Some(false),
        frames: frames.iter().map(|place| frame(place)).collect(),
        cut: false,
        moving: false,
        unread: None,
    };
    ThreadStack { tid: Some(1), kernel: Some(kernel), python: Some(python) }
}

fn process(threads: Vec<ThreadStack>) -> ProcessStacks {
    ProcessStacks {
        pid: 100,
        name: "python".to_owned(),
        command: "python train.py".to_owned(),
        python: Some("3.11.7".to_owned()),
        unread: None,
        threads,
        threads_left_out: 0,
    }
}

fn rank(number: u32, threads: Vec<ThreadStack>, children: Vec<ProcessStacks>) -> RankEvidence {
    let stacks = RankStacks {
        rank: GlobalRank(number),
        local_rank: LocalRank(number),
        process: process(threads),
        children,
        children_left_out: 0,
    };
    RankEvidence { stacks: Some(stacks), ..RankEvidence::of(GlobalRank(number)) }
}

const REDUCE: &[&str] = &[
    "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:3000 all_reduce",
    "/job/train.py:50 step",
];

fn waits(number: u32) -> RankEvidence {
    rank(number, vec![thread('S', REDUCE)], Vec::new())
}

fn judged(ranks: Vec<RankEvidence>) -> Judgement {
    let world = u32::try_from(ranks.len()).expect("few");
    judge(&[node(world, ranks)], &[], true)
}

fn node(world: u32, ranks: Vec<RankEvidence>) -> NodeEvidence {
    NodeEvidence {
        node: 0,
        world,
        ranks,
        traffic: false,
        is_cut: false,
        ras: None,
        reasons: Vec::new(),
        gpus: Vec::new(),
        moved_ms: None,
        took_ms: 0,
    }
}

/// The first culprit: rank, kind, line.
fn first(judgement: &Judgement) -> Option<(Option<u32>, Kind, String)> {
    let Judgement::Hangs(hang) = judgement else { return None };
    let first = hang.culprits.first()?;
    let frame = first.frame.as_ref().map(ToString::to_string);
    Some((first.rank, first.kind, frame.unwrap_or_default()))
}

const DATA: &str = "/v/lib/python3.11/site-packages/torch/utils/data/dataloader.py:1200 _next_data";

#[test]
fn rank_outside_the_collective_is_the_culprit() {
    let mine = "/job/data.py:7 load";
    let worker =
        process(vec![thread('S', &["/job/dataset.py:9 __getitem__", "/job/train.py:40 main"])]);
    let idle = process(vec![thread(
        'S',
        &[
            "/usr/lib/python3.11/selectors.py:415 select",
            "/usr/lib/python3.11/multiprocessing/connection.py:930 wait",
            "/job/train.py:40 main",
        ],
    )]);
    let in_data = || vec![thread('S', &[DATA, "/job/train.py:40 main"])];
    let dead = RankEvidence {
        dead_children: vec![DeadChild { pid: 9, name: "pt_data_worker".to_owned() }],
        ..rank(1, in_data(), vec![idle.clone()])
    };
    let lock = "/usr/lib/python3.11/threading.py:170 acquire";
    let in_disk = || rank(1, vec![thread('D', &[mine])], Vec::new());
    let stuck = RankEvidence { stuck: true, ..in_disk() };
    let event = "/usr/lib/python3.11/threading.py:629 wait";
    let rows = [
        (rank(1, vec![thread('S', &[mine])], Vec::new()), Kind::NeverEntered, "data.py:7"),
        (rank(1, in_data(), vec![idle, worker]), Kind::NeverEntered, "dataset.py:9"),
        (dead, Kind::WorkerDied, "train.py:40"),
        (rank(1, vec![thread('T', &[mine])], Vec::new()), Kind::Stopped, "data.py:7"),
        (stuck, Kind::BlockedIo, "data.py:7"),
        (in_disk(), Kind::NeverEntered, "data.py:7"),
        (rank(1, vec![thread('S', &[lock, mine])], Vec::new()), Kind::Deadlock, "data.py:7"),
        (rank(1, vec![thread('S', &[event, mine])], Vec::new()), Kind::NeverEntered, "data.py:7"),
        (RankEvidence::ended(GlobalRank(1), 5), Kind::Ended, ""),
        (RankEvidence::of(GlobalRank(1)), Kind::Unknown, ""),
    ];
    for (rank, kind, line) in rows {
        let judgement = judged(vec![waits(0), rank, waits(2)]);
        let Judgement::Hangs(hang) = &judgement else { panic!("{kind:?}: {judgement:?}") };
        assert_eq!(first(&judgement), Some((Some(1), kind, line.to_owned())));
        assert_eq!(hang.waiting.get(&0), Some(&vec![0, 2]), "{kind:?}");
        for culprit in &hang.culprits {
            assert_ne!(culprit.text.en, culprit.text.zh, "{}", culprit.text.en);
        }
    }
}

#[test]
fn busy_or_debugged_rank_is_no_hang() {
    let busy = RankEvidence {
        busy: true,
        ..rank(1, vec![thread('R', &["/job/eval.py:3 run"])], Vec::new())
    };
    let debugged =
        rank(1, vec![thread('S', &["/usr/lib/python3.11/pdb.py:200 interaction"])], Vec::new());
    let traced = rank(1, vec![thread('t', &["/job/eval.py:3 run"])], Vec::new());
    let serves = rank(
        1,
        vec![thread(
            'S',
            &[
                "/usr/lib/python3.11/selectors.py:460 select",
                "/usr/lib/python3.11/asyncio/base_events.py:1898 _run_once",
            ],
        )],
        Vec::new(),
    );
    for rank in [busy, debugged, traced, serves] {
        let judgement = judged(vec![waits(0), rank]);
        assert!(matches!(judgement, Judgement::HeldUp { .. }), "{judgement:?}");
    }
    // Torch is about to end the wait, so the rank at work is named after all.
    let busy = RankEvidence {
        busy: true,
        ..rank(1, vec![thread('R', &["/job/eval.py:3 run"])], Vec::new())
    };
    assert_eq!(
        first(&judge(&[node(2, vec![waits(0), busy])], &[], false)).map(|(_, kind, _)| kind),
        Some(Kind::NeverEntered)
    );
}

#[test]
fn ranks_that_just_came_are_no_hang() {
    const MEETS: &str = "/v/lib/python3.11/site-packages/torch/distributed/rendezvous.py:270 _env";
    let inside = record(&[("a", "gloo:all_reduce", false)]);
    // Every combination of these states for three ranks, all of which wait.
    let state = |number: u32, which: u32| match which {
        0 => waits(number),
        1 => rank(number, vec![thread('S', &[REDUCE[0], "/job/train.py:60 evaluate"])], Vec::new()),
        2 => rank(number, vec![thread('S', &[MEETS, "/job/train.py:9 main"])], Vec::new()),
        _ => RankEvidence {
            records: vec![inside.clone()],
            read_ns: 1_700_000_100_000_000_000,
            ..waits(number)
        },
    };
    let mut hangs = 0;
    for code in 0..4_u32.pow(3) {
        let all = |came: u32| -> Vec<RankEvidence> {
            let of = |number: u32| RankEvidence {
                may_have_come: came >> number & 1 == 1,
                ..state(number, code / 4_u32.pow(number) % 4)
            };
            (0..3).map(of).collect()
        };
        // The control: all have waited for long.
        let Judgement::Hangs(hang) = judged(all(0)) else { continue };
        // A rank that is not in the record of the others is missing, whatever it does.
        if hang.culprits.iter().any(|one| ![Kind::Link, Kind::Deadlock].contains(&one.kind)) {
            continue;
        }
        for came in 1..8 {
            let judgement = judged(all(came));
            assert!(
                matches!(&judgement, Judgement::HeldUp { seen: None, .. }),
                "{code} {came}: {judgement:?}"
            );
            // Torch is about to end the wait.
            let last = judge(&[node(3, all(came))], &[], false);
            assert!(matches!(last, Judgement::Hangs(_)), "{code} {came}: {last:?}");
        }
        hangs += 1;
    }
    assert!(hangs >= 4, "{hangs}");
    // A rank that is elsewhere is awaited by those who just came as well.
    let came = |number| RankEvidence { may_have_come: true, ..waits(number) };
    let away = rank(1, vec![thread('S', &["/job/data.py:7 load"])], Vec::new());
    assert_eq!(
        first(&judged(vec![came(0), away, came(2)])),
        Some((Some(1), Kind::NeverEntered, "data.py:7".to_owned()))
    );
}

#[test]
fn library_being_imported_waits_for_nobody() {
    let at = |more: &[&str]| {
        let inner =
            ["/v/lib/python3.11/site-packages/torch/distributed/nn/functional.py:7 all_gather"];
        let outer = ["/job/train.py:3 <module>"];
        let frames = [&inner, more, &outer].concat();
        judged(vec![
            rank(0, vec![thread('S', &frames)], Vec::new()),
            rank(1, vec![thread('S', &frames)], Vec::new()),
        ])
    };
    let import = [
        "/v/lib/python3.11/site-packages/torch/distributed/__init__.py:40 <module>",
        "<frozen importlib._bootstrap_external>:940 exec_module",
    ];
    assert_eq!(at(&import), Judgement::Idle);
    // The controls: no import, and a program that the user's own code imports.
    assert_eq!(first(&at(&[])).map(|(_, kind, _)| kind), Some(Kind::Link));
    let own = ["/job/model.py:9 fit", import[1]];
    assert_eq!(first(&at(&own)).map(|(_, kind, _)| kind), Some(Kind::Link));
}

#[test]
fn job_without_waiting_ranks_reports_only_deadlocks() {
    let sleeps = |number| rank(number, vec![thread('S', &["/job/poll.py:3 run"])], Vec::new());
    assert_eq!(judged(vec![sleeps(0), sleeps(1)]), Judgement::Idle);
    let lock = rank(
        1,
        vec![thread('S', &["/usr/lib/python3.11/threading.py:170 acquire", "/job/a.py:7 f"])],
        Vec::new(),
    );
    let judgement = judged(vec![sleeps(0), lock]);
    assert_eq!(first(&judgement), Some((Some(1), Kind::Deadlock, "a.py:7".to_owned())));
}

fn behind(number: u32, op: &str) -> Behind {
    Behind {
        rank: GlobalRank(number),
        communicator: "0xae94".to_owned(),
        op: op.to_owned(),
        count: 40,
        most: 42,
        of: 3,
    }
}

/// Judges with the verdict of NCCL, which both nodes report.
fn judged_with(ranks: [RankEvidence; 3], ras: RasVerdict) -> Judgement {
    let [first, second, third] = ranks;
    let own = node(3, vec![first, second]);
    let other = NodeEvidence { node: 1, ranks: vec![third], ..own.clone() };
    let nodes = [own, other].map(|node| NodeEvidence { ras: Some(ras.clone()), ..node });
    judge(&nodes, &[], true)
}

fn kinds(judgement: &Judgement) -> Vec<String> {
    let Judgement::Hangs(hang) = judgement else { panic!("{judgement:?}") };
    let name = |kind| serde_json::to_value(kind).expect("a name");
    hang.signs.iter().map(|sign| name(sign.kind).as_str().expect("text").to_owned()).collect()
}

#[test]
fn nccl_ras_names_the_culprit_without_other_evidence() {
    let all_wait = || [waits(0), waits(1), waits(2)];
    let none = RasVerdict::default;
    let late = RasVerdict { behind: vec![behind(2, "AllReduce")], ..none() };
    let dead = RasVerdict { dead: [GlobalRank(1)].into(), ..none() };
    let silent = RasVerdict { unresponsive: [GlobalRank(1)].into(), ..none() };
    let several =
        RasVerdict { behind: vec![behind(1, "AllReduce"), behind(2, "AllGather")], ..none() };
    let line = "train.py:50";
    for (ras, rank, kind, line, signs) in [
        (none(), None, Kind::Link, "", &[][..]),
        (late, Some(2), Kind::NeverEntered, line, &["ras_behind"]),
        (dead, Some(1), Kind::Link, line, &["ras_dead"]),
        (silent, Some(1), Kind::Link, line, &["ras_unresponsive"]),
        (several, None, Kind::Link, "", &["ras_behind", "ras_behind"]),
    ] {
        let judgement = judged_with(all_wait(), ras);
        assert_eq!(first(&judgement), Some((rank, kind, line.to_owned())), "{judgement:?}");
        assert_eq!(kinds(&judgement), signs);
    }
}

#[test]
fn nccl_ras_does_not_overrule_observed_evidence() {
    let elsewhere = rank(1, vec![thread('S', &["/job/data.py:7 load"])], Vec::new());
    let ras = RasVerdict {
        dead: [GlobalRank(2)].into(),
        behind: vec![behind(0, "AllReduce")],
        ..RasVerdict::default()
    };
    let judgement = judged_with([waits(0), elsewhere, waits(2)], ras.clone());
    assert_eq!(first(&judgement), Some((Some(1), Kind::NeverEntered, "data.py:7".to_owned())));
    assert_eq!(kinds(&judgement), ["ras_dead", "ras_behind"]);
    // A rank at work stays at work, and a rank that has ended is not missing.
    let busy = RankEvidence {
        busy: true,
        ..rank(1, vec![thread('R', &["/job/eval.py:3 run"])], Vec::new())
    };
    let judgement = judged_with([waits(0), busy, waits(2)], ras);
    assert!(matches!(judgement, Judgement::HeldUp { .. }), "{judgement:?}");
    let ras = RasVerdict { dead: [GlobalRank(2)].into(), ..RasVerdict::default() };
    let judgement = judged_with([waits(0), waits(1), RankEvidence::ended(GlobalRank(2), 5)], ras);
    assert_eq!(first(&judgement).map(|(rank, kind, _)| (rank, kind)), Some((Some(2), Kind::Ended)));
    assert_eq!(kinds(&judgement), [""; 0]);
}

#[test]
fn only_reasons_concerning_the_culprit_are_shown() {
    let reason = |kind, ranks: &[u32]| Reason {
        kind,
        ranks: ranks.iter().copied().map(GlobalRank).collect(),
        gpu: None,
        value: 1.0,
        text: Text::same("a reason"),
    };
    let gpu = |number| GpuUse {
        gpu: number,
        ranks: vec![GlobalRank(number)],
        utilization: 100,
        power: Some((120, 700)),
    };
    let own = NodeEvidence {
        reasons: vec![
            reason(ReasonKind::CpuThrottled, &[1]),
            reason(ReasonKind::MajorFaults, &[0]),
            reason(ReasonKind::HcaErrors, &[]),
        ],
        gpus: vec![gpu(0), gpu(1)],
        ..node(3, vec![waits(0), rank(1, vec![thread('S', &["/job/a.py:7 f"])], Vec::new())])
    };
    let other = NodeEvidence {
        node: 1,
        reasons: vec![reason(ReasonKind::MemoryPressure, &[]), reason(ReasonKind::LinkLost, &[])],
        gpus: Vec::new(),
        ranks: vec![waits(2)],
        ..own.clone()
    };
    let judgement = judge(&[own.clone(), other.clone()], &[], true);
    assert_eq!(kinds(&judgement), ["cpu_throttled", "hca_errors", "gpu_use"]);
    let Judgement::Hangs(hang) = &judgement else { panic!("{judgement:?}") };
    let spins = "node 0: GPU 1 is used 100 % of the time at 120 of 700 W, as by a kernel of NCCL that waits for other ranks";
    assert_eq!(hang.signs[2].text.en, spins);
    // For a link, the link reasons of all nodes are shown.
    let own = NodeEvidence { ranks: vec![waits(0), waits(1)], ..own };
    let judgement = judge(&[own, other], &[], true);
    assert_eq!(kinds(&judgement), ["hca_errors", "link_lost"]);
    // The evidence of a node travels as JSON.
    let sent = NodeEvidence {
        ras: Some(RasVerdict { behind: vec![behind(1, "AllReduce")], ..RasVerdict::default() }),
        reasons: vec![reason(ReasonKind::GpuEcc, &[3])],
        gpus: vec![gpu(1)],
        ..node(1, vec![waits(0)])
    };
    let read: NodeEvidence =
        serde_json::from_slice(&serde_json::to_vec(&sent).expect("JSON")).expect("read");
    assert_eq!(read, sent);
}

/// A rank in a system call, in the kernel for long enough to be called stuck.
fn held(name: &str) -> RankEvidence {
    let mut first = thread('D', &["/job/data.py:7 load"]);
    let syscall =
        Syscall { name: name.to_owned(), arguments: Vec::new(), file: None, caller: None };
    first.kernel = first.kernel.map(|kernel| KernelState { syscall: Some(syscall), ..kernel });
    RankEvidence { stuck: true, drains: true, ..rank(1, vec![first], Vec::new()) }
}

#[test]
fn writing_disk_excuses_only_file_system_calls() {
    for (call, kind) in
        [("fsync", None), ("clone3", Some(Kind::BlockedIo)), ("ioctl", Some(Kind::BlockedIo))]
    {
        let judgement = judged(vec![waits(0), held(call)]);
        assert_eq!(first(&judgement).map(|(_, kind, _)| kind), kind, "{call}: {judgement:?}");
    }
}

#[test]
fn late_stacks_mark_the_hang_as_late() {
    let is_late = |rank: RankEvidence| {
        let judgement = judged(vec![waits(0), rank, waits(2)]);
        let Judgement::Hangs(hang) = &judgement else { panic!("{judgement:?}") };
        assert_eq!(hang.culprits.first().and_then(|one| one.rank), Some(1));
        hang.late
    };
    let mine = || rank(1, vec![thread('S', &["/job/data.py:7 load"])], Vec::new());
    let unread = |why: Unread| {
        let mut rank = mine();
        let stacks = rank.stacks.as_mut().expect("stacks");
        (stacks.process.threads, stacks.process.unread) = (Vec::new(), Some(why));
        rank
    };
    let mut half = mine();
    let stacks = half.stacks.as_mut().expect("stacks");
    let python = stacks.process.threads[0].python.as_mut().expect("python");
    (python.frames, python.unread) = (Vec::new(), Some(Unread::Late));
    assert!(is_late(unread(Unread::Late)) && is_late(half));
    assert!(!is_late(unread(Unread::Gone)) && !is_late(mine()));
}

#[test]
fn ended_rank_is_awaited_by_store_clients() {
    let asks = |number| {
        let thread = thread('S', &["/job/train.py:9 main"]);
        RankEvidence { asks_store: true, ..rank(number, vec![thread], Vec::new()) }
    };
    let ended = RankEvidence::ended(GlobalRank(1), 5);
    let judgement = judged(vec![asks(0), ended, asks(2)]);
    assert_eq!(first(&judgement).map(|(rank, kind, _)| (rank, kind)), Some((Some(1), Kind::Ended)));
    // The key may come from elsewhere: an operator, another job.
    assert_eq!(judged(vec![asks(0), asks(1)]), Judgement::Idle);
}

#[test]
fn messages_without_another_end_are_no_broken_link() {
    let stands_in = |number: u32, call: &str, line: u32| {
        let frames = [
            format!("/v/torch/distributed/distributed_c10d.py:2500 {call}"),
            "/v/torch/distributed/c10d_logger.py:83 wrapper".to_owned(),
            format!("/job/train.py:{line} main"),
        ];
        let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
        rank(number, vec![thread('S', &frames)], Vec::new())
    };
    let kinds = |calls: &[(&str, u32)], is_cut: bool| {
        let ranks = (0..).zip(calls).map(|(rank, (call, line))| stands_in(rank, call, *line));
        let world = u32::try_from(calls.len()).expect("few");
        let node = NodeEvidence { is_cut, ..node(world, ranks.collect()) };
        let judgement = judge(&[node], &[], true);
        let Judgement::Hangs(hang) = judgement else { panic!("{calls:?}: {judgement:?}") };
        let says = hang.culprits.iter().all(|one| one.text.en.contains("other end of a message"));
        let kinds: Vec<_> = hang.culprits.iter().map(|one| one.kind).collect();
        assert_eq!(says, kinds.contains(&Kind::Deadlock), "{:?}", hang.culprits);
        kinds
    };
    let (receives, sends) = (("recv", 9), ("send", 10));
    for calls in [
        &[receives, receives][..],
        &[sends, receives],
        &[receives, ("recv", 10)],
        &[receives, receives, sends],
    ] {
        assert_eq!(kinds(calls, false), vec![Kind::Deadlock; calls.len()], "{calls:?}");
        // The controls: a link that does not carry what was sent, and a collective.
        assert_eq!(kinds(calls, true), [Kind::Link], "{calls:?}");
        let reduces = vec![("all_reduce", 9); calls.len()];
        assert_eq!(kinds(&reduces, false), [Kind::Link], "{calls:?}");
    }
}

/// A thread that sleeps in a futex which this library called.
fn in_futex(tid: i32, caller: &str, frames: &[&str]) -> ThreadStack {
    let mut thread = thread('S', frames);
    let syscall = Syscall {
        name: "futex".into(),
        arguments: Vec::new(),
        file: None,
        caller: Some(caller.to_owned()),
    };
    thread.tid = Some(tid);
    thread.kernel.as_mut().expect("sleeps").syscall = Some(syscall);
    thread
}

#[test]
fn wait_of_torch_is_no_lock() {
    let kinds = |caller: &str| {
        let at =
            |number| rank(number, vec![in_futex(1, caller, &["/job/train.py:9 main"])], Vec::new());
        let Judgement::Hangs(hang) = judged(vec![at(0), at(1)]) else { panic!("{caller}") };
        let first = hang.first().expect("a culprit");
        (first.rank, first.text.en.split(" (").next().unwrap_or_default().to_owned())
    };
    let of_messages = "ranks 0-1 wait for the other end of a message or asynchronous collective in which \
                       no rank takes part";
    for caller in ["libtorch_cpu.so", "libtorch_python.so", "libc10.so"] {
        assert_eq!(kinds(caller), (None, of_messages.to_owned()), "{caller}");
    }
    for caller in ["python3.11", "libpython3.12.so.1.0"] {
        assert_eq!(kinds(caller), (Some(0), "rank 0".to_owned()), "{caller}");
    }
}

#[test]
fn joined_thread_in_a_message_waits_for_ranks() {
    const JOIN: &str = "/usr/lib/python3.11/threading.py:1119 Thread.join";
    const GET: &str = "/usr/lib/python3.11/queue.py:171 get";
    const RECEIVE: &str = "/v/torch/distributed/distributed_c10d.py:2500 recv";
    const SERVE: &str = "/usr/lib/python3.11/socketserver.py:232 serve_forever";
    let is_hang = |waits: &str, other: &[&str]| {
        let at = |number| {
            let main = in_futex(1, "python3.11", &[waits, "/job/train.py:9 main"]);
            let receiver = in_futex(2, "libtorch_cpu.so", &[RECEIVE, "/job/train.py:3 receive"]);
            rank(number, vec![main, receiver, in_futex(3, "python3.11", other)], Vec::new())
        };
        matches!(judged(vec![at(0), at(1)]), Judgement::Hangs(_))
    };
    let idle = [GET, "/job/train.py:5 write"];
    assert!(is_hang(JOIN, &idle));
    assert!(!is_hang(GET, &idle), "a server without requests");
    assert!(is_hang(JOIN, &["/job/train.py:6 beat"]), "what comes is movement");
    assert!(!is_hang(JOIN, &[SERVE, "/job/train.py:6 serve"]), "a server without requests");
}

#[test]
fn rank_that_waits_for_nobody_is_named_first() {
    const RECEIVE: &str = "/v/torch/distributed/distributed_c10d.py:2500 recv";
    let receives = || rank(1, vec![thread('S', &[RECEIVE, "/job/train.py:9 main"])], Vec::new());
    let sleeps = |number| rank(number, vec![thread('S', &["/job/train.py:7 nap"])], Vec::new());
    let judgement = judged(vec![receives(), sleeps(2)]);
    assert_eq!(first(&judgement), Some((Some(2), Kind::NeverEntered, "train.py:7".to_owned())));
    let Judgement::Hangs(hang) = &judgement else { panic!("{judgement:?}") };
    assert!(hang.culprits.iter().all(|one| one.text.en.contains("took part in what")), "{hang:?}");
}

/// Records of gloo 2.15 of two ranks that use the group of all ranks and another one in opposite order.
#[test]
fn opposite_order_of_two_groups_accuses_both_ranks() {
    const REDUCE: &str = "/v/torch/distributed/distributed_c10d.py:3000 all_reduce";
    let waits_in = |number: u32, group: &str, line: &str| {
        let entry = |record: u32, group: &str, seq: u32, done: bool| {
            let name = if group == "0" { "default_pg" } else { "undefined" };
            serde_json::json!({
                "record_id": record, "pg_id": group, "collective_seq_id": seq, "retired": done,
                "state": if done { "completed" } else { "scheduled" },
                "process_group": [group, name], "profiling_name": "gloo:all_reduce",
                "time_created_ns": 1_000_000_000 + i64::from(record),
            })
        };
        let entries = [entry(0, "0", 3, true), entry(1, "1", 3, true), entry(2, group, 4, false)];
        let groups = serde_json::json!({ "": { "name": "", "desc": "", "ranks": "[0, 1]" } });
        let record =
            serde_json::json!({ "version": "2.10", "pg_config": groups, "entries": entries });
        RankEvidence {
            records: vec![record.to_string()],
            read_ns: 90_000_000_000,
            ..rank(number, vec![thread('S', &[REDUCE, line])], Vec::new())
        }
    };
    let judgement = judged(vec![
        waits_in(0, "0", "/job/train.py:13 main"),
        waits_in(1, "1", "/job/train.py:14 main"),
    ]);
    let Judgement::Hangs(hang) = &judgement else { panic!("{judgement:?}") };
    let culprits: Vec<_> = hang.culprits.iter().map(|one| (one.rank, one.kind)).collect();
    assert_eq!(culprits, [(Some(0), Kind::Deadlock), (Some(1), Kind::Deadlock)]);
}

/// Records of gloo: a root has left a broadcast, its others wait in the next collective, and the rank without
/// further input waits in the collective after the epoch.
#[test]
fn outlier_is_the_rank_alone_in_its_group() {
    const BROADCAST: &str = "/v/torch/distributed/distributed_c10d.py:2000 broadcast";
    let entry = |record: u32, group: &str, seq: u32, op: &str, state: &str| {
        serde_json::json!({
            "record_id": record, "pg_id": group, "collective_seq_id": seq, "state": state,
            "process_group": [group, if group == "0" { "default_pg" } else { "" }],
            "profiling_name": format!("gloo:{op}"), "time_created_ns": 1_000_000_000 + i64::from(record),
        })
    };
    let of = |number: u32, line: &str, entries: Vec<serde_json::Value>| {
        let groups =
            [("0", "[0,1,2,3,4,5]"), ("a", "[0,2,4]"), ("b", "[1,3,5]"), ("c", "[0,1,2,3,4,5]")];
        let groups: serde_json::Map<_, _> = groups
            .iter()
            .map(|(name, ranks)| {
                ((*name).to_owned(), serde_json::json!({ "name": name, "ranks": ranks }))
            })
            .collect();
        let record =
            serde_json::json!({ "version": "2.10", "pg_config": groups, "entries": entries });
        let frames = [BROADCAST, line];
        let records = vec![record.to_string()];
        RankEvidence {
            records,
            read_ns: 90_000_000_000,
            ..rank(number, vec![thread('S', &frames)], Vec::new())
        }
    };
    let others = |number| {
        of(
            number,
            "/job/stage.py:105 reduce",
            vec![
                entry(0, "b", 6, "all_reduce", "completed"),
                entry(1, "c", 7, "broadcast", "scheduled"),
            ],
        )
    };
    let ranks = vec![
        of(
            0,
            "/job/stage.py:105 reduce",
            vec![
                entry(0, "c", 6, "all_reduce", "completed"),
                entry(1, "a", 5, "broadcast", "scheduled"),
            ],
        ),
        others(1),
        of(
            2,
            "/job/train.py:22 after",
            vec![
                entry(0, "c", 6, "all_reduce", "completed"),
                entry(1, "0", 3, "broadcast", "scheduled"),
            ],
        ),
        others(3),
        of(
            4,
            "/job/stage.py:106 reduce",
            vec![
                entry(0, "a", 5, "broadcast", "completed"),
                entry(1, "a", 6, "all_reduce", "scheduled"),
            ],
        ),
        others(5),
    ];
    let Judgement::Hangs(hang) = judged(ranks) else { panic!("it stands still") };
    let named: Vec<_> = hang.culprits.iter().map(|one| one.rank).collect();
    assert_eq!(named, [Some(2)], "{hang:?}");
}

/// A record of entries: group, name, whether it has completed.
fn record(entries: &[(&str, &str, bool)]) -> String {
    let entries = entries.iter().enumerate().map(|(number, (group, name, done))| {
        let before = &entries[..number];
        let seq = 1 + before.iter().filter(|(of, ..)| of == group).count();
        serde_json::json!({
            "record_id": number, "pg_id": 0, "process_group": [group, group], "op_id": number,
            "collective_seq_id": seq, "p2p_seq_id": 0, "is_p2p": false, "profiling_name": name,
            "time_created_ns": 1_700_000_000_000_000_000_i64 + i64::try_from(number).expect("few"),
            "input_sizes": [[4]], "input_dtypes": ["Float"], "output_sizes": [[4]], "output_dtypes": ["Float"],
            "state": "scheduled", "retired": done, "timeout_ms": 600_000,
        })
    });
    let entries: Vec<serde_json::Value> = entries.collect();
    let group = |name, ranks| serde_json::json!({ "name": name, "desc": name, "ranks": ranks });
    let config =
        serde_json::json!({ "a": group("a", "[0, 1, 2, 3]"), "b": group("b", "[0, 1, 2, 3]") });
    serde_json::json!({ "version": "2.10", "entries": entries, "pg_config": config, "pg_status": {} })
        .to_string()
}

#[test]
fn link_is_blamed_when_some_left_the_collective() {
    let left = record(&[("a", "gloo:all_reduce", true), ("b", "gloo:broadcast", false)]);
    let inside = record(&[("a", "gloo:all_reduce", false)]);
    let with = |records: &str, rank: RankEvidence| RankEvidence {
        records: vec![records.to_owned()],
        read_ns: 1_700_000_100_000_000_000,
        ..rank
    };
    let job = |last: RankEvidence| {
        judged(vec![with(&left, waits(0)), with(&left, waits(1)), with(&inside, waits(2)), last])
    };
    let Judgement::Hangs(hang) = job(with(&inside, waits(3))) else { panic!("it stands still") };
    let all: Vec<_> = hang.culprits.iter().map(|one| (one.rank, one.kind)).collect();
    assert_eq!(all, [(None, Kind::Link)]);
    assert_eq!(
        (hang.waiting.get(&0), hang.confidence),
        (Some(&vec![0, 1, 2, 3]), Confidence::Likely)
    );
    let collective = hang.culprits[0].collective.as_ref().expect("what they wait in");
    assert_eq!((collective.group.as_str(), collective.seq), ("a", 1));
    // The control: the others wait for a rank that is stopped inside.
    let stopped = with(&inside, rank(3, vec![thread('T', REDUCE)], Vec::new()));
    assert_eq!(first(&job(stopped)), Some((Some(3), Kind::Stopped, "train.py:50".to_owned())));
}

/// The sentence about the only culprit.
fn said(judgement: &Judgement) -> String {
    let Judgement::Hangs(hang) = judgement else { panic!("{judgement:?}") };
    let [one] = hang.culprits.as_slice() else { panic!("{hang:?}") };
    one.text.en.to_string()
}

#[test]
fn user_code_called_by_a_library_decides() {
    const SPAWN: &str = "/usr/lib/python3.11/multiprocessing/process.py:314 _bootstrap";
    const DDP: &str =
        "/v/lib/python3.11/site-packages/torch/nn/parallel/distributed.py:1600 forward";
    const DYNAMO: &str =
        "/v/lib/python3.11/site-packages/torch/_dynamo/eval_frame.py:700 compile_wrapper";
    for library in [DATA, SPAWN, DDP, DYNAMO] {
        let mut first =
            thread('S', &["/job/data.py:6 __getitem__", library, "/job/train.py:40 main"]);
        let syscall = Syscall {
            name: "clock_nanosleep".into(),
            arguments: Vec::new(),
            file: None,
            caller: None,
        };
        first.kernel = first.kernel.map(|kernel| KernelState { syscall: Some(syscall), ..kernel });
        let judgement = judged(vec![waits(0), rank(1, vec![first], Vec::new()), waits(2)]);
        assert_eq!(first_of(&judgement), (Some(1), Kind::NeverEntered, "data.py:6".to_owned()));
        let text = said(&judgement);
        let sleeps = "__getitem__ at data.py:6, sleeping in clock_nanosleep";
        assert!(text.ends_with(sleeps), "{library}: {text}");
    }
    // The control: the library is further in.
    let waits_for_data = thread('S', &[DATA, "/job/train.py:40 main"]);
    let text = said(&judged(vec![waits(0), rank(1, vec![waits_for_data], Vec::new()), waits(2)]));
    assert!(text.ends_with("where it waits for another of its threads"), "{text}");
}

fn first_of(judgement: &Judgement) -> (Option<u32>, Kind, String) {
    first(judgement).expect("a culprit")
}

#[test]
fn ended_rank_is_blamed_before_the_link() {
    const MEETS: &str = "/v/lib/python3.11/site-packages/torch/distributed/rendezvous.py:270 _env";
    let inside = record(&[("a", "gloo:all_reduce", false)]);
    // Every combination of these states for four ranks, with at least one rank that has ended and one that waits.
    let state = |number: u32, which: u32| match which {
        0 => RankEvidence::ended(GlobalRank(number), 5),
        1 => waits(number),
        2 => rank(number, vec![thread('S', &[MEETS, "/job/train.py:9 main"])], Vec::new()),
        3 => RankEvidence {
            asks_store: true,
            ..rank(number, vec![thread('S', &["/job/train.py:9 main"])], Vec::new())
        },
        _ => RankEvidence {
            records: vec![inside.clone()],
            read_ns: 1_700_000_100_000_000_000,
            ..waits(number)
        },
    };
    let mut judgements = 0;
    for code in 0..5_u32.pow(4) {
        let of = |number| code / 5_u32.pow(number) % 5;
        let ended: Vec<u32> = (0..4).filter(|number| of(*number) == 0).collect();
        // A rank that only asks the store may wait for another job.
        let waits = (0..4).any(|number| [1, 2, 4].contains(&of(number)));
        if ended.is_empty() || !waits {
            continue;
        }
        let judgement = judged((0..4).map(|number| state(number, of(number))).collect());
        let Judgement::Hangs(hang) = &judgement else { panic!("{code}: {judgement:?}") };
        let kinds: Vec<Kind> = hang.culprits.iter().map(|one| one.kind).collect();
        assert!(!kinds.contains(&Kind::Link), "{code}: {hang:?}");
        assert_eq!(kinds.first(), Some(&Kind::Ended), "{code}: {hang:?}");
        judgements += 1;
    }
    assert!(judgements > 200, "{judgements}");
}

#[test]
fn busy_rank_that_others_await_is_reported_slow() {
    let mine = &["/job/train.py:12 save"];
    let works = |computes| RankEvidence {
        busy: true,
        computes,
        ..rank(1, vec![thread('S', mine)], Vec::new())
    };
    let seen = |ranks| match judged(ranks) {
        Judgement::HeldUp { seen, .. } => seen,
        other => panic!("{other:?}"),
    };
    for (computes, text) in [
        (true, "rank 1 (node 0) computes: save at train.py:12"),
        (false, "rank 1 (node 0) reads or writes: save at train.py:12"),
    ] {
        let hang = seen(vec![waits(0), works(computes), waits(2)]).expect("others wait");
        let [one] = hang.culprits.as_slice() else { panic!("{hang:?}") };
        assert_eq!((one.rank, one.kind, &*one.text.en), (Some(1), Kind::Slow, text));
        assert_ne!(one.text.en, one.text.zh);
        assert_eq!(hang.waiting.get(&0), Some(&vec![0, 2]));
    }
    // The controls: all ranks are at work, and a rank that a person holds.
    assert_eq!(
        judged(vec![works(true), RankEvidence { rank: GlobalRank(0), ..works(true) }]),
        Judgement::Idle
    );
    let debugged = rank(1, vec![thread('t', mine)], Vec::new());
    assert_eq!(seen(vec![waits(0), debugged]), None);
}
