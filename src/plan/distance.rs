//! The distance of two PCI devices in NCCL's terms, from sysfs paths.
//!
//! Takes the bridges above both devices and their NUMA nodes; gives a [`Distance`], or None if
//! sysfs does not tell. (A VM with a flat topology gives PHB or SYS for every pair.)

use node::observe::{Gpu, Hca};

/// Nearest first (NCCL src/graph/topo.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// At most one switch in between.
    Pix,
    /// Several switches, no CPU.
    Pxb,
    /// Through one host bridge.
    Phb,
    /// Other host bridges of one NUMA node.
    Node,
    /// Across sockets.
    Sys,
}

/// The distance from a GPU to an HCA. None if the path of either is unknown.
pub(crate) fn distance(gpu: &Gpu, hca: &Hca) -> Option<Distance> {
    between(&gpu.bridges, gpu.numa_node, &hca.bridges, hca.numa_node)
}

/// Whether data between them does not pass a CPU.
pub fn is_near(gpu: &Gpu, hca: &Hca) -> bool {
    distance(gpu, hca).is_some_and(|distance| distance <= Distance::Pxb)
}

fn between(
    one: &[String],
    one_node: Option<u32>,
    other: &[String],
    other_node: Option<u32>,
) -> Option<Distance> {
    let (root, other_root) = (one.first()?, other.first()?);
    if root != other_root {
        let same = one_node.is_some() && one_node == other_node;
        return Some(if same { Distance::Node } else { Distance::Sys });
    }
    let common = one.iter().zip(other).take_while(|(one, other)| one == other).count();
    if common == 1 {
        return Some(Distance::Phb);
    }
    // Below the last common bridge, one downstream port each means one switch.
    let apart = (one.len() - common).max(other.len() - common);
    Some(if apart <= 1 { Distance::Pix } else { Distance::Pxb })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysfs_paths_give_the_distance() {
        let a = "pci0000:17 0000:17:01.0 0000:18:00.0 0000:19:00.0";
        for (one, node, other, other_node, expected) in [
            (
                a,
                Some(0),
                "pci0000:17 0000:17:01.0 0000:18:00.0 0000:19:04.0",
                Some(0),
                Distance::Pix,
            ),
            (a, Some(0), a, Some(0), Distance::Pix),
            (
                a,
                Some(0),
                "pci0000:17 0000:17:01.0 0000:18:00.0 0000:19:08.0 0000:1c:00.0 0000:1d:00.0",
                Some(0),
                Distance::Pxb,
            ),
            (a, Some(0), "pci0000:17 0000:17:03.0", Some(0), Distance::Phb),
            (a, Some(0), "pci0000:17", Some(0), Distance::Phb),
            (a, Some(0), "pci0000:37 0000:37:01.0", Some(0), Distance::Node),
            (a, Some(0), "pci0000:97 0000:97:01.0", Some(1), Distance::Sys),
            // -1 means unknown, not a common NUMA node.
            (a, None, "pci0000:37 0000:37:01.0", None, Distance::Sys),
            ("pci0009:00 0009:00:00.0", Some(0), "pci0009:00 0009:00:00.0", Some(0), Distance::Pix),
        ] {
            let words =
                |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
            let found = between(&words(one), node, &words(other), other_node);
            assert_eq!(found, Some(expected), "{one} | {other}");
        }
        assert_eq!(between(&[], Some(0), &["pci0000:00".to_owned()], Some(0)), None);
    }
}
