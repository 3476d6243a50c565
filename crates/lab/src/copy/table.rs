//! The tables of `lab run copy`: what the maps show after each copy, with published figures above
//! ours; the effect on flash and thin devices; the cost of reading; and how the maps depend on the
//! manner of copying.

use blockyard_disk::num::count_as_f64;
use blockyard_inspect::units;

use super::published::COPY_MAPS;
use super::{CopyRow, Reading};
use crate::figures::{Table, figure};

/// Every table.
#[must_use]
pub fn tables(rows: &[CopyRow]) -> Vec<Table> {
    let plain: Vec<&CopyRow> = rows.iter().filter(|row| row.variant.is_empty()).collect();
    let tables = [maps(&plain), devices(&plain), readings(&plain), sensitivity(rows)];
    tables.into_iter().flatten().collect()
}

fn share(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.2}"))
}

/// The published rows, and below them `rows`; `None` if `rows` is empty.
fn maps(rows: &[&CopyRow]) -> Option<Table> {
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

/// How writes are spread, and their effect on flash and thin devices, for each way of discarding
/// free space; `None` if no row has such figures.
fn devices(rows: &[&CopyRow]) -> Option<Table> {
    let first = rows.iter().find(|row| !row.discard.is_empty())?;
    let mut heads =
        ["policy", "copy", "groups a transaction", "entropy of writes", "Gini"].map(str::to_owned).to_vec();
    for told in &first.discard {
        let way = told.discard.name();
        let names = ["write amplification", "erasures of a block", "thin", "segment told"];
        heads.extend(names.map(|name| format!("{name}, {way}")));
    }
    let mut table =
        Table::new("copy: what flash and a thin device make of it, by discard", heads).with_keys(2);
    for row in rows {
        let mut cells = vec![
            row.policy.clone(),
            row.copy.to_string(),
            row.groups_per_transaction.map_or("-".to_owned(), |groups| format!("{groups:.1}")),
            format!("{:.3}", row.write_entropy),
            format!("{:.3}", row.write_gini),
        ];
        for told in &row.discard {
            cells.extend([
                told.write_amplification.map_or("-".to_owned(), |factor| format!("{factor:.3}")),
                format!("{}-{}", told.wear_spread.0, told.wear_spread.1),
                units::kib(count_as_f64(told.thin_mib) * 1024.0),
                told.segment_kb_mean.map_or("-".to_owned(), units::kib),
            ]);
        }
        table.push(cells);
    }
    table.note(
        "entropy is that of the bytes written to each MiB since the copies began: 1 if each got the same; Gini is 0 then. Flash: a page \
         map of 4 KiB with greedy collection in blocks of 32 MiB and 7.3 % of spare; thin: chunks of 1 MiB. A device is told of no \
         free space (none), of what each transaction freed (online), or of all free space after each copy (periodic).",
    );
    Some(table)
}

/// The cost of reading the files back, walking the tree, and checking the image; `None` if no row
/// has it.
fn readings(rows: &[&CopyRow]) -> Option<Table> {
    rows.iter().find(|row| row.readings.check.reads > 0)?;
    let heads = [
        "policy",
        "copy",
        "read back: seeks",
        "read back: mean seek",
        "read back: disk",
        "read back: SSD",
        "walk: seeks",
        "walk: disk",
        "walk: SSD",
        "check: seeks",
        "check: disk",
        "check: SSD",
    ];
    let title = "copy: files read back, tree walked, image checked, seconds on a modelled disk and an SSD";
    let mut table = Table::new(title, heads).with_keys(2);
    for row in rows {
        let of = |reading: &Reading| {
            [reading.seeks.to_string(), format!("{:.2}", reading.hdd_s), format!("{:.3}", reading.ssd_s)]
        };
        let [back, disk, ssd] = of(&row.readings.read_back);
        let distance = units::kib(row.readings.read_back.seek_mib_mean * 1024.0);
        let cells = [row.policy.clone(), row.copy.to_string(), back, distance, disk, ssd];
        table.push(cells.into_iter().chain(of(&row.readings.walk)).chain(of(&row.readings.check)));
    }
    table.note(
        "one request at a time; the host in front of the device caches pages and reads ahead up to 128 KiB; CPU time is left out. \
         The disk is desktop-7200-2009, the SSD sata-ssd-2018.",
    );
    Some(table)
}

/// The map figures of each policy in each manner. A cell has the figures of all copies. `None` if
/// there is only the unchanged manner.
fn sensitivity(rows: &[CopyRow]) -> Option<Table> {
    if rows.iter().all(|row| row.variant.is_empty()) {
        return None;
    }
    let heads = ["changed", "policy", "boundaries", "empty groups", "overlap"];
    let mut table = Table::new("copy: what the map depends on, copy by copy", heads).with_keys(2);
    for arm in rows.chunk_by(|one, next| one.policy == next.policy && one.variant == next.variant) {
        let Some(first) = arm.first() else { continue };
        let joined = |cell: fn(&CopyRow) -> String| arm.iter().map(cell).collect::<Vec<_>>().join(", ");
        let changed = if first.variant.is_empty() { "nothing" } else { &first.variant };
        table.push([
            changed.to_owned(),
            first.policy.clone(),
            joined(|row| row.boundaries.to_string()),
            joined(|row| row.empty_groups.to_string()),
            joined(|row| share(row.overlap_previous)),
        ]);
    }
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
            "state",
            "variant",
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
            "groups_per_transaction",
            "write_entropy",
            "write_gini",
            "read_back_hdd_s",
            "walk_hdd_s",
            "check_hdd_s",
        ],
    );
    let optional = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    for row in rows {
        table.push([
            row.workload.clone(),
            row.policy.clone(),
            row.state.clone(),
            row.variant.clone(),
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
            optional(row.groups_per_transaction),
            row.write_entropy.to_string(),
            row.write_gini.to_string(),
            row.readings.read_back.hdd_s.to_string(),
            row.readings.walk.hdd_s.to_string(),
            row.readings.check.hdd_s.to_string(),
        ]);
    }
    table.csv()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::{Discard, Readings, Told};
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
            free_by_length: Vec::new(),
            reuse_interval_mib_p50: Some(3.0),
            reuse_interval_mib_group_mean: Some(2048.0),
            reuses: 17,
            extents_per_file: 1.25,
            mean_extent_kb: 96.0,
            free_extents: 70,
            avg_free_extent_kb: 12_000,
            score: Some(40.0),
            variant: String::new(),
            groups_per_transaction: Some(2.5),
            write_entropy: 0.5,
            write_gini: 0.25,
            discard: vec![Told {
                discard: Discard::Online,
                segments: 3,
                segment_kb_mean: Some(512.0),
                thin_mib: 2048,
                write_amplification: Some(1.25),
                wear_spread: (1, 4),
            }],
            readings: Readings {
                read_back: Reading {
                    seeks: 7,
                    seek_mib_mean: 3.0,
                    hdd_s: 1.5,
                    ssd_s: 0.25,
                    ..Reading::default()
                },
                check: Reading { reads: 9, seeks: 8, hdd_s: 2.5, ssd_s: 0.5, ..Reading::default() },
                ..Readings::default()
            },
        }
    }

    #[test]
    fn devices_and_readings_have_a_table_each() {
        let tables = tables(&[row(1, None)]);
        let titles: Vec<&str> = tables.iter().map(|table| table.title.as_str()).collect();
        assert_eq!(titles.len(), 3, "{titles:?}");
        let told = ["yard", "1", "2.5", "0.500", "0.250", "1.250", "1-4", "2.00 GiB", "512 KiB"];
        assert_eq!(tables[1].rows, [told.map(str::to_owned)]);
        assert_eq!(tables[1].heads[5], "write amplification, online");
        let read =
            ["yard", "1", "7", "3.00 MiB", "1.50", "0.250", "0", "0.00", "0.000", "8", "2.50", "0.500"];
        assert_eq!(tables[2].rows, [read.map(str::to_owned)]);
    }

    #[test]
    fn variations_have_their_copies_in_a_cell() {
        let other = |copy, overlap| CopyRow { variant: "one CPU slot".into(), ..row(copy, overlap) };
        let rows = [row(1, None), row(2, Some(0.5)), other(1, None), other(2, Some(0.25))];
        let tables = tables(&rows);
        assert_eq!(tables[0].rows.len(), 8, "published rows, and rows of the unchanged manner");
        let [.., table] = &tables[..] else { panic!("tables") };
        assert_eq!(table.rows[0], ["nothing", "yard", "126, 126", "542, 542", "-, 0.50"]);
        assert_eq!(table.rows[1], ["one CPU slot", "yard", "126, 126", "542, 542", "-, 0.25"]);
    }

    #[test]
    fn published_maps_stand_above_ours() {
        assert!(tables(&[]).is_empty());
        let table = &tables(&[row(1, None), CopyRow { score: None, ..row(2, Some(0.63)) }])[0];
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
            "workload,policy,state,variant,copy,seed,files,bytes,boundaries,empty_groups,overlap_previous,free_share_long_runs,\
             reuse_interval_mib_p50,reuse_interval_mib_group_mean,reuses,extents_per_file,mean_extent_kb,free_extents,\
             avg_free_extent_kb,score,groups_per_transaction,write_entropy,write_gini,read_back_hdd_s,walk_hdd_s,check_hdd_s"
        );
        assert_eq!(
            lines[1],
            "copy,yard,fresh,,2,9,1,28991029248,126,542,0.5,0.875,3,2048,17,1.25,96,70,12000,40,2.5,0.5,0.25,1.5,0,2.5"
        );
        assert_eq!(
            lines[2],
            "copy,yard,fresh,,1,9,1,28991029248,126,542,,0.875,3,2048,17,1.25,96,70,12000,,2.5,0.5,0.25,1.5,0,2.5"
        );
    }
}
