//! `lab run copy`: a tree copied over itself, again and again, and what the allocation map shows after each copy.
//!
//! The published experiment copied 182,515 files of 27 GiB three times over themselves. Here one process copies a tree
//! of the same shape ([`tree`]): the first copy makes directories and files, each further one truncates and rewrites
//! every file in place, as `cp -r` does over an existing tree. What truncation frees may be used again only after the
//! next commit, which is why the files move. Write-back runs as under Linux: by amount of dirty data, and at close for a
//! file that was truncated to nothing. A commit comes after each [`COMMIT_BYTES`] of data. No clock takes part: the same
//! seed gives the same image.

mod published;
mod reuse;
pub mod table;
mod timeline;
mod tree;

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use blockyard_alloc::{EventSink, Policy};
use blockyard_disk::inode::FileType;
use blockyard_disk::num::{count_as_f64, u32_from_usize, u64_from_usize, usize_from_u64};
use blockyard_disk::{GroupNr, InodeNr};
use blockyard_engine::{Events, FileSystem, NewInode, OpenOptions};
use blockyard_inspect::scan::ImageScan;
use serde::{Deserialize, Serialize};

use crate::age::{Ageing, Circumstances, age};
use crate::figures::states::FRESH;
use crate::folder::ledger::Ledger;
use crate::run::{CellDevice, ImageSource, NamedMap, Verdict};
use crate::target::engine::{context, unjournaled};
use crate::workload::{GIB, MIB};
use reuse::Reuse;

pub use timeline::Timeline;
pub use tree::{Tree, TreeFile};

/// Data written between two commits at full scale: the five seconds of a mount at 256 MiB/s.
pub const COMMIT_BYTES: u64 = 1280 * MIB;
/// A free run of this many bytes or more is a long one.
pub const LONG_RUN: u64 = 8 * MIB;
/// Files after which the copying process moves to another CPU slot.
const FILES_PER_CPU: usize = 1000;
/// Dirty data that starts a write-back of all of it. Below the engine's own limit, which writes files one at a time.
const DIRTY_BYTES: u64 = 48 * MIB;
/// Bytes of one write call, as cp makes them.
const WRITE_BYTES: u64 = 128 << 10;
/// Moments of one copy that the time axis shows.
const SAMPLES_PER_COPY: usize = 24;

/// What to copy.
#[derive(Clone, Debug)]
pub struct CopyPlan {
    /// Policy arms, as they were asked for.
    pub policies: Vec<String>,
    /// The tree.
    pub tree: Tree,
    /// How many copies, the first included.
    pub copies: u32,
    /// Logical CPUs.
    pub cpus: u32,
    /// What each arm runs on.
    pub image: ImageSource,
    /// Data between two commits in bytes.
    pub commit_bytes: u64,
    /// Seed.
    pub seed: u64,
    /// Whether the allocator takes the device for one with seek times.
    pub rotational: bool,
    /// The lives that images have had before, one after the other beside fresh ones.
    pub aged: Vec<Ageing>,
}

/// What lay on the image after one copy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CopyRow {
    /// Always `copy`.
    pub workload: String,
    /// The policy arm.
    pub policy: String,
    /// `fresh`, or the life that the image had before.
    #[serde(default = "crate::figures::states::fresh")]
    pub state: String,
    /// Which copy, from 1.
    pub copy: u32,
    /// Seed.
    pub seed: u64,
    /// Files written.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Changes between used and free squares of the map (32 a group) in disk order.
    pub boundaries: u64,
    /// Groups of which no square is used.
    pub empty_groups: u64,
    /// Jaccard index of the squares used by files after this copy and after the one before; none for the first.
    pub overlap_previous: Option<f64>,
    /// Share (0..=1) of the free blocks that lie in runs of [`LONG_RUN`] or more.
    pub free_share_long_runs: f64,
    /// Median over returns to a group of the MiB allocated elsewhere since it was last used; none without returns.
    pub reuse_interval_mib_p50: Option<f64>,
    /// Mean over the groups that were returned to of each group's mean interval in MiB; none without returns.
    pub reuse_interval_mib_group_mean: Option<f64>,
    /// Returns to a group.
    pub reuses: u64,
    /// Mean extents a file.
    pub extents_per_file: f64,
    /// Mean extent in KiB.
    pub mean_extent_kb: f64,
    /// Free extents of the image (e2freefrag).
    pub free_extents: u64,
    /// Average free extent in KiB (e2freefrag).
    pub avg_free_extent_kb: u64,
    /// Fragmentation score (e4defrag -c); none without files.
    pub score: Option<f64>,
}

