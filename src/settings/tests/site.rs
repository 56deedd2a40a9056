//! The platform's file below every profile: which layer wins, which keys are locked, and the errors that the file may
//! have.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use verdict::{Id, Severity};

use super::*;
use crate::table::{Allowed, Toml};

/// A node with a platform's file and a profile; a text of None is a missing file.
pub(super) struct Layers {
    root: tempfile::TempDir,
    variables: Vec<(String, String)>,
    words: Vec<String>,
}

impl Layers {
    pub(super) fn new(site: Option<&str>, profile: Option<&str>) -> Layers {
        let root = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(root.path().join("etc/ranklaunch")).expect("made");
        let layers = Layers { root, variables: Vec::new(), words: Vec::new() };
        for (name, text) in [("site.toml", site), ("ranklaunch.toml", profile)] {
            if let Some(text) = text {
                std::fs::write(layers.path(name), text).expect("written");
            }
        }
        layers
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join("etc/ranklaunch").join(name)
    }

    pub(super) fn set(mut self, name: &str, value: &str) -> Layers {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(super) fn typed(mut self, word: String) -> Layers {
        self.words.push(word);
        self
    }

    pub(super) fn read(&self) -> Result<Settings, Refusal> {
        let environment = self.variables.iter().map(|(n, v)| (n.into(), v.into())).collect();
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        Settings::read(&options(&words), &Host::replayed(self.root.path(), environment))
    }

    /// The settings without what says which layers there were.
    fn effect(&self) -> String {
        let settings = self.read().unwrap_or_else(|refusal| panic!("{}", refusal.text.en));
        let bare = Settings {
            profile: None,
            site: None,
            stated: Vec::new(),
            warnings: Vec::new(),
            repeated: Vec::new(),
            ..settings
        };
        let root = self.root.path().display().to_string();
        format!("{bare:?}").replace(&root, "ROOT")
    }
}

/// Values of which every row takes at least two that differ.
const VALUES: &[&str] = &[
    "1",
    "2",
    "7",
    "true",
    "false",
    "30s",
    "300",
    "5m",
    "2h",
    "1GiB",
    "all",
    "20,14d",
    "auto",
    "off",
    "a",
    "b",
    "n[0-3]",
    "/x",
    "/y",
    "0.0.0.0:9401",
    "--x",
    "(?P<percent>\\d+)",
    "a.b",
    "-c",
    "TERM",
];

/// The rows with a section, each with values that it takes.
fn rows() -> Vec<(&'static SettingRow, Vec<String>)> {
    let takes = |row: &SettingRow, text: &str| match (row.toml, row.take) {
        // A relative one counts from the folder of its file.
        _ if row.name == "chdir" && !text.starts_with('/') => false,
        (Toml::Number, _) if text.parse::<u32>().is_err() => false,
        (Toml::Boolean, _) if text.parse::<bool>().is_err() => false,
        (_, Take::One(put)) => put(&mut defaults(&host(&[])), text, Source::Default).is_some(),
        (_, Take::Entries(_)) => {
            table::put_entry(&mut defaults(&host(&[])), row.name, text.as_ref(), Source::Default)
                .is_some()
        }
        (_, Take::Apart) => false,
    };
    let of_row = |row: &'static SettingRow| {
        let names = match row.allowed {
            Allowed::OneOf(names) => names,
            Allowed::Words(..) => &[],
        };
        let all = names.iter().chain(VALUES).chain([&row.example]);
        let mut values: Vec<String> =
            all.filter(|text| takes(row, text)).map(|text| (*text).to_owned()).collect();
        values.sort();
        values.dedup();
        (row, values)
    };
    let of_files = TABLE.iter().filter(|row| row.table.is_some());
    of_files.filter(|row| !matches!(row.take, Take::Apart)).map(of_row).collect()
}

fn as_toml(row: &SettingRow, value: &str) -> String {
    let quoted = format!("{value:?}");
    let value = match row.toml {
        Toml::Text | Toml::TextOrNumber => quoted,
        Toml::Number | Toml::Boolean => value.to_owned(),
        Toml::List => format!("[{quoted}]"),
    };
    format!("[{}]\n{} = {value}\n", row.table.expect("a section"), row.key())
}

