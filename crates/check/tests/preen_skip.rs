//! Tests of four things:
//!
//! - when `-p` checks an image although the image is marked clean, compared with `e2fsck -p`;
//! - the exit codes of repairs of orphans;
//! - what a check without findings writes;
//! - how the MMP block shows that another host uses a file system.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};

use blockyard_check::{
    InUse, Mmp, Plan, RepairOptions, is_clean_once_replayed, is_marked_clean, plan, refresh_totals,
};
use blockyard_device::{BlockDevice, FileDevice};
use blockyard_disk::Checksums;
use blockyard_disk::mmp::{RawMmp, SEQUENCE_FSCK};
use blockyard_disk::superblock::RawSuperblock;
use blockyard_testkit::{mke2fs, require, run};
use support::small::debugfs;
use zerocopy::{FromBytes, IntoBytes};

/// Damages the image at a path.
type Damage<'a> = &'a dyn Fn(&Path);

const NOW: u64 = 1_790_000_000;
const EXT4: &[&str] = &["-t", "ext4"];
const PLAIN: &[&str] = &["-t", "ext4", "-O", "^metadata_csum"];

/// An image with a small file and two files with holes.
fn made(folder: &Path, options: &[&str]) -> PathBuf {
    let tree = folder.join("tree");
    std::fs::create_dir_all(&tree).unwrap();
    std::fs::write(tree.join("small"), [1; 20_000]).unwrap();
    for name in ["holes", "more"] {
        let file = std::fs::File::create(tree.join(name)).unwrap();
        for at in 0..9 {
            std::os::unix::fs::FileExt::write_all_at(&file, &[2; 5000], at * 20_000).unwrap();
        }
    }
    let image = folder.join("image");
    mke2fs(&image, &[options, &["-b", "1024", "-d", tree.to_str().unwrap()]].concat(), "32M");
    image
}

fn superblock(image: &Path) -> RawSuperblock {
    let mut bytes = [0; RawSuperblock::SIZE];
    FileDevice::open_read_only(image).unwrap().read_at(1024, &mut bytes).unwrap();
    RawSuperblock::read_from_bytes(&bytes).unwrap()
}

fn change(image: &Path, change: impl FnOnce(&mut RawSuperblock)) {
    let mut sb = superblock(image);
    change(&mut sb);
    Checksums::of(&sb).seal_superblock(&mut sb);
    FileDevice::open(image).unwrap().write_at(1024, sb.as_bytes()).unwrap();
}

fn planned(device: &dyn BlockDevice) -> Plan<'_> {
    plan(device, &RepairOptions { now: NOW, ..RepairOptions::default() }).unwrap()
}

/// Exit code of `-p` without `-f`.
fn preened(image: &Path) -> u8 {
    let device = FileDevice::open_read_only(image).unwrap();
    if is_marked_clean(&device) || is_clean_once_replayed(&device, None) {
        return 0;
    }
    planned(&device).preened_ending().exit_code()
}

