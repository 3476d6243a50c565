//! Random operations on devices in memory, overlays and files leave the same content as on a vector
//! of bytes.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

use std::sync::Arc;

use blockyard_device::{BlockDevice, DeviceError, FileDevice, MemoryDevice, OverlayDevice};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Not a multiple of the page size, and more than three of the 64 KiB stripes in which devices in
/// memory keep their pages.
const SIZE: usize = 3 * 65_536 + 5000;

/// All cases come from one seed, which is printed.
fn config(cases: u32) -> ProptestConfig {
    let seed = blockyard_testkit::seed(0xB10C);
    ProptestConfig {
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases)
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Write { offset: usize, length: usize, byte: u8 },
    Durable { offset: usize, length: usize, byte: u8 },
    Zero { offset: usize, length: usize },
    Flush,
}

/// Ranges of every scale: inside a sector, around page and stripe edges, and nearly everything.
fn range() -> impl Strategy<Value = (usize, usize)> {
    let scale = prop_oneof![Just(64usize), Just(4096), Just(20_000), Just(SIZE)];
    (0..SIZE, scale, any::<prop::sample::Index>(), any::<bool>()).prop_map(
        |(offset, scale, length, align)| {
            let offset = if align { offset / 4096 * 4096 } else { offset };
            let length = length.index(scale.min(SIZE - offset) + 1);
            let length = if align && length > 4096 { length / 4096 * 4096 } else { length };
            (offset, length)
        },
    )
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        6 => (range(), any::<u8>()).prop_map(|((offset, length), byte)| Operation::Write { offset, length, byte }),
        1 => (range(), any::<u8>()).prop_map(|((offset, length), byte)| Operation::Durable { offset, length, byte }),
        3 => range().prop_map(|(offset, length)| Operation::Zero { offset, length }),
        1 => Just(Operation::Flush),
    ]
}

/// Bytes that change with position, so that a shifted copy is detected; all zeroes if `byte` is 0.
fn payload(offset: usize, length: usize, byte: u8) -> Vec<u8> {
    (offset..offset + length).map(|at| if byte == 0 { 0 } else { byte ^ (at / 7) as u8 }).collect()
}

fn apply(device: &dyn BlockDevice, model: &mut [u8], operation: &Operation) {
    match *operation {
        Operation::Write { offset, length, byte } => {
            let data = payload(offset, length, byte);
            device.write_at(offset as u64, &data).unwrap();
            model[offset..offset + length].copy_from_slice(&data);
        }
        Operation::Durable { offset, length, byte } => {
            let data = payload(offset, length, byte);
            device.write_durable_at(offset as u64, &data).unwrap();
            model[offset..offset + length].copy_from_slice(&data);
        }
        Operation::Zero { offset, length } => {
            device.write_zeroes(offset as u64, length as u64).unwrap();
            model[offset..offset + length].fill(0);
        }
        Operation::Flush => device.flush().unwrap(),
    }
}

fn content(device: &dyn BlockDevice) -> Vec<u8> {
    let mut all = vec![0xEE; usize::try_from(device.size()).unwrap()];
    device.read_at(0, &mut all).unwrap();
    all
}

fn assert_same(device: &dyn BlockDevice, model: &[u8]) {
    let all = content(device);
    assert!(
        all == model,
        "first difference at byte {}",
        all.iter().zip(model).position(|(a, b)| a != b).unwrap()
    );
    for (offset, length) in [(1, 4096), (4095, 2), (65_535, 70_000), (SIZE - 1, 1), (SIZE, 0)] {
        let mut part = vec![0xEE; length];
        device.read_at(offset as u64, &mut part).unwrap();
        assert_eq!(part, model[offset..offset + length], "{length} bytes at {offset}");
    }
}

