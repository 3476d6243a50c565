//! Virtual time: hand-overs of locks and moves of cache lines are counted, and cost what [`Costs`]
//! states. Runs repeat to the nanosecond.

#![cfg(feature = "virtual")]

use std::time::Duration;

use blockyard_sync::virtual_time::{
    Barging, Costs, Level, LineFigures, Program, Report, Section, Tick, simulate,
};
use blockyard_sync::{
    Atomic, AtomicInt, Backend, CachePadded, Condvar, CpuSlot, Mutex, Native, Ordering, RwLock,
    ShardedCounter, Virtual, rank,
};

type SharedU64 = CachePadded<<Virtual as Backend>::AtomicU64>;

const COSTS: Costs = Costs {
    hit_ps: 1000,
    miss_ns: 100,
    levels: Vec::new(),
    move_ns: 50,
    hand_over_ns: 10,
    moves_overlap: false,
    keep_ns: 0,
    neighbours_first_percent: 0,
    barging: None,
    slack_ns: 0,
    sections: Vec::new(),
    tick: None,
};

fn shared() -> SharedU64 {
    CachePadded::new(Atomic::new(0))
}

/// The same program on `cpus` CPUs.
fn on_each(cpus: u32, program: impl Fn(CpuSlot) + Sync) -> Report {
    let program = &program;
    let programs =
        (0..cpus).map(|cpu| -> Program<'_> { Box::new(move || program(CpuSlot::new(cpu))) }).collect();
    simulate(&COSTS, programs)
}

#[test]
fn an_uncontended_lock_is_brought_once_and_then_in_cache() {
    let lock = CachePadded::new(Mutex::<u64, Virtual>::new(rank::GROUP, 0));
    let report = on_each(1, |_| (0..10).for_each(|_| *lock.lock() += 1));
    // Each of the 20 accesses takes 1 ns; the first also loads the line from memory (100 ns).
    assert_eq!(report.elapsed_ns(), 100 + 20);
    assert_eq!((report.total().lines_moved, report.total().lock_waits), (0, 0));
}

#[test]
fn parts_of_a_nanosecond_add_up() {
    let lock = CachePadded::new(Mutex::<u64, Virtual>::new(rank::GROUP, 0));
    let program = || -> Program<'_> { Box::new(|| (0..10).for_each(|_| *lock.lock() += 1)) };
    let report = simulate(&Costs { hit_ps: 1300, ..COSTS }, vec![program()]);
    assert_eq!(report.elapsed_ns(), 100 + 20 * 1300 / 1000);
}

#[test]
fn a_contended_lock_is_handed_over_in_order_at_the_stated_cost() {
    let lock = CachePadded::new(Mutex::<Vec<u32>, Virtual>::new(rank::GROUP, Vec::new()));
    let report = on_each(3, |cpu| {
        Virtual::work(200 * u64::from(cpu.raw()));
        let mut order = lock.lock();
        order.push(cpu.raw());
        Virtual::work(1000);
    });
    assert_eq!(*lock.lock(), [0, 1, 2]);
    let total = report.total();
    assert_eq!(total.lock_waits, 2);
    // CPU 0 loads the line (100), accesses it (1) and works 1000. For the release it takes the line
    // back from the last waiter (50 + 1). Each hand-over then costs 60, and the next holder works
    // 1000 and releases (1) with the line already in its cache.
    assert_eq!(report.cpus[0].finished_ns, 100 + 1 + 1000 + 50 + 1);
    assert_eq!(report.cpus[1].finished_ns, 1152 + 60 + 1000 + 1);
    assert_eq!(report.cpus[2].finished_ns, 2213 + 60 + 1000 + 1);
    // CPU 1 had asked at 251, CPU 2 at 451.
    assert_eq!(total.lock_wait_ns, (1212 - 251) + (2273 - 451));
}

/// CPU 1 loads and stores four lines that CPU 0 has written, then changes a fifth line with
/// `fetch_add`, and then takes a lock that CPU 0 had.
#[test]
fn moves_that_overlap_take_the_time_of_one() {
    let run = |moves_overlap| {
        let (lines, one) = ([const { shared }; 4].map(|make| make()), shared());
        let lock = CachePadded::new(Mutex::<u64, Virtual>::new(rank::GROUP, 0));
        let times = Mutex::<Vec<u64>, Native>::new(rank::GROUP, Vec::new());
        let first = || -> Program<'_> {
            Box::new(|| {
                lines.iter().chain([&one]).for_each(|line| line.store(1, Ordering::Relaxed));
                *lock.lock() += 1;
            })
        };
        let second = || -> Program<'_> {
            Box::new(|| {
                Virtual::work(1000);
                for line in &lines {
                    line.store(line.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                }
                one.fetch_add(1, Ordering::Relaxed);
                times.lock().push(Virtual::now_ns());
                *lock.try_lock().unwrap() += 1;
                times.lock().push(Virtual::now_ns());
            })
        };
        let _ = simulate(&Costs { moves_overlap, ..COSTS }, vec![first(), second()]);
        times.into_inner()
    };
    // Each of the four loads moves a line (50), and so does each store after it. The fifth line
    // moves once. The try of the lock moves its line to read it, and again to write it. Each access
    // takes 1 more, and so does the release of the lock.
    assert_eq!(run(false), [1000 + 8 * 51 + 51, 1459 + 2 * 51 + 1]);
    // The loads begin 2 apart. The line of the last load arrives 50 after that load began. Then the
    // fifth line moves (50 + 1). The lock's line moves once.
    assert_eq!(run(true), [1000 + 3 * 2 + 50 + 51, 1107 + 51 + 1 + 1]);
}

