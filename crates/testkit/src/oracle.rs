//! External programs and the running kernel as oracles.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Whether a program is found on the search path (or in the usual system directories).
#[must_use]
pub fn have_tool(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/sbin"), PathBuf::from("/usr/sbin")])
        .any(|directory| directory.join(name).is_file())
}

/// Whether this process runs as root.
#[must_use]
pub fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        status.lines().any(|line| {
            line.strip_prefix("Uid:").is_some_and(|ids| ids.split_whitespace().nth(1) == Some("0"))
        })
    })
}

/// Keeps the calling thread on the first CPU it may use.
///
/// The kernel's allocators read per-CPU state (counters that lag, locality groups), so their
/// decisions can be repeated only on one CPU.
///
/// # Panics
/// When the kernel refuses.
pub fn stay_on_one_cpu() {
    let allowed = rustix::thread::sched_getaffinity(None).expect("the mask of the calling thread");
    let mut one = rustix::thread::CpuSet::new();
    let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu));
    one.set(first.expect("a thread may run somewhere"));
    rustix::thread::sched_setaffinity(None, &one).expect("a CPU of the thread's own mask");
}

/// Whether every need is met. A need is the name of a program, or `root`. If a need is not met,
/// this prints `SKIPPED-ORACLE: ...` and returns false.
///
/// # Panics
/// When a need is not met and `BLOCKYARD_REQUIRE_ORACLE=1`.
#[must_use]
pub fn require(needs: &[&str]) -> bool {
    let missing: Vec<&str> = needs
        .iter()
        .copied()
        .filter(|need| if *need == "root" { !is_root() } else { !have_tool(need) })
        .collect();
    if missing.is_empty() {
        return true;
    }
    let why = missing.join(", ");
    assert!(
        std::env::var_os("BLOCKYARD_REQUIRE_ORACLE").is_none_or(|value| value != "1"),
        "oracle missing: {why}"
    );
    println!("SKIPPED-ORACLE: {why}");
    false
}

/// Runs a program to its end and returns its output. The caller judges the exit status.
///
/// # Panics
/// When the program cannot be started.
pub fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .env("TZ", "GMT0")
        .output()
        .unwrap_or_else(|error| panic!("{program} {arguments:?}: {error}"))
}

