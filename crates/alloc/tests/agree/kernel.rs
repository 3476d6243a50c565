//! The kernel as oracle: a loop device with ext4, and a private trace instance that records its allocator.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use blockyard_testkit::{mke2fs, run};

/// Events that a comparison needs.
const EVENTS: [&str; 10] = [
    "ext4/ext4_request_blocks",
    "ext4/ext4_allocate_blocks",
    "ext4/ext4_mballoc_alloc",
    "ext4/ext4_mballoc_prealloc",
    "ext4/ext4_discard_preallocations",
    "ext4/ext4_mballoc_free",
    "ext4/ext4_allocate_inode",
    "jbd2/jbd2_handle_start",
    "jbd2/jbd2_handle_restart",
    "jbd2/jbd2_end_commit",
];

/// An image kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub mke2fs: &'static [&'static str],
    pub(crate) size: &'static str,
    pub(crate) mount: &'static str,
    pub(crate) rotational: bool,
    /// Groups are not loaded before the load starts.
    pub(crate) lazy: bool,
}

/// One mounted image under observation. Dropping it unmounts, detaches and removes everything.
pub(crate) struct Kernel {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) device: String,
    pub(crate) dump: String,
    trace: PathBuf,
    /// Closed before the instance can go.
    marker: Option<fs::File>,
}

fn tool(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

impl Kernel {
    pub(crate) fn new(kind: Kind) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        let mut arguments =
            vec!["-t", "ext4", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"];
        arguments.extend(kind.mke2fs);
        mke2fs(&image, &arguments, kind.size);
        let dump = tool("dumpe2fs", &[image.to_str().unwrap()]);
        let device = tool("losetup", &["-f", "--show", image.to_str().unwrap()]);
        let name = device.trim_start_matches("/dev/").to_owned();
        let mount = directory.path().join("mnt");
        let trace_root = directory.path().join("tracing");
        let trace = trace_root.join(format!("instances/blockyard-{}-{name}", std::process::id()));
        // From here on the drop cleans up, whatever fails.
        let mut kernel = Self { directory, device: name, dump, trace, marker: None };
        let rotational = format!("/sys/block/{}/queue/rotational", kernel.device);
        fs::write(rotational, if kind.rotational { "1" } else { "0" }).unwrap();
        fs::create_dir(&mount).unwrap();
        let options = format!("no_prefetch_block_bitmaps{}", kind.mount);
        tool("mount", &["-t", "ext4", "-o", &options, &device, mount.to_str().unwrap()]);
        fs::create_dir(&trace_root).unwrap();
        tool("mount", &["-t", "tracefs", "none", trace_root.to_str().unwrap()]);
        fs::create_dir(&kernel.trace).unwrap();
        let marker = fs::OpenOptions::new().write(true).open(kernel.trace.join("trace_marker")).unwrap();
        kernel.marker = Some(marker);
        if !kind.lazy {
            // Reading it loads every group.
            kernel.proc("mb_groups");
        }
        fs::write(kernel.sys("mb_stats"), "1").unwrap();
        kernel.start_trace();
        kernel
    }

    fn start_trace(&self) {
        let put = |file: &str, text: &str| {
            fs::write(self.trace.join(file), text).unwrap_or_else(|error| panic!("{file}: {error}"));
        };
        put("buffer_size_kb", "24576");
        put("trace_clock", "counter");
        let numbers = fs::read_to_string(format!("/sys/block/{}/dev", self.device)).unwrap();
        let (major, minor) = numbers.trim().split_once(':').unwrap();
        let dev = (major.parse::<u32>().unwrap() << 20) | minor.parse::<u32>().unwrap();
        for system in ["ext4", "jbd2"] {
            put(&format!("events/{system}/filter"), &format!("dev=={dev}"));
        }
        for event in EVENTS {
            put(&format!("events/{event}/enable"), "1");
        }
    }

    pub(crate) fn mount(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    pub(crate) fn proc(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/fs/ext4/{}/{file}", self.device)).unwrap()
    }

    fn sys(&self, file: &str) -> PathBuf {
        Path::new("/sys/fs/ext4").join(&self.device).join(file)
    }

    pub(crate) fn tunable(&self, file: &str) -> u64 {
        fs::read_to_string(self.sys(file)).unwrap().trim().parse().unwrap()
    }

    /// Puts a line into the trace.
    pub(crate) fn mark(&mut self, text: &str) {
        let marker = self.marker.as_mut().expect("open until the drop");
        writeln!(marker, "{text}").unwrap();
    }

    /// The trace so far; panics when events were lost.
    pub(crate) fn trace(&self) -> String {
        for cpu in fs::read_dir(self.trace.join("per_cpu")).unwrap() {
            let stats = fs::read_to_string(cpu.unwrap().path().join("stats")).unwrap();
            assert!(stats.lines().any(|line| line == "overrun: 0"), "trace events were lost");
        }
        fs::read_to_string(self.trace.join("trace")).unwrap()
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.marker = None;
        let _ = fs::remove_dir(&self.trace);
        let root = self.directory.path();
        for sub in ["mnt", "tracing"] {
            let done = run("umount", &[root.join(sub).to_str().unwrap()]).status.success();
            if !done {
                run("umount", &["-l", root.join(sub).to_str().unwrap()]);
            }
        }
        run("losetup", &["-d", &format!("/dev/{}", self.device)]);
    }
}
