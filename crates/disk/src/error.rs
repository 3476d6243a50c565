//! What can be wrong with an image: documented [`CorruptionKind`]s, and the [`Place`] where one was
//! found.
//!
//! A parser of `disk` knows the kind and the offset inside the bytes that it was given. The caller
//! knows the block, inode or group and adds it with [`Corruption::in_block`] and the like, unless
//! the place has one already. To add a kind, add a documented entry below, in the section of its
//! object.

use core::fmt;

use crate::defects::{DirDefect, HtreeDefect, XattrDefect};
use crate::units::{BlockNr, GroupNr, InodeNr, LogicalBlock};

/// Where a corruption was found. Coordinates that do not apply are `None`. A place without any
/// coordinate prints as `superblock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Place {
    /// Block group (for a superblock copy: the group it stands in).
    pub group: Option<GroupNr>,
    /// Inode.
    pub inode: Option<InodeNr>,
    /// Logical block of the inode.
    pub logical: Option<LogicalBlock>,
    /// Physical block.
    pub block: Option<BlockNr>,
    /// Byte offset inside the structure or block.
    pub offset: Option<u32>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.group.map(|n| format!("group {n}")),
            self.inode.map(|n| format!("inode {n}")),
            self.logical.map(|n| format!("logical block {n}")),
            self.block.map(|n| format!("block {n}")),
            self.offset.map(|n| format!("byte {n}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        f.write_str(if parts.is_empty() { "superblock" } else { "" })?;
        f.write_str(&parts.join(", "))
    }
}

/// A check that failed, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {kind}", .at)]
pub struct Corruption {
    /// Which check.
    pub kind: CorruptionKind,
    /// Where.
    pub at: Place,
}

impl Corruption {
    /// A corruption whose location is not named yet.
    #[must_use]
    pub fn new(kind: CorruptionKind) -> Self {
        Self { kind, at: Place::default() }
    }

    /// A corruption at a byte offset inside the structure being parsed.
    #[must_use]
    pub fn at_offset(kind: CorruptionKind, offset: u32) -> Self {
        Self { kind, at: Place { offset: Some(offset), ..Place::default() } }
    }

    /// Names the group, unless one is named already.
    #[must_use]
    pub fn in_group(mut self, group: GroupNr) -> Self {
        self.at.group.get_or_insert(group);
        self
    }

    /// Names the inode, unless one is named already.
    #[must_use]
    pub fn in_inode(mut self, inode: InodeNr) -> Self {
        self.at.inode.get_or_insert(inode);
        self
    }

    /// Names the logical block, unless one is named already.
    #[must_use]
    pub fn in_logical(mut self, logical: LogicalBlock) -> Self {
        self.at.logical.get_or_insert(logical);
        self
    }

    /// Names the physical block, unless one is named already.
    #[must_use]
    pub fn in_block(mut self, block: BlockNr) -> Self {
        self.at.block.get_or_insert(block);
        self
    }
}

/// Why an image, or a structure of it, cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A check failed.
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    /// Incompatible features that blockyard does not know or refuses, by their names.
    #[error("unsupported incompatible features: {0}")]
    UnsupportedFeatures(String),
    /// A size or revision that the format allows and blockyard refuses.
    #[error("unsupported: {0}")]
    Unsupported(&'static str),
}

/// Result of verifying on-disk data.
pub type Result<T, E = Error> = core::result::Result<T, E>;

