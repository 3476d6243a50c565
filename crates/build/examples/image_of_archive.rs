//! Makes an image from a tar archive, with a file added, and prints how the image differs from the
//! archive.
//!
//! `cargo run -p blockyard-build --example image_of_archive -- rootfs.tar rootfs.img`

use blockyard_build::{Added, Builder, Result, Room, Size, Tree};
use blockyard_device::FileDevice;
use std::path::Path;
use std::sync::Arc;

fn archive(path: &Path) -> Result<Tree> {
    let file = std::fs::File::open(path)
        .map_err(|error| blockyard_build::Error::Source { path: path.to_owned(), error })?;
    Tree::read_archive(file, path, &std::env::temp_dir())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [source, image] = &arguments[..] else {
        eprintln!("usage: image_of_archive ARCHIVE IMAGE");
        return Ok(());
    };
    let (source, image) = (Path::new(source), Path::new(image));
    let motd = Tree::read_file(Path::new("/etc/hostname"))?;
    let tree = Tree::merge_at(vec![
        Added { tree: archive(source)?, at: Vec::new() },
        Added { tree: motd, at: b"etc/made-on".to_vec() },
    ])?;
    let builder = Builder { size: Size::Auto(Room::Bytes(16 << 20)), threads: 2, ..Builder::default() };
    let plan = builder.plan(tree)?;
    let device = FileDevice::create(image, plan.bytes())?;
    let summary = plan.write(&device)?;
    println!("{} files, {} bytes, {} free", summary.files, summary.image_bytes, summary.free_bytes);
    let made = Tree::read_image(Arc::new(FileDevice::open_read_only(image)?), image, b"/")?;
    Tree::compare(&archive(source)?, &made, &mut |found| {
        println!("{}: {:?}", found.path.escape_ascii(), found.what);
        Ok(())
    })
}
