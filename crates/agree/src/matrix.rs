//! The whole measurement: records loads on image kinds, replays them, and puts the results into
//! tables.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use blockyard_lab::age::Ageing;
use blockyard_lab::figures::Table;
use blockyard_lab::figures::states::{Stated, beside};

use super::images::{IMAGES, ImageKind};
use super::kernel::{self, Start};
use super::loads::{LOADS, Load};
use super::record::{can_age, fits, record};
use super::replay::{Agreement, replay, share};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Names of loads; empty for all.
    pub loads: Vec<String>,
    /// Names of image kinds; empty for all.
    pub images: Vec<String>,
    /// How to age each image in the engine for a second recording; `None`: fresh images only.
    pub aged: Option<Ageing>,
    /// Seed of the ageing and of the loads.
    pub seed: u64,
    /// Approximate number of operations of each load.
    pub operations: u32,
    /// Directory for images.
    pub scratch: PathBuf,
    /// Directory to keep recordings in; `None` keeps none.
    pub keep: Option<PathBuf>,
    /// Measures about one in `every` pairs of load and image, spread over the loads and the images;
    /// 0 and 1 measure all.
    pub every: usize,
}

impl Plan {
    /// The pairs of image kind and load to record, in order, without loads that cannot run on the
    /// image kind.
    ///
    /// # Errors
    /// When a name is unknown. The message lists the known names.
    pub fn pairs(&self) -> anyhow::Result<Vec<(ImageKind, Load)>> {
        let loads = chosen(&self.loads, &LOADS, |load| load.name, "load")?;
        let images = chosen(&self.images, &IMAGES, |image| image.name, "image kind")?;
        let mut pairs = Vec::new();
        for (row, &image) in images.iter().enumerate() {
            for (column, &load) in loads.iter().enumerate() {
                if (row + column).is_multiple_of(self.every.max(1)) && fits(image, load) {
                    pairs.push((image, load));
                }
            }
        }
        Ok(pairs)
    }

    /// The recordings to make: each pair on a fresh image, and then on an aged one if the plan has
    /// an ageing that can run on the image kind.
    ///
    /// # Errors
    /// As [`Self::pairs`], and when none of the image kinds can be aged as asked.
    pub fn recordings(&self) -> anyhow::Result<Vec<(Start<'_>, Load)>> {
        let mut recordings = Vec::new();
        for (kind, load) in self.pairs()? {
            let lived = self.aged.as_ref().filter(|ageing| can_age(kind, ageing));
            for aged in std::iter::once(None).chain(lived.map(Some)) {
                recordings.push((Start { kind, aged, seed: self.seed }, load));
            }
        }
        if let Some(ageing) = &self.aged {
            ensure!(
                recordings.is_empty() || recordings.iter().any(|(start, _)| start.aged.is_some()),
                "{ageing} preallocates files, which images with indirect blocks do not support; take another \
                 profile or image"
            );
        }
        Ok(recordings)
    }
}

/// Runs a plan. `progress` is called before each recording with its number (from 1) and name;
/// `each` gets every result as soon as it is known.
///
/// # Errors
/// Those of [`Plan::recordings`]. Also when this machine lacks something (the message names it), or
/// when a recording cannot be made, kept or replayed.
pub fn run(
    plan: &Plan,
    mut progress: impl FnMut(usize, &str),
    mut each: impl FnMut(&Agreement),
) -> anyhow::Result<Vec<Agreement>> {
    let recordings = plan.recordings()?;
    if let Some(missing) = kernel::missing() {
        anyhow::bail!("cannot record decisions of the kernel here: missing {missing}");
    }
    blockyard_lab::scratch::clean_leftovers();
    let mut results = Vec::new();
    for (index, (start, load)) in recordings.into_iter().enumerate() {
        let life = start.aged.map_or(String::new(), |ageing| format!("; {ageing}"));
        progress(index + 1, &format!("{} on {}{life}", load.name, start.kind.name));
        let result = one(plan, start, load)?;
        each(&result);
        results.push(result);
    }
    Ok(results)
}

