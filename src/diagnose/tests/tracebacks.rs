//! Tracebacks in the forms in which they are printed.

use proptest::prelude::*;

use super::{id, of};
use verdict::{Confidence, Owner};

fn cause_and_frame(log: &str) -> (String, Option<String>) {
    let diagnosis = of(log);
    let frame = diagnosis.cause.as_ref().and_then(|cause| cause.frame.as_ref());
    let frame = frame.map(|frame| format!("{frame} {}", frame.function));
    (id(&diagnosis).to_owned(), frame)
}

#[test]
fn the_first_exception_of_a_chain_counts() {
    let log = "Traceback (most recent call last):
  File \"/work/config.py\", line 3, in read
    return table[key]
           ~~~~~^^^^^
KeyError: 'learning_rate'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File \"/work/train.py\", line 9, in <module>
    main()
RuntimeError: the configuration is not complete
";
    let diagnosis = of(log);
    let cause = diagnosis.cause.expect("a cause");
    assert!(cause.why.text.en.contains("KeyError"), "{}", cause.why.text.en);
    assert_eq!(cause.evidence.first.line, 5);
}

#[test]
fn last_frame_of_own_code_is_named() {
    let log = "Traceback (most recent call last):
  File \"/work/train.py\", line 9, in <module>
    main()
  File \"/work/model.py\", line 31, in forward
    return self.linear(x)
  File \"/opt/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py\", line 125, in forward
    return F.linear(input, self.weight, self.bias)
RuntimeError: my shapes are wrong
";
    assert_eq!(cause_and_frame(log), ("user_exception".into(), Some("model.py:31 forward".into())));
}

#[test]
fn interleaved_ranks_are_told_apart_by_prefix() {
    let log = "[rank0]: Traceback (most recent call last):
[rank1]: Traceback (most recent call last):
[rank0]:   File \"/work/a.py\", line 1, in <module>
[rank1]:   File \"/work/b.py\", line 2, in <module>
[rank1]:     second()
[rank0]:     first()
[rank1]: IndexError: of rank one
[rank0]: ValueError: of rank zero
";
    let diagnosis = of(log);
    let cause = diagnosis.cause.expect("a cause");
    assert_eq!(cause.why.rank, Some(1));
    assert_eq!(cause.frame.map(|frame| frame.to_string()).as_deref(), Some("b.py:2"));
}

#[test]
fn interleaved_ranks_without_prefix_are_still_read() {
    let log = "Traceback (most recent call last):
Traceback (most recent call last):
  File \"/work/a.py\", line 1, in <module>
  File \"/work/a.py\", line 1, in <module>
    first()first()

ValueErrorValueError: : of both
ValueError: of the third
";
    assert_eq!(cause_and_frame(log), ("user_exception".into(), Some("a.py:1 <module>".into())));
}

#[test]
fn inner_exception_of_a_worker_is_the_cause() {
    let log = "Traceback (most recent call last):
  File \"/work/train.py\", line 9, in <module>
    for batch in loader:
  File \"/opt/lib/python3.9/site-packages/torch/_utils.py\", line 715, in reraise
    raise exception
ValueError: Caught ValueError in DataLoader worker process 3.
Original Traceback (most recent call last):
  File \"/opt/lib/python3.9/site-packages/torch/utils/data/_utils/worker.py\", line 351, in _worker_loop
    data = fetcher.fetch(index)
  File \"/work/data.py\", line 44, in __getitem__
    image = self.crop(image)
ValueError: cannot crop 0x0
";
    assert_eq!(
        cause_and_frame(log),
        ("user_exception".into(), Some("data.py:44 __getitem__".into()))
    );
}

#[test]
fn exception_groups_rich_frames_and_dumps_are_read() {
    let group = "  + Exception Group Traceback (most recent call last):
  |   File \"/work/train.py\", line 9, in <module>
  |     asyncio.run(main())
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File \"/work/client.py\", line 5, in fetch
    |     raise LookupError(name)
    | LookupError: no such shard
    +------------------------------------
";
    let diagnosis = of(group);
    let cause = diagnosis.cause.expect("a cause");
    assert!(cause.why.text.en.contains("LookupError"), "{}", cause.why.text.en);
    let rich = "\u{256d}\u{2500} Traceback (most recent call last) \u{2500}\u{256e}
\u{2502} /work/train.py:9 in <module>                  \u{2502}
\u{2502} \u{2771} 9 main()                                     \u{2502}
\u{2502} /work/model.py:31 in forward                  \u{2502}
\u{2570}\u{2500}\u{2500}\u{2500}\u{2500}\u{256f}
ValueError: wrong
";
    assert_eq!(
        cause_and_frame(rich),
        ("user_exception".into(), Some("model.py:31 forward".into()))
    );
    let dump = "Fatal Python error: Segmentation fault

Current thread 0x00007f11 (most recent call first):
  File \"/opt/lib/python3.11/site-packages/torch/nn/functional.py\", line 1 in linear
  File \"/work/model.py\", line 31 in forward
  File \"/work/train.py\", line 9 in <module>
";
    assert_eq!(
        cause_and_frame(dump),
        ("worker_sigsegv".into(), Some("model.py:31 forward".into()))
    );
}

