//! The library's errors for damage, for images that cannot be opened, and for arguments that it
//! refuses.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::sync::Arc;

use blockyard::device::{BlockDevice, MemoryDevice};
use blockyard::{Context, FileSystem, ImageOptions, InodeNr, OpenOptions, RenameMode, mkfs};

/// Overwrites the inode number in every directory entry named `name`. The image must have no
/// checksums.
fn lead_elsewhere(device: &MemoryDevice, name: &[u8], inode: u32) {
    /// Bytes of an entry before its name.
    const HEADER: u64 = 8;
    let mut bytes = vec![0; usize::try_from(device.size()).unwrap()];
    device.read_at(0, &mut bytes).unwrap();
    let places = bytes.windows(name.len()).enumerate().filter(|(_, found)| *found == name);
    for (at, _) in places {
        let entry = u64::try_from(at).unwrap() - HEADER;
        device.write_at(entry, &inode.to_le_bytes()).unwrap();
    }
}

/// A directory entry whose inode is not in use is damage. The error was once "not found", as if the
/// name did not exist, and the removal of the directory never ended.
#[test]
fn a_name_without_an_inode_is_damage() {
    let memory = Arc::new(MemoryDevice::new(16 << 20));
    let without_checksums = mkfs::Options::ext4().features("^metadata_csum");
    let fs = ImageOptions::new().mkfs(without_checksums).make_on(Arc::clone(&memory)).unwrap();
    fs.create_dir("folder").unwrap();
    fs.write("folder/dangling", "text").unwrap();
    fs.close().unwrap();
    lead_elsewhere(&memory, b"dangling", 1000);
    let fs = ImageOptions::new().open_device(memory).unwrap();
    let error = fs.read("folder/dangling").unwrap_err();
    assert_eq!(error.to_string(), "folder/dangling: inode 1000: inode is not in use");
    for error in [
        error,
        fs.metadata("folder/dangling").unwrap_err(),
        fs.remove_file("folder/dangling").unwrap_err(),
        fs.rename("folder/dangling", "folder/other").unwrap_err(),
        fs.remove_dir_all("folder").unwrap_err(),
    ] {
        assert_eq!(error.errno(), 117, "{error}");
        assert!(error.to_string().contains("inode 1000"), "{error}");
    }
    assert_eq!(fs.read_dir("folder").unwrap().count(), 1, "the name is still listed");
}

/// If a file is not an image, the error says why, and which command helps.
#[test]
fn a_file_without_a_file_system_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let nothing = "holds no ext2, ext3 or ext4 file system: superblock magic is not 0xEF53; if it held one, \
                   `blockyard check --plan` looks for copies of its superblock, else `blockyard mkfs` makes one";
    for (content, text) in [
        (Vec::new(), "is empty; `blockyard mkfs` makes a file system"),
        (vec![0x53; 1100], nothing),
        (b"no file system\n".repeat(10_000), nothing),
    ] {
        std::fs::write(&image, content).unwrap();
        for options in [ImageOptions::new(), ImageOptions::new().read_only(true)] {
            let error = options.open(&image).unwrap_err();
            assert_eq!(error.to_string(), format!("{}: the image {text}", image.display()));
            assert_eq!(error.errno(), 22);
        }
    }
}

/// The error for an attribute that is too large names the limit. The text was once only "no space
/// left" or "result too large for the buffer".
#[test]
fn an_attribute_that_is_too_large_is_told_with_its_limit() {
    let fs =
        ImageOptions::new().mkfs(mkfs::Options::ext4().block_size(4096)).make_in_memory(16 << 20).unwrap();
    fs.write("file", "text").unwrap();
    let refused = |name: &str, bytes| {
        let error = fs.set_xattr("file", name, vec![7; bytes]).unwrap_err();
        (error.errno(), error.to_string())
    };
    let (errno, text) = refused("user.large", 5000);
    assert_eq!(errno, 28);
    assert!(text.contains("a value of 5000 bytes") && text.contains("one block of 4096 bytes"), "{text}");
    let (errno, text) = refused("user.larger", 70_000);
    assert_eq!(
        (errno, &*text),
        (34, "file: the attribute's value has 70000 bytes, but 0 to 65536 are possible")
    );
    let (errno, text) = refused(&format!("user.{}", "n".repeat(251)), 1);
    assert_eq!((errno, &*text), (34, "file: the attribute's name has 256 bytes, but 1 to 255 are possible"));
    assert!(fs.xattr_names("file").unwrap().is_empty());
}

