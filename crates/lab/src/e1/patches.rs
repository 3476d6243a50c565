//! The scalability series patch by patch in virtual time: the base with one or a few patches added,
//! the whole series with one or a few left out, and what operations wait for on more CPUs.

use blockyard_disk::num::count_as_f64;

use super::{further, predicted, steps};
use crate::figures::plot::{Chart, Series};
use crate::figures::row::Row;
use crate::figures::{Table, waits};
use crate::machine::Machine;
use crate::run::{Plan, Setup};

const MACHINE: &str = Machine::NAMES[1];
const CPUS: u32 = 96;
/// Numbers of CPUs at which to look for the next bottleneck.
const MORE_CPUS: [u32; 3] = [96, 256, 1024];
const BASE: &str = "linux-6.16:scan=optimized";
const WHOLE: &str = "linux-6.18:scan=optimized";

/// Each change to the base, with the numbers of its patches. Patches 15 to 17 build on each other.
/// Patch 5 is also tried without patch 4, although no kernel had it so.
const ALONE: [(&str, &str); 14] = [
    ("1", "busy=skip"),
    ("2", "stream_goal=group-only"),
    ("4", "slot_lock=none"),
    ("4, earlier form", "slot_lock=acquire-release"),
    ("5", "slots=hashed"),
    ("4 and 5", "slot_lock=none:slots=hashed"),
    ("1, 4 and 5", "busy=skip:slot_lock=none:slots=hashed"),
    ("8", "free_pending=atomic"),
    ("9", "freed_merge=before"),
    ("10", "full_groups=drop"),
    ("11", "scan_toggle=prune"),
    ("15", "order_index=by-group"),
    ("15 and 16", "order_index=by-group:visit=scan"),
    ("15 to 17", "order_index=by-group:visit=scan:sweep=per-range"),
];

/// The arms for patch 11, which has an effect only if the scan mode is switched at run time.
const SWITCHED: [(&str, &str); 4] = [
    ("base", BASE),
    ("base with 11", "linux-6.16:scan=optimized:scan_toggle=prune"),
    ("whole without 11", "linux-6.18:scan=optimized:scan_toggle=freeze"),
    ("whole", WHOLE),
];

/// Each change that undoes a part of the whole series, with the numbers of its patches.
const LEFT_OUT: [(&str, &str); 14] = [
    ("1", "busy=wait"),
    ("2", "stream_goal=offset"),
    ("4", "slot_lock=md"),
    ("4, earlier form instead", "slot_lock=acquire-release"),
    ("5", "slots=one"),
    ("5, a goal for each CPU instead", "slots=cpus"),
    ("5, 8 goals instead", "stream_goals=8"),
    ("8", "free_pending=md"),
    ("9", "freed_merge=after"),
    ("10", "full_groups=keep"),
    ("11", "scan_toggle=freeze"),
    ("17", "sweep=per-set"),
    ("16 and 17", "visit=choose:sweep=per-set"),
    ("15 to 17", "order_index=fifo:visit=choose:sweep=per-set"),
];

/// The base, the whole, the base with each change, and the whole without each change.
fn arms() -> impl Iterator<Item = String> {
    let alone = ALONE.iter().map(|(_, turned)| format!("{BASE}:{turned}"));
    let left_out = LEFT_OUT.iter().map(|(_, turned)| format!("{WHOLE}:{turned}"));
    [BASE.to_owned(), WHOLE.to_owned()].into_iter().chain(alone).chain(left_out)
}

pub(crate) fn plans(setup: &Setup) -> Vec<Plan> {
    let own: Vec<String> = arms().collect();
    let further = setup.policies.iter().flatten().filter(|arm| !own.contains(arm));
    let arms: Vec<String> = own.iter().chain(further).cloned().collect();
    let cpus = setup.workers.clone().unwrap_or(vec![CPUS]);
    let mut plans = vec![predicted::plan(setup, MACHINE, "fallocate2", &arms, &cpus)];
    if setup.workers.is_none() {
        plans.push(predicted::plan(setup, MACHINE, "fallocate2", &[WHOLE], &MORE_CPUS[1..]));
    }
    plans.push(predicted::plan(setup, MACHINE, "scanswitch", &SWITCHED.map(|(_, arm)| arm), &cpus));
    plans.extend(steps::plans(setup));
    plans
}

