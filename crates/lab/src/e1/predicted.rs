//! E1 in virtual time: what the model predicts for the published machines, next to what was
//! measured on them.

use blockyard_disk::num::count_as_f64;

use super::published::{APPEND64, FALLOCATE2, FALLOCATE2_BASE};
use super::{APPENDERS, ARMS, arms, gain};
use crate::figures::row::{Interleave, Row};
use crate::figures::{Table, summary, waits};
use crate::machine::Machine;
use crate::run::{ImageSource, Plan, Setup};
use crate::runner::Limit;

/// Operations of each worker when no number is given.
const OPS: u64 = 1000;
/// The machine for the ratios of the contention table, and for append64. The published figures of
/// these two do not name a machine. Of the built-in machines, this one comes nearest to the
/// published rate of one worker.
const UNNAMED: &str = Machine::NAMES[0];

/// The same machine with workers far from each other. Both ways are shown, because it was not
/// published on which CPUs the workers ran.
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
    plan_on(setup, machine, workload, (arms, workers))
}

/// As [`plan`], on any machine.
pub(super) fn plan_on(
    setup: &Setup,
    machine: Machine,
    workload: &str,
    (arms, workers): (&[impl AsRef<str>], &[u32]),
) -> Plan {
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
    let (arms, mut plans) = (arms(setup, &ARMS), Vec::new());
    for name in Machine::NAMES {
        let all = Machine::open(name).map_or(1, |machine| machine.cpus);
        let published = FALLOCATE2_BASE.iter().map(|(workers, _)| *workers).chain([all]).collect();
        let workers: Vec<u32> = setup.workers.clone().unwrap_or(published);
        plans.push(plan(setup, name, "fallocate2", &arms, &workers));
        if name == UNNAMED {
            plans.push(plan(setup, SPREAD, "fallocate2", &ARMS[..1], &workers));
        }
    }
    // The published figures of both scans are alike. This suggests a rotational device, on which
    // the optimised scan begins with a linear prefix.
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
    tables.extend(Machine::NAMES.into_iter().filter_map(|machine| time(&rows, machine)));
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
        "The published machine is not named; the Kunpeng is taken because its rate of one worker is the nearest. Virtual: \
         deterministic predictions of a model. Spread: each worker is as far as possible from those before it. \
         Only columns of the base were used for calibration: one worker for what surrounds an operation, \
         all CPUs for the lines that follow a group's lock.",
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
        "P1 patched: published",
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
        let after = |base: f64, patched: f64| format!("{patched:.0} ({})", gain(base, patched));
        let one = of(base, 1).zip(of(patched, 1)).map(|(base, patched)| after(base, patched));
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
            after(published.one_base, published.one_patched),
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
    let metrics: [Metric; 6] = [
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
            "average size per extent (KB)",
            |column| count_as_f64(column.kb_per_extent),
            |row| row.mean_extent_kb,
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

/// Where time goes with the most workers, under each arm. The workload's own table, for all numbers
/// of workers, has the same title, so a report leaves that table out.
fn time(rows: &[&Row], machine: &str) -> Option<Table> {
    let is_on = |row: &&&Row| row.workload == "fallocate2" && row.machine.as_deref() == Some(machine);
    let most = rows.iter().filter(is_on).map(|row| row.workers).max()?;
    let rows: Vec<&Row> =
        ARMS.iter().filter_map(|arm| find(rows, machine, "fallocate2", arm, most)).collect();
    waits::table(&summary::workload_name(rows.first()?), &rows)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::figures::states::beside;
    use crate::figures::summary::tests::row;
    use crate::figures::waits::tests::with_waits;

    /// A row in virtual time whose workers make `rate` operations a second each.
    pub(crate) fn predicted(machine: &str, arm: &str, workers: u32, rate: f64) -> Row {
        let plain = row(arm, workers, rate * f64::from(workers));
        Row { interleave: Interleave::Virtual, machine: Some(machine.to_owned()), ..plain }
    }

    /// All arms on both machines, with one worker and with all. With all workers, an arm's rate is
    /// a hundred times its number. With one worker it is ten times that. On the AMD both rates are
    /// twice as high.
    fn rows() -> Vec<Row> {
        let mut rows = Vec::new();
        for (factor, machine) in [(1.0, Machine::NAMES[0]), (2.0, Machine::NAMES[1])] {
            let all = Machine::open(machine).unwrap().cpus;
            for (number, arm) in (1..).zip(ARMS) {
                let rate = 100.0 * factor * f64::from(number);
                rows.push(predicted(machine, arm, 1, 10.0 * rate));
                rows.push(with_waits(predicted(machine, arm, all, rate), &["group lock", "md lock"]));
            }
        }
        rows.push(predicted(SPREAD, ARMS[0], 1, 590_574.0));
        for (number, arm) in (1u32..).zip(ARMS) {
            rows.push(Row {
                workload: "append64".to_owned(),
                bw_mib_s: f64::from(10 * number),
                avg_free_extent_kb: u64::from(100 * number),
                free_extents: u64::from(200 * number),
                extents_per_file: f64::from(300 * number),
                mean_extent_kb: f64::from(400 * number),
                score: Some(f64::from(20 * number)),
                ..predicted(UNNAMED, arm, APPENDERS, 1.0)
            });
        }
        rows
    }

    #[test]
    fn contention_has_both_machines_and_the_ratio_to_what_was_published() {
        let table = &tables(&rows())[0];
        assert_eq!(table.heads, ["workers", "1", "80", "96"]);
        assert_eq!(table.rows[0][1..], ["295287", "-", "-"]);
        assert_eq!(table.rows[1], ["virtual, kunpeng-920: linux-6.16:scan=linear", "1000", "100", "-"]);
        assert_eq!(table.rows[8][1..], ["8000", "-", "800"]);
        assert_eq!(
            table.rows[9],
            ["virtual, kunpeng-920:spread: linux-6.16:scan=linear", "590574", "-", "-"]
        );
        assert_eq!(table.rows[10][1..], ["0.00", "-", "-"]);
        assert_eq!(table.rows[11][1..], ["2.00", "-", "-"]);
    }

    /// A regression: rows of ratios were taken for published rows, and so were not repeated for
    /// aged file systems.
    #[test]
    fn the_ratio_of_aged_file_systems_stands_beside_that_of_fresh_ones() {
        let aged = Row { state: "mail:9".to_owned(), ..predicted(UNNAMED, ARMS[0], 1, 3.0 * 295_287.0) };
        let table = &beside(&[rows(), vec![aged]].concat(), tables)[0];
        let column = table.heads.iter().position(|head| head == "1; mail:9").unwrap();
        let of_life = [0, 1, 10].map(|row: usize| table.rows[row][column].as_str());
        assert_eq!(of_life, ["-", "885861", "3.00"]);
    }

    #[test]
    fn before_and_after_stand_beside_the_published_rates_with_all_cpus_and_with_one() {
        let table = &tables(&rows())[1];
        let kunpeng = [
            "Kunpeng 920, 80 workers",
            "0",
            "2667",
            "100",
            "20049",
            "300",
            "7.5",
            "3.0",
            "-60%",
            "314065",
            "1000",
            "316724 (+0.8%)",
            "3000 (+200%)",
        ];
        assert_eq!(table.rows[0], kunpeng);
        // The optimised scan on the AMD: arms 2 and 4.
        assert_eq!(table.rows[3][3..9], ["400", "50331", "800", "15.7", "2.0", "-87%"]);
        assert_eq!(table.rows[3][11..], ["209431 (+0.9%)", "8000 (+100%)"]);
    }

    #[test]
    fn append64_has_every_published_metric() {
        let table = &tables(&rows())[2];
        let ours: Vec<[&str; 2]> = table.rows.iter().map(|row| [row[2].as_str(), row[8].as_str()]).collect();
        let expected =
            [["10", "40"], ["200", "800"], ["100", "400"], ["300", "1200"], ["400", "1600"], ["20", "80"]];
        assert_eq!(ours, expected);
        let published: Vec<&str> = table.rows.iter().map(|row| row[5].as_str()).collect();
        assert_eq!(published, ["5718", "105", "1316212", "588", "1780", "2"]);
    }

    #[test]
    fn where_time_goes_is_shown_for_all_cpus() {
        let tables = tables(&rows());
        assert_eq!(tables.len(), 5);
        assert_eq!(tables[3].rows.len(), 8);
        assert_eq!(tables[3].rows[0][..4], [ARMS[0], "80", "md lock", "1.00"]);
        assert_eq!(tables[4].rows[7][..4], [ARMS[3], "96", "group lock", "0.50"]);
    }
}
