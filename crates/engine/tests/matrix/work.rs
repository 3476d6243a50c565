//! One thread of a random run over every operation of the engine.
//!
//! Threads share one tree: whatever an operation finds may be removed or changed a moment later. So
//! most errors are accepted here. These are not accepted:
//!
//! - corruption, a damaged orphan list, a refused image, a failed device;
//! - a read-only file system;
//! - lack of space in a write-back or sync.
//!
//! The resulting image is judged after the run.

use blockyard_disk::device_number::DeviceNumber;
use blockyard_disk::inode::FileType;
use blockyard_disk::{InodeNr, Timestamp};
use blockyard_engine::{
    Attributes, Error, Fallocate, InodeId, NewInode, OpContext, RenameMode, Result, SetAttributes, Watched,
    XattrMode,
};
use blockyard_ranges::{Edges, Ranges};
use blockyard_sync::CpuSlot;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::ops::Range;

/// `chattr` flags: append-only and immutable, then harmless ones (no dump, no access time, top
/// directory).
const FLAGS: [u32; 5] = [0x20, 0x10, 0x40, 0x80, 0x2_0000];

/// A time on 2310-04-04. e2fsck takes later times for times before 1970.
const LATEST: i64 = 10_737_418_239;

/// What the threads of a run share.
#[derive(Clone, Copy)]
pub(crate) struct Plan<'a> {
    pub(crate) fs: &'a Watched,
    pub(crate) seed: u64,
    /// Bytes of an allocation unit: collapsed or inserted ranges are multiples of it.
    pub(crate) unit: u64,
    /// How many names are possible in one directory.
    pub(crate) names: u32,
    /// Operations of one thread.
    pub(crate) steps: u32,
}

/// A thread, its random numbers, and the files it holds open.
pub(crate) struct Worker<'a> {
    plan: Plan<'a>,
    rng: ChaCha8Rng,
    slot: u32,
    clock: i64,
    held: Vec<(InodeNr, bool)>,
    near: Ranges,
    far: Ranges,
    /// The results so far.
    answers: Answers,
}

/// For each operation, how many calls succeeded and how many failed with an allowed error.
pub(crate) type Answers = BTreeMap<&'static str, (u64, u64)>;

impl<'a> Worker<'a> {
    pub(crate) fn new(plan: Plan<'a>, slot: u32) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(plan.seed ^ (u64::from(slot) << 32));
        // Half of the threads draw ranges at the edges of block maps. On files with extents these
        // edges are as good as any others.
        let block = plan.fs.geometry().block_size() as u64;
        let edges = if slot.is_multiple_of(2) { Edges::extents(block) } else { Edges::indirect(block) };
        let edges = edges.clusters(plan.unit);
        let near = Ranges::new(edges.clone().up_to(300_000.max(12 * plan.unit)));
        let far = Ranges::new(edges.up_to((24 << 20).max(24 * plan.unit)));
        Self { plan, rng, slot, clock: 1_700_000_000, held: Vec::new(), near, far, answers: Answers::new() }
    }

    pub(crate) fn run(mut self) -> Answers {
        for step in 0..self.plan.steps {
            let (name, result) = self.step();
            let count = self.answers.entry(name).or_default();
            match result {
                Ok(()) => count.0 += 1,
                Err(
                    error @ (Error::Device(_)
                    | Error::Corrupt(_)
                    | Error::Orphan { .. }
                    | Error::ReadOnly
                    | Error::Refused(_)),
                ) => panic!("thread {} step {step}: {name}: {error}", self.slot),
                // The write that made this data dirty has reserved the space for it.
                Err(error @ Error::NoSpace) if matches!(name, "sync" | "write_back") => {
                    panic!("thread {} step {step}: {name}: {error}", self.slot)
                }
                Err(_) => count.1 += 1,
            }
            assert!(!self.plan.fs.has_failed(), "thread {} step {step}: {name} failed half-way", self.slot);
        }
        while let Some((inode, write)) = self.held.pop() {
            self.plan.fs.release_inode(&self.ctx(), inode, write).unwrap();
        }
        self.answers
    }

