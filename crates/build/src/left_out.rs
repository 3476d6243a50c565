//! Extended attributes that an image does not keep, because Linux does not allow them on an ext4
//! file. In the `system.` namespace only the two access control lists are allowed. For example,
//! `system.data` is not allowed, because ext4 itself stores inline content under this name.

use crate::acl;
use blockyard_disk::xattr;
use std::path::PathBuf;

/// Attributes with these prefixes are kept on every type of file.
const OPEN: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
/// Longest name in bytes that system calls take.
const NAME_MAX: usize = 255;

/// The prefix index and the rest of a full name; `None` if the attribute is left out.
pub(crate) fn kept(name: &[u8]) -> Option<(u8, &[u8])> {
    let is_open = || OPEN.iter().any(|prefix| name.starts_with(prefix));
    // In a system call, a name ends at its first zero byte.
    let is_name = name.len() <= NAME_MAX && !name.contains(&0);
    (is_name && (is_open() || acl::is_list(name))).then(|| xattr::split_name(name))?
}

/// Extended attributes that were left out; see [`Tree::left_out`](crate::Tree::left_out).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Their number.
    pub count: u64,
    /// The first file that has such an attribute.
    pub path: PathBuf,
    /// The full name of the first one on that file.
    pub name: Vec<u8>,
}

impl LeftOut {
    /// Adds what was left out of one more file.
    pub(crate) fn add(found: &mut Option<Box<Self>>, path: impl FnOnce() -> PathBuf, names: Vec<Vec<u8>>) {
        let count = u64::try_from(names.len()).unwrap_or(u64::MAX);
        match (found, names.into_iter().next()) {
            (Some(found), _) => found.count += count,
            (found, Some(name)) => *found = Some(Box::new(Self { count, path: path(), name })),
            (None, None) => {}
        }
    }

    /// Adds what was left out of another tree, or of another part of the same tree.
    pub(crate) fn join(found: &mut Option<Box<Self>>, more: Option<Self>) {
        match (found, more) {
            (Some(found), Some(more)) => found.count += more.count,
            (found, more) => *found = found.take().or(more.map(Box::new)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::kept;

    #[test]
    fn only_what_linux_sets_is_kept() {
        let long = format!("user.{}", "n".repeat(250));
        for name in [
            "user.a",
            "trusted.a",
            "security.capability",
            "system.posix_acl_access",
            "system.posix_acl_default",
            &long,
        ] {
            assert!(kept(name.as_bytes()).is_some(), "{name}");
        }
        let longer = format!("{long}n");
        for name in [
            "system.data",
            "system.richacl",
            "system.nfs4_acl",
            "system.posix_acl_accessx",
            "system.",
            "user.",
            "userx",
            "com.apple.quarantine",
            "user.a\0b",
            "user.a\0",
            "",
            &longer,
        ] {
            assert_eq!(kept(name.as_bytes()), None, "{name}");
        }
    }
}
