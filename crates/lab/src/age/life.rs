//! Ageing one image: operations drawn by a profile's rates, performed one after the other.
//!
//! Ageing first fills the image, then keeps it near its utilisation. Each kind of files has a share
//! of the space for files. The drawn operation is replaced by another one in these cases:
//!
//! - The kind has no files: every operation becomes a creation.
//! - The kind takes less than its share, and the image is not full: a deletion may become a
//!   creation, the more often the more space is left.
//! - The kind takes its share, or the image is full: creations and appends become deletions.
//! - The image is full: overwrites of sparse files become deletions, too.
//! - The file has the largest size of its kind: an append becomes an overwrite.
//!
//! Write-back starts when a certain amount of data is dirty. If the kind says so, each changed file
//! is written back immediately. Commits do not follow a clock. A commit comes after a number of
//! operations, after an amount of written data, and when an operation finds no space.
//!
//! Invariant: the files of a kind form a queue, and the files of a batch are adjacent in it. So a
//! batch is deleted as a whole, unless the ageing ends within it.

use std::collections::VecDeque;

use anyhow::{Context, Result};
use blockyard_disk::InodeNr;
use blockyard_disk::inode::FileType;
use blockyard_disk::num::{
    count_as_f64, u32_from_u64, u64_from_u32, u64_from_usize, usize_from_u32, usize_from_u64,
};
use blockyard_engine::{Error, Fallocate, FileSystem, NewInode, OpContext, RenameMode};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Circumstances;
use super::profile::{Kind, Made, Order, Profile};
use crate::target::engine::context;
use crate::workload::MIB;
use crate::workload::scale::{scaled, whole};

/// Bytes of one write call.
const WRITE_BYTES: u64 = MIB;
/// When this much data is dirty, all of it is written back. It is less than the engine's own limit.
const DIRTY_BYTES: u64 = 48 * MIB;
/// A commit comes after this many bytes written or this many operations.
const COMMIT_BYTES: u64 = 1280 * MIB;
const COMMIT_OPERATIONS: u64 = 5000;
/// Operations after which the next ones come from another CPU slot.
const OPERATIONS_PER_CPU: u64 = 1000;
/// Operations between two checks of the image's free space. While the image is full, its free space
/// is checked after each operation or batch.
const LOOK_EVERY: u64 = 256;
/// Assumed bytes of a block, to estimate what a file takes. With larger blocks, the estimate is too
/// low. Then the check of the image's free space keeps files from taking too much.
const BLOCK: u64 = 4096;

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Creates a file.
    Create,
    /// Appends to a file.
    Append,
    /// Overwrites a part of a file.
    Overwrite,
    /// Writes a file under another name, then renames it over the old one.
    Replace,
    /// Removes a file.
    Delete,
}

impl What {
    /// All of them, in the order of figures.
    pub const ALL: [Self; 5] = [Self::Create, Self::Append, Self::Overwrite, Self::Replace, Self::Delete];

    /// Its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Append => "append",
            Self::Overwrite => "overwrite",
            Self::Replace => "replace",
            Self::Delete => "delete",
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::Create => 0,
            Self::Append => 1,
            Self::Overwrite => 2,
            Self::Replace => 3,
            Self::Delete => 4,
        }
    }
}

/// What an ageing did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deeds {
    /// Operations in the order of [`What::ALL`].
    counts: [u64; 5],
    /// Bytes written to files.
    pub written_bytes: u64,
    /// Number of files at the end.
    pub files: u64,
    /// Operations that found no space.
    pub no_room: u64,
    /// Bytes that files take at the end.
    pub taken_bytes: u64,
    /// Bytes that all files together may take.
    pub most_bytes: u64,
}

impl Deeds {
    /// Number of operations of one kind.
    #[must_use]
    pub const fn of(&self, what: What) -> u64 {
        self.counts[what.index()]
    }

