//! Warns about reading an image that is mounted, or that another process writes to. Such an image
//! may be changing, and some of its content may be only in memory.

use blockyard_device::in_use::KernelMount;
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
    eprintln!(
        "blockyard: {}: note: is mounted{}; what is read here may be changing, and be behind what the \
         mount shows",
        image.display(),
        place_of(&mount, image)
    );
}

/// As [`warn`], for a check. Also warns about a read-only mount, because a repair needs the image
/// unmounted.
pub(super) fn warn_of_check(image: &ImagePath) {
    warn(image);
    if in_use::kernel_mount(image.file()).is_some() {
        return;
    }
    if let Some(mount) = in_use::read_only_mount(image.file()) {
        eprintln!(
            "blockyard: {}: note: is mounted read-only{}; unmount it before a repair",
            image.display(),
            place_of(&mount, image)
        );
    }
}

/// Where an image is mounted, and through which device if the image is not mounted directly.
fn place_of(mount: &KernelMount, image: &ImagePath) -> String {
    let place = mount.place.as_ref().map(|place| format!(" at {place}")).unwrap_or_default();
    if mount.device == image.file() {
        return place;
    }
    format!("{place} through {}", mount.device.display())
}
