//! The READMEs and the guides are correct: their commands run, their options and codes exist, and both
//! languages have the same commands.
//!
//! A block of `sh` after `<!-- test -->` must end with 0, on a node with eight GPUs, and a block after
//! `<!-- test: 66 -->` with that code. Each line of the `text` block after `<!-- shows -->` must be in
//! the output of the commands before it, apart from the width of columns, which depends on the rest of
//! the output. On pages beside the guides the mark is `<!-- test documents -->`: a suite of
//! tests/platforms runs the other blocks there.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use harness::fake_nvml::FakeNvml;

/// The README, the guides in the order of their names, and the pages beside them, in one language.
static ENGLISH: LazyLock<String> = LazyLock::new(|| all_pages(".md"));
static CHINESE: LazyLock<String> = LazyLock::new(|| all_pages(".zh-CN.md"));

const MARK: &str = "<!-- test";
const MARK_OF_OTHERS: &str = "<!-- elsewhere";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The names of the guides, without language and extension.
fn guides() -> BTreeSet<String> {
    let entries = std::fs::read_dir(root().join("docs/guide")).expect("guides").flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter_map(|name| Some(name.split_once('.')?.0.to_owned())).collect()
}

fn guide(name: &str, end: &str) -> String {
    let file = root().join("docs/guide").join(format!("{name}{end}"));
    std::fs::read_to_string(&file).unwrap_or_else(|_| panic!("{} is missing", file.display()))
}

fn readme(end: &str) -> String {
    std::fs::read_to_string(root().join(format!("README{end}"))).expect("a README")
}

/// Pages below docs/ that also have commands for this suite.
const BESIDE: [&str; 4] =
    ["report", "platforms/bare-hosts", "platforms/docker", "platforms/kubernetes"];

/// A page beside the guides, with the marks of a guide, and another mark if another suite runs a block.
fn beside(name: &str, end: &str) -> String {
    let file = root().join("docs").join(format!("{name}{end}"));
    let page = std::fs::read_to_string(&file).expect("a page");
    page.replace(MARK, MARK_OF_OTHERS).replace("<!-- elsewhere documents", MARK)
}

fn all_pages(end: &str) -> String {
    let guides = guides();
    let guides = guides.iter().map(|name| guide(name, end));
    let beside = BESIDE.iter().map(|name| beside(name, end));
    guides.chain(beside).fold(readme(end), |all, page| all + "\n" + &page)
}

/// The READMEs answer the first questions of readers, and link to the rest.
#[test]
fn the_readmes_are_short_and_name_every_guide() {
    for end in [".md", ".zh-CN.md"] {
        let readme = readme(end);
        let lines = readme.lines().count();
        assert!(lines < 160, "README{end}: {lines} lines");
        for name in guides() {
            let link = format!("](docs/guide/{name}{end}");
            assert!(readme.contains(&link), "README{end} does not name docs/guide/{name}{end}");
        }
    }
}

/// The READMEs have the two commands that set everything up from a clone.
#[test]
fn the_readmes_name_demo_and_test() {
    for end in [".md", ".zh-CN.md"] {
        for command in ["`make demo`", "`make test`"] {
            assert!(readme(end).contains(command), "README{end} lacks {command}");
        }
    }
}

/// Commands, the exit code of the last one, and the lines that they must print.
struct Example {
    commands: String,
    code: i32,
    shows: Vec<String>,
}

/// The text of the fenced block that begins at or after `from`, and the text after it.
fn fenced<'a>(from: &'a str, language: &str) -> (&'a str, &'a str) {
    let open = format!("```{language}\n");
    let (between, rest) = from.split_once(&open).expect("a block follows the mark");
    assert_eq!(between.trim(), "", "the mark stands right before its block");
    rest.split_once("```").expect("the block ends")
}