proptest! {
    #![proptest_config(config(64))]

    #[test]
    fn memory_is_a_vector_of_bytes(operations in prop::collection::vec(operation(), 1..60)) {
        let device = MemoryDevice::new(SIZE as u64);
        let mut model = vec![0; SIZE];
        for operation in &operations {
            apply(&device, &mut model, operation);
        }
        assert_same(&device, &model);
        assert_same(&device.duplicate(), &model);
        device.write_zeroes(0, SIZE as u64).unwrap();
        prop_assert_eq!(device.resident_bytes(), 0);
    }

    #[test]
    fn overlay_hides_changes_until_commit(
        before in prop::collection::vec(operation(), 0..20),
        after in prop::collection::vec(operation(), 1..60),
    ) {
        let base = Arc::new(MemoryDevice::new(SIZE as u64));
        let mut old = vec![0; SIZE];
        for operation in &before {
            apply(&*base, &mut old, operation);
        }
        let overlay = OverlayDevice::new(Arc::clone(&base));
        let mut new = old.clone();
        for operation in &after {
            apply(&overlay, &mut new, operation);
        }
        assert_same(&overlay, &new);
        assert_same(&*base, &old);
        let dirty = overlay.dirty_ranges();
        for (at, (a, b)) in old.iter().zip(&new).enumerate() {
            prop_assert!(a == b || dirty.iter().any(|range| range.contains(&(at as u64))), "byte {} not listed", at);
        }
        prop_assert!(dirty.windows(2).all(|pair| pair[0].end < pair[1].start), "{:?}", dirty);

        let second = OverlayDevice::new(&overlay);
        second.write_at(10, &[1, 2, 3]).unwrap();
        second.discard_changes();
        assert_same(&second, &new);

        overlay.commit().unwrap();
        prop_assert!(overlay.dirty_ranges().is_empty());
        assert_same(&*base, &new);
        assert_same(&overlay, &new);
    }
}

proptest! {
    #![proptest_config(config(12))]

    #[test]
    fn files_are_vectors_of_bytes(operations in prop::collection::vec(operation(), 1..30)) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        let mut model = vec![0; SIZE];
        {
            let device = FileDevice::create(&path, SIZE as u64).unwrap();
            for operation in &operations {
                apply(&device, &mut model, operation);
            }
            assert_same(&device, &model);
        }
        prop_assert!(std::fs::read(&path).unwrap() == model);
        let loaded = MemoryDevice::load(&path).unwrap();
        assert_same(&loaded, &model);
        let copy = directory.path().join("copy");
        std::fs::write(&copy, vec![0xFF; SIZE * 2]).unwrap();
        loaded.save(&copy).unwrap();
        prop_assert!(std::fs::read(&copy).unwrap() == model);
    }
}

#[test]
fn ranges_past_the_end_are_refused_everywhere() {
    let directory = tempfile::tempdir().unwrap();
    let file = FileDevice::create(&directory.path().join("image"), 10_000).unwrap();
    let memory = MemoryDevice::new(10_000);
    let overlay = OverlayDevice::new(&memory);
    let devices: [&dyn BlockDevice; 3] = [&file, &memory, &overlay];
    for device in devices {
        let mut buf = [0; 2];
        let results = [
            device.read_at(9_999, &mut buf),
            device.write_at(9_999, &buf),
            device.write_at(u64::MAX, &buf),
            device.write_zeroes(5_000, 5_001),
            device.discard(1, u64::MAX),
        ];
        for result in results {
            assert!(matches!(result, Err(DeviceError::OutOfRange { size: 10_000, .. })), "{result:?}");
        }
    }
}

#[test]
fn sixteen_tib_of_holes_cost_nothing() {
    let device = MemoryDevice::new(16 << 40);
    for at in [0u64, 1 << 30, (16 << 40) - 4096] {
        device.write_at(at, &[7; 4096]).unwrap();
    }
    device.write_at(5 << 40, &[0; 1 << 20]).unwrap();
    assert_eq!(device.resident_bytes(), 3 * 4096);
    device.write_zeroes(4096, (16 << 40) - 8192).unwrap();
    assert_eq!(device.resident_bytes(), 2 * 4096);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    let small = MemoryDevice::new(1 << 40);
    small.write_at(1 << 39, b"in the middle").unwrap();
    small.save(&path).unwrap();
    let saved = FileDevice::open_read_only(&path).unwrap();
    assert_eq!(saved.size(), 1 << 40);
    assert!(saved.allocated_bytes().unwrap() <= 64 << 10, "{:?}", saved.allocated_bytes());
    let loaded = MemoryDevice::load(&path).unwrap();
    assert_eq!(loaded.resident_bytes(), 4096);
}

#[test]
fn holes_are_punched_into_files() {
    let directory = tempfile::tempdir().unwrap();
    let device = FileDevice::create(&directory.path().join("image"), 8 << 20).unwrap();
    device.write_at(0, &vec![9; 8 << 20]).unwrap();
    device.flush().unwrap();
    let full = device.allocated_bytes().unwrap();
    device.write_zeroes(1 << 20, 6 << 20).unwrap();
    device.flush().unwrap();
    assert!(device.allocated_bytes().unwrap() <= full - (6 << 20));
    let mut seen = Vec::new();
    device
        .for_each_data(|at, data| {
            seen.push((at, data.len()));
            Ok(())
        })
        .unwrap();
    assert_eq!(seen, [(0, 1 << 20), (7 << 20, 1 << 20)]);
}

