//! Pass 0, the superblock: constants that all arithmetic relies on, features, and fields that can be wrong alone.

use blockyard_device::BlockDevice;
use blockyard_disk::geometry::GeometryFields;
use blockyard_disk::num::u64_from_u32;
use blockyard_disk::superblock::{FsFlags, MAGIC, PRIMARY_OFFSET, RawSuperblock};
use blockyard_disk::{BlockNr, Checksums, Compat, Geometry, Incompat, InodeNr, RoCompat};
use zerocopy::FromBytes;

use crate::Error;
use crate::code::Code;
use crate::finding::{Sink, Site};
use crate::volume::Volume;

/// The only `s_checksum_type`.
const CRC32C: u8 = 1;
/// The only `s_encoding`.
const ENCODING_UTF8: u16 = 1;
/// Features that change what metadata means and that the checker knows.
const KNOWN_INCOMPAT: Incompat = Incompat::FILETYPE
    .union(Incompat::RECOVER)
    .union(Incompat::META_BG)
    .union(Incompat::EXTENTS)
    .union(Incompat::BIT64)
    .union(Incompat::MMP)
    .union(Incompat::FLEX_BG)
    .union(Incompat::EA_INODE)
    .union(Incompat::CSUM_SEED)
    .union(Incompat::LARGE_DIR)
    .union(Incompat::INLINE_DATA)
    .union(Incompat::ENCRYPT)
    .union(Incompat::CASEFOLD);

/// Features with names and without anybody who knows them.
const UNKNOWN_COMPAT: Compat = Compat::LAZY_BG.union(Compat::SNAPSHOT_BITMAP);

/// What became of reading the superblock.
pub(crate) enum Opened<'a> {
    /// The file system can be checked.
    Volume(Box<Volume<'a>>),
    /// It cannot, the findings say why; a backup of the superblock may help.
    Corrupt,
    /// It cannot, and e2fsck does not look for a backup.
    Unusable,
}

/// Reads the superblock and checks every constant.
///
/// # Errors
/// [`Error::Unsupported`] for features that are not known; a file system with them cannot be judged.
pub(crate) fn open<'a>(device: &'a dyn BlockDevice, sink: &mut Sink) -> Result<Opened<'a>, Error> {
    let mut bytes = [0; 1024];
    if let Err(error) = device.read_at(PRIMARY_OFFSET, &mut bytes) {
        sink.add(Code::SUPERBLOCK_BAD, Site::NOWHERE, error.to_string());
        return Ok(Opened::Corrupt);
    }
    let sb = RawSuperblock::read_from_bytes(&bytes).expect("1024 bytes");
    if sb.s_magic.get() != MAGIC {
        sink.add(Code::SUPERBLOCK_BAD, Site::NOWHERE, "magic is not 0xEF53");
        return Ok(Opened::Corrupt);
    }
    let checksums = Checksums::of(&sb);
    if checksums.fs_seed().is_some() && sb.s_checksum_type != CRC32C {
        sink.add(Code::SUPERBLOCK_BAD, Site::NOWHERE, format!("s_checksum_type = {}", sb.s_checksum_type));
        return Ok(Opened::Corrupt);
    }
    if checksums.verify_superblock(&sb).is_err() {
        sink.add(Code::SUPERBLOCK_CHECKSUM, Site::NOWHERE, "");
        return Ok(Opened::Corrupt);
    }
    let unknown = sb.incompat().difference(KNOWN_INCOMPAT);
    if !unknown.is_empty() {
        return Err(Error::Unsupported(unknown.to_string()));
    }
    let Some(geometry) = check_constants(&sb, sink) else {
        return Ok(if is_beyond_help(&sb) { Opened::Unusable } else { Opened::Corrupt });
    };
    let incompat = sb.incompat();
    let desc_size = if incompat.contains(Incompat::BIT64) { usize::from(sb.s_desc_size.get()) } else { 32 };
    Ok(Opened::Volume(Box::new(Volume {
        device,
        geometry,
        checksums,
        compat: sb.compat(),
        incompat,
        ro_compat: sb.ro_compat(),
        desc_size,
        is_backup: false,
        groups: Vec::new(),
        sb,
    })))
}

