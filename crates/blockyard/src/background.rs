//! The thread that does what the timer of a mount does: write-back of what is old or too much, and
//! commits.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use blockyard_engine::DataNotice;
use blockyard_sync::{AtomicBool, Condvar, Mutex, Ordering, rank};

use crate::context::Context;
use crate::error::{Bare, Reason};
use crate::shared_engine::SharedEngine;

/// Time between two looks at what is old.
const PERIOD: Duration = Duration::from_secs(1);

/// The running thread.
pub(crate) struct Background {
    alarm: Arc<Alarm>,
    thread: JoinHandle<()>,
}

/// What wakes the thread before its time.
pub(crate) struct Alarm {
    /// Too much data waits. Set outside the lock, so that writers that find it so do not queue;
    /// relaxed, as the lock that follows a change orders it.
    is_too_much: AtomicBool,
    is_stopped: Mutex<bool>,
    rung: Condvar,
}

impl Alarm {
    /// One that nobody has rung.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            is_too_much: AtomicBool::new(false),
            is_stopped: Mutex::new(rank::LEAF, false),
            rung: Condvar::new(),
        })
    }

    /// What the engine calls when much data waits.
    pub(crate) fn notice(self: &Arc<Self>) -> DataNotice {
        let alarm = Arc::clone(self);
        DataNotice(Arc::new(move || {
            if !alarm.is_too_much.load(Ordering::Relaxed) && !alarm.is_too_much.swap(true, Ordering::Relaxed)
            {
                drop(alarm.is_stopped.lock());
                alarm.rung.notify_all();
            }
        }))
    }

    fn stop(&self) {
        *self.is_stopped.lock() = true;
        self.rung.notify_all();
    }

    /// Waits for one period, or until it rings; gives whether the thread is to end.
    fn wait(&self) -> bool {
        let mut is_stopped = self.is_stopped.lock();
        if !*is_stopped && !self.is_too_much.load(Ordering::Relaxed) {
            is_stopped = self.rung.wait_for(is_stopped, PERIOD).0;
        }
        *is_stopped
    }
}

impl Background {
    /// Starts the thread.
    pub(crate) fn start(engine: Arc<SharedEngine>, alarm: Arc<Alarm>, context: Context) -> io::Result<Self> {
        let heard = Arc::clone(&alarm);
        let body = move || {
            while !heard.wait() {
                match work(&engine, &heard, &context) {
                    Ok(()) => {}
                    Err(Reason::Closed) => return,
                    // The next fsync tells the writer.
                    Err(error) => tracing::warn!(%error, "write-back in the background failed"),
                }
            }
        };
        let thread = thread::Builder::new().name("blockyard".to_owned()).spawn(body)?;
        Ok(Self { alarm, thread })
    }

    /// Asks the thread to end, and waits for it.
    pub(crate) fn stop(self) {
        self.alarm.stop();
        if self.thread.join().is_err() {
            tracing::error!("the thread in the background panicked");
        }
    }
}

/// Writes back what is too much, then what is old, and commits.
fn work(engine: &SharedEngine, alarm: &Alarm, context: &Context) -> Bare<()> {
    let ctx = context.now();
    if alarm.is_too_much.swap(false, Ordering::Relaxed) {
        engine.run(&ctx, |engine| engine.write_back_excess(&ctx))?;
    }
    engine.run(&ctx, |engine| engine.tick(&ctx))
}