/// Exit code of e2fsck with an option on a copy of the image, and whether e2fsck checked the copy.
fn theirs(image: &Path, option: &str) -> (i32, bool) {
    let copy = image.with_extension("theirs");
    std::fs::copy(image, &copy).unwrap();
    let done = run("e2fsck", &[option, copy.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    (done.status.code().unwrap(), !said.contains(": clean,"))
}

type Change = fn(&mut RawSuperblock);

#[test]
fn an_image_is_checked_where_e2fsck_checks_it_although_it_is_marked_clean() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), EXT4);
    let before = std::fs::read(&image).unwrap();
    let changes: [(&str, Change); 16] = [
        ("as it is", |_| {}),
        ("often mounted", |sb| (sb.s_mnt_count, sb.s_max_mnt_count) = (7.into(), 5.into())),
        ("mounted once less", |sb| (sb.s_mnt_count, sb.s_max_mnt_count) = (4.into(), 5.into())),
        ("often mounted, without a limit", |sb| {
            (sb.s_mnt_count, sb.s_max_mnt_count) = (7.into(), 0xFFFF.into());
        }),
        ("not checked for long", |sb| {
            sb.s_checkinterval = 86_400.into();
            sb.set_check_time(1_000_000_000);
        }),
        ("checked in the future", |sb| {
            sb.s_checkinterval = 86_400.into();
            sb.set_check_time(4_000_000_000);
        }),
        ("checked lately", |sb| sb.s_checkinterval = u32::MAX.into()),
        ("mounted in the future", |sb| sb.set_mount_time(4_000_000_000)),
        ("more free blocks than blocks", |sb| sb.s_free_blocks_count_lo = 7_777_777.into()),
        ("a few more free blocks", |sb| sb.s_free_blocks_count_lo = 7777.into()),
        ("more free inodes than inodes", |sb| sb.s_free_inodes_count = 7_777_777.into()),
        ("no index of directories", |sb| sb.s_feature_compat &= !0x20),
        ("no attributes", |sb| sb.s_feature_compat &= !8),
        ("no large files", |sb| sb.s_feature_ro_compat &= !2),
        ("an impossible size of inodes", |sb| sb.s_want_extra_isize = 500.into()),
        ("a test file system", |sb| sb.s_flags |= 4),
    ];
    let mut wrong = Vec::new();
    for (what, how) in changes {
        std::fs::write(&image, &before).unwrap();
        change(&image, how);
        let (code, checks) = theirs(&image, "-p");
        let device = FileDevice::open_read_only(&image).unwrap();
        let ours = (i32::from(preened(&image)), !is_marked_clean(&device));
        if ours != (code, checks) {
            wrong.push((what, ours, (code, checks)));
        }
    }
    assert!(wrong.is_empty(), "ours and theirs: {wrong:?}");
}

#[test]
fn a_group_that_counts_too_much_is_checked() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for count in ["free_blocks_count", "free_inodes_count", "used_dirs_count"] {
        let image = made(folder.path(), PLAIN);
        assert!(is_marked_clean(&FileDevice::open_read_only(&image).unwrap()));
        debugfs(&image, &format!("set_block_group 1 {count} 60000"));
        debugfs(&image, "set_block_group 1 checksum calc");
        assert!(!is_marked_clean(&FileDevice::open_read_only(&image).unwrap()), "{count}");
    }
}

#[test]
fn a_check_without_findings_ends_the_time_until_the_next_one() {
    if !require(&["mke2fs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), EXT4);
    change(&image, |sb| (sb.s_mnt_count, sb.s_max_mnt_count) = (7.into(), 5.into()));
    let device = FileDevice::open(&image).unwrap();
    let plan = planned(&device);
    assert!(plan.is_empty() && !is_marked_clean(&device));
    plan.record_check(&device, NOW).unwrap();
    let sb = superblock(&image);
    assert_eq!((sb.s_mnt_count.get(), sb.check_time(), sb.write_time()), (0, NOW, NOW));
    assert!(is_marked_clean(&device));
    blockyard_testkit::e2fsck_clean(&image);
}

#[test]
fn a_replay_before_a_check_that_is_due_also_ends_that_time() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), EXT4);
    let (commands, data) = (folder.path().join("commands"), folder.path().join("data"));
    std::fs::write(&data, [7; 1024]).unwrap();
    std::fs::write(&commands, format!("jo -c\njw -b 30000 {}\njc\n", data.display())).unwrap();
    run("debugfs", &["-w", "-f", commands.to_str().unwrap(), image.to_str().unwrap()]);
    change(&image, |sb| (sb.s_mnt_count, sb.s_max_mnt_count) = (7.into(), 5.into()));
    let device = FileDevice::open(&image).unwrap();
    assert!(!is_clean_once_replayed(&device, None));
    planned(&device).apply(&device).unwrap();
    assert_eq!((superblock(&image).s_mnt_count.get(), superblock(&image).check_time()), (0, NOW));
    assert!(is_marked_clean(&device));
}

