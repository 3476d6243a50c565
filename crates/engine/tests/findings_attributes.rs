//! Bugs that adversarial testing found in attributes, access control lists and their inheritance,
//! each reproduced in its smallest form. A test's comment says what the engine once did wrong, or
//! which rule it must keep. Most tests compare the engine with a kernel mount.

#![allow(clippy::unwrap_used)]

#[path = "support/image.rs"]
mod support;
#[path = "support/trial.rs"]
mod trial;

use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::device_number::DeviceNumber;
use blockyard_disk::inode::FileType;
use blockyard_disk::{CorruptionKind, InodeNr, Timestamp};
use blockyard_engine::{Error, FileSystem, NewInode, OpContext, OpenOptions, SetAttributes, XattrMode};
use blockyard_testkit::{LoopMount, require};
use rustix::fs::{Mode, OFlags, XattrFlags, getxattr, lsetxattr};
use std::path::Path;
use std::sync::Arc;
use support::{ROOT, context, directory, file};
use trial::{FILE, debugged, ext4, formatted, fresh, full, judge, open_on};

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// An access control list as system calls take it. An entry is a tag, permissions and an id.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(u16::to_le_bytes(*tag));
        value.extend(u16::to_le_bytes(*permissions));
        value.extend(u32::to_le_bytes(*id));
    }
    value
}

/// A list with entries for owner, owning group, mask and others, and for `users` named users.
fn list_of(users: u32, [owner, group, mask, others]: [u16; 4]) -> Vec<u8> {
    let none = u32::MAX;
    let mut entries = vec![(1, owner, none)];
    entries.extend((0..users).map(|user| (2, 6, 1000 + user)));
    entries.extend([(4, group, none), (16, mask, none), (32, others, none)]);
    list(&entries)
}

/// Saves the device to an image file. Returns its path.
fn saved(device: &MemoryDevice, scratch: &Path) -> std::path::PathBuf {
    let image = scratch.join("image");
    device.save(&image).unwrap();
    image
}

/// For each name in a directory: the permissions, the access list and the default list. A list is
/// `None` if the inode does not have it.
type Seen = Vec<(String, u16, Option<Vec<u8>>, Option<Vec<u8>>)>;

fn seen(fs: &FileSystem, dir: &str) -> Seen {
    let dir = fs.lookup(ROOT, dir.as_bytes()).unwrap();
    let mut found = Vec::new();
    fs.read_dir(dir, 0, |entry| {
        found.push((String::from_utf8(entry.name).unwrap(), entry.inode));
        true
    })
    .unwrap();
    found.retain(|(name, _)| name != "." && name != "..");
    found.sort();
    let of = |(name, inode): (String, InodeNr)| {
        let value = |name: &str| fs.xattr(inode, name.as_bytes()).ok();
        (name, fs.attributes(inode).unwrap().permissions, value(ACCESS), value(DEFAULT))
    };
    found.into_iter().map(of).collect()
}

const KINDS: [FileType; 7] = [
    FileType::Regular,
    FileType::Directory,
    FileType::Fifo,
    FileType::Socket,
    FileType::CharDevice,
    FileType::BlockDevice,
    FileType::Symlink,
];

const MODES: [u16; 4] = [0o666, 0o777, 0o640, 0o4755];

/// Creates one inode of each kind with each mode through the engine, and unnamed files that get a
/// name afterwards.
fn make_ours(fs: &FileSystem, dir: InodeNr) {
    for (number, kind) in KINDS.into_iter().enumerate() {
        for permissions in MODES {
            let name = format!("{number}-{permissions:o}");
            if kind == FileType::Symlink {
                fs.symlink(&context(), dir, name.as_bytes(), b"target").unwrap();
                continue;
            }
            let device = matches!(kind, FileType::CharDevice | FileType::BlockDevice)
                .then_some(DeviceNumber { major: 1, minor: 3 });
            // mkdir takes no set-user-id bit.
            let permissions = if kind == FileType::Directory { permissions & 0o1777 } else { permissions };
            let new = NewInode { kind, permissions, device };
            fs.create(&context(), dir, name.as_bytes(), &new).unwrap();
        }
    }
    for permissions in MODES {
        let inode = fs.create_unnamed(&context(), dir, permissions).unwrap();
        fs.link(&context(), inode, dir, format!("unnamed-{permissions:o}").as_bytes()).unwrap();
        fs.release_inode(&context(), inode, true).unwrap();
    }
}

