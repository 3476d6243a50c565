//! An image made by mke2fs, and its mount.

use std::path::{Path, PathBuf};

use blockyard::FileSystem;
use blockyard_fuse::{Mount, Options, Request, Serving};
use blockyard_testkit::mke2fs;

/// A mounted image that is unmounted even when a test ends early.
pub(crate) struct Mounted {
    pub(crate) serving: Option<Serving>,
    pub(crate) handle: blockyard_fuse::Handle,
}

#[allow(dead_code, reason = "most tests use only one of the two")]
impl Mounted {
    pub(crate) fn new(image: &Path, directory: &Path, options: &str) -> Self {
        let options = Options::parse([options]).unwrap();
        let request =
            Request { image: image.to_owned(), directory: directory.to_owned(), options, record: None };
        let mount = Mount::new(&request).unwrap();
        let handle = mount.handle();
        Self { serving: Some(mount.spawn().unwrap()), handle }
    }

    /// Mounts a file system that is already open, on a device of the test's own.
    pub(crate) fn over(fs: FileSystem, place: &Place) -> Self {
        let (image, directory) = (place.image.clone(), place.directory.clone());
        let request = Request { image, directory, options: Options::default(), record: None };
        let mount = Mount::over(fs, &request).unwrap();
        let handle = mount.handle();
        Self { serving: Some(mount.spawn().unwrap()), handle }
    }

    pub(crate) fn unmount(mut self) {
        self.handle.unmount().unwrap();
        self.serving.take().unwrap().wait().unwrap();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.serving.is_some() {
            let _ = self.handle.unmount();
        }
    }
}

/// A folder with an image and a mount point.
pub(crate) struct Place {
    _folder: tempfile::TempDir,
    pub(crate) image: PathBuf,
    pub(crate) directory: PathBuf,
}

pub(crate) fn place(arguments: &[&str], size: &str) -> Place {
    let folder = tempfile::tempdir().unwrap();
    let (image, directory) = (folder.path().join("image"), folder.path().join("mnt"));
    mke2fs(&image, arguments, size);
    std::fs::create_dir(&directory).unwrap();
    Place { _folder: folder, image, directory }
}
