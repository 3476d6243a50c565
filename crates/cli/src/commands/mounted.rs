//! Whether somebody has an image mounted while it is read: what is seen then may be changing, and
//! half of it may be in the memory of the kernel.

use blockyard_device::{ImagePath, in_use};

/// Says on standard error that an image may be changing while it is read, where that is so.
pub(super) fn warn(image: &ImagePath) {
    let Some(mount) = in_use::kernel_mount(image.file()) else { return };
    let place = mount.place.map(|place| format!(" at {place}")).unwrap_or_default();
    let through = if mount.device == image.file() {
        String::new()
    } else {
        format!(" through {}", mount.device.display())
    };
    eprintln!(
        "blockyard: {}: note: is mounted{place}{through}; what is read here may be changing, and be behind what the \
         mount shows",
        image.display()
    );
}
