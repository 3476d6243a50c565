//! The whole measurement: loads by image kinds, recorded, replayed, summed up and printed as a table.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::images::{IMAGES, ImageKind, image_kind};
use super::kernel;
use super::loads::{LOADS, Load, load_named};
use super::record::{fits, record};
use super::replay::{Agreement, replay, share};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Names of loads; empty for all.
    pub loads: Vec<String>,
    /// Names of image kinds; empty for all.
    pub images: Vec<String>,
    /// Seed of the loads.
    pub seed: u64,
    /// Operations of each load, roughly.
    pub operations: u32,
    /// Where images are made.
    pub scratch: PathBuf,
    /// Where recordings are kept; none: they are not.
    pub keep: Option<PathBuf>,
    /// Take only every n-th pair of load and image; 1 for all.
    pub every: usize,
}

/// Runs a plan; `each` sees every result as it comes.
///
/// # Errors
/// When something is missing on this machine (with its name), a name is unknown, or recording or replay fail.
pub fn run(plan: &Plan, mut each: impl FnMut(&Agreement)) -> anyhow::Result<Vec<Agreement>> {
    let loads = chosen(&plan.loads, &LOADS, load_named, "load")?;
    let images = chosen(&plan.images, &IMAGES, image_kind, "image kind")?;
    if let Some(missing) = kernel::missing() {
        anyhow::bail!("cannot record decisions of the kernel here: missing {missing}");
    }
    kernel::clean_leftovers(&plan.scratch);
    let mut results = Vec::new();
    for (row, &image) in images.iter().enumerate() {
        for (column, &load) in loads.iter().enumerate() {
            if (row + column).is_multiple_of(plan.every.max(1)) && fits(image, load) {
                let result = one(plan, image, load)?;
                each(&result);
                results.push(result);
            }
        }
    }
    Ok(results)
}

fn chosen<T: Copy>(
    names: &[String],
    all: &[T],
    named: fn(&str) -> Option<T>,
    what: &str,
) -> anyhow::Result<Vec<T>> {
    if names.is_empty() {
        return Ok(all.to_vec());
    }
    names
        .iter()
        .map(|name| named(name).ok_or_else(|| anyhow::anyhow!("there is no {what} {name:?}")))
        .collect()
}

fn one(plan: &Plan, image: ImageKind, load: Load) -> anyhow::Result<Agreement> {
    let recording = record(image, load, plan.seed, plan.operations, &plan.scratch)?;
    if let Some(directory) = &plan.keep {
        std::fs::create_dir_all(directory)?;
        let file = std::fs::File::create(recording_path(directory, image.name, load.name))?;
        recording.write(&mut std::io::BufWriter::new(file))?;
    }
    replay(&recording)
}

fn recording_path(directory: &Path, image: &str, load: &str) -> PathBuf {
    directory.join(format!("{image}.{load}.jsonl"))
}

/// The results as a Markdown table, one row a recording and a last row for all.
#[must_use]
pub fn table(results: &[Agreement]) -> String {
    let mut text = String::from(
        "| image | load | scan | requests | searches | placements % | criteria % | candidates % | groups % | \
         decisions % | mb_groups | summary | mb_stats |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let yes = |equal: bool| if equal { "equal" } else { "differs" };
    for one in results {
        let scan = if one.optimize_scan { "optimized" } else { "linear" };
        row(
            &mut text,
            &[&one.image, &one.load, scan, yes(one.mb_groups), yes(one.summary), yes(one.stats)],
            one,
        );
    }
    let all = total(results);
    row(&mut text, &["all", "all", "both", yes(all.mb_groups), yes(all.summary), yes(all.stats)], &all);
    text
}

fn row(text: &mut String, words: &[&str; 6], one: &Agreement) {
    let [image, load, scan, groups, summary, stats] = words;
    let of = |part| share(part, one.searches);
    // Writing to a string can not fail.
    let _ = writeln!(
        text,
        "| {image} | {load} | {scan} | {} | {} | {:.3} | {:.3} | {:.3} | {:.3} | {:.3} | {groups} | {summary} | {stats} |",
        one.requests,
        one.searches,
        one.percent(),
        of(one.criteria),
        of(one.candidates),
        of(one.groups),
        of(one.decisions),
    );
}

/// The sum of all results; its `first` is the first difference of any.
#[must_use]
pub fn total(results: &[Agreement]) -> Agreement {
    let mut all = Agreement { mb_groups: true, summary: true, stats: true, ..Agreement::default() };
    for one in results {
        all.requests += one.requests;
        all.searches += one.searches;
        all.placements += one.placements;
        all.criteria += one.criteria;
        all.candidates += one.candidates;
        all.groups += one.groups;
        all.decisions += one.decisions;
        all.mb_groups &= one.mb_groups;
        all.summary &= one.summary;
        all.stats &= one.stats;
        all.overlaps += one.overlaps;
        all.first = all.first.or_else(|| one.first.clone());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_difference_in_a_million_is_not_a_hundred_per_cent() {
        let nearly = Agreement { requests: 1_000_000, placements: 999_999, ..Agreement::default() };
        let sum = total(&[nearly.clone(), nearly]);
        assert!(sum.percent() < 100.0);
        assert!(!table(&[sum]).contains("100.000 |  "));
        assert!((share(0, 0) - 100.0).abs() < f64::EPSILON);
    }
}
