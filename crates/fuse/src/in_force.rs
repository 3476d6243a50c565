//! The options that the kernel shows for a mount.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Options that a remount would reset if it did not name them.
const KEPT: [&str; 7] = ["ro", "noatime", "relatime", "nodev", "nosuid", "noexec", "allow_other"];

/// The options in force for the mount at `directory`, an absolute path, as a list for
/// [`Options::parse`]. Lists only those of our options that a remount would otherwise reset. Asks
/// only the kernel, so it does not wait for a server that is stuck.
///
/// # Errors
/// `NotFound` if nothing is mounted at `directory`, `InvalidInput` if another file system is
/// mounted there, and the errors of reading `/proc/self/mounts`.
///
/// [`Options::parse`]: crate::Options::parse
pub fn options_in_force(directory: &Path) -> io::Result<String> {
    // Paths of other mounts need not be UTF-8.
    options_in(&std::fs::read("/proc/self/mounts")?, directory)
}

fn options_in(mounts: &[u8], directory: &Path) -> io::Result<String> {
    let place = as_in_mounts(directory);
    let mut fields = mounts
        .split(|byte| *byte == b'\n')
        .map(|line| line.split(|byte| *byte == b' ').map(String::from_utf8_lossy).collect::<Vec<_>>());
    // The last entry is the topmost mount.
    let found = fields.rfind(|fields| fields.get(1).is_some_and(|field| *field == place));
    let Some([_, _, kind, options, ..]) = found.as_deref() else {
        return Err(io::Error::new(io::ErrorKind::NotFound, "nothing is mounted there"));
    };
    if kind != "fuse.blockyard" {
        let text = format!("{kind} is mounted there, not an image of ours");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut words: Vec<_> = options.split(',').filter(|word| KEPT.contains(word)).collect();
    if !words.iter().any(|word| word.ends_with("atime")) {
        words.push("strictatime");
    }
    Ok(words.join(","))
}

/// A path as /proc/self/mounts shows it: blanks, line ends and backslashes in octal.
fn as_in_mounts(path: &Path) -> String {
    let mut shown = Vec::new();
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => shown.extend(format!("\\{byte:03o}").bytes()),
            _ => shown.push(byte),
        }
    }
    String::from_utf8_lossy(&shown).into_owned()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::options_in;

    const MOUNTS: &[u8] = b"/dev/a / ext4 rw,relatime 0 0\n\
        /i /m fuse.blockyard rw,noexec,relatime,user_id=0,group_id=0,default_permissions 0 0\n\
        /i /m fuse.blockyard ro,nosuid,user_id=0,group_id=0,allow_other 0 0\n\
        /i /a\\040b fuse.blockyard rw,nodev,noatime 0 0\n\
        /i /a\xff fuse.blockyard rw 0 0\n";

    #[test]
    fn the_topmost_mount_counts() {
        let found = |place: &str| options_in(MOUNTS, Path::new(place)).map_err(|error| error.to_string());
        assert_eq!(found("/m").unwrap(), "ro,nosuid,allow_other,strictatime");
        assert_eq!(found("/a b").unwrap(), "nodev,noatime");
        assert_eq!(found("/b").unwrap_err(), "nothing is mounted there");
        assert_eq!(found("/").unwrap_err(), "ext4 is mounted there, not an image of ours");
    }
}