impl crate::figures::states::Stated for CopyRow {
    fn state(&self) -> &str {
        &self.state
    }

    fn as_fresh(&self) -> Self {
        Self { state: crate::figures::states::fresh(), ..self.clone() }
    }
}

/// What came out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CopyOutcome {
    /// Arms in order, then copies.
    pub rows: Vec<CopyRow>,
    /// The judges of each arm's image after the last copy.
    pub verdict: Verdict,
    /// Maps before the first copy and after each.
    pub maps: Vec<NamedMap>,
    /// Used shares over time, one an arm.
    pub timelines: Vec<Timeline>,
}

impl CopyPlan {
    /// Three copies on an image in memory that the tree fills to the published share (27 GiB on 818 groups of 128 MiB),
    /// with as many commits a copy as the published one had.
    #[must_use]
    pub fn published(policies: Vec<String>, tree: Tree, seed: u64) -> Self {
        let groups = (tree.bytes() * 818 / (27 * GIB)).max(8);
        Self {
            policies,
            copies: 3,
            cpus: 6,
            image: ImageSource::memory(groups * 128 * MIB, seed),
            commit_bytes: (tree.bytes() / (27 * GIB).div_ceil(COMMIT_BYTES)).max(MIB),
            tree,
            seed,
            rotational: false,
            aged: Vec::new(),
        }
    }

    /// What to say where the tree is too small for its map to show much.
    #[must_use]
    pub fn too_small(&self) -> Option<String> {
        let groups = self.tree.bytes() * 818 / (27 * GIB);
        (groups < 50).then(|| {
            format!("copy: the image has {groups} groups, the published one 818; at this size boundaries and empty groups show little")
        })
    }

    /// All that decides the plan, as text.
    #[must_use]
    pub fn identity(&self) -> String {
        format!("{self:?}")
    }

    /// All that decides one arm.
    fn decides(&self, name: &str, policy: Policy, aged: Option<&Ageing>) -> Result<serde_json::Value> {
        Ok(serde_json::json!({
            "workload": "copy",
            "name": name,
            "policy": format!("{policy:?}"),
            "tree": crate::folder::ledger::hash(&format!("{:?}", self.tree)),
            "copies": self.copies,
            "cpus": self.cpus,
            "image": self.image.identity()?,
            "rotational": self.rotational,
            "aged": aged.map(|aged| format!("{aged:?}")),
            "commit_bytes": self.commit_bytes,
            "seed": self.seed,
        }))
    }

    /// Refuses what cannot work, before anything runs.
    ///
    /// # Errors
    /// What is wrong and what to do.
    pub fn check(&self) -> Result<()> {
        ensure!(!self.policies.is_empty(), "--policy: name at least one (see blockyard policy list)");
        for text in &self.policies {
            Policy::parse(text).with_context(|| format!("--policy {text} (see blockyard policy list)"))?;
        }
        ensure!((1..=100).contains(&self.copies), "--copies: give a number from 1 to 100");
        ensure!((1..=4096).contains(&self.cpus), "--cpus: give a number from 1 to 4096");
        ensure!(!self.image.is_in_place(), "--in-place: copy keeps no image; leave it out");
        // What one copy frees is there again after a commit: room for that much beside the tree, in whole blocks.
        self.image.check(1, self.room())
    }

    /// What the tree needs, and what waits for commits.
    fn room(&self) -> u64 {
        let files = u64_from_usize(self.tree.files.len());
        self.tree.bytes() + files * 4096 + 2 * self.commit_bytes.min(self.tree.bytes())
    }
}

impl crate::folder::ledger::Cell for CopyOutcome {
    const FILE: &'static str = crate::folder::files::COPIES_FILE;
    type Row = CopyRow;

    fn rows(&self) -> &[CopyRow] {
        &self.rows
    }
}

/// Runs every arm; `progress` is told before each copy.
///
/// # Errors
/// Those of [`CopyPlan::check`] before anything runs; for an arm that fails, with its name.
pub fn run(plan: &CopyPlan, progress: impl FnMut(usize, &str)) -> Result<CopyOutcome> {
    run_kept(plan, &mut Ledger::none(), progress)
}

