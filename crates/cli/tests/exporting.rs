//! `blockyard export` and `blockyard diff` from the command line.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn blockyard(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_blockyard"));
    command.args(arguments).current_dir(folder).env_remove("SOURCE_DATE_EPOCH");
    command.output().unwrap()
}

fn done(folder: &Path, arguments: &[&str]) -> Output {
    let output = blockyard(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn image() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path().join("tree");
    fs::create_dir_all(top.join("below")).unwrap();
    fs::write(top.join("below/file"), vec![7; 400_000]).unwrap();
    fs::hard_link(top.join("below/file"), top.join("same")).unwrap();
    fs::write(top.join("small"), "content\n").unwrap();
    std::os::unix::fs::symlink("below/file", top.join("link")).unwrap();
    done(folder.path(), &["build", "tree", "tree.img"]);
    folder
}

#[test]
fn every_kind_of_export_gives_the_image_again() {
    let folder = image();
    let at = folder.path();
    for arguments in [
        &["export", "tree.img", "out.tar"][..],
        &["export", "tree.img", "out.tar.gz"],
        &["export", "tree.img", "out.tzst", "--json"],
        &["export", "tree.img", "out.dir"],
        &["export", "tree.img", "out.oci", "--as", "oci", "--reference", "mine:1"],
    ] {
        done(at, arguments);
    }
    for kind in ["tar", "oci"] {
        let made = done(at, &["export", "tree.img", "-", "--as", kind]);
        fs::write(at.join(format!("out.{kind}.stream")), &made.stdout).unwrap();
        assert_eq!(text(&made.stderr), "");
    }
    let again = done(at, &["export", "tree.img", "-", "--as", "oci"]);
    assert!(again.stdout == fs::read(at.join("out.oci.stream")).unwrap(), "the same bytes");
    let expected = fs::read(at.join("tree.img")).unwrap();
    for source in [
        "out.tar",
        "out.tar.gz",
        "out.tzst",
        "out.dir",
        "out.oci",
        "out.tar.stream",
        "out.oci.stream",
        "tree.img",
    ] {
        done(at, &["build", "-F", source, "again.img"]);
        assert!(fs::read(at.join("again.img")).unwrap() == expected, "{source}: another image");
        done(at, &["diff", source, "tree.img"]);
    }
    let part = done(at, &["export", "tree.img", "-", "--path", "below", "--as", "tar"]);
    let mut tar = Command::new("tar").arg("-t").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut tar.stdin.take().unwrap(), &part.stdout).unwrap();
    assert_eq!(text(&tar.wait_with_output().unwrap().stdout), "./\nfile\n");
}

#[test]
fn paths_that_are_longer_than_system_calls_take_are_exported() {
    let folder = image();
    let at = folder.path();
    let long = vec!["n".repeat(99); 70].join("/");
    done(at, &["build", "tree", "deep.img", "--add", &format!("tree/small:{long}/file")]);
    let told = done(at, &["export", "deep.img", "out", "--json"]);
    assert!(text(&told.stdout).contains(&format!("\"out/{long}/file\"")), "whole paths are told");
    done(at, &["build", "out", "again.img"]);
    assert!(fs::read(at.join("again.img")).unwrap() == fs::read(at.join("deep.img")).unwrap());
}

#[test]
fn what_is_there_stays() {
    let folder = image();
    let at = folder.path();
    fs::write(at.join("there.tar"), "others").unwrap();
    let cases: [(&[&str], i32, &str); 9] = [
        (&["export", "tree.img", "there.tar"], 8, "--force"),
        (&["export", "tree.img", "new.tar.xz"], 2, ".tar, .tar.gz, .tgz, .tar.zst, .tar.zstd, .tzst"),
        (&["export", "tree.img", "new.zip", "--as", "tar"], 2, "--as dir"),
        (&["export", "tree.img", "tree"], 8, "is not empty"),
        (&["export", "tree.img", "tree", "--as", "oci"], 8, "is not empty"),
        (&["export", "tree.img", "-", "--as", "dir"], 2, "no directory"),
        (&["export", "tree.img", "new", "--compress", "gz"], 2, "--compress"),
        (&["export", "tree.img", "new.tar", "--path", "absent"], 8, "absent"),
        (&["export", "tree.img", "tree.img", "--as", "tar", "-F"], 8, "the image itself"),
    ];
    for (arguments, code, part) in cases {
        let refused = blockyard(at, arguments);
        let told = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(code), "{arguments:?}: {told}");
        assert!(told.contains(part), "{arguments:?}: {told}");
    }
    assert_eq!(fs::read(at.join("there.tar")).unwrap(), b"others");
    assert_eq!(fs::read_dir(at).unwrap().count(), 3, "nothing else is left");
}

