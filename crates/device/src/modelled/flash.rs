//! Flash units that work in parallel behind one link: `ssd`, where a page has a fixed unit, and
//! `ftl`, where the page map decides which unit holds a page.
//!
//! A read looks up its pages and reads each from the unit that holds it. Then the data crosses the
//! link.
//!
//! The data of a write first crosses the link into the write buffer. There the write ends for the
//! host, and the pages are programmed from the buffer. If the buffer is full, a write waits until a
//! page has been programmed.
//!
//! The link serves requests in the order in which they are ready for it. A unit carries out its
//! operations in the order in which it gets them.

use std::collections::BTreeSet;
use std::time::Duration;

use blockyard_disk::num::{u32_from_u64, u64_from_u32, usize_from_u64};

use super::ftl::{FlashOperation, Ftl, FtlShape};
use super::{Model, ModelCounts, Request, RequestKind, filled, transfer};

/// Parameters of the models `ssd` and `ftl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    /// Units that work in parallel.
    pub units: u64,
    /// Bytes of a page.
    pub page: u64,
    /// Times to read a page, to program one, and to erase a block.
    pub times: [Duration; 3],
    /// Bytes a second of the link.
    pub link: u64,
    /// Time of the link for a command, besides its bytes.
    pub command: Duration,
    /// Time of the drive's own work for a command; other commands do not wait for it.
    pub controller: Duration,
    /// The most commands in flight.
    pub depth: usize,
    /// Pages in the write buffer.
    pub buffer: usize,
}

/// A command that has arrived: when it is ready for the link, and its number.
type Ready = (Duration, u64);

pub(super) struct Flash {
    parameters: Parameters,
    ftl: Option<Ftl>,
    unit_free: Vec<Duration>,
    link_free: Duration,
    ready: BTreeSet<Ready>,
    requests: std::collections::BTreeMap<u64, Request>,
    /// When each page in the write buffer will have been programmed. The number distinguishes equal
    /// times.
    programming: BTreeSet<(Duration, u64)>,
    pages_programmed: u64,
    durable: Duration,
}

impl Flash {
    pub(super) fn new(parameters: Parameters, shape: Option<FtlShape>) -> Self {
        Self {
            ftl: shape.map(Ftl::new),
            unit_free: filled(Duration::ZERO, parameters.units),
            link_free: Duration::ZERO,
            ready: BTreeSet::new(),
            requests: std::collections::BTreeMap::new(),
            programming: BTreeSet::new(),
            pages_programmed: 0,
            durable: Duration::ZERO,
            parameters,
        }
    }

    /// Pages that a range touches.
    fn pages(&self, request: &Request) -> std::ops::Range<u64> {
        request.offset / self.parameters.page..request.end().div_ceil(self.parameters.page)
    }

    /// Pages that lie entirely in a range.
    fn whole_pages(&self, request: &Request) -> std::ops::Range<u64> {
        request.offset.div_ceil(self.parameters.page)..request.end() / self.parameters.page
    }

    /// Occupies a unit from `now`, or from when it is free if that is later. Returns the end.
    fn occupy(&mut self, unit: u64, now: Duration, time: Duration) -> Duration {
        let free = &mut self.unit_free[usize_from_u64(unit)];
        *free = now.max(*free) + time;
        *free
    }

    /// The unit of a flash page: consecutive pages are on neighbouring units.
    const fn unit(&self, page: u64) -> u64 {
        page % self.parameters.units
    }

    /// The time at which all pages of a read have been read from the flash. Under `ftl`, logical
    /// pages that are not mapped need no access.
    fn read(&mut self, request: &Request, now: Duration) -> Duration {
        let mut end = now;
        for logical in self.pages(request) {
            let page = match &self.ftl {
                None => Some(logical),
                Some(ftl) => ftl.lookup(u32_from_u64(logical)).map(u64_from_u32),
            };
            if let Some(page) = page {
                end = end.max(self.occupy(self.unit(page), now, self.parameters.times[0]));
            }
        }
        end
    }

