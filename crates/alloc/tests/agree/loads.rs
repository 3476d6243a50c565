//! Loads: what is done to the mounted file system. Each operation is announced in the trace with what no trace point
//! shows: the size that the file has when blocks are asked for, and who has it open for writing.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rustix::fs::{FallocateFlags, fallocate, fsync};

use super::kernel::Kernel;

/// A kind of load.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Load {
    SmallFiles,
    Appends,
    WholeFiles,
    Sparse,
    Fallocate,
    LargeFallocate,
    ClosedTails,
    Directories,
    Churn,
    TwoWriters,
    Mixed,
    FillUp,
}

pub(crate) const LOADS: [Load; 12] = [
    Load::SmallFiles,
    Load::Appends,
    Load::WholeFiles,
    Load::Sparse,
    Load::Fallocate,
    Load::LargeFallocate,
    Load::ClosedTails,
    Load::Directories,
    Load::Churn,
    Load::TwoWriters,
    Load::Mixed,
    Load::FillUp,
];

pub(crate) struct Loader<'a> {
    kernel: &'a mut Kernel,
    rng: ChaCha8Rng,
    root: PathBuf,
    block: u64,
    names: u32,
    files: Vec<PathBuf>,
}

struct Open {
    file: File,
    ino: u64,
}

impl<'a> Loader<'a> {
    pub(crate) fn new(kernel: &'a mut Kernel, rng: ChaCha8Rng, block: u64) -> Self {
        let root = kernel.mount();
        Self { kernel, rng, root, block, names: 0, files: Vec::new() }
    }

