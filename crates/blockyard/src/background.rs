//! The thread that does what the timer of a mount does: write-back of what is old, and commits.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use blockyard_sync::{Condvar, Mutex, rank};

use crate::context::Context;
use crate::error::Reason;
use crate::shared_engine::SharedEngine;

/// Time between two looks at what is old.
const PERIOD: Duration = Duration::from_secs(1);

/// The running thread.
pub(crate) struct Background {
    stop: Arc<Stop>,
    thread: JoinHandle<()>,
}

struct Stop {
    is_asked: Mutex<bool>,
    asked: Condvar,
}

impl Background {
    /// Starts the thread.
    pub(crate) fn start(engine: Arc<SharedEngine>, context: Context) -> io::Result<Self> {
        let stop = Arc::new(Stop { is_asked: Mutex::new(rank::LEAF, false), asked: Condvar::new() });
        let stop_of_thread = Arc::clone(&stop);
        let body = move || {
            while !stop_of_thread.waits_until_asked() {
                let ctx = context.now();
                match engine.run(&ctx, |engine| engine.tick(&ctx)) {
                    Ok(()) => {}
                    Err(Reason::Closed) => return,
                    Err(error) => tracing::warn!(%error, "write-back in the background failed"),
                }
            }
        };
        let thread = thread::Builder::new().name("blockyard".to_owned()).spawn(body)?;
        Ok(Self { stop, thread })
    }

    /// Asks the thread to end, and waits for it.
    pub(crate) fn stop(self) {
        *self.stop.is_asked.lock() = true;
        self.stop.asked.notify_all();
        if self.thread.join().is_err() {
            tracing::error!("the thread in the background panicked");
        }
    }
}

impl Stop {
    /// Waits for one period, or until the thread is to end; gives whether it is.
    fn waits_until_asked(&self) -> bool {
        let mut is_asked = self.is_asked.lock();
        if !*is_asked {
            is_asked = self.asked.wait_for(is_asked, PERIOD).0;
        }
        *is_asked
    }
}