    /// Programs the pages of a write that reaches the buffer at `now`. Returns the time at which
    /// all its pages have found room in the buffer.
    fn program(&mut self, request: &Request, now: Duration) -> Duration {
        let mut taken = now;
        for logical in self.pages(request) {
            while self.programming.first().is_some_and(|(end, _)| *end <= taken) {
                self.programming.pop_first();
            }
            if self.programming.len() >= self.parameters.buffer {
                let (end, _) = self.programming.pop_first().expect("a full buffer holds pages");
                taken = taken.max(end);
            }
            let end = self.program_page(logical, taken);
            self.pages_programmed += 1;
            self.programming.insert((end, self.pages_programmed));
            self.durable = self.durable.max(end);
        }
        taken
    }

    fn program_page(&mut self, logical: u64, now: Duration) -> Duration {
        let Some(mut ftl) = self.ftl.take() else {
            return self.occupy(self.unit(logical), now, self.parameters.times[1]);
        };
        let mut end = now;
        ftl.write(u32_from_u64(logical), &mut |operation| end = self.operate(operation, end.max(now)));
        self.ftl = Some(ftl);
        end
    }

    /// Occupies the units for an operation of the map. A copy reads and programs. A block spans all
    /// units, so all of them erase. Returns the time at which the next operation may begin: after a
    /// copy `now`, otherwise the end of this operation. The next operation waits for a copy only at
    /// units that both use.
    fn operate(&mut self, operation: FlashOperation, now: Duration) -> Duration {
        let [read, program, erase] = self.parameters.times;
        let unit = |page: u32| u64_from_u32(page) % self.parameters.units;
        match operation {
            FlashOperation::Program { page, .. } => self.occupy(unit(page), now, program),
            FlashOperation::Copy { from, to } => {
                let (from, to) = (unit(from), unit(to));
                let out = self.occupy(from, now, read);
                self.occupy(to, out, program);
                now
            }
            FlashOperation::Erase { .. } => {
                let units = 0..self.parameters.units;
                units.map(|unit| self.occupy(unit, now, erase)).max().unwrap_or(now)
            }
        }
    }

    fn discard(&mut self, request: &Request) {
        let pages = self.whole_pages(request);
        if let Some(ftl) = &mut self.ftl {
            pages.for_each(|page| ftl.trim(u32_from_u64(page)));
        }
    }
}

impl Model for Flash {
    fn submit(&mut self, id: u64, request: &Request, now: Duration) {
        let begun = now + self.parameters.controller;
        let ready = match request.kind {
            RequestKind::Read => self.read(request, begun),
            _ => begun,
        };
        self.requests.insert(id, *request);
        self.ready.insert((ready, id));
    }

    fn take_ended(&mut self) -> Option<(u64, Duration)> {
        let (ready, id) = self.ready.pop_first()?;
        let request = self.requests.remove(&id).expect("what is ready was asked for");
        let bytes = if request.kind == RequestKind::Discard { 0 } else { request.length };
        let line = self.parameters.command + transfer(bytes, self.parameters.link);
        self.link_free = ready.max(self.link_free) + line;
        let end = match request.kind {
            RequestKind::Write | RequestKind::DurableWrite => self.program(&request, self.link_free),
            RequestKind::Discard => {
                self.discard(&request);
                self.link_free
            }
            RequestKind::Read | RequestKind::Flush => self.link_free,
        };
        Some((id, end))
    }

    fn durable_at(&self, now: Duration) -> Duration {
        self.durable.max(now)
    }

    fn depth(&self) -> usize {
        self.parameters.depth
    }

    fn is_rotational(&self) -> bool {
        false
    }

    fn counts(&self) -> ModelCounts {
        let Some(ftl) = &self.ftl else { return ModelCounts::default() };
        assert!(ftl.host_pages() <= self.pages_programmed, "each page that the map counts was programmed");
        ModelCounts {
            host_pages: ftl.host_pages(),
            programs: ftl.programs().to_vec(),
            erases: ftl.erases().to_vec(),
            ..ModelCounts::default()
        }
    }
}

/// The number of pages that hold so many bytes; the last page may be filled in part.
pub(super) fn pages_of(bytes: u64, page: u64) -> u64 {
    bytes.div_ceil(page.max(1))
}
