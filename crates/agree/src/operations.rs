//! Agreement with the kernel's ext4, level 2: the same operations on both sides, compared image by
//! image and decision by decision.
//!
//! One start image is copied. The running kernel plays a trace on one copy (loop mount, root), the
//! engine plays it on the other with the policy `linux-6.18`. Then the layouts of both images, read
//! from their bytes, are compared. So are the decisions (the kernel's tracepoints against our
//! allocator's events), the outcomes of the lines, and the counters of `mb_stats`. With
//! [`Other::Kernel`] the kernel plays on the second copy, too: its agreement with itself is the
//! ceiling.
//!
//! To be comparable, both sides run with the following:
//!
//! - no periodic write-back ([`write_back`]),
//! - no periodic commits (the kernel's interval is a day),
//! - one CPU for each worker,
//! - bitmaps loaded the same way ([`Loading`]),
//! - a device that reports the same about seek times ([`Plan::rotational`]).
//!
//! The engine is told what it cannot know. One such input is the number of possible CPUs. The
//! others come from the kernel's run ([`Given`]): the colour of the player's thread, the time of
//! each line, the commits that no line asked for, and when the I/O of the kernel's write-back ended
//! ([`io_ends`]).

pub mod compare;
pub mod conversions;
pub mod decisions;
pub mod io_ends;
pub mod layout;
pub mod matrix;

mod mount_options;
mod mounted;
mod vfs;
mod write_back;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use blockyard_alloc::Tunable;
use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::Timestamp;
use blockyard_disk::num::u32_from_usize;
use blockyard_engine::instruments::{Instruments, IoEndSource, IoEnds};
use blockyard_engine::{Events, FileSystem, OpenOptions};
use blockyard_inspect::reader::Reader;
use blockyard_lab::age::Ageing;
use blockyard_lab::scratch::Scratch;
use blockyard_lab::trace::play::engine::EnginePlayer;
use blockyard_lab::trace::play::{Outcome, Player};
use blockyard_trace::{Line, Op};
use serde::Serialize;

use self::compare::{Difference, Shares};
use self::conversions::Conversion;
use self::decisions::{Collector, Commit, Decision, DecisionShares};
use self::io_ends::Schedule;
use self::layout::Layout;
use self::mount_options::MountOptions;
use self::mounted::{Mounted, Mounting, Played};
use self::vfs::Passed;
use self::write_back::Quiet;
use super::{kernel, lived, mke2fs};

/// When the groups' bitmaps are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Loading {
    /// All bitmaps, right after each mount.
    All,
    /// On demand.
    Lazy,
}

/// Who plays the second copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Other {
    /// The engine.
    Engine,
    /// The kernel once more: the ceiling.
    Kernel,
}

/// A comparison.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Arguments of mke2fs, blank-separated.
    pub mke2fs: String,
    /// Bytes of the image.
    pub size: u64,
    /// Mount options, comma-separated. A plan with an option that the engine does not follow is
    /// refused, unless the kernel plays the second copy.
    pub mount: String,
    /// When bitmaps are loaded.
    pub loading: Loading,
    /// Whether the device reports itself as one with seek times, so that the allocator looks at a
    /// few groups in order first (the linear prefix).
    pub rotational: bool,
    /// Seed of the content, and of the ageing by `lived`.
    pub seed: u64,
    /// Who plays the second copy.
    pub other: Other,
    /// A trace that the kernel plays first, on a new image; both sides start from the result.
    pub ageing: Option<Vec<Line>>,
    /// How to age a new image in the engine. Then `ageing` is not used.
    pub lived: Option<Ageing>,
    /// Directory for images; each comparison creates its own directory there.
    pub scratch: PathBuf,
    /// An image to start from instead of a new one. It is copied, and not aged.
    pub start: Option<PathBuf>,
    /// Directory to keep the images in, as `start`, `theirs` and `ours`, with the decisions and
    /// `mb_stats` of both sides and the text of the kernel's trace.
    pub keep: Option<PathBuf>,
}

