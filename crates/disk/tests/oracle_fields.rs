//! Compares the layout of superblock, group descriptor and inode with debugfs, for all fields but a
//! few. debugfs sets a field by its name. The bytes at which we place that field must then hold the
//! new value. No other byte of the structure may have changed, except in fields that debugfs
//! updates by itself.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use blockyard_disk::group_desc::RawGroupDesc;
use blockyard_disk::inode::{RawInode, RawInodeExtra};
use blockyard_disk::layout::FieldPlace;
use blockyard_disk::superblock::{PRIMARY_OFFSET, RawSuperblock};
use blockyard_disk::{GroupDescriptor, GroupNr, InodeNr, Superblock};
use blockyard_testkit::{mke2fs, require, run};

/// The form in which debugfs takes the value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Number,
    Text,
    Uuid,
    Time,
    /// An array: the index of the element to set, and the size of an element in bytes.
    Element(usize, usize),
}

/// One comparison: our field, and debugfs's name for it.
struct Case {
    place: FieldPlace,
    name: String,
    kind: Kind,
}

/// An image, and the position of one structure in it.
struct Subject {
    image: PathBuf,
    pristine: Vec<u8>,
    at: usize,
    length: usize,
    /// The debugfs command that sets a field, with `{}` in place of the field's name and value.
    command: &'static str,
    /// Fields that debugfs changes by itself when it writes the structure.
    own: &'static [&'static str],
}

impl Subject {
    /// Lets debugfs set a field and compares all bytes of the structure.
    fn compare(&self, case: &Case, all: &[FieldPlace]) {
        std::fs::write(&self.image, &self.pristine).unwrap();
        let (text, expected) = value_for(case);
        let name = match case.kind {
            Kind::Element(index, _) => format!("{}[{index}]", case.name),
            _ => case.name.clone(),
        };
        let command = self.command.replace("{}", &format!("{name} {text}"));
        let output = run("debugfs", &["-w", "-R", &command, self.image.to_str().unwrap()]);
        // Only the structure is read back: if debugfs has set a field for a size, it may also have
        // made the image file huge.
        let mut after = vec![0; self.length];
        let file = std::fs::File::open(&self.image).unwrap();
        file.read_exact_at(&mut after, u64::try_from(self.at).unwrap()).unwrap();
        let before = &self.pristine[self.at..][..self.length];
        let start = case.place.offset + element_offset(case.kind);
        let field = start..start + expected.len();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(&after[field.clone()], &expected[..], "{command}: {stderr}");
        let is_own = |byte: usize| {
            all.iter().any(|place| {
                self.own.contains(&place.name) && (place.offset..place.offset + place.size).contains(&byte)
            })
        };
        for byte in (0..self.length).filter(|byte| !field.contains(byte) && !is_own(*byte)) {
            assert_eq!(after[byte], before[byte], "{command} changed byte {byte:#x}");
        }
    }
}

fn element_offset(kind: Kind) -> usize {
    match kind {
        Kind::Element(index, size) => index * size,
        _ => 0,
    }
}

/// A value for a field, as text and as bytes. Numbers and UUIDs depend on the field's offset, so
/// that a value in a wrong place is noticed.
fn value_for(case: &Case) -> (String, Vec<u8>) {
    let salt = u8::try_from(case.place.offset % 97).unwrap() + 0x11;
    match case.kind {
        Kind::Number | Kind::Element(..) => {
            let size = match case.kind {
                Kind::Element(_, size) => size,
                _ => case.place.size,
            };
            // The top bit of each byte stays clear, because debugfs takes some fields as signed.
            let bytes: Vec<u8> = (0..size).map(|n| (salt + u8::try_from(n).unwrap()) & 0x7F).collect();
            let mut wide = [0; 8];
            wide[..size].copy_from_slice(&bytes);
            (u64::from_le_bytes(wide).to_string(), bytes)
        }
        Kind::Time => {
            let seconds: u32 = 1_582_979_696;
            ("20200229123456".to_owned(), seconds.to_le_bytes().to_vec())
        }
        Kind::Text => {
            let text = "abcdefghijklmno"[..case.place.size.min(15) - 1].to_owned();
            let mut bytes = text.clone().into_bytes();
            bytes.push(0);
            (text, bytes)
        }
        Kind::Uuid => {
            let bytes: Vec<u8> = (0..16).map(|n| salt + n).collect();
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            (format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]), bytes)
        }
    }
}

/// Cases for all fields but those in `unset`. The fields in `unset` are those that debugfs cannot
/// set, or cannot set to a value of our choice. Asserts that each name in `unset` is a field.
fn cases(
    fields: &[FieldPlace],
    prefix: &str,
    kinds: &[(&str, Kind)],
    names: &[(&str, &str)],
    unset: &[&str],
) -> Vec<Case> {
    let left: Vec<&str> =
        unset.iter().copied().filter(|name| !fields.iter().any(|place| place.name == *name)).collect();
    assert!(left.is_empty(), "no such fields: {left:?}");
    fields
        .iter()
        .filter(|place| !unset.contains(&place.name))
        .map(|place| {
            let plain = place.name.strip_prefix(prefix).unwrap();
            let name =
                names.iter().find(|(ours, _)| *ours == place.name).map_or(plain, |(_, theirs)| *theirs);
            let kind =
                kinds.iter().find(|(ours, _)| *ours == place.name).map_or(Kind::Number, |(_, kind)| *kind);
            Case { place: *place, name: name.to_owned(), kind }
        })
        .collect()
}