#[test]
fn quoted_and_ignored_exceptions_are_no_causes() {
    for log in [
        "INFO:loader:Could not load the fast version due to:\nModuleNotFoundError(\"No module named 'fast'\")\n",
        "Exception ignored in: <function A.__del__ at 0x7f>\nTraceback (most recent call last):\n  File \"/work/a.py\", line 1, in __del__\n    self.close()\nAttributeError: 'A' object has no attribute 'file'\n",
        "the model said: ValueError: what a pity\nerror rate 0.1, 3 errors, failed 0\n",
        "Traceback (most recent call last):\n  File \"/work/a.py\", line 1, in read\n    raise RuntimeError(\"CUDA out of memory. Tried to allocate\")\n",
    ] {
        assert_eq!(id(&of(log)), "none", "{log}");
    }
}

#[test]
fn reraised_worker_exception_counts_as_uncaught() {
    let log = "Traceback (most recent call last):
  File \"/work/train.py\", line 9, in <module>
    main()
  File \"/work/train.py\", line 5, in main
    for batch in loader:
  File \"/opt/lib/python3.11/site-packages/torch/_utils.py\", line 8, in reraise
    raise exception
RuntimeError: Caught RuntimeError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File \"/opt/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py\", line 3, in _worker_loop
    data = fetcher.fetch(index)
RuntimeError: unable to allocate shared memory(shm) for file </torch_7_9_0>: No space left on device (28)
";
    let said = |log: &str| {
        let cause = of(log).cause.expect("a cause");
        let frame = cause.frame.map(|frame| frame.to_string());
        (cause.why.id, cause.why.confidence, frame)
    };
    let waited = Some("train.py:5".to_owned());
    let shm = |confidence| ("torch_shm_full".to_owned(), confidence, waited.clone());
    assert_eq!(said(log), shm(Confidence::Certain));
    // The traceback of a logger begins where the exception was caught.
    let caught = log.replace("in <module>", "in try_it");
    assert_eq!(said(&caught), shm(Confidence::Likely));
    // A frame in the worker's own code gives more information.
    let own = log.replace("/opt/lib/python3.11/site-packages/torch/utils/data/_utils", "/work");
    assert_eq!(said(&own).2.as_deref(), Some("worker.py:3"));
}

#[test]
fn cpp_terminate_message_is_a_certain_cause() {
    let words = "  what():  [enforce fail at /build/third_party/gloo/gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 96 vs 64\n";
    let log =
        format!("terminate called after throwing an instance of 'gloo::EnforceNotMet'\n{words}");
    let confidence = |log: &str| of(log).cause.map(|cause| (cause.why.id, cause.why.confidence));
    let mismatch = |confidence| Some(("collective_mismatch".to_owned(), confidence));
    assert_eq!(confidence(&log), mismatch(Confidence::Certain));
    let told = log.replace("  what():  ", "the server said ");
    assert_eq!(confidence(&told), mismatch(Confidence::Likely));
}

#[test]
fn terse_exception_is_identified_by_raising_file() {
    let raised_in = |path: &str, words: &str| {
        format!(
            "Traceback (most recent call last):\n  File \"/work/train.py\", line 9, in <module>\n    resume()\n  File \"{path}\", line 7, in load\n    raise EOFError\n{words}\n"
        )
    };
    let torch = "/opt/lib/python3.11/site-packages/torch/serialization.py";
    let pipe = "/usr/lib/python3.11/multiprocessing/connection.py";
    for (path, words, expected) in [
        (torch, "EOFError", "ckpt_empty"),
        (torch, "EOFError: Ran out of input", "ckpt_empty"),
        // A closed pipe, and a pickle of the program's own.
        (pipe, "EOFError", "none"),
        ("/work/data.py", "EOFError: Ran out of input", "user_exception"),
    ] {
        assert_eq!(id(&of(&raised_in(path, words))), expected, "{path} {words}");
    }
    assert_eq!(id(&of("EOFError\n")), "none", "without a traceback");
}