fn examples(readme: &str) -> Vec<Example> {
    readme
        .split(MARK)
        .skip(1)
        .map(|part| {
            let (code, part) = part.split_once(" -->").expect("the mark ends");
            let code =
                code.strip_prefix(": ").map_or(0, |code| code.parse::<i32>().expect("a code"));
            let (commands, rest) = fenced(part, "sh");
            let shows = match rest.trim_start().strip_prefix("<!-- shows -->") {
                Some(rest) => fenced(rest, "text").0.lines().map(str::to_owned).collect(),
                None => Vec::new(),
            };
            Example { commands: commands.to_owned(), code, shows }
        })
        .collect()
}

fn run(readme: &str, locale: &str) {
    let fake = FakeNvml::new(&[("GPUS", "8")]);
    let executable = Path::new(env!("CARGO_BIN_EXE_ranklaunch"));
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", executable.parent().expect("a folder").display());
    let examples = examples(readme);
    assert!(examples.len() >= 5, "the marks are found");
    for Example { commands, code, shows } in examples {
        let folder = tempfile::tempdir().expect("a folder");
        // The folder is like a checkout of this repository.
        let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging");
        std::os::unix::fs::symlink(packaging, folder.path().join("packaging")).expect("a link");
        // The folder also holds the reader's own scripts.
        for script in ["generate.py", "train.py"] {
            std::fs::write(folder.path().join(script), "").expect("a script");
        }
        let output = Command::new("sh")
            .args(["-e", "-c", &format!("exec 2>&1\n{commands}")])
            .current_dir(folder.path())
            .env_clear()
            .envs([("PATH", path.as_str()), ("LANG", locale)])
            // The reader's machine has torch.
            .env(
                "VIRTUAL_ENV",
                harness::python().parent().and_then(Path::parent).expect("a folder"),
            )
            .env("HOME", folder.path())
            .env("TMPDIR", folder.path())
            // Other tests may be running jobs on this machine.
            .env("RANKLAUNCH_STALE", "off")
            .env("RANKLAUNCH_NVML_LIBRARY", fake.library())
            .output()
            .expect("sh runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{commands}\n{said}");
        let one_space = |text: &str| {
            text.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
        };
        let spaced = one_space(&said);
        for line in shows {
            assert!(
                spaced.contains(&one_space(&line)),
                "{line:?} is not in what it prints\n{commands}\n{said}"
            );
        }
    }
}

#[test]
fn the_english_commands_do_what_they_show() {
    run(&ENGLISH, "C.UTF-8");
}

#[test]
fn the_chinese_commands_do_what_they_show() {
    run(&CHINESE, "zh_CN.UTF-8");
}

#[test]
fn both_languages_hold_the_same_commands_and_headings() {
    let commands = |readme: &str| -> Vec<(String, i32)> {
        examples(readme).into_iter().map(|example| (example.commands, example.code)).collect()
    };
    assert_eq!(commands(&ENGLISH), commands(&CHINESE));
    let levels = |readme: &str| -> Vec<usize> {
        let headings = readme.lines().filter(|line| line.starts_with('#'));
        headings.map(|line| line.chars().take_while(|mark| *mark == '#').count()).collect()
    };
    assert_eq!(levels(&ENGLISH), levels(&CHINESE));
}

/// Beginning of the first command of each block that is not run here, and the reason.
const ELSEWHERE: &[(&str, &str)] = &[
    ("pip install ranklaunch", "tests/dist/first.sh"),
    ("sha256sum --check --ignore-missing SHA256SUMS", "tests/dist/first.sh"),
    ("ranklaunch --engine direct --device cpu --nproc-per-node 4 ", "tests/dist/first.sh"),
    ("docker build -f packaging/Dockerfile ", "tests/containers/start.rs"),
    ("docker run --rm --gpus all --shm-size ", "tests/containers/start.rs"),
    ("docker run -d --name wan22 ", "tests/containers/start.rs"),
    ("docker run --rm --gpus all --network host ", "it needs hosts with GPUs"),
    ("docker compose -f compose.yaml -f gpus.yaml ", "tests/platforms/compose/compose_cases.py"),
    ("ranklaunch run --nnodes 2 --node-rank 0 ", "tests/platforms/bare/bare_cases.py"),
    ("STARTUP_SCRIPT=", "variables of a platform: the next test, and tests/plan/platforms.rs"),
    ("nohup ranklaunch --profile wan22 ", "tests/containers/hosts.rs"),
];