/// The error says which options contradict each other or are missing. In an image that is open
/// read-only, opening a file for writing fails. Once, such an open worked and the first write
/// failed.
#[test]
fn options_that_cannot_be_met_are_named() {
    let memory = Arc::new(MemoryDevice::new(16 << 20));
    let fs = ImageOptions::new().make_on(Arc::clone(&memory)).unwrap();
    fs.write("file", "text").unwrap();
    let new = OpenOptions::new;
    for (options, text) in [
        (new(), "none of read, write and append is set"),
        (new().read(true).create(true), "create and create_new need write or append"),
        (new().read(true).truncate(true), "truncate needs write"),
        (new().append(true).truncate(true), "append and truncate contradict each other"),
    ] {
        let error = options.open(&fs, "file").unwrap_err();
        assert_eq!((error.errno(), error.to_string()), (22, format!("file: invalid argument: {text}")));
    }
    fs.close().unwrap();
    let fs = ImageOptions::new().read_only(true).open_device(memory).unwrap();
    for options in [new().write(true), new().append(true), new().write(true).truncate(true)] {
        let error = options.open(&fs, "file").unwrap_err();
        assert_eq!((error.errno(), &*error.to_string()), (30, "file: read-only file system"));
    }
    assert_eq!(fs.read("file").unwrap(), b"text");
}

/// The error names the smallest possible size: 4 KiB less is refused.
#[test]
fn an_image_that_is_too_small_is_told_the_smallest_size() {
    let options = mkfs::Options::ext4();
    assert_eq!(mkfs::smallest(&options), Some(104 << 10));
    for bytes in [0, 1000, 100 << 10] {
        let error = ImageOptions::new().make_in_memory(bytes).unwrap_err();
        assert!(error.to_string().ends_with("; the smallest with these options has 106496 bytes"), "{error}");
    }
    ImageOptions::new().make_in_memory(104 << 10).unwrap().close().unwrap();
    let large = mkfs::Options { journal_mib: Some(64), ..options };
    let least = mkfs::smallest(&large).unwrap();
    assert!(mkfs::plan(least, &large).is_ok() && mkfs::plan(least - 4096, &large).is_err());
}

/// Replaces every occurrence of the bytes `old` in an image. The image must have no checksums.
fn replace(device: &MemoryDevice, old: &[u8], new: &[u8]) {
    let mut bytes = vec![0; usize::try_from(device.size()).unwrap()];
    device.read_at(0, &mut bytes).unwrap();
    let places: Vec<_> = bytes.windows(old.len()).enumerate().filter(|(_, found)| *found == old).collect();
    assert!(!places.is_empty(), "{old:?} stands nowhere");
    for (at, _) in places {
        device.write_at(u64::try_from(at).unwrap(), new).unwrap();
    }
}

/// The copy of a damaged tree fails, and writes nothing outside the destination. Once, it wrote
/// there. In one tree, a directory entry has a name with slashes. In the other tree, a directory
/// entry has the file type "directory", but its inode is a symbolic link to a host directory.
#[test]
fn nothing_is_copied_outside_the_destination() {
    let folder = tempfile::tempdir().unwrap();
    let outside = folder.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    let damaged = |old: &[u8], new: &[u8], refused: &str| {
        let memory = Arc::new(MemoryDevice::new(16 << 20));
        let without_checksums = mkfs::Options::ext4().features("^metadata_csum");
        let fs = ImageOptions::new().mkfs(without_checksums).make_on(Arc::clone(&memory)).unwrap();
        fs.write("out", "text").unwrap();
        fs.write("tree_slash_out", "text").unwrap();
        fs.create_dir_all(&outside).unwrap();
        fs.write(outside.join("file"), "text").unwrap();
        fs.symlink(&outside, "a_link_outside").unwrap();
        fs.close().unwrap();
        replace(&memory, old, new);
        let fs = ImageOptions::new().open_device(memory).unwrap();
        let error = fs.copy_out("/", folder.path().join("dest")).unwrap_err();
        assert!(error.to_string().contains(refused), "{error}");
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0, "{refused}");
        assert!(!folder.path().join("out").exists(), "{refused}");
        std::fs::remove_dir_all(folder.path().join("dest")).unwrap();
    };
    damaged(b"\x0e\x01tree_slash_out", b"\x0e\x01../../////out", "name");
    damaged(b"\x0e\x07a_link_outside", b"\x0e\x02a_link_outside", "not a directory");
}