    /// Number of all operations.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// An existing file.
#[derive(Clone, Copy)]
struct File {
    inode: InodeNr,
    /// Index of its directory among the kind's directories.
    directory: u32,
    /// Number that its name is made from.
    number: u32,
    /// Its size.
    size: u64,
    /// Bytes that it takes, approximately.
    taken: u64,
}

/// Files of a kind.
struct Files {
    kind: Kind,
    directories: Vec<InodeNr>,
    files: VecDeque<File>,
    taken: u64,
    /// Bytes that the files of the kind may take.
    most: u64,
    next: u32,
}

/// A file system that is being aged.
pub(super) struct Life {
    fs: FileSystem,
    kinds: Vec<Files>,
    /// Cumulative rates: each entry is the upper bound of the draws for one operation on one kind.
    rates: Vec<(f64, usize, What)>,
    random: ChaCha8Rng,
    zeroes: Vec<u8>,
    cpus: u32,
    deeds: Deeds,
    /// When fewer blocks than this are free, the image counts as full.
    blocks_kept: u64,
    is_full: bool,
    looked: u64,
    dirty: u64,
    committed: (u64, u64),
}

/// Whether an operation found space.
#[derive(PartialEq, Eq)]
enum Room {
    Found,
    None,
}

impl Life {
    /// Creates the directories; files may take `most` bytes.
    pub(super) fn begin(fs: FileSystem, profile: &Profile, most: u64, who: &Circumstances) -> Result<Self> {
        let statistics = fs.statistics();
        let mut rates = Vec::new();
        let mut sum = 0.0;
        for (number, kind) in profile.kinds.iter().enumerate() {
            let weights = kind.rates;
            let of = [weights.create, weights.append, weights.overwrite, weights.replace, weights.delete];
            for (what, rate) in What::ALL.into_iter().zip(of).filter(|(_, rate)| *rate > 0.0) {
                sum += rate;
                rates.push((sum, number, what));
            }
        }
        let mut life = Self {
            fs,
            kinds: Vec::new(),
            rates,
            random: ChaCha8Rng::seed_from_u64(who.seed),
            zeroes: vec![0; usize_from_u64(WRITE_BYTES)],
            cpus: who.cpus.max(1),
            deeds: Deeds::default(),
            blocks_kept: statistics.blocks_free.saturating_sub(most / u64::from(statistics.block_size)),
            is_full: false,
            looked: 0,
            dirty: 0,
            committed: (0, 0),
        };
        for kind in &profile.kinds {
            let files = life.settle(kind, scaled(most, kind.share))?;
            life.kinds.push(files);
        }
        Ok(life)
    }

    /// Creates the directories of a kind.
    fn settle(&self, kind: &Kind, most: u64) -> Result<Files> {
        let new = NewInode { kind: FileType::Directory, permissions: 0o755, device: None };
        let ctx = context(0);
        // If the image was aged before, a directory of this name may exist.
        let mut number = 0u32;
        let top = loop {
            match self.fs.create(&ctx, InodeNr::ROOT, format!("{}{number}", kind.name).as_bytes(), &new) {
                Err(Error::Exists) => number += 1,
                made => break made.context("make a directory")?,
            }
        };
        let under = |index: u32| self.fs.create(&ctx, top, format!("d{index:04}").as_bytes(), &new);
        let directories = (0..kind.directories).map(under).collect::<Result<Vec<InodeNr>, Error>>();
        Ok(Files {
            kind: kind.clone(),
            directories: directories.context("make a directory")?,
            files: VecDeque::new(),
            taken: 0,
            most,
            next: 0,
        })
    }

    /// Performs operations until `left` returns 0. It returns how many operations may still follow.
    pub(super) fn live(&mut self, left: impl Fn(&Deeds) -> u64) -> Result<()> {
        loop {
            let left = left(&self.deeds);
            if left == 0 {
                return Ok(());
            }
            self.step(left)?;
        }
    }

    /// Closes the image, which writes everything to the device; returns what was done.
    pub(super) fn end(mut self) -> Result<Deeds> {
        self.deeds.files = self.kinds.iter().map(|files| u64_from_usize(files.files.len())).sum();
        self.deeds.taken_bytes = self.kinds.iter().map(|files| files.taken).sum();
        self.deeds.most_bytes = self.kinds.iter().map(|files| files.most).sum();
        self.fs.close(&context(0)).context("close the image")?;
        Ok(self.deeds)
    }

