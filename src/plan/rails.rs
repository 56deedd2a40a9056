//! Decides which RDMA ports are rails, and why the others are left out ([`Reason`]).
//!
//! Takes the devices, the interfaces of the default route and the number of GPUs. Each step
//! drops ports for one [`Reason`]; a step that would drop all ports drops none. Devices that the
//! user named are handled in [`crate::hcas`].

use node::observe::{Gpu, Hca, HcaPort, NetworkFacts};
use text::lang::Text;
use text::order::InOrder;

/// One port of one device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RailPort<'a> {
    pub hca: &'a Hca,
    pub port: &'a HcaPort,
}

impl<'a> RailPort<'a> {
    pub(crate) fn all(hcas: &'a [Hca]) -> Vec<RailPort<'a>> {
        hcas.iter()
            .flat_map(|hca| hca.ports.iter().map(move |port| RailPort { hca, port }))
            .collect()
    }

    /// `mlx5_0:1`
    pub(crate) fn name(&self) -> String {
        format!("{}:{}", self.hca.name, self.port.number)
    }

    /// NCCL's own filter: the device opens, the port is ACTIVE, its link layer is known.
    pub(crate) fn nccl_takes(&self) -> bool {
        self.hca.openable
            && self.port.active
            && matches!(self.port.link_layer.as_str(), "InfiniBand" | "Ethernet")
    }

    pub(crate) fn is_ethernet(&self) -> bool {
        self.port.link_layer == "Ethernet"
    }

    /// Gb/s in whole numbers; unknown rates form a class of their own.
    fn rate(&self) -> u64 {
        // `as` saturates; a rate is a small positive number, NaN becomes 0.
        #[expect(clippy::cast_sign_loss, reason = "negative rates do not exist and saturate to 0")]
        let rate = self.port.gigabits.unwrap_or(0.0) as u64;
        rate
    }
}

/// The reason why a port is left out, in the order of the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// Its device node is not in the container.
    Closed,
    Down,
    /// RoCE without a v2 address in this network namespace.
    NoAddress,
    Slower,
    OtherLayer,
    /// It carries the default route.
    FrontEnd,
    /// A bond, while other rails are no bonds.
    Bond,
    /// A physical function and its virtual functions count once.
    SameFunction,
    /// A CPU is between it and the GPUs of this job.
    FarFromGpus,
}

impl Reason {
    pub(crate) fn text(self) -> Text {
        let (en, zh) = match self {
            Reason::Closed => ("cannot be opened", "无法打开"),
            Reason::Down => ("not active", "未激活"),
            Reason::NoAddress => (
                "no RoCE v2 address in this network namespace",
                "在当前网络命名空间中没有 RoCE v2 地址",
            ),
            Reason::Slower => ("slower than the others", "速率低于其他端口"),
            Reason::OtherLayer => ("of the other link layer", "链路类型不同"),
            Reason::FrontEnd => ("carries the default route", "承载默认路由"),
            Reason::Bond => ("a bond beside plain rails", "为 bond，而其余均为普通端口"),
            Reason::SameFunction => {
                ("its physical or virtual counterpart is used", "已使用其对应的 PF 或 VF")
            }
            Reason::FarFromGpus => ("far from the chosen GPUs", "距所选 GPU 较远"),
        };
        Text::new(en, zh)
    }
}

/// The ports that are kept, and the others with the reason.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rails<'a> {
    pub kept: Vec<RailPort<'a>>,
    pub dropped: Vec<(RailPort<'a>, Reason)>,
}

impl<'a> Rails<'a> {
    /// Steps 1 to 7; `gpus` is the number of GPUs of this node.
    pub(crate) fn of(hcas: &'a [Hca], network: &NetworkFacts, gpus: usize) -> Rails<'a> {
        let mut rails = Rails { kept: RailPort::all(hcas), dropped: Vec::new() };
        rails.keep(Reason::Closed, |port| port.hca.openable);
        rails.keep(Reason::Down, RailPort::nccl_takes);
        rails.keep(Reason::NoAddress, |port| !port.is_ethernet() || port.port.roce_v2_gid);
        rails.fast_class(gpus);
        let ethernet = rails.kept.iter().filter(|port| port.is_ethernet()).count();
        let mostly_ethernet = ethernet * 2 > rails.kept.len();
        rails.keep(Reason::OtherLayer, |port| port.is_ethernet() == mostly_ethernet);
        rails.front_end(network, gpus);
        rails.one_of_a_function();
        rails
    }

    /// Step 8, for a job that uses a part of the GPUs: keeps the ports that reach one of them
    /// without a CPU in between, if there are any.
    pub(crate) fn near(mut self, gpus: &[&Gpu]) -> Rails<'a> {
        let near = |port: &RailPort<'_>| gpus.iter().any(|gpu| is_near(gpu, port.hca));
        if self.kept.iter().any(near) {
            self.keep(Reason::FarFromGpus, near);
        }
        self
    }

