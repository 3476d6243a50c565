//! `lab run e4`: how long e2fsck takes for the layouts of ext3 and ext4, the published comparison of 2009.
//!
//! A tree of the published shape (files, directories, symbolic and hard links, blocks and inodes used) is copied to a
//! file system of each kind, directory by directory as rsync does, and e2fsck tells time and reads of each of its passes.
//! What a layout decides is the amount read and how far it lies apart; the second shows on a device with seeks only. The
//! published middle column, the first allocator of ext4, is none of our policies.

use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use blockyard_alloc::Policy;
use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::InodeNr;
use blockyard_disk::inode::FileType;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use blockyard_engine::{FileSystem, NewInode, OpenOptions, mkfs};
use serde::{Deserialize, Serialize};

use crate::copy::Tree;
use crate::run::{Verdict, e2fsck_program};
use crate::target::engine::{context, unjournaled};
use crate::workload::{GIB, MIB};

/// Kinds of file system in the order of the columns.
pub const KINDS: [&str; 2] = ["ext3", "ext4"];
/// Passes of e2fsck; the last row of figures is their sum.
pub const PASSES: usize = 5;
/// Regular files of the published tree.
const FILES: u64 = 263_549;
/// Its directories.
const DIRECTORIES: u64 = 28_022;
/// Its symbolic links, of which [`FAST_SYMLINKS`] lie in their inodes.
const SYMLINKS: u64 = 20_618;
const FAST_SYMLINKS: u64 = 19_450;
/// Its further names of files.
const HARD_LINKS: u64 = 615;
/// Bytes of its files: the published 4,388,697 blocks without what ext3 keeps for itself.
const BYTES: u64 = 16 * GIB;
/// Inodes of the published file system.
const INODES: u64 = 2_097_152;
/// Its size.
const IMAGE_BYTES: u64 = 32 * GIB;
/// Bytes written at a time.
const WRITE_BYTES: u64 = 128 << 10;

/// What to run.
#[derive(Clone, Debug)]
pub struct PassPlan {
    /// Policy, as it was asked for.
    pub policy: String,
    /// Factor on everything published.
    pub scale: f64,
    /// Seed.
    pub seed: u64,
}

/// One pass of e2fsck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pass {
    /// Seconds by the clock.
    pub real: f64,
    /// Seconds of the processor in the program.
    pub user: f64,
    /// Seconds of the processor in the kernel.
    pub system: f64,
    /// MiB read, as e2fsck rounds them.
    pub read_mib: f64,
    /// MiB a second, as e2fsck tells them.
    pub rate_mib_s: f64,
}

/// One file system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PassRow {
    /// Always `e4`.
    pub workload: String,
    /// The policy.
    pub policy: String,
    /// `ext3` or `ext4`.
    pub kind: String,
    /// Seed.
    pub seed: u64,
    /// Factor on the published tree.
    pub scale: f64,
    /// The five passes.
    pub passes: Vec<Pass>,
    /// All of them.
    pub total: Pass,
}

impl PassPlan {
    /// Refuses what cannot work, before anything runs.
    ///
    /// # Errors
    /// What is wrong and what to do.
    pub fn check(&self) -> Result<()> {
        Policy::parse(&self.policy)
            .with_context(|| format!("--policy {} (see blockyard policy list)", self.policy))?;
        ensure!(
            (0.005..=1.0).contains(&self.scale),
            "--scale {}: for e4 give a factor from 0.005 to 1",
            self.scale
        );
        Ok(())
    }

    fn scaled(&self, published: u64) -> u64 {
        crate::copy::scaled(published, self.scale).max(1)
    }
}

/// Runs every kind; `progress` is told before each.
///
/// # Errors
/// Those of [`PassPlan::check`], of the file system, and when e2fsck is not installed or finds errors.
pub fn run(plan: &PassPlan, mut progress: impl FnMut(usize, &str)) -> Result<(Vec<PassRow>, Verdict)> {
    plan.check()?;
    let program = e2fsck_program().context("e4: e2fsck tells the figures; install e2fsprogs")?;
    let (mut rows, mut verdict) = (Vec::new(), Verdict::default());
    for (index, kind) in KINDS.into_iter().enumerate() {
        progress(index + 1, &format!("e4 on {kind}"));
        let row = fill(plan, kind).and_then(|device| {
            verdict.check(&*device)?;
            judge(plan, kind, program, &device)
        });
        rows.push(row.with_context(|| format!("e4 on {kind}"))?);
        verdict.add(&Verdict { e2fsck_clean: Some(true), ..Verdict::default() });
    }
    Ok((rows, verdict))
}

