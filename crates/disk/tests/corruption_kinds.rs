//! Puts faults into structures. The check of a structure must report the [`CorruptionKind`] that is
//! documented for the fault.
//!
//! Covers the superblock, group descriptors, bitmaps, inodes, extent nodes, block maps, the orphan
//! file, the MMP block, and some faults of directories, attributes and inline data. Other tests
//! cover the kinds that `needs_an_image` names.

#![allow(clippy::unwrap_used)]

use std::collections::HashSet;

use blockyard_disk::checksum::{seal_extent_block, seal_orphan_block, verify_orphan_block};
use blockyard_disk::extent::{NodeBounds, RawExtent, RawExtentIndex};
use blockyard_disk::group_desc::RawGroupDesc;
use blockyard_disk::inode::{InodeFlags, InodeSlot};
use blockyard_disk::mmp::RawMmp;
use blockyard_disk::orphan_file::OrphanBlock;
use blockyard_disk::superblock::{MAGIC, RawSuperblock};
use blockyard_disk::xattr::{Attribute, AttributeList, Value};
use blockyard_disk::{
    BlockCount, BlockNr, Checksums, Corruption, CorruptionKind, Error, ExtentNode, GroupDescriptor, GroupNr,
    Incompat, Inode, InodeNr, LogicalBlock, RoCompat, Superblock, indirect, inline_data,
};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

use CorruptionKind as Kind;

/// Two groups of 1 KiB blocks with metadata_csum, 64bit and flex_bg.
fn raw_superblock() -> RawSuperblock {
    let mut raw = RawSuperblock::zeroed();
    raw.s_magic = U16::new(MAGIC);
    raw.s_rev_level = U32::new(1);
    raw.s_blocks_count_lo = U32::new(16_385);
    raw.s_first_data_block = U32::new(1);
    raw.s_blocks_per_group = U32::new(8192);
    raw.s_clusters_per_group = U32::new(8192);
    raw.s_inodes_per_group = U32::new(64);
    raw.s_inodes_count = U32::new(128);
    raw.s_first_ino = U32::new(11);
    raw.s_inode_size = U16::new(256);
    raw.s_desc_size = U16::new(64);
    raw.s_checksum_type = 1;
    raw.set_incompat(Incompat::EXTENTS | Incompat::BIT64 | Incompat::FLEX_BG | Incompat::FILETYPE);
    raw.set_ro_compat(RoCompat::SPARSE_SUPER | RoCompat::METADATA_CSUM);
    raw
}

fn superblock() -> Superblock {
    verified(raw_superblock()).unwrap()
}

fn verified(mut raw: RawSuperblock) -> Result<Superblock, Error> {
    Checksums::of(&raw).seal_superblock(&mut raw);
    Superblock::verify(raw)
}

/// The kind of fault for which a superblock is refused after `change`.
fn refused(change: impl FnOnce(&mut RawSuperblock)) -> Kind {
    let mut raw = raw_superblock();
    change(&mut raw);
    match verified(raw) {
        Err(Error::Corrupt(found)) => found.kind,
        other => panic!("{other:?}"),
    }
}

fn kind<T: std::fmt::Debug>(result: Result<T, Corruption>) -> Kind {
    result.unwrap_err().kind
}

