//! The files whose prose is checked.

use std::path::{Path, PathBuf};

/// The folder of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The pages, by their paths from the root: three at the root, and all of docs/.
pub(crate) fn pages() -> Vec<String> {
    let mut pages: Vec<String> =
        ["CHANGELOG.md", "CONTRIBUTING.md", "README.md"].iter().map(|&name| name.to_owned()).collect();
    gather("docs", "md", &mut pages);
    assert!(pages.len() > 20, "{pages:?}");
    pages
}

/// The sources of all crates and of the fuzz targets.
pub(crate) fn sources() -> Vec<String> {
    let mut sources = Vec::new();
    gather("crates", "rs", &mut sources);
    gather("fuzz", "rs", &mut sources);
    assert!(sources.len() > 300, "{}", sources.len());
    sources
}

/// Adds the files with an extension below a folder, in order. Skips the folders that builds and
/// fuzzing write.
fn gather(folder: &str, extension: &str, found: &mut Vec<String>) {
    let mut entries: Vec<_> =
        std::fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap()).collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name().into_string().unwrap();
        let path = format!("{folder}/{name}");
        if entry.file_type().unwrap().is_dir() {
            if !["target", "corpus", "artifacts"].contains(&name.as_str()) {
                gather(&path, extension, found);
            }
        } else if name.ends_with(&format!(".{extension}")) {
            found.push(path);
        }
    }
}
