//! `lab run copy`: copies a tree to the same place several times, and shows the allocation map
//! after each copy.
//!
//! The published experiment copied 182,515 files, 27 GiB in all, three times. Here one process
//! copies a tree of the same shape ([`tree`]). The first copy creates directories and files. Each
//! further copy truncates and rewrites every file in place, as `cp -r` does over an existing tree.
//! A [`Manner`] can change this: for example, more processes copy, or new files replace old ones.
//!
//! Space freed by truncation can be reused only after the next commit, which is why the files move.
//! Write-back runs as under Linux: when there is much dirty data, and at close for a file that was
//! truncated to zero. The file system commits after each [`COMMIT_BYTES`] of data, scaled with the
//! tree, and at the end of each copy. Nothing depends on a clock: the same seed gives the same
//! image.

mod copier;
mod devices;
mod manner;
mod published;
mod reuse;
pub mod table;
mod timeline;
mod tree;
mod watched;

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use blockyard_alloc::Policy;
use blockyard_device::BlockDevice;
use blockyard_disk::bitmap;
use blockyard_disk::num::{count_as_f64, u64_from_usize, usize_from_u64};
use blockyard_inspect::reader::Reader;
use blockyard_inspect::scan::ImageScan;
use serde::{Deserialize, Serialize};

use crate::age::{Ageing, Circumstances, age};
use crate::figures::free_runs::{FreeRuns, by_length};
use crate::figures::states::FRESH;
use crate::folder::ledger::Ledger;
use crate::run::{ImageSource, NamedMap, Verdict, refuse_twice};
use crate::target::engine::context;
use crate::workload::{GIB, MIB};
use copier::Copier;
use watched::Watched;

pub use devices::{Reading, Readings};
pub use manner::{Manner, Moves, Old, Order};
pub use timeline::Timeline;
pub use tree::{Tree, TreeFile};
pub use watched::{Discard, Told};

/// Bytes written between two commits at full scale: five seconds (the default commit interval of a
/// mount) at 256 MiB/s.
pub const COMMIT_BYTES: u64 = 1280 * MIB;
/// A free run of this many bytes or more is a long one.
pub const LONG_RUN: u64 = 8 * MIB;

/// What to copy.
#[derive(Clone, Debug)]
pub struct CopyPlan {
    /// Policy arms, as given on the command line.
    pub policies: Vec<String>,
    /// The tree.
    pub tree: Tree,
    /// Number of copies, including the first.
    pub copies: u32,
    /// Number of CPU slots.
    pub cpus: u32,
    /// The image that each arm runs on.
    pub image: ImageSource,
    /// Bytes written between two commits.
    pub commit_bytes: u64,
    /// Seed.
    pub seed: u64,
    /// Whether the allocator assumes a device with seek times.
    pub rotational: bool,
    /// Ageings. All copies are made on a fresh image, and again on an image of each ageing.
    pub aged: Vec<Ageing>,
    /// How the tree is copied.
    pub manner: Manner,
    /// Whether to repeat everything in other manners, to see what the figures depend on.
    pub sensitivity: bool,
}

