//! What the walk over the inode tables remembers for the passes after it.
//!
//! Facts are kept for the part of each table that may be in use. They are plain data, written by
//! the one unit of work that scanned the group. Only the counts of references are written later, by
//! all threads (`facts/counts.rs`).

mod counts;

use std::collections::{BTreeMap, BTreeSet};

use blockyard_disk::num::{u32_from_usize, u64_from_u32, u64_from_usize, usize_from_u32};
use blockyard_disk::quota::Usage;
use blockyard_disk::{BlockNr, Geometry, InodeNr};

use crate::map::Run;
use crate::vitals::Vitals;
use crate::volume::Volume;
pub(crate) use counts::{Counts, Links};

/// What is known about an inode, in one byte: the type in the low bits (numbered as in directory
/// entries), flags above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Kind(u8);

impl Kind {
    pub(crate) const UNUSED: Self = Self(0);
    /// In use without a type: a reserved inode.
    pub(crate) const RESERVED: Self = Self(8);
    const TYPE: u8 = 0x0F;
    const EA_INODE: u8 = 0x10;
    const BAD: u8 = 0x20;
    const EMPTY: u8 = 0x40;
    const ORPHAN: u8 = 0x80;

    pub(crate) fn of_type(dirent_type: u8) -> Self {
        debug_assert!(dirent_type < 8, "type {dirent_type} of a directory entry");
        Self(if dirent_type == 0 { 8 | Self::BAD } else { dirent_type & 7 })
    }

    pub(crate) fn is_used(self) -> bool {
        self.0 & Self::TYPE != 0
    }

    /// The type as directory entries number it; 0 for none.
    pub(crate) fn dirent_type(self) -> u8 {
        self.0 & 7
    }

    pub(crate) fn is_directory(self) -> bool {
        self.dirent_type() == 2
    }

    pub(crate) fn with_ea_inode(self, set: bool) -> Self {
        Self(self.0 | if set { Self::EA_INODE } else { 0 })
    }

    pub(crate) fn is_ea_inode(self) -> bool {
        self.0 & Self::EA_INODE != 0
    }

    /// Marks an inode without content and attributes, which can be removed without loss.
    pub(crate) fn with_empty(self, set: bool) -> Self {
        Self(self.0 | if set { Self::EMPTY } else { 0 })
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 & Self::EMPTY != 0
    }

    /// Marks an inode on the orphan list: it may be without a name, and its links are not checked.
    pub(crate) fn with_orphan(self, set: bool) -> Self {
        Self(self.0 | if set { Self::ORPHAN } else { 0 })
    }

    pub(crate) fn is_orphan(self) -> bool {
        self.0 & Self::ORPHAN != 0
    }
}

/// A directory to be walked.
#[derive(Debug)]
pub(crate) struct DirFact {
    pub(crate) inode: InodeNr,
    pub(crate) seed: Option<u32>,
    pub(crate) indexed: bool,
    /// Whether names are encrypted, and so are not text.
    pub(crate) encrypted: bool,
    /// Whether names that differ in case only are the same.
    pub(crate) casefold: bool,
    pub(crate) body: DirBody,
}

/// Where the entries of a directory are.
#[derive(Debug)]
pub(crate) enum DirBody {
    /// In blocks: the runs of the map.
    Blocks { runs: Box<[Run]> },
    /// In the inode.
    Inline(Box<InlineBody>),
}

/// The entries of a directory in its inode.
#[derive(Debug)]
pub(crate) struct InlineBody {
    pub(crate) head: [u8; 60],
    pub(crate) tail: Vec<u8>,
}

/// How an encrypted inode is encrypted: its fscrypt context without the nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Can be compared with other known policies.
    Known([u8; Policy::LEN]),
    /// Of a later version than is known here. Two unknown policies never count as equal.
    Unknown,
    /// Missing or damaged, which was reported.
    Unusable,
}

impl Policy {
    const LEN: usize = 24;
    /// Bytes at the end of a context that differ from inode to inode.
    const NONCE: usize = 16;
    /// Length of the longest known context, in bytes.
    const CONTEXT_MAX: usize = 40;

