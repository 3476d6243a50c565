//! Tests of the rank check that debug builds make at run time: for mutexes and reader-writer locks,
//! and after a wait for a condition. The counters of a lock class are tested here, too.

#![cfg(debug_assertions)]

use blockyard_sync::{Condvar, CpuSlot, LockClass, Mutex, RwLock, assert_none_held, rank};

#[test]
fn ascending_order_is_fine_and_releases_are_forgotten() {
    let inode = RwLock::<u32>::new(rank::INODE, 1);
    let group = Mutex::<u32>::new(rank::GROUP, 2);
    for _ in 0..2 {
        let inode = inode.read();
        let mut group = group.lock();
        *group += *inode;
    }
    assert_eq!(*group.lock(), 4);
    let _inode = inode.write();
    assert_none_held_panics();
}

fn assert_none_held_panics() {
    let text = panic_text(|| assert_none_held::<blockyard_sync::Native>("waiting for a commit"));
    assert!(text.contains("waiting for a commit while INODE (rank 300)"));
}

#[test]
fn descending_order_panics_and_names_both() {
    let inode = Mutex::<()>::new(rank::INODE, ());
    let group = Mutex::<()>::new(rank::GROUP, ());
    let _group = group.lock();
    let text = panic_text(|| drop(inode.lock()));
    assert!(text.contains("INODE (rank 300) (key 0) wanted while GROUP (rank 700)"), "{text}");
}

#[test]
fn one_rank_twice_needs_ascending_keys() {
    let inodes = [RwLock::<()>::new(rank::INODE, ()), RwLock::<()>::new(rank::INODE, ())];
    {
        let _first = inodes[0].write_ordered(11);
        let _second = inodes[1].read_ordered(12);
    }
    let _first = inodes[0].read_ordered(12);
    assert!(panic_text(|| drop(inodes[1].write_ordered(11))).contains("key 11"));
    assert!(panic_text(|| drop(inodes[1].write_ordered(12))).contains("key 12"));
}

#[test]
fn a_try_is_never_refused_but_counts_as_held() {
    let inode = Mutex::<()>::new(rank::INODE, ());
    let group = Mutex::<()>::new(rank::GROUP, ());
    let mapping = Mutex::<()>::new(rank::MAPPING, ());
    let held_group = group.lock();
    let held_inode = inode.try_lock().expect("free");
    assert!(group.try_lock().is_none());
    drop(held_group);
    let _mapping = mapping.lock();
    drop(held_inode);
    assert!(panic_text(|| drop(inode.lock())).contains("MAPPING"));
}

#[test]
fn waiting_keeps_the_lock_recorded() {
    let pair = (Mutex::<bool>::new(rank::GROUP, false), Condvar::default());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            *pair.0.lock() = true;
            pair.1.notify_all();
        });
        let guard = pair.1.wait_while(pair.0.lock(), |ready| !*ready);
        let inode = Mutex::<()>::new(rank::INODE, ());
        let text = panic_text(|| drop(inode.lock()));
        assert!(text.contains("GROUP"));
        drop(guard);
        drop(inode.lock());
    });
}

#[test]
fn a_class_counts_acquisitions_waits_and_busy_tries() {
    let class = LockClass::new("group", 2);
    let lock = Mutex::<u64>::new(rank::GROUP, 0);
    let slot = CpuSlot::ZERO;
    drop(lock.lock_counted(&class, slot));
    let guard = lock.try_lock_counted(&class, slot).expect("free");
    assert!(lock.is_locked());
    assert!(lock.try_lock_counted(&class, slot).is_none());
    std::thread::scope(|scope| {
        scope.spawn(|| *lock.lock_counted(&class, CpuSlot::new(1)) += 1);
        while class.figures().waits == 0 {
            std::thread::yield_now();
        }
        drop(guard);
    });
    let figures = class.figures();
    assert_eq!((class.name(), figures.acquisitions, figures.waits, figures.busy), ("group", 3, 1, 1));
}

fn panic_text(f: impl FnOnce()) -> String {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
    let payload = result.expect_err("must panic");
    payload.downcast_ref::<String>().cloned().unwrap_or_default()
}