/// As [`run`]; arms that `ledger` has are not copied again, the others are kept in it.
///
/// # Errors
/// As [`run`], and when an arm cannot be written.
pub fn run_kept(
    plan: &CopyPlan,
    ledger: &mut Ledger,
    mut progress: impl FnMut(usize, &str),
) -> Result<CopyOutcome> {
    plan.check()?;
    let mut outcome = CopyOutcome::default();
    let states = || std::iter::once(None).chain(plan.aged.iter().map(Some));
    let arms = states().flat_map(|aged| plan.policies.iter().map(move |name| (aged, name)));
    for (arm, (aged, name)) in arms.enumerate() {
        let state = aged.map_or(String::new(), |aged| format!(", {aged}"));
        let mut begin = |copy: u32| {
            let part = arm * usize_from_u64(u64::from(plan.copies)) + usize_from_u64(u64::from(copy));
            progress(part, &format!("copy {copy} under {name}{state}"));
        };
        let policy = Policy::parse(name)?;
        let arm = ledger.cell(plan.decides(name, policy, aged)?, || {
            let mut outcome = CopyOutcome::default();
            run_arm(plan, &Arm { name, policy, aged }, &mut outcome, &mut begin).map(|()| outcome)
        });
        let arm = arm.with_context(|| format!("copy under {name}{state}"))?;
        outcome.rows.extend(arm.rows);
        outcome.verdict.add(&arm.verdict);
        outcome.maps.extend(arm.maps);
        outcome.timelines.extend(arm.timelines);
    }
    Ok(outcome)
}

/// A policy on images of one state.
struct Arm<'a> {
    name: &'a str,
    policy: Policy,
    aged: Option<&'a Ageing>,
}

fn run_arm(
    plan: &CopyPlan,
    arm: &Arm<'_>,
    outcome: &mut CopyOutcome,
    begin: &mut dyn FnMut(u32),
) -> Result<()> {
    let (name, policy) = (arm.name, arm.policy);
    let device = plan.image.device()?;
    let state = arm.aged.map_or(FRESH.to_owned(), ToString::to_string);
    let label = arm.aged.map_or(name.to_owned(), |aged| format!("{name}; {aged}"));
    if let Some(ageing) = arm.aged {
        let who = Circumstances {
            rotational: plan.rotational,
            room: plan.room(),
            ..Circumstances::new(policy, plan.seed)
        };
        age(device.shared(), ageing, &who)?;
    }
    let mut note = |title: String, scan: &ImageScan| {
        let workers = 1;
        outcome.maps.push(NamedMap {
            title,
            policy: name.to_owned(),
            workers,
            map: scan.map.clone(),
            files: Some(scan.file_map.clone()),
        });
    };
    let mut before = ImageScan::of(device.shared())?;
    note(format!("copy: {label}, before"), &before);
    let mut copier = Copier::open(plan, policy, &device, format!("copy: {label}, over time"))?;
    for copy in 1..=plan.copies {
        begin(copy);
        copier.copy(copy)?;
        let reuse = copier.reuse.take();
        // After a sync the device holds everything. The file system stays open: cursors and goals live in memory.
        let scan = ImageScan::of(device.shared())?;
        note(format!("copy: {label}, after copy {copy}"), &scan);
        let overlap = (copy > 1).then(|| scan.file_map.overlap(&before.file_map));
        let state = state.clone();
        outcome.rows.push(CopyRow {
            state,
            overlap_previous: overlap,
            ..row(plan, name, copy, &scan, &reuse)
        });
        before = scan;
    }
    outcome.timelines.push(copier.timeline);
    copier.fs.close(&context(0)).context("close the image")?;
    outcome.verdict.check(&*device.shared())?;
    outcome.verdict.e2fsck(|path| device.save(path))?;
    Ok(())
}