    fn create(&mut self) -> Option<Open> {
        self.names += 1;
        let path = self.root.join(format!("f{}", self.names));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).ok()?;
        self.files.push(path);
        Some(self.opened(file))
    }

    fn reopen(&mut self) -> Option<Open> {
        let at = self.rng.random_range(0..self.files.len().max(1));
        let path = self.files.get(at)?;
        let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
        Some(self.opened(file))
    }

    fn opened(&mut self, file: File) -> Open {
        let metadata = file.metadata().unwrap();
        let ino = metadata.ino();
        self.kernel.mark(&format!("open {ino}"));
        self.kernel.mark(&format!("size {ino} {}", metadata.len()));
        Open { file, ino }
    }

    /// Closes: the drop of preallocations shows in the trace by itself.
    fn close(&mut self, open: Open) {
        let ino = open.ino;
        drop(open);
        self.kernel.mark(&format!("close {ino}"));
    }

    /// Writes `blocks` blocks at block `at` through the cache and syncs, with the file open.
    fn write(&mut self, open: &Open, at: u64, blocks: u64) {
        self.dirty(open, at, blocks);
        let _ = fsync(&open.file);
    }

    fn dirty(&mut self, open: &Open, at: u64, blocks: u64) {
        let old = open.file.metadata().unwrap().len();
        let size = old.max((at + blocks) * self.block);
        self.kernel.mark(&format!("size {} {size}", open.ino));
        let data = vec![7u8; (blocks * self.block) as usize];
        let _ = open.file.write_all_at(&data, at * self.block);
    }

    fn fallocate(&mut self, open: &Open, at: u64, blocks: u64) {
        let size = open.file.metadata().unwrap().len();
        self.kernel.mark(&format!("size {} {size}", open.ino));
        let keep = FallocateFlags::KEEP_SIZE;
        let _ = fallocate(&open.file, keep, at * self.block, blocks * self.block);
    }

    fn remove(&mut self) {
        if self.files.is_empty() {
            return;
        }
        let at = self.rng.random_range(0..self.files.len());
        let path = self.files.swap_remove(at);
        let _ = fs::remove_file(path);
    }

    fn truncate(&mut self, open: &Open) {
        let size = open.file.metadata().unwrap().len() / self.block;
        let to = self.rng.random_range(0..=size) * self.block;
        let _ = open.file.set_len(to);
        self.kernel.mark(&format!("size {} {to}", open.ino));
    }

    fn length(&mut self, max: u64) -> u64 {
        let bits = 64 - max.leading_zeros();
        let bits = self.rng.random_range(1..=bits);
        self.rng.random_range(1..=max.min(1 << bits))
    }

    /// About `steps` operations of one kind.
    pub(crate) fn load(&mut self, load: Load, steps: u32) {
        if matches!(load, Load::Churn) {
            (0..steps).for_each(|_| self.step(Load::WholeFiles));
        }
        for _ in 0..steps {
            let load = match load {
                Load::Mixed => LOADS[self.rng.random_range(0..10)],
                other => other,
            };
            self.step(load);
        }
    }

    fn step(&mut self, load: Load) {
        match load {
            Load::SmallFiles => {
                let Some(open) = self.create() else { return };
                let blocks = self.rng.random_range(1..=18);
                self.write(&open, 0, blocks);
                self.close(open);
            }
            Load::Appends => {
                let Some(open) = self.create() else { return };
                let mut at = 0;
                for _ in 0..self.rng.random_range(2..12) {
                    let blocks = self.length(60);
                    self.write(&open, at, blocks);
                    at += blocks;
                }
                self.close(open);
            }
            Load::WholeFiles => {
                let Some(open) = self.create() else { return };
                let blocks = self.length(2600);
                self.write(&open, 0, blocks);
                self.close(open);
            }
            Load::Sparse => {
                let Some(open) = self.create() else { return };
                for _ in 0..self.rng.random_range(2..8) {
                    let at = self.rng.random_range(0..3000);
                    let blocks = self.length(120);
                    self.write(&open, at, blocks);
                }
                self.close(open);
            }
            Load::Fallocate => {
                let Some(open) = self.create() else { return };
                for _ in 0..self.rng.random_range(1..6) {
                    let at = self.rng.random_range(0..400);
                    let blocks = self.length(700);
                    self.fallocate(&open, at, blocks);
                }
                self.close(open);
            }
            Load::LargeFallocate => {
                let Some(open) = self.create() else { return };
                let blocks = if self.rng.random_bool(0.1) { 40_000 } else { self.length(9000) };
                self.fallocate(&open, 0, blocks);
                self.close(open);
                if self.rng.random_bool(0.6) {
                    self.remove();
                }
            }
            Load::ClosedTails => {
                let Some(open) = self.create() else { return };
                let blocks = self.length(900);
                self.dirty(&open, 0, blocks);
                self.close(open);
                let _ = rustix::fs::syncfs(File::open(&self.root).unwrap());
            }
            Load::Directories => {
                self.names += 1;
                let path = self.root.join(format!("d{}", self.names));
                if fs::create_dir(&path).is_ok() {
                    for n in 0..self.rng.random_range(1..40) {
                        let _ = fs::write(path.join(format!("{n:0>100}")), b"");
                    }
                }
            }
            Load::Churn => {
                if self.rng.random_bool(0.4) {
                    self.remove();
                } else if let Some(open) = self.reopen() {
                    self.truncate(&open);
                    let at = open.file.metadata().unwrap().len() / self.block;
                    let blocks = self.length(200);
                    self.write(&open, at, blocks);
                    self.close(open);
                }
            }
            Load::TwoWriters => {
                let (Some(a), Some(b)) = (self.create(), self.create()) else { return };
                let mut at = 0;
                for _ in 0..6 {
                    let blocks = self.length(40);
                    self.write(&a, at, blocks);
                    self.write(&b, at, blocks);
                    at += blocks;
                }
                self.close(a);
                self.close(b);
            }
            Load::FillUp | Load::Mixed => {
                let Some(open) = self.create() else { return };
                let blocks = self.length(3000);
                self.fallocate(&open, 0, blocks);
                self.close(open);
                if self.rng.random_bool(0.45) {
                    self.remove();
                }
            }
        }
    }
}
