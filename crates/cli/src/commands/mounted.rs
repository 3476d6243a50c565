//! Warns about reading an image that someone has mounted: it may be changing, and some of it may be
//! only in the kernel's memory.

use blockyard_device::{ImagePath, in_use};

/// Warns on standard error if an image may change while it is read.
pub(super) fn warn(image: &ImagePath) {
    let Some(mount) = in_use::kernel_mount(image.file()) else {
        if let Some(process) = in_use::writer(image.file()) {
            eprintln!(
                "blockyard: {}: note: process {process} is writing to it (a mount?); what is read here may be changing",
                image.display()
            );
        }
        return;
    };
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