    /// Performs the next operation, or a batch of at most `left` of them.
    fn step(&mut self, left: u64) -> Result<()> {
        let (number, what) = self.draw();
        let what = self.fitting(number, what);
        let before = self.deeds.operations();
        let room = match what {
            What::Create => self.create(number, left)?,
            What::Append => self.append(number)?,
            What::Overwrite => self.overwrite(number)?,
            What::Replace => self.replace(number)?,
            What::Delete => self.delete(number, left)?,
        };
        if room == Room::None {
            self.deeds.no_room += 1;
            self.is_full = true;
            self.commit()?;
        }
        if self.deeds.operations() == before {
            // The operation did nothing. The attempt is counted, so that the run makes progress.
            self.deeds.counts[what.index()] += 1;
        }
        self.keep_up()
    }

    fn draw(&mut self) -> (usize, What) {
        let most = self.rates.last().map_or(0.0, |(sum, ..)| *sum);
        let draw = self.random.random::<f64>() * most;
        let at = self.rates.partition_point(|(sum, ..)| *sum <= draw).min(self.rates.len() - 1);
        let (_, number, what) = self.rates[at];
        (number, what)
    }

    /// The operation to perform: the drawn one, or a different one if the documentation of this
    /// module says so.
    fn fitting(&mut self, number: usize, what: What) -> What {
        let share = self.random.random::<f64>();
        let files = &self.kinds[number];
        let fullness = count_as_f64(files.taken) / count_as_f64(files.most.max(1));
        let is_full = self.is_full || fullness >= 1.0;
        match what {
            _ if files.files.is_empty() => What::Create,
            What::Delete if !is_full && share > fullness => What::Create,
            What::Create | What::Append if is_full => What::Delete,
            // Filling a hole takes space, too.
            What::Overwrite if self.is_full && files.kind.made == Made::Sparse => What::Delete,
            What::Create | What::Append | What::Overwrite | What::Replace | What::Delete => what,
        }
    }

    fn ctx(&self) -> OpContext {
        context(u32_from_u64(self.deeds.operations() / OPERATIONS_PER_CPU % u64_from_u32(self.cpus)))
    }

    /// Creates a batch of files, at most `left`, in one directory. A batch that finds no space is
    /// removed again.
    fn create(&mut self, number: usize, left: u64) -> Result<Room> {
        let kind = self.kinds[number].kind.clone();
        let directory = self.random.random_range(0..kind.directories);
        for made in 0..u64_from_u32(kind.batch).min(left) {
            let size = kind.size.draw(&mut self.random);
            let room = self.make(number, directory, size)?;
            self.deeds.counts[What::Create.index()] += 1;
            if room == Room::None {
                for _ in 0..=made {
                    let last = self.kinds[number].files.len() - 1;
                    self.remove(number, last)?;
                }
                return Ok(room);
            }
        }
        Ok(Room::Found)
    }

    /// Creates a file at the end of its kind's queue. If there is no space for all of the file, the
    /// caller removes it.
    fn make(&mut self, number: usize, directory: u32, size: u64) -> Result<Room> {
        let ctx = self.ctx();
        let files = &mut self.kinds[number];
        let made = files.kind.made;
        let name = files.next;
        files.next += 1;
        let parent = files.directories[usize_from_u32(directory)];
        let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
        let inode = match self.fs.create(&ctx, parent, &name_of(name), &new) {
            Err(error) if is_full(&error) => {
                // No file was created. A placeholder keeps the batch complete; the caller removes
                // it.
                files.files.push_back(File {
                    inode: InodeNr::ROOT,
                    directory,
                    number: name,
                    size: 0,
                    taken: 0,
                });
                return Ok(Room::None);
            }
            made => made.context("make a file")?,
        };
        self.fs.open_inode(inode, true)?;
        let (room, taken) = match made {
            Made::Written => {
                let (room, written) = self.write(&ctx, inode, 0, size)?;
                (room, written)
            }
            Made::Preallocated => match self.fs.fallocate(&ctx, inode, Fallocate::Allocate, 0, size) {
                Err(error) if is_full(&error) => (Room::None, 0),
                done => done.map(|()| (Room::Found, size)).context("fallocate")?,
            },
            Made::Sparse => {
                self.fs.truncate(&ctx, inode, size).context("truncate")?;
                (Room::Found, 0)
            }
        };
        let taken = taken.next_multiple_of(BLOCK);
        let files = &mut self.kinds[number];
        files.files.push_back(File { inode, directory, number: name, size, taken });
        files.taken += taken;
        self.changed(&ctx, number, inode)?;
        Ok(room)
    }

