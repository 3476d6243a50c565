//! Other users of an image: the kernel, which may have it mounted or attached to a loop device, and
//! other processes that hold its lock.
//!
//! A block device counts as mounted if the list of mounts shows a writable mount of it or of one of
//! its partitions. Read-only mounts in the list do not count; [`read_only_mount`] finds them. A
//! device that the list does not show counts as mounted if the kernel refuses exclusive use of it,
//! because mounts in other namespaces are not in our list. A file counts as mounted if a loop
//! device that it backs is mounted.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// A mount of an image, or of a partition in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelMount {
    /// The block device that is mounted.
    pub device: PathBuf,
    /// The mount point, written as in `/proc`; `None` if the device is only known to be in use.
    pub place: Option<String>,
}

/// A block device by which an image can be mounted.
struct Device {
    path: PathBuf,
    major: u32,
    minor: u32,
}

/// The kernel's mount through which an image may be changing; `None` if there is none. A mount with
/// a known mount point is preferred: while a partition is mounted, its whole disk is busy too, but
/// has no mount point of its own.
#[must_use]
pub fn kernel_mount(image: &Path) -> Option<KernelMount> {
    let mounts: Vec<KernelMount> = devices_of(image).into_iter().filter_map(mount_of).collect();
    let with_place = mounts.iter().position(|mount| mount.place.is_some());
    mounts.into_iter().nth(with_place.unwrap_or(0))
}

/// A mount of an image, or of a partition in it, that the list of mounts shows as read-only; `None`
/// if there is none. Nobody changes the image through such a mount. But the kernel caches what it
/// has read, so a write to the image makes that cache stale.
#[must_use]
pub fn read_only_mount(image: &Path) -> Option<KernelMount> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let shown_of = |device: Device| {
        let number = format!("{}:{}", device.major, device.minor);
        let shown = mounts.lines().filter_map(mount).find(|mount| mount.device == number)?;
        let place = Some(shown.place.to_owned());
        (!shown.is_writable).then_some(KernelMount { device: device.path, place })
    };
    devices_of(image).into_iter().find_map(shown_of)
}

/// The loop device that a file backs, if there is one. While it exists, only the kernel may write
/// to the file, because the kernel caches what it has read of the file.
#[must_use]
pub fn loop_device_of(image: &Path) -> Option<PathBuf> {
    let folder = loops_of(image).into_iter().next()?;
    Some(Path::new("/dev").join(folder.file_name()?))
}

/// The block device itself, or the loop devices that a file backs, each with its partitions.
fn devices_of(image: &Path) -> Vec<Device> {
    let Ok(data) = std::fs::metadata(image) else { return Vec::new() };
    if data.file_type().is_block_device() {
        let number = data.rdev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let mut devices = vec![Device { path: image.to_owned(), major, minor }];
        devices.extend(partitions(Path::new(&format!("/sys/dev/block/{major}:{minor}"))));
        return devices;
    }
    let mut devices = Vec::new();
    for folder in loops_of(image) {
        devices.extend(device(&folder));
        devices.extend(partitions(&folder));
    }
    devices
}

/// Sysfs directories of the loop devices that a file backs.
fn loops_of(image: &Path) -> Vec<PathBuf> {
    let (Ok(image), Ok(devices)) = (image.canonicalize(), std::fs::read_dir("/sys/block")) else {
        return Vec::new();
    };
    let shows = |folder: &PathBuf| {
        let backing = std::fs::read(folder.join("loop/backing_file")).unwrap_or_default();
        backing.trim_ascii_end() == image.as_os_str().as_encoded_bytes()
    };
    devices.flatten().map(|device| device.path()).filter(shows).collect()
}

fn partitions(disk: &Path) -> Vec<Device> {
    let Ok(entries) = std::fs::read_dir(disk) else { return Vec::new() };
    let folders = entries.flatten().map(|entry| entry.path());
    folders.filter(|folder| folder.join("partition").exists()).filter_map(|folder| device(&folder)).collect()
}

/// The device of a sysfs directory.
fn device(folder: &Path) -> Option<Device> {
    let numbers = std::fs::read_to_string(folder.join("dev")).ok()?;
    let (major, minor) = numbers.trim().split_once(':')?;
    let path = Path::new("/dev").join(folder.file_name()?);
    Some(Device { path, major: major.parse().ok()?, minor: minor.parse().ok()? })
}

/// The mount through which a device can change. It has no mount point if the device is only known
/// to be in use.
fn mount_of(device: Device) -> Option<KernelMount> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let number = format!("{}:{}", device.major, device.minor);
    let mut of_device = mounts.lines().filter_map(mount).filter(|mount| mount.device == number).peekable();
    if of_device.peek().is_some() {
        let place = of_device.find(|mount| mount.is_writable)?.place.to_owned();
        return Some(KernelMount { device: device.path, place: Some(place) });
    }
    let exclusive = i32::try_from(OFlags::EXCL.bits()).unwrap_or_default();
    let opened = OpenOptions::new().read(true).custom_flags(exclusive).open(&device.path);
    let is_busy = opened.is_err_and(|error| error.kind() == std::io::ErrorKind::ResourceBusy);
    is_busy.then_some(KernelMount { device: device.path, place: None })
}

