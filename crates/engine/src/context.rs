//! What an operation is told from outside: who asks, on which CPU slot, at what time.
//!
//! Nothing in the engine reads a clock, a thread number or a random source by itself: with the same
//! contexts in the same order an image comes out the same to the byte.

use blockyard_disk::Timestamp;
use blockyard_sync::CpuSlot;

/// The inputs of one operation beside its arguments.
#[derive(Clone, Copy, Debug)]
pub struct OpContext {
    /// The CPU slot: shards, locality groups and per-CPU cursors.
    pub cpu: CpuSlot,
    /// The process colour of the goal (thread id modulo 16); without effect under delayed
    /// allocation.
    pub colour: u32,
    /// The time that goes into inodes.
    pub now: Timestamp,
    /// The user on whose behalf the operation runs: owner of what it creates.
    pub uid: u32,
    /// The group on whose behalf the operation runs.
    pub gid: u32,
    /// Whether blocks reserved for root may be used.
    pub privileged: bool,
    /// Whether the caller caches what programs write, as a kernel does. Then it sets the times of
    /// files itself, and hands over bytes that it took before a file became immutable.
    pub caches_writes: bool,
}

impl OpContext {
    /// Root at a given time on slot 0.
    #[must_use]
    pub const fn root_at(now: Timestamp) -> Self {
        Self { cpu: CpuSlot::ZERO, colour: 0, now, uid: 0, gid: 0, privileged: true, caches_writes: false }
    }

    /// Root on the slot of the calling thread, at the system's time: for programs that do not
    /// repeat runs.
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
