//! Images that are missing, damaged, in use or protected. Commands fail with one line that names
//! the problem and the image, and leave the image unchanged.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use blockyard_testkit::{LoopMount, mke2fs, require};

const BLOCKYARD: &str = env!("CARGO_BIN_EXE_blockyard");

fn blockyard(arguments: &[&str]) -> Output {
    Command::new(BLOCKYARD).args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// Asserts an exit code, and one line on standard error that contains `what`.
fn refused(output: &Output, code: i32, what: &str, of: &str) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{of}: {errors}");
    assert_eq!(errors.lines().count(), 1, "{of}: {errors}");
    assert!(errors.starts_with("blockyard: ") && errors.contains(what), "{of}: {errors}");
}

/// Commands that read or change an existing image, applied to `image`.
fn commands(image: &str) -> Vec<Vec<&str>> {
    let mut all = vec![
        vec!["stat", image],
        vec!["stat", image, "/"],
        vec!["ls", image],
        vec!["cat", image, "/x"],
        vec!["map", image],
        vec!["map", image, "/"],
        vec!["frag", image],
        ["lab run fallocate2 --workers 1 --ops 1 --policy yard --image".split(' ').collect(), vec![image]]
            .concat(),
        vec!["recover", image],
        vec!["recover", "-n", image],
    ];
    all.extend(changing(image));
    all
}

/// The commands of [`commands`] that change the image, except `recover`.
fn changing(image: &str) -> Vec<Vec<&str>> {
    vec![
        vec!["mkdir", image, "/x"],
        vec!["put", image, "-", "/x"],
        vec!["put", "-r", image, "/proc/self/fdinfo", "/x"],
        vec!["rm", "-rf", image, "/lost+found"],
        vec!["mv", image, "/lost+found", "/x"],
        vec!["ln", "-s", image, "y", "/x"],
    ]
}

