//! NVML in the embedded probe: the driver's errors are reported, and no fault of a driver affects
//! the launcher.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use harness::fake_nvml::FakeNvml;
use linux::host::Host;
use node::observe::gpu::{FabricState, gpus_within};
use node::observe::{GpuFacts, GpuSource};
use node::probe::{self, Answer, ProbeError};
use settings::ProbeMode;

/// Long enough for a busy machine; no passing test waits for it.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A node that has this library and the files of `root`.
fn node(root: &Path, fake: &FakeNvml, more: &[(&str, &str)]) -> Host {
    let mut environment: BTreeMap<OsString, OsString> =
        more.iter().map(|(name, value)| (name.into(), value.into())).collect();
    environment.insert("RANKLAUNCH_NVML_LIBRARY".into(), fake.library().into());
    Host::replayed(root, environment)
}

fn empty() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn facts_of(fake: &FakeNvml, more: &[(&str, &str)], patience: Duration) -> GpuFacts {
    gpus_within(&node(empty().path(), fake, more), ProbeMode::Auto, patience)
}

fn fault_ids(facts: &GpuFacts) -> Vec<&str> {
    facts.faults.iter().map(|fault| fault.id.as_str()).collect()
}

#[test]
fn eight_gpus_are_described() {
    let fake = FakeNvml::new(&[("GPUS", "8"), ("USED", "0,100,0,0,0,0,0,7")]);
    let root = empty();
    let folder = root.path().join("sys/bus/pci/devices/0000:28:00.0");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("numa_node"), "1\n").expect("a file");
    for mode in [ProbeMode::Auto, ProbeMode::File, ProbeMode::Memfd] {
        let host = node(root.path(), &fake, &[("CUDA_VISIBLE_DEVICES", "7,1")]);
        let facts = gpus_within(&host, mode, TIMEOUT);
        assert_eq!(facts.source, GpuSource::Nvml, "{mode:?} {:?}", facts.attempts);
        assert_eq!((facts.gpus.len(), facts.visible.len()), (8, 2));
        assert_eq!(facts.visible[0].gpu, 7);
        assert_eq!(facts.driver_version.as_deref(), Some("570.86.15"));
        assert_eq!(facts.cuda_driver_version, Some((12, 8)));
        let gpu = &facts.gpus[1];
        assert_eq!(gpu.pci.as_deref(), Some("0000:28:00.0"));
        assert_eq!(gpu.uuid.as_deref(), Some("GPU-fa4e0001-0000-4000-8000-000000000001"));
        assert_eq!(gpu.name.as_deref(), Some("NVIDIA H100 80GB HBM3"));
        assert_eq!(gpu.memory_total, Some(81559 << 20));
        assert_eq!(gpu.memory_used, Some(100 << 20), "the driver's reserve is not use");
        assert_eq!((gpu.minor, gpu.mig, gpu.numa_node), (Some(1), false, Some(1)));
        assert_eq!(gpu.fabric, Some(FabricState::Ready));
        assert!(facts.faults.is_empty(), "{:?}", facts.faults);
    }
}

#[test]
fn an_old_driver_still_counts_and_measures() {
    let fake = FakeNvml::of_old_driver(&[("GPUS", "2"), ("USED", "0,10")]);
    let facts = facts_of(&fake, &[], TIMEOUT);
    assert_eq!(facts.gpus.len(), 2);
    assert_eq!(facts.gpus[1].memory_used, Some((10 + 551) << 20), "its only call adds the reserve");
    assert_eq!((facts.gpus[1].mig, facts.gpus[1].fabric), (false, None));
    assert!(facts.faults.is_empty(), "{:?}", facts.faults);
}

#[test]
fn library_without_entry_point_is_no_fault() {
    let facts = facts_of(&FakeNvml::without_entry_point(), &[], TIMEOUT);
    assert_eq!(facts.source, GpuSource::None);
    assert!(facts.faults.is_empty());
    let (source, why) = facts.attempts.first().expect("an attempt");
    assert_eq!(*source, GpuSource::Nvml);
    assert!(why.en.contains("nvmlInit_v2"), "{}", why.en);
}