/// Fenced blocks of `language`, each with the text before it.
fn blocks<'a>(readme: &'a str, language: &str) -> Vec<(&'a str, &'a str)> {
    let open = format!("\n```{language}\n");
    let begins = readme.match_indices(&open);
    begins
        .map(|(at, _)| {
            let text = readme[at + open.len()..].split("\n```").next();
            (readme[..at].trim_end(), text.expect("a first part"))
        })
        .collect()
}

/// True if the text before a block ends with the mark of a test.
fn is_marked(before: &str) -> bool {
    let marks = [MARK, MARK_OF_OTHERS];
    before.lines().next_back().is_some_and(|line| marks.iter().any(|mark| line.starts_with(mark)))
}

#[test]
fn every_command_block_is_run_by_a_test() {
    for readme in [&*ENGLISH, &*CHINESE] {
        let blocks = blocks(readme, "sh");
        let unmarked: Vec<&str> = (blocks.iter())
            .filter(|(before, _)| !is_marked(before))
            .filter_map(|(_, text)| text.lines().find(|line| !line.starts_with('#')))
            .collect();
        let unknown: Vec<&&str> = (unmarked.iter())
            .filter(|text| !ELSEWHERE.iter().any(|(begin, _)| text.starts_with(begin)))
            .collect();
        assert!(unknown.is_empty(), "no test runs {unknown:#?}");
        for (begin, place) in ELSEWHERE {
            let count = unmarked.iter().filter(|text| text.starts_with(begin)).count();
            assert_eq!(count, 1, "{begin} ({place})");
        }
    }
}

/// Variables without an option.
const WITHOUT_OPTION: &[&str] = &["SITE"];

/// Other variables have the names of options, and these blocks set no others.
#[test]
fn every_variable_in_a_block_has_an_option() {
    let known = options_of_help();
    for readme in [&*ENGLISH, &*CHINESE] {
        let mut named = 0;
        for (_, text) in blocks(readme, "sh") {
            let words = text.split(|letter: char| !letter.is_ascii_uppercase() && letter != '_');
            let names = words.filter_map(|word| word.strip_prefix("RANKLAUNCH_"));
            for name in names.filter(|name| !WITHOUT_OPTION.contains(name)) {
                named += 1;
                let option = format!("--{}", name.to_lowercase().replace('_', "-"));
                assert!(known.contains(&option), "RANKLAUNCH_{name}");
            }
        }
        assert!(named >= 3, "{named} variables");
    }
}

/// The manifests of the READMEs are parts of one manifest, in which lint finds nothing.
#[test]
fn every_manifest_is_sound() {
    for readme in [&*ENGLISH, &*CHINESE] {
        let blocks = blocks(readme, "yaml");
        assert!(blocks.len() >= 2, "they are found");
        for (_, text) in blocks {
            let folder = tempfile::tempdir().expect("a folder");
            let file = folder.path().join("job.yaml");
            let indented: String = text.lines().map(|line| format!("  {line}\n")).collect();
            let head = "apiVersion: v1\nkind: Pod\nmetadata: {name: job}\nspec:\n";
            // A part of a pod may be about other fields than containers, which each pod has.
            let has_some = text.lines().any(|line| line.starts_with("containers:"));
            let containers = if has_some { "" } else { "  containers: [{name: a, image: b}]\n" };
            std::fs::write(&file, format!("{head}{containers}{indented}")).expect("a manifest");
            let mut lint = Command::new(env!("CARGO_BIN_EXE_ranklaunch"));
            lint.args(["lint", "--node-memory", "512Gi"]).arg(&file).env_clear();
            let output = lint.output().expect("it runs");
            let said = String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.code(), Some(0), "{text}\n{said}");
        }
    }
}

