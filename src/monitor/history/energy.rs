//! Energy used by the job's GPUs, from sampled counters and power.

use std::collections::{BTreeMap, BTreeSet};

use super::moment::Millis;

/// Maximum gap between two samples across which the power of a GPU is interpolated.
const GAP: Millis = 120_000;

/// The samples so far.
#[derive(Debug, Default)]
pub(super) struct Energy {
    /// The GPUs of the job: a sample covers all GPUs of the node.
    of_job: BTreeSet<u32>,
    gpus: BTreeMap<u32, Gpu>,
}

#[derive(Debug, Default)]
struct Gpu {
    /// Joules since the driver was loaded.
    counter: Option<f64>,
    /// Growth of the counter in joules.
    counted: f64,
    /// Time of the last reading, and watts.
    power: Option<(Millis, f64)>,
    /// Joules from the power over time.
    estimated: Option<f64>,
}

/// Joules of all GPUs. Each GPU is counted in one of the fields.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Joules {
    /// Energy of GPUs whose counter grew.
    pub measured: f64,
    /// Energy of the other GPUs, from their power over time.
    pub estimated: f64,
}

impl Energy {
    /// An attempt begins on these GPUs.
    pub(super) fn of_job(&mut self, gpus: BTreeSet<u32>) {
        self.of_job = gpus;
    }

    pub(super) fn add(&mut self, gpu: u32, at: Millis, counter: Option<f64>, watts: Option<f64>) {
        if !self.of_job.contains(&gpu) {
            return;
        }
        let gpu = self.gpus.entry(gpu).or_default();
        if let Some(counter) = counter
            && let Some(earlier) = gpu.counter.replace(counter)
        {
            // A counter that fell starts anew, because the driver was reloaded.
            gpu.counted += (counter - earlier).max(0.0);
        }
        if let Some(watts) = watts
            && let Some((before, earlier)) = gpu.power.replace((at, watts))
        {
            let passed = at.saturating_sub(before);
            if passed <= GAP {
                let joules = (earlier + watts) / 2.0 * passed as f64 / 1000.0;
                gpu.estimated = Some(gpu.estimated.unwrap_or(0.0) + joules);
            }
        }
    }

    /// None if the driver reported neither.
    pub(super) fn joules(&self) -> Option<Joules> {
        let mut all: Option<Joules> = None;
        for gpu in self.gpus.values() {
            // A counter that never grows is not supported by the driver.
            if gpu.counted > 0.0 {
                all.get_or_insert_default().measured += gpu.counted;
            } else if let Some(estimated) = gpu.estimated {
                all.get_or_insert_default().estimated += estimated;
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The samples of GPU 0 and 1, one each 10 s: counter and power.
    fn energy(samples: &[[(Option<f64>, Option<f64>); 2]]) -> Option<Joules> {
        let mut energy = Energy::default();
        energy.of_job(BTreeSet::from([0, 1]));
        for (at, sample) in (0..).step_by(10_000).zip(samples) {
            for (gpu, (counter, watts)) in (0..).zip(sample) {
                energy.add(gpu, at, *counter, *watts);
            }
        }
        energy.joules()
    }

    #[test]
    fn energy_counter_is_preferred_over_power_estimate() {
        let known = |counter: f64| (Some(counter), Some(100.0));
        let (none, power) = ((None, None), (None, Some(100.0)));
        for (samples, expected) in [
            (vec![[known(5000.0), none], [known(5900.0), none]], Some((900.0, 0.0))),
            (vec![[power, power], [power, power]], Some((0.0, 2000.0))),
            (vec![[known(5000.0), power], [known(5900.0), power]], Some((900.0, 1000.0))),
            // The driver was reloaded: the energy before and after is counted.
            (
                vec![
                    [known(5000.0), none],
                    [known(5900.0), none],
                    [known(3.0), none],
                    [known(53.0), none],
                ],
                Some((950.0, 0.0)),
            ),
            // A counter that never grows.
            (vec![[known(0.0), none], [known(0.0), none]], Some((0.0, 1000.0))),
            // The counter was missing between two samples.
            (vec![[known(5000.0), none], [none, none], [known(5900.0), none]], Some((900.0, 0.0))),
            (vec![[known(5000.0), power]], None),
            (vec![[none, none], [none, none]], None),
        ] {
            let expected = expected.map(|(measured, estimated)| Joules { measured, estimated });
            assert_eq!(energy(&samples), expected, "{samples:?}");
        }
    }

    #[test]
    fn energy_excludes_gpus_outside_the_job() {
        let mut energy = Energy::default();
        energy.of_job(BTreeSet::from([1]));
        for (at, counter) in [(0, 10.0), (1000, 70.0)] {
            energy.add(0, at, Some(counter * 9.0), Some(300.0));
            energy.add(1, at, Some(counter), None);
        }
        assert_eq!(energy.joules(), Some(Joules { measured: 60.0, estimated: 0.0 }));
    }
}
