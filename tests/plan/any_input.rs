//! Any arguments, variables and profiles give a plan that keeps its own rules, or a refusal with a
//! reason in both languages, and never a panic.
//!
//! Most rounds run inside this process, along the same parts as `ranklaunch plan`; some run the
//! executable, whose output must be one JSON document each time.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use linux::host::Host;
use node::observe::Deadlines;
use plan::{Plan, Scope};
use preflight::check::CheckStatus;
use preflight::decide::{Stage, decide};
use proptest::prelude::*;
use ranklaunch::collect::observe_within;
use report::{closing, plan_forms, plan_view};
use settings::cli::{self, Command};
use settings::{LayoutRule, ProbeMode, Settings};
use text::lang::{Lang, Text};
use verdict::{Refusal, Verdict};

use tokio::runtime::Runtime;

use harness::node::Node;

/// Options with legal values, since most rounds must get past the first check.
#[rustfmt::skip]
const OPTIONS: &[(&str, &[&str])] = &[
    ("profile", &["wan22", "taehv", "zimdb"]),
    ("module", &["package.train"]),
    ("engine", &["torchrun", "accelerate", "deepspeed", "direct", "command"]),
    ("python", &["/opt/env/bin/python", "python3"]),
    ("conda-env", &["base"]),
    ("http", &["9400", "0.0.0.0:9400", "[::1]:9400", "localhost:1"]),
    ("env", &["K=V", "NCCL_SOCKET_IFNAME==eth0", "OMP_NUM_THREADS=0", "K="]),
    ("nnodes", &["1", "2", "3", "100000", "4294967295"]),
    ("node-rank", &["0", "1", "2"]),
    ("master-addr", &["127.0.0.1", "fd00::1", "h"]),
    ("master-port", &["1", "29500", "65535"]),
    ("world-size-counts", &["auto", "nodes", "processes"]),
    ("rdzv", &["static", "c10d"]),
    ("nproc-per-node", &["auto", "gpu", "cpu", "1", "5", "8", "4096", "4294967295"]),
    ("min-nproc", &["1", "8", "4294967295"]),
    ("device", &["auto", "gpu", "cpu"]),
    ("layout", &["none", "ulysses-world", "ulysses-ring"]),
    ("heads", &["1", "24", "40", "4294967295"]),
    ("stale", &["kill", "report", "off"]),
    ("muster", &["auto", "off", "required"]),
    ("muster-port", &["29400"]),
    ("wait-timeout", &["0", "30m", "8760h"]),
    ("rdma", &["auto", "required", "off"]),
    ("severity", &["gpu.count=warn", "python.torch=fail", "env.nccl=fail", "shm.size=off"]),
    ("grace", &["0", "28s"]),
    ("retry-on", &["cuda_oom", "rank.exit"]),
    ("no-retry-on", &["rank.signal", "cuda_oom"]),
    ("max-restarts", &["0", "4294967295"]),
    ("log-dir", &["/logs"]),
    ("log-cap-rank", &["1", "256MiB"]),
    ("console", &["all", "none"]),
    ("lang", &["en", "zh"]),
];

/// Variables of platforms, which a round extends or reduces.
const PLATFORMS: &[&str] = &[
    "",
    "WORLD_SIZE=2 RANK=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500",
    "WORLD_SIZE=16 RANK=1 MASTER_ADDR=127.0.0.1",
    "PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=8 WORLD_SIZE=16 RANK=1 MASTER_ADDR=127.0.0.1",
    "PET_NNODES=1:4 PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=127.0.0.1:23456",
    "KUBEBRAIN_REPLICA=1 KUBEBRAIN_REPLICA_TOTAL=4 MASTER_ADDR=10.1.2.3 PORT_0=9205 GPU_COUNT=8",
    "SLURM_JOB_ID=7 SLURM_NNODES=2 SLURM_NODEID=0 SLURM_JOB_NODELIST=n[1,3] MASTER_ADDR=127.0.0.1",
    "SM_HOSTS=[\"127.0.0.1\",\"127.0.0.2\"] SM_CURRENT_HOST=127.0.0.2",
    "NUM_NODES=2 NUM_TRAINERS=8 NODE_RANK=1 PRIMARY_ADDR=127.0.0.1 PRIMARY_PORT=29500",
    "AWS_BATCH_JOB_NUM_NODES=2 AWS_BATCH_JOB_NODE_INDEX=0 AWS_BATCH_JOB_MAIN_NODE_INDEX=0",
    "CUDA_VISIBLE_DEVICES=1,3,5 NCCL_SOCKET_IFNAME=eth0,eno1,ens,ib NCCL_MIN_NRINGS=1",
    "HF_TOKEN=abc LOCAL_RANK=3 TORCHELASTIC_RUN_ID=x",
];

