//! `ranklaunch`: starts a node's part of a distributed PyTorch job, supervises its processes,
//! captures their output and reports one verdict.
//!
//! The other crates are rooms along a corridor that this one walks, in this order:
//!
//! ```text
//! settings → node → (muster: gather) → preflight (plan, check, clear) → (muster: agree)
//!          → prepare → supervise + logs → report
//! ```
//!
//! Only this crate calls functions with effects. The result of a crate is a type ([`settings::Settings`],
//! [`node::observe::Facts`], [`plan::Plan`], [`muster::LinkReport`]), which the later ones take. [`lint`] is beside the
//! corridor: it reads manifests, judges them by `settings` and `plan`, and starts nothing. [`verdict`] has the exit
//! codes and the table of ids, [`report::findings`] their explanations.
//!
//! [`main`] dispatches to the role or the subcommand that the arguments name. `conductor` owns the order of the phases
//! of a launch. Each phase has a file of its own, and `live` runs the phases on a real node. The subcommands that start
//! no job are in `commands`.

#![deny(unsafe_code)]

mod agent;
mod agree;
mod agree_lines;
mod attempt;
mod bad_nodes;
#[doc(hidden)]
pub mod collect;
/// The subcommands that start no job, and their common output.
mod commands {
    pub(super) mod adopt;
    pub(super) mod check;
    pub(super) mod checkpoint;
    pub(super) mod explain;
    pub(super) mod logs;
    pub(super) mod nodes;
    pub(super) mod output;
    pub(super) mod plan;
    pub(super) mod stacks;
    pub(super) mod top;
    pub(super) mod without_job;
}
mod companions;
mod conductor;
mod context;
mod end;
mod failed_node;
mod find_run;
#[cfg(any(test, feature = "fixtures"))]
#[doc(hidden)]
pub mod fuzz;
mod here;
mod hold_muster;
mod job_session;
mod job_verdict;
mod last_places;
mod leadership;
mod live;
mod live_diagnosis;
mod muster_config;
mod narrate;
mod node_evidence;
mod node_questions;
mod notices;
mod notify_peers;
mod open;
mod own_plan;
mod own_run;
mod restart;
mod run_socket;
mod saves;
mod scratch;
mod seats;
mod shared_plan;
mod stale;
mod start_engine;
mod status_feed;
mod warm;

use std::ffi::OsString;
use std::path::Path;

use commands::output::{Refused, block_on, choose, complete, print, refuse, say};

use linux::host::Host;
use linux::sys::{Dispositions, Signal};
use report::closing;
use settings::cli::{self, Command, Options};
use supervise::isolate::isolate;
use supervise::shim;
use text::lang::Lang;
use verdict::Refusal;

