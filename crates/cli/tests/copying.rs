//! `put` and `get` from the user's view: the same bytes for the same tree, operands as in cp,
//! set-id bits, flags, interruption, full images and hosts, and messages that say whether the image
//! or the host is at fault.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use blockyard_testkit::{LoopMount, e2fsck_clean, mke2fs, require, run};

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_blockyard"));
    command.env_remove("E2FSPROGS_FAKE_TIME").env_remove("SOURCE_DATE_EPOCH");
    command.args(arguments).stdin(Stdio::null());
    command
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a command that must succeed and print nothing on standard error.
fn done(arguments: &[&str]) -> String {
    let output = command(arguments).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {}", errors(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail with this exit code and one line on standard error. Returns the
/// line.
fn fails(arguments: &[&str], code: i32) -> String {
    let output = command(arguments).output().unwrap();
    let said = errors(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
    said
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Makes an image in a folder. Returns its path.
fn image(folder: &Path, size: &str) -> String {
    let path = folder.join("image");
    done(&["mkfs", "-q", "-F", "-b", "1024", "--seed", "7", "--time", "1700000000", text(&path), size]);
    text(&path).to_owned()
}

/// A tree with directories, files and links. One file was modified before the fixed time of the
/// tests, everything else after it.
fn small_tree(at: &Path) {
    std::fs::create_dir_all(at.join("d/empty")).unwrap();
    for number in [7, 3, 9, 1, 5] {
        std::fs::write(at.join(format!("d/{number}")), vec![b'x'; 3000 * number]).unwrap();
    }
    // Written zeroes are not a hole on the host.
    let mut mixed = vec![0; 200_000];
    mixed[100_000] = 1;
    std::fs::write(at.join("mixed"), mixed).unwrap();
    std::fs::hard_link(at.join("mixed"), at.join("d/again")).unwrap();
    symlink("d/1", at.join("link")).unwrap();
    let old = std::fs::File::options().write(true).open(at.join("d/3")).unwrap();
    old.set_modified(std::time::UNIX_EPOCH + Duration::from_nanos(1_600_000_000_000_000_005)).unwrap();
}

/// Copies the tree into an image, and returns the bytes of the image. The time comes from
/// SOURCE_DATE_EPOCH if `variable` is given, otherwise from `--time`.
fn filled(folder: &Path, tree: &Path, variable: Option<&str>) -> Vec<u8> {
    let image = image(folder, "16M");
    let content = format!("{}/.", tree.display());
    let mut put = command(&["put", "-r", &image, &content, "/"]);
    match variable {
        Some(seconds) => put.env("SOURCE_DATE_EPOCH", seconds),
        None => put.args(["--time", "1700000000"]),
    };
    let output = put.output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    e2fsck_clean(Path::new(&image));
    std::fs::read(image).unwrap()
}

/// The same tree once gave two different images, because access times were copied and reading
/// changes them. Here the tree and its copy differ in the order of names, in holes and in access
/// times.
#[test]
fn the_same_tree_gives_the_same_bytes() {
    if !require(&["e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [tree, copy] = ["tree", "copy"].map(|name| folder.path().join(name));
    small_tree(&tree);
    let first = filled(folder.path(), &tree, None);
    // The copy's names are made in another order, and one of its files gets holes.
    std::fs::create_dir(&copy).unwrap();
    for name in ["link", "mixed", "d"] {
        let options: &[&str] = if name == "mixed" { &["-a", "--sparse=always"] } else { &["-a"] };
        let made = Command::new("cp").args(options).arg(tree.join(name)).arg(&copy).status().unwrap();
        assert!(made.success());
    }
    std::fs::remove_file(copy.join("d/again")).unwrap();
    std::fs::hard_link(copy.join("mixed"), copy.join("d/again")).unwrap();
    Command::new("touch").args(["-a", text(&copy.join("d/1"))]).status().unwrap();
    assert!(first == filled(folder.path(), &tree, None), "the second time from the same tree");
    assert!(first == filled(folder.path(), &tree, Some("1700000000")), "with SOURCE_DATE_EPOCH");
    assert!(first == filled(folder.path(), &copy, None), "from a copy of the tree");
    let image = folder.path().join("image");
    let stat = |path: &str| -> serde_json::Value {
        serde_json::from_str(&done(&["stat", "--json", text(&image), path])).unwrap()
    };
    assert_eq!(stat("/d/1")["modified"], serde_json::json!([1_700_000_000, 0]));
    assert_eq!(stat("/d/3")["modified"], serde_json::json!([1_600_000_000, 5]));
    assert_eq!(stat("/d/3")["accessed"], stat("/d/3")["modified"]);
}

/// Without a fixed time, a copy's access time is the time of copying. With `--preserve-atime`, it
/// is the access time of the source.
#[test]
fn times_of_access_are_copied_when_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "16M");
    let file = folder.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let old = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let times = std::fs::FileTimes::new().set_accessed(old).set_modified(old);
    std::fs::File::options().write(true).open(&file).unwrap().set_times(times).unwrap();
    // `--preserve-atime` comes first, because reading the file changes its access time.
    done(&["put", "--preserve-atime", &image, text(&file), "/then"]);
    done(&["put", &image, text(&file), "/now"]);
    let accessed = |path: &str| -> i64 {
        let stat: serde_json::Value = serde_json::from_str(&done(&["stat", "--json", &image, path])).unwrap();
        stat["accessed"][0].as_i64().unwrap()
    };
    assert!(accessed("/now") > 1_700_000_000);
    assert_eq!(accessed("/then"), 1_000_000_000);
    assert!(
        fails(&["put", "--time", "1", "--preserve-atime", &image, text(&file), "/x"], 2).contains("--time")
    );
    for beyond in ["99999999999", "-99999999999"] {
        assert!(fails(&["touch", "--time", beyond, &image, "/now"], 2).contains("hold times from"));
        assert!(fails(&["mkfs", "-F", "--time", "99999999999", &image], 2).contains("hold times up to"));
    }
    done(&["check", "-n", &image]);
}

/// `put IMG <(cmd) /x` once stored a dangling link.
#[test]
fn operands_are_followed_as_cp_does() {
    if !require(&["e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "16M");
    let program = env!("CARGO_BIN_EXE_blockyard");
    let shell = |line: &str| {
        let line = format!("'{program}' put '{image}' {line}");
        let output = Command::new("bash").args(["-c", &line]).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{line}: {}", errors(&output));
    };
    shell("<(echo from a command) /x");
    assert_eq!(done(&["cat", &image, "/x"]), "from a command\n");
    assert!(done(&["ls", "-l", &image, "/x"]).starts_with("-rw-r--r--"));
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("file"), "content").unwrap();
    symlink("file", path("link")).unwrap();
    symlink("nowhere", path("dangling")).unwrap();
    assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
    shell("link /followed");
    shell("-P link /kept");
    shell("-r link /kept2");
    shell("-r pipe /pipe");
    shell("/dev/null /empty");
    let listed = done(&["ls", "-l", &image]);
    let kinds: String = listed.lines().map(|line| &line[..1]).collect();
    // In order: empty, followed, kept, kept2, lost+found, pipe, x.
    assert_eq!(kinds, "--lldp-", "{listed}");
    assert_eq!(done(&["cat", &image, "/followed"]), "content");
    assert!(fails(&["put", &image, text(&path("dangling")), "/d"], 1).contains("dangling"));
    let writer = Command::new("bash").args(["-c", "echo through >pipe"]).current_dir(folder.path()).spawn();
    shell("pipe /through");
    assert!(writer.unwrap().wait().unwrap().success());
    assert_eq!(done(&["cat", &image, "/through"]), "through\n");
    // The same rules apply to `get`.
    let to = path("to");
    std::fs::create_dir(&to).unwrap();
    done(&["put", &image, text(&path("file")), "/file"]);
    done(&["get", &image, "/kept2", text(&to.join("followed"))]);
    done(&["get", &image, "/kept", text(&to)]);
    assert!(to.join("kept").symlink_metadata().unwrap().is_file());
    done(&["get", "-P", &image, "/kept", text(&to.join("link"))]);
    assert!(to.join("link").is_symlink());
    assert!(fails(&["get", &image, "/pipe", text(&to)], 1).contains("add -r to copy it as one"));
    e2fsck_clean(Path::new(&image));
}

/// A slash at the end of a path means a directory. If the path stands for a file of another kind,
/// the command is refused.
#[test]
fn a_slash_at_the_end_means_a_directory() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "16M");
    let file = folder.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let file = text(&file);
    assert!(fails(&["put", &image, file, "/new/"], 1).contains("/new/: not a directory: /new is missing"));
    let hint = "/some/new/name: no such file or directory: /some is missing; `blockyard mkdir -p` makes it";
    assert!(fails(&["put", &image, file, "/some/new/name"], 1).contains(hint));
    done(&["put", &image, file, "/file"]);
    for arguments in [
        &["put", &image, file, "/file/"][..],
        &["mv", &image, "/file", "/new/"],
        &["mv", &image, "/file/", "/new"],
        &["ln", &image, "/file", "/new/"],
        &["rm", &image, "/file/"],
        &["chmod", &image, "600", "/file/"],
    ] {
        assert!(fails(arguments, 1).contains("not a directory"), "{arguments:?}");
    }
    let missing = format!("{}/none/", folder.path().display());
    assert!(fails(&["get", &image, "/file", &missing], 1).contains("not a directory"));
    done(&["mkdir", &image, "/d"]);
    done(&["mv", &image, "/d", "/e/"]);
    done(&["put", "-r", &image, text(folder.path().join("file").parent().unwrap()), "/tree/", "--quiet"]);
    assert_eq!(done(&["ls", &image]), "e\nfile\nlost+found\ntree\n");
}

/// If `get` may not give a copy the owner of its source, it leaves out the set-id bits. With them,
/// a copied program would run as whoever copied it.
#[test]
fn set_id_bits_go_when_the_owner_cannot_be_given() {
    if !require(&["root", "setpriv"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "16M");
    let file = folder.path().join("file");
    std::fs::write(&file, "x").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o6755)).unwrap();
    done(&["put", "--owner", "0:0", &image, text(&file), "/of-root"]);
    done(&["put", "--owner", "65534:65534", &image, text(&file), "/own"]);
    let open = folder.path().join("open");
    std::fs::create_dir(&open).unwrap();
    for path in [folder.path(), &open, Path::new(&image)] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    }
    let program = folder.path().join("blockyard");
    // Another process makes the copy. If we wrote it, a child that another test starts meanwhile
    // could keep it open for writing, and a file open for writing cannot be run.
    assert!(run("cp", &[env!("CARGO_BIN_EXE_blockyard"), text(&program)]).status.success());
    let output = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", text(&program)])
        .args(["get", &image, "/of-root", "/own", text(&open)])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    let mode = |name: &str| open.join(name).metadata().unwrap().mode() & 0o7777;
    assert_eq!((mode("of-root"), mode("own")), (0o755, 0o6755));
    assert!(String::from_utf8_lossy(&output.stdout).contains("left out: 1 set-id bits"), "{output:?}");
    // Root sets the owner, and keeps the bits.
    done(&["get", &image, "/own", text(&folder.path().join("kept"))]);
    let kept = folder.path().join("kept").metadata().unwrap();
    assert_eq!((kept.uid(), kept.mode() & 0o7777), (65534, 0o6755));
}

