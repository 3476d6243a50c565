//! Threads for requests that block.
//!
//! Receiving threads answer requests themselves, because that is fastest. But one of them must stay
//! free to receive. So further requests are handed to extra threads, which start on demand and end
//! when idle. A device that stops answering then holds up only the requests that wait for it, and
//! many requests can wait for one commit together.
//!
//! The thread that became idle last is used first. So threads that only a burst needed stay idle,
//! end, and give their memory back even while requests continue.
//!
//! Some requests wait for the kernel, which in turn waits for answers to other requests. If all
//! threads waited for the kernel, no thread could answer the other requests. So the number of
//! threads that wait for the kernel is limited:
//!
//! extra threads that wait for the kernel <= `ASKING_MAX` < `THREADS_MAX`

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use blockyard_sync::{AtomicUsize, Condvar, Mutex, Ordering, rank};

/// A request that was handed over.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// How long an idle thread waits for another request.
const IDLE: Duration = Duration::from_secs(10);
/// The most extra threads. Further requests wait for one of them.
const THREADS_MAX: usize = 512;
/// The most extra threads that may wait for the kernel at once.
const ASKING_MAX: usize = 64;
const _: () = assert!(ASKING_MAX < THREADS_MAX);

/// Decides which thread answers a request.
#[derive(Clone)]
pub(crate) struct Crew(Arc<Shared>);

struct Shared {
    /// The most receiving threads that may be busy at once.
    busy_max: usize,
    /// The number of receiving threads that are busy. Accessed relaxed, because the count guards no
    /// data: it only keeps one of these threads free.
    busy: AtomicUsize,
    waiting: Mutex<Waiting>,
    /// How long an idle thread waits for another request.
    patience: Duration,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    /// Jobs that will wait for the kernel. A job is queued here if `asking` is [`ASKING_MAX`].
    jobs_asking: VecDeque<Job>,
    /// The number of jobs that wait for the kernel, or will as soon as a thread runs them. Jobs in
    /// `jobs_asking` do not count.
    asking: usize,
    /// The number of extra threads, idle or not.
    threads: usize,
    /// The condition variables of the idle threads that nobody has woken, in the order in which the
    /// threads became idle.
    idle: Vec<Arc<Condvar>>,
}

impl Waiting {
    /// Removes a thread from the list of idle threads. Returns whether it was there, which means
    /// that nobody has woken it.
    fn strike(&mut self, bell: &Arc<Condvar>) -> bool {
        let at = self.idle.iter().position(|idle| Arc::ptr_eq(idle, bell));
        at.map(|at| self.idle.remove(at)).is_some()
    }
}

/// While this value lives, a receiving thread counts as busy.
pub(crate) struct Busy<'a>(&'a AtomicUsize);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Crew {
    /// A crew for `receivers` receiving threads, at least 2.
    pub(crate) fn new(receivers: usize) -> Self {
        Self::with_patience(receivers, IDLE)
    }

    fn with_patience(receivers: usize, patience: Duration) -> Self {
        assert!(receivers >= 2, "one receives while another is busy");
        Self(Arc::new(Shared {
            busy_max: receivers - 1,
            busy: blockyard_sync::Atomic::new(0),
            waiting: Mutex::new(rank::LEAF, Waiting::default()),
            patience,
        }))
    }

