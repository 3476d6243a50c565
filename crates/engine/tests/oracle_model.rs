//! Random sequences of operations on the engine and on a model of Linux. For each operation,
//! success or the errno is compared. At the end the whole tree is compared, as the engine shows it
//! before and after the image is closed. Our checker then judges the image, and e2fsck judges every
//! tenth image. proptest shrinks a failing sequence.
//!
//! Arguments are small numbers that become inodes and names when the operation runs, so that a
//! shortened sequence is still valid. A range, too, is drawn when the operation runs, from a seed
//! of its own. It often begins or ends at an edge of a block, cluster or map, or where the file
//! ends at that moment.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

#[path = "model/kinds.rs"]
mod kinds;
#[path = "model/tree.rs"]
mod tree;

use blockyard_alloc::Policy;
use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::inode::FileType;
use blockyard_disk::{InodeNr, Timestamp};
use blockyard_engine::instruments::Instruments;
use blockyard_engine::{
    Error, Fallocate, FileSystem, NewInode, OpContext, OpenOptions, RenameMode, SetAttributes, Watched,
    XattrMode, mkfs,
};
use blockyard_ranges::Ranges;
use blockyard_testkit::{SparseBytes, coverage, e2fsck_clean, full_matrix, have_tool, seed};
use kinds::Kind;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use tree::{APPEND, Answer, Body, ENOSPC, IMMUTABLE, Id, Limits, Model, ROOT, Who};

/// Picks one of the inodes that exist when the operation runs.
type Pick = u16;

/// The seed from which a range is drawn when the operation runs.
type Draw = u32;

#[derive(Clone, Debug)]
enum Op {
    Make { dir: Pick, name: u8, kind: u8, permissions: u16 },
    Symlink { dir: Pick, name: u8, length: u16 },
    Link { inode: Pick, dir: Pick, name: u8 },
    Unlink { dir: Pick, name: u8 },
    Rmdir { dir: Pick, name: u8 },
    Rename { from: (Pick, u8), to: (Pick, u8), mode: u8 },
    Write { inode: Pick, draw: Draw },
    WriteDirect { inode: Pick, draw: Draw, whole: bool },
    Append { inode: Pick, draw: Draw },
    Truncate { inode: Pick, draw: Draw },
    Fallocate { inode: Pick, what: u8, draw: Draw, aligned: bool },
    Read { inode: Pick, draw: Draw },
    SetXattr { inode: Pick, name: u8, length: u8, mode: u8 },
    RemoveXattr { inode: Pick, name: u8 },
    Chmod { inode: Pick, permissions: u16 },
    SetFlags { inode: Pick, flags: u8 },
    Open { inode: Pick },
    Release { which: Pick },
    Sync { how: u8 },
    Fsync { inode: Pick, data: bool },
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    let pick = || any::<Pick>();
    let name = || prop_oneof![30 => 0..10u8, 1 => 10..16u8];
    let draw = || any::<Draw>().no_shrink();
    prop_oneof![
        8 => (pick(), name(), 0..6u8, 0..0o10_000u16)
            .prop_map(|(dir, name, kind, permissions)| Op::Make { dir, name, kind, permissions }),
        2 => (pick(), name(), 0..1100u16).prop_map(|(dir, name, length)| Op::Symlink { dir, name, length }),
        3 => (pick(), pick(), name()).prop_map(|(inode, dir, name)| Op::Link { inode, dir, name }),
        4 => (pick(), name()).prop_map(|(dir, name)| Op::Unlink { dir, name }),
        3 => (pick(), name()).prop_map(|(dir, name)| Op::Rmdir { dir, name }),
        8 => ((pick(), name()), (pick(), name()), 0..4u8)
            .prop_map(|(from, to, mode)| Op::Rename { from, to, mode }),
        8 => (pick(), draw()).prop_map(|(inode, draw)| Op::Write { inode, draw }),
        4 => (pick(), draw(), prop_oneof![8 => Just(true), 1 => Just(false)])
            .prop_map(|(inode, draw, whole)| Op::WriteDirect { inode, draw, whole }),
        2 => (pick(), draw()).prop_map(|(inode, draw)| Op::Append { inode, draw }),
        3 => (pick(), draw()).prop_map(|(inode, draw)| Op::Truncate { inode, draw }),
        10 => (pick(), 0..7u8, draw(), any::<bool>())
            .prop_map(|(inode, what, draw, aligned)| Op::Fallocate { inode, what, draw, aligned }),
        3 => (pick(), draw()).prop_map(|(inode, draw)| Op::Read { inode, draw }),
        3 => (pick(), 0..4u8, 0..40u8, 0..4u8)
            .prop_map(|(inode, name, length, mode)| Op::SetXattr { inode, name, length, mode }),
        1 => (pick(), 0..4u8).prop_map(|(inode, name)| Op::RemoveXattr { inode, name }),
        1 => (pick(), 0..0o10_000u16).prop_map(|(inode, permissions)| Op::Chmod { inode, permissions }),
        2 => (pick(), 0..8u8).prop_map(|(inode, flags)| Op::SetFlags { inode, flags }),
        2 => pick().prop_map(|inode| Op::Open { inode }),
        1 => pick().prop_map(|which| Op::Release { which }),
        1 => (0..3u8).prop_map(|how| Op::Sync { how }),
        1 => (pick(), any::<bool>()).prop_map(|(inode, data)| Op::Fsync { inode, data }),
        1 => Just(Op::Reopen),
    ]
}