#[test]
fn an_exhausted_iterator_is_an_exception_without_words() {
    let traceback = "Traceback (most recent call last):\n  File \"/work/train.py\", line 9, in <module>\n    step(next(batches))\nStopIteration\n";
    let (cause, frame) = cause_and_frame(traceback);
    assert_eq!((cause.as_str(), frame.as_deref()), ("user_exception", Some("train.py:9 <module>")));
    assert_eq!(cause_and_frame("StopIteration\n").0, "none");
}

/// A traceback with these files as its frames, outermost first.
fn traceback(paths: &[&str], raised: &str) -> String {
    let frames =
        paths.iter().map(|path| format!("  File \"{path}\", line 7, in work\n    work()\n"));
    format!("Traceback (most recent call last):\n{}{raised}\n", frames.collect::<String>())
}

const OWN: &[&str] = &["/work/train.py", "/home/me/bin/fit.py", "model.py", "/srv/rl/trainer.py"];
const FOREIGN: &[&str] = &[
    "/opt/env/lib/python3.11/site-packages/transformers/trainer.py",
    "/usr/lib/python3/dist-packages/acme/run.py",
    "/usr/lib/python3.12/runpy.py",
    "<frozen importlib._bootstrap>",
    "/opt/env/bin/torchrun",
    "/opt/env/lib/python3.11/site-packages/torch/nn/modules/module.py",
];

proptest! {
    /// Whose exception it is follows from the frames, in any order and in any exception of a chain.
    #[test]
    fn code_is_at_fault_only_if_it_has_a_frame(
        own in prop::collection::vec(prop::sample::select(OWN), 0..3),
        foreign in prop::collection::vec(prop::sample::select(FOREIGN), 1..5),
        chained in prop::collection::vec(prop::sample::select([OWN, FOREIGN].concat()), 0..3),
        seed in any::<u64>(),
        prefix in prop::sample::select(&["", "[rank3]: ", "> "][..]),
    ) {
        let mut frames: Vec<&str> = own.iter().chain(&foreign).copied().collect();
        let places = frames.len();
        frames.rotate_left(usize::try_from(seed % 7).expect("small") % places);
        let mut log = traceback(&frames, "AcmeError: it did not work");
        if !chained.is_empty() {
            log += "\nDuring handling of the above exception, another exception occurred:\n\n";
            log += &traceback(&chained, "OtherError: neither did this");
        }
        let log: String = log.lines().map(|line| format!("{prefix}{line}\n")).collect();
        let has_own = frames.iter().chain(&chained).any(|path| OWN.contains(path));
        let why = of(&log).cause.expect("a cause").why;
        prop_assert_eq!(&*why.id, "user_exception");
        prop_assert_eq!(why.owner == Owner::Code, has_own, "{}", log);
        prop_assert_eq!(why.frame.is_some(), has_own);
    }
}

#[test]
fn library_is_named_with_its_version() {
    let raised = traceback(&FOREIGN[..1], "AcmeError: it did not work");
    let why = of(&raised).cause.expect("a cause").why;
    assert!(why.text.en.starts_with("transformers raised AcmeError: it did"), "{}", why.text.en);
    let why = of(&format!("transformers==4.44.2\n{raised}")).cause.expect("a cause").why;
    assert!(why.text.en.starts_with("transformers 4.44.2 raised"), "{}", why.text.en);
    assert!(why.remedy.en.contains("transformers 4.44.2"), "{}", why.remedy.en);
}

#[test]
fn bare_assertion_shows_its_expression() {
    let bare = |source: &str| {
        let log = format!(
            "Traceback (most recent call last):\n  File \"/work/fit.py\", line 7, in work\n    {source}\n    ^^^^^^\nAssertionError\n"
        );
        of(&log).cause.expect("a cause").why
    };
    let why = bare("assert batch.ndim == 4");
    assert!(why.text.en.contains("AssertionError: assert batch.ndim == 4"), "{}", why.text.en);
    assert_eq!(bare("check(batch)").text.en, "The program raised AssertionError");
    let why = bare("assert FLASH_ATTN_2_AVAILABLE");
    assert_eq!((&*why.id, why.owner), ("package_unavailable", Owner::Image));
}

#[test]
fn advice_of_a_message_is_believed() {
    let log = traceback(OWN, "AcmeError: the table is full. Decrease max_rows or add a shard.");
    let why = of(&log).cause.expect("a cause").why;
    assert!(why.remedy.en.contains("Decrease max_rows or add a shard."), "{}", why.remedy.en);
}
