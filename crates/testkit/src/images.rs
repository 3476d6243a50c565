//! Images made by mke2fs and filled by the kernel, or by mke2fs if their blocks are larger than a
//! page. Each combination of features that is worth a test has a profile.

mod rare;

use std::ffi::CString;
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev, mknodat, setxattr};

use crate::oracle::{LoopMount, run};

pub use rare::RARE_PROFILES;

/// How an image is made.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Short name; also the name of the image file.
    pub name: &'static str,
    /// Arguments of mke2fs.
    pub options: &'static [&'static str],
    /// Size in MiB.
    pub size_mib: u64,
    /// Shell commands that change the image before it is filled; `IMAGE` stands for its path.
    pub first: &'static [&'static str],
    /// Shell commands that change the image after it is filled.
    pub last: &'static [&'static str],
    /// Whether the image also gets deep extent trees or block maps and a deep directory index,
    /// which takes seconds.
    pub is_deep: bool,
}

impl Profile {
    /// Whether the blocks are larger than a page of 4 KiB. [`make_filled`] does not mount such an
    /// image, because many kernels cannot.
    fn is_beyond_a_page(&self) -> bool {
        let mut words = self.options.iter().skip_while(|option| **option != "-b").skip(1);
        words.next().and_then(|size| size.parse::<u32>().ok()).is_some_and(|size| size > 4096)
    }

    fn has(&self, feature: &str) -> bool {
        self.options.iter().any(|option| option.split(',').any(|one| one == feature))
    }
}

const fn profile(name: &'static str, options: &'static [&'static str]) -> Profile {
    Profile { name, options, size_mib: 64, first: &[], last: &[], is_deep: false }
}

/// The common profiles. The kernel can mount them all.
pub const PROFILES: &[Profile] = &[
    profile("ext4", &["-t", "ext4", "-b", "4096"]),
    profile("ext4-1k", &["-t", "ext4", "-b", "1024"]),
    profile("ext2", &["-t", "ext2", "-b", "4096"]),
    profile("ext3", &["-t", "ext3", "-I", "128"]),
    profile("ext3-1k", &["-t", "ext3", "-b", "1024"]),
    profile("inline", &["-t", "ext4", "-b", "4096", "-O", "inline_data"]),
    profile("inline-plain", &["-t", "ext4", "-O", "inline_data,^metadata_csum", "-I", "512"]),
    profile("ea_inode", &["-t", "ext4", "-O", "ea_inode", "-b", "1024"]),
    profile("bigalloc", &["-t", "ext4", "-O", "bigalloc", "-C", "16384"]),
    profile("bigalloc-1k", &["-t", "ext4", "-O", "bigalloc", "-b", "1024", "-C", "16384"]),
    profile("orphan_file", &["-t", "ext4", "-b", "4096", "-O", "orphan_file"]),
    profile("uninit_bg", &["-t", "ext4", "-O", "^metadata_csum,uninit_bg"]),
    profile("meta_bg", &["-t", "ext4", "-O", "meta_bg,^resize_inode", "-b", "1024"]),
    profile("no-flex_bg", &["-t", "ext4", "-O", "^flex_bg", "-b", "1024"]),
    profile("sparse_super2", &["-t", "ext4", "-O", "sparse_super2", "-b", "1024"]),
    profile("no-journal", &["-t", "ext4", "-b", "4096", "-O", "^has_journal"]),
    profile("csum_seed", &["-t", "ext4", "-b", "4096", "-O", "metadata_csum_seed"]),
    profile("large_dir", &["-t", "ext4", "-O", "large_dir", "-b", "1024"]),
    profile("mmp", &["-t", "ext4", "-b", "4096", "-O", "mmp"]),
    profile("no-filetype", &["-t", "ext4", "-O", "^filetype"]),
    profile("indirect", &["-t", "ext4", "-O", "^extents,^64bit"]),
    profile("inodes-1k", &["-t", "ext4", "-b", "4096", "-I", "1024"]),
];

/// More combinations, for the long runs.
pub const MORE_PROFILES: &[Profile] = &[
    profile("ext4-2k", &["-t", "ext4", "-b", "2048"]),
    profile("ext4-64k", &["-t", "ext4", "-b", "65536"]),
    profile("ext4-128", &["-t", "ext4", "-I", "128", "-b", "1024"]),
    profile("ext2-1k", &["-t", "ext2", "-b", "1024", "-I", "128"]),
    profile("no-dir_index", &["-t", "ext4", "-O", "^dir_index"]),
    profile("no-sparse_super", &["-t", "ext4", "-b", "1024", "-O", "^sparse_super,^resize_inode"]),
    profile("packed", &["-t", "ext4", "-b", "1024", "-E", "packed_meta_blocks=1"]),
    profile("desc-128", &["-t", "ext4", "-b", "1024", "-E", "desc_size=128"]),
    profile("inodes-4k", &["-t", "ext4", "-b", "4096", "-I", "4096", "-N", "2000"]),
    profile(
        "inline-1k",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-I",
            "1024",
            "-O",
            "inline_data,ea_inode,large_dir,metadata_csum_seed",
        ],
    ),
    profile("uninit-1k", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg,^64bit"]),
    profile("fast_commit", &["-t", "ext4", "-b", "4096", "-O", "fast_commit"]),
    profile("orphan_file-1k", &["-t", "ext4", "-b", "1024", "-O", "orphan_file,mmp"]),
    profile(
        "meta_bg-plain",
        &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode,^metadata_csum,^flex_bg"],
    ),
    profile(
        "bigalloc-meta_bg",
        &["-t", "ext4", "-b", "1024", "-O", "bigalloc,meta_bg,^resize_inode", "-C", "4096", "-g", "256"],
    ),
    profile("bigalloc-64k", &["-t", "ext4", "-b", "2048", "-O", "bigalloc,orphan_file", "-C", "65536"]),
    profile(
        "bigalloc-plain",
        &["-t", "ext4", "-b", "4096", "-O", "bigalloc,^metadata_csum,^64bit", "-C", "8192"],
    ),
    profile("encrypt", &["-t", "ext4", "-O", "encrypt,verity,stable_inodes"]),
    profile("rev0", &["-t", "ext2", "-r", "0", "-b", "1024"]),
];

/// The profile that is called `name`.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn profile_named(name: &str) -> &'static Profile {
    let all = PROFILES.iter().chain(MORE_PROFILES).chain(RARE_PROFILES);
    all.into_iter().find(|profile| profile.name == name).expect("a profile of the lists")
}