/// The name for a number: ordinary names of several lengths (0 to 9), names that are refused (10 to
/// 14), and the longest valid name (15).
fn name_of(number: u8) -> Vec<u8> {
    match number {
        10 => vec![b'x'; 256],
        11 => b".".to_vec(),
        12 => b"..".to_vec(),
        13 => b"a/b".to_vec(),
        14 => Vec::new(),
        15 => vec![b'y'; 255],
        _ => vec![b'a' + number; 1 + usize::from(number) * usize::from(number)],
    }
}

const MODES: [Fallocate; 7] = [
    Fallocate::Allocate,
    Fallocate::AllocateKeepSize,
    Fallocate::PunchHole,
    Fallocate::ZeroRange,
    Fallocate::ZeroRangeKeepSize,
    Fallocate::CollapseRange,
    Fallocate::InsertRange,
];

/// The engine and the model side by side.
struct World {
    kind: Kind,
    device: Arc<MemoryDevice>,
    fs: Option<Watched>,
    /// The operations that succeeded, up to the last close.
    done: BTreeSet<&'static str>,
    model: Model,
    numbers: BTreeMap<Id, InodeNr>,
    held: Vec<Id>,
    now: i64,
    near: Ranges,
    far: Ranges,
    /// The range that was drawn last.
    drawn: Range<u64>,
}

const LOST_AND_FOUND: &[u8] = b"lost+found";

type Outcome = Result<(), TestCaseError>;

impl World {
    fn new(kind: Kind) -> Self {
        let device = Arc::new(MemoryDevice::new(kind.size));
        mkfs::format(&*device, &kind.options()).unwrap();
        let edges = kind.edges();
        let limits = Limits {
            extents: kind.extents,
            block: kind.block,
            cluster: kind.cluster,
            largest: edges.largest(),
        };
        let mut model = Model::new(limits);
        let fs = open(kind, &device);
        // Every image has this directory; no sequence can draw its name.
        let who = Who { now: 0, uid: 0, gid: 0 };
        let body = Body::Directory { entries: BTreeMap::new(), parent: ROOT };
        let found = model.create(who, ROOT, LOST_AND_FOUND, body, 0o700).unwrap();
        let numbers = BTreeMap::from([
            (ROOT, InodeNr::ROOT),
            (found, fs.lookup(InodeNr::ROOT, LOST_AND_FOUND).unwrap()),
        ]);
        let (near, far) = (Ranges::new(kind.near_edges()), Ranges::new(edges));
        let (held, now) = (Vec::new(), 1_700_000_000);
        let (fs, done) = (Some(fs), BTreeSet::new());
        Self { kind, device, fs, done, model, numbers, held, now, near, far, drawn: 0..0 }
    }

    fn fs(&self) -> &Watched {
        self.fs.as_ref().unwrap()
    }

    /// Closes the image, and keeps the list of the operations that succeeded.
    fn close(&mut self, ctx: &OpContext) {
        let fs = self.fs.take().unwrap();
        self.done.extend(fs.done());
        fs.into_inner().close(ctx).unwrap();
    }

