//! The file of `--lost`. It is opened before the repair, so that an unusable name is refused before
//! anything is written.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tempfile::NamedTempFile;

use super::super::partial;

/// The list to be written.
pub(super) struct Lost {
    path: PathBuf,
    file: Opened,
}

enum Opened {
    /// A new file that gets its name when it is complete.
    New(NamedTempFile),
    /// A pipe, a terminal, or what a link leads to.
    There(File),
}

/// Opens the list; refuses a block device, a file with content, and every file that the repair
/// writes.
pub(super) fn open(path: &Path, others: &[PathBuf]) -> anyhow::Result<Lost> {
    let name = || path.display().to_string();
    if let Some(other) = others.iter().find(|other| is_same(path, other)) {
        bail!("--lost {}: the repair itself writes {}; name another file", name(), other.display());
    }
    let is_block_device = std::fs::metadata(path).is_ok_and(|there| there.file_type().is_block_device());
    if is_block_device {
        bail!("--lost {}: a block device; name a file", name());
    }
    let has_content = |there: std::fs::Metadata| there.is_file() && there.len() > 0;
    if std::fs::metadata(path).is_ok_and(has_content) {
        bail!("--lost {}: exists already; name another file, or remove this one", name());
    }
    let is_replaced = std::fs::symlink_metadata(path).map_or(true, |there| there.is_file());
    let file = if is_replaced {
        Opened::New(partial::file_beside(path)?)
    } else {
        Opened::There(File::options().write(true).create(true).truncate(false).open(path).with_context(name)?)
    };
    Ok(Lost { path: path.to_path_buf(), file })
}

impl Lost {
    /// Writes the list. A list in a file is durable afterwards.
    pub(super) fn complete(self, list: &[u8]) -> anyhow::Result<()> {
        let path = self.path;
        let name = || path.display().to_string();
        match self.file {
            Opened::New(mut file) => {
                file.write_all(list).and_then(|()| file.as_file().sync_all()).with_context(name)?;
                partial::complete(file.into_temp_path(), &path)?;
                // Makes the name durable, too.
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                let folder = File::open(folder.unwrap_or(Path::new("."))).with_context(name)?;
                folder.sync_all().with_context(name)
            }
            Opened::There(mut file) => {
                let is_file = file.metadata().with_context(name)?.is_file();
                if is_file {
                    file.set_len(0).with_context(name)?;
                }
                file.write_all(list).with_context(name)?;
                // A pipe cannot be made durable.
                if is_file { file.sync_all().with_context(name) } else { Ok(()) }
            }
        }
    }
}

/// Takes back a list that may have been written. A regular file is removed. If `path` is a link,
/// the file that it leads to is emptied, and the link stays.
pub(super) fn withdraw(path: &Path) {
    let is_file = |found: std::io::Result<std::fs::Metadata>| found.is_ok_and(|there| there.is_file());
    if is_file(std::fs::symlink_metadata(path)) {
        let _ = std::fs::remove_file(path);
    } else if is_file(std::fs::metadata(path)) {
        let _ = File::create(path);
    }
}

/// Whether two paths name the same file, even if that file does not exist yet.
fn is_same(one: &Path, other: &Path) -> bool {
    let inode = |path: &Path| std::fs::metadata(path).map(|data| (data.dev(), data.ino())).ok();
    if let (Some(one), Some(other)) = (inode(one), inode(other)) {
        return one == other;
    }
    let place = |path: &Path| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        Some((folder.unwrap_or(Path::new(".")).canonicalize().ok()?, path.file_name()?.to_owned()))
    };
    place(one).is_some_and(|one| place(other) == Some(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_taken_back_through_a_link_too() {
        let folder = tempfile::tempdir().unwrap();
        let (list, link) = (folder.path().join("list"), folder.path().join("link"));
        std::os::unix::fs::symlink(&list, &link).unwrap();
        for path in [&list, &link] {
            open(path, &[]).unwrap().complete(b"/home/a: lost\n").unwrap();
            assert_eq!(std::fs::read(&list).unwrap(), b"/home/a: lost\n");
            withdraw(path);
            assert!(std::fs::read(&list).unwrap_or_default().is_empty(), "{}", path.display());
        }
        assert!(link.is_symlink() && list.is_file(), "links and what they lead to stay");
    }
}
