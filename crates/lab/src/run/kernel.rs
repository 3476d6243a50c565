//! `--beside kernel`: the same workload on the running kernel, on an image on tmpfs that is mounted
//! through a loop device.
//!
//! Key decision: a small shell process, the keeper, mounts and unmounts. It ignores SIGINT,
//! SIGTERM, SIGHUP and SIGQUIT, and reads commands (`mount`, `unmount`) from its standard input.
//! When the input ends, the keeper unmounts everything and restores the kernel's limits of dirty
//! data. The input is a pipe from this process. So the input ends when the cell ends, even by an
//! error or a panic, and when this process is killed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use blockyard_alloc::Policy;
use blockyard_device::FileDevice;
use blockyard_inspect::scan::ImageScan;

use super::cell::{CRITERION_NAMES, figures};
use super::judge::e2fsck_program;
use super::{Judged, KERNEL_ARM, Plan};
use crate::figures::row::{Interleave, Row};
use crate::reading::Reading;
use crate::runner;
use crate::scratch::Scratch;
use crate::target::kernel::KernelTarget;
use crate::workload::MIB;

/// The longest time that a cell waits at its end for the kernel to become quiet, and the time
/// between two checks whether it is.
const QUIET_WAIT: Duration = Duration::from_secs(5);
const QUIET_SAMPLE: Duration = Duration::from_millis(200);

/// The caveat for every table with rows of the kernel and of our engine.
pub const CAVEAT: &str = "kernel: its workers enter the kernel with a system call for each operation and go through VFS, \
     page cache, journal and loop device; ours call the engine in the same process, in memory. Compare how each rate changes \
     with the number of workers, and compare the layouts; do not compare the two rates.";

/// The script of the keeper. `$1`: a directory for the tmpfs; `$2`: the size of the tmpfs in bytes;
/// `$3`: the limit of dirty data in bytes, or an empty string.
const KEEPER: &str = r#"
trap '' INT TERM HUP QUIT
limit=$3
vm=/proc/sys/vm
if [ -n "$limit" ]; then
    bytes=$(cat $vm/dirty_bytes) ratio=$(cat $vm/dirty_ratio)
    background_bytes=$(cat $vm/dirty_background_bytes) background_ratio=$(cat $vm/dirty_background_ratio)
fi
put_back() {
    [ -n "$limit" ] || return 0
    if [ "$bytes" = 0 ]; then echo "$ratio" >$vm/dirty_ratio; else echo "$bytes" >$vm/dirty_bytes; fi
    if [ "$background_bytes" = 0 ]; then
        echo "$background_ratio" >$vm/dirty_background_ratio
    else
        echo "$background_bytes" >$vm/dirty_background_bytes
    fi
}
down() {
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        mountpoint -q "$1" || return 0
        umount "$1" 2>/dev/null && return 0
        sleep 0.1
    done
    umount -l "$1"
}
mount -t tmpfs -o "size=$2,mode=0700" blockyard "$1" || { rmdir "$1"; exit 1; }
mkdir "$1/mnt"
if [ -n "$limit" ]; then
    echo "$limit" >$vm/dirty_bytes
    echo $((limit / 2)) >$vm/dirty_background_bytes
fi
echo ready
while read -r word; do
    case $word in
        mount) mount -t ext4 -o loop,noinit_itable "$1/image" "$1/mnt" && echo done || echo failed ;;
        unmount) down "$1/mnt" && echo done || echo failed ;;
    esac
done
down "$1/mnt"
put_back
down "$1"
rmdir "$1"
"#;

/// Refuses a plan that the kernel cannot run here.
pub(super) fn check(plan: &Plan) -> Result<()> {
    if let Some(missing) = missing() {
        bail!("--beside kernel: needs {missing}; run it where that is available, or leave the option out");
    }
    ensure!(
        plan.interleave != Interleave::Overlap,
        "--beside kernel: overlapping operations are a model of ours; use --interleave threads or lockstep"
    );
    let data = if plan.workload.writes_data() { plan.space_of_files() } else { 0 };
    let available = available_memory();
    ensure!(
        data + 512 * MIB <= available,
        "--beside kernel: {} MiB of files and 512 MiB to spare do not fit the memory of this machine ({} MiB available); \
         give a smaller --scale or fewer --workers",
        data / MIB,
        available / MIB
    );
    Ok(())
}

