//! Jobs never run on the CPU by accident: GPUs that CUDA_VISIBLE_DEVICES hides, and accelerators of
//! other vendors.

use harness::node::Node;
use serde_json::Value;

/// `plan`, `check` and `run` of a node. Each gives an exit code and its whole output.
fn tried(node: &Node, args: &[&str]) -> [(i32, String); 3] {
    ["plan", "check", "run"].map(|subcommand| {
        let direct = ["--engine", "direct", "--stale", "off", "--lang", "en"];
        let ended = node.launcher(subcommand, &[&direct[..], args].concat()).run();
        (ended.code, format!("{}{}", ended.out, ended.err))
    })
}

#[test]
fn hidden_gpus_refuse_everywhere_with_their_variable() {
    for (value, said) in [
        ("8,9", "there is no device 8: the numbers here are 0 to 7"),
        ("0,0", "it names 0 twice"),
        ("NoDevFiles", "no number of a device and no UUID"),
        ("-2", "no number of a device"),
        ("GPU-dead", "no GPU here has the UUID GPU-dead"),
    ] {
        let node = Node::with_gpus(8).env("CUDA_VISIBLE_DEVICES", value);
        for (code, words) in tried(&node, &["--", "true"]) {
            assert_eq!(code, 80, "{value}: {words}");
            let line =
                format!("CUDA_VISIBLE_DEVICES=\"{value}\" hides all 8 GPUs of this node (NVML)");
            let line = words.lines().find(|one| one.contains(&line)).unwrap_or_default();
            assert!(line.contains(said), "{value}: {line:?}: {words}");
        }
        let planned = node.json(&["--device", "cpu", "--", "x.py"]);
        assert_eq!((planned.code, planned.at("/nproc_per_node")), (0, "1".to_owned()), "{value}");
    }
}

#[test]
fn partly_read_cuda_lists_refuse() {
    for (value, element) in [
        ("0-3", "0-3"),
        ("0:1", "0:1"),
        ("0..3", "0..3"),
        ("0,1,x,3", "x"),
        ("1gpu2,2ampere", "1gpu2"),
        ("0,GPU-fa4e0001", "GPU-fa4e0001"),
    ] {
        let node = Node::with_gpus(8).env("CUDA_VISIBLE_DEVICES", value);
        let start = format!("CUDA_VISIBLE_DEVICES=\"{value}\": \"{element}\" is no number");
        for (code, words) in tried(&node, &["--", "true"]) {
            assert_eq!(code, 80, "{value}: {words}");
            assert!(words.contains(&start), "{value}: {words}");
        }
        let warned = node.json(&["--severity", "gpu.count=warn", "--", "x.py"]);
        let ranks: u32 = warned.at("/nproc_per_node").parse().expect("a number");
        assert!(warned.code == 0 && ranks < 4, "{value}");
    }
    // These are the forms that CUDA documents.
    for (value, ranks) in [("0, 1,2", "3"), ("0,1,", "2"), ("2,-1,3", "1"), ("0,9", "1")] {
        let planned = Node::with_gpus(8).env("CUDA_VISIBLE_DEVICES", value).json(&["--", "x.py"]);
        assert_eq!((planned.code, planned.at("/nproc_per_node")), (0, ranks.to_owned()), "{value}");
    }
}

const STEP: &str = "SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=1 SLURM_NNODES=1 SLURM_STEP_ID=0 \
    SLURM_STEP_NODELIST=n1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1 \
    SLURM_STEP_TASKS_PER_NODE=1 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=1";

