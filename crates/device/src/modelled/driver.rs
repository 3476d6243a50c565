//! Keeps a model's clock and submits requests to the model: each when a caller makes it, or a whole
//! trace with at most a given number in flight.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Model, ModelCounts, Request, RequestKind};

/// A model with its clock and its queue.
pub struct Driver {
    model: Box<dyn Model>,
    now: Duration,
    /// When each request in flight arrived, by number.
    in_flight: BTreeMap<u64, Duration>,
    next: u64,
    figures: Figures,
}

/// Time and counts of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Time since the start.
    pub elapsed: Duration,
    /// Requests that have ended, including flushes and discards.
    pub requests: u64,
    /// Bytes of the reads submitted, also of those still in flight.
    pub read_bytes: u64,
    /// Bytes of the writes submitted, also of those still in flight.
    pub written_bytes: u64,
    /// The sum of all requests' times from arrival to end.
    pub latency_total: Duration,
    /// The longest of these times.
    pub latency_max: Duration,
    /// The model's counts.
    pub counts: ModelCounts,
}

impl Figures {
    /// Requests a second.
    #[must_use]
    pub fn requests_per_second(&self) -> f64 {
        blockyard_disk::num::count_as_f64(self.requests) / self.elapsed.as_secs_f64()
    }
}

impl Driver {
    /// A model without requests so far.
    ///
    /// # Panics
    /// When the model takes no request at all ([`Model::depth`] is 0).
    #[must_use]
    pub fn new(model: Box<dyn Model>) -> Self {
        assert!(model.depth() > 0, "a model takes at least one request");
        let (in_flight, figures) = (BTreeMap::new(), Figures::default());
        Self { model, now: Duration::ZERO, in_flight, next: 0, figures }
    }

    /// Whether the model has seek times.
    #[must_use]
    pub fn is_rotational(&self) -> bool {
        self.model.is_rotational()
    }

    /// Time and counts so far.
    #[must_use]
    pub fn figures(&self) -> Figures {
        Figures { elapsed: self.now, counts: self.model.counts(), ..self.figures.clone() }
    }

    /// Time since the start.
    #[must_use]
    pub const fn elapsed(&self) -> Duration {
        self.now
    }

    /// Advances the clock.
    pub fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// Submits a request, once the model has room for it. Returns its number, for
    /// [`Self::wait_for`].
    pub fn ask(&mut self, request: &Request) -> u64 {
        self.submit(request, usize::MAX)
    }

    /// Handles a caller's request:
    ///
    /// - a read: submits it, and waits until it has ended;
    /// - a durable write: submits it, and waits until it is durable;
    /// - another write or a discard: submits it;
    /// - a flush: waits until all earlier requests have ended and are durable.
    ///
    /// A request is submitted once the model has room for it.
    pub fn carry_out(&mut self, request: &Request) {
        match request.kind {
            RequestKind::Read => {
                let id = self.submit(request, usize::MAX);
                self.wait_for(id);
            }
            RequestKind::Write | RequestKind::Discard => {
                self.submit(request, usize::MAX);
            }
            RequestKind::DurableWrite => {
                let id = self.submit(request, usize::MAX);
                self.wait_for(id);
                self.now = self.now.max(self.model.durable_at(self.now));
            }
            RequestKind::Flush => self.flush(),
        }
    }

    /// Waits until nothing is in flight.
    pub fn drain(&mut self) {
        while !self.in_flight.is_empty() {
            self.wait_for_one();
        }
    }

    fn flush(&mut self) {
        let came = self.now;
        self.drain();
        self.now = self.now.max(self.model.durable_at(self.now));
        self.count(self.now - came);
    }

    /// Submits a request as soon as fewer than `depth` are in flight. A `depth` of 0 counts as 1,
    /// and one above the model's depth as the model's depth. The request arrives only when it is
    /// submitted, so the wait for room is no part of its time. Returns its number.
    fn submit(&mut self, request: &Request, depth: usize) -> u64 {
        let depth = depth.clamp(1, self.model.depth());
        while self.in_flight.len() >= depth {
            self.wait_for_one();
        }
        debug_assert!(self.in_flight.len() < depth, "a request comes only when there is room");
        let id = self.next;
        self.next += 1;
        self.model.submit(id, request, self.now);
        self.in_flight.insert(id, self.now);
        match request.kind {
            RequestKind::Read => add(&mut self.figures.read_bytes, request.length),
            RequestKind::Write | RequestKind::DurableWrite => {
                add(&mut self.figures.written_bytes, request.length);
            }
            RequestKind::Discard | RequestKind::Flush => {}
        }
        id
    }

    /// Waits until a request has ended.
    pub fn wait_for(&mut self, id: u64) {
        while self.in_flight.contains_key(&id) {
            self.wait_for_one();
        }
    }

    fn wait_for_one(&mut self) {
        let (id, at) = self.model.take_ended().expect("what is in flight ends");
        let came = self.in_flight.remove(&id).expect("a request ends once");
        assert!(at >= came, "request {id} ended before it came");
        // A request that ended while nobody waited for it does not set the clock back.
        self.now = self.now.max(at);
        self.count(at - came);
    }

    fn count(&mut self, latency: Duration) {
        self.figures.requests += 1;
        self.figures.latency_total += latency;
        self.figures.latency_max = self.figures.latency_max.max(latency);
    }
}

/// Counts bytes. A trace can ask for more than a counter holds: then the counter stays at its
/// maximum.
const fn add(bytes: &mut u64, more: u64) {
    *bytes = bytes.saturating_add(more);
}

/// Plays requests on a model with at most `depth` in flight (at least 1, and no more than the model
/// takes): each is submitted as soon as there is room. A flush waits for all requests before it.
#[must_use]
pub fn replay(model: Box<dyn Model>, requests: &[Request], depth: usize) -> Figures {
    let mut driver = Driver::new(model);
    for request in requests {
        if request.kind == RequestKind::Flush {
            driver.flush();
        } else {
            driver.submit(request, depth);
        }
    }
    driver.drain();
    driver.figures()
}
