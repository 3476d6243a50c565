//! What a killed program may have left behind: mounts, loop devices and files.

use std::path::Path;

/// What is left in a folder; empty when nothing is left:
/// - the lines of `/proc/self/mounts` that name the folder;
/// - the files in the folder that loop devices still use;
/// - the folder's entries.
///
/// # Panics
/// When the folder, the mounts or the devices cannot be listed.
#[must_use]
pub fn leftovers(folder: &Path) -> Vec<String> {
    let text = folder.to_str().expect("test folders have UTF-8 names");
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("the mounts");
    let mut found: Vec<String> =
        mounts.lines().filter(|line| line.contains(text)).map(str::to_owned).collect();
    for device in std::fs::read_dir("/sys/block").expect("the block devices").flatten() {
        let backing = std::fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
        found.extend(backing.contains(text).then_some(backing));
    }
    let files = std::fs::read_dir(folder).expect("the folder").flatten();
    found.extend(files.map(|entry| entry.path().display().to_string()));
    found
}
