//! `lab age`: makes an image, ages it, checks it and reports on it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::num::count_as_f64;
use blockyard_engine::mkfs;
use blockyard_inspect::scan::ImageScan;
use blockyard_inspect::units;
use serde::Serialize;

use crate::age::{Ageing, Circumstances, What, age};
use crate::figures::{Table, figure};
use crate::run::Verdict;
use crate::workload::GIB;

/// The state of an aged image.
#[derive(Clone, Debug, Serialize)]
pub struct LifeRow {
    /// Always `age`.
    pub workload: &'static str,
    /// The ageing, in the form of the command line.
    pub life: String,
    /// The policy.
    pub policy: String,
    /// The seed of the ageing.
    pub seed: u64,
    /// Bytes of the image.
    pub bytes: u64,
    /// Number of operations.
    pub operations: u64,
    /// Operations by kind: create, append, overwrite, replace, delete.
    pub by_kind: BTreeMap<&'static str, u64>,
    /// Operations that found no space.
    pub no_room: u64,
    /// Bytes written to files.
    pub written_bytes: u64,
    /// `written_bytes` in multiples of the image's size.
    pub laps: f64,
    /// Number of files.
    pub files: u64,
    /// Share of the blocks in use.
    pub utilisation: f64,
    /// Mean number of extents per file, over all files with blocks.
    pub extents_per_file: f64,
    /// Mean length of an extent in KiB.
    pub mean_extent_kb: f64,
    /// Number of free extents of the image (e2freefrag).
    pub free_extents: u64,
    /// Average length of a free extent in KiB (e2freefrag).
    pub avg_free_extent_kb: u64,
    /// Fragmentation score (e4defrag -c); `None` without files.
    pub score: Option<f64>,
    /// Wall-clock seconds of the ageing.
    pub seconds: f64,
    /// MiB that the image takes in memory: metadata alone, because content is zeroes.
    pub kept_mib: f64,
}

/// An aged image.
pub struct Lived {
    /// Its state.
    pub row: LifeRow,
    /// The verdict of our checker and of e2fsck.
    pub verdict: Verdict,
    /// Bytes that files take, divided by the bytes that they may take. It is near 1 if the life was
    /// long enough.
    pub fullness: f64,
    device: Arc<MemoryDevice>,
}

/// Creates an image of `bytes` bytes and ages it.
///
/// # Errors
/// The errors of mkfs and of [`age`], and when the aged image cannot be scanned or judged.
pub fn lived(bytes: u64, options: &mkfs::Options, ageing: &Ageing, who: &Circumstances) -> Result<Lived> {
    let device = Arc::new(MemoryDevice::new(bytes));
    mkfs::format(&*device, options).context("make the image")?;
    let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
    let began = Instant::now();
    let deeds = age(Arc::clone(&shared), ageing, who)?;
    let seconds = began.elapsed().as_secs_f64();
    let scan = ImageScan::of(shared)?;
    let free = count_as_f64(scan.free.blocks() * scan.block_size);
    let mut verdict = Verdict::default();
    verdict.check(&*device)?;
    verdict.e2fsck(|path| Ok(device.save(path)?))?;
    let fullness = count_as_f64(deeds.taken_bytes) / count_as_f64(deeds.most_bytes.max(1));
    let row = LifeRow {
        workload: "age",
        life: ageing.to_string(),
        policy: who.policy.to_string(),
        seed: who.seed,
        bytes,
        operations: deeds.operations(),
        by_kind: What::ALL.into_iter().map(|what| (what.name(), deeds.of(what))).collect(),
        no_room: deeds.no_room,
        written_bytes: deeds.written_bytes,
        laps: count_as_f64(deeds.written_bytes) / count_as_f64(bytes),
        files: deeds.files,
        utilisation: 1.0 - free / count_as_f64(bytes),
        extents_per_file: scan.extents_per_file(),
        mean_extent_kb: scan.mean_extent_kb(),
        free_extents: scan.free.extents(),
        avg_free_extent_kb: scan.free.average_kib(),
        score: scan.defrag.score().map(f64::from),
        seconds,
        kept_mib: count_as_f64(device.resident_bytes() >> 10) / 1024.0,
    };
    Ok(Lived { row, verdict, fullness, device })
}

impl Lived {
    /// Writes the image as a sparse file.
    ///
    /// # Errors
    /// When the file cannot be made or written.
    pub fn save(&self, path: &Path) -> Result<()> {
        Ok(self.device.save(path)?)
    }
}

impl LifeRow {
    /// The row as a table, one figure in each line.
    #[must_use]
    pub fn table(&self) -> Table {
        let title = format!(
            "{} under {}: {} of image",
            self.life,
            self.policy,
            units::bytes(count_as_f64(self.bytes))
        );
        let mut table = Table::new(title, ["figure", "value"]);
        let mut push = |name: &str, value: String| table.push([name.to_owned(), value]);
        push("operations", self.operations.to_string());
        self.by_kind.iter().for_each(|(name, count)| push(name, count.to_string()));
        push("found no room", self.no_room.to_string());
        push("written (GiB)", figure(count_as_f64(self.written_bytes) / count_as_f64(GIB)));
        push("laps", figure(self.laps));
        push("files", self.files.to_string());
        push("utilisation", format!("{:.1}%", self.utilisation * 100.0));
        push("extents/file", figure(self.extents_per_file));
        push("mean extent", units::kib(self.mean_extent_kb));
        push("free extents", self.free_extents.to_string());
        push("mean free extent", units::kib(count_as_f64(self.avg_free_extent_kb)));
        push("score", self.score.map_or("-".to_owned(), figure));
        push("seconds", figure(self.seconds));
        push("kept in memory (MiB)", figure(self.kept_mib));
        table
    }
}
