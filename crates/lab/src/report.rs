//! Reports: the rows of a run as tables, files and one self-contained HTML page.
//!
//! A run's folder holds `rows.jsonl` (one [`Row`] a line) and `run.json` ([`Environment`]); everything printed or
//! drawn is computed from those two, so a report can be made again later and elsewhere.

pub mod environment;
pub mod html;
pub mod plot;
pub mod summary;
pub mod table;

use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;

use anyhow::{Context, Result};

use crate::row::Row;
use crate::run::NamedMap;
pub use environment::Environment;
pub use table::Table;

/// File name of the rows in a run's folder.
pub const ROWS_FILE: &str = "rows.jsonl";
/// File name of the environment in a run's folder.
pub const ENVIRONMENT_FILE: &str = "run.json";
/// File name of the allocation maps in a run's folder.
pub const MAPS_FILE: &str = "maps.json";

/// A finished run, as it lies in its folder.
#[derive(Clone, Debug)]
pub struct Run {
    /// Machine, commit, command.
    pub environment: Environment,
    /// Every measured cell.
    pub rows: Vec<Row>,
    /// Allocation maps to show.
    pub maps: Vec<NamedMap>,
}

impl Run {
    /// Reads a run's folder.
    ///
    /// # Errors
    /// When a file is missing or a line is no row; the message names file and line.
    pub fn load(folder: &Path) -> Result<Self> {
        let path = folder.join(ENVIRONMENT_FILE);
        let text = fs::read_to_string(&path).with_context(|| {
            format!("{}: not a run's folder (lab run --out DIR makes one)", path.display())
        })?;
        let environment = serde_json::from_str(&text).with_context(|| format!("{}", path.display()))?;
        let path = folder.join(ROWS_FILE);
        let file = fs::File::open(&path).with_context(|| format!("{}", path.display()))?;
        let mut rows = Vec::new();
        for (index, line) in BufReader::new(file).lines().enumerate() {
            let line = line.with_context(|| format!("{}", path.display()))?;
            let row = serde_json::from_str(&line)
                .with_context(|| format!("{} line {}: not a row", path.display(), index + 1))?;
            rows.push(row);
        }
        // A folder of an earlier version has none.
        let path = folder.join(MAPS_FILE);
        let maps = match fs::read(&path) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).with_context(|| format!("{}: no maps", path.display()))?
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error).with_context(|| format!("{}", path.display())),
        };
        Ok(Self { environment, rows, maps })
    }

    /// Writes the two files of a run's folder, making the folder; an earlier run in it is replaced.
    ///
    /// # Errors
    /// When the folder or a file cannot be written.
    pub fn save(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
        let mut lines = Vec::new();
        for row in &self.rows {
            serde_json::to_writer(&mut lines, row)?;
            lines.push(b'\n');
        }
        write_file(&folder.join(ROWS_FILE), &lines)?;
        write_file(&folder.join(MAPS_FILE), &serde_json::to_vec(&self.maps)?)?;
        write_file(&folder.join(ENVIRONMENT_FILE), &serde_json::to_vec_pretty(&self.environment)?)
    }

    /// Writes every form of the report into a folder: `report.md`, `rows.csv`, `report.html`.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write_reports(&self, folder: &Path) -> Result<()> {
        let tables = summary::tables(&self.rows);
        let mut markdown = self.environment.markdown();
        for table in &tables {
            markdown.push('\n');
            markdown.push_str(&table.markdown());
        }
        write_file(&folder.join("report.md"), markdown.as_bytes())?;
        write_file(&folder.join("rows.csv"), summary::csv(&self.rows).as_bytes())?;
        write_file(&folder.join("report.html"), html::page(self, &tables).as_bytes())
    }
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = fs::File::create(path).with_context(|| format!("{}", path.display()))?;
    file.write_all(bytes).with_context(|| format!("{}", path.display()))
}
