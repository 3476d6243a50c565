//! Aligns the maps of bigalloc files. Each logical cluster of a file must lie in one cluster of the
//! device, and a block must have the same offset in both.

use blockyard_device::DeviceError;
use blockyard_disk::BlockNr;
use blockyard_disk::num::u64_from_u32;

use super::editor::Editor;
use super::maps::blocks_of;
use super::wish::Shared;
use crate::map::Run;

/// A map whose runs are aligned.
pub(super) struct Aligned {
    /// All runs, by ascending logical block.
    pub(super) runs: Vec<Run>,
    /// Logical blocks that were copied to where they must be.
    pub(super) copied: Vec<u64>,
    /// Logical blocks that are no longer mapped.
    pub(super) dropped: Vec<u64>,
}

/// Copies misaligned blocks to where they must be. If a block would go into a cluster that is
/// claimed twice, its whole logical cluster is copied to a new cluster instead, because the cluster
/// that is claimed twice may hold blocks of another file or of another part of this file.
///
/// A block that needs a new cluster is dropped if there is no space, or if the user wants no
/// copies. A block that would have to be outside of the file system is dropped, too.
pub(super) fn align(ed: &mut Editor<'_, '_>, runs: &[Run]) -> Result<Aligned, DeviceError> {
    debug_assert!(runs.is_sorted_by_key(|run| run.logical), "runs out of order");
    let mut aligned = Aligned { runs: Vec::new(), copied: Vec::new(), dropped: Vec::new() };
    // The target of one copy may be the source of another. So all blocks are read before any is
    // written.
    let mut copies: Vec<(BlockNr, Vec<u8>)> = Vec::new();
    for run in runs {
        if stays(ed, run, &aligned.runs) {
            push(&mut aligned.runs, *run);
            continue;
        }
        for block in blocks_of(run) {
            if stays(ed, &block, &aligned.runs) {
                push(&mut aligned.runs, block);
                continue;
            }
            let Some((first, mut moved)) = place_for(ed, &block, &mut aligned.runs) else {
                aligned.dropped.push(block.logical);
                continue;
            };
            moved.push(block);
            for block in moved.iter().flat_map(blocks_of) {
                let place = BlockNr::new(first + block.logical % ratio(ed));
                let bytes = ed.volume().block(BlockNr::new(block.physical));
                copies.push((place, bytes.unwrap_or_else(|_| vec![0; ed.volume().block_size()])));
                aligned.copied.push(block.logical);
                push(&mut aligned.runs, Run { physical: place.raw(), ..block });
            }
        }
    }
    for (place, bytes) in &copies {
        ed.put_block(*place, bytes)?;
    }
    Ok(aligned)
}

/// Whether a run is already where it must be, given the aligned runs before it, `done`.
fn stays(ed: &Editor<'_, '_>, run: &Run, done: &[Run]) -> bool {
    match begun(ed, run, done) {
        Some(place) => place == run.physical,
        None => offset(ed, run.physical) == run.logical % ratio(ed),
    }
}

/// The first block of the cluster that a block must be in, and the earlier runs of the logical
/// cluster that must be copied there, too. These runs are removed from `done`. `None` if the block
/// must be dropped.
fn place_for(ed: &mut Editor<'_, '_>, block: &Run, done: &mut Vec<Run>) -> Option<(u64, Vec<Run>)> {
    let Some(place) = begun(ed, block, done) else {
        return place_of_copy(ed).map(|first| (first.raw(), Vec::new()));
    };
    let place = Some(BlockNr::new(place)).filter(|place| ed.volume().contains(*place))?;
    let cluster = ed.scan.map.cluster(place);
    if ed.scan.map.shared_in(cluster, 1) == 0 {
        return Some((place.raw() - block.logical % ratio(ed), Vec::new()));
    }
    // Nothing is copied into a shared cluster. So the runs of `done` that lie in it have not been
    // moved, and their blocks can be read there.
    let first = place_of_copy(ed)?;
    let start = block.logical - block.logical % ratio(ed);
    Some((first.raw(), take_from(done, start)))
}

/// Splits `runs` at logical block `start`. Removes and returns the part from there on.
fn take_from(runs: &mut Vec<Run>, start: u64) -> Vec<Run> {
    let mut taken = runs.split_off(runs.partition_point(|run| run.logical + run.length <= start));
    if let Some(run) = taken.first_mut().filter(|run| run.logical < start) {
        let before = start - run.logical;
        runs.push(Run { length: before, ..*run });
        *run = Run { logical: start, physical: run.physical + before, length: run.length - before, ..*run };
    }
    debug_assert!(taken.iter().all(|run| run.logical >= start), "runs before block {start}");
    taken
}

/// The offset of a block of the device in its cluster.
fn offset(ed: &Editor<'_, '_>, physical: u64) -> u64 {
    (physical - ed.volume().geometry.first_data_block().raw()) % ratio(ed)
}

fn ratio(ed: &Editor<'_, '_>) -> u64 {
    u64_from_u32(ed.volume().geometry.cluster_ratio())
}

/// Where a run must begin on the device if its first logical cluster has a place already, because
/// the run before ends in that logical cluster. Otherwise `None`.
pub(super) fn begun(ed: &Editor<'_, '_>, run: &Run, done: &[Run]) -> Option<u64> {
    let ratio = u64_from_u32(ed.volume().geometry.cluster_ratio());
    let last = done.last().filter(|_| ratio > 1)?;
    let end = last.logical + last.length - 1;
    (end / ratio == run.logical / ratio)
        .then(|| last.physical + last.length - 1 - end % ratio + run.logical % ratio)
}

/// Allocates a place for a copy. `None` if the user wants no copies, or if there is no space.
pub(super) fn place_of_copy(ed: &mut Editor<'_, '_>) -> Option<BlockNr> {
    if ed.log.shared == Shared::Clone { ed.allocate() } else { None }
}

pub(super) fn push(runs: &mut Vec<Run>, block: Run) {
    match runs.last_mut() {
        Some(last)
            if last.logical + last.length == block.logical
                && last.physical + last.length == block.physical
                && last.unwritten == block.unwritten =>
        {
            last.length += block.length;
        }
        _ => runs.push(block),
    }
}
