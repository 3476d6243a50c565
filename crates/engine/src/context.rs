//! What the caller passes to an operation besides its arguments: user, CPU slot, and time.
//!
//! No operation reads a clock, a thread number or a random source by itself: the same operations
//! with the same contexts and options, in the same order, yield the same image, byte for byte.

use blockyard_disk::Timestamp;
use blockyard_sync::CpuSlot;

/// The inputs of an operation besides its arguments.
#[derive(Clone, Copy, Debug)]
pub struct OpContext {
    /// The CPU slot: chooses shards, locality groups and per-CPU cursors.
    pub cpu: CpuSlot,
    /// The colour, which Linux derives from the thread id. `colour % 16` sixteenths of a group are
    /// added to a goal block, but not under delayed allocation. The slot `goal_colour` of a policy
    /// can change that.
    pub colour: u32,
    /// The time that the operation stores in inodes.
    pub now: Timestamp,
    /// The user on whose behalf the operation runs: owner of what it creates.
    pub uid: u32,
    /// The group on whose behalf the operation runs.
    pub gid: u32,
    /// Whether blocks reserved for root may be used.
    pub privileged: bool,
    /// Whether the caller caches what programs write, as a kernel does. Such a caller sets the
    /// times of files itself. An immutable file accepts that caller's writes, because programs may
    /// have written these bytes before the file became immutable.
    pub caches_writes: bool,
}

impl OpContext {
    /// Root at a given time on slot 0.
    #[must_use]
    pub const fn root_at(now: Timestamp) -> Self {
        Self { cpu: CpuSlot::ZERO, colour: 0, now, uid: 0, gid: 0, privileged: true, caches_writes: false }
    }

    /// Root on the calling thread's slot, at the system's time: for programs that need no
    /// repeatable runs.
    #[must_use]
    pub fn system() -> Self {
        let since_epoch =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let seconds = i64::try_from(since_epoch.as_secs()).unwrap_or(0);
        let now = Timestamp { seconds, nanoseconds: since_epoch.subsec_nanos() };
        Self { cpu: CpuSlot::of_thread(), ..Self::root_at(now) }
    }

    /// The same context on another slot.
    #[must_use]
    pub const fn on(self, cpu: CpuSlot) -> Self {
        Self { cpu, ..self }
    }
}