pub(crate) fn tables(rows: &[Row]) -> Vec<Table> {
    let is_plain = |row: &&Row| row.workload == "fallocate2" && row.machine.as_deref() == Some(MACHINE);
    let Some(workers) = rows.iter().filter(is_plain).find(|row| row.policy == BASE).map(|row| row.workers)
    else {
        return Vec::new();
    };
    let find =
        |arm: &str| rows.iter().filter(is_plain).find(|row| row.policy == arm && row.workers == workers);
    let (Some(base), Some(whole)) = (find(BASE), find(WHOLE)) else { return Vec::new() };
    let mut table = Table::new(
        format!("fallocate2 in virtual time, {MACHINE}, {workers} workers: the series patch by patch"),
        [
            "patch",
            "turned",
            "ops/s each",
            "of base",
            "of whole",
            "extents/file",
            "busy skips/op",
            "goal hits/op",
            "stream goal hits/op",
            "waited for most",
        ],
    );
    let mut push = |name: String, turned: &str, row: &Row| {
        let rate = row.ops_per_s_per_worker;
        let each = |count: Option<u64>| per_op(row, count);
        let most = waits::heaviest(row).first().map_or("-".to_owned(), |waits| waits.name.clone());
        table.push([
            name,
            turned.to_owned(),
            format!("{rate:.0}"),
            format!("{:.2}", rate / base.ops_per_s_per_worker),
            format!("{:.2}", rate / whole.ops_per_s_per_worker),
            format!("{:.1}", row.extents_per_file),
            each(row.groups_skipped_busy),
            each(row.goal_hits),
            each(row.stream_goal_hits),
            most,
        ]);
    };
    push("base".to_owned(), BASE, base);
    for (patch, turned) in ALONE {
        if let Some(row) = find(&format!("{BASE}:{turned}")) {
            push(format!("base with {patch}"), turned, row);
        }
    }
    push("whole".to_owned(), WHOLE, whole);
    for (patch, turned) in LEFT_OUT {
        if let Some(row) = find(&format!("{WHOLE}:{turned}")) {
            push(format!("whole without {patch}"), turned, row);
        }
    }
    table.note(
        "15, 16 and 17 build on each other and are switched together. The only effect of 2 here is that it counts the hits \
         of stream goals separately. 3, 6, 7 and 12 to 14 change no behaviour. 11 acts only when scanning is switched while the file \
         system is in use: see the table of scanswitch. The memory ordering that 4 gave up costs nothing in the model. \
         The whole has min(CPUs, groups/4) goals; with 512 groups and up to 128 CPUs, a goal for each CPU is the same.",
    );
    let switches = SWITCHED.iter().map(|(_, arm)| (*arm).to_owned());
    let known: Vec<String> = arms().chain(steps::arms()).chain(switches).collect();
    let mut tables = vec![table, steps::table(rows), switched_table(rows), bottlenecks(rows)];
    tables.extend(further::table(rows, &known));
    tables
}

fn per_op(row: &Row, count: Option<u64>) -> String {
    count.map_or("-".to_owned(), |count| format!("{:.2}", count_as_f64(count) / count_as_f64(row.ops.max(1))))
}

/// Patch 11 where it matters: the scan mode is switched each time the first worker's file is full.
fn switched_table(rows: &[Row]) -> Table {
    let mut table = Table::new(
        format!("scanswitch in virtual time, {MACHINE}: patch 11, scanning switched at run time"),
        ["arm", "ops/s each", "index entries/op", "busy skips/op", "extents/file", "groups"],
    );
    let rows: Vec<&Row> = rows.iter().filter(|row| row.workload == "scanswitch").collect();
    for (name, arm) in SWITCHED {
        let Some(row) = rows.iter().find(|row| row.policy == arm) else { continue };
        table.push([
            name.to_owned(),
            format!("{:.0}", row.ops_per_s_per_worker),
            per_op(row, row.index_entries),
            per_op(row, row.groups_skipped_busy),
            format!("{:.1}", row.extents_per_file),
            row.groups_touched.to_string(),
        ]);
    }
    table
}

/// A row for each lock and cache line of [`lines`]: the microseconds that an operation waits for
/// it, by number of CPUs.
fn bottlenecks(rows: &[Row]) -> Table {
    let whole = wholes(rows);
    let heads = std::iter::once("lock or line, us/op".to_owned())
        .chain(whole.iter().map(|row| format!("{} CPUs", row.workers)));
    let mut table = Table::new(format!("{WHOLE} in virtual time, {MACHINE}: what is waited for"), heads);
    let rates = whole.iter().map(|row| format!("{:.0}", row.ops_per_s_per_worker));
    table.push(std::iter::once("ops/s each".to_owned()).chain(rates));
    for line in lines(&whole) {
        table.push(std::iter::once(line.name).chain(line.points.iter().map(|(_, us)| format!("{us:.2}"))));
    }
    table.note(
        "Of the measured operations, without the warm-up. More CPUs than the machine has are further sockets of the same kind. \
         The file system of these cells has 512 groups, so beyond 128 CPUs several CPUs share a stream goal.",
    );
    table
}

