//! Parsing of command lines, and the refusals.

use proptest::prelude::*;

use clap::CommandFactory;

use super::*;
use verdict::{Refusal, Verdict};

fn read(line: &str) -> Result<Command, Stop> {
    let words = line.split_whitespace().map(OsString::from);
    Command::parse(std::iter::once(OsString::from("ranklaunch")).chain(words))
}

#[test]
fn the_definition_is_consistent() {
    Line::command().debug_assert();
}

#[test]
fn without_a_subcommand_it_runs() {
    let bare = read("--nnodes 2 -- generate.py --task t2v -h -- x");
    let named = read("run --nnodes 2 -- generate.py --task t2v -h -- x");
    assert_eq!(bare, named);
    let Ok(Command::Run(options)) = bare else { panic!("{bare:?}") };
    assert_eq!(options.nnodes, Some("2".into()));
    assert_eq!(options.program, ["generate.py", "--task", "t2v", "-h", "--", "x"]);
    assert!(matches!(read(""), Ok(Command::Run(_))));
}

#[test]
fn subcommands_take_their_own_options() {
    let Ok(Command::Plan(plan)) = read("plan --format shell -m a.b -- --lr 1") else {
        panic!("no plan")
    };
    assert_eq!((plan.format, plan.options.module), (Format::Shell, Some("a.b".into())));
    assert_eq!(plan.options.program, ["--lr", "1"]);
    assert!(matches!(read("clean --dry-run"), Ok(Command::Clean(Clean { dry_run: true, .. }))));
    let Ok(Command::Check(check)) = read("check --torch --report a.json --format json --nnodes 2")
    else {
        panic!("no check")
    };
    assert_eq!((check.torch, check.format), (true, ReportFormat::Json));
    assert_eq!(check.options.nnodes, Some("2".into()));
    assert!(matches!(read("wait a:1 --timeout 5m"), Ok(Command::Wait(_))));
    let Ok(Command::Init(init)) = read("init --grace 2s -- sh -c --grace") else {
        panic!("no init")
    };
    assert_eq!((init.grace, init.command.len()), (Some("2s".into()), 3));
    assert!(matches!(read("man --lang zh"), Ok(Command::Man { lang: Some(_), .. })));
}

