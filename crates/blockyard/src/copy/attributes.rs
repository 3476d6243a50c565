//! Extended attributes of host files, access control lists included.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

/// Linux's limit in bytes for the value of an attribute, and for the list of a file's attribute
/// names.
const LARGEST: usize = 64 << 10;

/// The names and values of a file's attributes; a symbolic link is not followed.
pub(super) fn read(path: &Path) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut names = vec![0; LARGEST];
    let length = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(length) => length,
        Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(Vec::new()),
        Err(errno) => return Err(errno.into()),
    };
    let mut found = Vec::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; LARGEST];
        match rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]) {
            Ok(length) => {
                value.truncate(length);
                found.push((name.to_vec(), value));
            }
            // The attribute was removed after the list was read, or this process may not see it.
            Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(found)
}

/// Sets an attribute of a file; a symbolic link is not followed.
pub(super) fn set(path: &Path, name: &[u8], value: &[u8]) -> io::Result<()> {
    let name = CString::new(name)?;
    Ok(rustix::fs::lsetxattr(path, name.as_c_str(), value, XattrFlags::empty())?)
}