impl Plan {
    /// Checks that whoever plays the second copy can follow the mount options.
    fn check(&self) -> Result<()> {
        match self.other {
            Other::Engine => MountOptions::parse(&self.mount).map(drop),
            Other::Kernel => Ok(()),
        }
    }
}

/// The result of a comparison.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Agreement {
    /// Lines played.
    pub lines: usize,
    /// Lines with different outcomes.
    pub outcomes_differ: usize,
    /// Agreement of the images.
    pub shares: Shares,
    /// Agreement of the decisions.
    pub decisions: DecisionShares,
    /// Commits that the kernel made where the trace has no commit point.
    pub own_commits: usize,
    /// Counters of `mb_stats`: the kernel's, ours.
    pub stats: BTreeMap<String, (u64, u64)>,
    /// The first difference, explained. Differences in what was chosen take precedence. Then come
    /// those in outcomes, those in files, and those in how a choice was found.
    pub first: Option<String>,
    /// The first files that differ.
    pub files: Vec<String>,
}

impl Agreement {
    /// The counters that differ by more than one per cent. The number of buddies generated is not
    /// among them: the kernel rebuilds buddies after memory ran short or caches were dropped.
    #[must_use]
    pub fn stats_apart(&self) -> Vec<&str> {
        let apart = |(theirs, ours): &(u64, u64)| theirs.abs_diff(*ours) * 100 > (*theirs).max(*ours);
        let differs = |(name, counts): &(&String, &(u64, u64))| *name != "buddies_generated" && apart(counts);
        self.stats.iter().filter(differs).map(|(name, _)| name.as_str()).collect()
    }

    /// Adds the numbers of another comparison. Takes over the other's first difference if this one
    /// has none, and leaves `files` alone.
    pub fn add(&mut self, other: &Self) {
        self.lines += other.lines;
        self.outcomes_differ += other.outcomes_differ;
        self.own_commits += other.own_commits;
        let (to, from) = (&mut self.shares, &other.shares);
        to.inodes.add(from.inodes);
        to.extents.add(from.extents);
        to.bytes.add(from.bytes);
        to.directory_extents.add(from.directory_extents);
        to.tree_blocks.add(from.tree_blocks);
        to.block_bitmaps.add(from.block_bitmaps);
        to.inode_bitmaps.add(from.inode_bitmaps);
        let (to, from) = (&mut self.decisions, &other.decisions);
        to.placements.add(from.placements);
        to.criteria.add(from.criteria);
        to.all.add(from.all);
        self.first = self.first.take().or_else(|| other.first.clone());
        for (name, (theirs, ours)) in &other.stats {
            let sum = self.stats.entry(name.clone()).or_default();
            *sum = (sum.0 + theirs, sum.1 + ours);
        }
    }
}

/// Largest number of differing files that are named.
const NAMED_MAX: usize = 12;

/// The kernel plays a trace at most this many times, until a run is undisturbed. Where space is
/// short, the kernel writes back on its own, which looks the same as a disturbance.
const DISTURBED_MAX: u32 = 3;

/// What the engine is told about the kernel's run because no rule determines it.
struct Given {
    /// Colour and times; the outcomes are not used.
    played: Played,
    /// The kernel's commits. The engine gets only those that no line of the trace asked for.
    commits: Vec<Commit>,
    /// When the I/O of the kernel's write-back ended.
    conversions: Vec<Conversion>,
}

/// The state of one side after the trace.
struct Side {
    outcomes: Vec<Outcome>,
    decisions: Vec<Decision>,
    stats: String,
    /// The text of the kernel's trace; empty for the engine.
    text: String,
    device: Arc<dyn BlockDevice>,
}

/// While this value exists, no other comparison runs on the machine, and the kernel does no
/// periodic write-back.
pub struct Session {
    _quiet: Quiet,
}

