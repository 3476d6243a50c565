//! The programs that recover an image, and those that check the result.
//!
//! An image is recovered three times: by our engine, by `e2fsck -fy`, and by a mount of the running
//! kernel. Our checker and `e2fsck -fn` look at each result, and all three results must be the same
//! tree (for the one exception see `LOST_VALUES`). e2fsck judges only if it is installed. The
//! kernel judges only if we are root and can attach a loop device. A missing judge is reported.

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use blockyard_device::{BlockDevice, FileDevice};
use blockyard_disk::Incompat;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use blockyard_disk::superblock::{PRIMARY_OFFSET, RawSuperblock, Superblock};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::walk::{self, Tree, difference};
use crate::run::e2fsck_program;

/// The judges available on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judges {
    /// The program e2fsck, if e2fsprogs is installed.
    e2fsck: Option<&'static str>,
    /// Whether the kernel can mount images.
    kernel: bool,
    /// The missing judges, and why they are missing.
    pub missing: Vec<String>,
}

/// Problems that `e2fsck -fy` may report on a crash state, because every recovery repairs them:
///
/// - totals in the superblock, which neither Linux nor our engine keeps exact;
/// - orphans;
/// - an orphan file that is marked as in use and is not empty yet.
const HARMLESS: [&str; 5] = ["0x05000f", "0x05000d", "0x000020", "0x06000c", "0x06000d"];

/// Problems that e2fsck 1.47 reports if a deleted file on the orphan list has a value inode. e2fsck
/// does not release the value inode, finds it without a name, and connects it to `lost+found`. It
/// does the same with images of Linux 6.18.
const LOST_VALUES: [&str; 2] = ["0x040002", "0x040003"];

/// What `e2fsck -fy` repaired beyond the problems that every recovery repairs ([`HARMLESS`]).
enum Repaired {
    Nothing,
    /// e2fsck connected value inodes of deleted files ([`LOST_VALUES`]).
    LostValues,
    Found(String),
}

/// A tree without `lost+found`, where e2fsck connects inodes that it finds without a name.
fn without_lost(tree: &Tree) -> Tree {
    let is_kept = |path: &[u8]| !path.starts_with(b"lost+found");
    tree.iter().filter(|(path, _)| is_kept(path)).map(|(path, node)| (path.clone(), node.clone())).collect()
}

/// Size of a page of memory in bytes.
const PAGE: u32 = 4096;

/// Bytes compared and copied at once.
const CHUNK: usize = 64 << 10;

impl Judges {
    /// Finds the judges. `scratch` is a directory for trying a loop device.
    pub(super) fn find(scratch: &Path) -> Self {
        let mut missing = Vec::new();
        let e2fsck = e2fsck_program();
        if e2fsck.is_none() {
            missing.push("e2fsck: e2fsprogs is not installed".to_owned());
        }
        let kernel = match try_kernel(scratch) {
            Ok(()) => true,
            Err(error) => {
                missing.push(format!("the kernel: {error:#}"));
                false
            }
        };
        Self { e2fsck, kernel, missing }
    }

    /// The judges for images with this block size. If blocks are larger than a page, the kernel
    /// does not judge, because Linux 6.18 cannot mount the image.
    pub(super) fn of_blocks(&self, block_size: u32) -> Self {
        let kernel = self.kernel && block_size <= PAGE;
        Self { kernel, ..self.clone() }
    }

    /// Whether no judge is missing.
    #[must_use]
    pub fn are_complete(&self) -> bool {
        self.missing.is_empty()
    }
}

fn try_kernel(scratch: &Path) -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "mounting needs root");
    let image = scratch.join("trial");
    File::create(&image)?.set_len(1 << 20)?;
    let tried = Loop::attach(&image).map(drop);
    std::fs::remove_file(&image)?;
    tried
}

/// One thread's working directory, where e2fsck and the kernel recover images.
pub(super) struct Bench {
    judges: Judges,
    folder: PathBuf,
    file: File,
    attached: RefCell<Option<Loop>>,
}