/// The rows of the whole series, for all numbers of CPUs.
fn wholes(rows: &[Row]) -> Vec<&Row> {
    let is_whole = |row: &&Row| row.policy == WHOLE && row.workload == "fallocate2";
    rows.iter().filter(is_whole).filter(|row| row.machine.as_deref() == Some(MACHINE)).collect()
}

pub(crate) fn chart(rows: &[Row]) -> Chart {
    let whole = wholes(rows);
    Chart {
        title: format!("{WHOLE}, fallocate2 in virtual time, {MACHINE}: waits by lock and line"),
        x_label: "CPUs",
        y_label: "microseconds an operation",
        series: lines(&whole),
    }
}

/// The locks and cache lines that are among the heaviest of any row ([`waits::heaviest`]), each
/// with its microseconds an operation by number of CPUs.
fn lines(rows: &[&Row]) -> Vec<Series> {
    let mut names: Vec<String> = Vec::new();
    for row in rows {
        for waits in waits::heaviest(row) {
            if !names.contains(&waits.name) {
                names.push(waits.name.clone());
            }
        }
    }
    let us = |row: &Row, name: &str| {
        let found = row.waits.iter().find(|waits| waits.name == name);
        found.map_or(0.0, |waits| count_as_f64(waits.wait_ns + waits.moved_ns) / 1e3)
            / count_as_f64(row.ops.max(1))
    };
    let line = |name: String| Series {
        points: rows.iter().map(|row| (f64::from(row.workers), us(row, &name))).collect(),
        name,
    };
    names.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::predicted::tests::predicted;
    use super::*;
    use crate::figures::waits::tests::with_waits;

    fn on_machine(arm: &str, workers: u32, rate: f64) -> Row {
        with_waits(predicted(MACHINE, arm, workers, rate), &["md lock", "journal handles"])
    }

    #[test]
    fn patches_stand_beside_the_base_and_the_whole() {
        let alone = on_machine("linux-6.16:scan=optimized:busy=skip", CPUS, 250.0);
        let rows = [
            Row { stream_goal_hits: None, ..on_machine(BASE, CPUS, 100.0) },
            Row { stream_goal_hits: None, ..alone },
            on_machine(WHOLE, CPUS, 1000.0),
            on_machine("linux-6.18:scan=optimized:slots=one", CPUS, 900.0),
        ];
        let table = &tables(&rows)[0];
        let changed = [
            "base with 1",
            "busy=skip",
            "250",
            "2.50",
            "0.25",
            "1.5",
            "0.01",
            "0.08",
            "-",
            "journal handles",
        ];
        assert_eq!(table.rows[1], changed);
        assert_eq!(table.rows[2][..5], ["whole", WHOLE, "1000", "10.00", "1.00"]);
        assert_eq!(table.rows[3][..5], ["whole without 5", "slots=one", "900", "9.00", "0.90"]);
        assert_eq!(table.rows[3][8], "0.03");
        assert!(tables(&rows[..2]).is_empty());
    }

    #[test]
    fn patch_11_is_compared_where_scanning_is_switched() {
        let switched = |arm: &str, rate| Row {
            workload: "scanswitch".to_owned(),
            ..predicted(MACHINE, arm, CPUS, rate)
        };
        let table = switched_table(&[switched(SWITCHED[1].1, 300.0), switched(WHOLE, 500.0)]);
        assert_eq!(table.rows[0], ["base with 11", "300", "0.90", "0.01", "1.5", "3"]);
        assert_eq!(table.rows[1][..2], ["whole", "500"]);
    }

    /// Rows of the base are left out.
    #[test]
    fn bottlenecks_are_the_waits_of_an_operation_by_number_of_cpus() {
        let rows = [on_machine(WHOLE, 96, 400.0), on_machine(WHOLE, 256, 300.0), on_machine(BASE, 96, 1.0)];
        let table = bottlenecks(&rows);
        assert_eq!(table.heads[1..], ["96 CPUs", "256 CPUs"]);
        assert_eq!(
            table.rows,
            [["ops/s each", "400", "300"], ["journal handles", "2.00", "2.00"], ["md lock", "1.00", "1.00"],]
        );
        assert_eq!(chart(&rows).series[0].points, [(96.0, 2.0), (256.0, 2.0)]);
    }
}
