//! Watches the device that the copies write to: how many bytes are written to each MiB, how much
//! space a thin device would keep allocated, and how much flash would program and erase.
//!
//! Discards do not change where data is placed, so one run gives the figures of three devices. One
//! gets no discards (`none`), one gets what each transaction freed (`online`), and one gets all
//! free space after each copy (`periodic`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blockyard_device::modelled::{Ftl, FtlShape};
use blockyard_device::{BlockDevice, DeviceId, Result};
use blockyard_disk::num::{count_as_f64, u32_from_u64, u64_from_usize, usize_from_u64};
use serde::{Deserialize, Serialize};

use crate::workload::MIB;

/// Allocation unit of a thin device in bytes. Writes are counted by the same unit.
const CHUNK: u64 = MIB;
/// The flash: bytes of a page, pages of a block, thousandths of spare space, as in the model
/// `sata-ssd-2018-ftl`.
const PAGE: u64 = 4096;
const BLOCK_PAGES: u32 = 8192;
const SPARE: u64 = 73;

/// When a device is told of free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Discard {
    /// Never.
    None,
    /// After each commit, about the space that the commit freed.
    Online,
    /// After each copy, about all free space.
    Periodic,
}

impl Discard {
    /// Its name in rows and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Online => "online",
            Self::Periodic => "periodic",
        }
    }
}

/// The figures of one simulated device after the copies so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// When the device is told of free space.
    pub discard: Discard,
    /// Segments discarded since the previous figures.
    pub segments: u64,
    /// Mean size of a discarded segment in KiB; `None` without segments.
    pub segment_kb_mean: Option<f64>,
    /// MiB that a thin device keeps allocated.
    pub thin_mib: u64,
    /// Pages programmed for each page written since the copies began; `None` without writes.
    pub write_amplification: Option<f64>,
    /// Fewest and most erasures of a block since the device was new.
    pub wear_spread: (u64, u64),
}

/// How evenly writes are spread over addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spread {
    /// Entropy as a share of its maximum: 1 if every address got the same.
    pub(super) entropy: f64,
    /// Gini coefficient: 0 if every address got the same, nearly 1 if one got all.
    pub(super) gini: f64,
}

/// A device that counts the writes to the device below.
pub(super) struct Watched {
    below: Arc<dyn BlockDevice>,
    state: Mutex<State>,
}

struct State {
    /// Bytes written since the copies began, by chunk.
    heat: Vec<u64>,
    told: [Device; 3],
}

/// A simulated device that is told of free space in one way.
struct Device {
    discard: Discard,
    taken: Vec<bool>,
    flash: Ftl,
    segments: u64,
    segment_bytes: u64,
    /// Pages written and programmed when the copies began.
    began: (u64, u64),
}

impl Watched {
    /// Watches a device. Its present content counts as never written.
    ///
    /// # Errors
    /// When flash of that size has too many pages.
    pub(super) fn new(below: Arc<dyn BlockDevice>) -> anyhow::Result<Self> {
        let size = below.size();
        let shape = FtlShape::with_spare(size.div_ceil(PAGE), BLOCK_PAGES, SPARE);
        let shape = shape.ok_or_else(|| anyhow::anyhow!("the image has too many pages for flash"))?;
        let chunks = usize_from_u64(size.div_ceil(CHUNK));
        let device = |discard| Device::new(discard, chunks, shape);
        let told = [Discard::None, Discard::Online, Discard::Periodic].map(device);
        Ok(Self { below, state: Mutex::new(State { heat: vec![0; chunks], told }) })
    }

    /// Marks the start of the copies. Earlier writes have filled and worn the devices, but write
    /// amplification, segments and spread count from here.
    pub(super) fn begin(&self) {
        let mut state = self.state();
        state.heat.fill(0);
        state.told.iter_mut().for_each(Device::begin);
    }

    /// Discards segments on the [`Discard::Online`] device.
    pub(super) fn discard_online(&self, segments: &[(u64, u64)]) {
        self.state().discard(Discard::Online, segments);
    }

    /// Discards segments on the [`Discard::Periodic`] device.
    pub(super) fn discard_periodic(&self, segments: &[(u64, u64)]) {
        self.state().discard(Discard::Periodic, segments);
    }