const BARGING: Barging = Barging { pause_ns: 25, yield_ns: 450, wake_ns: 17_000, wake_call_ns: 8000 };

/// With barging, the CPU that releases a lock has mostly taken it again before the other CPU looks.
/// With locks that are served in turn, the other CPU gets it.
#[test]
fn a_lock_that_is_not_served_in_turn_stays_with_its_holder() {
    let run = |barging| {
        let order = CachePadded::new(Mutex::<Vec<u64>, Virtual>::new(rank::GROUP, Vec::new()));
        let program = |cpu: u64| -> Program<'_> {
            let order = &order;
            Box::new(move || {
                for _ in 0..100 {
                    let mut order = order.lock();
                    order.push(cpu);
                    Virtual::work(30);
                    drop(order);
                    Virtual::work(30);
                }
            })
        };
        let report = simulate(&Costs { barging, ..COSTS }, vec![program(0), program(1)]);
        let order = order.into_inner().into_inner();
        let changes = order.windows(2).filter(|pair| pair[0] != pair[1]).count();
        (order.len(), changes, report)
    };
    let (all, changes, report) = run(Some(BARGING));
    let (all_in_turn, changes_in_turn, in_turn) = run(None);
    assert_eq!((all, all_in_turn), (200, 200));
    assert!(changes < 40 && changes_in_turn > 190, "{changes} {changes_in_turn}");
    assert!(report.elapsed_ns() < in_turn.elapsed_ns(), "{report:?} {in_turn:?}");
    assert_eq!(run(Some(BARGING)).2, report);
}

/// A CPU that has found a lock taken often enough sleeps. The next release hands the lock over to
/// the sleeper.
#[test]
fn a_cpu_that_waits_long_sleeps_until_a_release_wakes_it() {
    let lock = CachePadded::new(Mutex::<u64, Virtual>::new(rank::GROUP, 0));
    let hold = || -> Program<'_> {
        let lock = &lock;
        Box::new(move || {
            let _held = lock.lock();
            Virtual::work(100_000);
        })
    };
    let report = simulate(&Costs { barging: Some(BARGING), ..COSTS }, vec![hold(), hold()]);
    // The holder takes the line back from the sleeper for its release.
    let released = 101 + 100_000 + 50 + 1;
    assert_eq!(report.cpus[0].finished_ns, released + 8000);
    // The sleeper wakes as the holder of the lock. For its own release, it takes the lock's line
    // back from CPU 0.
    assert_eq!(report.cpus[1].finished_ns, released + 17_000 + 100_000 + 50 + 1);
    assert_eq!((report.total().lock_waits, report.cpus[0].lock_waits), (1, 0));
    assert_eq!(report.lines[0].held_ns, 2 * (100_000 + 51));
}

