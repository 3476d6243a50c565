//! Which images a power cut may leave, given a log of writes and flushes.
//!
//! An *epoch* consists of the events between two flushes. Everything of earlier epochs is on the
//! device, and so is every completed durable write of the current epoch. Any subset of the other
//! writes may be there. They may have arrived in any order, which matters where they overlap, and
//! each may be torn at 512-byte sectors. A durable write is optional only while it is in flight:
//! when it is the last event before the cut.
//!
//! Only the cuts during each durable write and at the end of each epoch are looked at. A cut at
//! another moment leaves no other states, because the writes issued after it are optional at the
//! next of these cuts. In addition, there is one state for each moment right after a write or
//! zeroing, and one for the start of the log, with all earlier events applied.

use std::fmt;

use blockyard_disk::num::{u64_from_usize, usize_from_u64};

use super::Event;
use crate::random::Random;
use crate::{BlockDevice, Result};

const SECTOR: u64 = 512;

/// How many states to look at.
#[derive(Clone, Copy, Debug)]
pub struct CrashPlan {
    /// Seed of every random choice.
    pub seed: u64,
    /// A cut with at most this many optional writes is tried with all subsets of them, each in the
    /// order of issue. More than 20 counts as 20.
    pub subsets_max: usize,
    /// A cut with more optional writes is tried with this many random subsets in random order. For
    /// each optional write it is also tried with this write alone, and with all but this write.
    pub random_subsets: usize,
    /// The number of torn variants, in each cut, of each optional write or zeroing of 2 to 4,096
    /// sectors; others are not torn. The first variant keeps only the sectors before a random
    /// position, the second only those from a random position on. Later variants keep random
    /// sectors.
    pub torn: usize,
}

impl Default for CrashPlan {
    fn default() -> Self {
        Self { seed: 1, subsets_max: 6, random_subsets: 8, torn: 2 }
    }
}

/// One event that reached the device, entirely or in part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Index in the log.
    pub event: usize,
    /// The sectors (counted from the first byte of the event) that arrived; `None` for all.
    pub sectors: Option<Vec<bool>>,
}

/// One state that a power cut may leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashState {
    /// The cut came after this many events were issued.
    pub point: usize,
    /// Events before this index all arrived.
    pub base: usize,
    /// What arrived of the events in `base..point`, in order of arrival.
    pub steps: Vec<Step>,
}

impl fmt::Display for CrashState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cut after {} events: all of the first {}", self.point, self.base)?;
        for step in &self.steps {
            write!(f, ", {}", step.event)?;
            if let Some(sectors) = &step.sectors {
                let bits: String = sectors.iter().map(|&kept| if kept { '1' } else { '0' }).collect();
                write!(f, " (sectors {bits})")?;
            }
        }
        Ok(())
    }
}

impl CrashState {
    /// Brings a device that has the content from before the recording into this state.
    ///
    /// # Errors
    /// Those of `device`.
    ///
    /// # Panics
    /// When `log` is not the log this state was made from.
    pub fn build(&self, log: &super::WriteLog, device: &dyn BlockDevice) -> Result<()> {
        log.apply_prefix(self.base, device)?;
        for step in &self.steps {
            let event = &log.events[step.event];
            match &step.sectors {
                None => event.apply(device)?,
                Some(sectors) => apply_torn(event, sectors, device)?,
            }
        }
        Ok(())
    }
}

/// Applies the chosen sectors of an event.
fn apply_torn(event: &Event, sectors: &[bool], device: &dyn BlockDevice) -> Result<()> {
    torn_pieces(event, sectors).try_for_each(|(offset, piece)| match piece {
        Piece::Bytes(bytes) => device.write_at(offset, bytes),
        Piece::Zeroes(length) => device.write_zeroes(offset, length),
    })
}

/// The change that a step makes at one position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// This many zeroes.
    Zeroes(u64),
}

impl super::WriteLog {
    /// The changes of a step, by first byte; empty for flushes, marks and discards (whose content
    /// is undefined).
    ///
    /// # Panics
    /// When the step is not of this log.
    #[must_use]
    pub fn pieces(&self, step: &Step) -> Vec<(u64, Piece<'_>)> {
        let event = &self.events[step.event];
        match (&step.sectors, event) {
            (Some(sectors), _) => torn_pieces(event, sectors).collect(),
            (None, Event::Write { offset, data, .. }) => vec![(*offset, Piece::Bytes(data))],
            (None, Event::Zero { offset, length }) => vec![(*offset, Piece::Zeroes(*length))],
            (None, Event::Discard { .. } | Event::Flush | Event::Mark(_)) => Vec::new(),
        }
    }
}

/// The chosen sectors of an event.
fn torn_pieces<'a>(event: &'a Event, sectors: &[bool]) -> impl Iterator<Item = (u64, Piece<'a>)> {
    let chosen = sectors.iter().enumerate().filter(|(_, kept)| **kept);
    chosen.filter_map(move |(index, _)| {
        let start = u64_from_usize(index) * SECTOR;
        match event {
            Event::Write { offset, data, .. } => {
                let end = (start + SECTOR).min(u64_from_usize(data.len()));
                Some((offset + start, Piece::Bytes(&data[usize_from_u64(start)..usize_from_u64(end)])))
            }
            Event::Zero { offset, length } => {
                Some((offset + start, Piece::Zeroes(SECTOR.min(length - start))))
            }
            Event::Discard { .. } | Event::Flush | Event::Mark(_) => None,
        }
    })
}

