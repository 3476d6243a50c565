//! The kernel's side: a copy of the start image on a loop device, mounted, observed, and played on.
//!
//! Everything hangs on one work directory of the form that level 1 uses, so that what a killed run left behind is taken
//! down by the next one.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use blockyard_device::MemoryDevice;
use blockyard_disk::Timestamp;

use super::Loading;
use crate::agree::kernel::{run, text};
use crate::agree::work::WorkDirectory;
use crate::trace::Line;
use crate::trace::play::kernel::KernelPlayer;
use crate::trace::play::{Outcome, Player};

/// Options of every mount. The inode tables stay as they are, bitmaps are read when needed, times of access are not
/// written.
const COMMON: &str = "no_prefetch_block_bitmaps,noinit_itable,noatime";

/// Seconds between commits that nobody asked for.
const COMMIT_SECONDS: u32 = 86_400;

/// Events that are recorded; of mapped blocks those that write-back (0x400) asked for.
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

/// KiB of trace buffer for each CPU.
const BUFFER_KIB: u32 = 192 * 1024;

/// What the kernel answered, and what of its surroundings the other side must know.
#[derive(Clone, Debug, Default)]
pub(super) struct Played {
    /// The outcome of each line.
    pub(super) outcomes: Vec<Outcome>,
    /// The kernel's clock for time stamps, which moves in ticks, before each line.
    pub(super) times: Vec<Timestamp>,
    /// Thread id of the player modulo 16.
    pub(super) colour: u32,
}

/// How the image is mounted, again and again.
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

/// A mounted image.
pub(super) struct Mounted {
    work: WorkDirectory,
    mount: Mount,
    observed: bool,
}

impl Mounted {
    /// Writes `image` under `scratch` and mounts it.
    ///
    /// # Errors
    /// What the program or the kernel that refused said.
    pub(super) fn start(
        image: &MemoryDevice,
        (options, loading, journal): (&str, Loading, bool),
        scratch: &Path,
    ) -> Result<Self> {
        let work = WorkDirectory::new(scratch)?;
        image.save(&work.image())?;
        let device = work.attach(false)?;
        let journal = if journal { format!(",commit={COMMIT_SECONDS}") } else { String::new() };
        let comma = if options.is_empty() { "" } else { "," };
        let options = format!("{COMMON}{journal}{comma}{options}");
        let mount = Mount { device, point: work.mount_point(), options, loading };
        mount.mount()?;
        Ok(Self { work, mount, observed: false })
    }

    /// Begins to record decisions.
    ///
    /// # Errors
    /// Of tracefs.
    pub(super) fn observe(&mut self) -> Result<()> {
        self.work.observe(&self.mount.device, BUFFER_KIB, &EVENTS)?;
        self.observed = true;
        Ok(())
    }

    /// Plays the lines in a thread of its own, with a marker in the trace before each.
    ///
    /// # Errors
    /// Where the trace can not be played.
    pub(super) fn play(&self, lines: &[Line], seed: u64) -> Result<Played> {
        let open = || fs::OpenOptions::new().write(true).open(self.work.marker());
        let marker = if self.observed { Some(open()?) } else { None };
        let mount = self.mount.clone();
        std::thread::scope(|scope| {
            let played = scope.spawn(move || play(&mount, marker, lines, seed));
            played.join().map_err(|_| anyhow::anyhow!("the player panicked"))?
        })
    }

    /// The recorded events so far.
    ///
    /// # Errors
    /// When the buffer was too small.
    pub(super) fn recorded(&self) -> Result<String> {
        self.work.recorded()
    }

    /// The text of `mb_stats`.
    ///
    /// # Errors
    /// When it can not be read.
    pub(super) fn stats(&self) -> Result<String> {
        let path = format!("/proc/fs/ext4/{}/mb_stats", self.mount.device);
        fs::read_to_string(&path).with_context(|| path)
    }

    /// Unmounts and gives the image.
    ///
    /// # Errors
    /// Of unmounting and reading.
    pub(super) fn finish(self) -> Result<MemoryDevice> {
        self.mount.unmount()?;
        Ok(MemoryDevice::load(&self.work.image())?)
    }
}

fn play(mount: &Mount, marker: Option<fs::File>, lines: &[Line], seed: u64) -> Result<Played> {
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
        if let Some(mut marker) = marker.as_ref() {
            std::io::Write::write_all(&mut marker, format!("by line {number}\n").as_bytes())?;
        }
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        let nanoseconds = u32::try_from(now.tv_nsec)?;
        played.times.push(Timestamp { seconds: now.tv_sec, nanoseconds });
        let outcome = player.play(line).with_context(|| format!("trace line {}: {line:?}", number + 1))?;
        played.outcomes.push(outcome);
    }
    Ok(played)
}