impl Session {
    /// Waits until no other comparison runs.
    ///
    /// # Errors
    /// When this machine lacks something (root, a program, ext4, tracefs), or the settings of
    /// write-back cannot be changed.
    pub fn start() -> Result<Self> {
        if let Some(missing) = kernel::missing() {
            bail!("cannot compare with the kernel here: missing {missing}");
        }
        blockyard_lab::scratch::clean_leftovers();
        Ok(Self { _quiet: Quiet::start()? })
    }

    /// Plays a trace on both sides and compares.
    ///
    /// # Errors
    /// When a program or the kernel refuses, the engine does not follow a mount option, the trace
    /// cannot be played, or an image cannot be read or kept.
    pub fn compare(&self, plan: &Plan, lines: &[Line]) -> Result<Agreement> {
        self.compare_from(plan, &self.start_image(plan)?, lines)
    }

    /// Like [`Self::compare`], on an image made by [`Self::start_image`].
    ///
    /// # Errors
    /// As [`Self::compare`].
    pub fn compare_from(&self, plan: &Plan, start: &Arc<MemoryDevice>, lines: &[Line]) -> Result<Agreement> {
        let (theirs, mut given) = undisturbed(plan, start, lines)?;
        given.commits = own_commits(lines, &given.commits);
        let own_commits = given.commits.len();
        let ours = match plan.other {
            Other::Kernel => undisturbed(plan, start, lines)?.0,
            Other::Engine => on_engine(plan, start.duplicate(), lines, given)?,
        };
        let mut agreement = judge(start, &theirs, &ours, lines)?;
        agreement.own_commits = own_commits;
        if let Some(directory) = &plan.keep {
            keep(directory, start, &theirs, &ours)?;
        }
        Ok(agreement)
    }

    /// The image that both sides start from, aged when the plan says so. An image that the plan
    /// names is not aged.
    ///
    /// # Errors
    /// As [`Self::compare`].
    pub fn start_image(&self, plan: &Plan) -> Result<Arc<MemoryDevice>> {
        plan.check()?;
        if let Some(path) = &plan.start {
            let device = MemoryDevice::load(path)?;
            mounting(plan, &device).with_context(|| format!("start from {}", path.display()))?;
            return Ok(Arc::new(device));
        }
        let folder = Scratch::new("start", &plan.scratch)?;
        let path = folder.path().join("image");
        std::fs::File::create(&path)?.set_len(plan.size)?;
        mke2fs::make(&plan.mke2fs, &path)?;
        let device = MemoryDevice::load(&path)?;
        if let Some(ageing) = &plan.lived {
            return Ok(Arc::new(lived::aged(device, ageing, plan.seed)?));
        }
        let Some(ageing) = &plan.ageing else { return Ok(Arc::new(device)) };
        let mounted = Mounted::start(&device, mounting(plan, &device)?, &plan.scratch)?;
        mounted.play(ageing, plan.seed).context("age the image")?;
        Ok(Arc::new(mounted.finish()?))
    }
}

fn mounting<'p>(plan: &'p Plan, image: &MemoryDevice) -> Result<Mounting<'p>> {
    let Plan { mount, loading, rotational, .. } = plan;
    Ok(Mounting {
        options: mount,
        loading: *loading,
        has_journal: has_journal(image)?,
        rotational: *rotational,
    })
}

fn on_kernel(plan: &Plan, start: &MemoryDevice, lines: &[Line]) -> Result<(Side, Given)> {
    let mut mounted = Mounted::start(start, mounting(plan, start)?, &plan.scratch)?;
    mounted.observe()?;
    let played = mounted.play(lines, plan.seed)?;
    let text = mounted.recorded()?;
    let recorded = decisions::parse(&text)?;
    let stats = mounted.stats()?;
    let side = Side {
        outcomes: played.outcomes.clone(),
        decisions: recorded.decisions,
        stats,
        text,
        device: Arc::new(mounted.finish()?),
    };
    Ok((side, Given { played, commits: recorded.commits, conversions: recorded.conversions }))
}