/// Makes a sparse image file with mke2fs. `size` has mke2fs's form, such as `64M`.
///
/// # Panics
/// With mke2fs's output when it fails.
pub fn mke2fs(image: &Path, arguments: &[&str], size: &str) {
    let image = image.to_str().expect("test images have UTF-8 names");
    let _ = std::fs::remove_file(image);
    let mut all = vec!["-q", "-F"];
    all.extend(arguments);
    all.extend([image, size]);
    let output = run("mke2fs", &all);
    assert!(output.status.success(), "mke2fs {all:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Asserts that `e2fsck -fn` finds nothing in an image.
///
/// # Panics
/// With e2fsck's output when its exit code is not 0.
pub fn e2fsck_clean(image: &Path) {
    let image = image.to_str().expect("test images have UTF-8 names");
    let output = run("e2fsck", &["-fn", image]);
    assert!(
        output.status.code() == Some(0),
        "e2fsck -fn {image}: {:?}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// What `e2fsck -fn` says about an image.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Exit code, or 124 when the time ran out; `None` when a signal ended e2fsck.
    pub code: Option<i32>,
    /// What e2fsck printed on standard output.
    pub text: String,
}

impl Verdict {
    /// The lines that say something about the image.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        let is_telling =
            |line: &&str| !line.starts_with("Pass ") && !line.is_empty() && !line.starts_with("e2fsck ");
        self.text.lines().filter(is_telling)
    }
}

/// Runs `e2fsck -fn` on a damaged image with at most 60 seconds and 4 GiB of address space: damaged
/// directories with `large_dir` have made e2fsck allocate 20 GB. If e2fsck reaches a limit, its
/// exit code is not 0. That is the right verdict, because a sound image does not take so much.
///
/// # Panics
/// When prlimit cannot be started.
#[must_use]
pub fn e2fsck_bounded(image: &Path) -> Verdict {
    e2fsck_bounded_with(image, &[])
}

/// As [`e2fsck_bounded`], with more arguments.
///
/// # Panics
/// When prlimit cannot be started.
#[must_use]
pub fn e2fsck_bounded_with(image: &Path, more: &[&str]) -> Verdict {
    let image = image.to_str().expect("test images have UTF-8 names");
    let arguments = ["--as=4294967296", "timeout", "60", "e2fsck", "-fn"];
    let output = run("prlimit", &[&arguments, more, &[image]].concat());
    Verdict { code: output.status.code(), text: String::from_utf8_lossy(&output.stdout).into_owned() }
}

/// A loop device on an image, for reading and writing; detached when dropped.
///
/// A mount of this device with `ro` still replays the journal. A mount with `-o loop,ro` cannot,
/// because its loop device is read-only.
#[derive(Debug)]
pub struct LoopDevice {
    path: String,
}

impl LoopDevice {
    /// Attaches an image.
    ///
    /// # Panics
    /// When losetup fails.
    #[must_use]
    pub fn new(image: &Path) -> Self {
        let image = image.to_str().expect("test images have UTF-8 names");
        let turn = one_at_a_time();
        let output = run("losetup", &["--show", "-f", image]);
        drop(turn);
        assert!(output.status.success(), "losetup {image}: {output:?}");
        Self { path: String::from_utf8_lossy(&output.stdout).trim().to_owned() }
    }

    /// The device, such as `/dev/loop3`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.path]).status();
        let name = self.path.trim_start_matches("/dev/");
        let shown = Path::new("/sys/block").join(name).join("loop/backing_file");
        wait_while(|| shown.exists());
    }
}

/// Lets only one test at a time look for a free loop device, until the result is dropped.
///
/// Otherwise two tests may find the same device free. The kernel refuses the device to the second
/// test, but only after that test has opened the device exclusively for a moment. If the first test
/// runs mke2fs at that moment, mke2fs finds the device in use.
fn one_at_a_time() -> Option<File> {
    let control = File::open("/dev/loop-control").ok()?;
    control.lock().ok()?;
    Some(control)
}

/// An image mounted through a loop device; unmounted when dropped.
#[derive(Debug)]
pub struct LoopMount {
    directory: tempfile::TempDir,
    /// The image, or a loop device on it.
    source: PathBuf,
}

impl LoopMount {
    /// Mounts `image` with the given mount options (`loop` is added).
    ///
    /// # Errors
    /// What `mount` printed when it failed, or why it could not be run.
    pub fn new(image: &Path, options: &str) -> Result<Self, String> {
        let all = if options.is_empty() { "loop".to_owned() } else { format!("loop,{options}") };
        Self::mount(image, &all)
    }

    /// Mounts a loop device; `options` must not be empty.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of_device(device: &LoopDevice, options: &str) -> Result<Self, String> {
        Self::mount(Path::new(device.path()), options)
    }

    /// Mounts an image of another type of file system, such as `xfs`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of_type(image: &Path, kind: &str) -> Result<Self, String> {
        Self::mount_as(kind, image, "loop")
    }

    fn mount(source: &Path, options: &str) -> Result<Self, String> {
        Self::mount_as("ext4", source, options)
    }

    fn mount_as(kind: &str, source: &Path, options: &str) -> Result<Self, String> {
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let turn = options.split(',').any(|option| option == "loop").then(one_at_a_time);
        let output = Command::new("mount")
            .args(["-t", kind, "-o", options])
            .arg(source)
            .arg(directory.path())
            .output()
            .map_err(|error| error.to_string())?;
        drop(turn);
        if output.status.success() {
            Ok(Self { directory, source: source.to_path_buf() })
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// The mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Whether `image` is the backing file of a loop device.
fn is_shown(image: &Path) -> bool {
    std::fs::read_dir("/sys/block").into_iter().flatten().flatten().any(|device| {
        let shown = std::fs::read_to_string(device.path().join("loop/backing_file"));
        shown.is_ok_and(|shown| Path::new(shown.trim_end_matches('\n')) == image)
    })
}

/// Waits up to 5 s until a loop device is detached. The kernel detaches the device only when the
/// last process closes it, and a process that scans all devices may have it open.
fn wait_while(is_attached: impl Fn() -> bool) {
    for _ in 0..250 {
        if !is_attached() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        // Unmounting may fail at first: if another thread of the test is just starting a process,
        // that process briefly has our files open.
        for _ in 0..100 {
            let output = Command::new("umount").arg(self.directory.path()).output();
            if output.is_ok_and(|output| output.status.success()) {
                return wait_while(|| is_shown(&self.source));
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        // A busy mount must not outlive the test: detach it and let the kernel finish.
        let _ = Command::new("umount").arg("-l").arg(self.directory.path()).status();
    }
}