    /// Reads a context; `None` when it is damaged.
    pub(crate) fn of(context: &[u8]) -> Option<Self> {
        let length = match context.first()? {
            0 => return None,
            1 => 28,
            2 => Self::CONTEXT_MAX,
            _ => return Some(Self::Unknown),
        };
        if context.len() != length {
            return None;
        }
        let mut policy = [0; Self::LEN];
        policy[..length - Self::NONCE].copy_from_slice(&context[..length - Self::NONCE]);
        Some(Self::Known(policy))
    }
}

const _: () =
    assert!(Policy::LEN == Policy::CONTEXT_MAX - Policy::NONCE, "a policy is a context without nonce");

/// A reference from an inode to an attribute block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct XattrBlockRef {
    pub(crate) block: BlockNr,
    pub(crate) inode: InodeNr,
}

/// A reference from an attribute to the inode that holds its value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ValueRef {
    pub(crate) value_inode: u32,
    pub(crate) owner: InodeNr,
    pub(crate) size: u32,
    pub(crate) entry_hash: u32,
    pub(crate) name: Vec<u8>,
    /// The attribute block that holds the reference; `None` for an attribute in the inode. The
    /// reference counts once, however many inodes share the block.
    pub(crate) in_block: Option<BlockNr>,
}

/// What a value inode says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValueInode {
    pub(crate) inode: InodeNr,
    pub(crate) size: u64,
    pub(crate) hash: u32,
    pub(crate) refcount: u64,
}

/// Facts about the inodes of one group.
#[derive(Debug, Default)]
pub(crate) struct GroupFacts {
    pub(crate) kinds: Vec<Kind>,
    pub(crate) links: Links,
    pub(crate) references: Counts,
    pub(crate) directories: Vec<DirFact>,
    pub(crate) xattr_blocks: Vec<XattrBlockRef>,
    pub(crate) values: Vec<ValueRef>,
    pub(crate) value_inodes: Vec<ValueInode>,
    /// Blocks that are listed as bad.
    pub(crate) bad_blocks: BTreeSet<u64>,
    /// Indexes of the scanned inodes that lie in blocks listed as bad.
    pub(crate) in_bad_blocks: BTreeSet<usize>,
    /// Encrypted inodes by their index in the group, ascending.
    pub(crate) policies: Vec<(usize, Policy)>,
    /// Statistics for people to read.
    pub(crate) vitals: Vitals,
    /// What users, groups and projects use; empty without the feature `quota`.
    pub(crate) usages: Usages,
}

/// Usage by id: one map for users, one for groups and one for projects, in the order of
/// [`QuotaType::ALL`](blockyard_disk::quota::QuotaType::ALL).
pub(crate) type Usages = [BTreeMap<u32, Usage>; 3];

impl GroupFacts {
    pub(crate) fn new(inodes: u32) -> Self {
        let inodes = usize_from_u32(inodes);
        Self {
            kinds: vec![Kind::UNUSED; inodes],
            links: Links::new(inodes),
            references: Counts::new(inodes),
            ..Self::default()
        }
    }

    /// The inodes that the bitmap should mark, by their index: those in use, and those that cannot
    /// be used because they lie in bad blocks.
    pub(crate) fn marked(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        let is_marked = move |index: usize, kind: Kind| kind.is_used() || self.in_bad_blocks.contains(&index);
        let inodes = self.kinds.iter().enumerate();
        inodes.filter(move |(index, kind)| is_marked(*index, **kind)).map(|(index, _)| index)
    }
}

/// Facts about all inodes.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub(crate) groups: Vec<GroupFacts>,
}

impl Facts {
    fn place(geometry: &Geometry, inode: InodeNr) -> (usize, usize) {
        let (group, index) = geometry.locate_inode(inode);
        (usize_from_u32(group.raw()), usize_from_u32(index))
    }

    /// The inodes in use, in order.
    pub(crate) fn used<'f>(&'f self, geometry: &'f Geometry) -> impl Iterator<Item = InodeNr> + 'f {
        self.groups.iter().zip(geometry.all_groups()).flat_map(move |(group, nr)| {
            let used = group.kinds.iter().enumerate().filter(|(_, kind)| kind.is_used());
            used.map(move |(index, _)| geometry.inode_at(nr, u32_from_usize(index)))
        })
    }

