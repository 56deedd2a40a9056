//! Profile files: where they are found, which errors they may have, and how one extends another.

use std::collections::BTreeMap;

use diagnose::Role;
use verdict::{Id, Severity};
use verdict::{Owner, Retry};

use super::*;

#[test]
fn profile_faults_name_file_and_line() {
    for (text, line, parts) in [
        ("[job]\nnnode = 2", 2, &["`nnode`", "nnodes"][..]),
        ("[jop]\n", 1, &["`jop`", "[job]"]),
        ("[job]\nconsole = 'all'", 2, &["`console`", "[logs]"]),
        ("nnodes = 2", 1, &["`nnodes`", "[job]"]),
        ("[job]\nnnodes = '2'", 2, &["`nnodes`", "`2`", "whole number"]),
        ("[job]\nnnodes = 0", 2, &["nnodes", "`0`", "1 or more"]),
        ("[job]\n\nengine = 3", 3, &["`engine`", "3", "text in quotes"]),
        ("[job]\nengine = 'slurm'", 2, &["`slurm`", "torchrun, accelerate, deepspeed"]),
        ("[layout]\nrule = 'xdit'", 2, &["`xdit`", "none, ulysses-world or ulysses-ring"]),
        ("[job]\nnested = 1", 2, &["`nested`", "true or false"]),
        ("[job]\nscript = ''", 2, &["`script`"]),
        ("[job]\nscript = 'a.py'\nmodule = 'b'", 3, &["`module`", ":2"]),
        ("[job]\nargs = ['x']", 2, &["`args`", "script ="]),
        ("[job]\nscript = 'a.py'\nargs = [\n 'x',\n 3]", 5, &["`args`", "3"]),
        ("[job]\ncommand = []", 2, &["`command`"]),
        ("[job]\nscript = \"a\\u0000\"", 2, &["NUL"]),
        ("[job\n", 1, &["TOML"]),
        ("[job]\nnnodes = 2\nnnodes = 3", 3, &["TOML"]),
        ("[[select]]\nvalues = { a = 'x' }", 1, &["total_gpus"]),
        ("[[select]]\ntotal_gpus = 8\n[[select]]\ntotal_gpus = 8", 3, &["8", ":2"]),
        ("[[select]]\ntotal_gpus = 8\nvalues.a = '1'\n[[select]]\ntotal_gpus = 4", 4, &["`a`"]),
        ("[[select]]\ntotal_gpus = 8\nvalues.nnodes = '1'", 3, &["`nnodes`", "placeholder"]),
        ("[job]\nnnodes = '2'", 2, &["`nnodes`", "without quotes"]),
        ("[job]\nnnodes = 'two'", 2, &["`two`", "a whole number"]),
        ("[[select]]\ntotal_gpus = '*'\n[[select]]\ntotal_gpus = '*'", 3, &["\"*\"", ":2"]),
        ("[[select]]\ntotal_gpus = 'all'", 2, &["`all`", "\"*\""]),
        ("[[select]]\ntotal_gpus = 0", 2, &["1 or more", "\"*\""]),
        ("[[select]]\ntotal_gpu = 8", 2, &["`total_gpu`", "total_gpus"]),
        ("[select]\ntotal_gpus = 8", 1, &["a list"]),
        ("[env]\nA = true", 2, &["`A`", "true"]),
        ("[env]\n'A B' = '1'", 2, &["`A B`"]),
        ("[severity]\n'shm.sise' = 'fail'", 2, &["`shm.sise`", "shm.size"]),
        ("[severity]\nmemlock = 'bad'", 2, &["`memlock`", "`bad`", "fail, warn or off"]),
        ("[exit]\n83 = 256", 2, &["`83`", "256", "0 to 255"]),
        ("[exit]\n63 = 1", 2, &["`63`"]),
        ("[layout.heads]\nargument = '--task'", 1, &["values"]),
        ("[layout.heads]\nargument='-t'\ndefault='b'\nvalues={a=40}", 3, &["`b`", "values: a"]),
        ("[layout.heads]\nargument='-t'\nvalues={a=0}", 3, &["`a`", "0"]),
        ("[platform]\nname = 'acme'", 1, &["`nnodes`", "proofs = [\"ACME_JOB_ID\"]"]),
        ("[platform]\nname = 'a'\nnnodes = 'N'", 1, &["`proofs`"]),
        ("[platform]\nproofs = ['A']\nnnodes = 'N'", 1, &["`name`"]),
        ("[platform]\nname = 'slurm'", 2, &["`slurm`", "another name"]),
        ("[platform]\nname = 'none'", 2, &["`none`", "another name"]),
        ("[platform]\nname = 'My Cloud'", 2, &["small letters"]),
        ("[platform]\nproofs = []", 2, &["`proofs`", "\"NAME=VALUE\""]),
        ("[platform]\nproofs = ['!A']", 2, &["needs a variable that is set"]),
        ("[platform]\nproofs = [['A'], ['!B']]", 2, &["needs a variable that is set"]),
        ("[platform]\nproofs = ['A B']", 2, &["`proofs`", "\"NAME\""]),
        ("[platform]\nnode = 'N'", 2, &["`node`", "nnodes"]),
        ("[platform]\nworld_size = 'N'", 2, &["`world_size`", "per-node"]),
        ("[platform]\nrank = 'N'", 2, &["`rank`", "node_rank"]),
        ("[platform]\nnnodes = 4", 2, &["`nnodes`", "4", "name of a variable"]),
        ("[platform]\nnnodes = ['A', 4]", 2, &["4", "name of a variable"]),
        ("[platform]\nnnodes = { reading = 'plain' }", 2, &["variable = \"NAME\""]),
        (
            "[platform]\nnnodes = { variable = 'A', reading = 'host-part' }",
            2,
            &["host-part", "range, list-length"],
        ),
        ("[platform]\nnnodes = { variable = 'A', reading = 'x' }", 2, &["`x`", "plain, range"]),
        ("[platform]\nnnodes = { variable = 'A', read = 'x' }", 2, &["`read`", "reading"]),
        (
            "[platform]\nnnodes = { variable = 'A', reading = 'per-node' }",
            2,
            &["`per-node`", "beside"],
        ),
        ("[platform]\nnnodes = { variable = 'A', beside = 'B' }", 2, &["`plain`", "B"]),
        ("[platform]\ndefault_port = 0", 2, &["`default_port`", "1 to 65535"]),
        (
            "[platform]\nname='a'\nproofs=['A']\ntasks_per_node='B'",
            1,
            &["tasks, task_rank, task_local"],
        ),
        ("[[diagnose]]\nid = 'a'\ncause = 'b'", 1, &["`remedy`", "id = \"nan_loss\""]),
        ("[[diagnose]]\nid = '2x'", 2, &["`2x`", "begins with a letter"]),
        ("[[diagnose]]\nid = 'gpu.count'", 2, &["`gpu.count`", "explain gpu.count"]),
        (
            "[[diagnose]]\nretry = 'always'",
            2,
            &["`always`", "never, same-nodes, other-node or wait"],
        ),
        ("[[diagnose]]\nowner = 3", 2, &["`owner`", "3", "code, configuration"]),
        ("[[diagnose]]\ncause = { fr = 'x' }", 2, &["`fr`", "en, zh"]),
        ("[[diagnose]]\npattern = ['x']", 2, &["`pattern`", "patterns"]),
        ("[[diagnose]]\npatterns = 'x'", 2, &["`patterns`", "list"]),
        ("[[diagnose]]\nweak = 'no'", 2, &["`weak`", "true or false"]),
        ("[[watch]]\nline = 'x'\nevery = '5m'", 1, &["`id`", "id = \"steps\""]),
        ("[[watch]]\nid = '2x'", 2, &["`2x`", "begins with a letter"]),
        ("[[watch]]\nid = 'a'\nevery = '5m'", 1, &["`line`", "line = 'step"]),
        ("[[watch]]\nline = '(x'", 2, &["`line`", "(x", "unclosed group", "bytes"]),
        ("[[watch]]\nwithin = 'soon'", 2, &["`within`", "`soon`", "30s, 30m"]),
        ("[[watch]]\nevery = 0", 2, &["`every`", "0", "30s, 30m"]),
        ("[[watch]]\nid = 'a'\nline = 'x'", 1, &["exactly one", "-", "gpus_idle"]),
        (
            "[[watch]]\nid = 'a'\nline = 'x'\nwithin = 60\nevery = 60",
            1,
            &["within + every", "a row for each"],
        ),
        ("[[watch]]\nid = 'a'\nline = 'x'\nmax = 3", 1, &["names no number", "(?P<value>…)"]),
        (
            "[[watch]]\nid = 'a'\nline = '(?P<value>x)'\nmin = 3\nmax = 2.5",
            1,
            &["`min` is 3", "`max` is 2.5"],
        ),
        ("[[watch]]\nmin = 'one'", 2, &["`min`", "`one`", "finite number"]),
        ("[[watch]]\nmax = inf", 2, &["`max`", "finite number"]),
        ("[[watch]]\nfinite = 1", 2, &["`finite`", "true or false"]),
        ("[[watch]]\nranks = '3-1'", 2, &["`ranks`", "`3-1`", "0-3, 8"]),
        ("[[watch]]\nstream = 'stdout'", 2, &["`stream`", "`stdout`", "both, out or err"]),
        ("[[watch]]\non = 'kill'", 2, &["`on`", "`kill`", "report, end or restart"]),
        ("[[watch]]\nid = 'a'\nline = 'x'\ngpus_idle = 60", 1, &["`gpus_idle`", "two rows"]),
        ("[[watch]]\nwithn = 60", 2, &["`withn`", "within"]),
        (
            "[[watch]]\nid='a'\ngpus_idle=60\n[[watch]]\nid='a'\ngpus_idle=60",
            4,
            &["`a`", ":1", "each id"],
        ),
        ("[diagnose]\nid = 'a'", 1, &["a list"]),
        (
            "[[diagnose]]\nid='a'\ncause='b'\nremedy='c'\n[[diagnose]]\nid='a'\ncause='b'\nremedy='c'",
            5,
            &["`a`", ":1"],
        ),
        ("[logs]\nlog_cap_rank = '1 PB'", 2, &["`1 PB`", "256MiB"]),
    ] {
        let (_folder, path) = file(text);
        let given = cli::Options { profile: Some(path.clone().into()), ..cli::Options::default() };
        let refusal = Settings::read(&given, &host(&[])).expect_err(text);
        assert_eq!(refusal.verdict, Verdict::Usage, "{text}");
        for words in [&refusal.text.en, &refusal.text.zh] {
            assert!(words.contains(&format!("{path}:{line}:")), "{text}: {words}");
        }
        let told = format!("{} | {}", refusal.text.en, refusal.hint.en);
        for part in parts {
            assert!(told.contains(part), "{text}: {part} is missing in {told}");
        }
    }
}

