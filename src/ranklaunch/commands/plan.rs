//! `ranklaunch plan`: predicts the plan, the refusal and the warnings of a launch without touching the node, with the
//! reason of each value; `ranklaunch clean`: finds and ends stale processes, as a launch does, and starts nothing.

use std::sync::Arc;

use super::output::{
    Refused, block_on, choose, print, say, say_unused_profile, show, terminal_width,
};
use crate::context::remap;
use crate::open::{Opened, open};
use crate::own_plan::interactive;
use crate::stale::{request, survey};
use crate::{collect, warm};
use linux::host::Host;
use linux::own_executable;
use node::observe::Facts;
use plan::{Plan, Scope, WeighedEvidence};
use preflight::clear::{self, ClearReport};
use preflight::decide::{Decided, Stage, decide};
use report::{closing, plan_forms, plan_view, ps_view, settings_view};
use settings::{Settings, cli};
use verdict::Refusal;

pub(crate) fn plan(asked: &cli::Plan) -> Result<i32, Refused> {
    let opened = open(&asked.options).and_then(|Opened { host, mut settings, .. }| {
        let lang = settings.lang;
        match settings::Assumed::read(&asked.assume) {
            Ok(Some(assumed)) => assumed.apply(&mut settings),
            Ok(None) => {}
            Err(refusal) => return Err(Refused { refusal, lang: Some(lang) }),
        }
        Ok((host, settings))
    });
    let (host, settings) = match opened {
        Ok(opened) => opened,
        Err(Refused { refusal, lang: Some(lang) }) if asked.format == cli::Format::Json => {
            print(format!("{:#}\n", plan_forms::refusal_json(&refusal, lang)));
            return Ok(refusal.verdict.code());
        }
        Err(refused) => return Err(refused),
    };
    choose(settings.color.value);
    let (host, settings) = (Arc::new(host), Arc::new(settings));
    let outlook = block_on(async {
        let facts = collect::observe(&host, &settings).await;
        let decided = decide(&settings, &facts, Scope::Alone);
        (outlook(&host, &settings, &facts, &decided).await, facts)
    });
    let (outlook, facts) = match outlook {
        Ok((outlook, facts)) => (outlook, Some(facts)),
        Err(refusal) => {
            (Outlook { plan: None, refusal: Some(refusal), evidence: Vec::new() }, None)
        }
    };
    let Outlook { plan, refusal, evidence } = outlook;
    let lang = settings.lang;
    let code =
        refusal.as_ref().map_or(0, |refusal| remap(&settings.exit_codes, refusal.verdict.code()));
    match asked.format {
        cli::Format::Text => {
            if let Some(refusal) = &refusal {
                show(&closing::would_be_refused(refusal, code, lang));
            }
            if let Some((plan, facts)) = plan.as_ref().zip(facts.as_ref()) {
                let shown = plan_view::Shown { verbose: settings.verbose, width: terminal_width() };
                show(&plan_view::text(plan, lang, shown));
                for line in warm::outlook(&host, &settings, facts, plan) {
                    show(&closing::line(&line, lang));
                }
            }
            if settings.site.is_some() {
                show(&format!("\n{}", settings_view::text(&settings, terminal_width())));
            }
            show(&plan_forms::evidence_text(&evidence, lang, terminal_width()));
        }
        cli::Format::Json => {
            let shim = own_executable::path().unwrap_or_else(|_| "ranklaunch".into());
            let mut document =
                plan_forms::outlook_json(plan.as_ref(), refusal.as_ref(), &evidence, lang, &shim);
            for (key, value) in settings_view::json(&settings) {
                document[key] = value;
            }
            print(format!("{document:#}\n"));
        }
        cli::Format::Shell => {
            // The output for a shell must stay valid shell code.
            if let Some(refusal) = &refusal {
                say(&closing::would_be_refused(refusal, code, lang));
            }
            if let Some(plan) = &plan {
                print(plan_forms::shell(plan));
            }
        }
    }
    Ok(code)
}

/// The predicted result of a launch on this node.
struct Outlook {
    /// The plan as far as it can be made, even if the launch is refused.
    plan: Option<Plan>,
    /// The refusal that `run` would report first.
    refusal: Option<Refusal>,
    /// The variables of the platform, and the effect of each.
    evidence: Vec<WeighedEvidence>,
}

/// The plan, everything for which `run` would refuse before it touches the node, and the stale processes that it
/// would end or refuse for.
async fn outlook(
    host: &Arc<Host>,
    settings: &Settings,
    facts: &Facts,
    decided: &Decided,
) -> Outlook {
    let evidence = decided.survey().evidence().to_vec();
    let mut plan = decided.outline().as_ref().map(Plan::expected);
    let mut refusal = decided.refusal(Stage::BeforeClearing);
    // The ability of this machine to start the job says nothing about an assumed node.
    if let (Some(plan), None, None) = (&plan, &refusal, &settings.assumed) {
        let ready = match settings.host_root {
            Some(_) => plan.has_program(),
            None => plan.runnable(),
        };
        refusal = ready.and_then(|()| interactive(settings, plan)).err();
    }
    // Processes of this machine say nothing about an assumed node.
    let Some(planned) = plan.as_mut().filter(|_| settings.assumed.is_none()) else {
        return Outlook { plan, refusal, evidence };
    };
    match survey(host, settings, planned, facts).await {
        Ok(survey) => {
            if refusal.is_none() && host.is_live() {
                refusal = survey.obstacle(host, settings);
            }
            if refusal.is_none() && !survey.frees_gpus() {
                let refused = decided.refusal(Stage::BeforeStart);
                refusal = refused.map(|refusal| survey.named(refusal));
            }
            planned.warnings.extend(survey.warnings());
        }
        Err(other) => refusal = refusal.or(Some(other)),
    }
    Outlook { plan, refusal, evidence }
}

pub(crate) fn clean(asked: &cli::Clean) -> Result<i32, Refused> {
    let Opened { host, settings, .. } = open(&asked.options)?;
    choose(settings.color.value);
    let lang = settings.lang;
    // Leftovers are recognised by the running program, whatever an interpreter would report.
    let (host, settings) = (Arc::new(host.without_interpreters()), Arc::new(settings));
    say_unused_profile(&settings, lang);
    let for_people = asked.format == cli::ReportFormat::Text;
    let cleaned = block_on(async {
        let facts = collect::observe(&host, &settings).await;
        // A python without torch or a failed GPU prevents a job from starting, but does not keep a
        // leftover alive.
        let plan = plan::survey(&settings, &facts, Scope::Alone).into_outline()?;
        let request = request(&settings, &plan, &facts);
        if asked.dry_run {
            let found = clear::find(&host, &request);
            return Ok(ClearReport { found, ..ClearReport::default() });
        }
        clear::clear(&host, &request, &mut |line| {
            if for_people {
                show(&closing::line(&line, lang));
            }
        })
    });
    let in_its_language = |refusal| Refused { refusal, lang: Some(lang) };
    let report = cleaned.and_then(|report| report).map_err(in_its_language)?;
    if !for_people {
        print(format!("{:#}\n", ps_view::stale_json(&report.found, &report.ended, lang)));
    } else if asked.dry_run || report.found.is_empty() {
        show(&ps_view::stale_table(&report.found, lang));
    } else {
        let mode = settings.stale.value;
        let left = report.found.iter().filter(|one| !one.is_ended_by(mode) && !one.inner);
        for one in left {
            show(&closing::line(&one.left_alone(mode), lang));
        }
    }
    Ok(0)
}
