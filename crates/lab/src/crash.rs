//! `lab crash`: simulates power cuts at random points of a workload, and judges three recoveries
//! from each cut.
//!
//! A workload runs on the engine with a journal, over a device that records writes and flushes. The
//! recording gives the images that a power cut could have left. The cut may come after any write,
//! and may lose, reorder or tear (at sectors) the writes since the last flush. A sample of these
//! images is judged. Each is recovered by our engine, by `e2fsck -fy` and by a mount. Each result
//! must pass our checker and `e2fsck -fn`, all three must be the same tree, and the tree must keep
//! every promise made before the cut. Some recoveries by our engine are interrupted by a second
//! power cut, and the image is recovered and judged again.
//!
//! Key decision: a state is named by its number in a fixed enumeration. So the workload, the block
//! size, the seed and this number reproduce the state, if the workload has one thread. All judged
//! states of one workload and block size differ in content, and so do all judged cuts of their
//! recoveries.

mod facts;
mod image;
mod judges;
mod stage;
mod states;
mod trial;
mod walk;
mod workloads;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use blockyard_engine::instruments::BrokenRule;
use serde::Serialize;

pub use judges::Judges;
use judges::{Bench, Keeper};
use stage::Recording;
use states::Sample;
use trial::Trial;
use workloads::{WORKLOADS, Workload};

use crate::scratch::Scratch;

/// What to try.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Names of workloads, from [`names`].
    pub workloads: Vec<String>,
    /// Block sizes in bytes, powers of two from 1024 to 65536. Each workload runs on each of them.
    pub block_sizes: Vec<u32>,
    /// Number of distinct states to judge, over all workloads and block sizes.
    pub states: usize,
    /// Seed of the workloads and of the sample.
    pub seed: u64,
    /// Name of a rule of durability for the engine to break, to check that this is detected; `None`
    /// to break none.
    pub mutant: Option<String>,
    /// Number of threads that judge.
    pub jobs: usize,
    /// Also cuts our recovery of one state in this many, at up to two points. 0: cuts no recovery.
    pub recovery_cuts: usize,
    /// Ends the run at its first failure.
    pub stop_at_first: bool,
    /// Judges only the state with this number; then there must be one workload and one block size.
    /// `None`: judges a random sample.
    pub only: Option<usize>,
    /// A directory for the images of failures; `None`: they are not kept.
    pub keep: Option<PathBuf>,
    /// Uses only our own recovery and checker.
    pub ours_only: bool,
    /// Directory for images while they are judged; `None`: `/dev/shm`, which is memory, or else the
    /// directory for temporary files.
    pub scratch: Option<PathBuf>,
}

/// The results of one workload on one block size.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The workload.
    pub workload: String,
    /// Bytes of a block.
    pub block_size: u32,
    /// Names of the operations that succeeded.
    pub operations: Vec<&'static str>,
    /// Recorded events: writes, zeroed and discarded ranges, flushes and marks.
    pub events: usize,
    /// Bytes written.
    pub bytes_written: u64,
    /// Promised facts.
    pub facts: usize,
    /// Crash states built, to choose states with different contents from them.
    pub tried: usize,
    /// Crash states judged; all have different contents.
    pub distinct: usize,
    /// Judged crash states whose cut is inside a commit or a checkpoint.
    pub in_windows: usize,
    /// Judged states that a second power cut, during our own recovery, left.
    pub in_recovery: usize,
    /// States left out because they tear the write of the superblock itself. Such a state can only
    /// be recovered from a backup superblock.
    pub left_out: usize,
    /// The failures.
    pub failures: Vec<Failure>,
}

/// A state that was not recovered correctly.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// The workload.
    pub workload: String,
    /// Bytes of a block.
    pub block_size: u32,
    /// The number of the state.
    pub state: usize,
    /// Description of the state.
    pub description: String,
    /// The judge that found the fault.
    pub judge: String,
    /// What the judge found.
    pub found: String,
    /// The command that reproduces the failure. For a workload with several threads, whose runs
    /// differ: a command that runs it again and keeps the images of failures.
    pub repeat: String,
}

/// Names and descriptions of the workloads.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    WORKLOADS.iter().map(|workload| (workload.name, workload.about))
}

/// Names of the rules that can be broken.
pub fn mutants() -> impl Iterator<Item = String> {
    BrokenRule::ALL.iter().map(|rule| mutant_name(*rule))
}

