//! Writes a trace line by line, numbers its open files, and says when it is long enough.

use std::collections::BTreeSet;

use blockyard_trace::{Line, Op};

/// A trace being written.
pub(super) struct Pen {
    lines: Vec<Line>,
    budget: u64,
    next_fd: u32,
    open: BTreeSet<u32>,
}

impl Pen {
    pub(super) fn new(budget: u64) -> Self {
        Self { lines: Vec::new(), budget, next_fd: 1, open: BTreeSet::new() }
    }

    /// Whether more operations are wanted.
    pub(super) fn wants_more(&self) -> bool {
        blockyard_disk::num::u64_from_usize(self.lines.len()) < self.budget
    }

    /// Whether fewer than `percent` per cent of the wanted operations are written.
    pub(super) fn is_below(&self, percent: u64) -> bool {
        blockyard_disk::num::u64_from_usize(self.lines.len()) * 100 < self.budget * percent
    }

    pub(super) fn op(&mut self, op: Op) {
        self.lines.push(op.into());
    }

    pub(super) fn mkdir(&mut self, path: &str) {
        self.op(Op::Mkdir { path: path.to_owned(), mode: 0o755 });
    }

    pub(super) fn open(&mut self, path: &str, flags: &str) -> u32 {
        let fd = self.next_fd;
        self.next_fd += 1;
        self.open.insert(fd);
        self.op(Op::Open { fd, path: path.to_owned(), flags: flags.to_owned() });
        fd
    }

    pub(super) fn close(&mut self, fd: u32) {
        self.open.remove(&fd);
        self.op(Op::Close { fd });
    }

    pub(super) fn write(&mut self, fd: u32, off: u64, len: u64) {
        self.op(Op::Pwrite { fd, off, len });
    }

    pub(super) fn fallocate(&mut self, fd: u32, mode: &str, off: u64, len: u64) {
        self.op(Op::Fallocate { fd, mode: mode.to_owned(), off, len });
    }

    pub(super) fn unlink(&mut self, path: &str) {
        self.op(Op::Unlink { path: path.to_owned() });
    }

    /// Creates a file, writes it in pieces of at most `piece` bytes, and closes it.
    pub(super) fn file(&mut self, path: &str, size: u64, piece: u64) {
        let fd = self.open(path, "rw,create");
        let mut off = 0;
        while off < size {
            let len = piece.min(size - off);
            self.write(fd, off, len);
            off += len;
        }
        self.close(fd);
    }

    /// Closes all open files, adds a `sync` unless the last line is one, and returns the lines.
    pub(super) fn finish(mut self) -> Vec<Line> {
        for fd in std::mem::take(&mut self.open) {
            self.op(Op::Close { fd });
        }
        if self.lines.last().is_none_or(|line| line.op != Op::Sync) {
            self.op(Op::Sync);
        }
        self.lines
    }
}

/// Methods that write operations of the trace again.
impl Pen {
    /// The operations so far.
    pub(super) fn written(&self) -> Vec<Op> {
        self.lines.iter().map(|line| line.op.clone()).collect()
    }

    /// Removes a file and creates it again. [`Self::repeat`] then writes to this file.
    pub(super) fn reopen(&mut self, path: &str) -> u32 {
        self.unlink(path);
        self.open(path, "rw,create")
    }

    /// Writes an operation again. A write or a close goes to the file opened last, not to its
    /// original file.
    pub(super) fn repeat(&mut self, op: &Op) {
        let last = self.next_fd - 1;
        match *op {
            Op::Pwrite { off, len, .. } => self.write(last, off, len),
            Op::Close { .. } => self.close(last),
            ref other => self.op(other.clone()),
        }
    }
}
