//! The differences between two trees: names, types, attributes, content.

use crate::content::Contents;
use crate::error::Result;
use crate::tree::{Directory, NodeId, SourceInode, Tree, below};
use blockyard_disk::Timestamp;
use blockyard_disk::inode::{FileType, InodeFlags};
use blockyard_disk::num::{u32_from_usize, u64_from_usize, usize_from_u64};
use blockyard_disk::xattr::{self, Value};
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Bytes compared at a time.
const CHUNK: u64 = 1 << 20;
/// The most ranges that are reported per file; further ones are only counted.
const RANGES_MAX: usize = 16;

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The path below the root, without a leading slash; empty for the root.
    pub path: Vec<u8>,
    /// What differs.
    pub what: What,
}

/// What differs at a path. Where there are two values, the first tree's comes first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Only the first tree has the name. If it is a directory, nothing below it is reported.
    OnlyInFirst(FileType),
    /// Only the second tree has the name. If it is a directory, nothing below it is reported.
    OnlyInSecond(FileType),
    /// The types differ. Nothing else is compared then.
    Type(FileType, FileType),
    /// The low 12 bits of the mode.
    Permissions(u16, u16),
    /// User ids.
    User(u32, u32),
    /// Group ids.
    Group(u32, u32),
    /// Modification times.
    Modified(Timestamp, Timestamp),
    /// Sizes of a file in bytes.
    Size(u64, u64),
    /// Targets of symbolic links.
    Target(Vec<u8>, Vec<u8>),
    /// Major and minor numbers of devices.
    Device((u32, u32), (u32, u32)),
    /// Flags of `chattr`, as on disk.
    Flags(u32, u32),
    /// The full name of an extended attribute, and its values; `None` if it is missing. Access
    /// control lists are in the on-disk form.
    Attribute(Vec<u8>, Option<Vec<u8>>, Option<Vec<u8>>),
    /// The first name of the file, if the path is a further hard link to it; `None` if the path is
    /// its first or only name.
    LinkedTo(Option<Vec<u8>>, Option<Vec<u8>>),
    /// The content of files, up to the end of the shorter one.
    Bytes(Differences),
}

/// Where the content of two files differs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// The first ranges, in bytes.
    pub ranges: Vec<Range<u64>>,
    /// The number of all ranges.
    pub count: u64,
    /// The number of all differing bytes.
    pub bytes: u64,
    /// Where the last range ends.
    end: u64,
}

impl Differences {
    fn add(&mut self, range: Range<u64>) {
        self.bytes += range.end - range.start;
        let goes_on = self.count > 0 && self.end == range.start;
        let is_last = self.count == u64_from_usize(self.ranges.len());
        self.end = range.end;
        if !goes_on {
            self.count += 1;
            if self.ranges.len() < RANGES_MAX {
                self.ranges.push(range);
            }
        } else if let Some(last) = self.ranges.last_mut().filter(|_| is_last) {
            last.end = range.end;
        }
    }
}

impl Tree {
    /// Compares two trees and passes the differences to `tell`, directory by directory, sorted by
    /// name in each. Inode numbers, the positions of holes, access, change and creation times, and
    /// anything that only an image stores are not compared.
    ///
    /// # Errors
    /// The content cannot be read; an error of `tell` ends the comparison.
    pub fn compare(
        first: &Self,
        second: &Self,
        tell: &mut dyn FnMut(Difference) -> Result<()>,
    ) -> Result<()> {
        let sides = [Side::new(first), Side::new(second)];
        let mut comparing = Comparing { sides, path: Vec::new(), tell };
        comparing.inode([None, None])?;
        let mut waiting = vec![([0, 0], Vec::new())];
        while let Some((directories, path)) = waiting.pop() {
            let before = waiting.len();
            comparing.names(directories, &path, &mut waiting)?;
            waiting[before..].reverse();
        }
        Ok(())
    }
}

/// One of the two trees.
struct Side<'t> {
    tree: &'t Tree,
    contents: Contents<'t>,
    /// The first path of each file with hard links.
    linked: HashMap<SourceInode, Vec<u8>>,
    buffer: Vec<u8>,
}

impl<'t> Side<'t> {
    fn new(tree: &'t Tree) -> Self {
        Self { tree, contents: Contents::new(tree), linked: HashMap::new(), buffer: Vec::new() }
    }

