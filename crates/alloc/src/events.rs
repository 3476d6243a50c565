//! One event of fixed size for each decision, and the sinks that receive events.
//!
//! The fields are those of the kernel's tracepoints `ext4_mballoc_alloc` and
//! `ext4_mballoc_prealloc`, so that a recorded kernel run and ours can be compared line by line. An
//! event has 64 bytes.

use std::sync::Arc;

use blockyard_disk::num::usize_from_u32;
use blockyard_sync::{Backend, CachePadded, CpuSlot, Mutex, Native, Rank, rank};

/// A run of clusters in a group, with the logical block it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct EventExtent {
    /// Group.
    pub group: u32,
    /// Cluster offset in the group; `u32::MAX` for a goal that names only a group.
    pub start: u32,
    /// Clusters.
    pub len: u32,
    /// Logical block.
    pub logical: u32,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum EventKind {
    /// A search found an extent, whatever the `search` slot is.
    #[default]
    Search,
    /// An inode or locality preallocation served the request.
    Prealloc,
    /// Nothing was found.
    NoSpace,
    /// Not emitted: a cursor search that found an extent is [`Self::Search`].
    Cursor,
}

/// One decision of the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct AllocEvent {
    /// What was asked for (after clamping).
    pub original: EventExtent,
    /// The goal at the end. Normalisation, the stream goal and trimming may have changed it.
    pub goal: EventExtent,
    /// What was found, before the asked part was cut from it. For a request that an existing
    /// preallocation served, only the part taken.
    pub result: EventExtent,
    /// The inode.
    pub inode: u32,
    /// Candidates counted over the whole request.
    pub found: u32,
    /// Groups scanned over the whole request, low 16 bits.
    pub scanned: u16,
    /// Final request flags, low 16 bits.
    pub flags: u16,
    /// Criterion at the end:
    ///
    /// - with the ladder, 0 to 4; under `visit=scan` also 5, when all criteria were exhausted,
    /// - without the ladder, 4,
    /// - for exact goals and preallocations, 0.
    pub criterion: u8,
    /// How the request ended.
    pub kind: EventKind,
    /// CPU slot of the caller, low 16 bits.
    pub cpu: u16,
}

const _: () = assert!(size_of::<AllocEvent>() == 64);

/// Receives events. The allocator calls the sink at the end of a request, when it holds no lock.
/// The sink must be cheap and must not call the allocator.
pub trait EventSink: Send + Sync {
    /// One decision made on `cpu`.
    fn emit(&self, cpu: CpuSlot, event: &AllocEvent);
}

impl<S: EventSink + ?Sized> EventSink for Arc<S> {
    fn emit(&self, cpu: CpuSlot, event: &AllocEvent) {
        (**self).emit(cpu, event);
    }
}

/// A ring of the latest events for each CPU slot.
#[derive(Debug)]
pub struct EventRings<B: Backend = Native> {
    rings: Box<[CachePadded<Mutex<Ring, B>>]>,
}

#[derive(Debug)]
struct Ring {
    events: Box<[AllocEvent]>,
    /// Where the next event goes.
    next: usize,
    emitted: u64,
}

const RING: Rank = rank::LEAF;

impl<B: Backend> EventRings<B> {
    /// Rings of `capacity` events (at least 1) for each of `cpus` slots.
    #[must_use]
    pub fn new(cpus: u32, capacity: u32) -> Self {
        let ring = || {
            let events = vec![AllocEvent::default(); usize_from_u32(capacity.max(1))].into_boxed_slice();
            CachePadded::new(Mutex::new(RING, Ring { events, next: 0, emitted: 0 }))
        };
        Self { rings: (0..cpus.max(1)).map(|_| ring()).collect() }
    }

    /// Takes out the events of every slot, oldest first within a slot. Also returns how many events
    /// were overwritten since the last call.
    #[must_use]
    pub fn drain(&self) -> (Vec<AllocEvent>, u64) {
        let mut all = Vec::new();
        let mut lost = 0;
        debug_assert!(!self.rings.is_empty(), "no CPU slot");
        for ring in &self.rings {
            let mut ring = ring.lock();
            let capacity = blockyard_disk::num::u64_from_usize(ring.events.len());
            let kept = ring.emitted.min(capacity);
            lost += ring.emitted - kept;
            let index = |n: u64| blockyard_disk::num::usize_from_u64(n % capacity);
            all.extend((ring.emitted - kept..ring.emitted).map(|n| ring.events[index(n)]));
            ring.emitted = 0;
            ring.next = 0;
        }
        (all, lost)
    }
}

impl<B: Backend> EventSink for EventRings<B> {
    fn emit(&self, cpu: CpuSlot, event: &AllocEvent) {
        let mut ring = self.rings[cpu.index(self.rings.len())].lock();
        let at = ring.next;
        debug_assert!(at < ring.events.len(), "event {at} of a ring of {}", ring.events.len());
        ring.events[at] = *event;
        ring.next = if at + 1 == ring.events.len() { 0 } else { at + 1 };
        ring.emitted += 1;
    }
}