    fn who(&mut self) -> (Who, OpContext) {
        self.now += 1;
        let (uid, gid) = if self.now % 5 == 0 { (1000, 1001) } else { (0, 0) };
        let ctx = OpContext { uid, gid, ..OpContext::root_at(Timestamp::from_seconds(self.now)) };
        (Who { now: self.now, uid, gid }, ctx)
    }

    /// One of the `likely` inodes, or the root if there is none. For one in eight picks, one of all
    /// inodes.
    fn pick(&self, pick: Pick, likely: impl Fn(&tree::Node) -> bool) -> Id {
        let wanted: Vec<Id> = self
            .model
            .nodes
            .iter()
            .filter(|(_, node)| pick % 8 == 7 || likely(node))
            .map(|(&id, _)| id)
            .collect();
        if wanted.is_empty() { ROOT } else { wanted[usize::from(pick / 8) % wanted.len()] }
    }

    fn dir(&self, pick: Pick) -> Id {
        self.pick(pick, tree::Node::is_dir)
    }

    fn file(&self, pick: Pick) -> Id {
        self.pick(pick, tree::Node::is_file)
    }

    fn number(&self, id: Id) -> InodeNr {
        self.numbers[&id]
    }

    fn bytes(&self, length: u64) -> Vec<u8> {
        blockyard_testkit::fill::pattern(self.now.cast_unsigned(), length as usize)
    }

    /// A range of a file, in whole units if a unit is given. One in eight lies anywhere up to the
    /// largest size of a file.
    fn range(&mut self, draw: Draw, id: Id, longest: u64, unit: Option<u64>) -> Range<u64> {
        let mut rng = ChaCha8Rng::seed_from_u64(draw.into());
        let size = self.model.size(id);
        let ranges = if draw.is_multiple_of(8) { &mut self.far } else { &mut self.near };
        self.drawn = match unit {
            Some(unit) => ranges.aligned(&mut rng, size, longest, unit),
            None => ranges.range(&mut rng, size, longest),
        };
        self.drawn.clone()
    }

    /// The most bytes that a write has.
    fn longest(&self) -> u64 {
        (3 * self.kind.block).max(20_000)
    }

    /// Compares the engine's result with that of the model, which has already been changed. An
    /// error for lack of space on a full image is also right; then the change of the model is
    /// undone.
    fn agree<T>(&mut self, op: &Op, got: Result<T, Error>, expected: Answer, before: Model) -> Outcome {
        let got = got.map(drop);
        if let Err(Error::NoSpace | Error::NoInodes | Error::AttributeRoom { .. }) = got
            && self.kind.full
            && (expected.is_ok() || expected == Err(ENOSPC))
        {
            self.model = before;
            return Ok(());
        }
        let text = format!("{got:?}");
        let drawn = &self.drawn;
        prop_assert_eq!(
            got.map_err(|error| error.errno()),
            expected,
            "{:?} of {:?} gave {}",
            op,
            drawn,
            text
        );
        Ok(())
    }

