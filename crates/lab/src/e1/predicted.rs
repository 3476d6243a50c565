//! E1 in virtual time: what the model predicts for the published machines, next to what was
//! measured on them.

use blockyard_disk::num::count_as_f64;

use super::published::{APPEND64, FALLOCATE2, FALLOCATE2_BASE};
use super::{APPENDERS, ARMS, arms, gain};
use crate::figures::Table;
use crate::figures::row::{Interleave, Row, Waits};
use crate::machine::Machine;
use crate::run::{ImageSource, Plan, Setup};
use crate::runner::Limit;

/// Operations of each worker when no number is given.
const OPS: u64 = 1000;
/// The machine for the contention table and append64. The machine that was measured is not
/// published. This one's rate with one worker is nearest to the published rate.
const UNNAMED: &str = Machine::NAMES[0];

/// The same machine with workers far from each other. On which CPUs the measured workers ran is not
/// published.
const SPREAD: &str = "kunpeng-920:spread";

/// A plan in virtual time on a built-in machine.
pub(super) fn plan(
    setup: &Setup,
    machine: &str,
    workload: &str,
    arms: &[impl AsRef<str>],
    workers: &[u32],
) -> Plan {
    let machine = Machine::open(machine).expect("a test reads every machine that is built in");
    let plan = setup.plan(workload, arms, workers, Interleave::Virtual);
    let ops = (!plan.workload.ends_by_itself()).then(|| setup.limit.ops_per_worker.unwrap_or(OPS));
    Plan {
        limit: Limit { time: None, ops_per_worker: ops, fsync_end: false },
        image: ImageSource::memory(plan.workload.published_device(), setup.seed),
        machine: Some(machine),
        repeat: 1,
        ..plan
    }
}

pub(super) fn plans(setup: &Setup) -> Vec<Plan> {
    let (arms, mut plans) = (arms(setup), Vec::new());
    for name in Machine::NAMES {
        let all = Machine::open(name).map_or(1, |machine| machine.cpus);
        let published = FALLOCATE2_BASE.iter().map(|(workers, _)| *workers).chain([all]).collect();
        let workers: Vec<u32> = setup.workers.clone().unwrap_or(published);
        plans.push(plan(setup, name, "fallocate2", &arms, &workers));
        if name == UNNAMED {
            plans.push(plan(setup, SPREAD, "fallocate2", &ARMS[..1], &workers));
        }
    }
    // The published columns of both scans are alike, as on a device with a linear prefix.
    let append64 = plan(setup, UNNAMED, "append64", &arms, &[APPENDERS]);
    plans.push(Plan { rotational: true, ..append64 });
    plans
}

/// The tables; none without rows in virtual time.
pub(super) fn tables(rows: &[Row]) -> Vec<Table> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.interleave == Interleave::Virtual).collect();
    if rows.is_empty() {
        return Vec::new();
    }
    let mut tables = vec![contention(&rows), series(&rows), append64(&rows)];
    tables.extend(Machine::NAMES.into_iter().map(|machine| time(&rows, machine)));
    tables
}

fn find<'a>(rows: &[&'a Row], machine: &str, workload: &str, arm: &str, workers: u32) -> Option<&'a Row> {
    rows.iter().copied().find(|row| {
        row.machine.as_deref() == Some(machine)
            && row.workload == workload
            && row.policy == arm
            && row.workers == workers
    })
}

fn rate(rows: &[&Row], machine: &str, arm: &str, workers: u32) -> Option<f64> {
    find(rows, machine, "fallocate2", arm, workers).map(|row| row.ops_per_s_per_worker)
}

fn whole(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.0}"))
}

fn contention(rows: &[&Row]) -> Table {
    let mut workers: Vec<u32> =
        rows.iter().filter(|row| row.workload == "fallocate2").map(|row| row.workers).collect();
    workers.sort_unstable();
    workers.dedup();
    let heads = std::iter::once("workers".to_owned()).chain(workers.iter().map(u32::to_string));
    let mut table =
        Table::new("E1 in virtual time, fallocate2: contention, operations per second per worker", heads);
    let published =
        |count: u32| FALLOCATE2_BASE.iter().find(|(known, _)| *known == count).map(|(_, rate)| *rate);
    let push = |table: &mut Table, name: String, cells: Vec<String>| {
        table.push(std::iter::once(name).chain(cells));
    };
    let cells = workers.iter().map(|&count| whole(published(count))).collect();
    push(&mut table, "published: before the series".to_owned(), cells);
    for machine in Machine::NAMES {
        for arm in ARMS {
            let cells = workers.iter().map(|&count| whole(rate(rows, machine, arm, count))).collect();
            push(&mut table, format!("virtual, {machine}: {arm}"), cells);
        }
    }
    let cells = workers.iter().map(|&count| whole(rate(rows, SPREAD, ARMS[0], count))).collect();
    push(&mut table, format!("virtual, {SPREAD}: {}", ARMS[0]), cells);
    for machine in [UNNAMED, SPREAD] {
        let over =
            workers.iter().map(|&count| match (rate(rows, machine, ARMS[0], count), published(count)) {
                (Some(ours), Some(theirs)) => format!("{:.2}", ours / theirs),
                _ => "-".to_owned(),
            });
        push(&mut table, format!("{machine}, {}: virtual over published", ARMS[0]), over.collect());
    }
    table.note(
        "Published without its machine; its rate of one worker lies nearest to the Kunpeng's, which is an inference. Virtual: \
         predictions of a model, deterministic. Spread: each worker as far from those before it as can be. \
         Calibrated on columns of the base alone: what surrounds an operation, on one \
         worker; the lines that follow a group's lock, on all CPUs.",
    );
    table
}

