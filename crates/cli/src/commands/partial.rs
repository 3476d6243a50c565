//! Files and folders of the host that appear only when complete. Until then they have a temporary
//! name next to the final one, and are removed if the work fails.

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

/// A temporary file next to the requested one.
pub(super) fn file_beside(path: &Path) -> Result<NamedTempFile> {
    there(path)?;
    builder().tempfile_in(place(path)).with_context(|| place(path).display().to_string())
}

/// Refuses a missing folder by its own name; later errors would name the temporary file.
fn there(path: &Path) -> Result<()> {
    std::fs::metadata(place(path)).map(drop).with_context(|| place(path).display().to_string())
}

/// A temporary folder next to the requested one.
pub(super) fn folder_beside(path: &Path) -> Result<TempDir> {
    there(path)?;
    builder().tempdir_in(place(path)).with_context(|| place(path).display().to_string())
}

/// Renames a file to its final name.
pub(super) fn complete(file: impl Into<tempfile::TempPath>, path: &Path) -> Result<()> {
    let file = file.into();
    set_mode(&file, 0o666)?;
    file.persist(path).with_context(|| path.display().to_string())
}

/// Renames a folder to its final name, which an empty folder may have.
pub(super) fn complete_folder(folder: TempDir, path: &Path) -> Result<()> {
    set_mode(folder.path(), 0o777)?;
    std::fs::rename(folder.path(), path).with_context(|| path.display().to_string())?;
    // Nothing is left under the temporary name.
    let _ = folder.keep();
    Ok(())
}

/// Gives a new file or folder the mode of a normal new one: `most` without the umask. Temporary
/// ones are private to their owner.
pub(super) fn set_mode(path: &Path, most: u32) -> Result<()> {
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    let mode = PermissionsExt::from_mode(most & !mask.bits());
    std::fs::set_permissions(path, mode).with_context(|| path.display().to_string())
}
