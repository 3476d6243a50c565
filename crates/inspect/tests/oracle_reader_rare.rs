//! Tests of the reader that need no mount: images of several block sizes that mke2fs filled, orphan
//! files, and damage.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use blockyard_device::FileDevice;
use blockyard_disk::checksum::{seal_htree, verify_orphan_block};
use blockyard_disk::orphan_file::OrphanBlock;
use blockyard_disk::{BlockCount, CorruptionKind, FileType, Inode, InodeMap};
use blockyard_inspect::path::LastLink;
use blockyard_inspect::reader::Reader;
use blockyard_testkit::tree::{Content, ContentHash, read_tree};
use blockyard_testkit::{fill, mke2fs, require, run};

fn open(image: &Path) -> Reader {
    Reader::open(Arc::new(FileDevice::open_read_only(image).unwrap())).unwrap()
}

fn debugfs(image: &Path, command: &str) {
    let output = run("debugfs", &["-w", "-R", command, image.to_str().unwrap()]);
    assert!(output.status.success(), "{command}");
}

/// The first physical block and the number of blocks of a file's first extent.
fn first_extent(reader: &Reader, inode: &Inode) -> (u64, u32) {
    let extent = reader.extents(inode).next().unwrap().unwrap();
    (extent.physical.raw(), extent.length)
}