fn refused(line: &str) -> Refusal {
    match read(line) {
        Err(Stop::Refused(refusal)) => refusal,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn a_bad_line_is_refused_with_one_hint() {
    for (line, problem, hint) in [
        ("--nnode 2", "`--nnode`", "did you mean `--nnodes`?"),
        ("pln", "`pln`", "did you mean `plan`?"),
        ("train.sh a", "`train.sh`", "no .py file: ranklaunch [options] -- bash train.sh …"),
        ("run train", "`train`", "ranklaunch run [options] -- train"),
        ("python train.py", "`python`", "ranklaunch [options] train.py …"),
        ("plan python3 -u train.py", "`python3`", "ranklaunch plan [options] -- python3 …"),
        ("torchrun --lr train.py", "`torchrun`", "leave it out: ranklaunch [options] train.py …"),
        ("run plan", "`plan`", "one subcommand"),
        ("plan --format yaml", "`yaml`", "write one of: text, json, shell"),
        ("--nnodes", "`--nnodes <N>` needs a value", "ranklaunch --help"),
        ("--rdzv-id", "`--rdzv-id` needs a value", "write its value"),
        ("run train --version", "`train`", "ranklaunch run [options] -- train"),
        ("wait", "<HOST:PORT> is missing", "ranklaunch wait --help"),
        ("init", "is missing", "--help"),
        ("init sleep 1", "`sleep`", "ranklaunch init -- sleep"),
        ("completions qqq", "`qqq`", "bash"),
        ("profile", "profile needs", "list, show, new, check"),
        ("profile shwo x", "`shwo`", "did you mean `show`?"),
        // Arguments of the script, which resemble none of ours.
        ("--ulysses_size 8", "`--ulysses_size`", "behind it: ranklaunch [options] SCRIPT.py"),
        ("--prompt cat", "`--prompt`", "SCRIPT.py --prompt"),
        ("--seed=4 t.py --x", "`--seed`", "[options] t.py --seed …"),
        ("--model x", "`--model`", "Arguments of the script go behind it"),
        // Words that are no typing mistakes.
        ("uninstall", "`uninstall`", "rm "),
        ("list", "`list`", "write ranklaunch profile list"),
        ("doctor", "`doctor`", "write ranklaunch check"),
        ("qqqq", "`qqqq`", "put -- before a program that is no .py file"),
        // As an editor writes dashes.
        ("–nnodes 2", "`–nnodes`", "did you mean `--nnodes`? "),
        ("—nnodes 2", "`—nnodes`", "— (U+2014) is not a plain -"),
        ("plan －－nnodes=2", "`－－nnodes`", "did you mean `--nnodes`"),
        ("help muster", "help about `muster`", "--muster is an option: ranklaunch run --help"),
        ("help muster", "help about `muster`", "ranklaunch explain muster"),
        ("help --nnodes", "help about `--nnodes`", "ranklaunch run --help"),
        ("help muster.script", "help about `muster.script`", "ranklaunch explain muster.script"),
        ("help plam", "help about `plam`", "ranklaunch help plan"),
        ("help qqqq", "help about `qqqq`", "commands: run, plan"),
        ("help --lang en hang", "help about `hang`", "ranklaunch explain hang"),
        ("help layuot", "help about `layuot`", "ranklaunch help layout"),
    ] {
        let Refusal { verdict, text, hint: said, .. } = refused(line);
        assert_eq!(verdict, Verdict::Usage, "{line}");
        assert!(text.en.contains(problem), "{line}: {}", text.en);
        assert!(said.en.contains(hint), "{line}: {}", said.en);
        assert!(text.zh != text.en && said.zh != said.en, "{line}: {text:?} {said:?}");
        let nonsense = ["--probe", "--stale", "install", "lint"];
        let guesses = said.en.contains("did you mean");
        assert!(!guesses || nonsense.iter().all(|one| !said.en.contains(one)), "{}", said.en);
    }
}

/// It is a value, which the setting then judges.
#[test]
fn a_negative_number_is_a_value_and_no_option() {
    for line in ["--nnodes -1", "--nnodes=-1", "plan --nproc_per_node -2 -- t.py"] {
        assert!(read(line).is_ok(), "{line}: {:?}", read(line));
    }
    assert!(refused("-1").text.en.contains("`-1`"));
}

/// Options of other launchers are accepted if they mean the same.
#[test]
fn options_of_other_launchers_mean_the_same_here() {
    for (other, ours) in [
        (
            "--nproc_per_node 4 --nnodes=2 --node_rank=1",
            "--nproc-per-node 4 --nnodes=2 --node-rank=1",
        ),
        ("--master_addr a --master_port 1234", "--master-addr a --master-port 1234"),
        ("--max_restarts 2 --log_dir x", "--max-restarts 2 --log-dir x"),
        (
            "--rdzv_backend c10d --rdzv_endpoint a:1234",
            "--rdzv c10d --master-addr=a --master-port=1234",
        ),
        ("--rdzv-endpoint=[fd00::1]:80", "--master-addr=[fd00::1] --master-port=80"),
        ("--rdzv-endpoint a", "--master-addr=a"),
        ("--rdzv-endpoint=localhost:0", "--master-addr=localhost"),
        ("--standalone", "--nnodes=1 --node-rank=0"),
        ("-m --standalone", "-m --nnodes=1 --node-rank=0"),
        ("--num_machines 2 --machine_rank 1", "--nnodes 2 --node-rank 1"),
        ("--main_process_ip a --main_process_port 1234", "--master-addr a --master-port 1234"),
        ("--num_gpus 4 --num_nodes 2", "--nproc-per-node 4 --nnodes 2"),
    ] {
        for subcommand in ["", "run ", "plan ", "check ", "clean "] {
            let of = |line: &str| read(&format!("{subcommand}{line} -- a.py --nproc_per_node 9"));
            let (other, ours) = (of(other), of(ours));
            assert!(ours.is_ok(), "{ours:?}");
            assert_eq!(other, ours);
        }
    }
}

/// Options without a counterpart are explained in one line, without guessing.
#[test]
fn other_options_of_other_launchers_are_explained() {
    for (line, of, hint) in [
        ("--run-path", "torchrun", "remove it"),
        ("-r 3", "torchrun", "--console"),
        ("-r3", "torchrun", "--console"),
        ("-t0:1,1:2", "torchrun", "--console"),
        ("-np4", "mpirun", "--nproc-per-node"),
        ("--rdzv-conf a=b", "torchrun", "--wait-timeout"),
        ("--no-python", "torchrun", "-- bash train.sh"),
        ("--no_python", "torchrun", "-- bash train.sh"),
        ("--tee 3", "torchrun", "--console"),
        ("--num_processes 4", "accelerate", "--nproc-per-node"),
        ("--config_file a.yaml", "accelerate", "engine_args"),
        ("--hostfile h", "deepspeed", "on every node"),
        ("-np 4", "mpirun", "--nproc-per-node"),
        ("--dry-run", "no option", "ranklaunch plan"),
        ("--debug", "no option", "--verbose"),
        ("-q", "no option", "--console"),
    ] {
        let Refusal { text, hint: said, .. } = refused(line);
        let typed = line.split([' ', '=']).next().expect("a word");
        assert!(text.en.contains(&format!("`{typed}`")), "{line}: {}", text.en);
        assert!(text.en.contains(of) && said.en.contains(hint), "{line}: {} {}", text.en, said.en);
        assert!(text.zh.contains(typed) && said.zh != said.en, "{line}");
    }
    assert!(read("clean --dry-run").is_ok(), "clean has one of its own");
}

/// The options of an entry point come first, then those of the user.
#[test]
fn the_last_of_two_options_counts_and_a_subcommand_may_stand_behind_options() {
    let Ok(Command::Run(options)) = read(
        "--profile wan22 --wait-timeout 30m --nproc_per_node 4 --wait-timeout=5m --nproc-per-node 2 --env A=1 --env B=2",
    ) else {
        panic!("no run")
    };
    assert_eq!(options.wait_timeout, Some("5m".into()));
    assert_eq!(options.nproc_per_node, Some("2".into()));
    assert_eq!(options.env.len(), 2, "what adds up is not overridden");
    let twice = [("nproc-per-node".to_owned(), 2), ("wait-timeout".to_owned(), 2)];
    assert_eq!(options.repeated, twice);

    for (line, same) in [
        ("--profile wan22 plan --nnodes 2", "plan --profile wan22 --nnodes 2"),
        (
            "--nnodes 2 --interactive plan --format json",
            "plan --nnodes 2 --interactive --format json",
        ),
        ("--profile plan -- plan", "run --profile plan -- plan"),
        ("--log_dir plan check", "check --log-dir plan"),
        ("--lang zh lint a.yaml", "lint --lang zh a.yaml"),
    ] {
        assert_eq!(read(line), read(same), "{line}");
        assert!(read(line).is_ok(), "{line}: {:?}", read(line));
    }
}

#[test]
fn help_and_version_are_asked_for() {
    let shown = |line: &str| match read(line) {
        Err(Stop::Shown(text)) => text,
        other => panic!("{line}: {other:?}"),
    };
    for (word, flag) in [
        ("help plan", "plan --help"),
        ("version", "--version"),
        ("help profile show", "profile show --help"),
        ("run --version", "--version"),
        ("lint -V", "--version"),
    ] {
        assert_eq!(shown(word), shown(flag), "{word}");
    }
    shown("-V");
    for (line, topic) in [("help", None), ("help --lang en hangs", Some(Topic::Hangs))] {
        assert!(matches!(read(line), Ok(Command::Help { topic: asked, .. }) if asked == topic));
    }
    assert!(shown("help -h").contains("COMMAND|TOPIC"));
    let help = shown("--help");
    for word in ["--master-port", "--log-cap-node", "--rdma", "completions", "Nodes:"] {
        assert!(help.contains(word), "{word} is missing in\n{help}");
    }
    for name in crate::Placeholder::all().map(|placeholder| placeholder.name()) {
        assert!(help.contains(&format!("{{{name}}}")), "{name} is missing in\n{help}");
    }
    let version = shown("--version");
    assert!(version.contains(env!("CARGO_PKG_VERSION")) && version.contains("linux"));
}

/// Letters stand together, as in `-vh`, and one dash before a word is many letters.
#[test]
fn help_among_other_letters_is_in_the_users_language() {
    for (line, plain) in [("-help", "-h"), ("-vh", "-h"), ("plan -help", "plan -h")] {
        let shown = |line: &str, lang: Lang| {
            let words = std::iter::once("ranklaunch").chain(line.split(' ')).map(OsString::from);
            let words: Vec<OsString> = words.collect();
            match Command::parse(words.iter().cloned()) {
                Err(Stop::Shown(text)) => Command::shown(text, &words, lang),
                other => panic!("{line}: {other:?}"),
            }
        };
        for lang in [Lang::En, Lang::Zh] {
            assert_eq!(shown(line, lang), shown(plain, lang), "{line}");
        }
        assert_ne!(shown(line, Lang::En), shown(line, Lang::Zh), "{line}");
    }
    // A version stays one.
    assert!(matches!(read("-Vh"), Err(Stop::Shown(text)) if text.starts_with("ranklaunch ")));
}

#[test]
fn manual_has_the_usual_sections() {
    let codes = [("86".to_owned(), Text::new("no answer", "没有应答"))];
    for (lang, sections) in [
        (
            Lang::En,
            "NAME SYNOPSIS DESCRIPTION OPTIONS COMMANDS EXIT_STATUS ENVIRONMENT FILES EXAMPLES VERSION SEE_ALSO",
        ),
        (Lang::Zh, "名称 概要 描述 选项 子命令 退出状态 环境变量 文件 示例 版本 参见"),
    ] {
        let page = String::from_utf8(Command::man(lang, &codes).expect("a page")).expect("text");
        let found = page.lines().filter_map(|line| line.strip_prefix(".SH "));
        let found: Vec<String> =
            found.map(|name| name.trim_matches('"').replace(' ', "_")).collect();
        assert_eq!(found.join(" "), sections);
        // A page is indented by 7 of 80 columns.
        let (_, examples) = page.rsplit_once(".nf\n").expect("lines as they are");
        let (examples, _) = examples.split_once(".fi").expect("an end");
        let examples = examples.replace("\\-", "-").replace("\\e", "\\").replace("\\\\", "\\");
        assert!(examples.lines().count() > 4, "{examples}");
        let widest = examples.lines().max_by_key(|line| line.chars().count()).expect("a line");
        assert!(widest.chars().count() <= 73, "{widest}");
        let usage = page.split(".SH ").nth(2).expect("a synopsis");
        assert!(usage.lines().count() < 9, "{usage}");
        for words in [
            "ranklaunch plan [\\-\\-format <FORMAT>]",
            "ranklaunch wait <HOST:PORT> [\\-\\-timeout",
            "\\fB86\\fR",
        ] {
            assert!(page.contains(words), "{words} is missing in\n{page}");
        }
        assert!(!page.contains("(1)"), "refers to a page that is not there:\n{page}");
        let name = page.split(".SH ").nth(1).and_then(|name| name.lines().nth(1)).expect("a name");
        let (_, sentence) = name.split_once("\\- ").expect("a sentence");
        assert_eq!(page.matches(sentence).count(), 1, "{sentence} stands twice");
    }
}

#[test]
fn every_command_has_a_manual_page_in_both_languages_and_refers_to_no_other() {
    let mut all = Vec::new();
    commands(&Line::command(), "", &mut all);
    let expected: Vec<String> = all
        .iter()
        .map(|(path, _)| format!("ranklaunch {path}").trim_end().replace(' ', "-") + ".1")
        .collect();
    for (lang, heading) in [(Lang::En, ".SH SYNOPSIS"), (Lang::Zh, ".SH 概要")] {
        let pages = Command::man_pages(lang, &[]).expect("pages");
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, expected);
        for (name, page) in &pages {
            let page = String::from_utf8_lossy(page).replace("\\-", "-");
            assert!(page.contains(heading), "{name}: {page}");
            for word in page.split_whitespace().filter_map(|word| word.strip_suffix("(1)")) {
                let known = names.iter().any(|name| name.strip_suffix(".1") == Some(word));
                assert!(known, "{name} refers to {word}(1), which is no page");
            }
        }
    }
}

/// Every command with its words, the program itself first.
fn commands(command: &clap::Command, path: &str, found: &mut Vec<(String, clap::Command)>) {
    found.push((path.to_owned(), command.clone()));
    for below in command.get_subcommands() {
        let path = format!("{path} {}", below.get_name());
        commands(below, path.trim_start(), found);
    }
}

#[test]
fn everything_that_help_shows_has_a_chinese_text_and_nothing_else_has() {
    let mut all = Vec::new();
    commands(&Line::command(), "", &mut all);
    let names: Vec<&str> = all.iter().map(|(path, _)| path.as_str()).collect();
    let known: Vec<&str> = chinese::COMMANDS.iter().map(|(path, ..)| *path).collect();
    assert_eq!(names, known, "commands in their order");
    let mut used = std::collections::BTreeSet::new();
    for (path, command) in &all {
        let (_, about, more) =
            chinese::COMMANDS.iter().find(|(known, ..)| known == path).expect("a text");
        assert!(!about.is_empty(), "{path}");
        let is_long = command.get_long_about().is_some();
        assert_eq!(is_long, !more.is_empty(), "{path}: both languages are as long");
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            let id = arg.get_id().as_str();
            let help = arg.get_help().unwrap_or_else(|| panic!("{path} {id} has no help"));
            let zh = chinese::text_of(path, id).unwrap_or_else(|| panic!("{path} {id}: no text"));
            let own = format!("{path}.{id}");
            let key = chinese::OPTIONS.iter().find(|(key, _)| *key == own || *key == id);
            used.insert(key.map(|(key, _)| *key).expect("a key"));
            assert_eq!(arg.get_long_help().is_some(), zh.contains("\n\n"), "{path} {id}");
            // A default of one word must be the same word.
            let of = |text: &str, mark: &str| {
                let (_, rest) = text.split_once(mark)?;
                Some(rest.split_once(']')?.0.to_owned())
            };
            let (en, zh) = (of(&help.to_string(), "[default: "), of(zh, "[默认："));
            let is_value = en.as_ref().is_some_and(|default| !default.contains(' '));
            assert!(if is_value { en == zh } else { en.is_some() == zh.is_some() }, "{path} {id}");
            for value in arg.get_possible_values() {
                assert!(value.get_help().is_none(), "{path} {id}: a value with an English text");
            }
            if let Some(heading) = arg.get_help_heading() {
                assert!(chinese::HEADINGS.iter().any(|(known, _)| *known == heading), "{heading}");
            }
        }
    }
    let all_keys = chinese::OPTIONS.iter().map(|(key, _)| *key).collect();
    assert_eq!(used, all_keys, "texts of options that are not there");
}

