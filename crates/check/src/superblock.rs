//! Pass 0, the superblock: constants that all arithmetic relies on, features, and fields that can
//! be wrong without making the rest unreadable.

pub(crate) mod quota;

use blockyard_device::BlockDevice;
use blockyard_disk::num::{u32_from_usize, u64_from_u32};
use blockyard_disk::quota::QuotaType;
use blockyard_disk::superblock::bounds::{self, Bounded};
use blockyard_disk::superblock::{FsFlags, INCOMPAT_READABLE, MAGIC, PRIMARY_OFFSET, RawSuperblock};
use blockyard_disk::{Checksums, Compat, Geometry, Incompat, InodeNr, RoCompat};
use zerocopy::FromBytes;

use crate::Error;
use crate::Watch;
use crate::code::Code;
use crate::finding::{Sink, Site};
use crate::volume::Volume;
use quota::quota_inodes;

/// The only `s_checksum_type`.
const CRC32C: u8 = 1;
/// The only `s_encoding`.
const ENCODING_UTF8: u16 = 1;
/// Features that have names, but are refused like unknown ones.
const UNKNOWN_COMPAT: Compat = Compat::LAZY_BG.union(Compat::SNAPSHOT_BITMAP);

/// The result of reading the superblock.
pub(crate) enum Opened<'a> {
    /// The file system can be checked.
    Volume(Box<Volume<'a>>),
    /// The file system cannot be checked; the findings say why. A backup of the superblock may
    /// help.
    Corrupt,
    /// The file system cannot be checked, and e2fsck does not look for a backup.
    Unusable,
}

/// Reads the superblock and checks the constants that [`Volume`] relies on.
///
/// # Errors
/// [`Error::Unsupported`] for unknown incompat features; a file system with them cannot be judged.
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
    let unknown = sb.incompat().difference(INCOMPAT_READABLE);
    if !unknown.is_empty() {
        return Err(Error::Unsupported(unknown.to_string()));
    }
    let Some((geometry, desc_size)) = check_constants(&sb, sink) else {
        return Ok(if is_beyond_help(&sb) { Opened::Unusable } else { Opened::Corrupt });
    };
    Ok(Opened::Volume(Box::new(Volume {
        device,
        geometry,
        checksums,
        compat: sb.compat(),
        incompat: sb.incompat(),
        ro_compat: sb.ro_compat(),
        desc_size,
        is_backup: false,
        is_replayed: false,
        watch: Watch::default(),
        groups: Vec::new(),
        sb,
    })))
}

/// Refuses unknown compat and ro_compat features, which do not change where metadata is. As in
/// e2fsck, this is checked after the descriptors.
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

/// Whether e2fsck opens a file system with these constants and only then fails, so that it does not
/// look for a backup.
fn is_beyond_help(sb: &RawSuperblock) -> bool {
    let first = u64_from_u32(sb.s_first_data_block.get());
    let moved = first > 1 || (first == 0 && sb.s_log_block_size.get() == 0);
    let no_size = sb.incompat().contains(Incompat::BIT64) && sb.s_desc_size.get() == 0;
    (moved && first < sb.blocks_count().raw()) || no_size
}

/// Checks bounds that [`Geometry`] and [`Volume`] rely on; returns the geometry and the size of a
/// descriptor in bytes.
fn check_constants(sb: &RawSuperblock, sink: &mut Sink) -> Option<(Geometry, usize)> {
    let before = sink.errors();
    let geometry = keep(bounds::geometry(sb), Code::SUPERBLOCK_CONSTANT, sink)?;
    let block_size = u32_from_usize(geometry.block_size());
    let ipg = geometry.inodes_per_group();
    let table_fits = geometry.inode_table_blocks() + 3 < geometry.blocks_per_group().max(8);
    let fills_a_block = ipg >= block_size / u32::from(geometry.inode_size());
    constant_check(sink, table_fits && fills_a_block, "s_inodes_per_group", ipg.into());
    // Without flex_bg the field is not used, but still checked.
    let flex = sb.s_log_groups_per_flex;
    constant_check(sink, flex <= 31, "s_log_groups_per_flex", flex.into());
    let desc_size = desc_size(sb, sink)?;
    let desc_blocks = geometry.groups().div_ceil(block_size / u32_from_usize(desc_size));
    keep(bounds::first_meta_bg(sb, desc_blocks), Code::FIRST_META_BG, sink);
    if bounds::inodes_count(sb, &geometry).is_err() {
        let detail = format!("{}, should be {}", sb.s_inodes_count, geometry.inodes_count());
        sink.add(Code::INODES_COUNT, Site::NOWHERE, detail);
    }
    (sink.errors() == before).then_some((geometry, desc_size))
}