/// The row of a copy, as if it was the first: with no other to compare its map with.
fn row(plan: &CopyPlan, policy: &str, copy: u32, scan: &ImageScan, reuse: &reuse::Figures) -> CopyRow {
    let figures = scan.map.figures();
    CopyRow {
        workload: "copy".to_owned(),
        policy: policy.to_owned(),
        state: FRESH.to_owned(),
        copy,
        seed: plan.seed,
        files: u64_from_usize(plan.tree.files.len()),
        bytes: plan.tree.bytes(),
        boundaries: figures.boundaries,
        empty_groups: figures.empty_groups,
        overlap_previous: None,
        free_share_long_runs: scan.free_share_of_runs(LONG_RUN),
        reuse_interval_mib_p50: reuse.median_mib,
        reuse_interval_mib_group_mean: reuse.group_mean_mib,
        reuses: reuse.returns,
        extents_per_file: scan.extents_per_file(),
        mean_extent_kb: scan.mean_extent_kb(),
        free_extents: scan.free.extents(),
        avg_free_extent_kb: scan.free.average_kib(),
        score: scan.defrag.score().map(f64::from),
    }
}

/// The copying process and the file system it copies to.
struct Copier<'a> {
    plan: &'a CopyPlan,
    fs: FileSystem,
    reuse: Arc<Reuse>,
    timeline: Timeline,
    /// Inodes of the directories and files of the tree, once they exist.
    directories: Vec<InodeNr>,
    files: Vec<InodeNr>,
    written: u64,
    uncommitted: u64,
    dirty: u64,
    buffer: Vec<u8>,
}

impl<'a> Copier<'a> {
    fn open(plan: &'a CopyPlan, policy: Policy, device: &CellDevice, title: String) -> Result<Self> {
        let reuse = Arc::new(Reuse::default());
        let sink: Arc<dyn EventSink> = Arc::<Reuse>::clone(&reuse);
        let events = Some(Events(sink));
        let (cpus, rotational) = (plan.cpus, plan.rotational);
        // A machine that copies a tree keeps its inodes, and with them what policies remember of each file.
        let inodes_max = 2 * (plan.tree.files.len() + plan.tree.directories.len()).max(8192);
        let options = OpenOptions { cpus, rotational, events, inodes_max, ..unjournaled(policy, plan.seed) };
        let fs = FileSystem::open(device.shared(), options, &context(0))?;
        reuse.set_cluster_bytes(u64::from(fs.geometry().cluster_ratio()) << fs.geometry().block_bits());
        let groups = blockyard_disk::num::usize_from_u32(fs.geometry().groups());
        Ok(Self {
            plan,
            fs,
            reuse,
            timeline: Timeline::new(title, groups),
            directories: Vec::new(),
            files: Vec::new(),
            written: 0,
            uncommitted: 0,
            dirty: 0,
            // Zeroes: a sparse memory device keeps no storage for them.
            buffer: vec![0; usize_from_u64(WRITE_BYTES)],
        })
    }

    fn copy(&mut self, copy: u32) -> Result<()> {
        let samples_every = self.plan.tree.files.len().div_ceil(SAMPLES_PER_COPY).max(1);
        self.sample();
        if copy == 1 {
            self.make_directories()?;
        }
        for index in 0..self.plan.tree.files.len() {
            self.copy_file(index, copy)?;
            if (index + 1).is_multiple_of(samples_every) {
                self.sample();
            }
        }
        self.fs.sync(&context(0)).context("sync")?;
        self.sample();
        self.timeline.mark(format!("copy {copy}"));
        Ok(())
    }

    fn make_directories(&mut self) -> Result<()> {
        let new = NewInode { kind: FileType::Directory, permissions: 0o755, device: None };
        for (index, parent) in self.plan.tree.directories.iter().enumerate() {
            let parent = parent.map_or(InodeNr::ROOT, |parent| self.directories[parent]);
            let made = self.fs.create(&context(0), parent, format!("d{index}").as_bytes(), &new);
            self.directories.push(made.context("make a directory")?);
        }
        Ok(())
    }

