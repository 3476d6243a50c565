//! Images that the library makes in memory: e2fsck finds nothing in the defaults of each profile,
//! and the same inputs give the same bytes.

use blockyard_device::MemoryDevice;
use blockyard_engine::mkfs::{self, Options};

#[test]
fn default_profiles_are_clean() {
    if !blockyard_testkit::require(&["e2fsck"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let profiles = [Options::ext2(), Options::ext3(), Options::ext4(), Options::ext4().cluster_size(65536)];
    for (index, options) in profiles.into_iter().enumerate() {
        for size in [8u64 << 20, 600 << 20] {
            let device = MemoryDevice::new(size);
            mkfs::format(&device, &options.clone().identity(42, 1_700_000_000)).unwrap();
            let path = directory.path().join(format!("{index}-{size}.img"));
            device.save(&path).unwrap();
            blockyard_testkit::e2fsck_clean(&path);
        }
    }
}

#[test]
fn the_same_inputs_give_the_same_bytes() {
    let make = || {
        let device = MemoryDevice::new(64 << 20);
        mkfs::format(&device, &Options::ext4().identity(7, 1_700_000_000)).unwrap();
        let mut bytes = vec![0; 64 << 20];
        blockyard_device::BlockDevice::read_at(&device, 0, &mut bytes).unwrap();
        bytes
    };
    assert!(make() == make(), "two images of the same options differ");
}
