//! What is lost in an image that was cut short, and then made as long as its file system again: the
//! content past the cut.

use std::collections::BTreeMap;
use std::ops::Range;

use blockyard_device::BlockDevice;
use blockyard_disk::InodeNr;
use blockyard_disk::inode::InodeSlot;

use super::log::{Action, Cost, Log};
use super::maps;
use crate::code::Code;
use crate::descriptors;
use crate::facts::Facts;
use crate::finding::{Ledger, Sink, Site};
use crate::inode::Scan;
use crate::map::Run;
use crate::superblock::{self, Opened};
use crate::volume::Volume;
use crate::{Error, directories, inodes, orphans, paths, with_metadata};

/// The byte ranges of content that each inode lost.
type Lost = BTreeMap<InodeNr, Vec<Range<u64>>>;

/// The actions for a device that was cut at `end`: one says that the device is made longer, and one
/// for each inode that lost content says how much of it lay behind `end`. Empty if no file system
/// can be examined. `fresh` are the blocks that the repair itself fills, in ascending order: they
/// do not count as lost.
pub(super) fn losses(device: &dyn BlockDevice, end: u64, fresh: &[u64]) -> Result<Vec<Action>, Error> {
    debug_assert!(end <= device.size() && fresh.is_sorted(), "cut at {end} of {}", device.size());
    let mut sink = Sink::default();
    let Opened::Volume(mut volume) = superblock::open(device, &mut sink)? else { return Ok(Vec::new()) };
    descriptors::load(&mut volume, &mut sink);
    if volume.groups.is_empty() || !superblock::check_values(&volume, &mut sink)? {
        return Ok(Vec::new());
    }
    let system = descriptors::system_ranges(&volume, &mut sink);
    let orphans = orphans::collect(&volume, &mut sink);
    let map = with_metadata(&volume, &system);
    let scan = Scan { volume: &volume, system: &system, map: &map, orphans: &orphans };
    let mut ledger = Ledger::default();
    let facts = inodes::gather(&scan, &mut ledger);
    let tree = directories::check(&volume, &facts, &mut ledger);
    let lost = lost(&volume, &facts, end, fresh)?;
    let (mut about, mut sink) = (Ledger::default(), Sink::default());
    for inode in lost.keys() {
        sink.add(Code::DEVICE_SHORT, Site::inode(*inode), "");
    }
    about.absorb(sink);
    paths::attach(&volume, &facts, &tree, &mut about);
    Ok(actions(device.size() - end, lost, &about))
}

fn actions(longer: u64, lost: Lost, about: &Ledger) -> Vec<Action> {
    let paths: BTreeMap<InodeNr, &Vec<u8>> =
        about.findings().filter_map(|finding| Some((finding.site.inode?, finding.path.as_ref()?))).collect();
    let mut log = Log::default();
    let what = format!("the image was cut short: it is made {longer} bytes longer");
    log.add(Code::DEVICE_SHORT, Site::NOWHERE, Cost::Nothing, what);
    for (inode, ranges) in lost {
        let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        let what = format!("{bytes} bytes lay behind the end of the cut image and are zeroes now");
        log.add(Code::DEVICE_SHORT, Site::inode(inode), Cost::Cut, what);
        log.set_ranges(ranges);
        let action = log.actions.last_mut().expect("just added");
        action.path = paths.get(&inode).map(|path| path.to_vec());
    }
    log.actions
}

/// What each file, directory and symbolic link lost behind the end.
fn lost(volume: &Volume<'_>, facts: &Facts, end: u64, fresh: &[u64]) -> Result<Lost, Error> {
    let geometry = &volume.geometry;
    let mut lost = Lost::new();
    for inode in facts.files(volume) {
        let bytes = volume.inode(inode)?;
        let slot = InodeSlot::new(&bytes[..]);
        if !maps::has_map(slot.raw()) {
            continue;
        }
        let runs = orphans::file_runs(volume, inode, &slot);
        let ranges: Vec<Range<u64>> = runs
            .iter()
            .filter(|run| !run.unwritten)
            .flat_map(|run| behind(run, (geometry.block_bits(), end), fresh))
            .map(|range| range.start..range.end.min(slot.raw().size()))
            .filter(|range| !range.is_empty())
            .collect();
        if !ranges.is_empty() {
            lost.insert(inode, ranges);
        }
    }
    Ok(lost)
}

/// The byte ranges of a file for which a run has blocks behind the cut, except for fresh blocks.
fn behind(run: &Run, (bits, end): (u32, u64), fresh: &[u64]) -> Vec<Range<u64>> {
    let last = run.physical + run.length;
    let first = run.physical.max(end >> bits).min(last);
    let inside = fresh.partition_point(|block| *block < first)..fresh.partition_point(|block| *block < last);
    let (mut pieces, mut at) = (Vec::new(), first);
    for block in fresh[inside].iter().chain([&last]) {
        let bytes = (at << bits).max(end)..block << bits;
        if bytes.start < bytes.end {
            let shift = |place: u64| place - (run.physical << bits) + (run.logical << bits);
            pieces.push(shift(bytes.start)..shift(bytes.end));
        }
        at = block + 1;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_loses_what_lies_behind_the_end_and_is_not_new() {
        let run = Run { logical: 100, physical: 10, length: 10, unwritten: false };
        let lost = |end, fresh: &[u64]| -> Vec<(u64, u64)> {
            behind(&run, (10, end), fresh).iter().map(|range| (range.start, range.end)).collect()
        };
        assert_eq!(lost(30 << 10, &[]), []);
        assert_eq!(lost(0, &[]), [(100 << 10, 110 << 10)]);
        // The cut may be inside a block.
        assert_eq!(lost((15 << 10) + 7, &[]), [((105 << 10) + 7, 110 << 10)]);
        assert_eq!(lost(15 << 10, &[3, 15, 17, 40]), [(106 << 10, 107 << 10), (108 << 10, 110 << 10)]);
        assert_eq!(lost(19 << 10, &[19]), []);
    }
}