    /// The first name of the file, if `path` is a further hard link to it. Otherwise remembers
    /// `path` as the first name.
    fn first_name(&mut self, id: NodeId, path: &[u8]) -> Option<Vec<u8>> {
        let inode = self.tree.directory(id.directory).linked(id.child)?;
        if let Some(first) = self.linked.get(&inode) {
            return Some(first.clone());
        }
        self.linked.insert(inode, path.to_vec());
        None
    }

    /// Full names and values of the attributes.
    fn attributes(&self, id: Option<NodeId>) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let list = self.tree.attributes(id).into_iter().flat_map(|list| list.iter());
        list.filter_map(|attribute| match &attribute.value {
            Value::Bytes(value) => Some((xattr::join_name(attribute.index, &attribute.name)?, value.clone())),
            Value::Inode { .. } => None,
        })
        .collect()
    }

    /// Reads a part of a file into the buffer.
    fn read(&mut self, id: NodeId, part: &Range<u64>) -> Result<()> {
        self.buffer.resize(usize_from_u64(part.end - part.start), 0);
        self.contents.read_at(id, part.start, &mut self.buffer)
    }
}

struct Comparing<'a, 't> {
    sides: [Side<'t>; 2],
    /// The path that is being compared.
    path: Vec<u8>,
    tell: &'a mut dyn FnMut(Difference) -> Result<()>,
}

impl<'t> Comparing<'_, 't> {
    fn tell(&mut self, what: What) -> Result<()> {
        (self.tell)(Difference { path: self.path.clone(), what })
    }

    fn tell_unless_equal<T: PartialEq>(
        &mut self,
        [one, other]: [T; 2],
        what: fn(T, T) -> What,
    ) -> Result<()> {
        if one == other { Ok(()) } else { self.tell(what(one, other)) }
    }

    /// Compares the names of two directories. Directories in both are queued.
    fn names(&mut self, at: [u32; 2], place: &[u8], waiting: &mut Vec<([u32; 2], Vec<u8>)>) -> Result<()> {
        let [one, other]: [&'t Directory; 2] =
            [self.sides[0].tree.directory(at[0]), self.sides[1].tree.directory(at[1])];
        let (mut first, mut second) = (0, 0);
        loop {
            let names = (one.nodes.get(first), other.nodes.get(second));
            let order = match names {
                (None, None) => return Ok(()),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(a), Some(b)) => one.text(a.name).cmp(other.text(b.name)),
            };
            let ids = [(at[0], first), (at[1], second)]
                .map(|(directory, child)| NodeId { directory, child: u32_from_usize(child) });
            match (order, names) {
                (Ordering::Less, (Some(node), _)) => {
                    self.path = below(place, one.text(node.name));
                    self.sides[0].first_name(ids[0], &self.path);
                    self.tell(What::OnlyInFirst(node.kind))?;
                }
                (Ordering::Greater, (_, Some(node))) => {
                    self.path = below(place, other.text(node.name));
                    self.sides[1].first_name(ids[1], &self.path);
                    self.tell(What::OnlyInSecond(node.kind))?;
                }
                (_, (Some(a), Some(b))) => {
                    self.path = below(place, one.text(a.name));
                    if a.kind == FileType::Directory && b.kind == FileType::Directory {
                        waiting.push(([a.directory, b.directory], self.path.clone()));
                    }
                    self.inode(ids.map(Some))?;
                }
                _ => unreachable!("the name that comes first exists"),
            }
            first += usize::from(order != Ordering::Greater);
            second += usize::from(order != Ordering::Less);
        }
    }