/// What this machine lacks to mount an image, or `None`.
fn missing() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("root, for loop device and mount");
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some("loop devices (/dev/loop-control)");
    }
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    for (name, text) in [("ext4", "ext4 in the running kernel"), ("tmpfs", "tmpfs in the running kernel")] {
        if !known.lines().any(|line| line.split_whitespace().last() == Some(name)) {
            return Some(text);
        }
    }
    ["mount", "umount", "mountpoint"]
        .into_iter()
        .zip(["the program mount", "the program umount", "the program mountpoint"])
        .find(|(program, _)| Command::new(program).arg("--version").output().is_err())
        .map(|(_, text)| text)
}

/// Bytes of memory available without swapping.
fn available_memory() -> u64 {
    available_of(&fs::read_to_string("/proc/meminfo").unwrap_or_default())
}

/// Available memory in bytes, from the text of `/proc/meminfo`, which counts in KiB; 0 if the text
/// does not say.
fn available_of(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Runs one cell on the kernel. Before it returns, it gives the kernel time to finish the work that
/// the cell left ([`wait_until_quiet`]), so that this work does not slow down the next cell.
pub(super) fn run(plan: &Plan, workers: u32, judged: &mut Judged) -> Result<Row> {
    let row = run_cell(plan, workers, judged);
    wait_until_quiet();
    row
}

/// Waits until the CPUs together spend at most a tenth of one CPU's time in the kernel or waiting
/// for a device, or until [`QUIET_WAIT`] has passed.
fn wait_until_quiet() {
    let began = Instant::now();
    let mut before = kernel_ticks();
    while began.elapsed() < QUIET_WAIT {
        std::thread::sleep(QUIET_SAMPLE);
        let now = kernel_ticks();
        if now.saturating_sub(before) <= 2 {
            return;
        }
        before = now;
    }
}

/// Hundredths of a second that all CPUs together spent in the kernel or waiting for a device.
fn kernel_ticks() -> u64 {
    kernel_ticks_of(&fs::read_to_string("/proc/stat").unwrap_or_default())
}

fn kernel_ticks_of(text: &str) -> u64 {
    let all = text.lines().find_map(|line| line.strip_prefix("cpu "));
    let fields: Vec<u64> =
        all.unwrap_or_default().split_whitespace().filter_map(|field| field.parse().ok()).collect();
    // The fields are user, nice, system, idle, iowait, irq, softirq and others.
    [2, 4, 5, 6].into_iter().filter_map(|field| fields.get(field)).sum()
}

fn run_cell(plan: &Plan, workers: u32, judged: &mut Judged) -> Result<Row> {
    let mut keeper = Keeper::start(plan.dirty_limit)?;
    let image = keeper.folder.join("image");
    let device = plan.image.device()?;
    plan.age(device.shared(), Policy::default())?;
    device.save(&image)?;
    keeper.ask("mount").context("mount the image")?;
    let mounted = keeper.folder.join("mnt");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let cpus = blockyard_disk::num::u32_from_usize(cpus);
    let counters = Counters::of(&mounted)?;
    let target = KernelTarget::new(&mounted);
    let made = plan.workload.workers(&target, workers, cpus)?;
    let before = counters.hits()?;
    let (measured, made) = runner::run(&target, made, cpus, plan.interleave, plan.limit)?;
    let after = counters.hits()?;
    runner::finish(&target, made, cpus, plan.interleave)?;
    keeper.ask("unmount").context("unmount the image")?;
    let device = Arc::new(FileDevice::open_read_only(&image)?);
    judged.verdict.check(&*device)?;
    let scan = ImageScan::of(Arc::<FileDevice>::clone(&device))?;
    let reading = Reading::of(device, plan.seed)?;
    if let Some(program) = e2fsck_program() {
        judged.verdict.e2fsck_file(program, &image)?;
    }
    let mut row = figures(plan, KERNEL_ARM, (workers, cpus), &measured, &scan);
    row.hits = after
        .into_iter()
        .map(|(name, count)| (name, count - before.get(name).unwrap_or(&0)))
        .map(|(name, count)| (name.to_owned(), count))
        .collect();
    row.reading = reading;
    judged.note_map(KERNEL_ARM, workers, scan);
    Ok(row)
}

/// The shell process that mounts and unmounts.
struct Keeper {
    process: Child,
    /// Closed to end the keeper.
    words: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    folder: PathBuf,
    /// The scratch directory whose path is `folder`. Dropping it removes what a killed keeper left;
    /// if this process is killed too, a later process does that.
    _scratch: Scratch,
}

impl Keeper {
    fn start(dirty_limit: Option<u64>) -> Result<Self> {
        let scratch = Scratch::temporary("lab")?;
        let folder = scratch.path().to_owned();
        let size = (available_memory() / 10 * 9).to_string();
        let mut process = Command::new("sh")
            .args(["-c", KEEPER, "blockyard-keeper"])
            .arg(&folder)
            .arg(size)
            .arg(dirty_limit.map_or(String::new(), |limit| limit.to_string()))
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("start a shell that mounts")?;
        let words = process.stdin.take();
        let answers = process.stdout.take().context("the keeper has an output")?;
        let mut keeper = Self { process, words, answers: BufReader::new(answers), folder, _scratch: scratch };
        ensure!(keeper.answer()? == "ready", "a tmpfs could not be mounted: {}", keeper.complaint());
        Ok(keeper)
    }

    fn ask(&mut self, word: &str) -> Result<()> {
        let words = self.words.as_mut().context("the keeper listens")?;
        writeln!(words, "{word}").context("the keeper is gone")?;
        let answer = self.answer()?;
        ensure!(answer == "done", "{}", self.complaint());
        Ok(())
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).context("the keeper is gone")?;
        Ok(line.trim_end().to_owned())
    }

    /// Ends the keeper and returns the error messages of its programs on one line.
    fn complaint(&mut self) -> String {
        self.words = None;
        let mut text = String::new();
        if let Some(mut errors) = self.process.stderr.take() {
            let _ = std::io::Read::read_to_string(&mut errors, &mut text);
        }
        text.trim().replace('\n', "; ")
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.words = None;
        // Before it ends, the keeper unmounts everything and restores the limits.
        let _ = self.process.wait();
    }
}

