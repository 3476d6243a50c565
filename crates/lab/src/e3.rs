//! `lab run e3`: what clusters save in metadata reads, the published bigalloc experiment of 2011.
//!
//! A file server keeps large preallocated files; its memory is short, so that the metadata a call needs seldom stays
//! cached. Here a file system in memory is filled with preallocated files; then files drawn at random are truncated to
//! nothing and allocated again at a new size, long enough that free space is in pieces everywhere. Before each call the
//! allocator forgets every bitmap, and the engine keeps next to no metadata; what a call then reads from the device is
//! counted. Repeatable but for the times: these are of a device without seeks, so it is the reads that compare.

mod published;
pub mod table;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use blockyard_alloc::Policy;
use blockyard_device::{BlockDevice, FaultyDevice, MemoryDevice};
use blockyard_disk::InodeNr;
use blockyard_disk::inode::FileType;
use blockyard_disk::num::{count_as_f64, u64_from_usize};
use blockyard_engine::{Fallocate, FileSystem, NewInode, OpenOptions, mkfs};
use blockyard_sync::CpuSlot;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::age::{Ageing, Circumstances, age};
use crate::figures::states::FRESH;
use crate::folder::ledger::Ledger;
use crate::run::{Verdict, default_mkfs};
use crate::target::engine::{context, unjournaled};
use crate::workload::scale::scaled;
use crate::workload::{GIB, MIB};

/// Cluster sizes in KiB in the order of the published columns; none is a file system without clusters.
pub const CLUSTERS: [Option<u32>; 4] = [None, Some(64), Some(256), Some(1024)];
/// Size of the image at scale 1.
const IMAGE_BYTES: u64 = 1024 * GIB;
/// Share of the image that the files take.
const FILL: f64 = 0.8;
/// Sizes of files are drawn evenly from 1 MiB to this.
const FILE_BYTES_MAX: u64 = 128 * MIB;
/// Directories, so that files do not all lie near one.
const DIRECTORIES: u64 = 64;
/// Metadata that the engine keeps in memory.
const CACHE_BYTES: usize = 1 << 20;

/// What to run.
#[derive(Clone, Debug)]
pub struct ClusterPlan {
    /// Policy, as it was asked for.
    pub policy: String,
    /// Factor on the size of the image.
    pub scale: f64,
    /// Files that are truncated and allocated again.
    pub calls: u64,
    /// Seed.
    pub seed: u64,
    /// Whether the allocator takes the device for one with seek times.
    pub rotational: bool,
    /// The lives that images have had before, one after the other beside fresh ones.
    pub aged: Vec<Ageing>,
}

/// The calls of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Calls {
    /// How many.
    pub calls: u64,
    /// Mean time in microseconds, without what a device would add.
    pub mean_us: f64,
    /// Mean reads of metadata.
    pub mean_reads: f64,
    /// Most reads in one call.
    pub most_reads: u64,
}

/// One file system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterRow {
    /// Always `e3`.
    pub workload: String,
    /// The policy.
    pub policy: String,
    /// `fresh`, or the life that the image had before.
    #[serde(default = "crate::figures::states::fresh")]
    pub state: String,
    /// Cluster size in KiB; none without clusters.
    pub cluster_kib: Option<u32>,
    /// Seed.
    pub seed: u64,
    /// Files.
    pub files: u64,
    /// Allocations of a whole file.
    pub fallocate: Calls,
    /// Truncations of a whole file to nothing.
    pub truncate: Calls,
}

impl crate::figures::states::Stated for ClusterRow {
    fn state(&self) -> &str {
        &self.state
    }

    fn as_fresh(&self) -> Self {
        Self { state: crate::figures::states::fresh(), ..self.clone() }
    }
}

/// What is kept of one file system.
#[derive(Serialize, Deserialize)]
struct Measured {
    rows: Vec<ClusterRow>,
    verdict: Verdict,
}

impl crate::folder::ledger::Cell for Measured {
    const FILE: &'static str = crate::folder::files::CLUSTERS_FILE;
    type Row = ClusterRow;

    fn rows(&self) -> &[ClusterRow] {
        &self.rows
    }
}

