//! Attributes of one inode: those kept in the inode, and the reference to an attribute block.

use blockyard_disk::inline_data::{XATTR_INDEX, XATTR_NAME};
use blockyard_disk::inode::{InodeSlot, RawInode};
use blockyard_disk::num::u64_from_u32;
use blockyard_disk::xattr::{self, Home, RawEntry, XattrDefect};
use blockyard_disk::{BlockNr, Compat, Incompat};

use super::Examination;
use crate::code::Code;
use crate::facts::{GroupFacts, Policy, ValueRef, XattrBlockRef};
use crate::superblock::is_hidden;

/// Name of the attribute with the encryption context. Its name index is 9; e2fsck accepts any index
/// outside of [`PREFIXES`].
const CONTEXT: &[u8] = b"c";
/// Name indexes that stand for a prefix of the name, such as `user.`.
const PREFIXES: std::ops::RangeInclusive<u8> = 1..=8;

/// What the other checks of an inode need to know about the attributes kept in it.
#[derive(Debug, Default)]
pub(super) struct InInode {
    /// The value of `system.data`, the tail of inline data.
    pub(super) inline_tail: Option<Vec<u8>>,
    /// The value of the attribute with the encryption context.
    pub(super) context: Option<Vec<u8>>,
    /// How many attributes there are, not counting a `system.data` that e2fsck can read.
    pub(super) count: usize,
    /// How many attributes have their values in value inodes.
    pub(super) values: u64,
    /// Blocks that the values in value inodes add to the `i_blocks` of this inode.
    pub(super) value_blocks: u64,
}

/// Checks the attributes kept in the inode.
pub(super) fn check_in_inode(
    cx: &mut Examination<'_, '_, '_>,
    slot: &InodeSlot<&[u8]>,
    facts: &mut GroupFacts,
) -> InInode {
    let mut found = InInode::default();
    let size = slot.bytes().len();
    if size <= RawInode::SIZE {
        return found;
    }
    let extra = slot.extra_isize();
    let possible =
        extra == 0 || (extra >= 4 && extra.is_multiple_of(4) && usize::from(extra) <= size - RawInode::SIZE);
    if !possible {
        cx.add(Code::EXTRA_ISIZE, format!("i_extra_isize = {extra}"));
        return found;
    }
    let Some(at) = xattr::inode_area_at(size, extra) else { return found };
    let area = &slot.bytes()[at..];
    if extra == 0 || !xattr::has_magic(area) {
        return found;
    }
    match xattr::parse_entries(area, Home::Inode) {
        Ok(entries) => {
            report_names(cx, area);
            debug_assert!(
                entries.iter().all(|entry| entry.at + 16 + entry.name.len() <= area.len()),
                "an entry leaves the inode"
            );
            found.count = entries.len();
            let is_found = entries.iter().all(|entry| is_readable(cx, area, entry));
            for entry in &entries {
                check_entry(cx, entry, facts);
                found.value_blocks += value_blocks(cx, entry);
                found.values += u64::from(entry.value_inode != 0);
                if is_context(entry) && is_found {
                    found.context = Some(entry.value.to_vec());
                }
                if is_inline_data(entry) && is_found {
                    found.inline_tail = Some(entry.value.to_vec());
                    found.count -= 1;
                }
            }
        }
        Err(defect) => {
            let (code, at) = in_inode_code(area, defect);
            let site = cx.site().at_offset(at);
            cx.sink.add(code, site, defect.to_string());
        }
    }
    if (found.inline_tail.is_some() || found.context.is_some()) && block_hides(cx, slot.raw()) {
        (found.inline_tail, found.context) = (None, None);
    }
    found
}

