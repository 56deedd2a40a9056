//! The GPUs that a plan uses, and the number of processes.

use crate::devices::capacity;
use crate::fixtures::{
    count, facts, flag, member, planned, profile, settings, strings, wan, warned,
};
use crate::solve::plan_for;
use crate::{AskedNproc, Notes, Scope};
use node::observe::{OtherAccelerator, gpu};
use settings::contract::{Claim, Evidence, Field, Reading, Strength};
use settings::{Device, Source, Sourced};
use text::text;
use verdict::{Id, Severity, Verdict, Warning};

use super::network::networked;
use super::{env, id_of, set};

#[test]
fn two_nodes_with_eight_gpus_run_five_ranks() {
    let settings = wan(&["--ulysses_size", "{ulysses_size}"], Some(40));
    let plan = planned(&settings, &facts(8), 2, &AskedNproc::Auto).expect("a plan");
    assert_eq!((plan.nproc_per_node, plan.world_size, plan.layout.ulysses_size), (5, 10, 10));
    assert_eq!(plan.program.args(), strings(&["--ulysses_size", "10"]));
    assert_eq!(env(&plan, "CUDA_VISIBLE_DEVICES"), Some("0,1,2,3,4"));
    assert!(warned(&plan, Id::GpuUnused));
    assert_eq!(plan.decision("nproc_per_node").map(|d| d.source.as_str()), Some("solved"));
}

#[test]
fn all_gpus_need_no_variable_and_no_warning() {
    let plan = planned(&settings(&[]), &networked(), 2, &AskedNproc::Auto).expect("a plan");
    assert_eq!(env(&plan, "CUDA_VISIBLE_DEVICES"), None);
    assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
    assert!(plan.gpus.iter().all(|gpu| gpu.selected && gpu.local_rank == Some(gpu.index)));
}

#[test]
fn gpu_subset_is_idle_and_near_each_other() {
    let of = |node: &node::observe::Facts| {
        let plan = planned(&settings(&[]), node, 1, &count(2)).expect("a plan");
        env(&plan, "CUDA_VISIBLE_DEVICES").map(str::to_owned)
    };
    let mut node = facts(8);
    for (gpu, used) in [(0, 40), (1, 40), (2, 40)] {
        node.gpus.gpus[gpu].memory_used = Some(used << 30);
    }
    // GPU 3 is idle too, but alone on its NUMA node.
    assert_eq!(of(&node).as_deref(), Some("4,5"));
    for gpu in &mut node.gpus.gpus {
        gpu.memory_used = Some(u64::from(10 - gpu.index) << 32);
    }
    assert_eq!(of(&node).as_deref(), Some("6,7"));
    let mut node = facts(4);
    node.gpus.cuda_visible_devices = Some("GPU-3,GPU-1,GPU-2".into());
    node.gpus.visible =
        [3, 1, 2].map(|gpu| node::observe::VisibleGpu { gpu, token: format!("GPU-{gpu}") }).into();
    assert_eq!(of(&node).as_deref(), Some("GPU-3,GPU-1"));
}

/// In this order CUDA would take indices for other GPUs.
#[test]
fn device_order_of_a_setting_is_respected() {
    let mut settings = settings(&[]);
    settings.env = vec![set("CUDA_DEVICE_ORDER", "FASTEST_FIRST", Source::Flag("--env".into()))];
    let plan = planned(&settings, &facts(8), 1, &count(2)).expect("a plan");
    assert_eq!(env(&plan, "CUDA_VISIBLE_DEVICES"), Some("GPU-0,GPU-1"));
    assert_eq!(env(&plan, "CUDA_DEVICE_ORDER"), Some("FASTEST_FIRST"));
}

#[test]
fn gpu_choice_stays_within_the_setting() {
    let mut settings = settings(&[]);
    settings.env = vec![set("CUDA_VISIBLE_DEVICES", "5,6,7", Source::Flag("--env".into()))];
    let mut node = facts(8);
    node.gpus.gpus[5].memory_used = Some(40 << 30);
    let devices = |node: &node::observe::Facts, count_of: u32| {
        let plan = planned(&settings, node, 1, &count(count_of)).expect("a plan");
        env(&plan, "CUDA_VISIBLE_DEVICES").map(str::to_owned)
    };
    // The value of the setting was not known when the GPUs were counted.
    assert_eq!(devices(&node, 2).as_deref(), Some("5,6,7"));
    node.gpus.cuda_visible_devices = Some("5,6,7".into());
    node.gpus.visible =
        [5_usize, 6, 7].map(|gpu| node::observe::VisibleGpu { gpu, token: gpu.to_string() }).into();
    assert_eq!(devices(&node, 2).as_deref(), Some("6,7"));
    assert_eq!(devices(&node, 3).as_deref(), Some("5,6,7"));
}

fn gpu_count_of_profile(variable: &str, value: &str) -> Evidence {
    Evidence {
        platform: "ours".to_owned(),
        field: Field::GpuCount,
        claim: Claim { variable: variable.to_owned(), value: value.to_owned() },
        reading: Reading::Plain,
        beside: None,
        strength: Strength::Profile,
    }
}