#[test]
fn missing_allocated_gpus_refuse_by_name() {
    let sagemaker = "SM_HOSTS=[\"algo-1\"] SM_CURRENT_HOST=algo-1";
    for (platform, asked) in [
        (STEP, "SLURM_GPUS_ON_NODE=4"),
        (STEP, "SLURM_STEP_GPUS=0,1,2,3"),
        (sagemaker, "SM_NUM_GPUS=8"),
        ("", "MLP_WORKER_GPU=8"),
        ("", "DET_SLOT_IDS=[0,1]"),
    ] {
        let of = |pairs: &str| Node::without_gpus().platform(platform).platform(pairs);
        let planned = of(asked).json(&["--", "x.py"]);
        assert_eq!(planned.refusal(), "80 gpu.count", "{asked}: {:#}", planned.json);
        let text = planned.at("/refused/text");
        assert!(text.starts_with(&format!("GPUs are requested by {asked}, but none")), "{text}");
        assert_eq!(of(asked).json(&["--device", "cpu", "--", "x.py"]).code, 0, "{asked}");
        // The job asks for no GPUs.
        let (name, _) = asked.split_once('=').expect("a pair");
        let none = of(&format!("{name}=")).json(&["--", "x.py"]);
        assert_eq!(none.code, 0, "{name}: {:#}", none.json);
        assert!(none.json["warnings"].to_string().contains("nothing requests one"), "{name}");
        // The user asks for the CPU.
        let by_user = of(asked).env("CUDA_VISIBLE_DEVICES", "").json(&["--", "x.py"]);
        let warned = by_user.json["warnings"].to_string();
        assert!(by_user.code == 0 && !warned.contains("nothing requests one"), "{warned}");
    }
}

/// The control: a part of the GPUs, and the two values that mean the CPU.
#[test]
fn visible_gpus_are_used_and_cpu_is_reported() {
    let of = |value: &str| Node::with_gpus(8).env("CUDA_VISIBLE_DEVICES", value);
    assert_eq!(of("3,1").json(&["--", "x.py"]).at("/nproc_per_node"), "2");
    for value in ["", "-1"] {
        let planned = of(value).json(&["--", "x.py"]);
        assert_eq!((planned.code, planned.at("/nproc_per_node")), (0, "1".to_owned()));
        let decisions = planned.json["decisions"].as_array().expect("a list");
        let of_device = |what: &str| {
            let found = decisions.iter().find(|one| one["what"] == what).expect("decided");
            (found["because"].to_string(), found["source"].as_str().unwrap_or_default().to_owned())
        };
        assert_eq!(of_device("device").1, format!("CUDA_VISIBLE_DEVICES={value:?}"));
        assert!(of_device("nproc_per_node").0.contains("one on the CPU, as no number is given"));
        let warned = planned.json["warnings"].to_string();
        assert!(warned.contains("hides all 8 GPUs of this node, so the ranks run"), "{warned}");
        // A request for GPUs contradicts the variable.
        let refused = of(value).json(&["--device", "gpu", "--", "x.py"]);
        assert_eq!(refused.refusal(), "80 gpu.count");
        assert!(refused.at("/refused/text").contains("device gpu (--device) requests GPUs"));
    }
}

#[test]
fn check_reports_first_a_run_on_the_cpu() {
    let first = |node: &Node, args: &[&str]| {
        let args = [&["--severity", "python.torch=warn", "--lang", "en"], args].concat();
        let ended = node.launcher("check", &args).run();
        (ended.code, ended.out.lines().next().unwrap_or_default().to_owned())
    };
    let (code, line) = first(&Node::without_gpus(), &[]);
    assert_eq!(code, 0, "{line}");
    assert!(line.contains("gpu.count") && line.contains("so the ranks run on the CPU"), "{line}");
    let hidden = Node::with_gpus(8).env("CUDA_VISIBLE_DEVICES", "9");
    let (code, line) = first(&hidden, &[]);
    assert!(code == 80 && line.contains("hides all 8 GPUs"), "{code} {line}");
    let (code, line) = first(&hidden, &["--device", "cpu"]);
    assert!(code == 0 && !line.contains("gpu.count"), "{code} {line}");
}

#[test]
fn embedded_profiles_want_gpus() {
    for profile in ["wan22", "taehv", "zimdb"] {
        let args = ["--profile", profile, "--severity", "shm.size=warn"];
        let planned = Node::without_gpus().json(&args);
        assert_eq!(planned.refusal(), "80 gpu.count", "{profile}: {:#}", planned.json);
        assert!(planned.at("/refused/text").contains("device gpu ("), "{profile}");
        assert!(planned.at("/refused/hint").contains("--device cpu"), "{profile}");
    }
    let cpu = ["--profile", "wan22", "--severity", "shm.size=warn", "--device", "cpu"];
    assert_eq!(Node::without_gpus().json(&cpu).at("/layout/ulysses_size"), "1");
}

