//! A cell on a modelled device: workers take turns in one thread, and time is the model's.
//!
//! An operation takes the time it waits for the device plus CPU time: [`OPERATION`] and the copying
//! of its bytes. CPUs work in parallel, so an operation's CPU time is divided by the number of busy
//! CPUs before it is added to the clock. Nothing depends on a clock of this machine: the same
//! command gives the same row.
//!
//! Content is zeroes, which a device in memory does not store. The metadata reads of each operation
//! are counted by kind, and the engine's own cache of metadata is bounded ([`CACHE_BYTES`]).

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use blockyard_device::BlockDevice;
use blockyard_device::modelled::{Figures, ModelCounts, Modelled};
use blockyard_disk::num::count_as_f64;
use serde::Serialize;

use crate::device_model::DeviceModel;
use crate::figures::row::OnDevice;
use crate::metered::{Class, Fetch, MetadataReads, Metered};
use crate::runner::{Limit, Measured};
use crate::target::Target;
use crate::workload::{Step, Workers};

/// CPU time of an operation, and bytes copied a second. Together they give 2.01 us for a 4 KiB
/// write that waits for nothing (published: 2.03 us).
const OPERATION: Duration = Duration::from_nanos(1500);
const COPY_BYTES_PER_S: u64 = 8_000_000_000;
/// Bytes of metadata that the engine keeps in memory, if the plan says nothing else.
pub(super) const CACHE_BYTES: usize = 16 << 20;

/// The devices of a cell, from top to bottom: one counts the reads, one takes time, one holds
/// content.
pub(super) struct DeviceStack {
    model: DeviceModel,
    metered: Arc<Metered<Modelled<Arc<dyn BlockDevice>>>>,
    /// The model's figures when the workers began, and when they ended.
    before: Figures,
    after: Figures,
    /// The pages that operations fetched: one entry for each operation that fetched any.
    fetched: Vec<Vec<Run>>,
    /// Every operation, if operations are kept.
    operations: Option<Vec<Operation>>,
}

/// An operation of a worker.
struct Operation {
    worker: usize,
    /// When it began, counted from the beginning of the measurement.
    began: Duration,
    /// How long it waited for the device.
    waited: Duration,
    /// CPU time.
    work: Duration,
    bytes: u64,
    /// The index of its pages in [`DeviceStack::fetched`], if it fetched any.
    fetched: Option<usize>,
}

/// An operation as it is written to a file: with times in microseconds, and the number of metadata
/// pages that it read.
#[derive(Serialize)]
struct OperationRow {
    worker: usize,
    began_us: f64,
    waited_us: f64,
    us: f64,
    bytes: u64,
    #[serde(flatten)]
    meta_reads: MetadataReads,
}

/// Consecutive fetched pages of one class.
struct Run {
    first: Fetch,
    pages: u64,
}

impl DeviceStack {
    /// A stack over an image.
    ///
    /// # Errors
    /// When the modelled device cannot be as large as the image, and errors of reading the image.
    pub(super) fn new(below: Arc<dyn BlockDevice>, model: &DeviceModel) -> Result<Self> {
        let modelled = Modelled::new(below, &model.parameters)?;
        let metered = Arc::new(Metered::new(modelled));
        metered.learn()?;
        let (before, after) = (Figures::default(), Figures::default());
        let model = model.clone();
        Ok(Self { model, metered, before, after, fetched: Vec::new(), operations: None })
    }

    /// Keeps every operation of the workers from now on.
    pub(super) fn keep_operations(&mut self) {
        self.operations = Some(Vec::new());
    }

    /// The device for the file system.
    pub(super) fn shared(&self) -> Arc<dyn BlockDevice> {
        Arc::<Metered<Modelled<Arc<dyn BlockDevice>>>>::clone(&self.metered)
    }

    /// The device that takes time.
    pub(super) fn modelled(&self) -> &Modelled<Arc<dyn BlockDevice>> {
        self.metered.below()
    }