/// The name of a broken rule on the command line: `no-preflush` for `NoPreflush`.
fn mutant_name(rule: BrokenRule) -> String {
    let mut name = String::new();
    for letter in format!("{rule:?}").chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

impl Plan {
    /// Refuses a plan that cannot work, before anything runs.
    ///
    /// # Errors
    /// Says what is wrong and what to do.
    pub fn check(&self) -> Result<()> {
        self.parsed().map(drop)
    }

    fn parsed(&self) -> Result<(Vec<&'static Workload>, Option<BrokenRule>)> {
        ensure!(self.states > 0 && self.jobs > 0, "--states and --jobs take numbers from 1 up");
        let find = |name: &String| {
            let known: Vec<&str> = names().map(|(name, _)| name).collect();
            WORKLOADS
                .iter()
                .find(|workload| workload.name == name)
                .with_context(|| format!("workload {name:?} is unknown: use {} or all", known.join(", ")))
        };
        let workloads = self.workloads.iter().map(find).collect::<Result<Vec<_>>>()?;
        let is_size = |size: &&u32| size.is_power_of_two() && (1024..=65_536).contains(*size);
        if self.block_sizes.is_empty() || !self.block_sizes.iter().all(|size| is_size(&size)) {
            bail!("--block-size takes powers of two from 1024 to 65536");
        }
        if self.only.is_some() && (workloads.len(), self.block_sizes.len()) != (1, 1) {
            bail!("--state: give the one workload and the one --block-size that it belongs to");
        }
        let rule = self.mutant.as_ref().map(|name| {
            let known: Vec<String> = mutants().collect();
            let found = BrokenRule::ALL.into_iter().find(|rule| mutant_name(*rule) == *name);
            found.with_context(|| format!("mutant {name:?} is unknown: use {}", known.join(", ")))
        });
        Ok((workloads, rule.transpose()?))
    }
}

/// Runs the plan. `progress` is called before each row with its number (from 1) and workload.
/// `done` gets each row as soon as it is ready.
///
/// # Errors
/// Those of [`Plan::check`], of the engine while a workload runs, and of the judges' tools. A state
/// that is not recovered is a [`Failure`], not an error.
pub fn run(
    plan: &Plan,
    mut progress: impl FnMut(usize, &str),
    mut done: impl FnMut(&Row),
) -> Result<(Vec<Row>, Judges)> {
    let (workloads, rule) = plan.parsed()?;
    let scratch = scratch(plan)?;
    let judges = Judges::find(scratch.path());
    let _keeper = Keeper::start(&judges, scratch.path())?;
    let mut rows = Vec::new();
    let mut left = plan.states;
    let sizes = &plan.block_sizes;
    let all: Vec<_> = workloads.iter().flat_map(|one| sizes.iter().map(move |size| (*one, *size))).collect();
    for (index, &(workload, block_size)) in all.iter().enumerate() {
        progress(index + 1, workload.name);
        let count = left.div_ceil(all.len() - index);
        let judging = Judging { plan, judges: &judges, folder: scratch.path(), workload, block_size };
        let name = || format!("{} on blocks of {block_size}", workload.name);
        let row = judging.run(rule, count).with_context(name)?;
        left = left.saturating_sub(row.distinct);
        done(&row);
        let has_failed = !row.failures.is_empty();
        rows.push(row);
        if has_failed && plan.stop_at_first {
            break;
        }
    }
    Ok((rows, judges))
}

/// Creates a directory for images, in the plan's directory ([`Plan::scratch`]). If the plan has
/// none, then in `/dev/shm`, or else in the directory for temporary files.
fn scratch(plan: &Plan) -> Result<Scratch> {
    if let Some(folder) = &plan.scratch {
        return Scratch::new("crash", folder);
    }
    let in_memory = Scratch::new("crash", std::path::Path::new("/dev/shm"));
    in_memory.or_else(|_| Scratch::temporary("crash"))
}

/// The judging of one workload on one block size.
struct Judging<'a> {
    plan: &'a Plan,
    judges: &'a Judges,
    folder: &'a std::path::Path,
    workload: &'static Workload,
    block_size: u32,
}

/// What the threads share.
#[derive(Default)]
struct Shared {
    next: usize,
    in_recovery: usize,
    failures: Vec<Failure>,
    seen: HashSet<u64>,
}