    /// Asks whether the calling (receiving) thread may answer its request itself. The thread counts
    /// as busy while the returned value lives; `None` means that it must stay free to receive.
    pub(crate) fn busy(&self) -> Option<Busy<'_>> {
        let shared = &*self.0;
        if shared.busy.fetch_add(1, Ordering::Relaxed) < shared.busy_max {
            return Some(Busy(&shared.busy));
        }
        shared.busy.fetch_sub(1, Ordering::Relaxed);
        None
    }

    /// Lets an extra thread do the job. If there is none and none can be started, the caller does
    /// all jobs that wait.
    pub(crate) fn hand_over(&self, job: Job) {
        let (bell, needs_thread) = {
            let mut waiting = self.0.waiting.lock();
            waiting.jobs.push_back(job);
            let bell = waiting.idle.pop();
            let needs_thread = bell.is_none() && waiting.threads < THREADS_MAX;
            waiting.threads += usize::from(needs_thread);
            (bell, needs_thread)
        };
        if let Some(bell) = bell {
            bell.notify_one();
        }
        if !needs_thread {
            return;
        }
        if let Err(error) = self.start() {
            tracing::error!(%error, "no thread could be started");
            self.0.waiting.lock().threads -= 1;
            // If there are no extra threads, nobody else would ever run the jobs in the queue. They
            // may include the job of another caller whose thread failed to start, too: that caller
            // left the job in the queue because our thread was counted at that time.
            while let Some(job) = self.next_without_threads() {
                run(job);
            }
        }
    }

    /// As [`Crew::hand_over`], for a job that waits until the kernel has sent other requests and
    /// got their answers.
    pub(crate) fn hand_over_asking(&self, job: Job) {
        {
            let mut waiting = self.0.waiting.lock();
            if waiting.asking == ASKING_MAX {
                waiting.jobs_asking.push_back(job);
                return;
            }
            waiting.asking += 1;
        }
        let crew = self.clone();
        self.hand_over(Box::new(move || {
            run(job);
            while let Some(job) = crew.next_asking() {
                run(job);
            }
        }));
    }

    /// Takes the next job from `jobs_asking`. If there is none, the caller no longer counts in
    /// `asking`.
    fn next_asking(&self) -> Option<Job> {
        let mut waiting = self.0.waiting.lock();
        let job = waiting.jobs_asking.pop_front();
        debug_assert!(waiting.asking > 0, "a job that was not counted");
        waiting.asking -= usize::from(job.is_none());
        job
    }

    fn start(&self) -> io::Result<()> {
        let crew = self.clone();
        let thread = thread::Builder::new().name("blockyard-more".to_owned());
        thread.spawn(move || crew.work()).map(drop)
    }

    /// The job that has waited longest, if there are no extra threads.
    fn next_without_threads(&self) -> Option<Job> {
        let mut waiting = self.0.waiting.lock();
        if waiting.threads == 0 { waiting.jobs.pop_front() } else { None }
    }

    /// The loop of each extra thread: one request after another, until none comes for a while.
    fn work(&self) {
        let bell = Arc::new(Condvar::new());
        while let Some(job) = self.await_job(&bell) {
            run(job);
        }
    }

    /// The next request, or `None` if the thread must end.
    fn await_job(&self, bell: &Arc<Condvar>) -> Option<Job> {
        let mut waiting = self.0.waiting.lock();
        loop {
            if let Some(job) = waiting.jobs.pop_front() {
                return Some(job);
            }
            waiting.idle.push(Arc::clone(bell));
            let (guard, timed_out) = bell.wait_for(waiting, self.0.patience);
            waiting = guard;
            let is_called = !waiting.strike(bell);
            if timed_out && !is_called {
                debug_assert!(waiting.threads > waiting.idle.len(), "a thread that is not counted");
                waiting.threads -= 1;
                return None;
            }
        }
    }
}

/// Runs a job. A panic fails only this request. If it interrupted an operation of the file system,
/// later changes fail, because the file system is read-only from then on.
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
    use std::time::{Duration, Instant};

    #[test]
    fn one_receiver_stays_free() {
        let crew = Crew::new(3);
        let (one, other) = (crew.busy(), crew.busy());
        assert!(one.is_some() && other.is_some() && crew.busy().is_none());
        drop(one);
        assert!(crew.busy().is_some());
    }

    /// A hundred requests that wait for each other, so all of them must run at once.
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

    /// A burst starts 20 threads. Then single requests come, each before a thread's patience ends.
    #[test]
    fn threads_that_only_a_burst_needed_end_while_requests_go_on() {
        let crew = Crew::with_patience(2, Duration::from_millis(500));
        let barrier = Arc::new(std::sync::Barrier::new(21));
        for _ in 0..20 {
            let barrier = Arc::clone(&barrier);
            crew.hand_over(Box::new(move || {
                barrier.wait();
            }));
        }
        barrier.wait();
        let (done, ended) = mpsc::channel();
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(3) {
            let done = done.clone();
            crew.hand_over(Box::new(move || done.send(()).unwrap()));
            ended.recv_timeout(Duration::from_secs(60)).unwrap();
            blockyard_testkit::wait_until("the thread is idle again", || {
                let waiting = crew.0.waiting.lock();
                waiting.idle.len() == waiting.threads
            });
        }
        let threads = crew.0.waiting.lock().threads;
        assert!(threads <= 4, "{threads} threads are kept for one request at a time");
    }

    /// More jobs than there may be threads wait for the kernel. For each job, the kernel first
    /// sends a request of its own, which also needs a thread.
    #[test]
    fn those_who_ask_the_kernel_leave_threads_for_its_requests() {
        const ASKING: usize = super::THREADS_MAX + 50;
        let crew = Crew::new(2);
        let gate = Arc::new(std::sync::RwLock::new(()));
        let closed = gate.write().unwrap();
        let (done, ended) = mpsc::channel();
        for number in 0..ASKING {
            let (kernel, gate, done) = (crew.clone(), Arc::clone(&gate), done.clone());
            let ask = move || {
                drop(gate.read().unwrap());
                let (answer, answered) = mpsc::channel();
                kernel.hand_over(Box::new(move || answer.send(()).unwrap()));
                answered.recv().unwrap();
                done.send(()).unwrap();
                assert!(number > 0, "a panic on purpose also ends the wait");
            };
            crew.hand_over_asking(Box::new(ask));
        }
        drop(closed);
        for _ in 0..ASKING {
            ended.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        blockyard_testkit::wait_until("nobody asks", || crew.0.waiting.lock().asking == 0);
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
