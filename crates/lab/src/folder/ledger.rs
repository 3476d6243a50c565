//! Keeps the results of a run while it runs. Each cell goes to the run's folder as soon as it is
//! measured, and an interrupted run continues with the missing ones.
//!
//! `cells.jsonl` begins with a line that identifies the run (plan, commit, machine). Each further
//! line is a cell: its identity, what determines it, and its result. A cell's identity is a hash of
//! everything that determines it, so a result is never mistaken for that of another policy,
//! geometry, seed or commit. The rows also go to their own file, so that a report can be made of
//! what exists.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rustix::fs::{FlockOperation, flock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::environment::Environment;
use super::files::{self, CELLS_FILE};

/// What to do with a folder that already holds a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Touch nothing.
    Refuse,
    /// Continue the run, if it is the same one.
    Resume,
    /// Remove the files of the run and begin a new one.
    Replace,
}

/// A run's folder while it runs.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Where results are kept; `None`: nowhere.
    place: Option<Place>,
    /// Version and commit, which determine every cell.
    program: String,
    /// Results of the existing cells, by identity.
    known: BTreeMap<String, Value>,
}

#[derive(Debug)]
struct Place {
    folder: PathBuf,
    cells: File,
}

/// The first line of `cells.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    plan: String,
    commit: String,
    machine: String,
}

/// A line of `cells.jsonl` after the first.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    cell: String,
    decided_by: Value,
    file: String,
    rows: Vec<Value>,
    result: Value,
}

/// The result of a cell.
pub(crate) trait Cell: Serialize + DeserializeOwned {
    /// The file that its rows go to.
    const FILE: &'static str;
    /// A row.
    type Row: Serialize;
    /// The rows.
    fn rows(&self) -> &[Self::Row];
}

impl Ledger {
    /// A ledger that keeps nothing.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Starts to keep a run in a folder. `plan` is a text of everything that determines the run.
    ///
    /// # Errors
    /// When the folder holds another run that is not to be replaced, is written by another process,
    /// or cannot be written.
    pub fn open(folder: &Path, environment: &Environment, plan: &str, existing: Existing) -> Result<Self> {
        let head = Head {
            plan: hash(plan),
            commit: environment.commit.clone(),
            machine: format!("{}, Linux {}", environment.machine, environment.kernel),
        };
        let shown = folder.display();
        let holds_run = files::files().any(|name| folder.join(name).exists());
        ensure!(
            existing != Existing::Refuse || !holds_run,
            "--out {shown}: holds another run; --resume goes on with it, --force replaces it"
        );
        fs::create_dir_all(folder).with_context(|| format!("--out {shown}"))?;
        let path = folder.join(CELLS_FILE);
        let open = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let cells = open.with_context(|| path.display().to_string())?;
        ensure!(
            flock(&cells, FlockOperation::NonBlockingLockExclusive).is_ok(),
            "--out {shown}: another process writes a run to it"
        );
        let lines = if existing == Existing::Resume {
            read_lines(&path, &head, &shown.to_string())?
        } else {
            Vec::new()
        };
        files::remove_files(folder, CELLS_FILE)?;
        files::begin(folder, environment)?;
        let program = format!("{} {}", environment.version, environment.commit);
        let mut ledger =
            Self { place: Some(Place { folder: folder.to_owned(), cells }), program, ..Self::default() };
        ledger.begin(&head, lines)?;
        Ok(ledger)
    }

    /// Rewrites the file with the existing cells.
    fn begin(&mut self, head: &Head, lines: Vec<Line>) -> Result<()> {
        if let Some(Place { cells, .. }) = &mut self.place {
            cells.set_len(0)?;
            cells.seek(SeekFrom::Start(0))?;
            append(cells, head)?;
        }
        for line in lines {
            self.keep(&line)?;
            self.known.insert(line.cell, line.result);
        }
        Ok(())
    }

    /// Number of cells that existed at the start.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.known.len()
    }

    /// The result of a cell: the existing one, or what `measure` returns now, which is kept.
    /// `decided_by` is everything that determines the cell, apart from the program.
    pub(crate) fn cell<T: Cell>(
        &mut self,
        decided_by: Value,
        measure: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if self.place.is_none() {
            return measure();
        }
        let decided_by = json!({"program": self.program, "cell": decided_by});
        let cell = hash(&decided_by.to_string());
        if let Some(known) = self.known.get(&cell) {
            return serde_json::from_value(known.clone()).context("a cell of cells.jsonl");
        }
        let result = measure()?;
        let rows = result.rows().iter().map(serde_json::to_value).collect::<serde_json::Result<_>>()?;
        let file = T::FILE.to_owned();
        self.keep(&Line { cell, decided_by, file, rows, result: serde_json::to_value(&result)? })?;
        Ok(result)
    }

    fn keep(&mut self, line: &Line) -> Result<()> {
        let Some(Place { folder, cells }) = &mut self.place else { return Ok(()) };
        append(cells, line)?;
        let path = folder.join(&line.file);
        let mut rows = File::options()
            .append(true)
            .create(true)
            .open(&path)
            .with_context(|| path.display().to_string())?;
        line.rows.iter().try_for_each(|row| append(&mut rows, row))
    }
}

/// Appends a line in one call, so that only the last line of a file can be incomplete.
fn append(file: &mut File, line: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string(line)? + "\n";
    file.write_all(text.as_bytes()).context("the run's folder")
}

/// The cells of an earlier run, which must be the same run. An incomplete last line is ignored.
fn read_lines(path: &Path, head: &Head, folder: &str) -> Result<Vec<Line>> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut lines = whole.lines();
    let Some(first) = lines.next() else { return Ok(Vec::new()) };
    let there: Head = serde_json::from_str(first)
        .with_context(|| format!("{}: not what lab run writes", path.display()))?;
    for (what, there, now) in
        [("commit", &there.commit, &head.commit), ("machine", &there.machine, &head.machine)]
    {
        ensure!(there == now, "--resume: the run in {folder} is of another {what}: {there}, this is {now}");
    }
    ensure!(
        there.plan == head.plan,
        "--resume: the run in {folder} is of another plan; give its options, or --force"
    );
    let read = lines.enumerate().map(|(index, line)| {
        serde_json::from_str(line)
            .with_context(|| format!("{} line {}: not a cell", path.display(), index + 2))
    });
    read.collect()
}

/// 128 bits of a text (FNV-1a), in hexadecimal digits.
pub(crate) fn hash(text: &str) -> String {
    let start = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
    let step = |hash: u128, byte: u8| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    };
    format!("{:032x}", text.bytes().fold(start, step))
}

#[cfg(test)]
mod tests {
    use super::hash;

    /// Published values of FNV-1a with 128 bits.
    #[test]
    fn hashes_are_those_of_the_definition() {
        assert_eq!(hash(""), "6c62272e07bb014262b821756295c58d");
        assert_eq!(hash("a"), "d228cb696f1a8caf78912b704e4a8964");
    }
}
