//! Images in use elsewhere: by another process, a loop device, or a kernel mount.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Stdio};

use blockyard::{FileSystem, ImageOptions};
use blockyard_testkit::{LoopDevice, LoopMount, require};

#[test]
fn another_process_is_named() {
    if !require(&["flock"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    FileSystem::make_image(&image, 16 << 20).unwrap().close().unwrap();
    let holder = |kind: &str| {
        // The child prints a line once it has the lock, and keeps the lock until its input ends.
        let mut child = Command::new("flock")
            .args([kind, image.to_str().unwrap(), "sh", "-c", "echo; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut byte = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut byte).unwrap();
        child
    };
    let mut writer = holder("-x");
    for error in [
        FileSystem::open_image(&image).unwrap_err(),
        ImageOptions::new().read_only(true).open(&image).unwrap_err(),
        FileSystem::make_image(&image, 16 << 20).unwrap_err(),
    ] {
        assert!(error.is_busy(), "{error}");
        let wanted = format!("process {} is writing to it", writer.id());
        assert!(error.to_string().contains(&wanted), "{error}; {wanted}");
    }
    ImageOptions::new().read_only(true).shared(true).open(&image).unwrap();
    drop(writer.stdin.take());
    writer.wait().unwrap();
    let mut reader = holder("-s");
    let error = FileSystem::open_image(&image).unwrap_err();
    assert!(error.to_string().contains(&format!("process {} is reading it", reader.id())), "{error}");
    ImageOptions::new().read_only(true).open(&image).unwrap();
    drop(reader.stdin.take());
    reader.wait().unwrap();
    FileSystem::open_image(&image).unwrap().close().unwrap();
}

#[test]
fn what_the_kernel_uses_is_not_written() {
    if !require(&["root", "losetup"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    FileSystem::make_image(&image, 16 << 20).unwrap().close().unwrap();
    let device = LoopDevice::new(&image);
    let error = FileSystem::open_image(&image).unwrap_err();
    assert!(error.is_busy() && error.to_string().contains(device.path()), "{error}");
    // The loop device is not mounted, so the image can be read.
    ImageOptions::new().read_only(true).open(&image).unwrap();
    let mount = LoopMount::of_device(&device, "rw").unwrap();
    for path in [image.as_path(), device.path().as_ref()] {
        assert!(FileSystem::open_image(path).unwrap_err().is_busy());
        let error = ImageOptions::new().read_only(true).open(path).unwrap_err();
        assert!(error.is_busy() && error.to_string().contains("is mounted"), "{error}");
        ImageOptions::new().read_only(true).shared(true).open(path).unwrap();
    }
    drop(mount);
    let fs = FileSystem::open_image(device.path()).unwrap();
    fs.write("file", "through the device").unwrap();
    fs.close().unwrap();
    drop(device);
    assert_eq!(FileSystem::open_image(&image).unwrap().read("file").unwrap(), b"through the device");
}
