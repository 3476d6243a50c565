//! The image of an archive made by GNU tar equals the image of the directory, byte for byte.
//! Archives made here, entry by entry, are read as tar extracts them, or refused if hostile or
//! damaged.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use blockyard_build::{Builder, Error, Rules, Tree};
use blockyard_device::{BlockDevice, FileDevice, MemoryDevice};
use blockyard_testkit::images::fill;
use blockyard_testkit::{e2fsck_clean, require};

fn image(tree: Tree) -> Vec<u8> {
    let plan = Builder::default().plan(tree).unwrap();
    let device = MemoryDevice::new(plan.bytes());
    plan.write(&device).unwrap();
    let mut bytes = vec![0; usize::try_from(device.size()).unwrap()];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

fn of_archive(path: &Path) -> Result<Tree, Error> {
    Tree::read_archive(fs::File::open(path).unwrap(), path, &std::env::temp_dir())
}

fn tar(folder: &Path, name: &str, options: &[&str]) -> PathBuf {
    let archive = folder.join(name);
    let usual = ["--sort=name", "--sparse", "--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner"];
    let tree = folder.join("tree");
    let status = Command::new("tar")
        .args(usual)
        .args(options)
        .arg("-C")
        .arg(&tree)
        .arg("-cf")
        .arg(&archive)
        .arg(".")
        .status()
        .unwrap();
    assert!(status.success(), "{options:?}");
    archive
}

#[test]
fn an_archive_gives_the_image_of_its_directory() {
    if !require(&["root", "tar", "zstd", "xz", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fill(&tree, false);
    // GNU tar leaves sockets out.
    fs::remove_file(tree.join("socket")).unwrap();
    fs::write(tree.join("line\nend"), b"a name of two lines").unwrap();
    let expected = image(Tree::read(&tree, 2).unwrap());
    let path = folder.path().join("image");
    fs::write(&path, &expected).unwrap();
    e2fsck_clean(&path);
    let kinds: [&[&str]; 7] = [
        &["--format=pax"],
        // Access control lists as attributes, in the form of system calls.
        &["--format=pax", "--no-acls"],
        &["--format=pax", "--sparse-version=0.0"],
        &["--format=pax", "--sparse-version=0.1"],
        &["--format=pax", "--gzip"],
        &["--format=pax", "--xz"],
        &["--format=pax", "--zstd"],
    ];
    for options in kinds {
        let archive = tar(folder.path(), "archive", options);
        assert!(image(of_archive(&archive).unwrap()) == expected, "{options:?}: another image");
    }
    // GNU's own format has whole seconds and no attributes, so only the number of names is
    // compared.
    let archive = tar(folder.path(), "archive", &["--format=gnu", "--no-xattrs", "--no-acls"]);
    let gnu = of_archive(&archive).unwrap();
    assert_eq!(gnu.names(), Tree::read(&tree, 2).unwrap().names());
    fs::write(&path, image(gnu)).unwrap();
    e2fsck_clean(&path);
}

#[test]
fn modes_follow_access_lists_as_when_they_are_extracted() {
    use tar::EntryType::{Directory, Regular, XHeader};
    if !require(&["root", "tar"]) {
        return;
    }
    let lists = ["user::rw-,user:7:r-x,group::r--,mask::rwx,other::--x", "user::r--,group::rw-,other::---"];
    let record = |key: &str, text: &str| {
        // The length includes its own two digits.
        let rest = format!(" SCHILY.acl.{key}={text}\n");
        format!("{}{rest}", rest.len() + 2).into_bytes()
    };
    let mut parts = vec![entry(Directory, b"./", b"", b"")];
    for (number, list) in lists.iter().enumerate() {
        parts.push(entry(XHeader, b"x", b"", &record("access", list)));
        parts.push(entry(Regular, format!("file{number}").as_bytes(), b"", b"content"));
        parts.push(entry(XHeader, b"x", b"", &[record("access", list), record("default", list)].concat()));
        parts.push(entry(Directory, format!("directory{number}").as_bytes(), b"", b""));
    }
    let folder = tempfile::tempdir().unwrap();
    let (archive, tree) = (folder.path().join("archive"), folder.path().join("tree"));
    fs::write(&archive, parts.concat()).unwrap();
    fs::create_dir(&tree).unwrap();
    let extract = Command::new("tar").args(["--acls", "-xpf"]).arg(&archive).arg("-C").arg(&tree).status();
    assert!(extract.unwrap().success());
    assert!(image(of_archive(&archive).unwrap()) == image(Tree::read(&tree, 1).unwrap()));
}

/// The last file of an archive ends in a hole, so no content in the archive reaches the file's end.
#[test]
fn a_hole_at_the_end_of_the_last_file_is_kept() {
    if !require(&["root", "tar"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for size in [10_000, 1_000_001] {
        let file = fs::File::create(tree.join("file")).unwrap();
        (&file).write_all(b"start").unwrap();
        file.set_len(size).unwrap();
        drop(file);
        let archive = tar(folder.path(), "archive", &["--format=pax"]);
        assert!(image(of_archive(&archive).unwrap()) == image(Tree::read(&tree, 1).unwrap()), "{size}");
    }
}

/// The number fields of a header may be empty. The volume label (an entry with the archive's own
/// name) is not a file.
#[test]
fn numbers_that_are_left_out_are_zeroes() {
    use tar::EntryType::{Char, Directory, Regular};
    let without_numbers = |mut bytes: Vec<u8>, blank: u8| {
        let mut header = tar::Header::from_byte_slice(&bytes[..512]).clone();
        let old = header.as_old_mut();
        let fields: [&mut [u8]; 5] =
            [&mut old.mode, &mut old.uid, &mut old.gid, &mut old.size, &mut old.mtime];
        fields.into_iter().for_each(|field| field.fill(blank));
        header.set_cksum();
        bytes[..512].copy_from_slice(header.as_bytes());
        bytes
    };
    let root = entry(Directory, b"./", b"", b"");
    let label = entry(tar::EntryType::new(b'V'), b"the archive", b"", b"");
    let mut plain = tar::Header::from_byte_slice(&entry(Regular, b"file", b"", b"")).clone();
    plain.set_mode(0);
    plain.set_cksum();
    let expected = image(read(&[root.clone(), plain.as_bytes().to_vec()]).unwrap());
    for blank in [0, b' '] {
        let file = without_numbers(entry(Regular, b"file", b"", b""), blank);
        let label = without_numbers(label.clone(), blank);
        assert!(image(read(&[label, root.clone(), file]).unwrap()) == expected, "{blank}");
    }
    // The fields for the device number are empty in this header.
    assert_eq!(read(&[entry(Char, b"device", b"", b"")]).unwrap().names(), 1);
}

/// In an incremental archive of GNU tar a directory has content: the names in it.
#[test]
fn incremental_archives_are_read() {
    use tar::EntryType::{Directory, Regular};
    let tree = |directory: tar::EntryType, list: &[u8]| {
        read(&[
            entry(directory, b"./", b"", list),
            entry(directory, b"d/", b"", &list.repeat(100)),
            entry(Regular, b"d/file", b"", b"content"),
        ])
        .unwrap()
    };
    let listed = tar::EntryType::new(b'D');
    assert!(image(tree(listed, b"Dd\0Yfile\0\0")) == image(tree(Directory, b"")));
    if !require(&["tar"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("tree/d/below")).unwrap();
    fs::write(folder.path().join("tree/d/file"), b"content").unwrap();
    let archive = folder.path().join("archive");
    let mut incremental = Command::new("tar");
    incremental.args(["--format=gnu", "--label=full", "-C"]).arg(folder.path().join("tree"));
    incremental.arg("-g").arg(folder.path().join("snapshot")).arg("-cf").arg(&archive).arg(".");
    assert!(incremental.status().unwrap().success());
    assert!(fs::read(&archive).unwrap().chunks(512).any(|header| header[156] == b'D'));
    assert_eq!(of_archive(&archive).unwrap().names(), 3);
}

/// tar removes leading slashes from names and from targets of hard links, but not from those of
/// symbolic links.
#[test]
fn leading_slashes_are_removed() {
    use tar::EntryType::{Directory, Link, Regular, Symlink, XHeader};
    let with = |slash: &str| {
        let at = |path: &str| format!("{slash}{path}").into_bytes();
        let record = format!("{} path={slash}d/long\n", 15 + slash.len());
        read(&[
            entry(Directory, &at("./"), b"", b""),
            entry(Directory, &at("d/"), b"", b""),
            entry(Regular, &at("d/file"), b"", b"content"),
            entry(Link, &at("hard"), &at("d/file"), b""),
            entry(Symlink, &at("soft"), b"/d/file", b""),
            entry(XHeader, b"x", b"", record.as_bytes()),
            entry(Regular, b"short", b"", b"more"),
        ])
        .unwrap()
    };
    let expected = with("");
    assert_eq!(expected.names(), 5);
    let expected = image(expected);
    for slash in ["/", "//"] {
        assert!(image(with(slash)) == expected, "{slash}");
    }
}

#[test]
fn device_numbers_that_are_too_large_are_refused() {
    let planned = |major: u32, minor: u32| {
        let mut header =
            tar::Header::from_byte_slice(&entry(tar::EntryType::Block, b"dev/x", b"", b"")).clone();
        header.set_device_major(major).unwrap();
        header.set_device_minor(minor).unwrap();
        header.set_cksum();
        let tree = read(&[header.as_bytes().to_vec()]).unwrap();
        Builder::default().plan(tree).map(drop).map_err(|error| error.to_string())
    };
    planned(4095, 1_048_575).unwrap();
    for (major, minor) in [(4096, 0), (0, 1_048_576)] {
        let error = planned(major, minor).unwrap_err();
        assert!(error.contains(&format!("dev/x: its device number {major}:{minor}")), "{error}");
    }
}

/// For Linux, a file whose user or group id is 2^32 - 1 has no owner. Rules can give it one.
#[test]
fn a_file_without_an_owner_is_refused() {
    use tar::EntryType::{Regular, XHeader};
    for record in [b"18 uid=4294967295\n", b"18 gid=4294967295\n"] {
        let parts = [entry(XHeader, b"x", b"", record), entry(Regular, b"d/file", b"", b"")];
        let tree = || read(&parts).unwrap();
        let error = Builder::default().plan(tree()).map(drop).unwrap_err().to_string();
        assert!(error.starts_with("archive.tar/d/file: its user or group is 4294967295"), "{error}");
        let mut mapped = tree();
        let owners = vec!["4294967295:7".parse().unwrap()];
        mapped.apply(&Rules { owners, ..Rules::default() });
        Builder::default().plan(mapped).map(drop).unwrap();
    }
}

/// Attributes whose names Linux refuses are left out, as by tar, and counted. One of them is
/// `system.data`, which holds inline data. Reading an image leaves them out too.
#[test]
fn attributes_that_no_file_has_are_left_out() {
    use tar::EntryType::{Directory, Regular, XHeader};
    if !require(&["root", "tar", "debugfs", "e2fsck"]) {
        return;
    }
    let record = |name: &str, value: &str| {
        let record = format!(" SCHILY.xattr.{name}={value}\n");
        let length = record.len() + 2;
        format!("{length}{record}").into_bytes()
    };
    let records = [
        record("user.kept", "own"),
        record("system.data", "not content"),
        record("system.other", "x"),
        record("system.richacl", "x"),
        record("com.apple.quarantine", "x"),
    ];
    let parts = [
        entry(Directory, b"./", b"", b""),
        entry(XHeader, b"x", b"", &records.concat()),
        entry(Regular, b"file", b"", b"content"),
    ];
    let folder = tempfile::tempdir().unwrap();
    let (archive, tree) = (folder.path().join("archive"), folder.path().join("tree"));
    fs::write(&archive, parts.concat()).unwrap();
    fs::create_dir(&tree).unwrap();
    let mut extract = Command::new("tar");
    extract.args(["--xattrs", "--xattrs-include=*", "-xpf"]).arg(&archive).arg("-C").arg(&tree);
    assert!(extract.status().unwrap().success());
    let found = of_archive(&archive).unwrap();
    let left_out = found.left_out().unwrap();
    assert_eq!((left_out.count, &left_out.path), (4, &archive.join("file")));
    assert_eq!(left_out.name, b"system.data");
    let merged = Tree::merge(vec![found, of_archive(&archive).unwrap()]).unwrap();
    assert_eq!(merged.left_out().unwrap().count, 8);
    assert!(image(merged) == image(Tree::read(&tree, 1).unwrap()));
    let mut builder = Builder::default();
    builder.options.features.push("inline_data".to_owned());
    let plan = builder.plan(of_archive(&archive).unwrap()).unwrap();
    let path = folder.path().join("image");
    let device = FileDevice::create(&path, plan.bytes()).unwrap();
    plan.write(&device).unwrap();
    e2fsck_clean(&path);
    // Add such an attribute to the image with debugfs.
    let mut debugfs = Command::new("debugfs");
    debugfs.args(["-w", "-R", "ea_set /file system.other x"]).arg(&path);
    assert!(debugfs.status().unwrap().success());
    let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open_read_only(&path).unwrap());
    let again = Tree::read_image(device, Path::new("i.img"), b"/").unwrap();
    assert!(image(again) == image(of_archive(&archive).unwrap()));
}

/// An entry with a header made by the tar crate, and content.
fn entry(kind: tar::EntryType, path: &[u8], link: &[u8], content: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    let fields = header.as_old_mut();
    fields.name[..path.len()].copy_from_slice(path);
    fields.linkname[..link.len()].copy_from_slice(link);
    header.set_entry_type(kind);
    header.set_size(u64::try_from(content.len()).unwrap());
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn read(parts: &[Vec<u8>]) -> Result<Tree, Error> {
    Tree::read_archive(std::io::Cursor::new(parts.concat()), Path::new("archive.tar"), &std::env::temp_dir())
}

#[test]
fn hostile_archives_are_refused_by_entry() {
    use tar::EntryType::{Directory, Link, Regular, Symlink, XHeader};
    let file = |path: &[u8]| entry(Regular, path, b"", b"content");
    let largest = format!("29 size={}\n", u64::MAX);
    let cases: [(&[Vec<u8>], &str); 12] = [
        (&[file(b"../x")], "../x"),
        (&[file(b"a/../../x")], "a/../../x"),
        (&[file(b"/../x")], "archive.tar/../x"),
        (&[entry(Symlink, b"a", b"/tmp", b""), file(b"a/b")], "a/b"),
        (&[entry(Link, b"a", b"nothing", b"")], "a"),
        (&[entry(Link, b"a", b"a", b"")], "a"),
        (&[entry(Directory, b"d", b"", b""), entry(Link, b"a", b"d", b"")], "a"),
        (&[file(b"d/x"), file(b"d")], "d"),
        (&[entry(Symlink, b"a", b"", b"")], "a"),
        (&[entry(XHeader, b"x", b"", b"21 GNU.sparse.major=1\n"), file(b"a")], "archive.tar"),
        (&[entry(XHeader, b"x", b"", b"9999 path=b\n"), file(b"a")], "archive.tar"),
        (&[entry(XHeader, b"x", b"", largest.as_bytes()), file(b"a")], "archive.tar"),
    ];
    for (parts, named) in cases {
        let error = read(parts).map(|tree| tree.names()).unwrap_err().to_string();
        assert!(error.contains(named), "{named}: {error}");
    }
    let whole = [file(b"a"), file(b"b")].concat();
    for end in [1, 511, 513, 1023, 1025, 1535] {
        assert!(read(&[whole[..end].to_vec()]).is_err(), "cut after {end} bytes");
    }
    let mut damaged = whole.clone();
    damaged[3] ^= 1;
    assert!(read(&[damaged]).is_err(), "the sum of the header is wrong");
    assert_eq!(read(&[whole]).unwrap().names(), 2);
    assert_eq!(read(&[vec![0; 1024]]).unwrap().names(), 0, "an archive without entries has an end");
    for nothing in [&b""[..], b"no archive", &[7; 512]] {
        let error = read(&[nothing.to_vec()]).map(|tree| tree.names()).unwrap_err().to_string();
        assert!(error.contains("not a tar archive"), "{error}");
    }
}

/// A damaged or truncated compressed stream is refused.
#[test]
fn damaged_compression_is_refused() {
    let plain = entry(tar::EntryType::Regular, b"a", b"", &vec![7; 100_000]);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&plain).unwrap();
    let zstd = zstd::encode_all(&plain[..], 1).unwrap();
    for packed in [gzip.finish().unwrap(), zstd] {
        assert_eq!(read(std::slice::from_ref(&packed)).unwrap().names(), 1);
        assert!(read(&[packed[..packed.len() / 2].to_vec()]).is_err());
        let mut damaged = packed;
        let middle = damaged.len() / 2;
        damaged[middle] ^= 0x55;
        assert!(read(&[damaged]).is_err());
    }
}