    /// The figures of the three devices.
    pub(super) fn told(&self) -> Vec<Told> {
        self.state().told.iter_mut().map(Device::figures).collect()
    }

    /// How evenly writes have been spread since the copies began.
    pub(super) fn spread(&self) -> Spread {
        spread(&self.state().heat)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, offset: u64, length: u64) {
        if length == 0 {
            return;
        }
        let mut state = self.state();
        let mut at = offset;
        while at < offset + length {
            let end = ((at / CHUNK + 1) * CHUNK).min(offset + length);
            state.heat[usize_from_u64(at / CHUNK)] += end - at;
            at = end;
        }
        state.told.iter_mut().for_each(|device| device.write(offset, length));
    }
}

impl State {
    fn discard(&mut self, way: Discard, segments: &[(u64, u64)]) {
        let devices = self.told.iter_mut().filter(|device| device.discard == way);
        devices.for_each(|device| segments.iter().for_each(|&(first, bytes)| device.forget(first, bytes)));
    }
}

impl Device {
    fn new(discard: Discard, chunks: usize, shape: FtlShape) -> Self {
        let (taken, flash) = (vec![false; chunks], Ftl::new(shape));
        Self { discard, taken, flash, segments: 0, segment_bytes: 0, began: (0, 0) }
    }

    fn programmed(&self) -> u64 {
        self.flash.programs().iter().sum()
    }

    fn begin(&mut self) {
        (self.segments, self.segment_bytes) = (0, 0);
        self.began = (self.flash.host_pages(), self.programmed());
    }

    fn write(&mut self, offset: u64, length: u64) {
        let chunks = usize_from_u64(offset / CHUNK)..usize_from_u64((offset + length).div_ceil(CHUNK));
        self.taken[chunks].fill(true);
        for page in offset / PAGE..(offset + length).div_ceil(PAGE) {
            self.flash.write(u32_from_u64(page), &mut |_| ());
        }
    }

    /// Discards a segment. Only whole pages and whole chunks are freed.
    fn forget(&mut self, offset: u64, length: u64) {
        self.segments += 1;
        self.segment_bytes += length;
        let end = offset + length;
        let chunks = usize_from_u64(offset.div_ceil(CHUNK))..usize_from_u64(end / CHUNK);
        if chunks.start < chunks.end {
            self.taken[chunks].fill(false);
        }
        for page in offset.div_ceil(PAGE)..end / PAGE {
            self.flash.trim(u32_from_u64(page));
        }
    }

    fn figures(&mut self) -> Told {
        let host = self.flash.host_pages() - self.began.0;
        let programmed = count_as_f64(self.programmed() - self.began.1);
        let erases = self.flash.erases();
        let bounds = (erases.iter().copied().min(), erases.iter().copied().max());
        let segments = std::mem::take(&mut self.segments);
        let kib = count_as_f64(std::mem::take(&mut self.segment_bytes)) / 1024.0;
        Told {
            discard: self.discard,
            segments,
            segment_kb_mean: (segments > 0).then(|| kib / count_as_f64(segments)),
            thin_mib: u64_from_usize(self.taken.iter().filter(|taken| **taken).count()) * (CHUNK / MIB),
            write_amplification: (host > 0).then(|| programmed / count_as_f64(host)),
            wear_spread: (bounds.0.unwrap_or(0), bounds.1.unwrap_or(0)),
        }
    }
}

/// Entropy and Gini coefficient of counts.
fn spread(counts: &[u64]) -> Spread {
    let sum = count_as_f64(counts.iter().sum());
    if sum <= 0.0 || counts.len() < 2 {
        return Spread::default();
    }
    let entropy: f64 = counts
        .iter()
        .filter(|count| **count > 0)
        .map(|&count| count_as_f64(count) / sum)
        .map(|share| -share * share.ln())
        .sum();
    let number = count_as_f64(u64_from_usize(counts.len()));
    let mut sorted = counts.to_vec();
    sorted.sort_unstable();
    // For n counts in ascending order: 2 x sum(i x count_i) / (n x sum) - (n + 1) / n, i from 1.
    let ranked: f64 =
        (1u64..).zip(&sorted).map(|(rank, &count)| count_as_f64(rank) * count_as_f64(count)).sum();
    Spread { entropy: entropy / number.ln(), gini: 2.0 * ranked / (number * sum) - (number + 1.0) / number }
}

