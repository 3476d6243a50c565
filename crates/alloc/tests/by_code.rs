//! Policies by code that is not in the allocator's crate: a search engine, a choice of groups, a
//! choice of extents. With each, the allocator keeps the rules that hold for every policy
//! (`blockyard_conformance`), even if the code answers nonsense. Valid answers are followed.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU32, Ordering};

use blockyard_alloc::memory::MemoryBitmaps;
use blockyard_alloc::policy::code::{
    ExtentChoice, Finder, FreeRuns, GroupChoice, Groups, Run, SearchEngine, Wish,
};
use blockyard_alloc::{AllocConfig, Allocator, BlockRequest, InodeAlloc, Policy, RequestFlags};
use blockyard_conformance::keeps_to_all;
use blockyard_disk::{BlockNr, ClusterOffset, GroupNr, InodeNr, LogicalBlock};

/// First fit from the goal on, group after group.
struct FirstFit;

impl SearchEngine for FirstFit {
    fn search(&self, wish: &Wish<'_>, finder: &mut dyn Finder) {
        let goal = wish.goal.raw();
        for nr in (goal..wish.groups).chain(0..goal).map(GroupNr::new) {
            let from = wish.offset.filter(|_| nr == wish.goal).unwrap_or(ClusterOffset::new(0));
            if finder.look(nr).free > 0 && finder.take(nr, &mut |runs| runs.from(from)) {
                return;
            }
        }
    }
}

/// Visits groups from the last one down.
struct Downwards;

impl GroupChoice for Downwards {
    fn walk(&self, wish: &Wish<'_>, groups: &mut dyn Groups) {
        let _ = (0..wish.groups).rev().any(|nr| groups.visit(GroupNr::new(nr)));
    }
}

/// Takes the end of the longest run.
struct EndOfLongest;

impl ExtentChoice for EndOfLongest {
    fn choose(&self, wish: &Wish<'_>, runs: &FreeRuns<'_>) -> Option<Run> {
        let longest = runs.iter().max_by_key(|run| run.clusters)?;
        let clusters = wish.clusters.min(longest.clusters);
        let start = ClusterOffset::new(longest.start.raw() + longest.clusters - clusters);
        Some(Run { start, clusters })
    }
}

/// Answers with runs that lie outside the group, are used, empty or too long, and with no run.
/// Also asks for groups that do not exist.
struct Nonsense(AtomicU32);

impl Nonsense {
    fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    fn run(&self, wish: &Wish<'_>) -> Option<Run> {
        let run = |start, clusters| Some(Run { start: ClusterOffset::new(start), clusters });
        match self.0.fetch_add(1, Ordering::Relaxed) % 6 {
            0 => run(u32::MAX, u32::MAX),
            1 => run(0, 4),
            2 => run(20, 0),
            3 => run(wish.clusters, wish.clusters),
            4 => run(60, 1 << 20),
            _ => None,
        }
    }
}

impl SearchEngine for Nonsense {
    fn search(&self, wish: &Wish<'_>, finder: &mut dyn Finder) {
        for nr in [u32::MAX, wish.groups, 0, wish.groups - 1] {
            let _ = finder.look(GroupNr::new(nr));
            // Continues even after the search is over.
            finder.take(GroupNr::new(nr), &mut |_| self.run(wish));
        }
    }
}

impl GroupChoice for Nonsense {
    fn walk(&self, wish: &Wish<'_>, groups: &mut dyn Groups) {
        for nr in [u32::MAX, wish.groups, 1, 1, 1] {
            let _ = groups.look(GroupNr::new(nr));
            groups.visit(GroupNr::new(nr));
        }
    }
}

impl ExtentChoice for Nonsense {
    fn choose(&self, wish: &Wish<'_>, _runs: &FreeRuns<'_>) -> Option<Run> {
        self.run(wish)
    }
}

#[test]
fn an_engine_keeps_to_it() {
    keeps_to_all(Policy::default().named("engine").with_search(|_| Box::new(FirstFit)));
}

#[test]
fn a_choice_of_groups_keeps_to_it() {
    keeps_to_all(Policy::default().named("groups").with_groups(|_| Box::new(Downwards)));
}

#[test]
fn a_choice_of_extents_keeps_to_it() {
    let extents = Policy::default().named("extents").with_extents(|_| Box::new(EndOfLongest));
    keeps_to_all(extents);
    keeps_to_all(extents.named("both").with_groups(|_| Box::new(Downwards)));
}

#[test]
fn nonsense_is_refused() {
    keeps_to_all(Policy::default().named("engine").with_search(|_| Box::new(Nonsense::new())));
    keeps_to_all(Policy::default().named("groups").with_groups(|_| Box::new(Nonsense::new())));
    keeps_to_all(Policy::default().named("extents").with_extents(|_| Box::new(Nonsense::new())));
}

/// The group and the offset where a request for 8 clusters goes. The request's goal is cluster 100
/// of group 3. In each of the 8 groups only the first 10 clusters are used.
fn place(policy: Policy) -> (u32, u32) {
    let config = AllocConfig { policy, ..AllocConfig::new(MemoryBitmaps::plain_geometry(8, 0)) };
    let disk = MemoryBitmaps::new(config.geometry, 10);
    let allocator: Allocator = Allocator::open(&config, disk.clone(), &disk.facts()).unwrap();
    let request = BlockRequest {
        goal: BlockNr::new(3 * 32_768 + 100),
        flags: RequestFlags::DATA | RequestFlags::NO_NORMALIZE,
        ..BlockRequest::data(InodeNr::new(12), GroupNr::new(3), LogicalBlock::ZERO, 8)
    };
    let claim = allocator.allocate(&request, &InodeAlloc::new()).unwrap();
    let place = (claim.group().raw(), claim.offset().raw());
    claim.release();
    place
}

#[test]
fn code_decides() {
    let base = Policy::default();
    assert_eq!(place(base.with_search(|_| Box::new(FirstFit))), (3, 100));
    assert_eq!(place(base.with_groups(|_| Box::new(Downwards))).0, 7);
    assert_eq!(place(base.with_extents(|_| Box::new(EndOfLongest))), (3, 32_760));
    let both = base.with_groups(|_| Box::new(Downwards)).with_extents(|_| Box::new(EndOfLongest));
    assert_eq!(place(both), (7, 32_760));
}

#[test]
fn arms_are_read_and_refused_by_name() {
    let own = Policy::default().named("own").with_groups(|_| Box::new(Downwards));
    assert_eq!(Policy::parse_among("own", &[own]), Ok(own));
    let ablated = Policy::parse_among("own:search=ladder", &[own]).unwrap();
    assert_eq!(place(ablated), place(Policy::default()));
    for (text, why) in [
        ("own", "no policy"),
        ("yard:search=code", "needs a policy with code"),
        ("yard:choose=code", "needs"),
    ] {
        let error = Policy::parse(text).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
}
