//! Threads for requests that wait.
//!
//! The threads that receive requests answer them themselves, which is quickest, as long as one of them stays free to receive: what
//! comes beyond that is handed to others, which are started as they are needed and end when they are idle. So a device that does
//! not answer holds up who waits for it, and nobody else, and many may wait for one commit together.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use blockyard_sync::{AtomicUsize, Condvar, Mutex, Ordering, rank};

/// A request that was handed over.
type Job = Box<dyn FnOnce() + Send>;

/// How long a thread waits for another request.
const IDLE: Duration = Duration::from_secs(10);
/// Threads at most: requests beyond wait for one of them.
const THREADS_MAX: usize = 512;

/// Who answers requests.
#[derive(Clone)]
pub(crate) struct Crew(Arc<Shared>);

struct Shared {
    /// Receiving threads that may be busy at once.
    busy_max: usize,
    /// Receiving threads that are. Relaxed: a count that only keeps one free.
    busy: AtomicUsize,
    waiting: Mutex<Waiting>,
    came: Condvar,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

/// A receiving thread that answers a request itself.
pub(crate) struct Busy<'a>(&'a AtomicUsize);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Crew {
    /// Beside so many receiving threads, at least 2.
    pub(crate) fn new(receivers: usize) -> Self {
        assert!(receivers >= 2, "one receives while another is busy");
        Self(Arc::new(Shared {
            busy_max: receivers - 1,
            busy: blockyard_sync::Atomic::new(0),
            waiting: Mutex::new(rank::LEAF, Waiting::default()),
            came: Condvar::new(),
        }))
    }

    /// Whether the calling thread, which receives, may answer what it received: as long as the answer lives it is busy.
    pub(crate) fn busy(&self) -> Option<Busy<'_>> {
        let shared = &*self.0;
        if shared.busy.fetch_add(1, Ordering::Relaxed) < shared.busy_max {
            return Some(Busy(&shared.busy));
        }
        shared.busy.fetch_sub(1, Ordering::Relaxed);
        None
    }

    /// Has another thread do it.
    pub(crate) fn hand_over(&self, job: Job) {
        let needs_thread = {
            let mut waiting = self.0.waiting.lock();
            waiting.jobs.push_back(job);
            let needs_thread = waiting.idle < waiting.jobs.len() && waiting.threads < THREADS_MAX;
            waiting.threads += usize::from(needs_thread);
            needs_thread
        };
        self.0.came.notify_one();
        if !needs_thread {
            return;
        }
        if let Err(error) = self.start() {
            tracing::error!(%error, "no thread could be started");
            let is_alone = {
                let mut waiting = self.0.waiting.lock();
                waiting.threads -= 1;
                waiting.threads == 0
            };
            // Nobody else would ever do it.
            if is_alone && let Some(job) = self.next() {
                run(job);
            }
        }
    }

    fn start(&self) -> io::Result<()> {
        let crew = self.clone();
        let thread = thread::Builder::new().name("blockyard-more".to_owned());
        thread.spawn(move || crew.work()).map(drop)
    }

    fn next(&self) -> Option<Job> {
        self.0.waiting.lock().jobs.pop_front()
    }

    /// What each thread does: one request after another, until none comes for a while.
    fn work(&self) {
        loop {
            let job = {
                let mut waiting = self.0.waiting.lock();
                let mut has_waited = false;
                loop {
                    if let Some(job) = waiting.jobs.pop_front() {
                        break job;
                    }
                    if has_waited {
                        waiting.threads -= 1;
                        return;
                    }
                    waiting.idle += 1;
                    let (guard, timed_out) = self.0.came.wait_for(waiting, IDLE);
                    waiting = guard;
                    waiting.idle -= 1;
                    has_waited = timed_out;
                }
            };
            run(job);
        }
    }
}

/// A request that panics fails by itself: the file system has become read-only, and the next request is told so.
pub(crate) fn run(job: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(job)).is_err() {
        tracing::error!("a request panicked");
    }
}

#[cfg(test)]
mod tests {
    use super::Crew;
    use std::sync::Arc;
    use std::sync::mpsc;

    #[test]
    fn one_receiver_stays_free() {
        let crew = Crew::new(3);
        let (one, other) = (crew.busy(), crew.busy());
        assert!(one.is_some() && other.is_some() && crew.busy().is_none());
        drop(one);
        assert!(crew.busy().is_some());
    }

    /// A hundred requests that wait for each other: all must be under way at once.
    #[test]
    fn those_who_wait_hold_up_nobody() {
        let crew = Crew::new(2);
        let barrier = Arc::new(std::sync::Barrier::new(100));
        let (done, ended) = mpsc::channel();
        for _ in 0..100 {
            let (barrier, done) = (Arc::clone(&barrier), done.clone());
            crew.hand_over(Box::new(move || {
                barrier.wait();
                done.send(()).unwrap();
            }));
        }
        for _ in 0..100 {
            ended.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
        }
    }

    #[test]
    fn a_panic_ends_one_request_only() {
        let crew = Crew::new(2);
        let (done, ended) = mpsc::channel();
        crew.hand_over(Box::new(|| panic!("on purpose")));
        crew.hand_over(Box::new(move || done.send(()).unwrap()));
        ended.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
    }
}
