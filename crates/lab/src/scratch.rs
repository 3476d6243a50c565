//! The lab's scratch directories and what depends on them: images, loop devices, mounts, tracefs
//! instances.
//!
//! Key decision: everything temporary belongs to a scratch directory. Dropping its [`Scratch`]
//! unmounts, detaches and removes all of it. For the case that a process is killed, each scratch
//! directory has a note in the state directory (`/run/blockyard` for root). The note is written
//! before the scratch directory is created, and is locked while the [`Scratch`] exists. A note
//! without a lock tells a later process what to clean up ([`clean_leftovers`]).
//!
//! The state directory also keeps the old values of the kernel's write-back settings while a
//! comparison with the kernel has stopped periodic write-back ([`settings_note`]).

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

/// Prefix of every scratch directory's name. No other directory is ever cleaned up.
const PREFIX: &str = "blockyard-";
/// Name of the note of changed settings. Each of its lines has a file and the file's old value.
const SETTINGS: &str = "settings";
/// Name of the file that is locked while notes are written and searched.
const LOCK: &str = "lock";
/// The only directories in which settings are restored.
const SETTING_PLACES: [&str; 2] = ["/proc/sys/vm/", "/sys/devices/virtual/workqueue/"];

/// A scratch directory. Dropping it unmounts, detaches and removes everything that belongs to it.
pub struct Scratch {
    path: PathBuf,
    /// The path of the note and its open file, which is locked as long as this value lives; `None`
    /// without a state directory.
    note: Option<(PathBuf, File)>,
}

impl Scratch {
    /// Creates a directory `blockyard-WHAT-*` under another.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn new(what: &str, under: &Path) -> Result<Self> {
        // The path as /proc/self/mountinfo shows it.
        let under = fs::canonicalize(under).with_context(|| format!("{}", under.display()))?;
        let path = under.join(new_name(what));
        // Without a state directory everything works, but nobody cleans up after a killed process.
        let note = note(&path).ok();
        let made = DirBuilder::new().mode(0o700).create(&path);
        let scratch = Self { path, note };
        made.with_context(|| format!("{}", scratch.path.display()))?;
        Ok(scratch)
    }

    /// Creates a scratch directory in the directory for temporary files.
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

/// Unmounts, detaches and removes what killed processes left, and restores the settings that they
/// noted.
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

/// Removes the note of a directory. If the directory could not be removed yet because something in
/// it is busy, the note stays.
fn remove_note(note: &Path, folder: &Path) {
    if !may_be_taken_down(folder) {
        let _ = fs::remove_file(note);
    }
}

/// A unique name, made of process, time and number.
fn new_name(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}{what}-{}-{since:x}-{number}", std::process::id())
}

/// The file in which a process that changes the write-back settings notes the old values.
///
/// # Errors
/// When there is no state directory.
pub fn settings_note() -> Result<PathBuf> {
    Ok(state_folder()?.join(SETTINGS))
}

/// Restores settings if the process that changed them was killed. While that process lives, it
/// holds the lock on `/proc/sys/vm`.
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

/// Writes the note of a directory.
fn note(folder: &Path) -> Result<(PathBuf, File)> {
    let (state, _lock) = locked_state()?;
    let path = state.join(folder.file_name().context("a folder has a name")?);
    let mut file = File::create_new(&path)?;
    flock(&file, FlockOperation::LockExclusive)?;
    file.write_all(folder.to_str().context("a path that is text")?.as_bytes())?;
    Ok((path, file))
}

/// The state directory, locked.
fn locked_state() -> Result<(PathBuf, File)> {
    let state = state_folder()?;
    let lock = File::create(state.join(LOCK))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    Ok((state, lock))
}

/// The state directory, which must belong to this user. If it is missing, it is created for this
/// user alone.
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

/// Whether a noted directory exists and has the name of a scratch directory.
fn may_be_taken_down(folder: &Path) -> bool {
    let is_named =
        folder.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(PREFIX));
    let data = fs::symlink_metadata(folder);
    // The owner is not checked: if a file system is mounted on the directory, the owner of that
    // file system's root would be seen instead.
    folder.is_absolute() && is_named && data.is_ok_and(|data| data.is_dir())
}

/// Unmounts (the last mount first) and detaches everything in a directory, and removes the
/// directory.
fn take_down(folder: &Path) {
    for mount in mounts_below(folder).iter().rev() {
        match mount.kind.as_str() {
            "tracefs" => remove_instance(&mount.point, folder),
            // The tmpfs may hold images that loop devices use.
            "tmpfs" => detach_below(folder),
            _ => {}
        }
        unmount_patiently(&mount.point);
    }
    detach_below(folder);
    // If something is still mounted inside, the directory stays.
    if mounts_below(folder).is_empty() {
        let _ = fs::remove_dir_all(folder);
    }
}

/// Removes the tracefs instance with the directory's name.
fn remove_instance(tracefs: &Path, folder: &Path) {
    if let Some(name) = folder.file_name() {
        let instance = tracefs.join("instances").join(name);
        patiently(|| !instance.exists() || fs::remove_dir(&instance).is_ok());
    }
}

/// Unmounts. A mount that stays busy is unmounted lazily: it leaves the namespace at once.
fn unmount_patiently(point: &Path) {
    if !patiently(|| unmount(point, UnmountFlags::empty()).is_ok()) {
        let _ = unmount(point, UnmountFlags::DETACH);
    }
}

/// Retries for a second, because a program that is just ending may keep something busy.
fn patiently(mut is_done: impl FnMut() -> bool) -> bool {
    (0..50).any(|attempt| {
        if attempt > 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
        is_done()
    })
}

/// Detaches the loop devices of files in a directory.
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
        // While the loop device is open, it stays attached to its file. Otherwise it could detach
        // itself, and another process could attach it to another file.
        let held = File::open(&node);
        if held.is_ok() && shows_a_file_of_ours() {
            let _ = Command::new("losetup").arg("-d").arg(node).output();
        }
    }
}

/// A mount point and the kind of its file system.
struct Mount {
    point: PathBuf,
    kind: String,
}

/// The mounts on a directory or below it, oldest first.
fn mounts_below(folder: &Path) -> Vec<Mount> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounts = text.lines().filter_map(mount_of_line);
    mounts.filter(|mount| mount.point.starts_with(folder)).collect()
}

/// Parses a line of mountinfo. Its fields are id, parent, device, root, mount point, options, any
/// number of others, `-`, kind.
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
        // This process still locks the note, so nothing is removed.
        clean_leftovers();
        assert!(scratch.path().join("image").exists());
        drop(scratch);
        assert_eq!(fs::read_dir(under.path()).unwrap().count(), 0);
        assert!(note.is_none_or(|note| !note.exists()));
    }

    /// A killed process leaves its note unlocked. The next process removes the directory that the
    /// note names, if it can be a scratch directory.
    #[test]
    fn what_a_killed_process_left_is_found_by_its_note() {
        let under = tempfile::tempdir().unwrap();
        let mut scratch = Scratch::new("test", under.path()).unwrap();
        let Some((path, file)) = scratch.note.take() else { return };
        drop(file);
        let folder = scratch.path().to_owned();
        std::mem::forget(scratch);
        // If another test is starting a process, the child shares the note's open file between fork
        // and exec, and with it the lock.
        assert!(patiently(|| {
            clean_leftovers();
            !folder.exists() && !path.exists()
        }));
        assert!(!may_be_taken_down(Path::new("/etc")) && !may_be_taken_down(Path::new("blockyard-x")));
    }
}