/// Whether an entry of the attribute block makes e2fsck find no attribute of the inode at all, not
/// even those kept in the inode. An entry with a value inode does so if the feature `ea_inode` is
/// off, or if the entry's value offset is not 0.
fn block_hides(cx: &Examination<'_, '_, '_>, raw: &RawInode) -> bool {
    let volume = cx.scan.volume;
    let block = Some(volume.file_acl(raw)).filter(|block| *block != BlockNr::ZERO);
    let bytes = block.filter(|block| volume.contains(*block)).and_then(|block| volume.block(block).ok());
    let Some(bytes) = bytes else { return false };
    let entries = xattr::parse_entries(&bytes, Home::Block).unwrap_or_default();
    let has_values = volume.incompat.contains(Incompat::EA_INODE);
    entries.iter().any(|entry| entry.value_inode != 0 && (!has_values || stored_offset(&bytes, entry) != 0))
}

/// Whether an entry is `system.data` and has no value inode. Like e2fsck, this ignores NULs at the
/// end of the name.
fn is_inline_data(entry: &RawEntry<'_>) -> bool {
    (entry.name_index, trimmed(entry.name)) == (XATTR_INDEX, XATTR_NAME) && entry.value_inode == 0
}

/// A name without NULs at its end.
fn trimmed(name: &[u8]) -> &[u8] {
    &name[..name.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1)]
}

fn is_context(entry: &RawEntry<'_>) -> bool {
    !PREFIXES.contains(&entry.name_index) && trimmed(entry.name) == CONTEXT && entry.value_inode == 0
}

/// The encryption policy of an inode, from the context attribute. The attribute is in the inode or
/// in the attribute block.
pub(super) fn policy(cx: &mut Examination<'_, '_, '_>, raw: &RawInode, in_inode: &InInode) -> Policy {
    let volume = cx.scan.volume;
    let context = in_inode.context.clone().or_else(|| {
        let block = Some(volume.file_acl(raw)).filter(|block| volume.contains(*block))?;
        let bytes = volume.block(block).ok().filter(|_| !block_hides(cx, raw))?;
        let entries = xattr::parse(&bytes, Home::Block).ok()?;
        entries.iter().find(|entry| is_context(entry)).map(|entry| entry.value.to_vec())
    });
    let Some(context) = context else {
        cx.add(Code::ENCRYPT_NO_ATTRIBUTE, "");
        return Policy::Unusable;
    };
    Policy::of(&context).unwrap_or_else(|| {
        cx.add(Code::ENCRYPT_CONTEXT, format!("{} bytes", context.len()));
        Policy::Unusable
    })
}

/// Whether e2fsck can read an attribute. If it cannot read one, it finds no attribute of the inode.
/// The offset of a value must be inside the area, even if the value is empty. If the value is in a
/// value inode, the offset must be 0, and the feature `ea_inode` must be on.
fn is_readable(cx: &Examination<'_, '_, '_>, area: &[u8], entry: &RawEntry<'_>) -> bool {
    let stored = stored_offset(area, entry);
    if entry.value_inode == 0 {
        return xattr::INODE_HEADER_LEN + stored <= area.len();
    }
    stored == 0 && cx.scan.volume.incompat.contains(Incompat::EA_INODE)
}

/// The field `e_value_offs` of an entry.
pub(crate) fn stored_offset(area: &[u8], entry: &RawEntry<'_>) -> usize {
    usize::from(u16::from_le_bytes([area[entry.at + 2], area[entry.at + 3]]))
}

/// Reports the first fault of a name, if it is one that [`xattr::parse`] rejects but e2fsck
/// accepts.
fn report_names(cx: &mut Examination<'_, '_, '_>, area: &[u8]) {
    let (code, at) = match xattr::parse(area, Home::Inode) {
        Err(XattrDefect::Name { at }) => (Code::XATTR_NAME_NUL, at),
        Err(XattrDefect::Duplicate { at }) => (Code::XATTR_DUPLICATE, at),
        _ => return,
    };
    let site = cx.site().at_offset(at);
    cx.sink.add(code, site, "");
}

