//! Files of the host, for `put` and `get`: data without holes, extended attributes, permissions,
//! times, flags.

use std::fs::{DirEntry, File, Metadata};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use blockyard_disk::Timestamp;
use blockyard_disk::num::{low16, u64_from_usize, usize_from_u64};
use rustix::fs::{AtFlags, CWD, IFlags, OFlags, SeekFrom, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

/// Linux's limit in bytes for a list of attribute names, and for a value.
const XATTR_MAX: usize = 1 << 16;

/// An error with a file of the host, as opposed to an error of the image.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", path.display())]
pub(super) struct HostError {
    path: PathBuf,
    error: io::Error,
}

impl HostError {
    /// What went wrong, without the path.
    pub(super) fn cause(&self) -> &io::Error {
        &self.error
    }

    /// Whether the host's file system is full, or a quota is exceeded.
    pub(super) fn is_full(&self) -> bool {
        matches!(self.error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
    }
}

impl From<walkdir::Error> for HostError {
    fn from(error: walkdir::Error) -> Self {
        let path = error.path().unwrap_or(Path::new("")).to_owned();
        Self { path, error: error.into_io_error().unwrap_or_else(|| Errno::LOOP.into()) }
    }
}

/// The error for a host file that cannot be a source or destination.
pub(super) fn refused(path: &Path, what: &str) -> anyhow::Error {
    let error = io::Error::new(ErrorKind::InvalidInput, what.to_owned());
    HostError { path: path.to_owned(), error }.into()
}

/// Adds the path to an error of the host.
pub(super) trait OnHost<T> {
    /// The same result, with `path` added to the error.
    fn on_host(self, path: &Path) -> Result<T, HostError>;
}

impl<T, E: Into<io::Error>> OnHost<T> for Result<T, E> {
    fn on_host(self, path: &Path) -> Result<T, HostError> {
        self.map_err(|error| HostError { path: path.to_owned(), error: error.into() })
    }
}

/// Refuses a directory in which copies could replace files. A missing directory is accepted, and so
/// is one that holds only an empty lost+found, as a new file system does.
pub(super) fn refuse_occupied(directory: &Path) -> Result<()> {
    // A lost+found that this user cannot read belongs to someone else, and is taken for empty.
    let is_empty = |path: &Path| match std::fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == ErrorKind::PermissionDenied,
    };
    refuse(directory, |entry| entry.file_name() != "lost+found" || !is_empty(&entry.path()))
}

/// Refuses a directory that has entries, because it is to be replaced. A missing directory is
/// accepted.
pub(super) fn refuse_entries(directory: &Path) -> Result<()> {
    refuse(directory, |_| true)
}

fn refuse(directory: &Path, is_obstacle: impl Fn(&DirEntry) -> bool) -> Result<()> {
    let name = || directory.display().to_string();
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(name)?,
    };
    for entry in entries {
        if is_obstacle(&entry.with_context(name)?) {
            bail!("{}: is not empty; give an empty directory or a new name", name());
        }
    }
    Ok(())
}

/// The host's error in a chain of causes, if there is one.
pub(super) fn host_error(error: &anyhow::Error) -> Option<&HostError> {
    error.chain().find_map(|cause| cause.downcast_ref())
}

/// The low 12 bits of the mode.
pub(super) fn permissions(metadata: &Metadata) -> u16 {
    low16(metadata.mode()) & 0o7777
}

/// Calls `visit` with the data of a file in ascending order, at most `buf.len()` bytes at a time.
/// Skips holes if the host reports them.
pub(super) fn for_each_data(
    file: &File,
    path: &Path,
    buf: &mut [u8],
    mut visit: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut at = 0;
    while let Some((start, end)) = next_data(file, at).on_host(path)? {
        at = start;
        while at < end {
            let wanted = usize_from_u64((end - at).min(u64_from_usize(buf.len())));
            let length = file.read_at(&mut buf[..wanted], at).on_host(path)?;
            if length == 0 {
                // The file became shorter meanwhile.
                return Ok(());
            }
            visit(at, &buf[..length])?;
            at += u64_from_usize(length);
        }
    }
    Ok(())
}

/// As [`for_each_data`], but treats blocks of `block` bytes that are all zero as holes, even where
/// the host reports data. `visit` gets runs of the blocks that have content. So a file and a copy
/// of the file with other holes give the same calls.
pub(super) fn for_each_run_of_content(
    file: &File,
    path: &Path,
    buf: &mut [u8],
    block: usize,
    mut visit: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let chunk = u64_from_usize(buf.len());
    let mut at = 0;
    while let Some((start, _)) = next_data(file, at).on_host(path)? {
        at = start - start % chunk;
        let mut length = 0;
        while length < buf.len() {
            match file.read_at(&mut buf[length..], at + u64_from_usize(length)).on_host(path)? {
                0 => break,
                more => length += more,
            }
        }
        for run in runs_of_content(&buf[..length], block) {
            visit(at + u64_from_usize(run.start), &buf[run])?;
        }
        at += chunk;
    }
    Ok(())
}