    /// The root, and all inodes in use that are not reserved.
    pub(crate) fn files<'f>(&'f self, volume: &'f Volume<'_>) -> impl Iterator<Item = InodeNr> + 'f {
        let first = volume.first_inode();
        self.used(&volume.geometry).filter(move |inode| inode.raw() >= first || *inode == InodeNr::ROOT)
    }

    /// What is known about an inode in range; [`Kind::UNUSED`] beyond the scanned part of its
    /// table.
    pub(crate) fn kind(&self, geometry: &Geometry, inode: InodeNr) -> Kind {
        let (group, index) = Self::place(geometry, inode);
        self.groups[group].kinds.get(index).copied().unwrap_or_default()
    }

    /// The policy of an inode in range; `None` when it is not encrypted.
    pub(crate) fn policy(&self, geometry: &Geometry, inode: InodeNr) -> Option<Policy> {
        let (group, index) = Self::place(geometry, inode);
        let policies = &self.groups[group].policies;
        policies.binary_search_by_key(&index, |entry| entry.0).ok().map(|at| policies[at].1)
    }

    /// Counts a reference to an inode in range.
    pub(crate) fn refer(&self, geometry: &Geometry, inode: InodeNr) {
        let (group, index) = Self::place(geometry, inode);
        self.groups[group].references.add_one(index);
    }

    /// Asserts what the later passes rely on: facts of each group, for as many inodes as were
    /// scanned, in order.
    pub(crate) fn assert_complete(&self, groups: u32, inodes: u64) {
        assert_eq!(self.groups.len(), usize_from_u32(groups), "facts of each group");
        let scanned: u64 = self.groups.iter().map(|group| u64_from_usize(group.kinds.len())).sum();
        assert_eq!(scanned, inodes, "facts of each inode that was to be scanned");
        for group in &self.groups {
            assert_eq!(group.kinds.len(), group.links.len(), "types and link counts of the same inodes");
            assert_eq!(group.kinds.len(), group.references.len(), "types and references of the same inodes");
            debug_assert!(group.directories.is_sorted_by_key(|fact| fact.inode), "directories out of order");
            debug_assert!(group.policies.is_sorted_by_key(|entry| entry.0), "policies out of order");
        }
    }

    /// The sum of the vitals of all groups, with the hard links, the bad blocks, and what is in
    /// use. `free` says how many blocks and inodes are really free.
    pub(crate) fn vitals(&self, geometry: &Geometry, free: (u64, u64)) -> Vitals {
        let (blocks, inodes) = (geometry.blocks_count().raw(), u64_from_u32(geometry.inodes_count()));
        let mut all = Vitals {
            inodes,
            inodes_used: inodes.saturating_sub(free.1),
            blocks,
            blocks_used: blocks.saturating_sub(free.0),
            ..Vitals::default()
        };
        for group in &self.groups {
            all += &group.vitals;
            all.bad_blocks += u64_from_usize(group.bad_blocks.len());
            let files = group.kinds.iter().enumerate();
            let files = files.filter(|(_, kind)| kind.is_used() && !kind.is_directory());
            all.links += files
                .map(|(index, _)| u64_from_u32(group.references.get(index).saturating_sub(1)))
                .sum::<u64>();
        }
        let depths: u64 = all.extent_depths.iter().sum();
        debug_assert!(depths <= u64_from_u32(geometry.inodes_count()), "{depths} extent trees");
        all
    }

    /// What all inodes of each user, group and project use.
    pub(crate) fn usages(&self) -> Usages {
        let mut all = Usages::default();
        for group in &self.groups {
            for (sums, more) in all.iter_mut().zip(&group.usages) {
                for (&number, usage) in more {
                    let sum: &mut Usage = sums.entry(number).or_default();
                    sum.bytes = sum.bytes.saturating_add(usage.bytes);
                    sum.inodes += usage.inodes;
                }
            }
        }
        all
    }

    /// How many references to an inode in range were counted so far.
    pub(crate) fn references(&self, geometry: &Geometry, inode: InodeNr) -> u32 {
        let (group, index) = Self::place(geometry, inode);
        self.groups[group].references.get(index)
    }
}
