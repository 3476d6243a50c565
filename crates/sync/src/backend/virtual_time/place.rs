//! The cache line of a lock or atomic. It is chosen at creation and does not depend on the address,
//! so a run does not depend on the heap.

use std::cell::Cell;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// The next number of a line or lock. Accesses are relaxed: the numbers only have to differ.
static MADE: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static SHARED: Cell<Option<LineId>> = const { Cell::new(None) };
}

/// A cache line.
#[derive(Clone, Copy, Debug)]
pub(super) struct LineId {
    pub(super) number: u64,
    /// What is on the line, for reports.
    pub(super) name: &'static str,
}

impl LineId {
    /// The line of the [`on_line`] call that is running; outside of one, a new line.
    pub(super) fn of_new() -> Self {
        SHARED.get().unwrap_or_else(|| Self::fresh("other"))
    }

    fn fresh(name: &'static str) -> Self {
        Self { number: fresh_number(), name }
    }
}

/// One lock or condition variable, and its line.
#[derive(Clone, Copy, Debug)]
pub(super) struct LockId {
    pub(super) number: u64,
    pub(super) line: LineId,
}

impl LockId {
    pub(super) fn of_new() -> Self {
        Self { number: fresh_number(), line: LineId::of_new() }
    }
}

/// A number that no other line, lock or condition variable has.
fn fresh_number() -> u64 {
    MADE.fetch_add(1, Ordering::Relaxed)
}

/// Puts everything that `f` creates on one line.
pub(super) fn on_line<R>(name: &'static str, f: impl FnOnce() -> R) -> R {
    let before = SHARED.replace(Some(LineId::fresh(name)));
    let made = f();
    SHARED.set(before);
    made
}

/// A hasher for numbers that are counted up from 0. It only has to spread them over a map.
#[derive(Debug, Default)]
pub(super) struct NumberHasher(u64);

/// For maps keyed by the numbers of lines and locks.
pub(super) type ByNumber = BuildHasherDefault<NumberHasher>;

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}
