//! Images that the kernel wrote. After a power cut, opening replays the journal or, on request,
//! refuses the image. After an unmount, the image is read and changed.

#![allow(clippy::unwrap_used)]

use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::{InodeNr, Timestamp};
use blockyard_engine::{Error, FileSystem, OpContext, OpenOptions, Recovery, Refusal};
use blockyard_testkit::{LoopMount, e2fsck_clean, require, run};
use std::path::Path;
use std::sync::Arc;

const FILES: usize = 60;

fn context() -> OpContext {
    OpContext::root_at(Timestamp::from_seconds(1_700_000_000))
}

/// An image as a power cut leaves it: copied after a sync, while the kernel has it mounted.
fn cut_off(directory: &Path) -> MemoryDevice {
    let (live, copy) = (directory.join("live"), directory.join("copy"));
    let path = live.to_str().unwrap();
    assert!(run("mke2fs", &["-q", "-F", "-t", "ext4", path, "64M"]).status.success());
    let mount = LoopMount::new(&live, "").unwrap();
    std::fs::create_dir(mount.path().join("dir")).unwrap();
    for n in 0..FILES {
        std::fs::write(mount.path().join(format!("dir/file-{n}")), vec![u8::try_from(n).unwrap(); n * 500])
            .unwrap();
    }
    let root = std::fs::File::open(mount.path()).unwrap();
    rustix::fs::syncfs(&root).unwrap();
    drop(root);
    std::fs::copy(&live, &copy).unwrap();
    MemoryDevice::load(&copy).unwrap()
}

fn check_content(fs: &FileSystem) {
    let dir = fs.lookup(InodeNr::ROOT, b"dir").unwrap();
    for n in 0..FILES {
        let inode = fs.lookup(dir, format!("file-{n}").as_bytes()).unwrap();
        let mut read = vec![0xEE; n * 500 + 1];
        assert_eq!(fs.read(&context(), inode, 0, &mut read).unwrap(), n * 500);
        assert!(read[..n * 500].iter().all(|&byte| usize::from(byte) == n), "file-{n}");
    }
}

#[test]
fn a_journal_is_replayed_or_refused() {
    if !require(&["mke2fs", "e2fsck", "root"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let device = Arc::new(cut_off(scratch.path()));
    let shared = || -> Arc<dyn BlockDevice> { Arc::<MemoryDevice>::clone(&device) };
    let refuse = OpenOptions { recovery: Recovery::Refuse, ..OpenOptions::default() };
    assert!(matches!(
        FileSystem::open(shared(), refuse, &context()),
        Err(Error::Refused(Refusal::NeedsRecovery))
    ));

    // Opened read-only, the image is recovered in memory and the device stays unchanged.
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let fs = FileSystem::open(shared(), read_only, &context()).unwrap();
    check_content(&fs);
    fs.close(&context()).unwrap();
    let mut feature = [0; 4];
    device.read_at(1024 + 0x60, &mut feature).unwrap();
    assert!(feature[0] & 4 != 0, "RECOVER is still set on the device");

    let fs = FileSystem::open(shared(), OpenOptions::default(), &context()).unwrap();
    check_content(&fs);
    let dir = fs.lookup(InodeNr::ROOT, b"dir").unwrap();
    fs.unlink(&context(), dir, b"file-3").unwrap();
    fs.close(&context()).unwrap();
    let image = scratch.path().join("ours");
    device.save(&image).unwrap();
    e2fsck_clean(&image);
}

#[test]
fn what_the_kernel_filled_is_read_and_changed() {
    if !require(&["mke2fs", "e2fsck", "root"]) {
        return;
    }
    for options in [&["-t", "ext4"][..], &["-t", "ext3"], &["-t", "ext4", "-b", "1024", "-O", "inline_data"]]
    {
        let scratch = tempfile::tempdir().unwrap();
        let image = scratch.path().join("image");
        let path = image.to_str().unwrap();
        let all = [&["-q", "-F"], options, &[path, "64M"]].concat();
        assert!(run("mke2fs", &all).status.success());
        {
            let mount = LoopMount::new(&image, "").unwrap();
            for n in 0..FILES {
                let content = vec![u8::try_from(n).unwrap(); n * n * 37];
                std::fs::write(mount.path().join(format!("file-{n}")), content).unwrap();
            }
        }
        let device = Arc::new(MemoryDevice::load(&image).unwrap());
        let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
        let fs = FileSystem::open(shared, OpenOptions::default(), &context()).unwrap();
        for n in 0..FILES {
            let name = format!("file-{n}");
            let inode = fs.lookup(InodeNr::ROOT, name.as_bytes()).unwrap();
            let mut read = vec![0xEE; n * n * 37 + 1];
            assert_eq!(fs.read(&context(), inode, 0, &mut read).unwrap(), n * n * 37);
            assert!(read[..n * n * 37].iter().all(|&byte| usize::from(byte) == n), "{name}");
            match n % 3 {
                0 => fs.unlink(&context(), InodeNr::ROOT, name.as_bytes()).unwrap(),
                1 => fs.truncate(&context(), inode, u64::try_from(n).unwrap() * 500).unwrap(),
                _ => drop(fs.append(&context(), inode, &[0xAB; 3000]).unwrap()),
            }
        }
        fs.close(&context()).unwrap();
        device.save(&image).unwrap();
        e2fsck_clean(&image);
        let mount = LoopMount::new(&image, "ro").unwrap();
        let content = std::fs::read(mount.path().join("file-5")).unwrap();
        assert_eq!(content.len(), 5 * 5 * 37 + 3000);
        assert!(content[5 * 5 * 37..].iter().all(|&byte| byte == 0xAB));
    }
}
