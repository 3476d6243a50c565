//! Reports: the rows of a run as tables, as files, and as one self-contained HTML page.
//!
//! A run's folder holds the files below. Everything printed or drawn is computed from them, so a
//! report can be made again later and elsewhere.
//!
//! - `run.json`: [`Environment`]
//! - `rows.jsonl`: one [`Row`] on each line
//! - `copies.jsonl`: for copies of trees, one [`CopyRow`] on each line
//! - `clusters.jsonl`: for e3 (cluster sizes), one [`ClusterRow`] on each line
//! - `passes.jsonl`: for e4 (passes of e2fsck), one [`PassRow`] on each line
//! - `cells.jsonl`: the measured cells ([`crate::folder::ledger`])
//! - `maps.json`: the allocation maps, as [`NamedMap`]s
//! - `timelines.json`: used space over time, as [`Timeline`]s

mod html;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::copy::{self, CopyRow, Timeline};
use crate::e3::{self, ClusterRow};
use crate::e4::{self, PassRow};
use crate::experiment::Experiment;
use crate::figures::row::Row;
use crate::figures::states::beside;
use crate::figures::{Table, plot, summary, waits};
use crate::folder::Environment;
use crate::folder::files::{
    CLUSTERS_FILE, COPIES_FILE, ENVIRONMENT_FILE, MAPS_FILE, MAPS_FOLDER, PASSES_FILE, ROWS_FILE,
    TIMELINES_FILE, document, file_name, json_lines, lines, write_environment, write_file,
};
use crate::run::NamedMap;

/// A finished run, as stored in its folder.
#[derive(Clone, Debug)]
pub struct Run {
    /// Machine, commit, command.
    pub environment: Environment,
    /// One row for every measured cell.
    pub rows: Vec<Row>,
    /// One row for every copy of a tree.
    pub copies: Vec<CopyRow>,
    /// One row for every kind of call on every file system of e3.
    pub clusters: Vec<ClusterRow>,
    /// One row for every file system of e4.
    pub passes: Vec<PassRow>,
    /// Allocation maps to show.
    pub maps: Vec<NamedMap>,
    /// Used space over time.
    pub timelines: Vec<Timeline>,
}

impl Run {
    /// A run without rows.
    #[must_use]
    pub fn new(environment: Environment) -> Self {
        Self {
            environment,
            rows: Vec::new(),
            copies: Vec::new(),
            clusters: Vec::new(),
            passes: Vec::new(),
            maps: Vec::new(),
            timelines: Vec::new(),
        }
    }

    /// Reads a run's folder.
    ///
    /// # Errors
    /// When `run.json` or the rows are missing, a file cannot be read, or its content is not what a
    /// run writes. The message names the file; if a row is wrong, also its line.
    pub fn load(folder: &Path) -> Result<Self> {
        let path = folder.join(ENVIRONMENT_FILE);
        let text = fs::read_to_string(&path).with_context(|| {
            format!("{}: not a run's folder (lab run --out DIR makes one)", path.display())
        })?;
        let environment = serde_json::from_str(&text)
            .with_context(|| format!("{}: not what lab run writes", path.display()))?;
        let rows = folder.join(ROWS_FILE);
        ensure!(rows.exists(), "{}: missing, although lab run writes it", rows.display());
        Ok(Self {
            environment,
            rows: lines(&rows)?,
            copies: lines(&folder.join(COPIES_FILE))?,
            clusters: lines(&folder.join(CLUSTERS_FILE))?,
            passes: lines(&folder.join(PASSES_FILE))?,
            maps: document(&folder.join(MAPS_FILE))?,
            timelines: document(&folder.join(TIMELINES_FILE))?,
        })
    }

    /// Writes the run's files except `cells.jsonl` to a folder, and creates the folder if
    /// necessary. The files replace those of an earlier run.
    ///
    /// # Errors
    /// When the folder or a file cannot be written.
    pub fn save(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
        write_file(&folder.join(ROWS_FILE), json_lines(&self.rows)?.as_bytes())?;
        write_file(&folder.join(COPIES_FILE), json_lines(&self.copies)?.as_bytes())?;
        write_file(&folder.join(CLUSTERS_FILE), json_lines(&self.clusters)?.as_bytes())?;
        write_file(&folder.join(PASSES_FILE), json_lines(&self.passes)?.as_bytes())?;
        write_file(&folder.join(MAPS_FILE), &serde_json::to_vec(&self.maps)?)?;
        write_file(&folder.join(TIMELINES_FILE), &serde_json::to_vec(&self.timelines)?)?;
        write_environment(folder, &self.environment)
    }