#[test]
fn severities_may_be_written_with_and_without_quotes() {
    let settings =
        read_profile("[severity]\nshm.size = 'fail'\n'gpu.busy' = 'off'\nmemlock='warn'");
    let severities = settings.expect("settings").severities;
    let found: Vec<(Id, Severity)> = severities.iter().map(|(id, s)| (*id, s.value)).collect();
    let expected = [
        (Id::GpuBusy, Severity::Off),
        (Id::ShmSize, Severity::Fail),
        (Id::Memlock, Severity::Warn),
    ];
    assert_eq!(found, expected);
}

#[test]
fn profiles_are_found_by_name_and_by_file() {
    let root = tempfile::tempdir().expect("a folder");
    let node = Host::replayed(root.path(), BTreeMap::new());
    let etc = root.path().join("etc/ranklaunch");
    std::fs::create_dir_all(&etc).expect("a folder");
    let profile = |line: &[&str]| {
        Settings::read(&options(line), &node)
            .map(|s| (s.profile.unwrap_or_default(), s.nnodes.map(|n| n.value)))
    };
    assert_eq!(profile(&[]).expect("none"), (String::new(), None));
    assert_eq!(profile(&["--profile", "zimdb"]).expect("embedded"), ("zimdb".into(), Some(1)));

    std::fs::write(etc.join("ranklaunch.toml"), "[job]\nnnodes = 5").expect("a file");
    std::fs::write(etc.join("zimdb.toml"), "[job]\nnnodes = 6").expect("a file");
    let at = |name: &str| etc.join(name).display().to_string();
    assert_eq!(profile(&[]).expect("unnamed"), (at("ranklaunch.toml"), Some(5)));
    assert_eq!(profile(&["--profile", "zimdb"]).expect("named"), (at("zimdb.toml"), Some(6)));

    let refusal = profile(&["--profile", "wan2"]).expect_err("no such name");
    for part in ["--profile is `wan2`", "wan22, taehv, zimdb", &at("wan2.toml")] {
        assert!(refusal.text.en.contains(part), "{}", refusal.text.en);
    }
    assert!(refusal.hint.en.contains("--profile wan22"));
    let refusal = profile(&["--profile", "/no/such.toml"]).expect_err("no such file");
    assert!(refusal.text.en.contains("searched: /no/such.toml"), "{}", refusal.text.en);

    std::fs::write(etc.join("bad.toml"), b"[job]\n\xff").expect("a file");
    let refusal = profile(&["--profile", &at("bad.toml")]).expect_err("not UTF-8");
    assert!(refusal.text.en.contains("line 2 is not UTF-8"), "{}", refusal.text.en);
    std::fs::write(etc.join("big.toml"), vec![b'#'; 2 << 20]).expect("a file");
    let refusal = profile(&["--profile", &at("big.toml")]).expect_err("too large");
    assert!(refusal.text.en.contains("1 MiB"), "{}", refusal.text.en);
}

