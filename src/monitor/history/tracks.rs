//! Samples over time, in a bounded number of buckets.
//!
//! A run may take weeks: when its buckets are full, neighbouring buckets are merged in pairs.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Buckets of each track while they are collected.
const MOST_BUCKETS: usize = 512;

/// Milliseconds since 1970, UTC.
pub(crate) type Millis = u64;

/// Measurements over time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Samples {
    pub began: Millis,
    /// Milliseconds of a bucket.
    pub every: u64,
    pub tracks: Vec<Track>,
}

/// One quantity of one thing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Track {
    /// `node`, `rank`, `gpu`
    pub of: String,
    pub number: u32,
    /// `cpu` and `utilisation` in percent, `memory` and `limit` in MiB, `power` in W,
    /// `temperature` in °C, `received` and `sent` in KiB/s
    pub what: String,
    pub mean: u32,
    pub most: u32,
    pub values: Vec<Option<u32>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    sum: f64,
    count: u32,
    most: f64,
}

impl Bucket {
    fn join(self, other: Bucket) -> Bucket {
        Bucket {
            sum: self.sum + other.sum,
            count: self.count + other.count,
            most: self.most.max(other.most),
        }
    }
}

/// Tracks that grow.
#[derive(Debug, Default)]
pub(super) struct Tracks {
    began: Option<Millis>,
    every: u64,
    /// Number of sampled times.
    times: usize,
    tracks: BTreeMap<(&'static str, u32, &'static str), Vec<Bucket>>,
}

impl Tracks {
    /// A sample was taken at this time.
    pub(super) fn begin(&mut self, at: Millis) {
        self.began.get_or_insert(at);
        self.every = self.every.max(1000);
        self.times += 1;
    }

    pub(super) fn add(
        &mut self,
        at: Millis,
        (of, number, what): (&'static str, u32, &'static str),
        value: f64,
    ) {
        let Some(began) = self.began.filter(|_| value.is_finite() && value >= 0.0) else { return };
        // The clock was set back.
        let since = at.saturating_sub(began);
        while since / self.every >= MOST_BUCKETS as u64 {
            self.halve();
        }
        let index = usize::try_from(since / self.every).unwrap_or(0);
        let track = self.tracks.entry((of, number, what)).or_default();
        if track.len() <= index {
            track.resize(index + 1, Bucket::default());
        }
        if let Some(bucket) = track.get_mut(index) {
            *bucket = bucket.join(Bucket { sum: value, count: 1, most: value });
        }
    }

    fn halve(&mut self) {
        self.every = self.every.saturating_mul(2);
        for track in self.tracks.values_mut() {
            let joined = track
                .chunks(2)
                .map(|pair| pair.iter().copied().reduce(Bucket::join).unwrap_or_default());
            *track = joined.collect();
        }
    }

    /// The samples in at most `points` buckets, and in not many more than there were samples.
    pub(super) fn finish(mut self, points: usize) -> Samples {
        let longest = |tracks: &Tracks| tracks.tracks.values().map(Vec::len).max().unwrap_or(0);
        while longest(&self) > points.max(1) || longest(&self) > self.times.max(1) * 3 / 2 {
            self.halve();
        }
        let tracks = self.tracks.into_iter().map(|((of, number, what), buckets)| {
            let all = buckets.iter().copied().reduce(Bucket::join).unwrap_or_default();
            let values = buckets.iter().map(|bucket| {
                // For memory the maximum counts, since that is what runs out.
                let value = if what == "memory" { bucket.most } else { mean(*bucket) };
                (bucket.count > 0).then(|| whole(value))
            });
            Track {
                of: of.to_owned(),
                number,
                what: what.to_owned(),
                mean: whole(mean(all)),
                most: whole(all.most),
                values: values.collect(),
            }
        });
        let tracks = tracks.collect();
        Samples { began: self.began.unwrap_or_default(), every: self.every, tracks }
    }
}

impl Samples {
    /// Reduces each track to at most `points` values.
    pub fn thin(&mut self, points: usize) {
        let longest = |tracks: &[Track]| tracks.iter().map(|track| track.values.len()).max();
        while longest(&self.tracks).unwrap_or(0) > points {
            if points == 0 {
                self.tracks.iter_mut().for_each(|track| track.values.clear());
                return;
            }
            self.every = self.every.saturating_mul(2);
            for track in &mut self.tracks {
                let is_memory = track.what == "memory";
                let joined = track.values.chunks(2).map(|pair| {
                    let known: Vec<u32> = pair.iter().flatten().copied().collect();
                    let sum: u64 = known.iter().map(|value| u64::from(*value)).sum();
                    let mean = sum.checked_div(known.len() as u64);
                    let mean = mean.and_then(|mean| u32::try_from(mean).ok());
                    if is_memory { known.iter().max().copied() } else { mean }
                });
                track.values = joined.collect();
            }
        }
    }
}

fn mean(bucket: Bucket) -> f64 {
    bucket.sum / f64::from(bucket.count.max(1))
}

#[expect(clippy::cast_sign_loss, reason = "negative values are not taken")]
fn whole(value: f64) -> u32 {
    // `as` saturates.
    value.round() as u32
}

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