/// A cut: the epoch's first event, how many events were issued, and which of the epoch's events
/// must or may have arrived.
struct Cut {
    base: usize,
    point: usize,
    mandatory: Vec<usize>,
    optional: Vec<usize>,
}

pub(super) fn states<'a>(events: &'a [Event], plan: &'a CrashPlan) -> impl Iterator<Item = CrashState> + 'a {
    let prefixes = (0..=events.len())
        .filter(|&point| point == 0 || changes(&events[point - 1]))
        .map(|point| CrashState { point, base: point, steps: Vec::new() });
    prefixes.chain(cuts(events).into_iter().flat_map(move |cut| cut.states(events, plan)))
}

/// Whether two events change a byte in common. Discards change nothing here.
fn overlap(one: &Event, other: &Event) -> bool {
    let range = |event: &Event| match event {
        Event::Write { offset, data, .. } => *offset..offset + u64_from_usize(data.len()),
        Event::Zero { offset, length } => *offset..offset + length,
        Event::Discard { .. } | Event::Flush | Event::Mark(_) => 0..0,
    };
    let (one, other) = (range(one), range(other));
    one.start.max(other.start) < one.end.min(other.end)
}

fn changes(event: &Event) -> bool {
    matches!(event, Event::Write { .. } | Event::Zero { .. })
}

fn cuts(events: &[Event]) -> Vec<Cut> {
    let mut cuts = Vec::new();
    let mut base = 0;
    let mut mandatory = Vec::new();
    let mut optional = Vec::new();
    for (at, event) in events.iter().enumerate() {
        if changes(event) {
            optional.push(at);
        }
        let is_durable = matches!(event, Event::Write { is_durable: true, .. });
        let is_last = at + 1 == events.len();
        if !optional.is_empty() && (is_durable || is_last || matches!(event, Event::Flush)) {
            cuts.push(Cut { base, point: at + 1, mandatory: mandatory.clone(), optional: optional.clone() });
        }
        if is_durable {
            optional.pop();
            mandatory.push(at);
        }
        if matches!(event, Event::Flush) {
            base = at + 1;
            mandatory.clear();
            optional.clear();
        }
    }
    cuts
}

impl Cut {
    fn states(&self, events: &[Event], plan: &CrashPlan) -> Vec<CrashState> {
        let mut random = Random::new(plan.seed ^ u64_from_usize(self.point).rotate_left(32));
        let count = self.optional.len();
        let mut states = Vec::new();
        if count <= plan.subsets_max.min(20) {
            for mask in 0..1u64 << count {
                states.push(self.state(|index| mask >> index & 1 == 1));
            }
        } else {
            for one in 0..count {
                states.push(self.state(|index| index != one));
                states.push(self.state(|index| index == one));
            }
            for _ in 0..plan.random_subsets {
                let mut state = self.state(|_| random.next() & 1 == 1);
                random.shuffle(&mut state.steps);
                self.settle_mandatory(&mut state.steps, events);
                states.push(state);
            }
        }
        for &event in &self.optional {
            for variant in 0..plan.torn {
                states.extend(self.torn(event, variant, events, &mut random));
            }
        }
        states
    }

    /// All mandatory events, and the optional ones that `keep` selects, in issue order.
    fn state(&self, mut keep: impl FnMut(usize) -> bool) -> CrashState {
        let kept =
            self.optional.iter().enumerate().filter(|(index, _)| keep(*index)).map(|(_, &event)| event);
        let mut chosen: Vec<usize> = self.mandatory.iter().copied().chain(kept).collect();
        chosen.sort_unstable();
        let steps = chosen.into_iter().map(|event| Step { event, sectors: None }).collect();
        CrashState { point: self.point, base: self.base, steps }
    }

    /// Moves each mandatory step behind the steps that were issued before it and overlap it. Those
    /// steps cannot arrive later than the mandatory one, whose content was on the device when it
    /// completed.
    fn settle_mandatory(&self, steps: &mut [Step], events: &[Event]) {
        for &event in &self.mandatory {
            let is_older = |step: &Step| step.event < event && overlap(&events[step.event], &events[event]);
            let at = steps.iter().position(|step| step.event == event);
            if let (Some(at), Some(last)) = (at, steps.iter().rposition(is_older))
                && at < last
            {
                steps[at..=last].rotate_left(1);
            }
        }
    }

    /// A state in which everything before `torn` arrived, but only some sectors of `torn`. Of the
    /// later optional events either all arrived or none, at random. `None` for an event that is
    /// never torn.
    fn torn(&self, torn: usize, variant: usize, events: &[Event], random: &mut Random) -> Option<CrashState> {
        let length = match &events[torn] {
            Event::Write { data, .. } => u64_from_usize(data.len()),
            Event::Zero { length, .. } => *length,
            Event::Discard { .. } | Event::Flush | Event::Mark(_) => 0,
        };
        let sectors = usize_from_u64(length.div_ceil(SECTOR));
        // One sector cannot be torn. An event of more than 2 MiB (such as a zeroed gigabyte) has
        // too many sectors.
        if !(2..=4096).contains(&sectors) {
            return None;
        }
        let split = 1 + random.below(sectors - 1);
        let kept = (0..sectors).map(|index| match variant {
            0 => index < split,
            1 => index >= split,
            _ => random.next() & 1 == 1,
        });
        let kept: Vec<bool> = kept.collect();
        let later_survive = random.next() & 1 == 1;
        let optional = &self.optional;
        let mut state = self.state(|index| optional[index] <= torn || later_survive);
        let step = state.steps.iter_mut().find(|step| step.event == torn)?;
        step.sectors = Some(kept);
        Some(state)
    }
}
