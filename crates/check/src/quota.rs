//! After the passes: compares the quota files with the usage that was counted.
//!
//! As observed, e2fsck compares every record in the file's tree, even if the path to it is not the
//! one for its id. Each user, group or project that uses anything must have a record. e2fsck does
//! not look at the magic number, the grace times, or the headers of record blocks.

use std::collections::BTreeMap;

use blockyard_disk::inode::{FileType, InodeFlags, InodeSlot};
use blockyard_disk::quota::{QuotaFile, QuotaType, Usage};
use blockyard_disk::{InodeNr, RoCompat};

use crate::code::Code;
use crate::facts::Facts;
use crate::finding::{Ledger, Sink, Site};
use crate::inode::Scan;
use crate::superblock::quota::{content, quota_inodes};
use crate::volume::Volume;

/// Compares each quota file with what was counted.
pub(crate) fn check(scan: &Scan<'_, '_>, facts: &Facts, ledger: &mut Ledger) {
    let mut sink = Sink::default();
    let files = files(scan);
    let usages = if files.is_empty() { Default::default() } else { facts.usages() };
    for (kind, inode) in files {
        let counted = &usages[index_of(kind)];
        let Some(file) = read(scan.volume, inode) else {
            let detail = format!("{}: no regular file", kind.text());
            sink.add(Code::QUOTA_USAGE, Site::inode(inode), detail);
            continue;
        };
        if let Some(detail) = difference(&file, counted) {
            sink.add(Code::QUOTA_USAGE, Site::inode(inode), format!("{}: {detail}", kind.text()));
        } else if file.header.dqh_magic.get() != kind.magic() {
            let detail = format!("{:#010x}", file.header.dqh_magic.get());
            sink.add(Code::QUOTA_MAGIC, Site::inode(inode), detail);
        }
    }
    ledger.absorb(sink);
}

/// The quota files that the superblock names, with their types. None without the feature `quota`.
pub(crate) fn files(scan: &Scan<'_, '_>) -> Vec<(QuotaType, InodeNr)> {
    let volume = scan.volume;
    if !volume.ro_compat.contains(RoCompat::QUOTA) {
        return Vec::new();
    }
    let numbers = quota_inodes(&volume.sb).map(InodeNr::new);
    let possible = |inode: &InodeNr| (1..=volume.geometry.inodes_count()).contains(&inode.raw());
    QuotaType::ALL.into_iter().zip(numbers).filter(|(_, inode)| possible(inode)).collect()
}

/// The index of a type among all types.
pub(crate) fn index_of(kind: QuotaType) -> usize {
    match kind {
        QuotaType::User => 0,
        QuotaType::Group => 1,
        QuotaType::Project => 2,
    }
}

/// Reads a quota file; `None` when its inode cannot be read, is not a regular file, or has
/// inline data.
pub(crate) fn read(volume: &Volume<'_>, inode: InodeNr) -> Option<QuotaFile> {
    let slot = InodeSlot::new(volume.inode(inode).ok()?);
    let is_regular = slot.raw().file_type() == Some(FileType::Regular);
    if !is_regular || slot.raw().flags().contains(InodeFlags::INLINE_DATA) {
        return None;
    }
    Some(content(volume, inode, &slot))
}

/// How a file differs from what was counted; `None` when it does not.
fn difference(file: &QuotaFile, counted: &BTreeMap<u32, Usage>) -> Option<String> {
    if let Some(defect) = file.defect {
        return Some(defect.to_string());
    }
    let stored: BTreeMap<u32, Usage> =
        file.records.iter().map(|record| (record.dqb_id.get(), record.usage())).collect();
    let wrong = file.records.iter().map(|record| (record.dqb_id.get(), record.usage()));
    let wrong = wrong.filter(|(number, usage)| *usage != counted.get(number).copied().unwrap_or_default());
    let missing = counted.iter().filter(|(number, _)| !stored.contains_key(number));
    let mut all = wrong.chain(missing.map(|(number, _)| (*number, Usage::default())));
    let (number, said) = all.next()?;
    let found = counted.get(&number).copied().unwrap_or_default();
    debug_assert!(said != found || !stored.contains_key(&number), "{number} does not differ");
    let more = all.count();
    let rest = if more == 0 { String::new() } else { format!("; {more} more differ") };
    Some(format!(
        "{number} has {} bytes and {} inodes, counted {} and {}{rest}",
        said.bytes, said.inodes, found.bytes, found.inodes
    ))
}