/// The image after one copy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CopyRow {
    /// Always `copy`.
    pub workload: String,
    /// The policy arm.
    pub policy: String,
    /// `fresh`, or the ageing of the image.
    #[serde(default = "crate::figures::states::fresh")]
    pub state: String,
    /// What this variant of the plan changes; empty for the plan itself.
    #[serde(default)]
    pub variant: String,
    /// Number of the copy, from 1.
    pub copy: u32,
    /// Seed.
    pub seed: u64,
    /// Files written.
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Changes between used and free squares of the map (32 a group) in disk order.
    pub boundaries: u64,
    /// Groups without a used square.
    pub empty_groups: u64,
    /// Jaccard index of the squares used by files after this copy and after the previous one;
    /// `None` for the first.
    pub overlap_previous: Option<f64>,
    /// Share (0..=1) of the free blocks that are in runs of at least [`LONG_RUN`].
    pub free_share_long_runs: f64,
    /// Free extents by length.
    #[serde(default)]
    pub free_by_length: Vec<FreeRuns>,
    /// MiB allocated elsewhere between two uses of a group: the median over all returns to a group;
    /// `None` without returns.
    pub reuse_interval_mib_p50: Option<f64>,
    /// The same interval as a mean: first over the returns of each group, then over the groups;
    /// `None` without returns.
    pub reuse_interval_mib_group_mean: Option<f64>,
    /// Returns to a group during this copy, for all groups.
    pub reuses: u64,
    /// Mean number of extents of a file.
    pub extents_per_file: f64,
    /// Mean extent in KiB.
    pub mean_extent_kb: f64,
    /// Free extents of the image (e2freefrag).
    pub free_extents: u64,
    /// Average free extent in KiB (e2freefrag).
    pub avg_free_extent_kb: u64,
    /// Fragmentation score (e4defrag -c); `None` without files.
    pub score: Option<f64>,
    /// Mean number of groups that a transaction allocated data in; `None` without transactions.
    #[serde(default)]
    pub groups_per_transaction: Option<f64>,
    /// How evenly the bytes written since the copies began are spread over the device: the entropy
    /// of the bytes written to each MiB, as a share of its maximum.
    #[serde(default)]
    pub write_entropy: f64,
    /// The Gini coefficient of the same counts; 0 is even.
    #[serde(default)]
    pub write_gini: f64,
    /// Figures of three simulated devices: one gets no discards, one gets them after each commit,
    /// one after each copy.
    #[serde(default)]
    pub discard: Vec<Told>,
    /// The cost of reading files back, walking the tree, and checking, on modelled devices.
    #[serde(default)]
    pub readings: Readings,
}

impl crate::figures::states::Stated for CopyRow {
    fn state(&self) -> &str {
        &self.state
    }

    fn as_fresh(&self) -> Self {
        Self { state: crate::figures::states::fresh(), ..self.clone() }
    }
}

/// The results.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CopyOutcome {
    /// Rows by arm, then by copy.
    pub rows: Vec<CopyRow>,
    /// Verdict on each arm's image after the last copy.
    pub verdict: Verdict,
    /// Maps before the first copy and after each.
    pub maps: Vec<NamedMap>,
    /// One timeline for each arm: the used share of every group.
    pub timelines: Vec<Timeline>,
}

