//! The kernel's side: a copy of the start image on a loop device, which is mounted, observed, and
//! played on.
//!
//! Device, mount and trace instance belong to a [`WorkDirectory`], as at level 1. If a run is
//! killed, the next run removes what the killed run left.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result};
use blockyard_device::MemoryDevice;
use blockyard_disk::Timestamp;
use blockyard_lab::trace::play::kernel::KernelPlayer;
use blockyard_lab::trace::play::{Outcome, Player};
use blockyard_trace::Line;

use super::Loading;
use crate::command::{run, text};
use crate::drain::Drain;
use crate::work::WorkDirectory;

/// Options of every mount: inode tables are left alone, bitmaps are read on demand, access times
/// are not written.
const COMMON: &str = "no_prefetch_block_bitmaps,noinit_itable,noatime";

/// Seconds between periodic commits.
const COMMIT_SECONDS: u32 = 86_400;

/// Recorded events. Mapped blocks are recorded only if write-back asked for them (flag 0x400); with
/// delayed allocation, [`MAPPED_DELAYED`] records more.
const EVENTS: [&str; 8] = [
    "ext4/ext4_mballoc_alloc",
    "ext4/ext4_mballoc_prealloc",
    "ext4/ext4_ext_map_blocks_exit && flags & 0x400",
    "ext4/ext4_ext_handle_unwritten_extents",
    "ext4/ext4_da_write_folios_start",
    "jbd2/jbd2_commit_locking",
    "jbd2/jbd2_commit_flushing",
    "jbd2/jbd2_end_commit",
];

/// With delayed allocation, this replaces the event of the same name in [`EVENTS`], to record also
/// single blocks that a write allocates immediately (flags 3). Without delayed allocation, writes
/// allocate all blocks immediately, and so many events would fill the buffer.
const MAPPED_DELAYED: &str = "ext4/ext4_ext_map_blocks_exit && (flags & 0x400 || flags == 3 && len == 1)";

/// KiB of trace buffer for each CPU.
const BUFFER_KIB: u32 = 192 * 1024;

/// The outcomes of the kernel's run, and the circumstances of that run which the engine needs.
#[derive(Clone, Debug, Default)]
pub(super) struct Played {
    /// The outcome of each line.
    pub(super) outcomes: Vec<Outcome>,
    /// What the kernel's clock for time stamps showed before each line. That clock moves in ticks.
    pub(super) times: Vec<Timestamp>,
    /// Thread id of the player modulo 16.
    pub(super) colour: u32,
}

/// How the image is mounted, also after a remount.
#[derive(Clone, Debug)]
struct Mount {
    device: String,
    point: PathBuf,
    options: String,
    loading: Loading,
}

impl Mount {
    fn mount(&self) -> Result<()> {
        let node = format!("/dev/{}", self.device);
        run("mount", &["-t", "ext4", "-o", &self.options, &node, text(&self.point)?])?;
        fs::write(format!("/sys/fs/ext4/{}/mb_stats", self.device), "1")?;
        if self.loading == Loading::All {
            // Reading the file initialises every group.
            fs::read(format!("/proc/fs/ext4/{}/mb_groups", self.device))?;
        }
        Ok(())
    }

    fn unmount(&self) -> Result<()> {
        run("umount", &[text(&self.point)?]).map(drop)
    }
}

/// How to mount an image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mounting<'o> {
    /// Mount options, comma-separated.
    pub(super) options: &'o str,
    pub(super) loading: Loading,
    pub(super) has_journal: bool,
    /// Whether the device reports itself as one with seek times.
    pub(super) rotational: bool,
}

/// A mounted image.
pub(super) struct Mounted {
    work: WorkDirectory,
    mount: Mount,
    /// KiB of trace buffer for each CPU; `None` if the mount is not observed.
    observed: Option<u32>,
    /// What was drained from the trace buffer while lines were played.
    drained: Mutex<String>,
}

impl Mounted {
    /// Writes `image` under `scratch` and mounts it.
    ///
    /// # Errors
    /// The message of the program or kernel that refused.
    pub(super) fn start(image: &MemoryDevice, how: Mounting<'_>, scratch: &Path) -> Result<Self> {
        let Mounting { options, loading, .. } = how;
        let work = WorkDirectory::new(scratch)?;
        image.save(&work.image())?;
        let device = work.attach(how.rotational)?;
        let journal = if how.has_journal { format!(",commit={COMMIT_SECONDS}") } else { String::new() };
        let comma = if options.is_empty() { "" } else { "," };
        let options = format!("{COMMON}{journal}{comma}{options}");
        let mount = Mount { device, point: work.mount_point(), options, loading };
        mount.mount()?;
        Ok(Self { work, mount, observed: None, drained: Mutex::default() })
    }

    /// Starts to record decisions.
    ///
    /// # Errors
    /// Those of tracefs.
    pub(super) fn observe(&mut self) -> Result<()> {
        self.observe_in(BUFFER_KIB)
    }

    fn observe_in(&mut self, buffer_kib: u32) -> Result<()> {
        let delays = !self.mount.options.split(',').any(|option| option == "nodelalloc");
        let is_mapped = |event: &str| event.starts_with("ext4/ext4_ext_map_blocks_exit");
        let events = EVENTS.map(|event| if delays && is_mapped(event) { MAPPED_DELAYED } else { event });
        self.work.observe(&self.mount.device, buffer_kib, &events)?;
        self.observed = Some(buffer_kib);
        Ok(())
    }