/// One line of `/proc/self/mountinfo`.
struct Mount<'l> {
    device: &'l str,
    place: &'l str,
    is_writable: bool,
}

/// Parses one line of `/proc/self/mountinfo`. Its fields are number, parent, device, root, mount
/// point, options, tags, `-`, type, source, and file system options.
fn mount(line: &str) -> Option<Mount<'_>> {
    let mut fields = line.split(' ');
    let (device, place) = (fields.nth(2)?, fields.nth(1)?);
    let options = fields.skip_while(|field| *field != "-").nth(3)?;
    Some(Mount { device, place, is_writable: options.split(',').any(|option| option == "rw") })
}

/// The most times that `/proc/locks` is read to find a lock: concurrent locking and unlocking may
/// hide one of its lines.
const LOCKS_READ_MAX: usize = 8;

/// The process that holds a writer's lock on a file or device, such as the server of a mount;
/// `None` if there is none, or if the list of locks does not show it.
#[must_use]
pub fn writer(image: &Path) -> Option<u32> {
    let data = std::fs::metadata(image).ok()?;
    let (major, minor) = (rustix::fs::major(data.dev()), rustix::fs::minor(data.dev()));
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let is_writer = |lock: &Lock<'_>| lock.is_write && lock.is_of(major, minor, data.ino());
    locks.lines().filter_map(lock).find(is_writer).map(|lock| lock.process)
}

/// The holder of a lock that we could not get, for an error message.
pub(crate) fn lock_holder(file: &File) -> String {
    let Ok(data) = file.metadata() else { return "another process uses it".to_owned() };
    let (major, minor) = (rustix::fs::major(data.dev()), rustix::fs::minor(data.dev()));
    for _ in 0..LOCKS_READ_MAX {
        let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
        match locks.lines().filter_map(lock).find(|lock| lock.is_of(major, minor, data.ino())) {
            Some(lock) if lock.process == std::process::id() => {
                return format!("this process {} it", lock.what());
            }
            Some(lock) => return format!("process {} {} it", lock.process, lock.what()),
            None => std::thread::yield_now(),
        }
    }
    // The holder is in another namespace, or `/proc/locks` has other device numbers than `stat`.
    "another process is writing to it or reading it".to_owned()
}

/// A lock on a whole file, as listed in `/proc/locks`.
struct Lock<'l> {
    is_write: bool,
    process: u32,
    /// Major and minor number of the device in hexadecimal, and the inode number.
    place: &'l str,
}

impl Lock<'_> {
    fn is_of(&self, major: u32, minor: u32, inode: u64) -> bool {
        self.place == format!("{major:02x}:{minor:02x}:{inode}")
    }

    const fn what(&self) -> &'static str {
        if self.is_write { "is writing to" } else { "is reading" }
    }
}

/// Parses one line of `/proc/locks`. Its fields are number, `FLOCK`, `ADVISORY`, `READ` or `WRITE`,
/// process, place, first byte, and last byte. `None` for a lock of another kind.
fn lock(line: &str) -> Option<Lock<'_>> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let is_flock = fields.next()? == "FLOCK";
    let is_write = fields.nth(1)? == "WRITE";
    let process = fields.next()?.parse().ok().filter(|process| *process > 0)?;
    let place = fields.next()?;
    is_flock.then_some(Lock { is_write, process, place })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_taken_apart() {
        let line =
            "36 35 7:0 / /mnt\\040x rw,relatime master:1 shared:2 - ext4 /dev/loop0 rw,errors=continue";
        let mount = mount(line).unwrap();
        assert_eq!((mount.device, mount.place, mount.is_writable), ("7:0", "/mnt\\040x", true));
        let quiet = "36 35 7:0 / /mnt rw - ext4 /dev/loop0 ro";
        assert!(!super::mount(quiet).unwrap().is_writable);
        assert!(super::mount("36 35 7:0").is_none());
    }

    #[test]
    fn a_line_of_locks_is_taken_apart() {
        let found = lock("12: FLOCK  ADVISORY  WRITE 4711 fd:00:1835015 0 EOF").unwrap();
        assert_eq!((found.is_write, found.process), (true, 4711));
        assert!(found.is_of(0xfd, 0, 1_835_015) && !found.is_of(0xfd, 1, 1_835_015));
        assert!(!lock("1: FLOCK  ADVISORY  READ 1 08:01:2 0 EOF").unwrap().is_write);
        for other in [
            "1: POSIX  ADVISORY  WRITE 4711 fd:00:1 0 EOF",
            "1: FLOCK  ADVISORY  WRITE -1 fd:00:1 0 EOF",
            "1:",
        ] {
            assert!(lock(other).is_none(), "{other}");
        }
    }
}