/// The loads or images of these names; all of them if no name is given.
fn chosen<T: Copy>(
    wanted: &[String],
    all: &[T],
    name: fn(&T) -> &'static str,
    what: &str,
) -> anyhow::Result<Vec<T>> {
    if wanted.is_empty() {
        return Ok(all.to_vec());
    }
    let find = |asked: &String| {
        all.iter().copied().find(|one| name(one) == asked.as_str()).with_context(|| {
            let known: Vec<&str> = all.iter().map(name).collect();
            format!("{what} {asked:?} is unknown: use {}", known.join(", "))
        })
    };
    wanted.iter().map(find).collect()
}

fn one(plan: &Plan, start: Start<'_>, load: Load) -> anyhow::Result<Agreement> {
    let recording = record(start, load, plan.operations, &plan.scratch)?;
    if let Some(directory) = &plan.keep {
        std::fs::create_dir_all(directory)?;
        let file = std::fs::File::create(recording_path(directory, start, load))?;
        recording.write(&mut std::io::BufWriter::new(file))?;
    }
    replay(&recording)
}

fn recording_path(directory: &Path, start: Start<'_>, load: Load) -> PathBuf {
    let aged = if start.aged.is_some() { ".aged" } else { "" };
    directory.join(format!("{}.{}{aged}.jsonl", start.kind.name, load.name))
}

/// The results as a table: one row for each pair of load and image, and a last row for all. Fresh
/// and aged images are columns next to each other.
#[must_use]
pub fn table(results: &[Agreement]) -> Table {
    by_state(results, of_pairs)
}

/// The results summed up: one row for each image kind, one for each load, and a last row for all.
/// Fresh and aged images are columns next to each other.
#[must_use]
pub fn summary(results: &[Agreement]) -> Table {
    by_state(results, summed_up)
}

/// One table for all results. A state (fresh, or one ageing) has its own columns; `of_one` makes
/// the table of one state.
pub(crate) fn by_state<R: Stated>(results: &[R], of_one: impl Fn(&[R]) -> Table) -> Table {
    let mut joined = beside(results, |part| vec![of_one(part)]);
    debug_assert_eq!(joined.len(), 1, "the tables of all states have one title");
    let mut table = joined.pop().unwrap_or_else(|| of_one(results));
    let is_of_one = results.windows(2).all(|pair| pair[0].state() == pair[1].state());
    if !is_of_one {
        table.note("A column of a life that would be equal in every row is left out.");
    }
    table
}

fn of_pairs(results: &[Agreement]) -> Table {
    let mut table = heading();
    for one in results {
        table.push(row([&one.image, &one.load, scan(one)], one));
    }
    table.push(row(["all", "all", "both"], &total(results)));
    table
}

fn summed_up(results: &[Agreement]) -> Table {
    let mut table = heading();
    for (image, sum) in sums(results, |one| &one.image) {
        table.push(row([image, "all", scan(&sum)], &sum));
    }
    for (load, sum) in sums(results, |one| &one.load) {
        table.push(row(["all", load, "both"], &sum));
    }
    table.push(row(["all", "all", "both"], &total(results)));
    table
}

/// Sums of the results that share a name, in order of first appearance.
fn sums(results: &[Agreement], name: fn(&Agreement) -> &str) -> Vec<(&str, Agreement)> {
    let mut names: Vec<&str> = Vec::new();
    for one in results {
        if !names.contains(&name(one)) {
            names.push(name(one));
        }
    }
    let sum = |wanted: &str| {
        let mine: Vec<Agreement> = results.iter().filter(|one| name(one) == wanted).cloned().collect();
        total(&mine)
    };
    names.into_iter().map(|wanted| (wanted, sum(wanted))).collect()
}

fn scan(one: &Agreement) -> &'static str {
    if one.optimize_scan { "optimized" } else { "linear" }
}

fn heading() -> Table {
    let heads = [
        "image",
        "load",
        "scan",
        "requests",
        "searches",
        "placements %",
        "criteria %",
        "candidates %",
        "groups %",
        "decisions %",
        "mb_groups",
        "summary",
        "mb_stats",
    ];
    Table::new("requests to the kernel's block allocator, and how many our allocator decides alike", heads)
        .with_keys(3)
}