/// For half a millisecond after a hand-over, a release only wakes a sleeper. The sleeper looks at
/// the lock, and sleeps again if another CPU was faster.
#[test]
fn a_lock_is_handed_over_from_time_to_time_only() {
    let order = CachePadded::new(Mutex::<Vec<u64>, Virtual>::new(rank::GROUP, Vec::new()));
    let program = |cpu: u64| -> Program<'_> {
        let order = &order;
        Box::new(move || {
            for _ in 0..40 {
                order.lock().push(cpu);
                let _held = order.lock();
                Virtual::work(50_000);
            }
        })
    };
    let report = simulate(&Costs { barging: Some(BARGING), ..COSTS }, vec![program(0), program(1)]);
    let order = order.into_inner().into_inner();
    let changes = order.windows(2).filter(|pair| pair[0] != pair[1]).count();
    // 80 holds of 50 us are 4 ms: time for about eight hand-overs, half a millisecond apart.
    assert!((2..=18).contains(&changes), "{changes} {order:?}");
    assert!(report.cpus.iter().all(|cpu| cpu.lock_waits > 0), "{report:?}");
}

/// All sleepers are woken: readers behind a writer, writers behind readers, and CPUs that wait for
/// a condition.
#[test]
fn every_sleeper_is_woken() {
    let (lock, turn) = (RwLock::<u64, Virtual>::new(rank::GROUP, 0), Condvar::<Virtual>::new());
    let count = Mutex::<u64, Virtual>::new(rank::LEAF, 0);
    let (lock, turn, count) = (&lock, &turn, &count);
    let programs = (0..8_u64).map(|cpu| -> Program<'_> {
        Box::new(move || {
            for round in 0..20 {
                if (cpu + round) % 4 == 0 {
                    let mut value = lock.write();
                    Virtual::work(100_000);
                    *value += 1;
                } else {
                    let _value = lock.read();
                    Virtual::work(30_000);
                }
            }
            let mut arrived = count.lock();
            *arrived += 1;
            Virtual::work(40_000);
            turn.notify_all();
            while *arrived < 8 {
                arrived = turn.wait(arrived);
            }
        })
    });
    let report = simulate(&Costs { barging: Some(BARGING), ..COSTS }, programs.collect());
    assert_eq!((*lock.read(), *count.lock()), (40, 8));
    assert!(report.total().lock_waits > 20, "{report:?}");
}

/// If moves overlap, and another CPU waits for a lock, the release of the lock costs no move of its
/// own: the move is part of the hand-over.
#[test]
fn a_release_and_the_load_that_sees_it_are_one_move() {
    let lock = CachePadded::new(Mutex::<u64, Virtual>::new(rank::GROUP, 0));
    let line = shared();
    let program = |cpu: u64| -> Program<'_> {
        let (lock, line) = (&lock, &line);
        Box::new(move || {
            Virtual::work(200 * cpu);
            let mut value = lock.lock();
            Virtual::work(1000);
            line.store(cpu, Ordering::Relaxed);
            *value += 1;
        })
    };
    let report = simulate(&Costs { moves_overlap: true, ..COSTS }, vec![program(0), program(1)]);
    // CPU 0 releases the lock once its store has loaded `line` (100).
    assert_eq!(report.cpus[0].finished_ns, 101 + 1000 + 100 + 1);
    assert_eq!(report.cpus[1].finished_ns, 1202 + 60 + 1000 + 50 + 1);
    assert_eq!(report.total().lock_wait_ns, 1262 - 251);
}