/// Makes a file system of a kind and copies the tree to it.
fn fill(plan: &PassPlan, kind: &str) -> Result<Arc<MemoryDevice>> {
    let device = Arc::new(MemoryDevice::new(plan.scaled(IMAGE_BYTES) / MIB * MIB));
    let options = if kind == "ext3" { mkfs::Options::ext3() } else { mkfs::Options::ext4() };
    let mut options = options.block_size(4096).identity(plan.seed, 1_700_000_000);
    options.inodes = Some(u32::try_from(plan.scaled(INODES))?);
    mkfs::format(&*device, &options)?;
    let open = OpenOptions { cpus: 1, ..unjournaled(Policy::parse(&plan.policy)?, plan.seed) };
    let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
    let mut copy = Copy {
        fs: FileSystem::open(shared, open, &context(0))?,
        zeroes: vec![0; usize_from_u64(WRITE_BYTES)],
    };
    copy.tree(plan)?;
    copy.fs.close(&context(0))?;
    Ok(device)
}

/// The copying process.
struct Copy {
    fs: FileSystem,
    zeroes: Vec<u8>,
}

impl Copy {
    fn tree(&mut self, plan: &PassPlan) -> Result<()> {
        let tree = Tree::made_up(plan.scaled(FILES), plan.scaled(BYTES), plan.scaled(DIRECTORIES), plan.seed);
        let count = u64_from_usize(tree.directories.len());
        let (links, hard) = (plan.scaled(SYMLINKS), plan.scaled(HARD_LINKS));
        let mut files = tree.files.iter().enumerate().peekable();
        let mut made: Vec<InodeNr> = Vec::new();
        for (number, parent) in tree.directories.iter().enumerate() {
            let parent = parent.map_or(InodeNr::ROOT, |parent| made[parent]);
            let directory = self.make(parent, &format!("dir{number}"), FileType::Directory)?;
            made.push(directory);
            let mut last = None;
            while let Some((index, file)) = files.next_if(|(_, file)| file.directory == Some(number)) {
                last = Some(self.file(directory, &format!("file{index}"), file.bytes)?);
            }
            let at = u64_from_usize(number);
            for link in at * links / count..(at + 1) * links / count {
                self.symlink(directory, link)?;
            }
            for name in at * hard / count..(at + 1) * hard / count {
                if let Some(inode) = last {
                    self.fs.link(&context(0), inode, directory, format!("hard{name}").as_bytes())?;
                }
            }
        }
        Ok(())
    }

    fn make(&self, parent: InodeNr, name: &str, kind: FileType) -> Result<InodeNr> {
        let new = NewInode { kind, permissions: 0o755, device: None };
        Ok(self.fs.create(&context(0), parent, name.as_bytes(), &new)?)
    }

    fn file(&self, directory: InodeNr, name: &str, bytes: u64) -> Result<InodeNr> {
        let (ctx, inode) = (context(0), self.make(directory, name, FileType::Regular)?);
        self.fs.open_inode(inode, true)?;
        let mut at = 0;
        while at < bytes {
            let length = (bytes - at).min(WRITE_BYTES);
            self.fs.write(&ctx, inode, at, &self.zeroes[..usize_from_u64(length)])?;
            at += length;
        }
        self.fs.release_inode(&ctx, inode, true)?;
        Ok(inode)
    }

    /// Targets that fit into an inode have less than 60 bytes.
    fn symlink(&self, directory: InodeNr, number: u64) -> Result<()> {
        let is_slow = (number + 1) * (SYMLINKS - FAST_SYMLINKS) / SYMLINKS
            > number * (SYMLINKS - FAST_SYMLINKS) / SYMLINKS;
        let target = vec![b'x'; if is_slow { 100 } else { 20 }];
        self.fs.symlink(&context(0), directory, format!("link{number}").as_bytes(), &target)?;
        Ok(())
    }
}

