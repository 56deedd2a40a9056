//! The GPUs and RDMA devices that a plan uses, on nodes made of sysfs files.

mod gpus;
mod hcas;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use harness::Launcher;
use serde_json::{Value, json};

/// A node below a temporary folder.
struct Node {
    folder: tempfile::TempDir,
    gpus: Vec<Value>,
    hcas: usize,
}

/// An RDMA device; the rest is an InfiniBand rail of 400 Gb/s that opens.
#[derive(Clone)]
struct Rdma<'a> {
    name: String,
    /// The path below /sys/devices, with the host bridge.
    path: String,
    numa: i32,
    ethernet: bool,
    rate: u32,
    opens: bool,
    active: bool,
    /// True for a RoCE v2 GID of this host.
    gid: bool,
    /// The GID is of IPv6 instead of IPv4.
    ipv6: bool,
    netdev: Option<&'a str>,
    /// The path of the physical function.
    physical: Option<String>,
    bond: bool,
}

fn rail(name: impl Into<String>, path: impl Into<String>) -> Rdma<'static> {
    Rdma {
        name: name.into(),
        path: path.into(),
        numa: 0,
        ethernet: false,
        rate: 400,
        opens: true,
        active: true,
        gid: false,
        ipv6: false,
        netdev: None,
        physical: None,
        bond: false,
    }
}

fn roce<'a>(name: impl Into<String>, path: impl Into<String>, rate: u32) -> Rdma<'a> {
    Rdma { ethernet: true, gid: true, rate, ..rail(name, path) }
}

impl Node {
    fn new() -> Node {
        Node { folder: tempfile::tempdir().expect("a folder"), gpus: Vec::new(), hcas: 0 }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    /// Makes a relative link, as in sysfs.
    fn link(&self, from: &str, to: &str) {
        let at = self.at(from);
        fs::create_dir_all(at.parent().expect("a parent")).expect("a folder");
        let up = "../".repeat(Path::new(from).components().count() - 1);
        symlink(format!("{up}{to}"), at).expect("a link");
    }

    fn pci(&self, path: &str, numa: i32) -> String {
        let device = format!("sys/devices/{path}");
        self.write(&format!("{device}/numa_node"), format!("{numa}\n"));
        let address = path.rsplit('/').next().expect("an address").to_owned();
        if !self.at(&format!("sys/bus/pci/devices/{address}")).exists() {
            self.link(&format!("sys/bus/pci/devices/{address}"), &device);
        }
        address
    }

    /// Adds the next GPU, with this many MiB in use.
    fn gpu(&mut self, path: &str, numa: i32, used: u64) {
        let index = self.gpus.len();
        let address = self.pci(path, numa);
        self.gpus.push(json!({
            "index": index, "uuid": format!("GPU-{index}"), "name": "NVIDIA H100", "pci": address,
            "minor": index, "memory_total": 80_u64 << 30, "memory_used": used << 20,
            "mig": false, "recovery_action": 0, "fabric": null, "errors": [],
        }));
    }

    fn hca(&mut self, rdma: &Rdma<'_>) {
        let Rdma { name, .. } = rdma;
        self.pci(&rdma.path, rdma.numa);
        let device = format!("sys/devices/{}", rdma.path);
        self.link(&format!("sys/class/infiniband/{name}/device"), &device);
        let port = format!("sys/class/infiniband/{name}/ports/1");
        self.write(&format!("{port}/state"), if rdma.active { "4: ACTIVE\n" } else { "1: DOWN\n" });
        self.write(&format!("{port}/rate"), format!("{} Gb/sec (4X)\n", rdma.rate));
        let layer = if rdma.ethernet { "Ethernet\n" } else { "InfiniBand\n" };
        self.write(&format!("{port}/link_layer"), layer);
        if rdma.gid {
            let gid = if rdma.ipv6 {
                "fd00:0000:0000:0000:0000:0000:0000:0002\n"
            } else {
                "0000:0000:0000:0000:0000:ffff:0a00:0001\n"
            };
            self.write(&format!("{port}/gids/3"), gid);
            self.write(&format!("{port}/gid_attrs/types/3"), "RoCE v2\n");
        }
        if let Some(net) = rdma.netdev {
            self.write(&format!("{device}/net/{net}/address"), "");
            if rdma.bond {
                self.write(&format!("sys/class/net/{net}/bonding_slave/state"), "active\n");
            }
        }
        if let Some(physical) = &rdma.physical {
            self.pci(physical, rdma.numa);
            self.link(&format!("{device}/physfn"), &format!("sys/devices/{physical}"));
        }
        let verbs = format!("uverbs{}", self.hcas);
        self.hcas += 1;
        self.write(&format!("sys/class/infiniband_verbs/{verbs}/ibdev"), format!("{name}\n"));
        if rdma.opens {
            self.write(&format!("dev/infiniband/{verbs}"), "");
        }
    }

    fn default_route(&self, interface: &str) {
        self.write(
            "proc/net/route",
            format!(
                "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
                 {interface}\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
            ),
        );
    }

    /// The plan of node 0 of two.
    fn plan(&self, more: &[&str]) -> Value {
        let answer = json!({
            "library": "libnvidia-ml.so.570.86.15", "not_loaded": [], "failure": null,
            "driver_version": "570.86.15", "cuda_driver_version": [12, 8],
            "gpus": self.gpus, "errors": [],
        });
        self.write("run/ranklaunch/nvml.json", answer.to_string());
        let ended = Launcher::new(["plan", "--format", "json", "--lang", "en", "--host-root"])
            .args([self.folder.path()])
            .args(["--nnodes", "2", "--node-rank", "0", "--master-addr", "10.0.0.1"])
            .args(["--master-port", "29500"])
            .args(more)
            .args(["--", "train.py"])
            .run()
            .expect_code(0);
        serde_json::from_str(&ended.out).expect("a plan")
    }
}

fn because(plan: &Value, what: &str) -> String {
    let decisions = plan["decisions"].as_array().expect("decisions");
    let found = decisions.iter().find(|decision| decision["what"] == what);
    found.map(|found| found["because"].as_str().expect("text").to_owned()).unwrap_or_default()
}

/// Eight GPUs, two below each of four switches, four per socket.
fn with_eight_gpus(node: &mut Node) {
    for gpu in 0..8 {
        node.gpu(&below_switch(gpu / 2, gpu % 2), i32::from(gpu >= 4), 0);
    }
}

/// `slot` below switch `switch` of 0..4, each below its own host bridge.
fn below_switch(switch: u32, slot: u32) -> String {
    let bus = 0x10 + switch * 0x20;
    format!(
        "pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{:02x}:00.0/0000:{:02x}:{slot:02x}.0/0000:{:02x}:00.0",
        bus + 1,
        bus + 2,
        bus + 3 + slot
    )
}
/// A card that is under no GPU's switch.
fn front(n: u32) -> String {
    format!("pci0000:e0/0000:e0:{n:02x}.0/0000:{:02x}:00.0", 0xe0 + n)
}
