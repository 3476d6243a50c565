//! Creates output files that a command-line option names. An existing file is never overwritten: it
//! may be the image that the same command works on.
//!
//! The name is checked before the command does its work ([`check`]), and again when the file is
//! created ([`write()`]).

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::fs::Access;

/// Refuses the name of a file that exists already, or that cannot be created. Writes nothing.
///
/// # Errors
/// Names the option, and says what is wrong with its value.
pub fn check(option: &str, path: &Path) -> Result<()> {
    let is_there = fs::symlink_metadata(path).is_ok();
    ensure!(!is_there, "{option} {}: is there already; give the name of a new file", path.display());
    check_folder(option, path)
}

/// Refuses the name of a file whose folder is missing or takes no new files. Writes nothing.
///
/// # Errors
/// As [`check`].
pub fn check_folder(option: &str, path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let shown = path.display();
    ensure!(folder.is_dir(), "{option} {shown}: there is no folder {}", folder.display());
    rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK)
        .with_context(|| format!("{option} {shown}: no file can be created in {}", folder.display()))
}

/// Creates the file. If the text cannot be written completely, the file is removed again.
///
/// # Errors
/// When the file exists already, or cannot be written.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let named = || format!("write {}", path.display());
    let mut file = File::create_new(path).with_context(named)?;
    file.write_all(text.as_bytes()).with_context(named).inspect_err(|_| {
        let _ = fs::remove_file(path);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `--keep-requests` was once able to write over the image of the same command.
    #[test]
    fn what_is_there_already_is_never_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join("old"), folder.path().join("new"));
        fs::write(&old, "image").unwrap();
        let text = format!("{:#}", check("--out", &old).unwrap_err());
        assert!(text.contains("is there already"), "{text}");
        assert!(write(&old, "rows").is_err());
        assert_eq!(fs::read(&old).unwrap(), b"image");
        std::os::unix::fs::symlink(&new, folder.path().join("link")).unwrap();
        assert!(check("--out", &folder.path().join("link")).is_err());
        let text = format!("{:#}", check("--out", &folder.path().join("none/new")).unwrap_err());
        assert!(text.contains("there is no folder"), "{text}");
        check("--out", &new).unwrap();
        assert!(!new.exists(), "a check writes nothing");
        write(&new, "rows").unwrap();
        assert_eq!(fs::read(&new).unwrap(), b"rows");
        check("--out", Path::new("name-of-no-file")).unwrap();
    }
}
