//! Concurrent protocols that the allocator relies on, run under many schedules by shuttle: index
//! sets, index lists, the state word of a preallocation, lagging counters, admission.
//! `tests/shuttle.rs` tests the public interface in the same way.

#![allow(clippy::as_conversions, reason = "tests")]

use std::sync::Arc;

use blockyard_disk::GroupNr;
use blockyard_sync::{CpuSlot, LaggedCounter, Mutex, Shuttle, rank};
use shuttle::thread;

use crate::admission::Admission;
use crate::config::AllocConfig;
use crate::index::by_group::OrderedSets;
use crate::index::fifo::FifoLists;
use crate::prealloc::{Owner, Prealloc};
use crate::request::RequestFlags;

/// Runs `scenario` under `schedules` schedules, or twenty times as many in full runs. Half of the
/// schedules are random; the other half (PCT) follow priorities that change at random points.
fn explore(schedules: usize, scenario: impl Fn() + Send + Sync + Copy + 'static) {
    let schedules = if blockyard_testkit::full_matrix() { schedules * 20 } else { schedules };
    shuttle::check_random(scenario, schedules / 2);
    shuttle::check_pct(scenario, schedules / 2, 3);
}

/// One group is removed from a set while another is inserted. The two share a word, a summary word,
/// or a word of the top level. The new group is found, even by a search from group 0.
#[test]
fn index_sets_lose_no_arrival() {
    for (leaves, arrives) in [(64, 65), (64, 130), (4160, 4161), (4160, 4230), (4160, 8300)] {
        explore(1500, move || {
            let sets = Arc::new(OrderedSets::<Shuttle>::new(1, 9000));
            sets.insert(0, GroupNr::new(leaves));
            let remover = {
                let sets = Arc::clone(&sets);
                thread::spawn(move || sets.remove(0, GroupNr::new(leaves)))
            };
            sets.insert(0, GroupNr::new(arrives));
            remover.join().unwrap();
            assert_eq!(sets.next(0, 0, 9000), Some(GroupNr::new(arrives)), "{leaves} and {arrives}");
            assert_eq!(sets.next(0, arrives + 1, 9000), None);
            assert_eq!(sets.next_order(0), Some(0), "{leaves} and {arrives}");
        });
    }
}

/// A search finds a group that stays in a set, even while another thread inserts and removes a
/// group in another word of the set.
#[test]
fn readers_find_what_stays() {
    explore(2000, || {
        let sets = Arc::new(OrderedSets::<Shuttle>::new(1, 300));
        sets.insert(0, GroupNr::new(200));
        let writer = {
            let sets = Arc::clone(&sets);
            thread::spawn(move || {
                for _ in 0..2 {
                    sets.insert(0, GroupNr::new(3));
                    sets.remove(0, GroupNr::new(3));
                }
            })
        };
        for _ in 0..3 {
            let found = sets.next(0, 0, 300).map(GroupNr::raw);
            assert!(matches!(found, Some(3 | 200)), "{found:?}");
            assert_eq!(sets.next(0, 4, 300), Some(GroupNr::new(200)));
        }
        writer.join().unwrap();
    });
}

