//! Environments of real platforms and their pitfalls, with the membership or the refusal.

mod any_environment;
mod environments;
mod every_node;
mod flags;
mod half_given;
mod once_per_rank;
mod platforms;
mod process_counts;
mod schedulers;
mod single_nodes;
mod spares;

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::*;
use crate::Task;
use linux::host::Host;
use node::observe::{GpuFacts, VisibleGpu};
use settings::contract::Contract;
use settings::fixtures::undecided;
use settings::{Source, Sourced};

/// The result: the membership with its notes, or the refusal.
struct Told {
    result: Result<Membership, Refusal>,
    notes: Notes,
}

impl Told {
    /// The decisions: what, value, source.
    fn sources(&self) -> Vec<(&str, &str, &str)> {
        let decisions = self.notes.decisions.iter();
        decisions.map(|one| (&*one.what, &*one.value, &*one.source)).collect()
    }

    /// `platform nnodes rank addr:port [free] [min:max] [task RANK/WORLD LOCAL/OF] [warning ids]`,
    /// or `refused id`.
    fn line(&self) -> String {
        match &self.result {
            Err(refusal) => format!("refused {}", refusal.id),
            Ok(member) => {
                let mut line = format!(
                    "{} {} {} {}:{}",
                    member.platform,
                    member.nnodes,
                    member.node_rank,
                    member.master_addr,
                    member.master_port
                );
                if member.master_port_free {
                    line.push_str(" free");
                }
                if let Some((least, most)) = member.elastic {
                    line = format!("{line} {least}..{most}");
                }
                if let Some(task) = &member.task {
                    let Task { rank, world, local, of, .. } = task;
                    line = format!("{line} task {rank}/{world} {local}/{of}");
                }
                for warning in &self.notes.warnings {
                    line.push(' ');
                    line.push_str(warning.id.as_str());
                }
                line
            }
        }
    }

    fn text(&self) -> String {
        self.result.as_ref().err().map(|refusal| refusal.text.en.to_string()).unwrap_or_default()
    }
}

fn host(pairs: &str) -> Host {
    let environment: BTreeMap<OsString, OsString> = pairs
        .split_whitespace()
        .filter_map(|pair| pair.split_once('='))
        // Values of the tables hold no blanks; `~` stands for a line feed.
        .map(|(name, value)| (name.into(), value.replace('~', "\n").into()))
        .collect();
    Host::replayed("/nonexistent", environment)
}

fn gpus(count: usize) -> GpuFacts {
    let visible = (0..count).map(|gpu| VisibleGpu { gpu, token: gpu.to_string() }).collect();
    GpuFacts { visible, ..GpuFacts::default() }
}

fn tell(settings: &Settings, host: &Host, gpus: &GpuFacts) -> Told {
    let mut notes = Notes::default();
    let mut contract = Contract::read(host, None, settings.own_platform());
    contract.add_host_files(&Contract::host_files(host));
    let result = membership(settings, &contract, gpus, &mut notes);
    Told { result, notes }
}

fn of(pairs: &str) -> Told {
    tell(&undecided(), &host(pairs), &gpus(8))
}

