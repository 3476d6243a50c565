//! Random numbers that are the same in every run.

/// Random numbers (`SplitMix64`) from a fixed seed, so that a simulation repeats.
#[derive(Debug, Default)]
pub(super) struct Draws(u64);

impl Draws {
    /// A number below `count`.
    pub(super) fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((bits ^ (bits >> 31)) & 0xffff_ffff).unwrap_or(0) % count
    }

    /// A time between `ns` / 2 and `ns` * 3 / 2.
    pub(super) fn around(&mut self, ns: u64) -> u64 {
        let range = usize::try_from(ns).unwrap_or(usize::MAX - 1) + 1;
        ns / 2 + u64::try_from(self.below(range)).unwrap_or(0)
    }
}