    fn ctx(&mut self) -> OpContext {
        self.clock += i64::from(self.rng.random_range(0..3u8));
        let seconds = match self.rng.random_range(0..40) {
            0 => self.rng.random_range(Timestamp::SECONDS_MIN..=LATEST),
            1 => (1 << 31) + self.clock,
            _ => self.clock,
        };
        let now = Timestamp { seconds, nanoseconds: self.rng.random_range(0..1_000_000_000) };
        let (uid, gid) =
            *[(0, 0), (0, 0), (1000, 1001), (70_000, 4_000_000_000)].choose(&mut self.rng).unwrap();
        OpContext { uid, gid, privileged: uid == 0, ..OpContext::root_at(now).on(CpuSlot::new(self.slot)) }
    }

    fn chance(&mut self, one_in: u32) -> bool {
        self.rng.random_range(0..one_in) == 0
    }

    fn name(&mut self) -> Vec<u8> {
        let number = self.rng.random_range(0..self.plan.names);
        // A third of the names are long, so that blocks of directories fill and split.
        let width = if number.is_multiple_of(3) { 20 + (number as usize * 37) % 235 } else { 1 };
        format!("{number:0>width$}").into_bytes()
    }

    /// A directory, by a random walk from the root.
    fn dir(&mut self) -> InodeNr {
        let mut dir = InodeNr::ROOT;
        for _ in 0..self.rng.random_range(0..6) {
            let name = self.name();
            let Ok(next) = self.plan.fs.lookup(dir, &name) else { continue };
            if self.plan.fs.attributes(next).is_ok_and(|seen| seen.kind == FileType::Directory) {
                dir = next;
            }
        }
        dir
    }

    /// A directory, and a name that may or may not exist in it.
    fn place(&mut self) -> (InodeNr, Vec<u8>) {
        (self.dir(), self.name())
    }

    /// An entry that exists: directory, name, inode. `NotFound` if a few attempts find none.
    fn existing(&mut self) -> Result<(InodeNr, Vec<u8>, InodeNr)> {
        if self.chance(3) {
            return self.listed();
        }
        for _ in 0..8 {
            let (dir, name) = self.place();
            if let Ok(inode) = self.plan.fs.lookup(dir, &name) {
                return Ok((dir, name, inode));
            }
        }
        Err(Error::NotFound)
    }

    /// Any entry of the tree, found by listing directories. It may be one that the kernel created
    /// before the run.
    fn listed(&mut self) -> Result<(InodeNr, Vec<u8>, InodeNr)> {
        let mut dir = InodeNr::ROOT;
        loop {
            let mut entries = Vec::new();
            self.plan.fs.read_dir(dir, 0, |entry| {
                entries.push(entry);
                entries.len() < 3000
            })?;
            entries.retain(|entry| entry.name != b"." && entry.name != b".." && entry.name != b"lost+found");
            let entry = entries.choose(&mut self.rng).ok_or(Error::NotFound)?;
            let directory = self.plan.fs.attributes(entry.inode)?.kind == FileType::Directory;
            if !directory || self.rng.random_range(0..6) == 0 {
                return Ok((dir, entry.name.clone(), entry.inode));
            }
            dir = entry.inode;
        }
    }

    /// Most likely a regular file. `NotFound` if a few attempts find none.
    fn file(&mut self) -> Result<InodeNr> {
        if let Some(&(inode, _)) = self.held.choose(&mut self.rng)
            && self.chance(4)
        {
            return Ok(inode);
        }
        for _ in 0..4 {
            let (_, _, inode) = self.existing()?;
            if self.plan.fs.attributes(inode).is_ok_and(|seen| seen.kind == FileType::Regular) {
                return Ok(inode);
            }
        }
        Err(Error::NotFound)
    }

    /// A range of a file, mostly near its start, at the edges of blocks, maps and files.
    fn range(&mut self, inode: InodeNr, longest: u64) -> Range<u64> {
        let size = self.plan.fs.attributes(inode).map_or(0, |seen| seen.size);
        let ranges = if self.rng.random_range(0..10) == 0 { &mut self.far } else { &mut self.near };
        ranges.range(&mut self.rng, size, longest)
    }

    /// The most bytes of one write or fallocate.
    fn longest(&mut self) -> u64 {
        match self.rng.random_range(0..10) {
            0..4 => 200,
            4..8 => 10_000,
            _ => 100_000,
        }
    }

    fn length(&mut self) -> u64 {
        let longest = self.longest();
        self.rng.random_range(1..longest)
    }

    fn bytes(&mut self, length: u64) -> Vec<u8> {
        let salt: u64 = self.rng.random();
        blockyard_testkit::fill::pattern(salt, length as usize)
    }