/// Creates the same inodes through the kernel.
fn make_kernels(dir: &Path) {
    use rustix::fs::{AtFlags, CWD, mkdirat, mknodat};
    let mode = |permissions: u16| Mode::from_raw_mode(permissions.into());
    for (number, kind) in KINDS.into_iter().enumerate() {
        for permissions in MODES {
            let path = dir.join(format!("{number}-{permissions:o}"));
            let node =
                |kind| mknodat(CWD, &path, kind, mode(permissions), rustix::fs::makedev(1, 3)).unwrap();
            match kind {
                FileType::Directory => mkdirat(CWD, &path, mode(permissions)).unwrap(),
                FileType::Symlink => std::os::unix::fs::symlink("target", &path).unwrap(),
                FileType::Regular => node(rustix::fs::FileType::RegularFile),
                FileType::Fifo => node(rustix::fs::FileType::Fifo),
                FileType::Socket => node(rustix::fs::FileType::Socket),
                FileType::CharDevice => node(rustix::fs::FileType::CharacterDevice),
                FileType::BlockDevice => node(rustix::fs::FileType::BlockDevice),
            }
        }
    }
    for permissions in MODES {
        let file = rustix::fs::open(dir, OFlags::TMPFILE | OFlags::RDWR, mode(permissions)).unwrap();
        let path = dir.join(format!("unnamed-{permissions:o}"));
        rustix::fs::linkat(&file, "", CWD, path, AtFlags::EMPTY_PATH).unwrap();
    }
}

/// New inodes inherited nothing from their directory's default list. The test creates each kind of
/// inode in directories with short and long default lists, on images with two inode sizes. Modes
/// and lists must be those that the kernel gives.
#[test]
fn default_lists_are_inherited_as_by_linux() {
    if !require(&["root", "e2fsck"]) {
        return;
    }
    // The umask of this process must not affect the modes of new inodes.
    rustix::process::umask(Mode::empty());
    let none = u32::MAX;
    let lists = [
        ("plain", list(&[(1, 7, none), (4, 5, none), (32, 1, none)])),
        ("named", list_of(1, [7, 5, 7, 5])),
        ("masked", list_of(1, [6, 4, 2, 0])),
        ("mask-only", list(&[(1, 7, none), (4, 5, none), (16, 5, none), (32, 1, none)])),
        ("block", list_of(30, [7, 5, 6, 4])),
        ("inode", list_of(300, [7, 5, 6, 4])),
    ];
    let scratch = tempfile::tempdir().unwrap();
    for (features, size) in [("", 256), ("", 128), ("ea_inode", 256), ("ea_inode", 128), ("inline_data", 256)]
    {
        let options = ext4(1024).features(features).inode_size(size).inodes(4096);
        let base = Arc::new(formatted(&options, 32 << 20));
        let fs = open_on(&base, OpenOptions::default());
        let mut dirs = Vec::new();
        for (name, value) in &lists {
            let dir = directory(&fs, ROOT, name);
            if fs.set_xattr(&context(), dir, DEFAULT.as_bytes(), value, XattrMode::Set).is_ok() {
                dirs.push(*name);
            }
        }
        assert_eq!(dirs.len(), if features == "ea_inode" { 6 } else { 5 }, "{features}");
        let changes = SetAttributes { permissions: Some(0o2755), ..SetAttributes::default() };
        let named = fs.lookup(ROOT, b"named").unwrap();
        fs.set_attributes(&context(), named, &changes).unwrap();
        fs.close(&context()).unwrap();
        let image = saved(&base, scratch.path());
        {
            let mount = LoopMount::new(&image, "").unwrap();
            dirs.iter().for_each(|dir| make_kernels(&mount.path().join(dir)));
        }
        let kernels = Arc::new(MemoryDevice::load(&image).unwrap());
        let ours = Arc::new(base.duplicate());
        let fs = open_on(&ours, OpenOptions::default());
        dirs.iter().for_each(|dir| make_ours(&fs, fs.lookup(ROOT, dir.as_bytes()).unwrap()));
        let theirs = open_on(&kernels, OpenOptions::default());
        for dir in &dirs {
            let (ours, theirs) = (seen(&fs, dir), seen(&theirs, dir));
            assert_eq!(ours.len(), theirs.len());
            for (ours, theirs) in ours.iter().zip(&theirs) {
                assert_eq!(ours, theirs, "{features} {size} {dir}");
            }
        }
        // Deleting an inode must free its lists: the final check would find what is left of them.
        for dir in &dirs {
            let parent = fs.lookup(ROOT, dir.as_bytes()).unwrap();
            for (name, ..) in seen(&fs, dir) {
                let inode = fs.lookup(parent, name.as_bytes()).unwrap();
                match fs.attributes(inode).unwrap().kind {
                    FileType::Directory => fs.rmdir(&context(), parent, name.as_bytes()).unwrap(),
                    _ => fs.unlink(&context(), parent, name.as_bytes()).unwrap(),
                }
            }
        }
        judge(fs, &ours);
    }
}