/// The goals of the Makefile and its suites, `test SUITE=name`; suites of `docs` and `bench` alike.
fn goals() -> BTreeSet<String> {
    let makefile = include_str!("../../Makefile");
    let lists = makefile.lines().filter_map(|line| line.strip_prefix(".PHONY: "));
    let rules = makefile.lines().filter_map(|line| line.split_once(':')?.0.split_once('-'));
    let suites = rules.filter_map(|(goal, suite)| match (goal, suite) {
        ("suite", "main") | ("docs", "pages") | ("bench", "all") => None,
        ("suite", suite) => Some(format!("test SUITE={suite}")),
        ("docs" | "bench", suite) => Some(format!("{goal} SUITE={suite}")),
        _ => None,
    });
    lists.flat_map(str::split_whitespace).map(str::to_owned).chain(suites).collect()
}

/// The goals that `text` names: `make goal`, `make goal SUITE=name`.
fn named_goals(text: &str) -> BTreeSet<String> {
    (text.match_indices("make "))
        .filter(|(at, _)| text[..*at].ends_with(['`', '\n']))
        .filter_map(|(at, make)| {
            let mut words = text[at + make.len()..].split([' ', '`', '\n', '…']);
            let goal = words.next()?;
            let suite = words.next().filter(|word| word.starts_with("SUITE="));
            let suite = suite.filter(|word| word.len() > "SUITE=".len());
            Some([Some(goal), suite].into_iter().flatten().collect::<Vec<_>>().join(" "))
        })
        .collect()
}

#[test]
fn every_goal_that_a_page_names_exists() {
    let goals = goals();
    for text in [&*ENGLISH, &*CHINESE] {
        let named = named_goals(text);
        let unknown: Vec<&String> = named.difference(&goals).collect();
        assert!(named.len() > 5 && unknown.is_empty(), "make {unknown:?}");
    }
    assert_eq!(named_goals("`make tes`, `make docs SUITE=boo` and make x").len(), 2);
}

#[test]
fn every_goal_of_the_makefile_is_described() {
    let goals = goals();
    assert!(goals.len() > 30, "{goals:?}");
    for end in [".md", ".zh-CN.md"] {
        let page = guide("development", end);
        let words: BTreeSet<&str> =
            page.split([' ', '\n', '`', ',', '，', '、', '。', '.', '=']).collect();
        let missing: Vec<&String> = (goals.iter())
            .filter(|goal| !words.contains(goal.rsplit([' ', '=']).next().unwrap_or_default()))
            .collect();
        assert!(missing.is_empty(), "{missing:?} of the Makefile is in no page {end}");
    }
}

/// packaging/startup.sh, beside the executable, started by `bash FILE`.
#[test]
fn the_startup_script_becomes_the_launcher() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/startup.sh");
    std::fs::copy(script, folder.path().join("startup.sh")).expect("a copy");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_ranklaunch"), folder.path().join("ranklaunch"))
        .expect("a link");
    let output = Command::new("bash")
        .arg(folder.path().join("startup.sh"))
        .args(["--engine", "direct", "--device", "cpu", "--nproc-per-node", "1", "--stale", "off"])
        .args(["--", "sh", "-c", "echo \"$PYTORCH_CUDA_ALLOC_CONF\"; exit 7"])
        .current_dir(folder.path())
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("RANKLAUNCH_LOG_DIR", folder.path().join("logs"))
        .output()
        .expect("bash runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(said.contains("expandable_segments"), "the profile is wan22: {said}");
}

/// Words of `text` that begin with `--`.
fn options(text: &str) -> BTreeSet<String> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-' && letter != '_')
        .filter(|word| word.len() > 3 && word.starts_with("--"))
        .map(str::to_owned)
        .collect()
}

/// The subcommands that `--help` lists.
fn subcommands(help: &str) -> Vec<String> {
    let (_, list) = help.split_once("\nCommands:\n").expect("they are listed");
    let lines = list.lines().take_while(|line| line.starts_with("  "));
    lines.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}

fn help(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_ranklaunch"))
        .args(arguments)
        .arg("--help")
        .env_clear()
        .output()
        .expect("it runs");
    String::from_utf8(output.stdout).expect("text")
}