#[test]
fn two_writers_never_meet() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    let first = FileDevice::create(&path, 4096).unwrap();
    first.write_at(0, b"kept").unwrap();
    let second = FileDevice::open(&path);
    assert!(matches!(second, Err(DeviceError::Open { .. })), "{second:?}");
    // Recreating the file must not drop its content before the lock is held.
    assert!(FileDevice::create(&path, 10).is_err());
    let reader = FileDevice::open_read_only(&path).unwrap();
    let mut buf = [0; 4];
    reader.read_at(0, &mut buf).unwrap();
    assert_eq!(&buf, b"kept");
    assert!(matches!(reader.write_at(0, &buf), Err(DeviceError::ReadOnly { .. })));
    drop(first);
    FileDevice::open(&path).unwrap();
}

/// Threads own interleaved pieces of the same pages: no thread's bytes may be lost or torn by a
/// neighbour.
fn hammer(device: &dyn BlockDevice) {
    const THREADS: usize = 8;
    const PIECE: usize = 100;
    let rounds = 200;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for round in 0..rounds {
                    for slot in (thread..SIZE / PIECE).step_by(THREADS * 5) {
                        let at = (slot * PIECE) as u64;
                        let mut seen = [0xEE; PIECE];
                        if round % 3 == 2 {
                            device.write_zeroes(at, PIECE as u64).unwrap();
                            device.read_at(at, &mut seen).unwrap();
                            assert_eq!(seen, [0; PIECE]);
                        }
                        let data = [(thread * 31 + round + slot) as u8; PIECE];
                        device.write_at(at, &data).unwrap();
                        device.read_at(at, &mut seen).unwrap();
                        assert_eq!(seen, data, "thread {thread} round {round} slot {slot}");
                    }
                }
            });
        }
    });
}

#[test]
fn neighbours_in_a_page_do_not_disturb_each_other() {
    hammer(&MemoryDevice::new(SIZE as u64));
    let base = MemoryDevice::from_bytes(&vec![0x5A; SIZE]);
    let overlay = OverlayDevice::new(&base);
    hammer(&overlay);
    // Slots that no thread owned still show the device below.
    assert_eq!(content(&overlay)[9 * 100], 0x5A);
    assert!(content(&base).iter().all(|&byte| byte == 0x5A));
}

#[test]
fn an_impossible_size_costs_no_file_its_content() {
    let directory = tempfile::tempdir().unwrap();
    let (old, new) = (directory.path().join("old"), directory.path().join("new"));
    std::fs::write(&old, b"content").unwrap();
    for path in [&old, &new] {
        assert!(matches!(FileDevice::create(path, u64::MAX), Err(DeviceError::Open { .. })));
    }
    assert!(std::fs::read(&old).unwrap() == b"content" && !new.exists());
}

/// A replacement that failed used to destroy the content of the old file.
#[test]
fn a_file_is_replaced_as_a_whole_or_stays_as_it_was() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let (old, new) = (directory.path().join("old"), directory.path().join("new"));
    std::fs::write(&old, b"content").unwrap();
    std::fs::set_permissions(&old, std::fs::Permissions::from_mode(0o600)).unwrap();
    let names = || std::fs::read_dir(directory.path()).unwrap().count();
    let impossible = MemoryDevice::new(u64::MAX);
    for path in [&old, &new] {
        assert!(matches!(impossible.save(path), Err(DeviceError::Open { .. })));
    }
    assert!(std::fs::read(&old).unwrap() == b"content" && names() == 1);
    let held = FileDevice::open(&old).unwrap();
    let device = MemoryDevice::from_bytes(&[7; 10_000]);
    assert!(matches!(device.save(&old), Err(DeviceError::Open { .. })), "in use");
    drop(held);
    // Whoever has the old file open still reads its old content.
    let mut reader = std::fs::File::open(&old).unwrap();
    std::os::unix::fs::symlink(&old, directory.path().join("link")).unwrap();
    device.save(&directory.path().join("link")).unwrap();
    let mut kept = Vec::new();
    std::io::Read::read_to_end(&mut reader, &mut kept).unwrap();
    assert_eq!(kept, b"content");
    assert_eq!(std::fs::read(&old).unwrap(), [7; 10_000]);
    assert_eq!(std::fs::metadata(&old).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(names(), 2, "the link and the file");
}