/// Makes an empty image in a directory.
///
/// # Panics
/// When mke2fs fails.
#[must_use]
pub fn make(profile: &Profile, directory: &Path) -> PathBuf {
    make_with(profile, directory, &[])
}

fn make_with(profile: &Profile, directory: &Path, more: &[&str]) -> PathBuf {
    let path = directory.join(format!("{}.img", profile.name));
    let file = fs::File::create(&path).expect("create image");
    file.set_len(profile.size_mib << 20).expect("size image");
    let image = path.to_str().expect("test images have UTF-8 names");
    let arguments: Vec<&str> =
        ["-q", "-F"].iter().chain(profile.options).chain(more).copied().chain([image]).collect();
    let output = run("mke2fs", &arguments);
    assert!(output.status.success(), "mke2fs {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    path
}

/// Makes an image and has the kernel fill the image with one of everything. If blocks are larger
/// than a page, mke2fs fills it, and the profile's commands and `is_deep` have no effect.
///
/// # Panics
/// When mke2fs, e2fsck, the mount, an operation or a command of the profile fails.
#[must_use]
pub fn make_filled(profile: &Profile, directory: &Path) -> PathBuf {
    if profile.is_beyond_a_page() {
        return make_from_tree(profile, directory);
    }
    let path = make(profile, directory);
    change(&path, profile.first);
    // With `test_dummy_encryption`, the kernel encrypts all new files. If the kernel refuses the
    // option, the image is mounted without it.
    let encrypted = profile.has("encrypt");
    let dummy = if encrypted { LoopMount::new(&path, "test_dummy_encryption=v2").ok() } else { None };
    let plain = || LoopMount::new(&path, "").unwrap_or_else(|error| panic!("{}: {error}", profile.name));
    let mount = dummy.unwrap_or_else(plain);
    fill(mount.path(), profile.has("ea_inode"));
    if profile.is_deep {
        rare::fill_deep(mount.path());
    }
    drop(mount);
    change(&path, profile.last);
    path
}

/// Runs shell commands on an image. Each must exit with 0, or with 1 as e2fsck does after a repair.
fn change(image: &Path, commands: &[&str]) {
    let image = image.to_str().expect("test paths are UTF-8");
    for command in commands {
        let output = run("sh", &["-c", &command.replace("IMAGE", image)]);
        assert!(output.status.code().is_some_and(|code| code <= 1), "{command}: {output:?}");
    }
}

/// Makes an image without a mount: mke2fs fills the image, and e2fsck indexes its directories.
fn make_from_tree(profile: &Profile, directory: &Path) -> PathBuf {
    let tree = tempfile::tempdir_in(directory).expect("a directory");
    fill(tree.path(), false);
    let tree = tree.path().to_str().expect("test paths are UTF-8");
    let path = make_with(profile, directory, &["-d", tree]);
    let indexed = run("e2fsck", &["-fyD", path.to_str().expect("test paths are UTF-8")]);
    assert!(indexed.status.code().is_some_and(|code| code <= 1), "{indexed:?}");
    path
}

/// Fills a mounted file system with one of everything:
/// - directories: indexed, small, deep, and with many subdirectories; directory blocks with gaps;
/// - files: small, sparse, fragmented, with unwritten extents, with hard links, with a time that
///   needs more than 31 bits;
/// - symbolic links of several lengths, device nodes, a pipe and a socket;
/// - attributes in inodes and in shared blocks; with `values`, also in inodes of their own.
///
/// # Panics
/// When an operation fails.
pub fn fill(root: &Path, values: bool) {
    fill_directories(root);
    fill_files(root);
    fill_links_and_devices(root);
    fill_attributes(root, values);
}

fn fill_directories(root: &Path) {
    fs::create_dir_all(root.join("deep/d2/d3/d4")).expect("mkdir");
    for n in 0..60 {
        fs::create_dir(root.join(format!("deep/sub{n}"))).expect("mkdir");
    }
    let many = root.join("many");
    fs::create_dir(&many).expect("mkdir");
    for n in 0..400 {
        fs::write(many.join(format!("file-with-a-long-name-to-fill-blocks-{n}")), format!("{n}\n"))
            .expect("write");
    }
    for n in (7..400).step_by(10) {
        fs::remove_file(many.join(format!("file-with-a-long-name-to-fill-blocks-{n}"))).expect("unlink");
    }
    let tiny = root.join("tiny");
    fs::create_dir(&tiny).expect("mkdir");
    for name in ["a", "b", "longer-1", "longer-2", "longer-3", "longer-4"] {
        fs::write(tiny.join(name), b"").expect("write");
    }
    fs::create_dir(root.join("L".repeat(255))).expect("mkdir");
    // Many long names of one file. With 1 KiB blocks they need an index of two levels.
    let long = root.join("long-names");
    fs::create_dir(&long).expect("mkdir");
    fs::write(long.join("one"), b"").expect("write");
    for n in 0..450 {
        fs::hard_link(long.join("one"), long.join(format!("{n:0>240}"))).expect("link");
    }
}

fn fill_files(root: &Path) {
    fs::write(root.join("one-mib"), vec![0x5A; 1 << 20]).expect("write");
    fs::write(root.join("four-bytes"), b"tiny").expect("write");
    fs::write(root.join("hundred-bytes"), [7; 100]).expect("write");
    let mut sparse = fs::File::create(root.join("sparse")).expect("create");
    sparse.seek(SeekFrom::Start(20 << 20)).expect("seek");
    sparse.write_all(&[1; 4096]).expect("write");
    let mut holes = fs::File::create(root.join("fragmented")).expect("create");
    for block in (0..60u64).step_by(2) {
        holes.seek(SeekFrom::Start(block * 4096)).expect("seek");
        holes.write_all(&[2; 4096]).expect("write");
        holes.sync_all().expect("sync");
    }
    for (name, flags) in [
        ("unwritten", rustix::fs::FallocateFlags::empty()),
        ("beyond-end", rustix::fs::FallocateFlags::KEEP_SIZE),
    ] {
        let file = fs::File::create(root.join(name)).expect("create");
        // ext2 and ext3 maps cannot hold unwritten blocks.
        let _ = rustix::fs::fallocate(&file, flags, 0, 300 << 10);
    }
    let future = fs::File::create(root.join("future")).expect("create");
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1 << 31);
    future.set_modified(time).expect("set time");
}