impl ClusterPlan {
    /// What to say where nearly nothing is read, because the bitmaps fit into what the engine keeps in memory.
    #[must_use]
    pub fn too_small(&self) -> Option<String> {
        let groups = scaled(IMAGE_BYTES, self.scale) / (128 * MIB);
        let fits = groups * 4096 <= u64_from_usize(CACHE_BYTES);
        fits.then(|| {
            format!(
                "e3: the bitmaps of {groups} groups fit into the engine's {} KiB; at this --scale reads show little",
                CACHE_BYTES >> 10
            )
        })
    }

    /// All that decides the plan, as text.
    #[must_use]
    pub fn identity(&self) -> String {
        format!("{self:?}")
    }

    /// All that decides one file system.
    fn decides(&self, name: &str, aged: Option<&Ageing>) -> Result<serde_json::Value> {
        let policy = format!("{:?}", Policy::parse(&self.policy)?);
        Ok(serde_json::json!({"workload": "e3", "name": name, "policy": policy, "plan": self.identity(),
            "aged": aged.map(|aged| format!("{aged:?}"))}))
    }

    /// Every cluster size on images of each state.
    #[must_use]
    pub fn cells(&self) -> Vec<(Option<&Ageing>, Option<u32>)> {
        let states = std::iter::once(None).chain(self.aged.iter().map(Some));
        states.flat_map(|aged| CLUSTERS.into_iter().map(move |cluster| (aged, cluster))).collect()
    }

    /// Refuses what cannot work, before anything runs.
    ///
    /// # Errors
    /// What is wrong and what to do.
    pub fn check(&self) -> Result<()> {
        Policy::parse(&self.policy)
            .with_context(|| format!("--policy {} (see blockyard policy list)", self.policy))?;
        ensure!(self.calls > 0, "--ops: give a number from 1 up");
        ensure!(
            (0.005..=8.0).contains(&self.scale),
            "--scale {}: for e3 give a factor from 0.005 (5 GiB) to 8",
            self.scale
        );
        Ok(())
    }
}

/// Runs every cluster size; `progress` is told before each.
///
/// # Errors
/// Those of [`ClusterPlan::check`], and of the file system.
pub fn run(plan: &ClusterPlan, progress: impl FnMut(usize, &str)) -> Result<(Vec<ClusterRow>, Verdict)> {
    run_kept(plan, &mut Ledger::none(), progress)
}

/// As [`run`]; what `ledger` has is not measured again, the rest is kept in it.
///
/// # Errors
/// As [`run`], and when a row cannot be written.
pub fn run_kept(
    plan: &ClusterPlan,
    ledger: &mut Ledger,
    mut progress: impl FnMut(usize, &str),
) -> Result<(Vec<ClusterRow>, Verdict)> {
    plan.check()?;
    let (mut rows, mut verdict) = (Vec::new(), Verdict::default());
    for (index, (aged, cluster_kib)) in plan.cells().into_iter().enumerate() {
        let name = name_of(cluster_kib);
        let state = aged.map_or(String::new(), |aged| format!(", {aged}"));
        progress(index + 1, &format!("e3 on {name}{state}"));
        let measured = ledger.cell(plan.decides(&name, aged)?, || {
            let mut verdict = Verdict::default();
            let row = Server::open(plan, cluster_kib, aged)?.run(&mut verdict)?;
            let row = ClusterRow { state: aged.map_or(FRESH.to_owned(), ToString::to_string), ..row };
            Ok(Measured { rows: vec![row], verdict })
        });
        let measured = measured.with_context(|| format!("e3 on {name}{state}"))?;
        rows.extend(measured.rows);
        verdict.add(&measured.verdict);
    }
    Ok((rows, verdict))
}

/// How a cluster size is called in tables.
#[must_use]
pub fn name_of(cluster_kib: Option<u32>) -> String {
    match cluster_kib {
        None => "stock ext4".to_owned(),
        Some(1024) => "1M clusters".to_owned(),
        Some(kib) => format!("{kib}k clusters"),
    }
}

/// Memory that counts what is read from it.
type Device = FaultyDevice<MemoryDevice>;

/// A file server with its files.
struct Server<'p> {
    plan: &'p ClusterPlan,
    cluster_kib: Option<u32>,
    device: Arc<Device>,
    fs: FileSystem,
    files: Vec<InodeNr>,
    random: ChaCha8Rng,
}

/// Counts of the calls so far.
#[derive(Default)]
struct Tally {
    calls: u64,
    nanoseconds: u128,
    reads: u64,
    most_reads: u64,
}

