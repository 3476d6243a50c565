//! What the kernel caches of a mount. The server must ask the kernel to write back cached bytes
//! before it looks for data, and must notify the kernel when a file gets blocks.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::thread;

use blockyard_testkit::{e2fsck_clean, require, wait_until};
use mounted::{Mounted, place};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};

mod mounted;

fn can_mount() -> bool {
    require(&["root", "mke2fs", "e2fsck", "mount"])
}

fn new_file(path: &std::path::Path) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap()
}

/// The data ranges of a file, as start and end.
fn data_of(file: &File) -> Vec<(u64, u64)> {
    let len = file.metadata().unwrap().len();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < len {
        let Ok(data) = seek(file, SeekFrom::Data(at)) else { break };
        at = seek(file, SeekFrom::Hole(data)).unwrap();
        found.push((data, at));
    }
    found
}

/// SEEK_DATA finds data that the kernel has not written back yet. Some programs copy only the
/// ranges that SEEK_DATA finds. Data that is taken for a hole would be missing in their copy.
#[test]
fn data_that_was_just_written_is_found() {
    if !can_mount() {
        return;
    }
    let place = place(&["-t", "ext4", "-b", "4096"], "64M");
    let mounted = Mounted::new(&place.image, &place.directory, "");
    let file = new_file(&place.directory.join("a"));
    file.write_all_at(&[1; 10_000], 0).unwrap();
    assert_eq!(data_of(&file), [(0, 10_000)]);
    file.write_all_at(&[1; 4096], 1 << 20).unwrap();
    assert_eq!(data_of(&file), [(0, 12_288), (1 << 20, (1 << 20) + 4096)]);
    // Another descriptor finds the data, too.
    let reader = File::open(place.directory.join("a")).unwrap();
    file.write_all_at(&[1; 1], 1 << 21).unwrap();
    assert_eq!(data_of(&reader).last(), Some(&(1 << 21, (1 << 21) + 1)));
    // A block that was punched and then partly written is data as a whole.
    fallocate(&file, FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE, 0, 12_288).unwrap();
    file.write_all_at(&[1; 1], 5000).unwrap();
    assert_eq!(data_of(&file)[0], (4096, 8192));
    drop((file, reader));
    mounted.unmount();
    e2fsck_clean(&place.image);
}

/// Many threads write and seek data (SEEK_DATA) at the same time. A seek makes the kernel write
/// back what it has cached. These writes must be answered while the seek waits for them.
#[test]
fn those_who_look_for_data_and_those_who_write_wait_for_nobody() {
    if !can_mount() {
        return;
    }
    let place = place(&["-t", "ext4", "-b", "4096"], "64M");
    let mounted = Mounted::new(&place.image, &place.directory, "");
    let path = place.directory.join("shared");
    drop(new_file(&path));
    let workers: Vec<_> = (0..16_u64)
        .map(|worker| {
            let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
            thread::spawn(move || {
                for round in 0..40 {
                    let at = (round * 16 + worker) * 4096;
                    file.write_all_at(&[7; 4096], at).unwrap();
                    assert_eq!(seek(&file, SeekFrom::Data(at)), Ok(at));
                }
            })
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == 7));
    mounted.unmount();
    e2fsck_clean(&place.image);
}

#[test]
fn a_file_shows_the_blocks_that_it_got() {
    if !can_mount() {
        return;
    }
    let place = place(&["-t", "ext4", "-b", "4096"], "64M");
    let mounted = Mounted::new(&place.image, &place.directory, "");
    let path = place.directory.join("a");
    let file = new_file(&path);
    file.write_all_at(&[1; 40_000], 0).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 40_000, "the kernel has the attributes now");
    file.sync_all().unwrap();
    // The server notifies the kernel only after it has answered the write.
    wait_until("it shows its blocks", || fs::metadata(&path).unwrap().blocks() == 80);
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 81_920).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().blocks(), 160);
    drop(file);
    mounted.unmount();
    e2fsck_clean(&place.image);
}

/// Fills an image with files. Each file whose fsync succeeded is whole after another mount. The
/// kernel ignores a short count from a write-back. So in an earlier version, an fsync could succeed
/// although the end of the file was lost.
#[test]
fn what_fsync_kept_of_a_full_image_is_there() {
    if !can_mount() {
        return;
    }
    let place = place(&["-t", "ext4", "-b", "1024", "-m", "0"], "16M");
    let mounted = Mounted::new(&place.image, &place.directory, "");
    let content = |number: u8| vec![number + 1; 150_000];
    let write = |number: &u8| {
        let file = new_file(&place.directory.join(number.to_string()));
        file.write_all_at(&content(*number), 0).and_then(|()| file.sync_all()).is_ok()
    };
    let kept: Vec<u8> = (0..u8::MAX).take_while(write).collect();
    assert!(kept.len() > 50 && kept.len() < 250, "{} files fit", kept.len());
    mounted.unmount();
    let mounted = Mounted::new(&place.image, &place.directory, "");
    for number in kept {
        let found = fs::read(place.directory.join(number.to_string())).unwrap();
        assert!(found == content(number), "file {number} has {} bytes", found.len());
    }
    mounted.unmount();
    e2fsck_clean(&place.image);
}

/// The kernel does not know the largest size that a file can have here. After a cached write beyond
/// this size, the kernel believes that the file extends to the end of the write, and appends there.
/// In an earlier version, all appended bytes were lost, although the writes had succeeded.
#[test]
fn after_a_write_beyond_the_largest_size_no_writer_is_told_success() {
    const BEYOND: u64 = 17_247_252_485;
    if !can_mount() {
        return;
    }
    let place = place(&["-t", "ext2", "-b", "1024"], "60M");
    let mounted = Mounted::new(&place.image, &place.directory, "");
    let path = place.directory.join("a");
    let too_large = |done: std::io::Result<()>| done.is_err_and(|error| error.raw_os_error() == Some(27));
    let append = || OpenOptions::new().append(true).open(&path).unwrap();
    fs::write(&path, "short\n").unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"x", BEYOND).unwrap();
    assert!(too_large(file.sync_all()));
    // The server notifies the kernel only after it has answered the write-back. Until then, a write
    // within the file would be kept, with zeroes up to the end of its page. So the loop writes
    // beyond the largest size.
    wait_until("a write fails", || too_large(file.write_all_at(b"x", BEYOND)));
    assert!(too_large(file.write_all_at(b"S", 0)), "and the next one, wherever it goes");
    drop(file);
    assert!(too_large(append().write_all(b"lost\n")), "an append that the kernel misplaces fails too");
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"S", 0).unwrap();
    drop(file);
    // `fs::read` would allocate memory for the size that the kernel shows.
    let mut found = Vec::new();
    File::open(&path).unwrap().take(100).read_to_end(&mut found).unwrap();
    assert_eq!(found, b"Short\n");
    append().set_len(6).unwrap();
    append().write_all(b"kept\n").unwrap();
    mounted.unmount();
    let mounted = Mounted::new(&place.image, &place.directory, "");
    assert_eq!(fs::read(&path).unwrap(), b"Short\nkept\n");
    mounted.unmount();
    e2fsck_clean(&place.image);
}