/// In one `get`, two source files may have the same name in the destination, and two source names
/// may be hard links to one file. Each copy has the whole content of one file.
#[test]
fn files_that_meet_at_one_name_are_whole() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "16M");
    let (tree, out) = (folder.path().join("tree"), folder.path().join("out"));
    for directory in ["d1", "d2", "d3", "d4"] {
        std::fs::create_dir_all(tree.join(directory)).unwrap();
    }
    std::fs::create_dir(&out).unwrap();
    std::fs::write(tree.join("d1/f"), "one").unwrap();
    std::fs::hard_link(tree.join("d1/f"), tree.join("d2/f")).unwrap();
    std::fs::hard_link(tree.join("d1/f"), tree.join("d4/g")).unwrap();
    std::fs::write(tree.join("d3/f"), "another").unwrap();
    symlink("d1/f", tree.join("link")).unwrap();
    done(&["put", "-r", &image, &format!("{}/.", text(&tree)), "/"]);
    let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();
    done(&["get", &image, "/d1/f", "/d2/f", "/d4/g", text(&out)]);
    assert_eq!((read("f"), read("g")), ("one".to_owned(), "one".to_owned()));
    assert_eq!(out.join("f").metadata().unwrap().nlink(), 2);
    done(&["get", "-r", &image, "/d1", "/link", "/d1", "/link", text(&out)]);
    assert_eq!((read("d1/f"), out.join("link").read_link().unwrap()), ("one".to_owned(), "d1/f".into()));
    // /d3/f replaces the copy of /d1/f before /d4/g, another name of the same file, is copied.
    done(&["get", &image, "/d1/f", "/d3/f", "/d4/g", text(&out)]);
    assert_eq!((read("f"), read("g")), ("another".to_owned(), "one".to_owned()));
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 4, "nothing else is left");
}

