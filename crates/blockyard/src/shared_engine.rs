//! The engine of an open image, as operations and who closes it share it.
//!
//! Every operation holds one of several locks shared, by CPU slot, so that two threads rarely touch
//! one cache line; closing takes all of them. So an operation is either done before the image is
//! closed or refused.

use std::sync::Arc;

use blockyard_engine::{Error as EngineError, FileSystem as Engine, OpContext};
use blockyard_sync::{CachePadded, RwLock, rank};

use crate::error::{Bare, Reason};

/// Locks of an instance: enough that threads rarely share one.
const SHARDS: usize = 16;

/// The engine as one of the locks guards it; nothing once it is closed.
type Shard = CachePadded<RwLock<Option<Arc<Engine>>>>;

/// The engine, until it is closed.
pub(crate) struct SharedEngine {
    // Their number is known when this is compiled: finding one takes no division.
    shards: Box<[Shard; SHARDS]>,
}

impl SharedEngine {
    pub(crate) fn new(engine: Engine) -> Self {
        let engine = Arc::new(engine);
        let shard = |_| CachePadded::new(RwLock::new(rank::INSTANCE, Some(Arc::clone(&engine))));
        Self { shards: Box::new(std::array::from_fn(shard)) }
    }

    /// Runs one operation. It must not begin another.
    pub(crate) fn run<T, E: Into<Reason>>(
        &self,
        ctx: &OpContext,
        operation: impl FnOnce(&Engine) -> Result<T, E>,
    ) -> Bare<T> {
        let shard = self.shards[ctx.cpu.index(SHARDS)].read();
        let engine = shard.as_ref().ok_or(Reason::Closed)?;
        let done = operation(engine).map_err(Into::into);
        if let Err(Reason::FileSystem(EngineError::Corrupt(_))) = &done {
            engine.note_damage(ctx);
        }
        done
    }

    /// Takes the engine away from everybody; nothing when somebody has.
    pub(crate) fn take(&self) -> Option<Engine> {
        let (first, others) = self.shards.split_first().expect("there are several");
        // Closing holds the first to the end; another close waits, and finds nothing.
        let mut first = first.write();
        let engine = first.take()?;
        for (order, shard) in (1..).zip(others) {
            *shard.write_ordered(order) = None;
        }
        Some(Arc::into_inner(engine).expect("every shard has given its reference back"))
    }
}