#[test]
fn node_meant_for_gpus_never_becomes_cpu_worker() {
    let nothing = facts(0);
    let mut claimed = facts(0);
    claimed.gpus.requested_by = vec!["GPU_COUNT=8".into()];
    claimed.gpus.attempts =
        vec![(node::observe::GpuSource::Nvml, text!("libnvidia-ml.so.1 not found", "未找到"))];
    let mut by_device = settings(&[]);
    by_device.device = flag(Device::Gpu, "--device");
    let gpu_count = (Verdict::GpuCount, Id::GpuCount);
    assert_eq!(id_of(planned(&settings(&[]), &claimed, 1, &AskedNproc::Auto)), gpu_count);
    assert_eq!(id_of(planned(&settings(&[]), &claimed, 1, &count(4))), gpu_count);
    assert_eq!(id_of(planned(&settings(&[]), &nothing, 1, &AskedNproc::Gpus)), gpu_count);
    assert_eq!(id_of(planned(&by_device, &nothing, 1, &count(2))), gpu_count);
    assert_eq!(id_of(planned(&settings(&[]), &facts(4), 1, &count(5))), gpu_count);
    // The count of a profile's platform.
    let mut of_profile = facts(0);
    of_profile.contract.evidence.push(gpu_count_of_profile("OUR_GPUS", "8"));
    assert_eq!(id_of(planned(&settings(&[]), &of_profile, 1, &AskedNproc::Auto)), gpu_count);
    of_profile.contract.evidence = vec![gpu_count_of_profile("OUR_GPUS", "0")];
    assert!(planned(&settings(&[]), &of_profile, 1, &AskedNproc::Auto).is_ok());
    let text = planned(&settings(&[]), &claimed, 1, &AskedNproc::Auto).expect_err("refused").text;
    assert!(text.en.contains("GPU_COUNT=8") && text.en.contains("libnvidia-ml.so.1 not found"));
}

#[test]
fn ranks_without_gpu_evidence_are_cpu_workers() {
    let plan = planned(&settings(&[]), &facts(0), 1, &AskedNproc::Auto).expect("a plan");
    assert_eq!(plan.nproc_per_node, 1);
    assert!(warned(&plan, Id::GpuNone));
    let plan = planned(&settings(&[]), &facts(0), 2, &count(3)).expect("a plan");
    assert_eq!(plan.world_size, 6);
    let plan = planned(&settings(&[]), &facts(0), 1, &AskedNproc::Cpu).expect("a plan");
    assert_eq!(plan.nproc_per_node, 32);
    let mut cpu = settings(&[]);
    cpu.device = flag(Device::Cpu, "--device");
    let plan = planned(&cpu, &facts(8), 1, &count(2)).expect("a plan");
    assert!(plan.warnings.is_empty() && plan.gpus.iter().all(|gpu| !gpu.selected));
    assert_eq!(env(&plan, "CUDA_VISIBLE_DEVICES"), None);
}

/// Every list of up to three of these elements. `gpu::visible` is compared with torch elsewhere.
#[test]
fn hidden_gpus_never_become_a_cpu_worker() {
    const ELEMENTS: &[&str] = &[
        "0",
        "7",
        "8",
        "00",
        "-1",
        "-0",
        "+",
        "",
        " ",
        "x",
        "NoDevFiles",
        "all",
        "GPU-",
        "GPU-1",
        "GPU-9",
        "MIG-1",
    ];
    let lists = |elements: usize| {
        (0..ELEMENTS.len().pow(elements as u32)).map(move |mut at| {
            let words = (0..elements).map(|_| {
                let word = ELEMENTS[at % ELEMENTS.len()];
                at /= ELEMENTS.len();
                word
            });
            words.collect::<Vec<_>>().join(",")
        })
    };
    let (mut used, mut hidden, mut read_in_part) = (0, 0, 0);
    for value in (1..=3).flat_map(lists) {
        let mut node = facts(8);
        node.gpus.visible = gpu::visible(Some(&value), &node.gpus.gpus);
        node.gpus.unreadable_device =
            gpu::unreadable(&value).filter(|_| !node.gpus.visible.is_empty()).map(str::to_owned);
        node.gpus.cuda_visible_devices = Some(value.clone());
        node.gpus.requested_by = vec!["/dev/nvidiactl".into()];
        let plan = planned(&settings(&[]), &node, 1, &AskedNproc::Auto);
        let means_cpu = matches!(value.trim(), "" | "-1");
        match plan {
            Ok(plan) if means_cpu => {
                let decision = plan.decision("device").expect("decided");
                assert_eq!(decision.source, format!("CUDA_VISIBLE_DEVICES={value:?}"));
                assert!(plan.gpus.is_empty() && warned(&plan, Id::GpuNone));
            }
            Ok(plan) => {
                used += 1;
                assert!(plan.gpus.iter().any(|gpu| gpu.selected), "{value:?} on the CPU");
            }
            Err(refusal) if node.gpus.unreadable_device.is_some() => {
                read_in_part += 1;
                assert!(refusal.text.en.contains("GPUs would be used"), "{}", refusal.text.en);
            }
            Err(refusal) => {
                hidden += 1;
                assert_eq!((refusal.verdict.code(), refusal.id), (80, Id::GpuCount));
                let start = format!("CUDA_VISIBLE_DEVICES={value:?} hides all 8 GPUs");
                assert!(refusal.text.en.starts_with(&start), "{}", refusal.text.en);
                assert!(node.gpus.visible.is_empty() && !means_cpu, "{value:?}");
            }
        }
    }
    let counts = [used, hidden, read_in_part];
    assert!(counts.iter().all(|count| *count > 50), "{counts:?}");
}

