//! Recording what a mount is asked, as lines of the format of `blockyard-trace`.
//!
//! Threads that answer only send what happened; one thread puts paths to inodes, from the names that the kernel was told, and
//! writes. An operation without a line of its own in the format is a note: who plays the trace goes past it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use blockyard::FileType;
use blockyard::disk::device_number::DeviceNumber;
use blockyard_sync::CpuSlot;
use blockyard_trace::{Line, Op};

/// Events that may wait to be written; who answers waits beyond.
const WAITING_MAX: usize = 65_536;
/// How long lines stay in memory when nothing comes.
const FLUSH_AFTER: Duration = Duration::from_secs(1);
/// What the kernel calls the root directory by.
const ROOT: u64 = 1;

/// What a mount was asked, and what it answered where that names inodes.
#[derive(Debug)]
pub(crate) enum Event {
    /// A name stands for an inode.
    Lookup {
        parent: u64,
        name: Vec<u8>,
        inode: Option<u64>,
    },
    /// Something other than an open file was made; `inode` where that went well.
    Make {
        parent: u64,
        name: Vec<u8>,
        kind: FileType,
        permissions: u16,
        device: Option<DeviceNumber>,
        inode: Option<u64>,
    },
    Symlink {
        parent: u64,
        name: Vec<u8>,
        target: Vec<u8>,
        inode: Option<u64>,
    },
    Link {
        inode: u64,
        parent: u64,
        name: Vec<u8>,
    },
    Unlink {
        parent: u64,
        name: Vec<u8>,
    },
    RemoveDirectory {
        parent: u64,
        name: Vec<u8>,
    },
    Rename {
        from: (u64, Vec<u8>),
        to: (u64, Vec<u8>),
    },
    /// Made and opened; inode and handle where that went well.
    Create {
        parent: u64,
        name: Vec<u8>,
        made: Option<(u64, u64)>,
    },
    Open {
        inode: u64,
        writes: bool,
        direct: bool,
        handle: Option<u64>,
    },
    Close {
        handle: u64,
    },
    Write {
        handle: u64,
        offset: u64,
        len: u64,
    },
    Truncate {
        inode: u64,
        handle: Option<u64>,
        len: u64,
    },
    Fallocate {
        handle: u64,
        mode: u32,
        offset: u64,
        len: u64,
    },
    Fsync {
        handle: u64,
        only_data: bool,
    },
    SetXattr {
        inode: u64,
        name: Vec<u8>,
        len: u64,
    },
    /// Anything else.
    Note {
        call: &'static str,
        inode: Option<u64>,
        range: Option<(u64, u64)>,
    },
    /// The kernel has forgotten an inode.
    Forgotten {
        inode: u64,
    },
}

struct Sent {
    event: Event,
    errno: Option<i32>,
    at: Duration,
    worker: u32,
}

/// Writes a trace until it is dropped.
pub(crate) struct Recorder {
    began: Instant,
    sender: Option<SyncSender<Sent>>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Recorder {
    /// To a new file.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        let out = BufWriter::with_capacity(1 << 20, File::create(path)?);
        let (sender, events) = sync_channel(WAITING_MAX);
        let writer = Writer { out, places: HashMap::new(), names: HashMap::new() };
        let thread = thread::Builder::new().name("blockyard-trace".to_owned());
        let thread = thread.spawn(move || writer.run(&events))?;
        Ok(Self { began: Instant::now(), sender: Some(sender), thread: Some(thread) })
    }

    /// Notes what was asked at `came`, and how it ended.
    pub(crate) fn note(&self, came: Instant, event: Event, errno: Option<i32>) {
        let at = came.saturating_duration_since(self.began);
        let sent = Sent { event, errno, at, worker: CpuSlot::of_thread().raw() };
        if let Some(sender) = &self.sender {
            // The writer ends early only when the file can not be written; it says so then.
            let _ = sender.send(sent);
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.sender = None;
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => tracing::error!(%error, "the trace could not be written"),
            Some(Err(_)) => tracing::error!("writing the trace panicked"),
            Some(Ok(Ok(()))) | None => {}
        }
    }
}