fn image(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    let output = blockyard(&["--quiet", "mkfs", path.to_str().unwrap(), "16M"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    path
}

/// Files that are not sound images, each with a part of the message about it.
fn unsound(folder: &Path) -> Vec<(PathBuf, &'static str)> {
    let at = |name: &str| folder.join(name);
    std::fs::create_dir(at("directory")).unwrap();
    std::fs::write(at("empty"), "").unwrap();
    std::fs::write(at("short"), vec![0x53; 1100]).unwrap();
    std::fs::write(at("text"), "no file system\n".repeat(10_000)).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .unwrap();
    let cut = image(folder, "cut");
    std::fs::OpenOptions::new().write(true).open(&cut).unwrap().set_len(5 << 20).unwrap();
    let damaged = image(folder, "damaged");
    let file = std::fs::OpenOptions::new().write(true).open(&damaged).unwrap();
    file.write_all_at(&[0xFF], 1024 + 0x78).unwrap();
    let future = image(folder, "future");
    // Set an incompatible feature bit that ext4 does not use yet.
    let file = std::fs::OpenOptions::new().write(true).open(&future).unwrap();
    file.write_all_at(&[0, 0, 0, 0x80], 1024 + 0x60).unwrap();
    vec![
        (at("missing"), "no such file; `blockyard mkfs`"),
        (at("directory"), "is a directory; an image or a block device"),
        (at("empty"), "is empty; `blockyard mkfs`"),
        (at("short"), "holds no ext2, ext3 or ext4 file system"),
        (at("text"), "holds no ext2, ext3 or ext4 file system"),
        (PathBuf::from("/dev/null"), "neither a regular file nor a block device"),
        (at("pipe"), "neither a regular file nor a block device"),
        (cut, "cut short"),
        (future, "FEATURE_I31"),
        (damaged, "superblock checksum does not match"),
    ]
}

#[test]
fn what_is_no_image_is_named_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    for (path, what) in unsound(folder.path()) {
        // Reading a pipe would wait for a writer.
        let content = || path.is_file().then(|| std::fs::read(&path).unwrap());
        let before = content();
        for command in commands(path.to_str().unwrap()) {
            // `recover` checks less than the other commands, so it may not report these two
            // problems.
            if command[0] == "recover" && ["cut short", "FEATURE_I31"].contains(&what) {
                continue;
            }
            let output = blockyard(&command);
            refused(&output, 8, what, &format!("{command:?}"));
            assert!(output.stdout.is_empty(), "{command:?}");
            assert!(content() == before, "{command:?} changed it");
        }
    }
}

#[test]
fn paths_that_lead_nowhere_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "image");
    let image = path.to_str().unwrap();
    assert!(blockyard(&["put", image, "-", "/file"]).status.success());
    let to = folder.path().join("to");
    let out = to.to_str().unwrap();
    let fifo = folder.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .unwrap();
    let pipe = fifo.to_str().unwrap();
    for (command, code, what) in [
        (vec!["ls", image, "/none"], 1, "no such file or directory: /none"),
        (vec!["ls", image, "/file/x"], 1, "not a directory: /file/x"),
        (vec!["stat", image, "/file/x"], 1, "not a directory: /file/x"),
        (vec!["cat", image, "/none"], 1, "no such file or directory: /none"),
        (vec!["cat", image, "/lost+found"], 1, "not a regular file: /lost+found"),
        (vec!["map", image, "/none"], 1, "no such file or directory: /none"),
        (vec!["frag", image, "/none"], 1, "no such file or directory: /none"),
        (vec!["get", image, "/none", out], 1, "no such file or directory: /none"),
        (vec!["get", image, "/lost+found", out], 1, "/lost+found: is a directory; add -r"),
        (vec!["mkdir", image, "/file/x"], 1, "/file/x: not a directory"),
        (vec!["mkdir", image, "/file"], 1, "/file: file exists"),
        (vec!["mv", image, "/none", "/x"], 1, "/none: no such file or directory"),
        (vec!["rm", image, "/file/x"], 1, "not a directory"),
        (vec!["ln", image, "/none", "/x"], 1, "/none: no such file or directory"),
        (vec!["put", image, image, "/x"], 1, "is the image itself"),
        (vec!["get", image, "/file", image], 1, "is the image itself"),
        (vec!["get", image, "/file", pipe], 1, "pipe: is a device, pipe or socket; it is not replaced"),
        (vec!["map", image, "--svg", image], 8, "is the image itself"),
        (vec!["rm", "-r", image, "/lost+found/."], 1, "'.' and '..' are not removed"),
        (vec!["mv", image, "/lost+found/.", "/x"], 1, "cannot be moved"),
    ] {
        refused(&blockyard(&command), code, what, &format!("{command:?}"));
    }
    let forced = blockyard(&["rm", "-f", image, "/none/x", "/file/x", "/none"]);
    assert!(forced.status.success() && forced.stderr.is_empty());
    assert!(!to.exists());
    assert!(blockyard(&["check", "-n", image]).status.success());
}