    fn copy_file(&mut self, index: usize, copy: u32) -> Result<()> {
        let plan = self.plan;
        let TreeFile { directory, bytes } = plan.tree.files[index];
        let ctx = context(u32_from_usize(index / FILES_PER_CPU) % plan.cpus);
        let inode = if copy == 1 {
            let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
            let parent = directory.map_or(InodeNr::ROOT, |directory| self.directories[directory]);
            let made = self.fs.create(&ctx, parent, format!("f{index}").as_bytes(), &new);
            let inode = made.context("make a file")?;
            self.files.push(inode);
            inode
        } else {
            self.files[index]
        };
        self.fs.open_inode(inode, true)?;
        if copy > 1 {
            self.fs.truncate(&ctx, inode, 0).context("truncate")?;
        }
        let mut at = 0;
        while at < bytes {
            let length = (bytes - at).min(WRITE_BYTES);
            let data = &self.buffer[..usize_from_u64(length)];
            self.fs.write(&ctx, inode, at, data).context("write")?;
            at += length;
        }
        if copy > 1 {
            // What Linux does at the close of a file that was truncated to nothing and written again.
            self.fs.write_back_file(&ctx, inode).context("write back")?;
        } else {
            self.dirty += bytes;
        }
        self.fs.release_inode(&ctx, inode, true)?;
        if self.dirty >= DIRTY_BYTES {
            self.dirty = 0;
            self.fs.write_back_all(&ctx).context("write back")?;
        }
        self.written += bytes;
        self.uncommitted += bytes;
        if self.uncommitted >= plan.commit_bytes {
            self.uncommitted = 0;
            self.fs.write_back_all(&ctx).context("write back")?;
            self.fs.commit(&ctx).context("commit")?;
        }
        Ok(())
    }

