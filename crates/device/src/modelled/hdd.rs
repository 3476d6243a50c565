//! A disk with an arm: seek, rotation, transfer, and read-ahead into a buffer. Of the commands in
//! its queue, the drive serves the one that it can end soonest (not counting the transfer between
//! drive and host), unless another has waited too long. Before the queue is the host's elevator,
//! which moves upwards through the waiting requests and starts again at the lowest.
//!
//! The seek curve is `a + b·√d + c·d` for a distance `d` as a share of the stroke (`a` is the
//! shortest seek). b and c follow from the average over random positions and the full stroke. The
//! platter turns with the clock, so the wait for it is not random. A transfer continues over tracks
//! and zones at the rate of each zone; these rates are sustained ones, which include head changes.

mod geometry;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::{Model, ModelCounts, Request, RequestKind, transfer};
use geometry::Geometry;

/// Parameters of the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Parameters {
    /// Bytes of the whole disk; the device is at its beginning.
    pub bytes: u64,
    /// Number of zones.
    pub zones: u64,
    /// Bytes a second of the outermost and of the innermost track.
    pub rates: (u64, u64),
    /// Time of one rotation.
    pub turn: Duration,
    /// Time of the shortest seek, of a random one on average, and from edge to edge.
    pub seeks: [Duration; 3],
    /// Additional time per command.
    pub command: Duration,
    /// When the drive chooses among several commands, the head must reach the track at least this
    /// long before the command's position passes under it.
    pub margin: Duration,
    /// Bytes a second between host and buffer.
    pub line: u64,
    /// Bytes of read-ahead in a part of the buffer, and the number of parts.
    pub buffer: (u64, usize),
    /// The most commands in the drive, among which it chooses.
    pub queue: usize,
    /// The most requests in flight, in the elevator and in the drive together.
    pub host_queue: usize,
    /// A command that has waited longer than this comes first.
    pub patience: Duration,
}

/// A waiting request.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    request: Request,
    came: Duration,
}

/// Where the head is, and how far it reads ahead.
#[derive(Clone, Copy, Debug)]
struct Head {
    /// The end of the requests that the head has served since it was positioned. Read-ahead begins
    /// at this byte.
    byte: u64,
    /// When the head was at `byte`.
    at: Duration,
    /// Where read-ahead ends; `byte` when nothing is read ahead.
    until: u64,
    /// First byte of the range that the head has read without a gap since it was positioned.
    first: u64,
}

pub(super) struct Hdd {
    parameters: Parameters,
    geometry: Geometry,
    curve: [f64; 3],
    /// Requests that were not yet handed to the drive, by first byte and number.
    elevator: BTreeMap<(u64, u64), Waiting>,
    /// Commands in the drive, by number.
    commands: BTreeMap<u64, Waiting>,
    /// The byte from which the elevator moves upwards.
    floor: u64,
    head: Head,
    /// What earlier read-ahead left in the buffer, oldest first.
    buffer: VecDeque<(u64, u64)>,
    free: Duration,
    counts: ModelCounts,
}

/// The coefficients a, b and c of the seek curve, from the times of the shortest, the average and
/// the full seek. For random pairs of positions the mean of √d is 8/15, and the mean of d is 1/3.
fn curve([shortest, average, full]: [Duration; 3]) -> [f64; 3] {
    let [shortest, average, full] = [shortest, average, full].map(|time| time.as_secs_f64());
    let (root_mean, mean) = (8.0 / 15.0, 1.0 / 3.0);
    let root = ((average - shortest) - mean * (full - shortest)) / (root_mean - mean);
    [shortest, root, full - shortest - root]
}

impl Hdd {
    pub(super) fn new(parameters: Parameters) -> Self {
        let Parameters { bytes, zones, rates, turn, .. } = parameters;
        Self {
            geometry: Geometry::new(bytes, zones, rates, turn),
            curve: curve(parameters.seeks),
            elevator: BTreeMap::new(),
            commands: BTreeMap::new(),
            floor: 0,
            head: Head { byte: 0, at: Duration::ZERO, until: 0, first: 0 },
            buffer: VecDeque::new(),
            free: Duration::ZERO,
            counts: ModelCounts::default(),
            parameters,
        }
    }

