//! Recorder and faulty device: rebuilt images equal what was written, the crash states of short
//! logs are exactly the legal ones, and faults strike where they were placed.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

use std::collections::BTreeSet;

use blockyard_device::{
    BlockDevice, CrashPlan, Effect, Fault, FaultyDevice, MemoryDevice, Operation, OverlayDevice,
    RecorderDevice, When, WriteLog,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

const SIZE: usize = 40 * 512;

fn config(cases: u32) -> ProptestConfig {
    let seed = blockyard_testkit::seed(0xC4A5);
    ProptestConfig {
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases)
    }
}

fn content(device: &dyn BlockDevice) -> Vec<u8> {
    let mut all = vec![0; SIZE];
    device.read_at(0, &mut all).unwrap();
    all
}

/// All images of a log's crash states, as the first byte of each sector.
fn images(base: &MemoryDevice, log: &WriteLog, plan: &CrashPlan) -> BTreeSet<Vec<u8>> {
    let build = |state: blockyard_device::CrashState| {
        let image = OverlayDevice::new(base);
        state.build(log, &image).unwrap();
        content(&image).chunks(512).map(|sector| sector[0]).collect()
    };
    log.crash_states(plan).map(build).collect()
}

proptest! {
    #![proptest_config(config(48))]

    #[test]
    fn every_prefix_is_rebuilt(
        changes in prop::collection::vec((0..SIZE, 1..3000usize, any::<u8>(), 0..4u8), 1..25),
    ) {
        let base = MemoryDevice::from_bytes(&vec![0x33; SIZE]);
        let recorder = RecorderDevice::new(OverlayDevice::new(&base));
        let mut images = vec![content(&base)];
        for &(offset, length, byte, kind) in &changes {
            let length = length.min(SIZE - offset);
            match kind {
                0 => recorder.write_zeroes(offset as u64, length as u64).unwrap(),
                1 => recorder.flush().unwrap(),
                2 => recorder.write_durable_at(offset as u64, &vec![byte; length]).unwrap(),
                _ => recorder.write_at(offset as u64, &vec![byte; length]).unwrap(),
            }
            images.push(content(&recorder));
        }
        let log = recorder.log();
        for (count, image) in images.iter().enumerate() {
            let rebuilt = OverlayDevice::new(&base);
            log.apply_prefix(count, &rebuilt).unwrap();
            prop_assert!(&content(&rebuilt) == image, "prefix of {} events", count);
        }
    }
}

/// Writes of one sector each: A; a flush; B, C (durable), D; no flush at the end.
#[test]
fn subsets_respect_flushes_and_durable_writes() {
    let base = MemoryDevice::new(SIZE as u64);
    let recorder = RecorderDevice::new(OverlayDevice::new(&base));
    let write = |sector: u64, byte| recorder.write_at(sector * 512, &[byte; 512]).unwrap();
    write(0, b'A');
    recorder.flush().unwrap();
    recorder.mark("second epoch");
    write(1, b'B');
    recorder.write_durable_at(2 * 512, &[b'C'; 512]).unwrap();
    write(3, b'D');
    let log = recorder.log();
    assert_eq!(log.marks().collect::<Vec<_>>(), [(2, "second epoch")]);
    let seen: BTreeSet<String> = images(&base, &log, &CrashPlan::default())
        .into_iter()
        .map(|image| image[..4].iter().filter(|&&byte| byte != 0).map(|&byte| char::from(byte)).collect())
        .collect();
    let expected = ["", "A", "AB", "ABC", "ABCD", "AC", "ACD"];
    assert_eq!(seen, expected.map(str::to_owned).into(), "D without C, or B without A, cannot be");
}

