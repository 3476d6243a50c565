//! Plays a trace on an image with blockyard's engine. Like the VFS, the player resolves paths and
//! keeps the open files.
//!
//! What a kernel takes from its environment is an input here: CPU slots come from the trace, and
//! the time and the colour of the process from the caller. The image is opened when it is first
//! needed, and again by each `remount`.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use blockyard_device::BlockDevice;
use blockyard_disk::device_number::DeviceNumber;
use blockyard_disk::inode::FileType;
use blockyard_disk::num::{low16, usize_from_u64};
use blockyard_disk::{InodeNr, Timestamp};
use blockyard_engine::{
    Error, Fallocate, FileSystem, NewInode, OpContext, OpenOptions, RenameMode, XattrMode,
};
use blockyard_sync::CpuSlot;
use blockyard_trace::content::Content;
use blockyard_trace::{FallocateMode, Line, Op, OpenFlags};

use super::{Outcome, Player, Refused};

const EBADF: i32 = 9;
const EINVAL: i32 = 22;
const ELOOP: i32 = 40;
const EOPNOTSUPP: i32 = 95;

/// A file that the trace has open.
#[derive(Clone, Copy)]
struct OpenFile {
    inode: InodeNr,
    content: Content,
    write: bool,
    append: bool,
    direct: bool,
}

/// Called with each opened file system, before the first operation on it.
pub type Prepare = Box<dyn Fn(&FileSystem) -> Result<()>>;

/// Plays on the image that a device holds.
pub struct EnginePlayer {
    device: Arc<dyn BlockDevice>,
    options: OpenOptions,
    prepare: Prepare,
    seed: u64,
    colour: u32,
    now: Timestamp,
    fs: Option<FileSystem>,
    open: BTreeMap<u32, OpenFile>,
    refused: Refused,
}

impl EnginePlayer {
    /// A player on the image that `device` holds, opened with `options`. Content comes from `seed`;
    /// `colour` is the colour of the process (its thread id modulo 16).
    #[must_use]
    pub fn new(
        device: Arc<dyn BlockDevice>,
        options: OpenOptions,
        prepare: Prepare,
        (seed, colour): (u64, u32),
    ) -> Self {
        Self {
            device,
            options,
            prepare,
            seed,
            colour,
            now: Timestamp::from_seconds(0),
            fs: None,
            open: BTreeMap::new(),
            refused: Refused::default(),
        }
    }

    /// Sets the clock that the following lines see.
    pub fn set_time(&mut self, now: Timestamp) {
        self.now = now;
    }

    /// The open file system.
    ///
    /// # Errors
    /// If the image is not open yet, those of opening it and of the call of [`Prepare`].
    pub fn file_system(&mut self) -> Result<&FileSystem> {
        let ctx = self.context(0);
        if self.fs.is_none() {
            let fs = FileSystem::open(Arc::clone(&self.device), self.options.clone(), &ctx)
                .context("open the image")?;
            (self.prepare)(&fs)?;
            self.fs = Some(fs);
        }
        self.fs.as_ref().context("the image is open")
    }

    /// Commits the running transaction. Called at points where the kernel committed on its own.
    /// Freed clusters stay pending until [`Self::end_commit`].
    ///
    /// # Errors
    /// Those of the device.
    pub fn begin_commit(&mut self) -> Result<()> {
        let ctx = self.context(0);
        self.file_system()?.instrumented().commit_holding_frees(&ctx).context("commit")
    }

    /// Ends the commit that [`Self::begin_commit`] began: freed clusters can be allocated again.
    ///
    /// # Errors
    /// Those of opening the image.
    pub fn end_commit(&mut self) -> Result<()> {
        let ctx = self.context(0);
        self.file_system()?.instrumented().release_frees(&ctx);
        Ok(())
    }

    /// Converts the unwritten extents whose I/O has ended by now.
    ///
    /// # Errors
    /// Those of the device.
    pub fn end_io(&mut self) -> Result<()> {
        let ctx = self.context(0);
        self.file_system()?.instrumented().end_io(&ctx).context("end of I/O")
    }