    /// Time for the arm to move over `distance` of the stroke.
    fn seek(&self, distance: f64) -> Duration {
        let [shortest, root, linear] = self.curve;
        Duration::from_secs_f64((shortest + root * distance.sqrt() + linear * distance).max(0.0))
    }

    /// The time at which the head is over a byte, if it starts at `begin`. It must reach the track
    /// at least `margin` earlier.
    fn arrival(&self, byte: u64, begin: Duration, margin: Duration) -> Duration {
        let (from, to) = (self.geometry.place(self.head_byte(begin)), self.geometry.place(byte));
        let seek =
            if from.track == to.track { Duration::ZERO } else { self.seek((from.radius - to.radius).abs()) };
        let there = begin + seek + margin;
        let turn = self.parameters.turn.as_secs_f64();
        let angle = (there.as_secs_f64() / turn).fract();
        there + Duration::from_secs_f64((to.angle - angle).rem_euclid(1.0) * turn)
    }

    /// The byte up to which the head has read at `now`.
    fn head_byte(&self, now: Duration) -> u64 {
        let Head { byte, at, until, .. } = self.head;
        let rate = self.geometry.place(byte).rate;
        let nanoseconds = now.saturating_sub(at).as_nanos();
        let bytes = u128::from(rate) * nanoseconds / 1_000_000_000;
        byte.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX)).min(until).max(byte)
    }

    /// The time at which the head passes the end of a request, if the head need not be positioned
    /// anew; otherwise `None`. A read must begin in what the head has read since it was positioned.
    /// A write must begin where the previous request ended.
    fn in_passing(&self, request: &Request, begin: Duration) -> Option<Duration> {
        let Head { byte, at, until, first } = self.head;
        let is_read_on = match request.kind {
            RequestKind::Read => {
                // A head that has stopped reads no further than `until`.
                let reaches = request.end() <= until || self.head_byte(begin) < until;
                (first..=byte.max(self.head_byte(begin))).contains(&request.offset) && until > byte && reaches
            }
            // Such a write must have been waiting when the head reached its first byte.
            RequestKind::Write | RequestKind::DurableWrite => request.offset == byte && begin <= at,
            RequestKind::Discard | RequestKind::Flush => false,
        };
        is_read_on.then(|| at + self.geometry.transfer(byte, request.end().max(byte)))
    }

    /// When a request would be done, and how it would be served.
    fn served(&self, waiting: &Waiting, begin: Duration, margin: Duration) -> (Duration, Serving) {
        let request = &waiting.request;
        let line = transfer(request.length, self.parameters.line);
        if request.kind == RequestKind::Discard {
            return (begin + self.parameters.command, Serving::Buffer);
        }
        let is_buffered = |&(first, end): &(u64, u64)| first <= request.offset && request.end() <= end;
        if request.kind == RequestKind::Read && self.buffer.iter().any(is_buffered) {
            return (begin + self.parameters.command + line, Serving::Buffer);
        }
        // A request that waited for another one has spent its command time meanwhile.
        let ready = if waiting.came + self.parameters.command <= begin && self.commands.len() > 1 {
            begin
        } else {
            begin + self.parameters.command
        };
        if let Some(passed) =
            self.in_passing(request, if request.kind == RequestKind::Read { ready } else { waiting.came })
        {
            return (passed.max(ready + line), Serving::Passing(passed));
        }
        let arrival = self.arrival(request.offset, ready, margin);
        let passed = arrival + self.geometry.transfer(request.offset, request.end());
        (passed.max(arrival + line), Serving::Positioned(passed))
    }

    /// Moves requests that have arrived by `now` from the elevator to the drive, in the elevator's
    /// order, while the drive's queue has room.
    fn fill_queue(&mut self, now: Duration) {
        while self.commands.len() < self.parameters.queue {
            let has_come = |(_, waiting): &(&(u64, u64), &Waiting)| waiting.came <= now;
            let above = self.elevator.range((self.floor, 0)..).find(has_come);
            let Some((&key, &waiting)) = above.or_else(|| self.elevator.iter().find(has_come)) else { break };
            self.elevator.remove(&key);
            self.floor = waiting.request.end();
            self.commands.insert(key.1, waiting);
        }
    }

    /// The command to serve next: one that waited too long, else the one that is done first.
    fn choose(&self, begin: Duration) -> u64 {
        let oldest = self.commands.iter().min_by_key(|(id, waiting)| (waiting.came, **id));
        let (&oldest, waiting) = oldest.expect("something waits");
        if waiting.came + self.parameters.patience < begin {
            return oldest;
        }
        let margin = if self.commands.len() > 1 { self.parameters.margin } else { Duration::ZERO };
        let first = self.commands.iter().min_by_key(|(id, waiting)| {
            let line = transfer(waiting.request.length, self.parameters.line);
            // Ranked without the transfer to or from the host, so that long requests are not
            // delayed.
            (self.served(waiting, begin, margin).0.saturating_sub(line), **id)
        });
        *first.expect("something waits").0
    }

    fn serve(&mut self, id: u64, begin: Duration) -> Duration {
        let margin = if self.commands.len() > 1 { self.parameters.margin } else { Duration::ZERO };
        let waiting = self.commands[&id];
        let (end, serving) = self.served(&waiting, begin, margin);
        self.commands.remove(&id);
        let request = waiting.request;
        let is_read = request.kind == RequestKind::Read;
        if !is_read {
            self.buffer.retain(|&(first, end)| end <= request.offset || request.end() <= first);
        }
        let ahead = if is_read { self.parameters.buffer.0 } else { 0 };
        match serving {
            Serving::Buffer => self.counts.buffer_hits += 1,
            Serving::Passing(passed) => {
                let byte = request.end().max(self.head.byte);
                let first = if is_read { self.head.first } else { byte };
                self.head = Head { byte, at: passed, until: byte + ahead, first };
            }
            Serving::Positioned(passed) => {
                self.counts.positionings += 1;
                self.keep_read_ahead(begin);
                let byte = request.end();
                let first = if is_read { request.offset } else { byte };
                self.head = Head { byte, at: passed, until: byte + ahead, first };
            }
        }
        end
    }

    /// Keeps in the buffer what the head has read since it was positioned, because the head leaves
    /// at `now`. Of more bytes than a part of the buffer holds, only the last are kept.
    fn keep_read_ahead(&mut self, now: Duration) {
        let (segment, parts) = self.parameters.buffer;
        let end = self.head_byte(now);
        let first = self.head.first.max(end.saturating_sub(segment));
        if end > first {
            self.buffer.push_back((first, end));
        }
        while self.buffer.len() > parts {
            self.buffer.pop_front();
        }
    }
}

/// How a request is served. The time is when the head has passed the end of the request.
#[derive(Clone, Copy, Debug)]
enum Serving {
    Buffer,
    Passing(Duration),
    Positioned(Duration),
}

impl Model for Hdd {
    fn submit(&mut self, id: u64, request: &Request, now: Duration) {
        self.elevator.insert((request.offset, id), Waiting { request: *request, came: now });
    }

    fn take_ended(&mut self) -> Option<(u64, Duration)> {
        let all = self.elevator.values().chain(self.commands.values());
        let begin = all.map(|waiting| waiting.came).min()?.max(self.free);
        self.fill_queue(begin);
        let id = self.choose(begin);
        let end = self.serve(id, begin);
        self.free = end;
        Some((id, end))
    }

    /// Writes end when they are on the platter.
    fn durable_at(&self, now: Duration) -> Duration {
        now
    }

    fn depth(&self) -> usize {
        self.parameters.host_queue
    }

    fn is_rotational(&self) -> bool {
        true
    }

    fn counts(&self) -> ModelCounts {
        self.counts.clone()
    }
}
