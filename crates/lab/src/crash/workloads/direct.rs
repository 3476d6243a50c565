//! Direct writes and preallocated blocks: both can give a file blocks before its size covers them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use blockyard_disk::InodeNr;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use blockyard_engine::{Fallocate, OpContext};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::super::facts::stamps;
use super::super::stage::{REGULAR, Stage, owner};
use super::threads::together;
use crate::target::Cpu;
use crate::target::engine::context;

/// A file with more blocks than this is truncated by the next operation on it.
const fn blocks_max(block: u64) -> u64 {
    if block > 4096 { 40 } else { 90 }
}

/// How a write reaches the device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Stays in memory until write-back.
    Buffered,
    /// Goes to the device immediately.
    Direct,
}

/// A file with every version of its content since its last fsync.
struct File {
    id: u16,
    path: String,
    inode: InodeNr,
    ctx: OpContext,
    block: u64,
    bytes: Vec<u8>,
    versions: Vec<Arc<[u8]>>,
}

impl File {
    fn new(stage: &Stage, id: u16, cpu: Cpu) -> Result<Self> {
        let (path, ctx) = (format!("file-{id}"), owner(id, cpu));
        let inode = stage.fs.create(&ctx, InodeNr::ROOT, path.as_bytes(), &REGULAR)?;
        let block = stage.block();
        let mut file = Self { id, path, inode, ctx, block, bytes: Vec::new(), versions: Vec::new() };
        file.fsync(stage)?;
        Ok(file)
    }

    /// Makes the file durable.
    fn fsync(&mut self, stage: &Stage) -> Result<()> {
        stage.fs.fsync(&self.ctx, self.inode)?;
        self.versions = vec![self.bytes.as_slice().into()];
        stage.allow_mixed(&self.path, &self.versions);
        Ok(())
    }

    /// Called before an operation that gives the file new content: adds that content to the
    /// versions that a power cut may leave.
    fn becomes(&mut self, stage: &Stage, bytes: Vec<u8>) {
        self.versions.push(bytes.as_slice().into());
        stage.allow_mixed(&self.path, &self.versions);
        self.bytes = bytes;
    }

    fn blocks(&self) -> u64 {
        u64_from_usize(self.bytes.len()).div_ceil(self.block)
    }

    fn is_large(&self) -> bool {
        self.blocks() > blocks_max(self.block)
    }

    /// Writes whole blocks.
    fn write(&mut self, stage: &Stage, version: u16, at: u64, blocks: u64, way: Way) -> Result<()> {
        let (at, len) = (at * self.block, blocks * self.block);
        let new = stamps(self.id, version, at, len);
        let mut bytes = self.bytes.clone();
        bytes.resize(bytes.len().max(usize_from_u64(at + len)), 0);
        bytes[usize_from_u64(at)..usize_from_u64(at + len)].copy_from_slice(&new);
        self.becomes(stage, bytes);
        if way == Way::Direct {
            let done = stage.fs.write_direct(&self.ctx, self.inode, at, &new)?;
            ensure!(done == new.len(), "a direct write ended early");
            return Ok(());
        }
        Ok(stage.fs.write(&self.ctx, self.inode, at, &new)?)
    }

    /// Allocates, punches or zeroes a range, which may begin and end inside blocks.
    fn fallocate(&mut self, stage: &Stage, how: Fallocate, at: u64, len: u64) -> Result<()> {
        let (from, to) = (usize_from_u64(at), usize_from_u64(at + len));
        let mut bytes = self.bytes.clone();
        if matches!(how, Fallocate::Allocate | Fallocate::ZeroRange) {
            bytes.resize(bytes.len().max(to), 0);
        }
        if !matches!(how, Fallocate::Allocate | Fallocate::AllocateKeepSize) {
            let end = to.min(bytes.len());
            bytes[from.min(end)..end].fill(0);
        }
        self.becomes(stage, bytes);
        Ok(stage.fs.fallocate(&self.ctx, self.inode, how, at, len)?)
    }

    fn truncate(&mut self, stage: &Stage, size: u64) -> Result<()> {
        let mut bytes = self.bytes.clone();
        bytes.resize(usize_from_u64(size), 0);
        self.becomes(stage, bytes);
        Ok(stage.fs.truncate(&self.ctx, self.inode, size)?)
    }
}

/// Direct writes beyond the end, across it, into holes and into preallocated blocks. Every other
/// handle ends its transaction.
pub(super) fn alone(stage: &Stage) -> Result<()> {
    let mut random = stage.random(8);
    let mut files = (1..=3).map(|id| File::new(stage, id, 0)).collect::<Result<Vec<_>>>()?;
    for round in 1..=60 {
        let file = &mut files[random.random_range(0..3)];
        change_directly(stage, &mut random, file, round)?;
        if random.random_range(0..3) == 0 {
            file.fsync(stage)?;
        }
    }
    Ok(())
}