    /// Lets the workers take turns until they end or reach the limit. Returns the workers, so that
    /// their files can be filled and closed.
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
        self.before = self.modelled().figures();
        self.metered.take();
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
                self.note(&mut measured, (index, before), bytes, side_by_side.max(1));
                still.push(index);
            }
            running = still;
            target.next_round();
            left -= 1;
        }
        if limit.fsync_end {
            workers.iter_mut().try_for_each(|worker| worker.sync(target))?;
        }
        self.after = self.modelled().figures();
        measured.seconds = (self.after.elapsed - self.before.elapsed).as_secs_f64();
        Ok((measured, workers))
    }

    /// Records an operation that `worker` began at `before`.
    fn note(
        &mut self,
        measured: &mut Measured,
        (worker, before): (usize, Duration),
        bytes: u64,
        side_by_side: u32,
    ) {
        let work = OPERATION + copied(bytes);
        let waited = self.modelled().elapsed() - before;
        self.modelled().pass(work / side_by_side);
        let latency = u64::try_from((waited + work).as_nanos()).unwrap_or(u64::MAX);
        measured.latency_ns.saturating_record(latency.max(1));
        measured.ops += 1;
        measured.bytes += bytes;
        let fetched = self.metered.take();
        let place = (!fetched.is_empty()).then_some(self.fetched.len());
        if place.is_some() {
            self.fetched.push(runs(fetched, self.metered.page()));
        }
        if let Some(operations) = &mut self.operations {
            let began = before.saturating_sub(self.before.elapsed);
            operations.push(Operation { worker, began, waited, work, bytes, fetched: place });
        }
    }

    /// The metadata pages that were read in all, and the most that one operation read. `content`
    /// says where files have their content, in ascending order.
    fn metadata_reads(&self, content: &[Range<u64>]) -> (MetadataReads, u64) {
        let (mut reads, mut most) = (MetadataReads::default(), 0);
        for operation in &self.fetched {
            let before = reads.all();
            self.count(operation, content, &mut reads);
            most = most.max(reads.all() - before);
        }
        (reads, most)
    }

    /// Adds to `reads` the metadata pages that an operation read.
    fn count(&self, operation: &[Run], content: &[Range<u64>], reads: &mut MetadataReads) {
        let page = self.metered.page();
        for Run { first, pages } in operation {
            let offsets = (0..*pages).map(|more| match more {
                0 => first.offset,
                _ => (first.offset / page + more) * page,
            });
            let has_place = !matches!(first.class, Class::Map | Class::Directory);
            let is_metadata = |offset: &u64| has_place || !holds(content, *offset);
            offsets.filter(is_metadata).for_each(|_| reads.add(first.class));
        }
    }

    /// The operations that were kept, one JSON object a line, in the order in which they ran.
    pub(super) fn operations(&self, content: &[Range<u64>]) -> Result<String> {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let mut text = String::new();
        for operation in self.operations.iter().flatten() {
            let mut meta_reads = MetadataReads::default();
            if let Some(place) = operation.fetched {
                self.count(&self.fetched[place], content, &mut meta_reads);
            }
            let row = OperationRow {
                worker: operation.worker,
                began_us: us(operation.began),
                waited_us: us(operation.waited),
                us: us(operation.waited + operation.work),
                bytes: operation.bytes,
                meta_reads,
            };
            text += &serde_json::to_string(&row)?;
            text.push('\n');
        }
        Ok(text)
    }

    /// The device's figures for the row of a workload whose files have their content in `content`.
    pub(super) fn figures(&self, job: String, measured: &Measured, content: &[Range<u64>]) -> OnDevice {
        let counts = since(&self.after.counts, &self.before.counts);
        let (reads, reads_max) = self.metadata_reads(content);
        OnDevice {
            device: self.model.name.clone(),
            job,
            lat_us_stdev: measured.latency_ns.stdev() / 1e3,
            lat_us_p999: measured.latency_us(0.999),
            requests: self.after.requests - self.before.requests,
            write_amplification: counts.write_amplification(),
            wear_spread: counts.wear_spread(),
            meta_reads_mean: count_as_f64(reads.all()) / count_as_f64(measured.ops.max(1)),
            meta_reads_max: reads_max,
            meta_reads: reads,
        }
    }
}

/// Joins neighbouring fetched pages of one class into runs.
fn runs(fetched: Vec<Fetch>, page: u64) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for fetch in fetched {
        match runs.last_mut() {
            Some(Run { first, pages })
                if first.class == fetch.class && (first.offset / page + *pages) * page == fetch.offset =>
            {
                *pages += 1;
            }
            _ => runs.push(Run { first: fetch, pages: 1 }),
        }
    }
    runs
}

/// Whether one of the ascending ranges contains the offset.
fn holds(ranges: &[Range<u64>], offset: u64) -> bool {
    let after = ranges.partition_point(|range| range.start <= offset);
    after.checked_sub(1).is_some_and(|index| ranges[index].contains(&offset))
}

