//! E1: the workload `fallocate2` with different numbers of workers, and `append64`. Both run on the
//! allocator before and after the scalability series of Linux 6.17, with both scan modes.

mod further;
pub(crate) mod patches;
mod predicted;
mod published;
mod sensitivity;
mod steps;

use std::collections::BTreeSet;

use blockyard_disk::num::count_as_f64;

use crate::figures::plot::{Chart, Series};
use crate::figures::row::{Interleave, Row};
use crate::figures::{Table, summary};
use crate::run::Plan;
use crate::run::Setup;
use published::{APPEND64, Append64, FALLOCATE2, FALLOCATE2_BASE};

/// Before the series (base) and after it (patched), each with linear and optimised scan, in the
/// order of the published columns.
const ARMS: [&str; 4] = [
    "linux-6.16:scan=linear",
    "linux-6.16:scan=optimized",
    "linux-6.18:scan=linear",
    "linux-6.18:scan=optimized",
];
const APPENDERS: u32 = 64;

pub(crate) fn plans(setup: &Setup) -> Vec<Plan> {
    if setup.sensitivity {
        return sensitivity::plans(setup);
    }
    let published: Vec<u32> = FALLOCATE2_BASE.iter().map(|(workers, _)| *workers).collect();
    let workers = setup.workers.clone().unwrap_or(published);
    let arms = arms(setup, &ARMS);
    let mut plans = vec![
        setup.plan("fallocate2", &arms, &workers, Interleave::Threads),
        setup.plan("append64", &arms, &[APPENDERS], Interleave::Threads),
        setup.plan("append64", &arms, &[APPENDERS], Interleave::Overlap),
    ];
    plans.extend(predicted::plans(setup));
    plans
}

/// Arms of the experiment, and those requested in addition.
fn arms(setup: &Setup, own: &[&str]) -> Vec<String> {
    let further = setup.policies.iter().flatten().filter(|arm| !own.contains(&arm.as_str()));
    own.iter().map(|&arm| arm.to_owned()).chain(further.cloned()).collect()
}

pub(crate) fn tables(rows: &[Row]) -> Vec<Table> {
    if is_sensitivity(rows) {
        return sensitivity::tables(rows);
    }
    let of = |workload: &str, interleave| -> Vec<&Row> {
        rows.iter().filter(|row| row.workload == workload && row.interleave == interleave).collect()
    };
    let fallocate2 = of("fallocate2", Interleave::Threads);
    let running = of("append64", Interleave::Threads);
    let overlapping = of("append64", Interleave::Overlap);
    let mut tables = vec![contention(&fallocate2), series(&fallocate2), append64(&running, &overlapping)];
    tables.extend(predicted::tables(rows));
    tables.extend(further::table(rows, &ARMS));
    tables
}

/// Whether the rows are those of a sensitivity analysis, in which constants of the machines were
/// changed.
pub(crate) fn is_sensitivity(rows: &[Row]) -> bool {
    sensitivity::has_changed_machines(rows)
}

/// The rate of each worker by number of workers, also as a share of the rate of one worker alone.
fn contention(rows: &[&Row]) -> Table {
    let counts = worker_counts(rows);
    let heads = std::iter::once("workers".to_owned()).chain(counts.iter().map(u32::to_string));
    let mut table = Table::new(
        "E1, fallocate2: contention, average operations per second per worker (share of one worker's)",
        heads,
    );
    let mut push = |name: String, rates: Vec<Option<f64>>| {
        let one = counts.iter().position(|&workers| workers == 1).and_then(|at| rates[at]);
        let cells = rates.iter().map(|rate| match (rate, one) {
            (Some(rate), Some(one)) => format!("{rate:.0} ({:.0}%)", 100.0 * rate / one),
            (Some(rate), None) => format!("{rate:.0}"),
            (None, _) => "-".to_owned(),
        });
        table.push(std::iter::once(name).chain(cells));
    };
    push(
        "published: before the series".to_owned(),
        counts.iter().map(|&workers| published_rate(workers)).collect(),
    );
    for arm in ARMS {
        let rates = counts.iter().map(|&workers| rate(rows, arm, workers)).collect();
        push(format!("this machine: {arm}"), rates);
    }
    table.note(machine_note());
    table
}