fn check(table: &[(&str, &str)]) {
    let wrong: Vec<String> = table
        .iter()
        .filter_map(|(pairs, expected)| {
            let told = of(pairs);
            let line = told.line();
            (line != *expected)
                .then(|| format!("{pairs}\n  want {expected}\n  have {line} {}", told.text()))
        })
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

fn flag<T>(name: &str, value: T) -> Option<Sourced<T>> {
    Some(Sourced::new(value, Source::Flag(name.to_owned())))
}

#[test]
fn generic_variables_count_nodes() {
    check(&[
        ("", "none 1 0 127.0.0.1:29500 free"),
        (
            "WORLD_SIZE=2 RANK=1 MASTER_ADDR=jo-x-worker-0 MASTER_PORT=29500",
            "generic 2 1 jo-x-worker-0:29500",
        ),
        ("WORLD_SIZE=8 RANK=0 MASTER_ADDR=a", "generic 8 0 a:29500"),
        ("WORLD_SIZE=1 RANK=0", "generic 1 0 127.0.0.1:29500 free"),
        (
            "WORLD_SIZE=1 RANK=0 MASTER_ADDR=None MASTER_PORT=None",
            "generic 1 0 127.0.0.1:29500 free",
        ),
        ("WORLD_SIZE=1 RANK=0 MASTER_ADDR=", "generic 1 0 127.0.0.1:29500 free"),
        ("WORLD_SIZE=1 RANK=0 MASTER_ADDR=job-0 MASTER_PORT=12345", "generic 1 0 job-0:12345 free"),
        ("WORLD_SIZE=1 RANK=0 MASTER_ADDR=$(X)", "generic 1 0 127.0.0.1:29500 free master.addr"),
        ("MASTER_ADDR=127.0.0.1 MASTER_PORT=29500", "generic 1 0 127.0.0.1:29500 free"),
        ("MASTER_PORT=29600", "generic 1 0 127.0.0.1:29600 free"),
        ("MASTER_PORT=tcp://10.0.0.1:1", "none 1 0 127.0.0.1:29500 free"),
        ("WORLD_SIZE= RANK= MASTER_ADDR=", "generic 1 0 127.0.0.1:29500 free"),
        ("WORLD_SIZE=2 RANK=0 MASTER_ADDR=[fd00::1] MASTER_PORT=1", "generic 2 0 fd00::1:1"),
        (
            "WORLD_SIZE=2 RANK=1 MASTER_ADDR=localhost",
            "generic 2 1 localhost:29500 master.localhost",
        ),
        ("WORLD_SIZE=2 RANK=0 MASTER_ADDR=localhost", "generic 2 0 localhost:29500"),
        (
            "WORLD_SIZE=2 RANK=1 MASTER_ADDR=127.0.0.5",
            "generic 2 1 127.0.0.5:29500 master.localhost",
        ),
    ]);
}

/// Only a number of nodes from WORLD_SIZE alone may be a number of processes.
#[test]
fn node_count_from_world_size_alone_is_marked() {
    let world = "WORLD_SIZE=2 RANK=1 MASTER_ADDR=a MASTER_PORT=29500";
    for (pairs, expected) in
        [(world.to_owned(), true), (format!("{world} PET_NNODES=2 PET_NODE_RANK=1"), false)]
    {
        let member = of(&pairs).result.expect("a membership");
        assert_eq!((member.nnodes, member.nnodes_by_world_size), (2, expected), "{pairs}");
    }
}

#[test]
fn incomplete_and_out_of_range_evidence_is_refused() {
    check(&[
        ("WORLD_SIZE=2 RANK=1 MASTER_ADDR=None", "refused membership.master-addr"),
        ("WORLD_SIZE=2 RANK=1", "refused membership.master-addr"),
        ("WORLD_SIZE=2 MASTER_ADDR=a", "refused membership.half-given"),
        ("RANK=1 MASTER_ADDR=a", "refused membership.half-given"),
        ("RANK=0 MASTER_ADDR=10.0.0.1", "refused membership.half-given"),
        ("WORLD_SIZE=2 RANK=2 MASTER_ADDR=a", "refused membership.rank"),
        ("WORLD_SIZE=1 RANK=1", "refused membership.rank"),
        ("WORLD_SIZE=0 RANK=0", "refused membership.number"),
        ("WORLD_SIZE=-2 RANK=0", "refused membership.number"),
        ("WORLD_SIZE=two RANK=0", "refused membership.number"),
        ("WORLD_SIZE=99999999999 RANK=0", "refused membership.number"),
        ("WORLD_SIZE=2 RANK=-1 MASTER_ADDR=a", "refused membership.number"),
        ("WORLD_SIZE=2 RANK=0 MASTER_ADDR=a MASTER_PORT=0", "refused membership.master-port"),
        ("WORLD_SIZE=2 RANK=0 MASTER_ADDR=a MASTER_PORT=70000", "refused membership.master-port"),
        ("WORLD_SIZE=2 RANK=0 MASTER_ADDR=a MASTER_PORT=http", "refused membership.master-port"),
        ("WORLD_SIZE=1 RANK=0 MASTER_PORT=70000", "refused membership.master-port"),
        (
            "WORLD_SIZE=2 RANK=0 MASTER_ADDR=a MASTER_PORT=tcp://10.0.0.1:29500",
            "refused membership.master-port",
        ),
        ("WORLD_SIZE=2 RANK=0 MASTER_ADDR=tcp://10.0.0.1:29500", "refused membership.master-addr"),
        ("WORLD_SIZE=2 RANK=0 MASTER_ADDR=10.0.0.1:29500", "refused membership.master-addr"),
        ("WORLD_SIZE=2 RANK=0 MASTER_ADDR=${HEAD}", "refused membership.master-addr"),
    ]);
    // A Service called `master` in the namespace must not stop a single node.
    check(&[(
        "WORLD_SIZE=1 RANK=0 MASTER_PORT=tcp://10.0.0.1:29500",
        "generic 1 0 127.0.0.1:29500 free master.port",
    )]);
}

#[test]
fn refusals_quote_the_variable_and_name_the_flag() {
    let table = [
        ("WORLD_SIZE=2 RANK=7 MASTER_ADDR=a", "RANK=7", "--node-rank"),
        ("WORLD_SIZE=2 RANK=1 MASTER_ADDR=None", "MASTER_ADDR=None", "--master-addr"),
        ("WORLD_SIZE=0", "WORLD_SIZE=0", "--nnodes"),
        (
            "WORLD_SIZE=2 RANK=0 MASTER_ADDR=a MASTER_PORT=tcp://10.0.0.1:1",
            "Service link",
            "--master-port",
        ),
        ("KUBEBRAIN_REPLICA_TOTAL=4 NODE_COUNT=2", "KUBEBRAIN_REPLICA_TOTAL=4", "--nnodes"),
    ];
    for (pairs, quoted, named) in table {
        let refusal = of(pairs).result.expect_err(pairs);
        assert_eq!(refusal.verdict.code(), 65);
        assert!(refusal.text.en.contains(quoted), "{pairs}: {}", refusal.text.en);
        assert!(
            refusal.text.zh.contains(quoted) || quoted == "Service link",
            "{}",
            refusal.text.zh
        );
        assert!(refusal.hint.en.contains(named), "{pairs}: {}", refusal.hint.en);
        assert!(refusal.hint.zh.contains(named), "{pairs}: {}", refusal.hint.zh);
    }
}