impl<'p> Server<'p> {
    fn open(plan: &'p ClusterPlan, cluster_kib: Option<u32>, aged: Option<&Ageing>) -> Result<Self> {
        let bytes = scaled(IMAGE_BYTES, plan.scale) / (128 * MIB) * (128 * MIB);
        let device = Arc::new(FaultyDevice::new(MemoryDevice::new(bytes)));
        let options = match cluster_kib {
            None => default_mkfs(plan.seed),
            Some(kib) => default_mkfs(plan.seed).features("bigalloc").cluster_size(kib << 10),
        };
        mkfs::format(&*device, &options)?;
        let policy = Policy::parse(&plan.policy)?;
        let shared: Arc<dyn BlockDevice> = Arc::<Device>::clone(&device);
        if let Some(ageing) = aged {
            let who = Circumstances {
                rotational: plan.rotational,
                room: bytes / 4,
                ..Circumstances::new(policy, plan.seed)
            };
            age(Arc::clone(&shared), ageing, &who)?;
        }
        let open = OpenOptions {
            cpus: 1,
            cache_bytes: CACHE_BYTES,
            rotational: plan.rotational,
            ..unjournaled(policy, plan.seed)
        };
        let fs = FileSystem::open(shared, open, &context(0))?;
        let random = ChaCha8Rng::seed_from_u64(plan.seed);
        let mut server = Self { plan, cluster_kib, device, fs, files: Vec::new(), random };
        let free = server.fs.statistics().blocks_free << server.fs.geometry().block_bits();
        // What a life has left is filled to the same share.
        server.fill(if aged.is_some() { scaled(free, FILL) } else { scaled(bytes, FILL) })?;
        Ok(server)
    }

    /// Makes files until they take so many bytes.
    fn fill(&mut self, bytes: u64) -> Result<()> {
        let ctx = context(0);
        let new = |kind| NewInode { kind, permissions: 0o755, device: None };
        let mut directories = Vec::new();
        for number in 0..DIRECTORIES {
            let name = format!("dir{number}").into_bytes();
            directories.push(self.fs.create(&ctx, InodeNr::ROOT, &name, &new(FileType::Directory))?);
        }
        let mut taken = 0;
        for (number, directory) in directories.iter().cycle().enumerate() {
            let size = self.size();
            taken += size;
            if taken > bytes && number > 0 {
                return Ok(());
            }
            let name = format!("file{number}").into_bytes();
            let inode = self.fs.create(&ctx, *directory, &name, &new(FileType::Regular))?;
            self.fs.fallocate(&ctx, inode, Fallocate::Allocate, 0, size)?;
            self.files.push(inode);
        }
        Ok(())
    }

    fn size(&mut self) -> u64 {
        self.random.random_range(MIB..=FILE_BYTES_MAX)
    }

    fn run(mut self, verdict: &mut Verdict) -> Result<ClusterRow> {
        let (mut fallocate, mut truncate) = (Tally::default(), Tally::default());
        let ctx = context(0);
        // Until every file was drawn about once, the layout is that of a new file system: not counted.
        let files = u64_from_usize(self.files.len());
        for call in 0..files + self.plan.calls {
            let inode = self.files[self.random.random_range(0..self.files.len())];
            let size = self.size();
            let is_counted = call >= files;
            self.count(is_counted.then_some(&mut truncate), |fs| fs.truncate(&ctx, inode, 0))?;
            // What a truncation frees can be used again after the next commit.
            self.fs.sync(&ctx)?;
            self.count(is_counted.then_some(&mut fallocate), |fs| {
                fs.fallocate(&ctx, inode, Fallocate::Allocate, 0, size)
            })?;
        }
        self.fs.close(&ctx)?;
        verdict.check(&*self.device)?;
        if CLUSTERS.last() == Some(&self.cluster_kib) {
            verdict.e2fsck(|path| Ok(self.device.below().save(path)?))?;
        }
        Ok(ClusterRow {
            workload: "e3".to_owned(),
            policy: self.plan.policy.clone(),
            state: FRESH.to_owned(),
            cluster_kib: self.cluster_kib,
            seed: self.plan.seed,
            files,
            fallocate: fallocate.figures(),
            truncate: truncate.figures(),
        })
    }