    /// Writes zeroes at an offset; returns how many bytes were written.
    fn write(&mut self, ctx: &OpContext, inode: InodeNr, at: u64, length: u64) -> Result<(Room, u64)> {
        let mut done = 0;
        while done < length {
            let part = (length - done).min(WRITE_BYTES);
            match self.fs.write(ctx, inode, at + done, &self.zeroes[..usize_from_u64(part)]) {
                Err(error) if is_full(&error) => return Ok((Room::None, done)),
                written => written.context("write")?,
            };
            done += part;
            self.dirty += part;
            self.deeds.written_bytes += part;
        }
        Ok((Room::Found, done))
    }

    /// Closes a changed file. If its kind says so, the file is written back first.
    fn changed(&mut self, ctx: &OpContext, number: usize, inode: InodeNr) -> Result<()> {
        if self.kinds[number].kind.fsync {
            self.fs.write_back_file(ctx, inode).context("write back")?;
        }
        Ok(self.fs.release_inode(ctx, inode, true)?)
    }

    /// Draws a file to change. The kind's `newest` says how strongly new files are preferred.
    fn any(&mut self, number: usize) -> usize {
        let files = &self.kinds[number];
        let count = files.files.len();
        let back = self.random.random::<f64>().powf(files.kind.newest) * count_as_f64(u64_from_usize(count));
        count - 1 - usize_from_u64(whole(back)).min(count - 1)
    }

    fn append(&mut self, number: usize) -> Result<Room> {
        let index = self.any(number);
        let (piece, most) = (self.kinds[number].kind.piece, self.kinds[number].kind.size.most_kib << 10);
        let File { inode, size, .. } = self.kinds[number].files[index];
        let length = piece.draw(&mut self.random).min(most.saturating_sub(size));
        if length == 0 {
            return self.overwrite(number);
        }
        let ctx = self.ctx();
        self.fs.open_inode(inode, true)?;
        let (room, written) = self.write(&ctx, inode, size, length)?;
        let files = &mut self.kinds[number];
        let file = &mut files.files[index];
        file.size += written;
        let more = (size + written).next_multiple_of(BLOCK) - size.next_multiple_of(BLOCK);
        file.taken += more;
        files.taken += more;
        self.changed(&ctx, number, inode)?;
        self.deeds.counts[What::Append.index()] += 1;
        Ok(room)
    }

    fn overwrite(&mut self, number: usize) -> Result<Room> {
        let index = self.any(number);
        let kind = &self.kinds[number].kind;
        let (piece, made) = (kind.piece, kind.made);
        let File { inode, size, taken, .. } = self.kinds[number].files[index];
        let length = piece.draw(&mut self.random).min(size);
        let last = (size - length) / BLOCK;
        let at = self.random.random_range(0..=last) * BLOCK;
        let ctx = self.ctx();
        self.fs.open_inode(inode, true)?;
        let (room, written) = self.write(&ctx, inode, at, length)?;
        if made == Made::Sparse {
            // This is an estimate, because pieces that overlap are counted twice. The file's size
            // is its limit.
            let more = written.next_multiple_of(BLOCK).min(size.next_multiple_of(BLOCK) - taken);
            let files = &mut self.kinds[number];
            files.files[index].taken += more;
            files.taken += more;
        }
        self.changed(&ctx, number, inode)?;
        self.deeds.counts[What::Overwrite.index()] += 1;
        Ok(room)
    }