type Change = fn(Node) -> Node;

fn kfd(node: Node, simd: &str) -> Node {
    let nodes = "/sys/class/kfd/kfd/topology/nodes";
    node.file("/dev/kfd", "")
        .file(&format!("{nodes}/0/properties"), "cpu_cores_count 64\nsimd_count 0\n")
        .file(&format!("{nodes}/1/properties"), &format!("cpu_cores_count 0\nsimd_count {simd}\n"))
}

fn accel(node: Node, vendor: &str) -> Node {
    node.file("/dev/accel/accel0", "").file("/sys/class/accel/accel0/device/vendor", vendor)
}

fn google(node: Node, device: &str) -> Node {
    node.file("/sys/bus/pci/devices/0000:00:04.0/vendor", "0x1ae0\n")
        .file("/sys/bus/pci/devices/0000:00:04.0/device", device)
}

/// (a node, words of the refusal)
const OTHERS: &[(Change, &str)] = &[
    (
        |node| node.file("/dev/davinci0", "").file("/dev/davinci1", "").file("/dev/davinci10", ""),
        "Ascend NPUs (/dev/davinci0 × 3)",
    ),
    (|node| node.env("ASCEND_RT_VISIBLE_DEVICES", "0,1,2,3"), "ASCEND_RT_VISIBLE_DEVICES=0,1,2,3"),
    (|node| node.env("ASCEND_VISIBLE_DEVICES", "0-7"), "ASCEND_VISIBLE_DEVICES=0-7"),
    (|node| kfd(node, "1216"), "AMD or Hygon GPUs (/dev/kfd × 1)"),
    (|node| node.env("HIP_VISIBLE_DEVICES", "0"), "HIP_VISIBLE_DEVICES=0"),
    (|node| node.env("ROCR_VISIBLE_DEVICES", "GPU-8f3a"), "ROCR_VISIBLE_DEVICES=GPU-8f3a"),
    (|node| node.file("/dev/cambricon_dev0", ""), "Cambricon MLUs (/dev/cambricon_dev0)"),
    (|node| node.file("/dev/mtgpu.0", ""), "Moore Threads GPUs (/dev/mtgpu.0)"),
    (|node| node.file("/dev/mxcd", ""), "MetaX GPUs (/dev/mxcd)"),
    (|node| node.file("/dev/hl0", ""), "Intel Gaudi accelerators (/dev/hl0)"),
    (|node| accel(node, "0x1da3\n"), "Intel Gaudi accelerators (/dev/accel/accel0)"),
    (|node| node.env("HABANA_VISIBLE_MODULES", "0,1"), "HABANA_VISIBLE_MODULES=0,1"),
    (|node| node.env("AMD_VISIBLE_DEVICES", "0"), "AMD or Hygon GPUs (AMD_VISIBLE_DEVICES=0)"),
    (|node| node.env("NEURON_RT_NUM_CORES", "2"), "Neuron devices (NEURON_RT_NUM_CORES=2)"),
    (|node| node.env("PJRT_DEVICE", "TPU"), "TPUs (PJRT_DEVICE=TPU)"),
    (|node| node.env("PJRT_DEVICE", "NEURON"), "PJRT_DEVICE=NEURON"),
    (|node| node.env("TPU_ACCELERATOR_TYPE", "v5litepod-8"), "TPU_ACCELERATOR_TYPE=v5litepod-8"),
    (
        |node| node.env("ONEAPI_DEVICE_SELECTOR", "level_zero:0"),
        "ONEAPI_DEVICE_SELECTOR=level_zero:0",
    ),
    (|node| node.env("SDAA_VISIBLE_DEVICES", "0"), "SDAA_VISIBLE_DEVICES=0"),
    (|node| node.env("MACA_VISIBLE_DEVICES", "0"), "MetaX GPUs (MACA_VISIBLE_DEVICES=0)"),
    (|node| node.env("RBLN_DEVICES", "0"), "Rebellions NPUs (RBLN_DEVICES=0)"),
    (|node| node.env("GCU_VISIBLE_DEVICES", "0"), "Enflame GCUs (GCU_VISIBLE_DEVICES=0)"),
    // The vendor is in no table.
    (
        |node| node.env("PPU_VISIBLE_DEVICES", "0,1").env("BIREN_VISIBLE_DEVICES", "2"),
        "of another vendor (BIREN_VISIBLE_DEVICES=2, PPU_VISIBLE_DEVICES=0,1)",
    ),
    // The platform counts these accelerators.
    (
        |node| node.env("ROCR_VISIBLE_DEVICES", "0,1").env("SLURM_GPUS_ON_NODE", "2"),
        "ROCR_VISIBLE_DEVICES=0,1",
    ),
    (|node| node.file("/dev/neuron0", ""), "AWS Neuron devices (/dev/neuron0)"),
    (|node| google(node.file("/dev/accel0", ""), "0x005e\n"), "TPUs (/dev/accel0)"),
    (|node| google(node.file("/dev/vfio/0", ""), "0x0063\n"), "TPUs (/dev/vfio/0)"),
    // A list for CUDA says nothing about other accelerators.
    (
        |node| node.file("/dev/davinci0", "").env("CUDA_VISIBLE_DEVICES", ""),
        "Ascend NPUs (/dev/davinci0)",
    ),
];

