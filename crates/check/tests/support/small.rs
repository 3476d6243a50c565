//! Small images with directories, their repair, and what debugfs shows of them.

use std::path::{Path, PathBuf};

use blockyard_check::{Options, RepairOptions, check, plan};
use blockyard_device::FileDevice;
use blockyard_testkit::{e2fsck_bounded, e2fsck_clean, mke2fs, run};

/// Makes an image with the directories `one`, `one/two` and `three`.
pub(crate) fn made(folder: &Path, options: &[&str], size: &str) -> PathBuf {
    let image = folder.join("image");
    mke2fs(&image, options, size);
    for request in ["mkdir one", "mkdir one/two", "mkdir three"] {
        debugfs(&image, request);
    }
    image
}

/// As [`made`], with an image of 32 MiB.
pub(crate) fn made_32m(folder: &Path, options: &[&str]) -> PathBuf {
    made(folder, options, "32M")
}

/// Makes an image with `count` directories in `many`. Their names are numbers from 0.
pub(crate) fn with_many(folder: &Path, count: usize, options: &[&str], size: &str) -> PathBuf {
    let tree = folder.join("tree");
    for n in 0..count {
        std::fs::create_dir_all(tree.join(format!("many/{n}"))).expect("a folder can be made");
    }
    let image = folder.join("image");
    let tree = tree.to_str().expect("test paths are UTF-8");
    mke2fs(&image, &[options, &["-d", tree]].concat(), size);
    image
}

/// Lets debugfs carry out a request, which may write to the image. Returns what it prints.
pub(crate) fn debugfs(image: &Path, request: &str) -> String {
    let output = run("debugfs", &["-w", "-R", request, image.to_str().expect("names here are text")]);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Repairs the image, and asserts that the repair is complete and e2fsck finds nothing afterwards.
pub(crate) fn repair(image: &Path) {
    let device = FileDevice::open(image).expect("the image was just made");
    let how = RepairOptions { now: 1_700_000_000, ..RepairOptions::default() };
    let plan = plan(&device, &how).expect("a plan");
    assert!(plan.is_complete(), "{:?}", plan.after);
    plan.apply(&device).expect("the plan fits the image");
    e2fsck_clean(image);
}

/// Byte offset of an inode's slot in the image. `inode` is a path, or `<number>`.
pub(crate) fn slot_at(image: &Path, inode: &str, block_size: u64) -> u64 {
    // debugfs prints "located at block 43, offset 0x0080".
    let said = debugfs(image, &format!("imap {inode}"));
    let behind = |mark: &str| said.split(mark).nth(1).and_then(|rest| rest.split([',', '\n']).next());
    let block = behind("at block ").and_then(|block| block.parse::<u64>().ok());
    let offset = behind("offset 0x").and_then(|offset| u64::from_str_radix(offset.trim(), 16).ok());
    block.zip(offset).map(|(block, offset)| block * block_size + offset).expect("debugfs knows the inode")
}

/// The entries of lost+found, as `(inode, name)`.
pub(crate) fn lost_found(image: &Path) -> Vec<(u32, String)> {
    let listed = debugfs(image, "ls -p lost+found");
    let entries = listed.lines().filter_map(|line| {
        let mut fields = line.split('/').skip(1);
        let inode = fields.next()?.parse().ok()?;
        Some((inode, fields.nth(3)?.to_owned()))
    });
    // debugfs lists the empty entry of an empty block, too.
    entries.filter(|(inode, name)| *inode != 0 && name != "." && name != "..").collect()
}

/// Whether a check calls the image clean. Asserts that e2fsck says the same.
pub(crate) fn is_clean(image: &Path) -> bool {
    let device = FileDevice::open_read_only(image).expect("the image can be opened");
    let ours = check(&device, &Options::default()).expect("it can be checked").is_clean();
    let theirs = e2fsck_bounded(image);
    assert_eq!(ours, theirs.code == Some(0), "{}", theirs.text);
    ours
}