/// Threads 0 to 2 write directly. Thread 3 commits until thread 0 has ended or one of the writing
/// threads has failed.
pub(super) fn beside_commits(stage: &Stage) -> Result<()> {
    let done = AtomicBool::new(false);
    together(4, |number| {
        if number == 3 {
            return commit_until(stage, &done);
        }
        let worked = write_in_thread(stage, number);
        if number == 0 || worked.is_err() {
            // Relaxed suffices: the flag only ends a loop and publishes no data.
            done.store(true, Ordering::Relaxed);
        }
        worked
    })
}

/// Creates a file and syncs it, again and again, until `done` is set, but at most 400 times.
fn commit_until(stage: &Stage, done: &AtomicBool) -> Result<()> {
    let ctx = context(3);
    for round in 0..400 {
        if done.load(Ordering::Relaxed) {
            break;
        }
        let name = format!("name-{}", round % 20);
        if round >= 20 {
            stage.fs.unlink(&ctx, InodeNr::ROOT, name.as_bytes())?;
        }
        let file = stage.fs.create(&ctx, InodeNr::ROOT, name.as_bytes(), &REGULAR)?;
        stage.fs.fsync(&ctx, file)?;
    }
    Ok(())
}

fn write_in_thread(stage: &Stage, number: u16) -> Result<()> {
    let mut random = stage.random(80 + u64::from(number));
    let mut file = File::new(stage, number + 1, u32::from(number))?;
    for round in 1..=40 {
        change_directly(stage, &mut random, &mut file, round)?;
        if random.random_range(0..4) == 0 {
            file.fsync(stage)?;
        }
    }
    Ok(())
}

/// Makes one random change: a truncation, or a direct write, mostly after an operation that
/// prepares a range for it.
fn change_directly(stage: &Stage, random: &mut ChaCha8Rng, file: &mut File, version: u16) -> Result<()> {
    let (end, block) = (file.blocks(), file.block);
    let (inside, len) = (random.random_range(0..=end), random.random_range(1..9));
    match random.random_range(0..8) {
        _ if file.is_large() => file.truncate(stage, random.random_range(0..200) * 8),
        0 => file.write(stage, version, end, len, Way::Direct),
        1..=3 => {
            // The write begins at the end, beyond it, or two blocks before it.
            file.fallocate(stage, Fallocate::AllocateKeepSize, end * block, (len + 6) * block)?;
            let at = [end, end + 2, end.saturating_sub(2)][random.random_range(0..3)];
            file.write(stage, version, at, len, Way::Direct)
        }
        4 => {
            file.fallocate(stage, Fallocate::PunchHole, inside * block, (len + 3) * block)?;
            file.write(stage, version, inside, len + 1, Way::Direct)
        }
        5 => {
            file.write(stage, version, inside, len, Way::Buffered)?;
            file.write(stage, version + 100, inside + len / 2, len, Way::Direct)
        }
        6 => {
            file.fallocate(stage, Fallocate::Allocate, inside * block, (len + 4) * block)?;
            file.write(stage, version, inside + 1, len, Way::Direct)
        }
        _ => file.truncate(stage, random.random_range(0..=end) * block / 2),
    }
}

/// Ranges are preallocated with the size kept, and zeroed with and without the size kept. In
/// between, files are written, written back and truncated.
pub(super) fn keep_size(stage: &Stage) -> Result<()> {
    let mut random = stage.random(9);
    let mut files = (1..=4).map(|id| File::new(stage, id, 0)).collect::<Result<Vec<_>>>()?;
    for round in 1..=120 {
        let file = &mut files[random.random_range(0..4)];
        let (end, block) = (file.blocks(), file.block);
        let at = random.random_range(0..=(end + 6) * block / 8) * 8;
        let len = [8, 400, block, 3 * block, 5 * block + 80][random.random_range(0..5)];
        match random.random_range(0..12) {
            _ if file.is_large() => file.truncate(stage, random.random_range(0..200) * 8)?,
            0..=2 => file.write(stage, round, at / block, len.div_ceil(block), Way::Buffered)?,
            3..=5 => file.fallocate(stage, Fallocate::AllocateKeepSize, at, len * 2)?,
            6..=7 => file.fallocate(stage, Fallocate::ZeroRangeKeepSize, at, len)?,
            8..=9 => file.fallocate(stage, Fallocate::ZeroRange, at, len)?,
            10 => file.truncate(stage, at)?,
            _ => stage.fs.write_back_file(&file.ctx, file.inode)?,
        }
        if random.random_range(0..3) == 0 {
            file.fsync(stage)?;
        }
    }
    Ok(())
}