    /// The used share of each group now.
    fn sample(&mut self) {
        let allocator = self.fs.allocator();
        let geometry = self.fs.geometry();
        let used = geometry.all_groups().map(|group: GroupNr| {
            let clusters = f64::from(geometry.clusters_in_group(group));
            1.0 - f64::from(allocator.group_free(group)) / clusters
        });
        self.timeline.sample(count_as_f64(self.written) / count_as_f64(GIB), used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(scale: f64) -> CopyPlan {
        let policies = vec!["linux-6.18".into(), "rralloc-v2".into()];
        CopyPlan::published(policies, Tree::synthetic(scale, 1), 1)
    }

    /// The published shape: the regular policy returns to what it used before (overlaps 0.63 and 0.69), round robin
    /// moves on (0.31 and 0.26), leaves fewer empty groups and more boundaries. A twentieth of the tree shows it.
    #[test]
    fn round_robin_moves_on_and_scatters() {
        let outcome = run(&plan(0.05), |_, _| ()).unwrap();
        assert!(outcome.verdict.is_clean(), "{}", outcome.verdict.text());
        assert_eq!((outcome.rows.len(), outcome.maps.len(), outcome.timelines.len()), (6, 8, 2));
        let (regular, rotating) = outcome.rows.split_at(3);
        assert_eq!((regular[0].copy, regular[0].overlap_previous), (1, None));
        let overlap = |row: &CopyRow| row.overlap_previous.unwrap();
        for copy in 1..3 {
            let (regular, rotating) = (&regular[copy], &rotating[copy]);
            assert!(overlap(regular) > 0.45, "{regular:?}");
            assert!(overlap(rotating) < 0.4, "{rotating:?}");
            assert!(rotating.empty_groups < regular.empty_groups, "{rotating:?} {regular:?}");
            assert!(
                f64_of(rotating.boundaries) > 1.2 * f64_of(regular.boundaries),
                "{rotating:?} {regular:?}"
            );
        }
        for row in &outcome.rows {
            assert_eq!(row.files, 9125);
            assert!(
                (0.0..=1.0).contains(&row.free_share_long_runs) && row.extents_per_file >= 1.0,
                "{row:?}"
            );
        }
    }

    fn f64_of(count: u64) -> f64 {
        count_as_f64(count)
    }

    #[test]
    fn the_same_seed_gives_the_same_rows_and_maps() {
        let plan = CopyPlan { policies: vec!["yard".into()], ..plan(0.004) };
        let (first, second) = (run(&plan, |_, _| ()).unwrap(), run(&plan, |_, _| ()).unwrap());
        assert_eq!(first.rows, second.rows);
        assert_eq!(first.maps, second.maps);
    }

    #[test]
    fn bad_plans_are_refused() {
        let refused = |plan: CopyPlan, part: &str| {
            let text = format!("{:#}", run(&plan, |_, name| panic!("{name}")).unwrap_err());
            assert!(text.contains(part) && !text.contains('\n'), "{text}");
        };
        refused(CopyPlan { copies: 0, ..plan(0.004) }, "--copies");
        refused(CopyPlan { policies: vec!["nothing".into()], ..plan(0.004) }, "no policy");
        refused(CopyPlan { image: ImageSource::memory(32 * MIB, 1), ..plan(0.004) }, "too small");
    }

    /// The tree as one file of the published 27 GiB.
    #[test]
    fn the_image_grows_with_the_tree() {
        let tree = |bytes| Tree { directories: Vec::new(), files: vec![TreeFile { directory: None, bytes }] };
        let published = CopyPlan::published(vec!["yard".into()], tree(27 * GIB), 1);
        assert_eq!((published.copies, published.cpus, published.commit_bytes), (3, 6, 1_317_774_056));
        let bytes = |plan: &CopyPlan| match plan.image {
            ImageSource::Memory { bytes, .. } => bytes,
            ImageSource::File { .. } => 0,
        };
        assert_eq!(bytes(&published), 818 * 128 * MIB);
        let small = CopyPlan::published(vec!["yard".into()], tree(GIB / 100), 1);
        assert_eq!((bytes(&small), small.commit_bytes), (GIB, MIB));
        assert!(published.too_small().is_none());
        assert!(small.too_small().unwrap().contains("has 0 groups, the published one 818"));
    }

    #[test]
    fn a_row_has_the_figures_of_the_image() {
        let mut scan = crate::run::example_scan();
        // Three groups whose squares are clusters; of the second a cluster is used, and from its seventh on all.
        let mut map = blockyard_inspect::map::AllocationMap::new(3, 32, 32);
        for (first, count) in [(1, 1), (6, 26)] {
            map.add_used(1, first, count);
        }
        scan.map = map;
        // A run of eight MiB beside shorter ones of 4, 10 and 300 blocks.
        scan.free.add_run(4096, 2048);
        scan.free.add_run(8192, 300);
        let plan = plan(0.0001);
        let reuse = reuse::Figures { returns: 6, median_mib: Some(3.0), group_mean_mib: Some(5.0) };
        let row = row(&plan, "yard", 2, &scan, &reuse);
        assert_eq!((row.policy.as_str(), row.copy, row.seed), ("yard", 2, 1));
        assert_eq!((row.files, row.bytes), (18, plan.tree.bytes()));
        // Free, used, free, used to the group's end, free.
        assert_eq!((row.boundaries, row.empty_groups, row.overlap_previous), (4, 2, None));
        assert!((row.free_share_long_runs - 2048.0 / 2362.0).abs() < 1e-9);
        let reuse = (row.reuse_interval_mib_p50, row.reuse_interval_mib_group_mean, row.reuses);
        assert_eq!(reuse, (Some(3.0), Some(5.0), 6));
        assert_eq!((row.extents_per_file, row.mean_extent_kb), (1.5, 16.0));
        // 2362 blocks in four runs, cut to 590.
        assert_eq!((row.free_extents, row.avg_free_extent_kb, row.score), (4, 2360, Some(40.0)));
    }

    /// Of the eight groups of a small image the third holds no metadata: at the beginning nothing of it is used.
    #[test]
    fn time_goes_by_what_was_written() {
        let tree =
            Tree { directories: Vec::new(), files: vec![TreeFile { directory: None, bytes: 64 * MIB }] };
        let plan = CopyPlan { copies: 2, ..CopyPlan::published(vec!["yard".into()], tree, 1) };
        let outcome = run(&plan, |_, _| ()).unwrap();
        let timeline = serde_json::to_value(&outcome.timelines[0]).unwrap();
        let samples = timeline["samples"].as_array().unwrap();
        let gib: Vec<f64> = samples.iter().map(|sample| sample[0].as_f64().unwrap()).collect();
        // Before, after the one file, and at the end of each copy.
        assert_eq!(gib, [0.0, 0.0625, 0.0625, 0.0625, 0.125, 0.125]);
        assert_eq!(samples[0][1].as_array().unwrap().len(), 8);
        assert_eq!(samples[0][1][2], 0);
        // 16,384 blocks of 32,768.
        let used = |sample: usize| -> u64 {
            samples[sample][1].as_array().unwrap().iter().map(|share| share.as_u64().unwrap()).sum()
        };
        assert!((498..=502).contains(&(used(2) - used(0))), "{} {}", used(2), used(0));
    }
}
