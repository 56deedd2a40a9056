//! `ranklaunch plan`: prints the actions of `run`, with the reason of each value.

use std::sync::Arc;

use super::output::{block_on, choose, print, refuse, say, show, terminal_width};
use crate::collect;
use crate::context::remap;
use crate::open::{Opened, open};
use crate::outlook::{self, Outlook};
use crate::warm;
use linux::own_executable;
use plan::Scope;
use preflight::decide::decide;
use report::{closing, plan_forms, plan_view};
use settings::cli;

pub(crate) fn plan(asked: &cli::Plan) -> i32 {
    let opened = open(&asked.options).and_then(|Opened { host, mut settings, .. }| {
        let lang = settings.lang;
        match settings::Assumed::read(&asked.assume) {
            Ok(Some(assumed)) => assumed.apply(&mut settings),
            Ok(None) => {}
            Err(refusal) => return Err((refusal, lang)),
        }
        Ok((host, settings))
    });
    let (host, settings) = match opened {
        Ok(opened) => opened,
        Err((refusal, lang)) if asked.format == cli::Format::Json => {
            print(format!("{:#}\n", plan_forms::refusal_json(&refusal, lang)));
            return refusal.verdict.code();
        }
        Err((refusal, lang)) => return refuse(&refusal, lang),
    };
    choose(settings.color.value);
    let (host, settings) = (Arc::new(host), Arc::new(settings));
    let outlook = block_on(async {
        let facts = collect::observe(&host, &settings).await;
        let decided = decide(&settings, &facts, Scope::Alone);
        let outlook = outlook::outlook(&settings, &decided);
        (outlook::beside_stale(&host, &settings, &facts, &decided, outlook).await, facts)
    });
    let (outlook, facts) = match outlook {
        Ok((outlook, facts)) => (outlook, Some(facts)),
        Err(refusal) => (Outlook::refused(refusal), None),
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
            show(&plan_forms::evidence_text(&evidence, lang, terminal_width()));
        }
        cli::Format::Json => {
            let shim = own_executable::path().unwrap_or_else(|_| "ranklaunch".into());
            let document =
                plan_forms::outlook_json(plan.as_ref(), refusal.as_ref(), &evidence, lang, &shim);
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
    code
}