#[test]
fn each_broken_driver_state_has_its_fault() {
    let asked: &[(&str, &str)] = &[("GPU_COUNT", "8")];
    for (mode, id, usable) in [
        ("lost", "gpu.fault.lost", 7),
        ("sick", "gpu.fault.lost", 7),
        ("reset-required", "gpu.fault.reset-required", 7),
        ("recovery", "gpu.fault.recovery", 8),
        ("mismatch", "gpu.fault.mismatch", 0),
        ("not-loaded", "gpu.fault.driver", 0),
        ("access", "gpu.fault.access", 0),
        ("unknown", "gpu.fault.access", 0),
        ("crash", "gpu.fault.crash", 0),
    ] {
        let facts = facts_of(&FakeNvml::new(&[("MODE", mode), ("BAD", "3")]), asked, TIMEOUT);
        assert_eq!(fault_ids(&facts), [id], "{mode}");
        assert_eq!(facts.gpus.len(), usable, "{mode}");
        assert!(facts.gpus.iter().all(|gpu| gpu.index != 3 || mode == "recovery"), "{mode}");
    }
}

#[test]
fn missing_driver_without_gpu_evidence_is_no_fault() {
    for mode in ["not-loaded", "access", "unknown"] {
        let facts = facts_of(&FakeNvml::new(&[("MODE", mode)]), &[], TIMEOUT);
        assert!(facts.faults.is_empty(), "{mode}: {:?}", facts.faults);
        assert_eq!(facts.attempts.first().map(|(source, _)| *source), Some(GpuSource::Nvml));
    }
}

#[test]
fn a_mismatch_names_both_versions() {
    let fake = FakeNvml::new(&[("MODE", "mismatch")]);
    let root = empty();
    std::fs::create_dir_all(root.path().join("proc/driver/nvidia")).expect("a folder");
    std::fs::write(
        root.path().join("proc/driver/nvidia/version"),
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023\n",
    )
    .expect("a file");
    let facts = gpus_within(&node(root.path(), &fake, &[]), ProbeMode::Auto, TIMEOUT);
    let text = &facts.faults.first().expect("a fault").text.en;
    assert!(text.contains("570.86.15") && text.contains("535.54.03"), "{text}");
}

#[test]
fn devices_of_a_hung_driver_are_not_opened() {
    let fake = FakeNvml::new(&[("MODE", "hang")]);
    let root = empty();
    std::fs::create_dir_all(root.path().join("dev")).expect("a folder");
    std::fs::write(root.path().join("dev/nvidia0"), "").expect("a file");
    let before = Instant::now();
    let facts =
        gpus_within(&node(root.path(), &fake, &[]), ProbeMode::Auto, Duration::from_millis(300));
    let took = before.elapsed();
    assert!(took >= Duration::from_millis(300) && took < TIMEOUT, "{took:?}");
    assert_eq!(fault_ids(&facts), ["gpu.fault.hung"]);
    assert!(facts.gpus.is_empty(), "a device of a hung driver was counted as opened");
    assert!(
        facts.attempts.iter().any(|(source, _)| *source == GpuSource::DeviceNodes),
        "{:?}",
        facts.attempts
    );
}

#[test]
fn slow_driver_is_awaited() {
    let fake = FakeNvml::new(&[("MODE", "slow"), ("SLOW_MS", "300")]);
    assert_eq!(facts_of(&fake, &[], TIMEOUT).gpus.len(), 8);
}

#[test]
fn driver_output_never_reaches_the_answer() {
    let fake = FakeNvml::new(&[("MODE", "noise")]);
    for mode in [ProbeMode::File, ProbeMode::Memfd] {
        let facts = gpus_within(&node(empty().path(), &fake, &[]), mode, TIMEOUT);
        assert_eq!(facts.gpus.len(), 8, "{:?}", facts.attempts);
    }
}

#[test]
fn a_library_that_exits_is_quoted() {
    let fake = FakeNvml::new(&[("MODE", "exit")]);
    let library = fake.library().to_string_lossy().into_owned();
    let error =
        probe::run(ProbeMode::Auto, &["nvml", "1000", &library], TIMEOUT).expect_err("no answer");
    assert_eq!(error, ProbeError::Silent { code: 3, noise: "fake nvml: giving up".to_owned() });
}

