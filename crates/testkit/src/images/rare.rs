//! Rare kinds of images, for the long runs: deep block maps and directory indexes, images that
//! tools changed before or after the kernel filled them, and blocks that are larger than a page.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{Profile, profile};

const fn rare(name: &'static str, options: &'static [&'static str]) -> Profile {
    profile(name, options)
}

/// Combinations that are neither in [`PROFILES`](super::PROFILES) nor in
/// [`MORE_PROFILES`](super::MORE_PROFILES).
pub const RARE_PROFILES: &[Profile] = &[
    Profile {
        is_deep: true,
        size_mib: 192,
        ..rare("deep", &["-t", "ext4", "-b", "1024", "-O", "large_dir", "-N", "4000"])
    },
    Profile {
        is_deep: true,
        size_mib: 192,
        ..rare("deep-plain", &["-t", "ext4", "-b", "1024", "-O", "large_dir,^metadata_csum", "-N", "4000"])
    },
    Profile {
        is_deep: true,
        size_mib: 192,
        ..rare("deep-clusters", &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "2048", "-N", "4000"])
    },
    Profile {
        is_deep: true,
        size_mib: 192,
        ..rare("deep-indirect", &["-t", "ext3", "-b", "1024", "-N", "4000"])
    },
    rare(
        "bigalloc-inline",
        &["-t", "ext4", "-O", "bigalloc,inline_data,ea_inode", "-b", "1024", "-C", "8192"],
    ),
    rare(
        "bigalloc-bare",
        &["-t", "ext4", "-O", "bigalloc,sparse_super2,^has_journal,^flex_bg", "-C", "8192"],
    ),
    // Several groups, and no copy of superblock and descriptors.
    rare(
        "no-backups",
        &["-t", "ext4", "-b", "1024", "-O", "sparse_super2,^resize_inode", "-E", "num_backup_sb=0"],
    ),
    rare(
        "no-backups-plain",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "sparse_super2,^resize_inode,^metadata_csum,^flex_bg,^64bit",
            "-E",
            "num_backup_sb=0",
        ],
    ),
    rare("meta_bg-64bit", &["-t", "ext4", "-b", "1024", "-g", "512", "-O", "meta_bg,64bit,^resize_inode"]),
    rare(
        "meta_bg-uninit",
        &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "meta_bg,^resize_inode,^metadata_csum,uninit_bg"],
    ),
    Profile {
        last: &["tune2fs -U random IMAGE"],
        ..rare("seed-changed", &["-t", "ext4", "-O", "metadata_csum_seed,orphan_file,mmp"])
    },
    Profile { last: &["tune2fs -U random IMAGE"], ..rare("uuid-changed", &["-t", "ext4", "-b", "1024"]) },
    Profile {
        size_mib: 128,
        ..rare("64k-groups", &["-t", "ext4", "-b", "65536", "-g", "256", "-N", "8192"])
    },
    Profile { size_mib: 128, ..rare("64k-ext2", &["-t", "ext2", "-b", "65536"]) },
    Profile {
        size_mib: 128,
        ..rare("64k-inline", &["-t", "ext4", "-b", "65536", "-O", "inline_data,^metadata_csum"])
    },
    rare("16k-ext3", &["-t", "ext3", "-b", "16384", "-g", "1024", "-N", "8192"]),
    rare("8k-clusters", &["-t", "ext4", "-b", "8192", "-O", "bigalloc", "-C", "32768", "-N", "4096"]),
    Profile { last: &["resize2fs -f IMAGE 200M"], ..rare("grown", &["-t", "ext4", "-b", "1024"]) },
    Profile {
        last: &["resize2fs -f IMAGE 200M"],
        ..rare("grown-ext2", &["-t", "ext2", "-b", "1024", "-I", "128"])
    },
    Profile {
        last: &["resize2fs -f IMAGE 200M"],
        ..rare("grown-super2", &["-t", "ext4", "-b", "1024", "-O", "sparse_super2"])
    },
    Profile {
        last: &["resize2fs -f IMAGE 200M"],
        ..rare("grown-meta_bg", &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode"])
    },
    Profile {
        size_mib: 200,
        last: &["resize2fs -f -M IMAGE"],
        ..rare("shrunk", &["-t", "ext4", "-b", "1024"])
    },
    Profile { last: &["resize2fs -f -s IMAGE"], ..rare("narrowed", &["-t", "ext4"]) },
    Profile {
        last: &["resize2fs -f -b IMAGE"],
        ..rare("widened", &["-t", "ext4", "-b", "1024", "-O", "^64bit"])
    },
    Profile {
        last: &["tune2fs -I 512 IMAGE"],
        ..rare("larger-inodes", &["-t", "ext4", "-b", "1024", "-O", "^flex_bg"])
    },
    Profile {
        last: &["tune2fs -O metadata_csum IMAGE", "e2fsck -fyD IMAGE"],
        ..rare("sums-added", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"])
    },
    Profile { last: &["tune2fs -O ^metadata_csum IMAGE"], ..rare("sums-removed", &["-t", "ext4"]) },
    Profile {
        last: &["tune2fs -O ^has_journal IMAGE"],
        ..rare("journal-removed", &["-t", "ext4", "-b", "1024"])
    },
    Profile {
        last: &[
            "tune2fs -j IMAGE",
            "tune2fs -O extents,uninit_bg,dir_index,flex_bg IMAGE",
            "e2fsck -fy IMAGE",
        ],
        ..rare("ext2-to-ext4", &["-t", "ext2", "-b", "1024"])
    },
    Profile {
        last: &["e2fsck -fy -E bmap2extent IMAGE"],
        ..rare("extents-added", &["-t", "ext4", "-O", "^extents,^64bit"])
    },
    Profile {
        last: &["e2image -r IMAGE IMAGE.raw", "mv IMAGE.raw IMAGE"],
        ..rare("e2image", &["-t", "ext4"])
    },
    Profile { first: &["tune2fs -E hash_alg=tea IMAGE"], ..rare("tea", &["-t", "ext4", "-b", "1024"]) },
    Profile { first: &["tune2fs -E hash_alg=legacy IMAGE"], ..rare("legacy", &["-t", "ext3", "-b", "1024"]) },
    Profile {
        first: &["tune2fs -E hash_alg=tea IMAGE", "debugfs -w -R \"ssv flags 2\" IMAGE"],
        ..rare("tea-unsigned", &["-t", "ext4", "-b", "1024"])
    },
    Profile {
        last: &["tune2fs -O quota,project -Q usrquota,grpquota,prjquota IMAGE", "e2fsck -fy IMAGE"],
        ..rare("quota", &["-t", "ext4", "-b", "4096"])
    },
    Profile {
        last: &["tune2fs -O quota IMAGE", "e2fsck -fy IMAGE"],
        ..rare("quota-ext3", &["-t", "ext3", "-b", "1024"])
    },
    rare("no-extras", &["-t", "ext4", "-b", "1024", "-O", "^large_file,^huge_file,^dir_nlink,^extra_isize"]),
    rare("super2-one", &["-t", "ext4", "-b", "1024", "-O", "sparse_super2", "-E", "num_backup_sb=1"]),
    rare("inline-indirect", &["-t", "ext4", "-b", "1024", "-O", "inline_data,^extents,^64bit,^dir_index"]),
    rare(
        "inodes-128-groups",
        &["-t", "ext4", "-b", "1024", "-I", "128", "-g", "512", "-O", "^flex_bg,uninit_bg,^metadata_csum"],
    ),
    rare("few-inodes", &["-t", "ext4", "-b", "2048", "-N", "1200", "-G", "64"]),
    Profile {
        size_mib: 65,
        ..rare(
            "short-group",
            &["-t", "ext4", "-b", "1024", "-O", "^resize_inode", "-E", "lazy_itable_init=1"],
        )
    },
    rare("large-journal", &["-t", "ext4", "-b", "1024", "-J", "size=20", "-O", "fast_commit,orphan_file"]),
];

/// Makes maps and indexes deep, on an image with 1 KiB blocks: an extent tree of depth 3 (without
/// extents, a block map with triple indirect blocks), an index of three levels if the image has
/// `large_dir`, and names beyond ASCII.
pub(super) fn fill_deep(root: &Path) {
    let deep = fs::File::create(root.join("many-extents")).expect("create");
    for n in 0..29_000 {
        deep.write_all_at(&[3; 1024], n * 2048).expect("write");
    }
    let triple = fs::File::create(root.join("far-pieces")).expect("create");
    for n in 0..40 {
        triple.write_all_at(&[4; 1024], n * (5 << 20)).expect("write");
    }
    let names = root.join("names");
    fs::create_dir(&names).expect("mkdir");
    fs::write(names.join("one"), b"").expect("write");
    for n in 0u32..40_000 {
        let mut name = vec![b'n'; 240];
        name[..4].copy_from_slice(&(n | 0x8080_8080).to_le_bytes());
        name[4..8].copy_from_slice(&((n >> 7) | 0x8080_8080).to_le_bytes());
        let linked = fs::hard_link(names.join("one"), names.join(std::ffi::OsStr::from_bytes(&name)));
        // Without `large_dir` the index has at most two levels, which get full.
        if linked.is_err() {
            assert!(n > 10_000, "{linked:?}");
            break;
        }
    }
}