    fn step(&mut self, op: &Op) -> Outcome {
        let before = self.model.clone();
        let (who, ctx) = self.who();
        match *op {
            Op::Make { dir, name, kind, permissions } => {
                let (dir, name) = (self.dir(dir), name_of(name));
                let (body, kind) = match kind {
                    0..=2 => (Body::File(SparseBytes::new()), FileType::Regular),
                    5 => (Body::Pipe, FileType::Fifo),
                    _ => (Body::Directory { entries: BTreeMap::new(), parent: dir }, FileType::Directory),
                };
                let expected = self.model.create(who, dir, &name, body, permissions);
                let new = NewInode { kind, permissions, device: None };
                let got = self.fs().create(&ctx, self.number(dir), &name, &new);
                self.made(op, got, expected, before)
            }
            Op::Symlink { dir, name, length } => {
                let (dir, name, target) = (self.dir(dir), name_of(name), vec![b't'; usize::from(length)]);
                let expected = self.model.create(who, dir, &name, Body::Symlink(target.clone()), 0o777);
                let got = self.fs().symlink(&ctx, self.number(dir), &name, &target);
                self.made(op, got, expected, before)
            }
            Op::Link { inode, dir, name } => {
                let (id, dir, name) = (self.file(inode), self.dir(dir), name_of(name));
                let expected = self.model.link(who, id, dir, &name);
                let got = self.fs().link(&ctx, self.number(id), self.number(dir), &name);
                self.agree(op, got, expected, before)
            }
            Op::Unlink { dir, name } | Op::Rmdir { dir, name } => {
                let (dir, name, directory) = (self.dir(dir), name_of(name), matches!(op, Op::Rmdir { .. }));
                let expected = self.model.remove(who, dir, &name, directory);
                let parent = self.number(dir);
                let got = if directory {
                    self.fs().rmdir(&ctx, parent, &name)
                } else {
                    self.fs().unlink(&ctx, parent, &name)
                };
                self.agree(op, got, expected, before)
            }
            Op::Rename { from, to, mode } => {
                let mode =
                    [RenameMode::Replace, RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange]
                        [usize::from(mode)];
                let (a, b) = (self.dir(from.0), self.dir(to.0));
                let (a_name, b_name) = (name_of(from.1), name_of(to.1));
                let expected = self.model.rename(who, (a, &a_name), (b, &b_name), mode);
                let (a, b) = (self.number(a), self.number(b));
                let got = self.fs().rename(&ctx, (a, &a_name), (b, &b_name), mode);
                self.agree(op, got, expected, before)
            }
            _ => self.step_content(op, who, ctx, before),
        }
    }

    fn made(&mut self, op: &Op, got: Result<InodeNr, Error>, expected: Answer<Id>, before: Model) -> Outcome {
        if let (Ok(number), Ok(id)) = (&got, expected) {
            self.numbers.insert(id, *number);
        }
        self.agree(op, got, expected.map(drop), before)
    }

    fn step_content(&mut self, op: &Op, who: Who, ctx: OpContext, before: Model) -> Outcome {
        match *op {
            Op::Write { inode, draw } => {
                let id = self.file(inode);
                let range = self.range(draw, id, self.longest(), None);
                let bytes = self.bytes(range.end - range.start);
                let expected = self.model.write(who, id, range.start, &bytes);
                let got = self.fs().write(&ctx, self.number(id), range.start, &bytes);
                self.agree(op, got, expected, before)
            }
            Op::WriteDirect { inode, draw, whole } => {
                self.write_direct(op, (who, ctx), (self.file(inode), draw, whole), before)
            }
            Op::Append { inode, draw } => {
                let id = self.file(inode);
                let range = self.range(draw, id, self.longest(), None);
                let bytes = self.bytes(range.end - range.start);
                let expected = self.model.append(who, id, &bytes);
                let got = self.fs().append(&ctx, self.number(id), &bytes);
                self.agree(op, got, expected, before)
            }
            Op::Truncate { inode, draw } => {
                let id = self.file(inode);
                let size = self.range(draw, id, u64::MAX, None).start;
                let expected = self.model.truncate(who, id, size);
                let got = self.fs().truncate(&ctx, self.number(id), size);
                self.agree(op, got, expected, before)
            }
            Op::Fallocate { inode, what, draw, aligned } => self.fallocate(
                op,
                (who, ctx),
                (self.file(inode), MODES[usize::from(what)]),
                (draw, aligned),
                before,
            ),
            Op::Read { inode, draw } => {
                let id = self.file(inode);
                let range = self.range(draw, id, 70_000, None);
                self.read(id, range)
            }
            Op::Open { inode } => {
                let id = self.file(inode);
                if self.held.len() < 6 {
                    self.fs().open_inode(self.number(id), true).unwrap();
                    self.model.open(id);
                    self.held.push(id);
                }
                Ok(())
            }
            Op::Release { which } => {
                if !self.held.is_empty() {
                    let id = self.held.swap_remove(usize::from(which) % self.held.len());
                    self.fs().release_inode(&ctx, self.number(id), true).unwrap();
                    self.model.release(id);
                }
                Ok(())
            }
            Op::Sync { .. } | Op::Fsync { .. } | Op::Reopen => self.step_durability(op, ctx, before),
            _ => self.step_attributes(op, who, ctx, before),
        }
    }