fn row(names: [&str; 3], one: &Agreement) -> Vec<String> {
    // Where there was nothing to compare, there is no percentage.
    let cut = |part, whole| if whole == 0 { "-".to_owned() } else { format!("{:.3}", share(part, whole)) };
    let of = |part| cut(part, one.searches);
    let equal = |equal: bool| if equal { "equal" } else { "differs" }.to_owned();
    let figures = [
        one.requests.to_string(),
        one.searches.to_string(),
        cut(one.placements, one.requests),
        of(one.criteria),
        of(one.candidates),
        of(one.groups),
        of(one.decisions),
        equal(one.mb_groups),
        equal(one.summary),
        equal(one.stats),
    ];
    names.map(str::to_owned).into_iter().chain(figures).collect()
}

/// The sum of all results. The sum's `first` is the first difference in any of the results.
#[must_use]
pub fn total(results: &[Agreement]) -> Agreement {
    let mut all = Agreement { mb_groups: true, summary: true, stats: true, ..Agreement::default() };
    all.optimize_scan = results.iter().all(|one| one.optimize_scan);
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
    fn sums_keep_what_differs() {
        let one = |image: &str, load: &str, stats| Agreement {
            image: image.to_owned(),
            load: load.to_owned(),
            requests: 10,
            placements: 10,
            stats,
            ..Agreement::default()
        };
        let rows = summary(&[one("a", "x", true), one("a", "y", false), one("b", "x", true)]).rows;
        assert_eq!(rows.len(), 5);
        let stats: Vec<bool> = rows.iter().map(|row| row[12] == "equal").collect();
        assert_eq!(stats, [false, true, true, false, false], "{rows:?}");
        assert_eq!(rows[0][..4], ["a", "all", "linear", "20"]);
        assert_eq!(rows[4][..4], ["all", "all", "both", "30"]);
    }

    #[test]
    fn unknown_names_are_told_with_the_known_ones() {
        let of = |loads: &[&str], images: &[&str]| {
            let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
            let plan = Plan {
                loads: names(loads),
                images: names(images),
                aged: None,
                seed: 1,
                operations: 1,
                scratch: PathBuf::new(),
                keep: None,
                every: 1,
            };
            plan.pairs().map(|pairs| pairs.len()).map_err(|error| error.to_string())
        };
        assert_eq!(of(&["untar"], &["flex16"]), Ok(1));
        let unknown = of(&["tar"], &[]).unwrap_err();
        assert!(unknown.starts_with("load \"tar\" is unknown: use small-fsync, sequential, "), "{unknown}");
        let unknown = of(&[], &["3k"]).unwrap_err();
        assert!(unknown.starts_with("image kind \"3k\" is unknown: use flex16, "), "{unknown}");
    }

    /// A regression: level 1 refused to age images, so one run never had both fresh and aged ones.
    #[test]
    fn fresh_and_aged_images_are_columns_of_one_table() {
        let aged = Agreement { state: "mail:9".to_owned(), ..one(2) };
        let fresh = Agreement { state: "fresh".to_owned(), ..one(1) };
        for table in [table(&[fresh.clone(), aged.clone()]), summary(&[fresh.clone(), aged])] {
            let column = |head: &str| table.heads.iter().position(|name| name == head).unwrap();
            assert_eq!(table.rows[0][column("requests")], "1000");
            assert_eq!(table.rows[0][column("requests; mail:9")], "2000");
            assert_eq!(table.rows[0][column("summary; mail:9")], "equal");
            // This column is equal in both states, so it is not repeated.
            assert!(!table.heads.contains(&"criteria %; mail:9".to_owned()), "{:?}", table.heads);
            assert!(table.notes.iter().any(|note| note.contains("is left out")), "{:?}", table.notes);
        }
        assert!(table(&[fresh]).notes.is_empty());
    }

    #[test]
    fn each_pair_is_recorded_on_a_fresh_image_and_on_an_aged_one() {
        let told = |images: &[&str], life: Option<&str>| {
            let plan = Plan {
                loads: vec!["untar".to_owned()],
                images: images.iter().map(|&name| name.to_owned()).collect(),
                aged: life.map(|life| life.parse().unwrap()),
                seed: 1,
                operations: 1,
                scratch: PathBuf::new(),
                keep: None,
                every: 1,
            };
            let name = |(start, load): (Start<'_>, Load)| {
                let path = recording_path(Path::new(""), start, load);
                format!("{} {}", path.display(), start.state())
            };
            let recordings = plan.recordings().map_err(|error| error.to_string());
            recordings.map(|all| all.into_iter().map(name).collect::<Vec<_>>())
        };
        let (one, aged) = ("1k.untar.jsonl fresh", "1k.untar.aged.jsonl mail:9");
        assert_eq!(told(&["1k"], None).unwrap(), [one]);
        assert_eq!(told(&["1k"], Some("mail:9")).unwrap(), [one, aged]);
        // Files mapped by indirect blocks cannot be preallocated.
        let old = "indirect.untar.jsonl fresh";
        let both = told(&["indirect", "1k"], Some("database:9")).unwrap();
        assert_eq!(both, [old, one, "1k.untar.aged.jsonl database:9"]);
        let refused = told(&["indirect"], Some("database:9")).unwrap_err();
        assert!(refused.contains("database:9 preallocates files"), "{refused}");
    }

    #[test]
    fn one_difference_in_a_million_is_not_a_hundred_per_cent() {
        let nearly = Agreement { requests: 1_000_000, placements: 999_999, ..Agreement::default() };
        let sum = total(&[nearly.clone(), nearly]);
        assert!(sum.percent() < 100.0);
        assert_eq!(table(&[sum]).rows[0][5], "99.999");
        assert!((share(0, 0) - 100.0).abs() < f64::EPSILON);
        let nothing = table(&[Agreement { requests: 0, ..Agreement::default() }]);
        assert_eq!(nothing.rows[0][3..10], ["0", "0", "-", "-", "-", "-", "-"]);
    }

    /// A result in which no two counts are equal, so that exchanged columns are noticed. The share
    /// of placements is of the requests, the other shares are of the searches.
    fn one(by: u64) -> Agreement {
        Agreement {
            image: "1k".to_owned(),
            load: "fill".to_owned(),
            optimize_scan: true,
            requests: by * 1000,
            searches: by * 400,
            placements: by * 999,
            criteria: by * 390,
            candidates: by * 380,
            groups: by * 370,
            decisions: by * 360,
            mb_groups: true,
            summary: by > 1,
            stats: true,
            overlaps: 3,
            ..Agreement::default()
        }
    }

    #[test]
    fn each_share_stands_under_its_head() {
        let table = table(&[one(1)]);
        let shares = ["placements %", "criteria %", "candidates %", "groups %", "decisions %"];
        assert_eq!(table.heads[5..10], shares);
        assert_eq!(table.heads[10..], ["mb_groups", "summary", "mb_stats"]);
        let figures =
            ["1000", "400", "99.900", "97.500", "95.000", "92.500", "90.000", "equal", "differs", "equal"];
        assert_eq!(table.rows[0], [&["1k", "fill", "optimized"][..], &figures].concat());
        assert_eq!(table.rows[1], [&["all", "all", "both"][..], &figures].concat());
    }

    #[test]
    fn totals_add_up_each_to_its_own() {
        let sum = total(&[one(1), one(2)]);
        let counts = [
            sum.requests,
            sum.searches,
            sum.placements,
            sum.criteria,
            sum.candidates,
            sum.groups,
            sum.decisions,
        ];
        assert_eq!(counts, [3000, 1200, 2997, 1170, 1140, 1110, 1080]);
        assert_eq!((sum.mb_groups, sum.summary, sum.stats, sum.overlaps), (true, false, true, 6));
        assert_eq!((share(1, 3), share(2, 2), share(999, 1000)), (33.333, 100.0, 99.9));
    }
}