/// If the check did not rewrite the backup, the image would be checked at every boot.
#[test]
fn a_backup_with_other_features_is_rewritten_by_the_check_that_it_causes() {
    if !require(&["mke2fs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext2", "-O", "^ext_attr"]);
    change(&image, |sb| sb.s_feature_compat |= 8);
    let device = FileDevice::open(&image).unwrap();
    assert!(!is_marked_clean(&device));
    let plan = planned(&device);
    assert_eq!(plan.preened_ending().exit_code(), 0);
    plan.apply(&device).unwrap();
    assert!(is_marked_clean(&device));
}

#[test]
fn totals_are_corrected_without_a_check() {
    if !require(&["mke2fs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), EXT4);
    let before = superblock(&image);
    change(&image, |sb| (sb.s_free_blocks_count_lo, sb.s_free_inodes_count) = (77.into(), 78.into()));
    let device = FileDevice::open(&image).unwrap();
    assert!(is_marked_clean(&device));
    refresh_totals(&device).unwrap();
    let after = superblock(&image);
    assert_eq!(after.free_blocks_count(), before.free_blocks_count());
    assert_eq!(after.s_free_inodes_count, before.s_free_inodes_count);
}

/// Inode number of a file in the root directory.
fn inode(image: &Path, name: &str) -> u32 {
    let stat = debugfs(image, &format!("stat {name}"));
    stat.split("Inode: ").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn orphans_end_a_repair_as_they_end_that_of_e2fsck() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let unlinked = |image: &Path| {
        let small = inode(image, "small");
        debugfs(image, "unlink small");
        debugfs(image, &format!("sif <{small}> links_count 0"));
        debugfs(image, &format!("ssv last_orphan {small}"));
        small
    };
    let truncated = |image: &Path| {
        let (first, second) = (inode(image, "holes"), inode(image, "more"));
        debugfs(image, "sif holes size 1000");
        debugfs(image, "sif more size 5000");
        debugfs(image, &format!("sif holes dtime {second}"));
        debugfs(image, &format!("ssv last_orphan {first}"));
    };
    let looped = |image: &Path| {
        let small = unlinked(image);
        debugfs(image, &format!("sif <{small}> dtime {small}"));
    };
    let far = |image: &Path| {
        let small = unlinked(image);
        debugfs(image, &format!("sif <{small}> block[5] 99999999"));
    };
    let marked = |image: &Path| {
        unlinked(image);
        debugfs(image, "ssv state 3");
    };
    let mut wrong = Vec::new();
    for options in [EXT4, PLAIN, &["-t", "ext2"]] {
        let damages: [(&str, Damage<'_>); 5] = [
            ("deleted", &|image| {
                unlinked(image);
            }),
            ("two truncations", &truncated),
            ("a list that ends in itself", &looped),
            ("a block that is none", &far),
            ("an error mark", &marked),
        ];
        for (what, damage) in damages {
            let image = made(folder.path(), options);
            damage(&image);
            let wanted = ["-fp", "-fy"].map(|option| theirs(&image, option).0);
            let device = FileDevice::open(&image).unwrap();
            let plan = planned(&device);
            let preened = plan.preened_ending();
            // Applying the plan must not change its exit codes.
            plan.apply(&device).unwrap();
            let codes = [preened, plan.ending()].map(|ending| i32::from(ending.exit_code()));
            if codes != wanted {
                wrong.push((what, options, codes, wanted));
            }
        }
    }
    assert!(wrong.is_empty(), "ours and theirs: {wrong:#?}");
}

/// The orphan list begins with an inode that is not in use, or with one that is in use and has a
/// name. Once, such a file system was called clean and the list was left as it was, so nobody could
/// write to the file system.
#[test]
fn an_orphan_list_with_a_free_inode_or_a_sound_one_is_emptied() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for options in [EXT4, &["-t", "ext2"]] {
        for head in ["700".to_owned(), inode(&made(folder.path(), options), "small").to_string()] {
            let image = made(folder.path(), options);
            debugfs(&image, &format!("ssv last_orphan {head}"));
            let device = FileDevice::open(&image).unwrap();
            planned(&device).apply(&device).unwrap();
            assert_eq!(superblock(&image).s_last_orphan.get(), 0, "{options:?} {head}");
            blockyard_testkit::e2fsck_clean(&image);
        }
    }
}

/// `-y` once counted as corrections what `-p` does not count.
#[test]
fn a_whole_repair_counts_what_preening_counts() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let damages: [(&str, &[&str], Damage<'_>); 3] = [
        ("a test file system", EXT4, &|image| change(image, |sb| sb.s_flags |= 4)),
        ("a backup that differs", EXT4, &|image| {
            FileDevice::open(image).unwrap().write_at((8193 << 10) + 0x60, &[0; 4]).unwrap();
        }),
        ("a flag without its feature", &["-t", "ext2"], &|image| {
            drop(debugfs(image, "set_block_group 1 flags 1"));
        }),
    ];
    for (what, options, damage) in damages {
        let image = made(folder.path(), options);
        damage(&image);
        let device = FileDevice::open_read_only(&image).unwrap();
        let plan = planned(&device);
        assert!(!plan.is_empty(), "{what}");
        assert_eq!((what, i32::from(plan.ending().exit_code())), (what, theirs(&image, "-fy").0));
    }
}

/// Changes the MMP block of an image.
fn change_mmp(device: &dyn BlockDevice, change: impl FnOnce(&mut RawMmp)) {
    let mut bytes = [0; RawSuperblock::SIZE];
    device.read_at(1024, &mut bytes).unwrap();
    let sb = RawSuperblock::read_from_bytes(&bytes).unwrap();
    let at = sb.s_mmp_block.get() << 10;
    let mut bytes = [0; RawMmp::SIZE];
    device.read_at(at, &mut bytes).unwrap();
    let mut mmp = RawMmp::read_from_bytes(&bytes).unwrap();
    change(&mut mmp);
    Checksums::of(&sb).seal_mmp(&mut mmp);
    device.write_at(at, mmp.as_bytes()).unwrap();
}

#[test]
fn a_file_system_that_another_host_uses_is_told_from_one_that_it_left() {
    if !require(&["mke2fs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-O", "mmp", "-E", "mmp_update_interval=1"]);
    let device = FileDevice::open(&image).unwrap();
    assert_eq!(Mmp::read(&device).unwrap().unwrap().seconds(), 0);
    change_mmp(&device, |mmp| (mmp.mmp_seq, mmp.mmp_check_interval) = (77.into(), 1.into()));
    let left = Mmp::read(&device).unwrap().unwrap();
    assert_eq!(left.seconds(), 3);
    left.wait(&device, &|_| {}).unwrap();
    // The closure is called before the block is read again.
    let used = left.wait(&device, &|_| change_mmp(&device, |mmp| mmp.mmp_seq = 78.into()));
    assert!(matches!(used, Err(InUse::Mounted(_))), "{used:?}");
    assert!(matches!(left.confirm(&device, &|_| {}), Err(InUse::Mounted(_))));
}

#[test]
fn a_file_system_that_another_host_checks_is_not_repaired() {
    if !require(&["mke2fs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-O", "mmp"]);
    let device = FileDevice::open(&image).unwrap();
    change_mmp(&device, |mmp| mmp.mmp_seq = SEQUENCE_FSCK.into());
    assert!(matches!(Mmp::read(&device), Err(InUse::Checked(_))));
    assert!(!is_marked_clean(&device));
    let plan = planned(&device);
    assert!(plan.is_empty() && plan.refusal().is_some());
    assert_eq!((plan.ending().exit_code(), plan.preened_ending().exit_code()), (8, 8));
}
