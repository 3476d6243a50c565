//! Rewrites quota files with the usage that was counted; limits stay.
//!
//! The new content goes to fresh blocks, so that a power cut leaves the old file. It overwrites the
//! old content only when there is no space.

use blockyard_device::DeviceError;
use blockyard_disk::inode::{FileType, InodeFlags};
use blockyard_disk::num::{u64_from_u32, u64_from_usize};
use blockyard_disk::quota::{QuotaFile, QuotaType};
use blockyard_disk::{BlockNr, Incompat, InodeNr, RoCompat};
use zerocopy::FromZeros;
use zerocopy::little_endian::U16;

use super::editor::{Editor, Slot};
use super::log::{Cost, Tried};
use super::maps;
use crate::code::Code;
use crate::facts::Facts;
use crate::finding::{Finding, Site};
use crate::map::Run;
use crate::quota::{files, index_of, read};

/// Times that a quota file is written before it is left as it is.
const TRIES_MAX: u32 = 2;

/// Whether a finding is about what a quota file says.
pub(super) fn is_about_quota(code: Code) -> bool {
    matches!(code, Code::QUOTA_USAGE | Code::QUOTA_MAGIC)
}

/// Writes the quota files that findings name; returns whether one was written.
pub(super) fn repair(
    ed: &mut Editor<'_, '_>,
    facts: &Facts,
    findings: &[Finding],
) -> Result<bool, DeviceError> {
    let usages = facts.usages();
    let mut written = false;
    for (kind, inode) in files(ed.scan) {
        let Some(finding) = findings.iter().find(|finding| finding.site.inode == Some(inode)) else {
            continue;
        };
        if ed.log.try_again(Tried::Quota, inode) >= TRIES_MAX {
            continue;
        }
        let unknown = QuotaFile { header: FromZeros::new_zeroed(), records: Vec::new(), defect: None };
        let old = read(ed.volume(), inode).unwrap_or(unknown);
        let records = old.corrected(&usages[index_of(kind)]);
        let content = old.encode(kind, &records);
        let fits = put_content(ed, inode, &content)?;
        let what = told(kind, records.len(), fits);
        ed.add(finding.code, Site::inode(inode), Cost::Nothing, what);
        written |= fits;
    }
    Ok(written)
}

fn told(kind: QuotaType, records: usize, fits: bool) -> String {
    if fits {
        format!("{} quota file rewritten with {records} records", kind.text())
    } else {
        format!("no space for a {} quota file", kind.text())
    }
}

/// Writes the content of a quota file. Returns false if there is no space for it.
fn put_content(ed: &mut Editor<'_, '_>, inode: InodeNr, content: &[u8]) -> Result<bool, DeviceError> {
    let mut slot = ed.slot(inode)?;
    let block_size = u64_from_usize(ed.volume().block_size());
    let count = u64_from_usize(content.len()).div_ceil(block_size);
    let runs = match fresh_runs(ed, count) {
        Some(runs) => runs,
        None => match old_runs(ed, inode, &slot, count) {
            Some(runs) => runs,
            None => return Ok(false),
        },
    };
    assert_eq!(runs.iter().map(|run| run.length).sum::<u64>(), count, "blocks for the whole content");
    let places = runs.iter().flat_map(|run| run.physical..run.physical + run.length);
    let mut block = vec![0; ed.volume().block_size()];
    for (bytes, place) in content.chunks(ed.volume().block_size()).zip(places) {
        block.fill(0);
        block[..bytes.len()].copy_from_slice(bytes);
        ed.put_block(BlockNr::new(place), &block)?;
    }
    make_file(ed, &mut slot, u64_from_usize(content.len()), &runs);
    if maps::write(ed, inode, &mut slot, &runs)?.is_err() {
        return Ok(false);
    }
    ed.put_slot(inode, &mut slot)?;
    Ok(true)
}

/// Sets the fields of a quota file as mke2fs does. The blocks of the map itself are not counted in
/// `i_blocks`. If there are any, the next round corrects `i_blocks`.
fn make_file(ed: &Editor<'_, '_>, slot: &mut Slot, size: u64, runs: &[Run]) {
    let volume = ed.volume();
    let extents = volume.incompat.contains(Incompat::EXTENTS);
    let ratio = u64_from_u32(volume.geometry.cluster_ratio());
    let blocks: u64 = runs.iter().map(|run| run.length.next_multiple_of(ratio)).sum();
    let huge =
        volume.ro_compat.contains(RoCompat::HUGE_FILE) && slot.raw().flags().contains(InodeFlags::HUGE_FILE);
    let raw = slot.raw_mut();
    raw.i_mode = U16::new(FileType::Regular.mode_bits() | 0o600);
    raw.i_links_count = U16::new(1);
    let mut flags = raw.flags() | InodeFlags::IMMUTABLE;
    flags.remove(InodeFlags::INLINE_DATA);
    flags.set(InodeFlags::EXTENTS, extents);
    raw.set_flags(flags);
    raw.set_size(size);
    raw.set_blocks_field(blocks << if huge { 0 } else { volume.geometry.block_bits() - 9 });
}

/// Allocates blocks, and joins adjacent ones into runs; `None` when there are too few.
fn fresh_runs(ed: &mut Editor<'_, '_>, count: u64) -> Option<Vec<Run>> {
    let ratio = u64_from_u32(ed.volume().geometry.cluster_ratio());
    let mut runs: Vec<Run> = Vec::new();
    let mut logical = 0;
    while logical < count {
        let physical = ed.allocate()?.raw();
        let length = ratio.min(count - logical);
        match runs.last_mut().filter(|run| run.physical + run.length == physical) {
            Some(run) => run.length += length,
            None => runs.push(Run { logical, physical, length, unwritten: false }),
        }
        logical += length;
    }
    debug_assert!(runs.is_sorted_by(|a, b| a.logical < b.logical), "runs out of order");
    Some(runs)
}

/// The first `count` blocks of the file. `None` if the map is damaged, or if one of these blocks is
/// unwritten or a hole.
fn old_runs(ed: &Editor<'_, '_>, inode: InodeNr, slot: &Slot, count: u64) -> Option<Vec<Run>> {
    let map = maps::read(ed, inode, slot.raw());
    let mut runs = Vec::new();
    let mut next = 0;
    for mut run in map.runs {
        if next == count {
            break;
        }
        if run.logical != next || run.unwritten {
            return None;
        }
        run.length = run.length.min(count - next);
        next += run.length;
        runs.push(run);
    }
    Some(runs).filter(|_| next == count && !map.damaged)
}
