//! Chooses the crash states of a recording to judge.
//!
//! Candidates are all states that [`WriteLog::crash_states`] enumerates, except those that tear a
//! write of the superblock. The order of the enumeration is fixed, so the number of a state is
//! enough to build it again. The sample is drawn with the seed, and its states have distinct
//! contents. It prefers states inside *windows*. A window is
//!
//! - the time from the first log write of a commit to the commit record, or
//! - the time from the first home write of a checkpoint to the write of the new tail.

use std::collections::HashSet;

use anyhow::{Context, Result, ensure};
use blockyard_device::{CrashPlan, CrashState, Event, Step, WriteLog};
use blockyard_disk::jbd2::{BlockKind, RawHeader, descriptor};
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use blockyard_recovery::{JournalPlace, Session};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::image::Image;
use super::stage::Recording;

/// A state to judge.
pub(super) struct Candidate {
    /// Its number among all states of the recording.
    pub(super) number: usize,
    pub(super) state: CrashState,
    /// Whether the cut lies inside a commit or a checkpoint.
    pub(super) in_window: bool,
    /// Hash of the image.
    pub(super) content: u64,
}

/// The drawn states, in the order of [`CrashState::base`].
pub(super) struct Sample {
    pub(super) states: Vec<Candidate>,
    /// States that were built and hashed to find distinct ones.
    pub(super) tried: usize,
    /// States that tear a write of the superblock.
    pub(super) left_out: usize,
}

/// Percentage of the drawn states that are in windows, if there are enough of both kinds.
const WINDOW_PERCENT: usize = 65;

/// What kinds of states are enumerated, and how many of each.
fn plan(seed: u64) -> CrashPlan {
    CrashPlan { seed, subsets_max: 6, random_subsets: 16, torn: 5 }
}