/// Features that do not change where metadata is: asked for after the descriptors, as e2fsck does.
fn check_features(volume: &Volume<'_>) -> Result<(), Error> {
    let ro_compat = volume.ro_compat.unnamed() | (volume.ro_compat & RoCompat::REPLICA);
    if !ro_compat.is_empty() {
        return Err(Error::Unsupported(ro_compat.to_string()));
    }
    let compat = volume.compat.unnamed() | (volume.compat & UNKNOWN_COMPAT);
    if !compat.is_empty() {
        return Err(Error::Unsupported(compat.to_string()));
    }
    Ok(())
}

/// Whether e2fsck opens a file system with such constants, and gives it up (or breaks down) afterwards.
fn is_beyond_help(sb: &RawSuperblock) -> bool {
    let first = u64_from_u32(sb.s_first_data_block.get());
    let moved = first > 1 || (first == 0 && sb.s_log_block_size.get() == 0);
    let no_size = sb.incompat().contains(Incompat::BIT64) && sb.s_desc_size.get() == 0;
    (moved && first < sb.blocks_count().raw()) || no_size
}

/// Every bound that [`Geometry`] and [`Volume`] rely on; each violation is a finding that names the field.
fn check_constants(sb: &RawSuperblock, sink: &mut Sink) -> Option<Geometry> {
    let mut check = |ok: bool, field: &str, value: u64| {
        if !ok {
            sink.add(Code::SUPERBLOCK_CONSTANT, Site::NOWHERE, format!("{field} = {value}"));
        }
        ok
    };
    let features = (sb.incompat(), sb.ro_compat());
    let block_log = sb.s_log_block_size.get();
    if !check(block_log <= 6, "s_log_block_size", block_log.into()) {
        return None;
    }
    let block_bits = 10 + block_log;
    let block_size = 1u32 << block_bits;
    let bigalloc = features.1.contains(RoCompat::BIGALLOC);
    let cluster_log = sb.s_log_cluster_size.get();
    let cluster_ok = cluster_log >= block_log && cluster_log <= 28 && (bigalloc || cluster_log == block_log);
    if !check(cluster_ok && cluster_log - block_log <= 18, "s_log_cluster_size", cluster_log.into()) {
        return None;
    }
    let ratio_bits = cluster_log - block_log;
    let clusters = sb.s_clusters_per_group.get();
    let per_group_ok = (8..=8 * block_size).contains(&clusters) && clusters.is_multiple_of(8);
    if !check(per_group_ok, "s_clusters_per_group", clusters.into()) {
        return None;
    }
    let blocks_per_group = sb.s_blocks_per_group.get();
    let expected = u64_from_u32(clusters) << ratio_bits;
    if !check(u64_from_u32(blocks_per_group) == expected, "s_blocks_per_group", blocks_per_group.into()) {
        return None;
    }
    let first = sb.s_first_data_block.get();
    let first_expected = u32::from(block_size == 1024 && ratio_bits == 0);
    if first != first_expected {
        sink.add(Code::SUPERBLOCK_CONSTANT, Site::NOWHERE, format!("s_first_data_block = {first}"));
        return None;
    }
    let inode_size = if sb.s_rev_level.get() == 0 { 128 } else { sb.s_inode_size.get() };
    let ipg = sb.s_inodes_per_group.get();
    let fields = GeometryFields {
        block_bits,
        cluster_ratio_bits: ratio_bits,
        blocks_count: sb.blocks_count(),
        first_data_block: BlockNr::new(u64_from_u32(first)),
        clusters_per_group: clusters,
        inodes_per_group: ipg,
        inode_size,
        flex_bits: if features.0.contains(Incompat::FLEX_BG) { sb.s_log_groups_per_flex.into() } else { 0 },
    };
    let geometry = match Geometry::new(fields) {
        Ok(geometry) => geometry,
        Err(error) => {
            sink.add(Code::SUPERBLOCK_CONSTANT, Site::NOWHERE, error.to_string());
            return None;
        }
    };
    check_derived(sb, &geometry, sink).then_some(geometry)
}

