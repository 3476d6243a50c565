//! A device at the other end of a network. Many requests are served in parallel. All take the same
//! time, unless the line needs longer for the bytes. All requests share the line.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Model, ModelCounts, Request, RequestKind, transfer};

/// Parameters of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    /// Time of a request, unless its bytes need longer on the line.
    pub time: Duration,
    /// Requests served in parallel.
    pub depth: usize,
    /// Bytes per second of the line.
    pub line: u64,
}

pub(super) struct Latency {
    parameters: Parameters,
    /// When each slot is free, soonest first. The number distinguishes equal times.
    places: BTreeSet<(Duration, usize)>,
    line_free: Duration,
    ends: BTreeSet<(Duration, u64)>,
}

impl Latency {
    pub(super) fn new(parameters: Parameters) -> Self {
        let places = (0..parameters.depth).map(|place| (Duration::ZERO, place)).collect();
        Self { parameters, places, line_free: Duration::ZERO, ends: BTreeSet::new() }
    }
}

impl Model for Latency {
    fn submit(&mut self, id: u64, request: &Request, now: Duration) {
        let (free, place) = self.places.pop_first().expect("a model serves at least one request");
        let bytes = if request.kind == RequestKind::Discard { 0 } else { request.length };
        let begin = now.max(free);
        self.line_free = begin.max(self.line_free) + transfer(bytes, self.parameters.line);
        let end = (begin + self.parameters.time).max(self.line_free);
        self.places.insert((end, place));
        self.ends.insert((end, id));
    }

    fn take_ended(&mut self) -> Option<(u64, Duration)> {
        self.ends.pop_first().map(|(at, id)| (id, at))
    }

    fn durable_at(&self, now: Duration) -> Duration {
        now + self.parameters.time
    }

    fn depth(&self) -> usize {
        self.parameters.depth
    }

    fn is_rotational(&self) -> bool {
        false
    }

    fn counts(&self) -> ModelCounts {
        ModelCounts::default()
    }
}