/// The names in a folder, except `wanted`.
fn strange_names(folder: &Path, wanted: &str) -> Vec<String> {
    let names =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name != wanted).collect()
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([format!("-{name}"), child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// An attribute of a file may be too large for the host's file system. The file is copied all the
/// same, and the failure is reported.
#[test]
fn an_attribute_that_the_host_has_no_room_for_costs_no_file() {
    if !require(&["root", "mke2fs", "mount"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [image, host] = ["image", "host"].map(|name| folder.path().join(name));
    done(&["mkfs", "-q", "-O", "ea_inode", text(&image), "16M"]);
    mke2fs(&host, &["-t", "ext4"], "16M");
    let mounted = LoopMount::new(&image, "").unwrap();
    for number in 0..5 {
        std::fs::write(mounted.path().join(format!("f{number}")), "content").unwrap();
    }
    let value = vec![b'v'; 8000];
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(mounted.path().join("f2"), "user.large", &value, flags).unwrap();
    drop(mounted);
    let mounted = LoopMount::new(&host, "").unwrap();
    for command in ["export", "salvage"] {
        let to = mounted.path().join(command);
        let errors = fails(&[command, text(&image), text(&to)], 1);
        assert!(errors.contains("f2: set the attribute user.large"), "{errors}");
        assert!(errors.contains("too large for the host"), "{errors}");
        for number in 0..5 {
            assert_eq!(std::fs::read(to.join(format!("f{number}"))).unwrap(), b"content");
        }
    }
    // A new file system counts as an empty directory, although it has a lost+found.
    drop(mounted);
    mke2fs(&host, &["-t", "ext4", "-O", "ea_inode"], "16M");
    let mounted = LoopMount::new(&host, "").unwrap();
    done(&["salvage", text(&image), text(mounted.path())]);
    let mut stored = vec![0; 9000];
    let length = rustix::fs::getxattr(mounted.path().join("f2"), "user.large", &mut stored).unwrap();
    assert!(stored[..length] == value);
}

/// `get`, interrupted during a write, once left its temporary file.
#[test]
fn an_interrupted_get_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    done(&["mkfs", "-q", text(&image), "400M"]);
    let big = folder.path().join("big");
    std::fs::write(&big, vec![7; 200 << 20]).unwrap();
    done(&["put", text(&image), text(&big), "/big"]);
    std::fs::remove_file(big).unwrap();
    let stopped_while_it_writes = |to: &Path| {
        // The tests may run with HUP ignored, as under nohup. The copy would then ignore HUP, too.
        let mut child = Command::new("env")
            .args(["--default-signal=HUP", env!("CARGO_BIN_EXE_blockyard")])
            .args(["get", text(&image), "/big", text(to)])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let began = Instant::now();
        while strange_names(to, "big").is_empty() && began.elapsed() < Duration::from_secs(10) {
            std::thread::yield_now();
        }
        signal(&child, "STOP");
        if strange_names(to, "big").len() == 1 {
            return Some(child);
        }
        signal(&child, "CONT");
        child.wait().unwrap();
        std::fs::remove_file(to.join("big")).unwrap();
        None
    };
    for (name, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let to = folder.path().join(name);
        std::fs::create_dir(&to).unwrap();
        // On a busy machine a copy may end before the signal comes.
        let mut child = (0..20).find_map(|_| stopped_while_it_writes(&to)).expect("one of 20 is stopped");
        signal(&child, name);
        signal(&child, "CONT");
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert_eq!(std::fs::read_dir(&to).unwrap().count(), 0);
    }
    // A killed `get` can leave its temporary file. The next `get` is not disturbed by that file.
    let to = folder.path().join("KILL");
    std::fs::create_dir(&to).unwrap();
    let mut child = command(&["get", text(&image), "/big", text(&to)]).spawn().unwrap();
    while strange_names(&to, "big").is_empty() && child.try_wait().unwrap().is_none() {}
    child.kill().unwrap();
    child.wait().unwrap();
    done(&["get", text(&image), "/big", text(&to)]);
    assert_eq!(to.join("big").metadata().unwrap().len(), 200 << 20);
}

/// An interrupted `put` leaves a clean image without the file that was not complete.
#[test]
fn an_interrupted_put_leaves_an_image_in_order() {
    if !require(&["e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "16M");
    let mut child =
        command(&["put", &image, "-", "/x"]).stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let input = child.stdin.take();
    let began = Instant::now();
    // While the image is open, its superblock says that it is not clean or that its journal needs
    // recovery.
    let is_open = || {
        let bytes = std::fs::read(&image).unwrap();
        bytes[1024 + 0x3A] & 1 == 0 || bytes[1024 + 0x60] & 4 != 0
    };
    while !is_open() && began.elapsed() < Duration::from_secs(10) {}
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(143));
    drop(input);
    assert_eq!(done(&["ls", &image]), "lost+found\n");
    e2fsck_clean(Path::new(&image));
}

/// A directory of a damaged image can hold a name twice. `get` once let the second file silently
/// replace the first.
#[test]
fn a_name_that_is_there_twice_is_told() {
    if !require(&["mke2fs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    mke2fs(&path, &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^has_journal"], "16M");
    for name in ["name-one", "name-two"] {
        let file = folder.path().join(name);
        std::fs::write(&file, name).unwrap();
        done(&["put", text(&path), text(&file), "/"]);
    }
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(8).position(|window| window == b"name-two").unwrap();
    bytes[at..at + 8].copy_from_slice(b"name-one");
    std::fs::write(&path, bytes).unwrap();
    let to = folder.path().join("to");
    let output = command(&["get", "-r", text(&path), "/", text(&to)]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    assert!(errors(&output).contains("/name-one: the directory holds the name twice"), "{}", errors(&output));
    assert_eq!(std::fs::read(to.join("name-one")).unwrap(), b"name-one");
}

/// A damaged directory may hold `..` twice. The second entry was once silently left out, and so was
/// a lost+found that held nothing but a second `..`.
#[test]
fn a_second_entry_of_the_parent_is_told() {
    if !require(&["mke2fs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    mke2fs(&path, &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^has_journal"], "16M");
    done(&["mkdir", text(&path), "/d"]);
    done(&["touch", text(&path), "/d/zz", "/lost+found/zz"]);
    let mut bytes = std::fs::read(&path).unwrap();
    // The pattern is the end of a directory entry: length of the name, file type, name.
    while let Some(at) = bytes.windows(4).position(|window| window == b"\x02\x01zz") {
        bytes[at + 2..at + 4].copy_from_slice(b"..");
    }
    std::fs::write(&path, bytes).unwrap();
    let (copied, exported) = (folder.path().join("copied"), folder.path().join("exported"));
    for (to, arguments) in [
        (&copied, &["get", "-r", text(&path), "/.", text(&copied)][..]),
        (&exported, &["export", text(&path), text(&exported)]),
    ] {
        let output = command(arguments).output().unwrap();
        let told = errors(&output);
        assert_eq!(output.status.code(), Some(1), "{told}");
        for place in ["/d/..", "/lost+found/.."] {
            assert!(told.contains(&format!("{place}: the directory holds the name twice")), "{told}");
        }
        assert_eq!(std::fs::read_dir(to.join("d")).unwrap().count(), 0);
    }
}

/// If DEST is a link, `get` writes to what the link leads to, even if that does not exist yet. A
/// link below DEST is replaced.
#[test]
fn a_link_as_the_destination_of_a_file_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "16M");
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("new"), "new").unwrap();
    done(&["put", &image, text(&at("new")), "/x"]);
    std::fs::write(at("real"), "old").unwrap();
    for (link, target) in [("link", "real"), ("dangling", "made"), ("folder", "into")] {
        symlink(target, at(link)).unwrap();
    }
    std::fs::create_dir(at("into")).unwrap();
    symlink("../kept", at("into/x")).unwrap();
    std::fs::write(at("kept"), "kept").unwrap();
    for (to, written) in [("link", "real"), ("dangling", "made"), ("folder", "into/x")] {
        done(&["get", &image, "/x", text(&at(to))]);
        assert!(at(to).is_symlink() && !at(written).is_symlink(), "{to}");
        assert_eq!(std::fs::read(at(written)).unwrap(), b"new", "{to}");
    }
    assert_eq!(std::fs::read(at("kept")).unwrap(), b"kept");
    if require(&["root", "mknod"]) {
        assert!(Command::new("mknod").arg(at("null")).args(["c", "1", "3"]).status().unwrap().success());
        symlink("null", at("to-null")).unwrap();
        for to in ["null", "to-null"] {
            let told = fails(&["get", &image, "/x", text(&at(to))], 1);
            assert!(told.contains("is a device, pipe or socket; it is not replaced"), "{told}");
        }
        assert!(!at("null").is_file() && at("to-null").is_symlink());
    }
}

/// Every new image has an empty lost+found, so `get` copies lost+found only if it is not empty.
#[test]
fn an_empty_lost_and_found_stays() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "16M");
    done(&["mkdir", &image, "/d"]);
    let to = folder.path().join("to");
    std::fs::create_dir(&to).unwrap();
    done(&["--quiet", "get", "-r", &image, "/", text(&to)]);
    assert_eq!(strange_names(&to, ""), ["d"]);
    done(&["touch", &image, "/lost+found/#12"]);
    done(&["get", "-r", &image, "/", text(&to)]);
    assert!(to.join("lost+found/#12").exists());
}