impl Judging<'_> {
    fn run(&self, rule: Option<BrokenRule>, count: usize) -> Result<Row> {
        let recording = self.workload.record(self.block_size, self.plan.seed, rule)?;
        let sample = states::draw(&recording, count, self.plan.seed, self.plan.only)?;
        let shared = Mutex::new(Shared::default());
        let jobs = self.plan.jobs.min(sample.states.len()).max(1);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..jobs)
                .map(|job| {
                    let (recording, sample, shared) = (&recording, &sample, &shared);
                    scope.spawn(move || self.judge(job, recording, sample, shared))
                })
                .collect();
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })?;
        let mut shared = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
        shared.failures.sort_by_key(|failure| failure.state);
        // If a failure ended the run, the last states were not judged. States are taken in order,
        // so those before `next` were.
        let judged = &sample.states[..sample.states.len().min(shared.next)];
        Ok(Row {
            workload: self.workload.name.to_owned(),
            block_size: self.block_size,
            operations: recording.operations,
            events: recording.log.events().len(),
            bytes_written: states::bytes_written(&recording.log),
            facts: recording.facts.len(),
            tried: sample.tried,
            distinct: judged.len(),
            in_windows: judged.iter().filter(|candidate| candidate.in_window).count(),
            in_recovery: shared.in_recovery,
            left_out: sample.left_out,
            failures: shared.failures,
        })
    }

    /// The work of one thread: takes and judges the next state until none is left. The thread
    /// builds each image from the base of its previous state, instead of from the beginning.
    fn judge(
        &self,
        job: usize,
        recording: &Recording,
        sample: &Sample,
        shared: &Mutex<Shared>,
    ) -> Result<()> {
        let size = recording.base.bytes().len();
        let folder = self.folder.join(format!("{}-{job}", self.workload.name));
        let bench = if self.plan.ours_only {
            None
        } else {
            let judges = self.judges.of_blocks(self.block_size);
            Some(Bench::new(&judges, folder, blockyard_disk::num::u64_from_usize(size))?)
        };
        let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
        let mut image = recording.base.clone();
        let mut at = 0;
        loop {
            let index = {
                let mut shared = lock();
                if self.plan.stop_at_first && !shared.failures.is_empty() {
                    return Ok(());
                }
                shared.next += 1;
                shared.next - 1
            };
            let Some(candidate) = sample.states.get(index) else { return Ok(()) };
            image.advance(&recording.log, at..candidate.state.base);
            at = candidate.state.base;
            let known = recording.facts.known_at(candidate.state.point);
            let trial = Trial { bench: bench.as_ref(), facts: &recording.facts, known };
            let nested = match self.plan.recovery_cuts {
                0 => 0,
                every => usize::from(index.is_multiple_of(every)) * 2,
            };
            let seed = self.plan.seed ^ blockyard_disk::num::u64_from_usize(candidate.number);
            let is_new = |content| lock().seen.insert(content);
            let verdict = image.with_steps(&recording.log, &candidate.state.steps, |image| {
                let verdict = trial.judge(image, nested, seed, is_new);
                if !matches!(&verdict, Ok((_, None))) {
                    self.keep(candidate.number, image.bytes())?;
                }
                verdict
            });
            let (in_recovery, fault) = verdict?;
            let mut shared = lock();
            shared.in_recovery += in_recovery;
            if let Some((judge, found)) = fault {
                shared.failures.push(self.failure(candidate, judge, found));
            }
        }
    }

    fn keep(&self, state: usize, bytes: &[u8]) -> Result<()> {
        let Some(folder) = &self.plan.keep else { return Ok(()) };
        std::fs::create_dir_all(folder)?;
        let path =
            folder.join(format!("{}-{}-{}-{state}.img", self.workload.name, self.block_size, self.plan.seed));
        std::fs::write(&path, bytes).with_context(|| path.display().to_string())
    }

    fn failure(&self, candidate: &states::Candidate, judge: String, found: String) -> Failure {
        let Plan { seed, mutant, .. } = self.plan;
        let mutant = mutant.as_ref().map_or_else(String::new, |name| format!(" --mutant {name}"));
        let (name, block_size) = (self.workload.name, self.block_size);
        let which = format!("--workload {name} --block-size {block_size} --seed {seed}{mutant}");
        let repeat = if self.workload.repeats {
            format!("blockyard lab crash {which} --state {}", candidate.number)
        } else {
            format!("blockyard lab crash {which} --keep DIR (its threads run in another order each time)")
        };
        Failure {
            workload: name.to_owned(),
            block_size,
            state: candidate.number,
            description: candidate.state.to_string().chars().take(400).collect(),
            judge,
            found: found.chars().take(2000).collect(),
            repeat,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample of 40 states over two workloads. The 20 states of each workload are drawn from five
    /// times as many, and 65 % of them are in windows. Facts and writes are those of the recording.
    #[test]
    fn a_row_counts_what_was_judged() {
        let workloads: Vec<String> =
            WORKLOADS.iter().filter(|one| one.repeats).take(2).map(|one| one.name.to_owned()).collect();
        let plan = Plan {
            workloads,
            block_sizes: vec![1024],
            states: 40,
            seed: 1,
            mutant: None,
            jobs: 1,
            recovery_cuts: 10,
            stop_at_first: false,
            only: None,
            keep: None,
            ours_only: true,
            scratch: None,
        };
        let rows = run(&plan, |_, _| (), |_| ()).unwrap().0;
        assert_eq!(rows.len(), 2);
        for (row, name) in rows.iter().zip(&plan.workloads) {
            assert_eq!((&row.workload, row.block_size, row.failures.len()), (name, 1024, 0));
            assert_eq!((row.tried, row.distinct, row.in_windows), (100, 20, 13), "{row:?}");
            // At most two cuts each in the recoveries of the drawn states 0 and 10.
            assert!((1..=4).contains(&row.in_recovery), "{row:?}");
            let workload = WORKLOADS.iter().find(|one| one.name == name).unwrap();
            let recording = workload.record(1024, 1, None).unwrap();
            assert_eq!(row.facts, recording.facts.len());
            assert_eq!(row.events, recording.log.events().len());
            assert_eq!(row.bytes_written, states::bytes_written(&recording.log));
            assert!(row.facts > 0 && row.facts < row.events, "{row:?}");
        }
    }
}