    fn keep(&mut self, reason: Reason, stays: impl Fn(&RailPort<'a>) -> bool) {
        let (kept, dropped) = std::mem::take(&mut self.kept).into_iter().partition(&stays);
        self.kept = kept;
        let dropped: Vec<RailPort<'a>> = dropped;
        self.dropped.extend(dropped.into_iter().map(|port| (port, reason)));
    }

    fn devices<'b>(ports: impl IntoIterator<Item = &'b RailPort<'a>>) -> usize
    where
        'a: 'b,
    {
        ports.into_iter().map(|port| port.hca.name.as_str()).in_set().len()
    }

    /// Keeps the fastest class of ports, unless it is a single exception.
    fn fast_class(&mut self, gpus: usize) {
        let fastest = self.kept.iter().map(RailPort::rate).max().unwrap_or(0);
        let devices = Rails::devices(self.kept.iter().filter(|port| port.rate() == fastest));
        if devices >= 2 || (gpus > 0 && devices >= gpus) {
            self.keep(Reason::Slower, |port| port.rate() == fastest);
        }
    }

    /// Drops the device of the default route, and bonds, as long as others remain. With one
    /// device per GPU each is a rail, including the one with the route.
    fn front_end(&mut self, network: &NetworkFacts, gpus: usize) {
        let carries = |port: &RailPort<'_>| {
            port.is_ethernet()
                && port.hca.netdevs.iter().any(|net| {
                    network.default_interface.as_ref() == Some(net)
                        || network.default_lower.contains(net)
                })
        };
        let is_rail_per_gpu = gpus > 1 && Rails::devices(&self.kept) == gpus;
        if !is_rail_per_gpu && !self.kept.iter().all(carries) {
            self.keep(Reason::FrontEnd, |port| !carries(port));
        }
        let is_bond = |port: &RailPort<'_>| port.hca.bond;
        if !self.kept.iter().all(is_bond) {
            self.keep(Reason::Bond, |port| !is_bond(port));
        }
    }

    /// NCCL treats a physical function and its virtual functions as ports of one card. Virtual
    /// functions are kept if they have an interface here, as in a pod.
    fn one_of_a_function(&mut self) {
        let pairs: Vec<(String, String, bool)> = self
            .kept
            .iter()
            .filter_map(|port| {
                let physical = port.hca.physical.as_ref()?;
                let parent =
                    self.kept.iter().find(|other| other.hca.pci.as_ref() == Some(physical))?;
                let given = !port.hca.netdevs.is_empty() || parent.hca.netdevs.is_empty();
                Some((port.hca.name.clone(), parent.hca.name.clone(), given))
            })
            .collect();
        let loses = |name: &String| {
            pairs.iter().any(|(virt, physical, given)| if *given { physical } else { virt } == name)
        };
        if !self.kept.iter().all(|port| loses(&port.hca.name)) {
            self.keep(Reason::SameFunction, |port| !loses(&port.hca.name));
        }
    }

    /// `mlx5_8:1 (slower than the others), …`, of the ports that NCCL would use.
    pub(crate) fn left_out(&self) -> Text {
        let mut en = Vec::new();
        let mut zh = Vec::new();
        for (port, reason) in self.dropped.iter().filter(|(port, _)| port.nccl_takes()) {
            let (name, why) = (port.name(), reason.text());
            en.push(format!("{name} ({})", why.en));
            zh.push(format!("{name}（{}）", why.zh));
        }
        Text::new(format!("left out: {}", en.join(", ")), format!("已排除：{}", zh.join("，")))
    }
}

/// Whether data between a GPU and an HCA does not pass a CPU: by their sysfs paths they have a common
/// bridge below the root (PIX or PXB in NCCL's terms, src/graph/topo.h). False if a path is unknown;
/// a VM with a flat topology has no such pair.
pub(crate) fn is_near(gpu: &Gpu, hca: &Hca) -> bool {
    let pairs = gpu.bridges.iter().zip(&hca.bridges);
    pairs.take_while(|(one, other)| one == other).count() > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysfs_paths_tell_whether_a_cpu_is_between() {
        let a = "pci0000:17 0000:17:01.0 0000:18:00.0 0000:19:00.0";
        for (one, other, near) in [
            (a, "pci0000:17 0000:17:01.0 0000:18:00.0 0000:19:04.0", true),
            (a, a, true),
            (
                a,
                "pci0000:17 0000:17:01.0 0000:18:00.0 0000:19:08.0 0000:1c:00.0 0000:1d:00.0",
                true,
            ),
            (a, "pci0000:17 0000:17:03.0", false),
            (a, "pci0000:17", false),
            (a, "pci0000:37 0000:37:01.0", false),
            (a, "pci0000:97 0000:97:01.0", false),
            ("pci0009:00 0009:00:00.0", "pci0009:00 0009:00:00.0", true),
        ] {
            let bridges =
                |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
            let gpu = Gpu { bridges: bridges(one), ..Gpu::default() };
            let hca = Hca { bridges: bridges(other), ..Hca::default() };
            assert_eq!(is_near(&gpu, &hca), near, "{one} | {other}");
        }
        assert!(!is_near(&Gpu::default(), &Hca::default()));
    }
}