/// The options of the program and of all its subcommands.
fn options_of_help() -> BTreeSet<String> {
    // An option at the start of a line is defined there; others are only mentioned.
    let defined = |text: String| -> BTreeSet<String> {
        let lines = text.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
        lines.flat_map(|line| options(line.split("  ").next().unwrap_or(line))).collect()
    };
    let mut known = defined(help(&[]));
    assert!(known.len() > 30, "{known:?}");
    for command in &subcommands(&help(&[])) {
        known.extend(defined(help(&[command])));
    }
    known
}

#[test]
fn command_line_page_names_exactly_the_existing_options() {
    let known = options_of_help();
    let commands = subcommands(&help(&[]));
    assert!(commands.len() > 5, "{commands:?}");
    for page in [".md", ".zh-CN.md"].map(|end| guide("command-line", end)) {
        assert_eq!(options(&page), known);
        for command in &commands {
            // The command counts only as a whole word, because `ps` is a part of other words.
            let typed = format!("ranklaunch {command}");
            let mut behind = page.split(typed.as_str()).skip(1).map(|rest| rest.chars().next());
            let named = behind.any(|next| next.is_none_or(|letter| !letter.is_alphanumeric()));
            assert!(named, "{command} is not named");
        }
    }
}

/// The platforms of the tables, each with its name on the page in both languages.
const PLATFORMS: &[(&str, &str)] = &[
    ("kubeflow-pytorchjob", "PyTorchJob"),
    ("kubeflow-trainer-v2", "Trainer v2"),
    ("kubebrain", "KubeBrain"),
    ("volcengine-mlp", "MLP"),
    ("runpod", "RunPod"),
    ("sagemaker", "SageMaker"),
    ("aws-batch", "AWS Batch"),
    ("skypilot", "SkyPilot"),
    ("leader-worker-set", "LeaderWorkerSet"),
    ("tencent-ti", "TI-ONE"),
    ("dlrover", "DLRover"),
    ("dstack", "dstack"),
    ("ngc", "NGC"),
    ("lepton", "Lepton"),
    ("vertex-ai", "Vertex AI"),
    ("openpai", "OpenPAI"),
    ("tony", "TonY"),
    ("afo", "AFO"),
    ("huawei-modelarts", "ModelArts"),
    ("volcano", "Volcano"),
    ("volcano-workers", "Volcano"),
    ("volcano-tasks", "Volcano"),
    ("azure-ml", "Azure ML"),
    ("azure-ml-pytorch", "Azure ML"),
    ("beaker", "Beaker"),
    ("metaflow", "Metaflow"),
    ("flux", "Flux"),
    ("flux-tasks", "Flux"),
    ("htcondor", "HTCondor"),
    ("open-mpi", "Open MPI"),
    ("mvapich", "MVAPICH"),
    ("pmi", "MPICH"),
    ("pmix", "Open MPI"),
    ("slurm", "Slurm"),
    ("slurm-allocation", "Slurm"),
];

/// A way to start a job that is no platform, and has its own paragraph.
const NO_PLATFORM: &str = "process-per-gpu";

#[test]
fn every_supported_platform_is_named() {
    let tables = [
        include_str!("../../src/settings/contract/table.rs"),
        include_str!("../../src/settings/contract/launchers.rs"),
    ];
    let rows = tables.iter().flat_map(|table| table.split(".platform(").skip(1));
    let ids: BTreeSet<&str> = rows.filter_map(|row| row.split('"').nth(1)).collect();
    assert!(ids.len() > 20, "{ids:?}");
    let mut listed: BTreeSet<&str> = PLATFORMS.iter().map(|(id, _)| *id).collect();
    listed.insert(NO_PLATFORM);
    assert_eq!(ids, listed, "a row without a name here");
    for page in [".md", ".zh-CN.md"].map(|end| guide("command-line", end)) {
        let list = page.split("\n\n").find(|part| part.contains("KubeBrain")).expect("the list");
        let list = list.split_whitespace().collect::<Vec<_>>().join(" ");
        for (id, name) in PLATFORMS {
            assert!(list.contains(name), "{id} is not named as {name}: {list}");
        }
    }
}