/// `export -F` and `build --compress -F` once replaced devices, pipes and links by a regular file.
#[test]
fn devices_and_pipes_are_written_and_links_are_followed() {
    if !blockyard_testkit::require(&["root", "mknod", "mkfifo"]) {
        return;
    }
    let folder = image();
    let at = folder.path();
    for arguments in
        [&["mknod", "null", "c", "1", "3"][..], &["mkfifo", "fifo"], &["mknod", "disk", "b", "240", "0"]]
    {
        assert!(Command::new(arguments[0]).args(&arguments[1..]).current_dir(at).status().unwrap().success());
    }
    for (link, target) in [("to-null", "null"), ("to-file", "real"), ("to-link", "to-file")] {
        std::os::unix::fs::symlink(target, at.join(link)).unwrap();
    }
    let kind = |name: &str| fs::symlink_metadata(at.join(name)).unwrap().file_type();
    for options in [
        &["export", "-F", "tree.img", "--as", "tar"][..],
        &["build", "-q", "-F", "tree", "--compress", "zst"],
    ] {
        let to = |name| [options, &[name]].concat();
        for name in ["null", "to-null"] {
            done(at, &to(name));
            assert!(kind("null").is_char_device() && kind("to-null").is_symlink(), "{options:?} {name}");
        }
        // The output of `cat` goes to a file. A pipe that nobody reads yet could fill, and then
        // `cat` and blockyard would wait forever.
        let read = fs::File::create(at.join("read")).unwrap();
        let mut reader = Command::new("cat").arg("fifo").current_dir(at).stdout(read).spawn().unwrap();
        done(at, &to("fifo"));
        assert!(reader.wait().unwrap().success(), "{options:?}");
        let streamed = fs::read(at.join("read")).unwrap();
        fs::remove_file(at.join("read")).unwrap();
        // First the link leads to nothing, then to a file.
        for _ in 0..2 {
            done(at, &to("to-link"));
            assert!(kind("to-link").is_symlink() && kind("to-file").is_symlink(), "{options:?}");
            assert!(fs::read(at.join("real")).unwrap() == streamed && kind("fifo").is_fifo(), "{options:?}");
        }
        fs::remove_file(at.join("real")).unwrap();
        let refused = blockyard(at, &to("disk"));
        assert!(text(&refused.stderr).starts_with("blockyard: disk: is no regular file"), "{refused:?}");
        assert!(refused.status.code() == Some(8) && kind("disk").is_block_device(), "{refused:?}");
    }
    assert_eq!(fs::read_dir(at).unwrap().count(), 8, "nothing else is left");
}

/// Every image has its own lost+found. A source whose lost+found has content can be compared, but
/// is not built without `--exclude`: the root would have two entries of that name.
#[test]
fn a_lost_found_with_content_is_not_built() {
    let folder = image();
    let at = folder.path();
    done(at, &["build", "tree", "roomy.img", "--free", "1m", "-N", "64"]);
    fs::create_dir(at.join("tree/lost+found")).unwrap();
    fs::write(at.join("tree/lost+found/x"), "x").unwrap();
    let compared = blockyard(at, &["diff", "tree", "roomy.img"]);
    assert_eq!(compared.status.code(), Some(1), "{}", text(&compared.stderr));
    assert!(text(&compared.stdout).contains("/lost+found: only in the first (directory)"));
    done(at, &["put", "roomy.img", "tree/small", "/lost+found/"]);
    for source in ["tree", "roomy.img"] {
        let refused = blockyard(at, &["build", source, "new.img"]);
        assert_eq!(refused.status.code(), Some(8), "{source}");
        assert!(text(&refused.stderr).contains("--exclude /lost+found"), "{}", text(&refused.stderr));
        done(at, &["build", source, "new.img", "-F", "--exclude", "/lost+found"]);
    }
}

#[test]
fn differences_are_told_and_counted_by_the_exit_code() {
    let folder = image();
    let at = folder.path();
    let equal = blockyard(at, &["diff", "tree.img", "tree"]);
    assert_eq!(
        (equal.status.code(), text(&equal.stdout)),
        (Some(0), String::new()),
        "{}",
        text(&equal.stderr)
    );
    let time = fs::metadata(at.join("tree/small")).unwrap().modified().unwrap();
    fs::write(at.join("tree/small"), "contEnt\n").unwrap();
    fs::File::open(at.join("tree/small")).unwrap().set_modified(time).unwrap();
    let other = blockyard(at, &["diff", "tree.img", "tree"]);
    let expected = "/small: content from byte 4 on: 1 byte in 1 range: 4-4\n";
    assert_eq!((other.status.code(), text(&other.stdout)), (Some(1), expected.to_owned()));
    let json = blockyard(at, &["diff", "--json", "tree.img", "tree"]);
    let told: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(
        (&told["path"], &told["first_offset"], &told["bytes"]),
        (&"/small".into(), &4.into(), &1.into())
    );
    let brief = blockyard(at, &["diff", "-q", "tree.img", "tree"]);
    assert_eq!((brief.status.code(), text(&brief.stdout)), (Some(1), String::new()));
    let trouble = blockyard(at, &["diff", "tree.img", "absent"]);
    assert_eq!(trouble.status.code(), Some(2), "{}", text(&trouble.stderr));
    assert!(text(&trouble.stderr).contains("absent"));
}
