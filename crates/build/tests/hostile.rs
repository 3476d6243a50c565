//! Malicious and damaged archives: each is refused, with the entry's name if one is known, and
//! leaves no file in the spool's folder.

#![allow(clippy::unwrap_used)]

use std::io::{self, Read, Write};
use std::path::Path;

use blockyard_build::Tree;
use tar::{EntryType, Header};

/// A tar header with its content.
fn entry(kind: EntryType, name: &str, link: &str, content: &[u8]) -> Vec<u8> {
    let mut header = Header::new_ustar();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(u64::try_from(content.len()).unwrap());
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn file(name: &str, content: &[u8]) -> Vec<u8> {
    entry(EntryType::Regular, name, "", content)
}

/// A file whose header claims `size` bytes of content, but which has six.
fn claiming(name: &str, size: u64) -> Vec<u8> {
    let mut header = Header::from_byte_slice(&file(name, b"")).clone();
    header.set_size(size);
    header.set_cksum();
    [header.as_bytes(), &b"little"[..]].concat()
}

/// A file preceded by one pax record.
fn extended(record: &str, behind: &[u8]) -> Vec<u8> {
    let mut length = record.len() + 2;
    while length != record.len() + 2 + length.to_string().len() {
        length = record.len() + 2 + length.to_string().len();
    }
    let record = format!("{length} {record}\n");
    [entry(EntryType::XHeader, "pax", "", record.as_bytes()), behind.to_vec()].concat()
}

fn refused(stream: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let error = Tree::read_archive(io::Cursor::new(stream.to_vec()), Path::new("archive"), folder.path());
    let error = error.unwrap_err().to_string();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    error
}

#[test]
fn entries_that_lead_out_or_say_nonsense_are_refused_by_name() {
    let long = format!("path={}", "d/".repeat(20_000));
    let sparse = "GNU.sparse.map=9,5,0,5";
    let loops = [
        entry(EntryType::Symlink, "one", "two", b""),
        entry(EntryType::Symlink, "two", "one", b""),
        file("one/x", b"text"),
    ];
    let cases: [(&str, Vec<u8>, &str); 19] = [
        ("../out", file("../out", b"x"), "leads out"),
        ("a/../../out", file("a/../../out", b"x"), "leads out"),
        ("a/..", entry(EntryType::Directory, "a/..", "", b""), "leads out"),
        ("/../out", file("/../out", b"x"), "leads out"),
        (
            "etc/passwd",
            [entry(EntryType::Symlink, "etc", "/etc", b""), file("etc/passwd", b"x")].concat(),
            "not a directory",
        ),
        (
            "up/x",
            [entry(EntryType::Symlink, "up", "../..", b""), file("up/x", b"x")].concat(),
            "not a directory",
        ),
        ("hard", entry(EntryType::Link, "hard", "/etc/passwd", b""), "hard link to etc/passwd"),
        ("hard", entry(EntryType::Link, "hard", "../../x", b""), "hard link to ../../x"),
        ("self", entry(EntryType::Link, "self", "self", b""), "hard link to self"),
        ("one/x", loops.concat(), "not a directory"),
        ("f/x", [file("f", b"x"), file("f/x", b"x")].concat(), "not a directory"),
        ("huge", claiming("huge", 8_000_000_000), "end of file"),
        ("vast", extended("size=9223372036854775000", &file("vast", b"")), "end of file"),
        ("holes", extended(sparse, &file("holes", b"0123456789")), "map of holes"),
        ("d/d/d", extended(&long, &file("x", b"")), "16384 directories"),
        ("empty", entry(EntryType::Symlink, "empty", "", b""), "empty"),
        ("strange", entry(EntryType::new(b'Q'), "strange", "", b""), "type 'Q'"),
        ("split", entry(EntryType::new(b'M'), "split", "", b"rest"), "another volume"),
        ("owned", extended("uid=99999999999", &file("owned", b"")), "owner 99999999999"),
    ];
    for (name, archive, told) in cases {
        let error = refused(&archive[..]);
        assert!(
            error.starts_with("archive/") && error.contains(name) && error.contains(told),
            "{name}: {error}"
        );
    }
}

#[test]
fn truncated_and_corrupt_archives_are_refused_where_they_break() {
    let content: Vec<u8> =
        (0..200_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let archive =
        [file("first", b"text"), file("second", &content), file("third", b"text"), vec![0; 1024]].concat();
    assert!(refused(&archive[..600_000]).contains("second"));
    // The archive cut off within a header, and the archive with a damaged header.
    let third = archive.len() - 1024 - 1024;
    assert!(refused(&archive[..third + 100]).contains("second: after this entry"));
    let mut damaged = archive.clone();
    damaged[third + 5] ^= 1;
    assert!(refused(&damaged[..]).contains("second: after this entry: not a tar archive, or a damaged one"));
    let compressed = |how: blockyard_build::Compression| {
        let mut stream = Vec::new();
        how.copy(&mut &archive[..], &mut stream).unwrap();
        stream
    };
    for how in [blockyard_build::Compression::Gzip, blockyard_build::Compression::Zstd] {
        let stream = compressed(how);
        assert!(refused(&stream[..stream.len() / 2]).contains("archive/"), "{how:?}");
        let mut damaged = stream.clone();
        let middle = damaged.len() / 2;
        damaged[middle..middle + 16].fill(0xA5);
        let error = refused(&damaged[..]);
        // If even the first entry is in the damaged part, there is no name to report.
        assert!(error.starts_with("archive"), "{how:?}: {error}");
    }
}

/// A file that decompresses to more than a GiB of zeroes is refused as a bomb.
#[test]
fn bombs_are_refused_before_they_fill_the_disk() {
    let mut header = Header::from_byte_slice(&file("bomb", b"")).clone();
    header.set_size(8 << 30);
    header.set_cksum();
    for how in [blockyard_build::Compression::Gzip, blockyard_build::Compression::Zstd] {
        let mut encoder = how.encoder(Vec::new()).unwrap();
        encoder.write_all(header.as_bytes()).unwrap();
        io::copy(&mut io::repeat(0).take((1 << 30) + (64 << 20)), &mut encoder).unwrap();
        let stream = encoder.finish().unwrap();
        let error = refused(&stream[..]);
        assert!(error.contains("bomb: ") && error.contains("looks like a bomb"), "{how:?}: {error}");
    }
}
