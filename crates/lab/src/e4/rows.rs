//! The rows of `--json` and CSV: one for each pass of e2fsck, and one for its whole run.

use anyhow::Result;
use serde::Serialize;

use super::disk::DiskPass;
use super::vitals::Vital;
use super::{DirectoryBlocks, Pass, PassRow};
use crate::figures::Table;
use crate::folder::files;

/// One pass of e2fsck on one file system, or the whole run.
#[derive(Clone, Debug, Serialize)]
struct FlatRow<'a> {
    workload: &'a str,
    policy: &'a str,
    state: &'a str,
    kind: &'a str,
    seed: u64,
    scale: f64,
    pass: PassName,
    #[serde(flatten)]
    e2fsck: Pass,
    #[serde(flatten)]
    disk: DiskFigures,
    #[serde(flatten)]
    our_checker: CheckerFigures,
    /// Counts of the whole file system: only in the row of the whole run.
    #[serde(flatten)]
    whole: Option<Whole<'a>>,
}

/// A pass from 1, or the whole run.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
enum PassName {
    Number(usize),
    Total(&'static str),
}

/// The figures of [`DiskPass`]; all `None` if strace could not record e2fsck's reads.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct DiskFigures {
    reads: Option<u64>,
    read_mb: Option<f64>,
    seeks: Option<u64>,
    runs: Option<u64>,
    modelled_s: Option<f64>,
    modelled_mb_s: Option<f64>,
    is_calibrated: Option<bool>,
    disk_mb_s: Option<f64>,
    disk_positioning: Option<f64>,
}

/// The same figures of our checker, except the rates and what was calibrated.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct CheckerFigures {
    checker_reads: Option<u64>,
    checker_read_mb: Option<f64>,
    checker_seeks: Option<u64>,
    checker_runs: Option<u64>,
    checker_modelled_s: Option<f64>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Whole<'a> {
    vitals: &'a [Vital],
    directories: DirectoryBlocks,
}

impl PassRow {
    fn flat(&self) -> Vec<FlatRow<'_>> {
        let row = |pass, e2fsck, whole, of: &dyn Fn(&[DiskPass]) -> Option<DiskPass>| FlatRow {
            workload: &self.workload,
            policy: &self.policy,
            state: &self.state,
            kind: &self.kind,
            seed: self.seed,
            scale: self.scale,
            pass,
            e2fsck,
            disk: DiskFigures::of(of(&self.disk)),
            our_checker: CheckerFigures::of(of(&self.our_checker)),
            whole,
        };
        let whole = Whole { vitals: &self.vitals, directories: self.directories };
        let one = |(index, pass): (usize, &Pass)| {
            row(PassName::Number(index + 1), *pass, None, &|disk| disk.get(index).copied())
        };
        let mut rows: Vec<_> = self.passes.iter().enumerate().map(one).collect();
        let sum = |disk: &[DiskPass]| (!disk.is_empty()).then(|| DiskPass::sum(disk));
        rows.push(row(PassName::Total("total"), self.total, Some(whole), &sum));
        rows
    }
}

impl CheckerFigures {
    fn of(disk: Option<DiskPass>) -> Self {
        let Some(disk) = disk else { return Self::default() };
        Self {
            checker_reads: Some(disk.reads),
            checker_read_mb: Some(disk.read_mb),
            checker_seeks: Some(disk.seeks),
            checker_runs: Some(disk.runs),
            checker_modelled_s: Some(disk.modelled_s),
        }
    }
}

impl DiskFigures {
    fn of(disk: Option<DiskPass>) -> Self {
        let Some(disk) = disk else { return Self::default() };
        Self {
            reads: Some(disk.reads),
            read_mb: Some(disk.read_mb),
            seeks: Some(disk.seeks),
            runs: Some(disk.runs),
            modelled_s: Some(disk.modelled_s),
            modelled_mb_s: Some(disk.modelled_mb_s),
            is_calibrated: Some(disk.is_calibrated),
            disk_mb_s: Some(disk.disk_mb_s),
            disk_positioning: Some(disk.disk_positioning),
        }
    }
}

/// Every pass and every whole run as JSON, one a line.
///
/// # Errors
/// Those of the encoder. None is expected: rows contain only what it can encode.
pub fn json_lines(rows: &[PassRow]) -> Result<String> {
    let flat: Vec<FlatRow<'_>> = rows.iter().flat_map(PassRow::flat).collect();
    files::json_lines(&flat)
}

