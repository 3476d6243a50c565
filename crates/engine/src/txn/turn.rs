//! Whose turn it is to commit: one thread at a time, and everybody whom its commit serves goes on
//! together.
//!
//! Waiting for the lock alone would let those who are served leave one after the other, with other
//! commits in between.

use blockyard_sync::{Backend, Condvar, Mutex, MutexGuard, Native, rank};

/// The turn to commit.
pub(crate) struct Turn<B: Backend = Native> {
    taken: Mutex<bool, B>,
    changed: Condvar<B>,
    /// Held by whoever has the turn; the value is the number of commits so far.
    commits: Mutex<u64, B>,
}

/// The turn, until it is dropped.
#[must_use = "dropping it ends the turn"]
pub(crate) struct MyTurn<'a, B: Backend = Native> {
    turn: &'a Turn<B>,
    commits: Option<MutexGuard<'a, u64, B>>,
}

impl<B: Backend> Turn<B> {
    /// Nobody's turn.
    pub(crate) fn new() -> Self {
        Self {
            taken: Mutex::new(rank::COMMIT_TURN, false),
            changed: Condvar::new(),
            commits: Mutex::new(rank::COMMIT, 0),
        }
    }

    /// Waits for the turn as long as it is `needed`; `None` when it is not any more.
    pub(crate) fn wait(&self, needed: impl Fn() -> bool) -> Option<MyTurn<'_, B>> {
        let taken = self.taken.lock();
        let mut taken = self.changed.wait_while(taken, |taken| *taken && needed());
        if !needed() {
            return None;
        }
        *taken = true;
        drop(taken);
        Some(MyTurn { turn: self, commits: Some(self.commits.lock()) })
    }

    /// Commits so far; waits for one that is going on.
    pub(crate) fn commits(&self) -> u64 {
        *self.commits.lock()
    }
}

impl<B: Backend> MyTurn<'_, B> {
    /// Counts a commit.
    pub(crate) fn count(&mut self) {
        debug_assert!(self.commits.is_some(), "who has no turn counts no commit");
        if let Some(commits) = &mut self.commits {
            **commits += 1;
        }
    }
}

impl<B: Backend> Drop for MyTurn<'_, B> {
    fn drop(&mut self) {
        // The next one must find the lock free.
        self.commits = None;
        *self.turn.taken.lock() = false;
        self.turn.changed.notify_all();
    }
}