fn superblock_kinds() -> Vec<Kind> {
    let meta_bg = |raw: &mut RawSuperblock, first: u32| {
        raw.set_incompat(raw.incompat() | Incompat::META_BG);
        raw.s_first_meta_bg = U32::new(first);
    };
    let expected = [
        (refused(|raw| raw.s_magic = U16::new(0xEF51)), Kind::SuperblockMagic),
        (refused(|raw| raw.s_checksum_type = 2), Kind::SuperblockChecksumType),
        (refused(|raw| raw.s_log_block_size = U32::new(7)), Kind::SuperblockBlockSize),
        (refused(|raw| raw.s_log_cluster_size = U32::new(1)), Kind::SuperblockClusterSize),
        (refused(|raw| raw.set_blocks_count(BlockCount::new(1))), Kind::SuperblockBlocksCount),
        (refused(|raw| raw.set_blocks_count(BlockCount::new((1 << 48) + 1))), Kind::SuperblockBlocksCount),
        (refused(|raw| raw.s_first_data_block = U32::new(0)), Kind::SuperblockFirstDataBlock),
        (refused(|raw| raw.s_clusters_per_group = U32::new(8200)), Kind::SuperblockClustersPerGroup),
        (refused(|raw| raw.s_clusters_per_group = U32::new(0)), Kind::SuperblockClustersPerGroup),
        (refused(|raw| raw.s_blocks_per_group = U32::new(8184)), Kind::SuperblockBlocksPerGroup),
        (refused(|raw| raw.s_inodes_per_group = U32::new(0)), Kind::SuperblockInodesPerGroup),
        (refused(|raw| raw.s_inodes_per_group = U32::new(8200)), Kind::SuperblockInodesPerGroup),
        (refused(|raw| raw.s_inodes_count = U32::new(127)), Kind::SuperblockInodesCount),
        (refused(|raw| raw.s_inode_size = U16::new(192)), Kind::SuperblockInodeSize),
        (refused(|raw| raw.s_inode_size = U16::new(2048)), Kind::SuperblockInodeSize),
        (refused(|raw| raw.s_first_ino = U32::new(10)), Kind::SuperblockFirstInode),
        (refused(|raw| raw.s_first_ino = U32::new(129)), Kind::SuperblockFirstInode),
        (refused(|raw| raw.s_desc_size = U16::new(32)), Kind::SuperblockDescriptorSize),
        (refused(|raw| raw.s_reserved_gdt_blocks = U16::new(257)), Kind::SuperblockReservedGdt),
        (refused(|raw| raw.s_log_groups_per_flex = 32), Kind::SuperblockFlexSize),
        (refused(|raw| meta_bg(raw, 2)), Kind::SuperblockFirstMetaBg),
        (refused(|raw| raw.set_blocks_count(BlockCount::new(2))), Kind::SuperblockDescriptorTable),
        (refused(with_clusters_of_four_blocks), Kind::SuperblockFirstDataBlock),
        (refused(without_extents_but_bigalloc), Kind::SuperblockFeatureCombination),
        (refused(|raw| raw.s_want_extra_isize = U16::new(132)), Kind::SuperblockExtraIsize),
        (refused(|raw| raw.s_journal_inum = U32::new(129)), Kind::SuperblockInodeNumber),
        (
            refused(|raw| {
                raw.set_ro_compat(raw.ro_compat() | RoCompat::QUOTA);
                raw.s_usr_quota_inum = U32::new(129);
            }),
            Kind::SuperblockInodeNumber,
        ),
    ];
    let mut raw = raw_superblock();
    raw.s_checksum = U32::new(1);
    let checksum = Superblock::verify(raw).unwrap_err();
    assert_eq!(checksum, Error::Corrupt(Corruption::new(Kind::SuperblockChecksum)));
    agree(&expected).into_iter().chain([Kind::SuperblockChecksum]).collect()
}

fn without_extents_but_bigalloc(raw: &mut RawSuperblock) {
    raw.set_ro_compat(raw.ro_compat() | RoCompat::BIGALLOC);
    raw.set_incompat(Incompat::FILETYPE);
}

fn with_clusters_of_four_blocks(raw: &mut RawSuperblock) {
    raw.set_ro_compat(raw.ro_compat() | RoCompat::BIGALLOC);
    raw.s_log_cluster_size = U32::new(2);
    raw.s_clusters_per_group = U32::new(2048);
}

/// If bigalloc is set later on a file system whose clusters are single blocks, the first data block
/// stays 1. Linux and e2fsck accept that.
#[test]
fn the_flag_of_bigalloc_alone_moves_no_block() {
    let mut raw = raw_superblock();
    raw.set_ro_compat(raw.ro_compat() | RoCompat::BIGALLOC);
    let geometry = *verified(raw).unwrap().geometry();
    assert_eq!((geometry.first_data_block().raw(), geometry.cluster_ratio()), (1, 1));
}