#[test]
fn torn_writes_keep_whole_sectors() {
    let base = MemoryDevice::new(SIZE as u64);
    let recorder = RecorderDevice::new(OverlayDevice::new(&base));
    recorder.write_at(512, &[7; 4 * 512]).unwrap();
    let plan = CrashPlan { torn: 200, ..CrashPlan::default() };
    let seen = images(&base, &recorder.log(), &plan);
    // All 16 combinations of four sectors, and nothing else.
    assert_eq!(seen.len(), 16);
    assert!(seen.iter().all(|image| image[0] == 0 && image[5..].iter().all(|&byte| byte == 0)));
    let log = recorder.log();
    for state in log.crash_states(&plan) {
        let image = OverlayDevice::new(&base);
        state.build(&log, &image).unwrap();
        assert!(content(&image).chunks(512).all(|sector| sector.iter().all(|&byte| byte == sector[0])));
    }
}

#[test]
fn overlapping_writes_arrive_in_either_order() {
    let base = MemoryDevice::new(SIZE as u64);
    let recorder = RecorderDevice::new(OverlayDevice::new(&base));
    for byte in 1..=8u8 {
        recorder.write_at(0, &[byte; 512]).unwrap();
    }
    let plan = CrashPlan { subsets_max: 4, random_subsets: 200, ..CrashPlan::default() };
    let winners: BTreeSet<u8> =
        images(&base, &recorder.log(), &plan).into_iter().map(|image| image[0]).collect();
    assert_eq!(winners, (0..=8).collect());
    let again = images(&base, &recorder.log(), &plan);
    assert_eq!(again, images(&base, &recorder.log(), &plan), "one seed, one set of states");
}

/// After a durable write returned, older writes to the same sectors can no longer arrive.
#[test]
fn a_durable_write_is_not_undone_by_an_older_one() {
    let base = MemoryDevice::new(SIZE as u64);
    let recorder = RecorderDevice::new(OverlayDevice::new(&base));
    (1..=8).for_each(|byte| recorder.write_at(0, &[byte; 512]).unwrap());
    recorder.write_durable_at(0, &[9; 512]).unwrap();
    (10..=13).for_each(|byte| recorder.write_at(512, &[byte; 512]).unwrap());
    let plan = CrashPlan { subsets_max: 4, random_subsets: 200, ..CrashPlan::default() };
    let seen = images(&base, &recorder.log(), &plan);
    let later: Vec<&Vec<u8>> = seen.iter().filter(|image| image[1] > 0).collect();
    assert_eq!(later.iter().map(|image| image[1]).collect::<BTreeSet<u8>>(), (10..=13).collect());
    assert!(later.iter().all(|image| image[0] == 9), "the durable write is not there");
}

#[test]
fn faults_strike_where_they_were_put() {
    let device = FaultyDevice::new(MemoryDevice::new(SIZE as u64));
    let fault = |operation, when, effect| device.add(Fault { operation, when, effect });
    fault(Operation::Write, When::Nth(2), Effect::Short(512));
    fault(Operation::Write, When::Touching(5000), Effect::Nothing);
    fault(Operation::Flush, When::From(2), Effect::Nothing);
    fault(Operation::Read, When::Nth(1), Effect::Nothing);

    device.write_at(0, &[1; 1024]).unwrap();
    device.write_at(0, &[2; 1024]).unwrap_err();
    device.write_at(4999, &[3]).unwrap();
    device.write_at(4999, &[4; 2]).unwrap_err();
    device.write_durable_at(5001, &[5]).unwrap();
    device.flush().unwrap();
    device.flush().unwrap_err();
    device.flush().unwrap_err();
    let mut buf = [9; 1];
    device.read_at(0, &mut buf).unwrap_err();
    assert_eq!(buf, [9]);
    assert_eq!(device.strikes(), 5);
    let counts = device.counts();
    assert_eq!((counts.reads, counts.writes, counts.flushes), (1, 5, 3));

    device.heal();
    let seen = content(&device);
    assert_eq!((seen[511], seen[512], seen[4999], seen[5000], seen[5001]), (2, 1, 3, 0, 5));
}