#[test]
fn extending_profile_replaces_only_its_own_values() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("a file");
        folder.path().join(name).to_str().expect("a plain path").to_owned()
    };
    let of = |path: &str| {
        let options = cli::Options { profile: Some(path.into()), ..cli::Options::default() };
        Settings::read(&options, &host(&[]))
    };
    // One variable and one argument in addition to the embedded profile.
    let mine = write(
        "mine.toml",
        "extends = 'wan22'\n[job]\nargs = ['--size', '1280*720']\n[env]\nA = '1'\n[severity]\n'memlock' = 'off'",
    );
    let settings = of(&mine).expect("settings");
    let base = embedded("wan22");
    let args = |settings: &Settings| settings.program.as_ref().map(|p| p.value.args().to_vec());
    let mut expected = args(&base).expect("arguments");
    expected.extend(words(&["--size", "1280*720"]));
    assert_eq!(args(&settings), Some(expected));
    assert_eq!(settings.env.len(), base.env.len() + 1);
    assert_eq!(settings.severities.len(), base.severities.len() + 1);
    assert_eq!(settings.layout.rule.value, LayoutRule::UlyssesWorld);
    assert!(settings.layout.heads_table.is_some());

    // A profile with its own program has only its own arguments; lists replace lists.
    let other = write(
        "other.toml",
        "extends = 'taehv'\n[job]\nmodule = 'a.b'\nengine_args = []\nworkdir = 'src'\n[layout]\nheads = 8",
    );
    let settings = of(&other).expect("settings");
    let module = Program::Module { name: "a.b".into(), args: Vec::new() };
    assert_eq!(settings.program.map(|program| program.value), Some(module));
    assert_eq!((settings.engine_args.len(), settings.selects.len()), (0, 2));
    assert_eq!(settings.engine.value, Engine::Accelerate);
    assert_eq!(settings.chdir.map(|chdir| chdir.value), Some(folder.path().join("src")));

    // Two files by path; the working directory is relative to the file that sets it.
    std::fs::create_dir(folder.path().join("sub")).expect("a folder");
    let top = write("sub/top.toml", "extends = '../other.toml'\n[job]\nnproc_per_node = 2");
    let settings = of(&top).expect("settings");
    assert_eq!(settings.nproc_per_node.value, Nproc::Count(2));
    let workdir = settings.chdir.map(|chdir| chdir.value).expect("a folder");
    assert_eq!(workdir.file_name(), Some("src".as_ref()));
    assert!(!workdir.starts_with(folder.path().join("sub/src")), "{workdir:?}");

    // A file may extend the embedded profile of its own name.
    let same = write("wan22.toml", "extends = 'wan22'\n[job]\nnnodes = 3");
    let settings = of(&same).expect("settings");
    assert_eq!(settings.nnodes.map(|n| n.value), Some(3));
    assert!(settings.layout.heads_table.is_some());

    write("a.toml", "extends = 'b.toml'");
    let loops = write("b.toml", "extends = './a.toml'");
    let refusal = of(&loops).expect_err("a loop");
    assert!(refusal.text.en.contains("extends this profile itself"), "{}", refusal.text.en);
    let wrong = write("wrong.toml", "extends = 'wan2'");
    let refusal = of(&wrong).expect_err("no such name");
    assert!(refusal.text.en.contains(&format!("{wrong}:1")), "{}", refusal.text.en);
    assert_eq!(refusal.hint.en, "did you mean wan22?");
    let deep: Vec<String> = (0..12)
        .map(|n| write(&format!("d{n}.toml"), &format!("extends = 'd{}.toml'", n + 1)))
        .collect();
    let refusal = of(&deep[0]).expect_err("too many");
    assert!(refusal.text.en.contains("extend each other"), "{}", refusal.text.en);
}