/// Whole profiles; a round may remove a line or add one.
static PROFILES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let embedded = settings::EMBEDDED.iter().map(|(_, text)| (*text).to_owned());
    embedded.chain([harness::reference::in_force()]).collect()
});

/// Values that are legal somewhere, almost legal, or at the edge of a type.
#[rustfmt::skip]
const VALUES: &[&str] = &[
    "", " ", "0", "1", "2", "3", "4", "5", "7", "8", "16", "40", "-1", "+1", "007", "1:4", "4:1",
    "4294967295", "4294967296", "99999999999999999999", "1e3", "0x10", "½", "auto", "gpu", "cpu",
    "None", "true", "off", "none", "direct", "torchrun", "accelerate", "deepspeed", "command",
    "ulysses-world", "ulysses-ring", "c10d", "static", "processes", "nodes", "localhost", "h",
    "127.0.0.1", "[fd00::1]", "fd00::1", "h:29500", "tcp://10.0.0.1:29500", "$(MASTER)", "29500",
    "65536", "n[01-04]", "n[", "[\"a\",\"b\"]", "a", "b", "30s", "9999999h", "256MiB", "wan22",
    "taehv", "zimdb", "zh", "en", "K=V", "shm.size=fail", "gpu.count=warn", "=eth0", "^docker",
    "eth0,eno1,ens,ib", "mlx5_0:1", "GPU-fa4e0002", "0,1,2,3", "\n", "\t", "\u{202e}", "中文", "{",
    "{{", "{ulysses_size}", "/", ".", "..", "'", "\"", "\\",
];

/// Words of a program's command line.
#[rustfmt::skip]
const WORDS: &[&str] = &[
    "generate.py", "train.py", "-m", "package.train", "bash", "torchrun", "--ulysses_size",
    "--ulysses_size=10", "--ring_size", "--task", "t2v-A14B", "--ckpt_dir", "/ckpt", "10", "14",
    "{ulysses_size}", "{ring_size}", "{{ulysses_size}}", "{train_config}", "{run_id}", "{", "",
    "--api_key", "--", "-", "a cat's \"prompt\"", "{\"a\": 1}",
];

#[rustfmt::skip]
const PROFILE_LINES: &[&str] = &[
    "[job]", "[layout]", "[layout.heads]", "[layout.heads.values]", "[[select]]", "[env]",
    "[launch]", "[logs]", "[severity]", "[exit]", "[[diagnose]]", "id = \"nan_loss\"",
    "fragments = [\"boom\"]", "patterns = ['(x']", "cause = \"{x}\"", "remedy = \"y\"", "script = \"train.py\"", "module = \"a.b\"",
    "command = [\"bash\", \"x.sh\"]", "args = [\"--ulysses_size\", \"{ulysses_size}\"]",
    "args = [\"--config\", \"{config}\"]", "rule = \"ulysses-world\"", "rule = \"ulysses-ring\"",
    "heads = 40", "argument = \"--task\"", "default = \"x\"", "x = 24", "total_gpus = 8",
    "total_gpus = 16", "total_gpus = \"*\"", "A = \"{config}{node_rank}\"", "values = { config = \"a.py\" }", "ulysses_argument = \"--ulysses_size\"",
    "ring_argument = \"--ring_size\"", "nnodes = 2", "node_rank = 0", "master_addr = \"h\"",
    "nproc_per_node = 8", "retry_on = [\"cuda_oom\"]", "no_retry_on = [\"x\"]", "min_nproc = 4", "engine = \"accelerate\"", "65 = 137", "A = 1",
    "\"gpu.count\" = \"warn\"", "conda_env = \"x\"", "rdma = \"required\"", "}", "= 3", "x",
];

/// Variables beside those of the platforms.
#[rustfmt::skip]
const MORE_VARIABLES: &[&str] = &[
    "CUDA_VISIBLE_DEVICES", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_MIN_NRINGS",
    "NVIDIA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "TerminationGracePeriodSeconds", "VIRTUAL_ENV",
    "CONDA_PREFIX", "PATH", "LANG",
];