/// Asserts that in each pair the found kind is the expected one. Returns the kinds.
fn agree(pairs: &[(Kind, Kind)]) -> Vec<Kind> {
    for (number, (found, expected)) in pairs.iter().enumerate() {
        assert_eq!(found, expected, "case {number}");
    }
    pairs.iter().map(|(_, expected)| *expected).collect()
}

fn group_kinds() -> Vec<Kind> {
    let sb = superblock();
    let group = GroupNr::new(1);
    let valid = || {
        let mut desc = RawGroupDesc::zeroed();
        desc.set_block_bitmap(BlockNr::new(100));
        desc.set_inode_bitmap(BlockNr::new(101));
        desc.set_inode_table(BlockNr::new(102));
        desc
    };
    let parse = |change: &dyn Fn(&mut RawGroupDesc)| {
        let mut desc = valid();
        change(&mut desc);
        sb.checksums().seal_group_desc(group, desc.as_mut_bytes());
        GroupDescriptor::parse(&sb, group, desc.as_bytes())
    };
    let counts = |change: &dyn Fn(&mut RawGroupDesc)| kind(parse(change).unwrap().verify_counts(&sb));
    assert!(parse(&|_| ()).unwrap().verify_counts(&sb).is_ok());
    let bitmap = vec![0xA5; 1024];
    let mut sealed = valid();
    sb.checksums().seal_block_bitmap(&mut sealed, 64, &bitmap, 8192);
    sb.checksums().seal_inode_bitmap(&mut sealed, 64, &bitmap, 64);
    assert!(sb.checksums().verify_block_bitmap(&sealed, 64, &bitmap, 8192).is_ok());
    assert!(sb.checksums().verify_inode_bitmap(&sealed, 64, &bitmap, 64).is_ok());
    let mut other = bitmap.clone();
    other[7] ^= 1;
    agree(&[
        (kind(GroupDescriptor::parse(&sb, group, valid().as_bytes())), Kind::GroupDescChecksum),
        (kind(parse(&|desc| desc.set_block_bitmap(BlockNr::new(16_385)))), Kind::GroupDescBlockBitmap),
        (kind(parse(&|desc| desc.set_block_bitmap(BlockNr::new(2)))), Kind::GroupDescBlockBitmap),
        (kind(parse(&|desc| desc.set_inode_bitmap(BlockNr::new(1 << 40)))), Kind::GroupDescInodeBitmap),
        (kind(parse(&|desc| desc.set_inode_table(BlockNr::new(16_380)))), Kind::GroupDescInodeTable),
        (counts(&|desc| desc.set_free_clusters(8193)), Kind::GroupDescFreeClusters),
        (counts(&|desc| desc.set_free_inodes(65)), Kind::GroupDescFreeInodes),
        (counts(&|desc| desc.set_used_dirs(65)), Kind::GroupDescUsedDirs),
        (counts(&|desc| desc.set_itable_unused(65)), Kind::GroupDescItableUnused),
        (kind(sb.checksums().verify_block_bitmap(&sealed, 64, &other, 8192)), Kind::BlockBitmapChecksum),
        (kind(sb.checksums().verify_inode_bitmap(&sealed, 64, &other, 64)), Kind::InodeBitmapChecksum),
    ])
}

#[test]
fn without_flex_bg_a_group_keeps_its_own_metadata() {
    let mut raw = raw_superblock();
    raw.set_incompat(Incompat::EXTENTS | Incompat::BIT64);
    let sb = verified(raw).unwrap();
    let mut desc = RawGroupDesc::zeroed();
    desc.set_block_bitmap(BlockNr::new(8195));
    desc.set_inode_bitmap(BlockNr::new(101));
    desc.set_inode_table(BlockNr::new(8197));
    sb.checksums().seal_group_desc(GroupNr::new(1), desc.as_mut_bytes());
    let found = GroupDescriptor::parse(&sb, GroupNr::new(1), desc.as_bytes()).unwrap_err();
    assert_eq!((found.kind, found.at.group), (Kind::GroupDescInodeBitmap, Some(GroupNr::new(1))));
}