fn patch(image: &Path, offset: u64, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(image).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

/// Reading a directory fails if a name in it has a slash. Otherwise a program that copies files out
/// would follow the name to another directory.
#[test]
fn a_name_with_a_slash_is_damage_in_an_inline_directory_too() {
    if !require(&["mke2fs"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (source, image) = (directory.path().join("source"), directory.path().join("image"));
    std::fs::create_dir_all(source.join("d")).unwrap();
    std::fs::write(source.join("d/..-x"), "").unwrap();
    let features = ["-t", "ext4", "-O", "inline_data,^metadata_csum", "-d", source.to_str().unwrap()];
    mke2fs(&image, &features, "16M");
    let reader = open(&image);
    let inode = reader.resolve(b"d", LastLink::Follow).unwrap();
    assert_eq!(inode.map(), InodeMap::Inline);
    assert_eq!(reader.entries(&inode).unwrap().count(), 3);
    let bytes = std::fs::read(&image).unwrap();
    let at = bytes.windows(4).position(|window| window == b"..-x").unwrap();
    patch(&image, u64::try_from(at).unwrap() + 2, b"/");
    let reader = open(&image);
    let inode = reader.resolve(b"d", LastLink::Follow).unwrap();
    assert!(reader.entries(&inode).is_err());
}

#[test]
fn every_block_size_reads_what_mke2fs_copied_in() {
    if !require(&["mke2fs", "root"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (source, image) = (directory.path().join("source"), directory.path().join("image"));
    std::fs::create_dir(&source).unwrap();
    fill::sizes(&source, 65_536);
    fill::sparse(&source, 20_000_000);
    fill::symlinks(&source, [1, 59, 60, 61, 1000]);
    fill::names(&source);
    fill::deep(&source, 10);
    fill::owners(&source);
    fill::many_names(&source, "many", 3000, 100);
    let theirs = read_tree(&source);
    for arguments in ["-b 65536 -O ^metadata_csum", "-b 65536", "-b 2048 -t ext2 -I 256", "-b 65536 -t ext3"]
    {
        println!("mke2fs {arguments}");
        let mut list: Vec<&str> = arguments.split(' ').collect();
        list.extend(["-d", source.to_str().unwrap()]);
        mke2fs(&image, &list, "600M");
        let reader = open(&image);
        for (path, node) in &theirs {
            let inode = reader.resolve(path, LastLink::Keep).unwrap();
            assert_eq!(u32::from(inode.mode()), node.mode, "{}", String::from_utf8_lossy(path));
            let raw = inode.slot().raw();
            assert_eq!((raw.uid(), raw.gid()), (node.uid, node.gid));
            match &node.content {
                Content::Hash(hash) => {
                    let mut ours = ContentHash::default();
                    let mut content = vec![0; usize::try_from(inode.size()).unwrap()];
                    assert_eq!(reader.read(&inode, 0, &mut content).unwrap(), content.len());
                    ours.add(&content);
                    assert_eq!(
                        (inode.size(), ours.finish()),
                        (node.size, *hash),
                        "{}",
                        String::from_utf8_lossy(path)
                    );
                }
                Content::Target(target) => assert_eq!(&reader.symlink_target(&inode).unwrap(), target),
                Content::None => {}
            }
        }
        let listed = reader.entries(&reader.resolve(b"many", LastLink::Keep).unwrap()).unwrap();
        assert_eq!(listed.map(Result::unwrap).count(), 3002);
    }
}

#[test]
fn orphan_file_blocks_verify() {
    if !require(&["mke2fs"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    for block_size in ["1024", "4096", "65536"] {
        mke2fs(&image, &["-t", "ext4", "-b", block_size, "-O", "orphan_file"], "512M");
        let reader = open(&image);
        let file = reader.inode(reader.superblock().orphan_file_inode().unwrap()).unwrap();
        assert_eq!(file.file_type(), FileType::Regular);
        let mut blocks = 0;
        for extent in reader.extents(&file) {
            let extent = extent.unwrap();
            for offset in 0..u64::from(extent.length) {
                let number = extent.physical + BlockCount::new(offset);
                let block = reader.block(number).unwrap();
                verify_orphan_block(file.checksum_seed(), number, &block).unwrap();
                assert_eq!(OrphanBlock::parse(&block).unwrap().inodes().count(), 0);
                blocks += 1;
            }
        }
        assert!(blocks > 0 && blocks == file.size() >> reader.superblock().geometry().block_bits());
    }
}

/// Makes an ext2 image of 1 KiB blocks with a file of two blocks, which has a block map. Returns
/// the number of the file's first block.
fn block_mapped(image: &Path) -> u64 {
    mke2fs(image, &["-t", "ext2", "-b", "1024"], "4M");
    let content = image.with_extension("content");
    std::fs::write(&content, fill::pattern(1, 2048)).unwrap();
    debugfs(image, &format!("write {} file", content.display()));
    let reader = open(image);
    let (first, blocks) = first_extent(&reader, &reader.resolve(b"file", LastLink::Keep).unwrap());
    assert_eq!(blocks, 2);
    first
}

fn pointers(target: u64) -> Vec<u8> {
    u32::try_from(target).unwrap().to_le_bytes().repeat(256)
}

#[test]
fn a_block_map_that_contains_itself_is_cut() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let block = block_mapped(&image);
    patch(&image, block * 1024, &pointers(block));
    debugfs(&image, &format!("set_inode_field file block[TIND] {block}"));
    let reader = open(&image);
    let file = reader.resolve(b"file", LastLink::Keep).unwrap();
    let last = reader.extents(&file).last().unwrap();
    assert_eq!(last.unwrap_err().corruption(), Some(CorruptionKind::IndirectLoop));
}

#[test]
fn a_directory_cannot_have_more_blocks_than_the_file_system() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let block = block_mapped(&image);
    let reader = open(&image);
    let (leaf, _) = first_extent(&reader, &reader.resolve(b"lost+found", LastLink::Keep).unwrap());
    drop(reader);
    // Two levels of indirect blocks whose pointers all lead to one valid directory block.
    patch(&image, block * 1024, &pointers(block + 1));
    patch(&image, (block + 1) * 1024, &pointers(leaf));
    debugfs(&image, &format!("set_inode_field lost+found block[DIND] {block}"));
    debugfs(&image, "set_inode_field lost+found size 67000000");
    let reader = open(&image);
    let folder = reader.resolve(b"lost+found", LastLink::Keep).unwrap();
    let last = reader.entries(&folder).unwrap().last().unwrap();
    assert_eq!(last.unwrap_err().corruption(), Some(CorruptionKind::DirBlocks));
}

#[test]
fn a_file_may_be_longer_than_its_inline_data_but_a_link_may_not() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (source, image) = (directory.path().join("source"), directory.path().join("image"));
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("file"), [7; 40]).unwrap();
    std::os::unix::fs::symlink("x".repeat(100), source.join("link")).unwrap();
    let options = ["-t", "ext4", "-b", "1024", "-O", "inline_data", "-d", source.to_str().unwrap()];
    mke2fs(&image, &options, "4M");
    for size in [200, 5000] {
        debugfs(&image, &format!("set_inode_field file size {size}"));
        let reader = open(&image);
        let file = reader.resolve(b"file", LastLink::Keep).unwrap();
        let mut content = vec![1; size + 100];
        assert_eq!(reader.read(&file, 0, &mut content).unwrap(), size);
        assert_eq!(content[..size], [vec![7; 40], vec![0; size - 40]].concat());
    }
    debugfs(&image, "set_inode_field link size 120");
    let reader = open(&image);
    let link = reader.resolve(b"link", LastLink::Keep).unwrap();
    let found = reader.symlink_target(&link).unwrap_err();
    assert_eq!(found.corruption(), Some(CorruptionKind::InlineDataMissing));
}

#[test]
fn damaged_attributes_are_named() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    mke2fs(&image, &["-t", "ext4", "-b", "1024", "-O", "ea_inode,^metadata_csum"], "4M");
    let content = directory.path().join("content");
    std::fs::write(&content, fill::pattern(3, 5000)).unwrap();
    debugfs(&image, &format!("write {} large", content.display()));
    debugfs(&image, &format!("ea_set -f {} large user.large", content.display()));
    debugfs(&image, &format!("write {} acl", content.display()));
    debugfs(&image, "ea_set acl user.name 0123456789");
    let reader = open(&image);
    let large = reader.resolve(b"large", LastLink::Keep).unwrap();
    let whole = reader.xattrs(&large).unwrap();
    // debugfs stores no more than a few blocks of a value.
    assert!(whole[0].value.len() >= 1024 && fill::pattern(3, 5000).starts_with(&whole[0].value));
    let acl = reader.resolve(b"acl", LastLink::Keep).unwrap();
    // Where the entries of the inode's attributes begin: after 128 + 32 bytes of the inode and 4
    // bytes of the magic.
    let place = |inode: &Inode| {
        let (group, index) = reader.superblock().geometry().locate_inode(inode.number());
        reader.group(group).unwrap().inode_table().raw() * 1024 + u64::from(index) * 256 + 164
    };
    let (large_at, acl_at) = (place(&large), place(&acl));
    // The entry now names the file itself as its value inode, but the file is no value inode.
    patch(&image, large_at + 4, &large.number().raw().to_le_bytes());
    // The entry now has name index 2, an access control list, but its value is no such list.
    patch(&image, acl_at + 1, &[2]);
    let reader = open(&image);
    let kind = |path: &[u8]| {
        let inode = reader.resolve(path, LastLink::Keep).unwrap();
        reader.xattrs(&inode).unwrap_err().corruption()
    };
    assert_eq!(kind(b"large"), Some(CorruptionKind::XattrValueInode));
    assert_eq!(kind(b"acl"), Some(CorruptionKind::XattrAcl));
}

#[test]
fn an_index_that_leads_into_a_hole_is_named() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (source, image) = (directory.path().join("source"), directory.path().join("image"));
    std::fs::create_dir_all(source.join("names")).unwrap();
    for n in 0..200 {
        std::fs::write(source.join(format!("names/a-name-of-some-length-{n}")), b"").unwrap();
    }
    mke2fs(&image, &["-t", "ext4", "-b", "1024", "-d", source.to_str().unwrap()], "8M");
    // Builds the index; exit code 1 says that something was changed.
    let built = run("e2fsck", &["-fyD", image.to_str().unwrap()]).status.code();
    assert!(matches!(built, Some(0 | 1)), "{built:?}");
    debugfs(&image, "set_inode_field names size 1024000");
    let reader = open(&image);
    let names = reader.resolve(b"names", LastLink::Keep).unwrap();
    let (root, _) = first_extent(&reader, &names);
    let mut block = reader.block(blockyard_disk::BlockNr::new(root)).unwrap().to_vec();
    // The first entry of the index now leads past the mapped blocks, but inside the new size; the
    // checksum is corrected.
    block[36..40].copy_from_slice(&999u32.to_le_bytes());
    seal_htree(names.checksum_seed(), &mut block, 32);
    drop(reader);
    patch(&image, root * 1024, &block);
    let reader = open(&image);
    let names = reader.resolve(b"names", LastLink::Keep).unwrap();
    let answers: Vec<Option<CorruptionKind>> = (0..200)
        .filter_map(|n| reader.lookup(&names, format!("a-name-of-some-length-{n}").as_bytes()).err())
        .map(|error| error.corruption())
        .collect();
    assert!(!answers.is_empty() && answers.len() < 200, "{} of 200 lookups fail", answers.len());
    assert!(answers.iter().all(|kind| *kind == Some(CorruptionKind::DirHole)), "{answers:?}");
}

#[test]
fn truncated_and_foreign_files_are_refused_by_name() {
    if !require(&["mke2fs"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    mke2fs(&image, &["-t", "ext4"], "16M");
    let refusal = |length: u64| {
        std::fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(length).unwrap();
        Reader::open(Arc::new(FileDevice::open_read_only(&image).unwrap())).unwrap_err()
    };
    assert!(refusal((16 << 20) - 1).to_string().contains("16777215 bytes, the file system 16777216"));
    assert_eq!(refusal(2047).corruption(), Some(CorruptionKind::SuperblockMagic));
    assert_eq!(refusal(0).corruption(), Some(CorruptionKind::SuperblockMagic));
}
