//! Directory indexes with nodes between the root and the leaves. The keys that separate the nodes,
//! and names in the leaves next to these borders, are changed one by one. The verdict is that of
//! `e2fsck -fn`.

#![allow(clippy::unwrap_used, clippy::as_conversions)]

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use blockyard_check::{Options, check};
use blockyard_device::FileDevice;
use blockyard_testkit::mutate::{Inventory, Kind};
use blockyard_testkit::{LoopMount, e2fsck_bounded, full_matrix, mke2fs, require, seed};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Byte offsets of the entries in a root and in a node. An entry is a key and a block; the first
/// one has limit and count in place of a key.
const ROOT_ENTRIES: usize = 32;
const NODE_ENTRIES: usize = 8;

/// The index of the one large directory of an image.
struct Directory {
    bytes: Vec<u8>,
    /// Byte offsets of its blocks.
    blocks: Vec<usize>,
}

impl Directory {
    fn make(image: &Path, names: usize) -> Self {
        mke2fs(image, &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^has_journal"], "32M");
        let mount = LoopMount::new(image, "").unwrap();
        let directory = mount.path().join("large");
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("one"), b"").unwrap();
        for n in 0..names {
            fs::hard_link(directory.join("one"), directory.join(format!("{n:0>240}"))).unwrap();
        }
        drop(mount);
        let structures = Inventory::read(image).structures;
        let root = structures.iter().find(|structure| structure.kind == Kind::HtreeBlock).unwrap();
        let is_own = |kind| matches!(kind, Kind::HtreeBlock | Kind::DirBlock);
        let own = structures.iter().filter(|one| is_own(one.kind) && one.owner.inode == root.owner.inode);
        Self { bytes: fs::read(image).unwrap(), blocks: own.map(|structure| structure.at).collect() }
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes[at..at + 4].try_into().unwrap())
    }

    /// Byte offset of each entry of an index block, and of the block that it names.
    fn entries(&self, at: usize) -> Vec<(usize, usize)> {
        let count = usize::from(u16::from_le_bytes([self.bytes[at + 2], self.bytes[at + 3]]));
        (0..count).map(|n| (at + 8 * n, self.blocks[self.word(at + 8 * n + 4) as usize])).collect()
    }

    /// Changes of each key of the root: a little lower, a little higher, and a little above the key
    /// before it.
    fn keys(&self) -> Vec<(usize, Vec<u8>)> {
        let root = self.entries(self.blocks[0] + ROOT_ENTRIES);
        let keys = root.windows(2).flat_map(|pair| {
            let (before, key) = (self.word(pair[0].0), self.word(pair[1].0));
            // The first entry has limit and count in place of a key.
            let before = if pair[0].0 == root[0].0 { 0 } else { before };
            [key - 2, key + 2, before + 2].map(|new| (pair[1].0, new.to_le_bytes().to_vec()))
        });
        keys.collect()
    }

    /// Changes of the first name in the first and in the last leaf of each node.
    fn names(&self, times: usize, random: &mut ChaCha8Rng) -> Vec<(usize, Vec<u8>)> {
        let mut edits = Vec::new();
        for (_, node) in self.entries(self.blocks[0] + ROOT_ENTRIES) {
            let leaves = self.entries(node + NODE_ENTRIES);
            for (_, leaf) in [leaves.first().unwrap(), leaves.last().unwrap()] {
                let end = leaf + 8 + usize::from(self.bytes[leaf + 6]);
                for _ in 0..times {
                    let letters: [u8; 8] = std::array::from_fn(|_| random.random_range(b'a'..=b'z'));
                    edits.push((end - 8, letters.to_vec()));
                }
            }
        }
        edits
    }
}

#[test]
fn borders_between_nodes_are_judged_as_e2fsck_does() {
    if !require(&["root", "mke2fs", "e2fsck", "timeout", "prlimit"]) {
        return;
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed(9));
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let sizes: &[usize] = if full_matrix() { &[450, 900, 1300, 450, 600] } else { &[450] };
    let (mut clean, mut differing, mut all) = (0, 0, 0);
    for &names in sizes {
        let large = Directory::make(&image, names);
        let file = fs::File::options().write(true).open(&image).unwrap();
        for (at, new) in large.keys().into_iter().chain(large.names(8, &mut random)) {
            file.write_all_at(&new, at as u64).unwrap();
            let device = FileDevice::open_read_only(&image).unwrap();
            let report = check(&device, &Options { threads: Some(2), ..Options::default() }).unwrap();
            let theirs = e2fsck_bounded(&image);
            if report.is_clean() != (theirs.code == Some(0)) {
                differing += 1;
                println!("--- {names} names: {new:02x?} at {at:#x}: here {:?}", report.findings);
                theirs.lines().for_each(|line| println!("    e2fsck: {line}"));
            }
            (clean, all) = (clean + u32::from(report.is_clean()), all + 1);
            file.write_all_at(&large.bytes[at..at + new.len()], at as u64).unwrap();
        }
    }
    println!("{all} changes, {clean} clean, {differing} verdicts differ");
    assert!(clean > 0 && clean < all, "the changes do not tell anything");
    assert_eq!(differing, 0);
}