    fn step(&mut self) -> (&'static str, Result<()>) {
        match self.rng.random_range(0..100) {
            0..14 => ("create", self.create(FileType::Regular)),
            14..19 => ("mkdir", self.create(FileType::Directory)),
            19..22 => ("mknod", self.special()),
            22..26 => ("symlink", self.symlink()),
            26..31 => ("link", self.link()),
            31..38 => ("unlink", self.unlink()),
            38..41 => ("rmdir", self.rmdir()),
            41..49 => self.rename(),
            49..58 => ("write", self.write()),
            58..61 => ("write_direct", self.write_direct()),
            61..64 => ("append", self.append()),
            64..68 => ("truncate", self.truncate()),
            68..78 => self.fallocate(),
            78..84 => ("set_xattr", self.set_xattr()),
            84..86 => ("remove_xattr", self.remove_xattr()),
            86..90 => ("set_attributes", self.set_attributes()),
            90 => ("set_flags", self.set_flags()),
            91..94 => ("open", self.hold()),
            94 => ("release", self.release()),
            95 => ("write_back", self.write_back()),
            96..99 => ("look", self.look()),
            _ => ("sync", self.sync()),
        }
    }

    fn create(&mut self, kind: FileType) -> Result<()> {
        let (dir, name) = self.place();
        let new = NewInode { kind, permissions: self.rng.random_range(0..0o10_000), device: None };
        let ctx = self.ctx();
        let inode = self.plan.fs.create(&ctx, dir, &name, &new)?;
        if kind == FileType::Regular && self.chance(2) {
            let length = self.length();
            let bytes = self.bytes(length);
            self.plan.fs.write(&ctx, inode, 0, &bytes)?;
        }
        Ok(())
    }

    fn special(&mut self) -> Result<()> {
        let (dir, name) = self.place();
        let kinds = [FileType::CharDevice, FileType::BlockDevice, FileType::Fifo, FileType::Socket];
        let kind = *kinds.choose(&mut self.rng).unwrap();
        let numbers = [(0, 0), (1, 3), (255, 255), (256, 1), (8, 256), (4095, 1_048_575)];
        let &(major, minor) = numbers.choose(&mut self.rng).unwrap();
        let is_device = matches!(kind, FileType::CharDevice | FileType::BlockDevice);
        let device = is_device.then_some(DeviceNumber { major, minor });
        let ctx = self.ctx();
        self.plan.fs.create(&ctx, dir, &name, &NewInode { kind, permissions: 0o640, device }).map(drop)
    }

    fn symlink(&mut self) -> Result<()> {
        let (dir, name) = self.place();
        let lengths = [1..59, 59..62, 62..300, 300..1024];
        let range = lengths.choose(&mut self.rng).unwrap().clone();
        let length = self.rng.random_range(range);
        let target: Vec<u8> =
            (0..length).map(|n| if n % 50 == 49 { b'/' } else { b'a' + (n % 26) as u8 }).collect();
        let ctx = self.ctx();
        self.plan.fs.symlink(&ctx, dir, &name, &target).map(drop)
    }

    fn link(&mut self) -> Result<()> {
        let inode = self.file()?;
        let (dir, name) = self.place();
        let ctx = self.ctx();
        self.plan.fs.link(&ctx, inode, dir, &name)
    }

    /// Sometimes opens the file first, so that it lives on without a name.
    fn unlink(&mut self) -> Result<()> {
        let (dir, name, inode) = self.existing()?;
        if self.chance(4) && self.held.len() < 20 {
            self.open(inode)?;
        }
        let ctx = self.ctx();
        self.plan.fs.unlink(&ctx, dir, &name)
    }

    fn rmdir(&mut self) -> Result<()> {
        let (dir, name, _) = self.existing()?;
        let ctx = self.ctx();
        self.plan.fs.rmdir(&ctx, dir, &name)
    }

    fn rename(&mut self) -> (&'static str, Result<()>) {
        let (label, mode) = *[
            ("rename", RenameMode::Replace),
            ("rename", RenameMode::Replace),
            ("rename_noreplace", RenameMode::NoReplace),
            ("exchange", RenameMode::Exchange),
        ]
        .choose(&mut self.rng)
        .unwrap();
        let Ok((dir, name, _)) = self.existing() else { return (label, Err(Error::NotFound)) };
        let (mut to_dir, mut to_name) = self.place();
        if mode == RenameMode::Exchange
            && let Ok(found) = self.existing()
        {
            (to_dir, to_name, _) = found;
        }
        let ctx = self.ctx();
        (label, self.plan.fs.rename(&ctx, (dir, &name), (to_dir, &to_name), mode))
    }

