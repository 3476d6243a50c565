//! A table of the arms that `--policy` added. They have no published figures. The table has their
//! rows in all interleavings.

use blockyard_disk::num::count_as_f64;

use crate::figures::Table;
use crate::figures::row::{Interleave, Row};

/// A table row for each row of an arm that is not in `known`; `None` without such arms.
pub(super) fn table(rows: &[Row], known: &[impl AsRef<str>]) -> Option<Table> {
    let is_known = |row: &Row| known.iter().any(|arm| arm.as_ref() == row.policy);
    let heads = [
        "policy",
        "workload",
        "on",
        "workers",
        "ops/s each",
        "MiB/s",
        "extents/file",
        "free extents",
        "busy skips/op",
    ];
    let mut table = Table::new("E1: further policies", heads).with_keys(4);
    for row in rows.iter().filter(|row| !is_known(row)) {
        table.push([
            row.policy.clone(),
            row.workload.clone(),
            machine(row),
            row.workers.to_string(),
            format!("{:.0}", row.ops_per_s_per_worker),
            format!("{:.0}", row.bw_mib_s),
            format!("{:.1}", row.extents_per_file),
            row.free_extents.to_string(),
            row.groups_skipped_busy.map_or("-".to_owned(), |skips| {
                format!("{:.2}", count_as_f64(skips) / count_as_f64(row.ops.max(1)))
            }),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

fn machine(row: &Row) -> String {
    match (row.interleave, &row.machine) {
        (Interleave::Virtual, Some(machine)) => format!("virtual, {machine}"),
        (Interleave::Overlap, _) => "this machine, overlap".to_owned(),
        _ => "this machine".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::summary::tests::row;

    #[test]
    fn only_arms_that_were_not_published_are_in_it() {
        let known = ["linux-6.18:scan=linear"];
        let mut rows = vec![row(known[0], 2, 10.0)];
        assert!(table(&rows, &known).is_none());
        rows.push(row("yard", 2, 10.0));
        let on_machine = Row {
            interleave: Interleave::Virtual,
            machine: Some("kunpeng-920".to_owned()),
            ..row("yard", 80, 160.0)
        };
        rows.push(on_machine);
        let table = table(&rows, &known).unwrap();
        let first = |row: usize| table.rows[row][..5].iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!(first(0), ["yard", "fallocate2", "this machine", "2", "5"]);
        assert_eq!(first(1), ["yard", "fallocate2", "virtual, kunpeng-920", "80", "2"]);
        assert_eq!(table.rows.len(), 2);
    }
}