/// In a directory with a damaged index, look-ups by hash do not find names that a listing shows.
/// The removal of such a directory fails. Once, it never ended.
#[test]
fn a_directory_whose_index_is_wrong_is_not_removed_for_ever() {
    let memory = Arc::new(MemoryDevice::new(16 << 20));
    let options = mkfs::Options::ext4().block_size(1024).features("^metadata_csum");
    let fs = ImageOptions::new().mkfs(options).make_on(Arc::clone(&memory)).unwrap();
    fs.create_dir("large").unwrap();
    for number in 0..600 {
        fs.write(format!("large/file_with_long_name_{number}"), "").unwrap();
    }
    let number = fs.metadata("large").unwrap().ino().raw().to_le_bytes();
    fs.close().unwrap();
    let mut bytes = vec![0; 16 << 20];
    memory.read_at(0, &mut bytes).unwrap();
    // The root of the index begins with `.` and a `..` whose entry reaches to the end of the block.
    let is_root = |block: &[u8]| {
        block[..4] == number
            && block[4..9] == *b"\x0c\0\x01\x02."
            && block[0x10..0x12] == 1012_u16.to_le_bytes()
    };
    let root = 1024 * u64::try_from(bytes.chunks(1024).position(is_root).unwrap()).unwrap();
    // Exchange the block numbers of the second and the third index entry.
    let (mut second, mut third) = ([0; 4], [0; 4]);
    memory.read_at(root + 0x2c, &mut second).unwrap();
    memory.read_at(root + 0x34, &mut third).unwrap();
    memory.write_at(root + 0x2c, &third).unwrap();
    memory.write_at(root + 0x34, &second).unwrap();
    let fs = ImageOptions::new().open_device(memory).unwrap();
    let error = fs.remove_dir_all("large").unwrap_err();
    assert!(error.to_string().contains("run the checker"), "{error}");
}

#[test]
fn a_name_with_nul_is_no_name_of_an_attribute() {
    let fs = ImageOptions::new().make_in_memory(16 << 20).unwrap();
    fs.write("file", "text").unwrap();
    assert_eq!(fs.set_xattr("file", b"user.a\0b", b"value").unwrap_err().errno(), 22);
    assert!(fs.xattr_names("file").unwrap().is_empty());
}

/// With a slash after the name of a symbolic link, removals and renames fail. They once removed or
/// renamed the link's target.
#[test]
fn removals_and_renames_do_not_follow_a_link_with_a_slash() {
    let fs = ImageOptions::new().make_in_memory(16 << 20).unwrap();
    for directory in ["real", "other", "moved"] {
        fs.create_dir(directory).unwrap();
    }
    fs.symlink("real", "link").unwrap();
    fs.symlink("nowhere", "lost").unwrap();
    for refused in [
        fs.remove_dir("link/"),
        fs.remove_dir_all("link/"),
        fs.remove_file("link/"),
        fs.rename("link/", "new"),
        fs.rename("other", "link/"),
        fs.rename("other", "lost/"),
        fs.rename_with("other", "link/", RenameMode::Exchange),
    ] {
        assert_eq!(refused.unwrap_err().errno(), 20);
    }
    assert!(fs.exists("real").unwrap() && fs.exists("other").unwrap() && !fs.exists("nowhere").unwrap());
    fs.rename("moved/", "new/").unwrap();
    fs.remove_dir("new/").unwrap();
    fs.remove_dir("link/.").unwrap_err();
}

/// Copying a file onto itself, directly or by another name or a symbolic link, is refused. Once,
/// such a copy emptied the file. Also: `copy_range` refuses a target that was opened for appending.
#[test]
fn a_file_is_not_copied_onto_itself() {
    let fs = ImageOptions::new().make_in_memory(16 << 20).unwrap();
    fs.write("file", "text").unwrap();
    fs.hard_link("file", "name").unwrap();
    fs.symlink("file", "link").unwrap();
    for dest in ["file", "name", "link"] {
        assert_eq!(fs.copy("file", dest).unwrap_err().errno(), 22, "{dest}");
    }
    assert_eq!(fs.read("file").unwrap(), b"text");
    let appending = OpenOptions::new().append(true).open(&fs, "file").unwrap();
    fs.write("from", "0123").unwrap();
    assert_eq!(fs.open("from").unwrap().copy_range(0, 4, &appending, 0).unwrap_err().errno(), 22);
}

