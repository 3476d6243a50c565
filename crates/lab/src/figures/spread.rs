//! Medians, intervals and the order of repetitions: an honest comparison of noisy figures.
//!
//! Arms of a comparison run in ABBA order, so that slow drift of the machine affects all arms
//! alike. Reports show the median with an interval from order statistics, not the mean of a few
//! noisy runs.

use blockyard_disk::num::{count_as_f64, u64_from_usize};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// Median and interval of repeated measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The median; the mean of the two middle values for an even number.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Number of measurements.
    pub count: usize,
}

impl Spread {
    /// The spread of some measurements; `None` if there are none, or if any of them is NaN.
    ///
    /// With at least six values the interval covers the true median with 95 % confidence (order
    /// statistics of the binomial distribution); with fewer it is the whole range.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| value.is_nan()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let median = if n % 2 == 1 { sorted[n / 2] } else { f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]) };
        let cut = values_cut_each_side(n);
        Some(Self { median, low: sorted[cut], high: sorted[n - 1 - cut], count: n })
    }

    /// Half the width of the interval as a share of the median; 0 if the median is 0.
    #[must_use]
    pub fn relative(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { (self.high - self.low) / 2.0 / self.median.abs() }
    }
}

/// The number of values outside the interval at each end. Let r be the largest rank for which
/// P(Binomial(n, 1/2) <= r - 1) <= 2.5 %. The interval runs from the r-th to the (n + 1 - r)-th
/// value, so r - 1 values are outside at each end. Below six values there is no such rank, and no
/// value is outside.
fn values_cut_each_side(n: usize) -> usize {
    let mut probability = 0.5f64.powi(i32::try_from(n).unwrap_or(i32::MAX));
    let mut below = 0.0;
    let mut rank = 0;
    while rank < n / 2 && below + probability <= 0.025 {
        below += probability;
        probability *= count_as_f64(u64_from_usize(n - rank)) / count_as_f64(u64_from_usize(rank + 1));
        rank += 1;
    }
    rank.saturating_sub(1)
}

/// The order in which `arms` arms run for `repeats` repetitions, as items (repetition, arm).
/// Repetitions come in pairs: the second of a pair runs the arms in the reverse order of the first
/// (A B B A). The first repetition of all runs them by number. The first repetition of each later
/// pair runs them in an order drawn with `seed`.
pub fn abba(arms: usize, repeats: u32, seed: u64) -> impl Iterator<Item = (u32, usize)> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut order: Vec<usize> = (0..arms).collect();
    let mut all = Vec::new();
    for repeat in 0..repeats {
        match (repeat, repeat % 2) {
            (0, _) => {}
            (_, 0) => order.shuffle(&mut random),
            _ => order.reverse(),
        }
        all.extend(order.iter().map(|&arm| (repeat, arm)));
    }
    all.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_alternate_forwards_and_backwards() {
        let order: Vec<_> = abba(2, 2, 1).map(|(_, arm)| arm).collect();
        assert_eq!(order, [0, 1, 1, 0]);
        let passes = |seed| -> Vec<Vec<usize>> {
            let all: Vec<_> = abba(5, 7, seed).collect();
            assert!(all.is_sorted_by_key(|(repeat, _)| *repeat));
            all.chunks(5).map(|pass| pass.iter().map(|(_, arm)| *arm).collect()).collect()
        };
        let one = passes(1);
        assert_eq!((one.len(), &one[0]), (7, &vec![0, 1, 2, 3, 4]));
        for pair in one.chunks(2) {
            let mut backwards = pair[0].clone();
            backwards.reverse();
            assert!(pair.len() == 1 || pair[1] == backwards, "{pair:?}");
            backwards.sort_unstable();
            assert_eq!(backwards, one[0]);
        }
        assert!(one[2] != one[0] && one == passes(1) && one != passes(2), "{one:?}");
    }

    #[test]
    fn few_values_give_the_whole_range() {
        let spread = Spread::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((spread.median, spread.low, spread.high), (2.0, 1.0, 3.0));
        assert_eq!(Spread::of(&[1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[f64::NAN]), None);
    }

    /// Ranks from published tables of order-statistic intervals of the median at 95 %.
    #[test]
    fn intervals_follow_the_binomial_table() {
        for (n, first_rank) in [(5, 1), (6, 1), (9, 2), (12, 3), (20, 6)] {
            let values: Vec<f64> = (1..=n).map(f64::from).collect();
            let spread = Spread::of(&values).unwrap();
            assert_eq!(spread.low, f64::from(first_rank), "n = {n}");
            assert_eq!(spread.high, f64::from(n + 1 - first_rank), "n = {n}");
        }
    }

    /// If one of eight values is left out at each end, the interval misses the median with a
    /// probability of 3.5 % (9 of 256) on each side. That is too much for 95 % confidence, but not
    /// for 90 %.
    #[test]
    fn eight_values_give_the_whole_range_too() {
        let values: Vec<f64> = (1..=8).map(f64::from).collect();
        let spread = Spread::of(&values).unwrap();
        assert_eq!((spread.median, spread.low, spread.high), (4.5, 1.0, 8.0));
    }
}
