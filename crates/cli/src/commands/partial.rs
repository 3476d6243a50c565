//! Files and folders of the host that appear only when complete. Until then they have a temporary
//! name next to the final one, and are removed if the work fails.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tempfile::{NamedTempFile, TempDir};

fn builder() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".blockyard-").suffix(".partial");
    builder
}

fn place(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Linux's limit of symbolic links in a path.
const LINKS_MAX: usize = 40;

/// The file that a path leads to, even if that file is missing. If the path is a link, the output
/// then replaces the file that the link points to, and the link stays.
///
/// # Errors
/// A loop of symbolic links, and links in /proc to something without a name, such as a pipe.
pub(super) fn followed(path: &Path) -> io::Result<PathBuf> {
    let mut at = path.to_owned();
    for _ in 0..LINKS_MAX {
        match std::fs::read_link(&at) {
            Ok(target) => at.set_file_name(target),
            // `at` is not a link, or does not exist.
            Err(_) if is_same(path, &at) => return Ok(at),
            Err(_) => return Err(io::Error::other("it leads to something without a name")),
        }
    }
    Err(rustix::io::Errno::LOOP.into())
}

/// Whether two paths lead to the same file, or both lead to no file.
fn is_same(one: &Path, other: &Path) -> bool {
    let inode = |path: &Path| std::fs::metadata(path).map(|data| (data.dev(), data.ino())).ok();
    inode(one) == inode(other)
}

/// Where the output of a command goes.
pub(super) enum Destination {
    /// A file that gets its name when it is complete.
    New { made: NamedTempFile, path: PathBuf },
    /// A pipe, or a device that is written in order, such as a terminal.
    There(File),
}

impl Destination {
    /// Opens the destination that a path leads to.
    ///
    /// # Errors
    /// The destination is a directory, a socket or a block device, or cannot be opened; or its
    /// folder is missing or cannot be written.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let shown = || path.display().to_string();
        let is_stream = |there: &Metadata| there.file_type().is_char_device() || there.file_type().is_fifo();
        match std::fs::metadata(path) {
            Ok(there) if is_stream(&there) => {
                Ok(Self::There(File::options().write(true).open(path).with_context(shown)?))
            }
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error).with_context(shown),
            Ok(_) | Err(_) => {
                let path = followed(path).with_context(shown)?;
                Ok(Self::New { made: file_beside(&path)?, path })
            }
        }
    }

    /// The file to write.
    pub(super) fn as_file(&self) -> &File {
        match self {
            Self::New { made, .. } => made.as_file(),
            Self::There(file) => file,
        }
    }

    /// Gives a new file its name.
    pub(super) fn complete(self) -> Result<()> {
        match self {
            Self::New { made, path } => complete(made.into_temp_path(), &path),
            Self::There(_) => Ok(()),
        }
    }
}

/// A temporary file next to the requested one. The requested one must be missing or a regular file,
/// because the final rename would replace anything else, too.
pub(super) fn file_beside(path: &Path) -> Result<NamedTempFile> {
    there(path)?;
    if std::fs::symlink_metadata(path).is_ok_and(|there| !there.is_file()) {
        bail!("{}: is no regular file; it is not replaced", path.display());
    }
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

/// Renames a file to its final name. A file that replaces another one gets the old permissions
/// without set-id and sticky bits, and the old owner and group if the host allows. The group gets
/// no permissions if the host does not allow that, or if the old file has an access control list.
pub(super) fn complete(file: impl Into<tempfile::TempPath>, path: &Path) -> Result<()> {
    let file = file.into();
    match std::fs::metadata(path) {
        Ok(old) => {
            // Set the owner first: the group gets permissions only if it is the old group.
            let is_kept = std::os::unix::fs::chown(&file, Some(old.uid()), Some(old.gid())).is_ok();
            // With an access control list, the group bits of the mode are the mask of the list.
            let has_list = rustix::fs::getxattr(path, "system.posix_acl_access", &mut [0u8; 0][..]).is_ok();
            let group = if is_kept && !has_list { 0o070 } else { 0 };
            let mode = PermissionsExt::from_mode(old.mode() & (0o707 | group));
            std::fs::set_permissions(&file, mode).with_context(|| file.display().to_string())?;
        }
        Err(_) => set_mode(&file, 0o666)?,
    }
    file.persist(path).with_context(|| path.display().to_string())
}

/// Renames a folder to its final name. An empty folder of that name is replaced.
pub(super) fn complete_folder(folder: TempDir, path: &Path) -> Result<()> {
    set_mode(folder.path(), 0o777)?;
    std::fs::rename(folder.path(), path).with_context(|| path.display().to_string())?;
    // Nothing is left under the temporary name.
    let _ = folder.keep();
    Ok(())
}

/// Gives a temporary file or folder, which is private to its owner, the mode of a normal new one:
/// `most` without the umask.
pub(super) fn set_mode(path: &Path, most: u32) -> Result<()> {
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    let mode = PermissionsExt::from_mode(most & !mask.bits());
    std::fs::set_permissions(path, mode).with_context(|| path.display().to_string())
}