/// Values for lists: complete lists, including some that the mode alone can express, an empty list,
/// and invalid values.
fn values_for_lists() -> Vec<Vec<u8>> {
    let none = u32::MAX;
    let (owner, group, others, mask) = ((1, 6, none), (4, 4, none), (32, 1, none), (16, 2, none));
    let (user, member) = ((2, 6, 1000), (8, 6, 10));
    let mut values: Vec<Vec<u8>> = [
        &[][..],
        &[owner, group, others],
        &[(1, 6, 5), (4, 4, 6), (32, 1, 7)],
        &[owner, group, mask, others],
        &[owner, user, group, mask, others],
        &[owner, user, group, others],
        &[owner, (2, 4, 1001), user, user, group, member, member, mask, others],
        &[owner, group, (8, 4, 11), member, mask, others],
        &[owner, group, member, others],
        &[others, owner, group],
        &[group, owner, others],
        &[owner, user, group, others, mask],
        &[owner, group, user, mask, others],
        &[owner, member, group, mask, others],
        &[mask, owner, group, others],
        &[group, others],
        &[owner, others],
        &[owner, group],
        &[owner, owner, group, others],
        &[owner, group, group, others],
        &[owner, group, mask, mask, others],
        &[owner, group, others, others],
        &[(1, 8, none), group, others],
        &[owner, (2, 15, 1000), group, mask, others],
        &[(0, 6, none), owner, group, others],
        &[owner, group, others, (64, 6, none)],
        &[owner, (2, 6, none), group, mask, others],
        &[owner, group, (8, 6, none), mask, others],
    ]
    .into_iter()
    .map(list)
    .collect();
    let whole = list(&[owner, group, others]);
    values.extend([whole[..0].to_vec(), whole[..3].to_vec(), whole[..whole.len() - 1].to_vec()]);
    let other_version = [&[1, 0, 0, 0], &whole[4..]].concat();
    values.extend([other_version[..4].to_vec(), other_version[..9].to_vec(), other_version]);
    values
}

/// The result of a call on an inode: 0 or its errno, the permissions, both lists, and whether the
/// change time changed.
type Left = (i32, u16, [Option<Vec<u8>>; 2], bool);

