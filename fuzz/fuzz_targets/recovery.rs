//! Dirty journals with edits: a replay does not write to the log. (It may write to the journal's
//! superblock.)

#![no_main]

use std::sync::{Arc, OnceLock};

use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_fuzz::{Input, bases, edit};
use blockyard_recovery::{
    JournalPlace, JournalState, OnDamage, Options, Session, Unflagged, replay_into_overlay,
};
use libfuzzer_sys::fuzz_target;

const BLOCK: u64 = 1024;

/// The bases whose log is not empty, each with the byte where its journal begins.
fn journaled() -> &'static [(Arc<MemoryDevice>, u64)] {
    static JOURNALED: OnceLock<Vec<(Arc<MemoryDevice>, u64)>> = OnceLock::new();
    JOURNALED.get_or_init(|| {
        let dirty = |base: &&Arc<MemoryDevice>| {
            Session::open(&**base).is_ok_and(|session| session.status().state == JournalState::NeedsReplay)
        };
        let all: Vec<_> = bases()
            .iter()
            .filter(dirty)
            .map(|base| {
                (Arc::clone(base), place(&**base).expect("it has a journal").physical(0).raw() * BLOCK)
            })
            .collect();
        assert!(!all.is_empty(), "no base with a dirty journal");
        all
    })
}

fn place(device: &dyn BlockDevice) -> Option<JournalPlace> {
    Session::open(device).ok()?.into_journal()
}

/// The log after its superblock.
fn log(device: &dyn BlockDevice, place: &JournalPlace) -> Vec<u8> {
    let mut log = Vec::new();
    let (mut number, end) = (1, place.superblock().blocks());
    while number < end {
        let first = place.physical(number).raw();
        let run = (number..end)
            .zip(first..)
            .take_while(|(log, block)| place.physical(*log).raw() == *block)
            .count();
        let mut bytes = vec![0; run * usize::try_from(BLOCK).expect("small")];
        device.read_at(first * BLOCK, &mut bytes).expect("memory can be read");
        log.append(&mut bytes);
        number += u32::try_from(run).expect("a part of the journal");
    }
    log
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let choice = input.byte();
    let (base, start) = &journaled()[usize::from(choice & 0x3F) % journaled().len()];
    // Offsets count from the start of the journal, or from the start of the image, where the
    // superblock, the descriptors and the inodes are.
    let image = edit(base, input, if choice & 0x40 == 0 { *start } else { 0 });
    // Only for some inputs: reading the log dominates the run time.
    let place = if data.len() % 16 == 5 { place(&image) } else { None };
    let before = place.as_ref().map(|place| log(&image, place));
    let whole = choice & 0x80 == 0;
    let options = Options {
        on_damage: if whole { OnDamage::ReplayGood } else { OnDamage::Refuse },
        unflagged: if whole { Unflagged::Replay } else { Unflagged::Refuse },
    };
    let replayed = replay_into_overlay(&image, &options);
    if let (Ok((overlay, _)), Some(place)) = (replayed, place) {
        assert!(Some(log(&overlay, &place)) == before, "the log was written");
    }
});