impl CopyPlan {
    /// A plan of three copies on an image in memory. The tree fills the image to the published
    /// share (27 GiB on 818 groups of 128 MiB). A copy has as many commits as a copy of the
    /// published tree would have with a commit after each [`COMMIT_BYTES`]. A small tree has more
    /// space and fewer commits: the image has at least 8 groups, and at least 1 MiB is written
    /// between two commits.
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
            manner: Manner::COPYING,
            sensitivity: false,
        }
    }

    /// A warning if the tree is too small for its map to show much; `None` otherwise, or if the
    /// image cannot be read.
    #[must_use]
    pub fn too_small(&self) -> Option<String> {
        let fills = self.tree.bytes() * 818 / (27 * GIB);
        if fills >= 50 {
            return None;
        }
        // If the image cannot be read, `check` reports why.
        let groups = self.image.groups().ok()?;
        Some(format!(
            "copy: the tree takes {} MiB of an image of {groups} groups, the published one 27 GiB of 818; \
             at this size boundaries and empty groups show little",
            self.tree.bytes() / MIB
        ))
    }

    /// All settings of the plan, as text.
    #[must_use]
    pub fn identity(&self) -> String {
        format!("{self:?}")
    }

    /// All settings that determine the results of one arm.
    fn decides(&self, arm: &Arm<'_>) -> Result<serde_json::Value> {
        Ok(serde_json::json!({
            "workload": "copy",
            "name": arm.name,
            "policy": format!("{:?}", arm.policy),
            "variant": arm.variant,
            "manner": format!("{:?}", self.manner),
            "tree": crate::folder::ledger::hash(&format!("{:?}", self.tree)),
            "copies": self.copies,
            "cpus": self.cpus,
            "image": self.image.identity()?,
            "rotational": self.rotational,
            "aged": arm.aged.map(|aged| format!("{aged:?}")),
            "commit_bytes": self.commit_bytes,
            "seed": self.seed,
        }))
    }

    /// Refuses a plan that cannot work, before anything runs.
    ///
    /// # Errors
    /// Says what is wrong and what to do.
    pub fn check(&self) -> Result<()> {
        ensure!(!self.policies.is_empty(), "--policy: name at least one (see blockyard policy list)");
        refuse_twice("--policy", &self.policies)?;
        refuse_twice("--aged", &self.aged)?;
        for text in &self.policies {
            let policy = Policy::parse(text)
                .with_context(|| format!("--policy {text} (see blockyard policy list)"))?;
            self.image.check_policy(text, &policy)?;
        }
        ensure!((1..=100).contains(&self.copies), "--copies: give a number from 1 to 100");
        ensure!((1..=4096).contains(&self.cpus), "--cpus: give a number from 1 to 4096");
        ensure!(!self.image.is_in_place(), "--in-place: copy keeps no image; leave it out");
        // Space that a copy frees returns only after a commit. So the image needs room for the
        // tree, each file rounded up to whole blocks, and for what waits for commits.
        self.image.check(self.room())?;
        self.check_ageings()
    }

    /// Refuses an ageing of an image in memory if it asks for a share (`P%`) that leaves no room
    /// for the copies. Ageing always leaves this room, so it would not reach the share. A profile's
    /// default share is only an upper limit, and is not checked.
    fn check_ageings(&self) -> Result<()> {
        let Some(bytes) = self.image.memory_bytes() else { return Ok(()) };
        let needed = count_as_f64(self.room()) / count_as_f64(bytes);
        for ageing in &self.aged {
            ensure!(
                ageing.utilisation.is_none_or(|share| share + needed <= 1.0),
                "--aged {ageing}: the copies need {:.0} % of the image; give at most {:.0}%",
                (needed * 100.0).ceil(),
                ((1.0 - needed) * 100.0).floor()
            );
        }
        Ok(())
    }

    /// Number of copies under all arms together.
    #[must_use]
    pub fn parts(&self) -> usize {
        let copies = usize_from_u64(u64::from(self.copies));
        self.policies.len() * copies * (1 + self.aged.len()) * self.variants().len()
    }

    /// Bytes that the tree needs, including freed space that waits for a commit.
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

/// Runs every arm; `progress` is called before each copy.
///
/// # Errors
/// Those of [`CopyPlan::check`] before anything runs. An arm that fails is named.
pub fn run(plan: &CopyPlan, progress: impl FnMut(usize, &str)) -> Result<CopyOutcome> {
    run_kept(plan, &mut Ledger::none(), progress)
}

/// Like [`run`], but an arm whose results are in `ledger` is not run again. The results of the
/// other arms are added to the ledger.
///
/// # Errors
/// Those of [`run`], and when results cannot be written to the ledger.
pub fn run_kept(
    plan: &CopyPlan,
    ledger: &mut Ledger,
    progress: impl FnMut(usize, &str),
) -> Result<CopyOutcome> {
    let (outcome, ended) = run_as_far(plan, ledger, progress)?;
    ended.map(|()| outcome)
}

/// Like [`run_kept`], but keeps the rows that were measured before an arm failed, and returns the
/// error beside them.
///
/// # Errors
/// Those of [`CopyPlan::check`].
pub fn run_as_far(
    plan: &CopyPlan,
    ledger: &mut Ledger,
    progress: impl FnMut(usize, &str),
) -> Result<(CopyOutcome, Result<()>)> {
    plan.check()?;
    let mut outcome = CopyOutcome::default();
    let ended = measure(plan, ledger, progress, &mut outcome);
    Ok((outcome, ended))
}