    /// The main tables: those of the run's experiment, or all tables if it has none.
    #[must_use]
    pub fn main_tables(&self) -> Vec<Table> {
        match self.experiment() {
            Some(experiment) => experiment.tables_by_state(&self.rows),
            None => self.tables(),
        }
    }

    fn experiment(&self) -> Option<Experiment> {
        self.environment.experiment.as_deref().and_then(Experiment::by_name)
    }

    /// The rows that tables and plots by workload show: all rows, or none if the tables of the
    /// experiment already show every rate.
    fn rows_by_workload(&self) -> &[Row] {
        let is_shown = self.experiment().is_some_and(|experiment| experiment.has_every_rate(&self.rows));
        if is_shown { &[] } else { &self.rows }
    }

    /// Every table, in this order: those of the experiment, of copies, of cluster sizes, of passes,
    /// and of each workload. A table of a workload is left out if an earlier table has its title.
    #[must_use]
    pub fn tables(&self) -> Vec<Table> {
        let experiment = self.experiment();
        let mut tables =
            experiment.map(|experiment| experiment.tables_by_state(&self.rows)).unwrap_or_default();
        tables.extend(beside(&self.copies, copy::table::tables));
        tables.extend(beside(&self.clusters, e3::table::tables));
        tables.extend(beside(&self.passes, |rows| {
            let mut tables = Vec::from_iter(e4::table::table(rows));
            tables.extend(e4::table::modelled(rows));
            tables.extend(e4::directories::table(rows));
            tables.extend(e4::vitals::table(rows));
            tables
        }));
        for table in beside(self.rows_by_workload(), summary::tables) {
            if tables.iter().all(|known| known.title != table.title) {
                tables.push(table);
            }
        }
        tables
    }

    /// The charts of the run's experiment. Charts of single workloads are not among them.
    #[must_use]
    pub fn charts(&self) -> Vec<plot::Chart> {
        self.experiment().map(|experiment| experiment.charts(&self.rows)).unwrap_or_default()
    }

    /// The report as Markdown: the environment and every table.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut markdown = self.environment.markdown();
        for table in self.tables() {
            markdown.push('\n');
            markdown.push_str(&table.markdown());
        }
        markdown
    }

    /// Every row as comma-separated values: cells first, then the lock waits of cells in virtual
    /// time, copies, cluster sizes and passes. Each kind has a header line of its own.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut text = summary::csv(&self.rows) + &waits::csv(&self.rows);
        if !self.copies.is_empty() {
            text.push_str(&copy::table::csv(&self.copies));
        }
        if !self.clusters.is_empty() {
            text.push_str(&e3::table::csv(&self.clusters));
        }
        if !self.passes.is_empty() {
            text.push_str(&e4::rows::csv(&self.passes));
        }
        text
    }

    /// Every row as JSON Lines: cells first, then copies, cluster sizes and passes. Each pass of
    /// e2fsck has a line of its own, and so has each whole run of e2fsck.
    ///
    /// # Errors
    /// Those of the encoder. None is expected: rows contain only what it can encode.
    pub fn json_lines(&self) -> Result<String> {
        let cells = json_lines(&self.rows)? + &json_lines(&self.copies)?;
        Ok(cells + &json_lines(&self.clusters)? + &e4::rows::json_lines(&self.passes)?)
    }

    /// Writes the report to a folder: `report.md`, `rows.csv`, `report.html`, and
    /// `maps/` with each map and timeline as text and SVG.
    ///
    /// # Errors
    /// When a folder or file cannot be written.
    pub fn write_reports(&self, folder: &Path) -> Result<()> {
        write_file(&folder.join("report.md"), self.markdown().as_bytes())?;
        write_file(&folder.join("rows.csv"), self.csv().as_bytes())?;
        write_file(&folder.join("report.html"), html::page(self, &self.tables()).as_bytes())?;
        let maps = folder.join(MAPS_FOLDER);
        fs::create_dir_all(&maps).with_context(|| format!("{}", maps.display()))?;
        for named in &self.maps {
            let name = maps.join(file_name(&named.title));
            write_file(&name.with_extension("svg"), named.svg().as_bytes())?;
            let text = format!("{}\n{}", named.title, named.map.text());
            write_file(&name.with_extension("txt"), text.as_bytes())?;
        }
        for timeline in &self.timelines {
            let name = maps.join(file_name(&timeline.title));
            write_file(&name.with_extension("svg"), timeline.svg().as_bytes())?;
            write_file(&name.with_extension("txt"), timeline.text(usize::MAX).as_bytes())?;
        }
        Ok(())
    }
}
