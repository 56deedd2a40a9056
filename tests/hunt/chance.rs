//! Numbers to choose with, the same on every machine for one seed and round.

/// splitmix64
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64, round: u64) -> Chance {
        Chance(seed ^ round.wrapping_mul(0x2545_f491_4f6c_dd1d))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        u32::try_from(self.next() % u64::from(limit)).expect("below a u32")
    }

    pub(crate) fn of<T: Clone>(&mut self, choice: &[T]) -> T {
        choice[self.below(u32::try_from(choice.len()).expect("few")) as usize].clone()
    }
}
