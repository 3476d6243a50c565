//! The rates of all policies over all cells with threads on fresh images, and what chance alone
//! would give.
//!
//! The table divides each policy's rate in a cell by that of the fastest other policy, and takes
//! the geometric mean over the cells. But the rate of a cell can vary by a fifth or more between
//! repetitions, and the fastest of nine policies is partly lucky. So a note says what the ratios
//! would be if all policies were equal.

use blockyard_disk::num::{count_as_f64, u64_from_usize};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{OURS, RATE_KEPT};
use crate::figures::row::{Interleave, Row};
use crate::figures::spread::Spread;
use crate::figures::states::is_fresh;
use crate::figures::{Table, summary, table};

/// How many times the rates of every cell are drawn as if all policies were equal.
const DRAWS: usize = 1000;
/// The fewest repetitions of a cell from which rates are drawn. Fewer do not show how much the rate
/// varies.
const REPETITIONS_MIN: usize = 3;

/// One cell: for every policy, the rates of its repetitions.
struct Cell<'a> {
    rates: Vec<(&'a str, Vec<f64>)>,
}

/// A row for each policy, about the ratios of its rates to those of the fastest other policy. The
/// row has the mean, the least ratio, and in how many cells the ratio is at least [`RATE_KEPT`] and
/// in how many at least 1. `None` if no cell compares policies.
pub(super) fn table(rows: &[Row]) -> Option<Table> {
    let cells = cells(rows);
    let mut policies: Vec<&str> = Vec::new();
    for (policy, _) in cells.iter().flat_map(|cell| &cell.rates) {
        if !policies.contains(policy) {
            policies.push(policy);
        }
    }
    if policies.is_empty() {
        return None;
    }
    let heads = ["policy", "mean", "least", &format!("cells at {RATE_KEPT}"), "cells first"];
    let title = "rates with threads over the fastest other's, all cells";
    let mut table = Table::new(title, heads.map(str::to_owned)).with_keys(1);
    for policy in policies {
        let ratios: Vec<f64> = cells.iter().filter_map(|cell| cell.ratio(policy)).collect();
        let count = |least: f64| ratios.iter().filter(|ratio| **ratio >= least).count().to_string();
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        table.push([
            policy.to_owned(),
            table::figure(geometric_mean(&ratios)),
            table::figure(least),
            count(RATE_KEPT),
            count(1.0),
        ]);
    }
    table.note(format!("{} cells; mean: geometric, of medians of repetitions.", cells.len()));
    if let Some(chance) = Chance::of(&cells) {
        table.note(format!(
            "if all policies were equal and varied as {OURS} does, each would have at least {} of the fastest other's rate in \
             half of the cells, and less than {} in a tenth; it would have at least {RATE_KEPT} in all cells in {} of {DRAWS} draws.",
            table::figure(chance.median),
            table::figure(chance.tenth),
            chance.all_kept,
        ));
    }
    Some(table)
}

/// The cells with threads, on fresh images, in which at least two policies ran.
fn cells(rows: &[Row]) -> Vec<Cell<'_>> {
    let mut cells = Vec::new();
    let with_threads = |row: &&Row| row.interleave == Interleave::Threads && is_fresh(&row.state);
    for (_, part) in summary::by_workload(rows) {
        let part: Vec<&Row> = part.into_iter().filter(with_threads).collect();
        let mut workers: Vec<u32> = part.iter().map(|row| row.workers).collect();
        workers.sort_unstable();
        workers.dedup();
        for count in workers {
            let of = |policy: &str| {
                let these = part.iter().filter(|row| row.policy == policy && row.workers == count);
                these.map(|row| row.ops_per_s).collect::<Vec<f64>>()
            };
            let rates: Vec<(&str, Vec<f64>)> = summary::policies(&part)
                .into_iter()
                .map(|policy| (policy, of(policy)))
                .filter(|(_, rates)| !rates.is_empty())
                .collect();
            if rates.len() > 1 {
                cells.push(Cell { rates });
            }
        }
    }
    cells
}

impl Cell<'_> {
    /// A policy's median rate over the greatest median of the others.
    fn ratio(&self, policy: &str) -> Option<f64> {
        let ours = self.rates.iter().find(|(name, _)| *name == policy)?;
        let others = self.rates.iter().filter(|(name, _)| *name != policy);
        let best = others.map(|(_, rates)| median(rates)).fold(f64::NAN, f64::max);
        Some(median(&ours.1) / best)
    }
}