#[test]
fn chinese_texts_name_options_that_exist() {
    let mut all = Vec::new();
    commands(&Line::command(), "", &mut all);
    let longs: Vec<String> = all
        .iter()
        .flat_map(|(_, command)| command.get_arguments())
        .filter_map(|arg| Some(format!("--{}", arg.get_long()?)))
        .chain(["--help".to_owned(), "--".to_owned()])
        .collect();
    let options = chinese::OPTIONS.iter().map(|(_, text)| *text);
    let texts =
        options.chain(chinese::COMMANDS.iter().flat_map(|(_, about, more)| [*about, *more]));
    let mut named = 0;
    for text in texts {
        for (at, _) in text.match_indices("--") {
            let rest = &text[at..];
            let end = rest.find(|c: char| !(c.is_ascii_lowercase() || c == '-'));
            let option = &rest[..end.unwrap_or(rest.len())];
            assert!(longs.iter().any(|long| long == option), "{option} in {text}");
            named += 1;
        }
    }
    assert!(named > 5, "{named}");
}

proptest! {
    #[test]
    fn any_arguments_give_a_line_or_a_stop(
        words in proptest::collection::vec("(-{0,2}(nnodes|env|format|m|lang|help)?=?.{0,6})|plan|run|--", 0..8)
    ) {
        let words = words.into_iter().map(OsString::from);
        let read = Command::parse(std::iter::once(OsString::from("ranklaunch")).chain(words));
        match read {
            Ok(_) => {}
            Err(Stop::Shown(text)) => prop_assert!(text.ends_with('\n')),
            Err(Stop::Refused(refusal)) => {
                prop_assert!(!refusal.text.zh.is_empty() && !refusal.hint.zh.is_empty());
            }
        }
    }
}