/// Sets an attribute through the kernel; `None` removes it.
fn set_by_kernel(path: &Path, name: &str, value: Option<&[u8]>) -> Left {
    use std::os::unix::fs::MetadataExt;
    let before = path.symlink_metadata().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(5));
    let answer = match value {
        Some(value) => lsetxattr(path, name, value, XattrFlags::empty()),
        None => rustix::fs::lremovexattr(path, name),
    };
    let now = path.symlink_metadata().unwrap();
    let read = |name| {
        let mut value = vec![0; 65_536];
        let len = rustix::fs::lgetxattr(path, name, &mut value[..]).ok()?;
        Some(value[..len].to_vec())
    };
    let is_changed = (before.ctime(), before.ctime_nsec()) != (now.ctime(), now.ctime_nsec());
    let permissions = u16::try_from(now.mode() & 0o7777).unwrap();
    (
        answer.map_or_else(|error| error.raw_os_error(), |()| 0),
        permissions,
        [ACCESS, DEFAULT].map(read),
        is_changed,
    )
}

/// Does the same through our engine, at a later time than the last change.
fn set_by_us(fs: &FileSystem, inode: InodeNr, name: &str, value: Option<&[u8]>) -> Left {
    let before = fs.attributes(inode).unwrap().changed;
    let mut later = context();
    later.now.seconds = before.seconds + 1;
    let answer = match value {
        Some(value) => fs.set_xattr(&later, inode, name.as_bytes(), value, XattrMode::Set),
        None => fs.remove_xattr(&later, inode, name.as_bytes()),
    };
    let now = fs.attributes(inode).unwrap();
    let read = |name: &str| fs.xattr(inode, name.as_bytes()).ok();
    let answer = answer.map_or_else(|error| error.errno(), |()| 0);
    (answer, now.permissions, [ACCESS, DEFAULT].map(read), now.changed != before)
}

/// Access lists that the mode alone can express were stored, although Linux only sets the mode.
/// Lists that Linux refuses were stored, too.
#[test]
fn lists_are_set_and_refused_as_by_linux() {
    if !require(&["root", "e2fsck"]) {
        return;
    }
    let full = list_of(2, [6, 4, 6, 1]);
    let names = ["file", "dir", "link"];
    let permissions = SetAttributes { permissions: Some(0o6750), ..SetAttributes::default() };
    let (device, fs) = fresh(&ext4(1024), 16 << 20);
    let (file, dir) = (file(&fs, ROOT, names[0]), directory(&fs, ROOT, names[1]));
    let link = fs.symlink(&context(), ROOT, names[2].as_bytes(), b"target").unwrap();
    [file, dir].into_iter().for_each(|inode| fs.set_attributes(&context(), inode, &permissions).unwrap());
    fs.sync(&context()).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let mount = LoopMount::new(&saved(&device, scratch.path()), "").unwrap();
    let both = |name: &str, inode: InodeNr, attribute: &str, value: Option<&[u8]>| {
        let kernels = set_by_kernel(&mount.path().join(name), attribute, value);
        let ours = set_by_us(&fs, inode, attribute, value);
        assert_eq!(ours, kernels, "{attribute} of {name}: {value:?}");
    };
    for (name, inode) in names.into_iter().zip([file, dir, link]) {
        for attribute in [ACCESS, DEFAULT] {
            for value in values_for_lists() {
                // Sets the value on an inode without a list, sets the full list twice, replaces it
                // by the value, and removes the list twice.
                both(name, inode, attribute, Some(&value));
                both(name, inode, attribute, Some(&full));
                both(name, inode, attribute, Some(&full));
                both(name, inode, attribute, Some(&value));
                both(name, inode, attribute, None);
                both(name, inode, attribute, None);
            }
        }
    }
    judge(fs, &device);
}

