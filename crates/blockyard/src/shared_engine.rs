//! The engine of an open image: operations share it, and a close takes it from them.
//!
//! There are several locks, so that two threads rarely touch the same cache line. Every operation
//! holds one of the locks in shared mode, chosen by CPU slot. A close takes each of the locks
//! exclusively. So an operation either ends before the image closes or is refused.

use std::sync::Arc;

use blockyard_engine::{Error as EngineError, FileSystem as Engine, OpContext};
use blockyard_sync::{CachePadded, RwLock, rank};

use crate::error::{Bare, Reason};

/// Locks per instance: enough that threads rarely share one.
const SHARDS: usize = 16;

/// One lock's reference to the engine; `None` once it is closed.
type Shard = CachePadded<RwLock<Option<Arc<Engine>>>>;

/// The engine until it is closed.
pub(crate) struct SharedEngine {
    // An array: with the length known at compile time, picking a shard takes no division.
    shards: Box<[Shard; SHARDS]>,
}

impl SharedEngine {
    pub(crate) fn new(engine: Engine) -> Self {
        let engine = Arc::new(engine);
        let shard = |_| CachePadded::new(RwLock::new(rank::INSTANCE, Some(Arc::clone(&engine))));
        Self { shards: Box::new(std::array::from_fn(shard)) }
    }

    /// Runs one operation, which must not call this method again: that would lock the shard a
    /// second time, and block for ever if a close already waits for the lock.
    pub(crate) fn run<T, E: Into<Reason>>(
        &self,
        ctx: &OpContext,
        operation: impl FnOnce(&Engine) -> Result<T, E>,
    ) -> Bare<T> {
        let shard = self.shards[ctx.cpu.index(SHARDS)].read();
        let engine = shard.as_ref().ok_or(Reason::Closed)?;
        let done = operation(engine).map_err(Into::into);
        if let Err(Reason::FileSystem(EngineError::Corrupt(found))) = &done {
            engine.note_damage(ctx, found);
        }
        done
    }

    /// Takes the engine out of all shards, so that new operations are refused; `None` if another
    /// close did so first.
    pub(crate) fn take(&self) -> Option<Engine> {
        let (first, others) = self.shards.split_first().expect("there are several");
        // Hold the first lock to the end, so that a concurrent close waits and then finds `None`.
        let mut first = first.write();
        let engine = first.take()?;
        for (order, shard) in (1..).zip(others) {
            *shard.write_ordered(order) = None;
        }
        Some(Arc::into_inner(engine).expect("every shard has given its reference back"))
    }
}
