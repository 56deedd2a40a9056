//! Pseudo-random numbers, the same on every machine for one seed and round.

/// splitmix64
#[derive(Debug)]
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64, round: u64) -> Chance {
        Chance(seed ^ round.wrapping_mul(0x2545_f491_4f6c_dd1d))
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below<N>(&mut self, limit: N) -> N
    where
        N: TryInto<u64, Error: std::fmt::Debug> + TryFrom<u64, Error: std::fmt::Debug>,
    {
        let limit = limit.try_into().expect("no negative limit");
        N::try_from(self.number() % limit).expect("below the limit")
    }

    pub fn of<T: Clone>(&mut self, choice: &[T]) -> T {
        choice[self.below(choice.len())].clone()
    }
}