/// Every pass and every whole run as comma-separated values, one a line, without the counts of the
/// whole file system. Unknown figures are empty.
#[must_use]
pub fn csv(rows: &[PassRow]) -> String {
    let heads = [
        "workload",
        "policy",
        "state",
        "kind",
        "seed",
        "scale",
        "pass",
        "real",
        "user",
        "system",
        "read_mib",
        "rate_mib_s",
        "reads",
        "read_mb",
        "seeks",
        "runs",
        "modelled_s",
        "modelled_mb_s",
        "is_calibrated",
        "disk_mb_s",
        "disk_positioning",
        "checker_reads",
        "checker_read_mb",
        "checker_seeks",
        "checker_runs",
        "checker_modelled_s",
    ];
    let mut table = Table::new("rows", heads);
    for row in rows.iter().flat_map(PassRow::flat) {
        let (e2fsck, disk, ours) = (row.e2fsck, row.disk, row.our_checker);
        table.push([
            row.workload.to_owned(),
            row.policy.to_owned(),
            row.state.to_owned(),
            row.kind.to_owned(),
            row.seed.to_string(),
            row.scale.to_string(),
            row.pass.to_string(),
            e2fsck.real.to_string(),
            e2fsck.user.to_string(),
            e2fsck.system.to_string(),
            e2fsck.read_mib.to_string(),
            e2fsck.rate_mib_s.to_string(),
            text(disk.reads),
            text(disk.read_mb),
            text(disk.seeks),
            text(disk.runs),
            text(disk.modelled_s),
            text(disk.modelled_mb_s),
            text(disk.is_calibrated),
            text(disk.disk_mb_s),
            text(disk.disk_positioning),
            text(ours.checker_reads),
            text(ours.checker_read_mb),
            text(ours.checker_seeks),
            text(ours.checker_runs),
            text(ours.checker_modelled_s),
        ]);
    }
    table.csv()
}

fn text(figure: Option<impl ToString>) -> String {
    figure.map_or(String::new(), |figure| figure.to_string())
}

impl std::fmt::Display for PassName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Total(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::PASSES;
    use super::*;

    fn row(disk: Vec<DiskPass>) -> PassRow {
        let pass = |real| Pass { real, user: 0.5, system: 0.25, read_mib: 7.0, rate_mib_s: 3.5 };
        PassRow {
            workload: "e4".into(),
            policy: "yard".into(),
            state: crate::figures::states::FRESH.to_owned(),
            kind: "ext3".into(),
            seed: 1,
            scale: 0.5,
            passes: [1.0, 2.0, 3.0, 4.0, 5.0].map(pass).to_vec(),
            total: pass(15.0),
            vitals: vec![Vital { what: "files".into(), count: "9".into() }],
            our_checker: disk.clone(),
            disk,
            directories: DirectoryBlocks { blocks: 9, runs: 3, runs_elsewhere: 1 },
        }
    }

    fn disk() -> Vec<DiskPass> {
        let pass = |reads, modelled_s| DiskPass {
            reads,
            read_mb: 2.0,
            seeks: 1,
            runs: 1,
            modelled_s,
            modelled_mb_s: 2.0 / modelled_s,
            is_calibrated: reads == 1,
            disk_mb_s: 40.5,
            disk_positioning: 1.25,
        };
        [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, 10.0)].map(|(reads, s)| pass(reads, s)).to_vec()
    }

    /// The documented keys are in the row itself, not in objects inside the row.
    #[test]
    fn a_json_row_is_one_pass_with_its_modelled_figures() {
        let lines = json_lines(&[row(disk())]).unwrap();
        let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(rows.len(), PASSES + 1);
        let second = json!({
            "workload": "e4", "policy": "yard", "state": "fresh", "kind": "ext3", "seed": 1, "scale": 0.5,
            "pass": 2, "real": 2.0, "user": 0.5, "system": 0.25, "read_mib": 7.0, "rate_mib_s": 3.5,
            "reads": 2, "read_mb": 2.0, "seeks": 1, "runs": 1, "modelled_s": 2.0, "modelled_mb_s": 1.0,
            "is_calibrated": false, "disk_mb_s": 40.5, "disk_positioning": 1.25, "checker_reads": 2, "checker_read_mb": 2.0, "checker_seeks": 1, "checker_runs": 1,
            "checker_modelled_s": 2.0,
        });
        assert_eq!(rows[1], second);
        assert_eq!(rows[0]["is_calibrated"], true);
        let total = rows.last().unwrap();
        assert_eq!(
            (&total["pass"], &total["reads"], &total["real"]),
            (&json!("total"), &json!(15), &json!(15.0))
        );
        assert_eq!((&total["modelled_s"], &total["modelled_mb_s"]), (&json!(20.0), &json!(0.5)));
        assert_eq!(total["vitals"], json!([{"what": "files", "count": "9"}]));
        assert_eq!(total["directories"]["runs"], 3);
    }

    #[test]
    fn without_the_reads_of_e2fsck_modelled_figures_are_unknown() {
        let lines = json_lines(&[row(Vec::new())]).unwrap();
        let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
        assert_eq!((&first["pass"], &first["modelled_s"]), (&json!(1), &Value::Null));
        let csv = csv(&[row(Vec::new())]);
        assert_eq!(csv.lines().count(), 2 + PASSES);
        assert_eq!(
            csv.lines().last().unwrap(),
            "e4,yard,fresh,ext3,1,0.5,total,15,0.5,0.25,7,3.5,,,,,,,,,,,,,,"
        );
    }

    #[test]
    fn csv_has_the_figures_of_json() {
        let csv = csv(&[row(disk())]);
        assert_eq!(
            csv.lines().nth(2).unwrap(),
            "e4,yard,fresh,ext3,1,0.5,2,2,0.5,0.25,7,3.5,2,2,1,1,2,1,false,40.5,1.25,2,2,1,1,2"
        );
    }
}
