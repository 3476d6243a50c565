//! Keeps the results of a run while it runs. Each cell goes to the run's folder as soon as it is
//! measured, so an interrupted run can be continued with the missing cells.
//!
//! `cells.jsonl` begins with a line that identifies the run (plan, commit, machine). Each further
//! line is a cell: its identity, what determines it, its rows with the name of their file, and its
//! result. A cell's identity is a hash of everything that determines it, so a result is never
//! mistaken for that of another policy, geometry, seed or commit. The rows also go to their own
//! file, so that a report can be made from an unfinished run.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use blockyard_disk::num::u64_from_usize;
use rustix::fs::{FlockOperation, flock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::environment::Environment;
use super::files::{self, CELLS_FILE};
pub(crate) use super::hash::hash;

/// What to do with a folder that already holds a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Refuse the folder and touch nothing.
    Refuse,
    /// Continue the run, if it is the same one.
    Resume,
    /// Remove the files of the run and begin a new one.
    Replace,
}

/// The folder of a run in progress.
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

impl Drop for Place {
    /// Unlocks the file. Closing it may not be enough: a process that another thread is just
    /// starting shares the open file, and so the lock, from fork to exec.
    fn drop(&mut self) {
        let _ = flock(&self.cells, FlockOperation::Unlock);
    }
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

/// The part of an earlier run's `cells.jsonl` that a resumed run keeps.
#[derive(Debug, Default)]
struct Kept {
    lines: Vec<Line>,
    /// Bytes of these lines and of the first line; 0 if there is no first line.
    bytes: u64,
}

/// The result of a cell.
pub(crate) trait Cell: Serialize + DeserializeOwned {
    /// The name of the file that the cell's rows go to.
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
    /// When the folder holds a run that `existing` neither replaces nor continues, or foreign files
    /// with names that a run uses; when another process writes a run to it; and when it cannot be
    /// read or written.
    pub fn open(folder: &Path, environment: &Environment, plan: &str, existing: Existing) -> Result<Self> {
        let head = Head {
            plan: hash(plan),
            commit: environment.commit.clone(),
            machine: format!("{}, Linux {}", environment.machine, environment.kernel),
        };
        let shown = folder.display();
        check_existing(folder, existing)?;
        fs::create_dir_all(folder).with_context(|| format!("--out {shown}"))?;
        let path = folder.join(CELLS_FILE);
        let open = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let cells = open.with_context(|| path.display().to_string())?;
        ensure!(
            flock(&cells, FlockOperation::NonBlockingLockExclusive).is_ok(),
            "--out {shown}: another process writes a run to it"
        );
        let kept = if existing == Existing::Resume {
            read_lines(&path, &head, &shown.to_string())?
        } else {
            Kept::default()
        };
        files::remove_files(folder, CELLS_FILE)?;
        let program = format!("{} {}", environment.version, environment.commit);
        let mut ledger =
            Self { place: Some(Place { folder: folder.to_owned(), cells }), program, ..Self::default() };
        ledger.begin(environment, &head, kept)?;
        Ok(ledger)
    }

    /// Begins the files of the run. The lines of `cells.jsonl` that are kept are not written again,
    /// so that a crash does not lose them. The first line of `cells.jsonl` is written before all
    /// other files, because it identifies the run that these belong to.
    fn begin(&mut self, environment: &Environment, head: &Head, kept: Kept) -> Result<()> {
        let Some(Place { folder, cells }) = &mut self.place else { return Ok(()) };
        cells.set_len(kept.bytes)?;
        cells.seek(SeekFrom::End(0))?;
        if kept.bytes == 0 {
            append(cells, head)?;
        }
        files::begin(folder, environment)?;
        for line in kept.lines {
            append_rows(folder, &line)?;
            self.known.insert(line.cell, line.result);
        }
        Ok(())
    }

    /// Number of cells that existed at the start.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.known.len()
    }

    /// The result of a cell. If the ledger has none yet, `measure` is called and its result is
    /// kept. `decided_by` is everything that determines the cell, apart from the program's version
    /// and commit.
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
        append_rows(folder, line)
    }
}

/// Refuses a folder that holds files with names that a run uses, unless `existing` allows an
/// earlier run there and the files are known to belong to a run.
fn check_existing(folder: &Path, existing: Existing) -> Result<()> {
    let shown = folder.display();
    let cells = folder.join(CELLS_FILE);
    let has_others = files::files().any(|name| name != CELLS_FILE && folder.join(name).exists());
    let is_new = !has_others && fs::metadata(&cells).map_or(0, |data| data.len()) == 0;
    let has_head = first_line(&cells).is_some_and(|line| serde_json::from_str::<Head>(&line).is_ok());
    match existing {
        Existing::Refuse => ensure!(
            !has_others && !cells.exists(),
            "--out {shown}: holds another run; --resume goes on with it, --force replaces it"
        ),
        Existing::Resume => ensure!(
            is_new || has_head,
            "--resume: {shown} holds no run to go on with: the first line of {CELLS_FILE} is missing"
        ),
        Existing::Replace => ensure!(
            is_new || has_head || files::holds_environment(folder),
            "--force: {shown} holds no run to replace, but files with names that a run uses; give \
             another folder"
        ),
    }
    Ok(())
}

