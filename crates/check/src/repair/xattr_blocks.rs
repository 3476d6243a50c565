//! Repairs attribute blocks, and attribute values in inodes of their own.

use blockyard_device::DeviceError;
use blockyard_disk::inode::{InodeFlags, RawInode};
use blockyard_disk::num::{high32, low32, u32_from_usize, u64_from_u32, u64_from_usize};
use blockyard_disk::xattr::{self, AttributeList, Home, VALUE_LEN_MAX};
use blockyard_disk::{BlockNr, InodeNr};
use zerocopy::little_endian::U32;

use super::attributes;
use super::editor::Editor;
use super::log::Cost;
use crate::code::Code;
use crate::facts::XattrBlockRef;
use crate::finding::{Finding, Site};
use crate::inode::hash_matches;
use crate::volume::Volume;

/// Repairs what the walk over the attribute blocks and values found.
pub(crate) fn repair(
    ed: &mut Editor<'_, '_>,
    references: &[XattrBlockRef],
    findings: &[Finding],
) -> Result<(), DeviceError> {
    for finding in findings {
        match (finding.site.inode, finding.site.block) {
            (Some(_), Some(block)) => mend_block(ed, references, block, finding)?,
            (Some(inode), None) => mend_value(ed, references, inode, finding)?,
            _ => {}
        }
    }
    Ok(())
}

fn users_of(references: &[XattrBlockRef], block: BlockNr) -> &[XattrBlockRef] {
    let from = references.partition_point(|reference| reference.block < block);
    let end = references.partition_point(|reference| reference.block <= block);
    &references[from..end]
}

/// If `code` says that the inode lacks an attribute, corrects the entries of its attribute block:
/// one of them may be that attribute. Returns whether the block was rewritten.
pub(super) fn uncover(
    ed: &mut Editor<'_, '_>,
    inode: InodeNr,
    raw: &RawInode,
    code: Code,
) -> Result<bool, DeviceError> {
    let block = ed.volume().file_acl(raw);
    let is_about_it = matches!(code, Code::INLINE_NO_ATTRIBUTE | Code::ENCRYPT_NO_ATTRIBUTE);
    if !is_about_it || block == BlockNr::ZERO || !ed.volume().contains(block) {
        return Ok(false);
    }
    let before = ed.volume().block(block)?;
    let mut bytes = before.clone();
    restore_values(ed, &mut bytes)?;
    if bytes == before || !xattr::has_magic(&bytes) {
        return Ok(false);
    }
    ed.volume().checksums.seal_xattr_block(block, &mut bytes);
    ed.put_block(block, &bytes)?;
    let site = Site::inode(inode).at_block(block);
    ed.add(code, site, Cost::Nothing, "entries of the attribute block corrected");
    Ok(true)
}

fn mend_block(
    ed: &mut Editor<'_, '_>,
    references: &[XattrBlockRef],
    block: BlockNr,
    finding: &Finding,
) -> Result<(), DeviceError> {
    let users = users_of(references, block);
    let mut bytes = ed.volume().block(block).unwrap_or_default();
    restore_values(ed, &mut bytes)?;
    let list =
        if bytes.is_empty() { AttributeList::default() } else { attributes::salvage(&bytes, Home::Block) };
    let mut new = vec![0; ed.volume().block_size()];
    // If only the checksum or the reference count is wrong, entries that `salvage` leaves out stay,
    // too.
    let count_only = matches!(finding.code, Code::XATTR_REFCOUNT | Code::XATTR_CHECKSUM);
    if list.is_empty() || !list.write_block(&mut new, u32_from_usize(users.len())) {
        let lost = attributes::lost(&bytes, Home::Block, &AttributeList::default());
        for user in users {
            let mut slot = ed.slot(user.inode)?;
            slot.raw_mut().set_file_acl(BlockNr::ZERO);
            ed.put_slot(user.inode, &mut slot)?;
            let site = Site::inode(user.inode).at_block(block);
            let what = format!("reference to the attribute block removed{lost}");
            ed.add(finding.code, site, Cost::Cut, what);
        }
        return Ok(());
    }
    if count_only {
        new.copy_from_slice(&bytes);
        new[4..8].copy_from_slice(&u32_from_usize(users.len()).to_le_bytes());
    }
    ed.volume().checksums.seal_xattr_block(block, &mut new);
    ed.put_block(block, &new)?;
    let lost = if count_only { String::new() } else { attributes::lost(&bytes, Home::Block, &list) };
    let cost = match (count_only, lost.is_empty()) {
        (true, _) => Cost::Nothing,
        (false, true) => Cost::Doubtful,
        (false, false) => Cost::Cut,
    };
    let what = format!("{} sound attributes kept{lost}", list.iter().len());
    ed.add(finding.code, finding.site, cost, what);
    Ok(())
}