/// Plays the trace on the kernel, and repeats it after a disturbed run: one in which delayed data
/// was allocated during a write or mkdir, probably because of a `sync` elsewhere on the machine.
/// The last of [`DISTURBED_MAX`] runs counts even if it was disturbed.
fn undisturbed(plan: &Plan, start: &MemoryDevice, lines: &[Line]) -> Result<(Side, Given)> {
    const DELALLOC_RESERVED: u16 = 0x400;
    let mut tries = 0;
    loop {
        let played = on_kernel(plan, start, lines)?;
        tries += 1;
        let disturbs = |decision: &Decision| {
            let line = lines.get(blockyard_disk::num::usize_from_u32(decision.line));
            let writes_nothing =
                line.is_some_and(|line| matches!(line.op, Op::Pwrite { .. } | Op::Mkdir { .. }));
            decision.flags & DELALLOC_RESERVED != 0 && writes_nothing
        };
        if tries == DISTURBED_MAX || !played.0.decisions.iter().any(disturbs) {
            return Ok(played);
        }
    }
}

/// The commits that the kernel made during operations that do not ask for one.
fn own_commits(lines: &[Line], commits: &[Commit]) -> Vec<Commit> {
    let asks =
        |line: &Line| matches!(line.op, Op::Sync | Op::Fsync { .. } | Op::Fdatasync { .. } | Op::Remount);
    let is_own = |commit: &&Commit| {
        let line = lines.get(blockyard_disk::num::usize_from_u32(commit.closed));
        line.is_some_and(|line| !asks(line))
    };
    commits.iter().filter(is_own).copied().collect()
}

fn on_engine(plan: &Plan, image: MemoryDevice, lines: &[Line], given: Given) -> Result<Side> {
    let like = like(plan, &image)?;
    let device: Arc<dyn BlockDevice> = Arc::new(image);
    let collector = Arc::new(Collector::default());
    let Given { played: theirs, commits, conversions } = given;
    let schedule = Arc::new(Schedule::new(conversions, Arc::clone(&collector)));
    let mut options = OpenOptions { events: Some(Events(Arc::<Collector>::clone(&collector))), ..like };
    options.instruments.io_ends = Some(IoEnds(Arc::<Schedule>::clone(&schedule)));
    let loading = plan.loading;
    let prepare = move |fs: &FileSystem| {
        let allocator = fs.allocator();
        allocator.set_tunable(Tunable::Stats, 1)?;
        if loading == Loading::All {
            allocator.groups()?;
        }
        Ok(())
    };
    let identity = (plan.seed, theirs.colour);
    let mut player = EnginePlayer::new(Arc::clone(&device), options, Box::new(prepare), identity);
    player.set_time(theirs.times.first().copied().unwrap_or(Timestamp::from_seconds(0)));
    player.file_system()?;
    let steps = |commit: Commit| [(commit.closed, true), (commit.ended, false)];
    let mut commits = commits.into_iter().flat_map(steps).peekable();
    let mut outcomes = Vec::with_capacity(lines.len());
    for ((number, line), now) in lines.iter().enumerate().zip(&theirs.times) {
        collector.begin_line(number);
        player.set_time(*now);
        player.end_io()?;
        // When space runs out, both sides commit on their own to get freed clusters back. So the
        // engine is not told to begin such a commit.
        let runs_out = may_run_out(player.file_system()?, line);
        while let Some((_, begins)) = commits.next_if(|(at, _)| *at <= u32_from_usize(number)) {
            match begins {
                true if runs_out => {}
                true => {
                    player.begin_commit()?;
                    schedule.committed();
                }
                false => player.end_commit()?,
            }
        }
        let outcome = play_as_linux(&mut player, line);
        outcomes.push(outcome.with_context(|| format!("trace line {}: {line:?}", number + 1))?);
        player.end_io()?;
    }
    let stats = player.file_system()?.allocator().mb_stats();
    // The decisions that closing makes for data that is still dirty are not compared: the kernel's
    // decisions were also collected before the image was unmounted.
    let decisions = collector.take();
    player.close()?;
    drop(player);
    Ok(Side { outcomes, decisions, stats, text: String::new(), device })
}