/// The contention table as a chart, published and ours. It shows the rate of each worker as a share
/// of the rate of one worker alone.
pub(crate) fn chart(rows: &[Row]) -> Chart {
    let rows: Vec<&Row> = rows
        .iter()
        .filter(|row| row.workload == "fallocate2" && row.interleave == Interleave::Threads)
        .collect();
    let shares = |points: Vec<(u32, f64)>| {
        let Some(one) = points.iter().find(|(workers, _)| *workers == 1).map(|(_, rate)| *rate) else {
            return Vec::new();
        };
        points.into_iter().map(|(workers, rate)| (f64::from(workers), 100.0 * rate / one)).collect()
    };
    let mut series =
        vec![Series { name: "published: before".to_owned(), points: shares(FALLOCATE2_BASE.to_vec()) }];
    for arm in ARMS {
        let counts = worker_counts(&rows);
        let rates = counts.into_iter().filter_map(|workers| Some((workers, rate(&rows, arm, workers)?)));
        series.push(Series { name: format!("ours: {arm}"), points: shares(rates.collect()) });
    }
    Chart {
        title: "E1, fallocate2: rate of a worker as a share of one worker alone".to_owned(),
        x_label: "workers",
        y_label: "rate of a worker, % of one worker alone",
        series,
    }
}

/// The published numbers of workers and the measured ones.
fn worker_counts(rows: &[&Row]) -> BTreeSet<u32> {
    let published = FALLOCATE2_BASE.iter().map(|(workers, _)| *workers);
    published.chain(rows.iter().map(|row| row.workers)).collect()
}

fn published_rate(workers: u32) -> Option<f64> {
    FALLOCATE2_BASE.iter().find(|(count, _)| *count == workers).map(|(_, rate)| *rate)
}

fn rate(rows: &[&Row], arm: &str, workers: u32) -> Option<f64> {
    summary::median(rows, arm, Some(workers), |row| row.ops_per_s_per_worker).map(|spread| spread.median)
}

/// Rates before and after the series, with the largest number of workers and with one.
fn series(rows: &[&Row]) -> Table {
    let heads = [
        "machine",
        "workers",
        "mb_optimize_scan",
        "all-CPU base",
        "all-CPU patched",
        "P1 base",
        "P1 patched",
    ];
    let mut table =
        Table::new("E1, fallocate2: before and after, average operations per second per worker", heads);
    let after = |base: Option<f64>, patched: Option<f64>| match (base, patched) {
        (Some(base), Some(patched)) => format!("{patched:.0} ({})", gain(base, patched)),
        (None, Some(patched)) => format!("{patched:.0}"),
        _ => "-".to_owned(),
    };
    let plain = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.0}"));
    for published in FALLOCATE2 {
        table.push([
            format!("published: {}", published.machine),
            published.workers.to_string(),
            u32::from(published.optimize_scan).to_string(),
            plain(Some(published.all_base)),
            after(Some(published.all_base), Some(published.all_patched)),
            plain(Some(published.one_base)),
            after(Some(published.one_base), Some(published.one_patched)),
        ]);
    }
    let all = rows.iter().map(|row| row.workers).max().unwrap_or(1);
    for (scan, base, patched) in [("0", ARMS[0], ARMS[2]), ("1", ARMS[1], ARMS[3])] {
        table.push([
            "this machine".to_owned(),
            all.to_string(),
            scan.to_owned(),
            plain(rate(rows, base, all)),
            after(rate(rows, base, all), rate(rows, patched, all)),
            plain(rate(rows, base, 1)),
            after(rate(rows, base, 1), rate(rows, patched, 1)),
        ]);
    }
    table.note(machine_note());
    table
}

