//! Files of the host, for `put` and `get`: data without holes, extended attributes, permissions.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use anyhow::{Context, Result};
use blockyard_disk::Timestamp;
use blockyard_disk::num::{low16, u64_from_usize, usize_from_u64};
use rustix::fs::{AtFlags, CWD, SeekFrom, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

/// Longest list of attribute names and longest value on Linux.
const XATTR_MAX: usize = 1 << 16;

/// The low 12 bits of the mode.
pub(super) fn permissions(metadata: &Metadata) -> u16 {
    low16(metadata.mode()) & 0o7777
}

/// Calls `visit` with the data of a file in ascending order, at most `buf` at a time; holes are left out where the
/// host knows them.
pub(super) fn for_each_data(
    file: &File,
    buf: &mut [u8],
    mut visit: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut at = 0;
    while let Some((start, end)) = next_data(file, at)? {
        at = start;
        while at < end {
            let wanted = usize_from_u64((end - at).min(u64_from_usize(buf.len())));
            let length = file.read_at(&mut buf[..wanted], at).context("read")?;
            if length == 0 {
                // It became shorter meanwhile.
                return Ok(());
            }
            visit(at, &buf[..length])?;
            at += u64_from_usize(length);
        }
    }
    Ok(())
}

/// The first stretch of data at or after a position.
fn next_data(file: &File, from: u64) -> Result<Option<(u64, u64)>> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // A host that knows no holes.
        Err(Errno::INVAL) => {
            let size = file.metadata()?.size();
            return Ok((from < size).then_some((from, size)));
        }
        Err(errno) => return Err(io::Error::from(errno)).context("find data"),
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start))
        .map_err(io::Error::from)
        .context("find the next hole")?;
    Ok(Some((start, end)))
}

/// Names and values of the extended attributes of a file, sorted; a link is not followed. Empty where the host has
/// none.
pub(super) fn xattrs(path: &Path) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut names = vec![0; XATTR_MAX];
    let length = match rustix::fs::llistxattr(path, &mut names) {
        Ok(length) => length,
        Err(Errno::NOTSUP) => 0,
        Err(errno) => return Err(io::Error::from(errno)).context("list attributes"),
    };
    let mut found = Vec::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; XATTR_MAX];
        match rustix::fs::lgetxattr(path, name, &mut value) {
            Ok(length) => found.push((name.to_vec(), value[..length].to_vec())),
            // Gone meanwhile, or listed and not to be had.
            Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(errno) => return Err(io::Error::from(errno)).context("read an attribute"),
        }
    }
    found.sort();
    Ok(found)
}

/// Sets an attribute; a link is not followed. Without root, attributes that only root may set are left out, and so are
/// all where the host keeps none.
pub(super) fn set_xattr(path: &Path, name: &[u8], value: &[u8], is_root: bool) -> Result<()> {
    match rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()) {
        Err(Errno::NOTSUP) => Ok(()),
        Err(Errno::PERM | Errno::ACCESS) if !is_root => Ok(()),
        done => done
            .map_err(io::Error::from)
            .with_context(|| format!("set the attribute {}", String::from_utf8_lossy(name))),
    }
}

/// Sets the low 12 bits of the mode.
pub(super) fn set_permissions(path: &Path, mode: u16) -> Result<()> {
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(u32::from(mode & 0o7777));
    std::fs::set_permissions(path, permissions).context("set permissions")
}

/// Sets the times of access and of the last change; a link is not followed.
pub(super) fn set_times(path: &Path, accessed: Timestamp, modified: Timestamp) -> Result<()> {
    let spec = |time: Timestamp| Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanoseconds.min(999_999_999).into(),
    };
    let times = Timestamps { last_access: spec(accessed), last_modification: spec(modified) };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(io::Error::from)
        .context("set times")
}
