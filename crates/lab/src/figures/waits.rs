//! Where modelled CPUs spend their time: in waits for locks, in work under locks, and in moves of
//! cache lines.

use std::cmp::Reverse;

use blockyard_disk::num::count_as_f64;

use super::table::Table;
use crate::figures::row::{Row, Waits};

/// How many locks and cache lines are shown for each row.
const SHOWN: usize = 6;

/// The locks and cache lines of a row that cost the most time in waits and moves, costliest first.
#[must_use]
pub fn heaviest(row: &Row) -> Vec<&Waits> {
    let mut waits: Vec<&Waits> = row.waits.iter().collect();
    waits.sort_by_key(|waits| (Reverse(waits.wait_ns + waits.moved_ns), &waits.name));
    waits.truncate(SHOWN);
    waits
}

/// The costliest locks and lines of each row, in microseconds per operation; `None` if no row has
/// any.
#[must_use]
pub fn table(title: &str, rows: &[&Row]) -> Option<Table> {
    let heads = [
        "policy",
        "workers",
        "lock or line",
        "lock waits",
        "under the lock",
        "line moves",
        "taken/op",
        "moved/op",
    ];
    let mut table =
        Table::new(format!("{title}: where time goes, microseconds an operation"), heads).with_keys(3);
    for row in rows {
        let ops = count_as_f64(row.ops.max(1));
        let each = |count: u64| format!("{:.2}", count_as_f64(count) / ops);
        let micros = |ns: u64| format!("{:.2}", count_as_f64(ns) / 1e3 / ops);
        for waits in heaviest(row) {
            table.push([
                row.policy.clone(),
                row.workers.to_string(),
                waits.name.clone(),
                micros(waits.wait_ns),
                micros(waits.section_ns),
                micros(waits.moved_ns),
                each(waits.taken),
                each(waits.moved),
            ]);
        }
    }
    table.note("Without the warm-up. Lines with the same name are added up.");
    (!table.rows.is_empty()).then_some(table)
}

/// All locks and lines of all rows as comma-separated values; empty if there are none.
#[must_use]
pub fn csv(rows: &[Row]) -> String {
    let heads = [
        "workload",
        "policy",
        "machine",
        "workers",
        "line",
        "taken",
        "waits",
        "wait_ns",
        "section_ns",
        "moved",
        "moved_ns",
    ];
    let mut table = Table::new("waits", heads);
    for row in rows {
        for waits in &row.waits {
            let counts =
                [waits.taken, waits.waits, waits.wait_ns, waits.section_ns, waits.moved, waits.moved_ns];
            let machine = row.machine.clone().unwrap_or_default();
            let names = [row.workload.clone(), row.policy.clone(), machine, row.workers.to_string()];
            let counts = counts.iter().map(u64::to_string);
            table.push(names.into_iter().chain([waits.name.clone()]).chain(counts));
        }
    }
    if table.rows.is_empty() { String::new() } else { table.csv() }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::figures::summary::tests::row;

    /// A row of 1000 operations. Its `number`-th line (from 1) costs `number` microseconds an
    /// operation, half of it for waits and half for moves.
    pub(crate) fn with_waits(row: Row, names: &[&str]) -> Row {
        let waits = (1..).zip(names).map(|(number, name)| Waits {
            name: (*name).to_owned(),
            taken: 2000 * number,
            waits: 10,
            wait_ns: 500_000 * number,
            section_ns: 100_000,
            moved: 3000,
            moved_ns: 500_000 * number,
        });
        Row { waits: waits.collect(), ..row }
    }

    #[test]
    fn the_heaviest_locks_and_lines_come_first_as_a_share_of_an_operation() {
        let row = with_waits(row("yard", 4, 1e6), &["a", "b", "c", "d", "e", "f", "g"]);
        let table = table("fallocate2", &[&row]).unwrap();
        assert_eq!(table.rows[0], ["yard", "4", "g", "3.50", "0.10", "3.50", "14.00", "3.00"]);
        assert_eq!((table.rows.len(), table.rows[5][2].as_str()), (6, "b"));
        let csv = csv(&[row]);
        assert_eq!(csv.lines().count(), 8);
        assert_eq!(csv.lines().nth(1), Some("fallocate2,yard,,4,a,2000,10,500000,100000,3000,500000"));
    }

    #[test]
    fn rows_without_waits_have_no_table() {
        let row = row("yard", 4, 1e6);
        assert!(table("fallocate2", &[&row]).is_none());
        assert_eq!(csv(&[row]), "");
    }
}