/// The change in per cent. As in the published table, it is truncated, not rounded: to one decimal
/// if it is below 10 %, otherwise to whole per cents.
fn gain(base: f64, patched: f64) -> String {
    let percent = 100.0 * (patched / base - 1.0);
    if percent.abs() < 10.0 {
        format!("{:+.1}%", (percent * 10.0).trunc() / 10.0)
    } else {
        format!("{:+.0}%", percent.trunc())
    }
}

/// One row for each metric; columns for the published arms, then ours.
fn append64(running: &[&Row], overlapping: &[&Row]) -> Table {
    let heads = std::iter::once("metric".to_owned())
        .chain(APPEND64.iter().map(|column| format!("published: {}", column.arm)))
        .chain(APPEND64.iter().map(|column| format!("ours: {}", column.arm)));
    let mut table =
        Table::new("E1, append64: 64 writers, before and after the series, published and ours", heads);
    type Metric = (&'static str, fn(&Append64) -> f64, bool, fn(&Row) -> f64);
    let metrics: [Metric; 6] = [
        ("bandwidth (MiB/s)", |column| column.bandwidth_mib_s, true, |row| row.bw_mib_s),
        (
            "average free extent (KB)",
            |column| count_as_f64(column.average_free_extent_kb),
            false,
            |row| count_as_f64(row.avg_free_extent_kb),
        ),
        (
            "free extents",
            |column| count_as_f64(column.free_extents),
            false,
            |row| count_as_f64(row.free_extents),
        ),
        (
            "average extents per file",
            |column| count_as_f64(column.extents_per_file),
            false,
            |row| row.extents_per_file,
        ),
        (
            "average size per extent (KB)",
            |column| count_as_f64(column.kb_per_extent),
            false,
            |row| row.mean_extent_kb,
        ),
        (
            "fragmentation score (e4defrag -c)",
            |column| f64::from(column.score),
            false,
            |row| row.score.unwrap_or(f64::NAN),
        ),
    ];
    for (name, published, is_rate, ours) in metrics {
        let rows = if is_rate { running } else { overlapping };
        let ours = ARMS.iter().map(|arm| summary::median(rows, arm, None, ours));
        let cells = APPEND64.iter().map(|column| format!("{:.0}", published(column))).chain(
            ours.map(|spread| spread.map_or("-".to_owned(), |spread| format!("{:.0}", spread.median))),
        );
        table.push(std::iter::once(name.to_owned()).chain(cells));
    }
    table.note(
        "ours: bandwidth from free-running threads on this machine; the rest from --interleave overlap, in which all \
         writers are always in flight, as on a machine with a CPU for each.",
    );
    table.note(machine_note());
    table
}

fn machine_note() -> &'static str {
    "base is Linux 6.16 and before (linux-6.16), patched 6.17 and after (linux-6.18). Published in July 2025, on a \
     Kunpeng 920 (80 workers) and on 2 x AMD 9654 (96 workers), with one CPU for each worker; workers beyond the CPUs of \
     this machine take turns and wait less for each other. Compare ratios and shapes, not rates."
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::summary::tests::row;

    /// The four arms with one worker and with two, and `append64` in both interleavings. Each
    /// figure of `append64` grows by its own step from arm to arm.
    fn rows() -> Vec<Row> {
        let mut rows = Vec::new();
        for (number, arm) in (1..).zip(ARMS) {
            // Before the series, each of two workers has a quarter of the rate of one worker alone;
            // after it, half.
            let share = if number <= 2 { 0.25 } else { 0.5 };
            let alone = 1000.0 * f64::from(number);
            rows.push(row(arm, 1, alone));
            rows.push(row(arm, 2, 2.0 * share * alone));
            let append = |interleave, more: u32| Row {
                workload: "append64".to_owned(),
                interleave,
                bw_mib_s: f64::from(10 * number + more),
                avg_free_extent_kb: u64::from(100 * number + more),
                free_extents: u64::from(200 * number + more),
                extents_per_file: f64::from(300 * number + more),
                mean_extent_kb: f64::from(400 * number + more),
                score: Some(f64::from(20 * number + more)),
                ..row(arm, 64, 1.0)
            };
            rows.push(append(Interleave::Threads, 0));
            rows.push(append(Interleave::Overlap, 7));
        }
        rows
    }

    #[test]
    fn rates_are_a_share_of_one_workers() {
        let table = &tables(&rows())[0];
        assert_eq!(
            table.rows[1][..4],
            ["this machine: linux-6.16:scan=linear", "1000 (100%)", "250 (25%)", "-"]
        );
        assert_eq!(table.rows[4][1..4], ["4000 (100%)", "2000 (50%)", "-"]);
        let without_one: Vec<Row> = rows().into_iter().filter(|row| row.workers != 1).collect();
        assert_eq!(tables(&without_one)[0].rows[1][1..4], ["-", "250", "-"]);
        // Numbers of workers that nobody published have columns, too.
        let more: Vec<Row> = rows().into_iter().chain([row(ARMS[0], 3, 300.0)]).collect();
        let more = &tables(&more)[0];
        let three = more.heads.iter().position(|head| head == "3").unwrap();
        assert_eq!((more.rows[0][three].as_str(), more.rows[1][three].as_str()), ("-", "100 (10%)"));
        let chart = chart(&rows());
        assert_eq!(chart.series[1].points, [(1.0, 100.0), (2.0, 25.0)]);
        assert_eq!(chart.series[4].points, [(1.0, 100.0), (2.0, 50.0)]);
    }

    #[test]
    fn after_stands_beside_before_of_the_same_scan() {
        let series = &tables(&rows())[1];
        let ours = |row: usize| series.rows[row][1..].iter().map(String::as_str).collect::<Vec<_>>();
        // Base and patched rates with two workers: 250 and 1500 (linear), 500 and 2000 (optimised).
        // With one worker: 1000 and 3000 (linear), 2000 and 4000 (optimised).
        assert_eq!(ours(4), ["2", "0", "250", "1500 (+500%)", "1000", "3000 (+200%)"]);
        assert_eq!(ours(5), ["2", "1", "500", "2000 (+300%)", "2000", "4000 (+100%)"]);
        assert_eq!(ours(0), ["80", "0", "2667", "20049 (+651%)", "314065", "316724 (+0.8%)"]);
    }

    #[test]
    fn gains_are_cut_off() {
        for (base, patched, text) in [
            (100.0, 119.9, "+19%"),
            (100.0, 109.99, "+9.9%"),
            (200.0, 100.0, "-50%"),
            (100.0, 98.21, "-1.7%"),
        ] {
            assert_eq!(gain(base, patched), text);
        }
    }

    /// Bandwidth comes from free-running threads, placement from the run in which writers overlap.
    #[test]
    fn append64_has_rates_of_threads_and_places_of_the_overlap() {
        let append = &tables(&rows())[2];
        let cells: Vec<Vec<&str>> =
            append.rows.iter().map(|row| row[5..].iter().map(String::as_str).collect()).collect();
        assert_eq!(
            cells,
            [
                ["10", "20", "30", "40"],
                ["107", "207", "307", "407"],
                ["207", "407", "607", "807"],
                ["307", "607", "907", "1207"],
                ["407", "807", "1207", "1607"],
                ["27", "47", "67", "87"],
            ]
        );
        let published: Vec<&str> = append.rows.iter().map(|row| row[3].as_str()).collect();
        assert_eq!(published, ["5718", "1316212", "105", "588", "1780", "2"]);
    }
}
