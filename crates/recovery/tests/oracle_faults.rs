//! Recovery on a device that fails: whichever operation fails, a second run or e2fsck can recover
//! the image afterwards.

#![allow(clippy::unwrap_used)]

#[path = "support/image.rs"]
mod support;

use std::fs;

use blockyard_device::{
    BlockDevice, Effect, Fault, FaultyDevice, FileDevice, MemoryDevice, Operation, OverlayDevice, When,
};
use blockyard_disk::CorruptionKind;
use blockyard_disk::jbd2::JournalIncompat;
use blockyard_recovery::{Error, OnDamage, Options, replay_to_device};
use blockyard_testkit::{e2fsck_clean, full_matrix, require, run};
use support::{BLOCK, Image, JOURNAL, NONE, byte, content, has_error, incompat, read_superblock, v1, v3};
use zerocopy::IntoBytes;

/// An image whose log wraps around the end of the ring. In the log are revokes, blocks that are
/// logged repeatedly, and a copy of the superblock.
fn loaded(features: blockyard_disk::jbd2::JournalFeatures) -> Image {
    let mut image = Image::new(features, support::JOURNAL_BLOCKS - 9, 7);
    for n in 0..4u8 {
        image.revoke(&[3000 + u64::from(n)]);
        image.transaction(&[(2000, n), (2001 + 2 * u64::from(n), n + 1), (3000 + u64::from(n), n)]);
    }
    let (_, crc) = image.blocks(&[(1, support::superblock().as_bytes().to_vec())], !0);
    image.commit(crc);
    image
}

/// For each operation of each kind: faults that strike only it, and faults that strike it and all
/// later ones of its kind. A failing write may have written nothing, a part, or everything.
fn faults(counts: [(Operation, u64); 3]) -> Vec<Fault> {
    let mut all = Vec::new();
    for (operation, count) in counts {
        for n in 1..=count {
            for when in [When::Nth(n), When::From(n)] {
                let effects: &[Effect] = match operation {
                    Operation::Write => &[Effect::Nothing, Effect::Short(1000), Effect::Everything],
                    _ => &[Effect::Nothing],
                };
                all.extend(effects.iter().map(|&effect| Fault { operation, when, effect }));
            }
        }
    }
    all
}

fn counted(device: &dyn BlockDevice) -> [(Operation, u64); 3] {
    let probe = FaultyDevice::new(OverlayDevice::new(device));
    replay_to_device(&probe, &Options::default()).unwrap();
    let counts = probe.counts();
    [(Operation::Read, counts.reads), (Operation::Write, counts.writes), (Operation::Flush, counts.flushes)]
}

#[test]
fn a_second_run_recovers_after_any_fault() {
    for features in [NONE, v1(), v3(), incompat(JournalIncompat::CSUM_V2)] {
        let image = loaded(features);
        let whole = OverlayDevice::new(&image.device);
        replay_to_device(&whole, &Options::default()).unwrap();
        let expected = content(&whole);
        let faults = faults(counted(&image.device));
        assert!(faults.len() > 60, "{}", faults.len());
        for fault in faults {
            let device = FaultyDevice::new(OverlayDevice::new(&image.device));
            device.add(fault);
            let result = replay_to_device(&device, &Options::default());
            assert!(matches!(result, Err(Error::Device(_) | Error::Damaged(_))), "{fault:?}: {result:?}");
            if fault.operation == Operation::Read && matches!(result, Err(Error::Damaged(_))) {
                assert_eq!(
                    device.below().resident_bytes(),
                    0,
                    "{fault:?}: damage is told before the first write"
                );
            }
            device.heal();
            replay_to_device(&device, &Options::default())
                .unwrap_or_else(|error| panic!("{fault:?}: {error}"));
            assert!(content(device.below()) == expected, "{fault:?}");
        }
    }
}

#[test]
fn an_unreadable_copy_costs_only_its_block_when_asked() {
    for features in [NONE, v3()] {
        let mut image = Image::new(features, 1, 7);
        image.transaction(&[(2000, 1), (2001, 1)]);
        let (descriptor, _) = image.transaction(&[(2000, 2), (2001, 2)]);
        let device = FaultyDevice::new(&image.device);
        let place = (JOURNAL + u64::from(descriptor) + 1) * u64::try_from(BLOCK).unwrap();
        device.add(Fault {
            operation: Operation::Read,
            when: When::Touching(place),
            effect: Effect::Nothing,
        });
        let result = replay_to_device(&device, &Options::default());
        let Err(Error::Damaged(damage)) = result else { panic!("{result:?}") };
        assert_eq!((damage.len(), damage[0].kind), (1, CorruptionKind::JournalUnreadable));
        assert_eq!(byte(&image.device, 2001), 0, "nothing is written");

        let options = Options { on_damage: OnDamage::ReplayGood, ..Options::default() };
        let report = replay_to_device(&device, &options).unwrap();
        assert_eq!(report.damage[0].target.unwrap().raw(), 2000);
        assert_eq!([byte(&image.device, 2000), byte(&image.device, 2001)], [1, 2]);
        assert!(has_error(&read_superblock(&image.device)));
    }
}

/// debugfs writes the journal, a fault ends our recovery, and e2fsck still recovers the image.
#[test]
fn e2fsck_recovers_after_any_fault() {
    if !require(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let text = |name: &str| path(name).to_str().unwrap().to_owned();
    fs::write(path("data"), vec![0x11; 3 * 1024]).unwrap();
    let script = format!(
        "jo -c\njw -b 7000,7001,7002 {data}\njw -r 7001\njw -b 6000,6500,7001 {data}\njc\n",
        data = path("data").display()
    );
    fs::write(path("script"), script).unwrap();
    assert!(run("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "1024", &text("image"), "12M"]).status.success());
    assert!(run("debugfs", &["-w", "-f", &text("script"), &text("image")]).status.success());
    let base = MemoryDevice::load(&path("image")).unwrap();
    let all = faults(counted(&base));
    let step = if full_matrix() { 1 } else { all.len() / 8 };
    for fault in all.into_iter().step_by(step) {
        let copy = base.duplicate();
        let device = FaultyDevice::new(&copy);
        device.add(fault);
        assert!(replay_to_device(&device, &Options::default()).is_err(), "{fault:?}");
        copy.save(&path("cut")).unwrap();
        let code = run("e2fsck", &["-fy", &text("cut")]).status.code();
        assert!(matches!(code, Some(0 | 1)), "{fault:?}: {code:?}");
        e2fsck_clean(&path("cut"));
        let device = FileDevice::open_read_only(&path("cut")).unwrap();
        for block in [6000, 6500, 7000, 7001, 7002] {
            assert_eq!(byte(&device, block), 0x11, "{fault:?}: block {block}");
        }
    }
}