fn measure(
    plan: &CopyPlan,
    ledger: &mut Ledger,
    mut progress: impl FnMut(usize, &str),
    outcome: &mut CopyOutcome,
) -> Result<()> {
    let mut done = 0;
    for (variant, plan) in plan.variants() {
        for aged in std::iter::once(None).chain(plan.aged.iter().map(Some)) {
            for name in &plan.policies {
                let arm = Arm { name, variant, policy: Policy::parse(name)?, aged };
                let label = arm.label();
                let mut begin = |copy: u32| {
                    progress(done + usize_from_u64(copy.into()), &format!("copy {copy} under {label}"));
                };
                let found = ledger.cell(plan.decides(&arm)?, || {
                    let mut outcome = CopyOutcome::default();
                    run_arm(&plan, &arm, &mut outcome, &mut begin).map(|()| outcome)
                });
                let found = found.with_context(|| format!("copy under {label}"))?;
                done += usize_from_u64(plan.copies.into());
                outcome.rows.extend(found.rows);
                outcome.verdict.add(&found.verdict);
                outcome.maps.extend(found.maps);
                outcome.timelines.extend(found.timelines);
            }
        }
    }
    Ok(())
}

/// A policy on images of one state, copied in one manner.
struct Arm<'a> {
    name: &'a str,
    variant: &'static str,
    policy: Policy,
    aged: Option<&'a Ageing>,
}

impl Arm<'_> {
    /// A name that no other arm of the plan has.
    fn label(&self) -> String {
        let mut label = self.name.to_owned();
        for more in [self.variant.to_owned(), self.aged.map_or(String::new(), ToString::to_string)] {
            if !more.is_empty() {
                label = format!("{label}; {more}");
            }
        }
        label
    }
}

fn run_arm(
    plan: &CopyPlan,
    arm: &Arm<'_>,
    outcome: &mut CopyOutcome,
    begin: &mut dyn FnMut(u32),
) -> Result<()> {
    let label = arm.label();
    let device = plan.image.device()?;
    let watched = Arc::new(Watched::new(device.shared())?);
    let shared: Arc<dyn BlockDevice> = Arc::<Watched>::clone(&watched);
    if let Some(ageing) = arm.aged {
        let room = plan.room();
        let who =
            Circumstances { rotational: plan.rotational, room, ..Circumstances::new(arm.policy, plan.seed) };
        age(Arc::clone(&shared), ageing, &who)?;
        // When the copies begin, all free space is discarded on both simulated devices that get
        // discards.
        let free = free_space(&shared)?;
        watched.discard_online(&free);
        watched.discard_periodic(&free);
    }
    watched.begin();
    let mut note = |title: String, scan: &ImageScan| {
        let (policy, map, files) = (arm.name.to_owned(), scan.map.clone(), Some(scan.file_map.clone()));
        outcome.maps.push(NamedMap { title, policy, workers: 1, map, files });
    };
    let mut before = ImageScan::of(Arc::clone(&shared))?;
    note(format!("copy: {label}, before"), &before);
    let title = format!("copy: {label}, over time");
    let mut copier = Copier::new(plan, arm.policy, Arc::clone(&watched), title)?;
    let mut fs = copier.open()?;
    for copy in 1..=plan.copies {
        begin(copy);
        if copy > 1 && plan.manner.is_mounted_anew {
            fs.close(&context(0)).context("close the image")?;
            fs = copier.open()?;
        }
        copier.copy(&fs, copy)?;
        // The copy ended with a sync, so the device has everything. The file system stays open,
        // because cursors and goals live in memory. (In some manners, the next copy reopens it.)
        let scan = ImageScan::of(Arc::clone(&shared))?;
        watched.discard_periodic(&free_space(&shared)?);
        note(format!("copy: {label}, after copy {copy}"), &scan);
        let spread = watched.spread();
        outcome.rows.push(CopyRow {
            state: arm.aged.map_or(FRESH.to_owned(), ToString::to_string),
            variant: arm.variant.to_owned(),
            overlap_previous: (copy > 1).then(|| scan.file_map.overlap(&before.file_map)),
            write_entropy: spread.entropy,
            write_gini: spread.gini,
            discard: watched.told(),
            readings: Readings::of(&shared)?,
            ..row(plan, arm.name, copy, &scan, &copier.reuse.take())
        });
        before = scan;
    }
    outcome.timelines.push(copier.timeline);
    fs.close(&context(0)).context("close the image")?;
    outcome.verdict.check(&*shared)?;
    outcome.verdict.e2fsck(|path| device.save(path))?;
    Ok(())
}