/// A creation that fails for lack of space must free the space of the lists that the new inode
/// inherited.
#[test]
fn a_name_that_finds_no_room_leaves_nothing_of_what_it_inherited() {
    for (features, users) in [("", 30), ("ea_inode", 300)] {
        let (device, fs) = fresh(&full().features(features).inodes(4096), 8 << 20);
        let dir = directory(&fs, ROOT, "d");
        fs.set_xattr(&context(), dir, DEFAULT.as_bytes(), &list_of(users, [7, 5, 6, 4]), XattrMode::Set)
            .unwrap();
        let filler = file(&fs, ROOT, FILE);
        let mut at = 0;
        while let Ok(done) = fs.write_some(&context(), filler, at, &[1; 65_536]) {
            at += u64::try_from(done).unwrap();
        }
        fs.sync(&context()).unwrap();
        let (mut made, mut refused) = (0, 0);
        for number in 0..400 {
            // Each time a little more space becomes free. Often it is enough for only a part of
            // what a new name needs.
            let size = fs.attributes(filler).unwrap().size;
            fs.truncate(&context(), filler, size - 1024).unwrap();
            fs.commit(&context()).unwrap();
            let kind = if number % 2 == 0 { FileType::Directory } else { FileType::Regular };
            let new = NewInode { kind, permissions: 0o777, device: None };
            match fs.create(&context(), dir, format!("a-long-name-of-number-{number}").as_bytes(), &new) {
                Ok(_) => made += 1,
                Err(Error::NoSpace) => refused += 1,
                Err(error) => panic!("{error}"),
            }
            assert!(!fs.has_failed());
        }
        assert!(made > 20 && refused > 20, "{made} made, {refused} refused");
        judge(fs, &device);
    }
}

/// chmod was refused if the access list was in an inode of its own. Linux changes the mode and the
/// list.
#[test]
fn a_mode_changes_with_a_list_in_an_inode_of_its_own() {
    if !require(&["root", "e2fsck"]) {
        return;
    }
    let (device, fs) = fresh(&ext4(1024).features("ea_inode"), 32 << 20);
    let inode = file(&fs, ROOT, FILE);
    fs.set_xattr(&context(), inode, ACCESS.as_bytes(), &list_of(300, [6, 6, 6, 0]), XattrMode::Set).unwrap();
    assert_eq!(fs.attributes(inode).unwrap().permissions, 0o660);
    fs.close(&context()).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let image = saved(&device, scratch.path());
    let change = |permissions| SetAttributes { permissions: Some(permissions), ..SetAttributes::default() };
    for permissions in [0o640, 0o4777, 0o4777, 0o600] {
        let kernels = {
            let mount = LoopMount::new(&image, "").unwrap();
            let path = mount.path().join("file");
            rustix::fs::chmod(&path, Mode::from_raw_mode(permissions.into())).unwrap();
            let mut value = vec![0; 65_536];
            let length = getxattr(&path, ACCESS, &mut value[..]).unwrap();
            value.truncate(length);
            value
        };
        let fs = open_on(&device, OpenOptions::default());
        fs.set_attributes(&context(), inode, &change(permissions)).unwrap();
        assert_eq!(fs.xattr(inode, ACCESS.as_bytes()).unwrap(), kernels);
        assert_eq!(fs.attributes(inode).unwrap().permissions, permissions);
        judge(fs, &device);
    }
}

