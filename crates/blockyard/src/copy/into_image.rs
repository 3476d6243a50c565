//! Copies from the host into an image.

use std::collections::HashMap;
use std::fs::{File as HostFile, Metadata as HostMetadata};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use blockyard_disk::{FileType, Timestamp, device_number::DeviceNumber};
use blockyard_engine::SetAttributes;
use rustix::fs::{SeekFrom, seek};

use super::attributes;
use crate::error::{Error, Reason, Result};
use crate::file_system::FileSystem;

/// Bytes copied at a time.
const PIECE: usize = 1 << 20;

/// A file, link or directory to copy, and its destination.
struct Task {
    source: PathBuf,
    dest: PathBuf,
}

/// See [`FileSystem::copy_in`].
pub(crate) fn copy_in(fs: &FileSystem, source: &Path, dest: &Path) -> Result<u64> {
    let mut copied = 0;
    // The first copy of each file that has several names, by the file's device and inode number.
    let mut known: HashMap<(u64, u64), PathBuf> = HashMap::new();
    let mut tasks = vec![Task { source: source.to_owned(), dest: dest.to_owned() }];
    let mut directories = Vec::new();
    while let Some(task) = tasks.pop() {
        let found = on_host(&task.source, std::fs::symlink_metadata(&task.source))?;
        copied += 1;
        let identity = (found.dev(), found.ino());
        if !found.is_dir() && found.nlink() > 1 {
            if let Some(first) = known.get(&identity) {
                match fs.hard_link(first, &task.dest) {
                    // An earlier copy may have made this hard link already.
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                        if fs.symlink_metadata(first)?.id() != fs.symlink_metadata(&task.dest)?.id() {
                            return Err(error);
                        }
                    }
                    linked => linked?,
                }
                continue;
            }
            known.insert(identity, task.dest.clone());
        }
        make(fs, &task, &found)?;
        if found.is_dir() {
            let entries = on_host(&task.source, std::fs::read_dir(&task.source))?;
            let mut names = Vec::new();
            for entry in entries {
                names.push(on_host(&task.source, entry)?.file_name());
            }
            // `tasks` is a stack, so push the names in reverse order.
            names.sort_unstable_by(|a, b| b.cmp(a));
            tasks.extend(
                names.iter().map(|name| Task { source: task.source.join(name), dest: task.dest.join(name) }),
            );
            directories.push((task, found));
        } else {
            give_attributes(fs, &task, &found)?;
        }
    }
    // Directories get their attributes last, because entries made in a directory change its times.
    for (task, found) in directories.iter().rev() {
        give_attributes(fs, task, found)?;
    }
    Ok(copied)
}

fn make(fs: &FileSystem, task: &Task, found: &HostMetadata) -> Result<()> {
    let kind = found.file_type();
    let node = |kind, device| fs.make_node(&task.dest, kind, permissions(found), device);
    if kind.is_dir() {
        return fs.create_dir_all(&task.dest);
    } else if kind.is_symlink() {
        let target = on_host(&task.source, std::fs::read_link(&task.source))?;
        return fs.symlink(target, &task.dest);
    } else if kind.is_fifo() {
        return node(FileType::Fifo, None);
    } else if kind.is_socket() {
        return node(FileType::Socket, None);
    } else if kind.is_file() {
        return copy_content(fs, task, found.len());
    }
    let number = found.rdev();
    let device = DeviceNumber { major: rustix::fs::major(number), minor: rustix::fs::minor(number) };
    let kind = if kind.is_block_device() { FileType::BlockDevice } else { FileType::CharDevice };
    node(kind, Some(device))
}

fn copy_content(fs: &FileSystem, task: &Task, size: u64) -> Result<()> {
    let source = on_host(&task.source, HostFile::open(&task.source))?;
    let dest = fs.create(&task.dest)?;
    let mut buf = vec![0; PIECE.min(usize_from_u64(size.max(1)))];
    let mut at = 0;
    while let Some((start, end)) = next_data(&source, at, size) {
        at = start;
        while at < end {
            let most = usize_from_u64((end - at).min(u64_from_usize(buf.len())));
            let read = on_host(&task.source, source.read_at(&mut buf[..most], at))?;
            if read == 0 {
                // The source was truncated after its size was read.
                return dest.set_len(at);
            }
            dest.write_all_at(&buf[..read], at).map_err(|error| Error::at(&task.dest, error))?;
            at += u64_from_usize(read);
        }
    }
    dest.set_len(size)
}

/// The next range at or after `from` that is not a hole; `None` if there is none before `size`.
fn next_data(file: &HostFile, from: u64, size: u64) -> Option<(u64, u64)> {
    if from >= size {
        return None;
    }
    match seek(file, SeekFrom::Data(from)) {
        Ok(start) => {
            let end = seek(file, SeekFrom::Hole(start)).unwrap_or(size);
            (start < size).then_some((start, end.min(size)))
        }
        Err(rustix::io::Errno::NXIO) => None,
        // The host cannot tell where holes are. Take the rest of the file for data.
        Err(_) => Some((from, size)),
    }
}

fn give_attributes(fs: &FileSystem, task: &Task, found: &HostMetadata) -> Result<()> {
    for (name, value) in on_host(&task.source, attributes::read(&task.source))? {
        if found.is_symlink() {
            fs.set_symlink_xattr(&task.dest, &name, &value)?;
        } else {
            fs.set_xattr(&task.dest, &name, &value)?;
        }
    }
    let time = |seconds: i64, nanoseconds: i64| Timestamp {
        seconds,
        nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
    };
    let changes = SetAttributes {
        permissions: (!found.is_symlink()).then(|| permissions(found)),
        uid: Some(found.uid()),
        gid: Some(found.gid()),
        accessed: Some(time(found.atime(), found.atime_nsec())),
        modified: Some(time(found.mtime(), found.mtime_nsec())),
        ..SetAttributes::default()
    };
    // If there is a symbolic link at the destination of a file, the content was written to the
    // link's target. So the attributes go to the target as well, and the link keeps its own.
    if found.is_symlink() {
        fs.set_symlink_attributes(&task.dest, &changes)
    } else {
        fs.set_attributes(&task.dest, &changes)
    }
}

fn permissions(found: &HostMetadata) -> u16 {
    u16::try_from(found.mode() & 0o7777).unwrap_or(0)
}

fn on_host<T>(path: &Path, done: std::io::Result<T>) -> Result<T> {
    done.map_err(|error| Error::at(path, Reason::Host(error)))
}
