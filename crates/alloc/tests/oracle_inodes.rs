//! Inode numbers against the running kernel: a seeded stream of creates and removals on a mounted
//! image, repeated by the allocator in step. Every number must be equal. After the unmount, the
//! inode fields of each descriptor and the free clusters of each flex group must be equal too.
//!
//! The stream runs on one CPU, because each CPU holds back a share of the kernel's totals
//! (docs/behaviour/inode-allocation.md).

#![allow(clippy::unwrap_used, clippy::as_conversions, reason = "a test binary")]

#[path = "inode/image.rs"]
mod image;
#[path = "inode/replica.rs"]
mod replica;
#[path = "inode/stream.rs"]
mod stream;

use blockyard_testkit::{full_matrix, require, seed};

use image::Layout;
use stream::Stream;

const NEEDS: [&str; 7] = ["root", "mke2fs", "dumpe2fs", "debugfs", "mount", "chattr", "filefrag"];

/// A large image with flex groups of 16, in which inodes never run out.
#[test]
fn flex_groups_of_sixteen() {
    if require(&NEEDS) {
        let layout = |inodes| Layout {
            size: "32G",
            arguments: vec!["-b", "4096", "-G", "16", "-N", inodes],
            options: "noinit_itable",
            goals: inodes != "2097152",
        };
        let creates = if full_matrix() { 6000 } else { 1200 };
        for (run, inodes) in runs(&["2097152", "65536", "16384"]) {
            Stream::run(&layout(inodes), seed(0x1600 + run), creates);
        }
    }
}

/// The stream runs until no inode is left, then removes and creates at the limit.
#[test]
fn flex_groups_of_eight_to_the_last_inode() {
    if require(&NEEDS) {
        let inodes = if full_matrix() { "4096" } else { "1536" };
        let layout = Layout {
            size: "512M",
            arguments: vec!["-b", "1024", "-G", "8", "-N", inodes],
            options: "noinit_itable",
            goals: false,
        };
        for (run, ()) in runs(&[(), (), (), ()]) {
            Stream::run(&layout, seed(0x800 + run), 5000);
        }
    }
}

/// Without flex groups, a file goes to its directory's group, or else to a group found by a probe
/// whose steps double. A group is accepted if it has a free inode and a free block. If the probe
/// finds no such group, any group with a free inode is accepted. The stream runs until no inode is
/// left, as in the test above.
#[test]
fn no_flex_groups_to_the_last_inode() {
    if require(&NEEDS) {
        let inodes = if full_matrix() { "4096" } else { "1536" };
        let layout = Layout {
            size: "512M",
            arguments: vec!["-b", "1024", "-O", "^flex_bg", "-N", inodes],
            options: "noinit_itable",
            goals: false,
        };
        for (run, ()) in runs(&[(), (), (), ()]) {
            Stream::run(&layout, seed(0x100 + run), 5000);
        }
    }
}

/// Clusters of 16 blocks, a short last flex group, and descriptors without checksums.
#[test]
fn other_shapes() {
    if require(&NEEDS) {
        let creates = if full_matrix() { 4000 } else { 400 };
        let shapes = [
            ("17G", vec!["-b", "4096", "-O", "bigalloc", "-C", "65536", "-G", "4", "-N", "8192"]),
            ("2500M", vec!["-b", "4096", "-G", "16", "-N", "8192"]),
            ("700M", vec!["-b", "2048", "-O", "^metadata_csum,^uninit_bg", "-G", "2", "-N", "6000"]),
        ];
        for (run, (size, arguments)) in (0..).zip(shapes) {
            let layout = Layout { size, arguments, options: "noinit_itable", goals: true };
            Stream::run(&layout, seed(0x200 + run), creates);
        }
    }
}

/// Without a journal, a number that was deleted in an earlier second, but not long ago, is passed
/// over while others are free.
#[test]
fn recently_deleted_numbers_without_a_journal() {
    if require(&NEEDS) {
        let inodes = if full_matrix() { "1024" } else { "256" };
        let roomy = vec!["-b", "4096", "-O", "^has_journal", "-N", "65536"];
        let tight = vec!["-b", "1024", "-O", "^has_journal", "-G", "4", "-N", inodes];
        for (run, (size, arguments)) in (0..).zip([("4G", roomy), ("64M", tight)]) {
            let layout = Layout { size, arguments, options: "noinit_itable", goals: false };
            Stream::run(&layout, seed(0x300 + run), 500);
        }
    }
}

/// The items, numbered from 0: all of them in full runs, otherwise only the first.
fn runs<T: Copy>(items: &[T]) -> impl Iterator<Item = (u64, T)> {
    let count = if full_matrix() { items.len() } else { 1 };
    (0..).zip(items.iter().copied()).take(count)
}