/// Ranges are compared only after the range to read was cut off at the end of the file. So a file
/// can be copied to its own end, even with a length that reaches far beyond the end.
#[test]
fn ranges_of_one_file_may_not_overlap() {
    let fs = ImageOptions::new().make_in_memory(16 << 20).unwrap();
    fs.write("file", b"0123456789").unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&fs, "file").unwrap();
    assert_eq!(file.copy_range(6, 5, &file, 9).unwrap_err().errno(), 22);
    assert_eq!(file.copy_range(6, u64::MAX, &file, 10).unwrap(), 4);
    assert_eq!(file.copy_range(20, 4, &file, 20).unwrap(), 0);
    assert_eq!(fs.read("file").unwrap(), b"01234567896789");
}

/// If `copy_in` writes content through a symbolic link, the attributes go to the link's target,
/// too. Also: hard links stay hard links when a tree is copied a second time.
#[test]
fn a_copy_through_a_link_gives_attributes_to_the_target() {
    use std::os::unix::fs::PermissionsExt;
    let host = tempfile::tempdir().unwrap();
    let path = |name: &str| host.path().join(name);
    std::fs::write(path("one"), "text").unwrap();
    std::fs::set_permissions(path("one"), std::fs::Permissions::from_mode(0o640)).unwrap();
    std::fs::hard_link(path("one"), path("two")).unwrap();
    let fs = ImageOptions::new().make_in_memory(16 << 20).unwrap();
    fs.write("target", "old").unwrap();
    fs.symlink("target", "link").unwrap();
    fs.copy_in(path("one"), "link").unwrap();
    let found = fs.metadata("target").unwrap();
    assert_eq!((found.mode(), fs.read("target").unwrap()), (0o640, b"text".to_vec()));
    for _ in 0..2 {
        fs.copy_in(host.path(), "tree").unwrap();
        assert_eq!(fs.metadata("tree/one").unwrap().id(), fs.metadata("tree/two").unwrap().id());
    }
}

/// Blocks that `statfs` reports as available can be allocated, all but a few. Once, `statfs` also
/// counted blocks that the file system reserves for itself.
#[test]
fn what_is_available_can_be_used() {
    let fs = ImageOptions::new().make_in_memory(64 << 20).unwrap();
    let theirs: FileSystem = fs.with_context(Context::new().user(1000, 1000));
    let file = theirs.create("file").unwrap();
    let (mut at, mut len) = (0, 8 << 20);
    while len >= 4096 {
        match file.allocate(at, len) {
            Ok(()) => at += len,
            Err(_) => len /= 2,
        }
    }
    let room = fs.statfs().unwrap();
    assert!(room.blocks_available <= 8 && room.blocks_free > 300, "{room:?}");
}

#[test]
fn the_inodes_of_the_file_system_itself_are_stale() {
    let fs = ImageOptions::new().cpus(u32::MAX).make_in_memory(16 << 20).unwrap();
    for number in (1..=10).filter(|number| *number != 2) {
        assert!(fs.by_inode().identify(InodeNr::new(number)).unwrap_err().is_stale(), "{number}");
    }
}

/// As on Linux, `write` and `write_at` append as much as fits, and fail only if nothing fits. Once,
/// they failed after they had appended a part of the data.
#[test]
fn an_append_that_does_not_fit_is_short() {
    for at_offset in [false, true] {
        let fs = ImageOptions::new().make_in_memory(16 << 20).unwrap();
        let mut file = OpenOptions::new().create(true).append(true).open(&fs, "log").unwrap();
        let data = vec![7; 32 << 20];
        let mut append = |data: &[u8]| -> std::io::Result<usize> {
            if at_offset { Ok(file.write_at(data, 0)?) } else { file.write(data) }
        };
        let mut appended = append(b"first").unwrap();
        let some = append(&data).unwrap();
        assert!(some > 0 && some < data.len(), "{some}");
        appended += some;
        // The rest of the last block, if any, takes a few more bytes.
        let full = loop {
            match append(&data) {
                Ok(some) => appended += some,
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        assert_eq!(fs.metadata("log").unwrap().len(), u64::try_from(appended).unwrap());
        let mut content = vec![7; appended];
        content[..5].copy_from_slice(b"first");
        assert!(fs.read("log").unwrap() == content);
    }
}