impl BlockDevice for Watched {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.below.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.below.write_at(offset, data)?;
        self.note(offset, u64_from_usize(data.len()));
        Ok(())
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]]) -> Result<()> {
        self.below.write_vectored_at(offset, parts)?;
        self.note(offset, parts.iter().map(|part| u64_from_usize(part.len())).sum());
        Ok(())
    }

    fn write_durable_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.below.write_durable_at(offset, data)?;
        self.note(offset, u64_from_usize(data.len()));
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
        self.below.write_zeroes(offset, length)?;
        self.note(offset, length);
        Ok(())
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.below.discard(offset, length)
    }

    fn flush(&self) -> Result<()> {
        self.below.flush()
    }

    fn identity(&self) -> DeviceId {
        self.below.identity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockyard_device::MemoryDevice;

    #[test]
    fn even_writes_have_all_entropy_and_no_gini() {
        let even = spread(&[3, 3, 3, 3]);
        assert!((even.entropy - 1.0).abs() < 1e-12 && even.gini.abs() < 1e-12, "{even:?}");
        let one = spread(&[0, 0, 0, 8]);
        assert_eq!((one.entropy, one.gini), (0.0, 0.75));
        // One of two addresses gets three quarters of the writes. The entropy is 0.811 bits of at
        // most 1 bit, and the Gini coefficient is a quarter.
        let some = spread(&[1, 3]);
        assert!((some.entropy - 0.811_278).abs() < 1e-6 && (some.gini - 0.25).abs() < 1e-12, "{some:?}");
        assert_eq!(spread(&[0, 0]), Spread::default());
    }

    #[test]
    fn devices_differ_by_what_they_are_told() {
        let device = Watched::new(Arc::new(MemoryDevice::new(64 * MIB))).unwrap();
        device.write_zeroes(0, 8 * MIB).unwrap();
        device.begin();
        device.write_zeroes(0, 4 * MIB).unwrap();
        // Online: three whole MiB and parts of two. Periodic: all used space after the fourth MiB,
        // and some unused space.
        device.discard_online(&[(MIB / 2, 4 * MIB)]);
        device.discard_periodic(&[(4 * MIB, 30 * MIB), (40 * MIB, 2 * MIB)]);
        let [none, online, periodic] = &device.told()[..] else { panic!("three") };
        assert_eq!(
            (none.discard, none.segments, none.segment_kb_mean, none.thin_mib),
            (Discard::None, 0, None, 8)
        );
        assert_eq!((online.segments, online.segment_kb_mean, online.thin_mib), (1, Some(4096.0), 5));
        assert_eq!((periodic.segments, periodic.segment_kb_mean, periodic.thin_mib), (2, Some(16384.0), 4));
        assert!(device.told().iter().all(|told| told.write_amplification == Some(1.0) && told.segments == 0));
        assert!((device.spread().entropy - 4f64.ln() / 64f64.ln()).abs() < 1e-12);
    }

    /// Before garbage collection erases a block, it has to copy the block's pages that are in use,
    /// but no page that was discarded.
    #[test]
    fn flash_that_is_told_copies_less() {
        let device = Watched::new(Arc::new(MemoryDevice::new(256 * MIB))).unwrap();
        device.write_zeroes(0, 256 * MIB).unwrap();
        device.begin();
        device.discard_periodic(&[(128 * MIB, 128 * MIB)]);
        // Writes every second page of the first half four times, so that no block becomes garbage
        // as a whole.
        for _ in 0..4 {
            (0..128 * MIB).step_by(8192).for_each(|at| device.write_zeroes(at, 4096).unwrap());
        }
        let [none, _, periodic] = &device.told()[..] else { panic!("three") };
        let of = |told: &Told| told.write_amplification.unwrap();
        assert!(of(none) > 1.05 * of(periodic), "{} {}", of(none), of(periodic));
    }
}