fn play_as_linux(player: &mut EnginePlayer, line: &Line) -> Result<Outcome> {
    match vfs::pass(player.file_system()?, line)? {
        Passed::On(line) => player.play(&line),
        Passed::Answered(outcome) => Ok(outcome),
    }
}

/// Whether a line might run out of space.
fn may_run_out(fs: &FileSystem, line: &Line) -> bool {
    /// Clusters that directories and mappings may need, beside the data.
    const BESIDE: u64 = 64;
    let bytes = match line.op {
        Op::Pwrite { len, .. } | Op::Fallocate { len, .. } => len,
        _ => 0,
    };
    let geometry = fs.geometry();
    let space = fs.allocator().free_clusters();
    let wanted = (bytes >> geometry.block_bits() >> geometry.cluster_ratio_bits()) + BESIDE;
    space.free < space.delayed + space.reserved + fs.allocator().pending_clusters() + wanted
}

/// Options under which the engine decides like a kernel with the plan's mount options.
fn like(plan: &Plan, image: &MemoryDevice) -> Result<OpenOptions> {
    let options = OpenOptions {
        cpus: kernel::possible_cpus()?,
        rotational: plan.rotational,
        cache_bytes: 1 << 30,
        dirty_data_bytes: 6 << 30,
        inodes_max: 1 << 20,
        // Without a journal, Linux can reuse freed clusters at once.
        commit_point_handles: if has_journal(image)? { u64::MAX } else { 1 },
        commit_interval_seconds: i64::MAX,
        // The engine commits a long transaction as late as it can, because it is told when the
        // kernel committed.
        instruments: Instruments { transaction_blocks: Some(usize::MAX), ..Instruments::page_cache() },
        ..OpenOptions::default()
    };
    MountOptions::parse(&plan.mount)?.apply(options)
}

fn has_journal(image: &MemoryDevice) -> Result<bool> {
    let reader = Reader::open(Arc::new(image.duplicate()))?;
    Ok(reader.superblock().journal_inode().is_some())
}

fn judge(start: &Arc<MemoryDevice>, theirs: &Side, ours: &Side, lines: &[Line]) -> Result<Agreement> {
    let layouts = [
        Layout::of(Arc::<MemoryDevice>::clone(start)).context("the start image")?,
        Layout::of(Arc::clone(&theirs.device)).context("the kernel's image")?,
        Layout::of(Arc::clone(&ours.device)).context("the other image")?,
    ];
    let (shares, differences) = compare::compare(&layouts[0], &layouts[1], &layouts[2]);
    let (decisions, parted) = decisions::compare(&theirs.decisions, &ours.decisions);
    let unequal = |(at, (a, b)): (usize, (&Outcome, &Outcome))| (a != b).then_some(at);
    let outcomes: Vec<usize> =
        theirs.outcomes.iter().zip(&ours.outcomes).enumerate().filter_map(unequal).collect();
    let first = outcomes.first().map(|&at| {
        let [a, b] = [theirs, ours].map(|side| side.outcomes[at]);
        format!("line {}: {}: ended {a:?} / {b:?}", at + 1, show(lines, at))
    });
    let explained = |(a, b): (usize, usize)| explain(lines, theirs.decisions.get(a), ours.decisions.get(b));
    let name = |difference: &Difference| format!("{}: {}", difference.path, difference.what);
    Ok(Agreement {
        lines: lines.len(),
        outcomes_differ: outcomes.len(),
        shares,
        decisions,
        own_commits: 0,
        stats: beside(&theirs.stats, &ours.stats),
        first: parted
            .choice
            .map(explained)
            .or(first)
            .or_else(|| differences.first().map(name))
            .or_else(|| parted.any.map(explained)),
        files: differences.iter().take(NAMED_MAX).map(name).collect(),
    })
}

fn show(lines: &[Line], at: usize) -> String {
    lines.get(at).and_then(|line| serde_json::to_string(line).ok()).unwrap_or_default()
}

