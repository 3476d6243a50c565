//! File systems that tune2fs, resize2fs, debugfs and e2fsck have changed: our verdict is that of
//! `e2fsck -fn`. A third of the changes by default, all with `BLOCKYARD_FULL=1`.

#![allow(clippy::unwrap_used, clippy::as_conversions)]

use std::fs;
use std::path::Path;

use blockyard_check::{Finding, Options, check};
use blockyard_device::FileDevice;
use blockyard_testkit::{e2fsck_bounded, full_matrix, require, run, seed};

/// Options of mke2fs, and commands that change the image that mke2fs makes. Each command works on a
/// new copy of that image: IMAGE stands for the copy.
const CASES: &[(&str, &[&str])] = &[
    (
        "-t ext4 -b 1024",
        &[
            "tune2fs -O ^has_journal IMAGE",
            "tune2fs -O ^dir_index IMAGE",
            "tune2fs -O ^metadata_csum IMAGE",
            "tune2fs -O metadata_csum_seed IMAGE",
            "tune2fs -O ^resize_inode IMAGE",
            "tune2fs -O ^flex_bg -f IMAGE",
            "tune2fs -O mmp IMAGE",
            "tune2fs -O ^huge_file,^dir_nlink IMAGE",
            "tune2fs -O large_dir,ea_inode,stable_inodes IMAGE",
            "tune2fs -O orphan_file IMAGE",
            "tune2fs -I 512 IMAGE",
            "tune2fs -U random IMAGE",
            "tune2fs -m 20 -r 5000 -e panic IMAGE",
            "tune2fs -E stride=4,hash_alg=tea IMAGE",
            "tune2fs -J size=8 IMAGE",
            "resize2fs -f IMAGE 20M",
            "resize2fs -f IMAGE 300M",
            "resize2fs -f -M IMAGE",
            "resize2fs -f -s IMAGE",
            "e2fsck -fyD IMAGE",
            "e2fsck -fy -E bmap2extent IMAGE",
        ],
    ),
    ("-t ext4 -b 1024 -O ^64bit", &["resize2fs -f -b IMAGE", "resize2fs -f IMAGE 64M"]),
    ("-t ext4 -O ^metadata_csum", &["tune2fs -O metadata_csum IMAGE", "tune2fs -O uninit_bg IMAGE"]),
    ("-t ext4 -O bigalloc -C 16384", &["resize2fs -f IMAGE 100M", "tune2fs -O ^has_journal IMAGE"]),
    (
        "-t ext2 -b 1024",
        &[
            "tune2fs -j IMAGE",
            "tune2fs -O extents,uninit_bg,dir_index IMAGE",
            "tune2fs -I 256 IMAGE",
            "resize2fs -f IMAGE 200M",
            "e2fsck -fy -E bmap2extent IMAGE",
        ],
    ),
    ("-t ext4 -b 1024 -O meta_bg,^resize_inode", &["resize2fs -f IMAGE 300M", "resize2fs -f IMAGE 20M"]),
    // The existing descriptor blocks stay after the superblock. Those that a resize adds lie in
    // meta groups, as after a resize of a mounted image.
    (
        "-t ext4 -b 1024 -g 1024 -O ^resize_inode,^flex_bg,^has_journal",
        &[
            "debugfs -w -R \"ssv first_meta_bg 7\" IMAGE; debugfs -w -R \"feature meta_bg\" IMAGE",
            "debugfs -w -R \"ssv first_meta_bg 7\" IMAGE; debugfs -w -R \"feature meta_bg\" IMAGE; \
             resize2fs -f IMAGE 200M",
            "debugfs -w -R \"ssv first_meta_bg 7\" IMAGE; debugfs -w -R \"feature meta_bg\" IMAGE; \
             resize2fs -f IMAGE 300M; resize2fs -f IMAGE 150M",
        ],
    ),
    ("-t ext4 -b 1024 -O sparse_super2", &["resize2fs -f IMAGE 300M", "resize2fs -f IMAGE 20M"]),
    (
        "-t ext4 -b 1024 -O orphan_file",
        &[
            "debugfs -w -R \"feature orphan_present\" IMAGE",
            "debugfs -w -R \"feature orphan_present\" IMAGE; debugfs -w -R \"ssv state 0\" IMAGE",
            "debugfs -w -R \"feature -orphan_file\" IMAGE",
            "tune2fs -O ^orphan_file IMAGE",
        ],
    ),
    (
        "-t ext4 -b 1024 -O inline_data",
        &[
            "debugfs -w -R \"unlink file\" IMAGE",
            "debugfs -w -R \"rm file\" IMAGE",
            "debugfs -w -R \"kill_file file\" IMAGE",
            "debugfs -w -R \"clri file\" IMAGE",
            "debugfs -w -R \"clri directory\" IMAGE",
            "debugfs -w -R \"freei file\" IMAGE",
            "debugfs -w -R \"seti <200>\" IMAGE",
            "debugfs -w -R \"freeb 3000 5\" IMAGE",
            "debugfs -w -R \"setb 9000 5\" IMAGE",
            "debugfs -w -R \"ln directory second\" IMAGE",
            "debugfs -w -R \"ln file second\" IMAGE",
            "debugfs -w -R \"unlink directory\" IMAGE",
            "debugfs -w -R \"rmdir empty\" IMAGE",
            "debugfs -w -R \"unlink empty\" IMAGE",
            "debugfs -w -R \"mkdir directory/new\" IMAGE",
            "debugfs -w -R \"mknod device c 3 4\" IMAGE",
            "debugfs -w -R \"symlink link target\" IMAGE",
            "debugfs -w -R \"expand_dir directory\" IMAGE",
            "debugfs -w -R \"punch large 3 9\" IMAGE",
            "debugfs -w -R \"fallocate large 100 120\" IMAGE",
            "debugfs -w -R \"ea_set file user.name value\" IMAGE",
            "debugfs -w -R \"ea_set directory user.name value\" IMAGE",
            "debugfs -w -R \"dirty\" IMAGE",
            "debugfs -w -R \"initialize 8000 1024\" IMAGE",
            "debugfs -w -R \"feature -dir_index\" IMAGE",
            "debugfs -w -R \"feature -extents\" IMAGE",
            "debugfs -w -R \"feature -inline_data\" IMAGE",
            "debugfs -w -R \"feature -has_journal\" IMAGE",
            "debugfs -w -R \"feature -ext_attr\" IMAGE",
            "debugfs -w -R \"feature -filetype\" IMAGE",
            "debugfs -w -R \"feature -resize_inode\" IMAGE",
            "debugfs -w -R \"feature -metadata_csum\" IMAGE",
            "debugfs -w -R \"feature -flex_bg\" IMAGE",
            "debugfs -w -R \"feature -64bit\" IMAGE",
            "debugfs -w -R \"feature needs_recovery\" IMAGE",
            "debugfs -w -R \"sif long-link size 99\" IMAGE",
            "debugfs -w -R \"sif long-link size 101\" IMAGE",
            "debugfs -w -R \"sif long-link blocks 2\" IMAGE",
            "debugfs -w -R \"sif long-link flags 0\" IMAGE",
            "debugfs -w -R \"sif short-link flags 0x10000000\" IMAGE",
            "debugfs -w -R \"ea_rm long-link system.data\" IMAGE",
            "debugfs -w -R \"ssv state 2\" IMAGE",
            "debugfs -w -R \"ssv last_orphan 13\" IMAGE",
        ],
    ),
];