/// Bytes without a zero, which no argument and no variable can hold.
fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => prop::sample::select(VALUES).prop_map(|value| value.as_bytes().to_vec()),
        1 => prop::collection::vec(1..=255u8, 0..24),
    ]
}

/// A value that the option accepts, or any value.
fn value_of(legal: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        12 => prop::sample::select(legal).prop_map(|value| value.as_bytes().to_vec()),
        1 => value(),
    ]
}

/// A variable of a platform, of NCCL and CUDA, or an unknown one.
fn variable() -> impl Strategy<Value = (OsString, OsString)> {
    let known = settings::contract::Contract::known_variables();
    let names: Vec<&str> = known.iter().chain(MORE_VARIABLES).copied().collect();
    let name =
        prop_oneof![9 => prop::sample::select(names).prop_map(str::to_owned), 1 => "[A-Z_]{1,6}"];
    (name, value()).prop_map(|(name, value)| (name.into(), OsString::from_vec(value)))
}

/// A setting of ours: `("nnodes", b"2")`.
fn setting() -> impl Strategy<Value = (&'static str, Vec<u8>)> {
    prop::sample::select(OPTIONS)
        .prop_flat_map(|(name, legal)| value_of(legal).prop_map(move |value| (name, value)))
}

fn environment() -> impl Strategy<Value = BTreeMap<OsString, OsString>> {
    let platform = prop::sample::select(PLATFORMS);
    let lost = prop::option::weighted(0.2, any::<prop::sample::Index>());
    let odd = prop::collection::vec(variable(), 0..2);
    let ours = prop::collection::vec(setting(), 0..2);
    (platform, lost, odd, ours).prop_map(|(platform, lost, odd, ours)| {
        let mut pairs: Vec<(OsString, OsString)> = platform
            .split(' ')
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        if let Some(lost) = lost.filter(|_| !pairs.is_empty()) {
            pairs.remove(lost.index(pairs.len()));
        }
        let ours = ours.into_iter().map(|(name, value)| {
            let name = name.to_uppercase().replace('-', "_");
            (format!("RANKLAUNCH_{name}").into(), OsString::from_vec(value))
        });
        pairs.into_iter().chain(odd).chain(ours).collect()
    })
}

/// Options, each at most once, then the program.
fn arguments() -> impl Strategy<Value = Vec<OsString>> {
    let options = prop::collection::vec(setting(), 0..5).prop_map(|options| {
        let once: BTreeMap<&str, Vec<u8>> = options.into_iter().collect();
        once.into_iter().map(|(name, value)| flag(name, value)).collect::<Vec<OsString>>()
    });
    let word = prop_oneof![
        4 => prop::sample::select(WORDS).prop_map(OsString::from),
        1 => value().prop_map(OsString::from_vec),
    ];
    (options, any::<bool>(), prop::collection::vec(word, 0..5)).prop_map(
        |(mut words, is_named, program)| {
            words.push("--".into());
            if is_named {
                words.push("generate.py".into());
            }
            words.extend(program);
            words
        },
    )
}

fn flag(name: &str, value: Vec<u8>) -> OsString {
    let mut word = format!("--{name}=").into_bytes();
    word.extend(value);
    OsString::from_vec(word)
}

fn profile() -> impl Strategy<Value = Option<Vec<u8>>> {
    let at = any::<prop::sample::Index>();
    let more = prop::option::weighted(0.15, (at, prop::sample::select(PROFILE_LINES)));
    let lost = prop::option::weighted(0.15, any::<prop::sample::Index>());
    let changed =
        (prop::sample::select(PROFILES.as_slice()), more, lost).prop_map(|(text, more, lost)| {
            let mut lines: Vec<&str> = text.lines().collect();
            if let Some((at, line)) = more {
                lines.insert(at.index(lines.len()), line);
            }
            if let Some(at) = lost {
                lines.remove(at.index(lines.len()));
            }
            Some(lines.join("\n").into_bytes())
        });
    let lines = prop::collection::vec(prop::sample::select(PROFILE_LINES), 0..14);
    prop_oneof![
        4 => Just(None),
        4 => changed,
        1 => lines.prop_map(|lines| Some(lines.join("\n").into_bytes())),
        1 => prop::collection::vec(any::<u8>(), 0..80).prop_map(Some),
    ]
}

