//! Locks and atomics under shuttle, a scheduler that tries many interleavings of threads. Shuttle
//! must find a planted race, and must find nothing wrong with correct code.

#![cfg(feature = "shuttle")]

use std::sync::Arc;

use blockyard_sync::{
    Atomic, Backend, Condvar, CpuSlot, LaggedCounter, Mutex, Ordering, RwLock, Shuttle, rank,
};

type SharedU64 = <Shuttle as Backend>::AtomicU64;

#[test]
fn a_lost_update_is_found() {
    let found = std::panic::catch_unwind(|| {
        shuttle::check_random(
            || {
                let shared = Arc::new(SharedU64::new(0));
                let other = Arc::clone(&shared);
                let thread = shuttle::thread::spawn(move || increment_badly(&other));
                increment_badly(&shared);
                thread.join().unwrap();
                assert_eq!(shared.load(Ordering::SeqCst), 2);
            },
            200,
        );
    });
    assert!(found.is_err(), "the scheduler must find the race");
}

fn increment_badly(shared: &SharedU64) {
    let seen = shared.load(Ordering::SeqCst);
    shared.store(seen + 1, Ordering::SeqCst);
}

#[test]
fn locks_and_conditions_lose_nothing() {
    shuttle::check_random(
        || {
            let shared = Arc::new((Mutex::<u32, Shuttle>::new(rank::GROUP, 0), Condvar::<Shuttle>::new()));
            let gate = Arc::new(RwLock::<u32, Shuttle>::new(rank::INODE, 1));
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let (shared, gate) = (Arc::clone(&shared), Arc::clone(&gate));
                    shuttle::thread::spawn(move || {
                        let step = gate.read();
                        *shared.0.lock() += *step;
                        shared.1.notify_all();
                    })
                })
                .collect();
            let done = shared.1.wait_while(shared.0.lock(), |count| *count < 2);
            assert_eq!(*done, 2);
            drop(done);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        },
        300,
    );
}

#[test]
fn two_threads_in_one_slot_fold_each_amount_once() {
    shuttle::check_random(
        || {
            let counter = Arc::new(LaggedCounter::<Shuttle>::new(10, 1, 2));
            let other = Arc::clone(&counter);
            let thread = shuttle::thread::spawn(move || (0..3).for_each(|_| other.add(CpuSlot::ZERO, -1)));
            (0..3).for_each(|_| counter.add(CpuSlot::ZERO, 1));
            thread.join().unwrap();
            assert_eq!(counter.sum(), 10);
        },
        500,
    );
}

#[test]
fn update_retries_until_it_wins() {
    shuttle::check_random(
        || {
            let shared = Arc::new(SharedU64::new(1));
            let other = Arc::clone(&shared);
            let thread = shuttle::thread::spawn(move || {
                other.update(Ordering::AcqRel, Ordering::Acquire, |v| Some(v * 3)).unwrap();
            });
            shared.update(Ordering::AcqRel, Ordering::Acquire, |v| Some(v * 5)).unwrap();
            thread.join().unwrap();
            assert_eq!(shared.fetch_add(0, Ordering::Relaxed), 15);
        },
        200,
    );
}
