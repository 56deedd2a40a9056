//! Samples over time, in a bounded number of buckets.
//!
//! A run may take weeks: when its buckets are full, neighbouring buckets are merged in pairs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::moment::Millis;

/// Buckets of each track while they are collected.
const MOST: usize = 512;

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
        while since / self.every >= MOST as u64 {
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