    /// Compares two inodes; `None` is the root.
    fn inode(&mut self, ids: [Option<NodeId>; 2]) -> Result<()> {
        let [a, b] = [0, 1].map(|side| {
            let tree = self.sides[side].tree;
            ids[side].map_or(&tree.root, |id| tree.node(id))
        });
        if a.kind != b.kind {
            return self.tell(What::Type(a.kind, b.kind));
        }
        if let [Some(one), Some(other)] = ids {
            let path = self.path.clone();
            let names = [self.sides[0].first_name(one, &path), self.sides[1].first_name(other, &path)];
            let is_alias = names[0].is_some() && names[0] == names[1];
            self.tell_unless_equal(names, What::LinkedTo)?;
            if is_alias {
                // Both are further links to the same first name, at which the files were compared.
                return Ok(());
            }
        }
        if a.kind != FileType::Symlink {
            self.tell_unless_equal([a.permissions, b.permissions], What::Permissions)?;
        }
        self.tell_unless_equal([a.uid, b.uid], What::User)?;
        self.tell_unless_equal([a.gid, b.gid], What::Group)?;
        self.tell_unless_equal([a.modified, b.modified], What::Modified)?;
        let flags = [0, 1].map(|side| self.sides[side].tree.flags(ids[side]));
        self.tell_unless_equal(flags.map(|flags: InodeFlags| flags.bits()), What::Flags)?;
        self.attributes(ids)?;
        let [Some(one), Some(other)] = ids else { return Ok(()) };
        match a.kind {
            FileType::Regular => {
                self.tell_unless_equal([a.size, b.size], What::Size)?;
                self.bytes([one, other], a.size.min(b.size))
            }
            FileType::Symlink => {
                let targets = [(0, one, a), (1, other, b)].map(|(side, id, node)| {
                    self.sides[side].tree.directory(id.directory).text(node.target).to_vec()
                });
                self.tell_unless_equal(targets, What::Target)
            }
            FileType::CharDevice | FileType::BlockDevice => {
                let numbers = [a, b].map(|node| (rustix::fs::major(node.size), rustix::fs::minor(node.size)));
                self.tell_unless_equal(numbers, What::Device)
            }
            FileType::Directory | FileType::Fifo | FileType::Socket => Ok(()),
        }
    }

    fn attributes(&mut self, ids: [Option<NodeId>; 2]) -> Result<()> {
        let [one, mut other] = [0, 1].map(|side| self.sides[side].attributes(ids[side]));
        for (name, value) in one {
            let beside = other.remove(&name);
            if beside.as_ref() != Some(&value) {
                self.tell(What::Attribute(name, Some(value), beside))?;
            }
        }
        other.into_iter().try_for_each(|(name, value)| self.tell(What::Attribute(name, None, Some(value))))
    }

    /// Compares content, skipping holes that both files have.
    fn bytes(&mut self, ids: [NodeId; 2], len: u64) -> Result<()> {
        let mut found = Differences::default();
        for range in either(ids, [self.sides[0].tree, self.sides[1].tree], len) {
            let mut at = range.start;
            while at < range.end {
                let part = at..range.end.min(at + CHUNK);
                for (side, id) in self.sides.iter_mut().zip(ids) {
                    side.read(id, &part)?;
                }
                let [one, other] = &self.sides;
                if one.buffer != other.buffer {
                    for range in differing(&one.buffer, &other.buffer) {
                        found.add(at + u64_from_usize(range.start)..at + u64_from_usize(range.end));
                    }
                }
                at = part.end;
            }
        }
        if found.count == 0 { Ok(()) } else { self.tell(What::Bytes(found)) }
    }
}

/// The ranges before `len` that are data in at least one of two files: ascending and not adjacent.
fn either(ids: [NodeId; 2], trees: [&Tree; 2], len: u64) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> =
        ids.into_iter().zip(trees).flat_map(|(id, tree)| tree.data_of(id)).collect();
    all.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in all {
        let range = range.start.min(len)..range.end.min(len);
        match joined.last_mut() {
            _ if range.is_empty() => {}
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// Where two slices of equal length differ.
fn differing(one: &[u8], other: &[u8]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (at, _) in one.iter().zip(other).enumerate().filter(|(_, (a, b))| a != b) {
        match ranges.last_mut() {
            Some(last) if last.end == at => last.end = at + 1,
            _ => ranges.push(at..at + 1),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_joined_over_pieces_and_counted() {
        let mut found = Differences::default();
        for range in differing(b"abcdefgh", b"aXcXXfgX") {
            found.add(u64_from_usize(range.start)..u64_from_usize(range.end));
        }
        found.add(8..9);
        assert_eq!((&found.ranges[..], found.count, found.bytes), (&[1..2, 3..5, 7..9][..], 3, 5));
        for at in 10..40 {
            found.add(at * 2..at * 2 + 1);
        }
        assert_eq!((found.ranges.len(), found.count, found.bytes), (RANGES_MAX, 33, 35));
    }
}