/// Has e2fsck tell its passes.
fn judge(plan: &PassPlan, kind: &str, program: &str, device: &MemoryDevice) -> Result<PassRow> {
    let folder = tempfile::tempdir().context("a folder for the image")?;
    let image = folder.path().join("image");
    device.save(&image)?;
    let output = Command::new(program).args(["-fn", "-tt"]).arg(&image).output().context("run e2fsck")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "e2fsck found errors: {}", text.lines().last().unwrap_or_default());
    let (passes, total) = passes(&text)?;
    Ok(PassRow {
        workload: "e4".to_owned(),
        policy: plan.policy.clone(),
        kind: kind.to_owned(),
        seed: plan.seed,
        scale: plan.scale,
        passes,
        total,
    })
}

/// The passes and the total of what `e2fsck -tt` prints.
fn passes(text: &str) -> Result<(Vec<Pass>, Pass)> {
    let mut found = vec![Pass::default(); PASSES];
    let mut total = Pass::default();
    let mut lines = 0;
    for line in text.lines() {
        let pass = match line.strip_prefix("Pass ") {
            Some(rest) => rest
                .split_once(": ")
                .and_then(|(number, _)| number.parse::<usize>().ok())
                .and_then(|number| found.get_mut(number.checked_sub(1)?)),
            None if line.starts_with("Memory used") || line.starts_with("I/O read") => Some(&mut total),
            None => None,
        };
        let Some(pass) = pass else { continue };
        if let Some((_, times)) = line.split_once("time:") {
            let times: Vec<f64> = times.split('/').filter_map(|time| time.trim().parse().ok()).collect();
            let [real, user, system] = times[..] else { bail!("e2fsck -tt: no three times in {line:?}") };
            (pass.real, pass.user, pass.system) = (real, user, system);
            lines += 1;
        } else if let Some((_, read)) = line.split_once("I/O read: ") {
            let number =
                |from: Option<&str>| from.and_then(|text| text.split("MB").next()?.trim().parse().ok());
            let figures = (number(Some(read)), number(read.split_once("rate: ").map(|(_, rate)| rate)));
            let (Some(mib), Some(rate)) = figures else { bail!("e2fsck -tt: no amount in {line:?}") };
            (pass.read_mib, pass.rate_mib_s) = (mib, rate);
            lines += 1;
        }
    }
    ensure!(
        lines == 2 * (PASSES + 1),
        "e2fsck -tt: {lines} lines of figures instead of {}",
        2 * (PASSES + 1)
    );
    Ok((found, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_e2fsck_prints_is_read() {
        let mut text = String::from("e2fsck 1.47.0 (5-Feb-2023)\n");
        for pass in 1..=5 {
            text += &format!(
                "Pass {pass}: Checking things\nPass {pass}: Memory used: 272k/0k (110k/163k), time:  1.5{pass}/ 0.25/ 0.01\n\
                 Pass {pass}: I/O read: 2{pass}MB, write: 0MB, rate: 13.5MB/s\n"
            );
        }
        text += "Peak memory: Memory used: 2k/0k (1k/1k), time:  9.00/ 9.00/ 9.00\nimage: 11/16 files\n";
        assert!(passes(&text).is_err(), "no total");
        text += "Memory used: 272k/0k (82k/191k), time:  7.00/ 2.00/ 1.00\nI/O read: 99MB, write: 0MB, rate: 45.07MB/s\n";
        let (found, total) = passes(&text).unwrap();
        assert_eq!(found[2], Pass { real: 1.53, user: 0.25, system: 0.01, read_mib: 23.0, rate_mib_s: 13.5 });
        assert_eq!((total.real, total.read_mib, total.rate_mib_s), (7.0, 99.0, 45.07));
    }

    /// ext3 has no note of unused inodes and maps blocks one by one: e2fsck reads more.
    #[test]
    fn ext4_needs_fewer_reads_than_ext3() {
        let plan = PassPlan { policy: "linux-6.18".into(), scale: 0.01, seed: 1 };
        if e2fsck_program().is_none() {
            assert!(run(&plan, |_, _| ()).is_err());
            return;
        }
        let (rows, verdict) = run(&plan, |_, _| ()).unwrap();
        assert!(verdict.is_clean() && verdict.images == 2);
        assert!(rows[0].passes[0].read_mib > 2.0 * rows[1].passes[0].read_mib, "{rows:?}");
        assert!(PassPlan { scale: 2.0, ..plan }.check().is_err());
    }
}
