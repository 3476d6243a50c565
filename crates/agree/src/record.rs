//! Records one load on one image kind.

use std::path::Path;

use anyhow::Context;
use blockyard_lab::age::Ageing;
use blockyard_lab::age::profile::Made;

use super::driver::Driver;
use super::images::ImageKind;
use super::kernel::{Session, Start};
use super::loads::{self, Load};
use super::recording::{Image, Recording};
use super::trace_text::{self, Rules};

/// Records `load` on the image that `start` describes. The load runs on one CPU; the image file is
/// made under `scratch`.
///
/// # Errors
/// When the kernel or a program refuses something, the image cannot be aged, or the trace has gaps
/// or cannot be parsed. Lack of space during the load is not an error.
pub fn record(start: Start<'_>, load: Load, operations: u32, scratch: &Path) -> anyhow::Result<Recording> {
    let (kind, seed) = (start.kind, start.seed);
    let session = Session::start(start, scratch).with_context(|| format!("image {}", kind.name))?;
    run_pinned(&session, kind, load, seed, operations)
        .with_context(|| format!("load {} on {}", load.name, kind.name))?;
    let mut end = session.end()?;
    let text = session.trace()?;
    let rules = Rules { journal: session.image().journal, writeback: kind.writeback() };
    let parsed = trace_text::parse(&text, rules)?;
    end.overlaps = parsed.overlaps;
    let image = Image { load: load.name.to_owned(), seed, ..session.image().clone() };
    Ok(Recording { image, events: parsed.events, end })
}

/// Whether a load can run on an image kind.
#[must_use]
pub fn fits(kind: ImageKind, load: Load) -> bool {
    !(kind.indirect() && load.allocates)
}

/// Whether an ageing can run on an image kind. Files mapped by indirect blocks cannot be
/// preallocated.
#[must_use]
pub fn can_age(kind: ImageKind, ageing: &Ageing) -> bool {
    let preallocates = || ageing.profile.kinds.iter().any(|files| files.made == Made::Preallocated);
    !(kind.indirect() && preallocates())
}

/// Runs the load on a thread of its own that stays on the first CPU this process may use.
fn run_pinned(
    session: &Session,
    kind: ImageKind,
    load: Load,
    seed: u64,
    operations: u32,
) -> anyhow::Result<()> {
    let mut driver = Driver::new(&session.mount_point(), &session.marker(), seed, operations)?;
    driver.block = 1 << session.image().block_bits;
    driver.indirect = kind.indirect();
    let work = move || -> anyhow::Result<()> {
        blockyard_lab::cpus::stay_on(&blockyard_lab::cpus::allowed(), 0)?;
        if kind.filled > 0 {
            loads::fill_part(&mut driver, kind.filled)?;
        }
        (load.run)(&mut driver)
    };
    std::thread::spawn(work).join().map_err(|_| anyhow::anyhow!("the load generator panicked"))?
}
