//! Folders that the lab makes, and what hangs on them: images, loop devices, mounts, trace
//! instances.
//!
//! Key decision: whatever is made hangs on a folder, and each folder has a note in the state folder
//! (`/run/blockyard` for root), written before anything is made in it and locked while its maker
//! lives. Dropping a [`Scratch`] takes everything down; what a killed process left, the next one
//! finds by its note ([`clean_leftovers`]). The same folder keeps the kernel's write-back settings
//! while they are changed.

use std::fs::{self, DirBuilder, File};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use rustix::fs::{FlockOperation, flock};
use rustix::mount::{UnmountFlags, unmount};

/// Name of every folder begins with it; nothing else is ever taken down.
const PREFIX: &str = "blockyard-";
/// The note of changed settings: lines of a file and the value that it had.
const SETTINGS: &str = "settings";
/// Held while notes are made and looked through.
const LOCK: &str = "lock";
/// Where a setting may lie that is put back.
const SETTING_PLACES: [&str; 2] = ["/proc/sys/vm/", "/sys/devices/virtual/workqueue/"];

/// A folder; dropping it takes down what hangs on it.
pub struct Scratch {
    path: PathBuf,
    /// Locked while this lives; none where there is no state folder.
    note: Option<(PathBuf, File)>,
}

impl Scratch {
    /// Makes a folder `blockyard-WHAT-*` under another.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(what: &str, under: &Path) -> Result<Self> {
        // As /proc/self/mountinfo will name it.
        let under = fs::canonicalize(under).with_context(|| format!("{}", under.display()))?;
        let path = under.join(new_name(what));
        // Where there is no state folder everything works, but for being found again when it is
        // killed.
        let note = note(&path).ok();
        let made = DirBuilder::new().mode(0o700).create(&path);
        let scratch = Self { path, note };
        made.with_context(|| format!("{}", scratch.path.display()))?;
        Ok(scratch)
    }

    /// Makes one in the folder for temporary files.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn temporary(what: &str) -> Result<Self> {
        Self::new(what, &std::env::temp_dir())
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        take_down(&self.path);
        if let Some((note, _)) = &self.note {
            remove_note(note, &self.path);
        }
    }
}

/// Takes down what processes left that were killed, and puts back settings that they changed.
pub fn clean_leftovers() {
    let Ok((state, _lock)) = locked_state() else { return };
    restore_settings(&state);
    let Ok(entries) = fs::read_dir(&state) else { return };
    for entry in entries.flatten() {
        let is_note = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let Some(mut file) = File::open(entry.path()).ok().filter(|_| is_note) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        let mut folder = String::new();
        if file.read_to_string(&mut folder).is_ok() && may_be_taken_down(Path::new(&folder)) {
            take_down(Path::new(&folder));
        }
        remove_note(&entry.path(), Path::new(&folder));
    }
}

/// A folder that could not be removed yet, because something in it is busy, keeps its note.
fn remove_note(note: &Path, folder: &Path) {
    if !may_be_taken_down(folder) {
        let _ = fs::remove_file(note);
    }
}

/// A name that no other folder has: process, time and number tell them apart.
fn new_name(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}{what}-{}-{since:x}-{number}", std::process::id())
}

/// Where the keeper of the write-back settings notes what they were.
///
/// # Errors
/// Without a state folder.
pub fn settings_note() -> Result<PathBuf> {
    Ok(state_folder()?.join(SETTINGS))
}

/// Puts settings back whose keeper was killed; a living one has the lock.
fn restore_settings(state: &Path) {
    let note = state.join(SETTINGS);
    let Ok(text) = fs::read_to_string(&note) else { return };
    let Ok(settings) = File::open("/proc/sys/vm") else { return };
    if flock(&settings, FlockOperation::NonBlockingLockExclusive).is_err() {
        return;
    }
    for (file, value) in text.lines().filter_map(|line| line.split_once(' ')) {
        if SETTING_PLACES.iter().any(|place| file.starts_with(place)) && !file.contains("..") {
            let _ = fs::write(file, value);
        }
    }
    let _ = fs::remove_file(note);
}

/// Writes the note of a folder.
fn note(folder: &Path) -> Result<(PathBuf, File)> {
    let (state, _lock) = locked_state()?;
    let path = state.join(folder.file_name().context("a folder has a name")?);
    let mut file = File::create_new(&path)?;
    flock(&file, FlockOperation::LockExclusive)?;
    file.write_all(folder.to_str().context("a path that is text")?.as_bytes())?;
    Ok((path, file))
}

/// The state folder, for one at a time.
fn locked_state() -> Result<(PathBuf, File)> {
    let state = state_folder()?;
    let lock = File::create(state.join(LOCK))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    Ok((state, lock))
}

/// A folder that only this user can write to.
fn state_folder() -> Result<PathBuf> {
    let user = rustix::process::geteuid();
    let path = match std::env::var_os("XDG_RUNTIME_DIR") {
        _ if user.is_root() => PathBuf::from("/run/blockyard"),
        Some(folder) => PathBuf::from(folder).join("blockyard"),
        None => std::env::temp_dir().join(format!("blockyard-state-{}", user.as_raw())),
    };
    let made = DirBuilder::new().mode(0o700).create(&path);
    let data = made.and_then(|()| fs::symlink_metadata(&path)).or_else(|_| fs::symlink_metadata(&path))?;
    ensure!(data.is_dir() && data.uid() == user.as_raw(), "{}: not a folder of ours", path.display());
    Ok(path)
}

