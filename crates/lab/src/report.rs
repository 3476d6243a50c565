//! Reports: the rows of a run as tables, files and one self-contained HTML page.
//!
//! A run's folder holds `run.json` ([`Environment`]), `rows.jsonl` (one [`Row`] a line), for copies `copies.jsonl` (one
//! [`CopyRow`] a line), for e3 `clusters.jsonl` (one [`ClusterRow`] a line), for e4
//! `passes.jsonl` (one [`PassRow`] a line), `cells.jsonl` (what was measured, cell by cell: [`crate::ledger`]), `maps.json` and `timelines.json`; everything printed or drawn is computed from those, so a report
//! can be made again later and elsewhere.

mod html;

use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::copy::{CopyRow, Timeline};
use crate::e3::ClusterRow;
use crate::e4::PassRow;
use crate::experiment::Experiment;
use crate::figures::row::Row;
use crate::figures::{Table, plot, summary};
use crate::folder::Environment;
use crate::folder::ledger::CELLS_FILE;
use crate::run::NamedMap;

/// File name of the rows in a run's folder.
pub const ROWS_FILE: &str = "rows.jsonl";
/// File name of the rows of copies.
pub const COPIES_FILE: &str = "copies.jsonl";
/// File name of the rows of cluster sizes.
pub const CLUSTERS_FILE: &str = "clusters.jsonl";
/// File name of the rows of e2fsck's passes.
pub const PASSES_FILE: &str = "passes.jsonl";
/// File name of the environment in a run's folder.
pub const ENVIRONMENT_FILE: &str = "run.json";
/// File name of the allocation maps in a run's folder.
pub const MAPS_FILE: &str = "maps.json";
/// File name of the maps over time.
pub const TIMELINES_FILE: &str = "timelines.json";

/// A finished run, as it lies in its folder.
#[derive(Clone, Debug)]
pub struct Run {
    /// Machine, commit, command.
    pub environment: Environment,
    /// Every measured cell.
    pub rows: Vec<Row>,
    /// Every copy of a tree.
    pub copies: Vec<CopyRow>,
    /// Every cluster size of e3.
    pub clusters: Vec<ClusterRow>,
    /// Every file system of e4.
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
    /// When `run.json` or the rows are missing, or a line is no row; the message names file and line.
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

    /// Writes the files of a run's folder, making the folder; an earlier run in it is replaced.
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
        write_file(&folder.join(ENVIRONMENT_FILE), &serde_json::to_vec_pretty(&self.environment)?)
    }

    /// Names of the files and folders that a run's folder may hold.
    pub(crate) fn files() -> impl Iterator<Item = &'static str> {
        let rows = [ROWS_FILE, COPIES_FILE, CLUSTERS_FILE, PASSES_FILE, CELLS_FILE];
        let others =
            [ENVIRONMENT_FILE, MAPS_FILE, TIMELINES_FILE, "report.md", "rows.csv", "report.html", "maps"];
        rows.into_iter().chain(others)
    }

    /// Empties a run's folder of everything that a run writes but for one file.
    pub(crate) fn remove_files(folder: &Path, but: &str) -> Result<()> {
        for path in Self::files().filter(|name| *name != but).map(|name| folder.join(name)) {
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            match removed {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| path.display().to_string());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The tables that a run is made for: those of the experiment, or all.
    #[must_use]
    pub fn main_tables(&self) -> Vec<Table> {
        match self.environment.experiment.as_deref().and_then(Experiment::by_name) {
            Some(experiment) => experiment.tables(&self.rows),
            None => self.tables(),
        }
    }

    /// Every table: the experiment's, the copies', the cluster sizes', the passes', and each workload's.
    #[must_use]
    pub fn tables(&self) -> Vec<Table> {
        let experiment = self.environment.experiment.as_deref().and_then(Experiment::by_name);
        let mut tables = experiment.map(|experiment| experiment.tables(&self.rows)).unwrap_or_default();
        tables.extend(crate::copy::table::table(&self.copies));
        tables.extend(crate::e3::table::table(&self.clusters));
        tables.extend(crate::e4::table::table(&self.passes));
        tables.extend(summary::tables(&self.rows));
        tables
    }

    /// What is drawn of the experiment beside the charts of its workloads.
    #[must_use]
    pub fn charts(&self) -> Vec<plot::Chart> {
        let experiment = self.environment.experiment.as_deref().and_then(Experiment::by_name);
        experiment.map(|experiment| experiment.charts(&self.rows)).unwrap_or_default()
    }

    /// The report as Markdown: what was run where, and every table.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut markdown = self.environment.markdown();
        for table in self.tables() {
            markdown.push('\n');
            markdown.push_str(&table.markdown());
        }
        markdown
    }

    /// Every row as comma-separated values with a head line; copies, cluster sizes and passes after cells.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut text = summary::csv(&self.rows);
        if !self.copies.is_empty() {
            text.push_str(&crate::copy::table::csv(&self.copies));
        }
        if !self.clusters.is_empty() {
            text.push_str(&crate::e3::table::csv(&self.clusters));
        }
        if !self.passes.is_empty() {
            text.push_str(&crate::e4::table::csv(&self.passes));
        }
        text
    }

    /// Every row as JSON Lines; copies, cluster sizes and passes after cells.
    ///
    /// # Errors
    /// Of the encoder; rows hold only what it can encode.
    pub fn json_lines(&self) -> Result<String> {
        let cells = json_lines(&self.rows)? + &json_lines(&self.copies)?;
        Ok(cells + &json_lines(&self.clusters)? + &json_lines(&self.passes)?)
    }

    /// Writes every form of the report into a folder: `report.md`, `rows.csv`, `report.html`, and `maps/` with each map
    /// as text and SVG.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write_reports(&self, folder: &Path) -> Result<()> {
        write_file(&folder.join("report.md"), self.markdown().as_bytes())?;
        write_file(&folder.join("rows.csv"), self.csv().as_bytes())?;
        write_file(&folder.join("report.html"), html::page(self, &self.tables()).as_bytes())?;
        let maps = folder.join("maps");
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

impl NamedMap {
    /// The map as an `<svg>` element.
    #[must_use]
    pub fn svg(&self) -> String {
        self.map.svg(&self.title, self.files.as_ref())
    }
}

/// A title as a file name without dots: letters and digits, everything else one hyphen.
fn file_name(title: &str) -> String {
    let parts = title.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-")
}

fn json_lines<T: Serialize>(rows: &[T]) -> Result<String> {
    let mut text = String::new();
    for row in rows {
        text.push_str(&serde_json::to_string(row)?);
        text.push('\n');
    }
    Ok(text)
}

/// The rows of a file, one a line; a missing file has none.
fn lines<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    let text = read(path)?;
    let rows = text.lines().enumerate().map(|(index, line)| {
        serde_json::from_str(line)
            .with_context(|| format!("{} line {}: not a row", path.display(), index + 1))
    });
    rows.collect()
}

/// A file of one JSON document; a missing file is the empty one.
fn document<T: DeserializeOwned + Default>(path: &Path) -> Result<T> {
    let text = read(path)?;
    if text.is_empty() {
        return Ok(T::default());
    }
    serde_json::from_str(&text).with_context(|| format!("{}: not what lab run writes", path.display()))
}

/// The text of a file, empty when there is none: a folder of an earlier version lacks some.
fn read(path: &Path) -> Result<String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        read => read.with_context(|| format!("{}", path.display())),
    }
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = fs::File::create(path).with_context(|| format!("{}", path.display()))?;
    file.write_all(bytes).with_context(|| format!("{}", path.display()))
}
