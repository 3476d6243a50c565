//! The trace lines of each event.

use std::collections::HashSet;

use blockyard::disk::device_number::DeviceNumber;
use blockyard::{FileType, RenameMode};
use blockyard_trace::Op;

use super::Event;
use super::names::{Name, Names};

/// The descriptor in the line of a failed open, and in the three lines (open, truncate, close) of a
/// truncation by path.
const FOR_ONE_CALL: u32 = u32::MAX;
/// The temporary name through which two names are exchanged.
const ASIDE: &[u8] = b".exchanged-aside";
/// Errors that follow from names alone, so that a replay gets them too: ENOENT, EEXIST, ENOTDIR,
/// EISDIR, EMLINK, ENAMETOOLONG, ENOTEMPTY. Other errors have causes that no trace records.
const OF_NAMES: [i32; 7] = [2, 17, 20, 21, 31, 36, 39];

/// Turns events into lines.
#[derive(Default)]
pub(super) struct Lines {
    names: Names,
    /// The descriptors that a line has opened and no line has closed yet.
    open: HashSet<u32>,
}

impl Lines {
    /// Adds the lines of an event to `ops`. `Seen` and `Forgotten` have none: they only change the
    /// known names. An event becomes a note in three cases:
    ///
    /// - It needs a path that is not known, or a file that no line has opened.
    /// - The format has no line for it.
    /// - It failed in a way that a replay would not repeat.
    pub(super) fn add(&mut self, event: Event, errno: Option<i32>, ops: &mut Vec<Op>) {
        let (call, inode, range) = event.as_note();
        let is_played = errno.is_none_or(|errno| OF_NAMES.contains(&errno));
        let before = ops.len();
        match event {
            Event::Forgotten { inode } => return self.names.forget(inode),
            Event::Seen { parent, name, inode } => return self.names.add(inode, (parent, name)),
            Event::Lookup { parent, name, inode } => {
                let name = (parent, name);
                ops.push(note(call, self.names.join(&name), range));
                if let Some(inode) = inode {
                    self.names.add(inode, name);
                }
                return;
            }
            Event::Note { .. } => {}
            event if is_played => {
                if let Some(event) = self.of_names(event, errno.is_none(), ops) {
                    self.of_files(event, errno.is_none(), ops);
                }
            }
            _ => {}
        }
        if ops.len() == before {
            let path = inode.and_then(|inode| self.names.path(inode));
            ops.push(note(call, path, range));
        }
    }

    /// Adds the lines of an event about names to `ops`. Returns an event of another kind unchanged.
    fn of_names(&mut self, event: Event, went_well: bool, ops: &mut Vec<Op>) -> Option<Event> {
        match event {
            Event::Make { parent, name, kind, permissions, device, inode } => {
                let mode = u32::from(permissions);
                let DeviceNumber { major, minor } = device.unwrap_or(DeviceNumber { major: 0, minor: 0 });
                ops.extend(self.made((parent, name), inode, |path| match kind {
                    FileType::Directory => Op::Mkdir { path, mode },
                    kind => Op::Mknod { path, mode: mode | u32::from(kind.mode_bits()), major, minor },
                }));
            }
            Event::Symlink { parent, name, target, inode } => {
                let target = String::from_utf8_lossy(&target).into_owned();
                ops.extend(self.made((parent, name), inode, |path| Op::Symlink { target, path }));
            }
            Event::Link { inode, parent, name } => {
                let target = self.names.path(inode)?;
                let made = went_well.then_some(inode);
                ops.extend(self.made((parent, name), made, |path| Op::Link { target, path }));
            }
            Event::Unlink { parent, name } => {
                let name = (parent, name);
                ops.extend(self.names.join(&name).map(|path| Op::Unlink { path }));
                if went_well {
                    self.names.remove(&name);
                }
            }
            Event::RemoveDirectory { parent, name } => {
                let name = (parent, name);
                ops.extend(self.names.join(&name).map(|path| Op::Rmdir { path }));
                if went_well {
                    self.names.remove(&name);
                }
            }
            Event::Rename { from, to, mode } => self.renamed(from, to, mode, went_well, ops),
            event => return Some(event),
        }
        None
    }

    /// The line of an operation that makes a name. `inode` is set if it succeeded; then the name is
    /// recorded as a name of this inode.
    fn made(&mut self, name: Name, inode: Option<u64>, op: impl FnOnce(String) -> Op) -> Option<Op> {
        let path = self.names.join(&name);
        if let Some(inode) = inode {
            self.names.add(inode, name);
        }
        path.map(op)
    }

