//! The image of a crash state, built step by step, with a hash of its content that is kept up to
//! date.
//!
//! Key decision: states are visited in the order of their bases. A base is the image with a prefix
//! of the log's events applied, so each base is the previous one plus a few writes. The writes that
//! a state adds to its base are undone afterwards. The hash is the sum over all pages of a hash of
//! content and position, so a write costs only the hashes of the pages it touches. Devices that
//! show the image share its bytes, because images are large.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::sync::Arc;

use anyhow::Result;
use blockyard_device::{BlockDevice, Piece, Step, WriteLog};
use blockyard_disk::num::{u64_from_usize, usize_from_u64};

/// Bytes of a page.
const PAGE: usize = 4096;

/// The content of a device in memory.
#[derive(Clone)]
pub(super) struct Image {
    bytes: Arc<Vec<u8>>,
    /// Hash of each page.
    pages: Vec<u64>,
    /// The sum of `pages`.
    hash: u64,
}

/// Content and hash of changed pages, as they were before, by page number.
type Undo = BTreeMap<usize, (Vec<u8>, u64)>;

impl Image {
    /// Copies the content of a device.
    pub(super) fn of_device(device: &dyn BlockDevice) -> Result<Self> {
        let mut bytes = vec![0; usize_from_u64(device.size())];
        device.read_at(0, &mut bytes)?;
        let pages: Vec<u64> =
            bytes.chunks(PAGE).enumerate().map(|(page, bytes)| page_hash(page, bytes)).collect();
        let hash = pages.iter().fold(0, |sum: u64, page| sum.wrapping_add(*page));
        Ok(Self { bytes: Arc::new(bytes), pages, hash })
    }

    /// A hash that is the same for equal content.
    pub(super) const fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// A device that shows the image in its current state.
    pub(super) fn frozen(&self) -> Frozen {
        Frozen(Arc::clone(&self.bytes))
    }

    /// Applies a range of the events of a log.
    pub(super) fn advance(&mut self, log: &WriteLog, events: std::ops::Range<usize>) {
        for event in events {
            self.apply(log, &Step { event, sectors: None }, None);
        }
    }

    /// Calls `look` on the image with `steps` applied, then undoes them.
    pub(super) fn with_steps<T>(
        &mut self,
        log: &WriteLog,
        steps: &[Step],
        look: impl FnOnce(&Self) -> T,
    ) -> T {
        let (mut undo, hash) = (Undo::new(), self.hash);
        for step in steps {
            self.apply(log, step, Some(&mut undo));
        }
        let seen = look(self);
        for (page, (bytes, hash)) in undo {
            let start = page * PAGE;
            Arc::make_mut(&mut self.bytes)[start..start + bytes.len()].copy_from_slice(&bytes);
            self.pages[page] = hash;
        }
        self.hash = hash;
        seen
    }

    fn apply(&mut self, log: &WriteLog, step: &Step, mut undo: Option<&mut Undo>) {
        for (offset, piece) in log.pieces(step) {
            let start = usize_from_u64(offset);
            let len = match piece {
                Piece::Bytes(bytes) => bytes.len(),
                Piece::Zeroes(length) => usize_from_u64(length),
            };
            if len == 0 {
                continue;
            }
            let touched = start / PAGE..(start + len - 1) / PAGE + 1;
            if let Some(undo) = &mut undo {
                for page in touched.clone() {
                    undo.entry(page).or_insert_with(|| (self.page(page).to_vec(), self.pages[page]));
                }
            }
            let place = &mut Arc::make_mut(&mut self.bytes)[start..start + len];
            match piece {
                Piece::Bytes(bytes) => place.copy_from_slice(bytes),
                Piece::Zeroes(_) => place.fill(0),
            }
            for page in touched {
                let new = page_hash(page, self.page(page));
                self.hash = self.hash.wrapping_sub(self.pages[page]).wrapping_add(new);
                self.pages[page] = new;
            }
        }
    }

    fn page(&self, page: usize) -> &[u8] {
        let start = page * PAGE;
        &self.bytes[start..self.bytes.len().min(start + PAGE)]
    }
}

fn page_hash(page: usize, bytes: &[u8]) -> u64 {
    let mut hash = std::hash::DefaultHasher::new();
    hash.write_usize(page);
    hash.write(bytes);
    hash.finish()
}

/// A read-only device that shows an image; the base of an overlay.
pub(super) struct Frozen(Arc<Vec<u8>>);

impl BlockDevice for Frozen {
    fn size(&self) -> u64 {
        u64_from_usize(self.0.len())
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> blockyard_device::Result<()> {
        let start = usize_from_u64(offset.min(self.size()));
        match self.0.get(start..start.saturating_add(buf.len())) {
            Some(bytes) => {
                buf.copy_from_slice(bytes);
                Ok(())
            }
            None => Err(blockyard_device::DeviceError::OutOfRange {
                operation: "read",
                offset,
                length: u64_from_usize(buf.len()),
                size: self.size(),
            }),
        }
    }

    fn write_at(&self, offset: u64, _: &[u8]) -> blockyard_device::Result<()> {
        Err(blockyard_device::DeviceError::ReadOnly { operation: "write", offset })
    }

    fn write_zeroes(&self, offset: u64, _: u64) -> blockyard_device::Result<()> {
        Err(blockyard_device::DeviceError::ReadOnly { operation: "write zeroes", offset })
    }

    fn discard(&self, _: u64, _: u64) -> blockyard_device::Result<()> {
        Ok(())
    }

    fn flush(&self) -> blockyard_device::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockyard_device::{CrashPlan, MemoryDevice, RecorderDevice};

    /// Each state looks as `CrashState::build` of the device crate builds it. Afterwards the image
    /// is as it was before.
    #[test]
    fn states_are_those_of_the_recorder() {
        let device = RecorderDevice::new(MemoryDevice::new(64 << 10));
        let base = device.below().duplicate();
        for n in 0..30u8 {
            let at = u64::from(n) * 7919 % 60_000;
            match n % 5 {
                0 => device.write_zeroes(at, 3000).unwrap(),
                1 => device.write_durable_at(at, &[n; 700]).unwrap(),
                _ => device.write_at(at, &vec![n; 100 * usize::from(n)]).unwrap(),
            }
            if n % 7 == 6 {
                device.flush().unwrap();
            }
        }
        let log = device.take_log();
        let fresh = Image::of_device(&base).unwrap();
        let mut tried = 0;
        for state in log.crash_states(&CrashPlan::default()) {
            let mut image = fresh.clone();
            image.advance(&log, 0..state.base);
            let before = (image.hash(), image.bytes().to_vec());
            let expected = base.duplicate();
            state.build(&log, &expected).unwrap();
            let expected = Image::of_device(&expected).unwrap();
            image.with_steps(&log, &state.steps, |image| {
                assert!(image.bytes() == expected.bytes(), "{state}");
                assert_eq!(image.hash(), expected.hash(), "{state}");
            });
            assert!(before == (image.hash(), image.bytes().to_vec()), "{state}");
            tried += 1;
        }
        assert!(tried > 100, "{tried}");
    }
}