/// The flag with this value; None if the row has no flag, or one that only says true.
fn as_flag(row: &SettingRow, value: &str) -> Option<String> {
    row.flag?;
    match row.toml {
        Toml::Boolean => (value == "true").then(|| format!("--{}", row.name)),
        _ => Some(format!("--{}={value}", row.name)),
    }
}

/// One row with a value, or none, in each layer.
fn placed(row: &SettingRow, values: &[Option<&str>; 4], locked: bool) -> Layers {
    let [site, profile, variable, flag] = values;
    let lock = if locked { format!("locked = [\"{}\"]\n", row.key()) } else { String::new() };
    let site = site.map(|value| lock + &as_toml(row, value));
    let profile = profile.map(|value| as_toml(row, value));
    let mut layers = Layers::new(site.as_deref(), profile.as_deref());
    if let Some((name, value)) = row.variable().zip(*variable) {
        layers = layers.set(&name, value);
    }
    match flag.and_then(|value| as_flag(row, value)) {
        Some(word) => layers.typed(word),
        None => layers,
    }
}

/// The row with only its strongest value.
fn strongest(row: &SettingRow, values: &[Option<&str>; 4]) -> Layers {
    let mut alone = [None; 4];
    let counts = |at: usize, value: &str| match at {
        2 => row.variable().is_some(),
        3 => as_flag(row, value).is_some(),
        _ => true,
    };
    let last = (0..4).rev().find(|at| values[*at].is_some_and(|value| counts(*at, value)));
    if let Some(at) = last {
        alone[at] = values[at];
    }
    placed(row, &alone, false)
}

#[test]
fn every_row_has_two_values_to_choose_from() {
    for (row, values) in rows() {
        assert!(values.len() > 1, "{}: {values:?}", row.name);
    }
}

proptest! {
    /// Site < profile < variable < flag, for every key with one value.
    #[test]
    fn the_strongest_layer_decides_each_key(
        row in 0..rows().len(),
        picks in prop::array::uniform4(prop::option::of(0..100_usize)),
    ) {
        let (row, values) = rows().swap_remove(row);
        prop_assume!(matches!(row.take, Take::One(_)));
        let values = picks.map(|pick| pick.map(|pick| values[pick % values.len()].as_str()));
        prop_assert_eq!(placed(row, &values, false).effect(), strongest(row, &values).effect());
    }

    /// Lists add up in the order of the layers.
    #[test]
    fn entries_of_lists_keep_the_order_of_layers(picks in prop::array::uniform4(any::<bool>())) {
        let row = row("retry-on").expect("a row");
        let names = ["of_site", "of_profile", "of_variable", "of_flag"];
        let values = [0, 1, 2, 3].map(|at| picks[at].then_some(names[at]));
        let settings = placed(row, &values, false).read().expect("settings");
        let found: Vec<&str> = settings.retry_on.iter().map(|id| id.value.as_str()).collect();
        let expected: Vec<&str> = values.iter().flatten().copied().collect();
        prop_assert_eq!(found, expected);
    }

    /// Each layer above is refused for another value of a locked key, and for no value that means the same.
    #[test]
    fn locked_key_refuses_each_layer_above(
        row in 0..rows().len(),
        fixed in 0..100_usize,
        other in 0..100_usize,
        layer in 1..4_usize,
    ) {
        let (row, values) = rows().swap_remove(row);
        let (fixed, other) = (&values[fixed % values.len()], &values[other % values.len()]);
        let mut values = [Some(fixed.as_str()), None, None, None];
        values[layer] = Some(other);
        let is_given = match layer {
            2 => row.variable().is_some(),
            3 => as_flag(row, other).is_some(),
            _ => true,
        };
        let layers = placed(row, &values, true);
        let alone = |value: &str| placed(row, &[Some(value), None, None, None], false).effect();
        let is_same = match row.take {
            Take::One(_) => alone(fixed) == alone(other),
            // An entry with a separator is two in a variable.
            _ => fixed == other,
        };
        match layers.read() {
            Ok(settings) => {
                prop_assert!(is_same || !is_given, "{}: {fixed} {other}", row.name);
                prop_assert!(settings.stated.iter().all(|one| one.locked == (one.key == row.key())));
            }
            Err(refusal) => {
                prop_assert!(!is_same && is_given, "{}: {fixed} {other}", row.name);
                prop_assert_eq!((refusal.verdict.code(), refusal.id), (64, Id::SettingsLocked));
                let site = layers.path("site.toml").display().to_string();
                let own = match layer {
                    1 => format!("{}:2", layers.path("ranklaunch.toml").display()),
                    2 => row.variable().expect("a variable"),
                    _ => format!("--{}", row.name),
                };
                for text in [&refusal.text.en, &refusal.text.zh] {
                    for part in [&own, &row.key(), &format!("{site}:3"), &format!("{site}:1")] {
                        prop_assert!(text.contains(part.as_str()), "{part}: {text}");
                    }
                }
            }
        }
    }

    /// Without the file, with an empty one, and with none by the variable, all settings are equal.
    #[test]
    fn no_platform_file_changes_nothing(
        row in 0..rows().len(),
        picks in prop::array::uniform3(prop::option::of(0..100_usize)),
    ) {
        let (row, values) = rows().swap_remove(row);
        let [profile, variable, flag] =
            picks.map(|pick| pick.map(|pick| values[pick % values.len()].as_str()));
        let layers = || placed(row, &[None, profile, variable, flag], false);
        let without = layers().effect();
        let empty = layers();
        std::fs::write(empty.path("site.toml"), "# nothing\n").expect("written");
        prop_assert_eq!(&empty.effect(), &without);
        let off = layers().set("RANKLAUNCH_SITE", "none");
        std::fs::write(off.path("site.toml"), "[launch]\nstale = 'off'\n[env]\nA = 1\n").expect("written");
        prop_assert_eq!(&off.effect(), &without);
        prop_assert!(layers().read().expect("settings").site.is_none());
    }
}

