//! Records the requests of a mount, as lines in the format of `blockyard-trace`.
//!
//! Answering threads only send events. One thread maps inodes to paths, using the names that the
//! kernel was told, and writes the lines. An operation that the format has no line for becomes a
//! note, which a replay skips.
//!
//! | part | what it is |
//! |---|---|
//! | `queue` | events on their way to the writer |
//! | `names` | the names of each inode |
//! | `lines` | the trace lines of each event |

mod lines;
mod names;
mod queue;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use blockyard::disk::device_number::DeviceNumber;
use blockyard::{FileType, RenameMode};
use blockyard_sync::CpuSlot;
use blockyard_trace::Line;

use self::lines::Lines;
use self::queue::Queue;

/// The most events that may wait to be written. Beyond that, answering threads wait.
const WAITING_MAX: usize = 65_536;
/// The longest time that an event waits before its lines are written.
const FLUSH_AFTER: Duration = Duration::from_secs(1);

/// A request of the kernel, with the inode and the open file that the answer names.
#[derive(Debug)]
pub(crate) enum Event {
    /// A name was looked up.
    Lookup {
        parent: u64,
        name: Vec<u8>,
        inode: Option<u64>,
    },
    /// A directory listing told the kernel of a name. This is not an operation of its own, so it
    /// gets no line.
    Seen {
        parent: u64,
        name: Vec<u8>,
        inode: u64,
    },
    /// Something was made without opening it; `inode` is set on success.
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
        mode: RenameMode,
    },
    /// A file was made and opened; inode and handle are set on success.
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
    /// Bytes were written, or copied to this range (`call` tells which).
    Write {
        call: &'static str,
        inode: u64,
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

impl Event {
    /// The parts of a note: the call, the inode and the range.
    const fn as_note(&self) -> (&'static str, Option<u64>, Option<(u64, u64)>) {
        match *self {
            Self::Note { call, inode, range } => (call, inode, range),
            Self::Lookup { .. } => ("lookup", None, None),
            Self::Make { .. } => ("mknod", None, None),
            Self::Symlink { .. } => ("symlink", None, None),
            Self::Link { inode, .. } => ("link", Some(inode), None),
            Self::Unlink { .. } => ("unlink", None, None),
            Self::RemoveDirectory { .. } => ("rmdir", None, None),
            Self::Rename { .. } => ("rename", None, None),
            Self::Create { .. } => ("create", None, None),
            Self::Open { inode, .. } => ("open", Some(inode), None),
            Self::Close { .. } => ("close", None, None),
            Self::Write { call, inode, offset, len, .. } => (call, Some(inode), Some((offset, len))),
            Self::Truncate { inode, len, .. } => ("truncate", Some(inode), Some((0, len))),
            Self::Fallocate { offset, len, .. } => ("fallocate", None, Some((offset, len))),
            Self::Fsync { .. } => ("fsync", None, None),
            Self::SetXattr { inode, .. } => ("setxattr", Some(inode), None),
            Self::Seen { inode, .. } | Self::Forgotten { inode } => ("forget", Some(inode), None),
        }
    }
}

/// An event with its outcome; `errno` is `None` if it succeeded.
struct Sent {
    event: Event,
    errno: Option<i32>,
    at: Duration,
    worker: u32,
}

/// Writes a trace until it is dropped.
pub(crate) struct Recorder {
    began: Instant,
    queue: Arc<Queue<Sent>>,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Records to a file. An existing file is replaced.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        let out = BufWriter::with_capacity(1 << 20, File::create(path)?);
        let queue = Arc::new(Queue::new(WAITING_MAX));
        let events = Arc::clone(&queue);
        let thread = thread::Builder::new().name("blockyard-trace".to_owned());
        let thread = thread.spawn(move || {
            if let Err(error) = write_all(out, &events) {
                tracing::error!(%error, "the trace could not be written");
            }
            // Needed after a failed write: answering threads must not wait for room for ever.
            events.close();
        })?;
        Ok(Self { began: Instant::now(), queue, thread: Some(thread) })
    }

    /// Records what was requested at `came`, and how it ended: `errno` is `None` for success.
    pub(crate) fn note(&self, came: Instant, event: Event, errno: Option<i32>) {
        let at = came.saturating_duration_since(self.began);
        self.queue.push(Sent { event, errno, at, worker: CpuSlot::of_thread().raw() });
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.queue.close();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("writing the trace panicked");
        }
    }
}

/// Writes lines until the queue is closed.
fn write_all(mut out: impl Write, queue: &Queue<Sent>) -> io::Result<()> {
    let (mut lines, mut batch, mut ops) = (Lines::default(), Vec::new(), Vec::new());
    loop {
        let goes_on = queue.take(&mut batch, FLUSH_AFTER);
        for sent in batch.drain(..) {
            let us = Some(u64::try_from(sent.at.as_micros()).unwrap_or(u64::MAX));
            lines.add(sent.event, sent.errno, &mut ops);
            for op in ops.drain(..) {
                let line = Line { worker: sent.worker, us, errno: sent.errno, ..Line::from(op) };
                blockyard_trace::write([&line], &mut out)?;
            }
        }
        out.flush()?;
        if !goes_on {
            return Ok(());
        }
    }
}
