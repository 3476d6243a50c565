//! Interrupting `lab run`, `lab agree` and `lab crash` leaves nothing behind: no mount, loop
//! device, trace instance, changed write-back setting or scratch file.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use blockyard_testkit::{leftovers, wait_until};
use rustix::fs::{FlockOperation, flock};

const NEEDS: [&str; 7] = ["root", "mount", "umount", "losetup", "mke2fs", "e2fsck", "kill"];

/// Commands that would run for long; `SCRATCH` stands for a folder.
const COMMANDS: [&str; 3] = [
    "lab run fallocate2 --beside kernel --policy yard --workers 1,2 --memory 1G --seconds 0.2 --repeat 50 --quiet",
    "lab agree --level 2 --make untar --ops 20000 --mib 512 --scratch SCRATCH --quiet",
    "lab crash --states 2000 --jobs 1 --scratch SCRATCH --quiet",
];

/// Milliseconds from the start to the signal, which comes before the set-up, during it, or during
/// the work.
const MOMENTS: [u64; 10] = [5, 20, 50, 90, 140, 200, 280, 380, 500, 650];

fn start(line: &str, scratch: &Path) -> Child {
    let line = line.replace("SCRATCH", scratch.to_str().unwrap());
    // The tests may run with INT ignored, as background jobs of a shell do.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM", env!("CARGO_BIN_EXE_blockyard")]).args(line.split(' '));
    command.env("TMPDIR", scratch).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// What a command that has ended wrote to standard error.
fn said(child: &mut Child) -> String {
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    text
}

fn kill(pid: u32, signal: &str) {
    assert!(Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status().unwrap().success());
}

/// Names of the lab's tracefs instances that have no file of the same name in `/run/blockyard`.
fn orphaned_instances() -> Vec<PathBuf> {
    let folder = tempfile::tempdir().unwrap();
    let on =
        |program: &str, arguments: &[&str]| Command::new(program).args(arguments).status().unwrap().success();
    let path = folder.path().to_str().unwrap();
    assert!(on("mount", &["-t", "tracefs", "none", path]));
    let instances = fs::read_dir(folder.path().join("instances")).unwrap().flatten();
    let orphaned = instances.map(|entry| PathBuf::from(entry.file_name())).filter(|name| {
        name.to_str().unwrap().starts_with("blockyard-") && !Path::new("/run/blockyard").join(name).exists()
    });
    let orphaned = orphaned.collect();
    assert!(on("umount", &[path]));
    orphaned
}

/// The kernel's write-back settings, read under a lock on their folder. A comparison with the
/// kernel changes the settings for a while, and holds the lock until it has restored them.
fn settings() -> Vec<String> {
    let folder = File::open("/proc/sys/vm").unwrap();
    flock(&folder, FlockOperation::LockExclusive).unwrap();
    let names = [
        "dirty_bytes",
        "dirty_ratio",
        "dirty_background_bytes",
        "dirty_background_ratio",
        "dirty_expire_centisecs",
        "dirty_writeback_centisecs",
    ];
    names.iter().map(|name| fs::read_to_string(format!("/proc/sys/vm/{name}")).unwrap()).collect()
}

/// An interrupted comparison or crash test once left its mounts, devices and settings behind.
#[test]
fn interrupted_commands_are_gone_with_all_they_made() {
    if !blockyard_testkit::require(&NEEDS) {
        return;
    }
    let before = settings();
    for line in COMMANDS {
        for signal in ["INT", "TERM"] {
            for moment in MOMENTS {
                let scratch = tempfile::tempdir().unwrap();
                let mut child = start(line, scratch.path());
                std::thread::sleep(Duration::from_millis(moment));
                let has_ended = child.try_wait().unwrap();
                assert!(has_ended.is_none(), "{line}: ended within {moment} ms: {}", said(&mut child));
                kill(child.id(), signal);
                let status = child.wait().unwrap();
                let text = said(&mut child);
                assert!(
                    !status.success(),
                    "{line}: {status} although {signal} came after {moment} ms: {text}"
                );
                let left = leftovers(scratch.path());
                assert!(left.is_empty(), "{line}: {signal} after {moment} ms left {left:?}");
            }
        }
    }
    assert_eq!(orphaned_instances(), Vec::<PathBuf>::new());
    assert_eq!(settings(), before);
}

/// A killed process cannot clean up. The next start of blockyard does it.
#[test]
fn the_next_start_takes_down_what_a_killed_one_left() {
    if !blockyard_testkit::require(&NEEDS) {
        return;
    }
    let before = settings();
    let other = tempfile::tempdir().unwrap();
    for line in COMMANDS {
        for moment in [100, 400, 700] {
            let scratch = tempfile::tempdir().unwrap();
            let mut child = start(line, scratch.path());
            std::thread::sleep(Duration::from_millis(moment));
            kill(child.id(), "KILL");
            child.wait().unwrap();
            wait_until(line, || {
                let next = "lab run fallocate2 --policy yard --workers 1 --memory 64M --ops 1 --quiet";
                assert!(start(next, other.path()).wait().unwrap().success());
                leftovers(scratch.path()).is_empty()
            });
        }
    }
    assert_eq!(orphaned_instances(), Vec::<PathBuf>::new());
    assert_eq!(settings(), before);
}

/// The keeper is a shell process that restores the write-back settings. Once, if it was killed
/// along with the other processes, the settings stayed changed.
#[test]
fn settings_come_back_after_their_keeper_was_killed_too() {
    if !blockyard_testkit::require(&NEEDS) {
        return;
    }
    let before = settings();
    let scratch = tempfile::tempdir().unwrap();
    let mut child = start(COMMANDS[1], scratch.path());
    let mut keeper = None;
    wait_until("the keeper", || {
        keeper = descendants(child.id()).into_iter().find(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.windows(15).any(|part| part == b"blockyard-agree")
        });
        keeper.is_some() && leftovers(scratch.path()).iter().any(|left| left.contains("ext4"))
    });
    kill(keeper.unwrap(), "KILL");
    kill(child.id(), "KILL");
    child.wait().unwrap();
    wait_until("the settings are back", || {
        let next = "lab run fallocate2 --policy yard --workers 1 --memory 64M --ops 1 --quiet";
        assert!(start(next, scratch.path()).wait().unwrap().success());
        settings() == before && leftovers(scratch.path()).is_empty()
    });
}

/// All descendants of a process.
fn descendants(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children: Vec<u32> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let below: Vec<u32> = children.iter().flat_map(|child| descendants(*child)).collect();
    [children, below].concat()
}