/// The judge that found a fault, and what it found.
pub(super) type Fault = (&'static str, String);

impl Bench {
    /// A bench in a new directory, for images of `size` bytes.
    pub(super) fn new(judges: &Judges, folder: PathBuf, size: u64) -> Result<Self> {
        std::fs::create_dir_all(folder.join("mount")).context("a folder for images")?;
        let file =
            File::options().read(true).write(true).create(true).truncate(true).open(folder.join("image"))?;
        file.set_len(size)?;
        let problems = folder.join("problems");
        std::fs::write(
            folder.join("e2fsck.conf"),
            format!("[options]\nproblem_log_filename = {}\n", problems.display()),
        )?;
        Ok(Self { judges: judges.clone(), folder, file, attached: RefCell::new(None) })
    }

    fn image(&self) -> PathBuf {
        self.folder.join("image")
    }

    /// Lets `e2fsck -fn` check `ours`, the device that our engine recovered. Then lets e2fsck and
    /// the kernel recover `image`, checks their results, and compares the resulting trees with
    /// `tree`, which is that of `ours`. Returns the first fault.
    pub(super) fn compare(&self, image: &[u8], ours: &dyn BlockDevice, tree: &Tree) -> Result<Option<Fault>> {
        if let Some(e2fsck) = self.judges.e2fsck {
            self.write_device(ours)?;
            if let Some(found) = self.e2fsck_finds(e2fsck)? {
                return Ok(Some(("e2fsck -fn after ours", found)));
            }
            self.write(image)?;
            if let Some(fault) = self.by_e2fsck(e2fsck, tree)? {
                return Ok(Some(fault));
            }
        }
        match self.loop_device(image)? {
            Some(device) => self.by_kernel(&device, tree),
            None => Ok(None),
        }
    }

    /// A loop device that shows `image`; `None` where the kernel does not judge.
    ///
    /// While any process has a loop device open, the device's page cache keeps the old content of
    /// the backing file. Programs that list loop devices open them all. So the device is read
    /// before use, and replaced if it does not show `image`.
    fn loop_device(&self, image: &[u8]) -> Result<Option<std::cell::Ref<'_, Loop>>> {
        if !self.judges.kernel {
            return Ok(None);
        }
        self.write(image)?;
        for _ in 0..20 {
            let ready = self.attached.borrow().as_ref().map_or(Ok(false), |device| device.shows(image))?;
            if ready {
                return Ok(std::cell::Ref::filter_map(self.attached.borrow(), Option::as_ref).ok());
            }
            self.attached.replace(None);
            self.attached.replace(Some(Loop::attach(&self.image())?));
        }
        bail!("no loop device shows what was written to its file")
    }

    fn by_e2fsck(&self, e2fsck: &str, tree: &Tree) -> Result<Option<Fault>> {
        let repaired = self.repair(e2fsck)?;
        if let Repaired::Found(found) = repaired {
            return Ok(Some(("e2fsck -fy", found)));
        }
        if let Some(found) = self.e2fsck_finds(e2fsck)? {
            return Ok(Some(("e2fsck -fn after e2fsck -fy", found)));
        }
        let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open_read_only(&self.image())?);
        if let Some(found) = check(&*device)? {
            return Ok(Some(("our check after e2fsck -fy", found)));
        }
        let theirs = match walk::of_device(device) {
            Ok(theirs) => theirs,
            Err(error) => return Ok(Some(("our reader after e2fsck -fy", format!("{error:#}")))),
        };
        let difference = match repaired {
            Repaired::LostValues => difference(&without_lost(tree), &without_lost(&theirs)),
            _ => difference(tree, &theirs),
        };
        Ok(difference.map(|found| ("the tree after e2fsck -fy", found)))
    }

    fn by_kernel(&self, device: &Loop, tree: &Tree) -> Result<Option<Fault>> {
        let target = self.folder.join("mount");
        let mounted = patiently(|| mount(&device.0, &target, "ext4", MountFlags::NOATIME, None));
        if let Err(error) = mounted {
            return Ok(Some(("the kernel's mount", error.to_string())));
        }
        let theirs = walk::of_mount(&target);
        patiently(|| unmount(&target, UnmountFlags::empty()))
            .with_context(|| format!("unmount {}", device.0))?;
        device.wait_until_free()?;
        match theirs {
            Err(error) => return Ok(Some(("the kernel's tree", format!("{error:#}")))),
            Ok(theirs) => {
                if let Some(found) = difference(tree, &theirs) {
                    return Ok(Some(("the kernel's tree", found)));
                }
            }
        }
        if let Some(e2fsck) = self.judges.e2fsck
            && let Some(found) = self.e2fsck_finds(e2fsck)?
        {
            return Ok(Some(("e2fsck -fn after the kernel", found)));
        }
        let found = check(&FileDevice::open_read_only(&self.image())?)?;
        Ok(found.map(|found| ("our check after the kernel", found)))
    }

    /// Repairs the image; returns what was repaired beyond the problems that every recovery
    /// repairs.
    fn repair(&self, e2fsck: &str) -> Result<Repaired> {
        let problems = self.folder.join("problems");
        let _ = std::fs::remove_file(&problems);
        let output = Command::new(e2fsck)
            // Linux leaves extent trees that could be shallower, and so do we. Optimising them is
            // not part of recovery.
            .args(["-fy", "-E", "no_optimize_extents"])
            .arg(self.image())
            .env("E2FSCK_CONFIG", self.folder.join("e2fsck.conf"))
            .output()
            .context("run e2fsck")?;
        let log = std::fs::read_to_string(&problems).unwrap_or_default();
        let codes = log.split("<problem code=\"").skip(1).filter_map(|rest| rest.split('"').next());
        let harmful: Vec<&str> = codes.filter(|code| !HARMLESS.contains(code)).collect();
        let exit = output.status.code();
        let is_mended = matches!(exit, Some(0 | 1));
        if is_mended && harmful.is_empty() {
            return Ok(Repaired::Nothing);
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let is_of_values = harmful.iter().all(|code| LOST_VALUES.contains(code));
        if is_mended && is_of_values && text.contains("Clearing orphaned inode") && self.keeps_values()? {
            return Ok(Repaired::LostValues);
        }
        Ok(Repaired::Found(format!("exit code {exit:?}, problems {}: {}", harmful.join(" "), text.trim())))
    }

    /// Whether the image has the feature `ea_inode`: large attribute values in inodes of their own.
    fn keeps_values(&self) -> Result<bool> {
        let mut bytes = [0; RawSuperblock::SIZE];
        self.file.read_exact_at(&mut bytes, PRIMARY_OFFSET)?;
        Ok(Superblock::parse(&bytes)?.features().incompat.contains(Incompat::EA_INODE))
    }

    /// What `e2fsck -fn` finds in the image.
    fn e2fsck_finds(&self, e2fsck: &str) -> Result<Option<String>> {
        let output = Command::new(e2fsck).arg("-fn").arg(self.image()).output().context("run e2fsck")?;
        if output.status.success() {
            return Ok(None);
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(Some(format!("exit code {:?}: {}", output.status.code(), text.trim())))
    }

    /// Changes the image file to these bytes. Only chunks that differ are written.
    fn write(&self, bytes: &[u8]) -> Result<()> {
        let mut old = vec![0; CHUNK];
        let mut chunks = bytes.chunks(CHUNK).enumerate();
        chunks.try_for_each(|(index, new)| self.write_chunk(index, new, &mut old))
    }

    /// Like [`Self::write`], with the bytes of a device.
    fn write_device(&self, device: &dyn BlockDevice) -> Result<()> {
        let (mut new, mut old) = (vec![0; CHUNK], vec![0; CHUNK]);
        for index in 0..usize_from_u64(device.size()).div_ceil(CHUNK) {
            let at = u64_from_usize(index * CHUNK);
            let length = new.len().min(usize_from_u64(device.size() - at));
            device.read_at(at, &mut new[..length])?;
            self.write_chunk(index, &new[..length], &mut old)?;
        }
        Ok(())
    }

    /// Writes one chunk if it differs from that of the file; `old` is a buffer for the file's
    /// chunk.
    fn write_chunk(&self, index: usize, new: &[u8], old: &mut [u8]) -> Result<()> {
        let at = u64_from_usize(index * CHUNK);
        let old = &mut old[..new.len()];
        self.file.read_exact_at(old, at)?;
        if old != new {
            self.file.write_all_at(new, at)?;
        }
        Ok(())
    }
}

/// What our checker finds on a device.
pub(super) fn check(device: &dyn BlockDevice) -> Result<Option<String>> {
    let report =
        blockyard_check::check(device, &blockyard_check::Options { threads: Some(1), ..Default::default() })?;
    if report.is_clean() {
        return Ok(None);
    }
    let shown: Vec<String> = report.findings.iter().take(5).map(|finding| format!("{finding:?}")).collect();
    Ok(Some(format!("{} errors: {}", report.errors, shown.join("; "))))
}

/// Retries a call for at least two seconds while it fails with EBUSY. A program that another thread
/// is just starting may hold our open files for a moment.
fn patiently(mut call: impl FnMut() -> rustix::io::Result<()>) -> rustix::io::Result<()> {
    for _ in 0..2000 {
        match call() {
            Err(rustix::io::Errno::BUSY) => std::thread::sleep(std::time::Duration::from_millis(1)),
            other => return other,
        }
    }
    call()
}

/// A loop device that shows a file; detached when dropped.
struct Loop(String);

impl Loop {
    fn attach(image: &Path) -> Result<Self> {
        let output =
            Command::new("losetup").args(["--find", "--show"]).arg(image).output().context("losetup")?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "losetup: {}", text.trim());
        Ok(Self(String::from_utf8_lossy(&output.stdout).trim().to_owned()))
    }

    /// Opens the device exclusively; `None` while it is mounted.
    fn open_alone(&self) -> Result<Option<File>> {
        let flags = rustix::fs::OFlags::EXCL.bits().cast_signed();
        match File::options().read(true).custom_flags(flags).open(&self.0) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => Ok(None),
            Err(error) => Err(error).with_context(|| self.0.clone()),
        }
    }

    /// Waits, after an unmount, until the device can be opened exclusively. Processes with a copy
    /// of our mount namespace may keep the file system mounted a little longer.
    fn wait_until_free(&self) -> Result<()> {
        for _ in 0..2000 {
            if self.open_alone()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        bail!("{} stays mounted", self.0)
    }

    fn shows(&self, image: &[u8]) -> Result<bool> {
        let Some(file) = self.open_alone()? else { return Ok(false) };
        let mut found = vec![0; CHUNK];
        for (index, expected) in image.chunks(CHUNK).enumerate() {
            let found = &mut found[..expected.len()];
            file.read_exact_at(found, u64_from_usize(index * CHUNK))?;
            if found != expected {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// A shell process that cleans up when the `Keeper` is dropped: it unmounts, detaches loop devices
/// and deletes the directory. It also does so when our process is interrupted or killed, because
/// either way the pipe to the shell closes.
pub(super) struct Keeper(std::process::Child);

/// The script of the shell. `$1` is the directory of all benches.
const KEEPER: &str = r#"
trap '' INT TERM HUP QUIT
cat >/dev/null
for bench in "$1"/*/; do
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        mountpoint -q "$bench/mount" || break
        umount "$bench/mount" 2>/dev/null || sleep 0.1
    done
    for device in $(losetup -n -O NAME -j "$bench/image" 2>/dev/null); do
        # While it is open, nobody can attach it to another file.
        exec 9<"$device" || continue
        losetup -n -O NAME -j "$bench/image" | grep -qx "$device" && losetup -d "$device"
        exec 9<&-
    done
done
rm -rf "$1"
"#;

impl Keeper {
    /// Starts the keeper; `None` if the kernel does not judge, because then there are no mounts or
    /// loop devices.
    pub(super) fn start(judges: &Judges, folder: &Path) -> Result<Option<Self>> {
        if !judges.kernel {
            return Ok(None);
        }
        let mut command = Command::new("sh");
        command
            .process_group(0)
            .args(["-c", KEEPER, "keeper"])
            .arg(folder)
            .stdin(std::process::Stdio::piped());
        let quiet = command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        Ok(Some(Self(quiet.spawn().context("start a shell that cleans up")?)))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
