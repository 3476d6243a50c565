//! The table of `lab run copy`: what the maps show after each copy, published figures above ours.

use blockyard_disk::num::count_as_f64;
use blockyard_inspect::units;

use super::CopyRow;
use super::published::COPY_MAPS;
use crate::figures::{Table, figure};

/// Policies down by copies; `None` without rows.
#[must_use]
pub fn table(rows: &[CopyRow]) -> Option<Table> {
    let first = rows.first()?;
    let heads = [
        "policy",
        "copy",
        "free/used boundaries",
        "empty groups",
        "overlap with the previous copy (Jaccard)",
        "free in long runs",
        "reuse interval p50",
        "reuse interval, mean of groups",
        "returns",
        "extents/file",
        "mean extent",
        "free extents",
        "score",
    ];
    let title = format!(
        "copy: {}, {}, over themselves: the map after each copy",
        units::counted(first.files, "file"),
        units::bytes(count_as_f64(first.bytes))
    );
    let mut table = Table::new(title, heads).with_keys(2);
    let share = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    for published in COPY_MAPS {
        let mut cells = vec![
            format!("published: {}", published.policy),
            published.copy.to_string(),
            published.boundaries.to_string(),
            published.empty_groups.to_string(),
            share(published.overlap_previous),
        ];
        cells.resize(heads.len(), "-".to_owned());
        table.push(cells);
    }
    for row in rows {
        let mib = |value: Option<f64>| value.map_or("-".to_owned(), |value| units::kib(value * 1024.0));
        table.push([
            row.policy.clone(),
            row.copy.to_string(),
            row.boundaries.to_string(),
            row.empty_groups.to_string(),
            share(row.overlap_previous),
            share(Some(row.free_share_long_runs)),
            mib(row.reuse_interval_mib_p50),
            mib(row.reuse_interval_mib_group_mean),
            row.reuses.to_string(),
            figure(row.extents_per_file),
            units::kib(row.mean_extent_kb),
            figure(count_as_f64(row.free_extents)),
            row.score.map_or("-".to_owned(), figure),
        ]);
    }
    table.note(
        "published in February 2026: 182,515 files, 27 GiB, 818 groups; compare how the figures change from copy to copy \
         and between policies. A boundary is a change between a used and a free square (1/32 of a group) in disk order; \
         the overlap is the Jaccard index of squares used by files; long runs have 8 MiB or more; a reuse interval is what \
         was allocated elsewhere between two visits to a group.",
    );
    Some(table)
}

/// Every row as comma-separated values.
#[must_use]
pub fn csv(rows: &[CopyRow]) -> String {
    let mut table = Table::new(
        "rows",
        [
            "workload",
            "policy",
            "copy",
            "seed",
            "files",
            "bytes",
            "boundaries",
            "empty_groups",
            "overlap_previous",
            "free_share_long_runs",
            "reuse_interval_mib_p50",
            "reuse_interval_mib_group_mean",
            "reuses",
            "extents_per_file",
            "mean_extent_kb",
            "free_extents",
            "avg_free_extent_kb",
            "score",
        ],
    );
    let optional = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    for row in rows {
        table.push([
            row.workload.clone(),
            row.policy.clone(),
            row.copy.to_string(),
            row.seed.to_string(),
            row.files.to_string(),
            row.bytes.to_string(),
            row.boundaries.to_string(),
            row.empty_groups.to_string(),
            optional(row.overlap_previous),
            row.free_share_long_runs.to_string(),
            optional(row.reuse_interval_mib_p50),
            optional(row.reuse_interval_mib_group_mean),
            row.reuses.to_string(),
            row.extents_per_file.to_string(),
            row.mean_extent_kb.to_string(),
            row.free_extents.to_string(),
            row.avg_free_extent_kb.to_string(),
            optional(row.score),
        ]);
    }
    table.csv()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn row(copy: u32, overlap_previous: Option<f64>) -> CopyRow {
        CopyRow {
            workload: "copy".into(),
            policy: "yard".into(),
            state: crate::figures::states::FRESH.to_owned(),
            copy,
            seed: 9,
            files: 1,
            bytes: 27 << 30,
            boundaries: 126,
            empty_groups: 542,
            overlap_previous,
            free_share_long_runs: 0.875,
            reuse_interval_mib_p50: Some(3.0),
            reuse_interval_mib_group_mean: Some(2048.0),
            reuses: 17,
            extents_per_file: 1.25,
            mean_extent_kb: 96.0,
            free_extents: 70,
            avg_free_extent_kb: 12_000,
            score: Some(40.0),
        }
    }

    #[test]
    fn published_maps_stand_above_ours() {
        assert!(table(&[]).is_none());
        let table = table(&[row(1, None), CopyRow { score: None, ..row(2, Some(0.63)) }]).unwrap();
        assert_eq!(table.title, "copy: 1 file, 27.0 GiB, over themselves: the map after each copy");
        let dashes = ["-"; 8];
        let published = ["published: rralloc", "2", "1018", "428", "0.31"];
        assert_eq!(table.rows[4], [&published[..], &dashes].concat());
        assert_eq!(table.rows[0][..5], ["published: regular", "1", "126", "542", "-"]);
        let ours = ["0.88", "3.00 MiB", "2.00 GiB", "17", "1.25", "96.0 KiB", "70"];
        assert_eq!(table.rows[6], [&["yard", "1", "126", "542", "-"][..], &ours, &["40"]].concat());
        assert_eq!(table.rows[7], [&["yard", "2", "126", "542", "0.63"][..], &ours, &["-"]].concat());
    }

    #[test]
    fn csv_has_every_field_under_its_name() {
        let text = csv(&[row(2, Some(0.5)), CopyRow { score: None, ..row(1, None) }]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "workload,policy,copy,seed,files,bytes,boundaries,empty_groups,overlap_previous,free_share_long_runs,\
             reuse_interval_mib_p50,reuse_interval_mib_group_mean,reuses,extents_per_file,mean_extent_kb,free_extents,\
             avg_free_extent_kb,score"
        );
        assert_eq!(lines[1], "copy,yard,2,9,1,28991029248,126,542,0.5,0.875,3,2048,17,1.25,96,70,12000,40");
        assert_eq!(lines[2], "copy,yard,1,9,1,28991029248,126,542,,0.875,3,2048,17,1.25,96,70,12000,");
    }
}