    /// Closes the files that the trace left open, and the image.
    ///
    /// # Errors
    /// Those of the device.
    pub fn close(&mut self) -> Result<()> {
        let ctx = self.context(0);
        let open = std::mem::take(&mut self.open);
        let Some(fs) = self.fs.take() else { return Ok(()) };
        for file in open.values() {
            fs.release_inode(&ctx, file.inode, file.write)?;
        }
        fs.close(&ctx).context("close the image")
    }

    fn context(&self, worker: u32) -> OpContext {
        let slot = CpuSlot::new(worker % self.options.cpus.max(1));
        OpContext { colour: self.colour, ..OpContext::root_at(self.now).on(slot) }
    }

    fn file(&self, fd: u32) -> Result<OpenFile> {
        self.open.get(&fd).copied().ok_or_else(|| anyhow!("the trace uses fd {fd}, which is not open"))
    }

    fn open(&mut self, ctx: &OpContext, fd: u32, path: &str, flags: &str) -> Result<Outcome> {
        let flags = OpenFlags::parse(flags)?;
        let opened = open_file(self.file_system()?, ctx, path, flags);
        Ok(opened.map(|inode| {
            let content = Content::of(path, self.seed);
            self.open.insert(
                fd,
                OpenFile { inode, content, write: flags.write, append: flags.append, direct: flags.direct },
            );
        }))
    }

    fn write(&mut self, ctx: &OpContext, fd: u32, off: u64, len: u64) -> Result<Outcome> {
        let file = self.file(fd)?;
        if !file.write {
            return Ok(Err(EBADF));
        }
        let data = file.content.bytes(off, usize_from_u64(len));
        let fs = self.file_system()?;
        let mut at = off;
        if file.append {
            match fs.attributes(file.inode) {
                Ok(attributes) => at = attributes.size,
                Err(error) => return Ok(Err(error.errno())),
            }
        }
        // After a short write, continue with the rest, like a program that writes until all is
        // written or an error says that no more fits.
        let mut rest = &data[..];
        loop {
            let written = if file.direct {
                fs.write_direct(ctx, file.inode, at, rest)
            } else {
                fs.write_some(ctx, file.inode, at, rest)
            };
            match written {
                Ok(done) => {
                    at += blockyard_disk::num::u64_from_usize(done);
                    rest = &rest[done..];
                }
                Err(error) => return Ok(Err(error.errno())),
            }
            if rest.is_empty() {
                return Ok(Ok(()));
            }
        }
    }

    fn fallocate(&mut self, ctx: &OpContext, fd: u32, mode: &str, off: u64, len: u64) -> Result<Outcome> {
        let file = self.file(fd)?;
        if !file.write {
            return Ok(Err(EBADF));
        }
        let Some(what) = fallocation(FallocateMode::parse(mode)?) else { return Ok(Err(EOPNOTSUPP)) };
        Ok(outcome(self.file_system()?.fallocate(ctx, file.inode, what, off, len)))
    }

    fn truncate(&mut self, ctx: &OpContext, fd: u32, len: u64) -> Result<Outcome> {
        let file = self.file(fd)?;
        if !file.write {
            return Ok(Err(EINVAL));
        }
        Ok(outcome(self.file_system()?.truncate(ctx, file.inode, len)))
    }

    fn close_file(&mut self, ctx: &OpContext, fd: u32) -> Result<Outcome> {
        let file = self.file(fd)?;
        self.open.remove(&fd);
        Ok(outcome(self.file_system()?.release_inode(ctx, file.inode, file.write)))
    }