/// Draws up to `count` states with distinct contents; with `only`, just the state of that number.
pub(super) fn draw(recording: &Recording, count: usize, seed: u64, only: Option<usize>) -> Result<Sample> {
    let log = &recording.log;
    let windows = Windows::of(recording)?;
    let plan = plan(seed);
    let (mut all, mut left_out) = (0, 0);
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    for (number, state) in log.crash_states(&plan).enumerate() {
        all += 1;
        if only.is_some_and(|only| only != number) {
            continue;
        }
        if tears_superblock(log, &state) {
            left_out += 1;
            continue;
        }
        let in_window = windows.holds(&state);
        let list = if in_window { &mut inside } else { &mut outside };
        list.push(Candidate { number, state, in_window, content: 0 });
    }
    if let Some(only) = only {
        ensure!(only < all, "--state {only}: the states are 0 to {}", all - 1);
        ensure!(left_out == 0, "--state {only}: left out, as it tears the write of the superblock itself");
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    inside.shuffle(&mut random);
    outside.shuffle(&mut random);
    // Many states have equal contents, so build some spare ones.
    inside.truncate(count * 3);
    outside.truncate(count * 2);
    let tried = inside.len() + outside.len();
    let order: Vec<usize> = inside.iter().chain(&outside).map(|candidate| candidate.number).collect();
    let mut all: Vec<Candidate> = inside.into_iter().chain(outside).collect();
    hash_all(recording, &mut all);
    let mut states = choose(all, &order, count);
    states.sort_by_key(|candidate| (candidate.state.base, candidate.number));
    Ok(Sample { states, tried, left_out })
}

/// Sets the content hashes, and sorts the states by [`CrashState::base`].
fn hash_all(recording: &Recording, all: &mut [Candidate]) {
    all.sort_by_key(|candidate| (candidate.state.base, candidate.number));
    let mut image = recording.base.clone();
    let mut at = 0;
    for candidate in all {
        image.advance(&recording.log, at..candidate.state.base);
        at = candidate.state.base;
        candidate.content = image.with_steps(&recording.log, &candidate.state.steps, Image::hash);
    }
}

/// Chooses up to `count` candidates with distinct contents. `order` has the numbers of the
/// candidates as they were drawn; earlier ones are preferred.
fn choose(all: Vec<Candidate>, order: &[usize], count: usize) -> Vec<Candidate> {
    let mut by_number: std::collections::HashMap<usize, Candidate> =
        all.into_iter().map(|candidate| (candidate.number, candidate)).collect();
    let mut seen = HashSet::new();
    let drawn = order.iter().filter_map(|number| by_number.remove(number));
    let (mut inside, mut outside): (Vec<_>, Vec<_>) =
        drawn.filter(|candidate| seen.insert(candidate.content)).partition(|candidate| candidate.in_window);
    let wanted = (count * WINDOW_PERCENT / 100).max(count.saturating_sub(outside.len()));
    inside.truncate(wanted);
    outside.truncate(count - inside.len());
    inside.append(&mut outside);
    inside
}

/// Whether a state tears a write of the superblock. A superblock spans two sectors; if it is torn,
/// its checksum is wrong and only a backup helps. The same holds for Linux.
pub(super) fn tears_superblock(log: &WriteLog, state: &CrashState) -> bool {
    let tears = |step: &Step| {
        let (Some(sectors), Event::Write { offset, .. }) = (&step.sectors, &log.events()[step.event]) else {
            return false;
        };
        let has = |sector: u64| {
            let index = sector.checked_sub(offset / SECTOR).map(usize_from_u64);
            index.and_then(|index| sectors.get(index)).copied().unwrap_or(false)
        };
        has(SUPERBLOCK_SECTOR) != has(SUPERBLOCK_SECTOR + 1)
    };
    state.steps.iter().any(tears)
}

/// Bytes that a device writes atomically.
const SECTOR: u64 = 512;

/// The first sector of the superblock.
const SUPERBLOCK_SECTOR: u64 = 2;

/// Which events belong to commits and checkpoints.
struct Windows {
    /// For each event, whether it is in a window, and whether it ends the window.
    events: Vec<(bool, bool)>,
}

impl Windows {
    fn of(recording: &Recording) -> Result<Self> {
        // Use the final image: the base lacks the journal's features, which are set only when the
        // image is opened.
        let mut closed = recording.base.clone();
        closed.advance(&recording.log, 0..recording.log.events().len());
        let frozen = closed.frozen();
        let place = Session::open(&frozen)?.into_journal().context("an image without a journal")?;
        let mut events = vec![(false, false); recording.log.events().len()];
        let journal = Journal::new(&place);
        let mut logged = HashSet::new();
        let mut begun: Option<usize> = None;
        for (at, event) in recording.log.events().iter().enumerate() {
            let Event::Write { offset, data, is_durable } = event else { continue };
            let block = offset / u64_from_usize(journal.block_size);
            let is_log = journal.blocks.contains(&block);
            if is_log {
                journal.note_targets(data, &mut logged);
            }
            if begun.is_none() && (is_log || logged.contains(&block)) {
                begun = Some(at);
            }
            let ends = *is_durable && (is_log || block == journal.superblock);
            if let Some(first) = begun.filter(|_| ends) {
                events[first..=at].fill((true, false));
                events[at] = (true, true);
                begun = None;
            }
        }
        Ok(Self { events })
    }

    /// Whether a cut is inside a window, not at its very end.
    fn holds(&self, state: &CrashState) -> bool {
        let Some((inside, ends)) = state.point.checked_sub(1).map(|at| self.events[at]) else { return false };
        inside && !(ends && state.base == state.point)
    }
}

/// The position and format of the journal.
struct Journal {
    block_size: usize,
    /// Its blocks on the device, except its superblock.
    blocks: HashSet<u64>,
    superblock: u64,
    format: blockyard_disk::jbd2::LogFormat,
}

impl Journal {
    fn new(place: &JournalPlace) -> Self {
        let superblock = place.superblock_at();
        let physical = |block| place.physical(block).raw();
        Self {
            block_size: place.superblock().format().block_size(),
            blocks: (0..place.superblock().blocks())
                .filter(|block| *block != superblock)
                .map(physical)
                .collect(),
            superblock: physical(superblock),
            format: *place.superblock().format(),
        }
    }

    /// Looks for descriptor blocks in what was written to the log, and adds the home positions that
    /// they list to `targets`.
    fn note_targets(&self, written: &[u8], targets: &mut HashSet<u64>) {
        for block in written.chunks_exact(self.block_size) {
            if matches!(RawHeader::read(block), Some((Some(BlockKind::Descriptor), _))) {
                targets.extend(descriptor::tags(&self.format, block).map(|tag| tag.target.raw()));
            }
        }
    }
}

/// Draws at most `count` crash states of a recorded recovery.
pub(super) fn of_recovery(log: &WriteLog, count: usize, seed: u64) -> Vec<CrashState> {
    let plan = CrashPlan { seed, subsets_max: 3, random_subsets: 4, torn: 1 };
    let mut states: Vec<CrashState> =
        log.crash_states(&plan).filter(|state| state.point > 0 && !tears_superblock(log, state)).collect();
    states.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    states.truncate(count);
    states
}

/// The number of bytes written or zeroed.
pub(super) fn bytes_written(log: &WriteLog) -> u64 {
    let length = |event: &Event| match event {
        Event::Write { data, .. } => u64_from_usize(data.len()),
        Event::Zero { length, .. } => *length,
        _ => 0,
    };
    log.events().iter().map(length).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockyard_device::{BlockDevice, MemoryDevice, RecorderDevice};

    #[test]
    fn what_is_zeroed_is_written_too() {
        let device = RecorderDevice::new(MemoryDevice::new(1 << 20));
        device.write_at(0, &[1; 512]).unwrap();
        device.mark("0");
        device.write_zeroes(4096, 8192).unwrap();
        device.flush().unwrap();
        device.write_at(512, &[1; 1024]).unwrap();
        assert_eq!(bytes_written(&device.take_log()), 512 + 8192 + 1024);
    }
}