fn in_inode_code(area: &[u8], defect: XattrDefect) -> (Code, usize) {
    let size_wrong = |at: usize| {
        let stored =
            area.get(at + 8..at + 12).map_or(0, |raw| u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]));
        blockyard_disk::num::usize_from_u32(stored) > area.len()
    };
    match defect {
        XattrDefect::Value { at } if size_wrong(at) => (Code::INODE_XATTR_SIZE, at),
        XattrDefect::Value { at } => (Code::INODE_XATTR_OFFSET, at),
        XattrDefect::Overlap { at } | XattrDefect::Duplicate { at } | XattrDefect::Order { at } => {
            (Code::INODE_XATTR_OVERLAP, at)
        }
        XattrDefect::Entry { at } | XattrDefect::Name { at } => (Code::INODE_XATTR_NAME, at),
        XattrDefect::Magic | XattrDefect::Blocks | XattrDefect::Refcount => (Code::INODE_XATTR_NAME, 0),
    }
}

/// Blocks that an entry's value inode adds to `i_blocks` of the inode that has the attribute: the
/// size of the value, rounded up to whole clusters. 0 without a value inode.
fn value_blocks(cx: &Examination<'_, '_, '_>, entry: &RawEntry<'_>) -> u64 {
    if entry.value_inode == 0 {
        return 0;
    }
    let geometry = &cx.scan.volume.geometry;
    let cluster_bits = geometry.block_bits() + geometry.cluster_ratio_bits();
    u64_from_u32(entry.value_size).div_ceil(1 << cluster_bits) << geometry.cluster_ratio_bits()
}

/// Records the value inode of an entry. If the entry has no value inode, checks the entry's hash.
fn check_entry(cx: &mut Examination<'_, '_, '_>, entry: &RawEntry<'_>, facts: &mut GroupFacts) {
    if entry.value_inode != 0 {
        facts.values.push(ValueRef {
            value_inode: entry.value_inode,
            owner: cx.inode,
            size: entry.value_size,
            entry_hash: entry.hash,
            name: entry.name.to_vec(),
            in_block: None,
        });
    } else if entry.hash != 0 && !hash_matches(entry) {
        let site = cx.site().at_offset(entry.at);
        cx.sink.add(Code::XATTR_HASH, site, format!("{:#010x}", entry.hash));
    }
}

/// Whether the hash of an entry is right, with signed or with unsigned characters in the name. The
/// entry must not have a value inode. Like e2fsck, this hashes the value's padding as it is, zero
/// or not.
pub(crate) fn hash_matches(entry: &RawEntry<'_>) -> bool {
    [xattr::entry_hash, xattr::entry_hash_signed]
        .into_iter()
        .any(|hash| entry.hash == hash(entry.name, entry.padded_value))
}

/// Checks `i_file_acl` and records the reference. Returns how many blocks the attribute block and
/// the values in its value inodes add to `i_blocks`.
pub(super) fn check_block_field(
    cx: &mut Examination<'_, '_, '_>,
    raw: &RawInode,
    facts: &mut GroupFacts,
) -> u64 {
    let volume = cx.scan.volume;
    let block = volume.file_acl(raw);
    if block == BlockNr::ZERO || !volume.compat.contains(Compat::EXT_ATTR) {
        return 0;
    }
    if !volume.contains(block) {
        // e2fsck does not check the block number in inodes that no directory may name.
        if is_hidden(volume, cx.inode) {
            return 0;
        }
        let site = cx.site().at_block(block);
        cx.sink.add(Code::XATTR_BLOCK_PLACE, site, "");
        return 0;
    }
    facts.xattr_blocks.push(XattrBlockRef { block, inode: cx.inode });
    let own = u64_from_u32(volume.geometry.cluster_ratio());
    if !volume.incompat.contains(Incompat::EA_INODE) {
        return own;
    }
    // The attribute block is checked elsewhere, once for all inodes that share it. Only the sizes
    // of its values matter for `i_blocks`. As in e2fsck, values with faulty names count, too.
    let bytes = volume.block(block).unwrap_or_default();
    let entries = xattr::parse_entries(&bytes, Home::Block).unwrap_or_default();
    own + entries.iter().map(|entry| value_blocks(cx, entry)).sum::<u64>()
}
