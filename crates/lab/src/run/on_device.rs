//! A cell on a modelled device: workers take turns in one thread, and time is the model's.
//!
//! An operation takes the time it waits for the device plus CPU time: [`OPERATION`] and the copying
//! of its bytes. CPUs work in parallel, so only a part of the CPU time advances the clock. Content
//! is zeroes, which a device in memory does not store. Metadata reads of an operation are counted
//! by kind; the engine's own cache is bounded ([`CACHE_BYTES`]). Nothing depends on a clock of this
//! machine: the same command gives the same row.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use blockyard_device::BlockDevice;
use blockyard_device::modelled::{ModelCounts, Modelled};
use blockyard_disk::num::{count_as_f64, u64_from_usize};

use crate::device_model::DeviceModel;
use crate::figures::row::OnDevice;
use crate::metered::{MetadataReads, Metered};
use crate::runner::{Limit, Measured};
use crate::target::Target;
use crate::workload::{Step, Workers};

/// CPU time of an operation, and bytes copied a second. Together they give 2.01 us for a 4 KiB
/// write that waits for nothing (published: 2.03 us).
const OPERATION: Duration = Duration::from_nanos(1500);
const COPY_BYTES_PER_S: u64 = 8_000_000_000;
/// Bytes of metadata that the engine keeps in memory.
pub(super) const CACHE_BYTES: usize = 16 << 20;

/// The devices of a cell, from top to bottom: one counts the reads, one takes time, one holds
/// content.
pub(super) struct DeviceStack {
    model: DeviceModel,
    metered: Arc<Metered<Modelled<Arc<dyn BlockDevice>>>>,
    /// The counts when the workers began.
    before: ModelCounts,
    requests: u64,
    reads: MetadataReads,
    reads_max: u64,
}

impl DeviceStack {
    /// A stack over an image.
    ///
    /// # Errors
    /// When the model cannot have that size, and those of the image.
    pub(super) fn new(below: Arc<dyn BlockDevice>, model: &DeviceModel) -> Result<Self> {
        let modelled = Modelled::new(below, &model.parameters)?;
        let metered = Arc::new(Metered::new(modelled));
        metered.learn()?;
        let (before, reads) = (ModelCounts::default(), MetadataReads::default());
        Ok(Self { model: model.clone(), metered, before, requests: 0, reads, reads_max: 0 })
    }

    /// The device for the file system.
    pub(super) fn shared(&self) -> Arc<dyn BlockDevice> {
        Arc::<Metered<Modelled<Arc<dyn BlockDevice>>>>::clone(&self.metered)
    }

    /// The device that takes time.
    pub(super) fn modelled(&self) -> &Modelled<Arc<dyn BlockDevice>> {
        self.metered.below()
    }

    /// Lets the workers take turns to their end or limit. Returns them, so that their files can be
    /// filled and closed.
    ///
    /// # Errors
    /// The first error of a worker, with its number.
    pub(super) fn run<'t, T: Target + 't>(
        &mut self,
        target: &T,
        mut workers: Workers<'t, T>,
        cpus: u32,
        limit: Limit,
    ) -> Result<(Measured, Workers<'t, T>)> {
        let figures = self.modelled().figures();
        (self.before, self.requests) = (figures.counts, figures.requests);
        self.metered.take();
        let began = figures.elapsed;
        let mut measured = Measured::new();
        let mut running: Vec<usize> = (0..workers.len()).collect();
        let mut left = limit.ops_per_worker.unwrap_or(u64::MAX);
        while left > 0 && !running.is_empty() {
            let mut still = Vec::with_capacity(running.len());
            for &index in &running {
                let before = self.modelled().elapsed();
                let step = workers[index].step(target).with_context(|| format!("worker {index}"))?;
                let Step::Done { bytes } = step else { continue };
                let side_by_side = cpus.min(u32::try_from(running.len()).unwrap_or(u32::MAX));
                self.note(&mut measured, before, bytes, side_by_side.max(1));
                still.push(index);
            }
            running = still;
            target.next_round();
            left -= 1;
        }
        if limit.fsync_end {
            workers.iter_mut().try_for_each(|worker| worker.sync(target))?;
        }
        measured.seconds = (self.modelled().elapsed() - began).as_secs_f64();
        Ok((measured, workers))
    }

