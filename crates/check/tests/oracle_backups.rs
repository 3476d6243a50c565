//! Destroyed superblocks and descriptors: the verdict is that of `e2fsck -fn`, and a backup is used
//! where e2fsck uses one.
//!
//! Two kinds of images by default, five with `BLOCKYARD_FULL=1`.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use blockyard_check::{Code, Error, Options, Place, Report, check};
use blockyard_device::FileDevice;
use blockyard_testkit::{full_matrix, mke2fs, require, run};

/// Bytes that replace others: offset and value.
type Edit = (u64, &'static [u8]);

fn damaged(image: &Path, edits: &[Edit]) -> PathBuf {
    let copy = image.with_extension("copy");
    std::fs::copy(image, &copy).unwrap();
    let file = std::fs::File::options().write(true).open(&copy).unwrap();
    edits.iter().for_each(|(at, bytes)| file.write_all_at(bytes, *at).unwrap());
    copy
}

fn check_at(image: &Path, superblock: Option<Place>) -> Result<Report, Error> {
    let device = FileDevice::open_read_only(image).unwrap();
    check(&device, &Options { threads: Some(1), superblock, ..Options::default() })
}

/// Judges a damaged copy with both checkers; returns whether a backup was used.
fn judge(image: &Path, what: &str, edits: &[Edit]) -> bool {
    let copy = damaged(image, edits);
    let theirs = run("e2fsck", &["-fn", copy.to_str().unwrap()]);
    let said = [theirs.stdout, theirs.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let ours = check_at(&copy, None).unwrap();
    let code = theirs.status.code().unwrap();
    assert_eq!(ours.is_clean(), code == 0, "{what}: {said}\n{:#?}", ours.findings);
    assert_eq!(ours.examined, code != 8, "{what}: {said}");
    let backup = [Code::SUPERBLOCK_BACKUP, Code::DESCRIPTORS_BACKUP];
    let taken = ours.findings.iter().any(|finding| backup.contains(&finding.code));
    let theirs_taken =
        said.contains("trying backup") && code != 8 && !said.contains("going back to original");
    assert_eq!(taken, theirs_taken, "{what}: {said}\n{:#?}", ours.findings);
    taken
}

const ZEROES: &[u8] = &[0; 1024];
const ONES: &[u8] = &[0xFF; 4];

/// What is destroyed, with blocks of 1 KiB and groups of 8192 blocks.
const DAMAGES: &[(&str, &[Edit])] = &[
    ("nothing", &[]),
    ("superblock", &[(1024, ZEROES)]),
    ("magic", &[(1080, &[0, 0])]),
    ("label: the checksum", &[(1024 + 0x78, b"x")]),
    ("log_block_size", &[(1024 + 0x18, &[7])]),
    ("inodes_count", &[(1024, ONES)]),
    ("blocks_count", &[(1024 + 4, ONES)]),
    ("blocks_per_group", &[(1024 + 0x20, ONES)]),
    ("inodes_per_group", &[(1024 + 0x28, ONES)]),
    ("inode_size", &[(1024 + 0x58, &[1])]),
    ("reserved blocks", &[(1024 + 8, ONES)]),
    ("first_ino", &[(1024 + 0x54, ONES)]),
    ("revision", &[(1024 + 0x4C, ONES)]),
    ("flex size", &[(1024 + 0x174, &[200])]),
    ("descriptors", &[(2048, ZEROES)]),
    ("block bitmap's place", &[(2048, ONES)]),
    ("inode bitmap's place", &[(2052, ONES)]),
    ("inode table's place", &[(2056, ONES)]),
    ("block bitmap on the superblock", &[(2048, &[1, 0, 0, 0])]),
    ("block bitmap on descriptors", &[(2048, &[2, 0, 0, 0])]),
    ("block bitmap on a backup", &[(2048, &[1, 32, 0, 0])]),
    ("block bitmap on free space", &[(2048, &[0xB8, 0x0B, 0, 0])]),
    ("superblock and its backup", &[(1024, ZEROES), (8193 << 10, ZEROES)]),
    ("descriptors and the backup superblock", &[(2048, ONES), ((8193 << 10) + 56, &[0, 0])]),
    ("descriptors and their backup", &[(2048, ONES), (8194 << 10, ONES)]),
];

#[test]
fn a_backup_is_taken_where_e2fsck_takes_it() {
    if !require(&["mke2fs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let kinds = [
        "-t ext2 -b 1024",
        "-t ext4 -b 1024",
        "-t ext3 -b 1024",
        "-t ext4 -b 1024 -O ^metadata_csum,^uninit_bg",
        "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg",
    ];
    let all = full_matrix();
    for options in kinds.into_iter().take(if all { 5 } else { 2 }) {
        mke2fs(&image, &options.split(' ').collect::<Vec<_>>(), "20M");
        let taken = DAMAGES
            .iter()
            .filter(|(what, edits)| judge(&image, &format!("{options}: {what}"), edits))
            .count();
        assert!(taken > 10, "{options}: a backup was taken {taken} times");
    }
}

#[test]
fn small_groups_are_found_by_good_superblocks_only() {
    if !require(&["mke2fs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    mke2fs(&image, &["-t", "ext3", "-b", "1024", "-g", "4096"], "20M");
    assert!(judge(&image, "descriptors", &[(2048, ONES)]));
    assert!(!judge(&image, "superblock", &[(1024, ZEROES)]));
}

#[test]
fn any_superblock_can_be_asked_for() {
    if !require(&["mke2fs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    for options in
        ["-t ext3 -b 1024", "-t ext4 -b 1024", "-t ext3 -b 1024 -g 4096", "-t ext2 -b 4096 -g 4096"]
    {
        mke2fs(&image, &options.split(' ').collect::<Vec<_>>(), "40M");
        let places = [
            (8193, None),
            (8193, Some(1024)),
            (8193, Some(4096)),
            (4097, None),
            (4096, Some(4096)),
            (5, None),
        ];
        for (block, block_size) in places {
            let size = block_size.map(|size| size.to_string());
            let block_text = block.to_string();
            let mut arguments = vec!["-fn", "-b", &block_text];
            arguments.extend(size.iter().flat_map(|size| ["-B", size.as_str()]));
            arguments.push(image.to_str().unwrap());
            let theirs = run("e2fsck", &arguments).status.code().unwrap();
            let what = format!("{options}: {arguments:?}");
            match check_at(&image, Some(Place { block, block_size })) {
                Ok(report) => assert_eq!(report.is_clean(), theirs == 0, "{what}: {:#?}", report.findings),
                Err(error) => {
                    assert!(matches!(error, Error::NoSuperblock { .. }), "{what}: {error}");
                    assert_eq!(theirs, 8, "{what}");
                }
            }
        }
    }
}