/// While one process changes an image, a second process is refused. The first completes its work.
#[test]
fn two_processes_do_not_change_one_image() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "image");
    let image = path.to_str().unwrap();
    let mut first = Command::new(BLOCKYARD)
        .args(["put", image, "-", "/file"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (began, inode) = (Instant::now(), std::fs::metadata(&path).unwrap().ino());
    while !std::fs::read_to_string("/proc/locks").unwrap().contains(&format!(":{inode} ")) {
        assert!(began.elapsed() < Duration::from_secs(60), "the image was never locked");
        std::thread::sleep(Duration::from_millis(5));
    }
    let command = ["mkdir", image, "/dir"];
    let holder = format!("process {} is writing to it", first.id());
    refused(&blockyard(&command), 8, &holder, "mkdir");
    drop(first.stdin.take());
    let first = first.wait_with_output().unwrap();
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    assert_eq!(blockyard(&["ls", image]).stdout, b"file\nlost+found\n");
    assert!(blockyard(&["check", "-n", image]).status.success());
}

/// A copy stopped in the middle leaves a sound image, and can be repeated.
#[test]
fn an_interrupted_copy_leaves_a_sound_image() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    for number in 0..400 {
        std::fs::write(tree.join(format!("file{number}")), vec![0x5A; number * 40]).unwrap();
    }
    let tree = tree.to_str().unwrap();
    for (names, signal) in [(1, "-INT"), (60, "-TERM"), (200, "-KILL"), (350, "-INT")] {
        let path = image(folder.path(), &format!("image{names}"));
        let image = path.to_str().unwrap();
        let mut put = Command::new(BLOCKYARD)
            .args(["--json", "put", "-r", image, tree, "/"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(put.stdout.take().unwrap()).lines();
        assert_eq!(lines.take(names).filter(|line| line.is_ok()).count(), names);
        assert!(Command::new("kill").args([signal, &put.id().to_string()]).status().unwrap().success());
        put.wait().unwrap();
        let interrupted = blockyard(&["check", "-n", image]);
        assert!(interrupted.status.success(), "{names}: {}", String::from_utf8_lossy(&interrupted.stdout));
        if require(&["e2fsck"]) {
            let copy = folder.path().join("copy");
            std::fs::copy(&path, &copy).unwrap();
            assert!(
                Command::new("e2fsck").args(["-fp"]).arg(&copy).output().unwrap().status.success(),
                "{names}"
            );
        }
        assert!(blockyard(&["--quiet", "put", "-r", image, tree, "/"]).status.success(), "{names}");
        assert_eq!(
            blockyard(&["ls", image, "/tree"]).stdout.iter().filter(|byte| **byte == b'\n').count(),
            400
        );
        assert!(blockyard(&["check", "-n", image]).status.success(), "{names}");
    }
}

/// The commands that write refuse a mounted image.
#[test]
fn mounted_images_are_left_alone() {
    if !require(&["root", "mount", "mke2fs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    mke2fs(&path, &["-t", "ext4"], "16M");
    let image = path.to_str().unwrap();
    let mounted = LoopMount::new(&path, "ro,noload").unwrap();
    let before = std::fs::read(&path).unwrap();
    let mut all = changing(image);
    all.push(vec!["recover", image]);
    all.push(vec!["mkfs", "--force", image, "16M"]);
    for command in all {
        refused(&blockyard(&command), 8, "in use by /dev/loop", &format!("{command:?}"));
    }
    assert!(std::fs::read(&path).unwrap() == before);
    drop(mounted);
}

/// A user with read-only access can read an image, and is told what is missing to write it.
#[test]
fn without_permission_nothing_happens() {
    if !require(&["root", "setpriv"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let [readable, closed] = ["readable", "closed"].map(|name| image(folder.path(), name));
    std::fs::set_permissions(&readable, PermissionsExt::from_mode(0o444)).unwrap();
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o600)).unwrap();
    // Other users may not be able to reach the build folder.
    let program = folder.path().join("blockyard");
    // Another process makes the copy. If this process made it, a child that another test starts
    // could have the copy open for writing for a moment, and meanwhile the copy could not run.
    assert!(Command::new("cp").arg(BLOCKYARD).arg(&program).status().unwrap().success());
    let nobody = |arguments: &[&str]| {
        Command::new("setpriv")
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
            .arg(&program)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let [readable, closed] = [&readable, &closed].map(|path| path.to_str().unwrap());
    let before = [readable, closed].map(|path| std::fs::read(path).unwrap());
    assert_eq!(nobody(&["ls", readable]).stdout, b"lost+found\n");
    for command in commands(closed) {
        refused(&nobody(&command), 8, "closed: Permission denied", &format!("{command:?}"));
    }
    let mut writing = changing(readable);
    writing.push(vec!["recover", readable]);
    for command in writing {
        refused(&nobody(&command), 8, "it must be writable", &format!("{command:?}"));
    }
    let new = folder.path().join("new");
    refused(&nobody(&["mkfs", new.to_str().unwrap(), "16M"]), 8, "Permission denied", "mkfs");
    assert!(!new.exists());
    assert!([readable, closed].map(|path| std::fs::read(path).unwrap()) == before);
}
