//! Pass 2: the walk over the directories. It follows the walk over the inode tables.
//!
//! Each directory is visited on its own. The visit reports what is wrong with its blocks, names and
//! index, counts references to inodes, and records for pass 3 which other directories it names.

mod block;
mod fetch;
mod index;
mod unscanned;

pub(crate) use block::ROOT_OF_AN_INDEX;
pub(crate) use index::NODES_BEHIND;
pub(crate) use unscanned::groups_named;

use blockyard_disk::dirblock::DirLayout;
use blockyard_disk::dirhash::{DirHasher, HashSeed, HashVersion};
use blockyard_disk::group_desc::GroupFlags;
use blockyard_disk::inline_data::InlineData;
use blockyard_disk::num::u64_from_usize;
use blockyard_disk::superblock::FsFlags;
use blockyard_disk::{BlockNr, InodeNr};

use crate::Part;
use crate::code::Code;
use crate::facts::{DirBody, DirFact, Facts, InlineBody};
use crate::finding::{Ledger, Sink, Site};
use crate::in_order::map_in_order;
use crate::map::Run;
use crate::volume::Volume;
use fetch::{Fetched, Window};

/// Units of directories ([`fetch::units`]) that are handed to the threads at a time.
const BATCH: usize = 128;

/// An entry of the directory `parent` names the directory `child`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChildRef {
    pub(crate) child: u32,
    pub(crate) parent: u32,
}

/// What the walk found out about the tree of directories.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// Every directory that was walked and the inode that its `..` names (0 when `..` is missing),
    /// ascending.
    pub(crate) directories: Vec<(u32, u32)>,
    /// One for each valid entry that names a directory, without `.` and `..`; ascending.
    pub(crate) children: Vec<ChildRef>,
    /// The inode that `lost+found` in the root names.
    pub(crate) lost_found: Option<u32>,
}

/// What the visit of one directory returns to the walk, besides findings.
#[derive(Debug, Default)]
struct Told {
    dotdot: u32,
    children: Vec<ChildRef>,
    lost_found: Option<u32>,
}

/// What is needed to visit one directory.
struct Visit<'a, 'v> {
    volume: &'a Volume<'v>,
    facts: &'a Facts,
    fact: &'a DirFact,
    layout: DirLayout,
    unsigned_hash: bool,
}

impl Visit<'_, '_> {
    fn site(&self) -> Site {
        Site::inode(self.fact.inode)
    }

    /// The hasher for a version byte of an index root; `None` for a hash that cannot be computed.
    fn hasher(&self, version: u8) -> Option<DirHasher> {
        let version = HashVersion::from_raw(version)?.with_unsigned_chars(self.unsigned_hash);
        Some(DirHasher::new(version, HashSeed::new(self.volume.sb.hash_seed())))
    }
}

/// Walks the directories that [`affordable`] returns.
pub(crate) fn check(volume: &Volume<'_>, facts: &Facts, ledger: &mut Ledger) -> Tree {
    let known: usize = facts.groups.iter().map(|group| group.directories.len()).sum();
    let mut tree = Tree {
        directories: Vec::with_capacity(known),
        children: Vec::with_capacity(known),
        ..Tree::default()
    };
    let affordable = affordable(volume, facts);
    // Directories that are left out do not count towards the progress.
    let count = u64_from_usize(affordable.len());
    volume.watch.tell(Part::Directories, 0, count);
    let visit = |fetched: &Fetched, fact: &DirFact| {
        let visited = visit(volume, facts, fetched, fact);
        volume.watch.tell(Part::Directories, 1, count);
        visited
    };
    let earlier = ledger.findings().count();
    let visit_unit = |unit: &&[&DirFact]| {
        let fetched = Fetched::read(volume, unit);
        unit.iter().map(|fact| visit(&fetched, fact)).collect::<Vec<(Told, Sink)>>()
    };
    for units in fetch::units(volume, &affordable).chunks(BATCH) {
        let done = map_in_order(units, visit_unit);
        for (fact, (told, sink)) in units.iter().copied().flatten().zip(done.into_iter().flatten()) {
            tree.directories.push((fact.inode.raw(), told.dotdot));
            tree.children.extend(told.children);
            tree.lost_found = tree.lost_found.or(told.lost_found);
            ledger.absorb(sink);
        }
    }
    ledger.sort_by_inode(earlier);
    tree.directories.sort_unstable();
    tree.children.sort_unstable();
    assert_eq!(tree.directories.len(), affordable.len(), "directories walked");
    let inodes = 1..=volume.geometry.inodes_count();
    debug_assert!(
        tree.children.iter().all(|name| inodes.contains(&name.child) && inodes.contains(&name.parent)),
        "a directory or its parent has an impossible number"
    );
    tree
}

/// The directories that are walked, in the order of their lowest blocks.
///
/// The walked directories together map at most twice as many blocks as the file system has, which
/// bounds the time. A directory that would exceed this is left out. Directories exceed it only if
/// they share blocks, which is reported elsewhere.
fn affordable<'f>(volume: &Volume<'_>, facts: &'f Facts) -> Vec<&'f DirFact> {
    let all = facts.groups.iter().flat_map(|group| &group.directories);
    let mut budget = volume.geometry.blocks_count().raw().saturating_mul(2);
    let is_affordable = |fact: &&DirFact| {
        let cost = mapped_blocks(fact);
        let affordable = cost <= budget;
        budget -= if affordable { cost } else { 0 };
        affordable
    };
    let mut affordable = Vec::with_capacity(all.clone().count());
    affordable.extend(all.filter(is_affordable));
    fetch::sort_by_place(&mut affordable);
    affordable
}

