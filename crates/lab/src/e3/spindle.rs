//! Computes the times of calls that share one disk. Each call arrives at its own time, even while
//! others wait.
//!
//! A call reads its metadata blocks one after the other, then reads or writes all runs of its
//! content at once. The time of a call is the time from its arrival to the end of its last request,
//! plus its processor time.
//!
//! The disk is a model of the `device` crate. When a request ends, the model chooses the next one
//! from its queue. A call that arrives while a request is served submits its own requests when that
//! request ends.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use blockyard_device::modelled::{Model, Request};

/// The requests of a call to the disk.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    /// Read one after the other.
    pub(super) metadata: VecDeque<Request>,
    /// Read or written all at once afterwards.
    pub(super) content: Vec<Request>,
    /// Additional processor time.
    pub(super) processor: Duration,
}

/// A call in progress.
struct Call {
    tag: usize,
    came: Duration,
    asked: Asked,
    /// Outstanding requests.
    left: usize,
}

/// A disk and the calls that wait for it.
pub(super) struct Spindle {
    model: Box<dyn Model>,
    /// The request that the disk has chosen, and when it ends.
    next_end: Option<(u64, Duration)>,
    /// The call that waits for each request.
    waiting: HashMap<u64, u64>,
    calls: HashMap<u64, Call>,
    /// Calls that arrived while the disk was working on its chosen request.
    doorway: Vec<u64>,
    numbers: u64,
    in_flight: usize,
    /// Tags and times of finished calls.
    ended: Vec<(usize, Duration)>,
}

impl Spindle {
    pub(super) fn new(model: Box<dyn Model>) -> Self {
        Self {
            model,
            next_end: None,
            waiting: HashMap::new(),
            calls: HashMap::new(),
            doorway: Vec::new(),
            numbers: 0,
            in_flight: 0,
            ended: Vec::new(),
        }
    }

    /// Adds a call that arrives at time `at`. Calls must be added in the order of their arrival.
    pub(super) fn come(&mut self, at: Duration, tag: usize, asked: Asked) {
        self.advance(at);
        if asked.metadata.is_empty() && asked.content.is_empty() {
            self.ended.push((tag, asked.processor));
            return;
        }
        let number = self.number();
        self.calls.insert(number, Call { tag, came: at, asked, left: 0 });
        if self.next_end.is_some() {
            self.doorway.push(number);
        } else {
            self.go_on(number, at);
        }
    }

    /// Lets all calls end. Returns the tags and times of the calls that ended and were not returned
    /// before.
    pub(super) fn finish(&mut self) -> Vec<(usize, Duration)> {
        self.advance(Duration::MAX);
        assert!(self.calls.is_empty(), "every call ends");
        std::mem::take(&mut self.ended)
    }

    /// Ends all requests that are done by time `to`.
    fn advance(&mut self, to: Duration) {
        loop {
            if self.next_end.is_none() && self.in_flight > 0 {
                self.next_end = self.model.take_ended();
            }
            let Some((request, at)) = self.next_end.filter(|(_, at)| *at <= to) else { return };
            self.next_end = None;
            self.in_flight -= 1;
            let call = self.waiting.remove(&request).expect("a call waits for each request");
            if let Some(known) = self.calls.get_mut(&call) {
                known.left -= 1;
                if known.left == 0 {
                    self.go_on(call, at);
                }
            }
            for call in std::mem::take(&mut self.doorway) {
                self.go_on(call, at);
            }
        }
    }

    /// Submits the next requests of a call, or ends it.
    fn go_on(&mut self, number: u64, now: Duration) {
        let call = self.calls.get_mut(&number).expect("the call is on its way");
        let requests = match call.asked.metadata.pop_front() {
            Some(request) => vec![request],
            None => std::mem::take(&mut call.asked.content),
        };
        call.left = requests.len();
        if requests.is_empty() {
            let call = self.calls.remove(&number).expect("the call is on its way");
            self.ended.push((call.tag, now - call.came + call.asked.processor));
            return;
        }
        for request in requests {
            let id = self.number();
            self.waiting.insert(id, number);
            self.in_flight += 1;
            self.model.submit(id, &request, now);
        }
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
}

#[cfg(test)]
mod tests {
    use blockyard_device::modelled::ModelParameters;

    use super::*;

    fn spindle() -> Spindle {
        let text = "model = \"latency\"\nrequest_us = 1000\nqueue = 1\nline_mb_s = 100000";
        Spindle::new(ModelParameters::parse(text).unwrap().model(1 << 30).unwrap())
    }

    fn reads(metadata: u64, content: u64) -> Asked {
        let of = |count: u64| (0..count).map(|number| Request::read(number * 4096, 0));
        let processor = Duration::from_micros(7);
        Asked { metadata: of(metadata).collect(), content: of(content).collect(), processor }
    }

    #[test]
    fn a_call_reads_its_metadata_and_then_its_content() {
        let mut spindle = spindle();
        spindle.come(Duration::ZERO, 0, reads(2, 1));
        spindle.come(Duration::from_secs(1), 1, reads(0, 0));
        spindle.come(Duration::from_secs(2), 2, reads(1, 0));
        let micros: Vec<(usize, u128)> =
            spindle.finish().into_iter().map(|(tag, time)| (tag, time.as_micros())).collect();
        assert_eq!(micros, [(0, 3007), (1, 7), (2, 1007)]);
    }

    /// The disk handles one request at a time. Ten calls of two requests each wait for each other,
    /// and the disk never idles between them.
    #[test]
    fn calls_wait_for_each_other() {
        let mut spindle = spindle();
        for tag in 0..10 {
            spindle.come(Duration::from_micros(100 * u64::try_from(tag).unwrap()), tag, reads(1, 1));
        }
        let ended = spindle.finish();
        assert_eq!(ended.len(), 10);
        let last = ended
            .iter()
            .map(|(tag, time)| *time + Duration::from_micros(100) * u32::try_from(*tag).unwrap())
            .max();
        assert_eq!(last.unwrap().as_micros(), 20_007, "twenty requests, one after the other");
    }
}