    /// Records an operation that began at `before`.
    fn note(&mut self, measured: &mut Measured, before: Duration, bytes: u64, side_by_side: u32) {
        let work = OPERATION + copied(bytes);
        let waited = self.modelled().elapsed() - before;
        self.modelled().pass(work / side_by_side);
        let latency = u64::try_from((waited + work).as_nanos()).unwrap_or(u64::MAX);
        measured.latency_ns.saturating_record(latency.max(1));
        measured.ops += 1;
        measured.bytes += bytes;
        let fetched = self.metered.take();
        self.reads_max = self.reads_max.max(u64_from_usize(fetched.len()));
        fetched.iter().for_each(|fetch| self.reads.add(fetch.class));
    }

    /// The device's figures for the row of a workload.
    pub(super) fn figures(&self, job: String, measured: &Measured) -> OnDevice {
        let figures = self.modelled().figures();
        let written = figures.counts.host_pages - self.before.host_pages;
        let programmed = |counts: &ModelCounts| counts.programs.iter().sum::<u64>();
        let programs = programmed(&figures.counts) - programmed(&self.before);
        let reads = self.reads;
        let all = reads.bitmap + reads.descriptor + reads.inode_table + reads.map + reads.directory;
        OnDevice {
            device: self.model.name.clone(),
            job,
            lat_us_stdev: measured.latency_ns.stdev() / 1e3,
            lat_us_p999: measured.latency_us(0.999),
            requests: figures.requests - self.requests,
            write_amplification: (written > 0).then(|| count_as_f64(programs) / count_as_f64(written)),
            wear_spread: figures.counts.wear_spread(),
            meta_reads_mean: count_as_f64(all) / count_as_f64(measured.ops.max(1)),
            meta_reads_max: self.reads_max,
            meta_reads: reads,
        }
    }
}

fn copied(bytes: u64) -> Duration {
    Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / COPY_BYTES_PER_S)
}

#[cfg(test)]
mod tests {
    use crate::Row;
    use crate::figures::row::Interleave;
    use crate::run::{Plan, run};
    use crate::runner::Limit;

    fn rows(device: &str, workload: &str) -> Vec<Row> {
        let limit = Limit { time: None, ops_per_worker: Some(400), fsync_end: true };
        let plan = Plan {
            limit,
            device: Some(device.parse().unwrap()),
            policies: vec!["linux-6.18".to_owned()],
            workers: vec![3],
            dirty_limit: Some(1 << 20),
            ..crate::run::tests::plan(workload, Interleave::Lockstep, 400)
        };
        run(&plan, |_, _| ()).unwrap().rows
    }

    #[test]
    fn rows_are_in_the_time_of_the_model_and_repeat_to_the_byte() {
        for device in ["hdd", "ssd", "ftl", "latency"] {
            let first = rows(device, "allocstress:fallocate=none");
            let text = serde_json::to_string(&first).unwrap();
            assert_eq!(text, serde_json::to_string(&rows(device, "allocstress:fallocate=none")).unwrap());
            let back: Vec<Row> = serde_json::from_str(&text).unwrap();
            assert_eq!(back, first);
            let on = first[0].modelled.as_ref().unwrap();
            assert_eq!((on.device.as_str(), on.job.as_str()), (device, "allocstress:fallocate=none"));
            assert!(first[0].lat_us_p50 >= 2.0 && first[0].lat_us_max > first[0].lat_us_p50, "{first:?}");
            assert_eq!(
                (on.write_amplification.is_some(), on.wear_spread.is_some()),
                (device == "ftl", device == "ftl")
            );
            assert!(on.requests > 0 && on.lat_us_stdev > 0.0);
        }
    }

    /// 4.7 MiB go to the device. They take over 30 ms at the disk's fastest rate, and 9 ms at the
    /// rate of the SSD's interface.
    #[test]
    fn a_disk_is_slower_than_an_ssd() {
        let seconds = |device: &str| rows(device, "smallfiles")[0].seconds;
        assert!(seconds("hdd") > 1.5 * seconds("ssd"), "{} {}", seconds("hdd"), seconds("ssd"));
    }
}
