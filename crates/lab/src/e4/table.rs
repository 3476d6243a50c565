//! The tables of `lab run e4`: the published rows and columns, then ours in the same form.

use super::disk::DiskPass;
use super::published::{LAYOUTS, Layout};
use super::{PASSES, Pass, PassRow};
use crate::figures::{Table, figure};

const FIGURES: [&str; 5] = ["real", "user", "sys", "MB", "MB/s"];
/// Heads of the tables of modelled seconds.
const MODELLED: [&str; 8] =
    ["published I/O", "published total", "I/O modelled", "total", "disk reads", "MB", "seeks", "runs"];
const OUR_CHECKER: [&str; 6] = ["I/O of e2fsck", "I/O modelled", "disk reads", "MB", "seeks", "runs"];

impl Pass {
    /// The figures in the order of the published columns.
    const fn figures(&self) -> [f64; 5] {
        [self.real, self.user, self.system, self.read_mib, self.rate_mib_s]
    }
}

/// A file system of the tables: a published layout, ours, or both.
struct Column<'a> {
    name: String,
    published: Option<&'static Layout>,
    row: Option<&'a PassRow>,
}

/// The published layouts next to ours, then our layouts that were not published.
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

/// A row for each pass of each file system, published figures first; `None` without rows.
#[must_use]
pub fn table(rows: &[PassRow]) -> Option<Table> {
    let first = rows.first()?;
    let heads = ["published", "ours"].iter().flat_map(|whose| FIGURES.map(|name| format!("{whose} {name}")));
    let title = format!(
        "E4, e2fsck by pass: time in seconds (real, user, system), data read in MB, rate in MB/s; at scale {}",
        first.scale
    );
    let mut table = by_pass(title, heads);
    let none = || FIGURES.map(|_| "-".to_owned());
    for (pass, column) in passes_of(&columns(rows)) {
        let published = column
            .published
            .map_or_else(none, |layout| layout.passes[pass - 1].0.map(|value| value.to_string()));
        let ours = column
            .row
            .map_or_else(none, |row| row.passes.get(pass - 1).unwrap_or(&row.total).figures().map(figure));
        table.push(names(pass, column).into_iter().chain(published).chain(ours));
    }
    table.note(
        "published in 2009: 312,820 files on 32 GB of a disk; real, user and sys in seconds. Ours: a made-up tree of the same \
         shape, placed by the policies ext3, ext4-2008 and ext4-2009, e2fsck on an image file that is in memory, so that seeks \
         cost nothing: compare what is read; the next table has the seeks.",
    );
    Some(table)
}

/// Two tables of the seconds of I/O by pass on a modelled disk. The first has the seconds of e2fsck
/// next to the published ones, the second those of our checker next to those of e2fsck. Rows of an
/// earlier version have only the first table, and rows without e2fsck's reads have none.
#[must_use]
pub fn modelled(rows: &[PassRow]) -> Vec<Table> {
    let Some(first) = rows.first().filter(|_| rows.iter().all(|row| row.disk.len() == PASSES)) else {
        return Vec::new();
    };
    let scale = first.scale;
    let columns = columns(rows);
    let title = format!("E4, seconds of I/O by pass on a modelled disk, and in all; at scale {scale}");
    let mut e2fsck = by_pass(title, MODELLED);
    let title = format!("E4, seconds of I/O of our checker by pass on the same disk; at scale {scale}");
    let mut our_checker = by_pass(title, OUR_CHECKER);
    for (pass, column) in passes_of(&columns) {
        e2fsck.push(names(pass, column).into_iter().chain(of_e2fsck(column, pass, scale)));
        our_checker.push(names(pass, column).into_iter().chain(of_our_checker(column, pass)));
    }
    let disk = pass_of(&first.disk, 1);
    let fitted = if disk.disk_mb_s > 0.0 {
        format!(
            ": {:.1} MB/s at the edge, and {:.2} times the model's time for a seek or a turn",
            disk.disk_mb_s, disk.disk_positioning
        )
    } else {
        // Rows of an earlier version do not have these values.
        String::new()
    };
    e2fsck.note(format!(
        "Published: I/O is real less user and system, total is real; both are multiplied by the scale. Modelled: e2fsck's reads in its order, as \
         strace sees them, on a notebook disk (the host reads no page twice, and reads neighbours together, up to 128 KiB). Its \
         rate and its positioning are calibrated on the marked cells (positioning only if our layout has enough seeks to take the \
         published time; otherwise it is the model's){fitted}. All other cells are predictions. A total is the modelled I/O plus the \
         published CPU seconds times the scale.",
    ));
    our_checker.note(
        "Our checker reads in one thread. The disk, the host and the CPU time between reads are those of the table before, so \
         only the reads differ. None of this was published.",
    );
    // Rows of an earlier version have no figures of our checker.
    let has_ours = rows.iter().all(|row| row.our_checker.len() == PASSES);
    std::iter::once(e2fsck).chain(has_ours.then_some(our_checker)).collect()
}

