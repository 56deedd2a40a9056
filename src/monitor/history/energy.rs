//! Energy used by the job's GPUs, from sampled counters and power.

use std::collections::{BTreeMap, BTreeSet};

use super::moment::Millis;

/// A gap between two samples in which the power of a GPU is not guessed.
const GAP: Millis = 120_000;

/// The samples so far.
#[derive(Debug, Default)]
pub(super) struct Energy {
    /// The GPUs that count: a sample has all of the node.
    of_job: BTreeSet<u32>,
    gpus: BTreeMap<u32, Gpu>,
}

#[derive(Debug, Default)]
struct Gpu {
    /// Joules since the driver was loaded.
    counter: Option<f64>,
    /// By how much it grew.
    counted: f64,
    /// Watts, and when they were read.
    power: Option<(Millis, f64)>,
    /// The power over time.
    estimated: Option<f64>,
}

/// Joules of all GPUs, each of them in one of both.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Joules {
    /// Of GPUs whose counter grew.
    pub measured: f64,
    /// Of the others, whose power over time it is.
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
            // One that fell is of a driver that was loaded again, and begins anew.
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

    /// None where the driver told neither.
    pub(super) fn joules(&self) -> Option<Joules> {
        let mut all: Option<Joules> = None;
        for gpu in self.gpus.values() {
            // One that stands still is that of a driver which has none.
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
            // Loaded again: what it counted before and after.
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
            // It was lost between two samples.
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
