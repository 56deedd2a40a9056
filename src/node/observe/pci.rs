//! Normalises PCI addresses, and reads a device's NUMA node, link and bridges from sysfs.

use crate::probe::PcieLink;
use linux::host::Host;

/// `0000:18:00.0` from any spelling (`00000000:18:00.0`, upper case). None if the text is not a full address.
pub(super) fn address(text: &str) -> Option<String> {
    let (domain, rest) = text.trim().split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let number = |part: &str| u32::from_str_radix(part, 16).ok();
    Some(format!(
        "{:04x}:{:02x}:{:02x}.{:x}",
        number(domain)?,
        number(bus)?,
        number(device)?,
        number(function)?
    ))
}

/// The NUMA node of a device. None for -1, the value on machines with one NUMA node and in many VMs.
pub(super) fn numa_node(host: &Host, address: &str) -> Option<u32> {
    host.read(format!("/sys/bus/pci/devices/{address}/numa_node")).ok()?.trim().parse().ok()
}

/// The link from sysfs: its current width, and the maximum width of the device and of its port.
pub(super) fn link(host: &Host, address: &str) -> PcieLink {
    let number = |address: &str, file: &str| -> Option<u32> {
        let text = host.read(format!("/sys/bus/pci/devices/{address}/{file}")).ok()?;
        text.trim().parse().ok().filter(|lanes| *lanes > 0)
    };
    // The last bridge is a port, or in a flat VM the host bridge, which has no link width.
    let port = bridges(host, address).pop().and_then(|port| number(&port, "max_link_width"));
    let own = number(address, "max_link_width");
    PcieLink {
        width: number(address, "current_link_width"),
        max_width: own.map(|own| port.map_or(own, |port| own.min(port))),
        ..PcieLink::default()
    }
}

/// The host bridge and the bridges between it and the device:
/// `…/pci0000:17/0000:17:01.0/0000:18:00.0` gives `pci0000:17` and `0000:17:01.0`.
pub(super) fn bridges(host: &Host, address: &str) -> Vec<String> {
    let Some(path) = host.real_path(format!("/sys/bus/pci/devices/{address}")) else {
        return Vec::new();
    };
    let parts: Vec<String> = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    // The domain of a VMD device has its own host bridge, further down.
    let Some(root) = parts.iter().rposition(|part| part.starts_with("pci")) else {
        return Vec::new();
    };
    let above = parts.len().saturating_sub(1);
    parts.get(root..above).unwrap_or_default().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_one_spelling() {
        for (text, expected) in [
            ("00000000:18:00.0", Some("0000:18:00.0")),
            ("0000:AF:00.0", Some("0000:af:00.0")),
            ("0009:01:00.0", Some("0009:01:00.0")),
            ("00010000:01:00.0", Some("10000:01:00.0")),
            ("[N/A]", None),
            ("18:00.0", None),
        ] {
            assert_eq!(address(text).as_deref(), expected, "{text}");
        }
    }
}