/// First byte and length of every run of free clusters of an image.
fn free_space(device: &Arc<dyn BlockDevice>) -> Result<Vec<(u64, u64)>> {
    let reader = Reader::open(Arc::clone(device))?;
    let geometry = *reader.superblock().geometry();
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for group in geometry.all_groups() {
        let bits = reader.block_bitmap(&reader.group(group)?)?;
        let clusters = geometry.clusters_in_group(group);
        let first = geometry.group_first_block(group).raw();
        let bytes =
            |clusters: u32| u64::from(clusters) << geometry.cluster_ratio_bits() << geometry.block_bits();
        let mut at = 0;
        while let Some(start) = bitmap::next_clear(&bits, at..clusters) {
            at = bitmap::next_set(&bits, start..clusters).unwrap_or(clusters);
            let offset = (first << geometry.block_bits()) + bytes(start);
            match runs.last_mut() {
                Some((before, length)) if *before + *length == offset => *length += bytes(at - start),
                _ => runs.push((offset, bytes(at - start))),
            }
        }
    }
    Ok(runs)
}

/// The row of a copy, without what the caller adds: the state, the variant, the overlap with the
/// previous copy, and the figures of writes, discarding and reading.
fn row(plan: &CopyPlan, policy: &str, copy: u32, scan: &ImageScan, reuse: &reuse::Figures) -> CopyRow {
    let figures = scan.map.figures();
    CopyRow {
        workload: "copy".to_owned(),
        policy: policy.to_owned(),
        state: FRESH.to_owned(),
        variant: String::new(),
        copy,
        seed: plan.seed,
        files: u64_from_usize(plan.tree.files.len()),
        bytes: plan.tree.bytes(),
        boundaries: figures.boundaries,
        empty_groups: figures.empty_groups,
        overlap_previous: None,
        free_share_long_runs: scan.free_share_of_runs(LONG_RUN),
        free_by_length: by_length(&scan.free),
        reuse_interval_mib_p50: reuse.median_mib,
        reuse_interval_mib_group_mean: reuse.group_mean_mib,
        reuses: reuse.returns,
        extents_per_file: scan.extents_per_file(),
        mean_extent_kb: scan.mean_extent_kb(),
        free_extents: scan.free.extents(),
        avg_free_extent_kb: scan.free.average_kib(),
        score: scan.defrag.score().map(f64::from),
        groups_per_transaction: reuse.groups_per_transaction,
        write_entropy: 0.0,
        write_gini: 0.0,
        discard: Vec::new(),
        readings: Readings::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(scale: f64) -> CopyPlan {
        let policies = vec!["linux-6.18".into(), "rralloc-v2".into()];
        CopyPlan::published(policies, Tree::synthetic(scale, 1), 1)
    }

    /// An ageing that would have to stop early, to leave room for the copies, is refused.
    #[test]
    fn an_ageing_leaves_room_for_the_copies() {
        let aged = |life: &str| CopyPlan { aged: vec![life.parse().unwrap()], ..plan(0.05) };
        assert!(aged("mail:1x:40%").check().is_ok());
        assert!(aged("mail:1x").check().is_ok(), "the profile's own share is an upper limit");
        let told = aged("mail:1x:85%").check().unwrap_err().to_string();
        assert!(told.starts_with("--aged mail:1x:85%: the copies need 3"), "{told}");
    }

    /// A twentieth of the tree shows what the published experiment showed. The regular policy
    /// returns to space that it used before (published overlaps: 0.63 and 0.69). Round robin moves
    /// on (0.31 and 0.26), and leaves fewer empty groups and more boundaries.
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

    /// The tree is one file: first of the published 27 GiB, then of a hundredth of a GiB.
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
        let note = small.too_small().unwrap();
        assert!(note.contains("10 MiB of an image of 8 groups, the published one 27 GiB of 818"), "{note}");
        let roomy = CopyPlan { image: ImageSource::memory(100 * 128 * MIB, 1), ..small };
        assert!(roomy.too_small().unwrap().contains("an image of 100 groups"));
    }

    #[test]
    fn a_row_has_the_figures_of_the_image() {
        let mut scan = crate::run::example_scan();
        // Three groups with one cluster in each square. Of the second group, the second cluster and
        // all from the seventh on are used.
        let mut map = blockyard_inspect::map::AllocationMap::new(3, 32, 32);
        for (first, count) in [(1, 1), (6, 26)] {
            map.add_used(1, first, count);
        }
        scan.map = map;
        // A run of 8 MiB and shorter ones of 4, 10 and 300 blocks.
        scan.free.add_run(4096, 2048);
        scan.free.add_run(8192, 300);
        let plan = plan(0.0001);
        let reuse = reuse::Figures {
            returns: 6,
            median_mib: Some(3.0),
            group_mean_mib: Some(5.0),
            ..reuse::Figures::default()
        };
        let row = row(&plan, "yard", 2, &scan, &reuse);
        assert_eq!((row.policy.as_str(), row.copy, row.seed), ("yard", 2, 1));
        assert_eq!((row.files, row.bytes), (18, plan.tree.bytes()));
        // In disk order: free, used, free, used to the second group's end, free.
        assert_eq!((row.boundaries, row.empty_groups, row.overlap_previous), (4, 2, None));
        assert!((row.free_share_long_runs - 2048.0 / 2362.0).abs() < 1e-9);
        let reuse = (row.reuse_interval_mib_p50, row.reuse_interval_mib_group_mean, row.reuses);
        assert_eq!(reuse, (Some(3.0), Some(5.0), 6));
        assert_eq!((row.extents_per_file, row.mean_extent_kb), (1.5, 16.0));
        // 2362 blocks in four runs: 590 each, rounded down, which is 2360 KiB.
        assert_eq!((row.free_extents, row.avg_free_extent_kb, row.score), (4, 2360, Some(40.0)));
    }

    /// The third of the eight groups of a small image holds no metadata, so none of it is used at
    /// first.
    #[test]
    fn time_goes_by_what_was_written() {
        let tree =
            Tree { directories: Vec::new(), files: vec![TreeFile { directory: None, bytes: 64 * MIB }] };
        let plan = CopyPlan { copies: 2, ..CopyPlan::published(vec!["yard".into()], tree, 1) };
        let outcome = run(&plan, |_, _| ()).unwrap();
        let timeline = serde_json::to_value(&outcome.timelines[0]).unwrap();
        let samples = timeline["samples"].as_array().unwrap();
        let gib: Vec<f64> = samples.iter().map(|sample| sample[0].as_f64().unwrap()).collect();
        // Three samples of each copy: before it, after its one file, and at its end.
        assert_eq!(gib, [0.0, 0.0625, 0.0625, 0.0625, 0.125, 0.125]);
        assert_eq!(samples[0][1].as_array().unwrap().len(), 8);
        assert_eq!(samples[0][1][2], 0);
        // 64 MiB are 16,384 of a group's 32,768 blocks, so the shares rise by 500 per mille in all.
        let used = |sample: usize| -> u64 {
            samples[sample][1].as_array().unwrap().iter().map(|share| share.as_u64().unwrap()).sum()
        };
        assert!((498..=502).contains(&(used(2) - used(0))), "{} {}", used(2), used(0));
    }
}
