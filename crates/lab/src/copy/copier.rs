//! The simulated copying processes: they write the files, write back and commit. After a commit
//! they discard the freed space on the [`Watched`] device.

use std::sync::Arc;

use anyhow::{Context, Result};
use blockyard_alloc::{EventSink, Policy};
use blockyard_device::BlockDevice;
use blockyard_disk::inode::FileType;
use blockyard_disk::num::{count_as_f64, usize_from_u32, usize_from_u64};
use blockyard_disk::{GroupNr, InodeNr};
use blockyard_engine::{Events, FileSystem, NewInode, OpContext, OpenOptions, RenameMode};
use blockyard_inspect::reader::Reader;

use super::manner::{Old, Turn};
use super::reuse::Reuse;
use super::timeline::Timeline;
use super::watched::Watched;
use super::{CopyPlan, TreeFile};
use crate::target::engine::{context, unjournaled};
use crate::workload::{GIB, MIB};

/// When this much data is dirty, all of it is written back. This is less than the engine's own
/// limit, so no write has to make room for its data first.
const DIRTY_BYTES: u64 = 48 * MIB;
/// Bytes of one write call, as many as cp passes.
const WRITE_BYTES: u64 = 128 << 10;
/// Rough number of samples while one copy is made, besides those at its start and end.
const SAMPLES_PER_COPY: usize = 24;
/// Maximum number of extents that one call of [`FileSystem::extents`] returns.
const EXTENTS: usize = 4096;

/// The copying processes, and the inodes of the tree that they have made.
pub(super) struct Copier<'a> {
    plan: &'a CopyPlan,
    policy: Policy,
    device: Arc<Watched>,
    pub(super) reuse: Arc<Reuse>,
    pub(super) timeline: Timeline,
    /// Inodes of the directories and files of the tree, once they exist.
    directories: Vec<InodeNr>,
    files: Vec<InodeNr>,
    written: u64,
    uncommitted: u64,
    dirty: u64,
    /// Ranges freed since the last commit: first byte and length.
    freed: Vec<(u64, u64)>,
    buffer: Vec<u8>,
}

impl<'a> Copier<'a> {
    pub(super) fn new(
        plan: &'a CopyPlan,
        policy: Policy,
        device: Arc<Watched>,
        title: String,
    ) -> Result<Self> {
        let shared: Arc<dyn BlockDevice> = Arc::<Watched>::clone(&device);
        let groups = Reader::open(shared)?.superblock().geometry().groups();
        Ok(Self {
            plan,
            policy,
            device,
            reuse: Arc::new(Reuse::default()),
            timeline: Timeline::new(title, usize_from_u32(groups)),
            directories: Vec::new(),
            files: vec![InodeNr::ROOT; plan.tree.files.len()],
            written: 0,
            uncommitted: 0,
            dirty: 0,
            freed: Vec::new(),
            // Zeroes, because a sparse memory device does not store them.
            buffer: vec![0; usize_from_u64(WRITE_BYTES)],
        })
    }

    /// Opens the file system without its journal, because only allocation is measured.
    pub(super) fn open(&self) -> Result<FileSystem> {
        let plan = self.plan;
        let sink: Arc<dyn EventSink> = Arc::<Reuse>::clone(&self.reuse);
        let events = Some(Events(sink));
        let (cpus, rotational) = (plan.cpus, plan.rotational);
        // A machine that copies a tree keeps its inodes in memory, and with them what policies
        // remember about each file.
        let all = 2 * (plan.tree.files.len() + plan.tree.directories.len()).max(8192);
        let inodes_max = plan.manner.inodes_max.unwrap_or(all);
        let unjournaled = unjournaled(self.policy, plan.seed);
        let options = OpenOptions { cpus, rotational, events, inodes_max, ..unjournaled };
        let shared: Arc<dyn BlockDevice> = Arc::<Watched>::clone(&self.device);
        let fs = FileSystem::open(shared, options, &context(0))?;
        let geometry = fs.geometry();
        self.reuse.set_cluster_bytes(u64::from(geometry.cluster_ratio()) << geometry.block_bits());
        Ok(fs)
    }

    pub(super) fn copy(&mut self, fs: &FileSystem, copy: u32) -> Result<()> {
        let samples_every = self.plan.tree.files.len().div_ceil(SAMPLES_PER_COPY).max(1);
        self.sample(fs);
        if copy == 1 {
            self.make_directories(fs)?;
        }
        let turns = self.plan.manner.turns(&self.plan.tree.files, copy, self.plan.seed);
        for (index, turn) in turns.into_iter().enumerate() {
            self.copy_file(fs, turn, copy)?;
            if (index + 1).is_multiple_of(samples_every) {
                self.sample(fs);
            }
        }
        fs.write_back_all(&context(0)).context("write back")?;
        self.commit(fs)?;
        fs.sync(&context(0)).context("sync")?;
        self.sample(fs);
        self.timeline.mark(format!("copy {copy}"));
        Ok(())
    }