/// Observed on Linux 6.18: with `ea_inode`, the values in a block take at most 7/8 of it. A value
/// that would exceed this share goes into an inode of its own, even if the block has room. This
/// holds for inherited lists, too. Setting the same value again keeps that inode, and updates the
/// owner's change time. The engine once filled the whole block, and wrote a new inode for the same
/// value.
#[test]
fn a_value_gets_an_inode_above_a_share_of_the_block_and_keeps_it() {
    let later = |seconds| OpContext::root_at(Timestamp::from_seconds(seconds));
    for block in [1024_u32, 2048, 4096] {
        let (device, fs) = fresh(&ext4(block).features("ea_inode"), 32 << 20);
        let inode = file(&fs, ROOT, FILE);
        let inodes_of = |length: usize, byte, seconds| {
            let before = fs.statistics().inodes_free;
            let value = vec![byte; length];
            fs.set_xattr(&later(seconds), inode, b"user.a", &value, XattrMode::Set).unwrap();
            assert_eq!(fs.xattr(inode, b"user.a").unwrap(), value);
            assert_eq!(fs.attributes(inode).unwrap().changed.seconds, seconds);
            before.wrapping_sub(fs.statistics().inodes_free)
        };
        let most = usize::try_from(block).unwrap() / 8 * 7;
        assert_eq!(inodes_of(most, b'a', 1), 0, "{block}");
        assert_eq!(inodes_of(most + 1, b'a', 2), 1, "{block}");
        assert_eq!(inodes_of(most + 1, b'a', 3), 0, "{block}: the same again");
        assert_eq!(inodes_of(most + 1, b'b', 4), 0, "{block}: another in its stead");
        let again = fs.set_xattr(&later(5), inode, b"user.a", &vec![b'b'; most + 1], XattrMode::Create);
        assert_eq!(again.unwrap_err().errno(), 17);
        fs.remove_xattr(&later(6), inode, b"user.a").unwrap();
        judge(fs, &device);
    }
    for (second, inodes) in [(1584, 0), (1585, 1)] {
        let (device, fs) = fresh(&ext4(4096).inode_size(128).features("ea_inode"), 32 << 20);
        let inode = file(&fs, ROOT, FILE);
        let before = fs.statistics().inodes_free;
        for (name, length) in [(b"user.a", 2000), (b"user.b", second)] {
            fs.set_xattr(&context(), inode, name, &vec![b'c'; length], XattrMode::Set).unwrap();
        }
        assert_eq!(before - fs.statistics().inodes_free, inodes, "2000 and {second} bytes");
        judge(fs, &device);
    }
    for (users, inodes) in [(109, 1), (110, 2)] {
        let (device, fs) = fresh(&ext4(1024).features("ea_inode"), 32 << 20);
        let dir = directory(&fs, ROOT, "dir");
        fs.set_xattr(&context(), dir, DEFAULT.as_bytes(), &list_of(users, [7, 5, 7, 5]), XattrMode::Set)
            .unwrap();
        let before = fs.statistics().inodes_free;
        file(&fs, dir, FILE);
        assert_eq!(before - fs.statistics().inodes_free, inodes, "{users} users");
        judge(fs, &device);
    }
}