/// Displays, control files, NPUs of laptops, and variables of images.
const NONE: &[Change] = &[
    |node| node.file("/dev/dri/card0", "").file("/dev/dri/renderD128", ""),
    |node| node.file("/dev/davinci_manager", "").file("/dev/hisi_hdc", ""),
    |node| kfd(node, "0"),
    |node| node.file("/dev/kfd", ""),
    |node| accel(node, "0x8086\n"),
    |node| node.file("/dev/accel0", "").file("/dev/vfio/3", ""),
    |node| google(node.file("/dev/vfio/vfio", ""), "0x0042\n"),
    |node| node.env("ASCEND_VISIBLE_DEVICES", "void"),
    |node| node.env("HABANA_VISIBLE_DEVICES", "all"),
    |node| node.env("MTHREADS_VISIBLE_DEVICES", "all"),
    |node| node.env("HIP_VISIBLE_DEVICES", "").env("ROCR_VISIBLE_DEVICES", "-1"),
    |node| node.env("QAIC_VISIBLE_DEVICES", "all").env("PPU_VISIBLE_DEVICES", ""),
    |node| {
        node.env("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES", "1")
            .env("RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES", "1")
            .env("NVIDIA_VISIBLE_DEVICES", "void")
    },
    |node| node.env("PJRT_DEVICE", "CPU").env("ONEAPI_DEVICE_SELECTOR", "opencl:cpu"),
    |node| node.file("/dev/hlx", "").file("/dev/xpuctrl", "").file("/dev/neuron", ""),
];

#[test]
fn accelerators_of_other_vendors_refuse_by_name() {
    for lang in ["en", "zh"] {
        for (change, named) in OTHERS {
            let node = change(Node::without_gpus()).env("RANKLAUNCH_LANG", lang);
            let planned = node.json(&["--", "x.py"]);
            assert_eq!(planned.refusal(), "80 gpu.vendor", "{named}: {:#}", planned.json);
            let text = planned.at("/refused/text");
            assert!(lang == "zh" || text.contains(named), "{named}: {text}");
            assert!(planned.at("/refused/hint").contains("--device cpu --nproc-per-node N"));
            let way = node.json(&["--device", "cpu", "--nproc-per-node", "8", "--", "x.py"]);
            assert_eq!((way.code, way.at("/world_size")), (0, "8".to_owned()), "{named}");
        }
    }
}

#[test]
fn displays_and_image_variables_are_no_accelerators() {
    for (at, change) in NONE.iter().enumerate() {
        let planned = change(Node::without_gpus()).json(&["--", "x.py"]);
        assert_eq!(planned.code, 0, "row {at}: {:#}", planned.json);
        assert_eq!(planned.json["warnings"][0]["id"], Value::from("gpu.none"), "row {at}");
    }
}

#[test]
fn usable_nvidia_gpus_silence_other_vendors() {
    for (change, named) in OTHERS.iter().filter(|(_, named)| !named.contains("davinci0)")) {
        let planned = change(Node::with_gpus(4)).json(&["--", "x.py"]);
        assert_eq!(planned.at("/nproc_per_node"), "4", "{named}: {:#}", planned.json);
    }
}