/// Tables merge key by key; rows by their id.
#[test]
fn platform_tables_lie_beneath_those_of_profiles() {
    let site = "locked = ['env.A']\n[env]\nA = 'site'\nB = 'site'\n[severity]\nnofile = 'fail'\nmemlock = 'off'\n\
                [exit]\n83 = 130\n90 = 143\n[job]\nconda_roots = ['/opt/conda']\nengine_args = ['-a']\n\
                [[watch]]\nid = 'w'\nline = 'x'\nevery = '5m'\n[[watch]]\nid = 'v'\ngpus_idle = '5m'\n\
                [[diagnose]]\nid = 'd'\nfragments = ['f']\ncause = 'of the site'\nremedy = 'r'\n\
                [[select]]\ntotal_gpus = 8\nvalues = { c = 'site' }\n";
    let profile = "[env]\nB = 'mine'\nC = 'mine'\n[severity]\nmemlock = 'warn'\n[exit]\n90 = 1\n\
                   [job]\nengine_args = ['-b']\n[[watch]]\nid = 'w'\nline = 'y'\nevery = '1m'\n\
                   [[select]]\ntotal_gpus = 16\nvalues = { d = 'mine' }\n";
    let settings = Layers::new(Some(site), Some(profile)).read().expect("settings");
    let env: BTreeMap<&str, &str> = (settings.env.iter())
        .map(|one| (one.name.as_str(), one.value.to_str().expect("text")))
        .collect();
    assert_eq!(env, [("A", "site"), ("B", "mine"), ("C", "mine")].into());
    assert_eq!(settings.severities[&Id::Nofile].value, Severity::Fail);
    assert_eq!(settings.severities[&Id::Memlock].value, Severity::Warn);
    assert_eq!(settings.exit_codes, [(83, 130), (90, 1)].into());
    assert_eq!(settings.engine_args, ["-b"]);
    assert_eq!(settings.conda_roots, [Path::new("/opt/conda")]);
    let watched: Vec<&str> = settings.watch.iter().map(|rule| rule.value.id.as_str()).collect();
    assert_eq!(watched, ["v", "w"]);
    assert_eq!(settings.diagnose.len(), 1);
    let sizes: Vec<Option<u32>> = settings.selects.iter().map(|row| row.total_gpus).collect();
    assert_eq!(sizes, [Some(16)]);
    let said = |key: &str| {
        let one = settings.stated.iter().find(|one| one.key == key).expect(key);
        (one.value.as_str(), one.source.layer(), one.locked)
    };
    assert_eq!(said("env.A"), ("site", "site", true));
    assert_eq!(said("env.B"), ("mine", "profile", false));
    assert_eq!(said("exit.83"), ("130", "site", false));
    assert_eq!(said("watch.w"), ("y", "profile", false));
    let file = settings.site.expect("a file");
    assert!(file.file.ends_with("etc/ranklaunch/site.toml") && file.locked == ["env.A"]);
}

