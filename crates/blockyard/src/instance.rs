//! The state of an open image that all its `FileSystem` clones and open files share. Any clone can
//! close the image for all.

use std::sync::Arc;

use blockyard_engine::{FileSystem as Engine, OpContext};
use blockyard_sync::{Mutex, rank};

use crate::background::{Alarm, Background};
use crate::context::Context;
use crate::error::{Bare, Reason};
use crate::shared_engine::SharedEngine;

/// An open image. `FileSystem` clones and open files hold an `Arc` of it. The background threads
/// hold only the engine. So the instance can be dropped while they run, and its drop stops them.
pub(crate) struct Instance {
    engine: Arc<SharedEngine>,
    background: Mutex<Option<Background>>,
}

impl Instance {
    pub(crate) fn new(engine: Engine) -> Self {
        Self { engine: Arc::new(SharedEngine::new(engine)), background: Mutex::new(rank::LEAF, None) }
    }

    /// Starts the threads that write back and commit. `alarm` must be the one that the engine rings
    /// when too much data is dirty.
    pub(crate) fn start_background(&self, alarm: &Arc<Alarm>, context: &Context) -> std::io::Result<()> {
        let threads = Background::start(&self.engine, alarm, context)?;
        *self.background.lock() = Some(threads);
        Ok(())
    }

    /// See [`SharedEngine::run`].
    pub(crate) fn run<T, E: Into<Reason>>(
        &self,
        ctx: &OpContext,
        operation: impl FnOnce(&Engine) -> Result<T, E>,
    ) -> Bare<T> {
        self.engine.run(ctx, operation)
    }

    /// Closes the image for all clones and open files.
    pub(crate) fn close(&self, ctx: &OpContext) -> Bare<()> {
        self.stop_background();
        match self.engine.take() {
            Some(engine) => Ok(engine.close(ctx)?),
            None => Err(Reason::Closed),
        }
    }

    fn stop_background(&self) {
        let threads = self.background.lock().take();
        if let Some(threads) = threads {
            threads.stop();
        }
    }
}

impl Drop for Instance {
    /// Stops the background threads, which hold the other references to the engine. The engine is
    /// then dropped with this instance, and closes the image.
    fn drop(&mut self) {
        self.stop_background();
    }
}