    /// Plays operations on names.
    fn play_name(&mut self, ctx: &OpContext, op: &Op) -> Result<Outcome> {
        let seed = self.seed;
        let fs = self.file_system()?;
        Ok(match op {
            Op::Mkdir { path, mode } => make(fs, ctx, path, *mode | 0o040_000, (0, 0)),
            Op::Mknod { path, mode, major, minor } => make(fs, ctx, path, *mode, (*major, *minor)),
            Op::Unlink { path } => {
                split(fs, path).and_then(|(dir, name)| outcome(fs.unlink(ctx, dir, name.as_bytes())))
            }
            Op::Rmdir { path } => {
                split(fs, path).and_then(|(dir, name)| outcome(fs.rmdir(ctx, dir, name.as_bytes())))
            }
            Op::Rename { from, to } => rename(fs, ctx, from, to),
            Op::Link { target, path } => link(fs, ctx, target, path),
            Op::Symlink { target, path } => split(fs, path).and_then(|(dir, name)| {
                outcome(fs.symlink(ctx, dir, name.as_bytes(), target.as_bytes()).map(drop))
            }),
            Op::Setxattr { path, name, len } => {
                let value = Content::of(&format!("{path}\0{name}"), seed).bytes(0, usize_from_u64(*len));
                resolve(fs, path).and_then(|inode| {
                    outcome(fs.set_xattr(ctx, inode, name.as_bytes(), &value, XattrMode::Set))
                })
            }
            other => return Err(anyhow!("{other:?} is not an operation on names")),
        })
    }
}

impl Player for EnginePlayer {
    fn play(&mut self, line: &Line) -> Result<Outcome> {
        if let Some(outcome) = self.refused.outcome(&line.op) {
            return Ok(outcome);
        }
        let ctx = self.context(line.worker);
        Ok(match &line.op {
            Op::Open { fd, path, flags } => {
                let outcome = self.open(&ctx, *fd, path, flags)?;
                self.refused.opened(*fd, outcome);
                outcome
            }
            Op::Pwrite { fd, off, len } => self.write(&ctx, *fd, *off, *len)?,
            Op::Fallocate { fd, mode, off, len } => self.fallocate(&ctx, *fd, mode, *off, *len)?,
            Op::Ftruncate { fd, len } => self.truncate(&ctx, *fd, *len)?,
            Op::Fsync { fd } => {
                let inode = self.file(*fd)?.inode;
                outcome(self.file_system()?.fsync(&ctx, inode))
            }
            Op::Fdatasync { fd } => {
                let inode = self.file(*fd)?.inode;
                outcome(self.file_system()?.fdatasync(&ctx, inode))
            }
            Op::Close { fd } => self.close_file(&ctx, *fd)?,
            // Write-back by sync runs on the first CPU, whichever worker calls sync.
            Op::Sync => {
                let ctx = self.context(0);
                outcome(self.file_system()?.sync(&ctx))
            }
            Op::Note { .. } => Ok(()),
            // Only what the imitated page cache remembers is dropped; inodes and bitmaps stay in
            // memory.
            Op::DropCaches => {
                self.file_system()?.instrumented().drop_caches();
                Ok(())
            }
            Op::Remount => {
                self.close()?;
                self.file_system()?;
                Ok(())
            }
            op => self.play_name(&ctx, op)?,
        })
    }
}

/// The operation of a fallocate mode; `None` for combinations that Linux refuses.
fn fallocation(mode: FallocateMode) -> Option<Fallocate> {
    let FallocateMode { keep_size, punch_hole, zero_range, collapse_range, insert_range } = mode;
    match (punch_hole, zero_range, collapse_range, insert_range, keep_size) {
        (false, false, false, false, false) => Some(Fallocate::Allocate),
        (false, false, false, false, true) => Some(Fallocate::AllocateKeepSize),
        (true, false, false, false, true) => Some(Fallocate::PunchHole),
        (false, true, false, false, false) => Some(Fallocate::ZeroRange),
        (false, true, false, false, true) => Some(Fallocate::ZeroRangeKeepSize),
        (false, false, true, false, false) => Some(Fallocate::CollapseRange),
        (false, false, false, true, false) => Some(Fallocate::InsertRange),
        _ => None,
    }
}

fn outcome(result: blockyard_engine::Result<()>) -> Outcome {
    result.map_err(|error| error.errno())
}