fn image(directory: &Path) -> (PathBuf, Vec<u8>, Superblock) {
    let image = directory.join("image");
    // Without checksums, so that setting a field changes no other byte.
    mke2fs(
        &image,
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-N",
            "64",
            "-O",
            "^metadata_csum,^uninit_bg,^has_journal,^resize_inode",
        ],
        "1M",
    );
    let bytes = std::fs::read(&image).unwrap();
    let sb = Superblock::parse(&bytes[1024..2048]).unwrap();
    (image, bytes, sb)
}

#[test]
fn superblock_fields_are_where_debugfs_sets_them() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (image, pristine, _) = image(directory.path());
    let subject = Subject {
        image,
        pristine,
        at: usize::try_from(PRIMARY_OFFSET).unwrap(),
        length: RawSuperblock::SIZE,
        command: "set_super_value {}",
        own: &["s_wtime", "s_kbytes_written", "s_overhead_clusters", "s_checksum"],
    };
    let times =
        ["s_mtime", "s_wtime", "s_lastcheck", "s_mkfs_time", "s_first_error_time", "s_last_error_time"];
    let texts =
        ["s_volume_name", "s_last_mounted", "s_first_error_func", "s_last_error_func", "s_mount_opts"];
    let uuids = ["s_uuid", "s_journal_uuid", "s_hash_seed", "s_encrypt_pw_salt"];
    let mut kinds: Vec<(&str, Kind)> = times.iter().map(|name| (*name, Kind::Time)).collect();
    kinds.extend(texts.iter().map(|name| (*name, Kind::Text)));
    kinds.extend(uuids.iter().map(|name| (*name, Kind::Uuid)));
    kinds.extend([
        ("s_jnl_blocks", Kind::Element(13, 4)),
        ("s_backup_bgs", Kind::Element(1, 4)),
        ("s_encrypt_algos", Kind::Element(2, 1)),
    ]);
    let names = [("s_mmp_update_interval", "mmp_interval")];
    // The first fields are those for which debugfs has no name or, in the case of `s_encoding`, no
    // type. The others have comments of their own.
    let unset = [
        "s_magic",
        "s_reserved_pad",
        "s_wtime_hi",
        "s_mtime_hi",
        "s_mkfs_time_hi",
        "s_lastcheck_hi",
        "s_first_error_time_hi",
        "s_last_error_time_hi",
        "s_first_error_errcode",
        "s_last_error_errcode",
        "s_encoding",
        "s_encoding_flags",
        "s_reserved",
        // debugfs may set these itself when it writes. `crates/cli/tests/oracle_read_commands.rs`
        // compares them through dumpe2fs.
        "s_wtime",
        "s_kbytes_written",
        // debugfs always writes 0 into this field of the primary superblock.
        "s_block_group_nr",
        // debugfs takes the name of a hash here, not a number.
        "s_def_hash_version",
        // debugfs computes this itself with metadata_csum, and one of the cases sets that feature.
        "s_checksum",
    ];
    for case in cases(RawSuperblock::FIELDS, "s_", &kinds, &names, &unset) {
        subject.compare(&case, RawSuperblock::FIELDS);
    }
}

#[test]
fn group_descriptor_fields_are_where_debugfs_sets_them() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (image, pristine, sb) = image(directory.path());
    let (block, offset) = sb.descriptor_place(GroupNr::new(0));
    let subject = Subject {
        image,
        pristine,
        at: usize::try_from(block.raw()).unwrap() * 1024 + offset,
        length: RawGroupDesc::SIZE,
        command: "set_block_group 0 {}",
        own: &[],
    };
    for case in cases(RawGroupDesc::FIELDS, "bg_", &[], &[], &["bg_reserved"]) {
        subject.compare(&case, RawGroupDesc::FIELDS);
    }
}

#[test]
fn inode_fields_are_where_debugfs_sets_them() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (image, mut pristine, sb) = image(directory.path());
    let (block, offset) = sb.descriptor_place(GroupNr::new(0));
    let desc = &pristine[usize::try_from(block.raw()).unwrap() * 1024 + offset..];
    let table = GroupDescriptor::parse(&sb, GroupNr::new(0), desc).unwrap().inode_table();
    let (_, index) = sb.geometry().locate_inode(InodeNr::new(12));
    let at = usize::try_from(table.raw() * 1024 + u64::from(index) * 256).unwrap();
    // A regular file whose inode has all extra fields.
    pristine[at..at + 2].copy_from_slice(&0o100_644u16.to_le_bytes());
    pristine[at + 128..at + 130].copy_from_slice(&32u16.to_le_bytes());
    let extra: Vec<FieldPlace> = RawInodeExtra::FIELDS
        .iter()
        .map(|place| FieldPlace { offset: place.offset + 128, ..*place })
        .collect();
    let all: Vec<FieldPlace> = RawInode::FIELDS.iter().chain(&extra).copied().collect();
    let subject = Subject { image, pristine, at, length: 256, command: "set_inode_field <12> {}", own: &[] };
    let kinds = [("i_dtime", Kind::Time), ("i_block", Kind::Element(11, 4))];
    let names = [
        ("i_uid", "uid_lo"),
        ("i_uid_high", "uid_hi"),
        ("i_gid", "gid_lo"),
        ("i_gid_high", "gid_hi"),
        ("i_size_high", "size_hi"),
        ("i_blocks_high", "blocks_hi"),
        ("i_version", "version_lo"),
        ("i_obso_faddr", "faddr"),
        ("i_file_acl_high", "file_acl_hi"),
        ("i_atime", "atime_lo"),
        ("i_ctime", "ctime_lo"),
        ("i_mtime", "mtime_lo"),
        ("i_crtime", "crtime_lo"),
    ];
    let unset = ["i_reserved", "i_checksum_lo", "i_checksum_hi"];
    for case in cases(&all, "i_", &kinds, &names, &unset) {
        subject.compare(&case, &all);
    }
}