    fn step_durability(&mut self, op: &Op, ctx: OpContext, before: Model) -> Outcome {
        match *op {
            Op::Sync { how } => {
                match how {
                    0 => self.fs().sync(&ctx).unwrap(),
                    1 => self.fs().write_back_all(&ctx).unwrap(),
                    _ => self.fs().commit(&ctx).unwrap(),
                }
                Ok(())
            }
            Op::Fsync { inode, data } => {
                let number = self.number(self.file(inode));
                let fs = self.fs();
                let got = if data { fs.fdatasync(&ctx, number) } else { fs.fsync(&ctx, number) };
                self.agree(op, got, Ok(()), before)
            }
            _ => self.reopen(),
        }
    }

    fn step_attributes(&mut self, op: &Op, who: Who, ctx: OpContext, before: Model) -> Outcome {
        let xattr = |name: u8| format!("trusted.{name}").into_bytes();
        let any = |_: &tree::Node| true;
        match *op {
            Op::SetXattr { inode, name, length, mode } => {
                let mode = [XattrMode::Set, XattrMode::Set, XattrMode::Create, XattrMode::Replace]
                    [usize::from(mode)];
                let (id, name, value) = (self.pick(inode, any), xattr(name), self.bytes(length.into()));
                let expected = self.model.set_xattr(who, id, &name, &value, mode);
                let got = self.fs().set_xattr(&ctx, self.number(id), &name, &value, mode);
                self.agree(op, got, expected, before)
            }
            Op::RemoveXattr { inode, name } => {
                let (id, name) = (self.pick(inode, any), xattr(name));
                let expected = self.model.remove_xattr(who, id, &name);
                let got = self.fs().remove_xattr(&ctx, self.number(id), &name);
                self.agree(op, got, expected, before)
            }
            Op::Chmod { inode, permissions } => {
                let id = self.pick(inode, any);
                let expected = self.model.chmod(who, id, permissions, 4_000_000_000);
                let changes = SetAttributes {
                    permissions: Some(permissions),
                    gid: Some(4_000_000_000),
                    ..SetAttributes::default()
                };
                let got = self.fs().set_attributes(&ctx, self.number(id), &changes);
                self.agree(op, got, expected, before)
            }
            Op::SetFlags { inode, flags } => {
                let flags = [0, 0, 0, 0, 0x40, IMMUTABLE, APPEND, APPEND][usize::from(flags)];
                let id = self.pick(inode, any);
                let expected = self.model.set_flags(who, id, flags);
                let got = self.fs().set_flags(&ctx, self.number(id), flags);
                self.agree(op, got, expected, before)
            }
            _ => unreachable!("handled before"),
        }
    }

    /// On a full image, a direct write may write only its beginning. The model then writes as much.
    fn write_direct(
        &mut self,
        op: &Op,
        (who, ctx): (Who, OpContext),
        (id, draw, whole): (Id, Draw, bool),
        before: Model,
    ) -> Outcome {
        let range = self.range(draw, id, self.longest(), whole.then_some(self.kind.block));
        let bytes = self.bytes(range.end - range.start);
        let expected = self.model.write_direct(who, id, range.start, &bytes);
        let got = self.fs().write_direct(&ctx, self.number(id), range.start, &bytes);
        if let (Ok(count), true) = (&got, expected.is_ok())
            && *count < bytes.len()
        {
            prop_assert!(self.kind.full, "{:?} of {:?} wrote {}", op, range, count);
            self.model = before;
            self.model.write_direct(who, id, range.start, &bytes[..*count]).unwrap();
            return Ok(());
        }
        self.agree(op, got, expected, before)
    }

    fn fallocate(
        &mut self,
        op: &Op,
        (who, ctx): (Who, OpContext),
        (id, what): (Id, Fallocate),
        (draw, aligned): (Draw, bool),
        before: Model,
    ) -> Outcome {
        let longest = match what {
            Fallocate::PunchHole | Fallocate::CollapseRange | Fallocate::InsertRange => u64::MAX,
            _ => (3 * self.kind.cluster).max(60_000),
        };
        let range = self.range(draw, id, longest, aligned.then_some(self.kind.cluster));
        let expected = self.model.fallocate(who, id, what, range.clone());
        let number = self.number(id);
        let got = self.fs().fallocate(&ctx, number, what, range.start, range.end - range.start);
        let placed_end = self.model.node(id).placed_end;
        if expected.is_ok() && matches!(got, Err(Error::FileTooLarge)) && what == Fallocate::InsertRange {
            // Blocks allocated behind the end of the file would move beyond the largest file.
            prop_assert!(placed_end >= self.model.limits.largest, "{:?} of {:?}", op, range);
            self.model = before;
            self.take_times(id);
            return Ok(());
        }
        let ran_out = matches!(got, Err(Error::NoSpace));
        self.agree(op, got, expected, before)?;
        if ran_out && self.model.node(id).is_file() {
            self.fallocate_ran_out(id, what, range);
        }
        Ok(())
    }

