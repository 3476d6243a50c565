//! `blockyard build` on the command line: what it prints and what it refuses. It leaves an
//! incomplete image only on request.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn build(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_blockyard"));
    command.arg("build").args(arguments).current_dir(folder).env_remove("SOURCE_DATE_EPOCH");
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn tree() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path().join("tree");
    fs::create_dir_all(top.join("below")).unwrap();
    fs::write(top.join("below/file"), vec![7; 400_000]).unwrap();
    fs::write(top.join("small"), "content\n").unwrap();
    folder
}

#[test]
fn an_image_is_told_and_read_back() {
    let folder = tree();
    let made = build(folder.path(), &["tree", "tree.img", "-L", "mine", "--json"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let told: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
    let image = folder.path().join("tree.img");
    assert_eq!(told["image_bytes"], fs::metadata(&image).unwrap().len());
    assert_eq!(
        (&told["files"], &told["directories"], &told["file_bytes"]),
        (&2.into(), &2.into(), &400_008.into())
    );
    let bytes = |of: &serde_json::Value| of.as_u64().unwrap();
    let overhead = |kinds: &[&str]| kinds.iter().map(|kind| bytes(&told["overhead"][*kind])).sum::<u64>();
    let in_content = overhead(&["directories", "maps", "attributes", "slack"]);
    assert_eq!(bytes(&told["content_bytes"]), bytes(&told["file_bytes"]) + in_content, "{told}");
    let around = overhead(&["inode_tables", "journal", "other"]);
    assert_eq!(
        bytes(&told["image_bytes"]),
        bytes(&told["content_bytes"]) + bytes(&told["free_bytes"]) + around,
        "{told}"
    );
    for phase in ["read", "layout", "write", "data", "metadata", "finish"] {
        assert!(told["seconds"][phase].is_number(), "{told}");
    }
    let read =
        Command::new(env!("CARGO_BIN_EXE_blockyard")).arg("cat").arg(&image).arg("/small").output().unwrap();
    assert_eq!(text(&read.stdout), "content\n");
    let mode = fs::metadata(&image).unwrap().permissions().mode();
    assert_eq!(mode & 0o600, 0o600, "{mode:o}");
    assert_ne!(mode & 0o777, 0o600, "a new file, not a private one: {mode:o}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left");
}

#[test]
fn a_dry_run_and_a_refusal_write_nothing() {
    let folder = tree();
    let dry = build(folder.path(), &["-n", "tree", "tree.img"]);
    assert!(dry.status.success() && text(&dry.stdout).contains("would make"), "{}", text(&dry.stdout));
    let cases: [(&[&str], i32, &str); 10] = [
        (&["absent", "x.img"], 8, "absent"),
        (&["tree", "x.img", "-b", "0"], 2, "-b 0"),
        (&["tree/small", "x.img"], 8, "tree/small"),
        (&["tree", "x.img", "--size", "100"], 8, "the content needs an image of"),
        (&["tree", "x.img", "--size", "64k"], 8, "the content needs an image of"),
        (&["tree", "x.img", "--size", "300k"], 8, "the content needs an image of"),
        (&["tree", "x.img", "--size", "nonsense"], 2, "--size nonsense"),
        (&["tree", "x.img", "--free", "100%"], 2, "--free 100%"),
        (&["tree", "x.img", "--size", "9m", "--free", "1m"], 2, "--size auto only"),
        (&["tree", "nowhere/x.img"], 8, "blockyard: nowhere: No such file or directory (os error 2)\n"),
    ];
    for (arguments, code, part) in cases {
        let refused = build(folder.path(), arguments);
        let told = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(code), "{arguments:?}: {told}");
        assert!(told.contains(part) && told.lines().count() == 1, "{arguments:?}: {told}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left");
}

#[test]
fn what_was_written_is_kept_when_it_is_asked_for() {
    if !blockyard_testkit::require(&["root", "mount"]) {
        return;
    }
    let folder = tree();
    let small = folder.path().join("small-disk");
    fs::create_dir(&small).unwrap();
    let mount = |program: &str, arguments: &[&str]| {
        assert!(Command::new(program).args(arguments).arg(&small).status().unwrap().success());
    };
    mount("mount", &["-t", "tmpfs", "-o", "size=200k", "tmpfs"]);
    let made = |options: &[&str]| {
        let failed = build(folder.path(), &[&["tree", "small-disk/i.img"], options].concat());
        assert_eq!(failed.status.code(), Some(8));
        let left: Vec<String> = fs::read_dir(&small)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        (text(&failed.stderr), left)
    };
    let (told, left) = made(&[]);
    let (told_kept, kept) = made(&["--keep-partial"]);
    mount("umount", &[]);
    assert!(told.contains("small-disk/i.img: ") && left.is_empty(), "{told} {left:?}");
    assert!(kept.len() == 1 && told_kept.contains(&kept[0]), "{told_kept} {kept:?}");
}

#[test]
fn what_the_target_holds_stays_until_the_image_is_complete() {
    let folder = tree();
    let image = folder.path().join("tree.img");
    assert!(build(folder.path(), &["tree", "tree.img"]).status.success());
    let before = fs::read(&image).unwrap();
    let refused = build(folder.path(), &["tree", "tree.img"]);
    assert_eq!(refused.status.code(), Some(8));
    assert!(text(&refused.stderr).contains("--force"), "{}", text(&refused.stderr));
    fs::write(folder.path().join("tree/small"), "others!\n").unwrap();
    fs::set_permissions(folder.path().join("tree/below/file"), fs::Permissions::from_mode(0o0)).unwrap();
    let forced = build(folder.path(), &["-F", "tree", "tree.img"]);
    if forced.status.success() {
        // The user is root, who can read the file in spite of its mode.
        assert!(fs::read(&image).unwrap() != before);
    } else {
        assert!(fs::read(&image).unwrap() == before, "a failure leaves what was there");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left");
}

/// If the operands are in the wrong order, or one is missing, the last operand may be a file that
/// the user wants to keep.
#[test]
fn a_file_with_content_of_any_kind_is_not_replaced() {
    let folder = tree();
    let path = |name: &str| folder.path().join(name);
    for (name, content) in [("a.tar.gz", &b"\x1F\x8Bpacked"[..]), ("notes", &[b"\0\0", &[7; 9][..]].concat())]
    {
        fs::write(path(name), content).unwrap();
        let refused = build(folder.path(), &["tree", name]);
        let told = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(8), "{name}: {told}");
        assert!(told.starts_with(&format!("blockyard: {name}: holds data")), "{told}");
        assert!(told.contains("--force"), "{told}");
        assert!(fs::read(path(name)).unwrap() == content, "{name}");
    }
    for (name, size) in [("empty", 0), ("zeroes", 1 << 20)] {
        fs::File::create(path(name)).unwrap().set_len(size).unwrap();
        let made = build(folder.path(), &["tree", name]);
        assert!(made.status.success(), "{name}: {}", text(&made.stderr));
    }
    // The image gets the permissions of the file that it replaces.
    fs::set_permissions(path("notes"), fs::Permissions::from_mode(0o600)).unwrap();
    assert!(build(folder.path(), &["-F", "tree", "notes"]).status.success());
    assert_eq!(fs::metadata(path("notes")).unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(shown(folder.path(), &["cat", "notes", "/small"]), "content\n");
}

#[test]
fn a_link_to_the_target_stays_a_link() {
    let folder = tree();
    fs::create_dir(folder.path().join("images")).unwrap();
    let real = folder.path().join("images/real.img");
    for (options, name) in [(&["-q"][..], "link"), (&["-q", "--compress", "gz", "-F"], "link.gz")] {
        fs::write(&real, b"").unwrap();
        let link = folder.path().join(name);
        std::os::unix::fs::symlink("images/real.img", &link).unwrap();
        let made = build(folder.path(), &[options, &["tree", name]].concat());
        assert!(made.status.success(), "{name}: {}", text(&made.stderr));
        assert!(link.is_symlink() && fs::metadata(&real).unwrap().len() > 0, "{name}");
        assert_eq!(fs::read_dir(folder.path().join("images")).unwrap().count(), 1, "{name}");
    }
}

/// A symbolic link whose target was missing was once replaced by the image.
#[test]
fn a_link_to_a_missing_target_stays_a_link() {
    let folder = tree();
    for options in [&["-q"][..], &["-q", "-F"], &["-q", "--compress", "gz"]] {
        std::os::unix::fs::symlink("real.img", folder.path().join("link")).unwrap();
        let made = build(folder.path(), &[options, &["tree", "link"]].concat());
        assert!(made.status.success(), "{options:?}: {}", text(&made.stderr));
        assert!(folder.path().join("link").is_symlink(), "{options:?}");
        assert!(fs::metadata(folder.path().join("real.img")).unwrap().len() > 0, "{options:?}");
        for name in ["link", "real.img"] {
            fs::remove_file(folder.path().join(name)).unwrap();
        }
    }
}

#[test]
fn an_archive_is_taken_from_a_file_and_from_a_stream() {
    if !blockyard_testkit::require(&["tar"]) {
        return;
    }
    let folder = tree();
    let made = Command::new("tar")
        .args(["--format=pax", "-C", "tree", "-czf", "tree.tgz", "."])
        .current_dir(folder.path())
        .status()
        .unwrap();
    assert!(made.success());
    for arguments in [["tree", "tree.img"], ["tree.tgz", "file.img"]] {
        let made = build(folder.path(), &arguments);
        assert!(made.status.success(), "{}", text(&made.stderr));
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_blockyard"));
    command.args(["build", "-", "stream.img", "--tmpdir", "."]).current_dir(folder.path());
    command.env_remove("SOURCE_DATE_EPOCH").stdin(fs::File::open(folder.path().join("tree.tgz")).unwrap());
    assert!(command.output().unwrap().status.success());
    let image = |name: &str| fs::read(folder.path().join(name)).unwrap();
    assert!(image("tree.img") == image("file.img") && image("file.img") == image("stream.img"));
    // A pipe with a path, as the shell makes for <(...).
    let script = format!("exec '{}' build <(cat tree.tgz) pipe.img", env!("CARGO_BIN_EXE_blockyard"));
    let mut command = Command::new("bash");
    command.args(["-c", &script]).current_dir(folder.path()).env_remove("SOURCE_DATE_EPOCH");
    let made = command.output().unwrap();
    assert!(made.status.success(), "{}", text(&made.stderr));
    assert!(image("pipe.img") == image("file.img"));
    // A file that is not an archive gives an error, and leaves nothing behind.
    fs::write(folder.path().join("none"), vec![b'x'; 4096]).unwrap();
    let refused = build(folder.path(), &["none", "none.img"]);
    assert_eq!((refused.status.code(), folder.path().join("none.img").exists()), (Some(8), false));
    assert!(text(&refused.stderr).contains("not a tar archive"), "{}", text(&refused.stderr));
    let missing = build(folder.path(), &["tree.tgz", "x.img", "--tmpdir", "nowhere"]);
    assert_eq!(missing.status.code(), Some(8));
    assert!(text(&missing.stderr).contains("nowhere"), "{}", text(&missing.stderr));
}

/// Extended attributes that no ext4 file can have are reported, and the image is still made.
#[test]
fn attributes_that_are_left_out_are_told() {
    if !blockyard_testkit::require(&["tar"]) {
        return;
    }
    let folder = tree();
    let made = Command::new("tar")
        .args(["--format=pax", "--pax-option=SCHILY.xattr.system.data:=x", "-cf", "t.tar", "tree"])
        .current_dir(folder.path())
        .status()
        .unwrap();
    assert!(made.success());
    let made = build(folder.path(), &["t.tar", "t.img", "-q"]);
    let told = text(&made.stderr);
    assert!(made.status.success(), "{told}");
    assert!(told.contains("4 extended attributes") && told.contains("system.data of t.tar/tree"), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
}

/// Times that the image cannot hold are moved into the range that it can hold. Once, the move was
/// not reported.
#[test]
fn times_that_are_moved_are_told() {
    let folder = tree();
    // In order: a time before 1901, and times in 2100, 3000, 2038 and 2100.
    for (size, time, range) in [
        ("256", "-9999999999", Some("1901-12-13 20:45 to 2446-05-10 22:38")),
        ("256", "4102444800", None),
        ("256", "32503680000", Some("1901-12-13 20:45 to 2446-05-10 22:38")),
        ("128", "2147483647", None),
        ("128", "4102444800", Some("1901-12-13 20:45 to 2038-01-19 03:14")),
    ] {
        let made = build(folder.path(), &["-F", "-q", "-I", size, "--mtime", time, "tree", "x.img"]);
        let told = text(&made.stderr);
        assert!(made.status.success(), "{told}");
        match range {
            Some(range) => {
                let parts = ["moved 4 modification times", range, "that of tree\n"];
                assert!(parts.iter().all(|part| told.contains(part)), "{size} {time}: {told}");
            }
            None => assert!(!told.contains("modification time"), "{size} {time}: {told}"),
        }
    }
}

/// A bad archive is refused while its writer still holds the pipe open.
#[test]
fn a_refusal_does_not_wait_for_the_writer() {
    if !blockyard_testkit::require(&["tar", "gzip", "zstd", "xz"]) {
        return;
    }
    let folder = tree();
    for (how, suffix) in [("", "tar"), ("--gzip", "tgz"), ("--zstd", "tzst"), ("--xz", "txz")] {
        let archive = folder.path().join("bad").with_extension(suffix);
        let transform = ["-P", "--transform=s,^,../,", "-C", "tree", "-cf"];
        let made = Command::new("tar")
            .args(Some(how).filter(|how| !how.is_empty()))
            .args(transform)
            .arg(&archive)
            .arg("small")
            .current_dir(folder.path())
            .status()
            .unwrap();
        assert!(made.success());
        let mut command = Command::new(env!("CARGO_BIN_EXE_blockyard"));
        command.args(["build", "-", "x.img"]).current_dir(folder.path());
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut writer = child.stdin.take().unwrap();
        writer.write_all(&fs::read(&archive).unwrap()).unwrap();
        let began = Instant::now();
        let code = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status.code();
            }
            if began.elapsed() > Duration::from_secs(60) {
                child.kill().unwrap();
                panic!("{suffix}: still waits");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        drop(writer);
        let told = text(&child.wait_with_output().unwrap().stderr);
        assert_eq!(code, Some(8), "{suffix}: {told}");
        assert!(told.contains("../small: leads out"), "{suffix}: {told}");
        assert!(!folder.path().join("x.img").exists());
    }
}

fn shown(folder: &Path, arguments: &[&str]) -> String {
    let done =
        Command::new(env!("CARGO_BIN_EXE_blockyard")).args(arguments).current_dir(folder).output().unwrap();
    assert!(done.status.success(), "{arguments:?}: {}", text(&done.stderr));
    text(&done.stdout)
}

#[test]
fn a_stream_holds_the_same_image() {
    let folder = tree();
    assert!(build(folder.path(), &["tree", "tree.img"]).status.success());
    let expected = fs::read(folder.path().join("tree.img")).unwrap();
    let printed = build(folder.path(), &["tree", "-"]);
    assert!(printed.status.success() && printed.stdout == expected);
    assert!(text(&printed.stderr).contains("made"), "what is told goes elsewhere: {}", text(&printed.stderr));
    let printed = build(folder.path(), &["tree", "-", "--compress", "zst", "--quiet"]);
    assert!(
        printed.status.success() && printed.stderr.is_empty() && printed.stdout.len() < expected.len() / 10
    );
    // Options may stand between the operands.
    assert!(build(folder.path(), &["tree", "--compress", "gz", "tree.img.gz"]).status.success());
    let unpacked =
        Command::new("gzip").args(["-dc", "tree.img.gz"]).current_dir(folder.path()).output().unwrap();
    assert!(unpacked.stdout == expected);
    let again = build(folder.path(), &["tree", "--compress", "gz", "tree.img.gz"]);
    assert_eq!(again.status.code(), Some(8));
    assert!(text(&again.stderr).contains("--force"), "{}", text(&again.stderr));
    assert!(build(folder.path(), &["tree", "-F", "--compress", "gz", "tree.img.gz"]).status.success());
    assert_eq!(build(folder.path(), &["tree", "--compress", "rar", "x"]).status.code(), Some(2));
}

#[test]
fn mkfs_copies_a_tree_by_its_old_option() {
    let folder = tree();
    let run = |arguments: &[&str]| shown(folder.path(), arguments);
    run(&["mkfs", "-q", "-d", "tree", "small.img"]);
    run(&["build", "tree", "built.img"]);
    let bytes = |name: &str| fs::read(folder.path().join(name)).unwrap();
    assert!(bytes("small.img") == bytes("built.img"));
    run(&["mkfs", "-q", "-d", "tree", "-b", "1024", "sized.img", "8m"]);
    assert_eq!(bytes("sized.img").len(), 8 << 20);
    fs::File::create(folder.path().join("there.img")).unwrap().set_len(6 << 20).unwrap();
    run(&["mkfs", "-q", "-d", "tree", "there.img"]);
    assert_eq!(
        (bytes("there.img").len(), run(&["cat", "there.img", "/small"])),
        (6 << 20, "content\n".to_owned())
    );
    for wrong in [["--seed", "1"], ["--time", "9223372036854775808"]] {
        let refused = Command::new(env!("CARGO_BIN_EXE_blockyard"))
            .args([&["mkfs", "-d", "tree"], &wrong[..], &["x.img"]].concat())
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    }
}

/// Without a size, `mkfs -d` fills the partition or the device, as `mkfs` does.
#[test]
fn mkfs_fills_the_device_or_partition_that_it_copies_to() {
    let folder = tree();
    let disk = folder.path().join("disk");
    let mut table = [0; 512];
    // One partition of type 0x83, at sector 2048, of 16384 sectors.
    table[446 + 4] = 0x83;
    table[446 + 8..446 + 12].copy_from_slice(&2048u32.to_le_bytes());
    table[446 + 12..446 + 16].copy_from_slice(&16384u32.to_le_bytes());
    table[510..].copy_from_slice(&[0x55, 0xAA]);
    fs::write(&disk, table).unwrap();
    fs::File::options().write(true).open(&disk).unwrap().set_len(32 << 20).unwrap();
    let bytes_made = |image: &str| {
        let told = shown(folder.path(), &["mkfs", "--json", "-d", "tree", image]);
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        assert_eq!(shown(folder.path(), &["cat", image, "/small"]), "content\n");
        told["image_bytes"].as_u64().unwrap()
    };
    assert_eq!(bytes_made("disk?offset=1048576"), 8 << 20);
    if !blockyard_testkit::require(&["root", "losetup"]) {
        return;
    }
    let file = folder.path().join("device");
    fs::File::create(&file).unwrap().set_len(12 << 20).unwrap();
    let device = blockyard_testkit::LoopDevice::new(&file);
    assert_eq!(bytes_made(device.path()), 12 << 20);
}

/// With `-E no_copy_xattrs`, as in mke2fs, an image lacks the extended attributes of its sources.
#[test]
fn attributes_can_be_left_out() {
    if !blockyard_testkit::require(&["setfattr"]) {
        return;
    }
    let folder = tree();
    let mut set = Command::new("setfattr");
    set.args(["-n", "user.note", "-v", "x", "tree/small"]).current_dir(folder.path());
    assert!(set.status().unwrap().success());
    assert!(build(folder.path(), &["tree", "with.img"]).status.success());
    assert!(build(folder.path(), &["-E", "no_copy_xattrs", "tree", "without.img"]).status.success());
    let differences = Command::new(env!("CARGO_BIN_EXE_blockyard"))
        .args(["diff", "with.img", "without.img"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(text(&differences.stdout), "/small: attribute user.note: \"x\", none\n");
}

#[test]
fn several_sources_and_rules_make_one_image() {
    let folder = tree();
    fs::create_dir_all(folder.path().join("over/below")).unwrap();
    fs::write(folder.path().join("over/small"), "other\n").unwrap();
    fs::write(folder.path().join("over/below/left.o"), "object").unwrap();
    let rules = ["--exclude", "*.o", "--squash", "5:6", "--chmod", "small=600", "--mtime", "77"];
    let made = build(folder.path(), &[&["tree", "over", "both.img"][..], &rules].concat());
    assert!(made.status.success(), "{}", text(&made.stderr));
    let run = |arguments: &[&str]| shown(folder.path(), arguments);
    assert_eq!(run(&["cat", "both.img", "/small"]), "other\n");
    assert_eq!(run(&["ls", "both.img", "/below"]), "file\n");
    let found: serde_json::Value =
        serde_json::from_str(&run(&["stat", "both.img", "/small", "--json"])).unwrap();
    assert_eq!(
        (&found["uid"], &found["gid"], &found["mode"]),
        (&5.into(), &6.into(), &0o100_600.into()),
        "{found}"
    );
    for (wrong, part) in [
        (["--chmod", "small"], "PATTERN=VALUE"),
        (["--chmod", "small=9"], "octal"),
        (["--chown", "small=a:b"], "owner"),
        (["--squash", "7"], "UID:GID"),
        (["--squash", "4294967295:0"], "0 to 4294967294"),
        (["--squash", "0:4294967295"], "0 to 4294967294"),
        (["--chown", "small=4294967295:"], "0 to 4294967294"),
        (["--owner-map", "1"], "FROM:TO"),
        (["--owner-map", "0:4294967295"], "beyond the largest"),
        (["--owner-map", "0:4294967290:100"], "beyond the largest"),
        (["--exclude", "["], "["),
        (["--platform", "arm"], "OS/ARCHITECTURE"),
    ] {
        let refused = build(folder.path(), &[&["tree", "x.img"][..], &wrong].concat());
        assert_eq!(refused.status.code(), Some(2), "{wrong:?}");
        assert!(text(&refused.stderr).contains(part), "{wrong:?}: {}", text(&refused.stderr));
    }
    let alone = build(folder.path(), &["tree"]);
    assert_eq!(alone.status.code(), Some(2));
    assert!(text(&alone.stderr).contains("no image"), "{}", text(&alone.stderr));
}

/// Once, a directory that rules left out was opened all the same, and the build failed if it could
/// not be opened.
#[test]
fn a_directory_that_cannot_be_read_can_be_left_out() {
    if !blockyard_testkit::require(&["root", "setpriv"]) {
        return;
    }
    let folder = tree();
    let closed = folder.path().join("tree/closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    // Without these capabilities root may read only what permissions allow.
    let powerless = ["--inh-caps=-all", "--bounding-set=-dac_override,-dac_read_search"];
    let build = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(powerless).arg(env!("CARGO_BIN_EXE_blockyard")).arg("build").args(arguments);
        command.current_dir(folder.path()).output().unwrap()
    };
    let read = build(&["tree", "x.img"]);
    assert_eq!(read.status.code(), Some(8), "{}", text(&read.stderr));
    assert!(text(&read.stderr).contains("tree/closed: Permission denied"), "{}", text(&read.stderr));
    let rules = [
        ["--exclude", "closed"],
        ["--exclude", "/closed"],
        ["--exclude", "/c*"],
        ["--include", "/small"],
        ["--include", "/s*"],
    ];
    for (number, rule) in rules.iter().enumerate() {
        let image = format!("{number}.img");
        let made = build(&[&rule[..], &["tree", image.as_str()]].concat());
        assert!(made.status.success(), "{rule:?}: {}", text(&made.stderr));
        assert_eq!(shown(folder.path(), &["cat", &image, "/small"]), "content\n");
    }
    let added = build(&["--exclude", "closed", "tree/below", "added.img", "--add", "tree:srv/"]);
    assert!(added.status.success(), "{}", text(&added.stderr));
    assert_eq!(shown(folder.path(), &["ls", "added.img", "/srv/tree"]), "below\nsmall\n");
}

/// Rules such as `--exclude` apply to the files in the layers of a container image, not to the
/// files that store the container image.
#[test]
fn rules_leave_the_store_of_a_container_image_alone() {
    let folder = tree();
    let run = |arguments: &[&str]| shown(folder.path(), arguments);
    run(&["build", "-q", "tree", "tree.img"]);
    run(&["export", "tree.img", "store", "--as", "oci"]);
    let rules = ["--exclude", "*.json", "--exclude", "/blobs", "--exclude", "below"];
    run(&[&["build", "-q", "store", "again.img"][..], &rules].concat());
    assert_eq!(run(&["ls", "again.img", "/"]), "lost+found\nsmall\n");
}

#[test]
fn local_files_are_added_and_the_image_itself_is_not() {
    let folder = tree();
    let at = folder.path();
    fs::write(at.join("order"), "/small\nnowhere\n").unwrap();
    fs::write(at.join("motd"), "hello\n").unwrap();
    let make = |image: &str, more: &[&str]| {
        let arguments = [
            &["tree", image, "--order", "order", "--add", "motd:/etc/motd", "--add", "tree/below:srv/"],
            more,
        ]
        .concat();
        build(at, &arguments)
    };
    let made = make("tree/own.img", &[]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    assert!(text(&made.stderr).contains("nowhere"), "{}", text(&made.stderr));
    let first = fs::read(at.join("tree/own.img")).unwrap();
    // The image is inside its own source. The second build gives the same length, so the image does
    // not contain itself.
    let again = make("tree/own.img", &["-F", "--time", "1"]);
    assert!(again.status.success(), "{}", text(&again.stderr));
    assert!(text(&again.stderr).contains("left out"), "{}", text(&again.stderr));
    assert_eq!(fs::metadata(at.join("tree/own.img")).unwrap().len(), u64::try_from(first.len()).unwrap());
    for (path, content) in
        [("/etc/motd", &b"hello\n"[..]), ("/srv/below/file", &[7; 400_000]), ("/small", b"content\n")]
    {
        let read = Command::new(env!("CARGO_BIN_EXE_blockyard"))
            .arg("cat")
            .arg(at.join("tree/own.img"))
            .arg(path)
            .output()
            .unwrap();
        assert!(read.stdout == content, "{path}");
    }
    let wrong = build(at, &["tree", "x.img", "--add", "motd"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", text(&wrong.stderr));
}

/// A signal ends a build even while the build writes its image. No file is left.
#[test]
fn an_interrupted_stream_ends_and_leaves_nothing() {
    let folder = tree();
    let content: Vec<u8> =
        (0..16u32 << 20).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fs::write(folder.path().join("tree/large"), content).unwrap();
    // Some programs, such as timeout, send a signal twice.
    for (arguments, names, code) in [
        (["tree", "-", "--compress", "none"], &["INT"][..], 130),
        (["tree", "-", "--compress", "none"], &["TERM"], 143),
        (["tree", "t.img.gz", "--compress", "gz"], &["TERM"], 143),
        (["tree", "t.img.gz", "--compress", "gz"], &["INT", "INT"], 130),
    ] {
        let mut command = Command::new("env");
        command.args(["--default-signal=INT,TERM", env!("CARGO_BIN_EXE_blockyard"), "build"]).args(arguments);
        command.current_dir(folder.path()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut stream = child.stdout.take().unwrap();
        if arguments[1] == "-" {
            // The build is still writing after the first byte: the rest is more than a pipe holds.
            stream.read_exact(&mut [0]).unwrap();
        } else {
            // Wait for the temporary file next to the requested one.
            while fs::read_dir(folder.path()).unwrap().count() < 2 && child.try_wait().unwrap().is_none() {
                std::thread::yield_now();
            }
        }
        let pid = child.id().to_string();
        for name in names {
            // The process may have ended after the first signal.
            let sent = Command::new("kill").args([&format!("-{name}"), &pid]).stderr(Stdio::null()).status();
            assert!(sent.unwrap().success() || names.len() > 1);
        }
        std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{arguments:?}, {names:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the tree alone");
    }
}