type Slot = InodeSlot<Vec<u8>>;

/// The kind of fault for which an inode is refused after `change`.
fn inode_refused(sb: &Superblock, change: impl FnOnce(&mut Slot)) -> Kind {
    let number = InodeNr::new(12);
    let mut slot = InodeSlot::new(vec![0; 256]);
    slot.raw_mut().i_mode = U16::new(0o100_644);
    slot.raw_mut().set_flags(InodeFlags::EXTENTS);
    slot.set_extra_isize(32);
    change(&mut slot);
    sb.checksums().seal_inode(number, &mut slot);
    let found = Inode::parse(sb, number, slot.bytes()).unwrap_err();
    assert_eq!(found.at.inode, Some(number));
    found.kind
}

fn inode_kinds() -> Vec<Kind> {
    let sb = superblock();
    let refused = |change: &dyn Fn(&mut Slot)| inode_refused(&sb, change);
    let mut unsealed = vec![0; 256];
    unsealed[0] = 1;
    let symlink = |slot: &mut Slot, size: u64| {
        slot.raw_mut().i_mode = U16::new(0o120_777);
        slot.raw_mut().set_flags(InodeFlags::empty());
        slot.raw_mut().set_size(size);
    };
    agree(&[
        (kind(Inode::parse(&sb, InodeNr::new(0), &[0; 256])), Kind::InodeNumber),
        (kind(Inode::parse(&sb, InodeNr::new(129), &[0; 256])), Kind::InodeNumber),
        (kind(Inode::parse(&sb, InodeNr::new(12), &unsealed)), Kind::InodeChecksum),
        (kind(Inode::parse(&sb, InodeNr::new(12), &[0; 256])), Kind::InodeUnused),
        (refused(&|slot| slot.set_extra_isize(30)), Kind::InodeExtraIsize),
        (refused(&|slot| slot.set_extra_isize(132)), Kind::InodeExtraIsize),
        (refused(&|slot| slot.raw_mut().i_mode = U16::new(0o030_644)), Kind::InodeMode),
        (refused(&|slot| slot.raw_mut().set_file_acl(BlockNr::new(16_385))), Kind::InodeFileAcl),
        (refused(&|slot| slot.raw_mut().set_size(u64::MAX)), Kind::InodeSize),
        (refused(&|slot| slot.raw_mut().set_flags(InodeFlags::INLINE_DATA)), Kind::InodeFlags),
        (refused(&|slot| symlink(slot, 0)), Kind::SymlinkTarget),
        (refused(&|slot| symlink(slot, 60)), Kind::SymlinkTarget),
        (refused(&|slot| symlink(slot, 1025)), Kind::SymlinkTarget),
    ])
}

/// A node of an extent tree: header and entries, in a buffer of `length` bytes.
fn node(length: usize, depth: u16, max: u16, entries: &[[u8; 12]]) -> Vec<u8> {
    let count = u16::try_from(entries.len()).unwrap();
    let mut bytes: Vec<u8> =
        [0xF30A, count, max, depth, 0, 0].iter().flat_map(|word: &u16| word.to_le_bytes()).collect();
    bytes.extend(entries.iter().flatten());
    bytes.resize(length, 0);
    bytes
}

fn extent(logical: u32, length: u16, physical: u64) -> [u8; 12] {
    let extent = RawExtent::new(LogicalBlock::new(logical), length, BlockNr::new(physical), false);
    extent.as_bytes().try_into().unwrap()
}

fn index(logical: u32, child: u64) -> [u8; 12] {
    RawExtentIndex::new(LogicalBlock::new(logical), BlockNr::new(child)).as_bytes().try_into().unwrap()
}

