//! The published experiments: which cells to run, and their tables with our figures next to the
//! published ones. One experiment, `yard`, is ours and has no published figures.
//!
//! Published rates come from other machines and are in rows and columns marked as published.
//! Compare how figures change with workers and policies, never our rate with a published one.

use crate::figures::Table;
use crate::figures::plot::Chart;
use crate::figures::row::Row;
use crate::figures::states::{beside, is_fresh};
use crate::run::{Plan, Setup};
use crate::{e1, e2, yard};

/// A published experiment, or one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experiment {
    /// E1: the scalability series of Linux 6.17 (July 2025).
    Series,
    /// E1 patch by patch, in virtual time.
    Patches,
    /// E2: the three fio jobs of the comparison with round-robin allocation (February 2026). That
    /// comparison also has allocation maps, which `lab run copy` repeats.
    Rotation,
    /// `yard` compared with other policies, by every figure that it is judged by.
    Yard,
}

impl Experiment {
    /// Names on the command line.
    pub const NAMES: [&str; 4] = ["e1", "e1-patches", "e2", "yard"];

    /// The experiment of that name; `None` if there is none.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        match name {
            "e1" => Some(Self::Series),
            "e1-patches" => Some(Self::Patches),
            "e2" => Some(Self::Rotation),
            "yard" => Some(Self::Yard),
            _ => None,
        }
    }

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Series => "e1",
            Self::Patches => "e1-patches",
            Self::Rotation => "e2",
            Self::Yard => "yard",
        }
    }

    /// The plans to run, one after the other.
    #[must_use]
    pub fn plans(self, setup: &Setup) -> Vec<Plan> {
        match self {
            Self::Series => e1::plans(setup),
            Self::Patches => e1::patches::plans(setup),
            Self::Rotation => e2::plans(setup),
            Self::Yard => yard::plans(setup),
        }
    }

    /// The published tables with our figures next to them; for `yard`, tables of our figures.
    #[must_use]
    pub fn tables(self, rows: &[Row]) -> Vec<Table> {
        match self {
            Self::Series => e1::tables(rows),
            Self::Patches => e1::patches::tables(rows),
            Self::Rotation => e2::tables(rows),
            Self::Yard => yard::tables(rows),
        }
    }

    /// The same tables, with figures of fresh and aged images next to each other. The tables of
    /// `yard` already have the states of images in their rows.
    #[must_use]
    pub fn tables_by_state(self, rows: &[Row]) -> Vec<Table> {
        match self {
            Self::Yard => yard::tables(rows),
            other => beside(rows, |rows| other.tables(rows)),
        }
    }

    /// Whether the experiment's tables have every rate of these rows, so that tables and plots of
    /// each workload would only repeat the rates.
    pub(crate) fn has_every_rate(self, rows: &[Row]) -> bool {
        self == Self::Series && e1::is_sensitivity(rows)
    }

    /// The charts of the experiment: of E1 with the published figures and ours on one axis, of E1
    /// patch by patch with ours alone. They show fresh images only, as the published figures do.
    #[must_use]
    pub fn charts(self, rows: &[Row]) -> Vec<Chart> {
        let rows: Vec<Row> = rows.iter().filter(|row| is_fresh(&row.state)).cloned().collect();
        match self {
            Self::Series if e1::is_sensitivity(&rows) => Vec::new(),
            Self::Series => vec![e1::chart(&rows)],
            Self::Patches => vec![e1::patches::chart(&rows)],
            Self::Rotation | Self::Yard => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{ImageSource, run};
    use crate::runner::Limit;

    fn small() -> Setup {
        Setup {
            scale: 0.0005,
            limit: Limit { time: None, ops_per_worker: Some(300), fsync_end: false },
            workers: Some(vec![1, 2]),
            repeat: 1,
            seed: 3,
            rotational: false,
            policies: None,
            devices: Vec::new(),
            sensitivity: false,
            image: Some(ImageSource::memory(64 << 30, 3)),
        }
    }

    fn rows(experiment: Experiment) -> Vec<Row> {
        let plans = experiment.plans(&small());
        plans.iter().flat_map(|plan| run(plan, |_, _| ()).unwrap().rows).collect()
    }

    fn cell<'a>(table: &'a Table, row: usize, head: &str) -> &'a str {
        let column = table.heads.iter().position(|name| name == head).unwrap_or_else(|| panic!("{head}"));
        &table.rows[row][column]
    }

    /// The tables keep the published rows and columns in their order and add ours.
    #[test]
    fn e1_has_the_published_rows_and_columns() {
        let tables = Experiment::Series.tables(&rows(Experiment::Series));
        let [contention, series, append, predicted @ ..] = &tables[..] else { panic!("three tables") };
        assert_eq!(predicted.len(), 5);
        // One and two workers are fewer than all CPUs, so the table of all CPUs has no figure of
        // ours.
        assert_eq!(predicted[0].heads, ["workers", "1", "2"]);
        assert!(predicted[0].rows[9][1..].iter().all(|cell| cell.parse::<f64>().is_ok()));
        assert_eq!(predicted[1].rows[2][..4], ["2 x AMD 9654, 96 workers", "0", "3450", "-"]);
        assert_eq!(cell(&predicted[2], 3, "base linear: published"), "261967");
        assert_eq!(contention.heads, ["workers", "1", "2", "4", "8", "16", "32", "64"]);
        assert_eq!(
            contention.rows[0],
            [
                "published: before the series",
                "295287 (100%)",
                "70665 (24%)",
                "33865 (11%)",
                "19387 (7%)",
                "10104 (3%)",
                "5588 (2%)",
                "3588 (1%)"
            ]
        );
        assert_eq!(contention.rows.len(), 5);
        assert!(contention.rows[1..].iter().all(|row| row[1].ends_with("(100%)") && row[3] == "-"));
        let [chart] = &Experiment::Series.charts(&rows(Experiment::Series))[..] else { panic!("one chart") };
        assert_eq!(chart.series.len(), 5);
        assert_eq!(chart.series[0].points[..2], [(1.0, 100.0), (2.0, 100.0 * 70_665.0 / 295_287.0)]);
        let is_whole = |(workers, share): (f64, f64)| workers == 1.0 && (share - 100.0).abs() < 1e-9;
        assert!(chart.series.iter().all(|line| is_whole(line.points[0])));
        assert_eq!(series.rows.len(), 6);
        assert_eq!(cell(series, 0, "all-CPU patched"), "20049 (+651%)");
        assert_eq!(cell(series, 1, "P1 patched"), "328324 (+3.7%)");
        assert_eq!(cell(series, 3, "P1 patched"), "209431 (+0.9%)");
        assert!(series.rows[4][0].starts_with("this machine") && cell(series, 4, "workers") == "2");
        assert_eq!(append.heads.len(), 9);
        assert_eq!(append.rows.len(), 6);
        assert_eq!(append.rows[3][..3], ["average extents per file", "261967", "261973"]);
        let ours: Vec<f64> = append.rows[3][5..].iter().map(|text| text.parse().unwrap()).collect();
        assert!(ours[0] > 10.0 * ours[2] && ours[1] > 10.0 * ours[3], "{ours:?}");
        assert!(
            append.title.contains("published") && append.notes.iter().any(|note| note.contains("overlap"))
        );
    }

    #[test]
    fn each_patch_is_turned_on_the_base_and_left_out_of_the_whole() {
        let setup = Setup { workers: Some(vec![4]), ..small() };
        let plans = Experiment::Patches.plans(&setup);
        let rows: Vec<Row> = plans.iter().flat_map(|plan| run(plan, |_, _| ()).unwrap().rows).collect();
        let tables = Experiment::Patches.tables(&rows);
        assert_eq!(tables[0].rows.len(), 30);
        assert_eq!(cell(&tables[0], 0, "of base"), "1.00");
        assert_eq!(cell(&tables[0], 15, "of whole"), "1.00");
        // One patch after another, on both machines and in both scan modes. The published figures
        // are not of four workers but of all CPUs.
        assert_eq!((tables[1].rows.len(), tables[1].heads.len()), (9, 13));
        assert!(tables[1].rows.iter().all(|row| row[2].parse::<f64>().is_ok() && row[11] != "-"));
        // The table of patch 11, where the scan mode is switched.
        assert_eq!(tables[2].rows.len(), 4);
        assert!(!Experiment::Patches.charts(&rows)[0].series.is_empty());
    }

    /// Fresh and aged file systems are columns of the same tables, and charts are of fresh ones.
    #[test]
    fn patches_run_on_aged_file_systems_too() {
        let setup = Setup { workers: Some(vec![2]), ..small() };
        let fresh = Experiment::Patches.plans(&setup);
        let few = |plan: &Plan| Plan {
            policies: plan.policies.iter().take(4).cloned().collect(),
            limit: Limit { ops_per_worker: Some(20), ..plan.limit },
            image: ImageSource::memory(256 << 20, 3),
            ..plan.clone()
        };
        let aged = |plan: &Plan| Plan { aged: Some("mail:1500:85%".parse().unwrap()), ..plan.clone() };
        let plans: Vec<Plan> = fresh.iter().map(few).flat_map(|plan| [plan.clone(), aged(&plan)]).collect();
        let rows: Vec<Row> = plans.iter().flat_map(|plan| run(plan, |_, _| ()).unwrap().rows).collect();
        let states = |state: &str| rows.iter().filter(|row| row.state == state).count();
        assert_eq!((states("fresh"), states("mail:1500:85%")), (rows.len() / 2, rows.len() / 2));
        let of_fresh: Vec<Row> = rows.iter().filter(|row| row.state == "fresh").cloned().collect();
        let (alone, joined) =
            (Experiment::Patches.tables(&of_fresh), Experiment::Patches.tables_by_state(&rows));
        let titles = |tables: &[Table]| tables.iter().map(|table| table.title.clone()).collect::<Vec<_>>();
        assert_eq!(titles(&alone), titles(&joined));
        let head = "ops/s each; mail:1500:85%".to_owned();
        assert!(joined[0].heads.contains(&head), "{:?}", joined[0].heads);
        assert_eq!(joined[0].rows.len(), alone[0].rows.len());
        let chart = |rows: &[Row]| Experiment::Patches.charts(rows)[0].series[0].points.len();
        assert_eq!(chart(&rows), chart(&of_fresh));
    }

    #[test]
    fn yard_is_judged_figure_by_figure_and_over_all_cells() {
        let setup = Setup { workers: Some(vec![2]), ..small() };
        let plans = Experiment::Yard.plans(&setup);
        // Each workload in threads and in overlap; both machines; three ageings; each workload on
        // two devices.
        assert_eq!(plans.len(), 5 + 5 + 2 + 3 + 2 * 5);
        let kept = [0, 5, 10, 16].map(|at| run(&plans[at], |_, _| ()).unwrap().rows).concat();
        let tables = Experiment::Yard.tables_by_state(&kept);
        let [table, rates] = &tables[..] else { panic!("figures, and rates over all cells") };
        let figures: Vec<&str> = table.rows.iter().map(|row| row[2].as_str()).collect();
        let overlap = ["extents/file", "free extents", "mean free extent, KiB"];
        assert_eq!(figures[..2], ["operations/s", "extents/file"]);
        assert_eq!(figures[2..5], overlap);
        let on_device = ["operations/s", "extents/file", "the tree read on hdd, ms"];
        assert_eq!((&figures[5..6], &figures[6..]), (&["operations/s"][..], &on_device[..]));
        assert_eq!(table.rows[6][0], "smallfiles:fallocate=none, lockstep, on hdd");
        assert_eq!((rates.rows.len(), rates.rows[0][0].as_str()), (10, "yard"));
        assert!(plans[12..15].iter().all(|plan| plan.aged.is_some()));
        let devices = |from: usize| -> Vec<String> {
            plans[from..from + 5].iter().map(|plan| plan.device.as_ref().unwrap().to_string()).collect()
        };
        assert_eq!((devices(15), devices(20)), (vec!["hdd".to_owned(); 5], vec!["ssd".to_owned(); 5]));
        let given = Setup { devices: vec!["ftl".parse().unwrap()], ..setup };
        assert_eq!(Experiment::Yard.plans(&given).len(), 15 + 5);
    }

    #[test]
    fn e2_on_devices_has_each_job_and_arm_on_each() {
        let devices = vec!["ftl".parse().unwrap(), "hdd".parse().unwrap()];
        let setup = Setup { devices, workers: Some(vec![2]), image: None, ..small() };
        let plans = Experiment::Rotation.plans(&setup);
        let rows: Vec<Row> = plans.iter().flat_map(|plan| run(plan, |_, _| ()).unwrap().rows).collect();
        let tables = Experiment::Rotation.tables(&rows);
        assert_eq!(tables.iter().map(|table| table.rows.len()).collect::<Vec<_>>(), [64, 64]);
        assert_eq!(cell(&tables[0], 0, "policy"), "linux-6.18:scan=linear");
        assert_eq!(
            (cell(&tables[0], 5, "write amplification"), cell(&tables[1], 5, "write amplification")),
            ("1.000", "-")
        );
        let own = Setup { policies: Some(vec!["yard".to_owned()]), ..setup };
        assert!(Experiment::Rotation.plans(&own).iter().all(|plan| plan.policies == ["yard"]));
    }

    /// For the series, `--policy` adds arms. For `yard`, it names the arms to compare with.
    #[test]
    fn policies_of_choice_have_a_place_in_every_experiment() {
        let arms = vec!["rralloc-v2".to_owned(), "yard".to_owned()];
        let setup = Setup { policies: Some(arms), workers: Some(vec![2]), ..small() };
        for experiment in [Experiment::Series, Experiment::Patches] {
            let plan = &experiment.plans(&setup)[0];
            assert_eq!(plan.policies[plan.policies.len() - 2..], ["rralloc-v2", "yard"]);
            let rows = run(plan, |_, _| ()).unwrap().rows;
            let tables = experiment.tables(&rows);
            let further = tables.last().unwrap();
            assert_eq!((further.rows.len(), cell(further, 0, "policy")), (2, "rralloc-v2"));
        }
        // With `sensitivity`, each arm runs on each changed machine.
        let varied = Setup { sensitivity: true, ..setup.clone() };
        let plans = Experiment::Series.plans(&varied);
        assert!(plans.iter().all(|plan| plan.policies[2..] == ["rralloc-v2", "yard"]));
        let rows: Vec<Row> = plans[..2].iter().flat_map(|plan| run(plan, |_, _| ()).unwrap().rows).collect();
        let tables = Experiment::Series.tables(&rows);
        let further = tables.last().unwrap();
        assert_eq!((further.rows.len(), cell(further, 2, "policy")), (4, "rralloc-v2"));
        assert_ne!(cell(further, 0, "on"), cell(further, 2, "on"));
        let yard = &Experiment::Yard.plans(&setup)[0];
        assert_eq!(yard.policies, ["yard", "rralloc-v2"]);
    }

    #[test]
    fn e2_has_each_job_with_and_without_preallocation() {
        let tables = Experiment::Rotation.tables(&rows(Experiment::Rotation));
        let [table] = &tables[..] else { panic!("one table") };
        // The three jobs under the two published arms have a row each with one worker, with two,
        // and with the published number of workers. All others have only rows with one and two:
        // the jobs without preallocation, the six other arms, and the two further workloads.
        assert_eq!(table.rows.len(), 3 * 2 * 3 + 3 * 2 * 2 + 6 * 6 * 2 + 2 * 8 * 2);
        assert_eq!(table.rows[2][..3], ["seqwrite", "regular (linux-6.18:scan=optimized)", "6"]);
        assert_eq!(cell(table, 2, "published MiB/s"), "497");
        assert_eq!(cell(table, 41, "published IOPS"), "72500");
        assert_eq!(cell(table, 41, "published mean us"), "660");
        assert_eq!(table.rows[54][0], "seqwrite:fallocate=none");
        assert_eq!(cell(table, 54, "published MiB/s"), "-");
        for row in 0..table.rows.len() {
            let is_ours = ["1", "2"].contains(&cell(table, row, "workers"));
            let rate = cell(table, row, "IOPS").parse::<f64>();
            assert!(if is_ours { rate.unwrap() > 0.0 } else { rate.is_err() }, "row {row}");
        }
    }
}