/// Runs the program with its arguments, the program name first, and returns the exit code.
pub fn main(arguments: impl Iterator<Item = OsString>) -> i32 {
    let arguments: Vec<OsString> = arguments.collect();
    if let [_, role, rest @ ..] = arguments.as_slice()
        && role == "rank"
    {
        // An engine starts this once per rank, so it skips the argument parser and the settings.
        return shim::rank(rest.to_vec());
    }
    linux::sys::share_arenas();
    let commit = option_env!("RANKLAUNCH_COMMIT_NOTE");
    Command::describe_build(commit.into_iter().chain([node::probe::NOTE]).collect());
    // The language for a command line that may be wrong.
    let lang = || Options::language_of(&arguments, &Host::live());
    if let Err(refusal) = preflight::prepare::has_randomness() {
        return refuse(&refusal, lang());
    }
    let command = match Command::parse(arguments.iter().cloned()) {
        Ok(command) => command,
        Err(cli::Stop::Shown(text)) => {
            let text = Command::shown(text, &arguments, lang());
            return printing(lang(), |_| {
                print(text);
                Ok::<_, Refusal>(0)
            });
        }
        Err(cli::Stop::Refused(refusal)) => {
            let lang = lang();
            let code = refuse(&refusal, lang);
            if notify_peers::launches_where_the_platform_says(&arguments) {
                let told = block_on(notify_peers::unread(&Options::default(), &refusal));
                if let Ok(Some(line)) = told {
                    say(&closing::line(&line, lang));
                }
            }
            return code;
        }
    };
    let writing = writing(&command);
    choose(writing.color(&Host::live()));
    let lang = || writing.language(&Host::live());
    match command {
        Command::Run(options) => agent::run(&options),
        Command::Init(init) => commands::without_job::init(&init),
        Command::Plan(plan) => isolate(|| printing(lang(), |_| commands::plan::plan(&plan))),
        Command::Check(asked) => {
            Host::hide(muster::SECRET);
            isolate(|| printing(lang(), |_| commands::check::check(&asked)))
        }
        Command::Clean(clean) => isolate(|| printing(lang(), |_| commands::plan::clean(&clean))),
        Command::Wait(wait) => commands::without_job::wait(&wait),
        Command::Lint(lint) => printing(lang(), |lang| commands::without_job::lint(&lint, lang)),
        Command::Adopt(asked) => printing(lang(), |lang| commands::adopt::adopt(&asked, lang)),
        Command::Checkpoint(asked) => {
            printing(lang(), |lang| commands::checkpoint::checkpoint(&asked, lang))
        }
        Command::Nodes(asked) => printing(lang(), |lang| commands::nodes::nodes(&asked, lang)),
        Command::Explain(asked) => {
            printing(lang(), |lang| commands::explain::explain(&asked, lang))
        }
        Command::Stacks(asked) => printing(lang(), |lang| commands::stacks::stacks(&asked, lang)),
        Command::Ps(asked) => printing(lang(), |lang| commands::logs::ps(&asked, lang)),
        Command::Logs(asked) => printing(lang(), |lang| commands::logs::logs(&asked, lang)),
        Command::Top(asked) => {
            let lang = lang();
            commands::top::top(&asked, lang).unwrap_or_else(|refusal| refuse(&refusal, lang))
        }
        Command::Dump(asked) => printing(lang(), |lang| commands::stacks::dump(&asked, lang)),
        Command::Report(asked) => printing(lang(), |lang| commands::logs::report(&asked, lang)),
        Command::Compare(asked) => printing(lang(), |lang| commands::logs::compare(&asked, lang)),
        Command::Profile { action } => {
            printing(lang(), |lang| commands::without_job::profile(&action, lang))
        }
        Command::Install { folder } => {
            printing(lang(), |_| commands::without_job::install(Path::new(&folder)))
        }
        Command::Completions { shell, words } => printing(lang(), |lang| {
            Ok::<_, Refusal>(commands::without_job::completions(shell, words, lang))
        }),
        Command::Help { topic, .. } => {
            printing(lang(), |lang| Ok::<_, Refusal>(commands::without_job::help(topic, lang)))
        }
        Command::Man { output: Some(folder), .. } => {
            printing(lang(), |lang| commands::without_job::man_pages(Path::new(&folder), lang))
        }
        Command::Man { output: None, .. } => printing(lang(), commands::without_job::man),
    }
}

/// The options of a command that say how it writes. Commands without them take the variables.
fn writing(command: &Command) -> Options {
    let (color, lang) = match command {
        Command::Run(options)
        | Command::Plan(cli::Plan { options, .. })
        | Command::Check(cli::Check { options, .. })
        | Command::Clean(cli::Clean { options, .. }) => (&options.color, &options.lang),
        Command::Lint(cli::Lint { color, lang, .. })
        | Command::Adopt(cli::Adopt { color, lang, .. })
        | Command::Checkpoint(cli::Checkpoints { color, lang, .. })
        | Command::Explain(cli::Explain { color, lang, .. }) => (color, lang),
        Command::Stacks(cli::Stacks { lang, .. })
        | Command::Ps(cli::Ps { lang, .. })
        | Command::Nodes(cli::Nodes { lang, .. })
        | Command::Logs(cli::LogsOf { lang, .. })
        | Command::Top(cli::Top { lang, .. })
        | Command::Dump(cli::Dump { lang, .. })
        | Command::Report(cli::Report { lang, .. })
        | Command::Compare(cli::Compare { lang, .. })
        | Command::Man { lang, .. }
        | Command::Help { lang, .. } => (&None, lang),
        _ => (&None, &None),
    };
    Options { color: color.clone(), lang: lang.clone(), ..Options::default() }
}

/// A command whose only result is its output. A limit on file sizes (`ulimit -f`) makes its
/// write fail, which is reported, instead of killing it.
fn printing<R: Into<Refused>>(lang: Lang, command: impl FnOnce(Lang) -> Result<i32, R>) -> i32 {
    Dispositions::ignore(&[Signal::XFSZ]);
    let code = command(lang).unwrap_or_else(|refused| {
        let Refused { refusal, lang: own } = refused.into();
        refuse(&refusal, own.unwrap_or(lang))
    });
    complete(code, lang)
}
