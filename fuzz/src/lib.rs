//! Shared by the targets: a valid superblock under which other structures are parsed, images made
//! from a base and edits, and tar archives.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use blockyard_device::{BlockDevice, MemoryDevice, OverlayDevice};
use blockyard_disk::Superblock;
use blockyard_disk::superblock::{MAGIC, RawSuperblock};
use zerocopy::little_endian::{U16, U32};

/// Takes bytes off the front of a fuzzer's input.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// The next byte; 0 at the end.
    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// The next four bytes as a little-endian number. Missing bytes are zero.
    pub fn word(&mut self) -> u32 {
        let mut word = [0; 4];
        let bytes = self.take(4);
        word[..bytes.len()].copy_from_slice(bytes);
        u32::from_le_bytes(word)
    }

    /// The next `length` bytes; fewer at the end.
    pub fn take(&mut self, length: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        head
    }

    /// The next `length` bytes. Missing bytes are zero.
    pub fn block(&mut self, length: usize) -> Vec<u8> {
        let mut block = self.take(length).to_vec();
        block.resize(length, 0);
        block
    }
}

/// A valid raw superblock of a file system of 64 MiB. The byte chooses block size, checksums,
/// descriptor size and inode size.
pub fn raw_superblock(choice: u8) -> RawSuperblock {
    let mut raw = RawSuperblock::zeroed();
    let log = u32::from(choice & 3).min(2);
    let block_size = 1024u32 << log;
    let blocks = (64 << 20) / block_size;
    let per_group = 8 * block_size;
    let first = u32::from(log == 0);
    let groups = (blocks - first).div_ceil(per_group);
    raw.s_magic = U16::new(MAGIC);
    raw.s_rev_level = U32::new(1);
    raw.s_log_block_size = U32::new(log);
    raw.s_log_cluster_size = U32::new(log);
    raw.s_blocks_count_lo = U32::new(blocks);
    raw.s_first_data_block = U32::new(first);
    raw.s_blocks_per_group = U32::new(per_group);
    raw.s_clusters_per_group = U32::new(per_group);
    raw.s_inodes_per_group = U32::new(1024);
    raw.s_inodes_count = U32::new(groups * 1024);
    raw.s_first_ino = U32::new(11);
    raw.s_inode_size = U16::new(if choice & 4 == 0 { 256 } else { 128 });
    raw.s_feature_incompat = U32::new(0x8242 | if choice & 8 == 0 { 0 } else { 0x80 });
    raw.s_desc_size = U16::new(64);
    raw.s_feature_ro_compat = U32::new(0x6B | if choice & 16 == 0 { 0x400 } else { 0x10 });
    raw.s_checksum_type = 1;
    blockyard_disk::Checksums::of(&raw).seal_superblock(&mut raw);
    raw
}

/// The verified form of [`raw_superblock`].
pub fn superblock(choice: u8) -> Superblock {
    Superblock::verify(raw_superblock(choice)).expect("the superblock is valid")
}

/// The images in the directory `BLOCKYARD_FUZZ_BASES`, sorted by name.
pub fn bases() -> &'static [Arc<MemoryDevice>] {
    static BASES: OnceLock<Vec<Arc<MemoryDevice>>> = OnceLock::new();
    BASES.get_or_init(|| {
        let directory = std::env::var_os("BLOCKYARD_FUZZ_BASES")
            .expect("set BLOCKYARD_FUZZ_BASES to a directory made by fuzz/make-bases");
        let mut paths: Vec<_> = std::fs::read_dir(Path::new(&directory))
            .expect("the directory of base images is listed")
            .map(|entry| entry.expect("an entry is read").path())
            .collect();
        paths.sort();
        assert!(!paths.is_empty(), "no base images");
        paths.iter().map(|path| Arc::new(MemoryDevice::load(path).expect("a base image is read"))).collect()
    })
}

/// A base image with edits. The first byte of the input chooses the base; the rest is the edits
/// (see [`edit`]).
pub fn edited_image(data: &[u8]) -> Arc<dyn BlockDevice> {
    let mut input = Input(data);
    let bases = bases();
    let base = &bases[usize::from(input.byte()) % bases.len()];
    Arc::new(edit(base, input, 0))
}

/// A base with the input's edits. Each edit is a word with a length and an offset, then one to four
/// bytes. Offsets count from byte `from`, modulo the size of the image. An edit that would cross
/// the end of the image is left out.
pub fn edit(base: &Arc<MemoryDevice>, mut input: Input<'_>, from: u64) -> OverlayDevice<Arc<MemoryDevice>> {
    let image = OverlayDevice::new(Arc::clone(base));
    while !input.0.is_empty() {
        let head = input.word();
        let length = usize::try_from(head >> 30).expect("two bits") + 1;
        let offset = (from + u64::from(head & 0x3FFF_FFFF)) % image.size();
        let bytes = input.block(length);
        if offset + bytes.len() as u64 <= image.size() {
            image.write_at(offset, &bytes).expect("memory can be written");
        }
    }
    image
}

/// Size in bytes of a tar header, and of the units that content is padded to.
const RECORD: usize = 512;

fn seal(header: &mut [u8]) {
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// The data as an archive: padded with zeroes to whole records, each of which gets a valid header
/// checksum unless its first byte is zero.
#[must_use]
pub fn sealed_headers(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    bytes.resize(data.len().next_multiple_of(RECORD), 0);
    bytes.chunks_mut(RECORD).filter(|record| record[0] != 0).for_each(seal);
    bytes
}

/// An archive of regular files.
#[must_use]
pub fn archive_of(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, content) in files {
        let mut header = vec![0; RECORD];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..107].copy_from_slice(b"0000644");
        for field in [108, 116] {
            header[field..field + 7].copy_from_slice(b"0000000");
        }
        header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
        header[136..147].copy_from_slice(b"00000000000");
        header[156] = b'0';
        seal(&mut header);
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(RECORD), 0);
    }
    bytes
}
