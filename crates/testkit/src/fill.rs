//! Fills a mounted file system with files and directories of every kind, the same on every run.
//!
//! Each function makes one kind of thing, so that a test can pick what the image's features and
//! size allow. Most functions use a directory of their own. Owners, devices and trusted attributes
//! need root.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, Timespec, Timestamps, XattrFlags, chownat, fallocate,
    lsetxattr, makedev, mknodat, utimensat,
};

/// Bytes that differ from block to block, so that a misplaced block is noticed.
#[must_use]
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed ^ 0x9E37_79B9_7F4A_7C15;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend((state >> 11).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn folder(root: &Path, name: &str) -> PathBuf {
    let path = root.join(name);
    std::fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    path
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Regular files with sizes around those at which ext4 begins to store a file differently (inline,
/// in few blocks, with indirect blocks), and one of 1.5 MB.
pub fn sizes(root: &Path, block_size: usize) {
    let at = folder(root, "sizes");
    let edges = [0, 1, 4, 59, 60, 61, 100, 128, 150, 160, 161, 200];
    let blocks = [1, 2, 4, 11, 12, 13, 64].map(|n| n * block_size);
    let around = blocks.iter().flat_map(|size| [size - 1, *size, size + 1]);
    for size in edges.into_iter().chain(around).chain([1_500_000]) {
        write(&at.join(format!("{size}")), &pattern(u64::try_from(size).expect("small"), size));
    }
}

/// A file of `size` bytes that is one hole, and one with holes in it and at its end. Two more files
/// have unwritten extents: `unwritten` before its end, and `beyond` after its end.
pub fn sparse(root: &Path, size: u64) {
    let at = folder(root, "sparse");
    let create = |name: &str| std::fs::File::create(at.join(name)).expect("a file is created");
    create("hole").set_len(size).expect("a size is set");
    let file = create("islands");
    for n in 0..9 {
        file.write_all_at(&pattern(n, 3000), n * size / 9 + n * 111).expect("an island is written");
    }
    file.set_len(size).expect("a size is set");
    let file = create("unwritten");
    fallocate_or_fill(&file, FallocateFlags::empty(), 0, 300_000);
    file.write_all_at(&pattern(77, 5000), 100_000).expect("the middle is written");
    let file = create("beyond");
    file.write_all_at(b"short", 0).expect("the start is written");
    fallocate_or_fill(&file, FallocateFlags::KEEP_SIZE, 0, 200_000);
}

/// Allocates unwritten space. Block-mapped files cannot hold any: they get zeroes instead, or with
/// `KEEP_SIZE` nothing.
fn fallocate_or_fill(file: &std::fs::File, flags: FallocateFlags, offset: u64, length: u64) {
    if fallocate(file, flags, offset, length).is_err() && flags.is_empty() {
        let zeroes = vec![0; usize::try_from(length).expect("small")];
        file.write_all_at(&zeroes, offset).expect("zeroes are written");
    }
}

/// A file of `extents` extents of one block each, with holes between them.
pub fn fragmented(root: &Path, name: &str, block_size: usize, extents: u64) {
    let file = std::fs::File::create(root.join(name)).expect("a file is created");
    let step = 2 * u64::try_from(block_size).expect("small");
    for n in 0..extents {
        file.write_all_at(&pattern(n, block_size), n * step).expect("a block is written");
    }
}

/// A file with a few blocks around the start of each level of a block map: direct, single, double
/// and triple indirect.
pub fn indirect_levels(root: &Path, block_size: u64) {
    let file = std::fs::File::create(root.join("levels")).expect("a file is created");
    let pointers = block_size / 4;
    for logical in [0, 11, 12, 12 + pointers - 1, 12 + pointers, 12 + pointers + pointers * pointers] {
        for n in 0..3 {
            let at = (logical + n) * block_size;
            file.write_all_at(&pattern(at, usize::try_from(block_size).expect("small")), at)
                .expect("a block is written");
        }
    }
}

/// Symbolic links whose targets have the given lengths in bytes.
pub fn symlinks(root: &Path, lengths: impl IntoIterator<Item = usize>) {
    let at = folder(root, "symlinks");
    for length in lengths {
        let target: Vec<u8> = (0..length)
            .map(|n| if n % 50 == 49 { b'/' } else { b"abcdefghijklmnopqrstuvwxyz"[n % 26] })
            .collect();
        std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(&target), at.join(format!("{length}")))
            .unwrap_or_else(|error| panic!("symbolic link of {length}: {error}"));
    }
}

/// Device nodes with small and large numbers, a pipe and a socket.
pub fn specials(root: &Path) {
    let at = folder(root, "specials");
    let mode = Mode::from_raw_mode(0o640);
    for (major, minor) in [(0, 0), (1, 3), (8, 255), (255, 255), (8, 256), (256, 1), (4095, 1_048_575)] {
        for (kind, letter) in [(FileType::CharacterDevice, 'c'), (FileType::BlockDevice, 'b')] {
            let path = at.join(format!("{letter}{major}-{minor}"));
            mknodat(CWD, &path, kind, mode, makedev(major, minor))
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
    }
    mknodat(CWD, at.join("pipe"), FileType::Fifo, mode, 0).expect("a pipe is made");
    mknodat(CWD, at.join("socket"), FileType::Socket, mode, 0).expect("a socket is made");
}

/// Owners beyond 16 bits, all permission bits, and a file with six names.
pub fn owners(root: &Path) {
    let at = folder(root, "owners");
    for (name, uid, gid, mode) in [
        ("small", 1000, 1001, 0o644),
        ("wide", 70_000, 4_000_000_000u32, 0o4755),
        ("bits", 0, 0, 0o7777),
        ("none", 65_534, 65_535, 0),
    ] {
        let path = at.join(name);
        write(&path, name.as_bytes());
        let owner = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
        chownat(CWD, &path, Some(owner.0), Some(owner.1), AtFlags::SYMLINK_NOFOLLOW)
            .expect("an owner is set");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("a mode is set");
    }
    for n in 0..5 {
        std::fs::hard_link(at.join("small"), at.join(format!("link{n}"))).expect("a link is made");
    }
}

/// Files with times at the edges of what an inode can hold. `wide` means that the inodes have the
/// extra time fields.
///
/// The first and the last time have 0 nanoseconds. At the ends of the range, Linux clears the
/// nanoseconds, but a FUSE mount would go on showing the nanoseconds of the modification time.
pub fn times(root: &Path, wide: bool) {
    let at = folder(root, "times");
    let narrow = [-(1i64 << 31), -1, 0, 1, 1_000_000_000, (1 << 31) - 1];
    let later = [1i64 << 31, (1 << 32) - 1, 1 << 32, (1 << 32) + (1 << 31), (3 << 32) + (1 << 31) - 1];
    let all: Vec<i64> = narrow.into_iter().chain(later.into_iter().filter(|_| wide)).collect();
    for (n, &seconds) in all.iter().enumerate() {
        let is_end = n == 0 || n == all.len() - 1;
        let path = at.join(format!("{n}"));
        write(&path, b"");
        let time = |nanoseconds| Timespec { tv_sec: seconds, tv_nsec: if is_end { 0 } else { nanoseconds } };
        let times = Timestamps { last_access: time(123_456_789), last_modification: time(999_999_999) };
        utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("times are set");
    }
}

/// Extended attributes in the namespaces `user`, `trusted` and `security`. The parentheses say
/// where most of the attributes are if inodes have 256 bytes:
/// - a file with a few small attributes (in the inode), and a file with many (in an attribute
///   block);
/// - a file with an attribute of `largest` bytes, and with another that has a long name;
/// - three files with equal attributes (in one shared block);
/// - a symbolic link with an attribute.
pub fn attributes(root: &Path, largest: usize) {
    let at = folder(root, "attributes");
    let set = |path: &Path, name: &str, value: &[u8]| {
        lsetxattr(path, name, value, XattrFlags::empty())
            .unwrap_or_else(|error| panic!("{} {name}: {error}", path.display()));
    };
    let small = at.join("small");
    write(&small, b"small");
    set(&small, "user.a", b"1");
    set(&small, "user.empty", b"");
    set(&small, "trusted.t", b"trusted");
    set(&small, "security.s", b"security");
    let many = at.join("many");
    write(&many, b"many");
    for n in 0..12 {
        set(&many, &format!("user.name-{n}"), &pattern(n, 3 + usize::try_from(n).expect("small") * 2));
    }
    let large = at.join("large");
    write(&large, b"large");
    set(&large, "user.large", &pattern(5, largest));
    set(&large, &format!("user.{}", "n".repeat(250)), b"long name");
    let shared = pattern(9, 300.min(largest));
    for n in 0..3 {
        let path = at.join(format!("shared{n}"));
        write(&path, b"shared");
        set(&path, "user.shared", &shared);
    }
    let link = at.join("link");
    std::os::unix::fs::symlink("target", &link).expect("a symbolic link is made");
    set(&link, "trusted.on-a-link", b"yes");
}

/// Access control lists, for access and as default, with named users and groups.
pub fn access_lists(root: &Path) {
    let at = folder(root, "access-lists");
    let list = |entries: &[(u16, u16, u32)]| {
        let mut value = 2u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            value.extend(tag.to_le_bytes());
            value.extend(permissions.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    };
    let none = u32::MAX;
    let value = list(&[
        (0x01, 6, none),
        (0x02, 4, 1000),
        (0x02, 7, 70_000),
        (0x04, 4, none),
        (0x08, 5, 100),
        (0x10, 7, none),
        (0x20, 0, none),
    ]);
    let file = at.join("file");
    write(&file, b"file");
    for (path, name) in [
        (&file, "system.posix_acl_access"),
        (&at, "system.posix_acl_default"),
        (&at, "system.posix_acl_access"),
    ] {
        lsetxattr(path, name, &value, XattrFlags::empty()).expect("an access control list is set");
    }
    write(&at.join("inherits"), b"inherits");
}

/// Files with names of every length, in several scripts, and one whose name is not UTF-8.
pub fn names(root: &Path) {
    let at = folder(root, "names");
    for length in 1..=255 {
        write(&at.join("n".repeat(length)), b"");
    }
    for name in
        ["with space", "Ünïcödé", "日本語のファイル", "-dash", "new\nline", "back\\slash", "\u{1F4BE}"]
    {
        write(&at.join(name), name.as_bytes());
    }
    write(&at.join(std::ffi::OsStr::from_bytes(b"not-\xFF-utf8")), b"");
}

/// A directory of `count` hard links. Each name has `length` bytes, but at least 8. Each file has
/// up to 60,000 of the names.
pub fn many_names(root: &Path, folder_name: &str, count: usize, length: usize) {
    let at = folder(root, folder_name);
    let mut first: Option<PathBuf> = None;
    for n in 0..count {
        let mut name = format!("{n:07}-");
        name.push_str(&"x".repeat(length.saturating_sub(name.len())));
        let path = at.join(name);
        // An inode has at most 65000 links.
        match &first {
            Some(file) if n % 60_000 != 0 => std::fs::hard_link(file, &path).expect("a link is made"),
            _ => {
                write(&path, b"the one");
                first = Some(path);
            }
        }
    }
}

/// A directory of `count` directories.
pub fn many_directories(root: &Path, count: usize) {
    let at = folder(root, "directories");
    for n in 0..count {
        std::fs::create_dir(at.join(format!("{n}"))).expect("a directory is made");
    }
}

/// A chain of `depth` directories with a file at the bottom.
pub fn deep(root: &Path, depth: usize) {
    let mut at = folder(root, "deep");
    for n in 0..depth {
        at = folder(&at, &format!("{n}"));
    }
    write(&at.join("bottom"), b"bottom");
}
