//! What becomes a file or folder of the host when it is complete: until then it stands beside under
//! another name, and goes when the work fails.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use tempfile::{NamedTempFile, TempDir};

fn builder() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".blockyard-").suffix(".partial");
    builder
}

fn place(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file beside the one that is asked for.
pub(super) fn file_beside(path: &Path) -> Result<NamedTempFile> {
    there(path)?;
    builder().tempfile_in(place(path)).with_context(|| place(path).display().to_string())
}

/// Refuses a folder that is not there by its own name; the errors below tell of the partial one.
fn there(path: &Path) -> Result<()> {
    std::fs::metadata(place(path)).map(drop).with_context(|| place(path).display().to_string())
}

/// A folder beside the one that is asked for.
pub(super) fn folder_beside(path: &Path) -> Result<TempDir> {
    there(path)?;
    builder().tempdir_in(place(path)).with_context(|| place(path).display().to_string())
}

/// Gives a file its name.
pub(super) fn complete(file: impl Into<tempfile::TempPath>, path: &Path) -> Result<()> {
    let file = file.into();
    set_mode(&file, 0o666)?;
    file.persist(path).with_context(|| path.display().to_string())
}

/// Gives a folder its name, which an empty folder may have.
pub(super) fn complete_folder(folder: TempDir, path: &Path) -> Result<()> {
    set_mode(folder.path(), 0o777)?;
    std::fs::rename(folder.path(), path).with_context(|| path.display().to_string())?;
    // Nothing is left under its first name.
    let _ = folder.keep();
    Ok(())
}

/// What is new has the mode that new things have: partial ones are for their owner alone.
pub(super) fn set_mode(path: &Path, most: u32) -> Result<()> {
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    let mode = PermissionsExt::from_mode(most & !mask.bits());
    std::fs::set_permissions(path, mode).with_context(|| path.display().to_string())
}