fn fill_links_and_devices(root: &Path) {
    for length in [1, 59, 60, 300] {
        symlink("t".repeat(length), root.join(format!("symlink-{length}"))).expect("symlink");
    }
    fs::hard_link(root.join("four-bytes"), root.join("hard-link")).expect("link");
    let mode = Mode::from_raw_mode(0o644);
    for (name, kind, device) in [
        ("char-device", FileType::CharacterDevice, makedev(1, 3)),
        ("block-device", FileType::BlockDevice, makedev(8, 1)),
        ("wide-device", FileType::BlockDevice, makedev(300, 70_000)),
        ("fifo", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
    ] {
        mknodat(CWD, root.join(name), kind, mode, device).expect("mknod");
    }
    assert!(fs::symlink_metadata(root.join("fifo")).expect("stat").file_type().is_fifo());
}

fn fill_attributes(root: &Path, values: bool) {
    let set = |file: &str, name: &str, value: &[u8]| {
        let path = root.join(file);
        if !path.exists() {
            fs::write(&path, b"").expect("write");
        }
        let name = CString::new(name).expect("no NUL");
        setxattr(&path, name.as_c_str(), value, XattrFlags::empty())
            .unwrap_or_else(|error| panic!("{file}: {error}"));
    };
    for file in ["shared-1", "shared-2", "shared-3"] {
        set(file, "user.one", &[b'v'; 200]);
        set(file, "user.two", &[b'w'; 100]);
    }
    set("small", "user.s", b"1");
    // An access list: owner rw-, user 1000 rw-, group r--, mask rw-, others r--.
    let entries: [(u16, u16, u32); 5] =
        [(1, 6, u32::MAX), (2, 6, 1000), (4, 4, u32::MAX), (16, 6, u32::MAX), (32, 4, u32::MAX)];
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend_from_slice(&tag.to_le_bytes());
        list.extend_from_slice(&permissions.to_le_bytes());
        list.extend_from_slice(&id.to_le_bytes());
    }
    set("small", "system.posix_acl_access", &list);
    set("deep/sub1", "user.on-a-directory", b"value");
    if values {
        set("huge-1", "user.huge", &[b'h'; 9000]);
        set("huge-2", "user.huge", &[b'h'; 9000]);
        // With inline data, an inode of 256 bytes has no room for this name. The attribute's entry
        // is then in a block, and its value in an inode of its own.
        set("hundred-bytes", "user.a-name-that-does-not-fit-there", &[b'i'; 9000]);
    }
}