/// If the line of a holder's store is still on its way, the holder releases its lock only when the
/// line has arrived. A CPU that asks for the lock in between waits.
#[test]
fn a_release_waits_for_the_stores_before_it() {
    let lock = CachePadded::new(Mutex::<u64, Virtual>::new(rank::GROUP, 0));
    let line = shared();
    let first = || -> Program<'_> {
        Box::new(|| {
            let _held = lock.lock();
            line.store(1, Ordering::Relaxed);
        })
    };
    let second = || -> Program<'_> {
        Box::new(|| {
            Virtual::work(110);
            drop(lock.lock());
        })
    };
    let report = simulate(&Costs { moves_overlap: true, ..COSTS }, vec![first(), second()]);
    // CPU 0 has the lock's line at 100, and the line of its store at 201.
    assert_eq!(report.cpus[0].finished_ns, 101 + 100 + 1);
    assert_eq!(report.cpus[1].finished_ns, 202 + 60 + 1);
    assert_eq!(report.total().lock_waits, 1);
}

/// Eight CPUs want one line all the time. Which CPU gets it next is drawn at random: the CPUs do
/// not take turns, but every run draws the same. If a CPU keeps the line for a while (`keep_ns`),
/// it makes two changes for one move. If neighbours come first, the run takes less than half the
/// time.
#[test]
fn a_contended_line_goes_to_any_of_those_that_wait() {
    let costs = Costs { levels: vec![Level { cpus: 2, move_ns: 5 }], ..COSTS };
    let run = |costs: &Costs| {
        let (one, order) = (shared(), Mutex::<Vec<u32>, Native>::new(rank::GROUP, Vec::new()));
        let program = |cpu: u32| -> Program<'_> {
            let (one, order) = (&one, &order);
            Box::new(move || {
                for _ in 0..50 {
                    one.fetch_add(1, Ordering::Relaxed);
                    one.fetch_add(1, Ordering::Relaxed);
                    order.lock().push(cpu);
                }
            })
        };
        let report = simulate(costs, (0..8).map(program).collect());
        (report, order.into_inner())
    };
    let (report, order) = run(&costs);
    assert_eq!((report.clone(), order.clone()), run(&costs), "the draws repeat");
    assert!(order.chunks(8).any(|turn| turn != &order[..8]), "no round robin: {order:?}");
    assert!(report.total().lines_moved > 700, "{report:?}");
    let (kept, _) = run(&Costs { keep_ns: 4, ..costs.clone() });
    assert!(kept.total().lines_moved < 420, "{kept:?}");
    let (near, _) = run(&Costs { neighbours_first_percent: 80, ..costs });
    assert!(near.elapsed_ns() * 2 < report.elapsed_ns(), "{} {}", near.elapsed_ns(), report.elapsed_ns());
}

#[test]
fn one_shared_counter_serialises_and_a_sharded_one_does_not() {
    let one = shared();
    let together = on_each(8, |_| {
        for _ in 0..100 {
            one.fetch_add(1, Ordering::Relaxed);
            Virtual::work(20);
        }
    });
    assert_eq!(one.load(Ordering::Relaxed), 800);
    let sharded = ShardedCounter::<Virtual>::new(8);
    let apart = on_each(8, |cpu| {
        for _ in 0..100 {
            sharded.add(cpu, 1);
            Virtual::work(20);
        }
    });
    assert_eq!(sharded.sum(), 800);
    assert_eq!(apart.total().lines_moved, 0);
    assert_eq!(apart.elapsed_ns(), 100 + 100 + 100 * 20);
    // Nearly every addition has to move the line, until only one CPU still runs.
    assert!((700..800).contains(&together.total().lines_moved), "{together:?}");
    assert!(together.elapsed_ns() >= 700 * 50, "{}", together.elapsed_ns());
}

