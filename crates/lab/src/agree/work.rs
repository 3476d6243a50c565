//! The directory of one session on the running kernel, and all that hangs on it: an image, its loop device, where it is
//! mounted, and a private trace instance.
//!
//! It is called `blockyard-agree-PID-*`, so that what a killed run left behind can be told apart and taken down by the
//! next ([`clean_leftovers`]). Only devices and instances made here are touched. They are taken down in the reverse
//! order of their making: file system, loop device, trace instance, tracefs, directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::kernel::{run, text};

const PREFIX: &str = "blockyard-agree-";

/// Takes down what runs that no longer exist left under `scratch`.
pub(super) fn clean_leftovers(scratch: &Path) {
    let Ok(entries) = fs::read_dir(scratch) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid =
            name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            take_down(&entry.path());
        }
    }
}

/// Unmounts, detaches and removes everything of one work directory.
fn take_down(directory: &Path) {
    let inside = |name: &str| directory.join(name).to_string_lossy().into_owned();
    try_run("umount", &[&inside("mnt")]);
    let image = inside("image");
    let devices = Command::new("losetup").args(["-j", &image, "-n", "-O", "NAME"]).output();
    for device in
        devices.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default().lines()
    {
        try_run("losetup", &["-d", device.trim()]);
    }
    if let Some(name) = directory.file_name() {
        let _ = fs::remove_dir(directory.join("trace/instances").join(name));
    }
    try_run("umount", &[&inside("trace")]);
    let _ = fs::remove_file(&image);
    for name in ["mnt", "trace"] {
        let _ = fs::remove_dir(directory.join(name));
    }
    // Not recursive: should something still be mounted inside, it stays untouched.
    let _ = fs::remove_dir(directory);
}

/// Runs a program whose failure must not stop a clean-up.
fn try_run(program: &str, arguments: &[&str]) {
    let _ = Command::new(program).args(arguments).output();
}

/// The directory; dropping it takes everything down.
pub(super) struct WorkDirectory(PathBuf);

impl WorkDirectory {
    /// Makes one under `scratch`.
    pub(super) fn new(scratch: &Path) -> Result<Self> {
        let pid = std::process::id();
        for number in 0..1000 {
            let path = scratch.join(format!("{PREFIX}{pid}-{number}"));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(|| format!("cannot make {}", path.display())),
            }
        }
        bail!("{} is full of {PREFIX} directories", scratch.display())
    }

    /// The image file, which the caller makes.
    pub(super) fn image(&self) -> PathBuf {
        self.0.join("image")
    }

    /// Where the image is mounted.
    pub(super) fn mount_point(&self) -> PathBuf {
        self.0.join("mnt")
    }

    /// Makes a loop device of the image; gives its name.
    pub(super) fn attach(&self, rotational: bool) -> Result<String> {
        for name in ["mnt", "trace"] {
            fs::create_dir(self.0.join(name))?;
        }
        let node = run("losetup", &["--find", "--show", text(&self.image())?])?;
        let device = node.trim().trim_start_matches("/dev/").to_owned();
        let rotates = if rotational { "1" } else { "0" };
        fs::write(format!("/sys/block/{device}/queue/rotational"), rotates)?;
        Ok(device)
    }

    /// The folder of the private trace instance.
    pub(super) fn instance(&self) -> PathBuf {
        self.0.join("trace/instances").join(self.0.file_name().unwrap_or_default())
    }

    /// The file that takes markers into the trace.
    pub(super) fn marker(&self) -> PathBuf {
        self.instance().join("trace_marker")
    }

    /// Begins to record these events (`system/event`, or `system/event && CONDITION`) of a device, with this much trace
    /// buffer for each CPU.
    pub(super) fn observe(&self, device: &str, buffer_kib: u32, events: &[&str]) -> Result<()> {
        run("mount", &["-t", "tracefs", "none", text(&self.0.join("trace"))?])?;
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

    /// Stops recording and gives the trace. A trace with a gap is no recording: a buffer that was too small is an error.
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

impl Drop for WorkDirectory {
    fn drop(&mut self) {
        take_down(&self.0);
    }
}