/// A node of files with eight GPUs, and one without any.
static NODES: LazyLock<[Node; 2]> = LazyLock::new(|| {
    let mut full = Node::without_gpus()
        .file("/dev/nvidiactl", "")
        .file("/ckpt/config.json", "{\"num_heads\": 40}")
        .file("/sys/class/net/eth0/operstate", "up\n");
    for index in 0..8 {
        full = full.file(&format!("/dev/nvidia{index}"), "");
    }
    [full, Node::without_gpus()]
});

/// The runtime in which sources are read side by side.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().expect("a runtime")
});

/// The steps of `ranklaunch plan`, from the words to the plan.
fn planned(
    words: &[OsString],
    environment: BTreeMap<OsString, OsString>,
    root: &Path,
) -> Result<Plan, Refusal> {
    // Copied files may lack an interpreter; with this option that is only a warning.
    let replayed = format!("--host-root={}", root.display());
    let line = ["ranklaunch".into(), "plan".into(), replayed.into()];
    let line = line.into_iter().chain(words.iter().cloned());
    let options = match Command::parse(line) {
        Ok(Command::Plan(plan)) => plan.options,
        Ok(other) => panic!("{other:?}"),
        Err(cli::Stop::Shown(text)) => panic!("{text}"),
        Err(cli::Stop::Refused(refusal)) => {
            assert_eq!(refusal.verdict, Verdict::Usage, "{refusal:?}");
            return Err(refusal);
        }
    };
    let host = Host::replayed(root, environment);
    let mut settings = Settings::read(&options, &host)?;
    // The driver of this machine says nothing about the node.
    settings.probe.value = ProbeMode::Off;
    let (host, settings) = (Arc::new(host), Arc::new(settings));
    // A name server that does not answer would cost each round two seconds.
    let deadlines = Deadlines { name: Duration::ZERO, ..Deadlines::LAUNCH };
    let facts = RUNTIME.block_on(observe_within(&host, &settings, deadlines));
    let decided = decide(&settings, &facts, Scope::Alone);
    for found in decided.checks() {
        check_text(&[&found.text]);
        assert!(found.severity >= CheckStatus::Info || !found.hint.en.is_empty(), "{found:?}");
    }
    decided.plan(Stage::BeforeStart)
}

fn check_result(result: &Result<Plan, Refusal>) {
    match result {
        Err(refusal) => check_refusal(refusal),
        Ok(plan) => check_plan(plan),
    }
}

fn check_text(texts: &[&Text]) {
    for text in texts {
        assert!(!text.en.trim().is_empty() && !text.zh.trim().is_empty(), "{text:?}");
    }
}

fn check_refusal(refusal: &Refusal) {
    let code = refusal.verdict.code();
    assert!((64..128).contains(&code) && !refusal.id.as_str().is_empty(), "{refusal:?}");
    check_text(&[&refusal.text, &refusal.hint]);
    let [en, zh] = [Lang::En, Lang::Zh].map(|lang| closing::refusal(refusal, code, lang));
    assert_ne!(en, zh);
}

fn check_plan(plan: &Plan) {
    let member = &plan.membership;
    assert!(member.node_rank < member.nnodes && member.master_port > 0, "{member:?}");
    let world = u64::from(member.nnodes) * u64::from(plan.nproc_per_node);
    assert_eq!(u64::from(plan.world_size), world);
    let layout = &plan.layout;
    let whole = layout.heads.is_none_or(|heads| heads % layout.ulysses_size == 0);
    let legal = match layout.rule {
        LayoutRule::None => true,
        // The script asserts nothing when its ulysses_size is 1.
        LayoutRule::UlyssesWorld => {
            layout.ulysses_size == 1 || (whole && layout.ulysses_size == plan.world_size)
        }
        LayoutRule::UlyssesRing => {
            whole && layout.ulysses_size * layout.ring_size == plan.world_size
        }
    };
    assert!(legal, "{layout:?} on {} ranks", plan.world_size);
    for lang in [Lang::En, Lang::Zh] {
        assert!(!plan_view::text(plan, lang, plan_view::Shown::default()).is_empty());
        let json = plan_forms::json(plan, lang, Path::new("/bin/ranklaunch"));
        assert_eq!(json["schema"], 1);
    }
    assert!(!plan_forms::shell(plan).is_empty());
    for one in &plan.decisions {
        check_text(&[&one.because]);
        assert!(!one.source.is_empty(), "{one:?}");
    }
    for one in &plan.warnings {
        check_text(&[&one.text, &one.hint]);
    }
}