/// A short symbolic link that Linux made, with an attribute value in an inode of its own, was taken
/// for a link whose target lies in a block.
#[test]
fn a_short_link_with_a_value_in_an_inode_is_read() {
    if !require(&["root", "mke2fs"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("image");
    for features in ["ea_inode", "ea_inode,^extent,^64bit", "ea_inode,inline_data", "ea_inode,bigalloc"] {
        support::make(&["-O", features], "32M", &image);
        {
            let mount = LoopMount::new(&image, "").unwrap();
            for (name, length) in [("short", 5), ("most", 59), ("least", 60), ("long", 200)] {
                let path = mount.path().join(name);
                std::os::unix::fs::symlink("x".repeat(length), &path).unwrap();
                lsetxattr(&path, "trusted.big", &[b'v'; 9000], XattrFlags::empty()).unwrap();
            }
        }
        let device = Arc::new(MemoryDevice::load(&image).unwrap());
        let fs = open_on(&device, OpenOptions::default());
        let reader = blockyard_inspect::reader::Reader::open(Arc::<MemoryDevice>::clone(&device)).unwrap();
        for (name, length) in [("short", 5), ("most", 59), ("least", 60), ("long", 200)] {
            let inode = fs.lookup(ROOT, name.as_bytes()).unwrap();
            assert_eq!(fs.read_link(inode).unwrap(), vec![b'x'; length], "{features} {name}");
            assert_eq!(fs.xattr(inode, b"trusted.big").unwrap(), [b'v'; 9000]);
            let target = reader.symlink_target(&reader.inode(inode).unwrap()).unwrap();
            assert_eq!(target, vec![b'x'; length], "{features} {name}");
        }
        fs.unlink(&context(), ROOT, b"short").unwrap();
        let most = fs.lookup(ROOT, b"most").unwrap();
        fs.remove_xattr(&context(), most, b"trusted.big").unwrap();
        for name in [b"least".as_slice(), b"long"] {
            fs.unlink(&context(), ROOT, name).unwrap();
        }
        judge(fs, &device);
    }
}

/// Commands of debugfs that damage a value inode, and whether Linux 6.18 still returns the value.
const DAMAGES: [(&[&str], bool); 7] = [
    (&[], true),
    (&["set_inode_field <N> flags 0x80000"], false),
    (&["set_inode_field <N> size 8999"], false),
    (&["set_inode_field <N> size 10000"], false),
    (&["set_inode_field <N> atime 0x12345678"], false),
    // In place of the hash, a value inode from before there were hashes names its owner.
    (
        &[
            "set_inode_field <N> atime 0x12345678",
            "set_inode_field <N> mtime OWNER",
            "set_inode_field <N> generation G",
        ],
        true,
    ),
    (
        &[
            "set_inode_field <N> atime 0x12345678",
            "set_inode_field <N> mtime OWNER",
            "set_inode_field <N> generation 1",
        ],
        false,
    ),
];

/// If an attribute's entry named an ordinary file as its value inode, that file's content was
/// returned as the value. If the value inode was damaged, the damaged value was returned.
#[test]
fn a_value_comes_from_an_inode_of_values_only_and_is_the_one_that_was_set() {
    if !require(&["root", "debugfs", "e2fsck"]) {
        return;
    }
    let (base, fs) = fresh(&ext4(1024).features("ea_inode,^metadata_csum"), 32 << 20);
    let owner = file(&fs, ROOT, FILE);
    let other = file(&fs, ROOT, "other");
    fs.write(&context(), other, 0, &[b's'; 9000]).unwrap();
    fs.set_xattr(&context(), owner, b"user.large", &[b'v'; 9000], XattrMode::Set).unwrap();
    let generation = fs.attributes(owner).unwrap().generation;
    fs.close(&context()).unwrap();
    let entry = place_of(&base, b"large\0");
    let mut word = [0; 4];
    base.read_at(entry - 12, &mut word).unwrap();
    let value = u32::from_le_bytes(word);
    let scratch = tempfile::tempdir().unwrap();
    for (commands, is_given) in DAMAGES {
        let commands: Vec<String> = commands
            .iter()
            .map(|command| command.replace("<N>", &format!("<{value}>")))
            .map(|command| command.replace("OWNER", &owner.to_string()).replace('G', &generation.to_string()))
            .collect();
        assert_value(&debugged(&base, scratch.path(), &commands), is_given, &format!("{commands:?}"));
    }
    for (name, at, bytes) in [
        ("another file", entry - 12, other.raw().to_le_bytes()),
        ("the file itself", entry - 12, owner.raw().to_le_bytes()),
        ("the journal", entry - 12, 8_u32.to_le_bytes()),
        ("behind the last", entry - 12, 0x00ff_ffff_u32.to_le_bytes()),
        ("another hash of the entry", entry - 4, 1_u32.to_le_bytes()),
    ] {
        let device = base.duplicate();
        device.write_at(at, &bytes).unwrap();
        assert_value(&device, false, name);
    }
}

/// The offset on the device where some bytes first occur.
fn place_of(device: &MemoryDevice, bytes: &[u8]) -> u64 {
    let mut all = vec![0; 32 << 20];
    device.read_at(0, &mut all).unwrap();
    u64::try_from(all.windows(bytes.len()).position(|found| found == bytes).unwrap()).unwrap()
}

/// Asserts that the kernel, the reader and the engine all return the value of `user.large` if
/// `is_given`, and that all refuse it otherwise.
fn assert_value(device: &MemoryDevice, is_given: bool, what: &str) {
    let scratch = tempfile::tempdir().unwrap();
    let image = saved(device, scratch.path());
    {
        let mount = LoopMount::new(&image, "ro").unwrap();
        let mut value = vec![0; 65_536];
        let found = getxattr(mount.path().join("file"), "user.large", &mut value[..]);
        assert_eq!(found.is_ok(), is_given, "{what}: the kernel says {found:?}");
    }
    let reader = blockyard_inspect::reader::Reader::open(Arc::new(device.duplicate())).unwrap();
    let inode = reader.resolve(b"/file", blockyard_inspect::path::LastLink::Keep).unwrap();
    let read = reader.xattrs(&inode);
    let value =
        read.as_ref().map(|all| all.iter().find(|one| one.name == b"user.large").unwrap().value.clone());
    assert_eq!(value.is_ok_and(|value| value == [b'v'; 9000]), is_given, "{what}: the reader says {read:?}");
    let fs = open_on(&Arc::new(device.duplicate()), OpenOptions::default());
    let inode = fs.lookup(ROOT, FILE);
    let found = inode.and_then(|inode| fs.xattr(inode, b"user.large"));
    match found {
        Ok(value) => assert!(is_given && value == [b'v'; 9000], "{what}: {} bytes", value.len()),
        Err(Error::Corrupt(found)) => {
            assert!(!is_given, "{what}: {found}");
            let kind = found.kind;
            assert!(
                matches!(kind, CorruptionKind::XattrValueInode | CorruptionKind::InodeNumber),
                "{what}: {kind:?}"
            );
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

/// If the entry of `system.data` named another inode as the place of the rest of inline data, the
/// engine read only the part in `i_block`, and a write could extend that part. Linux refuses such
/// an inode.
#[test]
fn the_rest_of_inline_content_lies_in_no_other_inode() {
    if !require(&["root", "mke2fs"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("image");
    support::make(&["-b", "1024", "-I", "256", "-O", "inline_data,ea_inode,^metadata_csum"], "32M", &image);
    let names = ["small", "dir"];
    {
        let mount = LoopMount::new(&image, "").unwrap();
        let [small, dir] = names.map(|name| mount.path().join(name));
        std::fs::write(&small, [b'A'; 120]).unwrap();
        std::fs::create_dir(&dir).unwrap();
        (0..3).for_each(|n| std::fs::write(dir.join(format!("a-name-that-is-long-{n}")), "").unwrap());
        let path = mount.path().join("large");
        std::fs::write(&path, "").unwrap();
        lsetxattr(&path, "user.large", &[b'v'; 9000], XattrFlags::empty()).unwrap();
    }
    let device = MemoryDevice::load(&image).unwrap();
    let mut word = [0; 4];
    device.read_at(place_of(&device, b"large\0\0\0") - 12, &mut word).unwrap();
    // Finds the entries of `system.data`, which all lie in inodes.
    let mut all = vec![0; 32 << 20];
    device.read_at(0, &mut all).unwrap();
    let entries = all.windows(8).enumerate().filter(|(_, bytes)| bytes.starts_with(&[4, 7]));
    let entries: Vec<usize> =
        entries.map(|(at, _)| at).filter(|at| all[at + 16..].starts_with(b"data")).collect();
    assert!(entries.len() >= 2, "each of the two has an entry: {entries:?}");
    for entry in entries {
        let at = u64::try_from(entry).unwrap();
        device.write_at(at + 2, &[&[0, 0], &word[..], &9000_u32.to_le_bytes()].concat()).unwrap();
    }
    {
        let mount = LoopMount::new(&saved(&device, scratch.path()), "ro").unwrap();
        for name in names {
            let refused = rustix::fs::stat(mount.path().join(name)).unwrap_err();
            assert_eq!(refused.raw_os_error(), 117, "the kernel and {name}");
        }
    }
    let device = Arc::new(device);
    let fs = open_on(&device, OpenOptions::default());
    let reader = blockyard_inspect::reader::Reader::open(Arc::<MemoryDevice>::clone(&device)).unwrap();
    for name in names {
        let inode = fs.lookup(ROOT, name.as_bytes()).unwrap();
        let Err(Error::Corrupt(found)) = fs.attributes(inode) else { panic!("{name} is there") };
        assert_eq!(found.kind, CorruptionKind::InlineDataElsewhere);
        assert!(fs.write(&context(), inode, 0, b"x").is_err());
        let found = reader.inode(inode).unwrap();
        let read = match name {
            "dir" => {
                reader.entries(&found).and_then(|mut entries| entries.try_for_each(|entry| entry.map(drop)))
            }
            _ => reader.read(&found, 0, &mut [0; 120]).map(drop),
        };
        assert!(read.unwrap_err().to_string().contains("in another inode"), "{name}");
    }
}
