//! E1: `fallocate2` over workers, and `append64`, before and after the series, with both scan modes.

mod published;

use blockyard_disk::num::count_as_f64;

use crate::figures::plot::{Chart, Series};
use crate::figures::row::{Interleave, Row};
use crate::figures::{Table, summary};
use crate::run::Plan;
use crate::run::Setup;
use published::{APPEND64, Append64, FALLOCATE2, FALLOCATE2_BASE};

/// Base and patched, linear and optimised, in the order of the published columns.
const ARMS: [&str; 4] = [
    "linux-6.16:scan=linear",
    "linux-6.16:scan=optimized",
    "linux-6.18:scan=linear",
    "linux-6.18:scan=optimized",
];
const APPENDERS: u32 = 64;

pub(crate) fn plans(setup: &Setup) -> Vec<Plan> {
    let published: Vec<u32> = FALLOCATE2_BASE.iter().map(|(workers, _)| *workers).collect();
    let workers = setup.workers.clone().unwrap_or(published);
    vec![
        setup.plan("fallocate2", &ARMS, &workers, Interleave::Threads),
        setup.plan("append64", &ARMS, &[APPENDERS], Interleave::Threads),
        setup.plan("append64", &ARMS, &[APPENDERS], Interleave::Overlap),
    ]
}

pub(crate) fn tables(rows: &[Row]) -> Vec<Table> {
    let of = |workload: &str, interleave| -> Vec<&Row> {
        rows.iter().filter(|row| row.workload == workload && row.interleave == interleave).collect()
    };
    let fallocate2 = of("fallocate2", Interleave::Threads);
    let running = of("append64", Interleave::Threads);
    let overlapping = of("append64", Interleave::Overlap);
    vec![contention(&fallocate2), series(&fallocate2), append64(&running, &overlapping)]
}

/// Rates over workers, each with its share of the rate of one worker: the shape.
fn contention(rows: &[&Row]) -> Table {
    let heads = std::iter::once("workers".to_owned())
        .chain(FALLOCATE2_BASE.iter().map(|(workers, _)| workers.to_string()));
    let mut table = Table::new(
        "E1, fallocate2: contention, average operations per second per worker (share of one worker's)",
        heads,
    );
    let mut push = |name: String, rates: Vec<Option<f64>>| {
        let one = rates[0];
        let cells = rates.iter().map(|rate| match (rate, one) {
            (Some(rate), Some(one)) => format!("{rate:.0} ({:.0}%)", 100.0 * rate / one),
            (Some(rate), None) => format!("{rate:.0}"),
            (None, _) => "-".to_owned(),
        });
        table.push(std::iter::once(name).chain(cells));
    };
    push(
        "published: before the series".to_owned(),
        FALLOCATE2_BASE.iter().map(|(_, rate)| Some(*rate)).collect(),
    );
    for arm in ARMS {
        let rates = FALLOCATE2_BASE.iter().map(|(workers, _)| rate(rows, arm, *workers)).collect();
        push(format!("this machine: {arm}"), rates);
    }
    table.note(machine_note());
    table
}

/// The same as lines: what each worker gets as a share of what one gets alone, published and ours.
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
        let rates =
            FALLOCATE2_BASE.iter().filter_map(|(workers, _)| Some((*workers, rate(&rows, arm, *workers)?)));
        series.push(Series { name: format!("ours: {arm}"), points: shares(rates.collect()) });
    }
    Chart {
        title: "E1, fallocate2: rate of a worker as a share of one worker alone".to_owned(),
        x_label: "workers",
        y_label: "rate of a worker, % of one worker alone",
        series,
    }
}

fn rate(rows: &[&Row], arm: &str, workers: u32) -> Option<f64> {
    summary::median(rows, arm, Some(workers), |row| row.ops_per_s_per_worker).map(|spread| spread.median)
}

/// Before and after, with all workers and with one.
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

/// The change in per cent, cut off as the published table does: one decimal below 10, none above.
fn gain(base: f64, patched: f64) -> String {
    let percent = 100.0 * (patched / base - 1.0);
    if percent.abs() < 10.0 {
        format!("{:+.1}%", (percent * 10.0).trunc() / 10.0)
    } else {
        format!("{:+.0}%", percent.trunc())
    }
}

/// Metrics down; the published arms, then ours.
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