#[test]
fn logs_page_names_every_file_of_a_run() {
    let sources = [
        include_str!("../../src/logs/file_names.rs"),
        include_str!("../../src/logs/runs.rs"),
        include_str!("../../src/logs/index.rs"),
    ];
    let consts = sources.iter().flat_map(|source| source.split(": &str = \"").skip(1));
    let values = consts.filter_map(|rest| rest.split('"').next());
    // A text with a blank is no file name.
    let names: BTreeSet<&str> = values.filter(|value| !value.contains(' ')).collect();
    assert!(names.len() > 6 && names.contains("run.json"), "{names:?}");
    for page in [".md", ".zh-CN.md"].map(|end| guide("logs", end)) {
        let begin = page.find("```text\n").expect("the tree");
        let (tree, _) = fenced(&page[begin..], "text");
        for name in &names {
            assert!(tree.contains(name), "{name}\n{tree}");
        }
    }
}

/// The page names the protocols of the muster that this version speaks; the constants are private.
#[test]
fn versions_page_names_the_protocol() {
    let source = include_str!("../../src/muster/protocol/handshake.rs");
    let number = |name: &str| -> u8 {
        let (_, rest) = source.split_once(&format!("const {name}: u8 = ")).expect("the constant");
        rest.split(';').next().expect("a value").parse().expect("a number")
    };
    let (lowest, highest) = (number("LOWEST"), number("HIGHEST"));
    assert_eq!(lowest, highest, "docs/guide/versions.md speaks of one protocol only");
    let english = format!("This version speaks protocol {highest} and no older one.");
    assert!(guide("versions", ".md").contains(&english), "{english}");
    let chinese = format!("本版本只支持协议 {highest}，");
    assert!(guide("versions", ".zh-CN.md").contains(&chinese), "{chinese}");
}

/// The first and the last cell of each row that shows a line of a log.
fn symptoms(page: &str) -> Vec<(&str, &str)> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ``"));
    rows.map(|row| {
        let (line, rest) = row.split_once("`` |").expect("the cell ends");
        let said = rest.trim_end_matches(" |").rsplit(" | ").next().expect("a last cell");
        (line, said.trim())
    })
    .collect()
}

/// The rows that promise a cause, which begins the last cell; the other rows show a consequence.
fn causes<'a>(rows: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    rows.iter().filter(|(_, said)| said.starts_with('`')).copied().collect()
}

/// `explain` names the cause that the page promises, and knows the check before it.
#[test]
fn every_symptom_is_explained_as_the_page_says() {
    let (english, chinese) =
        (guide("troubleshooting", ".md"), guide("troubleshooting", ".zh-CN.md"));
    let (rows, in_chinese) = (symptoms(&english), symptoms(&chinese));
    let lines = |rows: &[(&str, &str)]| -> Vec<String> {
        rows.iter().map(|(line, _)| (*line).to_owned()).collect()
    };
    assert_eq!(lines(&rows), lines(&in_chinese));
    assert_eq!(causes(&rows), causes(&in_chinese));
    assert!(causes(&rows).len() >= 40 && rows.len() >= causes(&rows).len() + 5, "{rows:?}");
    let explain = |argument: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ranklaunch"));
        command.args(["explain", argument]).env_clear().env("LC_ALL", "C.UTF-8");
        let output = command.output().expect("it runs");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    for (line, said) in rows {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("rank.log");
        std::fs::write(&log, format!("{line}\n")).expect("a log");
        let (_, text) = explain(&log.display().to_string());
        if !said.starts_with('`') {
            assert!(text.contains("they hold only consequences"), "{line}\n{text}");
            continue;
        }
        let mut ids = said.split('`').skip(1).step_by(2);
        let cause = ids.next().expect("a cause");
        assert!(text.contains(&format!("({cause},")), "{line}\n{text}");
        for check in ids {
            assert!(explain(check).0, "{check} is no finding");
        }
    }
    // The control: a line without information has no cause.
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("rank.log");
    std::fs::write(&log, "step 12 loss 0.7\n").expect("a log");
    let (_, text) = explain(&log.display().to_string());
    assert!(text.contains("cause     unknown"), "{text}");
}