    /// The lines of a rename. An exchange becomes three renames: one name is first moved aside.
    fn renamed(&mut self, from: Name, to: Name, mode: RenameMode, went_well: bool, ops: &mut Vec<Op>) {
        let paths = (self.names.join(&from), self.names.join(&to), self.names.join(&(1, ASIDE.to_vec())));
        let (Some(old), Some(new), Some(aside)) = paths else { return };
        let rename = |from: &str, to: &str| Op::Rename { from: from.to_owned(), to: to.to_owned() };
        match mode {
            RenameMode::Exchange if went_well => {
                ops.extend([rename(&old, &aside), rename(&new, &old), rename(&aside, &new)]);
                self.names.exchange(from, to);
            }
            RenameMode::NoReplace | RenameMode::Replace if went_well => {
                ops.push(rename(&old, &new));
                self.names.rename(&from, to);
            }
            RenameMode::Replace => ops.push(rename(&old, &new)),
            // A replay knows only the plain rename, which might succeed.
            RenameMode::Exchange | RenameMode::NoReplace => {}
        }
    }

    /// The lines of an event about the content of files and their attributes.
    fn of_files(&mut self, event: Event, went_well: bool, ops: &mut Vec<Op>) {
        match event {
            Event::Create { parent, name, made } => {
                let flags = "rw,create,excl".to_owned();
                let fd = made.map_or(FOR_ONE_CALL, |(_, handle)| fd(handle));
                let op = self.made((parent, name), made.map(|(inode, _)| inode), |path| Op::Open {
                    fd,
                    path,
                    flags,
                });
                self.opened(op, went_well, ops);
            }
            Event::Open { inode, writes, direct, handle } => {
                let flags =
                    format!("{}{}", if writes { "rw" } else { "r" }, if direct { ",direct" } else { "" });
                let fd = handle.map_or(FOR_ONE_CALL, fd);
                let op = self.names.path(inode).map(|path| Op::Open { fd, path, flags });
                self.opened(op, went_well, ops);
            }
            Event::Close { handle } => {
                let fd = fd(handle);
                ops.extend(self.open.remove(&fd).then_some(Op::Close { fd }));
            }
            Event::Write { handle, offset, len, .. } => {
                ops.extend(self.of_open(handle).map(|fd| Op::Pwrite { fd, off: offset, len }));
            }
            Event::Fallocate { handle, mode, offset, len } => {
                let mode = fallocate_words(mode);
                ops.extend(self.of_open(handle).map(|fd| Op::Fallocate { fd, mode, off: offset, len }));
            }
            Event::Fsync { handle, only_data } => {
                let op = |fd| if only_data { Op::Fdatasync { fd } } else { Op::Fsync { fd } };
                ops.extend(self.of_open(handle).map(op));
            }
            Event::Truncate { inode, handle, len } => {
                if let Some(fd) = handle.and_then(|handle| self.of_open(handle)) {
                    ops.push(Op::Ftruncate { fd, len });
                } else if let Some(path) = self.names.path(inode).filter(|_| went_well) {
                    let (fd, flags) = (FOR_ONE_CALL, "rw".to_owned());
                    ops.extend([Op::Open { fd, path, flags }, Op::Ftruncate { fd, len }, Op::Close { fd }]);
                }
            }
            Event::SetXattr { inode, name, len } => {
                let name = String::from_utf8_lossy(&name).into_owned();
                ops.extend(self.names.path(inode).map(|path| Op::Setxattr { path, name, len }));
            }
            _ => {}
        }
    }

    fn opened(&mut self, op: Option<Op>, went_well: bool, ops: &mut Vec<Op>) {
        if let Some(Op::Open { fd, .. }) = &op
            && went_well
        {
            self.open.insert(*fd);
        }
        ops.extend(op);
    }

    /// The descriptor under which a line opened a file; `None` if no line did, because no path of
    /// the file was known then.
    fn of_open(&self, handle: u64) -> Option<u32> {
        Some(fd(handle)).filter(|fd| self.open.contains(fd))
    }
}

fn note(call: &str, path: Option<String>, range: Option<(u64, u64)>) -> Op {
    Op::Note { call: call.to_owned(), path, off: range.map(|range| range.0), len: range.map(|range| range.1) }
}

fn fd(handle: u64) -> u32 {
    blockyard::disk::num::low32(handle)
}

fn fallocate_words(mode: u32) -> String {
    const WORDS: [(u32, &str); 5] = [
        (1, "keep_size"),
        (2, "punch_hole"),
        (8, "collapse_range"),
        (16, "zero_range"),
        (32, "insert_range"),
    ];
    let words: Vec<&str> = WORDS.iter().filter(|(bit, _)| mode & bit != 0).map(|(_, word)| *word).collect();
    words.join(",")
}

#[cfg(test)]
mod tests;