/// The inode of a path; symbolic links are not followed.
fn resolve(fs: &FileSystem, path: &str) -> std::result::Result<InodeNr, i32> {
    let names = path.split('/').filter(|name| !name.is_empty());
    let find = |dir, name: &str| fs.lookup(dir, name.as_bytes()).map_err(|error| error.errno());
    names.into_iter().try_fold(InodeNr::ROOT, find)
}

/// The directory that holds the last name of a path, and that name.
fn split<'p>(fs: &FileSystem, path: &'p str) -> std::result::Result<(InodeNr, &'p str), i32> {
    let (parent, name) = path.trim_end_matches('/').rsplit_once('/').unwrap_or(("", path));
    Ok((resolve(fs, parent)?, name))
}

fn open_file(
    fs: &FileSystem,
    ctx: &OpContext,
    path: &str,
    flags: OpenFlags,
) -> std::result::Result<InodeNr, i32> {
    const EEXIST: i32 = 17;
    let (dir, name) = split(fs, path)?;
    let found = match fs.lookup(dir, name.as_bytes()) {
        Ok(_) if flags.exclusive && flags.create => return Err(EEXIST),
        Ok(inode) => Some(inode),
        Err(Error::NotFound) if flags.create => None,
        Err(error) => return Err(error.errno()),
    };
    let inode = match found {
        Some(inode) => {
            let kind = fs.attributes(inode).map_err(|error| error.errno())?.kind;
            match kind {
                FileType::Symlink => return Err(ELOOP),
                FileType::Directory if flags.write || flags.create => return Err(Error::IsDirectory.errno()),
                _ => inode,
            }
        }
        None => {
            let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
            fs.create(ctx, dir, name.as_bytes(), &new).map_err(|error| error.errno())?
        }
    };
    outcome(fs.open_inode(inode, flags.write))?;
    if flags.truncate && flags.write && found.is_some() {
        outcome(fs.truncate(ctx, inode, 0))?;
    }
    Ok(inode)
}

fn make(fs: &FileSystem, ctx: &OpContext, path: &str, mode: u32, (major, minor): (u32, u32)) -> Outcome {
    let kind = FileType::from_mode(low16(mode)).unwrap_or(FileType::Regular);
    let device =
        matches!(kind, FileType::CharDevice | FileType::BlockDevice).then_some(DeviceNumber { major, minor });
    let new = NewInode { kind, permissions: low16(mode) & 0o7777, device };
    let (dir, name) = split(fs, path)?;
    outcome(fs.create(ctx, dir, name.as_bytes(), &new).map(drop))
}

fn rename(fs: &FileSystem, ctx: &OpContext, from: &str, to: &str) -> Outcome {
    let (from, to) = (split(fs, from)?, split(fs, to)?);
    let ends = ((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()));
    outcome(fs.rename(ctx, ends.0, ends.1, RenameMode::Replace))
}