/// Describes where two lists of decisions diverge.
fn explain(lines: &[Line], theirs: Option<&Decision>, ours: Option<&Decision>) -> String {
    let at = [theirs, ours].into_iter().flatten().map(|decision| decision.line).min().unwrap_or(0);
    let at = blockyard_disk::num::usize_from_u32(at);
    let side = |decision: Option<&Decision>| match decision {
        Some(decision) => format!("(line {}) {decision}", decision.line + 1),
        None => "no more decisions".to_owned(),
    };
    format!("line {}: {}\n  kernel: {}\n  other:  {}", at + 1, show(lines, at), side(theirs), side(ours))
}

/// The counters of two texts of `mb_stats` side by side; 0 for a counter that one text lacks. The
/// name of a counter in a section is prefixed with the section.
fn beside(theirs: &str, ours: &str) -> BTreeMap<String, (u64, u64)> {
    let mut both = BTreeMap::new();
    for (name, count) in counters(theirs) {
        both.entry(name).or_insert((0, 0)).0 = count;
    }
    for (name, count) in counters(ours) {
        both.entry(name).or_insert((0, 0)).1 = count;
    }
    both
}

fn counters(text: &str) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    let mut section = "";
    for line in text.lines() {
        let Some((name, value)) = line.trim().split_once(':') else { continue };
        let value = value.trim();
        if name == "buddies_time_used" {
            // Nanoseconds, which the engine does not measure.
        } else if value.is_empty() {
            section = name;
        } else if let Some(count) = value.split(['/', ' ']).next().and_then(|word| word.parse().ok()) {
            let prefix = if line.starts_with("\t\t") { format!("{section}.") } else { String::new() };
            found.push((format!("{prefix}{name}"), count));
        }
    }
    found
}

fn keep(directory: &Path, start: &MemoryDevice, theirs: &Side, ours: &Side) -> Result<()> {
    std::fs::create_dir_all(directory)?;
    start.save(&directory.join("start"))?;
    for (side, name) in [(theirs, "theirs"), (ours, "ours")] {
        let path = directory.join(name);
        let file = blockyard_device::FileDevice::create(&path, side.device.size())?;
        copy(&*side.device, &file)?;
        let mut text = String::new();
        for decision in &side.decisions {
            text.push_str(&format!("line {} {decision}\n", decision.line + 1));
        }
        std::fs::write(directory.join(format!("{name}.decisions")), text)?;
        std::fs::write(directory.join(format!("{name}.mb_stats")), &side.stats)?;
        std::fs::write(directory.join(format!("{name}.events")), &side.text)?;
    }
    Ok(())
}

