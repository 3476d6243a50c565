//! Refuses to write to a file system that another host uses: see [`blockyard_check::Mmp`].

use std::fs::File;
use std::num::NonZeroU64;
use std::ops::Range;

use anyhow::Context;
use blockyard_check::{InUse, Mmp};
use blockyard_device::{BlockDevice, ImagePath};
use rustix::fs::{Advice, fadvise};

use super::Output;

/// The largest page size in bytes that is expected. The kernel drops only whole pages from its
/// cache, so ranges are widened to multiples of this size.
const CACHED: u64 = 64 << 10;

/// An image that no other host uses, according to its MMP block (multi-mount protection).
pub(super) struct Unshared<'a> {
    path: &'a ImagePath,
    mmp: Option<Mmp>,
}

impl<'a> Unshared<'a> {
    /// Makes sure that no other host uses the image. This takes time only if the feature mmp is on
    /// and the MMP block does not say that the file system was closed.
    pub(super) fn new(
        path: &'a ImagePath,
        device: &dyn BlockDevice,
        output: &Output,
    ) -> anyhow::Result<Self> {
        let shown = || path.display().to_string();
        let mmp = Mmp::read(device).with_context(shown)?;
        if let Some(mmp) = mmp.as_ref().filter(|mmp| mmp.seconds() > 0) {
            if !output.quiet {
                let seconds = mmp.seconds();
                eprintln!(
                    "blockyard: {}: was not closed; waiting {seconds} s to see whether another host uses it",
                    path.display()
                );
            }
            mmp.wait(device, &|range| forget(path, range)).with_context(shown)?;
        }
        Ok(Self { path, mmp })
    }

    /// Checks that the MMP block has not changed since [`Self::new`]. A repair calls this right
    /// before its first write, because planning can take long.
    pub(super) fn confirm(&self, device: &dyn BlockDevice) -> Result<(), InUse> {
        let forget = |range| forget(self.path, range);
        self.mmp.as_ref().map_or(Ok(()), |mmp| mmp.confirm(device, &forget))
    }
}

/// Drops a range from the kernel's page cache: on a shared disk, the cached bytes may be older than
/// what another host wrote there. If that fails, the cached bytes are read.
fn forget(path: &ImagePath, range: Range<u64>) {
    let first = (path.offset() + range.start) / CACHED * CACHED;
    let end = (path.offset() + range.end).next_multiple_of(CACHED);
    let Ok(file) = File::open(path.file()) else { return };
    let _ = fadvise(file, first, NonZeroU64::new(end - first), Advice::DontNeed);
}