fn link(fs: &FileSystem, ctx: &OpContext, target: &str, path: &str) -> Outcome {
    let inode = resolve(fs, target)?;
    let (dir, name) = split(fs, path)?;
    outcome(fs.link(ctx, inode, dir, name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::make::{Recipe, make};
    use crate::trace::play::kernel::KernelPlayer;
    use crate::trace::play::play_all;
    use blockyard_device::MemoryDevice;
    use blockyard_engine::mkfs;

    fn player() -> EnginePlayer {
        let device = MemoryDevice::new(256 << 20);
        mkfs::format(&device, &mkfs::Options::ext4().block_size(4096)).unwrap();
        EnginePlayer::new(Arc::new(device), OpenOptions::default(), Box::new(|_| Ok(())), (1, 0))
    }

    /// The kernel plays in a temporary directory. These traces use only operations that do not
    /// depend on the kind of that directory's file system.
    #[test]
    fn operations_end_as_on_the_kernel() {
        for kind in ["untar", "small-fsync", "log-rotate", "directory-heavy"] {
            let root = tempfile::tempdir().unwrap();
            let lines = make(kind, &Recipe { seed: 3, ops: 400, space: 8 << 20, workers: 1 }).unwrap();
            let theirs = play_all(&mut KernelPlayer::new(root.path(), 1, None), &lines).unwrap();
            let mut ours = player();
            assert_eq!(play_all(&mut ours, &lines).unwrap(), theirs, "{kind}");
            ours.close().unwrap();
        }
    }

    /// Opens a file, a directory and an unused name with every combination of flags except
    /// `direct`, and writes to each.
    #[test]
    fn files_open_as_on_the_kernel() {
        let words = ["rw", "create", "excl", "trunc", "append"];
        for set in 0..1_u32 << words.len() {
            let chosen = words.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1);
            let flags = chosen.map(|(_, word)| *word).collect::<Vec<_>>().join(",");
            let mut text = concat!(
                "{\"op\":\"mkdir\",\"path\":\"/d\",\"mode\":448}\n",
                "{\"op\":\"open\",\"fd\":1,\"path\":\"/f\",\"flags\":\"rw,create\"}\n",
                "{\"op\":\"pwrite\",\"fd\":1,\"off\":100,\"len\":50}\n"
            )
            .to_owned();
            for (fd, path) in [(2, "/f"), (3, "/d"), (4, "/free")] {
                text += &format!(
                    "{{\"op\":\"open\",\"fd\":{fd},\"path\":\"{path}\",\"flags\":\"{flags}\"}}\n\
                     {{\"op\":\"pwrite\",\"fd\":{fd},\"off\":0,\"len\":9}}\n"
                );
            }
            let lines = blockyard_trace::read(text.as_bytes()).unwrap();
            let root = tempfile::tempdir().unwrap();
            let theirs = play_all(&mut KernelPlayer::new(root.path(), 1, None), &lines).unwrap();
            let mut ours = player();
            assert_eq!(play_all(&mut ours, &lines).unwrap(), theirs, "{flags}");
            for name in ["f", "free"] {
                let size = std::fs::metadata(root.path().join(name)).ok().map(|data| data.len());
                let fs = ours.file_system().unwrap();
                let found = fs.lookup(InodeNr::ROOT, name.as_bytes()).ok();
                assert_eq!(found.map(|inode| fs.attributes(inode).unwrap().size), size, "{flags}: {name}");
            }
        }
    }

    #[test]
    fn what_was_written_is_there_after_a_remount() {
        let text = concat!(
            "{\"op\":\"open\",\"fd\":1,\"path\":\"/f\",\"flags\":\"rw,create\"}\n",
            "{\"op\":\"pwrite\",\"fd\":1,\"off\":100,\"len\":50}\n",
            "{\"op\":\"close\",\"fd\":1}\n{\"op\":\"remount\"}\n",
            "{\"op\":\"open\",\"fd\":2,\"path\":\"/f\",\"flags\":\"rw,create,excl\"}\n",
            "{\"op\":\"open\",\"fd\":3,\"path\":\"/f/g\",\"flags\":\"r\"}\n",
            "{\"op\":\"fsync\",\"fd\":3}\n{\"op\":\"close\",\"fd\":3}\n",
        );
        let mut player = player();
        let lines = blockyard_trace::read(text.as_bytes()).unwrap();
        let outcomes = play_all(&mut player, &lines).unwrap();
        assert_eq!(outcomes[..6], [Ok(()), Ok(()), Ok(()), Ok(()), Err(17), Err(20)]);
        assert_eq!(outcomes[6..], [Err(9), Err(9)], "operations on what could not be opened");
        let fs = player.file_system().unwrap();
        let inode = fs.lookup(InodeNr::ROOT, b"f").unwrap();
        let mut bytes = [0; 150];
        let ctx = OpContext::root_at(Timestamp::from_seconds(0));
        assert_eq!(fs.read(&ctx, inode, 0, &mut bytes).unwrap(), 150);
        assert_eq!(bytes[..100], [0; 100]);
        assert_eq!(bytes[100..], Content::of("/f", 1).bytes(100, 50));
    }
}
