//! The GPUs of an assumed node (`plan --assume`).

use super::visible::{unreadable, visible};
use crate::observe::{Gpu, GpuFacts, GpuSource};
use linux::host::Host;
use settings::Assumed;

/// The assumed GPUs, filtered by this CUDA_VISIBLE_DEVICES.
pub(in crate::observe) fn assumed(host: &Host, assumed: &Assumed) -> GpuFacts {
    let gpus: Vec<Gpu> = (0..assumed.gpus)
        .map(|index| Gpu {
            index,
            name: assumed.name.clone(),
            memory_total: assumed.memory,
            ..Gpu::default()
        })
        .collect();
    let devices = host.variable("CUDA_VISIBLE_DEVICES");
    GpuFacts {
        visible: visible(devices.as_deref(), &gpus),
        unreadable_device: devices.as_deref().and_then(unreadable).map(str::to_owned),
        cuda_visible_devices: devices,
        gpus,
        source: GpuSource::Assumed,
        ..GpuFacts::default()
    }
}
