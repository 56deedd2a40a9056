//! A container's first process that started ranks itself and lives, and one that only adopts.
//!
//! Each program is PID 1 of a namespace. It starts two ranks with LOCAL_RANK, then a shell in which
//! an orphan of a torchrun is planted and `ranklaunch clean` is run.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use harness::{TIMEOUT, program, python, skipped};

/// Plants the control, waits for all three, runs `clean`, and prints the survivors.
const JUDGE: &str = "\
(TORCHELASTIC_RUN_ID=x LOCAL_RANK=2 setsid \"$PY\" train.py rank &)
for i in 0 1 2; do while [ ! -s ready/rank$i ]; do sleep 0.02; done; done
sleep 0.1
\"$RL\" clean --engine direct --device cpu --python \"$PY\" -- train.py 2>&1
for i in 0 1 2; do
    kill -0 $(cat ready/rank$i) && grep -q '^State:.[^ZX]' /proc/$(cat ready/rank$i)/status && echo rank $i lives
done 2>/dev/null
: > judged
";

const NODE: &str = "\
const {spawn, spawnSync} = require('child_process');
for (const i of [0, 1])
    spawn(process.env.PY, ['train.py', 'rank'], {env: {...process.env, LOCAL_RANK: String(i)}, stdio: 'ignore', detached: i == 1});
spawn('sh', ['judge.sh'], {stdio: 'inherit'}).on('exit', () => process.exit(0));
";

const PERL: &str = "\
for my $i (0, 1) { if (!fork()) { $ENV{LOCAL_RANK} = $i; exec($ENV{PY}, 'train.py', 'rank'); } }
my $judge = fork(); exec('sh', 'judge.sh') if !$judge; waitpid($judge, 0);
";

const SHELL: &str = "\
LOCAL_RANK=0 \"$PY\" train.py rank & LOCAL_RANK=1 setsid \"$PY\" train.py rank &
sh judge.sh
exit 0
";

/// The shell becomes another program, which lives and has its children.
const REPLACED: &str = "\
LOCAL_RANK=0 \"$PY\" train.py rank & LOCAL_RANK=1 setsid \"$PY\" train.py rank &
sh judge.sh & exec tail -f /dev/null
";

/// The ranks are orphans, but the process that left them may have done so on purpose.
const LEFT: &str = "\
sh -c 'LOCAL_RANK=0 \"$PY\" train.py rank & LOCAL_RANK=1 nohup \"$PY\" train.py rank >/dev/null & exit 0'
sh judge.sh
exit 0
";

#[test]
fn ranks_of_a_living_first_process_stay() {
    let mut seen = 0;
    for (name, words) in [
        ("bash", &["bash", "-c", SHELL][..]),
        ("sh", &["sh", "-c", SHELL]),
        ("tail", &["bash", "-c", REPLACED]),
        ("perl", &["perl", "-e", PERL]),
        ("node", &["node", "-e", NODE]),
        ("tini", &["tini", "--", "bash", "-c", LEFT]),
    ] {
        if let Some(said) = judged(words) {
            seen += 1;
            let lives: Vec<&str> = said.lines().filter(|line| line.ends_with(" lives")).collect();
            assert_eq!(lives, ["rank 0 lives", "rank 1 lives"], "{name} as PID 1:\n{said}");
            assert_eq!(said.matches("ended: pid").count(), 1, "{name} as PID 1:\n{said}");
            assert!(said.contains("a rank (TORCHELASTIC_RUN_ID) whose launcher is dead"), "{said}");
        }
    }
    if seen == 0 {
        skipped("no namespace of processes can be made here");
    }
}

/// The output from a namespace with this first process; `None` if the namespace is not available.
fn judged(words: &[&str]) -> Option<String> {
    let has = |word: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(word).is_file())
    };
    const NAMESPACE: [&str; 4] = ["--pid", "--fork", "--kill-child", "--mount-proc"];
    let allowed = Command::new("unshare").args(NAMESPACE).arg("true").output();
    if !words.first().is_some_and(|first| has(first))
        || !allowed.is_ok_and(|output| output.status.success())
    {
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("ready")).expect("a folder");
    std::fs::copy(program("lingering.py"), folder.path().join("train.py")).expect("a copy");
    std::fs::write(folder.path().join("judge.sh"), JUDGE).expect("a file");
    let (out, judged) = (folder.path().join("out"), folder.path().join("judged"));
    let file = std::fs::File::create(&out).expect("a file");
    let mut namespace = Command::new("unshare")
        .args(NAMESPACE)
        .args(words)
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stderr(file.try_clone().expect("a descriptor"))
        .stdout(file)
        .env("PY", python())
        .env("RL", harness::executable())
        .spawn()
        .expect("unshare");
    let deadline = Instant::now() + TIMEOUT;
    while !judged.exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    // A tail never ends by itself.
    namespace.kill().and_then(|()| namespace.wait()).expect("its end");
    let said = std::fs::read_to_string(&out).expect("text");
    assert!(judged.exists(), "{words:?}: {said}");
    Some(said)
}