    /// Writes a new file under another name, and renames it over the old file. Before the rename,
    /// the new file is written back, as on Linux.
    fn replace(&mut self, number: usize) -> Result<Room> {
        let index = self.any(number);
        let kind = &self.kinds[number].kind;
        let size = kind.size;
        let old = self.kinds[number].files[index];
        let size = size.draw(&mut self.random);
        let room = self.make(number, old.directory, size)?;
        let last = self.kinds[number].files.len() - 1;
        self.deeds.counts[What::Replace.index()] += 1;
        if room == Room::None {
            self.remove(number, last)?;
            return Ok(room);
        }
        let ctx = self.ctx();
        let files = &mut self.kinds[number];
        let new = files.files.pop_back().expect("a file was made");
        let parent = files.directories[usize_from_u32(old.directory)];
        files.taken -= old.taken;
        files.files[index] = File { number: old.number, ..new };
        self.fs.write_back_file(&ctx, new.inode).context("write back")?;
        let (from, to) = (name_of(new.number), name_of(old.number));
        self.fs.rename(&ctx, (parent, &from), (parent, &to), RenameMode::Replace).context("rename")?;
        Ok(room)
    }

    /// Moves a batch to the end of the queue and deletes its files, but at most `left` of them.
    fn delete(&mut self, number: usize, left: u64) -> Result<Room> {
        let files = &mut self.kinds[number];
        let batch = usize_from_u32(files.kind.batch).min(files.files.len());
        match files.kind.order {
            Order::Oldest => {
                for _ in 0..batch {
                    let first = files.files.pop_front().expect("the batch is there");
                    files.files.push_back(first);
                }
            }
            Order::Any => {
                let batches = files.files.len() / batch;
                let (chosen, last) = (self.random.random_range(0..batches), batches - 1);
                for at in 0..batch {
                    files.files.swap(chosen * batch + at, last * batch + at);
                }
            }
        }
        for _ in 0..batch.min(usize_from_u64(left)) {
            let last = self.kinds[number].files.len() - 1;
            self.remove(number, last)?;
            self.deeds.counts[What::Delete.index()] += 1;
        }
        Ok(Room::Found)
    }

    /// Removes the last file of a queue.
    fn remove(&mut self, number: usize, last: usize) -> Result<()> {
        let ctx = self.ctx();
        let files = &mut self.kinds[number];
        debug_assert_eq!(last + 1, files.files.len(), "files are removed from the end of their queue");
        let Some(file) = files.files.pop_back() else { return Ok(()) };
        files.taken -= file.taken;
        // A placeholder has no file to remove.
        if file.inode != InodeNr::ROOT {
            let parent = files.directories[usize_from_u32(file.directory)];
            self.fs.unlink(&ctx, parent, &name_of(file.number)).context("remove a file")?;
        }
        Ok(())
    }

    /// Writes back, commits, and checks the free space when it is time.
    fn keep_up(&mut self) -> Result<()> {
        if self.dirty >= DIRTY_BYTES {
            self.dirty = 0;
            self.fs.write_back_all(&self.ctx()).context("write back")?;
        }
        let (operations, bytes) = (self.deeds.operations(), self.deeds.written_bytes);
        if operations - self.committed.0 >= COMMIT_OPERATIONS || bytes - self.committed.1 >= COMMIT_BYTES {
            self.commit()?;
        }
        if self.is_full || operations - self.looked >= LOOK_EVERY {
            self.looked = operations;
            self.is_full = self.fs.statistics().blocks_free < self.blocks_kept;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        self.committed = (self.deeds.operations(), self.deeds.written_bytes);
        self.dirty = 0;
        let ctx = self.ctx();
        self.fs.write_back_all(&ctx).context("write back")?;
        self.fs.commit(&ctx).context("commit")
    }
}

fn name_of(number: u32) -> Vec<u8> {
    format!("f{number:08x}").into_bytes()
}

/// Whether an error means that there is no space or no free inode.
fn is_full(error: &Error) -> bool {
    matches!(error, Error::NoSpace | Error::NoInodes)
}