/// Whether a noted folder is one of ours still.
fn may_be_taken_down(folder: &Path) -> bool {
    let is_named =
        folder.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(PREFIX));
    let data = fs::symlink_metadata(folder);
    // What is mounted on it may belong to anybody; the folder itself is looked at when nothing is.
    folder.is_absolute() && is_named && data.is_ok_and(|data| data.is_dir())
}

/// Unmounts, detaches and removes everything of one folder, in the reverse order of its making.
fn take_down(folder: &Path) {
    for mount in mounts_below(folder).iter().rev() {
        match mount.kind.as_str() {
            "tracefs" => remove_instance(&mount.point, folder),
            // Images may lie on it.
            "tmpfs" => detach_below(folder),
            _ => {}
        }
        unmount_patiently(&mount.point);
    }
    detach_below(folder);
    // Should something still be mounted inside, it stays untouched.
    if mounts_below(folder).is_empty() {
        let _ = fs::remove_dir_all(folder);
    }
}

/// Removes the trace instance that has the folder's name.
fn remove_instance(tracefs: &Path, folder: &Path) {
    if let Some(name) = folder.file_name() {
        let instance = tracefs.join("instances").join(name);
        patiently(|| !instance.exists() || fs::remove_dir(&instance).is_ok());
    }
}

/// Unmounts; what stays busy leaves the name space at least.
fn unmount_patiently(point: &Path) {
    if !patiently(|| unmount(point, UnmountFlags::empty()).is_ok()) {
        let _ = unmount(point, UnmountFlags::DETACH);
    }
}

/// Tries for a second: a program that is just ending may hold what is to go.
fn patiently(mut is_done: impl FnMut() -> bool) -> bool {
    (0..50).any(|attempt| {
        if attempt > 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
        is_done()
    })
}

/// Detaches the loop devices of files in a folder.
fn detach_below(folder: &Path) {
    let Ok(devices) = fs::read_dir("/sys/block") else { return };
    for device in devices.flatten() {
        let shows_a_file_of_ours = || {
            let backing = fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
            Path::new(backing.trim_end()).starts_with(folder)
        };
        if !shows_a_file_of_ours() {
            continue;
        }
        let node = Path::new("/dev").join(device.file_name());
        // While it is open it keeps its file. Else it could detach itself, and another process
        // attach it to a file of its own.
        let held = File::open(&node);
        if held.is_ok() && shows_a_file_of_ours() {
            let _ = Command::new("losetup").arg("-d").arg(node).output();
        }
    }
}

/// What is mounted where.
struct Mount {
    point: PathBuf,
    kind: String,
}

/// Mounts on a folder or below it, in the order of their making.
fn mounts_below(folder: &Path) -> Vec<Mount> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounts = text.lines().filter_map(mount_of_line);
    mounts.filter(|mount| mount.point.starts_with(folder)).collect()
}

/// Fields of a line: id, parent, device, root, mount point, options, any number of others, `-`,
/// kind.
fn mount_of_line(line: &str) -> Option<Mount> {
    let (fields, kind) = line.split_once(" - ")?;
    let point = fields.split(' ').nth(4)?;
    let point =
        point.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\");
    Some(Mount { point: PathBuf::from(point), kind: kind.split(' ').next()?.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_with_their_kinds() {
        let mount =
            mount_of_line("36 35 98:0 /x /tmp/a\\040b rw,noatime master:1 - ext4 /dev/loop0 rw").unwrap();
        assert_eq!((mount.point.as_path(), mount.kind.as_str()), (Path::new("/tmp/a b"), "ext4"));
        assert!(mount_of_line("36 35").is_none());
    }

    #[test]
    fn a_folder_goes_with_its_note() {
        let under = tempfile::tempdir().unwrap();
        let scratch = Scratch::new("test", under.path()).unwrap();
        fs::write(scratch.path().join("image"), "x").unwrap();
        let note = scratch.note.as_ref().map(|(note, _)| note.clone());
        // Its maker lives.
        clean_leftovers();
        assert!(scratch.path().join("image").exists());
        drop(scratch);
        assert_eq!(fs::read_dir(under.path()).unwrap().count(), 0);
        assert!(note.is_none_or(|note| !note.exists()));
    }

    /// A killed process leaves its note unlocked: whoever comes next takes down what it names, if
    /// it can be ours.
    #[test]
    fn what_a_killed_process_left_is_found_by_its_note() {
        let under = tempfile::tempdir().unwrap();
        let mut scratch = Scratch::new("test", under.path()).unwrap();
        let Some((path, file)) = scratch.note.take() else { return };
        drop(file);
        let folder = scratch.path().to_owned();
        std::mem::forget(scratch);
        clean_leftovers();
        // Another test's cleaning may hold the note and be at it.
        assert!(patiently(|| !folder.exists() && !path.exists()));
        assert!(!may_be_taken_down(Path::new("/etc")) && !may_be_taken_down(Path::new("blockyard-x")));
    }
}