    /// One call with nothing in memory.
    fn count(
        &self,
        tally: Option<&mut Tally>,
        call: impl FnOnce(&FileSystem) -> blockyard_engine::Result<()>,
    ) -> Result<()> {
        self.fs.allocator().evict_all(CpuSlot::new(0));
        let (began, before) = (Instant::now(), self.device.counts().reads);
        call(&self.fs)?;
        if let Some(tally) = tally {
            tally.add(self.device.counts().reads - before, began.elapsed());
        }
        Ok(())
    }
}

impl Tally {
    /// A call with what it read, and how long it took.
    fn add(&mut self, reads: u64, time: Duration) {
        self.calls += 1;
        self.nanoseconds += time.as_nanos();
        self.reads += reads;
        self.most_reads = self.most_reads.max(reads);
    }

    fn figures(&self) -> Calls {
        let calls = count_as_f64(self.calls.max(1));
        Calls {
            calls: self.calls,
            mean_us: count_as_f64(u64::try_from(self.nanoseconds).unwrap_or(u64::MAX)) / 1e3 / calls,
            mean_reads: count_as_f64(self.reads) / calls,
            most_reads: self.most_reads,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> ClusterPlan {
        ClusterPlan {
            policy: "linux-6.18".into(),
            scale: 0.02,
            calls: 300,
            seed: 1,
            rotational: false,
            aged: Vec::new(),
        }
    }

    /// The larger the cluster, the fewer bitmaps a call can need.
    #[test]
    fn clusters_save_metadata_reads_and_the_counts_repeat() {
        let (rows, verdict) = run(&plan(), |_, _| ()).unwrap();
        assert!(verdict.is_clean() && verdict.images == 4, "{}", verdict.text());
        assert_eq!(verdict.e2fsck_clean.is_some(), crate::run::e2fsck_program().is_some());
        let reads: Vec<(f64, f64)> =
            rows.iter().map(|row| (row.fallocate.mean_reads, row.truncate.mean_reads)).collect();
        assert!(reads.windows(2).all(|pair| pair[1].0 <= pair[0].0 && pair[1].1 <= pair[0].1), "{reads:?}");
        assert!(reads[3].0 < reads[0].0 && reads[3].1 < reads[0].1, "{reads:?}");
        let again = run(&plan(), |_, _| ()).unwrap().0;
        for (one, other) in rows.iter().zip(&again) {
            assert_eq!((one.files, one.fallocate.calls), (other.files, 300));
            assert!((one.fallocate.mean_reads - other.fallocate.mean_reads).abs() < 1e-12);
            assert_eq!(one.truncate.most_reads, other.truncate.most_reads);
        }
    }

    #[test]
    fn bad_plans_are_refused() {
        for (plan, part) in [
            (ClusterPlan { policy: "linux-9".into(), ..plan() }, "no policy"),
            (ClusterPlan { scale: 0.0001, ..plan() }, "--scale"),
            (ClusterPlan { calls: 0, ..plan() }, "--ops"),
        ] {
            let text = format!("{:#}", run(&plan, |_, name| panic!("{name} ran")).unwrap_err());
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn calls_have_their_means_and_the_most() {
        let mut tally = Tally::default();
        for (reads, us) in [(3, 2), (7, 4), (0, 12), (4, 6)] {
            tally.add(reads, Duration::from_micros(us));
        }
        assert_eq!(tally.figures(), Calls { calls: 4, mean_us: 6.0, mean_reads: 3.5, most_reads: 7 });
        assert_eq!(Tally::default().figures(), Calls::default());
    }

    /// 256 bitmaps of 4 KiB are the MiB that the engine keeps; they are of 32 GiB.
    #[test]
    fn what_fits_into_memory_is_said_to_be_too_small() {
        let said = |gib: u32| ClusterPlan { scale: f64::from(gib) / 1024.0, ..plan() }.too_small();
        assert!(said(32).unwrap().contains("of 256 groups fit"));
        assert_eq!(said(33), None);
    }

    #[test]
    fn clusters_have_the_size_of_their_column() {
        for (kib, blocks) in [(None, 1), (Some(64), 16), (Some(1024), 256)] {
            let plan = ClusterPlan { scale: 0.005, ..plan() };
            let server = Server::open(&plan, kib, None).unwrap();
            assert_eq!(server.fs.geometry().cluster_ratio(), blocks);
        }
    }
}
