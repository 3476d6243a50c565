//! The table of `lab run e4`: the published rows and columns, then ours in the same.

use super::published::LAYOUTS;
use super::{Pass, PassRow};
use crate::figures::{Table, figure};

const FIGURES: [&str; 5] = ["real", "user", "sys", "MB", "MB/s"];

impl Pass {
    /// In the order of the published columns.
    const fn figures(&self) -> [f64; 5] {
        [self.real, self.user, self.system, self.read_mib, self.rate_mib_s]
    }
}

/// Passes down, file systems across; `None` without rows.
#[must_use]
pub fn table(rows: &[PassRow]) -> Option<Table> {
    let first = rows.first()?;
    let heads = std::iter::once("pass".to_owned())
        .chain(LAYOUTS.iter().flat_map(|layout| FIGURES.map(|figure| format!("{}: {figure}", layout.name))));
    let title = format!(
        "E4, e2fsck by pass: time in seconds (real, user, system), data read in MB, rate in MB/s; {} at scale {}",
        first.policy, first.scale
    );
    let mut table = Table::new(title, heads);
    let name = |pass: usize| if pass < 5 { (pass + 1).to_string() } else { "total".to_owned() };
    for pass in 0..6 {
        let cells = LAYOUTS.iter().flat_map(|layout| layout.passes[pass].map(|value| value.to_string()));
        table.push(std::iter::once(format!("published: {}", name(pass))).chain(cells));
    }
    for pass in 0..6 {
        let cells = LAYOUTS.iter().flat_map(|layout| {
            // Our policies are those after the first allocator of ext4.
            let kind = if layout.name == "ext4 new allocator" { "ext4" } else { layout.name };
            match rows.iter().find(|row| row.kind == kind) {
                Some(row) => row.passes.get(pass).unwrap_or(&row.total).figures().map(figure),
                None => FIGURES.map(|_| "-".to_owned()),
            }
        });
        table.push(std::iter::once(format!("ours: {}", name(pass))).chain(cells));
    }
    table.note(
        "published in 2009: 312,820 files on 32 GB of a disk; real, user and sys in seconds. Ours: a made-up tree of the same \
         shape, e2fsck on an image file that is in memory, so that seeks cost nothing: compare what is read. Both of ours \
         have the inode allocator of today; ext4 old, its first allocator, is none of our policies.",
    );
    Some(table)
}

/// Every row as comma-separated values, a line a pass.
#[must_use]
pub fn csv(rows: &[PassRow]) -> String {
    let heads = [
        "workload",
        "policy",
        "kind",
        "seed",
        "scale",
        "pass",
        "real",
        "user",
        "system",
        "read_mib",
        "rate_mib_s",
    ];
    let mut table = Table::new("rows", heads);
    for row in rows {
        for (index, pass) in row.passes.iter().chain([&row.total]).enumerate() {
            let name = if index < row.passes.len() { (index + 1).to_string() } else { "total".to_owned() };
            let cells = [
                row.workload.clone(),
                row.policy.clone(),
                row.kind.clone(),
                row.seed.to_string(),
                row.scale.to_string(),
                name,
            ];
            table.push(cells.into_iter().chain(pass.figures().map(|value| value.to_string())));
        }
    }
    table.csv()
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
            kind: kind.into(),
            seed: 1,
            scale: 0.5,
            passes: (1..=5).map(|number| pass(f64::from(number))).collect(),
            total: pass(15.0),
        };
        let rows = [row("ext3"), row("ext4")];
        let table = table(&rows).unwrap();
        assert_eq!((table.heads.len(), table.rows.len()), (16, 12));
        assert_eq!(table.rows[1][..6], ["published: 2", "5.91", "1.74", "2.56", "133", "22.51"]);
        assert_eq!(table.rows[5][11..], ["13.78", "7.33", "4.19", "216", "15.68"]);
        assert_eq!(table.rows[7][..3], ["ours: 2", "2", "0.5000"]);
        assert_eq!(table.rows[11][5..12], ["3.50", "-", "-", "-", "-", "-", "15"]);
        assert_eq!(csv(&rows).lines().count(), 13);
        assert_eq!(csv(&rows).lines().nth(6).unwrap(), "e4,yard,ext3,1,0.5,total,15,0.5,0.25,7,3.5");
    }
}
