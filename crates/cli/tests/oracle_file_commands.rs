//! The commands that change an image (put, rm, mkdir, mv, ln), and get, judged by the kernel and
//! e2fsck.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use blockyard_testkit::tree::{Content, Node, read_tree};
use blockyard_testkit::{LoopMount, e2fsck_clean, images, mke2fs, require, run};

fn blockyard(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_blockyard")).args(arguments).output().unwrap()
}

/// Runs a command that must succeed and print nothing on standard error.
fn done(arguments: &[&str]) -> String {
    let output = blockyard(arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && errors.is_empty(), "{arguments:?}: {:?}: {errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail with this exit code and one line that contains `what`.
fn fails(arguments: &[&str], code: i32, what: &str) {
    let output = blockyard(arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
    assert!(errors.contains(what) && errors.lines().count() == 1, "{arguments:?}: {errors}");
}

/// The properties that a copy keeps.
type Kept = (u32, (u32, u32), u32, u64, (u32, u32), (i64, u32), Content, BTreeMap<Vec<u8>, Vec<u8>>);

/// A tree without its root and lost+found, reduced to what a copy keeps.
fn kept(root: &Path) -> BTreeMap<Vec<u8>, Kept> {
    let of = |node: Node| -> Kept {
        // The size of a directory is up to the file system.
        let size = if node.mode & 0o170_000 == 0o040_000 { 0 } else { node.size };
        (
            node.mode,
            (node.uid, node.gid),
            node.links,
            size,
            node.device,
            node.modified,
            node.content,
            node.xattrs,
        )
    };
    let tree = read_tree(root).into_iter();
    tree.filter(|(path, _)| !path.is_empty() && path != b"lost+found")
        .map(|(path, node)| (path, of(node)))
        .collect()
}

fn assert_same_tree(one: &Path, other: &Path) {
    let (one, other) = (kept(one), kept(other));
    let names: Vec<_> = one.keys().map(|name| String::from_utf8_lossy(name)).collect();
    let others: Vec<_> = other.keys().map(|name| String::from_utf8_lossy(name)).collect();
    assert_eq!(names, others);
    for (path, node) in &one {
        assert_eq!(node, &other[path], "{}", String::from_utf8_lossy(path));
    }
}

#[test]
fn trees_come_back_as_they_went() {
    if !require(&["root", "mount", "mke2fs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [source, ours, back] = ["source", "ours", "back"].map(|name| folder.path().join(name));
    mke2fs(&source, &["-t", "ext4", "-b", "1024"], "200M");
    mke2fs(&ours, &["-t", "ext4"], "200M");
    mke2fs(&back, &["-t", "ext4"], "200M");
    let from = LoopMount::new(&source, "").unwrap();
    images::fill(from.path(), false);
    std::fs::remove_dir(from.path().join("lost+found")).unwrap();
    let content = format!("{}/.", from.path().display());
    done(&["put", "-r", ours.to_str().unwrap(), &content, "/"]);
    e2fsck_clean(&ours);
    let mounted = LoopMount::new(&ours, "ro").unwrap();
    assert_same_tree(from.path(), mounted.path());
    drop(mounted);
    // Put the same tree once more: equal files replace those of the first time.
    done(&["--quiet", "put", "-r", ours.to_str().unwrap(), &content, "/"]);
    e2fsck_clean(&ours);
    let mounted = LoopMount::new(&ours, "ro").unwrap();
    assert_same_tree(from.path(), mounted.path());
    drop(mounted);
    let to = LoopMount::new(&back, "").unwrap();
    std::fs::remove_dir(to.path().join("lost+found")).unwrap();
    done(&["get", "-r", ours.to_str().unwrap(), "/", to.path().to_str().unwrap()]);
    assert_same_tree(from.path(), to.path());
    drop((from, to));
    // With all of it removed again, as many inodes are free as on a new image.
    let names = done(&["ls", ours.to_str().unwrap()]);
    let mut arguments = vec!["rm", "-r", ours.to_str().unwrap()];
    arguments.extend(names.lines().filter(|name| *name != "lost+found"));
    done(&arguments);
    e2fsck_clean(&ours);
    let free = |image: &Path| {
        let text = String::from_utf8(run("dumpe2fs", &["-h", image.to_str().unwrap()]).stdout).unwrap();
        let number = |name: &str| -> u64 {
            text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse().unwrap()
        };
        (number("Free blocks:"), number("Free inodes:"))
    };
    mke2fs(&back, &["-t", "ext4"], "200M");
    let (blocks, inodes) = free(&ours);
    assert_eq!(inodes, free(&back).1);
    // Directories do not shrink, so the root may keep blocks that it has gained.
    assert!(blocks <= free(&back).0, "{blocks}");
}

/// An image of 16 MiB; returns its path as text.
fn small_image(folder: &Path) -> String {
    let image = folder.join("image");
    mke2fs(&image, &["-t", "ext4", "-b", "1024"], "16M");
    image.to_str().unwrap().to_owned()
}

fn put_text(image: &str, dest: &str, text: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_blockyard"))
        .args(["put", image, "-", dest])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn a_copy_that_does_not_fit_leaves_nothing_and_keeps_the_old() {
    if !require(&["mke2fs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = small_image(folder.path());
    assert!(put_text(&image, "/file", b"old").status.success());
    let big = folder.path().join("big");
    std::fs::write(&big, vec![7u8; 20 << 20]).unwrap();
    let big = big.to_str().unwrap();
    fails(&["put", &image, big, "/file"], 1, "no space left");
    fails(&["put", &image, big, "/new"], 1, "no space left");
    assert_eq!(done(&["cat", &image, "/file"]), "old");
    assert_eq!(done(&["ls", "-a", &image]), ".\n..\nfile\nlost+found\n");
    e2fsck_clean(Path::new(&image));
}

#[test]
fn an_attribute_that_does_not_fit_is_named() {
    if !require(&["mke2fs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    std::fs::write(&source, "content").unwrap();
    rustix::fs::lsetxattr(&source, "user.long", &[b'x'; 3000], rustix::fs::XattrFlags::empty()).unwrap();
    let (image, source) = (small_image(folder.path()), source.to_str().unwrap());
    fails(&["put", &image, source, "/f"], 1, "attribute user.long of 3000 bytes");
    done(&["put", "--no-xattrs", &image, source, "/f"]);
    assert_eq!(done(&["cat", &image, "/f"]), "content");
}

#[test]
fn names_are_made_moved_and_removed() {
    if !require(&["mke2fs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = small_image(folder.path());
    let image = image.as_str();
    done(&["mkdir", "-p", image, "/a/b/c"]);
    done(&["mkdir", "-p", image, "/a/b/c"]);
    fails(&["mkdir", image, "/a"], 1, "/a: file exists");
    fails(&["mkdir", image, "/none/x"], 1, "/none/x: no such file or directory");
    done(&["mkdir", "-m", "2770", "--owner", "7:8", image, "/own"]);
    assert!(done(&["ls", "-l", image]).contains("drwxrws---     2      7      8"));
    assert!(put_text(image, "/a/one", b"1").status.success());
    assert!(put_text(image, "/a/two", b"2").status.success());
    done(&["mv", image, "/a/one", "/a/two", "/own"]);
    done(&["mv", image, "--exchange", "/own/one", "/own/two"]);
    assert_eq!(done(&["cat", image, "/own/one", "/own/two"]), "21");
    fails(&["mv", "-n", image, "/own/one", "/own/two"], 1, "file exists");
    fails(&["mv", image, "/a", "/a/b"], 1, "invalid argument");
    fails(&["mv", image, "/own/one", "/own/two", "/own/one"], 8, "not a directory");
    done(&["ln", image, "/own/one", "/hard"]);
    // Once, moving a name to another name of the same file did nothing, and reported no error.
    fails(&["mv", image, "/own/one", "/hard"], 1, "/own/one and /hard are the same file");
    fails(&["chown", image, "4294967295", "/hard"], 2, "is not USER");
    done(&["ln", "-s", image, "own", "/soft"]);
    assert_eq!(done(&["cat", image, "/soft/one", "/hard"]), "22");
    fails(&["ln", image, "/own/two", "/hard"], 1, "file exists");
    done(&["ln", "-f", image, "/own/two", "/hard"]);
    assert_eq!(done(&["cat", image, "/hard"]), "1");
    fails(&["ln", image, "/own", "/dir"], 1, "not permitted");
    fails(&["rm", image, "/a"], 1, "add -r");
    fails(&["rm", "-d", image, "/a"], 1, "not empty");
    fails(&["rm", image, "/none"], 1, "no such file");
    done(&["rm", "-f", image, "/none"]);
    fails(&["rm", "-r", image, "/"], 1, "root directory");
    done(&["rm", "-r", image, "/a", "/own", "/hard", "/soft"]);
    assert_eq!(done(&["ls", image]), "lost+found\n");
    e2fsck_clean(Path::new(image));
}

/// What cannot be removed stays, with the directories that hold it. Everything else is removed.
#[test]
fn immutable_files_keep_their_directories() {
    if !require(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = small_image(folder.path());
    done(&["mkdir", "-p", &image, "/top/in", "/top/other/deep"]);
    for name in ["/top/in/fixed", "/top/in/free", "/top/other/deep/x"] {
        assert!(put_text(&image, name, b"x").status.success());
    }
    run("debugfs", &["-w", "-R", "set_inode_field /top/in/fixed flags 0x80010", &image]);
    fails(&["rm", "-r", &image, "/top"], 1, "/top/in/fixed: operation not permitted");
    assert_eq!(done(&["ls", "-R", &image, "/top"]), "/top:\nin\n\n/top/in:\nfixed\n");
    e2fsck_clean(Path::new(&image));
}

/// A chain of 1,500 directories, and one directory with 6,000 names.
#[test]
fn deep_and_wide_trees_are_copied_and_removed() {
    if !require(&["mke2fs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    mke2fs(&image, &["-t", "ext4", "-N", "20000"], "100M");
    let image = image.to_str().unwrap();
    let source = folder.path().join("source");
    let deep: std::path::PathBuf = std::iter::repeat_n("d", 1500).collect();
    std::fs::create_dir_all(source.join(deep)).unwrap();
    std::fs::create_dir(source.join("wide")).unwrap();
    for number in 0..6000 {
        std::fs::write(source.join(format!("wide/{number}")), "").unwrap();
    }
    let said = done(&["put", "-r", image, source.to_str().unwrap(), "/tree"]);
    assert!(said.starts_with("7502 names and 0 bytes of content in "), "{said}");
    e2fsck_clean(Path::new(image));
    let back = folder.path().join("back");
    done(&["get", "-r", image, "/tree", back.to_str().unwrap()]);
    assert_eq!(std::fs::read_dir(back.join("wide")).unwrap().count(), 6000);
    done(&["rm", "-r", image, "/tree"]);
    assert_eq!(done(&["ls", image]), "lost+found\n");
    e2fsck_clean(Path::new(image));
}

#[test]
fn what_cannot_be_done_is_said_in_a_line_and_leaves_the_image() {
    if !require(&["root", "mount", "mke2fs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = small_image(folder.path());
    let image = image.as_str();
    let before = std::fs::read(image).unwrap();
    fails(&["mkdir", "/nonexistent/image", "/a"], 8, "/nonexistent/image");
    fails(&["mkdir", folder.path().to_str().unwrap(), "/a"], 8, "is a directory");
    let text = folder.path().join("text");
    std::fs::write(&text, "no image").unwrap();
    fails(&["mkdir", text.to_str().unwrap(), "/a"], 8, "text");
    assert_eq!(std::fs::read(&text).unwrap(), b"no image");
    let mounted = LoopMount::new(Path::new(image), "ro,noload").unwrap();
    fails(&["mkdir", image, "/a"], 8, "in use by /dev/loop");
    drop(mounted);
    assert_eq!(std::fs::read(image).unwrap(), before);
    // A source that is missing, or a directory without -r, is refused, and nothing is made for it.
    fails(&["put", image, "/nonexistent/file", "/x"], 1, "/nonexistent/file");
    fails(&["put", image, folder.path().to_str().unwrap(), "/x"], 1, "add -r");
    assert_eq!(done(&["ls", image]), "lost+found\n");
    // Nothing is written through a link planted in the destination.
    let [out, elsewhere] = ["out", "elsewhere"].map(|name| folder.path().join(name));
    std::fs::create_dir(&out).unwrap();
    std::fs::create_dir(&elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, out.join("x")).unwrap();
    done(&["mkdir", "-p", image, "/trap/x/y"]);
    fails(&["get", "-r", image, "/trap/.", out.to_str().unwrap()], 1, "exists and is not a directory");
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
}

/// The removal of a directory once never ended if a name below it was a hard link back to it.
#[test]
fn removing_a_tree_that_leads_back_ends() {
    if !require(&["e2fsck", "mke2fs", "debugfs"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("image");
    mke2fs(&image, &["-t", "ext4", "-b", "1024", "-O", "^has_journal"], "4M");
    let image = image.to_str().unwrap();
    done(&["mkdir", "-p", image, "/a/b"]);
    for (link, what) in [("ln /a /a/b/back", "/a/b/back"), ("ln /a/b /a/b/self", "/a/b/self")] {
        run("debugfs", &["-w", "-R", link, image]);
        let output = blockyard(&["rm", "-r", image, "/a"]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains(what) && errors.contains("met before"), "{errors}");
        run("debugfs", &["-w", "-R", &format!("unlink {what}"), image]);
    }
    done(&["rm", "-r", image, "/a"]);
    e2fsck_clean(Path::new(image));
}