/// A table whose rows are named by pass and file system.
fn by_pass(title: String, heads: impl IntoIterator<Item = impl Into<String>>) -> Table {
    let heads = heads.into_iter().map(Into::into);
    Table::new(title, ["pass", "file system"].map(str::to_owned).into_iter().chain(heads)).with_keys(2)
}

/// Each pass (from 1; the last is the whole run) of each file system.
fn passes_of<'c, 'a>(columns: &'c [Column<'a>]) -> impl Iterator<Item = (usize, &'c Column<'a>)> {
    (1..=PASSES + 1).flat_map(move |pass| columns.iter().map(move |column| (pass, column)))
}

fn names(pass: usize, column: &Column<'_>) -> [String; 2] {
    let pass = if pass > PASSES { "total".to_owned() } else { pass.to_string() };
    [pass, column.name.clone()]
}

/// The cells of [`MODELLED`] in the row of a pass (from 1) or of the total.
fn of_e2fsck(column: &Column<'_>, pass: usize, scale: f64) -> [String; MODELLED.len()] {
    let published = column.published.map(|layout| layout.passes[pass - 1]);
    let io = seconds(published.map(|published| published.io() * scale));
    let total = seconds(published.map(|published| published.0[0] * scale));
    let disk = column.row.map(|row| pass_of(&row.disk, pass));
    let mark = if disk.is_some_and(|disk| disk.is_calibrated) { " (calibrated)" } else { "" };
    let ours = seconds(disk.map(|disk| disk.modelled_s)) + mark;
    let both = disk.zip(published);
    let ours_total = seconds(both.map(|(disk, published)| disk.modelled_s + published.cpu() * scale));
    let [reads, mb, seeks, runs] = amounts(disk);
    [io, total, ours, ours_total, reads, mb, seeks, runs]
}

/// The cells of [`OUR_CHECKER`] in the row of a pass (from 1) or of the total.
fn of_our_checker(column: &Column<'_>, pass: usize) -> [String; OUR_CHECKER.len()] {
    let e2fsck = column.row.map(|row| pass_of(&row.disk, pass).modelled_s);
    let ours = column.row.map(|row| pass_of(&row.our_checker, pass));
    let [reads, mb, seeks, runs] = amounts(ours);
    [seconds(e2fsck), seconds(ours.map(|ours| ours.modelled_s)), reads, mb, seeks, runs]
}

fn pass_of(disk: &[DiskPass], pass: usize) -> DiskPass {
    disk.get(pass - 1).copied().unwrap_or_else(|| DiskPass::sum(disk))
}

fn seconds(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.2}"))
}

