//! Copies from an image to the host.

use std::collections::HashMap;
use std::fs::File as HostFile;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use blockyard_disk::{FileType, InodeNr, Timestamp};
use rustix::fs::{AtFlags, CWD, FileType as HostType, Gid, Mode, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::attributes;
use crate::error::{Error, Reason, Result};
use crate::file_system::FileSystem;
use crate::metadata::Metadata;

/// The set-user-ID and set-group-ID bits.
const SET_ID: u16 = 0o6000;

/// See [`FileSystem::copy_out`].
pub(crate) fn copy_out(fs: &FileSystem, source: &Path, dest: &Path) -> Result<u64> {
    let mut copier = Copier { fs, known: HashMap::new(), directories: Vec::new(), copied: 0 };
    let found = fs.symlink_metadata(source)?;
    copier.copy(source, dest, &found)?;
    if found.is_dir() {
        for entry in fs.walk(source)? {
            let entry = entry?;
            let below = entry.path().strip_prefix(source).unwrap_or(entry.path());
            copier.copy(entry.path(), &dest.join(below), &entry.metadata()?)?;
        }
    }
    copier.finish()
}

struct Copier<'a> {
    fs: &'a FileSystem,
    /// The first copy of each file that has several names, by the file's inode number.
    known: HashMap<InodeNr, PathBuf>,
    /// Directories get their attributes last. Making an entry changes the times of its directory,
    /// and may need a permission that the directory's final mode does not give.
    directories: Vec<(PathBuf, PathBuf, Metadata)>,
    copied: u64,
}

impl Copier<'_> {
    fn copy(&mut self, source: &Path, dest: &Path, found: &Metadata) -> Result<()> {
        self.copied += 1;
        if !found.is_dir() && found.nlink() > 1 {
            if let Some(first) = self.known.get(&found.ino()) {
                return on_host(dest, std::fs::hard_link(first, dest));
            }
            self.known.insert(found.ino(), dest.to_owned());
        }
        self.make(source, dest, found)?;
        if found.is_dir() {
            self.directories.push((source.to_owned(), dest.to_owned(), *found));
            return Ok(());
        }
        self.give_attributes(source, dest, found)
    }

    fn make(&self, source: &Path, dest: &Path, found: &Metadata) -> Result<()> {
        let node = |kind: HostType| {
            let device =
                found.attributes().device.map_or(0, |device| rustix::fs::makedev(device.major, device.minor));
            rustix::fs::mknodat(CWD, dest, kind, Mode::RUSR | Mode::WUSR, device)
                .map_err(std::io::Error::from)
        };
        let made = match found.file_type() {
            FileType::Regular => return self.copy_content(source, dest, found.len()),
            FileType::Symlink => std::os::unix::fs::symlink(self.fs.read_link(source)?, dest),
            FileType::Directory => match std::fs::create_dir(dest) {
                Err(_) if self.may_fill(dest) => Ok(()),
                made => made,
            },
            FileType::Fifo => node(HostType::Fifo),
            FileType::Socket => node(HostType::Socket),
            FileType::CharDevice => node(HostType::CharacterDevice),
            FileType::BlockDevice => node(HostType::BlockDevice),
        };
        on_host(dest, made)
    }

    /// Whether `dest` is an existing directory that entries may be copied into. Only the
    /// destination of the whole copy may be a symbolic link to a directory.
    fn may_fill(&self, dest: &Path) -> bool {
        let is_destination = self.copied == 1;
        if is_destination { dest.is_dir() } else { dest.is_dir() && !dest.is_symlink() }
    }

    fn copy_content(&self, source: &Path, dest: &Path, size: u64) -> Result<()> {
        let from = self.fs.open(source)?;
        // An existing symbolic link is replaced, not followed.
        if dest.is_symlink() {
            on_host(dest, std::fs::remove_file(dest))?;
        }
        let to = on_host(dest, HostFile::create(dest))?;
        from.each_data(|bytes, at| on_host(dest, to.write_all_at(bytes, at)))?;
        on_host(dest, to.set_len(size))
    }

    fn give_attributes(&self, source: &Path, dest: &Path, found: &Metadata) -> Result<()> {
        let all = found.attributes();
        let owner = rustix::fs::chownat(
            CWD,
            dest,
            Some(Uid::from_raw(all.uid)),
            Some(Gid::from_raw(all.gid)),
            AtFlags::SYMLINK_NOFOLLOW,
        );
        let is_owned = match owner {
            Ok(()) => true,
            // Without privilege, the copy keeps the owner that it was created with.
            Err(Errno::PERM) => false,
            Err(errno) => return Err(Error::at(dest, Reason::Host(errno.into()))),
        };
        for name in self.fs.symlink_xattr_names(source)? {
            let Some(value) = self.fs.symlink_xattr(source, &name)? else { continue };
            on_host(dest, attributes::set(dest, &name, &value))?;
        }
        if !found.is_symlink() {
            // If the owner could not be set, a set-id program would run as the user who copied it.
            let lost = if is_owned || found.is_dir() { 0 } else { SET_ID };
            let mode = std::fs::Permissions::from_mode((found.mode() & !lost).into());
            on_host(dest, std::fs::set_permissions(dest, mode))?;
        }
        // A damaged inode may hold more than 999,999,999 nanoseconds. utimensat takes two such
        // values as commands: UTIME_NOW and UTIME_OMIT.
        let time = |time: Timestamp| Timespec {
            tv_sec: time.seconds,
            tv_nsec: time.nanoseconds.min(999_999_999).into(),
        };
        let times = Timestamps { last_access: time(all.accessed), last_modification: time(all.modified) };
        let set = rustix::fs::utimensat(CWD, dest, &times, AtFlags::SYMLINK_NOFOLLOW);
        on_host(dest, set.map_err(Into::into))
    }

    fn finish(self) -> Result<u64> {
        for (source, dest, found) in self.directories.iter().rev() {
            self.give_attributes(source, dest, found)?;
        }
        Ok(self.copied)
    }
}

fn on_host<T>(path: &Path, done: std::io::Result<T>) -> Result<T> {
    done.map_err(|error| Error::at(path, Reason::Host(error)))
}
