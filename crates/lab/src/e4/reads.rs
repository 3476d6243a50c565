//! What e2fsck reads, in order, as seen by strace; what our checker reads; and which of these reads
//! reach a disk.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use blockyard_device::BlockDevice;
use blockyard_device::modelled::Request;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use serde::{Deserialize, Serialize};

use super::PASSES;
use crate::host::Host;
use crate::recorded_reads::{in_one_thread, recorded_reads};

/// First byte and length of every read: first those before the passes, then those of each pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PassReads(pub(super) Vec<Vec<(u64, u64)>>);

/// Runs e2fsck on an image under strace, without e2fsck's own read-ahead; `None` if strace is
/// missing or may not trace, or if e2fsck fails.
pub(super) fn of_e2fsck(program: &str, image: &Path, folder: &Path) -> Result<Option<PassReads>> {
    let log = folder.join("strace");
    let traced = Command::new("strace")
        .args(["-f", "-q", "-s", "16", "-e", "trace=pread64,write", "-o"])
        .arg(&log)
        .arg(program)
        .args(["-fn", "-tt", "-E", "readahead_kb=0"])
        .arg(image)
        .output();
    let Ok(output) = traced else { return Ok(None) };
    if !output.status.success() {
        return Ok(None);
    }
    let text = std::fs::read(&log).context("the log of strace")?;
    parse(&String::from_utf8_lossy(&text)).map(Some)
}

/// Runs our checker in one thread. Its passes are those of e2fsck.
pub(super) fn of_our_checker(device: &Arc<dyn BlockDevice>) -> Result<PassReads> {
    let (mut reads, costs) = recorded_reads(device, |device| {
        let (report, costs) = blockyard_check::measure(&*device, None, &in_one_thread())?;
        ensure!(report.is_clean(), "our checker found errors: {:?}", report.findings.first());
        Ok(costs)
    })?;
    ensure!(costs.len() == PASSES + 1, "our checker: {} passes", costs.len().saturating_sub(1));
    debug_assert!(costs.iter().map(|cost| cost.reads).sum::<u64>() <= u64_from_usize(reads.len()));
    Ok(PassReads(costs.iter().map(|cost| reads.drain(..usize_from_u64(cost.reads)).collect()).collect()))
}

/// Parses the reads in strace's output. A pass begins where e2fsck prints the pass's name. Threads
/// of e2fsck read bitmaps in parallel, in an order that changes from run to run. So their reads are
/// put in disk order, as a single thread would read.
fn parse(log: &str) -> Result<PassReads> {
    let mut passes: Vec<Vec<(u64, u64)>> = vec![Vec::new()];
    let mut beside: Vec<(u64, u64)> = Vec::new();
    let main = log.split(' ').next().unwrap_or_default();
    for line in log.lines() {
        let is_main = line.split(' ').next() == Some(main);
        let read = line.contains("pread64").then(|| of_line(line)).flatten();
        if let (Some(read), false) = (read, is_main) {
            beside.push(read);
            continue;
        }
        let place = passes.last_mut().context("reads before the passes have a place")?;
        if is_main {
            beside.sort_unstable();
            place.append(&mut beside);
            place.extend(read);
        }
        if is_beginning(line, passes.len()) {
            passes.push(Vec::new());
        }
    }
    ensure!(passes.len() == PASSES + 1, "e2fsck under strace: {} passes", passes.len() - 1);
    // Before e2fsck starts, the dynamic loader reads headers of libraries. Unlike reads of the
    // image, these are not at multiples of 1 KiB.
    passes[0].retain(|(offset, _)| offset % 1024 == 0);
    Ok(PassReads(passes))
}

/// Whether a line starts a pass of e2fsck: `Pass 2: Checking directory structure`.
fn is_beginning(line: &str, pass: usize) -> bool {
    line.split_once("write(1, \"").is_some_and(|(_, text)| text.starts_with(&format!("Pass {pass}: Check")))
}

/// Offset and length of `pread64(3, "..."..., 4096, 8192) = 4096`. If another thread makes a call
/// meanwhile, strace prints the call in two halves, on two lines. Then the second line has both.
fn of_line(line: &str) -> Option<(u64, u64)> {
    let (call, result) = line.rsplit_once(") = ")?;
    let length: u64 = result.split(' ').next()?.parse().ok()?;
    let offset = call.rsplit_once(", ")?.1.parse().ok()?;
    (length > 0).then_some((offset, length))
}

impl PassReads {
    /// The requests to a disk, pass by pass.
    pub(super) fn asked_of_disk(&self) -> Vec<Vec<Request>> {
        let mut host = Host::default();
        self.0.iter().map(|reads| host.asked_of_disk(reads.iter().copied())).collect()
    }
}

#[cfg(test)]
mod tests {
    use blockyard_device::MemoryDevice;
    use blockyard_engine::mkfs;

    use super::*;

    /// On an empty file system pass 1 reads inodes, pass 2 the blocks of two directories, pass 5
    /// bitmaps.
    #[test]
    fn the_reads_of_our_checker_belong_to_its_passes() {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(64 << 20));
        mkfs::format(&*device, &crate::run::default_mkfs(1)).unwrap();
        let PassReads(found) = of_our_checker(&device).unwrap();
        assert_eq!(found.len(), PASSES + 1);
        assert!(found[0].iter().any(|(offset, _)| *offset == 1024), "the superblock: {found:?}");
        assert!([1, 2, 5].iter().all(|pass| !found[*pass].is_empty()), "{found:?}");
        assert_eq!(of_our_checker(&device).unwrap(), PassReads(found), "it repeats");
    }

    #[test]
    fn reads_belong_to_the_pass_that_was_begun() {
        let mut log = String::from(
            "7 pread64(3, \"\\6\"..., 784, 64) = 784\n7 pread64(3, \"\"..., 1024, 1024) = 1024\n",
        );
        for pass in 1..=5 {
            log += &format!(
                "7 write(1, \"Pass {pass}: Checking \", 17) = 17\n7 pread64(3, \") = 7, \"..., 8192, {}) = 4096\n\
                 9 pread64(3, \"\"..., 4096, 81920) = 4096\n8 pread64(3, \"\"..., 4096, 40960) = 4096\n\
                 7 write(1, \"Pass {pass}: \", 8) = 8\n7 write(1, \"Memory used: 13\"..., 32) = 32\n",
                pass * 8192
            );
        }
        let PassReads(found) = parse(&log).unwrap();
        assert_eq!(found[0], [(1024, 1024)]);
        assert_eq!(
            found[2],
            [(16384, 4096), (40960, 4096), (81920, 4096)],
            "threads in the order of the disk"
        );
        let resumed = "17 <... pread64 resumed>\"\\377\"..., 4096, 12288) = 4096";
        assert_eq!(
            (of_line(resumed), of_line("17 pread64(3,  <unfinished ...>")),
            (Some((12288, 4096)), None)
        );
        assert!(parse(&log.replace("Pass 5: Checking", "Pass five")).is_err());
    }
}