#[test]
fn locked_entries_refuse_every_way_to_change_them() {
    let site = "locked = ['env.A', 'severity.nofile', 'exit.83', 'watch.w', 'diagnose.d', 'launch.retry_on', 'stale', \
                'wait_timeout']\n\
                [env]\nA = 'x'\n[severity]\nnofile = 'fail'\n[exit]\n83 = 130\n[launch]\nretry_on = ['a', 'b']\nwait_timeout = '30m'\n\
                [[watch]]\nid = 'w'\nline = 'x'\nevery = '5m'\n\
                [[diagnose]]\nid = 'd'\nfragments = ['f']\ncause = 'c'\nremedy = 'r'\n";
    let node = |profile: &str| Layers::new(Some(site), Some(profile));
    let typed =
        |words: &[&str]| words.iter().fold(node(""), |all, word| all.typed((*word).to_owned()));
    let watch = "[[watch]]\nid = 'w'\nline = 'x'\nevery = ";
    for (layers, parts) in [
        (node("[env]\nA = 'y'"), Some("env.A to `y`")),
        (node("[env]\nA = 'x'\nB = 'y'"), None),
        (typed(&["--env", "A=y"]), Some("--env sets env.A to `y`")),
        (typed(&["--env", "A=x"]), None),
        (node("").set("RANKLAUNCH_ENV", "B=1\nA=y"), Some("RANKLAUNCH_ENV sets env.A")),
        // The container's variable would win over [env].
        (node("").set("A", "y"), Some("A sets env.A to `y`")),
        (node("").set("A", ""), Some("A sets env.A to ``")),
        (node("").set("A", "x"), None),
        (node("[severity]\n'nofile' = 'off'"), Some("severity.nofile to `off`")),
        (typed(&["--severity", "nofile=warn"]), Some("--severity sets severity.nofile")),
        (typed(&["--severity", "memlock=off", "--severity", "nofile=fail"]), None),
        (node("[exit]\n83 = 1"), Some("exit.83 to `1`")),
        (node("[exit]\n83 = 130"), None),
        (node(&format!("{watch}'1m'")), Some("watch.w")),
        (node(&format!("{watch}300")), None),
        (
            node("[[diagnose]]\nid = 'd'\ncause = 'c'\nremedy = 's'\nfragments=['f']"),
            Some("diagnose.d"),
        ),
        (typed(&["--retry-on", "c"]), Some("--retry-on sets retry_on to `c`, but")),
        (node("[launch]\nretry_on = ['b']"), None),
        (typed(&["--stale", "off"]), Some("leaves it at its default")),
        // Another spelling of the same time.
        (typed(&["--wait-timeout", "1800"]), None),
        (node("").set("RANKLAUNCH_WAIT_TIMEOUT", "31m"), Some("wait_timeout to `31m`")),
    ] {
        let words = &layers.words;
        match (layers.read(), parts) {
            (Ok(_), None) => {}
            (Err(refusal), Some(part)) => {
                assert_eq!(refusal.id, Id::SettingsLocked);
                assert!(refusal.text.en.contains(part), "{part}: {}", refusal.text.en);
                assert!(refusal.text.en.contains("site.toml:1 locks"), "{}", refusal.text.en);
                assert!(refusal.hint.en.contains("ask the platform's team"), "{}", refusal.hint.en);
            }
            (found, expected) => panic!("{words:?} {expected:?}: {found:?}"),
        }
    }
    for (site, layers, part) in [
        (
            "locked = ['nnodes']\n[job]\nnnodes = 1",
            "nodes = 'a,b'",
            "ranklaunch.toml:2 sets nodes to `a,b`, but",
        ),
        ("locked = ['nnodes']", "nodes = 'a,b'", "locks nnodes and leaves it at its default"),
        (
            "locked = ['master_addr']\n[job]\nmaster_addr = 'h'",
            "nodes = 'a,b'",
            "sets master_addr to `h`",
        ),
        ("locked = ['python']", "conda_env = 'e'", "sets conda_env to `e`"),
        ("locked = ['conda_env']\n[job]\nconda_env = 'e'", "python = '/p'", "sets python to `/p`"),
    ] {
        let layers = Layers::new(Some(site), Some(&format!("[job]\n{layers}")));
        let refusal = layers.read().expect_err(part);
        assert!(refusal.text.en.contains(part), "{part}: {}", refusal.text.en);
    }
    // torchrun's variables decide where nothing else does.
    let locked = Layers::new(Some("locked = ['max_restarts']"), None).set("PET_MAX_RESTARTS", "1");
    let refusal = locked.read().expect_err("another number");
    assert!(refusal.text.en.contains("PET_MAX_RESTARTS sets max_restarts"), "{}", refusal.text.en);
    let fixed = "locked = ['max_restarts']\n[launch]\nmax_restarts = 2";
    let fixed = Layers::new(Some(fixed), None).set("PET_MAX_RESTARTS", "1");
    assert_eq!(fixed.read().expect("settings").max_restarts.value, 2);
    let secret = "locked = ['env.HF_TOKEN']\n[env]\nHF_TOKEN = 'hunter2'\n";
    let refusal = Layers::new(Some(secret), None).typed("--env=HF_TOKEN=hunter3".to_owned()).read();
    let text = refusal.expect_err("another token").text.en;
    assert!(!text.contains("hunter"), "{text}");
}

