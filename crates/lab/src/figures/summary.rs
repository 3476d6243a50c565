//! Makes the tables that a run prints from its rows: medians over repetitions, with a row for each
//! policy or for each policy and number of workers.

use std::collections::BTreeSet;

use blockyard_disk::num::count_as_f64;
use blockyard_inspect::units;

use super::table::{Table, figure};
use super::waits;
use crate::figures::row::{Interleave, Row};
use crate::figures::spread::Spread;
use crate::figures::states;

/// A column: its head, the figure that it shows of a row, and how that figure is printed.
pub type Column = (&'static str, fn(&Row) -> f64, fn(f64) -> String);

/// Every table of a run: first those of modelled devices, then the others workload by workload.
#[must_use]
pub fn tables(rows: &[Row]) -> Vec<Table> {
    let mut tables = super::modelled::tables(rows);
    for (name, part) in by_workload(rows) {
        let Some(first) = part.first() else { continue };
        if first.modelled.is_some() {
            tables.push(placement(&name, &part));
            continue;
        }
        let runs_as = |way| rows.iter().any(|row| row.workload == first.workload && row.interleave == way);
        // If the workload also ran in free threads, tables of rates and latencies are made from the
        // rows of the threads only.
        let is_beside = first.interleave == Interleave::Overlap && runs_as(Interleave::Threads);
        if !is_beside {
            tables.push(throughput(&name, &part));
            tables.push(latency(&name, &part));
        }
        let mut placed = placement(&name, &part);
        if first.interleave == Interleave::Threads && part.iter().any(|row| row.workers > 1) {
            placed.note(if runs_as(Interleave::Overlap) { CHANCE_BESIDE } else { CHANCE });
        }
        tables.push(placed);
        tables.extend(reading(&name, &part));
        tables.extend(waits::table(&name, &part));
    }
    tables
}

/// Printed below the placement of free-running threads.
const CHANCE: &str = "What free-running threads leave is chance and differs from run to run; --interleave overlap gives figures that \
     repeat.";
const CHANCE_BESIDE: &str = "What free-running threads leave is chance and differs from run to run; the figures that repeat are those \
     of the next table of placement, where all operations of a round overlap.";

/// Groups of comparable rows, each with a name. Rows are comparable if workload, interleaving and
/// state of the image are the same, and the modelled machine or device, if there is one.
#[must_use]
pub fn by_workload(rows: &[Row]) -> Vec<(String, Vec<&Row>)> {
    let mut parts: Vec<(String, Vec<&Row>)> = Vec::new();
    for row in rows {
        let name = workload_name(row);
        match parts.iter_mut().find(|(known, _)| *known == name) {
            Some((_, rows)) => rows.push(row),
            None => parts.push((name, vec![row])),
        }
    }
    parts
}

/// The name of the group of comparable rows ([`by_workload`]) to which a row belongs.
pub(crate) fn workload_name(row: &Row) -> String {
    let name = match row.interleave {
        Interleave::Threads => row.workload.clone(),
        Interleave::Virtual => {
            format!("{}, virtual, {}", row.workload, row.machine.as_deref().unwrap_or("-"))
        }
        other => format!("{}, {}", row.workload, other.name()),
    };
    let name = row.modelled.iter().fold(name, |name, on| format!("{name}, on {}", on.device));
    if states::is_fresh(&row.state) { name } else { format!("{name}; {}", row.state) }
}

/// Operations a second, a row for each policy and a column for each number of workers: in total
/// and, in brackets, for each worker.
#[must_use]
pub fn throughput(workload: &str, rows: &[&Row]) -> Table {
    let workers: BTreeSet<u32> = rows.iter().map(|row| row.workers).collect();
    let heads = std::iter::once("policy".to_owned())
        .chain(workers.iter().map(|&count| units::counted(count.into(), "worker")));
    let mut table = Table::new(format!("{workload}: operations a second in all (a worker)"), heads);
    for policy in policies(rows) {
        let mut cells = vec![policy.to_owned()];
        cells.extend(workers.iter().map(|&count| {
            let cell = |value: fn(&Row) -> f64| median(rows, policy, Some(count), value);
            match (cell(|row| row.ops_per_s), cell(|row| row.ops_per_s_per_worker)) {
                (Some(all), Some(each)) => format!("{} ({})", with_spread(&all, figure), figure(each.median)),
                _ => "-".to_owned(),
            }
        }));
        table.push(cells);
    }
    note_spread(&mut table, rows);
    table
}

/// Explains ±, if there is any.
fn note_spread(table: &mut Table, rows: &[&Row]) {
    if median_count(rows) > 1 {
        table.note(
            "medians; ± is half the interval that holds the true median with 95 % confidence (by order statistics); with fewer \
             than six repetitions, half their range.",
        );
    }
}

/// Largest number of repetitions of a cell.
fn median_count(rows: &[&Row]) -> usize {
    let repetitions = |row: &&Row| {
        rows.iter().filter(|other| other.policy == row.policy && other.workers == row.workers).count()
    };
    rows.iter().map(repetitions).max().unwrap_or(0)
}

/// Bandwidth, and the latency of one operation.
#[must_use]
pub fn latency(workload: &str, rows: &[&Row]) -> Table {
    let columns: [Column; 6] = [
        ("bandwidth", |row| row.bw_mib_s, units::mib_per_second),
        ("mean", |row| row.lat_us_mean, units::micros),
        ("p50", |row| row.lat_us_p50, units::micros),
        ("p99", |row| row.lat_us_p99, units::micros),
        ("p99.99", |row| row.lat_us_p9999, units::micros),
        ("max", |row| row.lat_us_max, units::micros),
    ];
    by_policy_and_workers(&format!("{workload}: bandwidth and latency of an operation"), rows, &columns)
}

/// Where the blocks are, and what that cost in shared locks.
#[must_use]
pub fn placement(workload: &str, rows: &[&Row]) -> Table {
    let columns: [Column; 9] = [
        ("extents/file", |row| row.extents_per_file, figure),
        ("mean extent", |row| row.mean_extent_kb, units::kib),
        ("free extents", |row| count_as_f64(row.free_extents), figure),
        ("mean free extent", |row| count_as_f64(row.avg_free_extent_kb), units::kib),
        ("groups", |row| count_as_f64(row.groups_touched), figure),
        ("locks/op", |row| row.lock_acquisitions.unwrap_or(f64::NAN), figure),
        ("waits/op", |row| row.lock_waits.unwrap_or(f64::NAN), figure),
        ("busy skips", |row| row.groups_skipped_busy.map_or(f64::NAN, count_as_f64), figure),
        ("score", |row| row.score.unwrap_or(f64::NAN), figure),
    ];
    let of = match rows.first().map(|row| row.interleave) {
        Some(Interleave::Virtual) => "placement of the workers' files, free extents of all groups",
        _ => "placement in the whole image with files at full size",
    };
    by_policy_and_workers(&format!("{workload}: {of}, shared locks"), rows, &columns)
}

/// How long it takes to read the image afterwards; `None` if there was no image.
fn reading(workload: &str, rows: &[&Row]) -> Option<Table> {
    if rows.iter().all(|row| row.reading.directory_runs.is_none()) {
        return None;
    }
    let columns: [Column; 7] = [
        ("file, hdd", |row| micros(row.reading.read_file_hdd_ms), units::micros),
        ("directory, hdd", |row| micros(row.reading.read_directory_hdd_ms), units::micros),
        ("tree, hdd", |row| micros(row.reading.read_tree_hdd_ms), units::micros),
        ("file, ssd", |row| micros(row.reading.read_file_ssd_ms), units::micros),
        ("directory, ssd", |row| micros(row.reading.read_directory_ssd_ms), units::micros),
        ("tree, ssd", |row| micros(row.reading.read_tree_ssd_ms), units::micros),
        ("directory runs", |row| row.reading.directory_runs.map_or(f64::NAN, count_as_f64), figure),
    ];
    Some(by_policy_and_workers(
        &format!(
            "{workload}: reading the whole image afterwards, on modelled disks: one file, the fullest directory, all"
        ),
        rows,
        &columns,
    ))
}

fn micros(ms: Option<f64>) -> f64 {
    ms.map_or(f64::NAN, |ms| ms * 1e3)
}

fn by_policy_and_workers(title: &str, rows: &[&Row], columns: &[Column]) -> Table {
    let heads = ["policy", "workers"].into_iter().chain(columns.iter().map(|column| column.0));
    let mut table = Table::new(title, heads).with_keys(2);
    let workers: BTreeSet<u32> = rows.iter().map(|row| row.workers).collect();
    for policy in policies(rows) {
        for &count in &workers {
            if !rows.iter().any(|row| row.policy == policy && row.workers == count) {
                continue;
            }
            let mut cells = vec![policy.to_owned(), count.to_string()];
            cells.extend(columns.iter().map(|(_, value, written)| {
                median(rows, policy, Some(count), *value)
                    .map_or("-".to_owned(), |spread| with_spread(&spread, *written))
            }));
            table.push(cells);
        }
    }
    note_spread(&mut table, rows);
    table
}

/// A row for each figure and number of workers, a column for each policy. The first policy is the
/// baseline, the others show their difference from it. `None` without a second policy.
#[must_use]
pub fn compared(workload: &str, rows: &[&Row]) -> Option<Table> {
    let columns: [Column; 6] = [
        ("operations/s", |row| row.ops_per_s, figure),
        ("p99", |row| row.lat_us_p99, units::micros),
        ("extents/file", |row| row.extents_per_file, figure),
        ("mean extent", |row| row.mean_extent_kb, units::kib),
        ("free extents", |row| count_as_f64(row.free_extents), figure),
        ("locks/op", |row| row.lock_acquisitions.unwrap_or(f64::NAN), figure),
    ];
    let policies = policies(rows);
    let (baseline, others) = policies.split_first().filter(|(_, others)| !others.is_empty())?;
    let heads = ["figure".to_owned(), "workers".to_owned(), format!("baseline: {baseline}")];
    let heads = heads.into_iter().chain(others.iter().map(|&policy| policy.to_owned()));
    let mut table = Table::new(format!("{workload}: differences from {baseline}"), heads).with_keys(2);
    let workers: BTreeSet<u32> = rows.iter().map(|row| row.workers).collect();
    for (name, value, written) in columns {
        for &count in &workers {
            let of = |policy: &str| median(rows, policy, Some(count), value);
            let base = of(baseline);
            let shown =
                |spread: Option<Spread>| spread.map_or("-".to_owned(), |spread| written(spread.median));
            let cells = others.iter().map(|policy| match (of(policy), base) {
                (Some(spread), Some(base)) => {
                    format!("{} {}", written(spread.median), difference(&base, &spread))
                }
                (spread, _) => shown(spread),
            });
            table.push([name.to_owned(), count.to_string(), shown(base)].into_iter().chain(cells));
        }
    }
    table.note("in brackets the difference of medians; ~ where the spreads of repetitions overlap.");
    Some(table)
}

/// `(+31%)`; `(~+3%)` if both have repetitions and their spreads overlap, so that it may be chance.
/// Empty if the median of `base` is 0.
fn difference(base: &Spread, spread: &Spread) -> String {
    let percent = 100.0 * (spread.median / base.median - 1.0);
    if !percent.is_finite() {
        return String::new();
    }
    let overlaps = base.count > 1 && spread.count > 1 && base.low <= spread.high && spread.low <= base.high;
    format!("({}{percent:+.0}%)", if overlaps { "~" } else { "" })
}

/// Every row as comma-separated values; empty without rows.
#[must_use]
pub fn csv(rows: &[Row]) -> String {
    let names = ["workload", "policy", "state", "workers", "cpus", "interleave", "machine", "device", "seed"];
    let Some(first) = rows.first() else { return String::new() };
    let figures = first.figures();
    let criteria: BTreeSet<&str> = rows.iter().flat_map(|row| row.hits.keys().map(String::as_str)).collect();
    let heads = names.into_iter().chain(figures.iter().map(|(name, _)| *name)).map(str::to_owned);
    let mut table = Table::new("rows", heads.chain(criteria.iter().map(|name| format!("hits_{name}"))));
    for row in rows {
        let mut cells = vec![
            row.workload.clone(),
            row.policy.clone(),
            row.state.clone(),
            row.workers.to_string(),
            row.cpus.to_string(),
            row.interleave.name().to_owned(),
            row.machine.clone().unwrap_or_default(),
            row.modelled.as_ref().map_or_else(String::new, |on| on.device.clone()),
            row.seed.to_string(),
        ];
        let known = |value: f64| if value.is_nan() { String::new() } else { value.to_string() };
        cells.extend(row.figures().iter().map(|(_, value)| known(*value)));
        let hits = |name: &&str| row.hits.get(*name).map_or(String::new(), u64::to_string);
        cells.extend(criteria.iter().map(hits));
        table.push(cells);
    }
    table.csv()
}

/// Median over the repetitions of a cell. If `workers` is `None`, rows with any number of workers
/// count. Returns `None` if there is no such row, or if the figure is missing in one.
#[must_use]
pub fn median(rows: &[&Row], policy: &str, workers: Option<u32>, value: fn(&Row) -> f64) -> Option<Spread> {
    let values: Vec<f64> = rows
        .iter()
        .filter(|row| row.policy == policy && workers.is_none_or(|count| row.workers == count))
        .map(|row| value(row))
        .collect();
    Spread::of(&values)
}

/// Policies in order of first appearance.
#[must_use]
pub fn policies<'a>(rows: &[&'a Row]) -> Vec<&'a str> {
    in_order(rows.iter().map(|row| row.policy.as_str()))
}

