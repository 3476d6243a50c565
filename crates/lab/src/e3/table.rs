//! The tables of `lab run e3`: the published figures next to ours, and how our figures depend on
//! the parameters.

use blockyard_disk::num::count_as_f64;

use super::published::CLUSTERS;
use super::{ClusterRow, Op, name_of};
use crate::figures::{Table, figure};

/// Every table.
#[must_use]
pub fn tables(rows: &[ClusterRow]) -> Vec<Table> {
    table(rows).into_iter().chain(sensitivity(rows)).collect()
}

/// One row for each metric; columns for the published file systems, then ours. `None` without rows
/// of the calibrated server.
fn table(rows: &[ClusterRow]) -> Option<Table> {
    let rows: Vec<&ClusterRow> = rows.iter().filter(|row| row.variant.is_empty()).collect();
    let first = rows.first()?;
    let of = |op: Op| rows.iter().filter(move |row| row.op == op.name());
    let heads = std::iter::once("metric".to_owned())
        .chain(CLUSTERS.iter().map(|column| format!("published: {}", column.name)))
        .chain(of(Op::Fallocate).map(|row| format!("ours: {}", name_of(row.cluster_kb))));
    let title =
        format!("E3, bigalloc: calls on a full file server that is short of memory, {}", first.policy);
    let mut table = Table::new(title, heads);
    let mut push = |name: String, published: Vec<String>, ours: Vec<String>| {
        table.push(std::iter::once(name).chain(published).chain(ours));
    };
    for (at, op) in [Op::Fallocate, Op::Truncate].into_iter().enumerate() {
        let kind = op.name();
        push(
            format!("{kind}: mean time (us)"),
            CLUSTERS.iter().map(|column| column.mean_us[at].to_string()).collect(),
            of(op).map(|row| format!("{:.0}", row.mean_us)).collect(),
        );
        push(
            format!("{kind}: mean metadata reads per call"),
            CLUSTERS.iter().map(|column| column.mean_reads[at].to_string()).collect(),
            of(op).map(|row| format!("{:.5}", row.meta_reads_mean)).collect(),
        );
        push(
            format!("{kind}: most metadata reads in a call"),
            CLUSTERS.iter().map(|column| column.most_reads[at].to_string()).collect(),
            of(op).map(|row| figure(count_as_f64(row.meta_reads_max))).collect(),
        );
    }
    for (at, op) in [Op::Read, Op::Write].into_iter().enumerate() {
        push(
            format!("direct {}s over 100 ms", op.name()),
            CLUSTERS.iter().map(|column| format!("{}%", column.slow_percent[at])).collect(),
            of(op).map(|row| format!("{:.3}%", row.share_over_100ms * 100.0)).collect(),
        );
    }
    let none = || CLUSTERS.iter().map(|_| "-".to_owned()).collect::<Vec<_>>();
    push(
        "unlink: mean metadata reads per call".to_owned(),
        none(),
        of(Op::Unlink).map(|row| format!("{:.5}", row.meta_reads_mean)).collect(),
    );
    push("extents a file".to_owned(), none(), of(Op::Read).map(|row| figure(row.extents_per_file)).collect());
    for op in [Op::Read, Op::Write] {
        let name = format!("pieces of a direct {}", op.name());
        push(name, none(), of(op).map(|row| format!("{:.3}", row.pieces_mean)).collect());
    }
    table.note(format!(
        "published in 2011: a production server after days of steady state, times with its disks. Ours: {} files and a workload of \
         our own on a modelled disk of the time; the memory, how often it is lost, and the calls a second were chosen to \
         reproduce the published column of 64k; the other columns are predictions. Compare how figures fall from column to column.",
        first.files
    ));
    Some(table)
}

