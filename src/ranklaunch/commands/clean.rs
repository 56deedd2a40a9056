//! `ranklaunch clean`: finds and ends stale processes, as a launch does, and starts nothing.

use std::sync::Arc;

use super::output::{block_on, choose, print, refuse, say_unused_profile, show};
use crate::collect;
use crate::open::{Opened, open};
use crate::stale_request::request;
use plan::Scope;
use preflight::clear::{self, ClearReport};
use report::{closing, ps_view};
use settings::cli;

pub(crate) fn clean(asked: &cli::Clean) -> i32 {
    let Opened { host, settings, .. } = match open(&asked.options) {
        Ok(opened) => opened,
        Err((refusal, lang)) => return refuse(&refusal, lang),
    };
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
    let report = match cleaned.and_then(|report| report) {
        Ok(report) => report,
        Err(refusal) => return refuse(&refusal, lang),
    };
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
    0
}