    fn write(&mut self) -> Result<()> {
        let (inode, longest) = (self.file()?, self.longest());
        let range = self.range(inode, longest);
        let bytes = self.bytes(range.end - range.start);
        let ctx = self.ctx();
        self.plan.fs.write(&ctx, inode, range.start, &bytes)
    }

    /// Writes whole blocks directly to the device.
    fn write_direct(&mut self) -> Result<()> {
        let (inode, longest) = (self.file()?, self.longest());
        let block = self.plan.fs.geometry().block_size() as u64;
        let size = self.plan.fs.attributes(inode).map_or(0, |seen| seen.size);
        let range = self.near.aligned(&mut self.rng, size, longest, block);
        let bytes = self.bytes(range.end - range.start);
        let ctx = self.ctx();
        self.plan.fs.write_direct(&ctx, inode, range.start, &bytes).map(drop)
    }

    fn append(&mut self) -> Result<()> {
        let (inode, length) = (self.file()?, self.length());
        let bytes = self.bytes(length);
        let ctx = self.ctx();
        self.plan.fs.append(&ctx, inode, &bytes).map(drop)
    }

    fn truncate(&mut self) -> Result<()> {
        let inode = self.file()?;
        let at = self.range(inode, u64::MAX).start;
        let size = if self.chance(4) { 0 } else { at };
        let ctx = self.ctx();
        self.plan.fs.truncate(&ctx, inode, size)
    }

    fn fallocate(&mut self) -> (&'static str, Result<()>) {
        let (label, what) = *[
            ("allocate", Fallocate::Allocate),
            ("allocate_keep_size", Fallocate::AllocateKeepSize),
            ("punch_hole", Fallocate::PunchHole),
            ("punch_hole", Fallocate::PunchHole),
            ("zero_range", Fallocate::ZeroRange),
            ("zero_range_keep_size", Fallocate::ZeroRangeKeepSize),
            ("collapse_range", Fallocate::CollapseRange),
            ("insert_range", Fallocate::InsertRange),
        ]
        .choose(&mut self.rng)
        .unwrap();
        let Ok(inode) = self.file() else { return (label, Err(Error::NotFound)) };
        let longest = self.longest();
        let mut range = self.range(inode, longest);
        if matches!(what, Fallocate::CollapseRange | Fallocate::InsertRange) {
            let size = self.plan.fs.attributes(inode).map_or(0, |seen| seen.size);
            range = self.near.aligned(&mut self.rng, size, 3 * self.plan.unit, self.plan.unit);
        }
        let ctx = self.ctx();
        (label, self.plan.fs.fallocate(&ctx, inode, what, range.start, range.end - range.start))
    }

    fn attribute_name(&mut self) -> Vec<u8> {
        let prefix = *["user.", "user.", "trusted.", "security."].choose(&mut self.rng).unwrap();
        let number = self.rng.random_range(0..12usize);
        format!("{prefix}{}{number}", "n".repeat(number * number)).into_bytes()
    }

    fn set_xattr(&mut self) -> Result<()> {
        let (_, _, number) = self.existing()?;
        // Another thread may delete the inode and create one of another kind with its number, which
        // may not have this attribute. Then the generation differs.
        let Attributes { kind, generation, .. } = self.plan.fs.attributes(number)?;
        let inode = InodeId { number, generation };
        let ctx = self.ctx();
        if self.chance(6) {
            let name: &[u8] =
                [&b"system.posix_acl_access"[..], b"system.posix_acl_default"].choose(&mut self.rng).unwrap();
            if kind == FileType::Symlink || (name.ends_with(b"default") && kind != FileType::Directory) {
                return Ok(());
            }
            return self.plan.fs.set_xattr(&ctx, inode, name, &access_list(), XattrMode::Set);
        }
        let mut name = self.attribute_name();
        if name.starts_with(b"user.") && !matches!(kind, FileType::Regular | FileType::Directory) {
            name = [b"trusted.", &name[5..]].concat();
        }
        let modes = [XattrMode::Set, XattrMode::Set, XattrMode::Create, XattrMode::Replace];
        let mode = *modes.choose(&mut self.rng).unwrap();
        let lengths = [0..1, 1..30, 30..200, 200..1200, 1200..5000];
        let range = lengths.choose(&mut self.rng).unwrap().clone();
        let length = self.rng.random_range(range);
        let value = self.bytes(length);
        self.plan.fs.set_xattr(&ctx, inode, &name, &value, mode)
    }