/// Constants that depend on the geometry.
fn check_derived(sb: &RawSuperblock, geometry: &Geometry, sink: &mut Sink) -> bool {
    let before = sink.errors();
    let mut check = |ok: bool, field: &str, value: u64| constant_check(sink, ok, field, value);
    let block_size = blockyard_disk::num::u32_from_usize(geometry.block_size());
    let inodes_per_block = block_size / u32::from(geometry.inode_size());
    let ipg = geometry.inodes_per_group();
    check(ipg >= inodes_per_block && ipg <= 8 * block_size, "s_inodes_per_group", ipg.into());
    let table = geometry.inode_table_blocks();
    check(table + 3 < geometry.blocks_per_group().max(8), "s_inodes_per_group", ipg.into());
    let flex = sb.s_log_groups_per_flex;
    check(flex <= 31, "s_log_groups_per_flex", flex.into());
    let mut desc_size = 32;
    if sb.incompat().contains(Incompat::BIT64) {
        desc_size = u32::from(sb.s_desc_size.get());
        let possible = (64..=1024).contains(&desc_size) && desc_size.is_power_of_two();
        check(possible, "s_desc_size", desc_size.into());
    }
    if sb.incompat().contains(Incompat::META_BG) {
        let blocks = geometry.groups().div_ceil((block_size / desc_size.max(1)).max(1));
        let first = sb.s_first_meta_bg.get();
        if first > blocks {
            sink.add(Code::FIRST_META_BG, Site::NOWHERE, format!("s_first_meta_bg = {first}"));
        }
    }
    let count = sb.s_inodes_count.get();
    if count != geometry.inodes_count() {
        let detail = format!("{count}, should be {}", geometry.inodes_count());
        sink.add(Code::INODES_COUNT, Site::NOWHERE, detail);
    }
    sink.errors() == before
}

/// Checks what e2fsck asks only when it has found the descriptors to be sound. Gives whether the file system can be
/// examined.
///
/// # Errors
/// [`Error::Unsupported`] as with [`open`].
pub(crate) fn check_values(volume: &Volume<'_>, sink: &mut Sink) -> Result<bool, Error> {
    let (sb, geometry) = (&volume.sb, &volume.geometry);
    let before = sink.errors();
    let mut check = |ok: bool, field: &str, value: u64| constant_check(sink, ok, field, value);
    let desc_size = sb.s_desc_size.get();
    // Without 64bit the field is not used, and still looked at.
    check(
        desc_size == 0 || (desc_size <= 1024 && desc_size.is_power_of_two()),
        "s_desc_size",
        desc_size.into(),
    );
    let reserved = u64::from(sb.s_reserved_gdt_blocks.get());
    check(
        reserved <= blockyard_disk::num::u64_from_usize(volume.block_size() / 4),
        "s_reserved_gdt_blocks",
        reserved,
    );
    let privileged = sb.reserved_blocks_count().raw();
    check(privileged <= geometry.blocks_count().raw() / 2, "s_r_blocks_count", privileged);
    if sb.s_rev_level.get() > 0 {
        let first = sb.s_first_ino.get();
        check(first >= 11 && first <= geometry.inodes_count(), "s_first_ino", first.into());
    }
    check(sb.s_rev_level.get() <= 1, "s_rev_level", sb.s_rev_level.get().into());
    if sink.errors() > before {
        return Ok(false);
    }
    check_features(volume)?;
    if volume.device.size() >> geometry.block_bits() < geometry.blocks_count().raw() {
        let blocks = volume.device.size() >> geometry.block_bits();
        let detail = format!("{} blocks claimed, the device has {blocks}", geometry.blocks_count());
        sink.add(Code::DEVICE_SHORT, Site::NOWHERE, detail);
    }
    check_fields(volume, sink);
    Ok(true)
}

/// Reports a field of the superblock unless its value is right.
fn constant_check(sink: &mut Sink, ok: bool, field: &str, value: u64) {
    if !ok {
        sink.add(Code::SUPERBLOCK_CONSTANT, Site::NOWHERE, format!("{field} = {value}"));
    }
}