fn extent_kinds() -> Vec<Kind> {
    let sb = superblock();
    let geometry = sb.geometry();
    let root = |depth, max, entries: &[[u8; 12]]| {
        let bytes = node(60, depth, max, entries);
        kind(ExtentNode::parse_root(geometry, bytes[..].try_into().unwrap()))
    };
    let broken = |at: usize, value: u16| {
        let mut bytes = node(60, 0, 4, &[extent(0, 1, 50)]);
        bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        kind(ExtentNode::parse_root(geometry, bytes[..].try_into().unwrap()))
    };
    // The first of the root's two children may map logical blocks 10 to 19.
    let parent = node(60, 1, 4, &[index(10, 300), index(20, 301)]);
    let parent: &[u8; 60] = parent[..].try_into().unwrap();
    let bounds = ExtentNode::parse_root(geometry, parent).unwrap().child(0).unwrap().bounds;
    let child = |depth, max, entries: &[[u8; 12]]| {
        let mut bytes = node(1024, depth, max, entries);
        seal_extent_block(Some(7), &mut bytes);
        kind(ExtentNode::parse_block(geometry, &bytes, bounds, Some(7)))
    };
    let unsealed = node(1024, 0, 84, &[extent(10, 1, 50)]);
    let mut sealed = unsealed.clone();
    seal_extent_block(Some(7), &mut sealed);
    assert!(ExtentNode::parse_block(geometry, &sealed, bounds, Some(7)).is_ok());
    assert!(ExtentNode::parse_block(geometry, &sealed, NodeBounds::ROOT, Some(7)).is_ok());
    agree(&[
        (broken(0, 0xF30B), Kind::ExtentMagic),
        (broken(2, 5), Kind::ExtentEntries),
        (broken(4, 5), Kind::ExtentMax),
        (broken(4, 0), Kind::ExtentMax),
        (child(0, 83, &[extent(10, 1, 50)]), Kind::ExtentMax),
        (root(6, 4, &[index(0, 300)]), Kind::ExtentDepth),
        (child(1, 84, &[index(10, 302)]), Kind::ExtentDepthOrder),
        (root(1, 4, &[]), Kind::ExtentIndexEmpty),
        (broken(16, 0), Kind::ExtentLength),
        (root(0, 4, &[extent(u32::MAX - 1, 2, 50)]), Kind::ExtentLogicalWrap),
        (root(0, 4, &[extent(u32::MAX, 1, 50)]), Kind::ExtentLogicalWrap),
        (root(0, 4, &[extent(5, 1, 50), extent(5, 1, 60)]), Kind::ExtentOrder),
        (root(0, 4, &[extent(5, 3, 50), extent(7, 1, 60)]), Kind::ExtentOrder),
        (root(0, 4, &[extent(5, 3, 16_383)]), Kind::ExtentPhysical),
        (root(1, 4, &[index(5, 0)]), Kind::ExtentPhysical),
        (child(0, 84, &[extent(11, 1, 50)]), Kind::ExtentParentKey),
        (child(0, 84, &[extent(10, 1, 50), extent(20, 1, 51)]), Kind::ExtentParentKey),
        (child(0, 84, &[extent(10, 11, 50)]), Kind::ExtentParentKey),
        (kind(ExtentNode::parse_block(geometry, &unsealed, bounds, Some(7))), Kind::ExtentChecksum),
    ])
}