    fn remove_xattr(&mut self) -> Result<()> {
        let (_, _, inode) = self.existing()?;
        let names = self.plan.fs.xattr_names(inode)?;
        let name = names.choose(&mut self.rng).cloned().unwrap_or_else(|| b"user.none".to_vec());
        let ctx = self.ctx();
        self.plan.fs.remove_xattr(&ctx, inode, &name)
    }

    fn set_attributes(&mut self) -> Result<()> {
        let (_, _, inode) = self.existing()?;
        let (time, ctx) = (self.ctx().now, self.ctx());
        let draw: u32 = self.rng.random();
        let changes = SetAttributes {
            permissions: (draw & 1 != 0).then(|| self.rng.random_range(0..0o10_000)),
            uid: (draw & 2 != 0).then_some(draw >> 8),
            gid: (draw & 4 != 0).then_some(draw >> 16),
            accessed: (draw & 8 != 0).then_some(time),
            modified: (draw & 16 != 0).then_some(time),
            times_are_now: draw & 32 != 0,
            ..SetAttributes::default()
        };
        self.plan.fs.set_attributes(&ctx, inode, &changes)
    }

    /// Mostly clears all flags, because most operations on immutable files fail.
    fn set_flags(&mut self) -> Result<()> {
        let (_, _, inode) = self.existing()?;
        let flags = if self.chance(3) { *FLAGS.choose(&mut self.rng).unwrap() } else { 0 };
        let ctx = self.ctx();
        self.plan.fs.set_flags(&ctx, inode, flags)
    }

    fn open(&mut self, inode: InodeNr) -> Result<()> {
        let write = self.chance(2);
        self.plan.fs.open_inode(inode, write)?;
        self.held.push((inode, write));
        Ok(())
    }

    fn hold(&mut self) -> Result<()> {
        if self.held.len() >= 20 {
            return self.release();
        }
        let inode = self.file()?;
        self.open(inode)
    }

    fn release(&mut self) -> Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        let chosen = self.rng.random_range(0..self.held.len());
        let (inode, write) = self.held.swap_remove(chosen);
        let ctx = self.ctx();
        self.plan.fs.release_inode(&ctx, inode, write)
    }

    fn write_back(&mut self) -> Result<()> {
        let inode = self.file()?;
        let ctx = self.ctx();
        self.plan.fs.write_back_file(&ctx, inode)
    }

    fn look(&mut self) -> Result<()> {
        let (dir, _, inode) = self.existing()?;
        match self.rng.random_range(0..4) {
            0 => {
                let mut names = std::collections::BTreeSet::new();
                let mut dots = 0;
                self.plan.fs.read_dir(dir, 0, |entry| {
                    dots += u32::from(entry.name == b"." || entry.name == b"..");
                    assert!(names.insert(entry.name), "a name twice");
                    true
                })?;
                assert_eq!(dots, 2);
            }
            1 => {
                let longest = self.longest();
                let range = self.range(inode, longest);
                let mut buf = vec![0; (range.end - range.start) as usize];
                let ctx = self.ctx();
                self.plan.fs.read(&ctx, inode, range.start, &mut buf)?;
            }
            2 => drop(self.plan.fs.read_link(inode)?),
            _ => {
                let seen = self.plan.fs.statistics();
                assert!(seen.blocks_free <= seen.blocks && seen.inodes_free <= seen.inodes);
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        let ctx = self.ctx();
        match self.rng.random_range(0..4) {
            0 => self.plan.fs.sync(&ctx),
            1 => self.plan.fs.commit(&ctx),
            2 => self.plan.fs.write_back_all(&ctx),
            _ => {
                let inode = self.file()?;
                self.plan.fs.fsync(&ctx, inode)
            }
        }
    }
}

/// An access control list with named users and a mask, as programs write it.
fn access_list() -> Vec<u8> {
    let none = u32::MAX;
    let entries = [(1, 6, none), (2, 4, 1000), (2, 7, 70_000), (4, 4, none), (16, 7, none), (32, 0, none)];
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(u16::to_le_bytes(tag));
        value.extend(u16::to_le_bytes(permissions));
        value.extend(id.to_le_bytes());
    }
    value
}