    /// Adapts the model to a fallocate that ran out of space. A range to be zeroed counts as
    /// zeroed. The model takes the times from the engine, and also the size if the operation may
    /// change it.
    fn fallocate_ran_out(&mut self, id: Id, what: Fallocate, range: Range<u64>) {
        let size = self.fs().attributes(self.number(id)).unwrap().size;
        let content = self.model.content_mut(id);
        if matches!(what, Fallocate::ZeroRange | Fallocate::ZeroRangeKeepSize) {
            content.zero(range);
        }
        if matches!(what, Fallocate::ZeroRange | Fallocate::Allocate) {
            content.resize(size);
        }
        self.take_times(id);
    }

    fn take_times(&mut self, id: Id) {
        let seen = self.fs().attributes(self.number(id)).unwrap();
        let node = self.model.nodes.get_mut(&id).unwrap();
        (node.modified, node.changed) = (seen.modified.seconds, seen.changed.seconds);
    }

    fn read(&self, id: Id, range: Range<u64>) -> Outcome {
        let mut buf = vec![0xA5; (range.end - range.start) as usize];
        let ctx = OpContext::root_at(Timestamp::default());
        let got = self.fs().read(&ctx, self.number(id), range.start, &mut buf);
        let Body::File(content) = &self.model.node(id).body else {
            prop_assert!(got.is_err());
            return Ok(());
        };
        let expected = content.read(range.clone());
        buf.truncate(got.unwrap());
        let differs = buf.iter().zip(&expected).position(|(a, b)| a != b);
        prop_assert!(buf == expected, "inode {} differs at {:?} of {:?}", self.number(id), differs, range);
        Ok(())
    }

    fn reopen(&mut self) -> Outcome {
        let ctx = self.who().1;
        while let Some(id) = self.held.pop() {
            self.fs().release_inode(&ctx, self.number(id), true).unwrap();
            self.model.release(id);
        }
        self.compare()?;
        self.close(&ctx);
        self.fs = Some(open(self.kind, &self.device));
        self.compare()
    }

    /// Compares every inode of the model with what the engine shows.
    fn compare(&self) -> Outcome {
        for (&id, node) in &self.model.nodes {
            let number = self.number(id);
            let seen = self.fs().attributes(number).unwrap();
            let mine = (seen.links, seen.permissions, seen.uid, seen.gid, seen.flags & 0x70);
            prop_assert_eq!(
                mine,
                (node.links, node.permissions, node.uid, node.gid, node.flags),
                "inode {}",
                number
            );
            let times = (seen.modified.seconds, seen.changed.seconds);
            // The times that mkfs sets differ by kind of image.
            if node.changed >= 1_700_000_000 && node.modified >= 1_700_000_000 {
                prop_assert_eq!(times, (node.modified, node.changed), "times of inode {}", number);
            }
            let names = self.fs().xattr_names(number).unwrap();
            let value = |name: Vec<u8>| (name.clone(), self.fs().xattr(number, &name).unwrap());
            prop_assert_eq!(names.into_iter().map(value).collect::<BTreeMap<_, _>>(), node.xattrs.clone());
            self.compare_body((id, number), seen.size, node)?;
        }
        Ok(())
    }