/// Repairs entries that name a value inode. An entry that also has an offset is wrong: if its hash
/// matches the bytes at the offset, the inode number is cleared, and otherwise the offset. An
/// impossible size is replaced by the inode's size, if the inode is flagged as a value inode.
fn restore_values(ed: &Editor<'_, '_>, block: &mut [u8]) -> Result<(), DeviceError> {
    let volume = ed.volume();
    let mut at = Home::Block.entries_at();
    while let Some(entry) = block.get(at..).and_then(|rest| rest.get(..16)) {
        let word = |from: usize| {
            u32::from_le_bytes([entry[from], entry[from + 1], entry[from + 2], entry[from + 3]])
        };
        let (value, size) = (word(4), word(8));
        if word(0) == 0 {
            break;
        }
        let (offset, next) = ([entry[2], entry[3]], at + 16 + usize::from(entry[0]).next_multiple_of(4));
        if value != 0 && offset != [0; 2] {
            if is_value_beside(block, at) {
                block[at + 4..at + 8].fill(0);
            } else {
                block[at + 2..at + 4].fill(0);
            }
        } else if (1..=volume.geometry.inodes_count()).contains(&value) && size > VALUE_LEN_MAX {
            let slot = ed.slot(InodeNr::new(value))?;
            let size = Some(slot.raw().size()).filter(|&size| size <= u64_from_u32(VALUE_LEN_MAX));
            if let Some(size) = size.filter(|_| slot.raw().flags().contains(InodeFlags::EA_INODE)) {
                block[at + 8..at + 12].copy_from_slice(&low32(size).to_le_bytes());
            }
        }
        at = next;
    }
    Ok(())
}

/// Whether the hash of the entry at `at` says that the value is in the block, not in an inode.
fn is_value_beside(block: &[u8], at: usize) -> bool {
    let mut trial = block.to_vec();
    trial[at + 4..at + 8].fill(0);
    let entries = xattr::parse_entries(&trial, Home::Block).unwrap_or_default();
    entries.iter().any(|entry| entry.at == at && hash_matches(entry))
}

/// Repairs the flag or the reference count of a value inode. Removes an entry whose inode holds no
/// value, or another value than the entry says.
fn mend_value(
    ed: &mut Editor<'_, '_>,
    references: &[XattrBlockRef],
    inode: InodeNr,
    finding: &Finding,
) -> Result<(), DeviceError> {
    match finding.code {
        Code::EA_REFCOUNT => {
            let counted = finding.detail.rsplit(' ').next().and_then(|text| text.parse::<u64>().ok());
            let Some(counted) = counted else { return Ok(()) };
            let mut slot = ed.slot(inode)?;
            slot.raw_mut().i_ctime = U32::new(high32(counted));
            slot.raw_mut().i_version = U32::new(low32(counted));
            ed.put_slot(inode, &mut slot)?;
            ed.add(finding.code, finding.site, Cost::Nothing, format!("reference count set to {counted}"));
        }
        Code::EA_INODE_UNFLAGGED => {
            let Some(value) = value_inode(finding) else { return Ok(()) };
            let mut slot = ed.slot(value)?;
            if slot.raw().file_type() != Some(blockyard_disk::inode::FileType::Regular) {
                return drop_values(ed, references, inode, value, finding);
            }
            let flags = slot.raw().flags() | InodeFlags::EA_INODE;
            slot.raw_mut().set_flags(flags);
            ed.put_slot(value, &mut slot)?;
            ed.add(finding.code, Site::inode(value), Cost::Nothing, "attribute-value flag set");
        }
        Code::EA_INODE_BAD | Code::XATTR_HASH => {
            let Some(value) = value_inode(finding) else { return Ok(()) };
            drop_values(ed, references, inode, value, finding)?;
        }
        _ => {}
    }
    Ok(())
}

/// The inode that a finding about a value names in its detail.
fn value_inode(finding: &Finding) -> Option<InodeNr> {
    let rest = finding.detail.strip_prefix("value inode ")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().map(InodeNr::new)
}

/// Removes the attributes of `owner`, in the inode and in its block, whose value is in the inode
/// `value`.
fn drop_values(
    ed: &mut Editor<'_, '_>,
    references: &[XattrBlockRef],
    owner: InodeNr,
    value: InodeNr,
    finding: &Finding,
) -> Result<(), DeviceError> {
    let mut slot = ed.slot(owner)?;
    let mut names = attributes::retain(&mut slot, |attribute| attribute.value.inode() != Some(value.raw()));
    ed.put_slot(owner, &mut slot)?;
    let block = ed.volume().file_acl(slot.raw());
    if block != BlockNr::ZERO && ed.volume().contains(block) {
        names.extend(drop_from_block(ed, block, value, users_of(references, block))?);
    }
    let names: Vec<String> = names.iter().map(|(index, name)| attributes::printable(*index, name)).collect();
    let what = format!("attribute with its value in inode {value} removed; lost: {}", names.join(", "));
    ed.add(finding.code, finding.site, Cost::Cut, what);
    Ok(())
}

/// Removes the entries of a block whose value is in the inode `value`; returns their names.
fn drop_from_block(
    ed: &Editor<'_, '_>,
    block: BlockNr,
    value: InodeNr,
    users: &[XattrBlockRef],
) -> Result<Vec<(u8, Vec<u8>)>, DeviceError> {
    let volume: &Volume<'_> = ed.volume();
    let bytes = volume.block(block)?;
    // `salvage` leaves out entries with other faults. Their names are lost, too, and must be
    // reported.
    let entries = xattr::parse_entries(&bytes, Home::Block).unwrap_or_default().into_iter();
    let gone: Vec<(u8, Vec<u8>)> = entries
        .filter(|entry| entry.value_inode == value.raw())
        .map(|entry| (entry.name_index, entry.name.to_vec()))
        .collect();
    if gone.is_empty() {
        return Ok(gone);
    }
    let mut list = attributes::salvage(&bytes, Home::Block);
    for (index, name) in &gone {
        list.remove(*index, name);
    }
    let mut new = vec![0; bytes.len()];
    let fits = list.write_block(&mut new, u32_from_usize(users.len().max(1)));
    assert!(fits, "{} bytes held more attributes", u64_from_usize(bytes.len()));
    volume.checksums.seal_xattr_block(block, &mut new);
    ed.put_block(block, &new)?;
    Ok(gone)
}