/// The first line of a file, if it is complete and not too long to be the first line of a run.
fn first_line(path: &Path) -> Option<String> {
    const LONGEST: u64 = 1 << 16;
    let mut line = String::new();
    BufReader::new(File::open(path).ok()?).take(LONGEST).read_line(&mut line).ok()?;
    line.ends_with('\n').then_some(line)
}

/// Appends the rows of a cell to their file.
fn append_rows(folder: &Path, line: &Line) -> Result<()> {
    let path = folder.join(&line.file);
    let mut rows =
        File::options().append(true).create(true).open(&path).with_context(|| path.display().to_string())?;
    line.rows.iter().try_for_each(|row| append(&mut rows, row))
}

/// Appends a line in one call, so that only the last line of a file can be incomplete.
fn append(file: &mut File, line: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string(line)? + "\n";
    file.write_all(text.as_bytes()).context("the run's folder")
}

/// The cells of an earlier run, which must be the run that `head` identifies. An incomplete last
/// line is ignored.
fn read_lines(path: &Path, head: &Head, folder: &str) -> Result<Kept> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
    let mut lines = whole.lines();
    let Some(first) = lines.next() else { return Ok(Kept::default()) };
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
    Ok(Kept { lines: read.collect::<Result<_>>()?, bytes: u64_from_usize(whole.len()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(folder: &Path, existing: Existing) -> Result<Ledger> {
        let environment = Environment::of_this_machine("blockyard lab run".into(), "memory".into());
        Ledger::open(folder, &environment, "plan", existing)
    }

    fn refused(folder: &Path, existing: Existing, words: &str) {
        let text = format!("{:#}", open(folder, existing).unwrap_err());
        assert!(text.contains(words), "{text}");
    }

    /// Files with these names may be anyone's. `--resume` and `--force` once removed them.
    #[test]
    fn a_folder_that_holds_no_run_keeps_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("maps")).unwrap();
        for name in ["report.md", "rows.csv", "maps/london.svg"] {
            fs::write(path(name), "mine").unwrap();
        }
        for cells in [None, Some(""), Some("{\"mine\": 1}\n"), Some("no line")] {
            if let Some(text) = cells {
                fs::write(path("cells.jsonl"), text).unwrap();
            }
            refused(folder.path(), Existing::Resume, "no run to go on with");
            refused(folder.path(), Existing::Replace, "no run to replace");
            assert_eq!(path("cells.jsonl").exists(), cells.is_some(), "nothing is made either");
        }
        for name in ["report.md", "rows.csv", "maps/london.svg"] {
            assert_eq!(fs::read(path(name)).unwrap(), b"mine", "{name}");
        }
    }

    /// The rows of a run stay even if its `cells.jsonl` is empty, because measuring them again
    /// takes time.
    #[test]
    fn the_rows_of_a_run_without_cells_stay_unless_it_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        drop(open(folder.path(), Existing::Refuse).unwrap());
        fs::write(folder.path().join("rows.jsonl"), "rows").unwrap();
        fs::write(folder.path().join("cells.jsonl"), "").unwrap();
        refused(folder.path(), Existing::Resume, "no run to go on with");
        assert_eq!(fs::read(folder.path().join("rows.jsonl")).unwrap(), b"rows");
        drop(open(folder.path(), Existing::Replace).unwrap());
        assert_eq!(fs::read(folder.path().join("rows.jsonl")).unwrap(), b"");
    }

    /// A run that was stopped before it wrote its first line has nothing to lose.
    #[test]
    fn a_run_that_had_just_begun_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cells.jsonl"), "").unwrap();
        refused(folder.path(), Existing::Refuse, "holds another run");
        drop(open(folder.path(), Existing::Resume).unwrap());
        let first = fs::read(folder.path().join("cells.jsonl")).unwrap();
        assert_eq!(open(folder.path(), Existing::Resume).unwrap().kept(), 0);
        assert_eq!(fs::read(folder.path().join("cells.jsonl")).unwrap(), first);
    }

    #[test]
    fn only_maps_of_the_run_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        drop(open(folder.path(), Existing::Refuse).unwrap());
        let maps = folder.path().join("maps");
        fs::create_dir(&maps).unwrap();
        fs::write(folder.path().join("maps.json"), "[{\"title\": \"a: b\"}]").unwrap();
        for name in ["a-b.svg", "a-b.txt", "london.svg"] {
            fs::write(maps.join(name), "").unwrap();
        }
        drop(open(folder.path(), Existing::Replace).unwrap());
        let left: Vec<_> = fs::read_dir(&maps).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["london.svg"]);
        fs::remove_file(maps.join("london.svg")).unwrap();
        drop(open(folder.path(), Existing::Replace).unwrap());
        assert!(!maps.exists());
    }
}