fn in_order<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

/// The median, and the spread of the repetitions if there are several.
fn with_spread(spread: &Spread, written: fn(f64) -> String) -> String {
    let median = written(spread.median);
    if spread.count < 2 { median } else { format!("{median} ±{:.0}%", 100.0 * spread.relative()) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::reading::Reading;

    pub(crate) fn row(policy: &str, workers: u32, ops_per_s: f64) -> Row {
        Row {
            workload: "fallocate2".to_owned(),
            policy: policy.to_owned(),
            state: crate::figures::states::FRESH.to_owned(),
            workers,
            cpus: workers,
            interleave: Interleave::Threads,
            seed: 1,
            ops: 1000,
            seconds: 1.0,
            ops_per_s,
            ops_per_s_per_worker: ops_per_s / f64::from(workers),
            bw_mib_s: 1.25,
            lat_us_mean: 0.5,
            lat_us_p50: 0.4,
            lat_us_p99: 2.0,
            lat_us_p9999: 9.0,
            lat_us_max: 50.0,
            extents_per_file: 1.5,
            mean_extent_kb: 700.0,
            free_extents: 70,
            free_by_length: Vec::new(),
            avg_free_extent_kb: 12_000,
            groups_touched: 3,
            lock_acquisitions: Some(2.0),
            lock_waits: Some(0.1),
            groups_skipped_busy: Some(7),
            goal_hits: Some(80),
            stream_goal_hits: Some(30),
            index_entries: Some(900),
            hits: [("p2_aligned".to_owned(), 10)].into_iter().collect(),
            score: None,
            reading: Reading::default(),
            machine: None,
            waits: Vec::new(),
            modelled: None,
        }
    }

    #[test]
    fn policies_go_down_and_workers_across() {
        let rows = [row("yard", 2, 2e6), row("yard", 1, 1e6), row("linux-6.16", 1, 5e5), row("yard", 1, 3e6)];
        let table = throughput("fallocate2", &rows.iter().collect::<Vec<_>>());
        assert_eq!(table.heads, ["policy", "1 worker", "2 workers"]);
        assert_eq!(table.rows[0], ["yard", "2.000 M ±50% (2.000 M)", "2.000 M (1.000 M)"]);
        assert_eq!(table.rows[1], ["linux-6.16", "500.0 k (500.0 k)", "-"]);
    }

    /// A regression: the report had no differences between policies.
    #[test]
    fn policies_are_compared_with_the_first() {
        let rows = [
            row("linux-6.16", 1, 1e6),
            row("linux-6.16", 1, 1.2e6),
            row("yard", 1, 2e6),
            row("yard", 1, 2.4e6),
            row("linux-6.18", 1, 1.1e6),
            row("linux-6.18", 1, 1.3e6),
        ];
        let table = compared("fallocate2", &rows.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(table.heads, ["figure", "workers", "baseline: linux-6.16", "yard", "linux-6.18"]);
        assert_eq!(table.rows[0], ["operations/s", "1", "1.100 M", "2.200 M (+100%)", "1.200 M (~+9%)"]);
        assert!(compared("fallocate2", &[&rows[0]]).is_none());
    }

    /// A regression: `mean extent KB` had `1.792 M` below it, and a run without scores had a column
    /// of `-`.
    #[test]
    fn sizes_and_times_have_their_unit_beside_them() {
        let mut row = row("yard", 1, 1e6);
        (row.mean_extent_kb, row.lat_us_max, row.bw_mib_s) = (1_877_000.0, 12_300.0, 2500.0);
        let text = placement("append64", &[&row]).terminal(120) + &latency("append64", &[&row]).terminal(120);
        for part in ["1.79 GiB", "12.3 ms", "2.44 GiB/s", "500 ns"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("score") && !text.contains("KB"), "{text}");
    }

    /// A regression: medians of the placement by threads had no spread, as if they did not vary.
    #[test]
    fn placement_has_its_spread_and_says_what_is_chance() {
        let placed =
            |extents_per_file, interleave| Row { extents_per_file, interleave, ..row("yard", 2, 1.0) };
        let mut rows = vec![placed(1.0, Interleave::Threads), placed(3.0, Interleave::Threads)];
        let alone = tables(&rows);
        assert_eq!(alone.len(), 3);
        assert_eq!(alone[2].rows[0][2], "2 ±50%");
        assert!(
            alone[2].notes.iter().any(|note| note.contains("--interleave overlap")),
            "{:?}",
            alone[2].notes
        );
        rows.push(placed(1.0, Interleave::Overlap));
        let beside = tables(&rows);
        assert_eq!(beside.len(), 4, "beside threads, only the placement of overlap is shown");
        assert!(beside[2].notes.iter().any(|note| note.contains("next table")), "{:?}", beside[2].notes);
        assert!(beside[3].title.contains("fallocate2, overlap: placement"), "{}", beside[3].title);
    }

    #[test]
    fn csv_has_a_line_a_row() {
        let text = csv(&[row("yard", 2, 2e6), row("a,b", 1, 1.0)]);
        assert_eq!(text.lines().count(), 3);
        assert!(
            text.lines().next().unwrap().ends_with(",read_tree_ssd_ms,directory_runs,hits_p2_aligned"),
            "{text}"
        );
        assert!(
            text.lines().nth(1).unwrap().ends_with(",7,80,30,900,,,,,,,,,10"),
            "what cannot be known is empty: {text}"
        );
        assert!(text.lines().nth(2).unwrap().starts_with("fallocate2,\"a,b\",fresh,1,1,threads,,,1,1000,1,"));
    }

    /// A regression: rows of several machines could not be told apart.
    #[test]
    fn csv_names_the_machine() {
        let machine = Some("kunpeng-920, hit_ps half".to_owned());
        let text = csv(&[Row { interleave: Interleave::Virtual, machine, ..row("yard", 2, 2e6) }]);
        let (heads, line) = text.split_once('\n').unwrap();
        assert!(heads.starts_with("workload,policy,state,workers,cpus,interleave,machine,device,seed,"));
        let names = "fallocate2,yard,fresh,2,2,virtual,\"kunpeng-920, hit_ps half\",,1,";
        assert!(line.starts_with(names), "{line}");
    }

    #[test]
    fn latencies_and_places_stand_under_their_heads() {
        let row = Row { score: Some(40.0), ..row("yard", 2, 1e6) };
        let table = latency("fallocate2", &[&row]);
        assert_eq!(table.heads[2..], ["bandwidth", "mean", "p50", "p99", "p99.99", "max"]);
        let cells = ["yard", "2", "1.25 MiB/s", "500 ns", "400 ns", "2.00 µs", "9.00 µs", "50.0 µs"];
        assert_eq!(table.rows, [cells]);
        let table = placement("fallocate2", &[&row]);
        let heads = ["extents/file", "mean extent", "free extents", "mean free extent", "groups"];
        assert_eq!(table.heads[2..7], heads);
        assert_eq!(table.heads[7..], ["locks/op", "waits/op", "busy skips", "score"]);
        // 12,000 KiB are 11.72 MiB.
        let cells = ["yard", "2", "1.50", "700 KiB", "70", "11.7 MiB", "3", "2", "0.1000", "7", "40"];
        assert_eq!(table.rows, [cells]);
    }

    #[test]
    fn each_figure_is_compared_with_its_own() {
        let base = row("linux-6.16", 1, 1e6);
        let other = Row {
            lat_us_p99: 3.0,
            extents_per_file: 3.0,
            mean_extent_kb: 350.0,
            free_extents: 77,
            lock_acquisitions: Some(0.5),
            ..row("yard", 1, 2e6)
        };
        let table = compared("fallocate2", &[&base, &other]).unwrap();
        let cells = |name, base, other| [name, "1", base, other].map(str::to_owned);
        assert_eq!(
            table.rows,
            [
                cells("operations/s", "1.000 M", "2.000 M (+100%)"),
                cells("p99", "2.00 µs", "3.00 µs (+50%)"),
                cells("extents/file", "1.50", "3 (+100%)"),
                cells("mean extent", "700 KiB", "350 KiB (-50%)"),
                cells("free extents", "70", "77 (+10%)"),
                cells("locks/op", "2", "0.5000 (-75%)"),
            ]
        );
    }

    /// A difference is marked with `~` if the ranges of repetitions touch, whichever of the two is
    /// higher.
    #[test]
    fn only_spreads_that_touch_may_be_chance() {
        let spread = |values: &[f64]| Spread::of(values).unwrap();
        for (base, other, text) in [
            (&[1.0, 3.0][..], &[3.0, 5.0][..], "(~+100%)"),
            (&[1.0, 3.0], &[3.5, 4.5], "(+100%)"),
            (&[3.0, 5.0], &[1.0, 3.0], "(~-50%)"),
            (&[4.0, 6.0], &[1.0, 3.0], "(-60%)"),
            (&[2.0], &[2.0, 2.0], "(+0%)"),
        ] {
            assert_eq!(difference(&spread(base), &spread(other)), text, "{base:?} {other:?}");
        }
    }

    #[test]
    fn single_runs_have_no_spread_to_tell_of() {
        let single = [row("yard", 1, 1e6), row("yard", 2, 2e6)];
        assert!(throughput("fallocate2", &single.iter().collect::<Vec<_>>()).notes.is_empty());
        let repeated = [row("yard", 2, 1e6), row("yard", 2, 2e6)];
        assert_eq!(throughput("fallocate2", &repeated.iter().collect::<Vec<_>>()).notes.len(), 1);
    }
}