/// The name of a figure, its kind of call, and its text.
type Metric = (&'static str, Op, fn(&ClusterRow) -> String);

/// The figures with other memory, load, fill and size; `None` if no row has any of these changed.
fn sensitivity(rows: &[ClusterRow]) -> Option<Table> {
    let first = rows.first()?;
    if rows.iter().all(|row| row.variant.is_empty()) {
        return None;
    }
    let metrics: [Metric; 6] = [
        ("fallocate reads", Op::Fallocate, |row| format!("{:.4}", row.meta_reads_mean)),
        ("fallocate us", Op::Fallocate, |row| format!("{:.0}", row.mean_us)),
        ("truncate reads", Op::Truncate, |row| format!("{:.3}", row.meta_reads_mean)),
        ("truncate us", Op::Truncate, |row| format!("{:.0}", row.mean_us)),
        ("reads over 100 ms", Op::Read, |row| format!("{:.3}%", row.share_over_100ms * 100.0)),
        ("writes over 100 ms", Op::Write, |row| format!("{:.3}%", row.share_over_100ms * 100.0)),
    ];
    let heads = ["changed", "file system"].into_iter().chain(metrics.map(|(name, ..)| name));
    let title = format!("E3, what it depends on, {}", first.policy);
    let mut table = Table::new(title, heads).with_keys(2);
    for row in rows.iter().filter(|row| row.op == Op::Fallocate.name()) {
        let cells = metrics.iter().map(|(_, op, value)| {
            let is_it = |other: &&ClusterRow| {
                other.op == op.name() && other.variant == row.variant && other.cluster_kb == row.cluster_kb
            };
            rows.iter().find(is_it).map_or("-".to_owned(), value)
        });
        let variant = if row.variant.is_empty() { "nothing" } else { &row.variant };
        table.push([variant.to_owned(), name_of(row.cluster_kb)].into_iter().chain(cells));
    }
    Some(table)
}

/// Every row as comma-separated values.
#[must_use]
pub fn csv(rows: &[ClusterRow]) -> String {
    let heads = [
        "workload",
        "policy",
        "state",
        "variant",
        "cluster_kb",
        "op",
        "seed",
        "files",
        "calls",
        "mean_us",
        "meta_reads_mean",
        "meta_reads_max",
        "share_over_100ms",
        "pieces_mean",
        "extents_per_file",
    ];
    let mut table = Table::new("rows", heads);
    for row in rows {
        table.push([
            row.workload.clone(),
            row.policy.clone(),
            row.state.clone(),
            row.variant.clone(),
            row.cluster_kb.map_or(String::new(), |kib| kib.to_string()),
            row.op.clone(),
            row.seed.to_string(),
            row.files.to_string(),
            row.calls.to_string(),
            row.mean_us.to_string(),
            row.meta_reads_mean.to_string(),
            row.meta_reads_max.to_string(),
            row.share_over_100ms.to_string(),
            row.pieces_mean.to_string(),
            row.extents_per_file.to_string(),
        ]);
    }
    table.csv()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The rows of one file system.
    pub(crate) fn rows(cluster_kb: Option<u32>, variant: &str) -> Vec<ClusterRow> {
        let row = |(at, op): (usize, Op)| ClusterRow {
            workload: "e3".into(),
            policy: "yard".into(),
            state: crate::figures::states::FRESH.into(),
            variant: variant.into(),
            cluster_kb,
            op: op.name().into(),
            seed: 1,
            files: 5,
            calls: 9,
            mean_us: 100.0 * f64::from(u8::try_from(at).unwrap()),
            meta_reads_mean: 1.5 + f64::from(u8::try_from(at).unwrap()),
            meta_reads_max: 7,
            share_over_100ms: 0.25,
            meta_reads: super::super::MetadataReads::default(),
            pieces_mean: 1.0,
            extents_per_file: 2.5,
        };
        Op::ALL.into_iter().enumerate().map(row).collect()
    }

    #[test]
    fn published_figures_stand_before_ours() {
        let rows = [rows(None, ""), rows(Some(1024), ""), rows(None, "half the memory")].concat();
        let [table, sensitivity] = &tables(&rows)[..] else { panic!("two tables") };
        assert_eq!(table.heads[1..3], ["published: stock ext4", "published: 64k clusters"]);
        assert_eq!(table.heads[5..], ["ours: stock ext4", "ours: 1M clusters"]);
        assert_eq!(table.rows.len(), 12);
        assert_eq!(table.rows[1][1..6], ["1.1494", "0.0417", "0.0084", "0.00077", "1.50000"]);
        assert_eq!(table.rows[3][1..], ["12944", "6911", "4541", "4558", "100", "100"]);
        assert_eq!(table.rows[7][1..], ["0.202%", "0.134%", "0.109%", "0.0582%", "25.000%", "25.000%"]);
        assert_eq!(table.rows[8][4..], ["-", "3.50000", "3.50000"]);
        assert_eq!(table.rows[9][5..], ["2.50", "2.50"]);
        assert_eq!(sensitivity.rows.len(), 3);
        assert_eq!(sensitivity.rows[2][..4], ["half the memory", "stock ext4", "1.5000", "0"]);
        assert_eq!(
            csv(&rows).lines().nth(7).unwrap(),
            "e3,yard,fresh,,1024,truncate,1,5,9,100,2.5,7,0.25,1,2.5"
        );
        assert!(tables(&[]).is_empty());
    }
}
