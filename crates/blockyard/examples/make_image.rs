//! Makes and fills an image from Rust code. Every run produces the same bytes, as a reproducible
//! build needs.

use blockyard::{
    AclEntry, AclKind, Clock, Context, FileType, ImageOptions, Result, Subject, Timestamp, mkfs,
};

/// Makes a small root file system.
fn make(image: &std::path::Path) -> Result<()> {
    let time = 1_700_000_000;
    let context = Context::new().clock(Clock::Fixed(Timestamp::from_seconds(1_700_000_000))).cpu_slot(0);
    let fs = ImageOptions::new()
        .mkfs(mkfs::Options::ext4().label("rootfs").identity(42, time))
        .context(context)
        .make(image, 64 << 20)?;
    for directory in ["bin", "dev", "etc", "home/guest", "var/log"] {
        fs.create_dir_all(directory)?;
    }
    fs.write("etc/hostname", "blockyard\n")?;
    fs.write("bin/hello", "#!/bin/sh\necho hello\n")?;
    fs.set_permissions("bin/hello", 0o755)?;
    fs.symlink("hello", "bin/greet")?;
    fs.make_node("dev/fifo", FileType::Fifo, 0o600, None)?;
    fs.set_owner("home/guest", Some(1000), Some(1000))?;
    let mut list = blockyard::Acl::of_mode(0o750);
    list.grant(AclEntry { subject: Subject::User(33), permissions: 4 });
    fs.set_acl("var/log", AclKind::Access, &list)?;
    fs.close()
}

/// Makes the image twice and compares the two files.
///
/// # Errors
/// Any error of the library or of the host's file system.
pub(crate) fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let images = ["first.img", "second.img"].map(|name| folder.path().join(name));
    for image in &images {
        make(image)?;
    }
    let [first, second] = images.map(std::fs::read);
    assert!(first? == second?, "two images of the same content differ");
    println!("made the same image twice");
    Ok(())
}