/// Blocks that a directory maps.
pub(crate) fn mapped_blocks(fact: &DirFact) -> u64 {
    match &fact.body {
        DirBody::Blocks { runs } => runs.iter().map(|run| run.length).fold(0, u64::saturating_add),
        DirBody::Inline(_) => 0,
    }
}

fn visit(volume: &Volume<'_>, facts: &Facts, fetched: &Fetched, fact: &DirFact) -> (Told, Sink) {
    let mut sink = Sink::default();
    let mut told = Told::default();
    let layout = DirLayout { inodes_count: u32::MAX, ..volume.dir_layout() };
    let unsigned_hash = volume.sb.flags().contains(FsFlags::UNSIGNED_HASH);
    let visit = Visit { volume, facts, fact, layout, unsigned_hash };
    match &fact.body {
        DirBody::Inline(inline) => visit_inline(&visit, inline, &mut told, &mut sink),
        DirBody::Blocks { runs } => {
            visit_blocks(&visit, Window::new(volume, fetched), runs, &mut told, &mut sink)
        }
    }
    (told, sink)
}

fn visit_inline(visit: &Visit<'_, '_>, inline: &InlineBody, told: &mut Told, sink: &mut Sink) {
    let data = InlineData { head: &inline.head, tail: &inline.tail };
    let geometry = &visit.volume.geometry;
    told.dotdot = data.parent();
    if told.dotdot == 0 {
        sink.add(Code::DOTDOT_MISSING, visit.site(), "");
    }
    visit.facts.refer(geometry, visit.fact.inode);
    refer_dotdot(visit, told.dotdot, visit.site().at_offset(0), sink);
    for (run, at) in data.dir_runs().into_iter().zip([4, 60]) {
        block::check_area(visit, run, visit.site().at_offset(at), told, sink);
    }
}

/// Counts the reference of `..`. Reports a parent whose part of the inode table was not scanned: it
/// may be in use.
fn refer_dotdot(visit: &Visit<'_, '_>, parent: u32, site: Site, sink: &mut Sink) {
    let geometry = &visit.volume.geometry;
    if !(1..=geometry.inodes_count()).contains(&parent) {
        return;
    }
    visit.facts.refer(geometry, InodeNr::new(parent));
    if let Some(code) = unread(visit, InodeNr::new(parent)) {
        sink.add(code, site, format!(".. -> {parent}"));
    }
}

/// The code for an entry that names an inode in a part of the table that was never used, according
/// to the group's descriptor. `None` if the inode is in use, or in another part of the table.
fn unread(visit: &Visit<'_, '_>, inode: InodeNr) -> Option<Code> {
    let geometry = &visit.volume.geometry;
    if visit.facts.kind(geometry, inode).is_used() {
        return None;
    }
    let (group, index) = geometry.locate_inode(inode);
    let group = visit.volume.group_of(group);
    if group.flags.contains(GroupFlags::INODE_UNINIT) {
        Some(Code::UNINIT_INODE)
    } else {
        (index >= group.inodes_used).then_some(Code::UNUSED_AREA_INODE)
    }
}

/// The physical block of a logical one; `None` in a hole.
fn physical(runs: &[Run], logical: u64) -> Option<BlockNr> {
    let after = runs.partition_point(|run| run.logical <= logical);
    let run = runs.get(after.checked_sub(1)?)?;
    (logical < run.logical + run.length).then(|| BlockNr::new(run.physical + (logical - run.logical)))
}

fn visit_blocks(
    visit: &Visit<'_, '_>,
    mut window: Window<'_, '_>,
    runs: &[Run],
    told: &mut Told,
    sink: &mut Sink,
) {
    report_holes(visit, runs, sink);
    let index = visit.fact.indexed.then(|| index::read(visit, &mut window, runs, sink)).flatten();
    let mut names = block::Names::new(index.is_none() && !visit.fact.casefold && runs_len(runs) > 1);
    for run in runs {
        for at in 0..run.length {
            let (logical, place) = (run.logical + at, BlockNr::new(run.physical + at));
            let site = visit.site().at_logical(logical).at_block(place);
            let bytes = match window.block(place, run.length - at - 1) {
                Ok(bytes) => bytes,
                Err(error) => {
                    sink.add(Code::DIRECTORY_READ, site, error.to_string());
                    continue;
                }
            };
            let role = match &index {
                Some(index) => index.role(logical),
                None if visit.fact.indexed => index::role_without_index(visit, logical, bytes),
                None => index::Role::Linear,
            };
            block::check(visit, bytes, logical, role, site, &mut names, told, sink);
        }
    }
    if let Some(index) = &index {
        index.check_spans(visit, &names.spans, sink);
    }
}

fn runs_len(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.length).fold(0, u64::saturating_add)
}

fn report_holes(visit: &Visit<'_, '_>, runs: &[Run], sink: &mut Sink) {
    let mut next = 0;
    for run in runs {
        if run.logical > next {
            let detail = format!("{} blocks", run.logical - next);
            sink.add(Code::DIRECTORY_BLOCK_HOLE, visit.site().at_logical(next), detail);
        }
        debug_assert!(run.logical >= next, "the map goes back to {} from {next}", run.logical);
        next = run.logical + run.length;
    }
}
