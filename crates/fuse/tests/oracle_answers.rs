//! Answers to programs in corner cases. Our mount and the kernel's ext4 get the same questions, and
//! must give the same answers.

#![allow(clippy::unwrap_used, clippy::panic)]

mod mounted;

use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use blockyard_testkit::{LoopMount, require};
use mounted::{Mounted, place};
use rustix::fs::{AtFlags, IFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

/// A user who is not root.
const USER: u32 = 1001;

/// Asks both mounts, and asserts that the answers are equal.
fn compare(ask: impl Fn(&Path) -> Vec<String>) {
    compare_on(&["-t", "ext4"], ask);
}

/// As [`compare`], on images that mke2fs makes with these arguments.
fn compare_on(arguments: &[&str], ask: impl Fn(&Path) -> Vec<String>) {
    if !require(&["root", "mke2fs", "mount"]) {
        return;
    }
    let (theirs, ours) = (place(arguments, "64M"), place(arguments, "64M"));
    let kernel = LoopMount::new(&theirs.image, "").unwrap();
    let mounted = Mounted::new(&ours.image, &ours.directory, "allow_other");
    let (wanted, got) = (ask(kernel.path()), ask(&ours.directory));
    mounted.unmount();
    assert!(!wanted.is_empty());
    assert_eq!(got, wanted);
}

fn told<T>(what: &str, done: Result<T, Errno>) -> String {
    format!("{what}: {:?}", done.err())
}

#[test]
fn names_of_attributes() {
    compare(|root| {
        let file = root.join("file");
        std::fs::write(&file, "text").unwrap();
        let long = format!("user.{}", "n".repeat(250));
        let names = [
            "user.a",
            "user.",
            "trusted.",
            "security.",
            "system.",
            "system.x",
            "system.data",
            "system.richacl",
            "x",
            "system.posix_acl_accessx",
            "system.posix_acl_access",
            "system.posix_acl_default",
            "btrfs.x",
            &long,
        ];
        let mut answers = Vec::new();
        for name in names {
            answers.push(told(name, rustix::fs::setxattr(&file, name, b"v", XattrFlags::empty())));
            answers.push(told(name, rustix::fs::getxattr(&file, name, &mut [0; 16])));
            answers.push(told(name, rustix::fs::removexattr(&file, name)));
        }
        answers
    });
}

/// An attribute that does not fit into the inode takes a block. In an earlier version, the file's
/// block count did not include this block.
#[test]
fn blocks_of_attributes_are_counted() {
    compare_on(&["-t", "ext4", "-b", "4096"], |root| {
        let file = root.join("file");
        std::fs::write(&file, "text").unwrap();
        File::open(&file).unwrap().sync_all().unwrap();
        let blocks = || std::fs::metadata(&file).unwrap().blocks();
        // The kernel has now cached the block count of the file without the attribute.
        assert!(blocks() <= 8);
        rustix::fs::setxattr(&file, "user.v", &[b'v'; 300], XattrFlags::empty()).unwrap();
        let with = blocks();
        rustix::fs::removexattr(&file, "user.v").unwrap();
        vec![format!("{with}"), format!("{}", blocks())]
    });
}

#[test]
fn flags_of_files_and_directories() {
    compare(|root| {
        let (file, directory) = (root.join("file"), root.join("directory"));
        std::fs::write(&file, "text").unwrap();
        std::fs::create_dir(&directory).unwrap();
        let mut answers = Vec::new();
        // All flags except two: 14 for journaled file data, which is not supported here; and 22 for
        // blocks beyond the end of a file, which Linux sets itself.
        for bit in (0..32).filter(|bit| ![14, 22].contains(bit)) {
            for path in [&file, &directory] {
                let opened = File::open(path).unwrap();
                let before = rustix::fs::ioctl_getflags(&opened).unwrap();
                let asked = before | IFlags::from_bits_retain(1 << bit);
                answers.push(told(&format!("{bit}"), rustix::fs::ioctl_setflags(&opened, asked)));
                answers.push(format!("{:?}", rustix::fs::ioctl_getflags(&opened).unwrap()));
                rustix::fs::ioctl_setflags(&opened, before).unwrap();
            }
        }
        answers
    });
}

/// Sets the flags of two files to NODUMP alone, as a program does that has not read the flags
/// before. This also asks to clear the extents flag. Linux refuses to change the mapping of the
/// large file, but sets NODUMP. A file with a few blocks is not tried, because Linux's answer for
/// that depends on where the blocks happen to be.
#[test]
fn flags_without_that_for_extents() {
    compare(|root| {
        let mut answers = Vec::new();
        for (name, len) in [("empty", 0), ("large", 200_000)] {
            std::fs::write(root.join(name), vec![1; len]).unwrap();
            let opened = File::open(root.join(name)).unwrap();
            answers.push(told(name, rustix::fs::ioctl_setflags(&opened, IFlags::NODUMP)));
            let flags = rustix::fs::ioctl_getflags(&opened).unwrap();
            answers.push(format!("{:?}", flags.contains(IFlags::NODUMP)));
        }
        answers
    });
}

#[test]
fn append_only_and_immutable_files() {
    compare(|root| {
        let file = root.join("file");
        std::fs::write(&file, "text").unwrap();
        let opened = File::open(&file).unwrap();
        let before = rustix::fs::ioctl_getflags(&opened).unwrap();
        let mut answers = Vec::new();
        for flag in [IFlags::APPEND, IFlags::IMMUTABLE] {
            rustix::fs::ioctl_setflags(&opened, before | flag).unwrap();
            let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
            let old = Timespec { tv_sec: 1, tv_nsec: 1 };
            for time in [now, old] {
                let times = Timestamps { last_access: time, last_modification: time };
                let done = rustix::fs::utimensat(rustix::fs::CWD, &file, &times, AtFlags::empty());
                answers.push(told("utimes", done));
            }
            answers.push(told("chmod", rustix::fs::chmod(&file, 0o600.into())));
            answers.push(told("chown", rustix::fs::chown(&file, Some(rustix::fs::Uid::ROOT), None)));
            let renamed = std::fs::rename(&file, root.join("other"));
            answers.push(format!("rename {:?}", renamed.err().map(|error| error.raw_os_error())));
            let truncated = OpenOptions::new().write(true).truncate(true).open(&file);
            answers.push(format!("open {:?}", truncated.err().map(|error| error.raw_os_error())));
            rustix::fs::ioctl_setflags(&opened, before).unwrap();
        }
        answers
    });
}

/// Runs a program as a user who is not root, and says how it ended.
fn as_user(program: &str, arguments: &[&str], file: &Path) -> String {
    let done = Command::new(program).args(arguments).arg(file).uid(USER).gid(USER).output().unwrap();
    format!("{program} {arguments:?}: {}", done.status)
}

#[test]
fn set_id_bits_go_with_whoever_changes_a_file() {
    compare(|root| {
        let mut answers = Vec::new();
        let ways: [(&str, &[&str]); 6] = [
            ("fallocate", &["-l", "70000"]),
            ("fallocate", &["-n", "-l", "100000"]),
            ("fallocate", &["-p", "-o", "0", "-l", "4096"]),
            ("fallocate", &["-z", "-o", "0", "-l", "4096"]),
            ("truncate", &["-s", "3"]),
            ("tee", &["-a"]),
        ];
        std::fs::set_permissions(root, Permissions::from_mode(0o755)).unwrap();
        for owner in [USER, 0] {
            for mode in [0o6777, 0o6666, 0o2766, 0o4757, 0o2777, 0o1777] {
                for (program, arguments) in ways {
                    let file = root.join("file");
                    std::fs::write(&file, [7; 10_000]).unwrap();
                    std::os::unix::fs::chown(&file, Some(owner), Some(USER)).unwrap();
                    std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
                    answers.push(format!("{mode:o} {}", as_user(program, arguments, &file)));
                    answers.push(format!("{:o}", std::fs::metadata(&file).unwrap().mode()));
                    std::fs::remove_file(&file).unwrap();
                }
            }
        }
        answers
    });
}

/// On a file without the group's execute bit, the set-group-ID bit stays if the user who changes
/// the file is in its group, perhaps through a supplementary group. An earlier version kept the bit
/// for every user.
#[test]
fn a_set_group_id_bit_without_group_execution() {
    const GROUP: u32 = 5001;
    if !require(&["setpriv", "fallocate"]) {
        return;
    }
    let ways = [
        "echo text >> FILE",
        "dd if=/dev/zero of=FILE bs=4096 count=1 conv=notrunc oflag=direct",
        "truncate -s 3 FILE",
        "echo text > FILE",
        "fallocate -l 70000 FILE",
        "fallocate -p -o 0 -l 4096 FILE",
        "chgrp 5000 FILE",
        "chown 1001 FILE",
    ];
    compare(|root| {
        let mut answers = Vec::new();
        let (file, user) = (root.join("file"), USER.to_string());
        std::fs::set_permissions(root, Permissions::from_mode(0o755)).unwrap();
        for (group, groups) in [("1001", "5000"), ("1001", "5000,5001"), ("5001", "5000")] {
            for mode in [0o2745, 0o2644, 0o6644, 0o2755, 0o6755] {
                for way in ways {
                    std::fs::write(&file, [7; 10_000]).unwrap();
                    std::os::unix::fs::chown(&file, Some(USER), Some(GROUP)).unwrap();
                    std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
                    let mut command = Command::new("setpriv");
                    command.args(["--reuid", &user, "--regid", group, "--groups", groups, "sh", "-c"]);
                    let done = command.arg(way.replace("FILE", file.to_str().unwrap())).output().unwrap();
                    let found = std::fs::metadata(&file).unwrap().mode();
                    answers.push(format!("{group} {groups} {mode:o} {way}: {} {found:o}", done.status));
                    std::fs::remove_file(&file).unwrap();
                }
            }
        }
        let keeps = |answer: &&String| answer.ends_with("exit status: 0 102745");
        let [kept, all] = [answers.iter().filter(keeps).count(), answers.len()];
        assert!(kept > 0 && kept < all, "{answers:?}");
        answers
    });
}

/// The owner of a file and of a directory changes their access control lists. Their group is the
/// group of the owner's process, one of its supplementary groups, or neither.
#[test]
fn access_lists_and_the_set_group_id_bit() {
    const GROUP: u32 = 5001;
    if !require(&["setpriv", "setfacl"]) {
        return;
    }
    compare(|root| {
        let mut answers = Vec::new();
        let (file, directory) = (root.join("file"), root.join("directory"));
        std::fs::write(&file, "text").unwrap();
        std::fs::create_dir(&directory).unwrap();
        let user = USER.to_string();
        for (gid, groups) in [(USER, "5000"), (GROUP, "5000"), (USER, "5000,5001"), (0, "5001")] {
            for (path, mode, change) in [
                (&file, 0o6755, ["-m", "u:5:rwx"]),
                (&file, 0o2644, ["-m", "u:5:rwx"]),
                (&file, 0o2755, ["-m", "u::rwx"]),
                (&file, 0o2755, ["-x", "u:5"]),
                (&directory, 0o2755, ["-m", "u:5:rwx"]),
                (&directory, 0o2755, ["-m", "d:u:5:rwx"]),
            ] {
                std::os::unix::fs::chown(path, Some(USER), Some(GROUP)).unwrap();
                std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
                let gid = gid.to_string();
                let mut command = Command::new("setpriv");
                command.args(["--reuid", &user, "--regid", &gid, "--groups", groups, "setfacl"]);
                let done = command.args(change).arg(path).status().unwrap();
                let found = std::fs::metadata(path).unwrap().mode();
                answers.push(format!("{gid} {groups} {mode:o} {change:?}: {done} {found:o}"));
            }
        }
        answers
    });
}

#[test]
fn times_beyond_what_inodes_hold() {
    compare(|root| {
        let file = root.join("file");
        std::fs::write(&file, "text").unwrap();
        let mut answers = Vec::new();
        for seconds in
            [-1, -2, 0, 1 << 31, 1 << 33, -(1 << 31), -(1 << 31) - 1, (3 << 32) + (1 << 31) - 1, 1 << 35]
        {
            let time = Timespec { tv_sec: seconds, tv_nsec: 5 };
            let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
            let times = Timestamps { last_access: time, last_modification: omit };
            rustix::fs::utimensat(rustix::fs::CWD, &file, &times, AtFlags::empty()).unwrap();
            let found = std::fs::metadata(&file).unwrap();
            answers.push(format!("{seconds}: {} {}", found.atime(), found.atime_nsec()));
        }
        answers
    });
}

/// Inodes of 128 bytes store whole seconds. In an earlier version, a time set on such an inode was
/// shown with nanoseconds until the kernel forgot the inode.
#[test]
fn times_are_as_fine_as_inodes_hold() {
    for size in ["128", "256"] {
        compare_on(&["-t", "ext4", "-I", size], |root| {
            let file = root.join("file");
            std::fs::write(&file, "text").unwrap();
            let written = std::fs::metadata(&file).unwrap();
            let time = Timespec { tv_sec: 1_000_000, tv_nsec: 123_456_789 };
            let times = Timestamps { last_access: time, last_modification: time };
            rustix::fs::utimensat(rustix::fs::CWD, &file, &times, AtFlags::empty()).unwrap();
            let set = std::fs::metadata(&file).unwrap();
            let has_fraction = written.mtime_nsec() != 0 || written.ctime_nsec() != 0;
            vec![format!("{size}: {has_fraction} {} {}", set.atime_nsec(), set.mtime_nsec())]
        });
    }
}

/// A change of owner removes the attribute with the capabilities from a file, but not from a
/// directory.
#[test]
fn capabilities_go_with_the_owner() {
    const NAME: &str = "security.capability";
    // A `vfs_cap_data` of revision 2: the effective bit is set, and one capability is permitted.
    let mut capability = [0; 20];
    capability[..8].copy_from_slice(&[1, 0, 0, 2, 1, 0, 0, 0]);
    compare(|root| {
        let (file, directory) = (root.join("file"), root.join("directory"));
        std::fs::write(&file, "text").unwrap();
        std::fs::create_dir(&directory).unwrap();
        let mut answers = Vec::new();
        for path in [&file, &directory] {
            rustix::fs::setxattr(path, NAME, &capability, XattrFlags::empty()).unwrap();
            std::os::unix::fs::chown(path, Some(USER), None).unwrap();
            answers.push(told(NAME, rustix::fs::getxattr(path, NAME, &mut [0; 64])));
        }
        assert_ne!(answers[0], answers[1]);
        answers
    });
}

/// Compares the output of `fstrim` in several runs: the first one, a second directly after it, one
/// after a file was made and removed, runs with ranges and with a minimum length, and a run by a
/// user who is not root.
#[test]
fn free_blocks_told_to_the_device() {
    if !require(&["fstrim"]) {
        return;
    }
    compare(|root| {
        let trim = |arguments: &[&str], user: u32| {
            let output =
                Command::new("fstrim").arg("-v").args(arguments).arg(root).uid(user).output().unwrap();
            let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
            format!(
                "{arguments:?}: {:?} {}",
                output.status.code(),
                text.replace(root.to_str().unwrap(), "ROOT")
            )
        };
        let mut answers = vec![trim(&[], 0), trim(&[], 0)];
        std::fs::write(root.join("file"), vec![7; 5 << 20]).unwrap();
        File::open(root).unwrap().sync_all().unwrap();
        std::fs::remove_file(root.join("file")).unwrap();
        File::open(root).unwrap().sync_all().unwrap();
        std::fs::write(root.join("other"), vec![7; 100]).unwrap();
        rustix::fs::syncfs(File::open(root).unwrap()).unwrap();
        answers.push(trim(&[], 0));
        answers.push(trim(&["-o", "64M"], 0));
        answers.push(trim(&["-o", "65532K"], 0));
        answers.push(trim(&["-l", "1000"], 0));
        answers.push(trim(&["-m", "1G"], 0));
        answers.push(trim(&[], USER));
        answers
    });
}