#[test]
fn diagnose_rows_have_defaults_and_replace_by_id() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let row = |id: &str, cause: &str| {
        format!("[[diagnose]]\nid = '{id}'\nfragments = ['Boom']\ncause = {cause}\nremedy = 'r'\n")
    };
    let base = row("a", "'of the base'") + &row("b", "{ en = 'B', zh = '乙' }");
    std::fs::write(at("base.toml"), base).expect("a file");
    let over = format!("extends = 'base.toml'\n{}", row("a", "'of mine'"));
    std::fs::write(at("mine.toml"), over).expect("a file");
    let settings =
        Settings::read(&options(&["--profile", &at("mine.toml")]), &host(&[])).expect("settings");
    let found: Vec<_> = (settings.diagnose.iter())
        .map(|row| (row.value.id.as_str(), &*row.value.cause.en, &*row.value.cause.zh))
        .collect();
    assert_eq!(found, [("b", "B", "乙"), ("a", "of mine", "of mine")]);
    let row = &settings.diagnose[1].value;
    assert_eq!((row.role, row.owner, row.retry), (Role::Root, Owner::Code, Retry::SameNodes));
    // `explain` reads only the rows: a program that is not there does not matter.
    std::fs::write(at("other.toml"), "extends = 'mine.toml'\n[job]\nscript = 'none.py'")
        .expect("a file");
    let rows =
        options(&["--profile", &at("other.toml")]).diagnose_rows(&host(&[]), &mut Vec::new());
    assert_eq!(rows.expect("rows").len(), 2);
    assert_eq!(options(&[]).diagnose_rows(&host(&[]), &mut Vec::new()).expect("none"), []);
}
