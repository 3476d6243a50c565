//! The tables of `lab run e4`: the published rows and columns, then ours in the same form.

use super::disk::DiskPass;
use super::published::{LAYOUTS, Layout};
use super::{PASSES, Pass, PassRow};
use crate::figures::{Table, figure};

const FIGURES: [&str; 5] = ["real", "user", "sys", "MB", "MB/s"];

impl Pass {
    /// The figures in the order of the published columns.
    const fn figures(&self) -> [f64; 5] {
        [self.real, self.user, self.system, self.read_mib, self.rate_mib_s]
    }
}

/// A column of the tables: a published layout, ours, or both.
struct Column<'a> {
    name: String,
    published: Option<&'static Layout>,
    row: Option<&'a PassRow>,
}

/// The published layouts next to ours, then those of ours that were not published.
fn columns(rows: &[PassRow]) -> Vec<Column<'_>> {
    let published = LAYOUTS.iter().map(|layout| Column {
        name: layout.name.to_owned(),
        published: Some(layout),
        row: rows.iter().find(|row| row.kind == layout.kind),
    });
    let is_more = |row: &&PassRow| LAYOUTS.iter().all(|layout| layout.kind != row.kind);
    let more = rows.iter().filter(is_more).map(|row| Column {
        name: format!("{}, {}", row.policy, row.kind),
        published: None,
        row: Some(row),
    });
    published.chain(more).collect()
}

/// One row for each pass, columns for file systems; `None` without rows.
#[must_use]
pub fn table(rows: &[PassRow]) -> Option<Table> {
    let first = rows.first()?;
    let columns = columns(rows);
    let heads = std::iter::once("pass".to_owned())
        .chain(columns.iter().flat_map(|column| FIGURES.map(|figure| format!("{}: {figure}", column.name))));
    let title = format!(
        "E4, e2fsck by pass: time in seconds (real, user, system), data read in MB, rate in MB/s; at scale {}",
        first.scale
    );
    let mut table = Table::new(title, heads);
    let name = |pass: usize| if pass < 5 { (pass + 1).to_string() } else { "total".to_owned() };
    let none = || FIGURES.map(|_| "-".to_owned());
    for pass in 0..6 {
        let cells = columns.iter().flat_map(|column| match column.published {
            Some(layout) => layout.passes[pass].0.map(|value| value.to_string()),
            None => none(),
        });
        table.push(std::iter::once(format!("published: {}", name(pass))).chain(cells));
    }
    for pass in 0..6 {
        let cells = columns.iter().flat_map(|column| match column.row {
            Some(row) => row.passes.get(pass).unwrap_or(&row.total).figures().map(figure),
            None => none(),
        });
        table.push(std::iter::once(format!("ours: {}", name(pass))).chain(cells));
    }
    table.note(
        "published in 2009: 312,820 files on 32 GB of a disk; real, user and sys in seconds. Ours: a made-up tree of the same \
         shape, placed by the policies ext3, ext4-2008 and ext4-2009, e2fsck on an image file that is in memory, so that seeks \
         cost nothing: compare what is read; the next table has the seeks.",
    );
    Some(table)
}

/// Seconds of I/O by pass on a modelled disk next to the published ones; `None` if e2fsck's reads
/// were not seen.
#[must_use]
pub fn modelled(rows: &[PassRow]) -> Option<Table> {
    let first = rows.first()?;
    if rows.iter().any(|row| row.disk.len() != PASSES) {
        return None;
    }
    let columns = columns(rows);
    let heads = columns.iter().flat_map(|column| {
        let published = column.published.map(|_| ["I/O published", "total published"]);
        let total = column.published.map(|_| "total");
        let ours = column
            .row
            .map(|_| ["I/O modelled"].into_iter().chain(total).chain(["disk reads", "MB", "seeks", "runs"]));
        let heads = published.into_iter().flatten().chain(ours.into_iter().flatten());
        heads.map(|head| format!("{}: {head}", column.name)).collect::<Vec<_>>()
    });
    let title =
        format!("E4, seconds of I/O by pass on a modelled disk, and in all; at scale {}", first.scale);
    let mut table = Table::new(title, std::iter::once("pass".to_owned()).chain(heads));
    for pass in 1..=PASSES + 1 {
        let name = if pass > PASSES { "total".to_owned() } else { pass.to_string() };
        let cells = columns.iter().flat_map(|column| modelled_cells(column, pass, first.scale));
        table.push(std::iter::once(name).chain(cells));
    }
    table.note(
        "Published: real less user and system, and real, at full scale times the scale. Modelled: e2fsck's reads in its order, as \
         strace sees them, on a notebook disk (what the host has is not read again, neighbours are read together up to 128 KiB). Its \
         rate and its positioning are calibrated on the marked cells (positioning only where our layout has the published seeks, else \
         it is the model's); all others are predictions. A total is the modelled \
         I/O plus the published seconds of the processor.",
    );
    Some(table)
}