/// Bytes of a descriptor. Like e2fsck, this accepts descriptors of 32 bytes with the feature 64bit,
/// although the feature needs 64 bytes. Block numbers in such descriptors have 32 bits.
fn desc_size(sb: &RawSuperblock, sink: &mut Sink) -> Option<usize> {
    if sb.incompat().contains(Incompat::BIT64) && sb.s_desc_size.get() == 32 {
        sink.add(Code::DESCRIPTORS_NARROW, Site::NOWHERE, "s_desc_size = 32");
        return Some(32);
    }
    keep(bounds::desc_size(sb), Code::SUPERBLOCK_CONSTANT, sink)
}

/// The value if its bound holds; otherwise adds a finding.
fn keep<T>(bounded: Bounded<T>, code: Code, sink: &mut Sink) -> Option<T> {
    bounded.map_err(|broken| sink.add(code, Site::NOWHERE, broken.to_string())).ok()
}

/// Checks what e2fsck checks only after it found the descriptors to be sound. Returns whether the
/// file system can be examined.
///
/// # Errors
/// [`Error::Unsupported`] for unknown compat and ro_compat features.
pub(crate) fn check_values(volume: &Volume<'_>, sink: &mut Sink) -> Result<bool, Error> {
    let (sb, geometry) = (&volume.sb, &volume.geometry);
    let before = sink.errors();
    let mut check = |ok: bool, field: &str, value: u64| constant_check(sink, ok, field, value);
    let desc_size = sb.s_desc_size.get();
    // Without 64bit the field is not used, but still checked.
    check(
        desc_size == 0 || (desc_size <= 1024 && desc_size.is_power_of_two()),
        "s_desc_size",
        desc_size.into(),
    );
    let privileged = sb.reserved_blocks_count().raw();
    check(privileged <= geometry.blocks_count().raw() / 2, "s_r_blocks_count", privileged);
    check(sb.s_rev_level.get() <= 1, "s_rev_level", sb.s_rev_level.get().into());
    keep(bounds::reserved_gdt(sb, geometry), Code::SUPERBLOCK_CONSTANT, sink);
    keep(bounds::first_inode(sb, geometry), Code::SUPERBLOCK_CONSTANT, sink);
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

/// Checks fields that can be wrong without making the rest unreadable.
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
    let filetype = volume.incompat.contains(Incompat::FILETYPE);
    add(volume.is_hurd() && filetype, Code::HURD_FILETYPE, String::new());
    for (kind, inode) in QuotaType::ALL.into_iter().zip(quota_inodes(sb)) {
        add(!quota::is_possible(volume, kind, inode), Code::QUOTA_INODE, format!("inode {inode}"));
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
    let sizes = [
        ("s_min_extra_isize", sb.s_min_extra_isize, Code::MIN_EXTRA_ISIZE),
        ("s_want_extra_isize", sb.s_want_extra_isize, Code::WANT_EXTRA_ISIZE),
    ];
    for (field, size, code) in sizes.map(|(field, size, code)| (field, size.get(), code)) {
        let fits = bounds::extra_isize(&volume.geometry, field, size).is_ok();
        let bad = size != 0 && (size < 4 || !size.is_multiple_of(4) || !fits);
        add(bad && volume.geometry.inode_size() > 128, code, format!("{field} = {size}"));
    }
}

/// Whether no directory may name an inode: it is reserved (and not the root), the orphan file, or a
/// quota file.
pub(crate) fn is_hidden(volume: &Volume<'_>, inode: InodeNr) -> bool {
    let sb = &volume.sb;
    let nr = inode.raw();
    let orphan_file = volume.compat.contains(Compat::ORPHAN_FILE) && sb.s_orphan_file_inum.get() == nr;
    let quota = quota_inodes(sb).contains(&nr);
    (nr < volume.first_inode() && nr != InodeNr::ROOT.raw()) || orphan_file || quota
}

/// Whether e2fsck counts an inode as used because the superblock names it. That is so only for the
/// project quota file, with or without the feature.
pub(crate) fn is_used_by_name(sb: &RawSuperblock, inode: InodeNr) -> bool {
    sb.s_prj_quota_inum.get() == inode.raw()
}
