//! The two background threads of an open image, which [`ImageOptions::background`] asks for:
//!
//! - The write-back thread writes back dirty data that is old. When more than half of the limit of
//!   dirty data is dirty, this thread also writes back files that no operation is using, until at
//!   most a quarter of the limit is dirty.
//! - The commit thread commits old transactions. It is a thread of its own, so that a long
//!   write-back does not delay a commit.
//!
//! [`ImageOptions::background`]: crate::ImageOptions::background

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use blockyard_engine::{DataNotice, OpContext};
use blockyard_sync::{AtomicBool, Condvar, Mutex, Ordering, rank};

use crate::context::Context;
use crate::error::{Bare, Reason};
use crate::shared_engine::SharedEngine;

/// How often each thread looks for old work.
const PERIOD: Duration = Duration::from_secs(1);

/// The running threads.
pub(crate) struct Background {
    alarm: Arc<Alarm>,
    threads: Vec<JoinHandle<()>>,
}

/// Wakes the threads before their [`PERIOD`] is over: to write data back, or to end.
pub(crate) struct Alarm {
    /// Whether too much data is dirty. This flag is outside the mutex, so that a writer that finds
    /// it set takes no lock. Relaxed is enough: the writer that sets the flag takes the mutex
    /// before it wakes the thread, and the thread tests the flag under the mutex before it sleeps.
    is_too_much: AtomicBool,
    is_stopped: Mutex<bool>,
    rung: Condvar,
}

impl Alarm {
    /// An alarm that nobody has rung.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            is_too_much: AtomicBool::new(false),
            is_stopped: Mutex::new(rank::LEAF, false),
            rung: Condvar::new(),
        })
    }

    /// The function that the engine calls when too much data is dirty.
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

    /// Waits for one period or until the alarm rings, but not if the alarm has rung for this duty
    /// already. Returns whether the thread must end.
    fn wait(&self, duty: Duty) -> bool {
        let mut is_stopped = self.is_stopped.lock();
        let is_called = duty == Duty::WriteBack && self.is_too_much.load(Ordering::Relaxed);
        if !*is_stopped && !is_called {
            is_stopped = self.rung.wait_for(is_stopped, PERIOD).0;
        }
        *is_stopped
    }
}

impl Background {
    /// Starts the threads.
    pub(crate) fn start(
        engine: &Arc<SharedEngine>,
        alarm: &Arc<Alarm>,
        context: &Context,
    ) -> io::Result<Self> {
        let mut background = Self { alarm: Arc::clone(alarm), threads: Vec::new() };
        for duty in [Duty::WriteBack, Duty::Commit] {
            let (engine, heard, context) = (Arc::clone(engine), Arc::clone(alarm), context.clone());
            let body = move || {
                let mut told = None;
                while !heard.wait(duty) {
                    match duty.work(&engine, &heard, &context.now()) {
                        Ok(()) => told = None,
                        Err(Reason::Closed) => return,
                        // If data of a file could not be written, the next fsync of that file
                        // fails, too.
                        Err(error) => tell(error.to_string(), &mut told),
                    }
                }
            };
            match thread::Builder::new().name(duty.name().to_owned()).spawn(body) {
                Ok(thread) => background.threads.push(thread),
                Err(error) => {
                    background.stop();
                    return Err(error);
                }
            }
        }
        Ok(background)
    }

    /// Tells the threads to end, and waits for them.
    pub(crate) fn stop(self) {
        self.alarm.stop();
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a thread in the background panicked");
            }
        }
    }
}

/// Logs an error, unless it is the same as the last one logged (`told`): work that fails is tried
/// again every second.
fn tell(error: String, told: &mut Option<String>) {
    if told.as_ref() != Some(&error) {
        tracing::warn!(%error, "work in the background failed");
        *told = Some(error);
    }
}

/// The work of one of the two threads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Duty {
    WriteBack,
    Commit,
}

impl Duty {
    const fn name(self) -> &'static str {
        match self {
            Self::WriteBack => "blockyard-write",
            Self::Commit => "blockyard-commit",
        }
    }

    /// Does the work once.
    fn work(self, engine: &SharedEngine, alarm: &Alarm, ctx: &OpContext) -> Bare<()> {
        if self == Self::Commit {
            return engine.run(ctx, |engine| engine.commit_aged(ctx));
        }
        if alarm.is_too_much.swap(false, Ordering::Relaxed) {
            engine.run(ctx, |engine| engine.write_back_excess(ctx))?;
        }
        engine.run(ctx, |engine| engine.write_back_aged(ctx))
    }
}