/// The cells of a column in the row of a pass (from 1) or of the total.
fn modelled_cells(column: &Column<'_>, pass: usize, scale: f64) -> Vec<String> {
    let seconds = |value: f64| format!("{value:.2}");
    let published = column.published.map(|layout| layout.passes[pass - 1]);
    let mut cells = Vec::new();
    if let Some(published) = published {
        cells.extend([seconds(published.io() * scale), seconds(published.0[0] * scale)]);
    }
    let Some(row) = column.row else { return cells };
    let disk = row.disk.get(pass - 1).copied().unwrap_or_else(|| DiskPass::sum(&row.disk));
    let mark = if disk.is_calibrated { " (calibrated)" } else { "" };
    cells.push(seconds(disk.modelled_s) + mark);
    cells.extend(published.map(|published| seconds(disk.modelled_s + published.cpu() * scale)));
    cells.push(disk.reads.to_string());
    cells.push(format!("{:.0}", disk.read_mb));
    cells.push(disk.seeks.to_string());
    cells.push(disk.runs.to_string());
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_passes_stand_above_ours() {
        let pass = |real| Pass { real, user: 0.5, system: 0.25, read_mib: 7.0, rate_mib_s: 3.5 };
        let row = |kind: &str| PassRow {
            workload: "e4".into(),
            policy: "yard".into(),
            state: crate::figures::states::FRESH.to_owned(),
            kind: kind.into(),
            seed: 1,
            scale: 0.5,
            passes: (1..=5).map(|number| pass(f64::from(number))).collect(),
            total: pass(15.0),
            vitals: Vec::new(),
            disk: Vec::new(),
            directories: super::super::DirectoryBlocks::default(),
        };
        let rows = [row("ext3"), row("ext4-2009")];
        let table = table(&rows).unwrap();
        assert_eq!((table.heads.len(), table.rows.len()), (16, 12));
        assert_eq!(table.rows[1][..6], ["published: 2", "5.91", "1.74", "2.56", "133", "22.51"]);
        assert_eq!(table.rows[5][11..], ["13.78", "7.33", "4.19", "216", "15.68"]);
        assert_eq!(table.rows[7][..3], ["ours: 2", "2", "0.5000"]);
        assert_eq!(table.rows[11][5..12], ["3.50", "-", "-", "-", "-", "-", "15"]);
        assert_eq!(modelled(&rows), None, "nothing was seen");
    }

    #[test]
    fn modelled_seconds_stand_beside_the_published_ones_and_say_which_are_fitted() {
        let disk = |seconds| DiskPass {
            reads: 3,
            read_mb: 2.0,
            seeks: 1,
            runs: 1,
            modelled_s: seconds,
            modelled_mb_s: 1.0,
            is_calibrated: false,
        };
        let row = |kind: &str, calibrated: usize| PassRow {
            workload: "e4".into(),
            policy: "yard".into(),
            state: crate::figures::states::FRESH.to_owned(),
            kind: kind.into(),
            seed: 1,
            scale: 1.0,
            passes: vec![Pass::default(); PASSES],
            total: Pass::default(),
            vitals: Vec::new(),
            disk: (1..=5)
                .map(|number| DiskPass {
                    is_calibrated: number == calibrated,
                    ..disk(f64::from(u8::try_from(number).unwrap()))
                })
                .collect(),
            directories: super::super::DirectoryBlocks { blocks: 9, runs: 3, runs_elsewhere: 1 },
        };
        let rows = [row("ext3", 1), row("ext4-2009", 2), row("linear prefix", 0)];
        let table = modelled(&rows).unwrap();
        assert_eq!((table.heads.len(), table.rows.len()), (1 + 8 + 2 + 8 + 5, 6));
        assert_eq!(
            table.heads[19..21],
            ["yard, linear prefix: I/O modelled", "yard, linear prefix: disk reads"]
        );
        assert_eq!(table.rows[0][..5], ["1", "83.13", "108.40", "1.00 (calibrated)", "26.27"]);
        assert_eq!(table.rows[1][9..14], ["7.26", "13.34", "0.51", "4.24", "2.00 (calibrated)"]);
        let marked = table.rows.iter().flatten().filter(|cell| cell.contains("calibrated")).count();
        assert_eq!(marked, 2);
        assert_eq!(table.rows[5][3..6], ["15.00", "46.00", "15"]);
    }
}
