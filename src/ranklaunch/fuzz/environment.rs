//! The variables of a platform, of NCCL and of our own settings.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use linux::host::Host;
use node::observe;
use plan::{Plan, Scope, layout};
use preflight::decide::{Stage, decide};
use report::{closing, plan_forms, plan_view};
use settings::Settings;
use settings::cli::Options;
use settings::contract::Contract;
use text::escape::printable;
use text::fuzzing::assert_printable;
use text::lang::{Lang, Text};
use verdict::{Refusal, Verdict};

/// A line of the input that is not a variable: the number of GPUs of the node.
const GPUS: &str = "gpus:";

/// Lines of `NAME=value`, the variables of a container.
///
/// They give a plan that keeps its own rules, or a refusal in both languages. A refusal about the membership names one
/// of the variables or values. The same variables give the same result.
pub fn environment(data: &[u8]) -> bool {
    let mut environment: BTreeMap<OsString, OsString> = BTreeMap::new();
    let mut gpus = 8;
    for line in data.split(|byte| *byte == b'\n') {
        if let Some(count) = line.strip_prefix(GPUS.as_bytes()) {
            gpus = u32::from(count.first().copied().unwrap_or_default() % 17);
            continue;
        }
        let Some(at) = line.iter().position(|byte| *byte == b'=').filter(|at| *at > 0) else {
            continue;
        };
        // No variable holds a zero byte.
        let of =
            |part: &[u8]| OsString::from_vec(part.iter().copied().filter(|b| *b != 0).collect());
        environment.insert(of(&line[..at]), of(&line[at + 1..]));
    }
    let host = Host::replayed("/nonexistent", environment.clone());
    let (first, again) = (planned(&host, gpus), planned(&host, gpus));
    assert_eq!(format!("{first:?}"), format!("{again:?}"));
    match first {
        Ok(plan) => {
            check(&plan);
            true
        }
        Err(refusal) => {
            refused(&refusal, &environment);
            refusal.verdict == Verdict::Membership
        }
    }
}

fn planned(host: &Host, gpus: u32) -> Result<Plan, Refusal> {
    let program = vec!["generate.py".into(), "--ulysses_size".into(), "{ulysses_size}".into()];
    let options = Options { program, ..Options::default() };
    let settings = Settings::read(&options, host)?;
    let mut facts = plan::fixtures::facts(gpus);
    facts.contract = Contract::read(host, None, settings.own_platform());
    facts.environment = observe::environment(host);
    facts.network.nccl = observe::network::nccl_settings(host);
    if let Some(value) = host.variable("CUDA_VISIBLE_DEVICES") {
        facts.gpus.visible = observe::gpu::visible(Some(&value), &facts.gpus.gpus);
        facts.gpus.cuda_visible_devices = Some(value);
    }
    decide(&settings, &facts, Scope::Alone).plan(Stage::BeforeStart)
}

fn said(texts: &[&Text]) {
    for text in texts {
        assert!(!text.en.trim().is_empty() && !text.zh.trim().is_empty(), "{text:?}");
    }
}

fn check(plan: &Plan) {
    let member = &plan.membership;
    assert!(member.node_rank < member.nnodes && member.master_port > 0, "{member:?}");
    assert!(!member.master_addr.trim().is_empty(), "{member:?}");
    let world = u64::from(member.nnodes) * u64::from(plan.nproc_per_node);
    assert_eq!(u64::from(plan.world_size), world, "{member:?}");
    let own = &plan.layout;
    let legal =
        layout::is_legal(own.rule, plan.world_size, own.heads, own.ulysses_size, own.ring_size);
    assert!(legal, "{own:?} on {} ranks", plan.world_size);
    let gpus = plan.gpus.iter().filter(|gpu| gpu.selected).count();
    assert!(gpus == 0 || gpus == plan.nproc_per_node as usize, "{gpus} GPUs: {member:?}");
    for one in &plan.decisions {
        said(&[&one.because]);
        assert!(!one.source.is_empty(), "{one:?}");
    }
    plan.warnings.iter().for_each(|one| said(&[&one.text, &one.hint]));
    for lang in [Lang::En, Lang::Zh] {
        let text = plan_view::text(plan, lang, plan_view::Shown { verbose: true, width: Some(80) });
        assert_printable(&printable(&text));
        let json = plan_forms::json(plan, lang, Path::new("/bin/ranklaunch"));
        assert_eq!(json["schema"], 1);
    }
    // A shell that reads the text finds an end to every quote.
    let shell = plan_forms::shell(plan);
    assert!(shlex::split(&shell).is_some_and(|words| !words.is_empty()), "{shell}");
}

fn refused(refusal: &Refusal, environment: &BTreeMap<OsString, OsString>) {
    let code = refusal.verdict.code();
    assert!((64..128).contains(&code), "{refusal:?}");
    said(&[&refusal.text, &refusal.hint]);
    for lang in [Lang::En, Lang::Zh] {
        assert_printable(&printable(&closing::refusal(refusal, code, lang)));
    }
    if refusal.verdict == Verdict::Membership {
        let words = format!("{} {}", refusal.text.en, refusal.hint.en);
        let names = environment.keys().any(|name| words.contains(&*name.to_string_lossy()));
        assert!(names || words.contains("--"), "no variable is named: {words}");
    }
}