fn other_kinds() -> Vec<Kind> {
    let sb = superblock();
    let mut orphans = vec![0; 1024];
    orphans[1016..1020].copy_from_slice(&blockyard_disk::orphan_file::MAGIC.to_le_bytes());
    orphans[8] = 33;
    seal_orphan_block(Some(5), BlockNr::new(77), &mut orphans);
    assert!(verify_orphan_block(Some(5), BlockNr::new(77), &orphans).is_ok());
    let listed: Vec<InodeNr> = OrphanBlock::parse(&orphans).unwrap().inodes().collect();
    assert_eq!(listed, [InodeNr::new(33)]);
    let mut mmp = RawMmp::zeroed();
    mmp.mmp_magic = U32::new(blockyard_disk::mmp::MAGIC);
    sb.checksums().seal_mmp(&mut mmp);
    assert!(sb.checksums().verify_mmp(RawMmp::parse(mmp.as_bytes()).unwrap()).is_ok());
    mmp.mmp_seq = U32::new(1);
    let mut elsewhere = AttributeList::default();
    let value = Value::Inode { inode: 12, size: 70, entry_hash: 1 };
    elsewhere.set(Attribute {
        index: inline_data::XATTR_INDEX,
        name: inline_data::XATTR_NAME.to_vec(),
        value,
    });
    let mut area = [0; 96];
    assert!(elsewhere.write_inode_area(&mut area));
    agree(&[
        (inline_data::tail_of(&area).unwrap_err(), Kind::InlineDataElsewhere),
        (kind(indirect::pointer(sb.geometry(), 16_385)), Kind::IndirectPhysical),
        (kind(OrphanBlock::parse(&[0; 1024])), Kind::OrphanBlockMagic),
        (kind(OrphanBlock::parse(&[])), Kind::OrphanBlockMagic),
        (kind(verify_orphan_block(Some(5), BlockNr::new(78), &orphans)), Kind::OrphanBlockChecksum),
        (kind(RawMmp::parse(&[0; 1024])), Kind::MmpMagic),
        (kind(sb.checksums().verify_mmp(&mmp)), Kind::MmpChecksum),
        (kind(sb.checksums().verify_xattr_block(BlockNr::new(9), &[0; 1024])), Kind::XattrBlockChecksum),
        (kind(blockyard_disk::checksum::verify_dir_leaf(Some(1), &[0; 1024])), Kind::DirLeafChecksum),
        (kind(blockyard_disk::checksum::verify_htree(Some(1), &[0; 1024], 32)), Kind::HtreeChecksum),
    ])
}

/// Whether a kind is left to other tests: those of the journal's blocks, the reader, the engine,
/// recovery and check. In most cases, only a walk over an image can find a fault of such a kind.
fn needs_an_image(kind: Kind) -> bool {
    let name = format!("{kind:?}");
    name.starts_with("Journal")
        || name.ends_with("Contradiction")
        || matches!(
            kind,
            Kind::IndirectLoop
                | Kind::FreedOutside
                | Kind::BlockTwoKinds
                | Kind::NameInode
                | Kind::DirBlocks
                | Kind::DirHole
                | Kind::XattrValueInode
                | Kind::XattrAcl
                | Kind::InlineDataMissing
        )
}

#[test]
fn every_kind_is_what_its_damage_gives() {
    let tested: HashSet<Kind> =
        [superblock_kinds(), group_kinds(), inode_kinds(), extent_kinds(), other_kinds()]
            .into_iter()
            .flatten()
            .collect();
    let missing: Vec<&Kind> =
        Kind::ALL.iter().filter(|kind| !tested.contains(kind) && !needs_an_image(**kind)).collect();
    assert!(missing.is_empty(), "kinds without a test: {missing:?}");
}

#[test]
fn unknown_features_are_refused_by_name() {
    let mut raw = raw_superblock();
    raw.set_incompat(raw.incompat() | Incompat::COMPRESSION | Incompat::from_bits_retain(1 << 21));
    assert_eq!(verified(raw), Err(Error::UnsupportedFeatures("compression FEATURE_I21".to_owned())));
    let mut raw = raw_superblock();
    raw.set_ro_compat(raw.ro_compat() | RoCompat::from_bits_retain(1 << 21));
    assert_eq!(verified(raw).unwrap().unknown_ro_compat().to_string(), "FEATURE_R21");
    let mut raw = raw_superblock();
    raw.s_rev_level = U32::new(2);
    assert_eq!(verified(raw), Err(Error::Unsupported("superblock revision above 1")));
}