/// What was counted between two moments.
fn since(after: &ModelCounts, before: &ModelCounts) -> ModelCounts {
    let grown =
        |after: &[u64], before: &[u64]| after.iter().zip(before).map(|(now, then)| now - then).collect();
    ModelCounts {
        positionings: after.positionings - before.positionings,
        buffer_hits: after.buffer_hits - before.buffer_hits,
        host_pages: after.host_pages - before.host_pages,
        programs: grown(&after.programs, &before.programs),
        erases: grown(&after.erases, &before.erases),
    }
}

fn copied(bytes: u64) -> Duration {
    Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / COPY_BYTES_PER_S)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Row;
    use crate::figures::row::Interleave;
    use crate::run::{ImageSource, Plan, default_mkfs, run};

    fn rows(device: &str, workload: &str) -> Vec<Row> {
        run(&plan(device, workload), |_, _| ()).unwrap().rows
    }

    fn plan(device: &str, workload: &str) -> Plan {
        let limit = Limit { time: None, ops_per_worker: Some(400), fsync_end: true };
        Plan {
            limit,
            device: Some(device.parse().unwrap()),
            policies: vec!["linux-6.18".to_owned()],
            workers: vec![3],
            dirty_limit: Some(1 << 20),
            ..crate::run::tests::plan(workload, Interleave::Lockstep, 400)
        }
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

    /// The writes that lay out the files end before the first read, so no read waits for them.
    /// Every read goes to the device, and fetches content but no metadata.
    #[test]
    fn reads_wait_for_no_layout_and_are_no_metadata() {
        for (workload, most_ms) in [("seqread", 60.0), ("randread", 60.0)] {
            let row = &rows("hdd", workload)[0];
            let on = row.modelled.as_ref().unwrap();
            assert!(row.lat_us_max < most_ms * 1e3, "{workload}: {} us", row.lat_us_max);
            assert!(on.requests >= row.ops, "{workload}: {} requests, {} reads", on.requests, row.ops);
            assert_eq!((on.meta_reads, on.meta_reads_max), (MetadataReads::default(), 0), "{workload}");
        }
    }

    /// With a small cache, the engine reads indirect blocks again and again.
    #[test]
    fn a_smaller_cache_reads_more() {
        let reads = |cache_bytes| {
            let mkfs = Box::new(blockyard_engine::mkfs::Options::ext3().block_size(4096).identity(1, 0));
            let image = ImageSource::Memory { bytes: 8 << 30, mkfs, held: crate::run::Held::Process };
            let cell = Plan {
                image,
                cache_bytes,
                workers: vec![200],
                journal: vec![true],
                limit: Limit { time: None, ops_per_worker: Some(20), fsync_end: true },
                ..plan("ssd", "randread")
            };
            let row = run(&cell, |_, _| ()).unwrap().rows.remove(0);
            row.modelled.unwrap().meta_reads
        };
        let (short, ample) = (reads(Some(64 << 10)), reads(None));
        assert!(short.map > 2 * ample.map && short.map > 64, "{short:?} {ample:?}");
        assert_eq!(short.directory, 0, "{short:?}");
    }

    /// Reading a bitmap block of 64 KiB counts as one read.
    #[test]
    fn a_large_block_is_one_read_of_its_kind() {
        let mkfs = Box::new(default_mkfs(1).block_size(65_536));
        let image = ImageSource::Memory { bytes: 2 << 30, mkfs, held: crate::run::Held::Process };
        let outcome = run(&Plan { image, ..plan("ssd", "fallocate2") }, |_, _| ()).unwrap();
        let on = outcome.rows[0].modelled.as_ref().unwrap();
        assert!(on.meta_reads.bitmap > 0 && on.meta_reads.bitmap <= on.requests, "{on:?}");
        assert_eq!(on.meta_reads, MetadataReads { bitmap: on.meta_reads.bitmap, ..MetadataReads::default() });
    }

    #[test]
    fn wear_is_that_of_the_time_that_amplification_tells() {
        let below = ImageSource::memory(64 << 20, 1).device().unwrap().shared();
        let mut stack = DeviceStack::new(below, &"ftl".parse().unwrap()).unwrap();
        let counts = |host_pages, programs, erases: [u64; 2]| ModelCounts {
            host_pages,
            programs: vec![programs],
            erases: erases.to_vec(),
            ..ModelCounts::default()
        };
        stack.before.counts = counts(100, 500, [7, 9]);
        stack.after.counts = counts(110, 530, [8, 9]);
        let on = stack.figures("smallfiles".to_owned(), &Measured::new(), &[]);
        assert_eq!((on.write_amplification, on.wear_spread), (Some(3.0), Some((0, 1))));
    }
}