/// The ranges of blocks that are not all zero, with neighbours joined.
fn runs_of_content(bytes: &[u8], block: usize) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (index, piece) in bytes.chunks(block).enumerate() {
        if piece.iter().all(|byte| *byte == 0) {
            continue;
        }
        let start = index * block;
        match runs.last_mut() {
            Some(last) if last.end == start => last.end += piece.len(),
            _ => runs.push(start..start + piece.len()),
        }
    }
    runs
}

/// The first range of data at or after a position; `None` if there is none.
fn next_data(file: &File, from: u64) -> io::Result<Option<(u64, u64)>> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // The host does not report holes.
        Err(Errno::INVAL) => {
            let size = file.metadata()?.size();
            return Ok((from < size).then_some((from, size)));
        }
        Err(errno) => return Err(errno.into()),
    };
    Ok(Some((start, rustix::fs::seek(file, SeekFrom::Hole(start))?)))
}

/// The inode flags that `lsattr` shows; `None` if the host does not report them.
pub(super) fn flags(file: &File) -> Option<u32> {
    rustix::fs::ioctl_getflags(file).ok().map(|flags| flags.bits())
}

/// Sets inode flags in addition to those that are set.
pub(super) fn add_flags(path: &Path, flags: u32) -> io::Result<()> {
    let file = File::options().read(true).custom_flags(NO_FOLLOW).open(path)?;
    let before = rustix::fs::ioctl_getflags(&file)?;
    Ok(rustix::fs::ioctl_setflags(&file, before | IFlags::from_bits_retain(flags))?)
}

/// Flags of `open`: do not follow a link, and do not wait for the other end of a pipe.
const NO_FOLLOW: i32 = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits().cast_signed();

/// What a symbolic link at the end of a path stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Links {
    /// For itself.
    Kept,
    /// For its target.
    Followed,
}

impl Links {
    /// The metadata of a path of the host.
    pub(super) fn metadata(self, path: &Path) -> Result<Metadata, HostError> {
        let found = match self {
            Self::Kept => std::fs::symlink_metadata(path),
            Self::Followed => std::fs::metadata(path),
        };
        found.on_host(path)
    }
}

/// Name and value of an extended attribute.
type Xattr = (Vec<u8>, Vec<u8>);

/// Names and values of a file's extended attributes, sorted. Empty if the host does not support
/// them.
pub(super) fn xattrs(path: &Path, links: Links) -> Result<Vec<Xattr>, HostError> {
    let mut names = vec![0; XATTR_MAX];
    let listed = match links {
        Links::Kept => rustix::fs::llistxattr(path, &mut names),
        Links::Followed => rustix::fs::listxattr(path, &mut names),
    };
    let length = match listed {
        Err(Errno::NOTSUP) => 0,
        listed => listed.on_host(path)?,
    };
    let mut found = Vec::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; XATTR_MAX];
        let read = match links {
            Links::Kept => rustix::fs::lgetxattr(path, name, &mut value),
            Links::Followed => rustix::fs::getxattr(path, name, &mut value),
        };
        match read {
            // The attribute was removed after it was listed, or is listed but not readable.
            Err(Errno::NODATA | Errno::NOTSUP) => {}
            read => found.push((name.to_vec(), value[..read.on_host(path)?].to_vec())),
        }
    }
    found.sort();
    Ok(found)
}

/// Whether an attribute or an owner was set. `No`: the host does not support it, or allows it only
/// to root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    Yes,
    No,
}

/// Sets an attribute; a symbolic link is not followed. Attributes that the host does not support
/// are left out. If `is_root` is false, attributes that the user may not set are left out, too.
pub(super) fn set_xattr(path: &Path, name: &[u8], value: &[u8], is_root: bool) -> Result<Kept> {
    match rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()) {
        Err(Errno::NOTSUP) => Ok(Kept::No),
        Err(Errno::PERM | Errno::ACCESS) if !is_root => Ok(Kept::No),
        done => {
            done.on_host(path)
                .with_context(|| format!("set the attribute {}", String::from_utf8_lossy(name)))?;
            Ok(Kept::Yes)
        }
    }
}

/// Sets the low 12 bits of the mode.
pub(super) fn set_permissions(path: &Path, mode: u16) -> Result<(), HostError> {
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(u32::from(mode & 0o7777));
    std::fs::set_permissions(path, permissions).on_host(path)
}

/// Sets the access and modification times; a symbolic link is not followed.
pub(super) fn set_times(path: &Path, accessed: Timestamp, modified: Timestamp) -> Result<(), HostError> {
    let spec = |time: Timestamp| Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanoseconds.min(999_999_999).into(),
    };
    let times = Timestamps { last_access: spec(accessed), last_modification: spec(modified) };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).on_host(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroes_are_no_content() {
        let mut bytes = vec![0; 40];
        assert!(runs_of_content(&bytes, 8).is_empty());
        bytes[9] = 1;
        bytes[16] = 1;
        bytes[39] = 1;
        assert_eq!(runs_of_content(&bytes, 8), [8..24, 32..40]);
        assert_eq!(runs_of_content(&bytes[..12], 8).first(), Some(&(8..12)));
    }
}