/// `python` and `conda_env` choose the same thing.
#[test]
fn interpreter_is_that_of_the_stronger_layer() {
    let keys = |keys: &str| format!("[job]\n{keys}");
    let (python, conda) = (keys("python = '/p'"), keys("conda_env = 'e'"));
    let chosen = |layers: Layers| {
        let Settings { python, conda_env, .. } = layers.read().expect("settings");
        python.map_or_else(
            || conda_env.expect("one of them").value,
            |python| python.value.display().to_string(),
        )
    };
    let of = |site: &str, profile: &str| Layers::new(Some(site), Some(profile));
    assert_eq!(chosen(of(&python, &conda)), "e");
    assert_eq!(chosen(of(&conda, &python)), "/p");
    assert_eq!(chosen(of(&python, &python).typed("--conda-env=e".to_owned())), "e");
    assert_eq!(chosen(of(&python, &python).set("RANKLAUNCH_CONDA_ENV", "e")), "e");
    assert_eq!(chosen(of(&python, "").typed("--conda-env=e".to_owned())), "e");
    let flag = of("", &conda).typed("--python=/q".to_owned());
    assert_eq!(chosen(flag.set("RANKLAUNCH_CONDA_ENV", "e")), "/q");
}

/// The container's own variable wins over `[env]`, and the settings say so.
#[test]
fn settings_name_the_containers_variable() {
    let layers = Layers::new(Some("[env]\nFOO = 'site'\nBAR = 'site'"), None).set("FOO", "mine");
    let stated = layers.read().expect("settings").stated;
    let value = |key: &str| {
        let one = stated.iter().find(|one| one.key == key).expect("a key");
        (one.value.clone(), one.source.layer())
    };
    assert_eq!(value("env.FOO"), ("mine".to_owned(), "variable"));
    assert_eq!(value("env.BAR"), ("site".to_owned(), "site"));
}