#[test]
fn faults_refuse_unless_their_severity_says_otherwise() {
    let cases = [(Id::GpuFault, Verdict::GpuFault), (Id::GpuFabric, Verdict::GpuFabric)];
    for (id, verdict) in cases {
        let mut node = facts(8);
        let fault = Warning::new(id, text!("lost", "丢失"), text!("reset", "重置"));
        match verdict {
            Verdict::GpuFabric => node.gpus.fabric_faults.push(fault),
            _ => node.gpus.faults.push(fault),
        }
        let mut settings = settings(&[]);
        assert_eq!(id_of(planned(&settings, &node, 1, &AskedNproc::Auto)), (verdict, id));
        settings.severities.insert(id, flag(Severity::Warn, "--severity"));
        assert!(warned(&planned(&settings, &node, 1, &AskedNproc::Auto).expect("a plan"), id));
        settings.severities.insert(id, flag(Severity::Off, "--severity"));
        assert!(!warned(&planned(&settings, &node, 1, &AskedNproc::Auto).expect("a plan"), id));
    }
}

/// A severity chooses the CPU only where it lets the job start.
#[test]
fn source_of_the_cpu_is_what_chose_it() {
    let severities = [Severity::Fail, Severity::Warn, Severity::Off];
    let by = |source: &Source| severities.map(|severity| Some((severity, source.clone())));
    let chosen = [by(&Source::Flag("--severity".into())), by(&profile(7))].concat();
    for severity in chosen.into_iter().chain([None]) {
        for (device, asked) in [(Device::Gpu, AskedNproc::Auto), (Device::Auto, AskedNproc::Gpus)] {
            for is_of_another_vendor in [false, true] {
                let mut settings = settings(&[]);
                settings.device = flag(device, "--device");
                let severity = severity.clone().map(|(value, source)| Sourced::new(value, source));
                settings.severities.extend(severity.clone().map(|chosen| (Id::GpuCount, chosen)));
                let mut node = facts(0);
                if is_of_another_vendor {
                    let (vendor, evidence) = (text!("NPUs", "NPU"), strings(&["/dev/davinci0"]));
                    let evidence = evidence.iter().map(|one| one.display().to_string()).collect();
                    node.gpus.others.push(OtherAccelerator { vendor, evidence });
                }
                let mut notes = Notes::default();
                capacity(&settings, &node, None, &asked, &mut notes).expect("a capacity");
                let lets = severity.filter(|chosen| chosen.value != Severity::Fail);
                assert_eq!(notes.failures.is_empty(), lets.is_some());
                let source = lets.map_or("detected".to_owned(), |chosen| chosen.source.to_string());
                let said = notes.decisions.iter().map(|one| (&*one.value, &*one.source));
                assert_eq!(said.collect::<Vec<_>>(), [("cpu", &*source)]);
            }
        }
    }
}

#[test]
fn mig_is_one_process() {
    let mut node = facts(2);
    node.gpus.gpus.iter_mut().for_each(|gpu| gpu.mig = true);
    let plan = planned(&settings(&[]), &node, 1, &AskedNproc::Auto).expect("a plan");
    assert_eq!((plan.nproc_per_node, env(&plan, "CUDA_VISIBLE_DEVICES")), (1, None));
    assert!(warned(&plan, Id::GpuMig));
}

#[test]
fn fewer_gpus_on_another_node_bind_all() {
    let of = |scope| {
        let (asked, mut notes) = (AskedNproc::Auto, Notes::default());
        plan_for(&settings(&[]), &facts(8), member(2, 0), &asked, scope, &mut notes)
            .map(|plan| plan.nproc_per_node)
    };
    let others = |fewest| of(Scope::ForAll { fewest, heads: None, seat: None });
    assert_eq!((others(6), others(9), of(Scope::Alone)), (Ok(6), Ok(8), Ok(8)));
}

#[test]
fn fewer_processes_than_min_nproc_are_refused() {
    let mut settings = wan(&[], Some(40));
    settings.min_nproc = Some(flag(8, "--min-nproc"));
    let refused = planned(&settings, &facts(8), 2, &AskedNproc::Auto);
    assert_eq!(id_of(refused), (Verdict::Layout, Id::LayoutMinNproc));
    assert!(planned(&settings, &facts(8), 1, &AskedNproc::Auto).is_ok());
}