/// Puts lines together.
struct Writer<W: Write> {
    out: W,
    /// Where an inode was last seen: its directory and its name there.
    places: HashMap<u64, (u64, Vec<u8>)>,
    /// The same the other way round.
    names: HashMap<(u64, Vec<u8>), u64>,
}

impl<W: Write> Writer<W> {
    fn run(mut self, events: &Receiver<Sent>) -> io::Result<()> {
        loop {
            match events.recv_timeout(FLUSH_AFTER) {
                Ok(sent) => self.write(sent)?,
                Err(RecvTimeoutError::Timeout) => self.out.flush()?,
                Err(RecvTimeoutError::Disconnected) => return self.out.flush(),
            }
        }
    }

    fn write(&mut self, sent: Sent) -> io::Result<()> {
        let Some(op) = self.op(sent.event, sent.errno.is_none()) else { return Ok(()) };
        let us = u64::try_from(sent.at.as_micros()).unwrap_or(u64::MAX);
        let line = Line { worker: sent.worker, us: Some(us), errno: sent.errno, ..Line::from(op) };
        blockyard_trace::write([&line], &mut self.out)
    }

    /// The path of an inode, where it is known.
    fn path(&self, inode: u64) -> Option<String> {
        let (mut names, mut at) = (Vec::new(), inode);
        while at != ROOT {
            let (parent, name) = self.places.get(&at)?;
            names.push(String::from_utf8_lossy(name));
            // Longer than any way in an image: a ring would be a fault of ours.
            if names.len() > 4096 {
                return None;
            }
            at = *parent;
        }
        let path = names.iter().rev().fold(String::new(), |path, name| path + "/" + name);
        Some(if path.is_empty() { "/".to_owned() } else { path })
    }

    fn join(&self, parent: u64, name: &[u8]) -> Option<String> {
        let parent = self.path(parent)?;
        let slash = if parent == "/" { "" } else { "/" };
        Some(format!("{parent}{slash}{}", String::from_utf8_lossy(name)))
    }

    fn place(&mut self, inode: Option<u64>, parent: u64, name: Vec<u8>) {
        if let Some(inode) = inode.filter(|inode| *inode != ROOT) {
            self.names.insert((parent, name.clone()), inode);
            self.places.insert(inode, (parent, name));
        }
    }

    /// The line of an event; what has no path any more, or no line, is a note.
    fn op(&mut self, event: Event, went_well: bool) -> Option<Op> {
        match event {
            Event::Forgotten { inode } => {
                if let Some(place) = self.places.remove(&inode) {
                    self.names.remove(&place);
                }
                None
            }
            Event::Note { call, inode, range } => {
                let path = inode.and_then(|inode| self.path(inode));
                let (off, len) = (range.map(|range| range.0), range.map(|range| range.1));
                Some(Op::Note { call: call.to_owned(), path, off, len })
            }
            Event::Lookup { parent, name, inode } => {
                let path = self.join(parent, &name);
                self.place(inode, parent, name);
                Some(Op::Note { call: "lookup".to_owned(), path, off: None, len: None })
            }
            Event::Close { handle } => Some(Op::Close { fd: fd(handle) }),
            Event::Write { handle, offset, len } => Some(Op::Pwrite { fd: fd(handle), off: offset, len }),
            Event::Fallocate { handle, mode, offset, len } => {
                Some(Op::Fallocate { fd: fd(handle), mode: fallocate_words(mode), off: offset, len })
            }
            Event::Fsync { handle, only_data: false } => Some(Op::Fsync { fd: fd(handle) }),
            Event::Fsync { handle, only_data: true } => Some(Op::Fdatasync { fd: fd(handle) }),
            event => Some(self.named_op(event, went_well).unwrap_or_else(|| Op::Note {
                call: "unnamed".to_owned(),
                path: None,
                off: None,
                len: None,
            })),
        }
    }