/// The kernel's counters of one mounted file system.
struct Counters(PathBuf);

impl Counters {
    /// Switches the counters on.
    fn of(mounted: &Path) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts")?;
        let is_ours = |line: &&str| line.split(' ').nth(1) == mounted.to_str();
        let device = mounts.lines().find(is_ours).and_then(|line| line.split(' ').next());
        let name =
            device.and_then(|path| path.strip_prefix("/dev/")).context("the loop device of the mount")?;
        // If the counters cannot be switched on, the cell still runs.
        let _ = fs::write(format!("/sys/fs/ext4/{name}/mb_stats"), "1");
        Ok(Self(PathBuf::from(format!("/proc/fs/ext4/{name}/mb_stats"))))
    }

    /// Number of searches that succeeded under each criterion.
    fn hits(&self) -> Result<BTreeMap<&'static str, u64>> {
        let text = fs::read_to_string(&self.0).with_context(|| self.0.display().to_string())?;
        Ok(hits_of(&text))
    }
}

/// The `hits` of each criterion's section in `mb_stats`; a criterion without `hits` is left out.
fn hits_of(text: &str) -> BTreeMap<&'static str, u64> {
    let mut hits = BTreeMap::new();
    let mut section = None;
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_suffix("_stats:") {
            section = CRITERION_NAMES.into_iter().find(|known| name.strip_prefix("cr_") == Some(known));
        } else if let (Some(name), Some(count)) = (section, line.strip_prefix("hits:"))
            && let Ok(count) = count.trim().parse()
        {
            hits.insert(name, count);
        }
    }
    hits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_those_of_kernel_and_devices() {
        let text = "cpu  100 20 7 5000 30 400 8000 9 0 0\ncpu0 1 1 1 1 1 1 1\nintr 5\n";
        assert_eq!(kernel_ticks_of(text), 7 + 30 + 400 + 8000);
        assert_eq!(kernel_ticks_of(""), 0);
    }

    #[test]
    fn hits_are_read_by_criterion() {
        let text = "mballoc:\n\treqs: 5\n\tcr_p2_aligned_stats:\n\t\thits: 3\n\t\tgroups_considered: 9\n\
                    \tcr_any_free_stats:\n\t\thits: 2\n\textents_scanned: 7\n\t\thits: x\n";
        assert_eq!(hits_of(text), BTreeMap::from([("p2_aligned", 3), ("any_free", 2)]));
    }

    #[test]
    fn available_memory_is_told_in_kib() {
        let text = "MemTotal:       16000 kB\nMemFree:          100 kB\nMemAvailable:    3000 kB\n";
        assert_eq!((available_of(text), available_of("MemTotal: 1 kB\n")), (3000 * 1024, 0));
    }
}
