//! `blockyard mount` as a program: in the background, by options, ended by umount and by signals.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use blockyard_testkit::{e2fsck_clean, mke2fs, require, run, wait_until};

const BLOCKYARD: &str = env!("CARGO_BIN_EXE_blockyard");

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        mke2fs(&folder.path().join("image"), &["-t", "ext4"], "64M");
        fs::create_dir(folder.path().join("mnt")).unwrap();
        Self { folder }
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    fn directory(&self) -> PathBuf {
        self.folder.path().join("mnt")
    }

    fn mount(&self, options: &[&str]) -> Output {
        let mut command = Command::new(BLOCKYARD);
        command.arg("mount").arg(self.image()).arg(self.directory()).args(options);
        command.output().unwrap()
    }

    fn is_mounted(&self) -> bool {
        line_of(&self.directory()).is_some()
    }

    /// The process that serves it: whoever holds the image's lock.
    fn server(&self) -> u32 {
        let image = self.image();
        let mut processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            entry.unwrap().file_name().to_str().and_then(|name| name.parse::<u32>().ok())
        });
        let has_open = |process: &u32| {
            let files = fs::read_dir(format!("/proc/{process}/fd"));
            files.is_ok_and(|mut files| {
                files
                    .any(|file| file.is_ok_and(|file| fs::read_link(file.path()).is_ok_and(|to| to == image)))
            })
        };
        processes.find(has_open).expect("somebody serves it")
    }

    fn wait_for_end(&self) {
        // The kernel does not wait for the server of an image in a file.
        wait_until("the image is free", || {
            let output = Command::new(BLOCKYARD).arg("recover").arg(self.image()).output().unwrap();
            output.status.success()
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_mounted() {
            run("umount", &["-l", self.directory().to_str().unwrap()]);
        }
    }
}

fn line_of(directory: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let place = format!(" {} ", directory.display());
    mounts.lines().find(|line| line.contains(&place)).map(str::to_owned)
}

fn can_mount() -> bool {
    require(&["root", "mke2fs", "e2fsck", "mount", "umount", "dumpe2fs"])
}

#[test]
fn it_goes_to_the_background_and_umount_ends_it() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let output = place.mount(&["-o", "noatime,allow_other"]);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    let line = line_of(&place.directory()).unwrap();
    assert!(line.contains(" fuse.blockyard rw,noatime,") && line.contains("allow_other"), "{line}");
    fs::write(place.directory().join("file"), "content").unwrap();
    let again = place.mount(&[]);
    assert_eq!(again.status.code(), Some(8), "{again:?}");
    assert!(String::from_utf8_lossy(&again.stderr).contains("image"), "{again:?}");
    assert!(run("umount", &[place.directory().to_str().unwrap()]).status.success());
    place.wait_for_end();
    e2fsck_clean(&place.image());
    let header = run("dumpe2fs", &["-h", place.image().to_str().unwrap()]);
    let header = String::from_utf8_lossy(&header.stdout).into_owned();
    let value = |name: &str| {
        let line = header.lines().find(|line| line.starts_with(name)).unwrap();
        line[name.len()..].trim().to_owned()
    };
    assert_eq!(value("Last mounted on:"), place.directory().to_str().unwrap());
    assert_eq!((value("Mount count:"), value("Filesystem state:")), ("1".to_owned(), "clean".to_owned()));
}

#[test]
fn wrong_usage_is_told_before_anything_is_mounted() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    for (options, code, told) in [
        ("ro,usrquota", 2, "option usrquota: quota is not supported"),
        ("shiny", 2, "unknown option shiny"),
        ("policy=none-such", 2, "policy"),
    ] {
        let output = place.mount(&["-o", options]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{options}: {text}");
        assert!(text.contains(told) && text.lines().count() == 1, "{options}: {text}");
        assert!(!place.is_mounted());
    }
    fs::write(place.image(), vec![0; 1 << 20]).unwrap();
    let output = place.mount(&[]);
    assert_eq!(output.status.code(), Some(8));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("holds no ext2, ext3 or ext4") && text.lines().count() == 1, "{text}");
    let nowhere = Command::new(BLOCKYARD).args(["mount", "none", "nowhere"]).output().unwrap();
    assert_eq!(nowhere.status.code(), Some(8));
}

/// With a file open the kernel refuses to unmount: it is detached, and what was written is kept.
#[test]
fn a_signal_ends_it_in_order_also_while_it_is_used() {
    if !can_mount() {
        return;
    }
    for is_used in [false, true] {
        let place = Place::new();
        assert!(place.mount(&[]).status.success());
        let path = place.directory().join("file");
        fs::write(&path, vec![7; 1_000_000]).unwrap();
        let used = is_used.then(|| fs::File::open(&path).unwrap());
        let server = place.server();
        assert!(run("kill", &["-TERM", &server.to_string()]).status.success());
        wait_until("the server ends", || !Path::new(&format!("/proc/{server}/fd")).exists());
        assert!(!place.is_mounted());
        drop(used);
        e2fsck_clean(&place.image());
        let output = Command::new(BLOCKYARD).arg("cat").arg(place.image()).arg("/file").output().unwrap();
        assert!(output.stdout == vec![7; 1_000_000], "is used: {is_used}");
    }
}

/// A remount changes what it names, and leaves the rest.
#[test]
fn a_remount_changes_what_the_kernel_can() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    assert_eq!(place.mount(&["-o", "remount,ro"]).status.code(), Some(8), "nothing is mounted");
    assert!(place.mount(&["-o", "nosuid"]).status.success());
    assert!(place.mount(&["-o", "remount,ro"]).status.success());
    let line = line_of(&place.directory()).unwrap();
    assert!(line.contains(" ro,nosuid,"), "{line}");
    assert_eq!(fs::write(place.directory().join("x"), "x").unwrap_err().raw_os_error(), Some(30));
    let refused = place.mount(&["-o", "remount,commit=30"]);
    assert_eq!(refused.status.code(), Some(8), "{refused:?}");
    assert!(place.mount(&["-o", "remount,rw"]).status.success());
    fs::write(place.directory().join("x"), "x").unwrap();
    assert!(run("umount", &[place.directory().to_str().unwrap()]).status.success());
    place.wait_for_end();
    e2fsck_clean(&place.image());
}