    /// The line of an event that needs a path.
    fn named_op(&mut self, event: Event, went_well: bool) -> Option<Op> {
        Some(match event {
            Event::Make { parent, name, kind, permissions, device, inode } => {
                let path = self.join(parent, &name)?;
                self.place(inode, parent, name);
                let mode = u32::from(permissions);
                let DeviceNumber { major, minor } = device.unwrap_or(DeviceNumber { major: 0, minor: 0 });
                match kind {
                    FileType::Directory => Op::Mkdir { path, mode },
                    kind => Op::Mknod { path, mode: mode | u32::from(kind.mode_bits()), major, minor },
                }
            }
            Event::Symlink { parent, name, target, inode } => {
                let path = self.join(parent, &name)?;
                self.place(inode, parent, name);
                Op::Symlink { target: String::from_utf8_lossy(&target).into_owned(), path }
            }
            Event::Link { inode, parent, name } => {
                Op::Link { target: self.path(inode)?, path: self.join(parent, &name)? }
            }
            Event::Unlink { parent, name } => Op::Unlink { path: self.join(parent, &name)? },
            Event::RemoveDirectory { parent, name } => Op::Rmdir { path: self.join(parent, &name)? },
            Event::Rename { from, to } => {
                let paths = (self.join(from.0, &from.1)?, self.join(to.0, &to.1)?);
                if went_well {
                    self.moved(&from, to);
                }
                Op::Rename { from: paths.0, to: paths.1 }
            }
            Event::Create { parent, name, made } => {
                let path = self.join(parent, &name)?;
                self.place(made.map(|(inode, _)| inode), parent, name);
                Op::Open {
                    fd: made.map_or(0, |(_, handle)| fd(handle)),
                    path,
                    flags: "rw,create,excl".to_owned(),
                }
            }
            Event::Open { inode, writes, direct, handle } => {
                let flags =
                    format!("{}{}", if writes { "rw" } else { "r" }, if direct { ",direct" } else { "" });
                Op::Open { fd: handle.map_or(0, fd), path: self.path(inode)?, flags }
            }
            Event::Truncate { handle: Some(handle), len, .. } => Op::Ftruncate { fd: fd(handle), len },
            Event::Truncate { inode, len, .. } => {
                let path = Some(self.path(inode)?);
                Op::Note { call: "truncate".to_owned(), path, off: None, len: Some(len) }
            }
            Event::SetXattr { inode, name, len } => Op::Setxattr {
                path: self.path(inode)?,
                name: String::from_utf8_lossy(&name).into_owned(),
                len,
            },
            _ => return None,
        })
    }

    /// The inode of a name that was moved has another place.
    fn moved(&mut self, from: &(u64, Vec<u8>), to: (u64, Vec<u8>)) {
        if let Some(inode) = self.names.remove(from) {
            self.place(Some(inode), to.0, to.1);
        }
    }
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
mod tests {
    use super::{Event, Writer};
    use blockyard::FileType;
    use blockyard_trace::Op;
    use std::collections::HashMap;

    #[test]
    fn paths_follow_what_is_moved() {
        let mut writer = Writer { out: Vec::new(), places: HashMap::new(), names: HashMap::new() };
        let name = |text: &str| text.as_bytes().to_vec();
        let made = writer.op(
            Event::Make {
                parent: 1,
                name: name("d"),
                kind: FileType::Directory,
                permissions: 0o755,
                device: None,
                inode: Some(12),
            },
            true,
        );
        assert_eq!(made, Some(Op::Mkdir { path: "/d".to_owned(), mode: 0o755 }));
        let opened = writer.op(Event::Create { parent: 12, name: name("f"), made: Some((13, 7)) }, true);
        let flags = "rw,create,excl".to_owned();
        assert_eq!(opened, Some(Op::Open { fd: 7, path: "/d/f".to_owned(), flags }));
        let event = Event::Rename { from: (1, name("d")), to: (1, name("e")) };
        let renamed = writer.op(event, true);
        assert_eq!(renamed, Some(Op::Rename { from: "/d".to_owned(), to: "/e".to_owned() }));
        let event = Event::Note { call: "read", inode: Some(13), range: Some((0, 5)) };
        let noted =
            Op::Note { call: "read".to_owned(), path: Some("/e/f".to_owned()), off: Some(0), len: Some(5) };
        assert_eq!(writer.op(event, true), Some(noted));
        assert_eq!(writer.op(Event::Forgotten { inode: 13 }, true), None);
        assert_eq!(writer.path(13), None);
    }
}
