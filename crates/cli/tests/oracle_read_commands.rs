//! The commands that only read: `stat`, `ls`, `cat` and `map` show what dumpe2fs and debugfs show,
//! also for images that the kernel wrote.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use blockyard_testkit::{LoopMount, fill, mke2fs, require, run};

fn blockyard(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_blockyard")).args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{:?}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Asserts that two texts have equal lines, apart from white space at line ends. Shows the first
/// line that differs.
fn assert_same_lines(ours: &str, theirs: &str, what: &str) {
    for (number, (mine, other)) in ours.lines().zip(theirs.lines()).enumerate() {
        assert_eq!(mine.trim_end(), other.trim_end(), "{what}, line {number}: ours left");
    }
    assert_eq!(ours.lines().count(), theirs.lines().count(), "{what}: number of lines\n{ours}\n{theirs}");
}

fn compare_with_dumpe2fs(image: &Path, what: &str) {
    let image = image.to_str().unwrap();
    let theirs = run("dumpe2fs", &["-h", image]);
    assert_same_lines(&text(&blockyard(&["stat", image])), &text(&theirs), what);
    let theirs = run("dumpe2fs", &[image]);
    assert_same_lines(&text(&blockyard(&["stat", "--groups", image])), &text(&theirs), what);
}

#[test]
fn stat_prints_what_dumpe2fs_prints() {
    if !require(&["mke2fs", "dumpe2fs"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let cases: &[(&str, &str)] = &[
        ("-t ext4", "600M"),
        ("-t ext4 -b 1024 -L label -U 0bb12282-a7c0-4e0f-ac8f-a297472aceda -m 1.5", "100M"),
        ("-t ext4 -b 2048 -O ^64bit,quota,project -i 65536", "300M"),
        ("-t ext4 -b 4096 -O meta_bg,^resize_inode -N 100000", "20G"),
        ("-t ext4 -b 1024 -O meta_bg,^resize_inode,^flex_bg,^metadata_csum", "600M"),
        ("-t ext4 -O sparse_super2 -E num_backup_sb=1", "600M"),
        ("-t ext4 -O sparse_super2,orphan_file,mmp -E num_backup_sb=2,mmp_update_interval=7", "3G"),
        ("-t ext4 -O bigalloc -C 65536", "3G"),
        ("-t ext4 -b 1024 -O bigalloc -C 16384", "600M"),
        ("-t ext4 -O metadata_csum_seed,fast_commit,inline_data,ea_inode,large_dir,verity,encrypt", "600M"),
        ("-t ext4 -O casefold,uninit_bg,^metadata_csum,stable_inodes -E encoding=utf8", "600M"),
        ("-t ext4 -b 65536", "4G"),
        ("-t ext4 -G 64 -E stride=4,stripe_width=32,resize=100G,packed_meta_blocks=1 -I 512", "10G"),
        ("-t ext3 -b 1024 -I 128 -J size=8", "200M"),
        ("-t ext3 -e remount-ro", "2G"),
        ("-t ext2 -O ^dir_index,^sparse_super,^resize_inode", "600M"),
        ("-r 0 -O none", "40M"),
    ];
    for (arguments, size) in cases {
        println!("mke2fs {arguments} {size}");
        let list: Vec<&str> = arguments.split(' ').collect();
        mke2fs(&image, &list, size);
        compare_with_dumpe2fs(&image, arguments);
    }
}

#[test]
fn stat_prints_what_dumpe2fs_prints_of_rare_fields() {
    if !require(&["mke2fs", "dumpe2fs", "debugfs", "tune2fs"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let name = image.to_str().unwrap();
    mke2fs(&image, &["-t", "ext4"], "600M");
    let tuned =
        "-E mount_opts=noatime,hash_alg=tea -i 6m -c 20 -r 100 -u 1234 -g 5 -e panic -o discard,journal_data";
    let mut list: Vec<&str> = tuned.split(' ').collect();
    list.push(name);
    assert!(run("tune2fs", &list).status.success());
    let edits = [
        "error_count 3",
        "first_error_time 20200229123456",
        "first_error_func first_function",
        "first_error_line 17",
        "first_error_ino 12",
        "first_error_block 345",
        "last_error_time 20210301000000",
        "last_error_func last_function",
        "last_error_line 18",
        "last_orphan 14",
        "kbytes_written 123456789",
        "last_mounted /mnt/somewhere",
        "mtime 20380119031408",
        "lastcheck 20500101000000",
        "checkinterval 7772461",
        "state 2",
    ];
    for edit in edits {
        assert!(run("debugfs", &["-w", "-R", &format!("ssv {edit}"), name]).status.success(), "{edit}");
        compare_with_dumpe2fs(&image, edit);
    }
    for kib in [8191u64, 8192, 8_388_607, 8_388_608, 8_589_934_591, 8_589_934_592] {
        assert!(run("debugfs", &["-w", "-R", &format!("ssv kbytes_written {kib}"), name]).status.success());
        compare_with_dumpe2fs(&image, &format!("kbytes_written {kib}"));
    }
}

#[test]
fn images_that_the_kernel_filled_read_the_same_as_with_debugfs() {
    if !require(&["root", "mount", "mke2fs", "dumpe2fs", "debugfs"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let name = image.to_str().unwrap();
    for arguments in [
        &["-t", "ext4", "-b", "1024"][..],
        &["-t", "ext3", "-b", "1024"],
        &["-t", "ext4", "-O", "inline_data"],
    ] {
        mke2fs(&image, arguments, "128M");
        let mount = LoopMount::new(&image, "").unwrap();
        fill::sizes(mount.path(), 1024);
        fill::sparse(mount.path(), 5_000_000);
        fill::specials(mount.path());
        fill::symlinks(mount.path(), [3, 59, 60, 500]);
        fill::fragmented(mount.path(), "fragmented", 1024, 700);
        drop(mount);
        compare_with_dumpe2fs(&image, "after a mount");
        for path in [
            "/sizes/1",
            "/sizes/161",
            "/sizes/1500000",
            "/sparse/islands",
            "/sparse/unwritten",
            "/fragmented",
        ] {
            let mut theirs = run("debugfs", &["-R", &format!("cat {path}"), name]);
            // debugfs prints at least the 60 bytes of i_block for a file with inline data.
            if arguments.contains(&"inline_data") && path == "/sizes/1" {
                theirs.stdout.truncate(1);
            }
            let ours = blockyard(&["cat", name, path]);
            assert!(ours.stdout == theirs.stdout, "{arguments:?} {path}: {ours:?} {theirs:?}");
            assert_eq!(mapped_blocks(name, path), blocks_of_debugfs(name, path), "{path}");
        }
        let ours = text(&blockyard(&["ls", name, "/specials"]));
        let theirs = text(&run("debugfs", &["-R", "ls -p /specials", name]));
        let mut names: Vec<&str> = theirs.lines().filter_map(|line| line.split('/').nth(5)).collect();
        names.retain(|entry| *entry != "." && *entry != "..");
        names.sort_unstable();
        assert_eq!(ours.lines().collect::<Vec<_>>(), names);
    }
}

/// The physical blocks of a file, ascending, from the extents that `map` prints.
fn mapped_blocks(image: &str, path: &str) -> Vec<u64> {
    let output = text(&blockyard(&["map", "--json", image, path]));
    let mut blocks = Vec::new();
    for line in output.lines() {
        let extent: serde_json::Value = serde_json::from_str(line).unwrap();
        if extent.get("map").is_some() {
            continue;
        }
        let start = extent["physical"].as_u64().unwrap();
        blocks.extend(start..start + extent["length"].as_u64().unwrap());
    }
    blocks.sort_unstable();
    blocks
}

/// The same blocks as debugfs lists them. Blocks of the mapping itself, whose labels have capitals
/// (`ETB0`, `IND`), are left out.
fn blocks_of_debugfs(image: &str, path: &str) -> Vec<u64> {
    let output = text(&run("debugfs", &["-R", &format!("stat {path}"), image]));
    let (_, list) =
        output.split_once("BLOCKS:").or_else(|| output.split_once("EXTENTS:")).unwrap_or_default();
    let mut blocks = Vec::new();
    for part in list.split(['\n', ',']).filter(|part| part.trim_start().starts_with('(')) {
        let (logical, physical) = part.trim().split_once("):").unwrap();
        if logical.contains(|letter: char| letter.is_ascii_uppercase()) {
            continue;
        }
        let physical = physical.split("[u]").next().unwrap();
        let (first, last) = physical.split_once('-').unwrap_or((physical, physical));
        blocks.extend(first.trim().parse::<u64>().unwrap()..=last.trim().parse::<u64>().unwrap());
    }
    blocks.sort_unstable();
    blocks
}

#[test]
fn an_image_that_was_not_unmounted_shows_what_was_committed() {
    if !require(&["root", "mount", "mke2fs", "sync", "dumpe2fs"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (image, copy) = (directory.path().join("image"), directory.path().join("copy"));
    mke2fs(&image, &["-t", "ext4"], "64M");
    let mount = LoopMount::new(&image, "").unwrap();
    std::fs::create_dir(mount.path().join("folder")).unwrap();
    std::fs::write(mount.path().join("folder/file"), fill::pattern(8, 100_000)).unwrap();
    assert!(run("sync", &["-f", mount.path().to_str().unwrap()]).status.success());
    std::fs::copy(&image, &copy).unwrap();
    drop(mount);
    let before = std::fs::read(&copy).unwrap();
    let name = copy.to_str().unwrap();
    compare_with_dumpe2fs(&copy, "needs recovery");
    assert_eq!(text(&blockyard(&["ls", name, "/folder"])), "file\n");
    let content = blockyard(&["cat", name, "/folder/file"]);
    assert!(content.stdout == fill::pattern(8, 100_000) && content.stderr.is_empty(), "{:?}", content.status);
    assert!(text(&blockyard(&["stat", name, "/folder/file"])).contains("Size:                     100000"));
    assert!(std::fs::read(&copy).unwrap() == before, "the image was written");
}

#[test]
fn errors_have_their_exit_codes() {
    if !require(&["mke2fs"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    mke2fs(&image, &["-t", "ext4"], "16M");
    let name = image.to_str().unwrap();
    let code = |arguments: &[&str]| blockyard(arguments).status.code();
    assert_eq!(code(&["ls", name]), Some(0));
    assert_eq!(code(&["ls", name, "/missing"]), Some(1));
    assert_eq!(code(&["cat", name, "/lost+found/x"]), Some(1));
    assert_eq!(code(&["cat", name, "/lost+found"]), Some(1));
    assert_eq!(code(&["stat"]), Some(2));
    assert_eq!(code(&["stat", "/nonexistent-image"]), Some(8));
    std::fs::write(&image, vec![0; 1 << 20]).unwrap();
    let output = blockyard(&["stat", name]);
    assert_eq!(output.status.code(), Some(8));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("superblock magic is not 0xEF53"), "{message}");
    assert_eq!(message.lines().count(), 1);
}

#[test]
fn a_closed_pipe_ends_quietly() {
    if !require(&["mke2fs"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    mke2fs(&image, &["-t", "ext4", "-b", "1024"], "2G");
    let mut child = Command::new(env!("CARGO_BIN_EXE_blockyard"))
        .args(["stat", "--groups", image.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{:?}", output.status);
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The keys of all lines, each of which must be one JSON object.
fn keys(output: &str) -> Vec<String> {
    assert!(!output.is_empty());
    let objects = output.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    objects.flat_map(|object| object.as_object().unwrap().keys().cloned().collect::<Vec<_>>()).collect()
}

fn keys_are_in_the_help(command: &[&str], arguments: &[&str]) {
    documented(command, keys(&text(&blockyard(arguments))));
}

fn documented(command: &[&str], keys: Vec<String>) {
    let help = text(&blockyard(&[command, &["--help"]].concat()));
    let about = help.find("JSON: ").map_or("", |at| &help[at..]);
    let words: Vec<&str> =
        about.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').collect();
    for key in keys {
        assert!(words.contains(&key.as_str()), "{command:?}: {key} is not in: {about}");
    }
}

#[test]
fn every_json_key_is_in_the_help() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let name = image.to_str().unwrap();
    mke2fs(&image, &["-t", "ext4", "-b", "1024"], "16M");
    for command in
        ["mknod device c 5 1", "symlink link target", "ea_set lost+found user.a b", "write /etc/passwd file"]
    {
        assert!(run("debugfs", &["-w", "-R", command, name]).status.success());
    }
    for arguments in [
        &["ls", name, "-l"][..],
        &["map", name, "/lost+found"],
        &["map", name, "/link"],
        &["cat", name, "/file"],
        &["stat", name, "/lost+found"],
        &["stat", name, "/device"],
        &["stat", name, "/link"],
    ] {
        let mut with_json = arguments.to_vec();
        with_json.push("--json");
        keys_are_in_the_help(&arguments[..1], &with_json);
    }
    assert!(run("debugfs", &["-w", "-R", "set_inode_field link links_count 7", name]).status.success());
    let found = blockyard(&["--json", "check", "-n", name]);
    assert_eq!(found.status.code(), Some(4));
    let new = directory.path().join("new");
    for (command, arguments) in [
        (&["mkfs"][..], &["--json", "mkfs", new.to_str().unwrap(), "16M"][..]),
        (&["policy", "list"], &["--json", "policy", "list"]),
        (&["policy", "show"], &["--json", "policy", "show", "yard"]),
        (&["version"], &["--json", "version"]),
        (&["recover"], &["--json", "recover", new.to_str().unwrap()]),
    ] {
        keys_are_in_the_help(command, arguments);
    }
    documented(&["check"], keys(&String::from_utf8(found.stdout).unwrap()));
    let groups = text(&blockyard(&["stat", "--groups", "--json", name]));
    let objects: Vec<serde_json::Value> =
        groups.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((objects.len(), &objects[0]["block_count"]), (3, &serde_json::json!(16_384)));
    let free: u64 = objects[1..].iter().map(|group| group["free_clusters"].as_u64().unwrap()).sum();
    assert_eq!(objects[0]["free_blocks"], free);
}

#[test]
fn a_damaged_inode_does_not_end_a_listing() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let name = image.to_str().unwrap();
    mke2fs(&image, &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"], "16M");
    for command in
        ["write /etc/passwd a", "write /etc/passwd b", "write /etc/passwd c", "set_inode_field b mode 0"]
    {
        assert!(run("debugfs", &["-w", "-R", command, name]).status.success());
    }
    let output = blockyard(&["ls", name]);
    assert_eq!(output.status.code(), Some(8));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "a\nc\nlost+found\n");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("/b: inode 13") && message.contains("1 name could not be read"), "{message}");
    // A damaged directory does not end the listing of a tree either.
    for command in ["mkdir d", "mkdir e", "write /etc/passwd e/f", "zap_block -f d -p 255 0"] {
        assert!(run("debugfs", &["-w", "-R", command, name]).status.success());
    }
    let output = blockyard(&["ls", "-R", name]);
    assert_eq!(output.status.code(), Some(8));
    let listing = String::from_utf8(output.stdout).unwrap();
    assert_eq!(listing, "/:\na\nc\nd\ne\nlost+found\n\n/d:\n\n/e:\nf\n\n/lost+found:\n");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("/d: ") && message.contains("2 names could not be read"), "{message}");
}

#[test]
fn damaged_groups_and_journals_do_not_hide_the_rest() {
    if !require(&["mke2fs"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let name = image.to_str().unwrap();
    mke2fs(&image, &["-t", "ext4", "-b", "1024"], "32M");
    let file = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    // Overwrites the block bitmap's address in the descriptor of group 1 (block 2, byte 64).
    file.write_all_at(&[0xFF; 4], 2048 + 64).unwrap();
    let output = blockyard(&["stat", "--groups", name]);
    assert_eq!(output.status.code(), Some(8));
    let (shown, message) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(shown.contains("Group 0:") && !shown.contains("Group 1:") && shown.contains("Group 3:"));
    assert!(
        message.contains("group 1, block 2:") && message.contains(": 1 group could not be read"),
        "{message}"
    );
}