    /// Plays the lines in a thread of its own. If the mount is observed, each line has a marker
    /// before it in the kernel's trace.
    ///
    /// # Errors
    /// When the trace cannot be played.
    pub(super) fn play(&self, lines: &[Line], seed: u64) -> Result<Played> {
        let observer = self.observed.map(|buffer_kib| Observer::new(&self.work, buffer_kib)).transpose()?;
        let mount = self.mount.clone();
        let (played, drained) = std::thread::scope(|scope| {
            let played = scope.spawn(move || play(&mount, observer, lines, seed));
            played.join().map_err(|_| anyhow::anyhow!("the player panicked"))?
        })?;
        if let Ok(mut all) = self.drained.lock() {
            all.push_str(&drained);
        }
        Ok(played)
    }

    /// Stops recording and returns the recorded events.
    ///
    /// # Errors
    /// When the buffer was too small for the lines between two drains.
    pub(super) fn recorded(&self) -> Result<String> {
        let rest = self.work.recorded()?;
        let mut all = self.drained.lock().map(|mut all| std::mem::take(&mut *all)).unwrap_or_default();
        all.push_str(&rest);
        Ok(all)
    }

    /// The text of `mb_stats`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn stats(&self) -> Result<String> {
        let path = format!("/proc/fs/ext4/{}/mb_stats", self.mount.device);
        fs::read_to_string(&path).with_context(|| path)
    }

    /// Unmounts and returns the image.
    ///
    /// # Errors
    /// Those of unmounting and reading.
    pub(super) fn finish(self) -> Result<MemoryDevice> {
        self.mount.unmount()?;
        Ok(MemoryDevice::load(&self.work.image())?)
    }
}

/// What the player needs to write a marker into the kernel's trace before each line, and to drain
/// the trace buffer so that it does not overflow.
struct Observer {
    marker: fs::File,
    drain: Drain,
}

impl Observer {
    fn new(work: &WorkDirectory, buffer_kib: u32) -> Result<Self> {
        let marker = fs::OpenOptions::new().write(true).open(work.marker())?;
        Ok(Self { marker, drain: Drain::new(&work.instance(), buffer_kib)? })
    }
}

/// Plays the lines. Also returns the text that was drained from the trace buffer meanwhile.
fn play(
    mount: &Mount,
    mut observer: Option<Observer>,
    lines: &[Line],
    seed: u64,
) -> Result<(Played, String)> {
    let again = mount.clone();
    let remount = move || {
        again.unmount()?;
        again.mount()?;
        Ok(again.point.clone())
    };
    let mut player = KernelPlayer::new(&mount.point, seed, Some(Box::new(remount)));
    let colour = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned() % 16;
    let mut played = Played { colour, ..Played::default() };
    for (number, line) in lines.iter().enumerate() {
        if let Some(Observer { marker, drain }) = &mut observer {
            drain.after_line()?;
            std::io::Write::write_all(marker, format!("by line {number}\n").as_bytes())?;
        }
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        let nanoseconds = u32::try_from(now.tv_nsec)?;
        played.times.push(Timestamp { seconds: now.tv_sec, nanoseconds });
        let outcome = player.play(line).with_context(|| format!("trace line {}: {line:?}", number + 1))?;
        played.outcomes.push(outcome);
    }
    Ok((played, observer.map(|observer| observer.drain.finish()).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::decisions;
    use blockyard_engine::mkfs;

    #[test]
    fn a_trace_may_say_more_than_its_buffer_holds() {
        const LINES: u32 = 5000;
        if !blockyard_testkit::require(&["root"]) {
            return;
        }
        blockyard_testkit::stay_on_one_cpu();
        let image = MemoryDevice::new(64 << 20);
        mkfs::format(&image, &mkfs::Options::ext4().block_size(4096).identity(1, 1)).unwrap();
        let line = |text: &str| serde_json::from_str::<Line>(text).unwrap();
        let mut lines = vec![line(r#"{"op":"open","fd":1,"path":"/f","flags":"rw,create"}"#)];
        let piece =
            |at: u32| format!(r#"{{"op":"fallocate","fd":1,"mode":"","off":{},"len":4096}}"#, at * 8192);
        lines.extend((0..LINES).map(|at| line(&piece(at))));
        let scratch = tempfile::tempdir().unwrap();
        let how = Mounting { options: "", loading: Loading::All, has_journal: true, rotational: false };
        let mut mounted = Mounted::start(&image, how, scratch.path()).unwrap();
        mounted.observe_in(128).unwrap();
        mounted.play(&lines, 1).unwrap();
        let text = mounted.recorded().unwrap();
        let mut decided: Vec<u32> =
            decisions::parse(&text).unwrap().decisions.iter().map(|one| one.line).collect();
        decided.dedup();
        assert_eq!(decided, (1..=LINES).collect::<Vec<_>>());
        assert!(text.len() > 4 * 128 * 1024, "{}", text.len());
        mounted.finish().unwrap();
    }
}