/// The profiles to vary are valid and have settings.
#[test]
fn every_profile_to_vary_is_valid_and_nonempty() {
    assert_eq!(PROFILES.len(), 4);
    for text in PROFILES.iter() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("p.toml");
        std::fs::write(&path, text).expect("a file");
        let words = ["ranklaunch".to_owned(), format!("--profile={}", path.display())];
        let Ok(Command::Run(options)) = Command::parse(words.into_iter().map(OsString::from))
        else {
            panic!("run is meant");
        };
        let host = Host::replayed("/nonexistent", BTreeMap::new());
        let settings = Settings::read(&options, &host).expect("a profile");
        let says = !settings.severities.is_empty() || !settings.env.is_empty();
        assert!(settings.program.is_some() && says, "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1200, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn any_input_gives_a_plan_or_refusal(
        environment in environment(),
        mut words in arguments(),
        profile in profile(),
        has_gpus in any::<bool>(),
    ) {
        let node = &NODES[usize::from(!has_gpus)];
        let folder = tempfile::tempdir().expect("a folder");
        if let Some(text) = profile {
            let path = folder.path().join("p.toml");
            std::fs::write(&path, text).expect("a file");
            words.retain(|word| !word.to_string_lossy().starts_with("--profile"));
            words.insert(0, format!("--profile={}", path.display()).into());
        }
        let result = planned(&words, environment, node.root());
        check_result(&result);
    }

    /// Neither a plan nor a refusal repeats a value whose name declares it secret.
    #[test]
    fn a_secret_is_shown_nowhere(environment in environment(), words in arguments()) {
        const SECRET: &str = "hunter2-hunter2";
        let mut words = words;
        words.retain(|word| !word.to_string_lossy().starts_with("--env"));
        words.insert(0, format!("--env=HF_TOKEN={SECRET}").into());
        words.extend(["--api_key".into(), SECRET.into(), format!("--db_password={SECRET}").into()]);
        match planned(&words, environment, NODES[0].root()) {
            Err(refusal) => {
                let text = format!("{refusal:?}");
                prop_assert!(!text.contains(SECRET), "{text}");
            }
            Ok(plan) => {
                let json = plan_forms::json(&plan, Lang::En, Path::new("/bin/ranklaunch"));
                let (text, shell) = (plan_view::text(&plan, Lang::Zh, plan_view::Shown::default()), plan_forms::shell(&plan));
                for shown in [json.to_string(), text, shell] {
                    prop_assert!(!shown.contains(SECRET), "{shown}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 150, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// The executable prints one document, and its exit code tells the kind of document.
    #[test]
    fn the_executable_prints_one_document(
        environment in environment(),
        words in arguments(),
        has_gpus in any::<bool>(),
    ) {
        let node = &NODES[usize::from(!has_gpus)];
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = std::process::Command::new(harness::executable());
        command.env_clear().envs(&environment).current_dir(folder.path());
        // A missing name server costs 2 s; an address costs nothing.
        let is_name = |word: &&OsString| word.to_string_lossy().starts_with("--master-addr");
        command.env("RANKLAUNCH_MASTER_ADDR", "127.0.0.1");
        command.args(["plan", "--format", "json", "--probe", "off", "--host-root"]);
        command.arg(node.root()).args(words.iter().filter(|word| !is_name(word)));
        let output = command.output().expect("it runs");
        let json: serde_json::Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {output:?}"));
        prop_assert_eq!(&json["schema"], 1);
        prop_assert!(output.stderr.is_empty(), "{output:?}");
        let code = output.status.code();
        // A plan that `run` would refuse is shown anyway.
        if json.get("refused").is_none() || json.get("argv").is_some() {
            prop_assert!(json["argv"].is_array() && json["membership"].is_object());
        }
        match json.get("refused") {
            None => prop_assert_eq!(code, Some(0)),
            Some(refused) => {
                prop_assert!(code.is_some_and(|code| (64..128).contains(&code)), "{code:?}");
                for field in ["id", "text", "hint"] {
                    prop_assert!(refused[field].as_str().is_some_and(|text| !text.is_empty()));
                }
            }
        }
        let made = std::fs::read_dir(folder.path()).expect("a folder").count();
        prop_assert_eq!(made, 0, "a plan makes no file");
    }
}
