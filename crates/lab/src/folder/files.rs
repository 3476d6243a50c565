//! The files of a run's folder: their names, and how those with JSON are read and written. A JSON
//! file holds one document, or one row on each line.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::environment::Environment;
use super::hash::hash;

/// File name of the rows in a run's folder.
pub(crate) const ROWS_FILE: &str = "rows.jsonl";
/// File name of the rows of [`crate::copy`].
pub(crate) const COPIES_FILE: &str = "copies.jsonl";
/// File name of the rows of [`crate::e3`], which compares cluster sizes.
pub(crate) const CLUSTERS_FILE: &str = "clusters.jsonl";
/// File name of the rows of [`crate::e4`], which times e2fsck's passes.
pub(crate) const PASSES_FILE: &str = "passes.jsonl";
/// File name of the measured cells, from which an interrupted run goes on ([`super::ledger`]).
pub(crate) const CELLS_FILE: &str = "cells.jsonl";
/// File name of the environment in a run's folder.
pub(crate) const ENVIRONMENT_FILE: &str = "run.json";
/// File name of the allocation maps in a run's folder.
pub(crate) const MAPS_FILE: &str = "maps.json";
/// File name of the timelines: used space over time.
pub(crate) const TIMELINES_FILE: &str = "timelines.json";

/// Name of the folder with each map as text and SVG.
pub(crate) const MAPS_FOLDER: &str = "maps";

/// Names of the files that hold rows, one on each line.
const ROWS_FILES: [&str; 4] = [ROWS_FILE, COPIES_FILE, CLUSTERS_FILE, PASSES_FILE];

/// A file name that is made from a title is cut to this many bytes, and then gets a hash. With the
/// hash and an extension it still fits into the 255 bytes that file systems allow.
const NAME_MAX: usize = 200;

/// Names of the files and folders that a run's folder may hold.
pub(super) fn files() -> impl Iterator<Item = &'static str> {
    let others = [
        CELLS_FILE,
        ENVIRONMENT_FILE,
        MAPS_FILE,
        TIMELINES_FILE,
        "report.md",
        "rows.csv",
        "report.html",
        MAPS_FOLDER,
    ];
    ROWS_FILES.into_iter().chain(others)
}

/// Whether the folder has the environment of a run.
pub(super) fn holds_environment(folder: &Path) -> bool {
    let text = fs::read(folder.join(ENVIRONMENT_FILE)).unwrap_or_default();
    serde_json::from_slice::<Environment>(&text).is_ok()
}

/// Removes from a run's folder everything that a run writes there, except the file `but`. Files in
/// the folder of maps are removed only if [`remove_maps`] knows their names.
pub(super) fn remove_files(folder: &Path, but: &str) -> Result<()> {
    remove_maps(folder)?;
    let names = files().filter(|name| *name != but && *name != MAPS_FOLDER);
    names.map(|name| folder.join(name)).try_for_each(|path| remove(&path))
}

/// Removes the maps whose titles are in [`MAPS_FILE`] or [`TIMELINES_FILE`], and their folder if it
/// is empty then.
fn remove_maps(folder: &Path) -> Result<()> {
    #[derive(serde::Deserialize)]
    struct Titled {
        title: String,
    }
    let maps = folder.join(MAPS_FOLDER);
    for of in [MAPS_FILE, TIMELINES_FILE] {
        let text = read(&folder.join(of))?;
        for titled in serde_json::from_str::<Vec<Titled>>(&text).unwrap_or_default() {
            let name = maps.join(file_name(&titled.title));
            remove(&name.with_extension("svg"))?;
            remove(&name.with_extension("txt"))?;
        }
    }
    let _ = fs::remove_dir(maps);
    Ok(())
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| path.display().to_string())
        }
        _ => Ok(()),
    }
}

/// The file name for a title, without an extension. ASCII letters, digits and underscores are kept.
/// Any other characters between two kept ones become one hyphen, so the name has no dot. A name
/// longer than [`NAME_MAX`] is cut and ends in the title's hash.
pub(crate) fn file_name(title: &str) -> String {
    let parts = title.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let name = parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-");
    if name.len() <= NAME_MAX { name } else { format!("{}-{}", &name[..NAME_MAX], hash(title)) }
}

/// Creates the folder, and in it the files of a run that has no rows yet.
pub(super) fn begin(folder: &Path, environment: &Environment) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
    ROWS_FILES.into_iter().try_for_each(|name| write_file(&folder.join(name), b""))?;
    [MAPS_FILE, TIMELINES_FILE].into_iter().try_for_each(|name| write_file(&folder.join(name), b"[]"))?;
    write_environment(folder, environment)
}

/// Writes the environment of the run.
pub(crate) fn write_environment(folder: &Path, environment: &Environment) -> Result<()> {
    write_file(&folder.join(ENVIRONMENT_FILE), &serde_json::to_vec_pretty(environment)?)
}

/// Rows as text, one on each line.
pub(crate) fn json_lines<T: Serialize>(rows: &[T]) -> Result<String> {
    let mut text = String::new();
    for row in rows {
        text.push_str(&serde_json::to_string(row)?);
        text.push('\n');
    }
    Ok(text)
}

/// The rows of a file, one on each line; a missing file has none.
pub(crate) fn lines<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    let text = read(path)?;
    let rows = text.lines().enumerate().map(|(index, line)| {
        serde_json::from_str(line)
            .with_context(|| format!("{} line {}: not a row", path.display(), index + 1))
    });
    rows.collect()
}

/// The JSON document in a file; the default if the file is missing or empty.
pub(crate) fn document<T: DeserializeOwned + Default>(path: &Path) -> Result<T> {
    let text = read(path)?;
    if text.is_empty() {
        return Ok(T::default());
    }
    serde_json::from_str(&text).with_context(|| format!("{}: not what lab run writes", path.display()))
}

/// The text of a file; empty if the file is missing, because folders that earlier versions wrote
/// lack some files.
fn read(path: &Path) -> Result<String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        read => read.with_context(|| format!("{}", path.display())),
    }
}

/// Writes a file, which replaces an old one of that name.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = fs::File::create(path).with_context(|| format!("{}", path.display()))?;
    file.write_all(bytes).with_context(|| format!("{}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An arm with many overrides has a title of hundreds of bytes. Its maps could once not be
    /// written, because the title is longer than a file name may be.
    #[test]
    fn every_title_gives_a_file_name_of_its_own() {
        assert_eq!(file_name("fallocate2: yard:slots=one, 2 workers"), "fallocate2-yard-slots-one-2-workers");
        let long = "yard:slots=one".repeat(40);
        let names = [file_name(&long), file_name(&format!("{long}, 2 workers"))];
        assert_ne!(names[0], names[1]);
        assert!(names.iter().all(|name| name.len() + ".svg".len() <= 255), "{names:?}");
    }
}
