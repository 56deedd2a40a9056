//! Judgements from the stacks and states of the ranks.

use super::*;

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