/// Requests, MB, seeks and runs.
fn amounts(disk: Option<DiskPass>) -> [String; 4] {
    disk.map_or_else(
        || ["-"; 4].map(str::to_owned),
        |disk| {
            let mb = format!("{:.0}", disk.read_mb);
            [disk.reads.to_string(), mb, disk.seeks.to_string(), disk.runs.to_string()]
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(kind: &str) -> PassRow {
        PassRow {
            workload: "e4".into(),
            policy: "yard".into(),
            state: crate::figures::states::FRESH.to_owned(),
            kind: kind.into(),
            seed: 1,
            scale: 1.0,
            passes: vec![Pass::default(); PASSES],
            total: Pass::default(),
            vitals: Vec::new(),
            disk: Vec::new(),
            our_checker: Vec::new(),
            directories: super::super::DirectoryBlocks::default(),
        }
    }

    /// A regression: a block of columns for each file system made 26 columns, and half of all cells
    /// were empty.
    #[test]
    fn published_passes_stand_beside_ours() {
        let pass = |real| Pass { real, user: 0.5, system: 0.25, read_mib: 7.0, rate_mib_s: 3.5 };
        let passes: Vec<Pass> = (1..=5).map(|number| pass(f64::from(number))).collect();
        let row = |kind| PassRow { passes: passes.clone(), total: pass(15.0), ..row(kind) };
        let rows = [row("ext3"), row("ext4-2009"), row("linear prefix")];
        let table = table(&rows).unwrap();
        assert_eq!((table.heads.len(), table.rows.len()), (12, 24));
        assert_eq!(table.heads[6..8], ["published MB/s", "ours real"]);
        assert_eq!(table.rows[4][..7], ["2", "ext3", "5.91", "1.74", "2.56", "133", "22.51"]);
        assert_eq!(table.rows[4][7..], ["2", "0.5000", "0.2500", "7", "3.50"]);
        assert_eq!(table.rows[21][..3], ["total", "ext4 old allocator", "23.06"]);
        assert_eq!(table.rows[21][7..], ["-"; 5], "not measured");
        assert_eq!(table.rows[23][..3], ["total", "yard, linear prefix", "-"]);
        assert_eq!(table.rows[23][7], "15");
        assert!(modelled(&rows).is_empty(), "nothing was seen");
    }

    #[test]
    fn modelled_seconds_stand_beside_the_published_ones_and_say_which_are_fitted() {
        let pass = |number: u8, calibrated: u8| DiskPass {
            reads: 3,
            read_mb: 2.0,
            seeks: 1,
            runs: 1,
            modelled_s: f64::from(number),
            modelled_mb_s: 1.0,
            is_calibrated: number == calibrated,
            disk_mb_s: 40.5,
            disk_positioning: 1.25,
        };
        let row = |kind, calibrated| PassRow {
            disk: (1..=5).map(|number| pass(number, calibrated)).collect(),
            our_checker: (1..=5).map(|number| pass(number * 2, 0)).collect(),
            ..row(kind)
        };
        let rows = [row("ext3", 1), row("ext4-2009", 2), row("linear prefix", 0)];
        let [table, ours] = &modelled(&rows)[..] else { panic!("two tables") };
        assert_eq!((table.heads.len(), table.rows.len()), (10, 24));
        assert!(table.notes[0].contains("40.5 MB/s at the edge, and 1.25 times"), "{:?}", table.notes);
        assert_eq!(
            table.rows[0],
            ["1", "ext3", "83.13", "108.40", "1.00 (calibrated)", "26.27", "3", "2", "1", "1"]
        );
        assert_eq!(table.rows[6][1..6], ["ext4 new allocator", "0.51", "4.24", "2.00 (calibrated)", "5.73"]);
        let marked = table.rows.iter().flatten().filter(|cell| cell.contains("calibrated")).count();
        assert_eq!(marked, 2);
        assert_eq!(table.rows[20][..7], ["total", "ext3", "87.15", "118.15", "15.00", "46.00", "15"]);
        assert_eq!(table.rows[7][..6], ["2", "yard, linear prefix", "-", "-", "2.00", "-"]);
        assert_eq!(ours.rows[0], ["1", "ext3", "1.00", "2.00", "3", "2", "1", "1"]);
        assert_eq!(ours.rows[20][..5], ["total", "ext3", "15.00", "30.00", "15"]);
        let older = rows.map(|row| PassRow { our_checker: Vec::new(), ..row });
        assert_eq!(modelled(&older).len(), 1, "an earlier version had no reads of ours");
    }
}