#[test]
fn platform_file_faults_name_file_and_line() {
    for (text, line, parts) in [
        ("[logs]\nlog_kep = 'all'", 2, &["`log_kep`", "log_keep"][..]),
        ("[job]\nnnodes = 0", 2, &["nnodes", "`0`", "1 or more"]),
        ("[lgos]\n", 1, &["`lgos`", "[logs]"]),
        ("[logs\n", 1, &["TOML"]),
        ("locked = 'log_keep'", 1, &["`locked`", "a list of texts"]),
        ("locked = [\n'log_keep',\n'log_kep']", 3, &["`log_kep`", "did you mean log_keep?"]),
        ("locked = ['severity.nofle']", 1, &["`severity.nofle`", "severity.nofile"]),
        ("locked = ['exit.63']", 1, &["`exit.63`", "exit."]),
        ("locked = ['severity']", 1, &["`severity`", "severity.nofile"]),
        ("locked = ['script']", 1, &["`script`", "allowed here: log_keep"]),
        ("locked = ['env.A B']", 1, &["`env.A B`"]),
        ("locked = ['launch.log_keep']", 1, &["`launch.log_keep`"]),
        ("extends = 'wan22'", 1, &["`extends`", "only a profile has it"]),
        ("[job]\nscript = 'a.py'", 2, &["`script`", "the job names its program"]),
        ("[job]\nargs = ['a']", 2, &["`args`", "the job names its program"]),
        ("lock = ['log_keep']", 1, &["`lock`", "locked"]),
        ("min_version = 3", 1, &["`min_version`", "3", "a version in quotes"]),
        (
            "min_version = '99.1'\nnewer = 1",
            1,
            &["ranklaunch 99.1 or later", env!("CARGO_PKG_VERSION")],
        ),
        ("newer = 1\nmin_version = '99.1'", 2, &["ranklaunch 99.1 or later"]),
    ] {
        let layers = Layers::new(Some(text), None);
        let refusal = layers.read().expect_err(text);
        assert_eq!(refusal.verdict, Verdict::Usage, "{text}");
        let place = format!("{}:{line}: ", layers.path("site.toml").display());
        assert!(refusal.text.en.starts_with(&place), "{text}: {}", refusal.text.en);
        assert!(refusal.text.zh.starts_with(&place), "{text}: {}", refusal.text.zh);
        let told = format!("{} | {}", refusal.text.en, refusal.hint.en);
        for part in parts {
            assert!(told.contains(part), "{text}: {part} is missing in {told}");
        }
    }
    let refusal = read_profile("locked = ['log_keep']").expect_err("locked in a profile");
    assert!(refusal.hint.en.contains("RANKLAUNCH_SITE"), "{}", refusal.hint.en);
    let refusal = read_profile("newer = 1\nmin_version = '99'").expect_err("a newer profile");
    assert!(refusal.text.en.contains("needs ranklaunch 99 or later"), "{}", refusal.text.en);
    let own = format!("min_version = '{}'\n[job]\nnnodes = 2", env!("CARGO_PKG_VERSION"));
    assert_eq!(read_profile(&own).expect("this version").nnodes.map(|n| n.value), Some(2));
    assert!(read_profile("min_version = '0.1'").is_ok());
}

#[test]
fn platform_file_may_have_dos_lines_and_a_mark() {
    let site = "\u{feff}locked = ['log_keep']\r\n[logs]\r\nlog_keep = '20'\r\n";
    let layers = Layers::new(Some(site), None);
    let settings = layers.read().expect("settings");
    assert_eq!(settings.log_keep.value.runs, Some(20));
    assert!(settings.log_keep.source.to_string().ends_with("site.toml:3"));
}

