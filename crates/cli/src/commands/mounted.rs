//! Whether somebody has an image mounted while it is read: what is seen then may be changing, and half of it may be in
//! the memory of the kernel.
//!
//! A block device is mounted when it, or a partition of it, stands in the list of mounts, or when it cannot be had for
//! exclusive use: mounts in other namespaces are not in our list. A file is mounted when a loop device that shows it is.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use blockyard_device::ImagePath;
use rustix::fs::OFlags;

/// Says on standard error that an image may be changing while it is read, where that is so.
pub(super) fn warn(image: &ImagePath) {
    let devices = devices_of(image.file());
    for device in &devices {
        if let Some(place) = mounted(device) {
            let through = if devices[0].path == image.file() {
                String::new()
            } else {
                format!(" through {}", device.path.display())
            };
            eprintln!(
                "blockyard: {}: note: is mounted{place}{through}; what is read here may be changing, and be behind what the \
                 mount shows",
                image.display()
            );
            return;
        }
    }
}

/// A block device by which an image can be mounted.
struct Device {
    path: PathBuf,
    major: u32,
    minor: u32,
}

/// The block device itself, or the loop devices that show a file; each with its partitions.
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

/// Folders of the loop devices that show a file.
pub(super) fn loops_of(image: &Path) -> Vec<PathBuf> {
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

/// The device of a folder of sysfs.
fn device(folder: &Path) -> Option<Device> {
    let numbers = std::fs::read_to_string(folder.join("dev")).ok()?;
    let (major, minor) = numbers.trim().split_once(':')?;
    let path = Path::new("/dev").join(folder.file_name()?);
    Some(Device { path, major: major.parse().ok()?, minor: minor.parse().ok()? })
}

/// Where a device is mounted so that it can change, as ` at /mnt`; empty where only that it is in use is known.
fn mounted(device: &Device) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let number = format!("{}:{}", device.major, device.minor);
    let mut of_device = mounts.lines().filter_map(mount).filter(|mount| mount.device == number).peekable();
    if of_device.peek().is_some() {
        return of_device.find(|mount| mount.is_writable).map(|mount| format!(" at {}", mount.place));
    }
    let exclusive = i32::try_from(OFlags::EXCL.bits()).unwrap_or_default();
    let opened = OpenOptions::new().read(true).custom_flags(exclusive).open(&device.path);
    let is_busy = opened.is_err_and(|error| error.kind() == std::io::ErrorKind::ResourceBusy);
    is_busy.then(String::new)
}

/// One line of `/proc/self/mountinfo`.
struct Mount<'l> {
    device: &'l str,
    place: &'l str,
    is_writable: bool,
}

/// Number, parent, device, root, place, options, tags, `-`, type, source, options of the file system.
fn mount(line: &str) -> Option<Mount<'_>> {
    let mut fields = line.split(' ');
    let (device, place) = (fields.nth(2)?, fields.nth(1)?);
    let options = fields.skip_while(|field| *field != "-").nth(3)?;
    Some(Mount { device, place, is_writable: options.split(',').any(|option| option == "rw") })
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
}
