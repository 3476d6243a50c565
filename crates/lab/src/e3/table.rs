//! The table of `lab run e3`: the published rows and columns, ours beside.

use blockyard_disk::num::count_as_f64;

use super::published::CLUSTERS;
use super::{Calls, ClusterRow, name_of};
use crate::figures::{Table, figure};

/// Metrics down; the published file systems, then ours. `None` without rows.
#[must_use]
pub fn table(rows: &[ClusterRow]) -> Option<Table> {
    let first = rows.first()?;
    let heads = std::iter::once("metric".to_owned())
        .chain(CLUSTERS.iter().map(|column| format!("published: {}", column.name)))
        .chain(rows.iter().map(|row| format!("ours: {}", name_of(row.cluster_kib))));
    let title =
        format!("E3, bigalloc: calls on a full file server that is short of memory, {}", first.policy);
    let mut table = Table::new(title, heads);
    type Kind = (&'static str, usize, fn(&ClusterRow) -> Calls);
    let kinds: [Kind; 2] = [("fallocate", 0, |row| row.fallocate), ("truncate", 1, |row| row.truncate)];
    let mut push = |name: String, published: Vec<String>, ours: Vec<String>| {
        table.push(std::iter::once(name).chain(published).chain(ours));
    };
    for (kind, at, calls) in kinds {
        push(
            format!("{kind}: mean time (us)"),
            CLUSTERS.iter().map(|column| column.mean_us[at].to_string()).collect(),
            rows.iter().map(|row| figure(calls(row).mean_us)).collect(),
        );
        push(
            format!("{kind}: mean metadata reads per call"),
            CLUSTERS.iter().map(|column| column.mean_reads[at].to_string()).collect(),
            rows.iter().map(|row| figure(calls(row).mean_reads)).collect(),
        );
        push(
            format!("{kind}: most metadata reads in a call"),
            CLUSTERS.iter().map(|column| column.most_reads[at].to_string()).collect(),
            rows.iter().map(|row| figure(count_as_f64(calls(row).most_reads))).collect(),
        );
    }
    for (at, name) in ["direct reads over 100 ms", "direct writes over 100 ms"].into_iter().enumerate() {
        push(
            name.to_owned(),
            CLUSTERS.iter().map(|column| format!("{}%", column.slow_percent[at])).collect(),
            rows.iter().map(|_| "-".to_owned()).collect(),
        );
    }
    table.note(format!(
        "published in 2011: a production server after days of steady state, times with its disks. Ours: {} files in memory, \
         every bitmap forgotten before each call, no device: times are those of the processor, and direct I/O has no \
         latency to tell. Compare how reads fall from column to column.",
        first.files
    ));
    Some(table)
}

/// Every row as comma-separated values.
#[must_use]
pub fn csv(rows: &[ClusterRow]) -> String {
    let kinds = ["fallocate", "truncate"];
    let heads = ["workload", "policy", "cluster_kib", "seed", "files"].map(str::to_owned).into_iter();
    let figures = kinds.iter().flat_map(|kind| {
        ["calls", "mean_us", "mean_reads", "most_reads"].map(|name| format!("{kind}_{name}"))
    });
    let mut table = Table::new("rows", heads.chain(figures));
    for row in rows {
        let cluster = row.cluster_kib.map_or(String::new(), |kib| kib.to_string());
        let mut cells = vec![
            row.workload.clone(),
            row.policy.clone(),
            cluster,
            row.seed.to_string(),
            row.files.to_string(),
        ];
        for calls in [row.fallocate, row.truncate] {
            cells.extend([
                calls.calls.to_string(),
                calls.mean_us.to_string(),
                calls.mean_reads.to_string(),
                calls.most_reads.to_string(),
            ]);
        }
        table.push(cells);
    }
    table.csv()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_figures_stand_before_ours() {
        let calls = Calls { calls: 9, mean_us: 2.0, mean_reads: 1.5, most_reads: 7 };
        let row = |cluster_kib| ClusterRow {
            workload: "e3".into(),
            policy: "yard".into(),
            state: crate::figures::states::FRESH.to_owned(),
            cluster_kib,
            seed: 1,
            files: 5,
            fallocate: calls,
            truncate: calls,
        };
        let rows = [row(None), row(Some(1024))];
        let table = table(&rows).unwrap();
        assert_eq!(table.heads[1..3], ["published: stock ext4", "published: 64k clusters"]);
        assert_eq!(table.heads[5..], ["ours: stock ext4", "ours: 1M clusters"]);
        assert_eq!(table.rows.len(), 8);
        assert_eq!(table.rows[1][1..6], ["1.1494", "0.0417", "0.0084", "0.00077", "1.50"]);
        assert_eq!(table.rows[7][1..], ["0.202%", "0.134%", "0.109%", "0.0582%", "-", "-"]);
        assert_eq!(csv(&rows).lines().nth(2).unwrap(), "e3,yard,1024,1,5,9,2,1.5,7,9,2,1.5,7");
    }

    /// Both kinds of calls had the same figures in the test above: one could have stood for the other.
    #[test]
    fn each_figure_is_that_of_its_own_calls() {
        let row = ClusterRow {
            workload: "e3".into(),
            policy: "yard".into(),
            state: crate::figures::states::FRESH.to_owned(),
            cluster_kib: Some(64),
            seed: 1,
            files: 5,
            fallocate: Calls { calls: 9, mean_us: 2.25, mean_reads: 1.5, most_reads: 7 },
            truncate: Calls { calls: 8, mean_us: 3.0, mean_reads: 0.25, most_reads: 5 },
        };
        let text = csv(std::slice::from_ref(&row));
        let (heads, cells) = text.split_once('\n').unwrap();
        assert_eq!(
            heads,
            "workload,policy,cluster_kib,seed,files,fallocate_calls,fallocate_mean_us,fallocate_mean_reads,\
             fallocate_most_reads,truncate_calls,truncate_mean_us,truncate_mean_reads,truncate_most_reads"
        );
        assert_eq!(cells, "e3,yard,64,1,5,9,2.25,1.5,7,8,3,0.25,5\n");
        let table = table(&[row]).unwrap();
        let ours: Vec<&str> = table.rows.iter().map(|row| row[5].as_str()).collect();
        assert_eq!(ours, ["2.25", "1.50", "7", "3", "0.2500", "5", "-", "-"]);
        let stock: Vec<&str> = table.rows.iter().map(|row| row[1].as_str()).collect();
        assert_eq!(stock, ["14262", "1.1494", "11", "12944", "0.8256", "27", "0.498%", "0.202%"]);
    }
}
