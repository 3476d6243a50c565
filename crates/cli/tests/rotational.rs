//! The option `--rotational`, and where `put -r` places the blocks of directories.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use blockyard_device::FileDevice;
use blockyard_disk::inode::FileType;
use blockyard_inspect::reader::Reader;

/// Directories in the tree.
const DIRECTORIES: usize = 1500;

/// A tree with more data than the engine keeps in memory, so that data is written back while
/// directories are made.
fn tree(folder: &Path) {
    for directory in 0..DIRECTORIES {
        let path = folder.join(format!("d{}", directory / 25)).join(format!("e{directory}"));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("file"), vec![b'x'; 100_000]).unwrap();
    }
}

/// Copies the tree to a new image with these options. Returns the image.
fn put(folder: &Path, name: &str, options: &[&str]) -> String {
    let image = folder.join(name).to_str().unwrap().to_owned();
    let source = folder.join("tree").to_str().unwrap().to_owned();
    let blockyard = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_blockyard")).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    blockyard(&["mkfs", &image, "2G", "--seed", "1", "--time", "1700000000", "--quiet"]);
    blockyard(&[&["put", "-r", "--quiet", &image, &source, "/"], options].concat());
    image
}

/// The number of runs that the blocks of all directories form.
fn runs(image: &str) -> usize {
    let reader = Reader::open(Arc::new(FileDevice::open_read_only(Path::new(image)).unwrap())).unwrap();
    let mut blocks = Vec::new();
    let mut waiting = vec![reader.root().unwrap()];
    while let Some(directory) = waiting.pop() {
        for extent in reader.extents(&directory) {
            let extent = extent.unwrap();
            blocks.extend(extent.physical.raw()..extent.physical.raw() + u64::from(extent.length));
        }
        for entry in reader.listed(&directory).unwrap() {
            if entry.file_type == Some(FileType::Directory) && entry.name != b"." && entry.name != b".." {
                waiting.push(reader.inode(entry.inode).unwrap());
            }
        }
    }
    blocks.sort_unstable();
    1 + blocks.windows(2).filter(|pair| pair[0] + 1 != pair[1]).count()
}

/// If the device has seek times, the search begins with a linear pass over groups, which packs
/// directories. This used to fail for two reasons. No option could say that a device has seek
/// times. And while dirty data was at its limit, each new file caused the write-back of another
/// file, so directories got their blocks between those of files.
#[test]
fn directories_are_packed_where_the_device_has_seek_times() {
    let folder = tempfile::tempdir().unwrap();
    tree(&folder.path().join("tree"));
    // An image in a file is taken to have no seek times unless an option says otherwise.
    let ssd = runs(&put(folder.path(), "ssd", &[]));
    let disk = runs(&put(folder.path(), "disk", &["--rotational", "on"]));
    assert!(disk <= 3 && (4..=30).contains(&ssd), "{ssd} runs without seek times, {disk} with");
}

/// If the time is fixed, `auto` means off, so that the same input gives the same bytes on every
/// machine. The help used not to mention that.
#[test]
fn help_says_what_decides_when_nobody_does() {
    for command in [&["put"][..], &["lab", "run"]] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_blockyard")).args(command).arg("--help").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let auto = words.split("- auto: ").nth(1).unwrap().split("- on: ").next().unwrap();
        for part in ["What a block device says", "off for a file", "in memory", "SOURCE_DATE_EPOCH"] {
            assert!(auto.contains(part), "{command:?}: {part}: {auto}");
        }
    }
}