/// CPUs 0 and 1 are in one set, and CPU 2 is in another. The cost of a move depends on the
/// distance. A critical section costs what is stated for the name of its lock's line. A clock
/// interrupt costs what is stated for it.
#[test]
fn distance_sections_and_ticks_cost_what_they_say() {
    let costs = Costs {
        levels: vec![Level { cpus: 2, move_ns: 20 }],
        sections: vec![Section { name: "table", work_ns: 300, lines: 2 }],
        tick: Some(Tick { every_ns: 1_000_000, costs_ns: 5000 }),
        ..COSTS
    };
    let lock = Virtual::on_line("table", || Mutex::<u64, Virtual>::new(rank::GROUP, 0));
    let program = |start: u64| -> Program<'_> {
        let lock = &lock;
        Box::new(move || {
            Virtual::work(start);
            *lock.lock() += 1;
        })
    };
    let report = simulate(&costs, vec![program(10_000), program(20_000), program(30_000)]);
    let ns: Vec<u64> = report.cpus.iter().map(|cpu| cpu.finished_ns).collect();
    // The lock's line and two more come from memory (100 each), then from the neighbour (20), then
    // from the other set (50). CPU 0 has its first clock interrupt at 0; the others have none yet.
    assert_eq!(ns, [10_000 + 5000 + 3 * 100 + 300 + 2, 20_000 + 3 * 20 + 300 + 2, 30_000 + 3 * 50 + 300 + 2]);
    let table = report.lines.iter().find(|line| line.name == "table").unwrap();
    assert_eq!((table.taken, table.waits, table.moved), (3, 0, 2));
    assert_eq!(table.section_ns, 500 + 340 + 400);
}

#[test]
fn what_is_made_together_lies_on_one_line() {
    let together = Virtual::on_line("pair", || [0, 0].map(<Virtual as Backend>::AtomicU64::new));
    let apart = [0, 0].map(<Virtual as Backend>::AtomicU64::new);
    let read = |pair: &[<Virtual as Backend>::AtomicU64; 2]| {
        on_each(1, |_| pair.iter().for_each(|value| assert_eq!(value.load(Ordering::Relaxed), 0)))
            .elapsed_ns()
    };
    assert_eq!((read(&together), read(&apart)), (102, 202));
}

#[test]
fn readers_share_a_line_until_somebody_writes() {
    let value = shared();
    let report = on_each(4, |cpu| {
        for _ in 0..50 {
            value.load(Ordering::Acquire);
        }
        if cpu == CpuSlot::ZERO {
            Virtual::work(10_000);
            value.store(1, Ordering::Release);
        } else {
            Virtual::work(20_000);
            assert_eq!(value.load(Ordering::Acquire), 1);
        }
    });
    // Three readers fetch the line from the first, the writer takes it back, three fetch it again.
    assert_eq!(report.total().lines_moved, 3 + 1 + 3);
}

#[test]
fn conditions_limits_and_readers_work_in_virtual_time() {
    let ready = Mutex::<bool, Virtual>::new(rank::GROUP, false);
    let condition = Condvar::<Virtual>::new();
    let table = RwLock::<u32, Virtual>::new(rank::INODE, 5);
    let report = on_each(3, |cpu| match cpu.raw() {
        0 => {
            Virtual::work(5000);
            *ready.lock() = true;
            condition.notify_all();
        }
        1 => {
            assert_eq!(*table.read(), 5);
            let guard = condition.wait_while(ready.lock(), |ready| !*ready);
            assert!(*guard && Virtual::now_ns() > 5000);
        }
        _ => {
            let before = Virtual::now_ns();
            let never = Condvar::<Virtual>::new();
            let other = Mutex::<(), Virtual>::new(rank::GROUP, ());
            let (guard, timed_out) = never.wait_for(other.lock(), Duration::from_nanos(700));
            drop(guard);
            assert!(timed_out && (700..2000).contains(&(Virtual::now_ns() - before)));
            *table.write() += 1;
        }
    });
    assert!(report.cpus[1].finished_ns > 5000);
    assert_eq!(*table.read(), 6);
}

