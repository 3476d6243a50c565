//! After the passes: quota files must say what is used.
//!
//! As observed, e2fsck compares every record in the tree, whatever path leads to it. Each user,
//! group or project that uses anything must have a record. e2fsck does not look at the magic
//! number, the grace times, or the headers of record blocks.

use std::collections::BTreeMap;

use blockyard_disk::inode::{FileType, InodeFlags, InodeSlot, RawInode};
use blockyard_disk::num::{u64_from_u32, u64_from_usize};
use blockyard_disk::quota::{BLOCK, QuotaFile, QuotaType, Usage};
use blockyard_disk::{InodeNr, RoCompat};

use crate::code::Code;
use crate::facts::Facts;
use crate::finding::{Ledger, Sink, Site};
use crate::inode::Scan;
use crate::map::{Budget, NoClaims, Run, Walk, walk_extents, walk_indirect};
use crate::superblock::quota_inodes;

/// Compares each quota file with what was counted.
pub(crate) fn check(scan: &Scan<'_, '_>, facts: &Facts, ledger: &mut Ledger) {
    let mut sink = Sink::default();
    let files = files(scan);
    let usages = if files.is_empty() { Default::default() } else { facts.usages() };
    for (kind, inode) in files {
        let counted = &usages[index_of(kind)];
        let Some(file) = read(scan, inode) else {
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

/// The quota files that the superblock names, with their types; none without the feature.
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

/// Reads a quota file; `None` when its inode cannot be read, or is not a regular file with a map.
pub(crate) fn read(scan: &Scan<'_, '_>, inode: InodeNr) -> Option<QuotaFile> {
    let volume = scan.volume;
    let slot = InodeSlot::new(volume.inode(inode).ok()?);
    let raw = slot.raw();
    if raw.file_type() != Some(FileType::Regular) || raw.flags().contains(InodeFlags::INLINE_DATA) {
        return None;
    }
    let runs = runs_of(scan, inode, raw);
    let bits = volume.geometry.block_bits();
    let read = &mut |number: u32| {
        let at = u64_from_u32(number) * u64_from_usize(BLOCK);
        let mut block = [0; BLOCK];
        let after = runs.partition_point(|run| run.logical <= at >> bits);
        let run = after.checked_sub(1).map(|nth| &runs[nth]);
        let run = run.filter(|run| !run.unwritten && at >> bits < run.logical + run.length);
        if let Some(run) = run {
            let place = ((run.physical + (at >> bits) - run.logical) << bits) + at % (1 << bits);
            volume.device.read_at(place, &mut block).ok()?;
        }
        Some(block)
    };
    Some(QuotaFile::read(raw.size(), read))
}

fn runs_of(scan: &Scan<'_, '_>, inode: InodeNr, raw: &RawInode) -> Vec<Run> {
    let seed = scan.volume.checksums.inode_seed(inode, raw.i_generation.get());
    let (mut sink, mut claims, mut budget) = (Sink::default(), NoClaims, Budget::of(scan.volume));
    let mut walk = Walk::new(scan.volume, scan.system, inode, seed, &mut sink, &mut claims, &mut budget);
    walk.keep_runs = true;
    if raw.flags().contains(InodeFlags::EXTENTS) {
        walk_extents(&mut walk, &raw.i_block);
    } else {
        walk_indirect(&mut walk, &raw.block_words());
    }
    walk.runs
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
