//! Plays a trace on the running kernel, below a mounted directory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use blockyard_trace::content::Content;
use blockyard_trace::{FallocateMode, Line, Op, OpenFlags};
use rustix::fs::{FallocateFlags, Mode, OFlags};

use super::{Outcome, Player, Refused};
use crate::aligned::Aligned;

/// Unmounts and mounts again; returns the directory to continue in.
pub type Remount = Box<dyn FnMut() -> Result<PathBuf>>;

/// A file that the trace has open.
struct OpenFile {
    file: File,
    content: Content,
}

/// Plays below `root`.
pub struct KernelPlayer {
    root: PathBuf,
    seed: u64,
    open: BTreeMap<u32, OpenFile>,
    refused: Refused,
    remount: Option<Remount>,
    worker: Option<u32>,
    /// The CPUs that were allowed before the first worker was pinned.
    cpus: Vec<usize>,
}

impl KernelPlayer {
    /// A player below a mounted directory. Content comes from `seed`. Without `remount`, lines that
    /// remount are errors.
    #[must_use]
    pub fn new(root: &Path, seed: u64, remount: Option<Remount>) -> Self {
        let cpus = crate::cpus::allowed();
        Self {
            root: root.to_path_buf(),
            seed,
            open: BTreeMap::new(),
            refused: Refused::default(),
            remount,
            worker: None,
            cpus,
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn file(&self, fd: u32) -> Result<&OpenFile> {
        self.open.get(&fd).ok_or_else(|| anyhow!("the trace uses fd {fd}, which is not open"))
    }

    /// Pins this thread to the CPU of the worker, because the kernel's choice of blocks depends on
    /// the CPU.
    fn act_as(&mut self, worker: u32) {
        if self.worker != Some(worker) {
            // If pinning fails, the trace is played all the same. The comparison with the engine
            // may then show differences.
            let _ = crate::cpus::stay_on(&self.cpus, blockyard_disk::num::usize_from_u32(worker));
            self.worker = Some(worker);
        }
    }

    fn open(&mut self, fd: u32, path: &str, flags: &str) -> Result<Outcome> {
        let flags = OpenFlags::parse(flags)?;
        let mut bits = if flags.write { OFlags::RDWR } else { OFlags::RDONLY };
        bits.set(OFlags::CREATE, flags.create);
        bits.set(OFlags::EXCL, flags.exclusive && flags.create);
        bits.set(OFlags::TRUNC, flags.truncate && flags.write);
        bits.set(OFlags::APPEND, flags.append);
        bits.set(OFlags::DIRECT, flags.direct);
        let mode = Mode::from_raw_mode(0o644);
        let opened = rustix::fs::open(self.path(path), bits | OFlags::CLOEXEC, mode).map(File::from);
        Ok(from_errno(opened.map(|file| {
            let content = Content::of(path, self.seed);
            self.open.insert(fd, OpenFile { file, content });
        })))
    }

    fn write(&self, fd: u32, off: u64, len: u64) -> Result<Outcome> {
        let open = self.file(fd)?;
        // Direct writes need aligned memory; for buffered writes it does no harm.
        let mut data = Aligned::zeroes(blockyard_disk::num::usize_from_u64(len));
        open.content.fill(off, data.bytes_mut());
        Ok(outcome(open.file.write_all_at(data.bytes(), off)))
    }

    fn fallocate(&self, fd: u32, mode: &str, off: u64, len: u64) -> Result<Outcome> {
        let mode = FallocateMode::parse(mode)?;
        let mut flags = FallocateFlags::empty();
        flags.set(FallocateFlags::KEEP_SIZE, mode.keep_size);
        flags.set(FallocateFlags::PUNCH_HOLE, mode.punch_hole);
        flags.set(FallocateFlags::ZERO_RANGE, mode.zero_range);
        flags.set(FallocateFlags::COLLAPSE_RANGE, mode.collapse_range);
        flags.set(FallocateFlags::INSERT_RANGE, mode.insert_range);
        Ok(from_errno(rustix::fs::fallocate(&self.file(fd)?.file, flags, off, len)))
    }

    fn mknod(&self, path: &str, mode: u32, major: u32, minor: u32) -> Outcome {
        let kind = rustix::fs::FileType::from_raw_mode(mode);
        let bits = Mode::from_raw_mode(mode);
        let device = rustix::fs::makedev(major, minor);
        from_errno(rustix::fs::mknodat(rustix::fs::CWD, self.path(path), kind, bits, device))
    }

    fn setxattr(&self, path: &str, name: &str, len: u64) -> Outcome {
        let content = Content::of(&format!("{path}\0{name}"), self.seed);
        let value = content.bytes(0, blockyard_disk::num::usize_from_u64(len));
        let flags = rustix::fs::XattrFlags::empty();
        from_errno(rustix::fs::lsetxattr(self.path(path), name, &value, flags))
    }

    /// Syncs twice. When the I/O of the first sync ends, unwritten extents are converted. That
    /// makes inodes dirty again, some of them after the first sync has passed them. The second sync
    /// leaves no inode dirty.
    fn sync(&self) -> Result<Outcome> {
        let root = File::open(&self.root).with_context(|| format!("{}", self.root.display()))?;
        Ok(from_errno(rustix::fs::syncfs(&root).and_then(|()| rustix::fs::syncfs(&root))))
    }

    fn remount(&mut self) -> Result<Outcome> {
        self.open.clear();
        let remount = self.remount.as_mut().ok_or_else(|| anyhow!("this player cannot remount"))?;
        self.root = remount()?;
        Ok(Ok(()))
    }
}

impl Player for KernelPlayer {
    fn play(&mut self, line: &Line) -> Result<Outcome> {
        if let Some(outcome) = self.refused.outcome(&line.op) {
            return Ok(outcome);
        }
        self.act_as(line.worker);
        Ok(match &line.op {
            Op::Mkdir { path, mode } => {
                from_errno(rustix::fs::mkdir(self.path(path), Mode::from_raw_mode(*mode)))
            }
            Op::Open { fd, path, flags } => {
                let outcome = self.open(*fd, path, flags)?;
                self.refused.opened(*fd, outcome);
                outcome
            }
            Op::Pwrite { fd, off, len } => self.write(*fd, *off, *len)?,
            Op::Fallocate { fd, mode, off, len } => self.fallocate(*fd, mode, *off, *len)?,
            Op::Ftruncate { fd, len } => outcome(self.file(*fd)?.file.set_len(*len)),
            Op::Fsync { fd } => outcome(self.file(*fd)?.file.sync_all()),
            Op::Fdatasync { fd } => outcome(self.file(*fd)?.file.sync_data()),
            Op::Close { fd } => {
                self.file(*fd)?;
                self.open.remove(fd);
                Ok(())
            }
            Op::Unlink { path } => outcome(fs::remove_file(self.path(path))),
            Op::Rmdir { path } => outcome(fs::remove_dir(self.path(path))),
            Op::Rename { from, to } => outcome(fs::rename(self.path(from), self.path(to))),
            Op::Link { target, path } => outcome(fs::hard_link(self.path(target), self.path(path))),
            Op::Symlink { target, path } => outcome(std::os::unix::fs::symlink(target, self.path(path))),
            Op::Mknod { path, mode, major, minor } => self.mknod(path, *mode, *major, *minor),
            Op::Setxattr { path, name, len } => self.setxattr(path, name, *len),
            Op::Sync => self.sync()?,
            Op::Note { .. } => Ok(()),
            Op::DropCaches => outcome(fs::write("/proc/sys/vm/drop_caches", "3")),
            Op::Remount => self.remount()?,
        })
    }
}

fn outcome<T>(result: std::io::Result<T>) -> Outcome {
    // An error without a number cannot come from a system call; report it as EIO.
    result.map(drop).map_err(|error| error.raw_os_error().unwrap_or(5))
}

fn from_errno<T>(result: rustix::io::Result<T>) -> Outcome {
    result.map(drop).map_err(rustix::io::Errno::raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::make::{Recipe, make};
    use crate::trace::play::play_all;

    #[test]
    fn a_trace_leaves_what_it_says() {
        let root = tempfile::tempdir().unwrap();
        let text = concat!(
            r#"{"op":"mkdir","path":"/d","mode":448}"#,
            "\n",
            r#"{"op":"open","fd":1,"path":"/d/f","flags":"rw,create"}"#,
            "\n",
            r#"{"op":"pwrite","fd":1,"off":100,"len":50}"#,
            "\n",
            r#"{"op":"close","fd":1}"#,
            "\n",
            r#"{"op":"link","target":"/d/f","path":"/g"}"#,
            "\n",
            r#"{"op":"rmdir","path":"/d"}"#,
            "\n",
            r#"{"op":"unlink","path":"/nothing"}"#,
            "\n"
        );
        let lines = blockyard_trace::read(text.as_bytes()).unwrap();
        let mut player = KernelPlayer::new(root.path(), 3, None);
        let outcomes = play_all(&mut player, &lines).unwrap();
        assert_eq!(outcomes[..5], [Ok(()); 5]);
        assert_eq!(outcomes[5..], [Err(39), Err(2)]);
        let data = fs::read(root.path().join("g")).unwrap();
        assert_eq!(data[..100], [0; 100]);
        assert_eq!(data[100..], Content::of("/d/f", 3).bytes(100, 50));
    }

    #[test]
    fn made_traces_play_without_surprises() {
        for kind in ["untar", "small-fsync", "log-rotate", "directory-heavy"] {
            let root = tempfile::tempdir().unwrap();
            let lines = make(kind, &Recipe { seed: 1, ops: 300, space: 8 << 20, workers: 1 }).unwrap();
            let mut player = KernelPlayer::new(root.path(), 1, None);
            let outcomes = play_all(&mut player, &lines).unwrap();
            // Only a rename may be refused, because the older log that it names may not exist yet.
            for (line, outcome) in lines.iter().zip(outcomes) {
                let expected = matches!(line.op, Op::Rename { .. }) && outcome == Err(2);
                assert!(outcome == Ok(()) || expected, "{kind}: {line:?}: {outcome:?}");
            }
        }
    }

    #[test]
    fn a_number_that_was_never_opened_ends_the_play() {
        let root = tempfile::tempdir().unwrap();
        let mut player = KernelPlayer::new(root.path(), 1, None);
        assert!(player.play(&Op::Fsync { fd: 9 }.into()).unwrap_err().to_string().contains("fd 9"));
    }
}