#[test]
fn gpus_in_mig_mode_say_so() {
    for (mode, mig) in [("mig", true), ("ok", false)] {
        let facts = facts_of(&FakeNvml::new(&[("MODE", mode), ("GPUS", "1")]), &[], TIMEOUT);
        let found: Vec<bool> = facts.gpus.iter().map(|gpu| gpu.mig).collect();
        assert_eq!(found, [mig], "{mode}");
    }
}

#[test]
fn unready_fabric_is_reported() {
    let facts = facts_of(&FakeNvml::new(&[("MODE", "fabric"), ("BAD", "5")]), &[], TIMEOUT);
    for gpu in &facts.gpus {
        let state = if gpu.index == 5 { FabricState::InProgress } else { FabricState::Ready };
        assert_eq!(gpu.fabric, Some(state), "GPU {}", gpu.index);
    }
    assert!(facts.faults.is_empty(), "{:?}", facts.faults);
    let [fault] = facts.fabric_faults.as_slice() else { panic!("{:?}", facts.fabric_faults) };
    assert!(fault.id.as_str() == "gpu.fabric" && fault.text.en.contains("GPU 5"), "{fault:?}");
}

#[test]
fn device_nodes_and_proc_replace_missing_nvml() {
    let root = empty();
    let dev = root.path().join("dev");
    std::fs::create_dir_all(&dev).expect("a folder");
    for name in ["nvidia6", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia-caps"] {
        std::fs::write(dev.join(name), "").expect("a file");
    }
    for (address, minor) in [("0000:18:00.0", 6), ("0000:2A:00.0", 2), ("0000:3a:00.0", 4)] {
        let folder = root.path().join("proc/driver/nvidia/gpus").join(address);
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(
            folder.join("information"),
            format!(
                "Model: \t\t NVIDIA H100\nIRQ:   \t\t 100\nGPU UUID: \t GPU-{minor}\n\
                 Bus Location: \t {address}\nDevice Minor: \t {minor}\n"
            ),
        )
        .expect("a file");
    }
    let host = Host::replayed(root.path(), BTreeMap::new());
    let facts = gpus_within(&host, ProbeMode::Auto, TIMEOUT);
    assert_eq!(facts.source, GpuSource::DeviceNodes);
    let found: Vec<_> =
        facts.gpus.iter().map(|gpu| (gpu.index, gpu.minor, gpu.uuid.as_deref())).collect();
    assert_eq!(
        found,
        [(0, Some(6), Some("GPU-6")), (1, Some(2), Some("GPU-2"))],
        "PCI order, and not the GPU whose node is not here"
    );
    assert_eq!(facts.requested_by, ["/dev/nvidiactl"]);
}

#[test]
fn gpu_evidence_is_named_and_excludes_image_defaults() {
    let reasons = |variables: &[(&str, &str)]| {
        let environment =
            variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
        gpus_within(&Host::replayed(empty().path(), environment), ProbeMode::Off, TIMEOUT)
            .requested_by
    };
    assert_eq!(reasons(&[("NVIDIA_VISIBLE_DEVICES", "all"), ("GPU_COUNT", "0")]), [""; 0]);
    assert_eq!(reasons(&[("NVIDIA_VISIBLE_DEVICES", "GPU-1,GPU-2")]).len(), 1);
    assert_eq!(reasons(&[("GPU_COUNT", "8")]), ["GPU_COUNT=8"]);
    assert_eq!(reasons(&[("PET_NPROC_PER_NODE", "gpu")]), ["PET_NPROC_PER_NODE=gpu"]);
}

#[test]
fn names_are_resolved_by_libc() {
    let answer = probe::run(ProbeMode::Auto, &["resolve", "localhost"], TIMEOUT);
    let Ok(Answer::Names(names)) = answer else { panic!("{answer:?}") };
    assert!(names.addresses.iter().any(std::net::IpAddr::is_loopback), "{names:?}");
}

#[test]
fn a_switched_off_probe_does_not_run() {
    for mode in [ProbeMode::Off, ProbeMode::NvidiaSmi] {
        assert_eq!(
            probe::run(mode, &["nvml", "1000"], TIMEOUT).expect_err("no answer"),
            ProbeError::SwitchedOff
        );
    }
}
