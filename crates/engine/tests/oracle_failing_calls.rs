//! One call to the device fails, alone or with all later calls of its kind. It fails during an
//! operation, or in the sync and close after that.
//!
//! With one thread, a full run (`BLOCKYARD_FULL=1`) tries every operation on every kind of image
//! and lets each call fail in turn. Other runs, and those with eight threads, draw at random what
//! is tried and which call fails.
//!
//! After an error, the operation's result and the names, sizes and contents of files are judged.
//! Each byte of a file must have its value from before or after the operation, unless unsynced data
//! was lost, and nothing may show behind the file's end. An image that is marked clean must pass
//! `e2fsck -fn`. Any other image with a journal must pass after our recovery, unless its superblock
//! is torn.
//!
//! A failing write once left blocks behind a file's size, and write-back mapped them unnoticed.
//! Tests that fail one call in a long run, and ask only whether the image can be repaired, did not
//! see this.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

#[path = "failing/cases.rs"]
mod cases;
#[path = "failing/expected.rs"]
mod expected;
#[path = "failing/images.rs"]
mod images;
#[path = "failing/judges.rs"]
mod judges;
#[path = "failing/operations.rs"]
mod operations;
#[path = "support/image.rs"]
mod support;
#[path = "failing/trial.rs"]
mod trial;

use blockyard_device::{Fault, Operation, OperationCounts};
use blockyard_testkit::{coverage, full_matrix, require, seed};
use images::IMAGES;
use judges::Bench;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use trial::{Base, Moments, WORKERS, alone, fault_at, together};

/// The kinds of call that can fail, and how many of each there were.
fn counts(of: &OperationCounts) -> [(Operation, u64); 5] {
    [
        (Operation::Read, of.reads),
        (Operation::Write, of.writes),
        (Operation::Zero, of.zeroes),
        (Operation::Discard, of.discards),
        (Operation::Flush, of.flushes),
    ]
}

/// Every call between two moments: its kind, and its number (from 1) among the calls of this kind.
fn calls_between(first: &OperationCounts, last: &OperationCounts) -> Vec<(Operation, u64)> {
    let pairs = counts(first).into_iter().zip(counts(last));
    pairs.flat_map(|((kind, from), (_, to))| (from + 1..=to).map(move |nth| (kind, nth))).collect()
}

/// Picks one call to fail: mostly one during the operation itself, and mostly a read if there are
/// any. `None` if there were no calls.
fn draw(moments: &Moments, random: &mut ChaCha8Rng) -> Option<Fault> {
    let during = calls_between(&moments.begun, &moments.done);
    let later = calls_between(&moments.seen, &moments.closed);
    let first = if random.random_range(0..10) < 7 { &during } else { &later };
    let from = if first.is_empty() { &later } else { first };
    let mut kinds: Vec<Operation> = from.iter().map(|(kind, _)| *kind).collect();
    kinds.dedup();
    let reads = kinds.first().filter(|_| random.random()).copied();
    let kind = reads.or_else(|| kinds.choose(random).copied())?;
    let calls: Vec<u64> = from.iter().filter(|call| call.0 == kind).map(|call| call.1).collect();
    // A late call is likely to come after the first changes.
    let last = calls.last().filter(|_| random.random()).copied();
    Some(fault_at(kind, last.or_else(|| calls.choose(random).copied())?, random))
}

/// How many trials a sample has: `TRIALS=n`, or the usual number.
fn trials(usual: usize) -> usize {
    std::env::var("TRIALS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Counts the trials and collects what went wrong.
#[derive(Default)]
struct Findings {
    tried: usize,
    found: Vec<String>,
}

impl Findings {
    fn note(&mut self, what: &str, verdict: Result<Moments, String>) {
        self.tried += 1;
        if let Err(why) = verdict {
            let text = format!("{what}: {}", why.chars().take(1200).collect::<String>());
            println!("FOUND {text}");
            self.found.push(text);
        }
    }

    fn assert_none(&self) {
        println!("{} trials", self.tried);
        assert!(self.found.is_empty(), "{} of {}: {:#?}", self.found.len(), self.tried, &self.found[..1]);
    }
}

/// The images to try: all, or the one that `IMAGE=name` names.
fn images() -> impl Iterator<Item = &'static images::Image> {
    let wanted = std::env::var("IMAGE").ok();
    IMAGES.iter().filter(move |image| wanted.as_ref().is_none_or(|name| name == image.name))
}

/// docs/testing.md must list the images and operations of this test.
#[test]
fn the_tables_are_told() {
    let blocks = IMAGES.iter().map(|image| (image.name, image.block()));
    coverage::assert_images("oracle_failing_calls", blocks);
    let cases: Vec<_> = IMAGES.iter().flat_map(cases::cases).collect();
    coverage::assert_operations("oracle_failing_calls", cases.iter().map(|case| case.op.name()));
}

#[test]
fn each_call_fails_during_each_operation() {
    if !require(&["e2fsck"]) {
        return;
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed(8));
    let (bench, mut findings) = (Bench::new(), Findings::default());
    let bases: Vec<Base> = images().map(|image| Base::new(*image, 1)).collect();
    let wanted = std::env::var("CASE").ok();
    let all = bases.iter().flat_map(|base| base.cases.iter().map(move |case| (base, case)));
    let mut all: Vec<_> =
        all.filter(|(_, case)| wanted.as_ref().is_none_or(|name| name == case.name)).collect();
    all.shuffle(&mut random);
    if !full_matrix() {
        all = all.iter().copied().cycle().take(trials(400)).collect();
    }
    for (base, case) in all {
        let manner = base.manner(&mut random);
        let name = format!("{}: {}, {manner:?}", base.image.name, case.name);
        let moments = match alone(&bench, base, case, manner, None) {
            Ok(moments) => moments,
            Err(why) => {
                findings.note(&format!("{name}, without any failure"), Err(why));
                continue;
            }
        };
        let mut faults: Vec<Fault> = draw(&moments, &mut random).into_iter().collect();
        if full_matrix() {
            let [during, later] = [(&moments.begun, &moments.done), (&moments.seen, &moments.closed)]
                .map(|(first, last)| calls_between(first, last));
            let each = |(kind, nth)| fault_at(kind, nth, &mut random);
            faults = during.into_iter().chain(later).map(each).collect();
        }
        for fault in faults {
            findings.note(&format!("{name}, {fault:?}"), alone(&bench, base, case, manner, Some(fault)));
        }
    }
    findings.assert_none();
}

#[test]
fn a_call_fails_under_eight_threads() {
    if !require(&["e2fsck"]) {
        return;
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed(9));
    let (bench, mut findings) = (Bench::new(), Findings::default());
    let bases: Vec<Base> = images().map(|image| Base::new(*image, WORKERS)).collect();
    let rounds = if full_matrix() { 20_000 } else { trials(60) };
    for round in 0..rounds {
        let base = &bases[round % bases.len()];
        let seed = random.random();
        let name = format!("{}: seed {seed}", base.image.name);
        let moments = match together(&bench, base, seed, None) {
            Ok(moments) => moments,
            Err(why) => {
                findings.note(&format!("{name}, without any failure"), Err(why));
                continue;
            }
        };
        let Some(fault) = draw(&moments, &mut random) else { continue };
        findings.note(&format!("{name}, {fault:?}"), together(&bench, base, seed, Some(fault)));
    }
    findings.assert_none();
}
