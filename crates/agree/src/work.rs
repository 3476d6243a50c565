//! The directory of one session on the running kernel, with its image, loop device, mount point,
//! and a private trace instance named like the directory.
//!
//! Only devices and instances made here are touched. A [`Scratch`] unmounts, detaches and removes
//! them when it is dropped. If a run was killed, the next run does the same for what the killed run
//! left.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use blockyard_lab::scratch::Scratch;

use super::command::{run, text};

/// The directory. Dropping it unmounts, detaches and removes everything.
pub(super) struct WorkDirectory(Scratch);

impl WorkDirectory {
    /// Creates a directory under `scratch`.
    pub(super) fn new(scratch: &Path) -> Result<Self> {
        Scratch::new("agree", scratch).map(Self)
    }

    /// The image file, which the caller creates.
    pub(super) fn image(&self) -> PathBuf {
        self.0.path().join("image")
    }

    /// Where the image is mounted.
    pub(super) fn mount_point(&self) -> PathBuf {
        self.0.path().join("mnt")
    }

    /// Creates the mount points of the image and of tracefs. Attaches the image to a loop device,
    /// and makes the device report itself as rotational or not. Returns the device's name, without
    /// `/dev/`.
    pub(super) fn attach(&self, rotational: bool) -> Result<String> {
        for name in ["mnt", "trace"] {
            fs::create_dir(self.0.path().join(name))?;
        }
        let node = run("losetup", &["--find", "--show", text(&self.image())?])?;
        let device = node.trim().trim_start_matches("/dev/").to_owned();
        let rotates = if rotational { "1" } else { "0" };
        fs::write(format!("/sys/block/{device}/queue/rotational"), rotates)?;
        Ok(device)
    }

    /// The directory of the private trace instance.
    pub(super) fn instance(&self) -> PathBuf {
        self.0.path().join("trace/instances").join(self.0.path().file_name().unwrap_or_default())
    }

    /// The file to write trace markers to.
    pub(super) fn marker(&self) -> PathBuf {
        self.instance().join("trace_marker")
    }

    /// Starts to record these events (`system/event`, or `system/event && CONDITION`) of a device,
    /// with a trace buffer of `buffer_kib` KiB for each CPU.
    pub(super) fn observe(&self, device: &str, buffer_kib: u32, events: &[&str]) -> Result<()> {
        run("mount", &["-t", "tracefs", "none", text(&self.0.path().join("trace"))?])?;
        let instance = self.instance();
        fs::create_dir(&instance).context("cannot make a trace instance")?;
        let set = |file: &str, value: &str| {
            fs::write(instance.join(file), value).with_context(|| format!("trace file {file}"))
        };
        set("trace_clock", "counter")?;
        set("buffer_size_kb", &buffer_kib.to_string())?;
        let number = fs::read_to_string(format!("/sys/block/{device}/dev"))?;
        let (major, minor) = number.trim().split_once(':').context("device number")?;
        let kernel_number = (major.parse::<u32>()? << 20) | minor.parse::<u32>()?;
        for event in events {
            let (name, condition) = event.split_once(' ').unwrap_or((event, ""));
            set(&format!("events/{name}/filter"), &format!("dev=={kernel_number} {condition}"))?;
            set(&format!("events/{name}/enable"), "1")?;
        }
        Ok(())
    }

    /// Stops recording and returns the trace. A buffer that was too small is an error, because a
    /// trace with gaps is useless.
    pub(super) fn recorded(&self) -> Result<String> {
        fs::write(self.instance().join("tracing_on"), "0")?;
        for cpu in fs::read_dir(self.instance().join("per_cpu"))? {
            let stats = fs::read_to_string(cpu?.path().join("stats"))?;
            let mut lost = stats.lines().filter(|line| line.contains("overrun") || line.contains("dropped"));
            if lost.any(|line| !line.ends_with(": 0")) {
                bail!("the kernel's trace buffer overflowed: take fewer operations, or smaller ones");
            }
        }
        Ok(fs::read_to_string(self.instance().join("trace"))?)
    }
}
