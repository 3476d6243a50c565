//! The turn to commit, which one thread has at a time. All threads that wait for the same commit
//! continue together when it ends.
//!
//! With only a mutex, these threads would continue one after the other, and other commits could run
//! in between.

use blockyard_sync::{Atomic, AtomicInt, Backend, Condvar, Mutex, MutexGuard, Native, Ordering, rank};

/// The turn to commit.
pub(crate) struct Turn<B: Backend = Native> {
    taken: Mutex<bool, B>,
    changed: Condvar<B>,
    /// Held by the thread that has the turn.
    held: Mutex<(), B>,
    /// The number of commits so far, changed only by the thread that has the turn. Accessed
    /// relaxed: a thread that has waited for a commit, or found its transaction durable, has
    /// already synchronised with the thread that ran the commit.
    commits: B::AtomicU64,
}

/// The turn, until it is dropped.
#[must_use = "dropping it ends the turn"]
pub(crate) struct MyTurn<'a, B: Backend = Native> {
    turn: &'a Turn<B>,
    held: Option<MutexGuard<'a, (), B>>,
}

impl<B: Backend> Turn<B> {
    /// A turn that nobody has.
    pub(crate) fn new() -> Self {
        Self {
            taken: Mutex::new(rank::COMMIT_TURN, false),
            changed: Condvar::new(),
            held: Mutex::new(rank::COMMIT, ()),
            commits: B::AtomicU64::new(0),
        }
    }

    /// Waits for the turn and takes it. Stops waiting and returns `None` once `needed` is false.
    pub(crate) fn wait(&self, needed: impl Fn() -> bool) -> Option<MyTurn<'_, B>> {
        let taken = self.taken.lock();
        let taken = self.changed.wait_while(taken, |taken| *taken && needed());
        if !needed() {
            return None;
        }
        Some(self.take(taken))
    }

    /// Takes the turn if nobody has it. Never waits for a commit, which may hang on the device.
    pub(crate) fn take_if_free(&self) -> Option<MyTurn<'_, B>> {
        let taken = self.taken.lock();
        if *taken { None } else { Some(self.take(taken)) }
    }

    fn take(&self, mut taken: MutexGuard<'_, bool, B>) -> MyTurn<'_, B> {
        debug_assert!(!*taken, "two have the turn");
        *taken = true;
        drop(taken);
        MyTurn { turn: self, held: Some(self.held.lock()) }
    }

    /// The number of commits so far, not counting one in progress.
    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }
}

impl<B: Backend> MyTurn<'_, B> {
    /// Counts a commit.
    pub(crate) fn count(&mut self) {
        debug_assert!(self.held.is_some(), "a commit is counted without the turn");
        self.turn.commits.fetch_add(1, Ordering::Relaxed);
    }
}

impl<B: Backend> Drop for MyTurn<'_, B> {
    fn drop(&mut self) {
        // Whoever takes the turn next must find `held` free.
        self.held = None;
        *self.turn.taken.lock() = false;
        self.turn.changed.notify_all();
    }
}