/// `put` copies flags that chattr set; once it did not. Only on request does `get` set the flags
/// that prevent changes (immutable, append-only).
#[test]
fn flags_are_carried() {
    if !require(&["root", "mount", "mke2fs", "chattr", "lsattr", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let host = folder.path().join("host");
    mke2fs(&host, &["-t", "ext4", "-b", "1024"], "16M");
    let host = LoopMount::new(&host, "").unwrap();
    let tree = host.path().join("tree");
    std::fs::create_dir_all(tree.join("d/fixed-dir")).unwrap();
    for name in ["fixed", "append", "plain", "d/hints", "d/fixed-dir/in"] {
        std::fs::write(tree.join(name), name).unwrap();
    }
    std::fs::hard_link(tree.join("fixed"), tree.join("z-fixed")).unwrap();
    let chattr =
        |flags: &str, name: &str| assert!(run("chattr", &[flags, text(&tree.join(name))]).status.success());
    chattr("+i", "fixed");
    chattr("+a", "append");
    chattr("+dA", "d/hints");
    chattr("+i", "d/fixed-dir");
    let lsattr = |root: &Path| {
        let listed = run("lsattr", &["-R", text(root)]);
        let text = String::from_utf8(listed.stdout).unwrap();
        let lines = text.lines().filter(|line| line.contains(' ') && !line.ends_with("lost+found"));
        let mut lines: Vec<String> = lines.map(|line| line.replace(text_of(root), "")).collect();
        lines.sort();
        lines
    };
    fn text_of(root: &Path) -> &str {
        root.to_str().unwrap()
    }
    let wanted = lsattr(&tree);
    let image = image(folder.path(), "16M");
    done(
        &["put", "-r", "-q", &image, text(&tree), "/"]
            .map(|word| if word == "-q" { "--quiet" } else { word }),
    );
    e2fsck_clean(Path::new(&image));
    let mounted = LoopMount::new(Path::new(&image), "ro").unwrap();
    assert_eq!(lsattr(&mounted.path().join("tree")), wanted);
    drop(mounted);
    assert!(fails(&["rm", &image, "/tree/fixed"], 1).contains("not permitted"));
    let [plain, kept] = ["plain", "kept"].map(|name| host.path().join(name));
    let output = command(&["get", "-r", &image, "/tree", text(&plain)]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", errors(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("immutable or append-only"), "{output:?}");
    let only_hints = lsattr(&plain).into_iter().filter(|line| line.contains('d') && line.contains("A"));
    assert!(only_hints.count() > 0 && !lsattr(&plain).iter().any(|line| line[..16].contains(['i', 'a'])));
    done(&["get", "-r", "--preserve-flags", &image, "/tree", text(&kept)]);
    assert_eq!(lsattr(&kept), wanted);
    for root in [&tree, &kept] {
        assert!(run("chattr", &["-R", "-ia", text(root)]).status.success());
    }
}

/// A full image was once reported separately for each of thousands of names.
#[test]
fn a_full_image_ends_the_copy_with_one_summary() {
    if !require(&["e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "8M");
    let tree = folder.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    for number in 100..160 {
        std::fs::write(tree.join(format!("{number}")), vec![b'x'; 300_000]).unwrap();
    }
    std::fs::write(tree.join("a-small-one"), "x").unwrap();
    std::fs::write(tree.join("z-small-one"), "x").unwrap();
    let said = fails(&["put", "-r", &image, text(&tree), "/"], 1);
    for part in ["no space left", "names (", "were copied", "were not", "more are needed", "--keep-going"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let output = command(&["ls", &image, "/tree"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&output.stdout).contains("z-small-one"));
    e2fsck_clean(Path::new(&image));
    let output = command(&["put", "-r", "--keep-going", &image, text(&tree), "/"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).lines().count() > 10);
    assert_eq!(done(&["cat", &image, "/tree/z-small-one"]), "x");
    // Inodes can also run out.
    let few = folder.path().join("few");
    done(&["mkfs", "-q", "-N", "16", text(&few), "8M"]);
    let said = fails(&["put", "-r", text(&few), text(&tree), "/"], 1);
    assert!(said.contains("more inodes are needed"), "{said}");
}

/// A full host, too, was once reported separately for each name.
#[test]
fn a_full_host_ends_the_copy_with_one_summary() {
    if !require(&["root", "mount", "mke2fs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let host = folder.path().join("host");
    mke2fs(&host, &["-t", "ext4", "-b", "1024", "-m", "0"], "4M");
    let host = LoopMount::new(&host, "").unwrap();
    let image = image(folder.path(), "32M");
    let tree = folder.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    for number in 100..120 {
        std::fs::write(tree.join(format!("{number}")), vec![b'x'; 600_000]).unwrap();
    }
    done(&["--quiet", "put", "-r", &image, text(&tree), "/"]);
    let to = host.path().join("to");
    let said = fails(&["get", "-r", &image, "/tree", text(&to)], 1);
    for part in ["No space left", "were copied", "were not", "more are needed", "--keep-going"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("image: "), "the image is not at fault: {said}");
    assert!(
        std::fs::read_dir(&to).unwrap().all(|entry| !entry
            .unwrap()
            .file_name()
            .to_str()
            .unwrap()
            .starts_with('.'))
    );
    let output = command(&["get", "-r", "--keep-going", &image, "/tree", text(&to)]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).lines().count() > 2, "{}", errors(&output));
}

/// A missing host file was once reported as an error of the image, and paths were printed twice.
#[test]
fn messages_name_the_side() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "16M");
    let path = |name: &str| format!("{}/{name}", folder.path().display());
    let count = |said: &str, what: &str| said.matches(what).count();
    for arguments in [
        &["put", &image, &path("none"), "/x"][..],
        &["put", "-r", &image, &path("none"), "/x"],
        &["put", &image, &path("."), "/x"],
    ] {
        let said = fails(arguments, 1);
        assert!(!said.contains("image") && count(&said, &folder.path().display().to_string()) == 1, "{said}");
    }
    done(&["touch", &image, "/file"]);
    let said = fails(&["get", &image, "/file", &path("no/such")], 1);
    assert!(!said.contains("image") && count(&said, "no") >= 1, "{said}");
    let said = fails(&["get", &image, "/none", &path("to")], 1);
    assert!(said.contains("image: ") && count(&said, "/none") == 1, "{said}");
    let said = fails(&["put", &image, &image, "/itself"], 1);
    assert!(count(&said, &image) == 1, "{said}");
    // A path that is not a file and a path that does not exist share one exit code.
    fails(&["cat", &image, "/"], 1);
    fails(&["cat", &image, "/none"], 1);
    fails(&["get", &image, "/", "-"], 1);
    // Wrong usage is reported before the target is examined.
    let said = fails(&["mkfs", &image, "-O", "nosuch"], 2);
    assert!(said.contains("nosuch") && said.contains("(see `blockyard mkfs --help`)"), "{said}");
    fails(&["mkfs", &path("none"), "-b", "3000"], 2);
    fails(&["mkfs", &image, "-I", "128", "--time", "3000000000", "8M"], 2);
}

/// A file put into a directory with a default access control list once got that list instead of the
/// list of its source.
#[test]
fn copies_have_the_access_lists_of_their_source() {
    if !require(&["root", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (image, tree) = (image(folder.path(), "16M"), folder.path().join("tree"));
    small_tree(&tree);
    let entries: [(u16, u16, u32); 5] =
        [(1, 7, u32::MAX), (2, 6, 1234), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        list.extend(id.to_le_bytes());
    }
    let names = ["access", "default"].map(|name| format!("system.posix_acl_{name}"));
    {
        let mount = LoopMount::new(Path::new(&image), "").unwrap();
        let dir = mount.path().join("dir");
        std::fs::create_dir(&dir).unwrap();
        rustix::fs::lsetxattr(&dir, &names[1], &list, rustix::fs::XattrFlags::empty()).unwrap();
    }
    done(&["put", "-r", &image, text(&tree), "/dir"]);
    e2fsck_clean(Path::new(&image));
    let mount = LoopMount::new(Path::new(&image), "ro").unwrap();
    for name in ["tree", "tree/d", "tree/d/empty", "tree/d/7", "tree/mixed"] {
        let (made, source) = (mount.path().join("dir").join(name), folder.path().join(name));
        for list in &names {
            assert!(rustix::fs::lgetxattr(&made, list, &mut [0_u8; 256][..]).is_err(), "{name} has {list}");
        }
        assert_eq!(made.metadata().unwrap().mode(), source.metadata().unwrap().mode(), "{name}");
    }
}

/// A directory inside itself once ended the copy, and the names after it were silently missing.
#[test]
fn a_directory_that_is_met_twice_does_not_end_a_copy() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    mke2fs(&image, &["-t", "ext4"], "16M");
    let source = folder.path().join("source");
    std::fs::write(&source, "text").unwrap();
    let write = format!("write {} last", source.display());
    for request in ["mkdir a", "mkdir a/b", "link a a/b/cycle", &write] {
        run("debugfs", &["-w", "-R", request, text(&image)]);
    }
    let dest = folder.path().join("dest");
    let told = fails(&["get", "-r", text(&image), "/", text(&dest)], 1);
    assert!(told.contains("/a/b/cycle: the directory was met before"), "{told}");
    assert_eq!(std::fs::read(dest.join("last")).unwrap(), b"text");
}