/// Fields that can be wrong without making the rest unreadable.
fn check_fields(volume: &Volume<'_>, sink: &mut Sink) {
    let sb = &volume.sb;
    let mut add = |wrong: bool, code: Code, detail: String| {
        if wrong {
            sink.add(code, Site::NOWHERE, detail);
        }
    };
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(u64::MAX, |since| since.as_secs());
    add(sb.mount_time() > now, Code::MOUNT_TIME_FUTURE, format!("s_mtime = {}", sb.mount_time()));
    add(sb.write_time() > now, Code::WRITE_TIME_FUTURE, format!("s_wtime = {}", sb.write_time()));
    let flags = sb.flags();
    add(flags.contains(FsFlags::TEST_FILESYS), Code::TEST_FILESYSTEM, String::new());
    let csum = volume.ro_compat.contains(RoCompat::METADATA_CSUM);
    add(csum && volume.ro_compat.contains(RoCompat::GDT_CSUM), Code::BOTH_CHECKSUMS, String::new());
    add(!csum && volume.incompat.contains(Incompat::CSUM_SEED), Code::SEED_WITHOUT_CHECKSUMS, String::new());
    let wide = volume.incompat.contains(Incompat::BIT64);
    add(wide && !volume.incompat.contains(Incompat::EXTENTS), Code::WIDE_WITHOUT_EXTENTS, String::new());
    let resize = volume.compat.contains(Compat::RESIZE_INODE);
    let meta_bg = volume.incompat.contains(Incompat::META_BG);
    add(resize && meta_bg, Code::RESIZE_WITH_META_BG, String::new());
    for (inode, usual) in quota_inodes(sb).into_iter().zip([3, 4, 0]) {
        let possible = inode == 0 || inode == usual || inode >= volume.first_inode();
        add(!possible, Code::QUOTA_INODE, format!("inode {inode}"));
        add(inode == InodeNr::ROOT.raw(), Code::QUOTA_IS_ROOT, String::new());
    }
    let encoding = sb.s_encoding.get();
    let fold = volume.incompat.contains(Incompat::CASEFOLD);
    add(fold && encoding != ENCODING_UTF8, Code::SUPERBLOCK_CONSTANT, format!("s_encoding = {encoding}"));
    let reserved = sb.s_reserved_gdt_blocks.get();
    add(!resize && reserved != 0, Code::RESERVED_GDT_WITHOUT_FEATURE, format!("{reserved} blocks"));
    let dynamic = sb.s_rev_level.get() > 0;
    let featured =
        sb.s_feature_compat.get() | sb.s_feature_incompat.get() | sb.s_feature_ro_compat.get() != 0;
    add(!dynamic && featured, Code::REVISION_LOW, String::new());
    let room = volume.geometry.inode_size().saturating_sub(128);
    let extra_bad = |size: u16| size != 0 && (size < 4 || !size.is_multiple_of(4) || size > room);
    if room > 0 {
        let (min, want) = (sb.s_min_extra_isize.get(), sb.s_want_extra_isize.get());
        add(extra_bad(min), Code::MIN_EXTRA_ISIZE, format!("s_min_extra_isize = {min}"));
        add(extra_bad(want), Code::WANT_EXTRA_ISIZE, format!("s_want_extra_isize = {want}"));
    }
}

/// The inode numbers that must not be named by a directory: reserved ones and hidden files.
pub(crate) fn is_hidden(volume: &Volume<'_>, inode: InodeNr) -> bool {
    let sb = &volume.sb;
    let nr = inode.raw();
    let orphan_file = volume.compat.contains(Compat::ORPHAN_FILE) && sb.s_orphan_file_inum.get() == nr;
    let quota = quota_inodes(sb).contains(&nr);
    (nr < volume.first_inode() && nr != InodeNr::ROOT.raw()) || orphan_file || quota
}

/// Whether e2fsck counts an inode as used because the superblock names it: the project quota file, feature or not (the
/// numbers of the others are checked first).
pub(crate) fn is_used_by_name(sb: &RawSuperblock, inode: InodeNr) -> bool {
    sb.s_prj_quota_inum.get() == inode.raw()
}

/// The inodes that the superblock names as quota files, feature or not; 0 for none.
pub(crate) fn quota_inodes(sb: &RawSuperblock) -> [u32; 3] {
    [sb.s_usr_quota_inum, sb.s_grp_quota_inum, sb.s_prj_quota_inum].map(|inode| inode.get())
}