macro_rules! corruption_kinds {
    ($( $(#[$doc:meta])+ $kind:ident $text:literal, )+) => {
        /// What a check of on-disk data has found. The defects of directory blocks, of index blocks
        /// and of attribute lists are enums of their own, each wrapped by one variant.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
        #[non_exhaustive]
        pub enum CorruptionKind {
            $( $(#[$doc])+ #[error($text)] $kind, )+
            /// A linear directory block or inline directory.
            #[error(transparent)]
            Directory(#[from] DirDefect),
            /// An index block of a directory.
            #[error(transparent)]
            Index(#[from] HtreeDefect),
            /// A list of extended attributes.
            #[error(transparent)]
            Xattr(#[from] XattrDefect),
        }

        impl CorruptionKind {
            /// Every kind except the three that wrap an enum.
            pub const ALL: &'static [Self] = &[ $( Self::$kind, )+ ];
        }
    };
}

corruption_kinds! {
    // ---- superblock ----
    /// `s_magic` is not 0xEF53: not a file system of this family.
    SuperblockMagic "superblock magic is not 0xEF53",
    /// `s_checksum` does not match (metadata_csum).
    SuperblockChecksum "superblock checksum does not match",
    /// `s_checksum_type` is not 1 (crc32c) although metadata_csum is set.
    SuperblockChecksumType "superblock names an unknown checksum algorithm",
    /// `s_log_block_size` is above 6 (64 KiB); protects every shift by the block size.
    SuperblockBlockSize "block size is not 1 KiB to 64 KiB",
    /// The cluster size is below the block size, above 256 MiB, or (without bigalloc) not the block
    /// size.
    SuperblockClusterSize "cluster size does not fit the block size",
    /// `s_blocks_count` is not above `s_first_data_block`, or is above 2^48.
    SuperblockBlocksCount "block count is impossible",
    /// `s_first_data_block` is not what the block size and bigalloc require.
    SuperblockFirstDataBlock "first data block does not fit the block size",
    /// `s_clusters_per_group` is zero, not a multiple of 8, or does not fit one bitmap block.
    SuperblockClustersPerGroup "clusters per group do not fit one bitmap block",
    /// `s_blocks_per_group` is not clusters per group times the cluster ratio.
    SuperblockBlocksPerGroup "blocks per group do not match clusters per group",
    /// `s_inodes_per_group` is zero or does not fit one bitmap block.
    SuperblockInodesPerGroup "inodes per group do not fit one bitmap block",
    /// `s_inodes_count` is not groups times inodes per group, or that product exceeds 32 bits.
    SuperblockInodesCount "inode count does not match groups and inodes per group",
    /// `s_inode_size` is not a power of two from 128 to the block size. Revision 0 does not have
    /// the field.
    SuperblockInodeSize "inode size is not a power of two from 128 to the block size",
    /// `s_first_ino` is below 11 or above the inode count. Revision 0 does not have the field.
    SuperblockFirstInode "first ordinary inode is out of range",
    /// `s_desc_size` is not a power of two from 64 to 1024 although 64bit is set.
    SuperblockDescriptorSize "group descriptor size is impossible",
    /// `s_reserved_gdt_blocks` is above the block size divided by 4, the number of blocks that an
    /// indirect block can list.
    SuperblockReservedGdt "more reserved descriptor blocks than one indirect block can list",
    /// `s_log_groups_per_flex` is above 31, with flex_bg set.
    SuperblockFlexSize "groups per flex group is impossible",
    /// `s_first_meta_bg` is above the number of descriptor blocks, with meta_bg set.
    SuperblockFirstMetaBg "first meta group is beyond the descriptors",
    /// The descriptor table does not fit between the superblock and the end of the file system.
    SuperblockDescriptorTable "group descriptors do not fit the file system",
    /// bigalloc is set without extents, or metadata_csum_seed without metadata_csum.
    SuperblockFeatureCombination "features contradict each other",
    /// `s_min_extra_isize` or `s_want_extra_isize` do not fit the inode.
    SuperblockExtraIsize "extra inode size does not fit the inode",
    /// The inode number of the journal, or of a quota or orphan file whose feature is set, is above
    /// the inode count.
    SuperblockInodeNumber "inode number in the superblock is out of range",

    // ---- group descriptors and bitmaps ----
    /// `bg_checksum` does not match.
    GroupDescChecksum "group descriptor checksum does not match",
    /// The block bitmap lies outside the file system, in the head of group 0, or (without flex_bg)
    /// outside its group.
    GroupDescBlockBitmap "block bitmap is misplaced",
    /// The inode bitmap lies outside the file system, in the head of group 0, or (without flex_bg)
    /// outside its group.
    GroupDescInodeBitmap "inode bitmap is misplaced",
    /// The inode table lies outside the file system, in the head of group 0, or (without flex_bg)
    /// outside its group.
    GroupDescInodeTable "inode table is misplaced",
    /// More free clusters than the group has clusters.
    GroupDescFreeClusters "more free clusters than the group has",
    /// More free inodes than the group has inodes.
    GroupDescFreeInodes "more free inodes than the group has",
    /// More directories than the group has inodes.
    GroupDescUsedDirs "more directories than the group has inodes",
    /// More never-used inodes than the group has inodes.
    GroupDescItableUnused "more unused inodes than the group has",
    /// The block bitmap does not match its checksum.
    BlockBitmapChecksum "block bitmap checksum does not match",
    /// The inode bitmap does not match its checksum.
    InodeBitmapChecksum "inode bitmap checksum does not match",
    /// A bit of a block bitmap contradicts the owner of its cluster, or the descriptor's count is
    /// wrong.
    BlockBitmapContradiction "block bitmap contradicts the use of its clusters",
    /// The range of blocks to be freed is empty, or is not wholly inside the file system.
    FreedOutside "blocks to be freed leave the file system",
    /// A bit of an inode bitmap contradicts its inode, or the descriptor's count is wrong.
    InodeBitmapContradiction "inode bitmap contradicts the use of its inodes",

    // ---- inodes ----
    /// The inode number is 0 or above the inode count.
    InodeNumber "inode number is out of range",
    /// The inode's checksum does not match.
    InodeChecksum "inode checksum does not match",
    /// `i_extra_isize` is not a multiple of 4, or reaches past the inode.
    InodeExtraIsize "extra inode size does not fit the inode",
    /// The type bits of `i_mode` are none of the seven types.
    InodeMode "inode has an unknown type",
    /// `i_file_acl` is outside the file system, or names a block of the file system's own metadata.
    InodeFileAcl "attribute block is not one that an inode may have",
    /// `i_size` is beyond what the mapping can hold.
    InodeSize "inode size is beyond what its mapping can hold",
    /// Flags contradict each other or the features: extents together with inline data, for
    /// instance, or inline data without the feature.
    InodeFlags "inode flags contradict each other or the features",
    /// The mode of the inode is 0, or a name leads to an inode that is not in use.
    InodeUnused "inode is not in use",
    /// The target of a symbolic link is empty, is longer than a block, or holds a NUL byte. Or it
    /// is too long for `i_block`, and the inode owns no data blocks.
    SymlinkTarget "symbolic link target is impossible",

    // ---- extents ----
    /// `eh_magic` is not 0xF30A.
    ExtentMagic "extent header magic is not 0xF30A",
    /// `eh_entries` is above `eh_max`.
    ExtentEntries "extent node has more entries than room",
    /// `eh_max` is zero or above what fits the node.
    /// [`ExtentNode::parse_block`](crate::extent::ExtentNode::parse_block) also refuses an `eh_max`
    /// below what fits.
    ExtentMax "extent node capacity does not fit its place",
    /// `eh_depth` is above 5.
    ExtentDepth "extent tree is deeper than 5",
    /// A child's depth is not its parent's minus one.
    ExtentDepthOrder "extent node depth does not follow its parent",
    /// An index node (depth above 0) without entries.
    ExtentIndexEmpty "extent index node is empty",
    /// An extent of length 0.
    ExtentLength "extent has no length",
    /// Logical block plus length passes 2^32 - 1.
    ExtentLogicalWrap "extent passes the last logical block",
    /// Keys of a node do not increase, or extents overlap.
    ExtentOrder "extents are out of order or overlap",
    /// A physical range or child is outside the file system, or in the file system's own metadata
    /// (superblocks, descriptors, bitmaps, inode tables, journal).
    ExtentPhysical "extent lies outside the file system or in its own metadata",
    /// The first key of a child is not the key in its parent, or an entry reaches past the parent's
    /// next key.
    ExtentParentKey "extent node does not cover what its parent says",
    /// The checksum of an extent block does not match.
    ExtentChecksum "extent block checksum does not match",

    // ---- indirect maps ----
    /// A block number in `i_block` or in an indirect block is outside the file system, or in the
    /// file system's own metadata (superblocks, descriptors, bitmaps, inode tables, journal).
    IndirectPhysical "block map points outside the file system or to its own metadata",

    /// More indirect blocks are visited than the file system has blocks.
    IndirectLoop "block map visits more blocks than the file system has",

    // ---- orphan file and MMP ----
    /// `ob_magic` of an orphan file block is wrong.
    OrphanBlockMagic "orphan file block magic is wrong",
    /// The checksum of an orphan file block does not match.
    OrphanBlockChecksum "orphan file block checksum does not match",
    /// `mmp_magic` is wrong.
    MmpMagic "MMP block magic is wrong",
    /// The checksum of the MMP block does not match.
    MmpChecksum "MMP block checksum does not match",

    // ---- all metadata blocks ----
    /// A block serves two purposes: it is named as a directory block and as an extent node, for
    /// instance.
    BlockTwoKinds "block is named as two kinds of metadata",

    // ---- directory blocks ----
    /// A walk over a directory, or a search in its index, visits more blocks than the file system
    /// has.
    DirBlocks "directory has more blocks than the file system",
    /// The checksum of a directory leaf does not match, or its tail is missing.
    DirLeafChecksum "directory block checksum does not match",

    /// A name leads to its own directory, or to an inode of the file system itself, such as the
    /// journal's.
    NameInode "name leads to an inode that cannot have it",

    /// A directory block is a hole or unwritten. The engine refuses any such block that it loads.
    /// The reader of `blockyard-inspect` refuses only the root of an index and the blocks that the
    /// index names.
    DirHole "directory block is a hole or unwritten",

    // ---- directory indexes (htree) ----
    /// The checksum of an index block does not match, or its tail is missing.
    HtreeChecksum "directory index checksum does not match",

    // ---- extended attributes ----
    /// The checksum of an attribute block does not match.
    XattrBlockChecksum "attribute block checksum does not match",

    /// The inode that should hold an attribute's value is not a value inode, or has another size or
    /// another value.
    XattrValueInode "attribute value inode does not match its entry",

    /// The value of an access control list is damaged.
    XattrAcl "access control list is damaged",

    // ---- inline data ----
    /// The inline data of a symbolic link (in `i_block`, then in the attribute `system.data`) is
    /// shorter than the inode's size.
    InlineDataMissing "inline data is shorter than the inode's size",
    /// The `system.data` attribute of an inode with inline data has its value in another inode.
    InlineDataElsewhere "inline data lies in another inode",

    // ---- journal (jbd2) ----
    /// Log block 0 is not a journal superblock.
    JournalMagic "first journal block is not a journal superblock",
    /// `s_blocksize` is not the block size of the file system.
    JournalBlockSize "journal block size is not that of the file system",
    /// `s_maxlen` is below 1024 or above the length of the journal's file or device.
    JournalLength "journal length does not fit its file",
    /// `s_first` is 0 or not below `s_maxlen`.
    JournalFirst "first block of the log is outside the journal",
    /// `s_start` is neither 0 (an empty log) nor in the ring; protects the scan.
    JournalStart "start of the log is outside its ring",
    /// More than one kind of journal checksum is on.
    JournalFeatures "journal checksum features contradict each other",
    /// `s_checksum_type` of the journal is not crc32c.
    JournalChecksumType "journal names an unknown checksum algorithm",
    /// `s_checksum` of the journal superblock does not match.
    JournalChecksum "journal superblock checksum does not match",
    /// The fast-commit area leaves no room for the ring.
    JournalFastCommitSize "fast-commit area leaves no room for the log",
    /// `r_count` of a revoke block reaches past the room for records; protects reading them.
    JournalRevokeCount "revoke block has an impossible length",
    /// A descriptor or revoke block of a committed transaction has a wrong checksum, or a revoke
    /// block has an impossible length. The transaction counts as committed because its commit block
    /// is there and is not left from an earlier use of the log.
    JournalTransactionChecksum "committed transaction has a damaged descriptor or revoke block",
    /// A commit block has a wrong checksum, and is not left from an earlier use of the log. With
    /// the journal's feature for asynchronous commits, this is damage only if a later commit block
    /// is good.
    JournalCommitChecksum "commit block checksum does not match",
    /// A logged block does not match the checksum in its tag.
    JournalDataChecksum "logged block does not match its checksum",
    /// The device cannot read a logged block.
    JournalUnreadable "logged block cannot be read",
    /// A tag points outside the file system, or into the journal.
    JournalTarget "logged block belongs outside the file system or into the journal",
    /// The journal's inode cannot be used: its number is out of range, it is not a regular file
    /// with an extent tree or a block map, it has no links, or its size is impossible.
    JournalInode "journal inode is not a regular file of sufficient size",
    /// A block of the journal's file is not mapped, is mapped twice, or lies outside the file
    /// system or on metadata.
    JournalMapping "journal file is not mapped completely to distinct blocks of its own",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_place() {
        let found = Corruption::at_offset(CorruptionKind::ExtentOrder, 24)
            .in_inode(InodeNr::new(12))
            .in_block(BlockNr::new(900))
            .in_block(BlockNr::new(901));
        assert_eq!(found.to_string(), "inode 12, block 900, byte 24: extents are out of order or overlap");
        assert_eq!(
            Corruption::new(CorruptionKind::SuperblockMagic).to_string(),
            "superblock: superblock magic is not 0xEF53"
        );
    }

    #[test]
    fn messages_differ() {
        let mut messages: Vec<String> = CorruptionKind::ALL.iter().map(ToString::to_string).collect();
        messages.sort_unstable();
        let all = messages.len();
        messages.dedup();
        // Two messages are equal on purpose: those of the superblock's and the inode's extra size.
        assert!(all - messages.len() <= 1);
    }
}