    fn make_directories(&mut self, fs: &FileSystem) -> Result<()> {
        let new = NewInode { kind: FileType::Directory, permissions: 0o755, device: None };
        for (index, parent) in self.plan.tree.directories.iter().enumerate() {
            let parent = parent.map_or(InodeNr::ROOT, |parent| self.directories[parent]);
            let made = fs.create(&context(0), parent, format!("d{index}").as_bytes(), &new);
            self.directories.push(made.context("make a directory")?);
        }
        Ok(())
    }

    fn copy_file(&mut self, fs: &FileSystem, turn: Turn, copy: u32) -> Result<()> {
        let TreeFile { directory, bytes } = self.plan.tree.files[turn.file];
        let ctx = context(self.plan.manner.cpu(turn, self.plan.cpus, (copy, self.plan.seed)));
        let parent = directory.map_or(InodeNr::ROOT, |directory| self.directories[directory]);
        let name = format!("f{}", turn.file);
        let is_old = copy > 1 && self.plan.manner.old == Old::Truncated;
        let inode = if is_old {
            self.files[turn.file]
        } else {
            let name = if copy == 1 { name.clone() } else { format!(".{name}") };
            let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
            fs.create(&ctx, parent, name.as_bytes(), &new).context("make a file")?
        };
        fs.open_inode(inode, true)?;
        if copy > 1 {
            self.note_freed(fs, self.files[turn.file])?;
        }
        if is_old {
            fs.truncate(&ctx, inode, 0).context("truncate")?;
        }
        self.write(fs, &ctx, inode, bytes)?;
        if is_old {
            // Linux does this when it closes a file that was truncated to zero and rewritten.
            fs.write_back_file(&ctx, inode).context("write back")?;
        } else {
            self.dirty += bytes;
        }
        fs.release_inode(&ctx, inode, true)?;
        if copy > 1 && !is_old {
            let from = format!(".{name}");
            let renamed =
                fs.rename(&ctx, (parent, from.as_bytes()), (parent, name.as_bytes()), RenameMode::Replace);
            renamed.context("rename")?;
        }
        self.files[turn.file] = inode;
        self.write_back(fs, &ctx, bytes)
    }

    fn write(&self, fs: &FileSystem, ctx: &OpContext, inode: InodeNr, bytes: u64) -> Result<()> {
        let mut at = 0;
        while at < bytes {
            let length = (bytes - at).min(WRITE_BYTES);
            fs.write(ctx, inode, at, &self.buffer[..usize_from_u64(length)]).context("write")?;
            at += length;
        }
        Ok(())
    }

    /// Writes back and commits, depending on the amount of written data.
    fn write_back(&mut self, fs: &FileSystem, ctx: &OpContext, bytes: u64) -> Result<()> {
        if self.dirty >= DIRTY_BYTES {
            self.dirty = 0;
            fs.write_back_all(ctx).context("write back")?;
        }
        self.written += bytes;
        self.uncommitted += bytes;
        if self.uncommitted >= self.plan.commit_bytes {
            self.uncommitted = 0;
            fs.write_back_all(ctx).context("write back")?;
            self.commit(fs)?;
        }
        Ok(())
    }

    /// Ends the transaction, and then discards the space that it freed. Of the three devices that
    /// [`Watched`] simulates, only the one with online discard gets this.
    fn commit(&mut self, fs: &FileSystem) -> Result<()> {
        fs.commit(&context(0)).context("commit")?;
        self.reuse.end_transaction();
        self.freed.sort_unstable();
        let mut segments: Vec<(u64, u64)> = Vec::new();
        for (first, bytes) in self.freed.drain(..) {
            match segments.last_mut() {
                Some((start, length)) if *start + *length == first => *length += bytes,
                _ => segments.push((first, bytes)),
            }
        }
        self.device.discard_online(&segments);
        Ok(())
    }

    /// Records the blocks of an old file. They are free after the next commit.
    fn note_freed(&mut self, fs: &FileSystem, inode: InodeNr) -> Result<()> {
        let mut from = 0;
        loop {
            let extents = fs.extents(inode, from, EXTENTS)?;
            self.freed.extend(extents.iter().filter_map(|extent| Some((extent.physical?, extent.len))));
            match extents.last() {
                Some(last) if extents.len() == EXTENTS => from = last.offset + last.len,
                _ => return Ok(()),
            }
        }
    }

    /// Records the used share of each group.
    fn sample(&mut self, fs: &FileSystem) {
        let allocator = fs.allocator();
        let geometry = fs.geometry();
        let used = geometry.all_groups().map(|group: GroupNr| {
            let clusters = f64::from(geometry.clusters_in_group(group));
            1.0 - f64::from(allocator.group_free(group)) / clusters
        });
        self.timeline.sample(count_as_f64(self.written) / count_as_f64(GIB), used);
    }
}
