//! One file under random operations against plain bytes, after the manner of fsx: what is read is what was written,
//! through write-back, commits and reopening; at the end e2fsck finds nothing.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::inode::FileType;
use blockyard_disk::{InodeNr, Timestamp};
use blockyard_engine::mkfs;
use blockyard_engine::{Error, Fallocate, FileSystem, NewInode, OpContext, OpenOptions};
use blockyard_testkit::{e2fsck_clean, full_matrix, require, seed};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

const LIMIT: u64 = 1 << 20;

fn context() -> OpContext {
    OpContext::root_at(Timestamp::from_seconds(1_700_000_000))
}

struct World {
    device: Arc<MemoryDevice>,
    fs: Option<FileSystem>,
    inode: InodeNr,
    bytes: Vec<u8>,
    unit: u64,
    extents: bool,
}

impl World {
    fn new(options: &mkfs::Options, unit: u64, extents: bool, size: u64) -> Self {
        let device = Arc::new(MemoryDevice::new(size));
        // What nobody wrote must not be read: it is poison.
        let poison = vec![0xEE; 1 << 20];
        (0..size >> 20).for_each(|n| device.write_at(n << 20, &poison).unwrap());
        mkfs::format(&*device, options).unwrap();
        let fs = open(&device);
        let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
        let inode = fs.create(&context(), InodeNr::ROOT, b"file", &new).unwrap();
        Self { device, fs: Some(fs), inode, bytes: Vec::new(), unit, extents }
    }

    fn fs(&self) -> &FileSystem {
        self.fs.as_ref().unwrap()
    }

    fn grow_model(&mut self, end: u64) {
        if self.bytes.len() < end as usize {
            self.bytes.resize(end as usize, 0);
        }
    }

    fn step(&mut self, rng: &mut ChaCha8Rng) -> Result<(), Error> {
        let ctx = context();
        let size = self.bytes.len() as u64;
        let at = rng.random_range(0..LIMIT);
        let len = rng.random_range(1..65_536).min(LIMIT - at).max(1);
        let aligned = |n: u64| n / self.unit * self.unit;
        let (from, by) = (aligned(at), aligned(len).max(self.unit));
        match rng.random_range(0..20) {
            0..=5 => {
                let content: Vec<u8> = (0..len).map(|_| rng.random()).collect();
                self.fs().write(&ctx, self.inode, at, &content)?;
                self.grow_model(at + len);
                self.bytes[at as usize..(at + len) as usize].copy_from_slice(&content);
            }
            6 => {
                let content: Vec<u8> = (0..len).map(|_| rng.random()).collect();
                if size + len <= LIMIT {
                    assert_eq!(self.fs().append(&ctx, self.inode, &content)?, size);
                    self.bytes.extend(content);
                }
            }
            7..=8 => {
                self.fs().truncate(&ctx, self.inode, at)?;
                self.bytes.resize(at as usize, 0);
            }
            9 => self.fs().write_back_file(&ctx, self.inode)?,
            10 => self.fs().fsync(&ctx, self.inode)?,
            11 => {
                self.fs().fallocate(&ctx, self.inode, Fallocate::PunchHole, at, len)?;
                let end = (at + len).min(size);
                if at < end {
                    self.bytes[at as usize..end as usize].fill(0);
                }
            }
            12 if self.extents => {
                self.fs().fallocate(&ctx, self.inode, Fallocate::ZeroRange, at, len)?;
                self.grow_model(at + len);
                self.bytes[at as usize..(at + len) as usize].fill(0);
            }
            13 if self.extents => {
                self.fs().fallocate(&ctx, self.inode, Fallocate::Allocate, at, len)?;
                self.grow_model(at + len);
            }
            14 if self.extents => {
                self.fs().fallocate(&ctx, self.inode, Fallocate::AllocateKeepSize, at, len)?;
            }
            15 if self.extents && from + by < size => {
                self.fs().fallocate(&ctx, self.inode, Fallocate::CollapseRange, from, by)?;
                self.bytes.drain(from as usize..(from + by) as usize);
            }
            16 if self.extents && from < size && size + by <= LIMIT => {
                self.fs().fallocate(&ctx, self.inode, Fallocate::InsertRange, from, by)?;
                let tail = self.bytes.split_off(from as usize);
                self.bytes.resize((from + by) as usize, 0);
                self.bytes.extend(tail);
            }
            17 if rng.random_range(0..40) == 0 => {
                self.fs.take().unwrap().close(&ctx).unwrap();
                self.fs = Some(open(&self.device));
            }
            _ => self.compare(at, len),
        }
        Ok(())
    }

    fn compare(&self, at: u64, len: u64) {
        let size = self.fs().attributes(self.inode).unwrap().size;
        assert_eq!(size, self.bytes.len() as u64, "size");
        let mut read = vec![0xA5; len as usize];
        let n = self.fs().read(&context(), self.inode, at, &mut read).unwrap();
        let end = (at + len).min(size);
        let expected = if at < end { &self.bytes[at as usize..end as usize] } else { &[] };
        assert_eq!(n, expected.len());
        if let Some(wrong) = read[..n].iter().zip(expected).position(|(a, b)| a != b) {
            panic!("byte {} reads {:#x}, {:#x} was written", at + wrong as u64, read[wrong], expected[wrong]);
        }
    }
}

fn open(device: &Arc<MemoryDevice>) -> FileSystem {
    let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(device);
    FileSystem::open(shared, OpenOptions::default(), &context()).unwrap()
}

fn run(name: &str, options: &mkfs::Options, unit: u64, extents: bool, image: u64) {
    let steps = if full_matrix() { 200_000 } else { 4_000 };
    let mut rng = ChaCha8Rng::seed_from_u64(seed(20_261_121));
    let mut world = World::new(options, unit, extents, image);
    for step in 0..steps {
        match world.step(&mut rng) {
            Ok(()) => {}
            Err(error) => panic!("{name}: step {step}: {error}"),
        }
        world.compare(rng.random_range(0..LIMIT), 4096);
    }
    world.compare(0, LIMIT);
    world.fs.take().unwrap().close(&context()).unwrap();
    if require(&["e2fsck"]) {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("image");
        world.device.save(&path).unwrap();
        e2fsck_clean(&path);
    }
}

#[test]
fn four_kib_blocks() {
    run("4k", &mkfs::Options::ext4().block_size(4096).identity(1, 1), 4096, true, 32 << 20);
}

#[test]
fn one_kib_blocks() {
    run("1k", &mkfs::Options::ext4().block_size(1024).identity(1, 1), 1024, true, 16 << 20);
}

#[test]
fn clusters_of_sixteen_blocks() {
    let options =
        mkfs::Options::ext4().block_size(4096).features("bigalloc").cluster_size(65_536).identity(1, 1);
    run("bigalloc 64k", &options, 65_536, true, 64 << 20);
}

#[test]
fn clusters_of_two_small_blocks() {
    let options =
        mkfs::Options::ext4().block_size(1024).features("bigalloc").cluster_size(2048).identity(1, 1);
    run("bigalloc 2k", &options, 2048, true, 16 << 20);
}

#[test]
fn indirect_blocks() {
    run("ext3", &mkfs::Options::ext3().block_size(1024).identity(1, 1), 1024, false, 16 << 20);
}