/// Three threads each append a group to list 0, unlink it, and append it to list 0 or 1. Each list
/// has a lock of its own. Afterwards list 0 has two groups and list 1 has one, because of the last
/// appends. Unlinking all groups empties both lists.
#[test]
fn index_lists_keep_every_group() {
    explore(2000, || {
        let lists = Arc::new(FifoLists::<Shuttle>::new("test", 2, 3, 1));
        let threads: Vec<_> = (0..3)
            .map(|group| {
                let lists = Arc::clone(&lists);
                thread::spawn(move || {
                    let group = GroupNr::new(group);
                    lists.append(0, group, CpuSlot::ZERO);
                    lists.unlink(group, CpuSlot::ZERO);
                    lists.append(group.raw() % 2, group, CpuSlot::ZERO);
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!((lists.len(0), lists.len(1)), (2, 1));
        (0..3).for_each(|group| lists.unlink(GroupNr::new(group), CpuSlot::ZERO));
        assert_eq!((lists.len(0), lists.len(1)), (0, 0));
    });
}

/// Two users take overlapping parts of an inode preallocation while a third thread tries to delete
/// it. Each cluster goes to one user, or is left over.
#[test]
fn clusters_of_a_preallocation_go_to_one_place() {
    explore(3000, || {
        let owner = Owner::Inode { logical: 0 };
        let prealloc = Arc::new(Prealloc::<Shuttle>::new(owner, GroupNr::ZERO, 100, 6));
        prealloc.put();
        let taken = Arc::new(Mutex::<_, Shuttle>::new(rank::LEAF, Vec::new()));
        let user = |start: u32, count: u32| {
            let (prealloc, taken) = (Arc::clone(&prealloc), Arc::clone(&taken));
            thread::spawn(move || {
                let got = prealloc.take_at(start, count);
                taken.lock().extend(start..start + got);
                if got > 0 {
                    prealloc.put();
                }
            })
        };
        let users = [user(100, 4), user(102, 4)];
        let deleter = {
            let prealloc = Arc::clone(&prealloc);
            thread::spawn(move || prealloc.try_delete().then(|| left(&prealloc)))
        };
        users.into_iter().for_each(|user| user.join().unwrap());
        let deleted = deleter.join().unwrap();
        let mut all = taken.lock().clone();
        all.extend(deleted.unwrap_or_else(|| left(&prealloc)));
        all.sort_unstable();
        assert_eq!(all, [100, 101, 102, 103, 104, 105]);
        assert!(!prealloc.in_use());
    });
}

/// Three users take from the front of a locality preallocation while a fourth thread tries to
/// delete it. Each cluster goes to one user, or is left over.
#[test]
fn the_front_of_a_locality_preallocation_moves_once() {
    explore(3000, || {
        let prealloc = Arc::new(Prealloc::<Shuttle>::new(Owner::Locality, GroupNr::ZERO, 10, 5));
        prealloc.put();
        let user = |count: u32| {
            let prealloc = Arc::clone(&prealloc);
            thread::spawn(move || {
                let front = prealloc.take_front(count);
                if front.is_some() {
                    prealloc.put();
                }
                front.map_or(Vec::new(), |front| (front..front + count).collect())
            })
        };
        let users = [user(2), user(2), user(2)];
        let deleter = {
            let prealloc = Arc::clone(&prealloc);
            thread::spawn(move || prealloc.try_delete().then(|| left(&prealloc)))
        };
        let mut all: Vec<u32> = users.into_iter().flat_map(|user| user.join().unwrap()).collect();
        all.extend(deleter.join().unwrap().unwrap_or_else(|| left(&prealloc)));
        all.sort_unstable();
        assert_eq!(all, [10, 11, 12, 13, 14]);
    });
}

/// Two threads on one CPU slot change a counter. If the amount of the slot is large, either thread
/// folds it into the central value. No amount is folded twice or lost.
#[test]
fn lagging_counts_fold_each_amount_once() {
    explore(2000, || {
        let counter = Arc::new(LaggedCounter::<Shuttle>::new(100, 1, 3));
        let other = {
            let counter = Arc::clone(&counter);
            thread::spawn(move || [2, 2, -1].iter().for_each(|&n| counter.add(CpuSlot::ZERO, n)))
        };
        [-2, 3, -3].iter().for_each(|&n| counter.add(CpuSlot::ZERO, n));
        other.join().unwrap();
        assert_eq!(counter.sum(), 101);
        assert!(counter.approximate().abs_diff(101) < 3, "{counter:?}");
    });
}

/// Three clusters are free. One writer reserves two while two requests ask for two each. Together
/// the three never get more than is free, and at least one of them gets something.
#[test]
fn promises_never_exceed_what_is_free() {
    promises_fit(3, 2);
}

/// The same with amounts that change the central values of the counters. Two amounts of 20 on one
/// CPU slot exceed the batch (32 with two CPU slots), so they are folded into the central value. An
/// amount of 34 alone exceeds the batch.
#[test]
fn promises_never_exceed_what_is_free_while_counters_fold() {
    promises_fit(50, 20);
    promises_fit(80, 34);
}

/// One writer reserves `n` clusters and two requests ask for `n` each, where `free` are free.
fn promises_fit(free: u64, n: u32) {
    explore(3000, move || {
        let geometry = crate::memory::MemoryBitmaps::plain_geometry(1, 0);
        let config = AllocConfig { cpus: 2, reserved: Some(0), ..AllocConfig::new(geometry) };
        let admission = Arc::new(Admission::<Shuttle>::new(&config, free));
        let none = RequestFlags::empty();
        let reserving = {
            let admission = Arc::clone(&admission);
            thread::spawn(move || {
                let fits = admission.reserve(u64::from(n), none, CpuSlot::ZERO);
                u64::from(fits) * u64::from(n)
            })
        };
        let taking = [1, 1].map(|cpu| {
            let admission = Arc::clone(&admission);
            thread::spawn(move || {
                let cpu = CpuSlot::new(cpu);
                let got = admission.admit(n, none, cpu).unwrap_or(0);
                admission.end_admission(got, got, none, cpu);
                u64::from(got)
            })
        });
        let reserved = reserving.join().unwrap();
        let taken: u64 = taking.into_iter().map(|one| one.join().unwrap()).sum();
        assert!((1..=free).contains(&(reserved + taken)), "{reserved} reserved, {taken} taken");
        let figures = admission.figures();
        assert_eq!((figures.free, figures.delayed), (free - taken, reserved));
        assert!(figures.free >= figures.delayed);
    });
}

fn left(prealloc: &Prealloc<Shuttle>) -> Vec<u32> {
    let mut all = Vec::new();
    prealloc.for_each_left(|start, count| all.extend(start..start + count));
    all
}