/// Copies a device onto one that holds only zeroes. Leaves a hole for each MiB of zeroes.
fn copy(from: &dyn BlockDevice, to: &dyn BlockDevice) -> Result<()> {
    const STEP: usize = 1 << 20;
    let mut bytes = vec![0; STEP];
    let mut at = 0;
    while at < from.size() {
        let len = STEP.min(blockyard_disk::num::usize_from_u64(from.size() - at));
        from.read_at(at, &mut bytes[..len])?;
        if bytes[..len].iter().any(|&byte| byte != 0) {
            to.write_at(at, &bytes[..len])?;
        }
        at += blockyard_disk::num::u64_from_usize(len);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::compare::Share;
    use super::*;

    #[test]
    fn counters_are_apart_from_more_than_one_per_cent_on() {
        let counts = [
            ("a", (100, 98)),
            ("b", (98, 100)),
            ("c", (200, 199)),
            ("d", (100, 99)),
            ("e", (0, 1)),
            ("buddies_generated", (1, 100)),
        ];
        let stats = counts.map(|(name, both)| (name.to_owned(), both)).into();
        let agreement = Agreement { stats, ..Agreement::default() };
        assert_eq!(agreement.stats_apart(), ["a", "b", "e"]);
    }

    /// An agreement whose figures all differ, multiplied by `by`.
    fn agreement(by: u64) -> Agreement {
        let share = |equal, of| Share { equal: by * equal, of: by * of };
        let count = |count: u64| usize::try_from(by * count).unwrap();
        Agreement {
            lines: count(31),
            outcomes_differ: count(32),
            own_commits: count(33),
            shares: Shares {
                inodes: share(1, 2),
                extents: share(3, 4),
                bytes: share(5, 6),
                directory_extents: share(7, 8),
                tree_blocks: share(9, 10),
                block_bitmaps: share(11, 12),
                inode_bitmaps: share(13, 14),
            },
            decisions: DecisionShares {
                placements: share(15, 16),
                criteria: share(17, 18),
                all: share(19, 20),
            },
            stats: [("hits".to_owned(), (by * 21, by * 22))].into(),
            first: (by > 1).then(|| format!("of {by}")),
            files: Vec::new(),
        }
    }

    #[test]
    fn figures_add_up_each_to_its_own() {
        let mut sum = agreement(1);
        sum.add(&agreement(10));
        let expected = Agreement { first: Some("of 10".to_owned()), ..agreement(11) };
        assert_eq!(serde_json::to_value(&sum).unwrap(), serde_json::to_value(&expected).unwrap());
        sum.add(&agreement(2));
        assert_eq!(sum.first.as_deref(), Some("of 10"), "the first difference stays the first");
    }

    #[test]
    fn counters_of_criteria_have_their_section() {
        let kernel = "\
mballoc:
\treqs: 5
\tsuccess: 4
\tcr_p2_aligned_stats:
\t\thits: 3
\t\tgroups_considered: 9
\tcr_any_free_stats:
\t\thits: 2
\textents_scanned: 7
\tbuddies_generated: 1/40
\tbuddies_time_used: 12345
";
        let of = |name: &str, count| (name.to_owned(), count);
        assert_eq!(
            counters(kernel),
            [
                of("reqs", 5),
                of("success", 4),
                of("cr_p2_aligned_stats.hits", 3),
                of("cr_p2_aligned_stats.groups_considered", 9),
                of("cr_any_free_stats.hits", 2),
                of("extents_scanned", 7),
                of("buddies_generated", 1),
            ]
        );
        let both = beside(kernel, "\treqs: 6\n\tours: 8\n");
        assert_eq!((both["reqs"], both["success"], both["ours"]), ((5, 6), (4, 0), (0, 8)));
    }

    #[test]
    fn commits_that_a_line_asks_for_are_not_the_kernels_own() {
        let ops = [
            Op::Sync,
            Op::Fsync { fd: 1 },
            Op::Pwrite { fd: 1, off: 0, len: 1 },
            Op::Fdatasync { fd: 1 },
            Op::Remount,
            Op::Close { fd: 1 },
        ];
        let lines = ops.map(Line::from);
        let commits: Vec<Commit> = (0..7).map(|line| Commit { closed: line, ended: line + 10 }).collect();
        let own: Vec<u32> = own_commits(&lines, &commits).iter().map(|commit| commit.closed).collect();
        assert_eq!(own, [2, 5]);
    }

    #[test]
    fn lines_are_told_from_one_on() {
        let lines = [Op::Sync, Op::Close { fd: 3 }].map(Line::from);
        let decision = Decision {
            line: 1,
            inode: 12,
            searched: false,
            orig: crate::recording::Spot(1, 2, 3, 4),
            goal: crate::recording::Spot::default(),
            result: crate::recording::Spot(5, 6, 7, 8),
            found: 0,
            groups: 0,
            criterion: 0,
            flags: 0x20,
        };
        let text = explain(&lines, Some(&decision), None);
        let told: Vec<&str> = text.lines().collect();
        assert!(told[0].starts_with("line 2: {") && told[0].contains("close"), "{text}");
        assert_eq!(
            told[1..],
            [
                "  kernel: (line 2) inode 12 orig 1/2/3@4 preallocated 5/6/7@8 flags 0x20",
                "  other:  no more decisions"
            ]
        );
    }
}