    fn compare_body(&self, (id, number): (Id, InodeNr), size: u64, node: &tree::Node) -> Outcome {
        match &node.body {
            Body::File(content) => {
                prop_assert_eq!(size, content.len(), "size of inode {}", number);
                if size <= 1 << 20 {
                    return self.read(id, 0..size + 10);
                }
                for range in content.written() {
                    let beside = self.kind.block;
                    self.read(id, range.start.saturating_sub(beside)..range.end + beside)?;
                }
                self.read(id, size - 5000..size + 10)?;
            }
            Body::Symlink(target) => prop_assert_eq!(&self.fs().read_link(number).unwrap(), target),
            Body::Directory { entries, parent } if node.links > 0 => {
                let mut seen = BTreeMap::new();
                self.fs()
                    .read_dir(number, 0, |entry| {
                        seen.insert(entry.name, entry.inode);
                        true
                    })
                    .unwrap();
                let mut expected: BTreeMap<Vec<u8>, InodeNr> =
                    entries.iter().map(|(name, id)| (name.clone(), self.number(*id))).collect();
                expected.insert(b".".to_vec(), number);
                expected.insert(b"..".to_vec(), self.number(*parent));
                prop_assert_eq!(seen, expected);
            }
            _ => {}
        }
        Ok(())
    }

    /// Compares once more before and after a close, and checks the image. Returns the operations
    /// that succeeded.
    fn finish(mut self) -> Result<BTreeSet<&'static str>, TestCaseError> {
        self.compare()?;
        self.reopen()?;
        self.close(&OpContext::root_at(Timestamp::from_seconds(self.now)));
        let report = blockyard_check::check(
            &*self.device,
            &blockyard_check::Options { threads: Some(1), ..Default::default() },
        )
        .unwrap();
        prop_assert!(report.is_clean(), "{:?}", report.findings);
        Ok(self.done)
    }
}

fn open(kind: Kind, device: &Arc<MemoryDevice>) -> Watched {
    let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(device);
    let options = OpenOptions {
        policy: Policy::parse(kind.policy).unwrap(),
        delayed_allocation: kind.delayed,
        instruments: Instruments::page_cache_if(kind.follow_page_cache),
        ..OpenOptions::default()
    };
    let ctx = OpContext::root_at(Timestamp::from_seconds(1_700_000_000));
    Watched::new(FileSystem::open(shared, options, &ctx).unwrap())
}

#[test]
fn every_answer_is_the_models() {
    let seed = seed(1);
    let full = full_matrix();
    let cases = std::env::var("CASES").ok().and_then(|text| text.parse().ok());
    let mut done_on = BTreeMap::<&str, BTreeSet<&str>>::new();
    for (number, kind) in kinds::kinds().into_iter().enumerate() {
        println!("{}, blocks of {}", kind.name, kind.block);
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8] = number as u8;
        let config = Config {
            cases: cases.unwrap_or(if full { 800 } else { 16 }),
            failure_persistence: None,
            max_shrink_iters: 4000,
            ..Config::default()
        };
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let mut runner = TestRunner::new_with_rng(config, rng);
        let (sampled, done) = (std::cell::Cell::new(0), RefCell::new(BTreeSet::new()));
        let ran = runner.run(&prop::collection::vec(op(), 1..300), |ops| {
            let mut world = World::new(kind);
            for op in &ops {
                world.step(op)?;
            }
            let device = Arc::clone(&world.device);
            done.borrow_mut().extend(world.finish()?);
            sampled.set(sampled.get() + 1);
            // Starting e2fsck takes longer than a case. So our checker sees every case, and e2fsck
            // every tenth.
            if sampled.get() % 10 == 1 && have_tool("e2fsck") {
                let scratch = tempfile::tempdir().unwrap();
                let image = scratch.path().join("image");
                device.save(&image).unwrap();
                e2fsck_clean(&image);
            }
            Ok(())
        });
        if let Err(error) = ran {
            panic!("{kind:?}, SEED={seed}: {error}");
        }
        let done = done.into_inner();
        coverage::assert_done_within("oracle_model", &[kind.name], done.iter().copied());
        done_on.entry(kind.name).or_default().extend(done);
    }
    if full {
        for (name, done) in &done_on {
            coverage::assert_done("oracle_model", &[name], done.iter().copied());
        }
    }
    // With only a handful of cases, not every operation succeeds at least once.
    if cases.is_none_or(|cases| cases >= 16) {
        let names: Vec<&str> = done_on.keys().copied().collect();
        coverage::assert_done("oracle_model", &names, done_on.into_values().flatten());
    }
}

/// docs/testing.md must list the images.
#[test]
fn the_images_are_told() {
    coverage::assert_images("oracle_model", kinds::kinds().iter().map(|kind| (kind.name, kind.block)));
}