fn fill(tree: &Path) {
    fs::create_dir_all(tree.join("directory/below")).unwrap();
    fs::create_dir(tree.join("empty")).unwrap();
    fs::write(tree.join("file"), b"content").unwrap();
    fs::write(tree.join("large"), vec![7; 90_000]).unwrap();
    std::os::unix::fs::symlink("l".repeat(100), tree.join("long-link")).unwrap();
    std::os::unix::fs::symlink("short", tree.join("short-link")).unwrap();
    for n in 0..150 {
        fs::write(tree.join(format!("directory/a-name-of-some-length-{n}")), b"x").unwrap();
    }
}

/// The verdict of `blockyard check -n`: clean or not, `None` without a verdict; and the errors.
fn examine(image: &Path) -> (Option<bool>, Vec<Finding>) {
    let device = FileDevice::open_read_only(image).unwrap();
    match check(&device, &Options { threads: Some(2), ..Options::default() }) {
        Ok(report) => {
            (Some(report.is_clean()), report.findings.into_iter().filter(Finding::is_error).collect())
        }
        Err(_) => (None, Vec::new()),
    }
}

#[test]
fn tools_leave_what_both_judge_alike() {
    if !require(&["mke2fs", "e2fsck", "tune2fs", "resize2fs", "debugfs", "sh", "timeout", "prlimit"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (tree, base, image) =
        (folder.path().join("tree"), folder.path().join("base"), folder.path().join("image"));
    fill(&tree);
    let turn = (seed(10) % 3) as usize;
    let (mut clean, mut all, mut differing) = (0, 0, 0);
    for (options, changes) in CASES {
        let _ = fs::remove_file(&base);
        let make = format!("mke2fs -q -F {options} -d {} {} 100M", tree.display(), base.display());
        assert!(run("sh", &["-c", &make]).status.success(), "{make}");
        let sampled = |n: usize| full_matrix() || n % 3 == turn;
        for (_, change) in changes.iter().enumerate().filter(|(n, _)| sampled(*n)) {
            fs::copy(&base, &image).unwrap();
            run("sh", &["-c", &change.replace("IMAGE", image.to_str().unwrap())]);
            let theirs = e2fsck_bounded(&image);
            let (ours, errors) = examine(&image);
            if ours.unwrap_or(false) != (theirs.code == Some(0)) {
                differing += 1;
                println!("--- {options}: {change}: here {ours:?}, e2fsck {:?}", theirs.code);
                errors.iter().take(8).for_each(|found| println!("    here: {found:?}"));
                theirs.lines().take(8).for_each(|line| println!("    e2fsck: {line}"));
            }
            (all, clean) = (all + 1, clean + u32::from(theirs.code == Some(0)));
        }
    }
    println!("{all} changes, {clean} clean, {differing} verdicts differ");
    assert!(clean > 0 && clean < all);
    assert_eq!(differing, 0);
}