fn series(rows: &[&Row]) -> Table {
    let heads = [
        "machine",
        "scan",
        "base: published",
        "virtual",
        "patched: published",
        "virtual",
        "ratio: published",
        "virtual",
        "off by",
        "P1 base: published",
        "virtual",
        "P1 change: published",
        "virtual",
    ];
    let mut table = Table::new("E1 in virtual time, fallocate2: before and after, all CPUs", heads);
    for published in FALLOCATE2 {
        let machine = if published.machine.contains("AMD") { Machine::NAMES[1] } else { Machine::NAMES[0] };
        let (base, patched) = if published.optimize_scan { (ARMS[1], ARMS[3]) } else { (ARMS[0], ARMS[2]) };
        let of = |arm, workers| rate(rows, machine, arm, workers);
        let (all_base, all_patched) = (of(base, published.workers), of(patched, published.workers));
        let theirs = published.all_patched / published.all_base;
        let ours = all_patched.zip(all_base).map(|(patched, base)| patched / base);
        let one = of(patched, 1).zip(of(base, 1)).map(|(patched, base)| gain(base, patched));
        table.push([
            format!("{}, {} workers", published.machine, published.workers),
            u32::from(published.optimize_scan).to_string(),
            whole(Some(published.all_base)),
            whole(all_base),
            whole(Some(published.all_patched)),
            whole(all_patched),
            format!("{theirs:.1}"),
            ours.map_or("-".to_owned(), |ours| format!("{ours:.1}")),
            ours.map_or("-".to_owned(), |ours| format!("{:+.0}%", 100.0 * (ours / theirs - 1.0))),
            whole(Some(published.one_base)),
            whole(of(base, 1)),
            gain(published.one_base, published.one_patched),
            one.unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    table
}

fn append64(rows: &[&Row]) -> Table {
    let heads = ["metric".to_owned()].into_iter().chain(
        APPEND64.iter().flat_map(|column| [format!("{}: published", column.arm), "virtual".to_owned()]),
    );
    let mut table = Table::new("E1 in virtual time, append64: 64 writers", heads);
    type Metric = (&'static str, fn(&super::published::Append64) -> f64, fn(&Row) -> f64);
    let metrics: [Metric; 5] = [
        ("bandwidth (MiB/s)", |column| column.bandwidth_mib_s, |row| row.bw_mib_s),
        ("free extents", |column| count_as_f64(column.free_extents), |row| count_as_f64(row.free_extents)),
        (
            "average free extent (KB)",
            |column| count_as_f64(column.average_free_extent_kb),
            |row| count_as_f64(row.avg_free_extent_kb),
        ),
        (
            "average extents per file",
            |column| count_as_f64(column.extents_per_file),
            |row| row.extents_per_file,
        ),
        (
            "fragmentation score (e4defrag -c)",
            |column| f64::from(column.score),
            |row| row.score.unwrap_or(f64::NAN),
        ),
    ];
    for (name, published, ours) in metrics {
        let cells = APPEND64.iter().zip(ARMS).flat_map(|(column, arm)| {
            let row = find(rows, UNNAMED, "append64", arm, APPENDERS);
            [format!("{:.0}", published(column)), whole(row.map(ours))]
        });
        table.push(std::iter::once(name.to_owned()).chain(cells));
    }
    table
}

/// Waits in descending order of time.
pub(super) fn by_weight(row: &Row) -> Vec<&Waits> {
    let mut waits: Vec<&Waits> = row.waits.iter().collect();
    waits.sort_by_key(|waits| (std::cmp::Reverse(waits.wait_ns + waits.moved_ns), &waits.name));
    waits
}

fn time(rows: &[&Row], machine: &str) -> Table {
    let mut table = Table::new(
        format!("Where time goes in virtual time on {machine}, all CPUs: microseconds an operation"),
        ["policy", "lock or line", "lock waits", "under the lock", "line moves", "taken/op", "moved/op"],
    );
    let most = rows
        .iter()
        .filter(|row| row.workload == "fallocate2" && row.machine.as_deref() == Some(machine))
        .map(|row| row.workers)
        .max();
    for arm in ARMS {
        let Some(row) = most.and_then(|most| find(rows, machine, "fallocate2", arm, most)) else { continue };
        let ops = count_as_f64(row.ops.max(1));
        for waits in by_weight(row).into_iter().take(6) {
            let each = |count: u64| format!("{:.2}", count_as_f64(count) / ops);
            let micros = |ns: u64| format!("{:.2}", count_as_f64(ns) / 1e3 / ops);
            table.push([
                arm.to_owned(),
                waits.name.clone(),
                micros(waits.wait_ns),
                micros(waits.section_ns),
                micros(waits.moved_ns),
                each(waits.taken),
                each(waits.moved),
            ]);
        }
    }
    table.note(
        "Counts of the warm-up, 129 operations a worker, are in the figures; lines of one name are summed.",
    );
    table
}