#[test]
fn runs_repeat_to_the_nanosecond() {
    let run = || {
        let locks: Vec<_> =
            (0..4).map(|_| CachePadded::new(Mutex::<u64, Virtual>::new(rank::GROUP, 0))).collect();
        on_each(16, |cpu| {
            let mut at = u64::from(cpu.raw());
            for _ in 0..200 {
                at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                match locks[usize::try_from(at >> 62).unwrap()].try_lock() {
                    Some(mut count) => {
                        *count += 1;
                        Virtual::work(at >> 58);
                    }
                    None => Virtual::work(7),
                }
            }
        })
    };
    assert_eq!(run(), run());
}

/// Halfway through a run, a CPU reads a counter and the figures of the lines. This costs nothing.
/// The line is moved in both parts of the run, and the figures of the two parts add up to those of
/// the whole run.
#[test]
fn a_look_aside_costs_nothing_and_splits_a_run() {
    let run = |looks: bool| {
        let counter = CachePadded::new(Virtual::on_line("counter", || {
            <<Virtual as Backend>::AtomicU64 as Atomic<u64>>::new(0)
        }));
        let halfway = std::sync::Mutex::new(None);
        let report = on_each(2, |cpu| {
            for turn in 0..100u32 {
                counter.fetch_add(1, Ordering::Relaxed);
                if looks && turn == 50 && cpu == CpuSlot::ZERO {
                    let seen = Virtual::aside(|| counter.load(Ordering::Relaxed));
                    *halfway.lock().unwrap() = Some((seen, Virtual::line_figures()));
                }
            }
        });
        (report, halfway.into_inner().unwrap())
    };
    let (report, halfway) = run(true);
    assert_eq!(report, run(false).0);
    let (seen, lines) = halfway.unwrap();
    assert!((51..150).contains(&seen), "{seen}");
    let of = |lines: &[LineFigures]| *lines.iter().find(|line| line.name == "counter").unwrap();
    let (before, after) = (of(&lines), of(&report.lines));
    let rest = after.since(&before);
    assert!(before.moved > 0 && rest.moved > 0, "{before:?} {rest:?}");
    assert_eq!((before.moved + rest.moved, before.moved_ns + rest.moved_ns), (after.moved, after.moved_ns));
    assert!(Virtual::line_figures().is_empty());
}

#[test]
fn waiting_in_a_circle_is_reported() {
    let result = std::panic::catch_unwind(|| {
        let locks = [(); 2].map(|()| Mutex::<(), Virtual>::new(rank::GROUP, ()));
        let _ = on_each(2, |cpu| {
            let first = usize::from(cpu != CpuSlot::ZERO);
            let _one = locks[first].lock_ordered(1);
            Virtual::work(1000);
            let _two = locks[1 - first].lock_ordered(2);
        });
    });
    let text = result.expect_err("a deadlock").downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(text.contains("wait for each other"), "{text}");
    // The next simulation starts from scratch.
    assert_eq!(on_each(1, |_| Virtual::work(3)).elapsed_ns(), 3);
}

#[test]
fn a_panic_in_a_program_comes_out() {
    let lock = Mutex::<u32, Virtual>::new(rank::GROUP, 0);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = on_each(2, |cpu| {
            let _guard = lock.lock();
            assert_ne!(cpu.raw(), 0, "planted");
        });
    }));
    assert!(result.is_err());
    assert_eq!(*lock.lock(), 0);
    let order = std::panic::catch_unwind(|| {
        let inode = Mutex::<(), Virtual>::new(rank::INODE, ());
        let group = Mutex::<(), Virtual>::new(rank::GROUP, ());
        let _ = on_each(1, |_| {
            let _group = group.lock();
            drop(inode.lock());
        });
    });
    assert_eq!(order.is_err(), cfg!(debug_assertions), "ranks are checked in virtual time too");
}