#[test]
fn platform_file_that_is_none_is_refused() {
    let named = |what: &str| {
        let layers = Layers::new(None, None);
        let path = layers.path("site.toml");
        match what {
            "folder" => std::fs::create_dir(&path).expect("made"),
            "fifo" => {
                let mode = rustix::fs::Mode::from_raw_mode(0o600);
                rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
                    .expect("made");
            }
            "latin" => std::fs::write(&path, b"[env]\nA = '\xe9'\n").expect("written"),
            "utf-16" => std::fs::write(&path, b"\xff\xfe[\0e\0").expect("written"),
            "large" => std::fs::write(&path, vec![b'#'; 2 << 20]).expect("written"),
            other => panic!("{other}"),
        }
        let refusal = layers.read().expect_err(what);
        assert_eq!((refusal.verdict.code(), refusal.id), (64, Id::SettingsSite), "{what}");
        assert!(refusal.hint.en.contains("RANKLAUNCH_SITE=none"), "{}", refusal.hint.en);
        let free = layers.set("RANKLAUNCH_SITE", "none").read().expect(what);
        assert!(free.warnings.iter().any(|warning| warning.text == refusal.text), "{what}");
        refusal.text.en.into_owned()
    };
    for (what, words) in [
        ("folder", "it is a folder"),
        ("fifo", "no regular file"),
        ("latin", "line 2 is not UTF-8"),
        ("utf-16", "line 1 is not UTF-8"),
        ("large", "larger than 1 MiB"),
    ] {
        let text = named(what);
        assert!(text.contains(words) && text.contains("site.toml"), "{what}: {text}");
    }
}

#[test]
fn file_with_locks_cannot_be_turned_off() {
    let plain = "[logs]\nlog_keep = '20'\n";
    let locked = format!("locked = ['log_keep']\n{plain}");
    let mine = "[logs]\nlog_keep = '3'\n";
    let kept = |site: &str, variable: &str| {
        let layers = Layers::new(Some(site), None).set("RANKLAUNCH_SITE", variable);
        std::fs::write(layers.root.path().join("mine.toml"), mine).expect("written");
        layers.read().map(|settings| settings.log_keep.value.runs)
    };
    assert_eq!(kept(plain, "none").expect("none"), None);
    assert_eq!(kept(plain, "/mine.toml").expect("mine"), Some(3));
    // An empty variable counts as unset, as every other does.
    assert_eq!(kept(plain, "").expect("unset"), Some(20));
    assert_eq!(kept(&locked, "/etc/ranklaunch/site.toml").expect("the same"), Some(20));
    for other in ["none", "/mine.toml"] {
        let refusal = kept(&locked, other).expect_err(other);
        assert_eq!(refusal.id, Id::SettingsLocked);
        for part in ["RANKLAUNCH_SITE is", other, "site.toml:1 locks log_keep"] {
            assert!(refusal.text.en.contains(part), "{}", refusal.text.en);
        }
    }
}

#[test]
fn a_misspelt_site_variable_gets_the_name() {
    let settings = Layers::new(None, None).set("RANKLAUNCH_SIT", "none").read().expect("settings");
    let told: Vec<&str> = settings.warnings.iter().map(|one| &*one.hint.en).collect();
    assert_eq!(told, ["did you mean RANKLAUNCH_SITE?"]);
}

/// The meeting of a node whose settings are refused is that of its platform.
#[test]
fn refused_node_still_meets_by_the_platforms_values() {
    let site = "locked = ['nnodes']\n[job]\nnnodes = 2\n[launch]\nmuster_port = 4000\n";
    let layers = Layers::new(Some(site), Some("[job]\nnnodes = 3\n"));
    assert_eq!(layers.read().expect_err("locked").id, Id::SettingsLocked);
    let host = Host::replayed(layers.root.path(), BTreeMap::new());
    let meeting = Settings::read_meeting(&options(&[]), &host).expect("a meeting");
    assert_eq!(meeting.muster_port.map(|port| port.value), Some(4000));
}

/// Rows of the platform's file are those of `explain` as well, with and without a profile.
#[test]
fn explain_knows_the_platforms_failures() {
    let row = |id: &str| {
        format!("[[diagnose]]\nid = '{id}'\nfragments = ['f']\ncause = 'c'\nremedy = 'r'\n")
    };
    let layers = Layers::new(Some(&row("of_site")), Some(&row("of_job")));
    let host = Host::replayed(layers.root.path(), BTreeMap::new());
    let ids = |line: &[&str]| -> Vec<String> {
        let rows = options(line).diagnose_rows(&host, &mut Vec::new()).expect("rows");
        rows.into_iter().map(|row| row.value.id).collect()
    };
    assert_eq!(ids(&[]), ["of_site"]);
    assert_eq!(ids(&["--profile", "ranklaunch"]), ["of_site", "of_job"]);
}