/// The ratio of a policy's rate to that of the fastest other policy, if all policies were equal.
struct Chance {
    /// In half of the drawn cells the ratio is at least this.
    median: f64,
    /// In a tenth of the drawn cells the ratio is less than this.
    tenth: f64,
    /// Number of draws in which the ratio is at least [`RATE_KEPT`] in every cell.
    all_kept: usize,
}

impl Chance {
    /// Draws the repetitions of every policy from yard's, [`DRAWS`] times. `None` if there is no
    /// cell, or if yard has fewer than [`REPETITIONS_MIN`] repetitions in some cell.
    fn of(cells: &[Cell<'_>]) -> Option<Self> {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut ratios = Vec::new();
        let mut all_kept = 0;
        for _ in 0..DRAWS {
            let mut is_kept = true;
            for cell in cells {
                let (_, rates) = cell.rates.iter().find(|(policy, _)| *policy == OURS)?;
                if rates.len() < REPETITIONS_MIN {
                    return None;
                }
                let ours = redrawn(rates, &mut random);
                let others = (1..cell.rates.len()).map(|_| redrawn(rates, &mut random));
                let ratio = ours / others.fold(f64::NAN, f64::max);
                is_kept &= ratio >= RATE_KEPT;
                ratios.push(ratio);
            }
            all_kept += usize::from(is_kept);
        }
        ratios.sort_by(f64::total_cmp);
        Some(Self {
            median: *ratios.get(ratios.len() / 2)?,
            tenth: *ratios.get(ratios.len() / 10)?,
            all_kept,
        })
    }
}

/// The median of a sample of `rates`: as many rates, drawn with replacement.
fn redrawn(rates: &[f64], random: &mut impl Rng) -> f64 {
    let drawn: Vec<f64> = rates.iter().filter_map(|_| rates.choose(random).copied()).collect();
    median(&drawn)
}

fn median(values: &[f64]) -> f64 {
    Spread::of(values).map_or(f64::NAN, |spread| spread.median)
}

fn geometric_mean(values: &[f64]) -> f64 {
    let logs: f64 = values.iter().map(|value| value.ln()).sum();
    (logs / count_as_f64(u64_from_usize(values.len()))).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::summary::tests::row;

    #[test]
    fn each_policy_stands_beside_the_fastest_other() {
        let mut rows = Vec::new();
        for (policy, two, eight) in
            [("yard", 90.0, 200.0), ("rralloc", 100.0, 50.0), ("best-fit", 10.0, 100.0)]
        {
            rows.push(row(policy, 2, two));
            rows.push(row(policy, 8, eight));
        }
        // One row is not with threads, and the other is not from a fresh image. Neither counts.
        rows.push(Row { interleave: Interleave::Overlap, ..row("yard", 2, 1.0) });
        rows.push(Row { state: "mail".into(), ..row("yard", 2, 1.0) });
        let table = table(&rows).unwrap();
        // Each policy has two ratios. Those of yard are 0.9 and 2, and their geometric mean is the
        // root of 1.8. Those of rralloc are 100 / 90 and 0.25, those of best-fit 0.1 and 0.5.
        let expected = [
            ["yard", "1.34", "0.9000", "1", "1"],
            ["rralloc", "0.5270", "0.2500", "1", "1"],
            ["best-fit", "0.2236", "0.1000", "0", "0"],
        ];
        assert_eq!(table.rows, expected.map(|row| row.map(str::to_owned).to_vec()));
        assert_eq!(table.notes, ["2 cells; mean: geometric, of medians of repetitions."]);
        assert!(super::table(&rows[..1]).is_none(), "one policy is not compared");
    }

    /// Without scatter, equal policies have the same rate. With scatter, the fastest of nine others
    /// is usually faster than yard.
    #[test]
    fn equal_policies_are_not_all_the_fastest() {
        let cell = |rates: [f64; 4]| {
            let names = ["yard", "a", "b", "c", "d", "e", "f", "g", "h", "i"];
            Cell { rates: names.map(|name| (name, rates.to_vec())).to_vec() }
        };
        let still = Chance::of(&[cell([5.0; 4])]).unwrap();
        assert_eq!((still.median, still.tenth, still.all_kept), (1.0, 1.0, DRAWS));
        let fifteen: Vec<Cell<'_>> = (0..15).map(|_| cell([80.0, 100.0, 110.0, 120.0])).collect();
        let chance = Chance::of(&fifteen).unwrap();
        assert!(chance.tenth < chance.median && chance.median < 0.97, "{}, {}", chance.tenth, chance.median);
        assert!(chance.all_kept < DRAWS / 100, "{}", chance.all_kept);
        assert!(Chance::of(&[Cell { rates: vec![("yard", vec![1.0]), ("a", vec![1.0])] }]).is_none());
    }
}
